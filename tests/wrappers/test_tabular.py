"""Extraction through wrappers: counts, values, refusals, and agreement with real steps."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from bisim_abstract import (
    InvalidArgumentError,
    Reading,
    TabularMDP,
    bisimulation_metric,
    certify,
    value_iteration,
)
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import AbstractedEnv, TabularEnv, extract_mdp, make_env

NEWER = "Taxi-v4" in gym.registry  # Gymnasium 1.3 renamed Taxi and CliffWalking
TAXI = "Taxi-v4" if NEWER else "Taxi-v3"

# Name, live states the start can reach, states entered at the end, optimal start value at 0.99.
# Rainy Taxi slips to other cells from Taxi-v4 on, so that its value differs.
KNOWN = [
    (TAXI, {}, 400, 4, 6.33),
    (TAXI, {"is_rainy": True}, 400, 4, 2.25 if NEWER else 2.72),
    ("FrozenLake-v1", {}, 11, 5, 0.542),
    ("FrozenLake8x8-v1", {}, 53, 11, 0.4146),
    ("CliffWalking-v1", {}, 37, 1, -12.25),
    ("CliffWalkingSlippery-v1", {}, 37, 1, -46.35),
]


@pytest.mark.parametrize(("env_id", "kwargs", "live", "ends", "value"), KNOWN)
def test_known_counts_and_start_values(
    env_id: str, kwargs: dict[str, Any], live: int, ends: int, value: float
) -> None:
    mdp = extract_mdp(env_id, env_args=kwargs, reading=Reading(reachable_only=True))
    assert mdp.n_states == live + 1
    assert mdp.metadata["reachable_live"] == live
    assert mdp.metadata["reachable_terminal"] == ends
    low, high = value_iteration(mdp, 0.99).start_bounds(mdp)
    digits = len(str(value).split(".")[1])
    assert round(low, digits) == round(high, digits) == value


@pytest.mark.parametrize(("terminal", "states", "diameter"), [
    ("absorb", 501, 120.0),
    ("table", 500, 200.526),
])  # fmt: skip
def test_taxi_diameter(terminal: str, states: int, diameter: float) -> None:
    mdp = extract_mdp(TAXI, reading=Reading(terminal=terminal))
    assert mdp.n_states == states
    metric = bisimulation_metric(mdp, 0.9)
    low, high = metric.diameter
    assert round(low, 3) == round(high, 3) == diameter
    assert metric.is_converged
    assert metric.tol == pytest.approx(1e-9 * diameter, rel=1e-3)


def test_ignoring_the_end_of_an_episode_would_give_another_value() -> None:
    literal = extract_mdp(TAXI, reading=Reading(terminal="table", reachable_only=True))
    low, _ = value_iteration(literal, 0.99).start_bounds(literal)
    assert 834 < low < 837  # the wrong answer that following the table beyond the end gives


def test_state_ids_lead_back_to_the_environment() -> None:
    mdp = extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True))
    holes = {5, 7, 11, 12, 15}
    assert mdp.state_ids.tolist() == [s for s in range(16) if s not in holes] + [-1]


def expected_outcome(table: Any, state: int, action: int) -> tuple[dict[int, float], float]:
    """Next-state distribution and expected reward, written out directly."""
    mass: dict[int, float] = {}
    mean = 0.0
    for prob, successor, reward, done in table[state][action]:
        target = -1 if done else successor
        mass[target] = mass.get(target, 0.0) + prob
        mean += prob * reward
    return mass, mean


@pytest.mark.parametrize("env_id", [TAXI, "FrozenLake8x8-v1", "CliffWalkingSlippery-v1"])
def test_rows_and_rewards_are_those_of_the_table(env_id: str) -> None:
    env: Any = gym.make(env_id).unwrapped
    mdp = extract_mdp(env)
    ids = mdp.state_ids.tolist()
    for state in range(0, len(env.P), 7):
        for action in range(mdp.n_actions):
            mass, mean = expected_outcome(env.P, state, action)
            successors, probs = mdp.successors(state, action)
            found = {ids[t]: p for t, p in zip(successors, probs, strict=True)}
            assert found == pytest.approx(mass)
            assert mdp.rewards[state, action] == pytest.approx(mean)
    assert np.array_equal(mdp.start[:-1], env.initial_state_distrib)


def test_custom_and_seeded_random_maps() -> None:
    custom = extract_mdp("FrozenLake-v1", env_args={"desc": ["SF", "HG"], "is_slippery": False})
    assert custom.n_states == 5
    maps = [generate_random_map(6, seed=3) for _ in range(2)]
    models = [extract_mdp("FrozenLake-v1", env_args={"desc": m}) for m in maps]
    assert models[0] == models[1]
    other = extract_mdp("FrozenLake-v1", env_args={"desc": generate_random_map(6, seed=4)})
    assert models[0] != other


def test_unseeded_random_map_is_refused() -> None:
    with pytest.raises(ExtractionError, match=r"no seed controls.*generate_random_map"):
        extract_mdp("FrozenLake-v1", env_args={"map_name": None})


def test_a_retired_or_newer_id_is_resolved_with_a_warning_that_names_both() -> None:
    missing = "Taxi-v3" if NEWER else "Taxi-v4"
    with pytest.warns(UserWarning, match=f"{missing} is not in Gymnasium.*using {TAXI}"):
        mdp = extract_mdp(missing)
    assert mdp == extract_mdp(TAXI)
    with pytest.warns(UserWarning, match=r"options such as \['is_rainy'\] may not"):
        extract_mdp(missing, env_args={"is_rainy": True})
    with pytest.warns(UserWarning, match="CliffWalking-v0 is not in Gymnasium"):
        assert extract_mdp("CliffWalking-v0") == extract_mdp("CliffWalking-v1")


def test_unknown_ids_and_arguments_are_named() -> None:
    with pytest.raises(ExtractionError, match="no environment 'NoSuchEnv-v0'"):
        extract_mdp("NoSuchEnv-v0")
    with pytest.raises(ExtractionError, match=r"does not take these arguments.*colour"):
        make_env(TAXI, colour="red")
    with pytest.raises(ExtractionError, match="env_args goes with an environment id"):
        extract_mdp(gym.make(TAXI), env_args={"is_rainy": True})
    with pytest.raises(InvalidArgumentError, match="terminal must be one of"):
        extract_mdp(TAXI, reading=Reading(terminal="ignore"))


# -- what is refused -------------------------------------------------------------------------


def test_fickle_taxi_is_refused() -> None:
    with pytest.raises(ExtractionError, match="fickle_passenger"):
        extract_mdp(TAXI, env_args={"fickle_passenger": True})


def test_continuous_observations_are_refused() -> None:
    with pytest.raises(ExtractionError, match="continuous observations"):
        extract_mdp("CartPole-v1")


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(ExtractionError, match="actions must be Discrete"):
        extract_mdp("Pendulum-v1")


def test_vector_environments_and_other_objects_are_refused() -> None:
    vector: Any = gym.make_vec(TAXI, num_envs=2, vectorization_mode="sync")
    with pytest.raises(ExtractionError, match="vector environment"):
        extract_mdp(vector)
    wrong: Any = 3
    with pytest.raises(ExtractionError, match="got int"):
        extract_mdp(wrong)


def test_reward_wrappers_are_refused_by_name() -> None:
    env = gym.wrappers.TransformReward(gym.make(TAXI), lambda reward: 2.0 * float(reward))
    with pytest.raises(ExtractionError, match="TransformReward changes rewards"):
        extract_mdp(env)


class Doubling(gym.Wrapper[Any, Any, Any, Any]):
    """Changes rewards without saying so by its type."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, 2.0 * float(reward), terminated, truncated, info


