"""Distances of two models against brute force, and what a comparison says of them."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    MetricBounds,
    ModelComparison,
    TabularMDP,
    bisimulation_classes,
    bisimulation_metric,
    compare_models,
    value_iteration,
    verify,
)
from bisim_abstract._compare import models, starts
from bisim_abstract._prove import pairs as proving
from bisim_abstract.parts import disjoint_union, grouped_mdp, random_mdp, sparse_mdp
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp
from tests.support.honest import apart_of, estimated
from tests.support.models import TAXI, env_mdp
from tests.support.oracles import compared_metric, transport_exact
from tests.support.relations import renamed_mdp
from tests.support.worlds import dense, mdps, permuted

GAMMA = 0.5
SWEEPS = 32
CLOSE = 1e-8  # far above what the sweeps of brute force leave, at this discount


def brute_force(first: TabularMDP, second: TabularMDP, relation: str) -> tuple[np.ndarray, float]:
    """Distances between the models, and that of their starts, by exact transports."""
    union = disjoint_union(first, second, relation=relation)
    apart = apart_of(union.model, GAMMA) if union.model.has_action_sets else None
    table = compared_metric(union.model, GAMMA, relation=relation, apart=apart, sweeps=SWEEPS)
    between = table[np.ix_(union.first, union.second)]
    moved = transport_exact(between, first.start.tolist(), second.start.tolist())
    return between, float(moved)


def check(found: ModelComparison, between: np.ndarray, moved: float) -> None:
    """The bounds enclose what is true."""
    n, m = between.shape
    lower, upper = found.bounds(np.arange(n)[:, None], np.arange(m)[None, :])
    assert (lower <= between + CLOSE).all()
    assert (upper >= between - CLOSE).all()
    assert found.lower <= moved + CLOSE
    assert found.upper >= moved - CLOSE
    assert (found.pair_lower == lower[found.pairs[:, 0], found.pairs[:, 1]]).all()
    assert (found.pair_upper == upper[found.pairs[:, 0], found.pairs[:, 1]]).all()
    assert upper.max() <= found.most
    if found.are_bisimilar:
        assert moved <= CLOSE
    if found.difference is not None:
        assert found.difference.lower > 0.0


def two_models(seed: int, relation: str, *, has_sets: bool) -> tuple[TabularMDP, TabularMDP]:
    """Two small models; they may lack actions, and differ in their number where that is allowed."""
    missing = 0.3 if has_sets else 0.0
    n_actions = 2 if relation == "plain" else 1 + seed % 2
    one = renamed_mdp(seed, n=3, n_actions=2, missing=missing)
    two = renamed_mdp(seed + 100, n=3, n_actions=n_actions, missing=missing)
    rng = np.random.default_rng(seed)
    return tuple(  # type: ignore[return-value]
        dataclasses.replace(mdp, start=rng.dirichlet(np.ones(3))) for mdp in (one, two)
    )


@pytest.mark.parametrize("has_sets", [False, True])
@pytest.mark.parametrize("relation", ["plain", "lax"])
@pytest.mark.parametrize("seed", range(2))
def test_bounds_enclose_brute_force(
    seed: int, relation: str, has_sets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_models(seed, relation, has_sets=has_sets)
    between, moved = brute_force(first, second, relation)
    exact = compare_models(first, second, GAMMA, relation=relation)
    check(exact, between, moved)
    assert isinstance(exact.source, MetricBounds)
    assert exact.scope == "all pairs"
    assert exact.upper - exact.lower <= 1e-6
    pairs = compare_models(first, second, GAMMA, relation=relation, exact=False)
    check(pairs, between, moved)
    assert isinstance(pairs.source, Certificate)
    assert verify(pairs.union.model, pairs.source, mode="exact").is_valid
    assert pairs.most == exact.most == pairs.source.ground.starts.diameter
    # The same, where pairs read much that is not covered, and starts are too many for transports.
    monkeypatch.setattr(proving, "AHEAD", 0.0)
    few = compare_models(first, second, GAMMA, relation=relation, exact=False)
    check(few, between, moved)
    assert verify(few.union.model, few.source, mode="exact").is_valid  # type: ignore[arg-type]
    monkeypatch.setattr(starts, "MOST_CELLS", 0)
    monkeypatch.setattr(models, "MOST_CELLS", 0)
    for is_exact in (True, False):
        check(
            compare_models(first, second, GAMMA, relation=relation, exact=is_exact), between, moved
        )


def test_numbers_of_actions_may_differ_where_names_do_not_count() -> None:
    first = random_mdp(3, 2, seed=0)
    P, R = dense(first)[:, [0, 1, 0]], first.rewards[:, [0, 1, 0]]
    second = TabularMDP.from_dense(P, R, order="sas")
    assert compare_models(first, second, 0.9, relation="lax").are_bisimilar
    with pytest.raises(InvalidArgumentError, match="relation='lax'"):
        compare_models(first, second, 0.9)


# -- estimates ---------------------------------------------------------------------------------


def true_model(mdp: TabularMDP, rng: np.random.Generator) -> TabularMDP:
    """A model within the radii of an estimate, as far from it as they allow in some direction."""
    assert mdp.estimate is not None
    sign = rng.choice([-1.0, 1.0], size=mdp.rewards.shape)
    rewards = mdp.rewards + sign * mdp.estimate.reward_radius
    P = dense(mdp)
    for s, a in np.ndindex(mdp.rewards.shape):
        other = np.eye(mdp.n_states)[rng.integers(mdp.n_states)]
        share = float(mdp.estimate.row_radius[s, a])
        P[s, a] = (1.0 - share) * P[s, a] / P[s, a].sum() + share * other
    return TabularMDP.from_dense(P, rewards, order="sas", start=mdp.start)


@pytest.mark.parametrize("relation", ["plain", "lax"])
@pytest.mark.parametrize("exact", [True, False])
def test_bounds_of_estimates_hold_for_true_models(relation: str, exact: bool) -> None:
    rng = np.random.default_rng(7)
    first = estimated(random_mdp(3, 2, seed=0), 0.05, 0.05, seed=1)
    second = estimated(random_mdp(3, 2, seed=0), 0.05, 0.05, seed=2)
    found = compare_models(first, second, GAMMA, relation=relation, exact=exact)
    assert found.alpha == pytest.approx(0.2)
    assert "probability 0.8" in found.summary()
    for _ in range(5):
        truth = true_model(first, rng), true_model(second, rng)
        union = disjoint_union(*truth)
        metric = bisimulation_metric(union.model, GAMMA, relation=relation)
        between = metric.upper[np.ix_(union.first, union.second)]
        moved = transport_exact(between, truth[0].start.tolist(), truth[1].start.tolist())
        check(found, between, float(moved))


def test_equal_estimates_are_not_the_same_models() -> None:
    mdp = estimated(random_mdp(3, 2, seed=0), 0.1, 0.1)
    found = compare_models(mdp, mdp, 0.9)
    assert not found.are_bisimilar
    assert found.lower == 0.0 < found.upper
    assert "alike" not in found.summary()


# -- models that are the same ------------------------------------------------------------------


@given(mdp=mdps(min_states=2), data=st.data())
def test_a_permuted_copy_is_the_same(mdp: TabularMDP, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(mdp.n_states))))
    pairs = np.stack([order, np.arange(mdp.n_states)], axis=1)
    found = compare_models(mdp, permuted(mdp, order), 0.9, pairs=pairs, exact=False)
    assert found.lower == 0.0
    assert found.unmatched == (0, 0)
    assert found.difference is None
    if bisimulation_classes(found.union.model).is_exact:
        assert found.are_bisimilar
        assert found.upper == 0.0
        assert not found.pair_upper.any()
        assert found.summary().startswith("The models are the same from their starts on")
    else:  # sums of classes were rounded, and nobody says that they are equal
        assert found.upper <= 1e-9 * found.most


def test_ids_say_which_states_correspond() -> None:
    mdp = env_mdp("lake4")
    order = np.roll(np.arange(17), 5)
    other = dataclasses.replace(
        permuted(mdp, order), state_ids=mdp.state_ids[order], start=mdp.start[order]
    )
    found = compare_models(mdp, other, 0.9)
    assert found.pairs.shape == (16, 2)
    assert (mdp.state_ids[found.pairs[:, 0]] == other.state_ids[found.pairs[:, 1]]).all()
    assert found.are_bisimilar
    assert not found.pair_upper.any()
    unlike = dataclasses.replace(other, state_ids=np.arange(17) + 1)
    assert compare_models(mdp, unlike, 0.9).pairs.shape == (0, 2)


def test_starts_decide_what_is_the_same() -> None:
    mdp = random_mdp(3, 2, seed=0)
    first = dataclasses.replace(mdp, start=np.array([0.5, 0.5, 0.0]))
    second = dataclasses.replace(mdp, start=np.array([0.5, 0.25, 0.25]))
    found = compare_models(first, second, 0.9)
    assert not found.are_bisimilar
    assert found.unmatched == (0, 0)
    # A quarter of the mass goes from state 1 to state 2.
    expected = bisimulation_metric(mdp, 0.9).bounds(1, 2)
    assert found.lower <= 0.25 * expected[1]
    assert found.upper >= 0.25 * expected[0]
    assert found.upper == pytest.approx(0.25 * expected[1], abs=1e-6)


def test_bisimilar_models_may_differ_where_starts_do_not_lead() -> None:
    P, R = np.eye(3)[:, None, :], np.array([1.0, 0.0, 0.0])
    first = TabularMDP.from_dense(P, R, start=[1.0, 0.0, 0.0])
    second = TabularMDP.from_dense(P, [1.0, 0.0, 3.0], start=[1.0, 0.0, 0.0])
    for exact in (True, False):
        found = compare_models(first, second, 0.5, exact=exact)
        assert found.are_bisimilar
        assert found.unmatched == (0, 1)
        assert found.difference is not None
        assert (found.difference.first, found.difference.second) == (2, 2)
        assert found.pair_lower[2] <= 6.0 <= found.pair_upper[2]
        assert found.pair_upper[:2].tolist() == [0.0, 0.0]


def test_rounding_errors_stay_small() -> None:
    """The same model, its rows computed in another way."""
    mdp = random_mdp(6, 2, seed=0)
    P = dense(mdp)
    other = TabularMDP.from_dense(np.exp(np.log(P)), mdp.rewards, order="sas")
    assert mdp != other
    found = compare_models(mdp, other, 0.9, exact=False)
    assert 0.0 <= found.lower <= found.upper <= 1e-6 * found.most


def test_what_only_rounding_makes_equal_is_not_the_same() -> None:
    """States 0 and 1 are alike; half of the mass goes there, and in one model a trace more."""
    P = np.zeros((4, 1, 4))
    P[0, 0, 0] = P[1, 0, 0] = P[2, 0, 2] = 1.0
    P[3, 0] = (0.5, 0.0, 0.5, 0.0)
    R, start = [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]
    first = TabularMDP.from_dense(P, R, order="sas", start=start)
    P[3, 0, 1] = 1e-20
    second = TabularMDP.from_dense(P, R, order="sas", start=start)
    found = compare_models(first, second, 0.9)
    assert not found.are_bisimilar
    assert 0.0 < found.upper < 1e-12
    assert compare_models(first, first, 0.9).are_bisimilar


@pytest.mark.parametrize("exact", [True, False])
def test_digits_let_rounding_pass(exact: bool) -> None:
    """Rows divided by their sums; one start moves by a unit in the last place."""
    for seed in range(10):
        mdp = random_mdp(12, seed=seed)
        start = np.full(12, 1.0) / 12.0
        mdp = dataclasses.replace(mdp, start=start)
        rows = mdp.kernel().toarray().reshape(12, mdp.n_actions, 12) * (1.0 - 1e-15)
        start = np.nextafter(start, [0.0, 1.0] * 6)
        other = TabularMDP.from_dense(rows, mdp.rewards, order="sas", start=start)
        plain = compare_models(mdp, other, 0.9, exact=exact)
        assert not plain.are_bisimilar
        assert "digits=12" in plain.summary()
        found = compare_models(mdp, other, 0.9, exact=exact, digits=12)
        assert found.are_bisimilar
        assert found.unmatched == (0, 0)
        assert found.lower == 0.0 < found.upper <= 1e-9 * found.most
        assert found.sentence.startswith("The models are equal up to 12 digits from their starts")
        assert "every state of either model is up to 12 digits like one of" in found.summary()
        assert "bisimilar up to 12 digits" in repr(found)
        assert json.loads(json.dumps(found.to_dict()))["digits"] == 12


def test_digits_hide_no_difference() -> None:
    """Bounds enclose what was rounded away, and exact classes stay exact."""
    P = np.eye(2)[:, None, :]
    one = TabularMDP.from_dense(P, [1.0, 0.0], start=[1.0, 0.0])
    other = TabularMDP.from_dense(P, [1.0 + 1e-4, 0.0], start=[1.0, 0.0])
    found = compare_models(one, other, 0.5, digits=3)
    assert found.are_bisimilar
    assert found.lower <= 2e-4 <= found.upper <= 1e-3
    assert not compare_models(one, other, 0.5, digits=6).are_bisimilar
    starts = dataclasses.replace(one, start=np.array([1.0 - 1e-4, 1e-4]))
    found = compare_models(one, starts, 0.5, digits=3)
    assert found.are_bisimilar
    assert found.lower <= 2e-4 <= found.upper
    assert not compare_models(one, starts, 0.5, digits=5).are_bisimilar
    same = compare_models(one, one, 0.5, digits=3)
    assert same.upper == 0.0
    assert same.sentence.endswith("distance 0, by exact classes.")
    with pytest.raises(InvalidArgumentError, match="digits must be"):
        compare_models(one, one, 0.5, digits=16)


# -- what differs ------------------------------------------------------------------------------


def test_the_difference_is_named() -> None:
    P = np.zeros((3, 2, 3))
    P[:, 0] = np.eye(3)
    P[0, 1], P[1, 1], P[2, 1] = (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0, 0.0, 1.0)
    R = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    first = TabularMDP.from_dense(P, R, order="sas", start=[1.0, 0.0, 0.0])
    Q = P.copy()
    Q[0, 1] = (0.0, 0.25, 0.75)  # most of the way is lost, in state 0 under action 1
    second = TabularMDP.from_dense(Q, R, order="sas", start=[1.0, 0.0, 0.0])
    for exact in (True, False):
        found = compare_models(first, second, 0.9, exact=exact)
        differ = found.difference
        assert differ is not None
        assert (differ.first, differ.second, differ.action, differ.match) == (0, 0, 1, 1)
        assert differ.reward_gap == 0.0
        [(one, two, mass, distance)] = differ.moves
        assert (one, two) == (1, 2)
        assert mass == pytest.approx(0.75)
        assert distance == pytest.approx(1.0)
        assert found.lower <= 0.675 <= found.upper
        assert differ.future == pytest.approx(0.675)
        assert "75.0% goes to state 1 against state 2" in found.summary()
        assert found.unmatched == (1, 1)
        assert "2 to be the same" in found.summary()


def test_different_actions_are_a_difference() -> None:
    mdp = random_mdp(2, 2, seed=0)
    other = mdp.with_available(np.array([[True, False], [True, True]]))
    for exact in (True, False):
        found = compare_models(mdp, other, 0.9, exact=exact)
        assert found.difference is not None
        assert found.difference.action is None
        assert "they have different actions" in found.summary()
        assert found.pair_upper[0] == pytest.approx(found.most)


def test_renamed_actions_are_told() -> None:
    mdp = random_mdp(3, 2, seed=3)
    P, R = dense(mdp)[:, ::-1], mdp.rewards[:, ::-1].copy()
    R[1, 0] += 0.5
    other = TabularMDP.from_dense(P, R, order="sas")
    found = compare_models(mdp, other, 0.9, relation="lax")
    assert found.difference is not None
    assert (found.difference.first, found.difference.action, found.difference.match) == (1, 1, 0)
    assert "by action 1 against action 0" in found.summary()


def test_an_action_that_the_other_model_lacks_is_told() -> None:
    first = TabularMDP.from_dense(np.ones((1, 1, 1)), [[0.0]], order="sas")
    second = TabularMDP.from_dense(np.ones((1, 2, 1)), [[0.0, 1.0]], order="sas")
    found = compare_models(first, second, 0.5, relation="lax")
    assert found.lower <= 2.0 <= found.upper
    assert found.difference is not None
    assert (found.difference.action, found.difference.match) == (0, 1)
    assert found.difference.rewards == (0.0, 1.0)


# -- environments ------------------------------------------------------------------------------


def value_difference(first: TabularMDP, second: TabularMDP, gamma: float) -> float:
    one, two = (float(value_iteration(x, gamma).upper @ x.start) for x in (first, second))
    return abs(one - two)


def test_rain_makes_another_taxi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "WIDE", 1.0)  # without blocks, which take a while,
    monkeypatch.setattr(proving, "AHEAD", 0.05)  # and with few pairs
    env = gym.make(TAXI, is_rainy=True)
    dry, rainy = env_mdp("taxi"), extract_mdp(env)
    env.close()
    found = compare_models(dry, rainy, 0.9, exact=False)
    assert 0.0 < found.lower <= found.upper <= found.most
    assert value_difference(dry, rainy, 0.9) <= found.upper
    assert found.pairs.shape == (500, 2)
    # By the metric of all pairs, the farthest are 77.14 apart.
    assert found.pair_lower.max() <= 77.15
    assert found.pair_upper.max() >= 77.14


@pytest.mark.parametrize("exact", [None, False])
def test_noisier_rooms(exact: bool | None) -> None:
    first, second = (
        RoomsGridEnv(side=6, room_size=3, noise=noise).to_mdp() for noise in (0.02, 0.1)
    )
    found = compare_models(first, second, 0.9, exact=exact)
    assert 0.0 < found.lower <= found.upper < 0.2 * found.most
    assert value_difference(first, second, 0.9) <= found.upper
    assert found.scope == ("all pairs" if exact is None else "chosen pairs")


def noisy_copy(mdp: TabularMDP, noise: float) -> TabularMDP:
    rng = np.random.default_rng(0)
    probs = mdp.probs * (1.0 + noise * rng.uniform(-1.0, 1.0, mdp.nnz))
    rows = np.repeat(np.arange(mdp.indptr.size - 1), np.diff(mdp.indptr))
    rewards = mdp.rewards + noise * rng.random(mdp.rewards.shape)
    probs /= np.bincount(rows, probs)[rows]
    return dataclasses.replace(mdp, probs=probs, rewards=rewards)


def test_work_on_large_models_is_linear() -> None:
    mdp = sparse_mdp(3_000, seed=0)
    found = compare_models(mdp, noisy_copy(mdp, 0.01), 0.9)
    assert found.scope == "chosen pairs"
    assert isinstance(found.source, Certificate)
    assert found.source.n_covered <= 6_000  # pairs that correspond, and the coupling of starts
    assert 0.0 < found.lower <= found.upper < 0.05 * found.most
    assert value_difference(mdp, noisy_copy(mdp, 0.01), 0.9) <= found.upper
    assert verify(found.union.model, found.source).is_valid


def test_a_budget_leaves_useful_bounds() -> None:
    """Pairs that are followed side by side are bounded at once, without thousands of sweeps."""
    mdp = sparse_mdp(1_000, seed=0)
    found = compare_models(mdp, noisy_copy(mdp, 0.01), 0.99, max_seconds=1e-3)
    assert isinstance(found.source, Certificate)
    assert found.source.stop.startswith("budget")
    assert found.upper < 0.3 * found.most


def test_blocks_help_where_nothing_corresponds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "AHEAD", 0.0)  # as if the models were large
    mdp, _ = grouped_mdp(150, 4, noise=0.01, seed=0)
    order = np.random.default_rng(0).permutation(150)
    other = dataclasses.replace(permuted(noisy_copy(mdp, 0.01), order), metadata={})
    found = compare_models(mdp, other, 0.9, pairs=[], exact=False)
    assert found.scope == "blocks"
    assert found.upper < 0.25 * found.most
    assert verify(found.union.model, found.source).is_valid  # type: ignore[arg-type]


@pytest.mark.nightly
def test_a_hundred_thousand_states() -> None:
    mdp = sparse_mdp(100_000, seed=0)
    found = compare_models(mdp, noisy_copy(mdp, 0.01), 0.9)
    assert 0.0 < found.lower <= found.upper < 0.05 * found.most
    same = compare_models(mdp, mdp, 0.9)
    assert same.are_bisimilar
    assert not same.pair_upper.any()


# -- starts ------------------------------------------------------------------------------------


@given(data=st.data(), n=st.integers(1, 6), m=st.integers(1, 6))
def test_couplings_have_the_marginals(data: st.DataObject, n: int, m: int) -> None:
    masses = st.sampled_from((0.0, 0.25, 0.1, 1.0, 1e-9)) | st.floats(1e-6, 1.0)
    one, two = (
        np.array(data.draw(st.lists(masses, min_size=k, max_size=k).filter(any))) for k in (n, m)
    )
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, m - 1))
    pairs = np.array(data.draw(st.lists(pair, max_size=6)), np.int64).reshape(-1, 2)
    values = (
        np.array(data.draw(st.permutations(range(n)))),
        np.array(data.draw(st.permutations(range(m)))),
    )
    found = starts.couple_starts(one, two, pairs, values)
    assert (found.mass > 0.0).all()
    assert found.missed <= 1e-12
    for at, masses_ in ((found.first, one), (found.second, two)):
        whole = [Fraction(x) for x in masses_.tolist()]
        total = sum(whole)
        share = [Fraction(0)] * len(whole)
        for state, mass in zip(at.tolist(), found.mass.tolist(), strict=True):
            share[state] += Fraction(mass)
        gap = sum(abs(x - y / total) for x, y in zip(share, whole, strict=True))
        assert gap <= Fraction(found.missed)


@given(
    one=st.lists(st.sampled_from((0.5, 0.25, 0.1, 0.3, 1e-300)), min_size=1, max_size=5),
    two=st.lists(st.sampled_from((0.5, 0.25, 0.1, 0.3, 1e-300)), min_size=1, max_size=5),
    data=st.data(),
)
def test_masses_are_compared_exactly(one: list[float], two: list[float], data: Any) -> None:
    labels = [
        data.draw(st.lists(st.integers(0, 1), min_size=len(x), max_size=len(x))) for x in (one, two)
    ]
    shares = []
    for masses, classes in zip((one, two), labels, strict=True):
        total = sum(map(Fraction, masses))
        shares.append(
            {
                k: sum(Fraction(x) for x, c in zip(masses, classes, strict=True) if c == k) / total
                for k in set(classes)
            }
        )
    found = starts.has_equal_masses(*map(np.array, (one, two)), *map(np.array, labels))
    assert found == (shares[0] == shares[1])


# -- how it is asked and told ------------------------------------------------------------------


def test_what_is_wrong_is_said() -> None:
    mdp = random_mdp(3, 2, seed=0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"pairs": [[0, 1, 2]]}, r"pairs must have shape \(k, 2\)"),
        ({"pairs": [[0, 3]]}, r"pairs\[:, 1\] must lie in \[0, 3\), got 3"),
        ({"pairs": [[0.5, 1.0]]}, "state indices"),
        ({"relation": "loose"}, "relation must be one of"),
        ({"exact": 1}, "exact must be True, False or None"),
        ({"max_seconds": 0.0}, "max_seconds must be above 0"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            compare_models(mdp, mdp, 0.9, **options)
    with pytest.raises(InvalidArgumentError, match=r"compare_models\(first, second, gamma\)"):
        compare_models(mdp, 0.9, mdp)  # type: ignore[arg-type]


def test_what_it_says() -> None:
    first, second = random_mdp(3, 2, seed=0), random_mdp(3, 2, seed=1)
    found = compare_models(first, second, 0.9)
    assert f"{found.upper:.6g}" in found.sentence
    assert "optimal start values differ by at most" in found.summary()
    assert repr(found).startswith("ModelComparison(3 and 3 states, gamma=0.9, ")
    assert "<table" in found._repr_html_()
    told = json.loads(json.dumps(found.to_dict()))
    assert told["lower"] == found.lower
    assert told["difference"]["action"] == found.difference.action  # type: ignore[union-attr]
    calls: list[Any] = []
    compare_models(first, second, 0.9, callback=calls.append)
    assert calls


def test_chains_of_policies_are_compared_as_what_they_mean() -> None:
    """Radii of rounding hold surely: nothing is said of probabilities, and copies are close."""
    mdp = sparse_mdp(6, 3, support=3, seed=4)
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(3), 6)
    one, two = mdp.under_policy(policy), mdp.under_policy(policy)
    found = compare_models(one, two, 0.9)
    assert found.alpha is None
    assert "probability" not in found.summary()
    assert found.upper < 1e-9
