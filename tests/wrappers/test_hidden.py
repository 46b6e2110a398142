"""What a model knows and no agent sees: generators are refused, hidden layouts are named."""

from __future__ import annotations

import collections
import importlib
import logging
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import Reading, abstract_env
from bisim_abstract.errors import ExtractionError, StochasticEnvError
from bisim_abstract.wrappers import enumerate_mdp, extract_mdp
from tests.support import ROOT
from tests.support.counting import Door

WHOLE = "for an agent that sees the whole state"


class Blind(gym.Env[Any, Any]):
    """Shows nothing but the time."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Discrete(10)
    length = 4

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return 0, {}

    def step(self, action: Any) -> Any:
        reward = float(self.outcome(int(action)))
        self.t += 1
        return self.t, reward, self.t >= self.length, False, {}

    def begin(self) -> None:
        raise NotImplementedError

    def outcome(self, action: int) -> float:
        raise NotImplementedError


class Coin(Blind):
    """Guess a coin, which a linear congruential generator throws."""

    def begin(self) -> None:
        self.x = int(self.np_random.integers(2**31))

    def outcome(self, action: int) -> float:
        self.x = (1_103_515_245 * self.x + 12_345) % 2**31
        return self.x >> 30 == action


class OneCoin(Coin):
    """Of which every episode has one throw."""

    length = 1


class EndlessCoin(Coin):
    """Without any end: there are 2**31 states."""

    length = 2**40

    def step(self, action: Any) -> Any:
        return 0, *super().step(action)[1:]


class SmallCoin(Coin):
    """A generator of so few states that all of them are enumerated."""

    def begin(self) -> None:
        self.x = int(self.np_random.integers(2**10))

    def outcome(self, action: int) -> float:
        self.x = (421 * self.x + 1_663) % 2**10
        return self.x >> 9 == action


class Pass(Coin):
    """A third action leaves the generator alone."""

    action_space = gym.spaces.Discrete(3)

    def outcome(self, action: int) -> float:
        return 0.1 if action == 2 else super().outcome(action)


def split(key: Any) -> Any:
    """Two numbers made of two, as JAX makes one key of another."""
    a, b = (int(part) for part in key)
    a = ((a ^ b >> 7) * 0x9E3779B1 + 0x85EBCA77) % 2**32
    b = ((b ^ a >> 15) * 0x2C1B3C6D + 0x297A2D39) % 2**32
    return np.array([a ^ b >> 12, b], np.uint32)


class Key(Blind):
    """A key of two numbers decides where the next step leads, which is seen a step later."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.key: Any = np.array([0, 0 if seed is None else seed], np.uint32)
        return super().reset(seed=seed)

    def begin(self) -> None:
        self.side = 0

    def step(self, action: Any) -> Any:
        self.key = split(self.key)
        self.side = int(self.key[1]) >> 31
        self.t += 1
        return self.side, float(action), self.t >= self.length, False, {}


State = collections.namedtuple("State", ["place", "key"])


class Within(Coin):
    """The generator is a part of an object that the action changes too."""

    def begin(self) -> None:
        super().begin()
        self.world: Any = SimpleNamespace(place=0, inner={"x": self.x})
        del self.x

    def outcome(self, action: int) -> float:
        inner = self.world.inner
        inner["x"] = (1_103_515_245 * inner["x"] + 12_345) % 2**31
        self.world.place += action
        return float(inner["x"] >> 30 == action)


class Tupled(Key):
    """The same in a named tuple, as functional environments have it."""

    def begin(self) -> None:
        self.state = State(0, self.key)
        self.key = np.zeros(0)

    def step(self, action: Any) -> Any:
        self.state = State(self.state.place + int(action), split(self.state.key))
        self.t += 1
        return int(self.state.key[1]) >> 31, 0.0, self.t >= self.length, False, {}


GENERATORS: list[tuple[Any, str]] = [
    (Coin, "'x'"),
    (OneCoin, "'x'"),
    (EndlessCoin, "'x'"),
    (SmallCoin, "'x'"),
    (Pass, "'x'"),
    (Key, "'key'"),
    (Within, "'world.inner'"),
    (Tupled, "'state.key'"),
]


@pytest.mark.parametrize(("kind", "name"), GENERATORS)
@pytest.mark.parametrize("starts", [None, 1, 20])
def test_generators_are_refused_by_name(kind: Any, name: str, starts: int | None) -> None:
    with pytest.raises(StochasticEnvError, match=r"is random: .* in every step") as told:
        extract_mdp(kind(), reading=Reading(starts=starts))
    assert f"is random: {name} makes" in str(told.value)
    assert "use estimate_mdp" in str(told.value)
    assert "seeds 0 and " in str(told.value)


