"""Where a model comes from, as people name it: an environment's id, or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisim_abstract._base.checks import check_choice, check_int
from bisim_abstract._base.npz import read_npz
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._model.files import read_model
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import ExtractionError, InvalidArgumentError

if TYPE_CHECKING:
    import gymnasium as gym

DEEPEST = 100  # nesting of arguments: far from what recursion over them can bear
RESERVED = {"id", "env_id", "disable_env_checker"}  # what making an environment sets itself


@dataclass(frozen=True, kw_only=True)
class Source:
    """An environment's id with its arguments, or the path of a saved model or BRIDGE file.

    Attributes:
        name: The id or the path.
        env_args: Arguments of the environment, as JSON holds them: tuples become lists, so that
            a run that is resumed makes the same environment.
        backgrounds: If given, the environment is seen against so many background states.
        terminal: "absorb" or "table", as for `extract_mdp`.
        reachable_only: Keep only states that can be reached.
        action_masks: Whether states have the actions alone that the environment's masks allow.
        max_states: Limit for enumeration.
        seed: Of enumeration and of checking steps.
    """

    name: str
    env_args: Mapping[str, Any] = field(default_factory=dict)
    backgrounds: int | None = None
    terminal: str = "absorb"
    reachable_only: bool = False
    action_masks: bool = False
    max_states: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError(f"the source must be an id or a path, got {self.name!r}")
        if not isinstance(self.env_args, Mapping):
            raise InvalidArgumentError(f"env_args must be a mapping, got {self.env_args!r}")
        object.__setattr__(self, "env_args", _as_json(self.env_args))
        taken = sorted(RESERVED & {str(name) for name in self.env_args})
        if taken:
            raise InvalidArgumentError(f"env_args may not set {', '.join(taken)}")
        for name in ("reachable_only", "action_masks"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise InvalidArgumentError(f"{name} must be true or false, got {value!r}")
        check_choice("terminal", self.terminal, ("absorb", "table"))
        check_int("max_states", self.max_states, low=1)
        check_int("seed", self.seed, low=0)
        if self.backgrounds is not None:
            check_int("backgrounds", self.backgrounds, low=1)
        if self.is_file and (self.env_args or self.backgrounds is not None or self.action_masks):
            raise InvalidArgumentError(
                f"{self.name} is a file: arguments, backgrounds and masks go with environments"
            )

    @property
    def can_be_abstracted(self) -> bool:
        """Whether `AbstractedEnv` can be put around it: an environment whose episodes end."""
        return not self.is_file and self.terminal == "absorb"

    @property
    def is_file(self) -> bool:
        """Whether it names a file and not an environment."""
        return self.name.endswith(".npz") or Path(self.name).is_file()

    def model(self, *, callback: ProgressCallback | None = None) -> TabularMDP:
        """The model, read or extracted.

        Args:
            callback: Told about the progress of an enumeration.
        """
        if self.is_file:
            mdp = read_model(self.name)
            return mdp.restrict(mdp.reachable()) if self.reachable_only else mdp
        from bisim_abstract.wrappers import extract_mdp

        env = self.env()
        try:
            return extract_mdp(
                env,
                terminal=self.terminal,
                reachable_only=self.reachable_only,
                action_masks=self.action_masks,
                seed=self.seed,
                max_states=self.max_states,
                callback=callback,
            )
        finally:
            env.close()

    def env(self) -> gym.Env[Any, Any]:
        """The environment, made anew.

        Raises:
            ExtractionError: If there is none: a file, or an id that is not known.
        """
        from bisim_abstract.wrappers import Distractor, make_env

        if self.is_file:
            raise ExtractionError(f"{self.name} holds a model; there is no environment to step")
        if ":" in self.name:
            # Gymnasium would import whatever stands before the colon.
            module, _, rest = self.name.partition(":")
            raise ExtractionError(
                f"{self.name!r} would import {module!r}; import it yourself (on the command "
                f"line: --import {module}) and name the environment {rest!r}"
            )
        env = make_env(self.name, disable_env_checker=True, **self.env_args)
        if self.backgrounds is None:
            return env
        return Distractor(env, n_background=self.backgrounds, seed=self.seed)


def _as_json(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a file of a run would give them back."""
    found: dict[str, Any] = {}
    for name, value in env_args.items():
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(
                f"argument {name} must be a JSON value without NaN and infinity: {error}"
            ) from None
        if _is_deep([value]):
            raise InvalidArgumentError(f"env_args must not be nested more than {DEEPEST} deep")
        if not _has_names(value):
            raise InvalidArgumentError(f"argument {name} must have text as keys, got {value!r}")
        found[name] = json.loads(text)
    return found


def _has_names(value: Any) -> bool:
    """Whether all keys are text: JSON would make text of others, and never give them back."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_names(x) for key, x in value.items())
    return not isinstance(value, list | tuple) or all(_has_names(x) for x in value)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inner = [x.values() if isinstance(x, Mapping) else x for x in level]
        level = [x for part in inner for x in part if isinstance(x, Mapping | list | tuple)]
        if not level:
            return False
    return True


# -- what files say they are -------------------------------------------------------------------


def kind_of(path: str | Path) -> str:
    """What a file says it holds: "model", "certificate", or "" for anything else.

    Args:
        path: The file, which need not exist.
    """
    try:
        arrays = read_npz(path)
        header = json.loads(arrays["header"].tobytes()) if "header" in arrays else {}
        name = str(header.get("format", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""  # whoever reads it in earnest says what is wrong with it
    if "transitions" in arrays:
        return "model"  # BRIDGE's
    kinds = {"bisim_abstract.TabularMDP": "model", "bisim_abstract.Certificate": "certificate"}
    return kinds.get(name, "")
