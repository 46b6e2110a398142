"""What tells a state of one model from a state of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bisim_abstract._compare.starts import Bounds
from bisim_abstract._exact.transport import solve_transport
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.base import Bisimulation

__all__ = ["ModelDifference"]

MOST_MOVES = 3  # pairs of successors that are named
WIDEST_ROWS = 1_000_000  # cells of a transport that is solved for an explanation


@dataclass(frozen=True)
class ModelDifference:
    """Two states, one of either model, and what tells them apart.

    Attributes:
        first: State of the first model.
        second: State of the second.
        lower: Lower bound on their distance.
        upper: Upper bound on it.
        action: The action of the first under which they differ most, by lower bounds; None where
            they have different actions, and are therefore as far apart as can be.
        match: The action of the second that it is compared with: the same, unless actions may be
            renamed.
        rewards: What the action pays in the first model, and its match in the second, as stored.
        future: The discounted distance, by lower bounds, of where they lead to.
        moves: (state of the first, state of the second, mass, distance) where the future part
            comes from: so much mass goes to the one state in the first model and to the other in
            the second, which are at least so far apart. The largest parts come first. In a model
            with an end of episodes, that is a state as well.
    """

    first: int
    second: int
    lower: float
    upper: float
    action: int | None
    match: int | None
    rewards: tuple[float, float]
    future: float
    moves: tuple[tuple[int, int, float, float], ...]

    @property
    def reward_gap(self) -> float:
        """How far apart the stored rewards are."""
        return abs(self.rewards[0] - self.rewards[1])

    def to_dict(self) -> dict[str, Any]:
        """What it says, as JSON values."""
        names = ("first", "second", "lower", "upper", "action", "match", "future")
        plain = {name: getattr(self, name) for name in names}
        return plain | {"rewards": list(self.rewards), "moves": [list(x) for x in self.moves]}

    def text(self, first: TabularMDP, second: TabularMDP) -> str:
        """The same in words, for the models that it is about."""
        one, two = state_text(first, self.first), state_text(second, self.second)
        text = f"{one} and {two} of the second model, at least {self.lower:.6g} apart"
        if self.action is None:
            return f"{text}: they have different actions"
        assert self.match is not None
        one, two = first.action_name(self.action), second.action_name(self.match)
        text += f", by {one}" if one == two else f", by {one} against {two}"
        parts = []
        if self.reward_gap > 0.0:
            parts.append(f"pays {self.rewards[0]:.6g} against {self.rewards[1]:.6g}")
        for s, t, mass, _ in self.moves:
            to, too = state_text(first, s), state_text(second, t)
            parts.append(f"{mass:.1%} goes to {to} against {too}")
        return f"{text}: {', '.join(parts)}" if parts else text


def explain_difference(
    first: TabularMDP,
    second: TabularMDP,
    gamma: float,
    relation: Bisimulation,
    read: Bounds,
    s: int,
    t: int,
    lower: float,
    upper: float,
) -> ModelDifference:
    """What tells two states apart, by lower bounds on what follows."""
    one = np.flatnonzero(first.available[s]).tolist()
    two = np.flatnonzero(second.available[t]).tolist()
    lines = relation.lines(one, two)
    if not lines:
        return ModelDifference(s, t, lower, upper, None, None, (0.0, 0.0), 0.0, ())
    found: dict[tuple[int, int], tuple[float, ModelDifference]] = {}
    for a, b in relation.compared(one, two):
        (x, p), (y, q) = first.successors(s, a), second.successors(t, b)
        future, moves = 0.0, []
        if x.size * y.size <= WIDEST_ROWS:
            costs = read(x[:, None], y[None, :])[0]
            mass = np.asarray(solve_transport(costs, p, q).coupling)
            parts = mass * costs
            future = gamma * float(parts.sum())
            order = np.argsort(-parts, axis=None, kind="stable")[:MOST_MOVES]
            moves = [
                (int(x[i]), int(y[j]), float(mass[i, j]), float(costs[i, j]))
                for i, j in zip(*np.unravel_index(order, parts.shape), strict=True)
                if parts[i, j] > 1e-12 * parts.sum()
            ]
        paid = float(first.rewards[s, a]), float(second.rewards[t, b])
        made = ModelDifference(s, t, lower, upper, a, b, paid, future, tuple(moves))
        found[a, b] = made.reward_gap + future, made
    # Every action with the one of the other state that is most like it; the worst of these counts.
    return max((min((found[match] for match in line), key=_size) for line in lines), key=_size)[1]


def _size(found: tuple[float, ModelDifference]) -> float:
    return found[0]


def state_text(mdp: TabularMDP, state: int) -> str:
    """A state in words: the end, or its number with its id, where that is another, and name."""
    if state == mdp.terminal_state:
        return "the end"
    return f"state {mdp.state_text(state, with_id=True)}"
