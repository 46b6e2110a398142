"""Taking, restoring and identifying the states of an environment.

The state is taken to be the attributes of `env.unwrapped`. A snapshot is one pickle of all of
them together, because objects are shared between attributes (MiniGrid's `door` is also a cell
of `grid`); restoring puts the unpickled attributes back into the same environment. Pickles are
made and read in memory only.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np

from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers._encoding import (
    GENERATORS,
    HANDLERS,
    Encoder,
    Handler,
    is_aside,
    is_told,
)

AnyEnv: TypeAlias = gym.Env[Any, Any]

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


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


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
            keep = self._by_type[kind] = is_aside(kind) or issubclass(
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


def class_digest(home: AnyEnv) -> bytes | None:
    """Of the values that the classes of an environment have; None if one cannot be told."""
    encoder = Encoder(home, dict(HANDLERS))
    for kind in type(home).__mro__:
        if kind in (gym.Env, object):
            break
        for name, value in sorted(vars(kind).items()):
            # Functions and the like are code; it can be replaced, but hardly by accident.
            is_code = callable(value) or hasattr(value, "__get__")
            if is_code or name in NOT_STATE or name.startswith("__"):
                continue
            try:
                encoder.text(name)
                encoder.add(value)
            except (ExtractionError, TypeError):
                return None
    return hashlib.sha256(encoder.result()).digest()


class Codec:
    """Takes, restores and identifies the states of one environment."""

    def __init__(self, home: AnyEnv, freeze: frozenset[str]) -> None:
        self.home = home
        self.freeze = freeze
        self.held: dict[str, Callable[[], Any]] = {}  # makes the value of a frozen attribute
        self._raw: dict[str, bytes] = {}  # what these are, as far as it can be told
        self._aside = NOT_STATE | freeze
        self._kept = _Kept(home)
        self._handlers: dict[type, Handler] = dict(HANDLERS)
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
                f"{listed(bad) or 'all attributes together'} ({type(error).__name__}: {error}); "
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
        names = self.freeze & set(attributes)
        self.held = {name: self._maker(attributes[name]) for name in names}
        self._raw = {
            name: told
            for name in names
            if self._is_picklable(attributes[name])
            and (told := self._told(attributes[name])) is not None
        }

    def refreeze(self) -> None:
        """Set the frozen attributes back."""
        attributes = vars(self.home)
        for name in self.freeze:
            if name in self.held:
                attributes[name] = self.held[name]()
            else:
                attributes.pop(name, None)

    def changed(self) -> list[str]:
        """Frozen attributes that are not what they are held at."""
        attributes = vars(self.home)
        return [
            name
            for name in self.freeze
            if (name in attributes) != (name in self.held)
            or (name in self._raw and self._told(attributes[name]) != self._raw[name])
        ]

    def frozen_digest(self, names: Iterable[str]) -> bytes:
        """The canonical digest of some frozen attributes, as they are now."""
        attributes = vars(self.home)
        held = [(name, self._told(attributes[name])) for name in names if name in attributes]
        return hashlib.sha256(repr(sorted(held)).encode()).digest()

    def loosened(self, names: Iterable[str]) -> Codec:
        """The same, but that some frozen attributes are state; those that can be pickled."""
        found = Codec(self.home, self.freeze - {name for name in names if name in self._raw})
        found.held = {name: make for name, make in self.held.items() if name in found.freeze}
        return found

    def digest(self, snapshot: bytes) -> bytes:
        """The canonical digest of the present state, of which `snapshot` was taken."""
        # Pickles differ where states do not, but equal pickles are equal states, and hashing
        # one takes a hundredth of the time that walking through the objects does.
        key = hashlib.sha256(snapshot).digest()
        found = self._digests.get(key)
        if found is None:
            encoder = Encoder(self.home, self._handlers)
            for name, value in sorted(self._attributes().items()):
                if is_told(value):
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
            if is_told(value):
                found[name] = self._encoded(value)
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

    def _told(self, value: object) -> bytes | None:
        """The canonical encoding of a frozen attribute; None where there is none."""
        if is_aside(type(value)):
            return None
        try:
            return self._encoded(value)
        except Exception:  # of its own code, which may be why it is frozen
            return None

    def _encoded(self, value: object) -> bytes:
        encoder = Encoder(self.home, self._handlers)
        encoder.add(value)
        return encoder.result()

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


# -- random generators ---------------------------------------------------------------------
# A stream is a generator, a bit generator, or the module `random` with its global functions.


def mark_of(stream: Any) -> object:
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


def rewind(stream: Any, mark: Any) -> None:
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


def reseed(stream: Any, seed: int) -> None:
    if isinstance(stream, np.random.Generator):
        stream = stream.bit_generator
    if isinstance(stream, np.random.BitGenerator):
        stream.state = type(stream)(seed).state
    else:
        stream.seed(seed)


@contextmanager
def borrowed(codec: Codec) -> Iterator[None]:
    """Let the search use the environment; put everything back however it ends."""
    home = codec.home
    attributes = vars(home)
    original = dict(attributes)
    state = codec.snapshot()  # registers the generators it meets, and may raise
    streams = [random, *codec.streams()]
    marks = [mark_of(stream) for stream in streams]
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
        yield
    finally:
        attributes.clear()
        attributes.update(original)
        for stream, mark in zip(streams, marks, strict=True):
            rewind(stream, mark)
        np.random.mtrand.set_bit_generator(global_bits)
        np.random.mtrand.set_state(global_state)  # with the second half of a pair of normals
