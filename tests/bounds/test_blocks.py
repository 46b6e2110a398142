"""Block models against fractions, and the arms on blocks against the exact metric."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from bisim_abstract import (
    Blocks,
    InvalidArgumentError,
    Resources,
    TabularMDP,
    bisimulation_metric,
    certify,
    verify,
)
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel, build_blocks, exact_blocks
from bisim_abstract._kernels.transport import arm_kernel, normalise_rows_kernel
from bisim_abstract.errors import InvalidMDPError
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.support.blocks import (
    EDGES,
    Floats,
    Ints,
    dyadic,
    ends,
    estimated,
    partition,
    sampled,
    small_mdp,
    true_models,
)
from tests.support.examples import cases
from tests.support.oracles import (
    check_inequalities,
    first_appearance,
    lifted_exact,
    metric_lp,
    partial_exact,
    transport_exact,
    variation_exact,
)
from tests.support.worlds import BY_HAND

# -- models and partitions ---------------------------------------------------------------------


PARTITIONS = ("random", "classes", "singletons", "one")


def centre(model: BlockModel, block: int, action: int) -> dict[int, Fraction]:
    """A centre row, its entries over their exact sum."""
    at = block * model.n_actions + action
    part = slice(int(model.indptr[at]), int(model.indptr[at + 1]))
    masses = [Fraction(p) for p in model.probs[part].tolist()]
    return {b: p / sum(masses) for b, p in zip(model.indices[part].tolist(), masses, strict=True)}


def radii(mdp: TabularMDP, s: int, a: int) -> tuple[Fraction, Fraction]:
    """Of the reward and of the row."""
    if mdp.estimate is None:
        return Fraction(0), Fraction(0)
    e = mdp.estimate
    return Fraction(float(e.reward_radius[s, a])), Fraction(float(e.row_radius[s, a]))


# -- build_blocks ------------------------------------------------------------------------------


def check_model(mdp: TabularMDP, model: BlockModel) -> None:
    labels = model.labels.tolist()
    for block in range(model.n_blocks):
        members = [s for s in range(mdp.n_states) if labels[s] == block]
        assert model.sizes[block] == len(members)
        for a in range(mdp.n_actions):
            rewards = [Fraction(float(mdp.rewards[s, a])) for s in members]
            extra = [radii(mdp, s, a) for s in members]
            low, high = (Fraction(float(x[block, a])) for x in (model.low, model.high))
            least = min(r - x[0] for r, x in zip(rewards, extra, strict=True))
            most = max(r + x[0] for r, x in zip(rewards, extra, strict=True))
            assert low <= least
            assert high >= most
            assert least - low <= Fraction(1, 10**14)
            assert high - most <= Fraction(1, 10**14)
            if mdp.estimate is None:
                assert (low, high) == (least, most)
            rows = [lifted_exact(mdp, labels, s, a) for s in members]
            middle = centre(model, block, a)
            assert set(middle) == set().union(*rows)
            off = [variation_exact(row, middle) + x[1] for row, x in zip(rows, extra, strict=True)]
            radius = Fraction(float(model.radius[block, a]))
            assert radius >= min(max(off), Fraction(1))
            assert radius <= max(off) + Fraction(1, 10**13)
            spare, short = (Fraction(float(x[block, a])) for x in (model.spare, model.short))
            lacks = [
                sum(
                    max((1 - spare) * c - row.get(b, Fraction(0)), Fraction(0))
                    for b, c in middle.items()
                )
                + x[1]
                for row, x in zip(rows, extra, strict=True)
            ]
            assert short >= min(max(lacks), Fraction(1))
            assert short <= max(lacks) + Fraction(1, 10**13)
            assert spare + 2 * short <= 2 * radius + Fraction(
                1, 10**13
            )  # else it would not be used


@pytest.mark.parametrize("kind", PARTITIONS)
def test_members_are_within_intervals_and_radii(kind: str) -> None:
    for seed in range(36):
        mdp = small_mdp(seed)
        given = partition(mdp, kind, seed)
        model = build_blocks(mdp, given, resources=Resources(threads=1))
        assert model.labels.tolist() == first_appearance(given.tolist())
        assert model.is_estimate == (mdp.estimate is not None)
        check_model(mdp, model)


def test_the_centre_is_the_middle_of_the_range() -> None:
    P = np.zeros((4, 1, 4))
    P[0, 0, [0, 2]] = 0.75, 0.25
    P[1, 0, [1, 3]] = 0.25, 0.75
    P[2:, 0, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [[1.0], [3.0], [0.0], [0.0]])
    model = build_blocks(mdp, [5, 5, 1, 1])
    assert model.labels.tolist() == [0, 0, 1, 1]
    assert model.low.ravel().tolist() == [1.0, 0.0]
    assert model.high.ravel().tolist() == [3.0, 0.0]
    assert model.indices.tolist() == [0, 1, 1]
    assert model.probs.tolist() == [0.5, 0.5, 1.0]
    assert model.radius[0, 0] == pytest.approx(0.25, abs=1e-14)
    assert model.radius[1, 0] == 0.0
    assert model.sizes.tolist() == [2, 2]
    assert (model.max_support, model.n_blocks, model.n_actions) == (2, 2, 1)


@pytest.mark.parametrize("known", BY_HAND[::4], ids=lambda k: k.name)
def test_radius_is_0_where_lifted_rows_coincide(known: Any) -> None:
    model = build_blocks(known.mdp, known.labels)
    is_exact = known.name != "all_alike"  # thirds do not add up to 1
    assert (model.radius == 0.0).all() or not is_exact
    assert (model.low == model.high).all()
    check_model(known.mdp, model)
    if known.name == "all_alike":  # but all mass goes to one block
        assert (model.radius == 0.0).all()


def test_equal_dyadic_rows_have_radius_0_and_only_they() -> None:
    zeros = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        mdp = dyadic(6, 2, rng)
        model = build_blocks(mdp, partition(mdp, "random", seed))
        labels = model.labels.tolist()
        for block, a in np.ndindex(model.radius.shape):
            rows = [lifted_exact(mdp, labels, s, a) for s in range(6) if labels[s] == block]
            is_same = all(row == rows[0] for row in rows)
            assert (model.radius[block, a] == 0.0) == is_same
            zeros += is_same and len(rows) > 1
    assert zeros > 20


def test_rows_that_are_rounded_are_not_taken_for_equal() -> None:
    """0.1 + 0.2 and 0.3 are different numbers."""
    P = np.zeros((4, 1, 4))
    P[0, 0, [0, 2, 3]] = 0.7, 0.1, 0.2
    P[1, 0, [1, 2]] = 0.7, 0.3
    P[2:, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, np.zeros((4, 1)))
    model = build_blocks(mdp, [0, 0, 1, 1])
    assert 0.0 < model.radius[0, 0] < 1e-14
    check_model(mdp, model)
    # Equal rows whose sums are no floats cannot be stored exactly either.
    P[1] = P[0]
    mdp = TabularMDP.from_dense(P, np.zeros((4, 1)))
    assert Fraction(0.1) + Fraction(0.2) != Fraction(0.1 + 0.2)
    model = build_blocks(mdp, [0, 0, 1, 1])
    assert 0.0 < model.radius[0, 0] < 1e-14
    check_model(mdp, model)


def test_rows_that_differ_in_their_tails_are_not_taken_for_equal() -> None:
    """Sums that round to the same floats, in rows of the same sum, and differ by 2**-55."""
    P = np.zeros((6, 1, 6))
    P[0, 0, [0, 2]] = 0.5, 0.5
    P[1, 0, [0, 1]] = 0.5, 2.0**-55
    P[1, 0, [2, 3]] = 0.25, 0.25 - 2.0**-55
    P[2:, 0, 4] = 1.0
    mdp = TabularMDP.from_dense(P, np.zeros((6, 1)))
    model = build_blocks(mdp, [0, 0, 1, 1, 2, 2])
    assert 0.0 < model.radius[0, 0] < 1e-14
    check_model(mdp, model)


def agreeing(seed: int) -> tuple[TabularMDP, Ints]:
    """A group of six states that agree on most of their mass, and three single states."""
    rng = np.random.default_rng([seed, 9])
    n, n_actions = 9, int(rng.integers(1, 3))
    groups = np.array([0, 0, 0, 0, 0, 0, 1, 2, 3])
    share = rng.choice([1 / 32, 0.05, 0.1])
    P = np.zeros((n, n_actions, n))
    for a in range(n_actions):
        there = rng.dirichlet(np.ones(4)) * (1.0 - share)
        for s in range(n):
            P[s, a, [int(rng.integers(6)), 6, 7, 8]] += there
            P[s, a, [int(rng.integers(6)), 6, 7, 8][(s + a) % 4]] += share
    rewards = rng.random((4, n_actions))[groups] + 0.01 * rng.random((n, n_actions))
    return TabularMDP.from_dense(P, rewards), groups


def block_case(seed: int) -> tuple[TabularMDP, Ints]:
    """A small model and a partition: of groups that agree, or any."""
    if seed % 3 == 2:
        return agreeing(seed)
    mdp = small_mdp(seed)
    return mdp, partition(mdp, "random", seed)


def test_what_members_agree_on_is_shared() -> None:
    """Noise of a twentieth anywhere: two members differ by that, not by twice as much."""
    found = 0
    for seed in range(60):
        mdp, groups = agreeing(seed)
        model = build_blocks(mdp, groups)
        check_model(mdp, model)
        found += int((model.spare > 0.0).sum())
    assert found > 60
    mdp, groups = noisy_groups(6000, 60, 0.01, 0)
    model = build_blocks(mdp, groups)
    assert (model.spare + 2.0 * model.short).max() < 0.0102 < 1.9 * model.radius.min()


def noisy_groups(n: int, n_groups: int, share: float, seed: int) -> tuple[TabularMDP, Any]:
    """Rows that send a share of their mass anywhere, and the rest as their group does."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n) % n_groups
    size = n // n_groups
    near, far = ((groups + k) % n_groups + n_groups * rng.integers(size, size=n) for k in (1, 3))
    indices = np.stack([near, far, rng.integers(n, size=n)], axis=1)
    masses = np.tile([0.75 * (1.0 - share), 0.25 * (1.0 - share), share], n)
    rows = np.arange(n + 1) * 3, indices.ravel(), masses
    return TabularMDP.from_rows(*rows, np.zeros((n, 1))), groups


