"""Vector environments do what single ones do side by side, and refuse what those refuse."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    Certificate,
    TabularMDP,
    abstract_env,
    certify,
    value_iteration,
)
from bisim_abstract.errors import InvalidArgumentError, NotCertifiedError
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import (
    AbstractedEnv,
    AbstractedVectorEnv,
    ModelEnv,
    VectorModelEnv,
    extract_mdp,
    vector,
)
from tests.support.abstractions import GAMMA, lake, rooms
from tests.support.worlds import mdps

ID = "bisim_abstract/Model-v0"
MODES = list(AutoresetMode)


def masked() -> TabularMDP:
    """Forty states with names and with actions of their own; it ends in two of them."""
    mdp = sparse_mdp(40, 3, seed=1)
    P = mdp.kernel().toarray().reshape(40, 3, 40)
    rewards = np.array(mdp.rewards)
    for end in (7, 8):
        P[end], rewards[end] = np.eye(40)[end], 0.0
    available = np.ones((40, 3), bool)
    available[::3, 1] = available[1::5, 0] = False
    made = TabularMDP.from_dense(P, rewards, order="sas").with_available(available)
    return made.with_names(states=[f"room {k}" for k in range(40)])


def assert_same(one: Any, other: Any) -> None:
    """Of equal types, shapes and values, in dictionaries too."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for part, counterpart in zip(one, other, strict=True):
            assert_same(part, counterpart)
    else:
        assert isinstance(one, np.ndarray)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tolist() == other.tolist()
        if one.dtype == object:
            assert list(map(type, one)) == list(map(type, other))


def assert_alike(
    envs: VectorEnv[Any, Any, Any], single: Callable[[], gym.Env[Any, Any]], count: int = 120
) -> None:
    """A vector environment does all that a `SyncVectorEnv` of single ones does."""
    mode = envs.metadata["autoreset_mode"]
    sync: Any = SyncVectorEnv([single] * envs.num_envs, autoreset_mode=mode)
    assert envs.single_observation_space == sync.single_observation_space
    assert envs.single_action_space == sync.single_action_space
    assert envs.observation_space == sync.observation_space
    assert envs.action_space == sync.action_space
    rng = np.random.default_rng(0)
    assert_same(envs.reset(seed=3), sync.reset(seed=3))
    ends = 0
    for k in range(count):
        if k == count // 2:  # somebody starts anew, some with a seed and the others without
            seeds: Any = [k if copy % 2 else None for copy in range(envs.num_envs)]
            assert_same(envs.reset(seed=seeds), sync.reset(seed=seeds))
        actions = rng.integers(envs.single_action_space.n, size=envs.num_envs)  # type: ignore[attr-defined]
        found = envs.step(actions)
        assert_same(found, sync.step(actions))
        is_over = found[2] | found[3]
        ends += int(is_over.sum())
        if mode is AutoresetMode.DISABLED and is_over.any():
            told = [each.reset(options={"reset_mask": is_over}) for each in (envs, sync)]
            assert_same(told[0], told[1])
    assert ends > 0


# -- as single environments --------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", [8, vector.BLOCK])
def test_copies_of_a_model_are_single_environments(
    mode: AutoresetMode, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector, "BLOCK", block)
    mdp = masked()
    envs = VectorModelEnv(mdp, 6, max_episode_steps=13, autoreset_mode=mode)
    assert_alike(envs, lambda: gym.wrappers.TimeLimit(ModelEnv(mdp), 13))


@given(mdp=mdps(max_states=4), mode=st.sampled_from(MODES), limit=st.integers(1, 5))
def test_copies_of_any_model_are_single_environments(
    mdp: TabularMDP, mode: AutoresetMode, limit: int
) -> None:
    envs = VectorModelEnv(mdp, 2, max_episode_steps=limit, autoreset_mode=mode)
    assert_alike(envs, lambda: gym.wrappers.TimeLimit(ModelEnv(mdp), limit), count=12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["rooms", "lake"])
def test_copies_of_an_abstraction_are_single_environments(
    mode: AutoresetMode, name: str, of_rooms: Certificate, of_lake: Certificate
) -> None:
    def single() -> AbstractedEnv:
        if name == "rooms":
            return AbstractedEnv(rooms(max_episode_steps=9), of_rooms, weighting="visitation")
        return AbstractedEnv(lake(), of_lake)

    assert_alike(AbstractedVectorEnv(single(), 5, autoreset_mode=mode), single)


