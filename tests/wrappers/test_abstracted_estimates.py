"""`AbstractedEnv` of environments that are known from samples alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    NotCertifiedError,
    TabularMDP,
    certify,
    estimate_mdp,
)
from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract.encoders import collect_transitions
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import AbstractedEnv, extract_mdp

GAMMA = 0.3


class Coin(gym.Env[Any, Any]):
    """Two rooms of two chairs, (room, chair); chance decides on the chair, actions on the room.

    Nothing tells its table, and the second room pays 1.
    """

    observation_space = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(2, start=5)))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *, ends: float = 0.0) -> None:
        self.ends, self.room, self.chair = ends, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._drawn(0), {"own": True}

    def step(self, action: Any) -> Any:
        paid = float(self.room)
        seen = self._drawn(int(action))
        return seen, paid, bool(self.np_random.random() < self.ends), False, {"own": True}

    def _drawn(self, room: int) -> tuple[int, int]:
        self.room, self.chair = room, int(self.np_random.integers(2))
        return self.room, self.chair + 5


@cache
def estimate(n: int = 40_000) -> TabularMDP:
    steps = collect_transitions(Coin(), n, seed=0)
    return estimate_mdp(steps, reward_range=(0.0, 1.0), support_bound=2, never_ends=True)


@cache
def certificate() -> Certificate:
    return certify(estimate(), GAMMA, tau=0.6)


def abstracted(**options: Any) -> AbstractedEnv:
    ground = options.pop("ground", None) or Coin()
    given: dict[str, Any] = {"mdp": estimate(), "dynamics": "ground"} | options
    return AbstractedEnv(ground, certificate(), **given)


def test_the_real_environment_is_stepped_and_clusters_are_seen() -> None:
    exact = extract_mdp(Coin())
    assert (exact.n_states, exact.is_sampled, estimate().is_sampled) == (4, False, True)
    env, twin = abstracted(), Coin()
    assert env.observation_space == gym.spaces.Discrete(2)
    seen, info = env.reset(seed=3)
    bare = twin.reset(seed=3)[0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert info["state"] == info["env_state"] == 2 * bare[0] + bare[1] - 5
        assert seen == info["cluster"] == env.labels[2 * bare[0]]
        assert info["own"]
        action = int(rng.integers(2))
        seen, reward, terminated, truncated, info = env.step(action)
        bare, paid, *_ = twin.step(action)
        assert reward == paid
        assert not terminated
        assert not truncated


@pytest.mark.parametrize("dynamics", ["ground", "aggregated"])
def test_everything_says_what_the_proof_speaks_of(dynamics: str) -> None:
    env = abstracted(dynamics=dynamics)
    words = "for the true model with probability at least 0.95"
    assert env.reset(seed=0)[1]["holds"] == words
    assert env.step(0)[4]["holds"] == words
    assert words in env.summary()
    assert words in env._repr_html_()
    assert "of an estimate" in str(env)
    assert env.deploy([0, 1]).metadata["holds"] == words
    assert words in env.certificate.summary()


def test_an_agent_is_deployed_on_real_observations() -> None:
    env = abstracted()
    agent = env.deploy([1, 0])
    for chair in (5, 6):
        for room in (0, 1):
            told = agent.predict((room, chair))[0]
            assert told == [1, 0][int(env.labels[2 * room + chair - 5])]
    with pytest.raises(InvalidArgumentError, match="no state that this agent knows"):
        agent.predict((0, 4))
    with pytest.raises(ExtractionError, match="not what states look like"):
        abstracted(read_state=lambda seen: 0).deploy([0, 0])


def test_a_reader_of_states_takes_the_place_of_numbering() -> None:
    env = abstracted(read_state=lambda seen: 2 * (1 - seen[0]))  # rooms swapped
    _, info = env.reset(seed=0)
    assert info["state"] == 2
    wrong = abstracted(read_state=lambda seen: -1)
    with pytest.raises(InvalidArgumentError, match="read_state gave"):
        wrong.reset(seed=0)
    lake = gym.make("FrozenLake-v1")
    known = certify(extract_mdp(lake), 0.9, tau=1e-9)
    with pytest.raises(InvalidArgumentError, match="leave it out"):
        AbstractedEnv(lake, known, read_state=int)


def test_observations_that_are_no_state_are_refused() -> None:
    env = abstracted(read_state=lambda seen: 7)
    with pytest.raises(ExtractionError, match=r"\(0, .\) is that of state 7, which the estimate"):
        env.reset(seed=0)
    ending = abstracted(ground=Coin(ends=1.0))
    ending.reset(seed=0)
    with pytest.raises(ExtractionError, match="the estimate has no end"):
        ending.step(0)
    boxed = gym.wrappers.TransformObservation(Coin(), np.array, gym.spaces.Box(0.0, 9.0, (2,)))
    with pytest.raises(InvalidArgumentError, match="give read_state"):
        abstracted(ground=boxed)


def test_ends_lead_to_the_number_of_the_end() -> None:
    steps = collect_transitions(Coin(ends=0.2), 30_000, seed=0)
    mdp = estimate_mdp(steps, reward_range=(0.0, 1.0), support_bound=3)
    env = AbstractedEnv(Coin(ends=1.0), certify(mdp, GAMMA, tau=0.6), dynamics="ground", mdp=mdp)
    env.reset(seed=0)
    seen, _, terminated, _, info = env.step(0)
    assert terminated
    assert seen == env.abstract_mdp.terminal_state
    assert info["state"] == mdp.terminal_state


def test_refusals_name_the_remedy() -> None:
    with pytest.raises(NotCertifiedError, match=r"mdp=estimate"):
        AbstractedEnv(Coin(), certificate())
    with pytest.raises(NotCertifiedError, match="the model that the certificate speaks of"):
        abstracted(mdp=estimate(20_000))
    fewer = gym.wrappers.TransformAction(Coin(), lambda a: a, gym.spaces.Discrete(1))
    with pytest.raises(NotCertifiedError, match="2 actions for Discrete"):
        abstracted(ground=fewer)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(5, start=-2),
        gym.spaces.MultiDiscrete(np.array([[2, 3], [1, 4]]), start=np.array([[0, 1], [7, -1]])),
        gym.spaces.Dict(
            b=gym.spaces.MultiBinary((2, 2)),
            a=gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 2]))),
        ),
    ],
    ids=str,
)
def test_numbers_are_turned_back_into_observations(space: gym.Space[Any]) -> None:
    rows = SpaceRows(space)
    assert rows.n_states is not None
    for state in range(rows.n_states):
        seen = rows.observation(state)
        assert space.contains(seen), seen
        assert int(rows.rows(seen, 1)[0]) == state
    with pytest.raises(InvalidArgumentError, match="must lie in"):
        rows.observation(rows.n_states)
