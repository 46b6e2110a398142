"""Arrays that nobody can write to, and metadata that is JSON: what immutable objects hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.untrusted import DEEPEST_METADATA, check_nesting
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError

# Kinds of arrays that are taken for each type, and what that is in words.
KINDS: dict[type, tuple[str, str]] = {
    np.bool_: ("b", "true or false"),
    np.int64: ("iu", "whole numbers"),
}
REAL = ("biuf", "real numbers")


def frozen(name: str, values: npt.ArrayLike, dtype: type) -> npt.NDArray[Any]:
    """A read-only C-contiguous copy. Never shared: an older view could still be written to."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # ragged nested lists
        raise InvalidMDPError(f"{name} cannot be read as numbers: {error}") from None
    kinds, rule = KINDS.get(dtype, REAL)
    if array.size and array.dtype.kind not in kinds:
        raise InvalidMDPError(f"{name} must hold {rule}, got dtype {array.dtype}")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise InvalidMDPError(f"{name} must fit 64 bits with a sign, got {array.max()}")
    if not array.size:
        array = np.empty(array.shape, dtype)  # of whatever kind: there is nothing to convert
    check_memory(
        8 * array.size,  # a view by np.broadcast_to may be of any size
        what=f"a copy of {name}, {array.size:,} numbers,",
        instead="pass fewer of them",
    )
    with np.errstate(over="ignore", invalid="ignore"):  # what becomes infinite is refused as such
        copied: npt.NDArray[Any] = np.array(array, dtype=dtype, order="C")
    copied.setflags(write=False)
    return copied


def row_spans(indptr: npt.NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Consecutive ranges of compressed rows, of about so many entries each, no row cut in two."""
    cuts = np.searchsorted(indptr, np.arange(most, int(indptr[-1]), most))
    ends = np.unique(np.concatenate([[0], cuts, [indptr.size - 1]])).tolist()
    return list(pairwise(ends))


def as_frozen(name: str, values: npt.ArrayLike, dtype: type) -> npt.NDArray[Any]:
    """The array itself if nobody can write to it, else a frozen copy."""
    if not isinstance(values, np.ndarray) or values.base is not None or values.dtype != dtype:
        return frozen(name, values, dtype)
    is_kept = values.flags.c_contiguous and not values.flags.writeable
    return values if is_kept else frozen(name, values, dtype)


def checked_metadata(metadata: Mapping[str, Any], name: str = "metadata") -> dict[str, Any]:
    try:
        copied = json.loads(json.dumps(dict(metadata), allow_nan=False))
        check_nesting(copied, DEEPEST_METADATA)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{name} must hold JSON values only: {error}") from None
    assert isinstance(copied, dict)
    return copied


def array_digest(array: npt.NDArray[Any] | None) -> str:
    """A digest of the bytes of an array; empty if there is none."""
    return "" if array is None else hashlib.sha256(array.tobytes()).hexdigest()
