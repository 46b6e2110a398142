"""Rows of transitions, compressed: what models of states and models of blocks have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.checks import check_rows


def rows_taken(indptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Boundaries of some rows, one after another, and where their entries are now.

    Args:
        indptr: Boundaries of all rows.
        rows: Those to take, in any order; one may be taken more than once.
    """
    sizes = np.diff(indptr)[rows]
    taken = np.concatenate([[0], np.cumsum(sizes)])
    return taken, np.repeat(indptr[rows] - taken[:-1], sizes) + np.arange(taken[-1])


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """Row `x * n_actions + a` holds where `x` leads under action `a`. Arrays are read-only.

    Attributes:
        indptr: (rows + 1) row boundaries.
        indices: (nnz) columns, strictly increasing within a row.
        probs: (nnz) above 0; a row is its entries divided by their exact sum, which is 1 up to
            rounding.
    """

    indptr: IntArray
    indices: IntArray
    probs: FloatArray

    def _keep_rows(self, n: int, n_actions: int, freeze: Callable[..., Any]) -> None:
        """Freeze the arrays and check that they are rows of `n` times `n_actions`."""
        for name, dtype in (("indptr", np.int64), ("indices", np.int64), ("probs", np.float64)):
            object.__setattr__(self, name, freeze(name, getattr(self, name), dtype))
        check_rows(self.indptr, self.indices, self.probs, n, n_actions)

    @property
    def nnz(self) -> int:
        """Number of stored transitions."""
        return int(self.indices.size)

    @cached_property
    def max_support(self) -> int:
        """Largest number of entries of any row."""
        return int(np.diff(self.indptr).max())

    @cached_property
    def normalised_probs(self) -> FloatArray:
        """(nnz) entries divided by their row's sum; off by at most two roundings each."""
        from bisim_abstract._kernels.transport import normalise_rows_kernel

        out = np.empty_like(self.probs)
        normalise_rows_kernel(self.indptr, self.probs, out)
        out.setflags(write=False)
        return out
