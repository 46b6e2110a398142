"""Random small models of every awkward kind."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from bisim_abstract import TabularMDP

Floats = npt.NDArray[np.float64]

GAMMAS = (0.0, 0.5, 0.9, 0.99, 0.999)
SIZES = (2, 2, 3, 3, 4, 4, 5, 6, 7, 8)
TINY_MASSES = (1e-10, 1e-12, 2.0**-60, 1e-20, 1e-100, 1e-300, 5e-324)
ROWS = ("dense", "sparse", "deterministic", "dyadic", "ratios", "tiny", "loose", "mixed")
REWARDS = ("unit", "few", "equal", "last bit", "tiny", "huge", "any size", "denormal")


def random_model(rng: np.random.Generator, *, max_states: int = 8) -> TabularMDP:
    """2 to 8 states and 1 to 3 actions: duplicates, absorbing states, extreme numbers."""
    n = min(int(rng.choice(SIZES)), max_states)
    n_actions = int(rng.integers(1, 4))
    kind = str(rng.choice(ROWS))
    P = np.array([[random_row(rng, n, kind) for _ in range(n_actions)] for _ in range(n)])
    R = random_rewards(rng, n, n_actions)
    if rng.random() < 0.4:  # duplicates: exact copies of other states
        for _ in range(int(rng.integers(1, n))):
            s, t = rng.integers(n, size=2)
            P[s], R[s] = P[t], R[t]
    terminal = None
    if rng.random() < 0.3:
        for s in rng.integers(n, size=int(rng.integers(1, 3))).tolist():
            P[s], R[s] = np.eye(n)[s], 0.0
            terminal = s
    if rng.random() < 0.5:
        terminal = None
    start = None
    if rng.random() < 0.3:
        start = rng.dirichlet(np.ones(n))
    return TabularMDP.from_dense(P, R, order="sas", terminal_state=terminal, start=start)


def random_gamma(rng: np.random.Generator, *, patience: float = 1.0) -> float:
    """One of the usual discounts, or any; of those near 1 only this share is kept."""
    gamma = float(rng.choice(GAMMAS)) if rng.random() < 0.9 else float(rng.random() * 0.999)
    return gamma if gamma <= 0.99 or rng.random() < patience else 0.9


def random_row(rng: np.random.Generator, n: int, kind: str) -> Floats:
    """(n) probabilities that sum to 1, exactly, up to rounding, or within the tolerance only."""
    if kind == "mixed":
        kind = str(rng.choice(ROWS[:-1]))
    row = np.zeros(n)
    support = rng.permutation(n)[: int(rng.integers(1, min(n, 4) + 1))]
    if kind == "deterministic":
        row[support[0]] = 1.0
    elif kind == "dense":
        row = rng.dirichlet(np.ones(n))
    elif kind == "dyadic":
        cuts = np.sort(rng.choice(np.arange(1, 16), size=support.size - 1, replace=False))
        row[support] = np.diff([0, *cuts.tolist(), 16]) / 16.0
    elif kind == "ratios":
        parts = rng.choice([1, 1, 2, 3, 5, 7], size=support.size)
        row[support] = parts / parts.sum()
    elif kind == "tiny":
        row[support] = rng.choice(TINY_MASSES, size=support.size)
        row[support[0]] = 1.0
    else:
        row[support] = rng.dirichlet(np.ones(support.size))
    if kind == "loose":  # the sum misses 1 by nearly all that is allowed
        row *= 1.0 + float(rng.uniform(-9e-10, 9e-10))
    return row


def random_rewards(rng: np.random.Generator, n: int, n_actions: int) -> Floats:
    """(n, n_actions) rewards from 1e-300 to 1e150, often equal, often off by the last bit."""
    kind = str(rng.choice(REWARDS))
    shape = (n, n_actions)
    if kind == "unit":
        return rng.random(shape)
    if kind == "few":
        return rng.choice([-1.0, 0.0, -0.0, 0.5, 1.0, 2.5], size=shape)
    if kind == "equal":
        return np.full(shape, float(rng.normal()))
    if kind == "last bit":
        return rng.choice([1.0, float(np.nextafter(1.0, 2.0)), 1.0 - 2.0**-53], size=shape)
    if kind == "tiny":
        return rng.normal(size=shape) * 1e-300
    if kind == "huge":
        return rng.normal(size=shape) * float(rng.choice([1e40, 1e150, 1e200, 1e290]))
    if kind == "denormal":
        return rng.choice([0.0, 5e-324, -5e-324, 1e-310, 2.2e-308], size=shape)
    sizes = 10.0 ** rng.integers(-300, 151, size=shape).astype(np.float64)
    return np.asarray(rng.choice([-1.0, 1.0], size=shape) * sizes)


def dense(mdp: TabularMDP) -> Floats:
    """(n_states, n_actions, n_states) kernel, each row divided by its sum."""
    n, n_actions = mdp.rewards.shape
    P = np.zeros((n, n_actions, n))
    for s in range(n):
        for a in range(n_actions):
            span = slice(*mdp.indptr[s * n_actions + a : s * n_actions + a + 2].tolist())
            row = mdp.probs[span]
            total = float(sum((Fraction(x) for x in row.tolist()), Fraction(0)))
            P[s, a, mdp.indices[span]] = row / total
    return P


def exact_rows(mdp: TabularMDP) -> list[list[dict[int, Fraction]]]:
    """Rows by state and action as fractions, each divided by its exact sum."""
    rows: list[list[dict[int, Fraction]]] = []
    for s in range(mdp.n_states):
        rows.append([])
        for a in range(mdp.n_actions):
            k = s * mdp.n_actions + a
            span = slice(int(mdp.indptr[k]), int(mdp.indptr[k + 1]))
            masses = [Fraction(x) for x in mdp.probs[span].tolist()]
            total = sum(masses, Fraction(0))
            places = mdp.indices[span].tolist()
            rows[-1].append({t: m / total for t, m in zip(places, masses, strict=True)})
    return rows
