"""Rows of a model to draw from: the next state of a step, and the first one of an episode."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.types import FloatArray
from bisim_abstract._model.mdp import TabularMDP


class ModelRows:
    """The rows of a model with running sums of their probabilities, read as plain numbers.

    A number drawn uniformly from [0, 1) decides on a state: the first at which the running sums
    pass it, which is never one without mass. Single environments look it up here, vector
    environments in `sums` for all copies at once, with the same result.

    Args:
        mdp: The model, which nobody can change: copies share these rows.

    Attributes:
        mdp: The model.
        n_actions: Number of its actions.
        sums: (nnz) running sums of probabilities within each row.
        start_sums: (n_states) running sums of the start distribution.
        rewards: The expected reward of each row, n_states * n_actions of them.
    """

    def __init__(self, mdp: TabularMDP) -> None:
        self.mdp, self.n_actions = mdp, mdp.n_actions
        self.sums: FloatArray = _row_sums(mdp)
        self.start_sums: FloatArray = np.cumsum(mdp.start)
        self._begins, self._states = _view(mdp.indptr), _view(mdp.indices)
        self._sums, self._start = _view(self.sums), _view(self.start_sums)
        self.rewards = _view(mdp.rewards.ravel())

    def __deepcopy__(self, memo: object) -> ModelRows:
        return self

    def __reduce__(self) -> tuple[Callable[[TabularMDP], ModelRows], tuple[TabularMDP]]:
        return ModelRows, (self.mdp,)

    def start(self, uniform: float) -> int:
        """The state that an episode begins in."""
        return bisect_right(self._start, uniform * self._start[-1])

    def follow(self, row: int, uniform: float) -> int:
        """The state that the step of a row, state * n_actions + action, leads to."""
        begin, end = self._begins[row], self._begins[row + 1]
        found = bisect_right(self._sums, uniform * self._sums[end - 1], begin, end)
        return int(self._states[found])


def _view(values: npt.NDArray[Any]) -> Any:
    """An array of one dimension whose entries are read as plain numbers, faster than as NumPy's."""
    return memoryview(values)  # type: ignore[arg-type]


def _row_sums(mdp: TabularMDP) -> FloatArray:
    """(nnz) running sums within each row, added up from the left as `np.cumsum` does."""
    sums = np.array(mdp.normalised_probs)
    left = mdp.indptr[:-1]
    lengths = np.diff(mdp.indptr)
    for k in range(1, int(lengths.max(initial=0))):
        left = left[lengths > k]
        lengths = lengths[lengths > k]
        sums[left + k] += sums[left + k - 1]
    return sums
