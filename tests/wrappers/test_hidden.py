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
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Reading, abstract_env
from bisim_abstract.errors import ExtractionError, StochasticEnvError
from bisim_abstract.wrappers import enumerate_mdp, extract_mdp
from bisim_abstract.wrappers._hidden import find_pair
from tests.support import ROOT
from tests.support.counting import Door

WHOLE = "for an agent that sees the whole state"
KNOWN = "for an agent that knows which start it is"


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


class Late(Coin):
    """The coin pays from step 50 on: no episode that is played at random gets there."""

    length = 54

    def begin(self) -> None:
        self.x = 77 * int(self.np_random.integers(3))

    def outcome(self, action: int) -> float:
        return float(super().outcome(action) * (self.t >= 50))


class Pair(Blind):
    """Each of two numbers alone depends on the other."""

    def begin(self) -> None:
        self.x, self.y = self.np_random.integers(2**31, size=2).tolist()

    def outcome(self, action: int) -> float:
        self.x, self.y = self.y, (1_103_515_245 * self.x + 69_069 * self.y + 1) % 2**31
        return bool(self.y >> 30 == action)


GENERATORS: list[tuple[Any, str]] = [
    (Coin, "'x'"),
    (OneCoin, "'x'"),
    (EndlessCoin, "'x'"),
    (SmallCoin, "'x'"),
    (Pass, "'x'"),
    (Key, "'key'"),
    (Within, "'world.inner'"),
    (Tupled, "'state.key'"),
    (Pair, "'x' and 'y'"),
]


@pytest.mark.parametrize(("kind", "name"), GENERATORS)
@pytest.mark.parametrize("starts", [None, 1, 20])
def test_generators_are_refused_by_name(kind: Any, name: str, starts: int | None) -> None:
    with pytest.raises(StochasticEnvError, match=r"is random: .* in every step") as told:
        extract_mdp(kind(), reading=Reading(starts=starts))
    assert re.search(f"is random: {name} makes? a", str(told.value))
    assert "use estimate_mdp" in str(told.value)
    assert "seeds 0 and " in str(told.value)


def test_a_generator_that_decides_late_is_refused_by_the_model() -> None:
    with pytest.raises(StochasticEnvError, match=r"is random: 'x' makes .* the reward was"):
        extract_mdp(Late())
    # A single start is not compared with others: what looks like it is named.
    alone = extract_mdp(Late(), reading=Reading(starts=1))
    assert alone.metadata["conditions"] == ["from 1 sampled start of several", KNOWN]


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


class Rare(Blind):
    """A bit pays, or takes, after twelve actions 1 in a row."""

    length = 14

    def begin(self) -> None:
        self.bit, self.row = int(self.np_random.integers(2)), 0

    def outcome(self, action: int) -> float:
        self.row = self.row + 1 if action else 0
        return (2.0 * self.bit - 1.0) * (self.row == 12)


class Lucky(Rare):
    """The row goes on by luck alone; random play hardly ever sees the bit pay."""

    def outcome(self, action: int) -> float:
        self.row = self.row + 1 if self.np_random.random() < 0.125 else 0
        return (2.0 * self.bit - 1.0) * (self.row == 12)


def test_what_is_hidden_behind_chance_is_found_on_the_model() -> None:
    mdp = extract_mdp(Lucky())
    assert mdp.metadata["draws"] == ["random"]
    assert WHOLE in mdp.metadata["conditions"]
    told = extract_mdp(ShownBit(Lucky()))
    assert WHOLE not in told.metadata["conditions"]


class Round(Blind):
    """A generator that comes round after eight steps: after these, an agent knows it by heart."""

    length = 20

    def begin(self) -> None:
        self.g = int(self.np_random.integers(8))

    def outcome(self, action: int) -> float:
        self.g = (5 * self.g + 3) % 8
        return self.g >> 2 == action


class Register(Blind):
    """Bits in a list."""

    length = 6

    def begin(self) -> None:
        self.bits = [1, *self.np_random.integers(2, size=3).tolist()]

    def outcome(self, action: int) -> float:
        self.bits = [self.bits[3] ^ self.bits[2], *self.bits[:3]]
        return bool(self.bits[0] == action)


