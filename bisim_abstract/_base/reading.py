"""`Reading`: how an environment becomes a model, in one object for Python, commands and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import as_array, check_choice, check_int, check_real
from bisim_abstract._base.text import did_you_mean, short
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["Reading"]

CHECKS = 256  # real steps that a model is compared with
FREEZE = ("step_count",)  # what enumerated states do not contain, if nothing else is said
MOST_STARTS = 1_000_000  # seeds of a model
TERMINALS = ("absorb", "table")


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    return tuple(float(part) for part in text.split(","))


def _option(default: Any, help: str, **flag: Any) -> Any:  # noqa: A002  # as argparse calls it
    """A field with its default, and its flag as `ArgumentParser.add_argument` takes it."""
    return field(default=default, metadata={"help": help, **flag})


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How an environment becomes a model: which states and actions, what ends, and what is checked.

    Everything that extracts a model takes one of these as `reading`. Specifications of wrappers
    and the files of runs store it as JSON, and each field is a flag of the command line.

    Attributes:
        terminal: "absorb" sends every transition that ends an episode to one added absorbing
            state that pays nothing; "table" follows the table literally, beyond the end.
        reachable_only: Keep only states that can be reached from the start distribution.
        action_masks: Ask the environment which actions each state has, and leave out the others.
            Environments with a table, or that describe themselves, tell by a method
            `action_mask(state)`, the state being one of their own ids, as Taxi does; those that
            are enumerated tell in `info["action_mask"]` of `reset` and `step`. The added absorbing
            state has all actions.
        start: (number of the environment's states) start distribution, where an environment with
            a `P` table does not tell it.
        seed: Seed of everything random: of the checking steps, and of the reset where states are
            enumerated (one model per seed, where the layout depends on it).
        checks: Number of real steps to compare the model with; 0 for none. For enumeration: steps
            in each of three further checks, and a sixteenth of those that look at frozen
            attributes.
        max_states: For enumeration: limit on the states of the environment, an added one not
            counted.
        freeze: For enumeration: attributes of `env.unwrapped` that are not part of the state, as
            what counts steps. They are held at their value after reset; one that cannot be
            pickled stays the same object.
        starts: For enumeration: number of seeds, `seed` and those that follow it, whose states
            after reset episodes begin in, all alike. States of further seeds are not in the model
            unless steps lead there. By default one where resets do not differ; otherwise as many
            as it takes to see no new first states for a while, at most 100, and none once there
            are 5,000 states.
        weights: For rewards that are vectors, as those of mo-gymnasium: the reward of a step is the
            sum of its numbers times these. Wrappers that are given a `Reading` pay it too.

    Raises:
        InvalidArgumentError: If a value makes no sense.

    Example:
        >>> from bisim_abstract.wrappers import extract_mdp
        >>> extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True))
        TabularMDP(12 states, 4 actions, 130 transitions, terminal state 11, from FrozenLake-v1)
    """

    terminal: str = _option("absorb", "how episodes end", choices=TERMINALS)
    reachable_only: bool = _option(
        False, "leave out states that cannot be reached", action="store_true"
    )
    action_masks: bool = _option(
        False,
        "only the actions that the environment's masks allow are available",
        action="store_true",
    )
    start: Sequence[float] | None = _option(
        None,
        "probabilities of the states to begin in, for a table that comes without them",
        metavar="P,P,...",
        type=numbers,
    )
    seed: int = _option(0, "of everything random (0)", type=int)
    checks: int = _option(
        CHECKS, f"real steps that the model is compared with ({CHECKS})", metavar="N", type=int
    )
    max_states: int = _option(100_000, "limit for enumeration", metavar="N", type=int)
    freeze: Sequence[str] = _option(
        FREEZE,
        "attribute that is not part of the state, such as a counter of steps; instead of "
        "step_count, and '' for none (repeatable)",
        metavar="NAME",
        action="append",
    )
    starts: int | None = _option(
        None,
        "seeds whose first states episodes begin in, for environments that draw them (as many as "
        "it takes to see no new ones, at most 100)",
        metavar="N",
        type=int,
    )
    weights: Sequence[float] | None = _option(
        None,
        "what the numbers of vector rewards are multiplied by",
        metavar="W,W,...",
        type=numbers,
    )

    def __post_init__(self) -> None:
        check_choice("terminal", self.terminal, TERMINALS)
        for name in ("reachable_only", "action_masks"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise InvalidArgumentError(f"{name} must be true or false, got {short(value)}")
        given = {
            "start": _check_numbers("start", self.start, "probabilities, one for each state"),
            "weights": _check_numbers("weights", self.weights, "numbers, one for each reward"),
            "seed": check_int("seed", self.seed, low=0),
            "checks": check_int("checks", self.checks, low=0),
            "max_states": check_int("max_states", self.max_states, low=1),
            "freeze": check_freeze(self.freeze),
            "starts": self.starts
            if self.starts is None
            else check_int("starts", self.starts, low=1, high=MOST_STARTS),
        }
        for name, checked in given.items():
            object.__setattr__(self, name, checked)

    @classmethod
    def of(cls, given: Reading | Mapping[str, Any] | None) -> Reading:
        """What somebody gave as `reading`: one of these, what `to_dict` made of one, or nothing.

        Args:
            given: That.

        Raises:
            InvalidArgumentError: If it is anything else, or holds an unknown name.
        """
        if given is None:
            return cls()
        if isinstance(given, Reading):
            return given
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(
                f"reading must be Reading(...), such as Reading(seed=3), got {short(given)}"
            )
        known = [entry.name for entry in fields(cls)]
        for name in given:
            if name not in known:
                hint = did_you_mean(str(name), known) or f"; known are {', '.join(known)}"
                raise InvalidArgumentError(f"reading has no option {short(name)}{hint}")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """All fields as values of JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    def changes(self) -> dict[str, Any]:
        """The fields that are not what they are by default."""
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if getattr(self, entry.name) != entry.default
        }

    # -- as flags of a command -------------------------------------------------------------

    @classmethod
    def flags(cls) -> dict[str, dict[str, Any]]:
        """How a command takes each field, by its name: arguments of `add_argument`."""
        return {
            entry.name: {
                "default": None if entry.metadata.get("action") == "append" else entry.default,
                **entry.metadata,
            }
            for entry in fields(cls)
        }

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Self:
        """What was asked for by flags.

        Args:
            given: Values by field, others among them, as a command got them.
        """
        asked = {entry.name: given[entry.name] for entry in fields(cls)}
        for name, value in asked.items():
            if isinstance(value, list):
                asked[name] = tuple(filter(None, value))  # '' for none at all
        return cls(**{name: value for name, value in asked.items() if value is not None})

    def words(self) -> dict[str, Any]:
        """By flag what a command is given to ask for the same, without what it does anyway."""
        found: dict[str, Any] = {}
        for name, value in self.changes().items():
            if self.flags()[name].get("action") == "append":
                value = list(value) or [""]
            elif isinstance(value, tuple):
                value = ",".join(map(repr, value))
            found[f"--{name.replace('_', '-')}"] = value
        return found


def check_freeze(freeze: Iterable[str]) -> tuple[str, ...]:
    """Names of attributes, as they were given, checked."""
    is_list = isinstance(freeze, Iterable) and not isinstance(freeze, str | bytes)
    names = tuple(freeze) if is_list else ()
    if not is_list or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(
            f"freeze must be a sequence of attribute names, got {short(freeze)}"
        )
    return names


def _check_numbers(name: str, given: npt.ArrayLike | None, rule: str) -> tuple[float, ...] | None:
    """Finite numbers, if any were given; whether they fit the environment is seen there."""
    if given is None:
        return None
    array = as_array(name, given)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iuf":
        raise InvalidArgumentError(f"{name} must be a list of {rule}, got {short(given)}")
    return tuple(check_real(name, value) for value in np.asarray(array, np.float64).tolist())
