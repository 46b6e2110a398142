"""Embeddings that learn nothing: what a learned one has to beat."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import as_generator, check_int, check_states
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.types import SeedLike
from bisim_abstract._model.mdp import TabularMDP, check_mdp

__all__ = ["RandomEmbedding", "RewardEmbedding"]

Points = npt.NDArray[np.float32]


class RewardEmbedding:
    """A state's rewards as its point: blind to everything that follows the first step.

    Args:
        mdp: The model.

    Attributes:
        n_states: Number of states.
        dim: Number of coordinates, one per action.

    Example:
        >>> from bisim_abstract.parts import random_mdp
        >>> RewardEmbedding(random_mdp(5, 2, seed=0)).encode([0, 1]).shape
        (2, 2)
    """

    def __init__(self, mdp: TabularMDP) -> None:
        check_mdp(mdp)
        self._points: Points = mdp.rewards.astype(np.float32)
        self.n_states, self.dim = mdp.rewards.shape

    def encode(self, states: npt.ArrayLike, /) -> Points:
        """(..., dim) points of the states, one for each entry."""
        return self._points[check_states("states", states, self.n_states)]


class RandomEmbedding:
    """Independent standard normal points: chance level.

    Args:
        n_states: Number of states.
        dim: Number of coordinates.
        seed: Seed or generator.

    Attributes:
        n_states: Number of states.
        dim: Number of coordinates.

    Example:
        >>> RandomEmbedding(5, dim=3, seed=0).encode([4, 4]).shape
        (2, 3)
    """

    def __init__(self, n_states: int, *, dim: int = 8, seed: SeedLike = 0) -> None:
        self.n_states = check_int("n_states", n_states, low=1)
        self.dim = check_int("dim", dim, low=1)
        shape = (self.n_states, self.dim)
        check_memory(
            4 * self.n_states * self.dim,
            what=f"{self.n_states:,} points in {self.dim:,} dimensions",
            instead="ask for fewer",
        )
        self._points: Points = as_generator(seed).standard_normal(shape, dtype=np.float32)

    def encode(self, states: npt.ArrayLike, /) -> Points:
        """(..., dim) points of the states, one for each entry."""
        return self._points[check_states("states", states, self.n_states)]
