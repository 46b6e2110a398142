"""What a pair reads that has no entry of its own: start values, block bounds, features.

All of these are sub-solutions below and super-solutions above. Maxima of sub-solutions and
minima of super-solutions are such again, so that the tightest of them may be read anywhere, and
an arm that starts from it keeps its property.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import check_choice
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._bounds.action_values import ActionValues
from bisim_abstract._bounds.blocks import BlockLevel
from bisim_abstract._bounds.features import ValueFeatures
from bisim_abstract._relations.apart import TINY, largest_distance
from bisim_abstract._relations.base import Bisimulation, Relation
from bisim_abstract._relations.table import find_bisimulation

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

    The gap and the span of two intervals are those of the same action by the plain relation; in
    general d_R lies between gaps below and spans above, and L bounds it, as the relation says
    (`reward_gaps`, `reward_span`). Where it compares no states with different actions, these are
    at distance M, for which D itself is taken: nothing exceeds it.

    D is rounded up so far (`largest_distance`) that (L + gamma·D)(1 + 8·EPS) <= D, which covers the
    rounding of h and of the sums above; h carries TINY more against underflow, as D does, which the
    same inequality still leaves room for.

    Attributes:
        low: (n, n_actions) no reward is lower.
        high: (n, n_actions) none is higher.
        gamma: The discount.
        diameter: D.
        lower: "zero" or "reward".
        upper: "constant" or "reward".
        relation: Which rewards are compared.
        sets: (n) equal numbers for those that are compared.
        has_apart: Whether D is also the distance of those with different actions.
    """

    low: FloatArray
    high: FloatArray
    gamma: float
    diameter: float
    lower: str
    upper: str
    relation: Bisimulation
    sets: IntArray
    has_apart: bool

    @classmethod
    def of(
        cls,
        low: FloatArray,
        high: FloatArray,
        gamma: float,
        *,
        available: BoolArray | None = None,
        relation: str | Relation = "plain",
        lower: str,
        upper: str,
    ) -> Starts:
        """The starts of a model with rewards in [low, high], both (n, n_actions)."""
        known = find_bisimulation(relation)
        check_choice("lower_start", lower, LOWER_STARTS)
        check_choice("upper_start", upper, UPPER_STARTS)
        has_all = available is None or bool(available.all())
        with np.errstate(over="ignore"):
            span = known.reward_span(low, high, has_all=has_all)
        if span > 0.0:
            span = math.nextafter(span, math.inf)
        diameter = largest_distance(span, gamma)
        sets, has_apart = np.zeros(low.shape[0], np.int64), False
        if available is not None:
            sets, has_apart = known.sets(available), known.has_apart(available)
        sets.setflags(write=False)
        return cls(low, high, gamma, diameter, lower, upper, known, sets, has_apart)

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
            gap, span = self.relation.reward_gaps(*self._arranged, s, t)
        # One subtraction: off by EPS relative.
        lower = gap * (1.0 - 4.0 * EPS) if self.lower == "reward" else np.zeros(s.shape)
        tiny = TINY if self.gamma > 0.0 and self.diameter > 0.0 else 0.0
        upper = np.full(s.shape, self.diameter)
        if self.upper == "reward":
            upper = (span + self.gamma * self.diameter) * (1.0 + 4.0 * EPS) + tiny
        if self.has_sets:
            differ = self.sets[s] != self.sets[t]
            upper[differ] = self.diameter
            if self.lower == "reward":
                lower[differ] = self.diameter
        return lower, upper

    @cached_property
    def has_sets(self) -> bool:
        """Whether some have other actions than others, and are therefore far apart."""
        return bool(self.sets.any())

    @cached_property
    def _arranged(self) -> tuple[FloatArray, FloatArray]:
        """Rewards as the relation reads them."""
        return self.relation.arranged(self.low, self.high)

    @cached_property
    def columns(self) -> tuple[FloatArray, FloatArray]:
        """(n, k) least and most of functions whose differences are at most the lower start."""
        if self.lower != "reward":
            none = np.empty((self.low.shape[0], 0))
            return none, none
        return self.relation.columns(self.low, self.high, self.sets, self.diameter)


@dataclass(frozen=True)
class Ground:
    """The tightest of start values, block bounds at any level, and feature distances.

    Attributes:
        starts: Start values.
        levels: Block levels.
        features: Value features, if any.
        action_values: Bounds on optimal action values, if these say how far states are apart.
    """

    starts: Starts
    levels: tuple[BlockLevel, ...] = ()
    features: ValueFeatures | None = None
    action_values: ActionValues | None = None

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
        if self.action_values is not None:
            below, above = self.action_values.read(s, t)
            is_known = self.starts.sets[s] == self.starts.sets[t]
            lower = np.where(is_known, np.minimum(below, upper), upper)
            upper = np.where(is_known, np.minimum(above, upper), upper)
        return lower, upper

    def widest(self) -> float:
        """Bound on the gap between both readings of any pair, rounded up."""
        # A reading is at least as tight as that of each component alone.
        widths = [self.starts.widest(), *(level.widest() for level in self.levels)]
        if self.action_values is not None:
            widths.append(self.action_values.width)
        return min(widths)

    def with_level(self, level: BlockLevel) -> Ground:
        """The same and one more level."""
        return replace(self, levels=(*self.levels, level))

    def with_action_values(self, action_values: ActionValues) -> Ground:
        """The same with bounds on optimal action values."""
        return replace(self, action_values=action_values)

    def with_features(self, features: ValueFeatures | None) -> Ground:
        """The same with these features."""
        return replace(self, features=features)
