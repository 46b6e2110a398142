"""Environments that draw where episodes begin, or keep a part of their state out of it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import Reading, TabularMDP, abstract_env, certify, value_iteration
from bisim_abstract.errors import ExtractionError, InvalidArgumentError, StateLimitError
from bisim_abstract.wrappers import AbstractedEnv, TabularEnv, extract_mdp
from bisim_abstract.wrappers._source import StartSeeds
from tests.support.counting import Door

FROZEN = ("steps",)


class Scattered(Door):
    """Begins anywhere but at the right end."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(5))
        self.key = int(self.place == 0)
        return self._seen(), {}


class Apart(Scattered):
    """Episodes of odd places never meet those of even ones."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.world = self.place % 2
        return found


def begun(seeds: range) -> np.ndarray[Any, Any]:
    """How often episodes of these seeds begin in each place."""
    env = Scattered()
    places = [int(env.reset(seed=seed)[0][0]) for seed in seeds]
    return np.bincount(places, minlength=5)


# -- where episodes begin ------------------------------------------------------------------------


def test_one_seed_of_many_is_told(caplog: pytest.LogCaptureFixture) -> None:
    mdp = extract_mdp(Scattered(), reading=Reading(freeze=FROZEN, starts=1))
    (text,) = [record.message for record in caplog.records]
    assert "Scattered begins elsewhere with other seeds" in text
    assert "0 of them to a state that this model does not have" in text
    assert "as with seed 0; without Reading(starts=1), up to 100 seeds are taken together" in text
    assert mdp.metadata["conditions"] == ["from 1 sampled start of several"]
    caplog.clear()
    # Once is enough, in whatever copy of the environment.
    extract_mdp(Scattered(), reading=Reading(freeze=FROZEN, starts=1))
    for starts in (None, 1, 7):
        mdp = extract_mdp(Door(), reading=Reading(freeze=FROZEN, starts=starts))
        assert mdp.metadata["conditions"] == []
        assert mdp.metadata["starts"] == (starts or 1)
    assert not caplog.records


def test_by_default_as_many_seeds_as_there_are_starts_to_see(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mdp = extract_mdp(Scattered(), reading=Reading(freeze=FROZEN))
    count = mdp.metadata["starts"]
    assert 32 < count < 100
    assert mdp.metadata["conditions"] == [f"from {count} sampled starts"]
    places = begun(range(count))
    assert (places > 0).all()
    assert sorted(mdp.start[mdp.start > 0.0]) == pytest.approx(sorted(places / count))
    # The same as if that many had been requested, numbers of states included.
    again = extract_mdp(Scattered(), reading=Reading(freeze=FROZEN, starts=count))
    assert again == mdp
    assert dict(again.metadata) == dict(mdp.metadata)
    assert not caplog.records


class Spread(Door):
    """Every seed has a world of its own."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.world = seed
        return found


def test_a_hundred_seeds_at_most_and_no_advice_that_was_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worlds = extract_mdp(Spread(), reading=Reading(freeze=FROZEN))
    assert worlds.metadata["starts"] == 100
    assert (worlds.start > 0.0).sum() == 100
    assert worlds.metadata["conditions"][0] == "from 100 sampled starts"
    (text,) = [record.message for record in caplog.records]
    assert "with these 100 seeds; Reading(starts=1000), for instance" in text
    caplog.clear()
    extract_mdp(Spread(), reading=Reading(freeze=FROZEN, starts=100))
    assert not caplog.records  # the same was said
    extract_mdp(Spread(), reading=Reading(freeze=FROZEN, starts=20))
    (text,) = [record.message for record in caplog.records]
    assert "with these 20 seeds; Reading(starts=100), for instance" in text
    assert "starts=20" not in text


