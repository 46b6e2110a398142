"""Estimated models: what they hold, and that their radii keep their promise.

The promise is checked twice: by exact tail probabilities of single rows, which leave little
room for a radius that is too small, and by simulation of an adversary who stops where the
estimate looks worst.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, multinomial

from bisim_abstract import (
    BisimError,
    InvalidArgumentError,
    TabularMDP,
    estimate_mdp,
    prove_value,
)
from bisim_abstract._model import estimation
from bisim_abstract._model.estimation import row_radii
from bisim_abstract.encoders import Transitions, collect_transitions, sample_transitions
from bisim_abstract.errors import InvalidMDPError
from bisim_abstract.parts import Estimate
from tests.support.worlds import countdown


def estimate_of(mdp: TabularMDP) -> Estimate:
    assert mdp.estimate is not None
    return mdp.estimate


def small(**changes: Any) -> TabularMDP:
    """Three states, two actions; state 2 and the pair (1, 1) are never visited."""
    data: dict[str, Any] = {
        "states": [0, 0, 0, 0, 1, 0],
        "actions": [0, 0, 0, 1, 0, 0],
        "rewards": [1.0, 0.0, 0.5, -1.0, 0.25, 0.5],
        "next_states": [1, 1, 0, 2, 0, 2],
        "n_states": 3,
        "n_actions": 2,
        "reward_range": (-1.0, 2.0),
    }
    return estimate_mdp(**(data | changes))


# -- counts, frequencies, means --------------------------------------------------------------


def test_counts_frequencies_and_means() -> None:
    mdp = small()
    assert (mdp.n_states, mdp.n_actions) == (3, 2)
    assert mdp.terminal_state is None
    estimate = estimate_of(mdp)
    np.testing.assert_array_equal(estimate.counts, [[4, 1], [1, 0], [0, 0]])
    successors, probs = mdp.successors(0, 0)
    np.testing.assert_array_equal(successors, [0, 1, 2])
    np.testing.assert_array_equal(probs, [0.25, 0.5, 0.25])
    np.testing.assert_array_equal(mdp.successors(0, 1)[0], [2])
    np.testing.assert_array_equal(mdp.successors(1, 0)[0], [0])
    np.testing.assert_allclose(mdp.rewards[0], [0.5, -1.0], rtol=1e-15)
    assert mdp.rewards[1, 0] == 0.25
    assert (estimate.alpha, estimate.reward_range, estimate.support_bound) == (0.05, (-1.0, 2.0), 3)


def test_unvisited_pairs_are_admitted_to_be_unknown() -> None:
    mdp = small()
    estimate = estimate_of(mdp)
    for state, action in ((1, 1), (2, 0), (2, 1)):
        successors, probs = mdp.successors(state, action)
        assert successors.tolist() == [state]
        assert probs.tolist() == [1.0]
        assert mdp.rewards[state, action] == 0.5
        assert estimate.row_radius[state, action] == 1.0
        assert estimate.reward_radius[state, action] == pytest.approx(1.5, rel=1e-9)
        assert estimate.reward_radius[state, action] >= 1.5


def test_terminated_outcomes_lead_to_an_absorbing_state() -> None:
    mdp = small(terminated=[False, True, False, True, False, False])
    estimate = estimate_of(mdp)
    assert mdp.n_states == 4
    assert mdp.terminal_state == 3
    assert mdp.absorbing.tolist() == [False, False, False, True]
    assert mdp.state_ids.tolist() == [0, 1, 2, -1]
    successors, probs = mdp.successors(0, 0)
    assert successors.tolist() == [0, 1, 2, 3]
    assert probs.tolist() == [0.25] * 4
    assert mdp.successors(0, 1)[0].tolist() == [3]
    # It is our own state: known exactly, although nobody acted in it.
    assert estimate.counts[3].tolist() == [0, 0]
    assert estimate.row_radius[3].tolist() == [0.0, 0.0]
    assert estimate.reward_radius[3].tolist() == [0.0, 0.0]
    assert estimate.support_bound == 4


def test_no_end_was_seen_but_one_is_possible() -> None:
    mdp = small(terminated=np.zeros(6, bool))
    assert mdp.terminal_state == 3
    assert mdp.successors(0, 0)[0].tolist() == [0, 1, 2]


def test_no_data_at_all() -> None:
    mdp = estimate_mdp([], [], [], [], n_states=2, n_actions=3, reward_range=(0.0, 4.0))
    estimate = estimate_of(mdp)
    assert estimate.counts.tolist() == [[0] * 3] * 2
    assert (estimate.row_radius == 1.0).all()
    assert (mdp.rewards == 2.0).all()
    assert mdp.indices.tolist() == [0, 0, 0, 1, 1, 1]
    ended = estimate_mdp([], [], [], [], [], n_states=1, n_actions=1, reward_range=(0.0, 4.0))
    assert ended.n_states == 2
    assert estimate_of(ended).row_radius.tolist() == [[1.0], [0.0]]


def test_against_plain_loops() -> None:
    rng = np.random.default_rng(8)
    n, n_actions, size = 5, 3, 400
    s, a = rng.integers(n, size=size), rng.integers(n_actions, size=size)
    t, r, done = rng.integers(n, size=size), rng.random(size), rng.random(size) < 0.1
    mdp = estimate_mdp(s, a, r, t, done, n_states=n, n_actions=n_actions, reward_range=(0.0, 1.0))
    for state in range(n):
        for action in range(n_actions):
            picked = [i for i in range(size) if s[i] == state and a[i] == action]
            assert estimate_of(mdp).counts[state, action] == len(picked)
            reached = [n if done[i] else int(t[i]) for i in picked]
            successors, probs = mdp.successors(state, action)
            assert successors.tolist() == sorted(set(reached))
            for successor, prob in zip(successors.tolist(), probs.tolist(), strict=True):
                assert prob == reached.count(successor) / len(picked)
            mean = math.fsum(r[i] for i in picked) / len(picked)
            assert mdp.rewards[state, action] == pytest.approx(mean, rel=1e-14)


def test_order_of_the_data_does_not_matter() -> None:
    rng = np.random.default_rng(4)
    s, t = rng.integers(3, size=50), rng.integers(3, size=50)
    r = rng.integers(0, 5, size=50) / 4.0  # sums of quarters are exact
    a = np.zeros(50, int)
    options: dict[str, Any] = {"n_states": 3, "n_actions": 1, "reward_range": (0.0, 1.0)}
    order = rng.permutation(50)
    one = estimate_mdp(s, a, r, t, **options)
    two = estimate_mdp(s[order], a[order], r[order], t[order], **options)
    np.testing.assert_array_equal(one.probs, two.probs)
    np.testing.assert_allclose(one.rewards, two.rewards, rtol=1e-14)
    np.testing.assert_array_equal(estimate_of(one).row_radius, estimate_of(two).row_radius)


def test_start_and_metadata() -> None:
    mdp = small(start=[0.5, 0.5, 0.0], metadata={"env": "x"})
    assert mdp.start.tolist() == [0.5, 0.5, 0.0]
    assert mdp.metadata["env"] == "x"
    ended = small(start=[0.5, 0.5, 0.0], terminated=[False] * 6)
    assert ended.start.tolist() == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("terminated", [None, [False] * 6], ids=["endless", "with an end"])
@pytest.mark.parametrize(
    "start",
    [[0.5, 0.5], [0.5, 0.25, 0.0], [[0.5], [0.5], [0.0]], ["x", "y", "z"]],
    ids=["short", "not one", "column", "text"],
)
def test_bad_starts(start: Any, terminated: Any) -> None:
    with pytest.raises(InvalidMDPError, match="start"):
        small(start=start, terminated=terminated)


# -- from recorded transitions -----------------------------------------------------------------


def recorded(**changes: Any) -> Transitions:
    """The same steps as in `small`, as one object."""
    data: dict[str, Any] = {
        "states": [0, 0, 0, 0, 1, 0],
        "actions": [0, 0, 0, 1, 0, 0],
        "rewards": [1.0, 0.0, 0.5, -1.0, 0.25, 0.5],
        "next_states": [1, 1, 0, 2, 0, 2],
        "terminated": [False] * 6,
        "n_states": 3,
        "n_actions": 2,
    }
    return Transitions(**(data | changes))


def test_transitions_come_alone() -> None:
    options: dict[str, Any] = {"reward_range": (-1.0, 2.0), "start": [0.5, 0.5, 0.0], "alpha": 0.1}
    endless = estimate_mdp(recorded(), never_ends=True, **options)
    assert endless == small(**options)
    assert endless.terminal_state is None
    assert TabularMDP.from_transitions(recorded(), never_ends=True, **options) == endless
    for ended in ([False, False, False, True, False, False], [False] * 6):
        found = estimate_mdp(recorded(terminated=ended), **options)
        assert found == small(terminated=ended, **options)
        assert found.terminal_state == 3
    with pytest.raises(InvalidArgumentError, match="never_ends is True, but an episode ended"):
        estimate_mdp(recorded(terminated=[True] + [False] * 5), never_ends=True, **options)


def test_an_end_that_nobody_saw_may_come_all_the_same() -> None:
    """One step that did not end says little of the next: the truth may be worth 1.82, not 10."""
    steps = recorded(
        states=[0],
        actions=[0],
        rewards=[1.0],
        next_states=[0],
        terminated=[False],
        n_states=1,
        n_actions=1,
    )
    mdp = estimate_mdp(steps, reward_range=(1.0, 1.0))
    assert mdp.terminal_state == 1
    assert estimate_of(mdp).row_radius[0, 0] > 0.9
    assert prove_value(mdp, [0, 1], 0.9).policy_lower[0] < 1.82


def test_an_end_that_is_one_of_the_states_stays_where_it_is() -> None:
    ended = [False, False, True, False, True, False]
    steps = recorded(
        states=[0, 0, 0, 2, 2, 0],
        next_states=[2, 2, 1, 0, 1, 2],
        terminated=ended,
        terminal_state=1,
    )
    found = estimate_mdp(steps, reward_range=(-1.0, 2.0))
    assert (found.n_states, found.terminal_state) == (3, 1)
    known = estimate_of(found)
    assert not known.reward_radius[1].any()
    assert not known.row_radius[1].any()
    assert (known.row_radius[[0, 2]] > 0.0).all()
    # The same with the end after the others: nothing changes but the numbers of states.
    last = recorded(
        states=[0, 0, 0, 1, 1, 0],
        next_states=[1, 1, 1, 0, 0, 1],
        terminated=ended,
        n_states=2,
    )
    other = estimate_mdp(last, reward_range=(-1.0, 2.0))
    order = [0, 2, 1]
    np.testing.assert_array_equal(found.rewards, other.rewards[order])
    np.testing.assert_array_equal(known.row_radius, estimate_of(other).row_radius[order])
    np.testing.assert_array_equal(known.reward_radius, estimate_of(other).reward_radius[order])
    np.testing.assert_array_equal(found.start, other.start[order])
    for state, action in np.ndindex(3, 2):
        after, probs = other.successors(order[state], action)
        mine, chances = found.successors(state, action)
        truth = sorted(zip(np.array(order)[after].tolist(), probs.tolist(), strict=True))
        assert list(zip(mine.tolist(), chances.tolist(), strict=True)) == truth


def test_states_are_those_of_encoders_and_models() -> None:
    """A table of an encoder, a model and its estimate number their states alike."""
    mdp = countdown(0.5).mdp  # whose end is state 0
    steps = sample_transitions(mdp, 400, seed=0)
    found = estimate_mdp(steps, reward_range=(0.0, 1.0))
    assert (found.n_states, found.terminal_state) == (mdp.n_states, mdp.terminal_state)
    np.testing.assert_array_equal(found.kernel().toarray(), mdp.kernel().toarray())
    np.testing.assert_allclose(found.rewards, mdp.rewards)
    lake = collect_transitions("FrozenLake-v1", 400)
    assert estimate_mdp(lake, reward_range=(0.0, 1.0)).n_states == 17


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((recorded(), [0]), {}, "actions must be left out"),
        ((recorded(),), {"n_states": 3}, "n_states must be left out"),
        (([0],), {}, "actions and rewards and next_states and n_states and n_actions must be"),
        (([0], [0], [0.0], [0]), {"n_actions": 1}, "n_states must be given"),
        (
            (recorded(states=np.zeros((6, 2)), next_states=np.zeros((6, 2)), n_states=None),),
            {},
            "vectors",
        ),
    ],
)
def test_half_of_both_ways_is_refused(arguments: Any, options: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        estimate_mdp(*arguments, **options, reward_range=(-1.0, 2.0))


def test_from_transitions_is_the_same() -> None:
    options: dict[str, Any] = {"n_states": 2, "n_actions": 1, "reward_range": (0, 1)}
    data = ([0, 0, 1], [0, 0, 0], [1, 0, 0], [1, 0, 1], [False, False, True])
    one, two = estimate_mdp(*data, **options), TabularMDP.from_transitions(*data, **options)
    assert one == two
    assert estimate_of(two).counts.tolist() == [[2], [1], [0]]


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"states": [0, 0, 3, 0, 1, 0]}, ["states", "[0, 3)", "got 3", "position 2"]),
        ({"states": [0, 0, 0, 0, -1, 0]}, ["states", "got -1", "position 4"]),
        ({"actions": [0, 2, 0, 0, 0, 0]}, ["actions", "[0, 2)", "got 2", "position 1"]),
        ({"next_states": [0, 0, 0, 0, 0, 7]}, ["next_states", "got 7", "position 5"]),
        ({"states": [0.0, 0.5, 0, 0, 0, 0]}, ["states", "whole numbers", "float64"]),
        ({"rewards": [0, 0, 0, 2.5, 0, 0]}, ["rewards", "[-1.0, 2.0]", "2.5", "position 3"]),
        ({"rewards": [-1.5, 0, 0, 0, 0, 0]}, ["rewards", "-1.5", "position 0"]),
        ({"rewards": [0, 0, float("nan"), 0, 0, 0]}, ["rewards", "nan", "position 2"]),
        ({"rewards": [0, float("inf"), 0, 0, 0, 0]}, ["rewards", "inf", "position 1"]),
        ({"rewards": [0, 0, 0]}, ["one length", "'rewards': (3,)", "'states': (6,)"]),
        ({"terminated": [True]}, ["one length", "'terminated': (1,)"]),
        ({"states": 0, "actions": 0, "rewards": 0, "next_states": 0}, ["one length"]),
        ({"rewards": ["a"] * 6}, ["rewards"]),
        ({"states": [[0], [0, 1]]}, ["states"]),
        ({"alpha": 0.0}, ["alpha", "0.0"]),
        ({"alpha": 1.0}, ["alpha", "1.0"]),
        ({"alpha": float("nan")}, ["alpha", "nan"]),
        ({"alpha": "x"}, ["alpha", "'x'"]),
        ({"reward_range": (1.0, 0.0)}, ["reward_range", "(1.0, 0.0)"]),
        ({"reward_range": (0.0, float("inf"))}, ["reward_range[1]", "inf"]),
        ({"reward_range": 3.0}, ["reward_range", "pair"]),
        ({"reward_range": (0, 1, 2)}, ["reward_range", "pair"]),
        ({"reward_range": (-1.7e308, 1.7e308)}, []),
        ({"n_states": 0}, ["n_states", "0"]),
        ({"n_actions": 0}, ["n_actions", "0"]),
        ({"n_states": 2.5}, ["n_states", "2.5"]),
        ({"support_bound": 0}, ["support_bound", "0"]),
        ({"support_bound": 1.5}, ["support_bound", "1.5"]),
        ({"metadata": {"x": {1}}}, ["metadata"]),
    ],
    ids=lambda value: (
        ",".join(f"{k}={v}" for k, v in value.items())[:40] if isinstance(value, dict) else ""
    ),
)
def test_refusals_name_argument_value_and_position(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        small(**changes)
    for word in words:
        assert word in str(caught.value)


def test_data_that_refute_the_support_bound() -> None:
    """Three successors of (0, 0) were seen: a bound of two is as false as a reward outside."""
    assert small(support_bound=3).max_support == 3
    with pytest.raises(InvalidArgumentError, match="support_bound"):
        small(support_bound=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"counts": np.array([[-1]])}, ["counts"]),
        ({"counts": np.array([1])}, ["counts"]),
        ({"reward_radius": np.array([[-0.1]])}, ["reward_radius"]),
        ({"row_radius": np.array([[np.nan]])}, ["row_radius"]),
        ({"row_radius": np.array([[0.1, 0.1]])}, ["row_radius", "(1, 1)"]),
        ({"alpha": 1.5}, ["alpha"]),
        ({"reward_range": (2, 1)}, ["reward_range"]),
        ({"support_bound": 0}, ["support_bound"]),
    ],
    ids=str,
)
def test_impossible_estimates(changes: dict[str, Any], words: list[str]) -> None:
    fields: dict[str, Any] = {
        "counts": np.array([[3]]),
        "reward_radius": np.array([[0.1]]),
        "row_radius": np.array([[0.2]]),
        "alpha": 0.1,
        "reward_range": (0, 1),
        "support_bound": 2,
    }
    assert Estimate(**fields).reward_range == (0.0, 1.0)
    with pytest.raises(BisimError) as caught:
        Estimate(**(fields | changes))
    for word in words:
        assert word in str(caught.value)


def test_estimates_do_not_change() -> None:
    counts, radius = np.array([[3]]), np.array([[0.5]])
    estimate = Estimate(
        counts=counts,
        reward_radius=radius,
        row_radius=radius,
        alpha=0.1,
        reward_range=(0, 1),
        support_bound=2,
    )
    counts[0, 0], radius[0, 0] = 9, 0.9
    assert estimate.counts.tolist() == [[3]]
    assert estimate.reward_radius.tolist() == estimate.row_radius.tolist() == [[0.5]]
    for array in estimate.arrays():
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate.alpha = 0.5  # type: ignore[misc]


# -- radii, by exact probabilities -----------------------------------------------------------------


def visits(
    outcomes: npt.NDArray[np.int64], rewards: npt.NDArray[np.float64], **options: Any
) -> TabularMDP:
    """One state per row of `outcomes`, all visited equally often, with these rewards."""
    n, times = outcomes.shape
    states = np.repeat(np.arange(n), times)
    return estimate_mdp(
        states,
        np.zeros(n * times, int),
        rewards.ravel(),
        outcomes.ravel(),
        **({"n_states": max(n, 3), "n_actions": 1, "reward_range": (0.0, 1.0)} | options),
    )


def radii_of(counts: npt.NDArray[np.int64], delta: float, outcomes: int) -> Any:
    """The radius of each line of counts, whose zeros were not seen."""
    rows, at = np.nonzero(counts)
    return row_radii(counts[rows, at], rows, counts.sum(axis=1), delta, outcomes)


@pytest.mark.parametrize("chance", [0.5, 0.2, 0.03, 0.001])
def test_row_radii_hold_for_all_numbers_of_visits_at_once(chance: float) -> None:
    """The exact probability that a coin ever leaves its radius within 200 visits: at most delta.

    Who stops when it looks worst is told apart from who stops at a fixed number.
    """
    delta, most = 0.05, 200
    fails = dict.fromkeys((1.0, 0.5), 0.0)
    left = {scale: np.array([1.0]) for scale in fails}  # by hits, of those that never failed
    for n in range(1, most + 1):
        hits = np.arange(n + 1)
        radius = radii_of(np.stack([hits, n - hits], axis=1), delta, 2)
        for scale, alive in left.items():
            mass = np.append(alive * (1.0 - chance), 0.0) + np.append(0.0, alive * chance)
            is_out = np.abs(hits / n - chance) > scale * radius
            fails[scale] += float(mass[is_out].sum())
            left[scale] = np.where(is_out, 0.0, mass)
    for scale, alive in left.items():
        assert alive.sum() + fails[scale] == pytest.approx(1.0, rel=1e-9)
    assert fails[1.0] <= delta
    # Radii of half the size do not hold, wherever there is something to be seen.
    if chance >= 0.03:
        assert fails[0.5] > delta


@pytest.mark.parametrize("times", [12, 40])
@pytest.mark.parametrize("chances", [(1 / 3, 1 / 3, 1 / 3), (0.1, 0.45, 0.45), (0.05, 0.05, 0.9)])
def test_row_radii_against_exact_multinomial_tails(
    times: int, chances: tuple[float, float, float]
) -> None:
    first, second = np.meshgrid(np.arange(times + 1), np.arange(times + 1))
    kept = first + second <= times
    hits = np.stack([first[kept], second[kept], times - first[kept] - second[kept]], axis=1)
    variation = np.abs(hits / times - np.array(chances)).sum(axis=1) / 2.0
    mass = np.asarray(multinomial.pmf(hits, times, chances))
    assert mass.sum() == pytest.approx(1.0, rel=1e-9)
    for delta in (0.2, 0.001):
        radius = radii_of(hits, delta, 3)
        assert mass[variation > radius].sum() <= delta
        if chances[0] == 1 / 3:
            assert mass[variation > 0.4 * radius].sum() > delta
    # An outcome that cannot occur changes nothing but the price.
    assert (radii_of(hits, 0.05, 30) > radii_of(hits, 0.05, 3)).all()


def set_by_set(counts: list[int], delta: float, outcomes: int) -> float:
    """The same, straight from the definition: every set of what was seen, by its own bisection."""
    n, most = sum(counts), 0.0
    for m in range(1, min(len(counts), outcomes - 1) + 1):
        sets = math.comb(outcomes, m) * (outcomes - 1)
        limit = math.log(sets / delta) + math.log(2.0 * math.sqrt(n))
        for chosen in combinations(counts, m):
            q, low, high = sum(chosen) / n, 0.0, sum(chosen) / n
            for _ in range(80):
                p = (low + high) / 2.0
                away = math.inf if p == 0.0 else q * math.log(q / p)
                away += (1.0 - q) * math.log((1.0 - q) / (1.0 - p)) if q < 1.0 else 0.0
                low, high = (p, high) if n * away > limit else (low, p)
            most = max(most, q - high)
    return min(most, 1.0)


@pytest.mark.parametrize("is_many", [False, True])
def test_row_radii_are_the_worst_over_sets(is_many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set by set where there are few, and not below that where there are many."""
    if is_many:
        monkeypatch.setattr(estimation, "MOST_SEEN", 0)
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(60):
        seen = int(rng.integers(1, 6))
        outcomes = max(2, seen + int(rng.integers(0, 8)))
        weights = rng.dirichlet(np.full(seen, rng.choice([0.1, 1.0, 10.0])))
        counts = rng.multinomial(int(10.0 ** rng.uniform(1.0, 5.0)), weights)[None, :]
        found = float(radii_of(counts, 1e-4, outcomes)[0])
        truth = set_by_set(counts[counts > 0].tolist(), 1e-4, outcomes)
        assert found >= truth - 1e-12
        ratios.append(found / truth if truth else 1.0)
    assert np.median(ratios) < (1.5 if is_many else 1.0 + 1e-6)
    assert is_many or max(ratios) < 1.0 + 1e-6