def test_copies_of_an_abstraction_of_a_model_have_masks_and_end_in_states() -> None:
    mdp = masked()
    certificate = certify(extract_mdp(ModelEnv(mdp)), GAMMA, tau=1e-9)

    def single() -> AbstractedEnv:
        return AbstractedEnv(gym.wrappers.TimeLimit(ModelEnv(mdp), 11), certificate)

    envs = AbstractedVectorEnv(single(), 5, autoreset_mode="SameStep")
    assert_alike(envs, single)
    assert "action_mask" in envs.reset()[1]


def test_options_are_those_of_single_environments() -> None:
    mdp = masked()
    envs = VectorModelEnv(mdp, 3)
    sync: Any = SyncVectorEnv([lambda: ModelEnv(mdp)] * 3)
    for options in ({"state": 5}, {"state": np.int64(6), "reset_mask": np.array([1, 0, 1], bool)}):
        assert_same(envs.reset(seed=1, options=options), sync.reset(seed=1, options=dict(options)))
    assert len(options) == 2  # they are left as they were
    assert_same(envs.step([0, 1, 2]), sync.step(np.array([0, 1, 2])))


def test_steps_follow_the_model() -> None:
    """Every state and action, from all copies, as often as the row says."""
    mdp = sparse_mdp(4, 2, support=3, seed=0)
    count, rounds = 4_000, 5
    envs = VectorModelEnv(mdp, count)
    kernel = mdp.kernel().toarray().reshape(4, 2, 4)
    envs.reset(seed=0)
    for state in range(4):
        for action in range(2):
            found = np.zeros(4)
            for _ in range(rounds):
                envs.reset(options={"state": state})
                after, rewards, *_ = envs.step(np.full(count, action))
                found += np.bincount(after, minlength=4)
                assert (rewards == mdp.rewards[state, action]).all()
            shares = found / found.sum()
            assert (found[kernel[state, action] == 0.0] == 0).all()
            # Six standard deviations of a share.
            assert np.abs(shares - kernel[state, action]).max() < 3.0 / np.sqrt(count * rounds)


# -- conventions -------------------------------------------------------------------------------


def test_gymnasium_makes_them_by_id(tmp_path: Path) -> None:
    masked().save(tmp_path / "model.npz")
    path = str(tmp_path / "model.npz")
    envs = gym.make_vec(ID, num_envs=3, path=path)
    assert isinstance(envs, VectorModelEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.spec is not None
    again = gym.make_vec(envs.spec)
    assert (again.num_envs, again.reset(seed=0)[0].tolist()) == (
        3,
        envs.reset(seed=0)[0].tolist(),
    )
    short: Any = gym.make_vec(
        ID, num_envs=2, path=path, max_episode_steps=1, autoreset_mode="SameStep"
    )
    short.reset(seed=0, options={"state": 0})
    assert short.step(np.zeros(2, int))[3].all()
    sync = gym.make_vec(ID, num_envs=3, path=path, vectorization_mode="sync")
    assert_same(envs.reset(seed=5), sync.reset(seed=5))


def test_streams_are_reproducible_and_go_on() -> None:
    def walk(envs: VectorModelEnv, seed: Any) -> list[list[int]]:
        seen = [envs.reset(seed=seed)[0].tolist()]
        seen += [envs.step([k % 3] * 4)[0].tolist() for k in range(30)]
        return [*seen, envs.reset()[0].tolist()]

    envs = VectorModelEnv(masked(), 4)
    first = walk(envs, 7)
    assert walk(envs, 7) == first != walk(envs, 8)
    assert envs.np_random_seed == (8, 9, 10, 11)
    assert walk(VectorModelEnv(masked(), 4), [7, 8, 9, 10]) == first
    columns = list(zip(*first, strict=True))
    assert len(set(columns)) == 4  # no two copies share a stream
    unseeded = VectorModelEnv(masked(), 4)
    unseeded.reset()
    assert None not in unseeded.np_random_seed
    with pytest.raises(InvalidArgumentError, match="which are drawn ahead"):
        _ = envs.np_random


@pytest.mark.parametrize("is_pickled", [False, True])
def test_copies_of_vector_environments_go_on_alike(is_pickled: bool, of_lake: Certificate) -> None:
    for envs in (
        VectorModelEnv(masked(), 4),
        AbstractedVectorEnv(AbstractedEnv(lake(), of_lake), 4),
    ):
        envs.reset(seed=0)
        twin = pickle.loads(pickle.dumps(envs)) if is_pickled else copy.deepcopy(envs)
        for _ in range(30):
            assert_same(envs.step([0, 1, 0, 1]), twin.step([0, 1, 0, 1]))


def test_results_are_not_changed_later() -> None:
    envs = VectorModelEnv(masked(), 4, max_episode_steps=3)
    kept = [envs.reset(seed=0), *(envs.step([0] * 4) for _ in range(5))]
    copies = copy.deepcopy(kept)
    for k in range(5):
        envs.step([k % 3] * 4)
    for found, before in zip(kept, copies, strict=True):
        assert_same(found, before)


def test_masks() -> None:
    mdp = masked()
    envs = VectorModelEnv(mdp, 4)
    observations, infos = envs.reset(seed=0)
    assert envs.action_masks().tolist() == mdp.available[observations].tolist()
    assert infos["action_mask"].tolist() == mdp.available[observations].astype(int).tolist()


# -- refusals ----------------------------------------------------------------------------------


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    mdp = masked()
    for wrong in ({}, {"mdp": mdp, "path": tmp_path}):
        with pytest.raises(InvalidArgumentError, match="give either a model or the path of one"):
            VectorModelEnv(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="num_envs must be at least 1, got 0"):
        VectorModelEnv(mdp, 0)
    with pytest.raises(InvalidArgumentError, match="'NextStep', 'SameStep', 'Disabled'; got 'no'"):
        VectorModelEnv(mdp, autoreset_mode="no")
    with pytest.raises(InvalidArgumentError, match="vectorization_mode='sync'"):
        VectorModelEnv(mdp, render_mode="ansi")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="max_episode_steps must be at least 1"):
        VectorModelEnv(mdp, max_episode_steps=0)


