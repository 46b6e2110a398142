"""What makes numbers an MDP: checks that name the offending state, action and value."""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.checks import check_choice
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract.errors import InvalidMDPError

ROW_SUM_TOL = 1e-9  # far above rounding, far below any modelling intention


def where_is(row: int, n_actions: int) -> str:
    state, action = divmod(int(row), n_actions)
    return f"state {state}, action {action}"


def row_of(entry: int, indptr: IntArray) -> int:
    return int(np.searchsorted(indptr, entry, side="right")) - 1


def dense_order(shape: tuple[int, ...], order: str | None) -> str:
    """Which axis of dense transitions are states and which actions: "sas" or "ass".

    Rows sum to one along the last axis in either reading, so that the entries cannot tell.
    """
    if order is not None:
        check_choice("order", order, ("sas", "ass"))
    fits = []
    if len(shape) == 3 and min(shape) > 0:
        fits += ["sas"] if shape[0] == shape[2] else []
        fits += ["ass"] if shape[1] == shape[2] else []
    if not fits or (order is not None and order not in fits):
        shapes = {
            "sas": "(n_states, n_actions, n_states)",
            "ass": "(n_actions, n_states, n_states)",
        }
        rule = " or ".join(shapes.values()) if order is None else shapes[order]
        raise InvalidMDPError(f"transitions must have shape {rule}, none of them 0, got {shape}")
    if order is None and len(fits) == 2 and shape[0] > 1:
        raise InvalidMDPError(
            f"transitions of shape {shape} can be read in two ways, as there are as many actions "
            "as states: pass order='sas' if they are (n_states, n_actions, n_states), 'ass' if "
            "(n_actions, n_states, n_states)"
        )
    return order or fits[0]


def check_rewards(rewards: FloatArray) -> None:
    bad = np.flatnonzero(~np.isfinite(rewards))
    if bad.size:
        value = rewards.ravel()[bad[0]]
        where = where_is(bad[0], rewards.shape[1])
        raise InvalidMDPError(f"rewards must be finite, got {value} at {where}")


def check_available(available: BoolArray, shape: tuple[int, ...]) -> None:
    if available.shape != shape:
        raise InvalidMDPError(
            f"available must have shape (n_states, n_actions) = {shape}, got {available.shape}"
        )
    none = np.flatnonzero(~available.any(axis=1))
    if none.size:
        raise InvalidMDPError(f"every state needs an action, but state {none[0]} has none")


def check_layout(indptr: IntArray, indices: IntArray, probs: FloatArray, n_rows: int) -> None:
    if indices.ndim != 1 or indices.shape != probs.shape:
        raise InvalidMDPError(
            "indices and probs must be one-dimensional and of equal length, "
            f"got shapes {indices.shape} and {probs.shape}"
        )
    if indptr.shape != (n_rows + 1,):
        raise InvalidMDPError(
            f"indptr must have n_states * n_actions + 1 = {n_rows + 1} entries, got {indptr.shape}"
        )
    # Compared, not subtracted: differences of hostile numbers may wrap round.
    if indptr[0] != 0 or indptr[-1] != indices.size or (indptr[1:] < indptr[:-1]).any():
        raise InvalidMDPError(
            f"indptr must rise from 0 to the number of transitions, {indices.size}, "
            f"got {indptr[0]} to {indptr[-1]}"
        )


def check_entries(
    indptr: IntArray, indices: IntArray, probs: FloatArray, n_states: int, n_actions: int
) -> None:
    bad = np.flatnonzero(~np.isfinite(probs) | (probs < 0.0))
    if bad.size:
        where = where_is(row_of(int(bad[0]), indptr), n_actions)
        kind = "non-negative" if np.isfinite(probs[bad[0]]) else "finite"
        raise InvalidMDPError(
            f"probabilities must be {kind}, got {probs[bad[0]]} at {where}, "
            f"next state {indices[bad[0]]}"
        )
    bad = np.flatnonzero((indices < 0) | (indices >= n_states))
    if bad.size:
        where = where_is(row_of(int(bad[0]), indptr), n_actions)
        raise InvalidMDPError(
            f"next states must lie in [0, {n_states}), got {indices[bad[0]]} at {where}"
        )


def check_rows(
    indptr: IntArray, indices: IntArray, probs: FloatArray, n_states: int, n_actions: int
) -> None:
    check_layout(indptr, indices, probs, n_states * n_actions)
    empty = np.flatnonzero(np.diff(indptr) == 0)
    if empty.size:
        raise InvalidMDPError(
            f"every row needs a successor: {where_is(empty[0], n_actions)} has none "
            "(its probabilities sum to 0)"
        )
    check_entries(indptr, indices, probs, n_states, n_actions)
    zero = np.flatnonzero(probs == 0.0)
    if zero.size:
        raise InvalidMDPError(
            f"stored probabilities must be above 0, got 0 at "
            f"{where_is(row_of(int(zero[0]), indptr), n_actions)}; use TabularMDP.from_rows to "
            "drop zeros"
        )
    rising = np.diff(indices) > 0
    rising[indptr[1:-1] - 1] = True  # between rows anything goes
    if not rising.all():
        entry = int(np.argmin(rising))
        raise InvalidMDPError(
            "next states must increase within a row, got "
            f"{indices[entry]} before {indices[entry + 1]} at "
            f"{where_is(row_of(entry, indptr), n_actions)}; use TabularMDP.from_rows to sort and "
            "merge"
        )
    with np.errstate(over="ignore"):
        sums = np.add.reduceat(probs, indptr[:-1])
    bad = np.flatnonzero(~(np.abs(sums - 1.0) <= ROW_SUM_TOL))
    if bad.size:
        raise InvalidMDPError(
            f"probabilities must sum to 1, got {float(sums[bad[0]])!r} "
            f"at {where_is(bad[0], n_actions)}"
            + (f" (and {bad.size - 1:,} more rows)" if bad.size > 1 else "")
            + f"; more than {ROW_SUM_TOL:g} is not rounding: divide rows by their sums in float64"
        )


def check_distribution(name: str, values: FloatArray, n_states: int) -> None:
    """Raise unless `values` is a distribution over states."""
    if values.shape != (n_states,):
        raise InvalidMDPError(
            f"{name} must have one entry per state ({n_states}), got shape {values.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0.0))
    if bad.size:
        raise InvalidMDPError(
            f"{name} must be finite and non-negative, got {values[bad[0]]} at state {bad[0]}"
        )
    with np.errstate(over="ignore"):
        total = float(values.sum())
    if not abs(total - 1.0) <= ROW_SUM_TOL:
        raise InvalidMDPError(f"{name} must sum to 1, got {total!r}")


def check_state_ids(ids: IntArray, n_states: int) -> None:
    if ids.shape != (n_states,):
        raise InvalidMDPError(
            f"state_ids must have one entry per state ({n_states}), got shape {ids.shape}"
        )
    own = np.sort(ids[ids >= 0])
    twice = np.flatnonzero(own[1:] == own[:-1])
    if twice.size:
        raise InvalidMDPError(f"state_ids must be distinct, got {own[twice[0]]} twice")
