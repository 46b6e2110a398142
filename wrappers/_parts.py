"""The part of a state that few steps change: objects that are followed instead of copied.

Most attributes of an environment are a few numbers, and are copied with every state. The others,
such as the grid of MiniGrid, are pickled together once, as they may share objects. A scan tells
whether they are still as they were: the same objects hold the same objects, in the same order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from itertools import chain
from operator import is_
from typing import Any

import numpy as np

from bisim_abstract.wrappers._encoding import is_plain_kind

__all__ = ["NUMBERS", "SCALARS", "Part", "is_light"]

FEW = 16  # entries of sequences that are copied with every state
MANY = 1_024  # entries of arrays that are
SCALARS = frozenset({bool, bytes, float, int, str, type(None)})
NUMBERS = frozenset({np.bool_, np.float64, np.int64})
_tracked: dict[type, bool] = {}  # kinds of objects that are their class and attributes, or not


def is_light(value: object, met: set[int]) -> bool:
    """Whether a value is a few numbers and texts, no part of which is met twice.

    Args:
        value: The value.
        met: Addresses of lists and arrays that were met.
    """
    kind = type(value)
    if kind in SCALARS or kind in NUMBERS:
        return True
    if kind is tuple:
        items: Any = value
        return len(items) <= FEW and all(is_light(item, met) for item in items)
    if id(value) in met:
        return False
    if kind is list:
        met.add(id(value))
        items = value
        return len(items) <= FEW and all(is_light(item, met) for item in items)
    if isinstance(value, np.ndarray) and kind is np.ndarray:
        met.add(id(value))
        return not value.dtype.hasobject and not value.dtype.names and value.size <= MANY
    return False


class Part:
    """Attributes with all objects that they reach, as they are now.

    Attributes:
        attributes: By name.
        number: Which part it is, to whoever made it.
        ids: Addresses of the objects; they are alive as long as this is.

    Args:
        attributes: By name.
        is_kept: Whether an object is none of the state.

    Raises:
        TypeError: If there is an object of which a scan would not tell whether it has changed.
    """

    def __init__(self, attributes: dict[str, Any], is_kept: Callable[[object], bool]) -> None:
        self.attributes = attributes
        self.number = 0
        self.ids: set[int] = set()
        self._instances: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        self._arrays: list[np.ndarray[Any, Any]] = []
        waiting = list(attributes.values())
        while waiting:
            value = waiting.pop()
            if type(value) in SCALARS or id(value) in self.ids:
                continue
            waiting.extend(self._add(value, is_kept))
        self._kinds = list(map(type, self._instances))
        dicts: list[Any] = [*map(vars, self._instances), *self._dicts]
        self._sizes = [*map(len, dicts), *map(len, self._lists)]
        self._slots = list(self._held(dicts))
        self._contents = self._array_contents()
        self.size = len(self._slots) + sum(each.nbytes for each in self._arrays)

    def is_unchanged(self) -> bool:
        """Whether all objects are as they were."""
        if not all(map(is_, map(type, self._instances), self._kinds)):
            return False
        dicts: list[Any] = [*map(vars, self._instances), *self._dicts]
        return (
            [*map(len, dicts), *map(len, self._lists)] == self._sizes
            and all(map(is_, self._held(dicts), self._slots))
            and (not self._arrays or self._array_contents() == self._contents)
        )

    def _add(self, value: Any, is_kept: Callable[[object], bool]) -> Iterator[Any]:
        """Follow an object, and return what it holds."""
        kind = type(value)
        is_number = issubclass(kind, np.generic) and kind.__module__ == "numpy"
        if (is_number and kind is not np.void) or isinstance(value, enum.Enum) or is_kept(value):
            return iter(())
        self.ids.add(id(value))
        if kind is tuple:
            return iter(value)
        if kind is list:
            self._lists.append(value)
            return iter(value)
        if kind is dict:
            self._dicts.append(value)
            return chain(value, value.values())
        if kind is np.ndarray and not value.dtype.hasobject:
            self._arrays.append(value)
            return iter(())
        is_tracked = _tracked.get(kind)
        if is_tracked is None:
            is_tracked = _tracked[kind] = is_plain_kind(kind) and not hasattr(kind, "__setstate__")
        if not is_tracked:
            raise TypeError(f"{kind.__name__} cannot be followed")
        self._instances.append(value)
        return chain(vars(value), vars(value).values())

    def _held(self, dicts: list[Any]) -> Iterator[Any]:
        """What all objects hold, one after the other."""
        values = chain.from_iterable(map(dict.values, dicts))
        return chain(chain.from_iterable(dicts), values, chain.from_iterable(self._lists))

    def _array_contents(self) -> list[tuple[object, ...]]:
        return [(each.dtype, each.shape, each.strides, each.tobytes()) for each in self._arrays]
