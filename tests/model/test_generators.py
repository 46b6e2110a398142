"""Generators: sizes, supports, reward spans, seeds, and groups that are what they claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import InvalidArgumentError, TabularMDP, bisimulation_classes
from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
from tests.support.examples import seeds

Maker = Callable[..., TabularMDP]


def grouped_only(n_states: int, n_actions: int = 3, **options: Any) -> TabularMDP:
    return grouped_mdp(n_states, min(4, n_states), n_actions, **options)[0]


MAKERS: dict[str, Maker] = {"random": random_mdp, "sparse": sparse_mdp, "grouped": grouped_only}


def group_masses(mdp: TabularMDP, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """(n_states, n_actions, n_groups) mass that each row puts on each group."""
    masses = np.zeros((mdp.n_states, mdp.n_actions, int(groups.max()) + 1))
    for state in range(mdp.n_states):
        for action in range(mdp.n_actions):
            successors, probs = mdp.successors(state, action)
            np.add.at(masses[state, action], groups[successors], probs)
    return masses


# -- what all have in common -------------------------------------------------------------------


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("sizes", [(10, 3), (18, 3), (7, 1), (33, 5)])
def test_sizes_and_validity(maker: Maker, sizes: tuple[int, int]) -> None:
    mdp = maker(*sizes, seed=1)
    assert (mdp.n_states, mdp.n_actions) == sizes
    np.testing.assert_allclose(mdp.kernel().sum(axis=1), 1.0, rtol=0.0, atol=1e-15)
    np.testing.assert_allclose(np.add.reduceat(mdp.probs, mdp.indptr[:-1]), 1.0, atol=1e-14)
    assert mdp.terminal_state is None
    assert mdp.estimate is None
    np.testing.assert_allclose(mdp.start, 1.0 / sizes[0], rtol=1e-15)
    assert mdp.metadata["generator"] in ("random_mdp", "sparse_mdp", "grouped_mdp")


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_seeds(maker: Maker) -> None:
    first = maker(9, seed=5)
    assert maker(9, seed=5) == first
    assert maker(9, seed=np.int64(5)) == first
    assert maker(9, seed=6) != first


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_generators_are_used_as_they_are(maker: Maker) -> None:
    rng = np.random.default_rng(5)
    first, second = maker(9, seed=rng), maker(9, seed=rng)
    assert first == maker(9, seed=5)
    assert second != first
    again = np.random.default_rng(5)
    maker(9, seed=again)
    assert maker(9, seed=again) == second


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_the_global_state_is_neither_read_nor_moved(maker: Maker) -> None:
    before = np.random.get_state(legacy=False)  # noqa: NPY002 - that is the point
    maker(9, seed=5)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    np.testing.assert_array_equal(before["state"]["key"], after["state"]["key"])
    assert before["state"]["pos"] == after["state"]["pos"]


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((0,), {}, "n_states"),
        ((-3,), {}, "n_states"),
        ((2.5,), {}, "n_states"),
        ((5, 0), {}, "n_actions"),
        ((5, "x"), {}, "n_actions"),
        ((5,), {"seed": -1}, "seed"),
        ((5,), {"seed": 1.5}, "seed"),
        ((5,), {"seed": "x"}, "seed"),
    ],
    ids=str,
)
def test_refusals(
    maker: Maker, arguments: tuple[Any, ...], options: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        maker(*arguments, **({"seed": 0} | options))


@pytest.mark.parametrize("maker", [random_mdp, sparse_mdp])
@seeds(8)
def test_rewards_span_exactly_zero_to_one(maker: Maker, seed: int) -> None:
    mdp = maker(11, 2, seed=seed)
    assert mdp.rewards.min() == 0.0
    assert mdp.rewards.max() == 1.0
    assert np.unique(mdp.rewards).size == 22


def test_one_state() -> None:
    assert random_mdp(1, 1, seed=0).rewards.tolist() == [[0.0]]
    assert sparse_mdp(1, 1, support=1, seed=0).nnz == 1
    mdp, groups = grouped_mdp(1, 1, 1, seed=0)
    assert mdp.n_states == 1
    assert groups.tolist() == [0]


# -- dense -------------------------------------------------------------------------------------


def test_dense_rows_are_full() -> None:
    mdp = random_mdp(12, 2, seed=0)
    assert mdp.nnz == 12 * 2 * 12
    assert mdp.max_support == 12


def test_dense_rows_are_uniform_on_the_simplex() -> None:
    """Then an entry has mean 1/n and exceeds x with probability (1 - x)^(n - 1)."""
    n = 40
    probs = random_mdp(n, 10, seed=3).probs
    assert probs.size == 16_000
    for x in (0.01, 0.025, 0.05, 0.1):
        chance = (1.0 - x) ** (n - 1)
        error = np.sqrt(chance * (1.0 - chance) / probs.size)
        assert abs((probs > x).mean() - chance) < 5.0 * error


# -- sparse ------------------------------------------------------------------------------------


@pytest.mark.parametrize("support", [1, 2, 3, 7, 19, 20])
def test_support_is_as_asked(support: int) -> None:
    mdp = sparse_mdp(20, 3, support=support, seed=support)
    np.testing.assert_array_equal(np.diff(mdp.indptr), support)
    assert mdp.max_support == support
    assert mdp.is_deterministic == (support == 1)
    assert mdp.metadata["support"] == support


@pytest.mark.parametrize(("n", "support"), [(1000, 4), (1000, 30), (17, 4), (16, 4)])
def test_support_is_as_asked_in_larger_models(n: int, support: int) -> None:
    mdp = sparse_mdp(n, 2, support=support, seed=0)
    np.testing.assert_array_equal(np.diff(mdp.indptr), support)


@pytest.mark.parametrize("n", [12, 200])
def test_successors_are_drawn_evenly(n: int) -> None:
    """Both ways of drawing: every state is a successor about equally often."""
    times = np.bincount(sparse_mdp(n, 4000 // n, support=3, seed=9).indices, minlength=n)
    expected = times.sum() / n
    assert expected > 50
    assert np.abs(times - expected).max() < 5.0 * np.sqrt(expected)


@pytest.mark.parametrize("support", [0, 6, -1, 2.5])
def test_impossible_supports(support: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="support"):
        sparse_mdp(5, support=support, seed=0)


def test_default_support_needs_enough_states() -> None:
    assert sparse_mdp(4, seed=0).max_support == 4
    with pytest.raises(InvalidArgumentError, match="support"):
        sparse_mdp(3, seed=0)


# -- groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "n_groups"), [(20, 5), (23, 5), (7, 7), (9, 1)])
def test_planted_labels(n: int, n_groups: int) -> None:
    mdp, groups = grouped_mdp(n, n_groups, seed=0)
    assert groups.shape == (n,)
    sizes = np.bincount(groups)
    assert sizes.size == n_groups
    assert sizes.max() - sizes.min() <= 1
    assert mdp.n_states == n
    assert mdp.metadata["n_groups"] == n_groups


@seeds(5)
@pytest.mark.parametrize(("n", "n_groups", "support"), [(40, 6, 4), (31, 5, 5), (24, 3, 1)])
def test_groups_without_noise_are_bisimilar(n: int, n_groups: int, support: int, seed: int) -> None:
    mdp, groups = grouped_mdp(n, n_groups, noise=0.0, support=support, seed=seed)
    classes = bisimulation_classes(mdp, digits=10)
    assert classes.n_classes <= n_groups
    for group in range(n_groups):  # planted labels refine the classes
        assert np.unique(classes.labels[groups == group]).size == 1
    assert classes.reward_gap == 0.0
    assert classes.variation <= 1e-12
    # Rewards are drawn per group, so that groups also differ from each other.
    assert classes.n_classes == n_groups


def test_without_noise_members_share_rewards_and_masses() -> None:
    mdp, groups = grouped_mdp(40, 6, noise=0.0, seed=2)
    masses = group_masses(mdp, groups)
    for group in range(6):
        mine = groups == group
        assert np.ptp(mdp.rewards[mine], axis=0).max() == 0.0
        assert np.ptp(masses[mine], axis=0).max() <= 1e-15
    # But not successors: members go to different states of the same groups.
    first, second = np.flatnonzero(groups == 0)[:2]
    rows = [
        [mdp.successors(int(state), a)[0].tolist() for a in range(3)] for state in (first, second)
    ]
    assert rows[0] != rows[1]


@pytest.mark.parametrize("noise", [0.01, 0.2])
def test_noise_within_groups(noise: float) -> None:
    mdp, groups = grouped_mdp(60, 5, noise=noise, seed=4)
    quiet, _ = grouped_mdp(60, 5, noise=0.0, seed=4)
    masses, base = group_masses(mdp, groups), group_masses(quiet, groups)
    np.testing.assert_array_equal(masses > 0.0, base > 0.0)
    raised = mdp.rewards - quiet.rewards
    assert raised.min() >= 0.0
    assert noise / 2.0 < raised.max() <= noise
    ratio = masses[base > 0.0] / base[base > 0.0]
    assert ratio.max() <= (1.0 + noise) / (1.0 - noise) + 1e-12
    assert ratio.min() >= (1.0 - noise) / (1.0 + noise) - 1e-12
    assert ratio.max() > 1.0 + noise / 4.0
    assert bisimulation_classes(mdp, digits=10).n_classes == 60
    assert mdp.metadata["noise"] == noise


def test_reach_of_a_group() -> None:
    for support, reach in ((1, 1), (3, 3), (6, 6), (50, 6)):
        mdp, groups = grouped_mdp(30, 6, support=support, seed=1)
        np.testing.assert_array_equal(np.diff(mdp.indptr), reach)
        assert ((group_masses(mdp, groups) > 0.0).sum(axis=2) == reach).all()


def test_matched_rewards_leave_one_group_apart() -> None:
    mdp, groups = grouped_mdp(40, 6, noise=0.0, matched_rewards=True, seed=3)
    rewards = [{tuple(row) for row in mdp.rewards[groups == group].tolist()} for group in range(6)]
    assert all(len(rows) == 1 for rows in rewards)
    kinds = [next(iter(rows)) for rows in rewards]
    counts = sorted(kinds.count(kind) for kind in set(kinds))
    assert counts == [1, 5]
    # Transitions still tell all of them apart, which takes more than one look ahead.
    assert bisimulation_classes(mdp, digits=10).n_classes == 6
    plain, _ = grouped_mdp(40, 6, noise=0.0, seed=3)
    assert len({tuple(row) for row in plain.rewards.tolist()}) == 6


def test_matched_rewards_of_one_and_two_groups() -> None:
    one, _ = grouped_mdp(5, 1, noise=0.0, matched_rewards=True, seed=0)
    assert bisimulation_classes(one, digits=10).n_classes == 1
    two, _ = grouped_mdp(6, 2, noise=0.0, matched_rewards=True, seed=0)
    assert bisimulation_classes(two, digits=10).n_classes == 2


@pytest.mark.parametrize(
    ("n_groups", "options", "word"),
    [
        (0, {}, "n_groups"),
        (7, {}, "n_groups"),
        (1.5, {}, "n_groups"),
        (2, {"support": 0}, "support"),
        (2, {"noise": -0.1}, "noise"),
        (2, {"noise": 1.0}, "noise"),
        (2, {"noise": float("nan")}, "noise"),
        (2, {"noise": "x"}, "noise"),
    ],
    ids=str,
)
def test_impossible_groups(n_groups: Any, options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        grouped_mdp(6, n_groups, seed=0, **options)