class Swapping(gym.Wrapper[Any, Any, Any, Any]):
    """Changes what an action does."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        return self.env.step(1 - action if action < 2 else action)


class Endless(gym.Wrapper[Any, Any, Any, Any]):
    """Goes on where the table says that the episode ends."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, False, truncated, info


class Hasty(gym.Wrapper[Any, Any, Any, Any]):
    """Ends episodes where the table goes on."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, True, truncated, info


@pytest.mark.parametrize(
    ("wrapper", "env_id"),
    [
        (Endless, "FrozenLake-v1"),
        (Hasty, "FrozenLake-v1"),
        (Hasty, TAXI),
        (Endless, "MiniGrid-Empty-5x5-v0"),
        (Doubling, TAXI),
        (Swapping, TAXI),
        (Swapping, "bisim_abstract/RoomsGrid-v0"),
        (Swapping, "MiniGrid-Empty-5x5-v0"),
    ],
)
def test_wrappers_that_change_the_dynamics_are_noticed(wrapper: Any, env_id: str) -> None:
    if env_id.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    with pytest.raises(ExtractionError, match=f"contradicts its table.*{wrapper.__name__}"):
        extract_mdp(wrapper(gym.make(env_id)))


def test_harmless_wrappers_are_looked_through() -> None:
    env: gym.Env[Any, Any] = gym.make("FrozenLake-v1")
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(env, 7))
    env = gym.wrappers.TransformObservation(env, lambda o: o, env.observation_space)
    assert extract_mdp(env) == extract_mdp("FrozenLake-v1")


def test_the_environment_is_left_as_it_was() -> None:
    env = gym.make(TAXI)
    env.reset(seed=3)
    inner: Any = env.unwrapped
    before, bits = inner.s, inner.np_random.bit_generator.state
    extract_mdp(env)
    assert inner.s == before
    assert inner.np_random.bit_generator.state == bits


class Bare(gym.Env[int, int]):
    """A table without a start distribution."""

    def __init__(self, starts: int = 1, table: Any = None) -> None:
        self.P = table or {s: {0: [(1.0, (s + 1) % 3, float(s), s == 2)]} for s in range(3)}
        self.observation_space = spaces.Discrete(3)
        self.action_space = spaces.Discrete(1)
        self.starts, self.s = starts, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.s = int(self.np_random.integers(self.starts))
        return self.s, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        _, successor, reward, done = self.P[self.s][int(action)][0]
        self.s = successor
        return self.s, reward, done, False, {}


def test_start_found_by_resetting() -> None:
    assert extract_mdp(Bare()).start.tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(ExtractionError, match=r"starts in several states.*Reading\(start"):
        extract_mdp(Bare(starts=2))
    given = extract_mdp(Bare(starts=2), reading=Reading(start=[0.5, 0.5, 0.0]))
    assert given.start.tolist() == [0.5, 0.5, 0.0, 0.0]


def test_a_start_that_excludes_real_resets_is_noticed() -> None:
    with pytest.raises(ExtractionError, match="start distribution"):
        extract_mdp(Bare(), reading=Reading(start=[0.0, 1.0, 0.0]))


def test_a_broken_table_is_named() -> None:
    table = {0: {0: [(0.5, 0, 0.0, False)]}}
    with pytest.raises(ExtractionError, match=r"must sum to 1, got 0.5 at state 0, action 0"):
        extract_mdp(Bare(table=table))


# -- TabularEnv ------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", ["absorb", "table"])
def test_tabular_env_tells_the_state(terminal: str) -> None:
    env = TabularEnv(gym.make("FrozenLake-v1"), reading=Reading(terminal=terminal))
    mdp = env.mdp
    rng = np.random.default_rng(0)
    ended = 0
    _, info = env.reset(seed=0)
    for _ in range(500):
        state, action = info["state"], int(rng.integers(4))
        observation, _, terminated, truncated, info = env.step(np.array(action))
        assert info["env_state"] == observation
        assert info["state"] in mdp.successors(state, action)[0]
        if terminated:
            ended += 1
            assert (info["state"] == mdp.terminal_state) == (terminal == "absorb")
        if terminated or truncated:
            _, info = env.reset()
    assert ended > 10


class Redrawn(Bare):
    """Three places in a circle without a table, of which a seed decides what each pays."""

    def __init__(self) -> None:
        super().__init__()
        del self.P
        self.pays = [0.0, 0.0, 0.0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.pays = self.np_random.random(3).tolist()
        return observation, info

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = self.pays[self.s]
        self.s = (self.s + 1) % 3
        return self.s, reward, False, False, {}


def test_an_enumerated_model_stays_that_of_its_one_seed() -> None:
    env = TabularEnv(Redrawn(), reading=Reading(seed=7, starts=1))
    assert env.mdp.metadata["method"] == "enumeration"
    for seed in (7, 8, None):
        _, info = env.reset(seed=seed)
        for _ in range(6):
            expected = env.mdp.rewards[info["state"], 0]
            _, reward, _, _, info = env.step(0)
            assert reward == expected
    other = TabularEnv(Redrawn(), reading=Reading(seed=8, starts=1))
    assert set(other.mdp.rewards.ravel()).isdisjoint(env.mdp.rewards.ravel())


def test_clusters_of_an_enumerated_model_stay_those_of_its_one_seed() -> None:
    mdp = extract_mdp(Redrawn(), reading=Reading(seed=7, starts=1))
    certificate = certify(mdp, 0.9, tau=1e-6)
    assert certificate.n_clusters == 3
    env = AbstractedEnv(
        Redrawn(), certificate, dynamics="ground", reading=Reading(seed=7, starts=1)
    )
    for seed in (7, 8, None):
        _, info = env.reset(seed=seed)
        for _ in range(6):
            expected = env.mdp.rewards[info["state"], 0]
            _, reward, _, _, info = env.step(0)
            assert reward == expected


def test_tabular_env_statistics_match_the_rows() -> None:
    """Chi-square of sampled next states against the model's rows."""
    env = TabularEnv(gym.make("FrozenLake-v1"))
    counts = np.zeros((17, 4, 17))
    rng = np.random.default_rng(1)
    _, info = env.reset(seed=1)
    for _ in range(6000):
        state, action = info["state"], int(rng.integers(4))
        _, _, terminated, truncated, info = env.step(action)
        counts[state, action, info["state"]] += 1
        if terminated or truncated:
            _, info = env.reset()
    dense = env.mdp.kernel().toarray().reshape(17, 4, 17)
    visits = counts.sum(axis=2, keepdims=True)
    expected = dense * visits
    used = (expected >= 5.0) & (visits >= 30)
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    freedom = int(used.sum()) - int((used.any(axis=2)).sum())
    assert freedom > 40
    assert abs(statistic - freedom) < 4.0 * np.sqrt(2.0 * freedom)
    assert (counts[dense == 0.0] == 0).all()


