"""`verify` on blocks, features and clusters of all pairs: honest claims, altered ones, and truth.

Certificates are made here in exact arithmetic by slow code that shares nothing with the
package: every step moves a bound by one exact backup and rounds outward, so that inequalities
hold exactly and, once converged, have no room left.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisim_abstract import Certificate, TabularMDP, bisimulation_metric, certify, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockModel
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.generators import grouped_mdp, sparse_mdp
from bisim_abstract._verify.exact import partial_transport
from bisim_abstract._verify.floats import check_radii
from bisim_abstract._verify.kernels import residual_kernel, row_masses, transport_bounds
from bisim_abstract._verify.read import read_claims
from tests.support.oracles import first_appearance, lifted_exact, transport_exact, variation_exact

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Exact = list[list[Fraction]]

# -- honest components -------------------------------------------------------------------------


def up(value: Fraction) -> float:
    number = float(value)
    return number if Fraction(number) >= value else float(np.nextafter(number, np.inf))


def down(value: Fraction) -> float:
    return -up(-value)


def ends(mdp: TabularMDP, state: int, action: int) -> tuple[Fraction, Fraction]:
    """What the true reward lies between."""
    reward = Fraction(float(mdp.rewards[state, action]))
    radius = Fraction(0)
    if mdp.estimate is not None:
        radius = Fraction(float(mdp.estimate.reward_radius[state, action]))
    return reward - radius, reward + radius


def block_model(mdp: TabularMDP, labels: Sequence[int]) -> SimpleNamespace:
    """Intervals, the mean lifted row of each block as its centre, and exact radii."""
    n_blocks, n_actions = max(labels) + 1, mdp.n_actions
    low, high = np.empty((n_blocks, n_actions)), np.empty((n_blocks, n_actions))
    radius = np.empty((n_blocks, n_actions))
    indptr, indices, probs = [0], [], []
    for block in range(n_blocks):
        members = [s for s, label in enumerate(labels) if label == block]
        for a in range(n_actions):
            intervals = [ends(mdp, s, a) for s in members]
            low[block, a] = down(min(x[0] for x in intervals))
            high[block, a] = up(max(x[1] for x in intervals))
            rows = [lifted_exact(mdp, labels, s, a) for s in members]
            reach = sorted(set().union(*rows))
            centre = [float(sum(r.get(b, Fraction(0)) for r in rows) / len(rows)) for b in reach]
            total = sum((Fraction(v) for v in centre), Fraction(0))
            row = {b: Fraction(v) / total for b, v in zip(reach, centre, strict=True)}
            away = Fraction(0)
            for s, other in zip(members, rows, strict=True):
                extra = Fraction(0)
                if mdp.estimate is not None:
                    extra = Fraction(float(mdp.estimate.row_radius[s, a]))
                away = max(away, min(Fraction(1), variation_exact(other, row) + extra))
            radius[block, a] = up(away)
            indices += reach
            probs += centre
            indptr.append(len(indices))
    return SimpleNamespace(
        labels=np.array(labels, np.int64),
        low=low,
        high=high,
        indptr=np.array(indptr, np.int64),
        indices=np.array(indices, np.int64),
        probs=np.array(probs),
        radius=radius,
        is_estimate=mdp.estimate is not None,
    )


def state_model(mdp: TabularMDP) -> SimpleNamespace:
    """States as blocks of one, intervals kept as fractions."""
    estimate = mdp.estimate
    pairs = [[ends(mdp, s, a) for a in range(mdp.n_actions)] for s in range(mdp.n_states)]
    return SimpleNamespace(
        labels=np.arange(mdp.n_states),
        low=[[x[0] for x in line] for line in pairs],
        high=[[x[1] for x in line] for line in pairs],
        indptr=mdp.indptr,
        indices=mdp.indices,
        probs=mdp.probs,
        radius=np.zeros(mdp.rewards.shape) if estimate is None else estimate.row_radius,
        is_estimate=estimate is not None,
    )


def partial_exact(cost: Exact, a: Sequence[float], b: Sequence[float], free: Fraction) -> Fraction:
    """The least cost of carrying all but `free`, by two dummies that are kept apart."""
    if free >= 1:
        return Fraction(0)
    top = max(max(line) for line in cost)
    wide = [[*line, Fraction(0)] for line in cost]
    wide.append([*(Fraction(0) for _ in b), 4 * top])
    rows, cols = (
        [*(Fraction(v) / sum(map(Fraction, side)) for v in side), free] for side in (a, b)
    )
    return transport_exact(wide, rows, cols) * (1 + free)


class Operator:
    """Both block inequalities, from their definition."""

    def __init__(self, model: SimpleNamespace, gamma: float, diameter: Fraction) -> None:
        self.model, self.gamma, self.diameter = model, Fraction(gamma), diameter
        self.n, self.n_actions = len(model.low), len(model.low[0])

    def apart(self, s: int, t: int, a: int) -> tuple[Fraction, Fraction]:
        m = self.model
        low, high, low_, high_ = (
            Fraction(x) for x in (m.low[s][a], m.high[s][a], m.low[t][a], m.high[t][a])
        )
        return max(Fraction(0), low - high_, low_ - high), max(high - low_, high_ - low)

    def starts(self, s: int, t: int) -> tuple[Fraction, Fraction]:
        both = [self.apart(s, t, a) for a in range(self.n_actions)]
        return max(x[0] for x in both), max(x[1] for x in both) + self.gamma * self.diameter

    def row(self, s: int, a: int) -> tuple[list[int], list[float]]:
        m, at = self.model, s * self.n_actions + a
        part = slice(m.indptr[at], m.indptr[at + 1])
        return m.indices[part].tolist(), m.probs[part].tolist()

    def backup(self, table: Exact, s: int, t: int, *, is_upper: bool) -> Fraction:
        best = Fraction(0)
        for a in range(self.n_actions):
            gap, span = self.apart(s, t, a)
            (x, p), (y, q) = self.row(s, a), self.row(t, a)
            cost = [[table[i][j] for j in y] for i in x]
            free = Fraction(float(self.model.radius[s][a])) + Fraction(
                float(self.model.radius[t][a])
            )
            if is_upper:
                kappa = max(max(line) for line in cost)
                if self.model.is_estimate and free > 0:
                    kappa = max(kappa, self.diameter)
                far = min(kappa, transport_exact(cost, p, q) + free * kappa)
                best = max(best, span + self.gamma * far)
            else:
                best = max(best, gap + self.gamma * partial_exact(cost, p, q, free))
        return best


def diameter_of(low: Any, high: Any, gamma: float) -> Fraction:
    spans = [
        max(Fraction(line[a]) for line in high) - min(Fraction(line[a]) for line in low)
        for a in range(len(low[0]))
    ]
    return max(spans) / (1 - Fraction(gamma))


def iterate(
    operator: Operator,
    below: Exact,
    above: Exact,
    pairs: list[tuple[int, int]],
    sweeps: int,
) -> tuple[list[float], list[float]]:
    """Exact backups of some pairs, rounded outward; tables are changed in place.

    `below` and `above` are what can be read at first; pairs keep what is tighter.
    """
    lower = {p: down(below[p[0]][p[1]]) for p in pairs}
    upper = {p: up(above[p[0]][p[1]]) for p in pairs}
    for _ in range(sweeps):
        for s, t in pairs:
            if s != t:
                value = down(operator.backup(below, s, t, is_upper=False))
                lower[s, t] = max(lower[s, t], value)
                below[s][t] = below[t][s] = max(below[s][t], Fraction(value))
            value = up(operator.backup(above, s, t, is_upper=True))
            upper[s, t] = min(upper[s, t], value)
            above[s][t] = above[t][s] = min(above[s][t], Fraction(value))
    return [max(lower[p], 0.0) for p in pairs], [upper[p] for p in pairs]


def make_level(
    mdp: TabularMDP,
    gamma: float,
    labels: Sequence[int],
    sweeps: int,
    leave_out: Sequence[tuple[int, int]] = (),
) -> SimpleNamespace:
    model = block_model(mdp, labels)
    n = len(model.low)
    sizes = np.bincount(model.labels)
    operator = Operator(model, gamma, diameter_of(model.low.tolist(), model.high.tolist(), gamma))
    below = [[Fraction(0)] * n for _ in range(n)]
    above = [[Fraction(0)] * n for _ in range(n)]
    pairs = []
    for s in range(n):
        for t in range(s, n):
            if s < t or sizes[s] > 1:
                start = operator.starts(s, t)
                below[s][t] = below[t][s] = start[0]
                above[s][t] = above[t][s] = start[1]
                if (s, t) not in leave_out:
                    pairs.append((s, t))
    lower, upper = iterate(operator, below, above, pairs, sweeps)
    return SimpleNamespace(
        model=model,
        keys=np.array([s * n + t for s, t in pairs], np.int64),
        lower=np.array(lower),
        upper=np.array(upper),
    )


def exact_rows(mdp: TabularMDP) -> list[list[dict[int, Fraction]]]:
    own = list(range(mdp.n_states))
    return [[lifted_exact(mdp, own, s, a) for a in range(mdp.n_actions)] for s in own]


def make_features(
    mdp: TabularMDP, gamma: float, sweeps: int, *, has_witness: bool = True, stretch: float = 1.0
) -> SimpleNamespace:
    """Two generalised value functions of either kind, and a witness."""
    signs = [[1] * mdp.n_actions, [-1] + [1] * (mdp.n_actions - 1), [1] + [0] * (mdp.n_actions - 1)]
    kinds = [0, 1, 0]
    rows, g = exact_rows(mdp), Fraction(gamma)
    values, corrections = [], []

    def applied(line: list[float], k: int) -> list[Fraction]:
        result = []
        for s in range(mdp.n_states):
            found = []
            for a, sign in enumerate(signs[k]):
                if sign:
                    ahead = sum((p * Fraction(line[t]) for t, p in rows[s][a].items()), Fraction(0))
                    found.append(sign * Fraction(float(mdp.rewards[s, a])) + g * ahead)
            result.append(sum(found, Fraction(0)) / len(found) if kinds[k] else max(found))
        return result

    for k in range(len(signs)):
        line = [0.0] * mdp.n_states
        for _ in range(sweeps):
            line = [float(v) for v in applied(line, k)]
        line = [stretch * v for v in line]
        residual = [x - Fraction(v) for x, v in zip(applied(line, k), line, strict=True)]
        spread = max(residual) - min(residual)
        if mdp.estimate is not None:
            width = Fraction(max(line)) - Fraction(min(line))
            used = [a for a, sign in enumerate(signs[k]) if sign]
            errors = [
                [
                    Fraction(float(mdp.estimate.reward_radius[s, a]))
                    + g * width * Fraction(float(mdp.estimate.row_radius[s, a]))
                    for a in used
                ]
                for s in range(mdp.n_states)
            ]
            spread += 2 * max(sum(x, Fraction(0)) / len(x) if kinds[k] else max(x) for x in errors)
        values.append(line)
        corrections.append(up(spread / (1 - g)))
    witnesses: tuple[SimpleNamespace, ...] = ()
    if has_witness:
        support, potential = [0, mdp.n_states - 1, 2], [0.0, 0.0, 0.0]
        w = [
            min(
                Fraction(u) + max(abs(Fraction(x[z]) - Fraction(x[i])) for x in values)
                for i, u in zip(support, potential, strict=True)
            )
            for z in range(mdp.n_states)
        ]
        exact = [
            -Fraction(float(mdp.rewards[s, 0]))
            + g * sum((p * w[t] for t, p in rows[s][0].items()), Fraction(0))
            for s in range(mdp.n_states)
        ]
        line = [float(v) for v in exact]
        off = [Fraction(v) - x for v, x in zip(line, exact, strict=True)]
        witnesses = (
            SimpleNamespace(
                values=np.array(line),
                action=0,
                sign=-1,
                support=np.array(support, np.int64),
                potential=np.array(potential),
                correction=up(g * Fraction(max(corrections)) + max(off) - min(off)),
            ),
        )
    return SimpleNamespace(
        values=np.array(values),
        signs=np.array(signs, np.int64),
        kinds=np.array(kinds, np.int64),
        corrections=np.array(corrections),
        witnesses=witnesses,
    )


def composed(mdp: TabularMDP, content: dict[str, Any]) -> tuple[Exact, Exact]:
    """What all components but covered pairs say of every pair, exactly."""
    model, gamma, n = state_model(mdp), content["gamma"], mdp.n_states
    operator = Operator(model, gamma, diameter_of(model.low, model.high, gamma))
    below = [[Fraction(0)] * n for _ in range(n)]
    above = [[Fraction(0)] * n for _ in range(n)]
    for s in range(n):
        for t in range(s + 1, n):
            least, most = operator.starts(s, t)
            if content["lower_start"] == "zero":
                least = Fraction(0)
            if content["upper_start"] == "constant":
                most = operator.diameter
            for level in content["levels"]:
                one, two = sorted((int(level.model.labels[s]), int(level.model.labels[t])))
                at = np.flatnonzero(level.keys == one * len(level.model.low) + two)
                if at.size:
                    least = max(least, Fraction(float(level.lower[at[0]])))
                    most = min(most, Fraction(float(level.upper[at[0]])))
            features = content["features"]
            if features is not None:
                for line, c in zip(features.values, features.corrections, strict=True):
                    least = max(least, abs(Fraction(line[s]) - Fraction(line[t])) - Fraction(c))
                for w in features.witnesses:
                    away = abs(Fraction(w.values[s]) - Fraction(w.values[t]))
                    least = max(least, away - Fraction(w.correction))
            below[s][t] = below[t][s] = least
            above[s][t] = above[t][s] = most
    return below, above


def linked(table: Exact, tau: float) -> Ints:
    """Clusters of all pairs by merging."""
    n = len(table)
    label = list(range(n))
    for s in range(n):
        for t in range(s + 1, n):
            if table[s][t] <= Fraction(tau):
                label = [label[s] if x == label[t] else x for x in label]
    return np.array(first_appearance(label), np.int64)


def build(
    mdp: TabularMDP,
    gamma: float,
    *,
    labelings: Sequence[Sequence[int]] = (),
    pairs: Sequence[tuple[int, int]] = (),
    sweeps: int = 12,
    has_features: bool = True,
    has_witness: bool = True,
    starts: tuple[str, str] = ("reward", "reward"),
    tau: float | None = None,
) -> dict[str, Any]:
    """An honest certificate of all components, converged as far as asked."""
    empty = np.empty(0, np.int64)
    estimate = mdp.estimate
    content: dict[str, Any] = {
        "fingerprint": mdp.fingerprint,
        "n_states": mdp.n_states,
        "gamma": gamma,
        "rewards": mdp.rewards,
        "reward_radius": np.empty((0, 0)) if estimate is None else estimate.reward_radius,
        "alpha": None if estimate is None else estimate.alpha,
        "levels": tuple(make_level(mdp, gamma, labels, sweeps) for labels in labelings),
        "features": None,
        "lower_start": starts[0],
        "upper_start": starts[1],
        "tau": None,
        "scope": "all",
        "labels_lower": empty,
        "labels_upper": empty,
        "terminal_state": mdp.terminal_state,
        "value": None,
        "stop": "",
        "run": {},
    }
    if has_features:
        content["features"] = make_features(
            mdp, gamma, sweeps, has_witness=has_witness and estimate is None
        )
    below, above = composed(mdp, content)
    model = state_model(mdp)
    operator = Operator(model, gamma, diameter_of(model.low, model.high, gamma))
    lower, upper = iterate(operator, below, above, list(pairs), sweeps)
    content["keys"] = np.array([s * mdp.n_states + t for s, t in pairs], np.int64)
    content["lower"], content["upper"] = np.array(lower), np.array(upper)
    return content if tau is None else at_tau(mdp, content, tau)


def bounds(mdp: TabularMDP, content: dict[str, Any]) -> tuple[Exact, Exact]:
    """What a certificate says of every pair."""
    below, above = composed(mdp, content)
    for key, low, high in zip(
        content["keys"].tolist(), content["lower"].tolist(), content["upper"].tolist(), strict=True
    ):
        s, t = divmod(key, mdp.n_states)
        below[s][t] = below[t][s] = max(below[s][t], Fraction(low))
        above[s][t] = above[t][s] = min(above[s][t], Fraction(high))
    return below, above


def at_tau(mdp: TabularMDP, content: dict[str, Any], tau: float) -> dict[str, Any]:
    """The same with a threshold; start values link no pair in the upper arm, but D links all."""
    below, _ = bounds(mdp, content)
    model = state_model(mdp)
    largest = diameter_of(model.low, model.high, content["gamma"])
    stored = {**content, "upper_start": "constant"}
    above = bounds(mdp, stored)[1]
    assert all(above[s][t] <= largest for s in range(len(above)) for t in range(len(above)))
    return {
        **content,
        "tau": tau,
        "labels_lower": linked(below, tau),
        "labels_upper": linked(above, tau),
    }


def undecided(content: dict[str, Any], mdp: TabularMDP) -> str:
    """Why float mode alone does not accept, where fractions would take too long to ask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("bisim_abstract._verify.verify"), "SMALL", -1)
        result = found(content, mdp)
    assert result.mode == "float"
    assert result.problem.endswith('; mode "exact" would decide, slowly')
    return str(result.problem)


