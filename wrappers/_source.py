"""Where a table comes from: which layer of a wrapped environment knows states and dynamics.

An environment or wrapper that can describe itself offers two methods, `to_mdp(terminal=...)`
and `state_id()`; `RoomsGridEnv` and `Distractor` do. All others are read through their `P`
table and `s`, or enumerated. Some classes, such as Gymnasium's Blackjack, are described by adapters
(see `_adapters`).

A source may say more: by `observation_of(state)` and `end_observations()` what is seen in a state
and at ends, by `ends_in_states` that episodes end in states of the model, not in one added for it.

Which actions a state has, those tell that have a method `action_mask(state)`, the state being one
of their own ids, as Gymnasium's Taxi does.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any, Protocol, cast, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from bisim_abstract._base.reading import FREEZE, MOST_STARTS
from bisim_abstract._base.text import plain_text, short
from bisim_abstract._base.types import BoolArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers._adapters import find_adapter
from bisim_abstract.wrappers._encoding import is_drawing
from bisim_abstract.wrappers._snapshot import Codec, listed

logger = logging.getLogger(__name__)

RAISED = "raised by"  # how the note begins of an error that an environment's own code raised
MOST_ACTIONS = 10_000  # that the advice on numbering them speaks of
MOST_EPISODES = 1_000  # after which the reader of an environment's states is made anew


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
    """The outermost layer that describes itself or has an adapter, if any."""
    for layer in layers(env):
        if isinstance(layer, TableSource):
            return layer
        kind: Any = type(layer)
        adapter = find_adapter(kind)
        source = None if adapter is None else adapter(layer)
        if isinstance(source, TableSource):
            return source
        if source is not None:
            raise ExtractionError(
                f"the adapter of {type(layer).__name__} must return an object with to_mdp and "
                f"state_id, or None, got {short(source)}"
            )
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


def numbering_advice(space: gym.Space[Any]) -> str:
    """What to do about actions that are not numbers: two lines that number them, if that works."""
    spaces = gym.spaces
    sizes: list[int] | None = None
    starts: list[int] = []
    shape: tuple[int, ...] = getattr(space, "shape", None) or ()
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
    elif isinstance(space, spaces.MultiBinary):
        sizes = [2] * math.prod(space.shape)
    elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        starts = space.low.ravel().tolist()
        sizes = [b - a + 1 for a, b in zip(starts, space.high.ravel().tolist(), strict=True)]
    elif isinstance(space, spaces.Tuple) and all(
        isinstance(part, spaces.Discrete) for part in space.spaces
    ):
        parts: list[Any] = list(space.spaces)
        sizes, starts = [int(part.n) for part in parts], [int(part.start) for part in parts]
    if not sizes or math.prod(sizes) > MOST_ACTIONS:
        return "choose finitely many, few of them, and number them inside the environment"
    number = f"numpy.array(numpy.unravel_index(action, {tuple(sizes)}))"
    if any(starts):
        number += f" + {starts}"
    if len(shape) > 1:
        number = f"({number}).reshape({shape})"
    return (
        "number them inside the environment: make its action_space "
        f"gymnasium.spaces.Discrete({math.prod(sizes)}), and begin step with action = {number}"
    )


def copied_env(env: gym.Env[Any, Any]) -> gym.Env[Any, Any] | None:
    """A copy that can be stepped without touching the original, or None.

    Surfaces and the like cannot be copied, and are shared. What is drawn for people to watch is
    not drawn by the copy. Functions of wrappers that speak of the wrapper itself, as that of
    `AddRenderObservation` does, speak of its copy.
    """
    memo: dict[int, Any] = {}
    for layer in layers(env):
        _share_drawing(list(vars(layer).values()), memo)
    try:
        twin = copy.deepcopy(env, memo)
    except Exception as error:  # of the code of what it holds
        logger.debug("%s cannot be copied: %s", type(env.unwrapped).__name__, error)
        return None
    for layer in layers(twin):
        for name, value in list(vars(layer).items()):
            if isinstance(value, FunctionType) and value.__closure__:
                setattr(layer, name, _rebound(value, memo))
    if vars(twin.unwrapped).get("render_mode") == "human":
        twin.unwrapped.render_mode = None
    return twin


def _share_drawing(values: Iterable[Any], memo: dict[int, Any], *, depth: int = 3) -> None:
    """Note what serves drawing as its own copy."""
    for value in values:
        if is_drawing(type(value)):
            memo[id(value)] = value
        elif depth and isinstance(value, list | tuple):
            _share_drawing(value, memo, depth=depth - 1)
        elif depth and isinstance(value, dict):
            _share_drawing(value.values(), memo, depth=depth - 1)


def _rebound(function: FunctionType, memo: Mapping[int, Any]) -> FunctionType:
    """A function over the copies of the environments that it is over."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # nothing yet
            content = None
        is_env = isinstance(content, gym.Env) and id(content) in memo
        cells.append(CellType(memo[id(content)]) if is_env else cell)
    name, defaults = function.__name__, function.__defaults__
    made = FunctionType(function.__code__, function.__globals__, name, defaults, tuple(cells))
    made.__kwdefaults__ = function.__kwdefaults__
    return made


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


