"""The yardstick agent by hand, and scores against values worked out on paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import (
    Curve,
    InvalidArgumentError,
    QLearning,
    TabularMDP,
    learning_curve,
    value_iteration,
)
from bisim_abstract.parts import score_above_baseline


class Table(gym.Env[Any, Any]):
    """A deterministic environment: rewards and next states by state and action, -1 ends it."""

    def __init__(
        self, rewards: Sequence[Sequence[float]], after: Sequence[Sequence[int]], *, limit: int = 0
    ) -> None:
        self.rewards, self.after, self.limit = rewards, after, limit
        self.observation_space = gym.spaces.Discrete(len(rewards))
        self.action_space = gym.spaces.Discrete(len(rewards[0]))
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.s, self.t = 0, 0
        return self.s, {"state": 0}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = self.rewards[self.s][action]
        self.s, self.t = self.after[self.s][action], self.t + 1
        ended = self.s < 0
        state = max(self.s, 0)
        return state, reward, ended, self.t == self.limit, {"state": state}


def bandit(*, limit: int = 0) -> Table:
    """One state for ever, paid 1 or 2."""
    return Table([[1.0, 2.0]], [[0, 0]], limit=limit)


def corridor() -> Table:
    """Action 1 leads from 0 over 1 and 2 to the end, which pays; action 0 leads back."""
    return Table([[0, 0], [0, 0], [0, 1]], [[0, 1], [0, 2], [1, -1]])


def choice() -> TabularMDP:
    """Start in state 0, where action 1 pays 1 and action 0 nothing; then the end."""
    P = np.zeros((2, 2, 2))
    P[:, :, 1] = 1.0
    rewards = [[0.0, 1.0], [0.0, 0.0]]
    return TabularMDP.from_dense(P, rewards, order="sas", start=[1.0, 0.0], terminal_state=1)


# -- the agent ---------------------------------------------------------------------------------


def test_updates_by_hand() -> None:
    agent = QLearning(bandit(), gamma=0.5, start=10.0, epsilon=(0.0, 0.0))
    # Step sizes are 1 at the first visit and 10/11 at the second; values ahead are halved.
    tables = [
        [6.0, 10.0],  # 1 + 10/2
        [6.0, 7.0],  # 2 + 10/2
        [6.0, 7.0 - 10 / 11 * (7.0 - 5.5)],  # 2 + 7/2
        [6.0 - 10 / 11 * (6.0 - 4.0), 7.0 - 15 / 11],  # 1 + 6/2
    ]
    policies = [1, 1, 0, 1]
    for step, (table, policy) in enumerate(zip(tables, policies, strict=True)):
        agent.learn(1)
        np.testing.assert_allclose(agent.table, [table], rtol=1e-14)
        assert agent.policy().tolist() == [policy]
        assert agent.steps == step + 1
    assert agent.visits.tolist() == [[2, 2]]
    assert agent.policy().dtype == np.int64


def test_nothing_lies_beyond_the_end() -> None:
    agent = QLearning(Table([[3.0]], [[-1]]), gamma=0.9, start=100.0)
    agent.learn(1)
    assert agent.table.tolist() == [[3.0]]


def test_a_time_limit_is_not_the_end() -> None:
    env = bandit(limit=1)
    agent = QLearning(env, gamma=0.5, start=10.0, epsilon=(0.0, 0.0))
    agent.learn(2)
    assert agent.table.tolist() == [[6.0, 7.0]]
    assert len(env.seeds) == 3  # the first reset, and one after every step


def test_resets_are_seeded_once() -> None:
    env = Table([[3.0]], [[-1]])
    QLearning(env, gamma=0.9, seed=5).learn(3)
    assert env.seeds == [5, None, None, None]


@pytest.mark.parametrize("seed", range(3))
def test_learns_the_way_out(seed: int) -> None:
    agent = QLearning(corridor(), gamma=0.9, start=1.0, epsilon=(1.0, 0.1), decay=200, seed=seed)
    agent.learn(400)
    assert agent.policy().tolist() == [1, 1, 1]
    np.testing.assert_allclose(agent.table[:, 1], [0.81, 0.9, 1.0], atol=0.02)


def test_learning_in_pieces_is_learning() -> None:
    agents = [
        QLearning(corridor(), gamma=0.9, start=1.0, epsilon=(0.0, 0.0), decay=50) for _ in range(2)
    ]
    agents[0].learn(60)
    for steps in (1, 0, 29, 30):
        agents[1].learn(steps)
    np.testing.assert_array_equal(agents[0].table, agents[1].table)
    assert agents[0].steps == agents[1].steps == 60


def test_exploration_falls() -> None:
    agent = QLearning(bandit(), gamma=0.0, start=0.0, epsilon=(1.0, 0.0), decay=1000, seed=0)
    agent.learn(1000)
    early = agent.visits.copy()
    assert early.min() > 150  # half of the steps are random on average
    agent.learn(1000)
    later = agent.visits - early
    assert later.tolist() == [[0, 1000]]  # and none of these


def test_the_seed_decides() -> None:
    def learned(seed: int) -> Any:
        agent = QLearning(corridor(), gamma=0.9, epsilon=(0.5, 0.5), seed=seed)
        agent.learn(100)
        return agent.visits

    np.testing.assert_array_equal(learned(3), learned(3))
    assert (learned(3) != learned(4)).any()


class Hidden(gym.ObservationWrapper[Any, Any, Any]):
    """The same environment seen as a constant picture."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2, 2))

    def observation(self, observation: Any) -> Any:
        return np.zeros((2, 2), np.float32)