def found(content: dict[str, Any], mdp: TabularMDP, mode: str = "float") -> Any:
    made: Any = SimpleNamespace(**content)
    return verify(mdp, made, mode=mode)


def accepted(content: dict[str, Any], mdp: TabularMDP) -> float:
    for mode in ("exact", "sampled"):
        exact = found(content, mdp, mode)
        assert exact.is_valid, exact.problem
    assert found(content, mdp, "exact").widening == 0.0
    plain = found(content, mdp)
    assert plain.is_valid, plain.problem
    assert plain.verdict == "verified"
    scale = float(np.ptp(mdp.rewards, axis=0).max()) + 1.0
    assert 0.0 <= plain.widening <= 1e-12 * scale / (1.0 - content["gamma"]) ** 2
    assert plain.levels_checked == len(content["levels"])
    assert plain.pairs_checked == content["keys"].size + sum(
        level.keys.size for level in content["levels"]
    )
    return float(plain.widening)


def rejected(content: dict[str, Any], mdp: TabularMDP, words: str = "") -> None:
    for mode in ("float", "exact"):
        result = found(content, mdp, mode)
        assert not result.is_valid, mode
        assert result.verdict == "rejected"
        assert words in result.problem, result.problem


def estimated(mdp: TabularMDP, reward: float, row: float, seed: int = 0) -> TabularMDP:
    rng = np.random.default_rng(seed)
    shape = mdp.rewards.shape
    estimate = Estimate(
        counts=np.ones(shape, np.int64),
        reward_radius=reward * rng.random(shape) * (rng.random(shape) < 0.8),
        row_radius=row * rng.random(shape) * (rng.random(shape) < 0.8),
        alpha=0.1,
        reward_range=(-10.0, 10.0),
        support_bound=mdp.n_states,
    )
    return dataclasses.replace(mdp, estimate=estimate)


