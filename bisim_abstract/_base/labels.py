"""Labels of partitions: one whole number per state, numbered by first appearance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.types import IntArray
from bisim_abstract.errors import InvalidArgumentError


def as_labels(labels: npt.ArrayLike, n_states: int, *, name: str = "labels") -> IntArray:
    """Labels as numbers from 0 on, in the order of first appearance."""
    given = np.asarray(labels)
    if given.shape != (n_states,) or given.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{name} must be one whole number per state ({n_states}), "
            f"got shape {given.shape} and dtype {given.dtype}"
        )
    _, first, inverse = np.unique(given, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse]


def numbered(labels: npt.ArrayLike) -> IntArray:
    """The same partition with clusters numbered by first appearance."""
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse]
