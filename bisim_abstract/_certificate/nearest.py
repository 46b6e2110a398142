"""`nearest_pairs`: the closest states that stay apart, and what keeps them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.spanning import upper_forest
from bisim_abstract._exact.transport import solve_transport
from bisim_abstract._linkage.forests import Forest, spanning_forest
from bisim_abstract._model.mdp import TabularMDP

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate

__all__ = ["NearPair"]

SOURCES = 3  # pairs of successors that are named


@dataclass(frozen=True)
class NearPair:
    """Two states of different clusters, and where their distance comes from.

    The two parts add up to one backup of the upper bounds, which is no less than the metric; an
    estimate's confidence radii are part of them.

    Attributes:
        first: One state.
        second: The other.
        lower: Lower bound on their distance.
        upper: Upper bound on it.
        action: The action under which they differ most.
        reward: How much of it is the difference of rewards.
        future: How much is the discounted distance of what follows.
        successors: (state, state, share) pairs of successors that the future part comes from:
            the largest first, each with its share of that part.
    """

    first: int
    second: int
    lower: float
    upper: float
    action: int
    reward: float
    future: float
    successors: tuple[tuple[int, int, float], ...]

    def __str__(self) -> str:
        total = self.reward + self.future
        text = (
            f"states {self.first} and {self.second}, {self.lower:.4g} to {self.upper:.4g} apart, "
            f"by action {self.action}"
        )
        if total <= 0.0:
            return text
        text += f": {self.reward / total:.0%} reward, {self.future / total:.0%} future"
        if self.successors:
            named = (f"{s} and {t} ({share:.0%})" for s, t, share in self.successors)
            text += f", from successors {', '.join(named)}"
        return text


def nearest_pairs(certificate: Certificate, mdp: TabularMDP, k: int) -> list[NearPair]:
    """The k closest pairs of different clusters at the certificate's threshold, if it has one.

    Only links of the spanning forest are looked at: the closest link between two clusters is
    always one of them. So no two pairs tell of the same two clusters.
    """
    forest = _live_forest(certificate)
    labels = (
        np.arange(certificate.n_states) if certificate.tau is None else certificate.labels_upper
    )
    is_open = labels[forest.first] != labels[forest.second]
    links = np.flatnonzero(is_open)[:k]
    return [
        _explained(certificate, mdp, int(forest.first[link]), int(forest.second[link]))
        for link in links
    ]


def _live_forest(certificate: Certificate) -> Forest:
    """Proven links between live states; the end is none of the clusters, nor on the way."""
    end, n = certificate.terminal_state, certificate.n_states
    if end is None:
        return certificate.forests[1]
    if certificate.scope == "all":
        return upper_forest(n, certificate.ground, certificate.keys, certificate.upper, end)
    first, second = np.divmod(certificate.keys, n)
    use = (first != end) & (second != end)
    return spanning_forest(n, first[use], second[use], certificate.upper[use])


def _coupling(costs: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    if min(costs.shape) == 1:  # there is only one
        return np.outer(p / p.sum(), q / q.sum())
    return np.asarray(solve_transport(costs, p, q).coupling)


def _explained(certificate: Certificate, mdp: TabularMDP, s: int, t: int) -> NearPair:
    s, t = min(s, t), max(s, t)
    lower, upper = certificate.bounds(s, t)
    best: tuple[float, int, float, float, IntArray, IntArray, FloatArray] | None = None
    for action in range(mdp.n_actions):
        reward = abs(float(mdp.rewards[s, action] - mdp.rewards[t, action]))
        (x, p), (y, q) = mdp.successors(s, action), mdp.successors(t, action)
        costs = certificate.bounds(x[:, None], y[None, :])[1]
        parts = certificate.gamma * _coupling(costs, p, q) * costs
        future = float(parts.sum())
        if mdp.estimate is not None:
            # True rewards may be that far off, and so much mass anywhere, at D a unit.
            reward += float(mdp.estimate.reward_radius[[s, t], action].sum())
            away = float(mdp.estimate.row_radius[[s, t], action].sum())
            most = certificate.gamma * certificate.ground.starts.diameter
            future = min(most, future + away * most)
        if best is None or reward + future > best[0]:
            best = (reward + future, action, reward, future, x, y, parts)
    assert best is not None
    _, action, reward, future, x, y, parts = best
    order = np.argsort(-parts, axis=None, kind="stable")[:SOURCES]
    successors = []
    for i, j in zip(*np.unravel_index(order, parts.shape), strict=True):
        if future > 0.0 and parts[i, j] > 0.0:
            successors.append((int(x[i]), int(y[j]), float(parts[i, j] / future)))
    return NearPair(s, t, float(lower), float(upper), action, reward, future, tuple(successors))