# -- honest certificates -----------------------------------------------------------------------

CASES: dict[str, Callable[[int], tuple[TabularMDP, list[list[int]]]]] = {
    "grouped": lambda seed: (
        _renamed(grouped_mdp(8, 3, 2, noise=0.01, support=2, seed=seed)),
        [_labels(seed)],
    ),
    "sparse": lambda seed: (
        sparse_mdp(6, 2, support=2, seed=seed),
        [[0, 1, 0, 2, 1, 3], [0, 0, 1, 1, 1, 2]],
    ),
    "bisimilar": lambda seed: (
        _renamed(grouped_mdp(8, 3, 2, noise=0.0, support=2, seed=seed)),
        [_labels(seed, 0.0)],
    ),
    "deterministic": lambda seed: (
        sparse_mdp(6, 2, support=1, seed=seed),
        [[0, 1, 1, 2, 2, 2]],
    ),
    "estimated": lambda seed: (
        estimated(sparse_mdp(5, 2, support=2, seed=seed), 0.05, 0.1, seed),
        [[0, 1, 1, 2, 0]],
    ),
}


def _renamed(made: tuple[TabularMDP, Any]) -> TabularMDP:
    return made[0]


def _labels(seed: int, noise: float = 0.01) -> list[int]:
    return first_appearance(grouped_mdp(8, 3, 2, noise=noise, support=2, seed=seed)[1].tolist())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gamma", [0.0, 0.6])
def test_accepts_honest_certificates_and_they_are_true(name: str, gamma: float) -> None:
    for seed in range(2):
        mdp, labelings = CASES[name](seed)
        content = build(
            mdp,
            gamma,
            labelings=labelings,
            pairs=[(0, 1), (0, 4), (1, 3), (2, 4)],
            sweeps=3 + 4 * seed,
            starts=(("reward", "reward"), ("zero", "constant"))[seed],
        )
        widening = accepted(content, mdp)
        below, above = bounds(mdp, content)
        if mdp.estimate is None:
            assert_encloses(mdp, gamma, below, above, widening)
        for tau in thresholds(below, above)[-3:]:
            accepted(at_tau(mdp, content, tau), mdp)


def thresholds(below: Exact, above: Exact) -> list[float]:
    """Middles of the gaps between all bounds, the widest last."""
    ends = sorted({x for table in (below, above) for line in table for x in line})
    return [float((a + b) / 2) for _, a, b in sorted((b - a, a, b) for a, b in pairwise(ends))]


def assert_encloses(
    mdp: TabularMDP, gamma: float, below: Exact, above: Exact, widening: float
) -> None:
    exact = bisimulation_metric(mdp, gamma)
    room = widening + exact.gap + 1e-12
    n = mdp.n_states
    for s in range(n):
        for t in range(n):
            assert float(below[s][t]) <= exact.upper[s, t] + room, (s, t)
            assert float(above[s][t]) >= exact.lower[s, t] - room, (s, t)


def test_estimated_bounds_hold_for_models_within_the_radii() -> None:
    rng = np.random.default_rng(0)
    for seed in range(3):
        base = sparse_mdp(5, 2, support=2, seed=seed)
        mdp = estimated(base, 0.05, 0.08, seed)
        assert mdp.estimate is not None
        content = build(
            mdp, 0.6, labelings=[[0, 1, 1, 2, 0]], pairs=[(0, 1), (1, 2), (3, 4)], sweeps=8
        )
        widening = accepted(content, mdp)
        below, above = bounds(mdp, content)
        for _ in range(4):
            rewards = mdp.rewards + mdp.estimate.reward_radius * rng.choice([-1, 1], (5, 2))
            P = np.zeros((5, 2, 5))
            for s in range(5):
                for a in range(2):
                    x, p = mdp.successors(s, a)
                    t = float(mdp.estimate.row_radius[s, a])
                    P[s, a, x] = p
                    # Move t of the mass anywhere, also to states that no row reaches.
                    P[s, a] = (1.0 - t) * P[s, a] + t * rng.dirichlet(np.full(5, 0.3))
            true = TabularMDP.from_dense(P / P.sum(axis=2, keepdims=True), rewards)
            assert_encloses(true, 0.6, below, above, widening + 1e-9)


def test_accepts_the_arms_over_blocks() -> None:
    for seed in range(3):
        mdp = _renamed(grouped_mdp(12, 3, 2, noise=0.02, support=3, seed=seed))
        for labels in ([s % 4 for s in range(12)], list(range(12)), _twelve(seed)):
            plain = block_model(mdp, labels)
            model = BlockModel(**vars(plain))
            level = Arms(mdp, 0.9, model=model)
            level.cover_all()
            for _ in range(60):
                level.sweep()
            arms = Arms(mdp, 0.9)
            arms.cover([0, 1, 2, 5], [3, 4, 7, 9])
            arms.add_level(level.level())
            for _ in range(10):
                arms.sweep()
            certificate = Certificate.of(arms, tau=None, stop="", run={})
            for mode in ("float", "exact"):
                result = verify(mdp, certificate, mode=mode)
                assert result.is_valid, result.problem
            assert verify(mdp, certificate, threads=1) == verify(mdp, certificate, threads=2)
            s, t = np.triu_indices(12, 1)
            low, high = certificate.bounds(s, t)
            exact = bisimulation_metric(mdp, 0.9)
            assert (low <= exact.upper[s, t] + 1e-9).all()
            assert (high >= exact.lower[s, t] - 1e-9).all()


def _twelve(seed: int) -> list[int]:
    return first_appearance(grouped_mdp(12, 3, 2, noise=0.02, support=3, seed=seed)[1].tolist())


def test_exact_bisimulation_needs_no_widening() -> None:
    """Rows that coincide once summed, with sums that do not round: diameters of exactly 0."""
    P = np.zeros((5, 1, 5))
    P[0, 0, [2, 4]] = [0.25, 0.75]
    P[1, 0, [3, 4]] = [0.25, 0.75]
    P[2, 0, [2, 3]] = [0.5, 0.5]
    P[3, 0, [2, 3]] = [0.125, 0.875]
    P[4, 0, 4] = 1.0
    mdp = TabularMDP.from_dense(P, np.array([[0.0], [0.0], [1.0], [1.0], [3.0]]))
    content = build(mdp, 0.5, labelings=[[0, 0, 1, 1, 2]], sweeps=1, has_features=False, pairs=[])
    level = content["levels"][0]
    assert (level.model.radius == 0.0).all()
    is_diameter = level.keys % 4 == 0
    level.upper = np.where(is_diameter, 0.0, level.upper)
    assert accepted(content, mdp) == 0.0
    merged = at_tau(mdp, content, 0.0)
    assert merged["labels_upper"].tolist() == [0, 0, 1, 1, 2]
    assert accepted(merged, mdp) == 0.0
    # One bit less in one row, and 0 is no longer true.
    P[1, 0, [3, 4]] = [np.nextafter(0.25, 1.0), np.nextafter(0.75, 0.0)]
    other = TabularMDP.from_dense(P, mdp.rewards)
    content = {**merged, "fingerprint": other.fingerprint}
    assert "radius is 0.0" in found(content, other, "exact").problem
    assert not found(content, other).is_valid


# -- alterations -------------------------------------------------------------------------------

ALTER_MDP = _renamed(grouped_mdp(8, 3, 2, noise=0.05, support=2, seed=3))
ALTER_LABELS = first_appearance(grouped_mdp(8, 3, 2, noise=0.05, support=2, seed=3)[1].tolist())
GAMMA = 0.5


@pytest.fixture(scope="module")
def honest() -> dict[str, Any]:
    """Converged at all levels, so that nothing has room; some pairs of each kind covered."""
    content = build(
        ALTER_MDP,
        GAMMA,
        labelings=[ALTER_LABELS],
        pairs=[(0, 1), (0, 5), (1, 2), (3, 6)],
        sweeps=26,
    )
    taus = thresholds(*bounds(ALTER_MDP, content))[-6:]
    choices = [at_tau(ALTER_MDP, content, tau) for tau in taus]
    choices = [c for c in choices if 0 < c["labels_lower"].max() <= c["labels_upper"].max() < 7]
    assert choices
    accepted(choices[-1], ALTER_MDP)
    return choices[-1]


