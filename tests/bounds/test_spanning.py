"""Single linkage of all pairs against brute force over all pairs."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import Resources, TabularMDP, bisimulation_metric
from bisim_abstract._bounds import spanning
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel, build_blocks
from bisim_abstract._bounds.features import value_features
from bisim_abstract._bounds.spanning import (
    Cells,
    Undecided,
    find_cells,
    lower_forest,
    row_reader,
    undecided,
    upper_forest,
)
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._linkage.thresholds import certified_intervals
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.support.examples import cases, seeds
from tests.support.oracles import first_appearance, linked, refines

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def thresholds(*forests: Forest) -> list[float]:
    """Every weight, a hair below and above it, and the middle between two."""
    weights = sorted({0.0, *(w for forest in forests for w in forest.weights.tolist())})
    near = [float(np.nextafter(w, d)) for w in weights for d in (-np.inf, np.inf)]
    between = [(a + b) / 2.0 for a, b in itertools.pairwise(weights)]
    return [*weights, *near, *between]


def model(seed: int) -> TabularMDP:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 13))
    if seed % 3 == 0:
        return sparse_mdp(n, 2, support=2, seed=seed)
    noise = (0.0, 0.05, 0.2)[seed % 2 + 1 if seed % 5 else 0]
    return grouped_mdp(n, 3, 2, noise=noise, support=2, seed=seed)[0]


def table_of(seed: int, *, pairs: str = "some", levels: int = 2, features: bool = True) -> Arms:
    """Arms over states with levels, features and covered pairs as asked."""
    mdp, gamma = model(seed), (0.5, 0.9)[seed % 2]
    rng = np.random.default_rng([seed, 7])
    n = mdp.n_states
    table = Arms(mdp, gamma, resources=Resources(threads=1))
    for k in range(levels):
        labels = rng.integers(0, 4 + k, n)
        if k == 0 and seed % 3:
            labels = np.arange(n) * 3 // n  # about the planted groups
        arms = Arms(mdp, gamma, model=build_blocks(mdp, labels), resources=Resources(threads=1))
        arms.start_diagonal()
        if rng.random() < 0.7:
            arms.cover_all()
        else:
            arms.cover(*rng.integers(arms.n, size=(2, 3)))
        for _ in range(int(rng.integers(1, 25))):
            arms.sweep()
        table.add_level(arms.level())
    if features:
        table.set_features(value_features(mdp, gamma, count=4, resources=Resources(threads=1)))
    cells = table.ground.levels[0].model.labels if levels else np.zeros(n, np.int64)
    if pairs == "all":
        table.cover_all()
    elif pairs == "some":
        table.cover(*rng.integers(n, size=(2, n)))
    elif pairs != "none":
        s, t = np.triu_indices(n, 1)
        inside = cells[s] == cells[t]
        use = inside if pairs == "inside" else ~inside
        if pairs == "one cell pair":
            use = (cells[s] == 0) & (cells[t] == 1) | (cells[s] == 1) & (cells[t] == 0)
        table.cover(s[use], t[use])
    for _ in range(int(rng.integers(0, 20))):
        table.sweep()
    return table


def forests(table: Arms) -> tuple[Forest, Forest]:
    return (
        lower_forest(table.n, table.ground, table.keys, table.lower),
        upper_forest(table.n, table.ground, table.keys, table.upper),
    )


def bounds(table: Arms) -> tuple[Floats, Floats]:
    """Composed bounds on all pairs, above without start values other than D.

    Links that only the reward start of an uncovered pair would prove are not made.
    """
    n = table.n
    states = np.arange(n)
    lower, _ = table.bounds(states[:, None], states)
    upper = np.full((n, n), table.starts.diameter)
    for level in table.ground.levels:
        labels = level.model.labels
        entries = level.entries(*np.broadcast_arrays(labels[:, None], labels))[1]
        np.minimum(upper, entries, out=upper)
    s, t = table.pairs()
    upper[s, t] = upper[t, s] = table.upper
    return lower, upper


COVERAGE = ("none", "some", "inside", "across", "one cell pair", "all")


@pytest.mark.drawn
@pytest.mark.parametrize("pairs", COVERAGE)
def test_every_state_a_cell_gives_exact_single_linkage(pairs: str) -> None:
    for seed in range(cases(10)):
        table = table_of(seed, pairs=pairs, levels=seed % 3, features=seed % 2 == 0)
        below, above = forests(table)
        lower, upper = bounds(table)
        for tau in thresholds(below, above):
            if tau >= 0.0:
                assert below.labels(tau).tolist() == linked(lower, tau), (seed, tau)
                assert above.labels(tau).tolist() == linked(upper, tau), (seed, tau)


@pytest.mark.drawn
@pytest.mark.parametrize("pairs", COVERAGE)
@pytest.mark.parametrize("limit", [0, 30, 10_000_000])
def test_coarser_cells_err_on_the_safe_side(
    pairs: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spanning, "SINGLE_LIMIT", 0)
    monkeypatch.setattr(spanning, "OPEN_LIMIT", limit)
    coarser = 0
    for seed in range(cases(12)):
        table = table_of(seed, pairs=pairs, levels=1 + seed % 2, features=seed % 2 == 0)
        assert find_cells(table.n, table.ground).first.size <= table.n
        below, above = forests(table)
        lower, upper = bounds(table)
        for tau in thresholds(below, above):
            if tau >= 0.0:
                exact = linked(lower, tau)
                found = below.labels(tau).tolist()
                assert refines(exact, found), (seed, tau)
                coarser += exact != found
                assert above.labels(tau).tolist() == linked(upper, tau), (seed, tau)
    # Exact where every pair has an entry, and only there.
    assert (coarser == 0) == (pairs == "all")


@pytest.mark.drawn
@pytest.mark.parametrize("pairs", COVERAGE)
@pytest.mark.parametrize("is_coarse", [False, True])
def test_certified_intervals_hold_for_the_metric(
    pairs: str, is_coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_coarse:
        monkeypatch.setattr(spanning, "SINGLE_LIMIT", 0)
    useful = 0
    for seed in range(cases(12)):
        table = table_of(seed, pairs=pairs, levels=1 + seed % 2)
        metric = bisimulation_metric(table.mdp, table.gamma, resources=Resources(threads=1))
        middle = (metric.lower + metric.upper) / 2.0
        below, above = forests(table)
        for interval in certified_intervals(below, above):
            last = interval.high if np.isfinite(interval.high) else interval.low + 1.0
            inside = np.linspace(interval.low, last, 5)[:-1].tolist()
            for tau in (*inside, float(np.nextafter(last, -np.inf))):
                # Where the metric is known well enough to tell.
                if linked(metric.lower, tau) == linked(metric.upper, tau):
                    exact = linked(middle, tau)
                    assert below.labels(tau).tolist() == exact, (seed, tau)
                    assert above.labels(tau).tolist() == exact, (seed, tau)
                    assert len(set(exact)) == interval.n_clusters
                    useful += 1 < interval.n_clusters < table.n
    assert useful > 0


def make_level(
    model: BlockModel, keys: list[int], lower: list[float], upper: list[float]
) -> BlockLevel:
    return BlockLevel(
        model=model, keys=np.array(keys), lower=np.array(lower), upper=np.array(upper)
    )


def test_levels_alone_by_hand() -> None:
    """Blocks {0, 1}, {2, 3} and {4}: entries link whole blocks, also through one another."""
    mdp = TabularMDP.from_dense(np.eye(5)[:, None, :], np.zeros(5))
    table = Arms(mdp, 0.5)
    object.__setattr__(table.ground.starts, "diameter", 100.0)
    made = build_blocks(mdp, [0, 0, 1, 1, 2])
    level = make_level(made, [0, 1, 2, 5], [0.0, 1.0, 2.0, 3.0], [9.0, 4.0, 8.0, 7.0])
    table.ground = table.ground.with_level(level)
    above = upper_forest(5, table.ground, table.keys, table.upper)
    # At 4 both blocks hang together, through each other; {1, 2} = 7 brings in state 4.
    assert above.weights.tolist() == [4.0, 4.0, 4.0, 7.0]
    assert above.labels(4.0).tolist() == [0, 0, 0, 0, 1]
    below = lower_forest(5, table.ground, table.keys, table.lower)
    assert below.weights.tolist() == [0.0, 0.0, 1.0, 2.0]
    assert below.labels(1.0).tolist() == [0, 0, 0, 0, 1]


def test_a_cell_hangs_together_through_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs inside a cell are covered and far apart, but both may be close to a third."""
    monkeypatch.setattr(spanning, "SINGLE_LIMIT", 0)
    mdp = TabularMDP.from_dense(np.eye(3)[:, None, :], [0.0, 0.0, 0.0])
    table = Arms(mdp, 0.5)
    made = build_blocks(mdp, [0, 0, 1])
    ground = table.ground.with_level(make_level(made, [0, 1], [0.0, 1.0], [9.0, 9.0]))
    keys = np.array([1])  # states 0 and 1
    for limit in (0, 10_000_000):
        monkeypatch.setattr(spanning, "OPEN_LIMIT", limit)
        below = lower_forest(3, ground, keys, np.array([5.0]))
        assert below.weights.tolist() == [1.0, 1.0]
    # With every pair covered, each counts by itself.
    below = lower_forest(3, ground, np.array([1, 2, 5]), np.array([5.0, 2.0, 3.0]))
    assert below.weights.tolist() == [2.0, 3.0]
    # One of two pairs between the cells: the other may still be as close as 1.
    below = lower_forest(3, ground, np.array([1, 2]), np.array([5.0, 2.0]))
    assert below.weights.tolist() == [1.0, 1.0]


