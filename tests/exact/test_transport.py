"""`solve_transport` and its bounds against exact arithmetic and a linear program."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from bisim_abstract import InvalidArgumentError, Resources
from bisim_abstract._base.jit import kernel
from bisim_abstract._kernels.transport import bounds_kernel, normalise_rows_kernel
from bisim_abstract.parts import TransportPlans, solve_transport
from tests.support.examples import naming
from tests.support.oracles import transport_exact, transport_lp

Floats = npt.NDArray[np.float64]


class Problem(NamedTuple):
    cost: Floats
    a: Floats
    b: Floats


def exact(problem: Problem) -> Fraction:
    return transport_exact(problem.cost.tolist(), problem.a.tolist(), problem.b.tolist())


def encloses(lower: float, value: Fraction, upper: float) -> bool:
    return Fraction(lower) <= value <= Fraction(upper)


def solve(problem: Problem) -> TransportPlans:
    return solve_transport(*problem)


COSTS = {
    "ties": st.sampled_from((0.0, 1.0, 2.0)),
    "unit": st.floats(0.0, 1.0),
    "huge": st.floats(0.0, 1.0).map(lambda x: x * 1e12),
    "tiny": st.sampled_from((0.0, 1e-300, 2e-300, 3e-300)),
    "wide": st.sampled_from((0.0, 1e-12, 3e-12, 1.0, 1e12, 2e12)),
}
MASSES = {
    "uniform": st.just(1.0),
    "few": st.integers(1, 4).map(float),
    "zeros": st.sampled_from((0.0, 0.0, 1.0, 2.0)),
    "tiny": st.sampled_from((1.0, 1e-20, 1e-300, 3.0)),
    "last digit": st.sampled_from((1.0, math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0))),
    "any": st.floats(1e-3, 1.0),
}


@st.composite
def masses(draw: st.DrawFn, size: int) -> Floats:
    entry = MASSES[draw(st.sampled_from(sorted(MASSES)))]
    drawn = draw(st.lists(entry, min_size=size, max_size=size))
    if not any(drawn):
        drawn[draw(st.integers(0, size - 1))] = 1.0
    return np.array(drawn)


@st.composite
def problems(draw: st.DrawFn, max_size: int = 6) -> Problem:
    m, n = draw(st.integers(1, max_size)), draw(st.integers(1, max_size))
    entry = COSTS[draw(st.sampled_from(sorted(COSTS)))]
    cost = np.array(draw(st.lists(entry, min_size=m * n, max_size=m * n))).reshape(m, n)
    return Problem(cost, draw(masses(m)), draw(masses(n)))


# -- laws on small problems --------------------------------------------------------------------


@given(problems())
def test_bounds_enclose_the_exact_value(problem: Problem) -> None:
    plan = solve(problem)
    assert encloses(float(plan.lower), exact(problem), float(plan.upper))


@given(problems())
def test_bounds_are_tight(problem: Problem) -> None:
    plan = solve(problem)
    assert plan.upper - plan.lower <= 1e-12 * problem.cost.max() + 1e-314
    assert abs(plan.value - float(exact(problem))) <= 1e-13 * problem.cost.max()


@given(problems())
def test_value_is_that_of_a_linear_program(problem: Problem) -> None:
    expected = transport_lp(*problem)
    assert abs(float(solve(problem).value) - expected) <= 1e-7 * problem.cost.max()


@given(problems())
def test_coupling_has_the_marginals(problem: Problem) -> None:
    coupling = solve(problem).coupling
    assert coupling.shape == problem.cost.shape
    assert (coupling >= 0.0).all()
    np.testing.assert_allclose(coupling.sum(axis=1), problem.a / problem.a.sum(), atol=4e-15)
    np.testing.assert_allclose(coupling.sum(axis=0), problem.b / problem.b.sum(), atol=4e-15)


@given(problems())
def test_potentials_are_feasible_and_optimal(problem: Problem) -> None:
    plan = solve(problem)
    top = problem.cost.max()
    assert (plan.u[:, None] + plan.v <= problem.cost + 1e-13 * top).all()
    dual = problem.a / problem.a.sum() @ plan.u + problem.b / problem.b.sum() @ plan.v
    assert abs(dual - float(exact(problem))) <= 1e-13 * top


@given(problems(), st.sampled_from((0.125, 8.0, 2.0**40)), st.sampled_from((0.25, 2.0**30)))
def test_powers_of_two_change_nothing_but_the_scale(
    problem: Problem, factor: float, weight: float
) -> None:
    problem = Problem(np.where(problem.cost < 1e-200, 0.0, problem.cost), problem.a, problem.b)
    plan = solve(problem)
    other = solve_transport(problem.cost * factor, problem.a * weight, problem.b)
    np.testing.assert_array_equal(other.coupling, plan.coupling)
    np.testing.assert_array_equal(other.value, plan.value * factor)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), masses(n))), st.randoms())
def test_equal_rows_cost_nothing(case: tuple[int, Floats], random: Any) -> None:
    n, mass = case
    points = np.array([random.random() for _ in range(n)])
    cost = np.abs(points[:, None] - points)  # a metric: zero diagonal
    plan = solve_transport(cost, mass, mass)
    assert plan.value == 0.0
    assert plan.lower == 0.0
    assert 0.0 <= plan.upper <= 1e-14


@given(problems(), st.booleans())
def test_swapping_both_sides_transposes(problem: Problem, split: bool) -> None:
    a, b = problem.a, problem.b
    there, back = solve_transport(problem.cost, a, b), solve_transport(problem.cost.T, b, a)
    top = problem.cost.max()
    assert there.lower <= back.upper
    assert back.lower <= there.upper
    assert abs(there.value - back.value) <= 1e-13 * top
    if split:  # a support point listed twice, with half its mass each
        halves = np.append(a, a[-1] / 2)
        halves[-2] = a[-1] / 2
        doubled = solve_transport(np.vstack([problem.cost, problem.cost[-1:]]), halves, b)
        assert doubled.lower <= there.upper
        assert there.lower <= doubled.upper


# -- the slack is needed, and enough -----------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(2, 2), (2, 3), (3, 3), (4, 4), (1, 7), (7, 1), (5, 6)])
def test_bounds_enclose_on_many_random_problems(m: int, n: int) -> None:
    rng = np.random.default_rng(100 * m + n)
    count = 300
    costs = rng.random((count, m, n)) * rng.choice([1e-9, 1.0, 1e12], size=(count, 1, 1))
    a, b = rng.random((count, m)), rng.random((count, n))
    plans = solve_transport(costs, a, b)
    misses = 0
    for k in range(count):
        value = exact(Problem(costs[k], a[k], b[k]))
        assert encloses(float(plans.lower[k]), value, float(plans.upper[k])), k
        misses += Fraction(float(plans.value[k])) != value
    assert misses > count // 2  # plain arithmetic is not exact: the bounds had work to do


def test_bounds_enclose_when_costs_nearly_cancel() -> None:
    # Potentials as large as the costs, and a value far below them.
    rng = np.random.default_rng(5)
    for _ in range(100):
        points = rng.random(5) + np.array([0.0, 1.0, 2.0, 3.0, 4.0]) * 1e6
        cost = np.abs(points[:, None] - points)
        a = rng.random(5)
        b = a * (1.0 + 1e-15 * rng.integers(-4, 5, size=5))
        plan = solve_transport(cost, a, b)
        assert encloses(float(plan.lower), exact(Problem(cost, a, b)), float(plan.upper)), (a, b)


# -- the solver is not trusted -----------------------------------------------------------------


@kernel
def bounds_of(
    m: int, n: int, cost: Floats, a: Floats, b: Floats, flow: Floats, u: Floats
) -> tuple[float, float]:
    """What only kernels can call."""
    return bounds_kernel(m, n, cost, a, b, flow, u)


def garbage_bounds(problem: Problem, flow: Floats, u: Floats) -> tuple[float, float]:
    m, n = problem.cost.shape
    # One rounding for the sum, one for the quotient: what the kernel expects of its masses.
    a = problem.a / math.fsum(problem.a)
    b = problem.b / math.fsum(problem.b)
    return bounds_of(m, n, problem.cost.ravel(), a, b, flow.ravel(), u)


@given(problems(max_size=5), st.data())
def test_any_flow_and_any_potentials_give_bounds(problem: Problem, data: st.DataObject) -> None:
    m, n = problem.cost.shape
    top = problem.cost.max()
    amount = st.sampled_from((0.0, 1e-17, 0.1, 0.5, 1.0)) | st.floats(0.0, 3.0)
    height = st.sampled_from((0.0, -1.0, 1.0)) | st.floats(-1e6, 1e6)
    flow = np.array(data.draw(st.lists(amount, min_size=m * n, max_size=m * n)))
    u = np.array(data.draw(st.lists(height, min_size=m, max_size=m))) * (top or 1.0)
    lower, upper = garbage_bounds(problem, flow, u)
    assert encloses(lower, exact(problem), upper)


@pytest.mark.parametrize("spoil", ["none", "scale", "drop", "add", "noise", "shift"])
def test_a_spoilt_answer_gives_bounds(spoil: str) -> None:
    rng = np.random.default_rng(sum(map(ord, spoil)))
    for _ in range(250):
        m, n = rng.integers(1, 6, size=2)
        problem = Problem(rng.random((m, n)), rng.random(m), rng.random(n))
        plan = solve(problem)
        flow, u = plan.coupling.copy(), plan.u.copy()
        i, j = rng.integers(m), rng.integers(n)
        if spoil == "scale":
            flow *= 1.0 + rng.choice([-1e-3, -1e-15, 1e-15, 1e-3])
        elif spoil == "drop":
            flow[i, j] = 0.0
        elif spoil == "add":
            flow[i, j] += rng.choice([1e-16, 1e-3, 10.0])
        elif spoil == "noise":
            u += rng.normal(size=m) * rng.choice([1e-16, 1e-3, 10.0])
        elif spoil == "shift":
            u += rng.choice([-1e9, 1e9])
        lower, upper = garbage_bounds(problem, flow, u)
        assert encloses(lower, exact(problem), upper)


@pytest.mark.parametrize("side", [10, 20, 33, 40, 55])
def test_rounding_that_leans_one_way_is_covered(side: int) -> None:
    # Equal terms round alike: the sum of the product coupling drifts, term after term.
    for m in range(side - 3, side + 4):
        cost = np.full((m, side), 3.0)
        problem = Problem(cost, np.ones(m), np.ones(side))
        flow = np.full((m, side), 1.0 / (m * side))
        lower, upper = garbage_bounds(problem, flow, np.full(m, 0.1))
        assert encloses(lower, Fraction(3), upper)


def test_no_flow_at_all_costs_the_most() -> None:
    problem = Problem(np.array([[1.0, 3.0]]), np.array([1.0]), np.array([0.5, 0.5]))
    lower, upper = garbage_bounds(problem, np.zeros((1, 2)), np.zeros(1))
    assert encloses(lower, Fraction(2), upper)
    assert 3.0 <= upper <= 3.1


def test_missing_mass_on_one_side_is_charged() -> None:
    # The flow serves the cheap sink only: rows are complete, one column gets too much.
    problem = Problem(np.array([[0.0, 5.0]]), np.array([1.0]), np.array([0.5, 0.5]))
    _, upper = garbage_bounds(problem, np.array([[1.0, 0.0]]), np.zeros(1))
    assert upper >= 2.5
    # Too little leaves: columns are never exceeded, the row is not complete.
    _, upper = garbage_bounds(problem, np.array([[0.5, 0.0]]), np.zeros(1))
    assert upper >= 2.5


def test_normalised_masses_are_within_two_roundings() -> None:
    rng = np.random.default_rng(8)
    sizes = rng.integers(1, 40, size=60)
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    weights = rng.random(indptr[-1]) * 10.0 ** rng.integers(-18, 1, size=indptr[-1])
    out = np.empty_like(weights)
    normalise_rows_kernel(indptr, weights, out)
    for begin, end in pairwise(indptr):
        total = sum(Fraction(x) for x in weights[begin:end].tolist())
        for x, q in zip(weights[begin:end].tolist(), out[begin:end].tolist(), strict=True):
            assert abs(Fraction(q) - Fraction(x) / total) <= 2 * Fraction(x) / total / 2**53


# -- extreme numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masses_a", "masses_b"),
    [
        ([1e-320, 1.0], [1.0]),
        ([5 * 5e-324, 7.0], [1.0]),
        ([5e-324, 3.0, 1e-310], [0.2, 0.8]),
        ([1e-300, 1e-300], [1.0, 3.0]),
        ([1e300, 1e-300], [1.0, 1.0]),
        ([1.7e308, 1.7e308], [1.0, 2.0]),
        ([3.0, 5e-324], [5e-324, 5e-324]),
    ],
)
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e12, 1e300])
def test_masses_at_the_ends_of_the_number_line(
    masses_a: list[float], masses_b: list[float], scale: float
) -> None:
    m, n = len(masses_a), len(masses_b)
    # The first source is far from everything: its mass alone makes the cost.
    cost = np.zeros((m, n))
    cost[0] = scale
    problem = Problem(cost, np.array(masses_a), np.array(masses_b))
    plan = solve(problem)
    assert encloses(float(plan.lower), exact(problem), float(plan.upper))


@pytest.mark.parametrize("top", [1e300, 1e307, 1.7e308])
def test_costs_at_the_end_of_the_number_line(top: float) -> None:
    rng = np.random.default_rng(3)
    costs = rng.random((60, 5, 5)) * top
    a, b = rng.random((60, 5)), rng.random((60, 5))
    plans = solve_transport(costs, a, b)
    for k in range(60):
        assert not math.isnan(plans.lower[k])
        assert plans.lower[k] <= plans.upper[k]
        value = exact(Problem(costs[k], a[k], b[k]))
        assert Fraction(float(plans.lower[k])) <= value
        assert plans.upper[k] == math.inf or value <= Fraction(float(plans.upper[k]))


@pytest.mark.parametrize(
    "cost", [[[0.0, 0.0], [0.0, 0.0]], [[5e-324, 0.0], [0.0, 5e-324]], [[1e-320, 1e-310]] * 2]
)
def test_costs_next_to_zero(cost: list[list[float]]) -> None:
    problem = Problem(np.array(cost), np.array([0.3, 0.7]), np.array([0.6, 0.4]))
    plan = solve(problem)
    assert encloses(float(plan.lower), exact(problem), float(plan.upper))
    assert plan.upper <= 1e-309


# -- ties, degeneracy, size --------------------------------------------------------------------


def test_uniform_masses_are_assignments() -> None:
    for levels, n in product((1, 2, 3, 1000), (2, 5, 9, 17, 40, 80)):
        with naming(levels=levels, n=n):
            # Every vertex of this polytope is as degenerate as can be.
            rng = np.random.default_rng(n * levels)
            cost = rng.integers(0, levels, size=(n, n)).astype(np.float64)
            plan = solve_transport(cost, np.ones(n), np.full(n, 3.0))
            rows, cols = linear_sum_assignment(cost)
            expected = Fraction(int(cost[rows, cols].sum()), n)
            assert encloses(float(plan.lower), expected, float(plan.upper))
            assert plan.upper - plan.lower <= 1e-12 * levels


@pytest.mark.parametrize(("m", "n"), [(40, 40), (1, 40), (40, 1), (7, 40), (40, 7), (30, 31)])
def test_larger_problems(m: int, n: int) -> None:
    rng = np.random.default_rng(m + 100 * n)
    for cost in (rng.random((m, n)), rng.integers(0, 3, size=(m, n)).astype(np.float64)):
        problem = Problem(cost, rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(n)))
        plan = solve(problem)
        assert encloses(float(plan.lower), exact(problem), float(plan.upper))
        assert plan.upper - plan.lower <= 1e-12 * cost.max()


def test_whole_masses_with_many_equal_partial_sums() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        m, n = rng.integers(2, 13, size=2)
        a, b = rng.integers(1, 3, size=m), rng.integers(1, 3, size=n)
        cost = rng.integers(0, 2, size=(m, n))
        problem = Problem(cost.astype(float), a.astype(float), b.astype(float))
        plan = solve(problem)
        assert encloses(float(plan.lower), exact(problem), float(plan.upper))
        assert plan.upper - plan.lower <= 1e-13


def test_distances_on_a_line() -> None:
    # On a line the cost is the area between the two cumulative distributions.
    rng = np.random.default_rng(2)
    points = np.sort(rng.random(25))
    a, b = rng.dirichlet(np.ones(25)), rng.dirichlet(np.ones(25))
    area = np.abs(np.cumsum(a - b))[:-1] @ np.diff(points)
    plan = solve_transport(np.abs(points[:, None] - points), a, b)
    assert float(plan.value) == pytest.approx(area, rel=1e-12)


# -- batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 2), (3, 5), (8, 8)])
def test_a_batch_is_its_problems_bit_for_bit(m: int, n: int) -> None:
    rng = np.random.default_rng(m * n)
    costs = rng.random((3, 4, m, n))
    a, b = rng.random((4, m)), rng.random((3, 1, n))
    plans = solve_transport(costs, a, b)
    assert plans.value.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            alone = solve_transport(costs[i, j], a[j], b[i, 0])
            assert alone.value.shape == ()
            for name in ("value", "lower", "upper", "coupling", "u", "v"):
                np.testing.assert_array_equal(getattr(plans, name)[i, j], getattr(alone, name))


def test_a_neighbour_in_the_batch_changes_no_bit() -> None:
    # One problem of huge costs beside one of tiny costs, each solved as if it were alone.
    rng = np.random.default_rng(12)
    base = rng.random((3, 4, 4))
    costs = base * np.array([1e300, 1.0, 1e-290])[:, None, None]
    a, b = rng.random(4), rng.random(4)
    plans = solve_transport(costs, a, b)
    for k in range(3):
        alone = solve_transport(costs[k], a, b)
        for name in ("value", "lower", "upper", "coupling", "u", "v"):
            np.testing.assert_array_equal(getattr(plans, name)[k], getattr(alone, name))


def test_threads_change_no_bit() -> None:
    rng = np.random.default_rng(7)
    count = 4000  # more than two chunks
    costs = rng.integers(0, 4, size=(count, 8, 8)) + rng.random((count, 8, 8)).round(1)
    a, b = rng.random((count, 8)), rng.random((count, 8))
    one, two, many = (
        solve_transport(costs, a, b, resources=Resources(threads=k)) for k in (1, 2, None)
    )
    for name in ("value", "lower", "upper", "coupling", "u", "v"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        np.testing.assert_array_equal(getattr(one, name), getattr(many, name))


def test_an_empty_batch_is_allowed() -> None:
    plans = solve_transport(np.zeros((0, 2, 3)), np.ones(2), np.ones(3))
    assert plans.value.shape == (0,)
    assert plans.coupling.shape == (0, 2, 3)


def test_inputs_are_left_alone() -> None:
    cost, a, b = np.array([[1.0, 2.0]]), np.array([2.0]), np.array([1.0, 3.0])
    solve_transport(cost, a, b)
    assert (cost.tolist(), a.tolist(), b.tolist()) == ([[1.0, 2.0]], [2.0], [1.0, 3.0])


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "a", "b", "message"),
    [
        ([[0.0, -1.0]], [1.0], [0.5, 0.5], r"cost .*non-negative, got -1\.0 at \(0, 1\)"),
        ([[0.0, np.nan]], [1.0], [0.5, 0.5], r"cost .*finite.*nan at \(0, 1\)"),
        ([[np.inf, 0.0]], [1.0], [0.5, 0.5], r"cost .*finite.*inf at \(0, 0\)"),
        ([[0.0, 1.0]], [-0.5], [0.5, 0.5], r"a must be .*non-negative, got -0\.5 at \(0,\)"),
        ([[0.0, 1.0]], [np.nan], [0.5, 0.5], r"a must be finite"),
        ([[0.0, 1.0]], [1.0], [0.5, -2.0], r"b must be .*-2\.0 at \(1,\)"),
        ([[0.0, 1.0]], [0.0], [0.5, 0.5], "a must have positive total mass"),
        ([[0.0, 1.0]], [1.0], [0.0, 0.0], "b must have positive total mass"),
        ([[0.0, 1.0]], [1.0, 1.0], [0.5, 0.5], r"a of length 1.*got 2 and 2"),
        ([[0.0, 1.0]], [1.0], [1.0], r"b of length 2.*got 1 and 1"),
        ([0.0, 1.0], [1.0], [0.5, 0.5], r"cost needs at least 2 axes, got shape \(2,\)"),
        ([[0.0, 1.0]], 1.0, [0.5, 0.5], "a needs at least 1 axes"),
        (np.zeros((0, 2)), np.zeros(0), [0.5, 0.5], "above 0, got 0 and 2"),
        (np.zeros((3, 1, 2)), np.ones((2, 1)), [0.5, 0.5], r"broadcast, got \(3,\), \(2,\)"),
    ],
)
def test_bad_input_is_refused(cost: Any, a: Any, b: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        solve_transport(cost, a, b)


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_bad_thread_counts_are_refused(threads: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"threads must be .*{threads}"):
        solve_transport([[1.0]], [1.0], [1.0], resources=Resources(threads=threads))