def deep(content: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(content)


def in_model(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        model = content["levels"][0].model
        setattr(model, name, change(getattr(model, name).copy()))

    return alter


def in_level(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        level = content["levels"][0]
        setattr(level, name, change(getattr(level, name).copy()))

    return alter


def in_features(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        features = content["features"]
        setattr(features, name, change(getattr(features, name).copy()))

    return alter


def in_witness(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        witness = content["features"].witnesses[0]
        setattr(witness, name, change(getattr(witness, name)))

    return alter


def at(index: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def alter(values: Any) -> Any:
        values = np.array(values)
        values[index] = change(values[index])
        return values

    return alter


def drop_support(content: dict[str, Any]) -> None:
    """Take the last block out of a centre row, with a radius that would allow for it."""
    model = content["levels"][0].model
    sizes = np.diff(model.indptr)
    row = int(np.argmax(sizes))
    last = int(model.indptr[row + 1]) - 1
    model.probs[model.indptr[row]] += model.probs[last]
    model.indices, model.probs = np.delete(model.indices, last), np.delete(model.probs, last)
    model.indptr = model.indptr - (np.arange(model.indptr.size) > row)
    model.radius[divmod(row, model.radius.shape[1])] = 1.0


def merge(name: str) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        labels = content[name]
        content[name] = np.array(
            first_appearance(np.where(labels == labels.max(), 0, labels).tolist()), np.int64
        )

    return alter


def split(name: str) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        labels = content[name].copy()
        many = int(np.argmax(np.bincount(labels) > 1))
        labels[np.flatnonzero(labels == many)[-1]] = labels.max() + 1
        content[name] = np.array(first_appearance(labels.tolist()), np.int64)

    return alter


def put(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(values)


def both(content: dict[str, Any]) -> None:
    content["labels_upper"] = content["labels_lower"] = np.arange(8)


ALTERATIONS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "label moved": (in_model("labels", at(0, lambda x: (x + 1) % 3)), "level 0"),
    "last label moved": (in_model("labels", at(-1, lambda x: (x + 1) % 3)), "level 0"),
    "label of no block": (in_model("labels", at(1, lambda x: 3)), "label of state 1"),
    "label negative": (in_model("labels", at(1, lambda x: -1)), "label of state 1"),
    "a block empty": (in_model("labels", lambda x: np.minimum(x, 1)), "block 2 has no members"),
    "labels short": (in_model("labels", lambda x: x[:-1]), "labels must give"),
    "low raised": (in_model("low", at((0, 0), lambda x: np.nextafter(x, 9.0))), "reward interval"),
    "high lowered": (
        in_model("high", at((2, 1), lambda x: np.nextafter(x, -9.0))),
        "reward interval",
    ),
    "low NaN": (in_model("low", at((0, 0), lambda x: np.nan)), "must be finite"),
    "interval turned": (in_model("low", at((0, 0), lambda x: 99.0)), "low <= high"),
    "radius shrunk a little": (
        in_model("radius", at((0, 0), lambda x: x * (1 - 1e-9))),
        "radius is",
    ),
    "last radius shrunk": (in_model("radius", at((2, 1), lambda x: x * 0.99)), "radius is"),
    "radius gone": (in_model("radius", lambda x: x * 0.0), "radius is"),
    "radius above 1": (in_model("radius", lambda x: x + 1.0), "must lie in [0, 1]"),
    "radius negative": (in_model("radius", lambda x: x - 1.0), "must lie in [0, 1]"),
    "centre moved": (
        in_model("probs", lambda x: x + np.array([0.01, -0.01] + [0.0] * (x.size - 2))),
        "radius is",
    ),
    "centre no distribution": (in_model("probs", at(0, lambda x: x * 0.99)), "no sum 1"),
    "centre entry 0": (in_model("probs", at(0, lambda x: 0.0)), "no probability"),
    "centre NaN": (in_model("probs", at(0, lambda x: np.nan)), "no probability"),
    "centre at no block": (in_model("indices", at(0, lambda x: 7)), "at no block"),
    "centre unsorted": (in_model("indices", lambda x: x[::-1].copy()), "level 0"),
    "centre rows shifted": (in_model("indptr", at(1, lambda x: x + 1)), "level 0"),
    "centre rows wrap": (in_model("indptr", at(1, lambda x: 2**62)), "level 0"),
    "centre support cut": (drop_support, "which the centre row does not"),
    "model is called an estimate": (
        lambda c: setattr(c["levels"][0].model, "is_estimate", True),
        "is_estimate is True",
    ),
    "key doubled": (
        in_level("keys", lambda x: x[[0, 0, *range(2, x.size)]]),
        "strictly increasing",
    ),
    "key too large": (in_level("keys", at(-1, lambda x: 900)), "not a pair of blocks"),
    "key turned": (in_level("keys", at(1, lambda x: 3)), "not a pair of blocks"),
    "bound NaN": (in_level("upper", at(0, lambda x: np.nan)), "must be finite"),
    "bounds short": (in_level("upper", lambda x: x[:-1]), "upper has"),
    "diameter below": (in_level("lower", at(0, lambda x: 1e-300)), "within a block"),
    "feature value moved": (
        in_features("values", at((0, 3), lambda x: x + 0.01)),
        "correction of feature 0",
    ),
    "last feature value moved": (
        in_features("values", at((2, 7), lambda x: x - 1e-3)),
        "correction of feature 2",
    ),
    "feature values scaled": (in_features("values", lambda x: x * 1.01), "correction of feature"),
    "feature NaN": (in_features("values", at((1, 1), lambda x: np.nan)), "must be finite"),
    "feature enormous": (in_features("values", at((1, 1), lambda x: 1.7e308)), "feature"),
    "sign turned": (in_features("signs", at((0, 0), lambda x: -x)), "correction of feature 0"),
    "sign of 2": (in_features("signs", at((0, 0), lambda x: 2)), "must be -1, 0 or 1"),
    "no action used": (in_features("signs", at(1, lambda x: 0)), "uses no action"),
    "kind changed": (in_features("kinds", at(1, lambda x: 0)), "correction of feature 1"),
    "kind unknown": (in_features("kinds", at(1, lambda x: 2)), "must be 0 or 1"),
    "correction shrunk": (
        in_features("corrections", at(0, lambda x: x * 0.9)),
        "correction of feature 0",
    ),
    "corrections gone": (in_features("corrections", lambda x: x * 0.0), "correction of feature"),
    "correction negative": (in_features("corrections", lambda x: -x), "must be finite and not"),
    "witness value moved": (
        in_witness("values", at(2, lambda x: x + 1e-3)),
        "correction of witness 0",
    ),
    "witness support moved": (
        in_witness("support", at(slice(None), lambda x: (x + 3) % 8)),
        "correction of witness 0",
    ),
    "witness support outside": (in_witness("support", at(0, lambda x: 8)), "is no state"),
    "witness potential moved": (
        in_witness("potential", at(2, lambda x: x - 0.5)),
        "correction of witness 0",
    ),
    "witness action": (in_witness("action", lambda x: 1), "correction of witness 0"),
    "witness sign": (in_witness("sign", lambda x: 1), "correction of witness 0"),
    "witness sign 0": (in_witness("sign", lambda x: 0), "out of range"),
    "witness correction": (
        in_witness("correction", lambda x: x * 0.99),
        "correction of witness 0",
    ),
    "alpha": (put(alpha=0.05), "no estimate"),
    "upper clusters merged": (merge("labels_upper"), "labels_upper puts states"),
    "lower clusters split": (split("labels_lower"), "labels_"),
    "all split": (both, "labels_lower keeps states"),
    "lower clusters all split": (put(labels_lower=np.arange(8)), "which labels_lower keeps apart"),
    "clusters renumbered": (
        lambda c: c.update(labels_lower=c["labels_lower"].max() - c["labels_lower"]),
        "first appearance",
    ),
    "threshold raised": (lambda c: c.update(tau=c["tau"] * 4.0), "labels_lower keeps states"),
    "threshold lowered": (lambda c: c.update(tau=0.0), "labels_upper puts states"),
    "level gone": (put(levels=()), ""),
    "features gone": (put(features=None), ""),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_rejects_alterations(honest: dict[str, Any], name: str) -> None:
    content = deep(honest)
    alter, words = ALTERATIONS[name]
    alter(content)
    rejected(content, ALTER_MDP, words)


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_no_entry_has_room(honest: dict[str, Any], side: str) -> None:
    """Every single bound, of blocks, diameters and pairs, moved inward by a little."""
    for name in ("level", "states"):
        count = (honest["levels"][0].keys if name == "level" else honest["keys"]).size
        for k in range(count):
            content = deep(honest)
            holder = content["levels"][0] if name == "level" else SimpleNamespace(**content)
            values = getattr(holder, side)
            is_diameter = name == "level" and holder.keys[k] % 4 == 0
            move = 1e-4 * (1.0 + values[k])
            values[k] += move if side == "lower" else -move
            where = "level 0, block pair" if name == "level" else "bound of pair"
            rejected(
                content, ALTER_MDP, "within a block" if is_diameter and side == "lower" else where
            )


def test_missing_entries_read_their_start() -> None:
    """A level without some of its pairs: others may not rest on what is not there."""
    full = make_level(ALTER_MDP, GAMMA, ALTER_LABELS, 20)
    part = make_level(ALTER_MDP, GAMMA, ALTER_LABELS, 20, leave_out=[(0, 0), (0, 1)])
    content = build(ALTER_MDP, GAMMA, has_features=False)
    content["levels"] = (part,)
    accepted(content, ALTER_MDP)
    kept = np.isin(full.keys, part.keys)
    content["levels"] = (
        SimpleNamespace(
            model=full.model, keys=full.keys[kept], lower=full.lower[kept], upper=full.upper[kept]
        ),
    )
    rejected(content, ALTER_MDP, "level 0, block pair")


def test_levels_stand_alone() -> None:
    """No level may rest on another, on pairs or on features; pairs may rest on all."""
    content = build(ALTER_MDP, GAMMA, labelings=[ALTER_LABELS, list(range(8))], sweeps=20)
    accepted(content, ALTER_MDP)
    coarse, other = content["levels"]
    upper = coarse.upper.copy()
    for k, key in enumerate(coarse.keys.tolist()):
        one, two = divmod(key, len(coarse.model.low))
        entries = []  # what the finer level knows of all pairs of members
        for s in np.flatnonzero(coarse.model.labels == one):
            for t in np.flatnonzero(coarse.model.labels == two):
                x, y = sorted((int(other.model.labels[s]), int(other.model.labels[t])))
                entries += other.upper[other.keys == x * 8 + y].tolist()
        upper[k] = min(upper[k], max(entries))
    assert (upper < coarse.upper - 1e-4).any()
    coarse.upper = upper
    rejected(content, ALTER_MDP, "level 0, block pair")


def test_diameters_count_among_the_largest_costs() -> None:
    """States 0 and 1 reach the block {2, 3} of diameter 4, and state 4 in the middle of it."""
    P = np.zeros((5, 1, 5))
    P[0, 0, [2, 4]] = [0.5, 0.5]
    P[1, 0, 2] = 1.0
    P[[2, 3, 4], 0, [2, 3, 4]] = 1.0
    mdp = TabularMDP.from_dense(P, np.array([[0.0], [0.0], [0.0], [2.0], [1.0]]))
    content = build(mdp, 0.5, labelings=[[0, 0, 1, 1, 2]], sweeps=60, has_features=False)
    level = content["levels"][0]
    assert level.upper[level.keys == 4] == pytest.approx(4.0)
    assert level.upper[level.keys == 5] == pytest.approx(2.0)
    assert level.upper[level.keys == 0] == pytest.approx(2.0)
    accepted(content, mdp)
    for claim in (1.5, 1.999, 2.0 * (1.0 - 1e-11)):  # rounding does not explain the last either
        level.upper[level.keys == 0] = claim
        rejected(content, mdp, "upper bound of level 0, block pair (0, 0)")


def test_an_uncovered_pair_may_not_link_two_clusters(honest: dict[str, Any]) -> None:
    """All that keeps clusters apart is one component: without it, they are not."""
    for name in ("keys", "levels", "features"):
        content = deep(honest)
        if name == "keys":
            for part in ("keys", "lower", "upper"):
                content[part] = content[part][:0]
        else:
            content[name] = () if name == "levels" else None
        alone = at_tau(ALTER_MDP, build_on(content), honest["tau"])
        accepted(alone, ALTER_MDP)
        split("labels_lower")(alone)
        alone["labels_upper"] = np.arange(8)
        result = found(alone, ALTER_MDP)
        assert not result.is_valid
        assert "labels_lower keeps states" in result.problem


def build_on(content: dict[str, Any]) -> dict[str, Any]:
    """The same components with pairs converged under them."""
    below, above = composed(ALTER_MDP, content)
    model = state_model(ALTER_MDP)
    operator = Operator(
        model, content["gamma"], diameter_of(model.low, model.high, content["gamma"])
    )
    pairs = [divmod(key, 8) for key in content["keys"].tolist()]
    lower, upper = iterate(operator, below, above, pairs, 20)
    return {**content, "lower": np.array(lower), "upper": np.array(upper)}


def test_scope_of_all_pairs_is_more_than_that_of_covered_ones(honest: dict[str, Any]) -> None:
    n = 8
    content = {**deep(honest), "scope": "covered"}
    tau = content["tau"]
    for side in ("lower", "upper"):
        table = [[Fraction(99)] * n for _ in range(n)]
        for key, value in zip(content["keys"].tolist(), content[side].tolist(), strict=True):
            s, t = divmod(key, n)
            table[s][t] = table[t][s] = Fraction(value)
        content[f"labels_{side}"] = linked(table, tau)
    accepted(content, ALTER_MDP)
    rejected({**content, "scope": "all"}, ALTER_MDP, "labels_lower keeps states")


def test_entries_between_blocks_link_all_members() -> None:
    """Without any diameter: members of a block are linked through those of the other."""
    level = make_level(ALTER_MDP, GAMMA, ALTER_LABELS, 6, leave_out=[(0, 0), (1, 1), (2, 2)])
    content = build(ALTER_MDP, GAMMA, has_features=False)
    content["levels"] = (level,)
    tau = float(level.upper.max()) + 0.01
    content |= {"tau": tau, "labels_lower": np.zeros(8, np.int64)}
    content["labels_upper"] = content["labels_lower"]
    accepted(content, ALTER_MDP)
    others = [(0, 0), (1, 1), (2, 2), (0, 2), (1, 2)]
    level = make_level(ALTER_MDP, GAMMA, ALTER_LABELS, 6, leave_out=others)
    content["levels"] = (level,)
    content["tau"] = float(level.upper[0])
    content["labels_upper"] = np.array([0, 0, 0, 0, 0, 0, 1, 2])
    assert ALTER_LABELS == [0, 0, 0, 1, 1, 1, 2, 2]
    accepted(content, ALTER_MDP)
    content["labels_upper"] = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    rejected(content, ALTER_MDP, "labels_upper puts states 6 and 7 together")


def test_corrections_count() -> None:
    """Features three times too large: without their corrections, they are no bounds."""
    content = build(ALTER_MDP, GAMMA, has_features=False)
    content["features"] = features = make_features(ALTER_MDP, GAMMA, 20, stretch=3.0)
    assert features.corrections.min() > 0.1
    accepted(content, ALTER_MDP)
    raw = np.zeros((8, 8))
    for line in [*features.values, *(w.values for w in features.witnesses), *ALTER_MDP.rewards.T]:
        raw = np.maximum(raw, np.abs(line[:, None] - line[None, :]))
    below, _ = bounds(ALTER_MDP, content)
    s, t = np.triu_indices(8, 1)
    tau = 0.999 * float(raw[s, t].min())
    assert min(float(below[i][j]) for i, j in zip(s.tolist(), t.tolist(), strict=True)) < tau
    apart = {"tau": tau, "labels_lower": np.arange(8), "labels_upper": np.arange(8)}
    rejected({**content, **apart}, ALTER_MDP, "labels_lower keeps states")
    # A claim of the distance itself, where one backup of what is known does not reach it.
    model = state_model(ALTER_MDP)
    operator = Operator(model, GAMMA, diameter_of(model.low, model.high, GAMMA))
    excess = {
        (x, y): raw[x, y] - float(operator.backup(below, x, y, is_upper=False))
        for x, y in zip(s.tolist(), t.tolist(), strict=True)
    }
    x, y = max(excess, key=lambda pair: excess[pair])
    assert excess[x, y] > 1e-3
    content |= {"keys": np.array([x * 8 + y]), "lower": np.array([raw[x, y]])}
    content["upper"] = np.array([9.0])
    rejected(content, ALTER_MDP, f"lower bound of pair ({x}, {y})")


def test_weaker_clusters_are_true(honest: dict[str, Any]) -> None:
    """Fewer proven links, or more possible ones, than there are: nothing false is said."""
    content = deep(honest)
    content["labels_upper"] = np.arange(8)
    content["labels_lower"] = np.zeros(8, np.int64)
    accepted(content, ALTER_MDP)
    content["tau"] = 1e9  # beyond the diameter all states are linked
    content["labels_upper"] = content["labels_lower"]
    accepted(content, ALTER_MDP)


@pytest.mark.parametrize("limit", ["CELL_LIMIT", "PAIR_LIMIT", "EXACT_LIMIT", "BATCH"])
def test_limits(honest: dict[str, Any], limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from bisim_abstract._verify import scope as _verify_scope

    monkeypatch.setattr(_verify_scope, limit, 3)
    many = {**deep(honest), "tau": 0.0, "labels_lower": np.arange(8), "labels_upper": np.arange(8)}
    if limit == "CELL_LIMIT":
        accepted(honest, ALTER_MDP)  # levels are then read pair by pair
        rejected(many, ALTER_MDP, "8 clusters are more than the 3")
    elif limit == "PAIR_LIMIT":
        bare = {**many, "levels": (), "features": None, "labels_lower": [0, 1] * 4}
        for name in ("keys", "lower", "upper"):
            bare[name] = bare[name][:0]
        bare["labels_lower"] = np.array([0, 1] * 4)
        rejected(bare, ALTER_MDP, "16 pairs of states")
        bare["tau"] = -1.0  # below all bounds: excluded at sight
        accepted(bare, ALTER_MDP)
    else:
        accepted(many, ALTER_MDP)
        accepted(honest, ALTER_MDP)


def test_close_calls_are_decided_exactly() -> None:
    """A lower bound that floats round down to the threshold, but not below it."""
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [[0.0], [0.1], [0.3]])
    content = build(mdp, 0.0, has_features=False)
    gap = Fraction(0.3) - Fraction(0.1)
    tau = down(gap)
    if Fraction(tau) == gap:
        tau = float(np.nextafter(tau, 0.0))
    content |= {"tau": tau, "labels_lower": np.array([0, 0, 1]), "labels_upper": np.arange(3)}
    accepted(content, mdp)
    content["tau"] = float(np.nextafter(tau, 1.0))
    rejected(content, mdp, "labels_lower keeps states")


def test_widening_must_leave_clusters_of_all_pairs_as_they_are(honest: dict[str, Any]) -> None:
    level = honest["levels"][0]
    bare = {**deep(honest), "features": None, "keys": honest["keys"][:0]}
    bare |= {"lower": np.empty(0), "upper": np.empty(0), "lower_start": "zero"}
    apart = [k for k, key in enumerate(level.keys.tolist()) if key % 4]
    nearest = min(apart, key=lambda k: level.lower[k])
    widening = found({**bare, "tau": None, **EMPTY}, ALTER_MDP).widening
    assert 0.0 < widening < 1e-12
    # Just below the least bound between blocks, nearer to it than the widening.
    tau = float(level.lower[nearest]) - widening / 4.0
    low = np.array(ALTER_LABELS)
    content = {**bare, "tau": tau, "labels_lower": low, "labels_upper": np.arange(8)}
    exact = found(content, ALTER_MDP, "exact")
    assert exact.is_valid, exact.problem
    assert found(content, ALTER_MDP) == exact
    assert "which rounding asks for" in undecided(content, ALTER_MDP)
    # Just above the largest diameter.
    inner = [k for k in range(level.keys.size) if k not in apart]
    widest = max(inner, key=lambda k: level.upper[k])
    content["tau"] = float(level.upper[widest]) + widening / 4.0
    content["labels_lower"] = np.zeros(8, np.int64)
    content["labels_upper"] = low
    exact = found(content, ALTER_MDP, "exact")
    assert exact.is_valid, exact.problem
    assert found(content, ALTER_MDP) == exact
    assert "which rounding asks for" in undecided(content, ALTER_MDP)


EMPTY = {"labels_lower": np.empty(0, np.int64), "labels_upper": np.empty(0, np.int64)}


# -- residuals ---------------------------------------------------------------------------------


def residual_exact(
    mdp: TabularMDP,
    values: Floats,
    base: Floats,
    signs: Sequence[int],
    offsets: Floats,
    shifts: tuple[float, float],
    gamma: float,
    *,
    is_mean: bool,
) -> list[Fraction]:
    out = []
    for state in range(mdp.n_states):
        found = []
        for action, sign in enumerate(signs):
            if sign:
                successors, probs = mdp.successors(state, action)
                masses = [Fraction(p) for p in probs.tolist()]
                ahead = sum(
                    m * (Fraction(float(values[k])) - Fraction(shifts[0]))
                    for m, k in zip(masses, successors, strict=True)
                )
                reward = sign * Fraction(float(mdp.rewards[state, action]))
                reward -= Fraction(float(offsets[action]))
                found.append(reward + Fraction(gamma) * ahead / sum(masses))
        best = sum(found, Fraction(0)) / len(found) if is_mean else max(found)
        out.append(best - Fraction(float(base[state])) + Fraction(shifts[1]))
    return out


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, 1e6, 1e12]),
    st.sampled_from([1e-310, 1e-8, 1.0, 1e100]),
    st.booleans(),
)
def test_residuals_lie_within_their_bounds(
    seed: int, offset: float, scale: float, is_mean: bool
) -> None:
    """Fractions agree with every end, wherever rewards lie; and the ends are near."""
    rng = np.random.default_rng(seed)
    plain = sparse_mdp(4, 3, support=int(rng.integers(1, 5)), seed=seed)
    rewards = scale * (plain.rewards + offset)
    mdp = TabularMDP(indptr=plain.indptr, indices=plain.indices, probs=plain.probs, rewards=rewards)
    values, base = scale * rng.standard_normal(4), scale * rng.standard_normal(4)
    signs = rng.integers(-1, 2, size=3)
    signs[rng.integers(3)] = 1
    gamma = float(rng.choice([0.0, 0.3, 0.999]))
    shifts = float(values.mean()), float(base[0])
    offsets = signs * rewards.mean(axis=0)
    if not is_mean:
        offsets = np.full(3, offsets[signs != 0].max())
    widest = float(np.abs(values - shifts[0]).max())
    low, high = np.empty(4), np.empty(4)
    residual_kernel(
        0,
        4,
        mdp.indptr,
        mdp.indices,
        mdp.probs,
        mdp.rewards,
        offsets,
        values,
        shifts[0],
        widest,
        base,
        shifts[1],
        signs,
        is_mean,
        gamma,
        low,
        high,
    )
    exact = residual_exact(
        mdp, values, base, signs.tolist(), offsets, shifts, gamma, is_mean=is_mean
    )
    for least, value, most in zip(low.tolist(), exact, high.tolist(), strict=True):
        assert Fraction(least) <= value <= Fraction(most)
    if is_mean or (signs >= 0).all():
        # Rewards have a grain of u·offset; nothing else may be of the size of the offset.
        assert (high - low).max() <= scale * 1e-13 + 1e-289


@pytest.mark.parametrize("kind", ["values", "rewards", "base", "underflow"])
def test_every_part_of_the_slack_of_residuals_is_needed(kind: str) -> None:
    """Sums that cancel, so that one error alone decides: no other part of the slack covers it."""
    is_mean = kind == "rewards"
    signs = np.array([1, 1 if is_mean else 0])
    for seed in range(40):
        rng = np.random.default_rng(seed)
        probs = rng.dirichlet(np.ones(3))
        values: Floats = np.zeros(3)
        base = base_shift = 0.0
        rewards, offsets = np.zeros((3, 2)), np.zeros(2)
        if kind == "values":
            values = rng.standard_normal(3)
        elif kind == "rewards":  # their mean is about 0, but for rounding
            rewards[:] = (1.0 + rng.random()) * np.array([1.0, -1.0])
            offsets = 1e-17 * rng.random(2)
        elif kind == "base":
            base, base_shift = float(rng.random()), 1e-17 * float(rng.random())
        else:
            values = np.array(5e-324 * rng.integers(1, 50, size=3), np.float64)
        # P(values - shift) is about 0, but for rounding.
        shift = float(probs @ values) if kind == "values" else 0.0
        mdp = TabularMDP(
            indptr=np.array([0, 3, 6, 7, 8, 9, 10]),
            indices=np.array([0, 1, 2, 0, 1, 2, 1, 1, 2, 2]),
            probs=np.concatenate([probs, probs, np.ones(4)]),
            rewards=rewards,
        )
        bases, widest = np.full(3, base), float(np.abs(values - shift).max())
        low, high = np.empty(3), np.empty(3)
        rows = (mdp.indptr, mdp.indices, mdp.probs, mdp.rewards, offsets, values, shift, widest)
        residual_kernel(0, 3, *rows, bases, base_shift, signs, is_mean, 0.75, low, high)
        shifts = shift, base_shift
        exact = residual_exact(
            mdp, values, bases, signs.tolist(), offsets, shifts, 0.75, is_mean=is_mean
        )
        for least, value, most in zip(low.tolist(), exact, high.tolist(), strict=True):
            assert Fraction(least) <= value <= Fraction(most)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e10])
def test_rewards_that_differ_by_little_are_no_obstacle(offset: float) -> None:
    """Features of rewards around a large number, of which rounding takes a part."""
    plain = sparse_mdp(600, 3, support=3, seed=1)
    mdp = TabularMDP(
        indptr=plain.indptr,
        indices=plain.indices,
        probs=plain.probs,
        rewards=plain.rewards + offset,
    )
    certificate = certify(mdp, 0.9, tau=0.05, max_pairs=2_000)
    assert certificate.features is not None
    result = verify(mdp, certificate)
    assert result.is_valid, result.problem
    assert result.mode == "float"
    assert result.widening < 1e-11


# -- estimated models --------------------------------------------------------------------------

GUESS = estimated(sparse_mdp(5, 2, support=2, seed=2), 0.05, 0.1, 2)


@pytest.fixture(scope="module")
def guessed() -> dict[str, Any]:
    content = build(
        GUESS, GAMMA, labelings=[[0, 1, 1, 2, 0]], pairs=[(0, 1), (0, 3), (2, 4)], sweeps=24
    )
    accepted(content, GUESS)
    return content


def shift_interval(content: dict[str, Any]) -> None:
    """Intervals of the estimated rewards themselves."""
    model = content["levels"][0].model
    for block in range(3):
        rewards = GUESS.rewards[model.labels == block]
        model.low[block], model.high[block] = rewards.min(axis=0), rewards.max(axis=0)


def forget_rows(content: dict[str, Any]) -> None:
    """Radii of the estimated rows alone."""
    plain = dataclasses.replace(GUESS, estimate=None)
    content["levels"][0].model.radius = block_model(plain, [0, 1, 1, 2, 0]).radius


def sure_features(content: dict[str, Any]) -> None:
    plain = dataclasses.replace(GUESS, estimate=None)
    content["features"] = make_features(plain, GAMMA, 24, has_witness=False)


def some_witness(content: dict[str, Any]) -> None:
    plain = dataclasses.replace(GUESS, estimate=None)
    content["features"].witnesses = make_features(plain, GAMMA, 24).witnesses


GUESSES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "alpha smaller": (put(alpha=0.01), "alpha is 0.01"),
    "alpha dropped": (put(alpha=None), "alpha is None"),
    "alpha text": (put(alpha="0.1"), "alpha must be a real number"),
    "radius dropped": (put(reward_radius=np.empty((0, 0))), "reward_radius is not that"),
    "radius shrunk": (lambda c: c.update(reward_radius=c["reward_radius"] / 2), "reward_radius"),
    "intervals of the estimate": (shift_interval, "reward interval"),
    "radii of the estimate": (forget_rows, "radius is"),
    "features of the estimate": (sure_features, "correction of feature"),
    "a witness": (some_witness, "witnesses say nothing"),
    "level of no estimate": (
        lambda c: setattr(c["levels"][0].model, "is_estimate", False),
        "is_estimate is False",
    ),
    "correction shrunk": (
        in_features("corrections", at(1, lambda x: x * 0.999)),
        "correction of feature 1",
    ),
}


@pytest.mark.parametrize("name", GUESSES)
def test_rejects_alterations_of_estimates(guessed: dict[str, Any], name: str) -> None:
    content = deep(guessed)
    alter, words = GUESSES[name]
    alter(content)
    rejected(content, GUESS, words)


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_no_entry_of_an_estimate_has_room(guessed: dict[str, Any], side: str) -> None:
    for name in ("level", "states"):
        count = (guessed["levels"][0].keys if name == "level" else guessed["keys"]).size
        for k in range(count):
            content = deep(guessed)
            holder = content["levels"][0] if name == "level" else SimpleNamespace(**content)
            move = 1e-4 * (1.0 + getattr(holder, side)[k])
            getattr(holder, side)[k] += move if side == "lower" else -move
            rejected(content, GUESS, "bound of")


def test_true_rows_of_an_estimate_may_leave_the_support(guessed: dict[str, Any]) -> None:
    """A centre that leaves a block out: the mass that goes there counts for the radius."""
    content = deep(guessed)
    model = content["levels"][0].model
    drop_support(content)
    labels = model.labels.tolist()
    for block, action in np.ndindex(model.radius.shape):
        at_row = block * 2 + action
        part = slice(int(model.indptr[at_row]), int(model.indptr[at_row + 1]))
        entries = [Fraction(v) for v in model.probs[part].tolist()]
        total = sum(entries, Fraction(0))
        centre = {b: v / total for b, v in zip(model.indices[part].tolist(), entries, strict=True)}
        model.radius[block, action] = max(
            up(
                min(
                    Fraction(1),
                    variation_exact(lifted_exact(GUESS, labels, s, action), centre)
                    + Fraction(float(GUESS.estimate.row_radius[s, action])),  # type: ignore[union-attr]
                )
            )
            for s in range(5)
            if labels[s] == block
        )
    assert (model.radius < 1.0).all()
    level = SimpleNamespace(
        model=model, keys=np.empty(0, np.int64), lower=np.empty(0), upper=np.empty(0)
    )
    bare = {**content, "levels": (level,), "features": None, "keys": level.keys}
    bare |= {"lower": level.lower, "upper": level.upper}
    accepted(bare, GUESS)
    for index in np.ndindex(model.radius.shape):
        changed = deep(bare)
        changed["levels"][0].model.radius[index] *= 1.0 - 1e-6
        rejected(changed, GUESS, "radius is")


def test_interval_ends_are_compared_exactly(guessed: dict[str, Any]) -> None:
    for name, away in (("low", np.inf), ("high", -np.inf)):
        values = getattr(guessed["levels"][0].model, name)
        for index in np.ndindex(values.shape):
            content = deep(guessed)
            holder = getattr(content["levels"][0].model, name)
            holder[index] = np.nextafter(holder[index], away)
            rejected(content, GUESS, "reward interval")


# -- truth -------------------------------------------------------------------------------------


def perturb(content: dict[str, Any], rng: np.random.Generator) -> None:
    """Change one thing, outward or inward, a little or a lot."""
    factor = 1.0 + float(rng.choice([-1.0, 1.0])) * 10.0 ** -float(rng.integers(0, 5)) / 2.0
    level = content["levels"][int(rng.integers(len(content["levels"])))]
    features = content["features"]
    holder, name = [
        (level, "lower"),
        (level, "upper"),
        (level.model, "radius"),
        (level.model, "low"),
        (level.model, "high"),
        (level.model, "probs"),
        (features, "values"),
        (features, "corrections"),
        (None, "lower"),
        (None, "upper"),
        (level.model, "labels"),
        (features.witnesses[0], "values"),
        (features.witnesses[0], "potential"),
    ][int(rng.integers(13))]
    old = content[name] if holder is None else getattr(holder, name)
    new = old.copy()
    if name == "labels":
        new[int(rng.integers(new.size))] = int(rng.integers(new.max() + 1))
    elif new.size:
        where: Any = (
            ... if rng.random() < 0.5 else np.unravel_index(int(rng.integers(new.size)), new.shape)
        )
        new[where] = new[where] * factor
    if name in ("lower", "upper"):
        other = content if holder is None else vars(holder)
        if name == "lower":
            new = np.minimum(new, other["upper"])
        else:
            new = np.maximum(new, other["lower"])
    if holder is None:
        content[name] = new
    else:
        setattr(holder, name, new)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), changes=st.integers(0, 4))
