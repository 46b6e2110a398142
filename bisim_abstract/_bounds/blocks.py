"""Blocks of states as one model: reward intervals, centre rows, and how far members are off.

Take any partition of the states. For a block C and an action, every member pays a reward in
[low, high], and its row, summed by block, is within `radius` of the centre row in total
variation. That is all the arms need to bound the distance of any two members of two blocks from
below: a coupling of the members becomes one of the centres by re-routing at most both radii of
mass. From above less will do. Members may differ in where a small share of their mass goes, and
agree on the rest: each has a share 1 - `spare` of the centre, but for `short` of the mass. Then a
coupling of the centres, scaled by 1 - spare, couples the members where neither is short, and only
spare + both shorts of the mass is left to be coupled at any cost, where both radii would be twice
as much.

Where actions are renamed (see `_model/renaming.py`), an action of a block stands for all that is
called so by its members, of which one may have several: intervals, centres and radii speak of the
rows of all of them, and everything above is said of any two such rows.

A model of single states is the case where intervals are points and radii are 0 (or what the
confidence radii of an estimated model say): pairs of states are pairs of blocks of size one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.parallel import map_chunks, read_only
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._bounds.pair_table import PairTable
from bisim_abstract._model.checks import check_available
from bisim_abstract._model.estimation import reward_intervals
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.renaming import check_renaming, used_names
from bisim_abstract._model.rows import Rows, rows_taken
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["BlockLevel", "BlockModel", "build_blocks"]

BLOCK_CHUNK = 8  # blocks per unit of work, at least
CHUNKS = 64  # units of work, at most: each has scratch space for all blocks
RADII = ("radius", "spare", "short")


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockModel(Rows):
    """A partition of the states and what is known of its blocks.

    Attributes:
        labels: (n_states) block of each state, 0 to n_blocks - 1, each of them used.
        low: (n_blocks, n_actions) no member's reward is lower.
        high: (n_blocks, n_actions) no member's reward is higher.
        indptr: (n_blocks * n_actions + 1) boundaries of the centre rows.
        indices: (nnz) blocks, rising within a row. Unless the model is an estimate, they are
            all the blocks that members can reach.
        probs: (nnz) centre rows; as everywhere, a row is its entries divided by their sum.
        radius: (n_blocks, n_actions) no member's row, summed by block, is farther from the
            centre in total variation.
        spare: (n_blocks, n_actions) a share of the centre that members need not have.
        short: (n_blocks, n_actions) no member lacks more of the rest of the centre, summed over
            blocks: Σ ((1 - spare)·centre - row)⁺. Where neither is given, the spare is 0, and
            the radius serves.
        is_estimate: Whether confidence radii are part of intervals and radii. True rows may
            then also reach blocks that no sample did.
        available: (n_blocks, n_actions) which actions each block has; all by default. Others do
            what its first available one does, as in models of states.
        renaming: (n_states, n_actions) which action of its block each action of a member is, -1
            where the member lacks it, so that intervals, centres and radii of a block's action
            speak of all that are called so; None where actions are called what they are.
    """

    labels: IntArray
    low: FloatArray
    high: FloatArray
    radius: FloatArray
    spare: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    short: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    is_estimate: bool = False
    available: BoolArray = field(default=None)  # type: ignore[arg-type]  # filled in below
    renaming: IntArray | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "labels", as_frozen("labels", self.labels, np.int64))
        if np.size(self.spare) == 0 and np.size(self.short) == 0:
            set_field(self, "spare", np.zeros(np.shape(self.radius)))
            set_field(self, "short", self.radius)
        for name in ("low", "high", *RADII):
            set_field(self, name, as_frozen(name, getattr(self, name), np.float64))
        shape = self.low.shape
        if self.low.ndim != 2 or self.low.size == 0 or self.high.shape != shape:
            raise InvalidArgumentError(
                "low and high must have shape (n_blocks, n_actions), "
                f"got {shape} and {self.high.shape}"
            )
        for name in RADII:
            found = getattr(self, name)
            if found.shape != shape:
                raise InvalidArgumentError(f"{name} must have shape {shape}, got {found.shape}")
            if not ((found >= 0.0) & (found <= 1.0)).all():
                raise InvalidArgumentError(f"{name} is a share of mass: it must lie in [0, 1]")
        is_interval = np.isfinite(self.low) & np.isfinite(self.high) & (self.low <= self.high)
        if not is_interval.all():
            raise InvalidArgumentError("reward intervals must be finite with low <= high")
        self._keep_rows(shape[0], shape[1], as_frozen)
        counts = np.zeros(0, np.int64)
        is_flat = self.labels.ndim == 1 and self.labels.size > 0
        if is_flat and self.labels.min() >= 0 and self.labels.max() < shape[0]:
            counts = np.bincount(self.labels, minlength=shape[0])
        if counts.size == 0 or counts.min() == 0:
            raise InvalidArgumentError(
                f"labels must give every state one of {shape[0]} blocks, none of them empty"
            )
        set_field(self, "is_estimate", bool(self.is_estimate))
        if self.available is None:
            set_field(self, "available", np.ones(shape, np.bool_))
        set_field(self, "available", as_frozen("available", self.available, np.bool_))
        check_available(self.available, shape)
        if self.renaming is not None:
            names = as_frozen("renaming", self.renaming, np.int64)
            set_field(self, "renaming", names)
            if names.shape != (self.labels.size, shape[1]):
                raise InvalidArgumentError(
                    f"renaming must have shape {(self.labels.size, shape[1])}, got {names.shape}"
                )
            check_renaming(names, self.labels, shape[0], names >= 0)
            if (used_names(names) != self.available[self.labels]).any():
                raise InvalidArgumentError(
                    "renaming must use, in each block, the actions that are available there"
                )
        if self.low is not self.high and np.array_equal(self.low, self.high):
            set_field(self, "high", self.low)  # points: `Starts` and others look for this

    @classmethod
    def of_states(cls, mdp: TabularMDP) -> BlockModel:
        """Every state a block of its own: the model itself, confidence radii included."""
        low, high = reward_intervals(mdp)
        estimate = mdp.estimate
        radius = np.zeros(low.shape) if estimate is None else estimate.row_radius
        return cls(
            labels=np.arange(mdp.n_states),
            low=low,
            high=high,
            indptr=mdp.indptr,
            indices=mdp.indices,
            probs=mdp.probs,
            radius=radius,
            spare=np.zeros(low.shape),
            # Above, rounding is counted by itself: see `Arms.rounding`.
            short=radius if mdp.is_sampled else np.zeros(low.shape),
            is_estimate=estimate is not None,
            available=mdp.available,
        )

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return int(self.low.shape[1])

    @cached_property
    def is_point(self) -> BoolArray:
        """(n_blocks) whether a block has a single member, at distance 0 from itself."""
        return np.asarray(self.sizes == 1)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.low.shape[0])

    @cached_property
    def sizes(self) -> IntArray:
        """(n_blocks) number of members."""
        return np.bincount(self.labels, minlength=self.n_blocks)


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockLevel:
    """A block model with bounds on pairs of its blocks: part of a certificate.

    For all x in C and y in C': lower(C, C') <= d(x, y) <= upper(C, C'), x = y apart. The
    inequalities behind it involve the tables of this level alone.

    Attributes:
        model: The blocks.
        keys: (covered) sorted keys C * n_blocks + C' with C <= C'; C = C' bounds a diameter,
            and is not stored for blocks of one member.
        lower: (covered) lower bounds, 0 where C = C'.
        upper: (covered) upper bounds.

    Block pairs without an entry read their start values, which depend on reward intervals.
    """

    model: BlockModel
    keys: IntArray
    lower: FloatArray
    upper: FloatArray
    _covered: PairTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        covered = PairTable(self.model.n_blocks, self.keys, self.lower, self.upper)
        covered.check_diagonal(~self.model.is_point)
        for name in ("keys", "lower", "upper"):
            object.__setattr__(self, name, getattr(covered, name))
        object.__setattr__(self, "_covered", covered)
        first, second = covered.pairs()
        if (self.lower[first == second] != 0.0).any():
            raise InvalidArgumentError("lower must be 0 within a block")

    def entries(self, first: IntArray, second: IntArray) -> tuple[FloatArray, FloatArray]:
        """Stored bounds of pairs of blocks: 0 and infinity where there are none."""
        lower, upper = np.zeros(first.shape), np.full(first.shape, np.inf)
        at, known = self._covered.find(first, second)
        lower[known], upper[known] = self.lower[at[known]], self.upper[at[known]]
        return lower, upper

    def widest(self) -> float:
        """Bound on the gap between the bounds of any pair of states, rounded up.

        Infinite unless all pairs of blocks, and all blocks of several members, have entries.
        """
        count = self.model.n_blocks
        needed = count * (count - 1) // 2 + int((~self.model.is_point).sum())
        if self.keys.size < needed:  # keys are of such pairs alone, each at most once
            return math.inf
        # One subtraction, rounded to the nearest: the next float is above it.
        return math.nextafter(float((self.upper - self.lower).max(initial=0.0)), math.inf)


def build_blocks(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    *,
    renaming: npt.ArrayLike | None = None,
    resources: Resources = HERE,
) -> BlockModel:
    """The block model of a partition, in two passes over the transitions.

    Args:
        mdp: The model. If it is an estimate, its confidence radii enter intervals and radii.
        labels: (n_states) block of each state; whole numbers from 0 on. Where actions are called
            what they are, the members of a block must have the same ones.
        renaming: (n_states, n_actions) which action of its block each action of a state is, -1
            where the state lacks it; by default, actions are called what they are.
        resources: Threads; all cores by default. The result does not depend on them.
    """
    check_resources(resources)
    from bisim_abstract._kernels.refine import centre_kernel, reach_kernel

    check_mdp(mdp)
    block = as_labels(labels, mdp.n_states)
    n_blocks, n_actions = int(block.max()) + 1, mdp.n_actions
    available, names = _block_actions(mdp, block, n_blocks, renaming)
    rows, starts = _rows_of_actions(mdp, block, available, names)
    counts = np.empty(n_blocks * n_actions, np.int64)

    def count(begin: int, end: int) -> None:
        reach_kernel(begin, end, rows, starts, n_blocks, mdp.indptr, mdp.indices, block, counts)

    chunk = max(BLOCK_CHUNK, -(-n_blocks // CHUNKS)) * n_actions
    map_chunks(count, counts.size, threads=resources.n_threads, chunk=chunk)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices, probs = np.empty(indptr[-1], np.int64), np.empty(indptr[-1])
    radius, spare, short = (np.empty(counts.size) for _ in RADII)
    extra = read_only(
        np.empty(0) if mdp.estimate is None else mdp.estimate.radius_of(block).ravel()
    )
    # Entries of the members' rows under each action.
    rooms = np.add.reduceat(np.diff(mdp.indptr)[rows], starts[:-1])

    def fill(begin: int, end: int) -> None:
        centre_kernel(
            begin,
            end,
            rows,
            starts,
            n_blocks,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            extra,
            block,
            mdp.max_support,
            int(rooms[begin:end].max()),
            indptr,
            indices,
            probs,
            radius,
            spare,
            short,
        )

    map_chunks(fill, counts.size, threads=resources.n_threads, chunk=chunk)
    # What is in reach and not worth an entry of the centre is 0 there, and a mean of the least
    # numbers there are may round to 0. Only rows that were rounded can hold one, and their radii
    # have an absolute slack of several 2**-53, far above 5e-324.
    np.maximum(probs, np.nextafter(0.0, 1.0), out=probs)
    low, high = (x.ravel()[rows] for x in reward_intervals(mdp))
    shape = n_blocks, n_actions
    return BlockModel(
        labels=block,
        low=np.minimum.reduceat(low, starts[:-1]).reshape(shape),
        high=np.maximum.reduceat(high, starts[:-1]).reshape(shape),
        indptr=indptr,
        indices=indices,
        probs=probs,
        radius=radius.reshape(shape),
        spare=spare.reshape(shape),
        short=short.reshape(shape),
        is_estimate=mdp.estimate is not None,
        available=available,
        renaming=names,
    )


def _block_actions(
    mdp: TabularMDP, block: IntArray, n_blocks: int, renaming: npt.ArrayLike | None
) -> tuple[BoolArray, IntArray | None]:
    """Which actions blocks have, and the renaming, checked."""
    members = np.empty(n_blocks, np.int64)
    members[block] = np.arange(mdp.n_states)
    if renaming is not None:
        names = check_renaming(renaming, block, n_blocks, mdp.available)
        return used_names(names[members]), names
    available = mdp.available[members]
    mixed = (mdp.available != available[block]).any(axis=1)
    if mixed.any():
        x = int(np.argmax(mixed))
        raise InvalidArgumentError(
            f"labels must not put states with different actions into one block, as {x} and "
            f"{members[block[x]]}, unless actions are renamed"
        )
    return available, None


def _rows_of_actions(
    mdp: TabularMDP, block: IntArray, available: BoolArray, names: IntArray | None
) -> tuple[IntArray, IntArray]:
    """The model's rows that each action of a block stands for, one block and action after another.

    Returns:
        The rows, and (n_blocks * n_actions + 1) where those of each action begin. Actions that
        a block lacks have the rows of its first one, as in models of states.
    """
    n_actions = mdp.n_actions
    if names is None:
        order = np.argsort(block, kind="stable")
        sizes = np.bincount(block)
        begins = np.repeat(np.cumsum(sizes) - sizes, sizes)  # of each member's block
        place = np.arange(block.size) - begins
        rows = np.empty(block.size * n_actions, np.int64)
        for a in range(n_actions):
            rows[begins * n_actions + a * sizes[block[order]] + place] = order * n_actions + a
        counts = np.repeat(sizes, n_actions)
        return rows, np.concatenate([[0], np.cumsum(counts)])
    states, actions = np.nonzero(names >= 0)
    slots = block[states] * n_actions + names[states, actions]
    order = np.argsort(slots, kind="stable")
    own = (states * n_actions + actions)[order]
    counts = np.bincount(slots, minlength=available.size)
    first = available.argmax(axis=1) + np.arange(available.shape[0]) * n_actions
    source = np.where(available, np.arange(available.size).reshape(available.shape), first[:, None])
    source = source.ravel()
    starts, take = rows_taken(np.concatenate([[0], np.cumsum(counts)]), source)
    return own[take], starts


def exact_blocks(model: BlockModel) -> IntArray:
    """Blocks of several members whose diameter is exactly 0.

    All members pay the same, share one row, and that row leads into such blocks and single
    states only: the largest set with these properties. Then 0 satisfies the inequality of the
    upper arm there, a coupling of the row with itself costing nothing.
    """
    is_zero = (model.low == model.high).all(axis=1) & (model.radius == 0.0).all(axis=1)
    is_zero |= model.is_point
    rows = np.repeat(np.arange(model.indptr.size - 1), np.diff(model.indptr))
    owner = rows // model.n_actions
    while True:
        leads_out = np.zeros(model.n_blocks, bool)
        leads_out[owner[~is_zero[model.indices]]] = True
        smaller = is_zero & (~leads_out | model.is_point)
        if (smaller == is_zero).all():
            return np.flatnonzero(is_zero & ~model.is_point)
        is_zero = smaller
