"""Bounds on optimal action values against fractions, and spanning trees against all pairs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import Resources, TabularMDP, certify, verify
from bisim_abstract._abstract.action_bounds import bound_action_values
from bisim_abstract._bounds.action_values import (
    ActionValues,
    TooMuchWorkError,
    equal_rows,
    spanning_tree,
)
from bisim_abstract._prove import optimal
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.parts import random_mdp, sparse_mdp
from tests.support.action_values import (
    GAMMAS,
    REWARDS,
    components,
    encloses,
    gaps,
    masked_estimate,
    models_within,
    optimal_q,
    random_model,
)
from tests.support.examples import grid, naming, seeds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator
ONE = Resources(threads=1)
LEAST = 5e-324


def check(found: ActionValues, truths: list[list[list[Fraction]]]) -> None:
    """Middles, and bounds of all pairs, against the exact values of some models."""
    radius = Fraction(found.radius)
    for q in truths:
        for own, line in zip(found.values.tolist(), q, strict=True):
            for middle, exact in zip(own, line, strict=True):
                assert abs(Fraction(middle) - exact) <= radius
    s, t = np.triu_indices(found.n_states, 1)
    lower, upper = found.read(s, t)
    tables = [gaps(q) for q in truths]
    for k, (x, y) in enumerate(zip(s.tolist(), t.tolist(), strict=True)):
        gap = Fraction(float(upper[k])) - Fraction(float(lower[k]))
        assert 0 <= gap <= Fraction(found.width)
        exacts = [table[x][y] for table in tables]
        assert encloses(float(lower[k]), float(upper[k]), exacts), (x, y)


# -- values ------------------------------------------------------------------------------------


@grid(seed=range(12), gamma=GAMMAS, kind=REWARDS)
def test_optimal_values_are_within_the_radius(kind: str, gamma: float, seed: int) -> None:
    mdp = random_model(seed, kind=kind)
    found = bound_action_values(mdp, gamma)
    check(found, [optimal_q(mdp, gamma)])
    # No wider than rounding, and what is solved for, ask for.
    size = float(np.abs(mdp.rewards).max()) / (1.0 - gamma)
    assert found.radius <= 1e-9 * size / (1.0 - gamma) + 1e-285


@seeds(60)
def test_values_hold_for_models_within_the_radii(seed: int) -> None:
    mdp = masked_estimate(seed)
    gamma = (0.0, 0.5, 0.875)[seed % 3]
    found = bound_action_values(mdp, gamma)
    check(found, [optimal_q(truth, gamma) for truth in models_within(mdp, gamma, seed)])


@pytest.mark.slow
@pytest.mark.parametrize("gamma", GAMMAS)
def test_values_of_many_models(gamma: float) -> None:
    for seed in range(1_000, 1_150):
        with naming(seed=seed):
            mdp, estimate = random_model(seed, max_states=9), masked_estimate(seed)
            check(bound_action_values(mdp, gamma), [optimal_q(mdp, gamma)])
            truths = [optimal_q(truth, gamma) for truth in models_within(estimate, gamma, seed, 6)]
            check(bound_action_values(estimate, gamma), truths)


@pytest.mark.parametrize("grid", [1e-12, 0.01, 0.3, 5.0, 1e6])
@pytest.mark.parametrize("seed", range(4))
def test_coarser_grids_widen_the_radius_and_no_more(seed: int, grid: float) -> None:
    mdp, gamma = random_model(seed, kind="plain"), 0.9
    found = bound_action_values(mdp, gamma, grid=grid)
    check(found, [optimal_q(mdp, gamma)])
    step = 2.0 ** np.floor(np.log2(grid))
    assert (found.values == np.round(found.values / step) * step).all()
    assert found.radius <= 2.0 * step / (1.0 - gamma) + 1e-8


def test_tolerances_count() -> None:
    mdp = random_mdp(30, 2, seed=0)
    rough, fine = (bound_action_values(mdp, 0.99, tol=tol) for tol in (10.0, 1e-9))
    assert fine.radius <= rough.radius
    middle = np.abs(rough.values - fine.values).max()
    assert middle <= rough.radius + fine.radius


def test_equal_values_are_linked_from_twice_the_width_of_middles_on() -> None:
    """Copies of states, by other rows, whose sums are rounded otherwise."""
    rng = np.random.default_rng(0)
    base = rng.dirichlet(np.ones(5), (5, 2))
    rewards = rng.random((5, 2))
    labels = np.arange(15) % 5
    P = np.zeros((15, 2, 15))
    for s in range(15):
        for c in range(5):
            share = rng.dirichlet(np.ones(3))
            P[s, :, labels == c] = np.outer(share, base[labels[s], :, c])
    mdp = TabularMDP.from_dense(P, rewards[labels], order="sas")
    found = bound_action_values(mdp, 0.9)
    lower, upper = found.forests(np.zeros(15, np.int64), 1e3)
    assert lower.labels(4.0 * found.radius * (1.0 + 1e-9)).tolist() == labels.tolist()
    assert upper.labels(4.0 * found.radius * (1.0 + 1e-9)).tolist() == labels.tolist()
    assert found.radius <= 1e-10


def test_actions_that_a_state_lacks_have_values_of_its_first() -> None:
    mdp = random_mdp(4, 3, seed=1).with_available(np.tril(np.ones((4, 3), bool), 0))
    found = bound_action_values(mdp, 0.5).values
    assert found[0].tolist() == [found[0, 0]] * 3
    assert found[1, 2] == found[1, 0] != found[1, 1]


@pytest.mark.parametrize("gamma", [0.5, 0.999])
@pytest.mark.parametrize("reward", [1e305, 1e307, 1.7e308])
def test_values_beyond_all_floats_are_refused(reward: float, gamma: float) -> None:
    """Rewards that are all the same are at distance 0, and so nothing else refuses them."""
    mdp = TabularMDP.from_dense(np.eye(3)[[1, 2, 2]][:, None, :], np.full((3, 1), reward))
    if 8.0 * reward / (1.0 - gamma) < np.inf:
        check(bound_action_values(mdp, gamma), [optimal_q(mdp, gamma)])
        return
    with pytest.raises(InvalidArgumentError, match="the values would overflow"):
        bound_action_values(mdp, gamma)


@pytest.mark.parametrize(
    ("values", "radius", "words"),
    [
        ([[0.0]], -1.0, "radius"),
        ([[0.0]], np.nan, "radius"),
        ([[0.0]], np.inf, "radius"),
        ([[np.nan]], 0.0, "finite"),
        ([[np.inf]], 0.0, "finite"),
        ([[1e308], [-1e308]], 0.0, "finite"),
        ([0.0], 0.0, "shape"),
        (np.empty((0, 1)), 0.0, "shape"),
    ],
)
def test_what_are_no_bounds_is_refused(values: Floats, radius: float, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        ActionValues(values=np.asarray(values), radius=radius)


# -- readings ----------------------------------------------------------------------------------


@seeds(40)
def test_readings_enclose_all_values_within_the_radius(seed: int) -> None:
    """Whatever the radius is: points at its very edge, on either side, in fractions."""
    rng = np.random.default_rng([1, seed])
    scale = float(rng.choice([1e-310, 1e-200, 1.0, 1e250]))
    values = rng.choice([0.0, 1.0, 1.0 / 3.0, rng.random()], (6, 2)) * scale
    radius = float(rng.choice([0.0, LEAST, 1e-17, 1e-3, 0.3, 2.0])) * (scale if rng.random() else 1)
    found = ActionValues(values=values, radius=radius)
    s, t = np.triu_indices(6, 1)
    lower, upper = found.read(s, t)
    for k, (x, y) in enumerate(zip(s.tolist(), t.tolist(), strict=True)):
        one, two = values[x].tolist(), values[y].tolist()
        away = [abs(Fraction(a) - Fraction(b)) for a, b in zip(one, two, strict=True)]
        exact = max(away)
        off = 2 * Fraction(radius)
        assert Fraction(float(lower[k])) <= max(exact - off, Fraction(0))
        assert Fraction(float(upper[k])) >= exact + off


# -- trees -------------------------------------------------------------------------------------


def points_of(rng: Rng, kind: str, n: int, d: int) -> Floats:
    """Points with many ties, copies, clouds, all equal, on a line, or any."""
    if kind == "whole":
        return rng.integers(0, 4, (n, d)).astype(float)
    if kind == "copies":
        return rng.random((max(n // 4, 1), d))[rng.integers(max(n // 4, 1), size=n)]
    if kind == "clouds":
        return rng.integers(0, 3, (n, 1)) + 1e-3 * rng.random((n, d))
    if kind == "equal":
        return np.full((n, d), 0.1)
    if kind == "line":
        signs: Floats = rng.choice([1.0, -1.0], d)
        return np.outer(rng.integers(0, n, n) / 8.0, signs)
    if kind == "zeros":  # of both signs
        return rng.choice([0.0, -0.0, 1.0], (n, d))
    return rng.standard_normal((n, d))


POINTS = ("whole", "copies", "clouds", "equal", "line", "zeros", "any")
SHAPES = ((1, 1), (2, 3), (9, 1), (17, 2), (40, 3), (33, 60))


def tables_of(found: ActionValues, sets: Ints, diameter: float) -> tuple[Floats, Floats]:
    """Bounds of all pairs."""
    n = found.n_states
    s, t = (x.ravel() for x in np.indices((n, n)))
    out = []
    for bound in found.read(s, t):
        table = np.where(sets[s] == sets[t], np.minimum(bound, diameter), diameter).reshape(n, n)
        np.fill_diagonal(table, 0.0)
        out.append(table)
    return out[0], out[1]


@grid(seed=range(6), kind=POINTS, shape=SHAPES, radius=(0.0, 1e-9, 0.05, 0.6), n_sets=(1, 3))
def test_forests_are_single_linkage_of_all_pairs(
    n_sets: int, radius: float, shape: tuple[int, int], kind: str, seed: int
) -> None:
    rng = np.random.default_rng([seed, *shape, n_sets])
    points = points_of(rng, kind, *shape)
    sets = rng.integers(0, n_sets, shape[0])
    diameter = float(rng.choice([0.5, 2.0, 50.0]))
    found = ActionValues(values=points, radius=radius)
    tables = tables_of(found, sets, diameter)
    for table, forest in zip(tables, found.forests(sets, diameter), strict=True):
        assert forest.weights.size == shape[0] - 1
        assert (np.diff(forest.weights) >= 0.0).all()
        breaks = np.unique(np.append(forest.weights, table.ravel()[:: 1 + table.size // 40]))
        for tau in np.unique([0.0, *breaks, *np.nextafter(breaks, -1.0), 1e9]).tolist():
            assert forest.labels(tau).tolist() == components(table <= tau), tau


@pytest.mark.parametrize("seed", range(3))
def test_trees_of_many_points(seed: int) -> None:
    """Boxes of several depths: the same merge heights as of all pairs, by another algorithm."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import pdist

    rng = np.random.default_rng(seed)
    points = points_of(rng, ("any", "clouds", "whole")[seed], 700, 3)
    first, second, lengths = spanning_tree(points, np.zeros(700, np.int64))
    assert (np.abs(points[first] - points[second]).max(axis=1) == lengths).all()
    heights = linkage(pdist(points, "chebyshev"), "single")[:, 2]
    assert np.array_equal(np.sort(lengths), np.sort(heights))
    is_one = np.zeros((700, 700), bool)
    is_one[first, second] = True
    assert set(components(is_one)) == {0}