def test_row_radii_beat_one_price_for_all_outcomes() -> None:
    """1,000 visits of 5 out of 500 outcomes; the best radius for all at once is 0.43 (Weissman)."""
    counts, delta = np.full((1, 5), 200), 0.05 / 4_000
    weissman = math.sqrt((500 * math.log(2.0) - math.log(delta / (1_000 * 1_001))) / 2_000)
    assert weissman == pytest.approx(0.43, abs=0.01)
    assert radii_of(counts, delta, 500)[0] < 0.15
    assert radii_of(counts, delta, 25)[0] < 0.12
    assert radii_of(np.array([[1_000]]), delta, 500)[0] < 0.03  # what never varies is nearly known


# -- rows summed by blocks -----------------------------------------------------------------------


def rooms(n: int, seed: int, **options: Any) -> tuple[TabularMDP, npt.NDArray[np.float64]]:
    """Samples of 12 states in two halves, each of which leads anywhere in the other; its truth."""
    rng = np.random.default_rng(seed)
    truth = np.zeros((12, 12))
    truth[:6, 6:], truth[6:, :6] = 0.9 / 6, 0.9 / 6
    truth[:6, :6], truth[6:, 6:] = 0.1 / 6, 0.1 / 6
    s = rng.integers(0, 12, n)
    t = (rng.random((n, 1)) > np.cumsum(truth[s], axis=1)).sum(axis=1).clip(max=11)
    paid = (s >= 6).astype(float)
    given: dict[str, Any] = {"n_states": 12, "n_actions": 1, "reward_range": (0.0, 1.0)}
    return estimate_mdp(s, np.zeros(n, int), paid, t, **(given | options)), truth


