"""Where a table comes from: which layer of a wrapped environment knows states and dynamics.

An environment or wrapper that can describe itself offers two methods, `to_mdp(terminal=...)`
and `state_id()`; `RoomsGridEnv` and `Distractor` do. All others are read through their `P`
table and `s`, or enumerated. Gymnasium's Blackjack, which has neither, is described by
`BlackjackTable`.

A source may say more: by `observation_of(state)` and `end_observations()` what is seen in a state
and at ends, by `ends_in_states` that episodes end in states of the model, not in one added for it.

Which actions a state has, those tell that have a method `action_mask(state)`, the state being one
of their own ids, as Gymnasium's Taxi does.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from bisim_abstract._base.reading import FREEZE, MOST_STARTS
from bisim_abstract._base.text import plain_text
from bisim_abstract._base.types import BoolArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers._snapshot import Codec, listed

logger = logging.getLogger(__name__)

RAISED = "raised by"  # how the note begins of an error that an environment's own code raised
BLACKJACK = "gymnasium.envs.toy_text.blackjack.BlackjackEnv"


@runtime_checkable
class TableSource(Protocol):
    """An environment, or wrapper, that can describe itself as a table."""

    def to_mdp(self, *, terminal: str = "absorb") -> TabularMDP:
        """The model, with `terminal` as in `TabularMDP.from_table`."""

    def state_id(self) -> int:
        """The present state's id, one of the model's `state_ids`."""


@runtime_checkable
class Shown(Protocol):
    """A source that knows what its states look like."""

    def observation_of(self, state: int) -> Any:
        """What is seen in a state, given by its id."""

    def end_observations(self) -> Iterable[Any]:
        """What is seen only when an episode has ended."""


def layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    """The environment and all it wraps, from the outside in."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def find_source(env: gym.Env[Any, Any]) -> TableSource | None:
    """The outermost layer that describes itself, if any."""
    for layer in layers(env):
        if isinstance(layer, TableSource):
            return layer
        kind = type(layer)  # not a class derived from it, which may have other rules
        if f"{kind.__module__}.{kind.__name__}" == BLACKJACK:
            from bisim_abstract.wrappers.blackjack import BlackjackTable

            return BlackjackTable(layer)
    return None


def ends_in_states(source: object) -> bool:
    """Whether episodes of a source end in absorbing states of its model."""
    return bool(getattr(source, "ends_in_states", False))


def state_met(
    mdp: TabularMDP, place: Mapping[int, int], ident: int, source: object, *, is_end: bool
) -> int | None:
    """The state of the model that an environment is in; None if the model does not have it.

    Args:
        mdp: The model.
        place: Where ids are in it.
        ident: The id that the environment tells.
        source: Who describes the environment, if anybody does.
        is_end: Whether the episode has ended there, and ends are absorbed.
    """
    if is_end and not (ends_in_states(source) and ident in place):
        return mdp.terminal_state
    return place.get(ident)


