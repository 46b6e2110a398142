"""Exact tables of deterministic environments that have none: breadth-first search.

The state of an environment is taken to be the attributes of `env.unwrapped`. A snapshot is one
pickle of all of them together, because objects are shared between attributes (MiniGrid's
`door` is also a cell of `grid`); restoring puts the unpickled attributes back into the same
environment. Two snapshots are the same state if their canonical encodings agree: an encoding
of values and of which parts are shared, free of addresses, of hash order, and of whether a
position happens to be a tuple or an array.
"""

from __future__ import annotations

import copyreg
import enum
import hashlib
import io
import itertools
import logging
import math
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from bisim_abstract._typing import Progress, ProgressCallback
from bisim_abstract._validation import check_choice, check_int
from bisim_abstract.errors import (
    ExtractionError,
    InvalidArgumentError,
    StateLimitError,
    StochasticEnvError,
)
from bisim_abstract.mdp import TabularMDP

__all__ = ["StateReader", "enumerate_mdp"]

logger = logging.getLogger(__name__)

AnyEnv: TypeAlias = gym.Env[Any, Any]

RESEEDS = 8  # other seeds under which a step that drew random numbers is repeated
REPORT_EVERY = 64  # states between two calls of the callback
COMPARED = 500  # states looked at to explain a state limit; enough to clear innocent attributes
CACHED = 2**18  # digests remembered per environment
CHECK_SEED = 20_230_817  # any constant: the checks must be the same in every run

# Attributes that Gymnasium itself gives a meaning outside the dynamics. Everything else counts
# as state: leaving out too much would merge states, leaving out too little only repeats them.
NOT_STATE = frozenset(
    {
        "_np_random",
        "_np_random_seed",
        "action_space",
        "metadata",
        "observation_space",
        "render_fps",
        "render_mode",
        "render_size",
        "reward_range",
        "spec",
    }
)
GENERATORS = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
SET_ASIDE = (*GENERATORS, np.random.SeedSequence, gym.Space, EnvSpec)
# Windows, surfaces, clocks and fonts. Other parts of pygame, such as Rect, may well be state.
DRAWING = (
    "matplotlib.",
    "pygame._freetype",
    "pygame.display",
    "pygame.font",
    "pygame.freetype",
    "pygame.mixer",
    "pygame.surface",
    "pygame.time",
    "pygame.window",
    "pyglet.",
    "tkinter",
)


def enumerate_mdp(
    env: AnyEnv,
    *,
    seed: int | None = 0,
    max_states: int = 100_000,
    freeze: Sequence[str] = ("step_count",),
    checks: int = 256,
    terminal: str = "absorb",
    callback: ProgressCallback | None = None,
) -> TabularMDP:
    """Every state that can be reached from `reset(seed=seed)`, by breadth-first search.

    For environments with deterministic transitions, a `Discrete` action space and no `P` table,
    such as MiniGrid with a fixed layout. The table is that of `env.unwrapped`: `TimeLimit` is
    not part of it, nor is any other wrapper. States are numbered in breadth-first order with
    actions ascending, the state after reset first, and `state_ids` holds what
    `StateReader.state_id` returns in each.

    The search runs inside the given environment, on copies of its attributes. Afterwards, also
    after an error, it holds the very objects it held before, and its random generators and the
    global ones are put back.

    MiniGrid pays `1 - 0.9 * step_count / max_steps` at the goal. With `step_count` frozen at 0
    every step is the first of an episode, so the table pays `1 - 0.9 / max_steps` whenever the
    goal is reached. The metadata entry `frozen` names what was held still.

    Whether an environment is deterministic can be refuted by trying, not proven. Each step that
    draws from a generator held by the environment or from the global ones is repeated under
    other seeds. At the end a sample of steps is repeated, from states as first met and from
    states that were reached in another form (an array in place of a tuple), and one random walk
    is made without restoring anything.

    Args:
        env: The environment; it need not have been reset.
        seed: Passed to `reset`, as MiniGrid's layout depends on it: one table per seed. With
            None, what a reset of the environment as it stands would lead to.
        max_states: Limit on the states of the environment, an added one not counted.
        freeze: Attributes of `env.unwrapped` that are not part of the state. They are held at
            their value after reset; one that cannot be pickled stays the same object.
        checks: Steps in each of the three checks at the end; 0 leaves them out.
        terminal: "absorb" sends every step that terminates to one absorbing state which pays
            nothing, has the id -1 and is numbered last (added if some step terminates);
            "table" ignores the mark and goes on from where such a step leads.
        callback: Called after every 64 states, and at the end.

    Raises:
        StochasticEnvError: If repeating a step or the reset gave another result.
        StateLimitError: If there are more than `max_states` states.
        ExtractionError: If the environment cannot be enumerated for another reason.

    Example:
        Gymnasium's cliff keeps the last action for drawing, which is not part of the state.

        >>> env = gym.make("CliffWalking-v1")
        >>> enumerate_mdp(env, freeze=("lastaction",))
        TabularMDP(38 states, 4 actions, 152 transitions, terminal state 37, from CliffWalking-v1)
    """
    if seed is not None:
        seed = check_int("seed", seed, low=0)
    max_states = check_int("max_states", max_states, low=1)
    checks = check_int("checks", checks, low=0)
    check_choice("terminal", terminal, ("absorb", "table"))
    codec = _Codec(_home(env), _names(freeze))
    n_actions = _action_count(env)
    with _borrowed(codec, seed):
        search = _Search(codec, n_actions, seed, absorb=terminal == "absorb", limit=max_states)
        search.run(callback)
        search.check(checks)
        spec = codec.home.spec
        return search.table(
            {
                "env": type(codec.home).__name__ if spec is None else spec.id,
                "method": "enumeration",
                "seed": seed,
                "frozen": sorted(codec.held),
                "gymnasium": gym.__version__,
                "terminal": terminal,
            }
        )


