"""The two arms over covered pairs, of states or of blocks: the only place that moves a bound.

The lower arm starts from a sub-solution (f <= Tf) and the upper arm from a super-solution
(f >= Tf); both then lie on their side of the metric d. A sweep replaces the entry of every
covered pair by its backup if that is tighter. T is monotone, so f <= d gives Tf <= d and both
properties last: max(f, Tf) <= T max(f, Tf), and mirrored. This holds for any set of pairs, in
any order, and whatever the transport solver answers, because the backups are rounded outward.

Uncovered pairs are never stored. They read their start value, which depends on rewards alone,
or what block levels and features say of them, if that is tighter (see `Ground`).

There is one core. Pairs of states are pairs of blocks of size one, whose reward intervals are
points and whose radii are 0; a block of several members also has a diameter, an entry (C, C).

And there is one core for both relations. With δ(a, b) = |R(s, a) - R(t, b)| + γ·W₁(P(s, a),
P(t, b)),

    plain:  (Tf)(s, t) = max over a of δ(a, a), or M where s and t have different actions;
    lax:    (Tf)(s, t) = max(max_a min_b δ(a, b), max_b min_a δ(a, b)), each over its own actions.

Both are monotone, and T(f + c) <= Tf + γc, which is all that is used above; nothing exceeds M, so
that it may stand for a distance. The plain relation is the case in which an action has one to be
compared with.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import check_gamma, check_int, check_states
from bisim_abstract._base.deadline import look
from bisim_abstract._base.parallel import (
    Array,
    Data,
    Job,
    Sweep,
    read_only,
    spans,
)
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.action_values import ActionValues
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel, exact_blocks
from bisim_abstract._bounds.features import ValueFeatures
from bisim_abstract._bounds.ground import Ground, Starts
from bisim_abstract._bounds.pair_table import PairTable
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.apart import TINY
from bisim_abstract._relations.base import Relation
from bisim_abstract._relations.table import find_bisimulation
from bisim_abstract.errors import InvalidArgumentError

CHUNK = 4096  # pairs per unit of work at most; results do not depend on it
CHUNK_SECONDS = 0.1  # that a unit of work should take: between two of them Ctrl-C is heard
PAIR_BYTES = 120  # what covering one more pair takes at its peak
# What both kernels of a lookup take, in their order.
LOOKUP = (
    *("first", "second", "indptr", "indices", "n_blocks", "available", "sets", "is_lax"),
    *("is_point", "slots", "places"),
)
# What backups know of blocks, in the order of `arm_kernel`.
BLOCKS = (
    *("indptr", "indices", "probs", "normalised_probs", "low", "high", "radius", "spare", "short"),
    *("available", "sets"),
)
ROUNDED_UP = 1.0 + 16.0 * EPS  # covers a few products and sums
ATTEMPTS = 4  # times that a table is moved outward before it is given up
LOOKUP_BYTES = 2**30  # memory for looked-up positions, beyond which they are found anew


class Arms:
    """Covered pairs of a model with a lower and an upper bound on the metric of each.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        model: Blocks of its states; by default every state is one of its own.
        relation: "plain" or "lax": which actions are compared.
        lower_start: "reward" or "zero", see `Starts`.
        upper_start: "reward" or "constant".
        lookup_bytes: Memory for looked-up positions; beyond it they are found anew at every
            sweep, in chunks.
        resources: Who sweeps, and memory for tables of pairs. Results do not depend on them.

    Attributes:
        mdp: The model.
        model: Its blocks.
        relation: Which actions are compared.
        ground: What uncovered pairs read.
        covered: The pairs with their bounds, also s = t for blocks of several members.
        backups: Pair backups made so far, of either arm.
    """

    def __init__(
        self,
        mdp: TabularMDP,
        gamma: float,
        *,
        model: BlockModel | None = None,
        relation: str | Relation = "plain",
        lower_start: str = "reward",
        upper_start: str = "reward",
        lookup_bytes: int = LOOKUP_BYTES,
        resources: Resources = HERE,
    ) -> None:
        self.mdp = mdp
        self.model = BlockModel.of_states(mdp) if model is None else model
        self.gamma = check_gamma(gamma)
        self.relation = find_bisimulation(relation)
        self.ground = Ground(
            Starts.of(
                self.model.low,
                self.model.high,
                self.gamma,
                available=self.model.available,
                relation=self.relation,
                lower=lower_start,
                upper=upper_start,
            )
        )
        self.covered = PairTable.empty(self.n)
        self.backups = 0
        self.resources = resources
        self._lookup_bytes = check_int("lookup_bytes", lookup_bytes, low=0)
        self._lookup: _Lookup | None = None

    @property
    def n(self) -> int:
        """Number of states, or of blocks."""
        return self.model.n_blocks

    @property
    def starts(self) -> Starts:
        """What uncovered pairs read at first."""
        return self.ground.starts

    @property
    def n_lines(self) -> int:
        """What a backup is the maximum of: actions, or actions of both sides with their matches."""
        return self.relation.n_lines(self.model.n_actions)

    @property
    def n_pairs(self) -> int:
        """Number of pairs that could be covered."""
        return self.n * (self.n - 1) // 2 + int((~self.model.is_point).sum())

    @property
    def keys(self) -> IntArray:
        """(covered) sorted pair keys, s * n + t."""
        return self.covered.keys

    @property
    def lower(self) -> FloatArray:
        """(covered) lower bounds."""
        return self.covered.lower

    @property
    def upper(self) -> FloatArray:
        """(covered) upper bounds."""
        return self.covered.upper

    @property
    def n_covered(self) -> int:
        """Number of covered pairs."""
        return self.covered.size

    @property
    def coverage(self) -> float:
        """Share of all pairs that is covered."""
        return self.n_covered / self.n_pairs if self.n_pairs else 1.0

    def pairs(self) -> tuple[IntArray, IntArray]:
        """The states of the covered pairs, the smaller ones first."""
        return self.covered.pairs()

    def cover(self, states: npt.ArrayLike, others: npt.ArrayLike) -> int:
        """Add pairs, at their start values; how many of them were new.

        Pairs of equal states and pairs that are covered already are passed over.
        """
        s = check_states("states", states, self.n)
        t = check_states("others", others, self.n)
        self._check_room(s.size)
        keys = np.minimum(s, t) * self.n + np.maximum(s, t)
        fresh = np.setdiff1d(keys[(s != t) | ~self.model.is_point[s]], self.keys)
        if fresh.size == 0:
            return 0
        lower, upper = self.ground.read(*np.divmod(fresh, self.n))
        merged = self.covered.with_pairs(fresh, lower, upper)
        # At once, so that an interrupt leaves the arms as they were or as they will be.
        self.covered, self._lookup = merged, None
        return int(fresh.size)

    def cover_all(self) -> int:
        """Add every pair; how many of them were new."""
        self._check_room(self.n * (self.n + 1) // 2)
        s, t = np.triu_indices(self.n)
        return self.cover(s, t)

    def _check_room(self, more: int) -> None:
        """Refuse pairs whose states, keys, order and bounds would not fit while they are merged."""
        self.resources.check_memory(
            PAIR_BYTES * (self.n_covered + more),
            what=f"covering {more:,} pairs",
            instead="cover fewer pairs (max_pairs), or merge states first",
        )

    def add_level(self, level: BlockLevel) -> None:
        """Let all pairs of states read the bounds of a block level where these are tighter."""
        self._read_from(self.ground.with_level(level))

    def set_action_values(self, action_values: ActionValues) -> None:
        """Let all pairs of states read how far they are apart by optimal action values."""
        self._read_from(self.ground.with_action_values(action_values))

    def set_features(self, features: ValueFeatures) -> None:
        """Let all pairs of states read the distance of features where that is tighter."""
        self._read_from(self.ground.with_features(features))

    def _read_from(self, ground: Ground) -> None:
        below, above = ground.read(*self.pairs())
        lower, upper = np.maximum(self.lower, below), np.minimum(self.upper, above)
        covered = self.covered.with_bounds(lower=lower, upper=upper)
        self.ground, self.covered, self._lookup = ground, covered, None

    def start_diagonal(self) -> None:
        """Cover the diameters of all blocks, at upper bounds that are known at once.

        Let c = max over blocks and actions of (high - low + gamma·e·D)/(1 - gamma), with
        e = spare + 2·short. Two members of a block go to members of the same block, at a cost of
        at most c, but for at most e of the mass, at a cost of at most D. So high - low +
        gamma·(c + e·D) <= c: with c on the diagonal the upper arm is a super-solution. What backups
        add for the rounding of rows is added to high - low.
        So it is with 0 for the blocks that `exact_blocks` finds. The last factor covers the
        rounding of c, TINY its underflow: a product of two small numbers may be computed as 0.
        """
        model, starts = self.model, self.starts
        several = np.flatnonzero(~model.is_point)
        self.cover(several, several)
        first, second = self.pairs()
        diagonal = np.flatnonzero(first == second)
        elsewhere = model.spare + 2.0 * model.short
        local = model.high - model.low + self.gamma * elsewhere * starts.diameter
        local += 2.0 * self.rounding[:, None]
        local = local[~model.is_point]
        most = float(local.max(initial=0.0)) / (1.0 - self.gamma) * (1.0 + 1e-12)
        if most > 0.0 or (starts.diameter > 0.0 and elsewhere.any()):
            most += TINY / (1.0 - self.gamma)
        upper = self.upper.copy()
        upper[diagonal] = np.minimum(upper[diagonal], most)
        is_exact = np.isin(first[diagonal], exact_blocks(model))
        upper[diagonal[is_exact]] = 0.0
        self.covered = self.covered.with_bounds(upper=upper)

    def tighten(self, lower: FloatArray, upper: FloatArray) -> None:
        """Take over bounds of the covered pairs where they are tighter.

        The caller answers for them: `lower` must be a sub-solution together with what the
        arms hold, and `upper` a super-solution.
        """
        lower, upper = np.maximum(self.lower, lower), np.minimum(self.upper, upper)
        self.covered = self.covered.with_bounds(lower=lower, upper=upper)

    def level(self) -> BlockLevel:
        """The block model and its bounds as they stand."""
        return BlockLevel(model=self.model, keys=self.keys, lower=self.lower, upper=self.upper)

    def restore(self, keys: IntArray, lower: FloatArray, upper: FloatArray, backups: int) -> None:
        """Take over covered pairs and bounds as they were; the caller answers for the latter."""
        if keys.dtype != np.int64 or lower.dtype != np.float64 or upper.dtype != np.float64:
            raise InvalidArgumentError("keys must be int64, lower and upper float64")
        covered = PairTable(self.n, keys, lower, upper)
        covered.check_diagonal(~self.model.is_point)
        self.covered = covered
        self.backups = check_int("backups", backups, low=0)
        self._lookup = None

    def sweep(self, *, lower: bool = True, upper: bool = True) -> tuple[float, float]:
        """One Jacobi sweep over the covered pairs; the largest change of each arm."""
        if self.n_covered == 0:
            return 0.0, 0.0
        moved = [0.0, 0.0]
        if lower:
            values = self.ground_costs(is_upper=False)
            new = np.maximum(self.lower, self.backup(values, is_upper=False))
            moved[0] = float((new - self.lower).max())
            self.covered = self.covered.with_bounds(lower=new)
        if upper:
            values = self.ground_costs(is_upper=True)
            new = np.minimum(self.upper, self.backup(values, is_upper=True))
            moved[1] = float((self.upper - new).max())
            self.covered = self.covered.with_bounds(upper=new)
        return moved[0], moved[1]

    def adopt(self, candidate: FloatArray, *, is_upper: bool) -> float:
        """Take over bounds that nobody answers for, as far as they prove to be some.

        A table g is taken where it is tighter than the bounds f, at all pairs or at none. Upper
        arm: h = min(f, g) is adopted if its backup, rounded up, is at most g wherever h is g. Then
        Th <= h there, and elsewhere Th <= Tf <= f = h as T is monotone: h is a super-solution
        again, whatever g was. So is min(h, its backup), which is what a sweep of h gives. Lower
        arm: mirrored, with h = max(f, g), and 0 as the distance of a block from itself.

        T is here that of `backup`, blocks with their radii included, frontier and places of equal
        states fixed: all that matters is that it is monotone. Where g fails by ε it is moved
        outward. By ε/(1 - gamma) for states: costs that grow by c let backups grow by gamma·c at
        most. Of blocks, those of the upper arm may grow by gamma·(1 + both radii)·c: it is moved
        by more, if that is below c. Whether it was enough is seen by another backup, and not taken
        for granted; then by twice as much, and again, before g is given up.

        Args:
            candidate: (covered) any numbers.
            is_upper: The upper arm; else the lower one.

        Returns:
            The largest change of a bound.
        """
        old = self.upper if is_upper else self.lower
        if not np.isfinite(candidate).all():
            return 0.0
        sign = 1.0 if is_upper else -1.0
        first, second = self.pairs()
        may_move = np.ones(old.size, bool) if is_upper else first != second
        table, reach = candidate, 1.0 / (1.0 - self.gamma)
        growth = self.gamma * (1.0 + 2.0 * float(self.model.radius.max()))
        if is_upper and growth < 1.0:
            reach = 1.0 / (1.0 - growth)
        for _ in range(ATTEMPTS):
            table = np.maximum(table, 0.0)
            is_new = may_move & (table < old if is_upper else table > old)
            if not is_new.any():
                return 0.0
            new = np.where(is_new, table, old)
            backup = self.backup(
                self.ground_costs(is_upper=is_upper, covered=new), is_upper=is_upper
            )
            failing = float((sign * (backup - table))[is_new].max())
            if failing <= 0.0:
                best = np.minimum(new, backup) if is_upper else np.maximum(new, backup)
                changed = {"upper" if is_upper else "lower": best}
                self.covered = self.covered.with_bounds(**changed)
                return float(np.abs(best - old).max())
            # What the sum itself rounds is left room for.
            failing += 8.0 * EPS * float(np.abs(table).max())
            table = table + sign * failing * reach
            reach *= 2.0
        return 0.0

    def ground_pairs(self) -> tuple[IntArray, IntArray]:
        """The pairs of states whose costs backups read, place by place.

        Place 0 is a pair of equal states; covered pairs come next, then the frontier: pairs
        that are read but not covered.
        """
        keys = np.concatenate([[0], self.keys, self._looked_up().frontier])
        first, second = np.divmod(keys, self.n)
        return first, second

    def ground_costs(self, *, is_upper: bool, covered: FloatArray | None = None) -> FloatArray:
        """What one arm says of each of `ground_pairs` now.

        Args:
            is_upper: The upper arm; else the lower one.
            covered: (covered) what to take for the covered pairs in place of the arm's bounds.
        """
        lookup = self._looked_up()
        own, frontier = self.lower, lookup.frontier_lower
        if is_upper:
            own, frontier = self.upper, lookup.frontier_upper
        return np.concatenate([[0.0], own if covered is None else covered, frontier])

    def bounds(self, states: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds for any pairs, covered or not, by broadcasting."""
        s, t = np.broadcast_arrays(
            check_states("states", states, self.n), check_states("others", others, self.n)
        )
        small, large = np.minimum(s, t).ravel(), np.maximum(s, t).ravel()
        lower, upper = self.ground.read(small, large)
        at, known = self.covered.find(small, large)
        lower[known], upper[known] = self.lower[at[known]], self.upper[at[known]]
        is_same = (small == large) & self.model.is_point[small]
        lower[is_same] = upper[is_same] = 0.0
        return lower.reshape(s.shape), upper.reshape(s.shape)

    def backup(self, values: FloatArray, *, is_upper: bool) -> FloatArray:
        """The backup of every covered pair under given ground costs, rounded outward.

        Args:
            values: Costs of `ground_pairs`, at least 0, the first of them 0.
            is_upper: Round up; else down.
        """
        return self._backed_up(values, is_upper=is_upper, columns=1)[:, 0]

    def coupled_backup(self, values: FloatArray, *, is_upper: bool) -> FloatArray:
        """(covered, 1 + n_lines * (1 + 2 * width)) the same, and couplings that it came from.

        Couplings are untrusted: see `arm_kernel` for the columns.
        """
        return self._backed_up(values, is_upper=is_upper, columns=self._coupling_columns)

    @property
    def _coupling_columns(self) -> int:
        # A coupling has fewer cells than both supports together.
        return 1 + self.n_lines * (1 + 4 * self.model.max_support)

    @property
    def coupling_bytes(self) -> int:
        """Memory that `coupled_backup` takes."""
        return 8 * self.n_covered * self._coupling_columns

    def _backed_up(self, values: FloatArray, *, is_upper: bool, columns: int) -> FloatArray:
        # True rows of a model that was sampled may reach anything, at a cost of D at most.
        reach = self.starts.diameter if self.mdp.is_sampled and is_upper else 0.0
        out = np.empty((self.n_covered, columns))
        fresh = {"values": read_only(values), "reach": reach, "is_upper": is_upper}
        self._looked_up().sweep(fresh, out)
        if is_upper and self.rounding.any():
            first, second = self.pairs()
            out[:, 0] = (out[:, 0] + self.rounding[first] + self.rounding[second]) * ROUNDED_UP
        self.backups += self.n_covered
        return out

    @cached_property
    def rounding(self) -> FloatArray:
        """(n) what rounding of the model's rows adds to upper backups, for each block of a pair.

        Rows that are off by e in total variation, surely, are as far from those stored as e·D at
        most, under the metric, and W₁ obeys the triangle inequality: gamma·(e + e')·D more than
        the stored rows are apart, whose mass goes nowhere but where it is stored. That is far less
        than letting all that members differ by go anywhere. Below, radii include e already. The
        radius of a block is at least that of its members' rows. TINY covers underflow: a product
        of small numbers may be computed as 0, where the distance is not.
        """
        estimate = self.mdp.estimate
        if estimate is None or estimate.is_sampled:
            return np.zeros(self.n)
        off = np.minimum(self.model.radius.max(axis=1), estimate.row_radius.max())
        farthest = self.gamma * self.starts.diameter
        is_moved = (off > 0.0) & (self.gamma > 0.0) & (self.starts.diameter > 0.0)
        return np.where(is_moved, farthest * off * ROUNDED_UP + TINY, 0.0)

    def _looked_up(self) -> _Lookup:
        if self._lookup is None:
            self._lookup = _Lookup(self, self._lookup_bytes)
        return self._lookup