class Pointer(Blind):
    """Goes through a fixed table of coins, as a guard goes through a building."""

    coins: Any = (0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1)

    def begin(self) -> None:
        self.place = int(self.np_random.integers(13))

    def outcome(self, action: int) -> float:
        self.place = (self.place + 5) % 13
        return bool(self.coins[self.place] == action)


LAYOUTS = [Deck, FaceDown, Noise, Guard, Door2, Rare, Round, Register, Pointer]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_hidden_layouts_are_kept_and_named(kind: Any) -> None:
    mdp = extract_mdp(kind())
    assert WHOLE in mdp.metadata["conditions"]
    one = extract_mdp(kind(), reading=Reading(starts=1))
    assert one.metadata["conditions"] == ["from 1 sampled start of several", KNOWN]


class Last(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the last observations, which it remembers itself."""

    def reset(self, **options: Any) -> Any:
        seen, info = self.env.reset(**options)
        self.seen = [seen] * 3
        return tuple(self.seen), info

    def step(self, action: Any) -> Any:
        seen, *rest = self.env.step(action)
        self.seen = [*self.seen[1:], seen]
        return tuple(self.seen), *rest


def test_rare_differences_are_found_through_wrappers() -> None:
    """Also behind a limit that ends episodes before: the model has none."""
    wrapped: list[Any] = [gym.wrappers.TimeLimit(Rare(), 5), Last(Rare())]
    for env in wrapped:
        assert WHOLE in extract_mdp(env).metadata["conditions"]
    assert WHOLE not in extract_mdp(ShownBit(Rare())).metadata["conditions"]


class ShownBit(gym.ObservationWrapper[Any, Any, Any]):
    """Shows what decides."""

    def observation(self, observation: Any) -> Any:
        inner: Any = self.unwrapped
        return (observation, inner.bit)


class World(Blind):
    """What is hidden decides nothing, though it moves."""

    def begin(self) -> None:
        self.world = int(self.np_random.integers(5))

    def outcome(self, action: int) -> float:
        self.world = (self.world + 1 + action) % 5
        return float(action)


def test_what_is_hidden_and_decides_nothing_needs_no_condition() -> None:
    assert WHOLE not in extract_mdp(World()).metadata["conditions"]


def test_the_environment_and_its_wrappers_are_left_as_they_were() -> None:
    env: Any = gym.wrappers.TimeLimit(Rare(), 50)
    env.reset(seed=3)
    env.step(1)
    before = dict(vars(env.unwrapped)), env._elapsed_steps
    extract_mdp(env)
    assert (dict(vars(env.unwrapped)), env._elapsed_steps) == before


@given(st.data(), st.integers(1, 7), st.integers(1, 2))
def test_pairs_are_told_apart_exactly_if_some_actions_do(data: Any, n: int, n_actions: int) -> None:
    """Against the equivalence of all pairs, by refinement."""
    rows = st.lists(st.integers(-1, n - 1), min_size=n * n_actions, max_size=n * n_actions)
    after = np.array(data.draw(rows)).reshape(n, n_actions)
    shown = data.draw(st.lists(st.integers(0, 1), min_size=n * n_actions, max_size=n * n_actions))
    looks = np.array(shown).reshape(n, n_actions) - 2 * (after < 0)  # ends are seen
    classes = np.zeros(n, int)
    for _ in range(n):
        then = np.where(after < 0, -1, classes[after])
        told = [tuple(row) for row in np.concatenate([looks, then], axis=1)]
        classes = np.array([sorted(set(told)).index(row) for row in told])
    groups = data.draw(st.lists(st.lists(st.integers(0, n - 1), min_size=1), max_size=3))
    found = find_pair(
        groups,
        lambda _: range(n_actions),
        lambda state, action: int(after[state, action]),
        lambda one, other, action: bool(looks[one, action] != looks[other, action]),
    )
    assert (found is not None) == any(len(set(classes[group])) > 1 for group in groups)
    if found is not None:
        one, other, (*actions, last) = found
        assert any({one, other} <= set(group) for group in groups)
        for action in actions:
            assert looks[one, action] == looks[other, action]
            one, other = int(after[one, action]), int(after[other, action])
        assert looks[one, last] != looks[other, last]


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