class StateReader:
    """Tells which state an environment is in, by the ids of an enumerated table.

    The id depends on the values in the environment alone, not on the process, on rendering or
    on the random generators. The environment must be made with the same arguments as the
    enumerated one, `render_mode` excepted.

    Args:
        env: The environment, wrapped or not.
        freeze: As given to `enumerate_mdp`.

    Example:
        >>> env = gym.make("CliffWalking-v1")
        >>> mdp = enumerate_mdp(env, freeze=("lastaction",))
        >>> reader = StateReader(env, freeze=("lastaction",))
        >>> _ = env.reset()
        >>> reader.state_id() == mdp.state_ids[0]
        np.True_
    """

    def __init__(self, env: AnyEnv, *, freeze: Sequence[str] = ("step_count",)) -> None:
        self._codec = _Codec(_home(env), _names(freeze))

    def state_id(self) -> int:
        """The id of the present state, in [0, 2**63).

        Raises:
            ExtractionError: If an attribute of the environment cannot be pickled.
        """
        codec = self._codec
        return _short_id(codec.digest(codec.snapshot()))


# -- arguments -----------------------------------------------------------------------------


def _home(env: AnyEnv) -> AnyEnv:
    if not isinstance(env, gym.Env):
        raise InvalidArgumentError(
            f"env must be a gymnasium.Env, got {type(env).__name__}; vector environments have "
            "no single state"
        )
    home = env.unwrapped
    slotted = [kind.__name__ for kind in type(home).__mro__ if kind.__dict__.get("__slots__")]
    if slotted:
        raise ExtractionError(
            f"{', '.join(slotted)} keeps state in __slots__, which a snapshot of the attributes "
            "does not hold; remove __slots__ from the class"
        )
    return home


def _names(freeze: Sequence[str]) -> frozenset[str]:
    if isinstance(freeze, str) or not all(isinstance(name, str) for name in freeze):
        raise InvalidArgumentError(f"freeze must be a sequence of attribute names, got {freeze!r}")
    return frozenset(freeze)


def _action_count(env: AnyEnv) -> int:
    space = env.unwrapped.action_space
    if not isinstance(space, gym.spaces.Discrete):
        raise ExtractionError(
            f"the action space must be Discrete, got {space}; a table needs finitely many "
            "actions, so give the environment a Discrete action space"
        )
    if space.start != 0:
        raise ExtractionError(
            f"actions must be numbered from 0, got {space}; a table numbers its actions from 0 "
            "and could not be used with this environment"
        )
    if env.action_space != space:
        raise ExtractionError(
            f"a wrapper changes the action space from {space} to {env.action_space}, but the "
            "table is that of env.unwrapped; pass env.unwrapped, or build the change into the "
            "environment"
        )
    return int(space.n)


