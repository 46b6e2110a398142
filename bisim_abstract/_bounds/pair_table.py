"""`PairTable`: pairs with a lower and an upper bound each, read-only and validated once."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract.errors import InvalidArgumentError

A = TypeVar("A", FloatArray, IntArray)
NOTHING = np.empty(0)


@dataclass(frozen=True, eq=False)
class PairTable:
    """Bounds on pairs s <= t of n items, states or blocks.

    Nobody can write to its arrays: tables are replaced, and only arms replace them.

    Attributes:
        n: Number of items.
        keys: (pairs) s * n + t, rising.
        lower: (pairs) lower bounds.
        upper: (pairs) upper bounds.
    """

    n: int
    keys: IntArray
    lower: FloatArray
    upper: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", as_frozen("keys", self.keys, np.int64))
        for name in ("lower", "upper"):
            object.__setattr__(self, name, as_frozen(name, getattr(self, name), np.float64))
        keys, n = self.keys, self.n
        if keys.ndim != 1 or not keys.shape == self.lower.shape == self.upper.shape:
            raise InvalidArgumentError(
                "keys, lower and upper must be aligned, with one entry per covered pair"
            )
        if keys.size and ((keys[1:] <= keys[:-1]).any() or keys[0] < 0 or keys[-1] >= n * n):
            raise InvalidArgumentError(
                f"keys must rise strictly and be those of pairs of {n} states or blocks"
            )
        first, second = self.pairs()
        if (first > second).any():
            raise InvalidArgumentError("keys must be those of pairs s <= t")
        self._check_bounds()

    def _check_bounds(self) -> None:
        lower, upper = self.lower, self.upper
        # What is not a number fails every comparison.
        is_bound = (lower >= 0.0) & (lower <= upper) & (upper < np.inf)
        if not is_bound.all():
            at = int(np.argmin(is_bound))
            s, t = divmod(int(self.keys[at]), self.n)
            raise InvalidArgumentError(
                f"bounds must be finite with 0 <= lower <= upper, got {lower[at]} and "
                f"{upper[at]} at pair ({s}, {t})"
            )

    @classmethod
    def empty(cls, n: int) -> PairTable:
        """No pairs."""
        return cls(n, np.empty(0, np.int64), NOTHING, NOTHING)

    @property
    def size(self) -> int:
        """Number of pairs."""
        return int(self.keys.size)

    @property
    def width(self) -> float:
        """Largest distance between the two bounds of a pair."""
        return float((self.upper - self.lower).max(initial=0.0))

    def pairs(self) -> tuple[IntArray, IntArray]:
        """The items of the pairs, the smaller ones first."""
        first, second = np.divmod(self.keys, self.n)
        return first, second

    def check_diagonal(self, may_be_paired: BoolArray | None = None) -> None:
        """Refuse pairs of an item with itself, but for those that have a diameter.

        Args:
            may_be_paired: (n) whether an item has one; by default none has.
        """
        first, second = self.pairs()
        same = first == second
        is_wrong = same if may_be_paired is None else same & ~may_be_paired[first]
        if is_wrong.any():
            raise InvalidArgumentError(
                f"keys must be those of pairs of different states, got {first[is_wrong][0]} with "
                "itself; only blocks of several members have a diameter to store"
            )

    def find(self, first: IntArray, second: IntArray) -> tuple[IntArray, BoolArray]:
        """Where pairs, in either order, are stored, and which of them are."""
        keys = np.minimum(first, second) * self.n + np.maximum(first, second)
        if not self.size:
            return np.zeros(keys.shape, np.int64), np.zeros(keys.shape, bool)
        at = np.minimum(np.searchsorted(self.keys, keys), self.size - 1)
        return at, self.keys[at] == keys

    def with_bounds(
        self, *, lower: FloatArray | None = None, upper: FloatArray | None = None
    ) -> PairTable:
        """The same pairs with other bounds on them: fresh arrays, which become read-only."""
        table = copy(self)  # its keys are known to be right
        for name, given in (("lower", lower), ("upper", upper)):
            values = given
            if values is None:
                continue
            if values.shape != self.keys.shape:
                raise InvalidArgumentError(f"{name} must have one entry per covered pair")
            if values.base is not None or values.dtype != np.float64:
                values = np.array(values, np.float64)  # others could write to it
            object.__setattr__(table, name, _given_away(values))
        table._check_bounds()
        return table

    def with_pairs(self, keys: IntArray, lower: FloatArray, upper: FloatArray) -> PairTable:
        """The same and further pairs, none of which is in it yet."""
        merged = np.concatenate([self.keys, keys])
        order = np.argsort(merged, kind="stable")
        return PairTable(
            self.n,
            _given_away(merged[order]),
            _given_away(np.concatenate([self.lower, lower])[order]),
            _given_away(np.concatenate([self.upper, upper])[order]),
        )

    def raised_by(self, more: PairTable) -> PairTable:
        """The pairs of both, with the larger of their lower bounds; upper ones as they are."""
        at, is_old = self.find(*more.pairs())
        lower = self.lower.copy()
        np.maximum.at(lower, at[is_old], more.lower[is_old])
        new = ~is_old
        kept = self.with_bounds(lower=lower) if self.size else self
        return kept.with_pairs(more.keys[new], more.lower[new], more.upper[new])


def _given_away(array: A) -> A:
    """A fresh array that its maker does not write to any more."""
    array.setflags(write=False)
    return array
