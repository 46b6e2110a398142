"""Proposed partitions: planted ones are found, corrupted ones repaired, seeds respected."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import InvalidArgumentError, Resources, TabularMDP
from bisim_abstract._propose import partitions as proposals
from bisim_abstract._propose.partitions import (
    propose_classes,
    propose_components,
    repair_labels,
    split_labels,
)
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support.examples import seeds
from tests.support.oracles import first_appearance
from tests.support.worlds import BY_HAND, Known

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def planted(sizes: list[int], seed: int, *, spread: float = 0.01) -> tuple[Floats, Ints]:
    """Points around distant centres, in random order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = 10.0 * np.stack([np.arange(len(sizes)), rng.random(len(sizes))], axis=1)
    return centres[labels] + spread * rng.standard_normal((labels.size, 2)), labels


def same(found: npt.ArrayLike | None, truth: npt.ArrayLike) -> bool:
    """Whether two labelings are one partition."""
    assert found is not None
    return first_appearance(np.asarray(found).tolist()) == first_appearance(
        np.asarray(truth).tolist()
    )


# -- components of embeddings ------------------------------------------------------------------

SIZES = {
    "equal": [20, 20, 20],
    "unequal": [60, 3, 12, 40],
    "two": [30, 30],
    "many": [5] * 20,
    "with single points": [30, 1, 1, 15],
    "large": [400, 100],
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_planted_components_are_found(name: str, spread: float) -> None:
    for seed in range(5):
        points, labels = planted(SIZES[name], seed, spread=spread)
        assert same(propose_components(points, labels.size), labels)


def test_labels_are_numbered_from_0_without_holes() -> None:
    points, labels = planted(SIZES["unequal"], 0)
    found = propose_components(points, labels.size)
    assert found is not None
    assert sorted(set(found.tolist())) == [0, 1, 2, 3]


def test_a_number_of_blocks_can_be_asked_for() -> None:
    # Two pairs of clusters: two, or four.
    points = np.repeat([0.0, 1.0, 50.0, 51.0], 10)[:, None]
    points += 0.01 * np.random.default_rng(0).random((40, 1))
    four = np.repeat([0, 1, 2, 3], 10)
    assert same(propose_components(points, 40, n_blocks=2), four // 2)
    assert same(propose_components(points, 40, n_blocks=4), four)
    assert same(propose_components(points, 40, n_blocks=1), np.zeros(40, np.int64))
    found = propose_components(points, 40, n_blocks=40)
    assert found is not None
    assert len(set(found.tolist())) == 40
    assert propose_components(points, 40, n_blocks=41) is None
    # Equal points are never cut.
    found = propose_components(np.repeat([0.0, 1.0], 10)[:, None], 20, n_blocks=5)
    assert same(found, np.repeat([0, 1], 10))


def test_ranks_are_the_gaps_from_the_widest_on() -> None:
    points = np.repeat([0.0, 1.0, 50.0, 51.0], 10)[:, None]
    points += 1e-4 * np.random.default_rng(0).random((40, 1))
    four = np.repeat([0, 1, 2, 3], 10)
    found = [propose_components(points, 40, rank=rank) for rank in range(2)]
    assert same(found[0], four)  # 1e-4 to 1
    assert same(found[1], four // 2)  # 1 to 49
    assert propose_components(points, 40, rank=39) is None
    with pytest.raises(InvalidArgumentError, match="rank"):
        propose_components(points, 40, rank=-1)


def test_no_gap_and_no_points_to_tell_apart() -> None:
    assert propose_components(np.zeros((10, 2)), 10) is None
    assert propose_components(np.arange(2.0)[:, None], 2) is None
    assert propose_components(np.zeros((1, 1)), 1) is None
    # A regular line has no gap at all but for rounding; whatever is found is a partition.
    found = propose_components(np.arange(50.0)[:, None], 50)
    assert found is None or found.shape == (50,)


def test_one_cluster_is_cut_somewhere_or_not_at_all() -> None:
    for seed in range(5):
        points, labels = planted([50], seed)
        found = propose_components(points, 50)
        assert found is None or (found.shape == labels.shape and found.min() == 0)


@seeds(5)
def test_a_sample_stands_for_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = planted([200, 120, 80], seed)
    monkeypatch.setattr(proposals, "SAMPLE", 60)
    looked_at: list[int] = []
    forest = proposals._neighbour_forest

    def counted(
        some: npt.NDArray[np.float32], k: int, rng: np.random.Generator, resources: Resources
    ) -> object:
        looked_at.append(some.shape[0])
        return forest(some, k, rng, resources)

    monkeypatch.setattr(proposals, "_neighbour_forest", counted)
    assert same(propose_components(points, 400, seed=seed), labels)
    assert looked_at == [60]
    assert same(propose_components(points, 400, n_blocks=3, seed=seed), labels)


def test_many_blocks_need_a_sample_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = planted([20] * 30, 0)
    monkeypatch.setattr(proposals, "SAMPLE", 60)
    assert same(propose_components(points, 600, n_blocks=30, most=180), labels)
    assert propose_components(points, 600, n_blocks=30, most=179) is None
    assert propose_components(points, 600, n_blocks=3, most=1) is not None  # the smallest sample


@seeds(8)
def test_groups_that_the_sample_missed_are_found(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rounds that takes: more small groups than fit into one sample."""
    points, labels = planted([200, 120, 80] + [2] * 40, seed)
    for size in (60, 12):
        monkeypatch.setattr(proposals, "SAMPLE", size)
        assert same(propose_components(points, labels.size, seed=seed), labels)


def test_a_cloud_that_no_sample_exhausts_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups, and thousands of states that belong to none: work stays within its limit."""
    points, _ = planted([300, 300], 0)
    cloud = np.random.default_rng(0).random((3_000, 2)) * 1e4
    monkeypatch.setattr(proposals, "SAMPLE", 300)
    monkeypatch.setattr(proposals, "MOST_COMPARED", 1_000_000)
    compared: list[int] = []
    extend = proposals._extended

    def counted(
        some: npt.NDArray[np.float32], chosen: Ints, labels: Ints, resources: Resources
    ) -> object:
        compared.append(some.shape[0] * (int(labels.max()) + 1))
        return extend(some, chosen, labels, resources)

    monkeypatch.setattr(proposals, "_extended", counted)
    everyone = np.concatenate([points] * 6 + [cloud])
    assert propose_components(everyone, everyone.shape[0]) is not None
    assert len(compared) > 1
    assert sum(compared[1:]) <= 1_000_000


def test_the_sample_grows_until_a_gap_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "SAMPLE", 4)
    points, labels = planted([100, 100], 0, spread=0.2)
    monkeypatch.setattr(proposals, "CLEAR_GAP", 1e9)
    assert same(propose_components(points, 200), labels)


def test_means_join_components_of_the_neighbour_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = planted([30] * 6, 1)
    for limit in (2_000, 2):
        monkeypatch.setattr(proposals, "DENSE_LIMIT", limit)
        assert same(propose_components(points, 180, neighbours=2), labels)


def test_nearly_equal_points_stay_one_component() -> None:
    """Lumps that only rounding parts are next to each other, whatever hangs together elsewhere."""
    groups = np.repeat([0, 0, 1, 2, 3], [12, 12, 4, 5, 20])
    places = np.array([0.0, 1.0, 1.5, 4.0])[groups]
    places[12:24] += 2.0**-26  # beyond eight neighbours, which lie at the very same place
    found = propose_components(places[:, None], groups.size, seed=0)
    assert found is not None
    assert found.tolist() == groups.tolist()


def test_components_are_determined_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "SAMPLE", 50)
    points = np.random.default_rng(0).random((300, 3))
    one, two, other = (propose_components(points, 300, n_blocks=9, seed=k) for k in (1, 1, 2))
    assert one is not None
    assert two is not None
    assert other is not None
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


# -- classes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", BY_HAND[::4], ids=lambda k: k.name)
def test_classes_by_hand(known: Known) -> None:
    assert same(propose_classes(known.mdp), known.labels)


def test_classes_forgive_rounding() -> None:
    """Rewards and rows that differ in the last bits are meant to be equal."""
    for seed in range(5):
        mdp, groups = grouped_mdp(60, 6, 2, noise=0.0, support=3, seed=seed)
        rng = np.random.default_rng(seed)
        rewards = mdp.rewards * (1.0 + 1e-15 * rng.standard_normal(mdp.rewards.shape))
        probs = mdp.probs * (1.0 + 1e-15 * rng.standard_normal(mdp.nnz))
        near = TabularMDP.from_rows(mdp.indptr, mdp.indices, probs, rewards)
        assert same(propose_classes(near), groups)


# -- repair ------------------------------------------------------------------------------------


@cache
def rooms(noise: float = 0.02) -> tuple[TabularMDP, tuple[int, ...]]:
    env = RoomsGridEnv(noise=noise)
    return env.to_mdp(), tuple(env.rooms.tolist())


def corrupted(labels: npt.ArrayLike, share: float, seed: int) -> Ints:
    """The same with a share of the labels replaced by other ones."""
    rng = np.random.default_rng(seed)
    out = np.array(labels)
    count = int(out.max()) + 1
    bad = rng.permutation(out.size)[: int(share * out.size)]
    out[bad] = (out[bad] + rng.integers(1, count, bad.size)) % count
    assert (out != np.asarray(labels)).sum() == bad.size
    return out


@pytest.mark.parametrize("share", [0.05, 0.2])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_repairs_rooms(share: float, noise: float) -> None:
    mdp, truth = rooms(noise)
    for seed in range(2):
        assert same(repair_labels(mdp, corrupted(truth, share, seed), 0.9), truth)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_repairs_groups(share: float) -> None:
    repaired = 0
    for seed, (n, k, noise) in enumerate(itertools.product((100, 300), (4, 10), (0.0, 0.01, 0.05))):
        mdp, truth = grouped_mdp(n, k, 3, noise=noise, seed=seed)
        found = repair_labels(mdp, corrupted(truth, share, seed), 0.9)
        repaired += same(found, truth)
    assert repaired == 12


def test_a_correct_partition_stays() -> None:
    mdp, truth = rooms()
    assert same(repair_labels(mdp, truth, 0.9), truth)
    for seed in range(30):
        noise = (0.0, 0.01, 0.05, 0.1)[seed % 4]
        model, groups = grouped_mdp(60, 2 + seed % 7, 2, noise=noise, support=3, seed=seed)
        assert same(repair_labels(model, groups, (0.5, 0.9, 0.99)[seed % 3]), groups)


def test_repair_keeps_to_its_rounds_and_to_what_is_given() -> None:
    mdp, truth = rooms()
    bad = corrupted(truth, 0.2, 0)
    before = bad.copy()
    assert same(repair_labels(mdp, bad, 0.9, rounds=0), bad)
    np.testing.assert_array_equal(bad, before)
    wrong = [
        int((repair_labels(mdp, bad, 0.9, rounds=k) != first_appearance(list(truth))).sum())
        for k in (1, 3)
    ]
    assert wrong[0] < 0.2 * mdp.n_states
    assert wrong[1] == 0
    with pytest.raises(InvalidArgumentError, match="rounds"):
        repair_labels(mdp, bad, 0.9, rounds=-1)
    with pytest.raises(InvalidArgumentError, match="labels"):
        repair_labels(mdp, [0], 0.9)


def test_repair_of_anything_is_a_partition() -> None:
    for seed in range(20):
        mdp = sparse_mdp(12, 2, support=3, seed=seed)
        for count in (1, 3, 12):
            labels = np.random.default_rng(seed).integers(0, count, 12)
            found = repair_labels(mdp, labels, 0.9, resources=Resources(threads=1))
            assert sorted(set(found.tolist())) == list(range(int(found.max()) + 1))
            assert found.max() <= len(set(labels.tolist())) - 1
            two = repair_labels(mdp, labels, 0.9, resources=Resources(threads=2))
            np.testing.assert_array_equal(found, two)


def test_blocks_with_a_gap_inside_are_cut() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 30)
    points = truth[:, None] + 0.02 * rng.standard_normal((120, 2))
    merged = truth // 2
    assert same(split_labels(points, merged, seed=1), truth)
    assert same(split_labels(points, truth, seed=1), truth)
    # Two stray points are no group of their own.
    points[:2] += 0.5
    assert same(split_labels(points, truth, seed=1), truth)

    with pytest.raises(InvalidArgumentError, match="points must have shape"):
        split_labels([1.0, 2.0], [0, 1])
