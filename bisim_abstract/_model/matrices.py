"""One matrix per action, dense or sparse, as compressed rows; and rewards that go with them.

Sparse matrices stay sparse: what is looked at is their stored entries. Rewards may depend on the
next state. A model knows expected rewards, so these are averaged over the row, whose entries are
divided by their sum; what an impossible transition would pay is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.checks import check_available, where_is
from bisim_abstract.errors import InvalidMDPError

Entries = tuple[IntArray, IntArray, FloatArray]  # rows, columns and values


def is_sparse(matrix: object) -> bool:
    """Whether it is a matrix or array of SciPy's sparse formats, which need not be loaded."""
    return hasattr(matrix, "tocoo") and hasattr(matrix, "shape")


def holds_sparse(matrices: object) -> bool:
    """Whether it is a sparse matrix, or a list of matrices of which some are sparse."""
    if isinstance(matrices, np.ndarray) and matrices.dtype != object:
        return False
    return is_sparse(matrices) or (
        isinstance(matrices, Sequence | np.ndarray) and any(is_sparse(m) for m in matrices)
    )


def rows_of_matrices(transitions: Any) -> tuple[IntArray, IntArray, FloatArray, tuple[int, int]]:
    """Rows (state, action) of one matrix per action: not sorted within, nothing added up.

    Returns:
        Boundaries, columns and values of rows, and (n_states, n_actions).
    """
    if is_sparse(transitions):
        raise InvalidMDPError(
            "transitions must be a list with one matrix per action, got a single sparse matrix; "
            "pass [matrix] if there is one action only"
        )
    matrices = _listed("transitions", transitions)
    n_actions = len(matrices)
    if n_actions == 0:
        raise InvalidMDPError("transitions must hold one matrix per action, got none")
    shape = _shape(matrices[0])
    n = shape[0] if len(shape) == 2 else 0
    found: list[Entries] = []
    for action, matrix in enumerate(matrices):
        shape = _shape(matrix)
        if shape != (n, n) or n == 0:
            hint = ""
            if shape == (n_actions, n) and n:
                hint = "; (n_states, n_actions, n_states) is read by TabularMDP.from_dense"
            raise InvalidMDPError(
                f"transitions[{action}] must have shape (n_states, n_states)"
                f"{f' = {(n, n)}' if action else ''}, got {shape}{hint}"
            )
        found.append(_entries(f"transitions[{action}]", matrix))
    rows = np.concatenate([part[0] * n_actions + a for a, part in enumerate(found)])
    order = np.argsort(rows, kind="stable")
    indices = np.concatenate([part[1] for part in found])[order]
    probs = np.concatenate([part[2] for part in found])[order]
    counts = np.bincount(rows, minlength=n * n_actions)
    return np.concatenate([[0], np.cumsum(counts)]), indices, probs, (n, n_actions)


def rewards_of_matrices(
    rewards: Any,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    shape: tuple[int, int],
    available: npt.ArrayLike | None,
) -> FloatArray:
    """(n_states, n_actions) expected rewards, from any of the shapes that they come in.

    Args:
        rewards: See `TabularMDP.from_matrices`.
        indptr: Row boundaries.
        indices: Next states, as rows hold them.
        probs: Their probabilities, above 0.
        shape: (n_states, n_actions).
        available: Which actions states have; rewards of the others are not looked at.
    """
    n, a = shape
    if is_sparse(rewards):
        rewards = rewards.toarray()  # (n_states, n_actions) numbers are what a model holds anyway
    if not _is_by_action(rewards):
        given = frozen("rewards", rewards, np.float64)
        # Lists of numbers, not arrays: each may be a state's or an action's.
        if not isinstance(rewards, np.ndarray) and given.shape == (a, n):
            if a == n > 1:
                raise InvalidMDPError(
                    f"rewards of shape {given.shape} can be read in two ways, as there are as many "
                    "actions as states: pass an array if they are (n_states, n_actions), a list "
                    "of arrays if there is one for each action"
                )
            given = given if a == n else given.T
        return dense_rewards(given, indptr, indices, probs, shape, "ass", available)
    listed = list(rewards)
    if len(listed) != a:
        raise InvalidMDPError(
            f"rewards must have one entry for each of {a} actions, got {len(listed)}"
        )
    out = np.zeros(shape)
    paid = np.zeros(probs.size)  # what each transition pays besides
    rows = np.repeat(np.arange(n * a), np.diff(indptr))
    states, actions = np.divmod(rows, a)
    for action, entry in enumerate(listed):
        name, size = f"rewards[{action}]", _shape(entry)
        if size in ((n,), (n, 1), (1, n)) and size != (n, n):
            vector = entry.toarray() if is_sparse(entry) else entry
            out[:, action] = frozen(name, vector, np.float64).ravel()
        elif size == (n, n):
            own = np.flatnonzero(actions == action)
            paid[own] = _looked_up(name, entry, states[own], indices[own])
        else:
            raise InvalidMDPError(
                f"{name} must have shape ({n},), ({n}, 1), (1, {n}) or {(n, n)}, got {size}"
            )
    return out + expected_rewards(paid, indptr, indices, probs, shape, available)


