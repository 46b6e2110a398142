"""Float mode of the verifier: one-sided bounds, and how far rounding leaves claims open.

A claim is rejected if it certainly is false, or if what could be proved falls short of it by
more than rounding would explain. What remains is an open amount ε, by which `verify` widens.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.parallel import Array, Backend, Data, Job, map_chunks, read_only, spans
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._verify.read import Claims, FeatureClaims, Table, radius_seen_by
from bisim_abstract.errors import VerificationError

CHUNK = 2**15  # states per unit of work; results do not depend on it
CELLS = 2**17  # costs that are read at once
DISTANCES = 2**22  # of functions, between states of supports and all, at once
# What rounding may leave open: so many roundings per entry of two rows and in all, but no more
# than a share of the diameter. A claim that is open by more was not confirmed.
PER_ENTRY, IN_ALL = 32, 512
CONFIRMED = 1e-9
SMALLEST, LARGEST = 1e-270, 1e300  # sizes between which the float bounds mean something
UNDERFLOW = 1e-290  # above what is lost where products of small numbers become 0


class Reader:
    """Costs of pairs as floats: the tightest of start values, stored entries and features.

    Start values are off by 8·EPS of themselves and by UNDERFLOW at most, or lie on the safe side of
    the exact ones if asked to; features are rounded down; entries are as stored.
    """

    def __init__(
        self,
        table: Table,
        gamma: float,
        *,
        levels: tuple[Table, ...] = (),
        features: FeatureClaims | None = None,
    ) -> None:
        self.table = table
        self._gamma = gamma
        self._levels = levels
        # Read-only, as they are for workers elsewhere: compiled code is then the same.
        self._starts = [read_only(_row_starts(part)) for part in (table, *levels)]
        self._points = None
        if features is not None:
            points, corrections = features.functions()
            self._points = read_only(points), read_only(corrections)
        span = table.relation.reward_span(table.low, table.high, table.available)
        self.diameter = span / (1.0 - gamma)
        if table.apart is not None:
            self.diameter = max(self.diameter, table.apart)

    def read(
        self, first: IntArray, second: IntArray, *, has_own: bool = True, is_safe: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Costs of pairs below and above, with or without the entries of the table itself."""
        from bisim_abstract._verify.kernels import feature_costs_kernel, start_costs_kernel

        table = self.table
        below, above = np.empty(first.size), np.empty(first.size)
        start_costs_kernel(
            first,
            second,
            table.low,
            table.high,
            table.available,
            table.sets,
            table.sizes,
            self._gamma,
            self.diameter,
            _distance_apart(table),
            table.relation.matches_actions,
            table.lower_start == "reward",
            table.upper_start == "reward",
            1.0 - 16.0 * EPS if is_safe else 1.0,
            1.0 + 16.0 * EPS if is_safe else 1.0,
            UNDERFLOW if self.diameter > 0.0 else 0.0,
            below,
            above,
        )
        for k in range(len(self._levels)):
            self._merge(1 + k, first, second, below, above)
        if self._points is not None:
            feature_costs_kernel(first, second, *self._points, below)
        if has_own:
            self._merge(0, first, second, below, above)
        return below, above

    def _merge(
        self, k: int, first: IntArray, second: IntArray, below: FloatArray, above: FloatArray
    ) -> None:
        """Entries of the table itself, or from 1 on of a level."""
        from bisim_abstract._verify.kernels import entry_costs_kernel

        part = self._levels[k - 1] if k else self.table
        entry_costs_kernel(
            first,
            second,
            part.labels,
            k > 0,
            part.n,
            self._starts[k],
            part.keys,
            part.lower,
            part.upper,
            below,
            above,
        )


def _distance_apart(table: Table) -> float:
    """Of blocks with different action sets; 0 where there are none."""
    return 0.0 if table.apart is None else table.apart


