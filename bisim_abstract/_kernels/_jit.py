"""The one way kernels are compiled."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core.compiler_lock import global_compiler_lock

# A fork waits until no other thread compiles: the child would inherit numba's lock as taken, by a
# thread that it does not have, and wait for ever when it compiles something itself.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile on first call, without fastmath, releasing the interpreter lock.

    Compiled code is kept beside the source, or in numba's own cache folder. Where neither
    can be written (a read-only install without a home, a full disk), it is compiled anew in each
    process.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no writable place for its cache
        compiled = numba.njit(cache=False, **options)(function)
    else:
        _save_if_possible(compiled)
    return cast("Callable[P, R]", compiled)


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
            return

    cache.save_overload = guarded
