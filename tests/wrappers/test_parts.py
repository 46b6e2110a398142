"""Parts of states that are followed: a scan notices every change, and digests stay the same."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract.wrappers._encoding import HANDLERS, Encoder, is_told
from bisim_abstract.wrappers._parts import Part
from bisim_abstract.wrappers._snapshot import Codec


class Thing:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Other(Thing):
    pass


class Colour(enum.Enum):
    RED = 1


class World(gym.Env[int, np.int64]):
    """Holds whatever it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def world() -> dict[str, Any]:
    box = Thing(name="box", holds=None, colour=Colour.RED)
    board = np.zeros((2, 2), np.int64)
    shelves = [[box, 1], [2, None]]
    return {"box": box, "board": board, "shelves": shelves, "places": {"a": (1, [3]), "b": 1}}


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "attribute": lambda w: setattr(w["box"], "name", "chest"),
    "equal number of another type": lambda w: w["shelves"].__getitem__(0).__setitem__(1, True),
    "new attribute": lambda w: setattr(w["box"], "more", None),
    "renamed attribute": lambda w: vars(w["box"]).update(c=vars(w["box"]).pop("colour")),
    "class": lambda w: setattr(w["box"], "__class__", Other),
    "all attributes": lambda w: setattr(w["box"], "__dict__", {"name": "box"}),
    "array in place": lambda w: w["board"].__setitem__((0, 1), 7),
    "shape": lambda w: setattr(w["board"], "shape", (4,)),
    "item": lambda w: w["shelves"][1].__setitem__(0, 3),
    "moved to the next list": lambda w: w["shelves"][1].insert(0, w["shelves"][0].pop()),
    "list in a tuple": lambda w: w["places"]["a"][1].append(4),
    "order": lambda w: w["places"].update(a=w["places"].pop("a")),
    "key": lambda w: w["places"].update(c=w["places"].pop("b")),
    "sharing": lambda w: setattr(w["box"], "holds", w["box"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_noticed(name: str) -> None:
    attributes = world()
    part = Part(attributes, lambda _: False)
    assert part.is_unchanged()
    CHANGES[name](attributes)
    assert not part.is_unchanged()


@pytest.mark.parametrize("value", [{1}, deque([1]), bytearray(b"a"), np.array([None])])
def test_what_a_scan_would_not_tell_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be followed"):
        Part({"a": [value]}, lambda _: False)


def plainly(env: World) -> bytes:
    """What the digest is of, in one go."""
    encoder = Encoder(env, dict(HANDLERS))
    for name, value in sorted(vars(env).items()):
        if is_told(value):
            encoder.text(name)
            encoder.add(value)
    return encoder.result()


LIGHT = st.one_of(
    st.integers(-3, 3),
    st.booleans(),
    st.none(),
    st.builds(np.int64, st.integers(-3, 3)),
    st.tuples(st.builds(np.int64, st.integers(0, 2)), st.builds(np.int64, st.integers(0, 2))),
    st.builds(lambda items: np.array(items, np.int64), st.lists(st.integers(0, 2), max_size=3)),
    st.lists(st.integers(0, 2), max_size=2),
)


@given(
    st.lists(st.tuples(st.sampled_from("acx"), LIGHT, st.booleans(), st.sampled_from([0, 1, 2])))
)
def test_restored_states_and_digests_are_what_they_were(
    moves: list[tuple[str, Any, bool, int]],
) -> None:
    env = World(a=0, c=1, x=2, **world())
    codec = Codec(env, frozenset())
    known = []
    for name, value, is_shared, back in moves:
        setattr(env, name, value)
        if is_shared:  # what is held within other objects must be held there after restoring too
            env.get_wrapper_attr("box").holds = value
        snapshot = codec.snapshot()
        known.append((snapshot, plainly(env)))
        assert codec._encoding(snapshot) == plainly(env)
        snapshot, encoding = known[-1 - min(back, len(known) - 1)]
        codec.restore(snapshot)
        assert plainly(env) == encoding
        assert codec._encoding(codec.snapshot()) == encoding
