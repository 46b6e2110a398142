"""Models whose states lack actions, and names for the actions of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from bisim_abstract import TabularMDP
from tests.support.oracles import first_appearance, lifted_exact

Ints = npt.NDArray[np.int64]


def with_random_actions(
    mdp: TabularMDP, rng: np.random.Generator, *, share: float = 0.6
) -> TabularMDP:
    """The same model, each action of each state kept with a probability, and at least one."""
    mask = rng.random(mdp.rewards.shape) < share
    mask[np.arange(mdp.n_states), rng.integers(mdp.n_actions, size=mdp.n_states)] = True
    return mdp.with_available(mask)


def end_apart(mdp: TabularMDP, labels: Sequence[int] | Ints) -> list[int]:
    """Labels by first appearance among live states, the end of episodes last."""
    live = [s for s in range(mdp.n_states) if s != mdp.terminal_state]
    names = first_appearance([int(labels[s]) for s in live])
    found = dict(zip(live, names, strict=True))
    return [found.get(s, max(names, default=-1) + 1) for s in range(mdp.n_states)]


def random_renaming(
    mdp: TabularMDP, labels: Sequence[int] | Ints, rng: np.random.Generator
) -> Ints:
    """Any names: in each cluster, a random map of each member's actions onto the same names."""
    clusters = np.array(end_apart(mdp, labels))
    renaming = np.full(mdp.rewards.shape, -1)
    for cluster in np.unique(clusters):
        members = np.flatnonzero(clusters == cluster)
        most = int(mdp.available[members].sum(axis=1).min())
        count = int(rng.integers(1, most + 1))
        for x in members:
            own = rng.permutation(np.flatnonzero(mdp.available[x]))
            renaming[x, own[:count]] = np.arange(count)
            renaming[x, own[count:]] = rng.integers(count, size=own.size - count)
    return renaming


def taken(mdp: TabularMDP, renaming: Ints | None, state: int, name: int) -> int:
    """What a state does if it is told a name: its first action of that name, or its first."""
    own = [a for a in range(mdp.n_actions) if mdp.available[state, a]]
    called = [a for a in own if (a if renaming is None else int(renaming[state, a])) == name]
    return (called or own)[0]


def lax_classes(mdp: TabularMDP) -> list[int]:
    """The coarsest partition in which states can do the same *set* of things: naive refinement."""
    labels = [0] * mdp.n_states
    while True:
        finer = first_appearance(
            [
                (
                    labels[s],
                    frozenset(
                        (
                            Fraction(float(mdp.rewards[s, a])),
                            frozenset(lifted_exact(mdp, labels, s, a).items()),
                        )
                        for a in range(mdp.n_actions)
                        if mdp.available[s, a]
                    ),
                )
                for s in range(mdp.n_states)
            ]
        )
        if max(finer) == max(labels):
            return finer
        labels = finer