@pytest.mark.parametrize(("kind", "freeze"), [(EndlessCoin, ("x", "t")), (Key, ("key",))])
def test_a_generator_that_is_frozen_is_refused(kind: Any, freeze: tuple[str, ...]) -> None:
    """The coin would always fall the same way."""
    with pytest.raises(StochasticEnvError, match=f"is random: '{freeze[0]}' makes"):
        enumerate_mdp(kind(), reading=Reading(freeze=freeze))


class Outliving(Coin):
    """Its generator goes on from episode to episode, whatever the seed."""

    x = 1

    def begin(self) -> None:
        pass


@pytest.mark.parametrize("freeze", [(), ("x",)])
def test_a_seed_that_decides_nothing(freeze: tuple[str, ...]) -> None:
    env = Outliving()
    env.reset()
    env.step(0)
    match = r"led to another state the second time|contradicts its table .* it paid"
    with pytest.raises(ExtractionError, match=match):
        extract_mdp(env, reading=Reading(freeze=freeze))


def test_the_environment_is_left_as_it_was() -> None:
    env = Coin()
    env.reset(seed=5)
    env.step(1)
    before = dict(vars(env)), env.np_random.bit_generator.state
    with pytest.raises(StochasticEnvError):
        extract_mdp(env)
    assert (dict(vars(env)), env.np_random.bit_generator.state) == before


class Forgetful(Coin):
    """Throws a coin by the global generator, which no seed of an episode sets."""

    def outcome(self, action: int) -> float:
        return np.random.mtrand.randint(2) == action


def test_chance_that_no_seed_decides() -> None:
    with pytest.raises(
        StochasticEnvError, match=r"after reset\(seed=\d\) and the actions .*second"
    ):
        extract_mdp(Forgetful())


# -- what is hidden and no generator -------------------------------------------------------------


class Deck(Blind):
    """Will the next card be higher? The cards that are left are hidden."""

    length = 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed)
        return self.card, info

    def begin(self) -> None:
        self.deck = self.np_random.permutation(4).tolist()
        self.card = self.deck.pop()

    def outcome(self, action: int) -> float:
        last, self.card = self.card, self.deck.pop()
        return float((self.card > last) == action)

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return self.card, *rest


class FaceDown(Deck):
    """The card is hidden too: it is another in every step, but it is the deck that decides."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, super().reset(seed=seed)[1]

    def step(self, action: Any) -> Any:
        return 0, *super().step(action)[1:]


class Noise(Blind):
    """What steps pay is drawn at reset."""

    def begin(self) -> None:
        self.noise = self.np_random.normal(size=self.length).round(2)

    def outcome(self, action: int) -> float:
        return float(action * self.noise[self.t])


class Guard(Blind):
    """Somebody walks in a circle, and is seen at one place only."""

    def begin(self) -> None:
        self.place = int(self.np_random.integers(30))

    def step(self, action: Any) -> Any:
        self.place = (self.place + 1) % 30
        return int(self.place == 0), float(action * (self.place == 0)), False, False, {}


class Door2(Blind):
    """Behind one of two doors there is a prize."""

    def begin(self) -> None:
        self.prize = int(self.np_random.integers(2))

    def outcome(self, action: int) -> float:
        return self.prize == action


@pytest.mark.parametrize("kind", [Deck, FaceDown, Noise, Guard, Door2])
def test_hidden_layouts_are_kept_and_named(kind: Any) -> None:
    mdp = extract_mdp(kind())
    assert WHOLE in mdp.metadata["conditions"]
    one = extract_mdp(kind(), reading=Reading(starts=1))
    assert one.metadata["conditions"] == ["from 1 sampled start of several"]


def test_conditions_are_in_the_summary() -> None:
    small = abstract_env(Door2(), gamma=0.9, tau=1e-9)
    count = small.mdp.metadata["starts"]
    assert f"  only      from {count} sampled starts; {WHOLE}" in small.summary()


# -- what is not hidden --------------------------------------------------------------------------


class SeenCoin(SmallCoin):
    """The generator is the observation: the whole state is seen."""

    observation_space = gym.spaces.Discrete(2**10)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        info = super().reset(seed=seed)[1]
        return (self.x, self.t), info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return (self.x, self.t), *rest


class SameCoin(SmallCoin):
    """Every episode begins with the same number, so that it can be known by heart."""

    def begin(self) -> None:
        self.x = 7


class Idle(SmallCoin):
    """A generator that decides nothing."""

    def outcome(self, action: int) -> float:
        super().outcome(action)
        return float(action)


@pytest.mark.parametrize("kind", [SeenCoin, SameCoin, Idle])
def test_what_is_seen_or_decides_nothing_is_kept(kind: Any) -> None:
    mdp = extract_mdp(kind())
    assert WHOLE not in mdp.metadata["conditions"]


class Glasses(gym.ObservationWrapper[Any, Any, Any]):
    """Shows what the environment hides."""

    def observation(self, observation: Any) -> Any:
        inner: Any = self.unwrapped
        return (observation, inner.prize)


class Counted(Door):
    """Shows how many episodes there were, which is no chance."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        return self.episodes, {}


