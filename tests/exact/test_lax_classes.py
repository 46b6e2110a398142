"""Classes of states that are alike after renaming actions, and of states with different actions."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import gymnasium as gym
import minigrid  # noqa: F401
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    BisimulationClasses,
    InvalidArgumentError,
    Resources,
    TabularMDP,
    bisimulation_classes,
)
from bisim_abstract._exact.classes import _reward_keys
from bisim_abstract._kernels import refine
from bisim_abstract._model.renaming import check_renaming, own_names, used_names
from bisim_abstract._relations.apart import apart_distance, overall_span
from bisim_abstract.errors import BisimError
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import extract_mdp
from tests.support.oracles import (
    classes_exact,
    first_appearance,
    lifted_exact,
    own_actions,
    refines,
    variation_exact,
)
from tests.support.worlds import mirrored, scrambled, scrambled_mdps

EXACT = ("deterministic", "dyadic")  # rows whose sums are floats


def check_claims(mdp: TabularMDP, classes: BisimulationClasses) -> None:
    """Names, gaps and the quotient, against exact arithmetic."""
    labels = classes.labels.tolist()
    quotient = classes.quotient
    assert labels == first_appearance(labels)
    assert quotient.n_states == classes.n_classes == max(labels) + 1
    names = own_names(mdp) if classes.renaming is None else classes.renaming
    assert (classes.renaming is None) == (classes.relation == "plain" and not mdp.has_action_sets)
    if classes.renaming is not None:
        check_renaming(classes.renaming, classes.labels, classes.n_classes, mdp.available)
        assert not classes.renaming.flags.writeable
    used = used_names(names)
    identity = list(range(classes.n_classes))
    for c, r in enumerate(classes.representatives.tolist()):
        assert labels[r] == c
        np.testing.assert_array_equal(quotient.available[c], used[r])
        if classes.relation == "lax":
            # Contiguous, and numbered by the first action that does each thing.
            assert first_appearance([names[r, a] for a in own_actions(mdp, r)]) == [
                names[r, a] for a in own_actions(mdp, r)
            ]
        for name in own_actions(quotient, c):
            a = int(np.argmax(names[r] == name))
            assert quotient.rewards[c, name] == mdp.rewards[r, a]
            lifted = lifted_exact(mdp, labels, r, a)
            error = variation_exact(lifted, lifted_exact(quotient, identity, c, name))
            assert error <= Fraction(classes.lift_error)
    for s in range(mdp.n_states):
        r = int(classes.representatives[labels[s]])
        np.testing.assert_array_equal(used[s], used[r])
        for a in own_actions(mdp, s):
            b = int(np.argmax(names[r] == names[s, a]))
            gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[r, b])))
            assert gap <= Fraction(classes.reward_gap)
            row, other = lifted_exact(mdp, labels, s, a), lifted_exact(mdp, labels, r, b)
            assert variation_exact(row, other) <= Fraction(classes.variation)
    np.testing.assert_allclose(
        quotient.start, np.bincount(classes.labels, weights=mdp.start), atol=1e-15
    )


# -- counts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "options", "plain", "lax"),
    [
        ("Taxi-v3", {}, 501, 469),
        ("MiniGrid-Empty-5x5-v0", {}, 33, 17),
        ("MiniGrid-Empty-8x8-v0", {}, 141, 71),
        ("FrozenLake-v1", {"map_name": "4x4"}, 12, 12),
        ("FrozenLake-v1", {"map_name": "8x8"}, 54, 54),
    ],
)
def test_known_counts(env: str, options: dict[str, Any], plain: int, lax: int) -> None:
    mdp = extract_mdp(gym.make(env, **options))
    by_name = bisimulation_classes(mdp)
    renamed = bisimulation_classes(mdp, relation="lax")
    assert (by_name.n_classes, renamed.n_classes) == (plain, lax)
    assert by_name.is_exact
    assert renamed.is_exact
    assert refines(by_name.labels.tolist(), renamed.labels.tolist())


def test_a_grid_with_its_goal_in_the_centre_folds_eight_times() -> None:
    side = 21
    cells = side * side
    P = np.zeros((cells, 4, cells))
    for x, y in np.ndindex(side, side):
        for a, (dx, dy) in enumerate([(1, 0), (-1, 0), (0, 1), (0, -1)]):
            to = min(max(x + dx, 0), side - 1), min(max(y + dy, 0), side - 1)
            P[x * side + y, a, to[0] * side + to[1]] = 1.0
    rewards = np.zeros(cells)
    rewards[cells // 2] = 1.0
    mdp = TabularMDP.from_dense(P, rewards, order="sas")
    assert bisimulation_classes(mdp).n_classes == 441
    classes = bisimulation_classes(mdp, relation="lax")
    assert classes.n_classes == 66  # an eighth of the grid, its edges included
    assert classes.is_exact
    # A state on a diagonal, and one on a middle line, have two things to do instead of four.
    assert classes.quotient.available.sum(axis=1).min() == 1
    check_renaming(classes.renaming, classes.labels, 66, mdp.available)  # type: ignore[arg-type]


def test_a_corridor_folds_in_the_middle_and_left_becomes_right() -> None:
    classes = bisimulation_classes(mirrored(6), relation="lax")
    assert classes.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert classes.renaming is not None
    assert classes.renaming.tolist() == [[0, 1]] * 3 + [[1, 0]] * 3
    assert classes.relation == "lax"
    assert "3 lax classes of 6 states, exact" in repr(classes)
    check_claims(mirrored(6), classes)


# -- laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["plain", "lax"])
@given(mdp=scrambled_mdps(kinds=EXACT))
def test_classes_equal_naive_refinement(mdp: TabularMDP, relation: str) -> None:
    classes = bisimulation_classes(mdp, relation=relation)
    assert classes.labels.tolist() == classes_exact(mdp, relation=relation)
    assert classes.is_exact
    assert classes.lift_error == 0.0
    check_claims(mdp, classes)


@pytest.mark.parametrize("relation", ["plain", "lax"])
@given(mdp=scrambled_mdps())
def test_claims_hold_for_any_rows(mdp: TabularMDP, relation: str) -> None:
    classes = bisimulation_classes(mdp, relation=relation)
    truth = classes_exact(mdp, relation=relation)
    assert refines(truth, classes.labels.tolist())
    if classes.is_exact:
        assert classes.labels.tolist() == truth
    check_claims(mdp, classes)


@pytest.mark.parametrize("relation", ["plain", "lax"])
@given(mdp=scrambled_mdps(), digits=st.integers(1, 15))
def test_claims_hold_for_rounded_signatures(mdp: TabularMDP, relation: str, digits: int) -> None:
    # Rewards that differ a little, between states and between actions of one state.
    span = max(float(np.ptp(mdp.rewards)), 1.0)
    noise = np.arange(mdp.rewards.size).reshape(mdp.rewards.shape) % 5
    moved = np.where(mdp.available, mdp.rewards + span * 1e-3 * noise, mdp.rewards)
    noisy = TabularMDP.from_rows(mdp.indptr, mdp.indices, mdp.probs, moved, available=mdp.available)
    classes = bisimulation_classes(noisy, relation=relation, digits=digits)
    check_claims(noisy, classes)
    if classes.is_exact:
        truth = classes_exact(noisy, relation=relation)
        assert refines(classes.labels.tolist(), truth)


@given(st.integers(0, 2**32 - 1))
def test_copies_with_renamed_actions_are_found(seed: int) -> None:
    base = sparse_mdp(5, 3, support=2, seed=seed)
    mdp, of = scrambled(base, seed, n_states=12, n_actions=5)
    classes = bisimulation_classes(mdp, relation="lax")
    assert classes.labels.tolist() == first_appearance(of.tolist())
    assert classes.is_exact
    check_claims(mdp, classes)


@given(scrambled_mdps(max_states=7), st.data())
def test_the_order_of_actions_does_not_matter(mdp: TabularMDP, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(mdp.n_actions)))
    rows = np.arange(mdp.n_states)[:, None] * mdp.n_actions + order
    sizes = np.diff(mdp.indptr)[rows.ravel()]
    indptr = np.append(0, np.cumsum(sizes))
    take = np.repeat(mdp.indptr[rows.ravel()] - indptr[:-1], sizes) + np.arange(indptr[-1])
    turned = TabularMDP.from_rows(
        indptr,
        mdp.indices[take],
        mdp.probs[take],
        mdp.rewards[:, order],
        available=mdp.available[:, order],
    )
    for relation in ("plain", "lax"):
        labels = bisimulation_classes(mdp, relation=relation).labels
        np.testing.assert_array_equal(
            labels, bisimulation_classes(turned, relation=relation).labels
        )


@given(scrambled_mdps(kinds=EXACT), st.data())
def test_an_initial_partition_is_refined(mdp: TabularMDP, data: st.DataObject) -> None:
    n = mdp.n_states
    initial = data.draw(st.lists(st.sampled_from((-7, 0, 3)), min_size=n, max_size=n))
    for relation in ("plain", "lax"):
        classes = bisimulation_classes(mdp, relation=relation, initial=initial)
        assert classes.labels.tolist() == classes_exact(mdp, initial, relation)
        check_claims(mdp, classes)


# -- action sets -------------------------------------------------------------------------------


def test_states_with_different_actions_are_never_in_one_plain_class() -> None:
    # All stay and pay nothing; state 1 has only one of the two ways to do so.
    stay = np.repeat(np.eye(3)[:, None, :], 2, axis=1)
    available = np.array([[True, True], [True, False], [True, True]])
    mdp = TabularMDP.from_dense(stay, np.zeros(3), available=available)
    plain = bisimulation_classes(mdp)
    assert plain.labels.tolist() == [0, 1, 0]
    assert plain.renaming is not None
    assert plain.renaming.tolist() == [[0, 1], [0, -1], [0, 1]]
    assert plain.quotient.available.tolist() == [[True, True], [True, False]]
    lax = bisimulation_classes(mdp, relation="lax")
    assert lax.labels.tolist() == [0, 0, 0]
    assert lax.renaming is not None
    assert lax.renaming.tolist() == [[0, 0], [0, -1], [0, 0]]
    assert lax.quotient.available.tolist() == [[True, False]]


def test_what_a_state_lacks_does_not_count() -> None:
    # State 0 pays 1 by its only action, the second. Padded by position, with nothing or with the
    # other state's rows, it would not be what state 1 is, which pays 1 by its only action too.
    P = np.ones((2, 2, 2)) * np.array([0.5, 0.5])
    R = np.array([[7.0, 1.0], [1.0, -3.0]])
    available = np.array([[False, True], [True, False]])
    mdp = TabularMDP.from_dense(P, R, order="sas", available=available)
    assert bisimulation_classes(mdp).n_classes == 2
    lax = bisimulation_classes(mdp, relation="lax")
    assert lax.labels.tolist() == [0, 0]
    assert lax.is_exact
    assert lax.renaming is not None
    assert lax.renaming.tolist() == [[-1, 0], [0, -1]]


def test_the_set_counts_not_how_often() -> None:
    # Two of three actions pay 1 in state 0, one of three in state 1, none in state 2.
    P = np.ones((3, 3, 3)) * np.array([1.0, 0.0, 0.0])
    R = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    mdp = TabularMDP.from_dense(P, R, order="sas")
    lax = bisimulation_classes(mdp, relation="lax")
    assert lax.labels.tolist() == [0, 0, 1]
    assert lax.renaming is not None
    assert lax.renaming.tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]


def test_rewards_and_rows_belong_together() -> None:
    # The same rewards and the same rows, but paired the other way round.
    P = np.zeros((4, 2, 4))
    P[:2, 0, 2] = P[:2, 1, 3] = P[2, :, 2] = P[3, :, 3] = 1.0
    R = np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0], [6.0, 6.0]])
    mdp = TabularMDP.from_dense(P, R, order="sas")
    assert bisimulation_classes(mdp, relation="lax").labels.tolist() == [0, 1, 2, 3]


def test_actions_of_a_state_that_rounding_merges_state_what_they_differ_by() -> None:
    # One class of one state, whose two actions become one: the gap is within the state.
    mdp = TabularMDP.from_dense(
        np.array([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]), [[0.0, 1e-6], [1.0, 1.0]], order="sas"
    )
    classes = bisimulation_classes(mdp, relation="lax", digits=3)
    assert classes.n_classes == 2
    assert 1e-6 <= classes.reward_gap <= 1.001e-6
    assert not classes.is_exact
    assert classes.quotient.available.tolist() == [[True, False], [True, False]]
    check_claims(mdp, classes)


def test_the_terminal_state_has_one_thing_to_do() -> None:
    mdp = extract_mdp(gym.make("FrozenLake-v1"))
    quotient = bisimulation_classes(mdp, relation="lax").quotient
    assert quotient.terminal_state is not None
    assert quotient.available[quotient.terminal_state].tolist() == [True, False, False, False]


# -- distances that nothing exceeds ------------------------------------------------------------


def test_how_far_action_sets_are_apart() -> None:
    # One state can only do what pays 100, the other only what pays 0.
    available = np.array([[True, False], [False, True]])
    P = np.repeat(np.eye(2)[:, None, :], 2, axis=1)
    mdp = TabularMDP.from_dense(P, [[100.0, 3.0], [5.0, 0.0]], order="sas", available=available)
    assert 100.0 < overall_span(mdp) < 100.0 + 1e-12
    far = apart_distance(mdp, 0.9)
    assert Fraction(far) * (1 - Fraction(0.9)) >= 100
    assert far < 1000.0 * (1 + 1e-13)
    # So that what is added up and rounded stays below.
    assert (100.0 + 0.9 * far) * (1.0 + 8 * 2.0**-53) <= far
    alike = TabularMDP.from_dense(P, np.full((2, 2), 4.0), order="sas", available=available)
    assert apart_distance(alike, 0.9) == 0.0
    wide = TabularMDP.from_dense(P, [[1e308, 0.0], [0.0, 0.0]], order="sas")
    with pytest.raises(InvalidArgumentError, match="the metric would overflow; rescale"):
        apart_distance(wide, 0.9)
    beyond = TabularMDP.from_dense(P, [[1.5e308, 0.0], [0.0, -1.5e308]], order="sas")
    with pytest.raises(InvalidArgumentError, match="more than a float can hold"):
        overall_span(beyond)


# -- size and threads --------------------------------------------------------------------------


def test_a_long_corridor_takes_near_linear_time() -> None:
    n = 100_000
    states = np.arange(n)
    indices = np.stack([np.maximum(states - 1, 0), np.minimum(states + 1, n - 1)], 1).ravel()
    rewards = np.zeros((n, 2))
    rewards[0, 0] = rewards[-1, 1] = 1.0
    mdp = TabularMDP(
        indptr=np.arange(2 * n + 1), indices=indices, probs=np.ones(2 * n), rewards=rewards
    )
    bisimulation_classes(mirrored(4), relation="lax")
    begin = time.perf_counter()
    classes = bisimulation_classes(mdp, relation="lax")
    elapsed = time.perf_counter() - begin
    np.testing.assert_array_equal(classes.labels, np.minimum(states, n - 1 - states))
    assert classes.is_exact
    assert elapsed < 20.0


def test_any_number_of_threads_gives_the_same() -> None:
    base = sparse_mdp(40, 4, support=3, seed=1)
    mdp, _ = scrambled(base, 1, n_states=700, n_actions=6)
    one, two = (
        bisimulation_classes(mdp, relation="lax", resources=Resources(threads=k)) for k in (1, 2)
    )
    assert one.n_classes == 40
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(one.renaming, two.renaming)
    assert one.quotient == two.quotient


def test_many_actions_are_looked_up() -> None:
    base = sparse_mdp(3, 100, support=2, seed=3)
    mdp, of = scrambled(base, 3, n_states=8, n_actions=260)
    classes = bisimulation_classes(mdp, relation="lax")
    assert classes.labels.tolist() == first_appearance(of.tolist())
    check_claims(mdp, classes)


# -- errors ------------------------------------------------------------------------------------


def test_an_unknown_relation_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match="relation must be one of 'plain', 'lax', got 'weak'"
    ):
        bisimulation_classes(mirrored(3), relation="weak")


def test_states_whose_actions_differ_are_not_given_names(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the hashes of all states were equal: naming notices, whichever state is odd.
    def careless(*given: Any) -> int:
        return 1

    monkeypatch.setattr(refine, "refine_kernel", careless)
    P = np.repeat(np.eye(3)[:, None, :], 2, axis=1)
    for rewards in ([[0, 1], [1, 0], [1, 2]], [[0, 1], [1, 0], [0, 0]]):
        mdp = TabularMDP.from_dense(P, np.array(rewards, float))
        keys, _ = _reward_keys(mdp.rewards, None)
        assert keys.shape == (3, 2)
        with pytest.raises(BisimError, match="signatures of states 2 and 0 collide"):
            bisimulation_classes(mdp, relation="lax")
