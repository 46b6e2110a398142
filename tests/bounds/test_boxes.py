"""Boxes of cells: gaps against single pairs, close pairs against all, trees against dense ones."""

from __future__ import annotations

import numpy as np
import pytest

from bisim_abstract._bounds import spanning
from bisim_abstract._bounds.boxes import Boxes
from bisim_abstract._bounds.features import value_features
from bisim_abstract._bounds.ground import Starts
from bisim_abstract._bounds.spanning import Cells, find_cells, lower_forest
from bisim_abstract.parts import grouped_mdp
from tests.bounds.test_spanning import COVERAGE, table_of, thresholds
from tests.support.examples import cases


def boxes_of(seed: int, n_states: int = 60, n_cells: int = 12) -> tuple[Boxes, Starts, Cells]:
    mdp = grouped_mdp(n_states, 6, 3, noise=0.2, seed=seed)[0]
    starts = Starts.of(mdp.rewards, mdp.rewards, 0.9, lower="reward", upper="reward")
    labels = np.random.default_rng(seed).integers(n_cells, size=n_states)
    cells = Cells.of(labels)
    features = value_features(mdp, 0.9, count=5, tol=0.05)
    return Boxes.of(starts, features, cells.labels), starts, cells


def test_gaps_are_at_most_those_of_members_and_points_have_no_other() -> None:
    for seed in range(5):
        mdp = grouped_mdp(40, 5, 3, noise=0.2, seed=seed)[0]
        starts = Starts.of(mdp.rewards, mdp.rewards, 0.9, lower="reward", upper="reward")
        features = value_features(mdp, 0.9, count=5, tol=0.05)
        states = np.arange(40)
        s, t = np.nonzero(states[:, None] != states)
        single = np.zeros((40, 40))
        single[s, t] = np.maximum(starts.read(s, t)[0], features.lower(s, t))
        points = Boxes.of(starts, features, states)
        assert np.array_equal(np.stack([points.row(x) for x in range(40)]), single)
        labels = Cells.of(np.random.default_rng(seed).integers(8, size=40)).labels
        boxes = Boxes.of(starts, features, labels)
        for cell in range(boxes.count):
            closest = [single[labels == cell][:, labels == x].min() for x in range(boxes.count)]
            assert (boxes.row(cell) <= closest).all()


def test_pairs_rows_and_lists_of_close_pairs_agree() -> None:
    for seed in range(5):
        boxes, _, _ = boxes_of(seed)
        table = np.stack([boxes.row(cell) for cell in range(boxes.count)])
        first, second = np.triu_indices(boxes.count, 1)
        assert np.array_equal(boxes.pairs(first, second), table[first, second])
        for limit in (0.0, *np.quantile(table[first, second], [0.1, 0.5, 1.0]), np.inf):
            found = boxes.close_pairs(limit, most=10_000, threads=2)
            assert found is not None
            is_close = table[first, second] < limit
            assert np.array_equal(found[0], first[is_close])
            assert np.array_equal(found[1], second[is_close])
            if is_close.any():
                assert boxes.close_pairs(limit, most=int(is_close.sum()) - 1, threads=2) is None


def test_rewards_are_not_read_where_lower_bounds_start_from_0() -> None:
    mdp = grouped_mdp(12, 3, 2, noise=0.2, seed=0)[0]
    starts = Starts.of(mdp.rewards, mdp.rewards, 0.9, lower="zero", upper="reward")
    boxes = Boxes.of(starts, None, np.arange(12))
    assert boxes.count == 12
    assert not boxes.row(3).any()


@pytest.mark.drawn
@pytest.mark.parametrize("pairs", COVERAGE)
@pytest.mark.parametrize("single", [True, False])
def test_compiled_trees_are_those_of_dense_rows(
    pairs: str, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prim's algorithm without a list of edges must link neither more nor less, nor elsewhere.
    monkeypatch.setattr(spanning, "SINGLE_LIMIT", 1_000 if single else 0)
    for seed in range(cases(8)):
        table = table_of(seed, pairs=pairs, levels=1 + seed % 2, features=seed % 3 != 0)
        cells = find_cells(table.n, table.ground)
        forests = []
        for few in (table.n, 0):
            monkeypatch.setattr(spanning, "FEW_CELLS", few)
            forests.append(lower_forest(table.n, table.ground, table.keys, table.lower))
        dense, compiled = forests
        assert (cells.first.size == table.n) or not single
        assert np.array_equal(dense.weights, compiled.weights)
        for tau in thresholds(dense):
            assert np.array_equal(dense.labels(tau), compiled.labels(tau))


def test_closest_cells_are_those_of_all_rows() -> None:
    for seed in range(6):
        table = table_of(seed, pairs="none")
        cells = Cells.of(table.ground.levels[0].model.labels)
        read = spanning.row_reader(table.n, table.ground, cells)
        rows = np.stack([read(cell) for cell in range(cells.first.size)])
        np.fill_diagonal(rows, np.inf)
        assert spanning.closest_cells(table.ground, cells) == rows.min()
