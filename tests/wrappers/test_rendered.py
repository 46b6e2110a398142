"""Observations that are rendered: over an abstraction, beneath it, and in copies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AddRenderObservation

from bisim_abstract import Certificate, abstract_env
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import AbstractedEnv, RoomsGridEnv, TabularEnv, extract_mdp
from bisim_abstract.wrappers._source import copied_env
from tests.support.abstractions import GAMMA, lake, rooms


def framed(**kwargs: Any) -> Any:
    return AddRenderObservation(rooms(render_mode="rgb_array"), **kwargs)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
@pytest.mark.parametrize("render_only", [True, False])
def test_frames_over_an_abstraction(
    dynamics: str, render_only: bool, of_rooms: Certificate
) -> None:
    small = AbstractedEnv(rooms(render_mode="rgb_array"), of_rooms, dynamics=dynamics)
    env: Any = AddRenderObservation(small, render_only=render_only)
    seen, _ = env.reset(seed=0)
    for k in range(5):
        assert env.observation_space.contains(seen)
        pixels = seen if render_only else seen["pixels"]
        assert np.array_equal(pixels, small.render())
        if not render_only:
            assert seen["state"] == small._cluster
        seen = env.step(k % 4)[0]


@pytest.mark.parametrize("render_only", [True, False])
def test_agents_are_deployed_on_frames(render_only: bool) -> None:
    small = abstract_env(framed(render_only=render_only), gamma=GAMMA)
    agent = small.deploy(small.value)
    env = framed(render_only=render_only)
    inner = env.unwrapped
    assert isinstance(inner, RoomsGridEnv)
    policy = small.value.policy
    for seed in range(10):
        seen, _ = env.reset(seed=seed)
        cluster = small.labels[inner.state_id()]
        assert agent.predict(seen)[0] == policy[cluster]


def test_copies_show_their_own_frames() -> None:
    env = framed()
    first, _ = env.reset(seed=0)
    twin: Any = copied_env(env)
    seen, _ = twin.reset(seed=5)
    assert twin.unwrapped.s != env.unwrapped.s
    assert np.array_equal(seen, twin.render())
    assert not np.array_equal(seen, first)
    assert np.array_equal(env.render(), first)


def test_an_environment_that_has_drawn_is_still_compared_with_its_table(
    caplog: pytest.LogCaptureFixture, of_lake: Certificate
) -> None:
    """Its surfaces cannot be copied; unchecked, the steps of clusters would pass for those of P."""
    pytest.importorskip("pygame")
    env: Any = AddRenderObservation(lake(render_mode="rgb_array"))
    first, _ = env.reset(seed=0)
    assert TabularEnv(env).mdp.fingerprint == extract_mdp(lake()).fingerprint
    assert "cannot be copied" not in caplog.text
    assert np.array_equal(env.render(), first)
    small = AbstractedEnv(lake(render_mode="rgb_array"), of_lake)
    with pytest.raises(ExtractionError, match="contradicts its table"):
        extract_mdp(AddRenderObservation(small))


def test_copies_are_not_shown_to_people(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake()
    monkeypatch.setattr(env.unwrapped, "render_mode", "human")
    twin: Any = copied_env(env)
    assert (twin.unwrapped.render_mode, env.unwrapped.render_mode) == (None, "human")


def test_functions_of_wrappers_that_speak_of_nothing_are_left_alone() -> None:
    shift = 1
    env: gym.Env[Any, Any] = gym.wrappers.TransformObservation(
        lake(), lambda seen: seen + shift, gym.spaces.Discrete(17)
    )
    twin: Any = copied_env(env)
    env.reset(seed=0)
    assert twin.reset(seed=0)[0] == np.int64(1)
