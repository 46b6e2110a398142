"""Wrappers that change rewards: the model's are those of the outermost environment."""

from __future__ import annotations

import math
import sys
import types
from typing import Any, ClassVar, SupportsFloat

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, NormalizeReward, TransformReward
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Reading, TabularMDP, abstract_env
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import (
    AbstractedEnv,
    Distractor,
    TabularEnv,
    enumerate_mdp,
    extract_mdp,
    make_env,
)
from bisim_abstract.wrappers.tabular import extract_again
from tests.support.models import Outcome

Env = gym.Env[Any, Any]
Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class Lottery(gym.Env[Any, Any]):
    """Two states; each action leads on by chance, with rewards of chance."""

    def __init__(self, rows: list[list[Outcome]]) -> None:
        self.observation_space, self.action_space = spaces.Discrete(2), spaces.Discrete(2)
        self.initial_state_distrib = np.array([0.5, 0.5])
        self.P = {s: {a: rows[2 * s + a] for a in range(2)} for s in range(2)}
        self.s = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.s = int(self.np_random.integers(2))
        return self.s, {}

    def step(self, action: int) -> Step:
        outcomes = self.P[self.s][int(action)]
        k = self.np_random.choice(len(outcomes), p=[prob for prob, *_ in outcomes])
        _, self.s, reward, done = outcomes[k]
        return self.s, reward, done, False, {}


ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(-3, 3), st.booleans()), min_size=1, max_size=4
).map(lambda row: [(1.0 / len(row), after, float(paid), done) for after, paid, done in row])


def square(reward: SupportsFloat) -> float:
    return float(reward) ** 2 - 1.0


@given(st.lists(ROWS, min_size=4, max_size=4))
def test_functions_are_applied_before_rewards_are_averaged(rows: list[list[Outcome]]) -> None:
    env = ClipReward(TransformReward(Lottery(rows), square), max_reward=2.0)
    mdp = extract_mdp(env, reading=Reading(checks=32))
    changed = {
        s: {
            a: [(p, n, min(square(r), 2.0), done) for p, n, r, done in rows[2 * s + a]]
            for a in range(2)
        }
        for s in range(2)
    }
    assert mdp == TabularMDP.from_table(changed, start=[0.5, 0.5])
    assert mdp.metadata["reward_wrappers"] == ["ClipReward", "TransformReward"]


def test_enumerated_rewards_are_those_of_wrappers() -> None:
    plain = make_env("MiniGrid-Empty-5x5-v0")
    mdp = extract_mdp(plain)
    env = TransformReward(plain, lambda reward: 3.0 * float(reward) - 1.0)
    paid = extract_again(env, Reading())  # nothing is remembered of other wrappers
    live = np.arange(mdp.n_states) != mdp.terminal_state
    np.testing.assert_allclose(paid.rewards[live], 3.0 * mdp.rewards[live] - 1.0, atol=1e-15)
    np.testing.assert_array_equal(paid.indices, mdp.indices)
    assert extract_again(plain, Reading()) == mdp


def test_wrappers_inside_of_what_describes_itself_count() -> None:
    lake = ClipReward(make_env("FrozenLake-v1"), 0.0, 0.5)
    mdp = extract_mdp(Distractor(lake, n_background=2))
    assert mdp.rewards.max() == pytest.approx(0.5 / 3)


def test_averages_cannot_be_changed() -> None:
    env = ClipReward(make_env("Blackjack-v1"), 0.0, 1.0)
    with pytest.raises(
        ExtractionError, match="wrapper ClipReward changes rewards, but BlackjackEnv is"
    ):
        extract_mdp(env)


