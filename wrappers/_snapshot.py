"""Taking, restoring and identifying the states of an environment.

The state is taken to be the attributes of `env.unwrapped`. Those that hold objects are pickled
together, because objects are shared between attributes (MiniGrid's `door` is also a cell of
`grid`); restoring puts the unpickled attributes back into the same environment. A snapshot holds
the others, which are a few numbers, and refers to that pickle; the unpickled objects serve again
as long as a scan shows that nobody changed them (`_parts`). Where that does not help, a snapshot is
one pickle of all attributes. Pickles are made and read in memory only.
"""

from __future__ import annotations

import hashlib
import io
import logging
import marshal
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
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
from bisim_abstract.wrappers._parts import SCALARS, Part, is_light

AnyEnv: TypeAlias = gym.Env[Any, Any]

logger = logging.getLogger(__name__)

SMALL = 512  # bytes of snapshots that are not compressed
MOST_PARTS = 2**16  # pickles that snapshots refer to
PART_SLOTS = 2**20  # references and bytes of unpickled parts that are waiting for their next use
MOST_TEMPLATES = 256
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


def _joined(number: int, small: dict[str, Any], others: dict[str, Any]) -> bytes:
    """A snapshot of values without shared objects, and the number of a part or -1."""
    if number < 0 and not others:
        return b"M" + marshal.dumps(small, 2)  # no references: by value alone
    codes = {}
    for name, value in others.items():
        if _is_plain(value):
            small[name] = value
        else:
            codes[name] = _coded(value)
    if number < 0 and not codes:
        return b"M" + marshal.dumps(small, 2)
    return b"W" + marshal.dumps((number, small, codes), 2)


def _is_plain(value: object) -> bool:
    """Whether `marshal` keeps the types of a light value: it writes NumPy's numbers as bytes."""
    kind = type(value)
    if kind is not tuple and kind is not list:
        return kind in SCALARS
    items: Any = value
    return all(map(_is_plain, items))


def _coded(value: Any) -> object:
    """A light value that is not plain, so that it can be marshalled."""
    kind = type(value)
    if kind is np.int64:
        return int(value)
    if kind is tuple and all(type(item) is np.int64 for item in value):
        return tuple(map(int, value))  # as MiniGrid's places; quicker than a pickle
    return pickle.dumps(value, 5)


def _decoded(code: Any) -> Any:
    """The value of what `_coded` made."""
    if type(code) is int:
        return np.int64(code)
    return tuple(map(np.int64, code)) if type(code) is tuple else pickle.loads(code)