def test_cells_are_what_no_level_tells_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(4, levels=2)
    n = table.n
    assert find_cells(n, table.ground).labels.tolist() == list(range(n))
    monkeypatch.setattr(spanning, "SINGLE_LIMIT", 0)
    cells = find_cells(n, table.ground)
    pairs = zip(*(level.model.labels.tolist() for level in table.ground.levels), strict=True)
    expected = first_appearance(list(pairs))
    assert cells.labels.tolist() == expected
    assert cells.sizes.tolist() == np.bincount(expected).tolist()
    assert [expected[s] for s in cells.first.tolist()] == list(range(cells.first.size))
    # Without levels: single states, if these are not too many to compare; else one cell.
    bare = table_of(4, levels=0)
    assert find_cells(n, bare.ground).first.size == n
    monkeypatch.setattr(spanning, "CELL_LIMIT", n - 1)
    assert find_cells(n, bare.ground).first.size == 1


@seeds(12)
def test_rows_bound_all_pairs_of_two_cells(seed: int) -> None:
    table = table_of(seed, pairs="none", features=seed % 2 == 0)
    states = np.arange(table.n)
    lower, _ = table.ground.read(*(x.ravel() for x in np.indices((table.n, table.n))))
    lower = lower.reshape(table.n, table.n)
    labels = np.zeros(table.n, np.int64)
    for level in table.ground.levels:
        labels = labels * 10 + level.model.labels
    for cells in (Cells.of(states), Cells.of(labels)):
        read = row_reader(table.n, table.ground, cells)
        for one in range(cells.first.size):
            row = read(one)
            for two in range(cells.first.size):
                if one != two:
                    closest = lower[np.ix_(cells.labels == one, cells.labels == two)].min()
                    assert 0.0 <= row[two] <= closest


