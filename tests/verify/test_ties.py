"""`verify` where claims hang on one comparison: ties at tau, the widening, the sample.

A state is linked with another if their distance is at most tau, so that a lower bound equal to tau
keeps nothing apart, and an upper bound equal to tau links.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP, verify
from bisim_abstract._model.generators import grouped_mdp, sparse_mdp
from tests.support.honest import accepted, build, deep, down, found, rejected, up
from tests.support.oracles import first_appearance

TAUS = [1.0, 0.1, 2.0**-40, 1.5 + 2.0**-52]


def forked() -> TabularMDP:
    """0 moves to 2, which is paid 4 for ever; 1 moves to 3, which is paid nothing for ever.

    With gamma = 1/2: d(0, 1) = d(0, 3) = 4 and d(2, 3) = 8, of which rewards tell only the last.
    """
    P = np.zeros((4, 1, 4))
    P[0, 0, 2] = P[1, 0, 3] = P[2, 0, 2] = P[3, 0, 3] = 1.0
    return TabularMDP.from_dense(P, [[0.0], [0.0], [4.0], [0.0]])


def weaker(content: dict[str, Any], tau: float, lower: float) -> dict[str, Any]:
    """Clusters {0}, {1, 3}, {2} at tau, where 0 and 1 are apart by `lower` alone."""
    content = deep(content)
    for table in (content, *(vars(level) for level in content["levels"])):
        is_cut = (table["lower"] > 0.0) & (table["lower"] < 8.0)
        table["lower"] = np.where(is_cut, 2.0, table["lower"])
        if table["keys"].size:
            assert table["keys"][0] == 1  # 0 and 1, or the blocks {0} and {1, 3}
            table["lower"][0] = lower
    labels = np.array([0, 1, 2, 1])
    return content | {"tau": tau, "labels_lower": labels, "labels_upper": np.arange(4)}


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("kind", ["pairs", "blocks"])
def test_a_lower_bound_equal_to_tau_keeps_nothing_apart(kind: str, tau: float) -> None:
    mdp = forked()
    content = build(
        mdp,
        0.5,
        labelings=[[0, 1, 2, 1]] if kind == "blocks" else [],
        pairs=[(0, 1), (0, 3)] if kind == "pairs" else [],
        has_features=False,
    )
    above = float(np.nextafter(tau, 9.0))
    assert accepted(weaker(content, tau, above), mdp) == 0.0  # nothing is left to rounding
    for lower in (tau, float(np.nextafter(tau, 0.0))):
        tied = weaker(content, tau, lower)
        rejected(tied, mdp, "labels_lower keeps states 0 and 1 apart")
        assert "not above tau" in found(tied, mdp, "exact").problem


def test_a_lower_bound_in_doubt_that_equals_tau_keeps_nothing_apart() -> None:
    """Start values are rounded down before floats compare them: fractions see the tie."""
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [[0.0], [1.0]])
    content = build(mdp, 0.0, has_features=False)
    for tau, is_apart in ((1.0, False), (float(np.nextafter(1.0, 0.0)), True)):
        content |= {"tau": tau, "labels_lower": np.arange(2), "labels_upper": np.arange(2)}
        if is_apart:
            accepted(content, mdp)
        else:
            rejected(content, mdp, "labels_lower keeps states 0 and 1 apart")


def test_twins_are_not_apart_at_0() -> None:
    mdp = TabularMDP.from_dense(np.full((2, 1, 2), 0.5), [[3.0], [3.0]])
    for has_features in (False, True):
        content = build(mdp, 0.5, has_features=False)
        if has_features:
            content["features"] = build(mdp, 0.5, has_witnesses=False)["features"]
        content |= {"tau": 0.0, "labels_lower": np.arange(2), "labels_upper": np.arange(2)}
        rejected(content, mdp, "labels_lower keeps states 0 and 1 apart")


@pytest.mark.parametrize("tau", TAUS)
def test_bounds_equal_to_tau_link_covered_pairs(tau: float) -> None:
    mdp = forked()
    content = build(mdp, 0.5, pairs=[(0, 1), (0, 3)], has_features=False)
    content = weaker(content, tau, tau) | {"scope": "covered"}
    content["upper"] = np.array([8.0, 8.0])
    content["labels_lower"] = np.array([0, 0, 1, 2])
    accepted(content, mdp)
    rejected(content | {"labels_lower": np.arange(4)}, mdp, "labels_lower gives state")
    # 4 is the distance, which upper bounds may claim: then 4 links, and less does not.
    content = content | {"upper": np.array([4.0, 8.0]), "lower": np.zeros(2), "tau": 4.0}
    content |= {"labels_lower": np.array([0, 0, 1, 0]), "labels_upper": np.array([0, 0, 1, 2])}
    assert found(content, mdp, "exact").is_valid
    rejected(content | {"labels_upper": np.arange(4)}, mdp, "labels_upper gives state")
    content["tau"] = float(np.nextafter(4.0, 0.0))
    rejected(content, mdp, "labels_upper gives state")


@pytest.mark.parametrize("kind", ["pairs", "blocks"])
def test_upper_bounds_equal_to_tau_link_all_pairs(kind: str) -> None:
    mdp = forked()
    content = build(
        mdp,
        0.5,
        labelings=[[0, 1, 2, 1]] if kind == "blocks" else [],
        pairs=[(0, 1)] if kind == "pairs" else [],
        has_features=False,
    )
    for table in (content, *(vars(level) for level in content["levels"])):
        if table["keys"].size:
            table["upper"] = np.maximum(table["upper"], 6.0)  # weaker than what is known
            table["upper"][0] = 6.0
    together = np.zeros(4, np.int64)
    linked = np.array([0, 0, 1, 0]) if kind == "blocks" else np.array([0, 0, 1, 2])
    content |= {"tau": 6.0, "labels_lower": together, "labels_upper": linked}
    assert accepted(content, mdp) == 0.0
    content["tau"] = float(np.nextafter(6.0, 0.0))
    rejected(content, mdp, "labels_upper puts states 0 and 1 together")


def test_the_diameter_itself_links_all_states() -> None:
    mdp = forked()
    content = build(mdp, 0.5, has_features=False)
    together = np.zeros(4, np.int64)
    content |= {"tau": 8.0, "labels_lower": together, "labels_upper": together}
    assert accepted(content, mdp) == 0.0
    content["tau"] = float(np.nextafter(8.0, 0.0))
    rejected(content, mdp, "labels_upper puts states 0 and 1 together")


# -- the widening ------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("side", ["lower", "upper"])
def test_the_widening_covers_the_worst_that_rounding_hides(
    side: str, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds of states that stay among their own, 1 apart in rewards: d = 1/(1 - gamma).

    A claim c that is short by e in its inequality is off by e/(1 - gamma). The worst claim that
    float mode takes for rounding is found by bisection.
    """
    P = np.kron(np.eye(3), np.full((2, 2), 0.5))[:, None, :]
    mdp = TabularMDP.from_dense(P, [[0.0], [0.0], [1.0], [1.0], [9.0], [9.0]])
    distance = 1 / (1 - Fraction(gamma))
    keys = np.array([2, 3, 8, 9])  # 0 and 1 against 2 and 3
    base = build(mdp, gamma, has_features=False)
    base |= {"keys": keys, "lower": np.zeros(4), "upper": np.full(4, 9.0 * float(distance))}

    def judged(claim: float) -> Any:
        return found({**base, side: np.full(4, claim)}, mdp)

    monkeypatch.setattr("bisim_abstract._verify.verify.SMALL", -1)  # no fractions
    step = 1.0 if side == "lower" else -1.0
    good = down(distance) if side == "lower" else up(distance)
    bad = good * (1.0 + step * 1e-8)
    assert judged(good).is_valid
    assert not judged(bad).is_valid
    while True:
        middle = (good + bad) / 2.0
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if judged(middle).is_valid else (good, middle)
    result = judged(good)
    missed = (Fraction(good) - distance) * int(step)
    assert missed > 0  # it is false,
    assert Fraction(result.widening) >= missed  # and known to be so by no more than that
    assert Fraction(result.widening) <= 16 * missed + Fraction(up(distance)) / 2**45 / (
        1 - Fraction(gamma)
    )


