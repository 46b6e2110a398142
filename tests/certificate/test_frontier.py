"""Thresholds by value: the search, the frontier, and what `certify` chooses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import InvalidArgumentError, TabularMDP, certify, prove_value
from bisim_abstract._certificate.frontier import Numbers, first_good, is_worth
from bisim_abstract.parts import grouped_mdp
from tests.support.asking import certify_named
from tests.support.examples import naming, seeds
from tests.support.values import NOTHING_TO_LOSE, random_row
from tests.support.worlds import BY_HAND

pytestmark = pytest.mark.usefixtures("_no_endless_loop")


# -- first_good ------------------------------------------------------------------------------------


@given(good=st.lists(st.booleans(), max_size=200), most=st.integers(1, 60))
def test_first_good_of_anything(good: list[bool], most: int) -> None:
    asked: list[int] = []

    def is_good(k: int) -> bool:
        asked.append(k)
        return good[k]

    found = first_good(len(good), is_good, most)
    assert len(asked) == len(set(asked)), "each once at most"
    if found is None:
        assert not any(good[k] for k in asked)
        assert not (len(good) <= most and any(good))
    else:
        assert good[found]
        assert found in asked
        # No position that is known to be good is coarser, unless worse ones lie between.
        assert not (found > 0 and found - 1 in asked and good[found - 1])
    if len(good) <= most:
        assert found == (good.index(True) if any(good) else None)
        assert len(asked) <= len(good)
    else:
        assert len(asked) <= most + 2 * math.ceil(math.log2(len(good) + 1)) + 2


@given(count=st.integers(0, 3_000), data=st.data(), most=st.integers(1, 60))
def test_first_good_of_monotone_questions_is_exact(
    count: int, data: st.DataObject, most: int
) -> None:
    first = data.draw(st.integers(0, count))
    found = first_good(count, lambda k: k >= first, most)
    assert found == (None if first == count else first)


# -- what certify chooses -------------------------------------------------------------------------


def some_model(seed: int) -> TabularMDP:
    rng = np.random.default_rng([9, seed])
    if seed % 3 == 0:
        return grouped_mdp(24, 4, 2, noise=0.05, support=2, seed=seed)[0]
    n = 10
    P = np.array([[random_row(rng, n, "sparse") for _ in range(2)] for _ in range(n)])
    R = rng.random((n, 2)) * (rng.random((n, 2)) < 0.5)
    if seed % 2:
        P[n - 1], R[n - 1] = np.eye(n)[n - 1], 0.0
    return TabularMDP.from_dense(P, R, terminal_state=n - 1 if seed % 2 else None)


@pytest.mark.parametrize("name", NOTHING_TO_LOSE)
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_where_nothing_can_be_lost(name: str, gamma: float) -> None:
    certificate = certify(NOTHING_TO_LOSE[name], gamma)
    assert certificate.is_certified, certificate.verdict.sentence
    assert certificate.n_clusters == 1
    assert certificate.value is not None
    assert certificate.value.kept == 1.0
    assert certificate.verdict.level == "useful", certificate.verdict.sentence


def test_worlds_solved_by_hand_are_certified() -> None:
    for known in BY_HAND:
        with naming(name=known.name, gamma=known.gamma):
            certificate = certify(known.mdp, known.gamma)
            assert certificate.is_certified, certificate.verdict.sentence
            assert certificate.value is not None
            assert certificate.value.kept >= 0.95


@seeds(9)
def test_the_choice_is_the_coarsest_of_a_complete_frontier(seed: int) -> None:
    mdp = some_model(seed)
    n_live = mdp.n_states - (mdp.terminal_state is not None)
    blind = prove_value(mdp, np.zeros(mdp.n_states, np.int64), 0.9)
    for keep in (0.5, 0.95, 1.0):
        certificate = certify(mdp, 0.9, keep=keep)
        value = certificate.value
        assert certificate.is_certified
        assert value is not None
        assert value.kept >= keep or certificate.stop.startswith("all pairs")
        assert (certificate.keep, certificate.n_clusters <= n_live) == (keep, True)
        frontier = certificate.frontier(most=1_000)
        assert frontier.is_complete
        good = [
            point.n_clusters
            for point in frontier.points
            if point.kept >= keep
            and (point.kept >= 1.0 or point.start_loss <= (1.0 - keep) * blind.start_loss)
        ]
        assert certificate.n_clusters == min(good)


@seeds(6)
def test_points_are_what_prove_value_says(seed: int) -> None:
    mdp = some_model(seed)
    certificate = certify(mdp, 0.9)
    frontier = certificate.frontier(most=1_000)
    assert len(frontier.points) == frontier.n_thresholds
    counts = [point.n_clusters for point in frontier.points]
    assert counts == sorted(counts, reverse=True)
    for point in frontier.points:
        at = certificate.at(point.low)
        assert at.is_certified
        live = np.delete(at.labels_upper, mdp.terminal_state or []).tolist()
        assert point.n_clusters == at.n_clusters == len(set(live))
        value = prove_value(mdp, at.labels_upper, 0.9)
        assert point.loss == pytest.approx(value.loss, rel=0.11, abs=1e-9)
        assert point.start_loss == pytest.approx(value.start_loss, rel=0.2, abs=1e-4)
        if point.kept > 0.1:
            assert point.kept == pytest.approx(value.kept, abs=0.02)
    assert str(frontier).count("\n") == len(frontier.points) - 1
    few = certificate.frontier(most=2)
    told = {point.n_clusters for point in frontier.points}
    assert {point.n_clusters for point in few.points} <= told


@seeds(6)
def test_max_loss_is_respected(seed: int) -> None:
    mdp = some_model(seed)
    counts = []
    for max_loss in (1e-6, 0.05, 0.5, 1e3):
        certificate = certify(mdp, 0.9, max_loss=max_loss)
        assert certificate.is_certified
        assert certificate.value is not None
        assert certificate.value.loss <= max_loss
        counts.append(certificate.n_clusters)
        good = [x.n_clusters for x in certificate.frontier().points if x.loss <= max_loss]
        assert certificate.n_clusters <= min(good)
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_keep_nothing_and_keep_everything() -> None:
    mdp = some_model(0)
    some, everything = certify(mdp, 0.9, keep=0.0), certify(mdp, 0.9, keep=1.0)
    assert some.value is not None
    assert everything.value is not None
    assert some.value.kept >= 0.0
    assert everything.value.kept == 1.0
    assert some.n_clusters <= everything.n_clusters


@pytest.mark.parametrize(
    "goals",
    [
        {"tau": 0.1, "n_clusters": 2},
        {"tau": 0.1, "max_loss": 0.1},
        {"tau": "auto", "max_loss": 0.1},
        {"n_clusters": 2, "max_loss": 0.1},
        {"tol": 1e-3, "max_loss": 0.1},
        {"max_loss": 0.1, "method": "covering"},
        {"keep": 1.1},
        {"keep": -0.1},
        {"keep": math.nan},
        {"keep": None},
        {"max_loss": -1.0},
        {"max_loss": math.nan},
        {"n_clusters": 10},
    ],
    ids=str,
)
def test_goals_that_cannot_be_are_refused(goals: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        certify_named(some_model(1), 0.9, **goals)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_counts_leave_out_the_end(count: int) -> None:
    mdp = some_model(1)
    certificate = certify(mdp, 0.9, n_clusters=count)
    if certificate.is_certified:
        assert certificate.n_clusters == count
        assert certificate.value is not None
        assert certificate.value.policy.size == count + 1
        assert certificate.verdict.clusters == count


def test_where_knowing_nothing_loses_nothing_rounding_is_no_reason_to_abstain() -> None:
    """Losses of 1e-11 on both sides: a share of one of the other says nothing."""
    blind = Numbers(1.0 - 2e-11, 0.1, 1.6e-11)
    assert is_worth(Numbers(1.0 - 2e-11, 1e-11, 1.59e-11), blind, 0.95)
    assert not is_worth(Numbers(0.99, 0.1, 0.01), Numbers(0.98, 0.1, 0.02), 0.95)
    assert not is_worth(Numbers(0.94, 0.1, 0.0), blind, 0.95)