def test_tabular_env_can_be_made_from_its_spec() -> None:
    env = TabularEnv(gym.make(TAXI), reading=Reading(reachable_only=True))
    spec = env.spec
    assert spec is not None
    again = gym.make(spec)
    assert isinstance(again, TabularEnv)
    assert again.mdp == env.mdp
    assert gym.envs.registration.EnvSpec.from_json(spec.to_json()) is not None


def test_tabular_env_notices_a_state_outside_its_model() -> None:
    env = TabularEnv(gym.make("FrozenLake-v1"), reading=Reading(reachable_only=True))
    env.reset(seed=0)
    inner: Any = env.unwrapped
    inner.s = 5  # a hole
    with pytest.raises(ExtractionError, match="state 5, which its model does not have"):
        env._with_state({}, terminated=False)


def test_model_of_minigrid_through_extract() -> None:
    pytest.importorskip("minigrid")
    mdp = extract_mdp("MiniGrid-Empty-5x5-v0")
    assert isinstance(mdp, TabularMDP)
    assert mdp.metadata["env"] == "MiniGrid-Empty-5x5-v0"
    assert value_iteration(mdp, 0.9).start_bounds(mdp)[0] > 0.0


# -- action masks --------------------------------------------------------------------------------


def test_taxi_tells_which_actions_states_have() -> None:
    mdp, whole = extract_mdp(TAXI, reading=Reading(action_masks=True)), extract_mdp(TAXI)
    assert mdp.has_action_sets
    assert not whole.has_action_sets
    assert mdp.metadata["action_masks"] is True
    assert "action_masks" not in whole.metadata
    env: Any = gym.make(TAXI).unwrapped
    for s in range(500):
        assert mdp.available[s].tolist() == (env.action_mask(s) == 1).tolist()
    assert mdp.available[500].all()  # the end
    # South and north are missing in one row of five each, east and west in 11 of 25 cells; the
    # passenger gets in at four places, and out at four, whatever the destination.
    live = mdp.available[:500]
    assert live.sum(axis=0).tolist() == [400, 400, 280, 280, 16, 16]
    # What is left out bumps into walls, or is fined: nothing worth doing.
    masked, free = value_iteration(mdp, 0.99), value_iteration(whole, 0.99)
    np.testing.assert_allclose(masked.upper, free.upper, atol=1e-9)
    part = extract_mdp(TAXI, reading=Reading(action_masks=True, reachable_only=True))
    assert part.n_states == 401
    assert part.metadata["reachable_live"] == 400
    literal = extract_mdp(TAXI, reading=Reading(action_masks=True, terminal="table"))
    assert literal.available.tolist() == live.tolist()