# -- the sample --------------------------------------------------------------------------------


def share_rejected(content: dict[str, Any], mdp: TabularMDP, sample: int) -> float:
    """How often a sample meets what is wrong."""
    made: Any = SimpleNamespace(**content)
    results = [
        verify(mdp, made, mode="sampled", sample=sample, seed=seed).is_valid for seed in range(60)
    ]
    return 1.0 - float(np.mean(results))


@pytest.mark.parametrize("index", [0, 7, 14])
def test_every_pair_is_as_likely_to_be_sampled(index: int) -> None:
    mdp = sparse_mdp(6, 2, support=2, seed=1)
    pairs = [(s, t) for s in range(6) for t in range(s + 1, 6)]
    content = build(mdp, 0.5, pairs=pairs, has_features=False, sweeps=6)
    assert share_rejected(content, mdp, 5) == 0.0
    content["lower"][:] = 0.0
    content["upper"][index] *= 0.99
    assert 0.15 < share_rejected(content, mdp, 5) < 0.55  # a third
    assert share_rejected(content, mdp, 15) == 1.0


@pytest.mark.parametrize("block", [0, 2])
def test_every_row_behind_a_level_is_as_likely_to_be_sampled(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A radius that is too small by less than floats see, for some row of one block."""
    monkeypatch.setattr("bisim_abstract._verify.verify.FEW", -1)  # fractions would see it
    mdp, planted = grouped_mdp(8, 3, 2, noise=0.05, support=2, seed=3)
    labels = first_appearance(planted.tolist())
    assert labels == [0, 0, 0, 1, 1, 1, 2, 2]
    content = build(mdp, 0.5, labelings=[labels], sweeps=4, has_features=False)
    assert share_rejected(content, mdp, 4) == 0.0
    radius = content["levels"][0].model.radius
    assert radius[block, 1] > 0.0
    radius[block, 1] = np.nextafter(radius[block, 1], 0.0)
    assert "radii and shorts as stored" in found(content, mdp).remark  # not seen
    assert 0.1 < share_rejected(content, mdp, 4) < 0.6  # 4 of 16 rows
    assert share_rejected(content, mdp, 16) == 1.0