def _addresses(value: object) -> set[int]:
    """Of the lists and arrays in a light value."""
    found = set[int]()
    is_light(value, found)
    return found


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
        self._n_bytes = 0
        self._pickles: list[bytes] = []  # of parts, compressed
        self._numbers: dict[bytes, int] = {}  # of these, by their hash
        self._names: list[frozenset[str]] = []  # the attributes of these
        self._parts: dict[int, Part] = {}  # unpickled
        self._slots = 0  # of these
        self._part = self._no_part = Part({}, self._is_kept)  # what the environment may hold now
        self._last = -1  # the part that was pickled last
        self._taken = 0  # snapshots that pickled a part, or could use the one that was there
        self._is_divided = True  # whether parts are pickled by themselves
        self._templates: dict[tuple[object, ...], list[bytes]] = {}  # encodings of parts

    @property
    def n_bytes(self) -> int:
        """Size of what snapshots refer to."""
        return self._n_bytes

    def snapshot(self) -> bytes:
        """All attributes that are state: a marshal of small values, or a pickle of everything."""
        if not self._is_divided:
            attributes = self._attributes()
            return self._dumped(attributes, attributes)
        part, aside = self._part, self._aside
        met: set[int] = set()
        small: dict[str, Any] = {}
        others: dict[str, Any] = {}
        n_held = 0
        for name, value in vars(self.home).items():
            if name in aside:
                continue
            if type(value) in SCALARS:
                small[name] = value
            elif name in part.attributes and part.attributes[name] is value:
                n_held += 1
            elif is_light(value, met):
                others[name] = value
            else:
                break
        else:
            is_there = n_held == len(part.attributes) and met.isdisjoint(part.ids)
            if is_there and (n_held == 0 or part.is_unchanged()):
                self._taken += 1
                return _joined(part.number if n_held else -1, small, others)
        return self._divide(self._attributes())

    def restore(self, snapshot: bytes, *, is_scanned: bool = False) -> None:
        """Put the environment into the state of a snapshot.

        Args:
            snapshot: The snapshot.
            is_scanned: Whether none of the environment's code has run since the last snapshot.
        """
        attributes = vars(self.home)
        if snapshot[:1] == b"W":
            number, loaded, others = marshal.loads(snapshot[1:])
            for name, code in others.items():
                loaded[name] = _decoded(code)
            if number >= 0:
                loaded.update(self._put_part(number, is_scanned))
        else:
            loaded = self._load(snapshot)
        for name in attributes.keys() - loaded.keys():
            if name not in self._aside:
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
            or (name in self._raw and self._differs(attributes[name], name))
        ]

    def _differs(self, value: object, name: str) -> bool:
        raw = self._raw[name]
        return (b"i%d;" % value if type(value) is int else self._told(value)) != raw

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
            found = hashlib.sha256(self._encoding(snapshot)).digest()
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
        for name in [name for name, value in attributes.items() if value is generator]:
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

    def _is_kept(self, value: object) -> bool:
        return self._kept.index(value) is not None

    def _divide(self, attributes: dict[str, Any]) -> bytes:
        """A snapshot in which what holds objects is pickled by itself, if that is worth it."""
        self._part, met = self._no_part, set[int]()
        light = {name: value for name, value in attributes.items() if is_light(value, met)}
        rest = {name: value for name, value in attributes.items() if name not in light}
        try:
            part = Part(rest, self._is_kept) if met else None
            while part is not None:  # lists and arrays that others hold too belong to these
                shared = [name for name in light if not _addresses(light[name]) <= met - part.ids]
                if not shared:
                    break
                rest |= {name: light.pop(name) for name in shared}
                part = Part(rest, self._is_kept)
        except TypeError:
            self._is_divided = False  # nobody knows what they share
            return self._dumped(attributes, attributes)
        number = -1
        if rest:
            raw = self._dumped(rest, attributes)
            key = hashlib.sha256(raw).digest()
            known = self._numbers.get(key)
            if known is None:
                known = self._numbers[key] = len(self._pickles)
                self._pickles.append(packed(raw))
                self._names.append(frozenset(rest))
                self._n_bytes += len(self._pickles[-1])
                if known > min(64 + self._taken // 4, MOST_PARTS):
                    self._is_divided = False  # they change so often that this is no use
            number = known
            if number == self._last:  # and so probably the next time, too
                self._follow(number, part, rest)
            self._last = number
        self._taken += 1
        small = {name: value for name, value in light.items() if type(value) in SCALARS}
        others = {name: value for name, value in light.items() if name not in small}
        return _joined(number, small, others)

    def _follow(self, number: int, part: Part | None, attributes: dict[str, Any]) -> None:
        """Scan what the environment holds now, instead of pickling it the next time."""
        try:
            self._part = Part(attributes, self._is_kept) if part is None else part
        except TypeError as error:
            logger.debug("%s: %s", type(self.home).__name__, error)
            self._part = self._no_part
        else:
            self._part.number = number

    def _put_part(self, number: int, is_scanned: bool) -> dict[str, Any]:
        """The objects of a pickled part, those of last time if nobody has changed them."""
        part = self._parts.get(number)
        is_same = is_scanned and part is self._part  # which that snapshot found unchanged
        if part is not None and (is_same or part.is_unchanged()):
            self._part = part
            return part.attributes
        if part is not None:
            del self._parts[number]
            self._slots -= part.size
        attributes: dict[str, Any] = self._load(unpacked(self._pickles[number]))
        self._follow(number, None, attributes)
        if self._part is not self._no_part:
            self._slots += self._part.size
            while self._slots > PART_SLOTS and self._parts:
                self._slots -= self._parts.pop(next(iter(self._parts))).size
            self._parts[number] = self._part
        return attributes

    def _encoding(self, snapshot: bytes) -> bytes:
        """The canonical encoding of the present state, of which `snapshot` was taken."""
        told = [pair for pair in sorted(self._attributes().items()) if is_told(pair[1])]
        encoder = Encoder(self.home, self._handlers)
        number = marshal.loads(snapshot[1:])[0] if snapshot[:1] == b"W" else -1
        if number < 0:
            for name, value in told:
                encoder.text(name)
                encoder.add(value)
            return encoder.result()
        # Small values hold no objects that others hold. So what is written about a part depends
        # on them only by how many objects they number.
        names = self._names[number]
        values: list[bytes] = []
        layout: list[object] = [number]
        for name, value in told:
            count = 0
            if name not in names:
                own = Encoder(self.home, self._handlers)
                own.add(value)
                values.append(own.result())
                count = own.count
            layout.append((name, count))
        key = tuple(layout)
        template = self._templates.get(key)
        if template is None:
            template = []
            for name, value in told:
                encoder.text(name)
                if name not in names:
                    template.append(encoder.taken())
                encoder.add(value)
                if name not in names:
                    encoder.taken()
            template.append(encoder.taken())
            if len(self._templates) >= MOST_TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        return b"".join([*chain(*zip(template, values, strict=False)), template[-1]])

    def _dumped(self, value: dict[str, Any], attributes: dict[str, Any]) -> bytes:
        """A pickle of some attributes of all."""
        try:
            return self._dump(value)
        except Exception as error:  # pickling runs the environment's own code
            bad = [name for name, value in attributes.items() if not self._is_picklable(value)]
            raise ExtractionError(
                f"the state of {type(self.home).__name__} cannot be pickled, because of "
                f"{listed(bad) or 'all attributes together'} ({type(error).__name__}: {error}); "
                "remove what cannot be pickled, give its class a __reduce__, or name the "
                "attribute in freeze if it is not part of the state"
            ) from error

    def _dump(self, value: object) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self._kept).dump(value)
        return file.getvalue()

    def _load(self, raw: bytes) -> Any:
        if raw[:1] == b"M":
            return marshal.loads(raw[1:])
        if raw[:1] == b"W":
            number, loaded, others = marshal.loads(raw[1:])
            loaded |= {name: _decoded(code) for name, code in others.items()}
            return loaded | (self._load(unpacked(self._pickles[number])) if number >= 0 else {})
        return _Unpickler(io.BytesIO(raw), self._kept).load()

    def _is_picklable(self, value: object) -> bool:
        try:
            self._dump(value)
        except Exception:  # as in `snapshot`
            return False
        return True

    def _maker(self, value: object) -> Callable[[], Any]:
        if type(value) in SCALARS or not self._is_picklable(value):
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
