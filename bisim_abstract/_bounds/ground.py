"""What a pair reads that has no entry of its own: start values, block bounds, features.

All of these are sub-solutions below and super-solutions above. Maxima of sub-solutions and
minima of super-solutions are such again, so that the tightest of them may be read anywhere, and
an arm that starts from it keeps its property.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bisim_abstract._base.checks import check_choice
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.blocks import BlockLevel
from bisim_abstract._bounds.features import ValueFeatures
from bisim_abstract.errors import InvalidArgumentError

TINY = 1e-315  # far above what a few products lose by underflow

LOWER_STARTS = ("reward", "zero")
UPPER_STARTS = ("reward", "constant")


@dataclass(frozen=True)
class Starts:
    """Start values of both arms, computed when read.

    Rewards are intervals [low, high]: points for single states, more for blocks. With L the
    largest difference that they allow and D = L/(1 - gamma), rounded up far enough:

    - lower "zero": 0, a sub-solution as T0 >= 0;
    - lower "reward": the largest gap between the intervals of one action, rounded down, as
      Tf >= d_R for f >= 0;
    - upper "constant": D, a super-solution as TD <= L + gamma·D <= D;
    - upper "reward": h = (largest span of the two intervals) + gamma·D, rounded up. No entry of
      h exceeds D (below), so Th <= d_R + gamma·D <= h.

    D is L/(1 - gamma)·(1 + 16·EPS + 16·EPS/(1 - gamma)): then (L + gamma·D)(1 + 8·EPS) <= D,
    which covers the rounding of h and of the sums above; h and D carry TINY and 4·TINY/(1 - gamma)
    more against underflow, which the same inequality still leaves room for.
    """

    low: FloatArray
    high: FloatArray
    gamma: float
    diameter: float
    lower: str
    upper: str

    @classmethod
    def of(
        cls, low: FloatArray, high: FloatArray, gamma: float, *, lower: str, upper: str
    ) -> Starts:
        """The starts of a model with rewards in [low, high], both (n, n_actions)."""
        check_choice("lower_start", lower, LOWER_STARTS)
        check_choice("upper_start", upper, UPPER_STARTS)
        with np.errstate(over="ignore"):
            span = float((high.max(axis=0) - low.min(axis=0)).max())
        if span > 0.0:
            span = math.nextafter(span, math.inf)
        inflation = 1.0 + 16.0 * EPS + 16.0 * EPS / (1.0 - gamma)
        diameter = span / (1.0 - gamma) * inflation
        if span > 0.0:  # products below the normal range lose up to 5e-324 each
            diameter += 4.0 * TINY / (1.0 - gamma)
        if not math.isfinite(diameter / (1.0 - gamma)):
            raise InvalidArgumentError("the metric would overflow; rescale the rewards")
        return cls(low, high, gamma, diameter, lower, upper)

    @property
    def is_exact(self) -> bool:
        """Whether rewards are points."""
        return self.low is self.high

    def widest(self) -> float:
        """Bound on the gap between both start values of any pair, rounded up."""
        # Reward over reward leaves gamma·D, and what d_R <= D was rounded by; else at most D.
        both = self.is_exact and self.lower == self.upper == "reward"
        main = self.diameter * (self.gamma if both else 1.0)
        return main + 32.0 * EPS * self.diameter + 2.0 * TINY

    def read(self, s: IntArray, t: IntArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper start values of pairs of different states (or of blocks)."""
        gap, span = np.zeros(s.shape), np.zeros(s.shape)
        if "reward" in (self.lower, self.upper):
            low, high = self.low, self.high
            for a in range(low.shape[1]):
                np.maximum(span, high[s, a] - low[t, a], out=span)
                np.maximum(span, high[t, a] - low[s, a], out=span)
                if not self.is_exact:
                    np.maximum(gap, low[s, a] - high[t, a], out=gap)
                    np.maximum(gap, low[t, a] - high[s, a], out=gap)
        if self.is_exact:
            gap = span
        # One subtraction: off by EPS relative.
        lower = gap * (1.0 - 4.0 * EPS) if self.lower == "reward" else np.zeros(s.shape)
        if self.upper == "constant":
            return lower, np.full(s.shape, self.diameter)
        tiny = TINY if self.gamma > 0.0 and self.diameter > 0.0 else 0.0
        return lower, (span + self.gamma * self.diameter) * (1.0 + 4.0 * EPS) + tiny


@dataclass(frozen=True)
class Ground:
    """The tightest of start values, block bounds at any level, and feature distances.

    Attributes:
        starts: Start values.
        levels: Block levels.
        features: Value features, if any.
    """

    starts: Starts
    levels: tuple[BlockLevel, ...] = ()
    features: ValueFeatures | None = None

    def read(self, s: IntArray, t: IntArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds of pairs of different states."""
        lower, upper = self.starts.read(s, t)
        for level in self.levels:
            labels = level.model.labels
            below, above = level.entries(labels[s], labels[t])
            np.maximum(lower, below, out=lower)
            np.minimum(upper, above, out=upper)
        if self.features is not None:
            np.maximum(lower, self.features.lower(s, t), out=lower)
        return lower, upper

    def widest(self) -> float:
        """Bound on the gap between both readings of any pair, rounded up."""
        # A reading is at least as tight as that of each component alone.
        return min([self.starts.widest(), *(level.widest() for level in self.levels)])

    def with_level(self, level: BlockLevel) -> Ground:
        """The same and one more level."""
        return replace(self, levels=(*self.levels, level))

    def with_features(self, features: ValueFeatures | None) -> Ground:
        """The same with these features."""
        return replace(self, features=features)