def _reached(table: Table) -> tuple[IntArray, IntArray, IntArray]:
    """What the rows of each block reach together, and where in it each entry of a row stands.

    (n + 1) where each block's begins, all of them, and (nnz) places; empty unless actions are
    matched.
    """
    if not table.relation.matches_actions:
        none = np.empty(0, np.int64)
        return none, none, none
    per_block = np.diff(table.indptr[:: table.low.shape[1]])
    owner = np.repeat(np.arange(table.n), per_block)
    keys, inverse = np.unique(owner * table.n + table.indices, return_inverse=True)
    starts = np.searchsorted(keys, np.arange(table.n + 1) * table.n).astype(np.int64)
    return starts, keys % table.n, inverse.reshape(-1) - starts[owner]


def _row_starts(table: Table) -> IntArray:
    """(n + 1) where the entries of each smaller block begin."""
    return np.searchsorted(table.keys, np.arange(table.n + 1) * table.n).astype(np.int64)


def check_limit(limit: Fraction) -> None:
    """Leave open what is too large for floats, or so small that it drowns in underflow."""
    if limit > LARGEST or 0 < limit < SMALLEST:
        size, way = ("large", "down") if limit > LARGEST else ("small", "up")
        raise VerificationError(
            f"the metric may reach {above_float(limit):.3g}, too {size} to be checked in float "
            f"mode unless rewards are scaled {way}",
            is_open=True,
        )


def explained(table: Table, claims: Claims, limit: Fraction, size: Fraction) -> Fraction:
    """The most that rounding may leave open of an inequality, which limits the widening too.

    Bounds on one backup count fewer than PER_ENTRY roundings for each entry of its two rows (each
    action of a mean) and fewer than IN_ALL besides, of numbers that are at most the largest
    distance `size`; those of an estimate also of the ends of its reward intervals. Of what a
    certificate stores, the length of a level's own centre rows takes part in this, and no number.

    Args:
        table: Whose rows are backed up: a level, or the states.
        claims: All that is claimed.
        limit: The diameter of the metric.
        size: What numbers are rounded at: that, or the same with any two rewards compared.
    """
    longest = int(np.diff(table.indptr).max())
    terms = PER_ENTRY * (2 * longest + claims.states.low.shape[1]) + IN_ALL
    if claims.states.is_estimate:
        size += _largest_end(claims.states) / (1 - Fraction(claims.gamma))
    rounded: Fraction = Fraction(EPS) * terms * size
    return min(rounded, Fraction(CONFIRMED) * limit)


def _largest_end(states: Table) -> Fraction:
    """Of all reward intervals."""
    return max(Fraction(float(np.abs(ends).max())) for ends in (states.low, states.high))


# -- inequalities ------------------------------------------------------------------------------


