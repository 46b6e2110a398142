"""Thresholds by value: the search, the frontier, and what `certify` chooses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import InvalidArgumentError, TabularMDP, certify, prove_value
from bisim_abstract._certificate.frontier import first_good
from bisim_abstract._certificate.goal import Goal, Numbers
from bisim_abstract.parts import grouped_mdp
from tests.support.asking import certify_named
from tests.support.examples import cases, naming, seeds
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


def of_guarantees(many: int) -> list[tuple[str, int]]:
    """Models for each guarantee; of others than the default few, as each takes longer."""
    own = [("solver", seed) for seed in range(cases(many))]
    return [*own, *(("policy", seed) for seed in (1, 2)), *(("learner", seed) for seed in (1, 2))]


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


@pytest.mark.drawn
@pytest.mark.parametrize(("guarantee", "seed"), of_guarantees(9))
def test_the_choice_is_the_coarsest_of_a_complete_frontier(seed: int, guarantee: str) -> None:
    mdp = some_model(seed)
    for keep in (0.5, 0.95, 1.0):
        certificate = certify(mdp, 0.9, keep=keep, guarantee=guarantee)
        assert certificate.is_certified
        assert certificate.value is not None
        assert (certificate.keep, certificate.guarantee) == (keep, guarantee)
        found = certificate.value.share(guarantee)
        assert found is not None
        frontier = certificate.frontier(most=1_000)
        assert frontier.is_complete
        good = [point.n_clusters for point in frontier.points if point.kept >= keep]
        coarsest = frontier.coarsest()
        if not good:  # not even by single states: what is worth most is handed out
            assert (coarsest, found.kept < keep) == (None, True)
            assert certificate.stop.startswith("all pairs")
            assert certificate.verdict.level == "poor"
            continue
        assert found.kept >= keep
        assert coarsest is not None
        assert certificate.n_clusters == coarsest.n_clusters == min(good)
        n_live = mdp.n_states - (mdp.terminal_state is not None)
        level = "useful" if certificate.n_clusters < n_live else "poor"
        assert certificate.verdict.level == level, certificate.verdict.sentence


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
        assert point.loss == pytest.approx(value.solver.loss, rel=0.11, abs=1e-9)
        assert point.start_loss == pytest.approx(value.solver.start_loss, rel=0.2, abs=1e-4)
        if point.kept > 0.1:
            assert point.kept == pytest.approx(value.solver.kept, abs=0.02)
    assert str(frontier).count("\n") == len(frontier.points) - 1
    few = certificate.frontier(most=2)
    told = {point.n_clusters for point in frontier.points}
    assert {point.n_clusters for point in few.points} <= told


@pytest.mark.drawn
@pytest.mark.parametrize(("guarantee", "seed"), of_guarantees(6))
def test_max_loss_is_respected(seed: int, guarantee: str) -> None:
    mdp = some_model(seed)
    counts = []
    for max_loss in (1e-6, 0.05, 0.5, 1e3):
        certificate = certify(mdp, 0.9, max_loss=max_loss, guarantee=guarantee)
        assert certificate.is_certified
        assert certificate.value is not None
        found = certificate.value.share(guarantee)
        assert found is not None
        assert found.loss <= max_loss
        assert found.kept >= 1e-3  # whatever may be lost, something is gained over the baseline
        counts.append(certificate.n_clusters)
        points = certificate.frontier().points
        good = [x.n_clusters for x in points if x.loss <= max_loss and x.kept >= 1e-3]
        assert certificate.n_clusters <= min(good)
    assert counts == sorted(counts, reverse=True)


def test_keep_nothing_and_keep_everything() -> None:
    mdp = some_model(0)
    some, everything = certify(mdp, 0.9, keep=0.0), certify(mdp, 0.9, keep=1.0)
    assert some.value is not None
    assert everything.value is not None
    assert some.value.solver.kept >= 1e-3
    assert everything.value.solver.kept == 1.0
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
        {"keep": True},
        {"keep": 0.9, "max_loss": 0.1},
        {"keep": 0.9, "tau": 0.1},
        {"keep": 0.9, "tau": "auto"},
        {"keep": 0.9, "n_clusters": 2},
        {"keep": 0.9, "tol": 1e-3},
        {"keep": 0.9, "method": "covering"},
        {"guarantee": "nobody"},
        {"guarantee": None},
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


# -- goals -----------------------------------------------------------------------------------------


def test_a_goal_is_a_share_or_a_loss_and_as_many_ends() -> None:
    good = Numbers(0.95, 3.0, 1.0, ends_fewer=False)
    assert Goal().is_met(good)
    assert not Goal(keep=0.951).is_met(good)
    assert not Goal().is_met(good._replace(kept=-math.inf))
    assert not Goal(keep=0.0).is_met(good._replace(kept=-1e-3))
    for goal in (Goal(keep=0.0), Goal(max_loss=3.0)):
        assert goal.is_met(good._replace(kept=1e-3))
        assert not goal.is_met(good._replace(kept=9e-4))
    assert not Goal(max_loss=2.999).is_met(good)
    for goal in (Goal(), Goal(max_loss=3.0)):
        fewer = good._replace(ends_fewer=True)
        assert goal.is_enough(fewer)
        assert not goal.is_met(fewer)
        assert not goal.is_met(None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"guarantee": "anybody"},
        {"keep": 1.5},
        {"keep": "most"},
        {"max_loss": -1e-9},
        {"max_loss": math.inf},
    ],
    ids=str,
)
def test_goals_that_say_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        Goal(**wrong)


def test_numbers_are_those_of_the_agents_that_are_asked_about() -> None:
    mdp = some_model(0)
    value = prove_value(mdp, np.arange(mdp.n_states) % 3, 0.9, horizon=7)
    assert value.learner is not None
    assert value.episodes is not None
    for guarantee, share in (
        ("policy", value),
        ("solver", value.solver),
        ("learner", value.learner),
    ):
        found = Numbers.of(value, guarantee)
        assert found is not None
        assert found[:3] == (share.kept, share.loss, share.start_loss)
        # The policy that comes with the clusters counts in any case.
        own = value.episodes.ends_clearly_fewer("policy")
        assert found.ends_fewer == (own or value.episodes.ends_clearly_fewer(guarantee))
    without = prove_value(mdp, np.arange(mdp.n_states) % 3, 0.9, with_learner=False)
    assert Numbers.of(without, "learner") is None
    assert not Goal("learner").is_met(Numbers.of(without, "learner"))
