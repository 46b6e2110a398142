"""`bisimulation_metric`: both tables proven in exact arithmetic, and against other methods."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

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
    value_iteration,
)
from bisim_abstract._base.parallel import read_only
from bisim_abstract._base.types import Progress
from bisim_abstract._exact.pair_solvers import DeterministicPairs, Matching, StochasticPairs
from bisim_abstract._kernels import pairgraph
from bisim_abstract._kernels import transport as transport_kernels
from bisim_abstract.errors import MemoryLimitError
from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
from tests.support.examples import grid, naming
from tests.support.oracles import (
    backup_exact,
    backup_pair_exact,
    check_inequalities,
    classes_exact,
    metric_lp,
)
from tests.support.worlds import BY_HAND, dense, gammas, mdps, scaled, two_loops

ONE = Resources(threads=1)

Floats = npt.NDArray[np.float64]


def apart(mdp: TabularMDP, gamma: float, **options: Any) -> MetricBounds:
    """The metric without merging anything."""
    singles = bisimulation_classes(mdp, initial=np.arange(mdp.n_states))
    return bisimulation_metric(mdp, gamma, classes=singles, **options)


def check_form(bounds: MetricBounds) -> None:
    """What holds for every pair of tables: order, symmetry, zero diagonal, the stated gap."""
    lower, upper = bounds.lower, bounds.upper
    assert np.isfinite(upper).all()
    assert (lower >= 0.0).all()
    assert (lower <= upper).all()
    for table in (lower, upper, bounds.class_lower, bounds.class_upper):
        np.testing.assert_array_equal(table, table.T)
        assert not np.diag(table).any()
    widest = max(
        Fraction(u) - Fraction(x)
        for u, x in zip(upper.ravel().tolist(), lower.ravel().tolist(), strict=True)
    )
    assert widest <= Fraction(bounds.gap)
    assert bounds.is_converged == (bounds.gap <= bounds.tol)
    low, high = bounds.diameter
    assert (low, high) == (lower.max(), upper.max())


# -- known answers -----------------------------------------------------------------------------


def test_hand_solved_metrics() -> None:
    for known in BY_HAND:
        with naming(name=known.name, gamma=known.gamma):
            assert backup_exact(known.mdp, known.gamma, known.metric) == known.metric
            bounds = bisimulation_metric(known.mdp, known.gamma)
            assert bounds.labels.tolist() == known.labels
            assert bounds.is_converged
            check_form(bounds)
            n = known.mdp.n_states
            for s in range(n):
                for t in range(n):
                    low, high = (
                        Fraction(float(bounds.lower[s, t])),
                        Fraction(float(bounds.upper[s, t])),
                    )
                    assert low <= known.metric[s][t] <= high
            top = max(max(row) for row in known.metric)
            assert bounds.gap <= 1e-9 * float(top)


def test_one_class_has_distance_zero() -> None:
    mdp = TabularMDP.from_dense(np.full((4, 2, 4), 0.25), np.ones((4, 2)))
    bounds = bisimulation_metric(mdp, 0.9)
    assert bounds.n_classes == 1
    assert not bounds.upper.any()
    assert bounds.gap == 0.0
    assert bounds.is_converged
    assert bounds.diameter == (0.0, 0.0)


def test_without_future_only_rewards_count() -> None:
    mdp = random_mdp(9, 3, seed=2)
    bounds = bisimulation_metric(mdp, 0.0)
    gaps = np.abs(mdp.rewards[:, None] - mdp.rewards[None]).max(axis=2)
    assert (bounds.lower <= gaps).all()
    assert (gaps <= bounds.upper).all()
    assert bounds.gap <= 1e-14


def test_every_action_counts() -> None:
    # Neither state pays anything now; only action 1 leads them to different places.
    P = np.zeros((4, 2, 4))
    P[:, 0, 3] = 1.0
    P[0, 1, 2] = P[1, 1, 3] = P[2, 1, 2] = P[3, 1, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [[0, 0], [0, 0], [0, 1], [0, 0]])
    lower, upper = bisimulation_metric(mdp, 0.5).bounds(0, 1)
    assert lower <= 1.0 <= upper  # 0.5 times the 2 that states 2 and 3 are apart
    assert lower >= 1.0 - 1e-8


# -- laws --------------------------------------------------------------------------------------


@given(mdps(), gammas())
def test_both_tables_prove_themselves(mdp: TabularMDP, gamma: float) -> None:
    classes = bisimulation_classes(mdp)
    bounds = bisimulation_metric(mdp, gamma, classes=classes)
    check_form(bounds)
    if classes.is_exact and classes.lift_error == 0.0:
        check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper)
    else:
        wide = apart(mdp, gamma)
        assert (bounds.lower <= wide.upper).all()
        assert (wide.lower <= bounds.upper).all()


@given(mdps(max_states=5), gammas(), st.integers(1, 3))
def test_few_sweeps_prove_themselves(mdp: TabularMDP, gamma: float, max_sweeps: int) -> None:
    bounds = apart(mdp, gamma, max_sweeps=max_sweeps)
    assert bounds.sweeps <= max_sweeps
    check_form(bounds)
    check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper)


@given(mdps(max_states=5), gammas(0.99))
def test_the_metric_converges_to_rounding(mdp: TabularMDP, gamma: float) -> None:
    bounds = apart(mdp, gamma, tol=1e-300)
    check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper)
    assert bounds.gap <= 1e-13 * bounds.diameter[1] / (1.0 - gamma) + 1e-300


@given(mdps(), gammas(0.99), st.integers(1, 12))
def test_rounded_classes_still_enclose(mdp: TabularMDP, gamma: float, digits: int) -> None:
    classes = bisimulation_classes(mdp, digits=digits)
    bounds = bisimulation_metric(mdp, gamma, classes=classes)
    check_form(bounds)
    truth = apart(mdp, gamma)
    check_inequalities(mdp, truth.gamma, truth.lower, truth.upper)
    assert (bounds.lower <= truth.upper).all()
    assert (truth.lower <= bounds.upper).all()
    if not classes.is_exact:
        assert bounds.within == classes.distortion(gamma)
        assert bounds.gap >= bounds.within


@given(mdps(max_states=7), gammas())
def test_triangle_inequality(mdp: TabularMDP, gamma: float) -> None:
    bounds = bisimulation_metric(mdp, gamma)
    lower, upper = bounds.lower, bounds.upper
    detour = (upper[:, :, None] + upper[None]).min(axis=1)
    assert (lower <= detour * (1.0 + 1e-15)).all()
    assert (upper <= detour * (1.0 + 1e-15) + bounds.gap).all()


@given(mdps(max_states=7), gammas())
def test_values_differ_by_at_most_the_metric(mdp: TabularMDP, gamma: float) -> None:
    upper = bisimulation_metric(mdp, gamma).upper
    values = value_iteration(mdp, gamma)
    low = [Fraction(x) for x in values.lower.tolist()]
    high = [Fraction(x) for x in values.upper.tolist()]
    for s in range(mdp.n_states):
        for t in range(mdp.n_states):
            assert s == t or low[s] - high[t] <= Fraction(float(upper[s, t]))


@given(mdps(max_states=7), gammas())
def test_bisimilar_states_are_at_distance_zero(mdp: TabularMDP, gamma: float) -> None:
    bounds = bisimulation_metric(mdp, gamma)
    truth = np.array(classes_exact(mdp))
    alike = truth[:, None] == truth
    assert not bounds.lower[alike].any()
    if bounds.within == 0.0:
        assert not bounds.upper[alike].any()
    if gamma > 0.1:
        # States that are not alike differ by more than nothing, within few enough steps.
        assert (bounds.upper[~alike] > 0.0).all()


@given(mdps(max_states=6), gammas(0.99), st.data())
def test_renaming_states_moves_the_metric(
    mdp: TabularMDP, gamma: float, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(mdp.n_states))))
    P = dense(mdp)[order][:, :, order]
    here = bisimulation_metric(mdp, gamma)
    there = bisimulation_metric(TabularMDP.from_dense(P, mdp.rewards[order], order="sas"), gamma)
    assert (here.lower[np.ix_(order, order)] <= there.upper).all()
    assert (there.lower <= here.upper[np.ix_(order, order)]).all()


# -- other methods -----------------------------------------------------------------------------


@grid(kind=["dense", "sparse", "deterministic"], seed=range(4))
def test_enclosed_by_value_iteration_with_a_linear_program(kind: str, seed: int) -> None:
    gamma = (0.3, 0.5, 0.6, 0.7)[seed]
    if kind == "dense":
        mdp = random_mdp(4, 2, seed=seed)
    else:
        mdp = sparse_mdp(5, 2, support=2 if kind == "sparse" else 1, seed=seed)
    mdp = scaled(mdp, -3.0)
    truth = metric_lp(mdp, gamma)
    bounds = bisimulation_metric(mdp, gamma)
    assert bounds.is_converged
    assert (bounds.lower <= truth + 1e-6).all()
    assert (truth - 1e-6 <= bounds.upper).all()
    assert bounds.gap <= 1e-7


@given(mdps(max_states=4, kinds=("ratios", "dense", "mixed")), gammas(0.5))
def test_encloses_the_linear_program_on_any_small_model(mdp: TabularMDP, gamma: float) -> None:
    truth = metric_lp(mdp, gamma)
    bounds = bisimulation_metric(mdp, gamma)
    allowed = 1e-6 * (float(np.ptp(mdp.rewards)) or 1.0)
    assert (bounds.lower <= truth + allowed).all()
    assert (truth - allowed <= bounds.upper).all()


@given(mdps(max_states=6, min_states=2, kinds=("deterministic",)), gammas())
def test_with_and_without_transport_agree(mdp: TabularMDP, gamma: float) -> None:
    tables = []
    for kind in (DeterministicPairs, StochasticPairs):
        pairs = kind(mdp, gamma, Matching.of(mdp, "plain", None), ONE, None)
        top = float(np.ptp(mdp.rewards)) / (1.0 - gamma)
        pairs.improve(1e-14 * top, 2000)
        rise, fall = pairs.residual()
        assert max(rise, fall) <= 1e-12 * top + 1e-314
        tables.append(pairs.full_table())
    allowed = 2e-12 * tables[0].max() / (1.0 - gamma)
    np.testing.assert_allclose(tables[0], tables[1], rtol=0.0, atol=allowed)


@given(mdps(max_states=5, kinds=("deterministic",)), gammas(0.99))
def test_a_state_that_nobody_reaches_changes_nothing(mdp: TabularMDP, gamma: float) -> None:
    # Its coin makes the model stochastic: the same distances come from the other solver.
    n, n_actions = mdp.rewards.shape
    P = np.zeros((n + 1, n_actions, n + 1))
    P[:n, :, :n] = dense(mdp)
    P[n, :, 0] = P[n, :, n] = 0.5
    rewards = np.vstack([mdp.rewards, np.full(n_actions, 17.0)])
    larger = TabularMDP.from_dense(P, rewards, order="sas")
    plain, other = bisimulation_metric(mdp, gamma), bisimulation_metric(larger, gamma)
    assert (plain.lower <= other.upper[:n, :n]).all()
    assert (other.lower[:n, :n] <= plain.upper).all()


# -- the proving sweep -------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn, n: int, scale: float) -> Floats:
    """Any symmetric table with zero diagonal: no metric, no fixed point."""
    entry = st.sampled_from((0.0, 1.0, 0.5)) | st.floats(0.0, 3.0)
    table = np.zeros((n, n))
    for s in range(n):
        for t in range(s):
            table[s, t] = table[t, s] = draw(entry) * scale
    return table


def pair_residual(
    mdp: TabularMDP, gamma: float, table: Floats, s: int, t: int, hint: int
) -> tuple[float, float]:
    n = mdp.n_states
    at = sum(n - 1 - k for k in range(s)) + t - s - 1
    action = np.full(n * (n - 1) // 2, hint, np.int64)
    return transport_kernels.residual_kernel(
        at,
        at + 1,
        0,
        mdp.indptr,
        mdp.indices,
        mdp.probs,
        mdp.normalised_probs,
        mdp.rewards,
        gamma,
        False,
        np.full(n, mdp.n_actions),
        np.arange(n),
        read_only(table),
        action,
        np.zeros((action.size, 0), np.int16),
    )


@given(mdps(max_states=4, min_states=2), gammas(), st.data())
def test_residuals_bound_the_exact_backup_of_any_table(
    mdp: TabularMDP, gamma: float, data: st.DataObject
) -> None:
    n = mdp.n_states
    scale = data.draw(st.sampled_from((1.0, 1e12, 1e-12)))
    table = data.draw(tables(n, scale))
    hint = data.draw(st.integers(0, mdp.n_actions - 1))
    for s in range(n):
        for t in range(s + 1, n):
            truth = backup_pair_exact(mdp, gamma, table, s, t)
            now = Fraction(float(table[s, t]))
            found = [pair_residual(mdp, gamma, table, s, t, hint)]
            if mdp.is_deterministic:
                successor = mdp.indices.reshape(n, mdp.n_actions)
                # This kernel walks whole rows of pairs: its bounds cover more than this one.
                action = np.full((n, n), hint, np.int16)
                found.append(
                    pairgraph.residual_kernel(
                        s,
                        s + 1,
                        successor,
                        mdp.rewards,
                        gamma,
                        False,
                        False,
                        np.full(n, mdp.n_actions),
                        table,
                        action,
                        np.zeros((n, n, 0), np.int16),
                    )
                )
            for rise, fall in found:
                assert now - Fraction(fall) <= truth <= now + Fraction(rise)


@pytest.mark.parametrize("support", [2, 3, 5])
def test_residuals_bound_the_exact_backup_near_the_fixed_point(support: int) -> None:
    # Here the exact residual is a few roundings: no slack, no proof.
    needed = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        mdp = sparse_mdp(6, 2, support=support, seed=seed)
        gamma = float(rng.choice([0.0, 0.5, 0.9, 0.99]))
        pairs = StochasticPairs(mdp, gamma, Matching.of(mdp, "plain", None), ONE, None)
        pairs.improve(0.0, 300)
        table = pairs.full_table()
        for s in range(6):
            for t in range(s + 1, 6):
                truth = backup_pair_exact(mdp, gamma, table, s, t)
                now = Fraction(float(table[s, t]))
                rise, fall = pair_residual(mdp, gamma, table, s, t, 0)
                assert now - Fraction(fall) <= truth <= now + Fraction(rise)
                needed += truth != now
    assert needed > 0


def test_a_single_successor_on_one_side_rounds_too() -> None:
    # One coupling only, summed directly: again a few roundings matter.
    needed = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        P = np.zeros((5, 1, 5))
        P[0, 0, 1] = 1.0
        P[1, 0, 1:] = rng.dirichlet(np.ones(4))
        for s in (2, 3, 4):
            P[s, 0, s] = 1.0
        mdp = TabularMDP.from_dense(P, rng.random(5))
        table = rng.random((5, 5))
        table = np.triu(table, 1) + np.triu(table, 1).T
        gamma = 0.9
        truth = backup_pair_exact(mdp, gamma, table, 0, 1)
        table[0, 1] = table[1, 0] = float(truth)  # the pair itself is not among its costs
        truth = backup_pair_exact(mdp, gamma, table, 0, 1)
        now = Fraction(float(table[0, 1]))
        rise, fall = pair_residual(mdp, gamma, table, 0, 1, 0)
        assert now - Fraction(fall) <= truth <= now + Fraction(rise)
        assert max(rise, fall) <= 1e-14
        needed += truth != now
    assert needed > 100


def test_a_long_sum_that_leans_one_way_is_covered() -> None:
    # One coupling, equal terms: their rounding errors add up instead of cancelling.
    drifts = 0
    for k in (50, 77, 99, 150, 210):
        P = np.zeros((k + 2, 1, k + 2))
        P[0, 0, 1] = 1.0
        P[1, 0, 2:] = 1.0 / k
        for s in range(2, k + 2):
            P[s, 0, s] = 1.0
        mdp = TabularMDP.from_dense(P, np.zeros(k + 2))
        table = 3.0 * (1.0 - np.eye(k + 2))
        rise, fall = pair_residual(mdp, 0.9, table, 0, 1, 0)
        truth = Fraction(0.9) * 3
        assert 3 - Fraction(fall) <= truth <= 3 + Fraction(rise)
        table[0, 1] = table[1, 0] = 0.9 * 3.0
        rise, fall = pair_residual(mdp, 0.9, table, 0, 1, 0)
        now = Fraction(0.9 * 3.0)
        assert now - Fraction(fall) <= truth <= now + Fraction(rise)
        total = 0.0
        for _ in range(k):
            total += 1.0 / k
        drifts += abs(total - 1.0) > 8.0 * 2.0**-53
    assert drifts > 0


def test_rows_equal_after_rounding_are_not_equal() -> None:
    # Divided by their sums the two rows round to the same floats, yet they differ by 2**-56.
    unit = 2.0**-54
    P = np.zeros((4, 1, 4))
    P[0, 0, [2, 3]] = 0.25, 0.75
    P[1, 0, [2, 3]] = 0.25 + unit, 0.75 + 2.0 * unit
    P[2, 0, 2] = P[3, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1.0, 0.0])
    first, second = mdp.normalised_probs[:2], mdp.normalised_probs[2:4]
    np.testing.assert_array_equal(first, second)
    table = np.zeros((4, 4))
    table[2, 3] = table[3, 2] = 2.0
    truth = backup_pair_exact(mdp, 0.5, table, 0, 1)
    assert truth > 0
    rise, _ = pair_residual(mdp, 0.5, table, 0, 1, 0)
    assert truth <= Fraction(rise)
    bounds = apart(mdp, 0.5)
    check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper)


@pytest.mark.parametrize("kind", [DeterministicPairs, StochasticPairs])
def test_whole_residuals_cover_every_pair(kind: type[DeterministicPairs | StochasticPairs]) -> None:
    for seed in range(6):
        mdp = sparse_mdp(6, 2, support=1, seed=seed)
        for sweeps in (0, 1, 2, 50):
            pairs = kind(mdp, 0.9, Matching.of(mdp, "plain", None), ONE, None)
            pairs.improve(1e-15, sweeps)
            rise, fall = pairs.residual()
            table = pairs.full_table()
            truth = backup_exact(mdp, 0.9, table)
            for s in range(6):
                for t in range(s):
                    now = Fraction(float(table[s, t]))
                    assert now - Fraction(fall) <= truth[s][t] <= now + Fraction(rise)


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("support", [1, 3])
@pytest.mark.parametrize("tol", [None, 1.0, 1e-3, 1e-8])
def test_a_converged_gap_is_below_the_tolerance(support: int, tol: float | None) -> None:
    bounds = bisimulation_metric(sparse_mdp(15, 2, support=support, seed=4), 0.95, tol=tol)
    assert bounds.is_converged
    assert bounds.tol == (tol or bounds.tol)
    assert (bounds.upper - bounds.lower).max() <= bounds.gap <= bounds.tol
    if tol is None:
        assert bounds.tol <= 1e-9 * bounds.diameter[1]


def test_an_impossible_tolerance_is_admitted(caplog: pytest.LogCaptureFixture) -> None:
    bounds = bisimulation_metric(sparse_mdp(10, 2, seed=1), 0.9, tol=1e-300)
    assert not bounds.is_converged
    assert bounds.gap < 1e-11
    assert "stays above tol" in caplog.text


def test_distances_of_zero_between_separate_classes_converge() -> None:
    # Nothing is ever paid; the classes are kept apart on request.
    mdp = TabularMDP.from_dense(np.full((3, 1, 3), 1 / 3), [0.0, 0.0, 0.0])
    bounds = apart(mdp, 0.5)
    assert bounds.n_classes == 3
    assert bounds.upper.max() <= 1e-300
    assert bounds.is_converged


@pytest.mark.parametrize(("n", "n_actions", "support"), [(110, 2, 3), (400, 16, 1)])
def test_threads_change_no_bit(n: int, n_actions: int, support: int) -> None:
    mdp = sparse_mdp(n, n_actions, support=support, seed=n)
    one, two = (bisimulation_metric(mdp, 0.9, resources=Resources(threads=k)) for k in (1, 2))
    np.testing.assert_array_equal(one.class_lower, two.class_lower)
    np.testing.assert_array_equal(one.class_upper, two.class_upper)
    assert (one.gap, one.sweeps) == (two.gap, two.sweeps)
    assert one.is_converged


@pytest.mark.parametrize("support", [1, 3])
def test_too_little_memory_is_refused(support: int) -> None:
    mdp = sparse_mdp(50, 2, support=support, seed=1)
    with pytest.raises(MemoryLimitError, match=r"50 bisimulation classes") as caught:
        bisimulation_metric(mdp, 0.9, resources=Resources(memory_limit=10_000))
    message = str(caught.value)
    assert "kB" in message
    assert "10.0 kB are allowed by memory_limit" in message
    assert "digits" in message
    assert isinstance(caught.value, MemoryError)


def test_little_memory_takes_plain_sweeps() -> None:
    mdp = sparse_mdp(30, 2, seed=1)
    roomy = bisimulation_metric(mdp, 0.9)
    tight = bisimulation_metric(mdp, 0.9, resources=Resources(memory_limit=60_000))
    assert tight.sweeps > roomy.sweeps
    assert tight.is_converged
    assert (tight.lower <= roomy.upper).all()
    assert (roomy.lower <= tight.upper).all()


def test_every_sweep_is_reported() -> None:
    seen: list[Progress] = []
    bounds = bisimulation_metric(sparse_mdp(12, 2, seed=0), 0.9, callback=seen.append)
    assert [progress.done for progress in seen] == list(range(1, bounds.sweeps + 1))
    assert "proving" in {progress.stage for progress in seen}


@pytest.mark.parametrize("gamma", [1.0, 1.5, -0.1, math.nan, math.inf, "x", None])
def test_invalid_discounts_are_refused(gamma: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="gamma must"):
        bisimulation_metric(two_loops(0.5).mdp, gamma)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, r"tol must be above 0, got 0\.0"),
        ({"tol": math.nan}, "tol must be finite, got nan"),
        ({"max_sweeps": 0}, "max_sweeps must be at least 1, got 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        bisimulation_metric(two_loops(0.5).mdp, 0.5, **options)


def test_classes_of_another_model_are_refused() -> None:
    mdp, other = sparse_mdp(6, 2, seed=0), sparse_mdp(6, 2, seed=1)
    with pytest.raises(InvalidArgumentError, match="another model"):
        bisimulation_metric(mdp, 0.5, classes=bisimulation_classes(other))
    same = sparse_mdp(6, 2, seed=0)
    assert bisimulation_metric(mdp, 0.5, classes=bisimulation_classes(same)).is_converged


# -- extreme numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-300, 1e-100, 1e-12, 1e12, 1e100, 1e290])
@pytest.mark.parametrize("support", [1, 3])
def test_rewards_of_any_size(support: int, factor: float) -> None:
    mdp = sparse_mdp(8, 2, support=support, seed=6)
    plain = bisimulation_metric(mdp, 0.9)
    bounds = bisimulation_metric(scaled(mdp, factor), 0.9)
    assert bounds.is_converged
    check_form(bounds)
    check_inequalities(scaled(mdp, factor), bounds.gamma, bounds.lower, bounds.upper)
    np.testing.assert_allclose(bounds.upper, plain.upper * factor, rtol=1e-8)
    # The work must not depend on the unit that rewards are counted in.
    assert bounds.sweeps <= 3 * plain.sweeps


def test_rewards_beyond_floats_are_refused() -> None:
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [1.7e308, -1.7e308])
    with pytest.raises(InvalidArgumentError, match="rescale"):
        bisimulation_metric(mdp, 0.5)
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [1e305, 0.0])
    with pytest.raises(InvalidArgumentError, match="rescale"):
        bisimulation_metric(mdp, 0.999)


@pytest.mark.parametrize("gamma", [0.999, 0.99999, 1.0 - 2.0**-30])
@pytest.mark.parametrize("kind", ["deterministic", "sparse"])
def test_discounts_near_one(kind: str, gamma: float) -> None:
    mdp = sparse_mdp(5, 2, support=1 if kind == "deterministic" else 2, seed=9)
    bounds = bisimulation_metric(mdp, gamma)
    check_form(bounds)
    check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper)
    assert bounds.gap <= max(1e-9, 1e-13 / (1.0 - gamma)) * bounds.diameter[1]


def test_states_told_apart_by_a_tiny_probability() -> None:
    for tiny in (1e-10, 1e-16, 1e-300):
        P = np.zeros((4, 1, 4))
        P[0, 0, [2, 3]] = 1.0, tiny
        P[1, 0, 2] = P[2, 0, 2] = P[3, 0, 3] = 1.0
        mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 1.0])
        bounds = bisimulation_metric(mdp, 0.5)
        check_inequalities(mdp, bounds.gamma, bounds.lower, bounds.upper)
        lower, upper = bounds.bounds(0, 1)
        truth = Fraction(tiny) / (1 + Fraction(tiny))  # 0.5 times that mass, times 2
        assert Fraction(float(lower)) <= truth <= Fraction(float(upper))


# -- the result --------------------------------------------------------------------------------


def test_bounds_broadcast() -> None:
    bounds = bisimulation_metric(sparse_mdp(9, 2, seed=3), 0.8)
    lower, upper = bounds.lower, bounds.upper
    low, high = bounds.bounds(2, 5)
    assert (float(low), float(high)) == (lower[2, 5], upper[2, 5])
    low, high = bounds.bounds(np.arange(9)[:, None], np.arange(9))
    np.testing.assert_array_equal(low, lower)
    np.testing.assert_array_equal(high, upper)
    low, high = bounds.bounds([0, 1, 2], 4)
    np.testing.assert_array_equal(high, upper[:3, 4])
    low, high = bounds.bounds([], [])
    assert low.shape == high.shape == (0,)


def test_bounds_know_twins_from_the_same_state() -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [0.0, 1e-4, 1.0])
    bounds = bisimulation_metric(mdp, 0.5, classes=bisimulation_classes(mdp, digits=2))
    assert bounds.n_classes == 2
    low, high = bounds.bounds([0, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(low, bounds.lower[0])
    np.testing.assert_array_equal(high, bounds.upper[0])
    assert high[0] == 0.0
    assert 2e-4 <= high[1] == bounds.within
    assert low[2] <= 2.0 <= high[2]
    assert bounds.diameter[1] == bounds.upper.max()


@pytest.mark.parametrize(
    ("states", "others", "message"),
    [
        (9, 0, r"states must lie in \[0, 9\)"),
        (0, -1, r"others must lie in \[0, 9\)"),
        (0.5, 0, "states must be state indices, got dtype float64"),
        (0, [True, False], "others must be state indices, got dtype bool"),
    ],
)
def test_bad_indices_are_refused(states: Any, others: Any, message: str) -> None:
    bounds = bisimulation_metric(sparse_mdp(9, 2, seed=3), 0.8)
    with pytest.raises(InvalidArgumentError, match=message):
        bounds.bounds(states, others)


def test_tables_are_read_only_and_the_result_prints_itself() -> None:
    mdp, _ = grouped_mdp(12, 3, 2, noise=0.0, seed=1)
    bounds = bisimulation_metric(mdp, 0.9, classes=bisimulation_classes(mdp, digits=9))
    with pytest.raises(ValueError, match="read-only"):
        bounds.class_upper[0, 1] = 0.0
    with pytest.raises(AttributeError):
        bounds.gap = 0.0  # type: ignore[misc]
    assert "12 states, 3 classes, gamma=0.9" in repr(bounds)
    summary = bounds.summary()
    assert "66 of 12 states (3 classes)" in summary
    assert "within tolerance" in summary
    assert f"sweeps    {bounds.sweeps}" in summary


def test_every_kind_of_model_is_drawn() -> None:
    # The laws above are only as good as their examples.
    seen: set[str] = set()

    @given(mdps())
    def look(mdp: TabularMDP) -> None:
        n_classes = max(classes_exact(mdp)) + 1
        seen.add("deterministic" if mdp.is_deterministic else "stochastic")
        seen.add("one state" if mdp.n_states == 1 else "states")
        seen.add("twins" if n_classes < mdp.n_states else "no twins")
        sums = np.add.reduceat(mdp.probs, mdp.indptr[:-1])
        seen.add("off by an ulp" if ((sums != 1.0) & (abs(sums - 1.0) < 1e-15)).any() else "")
        seen.add("absorbing" if mdp.absorbing.any() else "")
        seen.add("negative" if (mdp.rewards < 0.0).any() else "")
        seen.add("tiny" if (mdp.probs < 1e-15).any() else "")

    look()
    expected = {"deterministic", "stochastic", "one state", "twins", "no twins"}
    assert expected | {"off by an ulp", "absorbing", "negative", "tiny"} <= seen