def drawn_rewards_in(mdp: TabularMDP) -> tuple[float, float]:
    """The least and the largest reward of steps that were gone through draw by draw."""
    told = mdp.metadata.get("drawn_rewards")  # from a file, maybe
    is_pair = isinstance(told, list | tuple) and len(told) == 2
    if not told or not is_pair or not all(isinstance(x, int | float) for x in told):
        return math.inf, -math.inf
    return float(told[0]), float(told[1])


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
    env: gym.Env[Any, Any], action: int, where: str, pay: Callable[[Any], Any] | None = None
) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """`step`, of an environment that somebody wrote.

    Args:
        env: The environment.
        action: The action.
        where: The state, in words.
        pay: What wrappers that are not stepped make of its reward.

    Raises:
        ExtractionError: If it does not do as Gymnasium says.
    """
    name = type(env.unwrapped).__name__
    try:
        found: Any = env.step(action)
    except Exception as error:
        error.add_note(f"{RAISED} step of {name}, at {where}, action {action}")
        raise
    if (
        not isinstance(found, tuple)
        or len(found) != 5
        or not (type(found[4]) is dict or isinstance(found[4], Mapping))
    ):
        raise ExtractionError(
            f"{name}.step must return observation, reward, terminated, truncated and a dictionary, "
            f"got {_values(found)} at {where}, action {action}"
        )
    paid = found[1] if pay is None else pay(found[1])
    if type(paid) is float:
        return found[0], paid, bool(found[2]), bool(found[3]), dict(found[4])
    if np.ndim(paid) == 1 and len(paid) > 1:
        raise vector_reward(name, paid)
    try:
        reward = float(paid)
    except (TypeError, ValueError) as error:
        raise ExtractionError(
            f"rewards must be numbers, got {paid!r} at {where}, action {action} of {name}"
        ) from error
    return found[0], reward, bool(found[2]), bool(found[3]), dict(found[4])


def vector_reward(name: str, paid: Any) -> ExtractionError:
    """The error of rewards that are vectors, with what chooses weights."""
    return ExtractionError(
        f"rewards of {name} are vectors of {len(paid)} numbers; choose weights: "
        f"reading=Reading(weights={[1.0] * len(paid)})"
    )


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
        self._generator: tuple[np.random.Generator, int] | None = None

    def nth(self, turn: int) -> int:
        """The seed of one of many resets."""
        return self._first + (turn if self.seeds is None else turn % len(self.seeds))

    def reset_for_check(self, env: gym.Env[Any, Any], turn: int) -> tuple[Any, dict[str, Any]]:
        """One of many resets; steps of an enumerated environment draw something else after each."""
        found = env.reset(seed=self.nth(turn))
        inner = env.unwrapped
        if self.seeds is not None and isinstance(inner._np_random, np.random.Generator):
            inner._np_random, _ = seeding.np_random(self._first + turn)
        return found

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

        The seed of an enumerated environment decides where an episode begins; what its steps draw
        goes on from episode to episode, as after any reset without a seed.
        """
        found = env.reset(seed=self.draw(asked), options=options)
        if self.seeds is not None:
            if asked is not None or self._generator is None:
                self._generator = seeding.np_random(asked)
            inner = env.unwrapped
            inner._np_random, inner._np_random_seed = self._generator
        return found


def state_reader(env: gym.Env[Any, Any], mdp: TabularMDP | None = None) -> Callable[[], int]:
    """A function that tells the id of the state the environment is in, as its model has it."""
    source = find_source(env)
    if source is not None:
        return source.state_id
    if has_table(env):
        return functools.partial(_table_state, env.unwrapped)
    from bisim_abstract.wrappers.enumerate import StateReader

    return StateReader(env, freeze=frozen_in(mdp)).state_id


class StateLookup:
    """Tells the state an environment is in; who knows that is searched for once.

    It is searched for again when a layer of the environment has been replaced. Copies and
    unpickled ones search for themselves.

    Args:
        mdp: The environment's model, if there is one.
    """

    def __init__(self, mdp: TabularMDP | None = None) -> None:
        self._mdp = mdp
        self._forget()

    def _forget(self) -> None:
        self._outer: gym.Env[Any, Any] | None = None
        self._wraps: list[tuple[Any, gym.Env[Any, Any]]] = []  # layers, and what each wraps
        self._source: TableSource | None = None
        self._read: Callable[[], int] | None = None
        self._episodes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_mdp": self._mdp}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._mdp = state["_mdp"]
        self._forget()

    def begin(self) -> None:
        """An episode begins; what a reader of snapshots remembers of old ones is bounded."""
        self._episodes += 1
        if self._episodes > MOST_EPISODES:
            self._forget()

    def ident(self, env: gym.Env[Any, Any]) -> int:
        """The id of the state that an environment is in, as its model has it."""
        if env is self._outer and self._read is not None:
            for layer, inner in self._wraps:
                if layer.env is not inner:
                    break
            else:
                return self._read()
        self._search(env)
        assert self._read is not None
        return self._read()

    def source(self, env: gym.Env[Any, Any]) -> TableSource | None:
        """Who describes the environment, if anybody does."""
        if env is not self._outer or any(layer.env is not inner for layer, inner in self._wraps):
            self._search(env)
        return self._source

    def _search(self, env: gym.Env[Any, Any]) -> None:
        self._forget()
        stack = list(layers(env))
        self._outer, self._wraps = env, list(itertools.pairwise(stack))
        self._source = find_source(env)
        self._read = state_reader(env, self._mdp)


def plain_action(action: Any) -> Any:
    """A NumPy array of one action as that action: agents return them, tables refuse them."""
    return action.item() if isinstance(action, np.ndarray) and action.ndim == 0 else action


def _table_state(inner: Any) -> int:
    try:
        return int(inner.s)
    except AttributeError:
        raise ExtractionError(
            f"{type(inner).__name__} has a P table but no attribute s that tells its present "
            "state; give it one, or the methods to_mdp() and state_id()"
        ) from None
