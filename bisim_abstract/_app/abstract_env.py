"""`abstract_env`: from an environment to a smaller one with a proven guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from bisim_abstract._base.checks import check_env_args
from bisim_abstract._base.progress import shown
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.certify import certify
from bisim_abstract._prove.work import INTERRUPTED
from bisim_abstract.errors import InvalidArgumentError, NotCertifiedError

if TYPE_CHECKING:
    from bisim_abstract.wrappers import AbstractedEnv

__all__ = ["abstract_env"]


def abstract_env(
    env: str | gym.Env[Any, Any] | TabularMDP,
    *,
    gamma: float,
    relation: str = "plain",
    keep: float | None = None,
    max_loss: float | None = None,
    guarantee: str = "solver",
    n_clusters: int | None = None,
    tau: float | None = None,
    env_args: Mapping[str, Any] | None = None,
    action_masks: bool = False,
    dynamics: str = "aggregated",
    weighting: str | list[float] = "uniform",
    max_seconds: float | None = None,
    seed: int = 0,
    max_states: int = 100_000,
    freeze: Sequence[str] = ("step_count",),
    starts: int | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> AbstractedEnv:
    """The environment over the fewest clusters that are proven to be useful.

    Extracts the model, certifies, verifies, and wraps. What is proven is in the result's
    `value` and `certificate`.

    Args:
        env: An environment, the id of one, or a model, which becomes a `ModelEnv` whose episodes
            are cut after 1,000 steps.
        gamma: The discount, in [0, 1).
        relation: Which states are alike: "plain", action by action; "lax", after renaming
            actions, and actions of the result are then those of clusters; "optimal", in optimal
            action values; "auto", whichever gives the fewest clusters. See `certify`.
        keep: Share of the achievable return to retain, 0.95 by default; see `certify`.
        max_loss: Instead: what no state may lose.
        guarantee: Which agents these speak of: "solver", "policy" or "learner"; see `certify`.
        n_clusters: Instead: the number of clusters.
        tau: Instead: the threshold.
        env_args: Arguments of the environment, if it is given by its id.
        action_masks: Whether only the actions that the environment's masks allow are available.
        dynamics: "aggregated" or "ground"; see `AbstractedEnv`.
        weighting: Of members within a cluster; see `AbstractedEnv`.
        max_seconds: Budget of time for `certify`.
        seed: Of everything random.
        max_states: Limit for the enumeration of environments without a table.
        freeze: Attributes of such an environment that are not part of its state, as what counts
            steps; see `enumerate_mdp`.
        starts: Seeds whose first states episodes begin in, where such an environment draws them. By
            default as many as it takes to see no new ones; see `enumerate_mdp`.
        callback: Told about the progress. Without one, a progress line is shown if the program
            runs in a terminal and takes a while.
        progress: Show a line also where there is no terminal, as in a notebook.

    Raises:
        NotCertifiedError: If nothing is proven, or nothing useful: one sentence says why.

    Example:
        >>> small = abstract_env("CliffWalking-v1", gamma=0.9)
        >>> small.observation_space, small.value.kept
        (Discrete(8), 1.0)
    """
    from bisim_abstract.wrappers import AbstractedEnv, extract_mdp, make_env
    from bisim_abstract.wrappers.model_env import MAX_STEPS, ModelEnv

    env_args = {} if env_args is None else check_env_args(env_args)
    if not isinstance(env, str) and env_args:
        raise InvalidArgumentError("env_args go with the id of an environment, not with one itself")
    if isinstance(env, TabularMDP):
        ground: gym.Env[Any, Any] = TimeLimit(ModelEnv(env), max_episode_steps=MAX_STEPS)
    else:
        ground = make_env(env, **env_args) if isinstance(env, str) else env
    try:
        with shown(callback, progress) as report:
            mdp = extract_mdp(
                ground,
                action_masks=action_masks,
                seed=seed,
                max_states=max_states,
                freeze=freeze,
                starts=starts,
                callback=report,
            )
            certificate = certify(
                mdp,
                gamma,
                relation=relation,
                keep=keep,
                max_loss=max_loss,
                guarantee=guarantee,
                n_clusters=n_clusters,
                tau=tau,
                max_seconds=max_seconds,
                seed=seed,
                callback=report,
            )
        if certificate.stop.startswith(INTERRUPTED):
            # `certify` hands out what it has; here there is nothing to hand out.
            raise KeyboardInterrupt
        verdict = certificate.verdict
        is_by_value = n_clusters is None and tau is None
        if verdict.level == "open" or (is_by_value and verdict.level != "useful"):
            raise NotCertifiedError(verdict.sentence)
        return AbstractedEnv(  # which verifies
            ground,
            certificate,
            dynamics=dynamics,
            weighting=weighting,
            seed=seed,
            max_states=max_states,
            freeze=freeze,
            starts=starts,
            mdp=mdp,
        )
    except BaseException:
        if ground is not env:
            ground.close()  # nobody else could
        raise
