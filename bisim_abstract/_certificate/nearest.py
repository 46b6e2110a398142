"""`nearest_pairs`: the closest states that stay apart, and what keeps them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.action_values import ActionValues
from bisim_abstract._bounds.spanning import upper_forest
from bisim_abstract._exact.transport import solve_transport
from bisim_abstract._linkage.forests import Forest, spanning_forest
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.table import find_relation

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate

__all__ = ["NearPair"]

NOTHING = 1e-12  # of the future part: what is left of a coupling by rounding
SOURCES = 3  # pairs of successors that are named


@dataclass(frozen=True)
class NearPair:
    """Two states of different clusters, and where their distance comes from.

    The two parts add up to one backup of the upper bounds, which is no less than the metric; an
    estimate's confidence radii are part of them. Of optimal action values they add up to the
    difference of the values, so that one of them may be below 0.

    Attributes:
        first: One state.
        second: The other.
        lower: Lower bound on their distance.
        upper: Upper bound on it.
        action: The action of the first under which they differ most; None where they have different
            actions, and are therefore as far apart as can be.
        match: The action of the second that it is compared with: the same, unless actions may be
            renamed.
        reward: How much of it is the difference of rewards.
        future: How much is the discounted distance of what follows.
        successors: (state, state, share) pairs of successors that the future part comes from:
            the largest first, each with its share of that part.
        renaming: Where actions may be renamed, which action of the first is most like which of the
            second: (action, action) pairs for every action of the first, and for actions of the
            second that are none of these, with what they are most like.
        state_texts: These states as sentences call them, by number, where they have names.
        action_texts: The actions likewise.
    """

    first: int
    second: int
    lower: float
    upper: float
    action: int | None
    match: int | None
    reward: float
    future: float
    successors: tuple[tuple[int, int, float], ...]
    renaming: tuple[tuple[int, int], ...]
    state_texts: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)
    action_texts: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_renamed(self) -> bool:
        """Whether some action is most like one of another name."""
        return any(a != b for a, b in self.renaming)

    def action_text(self) -> str:
        """The action under which they differ most; where actions are renamed, how."""
        if self.action is None:
            return "not the same ones"
        if not self.is_renamed:
            return self._action(self.action)
        assert self.match is not None
        changed = ", ".join(
            f"{self._action(a)} as {self._action(b)}" for a, b in self.renaming if a != b
        )
        return f"{self._action(self.action)} against {self._action(self.match)}, taking {changed}"

    @property
    def parts(self) -> tuple[str, str]:
        """The parts as people read them: shares, or amounts where they work against each other."""
        parts = self.reward, self.future
        if min(parts) < 0.0:
            return f"{self.reward:.3g}", f"{self.future:.3g}"
        total = sum(parts)
        first, second = (f"{v / total:.0%}" if total > 0.0 else "–" for v in parts)
        return first, second

    def _action(self, action: int) -> str:
        return self.action_texts.get(action, f"{action}")

    def _state(self, state: int) -> str:
        return self.state_texts.get(state, f"{state}")

    def __str__(self) -> str:
        text = f"states {self._state(self.first)} and {self._state(self.second)}, "
        text += f"{self.lower:.4g} to {self.upper:.4g} apart"
        if self.action is None:
            return f"{text}, as they have different actions"
        text += f", by action {self.action_text()}"
        if self.reward == self.future == 0.0:
            return text
        text += f": {self.parts[0]} reward, {self.parts[1]} future"
        if self.successors:
            named = (
                f"{self._state(s)} and {self._state(t)} ({share:.0%})"
                for s, t, share in self.successors
            )
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
        explain_pair(certificate, mdp, int(forest.first[link]), int(forest.second[link]))
        for link in links
    ]


def _live_forest(certificate: Certificate) -> Forest:
    """Proven links between live states; the end is none of the clusters, nor on the way."""
    end, n = certificate.terminal_state, certificate.n_states
    if end is None:
        return certificate.forests[1]
    known, starts = certificate.action_values, certificate.ground.starts
    if known is not None:  # a set of its own, the last one, is linked by one edge
        sets = np.where(np.arange(n) == end, starts.sets.max() + 1, starts.sets)
        upper = known.forests(sets, starts.diameter)[1]
        use = (upper.first != end) & (upper.second != end)
        return Forest(n, upper.weights[use], upper.first[use], upper.second[use])
    if certificate.scope == "all":
        return upper_forest(n, certificate.ground, certificate.keys, certificate.upper, end)
    first, second = np.divmod(certificate.keys, n)
    use = (first != end) & (second != end)
    return spanning_forest(n, first[use], second[use], certificate.upper[use])


def _coupling(costs: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    if min(costs.shape) == 1:  # there is only one
        return np.outer(p / p.sum(), q / q.sum())
    return np.asarray(solve_transport(costs, p, q).coupling)


@dataclass(frozen=True)
class _Difference:
    """What an action of one state and one of the other differ by."""

    reward: float
    future: float
    states: IntArray
    others: IntArray
    parts: FloatArray  # of the future, by pair of successors

    @property
    def total(self) -> float:
        return self.reward + self.future


def _difference(
    certificate: Certificate, mdp: TabularMDP, s: int, a: int, t: int, b: int
) -> _Difference:
    reward = abs(float(mdp.rewards[s, a] - mdp.rewards[t, b]))
    (x, p), (y, q) = mdp.successors(s, a), mdp.successors(t, b)
    costs = certificate.bounds(x[:, None], y[None, :])[1]
    parts = certificate.gamma * _coupling(costs, p, q) * costs
    future = float(parts.sum())
    if mdp.estimate is not None:
        # True rewards may be that far off, and so much mass anywhere, at D a unit.
        radius = mdp.estimate.reward_radius
        reward += float(radius[s, a] + radius[t, b])
        away = float(mdp.estimate.row_radius[s, a] + mdp.estimate.row_radius[t, b])
        most = certificate.gamma * certificate.ground.starts.diameter
        future = min(most, future + away * most)
    return _Difference(reward, future, x, y, parts)


def explain_pair(certificate: Certificate, mdp: TabularMDP, s: int, t: int) -> NearPair:
    """What keeps two live states apart."""
    s, t = min(s, t), max(s, t)
    lower, upper = (float(bound) for bound in certificate.bounds(s, t))
    one, two = (np.flatnonzero(mdp.available[x]).tolist() for x in (s, t))
    relation = find_relation(certificate.relation).above
    lines = relation.lines(one, two)
    if not lines:
        texts = _state_texts(mdp, (s, t))
        return NearPair(s, t, lower, upper, None, None, 0.0, 0.0, (), (), texts)
    if certificate.action_values is not None:
        return _by_values(certificate, certificate.action_values, mdp, s, t)
    found = {
        (a, b): _difference(certificate, mdp, s, a, t, b) for a, b in relation.compared(one, two)
    }
    # Each action with the one of the other state that is most like it; of several, the one of the
    # same name.
    rank = {key: (x.total, key[0] != key[1]) for key, x in found.items()}
    closest = [min(line, key=rank.__getitem__) for line in lines]
    renaming = closest[: len(one)]
    renaming += [(a, b) for a, b in closest[len(one) :] if b not in {y for _, y in renaming}]
    action, match = max(closest, key=lambda k: found[k].total)
    worst = found[action, match]
    order = np.argsort(-worst.parts, axis=None, kind="stable")[:SOURCES]
    successors = []
    for i, j in zip(*np.unravel_index(order, worst.parts.shape), strict=True):
        if worst.parts[i, j] > NOTHING * worst.future:
            share = float(worst.parts[i, j] / worst.future)
            successors.append((int(worst.states[i]), int(worst.others[j]), share))
    met = {s, t, *(x for pair in successors for x in pair[:2])}
    named = {} if mdp.names.actions is None else {a: mdp.action_text(a) for a in {*one, *two}}
    return NearPair(
        s,
        t,
        lower,
        upper,
        action,
        match,
        worst.reward,
        worst.future,
        tuple(successors),
        tuple(renaming) if relation.matches_actions else (),
        _state_texts(mdp, met),
        named,
    )


def _by_values(
    certificate: Certificate, known: ActionValues, mdp: TabularMDP, s: int, t: int
) -> NearPair:
    """What keeps two states apart whose optimal action values differ."""
    values = known.values
    best = values.max(axis=1)
    own = np.flatnonzero(mdp.available[s])
    action = int(own[np.abs(values[s, own] - values[t, own]).argmax()])
    sign = 1.0 if values[s, action] >= values[t, action] else -1.0

    def ahead(state: int) -> float:
        states, probs = mdp.successors(state, action)
        return certificate.gamma * float(probs @ best[states]) / float(probs.sum())

    named = {} if mdp.names.actions is None else {action: mdp.action_text(action)}
    lower, upper = (float(bound) for bound in certificate.bounds(s, t))
    return NearPair(
        s,
        t,
        lower,
        upper,
        action,
        action,
        sign * float(mdp.rewards[s, action] - mdp.rewards[t, action]) + 0.0,
        sign * (ahead(s) - ahead(t)) + 0.0,
        (),
        (),
        _state_texts(mdp, (s, t)),
        named,
    )


def _state_texts(mdp: TabularMDP, states: Iterable[int]) -> dict[int, str]:
    """States as sentences call them, if the model has names for any."""
    return {state: mdp.state_text(state) for state in states} if mdp.names.variables else {}