@pytest.mark.parametrize("most", [21, 100, 239])
def test_seeds_that_do_not_fit_are_left_out(most: int, caplog: pytest.LogCaptureFixture) -> None:
    one = (
        extract_mdp(Spread(), reading=Reading(freeze=FROZEN, starts=1)).n_states - 1
    )  # without the end
    caplog.clear()
    mdp = extract_mdp(Spread(), reading=Reading(freeze=FROZEN, max_states=most))
    count = most // one
    assert mdp.metadata["starts"] == count
    assert mdp.n_states == count * one + 1
    assert "a larger max_states has room" in caplog.text or count == 1
    with pytest.raises(StateLimitError):
        extract_mdp(Spread(), reading=Reading(freeze=FROZEN, max_states=most, starts=count + 1))
    with pytest.raises(StateLimitError):
        extract_mdp(Spread(), reading=Reading(freeze=FROZEN, max_states=one - 1))


def test_many_states_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from bisim_abstract.wrappers import enumerate as module

    monkeypatch.setattr(module, "ENOUGH", 50)
    mdp = extract_mdp(Spread(), reading=Reading(freeze=FROZEN))
    assert mdp.metadata["starts"] == 3
    assert mdp.metadata["conditions"][0] == "from 3 sampled starts"
    assert extract_mdp(Spread(), reading=Reading(freeze=FROZEN, starts=9)).metadata["starts"] == 9


@pytest.mark.parametrize("starts", [None, 1, 4])
def test_models_that_are_saved_keep_their_conditions(starts: int | None, tmp_path: Path) -> None:
    mdp = extract_mdp(Scattered(), reading=Reading(freeze=FROZEN, starts=starts))
    assert mdp.metadata["conditions"]
    mdp.save(tmp_path / "model.npz")
    again = TabularMDP.load(tmp_path / "model.npz")
    assert again.metadata["conditions"] == mdp.metadata["conditions"]
    assert again.fingerprint == mdp.with_metadata(conditions=[], time_limit=3).fingerprint


def test_a_wrapped_environment_takes_the_same_starts(caplog: pytest.LogCaptureFixture) -> None:
    env = Scattered()
    certificate = certify(extract_mdp(env, reading=Reading(freeze=FROZEN)), 0.9)
    small = AbstractedEnv(env, certificate, reading=Reading(freeze=FROZEN))
    assert AbstractedEnv(Scattered(), certificate, reading=Reading(freeze=FROZEN)).mdp == small.mdp
    count = small.mdp.metadata["starts"]
    assert f"  only      from {count} sampled starts" in small.summary()
    assert f"from {count} sampled starts" in small._repr_html_()
    assert not [record for record in caplog.records if "begins elsewhere" in record.message]


def test_several_seeds_are_taken_together(caplog: pytest.LogCaptureFixture) -> None:
    mdp = extract_mdp(Scattered(), reading=Reading(freeze=FROZEN, seed=3, starts=50))
    assert not caplog.records
    assert mdp.metadata["starts"] == 50
    counts = begun(range(3, 53))
    assert (counts > 0).all()
    assert sorted(mdp.start[mdp.start > 0.0]) == pytest.approx(sorted(counts / 50.0))
    # The states are those of one seed, which lead everywhere; only where episodes begin differs.
    alone = extract_mdp(Scattered(), reading=Reading(freeze=FROZEN, seed=3, starts=1))
    assert sorted(alone.state_ids) == sorted(mdp.state_ids)
    assert (alone.start > 0.0).sum() == 1


def test_worlds_of_other_seeds_are_told(caplog: pytest.LogCaptureFixture) -> None:
    one = extract_mdp(Apart(), reading=Reading(freeze=FROZEN, starts=1))
    assert "of them to a state that this model does not have" in caplog.text
    assert ", 0 of them" not in caplog.text
    caplog.clear()
    both = extract_mdp(Apart(), reading=Reading(freeze=FROZEN, starts=20))
    assert not caplog.records
    assert both.n_states == 2 * one.n_states - 1


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_what_is_proven_holds_wherever_episodes_begin(dynamics: str) -> None:
    small = abstract_env(
        Scattered(), gamma=0.9, reading=Reading(freeze=FROZEN, starts=50), dynamics=dynamics
    )
    values = value_iteration(small.mdp, 0.9)
    assert small.value.kept >= 0.95
    starts = {small.reset(seed=seed)[1].get("state") for seed in range(50)}
    if dynamics == "ground":
        assert starts == set(np.flatnonzero(small.mdp.start).tolist())
    agent, env = small.deploy(small.value), Scattered()
    gained = []
    for seed in range(50):
        seen, _ = env.reset(seed=seed)
        for t in range(60):
            seen, reward, is_over, _, _ = env.step(int(agent.predict(seen)[0]))
            if is_over:
                gained.append(0.9**t * float(reward))
                break
    best = float(values.upper @ small.mdp.start)
    assert sum(gained) / 50 >= 0.9 * best
    assert small.deploy(small.value).metadata["starts"] == 50


