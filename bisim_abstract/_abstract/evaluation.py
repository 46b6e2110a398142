"""`evaluate_agent`: what the policy that an agent ended with is proven to be worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.episodes import (
    EpisodeBounds,
    bound_episodes,
    episodes_text,
    horizon_of,
)
from bisim_abstract._abstract.proofs import bounded, with_radii
from bisim_abstract._abstract.scale import start_means
from bisim_abstract._abstract.value import ProvenShare
from bisim_abstract._abstract.value_proof import GroundValues
from bisim_abstract._base.html import table_html
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._exact.planning import follow_policy
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.policies import policy_matrix

__all__ = ["AgentValue", "evaluate_agent"]

CLOSE = 1e-7  # of all that values can differ by: how close bounds are to be


@dataclass(frozen=True, eq=False, kw_only=True)
class AgentValue:
    """What one agent's own policy is worth in the environment's model, proven.

    Attributes:
        share: What it retains and loses at most; see `ProvenShare`.
        start_value: Bounds on its value from the start distribution.
        optimal_start: Bounds on the optimal one.
        baseline_start: Bounds on the baseline's.
        horizon: The time limit of episodes; None without one.
        episodes: What its episodes look like within that limit; None without one.
        best_episodes: The same of the policy that is best for the discounted return.
    """

    share: ProvenShare
    start_value: tuple[float, float]
    optimal_start: tuple[float, float]
    baseline_start: tuple[float, float]
    horizon: int | None
    episodes: EpisodeBounds | None
    best_episodes: EpisodeBounds | None

    def summary(self) -> str:
        """One sentence for people."""
        low, high = self.start_value
        text = f"start value {low:.6g} to {high:.6g} (best {self.optimal_start[0]:.6g}, baseline "
        text += f"{self.baseline_start[1]:.6g}): it {self.share.summary()}"
        if self.horizon is None or self.episodes is None or self.best_episodes is None:
            return text
        return f"{text}; {episodes_text(self.episodes, self.best_episodes, self.horizon)}"

    def __repr__(self) -> str:
        return f"AgentValue({self.summary()})"

    def _repr_html_(self) -> str:
        rows = [("proven", self.summary())]
        return table_html("What an agent's policy is worth", rows)


def evaluate_agent(
    mdp: TabularMDP, gamma: float, policy: npt.ArrayLike, *, horizon: int | None = None
) -> AgentValue:
    """The proven value of a policy over states, its share, and what its episodes look like.

    Args:
        mdp: The model. If it is an estimate, everything holds for the true model with
            probability 1 - alpha, and nothing is said of episodes.
        gamma: The discount, in [0, 1).
        policy: (n_states) actions, or (n_states, n_actions) probabilities.
        horizon: Time limit of episodes; by default the environment's own, if it has one.

    Example:
        >>> from bisim_abstract.parts import grouped_mdp
        >>> mdp, _ = grouped_mdp(60, 5, noise=0.01, seed=0)
        >>> found = evaluate_agent(mdp, 0.9, [0] * 60)
        >>> found.share.kept <= 0.0  # one action for ever is part of the baseline
        True
    """
    check_mdp(mdp, call="evaluate_agent(mdp, gamma, policy)")
    ground = GroundValues(mdp, gamma, horizon=horizon)
    ground.tighten(CLOSE * ground.size, np.zeros(mdp.n_states))
    given = np.asarray(policy)
    weights = policy_matrix(mdp, policy)  # which checks it
    plan: IntArray | FloatArray = mdp.played(given.astype(np.int64)) if given.ndim == 1 else weights
    if mdp.estimate is None:
        own = follow_policy(mdp, ground.gamma, plan, max(CLOSE * ground.size, 1e-300))
        values = np.asarray(own.lower / 2.0 + own.upper / 2.0)
        upper, lower = (bounded(mdp, gamma, values, sign, plan) for sign in (1.0, -1.0))
    else:
        guess = np.zeros(mdp.n_states)
        upper, lower = (with_radii(mdp, gamma, sign, plan, guess) for sign in (1.0, -1.0))
    stake, limit = ground.stake, horizon_of(mdp, horizon)
    return AgentValue(
        share=ground.judge(lower),
        start_value=(start_means(mdp.start, lower)[0], start_means(mdp.start, upper)[1]),
        optimal_start=stake.optimal,
        baseline_start=stake.baseline,
        horizon=limit,
        episodes=None if limit is None else bound_episodes(mdp, plan, limit),
        best_episodes=None if limit is None else bound_episodes(mdp, ground.optimal_policy, limit),
    )
