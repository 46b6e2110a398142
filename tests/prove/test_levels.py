"""Levels of blocks: what their bounds certify by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from bisim_abstract import Resources
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._prove.levels import block_intervals
from bisim_abstract.parts import grouped_mdp


@pytest.mark.parametrize("seed", range(4))
def test_blocks_hold_together_wherever_a_level_certifies(seed: int) -> None:
    """From the low end of an interval on, every block's members are linked, by some entry."""
    mdp, groups = grouped_mdp(60, 5, noise=0.02, seed=seed)
    model = build_blocks(mdp, groups)
    arms = Arms(mdp, 0.5, model=model, resources=Resources(threads=1))
    arms.cover_all()
    arms.start_diagonal()
    for _ in range(20):
        arms.sweep()
    intervals = block_intervals(arms)[0]
    first, second = arms.pairs()
    floor = max(
        float(arms.upper[(first == block) | (second == block)].min()) for block in range(arms.n)
    )
    assert floor > 0.0
    assert intervals
    assert min(interval.low for interval in intervals) == floor
    assert max(interval.n_clusters for interval in intervals) == arms.n
    assert all(interval.low < interval.high for interval in intervals)
    assert not np.isnan([interval.high for interval in intervals]).any()