HALVES = np.repeat([3, 7], 6)


def test_rows_summed_by_blocks_have_radii_of_their_own() -> None:
    mdp, truth = rooms(20_000, 0, blocks=HALVES)
    estimate = estimate_of(mdp)
    plain = estimate_of(rooms(20_000, 0)[0])
    assert estimate.blocks is not None
    assert estimate.block_radius is not None
    assert (estimate.block_radius < 0.6 * estimate.row_radius).all()
    # Both prices are paid: the rows' own radius is a little larger for it, and not more.
    assert (estimate.row_radius > plain.row_radius).all()
    assert (estimate.row_radius < 1.02 * plain.row_radius).all()
    lift = (estimate.blocks[:, None] == np.unique(estimate.blocks)).astype(float)
    away = np.abs(mdp.kernel().toarray() @ lift - truth @ lift).sum(axis=1) / 2.0
    assert (away <= estimate.block_radius[:, 0]).all()
    assert estimate.radius_of(HALVES) is estimate.block_radius
    assert estimate.radius_of(np.zeros(12)) is estimate.block_radius
    assert estimate.radius_of(np.arange(12)) is estimate.row_radius
    assert plain.radius_of(HALVES) is plain.row_radius


def test_blocks_travel_with_their_estimate(tmp_path: Path) -> None:
    mdp, _ = rooms(300, 0, blocks=HALVES)
    mdp.save(tmp_path / "mdp.npz")
    again = TabularMDP.load(tmp_path / "mdp.npz")
    assert again == mdp
    assert again.fingerprint == mdp.fingerprint
    bare = dataclasses.replace(
        mdp, estimate=dataclasses.replace(estimate_of(mdp), blocks=None, block_radius=None)
    )
    assert bare.fingerprint != mdp.fingerprint
    part = estimate_of(mdp).restrict(np.array([0, 7]))
    assert part.blocks is not None
    assert part.blocks.tolist() == [0, 1]
    copied = pickle.loads(pickle.dumps(estimate_of(again)))
    np.testing.assert_array_equal(copied.block_radius, estimate_of(mdp).block_radius)
    ended = visits(np.zeros((1, 5), int), np.zeros((1, 5)), blocks=[0, 0, 4], terminated=[0] * 5)
    known = estimate_of(ended)
    assert known.blocks is not None
    assert known.block_radius is not None
    assert known.blocks.tolist() == [0, 0, 1, 2]  # the end is a block of its own
    assert known.block_radius[3, 0] == 0.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blocks": None}, "belong together"),
        ({"block_radius": None}, "belong together"),
        ({"blocks": np.zeros(3, int)}, "must have shape"),
        ({"block_radius": np.full((12, 1), 0.999)}, "no farther apart than rows"),
        ({"block_radius": np.full((12, 1), -0.1)}, "no farther apart than rows"),
    ],
)
def test_blocks_of_estimates_are_checked(changes: dict[str, Any], words: str) -> None:
    estimate = estimate_of(rooms(20_000, 0, blocks=HALVES)[0])
    with pytest.raises(BisimError, match=words):
        dataclasses.replace(estimate, **changes)