def check_table(
    reader: Reader, claims: Claims, limit: Fraction, radii: Radii, workers: Backend
) -> Fraction:
    """How far the inequalities of a table are open; a violated one ends the check.

    Args:
        reader: The table, and what its costs are read from.
        claims: All that is claimed.
        limit: The diameter of the metric, which says what rounding explains.
        radii: Radii of the rows, proven, so at least those stored.
        workers: Who computes the backups.
    """
    table = reader.table
    size = table.keys.size
    if size == 0:
        return Fraction(0)
    first, second = np.divmod(table.keys, table.n)
    low, high = np.empty((size, 2)), np.empty((size, 2))
    below, above = reader.read(first, second, has_own=False, is_safe=True)
    # What other components say already needs no backup.
    is_low, is_high = table.lower <= below, table.upper >= above
    low[:] = table.lower[:, None]
    high[:] = table.upper[:, None]
    low[:, 1], high[:, 1] = np.inf, 0.0
    _bound_backups(reader, claims.gamma, first, second, is_low, is_high, radii, low, high, workers)
    # What float costs and radii differ by from the exact ones, beyond what kernels count.
    grain = 0.0
    if radii.radius is not table.radius or radii.short is not table.short:
        most = max(
            float((radii.radius - table.radius).max()), float((radii.short - table.short).max())
        )
        grain += 2.0 * reader.diameter * (2.0 * most + 16.0 * EPS)
    if table.is_estimate:
        ends = max(float(np.abs(table.low).max()), float(np.abs(table.high).max()))
        grain += 32.0 * EPS * (ends / (1.0 - claims.gamma) + reader.diameter)
    if claims.features is not None and table.level is None:
        grain += _feature_grain(claims.features, reader.diameter)
    # Certainly false: the claim lies beyond what its backup can be. NaN counts as beyond.
    for side, beyond, bound in (
        ("lower", table.lower - low[:, 1] - grain, low[:, 1]),
        ("upper", high[:, 1] - table.upper - grain, high[:, 1]),
    ):
        worst = int(beyond.argmax())  # the first NaN, if there is one
        if not beyond[worst] <= 0.0:
            raise violated(table, side, worst, float(bound[worst]))
    # Open: rounding could explain it. By how much, and is that still small?
    open_by, room = 0.0, below_float(explained(table, claims, limit, limit))
    for side, missing, bound in (
        ("lower", table.lower - low[:, 0], low[:, 0]),
        ("upper", high[:, 0] - table.upper, high[:, 0]),
    ):
        worst = int(missing.argmax())
        if not missing[worst] <= room:
            raise VerificationError(
                f"{side} bound of {table.name(worst)} is "
                f"{float(getattr(table, side)[worst])!r}, which could not be confirmed: its "
                f"backup is only known to reach {float(bound[worst])!r}, and rounding explains "
                f"{room:.2g} at most",
                is_open=True,
            )
        if missing[worst] > 0.0:
            open_by = max(open_by, float(np.nextafter(missing[worst], np.inf)))
    return Fraction(open_by)


def _feature_grain(features: FeatureClaims, diameter: float) -> float:
    """By how much costs of features may be rounded down.

    A cost |x - y| - c is off by 8·EPS of |x - y| where it is above 0, as c is below |x - y| then:
    a function whose correction is above all its differences is read nowhere, and adds nothing. Nor
    is any cost above the diameter, which caps the rest.
    """
    points, corrections = features.functions()
    spans = points.max(axis=0) - points.min(axis=0)
    read = spans[corrections < spans * (1.0 + 4.0 * EPS)]
    return min(16.0 * EPS * (diameter + float(read.max(initial=0.0))), diameter)