class Fading(gym.RewardWrapper[Any, Any]):
    """Pays less every time."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.scale = 1.0

    def reward(self, reward: SupportsFloat) -> float:
        self.scale *= 0.5
        return self.scale * float(reward)


class Marching(gym.RewardWrapper[Any, Any]):
    """Has a step of its own."""

    def step(self, action: Any) -> Step:
        return super().step(action)

    def reward(self, reward: SupportsFloat) -> SupportsFloat:
        return reward


class Bonus(gym.Wrapper[Any, Any, Any, Any]):
    """Counts visits, and pays for them."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.visits: dict[Any, int] = {}

    def step(self, action: Any) -> Step:
        found, reward, terminated, truncated, info = self.env.step(action)
        self.visits[str(found)] = self.visits.get(str(found), 0) + 1
        return found, float(reward) + 1.0 / self.visits[str(found)], terminated, truncated, info


@pytest.mark.parametrize("env_id", ["CliffWalking-v1", "MiniGrid-Empty-5x5-v0"])
@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (Fading, "wrapper Fading makes different rewards of the reward .* keeps a memory"),
        (Marching, "wrapper Marching changes rewards in a step or reset of its own"),
        (NormalizeReward, r"NormalizeReward keeps a memory \(the spread of earlier returns\)"),
        (Bonus, r"contradicts its table .* The wrapper Bonus keeps a memory \(visits\)"),
    ],
)
def test_memories_are_refused(env_id: str, wrapper: Any, message: str) -> None:
    with pytest.raises(ExtractionError, match=message):
        extract_mdp(wrapper(make_env(env_id)))


def test_bonuses_of_minigrid_are_refused() -> None:
    from minigrid.wrappers import ActionBonus, PositionBonus

    for wrapper in (ActionBonus, PositionBonus):
        with pytest.raises(ExtractionError, match=f"{wrapper.__name__} keeps a memory .how often"):
            extract_mdp(wrapper(make_env("MiniGrid-Empty-5x5-v0")))