def test_what_float_mode_accepts_is_true(seed: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    gamma = float(rng.choice([0.2, 0.6, 0.8]))
    mdp = sparse_mdp(n, 2, support=int(rng.integers(1, 3)), seed=seed)
    labelings = [first_appearance(rng.integers(0, 3, n).tolist()) for _ in range(2)]
    every = [(s, t) for s in range(n) for t in range(s + 1, n)]
    pairs = [pair for pair in every if rng.random() < 0.4]
    content = build(mdp, gamma, labelings=labelings, pairs=pairs, sweeps=int(rng.integers(1, 5)))
    for _ in range(changes):
        perturb(content, rng)
    below, above = bounds(mdp, content)
    taus = thresholds(below, above)
    if taus:
        content = at_tau(mdp, content, taus[int(rng.integers(len(taus)))])
        if rng.random() < 0.3:
            content["labels_lower"] = content["labels_upper"]
        elif rng.random() < 0.3:
            content["labels_upper"] = content["labels_lower"]
    result, exact = found(content, mdp), found(content, mdp, "exact")
    if changes == 0 and not taus:
        assert result.is_valid, result.problem
    for one in (result, exact):
        if one.is_valid:
            assert_encloses(mdp, gamma, below, above, one.widening)
            assert_clusters(mdp, content)


def assert_clusters(mdp: TabularMDP, content: dict[str, Any]) -> None:
    """The exact clustering lies between the claimed ones, if it can be told."""
    if content["tau"] is None:
        return
    exact = bisimulation_metric(mdp, content["gamma"])
    tau, n = content["tau"], mdp.n_states
    room = exact.gap + 1e-12
    for table, shift in ((exact.lower, -room), (exact.upper, room)):
        moved = [[Fraction(float(table[s, t]) + shift) for t in range(n)] for s in range(n)]
        clusters = linked(moved, tau)
        for s in range(n):
            for t in range(n):
                if shift < 0 and content["labels_upper"][s] == content["labels_upper"][t]:
                    assert clusters[s] == clusters[t]
                if shift > 0 and clusters[s] == clusters[t]:
                    assert content["labels_lower"][s] == content["labels_lower"][t]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_tables_are_judged_as_by_definition(seed: int) -> None:
    """Block tables of any kind: accepted exactly if all inequalities hold."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    gamma = float(rng.choice([0.3, 0.8]))
    mdp = sparse_mdp(n, 2, support=2, seed=seed)
    if rng.random() < 0.4:
        mdp = estimated(mdp, 0.1, 0.2, seed)
    labels = first_appearance(rng.integers(0, 3, n).tolist())
    content = build(mdp, gamma, labelings=[labels], sweeps=2, has_features=False)
    level = content["levels"][0]
    model, count = level.model, len(level.model.low)
    noise = 10.0 ** -float(rng.integers(1, 4))
    is_inner = level.keys % (count + 1) == 0
    level.upper = level.upper * (1.0 + noise * (rng.random(level.keys.size) - 0.3))
    level.lower = np.where(
        is_inner, 0.0, level.lower * (1.0 + noise * (rng.random(level.keys.size) - 0.7))
    )
    level.lower = np.minimum(level.lower, level.upper)
    operator = Operator(model, gamma, diameter_of(model.low.tolist(), model.high.tolist(), gamma))
    below = [[operator.starts(s, t)[0] for t in range(count)] for s in range(count)]
    above = [[operator.starts(s, t)[1] for t in range(count)] for s in range(count)]
    sizes = np.bincount(model.labels)
    for s in range(count):
        if sizes[s] == 1:
            above[s][s] = Fraction(0)
    starts = copy.deepcopy(below), copy.deepcopy(above)
    pairs = [divmod(key, count) for key in level.keys.tolist()]
    for (s, t), low, high in zip(pairs, level.lower.tolist(), level.upper.tolist(), strict=True):
        below[s][t] = below[t][s] = max(below[s][t], Fraction(low))
        above[s][t] = above[t][s] = min(above[s][t], Fraction(high))
    is_true = True
    for (s, t), low, high in zip(pairs, level.lower.tolist(), level.upper.tolist(), strict=True):
        if high < starts[1][s][t]:
            is_true &= operator.backup(above, s, t, is_upper=True) <= Fraction(high)
        if s != t and low > starts[0][s][t]:
            is_true &= operator.backup(below, s, t, is_upper=False) >= Fraction(low)
    assert found(content, mdp, "exact").is_valid == is_true
    # Claims that no rounding touches, so both modes see the same.
    assert found(content, mdp).is_valid == is_true


# -- parts -------------------------------------------------------------------------------------


def test_partial_transport() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        n, m = rng.integers(1, 5, size=2)
        cost = rng.random((n, m)) * (rng.random((n, m)) < 0.8)
        a, b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        free = float(rng.choice([1e-15, 1e-6, 0.1, 0.5, 0.99]) * rng.random())
        exact = [[Fraction(v) for v in line] for line in cost.tolist()]
        sides = [Fraction(v) for v in a.tolist()], [Fraction(v) for v in b.tolist()]
        truth = partial_exact(exact, a.tolist(), b.tolist(), Fraction(free))
        assert partial_transport(exact, *sides, Fraction(free)) == truth
        k = max(n, m) + 1
        p, q = np.empty(n), np.empty(m)
        row_masses(0, n, a, p)
        row_masses(0, m, b, q)
        wide = np.empty((k, k))
        wide[:n, :m] = cost
        scratch = np.empty((k, k)), np.empty((7, k)), np.empty((4, k), np.int64)
        low, high = transport_bounds(n, m, p, q, wide, free, *scratch)
        assert Fraction(low) <= truth <= Fraction(high)
        assert high - low <= 1e-13


def test_a_radius_is_0_only_if_sums_are_exact() -> None:
    """0.1 + 0.2 is rounded: a centre that equals the rounded sum is not the row summed."""
    for entries, is_exact in (((0.7, 0.1, 0.2), False), ((0.25, 0.5, 0.25), True)):
        P = np.zeros((3, 1, 3))
        P[:, 0] = entries
        P[1:, 0] = np.eye(3)[1:]
        mdp = TabularMDP.from_dense(P, np.zeros((3, 1)))
        labels = [0, 1, 1]
        model = block_model(mdp, labels)
        # Block 0 is the state itself; its row reaches block 0 and, by two entries, block 1.
        model.probs[:2] = [entries[0], entries[1] + entries[2]]
        model.radius[:] = 0.0
        level = SimpleNamespace(
            model=model, keys=np.empty(0, np.int64), lower=np.empty(0), upper=np.empty(0)
        )
        content = build(mdp, 0.5, has_features=False) | {"levels": (level,)}
        total = Fraction(entries[1]) + Fraction(entries[2])
        assert (total == Fraction(entries[1] + entries[2])) == is_exact
        assert found(content, mdp, "exact").is_valid == is_exact
        made: Any = SimpleNamespace(**content)
        radius = check_radii(read_claims(made, mdp).levels[0], mdp, 1)
        assert (radius[0, 0] == 0.0) == is_exact


def test_garbage_never_crashes(honest: dict[str, Any]) -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __repr__(self) -> str:
            raise RuntimeError

    junk: list[Any] = [
        None,
        -3,
        2**70,
        float("nan"),
        "x",
        [],
        (),
        {},
        np.zeros(0),
        np.zeros((2, 2)),
        np.full((3, 2), 1.7e308),
        np.full((3, 8), -1.7e308),
        np.full(8, 2**62),
        np.full(8, 1.7e308),
        np.array(5),
        np.ma.masked_array(np.zeros(8)),
        object(),
        Hostile(),
    ]
    level, features = honest["levels"][0], honest["features"]
    for holder in (level, level.model, features, features.witnesses[0]):
        for name in vars(holder):
            for value in junk:
                content = deep(honest)
                target = next(
                    new
                    for old, new in (
                        (level, content["levels"][0]),
                        (level.model, content["levels"][0].model),
                        (features, content["features"]),
                        (features.witnesses[0], content["features"].witnesses[0]),
                    )
                    if old is holder
                )
                setattr(target, name, value)
                # No witness, or one with any correction above its own, claims less.
                is_fine = name == "witnesses" and isinstance(value, tuple)
                is_fine |= name == "correction" and isinstance(value, int) and value > 0
                for mode in ("float", "sampled"):
                    result = found(content, ALTER_MDP, mode)
                    if not is_fine:
                        assert not result.is_valid, (name, value, mode)


def test_large_values_are_decided(honest: dict[str, Any]) -> None:
    content = deep(honest)
    content["levels"][0].model.high[0, 0] = 1e305
    assert "too large" in undecided(content, ALTER_MDP)
    rejected(content, ALTER_MDP, "which is at least 9.9")  # in fractions, it certainly is wrong
    content = deep(honest)
    content["features"].values[:] = np.array([-1.7e308, 1.7e308] * 4)
    rejected(content, ALTER_MDP, "")


def test_counts_what_was_checked(honest: dict[str, Any]) -> None:
    result = found(honest, ALTER_MDP)
    assert (result.levels_checked, result.features_checked) == (1, 4)
    sampled: Any = SimpleNamespace(**honest)
    assert verify(ALTER_MDP, sampled, mode="sampled", sample=3).pairs_checked == 3


# -- found by a review -------------------------------------------------------------------------


@pytest.mark.parametrize("n_actions", [8, 64, 200])
def test_the_worst_state_of_an_estimate_is_located_in_floats(n_actions: int) -> None:
    """Two states whose mean radii floats cannot tell apart: the needed one is the larger."""
    radius = np.zeros((2, n_actions))
    radius[:, 0] = 1.0
    radius[1, 1:] = 2.0**-53
    known = Estimate(
        counts=np.ones((2, n_actions), np.int64),
        reward_radius=radius,
        row_radius=np.zeros((2, n_actions)),
        alpha=0.1,
        reward_range=(-10.0, 10.0),
        support_bound=2,
    )
    mdp = TabularMDP(
        indptr=np.arange(2 * n_actions + 1),
        indices=np.repeat(np.arange(2), n_actions),
        probs=np.ones(2 * n_actions),
        rewards=np.zeros((2, n_actions)),
        estimate=known,
    )
    needed = 4 * sum(map(Fraction, radius[1].tolist())) / n_actions
    verdicts = set()
    for deficit in range(0, 2 * n_actions, max(1, n_actions // 16)):
        correction = float(needed * (1 - Fraction(deficit, 2**53)))
        content: dict[str, Any] = {
            "fingerprint": mdp.fingerprint,
            "n_states": 2,
            "gamma": 0.5,
            "rewards": mdp.rewards,
            "reward_radius": radius,
            "alpha": 0.1,
            "keys": np.empty(0, np.int64),
            "lower": np.empty(0),
            "upper": np.empty(0),
            "levels": (),
            "terminal_state": None,
            "value": None,
            "features": SimpleNamespace(
                values=np.zeros((1, 2)),
                signs=np.ones((1, n_actions), np.int64),
                kinds=np.array([1]),
                corrections=np.array([correction]),
                witnesses=(),
            ),
            "lower_start": "reward",
            "upper_start": "reward",
            "tau": None,
            "scope": "covered",
            **EMPTY,
        }
        result = found(content, mdp)
        verdicts.add(result.is_valid)
        if result.is_valid:
            assert Fraction(correction) + Fraction(result.widening) >= needed
    assert True in verdicts


def test_fractions_are_asked_only_where_that_takes_seconds(honest: dict[str, Any]) -> None:
    """Work that no pair shows: many features and witnesses, one of them too large for floats."""
    content = deep(honest)
    features = content["features"]
    for name in ("values", "signs", "kinds", "corrections"):
        line = getattr(features, name)
        setattr(features, name, np.repeat(line, 80, axis=0))
    huge = copy.copy(features.witnesses[0])
    huge.values = huge.values * 1e303
    features.witnesses = (*features.witnesses[:1] * 600, huge)
    result = found(content, ALTER_MDP)
    assert result.mode == "float"
    assert result.problem.endswith('"exact" would decide, slowly')


def test_a_support_names_different_states(honest: dict[str, Any]) -> None:
    content = deep(honest)
    witness = content["features"].witnesses[0]
    witness.support = np.repeat(witness.support, 2)
    witness.potential = np.repeat(witness.potential, 2)
    rejected(content, ALTER_MDP, "witness 0: support must name different states")


def test_a_certificate_is_read_once(honest: dict[str, Any]) -> None:
    """What fractions decide about is what was read, whatever an object says later."""
    content = deep(honest)
    content["features"].values[:] = np.array([-1e305, 1e305] * 4)  # open in floats
    reads: list[str] = []

    class Turning:
        def __getattr__(self, name: str) -> Any:
            reads.append(name)
            return content[name]

    turning: Any = Turning()
    result = verify(ALTER_MDP, turning)
    assert result.mode == "exact"
    assert not result.is_valid
    assert reads.count("keys") == reads.count("levels") == reads.count("features") == 1