def back_up_chunk(
    common: Data, part: Any, fresh: Data, begin: int, end: int, out: FloatArray
) -> None:
    """The backups of the pairs begin..end, from data of `_Lookup`."""
    from bisim_abstract._kernels.transport import arm_kernel

    if part is None:
        part = _found(common, begin, end)
    arm_kernel(
        begin,
        end,
        common["first"],
        common["second"],
        part[0],
        part[1],
        tuple(common[name] for name in BLOCKS),
        common["gamma"],
        common["max_support"],
        common["is_lax"],
        common["apart"],
        fresh["reach"],
        fresh["is_upper"],
        fresh["values"],
        out,
    )
    if "used" in fresh and out.shape[1] > 1:  # couplings name their costs by their places here
        width = 2 * common["max_support"]
        cells = out[begin:end, 1:].reshape(end - begin, -1, 1 + 2 * width)[:, :, 1 : 1 + width]
        cells[:] = fresh["used"][cells.astype(np.int64)]


def _found(common: Data, begin: int, end: int) -> tuple[Array, Array]:
    """Offsets and positions of the ground costs of the pairs begin..end, all met before."""
    from bisim_abstract._kernels.lookup import find_kernel

    offset = np.empty(end - begin + 1, np.int64)
    positions = np.empty(int(common["sizes"][begin:end].sum()), np.int32)
    find: Any = find_kernel
    find(begin, end, *(common[name] for name in LOOKUP), offset, positions)
    return read_only(offset), read_only(positions)


