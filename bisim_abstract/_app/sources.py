"""Where a model comes from, as people name it: an environment's id, or a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisim_abstract._base.checks import check_choice, check_env_args, check_int
from bisim_abstract._base.npz import Archive
from bisim_abstract._base.reading import Reading
from bisim_abstract._base.text import short
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._base.untrusted import DEEPEST_ARGUMENTS, check_nesting, parse_text
from bisim_abstract._model.files import read_model
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.storm import SUFFIXES
from bisim_abstract.errors import ExtractionError, InvalidArgumentError, MemoryLimitError

if TYPE_CHECKING:
    import gymnasium as gym

MODELS = (".npz", ".umb", *SUFFIXES)  # endings of files
READING = Reading()
WITH_FILES = {"reachable_only", "seed", "max_states", "checks"}  # or nothing for them to limit
RESERVED = {"id", "env_id", "disable_env_checker"}  # what making an environment sets itself


@dataclass(frozen=True, kw_only=True)
class Source:
    """An environment's id with its arguments, or the path of a model's file.

    Attributes:
        name: The id or the path.
        env_args: Arguments of the environment, as JSON holds them: tuples become lists, so that
            a run that is resumed makes the same environment.
        backgrounds: If given, the environment is seen against so many background states.
        reading: How an environment becomes a model. Of files, which states are kept.
        constants: Values of constants that a model file leaves open.
        reward: Names of rewards of a model file, a minus before those that are costs; none for
            whatever `read_model` takes by itself.
        goal: A label of a model file, whose states are to be reached.
        actions: "names" or "positions": which choices of a model file are the same action.
    """

    name: str
    env_args: Mapping[str, Any] = field(default_factory=dict)
    backgrounds: int | None = None
    reading: Reading = READING
    constants: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    reward: tuple[str, ...] = ()
    goal: str | None = None
    actions: str = "names"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError(f"the source must be an id or a path, got {self.name!r}")
        object.__setattr__(self, "env_args", _as_json(check_env_args(self.env_args)))
        taken = sorted(RESERVED & {str(name) for name in self.env_args})
        if taken:
            raise InvalidArgumentError(f"env_args may not set {', '.join(taken)}")
        object.__setattr__(self, "reading", Reading.of(self.reading))
        if self.backgrounds is not None:
            check_int("backgrounds", self.backgrounds, low=1)
        if self.is_file:
            own = set(self.reading.changes()) - WITH_FILES
            asked = {name for name in ("env_args", "backgrounds") if getattr(self, name)} | own
            if asked:
                raise InvalidArgumentError(
                    f"{self.name} is a file: leave out {', '.join(sorted(asked))}, which only "
                    "environments have"
                )
        self._check_options()

    def _check_options(self) -> None:
        """Refuse what no file can be read with, and what is none of an environment's business."""
        constants = self.constants
        if not isinstance(constants, Mapping) or not all(isinstance(x, str) for x in constants):
            raise InvalidArgumentError(f"constants must have names and values, got {constants!r}")
        for name, value in constants.items():
            if not isinstance(value, bool | int | float | str) or value in (math.inf, -math.inf):
                raise InvalidArgumentError(
                    f"constant {name} must be a number, true, false or text, got {value!r}"
                )
            if value != value:
                raise InvalidArgumentError(f"constant {name} must be a number, got NaN")
        object.__setattr__(self, "constants", dict(constants))
        object.__setattr__(self, "reward", _names("reward", self.reward))
        if self.goal is not None and (not isinstance(self.goal, str) or not self.goal):
            raise InvalidArgumentError(f"goal must be a label, got {self.goal!r}")
        check_choice("actions", self.actions, ("names", "positions"))
        if self.options and not self.is_file:
            raise InvalidArgumentError(
                f"{self.name} is no file: {', '.join(self.options)} go with model files"
            )

    @property
    def options(self) -> dict[str, Any]:
        """What `read_model` is asked for, apart from its defaults."""
        given: dict[str, Any] = {}
        if self.constants:
            given["constants"] = dict(self.constants)
        if self.reward:
            given["reward"] = self.reward[0] if len(self.reward) == 1 else list(self.reward)
        if self.goal is not None:
            given["goal"] = self.goal
        if self.actions != "names":
            given["actions"] = self.actions
        return given

    @property
    def can_be_abstracted(self) -> bool:
        """Whether `AbstractedEnv` can be put around it: ends of episodes must be absorbed."""
        return self.reading.terminal == "absorb"

    @property
    def is_file(self) -> bool:
        """Whether it names a file and not an environment."""
        return self.name.lower().endswith(MODELS) or Path(self.name).is_file()

    def model(self, *, callback: ProgressCallback | None = None) -> TabularMDP:
        """The model, read or extracted.

        Args:
            callback: Told about the progress of an enumeration.
        """
        if self.is_file:
            mdp = read_model(self.name, **self.options)
            return mdp.restrict(mdp.reachable()) if self.reading.reachable_only else mdp
        from bisim_abstract.wrappers import extract_mdp

        env = self.env()
        try:
            return extract_mdp(env, reading=self.reading, callback=callback)
        finally:
            env.close()

    def can_be_learned_on(self, mdp: TabularMDP) -> bool:
        """Whether agents can learn on it, given its model.

        Args:
            mdp: The model, as `model` gives it.
        """
        from bisim_abstract.wrappers.model_env import refusal

        return self.can_be_abstracted and not (self.is_file and refusal(mdp))

    def env(self, mdp: TabularMDP | None = None) -> gym.Env[Any, Any]:
        """The environment, made anew: that of a model, if it is a file.

        Args:
            mdp: The model, if it is at hand: a file is then not read again, and may be gone.

        Raises:
            ExtractionError: If there is none of that id.
        """
        from gymnasium.wrappers import TimeLimit

        from bisim_abstract.wrappers import Distractor, ModelEnv, make_env
        from bisim_abstract.wrappers._rewards import weigh
        from bisim_abstract.wrappers.model_env import MAX_STEPS

        if self.is_file:
            inner = ModelEnv(self.model() if mdp is None else mdp)
            return TimeLimit(inner, max_episode_steps=MAX_STEPS)
        if ":" in self.name:
            # Gymnasium would import whatever stands before the colon.
            module, _, rest = self.name.partition(":")
            raise ExtractionError(
                f"{self.name!r} would import {module!r}; import it yourself (on the command "
                f"line: --import {module}) and name the environment {rest!r}"
            )
        made = make_env(self.name, disable_env_checker=True, **self.env_args)
        env = weigh(made, self.reading)
        if self.backgrounds is None:
            return env
        return Distractor(env, n_background=self.backgrounds, seed=self.reading.seed)


