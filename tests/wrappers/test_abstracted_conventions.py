"""`AbstractedEnv` as Gymnasium expects it: checkers, copies, specifications, pictures."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    abstract_env,
    certify,
)
from bisim_abstract.wrappers import (
    AbstractedEnv,
    Distractor,
    extract_mdp,
)
from tests.support.abstractions import GAMMA, IS_WRAPPED, Leaves, lake, rooms, walk

# -- conventions -------------------------------------------------------------------------------


@pytest.mark.filterwarnings(IS_WRAPPED)
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
@pytest.mark.parametrize("name", ["rooms", "lake"])
def test_environment_checkers(
    name: str, dynamics: str, of_rooms: Certificate, of_lake: Certificate
) -> None:
    make, certificate = (rooms, of_rooms) if name == "rooms" else (lake, of_lake)
    check_env(
        AbstractedEnv(make(render_mode="rgb_array"), certificate, dynamics=dynamics),
        skip_render_check=name == "lake",  # it would open windows
    )


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_the_checker_of_stable_baselines(of_lake: Certificate, dynamics: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other libraries warn of when they are imported
        checker = importlib.import_module("stable_baselines3.common.env_checker")
    checker.check_env(AbstractedEnv(lake(), of_lake, dynamics=dynamics))


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_copies_are_the_same(of_rooms: Certificate, path: Path, dynamics: str) -> None:
    for certificate in (of_rooms, path):
        env = AbstractedEnv(rooms(), certificate, dynamics=dynamics)
        expected = walk(env)
        for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
            assert walk(copied) == expected
            assert copied.summary() == env.summary()
        env.reset(seed=2)
        middle = copy.deepcopy(env)  # in the middle of an episode, generator included
        assert [env.step(0)[0] for _ in range(20)] == [middle.step(0)[0] for _ in range(20)]


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_making_it_from_its_specification(of_rooms: Certificate, path: Path, dynamics: str) -> None:
    env = AbstractedEnv(rooms(), path, float(of_rooms.tau or 0.0), dynamics=dynamics, require="all")
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, AbstractedEnv)
    assert again.spec == env.spec
    assert walk(again) == walk(env)
    held = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
    assert held.spec is not None
    assert walk(gym.make(held.spec)) == walk(env)
    outer: gym.Env[Any, Any] = gym.wrappers.TimeLimit(held, 5)
    for spec in (held.spec, outer.spec):
        assert spec is not None
        with pytest.raises(InvalidArgumentError, match=r"certificate\.save\(path\)"):
            spec.to_json()
    weighted = AbstractedEnv(rooms(), path, weighting=np.ones(36).tolist())
    assert weighted.spec is not None
    weighted.spec.to_json()
    assert AbstractedEnv(Leaves(), certify(extract_mdp(Leaves()), 0.9, tau=0.1)).spec is None


def test_registration_with_additional_wrappers(path: Path) -> None:
    name = "bisim_abstract_tests/AbstractRooms-v0"
    gym.register(
        name,
        entry_point="bisim_abstract.wrappers.rooms:RoomsGridEnv",
        kwargs={"side": 6, "room_size": 3, "slip": 0.4},
        max_episode_steps=10,
        additional_wrappers=(AbstractedEnv.wrapper_spec(certificate=str(path)),),
    )
    try:
        env = gym.make(name)
        assert isinstance(env, AbstractedEnv)
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(10)].index(True) == 9
        assert env.spec is not None
        assert isinstance(gym.make(env.spec), AbstractedEnv)
    finally:
        gym.registry.pop(name)


def made(path: str) -> gym.Env[Any, Any]:
    return AbstractedEnv(rooms(), path)


def test_vector_environments(path: Path) -> None:
    makers: Any = [functools.partial(made, str(path))] * 2
    together: Any = gym.vector.SyncVectorEnv(makers)
    apart: Any = gym.vector.AsyncVectorEnv(makers, context="spawn")
    try:
        seen = []
        for env in (together, apart):
            observations, info = env.reset(seed=3)
            assert info["scope"].tolist() == ["all", "all"]
            assert info["cluster"].tolist() == observations.tolist()
            steps = [env.step(np.array([k % 4, 3 - k % 4]))[0].tolist() for k in range(20)]
            seen.append([observations.tolist(), *steps])
        assert seen[0] == seen[1]
        alone = made(str(path))
        first = [int(alone.reset(seed=3)[0])] + [int(alone.step(k % 4)[0]) for k in range(20)]
        assert [row[0] for row in seen[0]] == first
    finally:
        together.close()
        apart.close()


def test_tables_in_notebooks(of_rooms: Certificate, of_lake: Certificate) -> None:
    for ground, certificate in ((rooms(), of_rooms), (lake(), of_lake)):
        env = AbstractedEnv(ground, certificate, dynamics="ground")
        text = env._repr_html_()
        assert text.startswith("<table")
        assert "<script" not in text
        assert env.certificate.verdict.sentence.split(" ")[0] in text
        assert "of the environment itself" in text
        assert "end after" in text
    env.aggregation = dataclasses.replace(env.aggregation, weighting="<b>&")
    assert "&lt;b&gt;&amp;" in env._repr_html_()


# -- showing -----------------------------------------------------------------------------------


def test_images_of_rooms(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(render_mode="rgb_array"), of_rooms, dynamics="ground")
    env.reset(seed=0)
    env.unwrapped.s = 8  # type: ignore[attr-defined]
    image = env.render()
    assert image.shape == (498, 498, 3)
    assert image.dtype == np.uint8
    at = 83 // 2
    assert tuple(image[83 + at, 2 * 83 + at]) == (20, 20, 20)
    middles = image[at::83, at::83].reshape(36, 3)
    by_cluster = {int(k): {tuple(x) for x in middles[env.labels == k].tolist()} for k in range(4)}
    assert sum(len(x - {(20, 20, 20)}) for x in by_cluster.values()) == 4

    env = AbstractedEnv(rooms(render_mode="rgb_array"), of_rooms)
    cluster, _ = env.reset(seed=0)
    middles = env.render()[at::83, at::83].reshape(36, 3).astype(int)
    shown = middles.min(axis=1)
    assert shown[env.labels == cluster].max() < shown[env.labels != cluster].min()


def test_text_of_rooms(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(render_mode="ansi"), of_rooms, dynamics="ground")
    env.reset(seed=0)
    env.unwrapped.s = 8  # type: ignore[attr-defined]
    env._cluster = int(env.labels[8])
    lines = env.render().splitlines()
    assert lines[0] == "cluster 0 of 4 (9 states), cell (1, 2)"
    assert lines[1:] == ["000111", "00@111", "000111", "222333", "222333", "222333"]
    env = AbstractedEnv(rooms(render_mode="ansi"), of_rooms)
    cluster, _ = env.reset(seed=0)
    text = env.render()
    assert text.startswith(f"cluster {cluster} of 4 (9 states)\n")
    assert text.count(str(cluster), text.index("\n")) == 9
    assert text.count(".") == 27


def test_other_environments_draw_themselves(of_lake: Certificate) -> None:
    below = AbstractedEnv(lake(render_mode="ansi"), of_lake, dynamics="ground")
    below.reset(seed=0)
    assert below.render() == below.env.render()
    env = AbstractedEnv(lake(render_mode="ansi"), of_lake)
    cluster, _ = env.reset(seed=0)
    assert env.render() == f"cluster {cluster} of {env.aggregation.n_clusters} (1 states)\n"
    # A background hides the grid's own state from its picture.
    ground = Distractor(rooms(render_mode="rgb_array"), n_background=2)
    env = AbstractedEnv(ground, certify(extract_mdp(ground), GAMMA), dynamics="aggregated")
    env.reset(seed=0)
    assert env.render().ndim == 3


def test_rendering_without_a_mode_or_a_start(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(render_mode="ansi"), of_rooms)
    with pytest.raises(ResetNeeded):
        env.render()


def test_ctrl_c_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """`certify` hands out what it has reached; a loop over `abstract_env` must end."""
    home = importlib.import_module("bisim_abstract._app.abstract_env")

    def interrupted(*args: Any, **kwargs: Any) -> Certificate:
        return dataclasses.replace(certify(*args, **kwargs), stop="interrupted in step 1", run={})

    monkeypatch.setattr(home, "certify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        abstract_env(lake(), gamma=GAMMA)
