"""How actions of alike states may correspond: a renaming worth trying, and not trusted.

Bounds of blocks, and what is proven about values, hold for any renaming. A bad one makes them wide.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import IntArray
from bisim_abstract._model.mdp import TabularMDP, check_mdp

__all__ = ["match_actions"]

CHUNKS = 64  # units of work, at most: each has scratch space for all blocks


def match_actions(
    mdp: TabularMDP, labels: npt.ArrayLike, *, resources: Resources = HERE
) -> IntArray:
    """Names for the actions of all states, the same in all states of a block.

    Actions of a member are called after those of the block's first state, each after the one that
    it is most like in what it pays and in which blocks it leads to. Names that some member would
    have no action for are joined with others.

    Args:
        mdp: The model.
        labels: (n_states) block of each state; whole numbers from 0 on.
        resources: Threads; all cores by default. The result does not depend on them.

    Returns:
        (n_states, n_actions) names from 0 on in each block, -1 where a state lacks an action.
    """
    check_resources(resources)
    from bisim_abstract._kernels.matching import match_kernel

    check_mdp(mdp)
    block = as_labels(labels, mdp.n_states)
    order = np.argsort(block, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(block))])
    out = np.empty(mdp.rewards.shape, np.int64)
    # A row that leads elsewhere counts as much as the largest difference of rewards.
    span = float(mdp.rewards.max() / 2.0 - mdp.rewards.min() / 2.0)
    weight = 2.0 * span if 0.0 < span < 1e300 else 1.0

    def part(begin: int, end: int) -> None:
        match_kernel(
            begin,
            end,
            order,
            starts,
            mdp.indptr,
            mdp.indices,
            mdp.normalised_probs,
            mdp.rewards,
            mdp.available,
            block,
            mdp.max_support,
            weight,
            out,
        )

    count = starts.size - 1
    chunk = max(8, -(-count // CHUNKS))
    map_chunks(part, count, threads=resources.n_threads, chunk=chunk)
    return out
