"""What was learned on clusters, on the environment itself: observations, agents and files."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    GroundAgent,
    InvalidArgumentError,
    QLearning,
    Reading,
    abstract_env,
    certify,
    lift_policy,
    value_iteration,
)
from bisim_abstract._base.npz import read_npz, write_npz, write_record
from bisim_abstract._model.observations import Observations, check_layout, key_of, layout_of
from bisim_abstract.errors import ExtractionError, FileFormatError
from bisim_abstract.wrappers import AbstractedEnv, Distractor, TabularEnv, extract_mdp
from tests.support.abstractions import Fork, lake, of_fork

GAMMA = 0.9
SIDE = 4


class Maze(gym.Env[Any, Any]):
    """A grid without a table, shown in one of many ways; its last cell pays and ends.

    There is a switch that the first step sets and that never matters: two states for most cells.
    """

    action_space = gym.spaces.Discrete(4)

    def __init__(self, view: str = "array") -> None:
        side, spaces = SIDE, gym.spaces
        self.view = view
        self.observation_space = {
            "number": spaces.Discrete(side * side * 2, start=5),
            "array": spaces.MultiDiscrete([side, side, 2]),
            "bits": spaces.MultiBinary(2 * side + 1),
            "pair": spaces.Tuple((spaces.Discrete(side), spaces.MultiDiscrete([side, 2]))),
            "names": spaces.Dict(
                {"where": spaces.MultiDiscrete([side, side]), "on": spaces.Discrete(2)}
            ),
            "image": spaces.Box(0, 255, (side, side, 1), np.uint8),
            "text": spaces.Text(8),
            "row": spaces.Discrete(side),
        }[view]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.row = self.column = self.on = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        down, right = ((1, 0), (0, 1), (-1, 0), (0, -1))[int(action)]
        self.row = min(max(self.row + down, 0), SIDE - 1)
        self.column = min(max(self.column + right, 0), SIDE - 1)
        self.on = 1
        is_end = self.row == self.column == SIDE - 1
        return self._seen(), float(is_end), is_end, False, {}

    def _seen(self) -> Any:
        row, column, on = self.row, self.column, self.on
        if self.view == "number":
            return np.int64(5 + (row * SIDE + column) * 2 + on)
        if self.view == "array":
            return np.array([row, column, on])
        if self.view == "bits":
            return np.concatenate([np.eye(SIDE)[row], np.eye(SIDE)[column], [on]]).astype(np.int8)
        if self.view == "pair":
            return np.int64(row), np.array([column, on])
        if self.view == "names":
            return {"on": np.int64(on), "where": np.array([row, column])}
        if self.view == "image":
            image = np.full((SIDE, SIDE, 1), 10 * on, np.uint8)
            image[row, column] = 255
            return image
        return f"{row},{column},{on}" if self.view == "text" else np.int64(row)


VIEWS = ("number", "array", "bits", "pair", "names", "image", "text")


def small(ground: gym.Env[Any, Any], **kwargs: Any) -> AbstractedEnv:
    mdp = extract_mdp(ground)
    return AbstractedEnv(ground, certify(mdp, GAMMA, tau=1e-9), mdp=mdp, **kwargs)


@pytest.fixture(scope="module")
def frozen_lake() -> AbstractedEnv:
    return small(lake())


# -- what is seen ------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_it_acts_by_the_cluster_of_what_it_sees(view: str) -> None:
    env = small(Maze(view), dynamics="ground")
    assert env.aggregation.n_clusters == SIDE * SIDE - 1  # the switch does not matter
    policy = np.random.default_rng(0).integers(4, size=env.abstract_mdp.n_states)
    agent = env.deploy(policy)
    assert agent.n_observations == env.mdp.n_states - 1 + 1  # the end is seen as well
    ground, rng = Maze(view), np.random.default_rng(1)
    seen, cluster = ground.reset(seed=0)[0], env.reset(seed=0)[0]
    for _ in range(300):
        action, state = agent.predict(seen, state="any")
        assert (agent.cluster(seen), state) == (cluster, "any")
        assert action == policy[cluster]
        assert isinstance(action, np.int64)
        move = int(rng.integers(4))
        cluster, _, is_over, _, _ = env.step(move)
        seen = ground.step(move)[0]
        if is_over:
            assert agent.cluster(seen) == cluster  # the end
            seen, cluster = ground.reset()[0], env.reset()[0]


@pytest.mark.parametrize("view", VIEWS)
def test_vector_environments(view: str) -> None:
    env = small(Maze(view))
    agent = env.deploy(env.value)
    together: Any = gym.vector.SyncVectorEnv([lambda: Maze(view)] * 3)
    alone, seen = Maze(view), together.reset(seed=0)[0]
    first = alone.reset(seed=0)[0]
    total = np.zeros(3)
    for _ in range(20):  # episodes of six steps, and one more to start anew
        actions, _ = agent.predict(seen, deterministic=True)
        assert actions.shape == (3,)
        assert actions.dtype == np.int64
        assert actions[0] == agent.predict(first, deterministic=True)[0]
        seen, rewards, ended, _, _ = together.step(actions)
        first = alone.step(actions[0])[0]
        total += rewards
        if ended[0]:  # the next step of the others is a reset
            actions, _ = agent.predict(seen)
            seen = together.step(actions)[0]
            first = alone.reset()[0]
    assert total.tolist() == [3.0, 3.0, 3.0]
    together.close()


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1"])
def test_numbers_of_states_need_no_looking(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = importlib.import_module("bisim_abstract.wrappers._observing")
    monkeypatch.delattr(home, "_Walk")
    env = small(gym.make(name))
    agent = env.deploy(env.value)
    ids = np.flatnonzero(env.mdp.state_ids >= 0)
    assert agent.cluster(env.mdp.state_ids[ids]).tolist() == env.labels[ids].tolist()
    lifted = lift_policy(env.aggregation, env.value)
    assert agent.predict(env.mdp.state_ids[ids])[0].tolist() == lifted[ids].tolist()


def test_reachable_states_and_where_episodes_end() -> None:
    ground = lake()
    env = AbstractedEnv(
        ground, certify(extract_mdp(ground, reading=Reading(reachable_only=True)), GAMMA)
    )
    assert env.mdp.n_states == 12
    agent = env.deploy(env.value)
    end = env.abstract_mdp.terminal_state
    assert agent.cluster([5, 7, 11, 12, 15]).tolist() == [end] * 5  # holes and goal
    many = gym.make_vec("FrozenLake-v1", num_envs=4, vectorization_mode="sync")
    seen, _ = many.reset(seed=0)
    for _ in range(200):
        seen = many.step(agent.predict(seen)[0])[0]
    many.close()


def test_chance_does_not_hide_states() -> None:
    """A table whose observations are not its numbers: every state is visited, slips and all."""
    env = small(gym.wrappers.FlattenObservation(lake()))
    agent = env.deploy(env.value)
    plain = small(lake()).deploy(env.value)
    reached = [
        k
        for k in range(16)
        if k in extract_mdp(lake(), reading=Reading(reachable_only=True)).state_ids
    ]
    for k in reached:
        assert agent.cluster(np.eye(16, dtype=np.int64)[k]) == plain.cluster(k)
    batch = np.eye(16)[reached]  # of another type, as some libraries have it
    assert agent.predict(batch)[0].tolist() == plain.predict(np.array(reached))[0].tolist()


def test_what_describes_itself_is_visited_too() -> None:
    make = "bisim_abstract/RoomsGrid-v0"
    inner = gym.make(make, side=6, room_size=3, slip=0.4)
    agent = small(gym.wrappers.FlattenObservation(inner)).deploy(lambda cluster: cluster % 4)
    plain = small(inner).deploy(lambda cluster: cluster % 4)
    assert agent.n_observations == 36
    assert agent.predict(np.eye(36))[0].tolist() == plain.predict(np.arange(36))[0].tolist()


def test_what_does_not_tell_the_cluster_is_refused() -> None:
    env = small(Maze("row"))
    with pytest.raises(ExtractionError, match=r"look the same; use .*dynamics='ground'") as caught:
        env.deploy(lambda cluster: cluster % 4)
    assert "info['state']" in str(caught.value)
    # What the message advises works.
    table, below = lift_policy(env.aggregation, env.value), TabularEnv(Maze("row"))
    _, info = below.reset(seed=0)
    total = 0.0
    for _ in range(6):
        _, reward, _, _, info = below.step(int(table[info["state"]]))
        total += float(reward)
    assert total == 1.0


@pytest.mark.slow
def test_the_part_of_minigrid_that_is_seen() -> None:
    pytest.importorskip("minigrid")
    from minigrid.wrappers import FullyObsWrapper

    from bisim_abstract.wrappers import make_env

    ground = make_env("MiniGrid-DoorKey-5x5-v0")
    mdp = extract_mdp(ground, reading=Reading(starts=1))
    env = AbstractedEnv(ground, certify(mdp, GAMMA, tau=1e-9), mdp=mdp)
    with pytest.raises(ExtractionError, match="do not tell the cluster"):
        env.deploy(env.value)
    full: Any = FullyObsWrapper(ground)  # type: ignore[no-untyped-call]
    env = AbstractedEnv(full, env.certificate, reading=Reading(starts=1))
    agent = env.deploy(value_iteration(env.abstract_mdp, GAMMA))
    seen, _ = full.reset(seed=0)
    for _ in range(30):
        seen, reward, is_over, _, _ = full.step(agent.predict(seen)[0])
        if is_over:
            break
    assert reward > 0.9
    assert agent.metadata["seed"] == 0
    key = {str(full.reset(seed=seed)[0]): seed for seed in range(9)}  # one seed of each layout
    other = next(seed for text, seed in key.items() if text != next(iter(key)))
    seen, _ = full.reset(seed=other)
    with pytest.raises(InvalidArgumentError, match="that of one seed"):
        agent.predict(seen)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (gym.wrappers.TimeAwareObservation, "does not always look the same"),
        (lambda env: gym.wrappers.FrameStackObservation(env, 2), "does not always look the same"),
        (
            lambda env: gym.wrappers.FlattenObservation(Distractor(env, n_background=3)),
            "Distractor is a wrapper with a state of its own",
        ),
    ],
)
def test_wrappers_that_show_more_are_refused(wrap: Callable[[Any], Any], message: str) -> None:
    env = small(wrap(lake()))
    with pytest.raises(ExtractionError, match=message):
        env.deploy(env.value)


def test_backgrounds_are_seen_through() -> None:
    ground = Distractor(lake(), n_background=5)
    env, plain = small(ground), small(lake())
    agent = env.deploy(plain.value)
    expected = plain.deploy(plain.value).predict(np.arange(16))[0]
    assert agent.predict(np.arange(80))[0].tolist() == np.repeat(expected, 5).tolist()


def test_spaces_that_are_not_numbers_are_refused(frozen_lake: AbstractedEnv) -> None:
    class Odd(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: gym.Env[Any, Any]) -> None:
            super().__init__(env)
            self.observation_space = gym.spaces.Sequence(gym.spaces.Discrete(16))

        def observation(self, observation: Any) -> Any:
            return (observation,)

    env = AbstractedEnv(Odd(lake()), frozen_lake.certificate)
    with pytest.raises(ExtractionError, match="numbers, arrays and text to be told apart"):
        env.deploy(env.value)


def test_states_that_trying_does_not_find_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    home = importlib.import_module("bisim_abstract.wrappers._observing")
    monkeypatch.setattr(home, "TRIES", 1)
    monkeypatch.setattr(home, "RESETS", 1)
    env = small(gym.wrappers.FlattenObservation(lake()))
    with pytest.raises(ExtractionError, match="are not known: trying did not lead there"):
        env.deploy(env.value)


def test_the_environment_is_left_alone() -> None:
    env, twin = (
        small(gym.wrappers.FlattenObservation(lake()), dynamics="ground") for _ in range(2)
    )
    for each in (env, twin):
        each.reset(seed=3)
    env.deploy(env.value)
    for k in range(50):
        assert env.step(k % 4)[:4] == twin.step(k % 4)[:4]


@pytest.mark.parametrize(
    ("view", "wrong", "message"),
    [
        ("array", [0, 0], r"an array of shape \(3,\)"),
        ("array", [9, 9, 9], "no state that this agent knows"),
        ("array", [0.5, 0.0, 0.0], r"an array of shape \(3,\)"),
        ("array", [[0, 0], [0]], r"an array of shape \(3,\)"),
        ("array", "here", r"an array of shape \(3,\)"),
        ("number", 3, "the observation 3 is that of no state"),
        ("number", 5.0, "must be a whole number"),
        ("number", [[5]], "must be a whole number"),
        ("number", np.array([5, 2**63], np.uint64), "no state that this agent knows"),
        ("pair", (0,), "a tuple of 2 parts"),
        ("pair", (0, [[0, 0]]), "parts of one batch"),
        ("names", {"on": 0}, "a dictionary with 'on', 'where'"),
        ("text", 3, "must be text"),
        ("text", ["0,0,0", 3], "must be text"),
        ("text", "x" * 1000, r"x\.\.\. is that of no state"),
    ],
)
def test_other_observations_are_refused(view: str, wrong: Any, message: str) -> None:
    env = small(Maze(view))
    agent = env.deploy(env.value)
    with pytest.raises(InvalidArgumentError, match=message):
        agent.predict(wrong)


def test_reals_are_compared_as_the_space_has_them() -> None:
    layout = layout_of(gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
    third = np.array([1.0, -0.0]) / 3.0
    assert key_of(layout, third) == key_of(layout, np.array([np.float32(1.0 / 3.0), 0.0]))
    assert key_of(layout, third) != key_of(layout, third[::-1])
    with pytest.raises(InvalidArgumentError, match="NaN"):
        key_of(layout, [np.nan, 0.0])


def test_text_does_not_run_together() -> None:
    text = gym.spaces.Text(9)
    layout = layout_of(gym.spaces.Tuple((text, text)))
    assert key_of(layout, ("ab", "c")) != key_of(layout, ("a", "bc"))


# -- who acts ----------------------------------------------------------------------------------


class Model:
    """Predicts as models of Stable-Baselines3 do."""

    def __init__(self, table: Any, *, state: Any = None, space: Any = None) -> None:
        self.table, self.state, self.observation_space = np.asarray(table), state, space

    def predict(self, observation: Any, state: Any = None, *, deterministic: bool = False) -> Any:
        return np.array(self.table[int(observation)]), self.state


def test_all_kinds_of_agents(frozen_lake: AbstractedEnv) -> None:
    env = frozen_lake
    n, count = env.abstract_mdp.n_states, env.aggregation.n_clusters
    table = np.random.default_rng(0).integers(4, size=n)
    table[count:] = 0
    states = env.mdp.state_ids[env.mdp.state_ids >= 0]
    expected = table[env.labels[env.mdp.state_ids >= 0]].tolist()
    learned = QLearning(env, gamma=GAMMA)
    learned.table = np.eye(4)[table]
    space: Any = gym.spaces.Discrete(n)
    agents: list[Any] = [
        table,
        table[:count],  # nobody acts at the end
        table.tolist(),
        table.astype(np.uint8),
        np.eye(4)[table],
        np.eye(4, dtype=int)[table[:count]].tolist(),
        lambda cluster: table[cluster],
        lambda cluster: int(table[:count][cluster]),
        Model(table),
        Model(table, space=space),
        learned,
        env.deploy(table),
    ]
    for agent in agents:
        deployed = env.deploy(agent)
        assert deployed.predict(states, deterministic=True)[0].tolist() == expected
        lifted = lift_policy(env.aggregation, agent)
        chosen = lifted if lifted.ndim == 1 else lifted.argmax(axis=1)
        assert chosen[env.mdp.state_ids >= 0].tolist() == expected
    best = value_iteration(env.abstract_mdp, GAMMA)
    assert env.deploy(best).policy.tolist() == best.policy.tolist()
    assert env.deploy(env.value).policy[:count].tolist() == env.value.policy[:count].tolist()


def failing(cluster: int) -> int:
    raise RuntimeError("it broke")


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ([0, 1], r"policy must be actions of shape \(13,\) or probabilities of shape \(13, 4\)"),
        (np.zeros(13), "got float64 of shape"),
        ([[0], [0, 1]], "got list"),
        ("left", "got str; it can be a table, a function of the cluster"),
        (None, "got NoneType"),
        (np.full(13, 4), r"actions in \[0, 4\), got 4 for cluster 0"),
        (np.full((13, 4), 0.3), "probabilities that sum to 1"),
        (np.full((13, 4), np.nan), "probabilities that sum to 1"),
        (np.tile([1.5, -0.5, 0.0, 0.0], (13, 1)), "probabilities that sum to 1"),
        (failing, "could not be asked about cluster 0: RuntimeError: it broke"),
        (lambda cluster: 0.5, r"action in \[0, 4\) for each cluster, got 0\.5"),
        (lambda cluster: 7, "got 7 for cluster 0"),
        (lambda cluster: [0, 1], "for each cluster, got"),
        (Model(np.zeros(13, int), state="memory"), "recurrent agent"),
        (Model(np.zeros(13, int), space=gym.spaces.Discrete(4)), r"trained on Discrete\(4\)"),
        (Model(np.zeros(13, int), space=gym.spaces.Box(0, 1)), "if it saw them through a wrapper"),
        (Model(np.zeros(13)), r"got array\(0\.\) for cluster 0"),
    ],
)
def test_other_agents_are_refused(frozen_lake: AbstractedEnv, agent: Any, message: str) -> None:
    for call in (frozen_lake.deploy, lambda x: lift_policy(frozen_lake.aggregation, x)):
        with pytest.raises(InvalidArgumentError, match=message):
            call(agent)


def test_an_agent_of_other_things_is_told(frozen_lake: AbstractedEnv) -> None:
    class Forest:
        def predict(self, observation: Any, *, deterministic: bool) -> Any:
            return np.zeros(1)

    with pytest.raises(InvalidArgumentError, match=r"return \(action, state\), got ndarray"):
        frozen_lake.deploy(Forest())
    with pytest.raises(InvalidArgumentError, match="needs an agent that tells its probabilities"):
        frozen_lake.deploy(Model(np.zeros(13, int)), deterministic=False)


def test_probabilities_are_drawn_from(frozen_lake: AbstractedEnv) -> None:
    n = frozen_lake.abstract_mdp.n_states
    probs = np.tile([0.0, 0.7, 0.3, 0.0], (n, 1))
    agent = frozen_lake.deploy(probs, seed=0)
    assert not agent.is_deterministic
    many = agent.predict(np.zeros(20_000, int))[0]
    share = np.bincount(many, minlength=4) / many.size
    assert share[[0, 3]].tolist() == [0.0, 0.0]
    assert abs(share[1] - 0.7) < 4.0 * np.sqrt(0.21 / many.size)
    assert agent.predict(np.arange(16), deterministic=True)[0].tolist() == [1] * 16
    one, _ = agent.predict(0)
    assert isinstance(one, np.int64)
    # A seed settles what is drawn, and copies go on as their originals.
    first, second = (frozen_lake.deploy(probs, seed=7) for _ in range(2))
    assert (
        first.predict(np.zeros(50, int))[0].tolist()
        == second.predict(np.zeros(50, int))[0].tolist()
    )
    for again in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        second = copy.deepcopy(first)
        assert again.predict(np.zeros(50, int))[0].tolist() == second.predict([0] * 50)[0].tolist()


def test_what_it_says_of_itself(frozen_lake: AbstractedEnv) -> None:
    agent = frozen_lake.deploy(frozen_lake.value)
    assert repr(agent) == (
        "GroundAgent(16 observations of FrozenLake-v1, actions over 12 clusters (plus the "
        "terminal state))"
    )
    assert agent.metadata["verdict"] == frozen_lake.certificate.verdict.sentence
    assert agent.metadata["fingerprint"] == frozen_lake.mdp.fingerprint
    agent.metadata["env"] = "<script>alert(1)</script>"
    text = agent._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script" not in text


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["actions", "probabilities"])
def test_files(view: str, kind: str, tmp_path: Path) -> None:
    env = small(Maze(view))
    n = env.abstract_mdp.n_states
    policy: Any = np.random.default_rng(0).dirichlet(np.ones(4), n)
    agent = env.deploy(policy.argmax(axis=1) if kind == "actions" else policy)
    agent.save(tmp_path / "agent.npz")
    again = GroundAgent.load(tmp_path / "agent.npz", seed=0)
    assert again.policy.tolist() == agent.policy.tolist()
    assert (again.n_actions, again.n_clusters, again.has_end) == (4, n - 1, True)
    assert again.metadata == agent.metadata
    assert again.is_deterministic == (kind == "actions")
    ground = Maze(view)
    seen, _ = ground.reset(seed=0)
    for k in range(40):
        first, second = (x.predict(seen, deterministic=True)[0] for x in (agent, again))
        assert first == second
        seen, _, is_over, _, _ = ground.step((k // 5) % 2)
        if is_over:
            seen, _ = ground.reset()


def test_a_file_needs_no_training_code(tmp_path: Path) -> None:
    abstract_env("FrozenLake-v1", gamma=GAMMA).deploy(lambda cluster: 1).save(tmp_path / "a.npz")
    code = (
        "import sys\n"
        "from bisim_abstract import GroundAgent\n"
        f"print(GroundAgent.load({str(tmp_path / 'a.npz')!r}).predict(0))\n"
        "heavy = ('torch', 'stable_baselines3', 'numba', 'faiss', 'bisim_abstract.wrappers')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(np.int64(1), None)", "[]"]


@pytest.fixture
def path(frozen_lake: AbstractedEnv, tmp_path: Path) -> Path:
    frozen_lake.deploy(frozen_lake.value).save(tmp_path / "agent.npz")
    return tmp_path / "agent.npz"


def rewrite(path: Path, *, header: dict[str, Any] | None = None, **arrays: Any) -> None:
    """The same file with other contents, and a digest that fits them: by somebody who knows how."""
    content = dict(read_npz(path))
    known = json.loads(content.pop("header").tobytes()) | (header or {})
    content.pop("digest")
    content |= {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    content = {name: array for name, array in content.items() if arrays.get(name, 0) is not None}
    kind, version = known.pop("format"), known.pop("version")
    write_record(path, known, content, kind=kind, version=version)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"header": {"format": "bisim_abstract.Certificate"}}, "holds a bisim_abstract.Cert"),
        ({"header": {"version": 1}}, "format version 1; this release reads 2"),
        ({"header": {"more": 1}}, "parts missing or too many"),
        ({"more": [1]}, "parts missing or too many"),
        ({"header": {"n_actions": 0}}, "n_actions must be at least 1"),
        ({"header": {"n_actions": "4"}}, "n_actions must be a whole number"),
        ({"header": {"has_end": 1}}, "has_end must be True or False"),
        ({"header": {"metadata": [1]}}, "metadata|header"),
        ({"header": {"layout": {}}}, "layout must tell"),
        ({"header": {"layout": None}}, "layout must tell"),
        ({"header": {"layout": {"kind": ["number"]}}}, "layout must tell"),
        ({"header": {"layout": {"kind": "text"}}}, r"keys must have shape \(16, 16\)"),
        ({"policy": np.full(13, 4)}, r"actions in \[0, 4\)"),
        ({"policy": np.zeros(13)}, "whole numbers"),
        ({"policy": np.zeros((13, 4))}, "sum to 1"),
        ({"policy": np.zeros((13, 3, 4), int)}, "must have 1 or 2 dimensions"),
        ({"policy": np.empty(0, int)}, "by cluster, got shape"),
        ({"policy": np.zeros(2, int)}, r"clusters in \[0, 2\)"),
        ({"clusters": np.full(16, -1)}, r"clusters in \[0, 13\)"),
        ({"clusters": np.zeros(15, int)}, "'clusters' is int64 of shape"),
        ({"keys": np.zeros(16, int)}, "keys must rise"),
        ({"keys": np.arange(16.0)}, "whole numbers"),
        ({"keys": np.arange(16)[:, None]}, "'keys' is int64 of shape"),
    ],
)
def test_hostile_files_are_refused(path: Path, change: dict[str, Any], message: str) -> None:
    GroundAgent.load(path)
    rewrite(path, **change)
    with pytest.raises(FileFormatError, match=message):
        GroundAgent.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": None}, "parts missing or too many"),
        ({"renaming": None}, "parts missing or too many"),
        ({"kinds": np.full(4, 3)}, r"kinds must belong to clusters in \[0, 3\)"),
        ({"kinds": np.full(4, -1)}, r"kinds must belong to clusters in \[0, 3\)"),
        ({"kinds": np.zeros((4, 1), int)}, "'kinds' must have 1 dimensions"),
        ({"kinds": np.zeros(3, int)}, "'renaming' is int64 of shape"),
        ({"renaming": np.zeros((4, 2), int)}, "'renaming' is int64 of shape"),
        ({"renaming": np.full((4, 3), -1)}, "one name at least in each row"),
        ({"renaming": np.full((4, 3), 3)}, r"names in \[0, 3\)"),
        ({"renaming": np.full((4, 3), -2)}, r"names in \[0, 3\)"),
        ({"renaming": np.zeros((4, 3))}, "whole numbers"),
        ({"policy": np.full((3, 4), 0.25)}, "policy may have 3 entries along an axis"),
        ({"policy": np.ones((3, 1))}, r"names in \[0, 1\)"),
        ({"clusters": np.full(3, 4)}, r"kinds in \[0, 4\)"),
    ],
)
def test_hostile_names_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "agent.npz"
    env = AbstractedEnv(Fork(), of_fork(), verify=False)
    env.deploy(env.value).save(path)
    GroundAgent.load(path)
    rewrite(path, **change)
    with pytest.raises(FileFormatError, match=message):
        GroundAgent.load(path)


def test_every_changed_byte_is_noticed(path: Path) -> None:
    raw = path.read_bytes()
    whole = GroundAgent.load(path)
    rng = np.random.default_rng(0)
    for at in rng.integers(len(raw), size=150).tolist():
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << int(rng.integers(8))]) + raw[at + 1 :])
        try:
            found = GroundAgent.load(path)
        except FileFormatError:
            continue  # all but dates and the like, which an archive keeps for itself
        assert found.policy.tolist() == whole.policy.tolist()
        assert found.metadata == whole.metadata
    for size in (0, 10, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(FileFormatError):
            GroundAgent.load(path)


def test_other_files_are_refused(frozen_lake: AbstractedEnv, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GroundAgent.load(tmp_path / "nothing.npz")
    frozen_lake.certificate.save(tmp_path / "c.npz")
    with pytest.raises(FileFormatError, match=r"holds a bisim_abstract\.Certificate"):
        GroundAgent.load(tmp_path / "c.npz")
    agent = frozen_lake.deploy(frozen_lake.value)
    agent.save(tmp_path / "a.npz")
    with pytest.raises(FileFormatError, match=r"holds a bisim_abstract\.GroundAgent"):
        Certificate.load(tmp_path / "a.npz")
    np.savez(tmp_path / "n.npz", policy=np.zeros(3))
    with pytest.raises(FileFormatError, match="holds no agent"):
        GroundAgent.load(tmp_path / "n.npz")
    (tmp_path / "p.npz").write_bytes(pickle.dumps(agent))
    with pytest.raises(FileFormatError, match="not a readable"):
        GroundAgent.load(tmp_path / "p.npz")


def test_writing_is_whole_or_not_at_all(path: Path, frozen_lake: AbstractedEnv) -> None:
    before = path.read_bytes()
    agent = frozen_lake.deploy(lambda cluster: 3)
    agent.metadata["odd"] = object()
    with pytest.raises(TypeError):
        agent.save(path)
    assert path.read_bytes() == before
    assert [x.name for x in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "layout",
    [
        3,
        {"kind": "heap"},
        {"kind": "number", "more": 1},
        {"kind": "array", "shape": [2], "dtype": "O"},
        {"kind": "array", "shape": [-1], "dtype": "<i8"},
        {"kind": "array", "shape": [True], "dtype": "<i8"},
        {"kind": "array", "shape": 3, "dtype": "<i8"},
        {"kind": "array", "shape": [3], "dtype": ["<i8"]},
        {"kind": "tuple", "parts": {"kind": "number"}},
        {"kind": "tuple", "parts": [3]},
        {"kind": "dict", "parts": [["a", {"kind": "number"}], ["a", {"kind": "number"}]]},
        {"kind": "dict", "parts": [[1, {"kind": "number"}]]},
        {"kind": "dict", "parts": [["a"]]},
    ],
)
def test_hostile_layouts_are_refused(layout: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        check_layout(layout)


def test_deep_layouts_are_refused(path: Path) -> None:
    layout: dict[str, Any] = {"kind": "number"}
    for _ in range(400):
        layout = {"kind": "tuple", "parts": [layout]}
    known = Observations(layout, np.zeros((1, 16), np.uint8), np.zeros(1, int))
    with pytest.raises(InvalidArgumentError):
        known.find(3)
    content = dict(read_npz(path))
    depth = 100_000
    content["header"] = np.frombuffer(("[" * depth + "]" * depth).encode(), np.uint8)
    write_npz(path, content)
    with pytest.raises(FileFormatError, match="damaged header"):
        GroundAgent.load(path)


# -- Stable-Baselines3 -------------------------------------------------------------------------


def sb3() -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other libraries warn of when they are imported
        library = importlib.import_module("stable_baselines3")
        evaluation = importlib.import_module("stable_baselines3.common.evaluation")
        importlib.import_module("torch").set_num_threads(1)  # more of them wait for each other
    return library, evaluation.evaluate_policy


def quiet_lake() -> gym.Env[Any, Any]:
    return gym.make("FrozenLake-v1", is_slippery=False)


def trained(name: str, env: gym.Env[Any, Any]) -> Any:
    library, _ = sb3()
    if name == "PPO":
        options: dict[str, Any] = {"n_steps": 256, "batch_size": 64, "learning_rate": 3e-3}
        steps = 6_000
    else:
        options = {"learning_starts": 500, "exploration_fraction": 0.5, "learning_rate": 2e-3}
        options |= {"target_update_interval": 250, "train_freq": 2}
        steps = 8_000
    make = getattr(library, name)
    model = make("MlpPolicy", env, gamma=GAMMA, seed=0, device="cpu", **options)
    return model.learn(steps)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["PPO", "DQN"])
@pytest.mark.parametrize("place", ["lake", "rooms"])
def test_deep_agents_act_on_the_environment(name: str, place: str, tmp_path: Path) -> None:
    _, evaluate = sb3()
    if place == "lake":
        env = abstract_env(quiet_lake(), gamma=GAMMA)
        ground: gym.Env[Any, Any] = quiet_lake()
    else:
        options: dict[str, Any] = {"side": 10, "room_size": 5, "max_episode_steps": 50}
        env = abstract_env(gym.make("bisim_abstract/RoomsGrid-v0", **options), gamma=GAMMA)
        ground = gym.make("bisim_abstract/RoomsGrid-v0", **options)
    model = trained(name, env)
    agent = env.deploy(model)
    assert agent.is_deterministic
    for cluster in range(env.aggregation.n_clusters):
        assert agent.policy[cluster] == model.predict(cluster, deterministic=True)[0]
    agent.save(tmp_path / "agent.npz")
    reward, _ = evaluate(GroundAgent.load(tmp_path / "agent.npz"), ground, n_eval_episodes=40)
    uniform = np.full((env.abstract_mdp.n_states, 4), 0.25)
    chance, _ = evaluate(
        env.deploy(uniform, seed=0), ground, n_eval_episodes=40, deterministic=False
    )
    if place == "lake":
        assert reward == 1.0 > chance + 0.5  # it always arrives
    else:
        assert reward > chance + 5.0
    assert agent.metadata["agent"] == name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_probabilities_of_deep_agents(tmp_path: Path) -> None:
    library, _ = sb3()
    env = abstract_env(quiet_lake(), gamma=GAMMA)
    model = library.PPO("MlpPolicy", env, gamma=GAMMA, seed=0, device="cpu")
    agent = env.deploy(model, deterministic=False, seed=0)
    assert agent.policy.shape == (env.abstract_mdp.n_states, 4)
    best = env.deploy(model)
    count = env.aggregation.n_clusters
    assert agent.policy.argmax(axis=1)[:count].tolist() == best.policy[:count].tolist()
    drawn = np.array([int(model.predict(0)[0]) for _ in range(2_000)])
    share = np.bincount(drawn, minlength=4) / drawn.size
    np.testing.assert_allclose(share, agent.policy[0], atol=0.05)
    with pytest.raises(InvalidArgumentError, match="DQN does not"):
        env.deploy(library.DQN("MlpPolicy", env, device="cpu"), deterministic=False)
    other = library.PPO("MlpPolicy", quiet_lake(), device="cpu")
    with pytest.raises(InvalidArgumentError, match=r"trained on Discrete\(16\)"):
        env.deploy(other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("view", ["array", "image", "names"])
def test_vector_environments_of_stable_baselines(view: str) -> None:
    _, evaluate = sb3()
    vector = importlib.import_module("stable_baselines3.common.vec_env")
    env = small(Maze(view))
    many = vector.DummyVecEnv([lambda: Maze(view)] * 3)
    rewards, lengths = evaluate(
        env.deploy(env.value), many, n_eval_episodes=6, return_episode_rewards=True
    )
    assert (rewards, lengths) == ([1.0] * 6, [6] * 6)


# -- wrappers that remember ----------------------------------------------------------------------


class Recalled(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the last observation too, by code of somebody's own."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Tuple((env.observation_space, env.observation_space))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, info = self.env.reset(seed=seed, options=options)
        self.last = seen
        return (seen, seen), info

    def step(self, action: Any) -> Any:
        seen, *rest = self.env.step(action)
        both, self.last = (self.last, seen), seen
        return both, *rest


REMEMBERING: list[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = [
    lambda env: gym.wrappers.FrameStackObservation(env, 3),
    lambda env: gym.wrappers.DelayObservation(env, 1),
    lambda env: gym.wrappers.TimeAwareObservation(gym.wrappers.TimeLimit(env, 50)),
    Recalled,
]


@pytest.mark.parametrize("wrap", REMEMBERING)
@pytest.mark.parametrize("make", [lambda: Maze("array"), lake])
def test_remembered_observations_do_not_matter_to_clusters(
    make: Callable[[], gym.Env[Any, Any]],
    wrap: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]],
) -> None:
    plain, wrapped = small(make(), dynamics="ground"), small(wrap(make()), dynamics="ground")
    assert wrapped.mdp == plain.mdp
    rng = np.random.default_rng(0)
    policy = rng.integers(plain.abstract_mdp.n_actions, size=plain.abstract_mdp.n_states)
    assert wrapped.evaluate(policy).share.kept == plain.evaluate(policy).share.kept
    assert wrapped.reset(seed=0)[0] == plain.reset(seed=0)[0]
    for _ in range(100):
        action = int(rng.integers(plain.abstract_mdp.n_actions))
        seen, reward, is_over, *_ = wrapped.step(action)
        assert (seen, reward, is_over) == plain.step(action)[:3]
        if is_over:
            assert wrapped.reset(seed=1)[0] == plain.reset(seed=1)[0]
    with pytest.raises(ExtractionError, match="does not always look the same"):
        wrapped.deploy(policy)