@pytest.mark.slow
@pytest.mark.parametrize("kind", POINTS)
def test_forests_of_many_shapes(kind: str) -> None:
    for seed in range(60):
        rng = np.random.default_rng([seed, 99])
        n, d = int(rng.integers(1, 90)), int(rng.choice([1, 2, 3, 8, 30, 60]))
        sets = rng.integers(0, int(rng.integers(1, 5)), n)
        radius = float(rng.choice([0.0, 1e-3, 0.4]))
        found = ActionValues(values=points_of(rng, kind, n, d), radius=radius)
        forests = found.forests(sets, 7.0)
        for table, forest in zip(tables_of(found, sets, 7.0), forests, strict=True):
            breaks = np.append(forest.weights, np.nextafter(forest.weights, -1.0))
            for tau in np.unique(breaks).tolist():
                with naming(seed=seed, tau=tau):
                    assert forest.labels(tau).tolist() == components(table <= tau)


def test_both_forests_have_the_same_edges() -> None:
    """So that the arms agree exactly where no merge height lies within the radius of tau."""
    rng = np.random.default_rng(5)
    found = ActionValues(values=rng.random((60, 4)), radius=0.01)
    lower, upper = found.forests(rng.integers(0, 2, 60), 9.0)
    assert np.array_equal(lower.first, upper.first)
    assert np.array_equal(lower.second, upper.second)
    assert (lower.weights <= upper.weights).all()