def test_tabular_steps_begin_with_each_seed_in_turn() -> None:
    env = TabularEnv(Scattered(), reading=Reading(freeze=FROZEN, starts=7))
    expected = [int(Scattered().reset(seed=seed)[0][0]) for seed in range(7)]
    assert [int(env.reset(seed=seed)[0][0]) for seed in range(14)] == expected * 2
    env.reset(seed=6)
    assert [int(env.reset()[0][0]) for _ in range(7)] == expected
    spec = env.spec
    assert spec is None or spec.to_json()


def test_a_certificate_of_other_starts_is_of_another_model() -> None:
    env = Scattered()
    mdp = extract_mdp(env, reading=Reading(freeze=FROZEN, starts=9))
    certificate = certify(mdp, 0.9)
    assert AbstractedEnv(env, certificate, reading=Reading(freeze=FROZEN, starts=9)).mdp == mdp
    assert AbstractedEnv(Scattered(), certificate, mdp=mdp).mdp == mdp
    with pytest.raises(ValueError, match="the seed and starts"):
        AbstractedEnv(env, certificate, reading=Reading(freeze=FROZEN, starts=8))


@pytest.mark.parametrize("starts", [0, -1, 1.5, "2", True, 10**7])
def test_bad_numbers_of_starts(starts: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="starts"):
        extract_mdp(Door(), reading=Reading(freeze=FROZEN, starts=starts))


def test_starts_need_no_table() -> None:
    with pytest.raises(ExtractionError, match="starts goes with environments that are enumerated"):
        extract_mdp("FrozenLake-v1", reading=Reading(starts=2))


@pytest.mark.parametrize("told", ["2", 0, -3, 1.5, None, True, [4], 10**30])
def test_what_a_file_says_of_starts_is_not_trusted(told: object) -> None:
    plain = TabularMDP.from_dense([[[1.0]]], [[0.0]])
    mdp = plain.with_metadata(method="enumeration", starts=told)
    assert StartSeeds(mdp, 5).seeds == range(5, 6)
    assert StartSeeds(mdp, 5).draw(77) == 5
    assert StartSeeds(plain, 5).draw(77) == 77
    assert StartSeeds(plain, 5).draw(None) is None


# -- what is frozen and should not be ------------------------------------------------------------


@pytest.mark.parametrize("freeze", [("steps", "key"), ("key", "steps", "guard")])
def test_a_key_is_part_of_the_state(freeze: tuple[str, ...]) -> None:
    """Random steps hardly ever bring it to the door."""
    with pytest.raises(ExtractionError, match=r"freeze names .*'key'.* part of the state") as told:
        extract_mdp(Door(), reading=Reading(freeze=freeze))
    assert "terminated was False and then True" in str(told.value)


class Bonus(Door):
    """Pays at the left end, once."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.has_paid: Any = None  # as many write it
        return found

    def step(self, action: Any) -> Any:
        seen, reward, is_over, cut, info = super().step(action)
        if self.place == 0 and self.has_paid is None:
            reward, self.has_paid = 0.5, "yes"
        return seen, reward, is_over, cut, info


def test_what_is_paid_once_is_part_of_the_state() -> None:
    assert extract_mdp(Bonus(), reading=Reading(freeze=FROZEN)).n_states > 1
    with pytest.raises(ExtractionError, match=r"the reward was 0\.5 and then 0\.0 once earlier"):
        extract_mdp(Bonus(), reading=Reading(freeze=("steps", "has_paid")))


class Diary(Door):
    """Notes where it was, which matters to nobody; in a list, and in what cannot be pickled."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.visited: list[int] = []
        self.last: Any = None
        self.look: Any = None
        return found

    def step(self, action: Any) -> Any:
        found = super().step(action)
        if self.place % 2:
            self.visited.append(self.place)
            self.last = self.place
            self.look = lambda: self.place
        return found


