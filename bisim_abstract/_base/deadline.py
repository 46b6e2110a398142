"""A moment by which work has to end, known to everything that works for a call.

Long loops `look` between two pieces of work. Nothing is passed through signatures: threads that
work for a call are given its context. What is under way when time is over is given up as it is by
Ctrl-C, and by the same rules: results are put in place at once, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class OutOfTimeError(BaseException):
    """What ends work whose time is over; nothing that catches errors catches it."""


_left: ContextVar[Callable[[], float] | None] = ContextVar("left", default=None)


@contextmanager
def limited(left: Callable[[], float] | None) -> Iterator[None]:
    """Whatever looks in here ends once `left` says that no seconds are left; None for never.

    An inner limit takes the place of an outer one.
    """
    token = _left.set(left)
    try:
        yield
    finally:
        _left.reset(token)


def seconds(count: float) -> Callable[[], float]:
    """So many seconds from now on."""
    end = time.monotonic() + count
    return lambda: end - time.monotonic()


def look() -> None:
    """Go on, or end with `OutOfTimeError` if time is over."""
    left = _left.get()
    if left is not None and left() <= 0.0:
        raise OutOfTimeError
