"""Steps of `AbstractedEnv` follow the kernel, or the environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    Reading,
    certify,
)
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import (
    AbstractedEnv,
    Distractor,
    RoomsGridEnv,
    extract_mdp,
)
from tests.support.abstractions import GAMMA, Leaves, Tilted, lake, rooms

# -- steps -------------------------------------------------------------------------------------


def chi_square(counts: Any, probs: Any) -> float:
    """Standardised statistic over rows of counts; infinite if something impossible happened."""
    if (counts[probs == 0.0] > 0).any():
        return np.inf
    expected = probs * counts.sum(axis=-1, keepdims=True)
    used = expected >= 5.0
    freedom = int(used.sum() - used.any(axis=-1).sum())
    statistic = float(((counts - expected)[used] ** 2 / expected[used]).sum())
    return float(abs(statistic - freedom) / np.sqrt(2.0 * freedom))


@pytest.mark.parametrize("name", ["rooms", "lake"])
def test_aggregated_steps_follow_the_kernel(
    name: str, of_rooms: Certificate, of_lake: Certificate
) -> None:
    ground = rooms() if name == "rooms" else lake()
    env = AbstractedEnv(ground, of_rooms if name == "rooms" else of_lake, weighting="visitation")
    small = env.abstract_mdp
    counts = np.zeros((small.n_states, small.n_actions, small.n_states))
    starts = np.zeros(small.n_states)
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    for _ in range(30_000):
        action = int(rng.integers(small.n_actions))
        after, reward, terminated, truncated, _ = env.step(action)
        assert reward == small.rewards[observation, action]
        assert terminated == (after == small.terminal_state)
        counts[observation, action, after] += 1
        observation = after
        if terminated or truncated:
            observation, _ = env.reset()
            starts[observation] += 1
    dense = small.kernel().toarray().reshape(counts.shape)
    assert chi_square(counts, dense) < 4.0
    if name == "rooms":
        assert chi_square(starts, small.start) < 4.0
    wrong = np.roll(dense, 1, axis=2)
    assert chi_square(counts, wrong) > 100.0  # the test can fail


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_episodes_start_as_they_should(dynamics: str) -> None:
    ground = Tilted()
    env = AbstractedEnv(ground, certify(extract_mdp(ground), GAMMA, tau=1.0), dynamics=dynamics)
    assert env.abstract_mdp.start.tolist() == [0.75, 0.25, 0.0]  # never at the end
    counts = np.zeros(3)
    env.reset(seed=0)
    for _ in range(4_000):
        counts[env.reset()[0]] += 1
    assert chi_square(counts, env.abstract_mdp.start) < 4.0


@pytest.mark.parametrize("name", ["rooms", "lake"])
def test_ground_steps_follow_the_environment(
    name: str, of_rooms: Certificate, of_lake: Certificate
) -> None:
    ground = rooms() if name == "rooms" else lake()
    env = AbstractedEnv(ground, of_rooms if name == "rooms" else of_lake, dynamics="ground")
    mdp, labels = env.mdp, env.labels
    counts = np.zeros((mdp.n_states, mdp.n_actions, env.abstract_mdp.n_states))
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=0)
    for _ in range(30_000):
        assert observation == labels[info["state"]] == info["cluster"]
        state, action = info["state"], int(rng.integers(mdp.n_actions))
        observation, _, terminated, truncated, info = env.step(action)
        counts[state, action, observation] += 1
        if terminated or truncated:
            observation, info = env.reset()
    dense = mdp.kernel().toarray().reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
    pushed = np.stack([dense[:, :, labels == k].sum(axis=2) for k in range(counts.shape[2])], 2)
    assert chi_square(counts, pushed) < 4.0


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_episodes_end_at_their_rate_though_the_end_is_in_the_cluster(dynamics: str) -> None:
    """No rewards: all states, the end included, are at distance 0 and form one cluster."""
    ground = Leaves()
    certificate = certify(extract_mdp(ground), GAMMA, tau=0.5)
    assert certificate.labels_upper.tolist() == [0, 0, 0]
    env = AbstractedEnv(ground, certificate, dynamics=dynamics)
    assert env.abstract_mdp.n_states == 2
    np.testing.assert_allclose(env.abstract_mdp.successors(0, 0)[1], [0.975, 0.025])
    assert env.reset(seed=0)[0] == 0
    ends, steps = 0, 20_000
    for _ in range(steps):
        observation, _, terminated, _, _ = env.step(0)
        assert observation == int(terminated)
        ends += terminated
        if terminated:
            assert env.reset()[0] == 0
    # Half of the steps are taken in each live state, a little more in the first.
    expected = 0.025 if dynamics == "aggregated" else 0.05 / 1.95
    assert abs(ends / steps - expected) < 4.0 * np.sqrt(expected / steps)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_time_limits_hold(of_rooms: Certificate, dynamics: str) -> None:
    env = AbstractedEnv(rooms(max_episode_steps=7), of_rooms, dynamics=dynamics)
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(7)] == [False] * 6 + [True]
    inner: gym.Env[Any, Any] = gym.wrappers.TimeLimit(rooms(max_episode_steps=7), 3)
    env = AbstractedEnv(inner, of_rooms, dynamics=dynamics)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
    free = AbstractedEnv(RoomsGridEnv(side=6, room_size=3, slip=0.4), of_rooms, dynamics=dynamics)
    free.reset(seed=0)
    assert not any(free.step(0)[3] for _ in range(500))


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_seeds(of_rooms: Certificate, dynamics: str) -> None:
    env = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
    walks = []
    for seed in (3, 3, 4):
        walk = [int(env.reset(seed=seed)[0])]
        assert env.np_random_seed == seed
        walk += [int(env.step(k % 4)[0]) for k in range(60)]
        walk += [int(env.reset()[0])]  # the stream goes on
        walks.append(walk)
    assert walks[0] == walks[1] != walks[2]
    env.np_random = np.random.default_rng(5)
    assert env.np_random_seed == -1
    unseeded = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
    assert isinstance(unseeded.np_random, np.random.Generator)


def test_actions(of_rooms: Certificate) -> None:
    for dynamics in ("aggregated", "ground"):
        env = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
        env.reset(seed=0)
        for action in (1, np.int64(1), np.array(1)):
            observation, reward, terminated, truncated, _ = env.step(action)
            assert isinstance(observation, np.int64)
            assert isinstance(reward, float)
            assert type(terminated) is type(truncated) is bool
    env = AbstractedEnv(rooms(), of_rooms)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="action must be between 0 and 3, got 4"):
        env.step(4)


def test_steps_after_the_end_stay_there(of_lake: Certificate) -> None:
    env = AbstractedEnv(lake(), of_lake)
    env.reset(seed=0)
    while not env.step(2)[2]:
        pass
    observation, reward, terminated, _, _ = env.step(2)
    assert (int(observation), reward, terminated) == (env.abstract_mdp.terminal_state, 0.0, True)


def test_unknown_states_are_named(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(), of_rooms, dynamics="ground")
    env.reset(seed=0)
    env._place = {}
    with pytest.raises(ExtractionError, match="which its model does not have"):
        env.step(0)


def test_a_background_is_abstracted_away() -> None:
    ground = Distractor(lake(), n_background=5)
    env = AbstractedEnv(ground, certify(extract_mdp(ground), GAMMA, tau=1e-9), dynamics="ground")
    plain = extract_mdp(lake())
    assert env.mdp.n_states == 5 * 16 + 1
    assert env.aggregation.n_clusters <= 16
    assert plain.n_states == 17
    _, info = env.reset(seed=0)
    assert "background" in info
    assert info["env_state"] == ground.state_id()


def test_enumerated_environments() -> None:
    pytest.importorskip("minigrid")
    from bisim_abstract.wrappers import make_env

    ground = make_env("MiniGrid-Empty-5x5-v0")
    mdp = extract_mdp(ground, reading=Reading(seed=0))
    certificate = certify(mdp, GAMMA, tau=1e-9)
    env = AbstractedEnv(ground, certificate)
    walks = []
    for seed in (0, 1):
        env.reset(seed=seed)
        walks.append([int(env.step(k % 3)[0]) for k in range(20)])
    assert env.aggregation.n_clusters > 1
    below = AbstractedEnv(ground, certificate, dynamics="ground")
    observation, info = below.reset(seed=5)  # the layout of the one seed, whatever is asked for
    assert info["state"] in np.flatnonzero(mdp.start)
    for k in range(50):
        observation, _, terminated, truncated, info = below.step(k % 3)
        assert observation == below.labels[info["state"]]
        if terminated or truncated:
            below.reset()