def test_states_from_info() -> None:
    seen = QLearning(corridor(), gamma=0.9, start=1.0, epsilon=(0.3, 0.3))
    hidden = QLearning(Hidden(corridor()), gamma=0.9, start=1.0, epsilon=(0.3, 0.3), n_states=3)
    for agent in (seen, hidden):
        agent.learn(200)
    np.testing.assert_array_equal(seen.table, hidden.table)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gamma": 1.0}, "gamma must lie in"),
        ({"gamma": float("nan")}, "gamma must be finite"),
        ({"start": float("inf")}, "start must be finite"),
        ({"decay": 0}, "decay must be at least 1"),
        ({"decay": 1.5}, "decay must be a whole number"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        QLearning(bandit(), **{"gamma": 0.9} | settings)


def test_spaces_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="observation_space must be Discrete"):
        QLearning(Hidden(bandit()), gamma=0.9)
    shifted = bandit()
    shifted.observation_space = gym.spaces.Discrete(1, start=1)
    with pytest.raises(InvalidArgumentError, match="counted from 0"):
        QLearning(shifted, gamma=0.9)
    other: list[Any] = [gym.spaces.Box(0.0, 1.0), gym.spaces.Discrete(2, start=1)]
    for space in other:
        continuous = bandit()
        continuous.action_space = space
        with pytest.raises(InvalidArgumentError, match="action_space must be Discrete"):
            QLearning(continuous, gamma=0.9, n_states=1)


# -- curves ------------------------------------------------------------------------------------


def test_curve_by_hand() -> None:
    """The policies of `test_updates_by_hand`."""
    made: list[int] = []

    def make(seed: int) -> QLearning:
        made.append(seed)
        return QLearning(bandit(), gamma=0.5, start=10.0, epsilon=(0.0, 0.0), seed=seed)

    points = [1, 3, 4]
    curve = learning_curve("bandit", make, lambda policy: 0.5 + policy[0], points, seeds=2)
    assert (curve.name, curve.steps) == ("bandit", (1, 3, 4))
    assert curve.scores.tolist() == [[1.5, 0.5, 1.5]] * 2
    assert made == [0, 1]
    assert curve.at(3).tolist() == [0.5, 0.5]
    with pytest.raises(ValueError):
        curve.at(2)


