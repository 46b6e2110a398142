"""Who tells the state of an environment is searched for once, and again when layers change."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Certificate, TabularMDP, read_model
from bisim_abstract.errors import ExtractionError
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import (
    AbstractedEnv,
    Distractor,
    ModelEnv,
    RoomsGridEnv,
    TabularEnv,
    extract_mdp,
)
from bisim_abstract.wrappers import _source as source
from bisim_abstract.wrappers._rows import ModelRows
from bisim_abstract.wrappers._source import StateLookup, state_reader
from tests.support.abstractions import lake, rooms
from tests.support.worlds import mdps


class Counter(gym.Env[int, int]):
    """Counts to four, with a generator of its own that is made anew at each reset."""

    observation_space: gym.Space[Any] = gym.spaces.Discrete(5)
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.own = 0, np.random.default_rng(seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count += action
        return self.count, float(action), self.count == 4, False, {}


def kinds() -> list[gym.Env[Any, Any]]:
    """A table, a source, a wrapper that is a source, a closed form, and one to enumerate."""
    backgrounds = Distractor(lake(), n_background=3)
    return [lake(), rooms(), backgrounds, gym.make("Blackjack-v1"), Counter()]


@pytest.mark.parametrize("env", kinds(), ids=lambda env: type(env.unwrapped).__name__)
def test_a_lookup_says_what_a_new_reader_says(env: gym.Env[Any, Any]) -> None:
    lookup = StateLookup()
    env.reset(seed=0)
    env.action_space.seed(0)
    for k in range(60):
        assert lookup.ident(env) == state_reader(env)()
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            lookup.begin()
            env.reset(seed=k)


@pytest.mark.parametrize("env", [lake(), rooms(), Counter()], ids=["table", "source", "neither"])
@pytest.mark.parametrize("is_pickled", [False, True])
def test_copies_tell_their_own_states(env: gym.Env[Any, Any], is_pickled: bool) -> None:
    wrapped = TabularEnv(env)
    _, info = wrapped.reset(seed=0)
    twin = pickle.loads(pickle.dumps(wrapped)) if is_pickled else copy.deepcopy(wrapped)
    before = info["env_state"]
    for k in range(200):
        if wrapped._lookup.ident(wrapped.env) != before:
            break
        _, _, terminated, truncated, info = wrapped.step(k % 2)
        if terminated or truncated:
            wrapped.reset(seed=k)
    assert twin._lookup.ident(twin.env) == before
    assert twin._lookup.ident(twin.env) != wrapped._lookup.ident(wrapped.env)


def test_replaced_layers_are_noticed() -> None:
    inner: gym.Wrapper[Any, Any, Any, Any] = gym.wrappers.TimeLimit(lake(), 50)
    env = TabularEnv(gym.wrappers.TimeLimit(inner, 60))
    env.reset(seed=0)
    env.step(1)
    other = lake()
    inner.env = other  # below two wrappers
    assert env.reset(seed=1)[1]["env_state"] == 0
    other.unwrapped.s = 6  # type: ignore[attr-defined]
    assert env.step(0)[4]["env_state"] == other.unwrapped.s  # type: ignore[attr-defined]
    env.env = lake()
    env.reset(seed=0)
    env.env.unwrapped.s = 10  # type: ignore[attr-defined]
    assert env.step(0)[4]["env_state"] == env.env.unwrapped.s  # type: ignore[attr-defined]


def test_ground_steps_notice_replaced_layers(of_rooms: Certificate) -> None:
    outer: gym.Wrapper[Any, Any, Any, Any] = gym.wrappers.TimeLimit(rooms(), 50)
    env = AbstractedEnv(outer, of_rooms, dynamics="ground")
    env.reset(seed=0)
    outer.env = rooms()
    env.reset(seed=1)
    inner = outer.unwrapped
    assert isinstance(inner, RoomsGridEnv)
    for k in range(20):
        assert env.step(k % 4)[4]["env_state"] == inner.state_id()


def test_an_environment_that_changed_is_still_refused() -> None:
    env = TabularEnv(Counter())
    env.reset(seed=0)
    env.step(1)
    env.unwrapped.more = 1  # type: ignore[attr-defined]
    with pytest.raises(ExtractionError, match="a state that its model does not have"):
        env.step(1)


def test_what_readers_remember_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_EPISODES", 5)
    env = TabularEnv(Counter())
    readers = set()
    for k in range(12):
        env.reset(seed=k)
        read: Any = env._lookup._read
        readers.add(id(read.__self__))
        assert len(read.__self__._codec._kept._objects) <= 12
    assert len(readers) > 1


def test_a_source_is_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    find = source.find_source

    def counted(env: gym.Env[Any, Any]) -> Any:
        calls.append(env)
        return find(env)

    monkeypatch.setattr(source, "find_source", counted)
    env = TabularEnv(lake())
    env.reset(seed=0)
    calls.clear()
    for _ in range(3):
        env.step(0)
    assert calls == []


# -- rows of models ------------------------------------------------------------------------


@given(mdp=mdps(max_states=4, max_actions=2), uniform=st.floats(0.0, 1.0, exclude_max=True))
def test_rows_are_followed_as_their_running_sums_say(mdp: TabularMDP, uniform: float) -> None:
    rows = ModelRows(mdp)
    for row in range(mdp.n_states * mdp.n_actions):
        part = slice(mdp.indptr[row], mdp.indptr[row + 1])
        sums = np.cumsum(mdp.normalised_probs[part])
        assert rows.sums[part].tolist() == sums.tolist()
        found = np.searchsorted(sums, uniform * sums[-1], side="right")
        assert rows.follow(row, uniform) == mdp.indices[part][found]
        assert mdp.probs[part][found] > 0.0
    assert mdp.start[rows.start(uniform)] > 0.0


def test_copies_of_environments_share_rows() -> None:
    env = ModelEnv(sparse_mdp(20, seed=0))
    assert copy.deepcopy(env)._rows is env._rows
    env.reset(seed=0)
    twin = pickle.loads(pickle.dumps(env))
    for k in range(30):
        assert env.step(k % 2)[0] == twin.step(k % 2)[0]


def test_rows_of_a_model_from_a_file(tmp_path: Any) -> None:
    mdp = sparse_mdp(20, seed=0)
    mdp.save(tmp_path / "model.npz")
    env, twin = ModelEnv(mdp), ModelEnv(read_model(tmp_path / "model.npz"))
    env.reset(seed=0)
    twin.reset(seed=0)
    assert [env.step(k % 2)[:2] for k in range(30)] == [twin.step(k % 2)[:2] for k in range(30)]
    assert extract_mdp(env).fingerprint == mdp.fingerprint
