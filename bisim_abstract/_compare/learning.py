"""A tabular agent, and learning curves that are evaluated and not estimated.

Agents here are yardsticks: how fast does one learn on an abstraction, and the same one on raw
states? Policies along the way are scored on the ground model, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from bisim_abstract._abstract.baseline import find_baseline
from bisim_abstract._abstract.value_loss import check_optimal, value_loss
from bisim_abstract._base.checks import check_gamma, check_int, check_real
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.progress import shown
from bisim_abstract._base.types import FloatArray, IntArray, Progress, ProgressCallback
from bisim_abstract._exact.planning import Values, value_iteration
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["Curve", "QLearning", "learning_curve", "score_above_baseline"]


@dataclass(frozen=True, eq=False)
class Curve:
    """Scores that an agent's policy reaches, by steps taken.

    Attributes:
        name: For legends.
        steps: Environment steps at which it was looked at, rising.
        scores: (seeds, points) scores there.
        measure: What a score is, for axes.
    """

    name: str
    steps: tuple[int, ...]
    scores: FloatArray
    measure: str = "score"

    def at(self, steps: int) -> FloatArray:
        """(seeds) the scores at so many steps, one of `steps`."""
        return self.scores[:, self.steps.index(steps)]

    def first_above(self, level: float) -> int | None:
        """The first point from which on all seeds are at the level or above."""
        is_above = (self.scores >= level).all(axis=0)
        below = np.flatnonzero(~is_above)
        k = int(below[-1]) + 1 if below.size else 0
        return self.steps[k] if k < len(self.steps) else None


class QLearning:
    """Tabular Q-learning, epsilon-greedy, with a step size that falls with the visits of a pair.

    Where the environment has `action_masks()`, as `AbstractedEnv` and `TabularEnv` do, only
    actions that a state has are tried, learned of, and chosen.

    Args:
        env: An environment with Discrete observations (unless `n_states` is given) and actions.
        gamma: The discount, in [0, 1).
        start: The first value of all entries; high ones make it try everything.
        n_states: If given, the state is `info["state"]`, one of so many, not the observation.
        epsilon: Share of random actions, at the first step and from step `decay` on.
        decay: Steps over which it falls.
        seed: Of exploration and of the environment.

    Example:
        >>> from bisim_abstract.wrappers import RoomsGridEnv
        >>> agent = QLearning(RoomsGridEnv(side=4, room_size=2), gamma=0.9, start=10.0)
        >>> agent.learn(100)
        >>> agent.policy().shape
        (16,)
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        gamma: float,
        start: float = 0.0,
        n_states: int | None = None,
        epsilon: tuple[float, float] = (0.1, 0.1),
        decay: int = 1,
        seed: int = 0,
    ) -> None:
        self.env, self.gamma = env, check_gamma(gamma)
        self.epsilon, self.decay = epsilon, check_int("decay", decay, low=1)
        self._by_info = n_states is not None
        spaces = [("action_space", env.action_space)]
        if n_states is None:
            spaces.append(("observation_space", env.observation_space))
        for name, space in spaces:
            if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
                raise InvalidArgumentError(
                    f"env.{name} must be Discrete and counted from 0, got {space}"
                )
        world: Any = env
        size = world.observation_space.n if n_states is None else n_states
        size = check_int("n_states", size, low=1)
        self.n_actions = int(world.action_space.n)
        check_memory(
            16 * size * self.n_actions,
            what=f"a table of {size:,} states and {self.n_actions:,} actions",
            instead="learn on an abstraction (AbstractedEnv), which has fewer states",
        )
        self.table = np.full((size, self.n_actions), check_real("start", start))
        self.visits = np.zeros(self.table.shape, np.int64)
        self.available = np.ones(self.table.shape, bool)
        self._has_asked = np.zeros(size, bool)
        try:
            self._masks: Callable[[], Any] | None = env.get_wrapper_attr("action_masks")
        except AttributeError:
            self._masks = None
        self.rng = np.random.default_rng(check_int("seed", seed, low=0))
        self.steps = 0
        self._state = self._seen(*env.reset(seed=seed))

    def _seen(self, observation: Any, info: dict[str, Any]) -> int:
        state = int(info["state"] if self._by_info else observation)
        if self._masks is not None and not self._has_asked[state]:
            self.available[state] = self._masks()
            self._has_asked[state] = True
        return state

    def _values(self, state: int) -> FloatArray:
        """(n_actions) what actions are worth, -inf where there are none."""
        if self._masks is None:
            return np.asarray(self.table[state])
        return np.where(self.available[state], self.table[state], -np.inf)

    def learn(self, steps: int) -> None:
        """Take so many steps."""
        steps = check_int("steps", steps, low=0)
        check_memory(
            25 * steps,  # all random numbers are drawn ahead
            what=f"learning for {steps:,} steps",
            instead="call learn several times, for fewer steps each",
        )
        first, last = self.epsilon
        done = np.minimum((self.steps + np.arange(steps)) / self.decay, 1.0)
        explore = self.rng.random(steps) < first + (last - first) * done
        random = self.rng.integers(self.n_actions, size=steps)
        table, visits = self.table, self.visits
        for k in range(steps):
            state = self._state
            row = table[state]
            action = int(random[k]) if explore[k] else int(self._values(state).argmax())
            while not self.available[state, action]:  # uniform over those that there are
                action = int(self.rng.integers(self.n_actions))
            observation, reward, terminated, truncated, info = self.env.step(action)
            after = self._seen(observation, info)
            ahead = 0.0 if terminated else float(self._values(after).max())
            visits[state, action] += 1
            rate = 10.0 / (9.0 + visits[state, action])
            row[action] += rate * (float(reward) + self.gamma * ahead - row[action])
            self._state = after
            if terminated or truncated:
                self._state = self._seen(*self.env.reset())
        self.steps += steps

    def policy(self) -> IntArray:
        """(n_states) greedy actions."""
        values = np.where(self.available, self.table, -np.inf)
        return np.asarray(values.argmax(axis=1), np.int64)


