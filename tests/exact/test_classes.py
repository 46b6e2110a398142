"""`bisimulation_classes` against naive refinement in exact arithmetic."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

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
    bisimulation_metric,
)
from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
from tests.support.examples import naming
from tests.support.oracles import (
    classes_exact,
    first_appearance,
    lifted_exact,
    metric_lp,
    refines,
    variation_exact,
)
from tests.support.worlds import BY_HAND, dense, gammas, mdps, permuted


def check_claims(mdp: TabularMDP, classes: BisimulationClasses) -> None:
    """Every number a partition comes with, against exact arithmetic."""
    labels = classes.labels.tolist()
    representatives = classes.representatives.tolist()
    quotient = classes.quotient
    assert labels == first_appearance(labels)
    assert classes.n_classes == max(labels) + 1 == quotient.n_states
    assert [labels[r] for r in representatives] == list(range(classes.n_classes))
    identity = list(range(classes.n_classes))
    for s in range(mdp.n_states):
        r = representatives[labels[s]]
        for a in range(mdp.n_actions):
            gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[r, a])))
            assert gap <= Fraction(classes.reward_gap)
            row, other = lifted_exact(mdp, labels, s, a), lifted_exact(mdp, labels, r, a)
            assert variation_exact(row, other) <= Fraction(classes.variation)
    for c, r in enumerate(representatives):
        for a in range(mdp.n_actions):
            assert quotient.rewards[c, a] == mdp.rewards[r, a]
            lifted = lifted_exact(quotient, identity, c, a)
            error = variation_exact(lifted_exact(mdp, labels, r, a), lifted)
            assert error <= Fraction(classes.lift_error)
    start = np.bincount(classes.labels, weights=mdp.start)
    np.testing.assert_allclose(quotient.start, start, atol=1e-15)


# -- known answers -----------------------------------------------------------------------------


def test_hand_solved_classes() -> None:
    for known in BY_HAND:
        with naming(name=known.name, gamma=known.gamma):
            classes = bisimulation_classes(known.mdp)
            assert classes.labels.tolist() == known.labels == classes_exact(known.mdp)
            check_claims(known.mdp, classes)


def test_a_model_without_twins_is_its_own_quotient() -> None:
    mdp = random_mdp(20, seed=1)
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == list(range(20))
    assert classes.is_exact
    assert classes.lift_error == 0.0
    assert classes.quotient == mdp
    assert classes.distortion(0.9) == 0.0


def test_actions_are_not_interchangeable() -> None:
    # State 1 is state 0 with its two actions exchanged.
    P = np.zeros((4, 2, 4))
    P[0, 0, 2] = P[0, 1, 3] = P[1, 0, 3] = P[1, 1, 2] = P[2, :, 2] = P[3, :, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1.0, 0.0])
    assert bisimulation_classes(mdp).labels.tolist() == [0, 1, 2, 3]
    # Rewards, too: the same two numbers, the other way round.
    P = np.ones((2, 2, 1)) * np.array([1.0, 0.0])
    mdp = TabularMDP.from_dense(P, [[1, 2], [2, 1]], order="sas")
    assert bisimulation_classes(mdp).labels.tolist() == [0, 1]


# -- laws --------------------------------------------------------------------------------------


@given(mdps(max_states=8, kinds=("deterministic", "dyadic")))
def test_classes_equal_naive_refinement(mdp: TabularMDP) -> None:
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == classes_exact(mdp)
    assert classes.is_exact
    assert classes.lift_error == 0.0
    check_claims(mdp, classes)


@given(mdps(max_states=7))
def test_bisimilar_states_are_merged_and_claims_hold(mdp: TabularMDP) -> None:
    classes = bisimulation_classes(mdp)
    truth = classes_exact(mdp)
    # Equal quotients have equal floats, so states that are alike are never parted; what is
    # proven exact parts all others.
    assert refines(truth, classes.labels.tolist())
    if classes.is_exact:
        assert classes.labels.tolist() == truth
    check_claims(mdp, classes)


@given(mdps(max_states=8), st.data())
def test_the_order_of_states_does_not_matter(mdp: TabularMDP, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(mdp.n_states)))
    labels = bisimulation_classes(mdp).labels
    shuffled = bisimulation_classes(permuted(mdp, order)).labels
    assert first_appearance(labels[order].tolist()) == shuffled.tolist()


def test_sums_do_not_depend_on_the_order_of_successors() -> None:
    # Ten absorbing twins; each of the other states spreads the same masses differently.
    rng = np.random.default_rng(4)
    masses = rng.dirichlet(np.ones(9))
    P = np.zeros((51, 1, 51))
    for s in range(11):
        P[s, 0, s] = 1.0
    rewards = np.zeros(51)
    rewards[10] = 1.0
    for s in range(11, 51):
        P[s, 0, rng.permutation(10)[:8]] = rng.permutation(masses[:8])
        P[s, 0, 10] = masses[8]
    labels = bisimulation_classes(TabularMDP.from_dense(P, rewards)).labels
    assert labels.tolist() == [0] * 10 + [1] + [2] * 40


@given(mdps(max_states=6, kinds=("deterministic", "dyadic")), st.data())
def test_an_initial_partition_is_refined(mdp: TabularMDP, data: st.DataObject) -> None:
    n = mdp.n_states
    initial = data.draw(st.lists(st.sampled_from((-7, 0, 3)), min_size=n, max_size=n))
    classes = bisimulation_classes(mdp, initial=initial)
    assert classes.labels.tolist() == classes_exact(mdp, initial)
    check_claims(mdp, classes)


@given(mdps(max_states=7), st.integers(1, 15))
def test_claims_hold_for_rounded_signatures(mdp: TabularMDP, digits: int) -> None:
    classes = bisimulation_classes(mdp, digits=digits)
    assert classes.digits == digits
    check_claims(mdp, classes)
    if classes.is_exact:
        # Stable in exact arithmetic, hence no coarser than the coarsest such partition.
        assert refines(classes.labels.tolist(), classes_exact(mdp))


@given(mdps(max_states=6), st.data())
def test_claims_hold_for_any_merging(mdp: TabularMDP, data: st.DataObject) -> None:
    # One digit merges nearly everything: what is claimed must be large, not wrong.
    span = float(np.ptp(mdp.rewards))
    noisy = TabularMDP(
        indptr=mdp.indptr,
        indices=mdp.indices,
        probs=mdp.probs,
        rewards=mdp.rewards + span * 1e-3 * np.arange(mdp.rewards.size).reshape(mdp.rewards.shape),
    )
    check_claims(noisy, bisimulation_classes(noisy, digits=data.draw(st.sampled_from((1, 2)))))


# -- brittle numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [1.0, -3.0, 1e-300, 1e300, 0.0])
def test_rewards_that_differ_in_the_last_bit_differ(reward: float) -> None:
    near = math.nextafter(reward, math.inf)
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [reward, near, reward])
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 1, 0]
    assert classes.is_exact


def test_minus_zero_is_zero() -> None:
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [0.0, -0.0])
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 0]
    assert classes.is_exact


def test_probabilities_that_differ_in_the_last_bit_differ() -> None:
    p = 0.375
    P = np.zeros((4, 1, 4))
    P[0, 0, [2, 3]] = p, 1 - p
    P[1, 0, [2, 3]] = p + 2.0**-53, 1 - p - 2.0**-53
    P[2, 0, 2] = P[3, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 1.0])
    assert bisimulation_classes(mdp).labels.tolist() == [0, 1, 2, 3]
    merged = bisimulation_classes(mdp, digits=9)
    assert merged.labels.tolist() == [0, 0, 1, 2]
    assert not merged.is_exact
    assert 2.0**-53 <= merged.variation <= 1e-14
    check_claims(mdp, merged)


def test_rows_are_compared_after_division_by_their_sum() -> None:
    # Row 1 is row 0 times 1 + 2**-40, exactly.
    factor = 1.0 + 2.0**-40
    P = np.zeros((4, 1, 4))
    P[0, 0, [2, 3]] = 0.375, 0.625
    P[1, 0, [2, 3]] = 0.375 * factor, 0.625 * factor
    P[2, 0, 2] = P[3, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 1.0])
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 0, 1, 2] == classes_exact(mdp)
    check_claims(mdp, classes)


def test_three_thirds_to_one_class_are_everything() -> None:
    P = np.zeros((5, 1, 5))
    P[0, 0, 1:4] = 1 / 3
    P[4, 0, 1] = 1.0
    for s in (1, 2, 3):
        P[s, 0, s] = 1.0
    mdp = TabularMDP.from_dense(P, [1.0, 0.0, 0.0, 0.0, 1.0])
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 1, 1, 1, 0]
    assert classes.is_exact  # one class takes it all, whatever the floats add up to
    check_claims(mdp, classes)


def test_rounded_quotient_rows_state_their_error() -> None:
    # 0.1 three times is no float: the quotient's row rounds, and says so.
    P = np.zeros((5, 1, 5))
    P[0, 0] = [0.0, 0.1, 0.1, 0.1, 0.7]
    for s in range(1, 5):
        P[s, 0, s] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 0.0, 1.0])
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 1, 1, 1, 2]
    assert 0.0 < classes.lift_error <= 1e-15
    assert classes.is_exact
    check_claims(mdp, classes)


def test_rounding_below_twice_float_precision_is_stated() -> None:
    # 0.5 + 2**-54 + 2**-54 is a float; the 2**-110 that is added to it gets lost.
    P = np.zeros((6, 1, 6))
    P[5, 0] = [0.5, 2.0**-54, 2.0**-54, 2.0**-110, 0.5, 0.0]
    for s in range(5):
        P[s, 0, s] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 0.0, 1.0, 0.5])
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 0, 0, 0, 1, 2]
    check_claims(mdp, classes)


def test_what_is_lost_in_a_sum_is_not_taken_for_equal() -> None:
    # Both rows send the same floats to class 0, once what they lost is lost.
    P = np.zeros((7, 1, 7))
    for s in range(5):
        P[s, 0, s] = 1.0
    P[5, 0] = [0.5, 2.0**-54, 2.0**-54, 2.0**-110, 0.5, 0.0, 0.0]
    P[6, 0] = [0.5, 2.0**-54, 2.0**-54, 2.0**-111, 0.5, 0.0, 0.0]
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 0.5])
    assert classes_exact(mdp) == [0, 0, 0, 0, 1, 2, 3]
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert not classes.is_exact
    check_claims(mdp, classes)


def test_equal_quotients_of_unequal_sums_are_equal() -> None:
    # Row 1 is row 0 times 1 + 2**-31, exactly, as no part has more than 22 bits. Their sums by
    # class have more than 53 bits.
    factor = 1.0 + 2.0**-31
    for seed in range(100):
        rng = np.random.default_rng(seed)
        parts = np.zeros(6)
        parts[:4] = rng.integers(2**20, 2**21, size=4) * 2.0 ** -rng.integers(24, 58, size=4)
        parts[4] = np.floor((1.0 - parts[:4].sum()) * 2.0**20) / 2.0**20
        parts[5] = np.floor((1.0 - parts[:5].sum()) * 2.0**40 + 1.0) / 2.0**40
        P = np.zeros((8, 1, 8))
        P[0, 0, 2:] = parts
        P[1, 0, 2:] = parts * factor
        for s in range(2, 8):
            P[s, 0, s] = 1.0
        mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
        assert classes_exact(mdp) == [0, 0, 1, 1, 1, 2, 2, 2]
        classes = bisimulation_classes(mdp)
        assert classes.labels.tolist() == [0, 0, 1, 1, 1, 2, 2, 2], seed
        check_claims(mdp, classes)


@pytest.mark.parametrize("digits", [3, 6, 12])
def test_digits_merge_what_noise_parted(digits: int) -> None:
    noise = 10.0 ** -(digits + 3)
    mdp, groups = grouped_mdp(40, 5, 2, noise=noise, seed=digits)
    assert bisimulation_classes(mdp).n_classes == 40
    classes = bisimulation_classes(mdp, digits=digits)
    # A value next to a rounding boundary may part a group, never join two.
    assert refines(classes.labels.tolist(), groups.tolist())
    assert classes.n_classes < 40
    assert not classes.is_exact
    assert classes.reward_gap <= noise
    assert classes.variation <= 4.0 * noise
    check_claims(mdp, classes)


def test_noiseless_groups_are_found() -> None:
    mdp, groups = grouped_mdp(60, 6, 3, noise=0.0, seed=3)
    assert bisimulation_classes(mdp, digits=9).labels.tolist() == groups.tolist()


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
def test_digits_are_relative_to_the_span_of_rewards(scale: float) -> None:
    rewards = np.array([1.0, 1.0 + 1e-9, -1.0, 0.0]) * scale
    mdp = TabularMDP.from_dense(np.eye(4)[:, None, :], rewards)
    classes = bisimulation_classes(mdp, digits=6)
    assert classes.labels.tolist() == [0, 0, 1, 2]
    check_claims(mdp, classes)


def test_a_span_beyond_floats_is_handled_or_refused() -> None:
    rewards = np.array([1.5e308, 1.5e308, -1.5e308, 0.0])
    mdp = TabularMDP.from_dense(np.eye(4)[:, None, :], rewards)
    try:
        classes = bisimulation_classes(mdp, digits=6)
    except InvalidArgumentError:
        return
    assert classes.labels.tolist() == [0, 0, 1, 2]


# -- distortion --------------------------------------------------------------------------------


@given(mdps(max_states=5), st.integers(1, 6), gammas(0.99))
def test_distortion_bounds_what_merging_changes(mdp: TabularMDP, digits: int, gamma: float) -> None:
    classes = bisimulation_classes(mdp, digits=digits)
    apart = bisimulation_classes(mdp, initial=np.arange(mdp.n_states))
    ground = bisimulation_metric(mdp, gamma, classes=apart)
    singles = bisimulation_classes(classes.quotient, initial=np.arange(classes.n_classes))
    merged = bisimulation_metric(classes.quotient, gamma, classes=singles)
    x = classes.labels
    allowed = classes.distortion(gamma)
    apart_by = np.maximum(
        ground.lower - merged.upper[np.ix_(x, x)], merged.lower[np.ix_(x, x)] - ground.upper
    )
    assert apart_by.max() <= allowed * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_distortion_against_a_linear_program(seed: int) -> None:
    gamma = 0.6
    mdp, _ = grouped_mdp(6, 3, 2, noise=0.01, support=2, seed=seed)
    classes = bisimulation_classes(mdp, digits=1)
    assert classes.n_classes < 6
    x = classes.labels
    ground, merged = metric_lp(mdp, gamma), metric_lp(classes.quotient, gamma)[np.ix_(x, x)]
    allowed = classes.distortion(gamma)
    assert np.abs(ground - merged).max() <= allowed + 1e-6
    assert 0.0 < allowed < 20.0 * max(classes.reward_gap, classes.variation)


@pytest.mark.parametrize("reward", [1.0, 1e-300, 1e-310, 1e-320])
@pytest.mark.parametrize("relation", ["plain", "lax"])
def test_members_that_differ_are_never_at_distance_0(reward: float, relation: str) -> None:
    """Sums that are rounded alike: what they differ by, times a small reward, underflows."""
    P = np.zeros((5, 1, 5))
    P[0, 0, 2:] = 0.1, 0.2, 0.7
    P[1, 0, [2, 4]] = 0.1 + 0.2, 0.7
    P[[2, 3, 4], 0, [2, 3, 4]] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 0.0, reward])
    classes = bisimulation_classes(mdp, relation=relation)
    assert classes.labels.tolist() == [0, 0, 1, 1, 2]
    assert not classes.is_exact
    far = 2 * Fraction(reward)  # of 4 from the others, at this discount
    lifted = [lifted_exact(mdp, classes.labels.tolist(), s, 0) for s in (0, 1)]
    apart = Fraction(1, 2) * variation_exact(*lifted) * far
    assert 0 < apart <= Fraction(classes.distortion(0.5))
    found = bisimulation_metric(mdp, 0.5, relation=relation).bounds(0, 1)
    assert Fraction(float(found[0])) <= apart <= Fraction(float(found[1]))


def test_distortion_is_needed_in_full_order() -> None:
    # A reward gap g in every step adds up to g/(1 - gamma): less than a few times that would
    # be wrong, much more would be useless.
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [0.0, 1e-3, 1.0])
    classes = bisimulation_classes(mdp, digits=1)
    assert classes.labels.tolist() == [0, 0, 1]
    assert 1e-3 / 0.1 <= classes.distortion(0.9) <= 2.01e-3 / 0.1
    with pytest.raises(InvalidArgumentError, match=r"gamma must lie in \[0, 1\), got 1\.0"):
        classes.distortion(1.0)


# -- size --------------------------------------------------------------------------------------


def chain(n: int, copies: int) -> TabularMDP:
    """`copies` chains of n states that lead to one end and pay on the last step only."""
    states = np.arange(n * copies)
    following = states + 1
    following[n - 1 :: n] = n * copies
    rewards = np.zeros(n * copies + 1)
    rewards[n - 1 : n * copies : n] = 1.0
    size = n * copies + 1
    return TabularMDP(
        indptr=np.arange(size + 1),
        indices=np.append(following, size - 1),
        probs=np.ones(size),
        rewards=rewards[:, None],
        terminal_state=size - 1,
    )


@pytest.mark.parametrize("copies", [1, 2, 10])
def test_long_chains_take_near_linear_time(copies: int) -> None:
    n = 100_000 // copies
    bisimulation_classes(chain(3, copies))
    begin = time.perf_counter()
    classes = bisimulation_classes(chain(n, copies))
    elapsed = time.perf_counter() - begin
    assert classes.labels.tolist() == list(range(n)) * copies + [n]
    assert classes.is_exact
    assert elapsed < 20.0  # one pass per step of the chain would take hours


def test_many_states_on_any_number_of_threads() -> None:
    mdp, groups = grouped_mdp(20_000, 7, 2, noise=1e-9, seed=5)
    one, two = (bisimulation_classes(mdp, digits=4, resources=Resources(threads=k)) for k in (1, 2))
    assert refines(one.labels.tolist(), groups.tolist())
    np.testing.assert_array_equal(one.labels, two.labels)
    assert (one.reward_gap, one.variation) == (two.reward_gap, two.variation)
    assert one.quotient == two.quotient
    assert 0.0 < one.reward_gap <= 1e-9


def test_random_sparse_models_against_naive_refinement() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        mdp = sparse_mdp(30, 2, support=1 + seed % 2, seed=seed)
        coarse = np.round(mdp.rewards)  # few rewards: twins appear, and are told apart late
        even = np.full(mdp.nnz, 1.0 / (1 + seed % 2))
        mdp = TabularMDP(indptr=mdp.indptr, indices=mdp.indices, probs=even, rewards=coarse)
        copies = rng.integers(30, size=45)
        P = np.zeros((45, 2, 45))
        original = dense(mdp)
        for k, s in enumerate(copies):
            for a in range(2):
                for t in np.flatnonzero(original[s, a]):
                    images = np.flatnonzero(copies == t)
                    where = int(rng.choice(images)) if images.size else int(t) % 45
                    P[k, a, where] += original[s, a, t]
        doubled = TabularMDP.from_dense(P, coarse[copies])
        assert bisimulation_classes(doubled).labels.tolist() == classes_exact(doubled)


@pytest.mark.parametrize("reached", [2, 11, 12, 13, 40])
def test_rows_that_reach_few_and_many_classes(reached: int) -> None:
    """Leaves in pairs, and roots that share masses among each pair differently, or not the same."""
    n = 2 * reached + 3
    P = np.zeros((n, 1, n))
    leaves = np.arange(2 * reached)
    P[leaves, 0, leaves] = 1.0
    mass = np.full(reached, 2.0**-7)
    mass[0] = 1.0 - mass[1:].sum()
    moved = mass.copy()
    moved[[0, -1]] += 2.0**-20, -(2.0**-20)
    for root, (own, share) in enumerate([(mass, 0.75), (mass, 0.25), (moved, 0.5)]):
        shares = np.full(reached, share)
        shares[0] = 0.5 * (root != 1)  # the middle root meets its classes in another order
        P[root - 3, 0, : 2 * reached] = np.append(shares * own, (1.0 - shares) * own)
    rewards = np.append(np.tile(np.arange(reached), 2), np.zeros(3))
    mdp = TabularMDP.from_dense(P, rewards.astype(float))
    classes = bisimulation_classes(mdp)
    names = list(range(reached))
    assert classes.labels.tolist() == [*names, *names, reached, reached, reached + 1]
    assert classes.is_exact
    check_claims(mdp, classes)
    merged = bisimulation_classes(mdp, digits=3)
    assert merged.labels.tolist() == [*names, *names, reached, reached, reached]
    assert 2.0**-20 <= merged.variation <= 1.001 * 2.0**-20
    check_claims(mdp, merged)


@pytest.mark.parametrize("odd", [0, 1, 63, 64, 65, 150, 199])
def test_one_member_of_many_that_differs_is_noticed(odd: int) -> None:
    """Under the last of two actions, in what it pays and where it leads."""
    rows = np.zeros((202, 2, 202))
    rows[:, :, 200:] = 0.5
    rows[odd, 1, 200:] = 0.5 + 2.0**-10, 0.5 - 2.0**-10
    rows[[200, 201]] = 0.0
    rows[[200, 201], :, [200, 201]] = 1.0
    rewards = np.zeros((202, 2))
    rewards[201] = 1.0
    rewards[odd, 1] = 2.0**-10
    mdp = TabularMDP.from_dense(rows, rewards)
    classes = bisimulation_classes(mdp, digits=2)
    assert classes.labels.tolist() == [0] * 200 + [1, 2]
    assert 2.0**-10 <= classes.reward_gap <= 1.001 * 2.0**-10
    assert 2.0**-10 <= classes.variation <= 1.001 * 2.0**-10


def test_rewards_and_rows_refine_what_is_given() -> None:
    """What is paid parts states at once, whatever the partition to start from."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        P = np.eye(12)[rng.integers(12, size=(12, 1))]
        mdp = TabularMDP.from_dense(P, rng.integers(2, size=12).astype(float))
        given = rng.integers(2, size=12)
        # The same, told by rewards instead of labels.
        told = TabularMDP.from_dense(P, mdp.rewards[:, 0] + 2.0 * given)
        labels = bisimulation_classes(mdp, initial=given).labels.tolist()
        assert labels == classes_exact(told)


