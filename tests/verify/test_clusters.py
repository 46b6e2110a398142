"""Clusters over all pairs: whether `verify` sees what links and what keeps apart."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    TabularMDP,
)
from tests.support.altered import ALTER_LABELS, ALTER_MDP, EMPTY, GAMMA, split
from tests.support.honest import (
    Operator,
    accepted,
    at_tau,
    bounds,
    build,
    composed,
    deep,
    down,
    found,
    iterate,
    make_features,
    make_level,
    rejected,
    state_model,
    undecided,
)
from tests.support.oracles import linked

# -- alterations -------------------------------------------------------------------------------


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
    operator = Operator(model, content["gamma"])
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
        content[f"labels_{side}"] = np.array(linked(table, tau), np.int64)
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
    for line in [*features.values, *features.witnesses.values, *ALTER_MDP.rewards.T]:
        raw = np.maximum(raw, np.abs(line[:, None] - line[None, :]))
    below, _ = bounds(ALTER_MDP, content)
    s, t = np.triu_indices(8, 1)
    tau = 0.999 * float(raw[s, t].min())
    assert min(float(below[i][j]) for i, j in zip(s.tolist(), t.tolist(), strict=True)) < tau
    apart = {"tau": tau, "labels_lower": np.arange(8), "labels_upper": np.arange(8)}
    rejected({**content, **apart}, ALTER_MDP, "labels_lower keeps states")
    # A claim of the distance itself, where one backup of what is known does not reach it.
    model = state_model(ALTER_MDP)
    operator = Operator(model, GAMMA)
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
    from bisim_abstract._verify import clusters

    monkeypatch.setattr(clusters, limit, 3)
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
