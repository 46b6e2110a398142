"""Labels of partitions: one whole number per state, numbered by first appearance."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.types import IntArray
from bisim_abstract.errors import InvalidArgumentError

ROOM = 4  # labels may be this many times as large as their number, and are not sorted


def as_labels(labels: npt.ArrayLike, n_states: int, *, name: str = "labels") -> IntArray:
    """Labels as numbers from 0 on, in the order of first appearance."""
    given = np.asarray(labels)
    if given.shape != (n_states,) or given.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{name} must be one whole number per state ({n_states}), "
            f"got shape {given.shape} and dtype {given.dtype}"
        )
    if given.size and given.min() < 0:
        state = int(given.argmin())
        raise InvalidArgumentError(
            f"{name} must be at least 0, got {given[state]} at state {state}; give a state that is "
            "in no cluster one of its own"
        )
    return by_first_appearance(given)[0]


def numbered(labels: npt.ArrayLike) -> IntArray:
    """The same partition with clusters numbered by first appearance."""
    return by_first_appearance(np.asarray(labels))[0]


def by_first_appearance(labels: npt.NDArray[Any]) -> tuple[IntArray, IntArray]:
    """The same partition, numbered by first appearance, and the first member of each cluster.

    Takes linear time where labels are small whole numbers, as those of partitions are.
    """
    n = labels.size
    is_small = n > 0 and labels.dtype.kind in "iu" and 0 <= labels.min() <= labels.max() < ROOM * n
    if not is_small:
        labels = np.unique(labels, return_inverse=True)[1]
    first = np.full(int(labels.max(initial=-1)) + 1, -1)
    first[labels[::-1]] = np.arange(n - 1, -1, -1)  # of equal labels, what is written last stays
    is_first = np.zeros(n, np.bool_)
    is_first[first[first >= 0]] = True
    members = np.flatnonzero(is_first)
    rank = first  # no longer needed
    rank[labels[members]] = np.arange(members.size)
    return rank[labels], members
