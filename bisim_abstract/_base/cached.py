"""Properties that are computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - in place of the one in `functools`
        """As in `functools` from Python 3.12 on.

        That of 3.11 holds one lock for all objects of a class while it computes. A process
        forked meanwhile by another thread has the lock and nobody to release it: the first
        access there would wait for ever. Two threads may compute the same value twice.
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self._function, self.__doc__ = function, function.__doc__
            self.__module__ = function.__module__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            # The first value stays: whoever comes later gets the same object.
            return instance.__dict__.setdefault(self._name, self._function(instance))
