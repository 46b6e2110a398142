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
    can be written (a read-only install without a home), it is compiled anew in each process.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no writable place for its cache
        compiled = numba.njit(cache=False, **options)(function)
    return cast("Callable[P, R]", compiled)
