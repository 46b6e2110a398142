"""Agents over clusters in exact arithmetic: where they end, and what they may then do.

Everything here follows from what an agent is, and from nothing that the package computes: a
learner averages over the members of a cluster with weights of its own, and a solver has the
weights of the averaged model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from bisim_abstract import TabularMDP
from bisim_abstract._abstract.value import ProvenShare
from tests.support.oracles import fractions
from tests.support.renaming import Ints, end_apart, taken
from tests.support.values import Exact, Row, largest_span, mean

Name = tuple[int, int]  # a cluster, and what one of its actions is called
Weights = Mapping[Name, Sequence[Fraction]]
Q = dict[Name, Fraction]
NOTHING = Fraction(1, 10**9)


@dataclass(frozen=True)
class Clustered:
    """A model and its clusters, and which actions of which members each name stands for."""

    mdp: TabularMDP
    model: Exact
    labels: list[int]
    renaming: Ints | None
    rows: dict[Name, list[tuple[int, int]]]

    @classmethod
    def of(
        cls, mdp: TabularMDP, gamma: float, labels: Ints, renaming: Ints | None = None
    ) -> Clustered:
        clusters = end_apart(mdp, labels)
        rows: dict[Name, list[tuple[int, int]]] = {}
        for c in range(max(clusters) + 1):
            members = [x for x in range(mdp.n_states) if clusters[x] == c]
            names = {
                a if renaming is None else int(renaming[x, a])
                for x in members
                for a in range(mdp.n_actions)
                if mdp.available[x, a]
            }
            for name in sorted(names):
                rows[c, name] = [(x, a) for x in members for a in called(mdp, renaming, x, name)]
        return cls(mdp, Exact.of(mdp, gamma), clusters, renaming, rows)

    @property
    def count(self) -> int:
        return max(self.labels) + 1

    def names(self, cluster: int) -> list[int]:
        return [name for c, name in self.rows if c == cluster]

    def lifted(self, x: int, a: int) -> Row:
        """A row, summed by clusters."""
        row: Row = {}
        for t, p in self.model.rows[x][a].items():
            row[self.labels[t]] = row.get(self.labels[t], Fraction(0)) + p
        return row

    def uniform(self) -> Weights:
        """The weights of the averaged model: members alike, and their actions of a name alike."""
        found = {}
        for key, rows in self.rows.items():
            members = [x for x, _ in rows]
            count = len(set(members))
            found[key] = [Fraction(1, count * members.count(x)) for x in members]
        return found

    def random_weights(self, rng: np.random.Generator) -> Weights:
        """Any weights: all on one row, even, or anything between."""
        found = {}
        for key, rows in self.rows.items():
            kind = int(rng.integers(3))
            drawn = np.eye(len(rows))[rng.integers(len(rows))] if kind == 0 else np.ones(len(rows))
            if kind == 2:
                drawn = np.floor(1e4 * rng.dirichlet(drawn)) + (np.arange(len(rows)) == 0)
            whole = fractions(drawn)
            found[key] = [w / sum(whole) for w in whole]
        return found

    def mixed(self, weights: Weights) -> Exact:
        """The model over clusters that a learner with these weights sees.

        What a cluster lacks is a copy of its first name's.
        """
        width = max(name for _, name in self.rows) + 1
        rewards: list[list[Fraction]] = []
        lines: list[list[Row]] = []
        for c in range(self.count):
            own = self.names(c)
            paid, rows = [], []
            for name in range(width):
                key = (c, name if name in own else own[0])
                row: Row = {}
                reward = Fraction(0)
                for (x, a), w in zip(self.rows[key], weights[key], strict=True):
                    reward += w * self.model.rewards[x][a]
                    for t, p in self.lifted(x, a).items():
                        row[t] = row.get(t, Fraction(0)) + w * p
                paid.append(reward)
                rows.append(row)
            rewards.append(paid)
            lines.append(rows)
        return Exact(rewards, lines, self.model.gamma)

    def ends(self, seen: Exact) -> Q:
        """The optimal values of actions of a model over these clusters."""
        values = seen.optimal([self.names(c)[0] for c in range(self.count)])
        return {(c, name): seen.q(values, c, name) for c, name in self.rows}

    def greedy(self, q: Q, slack: Fraction = Fraction(0)) -> list[set[int]]:
        """The names of each cluster whose values are within `slack` of the largest."""
        found = []
        for c in range(self.count):
            best = max(q[c, name] for name in self.names(c))
            found.append({name for name in self.names(c) if q[c, name] >= best - slack})
        return found

    def doings(self, names: Sequence[set[int]]) -> list[list[int]]:
        """What each state may do if its cluster is told any of some names."""
        return [
            sorted({a for n in names[c] for a in called(self.mdp, self.renaming, x, n)})
            for x, c in enumerate(self.labels)
        ]


def called(mdp: TabularMDP, renaming: Ints | None, x: int, name: int) -> list[int]:
    """The actions of a state that are called so; its first one if none is."""
    own = [
        a
        for a in range(mdp.n_actions)
        if mdp.available[x, a] and (a if renaming is None else int(renaming[x, a])) == name
    ]
    return own or [taken(mdp, renaming, x, name)]


def as_sets(choices: npt.NDArray[np.bool_]) -> list[set[int]]:
    """Choices of names, cluster by cluster."""
    return [set(np.flatnonzero(line).tolist()) for line in choices]


@dataclass(frozen=True)
class Scale:
    """The exact scale of start values, and optimal values."""

    mdp: TabularMDP
    best: list[Fraction]
    top: Fraction
    base: Fraction
    size: Fraction

    @classmethod
    def of(cls, mdp: TabularMDP, model: Exact) -> Scale:
        best = model.optimal(mdp.first_actions.tolist())
        top = mean(mdp.start, best)
        size = min(abs(top), largest_span(mdp, model.gamma))
        return cls(mdp, best, top, model.baseline(mdp.available, mdp.start), size)

    def kept(self, own: Sequence[Fraction]) -> Fraction:
        """The share of a policy with these values, where anything is at stake."""
        return 1 - (self.top - mean(self.mdp.start, own)) / (self.top - self.base)

    def check_kept(self, kept: float, own: Sequence[Fraction]) -> None:
        """A claimed share against what a policy with these values has.

        A share of 1 also says that nothing is lost but rounding: a billionth of `size`, and no
        more than a millionth of what is at stake, if that is not nothing as well.
        """
        if kept == -np.inf:
            return
        assert kept <= 1.0
        lost, gain = self.top - mean(self.mdp.start, own), self.top - self.base
        if kept == 1.0:
            is_little = lost <= NOTHING * self.size
            is_nothing = gain <= NOTHING * self.size
            assert lost == 0 or (is_little and (is_nothing or lost <= gain / 10**6))
            return
        assert gain > 0
        assert Fraction(kept) <= 1 - lost / gain

    def check(self, share: ProvenShare, own: Sequence[Fraction]) -> None:
        """Bounds, losses and kept share of agents against exact values of one of them."""
        for low, exact, best in zip(share.lower.tolist(), own, self.best, strict=True):
            assert Fraction(low) <= exact
            assert best - exact <= Fraction(share.loss)
        assert self.top - mean(self.mdp.start, own) <= Fraction(share.start_loss)
        self.check_kept(share.kept, own)
