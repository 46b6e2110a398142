"""The lax relation: states are compared after renaming actions.

Each action of either state is compared with the one of the other that is most like it: the
Hausdorff distance of what states can do (Taylor, Precup and Panangaden 2009). States may have
different actions, and different numbers of them.

Of features (`bisim_abstract/_bounds/features.py`) only a maximum over *all* actions, with one sign
and one way of cutting off for all of them, is admissible: for every action of x there is one of y
that is as good up to δ, so that the maxima differ by no more. A minimum is minus such a maximum.
Signs that differ, actions left out, and means over actions are not admissible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bisim_abstract._base.parallel import read_only
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.apart import overall_span
from bisim_abstract._relations.base import Bisimulation, Match
from bisim_abstract.errors import InvalidArgumentError

PIVOTS = np.linspace(0.0, 1.0, 10)[1:-1]  # quantiles of rewards, from which sets are measured
LEVELS = np.array([0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875, 0.0625])  # quantiles of rewards


class Lax(Bisimulation):
    """Every action with the one that is most like it, whatever both are called."""

    name = "lax"
    adjective = "lax"
    alike = "after renaming actions"
    closeness = (
        "Two states are close if whatever can be done in one of them can be done in the other, by "
        "some action or other, with much the same outcome"
    )
    metric = "the bisimulation metric after renaming actions"
    caution = (
        "States are alike after renaming actions: an action of a cluster is, in each of its "
        "states, the action that is called so there."
    )
    matches_actions = True
    has_witnesses = False  # functions of single actions say nothing where actions have no names

    def check(self, mdp: TabularMDP) -> None:
        """Refuse several rewards side by side, where each action occurs once for each.

        Renaming could match what one action pays in one of them with what another pays in another,
        and call states alike that differ in all.
        """
        if mdp.names.rewards:
            raise InvalidArgumentError(
                f"the model keeps several rewards side by side ({', '.join(mdp.names.rewards)}), "
                "which renaming would mix up: use relation='plain', or one of them by "
                "mdp.for_reward(name)"
            )

    def lines(self, one: Sequence[int], two: Sequence[int]) -> list[list[Match]]:
        return [[(a, b) for b in two] for a in one] + [[(a, b) for a in one] for b in two]

    def n_lines(self, n_actions: int) -> int:
        return 2 * n_actions

    def n_compared(self, n_actions: int) -> int:
        return n_actions**2

    def n_cells(self, lengths: IntArray, first: IntArray, second: IntArray) -> IntArray:
        total = lengths.sum(axis=1)
        return np.asarray(total[first] * total[second])

    def span(self, mdp: TabularMDP) -> float:
        return overall_span(mdp)

    def reward_span(self, low: FloatArray, high: FloatArray, *, has_all: bool) -> float:
        """Of any two rewards, of whatever actions."""
        return float(high.max()) - float(low.min())

    def arranged(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Points in rising order; what a state lacks repeats others."""
        if low is not high:
            return low, high
        rising = read_only(np.sort(low, axis=1))
        return rising, rising

    def reward_gaps(
        self, low: FloatArray, high: FloatArray, s: IntArray, t: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """The Hausdorff distance of the sets of rewards, between gaps below and spans above."""
        from bisim_abstract._kernels.hausdorff import interval_sets_kernel, point_sets_kernel

        gap, span = np.zeros(s.shape), np.zeros(s.shape)
        first, second = (read_only(np.ascontiguousarray(x).ravel()) for x in (s, t))
        if low is high:
            point_sets_kernel(first, second, low, gap.reshape(-1))
            return gap, gap
        interval_sets_kernel(first, second, low, high, gap.reshape(-1), span.reshape(-1))
        return gap, span

    def columns(
        self, low: FloatArray, high: FloatArray, sets: IntArray, diameter: float
    ) -> tuple[FloatArray, FloatArray]:
        """Of the set of rewards the largest, the smallest, and distances of some numbers from it.

        None of these changes by more than the Hausdorff distance of two sets; rewards of single
        actions may. Distances are off by EPS relative, and moved outward.
        """
        lows = [low.max(axis=1), low.min(axis=1)]
        highs = [high.max(axis=1), high.min(axis=1)]
        if low.shape[1] == 1:
            return np.stack(lows[:1], axis=1), np.stack(highs[:1], axis=1)
        for pivot in np.unique(np.quantile(low, PIVOTS)).tolist():
            near = np.maximum(np.maximum(low - pivot, pivot - high), 0.0).min(axis=1)
            far = np.maximum(np.abs(low - pivot), np.abs(high - pivot)).min(axis=1)
            lows.append(near * (1.0 - 4.0 * EPS))
            highs.append(far * (1.0 + 4.0 * EPS))
        return np.stack(lows, axis=1), np.stack(highs, axis=1)

    def n_features(self, n_actions: int, *, has_sets: bool) -> int:
        return 2 + 4 * LEVELS.size

    def feature_signs(
        self, n_actions: int, count: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Maxima over all actions, with one sign for all of them."""
        ones = np.ones(n_actions, np.int64)
        signs = np.where(np.arange(count) % 2 == 0, 1, -1)[:, None] * ones
        return signs, np.zeros(count, np.int64)

    def feature_cuts(self, rewards: FloatArray, signs: IntArray) -> tuple[FloatArray, FloatArray]:
        """In fours after the first two functions: both signs and both sides of one level.

        Levels are quantiles of the rewards, the middle one first.
        """
        count = signs.shape[0]
        floor, ceiling = np.full(count, -np.inf), np.full(count, np.inf)
        cut = np.arange(2, count)
        level = np.quantile(rewards, LEVELS[(cut - 2) // 4]) * signs[2:, 0]
        is_floor = (cut // 2) % 2 == 1
        floor[2:][is_floor] = level[is_floor]
        ceiling[2:][~is_floor] = level[~is_floor]
        return floor, ceiling