def _bound_backups(
    reader: Reader,
    gamma: float,
    first: IntArray,
    second: IntArray,
    is_low: BoolArray,
    is_high: BoolArray,
    radii: Radii,
    low: FloatArray,
    high: FloatArray,
    workers: Backend,
) -> None:
    """Fill in the bounds of all pairs with a claim that needs a backup, in groups."""
    from bisim_abstract._verify.kernels import list_cells_kernel

    table = reader.table
    chosen = np.flatnonzero(~(is_low & is_high))
    if chosen.size == 0:
        return
    is_states = table.level is None
    rows = (table.indptr, table.indices, table.probs)
    reach_ptr, reach, place = map(read_only, _reached(table))
    how = (gamma, is_states, table.relation.matches_actions)
    s, t = first[chosen], second[chosen]
    counts, none = np.empty(chosen.size, np.int64), np.empty(0, np.int64)
    cells_of = (*rows, reach_ptr, reach, radii.radius, table.sets, *how)
    list_cells_kernel(s, t, *cells_of, counts, none, none)
    # Groups of pairs with about as many costs each; they depend on the table alone.
    after = np.cumsum(counts)
    group = (after - counts) // CELLS
    begins = np.concatenate([[0], np.flatnonzero(group[1:] != group[:-1]) + 1, [chosen.size]])
    # True rows of a model that was sampled may reach anything, at a cost of D at most. Where rows
    # are off by e, surely, they are e·D from those stored, and W₁ obeys the triangle inequality;
    # that product may underflow to 0, where it is not 0.
    beyond = reader.diameter if table.is_sampled else 0.0
    off = gamma * reader.diameter * (1.0 + 64.0 * EPS) * table.off
    is_moved = (table.off > 0.0) & (gamma > 0.0) & (reader.diameter > 0.0)
    off = np.where(is_moved, off + UNDERFLOW, 0.0)
    more = (off[first] + off[second]) * (1.0 + 4.0 * EPS)
    # What a claim leaves for the stored rows: with `more` it is at most the claim.
    left = np.where(more > 0.0, np.nextafter(table.upper - more, -np.inf), table.upper)

    def group_of(k: int) -> tuple[Array, ...]:
        own = slice(int(begins[k]), int(begins[k + 1]))
        at = chosen[own]
        claimed = table.lower[at], left[at], table.upper[at], more[at], is_low[at], is_high[at]
        return s[own], t[own], counts[own], *claimed

    def narrow(fresh: Data, begin: int, end: int) -> tuple[Data, Any, Data]:
        """Costs as they are read here, for workers that cannot hold the tables."""
        groups = [group_of(k) for k in range(begin, end)]
        return {}, groups, {"costs": [_read_costs(reader, cells_of, group) for group in groups]}

    common = {
        "reader": reader,
        "cells_of": cells_of,
        "fixed": (
            *rows,
            reach_ptr,
            place,
            table.low,
            table.high,
            radii.radius,
            table.spare,
            radii.short,
            table.available,
            table.sets,
            gamma,
            beyond,
            _distance_apart(table),
            is_states,
            table.relation.matches_actions,
        ),
    }
    job = Job(
        check_groups,
        common,
        begins.size - 1,
        1,
        lambda begin, end: [group_of(k) for k in range(begin, end)],
        narrow=narrow,
        tables=("reader", "cells_of"),
    )
    found = workers.prepare(job)({}, np.empty(begins.size - 1, np.bool_))
    answers = [group for groups in found for group in groups]
    # Whoever does not answer has confirmed nothing.
    shapes = [(int(n), 2) for n in np.diff(begins) for _ in range(2)]
    if [np.shape(bounds) for answer in answers for bounds in answer] != shapes:
        raise VerificationError(
            f"workers answered for {len(answers):,} of {begins.size - 1:,} groups of pairs, or not "
            "for all pairs of them",
            is_open=True,
        )
    for k, (lows, highs) in enumerate(answers):
        at = chosen[begins[k] : begins[k + 1]]
        low[at], high[at] = lows, highs


def _read_costs(
    reader: Reader, cells_of: tuple[Any, ...], group: tuple[Array, ...]
) -> tuple[FloatArray, FloatArray]:
    """Costs below and above that the backups of a group read."""
    from bisim_abstract._verify.kernels import list_cells_kernel

    one, two, counts = (np.array(x) for x in group[:3])
    cells = int(counts.sum())
    from_, to = np.empty(cells, np.int64), np.empty(cells, np.int64)
    list_cells: Any = list_cells_kernel  # types of arguments that are unpacked cannot be told
    list_cells(one, two, *cells_of, counts, from_, to)
    return reader.read(from_, to)