def test_too_much_work_is_given_up() -> None:
    rng = np.random.default_rng(0)
    points, sets = rng.random((200, 5)), np.repeat([0, 1], 100)
    for most in (0, 1, 500):
        with pytest.raises(TooMuchWorkError):
            spanning_tree(points, sets, most)
        with pytest.raises(TooMuchWorkError):
            ActionValues(values=points, radius=0.0).forests(sets, 9.0, most=most)
    # Work of all sets counts together: each half of the points alone would be allowed.
    enough = _work(points[:100])
    spanning_tree(points[:100], sets[:100], enough)
    with pytest.raises(TooMuchWorkError):
        spanning_tree(np.concatenate([points[:100]] * 2), sets, enough + 100)
    # Equal points take none.
    spanning_tree(np.ones((50, 5)), np.zeros(50, np.int64), 0)


def _work(points: Floats) -> int:
    """The least limit that is enough."""
    low, high = 0, int(points.size * points.shape[0] * 20)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            spanning_tree(points, np.zeros(points.shape[0], np.int64), middle)
            high = middle
        except TooMuchWorkError:
            low = middle
    return high


@pytest.mark.parametrize("most", [0, 100, 300])
@pytest.mark.parametrize("seed", range(3))
def test_coarser_grids_where_points_are_too_many(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp, gamma = sparse_mdp(16, 4, support=2, seed=seed), 0.5
    if seed == 2:
        available = np.random.default_rng(0).random((16, 4)) < 0.9
        available[:, 0] = True
        mdp = mdp.with_available(available)
    free = certify(mdp, gamma, relation="optimal", tau=0.01, resources=ONE)
    monkeypatch.setattr(optimal, "MOST_WORK", most)
    made = certify(mdp, gamma, relation="optimal", tau=0.01, resources=ONE)
    found = made.action_values
    assert free.action_values is not None
    assert found is not None
    assert found.radius > 1e3 * free.action_values.radius
    assert "on a grid of" in made.run["steps"][0]
    assert "on a grid of" not in free.run["steps"][0]
    check(found, [optimal_q(mdp, gamma)])
    for tau in {x.low for x in made.certified_thresholds()}:
        assert made.at(tau).is_certified
        assert verify(mdp, made.at(tau)).is_valid
    assert verify(mdp, made).is_valid


# -- equal points --------------------------------------------------------------------------------


def check_equal(points: Floats, sets: Ints) -> None:
    """Neighbours in order, and one begin for each different point of a set."""
    order, begins = equal_rows(points, sets)
    assert np.array_equal(np.sort(order), np.arange(sets.size))
    groups = np.split(order, begins[1:])
    assert begins[0] == 0
    keys: list[tuple[float, ...]] = []
    for group in groups:
        own = {(int(sets[k]), *(points[k] + 0.0).tolist()) for k in group.tolist()}
        assert len(own) == 1
        keys += own
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("kind", POINTS)
@pytest.mark.parametrize("d", [1, 3, 60])
def test_equal_rows_are_neighbours(d: int, kind: str) -> None:
    rng = np.random.default_rng(d)
    points = points_of(rng, kind, 120, d)
    check_equal(points, rng.integers(0, 3, 120))
    check_equal(points, np.zeros(120, np.int64))
    check_equal(np.asfortranarray(points), rng.integers(0, 2, 120))


def turned(x: float) -> float:
    """The float with all bits turned over, which has the same hash."""
    return float((~np.array([x]).view(np.int64)).view(np.float64)[0])


@pytest.mark.parametrize("order", [[0, 1, 0, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
def test_different_points_with_one_hash_stay_apart(order: list[int]) -> None:
    x = 1.5
    values = np.array([[x], [turned(x)]])
    assert np.isfinite(values).all()
    points, sets = values[order], np.zeros(len(order), np.int64)
    check_equal(points, sets)
    check_equal(np.hstack([points, points[::-1]]), sets)
    first, second, lengths = spanning_tree(points, sets)
    assert sorted(lengths)[:-1] == [0.0] * (len(order) - 2)
    assert max(lengths) == abs(x - turned(x))
    assert first.size == second.size == len(order) - 1


def test_different_sets_with_one_hash_stay_apart() -> None:
    """The number of the set is hashed with the first coordinate: two of them may cancel out."""
    x = 1.0
    y = float((np.array([x]).view(np.int64) ^ 1).view(np.float64)[0])
    points = np.array([[x], [y], [x], [y], [x]])
    sets = np.array([0, 1, 0, 1, 0])
    check_equal(points, sets)
    _, _, lengths = spanning_tree(points, sets)
    assert sorted(lengths) == [0.0, 0.0, 0.0, np.inf]
