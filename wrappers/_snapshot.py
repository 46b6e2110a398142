"""Taking, restoring and identifying the states of an environment.

The state is taken to be the attributes of `env.unwrapped`. A snapshot is one pickle of all of
them together, because objects are shared between attributes (MiniGrid's `door` is also a cell
of `grid`); restoring puts the unpickled attributes back into the same environment. Pickles are
made and read in memory only.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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

SMALL = 512  # bytes of snapshots that are not compressed
FEW = 16  # entries of sequences that plain snapshots may hold
SCALARS = frozenset({bool, bytes, float, int, str, type(None)})
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


def packed(snapshot: bytes) -> bytes:
    """A snapshot as it is stored."""
    return snapshot if len(snapshot) < SMALL else zlib.compress(snapshot, 1)


def unpacked(stored: bytes) -> bytes:
    """The snapshot of what `packed` made."""
    # Compressed data begin with an x; pickles and plain snapshots do not.
    return zlib.decompress(stored) if stored[:1] == b"x" else stored


def is_plain(value: object, met: set[int]) -> bool:
    """Whether a value is made of plain numbers and texts, no part of which is shared.

    Of exactly these types: `marshal` writes a NumPy number as bytes.

    Args:
        value: The value.
        met: Addresses of lists that were met.
    """
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind is list:
        if id(value) in met:
            return False
        met.add(id(value))
    elif kind is not tuple:
        return False
    items: Any = value
    return len(items) <= FEW and all(is_plain(item, met) for item in items)


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _fetch(index: int) -> NoReturn:
    """Stands in a pickle for an object that is kept as it is; `_Unpickler` replaces it."""
    raise pickle.UnpicklingError(f"object {index} is known to the environment's own codec only")


class _Kept:
    """Objects that snapshots refer to instead of copying them."""

    def __init__(self, home: object) -> None:
        self.home = home
        self._objects: list[object] = []
        self._index: dict[int, int] = {}  # by address; the list keeps the objects alive
        self.by_type: dict[type, bool] = {}
        self.streams: list[object] = []

    def index(self, thing: object) -> int | None:
        """The number of an object that is to be kept, None for one that is to be copied."""
        kind = type(thing)
        keep = self.by_type.get(kind)
        if keep is None:
            keep = self.by_type[kind] = is_aside(kind) or issubclass(
                kind, FunctionType | ModuleType | type
            )
        if (not keep and thing is not self.home) or thing is _fetch:
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
        self._kept, self._is_kept, self._home = kept, kept.by_type, kept.home

    def reducer_override(self, thing: Any) -> Any:
        if self._is_kept.get(type(thing)) is False and thing is not self._home:
            return NotImplemented  # as of almost all objects: this is called for every one
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


def _nothing() -> dict[str, Any]:
    """Stands for an observation that nobody reads."""
    return {}


def _observes_as_minigrid(home: AnyEnv) -> bool:
    """Whether observations are MiniGrid's own, which change nothing, and no step reads them."""
    module = sys.modules.get("minigrid.minigrid_env")
    kind: Any = type(home)
    return (
        module is not None
        and isinstance(home, module.MiniGridEnv)
        and kind.gen_obs is module.MiniGridEnv.gen_obs
        and (kind.__module__.startswith("minigrid.") or kind.step is module.MiniGridEnv.step)
        and "gen_obs" not in vars(home)
    )


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
        self.pay: Callable[[Any], Any] | None = None  # what wrappers make of rewards
        self.held: dict[str, Callable[[], Any]] = {}  # makes the value of a frozen attribute
        self._raw: dict[str, bytes] = {}  # what these are, as far as it can be told
        self._aside = NOT_STATE | freeze
        self._kept = _Kept(home)
        self._handlers: dict[type, Handler] = dict(HANDLERS)
        self._digests: dict[bytes, bytes] = {}
        self._is_minigrid = _observes_as_minigrid(home)

    def snapshot(self) -> bytes:
        """All attributes that are state, in one pickle, or where all are plain in a marshal."""
        attributes = self._attributes()
        met: set[int] = set()
        for value in attributes.values():
            if type(value) not in SCALARS and not is_plain(value, met):
                break
        else:
            return b"M" + marshal.dumps(attributes, 2)  # no references: by value alone
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
        for name in attributes.keys() - loaded.keys() - self._aside:
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
        key = snapshot if len(snapshot) < SMALL else hashlib.sha256(snapshot).digest()
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

    def stand_in(self, generator: np.random.Generator) -> dict[str, Any]:
        """Put a generator in the place of the environment's NumPy generators; return these."""
        attributes = vars(self.home)
        own: dict[str, Any] = {
            name: value for name, value in attributes.items() if type(value) is np.random.Generator
        }
        if attributes.get("_np_random") is None:  # else made at the first draw
            own["_np_random"] = None
        if self._is_minigrid:
            attributes["gen_obs"] = _nothing  # costs more than the rest of a step
        for name in own:
            attributes[name] = generator
        return own

    def take_back(self, own: Mapping[str, Any], generator: np.random.Generator) -> None:
        """Undo `stand_in`, also where a step has kept the generator elsewhere."""
        attributes = vars(self.home)
        if self._is_minigrid:
            attributes.pop("gen_obs", None)
        for name, value in list(attributes.items()):
            if value is generator:
                attributes[name] = own.get(name, own.get("_np_random"))

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
        if raw[:1] == b"M":
            return marshal.loads(raw[1:])
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