class Holding:
    """Holds still what a model does not count as state, in an environment that is compared with it.

    Args:
        env: The environment, which is changed.
        mdp: Its model.
    """

    def __init__(self, env: gym.Env[Any, Any], mdp: TabularMDP) -> None:
        self._name, self._codec = type(env.unwrapped).__name__, None
        self._told: Mapping[str, Any] = {}
        names = frozen_in(mdp) if mdp.metadata.get("method") == "enumeration" else ()
        if names:
            self._codec = Codec(env.unwrapped, frozenset(names))
            told = mdp.metadata.get("held")
            self._told = told if isinstance(told, Mapping) else {}

    @property
    def advice(self) -> str:
        """What may be wrong, as a sentence with a space behind."""
        if self._codec is None:
            return ""
        return f"What is frozen ({listed(sorted(self._codec.freeze))}) may be part of the state. "

    def begin(self, *, is_first: bool) -> None:
        """Hold the values after a reset; those of the very first are compared with the model's.

        Raises:
            ExtractionError: If one of them is not what it was when the model was made.
        """
        codec = self._codec
        if codec is None:
            return
        codec.hold()
        for name, told in self._told.items() if is_first else ():
            if name in codec.held and codec.frozen_digest([name]).hex()[:16] != told:
                raise ExtractionError(
                    f"{name!r} of {self._name}, which its model holds still, is not what it was "
                    "when the model was made; extract the model again"
                )

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to hold."""
        return self._codec is not None

    def hold(self) -> None:
        """Put everything back."""
        if self._codec is not None:
            self._codec.refreeze()


def state_text(mdp: TabularMDP, ident: int) -> str:
    """How messages call a state: by its id; where ids are digests, by its number in the model."""
    if mdp.metadata.get("method") != "enumeration":
        return f"state {ident}"
    found = np.flatnonzero(mdp.state_ids == ident)
    return f"state {found[0]} of its model" if found.size else "a state that its model lacks"


def unknown_state(mdp: TabularMDP, ident: int) -> ExtractionError:
    """What to say where an environment is in a state that its model does not have."""
    is_digest = mdp.metadata.get("method") == "enumeration"
    what = "a state that" if is_digest else f"state {ident}, which"
    return ExtractionError(
        f"the environment is in {what} its model does not have; was it changed, or reset to "
        "another layout, after the model was extracted?"
    )


def has_table(env: gym.Env[Any, Any]) -> bool:
    """Whether the environment has a `P` table (the present state is then its `s`)."""
    return hasattr(env.unwrapped, "P")


def mask_reader(env: gym.Env[Any, Any]) -> Callable[[int], Any] | None:
    """What tells the actions of a state by its id: the outermost `action_mask`, if there is one."""
    for layer in layers(env):
        tell: Any = getattr(layer, "action_mask", None)
        if callable(tell):
            return cast(Callable[[int], Any], tell)
    return None


def as_mask(given: Any, n_actions: int, where: str) -> BoolArray:
    """(n_actions) an action mask as an environment tells it, checked.

    Args:
        given: The mask.
        n_actions: Number of actions.
        where: The state that it is told for.
    """
    mask = np.asarray(given)
    if mask.shape != (n_actions,) or mask.dtype.kind not in "biu":
        raise ExtractionError(
            f"an action mask must be {n_actions} numbers, 1 for the actions that there are, got "
            f"{given!r} for {where}"
        )
    if not mask.any():
        raise ExtractionError(f"the action mask of {where} allows nothing; allow one action")
    return np.asarray(mask != 0)


def copied_env(env: gym.Env[Any, Any]) -> gym.Env[Any, Any] | None:
    """A copy that can be stepped without touching the original, or None."""
    try:
        return copy.deepcopy(env)
    except Exception as error:  # of the code of what it holds
        logger.debug("%s cannot be copied: %s", type(env.unwrapped).__name__, error)
        return None


def outer_time_limit(env: gym.Env[Any, Any]) -> int | None:
    """The least number of steps that the `TimeLimit` wrappers allow, if there are any."""
    limits = [
        int(layer._max_episode_steps)
        for layer in layers(env)
        if isinstance(layer, gym.wrappers.TimeLimit)
    ]
    return min(limits, default=None)


def time_limit_in(mdp: TabularMDP) -> int | None:
    """The number of steps after which an environment truncates, as its model says."""
    limit = mdp.metadata.get("time_limit")  # from a file, maybe
    return limit if type(limit) is int and limit >= 1 else None


def conditions_in(mdp: TabularMDP) -> list[str]:
    """What qualifies every claim about a model, as that says; fit for people to read."""
    told = mdp.metadata.get("conditions")  # from a file, maybe
    is_list = isinstance(told, list | tuple) and all(isinstance(text, str) for text in told)
    return [plain_text(text) for text in told] if told and is_list else []


def frozen_in(mdp: TabularMDP | None) -> tuple[str, ...]:
    """Attributes of the environment that are not part of the states of its enumerated model."""
    names = FREEZE if mdp is None else mdp.metadata.get("frozen", FREEZE)
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if is_list else FREEZE


def reset_env(env: gym.Env[Any, Any], seed: int | None) -> tuple[Any, dict[str, Any]]:
    """`reset`, of an environment that somebody wrote.

    Raises:
        ExtractionError: If it does not do as Gymnasium says.
    """
    name = type(env.unwrapped).__name__
    try:
        inspect.signature(env.reset).bind(seed=seed)
    except TypeError as error:
        raise ExtractionError(
            f"{name}.reset must take a seed: def reset(self, *, seed=None, options=None)"
        ) from error
    try:
        found: Any = env.reset(seed=seed)
    except Exception as error:
        error.add_note(f"{RAISED} reset(seed={seed}) of {name}")
        raise
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise ExtractionError(
            f"{name}.reset must return an observation and a dictionary, got {_values(found)}"
        )
    return found[0], dict(found[1])


def step_env(
    env: gym.Env[Any, Any], action: int, where: str
) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """`step`, of an environment that somebody wrote.

    Raises:
        ExtractionError: If it does not do as Gymnasium says.
    """
    name = type(env.unwrapped).__name__
    try:
        found: Any = env.step(action)
    except Exception as error:
        error.add_note(f"{RAISED} step of {name}, at {where}, action {action}")
        raise
    if not isinstance(found, tuple) or len(found) != 5 or not isinstance(found[4], Mapping):
        raise ExtractionError(
            f"{name}.step must return observation, reward, terminated, truncated and a dictionary, "
            f"got {_values(found)} at {where}, action {action}"
        )
    try:
        reward = float(found[1])
    except (TypeError, ValueError) as error:
        raise ExtractionError(
            f"rewards must be numbers, got {found[1]!r} at {where}, action {action} of {name}"
        ) from error
    return found[0], reward, bool(found[2]), bool(found[3]), dict(found[4])


def _values(found: Any) -> str:
    """What was returned, in words."""
    if not isinstance(found, tuple):
        return f"{type(found).__name__} alone"
    return f"{len(found)} values ({', '.join(type(value).__name__ for value in found)})"


class StartSeeds:
    """What an environment is reset with: where its model was enumerated, seeds of that, in turn.

    Args:
        mdp: The model.
        seed: The first seed of an enumerated one.
    """

    def __init__(self, mdp: TabularMDP, seed: int) -> None:
        self.seeds: range | None = None
        if mdp.metadata.get("method") == "enumeration":
            count = mdp.metadata.get("starts", 1)  # from a file, maybe
            is_count = type(count) is int and 1 <= count <= MOST_STARTS
            self.seeds = range(seed, seed + (count if is_count else 1))
        self._first, self._turn = seed, -1

    def nth(self, turn: int) -> int:
        """The seed of one of many resets."""
        return self._first + (turn if self.seeds is None else turn % len(self.seeds))

    def draw(self, asked: int | None) -> int | None:
        """The seed to reset with, if somebody asks for this one, or for any."""
        if self.seeds is None:
            return asked
        self._turn = self._turn + 1 if asked is None else asked
        return self.seeds[self._turn % len(self.seeds)]

    def reset(
        self, env: gym.Env[Any, Any], asked: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset an environment with one of its seeds, and its generator with the one asked for.

        Steps of an enumerated environment do not depend on the generator, but whoever resets it
        with a seed expects that of this seed.
        """
        found = env.reset(seed=self.draw(asked), options=options)
        if self.seeds is not None and asked is not None:
            inner = env.unwrapped
            inner._np_random, inner._np_random_seed = seeding.np_random(asked)
        return found


def state_reader(env: gym.Env[Any, Any], mdp: TabularMDP | None = None) -> Callable[[], int]:
    """A function that tells the id of the state the environment is in, as its model has it."""
    source = find_source(env)
    if source is not None:
        return source.state_id
    if has_table(env):
        return lambda: _table_state(env)
    from bisim_abstract.wrappers.enumerate import StateReader

    return StateReader(env, freeze=frozen_in(mdp)).state_id


def plain_action(action: Any) -> Any:
    """A NumPy array of one action as that action: agents return them, tables refuse them."""
    return action.item() if isinstance(action, np.ndarray) and action.ndim == 0 else action


def _table_state(env: gym.Env[Any, Any]) -> int:
    inner: Any = env.unwrapped
    if not hasattr(inner, "s"):
        raise ExtractionError(
            f"{type(inner).__name__} has a P table but no attribute s that tells its present "
            "state; give it one, or the methods to_mdp() and state_id()"
        )
    return int(inner.s)
