"""Honest certificates, made in exact arithmetic by slow code that shares nothing with the package.

Every step moves a bound by one exact backup and rounds outward, so that inequalities hold exactly
and, once converged, have no room left.
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

from bisim_abstract import (
    TabularMDP,
    bisimulation_metric,
    verify,
)
from bisim_abstract._model.estimation import Estimate
from tests.support.oracles import (
    lifted_exact,
    linked,
    partial_exact,
    transport_exact,
    variation_exact,
)

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


def lacking_exact(row: dict[int, Fraction], centre: dict[int, Fraction], spare: float) -> Fraction:
    """How much of a centre, less a spare share, a row does not have."""
    keep = 1 - Fraction(spare)
    return sum(
        (max(Fraction(0), keep * mass - row.get(b, Fraction(0))) for b, mass in centre.items()),
        Fraction(0),
    )


def block_model(
    mdp: TabularMDP, labels: Sequence[int], renaming: Ints | None = None
) -> SimpleNamespace:
    """Intervals, the mean lifted row of each block as its centre, and exact radii.

    Every other row does without a sixteenth of its centre. Names that a block does not use are
    those of its first; where actions are called what they are, what states lack is compared too.
    """
    n_blocks, n_actions = max(labels) + 1, mdp.n_actions
    first = [list(labels).index(block) for block in range(n_blocks)]
    available = mdp.available[first]
    if renaming is not None:
        available = np.zeros((n_blocks, n_actions), bool)
        for s, block in enumerate(labels):
            available[block, renaming[s][renaming[s] >= 0]] = True
    low, high = np.empty((n_blocks, n_actions)), np.empty((n_blocks, n_actions))
    radius, spare, short = (np.zeros((n_blocks, n_actions)) for _ in range(3))
    indptr, indices, probs = [0], [], []
    for block in range(n_blocks):
        members = [s for s, label in enumerate(labels) if label == block]
        for a in range(n_actions):
            named = [(s, a) for s in members]
            if renaming is not None:
                name = a if available[block, a] else int(available[block].argmax())
                named = [
                    (s, b) for s in members for b in np.flatnonzero(renaming[s] == name).tolist()
                ]
            intervals = [ends(mdp, *pair) for pair in named]
            low[block, a] = down(min(x[0] for x in intervals))
            high[block, a] = up(max(x[1] for x in intervals))
            rows = [lifted_exact(mdp, labels, *pair) for pair in named]
            reach = sorted(set().union(*rows))
            centre = [float(sum(r.get(b, Fraction(0)) for r in rows) / len(rows)) for b in reach]
            total = sum((Fraction(v) for v in centre), Fraction(0))
            row = {b: Fraction(v) / total for b, v in zip(reach, centre, strict=True)}
            away, lack = Fraction(0), Fraction(0)
            spare[block, a] = 0.0625 * ((block + a) % 2)
            for pair, other in zip(named, rows, strict=True):
                extra = Fraction(0)
                if mdp.estimate is not None:
                    extra = Fraction(float(mdp.estimate.row_radius[pair]))
                away = max(away, min(Fraction(1), variation_exact(other, row) + extra))
                lacks = lacking_exact(other, row, float(spare[block, a])) + extra
                lack = max(lack, min(Fraction(1), lacks))
            radius[block, a], short[block, a] = up(away), up(lack)
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
        spare=spare,
        short=short,
        is_estimate=mdp.estimate is not None,
        available=available,
        renaming=renaming,
    )


def state_model(mdp: TabularMDP) -> SimpleNamespace:
    """States as blocks of one, intervals kept as fractions."""
    estimate = mdp.estimate
    radius = np.zeros(mdp.rewards.shape) if estimate is None else estimate.row_radius
    pairs = [[ends(mdp, s, a) for a in range(mdp.n_actions)] for s in range(mdp.n_states)]
    return SimpleNamespace(
        labels=np.arange(mdp.n_states),
        low=[[x[0] for x in line] for line in pairs],
        high=[[x[1] for x in line] for line in pairs],
        indptr=mdp.indptr,
        indices=mdp.indices,
        probs=mdp.probs,
        radius=radius,
        spare=np.zeros(mdp.rewards.shape),
        short=radius,
        is_estimate=estimate is not None,
        available=mdp.available,
    )


Relation = tuple[str, float | None]  # how actions are compared, and what different ones cost


PLAIN: Relation = ("plain", None)


def apart_of(mdp: TabularMDP, gamma: float) -> float:
    """As far as rewards of any states and actions allow."""
    found = [ends(mdp, s, a) for s, a in np.ndindex(mdp.rewards.shape)]
    most = max(x[1] for x in found) - min(x[0] for x in found)
    return up(most / (1 - Fraction(gamma)))


def relation_of(mdp: TabularMDP, gamma: float, name: str) -> Relation:
    return name, apart_of(mdp, gamma) if name == "plain" and mdp.has_action_sets else None


class Operator:
    """Both block inequalities, from their definition."""

    def __init__(self, model: SimpleNamespace, gamma: float, relation: Relation = PLAIN) -> None:
        self.model, self.gamma = model, Fraction(gamma)
        self.n, self.n_actions = len(model.low), len(model.low[0])
        self.relation, self.far = relation[0], relation[1]
        self.diameter = self._diameter()

    def _diameter(self) -> Fraction:
        m = self.model
        pays = [
            [(Fraction(m.low[s][a]), Fraction(m.high[s][a])) for s in range(self.n)]
            for a in range(self.n_actions)
        ]
        if self.relation == "lax":
            used = [pays[a][s] for s in range(self.n) for a in np.flatnonzero(m.available[s])]
            pays = [used]
        spans = [max(x[1] for x in line) - min(x[0] for x in line) for line in pays]
        return max(max(spans) / (1 - self.gamma), Fraction(self.far or 0))

    def are_apart(self, s: int, t: int) -> bool:
        return self.far is not None and bool(
            (self.model.available[s] != self.model.available[t]).any()
        )

    def hausdorff(self, s: int, t: int, differ: Callable[[int, int], Fraction]) -> Fraction:
        """Of what all actions of two blocks differ by; by name, of those that share one."""
        one, two = (np.flatnonzero(self.model.available[k]).tolist() for k in (s, t))
        if self.relation == "plain":
            return max(differ(a, a) for a in one)
        table = {(a, b): differ(a, b) for a in one for b in two}
        return max(
            *(min(table[a, b] for b in two) for a in one),
            *(min(table[a, b] for a in one) for b in two),
        )

    def apart(self, s: int, t: int, a: int, b: int) -> tuple[Fraction, Fraction]:
        m = self.model
        low, high, low_, high_ = (
            Fraction(x) for x in (m.low[s][a], m.high[s][a], m.low[t][b], m.high[t][b])
        )
        return max(Fraction(0), low - high_, low_ - high), max(high - low_, high_ - low)

    def starts(self, s: int, t: int) -> tuple[Fraction, Fraction]:
        if self.are_apart(s, t):
            return Fraction(self.far), Fraction(self.far)  # type: ignore[arg-type]
        below, above = (
            self.hausdorff(s, t, lambda a, b, k=k: self.apart(s, t, a, b)[k])  # type: ignore[misc]
            for k in range(2)
        )
        return below, above + self.gamma * self.diameter

    def row(self, s: int, a: int) -> tuple[list[int], list[float]]:
        m, at = self.model, s * self.n_actions + a
        part = slice(m.indptr[at], m.indptr[at + 1])
        return m.indices[part].tolist(), m.probs[part].tolist()

    def backup(self, table: Exact, s: int, t: int, *, is_upper: bool) -> Fraction:
        if self.are_apart(s, t):
            return Fraction(self.far)  # type: ignore[arg-type]
        return self.hausdorff(s, t, lambda a, b: self._differ(table, s, t, a, b, is_upper=is_upper))

    def _differ(self, table: Exact, s: int, t: int, a: int, b: int, *, is_upper: bool) -> Fraction:
        gap, span = self.apart(s, t, a, b)
        (x, p), (y, q) = self.row(s, a), self.row(t, b)
        cost = [[table[i][j] for j in y] for i in x]
        free, short = (
            Fraction(float(x[s][a])) + Fraction(float(x[t][b]))
            for x in (self.model.radius, self.model.short)
        )
        if not is_upper:
            return gap + self.gamma * partial_exact(cost, p, q, free)
        spare = max(Fraction(float(self.model.spare[k][c])) for k, c in ((s, a), (t, b)))
        kappa = max(max(line) for line in cost)
        if self.model.is_estimate and short > 0:
            kappa = max(kappa, self.diameter)
        carried = (1 - spare) * transport_exact(cost, p, q)
        return span + self.gamma * min(kappa, carried + (spare + short) * kappa)


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
    *,
    relation: Relation = PLAIN,
    renaming: Ints | None = None,
) -> SimpleNamespace:
    model = block_model(mdp, labels, renaming)
    n = len(model.low)
    sizes = np.bincount(model.labels)
    operator = Operator(model, gamma, relation)
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
    mdp: TabularMDP,
    gamma: float,
    sweeps: int,
    *,
    has_witnesses: bool = True,
    stretch: float = 1.0,
    relation: Relation = PLAIN,
    kinds: Sequence[int] = (0, 1, 0),
    signs: Sequence[Sequence[int]] | None = None,
    cuts: Sequence[tuple[float, float]] | None = None,
) -> SimpleNamespace:
    """Generalised value functions of either kind, and two witnesses that read each other.

    Those that the relation allows, unless they are given.
    """
    rest = mdp.n_actions - 1
    if signs is None and relation[0] == "lax":
        signs, kinds = [[1] * (rest + 1), [-1] * (rest + 1), [1] * (rest + 1)], (0, 0, 0)
        middle = float(np.median(mdp.rewards))
        cuts = [(-np.inf, np.inf), (-np.inf, np.inf), (-np.inf, middle)]
    elif signs is None:
        turned = [[-1] * (rest + 1)] if relation[1] is not None else [[-1] + [1] * rest]
        signs = [[1] * (rest + 1), *turned, [1] + [0] * rest]
    if cuts is None:
        cuts = [(-np.inf, np.inf)] * len(signs)
    rows, g = exact_rows(mdp), Fraction(gamma)
    values, corrections = [], []

    def applied(line: list[float], k: int) -> list[Fraction]:
        result = []
        for s in range(mdp.n_states):
            found = []
            for a, sign in enumerate(signs[k]):
                if sign:
                    ahead = sum((p * Fraction(line[t]) for t, p in rows[s][a].items()), Fraction(0))
                    paid = min(max(sign * float(mdp.rewards[s, a]), cuts[k][0]), cuts[k][1])
                    found.append(Fraction(paid) + g * ahead)
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
    features = SimpleNamespace(
        values=np.array(values),
        signs=np.array(signs, np.int64),
        kinds=np.array(kinds, np.int64),
        corrections=np.array(corrections),
        floor=np.array([cut[0] for cut in cuts]),
        ceiling=np.array([cut[1] for cut in cuts]),
        witnesses=None,
    )
    if has_witnesses:
        features.witnesses = make_witnesses(mdp, gamma, features, sweeps)
    return features


def make_witnesses(
    mdp: TabularMDP, gamma: float, features: SimpleNamespace, sweeps: int
) -> SimpleNamespace:
    """Two witnesses, each backed up from what both and the features say."""
    n = mdp.n_states
    found = SimpleNamespace(
        values=np.zeros((2, n)),
        actions=np.array([0, mdp.n_actions - 1]),
        signs=np.array([-1, 1]),
        support=np.array([[0, n - 1, 2], [1, 0, n - 1]]),
        potential=np.array([[0.0, 0.0, 0.0], [0.0, 0.125, 0.25]]),
        corrections=np.zeros(2),
    )
    both = SimpleNamespace(**{**vars(features), "witnesses": found})
    for _ in range(sweeps):
        found.values = np.array([[float(v) for v in g] for g in witness_backups(mdp, gamma, both)])
    found.corrections = sharp_corrections(mdp, gamma, both)
    return found


def witness_backups(mdp: TabularMDP, gamma: float, features: Any) -> Exact:
    """What every witness is backed up to, by its definition, exactly."""
    witnesses, n = features.witnesses, mdp.n_states
    lines = [
        [Fraction(v) for v in line]
        for line in np.vstack([features.values, witnesses.values]).tolist()
    ]
    rows, out = exact_rows(mdp), []
    for k in range(len(witnesses.values)):
        a, support = int(witnesses.actions[k]), witnesses.support[k].tolist()
        start = [Fraction(v) for v in witnesses.potential[k].tolist()]
        u = [
            min(
                value + max(abs(line[z] - line[i]) for line in lines)
                for i, value in zip(support, start, strict=True)
            )
            for z in range(n)
        ]
        out.append(
            [
                int(witnesses.signs[k]) * Fraction(float(mdp.rewards[s, a]))
                + Fraction(gamma) * sum((p * u[t] for t, p in rows[s][a].items()), Fraction(0))
                for s in range(n)
            ]
        )
    return out


def witness_spans(mdp: TabularMDP, gamma: float, features: Any) -> list[Fraction]:
    """Spans of what backups of witnesses differ by from their values."""
    spans = []
    values = features.witnesses.values.tolist()
    for after, before in zip(witness_backups(mdp, gamma, features), values, strict=True):
        off = [x - Fraction(v) for x, v in zip(after, before, strict=True)]
        spans.append(max(off) - min(off))
    return spans


def is_jointly_enough(mdp: TabularMDP, gamma: float, features: Any) -> bool:
    """Whether span(r_j) + gamma·c <= correction_j for every witness, c the largest of all."""
    corrections = [Fraction(c) for c in features.witnesses.corrections.tolist()]
    most = max(*corrections, *(Fraction(c) for c in features.corrections.tolist()))
    spans = witness_spans(mdp, gamma, features)
    return all(
        span + Fraction(gamma) * most <= c for span, c in zip(spans, corrections, strict=True)
    )


def sharp_corrections(mdp: TabularMDP, gamma: float, features: Any) -> Floats:
    """The least corrections of witnesses that are enough, rounded up."""
    spans, g = witness_spans(mdp, gamma, features), Fraction(gamma)
    most = up(max(max(spans) / (1 - g), Fraction(float(features.corrections.max()))))
    return np.array([up(span + g * Fraction(most)) for span in spans])


def composed(mdp: TabularMDP, content: dict[str, Any]) -> tuple[Exact, Exact]:
    """What all components but covered pairs say of every pair, exactly."""
    model, gamma, n = state_model(mdp), content["gamma"], mdp.n_states
    operator = Operator(model, gamma, (content["relation"], content["apart"]))
    below = [[Fraction(0)] * n for _ in range(n)]
    above = [[Fraction(0)] * n for _ in range(n)]
    for s in range(n):
        for t in range(s + 1, n):
            least, most = operator.starts(s, t)
            if content["lower_start"] == "zero" and not operator.are_apart(s, t):
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
                lines, slack = [features.values], [features.corrections]
                if features.witnesses is not None:
                    lines.append(features.witnesses.values)
                    slack.append(features.witnesses.corrections)
                for line, c in zip(np.vstack(lines), np.concatenate(slack), strict=True):
                    least = max(least, abs(Fraction(line[s]) - Fraction(line[t])) - Fraction(c))
            below[s][t] = below[t][s] = least
            above[s][t] = above[t][s] = most
    return below, above


def build(
    mdp: TabularMDP,
    gamma: float,
    *,
    labelings: Sequence[Sequence[int]] = (),
    pairs: Sequence[tuple[int, int]] = (),
    sweeps: int = 12,
    has_features: bool = True,
    has_witnesses: bool = True,
    starts: tuple[str, str] = ("reward", "reward"),
    tau: float | None = None,
    relation: str = "plain",
    renamings: Sequence[Ints | None] | None = None,
) -> dict[str, Any]:
    """An honest certificate of all components, converged as far as asked."""
    how = relation_of(mdp, gamma, relation)
    renamings = [None] * len(labelings) if renamings is None else renamings
    empty = np.empty(0, np.int64)
    estimate = mdp.estimate
    content: dict[str, Any] = {
        "fingerprint": mdp.fingerprint,
        "n_states": mdp.n_states,
        "gamma": gamma,
        "rewards": mdp.rewards,
        "available": mdp.available,
        "relation": how[0],
        "apart": how[1],
        "reward_radius": np.empty((0, 0)) if estimate is None else estimate.reward_radius,
        "alpha": None if estimate is None else estimate.alpha,
        "reward_range": None if estimate is None else estimate.reward_range,
        "levels": tuple(
            make_level(mdp, gamma, labels, sweeps, relation=how, renaming=names)
            for labels, names in zip(labelings, renamings, strict=True)
        ),
        "features": None,
        "action_values": None,
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
            mdp,
            gamma,
            sweeps,
            has_witnesses=has_witnesses and estimate is None and relation == "plain",
            relation=how,
        )
    below, above = composed(mdp, content)
    operator = Operator(state_model(mdp), gamma, how)
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
    how = content["relation"], content["apart"]
    largest = Operator(state_model(mdp), content["gamma"], how).diameter
    stored = {**content, "upper_start": "constant"}
    above = bounds(mdp, stored)[1]
    assert all(above[s][t] <= largest for s in range(len(above)) for t in range(len(above)))
    return {
        **content,
        "tau": tau,
        "labels_lower": np.array(linked(below, tau), np.int64),
        "labels_upper": np.array(linked(above, tau), np.int64),
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
    is_by_name = content["relation"] == "plain" and content["apart"] is None
    scale = float(np.ptp(mdp.rewards, axis=0 if is_by_name else None).max()) + 1.0
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


def _renamed(made: tuple[TabularMDP, Any]) -> TabularMDP:
    return made[0]


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


# -- alterations -------------------------------------------------------------------------------


def deep(content: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(content)
