"""`AbstractedEnv` where actions of clusters are not those of the environment."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from bisim_abstract import (
    GroundAgent,
    InvalidArgumentError,
    QLearning,
    Reading,
    aggregate,
    lift_policy,
    prove_value,
    value_iteration,
)
from bisim_abstract.errors import ExtractionError, NotCertifiedError
from bisim_abstract.parts import random_mdp
from bisim_abstract.wrappers import AbstractedEnv, TabularEnv, extract_mdp
from bisim_abstract.wrappers.abstracted import _model_of, _own_actions
from tests.support.abstractions import GAMMA, IS_WRAPPED, Fork, of_fork
from tests.support.models import TAXI
from tests.support.renaming import random_renaming, taken, with_random_actions

STAY, GO = 0, 1  # what actions of the rooms are called
ROOM, HALL, END = 0, 1, 2  # clusters


def forked(dynamics: str, **options: Any) -> Any:
    return AbstractedEnv(Fork(), of_fork(), dynamics=dynamics, verify=False, **options)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_one_action_is_left_in_one_state_and_right_in_another(dynamics: str) -> None:
    env = forked(dynamics)
    assert env.action_space == gym.spaces.Discrete(2)
    assert env.observation_space == gym.spaces.Discrete(3)
    assert env.labels.tolist() == [ROOM, ROOM, HALL, END]
    rooms = set()
    for seed in range(20):
        assert env.reset(seed=seed)[0] == HALL
        observation, reward, terminated, _, info = env.step(STAY)
        assert (observation, reward, terminated) == (ROOM, 10.0, False)
        rooms.add(info.get("state"))
        observation, reward, terminated, _, _ = env.step(STAY)
        assert (observation, reward, terminated) == (ROOM, 0.0, False)
        observation, reward, terminated, _, _ = env.step(GO)
        assert (observation, reward, terminated) == (END, 1.0, True)
    assert rooms == ({0, 1} if dynamics == "ground" else {None})
    small = env.abstract_mdp
    assert small.rewards.tolist() == [[0.0, 1.0], [10.0, 10.0], [0.0, 0.0]]
    assert small.available.tolist() == [[True, True], [True, False], [True, False]]


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_masks_reach_agents(dynamics: str) -> None:
    env = forked(dynamics)
    with pytest.raises(ResetNeeded, match="before action_masks"):
        env.action_masks()
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [1, 0]
    assert info["action_mask"].dtype == np.int8
    assert env.action_masks().tolist() == [True, False]
    assert env.action_masks().dtype == np.bool_
    # What the hall lacks does what its first action does.
    observation, reward, _, _, info = env.step(GO)
    assert (observation, reward) == (ROOM, 10.0)
    assert info["action_mask"].tolist() == [1, 1]
    *_, info = env.step(GO)
    assert info["action_mask"].tolist() == [1, 0]
    env.action_masks()[:] = False  # a copy
    assert env.action_masks().tolist() == [True, False]


def test_the_mask_of_the_environment_is_not_handed_on() -> None:
    # Names are all there: the environment's own mask would be of other actions.
    renaming = [[0, 1, 0], [1, 0, 0], [0, 1, 1], [0, 1, 1]]
    found = of_fork()
    value = prove_value(extract_mdp(Fork()), found.labels_upper, GAMMA, renaming=renaming)
    env = AbstractedEnv(Fork(), found.with_proven(value), dynamics="ground", verify=False)
    assert not env.abstract_mdp.has_action_sets
    assert "action_mask" not in env.reset(seed=0)[1]
    assert env.action_masks().tolist() == [True, True]


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
@pytest.mark.parametrize("action", [-1, 2, 1.5])
def test_other_actions_are_refused(dynamics: str, action: Any) -> None:
    env = forked(dynamics)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="action must be"):
        env.step(action)


@pytest.mark.filterwarnings(IS_WRAPPED)
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_it_is_an_environment(dynamics: str) -> None:
    check_env(forked(dynamics), skip_render_check=True)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_vector_environments_and_specifications(dynamics: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.npz"
    of_fork().save(path)
    gym.register("Fork-v0", entry_point="tests.support.abstractions:Fork")
    try:
        env = AbstractedEnv(gym.make("Fork-v0"), path, dynamics=dynamics, verify=False)
        spec = env.spec
        assert spec is not None
        again = gym.make(gym.envs.registration.EnvSpec.from_json(spec.to_json()))
        assert again.action_space == gym.spaces.Discrete(2)
        assert json.loads(spec.to_json())["additional_wrappers"]
        many: Any = gym.make_vec(spec, num_envs=3, vectorization_mode="sync")
        seen, info = many.reset(seed=0)
        assert seen.tolist() == [HALL] * 3
        assert info["action_mask"].tolist() == [[1, 0]] * 3
        assert many.call("action_masks")[0].tolist() == [True, False]
        seen, rewards, *_ = many.step(np.zeros(3, int))
        assert (seen.tolist(), rewards.tolist()) == ([ROOM] * 3, [10.0] * 3)
        seen, rewards, terminated, _, info = many.step(np.array([GO, STAY, GO]))
        assert rewards.tolist() == [1.0, 0.0, 1.0]
        assert terminated.tolist() == [True, False, True]
        assert info["action_mask"].tolist() == [[1, 0], [1, 1], [1, 0]]
    finally:
        gym.registry.pop("Fork-v0")


def test_states_do_in_steps_what_lifted_policies_say() -> None:
    rng = np.random.default_rng(0)
    for seed in range(10):
        mdp = with_random_actions(random_mdp(10, 4, seed=seed), rng)
        labels = rng.integers(3, size=10)
        for renaming in (None, random_renaming(mdp, labels, rng)):
            found = aggregate(mdp, labels, renaming=renaming)
            own = _own_actions(found)
            assert own is not None
            for name in range(found.mdp.n_actions):
                told = np.full(found.mdp.n_states, name)
                assert own[:, name].tolist() == lift_policy(found, told).tolist()
                for s, cluster in enumerate(found.labels):
                    called = int(found.mdp.played(told)[cluster])
                    assert own[s, name] == taken(mdp, found.renaming, s, called)


# -- agents of the environment ---------------------------------------------------------------------


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_deployed_agents_take_the_own_actions_of_states(dynamics: str, tmp_path: Path) -> None:
    env = forked(dynamics)
    agent = env.deploy(env.value)
    assert agent.n_actions == 3
    assert agent.n_clusters == 2
    assert agent.policy.tolist() == [GO, 0, 0]
    assert [int(agent.predict(s)[0]) for s in (0, 1, 2)] == [1, 0, 0]
    assert agent.cluster(np.array([0, 1, 2])).tolist() == [ROOM, ROOM, HALL]
    assert agent.cluster(1) == ROOM
    agent.save(tmp_path / "agent.npz")
    again = GroundAgent.load(tmp_path / "agent.npz")
    assert again.predict(np.array([1, 0, 2]))[0].tolist() == [0, 1, 0]
    ground = Fork()
    for seed in range(10):
        observation, _ = ground.reset(seed=seed)
        total, is_over = 0.0, False
        for _ in range(2):
            action, _ = again.predict(observation)
            observation, reward, is_over, _, _ = ground.step(action)
            total += reward
        assert (total, is_over) == (11.0, True)
    # A deployed agent is a policy over clusters as well.
    assert env.deploy(again).policy.tolist() == agent.policy.tolist()


def test_deployed_probabilities_are_spread_over_actions_of_a_name(tmp_path: Path) -> None:
    env = forked("aggregated")
    agent = env.deploy([[0.4, 0.6], [1.0, 0.0]], seed=0)
    agent.save(tmp_path / "agent.npz")
    for some in (agent, GroundAgent.load(tmp_path / "agent.npz", seed=0)):
        for state, shares in ((0, [0.2, 0.6, 0.2]), (1, [0.6, 0.2, 0.2]), (2, [1 / 3] * 3)):
            drawn = some.predict(np.full(5_000, state))[0]
            np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 5_000, shares, atol=0.03)
        best = some.predict(np.arange(3), deterministic=True)[0]
        assert best.tolist() == [1, 0, 0]  # those of the likeliest name


def test_states_that_look_the_same_must_call_actions_the_same() -> None:
    env = AbstractedEnv(Fork(is_dark=True), of_fork(is_dark=True), verify=False)
    with pytest.raises(ExtractionError, match="do not tell what actions are called in their clus"):
        env.deploy(env.value)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_learning_on_renamed_clusters(dynamics: str) -> None:
    env: Any = gym.wrappers.TimeLimit(forked(dynamics), 20)
    agent = QLearning(env, gamma=GAMMA, epsilon=(0.5, 0.5))
    agent.learn(500)
    assert agent.policy()[:2].tolist() == [GO, 0]
    assert agent.visits[HALL, GO] == 0
    inner = env.unwrapped
    assert isinstance(inner, Fork)
    lifted = lift_policy(forked(dynamics).aggregation, agent)
    assert lifted[:2].tolist() == [1, 0]


# -- models in which states lack actions -----------------------------------------------------------


def test_a_certificate_of_masked_states_asks_for_masks() -> None:
    env = gym.make(TAXI)
    mdp = extract_mdp(env, reading=Reading(action_masks=True))
    claimed: Any = SimpleNamespace(
        fingerprint=mdp.fingerprint,
        available=mdp.available,
        rewards=mdp.rewards,
        n_states=501,
        alpha=None,
    )
    asked = Reading(max_states=1_000, starts=1)
    assert _model_of(env, claimed, None, asked) == mdp
    part = mdp.restrict(mdp.reachable())
    claimed.fingerprint, claimed.available = part.fingerprint, part.available
    assert _model_of(env, claimed, None, asked) == part
    assert (
        _model_of(TabularEnv(env, reading=Reading(action_masks=True)), claimed, None, asked) == part
    )
    claimed.fingerprint = "0" * 64
    with pytest.raises(NotCertifiedError, match="of another model"):
        _model_of(env, claimed, None, asked)
    lake = gym.make("FrozenLake-v1")
    with pytest.raises(NotCertifiedError, match="states lack actions, but FrozenLake-v1 does not"):
        _model_of(lake, claimed, None, asked)


# -- sb3-contrib -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_maskable_agents(dynamics: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contrib = importlib.import_module("sb3_contrib")
        helpers = importlib.import_module("sb3_contrib.common.maskable.utils")
        evaluation = importlib.import_module("stable_baselines3.common.evaluation")
        importlib.import_module("torch").set_num_threads(1)
    env = forked(dynamics)
    assert helpers.is_masking_supported(env)
    assert helpers.get_action_masks(_after_reset(env)).tolist() == [True, False]
    limited: Any = gym.wrappers.TimeLimit(env, 20)
    options: dict[str, Any] = {"n_steps": 128, "batch_size": 64, "learning_rate": 3e-3}
    model = contrib.MaskablePPO("MlpPolicy", limited, gamma=GAMMA, seed=0, device="cpu", **options)
    model.learn(3_000)
    told = env.deploy(model, deterministic=False, seed=0)
    assert told.policy[HALL].tolist() == [1.0, 0.0]  # nothing for what the hall lacks
    agent = env.deploy(model)
    assert agent.policy[:2].tolist() == [GO, 0]
    agent.save(tmp_path / "agent.npz")
    again = GroundAgent.load(tmp_path / "agent.npz")
    reward, _ = evaluation.evaluate_policy(again, gym.wrappers.TimeLimit(Fork(), 20))
    assert reward == 11.0
    best = value_iteration(env.abstract_mdp, GAMMA)
    assert best.policy.tolist() == agent.policy.tolist()


def _after_reset(env: AbstractedEnv) -> AbstractedEnv:
    env.reset(seed=0)
    return env
