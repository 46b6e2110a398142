"""Linear algebra that a fork in another thread waits for.

The library underneath has threads and locks of its own. A process that forks while another of its
threads is inside waits for ever, or leaves the child a lock that nobody will release.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
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


def product(first: FloatArray, second: FloatArray) -> FloatArray:
    """The product of two dense matrices."""
    with no_fork():
        return np.asarray(first @ second)


def symmetric_axes(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues of a symmetric matrix, in rising order, and its eigenvectors as columns."""
    with no_fork():
        values, vectors = np.linalg.eigh(matrix)
    return values, vectors


def factorise(matrix: Any) -> Callable[[FloatArray], FloatArray]:
    """What solves a square sparse system for one right-hand side after the other."""
    from scipy.sparse.linalg import splu

    columns = matrix.tocsc()
    with no_fork():
        factors = splu(columns)

    def solve(right: FloatArray) -> FloatArray:
        with no_fork():
            return np.asarray(factors.solve(right))

    return solve


def solve_contraction(
    apply: Callable[[FloatArray], FloatArray],
    right: FloatArray,
    *,
    atol: float,
    max_steps: int,
) -> FloatArray:
    """Solve x = right + apply(x) for a linear `apply`: BiCGSTAB, stabilised once a step.

    Up to `atol` in every entry, or as far as `max_steps` lead; whoever calls looks at the result.
    No library is underneath, so that forks need not wait and `apply` may use threads, and sums are
    made in one order: the same bits for any number of them.
    """
    x, rest, shadow = np.zeros_like(right), right.copy(), right.copy()
    along, image = np.zeros_like(right), np.zeros_like(right)
    rho = alpha = omega = np.float64(1.0)  # which divides by 0 without a word
    with np.errstate(all="ignore"):  # a breakdown is seen in the numbers
        for _ in range(max_steps):
            before, rho = rho, (shadow * rest).sum()
            along = rest + rho / before * (alpha / omega) * (along - omega * image)
            image = along - apply(along)
            alpha = rho / (shadow * image).sum()
            rest = rest - alpha * image
            if not np.isfinite(alpha):
                break
            x += alpha * along
            if float(np.abs(rest).max()) <= atol:
                break
            turned = rest - apply(rest)
            omega = (turned * rest).sum() / (turned * turned).sum()
            if not np.isfinite(omega):
                break
            x += omega * rest
            rest = rest - omega * turned
            if float(np.abs(rest).max()) <= atol:
                break
    return x
