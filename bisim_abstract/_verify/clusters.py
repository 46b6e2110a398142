"""Whether claimed clusters follow from the bounds, over covered pairs or over all pairs.

Bounds are first moved outward by the widening w: a link is proved by upper <= τ - w and
excluded by lower > τ + w.

Over all pairs, a clustering of the upper arm is right if the states of each cluster hang
together by proved links, and one of the lower arm if no link between two of its clusters is
possible. The exact clustering then lies between the two, and is both of them if they are equal.
Neither is decided by looking at all pairs: an entry of two blocks links all their members, and
links are excluded between whole cells of states first, then pair by pair where that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import numpy as np

from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._verify.exact import ExactTable
from bisim_abstract._verify.floats import Reader, below_float
from bisim_abstract._verify.read import Claims, Table
from bisim_abstract.errors import VerificationError

CELL_LIMIT = 20_000  # cells of states that are compared with one another
PAIR_LIMIT = 50_000_000  # single pairs that are looked at between cells that stay open
EXACT_LIMIT = 10_000  # of these, pairs so close to the threshold that fractions must decide
BATCH, GROUP = 2**18, 16  # pairs that are looked at at once, and how often before a verdict


def check_clusters(
    claims: Claims,
    widening: Fraction,
    remark: str,
    reader: Reader,
    exact: ExactTable,
    threads: int,
) -> None:
    """Clusters at tau of the arms, moved outward by `widening`, must be the claimed ones.

    lower - w <= tau means lower <= tau + w: comparing with the largest float below that limit
    is exact.
    """
    if claims.tau is None:
        return
    tau = Fraction(claims.tau)
    below, above = below_float(tau + widening), below_float(tau - widening)
    if claims.scope == "covered":
        states = claims.states
        for name, values, labels, limit in (
            ("lower", states.lower, claims.labels_lower, below),
            ("upper", states.upper, claims.labels_upper, above),
        ):
            found = _numbered(_components(claims.n_states, *_links(states, values <= limit)))
            bad = np.flatnonzero(found != labels)
            if bad.size:
                state = int(bad[0])
                raise VerificationError(
                    f"labels_{name} gives state {state} the cluster {int(labels[state])}, but the "
                    f"links {name} <= tau = {claims.tau!r} give {int(found[state])}{remark}"
                )
        return
    check_numbering("labels_lower", claims.labels_lower)
    check_numbering("labels_upper", claims.labels_upper)
    check_within(
        claims.labels_upper,
        claims.labels_lower,
        "labels_upper puts states {} and {} together, which labels_lower keeps apart",
    )
    if not tau - widening >= exact.limit:  # else all states are linked
        check_within(
            claims.labels_upper,
            _upper_components(claims, above),
            "labels_upper puts states {} and {} together, which no chain of upper bounds <= tau "
            f"= {claims.tau!r} links{remark}",
        )
    _check_apart(claims, tau + widening, below, remark, reader, exact, threads)


def check_numbering(name: str, labels: IntArray) -> None:
    """Clusters must be numbered by first appearance."""
    bad = np.flatnonzero(_numbered(labels) != labels)
    if bad.size:
        raise VerificationError(
            f"{name} must number clusters by first appearance, but gives state "
            f"{int(bad[0])} the cluster {int(labels[bad[0]])}"
        )


def check_within(fine: IntArray, coarse: IntArray, text: str) -> None:
    """Every cluster of the first labels must lie within one of the second."""
    _, first, inverse = np.unique(fine, return_index=True, return_inverse=True)
    bad = np.flatnonzero(coarse != coarse[first[inverse]])
    if bad.size:
        state = int(bad[0])
        raise VerificationError(text.format(int(first[inverse[state]]), state))


def _links(table: Table, is_link: BoolArray) -> tuple[IntArray, IntArray]:
    first, second = np.divmod(table.keys[is_link], table.n)
    return first, second


def _upper_components(claims: Claims, limit: float) -> IntArray:
    """Components of the links upper <= limit of all entries; blocks are nodes of their own."""
    first, second = _links(claims.states, claims.states.upper <= limit)
    ends = [(first, second)]
    nodes = claims.n_states
    for level in claims.levels:
        one, two = _links(level, level.upper <= limit)
        # Every member of one block is linked with every member of the other: all of both are.
        is_linked = np.zeros(level.n, bool)
        is_linked[one] = is_linked[two] = True
        members = np.flatnonzero(is_linked[level.labels])
        ends += [(one + nodes, two + nodes), (members, level.labels[members] + nodes)]
        nodes += level.n
    a, b = (np.concatenate([end[k] for end in ends]) for k in range(2))
    return _components(nodes, a, b)[: claims.n_states]


def _components(count: int, first: IntArray, second: IntArray) -> IntArray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(first.size, np.int8), (first, second)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    return np.asarray(labels, np.int64)


def _numbered(labels: IntArray) -> IntArray:
    """The same partition, numbered by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return np.asarray(rank[inverse], np.int64)