def test_notes_that_do_not_matter_are_frozen() -> None:
    mdp = extract_mdp(Diary(), reading=Reading(freeze=("steps", "visited", "last", "look")))
    np.testing.assert_array_equal(
        mdp.rewards, extract_mdp(Door(), reading=Reading(freeze=FROZEN)).rewards
    )


def test_counters_may_change_rewards(caplog: pytest.LogCaptureFixture) -> None:
    """As in MiniGrid, whose rewards are those of the first step."""
    pytest.importorskip("minigrid")
    with caplog.at_level(logging.WARNING):
        mdp = extract_mdp("MiniGrid-Empty-5x5-v0")
    assert mdp.metadata["frozen"] == ["step_count"]
    assert not caplog.records


class Masked(Door):
    """Cannot go left at the left end; what it pays depends on how many steps were taken."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], self._told()

    def step(self, action: Any) -> Any:
        seen, reward, is_over, cut, _ = super().step(action)
        return seen, reward / self.steps, is_over, cut, self._told()

    def _told(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.place > 0, True])}


def test_what_states_lack_is_no_step_that_leaves_a_counter_alone() -> None:
    mdp = extract_mdp(Masked(), reading=Reading(freeze=FROZEN, action_masks=True))
    assert mdp.has_action_sets
    assert mdp.rewards.max() == 1.0  # of a first step


# -- what states are called ----------------------------------------------------------------------


class Told(gym.Env[Any, Any]):
    """Attributes of many kinds, of which a few are for people."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.level, self.is_lit, self.at = 0, False, np.array([1, 0])
        self.mood: Any = None
        self.always, self.weights, self.text, self._inner = 7, np.zeros(9), "x" * 99, 0
        self.odd: Any = 1
        return 0, {}

    def step(self, action: Any) -> Any:
        self.level = (self.level + int(action) + 1) % 3
        self.is_lit, self._inner = self.level == 1, self.level
        self.at = np.array([1, 2 * self.level])
        self.mood = None if self.level == 0 else "glad"
        self.text = "x" * (99 + self.level)
        self.odd = 1 if self.level == 0 else [[self.level]]
        self.weights = np.full(9, self.level / 2)
        return self.level, 0.0, False, False, {}


def test_states_are_called_by_their_simple_attributes() -> None:
    mdp = extract_mdp(Told())
    assert [mdp.state_name(k) for k in range(3)] == [
        "level=0, is_lit=false, at[1]=0, mood=none",
        "level=1, is_lit=true, at[1]=2, mood=glad",
        "level=2, is_lit=false, at[1]=4, mood=glad",
    ]
    door = extract_mdp(Door(), reading=Reading(freeze=FROZEN))
    assert door.state_name(0) == "place=2, key=0, guard=0"  # steps are no part of it
    assert door.state_name(door.n_states - 1) == "the end"


# -- environments that are not as Gymnasium says -------------------------------------------------


class FourValues(Door):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class NoSeed(Door):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoInfo(Door):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class NoReward(Door):
    def step(self, action: Any) -> Any:
        seen, _, *rest = super().step(action)
        return seen, None, *rest


class NoActions(gym.Env[Any, Any]):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}


class NoBase:
    action_space = Door.action_space