def test_rewards_that_never_vary_are_known_after_one_visit() -> None:
    data: tuple[Any, ...] = ([0, 0, 1], [0, 0, 0], [0.1, 0.1, 0.7], [1, 0, 1])
    given: dict[str, Any] = {"n_states": 3, "n_actions": 1, "reward_range": (0.0, 1.0)}
    mdp = estimate_mdp(*data, **given, deterministic_rewards=True)
    assert mdp.rewards.ravel().tolist() == [0.1, 0.7, 0.5]
    assert estimate_of(mdp).reward_radius.ravel()[:2].tolist() == [0.0, 0.0]
    assert estimate_of(mdp).reward_radius[2, 0] >= 0.5
    with pytest.raises(InvalidArgumentError, match="state 0, action 0 paid"):
        estimate_mdp([0, 0], [0, 0], [0.1, 0.2], [0, 0], **given, deterministic_rewards=True)


@pytest.mark.parametrize("times", [5, 40, 250, 1000])
@pytest.mark.parametrize("chance", [0.5, 0.1, 0.01, 0.001])
def test_reward_radius_against_exact_binomial_tails(times: int, chance: float) -> None:
    """The radius depends on the data, so every number of ones is tried as a state of its own."""
    alpha = 0.2
    ones = np.arange(times + 1)
    rewards = (np.arange(times)[None, :] < ones[:, None]).astype(np.float64)
    mdp = visits(np.zeros((times + 1, times), np.int64), rewards, alpha=alpha)
    n_rows = mdp.n_states
    radius, mean = estimate_of(mdp).reward_radius[: times + 1, 0], mdp.rewards[: times + 1, 0]
    np.testing.assert_allclose(mean, ones / times, rtol=1e-12, atol=1e-15)
    allowed = alpha / n_rows / 2 / (times * (times + 1))
    mass = binom.pmf(ones, times, chance)
    assert mass[np.abs(mean - chance) > radius].sum() <= allowed
    if chance == 0.5 and times >= 250:
        assert mass[np.abs(mean - chance) > 0.7 * radius].sum() > allowed