# -- the lower arm over all pairs --------------------------------------------------------------


def _check_apart(
    claims: Claims,
    limit: Fraction,
    limit_float: float,
    remark: str,
    reader: Reader,
    exact: ExactTable,
    threads: int,
) -> None:
    """No two states of different claimed clusters may have a lower bound <= limit."""
    clusters = claims.labels_lower
    if claims.n_states == 1 or clusters.max() == 0:
        return
    cells, used = _find_cells(claims, limit_float)
    count = int(cells.max()) + 1
    if count > CELL_LIMIT:
        raise VerificationError(
            f"labels_lower could not be confirmed: {count:,} clusters are more than the "
            f"{CELL_LIMIT:,} that are compared with one another"
        )
    order = np.argsort(cells, kind="stable")
    sizes = np.bincount(cells, minlength=count)
    begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    one, two = _open_cells(claims, cells, used, limit_float, order, begins)
    total = int((sizes[one] * sizes[two]).sum())
    if total > PAIR_LIMIT:
        raise VerificationError(
            f"labels_lower could not be confirmed: {total:,} pairs of states lie in groups that "
            f"blocks and features do not keep apart, more than the {PAIR_LIMIT:,} that are "
            f"looked at one by one{remark}"
        )
    doubtful = _doubtful_pairs(reader, one, two, order, begins, limit_float, threads)
    for seen, (s, t) in enumerate(doubtful):
        if seen == EXACT_LIMIT:
            raise VerificationError(
                f"labels_lower could not be confirmed: more than {EXACT_LIMIT:,} pairs of "
                f"states are too close to tau = {claims.tau!r}{remark}"
            )
        bound = exact.cost(s, t)[0]
        if bound <= limit:
            raise VerificationError(
                f"labels_lower keeps states {s} and {t} apart, but their lower bound is "
                f"{below_float(bound)!r}, not above tau = {claims.tau!r}{remark}"
            )


def _keeps_sets_apart(claims: Claims, limit: float) -> bool:
    """Whether states with different actions are."""
    return claims.states.apart is not None and claims.states.apart > limit


def _find_cells(claims: Claims, limit: float) -> tuple[IntArray, list[Table]]:
    """States that neither claimed clusters nor levels tell apart, and the levels that count.

    A level that would make too many cells is left for single pairs, and so are action sets.
    """
    cells = claims.labels_lower
    used: list[Table] = []
    if _keeps_sets_apart(claims, limit):
        sets = claims.states.sets
        finer = np.unique(cells * (sets.max() + 1) + sets, return_inverse=True)[1]
        if finer.max() < CELL_LIMIT:
            cells = finer.reshape(-1).astype(np.int64)
    for level in claims.levels:
        keys = cells * level.n + level.labels
        finer = np.unique(keys, return_inverse=True)[1]
        if finer.max() < CELL_LIMIT:
            cells, used = finer.astype(np.int64), [*used, level]
    return cells, used


