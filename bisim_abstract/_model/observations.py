"""Which cluster an observation belongs to: a table that can be written to a file.

Observations are whatever a Gymnasium environment shows: numbers, arrays, text, or tuples and
dictionaries of these. A layout says how they are made up, in JSON values; by it, an observation
becomes bytes that are equal exactly for equal ones, whatever types a vector environment or a
library gave its numbers. Single numbers stand for themselves, all else is kept as a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.types import IntArray
from bisim_abstract.errors import InvalidArgumentError

Layout: TypeAlias = dict[str, Any]

NUMBER: Layout = {"kind": "number"}
DIGEST = 16  # bytes that stand for an observation
KNOWN_BYTES = 300  # that each of them takes, measured and rounded up
# As NumPy writes them.
INTEGERS = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")
DTYPES = frozenset({*INTEGERS, "<f2", "<f4", "<f8"})


@dataclass(frozen=True, eq=False)
class Observations:
    """Observations and their clusters.

    Attributes:
        layout: How an observation is made up.
        keys: (known) the numbers, rising; or (known, 16) digests, in order of their bytes.
        clusters: (known) what each belongs to.
    """

    layout: Layout
    keys: npt.NDArray[Any]
    clusters: IntArray

    def __post_init__(self) -> None:
        check_layout(self.layout)
        is_number = self.layout["kind"] == "number"
        keys = frozen("keys", self.keys, np.int64)
        object.__setattr__(self, "keys", keys if is_number else _bytes(keys))
        object.__setattr__(self, "clusters", frozen("clusters", self.clusters, np.int64))
        count = self.clusters.size
        shape = (count,) if is_number else (count, DIGEST)
        if self.clusters.ndim != 1 or count == 0 or keys.shape != shape:
            raise InvalidArgumentError(
                f"keys must have shape {shape}, one for each of the clusters, got {keys.shape}"
            )
        check_memory(
            KNOWN_BYTES * count,
            what=f"a table of {count:,} observations",
            instead="use a smaller environment",
        )
        if not _is_rising(self.keys):
            raise InvalidArgumentError("keys must rise, each of them once")

    @classmethod
    def of(cls, layout: Layout, clusters: Mapping[Any, int]) -> Observations:
        """From keys as `key_of` gives them, and the cluster of each."""
        order = sorted(clusters)
        found = np.array([clusters[key] for key in order], np.int64)
        if layout["kind"] == "number":
            return cls(layout, np.array(order, np.int64), found)
        return cls(layout, np.frombuffer(b"".join(order), np.uint8).reshape(-1, DIGEST), found)

    def find(self, observation: Any) -> np.int64 | IntArray:
        """The cluster of an observation, or those of a batch as vector environments give it."""
        if self.layout["kind"] == "number":
            return self._find_numbers(observation)
        count = batch_size(self.layout, observation)
        if count is None:
            return np.int64(self._find_one(observation))
        single = (pick(self.layout, observation, k) for k in range(count))
        return np.fromiter(map(self._find_one, single), np.int64, count)

    def _find_numbers(self, observation: Any) -> np.int64 | IntArray:
        given = np.asarray(observation)
        if given.ndim > 1 or (given.size and given.dtype.kind not in "iu"):
            raise InvalidArgumentError(
                "observation must be a whole number, or an array of one for each environment, "
                f"got {given.dtype} of shape {given.shape}"
            )
        if given.dtype.kind == "u" and (given > np.iinfo(np.int64).max).any():
            raise unknown(given.max().item())  # as an index it would wrap round
        given = given.astype(np.int64)
        at = np.minimum(np.searchsorted(self.keys, given), self.keys.size - 1)
        bad = np.flatnonzero(self.keys[at] != given)
        if bad.size:
            raise unknown(given.ravel()[bad[0]].item())
        found = self.clusters[at]
        return found if given.ndim else np.int64(found)

    def _find_one(self, observation: Any) -> int:
        cluster = self._table.get(key_of(self.layout, observation))
        if cluster is None:
            raise unknown(observation)
        return cluster

    @cached_property
    def _table(self) -> dict[Any, int]:
        keys = [row.tobytes() for row in self.keys]
        return dict(zip(keys, self.clusters.tolist(), strict=True))


def _is_rising(keys: npt.NDArray[Any]) -> bool:
    if keys.ndim == 1:
        return bool((keys[1:] > keys[:-1]).all())
    # In the order of bytes: the first half as one number, then the second.
    first, second = keys.view(">u8").astype(np.uint64).T
    is_tie = first[1:] == first[:-1]
    return bool(((first[1:] > first[:-1]) | (is_tie & (second[1:] > second[:-1]))).all())


def _bytes(keys: IntArray) -> npt.NDArray[np.uint8]:
    if keys.size and not 0 <= keys.min() <= keys.max() <= 255:
        raise InvalidArgumentError("keys must be bytes")
    small = keys.astype(np.uint8)
    small.setflags(write=False)
    return small


def unknown(observation: Any) -> InvalidArgumentError:
    """An observation that no state of the model gives."""
    text = repr(observation)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return InvalidArgumentError(
        f"the observation {' '.join(shown.split())} is that of no state that this agent knows; "
        "was the environment made with other arguments, or reset to another layout (where the "
        "model was enumerated, it is that of one seed)?"
    )


# -- how an observation is made up -----------------------------------------------------------


def layout_of(space: gym.Space[Any]) -> Layout:
    """The layout of a space's elements.

    Raises:
        InvalidArgumentError: If they are made of something else than numbers and text.
    """
    spaces = gym.spaces
    if isinstance(space, spaces.Discrete):
        return dict(NUMBER)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        dtype = np.dtype(space.dtype).newbyteorder("<")
        if dtype.str in DTYPES:
            return {"kind": "array", "shape": list(space.shape), "dtype": dtype.str}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "parts": [layout_of(part) for part in space.spaces]}
    if isinstance(space, spaces.Dict):
        parts = [[name, layout_of(part)] for name, part in sorted(space.spaces.items())]
        return {"kind": "dict", "parts": parts}
    # MiniGrid's missions have a space of their own, whose elements are text all the same.
    if isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind == "U"):
        return {"kind": "text"}
    raise InvalidArgumentError(
        f"observations must consist of numbers, arrays and text to be told apart, got {space}"
    )


def check_layout(layout: object) -> None:
    """Raise unless it is a layout; it may come from a file that anyone has written."""
    kind = layout.get("kind") if isinstance(layout, dict) else None
    wanted = {
        "number": {"kind"},
        "text": {"kind"},
        "array": {"kind", "shape", "dtype"},
        "tuple": {"kind", "parts"},
        "dict": {"kind", "parts"},
    }
    if not isinstance(kind, str) or wanted.get(kind) != set(layout):  # type: ignore[call-overload]
        raise InvalidArgumentError(f"layout must tell how observations are made up, got {layout!r}")
    assert isinstance(layout, dict)
    if kind == "array":
        shape, dtype = layout["shape"], layout["dtype"]
        is_shape = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or not isinstance(dtype, str) or dtype not in DTYPES:
            raise InvalidArgumentError(f"layout must tell shape and dtype, got {layout!r}")
    if kind in ("tuple", "dict"):
        parts = layout["parts"]
        if not isinstance(parts, list):
            raise InvalidArgumentError(f"layout must list its parts, got {parts!r}")
        if kind == "dict":
            pairs = [part for part in parts if isinstance(part, list) and len(part) == 2]
            names = [name for name, _ in pairs if isinstance(name, str)]
            if len(names) != len(parts) or len(set(names)) != len(names):
                raise InvalidArgumentError("layout must name each part of a dictionary once")
            parts = [part for _, part in pairs]
        for part in parts:
            check_layout(part)


def key_of(layout: Layout, observation: Any) -> Any:
    """What stands for an observation: a number for itself, bytes for anything else."""
    if layout["kind"] == "number":
        return _number(observation)
    digest = hashlib.blake2b(digest_size=DIGEST)
    _add(digest, layout, observation)
    return digest.digest()


def _add(digest: Any, layout: Layout, value: Any) -> None:
    kind = layout["kind"]
    if kind == "number":
        digest.update(b"i%d;" % _number(value))
    elif kind == "text":
        if not isinstance(value, str):
            raise _misfit(layout, value)
        raw = value.encode("utf-8", "surrogatepass")
        digest.update(b"s%d:%b" % (len(raw), raw))
    elif kind == "array":
        digest.update(_plain(layout, value).tobytes())
    else:
        for part, item in _items(layout, value):
            _add(digest, part, item)


def _number(value: Any) -> int:
    found = np.asarray(value)
    if found.size != 1 or found.dtype.kind not in "iu" or found.item() >= 2**63:
        raise _misfit(NUMBER, value)
    return int(found.item())


def _plain(layout: Layout, value: Any) -> npt.NDArray[Any]:
    """An array of the layout's own type and shape."""
    dtype = np.dtype(layout["dtype"])
    try:
        given = np.asarray(value)
    except ValueError:  # ragged nested lists
        raise _misfit(layout, value) from None
    if given.shape != tuple(layout["shape"]) or given.dtype.kind not in "biuf":
        raise _misfit(layout, value)
    with np.errstate(over="ignore", invalid="ignore"):
        found = given.astype(dtype)
    if dtype.kind != "f":
        if (found != given).any():
            raise _misfit(layout, value)
        return np.ascontiguousarray(found)
    if np.isnan(found).any():
        raise InvalidArgumentError("observation must not hold NaN, which equals nothing")
    return np.ascontiguousarray(found + found.dtype.type(0))  # -0.0 is 0.0