@pytest.mark.parametrize(
    ("env", "match"),
    [
        (FourValues(), r"FourValues\.step must return .* got 4 values \(ndarray, float, bool, bo"),
        (NoSeed(), r"NoSeed\.reset must take a seed: def reset\(self, \*, seed=None"),
        (NoInfo(), r"NoInfo\.reset must return .* got ndarray alone"),
        (NoReward(), "rewards must be numbers, got None at state 0, action 0"),
        (NoActions(), "NoActions has no action_space"),
        (Door, r"env must be .*, got the class Door: make one, Door\(\)"),
        (NoBase(), "env must be a gymnasium.Env or an id, got NoBase"),
    ],
)
def test_interfaces_that_are_not_kept(env: Any, match: str) -> None:
    with pytest.raises((ExtractionError, InvalidArgumentError), match=match):
        abstract_env(env, gamma=0.9, reading=Reading(freeze=FROZEN))


# -- models that are compared with environments ----------------------------------------------------


class Paid(Door):
    """What the door pays is set when it is made."""

    def __init__(self, pay: float = 1.0) -> None:
        self.pay = pay

    def step(self, action: Any) -> Any:
        seen, reward, *rest = super().step(action)
        return seen, self.pay * reward, *rest


def test_what_is_held_still_is_compared() -> None:
    env = Paid()
    mdp = extract_mdp(env, reading=Reading(freeze=("steps", "pay")))
    certificate = certify(mdp, 0.9)
    assert AbstractedEnv(env, certificate, reading=Reading(freeze=("steps", "pay"))).mdp == mdp
    env.pay = -5.0
    with pytest.raises(ValueError, match="of another model"):
        AbstractedEnv(env, certificate, reading=Reading(freeze=("steps", "pay")))
    with pytest.raises(ValueError, match="'pay' of Paid, which its model holds still, is not what"):
        AbstractedEnv(Paid(-5.0), certificate, mdp=mdp)


@pytest.mark.parametrize("frozen", [["steps"], ["steps", "x"], 3, []])
def test_rewards_of_a_model_at_hand_are_compared(frozen: object) -> None:
    """Whatever it says was frozen."""
    true = extract_mdp(Door(), reading=Reading(freeze=FROZEN))
    rewards = np.where(true.absorbing[:, None], 0.0, np.full((1, 2), 7.0))
    forged = dataclasses.replace(true, rewards=rewards).with_metadata(frozen=frozen)
    with pytest.raises(ValueError, match="mdp is not the model of this environment"):
        AbstractedEnv(Door(), certify(forged, 0.9, tau=1e-9), mdp=forged)


class LazyCounter(gym.Env[Any, Any]):
    """A ring that counts from its first step on."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.__dict__.pop("step_count", None)
        self.place = 0
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.step_count = getattr(self, "step_count", 0) + 1
        self.place = (self.place + (1, 3)[action]) % 4
        return self.place, float(self.place == 3), False, False, {}


def test_a_counter_that_the_first_step_makes() -> None:
    env = LazyCounter()
    mdp = extract_mdp(env)
    assert (mdp.n_states, mdp.metadata["frozen"]) == (4, ["step_count"])
    small = abstract_env(LazyCounter(), gamma=0.9, dynamics="ground", keep=0.5)
    small.reset(seed=0)
    for action in (0, 1, 1, 0, 0):
        small.step(action)


def test_the_summary_says_what_is_taken_by_your_word() -> None:
    small = abstract_env(Scattered(), gamma=0.9, reading=Reading(freeze=FROZEN, seed=2, starts=30))
    assert "  frozen    steps: that it does not matter is your word" in small.summary()
    assert "  starts    as with 30 seeds, from 2 on" in small.summary()
    assert "your word" in small._repr_html_()
    assert "frozen" not in abstract_env("FrozenLake-v1", gamma=0.9).summary()


def test_names_of_a_file_do_not_reach_the_terminal_as_they_are() -> None:
    mdp = extract_mdp(Door(), reading=Reading(freeze=FROZEN)).with_metadata(
        frozen=["steps", "\x1b[31mred"]
    )
    small = AbstractedEnv(Door(), certify(mdp, 0.9), mdp=mdp)
    assert "red" in small.summary()
    assert "\x1b" not in small.summary()