def _short_id(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# -- random generators ---------------------------------------------------------------------
# A stream is a generator, a bit generator, or the module `random` with its global functions.


def _mark(stream: Any) -> object:
    """Something that compares equal until the stream is drawn from."""
    if isinstance(stream, random.SystemRandom):
        return object()  # has no state: count every step as one that drew
    if isinstance(stream, np.random.Generator):
        stream = stream.bit_generator
    if isinstance(stream, np.random.BitGenerator):
        return pickle.dumps(stream.state)  # as bytes: some hold arrays, which do not compare
    if isinstance(stream, np.random.RandomState):
        return pickle.dumps(stream.get_state(legacy=False))
    return stream.getstate()


def _rewind(stream: Any, mark: Any) -> None:
    if isinstance(stream, random.SystemRandom):
        return
    if isinstance(stream, np.random.Generator):
        stream = stream.bit_generator
    if isinstance(stream, np.random.BitGenerator):
        stream.state = pickle.loads(mark)
    elif isinstance(stream, np.random.RandomState):
        stream.set_state(pickle.loads(mark))
    else:
        stream.setstate(mark)


def _reseed(stream: Any, seed: int) -> None:
    if isinstance(stream, np.random.Generator):
        stream = stream.bit_generator
    if isinstance(stream, np.random.BitGenerator):
        stream.state = type(stream)(seed).state
    else:
        stream.seed(seed)


@contextmanager
def _borrowed(codec: _Codec, seed: int | None) -> Iterator[None]:
    """Let the search use the environment; put everything back however it ends."""
    home = codec.home
    attributes = vars(home)
    original = dict(attributes)
    state = codec.snapshot()  # registers the generators it meets, and may raise
    if seed is None:
        _ = home.np_random  # created now if there is none, so that a reset can be repeated
    streams = [random, *codec.streams()]
    marks = [_mark(stream) for stream in streams]
    global_bits = np.random.mtrand.get_bit_generator()
    global_state = np.random.mtrand.get_state(legacy=False)
    # A small generator stands in for NumPy's global one: its state is quick to compare.
    np.random.mtrand.set_bit_generator(np.random.PCG64(CHECK_SEED))
    try:
        random.seed(CHECK_SEED)
        codec.hold()
        codec.restore(state)  # copies: reset may change objects in place
        if attributes.get("render_mode") == "human":
            attributes["render_mode"] = None  # thousands of steps need no window
        codec.marks = list(zip(streams[1:], marks[1:], strict=True))
        yield
    finally:
        attributes.clear()
        attributes.update(original)
        for stream, mark in zip(streams, marks, strict=True):
            _rewind(stream, mark)
        np.random.mtrand.set_bit_generator(global_bits)
        np.random.mtrand.set_state(global_state)  # with the second half of a pair of normals


# -- snapshots -----------------------------------------------------------------------------


def _fetch(index: int) -> NoReturn:
    """Stands in a pickle for an object that is kept as it is; `_Unpickler` replaces it."""
    raise pickle.UnpicklingError(f"object {index} is known to the environment's own codec only")


class _Kept:
    """Objects that snapshots refer to instead of copying them."""

    def __init__(self, home: object) -> None:
        self._home = home
        self._objects: list[object] = []
        self._index: dict[int, int] = {}  # by address; the list keeps the objects alive
        self._by_type: dict[type, bool] = {}
        self.streams: list[object] = []

    def index(self, thing: object) -> int | None:
        """The number of an object that is to be kept, None for one that is to be copied."""
        kind = type(thing)
        keep = self._by_type.get(kind)
        if keep is None:
            keep = self._by_type[kind] = _is_aside(kind) or issubclass(
                kind, FunctionType | ModuleType | type
            )
        if (not keep and thing is not self._home) or thing is _fetch:
            return None
        place = self._index.get(id(thing))
        if place is None:
            place = self._index[id(thing)] = len(self._objects)
            self._objects.append(thing)
            if isinstance(thing, GENERATORS):
                self.streams.append(thing)
        return place

    def __getitem__(self, index: int) -> object:
        return self._objects[index]


def _is_aside(kind: type) -> bool:
    """Whether objects of this type are neither state nor to be copied."""
    return issubclass(kind, SET_ASIDE) or f"{kind.__module__}.".startswith(DRAWING)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, kept: _Kept) -> None:
        super().__init__(file, protocol=5)
        self._kept = kept

    def reducer_override(self, thing: Any) -> Any:
        index = self._kept.index(thing)
        return NotImplemented if index is None else (_fetch, (index,))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: _Kept) -> None:
        super().__init__(file)
        self._kept = kept

    def find_class(self, module: str, name: str) -> Any:
        if name == "_fetch" and module == __name__:
            return self._kept.__getitem__
        return super().find_class(module, name)


