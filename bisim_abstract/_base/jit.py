"""The one way kernels are compiled, and what is told of it.

Compiling is what a newcomer waits for, and most of the time goes into numba's own front end, in
proportion to the Python in kernels and to the number of layers between them: every caller
optimises all that it calls once more. Hence three decorators: `kernel` for what Python calls,
`inner` for what only kernels call, `inlined` for what is written into its callers before anything
is compiled, which suits what is long and has one caller.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

# A fork waits until no other thread compiles: the child would inherit numba's lock as taken, by a
# thread that it does not have, and wait for ever when it compiles something itself.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )

njit: Any = numba.njit  # whose types do not know all options
P = ParamSpec("P")
R = TypeVar("R")

# Rewrites of array expressions would look for what no kernel has, and nobody takes a kernel's
# address as a C function: a tenth of the time.
OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": False,
    "error_model": "numpy",
    "no_rewrites": True,
    "no_cfunc_wrapper": True,
}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile on first call, without fastmath, releasing the interpreter lock.

    Compiled code is kept beside the source, or in numba's own cache folder. Where neither
    can be written (a read-only install without a home, a full disk), it is compiled anew in each
    process.
    """
    try:
        compiled = njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # numba found no writable place for its cache
        _watch.is_kept = False
        compiled = njit(cache=False, **OPTIONS)(function)
    else:
        _save_if_possible(compiled)
    return cast("Callable[P, R]", compiled)


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """For what kernels call and Python does not: nothing is made for calls from Python."""
    return cast("Callable[P, R]", njit(no_cpython_wrapper=True, **OPTIONS)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """For what is to become a part of the kernels that call it (and can be called for tests)."""
    return cast("Callable[P, R]", njit(inline="always", **OPTIONS)(function))


def _save_if_possible(compiled: Any) -> None:
    """Let a cache that cannot be written to, for instance on a full disk, cost time only."""
    cache: Any = getattr(compiled, "_cache", None)
    save = getattr(cache, "save_overload", None)
    if save is None:  # a numba that keeps it elsewhere
        return

    def guarded(*args: Any) -> None:
        try:
            save(*args)
        except OSError:
            _watch.is_kept = False

    cache.save_overload = guarded


@dataclass
class Compilation:
    """What was compiled for somebody, in whatever thread works for them.

    Attributes:
        seconds: Time spent compiling.
        count: Kernels compiled, not counting what they call.
        begun: What is called when the first compilation begins, and then forgotten.
        tells: Whether somebody is called, here or further out.
    """

    seconds: float = 0.0
    count: int = 0
    begun: Callable[[], None] | None = None
    tells: bool = False


# Who is told of compilations in this context. Threads that work for a call are given its context,
# and what another call compiles at the same time is not counted.
_watching: ContextVar[tuple[Compilation, ...]] = ContextVar("watching", default=())


class _Watch(event.Listener):
    """Hears of every compilation of this process, of which one at a time is under way.

    Numba holds its lock meanwhile; compilations nest, as callees are compiled on the way.
    """

    def __init__(self) -> None:
        self.is_kept = True  # whether compiled code can be kept for other processes
        self._depth = 0
        self._begin = 0.0
        self._told: tuple[Compilation, ...] = ()
        self._is_collecting = False

    def on_start(self, event: Any) -> None:
        """Something is compiled."""
        self._depth += 1
        if self._depth > 1:
            return
        self._begin = time.perf_counter()
        self._told = _watching.get()
        # Millions of small objects that live to the end: collecting garbage would be in vain.
        self._is_collecting = gc.isenabled()
        gc.disable()
        for found in self._told:
            tell, found.begun = found.begun, None
            if tell is not None:
                tell()

    def on_end(self, event: Any) -> None:
        """It is done, or has failed; an end without a beginning is none."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth > 0:
            return
        if self._is_collecting:
            gc.enable()
        for found in self._told:
            found.seconds += time.perf_counter() - self._begin
            found.count += 1


_watch = _Watch()
event.register("numba:compile", _watch)  # type: ignore[no-untyped-call]


def is_kept() -> bool:
    """Whether what is compiled serves other processes too, as far as is known."""
    return _watch.is_kept


@contextmanager
def watching(begun: Callable[[], None] | None = None) -> Iterator[Compilation]:
    """Count what is compiled in this context; `begun` is called when a first compilation begins.

    Nobody but the outermost `begun` is called: one of several that are told is enough.
    """
    outer = _watching.get()
    is_told = any(found.tells for found in outer)
    found = Compilation(begun=None if is_told else begun, tells=is_told or begun is not None)
    token = _watching.set((*outer, found))
    try:
        yield found
    finally:
        _watching.reset(token)
