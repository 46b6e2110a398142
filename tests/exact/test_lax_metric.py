"""The metric after renaming actions, and that of states with different actions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    InvalidArgumentError,
    MetricBounds,
    Resources,
    TabularMDP,
    bisimulation_classes,
    bisimulation_metric,
)
from bisim_abstract._base.parallel import read_only
from bisim_abstract._exact.pair_solvers import DeterministicPairs, Matching, StochasticPairs
from bisim_abstract._kernels import pairgraph
from bisim_abstract._kernels import transport as transport_kernels
from bisim_abstract._relations.apart import apart_distance
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp
from tests.support.examples import cases
from tests.support.oracles import (
    backup_pair_exact,
    check_inequalities,
    metric_lp,
    optimal_values_exact,
)
from tests.support.worlds import gammas, mdps, mirrored, scrambled, scrambled_mdps

ONE = Resources(threads=1)
RELATIONS = ("plain", "lax")

Floats = npt.NDArray[np.float64]


def apart(mdp: TabularMDP, gamma: float, relation: str, **options: Any) -> MetricBounds:
    """The metric without merging states."""
    singles = bisimulation_classes(mdp, relation=relation, initial=np.arange(mdp.n_states))
    return bisimulation_metric(mdp, gamma, relation=relation, classes=singles, **options)


def random_model(seed: int, *, support: int = 2) -> TabularMDP:
    """Up to nine states with up to four actions, permuted, doubled and missing."""
    rng = np.random.default_rng(seed)
    base = sparse_mdp(int(rng.integers(3, 6)), int(rng.integers(1, 4)), support=support, seed=seed)
    n_states = base.n_states + int(rng.integers(4))
    return scrambled(base, seed, n_states=n_states, n_actions=base.n_actions + seed % 2)[0]


def perturbed(mdp: TabularMDP, seed: int) -> TabularMDP:
    """The same with rewards a little apart, so that hardly any two states are alike."""
    noise = np.random.default_rng(seed).random(mdp.rewards.shape)
    return TabularMDP.from_rows(
        mdp.indptr,
        mdp.indices,
        mdp.probs,
        mdp.rewards + 0.1 * noise,
        available=mdp.available,
    )


# -- known answers -----------------------------------------------------------------------------


def test_mirror_images_are_at_distance_zero() -> None:
    for noise in (0.0, 0.25):
        mdp = mirrored(7, noise)
        bounds = bisimulation_metric(mdp, 0.9, relation="lax")
        assert bounds.relation == "lax"
        assert bounds.apart is None
        for x in range(7):
            assert bounds.upper[x, 6 - x] == 0.0
        assert bisimulation_metric(mdp, 0.9).lower[0, 6] > 1.0
        # Without merging them first it is found by sweeps.
        assert apart(mdp, 0.9, "lax").upper[np.arange(7), np.arange(6, -1, -1)].max() < 1e-8


def test_rewards_the_other_way_round() -> None:
    # State 0 pays 1 and 0, state 1 pays 0 and 0.75, then both end.
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [[1.0, 0.0], [0.0, 0.75], [0.0, 0.0]], terminal_state=2)
    plain = bisimulation_metric(mdp, 0.5).bounds(0, 1)
    assert plain[0] <= 1.0 <= plain[1]
    lax = bisimulation_metric(mdp, 0.5, relation="lax").bounds(0, 1)
    assert lax[0] <= 0.25 <= lax[1]
    assert lax[1] - lax[0] < 1e-8


def test_both_directions_count() -> None:
    # What state 1 can do state 0 can do as well, but not the other way round.
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    for order in ([[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]):
        mdp = TabularMDP.from_dense(P, [*order, [0.0, 0.0]], terminal_state=2)
        lower, upper = bisimulation_metric(mdp, 0.5, relation="lax").bounds(0, 1)
        assert lower <= 1.0 <= upper
        assert lower > 1.0 - 1e-8


def test_padding_by_position_would_be_wrong() -> None:
    # State 0 has the first action only, which pays 1, state 1 the second only, which pays 1.
    # Filled up with nothing, or with the other's, either would seem to be able to do more.
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    available = np.array([[True, False], [False, True], [True, True]])
    mdp = TabularMDP.from_dense(
        P, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], available=available, terminal_state=2
    )
    lax = apart(mdp, 0.9, "lax")
    assert lax.upper[0, 1] < 1e-12
    assert lax.lower[0, 2] > 1.0 - 1e-8
    plain = bisimulation_metric(mdp, 0.9)
    far = apart_distance(mdp, 0.9)
    assert plain.apart == far
    assert plain.lower[0, 1] == plain.upper[0, 1] == far
    assert far >= 10.0


def test_states_with_different_actions_are_as_far_apart_as_can_be() -> None:
    # They lead to states that are alike but for what they lack: M there, gamma·M before.
    stay = np.repeat(np.eye(4)[:, None, :], 2, axis=1)
    stay[2, :] = np.eye(4)[0]
    stay[3, :] = np.eye(4)[1]
    available = np.array([[True, True], [True, False], [True, True], [True, True]])
    mdp = TabularMDP.from_dense(stay, [0.0, 0.0, 1.0, 1.0], available=available)
    bounds = bisimulation_metric(mdp, 0.5)
    far = apart_distance(mdp, 0.5)
    assert bounds.apart == far
    assert bounds.lower[0, 1] == bounds.upper[0, 1] == far
    assert bounds.lower[2, 3] <= 0.5 * far <= bounds.upper[2, 3]
    assert bounds.gap < 1e-8
    assert f"apart     {far:.12g} where states have different actions" in bounds.summary()
    assert "lax" not in bounds.summary() + repr(bounds)
    lax = bisimulation_metric(mdp, 0.5, relation="lax")
    assert "exact lax bisimulation metric" in lax.summary()
    assert "lax" in repr(lax)
    assert lax.upper[2, 3] == 0.0


# -- against a naive oracle --------------------------------------------------------------------


@pytest.mark.drawn
def test_lax_and_plain_against_linear_programs() -> None:
    for seed in range(cases(100, few=8)):
        mdp = random_model(seed, support=1 + seed % 3)
        if seed % 2:
            mdp = perturbed(mdp, seed)
        gamma = (0.3, 0.5, 0.7)[seed % 3]
        tables = {}
        for relation in RELATIONS:
            bounds = bisimulation_metric(mdp, gamma, relation=relation)
            truth = metric_lp(mdp, gamma, relation=relation, apart=bounds.apart)
            assert (bounds.apart is None) == (relation == "lax" or not mdp.has_action_sets)
            allowed = 1e-6 * max(float(truth.max()), 1.0)
            assert (bounds.lower <= truth + allowed).all(), (seed, relation)
            assert (truth - allowed <= bounds.upper).all(), (seed, relation)
            assert bounds.is_converged
            tables[relation] = bounds
        assert (tables["lax"].lower <= tables["plain"].upper).all()


# -- proofs in exact arithmetic ----------------------------------------------------------------


@given(scrambled_mdps(max_states=5, max_actions=3), gammas(), st.sampled_from(RELATIONS))
def test_both_tables_prove_themselves(mdp: TabularMDP, gamma: float, relation: str) -> None:
    bounds = apart(mdp, gamma, relation)
    assert (bounds.lower <= bounds.upper).all()
    classes = bisimulation_classes(mdp, relation=relation, initial=np.arange(mdp.n_states))
    if classes.is_exact and classes.lift_error == 0.0:
        check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper, relation, bounds.apart)
    merged = bisimulation_metric(mdp, gamma, relation=relation)
    assert (merged.lower <= bounds.upper).all()
    assert (bounds.lower <= merged.upper).all()


@given(
    scrambled_mdps(max_states=5, max_actions=3),
    gammas(),
    st.sampled_from(RELATIONS),
    st.integers(1, 3),
)
def test_few_sweeps_prove_themselves(
    mdp: TabularMDP, gamma: float, relation: str, max_sweeps: int
) -> None:
    bounds = apart(mdp, gamma, relation, max_sweeps=max_sweeps)
    assert bounds.sweeps <= max_sweeps
    check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper, relation, bounds.apart)


@given(mdps(max_states=4, max_actions=3, min_states=2), gammas(), st.data())
def test_residuals_bound_the_exact_backup_of_any_table(
    mdp: TabularMDP, gamma: float, data: st.DataObject
) -> None:
    n, n_actions = mdp.rewards.shape
    entry = st.sampled_from((0.0, 1.0, 0.5)) | st.floats(0.0, 3.0)
    scale = data.draw(st.sampled_from((1.0, 1e12, 1e-12)))
    table = np.zeros((n, n))
    for s in range(n):
        for t in range(s):
            table[s, t] = table[t, s] = data.draw(entry) * scale
    # States have their first actions; the others are copies of the first one.
    counts = np.array([data.draw(st.integers(1, n_actions)) for _ in range(n)])
    mdp = mdp.with_available(np.arange(n_actions) < counts[:, None])
    size = n * (n - 1) // 2
    action = np.empty(size, np.int64)
    match = np.empty((size, 2 * n_actions), np.int16)
    at = 0
    for s in range(n):
        for t in range(s + 1, n):
            sides = [(0, counts[s]), (n_actions, counts[t])]
            base, count = data.draw(st.sampled_from(sides))
            action[at] = base + data.draw(st.integers(0, int(count) - 1))
            match[at, :n_actions] = data.draw(st.integers(0, int(counts[t]) - 1))
            match[at, n_actions:] = data.draw(st.integers(0, int(counts[s]) - 1))
            at += 1
    at = 0
    for s in range(n):
        for t in range(s + 1, n):
            truth = backup_pair_exact(mdp, gamma, table, s, t, "lax")
            now = Fraction(float(table[s, t]))
            found = [
                transport_kernels.residual_kernel(
                    at,
                    at + 1,
                    0,
                    mdp.indptr,
                    mdp.indices,
                    mdp.probs,
                    mdp.normalised_probs,
                    mdp.rewards,
                    gamma,
                    True,
                    counts,
                    np.arange(n),
                    read_only(table),
                    action,
                    match,
                )
            ]
            if mdp.is_deterministic:
                one = np.zeros((n, n), np.int16)
                two = np.zeros((n, n, 2 * n_actions), np.int16)
                one[s, t], two[s, t] = action[at], match[at]
                found.append(
                    pairgraph.residual_kernel(
                        s,
                        s + 1,
                        mdp.indices.reshape(n, n_actions),
                        mdp.rewards,
                        gamma,
                        True,
                        False,
                        counts,
                        table,
                        one,
                        two,
                    )
                )
            for rise, fall in found:
                assert now - Fraction(fall) <= truth <= now + Fraction(rise)
            at += 1


def test_residuals_of_tables_without_any_order() -> None:
    # Which answer is best has nothing to do with which is tried first, or with rewards: whatever
    # is passed over wrongly shows.
    n, n_actions = 4, 4
    pairs = [(s, t) for s in range(n) for t in range(s + 1, n)]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        mdp = sparse_mdp(n, n_actions, support=3, seed=seed)
        half = np.triu(rng.choice([0.0, 0.3, 1.0, 4.0], size=(n, n)) * rng.random((n, n)), 1)
        table = half + half.T
        counts = np.full(n, n_actions)
        action = rng.integers(2 * n_actions, size=len(pairs))
        match = rng.integers(n_actions, size=(len(pairs), 2 * n_actions)).astype(np.int16)
        for at, (s, t) in enumerate(pairs):
            rows = mdp.indptr, mdp.indices, mdp.probs, mdp.normalised_probs
            rise, fall = transport_kernels.residual_kernel(
                *(at, at + 1, 0, *rows, mdp.rewards, 0.9, True, counts, np.arange(n)),
                *(read_only(table), action, match),
            )
            off = backup_pair_exact(mdp, 0.9, table, s, t, "lax") - Fraction(float(table[s, t]))
            assert -Fraction(fall) <= off <= Fraction(rise), (seed, s, t)
            assert rise <= max(float(off), 0.0) + 1e-13
            assert fall <= max(-float(off), 0.0) + 1e-13


@pytest.mark.parametrize("support", [1, 2, 4])
def test_residuals_near_the_fixed_point_are_tight_and_true(support: int) -> None:
    for seed in range(8):
        base = sparse_mdp(5, 3, support=support, seed=seed)
        gamma = (0.0, 0.5, 0.9, 0.99)[seed % 4]
        kind = DeterministicPairs if support == 1 else StochasticPairs
        pairs = kind(base, gamma, Matching.of(base, "lax", None), ONE, None)
        pairs.improve(1e-14, 500)
        rise, fall = pairs.residual()
        assert max(rise, fall) <= 1e-12 / (1.0 - gamma)
        table = pairs.full_table()
        for s in range(5):
            for t in range(s + 1, 5):
                truth = backup_pair_exact(base, gamma, table, s, t, "lax")
                now = Fraction(float(table[s, t]))
                assert now - Fraction(fall) <= truth <= now + Fraction(rise)


# -- laws --------------------------------------------------------------------------------------


@given(scrambled_mdps(max_states=6, max_actions=3), gammas(0.99))
def test_values_differ_by_no_more_than_states(mdp: TabularMDP, gamma: float) -> None:
    lax = bisimulation_metric(mdp, gamma, relation="lax")
    plain = bisimulation_metric(mdp, gamma)
    assert (lax.lower <= plain.upper).all()
    values = optimal_values_exact(mdp, gamma)
    for table in (lax.upper, plain.upper):
        for s, t in np.ndindex(table.shape):
            assert abs(values[s] - values[t]) <= Fraction(float(table[s, t]))


@given(scrambled_mdps(max_states=6, max_actions=3), gammas(0.9), st.sampled_from(RELATIONS))
def test_it_is_a_pseudometric(mdp: TabularMDP, gamma: float, relation: str) -> None:
    bounds = bisimulation_metric(mdp, gamma, relation=relation)
    lower, upper = bounds.lower, bounds.upper
    np.testing.assert_array_equal(upper, upper.T)
    over = lower[:, None, :] - (upper[:, :, None] + upper[None, :, :])
    assert over.max() <= 1e-12 * max(float(upper.max()), 1.0)


@given(mdps(max_states=5, kinds=("deterministic",)), gammas(), st.integers(0, 2**32 - 1))
def test_with_and_without_transport_agree(mdp: TabularMDP, gamma: float, seed: int) -> None:
    n = max(mdp.n_states, 2)
    mdp, _ = scrambled(mdp, seed, n_states=n + 1, n_actions=mdp.n_actions + 1)
    model = bisimulation_classes(mdp, relation="lax", initial=np.arange(mdp.n_states)).quotient
    top = float(np.ptp(mdp.rewards)) / (1.0 - gamma)
    for matching in (
        Matching.of(model, "lax", None),
        Matching.of(model, "plain", 2.0 * top if model.has_action_sets else None),
    ):
        tables = []
        for kind in (DeterministicPairs, StochasticPairs):
            pairs = kind(model, gamma, matching, ONE, None)
            pairs.improve(1e-14 * top, 2000)
            rise, fall = pairs.residual()
            assert max(rise, fall) <= 1e-12 * top + 1e-314
            tables.append(pairs.full_table())
        allowed = 4e-12 * tables[0].max() / (1.0 - gamma)
        np.testing.assert_allclose(tables[0], tables[1], rtol=0.0, atol=allowed)


@given(scrambled_mdps(max_states=5), st.integers(1, 6), gammas(0.99), st.sampled_from(RELATIONS))
def test_distortion_bounds_what_merging_changes(
    mdp: TabularMDP, digits: int, gamma: float, relation: str
) -> None:
    mdp = perturbed(mdp, digits)
    classes = bisimulation_classes(mdp, relation=relation, digits=digits)
    ground = apart(mdp, gamma, relation)
    merged = bisimulation_metric(mdp, gamma, relation=relation, classes=classes)
    assert (merged.lower <= ground.upper).all()
    assert (ground.lower <= merged.upper).all()
    if merged.n_classes < mdp.n_states:
        x = classes.labels
        same = (x[:, None] == x) & ~np.eye(x.size, dtype=bool)
        assert (ground.lower[same] <= classes.distortion(gamma)).all()


# -- convergence -------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("support", [1, 3])
def test_it_converges_however_far_ahead_states_look(gamma: float, support: int) -> None:
    for seed in range(6):
        mdp = perturbed(
            scrambled(
                sparse_mdp(12, 3, support=support, seed=seed), seed, n_states=30, n_actions=4
            )[0],
            seed,
        )
        bounds = bisimulation_metric(mdp, gamma, relation="lax")
        assert bounds.is_converged
        assert bounds.sweeps < 150


def test_real_environments_converge() -> None:
    taxi = extract_mdp(gym.make("Taxi-v3"))
    rooms = extract_mdp(RoomsGridEnv(side=8, room_size=4))
    for mdp, gamma in ((taxi, 0.99), (rooms, 0.95)):
        lax = bisimulation_metric(mdp, gamma, relation="lax")
        plain = bisimulation_metric(mdp, gamma)
        assert lax.is_converged
        assert (lax.lower <= plain.upper).all()
        assert lax.diameter[1] <= plain.diameter[1] * (1.0 + 1e-12)


def test_any_number_of_threads_gives_the_same() -> None:
    mdp = perturbed(random_model(7, support=3), 7)
    one, two = (
        bisimulation_metric(mdp, 0.9, relation="lax", resources=Resources(threads=k))
        for k in (1, 2)
    )
    np.testing.assert_array_equal(one.lower, two.lower)
    np.testing.assert_array_equal(one.upper, two.upper)


# -- errors ------------------------------------------------------------------------------------


def test_bad_relations_are_refused() -> None:
    mdp = mirrored(4)
    with pytest.raises(
        InvalidArgumentError, match="relation must be one of 'plain', 'lax', got 'weak'"
    ):
        bisimulation_metric(mdp, 0.9, relation="weak")
    plain, lax = (bisimulation_classes(mdp, relation=relation) for relation in RELATIONS)
    with pytest.raises(
        InvalidArgumentError,
        match=r"classes are those of the plain relation, not of the lax one; "
        r"make them by bisimulation_classes\(mdp, relation='lax'\)",
    ):
        bisimulation_metric(mdp, 0.9, relation="lax", classes=plain)
    with pytest.raises(InvalidArgumentError, match="lax relation, not of the plain one"):
        bisimulation_metric(mdp, 0.9, classes=lax)


def test_rewards_that_would_overflow_are_refused() -> None:
    available = np.array([[True, False], [True, True]])
    P = np.repeat(np.eye(2)[:, None, :], 2, axis=1)
    mdp = TabularMDP.from_dense(P, [[1e307, 0.0], [0.0, 0.0]], order="sas", available=available)
    for relation in RELATIONS:
        with pytest.raises(InvalidArgumentError, match="the metric would overflow; rescale"):
            bisimulation_metric(mdp, 0.99, relation=relation)
