"""Values as bytes that are equal exactly for equal states of an environment.

The encoding tells values and which parts are shared; it is free of addresses, of hash order,
and of whether a position happens to be a tuple or an array.
"""

from __future__ import annotations

import copyreg
import enum
import itertools
import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from bisim_abstract.errors import ExtractionError

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


def is_aside(kind: type) -> bool:
    """Whether objects of this type are neither state nor to be copied."""
    return issubclass(kind, SET_ASIDE) or is_drawing(kind)


def is_drawing(kind: type) -> bool:
    """Whether objects of this type serve drawing alone."""
    return f"{kind.__module__}.".startswith(DRAWING)


Handler: TypeAlias = "Callable[[Encoder, Any], None]"


def is_told(value: object) -> bool:
    """Whether an attribute enters the key.

    None counts as absent: what rendering and lazy set-up create is None or missing before.
    """
    return value is not None and not is_aside(type(value))


@lru_cache(maxsize=4096)  # names of attributes and classes, over and over
def _encoded(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(raw), raw)


@lru_cache(maxsize=4096)
def _object_of(module: str | None, name: str) -> bytes:
    """The mark of an object, and its class as `Encoder.named` writes it."""
    return b"<g" + _encoded(f"{module or ''}:{name}")


class Encoder:
    """Writes values as bytes that are equal exactly for equal states.

    Every item says its type and length, so no two values run together. Mutable objects are
    numbered by where they are first met, and later meetings refer back to that number: whether
    `carrying` is the very object of the mission can decide over the reward. Numbers count
    sequences too, of whatever type, so that a tuple in place of an array shifts none of them.
    """

    def __init__(self, home: object, handlers: dict[type, Handler]) -> None:
        self._home = home
        self._handlers = handlers
        self._parts: list[bytes] = []
        self._met: dict[int, int] = {}
        self._count = 0
        self._alive: list[object] = []  # temporary objects, whose address must not be reused

    @property
    def count(self) -> int:
        """How many objects were numbered."""
        return self._count

    def result(self) -> bytes:
        return b"".join(self._parts)

    def taken(self) -> bytes:
        """What was written since this was called last."""
        found = self.result()
        self._parts.clear()
        return found

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
            encoder = Encoder(self._home, self._handlers)
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

    def instance(self, value: Any) -> None:
        """An object that is its class and its attributes."""
        if value is self._home:
            self._parts.append(b"H")
        elif not self._is_met(value):
            kind = type(value)
            self._parts.append(_object_of(kind.__module__, kind.__qualname__))
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


HANDLERS: Mapping[type, Handler] = {
    type(None): Encoder.constant,
    type(Ellipsis): Encoder.constant,
    type(NotImplemented): Encoder.constant,
    bool: Encoder.boolean,
    int: Encoder.integer,
    float: Encoder.real,
    str: Encoder.text,
    bytes: Encoder.raw,
    bytearray: Encoder.raw,
    tuple: Encoder.fixed_sequence,
    list: Encoder.sequence,
    np.ndarray: Encoder.array,
    dict: Encoder.mapping,
    set: Encoder.collection,
    frozenset: Encoder.collection,
    object: Encoder.bare,
    BuiltinFunctionType: Encoder.builtin,
}


def _handler_of(kind: type) -> Handler:
    if is_aside(kind):
        return Encoder.aside
    if issubclass(kind, type | FunctionType | ModuleType):
        return Encoder.named
    if issubclass(kind, np.generic):
        return Encoder.scalar
    if issubclass(kind, enum.Enum):
        return Encoder.integer if issubclass(kind, int) else Encoder.member
    return Encoder.instance if is_plain_kind(kind) else Encoder.reduced


def is_plain_kind(kind: type) -> bool:
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
