"""Optimal action values in fractions, clusters by their distance, and models to look at both."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from bisim_abstract import Certificate, TabularMDP
from tests.support.blocks import estimated, moved_mass
from tests.support.values import Exact
from tests.support.worlds import dense

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator
Values = list[list[Fraction]]
Distances = list[list[Fraction]]

GAMMAS = (0.0, 0.5, 0.9, 0.999)
REWARDS = ("plain", "few", "zero", "tiny", "huge", "offset")
ROWS = ("deterministic", "sparse", "dense")
# What only relations with arms have.
ARMS = re.compile(
    r"bisimulation|metric\b|covered|looked at|\bblocks?\b|\blevels?\b|features?\b|sweep|max_pairs"
    r"|\b0 pairs|bounds of their own|\(relation lax\)",
    re.IGNORECASE,
)


# -- truth -------------------------------------------------------------------------------------


def optimal_q(mdp: TabularMDP, gamma: float) -> Values:
    """(n_states, n_actions) optimal action values, by policy iteration."""
    model = Exact.of(mdp, gamma)
    best = model.optimal([0] * mdp.n_states)
    return [[model.q(best, s, a) for a in range(mdp.n_actions)] for s in range(mdp.n_states)]


def gaps(q: Values) -> Distances:
    """The largest difference of action values, of all pairs of states."""
    return [[max(abs(x - y) for x, y in zip(a, b, strict=True)) for b in q] for a in q]


def distances(mdp: TabularMDP, q: Values, apart: float | None) -> Distances:
    """The same, and a constant between states with different actions."""
    sets = mdp.action_sets.tolist()
    found = gaps(q)
    for s, own in enumerate(sets):
        for t, other in enumerate(sets):
            if own != other:
                assert apart is not None
                found[s][t] = Fraction(apart)
    return found


def single_linkage(table: Sequence[Sequence[Any]] | Floats, tau: Any) -> list[int]:
    """Components of all pairs at most tau apart, numbered by first appearance."""
    return components([[x <= tau for x in line] for line in table])


def components(is_link: Any) -> list[int]:
    """Components of a table of links, numbered by first appearance."""
    labels = connected_components(np.asarray(is_link, bool), directed=False)[1].tolist()
    names: dict[int, int] = {}
    return [names.setdefault(label, len(names)) for label in labels]


# -- models ------------------------------------------------------------------------------------


def random_model(seed: int, *, kind: str | None = None, max_states: int = 6) -> TabularMDP:
    """Any small model: rewards of any size, some states copies of others, masks, an end.

    Args:
        seed: Decides everything.
        kind: Of rewards; any by default.
        max_states: At least 2.
    """
    rng = np.random.default_rng([41, seed])
    n, n_actions = int(rng.integers(1, max_states + 1)), int(rng.integers(1, 4))
    rows = ROWS[seed % len(ROWS)]
    reward = str(rng.choice(REWARDS)) if kind is None else kind
    P, R = np.zeros((n, n_actions, n)), random_rewards(rng, reward, (n, n_actions))
    for s, a in np.ndindex(n, n_actions):
        size = {"deterministic": 1, "sparse": int(rng.integers(1, 4)), "dense": n}[rows]
        support = rng.permutation(n)[:size]
        P[s, a, support] = rng.dirichlet(np.ones(support.size))
    for s in range(1, n):
        if rng.random() < 0.4:  # a copy of another state
            like = int(rng.integers(s))
            P[s], R[s] = P[like], R[like]
    available = np.ones((n, n_actions), bool)
    if rng.random() < 0.5:
        available = rng.random((n, n_actions)) < 0.7
        available[np.arange(n), rng.integers(n_actions, size=n)] = True
    end = None
    if n > 1 and rng.random() < 0.4:
        end = int(rng.integers(n))
        P[end], R[end], available[end] = np.eye(n)[end], 0.0, True
    return TabularMDP.from_dense(P, R, order="sas", terminal_state=end, available=available)


def random_rewards(rng: Rng, kind: str, shape: tuple[int, int]) -> Floats:
    """Rewards in [0, 1), a few values, none, or all of another size."""
    if kind == "few":
        return rng.choice([0.0, 0.0, 1.0, -1.0, -0.0], size=shape)
    plain = rng.random(shape) - 0.5 * (rng.random() < 0.5)
    scale = {"zero": 0.0, "tiny": 1e-200, "huge": 1e250}.get(kind, 1.0)
    return plain * scale + (1e6 if kind == "offset" else 0.0)


def masked_estimate(seed: int) -> TabularMDP:
    """An estimate in dyadic numbers, so that models at the edge of its radii are exact."""
    rng = np.random.default_rng([43, seed])
    n, n_actions = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    shape = (n, n_actions)
    pool = rng.multinomial(16, np.ones(n) / n, size=3) / 16
    P, R = pool[rng.integers(3, size=shape)], rng.integers(0, 3, shape) / 4
    base = TabularMDP.from_dense(P, R, order="sas")
    reward = rng.integers(0, 4, shape) / 32 * (rng.random() < 0.7)
    row = rng.integers(0, 5, shape) / 16 * (rng.random() < 0.8)
    if rng.random() < 0.2:
        row[:] = 1.0  # nothing is known of what follows
    end = int(rng.integers(n)) if rng.random() < 0.4 else None
    if end is not None:
        P, R = dense(base), R.copy()
        P[end], R[end], reward[end], row[end] = np.eye(n)[end], 0.0, 0.0, 0.0
        base = TabularMDP.from_dense(P, R, order="sas", terminal_state=end)
    found = estimated(base, reward, row)
    if rng.random() < 0.5:
        available = rng.random(shape) < 0.7
        available[np.arange(n), rng.integers(n_actions, size=n)] = True
        if end is not None:
            available[end] = True
        found = found.with_available(available)
    return found


def models_within(mdp: TabularMDP, gamma: float, seed: int, count: int = 2) -> list[TabularMDP]:
    """Models that an estimate allows: its middle, the best and the worst for agents, and others."""
    assert mdp.estimate is not None
    rng = np.random.default_rng([47, seed])
    P, estimate = dense(mdp), mdp.estimate
    q = np.array([[float(x) for x in line] for line in optimal_q(plain_of(mdp), gamma)])
    best = q.max(axis=1)
    signs: list[Any] = [1.0, -1.0] + [rng.choice([-1.0, 0.0, 1.0], q.shape) for _ in range(count)]
    ends = [[int(best.argmax())], [int(best.argmin())]] + [list(range(mdp.n_states))] * count
    found = [plain_of(mdp)]
    for sign, towards in zip(signs, ends, strict=True):
        rows = moved_mass(P, estimate.row_radius, rng, towards)
        rewards = mdp.rewards + sign * estimate.reward_radius
        found.append(TabularMDP.from_dense(rows, rewards, order="sas", available=mdp.available))
    return found


def plain_of(mdp: TabularMDP) -> TabularMDP:
    """The stored model, as if it were known."""
    return dataclasses.replace(mdp, estimate=None)


def planted(
    n: int, n_classes: int, n_actions: int, seed: int, *, support: int = 2
) -> tuple[TabularMDP, Ints, Floats]:
    """A model whose optimal action values at gamma 1/2 are equal in classes, and known exactly.

    Successors are any; rewards make up for them, in dyadic numbers. So members of a class differ
    in rewards and in dynamics. Returns the model, classes and the values of theirs.
    """
    rng = np.random.default_rng([53, seed])
    labels = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=n - n_classes)])
    q = rng.permutation(64 * n_classes * n_actions)[: n_classes * n_actions] / 8.0
    q = q.reshape(n_classes, n_actions)
    best = q.max(axis=1)
    P = np.zeros((n, n_actions, n))
    for s, a in np.ndindex(n, n_actions):
        for state in rng.integers(n, size=support):
            P[s, a, state] += 1.0 / support
    assert support in (1, 2, 4)
    R = q[labels] - 0.5 * (P @ best[labels])
    return TabularMDP.from_dense(P, R, order="sas"), labels.astype(np.int64), q


# -- certificates as plain objects -----------------------------------------------------------------


def opened(certificate: Certificate, **changes: Any) -> dict[str, Any]:
    """What a certificate says, as fields that can be changed; without its value and its model."""
    names = [f.name for f in dataclasses.fields(certificate) if f.name not in ("model", "value")]
    found = {name: getattr(certificate, name) for name in names}
    for name, entry in found.items():
        if isinstance(entry, np.ndarray):
            found[name] = entry.copy()
    values = certificate.action_values
    assert values is not None
    found["action_values"] = SimpleNamespace(values=values.values.copy(), radius=values.radius)
    return found | {"value": None, "run": dict(certificate.run)} | changes


def encloses(lower: float, upper: float, truths: Iterable[Fraction]) -> bool:
    """Whether bounds hold for all of these."""
    return all(Fraction(lower) <= x <= Fraction(upper) for x in truths)
