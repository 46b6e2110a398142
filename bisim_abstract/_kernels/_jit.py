"""The one way kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba

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