def test_wrong_actions_and_resets_are_refused() -> None:
    envs = VectorModelEnv(masked(), 3)
    for call in (lambda: envs.step([0, 0, 0]), envs.action_masks):
        with pytest.raises(ResetNeeded, match="call reset"):
            call()
    with pytest.raises(ResetNeeded):
        envs.reset(options={"reset_mask": np.ones(3, bool)})
    before = envs.reset(seed=0)[0]
    for actions in ([0, 0], [0.0, 0.0, 0.0], 1, [[0, 0, 0]]):
        with pytest.raises(InvalidArgumentError, match="actions must be 3 whole numbers"):
            envs.step(actions)
    for wrong in (3, -1):
        with pytest.raises(InvalidArgumentError, match=rf"lie in \[0, 3\), got {wrong}"):
            envs.step([0, wrong, 0])
    assert_same(envs.step(np.zeros(3, np.int32)), _stepped(before))
    for mask in ([True, False], np.zeros(3, bool), np.ones(3, int), "all"):
        with pytest.raises(InvalidArgumentError, match="must be 3 truth values"):
            envs.reset(options={"reset_mask": mask})
    for seeds, text in (([0, 1], "got 2"), (-1, "at least 0"), ([0, -1, 2], "at least 0")):
        with pytest.raises(InvalidArgumentError, match=text):
            envs.reset(seed=seeds)
    with pytest.raises(InvalidArgumentError, match='options\\["state"\\] must be'):
        envs.reset(options={"state": 40})


def _stepped(before: Any) -> Any:
    """A first step of copies that were refused nothing: refusals draw no numbers."""
    envs = VectorModelEnv(masked(), 3)
    assert envs.reset(seed=0)[0].tolist() == before.tolist()
    return envs.step([0, 0, 0])


