"""What a relation says of itself: `Relation`, and `Bisimulation` for those with arms and classes.

A relation has no state. One object of each is in the table (`bisim_abstract/_relations/table.py`);
whoever holds it asks for what it means, never for its name, which is for files and people.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP, action_sets
from bisim_abstract._relations.apart import apart_distance

Match = tuple[int, int]  # an action of one state, and one of the other that may stand for it


class Relation(ABC):
    """Which states are alike: its meaning, its words and how it is proven.

    Attributes:
        name: What users, files and commands call it.
        adjective: What stands before its classes and distances; empty for the usual one, of which
            nothing is said.
        alike: How states are alike by it, after "alike" or "compared".
        closeness: A sentence: what it means that two states are close.
        metric: What its distance is called.
        condition: What limits the sentence about its clusters; empty if nothing does.
        caution: A sentence: what a reader of clusters must know; empty if nothing.
        instead: Advice to whom it merges too little; empty if there is none.
        distance: What embeddings that are trained for its distance call that; empty if none is.
        methods: Names of the methods of `certify` that can prove it, the default one first.
        matches_actions: Whether any action of one state may stand for one of the other's. Actions
            of clusters and blocks then have names of their own. Otherwise actions correspond by
            name, and states with different action sets are as far apart as can be.
        has_arms: Whether its distance is bounded pair by pair, through blocks and features.
            Otherwise it is read off values of states and actions, for all pairs at once.
    """

    name: ClassVar[str]
    adjective: ClassVar[str] = ""
    alike: ClassVar[str]
    closeness: ClassVar[str]
    metric: ClassVar[str]
    condition: ClassVar[str] = ""
    caution: ClassVar[str] = ""
    instead: ClassVar[str] = ""
    distance: ClassVar[str] = ""
    methods: ClassVar[tuple[str, ...]]
    matches_actions: ClassVar[bool] = False
    has_arms: ClassVar[bool] = False

    @property
    @abstractmethod
    def above(self) -> Bisimulation:
        """A relation with arms whose distance is nowhere less: what it reads of rewards is read."""

    def check(self, mdp: TabularMDP) -> None:  # noqa: B027 - most can compare all
        """Refuse a model whose states it cannot compare."""

    def has_apart(self, available: BoolArray) -> bool:
        """Whether some states are far apart because they have different actions."""
        return not self.matches_actions and not bool(available.all())

    def sets(self, available: BoolArray) -> IntArray:
        """(n) equal numbers for states that are compared; others are far apart."""
        if self.matches_actions:
            return np.zeros(available.shape[0], np.int64)
        return action_sets(available)

    def apart(self, mdp: TabularMDP, gamma: float) -> float | None:
        """How far apart states with different actions are; None if there are none."""
        return apart_distance(mdp, gamma) if self.has_apart(mdp.available) else None

    def __repr__(self) -> str:
        return f"<relation {self.name!r}>"


class Bisimulation(Relation):
    """A relation whose distance is the fixed point of backups: it has arms, features and classes.

    The backup of two states is the largest, over `lines`, of the least that two actions of a line
    differ by: in rewards, plus gamma times the transport distance of what follows.

    Attributes:
        has_witnesses: Whether functions of single actions are below its distance.
    """

    methods = ("blocks", "covering")
    instead = "relation='optimal' may merge more, for this reward at this gamma only"
    has_arms = True
    has_witnesses: ClassVar[bool]

    @property
    def above(self) -> Bisimulation:
        """Itself."""
        return self

    # -- backups -----------------------------------------------------------------------------

    @abstractmethod
    def lines(self, one: Sequence[int], two: Sequence[int]) -> list[list[Match]]:
        """What a backup is the largest of, and in each line the matches it takes the least of.

        Args:
            one: Actions of one state, rising.
            two: Actions of the other.

        Returns:
            None are given for states that are not compared, but far apart.
        """

    def compared(self, one: Sequence[int], two: Sequence[int]) -> list[Match]:
        """All matches of the lines, each once."""
        return list(dict.fromkeys(match for line in self.lines(one, two) for match in line))

    @abstractmethod
    def n_lines(self, n_actions: int) -> int:
        """Number of lines of two states with so many actions."""

    @abstractmethod
    def n_compared(self, n_actions: int) -> int:
        """Number of matches of two states with so many actions."""

    @abstractmethod
    def n_cells(self, lengths: IntArray, first: IntArray, second: IntArray) -> IntArray:
        """(pairs) how many distances of successors a backup reads.

        Args:
            lengths: (n, n_actions) lengths of the rows of states.
            first: (pairs) one state.
            second: (pairs) the other.
        """

    # -- rewards -----------------------------------------------------------------------------

    @abstractmethod
    def span(self, mdp: TabularMDP) -> float:
        """L: no rewards that are compared in states with the same actions differ by more."""

    @abstractmethod
    def reward_span(self, low: FloatArray, high: FloatArray, *, has_all: bool) -> float:
        """The same of intervals of rewards, of whatever states, not rounded.

        Args:
            low: (n, n_actions) no reward is lower.
            high: (n, n_actions) none is higher.
            has_all: Whether all states have all actions.
        """

    @abstractmethod
    def arranged(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Intervals of rewards, in the order in which `reward_gaps` reads them; points stay one."""

    @abstractmethod
    def reward_gaps(
        self, low: FloatArray, high: FloatArray, s: IntArray, t: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """What rewards alone tell of pairs: gaps, which the true ones are not below, and spans.

        Each is off by EPS relative.

        Args:
            low: (n, n_actions) arranged; the same object as `high` if rewards are points.
            high: (n, n_actions) likewise.
            s: States of one side.
            t: Those of the other, of the same shape.
        """

    @abstractmethod
    def columns(
        self, low: FloatArray, high: FloatArray, sets: IntArray, diameter: float
    ) -> tuple[FloatArray, FloatArray]:
        """(n, k) least and most of functions whose differences are at most the gaps of rewards.

        Args:
            low: (n, n_actions) no reward is lower; not arranged.
            high: (n, n_actions) none is higher.
            sets: (n) as `sets` gives them.
            diameter: How far apart states of different sets are.
        """

    # -- features ----------------------------------------------------------------------------

    @abstractmethod
    def n_features(self, n_actions: int, *, has_sets: bool) -> int:
        """Number of value functions that give different distances, of several actions."""

    @abstractmethod
    def feature_signs(
        self, n_actions: int, count: int, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """(count, n_actions) signs and (count) kinds of value functions; there are so many."""

    @abstractmethod
    def feature_cuts(self, rewards: FloatArray, signs: IntArray) -> tuple[FloatArray, FloatArray]:
        """(count) levels at which signed rewards are cut off below and above."""