def check_groups(
    common: Data, part: Any, fresh: Data, begin: int, end: int, out: Array
) -> list[tuple[FloatArray, FloatArray]]:
    """Bounds on the backups of groups of pairs, from data of `_bound_backups`."""
    from bisim_abstract._verify.kernels import check_pairs_kernel

    check_pairs: Any = check_pairs_kernel
    found = []
    for k, group in enumerate(part):
        if "costs" in fresh:
            costs = fresh["costs"][k]
        else:
            costs = _read_costs(common["reader"], common["cells_of"], group)
        # Copies: kernels are compiled anew for arrays that cannot be written to.
        below, above, one, two = (np.array(x) for x in (*costs, *group[:2]))
        lower, left, upper, more, is_low, is_high = (np.array(x) for x in group[3:])
        lows, highs = np.empty((one.size, 2)), np.empty((one.size, 2))
        check_pairs(
            *(one, two, below, above, lower, left, is_low, is_high),
            *common["fixed"],
            lows,
            highs,
        )
        is_kept = highs[:, 0] <= left
        summed = np.where(more > 0.0, (highs[:, 0] + more) * (1.0 + 4.0 * EPS), highs[:, 0])
        highs[:, 0] = np.where(is_kept, np.minimum(summed, upper), summed)
        found.append((lows, highs))
    out[begin:end] = True
    return found


def violated(table: Table, side: str, index: int, bound: float) -> VerificationError:
    """An inequality that does not hold, with its pair."""
    stored = float(getattr(table, side)[index])
    relation = ("above", "at most") if side == "lower" else ("below", "at least")
    return VerificationError(
        f"{side} bound of {table.name(index)} is {stored!r}, {relation[0]} its backup, "
        f"which is {relation[1]} {bound!r}"
    )


# -- block models ------------------------------------------------------------------------------


def check_intervals(table: Table, mdp: TabularMDP) -> None:
    """Reward intervals must hold the members' rewards, radii included; decided exactly.

    With s = fl(R - r) and e its error, R - r = s + e is at least a float l exactly if s > l, or
    s = l and e >= 0, as s is the float nearest to it. What reaches the end of the range of single
    rewards holds their means too, if it holds R.
    """
    rewards = mdp.rewards
    low, high = (_of_members(table, bound) for bound in (table.low, table.high))
    if mdp.estimate is None:
        good = (low <= rewards) & (rewards <= high)
    else:
        error = mdp.estimate.reward_radius
        good = np.ones(rewards.shape, bool)
        least, most = mdp.estimate.reward_range
        for sign, bound, last in ((-1.0, low, least), (1.0, high, most)):
            end = rewards + sign * error
            part = end - rewards
            rest = (rewards - (end - part)) + (sign * error - part)
            is_beyond = (sign * bound >= sign * last) & (sign * bound >= sign * rewards)
            good &= (
                (sign * bound > sign * end) | ((bound == end) & (sign * rest <= 0.0)) | is_beyond
            )
    if table.renaming is not None:
        good |= table.renaming < 0
    if not good.all():
        state, action = (int(k) for k in np.unravel_index(int(np.argmin(good)), good.shape))
        raise VerificationError(
            f"level {table.level}: the reward interval of block {int(table.labels[state])}, "
            f"action {table.called(state, action)} leaves out the reward of its member {state}"
        )


def _of_members(table: Table, values: FloatArray) -> FloatArray:
    """(n_states, n_actions) what blocks say of their members' actions; any if one lacks it."""
    if table.renaming is None:
        return values[table.labels]
    return values[table.labels[:, None], np.maximum(table.renaming, 0)]


class Radii(NamedTuple):
    """What members of blocks differ by from centre rows; fields as in `Table`.

    `rows` are those of the model, state * n_actions + action, for which rounding leaves open
    whether what is stored is enough.
    """

    radius: FloatArray
    short: FloatArray
    rows: IntArray


def stored_radii(table: Table) -> Radii:
    """Radii as they are claimed, with nothing left open."""
    return Radii(table.radius, table.short, np.empty(0, np.int64))


