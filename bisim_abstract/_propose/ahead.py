"""Rewards a step ahead: points that tell states apart by where they lead.

States of different groups may pay nearly the same. What they lead to then still differs, in most
of the many ways in which one can go on: one step multiplies the columns by the number of actions.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.checks import as_generator
from bisim_abstract._base.linear import product
from bisim_abstract._base.types import FloatArray, SeedLike
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._propose.embedding import scaled_points

__all__ = ["rewards_ahead"]

MOST_ACTIONS = 8  # that are looked along; of more, as many are drawn
MOST_COLUMNS = 4  # of rewards; more are mixed into as many


def rewards_ahead(mdp: TabularMDP, gamma: float, *, seed: SeedLike = 0) -> FloatArray:
    """Rewards, and discounted expected rewards after a step.

    Args:
        mdp: The model.
        gamma: The discount.
        seed: Of what is drawn where there are many actions.

    Returns:
        (n_states, k) points: 4 columns of rewards, or fewer, and as many for each of 8 actions,
        or fewer.
    """
    from scipy.sparse import csr_array

    n, n_actions = mdp.n_states, mdp.n_actions
    rng = as_generator(seed)
    rewards = scaled_points(mdp.rewards)
    if n_actions > MOST_COLUMNS:
        # Distances survive random signs, on average.
        signs = rng.choice([-1.0, 1.0], size=(n_actions, MOST_COLUMNS))
        rewards = product(rewards, signs) / np.sqrt(MOST_COLUMNS)
    actions = np.arange(n_actions)
    if n_actions > MOST_ACTIONS:
        actions = np.sort(rng.choice(n_actions, MOST_ACTIONS, replace=False))
    table = csr_array(
        (mdp.normalised_probs, mdp.indices, mdp.indptr), shape=(n * n_actions, n), copy=False
    )
    columns = [rewards]
    for action in actions.tolist():
        own = table if n_actions == 1 else table[np.arange(action, n * n_actions, n_actions)]
        columns.append(gamma * np.asarray(own @ rewards))
    return np.hstack(columns)