def test_the_state_wrapper_tells_masks() -> None:
    env = TabularEnv(gym.make(TAXI), reading=Reading(action_masks=True))
    with pytest.raises(gym.error.ResetNeeded, match="before action_masks"):
        env.action_masks()
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    for _ in range(200):
        own = env.action_masks()
        assert own.tolist() == env.mdp.available[info["state"]].tolist()
        assert info["action_mask"].tolist() == own.astype(int).tolist()
        assert info["action_mask"].dtype == np.int8
        _, _, terminated, truncated, info = env.step(int(rng.choice(np.flatnonzero(own))))
        if terminated or truncated:
            _, info = env.reset()
    assert env.spec is not None
    again: Any = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.mdp == env.mdp
    plain = TabularEnv(gym.make("FrozenLake-v1"))
    _, info = plain.reset(seed=0)
    assert "action_mask" not in info
    assert plain.action_masks().tolist() == [True] * 4


class Masked(gym.Env[Any, Any]):
    """Three states in a row with a table; the last one can only go back."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)
    initial_state_distrib = np.array([1.0, 0.0, 0.0])

    def __init__(self, masks: Any = ((1, 1), (1, 1), (1, 0)), told: Any = None) -> None:
        self.masks = masks
        self.told = masks if told is None else told  # in info
        self.P = {
            s: {a: [(1.0, (s + 2 * a - 1) % 3, float(a), False)] for a in range(2)}
            for s in range(3)
        }
        self.s = 0

    def action_mask(self, state: int) -> Any:
        return self.masks[state]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = 0
        return 0, {"action_mask": np.array(self.told[0], np.int8)}

    def step(self, action: Any) -> Any:
        if not self.masks[self.s][action]:
            raise RuntimeError("there is no such action")
        _, self.s, reward, _ = self.P[self.s][action][0]
        return self.s, reward, False, False, {"action_mask": np.array(self.told[self.s], np.int8)}


def test_what_a_state_lacks_is_never_tried() -> None:
    mdp = extract_mdp(Masked(), reading=Reading(action_masks=True))
    assert mdp.available[:3].tolist() == [[True, True], [True, True], [True, False]]
    assert mdp.successors(2, 1)[0].tolist() == [1]  # as action 0 does
    with pytest.raises(RuntimeError, match="no such action"):
        extract_mdp(Masked())


@pytest.mark.parametrize(
    ("masks", "told", "message"),
    [
        (((1, 1), (1, 1), (0, 0)), None, "mask of state 2 of Masked allows nothing"),
        (((1, 1), (1,), (1, 0)), ((1, 1),) * 3, "must be 2 numbers, .* got .1,. for state 1"),
        (((1, 1), (0.5, 1), (1, 0)), None, "must be 2 numbers"),
        (((1, 1), (1, 1), (1, 0)), ((1, 1),) * 3, r"action mask \[True, True\], not \[True, False"),
    ],
)
def test_bad_masks_are_refused(masks: Any, told: Any, message: str) -> None:
    with pytest.raises(ExtractionError, match=message):
        extract_mdp(Masked(masks, told), reading=Reading(action_masks=True))


def test_who_tells_no_masks_says_so() -> None:
    for name in ("FrozenLake-v1", "bisim_abstract/RoomsGrid-v0"):
        with pytest.raises(ExtractionError, match=r"does not tell .* give it a method action_mask"):
            extract_mdp(name, reading=Reading(action_masks=True))


class Described(Masked):
    """The same, describing itself."""

    def state_id(self) -> int:
        return self.s

    def to_mdp(self, *, terminal: str = "absorb") -> TabularMDP:
        return TabularMDP.from_table(self.P, start=[1.0, 0.0, 0.0], terminal="table")


def test_what_describes_itself_is_asked_for_masks_too() -> None:
    mdp = extract_mdp(Described(), reading=Reading(action_masks=True))
    assert mdp.metadata["method"] == "self"
    assert mdp.available.tolist() == [[True, True], [True, True], [True, False]]
