"""Steps of recorded episodes, in the interface of Minari's datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from bisim_abstract import InvalidArgumentError, estimate_mdp
from bisim_abstract._base.checks import as_generator
from bisim_abstract.errors import InvalidMDPError
from tests.support.examples import seeds


@dataclass(frozen=True)
class Episode:
    """What `minari.EpisodeData` holds."""

    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any


@dataclass
class Recorded:
    """What `minari.MinariDataset` offers."""

    episodes: list[Episode]
    observation_space: Any = field(default_factory=lambda: spaces.Discrete(3, start=1))
    action_space: Any = field(default_factory=lambda: spaces.Discrete(2, start=5))

    def iterate_episodes(self) -> Iterator[Episode]:
        return iter(self.episodes)


ENDED = Episode(
    np.array([1, 2, 3]),
    np.array([5, 6]),
    np.array([0.0, 1.0]),
    np.array([False, True]),
    np.array([False, False]),
)
CUT = Episode(np.array([2, 2]), np.array([5]), np.array([0.5]), np.array([False]), np.array([True]))


def test_what_is_cut_off_does_not_end() -> None:
    mdp = estimate_mdp(Recorded([ENDED, CUT]), reward_range=(0.0, 1.0))
    listed = estimate_mdp(
        [0, 1, 1],
        [0, 1, 0],
        [0.0, 1.0, 0.5],
        [1, 2, 1],
        [False, True, False],
        n_states=3,
        n_actions=2,
        reward_range=(0.0, 1.0),
    )
    assert mdp == listed
    assert mdp.terminal_state == 3
    assert mdp.successors(1, 0)[0].tolist() == [1]  # cut off, and stays where it was seen to be
    never = estimate_mdp(Recorded([CUT]), reward_range=(0.0, 1.0), never_ends=True)
    assert never.terminal_state is None


@seeds(10)
def test_episodes_are_the_steps_that_they_hold(seed: int) -> None:
    rng = as_generator(seed)
    episodes, steps = [], []
    for _ in range(4):
        size = int(rng.integers(1, 9))
        parts = rng.integers((3, 2), size=(size + 1, 2))
        acts, paid, ends = rng.integers(2, size=size), rng.random(size), bool(rng.integers(2))
        last = np.arange(size) == size - 1
        shown = {"a": parts[:, 0], "b": parts[:, 1]}
        episodes.append(Episode(shown, acts, paid, last & ends, last & (not ends)))
        at = 2 * parts[:, 0] + parts[:, 1]
        steps += list(zip(at[:-1], acts, paid, at[1:], last & ends, strict=True))
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(2)})
    mdp = estimate_mdp(Recorded(episodes, space, spaces.Discrete(2)), reward_range=(0.0, 1.0))
    columns: Any = [np.array(column) for column in zip(*steps, strict=True)]
    assert mdp == estimate_mdp(*columns, n_states=6, n_actions=2, reward_range=(0.0, 1.0))


def changed(**parts: Any) -> Recorded:
    return Recorded([ENDED, replace(CUT, **parts)])


REFUSED: dict[str, tuple[Callable[[], Recorded], str]] = {
    "none": (lambda: Recorded([]), "at least one episode"),
    "reals": (
        lambda: Recorded([CUT], spaces.Box(0.0, 1.0, (2,))),
        "a dataset must have finitely many observations, its space is Box",
    ),
    "vectors": (
        lambda: Recorded([CUT], action_space=spaces.Box(0.0, 1.0, (2,))),
        "a dataset must have Discrete actions, its space is Box",
    ),
    "short": (
        lambda: changed(observations=np.array([2])),
        "episode 1 must have 2 observations of the dataset's space, one more than actions",
    ),
    "outside": (
        lambda: changed(observations=np.array([2, 7])),
        "episode 1 does not fit its space: .* got 7",
    ),
    "unpaid": (lambda: changed(rewards=np.array([])), "episode 1 must have as many rewards"),
    "late": (
        lambda: Recorded([replace(ENDED, truncations=np.array([True, False]))]),
        "episode 0 goes on after it was terminated or truncated",
    ),
    "undecided": (
        lambda: changed(terminations=np.array([0.5])),
        "terminations of episode 1 must hold true or false",
    ),
    "action": (lambda: changed(actions=np.array([7])), r"actions must lie in \[0, 2\), got 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises((InvalidArgumentError, InvalidMDPError), match=words):
        estimate_mdp(make(), reward_range=(0.0, 1.0))


def test_numbers_come_with_the_dataset() -> None:
    with pytest.raises(InvalidArgumentError, match="n_states must be left out"):
        estimate_mdp(Recorded([CUT]), n_states=3, reward_range=(0.0, 1.0))
