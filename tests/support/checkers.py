"""Models as model checkers have them, at random."""

from __future__ import annotations

import numpy as np

from bisim_abstract._model.explicit import ExplicitModel, Reward
from bisim_abstract._model.names import UNKNOWN, Names, Variable


def random_model(seed: int, *, n_states: int = 6, n_names: int = 3) -> ExplicitModel:
    """Any number of choices from none on, names used twice, branches to one target twice."""
    rng = np.random.default_rng(seed)
    n_choices = rng.integers(0, 4, n_states)
    n_branches = rng.integers(1, 4, int(n_choices.sum()))
    size = int(n_branches.sum())
    probs = rng.integers(1, 9, size).astype(float)
    choice_of = np.repeat(np.arange(n_branches.size), n_branches)
    probs /= np.bincount(choice_of, probs, n_branches.size)[choice_of]
    return ExplicitModel(
        choices=np.append(0, np.cumsum(n_choices)),
        branches=np.append(0, np.cumsum(n_branches)),
        targets=rng.integers(0, n_states, size),
        probs=probs,
        start=np.eye(n_states)[0],
        choice_actions=rng.integers(0, n_names, n_branches.size),
        action_names=("", "b", "c")[:n_names],
        rewards={
            "all": Reward(
                states=rng.integers(0, 3, n_states).astype(float),
                choices=rng.integers(0, 3, n_branches.size).astype(float),
                branches=rng.integers(0, 3, size).astype(float),
            ),
            "states": Reward(states=rng.integers(0, 3, n_states).astype(float)),
            "none": Reward(),
        },
        labels={"goal": np.arange(n_states) == n_states - 1},
    )


def many_names(n: int, rng: np.random.Generator) -> Names:
    return Names(
        actions=("go", "stay, or so"),
        variables=(
            Variable(name="low", values=rng.integers(-7, 9, n)),
            Variable(name="is_on", values=rng.integers(0, 2, n), words=("false", "true")),
            Variable(name="who", values=rng.integers(0, 3, n), words=("a", "ß", "日")),
            Variable(name="big", values=rng.integers(-(2**63) + 1, 2**63 - 1, n)),
            Variable(name="maybe", values=np.where(rng.random(n) < 0.5, UNKNOWN, 3)),
        ),
        labels={"Some Goal!": rng.random(n) < 0.5, "x": rng.random(n) < 0.5},
    )
