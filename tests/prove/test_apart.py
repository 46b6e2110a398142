"""Many blocks kept apart by features and few covered pairs: sound, and enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisim_abstract import Blocks, certify, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._bounds.boxes import Boxes
from bisim_abstract._bounds.features import value_features
from bisim_abstract._prove import levels
from bisim_abstract._prove.apart import likely_limit, raise_lower
from bisim_abstract._prove.levels import block_intervals
from bisim_abstract.wrappers import RoomsGridEnv

GAMMA = 0.9


def rooms(side: int = 30, room_size: int = 3) -> tuple[RoomsGridEnv, Arms, Boxes]:
    env = RoomsGridEnv(side=side, room_size=room_size, noise=0.02)
    mdp = env.to_mdp()
    arms = Arms(mdp, GAMMA, model=build_blocks(mdp, env.rooms))
    arms.start_diagonal()
    features = value_features(mdp, GAMMA, count=8, tol=0.01)
    boxes = Boxes.of(arms.starts, None, np.arange(arms.n))
    return env, arms, boxes.with_features(features, arms.model.labels)


def test_raised_bounds_are_sub_solutions_below_those_of_all_pairs() -> None:
    _, arms, boxes = rooms()
    full = Arms(arms.mdp, GAMMA, model=arms.model)
    full.cover_all()
    for _ in range(120):
        full.sweep(upper=False)
    close = boxes.close_pairs(1.5, most=10_000, threads=1)
    assert close is not None
    raise_lower(arms, boxes, 1.5, *close, most=10_000, swept=lambda sweep, moved: None)
    first, second = arms.pairs()
    at, known = full.covered.find(first, second)
    assert known.all()
    assert (arms.lower <= full.lower[at] + 1e-9).all()
    # One more sweep lowers nothing, and finds nothing below what is there: f <= Tf.
    again = arms.backup(arms.ground_costs(is_upper=False), is_upper=False)
    assert (arms.lower <= again + 1e-12).all()
    # And it was enough: nothing that was open is still too close, with few pairs covered.
    found, _ = arms.covered.find(*close)
    assert arms.lower[found].min() >= 1.5
    assert arms.n_covered < 0.9 * arms.n_pairs


def test_pairs_that_may_be_covered_are_limited() -> None:
    _, arms, boxes = rooms()
    close = boxes.close_pairs(1.5, most=10_000, threads=1)
    assert close is not None
    calls: list[int] = []
    raise_lower(arms, boxes, 1.5, *close, most=0, swept=lambda sweep, moved: calls.append(sweep))
    assert calls == [1]


def test_intervals_with_features_lie_within_the_truth() -> None:
    _, arms, boxes = rooms()
    full = Arms(arms.mdp, GAMMA, model=arms.model)
    full.start_diagonal()
    full.cover_all()
    for _ in range(120):
        full.sweep()
    arms.cover(*arms.ground_pairs())
    for _ in range(60):
        arms.sweep()
    alone, with_features = block_intervals(arms)[0], block_intervals(arms, None, boxes)[0]
    assert not any(x.n_clusters == 100 for x in alone)
    close = boxes.close_pairs(1.2, most=10_000, threads=1)
    assert close is not None
    raise_lower(arms, boxes, 1.2, *close, most=10_000, swept=lambda sweep, moved: None)
    with_features = block_intervals(arms, None, boxes)[0]
    (mine,) = [x for x in with_features if x.n_clusters == 100]
    (truth,) = [x for x in block_intervals(full)[0] if x.n_clusters == 100]
    assert truth.low <= mine.low < mine.high <= truth.high


def test_a_likely_limit_leaves_about_so_many_pairs_open() -> None:
    _, arms, boxes = rooms()
    limit = likely_limit(boxes, 500, 0)
    close = boxes.close_pairs(limit, most=arms.n_pairs, threads=1)
    assert close is not None
    assert 400 <= close[0].size <= 600
    assert likely_limit(boxes, 10**9, 0) >= limit


@pytest.mark.parametrize("goal", [{"tau": "auto"}, {"tau": 1.0}, {}])
def test_blocks_whose_pairs_are_too_many_to_cover_are_certified(
    goal: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "MOST_BLOCK_PAIRS", 1_000)
    monkeypatch.setattr(levels, "FEW_OPEN", 500)
    env = RoomsGridEnv(side=40, room_size=4, noise=0.02)
    mdp = env.to_mdp()
    found = certify(mdp, GAMMA, method=Blocks(propose=("ahead",), max_pairs=0), **goal)
    assert found.is_certified
    assert found.n_clusters == 100
    assert np.array_equal(found.labels_upper, np.unique(env.rooms, return_inverse=True)[1])
    assert "value features" in found.run["steps"][0]
    assert found.levels[0].keys.size < 5_000
    verify(mdp, found).raise_if_rejected()
