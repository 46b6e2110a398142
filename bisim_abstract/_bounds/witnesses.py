"""Witnesses: functions of states that tell blocks apart, each by the distance of all of them.

A witness is g = σ·R_a + γ·P_a u for one action a, where u may be any function that changes by at
most δ(x, y) between x and y; δ is the largest difference of a value feature or of a witness, the
very functions that are stored. u is given by a potential on a few states, and reaches all others by
u(z) = min_i (potential_i + δ(z, support_i)): δ obeys the triangle inequality, so this changes by at
most δ, whatever the potential is. Bounds of pairs or blocks, and corrected differences, do not obey
it: they must never be mixed into δ.

The functions read one another, so that what is missing counts jointly. Let r_j be what the backup
of u_j differs by from the stored g_j, and c the largest correction of all, features included. The
corrections are enough if

    span(r_j) + γ·c <= correction_j   for every witness j.

For let e be the most by which δ exceeds d anywhere. As u_j is within d + e, its backup is within
T(d + e) <= d + γe, and |g_j(x) - g_j(y)| <= d + γe + span(r_j). Were e above c, it would come
from a witness (features are within d + c), so that e <= γe + correction_j - γc <= γe + c - γc, so
e <= c after all. So |g_j(x) - g_j(y)| <= d + γc + span(r_j) <= d + correction_j. Corrections of
span(r_j)/(1 - γ), each function by itself, would not do: R = 0, g_1 arbitrary, g_2 = γ·P g_1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.checks import check_states
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["Witnesses"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Witnesses:
    """Functions of states with potentials that vouch for them.

    Attributes:
        values: (k, n_states) the functions g, each up to a constant.
        actions: (k) the action of each.
        signs: (k) +1 or -1, on its reward.
        support: (k, m) states at which the potential is given; a state may stand more than once.
        potential: (k, m) the potential there.
        corrections: (k) for all x, y: |g(x) - g(y)| - correction <= d(x, y).
    """

    values: FloatArray
    actions: IntArray
    signs: IntArray
    support: IntArray
    potential: FloatArray
    corrections: FloatArray

    def __post_init__(self) -> None:
        for name in ("values", "potential", "corrections"):
            object.__setattr__(self, name, as_frozen(name, getattr(self, name), np.float64))
        for name in ("actions", "signs", "support"):
            object.__setattr__(self, name, as_frozen(name, getattr(self, name), np.int64))
        if self.values.ndim != 2 or self.values.size == 0:
            raise InvalidArgumentError(
                f"values must have shape (k, n_states) with both above 0, got {self.values.shape}"
            )
        check_spans(self.values)
        count, n_states = self.values.shape
        for name in ("actions", "signs", "corrections"):
            if getattr(self, name).shape != (count,):
                raise InvalidArgumentError(
                    f"{name} must have shape ({count},), got {getattr(self, name).shape}"
                )
        shape = self.support.shape
        if self.support.ndim != 2 or shape[0] != count or shape[1] == 0:
            raise InvalidArgumentError(
                f"support must have shape ({count}, m) with m above 0, got {shape}"
            )
        check_states("support", self.support, n_states)
        if self.potential.shape != shape:
            raise InvalidArgumentError(
                f"potential must have the shape of support {shape}, got {self.potential.shape}"
            )
        for name, is_good, rule in (
            ("actions", self.actions >= 0, "numbers of actions, at least 0"),
            ("signs", np.abs(self.signs) == 1, "+1 or -1"),
            ("potential", np.isfinite(self.potential), "finite"),
            (
                "corrections",
                np.isfinite(self.corrections) & (self.corrections >= 0.0),
                "finite and at least 0",
            ),
        ):
            if not is_good.all():
                wrong = getattr(self, name)[~is_good][0]
                raise InvalidArgumentError(f"{name} must be {rule}, got {wrong}")

    @property
    def count(self) -> int:
        """Number of functions."""
        return int(self.values.shape[0])

    def __repr__(self) -> str:
        return (
            f"Witnesses({self.count} functions of {self.values.shape[1]:,} states, "
            f"correction {self.corrections.max():.2g})"
        )


def check_spans(values: FloatArray) -> None:
    """Raise unless all values, and so all differences of a function's, are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        span = values.max(axis=1) - values.min(axis=1)
    bad = np.flatnonzero(~np.isfinite(span))
    if bad.size:
        raise InvalidArgumentError(
            "values must be finite, and so must the differences of each function, got a span of "
            f"{span[bad[0]]} in row {bad[0]}"
        )
