"""Models as environments: their steps, their description, and agents that learn on them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given

from bisim_abstract import (
    QLearning,
    Reading,
    TabularMDP,
    abstract_env,
    certify,
    lift_policy,
    value_iteration,
)
from bisim_abstract.errors import ExtractionError, FileFormatError, InvalidArgumentError
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import AbstractedEnv, Distractor, ModelEnv, TabularEnv, extract_mdp
from bisim_abstract.wrappers.model_env import MAX_STEPS
from tests.support.worlds import mdps

ID = "bisim_abstract/Model-v0"
GAMMA = 0.9


class Sketch:
    """As much of a graph of NetworkX as is read."""

    def __init__(self) -> None:
        self._edges: list[tuple[Any, Any, dict[str, Any]]] = []

    def add_edge(self, begin: Any, end: Any, **data: Any) -> None:
        self._edges.append((begin, end, data))

    def is_directed(self) -> bool:
        return True

    def nodes(self, data: bool) -> list[tuple[Any, dict[str, Any]]]:
        ends = [node for edge in self._edges for node in edge[:2]]
        return [(node, {}) for node in dict.fromkeys(ends)]

    def edges(self, data: bool) -> list[tuple[Any, Any, dict[str, Any]]]:
        return self._edges


def road(length: int = 5, *, has_jump: bool = True) -> TabularMDP:
    """Cells with two lanes that do not matter, a goal and a pit; only some cells can be jumped."""
    graph = Sketch()
    for cell in range(length):
        for lane in "lr":
            here, ahead = (cell, lane), [(cell + 1, "l"), (cell + 1, "r")]
            is_last = cell + 1 == length
            for to in ["goal"] if is_last else ahead:
                share = 0.9 if is_last else 0.45
                graph.add_edge(
                    here, to, action="walk", probability=share, reward=float(to == "goal")
                )
            graph.add_edge(here, "pit", action="walk", probability=0.1)
            graph.add_edge(here, here, action="wait")
            if has_jump and cell == 1:
                graph.add_edge(here, "goal", action="jump", probability=0.5, reward=1.0)
                graph.add_edge(here, "pit", action="jump", probability=0.5)
    return TabularMDP.from_graph(graph, start={(0, "l"): 0.5, (0, "r"): 0.5})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    road().save(tmp_path / "road.npz")
    return tmp_path / "road.npz"


@pytest.mark.filterwarnings("ignore:.*not having a spec")
def test_gymnasium_finds_nothing_wrong(file: Path) -> None:
    check_env(ModelEnv(road()), skip_render_check=True)
    check_env(gym.make(ID, path=str(file)).unwrapped)


def test_steps_are_those_of_the_model() -> None:
    mdp = road()
    env = ModelEnv(mdp)
    rng = np.random.default_rng(0)
    counts = np.zeros((mdp.n_states, mdp.n_actions, mdp.n_states))
    starts = np.zeros(mdp.n_states)
    env.reset(seed=0)
    is_over = True
    for _ in range(6_000):
        if is_over:
            before, info = env.reset()
            starts[before] += 1
        assert info["state_name"] == mdp.state_name(int(before))
        assert info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == mdp.available[before].tolist()
        assert env.action_masks().tolist() == mdp.available[before].tolist()
        assert env.state_id() == mdp.state_ids[before]
        own = np.flatnonzero(mdp.available[before])
        action = own[rng.integers(own.size)]
        after, reward, is_over, truncated, info = env.step(action)
        assert isinstance(after, np.int64)
        assert reward == mdp.rewards[before, action]
        assert is_over == mdp.absorbing[after]
        assert not truncated
        counts[before, action, after] += 1
        before = after
    totals = counts.sum(axis=2)
    kernel = mdp.kernel().toarray().reshape(counts.shape)
    assert (counts[kernel == 0.0] == 0).all()
    seen = totals > 100
    assert seen.sum() > 5
    shares = counts[seen] / totals[seen][:, None]
    assert np.abs(shares - kernel[seen]).max() < 0.15
    np.testing.assert_allclose(starts / starts.sum(), mdp.start, atol=0.06)


def test_what_a_state_lacks_does_what_its_first_action_does() -> None:
    mdp = road()
    env = ModelEnv(mdp)
    jump = mdp.names.actions.index("jump")  # type: ignore[union-attr]
    assert not mdp.available[0, jump]
    found = []
    for action in (jump, int(mdp.first_actions[0])):
        env.reset(seed=3, options={"state": 0})
        found.append([env.step(np.int64(action))[:2] for _ in range(1)])
    assert found[0] == found[1]


def test_seeds_and_states_are_followed() -> None:
    env = ModelEnv(sparse_mdp(20, seed=0))

    def walk() -> list[int]:
        seen = [int(env.reset(seed=7)[0])]
        return seen + [int(env.step(np.int64(k % 2))[0]) for k in range(20)]

    assert walk() == walk()
    assert len(set(walk())) > 5
    for state in (0, np.int64(13), np.array(19)):
        assert env.reset(options={"state": state})[0] == state
    for wrong in (20, -1, 0.5, "home"):
        with pytest.raises(InvalidArgumentError, match='options\\["state"\\] must be'):
            env.reset(options={"state": wrong})
    for wrong in (4, -1, 0.5):
        with pytest.raises(InvalidArgumentError, match="action must be"):
            env.step(wrong)  # type: ignore[arg-type]
    fresh = ModelEnv(road())
    with pytest.raises(ResetNeeded):
        fresh.step(np.int64(0))
    with pytest.raises(ResetNeeded):
        fresh.action_masks()


@given(mdps())
def test_it_describes_itself(mdp: TabularMDP) -> None:
    mdp = mdp.with_names(states=[f"s{k}" for k in range(mdp.n_states)])
    found = extract_mdp(ModelEnv(mdp), reading=Reading(checks=16))
    assert found == mdp
    assert [found.state_name(s) for s in range(mdp.n_states)] == [
        mdp.state_name(s) for s in range(mdp.n_states)
    ]


@pytest.mark.parametrize(
    "name", ["FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1", "MiniGrid-Empty-5x5-v0"]
)
def test_models_of_environments(name: str) -> None:
    if name.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    mdp = extract_mdp(name)
    found = extract_mdp(ModelEnv(mdp))
    assert found == mdp
    assert found.names.actions == mdp.names.actions
    assert found.metadata["model_of"] == name
    assert found.metadata["method"] == "model"  # not "enumeration", which is of one seed
    part = extract_mdp(ModelEnv(mdp), reading=Reading(reachable_only=True))
    assert part == mdp.restrict(mdp.reachable())
    env = TabularEnv(ModelEnv(mdp), reading=Reading(reachable_only=True))
    for k in range(50):
        _, info = env.reset(seed=k)
        is_over = False
        for _ in range(20):
            _, _, is_over, _, info = env.step(env.action_space.sample())
            assert env.mdp.state_ids[info["state"]] == info["env_state"]
            if is_over:
                assert info["state"] == env.mdp.terminal_state
                break


def test_masks_are_told() -> None:
    mdp = road()
    assert extract_mdp(ModelEnv(mdp), reading=Reading(action_masks=True)) == mdp
    plain = road(has_jump=False)
    assert extract_mdp(ModelEnv(plain), reading=Reading(action_masks=True)) == plain


def test_files_ids_and_specifications(file: Path, tmp_path: Path) -> None:
    env = gym.make(ID, path=str(file))
    assert extract_mdp(env) == road()
    assert env.spec is not None
    assert env.spec.max_episode_steps == MAX_STEPS
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert extract_mdp(again) == road()
    assert extract_mdp(ModelEnv(path=file)) == road()
    certificate = certify(road(), GAMMA)
    certificate.save(tmp_path / "certificate.npz")
    small = AbstractedEnv(env, tmp_path / "certificate.npz")
    assert small.spec is not None
    twin: Any = gym.make(EnvSpec.from_json(small.spec.to_json()))
    assert twin.observation_space == small.observation_space


def test_what_cannot_be_an_environment(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="either a model or the path"):
        ModelEnv()
    with pytest.raises(InvalidArgumentError, match="either a model or the path"):
        ModelEnv(road(), path="m.npz")
    with pytest.raises(InvalidArgumentError, match="must be a TabularMDP, got str"):
        ModelEnv("m.npz")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        ModelEnv(path=tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"bad")
    with pytest.raises(FileFormatError):
        ModelEnv(path=tmp_path / "bad.npz")
    with pytest.raises(InvalidArgumentError, match="render_mode must be one of 'ansi'"):
        ModelEnv(road(), render_mode="human")
    eye = np.eye(2)[:, None]
    nameless = TabularMDP.from_dense(eye, [0.0, 1.0], state_ids=[-1, -1])
    with pytest.raises(InvalidArgumentError, match="got -1 at state 0"):
        ModelEnv(nameless)
    over = TabularMDP.from_dense(eye, [0.0, 1.0], terminal_state=0, start=[0.5, 0.5])
    with pytest.raises(InvalidArgumentError, match="must not start at the end"):
        ModelEnv(over)


def test_it_is_shown_as_text() -> None:
    env = ModelEnv(road(), render_mode="ansi")
    env.reset(seed=0, options={"state": 0})
    assert env.render() == "(0, 'l')\n"
    env.step(np.int64(env.mdp.names.actions.index("wait")))  # type: ignore[union-attr]
    assert env.render() == "wait paid 0\n(0, 'l')\n"
    silent = ModelEnv(road())
    silent.reset(seed=0)
    with pytest.warns(UserWarning, match="needs a render mode"):
        assert silent.render() is None


def test_copies_share_the_model() -> None:
    env = ModelEnv(road())
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    assert twin.mdp is env.mdp
    assert twin.np_random is not env.np_random
    walk = [[int(x.step(np.int64(k % 2))[0]) for k in range(9)] for x in (env, twin)]
    assert walk[0] == walk[1]
    assert pickle.loads(pickle.dumps(env)).mdp == env.mdp


# -- abstracted, as any other environment -------------------------------------------------------


@pytest.mark.parametrize("has_jump", [False, True])
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_abstracted(dynamics: str, has_jump: bool) -> None:
    mdp = road(has_jump=has_jump)
    env = AbstractedEnv(ModelEnv(mdp), certify(mdp, GAMMA, tau=1e-9), dynamics=dynamics)
    assert env.aggregation.n_clusters == 6  # cells, and one for goal and pit
    ends = 0
    seen, _ = env.reset(seed=0)
    for k in range(200):
        seen, _, is_over, _, info = env.step(k % 2)
        assert is_over == bool(env.abstract_mdp.absorbing[seen])
        if dynamics == "ground":
            assert env.labels[info["state"]] == seen
        if is_over:
            ends += 1
            seen, _ = env.reset()
    assert ends > 20
    assert env.P[0][0][0][3] in (True, False)
    agent = env.deploy(env.value)
    best = value_iteration(mdp, GAMMA)
    for state in np.flatnonzero(~mdp.absorbing):
        assert agent.predict(np.int64(state))[0] == env.value.policy[env.labels[state]]
    kept = lift_policy(env.aggregation, env.value)
    assert kept.shape == best.policy.shape


def test_ends_of_files_of_environments() -> None:
    mdp = extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True))
    env = AbstractedEnv(ModelEnv(mdp), certify(mdp, GAMMA), dynamics="ground")
    ends = 0
    env.reset(seed=0)
    for _ in range(300):
        seen, _, is_over, _, info = env.step(env.action_space.sample())
        if is_over:
            ends += 1
            assert info["state"] == mdp.terminal_state
            assert seen == env.abstract_mdp.terminal_state
            env.reset()
    assert ends > 5
    agent = env.deploy(env.value)
    assert agent.predict(np.arange(mdp.n_states))[0].shape == (mdp.n_states,)


def test_backgrounds_multiply_models() -> None:
    env = Distractor(ModelEnv(road(3)), n_background=2)
    mdp = extract_mdp(env)
    assert mdp.n_states == 2 * road(3).n_states
    assert mdp.state_name(3).endswith("background=1")
    small = AbstractedEnv(env, certify(mdp, GAMMA), dynamics="ground")
    assert small.aggregation.n_clusters <= 4
    small.reset(seed=0)
    for k in range(100):
        _, _, is_over, _, _ = small.step(k % 2)
        if is_over:
            small.reset()


def test_in_one_call() -> None:
    mdp = road()
    env = abstract_env(mdp, gamma=GAMMA)
    assert env.mdp == mdp
    assert env.value.kept == 1.0
    assert isinstance(env.env, gym.wrappers.TimeLimit)
    with pytest.raises(InvalidArgumentError, match="env_args go with the id"):
        abstract_env(mdp, gamma=GAMMA, env_args={"x": 1})
    with pytest.raises(InvalidArgumentError, match=r"ModelEnv\(mdp\) is an environment of a model"):
        AbstractedEnv(mdp, certify(mdp, GAMMA))  # type: ignore[arg-type]


def test_a_table_learns_on_models() -> None:
    mdp = road()
    agent = QLearning(ModelEnv(mdp), gamma=GAMMA, start=1.0, epsilon=(1.0, 0.1), decay=3_000)
    agent.learn(6_000)
    best = value_iteration(mdp, GAMMA)
    learned = agent.policy()
    jump = mdp.names.actions.index("jump")  # type: ignore[union-attr]
    assert not (learned == jump)[~mdp.available[:, jump]].any()
    assert learned[0] == best.policy[0]


def test_wrappers_that_change_rewards_are_noticed() -> None:
    class Generous(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            seen, reward, *rest = self.env.step(action)
            return seen, float(reward) + 0.25, *rest

    with pytest.raises(ExtractionError, match="contradicts its table"):
        extract_mdp(Generous(ModelEnv(road())))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["PPO", "DQN", "MaskablePPO"])
@pytest.mark.parametrize("is_small", [False, True])
def test_deep_agents_learn_on_models(name: str, is_small: bool) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    home = pytest.importorskip("sb3_contrib") if name == "MaskablePPO" else sb3
    mdp = road()
    env: Any = gym.wrappers.TimeLimit(ModelEnv(mdp), max_episode_steps=30)
    small = AbstractedEnv(env, certify(mdp, GAMMA))
    options: dict[str, Any] = {"n_steps": 256, "batch_size": 64, "learning_rate": 3e-3}
    if name == "DQN":
        options = {"learning_starts": 300, "exploration_fraction": 0.5, "learning_rate": 2e-3}
        options |= {"target_update_interval": 250, "train_freq": 2}
    world: Any = small if is_small else env
    model = getattr(home, name)("MlpPolicy", world, gamma=GAMMA, seed=0, device="cpu", **options)
    model.learn(6_000)
    n = world.observation_space.n
    policy = np.array([int(model.predict(k, deterministic=True)[0]) for k in range(n)])
    lifted = lift_policy(small.aggregation, policy) if is_small else policy
    lifted = mdp.played(np.asarray(lifted))
    rows = np.arange(mdp.n_states) * mdp.n_actions + lifted
    chain = mdp.kernel()[rows].toarray()
    reached = np.linalg.solve(np.eye(mdp.n_states) - GAMMA * chain, mdp.rewards.ravel()[rows])
    best = value_iteration(mdp, GAMMA)
    assert mdp.start @ reached > 0.9 * (mdp.start @ best.lower)
