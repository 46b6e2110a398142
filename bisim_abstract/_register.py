"""Registration with Gymnasium, by entry point: nothing is imported until an env is made."""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

ROOMS_GRID = "bisim_abstract/RoomsGrid-v0"
MODEL = "bisim_abstract/Model-v0"


def register_envs() -> None:
    """Register this package's environments, once."""
    if ROOMS_GRID not in registry:
        register(
            id=ROOMS_GRID,
            entry_point="bisim_abstract.wrappers.rooms:RoomsGridEnv",
            max_episode_steps=200,
        )
    if MODEL not in registry:
        register(
            id=MODEL,
            entry_point="bisim_abstract.wrappers.model_env:ModelEnv",
            vector_entry_point="bisim_abstract.wrappers.vector:VectorModelEnv",
            max_episode_steps=1_000,  # `MAX_STEPS` there; nothing is imported here
        )