def learning_curve(
    name: str,
    make: Callable[[int], QLearning],
    score: Callable[[Any], float],
    steps: Sequence[int],
    *,
    seeds: int = 1,
    measure: str = "score",
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> Curve:
    """One agent per seed, stopped at each point to score its greedy policy.

    Args:
        name: For legends.
        make: The agent of a seed.
        score: Of a policy, as `score_above_baseline` gives.
        steps: Where to look, rising.
        seeds: Number of agents; their seeds are 0, 1, ...
        measure: What a score is, for axes.
        callback: Called after every point of every agent.
        progress: Show a line of progress, on a terminal, in a notebook or in a log.
    """
    if any(b <= a for a, b in pairwise(steps)):
        raise InvalidArgumentError(f"steps must rise, got {list(steps)}")
    seeds = check_int("seeds", seeds, low=1)
    check_memory(
        8 * seeds * len(steps),
        what=f"the scores of {seeds:,} agents",
        instead="ask for fewer seeds",
    )
    scores = np.empty((seeds, len(steps)))
    total = seeds * steps[-1] if steps else 0
    with shown(callback, progress, on_terminal=False) as report:
        for seed in range(seeds):
            agent = make(seed)
            for k, point in enumerate(steps):
                agent.learn(point - agent.steps)
                scores[seed, k] = score(agent.policy())
                if report is not None:
                    done = seed * steps[-1] + point
                    told = f"{name}, seed {seed}, score {scores[seed, k]:.3g}"
                    report(Progress("learning", done, total, told))
    return Curve(name, tuple(steps), scores, measure)


def score_above_baseline(
    mdp: TabularMDP, gamma: float, *, optimal: Values | None = None
) -> Callable[[Any], float]:
    """A score of policies by their start values: 0 for the baseline, 1 for the best.

    The baseline is the better of random actions and of any one action for ever. Scores are
    computed from proven bounds on values, not from episodes, and rounded down. Where the baseline
    is optimal there is no scale: 1 for policies that lose nothing, and not a number for others.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        optimal: `value_iteration(mdp, gamma)`, if known already.
    """
    gamma = check_gamma(gamma)
    best = value_iteration(mdp, gamma) if optimal is None else optimal
    check_optimal(mdp, gamma, best)
    baseline = find_baseline(mdp, gamma)

    def score(policy: Any) -> float:
        kept = value_loss(mdp, gamma, policy, optimal=best, baseline=baseline).kept
        return kept if math.isfinite(kept) else math.nan

    return score