def test_wrappers_may_show_what_is_hidden() -> None:
    assert WHOLE in extract_mdp(Door2()).metadata["conditions"]
    assert WHOLE not in extract_mdp(Glasses(Door2())).metadata["conditions"]


def test_episodes_are_counted_by_the_environment() -> None:
    mdp = extract_mdp(Counted(), reading=Reading(freeze=("steps", "episodes")))
    assert mdp.metadata["conditions"] == []


def test_tables_and_single_layouts_have_no_conditions(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert "conditions" not in extract_mdp("FrozenLake-v1").metadata
        assert extract_mdp(Door(), reading=Reading(freeze=("steps",))).metadata["conditions"] == []
    assert not caplog.records


def test_minigrid_sees_a_part_of_its_layout() -> None:
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    env = gym.make("MiniGrid-DoorKey-5x5-v0")
    mdp = extract_mdp(env, reading=Reading(starts=30))
    assert mdp.metadata["conditions"][:2] == ["from 30 sampled starts", WHOLE]
    full: Any = FullyObsWrapper(env)  # type: ignore[no-untyped-call]
    assert WHOLE not in extract_mdp(full, reading=Reading(starts=30)).metadata["conditions"]
    assert WHOLE not in extract_mdp(env, reading=Reading(starts=1)).metadata["conditions"]


# -- environments with faults --------------------------------------------------------------------


class Faulty(Door2):
    """Cannot begin as with one of its seeds."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed == 5:
            raise ZeroDivisionError("no layout")
        return super().reset(seed=seed)


def test_a_reset_that_fails_is_named() -> None:
    with pytest.raises(ZeroDivisionError, match="no layout") as told:
        extract_mdp(Faulty())
    assert any("raised by reset(seed=5) of Faulty" in note for note in told.value.__notes__)


class Breaking(Door2):
    """Fails in the second step."""

    def outcome(self, action: int) -> float:
        if self.t == 1:
            raise ZeroDivisionError("no second step")
        return 0.0


def test_a_step_that_fails_is_named() -> None:
    with pytest.raises(ZeroDivisionError, match="no second step") as told:
        extract_mdp(gym.wrappers.TimeLimit(Breaking(), 50))
    assert any("raised by step of Breaking" in note for note in told.value.__notes__)


class Locked(Door2):
    """Holds what can be neither pickled, nor copied, nor compared."""

    def begin(self) -> None:
        super().begin()
        self.look = (x for x in range(3))


class Odd(Door2):
    """Observations that cannot be compared: nothing looks like anything else."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return object(), super().reset(seed=seed)[1]


def test_attributes_and_observations_that_cannot_be_compared() -> None:
    with pytest.raises(ExtractionError, match="'look'"):
        extract_mdp(Locked())
    assert WHOLE in extract_mdp(Locked(), reading=Reading(freeze=("look",))).metadata["conditions"]
    assert WHOLE not in extract_mdp(Odd()).metadata["conditions"]


# -- Gymnasium's functional environments ---------------------------------------------------------


class JaxCoin(Coin):
    """Thrown by JAX itself."""

    def begin(self) -> None:
        jax: Any = importlib.import_module("jax")
        self.rng = jax.random.PRNGKey(int(self.np_random.integers(2**20)))

    def outcome(self, action: int) -> float:
        jax: Any = importlib.import_module("jax")
        now, self.rng = jax.random.split(self.rng)
        return bool(jax.random.bernoulli(now)) == action


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("'tabular/Blackjack-v0'", r"ExtractionError: .*random key .* 'rng'.*Extract Blackjack-v1"),
        ("'tabular/CliffWalking-v0'", r"ExtractionError: .*'rng'.*Extract CliffWalking-v1"),
        (
            "'tabular/Blackjack-v0', reading=Reading(freeze=('rng',))",
            "StochasticEnvError: .*'rng' makes a new numb",
        ),
        ("JaxCoin()", "StochasticEnvError: .*'rng' makes a new number"),
    ],
)
def test_keys_of_jax_are_refused(made: str, message: str) -> None:
    """In a process of its own: JAX starts threads, after which other tests should not fork."""
    code = (
        "from bisim_abstract import Reading\n"
        "from bisim_abstract.wrappers import extract_mdp\n"
        "from tests.wrappers.test_hidden import JaxCoin\n"
        f"extract_mdp({made})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert re.search(message, done.stderr), done.stderr