class _Codec:
    """Takes, restores and identifies the states of one environment."""

    def __init__(self, home: AnyEnv, freeze: frozenset[str]) -> None:
        self.home = home
        self.freeze = freeze
        self.held: dict[str, Callable[[], Any]] = {}  # makes the value of a frozen attribute
        self.marks: list[tuple[object, object]] = []  # the environment's generators at first
        self._aside = NOT_STATE | freeze
        self._kept = _Kept(home)
        self._handlers: dict[type, _Handler] = dict(_HANDLERS)
        self._digests: dict[bytes, bytes] = {}

    def snapshot(self) -> bytes:
        """All attributes that are state, in one pickle."""
        attributes = self._attributes()
        try:
            return self._dump(attributes)
        except Exception as error:  # pickling runs the environment's own code
            bad = [name for name, value in attributes.items() if not self._is_picklable(value)]
            raise ExtractionError(
                f"the state of {type(self.home).__name__} cannot be pickled, because of "
                f"{_listed(bad) or 'all attributes together'} ({type(error).__name__}: {error}); "
                "remove what cannot be pickled, give its class a __reduce__, or name the "
                "attribute in freeze if it is not part of the state"
            ) from error

    def restore(self, snapshot: bytes) -> None:
        """Put the environment into the state of a snapshot."""
        loaded = self._load(snapshot)
        attributes = vars(self.home)
        for name in [name for name in attributes if name not in self._aside]:
            if name not in loaded:
                del attributes[name]
        attributes.update(loaded)
        self.refreeze()

    def hold(self) -> None:
        """Take the present values of the frozen attributes as those to hold."""
        attributes = vars(self.home)
        self.held = {name: self._maker(attributes[name]) for name in self.freeze & set(attributes)}

    def refreeze(self) -> None:
        """Set the frozen attributes back."""
        attributes = vars(self.home)
        for name in self.freeze:
            if name in self.held:
                attributes[name] = self.held[name]()
            else:
                attributes.pop(name, None)

    def digest(self, snapshot: bytes) -> bytes:
        """The canonical digest of the present state, of which `snapshot` was taken."""
        # Pickles differ where states do not, but equal pickles are equal states, and hashing
        # one takes a hundredth of the time that walking through the objects does.
        key = hashlib.sha256(snapshot).digest()
        found = self._digests.get(key)
        if found is None:
            encoder = _Encoder(self.home, self._handlers)
            for name, value in sorted(self._attributes().items()):
                if _is_told(value):
                    encoder.text(name)
                    encoder.add(value)
            found = hashlib.sha256(encoder.result()).digest()
            if len(self._digests) >= CACHED:
                self._digests.clear()
            self._digests[key] = found
        return found

    def encodings(self, snapshot: bytes) -> dict[str, bytes]:
        """The canonical encoding of each attribute by itself."""
        found = {}
        for name, value in self._load(snapshot).items():
            if _is_told(value):
                encoder = _Encoder(self.home, self._handlers)
                encoder.add(value)
                found[name] = encoder.result()
        return found

    def differing(self, one: bytes, other: bytes) -> list[str]:
        """The attributes in which two snapshots differ."""
        left, right = self.encodings(one), self.encodings(other)
        return sorted(name for name in left | right if left.get(name) != right.get(name))

    def streams(self) -> list[object]:
        """The generators that a step of the environment may draw from, `random` left out."""
        own = vars(self.home).get("_np_random")
        others = [stream for stream in self._kept.streams if stream is not own]
        return [own, *others] if isinstance(own, GENERATORS) else others

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.home).items() if name not in self._aside}

    def _dump(self, value: object) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self._kept).dump(value)
        return file.getvalue()

    def _load(self, raw: bytes) -> Any:
        return _Unpickler(io.BytesIO(raw), self._kept).load()

    def _is_picklable(self, value: object) -> bool:
        try:
            self._dump(value)
        except Exception:  # as in `snapshot`
            return False
        return True

    def _maker(self, value: object) -> Callable[[], Any]:
        if not self._is_picklable(value):
            return lambda: value
        raw = self._dump(value)
        return lambda: self._load(raw)


# -- canonical encoding --------------------------------------------------------------------

_Handler: TypeAlias = "Callable[[_Encoder, Any], None]"


def _is_told(value: object) -> bool:
    """Whether an attribute enters the key.

    None counts as absent: what rendering and lazy set-up create is None or missing before.
    """
    return value is not None and not _is_aside(type(value))


@lru_cache(maxsize=4096)  # names of attributes and classes, over and over
def _encoded(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(raw), raw)