def test_curves_repeat() -> None:
    mdp = TabularMDP.from_dense(
        np.array([[[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1]], [[0, 0, 1], [0, 0, 1]]]),
        [[0, 0], [0, 1], [0, 0]],
        start=[1.0, 0, 0],
        terminal_state=2,
    )
    env = Table([[0, 0], [0, 1], [0, 0]], [[0, 1], [0, -1], [0, 0]])
    score = score_above_baseline(mdp, 0.9)
    curves = [
        learning_curve(
            "x",
            lambda seed: QLearning(env, gamma=0.9, start=1.0, epsilon=(0.5, 0.1), seed=seed),
            score,
            [1, 20, 200],
            seeds=3,
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(curves[0].scores, curves[1].scores)
    np.testing.assert_allclose(curves[0].scores[:, -1], 1.0, atol=1e-9)


@pytest.mark.parametrize(
    ("scores", "level", "expected"),
    [
        ([[0.1, 0.5, 0.9]], 0.5, 20),  # the level itself counts
        ([[0.1, 0.5, 0.9]], 0.51, 30),
        ([[0.1, 0.5, 0.9]], 0.95, None),
        ([[0.1, 0.5, 0.9]], 0.0, 10),
        ([[0.9, 0.1, 0.9]], 0.5, 30),  # a dip: only what lasts counts
        ([[0.9, 0.9, 0.1]], 0.5, None),
        ([[0.9, 0.9, 0.9], [0.1, 0.9, 0.9]], 0.5, 20),  # all seeds
        ([[0.9, 0.1, 0.9], [0.1, 0.9, 0.9]], 0.5, 30),
        ([[np.nan, 0.9, 0.9]], 0.5, 20),
    ],
)
def test_first_above(scores: Any, level: float, expected: int | None) -> None:
    assert Curve("x", (10, 20, 30), np.array(scores)).first_above(level) == expected


# -- scores ------------------------------------------------------------------------------------


def crossing() -> TabularMDP:
    """Start in state 0, whose action 1 pays 1 and leads to state 1, whose action 0 pays 3.

    Whatever else is done ends it for nothing. At γ = 1/3 the best start value is 2, action 1 for
    ever is worth 1, random actions 3/4, and action 0 for ever nothing.
    """
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    P[0, 1] = [0.0, 1.0, 0.0]
    rewards = [[0.0, 1.0], [3.0, 0.0], [0.0, 0.0]]
    return TabularMDP.from_dense(P, rewards, order="sas", start=[1.0, 0.0, 0.0], terminal_state=2)


@pytest.mark.parametrize("gamma", [0.0, 1.0 / 3.0, 0.9])
def test_scores_by_hand(gamma: float) -> None:
    score = score_above_baseline(crossing(), gamma)
    if gamma == 0.0:  # action 1 for ever is best: nothing is to be decided
        assert score([1, 1, 0]) == score([1, 0, 0]) == 1.0
        assert np.isnan(score([0, 0, 0]))
        return
    best, base = 1.0 + 3.0 * gamma, max(1.0, 0.5 + 0.75 * gamma)
    for policy, own in (
        ([1, 0, 0], best),
        ([1, 1, 0], 1.0),
        ([0, 0, 0], 0.0),
        (np.full((3, 2), 0.5), 0.5 + 0.75 * gamma),
        (np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]), 1.0 + 1.5 * gamma),
    ):
        expected = (own - base) / (best - base)
        assert score(policy) == pytest.approx(expected, abs=1e-12)
        assert score(policy) <= expected + 1e-15


def test_scores_are_of_the_start() -> None:
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    mdp = TabularMDP.from_dense(
        P, [[0, 1], [8, 0], [0, 0]], start=[0.75, 0.25, 0.0], terminal_state=2
    )
    # The best start is 0.75 + 2, action 0 for ever has 2 of it.
    score = score_above_baseline(mdp, 0.9)
    assert score([1, 0, 0]) == pytest.approx(1.0, abs=1e-12)
    assert score([1, 1, 0]) == pytest.approx((0.75 - 2.0) / 0.75, abs=1e-9)
    assert score([0, 1, 0]) == pytest.approx((0.0 - 2.0) / 0.75, abs=1e-9)