# -- the terminal state ------------------------------------------------------------------------


def test_the_terminal_state_represents_its_class() -> None:
    P = np.zeros((4, 1, 4))
    P[0, 0, 0] = P[1, 0, 0] = P[2, 0, 3] = P[3, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1.0, 0.0], terminal_state=3)
    classes = bisimulation_classes(mdp)
    assert classes.labels.tolist() == [0, 0, 1, 0]
    assert classes.representatives.tolist() == [3, 2]
    assert classes.quotient.terminal_state == 0
    assert classes.quotient.state_ids.tolist() == [-1, 2]
    apart = bisimulation_classes(mdp, initial=[0, 0, 0, 1])
    assert apart.labels.tolist() == [0, 0, 1, 2]
    assert apart.quotient.terminal_state == 2


def test_rounding_does_not_move_the_terminal_state() -> None:
    # State 0 comes first in its class and pays a little: the terminal state must stay free.
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [1e-9, 0.0, 1.0], terminal_state=1)
    classes = bisimulation_classes(mdp, digits=6)
    assert classes.labels.tolist() == [0, 0, 1]
    assert classes.quotient.terminal_state == 0
    assert classes.quotient.rewards[0, 0] == 0.0
    assert 1e-9 <= classes.reward_gap <= 1.001e-9
    check_claims(mdp, classes)


