"""States whose actions have no names, with their actions in some order: by what they are worth.

States that are alike after renaming actions are then alike action by action, but for actions that
are worth about the same. Good enough to propose blocks by; nothing relies on it.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.rows import rows_taken

__all__ = ["by_worth"]

SWEEPS = 10  # of values that actions are judged by


def by_worth(mdp: TabularMDP, gamma: float) -> TabularMDP:
    """The model with the actions of each state sorted, those that it lacks among them.

    Args:
        mdp: The model.
        gamma: The discount.
    """
    n, n_actions = mdp.rewards.shape
    values = np.zeros(n)
    kernel = mdp.kernel()
    with np.errstate(over="ignore", invalid="ignore"):  # of huge rewards: an order is all it gives
        for _ in range(SWEEPS):
            worth = mdp.rewards + gamma * (kernel @ values).reshape(n, n_actions)
            values = worth.max(axis=1)
    order = np.argsort(-worth, axis=1, kind="stable")
    rows = (np.arange(n)[:, None] * n_actions + order).ravel()
    indptr, entries = rows_taken(mdp.indptr, rows)
    return TabularMDP(
        indptr=indptr,
        indices=mdp.indices[entries],
        probs=mdp.probs[entries],
        rewards=np.take_along_axis(mdp.rewards, order, axis=1),
    )
