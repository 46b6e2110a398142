"""One backup of functions over states, in floats with bounds on rounding, or in fractions.

The same lines compute both: arrays hold floats, or fractions, in which nothing is rounded. Every
comparison is made with a slack that is proven for floats and 0 for fractions. Claims are floats
in either, so that what can be decided about them alone (`above`) is decided exactly in both.

For an estimated model backups are bounded from the safe side: a true reward is within its radius r
and in the range of single rewards, and a true row p has at most t of its mass elsewhere than the
row q of the model. For any level λ <= max v and w = max(v, λ),

    p·v <= p·w <= q·w + t (max v - λ),

as w spans no more than that; and mirrored below. A level for each row is chosen such that the
least of q's mass, t in all, lies at or below it; the inequality holds whatever is chosen. If v is
constant on the blocks of the estimate, so is w, and t is the radius of rows summed by blocks.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.rows import rows_taken
from bisim_abstract._verify.read import radius_seen_by

TINY = 1e-305  # above all that underflow may lose in a backup

# Floats, or objects that are fractions.
Numbers = npt.NDArray[Any]


def above(upper: npt.ArrayLike, lower: npt.ArrayLike) -> FloatArray:
    """The least floats that are at least upper - lower, differences of floats.

    With s = fl(u - l) and e its error, u - l = s + e: s is the float nearest to it.
    """
    u, v = np.asarray(upper, np.float64), np.asarray(lower, np.float64)
    found = u - v
    part = found - u
    rest = (u - (found - part)) - (v + part)
    found = np.where(rest > 0.0, np.nextafter(found, np.inf), found)
    return np.maximum(found, -sys.float_info.max)  # which no float is below


def as_float(number: Any) -> float:
    """A number for people, however large."""
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def float_sums(values: FloatArray, begins: IntArray) -> FloatArray:
    """Sums of runs of floats, however long: rounded once."""
    if not float(np.abs(values).max()) * values.size < sys.float_info.max:
        return np.full(begins.size, np.nan)  # which no comparison accepts
    found: FloatArray = np.add.reduceat(values, begins)
    ends = np.append(begins[1:], values.size)
    for run in np.flatnonzero(ends - begins > 2).tolist():
        found[run] = math.fsum(values[begins[run] : ends[run]].tolist())
    return found


class Arithmetic:
    """A model in numbers of one kind.

    Args:
        mdp: The model.
        gamma: The discount.
        is_exact: Whether to compute with fractions.

    Attributes:
        unit: What an operation rounds by, relative to its result.
        terms: Units of a backup, and of a mean of backups over rows that have weights: see `slack`.
        largest: The largest reward, its radius included.
    """

    def __init__(self, mdp: TabularMDP, gamma: float, *, is_exact: bool) -> None:
        self.mdp, self.is_exact = mdp, is_exact
        self.unit: Any = 0 if is_exact else EPS
        self.gamma: Any = Fraction(gamma) if is_exact else gamma
        self.longest = int(np.diff(mdp.indptr).max())
        self.terms = 2 * self.longest + 24
        self.largest = float(np.abs(mdp.rewards).max())
        if mdp.estimate is not None:
            self.largest += float(mdp.estimate.reward_radius.max())
        self._probs = self.of(mdp.probs)
        self._masses = np.add.reduceat(self._probs, mdp.indptr[:-1])

    def of(self, values: FloatArray) -> Numbers:
        """Floats as numbers of this kind."""
        if not self.is_exact:
            return values
        found = np.empty(values.size, object)
        found[:] = [Fraction(x) for x in values.ravel().tolist()]
        return found.reshape(values.shape)

    def slack(self, size: float, *, more: int = 0) -> Any:
        """How far a backup may be off.

        A mean of a row of k entries is a quotient of two sums, each off by k roundings of the sum
        of its sizes; radii, rewards and a weighted mean of backups add at most 12, a plain sum of
        them `more`. No size is above |R| + r + 4·max|v|.
        """
        if self.is_exact:
            return 0
        return (self.terms + more) * EPS * size + (TINY if size > 0.0 else 0.0)

    def size(self, values: FloatArray) -> float:
        """The size of what is added in a backup, see `slack`."""
        return self.largest + 4.0 * float(np.abs(values).max())

    def row_entries(self, rows: IntArray) -> tuple[IntArray, IntArray | slice]:
        """Boundaries of some rows, one after another, and where their entries are."""
        if rows.size == self.mdp.rewards.size and bool((np.diff(rows) == 1).all()):
            return self.mdp.indptr, slice(None)
        return rows_taken(self.mdp.indptr, rows)

    def weights(self, rows: IntArray) -> tuple[IntArray, IntArray, Numbers]:
        """Boundaries, columns and probabilities of rows; these are off by 2·longest units."""
        indptr, at = self.row_entries(rows)
        masses = np.repeat(self._masses[rows], np.diff(indptr))
        return indptr, self.mdp.indices[at], self._probs[at] / masses

    def backups(
        self, values: FloatArray, side: int, rows: IntArray, *, is_stored: bool = False
    ) -> Numbers:
        """(rows) rewards and discounted values ahead, the most (side 1) or the least (-1) of them.

        Args:
            values: (n_states).
            side: Which end of what radii of an estimate allow.
            rows: Numbers of rows, state * n_actions + action.
            is_stored: Whether the model's own rows and rewards count, without their radii.
        """
        mdp = self.mdp
        indptr, at = self.row_entries(rows)
        begins, masses = indptr[:-1], self._masses[rows]
        probs, ahead = self._probs[at], values[mdp.indices[at]]
        rewards = self.of(mdp.rewards.ravel()[rows])
        with np.errstate(under="ignore"):
            if mdp.estimate is None or is_stored:
                sums = np.add.reduceat(probs * self.of(ahead), begins) / masses
                return np.asarray(rewards + self.gamma * sums)
            radius = self.of(radius_seen_by(mdp, values).ravel()[rows])
            best = self.of(side * values).max()
            row = np.repeat(np.arange(rows.size), np.diff(indptr))
            order = np.lexsort((side * ahead, row))
            worth, probs = self.of(side * ahead[order]), probs[order]
            # The first entry, by rising worth, with which t of the mass is passed, if there is one.
            passed = np.add.accumulate(probs)
            passed = passed - (passed - probs)[begins][row]
            is_past = passed >= (radius * masses)[row]
            place = np.minimum.reduceat(
                np.where(is_past, np.arange(worth.size), worth.size), begins
            )
            level = worth[np.minimum(place, indptr[1:] - 1)]
            sums = np.add.reduceat(probs * np.maximum(worth, level[row]), begins) / masses
            error = self.of(mdp.estimate.reward_radius.ravel()[rows])
            last = self.of(np.asarray([side * mdp.estimate.reward_range[side > 0]]))
            end = np.minimum(side * rewards + error, np.maximum(side * rewards, last))
            found: Numbers = side * (end + self.gamma * (sums + radius * (best - level)))
            return found

    def sums(self, values: Numbers, begins: IntArray) -> Numbers:
        """Sums of runs of numbers, however long: rounded once."""
        exact: Numbers = np.add.reduceat(values, begins)
        return exact if self.is_exact else float_sums(values, begins)

    def start_mean(self, values: FloatArray) -> tuple[Any, Any]:
        """Bounds on the mean over the start.

        A product, two sums and a quotient round once each, a difference of two such means once
        more: five units of EPS of the mean size, and one to spare.
        """
        used = np.flatnonzero(self.mdp.start)
        weights, picked = self.mdp.start[used], values[used]
        if self.is_exact:
            exact = self.of(weights)
            mean = (exact * self.of(picked)).sum() / exact.sum()
            return mean, mean
        total = math.fsum(weights)
        found = math.fsum(weights * picked) / total
        pad = 6.0 * EPS * math.fsum(weights * np.abs(picked)) / total
        return found - pad, found + pad