def _items(layout: Layout, value: Any) -> list[tuple[Layout, Any]]:
    """Parts and what they describe."""
    parts = layout["parts"]
    if layout["kind"] == "tuple":
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise _misfit(layout, value)
        return list(zip(parts, value, strict=True))
    if not isinstance(value, Mapping) or not {name for name, _ in parts} <= set(value):
        raise _misfit(layout, value)
    return [(part, value[name]) for name, part in parts]


def _misfit(layout: Layout, value: Any) -> InvalidArgumentError:
    kind = layout["kind"]
    rule = {"number": "a whole number", "text": "text"}.get(kind, "")
    if kind == "array":
        rule = f"an array of shape {tuple(layout['shape'])}"
    if kind == "tuple":
        rule = f"a tuple of {len(layout['parts'])} parts"
    if kind == "dict":
        rule = f"a dictionary with {', '.join(repr(name) for name, _ in layout['parts'])}"
    what = type(value).__name__
    if isinstance(value, np.ndarray):
        what = f"{value.dtype} of shape {value.shape}"
    return InvalidArgumentError(
        f"observation must be {rule} here, or a batch of these as vector environments give it, "
        f"got {what}"
    )


# -- batches -----------------------------------------------------------------------------------


def batch_size(layout: Layout, value: Any) -> int | None:
    """How many observations a batch holds, put together as vector environments do; None for one."""
    kind = layout["kind"]
    if kind == "text":
        return None if isinstance(value, str) else _length(layout, value)
    if kind in ("number", "array"):
        try:
            ndim = np.ndim(value)
        except ValueError:  # ragged nested lists
            raise _misfit(layout, value) from None
        wanted = len(layout.get("shape", ()))
        if ndim not in (wanted, wanted + 1):
            raise _misfit(layout, value)
        return None if ndim == wanted else len(value)
    sizes = {batch_size(part, item) for part, item in _items(layout, value)}
    if len(sizes) > 1:
        raise InvalidArgumentError(
            "observation must have parts of one batch, but these hold "
            f"{', '.join('one' if n is None else str(n) for n in sorted(sizes, key=str))}"
        )
    return sizes.pop() if sizes else None


def _length(layout: Layout, value: Any) -> int:
    if not isinstance(value, Sequence | np.ndarray):
        raise _misfit(layout, value)
    return len(value)


def pick(layout: Layout, value: Any, index: int) -> Any:
    """One observation of a batch."""
    if layout["kind"] == "tuple":
        return tuple(pick(part, item, index) for part, item in _items(layout, value))
    if layout["kind"] == "dict":
        parts = layout["parts"]
        return {name: pick(part, value[name], index) for name, part in parts}
    found = value[index]
    return str(found) if layout["kind"] == "text" and isinstance(found, np.str_) else found