def test_what_has_ended_is_not_stepped_where_nothing_resets_it() -> None:
    envs = VectorModelEnv(masked(), 3, max_episode_steps=2, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step([0, 0, 0])
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    envs.step([0, 0, 0])
    with pytest.raises(ResetNeeded, match="the episode of copy 0 has ended"):
        envs.step([0, 0, 0])
    envs.reset(options={"reset_mask": np.array([True, False, True])})
    assert envs.step([0, 0, 0])[3].tolist() == [False, True, False]


def test_only_proven_abstractions_are_stepped(of_rooms: Certificate, of_lake: Certificate) -> None:
    with pytest.raises(NotCertifiedError):
        AbstractedVectorEnv(AbstractedEnv(lake(), of_rooms), 2)
    ground: Any = AbstractedEnv(lake(), of_lake, dynamics="ground")
    with pytest.raises(InvalidArgumentError, match=r"dynamics='ground'.*SyncVectorEnv"):
        AbstractedVectorEnv(ground, 2)
    wrapped: Any = gym.wrappers.TimeLimit(AbstractedEnv(lake(), of_lake), 5)
    others: list[Any] = [wrapped, lake(), of_lake]
    for other in others:
        with pytest.raises(InvalidArgumentError, match="must be an AbstractedEnv, whose cert"):
            AbstractedVectorEnv(other, 2)


# -- agents ------------------------------------------------------------------------------------


def test_an_agent_learns_in_a_loop_as_cleanrl_writes_it() -> None:
    """Q-learning of all copies at once, with statistics of episodes and bootstrapping at limits."""
    small = abstract_env("CliffWalking-v1", gamma=GAMMA)
    plain = AbstractedVectorEnv(small, 64, autoreset_mode=AutoresetMode.SAME_STEP)
    envs: Any = RecordEpisodeStatistics(plain)
    rng = np.random.default_rng(0)
    q = np.zeros((small.abstract_mdp.n_states, small.abstract_mdp.n_actions))
    observations, _ = envs.reset(seed=1)
    lengths = []
    for _ in range(1_500):
        actions = q[observations].argmax(axis=1)
        explores = rng.random(64) < 0.2
        actions[explores] = rng.integers(q.shape[1], size=int(explores.sum()))
        after, rewards, terminated, truncated, infos = envs.step(actions)
        ends = after.copy()
        is_over = terminated | truncated
        if is_over.any():
            ends[is_over] = infos["final_obs"][is_over].astype(np.int64)
            lengths += infos["episode"]["l"][is_over].tolist()
        targets = rewards + GAMMA * ~terminated * q[ends].max(axis=1)
        np.add.at(q, (observations, actions), 0.01 * (targets - q[observations, actions]))
        observations = after
    best = value_iteration(small.abstract_mdp, GAMMA)
    greedy = small.evaluate(small.abstract_mdp.played(q.argmax(axis=1)))
    assert greedy.share.kept > 0.99
    assert abs(q.max(axis=1) @ small.abstract_mdp.start - best.lower @ small.abstract_mdp.start) < 1
    assert len(lengths) > 50


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_agents_of_stable_baselines_learn(name: str) -> None:
    library: Any = pytest.importorskip("stable_baselines3")
    vec_env: Any = importlib.import_module("stable_baselines3.common.vec_env")
    importlib.import_module("torch").set_num_threads(1)  # more of them wait for each other

    class Adapted(vec_env.VecEnv):  # type: ignore[misc]
        """A vector environment as Stable-Baselines3 has them: infos in a list, reset at once."""

        def __init__(self, envs: AbstractedVectorEnv) -> None:
            assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
            self.envs, self.render_mode = envs, None
            super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

        def reset(self) -> Any:
            seed = self._seeds if self._seeds[0] is not None else None
            self._reset_seeds()
            return self.envs.reset(seed=seed)[0]

        def step_async(self, actions: Any) -> None:
            self.found = self.envs.step(actions)

        def step_wait(self) -> Any:
            observations, rewards, terminated, truncated, told = self.found
            is_over = terminated | truncated
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for i in np.flatnonzero(is_over).tolist():
                infos[i]["terminal_observation"] = told["final_obs"][i]
                infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            return observations, rewards, is_over, infos

        def close(self) -> None:
            self.envs.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(self.envs, attr_name)] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **_: Any) -> Any:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    small = abstract_env("FrozenLake-v1", gamma=GAMMA, env_args={"is_slippery": False})
    envs = Adapted(AbstractedVectorEnv(small, 32, autoreset_mode="SameStep"))
    options: dict[str, Any] = {"n_steps": 64, "batch_size": 256, "learning_rate": 3e-3}
    if name == "DQN":
        options = {"learning_starts": 2_000, "exploration_fraction": 0.7, "learning_rate": 2e-3}
        options |= {"target_update_interval": 500, "gradient_steps": 4, "train_freq": 1}
    model = getattr(library, name)("MlpPolicy", envs, gamma=GAMMA, seed=0, device="cpu", **options)
    model.learn(30_000)
    assert small.evaluate(model).share.kept > 0.9
    assert small.deploy(model).predict(14)[0] == 2