@pytest.mark.parametrize("times", [2, 10, 300])
@pytest.mark.parametrize("width", [1.0, 6.0])
def test_radii_are_those_of_the_inequalities(times: int, width: float) -> None:
    """Closed forms, with nothing to spare; 3 states, 1 action, so delta = alpha/3 for each row.

    N visits have the share 1/(N(N + 1)) of delta, rows and rewards a half of that, and each of
    the two bounds on rewards a half again.

    Hoeffding:  2·exp(-2·N·e²/w²) = share/4.
    Bernstein (Maurer and Pontil 2009, theorem 4, for either side):
                e = sqrt(2·V·ln(2/δ')/N) + 7·w·ln(2/δ')/(3(N - 1)) with δ' = share/4/2.
    Rows:       all in one of k = 2 outcomes, so N·kl(1, 1 - e) = -N·log(1 - e), which may be
                log(2·2/δ') + log(2·sqrt(N)) with δ' = alpha/3 and no share for N.
    """
    alpha = 0.2
    share = alpha / 3 / (times * (times + 1))
    # Half of the rewards at either end: Hoeffding is the smaller one.
    rewards = width * (np.arange(times) % 2)[None, :].astype(np.float64)
    options: dict[str, Any] = {"alpha": alpha, "support_bound": 2, "reward_range": (0.0, width)}
    far = estimate_of(visits(np.zeros((1, times), np.int64), rewards, **options))
    hoeffding = min(width * math.sqrt(math.log(2.0 * 4.0 / share) / (2.0 * times)), width)
    assert far.reward_radius[0, 0] == pytest.approx(hoeffding, rel=1e-9)
    row = 1.0 - math.exp(-math.log(4.0 / (alpha / 3) * 2.0 * math.sqrt(times)) / times)
    assert far.row_radius[0, 0] == pytest.approx(row, rel=1e-8)
    # One reward that differs: Bernstein is the smaller one, given enough of them.
    rewards[:] = 0.25 * width
    rewards[0, 0] = 0.75 * width
    near = estimate_of(visits(np.zeros((1, times), np.int64), rewards, **options))
    variance = float(np.var(rewards, ddof=1))
    logs = math.log(2.0 * 2.0 * 4.0 / share)
    bernstein = math.sqrt(2.0 * variance * logs / times) + 7.0 * width * logs / (3.0 * (times - 1))
    assert (bernstein < hoeffding) == (times == 300)
    assert near.reward_radius[0, 0] == pytest.approx(min(bernstein, hoeffding), rel=1e-9)