def _chunk(cells: float, lines: int) -> int:
    """Pairs per unit of work, where a pair reads so many costs in so many lines.

    By what a transport of one line takes, about.
    """
    micros = lines * (0.05 + 0.045 * (cells / lines) ** 1.15)
    return int(np.clip(CHUNK_SECONDS / (1e-6 * micros), 1, CHUNK))


class _Lookup:
    """Positions of all ground costs that the covered pairs read, found once per coverage."""

    def __init__(self, arms: Arms, limit: int) -> None:
        model, count = arms.model, arms.n_covered
        first, second = arms.pairs()
        sets = arms.starts.sets
        widths = np.diff(model.indptr).reshape(model.n_blocks, -1) * model.available
        sizes = arms.relation.n_cells(widths, first, second)
        own = first == second  # a block's actions with themselves, whatever others they match
        sizes[own] = (widths**2).sum(axis=1)[first[own]]
        sizes[sets[first] != sets[second]] = 0
        total = int(sizes.sum())
        # Every cell may add one pair to the frontier, but no pair twice.
        most = min(total, arms.n_pairs) + count
        capacity = 1 << max(4, math.ceil(math.log2(2 * most + 1)))
        is_kept = 4 * total <= limit
        arms.resources.check_memory(
            16 * capacity + 24 * most + (4 * total if is_kept else 0),
            what=f"looking up the ground costs of {count:,} covered pairs",
            instead="cover fewer pairs (max_pairs), or merge states first",
        )
        table: dict[str, Any] = {
            "first": read_only(first),
            "second": read_only(second),
            "indptr": model.indptr,
            "indices": model.indices,
            "n_blocks": model.n_blocks,
            "available": model.available,
            "sets": sets,
            "is_lax": arms.relation.matches_actions,
            "is_point": model.is_point,
            "slots": np.full(capacity, -1, np.int64),
            "places": np.empty(capacity, np.int64),
            "sizes": sizes,
        }
        self.chunk = _chunk(total / max(count, 1), arms.n_lines)
        parts = self._find_frontier(arms, table, keep=is_kept)
        common = {
            "probs": model.probs,
            "normalised_probs": read_only(model.normalised_probs),
            "low": model.low,
            "high": model.high,
            "radius": model.radius,
            "spare": model.spare,
            "short": model.short,
            "gamma": arms.gamma,
            "max_support": model.max_support,
            "apart": arms.starts.diameter,
        }
        if is_kept:  # where each pair's costs are has been found for good
            names = ("first", "second", "indptr", "indices", "available", "sets", "is_lax")
            common |= {name: table[name] for name in names}
        else:
            common |= table | {name: read_only(table[name]) for name in ("slots", "places")}

        def narrow(fresh: Data, begin: int, end: int) -> tuple[Data, Any, Data]:
            """Pairs begin..end with the ground costs that they read, in the order of the whole."""
            part = parts.get(begin)
            offset, positions = _found(table, begin, end) if part is None else part
            # The first cost stays the first: couplings are padded with it.
            used, places = np.unique(np.append(positions, 0), return_inverse=True)
            pairs = {"first": table["first"][begin:end], "second": table["second"][begin:end]}
            own = offset, places.reshape(-1)[:-1].astype(np.int32)
            return pairs, own, {**fresh, "values": fresh["values"][used], "used": used}

        job = Job(
            back_up_chunk,
            common,
            count,
            self.chunk,
            lambda begin, end: parts.get(begin),
            narrow=narrow,
            tables=("first", "second", "slots", "places", "sizes"),
        )
        self.sweep: Sweep = arms.resources.workers.prepare(job)

    def _find_frontier(
        self, arms: Arms, table: Data, *, keep: bool
    ) -> dict[int, tuple[Array, Array]]:
        """Read what uncovered pairs cost; with `keep`, offsets and positions of each chunk."""
        from bisim_abstract._kernels.lookup import insert_kernel, locate_kernel

        insert_kernel(arms.keys, 1, table["slots"], table["places"])
        given, locate = [table[name] for name in LOOKUP], cast(Any, locate_kernel)
        found, parts = [], {}
        place = 1 + arms.n_covered
        for begin, end in spans(arms.n_covered, self.chunk):
            look()
            cells = int(table["sizes"][begin:end].sum())
            room, positions = np.empty(cells, np.int64), np.empty(cells, np.int32)
            offset = np.empty(end - begin + 1, np.int64)
            added = locate(begin, end, *given, place, room, offset, positions)
            found.append(room[:added].copy())
            place += added
            if keep:
                parts[begin] = read_only(offset), read_only(positions)
        self.frontier: IntArray = np.concatenate(found)
        s, t = np.divmod(self.frontier, arms.model.n_blocks)
        self.frontier_lower, self.frontier_upper = arms.ground.read(s, t)
        return parts