class _Encoder:
    """Writes values as bytes that are equal exactly for equal states.

    Every item says its type and length, so no two values run together. Mutable objects are
    numbered by where they are first met, and later meetings refer back to that number: whether
    `carrying` is the very object of the mission can decide over the reward. Numbers count
    sequences too, of whatever type, so that a tuple in place of an array shifts none of them.
    """

    def __init__(self, home: object, handlers: dict[type, _Handler]) -> None:
        self._home = home
        self._handlers = handlers
        self._parts: list[bytes] = []
        self._met: dict[int, int] = {}
        self._count = 0
        self._alive: list[object] = []  # temporary objects, whose address must not be reused

    def result(self) -> bytes:
        return b"".join(self._parts)

    def add(self, value: Any) -> None:
        kind = type(value)
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._handlers[kind] = _handler_of(kind)
        handler(self, value)

    def constant(self, value: object) -> None:
        self._parts.append(b"N" if value is None else b"C" + repr(value).encode())

    def boolean(self, value: Any) -> None:
        self._parts.append(b"T" if value else b"F")

    def integer(self, value: int) -> None:
        self._parts.append(b"i%d;" % value)

    def real(self, value: float) -> None:
        self._parts.append(b"fnan" if math.isnan(value) else b"f" + struct.pack("<d", value))

    def text(self, value: str) -> None:
        self._parts.append(_encoded(value))

    def raw(self, value: bytes | bytearray) -> None:
        if isinstance(value, bytearray) and self._is_met(value):
            return
        self._parts.append(b"b%d:%b" % (len(value), bytes(value)))

    def scalar(self, value: np.generic) -> None:
        # int64, float64 and bool are what Python's own numbers become; others wrap or round
        # differently, and stay apart.
        if value.dtype in (np.int64, np.float64, np.bool_):
            self.add(value.item())
        else:
            self._parts.append(b"n")
            self.text(value.dtype.str)
            self.raw(value.tobytes())

    def fixed_sequence(self, value: Sequence[Any]) -> None:
        self._count += 1
        self._items(value)

    def sequence(self, value: list[Any]) -> None:
        if not self._is_met(value):
            self._items(value)

    def array(self, value: np.ndarray[Any, Any]) -> None:
        if self._is_met(value):
            return
        if value.ndim == 1 and value.dtype in (np.int64, np.float64, np.bool_):
            self._items(value.tolist())  # as a tuple of the same numbers
            return
        self._parts.append(b"a")
        self.text(value.dtype.str)
        self._parts.append(b"%d%b" % (value.ndim, b"".join(b",%d" % n for n in value.shape)))
        if value.dtype.hasobject or value.dtype.names:  # padding bytes are not part of the value
            self._items(value.ravel().tolist())
        else:
            self.raw(value.tobytes())

    def mapping(self, value: Mapping[Any, Any]) -> None:
        # In order, as the dynamics may go through it in order.
        if self._is_met(value):
            return
        self._parts.append(b"{%d:" % len(value))
        for key, item in value.items():
            self.add(key)
            self.add(item)

    def collection(self, value: set[Any] | frozenset[Any]) -> None:
        if isinstance(value, frozenset):
            self._count += 1
        elif self._is_met(value):
            return
        keyed = []
        for item in value:
            encoder = _Encoder(self._home, self._handlers)
            encoder.add(item)
            keyed.append((encoder.result(), item))
        self._parts.append(b"S")
        self._items([item for _, item in sorted(keyed, key=lambda pair: pair[0])])

    def member(self, value: enum.Enum) -> None:
        self._parts.append(b"e")
        self.named(type(value))
        self.add(value.value)

    def named(self, value: Any) -> None:
        """Functions, classes and modules, by their name."""
        module = getattr(value, "__module__", None) or ""
        self._parts.append(b"g")
        self.text(f"{module}:{getattr(value, '__qualname__', value.__name__)}")

    def aside(self, value: object) -> None:
        self._parts.append(b"x")
        self.named(type(value))

    def builtin(self, value: Any) -> None:
        if isinstance(value.__self__, ModuleType | type | None):
            self.named(value)
        else:  # the method of some object, which is state
            self.reduced(value)

    def instance(self, value: object) -> None:
        """An object that is its class and its attributes."""
        if value is self._home:
            self._parts.append(b"H")
        elif not self._is_met(value):
            self._parts.append(b"<")
            self.named(type(value))
            self._state(vars(value))

    def reduced(self, value: Any) -> None:
        """An object that says itself what it consists of."""
        if value is self._home:
            self._parts.append(b"H")
            return
        if self._is_met(value):
            return
        special = copyreg.dispatch_table.get(type(value))
        recipe: Any = value.__reduce_ex__(4) if special is None else special(value)
        self._alive.append(recipe)
        if isinstance(recipe, str):
            self._parts.append(b"g")
            self.text(recipe)
            return
        function, arguments, state, items, pairs = itertools.islice(
            itertools.chain(recipe, itertools.repeat(None)), 5
        )
        self._parts.append(b"r")
        self.add(function)
        self._items(arguments)
        parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        for part in parts:  # attributes, or attributes and slots
            if isinstance(part, dict) and all(isinstance(name, str) for name in part):
                self._state(part)
            else:
                self.add(part)
        for rest in (items, pairs):
            listed = list(rest or ())
            self._alive.append(listed)
            self._items(listed)

    def bare(self, value: object) -> None:
        raise ExtractionError(
            "the state holds a bare object(), which has no value to tell it from another one; "
            "use an enum or a string instead"
        )

    def _state(self, attributes: Mapping[str, Any]) -> None:
        self._parts.append(b"%d:" % len(attributes))
        for name in sorted(attributes):
            self._parts.append(_encoded(name))
            self.add(attributes[name])

    def _items(self, items: Sequence[Any]) -> None:
        self._parts.append(b"(%d:" % len(items))
        for item in items:
            self.add(item)

    def _is_met(self, value: object) -> bool:
        self._count += 1
        first = self._met.setdefault(id(value), self._count)
        if first == self._count:
            return False
        self._parts.append(b"R%d;" % first)
        return True