def check_radii(table: Table, mdp: TabularMDP, threads: int) -> Radii:
    """Proven radii: those stored, or more where rounding leaves that open."""
    from bisim_abstract._verify.kernels import largest_kernel, normal_rows_kernel, radius_kernel

    masses = np.empty_like(table.probs)
    normal_rows_kernel(table.indptr, table.probs, masses)
    shape = mdp.rewards.shape
    row_radius = np.array(radius_seen_by(mdp, table.labels))
    away, lacks = np.empty(shape), np.empty(shape)
    renaming = np.empty((0, 0), np.int64) if table.renaming is None else table.renaming
    renaming = _frozen(renaming)

    def part(begin: int, end: int) -> tuple[int, int, float]:
        return radius_kernel(
            begin,
            end,
            table.labels,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            row_radius,
            table.indptr,
            table.indices,
            table.probs,
            masses,
            table.radius,
            table.spare,
            table.short,
            renaming,
            table.is_sampled,
            away,
            lacks,
        )

    for row, why, bound in map_chunks(part, mdp.n_states, threads=threads, chunk=CHUNK):
        if row >= 0:
            raise wrong_centre(table, *divmod(int(row), mdp.n_actions), int(why), float(bound))
    radius, short = _of_members(table, table.radius), _of_members(table, table.short)
    rows = np.flatnonzero((away > radius) | (lacks > short))
    proven = []
    for stored, needed in ((table.radius, away), (table.short, lacks)):
        found = np.array(stored)
        largest_kernel(table.labels, renaming, needed, found)
        proven.append(stored if np.array_equal(found, stored) else _frozen(found))
    return Radii(proven[0], proven[1], rows)


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values.setflags(write=False)
    return values


def wrong_centre(
    table: Table, state: int, action: int, why: int, bound: float
) -> VerificationError:
    """A member whose row the centre does not stand for."""
    block, action = int(table.labels[state]), table.called(state, action)
    what = f"level {table.level}: block {block}, action {action}"
    if why == 1:
        return VerificationError(
            f"{what}: member {state} reaches block {int(bound)}, which the centre row does not"
        )
    if why == 3:
        return VerificationError(
            f"{what}: short is {float(table.short[block, action])!r}, but member {state} lacks at "
            f"least {bound!r} of the centre less its spare share"
        )
    return VerificationError(
        f"{what}: radius is {float(table.radius[block, action])!r}, but member {state} is at "
        f"least {bound!r} away from the centre"
    )


# -- features ----------------------------------------------------------------------------------


def check_features(claims: Claims, mdp: TabularMDP, room: Fraction, threads: int) -> Fraction:
    """How far the corrections of all features are open; one that is too small ends the check.

    Args:
        claims: All that is claimed.
        mdp: The model.
        room: What rounding explains.
        threads: Number of threads.
    """
    features = claims.features
    if features is None:
        return Fraction(0)
    keep = 1 - Fraction(claims.gamma)
    open_by = Fraction(0)
    for k in range(features.corrections.size):
        values = features.values[k]
        cut = float(features.floor[k]), float(features.ceiling[k])
        is_mean = bool(features.kinds[k])
        spread = _residual_span(
            claims, mdp, values, values, features.signs[k], cut, is_mean, 0.0, threads
        )
        extra = estimation_error(mdp, values, features.signs[k], claims.gamma, is_mean=is_mean)
        have = Fraction(float(features.corrections[k])) * keep
        open_by = max(
            open_by,
            _open_correction(
                f"feature {k}", spread, extra, have, float(features.corrections[k]), room
            ),
        )
    return max(open_by, _check_witnesses(claims, features, mdp, room, threads))