def test_undecided_by_hand() -> None:
    assert undecided(np.array([0, 1, 0]), np.array([0, 1, 0])) is None
    assert undecided(np.array([0]), np.array([0])) is None
    # One group of 4 that the upper arm leaves in {0, 1}, {2} and {4}; state 3 is decided.
    found = undecided(np.array([0, 0, 0, 1, 0]), np.array([0, 0, 1, 2, 3]))
    assert found == Undecided(clusters=3, groups=1, pairs=6 - 1, example=(0, 2))
    # Two groups: {0, 1, 2} in parts of 2 and 1, {3, 4} in single states.
    found = undecided(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 2, 3]))
    assert found == Undecided(clusters=4, groups=2, pairs=2 + 1, example=(0, 2))


def test_undecided_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(1, 10))
        fine = first_appearance(rng.integers(0, n, n).tolist())
        merge = rng.integers(0, 3, n)
        coarse = first_appearance([int(merge[x]) for x in fine])
        found = undecided(np.array(coarse), np.array(fine))
        crossing = [
            (s, t)
            for s, t in itertools.combinations(range(n), 2)
            if coarse[s] == coarse[t] and fine[s] != fine[t]
        ]
        if not crossing:
            assert found is None
            continue
        assert found is not None
        assert found.pairs == len(crossing)
        assert found.example in crossing
        groups = {coarse[s] for s, _ in crossing}
        assert found.groups == len(groups)
        assert found.clusters == len({f for f, c in zip(fine, coarse, strict=True) if c in groups})


@pytest.mark.parametrize(
    ("lower", "upper"),
    [([0, 0, 5, 5], [0, 1, 0, 1]), ([3, 0, 3], [2, 2, 0]), ([0, 7, 0, 1], [0, 1, 2, 2])],
)
def test_labels_that_nobody_verified_can_be_looked_at(lower: list[int], upper: list[int]) -> None:
    """Found by fuzzing: labels with gaps, or that do not refine, ended in an IndexError."""
    found = undecided(np.array(lower), np.array(upper))
    pairs = [
        (s, t)
        for s, t in itertools.combinations(range(len(lower)), 2)
        if lower[s] == lower[t] and upper[s] != upper[t]
    ]
    assert found is not None
    assert found.pairs == len(pairs)
    assert found.example in pairs