def test_where_nothing_is_to_be_decided_a_policy_can_still_lose() -> None:
    score = score_above_baseline(choice(), 0.9)  # action 1 for ever is best
    assert score([1, 0]) == 1.0
    assert np.isnan(score([0, 1]))
    curve = learning_curve(
        "lost", lambda seed: QLearning(bandit(), gamma=0.5), lambda _: score([0, 1]), [1, 2]
    )
    assert curve.first_above(-1e9) is None


def test_known_optimal_values_are_used() -> None:
    mdp = crossing()
    best = value_iteration(mdp, 0.9)
    policy = [1, 1, 0]
    given = score_above_baseline(mdp, 0.9, optimal=best)(policy)
    assert given == score_above_baseline(mdp, 0.9)(policy) < 0.01
    with pytest.raises(InvalidArgumentError, match="optimal must be"):
        score_above_baseline(mdp, 0.8, optimal=best)
    with pytest.raises(InvalidArgumentError, match="gamma"):
        score_above_baseline(mdp, 1.0)


def test_where_all_policies_are_best() -> None:
    P = np.zeros((3, 2, 3))
    P[0, :, 1] = P[1, :, 2] = P[2, :, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [[1.0, 1.0], [0.3, 0.3], [0.1, 0.1]])
    score = score_above_baseline(mdp, 0.9)
    assert score([0, 0, 0]) == pytest.approx(1.0)
    assert score([1, 0, 1]) == pytest.approx(1.0)


# -- action masks --------------------------------------------------------------------------------


class Tempting(Table):
    """What a state lacks would pay most, and is noticed."""

    masks = np.array([[True, True, False], [False, True, True]])

    def __init__(self) -> None:
        super().__init__([[0.0, 1.0, 9.0], [9.0, 0.0, 1.0]], [[0, 1, 0], [0, 0, 1]])

    def action_masks(self) -> Any:
        return self.masks[self.s]

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert self.masks[self.s][action]
        return super().step(action)


def test_only_actions_that_there_are_are_tried_and_chosen() -> None:
    agent = QLearning(
        gym.wrappers.TimeLimit(Tempting(), 30), gamma=0.5, start=5.0, epsilon=(0.5, 0.5)
    )
    agent.learn(3_000)
    assert agent.available.tolist() == Tempting.masks.tolist()
    assert (agent.visits[~Tempting.masks] == 0).all()
    assert (agent.visits[Tempting.masks] > 50).all()
    assert agent.policy().tolist() == [1, 2]
    # Had what is lacking counted ahead, these would be far above 2.
    np.testing.assert_allclose(agent.table[[0, 1], [1, 2]], 2.0, atol=0.1)


def test_scores_are_measured_by_the_actions_of_states() -> None:
    # Acting at random takes what pays 1 and what pays 0, and not what is not there.
    P = np.ones((1, 3, 1))
    mdp = TabularMDP.from_dense(P, [[1.0, 0.0, -9.0]], available=[[True, True, False]], order="sas")
    score = score_above_baseline(mdp, 0.5)
    assert score([0]) == score([2]) == 1.0  # lacking: what the first one does
    assert np.isnan(score([1]))
    # From the first state, which pays for action 0 alone, to the second, which lacks it.
    P = np.array([[[0, 1], [0, 1], [0, 1]], [[0, 1], [0, 1], [0, 1]]])
    rewards, mask = [[2.0, 0.0, 0.0], [9.0, 0.0, 1.0]], [[True, True, False], [False, True, True]]
    mdp = TabularMDP.from_dense(P, rewards, start=[1.0, 0.0], available=mask, order="sas")
    score = score_above_baseline(mdp, 0.5)
    # Best: 2, then 1 for ever, which is 3. Action 0 for ever is random in the second state, and
    # action 2 in the first: 2 + 1/2, and 1 + 1. So 0 is 5/2.
    assert score([0, 2]) == pytest.approx(1.0, abs=1e-9)
    assert score([0, 1]) == pytest.approx(-1.0, abs=1e-9)
    assert score([0, 0]) == pytest.approx(-1.0, abs=1e-9)
    assert score([1, 2]) == pytest.approx(-3.0, abs=1e-9)