def _open_cells(
    claims: Claims,
    cells: IntArray,
    used: list[Table],
    limit: float,
    order: IntArray,
    begins: IntArray,
) -> tuple[IntArray, IntArray]:
    """Pairs of cells in different clusters that are not kept apart as a whole."""
    count = begins.size - 1
    cut = begins[:-1]
    some = order[cut]
    cluster = claims.labels_lower[some]
    states = claims.states
    ends = states.relation.reward_ends(states.low, states.high)
    low = np.minimum.reduceat(ends[0][order], cut)
    high = np.maximum.reduceat(ends[1][order], cut)
    boxes: list[tuple[FloatArray, FloatArray, float]] = []
    for a in range(low.shape[1]):
        boxes.append((low[:, a].copy(), high[:, a].copy(), 0.0))
    if claims.features is not None:
        points, corrections = claims.features.functions()
        for f in range(corrections.size):
            line = points[order, f]
            boxes.append(
                (
                    np.minimum.reduceat(line, cut),
                    np.maximum.reduceat(line, cut),
                    float(corrections[f]),
                )
            )
    tables = [(level.labels[some], _neighbours(level)) for level in used]
    # Cells of one action set, if that keeps them apart from others.
    sets, is_pure = states.sets[some], np.zeros(count, bool)
    if _keeps_sets_apart(claims, limit):
        is_pure = np.minimum.reduceat(states.sets[order], cut) == np.maximum.reduceat(
            states.sets[order], cut
        )
    found: list[tuple[IntArray, IntArray]] = []
    for cell in range(count - 1):
        is_other = cluster[cell + 1 :] != cluster[cell]
        if is_pure[cell]:
            is_other &= ~is_pure[cell + 1 :] | (sets[cell + 1 :] == sets[cell])
        rest = cell + 1 + np.flatnonzero(is_other)
        for blocks, line_of in tables:
            if rest.size:
                line = line_of(int(blocks[cell]))
                rest = rest[line[blocks[rest]] <= limit]
        for least, most, correction in boxes:
            if not rest.size:
                break
            gap = np.maximum(least[rest] - most[cell], least[cell] - most[rest])
            # A difference is off by EPS of itself, the rest by EPS of both: rounded down.
            gap = gap - correction - 4.0 * EPS * (np.abs(gap) + correction)
            rest = rest[~(gap > limit)]
        if rest.size:
            found.append((np.full(rest.size, cell), rest))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def _neighbours(level: Table) -> Callable[[int], FloatArray]:
    """A function from a block to the lower entries of all blocks with it, 0 where none is."""
    first, second = np.divmod(level.keys, level.n)
    ends = np.concatenate([first, second])
    others = np.concatenate([second, first])
    values = np.concatenate([level.lower, level.lower])
    order = np.argsort(ends, kind="stable")
    starts = np.searchsorted(ends[order], np.arange(level.n + 1))
    others, values = others[order], values[order]

    def line(block: int) -> FloatArray:
        part = slice(int(starts[block]), int(starts[block + 1]))
        out = np.zeros(level.n)
        out[others[part]] = values[part]
        return out

    return line


def _doubtful_pairs(
    reader: Reader,
    one: IntArray,
    two: IntArray,
    order: IntArray,
    begins: IntArray,
    limit: float,
    threads: int,
) -> Iterator[tuple[int, int]]:
    """Pairs of states s < t between pairs of cells that floats do not show to be apart."""
    sizes = np.diff(begins)
    products = sizes[one] * sizes[two]
    ends = np.cumsum(products)
    total = int(ends[-1]) if ends.size else 0

    def part(base: int, begin: int, end: int) -> IntArray:
        number = np.arange(base + begin, base + end)
        k = np.searchsorted(ends, number, side="right")
        row, column = np.divmod(number - (ends[k] - products[k]), sizes[two[k]])
        s, t = order[begins[one[k]] + row], order[begins[two[k]] + column]
        below = reader.read(s, t, is_safe=True)[0]
        open_ = np.flatnonzero(~(below > limit))[: EXACT_LIMIT + 1]  # NaN says nothing
        return np.stack([np.minimum(s[open_], t[open_]), np.maximum(s[open_], t[open_])], axis=1)

    # A few batches at a time: the first pair that is not apart ends the check.
    for begin in range(0, total, GROUP * BATCH):
        count = min(GROUP * BATCH, total - begin)
        found = map_chunks(partial(part, begin), count, threads=threads, chunk=BATCH)
        for pairs in found:
            yield from pairs.tolist()