def dense_rewards(
    rewards: FloatArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    shape: tuple[int, int],
    order: str,
    available: npt.ArrayLike | None,
) -> FloatArray:
    """(n_states, n_actions) expected rewards, from a dense array.

    Args:
        rewards: By state, by state and action, or by both and the next state.
        indptr: Row boundaries.
        indices: Next states, as rows hold them.
        probs: Their probabilities, above 0.
        shape: (n_states, n_actions).
        order: "sas" or "ass", that of transitions: decides where the shape fits both.
        available: Which actions states have; rewards of the others are not looked at.
    """
    n, a = shape
    if rewards.shape == (n,):
        return np.repeat(rewards[:, None], a, axis=1)
    if rewards.shape == shape:
        return rewards
    layouts = {"sas": (n, a, n), "ass": (a, n, n)}
    fits = [name for name, size in layouts.items() if rewards.shape == size]
    if not fits:
        raise InvalidMDPError(
            f"rewards must have shape {shape} or {(n,)}, or with next states {layouts['sas']} or "
            f"{layouts['ass']}, got {rewards.shape}"
        )
    states, actions = np.divmod(np.repeat(np.arange(n * a), np.diff(indptr)), a)
    if (order if order in fits else fits[0]) == "sas":
        paid = rewards[states, actions, indices]
    else:
        paid = rewards[actions, states, indices]
    return expected_rewards(paid, indptr, indices, probs, shape, available)


def expected_rewards(
    paid: FloatArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    shape: tuple[int, int],
    available: npt.ArrayLike | None = None,
) -> FloatArray:
    """(n_states, n_actions) mean of what transitions pay, by their shares of the row's sum.

    Rows that pay the same whatever follows have exactly this reward, not a rounded mean.
    """
    out = np.zeros(shape[0] * shape[1])
    rows = np.repeat(np.arange(out.size), np.diff(indptr))
    if available is not None:
        mask = frozen("available", available, np.bool_)
        check_available(mask, shape)
        paid = np.where(mask.ravel()[rows], paid, 0.0)
    bad = np.flatnonzero(~np.isfinite(paid))
    if bad.size:
        raise InvalidMDPError(
            f"rewards must be finite, got {paid[bad[0]]} at {where_is(rows[bad[0]], shape[1])}, "
            f"next state {indices[bad[0]]}"
        )
    filled = np.flatnonzero(np.diff(indptr))  # empty rows are refused, or filled, by who made them
    if filled.size:
        begins = indptr[filled]
        least = np.minimum.reduceat(paid, begins)
        is_same = least == np.maximum.reduceat(paid, begins)
        shares = probs / np.repeat(np.add.reduceat(probs, begins), np.diff(indptr)[filled])
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused as such
            out[filled] = np.where(is_same, least, np.add.reduceat(shares * paid, begins))
    return out.reshape(shape)


def _is_by_action(rewards: Any) -> bool:
    """Whether it lists one array, or sparse matrix, for each action."""
    if isinstance(rewards, np.ndarray):
        return bool(rewards.dtype == object)
    return isinstance(rewards, Sequence) and any(
        is_sparse(entry) or (isinstance(entry, np.ndarray) and entry.ndim > 0) for entry in rewards
    )


def _listed(name: str, matrices: Any) -> list[Any]:
    try:
        return list(matrices)
    except TypeError:
        raise InvalidMDPError(
            f"{name} must be a list with one matrix per action, got {type(matrices).__name__}"
        ) from None


def _shape(matrix: Any) -> tuple[int, ...]:
    if is_sparse(matrix):
        return tuple(int(k) for k in matrix.shape)
    try:
        return np.shape(matrix)
    except ValueError:  # lists of different lengths
        return ()


def _entries(name: str, matrix: Any) -> Entries:
    """Rows, columns and values of what a matrix stores, duplicates as they are."""
    if is_sparse(matrix):
        stored = matrix.tocoo()
        values = frozen(name, stored.data, np.float64)
        return stored.row.astype(np.int64), stored.col.astype(np.int64), values
    dense = np.asarray(matrix)
    rows, columns = np.nonzero(dense)
    return rows, columns, frozen(name, dense[rows, columns], np.float64)


def _looked_up(name: str, matrix: Any, states: IntArray, targets: IntArray) -> FloatArray:
    """Entries of a matrix at some places; 0 where a sparse one stores nothing."""
    if not is_sparse(matrix):
        return frozen(name, np.asarray(matrix)[states, targets], np.float64)
    rows, columns, values = _entries(name, matrix)
    n = int(matrix.shape[1])
    keys, place = np.unique(rows * n + columns, return_inverse=True)
    sums = np.bincount(place, weights=values, minlength=keys.size)  # SciPy adds duplicates up too
    wanted = states * n + targets
    if not keys.size:
        return np.zeros(wanted.size)
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[at] == wanted, sums[at], 0.0)
