"""Linear algebra that a fork in another thread waits for.

The library underneath has threads and locks of its own. A process that forks while another of its
threads is inside waits for ever, or leaves the child a lock that nobody will release.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bisim_abstract._base.types import FloatArray

_inside = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_inside.acquire,
        after_in_parent=_inside.release,
        after_in_child=_inside.release,
    )


@contextmanager
def no_fork() -> Iterator[None]:
    """While this is held, forks of other threads wait; so do other threads that want it."""
    with _inside:
        yield


def solve_sparse(matrix: Any, right: FloatArray) -> FloatArray:
    """Solve a square sparse system by one factorisation."""
    from scipy.sparse.linalg import splu

    columns = matrix.tocsc()
    with no_fork():
        return np.asarray(splu(columns).solve(right))