def test_the_error_probability_is_shared_by_all_pairs() -> None:
    """More states and actions, or a smaller alpha: larger radii at the same data."""

    def radii(**options: Any) -> tuple[float, float]:
        outcomes, rewards = np.zeros((1, 500), np.int64), np.tile([[0.0, 1.0]], 250)
        estimate = estimate_of(visits(outcomes, rewards, support_bound=2, **options))
        return float(estimate.row_radius[0, 0]), float(estimate.reward_radius[0, 0])

    base = radii()
    for options in ({"n_states": 300}, {"n_actions": 50}, {"alpha": 0.0005}):
        assert all(more > 1.05 * less for more, less in zip(radii(**options), base, strict=True))


# -- radii, sizes --------------------------------------------------------------------------------


def radii_by_visits(counts: list[int], **options: Any) -> tuple[list[float], list[float]]:
    row, reward = [], []
    for times in counts:
        rewards = np.resize([0.0, 1.0], (1, times))
        estimate = estimate_of(visits(np.zeros((1, times), np.int64), rewards, **options))
        row.append(float(estimate.row_radius[0, 0]))
        reward.append(float(estimate.reward_radius[0, 0]))
    return row, reward


def test_radii_cover_the_rounding_of_frequencies_after_any_number_of_visits() -> None:
    """A tenth is no float: what it is off by does not become smaller with visits."""
    stored, exact = [Fraction(0.1), Fraction(0.9)], [Fraction(1, 10), Fraction(9, 10)]
    off = max(abs(s / sum(stored) - x) for s, x in zip(stored, exact, strict=True))
    assert off > 0
    for visits in (10**9, 10**15, 10**17):
        times, n = np.array([visits // 10, visits // 10 * 9]), np.array([float(visits)])
        radius = row_radii(times, np.zeros(2, np.int64), np.array([visits]), 0.05, 2)[0]
        level = estimation._levels(np.ones(1), n, 0.05, 2)
        away = max(
            float((q - estimation._least_chance(q, level))[0])
            for q in (np.array([0.1]), np.array([0.9]))
        )
        assert Fraction(float(radius)) >= Fraction(away) + off
        assert float(radius) <= away * (1.0 + 1e-9) + 16.0 * 2.0**-53


def test_ranges_too_wide_for_radii_are_refused() -> None:
    for wide in (1e307, 1.7e308):
        with pytest.raises(InvalidArgumentError, match=r"too much for radii .* rescale"):
            estimate_mdp(
                [0], [0], [0.0], [0], n_states=1, n_actions=1, reward_range=(-wide / 2, wide / 2)
            )


def test_radii_shrink_with_visits() -> None:
    counts = [1, 2, 4, 10, 40, 100, 400, 1000, 4000, 10_000, 40_000]
    rows, rewards = radii_by_visits(counts, support_bound=3)
    for radii in (rows, rewards):
        assert all(after <= before * (1.0 + 1e-12) for before, after in pairwise(radii))
        assert radii[0] > 0.99
    # Four times the visits: about half the radius, a logarithm aside; a quarter, where nothing
    # was seen to vary.
    assert 0.5 < rewards[-1] / rewards[-2] < 0.6
    assert 0.25 < rows[-1] / rows[-2] < 0.3


def test_radii_are_not_absurdly_loose() -> None:
    row, reward = radii_by_visits([10_000], support_bound=3)
    assert 0.0005 < row[0] < 0.002
    assert 0.01 < reward[0] < 0.05
    quiet = visits(np.zeros((1, 10_000), np.int64), np.full((1, 10_000), 0.3))
    assert estimate_of(quiet).reward_radius[0, 0] < 0.01  # little variance is noticed


def test_the_support_bound_pays() -> None:
    one, two, three, many = (
        radii_by_visits([2000], support_bound=bound, n_states=100)[0][0] for bound in (1, 2, 3, 100)
    )
    default = radii_by_visits([2000], n_states=100)[0][0]
    assert one == 0.0  # one visit shows the only successor
    assert 0.0 < two < three < many == default
    unseen = visits(np.zeros((1, 5), np.int64), np.zeros((1, 5)), support_bound=1)
    assert estimate_of(unseen).row_radius.tolist() == [[0.0], [1.0], [1.0]]
    rewards = [radii_by_visits([2000], support_bound=k, n_states=100)[1][0] for k in (1, 100)]
    assert rewards[0] == rewards[1]


def test_radii_scale_with_the_reward_range() -> None:
    rng = np.random.default_rng(2)
    rewards = rng.random((2, 300))
    outcomes = np.zeros((2, 300), np.int64)
    one = visits(outcomes, rewards)
    ten = visits(outcomes, 10.0 * rewards - 3.0, reward_range=(-3.0, 7.0))
    np.testing.assert_allclose(
        estimate_of(ten).reward_radius, 10.0 * estimate_of(one).reward_radius, rtol=1e-9
    )
    np.testing.assert_array_equal(estimate_of(ten).row_radius, estimate_of(one).row_radius)
    point = visits(outcomes, np.full((2, 300), 0.7), reward_range=(0.7, 0.7))
    assert point.rewards.tolist() == [[0.7], [0.7], [0.7]]
    assert estimate_of(point).reward_radius.tolist() == [[0.0], [0.0], [0.0]]


RANGES = [
    (0.0, 1.0),
    (0.1, 0.3),
    (-1.0, 2.0),
    (1e3, 1e3 + 1e-3),
    (1e6, 1e6 + 1e-5),
    (-1e6 - 1e-5, -1e6),
    (1e15, 1e15 + 1.0),
    (2.0**53, 2.0**53 + 2.0),
]


@pytest.mark.parametrize("bounds", RANGES, ids=str)
def test_little_data_never_exclude_part_of_the_reward_range(bounds: tuple[float, float]) -> None:
    """In exact arithmetic: no visit, and one visit at either end."""
    mdp = estimate_mdp(
        [1, 2], [0, 0], [*bounds], [0, 0], n_states=3, n_actions=1, reward_range=bounds
    )
    for state in range(3):
        centre = Fraction(float(mdp.rewards[state, 0]))
        radius = Fraction(float(estimate_of(mdp).reward_radius[state, 0]))
        for end in bounds:
            assert abs(Fraction(end) - centre) <= radius, (state, end)


# -- radii, by simulation ------------------------------------------------------------------------

# Three states, two actions; (successor, chance), one successor 3 standing for the end.
WORLD: dict[tuple[int, int], tuple[list[int], list[float], float]] = {
    (0, 0): ([0, 1, 2], [0.2, 0.5, 0.3], 0.5),
    (0, 1): ([1, 3], [0.7, 0.3], 0.1),
    (1, 0): ([2, 0], [0.5, 0.5], 0.9),
    (1, 1): ([0], [1.0], 0.5),
    (2, 0): ([0, 1, 3], [0.4, 0.3, 0.3], 0.3),
    (2, 1): ([2, 0], [0.9, 0.1], 0.02),
}
ALPHA = 0.2
DRAWS = 300


def play(seed: int, steps: int) -> tuple[list[int], list[int], list[float], list[int], list[bool]]:
    """Follow the action that paid best so far, and stop where some mean looks most wrong."""
    rng = np.random.default_rng(seed)
    uniform = rng.random((steps, 3)).tolist()
    visited = dict.fromkeys(WORLD, 0)
    paid = dict.fromkeys(WORLD, 0.0)
    states, actions, rewards, following, ended = [], [], [], [], []
    state = 0
    patience = 3.0  # standard deviations; reached in many runs, but not at once
    for explore, outcome, coin in uniform:
        scores = [(paid[state, a] + 1.0) / (visited[state, a] + 1.0) for a in (0, 1)]
        action = int(scores[1] > scores[0]) if explore < 0.7 else int(explore < 0.85)
        pair = (state, action)
        successors, chances, mean = WORLD[pair]
        index = 0
        while index < len(chances) - 1 and outcome >= chances[index]:
            outcome -= chances[index]
            index += 1
        reward = float(coin < mean)
        visited[pair] += 1
        paid[pair] += reward
        done = successors[index] == 3
        states.append(state)
        actions.append(action)
        rewards.append(reward)
        following.append(0 if done else successors[index])
        ended.append(done)
        state = following[-1]
        count = visited[pair]
        deviation = abs(paid[pair] - count * mean) / math.sqrt(count * mean * (1.0 - mean))
        if count >= 8 and deviation > patience:
            break
    return states, actions, rewards, following, ended


def holds(mdp: TabularMDP, scale: float) -> bool:
    """Whether all radii, multiplied by `scale`, contain the world's rows and rewards."""
    estimate = estimate_of(mdp)
    for (state, action), (successors, chances, mean) in WORLD.items():
        truth = np.zeros(4)
        truth[successors] = chances
        guess = np.zeros(4)
        indices, probs = mdp.successors(state, action)
        guess[indices] = probs
        variation = float(np.abs(truth - guess).sum()) / 2.0
        if variation > scale * estimate.row_radius[state, action] + 1e-12:
            return False
        error = abs(mean - mdp.rewards[state, action])
        if error > scale * estimate.reward_radius[state, action] + 1e-12:
            return False
    return True


@pytest.fixture(scope="module")
def models() -> list[TabularMDP]:
    return [
        estimate_mdp(
            *play(seed, 400),
            n_states=3,
            n_actions=2,
            reward_range=(0.0, 1.0),
            alpha=ALPHA,
            support_bound=3,
        )
        for seed in range(DRAWS)
    ]


def test_all_radii_hold_at_once_often_enough(models: list[TabularMDP]) -> None:
    held = sum(holds(mdp, 1.0) for mdp in models)
    assert held >= (1.0 - ALPHA) * DRAWS
    visited = [int(estimate_of(mdp).counts.sum()) for mdp in models]
    assert min(visited) < 200 < max(visited)  # the stopping rule does stop


def test_the_simulation_notices_radii_that_are_too_small(models: list[TabularMDP]) -> None:
    """Halved three times, and even once less, they no longer hold often enough."""
    for scale in (1 / 8, 1 / 4):
        assert sum(holds(mdp, scale) for mdp in models) < (1.0 - ALPHA) * DRAWS


# -- files, restriction ----------------------------------------------------------------------------


def test_estimates_survive_files(tmp_path: Path) -> None:
    mdp = small(terminated=[False, True, False, True, False, False], alpha=0.01)
    mdp.save(tmp_path / "mdp.npz")
    again = TabularMDP.load(tmp_path / "mdp.npz")
    assert again == mdp
    assert estimate_of(again).alpha == 0.01
    assert estimate_of(again).reward_range == (-1.0, 2.0)
    for ours, theirs in zip(estimate_of(mdp).arrays(), estimate_of(again).arrays(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_estimates_are_not_restricted() -> None:
    """What was never seen to leave a set of states may leave it, as far as radii allow."""
    mdp = estimate_mdp(
        [0, 1, 2, 2],
        [0, 0, 0, 0],
        [1.0, 0.5, 0.0, 1.0],
        [0, 2, 1, 2],
        n_states=4,
        n_actions=1,
        reward_range=(0.0, 1.0),
        alpha=0.3,
        support_bound=2,
    )
    assert mdp.restrict([0, 1, 2, 3]) == mdp
    with pytest.raises(InvalidArgumentError, match="an estimate cannot be restricted: rows may"):
        mdp.restrict([1, 2])
    chain = TabularMDP.from_dense(np.eye(3)[[1, 0, 2]][:, None, :], [0.0, 1.0, 2.0])
    part = chain.under_policy([0, 0, 0]).restrict([0, 1])  # rounding leads nowhere else
    assert part.n_states == 2


STEPS = {
    "state": [0, 0, 1],
    "action": [0, 1, 0],
    "reward": [0.0, 1.0, 0.5],
    "next_state": [1, 0, 1],
    "terminated": [False, False, True],
}


class Eager:
    """What a frame of Polars offers that is needed here."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return np.array(self._columns[name])


class Lazy:
    """One whose columns are not there before they are collected."""

    columns = tuple(STEPS)

    def collect(self) -> Eager:
        return Eager(STEPS)


@pytest.mark.parametrize("frame", [Eager(STEPS), Lazy()])
def test_frames_of_polars_are_steps(frame: Any) -> None:
    numbers: Any = {"n_states": 2, "n_actions": 2, "reward_range": (0.0, 1.0)}
    listed: Any = STEPS.values()
    assert estimate_mdp(frame, **numbers) == estimate_mdp(*listed, **numbers)


@pytest.mark.parametrize("ended", [[False, None, True], ["False", "False", "True"], [0, 1, 2]])
def test_ends_are_true_or_false(ended: list[Any]) -> None:
    frame: Any = Eager(STEPS | {"terminated": ended})
    with pytest.raises(InvalidArgumentError, match="terminated must hold True and False, got"):
        estimate_mdp(frame, n_states=2, n_actions=2, reward_range=(0.0, 1.0))


def test_frames_are_steps() -> None:
    pandas = pytest.importorskip("pandas")
    columns = STEPS
    numbers: Any = {"n_states": 2, "n_actions": 2, "reward_range": (0.0, 1.0)}
    frame = pandas.DataFrame({"episode": [0, 0, 0], **columns})
    mdp = estimate_mdp(frame, **numbers)
    assert mdp == estimate_mdp(*columns.values(), **numbers)  # type: ignore[arg-type]
    assert mdp.terminal_state == 2
    with pytest.raises(InvalidArgumentError, match="it lacks reward, terminated and has"):
        estimate_mdp(frame.drop(columns=["reward", "terminated"]), **numbers)
    with pytest.raises(InvalidArgumentError, match="actions must be left out: a frame has"):
        estimate_mdp(frame, [0, 0, 0], **numbers)
    with pytest.raises(InvalidArgumentError, match="n_states must be given"):
        estimate_mdp(frame, n_actions=2, reward_range=(0.0, 1.0))