_HANDLERS: Mapping[type, _Handler] = {
    type(None): _Encoder.constant,
    type(Ellipsis): _Encoder.constant,
    type(NotImplemented): _Encoder.constant,
    bool: _Encoder.boolean,
    int: _Encoder.integer,
    float: _Encoder.real,
    str: _Encoder.text,
    bytes: _Encoder.raw,
    bytearray: _Encoder.raw,
    tuple: _Encoder.fixed_sequence,
    list: _Encoder.sequence,
    np.ndarray: _Encoder.array,
    dict: _Encoder.mapping,
    set: _Encoder.collection,
    frozenset: _Encoder.collection,
    object: _Encoder.bare,
    BuiltinFunctionType: _Encoder.builtin,
}


def _handler_of(kind: type) -> _Handler:
    if _is_aside(kind):
        return _Encoder.aside
    if issubclass(kind, type | FunctionType | ModuleType):
        return _Encoder.named
    if issubclass(kind, np.generic):
        return _Encoder.scalar
    if issubclass(kind, enum.Enum):
        return _Encoder.integer if issubclass(kind, int) else _Encoder.member
    return _Encoder.instance if _is_plain(kind) else _Encoder.reduced


def _is_plain(kind: type) -> bool:
    """Whether pickle would store exactly the class and `__dict__` of such an object."""
    heap_type = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
    return (
        kind.__dictoffset__ != 0
        and all(base.__flags__ & heap_type for base in kind.__mro__[:-1])
        and not any(base.__dict__.get("__slots__") for base in kind.__mro__)
        and kind not in copyreg.dispatch_table
        and not hasattr(kind, "__getnewargs__")
        and not hasattr(kind, "__getnewargs_ex__")
        and all(
            getattr(kind, name) is getattr(object, name)
            for name in ("__reduce__", "__reduce_ex__", "__getstate__")
        )
    )


# -- search --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a step did; `snapshot` and `digest` are empty where the episode ends."""

    reward: float
    is_end: bool
    snapshot: bytes
    digest: bytes