def _names(field: str, given: Any) -> tuple[str, ...]:
    """Some names, as JSON holds them."""
    if not isinstance(given, list | tuple) or not all(x and isinstance(x, str) for x in given):
        raise InvalidArgumentError(f"{field} must be a list of names, got {given!r}")
    return tuple(given)


def _as_json(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a file of a run would give them back."""
    found: dict[str, Any] = {}
    for name, value in env_args.items():
        try:
            read = json.loads(json.dumps(value, allow_nan=False))
            check_nesting(read, DEEPEST_ARGUMENTS)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(
                f"argument {name} must be a JSON value without NaN and infinity: {error}"
            ) from None
        if not _has_names(value):
            raise InvalidArgumentError(
                f"argument {name} must have text as keys, got {short(value)}"
            )
        found[name] = read
    return found


def _has_names(value: Any) -> bool:
    """Whether all keys are text: JSON would make text of others, and never give them back."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_names(x) for key, x in value.items())
    return not isinstance(value, list | tuple) or all(_has_names(x) for x in value)


# -- what files say they are -------------------------------------------------------------------


def kind_of(path: str | Path) -> str:
    """What a file says it holds: "model", "certificate", or "" for anything else.

    Models of model checkers say so by their names.

    Args:
        path: The file, which need not exist.
    """
    if str(path).lower().endswith(MODELS[1:]):
        return "model"
    try:
        with Archive(path) as archive:
            names = set(archive.claims)
            header = parse_text(archive.header_text()) if "header" in names else {}
        name = str(header.get("format", ""))
    except (OSError, ValueError, AttributeError, RecursionError, MemoryLimitError):
        return ""  # whoever reads it in earnest says what is wrong with it
    if "transitions" in names:
        return "model"  # BRIDGE's
    kinds = {"bisim_abstract.TabularMDP": "model", "bisim_abstract.Certificate": "certificate"}
    return kinds.get(name, "")
