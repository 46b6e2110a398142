"""The plain relation: states are compared action by action.

Features are admissible with any signs (`bisim_abstract/_bounds/features.py`), where all states have
all actions. Where they do not, states with different ones are at distance M, which is at least
L/(1 - γ), L being the largest difference of any two rewards. A function all of whose signs are
equal has a span of at most that, and its Φ carries functions within d + e to functions that differ
by L + γ(M + e) <= M + γe there; with signs that differ, it may exceed it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.apart import reward_span
from bisim_abstract._relations.base import Bisimulation, Match


class Plain(Bisimulation):
    """Every action with the one of the same name; states with different actions are far apart."""

    name = "plain"
    alike = "action by action"
    closeness = "Two states are close if no sequence of actions tells them apart by much"
    metric = "the bisimulation metric"
    distance = "bisimulation"
    has_witnesses = True

    def lines(self, one: Sequence[int], two: Sequence[int]) -> list[list[Match]]:
        return [[(a, a)] for a in one] if list(one) == list(two) else []

    def n_lines(self, n_actions: int) -> int:
        return n_actions

    def n_compared(self, n_actions: int) -> int:
        return n_actions

    def n_cells(self, lengths: IntArray, first: IntArray, second: IntArray) -> IntArray:
        return np.asarray((lengths[first] * lengths[second]).sum(axis=1))

    def span(self, mdp: TabularMDP) -> float:
        return reward_span(mdp.rewards)

    def reward_span(self, low: FloatArray, high: FloatArray, *, has_all: bool) -> float:
        """By action; over all actions where states with different ones are far apart."""
        if not has_all:
            return float(high.max()) - float(low.min())
        return float((high.max(axis=0) - low.min(axis=0)).max())

    def arranged(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        return low, high

    def reward_gaps(
        self, low: FloatArray, high: FloatArray, s: IntArray, t: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        gap, span = np.zeros(s.shape), np.zeros(s.shape)
        for a in range(low.shape[1]):
            np.maximum(span, high[s, a] - low[t, a], out=span)
            np.maximum(span, high[t, a] - low[s, a], out=span)
            if low is not high:
                np.maximum(gap, low[s, a] - high[t, a], out=gap)
                np.maximum(gap, low[t, a] - high[s, a], out=gap)
        return (span, span) if low is high else (gap, span)

    def columns(
        self, low: FloatArray, high: FloatArray, sets: IntArray, diameter: float
    ) -> tuple[FloatArray, FloatArray]:
        """The rewards of each action; and 0 or M by the bits of the number of an action set.

        Two different sets differ in a bit.
        """
        if not sets.any():
            return low, high
        bits = int(sets.max()).bit_length()
        marks = ((sets[:, None] >> np.arange(bits)) & 1) * diameter
        return np.hstack([low, marks]), np.hstack([high, marks])

    def n_features(self, n_actions: int, *, has_sets: bool) -> int:
        """With different action sets, functions whose signs differ may exceed the distance."""
        if has_sets:
            return 3 + n_actions
        return n_actions + (1 << n_actions) + (1 << (n_actions - 1))

    def feature_signs(
        self, n_actions: int, count: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """All actions up and down, their mean, single actions, then random signs."""
        ones = np.ones(n_actions, np.int64)
        rows = [(ones, 0), (-ones, 0), (ones, 1)]
        order = np.arange(n_actions) if count >= 3 + n_actions else rng.permutation(n_actions)
        rows += [(_one_hot(n_actions, a), 0) for a in order.tolist()]
        seen = {(*row.tolist(), kind) for row, kind in rows}
        while len(rows) < count:  # never where states have actions of their own
            row, kind = 2 * rng.integers(2, size=n_actions) - 1, int(rng.integers(2))
            if kind == 1:
                row = row * row[0]  # opposite signs give the opposite function
            key = (*row.tolist(), kind)
            if key not in seen:
                seen.add(key)
                rows.append((row, kind))
        rows = rows[:count]
        return np.array([row for row, _ in rows]), np.array([kind for _, kind in rows])

    def feature_cuts(self, rewards: FloatArray, signs: IntArray) -> tuple[FloatArray, FloatArray]:
        """Nowhere: functions of single actions say as much."""
        return np.full(signs.shape[0], -np.inf), np.full(signs.shape[0], np.inf)


def _one_hot(n_actions: int, action: int) -> IntArray:
    row = np.zeros(n_actions, np.int64)
    row[action] = 1
    return row
