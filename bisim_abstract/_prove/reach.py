"""What covering the pairs inside blocks can reach at best: known before any of them is covered.

A pair's upper bound ends, after any number of sweeps, no lower than its backup under costs that
are no higher than those it then reads. So pairs inside blocks are taken for as close as their
lower bounds say, all others for what they cost now, and a few states are backed up with members
of their blocks. Where a state cannot be linked even so, sweeping would be in vain.

It decides what is tried, and bounds nothing.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.types import IntArray
from bisim_abstract._bounds.arms import Arms

STATES = 50  # that are looked at
MEMBERS = 400  # of their blocks that these are compared with


def shortest_links(table: Arms, blocks: IntArray, clusters: IntArray) -> float:
    """How long links must be at least, about, so that none of the states looked at is alone.

    Args:
        table: Arms over pairs of states.
        blocks: (n_states) blocks, the pairs inside which would be covered.
        clusters: (n_states) what is linked already.

    Returns:
        The largest over some states of their shortest link to others of their block, at best; 0 if
        every block is linked.
    """
    sizes = np.bincount(blocks)
    parts = np.unique(np.stack([blocks, clusters]), axis=1)[0]
    is_wide = np.bincount(parts, minlength=sizes.size) > 1
    order = np.argsort(blocks, kind="stable")
    begins = np.cumsum(sizes) - sizes
    open_ = order[is_wide[blocks[order]]]
    if open_.size == 0:
        return 0.0
    states = _spread(open_, STATES)
    others = []
    for state in states.tolist():
        block = blocks[state]
        members = order[begins[block] : begins[block] + sizes[block]]
        others.append(_spread(members[clusters[members] != clusters[state]], MEMBERS))
    first = np.repeat(states, [x.size for x in others])
    probe = Arms(table.mdp, table.gamma, resources=table.resources)
    probe.cover(first, np.concatenate(others))
    one, two = probe.ground_pairs()
    lower, upper = table.bounds(one, two)
    best = probe.backup(np.where(blocks[one] == blocks[two], lower, upper), is_upper=True)
    shortest = np.full(table.n, np.inf)
    for ends in probe.pairs():
        np.minimum.at(shortest, ends, best)
    return float(shortest[states].max())


def _spread(items: IntArray, most: int) -> IntArray:
    """So many of them at most, evenly."""
    return items[np.unique(np.linspace(0, items.size - 1, most).astype(np.int64))]
