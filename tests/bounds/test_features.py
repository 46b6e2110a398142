"""Value features: corrections against rational arithmetic, bounds against the exact metric."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bisim_abstract._bounds.features as module
from bisim_abstract import (
    InvalidArgumentError,
    Resources,
    TabularMDP,
    bisimulation_metric,
    estimate_mdp,
    evaluate_policy,
    value_iteration,
)
from bisim_abstract._base.types import Progress
from bisim_abstract._bounds.features import (
    ValueFeatures,
    box_gap,
    value_features,
)
from bisim_abstract._bounds.witnesses import Witnesses
from bisim_abstract.parts import Estimate, grouped_mdp, random_mdp, sparse_mdp
from tests.support.examples import grid, naming, seeds
from tests.support.oracles import fractions, lifted_exact
from tests.support.worlds import BY_HAND, dense, gammas, mdps, scaled

Floats = npt.NDArray[np.float64]
ITERATIONS = st.sampled_from((1, 2, 3, 5, 10_000))


# -- rational references -----------------------------------------------------------------------


def ahead_exact(mdp: TabularMDP, x: int, a: int, g: list[Fraction]) -> Fraction:
    row = lifted_exact(mdp, range(mdp.n_states), x, a)
    return sum((mass * g[y] for y, mass in row.items()), Fraction(0))


def phi_exact(
    mdp: TabularMDP, gamma: float, signs: list[int], kind: int, g: list[Fraction]
) -> list[Fraction]:
    """Φg, every stored number taken as it is."""
    result = []
    for x in range(mdp.n_states):
        parts = [
            sign * Fraction(float(mdp.rewards[x, a])) + Fraction(gamma) * ahead_exact(mdp, x, a, g)
            for a, sign in enumerate(signs)
            if sign
        ]
        result.append(max(parts) if kind == 0 else sum(parts, Fraction(0)) / len(parts))
    return result


def span(numbers: list[Fraction]) -> Fraction:
    return max(numbers) - min(numbers)


def needed_exact(mdp: TabularMDP, gamma: float, features: ValueFeatures) -> list[Fraction]:
    """span(Φg - g)/(1 - γ) of every function."""
    result = []
    for f, line in enumerate(features.values):
        g = fractions(line)
        after = phi_exact(mdp, gamma, features.signs[f].tolist(), int(features.kinds[f]), g)
        residual = [new - old for new, old in zip(after, g, strict=True)]
        result.append(span(residual) / (1 - Fraction(gamma)))
    return result


def check_corrections(mdp: TabularMDP, gamma: float, features: ValueFeatures) -> None:
    """Each correction is enough, and no more than rounding above what is needed."""
    size = float(np.ptp(mdp.rewards)) + float(np.abs(mdp.rewards).max())
    slack = 1e-13 * size / (1.0 - gamma) ** 2 + 1e-310 / (1.0 - gamma)
    needed = needed_exact(mdp, gamma, features)
    for correction, exact in zip(features.corrections.tolist(), needed, strict=True):
        assert exact <= Fraction(correction)
        assert correction <= float(exact) * (1.0 + 1e-9) + slack


def check_against_metric(mdp: TabularMDP, gamma: float, features: ValueFeatures) -> None:
    every = np.arange(mdp.n_states)
    lower = features.lower(every[:, None], every)
    assert (lower >= 0.0).all()
    assert (np.diag(lower) == 0.0).all()
    np.testing.assert_array_equal(lower, lower.T)
    assert (lower <= bisimulation_metric(mdp, gamma, resources=Resources(threads=1)).upper).all()


# -- corrections -------------------------------------------------------------------------------


@given(mdps(), gammas(0.99), ITERATIONS, st.integers(0, 5))
def test_corrections_hold_in_rational_arithmetic(
    mdp: TabularMDP, gamma: float, max_iter: int, seed: int
) -> None:
    features = value_features(
        mdp, gamma, count=8, max_iter=max_iter, seed=seed, resources=Resources(threads=1)
    )
    check_corrections(mdp, gamma, features)


@given(mdps(), st.sampled_from((0.0, 0.5, 0.9, 0.99)), ITERATIONS)
def test_bounds_never_exceed_the_metric(mdp: TabularMDP, gamma: float, max_iter: int) -> None:
    features = value_features(mdp, gamma, max_iter=max_iter, resources=Resources(threads=1))
    check_against_metric(mdp, gamma, features)


@seeds(12)
def test_any_function_will_do_with_its_correction(seed: int) -> None:
    """Iterates that start from 0 would not need theirs: these functions do."""
    rng = np.random.default_rng(seed)
    mdp, gamma = random_mdp(6, 2, seed=seed), (0.3, 0.6, 0.9)[seed % 3]
    made = value_features(mdp, gamma, count=4, seed=seed)
    # Off the fixed point, where the bound would break without a correction, or far from it.
    noise = rng.normal(size=made.values.shape) * (10.0 if seed % 2 else 0.3)
    values = made.values * 1.1 + noise
    guess = replace(made, values=values, corrections=np.zeros(4))
    needed = [float(c) * (1.0 + 1e-12) for c in needed_exact(mdp, gamma, guess)]
    features = replace(guess, corrections=np.array(needed))
    check_against_metric(mdp, gamma, features)
    every = np.arange(6)
    assert (guess.lower(every[:, None], every) > bisimulation_metric(mdp, gamma).upper).any()


WORLDS: dict[str, TabularMDP] = {
    "random": random_mdp(8, 3, seed=1),
    "sparse": sparse_mdp(9, 2, support=3, seed=2),
    "deterministic": sparse_mdp(9, 3, support=1, seed=3),
    "grouped": grouped_mdp(12, 3, seed=4)[0],
    "matched": grouped_mdp(10, 4, noise=0.0, matched_rewards=True, seed=5)[0],
    "one action": random_mdp(7, 1, seed=6),
    "huge": scaled(random_mdp(6, 2, seed=7), 2.0**900),
    "small": scaled(random_mdp(6, 2, seed=7), 2.0**-1000),
    "subnormal": scaled(random_mdp(6, 2, seed=7), 2.0**-1060),
}


@grid(name=WORLDS, gamma=[0.0, 0.5, 0.9, 0.99], max_iter=[1, 2, 5, 40, 10_000])
def test_named_worlds(name: str, gamma: float, max_iter: int) -> None:
    mdp = WORLDS[name]
    features = value_features(mdp, gamma, max_iter=max_iter, resources=Resources(threads=1))
    check_corrections(mdp, gamma, features)
    if name not in ("huge", "subnormal"):
        check_against_metric(mdp, gamma, features)


def test_hand_solved_metrics() -> None:
    for known in BY_HAND:
        with naming(name=known.name, gamma=known.gamma):
            n = known.mdp.n_states
            for max_iter in (1, 3, 20_000):
                features = value_features(
                    known.mdp, known.gamma, max_iter=max_iter, resources=Resources(threads=1)
                )
                for x in range(n):
                    for y in range(n):
                        assert Fraction(float(features.lower(x, y))) <= known.metric[x][y]
            # With one action, or none that matters, a value function attains the largest distance.
            top = max(max(row) for row in known.metric)
            if known.name in ("two_loops", "countdown", "all_alike", "one_state"):
                every = np.arange(n)
                lower = features.lower(every[:, None], every)
                assert lower.max() >= float(top) * (1.0 - 1e-5)


def test_more_iterations_give_smaller_corrections() -> None:
    mdp = sparse_mdp(40, 3, support=2, seed=0)
    before = math.inf
    for max_iter in (1, 2, 4, 8, 16, 32, 64):
        correction = value_features(mdp, 0.9, max_iter=max_iter).corrections.max()
        assert correction < before
        before = correction


def test_tolerance_is_met_and_may_be_rounding() -> None:
    mdp = sparse_mdp(30, 3, seed=0)
    top = float(np.ptp(mdp.rewards, axis=0).max()) / (1.0 - 0.9)
    assert value_features(mdp, 0.9).corrections.max() <= 1e-6 * top * (1.0 + 1e-9)
    assert value_features(mdp, 0.9, tol=0.3).corrections.max() <= 0.3
    assert value_features(mdp, 0.9, tol=0.3).corrections.max() > 1e-3
    # Out of reach: the iteration ends all the same, at the level of rounding.
    finest = value_features(mdp, 0.9, tol=1e-300)
    assert finest.corrections.max() < 1e-11
    check_corrections(mdp, 0.9, finest)


def test_a_constant_in_the_rewards_costs_nothing() -> None:
    """Rounding errors are those of the differences, not of rewards far from zero."""
    rng = np.random.default_rng(0)
    base = sparse_mdp(20, 1, seed=1)
    rewards = rng.integers(0, 2**20, size=(20, 1)) / 2.0**20
    far = TabularMDP.from_dense(dense(base), rewards + 2.0**30)
    features = value_features(far, 0.9, tol=1e-300)
    assert features.corrections.max() < 1e-10
    check_corrections(far, 0.9, features)


def test_equal_rewards_leave_nothing() -> None:
    mdp = TabularMDP.from_dense(dense(random_mdp(5, 2, seed=0)), np.full((5, 2), 0.1))
    features = value_features(mdp, 0.9)
    every = np.arange(5)
    assert (features.lower(every[:, None], every) == 0.0).all()
    assert features.corrections.max() < 1e-12


# -- which functions ---------------------------------------------------------------------------


def close_up_to_a_constant(values: Floats, others: Floats) -> None:
    np.testing.assert_allclose(values - values[0], others - others[0], rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_each_kind_is_the_value_function_it_should_be(seed: int) -> None:
    mdp, gamma = sparse_mdp(30, 3, seed=seed), 0.9
    features = value_features(mdp, gamma, tol=1e-8)
    close_up_to_a_constant(features.values[0], value_iteration(mdp, gamma).lower)
    close_up_to_a_constant(features.values[1], value_iteration(scaled(mdp, -1.0), gamma).lower)
    uniform = np.full((30, 3), 1.0 / 3.0)
    close_up_to_a_constant(features.values[2], evaluate_policy(mdp, gamma, uniform).lower)
    for a in range(3):
        always = evaluate_policy(mdp, gamma, np.full(30, a)).lower
        close_up_to_a_constant(features.values[3 + a], always)
    for f in range(6, features.kinds.size):
        signed = TabularMDP.from_dense(dense(mdp), mdp.rewards * features.signs[f])
        if features.kinds[f] == 0:
            values = value_iteration(signed, gamma).lower
        else:
            values = evaluate_policy(signed, gamma, uniform).lower
        close_up_to_a_constant(features.values[f], values)


def test_no_two_functions_tell_the_same() -> None:
    for count, n_actions in product((1, 2, 3, 5, 8, 16, 40), (1, 2, 3, 4, 20)):
        with naming(count=count, n_actions=n_actions):
            features = value_features(
                random_mdp(3, n_actions, seed=0), 0.5, count=count, max_iter=1
            )
            most = 1 if n_actions == 1 else n_actions + 2**n_actions + 2 ** (n_actions - 1)
            assert features.kinds.size == min(count, most)
            seen = set()
            for row, kind in zip(features.signs.tolist(), features.kinds.tolist(), strict=True):
                used = sum(map(abs, row))
                assert used in (1, n_actions)
                if kind == 1 or used == 1:  # linear: the opposite signs give the opposite function
                    kind = 1
                    row = max(row, [-sign for sign in row])
                seen.add((*row, kind))
            assert len(seen) == features.kinds.size


def test_small_counts_sample_the_single_actions() -> None:
    mdp = random_mdp(3, 12, seed=0)
    picked = {
        tuple(np.flatnonzero(row).tolist())
        for seed in range(8)
        for row in value_features(mdp, 0.5, count=5, max_iter=1, seed=seed).signs[3:]
    }
    assert all(len(actions) == 1 for actions in picked)
    assert len(picked) > 4


def test_seeds_decide_the_random_signs() -> None:
    mdp = random_mdp(4, 6, seed=0)
    one, same, other = (value_features(mdp, 0.5, max_iter=1, seed=s).signs for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    rng = value_features(mdp, 0.5, max_iter=1, seed=np.random.default_rng(1))
    np.testing.assert_array_equal(rng.signs, one)


def test_threads_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = sparse_mdp(500, 3, seed=0)
    reference = value_features(mdp, 0.9, resources=Resources(threads=1))
    for chunk, threads in ((7, 1), (7, 3), (64, 2)):
        monkeypatch.setattr(module, "CHUNK", chunk)
        features = value_features(mdp, 0.9, resources=Resources(threads=threads))
        np.testing.assert_array_equal(features.values, reference.values)
        np.testing.assert_array_equal(features.corrections, reference.corrections)


def test_progress_and_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    mdp = sparse_mdp(20, 2, seed=0)
    reports: list[Progress] = []
    value_features(mdp, 0.9, callback=reports.append)
    assert [report.done for report in reports] == list(range(1, len(reports) + 1))
    assert all(report.stage == "value features" for report in reports)
    assert caplog.messages == []
    reports.clear()
    with caplog.at_level("INFO"):
        value_features(mdp, 0.9, max_iter=3, callback=reports.append)
    assert len(reports) == 3
    assert len(caplog.messages) == 1
    assert "the bounds hold" in caplog.messages[0]


# -- reading -----------------------------------------------------------------------------------


def arbitrary(rng: np.random.Generator, k: int, n: int, witnesses: int = 0) -> ValueFeatures:
    """Functions of no model in particular: what is read off them must only be consistent."""
    made = ValueFeatures(
        values=rng.normal(size=(k, n)) * 10.0 ** rng.integers(-3, 3, size=(k, 1)),
        signs=np.ones((k, 2), np.int64),
        kinds=np.zeros(k, np.int64),
        corrections=np.abs(rng.normal(size=k)) * (rng.random(k) < 0.5) * 0.1,
    )
    if witnesses == 0:
        return made
    extra = Witnesses(
        values=rng.normal(size=(witnesses, n)),
        actions=np.ones(witnesses, np.int64),
        signs=np.full(witnesses, -1),
        support=np.tile([0, n - 1], (witnesses, 1)),
        potential=np.tile([0.0, 1.0], (witnesses, 1)),
        corrections=0.1 * rng.random(witnesses),
    )
    return made.with_witnesses(extra)


@seeds(5)
def test_lower_is_the_largest_corrected_difference(seed: int) -> None:
    features = arbitrary(np.random.default_rng(seed), 5, 20, witnesses=2)
    points, corrections = features.points(), features.all_corrections
    assert points.shape == (20, 7)
    assert points.flags.c_contiguous
    np.testing.assert_array_equal(points[:, :5], features.values.T)
    assert features.witnesses is not None
    np.testing.assert_array_equal(points[:, 5:], features.witnesses.values.T)
    np.testing.assert_array_equal(corrections[:5], features.corrections)
    np.testing.assert_array_equal(corrections[5:], features.witnesses.corrections)
    for x, y in combinations(range(20), 2):
        exact = max(
            abs(Fraction(float(points[x, f])) - Fraction(float(points[y, f])))
            - Fraction(float(corrections[f]))
            for f in range(7)
        )
        bound = Fraction(float(features.lower(x, y)))
        assert bound <= max(exact, Fraction(0))
        # A few roundings of the difference itself, large against a corrected one near 0.
        assert bound >= exact - Fraction(1e-15) * Fraction(float(np.abs(points).max()) * 4)


def test_differences_hardly_above_their_correction_are_rounded_down() -> None:
    """What is left of a difference is of the size of what it was rounded by."""
    missed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x, y = float(rng.random()), float(7.0 * rng.random() + 1.0)
        correction = (y - x) * (1.0 - 4e-16 * rng.random())
        features = ValueFeatures(
            values=np.array([[x, y]]),
            signs=np.ones((1, 1), np.int64),
            kinds=np.zeros(1, np.int64),
            corrections=np.array([correction]),
        )
        exact = max(Fraction(y) - Fraction(x) - Fraction(correction), Fraction(0))
        assert Fraction(float(features.lower(0, 1))) <= exact
        gap = box_gap([[x, y]], [[x, y]], [correction], 0)[1]
        assert Fraction(float(gap)) <= exact
        missed += Fraction(max((y - x) - correction, 0.0)) > exact
    assert missed > 10


def test_lower_broadcasts() -> None:
    features = arbitrary(np.random.default_rng(0), 3, 6)
    table = features.lower(np.arange(6)[:, None], np.arange(6))
    assert table.shape == (6, 6)
    assert features.lower(2, 4) == table[2, 4]
    assert features.lower([1, 2], 4).tolist() == table[[1, 2], 4].tolist()
    assert features.lower([], []).shape == (0,)


@seeds(5)
def test_boxes_and_their_gaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = arbitrary(rng, 4, 40, witnesses=1)
    # Blocks that hang together in the first function, so that gaps exist.
    labels = np.argsort(np.argsort(features.values[0])) // 8
    low, high = features.boxes(labels, 5)
    points = features.points()
    for block in range(5):
        np.testing.assert_array_equal(low[:, block], points[labels == block].min(axis=0))
        np.testing.assert_array_equal(high[:, block], points[labels == block].max(axis=0))
    every = np.arange(40)
    table = features.lower(every[:, None], every)
    some = 0
    for block in range(5):
        gaps = box_gap(low, high, features.all_corrections, block)
        assert gaps[block] == 0.0
        for other in range(5):
            nearest = table[np.ix_(labels == block, labels == other)].min()
            assert gaps[other] <= nearest
            some += gaps[other] > 0.0
    assert some
    # Blocks of one state each: the gap is the bound itself.
    low, high = features.boxes(every, 40)
    np.testing.assert_array_equal(box_gap(low, high, features.all_corrections, 7), table[7])


# -- estimated models --------------------------------------------------------------------------


def with_radii(mdp: TabularMDP, reward: Floats, row: Floats) -> TabularMDP:
    estimate = Estimate(
        counts=np.ones(mdp.rewards.shape, np.int64),
        reward_radius=reward,
        row_radius=row,
        alpha=0.1,
        reward_range=(0.0, 1.0),
        support_bound=mdp.n_states,
    )
    return TabularMDP(
        indptr=mdp.indptr,
        indices=mdp.indices,
        probs=mdp.probs,
        rewards=mdp.rewards,
        estimate=estimate,
    )


def worst_model(mdp: TabularMDP, signs: npt.NDArray[np.int64], g: Floats, up: int) -> TabularMDP:
    """A model within the radii that pays and leads as high as it can in the state `up`, and as
    low as it can elsewhere, as the function sees it."""
    estimate = mdp.estimate
    assert estimate is not None
    P, R = dense(mdp), mdp.rewards.copy()
    for x in range(mdp.n_states):
        direction = 1.0 if x == up else -1.0
        to = int(np.argmax(direction * g))
        for a in range(mdp.n_actions):
            # A little less than the radii, so that rounding stays within them.
            R[x, a] += direction * signs[a] * estimate.reward_radius[x, a] * (1.0 - 1e-9)
            left = estimate.row_radius[x, a] * (1.0 - 1e-9)
            for y in np.argsort(direction * g):
                moved = min(left, float(P[x, a, y]))
                if y != to:
                    P[x, a, y] -= moved
                    P[x, a, to] += moved
                    left -= moved
    return TabularMDP.from_dense(np.where(P < 1e-12, 0.0, P), R)


@grid(seed=range(4), gamma=[0.0, 0.5, 0.9], max_iter=[2, 10_000])
def test_corrections_cover_every_model_within_the_radii(
    seed: int, gamma: float, max_iter: int
) -> None:
    rng = np.random.default_rng(seed)
    base = random_mdp(5, 2, seed=seed)
    reward, row = (0.2, 0.0) if seed == 0 else (0.0, 0.1) if seed == 1 else (0.1, 0.05)
    shape = base.rewards.shape
    vary = rng.uniform(0.9, 1.0, size=shape)
    mdp = with_radii(base, reward * vary, row * vary)
    features = value_features(
        mdp, gamma, count=8, max_iter=max_iter, resources=Resources(threads=1)
    )
    plain = value_features(base, gamma, count=8, max_iter=max_iter, resources=Resources(threads=1))
    np.testing.assert_array_equal(features.values, plain.values)
    assert (features.corrections >= plain.corrections).all()
    tightest = 0.0
    for f, g in enumerate(features.values):
        for up in range(5):
            true = worst_model(mdp, features.signs[f], g, up)
            needed = float(needed_exact(true, gamma, features)[f])
            assert needed <= features.corrections[f]
            tightest = max(tightest, needed / features.corrections[f])
    assert tightest > 0.7 or (reward == 0.0 and gamma == 0.0)


def test_features_of_an_estimate_bound_the_true_metric() -> None:
    truth, gamma = grouped_mdp(6, 3, 2, seed=0)[0], 0.5
    high = float(truth.rewards.max()) + 0.1
    held = informative = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        size = 40_000
        s, a = rng.integers(6, size=size), rng.integers(2, size=size)
        P = dense(truth)
        P /= P.sum(axis=2, keepdims=True)
        t = (rng.random(size)[:, None] > np.cumsum(P[s, a], axis=1)).sum(axis=1).clip(0, 5)
        r = truth.rewards[s, a]
        mdp = estimate_mdp(
            s, a, r, t, n_states=6, n_actions=2, reward_range=(0.0, high), support_bound=4
        )
        estimate = mdp.estimate
        assert estimate is not None
        off = np.abs(dense(mdp) - P).sum(axis=2) / 2.0
        if (off > estimate.row_radius).any():
            continue
        if (np.abs(mdp.rewards - truth.rewards) > estimate.reward_radius).any():
            continue
        held += 1
        every = np.arange(6)
        lower = value_features(mdp, gamma).lower(every[:, None], every)
        assert (lower <= bisimulation_metric(truth, gamma).upper).all()
        informative += int((lower > 0.0).any())
    assert held >= 5
    assert informative == held


def test_unbounded_radii_are_refused() -> None:
    mdp = with_radii(random_mdp(2, 1, seed=0), np.full((2, 1), np.inf), np.zeros((2, 1)))
    with pytest.raises(InvalidArgumentError, match="reward_radius must be finite"):
        value_features(mdp, 0.5)


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 1.0}, "gamma"),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"max_iter": 0}, "max_iter must be at least 1, got 0"),
        ({"tol": 0.0}, "tol must be above 0"),
        ({"tol": math.nan}, "tol must be finite"),
        ({"seed": -1}, "seed"),
        ({"mdp": "x"}, "mdp must be a TabularMDP"),
        ({"mdp": scaled(random_mdp(2, 1, seed=0), 1e307)}, "overflow"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {"mdp": random_mdp(2, 1, seed=0), "gamma": 0.9}
    with pytest.raises(InvalidArgumentError, match=words):
        value_features(**(options | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"values": [0.0, 1.0]}, r"values must have shape \(k, n_states\)"),
        ({"values": np.zeros((0, 3))}, "values must have shape"),
        ({"values": [[0.0, math.nan, 1.0], [0.0] * 3]}, "values must be finite"),
        ({"values": [[0.0] * 3, [0.0, math.inf, 1.0]]}, "row 1"),
        ({"values": [[-1.7e308, 1.7e308, 1.0], [0.0] * 3]}, "a span of inf"),
        ({"values": [["a"] * 3] * 2}, "values must hold real numbers"),
        ({"signs": [[1, 1]]}, r"signs must have shape \(2, n_actions\)"),
        ({"signs": [[], []]}, "signs must have shape"),
        ({"signs": [[1, 2], [1, 1]]}, "signs must be -1, 0 or .1, got 2"),
        ({"signs": [[1, -2], [1, 1]]}, "got -2"),
        ({"signs": [[1, 1], [0, 0]]}, "row 1"),
        ({"signs": [[1.0, 1.0]] * 2}, "signs must hold whole numbers"),
        ({"kinds": [0]}, r"kinds must have shape \(2,\), got \(1,\)"),
        ({"kinds": [0, 2]}, "kinds must be 0 .* got 2"),
        ({"kinds": [0, -1]}, "kinds must be 0 .* got -1"),
        ({"corrections": [[0.0, 0.0]]}, "corrections must have shape"),
        ({"corrections": [0.0, -1.0]}, "corrections must be finite and at least 0, got -1"),
        ({"corrections": [math.inf, 0.0]}, "corrections must be finite and at least 0, got inf"),
        ({"witnesses": ["x"]}, "witnesses must be Witnesses, got list"),
    ],
)
def test_features_are_checked(changes: dict[str, Any], words: str) -> None:
    fields: dict[str, Any] = {
        "values": [[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]],
        "signs": [[1, 0], [-1, 1]],
        "kinds": [0, 1],
        "corrections": [0.0, 0.5],
    }
    ValueFeatures(**fields)
    with pytest.raises(InvalidArgumentError, match=words):
        ValueFeatures(**(fields | changes))


def test_arrays_are_read_only_and_not_shared() -> None:
    values = np.zeros((1, 2))
    features = ValueFeatures(
        values=values,
        signs=np.ones((1, 1), np.int64),
        kinds=np.zeros(1, np.int64),
        corrections=np.zeros(1),
    )
    values[0, 0] = 5.0
    assert features.values[0, 0] == 0.0
    for array in (features.values, features.signs, features.kinds, features.corrections):
        assert not array.flags.writeable
    made = value_features(random_mdp(4, 2, seed=0), 0.5)
    for array in (made.values, made.signs, made.kinds, made.corrections):
        assert not array.flags.writeable


def test_bad_questions() -> None:
    features = arbitrary(np.random.default_rng(0), 2, 5)
    with pytest.raises(InvalidArgumentError, match=r"states must lie in \[0, 5\), got 5"):
        features.lower(5, 0)
    with pytest.raises(InvalidArgumentError, match="others must be state indices"):
        features.lower(0, 0.5)
    with pytest.raises(InvalidArgumentError, match="states and others must broadcast"):
        features.lower([0, 1], [0, 1, 2])
    with pytest.raises(InvalidArgumentError, match=r"labels must have shape \(5,\)"):
        features.boxes([0, 1], 2)
    with pytest.raises(InvalidArgumentError, match=r"labels must lie in \[0, 2\), got 2"):
        features.boxes([0, 1, 2, 0, 0], 2)
    with pytest.raises(InvalidArgumentError, match="labels must use every block, got none of 1"):
        features.boxes([0, 2, 2, 0, 0], 3)
    low, high = features.boxes([0, 1, 1, 0, 0], 2)
    with pytest.raises(InvalidArgumentError, match="block must be between 0 and 1, got 2"):
        box_gap(low, high, features.all_corrections, 2)
    with pytest.raises(InvalidArgumentError, match="low and high must have one shape"):
        box_gap(low, high[:1], features.all_corrections, 0)
    with pytest.raises(InvalidArgumentError, match="corrections must have shape"):
        box_gap(low, high, features.all_corrections[:1], 0)


def test_they_print_briefly() -> None:
    features = value_features(random_mdp(4, 2, seed=0), 0.5, count=3)
    assert repr(features).startswith("ValueFeatures(3 functions of 4 states, correction")
    some = arbitrary(np.random.default_rng(0), 3, 4, witnesses=2)
    assert repr(some).startswith("ValueFeatures(3 functions and 2 witnesses of 4 states")
