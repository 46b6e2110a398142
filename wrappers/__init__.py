"""Gymnasium environments as tabular models.

- `extract_mdp` turns an environment (or its id) into a `TabularMDP`.
- `TabularEnv` wraps an environment and tells its state at each step.
- `enumerate_mdp` does the work where there is no `P` table.
- `RoomsGridEnv`, registered as `bisim_abstract/RoomsGrid-v0`, is a grid of planted rooms.
- `ModelEnv`, registered as `bisim_abstract/Model-v0`, is an environment of any model.
- `AbstractedEnv` shows an environment through certified clusters of its states, and deploys what
  was learned on them to the environment itself.
- `make_env` is `gymnasium.make` with retired ids resolved.
- `Distractor` multiplies any of them by a background that does not matter.

Example:
    >>> from bisim_abstract import Reading
    >>> from bisim_abstract.wrappers import extract_mdp
    >>> extract_mdp("CliffWalking-v1", reading=Reading(reachable_only=True)).n_states
    38
"""

if __name__ != "bisim_abstract.wrappers":
    raise ImportError(
        f"import this package as bisim_abstract.wrappers, not as {__name__}: "
        "a second copy of its classes would not be recognised by the first"
    )

from bisim_abstract.wrappers._make import make_env
from bisim_abstract.wrappers.abstracted import AbstractedEnv
from bisim_abstract.wrappers.distractor import Distractor
from bisim_abstract.wrappers.enumerate import enumerate_mdp
from bisim_abstract.wrappers.model_env import ModelEnv
from bisim_abstract.wrappers.rooms import RoomsGridEnv
from bisim_abstract.wrappers.tabular import TabularEnv, extract_mdp

__all__ = [
    "AbstractedEnv",
    "Distractor",
    "ModelEnv",
    "RoomsGridEnv",
    "TabularEnv",
    "enumerate_mdp",
    "extract_mdp",
    "make_env",
]