def test_errors_of_wrappers_are_their_own() -> None:
    env = TransformReward(make_env("CliffWalking-v1"), lambda reward: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        extract_mdp(env)
    assert caught.value.__notes__ == ["raised by reward of TransformReward"]


# -- vectors of rewards --------------------------------------------------------------------------


class Treasures(gym.Env[Any, Any]):
    """A corridor that pays treasure and time."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, Any, bool, bool, dict[str, Any]]:
        self.place = min(self.place + int(action), 3)
        return self.place, np.array([float(self.place), -1.0]), self.place == 3, False, {}


class LinearReward(gym.Wrapper[Any, Any, Any, Any]):
    """As that of mo-gymnasium 1.3."""

    def __init__(self, env: Env, weight: Any) -> None:
        super().__init__(env)
        self.w = weight

    def step(self, action: Any) -> Step:
        found, vector, terminated, truncated, info = self.env.step(action)
        reward: Any = vector
        return found, np.dot(reward, self.w), terminated, truncated, info


def test_vectors_need_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExtractionError) as caught:
        extract_mdp(Treasures())
    message = str(caught.value)
    assert message.startswith("rewards of Treasures are vectors of 2 numbers; choose weights: ")
    # What the message gives works.
    told = message.partition("weights: reading=")[2]
    mdp = extract_mdp(Treasures(), reading=eval(told, {"Reading": Reading}))
    assert mdp.rewards[0].tolist() == [-1.0, 0.0]
    module = types.ModuleType("mo_gymnasium.wrappers.wrappers")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(LinearReward, "__module__", module.__name__)
    mdp = extract_mdp(LinearReward(Treasures(), np.array([2.0, 0.5])))
    assert mdp.rewards[0].tolist() == [-0.5, 1.5]


class Diver(gym.Env[Any, Any]):
    """Deep-sea treasure as in mo-gymnasium: the deeper, the more, and each step costs."""

    observation_space = spaces.Box(0, 2, (2,), np.int32)
    action_space = spaces.Discrete(4)
    reward_space = spaces.Box(np.array([0.0, -1.0]), np.array([8.2, -1.0]), dtype=np.float64)
    depths = (1, 2, 2)
    treasures: ClassVar[dict[tuple[int, ...], float]] = {(1, 0): 0.5, (2, 1): 2.8, (2, 2): 8.2}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = np.zeros(2, np.int32)
        return self.place.copy(), {}

    def step(self, action: int) -> Step:
        after = self.place + np.array([(-1, 0), (1, 0), (0, -1), (0, 1)][int(action)], np.int32)
        if (after >= 0).all() and after[1] <= 2 and after[0] <= self.depths[after[1]]:
            self.place = after
        found = self.treasures.get(tuple(self.place.tolist()), 0.0)
        paid: Any = np.array([found, -1.0], np.float32)
        return self.place.copy(), paid, found > 0.0, False, {}


def summed(weights: tuple[float, float], env: Env) -> Env:
    def total(reward: Any) -> float:
        return math.fsum([weights[0] * float(reward[0]), weights[1] * float(reward[1])])

    return TransformReward(env, total)


@given(st.tuples(st.integers(-8, 8), st.integers(-8, 8)))
def test_weights_are_those_of_a_wrapper(weights: tuple[int, int]) -> None:
    by = (weights[0] / 4.0, weights[1] / 4.0)
    reading = Reading(weights=by, checks=16)
    mdp = extract_mdp(Diver(), reading=reading)
    assert mdp == extract_mdp(summed(by, Diver()), reading=Reading(checks=16))
    assert mdp.metadata["weights"] == list(by)
    assert enumerate_mdp(Diver(), reading=reading) == mdp


@given(st.lists(ROWS, min_size=4, max_size=4))
def test_tables_of_vectors_take_weights(rows: list[list[Outcome]]) -> None:
    vectors: Any = [[(p, n, np.array([r, r * r]), done) for p, n, r, done in row] for row in rows]
    sums = [[(p, n, 2.0 * r - r * r, done) for p, n, r, done in row] for row in rows]
    mdp = extract_mdp(Lottery(vectors), reading=Reading(weights=(2.0, -1.0), checks=32))
    assert mdp == extract_mdp(Lottery(sums), reading=Reading(checks=32))
    assert mdp.metadata["weights"] == [2.0, -1.0]
    with pytest.raises(ExtractionError, match=r"Lottery are vectors of 2 .*weights=\(1.0, 1.0\)\)"):
        extract_mdp(Lottery(vectors))


def test_weights_are_paid_by_real_steps_too() -> None:
    reading = Reading(weights=(1.0, -0.5))
    env = TabularEnv(Diver(), reading=reading)
    env.reset(seed=0)
    assert env.step(3)[1] == 0.5  # 0 treasure, -1 * -0.5
    small = abstract_env(Diver(), gamma=0.9, dynamics="ground", reading=reading, tau=1e-9)
    small.reset(seed=0)
    assert small.step(1)[1] == pytest.approx(0.5 + 0.5)
    agent = small.deploy(lambda cluster: cluster % 4)
    first = small.labels[small.mdp.start.argmax()]
    assert agent.predict(np.zeros(2, np.int32))[0] == first % 4  # on the plain environment
    again = AbstractedEnv(Diver(), small.certificate, reading=reading)
    assert again.mdp == small.mdp


WEIGHTS: list[tuple[Any, Any, str]] = [
    (Diver, (1.0,), "weights has length 1, but rewards of Diver are vectors of 2; give one for"),
    (lambda: make_env("FrozenLake-v1"), (1.0, 2.0), "rewards of FrozenLakeEnv are single numbers"),
    (lambda: make_env("Blackjack-v1"), (1.0, 2.0), "BlackjackEnv is described by a model"),
    (
        lambda: TabularEnv(Diver(), reading=Reading(weights=(1.0, 1.0))),
        (1.0, 2.0),
        r"weighted already, by \[1.0, 1.0\], and weights says \(1.0, 2.0\)",
    ),
]


@pytest.mark.parametrize(("make", "weights", "words"), WEIGHTS)
def test_weights_that_do_not_fit(make: Any, weights: Any, words: str) -> None:
    with pytest.raises(ExtractionError, match=words):
        extract_mdp(make(), reading=Reading(weights=weights))
