"""`abstract_env`: from an environment to a smaller one with a proven guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Unpack

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from bisim_abstract._base.checks import check_env_args
from bisim_abstract._base.progress import shown
from bisim_abstract._base.reading import Reading
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.certify import certify
from bisim_abstract._prove.options import Goals, Options
from bisim_abstract._prove.work import INTERRUPTED
from bisim_abstract.errors import InvalidArgumentError, NotCertifiedError

if TYPE_CHECKING:
    from bisim_abstract.wrappers import AbstractedEnv

__all__ = ["abstract_env"]


def abstract_env(
    env: str | gym.Env[Any, Any] | TabularMDP,
    *,
    gamma: float,
    reading: Reading | None = None,
    env_args: Mapping[str, Any] | None = None,
    dynamics: str = "aggregated",
    weighting: str | list[float] = "uniform",
    callback: ProgressCallback | None = None,
    progress: bool = False,
    **goal: Unpack[Goals],
) -> AbstractedEnv:
    """The environment over the fewest clusters that are proven to be useful.

    Extracts the model, certifies, verifies, and wraps. What is proven is in the result's
    `value` and `certificate`.

    Args:
        env: An environment, the id of one, or a model, which becomes a `ModelEnv` whose episodes
            are cut after 1,000 steps.
        gamma: The discount, in [0, 1).
        reading: How an environment is read: the actions that masks allow, the limit and the starts
            of an enumeration, and others. Its seed is that of everything random.
        env_args: Arguments of the environment, if it is given by its id.
        dynamics: "aggregated" or "ground"; see `AbstractedEnv`.
        weighting: Of members within a cluster; see `AbstractedEnv`.
        callback: Told about the progress. Without one, a progress line is shown if the program
            runs in a terminal and takes a while.
        progress: Show a line also where there is no terminal, as in a notebook.
        **goal: As for `certify`: `relation`, which states are alike ("plain", "lax", "optimal" or
            "auto"); `keep`, the share of the achievable return to retain, 0.95 by default, or
            instead `max_loss`, what no state may lose; `guarantee`, which agents these two speak
            of ("solver", "policy" or "learner"); instead `n_clusters`, their number, or `tau`, the
            threshold; and `max_seconds`, a budget of time.

    Raises:
        NotCertifiedError: If nothing is proven, or nothing useful: one sentence says why.

    Example:
        >>> small = abstract_env("CliffWalking-v1", gamma=0.9)
        >>> small.observation_space, small.value.kept
        (Discrete(8), 1.0)
    """
    from bisim_abstract.wrappers import AbstractedEnv, extract_mdp, make_env
    from bisim_abstract.wrappers.abstracted import check_ends
    from bisim_abstract.wrappers.model_env import MAX_STEPS, ModelEnv

    reading = check_ends(Reading.of(reading))
    _check_names(goal)
    is_by_value = Options(**goal).is_by_value
    env_args = {} if env_args is None else check_env_args(env_args)
    if not isinstance(env, str) and env_args:
        raise InvalidArgumentError("env_args go with the id of an environment, not with one itself")
    if isinstance(env, TabularMDP):
        ground: gym.Env[Any, Any] = TimeLimit(ModelEnv(env), max_episode_steps=MAX_STEPS)
    else:
        ground = make_env(env, **env_args) if isinstance(env, str) else env
    try:
        with shown(callback, progress) as report:
            mdp = extract_mdp(ground, reading=reading, callback=report)
            certificate = certify(mdp, gamma, seed=reading.seed, callback=report, **goal)
        if certificate.stop.startswith(INTERRUPTED):
            # `certify` hands out what it has; here there is nothing to hand out.
            raise KeyboardInterrupt
        verdict = certificate.verdict
        if verdict.level == "open" or (is_by_value and verdict.level != "useful"):
            raise NotCertifiedError(verdict.sentence)
        return AbstractedEnv(  # which verifies
            ground,
            certificate,
            dynamics=dynamics,
            weighting=weighting,
            reading=reading,
            mdp=mdp,
        )
    except BaseException:
        if ground is not env:
            ground.close()  # nobody else could
        raise


def _check_names(goal: Iterable[str]) -> None:
    """Refuse what is neither a goal nor a budget, as Python does for names of arguments."""
    for name in goal:
        if name not in Goals.__annotations__:
            is_read = name in {entry.name for entry in fields(Reading)}
            hint = f"; it is one of Reading: reading=Reading({name}=...)" if is_read else ""
            raise TypeError(f"abstract_env() got an unexpected keyword argument {name!r}{hint}")
