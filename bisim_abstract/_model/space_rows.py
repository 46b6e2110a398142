"""Observations of any common space as rows: numbers of states, or vectors.

A space is a tree whose leaves are `Discrete`, `MultiDiscrete`, `MultiBinary` or `Box`. If no leaf
is a `Box` of reals, and there are not too many values, an observation is a list of digits, and its
state is the number that they spell, the last digit counting fastest (as in
`numpy.ravel_multi_index`). Otherwise it is a vector: numbers of a `Box` as they are, and each other
digit as zeros with a single one, as `gymnasium.spaces.flatten` has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from bisim_abstract._base.types import IntArray
from bisim_abstract.errors import InvalidArgumentError

MOST_STATES = 1_000_000  # numbers that several digits may spell; beyond, they become vectors

Space: TypeAlias = gym.Space[Any]
Path: TypeAlias = tuple[str | int, ...]  # the way to a leaf, through keys and positions


@dataclass(frozen=True, eq=False)
class Leaf:
    """A part of an observation.

    Attributes:
        path: Where it is.
        sizes: (digits) how many values each digit can take; None for reals.
        starts: (digits) the smallest value of each.
        width: How many numbers it holds.
        is_box: Whether it is a `Box`, whose numbers are digits only if all others are too.
    """

    path: Path
    sizes: IntArray | None
    starts: IntArray
    width: int
    is_box: bool = False

    def as_reals(self) -> Leaf:
        """The same part with its numbers as they are."""
        return replace(self, sizes=None, starts=np.empty(0, np.int64))

    def read(self, batch: Any, n: int) -> npt.NDArray[Any]:
        """(n, width) its numbers in a batch of observations; digits count from 0.

        Raises:
            InvalidArgumentError: If a value is not one of the space.
        """
        for key in self.path:
            batch = batch[key]
        found = np.asarray(batch).reshape(n, self.width)
        if self.sizes is None:
            return found
        digits = found.astype(np.int64) - self.starts
        wrong = (digits < 0) | (digits >= self.sizes)
        if wrong.any():
            raise InvalidArgumentError(
                f"env must give observations of its space, got {found[wrong][0]} at "
                f"{_named(self.path)}"
            )
        return digits


class SpaceRows:
    """Turns batches of observations into rows of states.

    Args:
        space: Of one observation.

    Attributes:
        n_states: Number of states, or None if rows are vectors.
        width: Numbers in a row.

    Raises:
        InvalidArgumentError: If the space has parts of other kinds.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._leaves = list(_leaves(space, ()))
        sizes = [leaf.sizes for leaf in self._leaves]
        self.n_states: int | None = None
        if all(size is not None for size in sizes):
            count = math.prod(x for size in sizes if size is not None for x in size.tolist())
            # A space that counts its states by itself is taken by its word.
            if count <= MOST_STATES or isinstance(space, spaces.Discrete):
                self.n_states = count
        self.width = 1
        if self.n_states is None:
            self._leaves = [leaf.as_reals() if leaf.is_box else leaf for leaf in self._leaves]
            self.width = sum(
                leaf.width if leaf.sizes is None else int(leaf.sizes.sum()) for leaf in self._leaves
            )

    @property
    def row_bytes(self) -> int:
        """What a row takes."""
        return 8 if self.n_states is not None else 4 * self.width

    def rows(self, batch: Any, n: int) -> npt.NDArray[Any]:
        """(n) numbers of states or (n, width) vectors of a batch of n observations."""
        if self.n_states is not None:
            index = np.zeros(n, np.int64)
            for leaf in self._leaves:
                assert leaf.sizes is not None
                for digit, size in zip(leaf.read(batch, n).T, leaf.sizes.tolist(), strict=True):
                    index = index * size + digit
            return index
        out = np.zeros((n, self.width), np.float32)
        at = 0
        for leaf in self._leaves:
            found = leaf.read(batch, n)
            if leaf.sizes is None:
                with np.errstate(over="ignore"):  # what is too large is refused by `Transitions`
                    out[:, at : at + leaf.width] = found
                at += leaf.width
                continue
            for digit, size in zip(found.T, leaf.sizes.tolist(), strict=True):
                out[np.arange(n), at + digit] = 1.0
                at += size
        return out

    def observation(self, state: int) -> Any:
        """The observation that has this number: `rows` the other way round."""
        assert self.n_states is not None
        if not 0 <= state < self.n_states:
            raise InvalidArgumentError(f"state must lie in [0, {self.n_states}), got {state}")
        digits: list[int] = []
        for leaf in reversed(self._leaves):
            assert leaf.sizes is not None
            for size, start in zip(
                leaf.sizes[::-1].tolist(), leaf.starts[::-1].tolist(), strict=True
            ):
                state, digit = divmod(state, size)
                digits.append(digit + start)
        return _built(self._space, digits)


def _built(space: Space, digits: list[int]) -> Any:
    """An element of a space from its digits, the last of which comes first; these are used up."""
    if isinstance(space, spaces.Tuple):
        return tuple(_built(part, digits) for part in space.spaces)
    if isinstance(space, spaces.Dict):
        return {key: _built(part, digits) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return np.int64(digits.pop())
    assert isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box)
    found = [digits.pop() for _ in range(math.prod(space.shape))]
    return np.array(found, space.dtype).reshape(space.shape)


def _leaves(space: Space, path: Path) -> Iterator[Leaf]:
    """The leaves of a space in order."""
    if isinstance(space, spaces.Tuple):
        for k, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, k))
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Box):
        width, sizes = math.prod(space.shape), _box_sizes(space)
        starts = np.empty(0, np.int64) if sizes is None else space.low.ravel().astype(np.int64)
        yield Leaf(path, sizes, starts, width, is_box=True)
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, np.array([int(space.n)]), np.array([int(space.start)]), 1)
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec, np.int64).ravel()
        yield Leaf(path, sizes, np.asarray(space.start, np.int64).ravel(), sizes.size)
    elif isinstance(space, spaces.MultiBinary):
        width = math.prod(space.shape)
        yield Leaf(path, np.full(width, 2), np.zeros(width, np.int64), width)
    else:
        remedy = "wrap it in gymnasium.wrappers.FilterObservation to leave that part out, or in "
        raise InvalidArgumentError(
            "env must have observations made of Discrete, MultiDiscrete, MultiBinary and Box "
            f"parts, got {type(space).__name__} at {_named(path)}; "
            f"{remedy if path else 'wrap it in '}gymnasium.wrappers.TransformObservation"
        )


def _box_sizes(space: spaces.Box) -> IntArray | None:
    """How many values each number of a `Box` of few integers can take; None of any other."""
    if not np.issubdtype(space.dtype, np.integer):
        return None
    ends = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
    sizes = [high - low + 1 for low, high in ends]
    return np.array(sizes, np.int64) if math.prod(sizes) <= MOST_STATES else None


def _named(path: Path) -> str:
    """Where a leaf is, for people."""
    return "observation" + "".join(f"[{key!r}]" for key in path)