# -- surface -----------------------------------------------------------------------------------


def test_the_result_is_read_only_and_prints_itself() -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [0.0, 1e-9, 1.0])
    classes = bisimulation_classes(mdp, digits=3)
    with pytest.raises(ValueError, match="read-only"):
        classes.labels[0] = 1
    with pytest.raises(AttributeError):
        classes.variation = 0.0  # type: ignore[misc]
    assert "2 classes of 3 states, reward gap 1e-09" in repr(classes)
    assert "exact" in repr(bisimulation_classes(mdp))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": 0}, "digits must be between 1 and 15, got 0"),
        ({"digits": 16}, "digits must be between 1 and 15, got 16"),
        ({"digits": 1.5}, r"digits must be a whole number, got 1\.5"),
        ({"initial": [0, 1]}, r"initial .*\(3\), got shape \(2,\)"),
        ({"initial": [[0, 1, 2]]}, r"initial .*got shape \(1, 3\)"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [0.0, 1.0, 2.0])
    with pytest.raises(InvalidArgumentError, match=message):
        bisimulation_classes(mdp, **options)


def test_one_class_is_one_class() -> None:
    alike = TabularMDP.from_dense(np.ones((1, 1, 1)), [0.0])
    assert repr(bisimulation_classes(alike)) == "BisimulationClasses(1 class of 1 state, exact)"


def test_members_on_both_sides_of_their_representative() -> None:
    """Each is within the gap of the representative, so that two may be twice as far apart."""
    mdp = TabularMDP.from_dense(np.eye(5)[:, None, :], [0.5, 0.54, 0.46, 1.0, 0.0])
    found = bisimulation_classes(mdp, digits=1)
    assert found.labels.tolist() == [0, 0, 0, 1, 2]
    far = bisimulation_metric(mdp, 0.5).bounds(1, 2)[0]
    assert float(far) == pytest.approx(0.16)
    assert found.distortion(0.5) >= float(far)