class _Search:
    """Breadth-first search from the state after reset, and the checks of what it found."""

    def __init__(
        self, codec: _Codec, n_actions: int, seed: int | None, *, absorb: bool, limit: int
    ) -> None:
        self._codec = codec
        self._n_actions = n_actions
        self._seed = seed
        self._absorb = absorb
        self._limit = limit
        self._rng = np.random.default_rng(CHECK_SEED)
        self._snapshots: list[bytes] = []  # compressed
        self._hashes: list[int] = []  # of the snapshot as it was first taken
        self._digests: list[bytes] = []
        self._parents: list[int] = []
        self._numbers: dict[bytes, int] = {}
        self._by_id: dict[int, int] = {}
        self._variants: dict[int, bytes] = {}  # another form in which a state was reached
        self._successors: list[int] = []  # -1 for the end of the episode
        self._rewards: list[float] = []
        self._ends: list[bool] = []
        self._draws = 0

    def run(self, callback: ProgressCallback | None) -> None:
        codec = self._codec
        self._reset()
        codec.hold()
        missing = codec.freeze - set(codec.held) - {"step_count"}
        if missing:
            raise InvalidArgumentError(
                f"freeze names {_listed(sorted(missing))}, but {type(codec.home).__name__} has "
                f"no such attribute after reset; it has {_listed(sorted(vars(codec.home)))}"
            )
        snapshot = codec.snapshot()
        self._number(snapshot, codec.digest(snapshot), parent=0)
        state = 0
        while state < len(self._snapshots):
            self._expand(state)
            state += 1
            waiting = len(self._snapshots) - state
            if callback is not None and (state % REPORT_EVERY == 0 or waiting == 0):
                total = None if waiting else state
                callback(Progress("enumerating", state, total, f"{waiting} waiting"))
        if self._draws:
            logger.warning(
                "%s drew random numbers in %d of %d steps; repeating each under %d other seeds "
                "showed no effect",
                type(codec.home).__name__,
                self._draws,
                len(self._successors),
                RESEEDS,
            )

    def check(self, checks: int) -> None:
        """Repeat steps that are already in the table."""
        if checks == 0:
            return
        for state, action in self._sample(range(len(self._snapshots)), checks):
            self._compare(state, action, self._snapshots[state], StochasticEnvError)
        variants = min(checks, len(self._variants) * self._n_actions)  # once each is enough
        for state, action in self._sample(sorted(self._variants), variants):
            self._compare(state, action, self._variants[state], ExtractionError)
        self._walk(checks)

    def table(self, metadata: Mapping[str, Any]) -> TabularMDP:
        n, n_actions = len(self._snapshots), self._n_actions
        successors, rewards = np.array(self._successors), np.array(self._rewards)
        ids = [_short_id(digest) for digest in self._digests]
        terminal = n if (successors < 0).any() else None
        if terminal is not None:
            successors = np.append(np.where(successors < 0, n, successors), [n] * n_actions)
            rewards = np.append(rewards, np.zeros(n_actions))
            ids.append(-1)
        start = np.zeros(len(ids))
        start[0] = 1.0
        return TabularMDP(
            indptr=np.arange(successors.size + 1),
            indices=successors,
            probs=np.ones(successors.size),
            rewards=rewards.reshape(-1, n_actions),
            start=start,
            state_ids=np.array(ids),
            terminal_state=terminal,
            metadata=metadata,
        )

    # -- searching -------------------------------------------------------------------------

    def _reset(self) -> None:
        if self._seed is None:
            for stream, mark in self._codec.marks:
                _rewind(stream, mark)
        self._codec.home.reset(seed=self._seed)

    def _expand(self, state: int) -> None:
        codec = self._codec
        snapshot = zlib.decompress(self._snapshots[state])
        is_there = False
        before = self._marks()
        for action in range(self._n_actions):
            if is_there:  # many actions change nothing, and loading is half of the work
                codec.refreeze()
            else:
                codec.restore(snapshot)
            outcome = self._step(state, action)
            is_there = outcome.snapshot == snapshot
            after = self._marks()
            if after != before:
                self._draws += 1
                self._repeat(state, action, snapshot, outcome)
                is_there, after = False, self._marks()
            before = after
            successor = -1
            if outcome.digest:
                successor = self._number(outcome.snapshot, outcome.digest, parent=state)
            self._successors.append(successor)
            self._rewards.append(outcome.reward)
            self._ends.append(outcome.is_end)

    def _step(self, state: int, action: int) -> _Outcome:
        codec = self._codec
        try:
            _, reward, terminated, truncated, _ = codec.home.step(action)
            reward = float(reward)
        except Exception as error:
            error.add_note(f"raised while enumerating, at state {state}, action {action}")
            raise
        if truncated:
            self._refuse_truncation(state, action)
        if not math.isfinite(reward):
            raise ExtractionError(
                f"rewards must be finite, got {reward} at state {state}, action {action}"
            )
        if terminated and self._absorb:
            return _Outcome(reward, True, b"", b"")
        snapshot = codec.snapshot()
        return _Outcome(reward, bool(terminated), snapshot, codec.digest(snapshot))

    def _number(self, snapshot: bytes, digest: bytes, *, parent: int) -> int:
        number = self._numbers.get(digest)
        if number is None:
            number = len(self._snapshots)
            if number >= self._limit:
                self._refuse_more()
            self._numbers[digest] = number
            twin = self._by_id.setdefault(_short_id(digest), number)
            if twin != number:
                raise ExtractionError(
                    f"states {twin} and {number} share the id {_short_id(digest)} by "
                    "coincidence; add any constant attribute to the environment to get other ids"
                )
            self._snapshots.append(zlib.compress(snapshot, 1))
            self._hashes.append(hash(snapshot))
            self._digests.append(digest)
            self._parents.append(parent)
        elif number not in self._variants and hash(snapshot) != self._hashes[number]:
            self._variants[number] = zlib.compress(snapshot, 1)
        return number

    def _marks(self) -> list[tuple[int, object]]:
        streams = [random, np.random.mtrand.get_bit_generator(), *self._codec.streams()]
        return [(id(stream), _mark(stream)) for stream in streams]

    def _reseed(self) -> None:
        for stream in [random, np.random.mtrand.get_bit_generator(), *self._codec.streams()]:
            _reseed(stream, int(self._rng.integers(2**32)))

    # -- checking --------------------------------------------------------------------------

    def _repeat(self, state: int, action: int, snapshot: bytes, outcome: _Outcome) -> None:
        for _ in range(RESEEDS):
            self._codec.restore(snapshot)
            self._reseed()
            difference = self._difference(outcome, self._step(state, action))
            if difference:
                raise StochasticEnvError(self._stochastic(state, action, difference))

    def _sample(self, states: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
        """`size` pairs, all of them equally often up to one."""
        pairs = len(states) * self._n_actions
        while pairs and size > 0:
            for pair in self._rng.permutation(pairs)[:size]:
                place, action = divmod(int(pair), self._n_actions)
                yield states[place], action
            size -= pairs

    def _compare(
        self, state: int, action: int, packed: bytes, error: type[ExtractionError]
    ) -> None:
        self._codec.restore(zlib.decompress(packed))
        self._reseed()
        difference = self._difference(self._entry(state, action), self._step(state, action))
        if not difference:
            return
        if error is StochasticEnvError:
            raise StochasticEnvError(self._stochastic(state, action, difference))
        raise ExtractionError(
            f"state {state} was reached in two forms with equal values that behave differently: "
            f"under action {action} {difference}; let the environment keep one type for each "
            "of its attributes"
        )

    def _walk(self, steps: int) -> None:
        """Compare the table with the environment stepping freely, nothing restored."""
        codec = self._codec
        state = -1
        for _ in range(steps):
            if state < 0:
                state = self._return_to_start()
            codec.refreeze()
            action = int(self._rng.integers(self._n_actions))
            expected, found = self._entry(state, action), self._step(state, action)
            difference = self._difference(expected, found)
            if difference:
                raise ExtractionError(
                    f"restoring a state does not restore all of it: at state {state}, action "
                    f"{action}, stepping on from a reset and stepping from a snapshot disagree "
                    f"({difference}); keep the whole state in attributes of the environment, "
                    "not in globals, closures, or objects that pickle themselves incompletely"
                )
            state = -1 if found.is_end else self._numbers[found.digest]

    def _return_to_start(self) -> int:
        codec = self._codec
        self._reset()
        codec.refreeze()
        snapshot = codec.snapshot()
        if codec.digest(snapshot) != self._digests[0]:
            names = codec.differing(zlib.decompress(self._snapshots[0]), snapshot)
            raise StochasticEnvError(
                f"reset(seed={self._seed}) led to another state the second time "
                f"({_in_attributes(names)}); let the seed decide over everything random, and "
                "name in freeze what counts episodes"
            )
        return 0

    def _entry(self, state: int, action: int) -> _Outcome:
        row = state * self._n_actions + action
        successor = self._successors[row]
        snapshot, digest = b"", b""
        if successor >= 0:
            snapshot = zlib.decompress(self._snapshots[successor])
            digest = self._digests[successor]
        return _Outcome(self._rewards[row], self._ends[row], snapshot, digest)

    def _difference(self, one: _Outcome, other: _Outcome) -> str:
        """What differs between two outcomes, in words; empty if nothing does."""
        if one.is_end != other.is_end:
            return f"terminated was {one.is_end} and then {other.is_end}"
        if one.reward != other.reward:
            return f"the reward was {one.reward} and then {other.reward}"
        if one.digest != other.digest:
            names = self._codec.differing(one.snapshot, other.snapshot)
            return f"the next state differs {_in_attributes(names)}"
        return ""

    # -- refusing --------------------------------------------------------------------------

    def _stochastic(self, state: int, action: int, difference: str) -> str:
        name = type(self._codec.home).__name__
        return (
            f"{name} is stochastic: repeating state {state}, action {action}, {difference}; "
            "enumeration needs deterministic transitions, use estimate_mdp on sampled "
            "transitions instead"
        )

    def _refuse_truncation(self, state: int, action: int) -> NoReturn:
        codec = self._codec
        changed = codec.differing(zlib.decompress(self._snapshots[state]), codec.snapshot())
        raise ExtractionError(
            f"step returned truncated=True at state {state}, action {action}: a time limit is "
            "not part of the MDP; name the attribute that counts the steps in freeze (held "
            f"now: {_listed(sorted(codec.held)) or 'none'}; changed in this step: "
            f"{_listed(changed) or 'none'})"
        )

    def _refuse_more(self) -> NoReturn:
        codec = self._codec
        n = len(self._snapshots)
        always: set[str] | None = None
        values: dict[str, set[bytes]] = {}
        for state in range(1, n, max(1, n // COMPARED)):
            child, parent = (
                codec.encodings(zlib.decompress(self._snapshots[which]))
                for which in (state, self._parents[state])
            )
            names = child.keys() | parent.keys()
            changed = {name for name in names if child.get(name) != parent.get(name)}
            always = changed if always is None else always & changed
            for name in names:
                values.setdefault(name, set()).add(child.get(name, b""))
        message = (
            f"more than max_states={self._limit:,} states: {n:,} were found, and "
            f"{n - len(self._successors) // self._n_actions:,} of them are not explored yet"
        )
        if always:
            message += (
                f"; {_listed(sorted(always))} changed in every step that found a new state, as "
                "a counter does: if it is not part of the state, name it in freeze, or else raise "
                "max_states"
            )
        else:
            most = sorted(values, key=lambda name: (-len(values[name]), name))[:3]
            counts = ", ".join(f"{name!r} ({len(values[name])})" for name in most)
            message += "; raise max_states, or name in freeze what is not part of the state" + (
                f" (attributes with most values in a sample: {counts})" if most else ""
            )
        raise StateLimitError(message)


def _in_attributes(names: Sequence[str]) -> str:
    if not names:
        return "in which of its parts are one and the same object"
    return f"in attribute{'s' if len(names) > 1 else ''} {_listed(names)}"
