"""Making environments by id, across the versions in which ids were retired."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.error import Error as GymnasiumError
from gymnasium.error import NameNotFound, NamespaceNotFound

from bisim_abstract._base.checks import require
from bisim_abstract.errors import BisimError, ExtractionError

MINIGRID = ("MiniGrid-", "BabyAI-")
# Ids whose default dynamics are the same; which of them exists depends on Gymnasium.
SAME_DYNAMICS = (("Taxi-v3", "Taxi-v4"), ("CliffWalking-v0", "CliffWalking-v1"))


def make_env(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """`gymnasium.make`, with a retired (or newer) id resolved to the one that exists.

    Args:
        env_id: An environment id.
        **kwargs: Passed on to `gymnasium.make`.

    Raises:
        ExtractionError: If the id is not known, or the arguments do not fit it.
        MissingDependency: If it is a MiniGrid environment and MiniGrid is not installed.
    """
    has_map = kwargs.get("desc") is not None or kwargs.get("map_name", "4x4") is not None
    if env_id.startswith("FrozenLake") and not has_map:
        raise ExtractionError(
            f"{env_id} with map_name=None draws a map that no seed controls; pass "
            "desc=gymnasium.envs.toy_text.frozen_lake.generate_random_map(size, seed=...)"
        )
    if env_id.startswith(MINIGRID):
        require("minigrid", extra="minigrid")  # importing it registers its environments
    return _made(_existing(env_id, kwargs), kwargs)


def _existing(env_id: str, kwargs: dict[str, Any]) -> str:
    """The id itself, or the one that stands for it in this Gymnasium."""
    for pair in SAME_DYNAMICS:
        if env_id in pair and env_id not in gym.registry:
            other = pair[1 - pair.index(env_id)]
            # Rainy Taxi slips to other cells in v4 than in v3, for instance.
            given = [name for name in kwargs if name != "disable_env_checker"]
            options = f" (but options such as {given} may not)" if given else ""
            warnings.warn(
                f"{env_id} is not in Gymnasium {gym.__version__}; using {other}, whose default "
                f"dynamics are the same{options}",
                stacklevel=4,
            )
            return other
    return env_id


def _made(env_id: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        return gym.make(env_id, **kwargs)
    except (GymnasiumError, ModuleNotFoundError) as error:
        raise ExtractionError(f"no environment {env_id!r}: {_reason(env_id, error)}") from error
    except BisimError:
        raise
    except Exception as error:  # whatever the environment's own code makes of its arguments
        raise ExtractionError(
            f"{env_id} does not take these arguments: {type(error).__name__}: {error}"
        ) from error


def _reason(env_id: str, error: Exception) -> str:
    """What is wrong with an id, and what to do."""
    path = Path(env_id)
    if path.is_dir():
        return (
            "it is a directory; those of runs are read by verify, report, export and run --resume"
        )
    if path.is_file():
        return "it is a file; read_model(path) reads a model, and ModelEnv(mdp) steps it"
    text = str(error).rstrip()
    if isinstance(error, NameNotFound | NamespaceNotFound):
        text += (
            f"{'' if text.endswith(('.', '?')) else '.'} If a module of yours registers it, import "
            "that first (at the command line, --import MODULE)"
        )
    return text
