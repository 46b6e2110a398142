"""Distractor: more states, the same classes, and steps that follow the product model."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from bisim_abstract import InvalidArgumentError, Reading, bisimulation_classes, bisimulation_metric
from bisim_abstract.wrappers import Distractor, TabularEnv, extract_mdp

TAXI = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"


def test_taxi_with_a_hundred_backgrounds_has_the_classes_of_taxi() -> None:
    product = extract_mdp(Distractor(gym.make(TAXI)))
    assert product.n_states == 50_001
    assert product.terminal_state == 50_000
    classes = bisimulation_classes(product)
    base = bisimulation_classes(extract_mdp(TAXI))
    assert classes.n_classes == base.n_classes == 501
    assert classes.is_exact
    assert np.array_equal(classes.labels[:-1], np.repeat(base.labels[:-1], 100))


def test_distances_do_not_see_the_background() -> None:
    product = extract_mdp(Distractor(gym.make("FrozenLake-v1"), n_background=7))
    classes = bisimulation_classes(product, digits=10)
    seen = bisimulation_metric(product, 0.9, classes=classes)
    base = bisimulation_metric(extract_mdp("FrozenLake-v1"), 0.9)
    s, t = np.arange(0, 112, 7) + 3, np.arange(0, 112, 7) + 5
    lower, upper = seen.bounds(s[:, None], t)
    expected = base.upper[:16, :16]
    apart = ~np.eye(16, dtype=bool)
    assert np.abs(lower - expected)[apart].max() < 1e-9
    assert np.abs(upper - expected)[apart].max() < 1e-9


@pytest.mark.parametrize("terminal", ["absorb", "table"])
def test_rows_are_products(terminal: str) -> None:
    env = Distractor(gym.make("FrozenLake-v1"), n_background=4, support=2, seed=1)
    base = extract_mdp(env.env, reading=Reading(terminal=terminal)).kernel().toarray()
    product = extract_mdp(env, reading=Reading(terminal=terminal))
    dense = product.kernel().toarray()
    live = 16
    for s in range(live):
        for b in range(4):
            for a in range(4):
                row = np.outer(base[s * 4 + a, :live], env.chain[b]).ravel()
                found = dense[(s * 4 + b) * 4 + a]
                assert found[: live * 4] == pytest.approx(row)
                if terminal == "absorb":
                    assert found[-1] == pytest.approx(base[s * 4 + a, live])


def test_start_is_the_product_with_a_uniform_background() -> None:
    mdp = extract_mdp(Distractor(gym.make("FrozenLake-v1"), n_background=5))
    assert mdp.start[:5].tolist() == [0.2] * 5
    assert mdp.start[5:].sum() == 0.0


def test_steps_follow_the_model() -> None:
    env = TabularEnv(Distractor(gym.make("FrozenLake-v1"), n_background=3, support=2))
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=0)
    for _ in range(300):
        state, action = info["state"], int(rng.integers(4))
        assert observation == state
        observation, _, terminated, truncated, info = env.step(action)
        assert info["state"] in env.mdp.successors(state, action)[0]
        if terminated or truncated:
            observation, info = env.reset()


def test_background_statistics() -> None:
    env = Distractor(gym.make("bisim_abstract/RoomsGrid-v0"), n_background=3, support=2, seed=2)
    env.reset(seed=1)
    counts = np.zeros((3, 3))
    for k in range(6000):
        before = env.background
        _, _, _, truncated, _ = env.step(k % 4)
        counts[before, env.background] += 1
        if truncated:
            env.reset()
    freedom = 3  # three rows of two successors
    expected = env.chain * counts.sum(axis=1, keepdims=True)
    used = expected > 0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    assert statistic < freedom + 4.0 * np.sqrt(2.0 * freedom)
    assert (counts[env.chain == 0.0] == 0).all()


def test_the_wrapped_environment_behaves_as_it_would_alone() -> None:
    alone: Any = gym.make("FrozenLake-v1")
    wrapped = Distractor(gym.make("FrozenLake-v1"), n_background=10)
    first, _ = alone.reset(seed=5)
    seen, _ = wrapped.reset(seed=5)
    assert seen // 10 == first
    for k in range(100):
        result, other = alone.step(k % 4), wrapped.step(k % 4)
        assert (result[0], *result[1:4]) == (other[0] // 10, *other[1:4])
        if result[2] or result[3]:
            alone.reset()
            wrapped.reset()


def test_same_seed_same_walk() -> None:
    env = Distractor(gym.make("FrozenLake-v1"), n_background=10)
    walks = []
    for _ in range(2):
        env.reset(seed=9)
        walks.append([env.step(2)[4]["background"] for _ in range(5)])
    assert walks[0] == walks[1]


def test_nested_distractors_and_other_self_describing_environments() -> None:
    env = Distractor(Distractor(gym.make("FrozenLake-v1"), n_background=2), n_background=3, seed=1)
    mdp = extract_mdp(env)
    assert mdp.n_states == 16 * 6 + 1
    assert bisimulation_classes(mdp, digits=10).n_classes == 12
    rooms = Distractor(gym.make("bisim_abstract/RoomsGrid-v0", side=4, room_size=2), n_background=2)
    assert extract_mdp(rooms).n_states == 32


def test_other_observations_become_pairs() -> None:
    pytest.importorskip("minigrid")
    env = Distractor(gym.make("MiniGrid-Empty-5x5-v0"), n_background=2)
    assert isinstance(env.observation_space, spaces.Tuple)
    (_, background), info = env.reset(seed=0)
    assert background == info["background"]
    base = extract_mdp("MiniGrid-Empty-5x5-v0")
    assert extract_mdp(env).n_states == 2 * (base.n_states - 1) + 1


def test_a_given_chain_and_its_errors() -> None:
    chain = [[0.5, 0.5], [1.0, 0.0]]
    env = Distractor(gym.make("FrozenLake-v1"), chain=chain)
    assert env.n_background == 2
    assert env.chain.tolist() == chain
    with pytest.raises(InvalidArgumentError, match=r"sum to 1 by row, got \[0.5, 0.6\] in row 1"):
        Distractor(gym.make("FrozenLake-v1"), chain=[[0.5, 0.5], [0.5, 0.6]])
    with pytest.raises(InvalidArgumentError, match="square matrix"):
        Distractor(gym.make("FrozenLake-v1"), chain=[[1.0], [1.0]])
    with pytest.raises(InvalidArgumentError, match="support must be between 1 and 2, got 3"):
        Distractor(gym.make("FrozenLake-v1"), n_background=2, support=3)


def test_spec_round_trip_and_checker() -> None:
    env = Distractor(gym.make("FrozenLake-v1"), n_background=4, chain=None)
    spec = env.spec
    assert spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(spec.to_json()))
    assert isinstance(again, Distractor)
    assert extract_mdp(again) == extract_mdp(env)
    with pytest.warns(UserWarning, match="different from the unwrapped version"):
        check_env(env, skip_render_check=True)


def test_backgrounds_have_a_stream_of_their_own() -> None:
    env = Distractor(gym.make("FrozenLake-v1"), n_background=100)
    drawn = [env.reset(seed=seed)[1]["background"] for seed in range(20)]
    shared = [int(np.random.default_rng(seed).integers(100)) for seed in range(20)]
    assert sum(x == y for x, y in zip(drawn, shared, strict=True)) < 5


def test_backgrounds_leave_actions_of_states_as_they_are() -> None:
    env = Distractor(gym.make(TAXI), n_background=3)
    base, product = (
        extract_mdp(TAXI, reading=Reading(action_masks=True)),
        extract_mdp(env, reading=Reading(action_masks=True)),
    )
    assert product.available[:-1].tolist() == np.repeat(base.available[:-1], 3, axis=0).tolist()
    assert product.available[-1].all()
    assert not extract_mdp(env).has_action_sets
    told = TabularEnv(env, reading=Reading(action_masks=True))
    _, info = told.reset(seed=0)
    assert info["action_mask"].tolist() == base.available[info["state"] // 3].astype(int).tolist()
