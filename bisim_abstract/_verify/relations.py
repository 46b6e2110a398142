"""What relations mean to the verifier: objects and a table of its own.

They share nothing with those that make bounds (`bisim_abstract/_relations`). The rest of the
verifier asks what a relation means, and never what it is called. Why it holds is said in
`bisim_abstract/_verify/verify.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray

Match = tuple[int, int]  # an action of the first block, and one of the second
Ends = tuple[Fraction, Fraction]  # the highest and the lowest


class Relation(ABC):
    """Which actions of two blocks are compared.

    Attributes:
        name: What certificates call it.
        matches_actions: Whether any action of one block may stand for one of the other; else
            actions correspond by name, and blocks with different ones are far apart.
        has_action_values: Whether distances follow from optimal action values alone.
    """

    name: ClassVar[str]
    matches_actions: ClassVar[bool]
    has_action_values: ClassVar[bool] = False

    @abstractmethod
    def lines(self, one: Sequence[int], two: Sequence[int]) -> list[list[Match]]:
        """For each action that counts, the pairs of actions that may stand for it.

        A backup is the largest, over these lists, of the least that such actions differ by. Blocks
        that have different actions by name are not asked for.
        """

    @abstractmethod
    def reward_span(self, low: FloatArray, high: FloatArray, available: BoolArray) -> float:
        """What rewards that are compared differ by, of intervals (n, n_actions)."""

    @abstractmethod
    def exact_span(self, ends: Sequence[Ends]) -> Fraction:
        """The same of the ends of each action."""

    @abstractmethod
    def reward_ends(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(n, k) intervals of functions whose differences are at most the distance of rewards."""

    @abstractmethod
    def n_steps(self, one: IntArray, two: IntArray, steps: int) -> int:
        """How many steps backups of pairs take, whose rows have such lengths (pairs, n_actions).

        Args:
            one: Lengths of rows of the first blocks.
            two: Those of the second.
            steps: For every distance that is read.
        """

    def __repr__(self) -> str:
        return f"<relation {self.name!r}>"


class Plain(Relation):
    """Actions correspond by name."""

    name = "plain"
    matches_actions = False

    def lines(self, one: Sequence[int], two: Sequence[int]) -> list[list[Match]]:
        return [[(a, a)] for a in one]

    def reward_span(self, low: FloatArray, high: FloatArray, available: BoolArray) -> float:
        return float((high.max(axis=0) - low.min(axis=0)).max())

    def exact_span(self, ends: Sequence[Ends]) -> Fraction:
        return max(high - low for high, low in ends)

    def reward_ends(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        return low, high

    def n_steps(self, one: IntArray, two: IntArray, steps: int) -> int:
        return int((one * two * (one + two + steps)).sum())


class Optimal(Plain):
    """Actions correspond by name; distances are those of optimal action values."""

    name = "optimal"
    has_action_values = True


class Lax(Relation):
    """Every action is compared with every other."""

    name = "lax"
    matches_actions = True

    def lines(self, one: Sequence[int], two: Sequence[int]) -> list[list[Match]]:
        return [[(a, b) for b in two] for a in one] + [[(a, b) for a in one] for b in two]

    def reward_span(self, low: FloatArray, high: FloatArray, available: BoolArray) -> float:
        return float(high[available].max() - low[available].min())

    def exact_span(self, ends: Sequence[Ends]) -> Fraction:
        return max(high for high, _ in ends) - min(low for _, low in ends)

    def reward_ends(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The best and the worst reward, which Hausdorff distances are not below.

        A reward of one action says nothing. Actions that a state lacks pay what another does.
        """
        return (
            np.stack([low.min(axis=1), low.max(axis=1)], axis=1),
            np.stack([high.min(axis=1), high.max(axis=1)], axis=1),
        )

    def n_steps(self, one: IntArray, two: IntArray, steps: int) -> int:
        all_one, all_two = one.sum(axis=1), two.sum(axis=1)
        work = int((all_one * all_two * steps).sum())
        return work + int(((one**2).sum(axis=1) * all_two + all_one * (two**2).sum(axis=1)).sum())


RELATIONS: dict[str, Relation] = {
    relation.name: relation for relation in (Plain(), Lax(), Optimal())
}
