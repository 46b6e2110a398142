"""Renamings: what each action of a state is called in the cluster, or block, that it belongs to.

A renaming is (n_states, n_actions) whole numbers: `renaming[x, a]` is the name of action a of state
x among the actions of x's cluster, and -1 where x lacks a. Names are numbered from 0 on, and every
state of a cluster uses all names of it: whatever a cluster is told to do, each member has an action
that is called so. Where states are compared action by action, an action is called what it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.types import BoolArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError


def own_names(mdp: TabularMDP) -> IntArray:
    """(n_states, n_actions) every action called what it is, -1 where a state lacks it."""
    return np.where(mdp.available, np.arange(mdp.n_actions), -1)


def check_renaming(
    renaming: npt.ArrayLike, labels: IntArray, n_clusters: int, available: BoolArray
) -> IntArray:
    """A renaming, read-only, if all members of each cluster use the same names.

    Args:
        renaming: (n_states, n_actions).
        labels: (n_states) cluster of each state.
        n_clusters: Number of clusters.
        available: (n_states, n_actions) which actions each state has.
    """
    names = as_frozen("renaming", renaming, np.int64)
    shape = available.shape
    if names.shape != shape:
        raise InvalidArgumentError(f"renaming must have shape {shape}, got {names.shape}")
    wrong = (names >= 0) != available
    wrong |= (names < -1) | (names >= shape[1])
    if wrong.any():
        x, a = (int(k[0]) for k in np.nonzero(wrong))
        raise InvalidArgumentError(
            f"renaming must give a name in [0, {shape[1]}) to every action that a state has, and "
            f"-1 to others, got {names[x, a]} for state {x}, action {a}"
        )
    used = used_names(names)
    first = np.full(n_clusters, -1)
    first[labels[::-1]] = np.arange(labels.size - 1, -1, -1)
    wrong = (used != used[first[labels]]).any(axis=1)
    if wrong.any():
        x = int(np.argmax(wrong))
        raise InvalidArgumentError(
            f"renaming must use the same names in all states of a cluster, but states "
            f"{first[labels[x]]} and {x} of cluster {labels[x]} use different ones"
        )
    return names


def used_names(renaming: IntArray) -> BoolArray:
    """(n_states, n_actions) which names the actions of each state have."""
    used = np.zeros(renaming.shape, bool)
    states, actions = np.nonzero(renaming >= 0)
    used[states, renaming[states, actions]] = True
    return used


def actions_called(renaming: IntArray, names: IntArray) -> IntArray:
    """(n_states) the first action of each state that has the name given for it.

    Where a state has none that is called so, its first action: that is what actions which a state
    lacks stand for (see `TabularMDP.available`).

    Args:
        renaming: (n_states, n_actions).
        names: (n_states) what each state is told to do.
    """
    is_called = renaming == names[:, None]
    is_called[~is_called.any(axis=1)] |= renaming[~is_called.any(axis=1)] >= 0
    return np.asarray(is_called.argmax(axis=1))