@pytest.mark.parametrize("seed", range(4))
def test_radii_are_as_small_as_those_of_simple_centres(seed: int) -> None:
    """Of the mean, where shares go anywhere, and of the mid-range, where one row is another."""
    mdp, groups = noisy_groups(90, 6, 0.05, seed)
    P = np.asarray(mdp.kernel().todense())
    lifted = np.stack([P[:, groups == g].sum(axis=1) for g in range(6)], axis=1)
    model = build_blocks(mdp, groups)
    for block in range(6):
        rows = lifted[groups == block]
        simple = [rows.mean(axis=0), rows.min(axis=0) + rows.max(axis=0)]
        best = min(np.maximum(rows - c / c.sum(), 0.0).sum(axis=1).max() for c in simple)
        # A little more is allowed where members then differ by much less than two radii.
        assert model.radius[block, 0] <= 1.35 * best + 1e-12
        assert model.spare[block, 0] + 2.0 * model.short[block, 0] <= 1.5 * best + 1e-12
    check_model(mdp, model)
    one = np.zeros((30, 1, 30))
    one[:, 0, 10] = 1.0
    one[7, 0, [10, 20]] = 0.5, 0.5  # one of many: the mean is half a step from it, not a quarter
    mdp = TabularMDP.from_dense(one, np.zeros((30, 1)))
    model = build_blocks(mdp, np.arange(30) // 10)
    assert model.radius[0, 0] == pytest.approx(0.25, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_centres_leave_out_what_is_not_worth_an_entry(seed: int) -> None:
    """Every block in reach is listed, those of a few members with next to no mass."""
    mdp, groups = noisy_groups(6000, 60, 0.01, seed)
    model = build_blocks(mdp, groups)
    is_speck = model.probs < 1e-300
    assert is_speck.sum() > 60 * 20
    assert (~is_speck).sum() < 60 * 5
    assert (model.probs > 0.0).all()
    assert model.radius.max() <= 0.0102
    row = slice(int(model.indptr[0]), int(model.indptr[1]))
    members = np.flatnonzero(groups == 0)
    successors = np.concatenate([mdp.successors(int(s), 0)[0] for s in members])
    assert set(model.indices[row].tolist()) == set(groups[successors].tolist())


def test_specks_of_mass_are_in_reach_and_no_more() -> None:
    """Backups read the costs of blocks that are in reach, whatever mass they have there."""
    common: dict[str, Any] = {
        "labels": [0, 0, 1, 2],
        "low": [[0.0], [0.0], [9.0]],
        "high": [[1.0], [0.0], [9.0]],
        "indptr": [0, 3, 4, 5],
        "indices": [0, 1, 2, 1, 2],
        "radius": [[0.25], [0.0], [0.0]],
    }
    P = np.zeros((4, 1, 4))
    P[0, 0, [0, 2]] = 0.5, 0.5
    P[1, 0, [0, 3]] = 0.75, 0.25
    P[2, 0, 2] = P[3, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [[0.0], [1.0], [0.0], [9.0]])
    found = []
    for speck in (5e-324, 1e-17):
        model = BlockModel(**common, probs=np.array([0.5, 0.5, speck, 1.0, 1.0]))
        arms = Arms(mdp, 0.5, model=model)
        arms.cover_all()
        arms.sweep()
        found.append((arms.lower, arms.upper))
    for plain, other in zip(*found, strict=True):
        np.testing.assert_allclose(plain, other, rtol=1e-12, atol=1e-12)


def test_rounding_is_covered_by_the_radius() -> None:
    """Long rows of awkward numbers, in blocks whose members differ by rounding alone."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n = 24
        weights = rng.random(n) ** 6
        P = np.array([weights[rng.permutation(n)] for _ in range(n)])[:, None]
        P /= P.sum(axis=2, keepdims=True)
        mdp = TabularMDP.from_dense(P, np.zeros((n, 1)))
        check_model(mdp, build_blocks(mdp, rng.integers(0, 3, n)))
        same = np.zeros(n, np.int64)
        same[0] = 1
        check_model(mdp, build_blocks(mdp, same))


def test_the_number_of_threads_does_not_matter() -> None:
    for seed in range(3):
        mdp = grouped_mdp(300, 40, 3, noise=0.05, seed=seed)[0]
        labels = np.random.default_rng(seed).integers(0, 60, 300)
        one, two = (build_blocks(mdp, labels, resources=Resources(threads=k)) for k in (1, 2))
        for name in (
            "labels",
            "low",
            "high",
            "indptr",
            "indices",
            "probs",
            "radius",
            "spare",
            "short",
        ):
            assert getattr(one, name).tobytes() == getattr(two, name).tobytes(), name


def test_arrays_cannot_be_written_to() -> None:
    model = build_blocks(small_mdp(1), partition(small_mdp(1), "random"))
    for name in ("labels", "low", "high", "indptr", "indices", "probs", "radius", "spare", "short"):
        assert not getattr(model, name).flags.writeable


def test_estimated_radii_enter() -> None:
    mdp = dyadic(4, 1, np.random.default_rng(0))
    sure = build_blocks(mdp, [0, 0, 1, 1])
    unsure = build_blocks(estimated(mdp, 0.5, [[0.25], [0.125], [0.0], [1.0]]), [0, 0, 1, 1])
    assert not sure.is_estimate
    assert unsure.is_estimate
    assert (unsure.low <= sure.low - 0.5).all()
    assert (unsure.high >= sure.high + 0.5).all()
    assert unsure.radius[0, 0] >= 0.25
    assert unsure.radius[1, 0] == 1.0
    states = BlockModel.of_states(estimated(mdp, 0.5, 0.25))
    assert (states.radius == 0.25).all()
    assert (states.low <= mdp.rewards - 0.5).all()
    assert (states.high >= mdp.rewards + 0.5).all()


def test_labels_are_checked() -> None:
    mdp = small_mdp(1)
    for bad in ([0], np.zeros((mdp.n_states, 1), int), np.zeros(mdp.n_states), ["a"]):
        with pytest.raises(InvalidArgumentError, match="labels must be one whole number"):
            build_blocks(mdp, bad)
    with pytest.raises(InvalidArgumentError):
        build_blocks("no model", [0])  # type: ignore[arg-type]


# -- what a model and a level may hold ---------------------------------------------------------


def fields(**changes: Any) -> dict[str, Any]:
    """Two blocks of three states, one action."""
    content: dict[str, Any] = {
        "labels": [0, 0, 1],
        "low": [[0.0], [1.0]],
        "high": [[0.5], [1.0]],
        "indptr": [0, 2, 3],
        "indices": [0, 1, 1],
        "probs": [0.5, 0.5, 1.0],
        "radius": [[0.25], [0.0]],
    }
    return content | changes


def test_points_share_one_array() -> None:
    model = BlockModel(**fields(high=[[0.0], [1.0]]))
    assert model.low is model.high
    assert BlockModel(**fields()).low is not BlockModel(**fields()).high


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"low": [0.0, 1.0]}, "shape"),
        ({"low": np.empty((0, 1)), "high": np.empty((0, 1))}, "shape"),
        ({"high": [[0.5]]}, "shape"),
        ({"radius": [[0.25]]}, "radius must have shape"),
        ({"low": [[0.75], [1.0]]}, "low <= high"),
        ({"low": [[np.nan], [1.0]]}, "low <= high"),
        ({"high": [[np.inf], [1.0]]}, "low <= high"),
        ({"radius": [[-0.1], [0.0]]}, "radius is a share of mass"),
        ({"radius": [[1.1], [0.0]]}, "radius is a share of mass"),
        ({"radius": [[np.nan], [0.0]]}, "radius is a share of mass"),
        ({"spare": [[0.1]], "short": [[0.1], [0.0]]}, "spare must have shape"),
        ({"spare": [[0.1], [0.0]]}, "short must have shape"),
        ({"short": [[0.1], [0.0]]}, "spare must have shape"),
        ({"spare": [[0.1], [1.1]], "short": [[0.1], [0.0]]}, "spare is a share of mass"),
        ({"spare": [[0.1], [0.0]], "short": [[-0.1], [0.0]]}, "short is a share of mass"),
        ({"labels": [0, 0, 0]}, "none of them empty"),
        ({"labels": [0, 1, 2]}, "none of them empty"),
        ({"labels": [0, -1, 1]}, "none of them empty"),
        ({"labels": [[0, 0, 1]]}, "none of them empty"),
        ({"labels": []}, "none of them empty"),
    ],
)
def test_models_are_checked(changes: dict[str, Any], words: str) -> None:
    BlockModel(**fields())
    with pytest.raises(InvalidArgumentError, match=words):
        BlockModel(**fields(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"indptr": [0, 2]},
        {"indices": [1, 0, 1]},
        {"indices": [0, 2, 1]},
        {"probs": [0.5, 0.4, 1.0]},
        {"probs": [1.0, 0.0, 1.0]},
        {"labels": [0.0, 0.5, 1.0]},
    ],
)
def test_rows_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidMDPError):
        BlockModel(**fields(**changes))


def table(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "model": BlockModel(**fields()),
        "keys": [0, 1],
        "lower": [0.0, 0.5],
        "upper": [1.0, 2.0],
    }
    return content | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": [0]}, "aligned"),
        ({"lower": [0.0]}, "aligned"),
        ({"keys": [[0, 1]]}, "aligned"),
        ({"keys": [1, 0]}, "rise strictly"),
        ({"keys": [1, 1]}, "rise strictly"),
        ({"keys": [-1, 0]}, "rise strictly"),
        ({"keys": [0, 2]}, "pairs s <= t"),
        ({"keys": [0, 4]}, "rise strictly"),
        ({"keys": [0, 3], "lower": [0.0, 0.0]}, "several members have a diameter"),
        ({"lower": [0.1, 0.5]}, "lower must be 0 within a block"),
        ({"lower": [0.0, 3.0]}, "0 <= lower <= upper"),
        ({"lower": [0.0, -0.5]}, "0 <= lower <= upper"),
        ({"lower": [0.0, np.nan]}, "0 <= lower <= upper"),
        ({"upper": [1.0, np.inf]}, "0 <= lower <= upper"),
    ],
)
def test_levels_are_checked(changes: dict[str, Any], words: str) -> None:
    BlockLevel(**table())
    with pytest.raises(InvalidArgumentError, match=words):
        BlockLevel(**table(**changes))


def test_entries_of_a_level() -> None:
    level = BlockLevel(**table())
    first, second = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    lower, upper = level.entries(first, second)
    assert lower.tolist() == [0.0, 0.5, 0.5, 0.0]
    assert upper.tolist() == [1.0, 2.0, 2.0, np.inf]
    empty = BlockLevel(**table(keys=[], lower=[], upper=[]))
    lower, upper = empty.entries(first, second)
    assert not lower.any()
    assert np.isinf(upper).all()


def test_the_widest_gap_is_rounded_up() -> None:
    missed = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lower, upper = np.append(0.0, 0.3 * rng.random()), np.append(1.0, 2.0 + rng.random())
        level = BlockLevel(**table(lower=lower, upper=upper))
        exact = Fraction(float(upper[1])) - Fraction(float(lower[1]))
        assert Fraction(level.widest()) >= exact
        assert level.widest() <= float(exact) * (1.0 + 1e-15)
        missed += Fraction(float(upper[1] - lower[1])) < exact
    assert missed > 5


# -- diameters that are exactly 0 --------------------------------------------------------------


def greatest_exact(model: BlockModel) -> set[int]:
    """By trying all sets of blocks."""
    points = set(np.flatnonzero(model.is_point).tolist())
    several = [b for b in range(model.n_blocks) if b not in points]
    best: set[int] = set()
    for mask in range(2 ** len(several)):
        chosen = {b for k, b in enumerate(several) if mask >> k & 1}
        if all(
            model.low[b, a] == model.high[b, a]
            and model.radius[b, a] == 0.0
            and set(centre(model, b, a)) <= chosen | points
            for b in chosen
            for a in range(model.n_actions)
        ):
            best |= chosen
    return best


def test_exact_blocks_are_the_greatest_such_set() -> None:
    found = chains = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        n_blocks = int(rng.integers(2, 7))
        sizes = rng.integers(1, 3, n_blocks)
        members = np.repeat(np.arange(n_blocks), sizes)
        rows = [
            np.sort(rng.choice(n_blocks, size=int(rng.integers(1, 3)), replace=False))
            for _ in range(n_blocks)
        ]
        low = np.zeros((n_blocks, 1))
        model = BlockModel(
            labels=members,
            low=low,
            high=low + (rng.random((n_blocks, 1)) < 0.15),
            indptr=np.concatenate([[0], np.cumsum([r.size for r in rows])]),
            indices=np.concatenate(rows),
            probs=np.concatenate([np.full(r.size, 1.0 / r.size) for r in rows]),
            radius=np.where(rng.random((n_blocks, 1)) < 0.15, 0.5, 0.0),
        )
        expected = greatest_exact(model)
        assert set(exact_blocks(model).tolist()) == expected
        found += len(expected)
        plain = (model.low == model.high).all(axis=1) & (model.radius == 0.0).all(axis=1)
        chains += int((plain & ~model.is_point).sum()) - len(expected)
    assert found > 100
    assert chains > 30  # left out for where they lead


def test_exact_blocks_have_diameter_0() -> None:
    zeros = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        mdp = dyadic(6, 1, rng)
        for kind in ("classes", "random"):
            arms = Arms(
                mdp,
                0.9,
                model=build_blocks(mdp, partition(mdp, kind, seed)),
                resources=Resources(threads=1),
            )
            arms.start_diagonal()
            check_inequalities(arms.mdp, arms.gamma, *lifted(arms))
            first, second = arms.pairs()
            assert (first == second).all()
            zeros += int((arms.upper == 0.0).sum())
    assert zeros > 20


def test_an_equal_looking_block_that_leads_to_a_wide_one_has_a_diameter() -> None:
    """States 0 and 1 pay alike and share a lifted row, but lead to 2 and 3, which differ."""
    P = np.eye(4)[[2, 3, 2, 3], None, :]
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 1.0])
    model = build_blocks(mdp, [0, 0, 1, 1])
    assert (model.radius == 0.0).all()
    assert exact_blocks(model).size == 0
    arms = Arms(mdp, 0.5, model=model)
    arms.start_diagonal()
    arms.cover_all()
    for _ in range(60):
        arms.sweep()
    assert arms.bounds(0, 0)[1] >= 1.0  # 0.5 * 2
    assert arms.bounds(1, 1)[1] >= 2.0
    assert arms.bounds(1, 1)[1] <= 2.0 + 1e-9


# -- single states are blocks of one -----------------------------------------------------------


def test_singleton_blocks_give_back_the_pair_arms() -> None:
    for seed in range(60):
        mdp = small_mdp(seed)
        if seed % 6 in (0, 1):  # long rows round: radii of a few ulps
            mdp = dyadic(6, 2, np.random.default_rng(seed))
        model = build_blocks(mdp, np.arange(mdp.n_states))
        states = BlockModel.of_states(mdp)
        if mdp.estimate is None:
            assert (model.radius == 0.0).all()
        else:
            assert (model.radius >= states.radius).all()
            np.testing.assert_allclose(model.radius, states.radius, rtol=1e-14, atol=0.0)
        gamma = (0.0, 0.5, 0.9)[seed % 3]
        rng = np.random.default_rng(seed)
        s, t = rng.integers(mdp.n_states, size=(2, 12))
        both = [Arms(mdp, gamma, model=m, resources=Resources(threads=1)) for m in (None, model)]
        for _ in range(4):
            for arms in both:
                arms.cover(s, t)
                arms.start_diagonal()
                arms.sweep()
            s, t = rng.integers(mdp.n_states, size=(2, 12))
        one, two = both
        np.testing.assert_array_equal(one.keys, two.keys)
        if mdp.estimate is None:
            np.testing.assert_array_equal(one.lower, two.lower)
            np.testing.assert_array_equal(one.upper, two.upper)
        else:
            np.testing.assert_allclose(one.lower, two.lower, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(one.upper, two.upper, rtol=1e-12, atol=1e-12)


# -- the arms on blocks ------------------------------------------------------------------------


def lifted(arms: Arms) -> tuple[Floats, Floats]:
    """(n_states, n_states) what the arms say of all pairs of states; 0 of equal ones."""
    labels = arms.model.labels
    lower, upper = (x.copy() for x in arms.bounds(labels[:, None], labels))
    for t in (lower, upper):
        np.fill_diagonal(t, 0.0)
    return lower, upper


def check_enclosure(arms: Arms, mdp: TabularMDP) -> None:
    lower, upper = lifted(arms)
    exact = bisimulation_metric(mdp, arms.gamma, resources=Resources(threads=1))
    assert (lower <= exact.upper).all()
    assert (upper >= exact.lower).all()


def grow(arms: Arms, rng: np.random.Generator) -> None:
    """Some coverage, from nothing to everything."""
    choice = int(rng.integers(4))
    if choice == 0:
        arms.cover_all()
    elif choice < 3:
        arms.cover(*rng.integers(arms.n, size=(2, 4)))


@pytest.mark.parametrize("seed", range(90))
def test_arms_on_blocks_prove_themselves_at_every_sweep(seed: int) -> None:
    mdp, labels = block_case(seed)
    rng = np.random.default_rng([seed, 3])
    gamma = float(rng.choice([0.0, 0.3, 0.9, 0.99]))
    if rng.random() < 0.3:
        labels = partition(mdp, str(rng.choice(["classes", "one"])), seed)
    arms = Arms(
        mdp,
        gamma,
        model=build_blocks(mdp, labels),
        resources=Resources(threads=1),
    )
    before = lifted(arms)
    for sweeps in (0, 1, 2, 8):
        if rng.random() < 0.5:
            arms.start_diagonal()
        grow(arms, rng)
        for _ in range(sweeps):
            arms.sweep()
        now = lifted(arms)
        assert (now[0] >= before[0]).all()
        assert (now[1] <= before[1]).all()
        before = now
        check_enclosure(arms, mdp)
    check_inequalities(arms.mdp, arms.gamma, *lifted(arms))


@pytest.mark.parametrize("seed", range(24))
def test_diagonals_prove_themselves_before_any_sweep(seed: int) -> None:
    mdp, labels = block_case(seed)
    gamma = (0.5, 0.9)[seed % 2]
    model = build_blocks(mdp, labels)
    arms = Arms(mdp, gamma, model=model, resources=Resources(threads=1))
    arms.start_diagonal()
    check_inequalities(arms.mdp, arms.gamma, *lifted(arms))
    # Proven for blocks, too: a sweep finds no diameter above what was stored.
    values = arms.ground_costs(is_upper=True)
    assert (arms.backup(values, is_upper=True) <= arms.upper * (1.0 + 1e-11)).all()


def test_the_diameter_of_rows_that_differ_counts() -> None:
    """Equal pay, rows apart: without the radius a diameter would start at 0."""
    P = np.zeros((4, 1, 4))
    P[0, 0, 2] = P[1, 0, 3] = P[2, 0, 2] = P[3, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1.0, 0.0])
    arms = Arms(mdp, 0.5, model=build_blocks(mdp, [0, 0, 1, 2]))
    arms.start_diagonal()
    assert arms.bounds(0, 0)[1] >= 1.0  # d(0, 1) = 0.5 * 2
    arms.sweep()
    assert arms.bounds(0, 0)[1] == pytest.approx(1.0)
    check_inequalities(arms.mdp, arms.gamma, *lifted(arms))


@pytest.mark.parametrize("seed", range(10))
def test_enclosure_by_linear_programming(seed: int) -> None:
    mdp = small_mdp(6 * seed + seed % 5)
    d = metric_lp(mdp, 0.6)
    arms = Arms(
        mdp,
        0.6,
        model=build_blocks(mdp, partition(mdp, "random", seed)),
        resources=Resources(threads=1),
    )
    arms.start_diagonal()
    arms.cover_all()
    for _ in range(40):
        arms.sweep()
    lower, upper = lifted(arms)
    assert (lower <= d + 1e-6).all()
    assert (upper >= d - 1e-6).all()


def block_backup(arms: Arms, is_upper: bool) -> list[Fraction]:
    """The backup of covered block pairs by its definition, in exact arithmetic."""
    model, gamma = arms.model, Fraction(arms.gamma)
    n = arms.n
    values = [
        [Fraction(float(arms.bounds(i, j)[int(is_upper)])) for j in range(n)] for i in range(n)
    ]
    if not is_upper:
        for i in range(n):
            values[i][i] = Fraction(0)
    result = []
    for s, t in zip(*(x.tolist() for x in arms.pairs()), strict=True):
        best = Fraction(0)
        for a in range(model.n_actions):
            ends = [Fraction(float(x[i, a])) for i in (s, t) for x in (model.low, model.high)]
            gap = max(Fraction(0), ends[0] - ends[3], ends[2] - ends[1])
            span = max(ends[1] - ends[2], ends[3] - ends[0])
            one, two = centre(model, s, a), centre(model, t, a)
            cost = [[values[i][j] for j in two] for i in one]
            free = Fraction(float(model.radius[s, a])) + Fraction(float(model.radius[t, a]))
            p, q = list(one.values()), list(two.values())
            if is_upper:
                most = max(max(line) for line in cost)
                if model.is_estimate and free:
                    most = max(most, Fraction(arms.starts.diameter))
                spare = max(Fraction(float(model.spare[i, a])) for i in (s, t))
                rest = spare + sum(Fraction(float(model.short[i, a])) for i in (s, t))
                carried = (1 - spare) * transport_exact(cost, p, q) + rest * most
                best = max(best, span + gamma * min(most, carried))
            else:
                best = max(best, gap + gamma * partial_exact(cost, p, q, free))
        result.append(best)
    return result


@pytest.mark.parametrize("seed", range(48))
def test_backups_are_the_definition_rounded_outward(seed: int) -> None:
    mdp, labels = block_case(seed)
    gamma = (0.4, 0.9)[seed % 2]
    arms = Arms(
        mdp,
        gamma,
        model=build_blocks(mdp, labels),
        resources=Resources(threads=1),
    )
    if seed % 3:
        arms.start_diagonal()
    arms.cover_all()
    room = Fraction(arms.starts.diameter) / 10**12
    for _ in range(2):
        for is_upper in (False, True):
            exact = block_backup(arms, is_upper)
            got = arms.backup(arms.ground_costs(is_upper=is_upper), is_upper=is_upper)
            for value, truth in zip(got.tolist(), exact, strict=True):
                off = Fraction(value) - truth
                assert (0 <= off <= room) if is_upper else (-room <= off <= 0)
        arms.sweep()


# -- partial transport -------------------------------------------------------------------------


def partial_lp(cost: Floats, a: Floats, b: Floats, free: float) -> float:
    """The same by its definition: a sub-coupling of mass at least 1 - free."""
    m, n = cost.shape
    limits = np.vstack(
        [np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n)), -np.ones((1, m * n))]
    )
    sides = np.concatenate([a, b, [free - 1.0]])
    found = linprog(cost.ravel(), A_ub=limits, b_ub=sides, method="highs")
    assert found.x is not None, found.message
    return float(found.x @ cost.ravel())


@pytest.mark.drawn
def test_partial_transport() -> None:
    rng = np.random.default_rng(0)
    loose = 0.0
    for trial in range(cases(250)):
        m, n = (int(k) for k in rng.integers(1, 5, size=2))
        cost = rng.random((m, n)) * (rng.random((m, n)) < 0.8)
        a, b = rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(n))
        free = float(rng.choice([1e-15, 1e-6, 0.1, 0.5, 0.999]) * rng.random() + 1e-300)
        exact_cost = [[Fraction(x) for x in line] for line in cost.tolist()]
        truth = partial_exact(exact_cost, a.tolist(), b.tolist(), Fraction(free))
        if trial < 120:
            assert abs(partial_lp(cost, a, b, free) - float(truth)) <= 1e-9
        weights = np.concatenate([a, b])
        indptr, probs = np.array([0, m, m + n]), np.empty(m + n)
        normalise_rows_kernel(indptr, weights, probs)
        radius = np.array([[free / 2.0], [free / 2.0]])
        indices = np.concatenate([np.arange(m), np.arange(n)])
        zero, out = np.zeros((2, 1)), np.empty((1, 1))
        sets, available = np.zeros(2, np.int64), np.ones((2, 1), bool)
        intervals, radii = (zero, zero), (radius, zero, zero)
        blocks = (indptr, indices, weights, probs, *intervals, *radii, available, sets)
        arm_kernel(
            0,
            1,
            np.array([0]),
            np.array([1]),
            np.array([0, m * n]),
            np.arange(m * n),
            blocks,
            1.0,
            max(m, n),
            False,
            0.0,
            0.0,
            False,
            cost.ravel().copy(),
            out,
        )
        got = float(out[0, 0])
        assert Fraction(got) <= truth
        loose = max(loose, float(truth) - got)
    assert loose <= 1e-13


# -- estimated models --------------------------------------------------------------------------


def tight_arms(mdp: TabularMDP, gamma: float, model: BlockModel | None) -> Arms:
    arms = Arms(mdp, gamma, model=model, resources=Resources(threads=1))
    arms.start_diagonal()
    arms.cover_all()
    for _ in range(60):
        arms.sweep()
    return arms


@pytest.mark.parametrize("seed", range(25))
def test_true_models_at_the_edge_are_enclosed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 5
    P = rng.multinomial(16, np.ones(2) / 2, size=(n, 2)) / 16
    full = np.zeros((n, 2, n))
    for s, a in np.ndindex(n, 2):
        full[s, a, rng.choice(n, 2, replace=False)] = P[s, a]
    mdp = estimated(
        TabularMDP.from_dense(full, rng.integers(0, 8, (n, 2)) / 8),
        rng.integers(0, 3, (n, 2)) / 16,
        rng.integers(0, 4, (n, 2)) / 32,
    )
    gamma = (0.5, 0.75)[seed % 2]
    labels = partition(mdp, "random", seed)
    all_arms = [tight_arms(mdp, gamma, m) for m in (None, build_blocks(mdp, labels))]
    for truth in true_models(mdp, rng, 4):
        for arms in all_arms:
            check_enclosure(arms, truth)


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_radii_are_needed_in_full(name: str, gamma: float) -> None:
    """The true distance of 0 and 1 is the bound itself, so that no part of a radius is idle."""
    rows, rewards, true_rows, true_rewards, row_radius, reward_radius = EDGES[name]
    known = [[1.0], [1.0], [0.0], [0.0]]
    mdp = estimated(
        ends(gamma, np.array(rows), np.array(rewards, float)),
        reward_radius * np.array(known),
        row_radius * np.array(known),
    )
    truth = ends(gamma, np.array(true_rows), np.array(true_rewards, float))
    d = bisimulation_metric(truth, gamma)
    arms = tight_arms(mdp, gamma, None)
    check_enclosure(arms, truth)
    lower, upper = (float(x) for x in arms.bounds(0, 1))
    if "together" in name:
        assert lower == pytest.approx(d.upper[0, 1], abs=1e-9)
    elif "apart" in name:
        assert upper == pytest.approx(d.lower[0, 1], abs=1e-9)
    else:  # half of it: the other state could have moved as well
        assert upper == pytest.approx(2.0 * d.lower[0, 1], abs=1e-9)
    for labels in ([0, 0, 1, 2], [0, 1, 2, 2], [0, 0, 1, 1]):
        check_enclosure(tight_arms(mdp, gamma, build_blocks(mdp, labels)), truth)


@pytest.mark.drawn
def test_estimates_from_samples_give_enclosing_arms() -> None:
    """Both arms over all covered pairs hold for the true model in nearly every draw."""
    held, count = 0, cases(200)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        truth = sparse_mdp(4, 1, support=2, seed=seed)
        mdp = sampled(truth, 60, rng)
        arms = tight_arms(mdp, 0.5, None)
        exact = bisimulation_metric(truth, 0.5, resources=Resources(threads=1))
        lower, upper = lifted(arms)
        held += bool((lower <= exact.upper).all() and (upper >= exact.lower).all())
    assert held >= 0.9 * count


CHECKS: list[Callable[[TabularMDP], BlockModel]] = [
    BlockModel.of_states,
    lambda mdp: build_blocks(mdp, np.arange(mdp.n_states) % 2),
]


@pytest.mark.parametrize("make", CHECKS)
def test_nothing_known_gives_nothing_but_starts(make: Callable[[TabularMDP], BlockModel]) -> None:
    mdp = estimated(sparse_mdp(4, 1, support=2, seed=0), 1e3, 1.0)
    arms = tight_arms(mdp, 0.5, make(mdp))
    assert not arms.lower.any()
    assert (arms.upper >= 2e3).all()


def test_means_of_the_least_probabilities_stay_above_0() -> None:
    """Found by fuzzing: half of 5e-324 is 0, which no row may hold."""
    P = np.array([[[1.0, 5e-324, 0.0]], [[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]])
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1.0])
    model = build_blocks(mdp, [0, 1, 0])
    assert (model.probs > 0.0).all()
    mdp = TabularMDP.from_dense(P, [0.0, 0.5, 1.0])
    certificate = certify(mdp, 0.5, method=Blocks(partition=[0, 1, 0], propose=[]))
    assert verify(mdp, certificate).is_valid
    assert verify(mdp, certificate, mode="exact").is_valid