def _check_witnesses(
    claims: Claims, features: FeatureClaims, mdp: TabularMDP, room: Fraction, threads: int
) -> Fraction:
    """How far the corrections of witnesses are open: span(r_j) + γ·c <= correction_j.

    c is the largest correction of all functions; why that is enough stands in `exact.py`.
    """
    from bisim_abstract._verify.kernels import function_gaps_kernel

    witnesses = features.witnesses
    if witnesses is None:
        return Fraction(0)
    points, corrections = features.functions()
    used, place = np.unique(witnesses.support, return_inverse=True)
    place = place.reshape(witnesses.support.shape)
    potential, farthest = np.full(witnesses.values.shape, np.inf), np.zeros(len(place))
    # A support may name every state: not all distances fit at a time.
    for first, last in spans(used.size, max(1, DISTANCES // mdp.n_states)):
        states, away = used[first:last], np.empty((last - first, mdp.n_states))

        def part(begin: int, end: int, states: IntArray = states, out: FloatArray = away) -> None:
            function_gaps_kernel(begin, end, points, states, out)

        map_chunks(part, mdp.n_states, threads=threads, chunk=CHUNK // 8)
        most = away.max(axis=1)
        for k, i in np.argwhere((place >= first) & (place < last)).tolist():
            row = int(place[k, i]) - first
            np.minimum(potential[k], witnesses.potential[k, i] + away[row], out=potential[k])
            farthest[k] = max(farthest[k], most[row])
    carried = Fraction(claims.gamma) * Fraction(float(corrections.max()))
    open_by = Fraction(0)
    for k, stored in enumerate(witnesses.corrections.tolist()):
        signs = np.where(np.arange(mdp.n_actions) == witnesses.actions[k], witnesses.signs[k], 0)
        # One difference, one sum.
        largest = float(np.abs(witnesses.potential[k]).max())
        rounding = 4.0 * EPS * (largest + float(farthest[k]))
        spread = _residual_span(
            claims,
            mdp,
            _frozen(potential[k]),
            witnesses.values[k],
            _frozen(signs),
            (-math.inf, math.inf),
            False,
            rounding,
            threads,
        )
        extra = estimation_error(
            mdp, potential[k], signs, claims.gamma, is_mean=False, rounding=rounding
        )
        missing = _open_correction(
            f"witness {k}", spread, extra, Fraction(stored) - carried, stored, room
        )
        open_by = max(open_by, missing)
    return open_by


def estimation_error(
    mdp: TabularMDP,
    values: FloatArray,
    signs: IntArray,
    gamma: float,
    *,
    is_mean: bool,
    rounding: float = 0.0,
) -> tuple[Fraction, Fraction]:
    """By how much the true span of Φg - g may exceed that of the estimate: bounds on that.

    Backups of the true model under one action differ by at most reward_radius +
    γ·row_radius·span(g), also where rewards are cut off; their maximum by the largest of these,
    their mean by the mean; and the span by at most twice that. The worst state is located in
    floats. With A actions, what each state is compared by is off by at most (A + 6)·u of itself:
    span and scale by u each, two products and a sum, a mean of A terms. So another state may be
    worse by a factor of at most (1 + (A + 6)·u)/(1 - (A + 6)·u), for which 1 + (4A + 64)·u is
    counted, and by underflow. Where values are off by `rounding`, their span is by twice that.
    """
    if mdp.estimate is None:
        return Fraction(0), Fraction(0)
    span = Fraction(float(values.max())) - Fraction(float(values.min()))
    used = np.flatnonzero(signs)
    rewards, rows = mdp.estimate.reward_radius[:, used], mdp.estimate.row_radius[:, used]
    scale = gamma * float(span)
    errors = rewards + scale * rows
    if not (errors < LARGEST / used.size).all():
        raise VerificationError(
            "features: radii are too large to be checked in float mode", is_open=True
        )
    state = int(np.argmax(errors.mean(axis=1) if is_mean else errors.max(axis=1)))
    exact = [
        Fraction(reward) + Fraction(gamma) * span * Fraction(row)
        for reward, row in zip(rewards[state].tolist(), rows[state].tolist(), strict=True)
    ]
    most = sum(exact, Fraction(0)) / len(exact) if is_mean else max(exact)
    wobble = 4 * Fraction(gamma) * Fraction(rounding) * Fraction(float(rows.max()))
    above = 2 * most * (1 + Fraction(4 * used.size + 64, 2**53)) + Fraction(UNDERFLOW)
    return max(2 * most - wobble, Fraction(0)), above + wobble


def _residual_span(
    claims: Claims,
    mdp: TabularMDP,
    values: FloatArray,
    base: FloatArray,
    signs: IntArray,
    cut: tuple[float, float],
    is_mean: bool,
    rounding: float,
    threads: int,
) -> tuple[Fraction, Fraction]:
    """Bounds on the span of (max or mean of φ(σR) + γPv) - base; v itself is off by `rounding`.

    φ cuts rewards off at both ends of `cut`.

    Constants change no span, so they are taken off where that makes numbers small: from values,
    and from rewards, where a maximum over actions allows one constant and a mean one for each.
    """
    from bisim_abstract._verify.kernels import residual_kernel

    low, high = np.empty(mdp.n_states), np.empty(mdp.n_states)
    shift = float(values.max() / 2.0 + values.min() / 2.0)
    base_shift = float(base.max() / 2.0 + base.min() / 2.0)
    ends = [
        np.clip(signs * bound, *cut) for bound in (mdp.rewards.max(axis=0), mdp.rewards.min(axis=0))
    ]
    offsets = ends[0] / 2.0 + ends[1] / 2.0
    if not is_mean:
        offsets[:] = offsets[signs != 0].max()
    widest = float(np.abs(values - shift).max())
    sizes = (
        widest,
        np.abs(base - base_shift).max(),
        np.abs(mdp.rewards).max(),
        np.abs(ends).max(),
        rounding,
    )
    if not (np.array(sizes) < LARGEST / mdp.n_actions).all():  # then nothing below overflows
        raise VerificationError(
            "features: values are too large to be checked in float mode", is_open=True
        )

    def part(begin: int, end: int) -> None:
        residual_kernel(
            begin,
            end,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            mdp.rewards,
            offsets,
            values,
            shift,
            widest,
            base,
            base_shift,
            signs,
            *cut,
            is_mean,
            claims.gamma,
            low,
            high,
        )

    map_chunks(part, mdp.n_states, threads=threads, chunk=CHUNK)
    # The largest residual lies between the largest ends, the smallest between the smallest.
    least = Fraction(float(low.max())) - Fraction(float(high.min()))
    most = Fraction(float(high.max())) - Fraction(float(low.min()))
    off = 2 * Fraction(rounding)
    return least - off, most + off


def _open_correction(
    name: str,
    spread: tuple[Fraction, Fraction],
    extra: tuple[Fraction, Fraction],
    have: Fraction,
    stored: float,
    room: Fraction,
) -> Fraction:
    """How far a correction is open, if at all; `have` is what the span may be by it."""
    least, most = (span + more for span, more in zip(spread, extra, strict=True))
    if least > have:
        raise wrong_correction(name, stored, least - have)
    missing = most - have
    if missing > max(room, Fraction(0)):
        raise VerificationError(
            f"correction of {name} is {stored!r}, which could not be confirmed: rounding leaves "
            f"{below_float(missing):.3g} open, and explains {below_float(room):.2g} at most",
            is_open=True,
        )
    return max(missing, Fraction(0))


def wrong_correction(name: str, stored: float, missing: Fraction) -> VerificationError:
    """A function that is farther from being admissible than claimed."""
    return VerificationError(
        f"correction of {name} is {stored!r}, too small for its values: their residual has a span "
        f"that is larger by {below_float(missing):.3g} than this allows"
    )


# -- rounding ----------------------------------------------------------------------------------


def below_float(value: Fraction) -> float:
    """The largest float that is not above `value`."""
    try:
        number = float(value)
    except OverflowError:
        return math.nextafter(math.inf, 0.0) if value > 0 else -math.inf
    return number if Fraction(number) <= value else math.nextafter(number, -math.inf)


def above_float(value: Fraction) -> float:
    """The smallest float that is not below `value`."""
    return 0.0 - below_float(-value)
