"""Single linkage over all pairs of states, without visiting all pairs.

States fall into cells: sets of states that no block level tells apart. Below, two cells are at
least as far apart as their blocks at any level, their reward intervals, and the boxes that they
occupy in feature space; above, every entry of a level links whole blocks. A pair of states is
looked at by itself only where it is covered.

Both forests err on the safe side. The upper one has no link that is not proven. The lower one
takes all uncovered pairs of two cells for as close as any of them may be: it may link too much,
never too little. So its clusterings are coarser than the exact ones, which are coarser than
those of the upper arm; where both are equal, both are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.deadline import look
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._bounds.blocks import BlockLevel
from bisim_abstract._bounds.boxes import Boxes
from bisim_abstract._bounds.ground import Ground
from bisim_abstract._bounds.pair_table import PairTable
from bisim_abstract._linkage.forests import Forest, spanning_forest

SINGLE_LIMIT = 1_000  # up to so many states, every one is a cell
CELL_LIMIT = 20_000  # beyond, cells are too many to compare each with each
OPEN_LIMIT = 10_000_000  # single pairs that are looked at between cells
AT_ONCE = 100_000_000  # comparisons of two intervals between two looks at the time
FEW_CELLS = 200  # up to so many are compared without compiled code


@dataclass(frozen=True, eq=False)
class Cells:
    """Sets of states that are compared as a whole.

    Attributes:
        labels: (n_states) the cell of each state, numbered by first appearance.
        first: (n_cells) one state of each.
        sizes: (n_cells) number of states.
    """

    labels: IntArray
    first: IntArray
    sizes: IntArray

    @classmethod
    def of(cls, labels: IntArray) -> Cells:
        """The cells of a partition."""
        labels = numbered(labels)
        first = np.unique(labels, return_index=True)[1]
        return cls(labels, first.astype(np.int64), np.bincount(labels))


def find_cells(n_states: int, ground: Ground) -> Cells:
    """States that no level tells apart; single ones where these are few."""
    if n_states <= SINGLE_LIMIT or (not ground.levels and n_states <= CELL_LIMIT):
        return Cells.of(np.arange(n_states))
    return Cells.of(common_refinement(n_states, ground.levels))


def common_refinement(n_states: int, levels: tuple[BlockLevel, ...]) -> IntArray:
    """(n_states) blocks of all levels together, as far as these are not too many."""
    labels = np.zeros(n_states, np.int64)
    for level in levels:
        both = labels * level.model.n_blocks + level.model.labels
        finer = np.unique(both, return_inverse=True)[1]
        if finer.max() < CELL_LIMIT:
            labels = finer
    return labels


def link_forests(scope: str, ground: Ground, covered: PairTable) -> tuple[Forest, Forest]:
    """Spanning forests of both arms: their single linkage at every threshold.

    Args:
        scope: "all" links all pairs of states, "covered" those of the table alone.
        ground: What pairs read that are not in the table.
        covered: Pairs of states with their bounds.
    """
    n, keys = covered.n, covered.keys
    if ground.action_values is not None:
        return ground.action_values.forests(ground.starts.sets, ground.starts.diameter)
    if scope == "all":
        return (
            lower_forest(n, ground, keys, covered.lower),
            upper_forest(n, ground, keys, covered.upper),
        )
    first, second = covered.pairs()
    return (
        spanning_forest(n, first, second, covered.lower),
        spanning_forest(n, first, second, covered.upper),
    )


def upper_forest(
    n_states: int,
    ground: Ground,
    keys: IntArray,
    upper: FloatArray,
    without: int | None = None,
) -> Forest:
    """The minimum spanning forest of proven links: covered pairs, entries of levels, and D.

    Reward start values link nothing here: below D they would have to be looked at one by one.
    A state `without` which it should be has no links, and none runs through it.
    """
    first, second = np.divmod(keys, n_states)
    states = np.arange(n_states)
    is_used = np.ones(n_states, bool)
    if without is not None:
        is_used[without] = False
    # No pair is farther apart than D.
    edges = [(first, second, upper), _chain(states[is_used], ground.starts.diameter)]
    for level in ground.levels:
        model = level.model
        one, two = np.divmod(level.keys, model.n_blocks)
        # All members of both blocks are linked: those of C with each other through C' if need be.
        nearest = np.full(model.n_blocks, np.inf)
        np.minimum.at(nearest, one, level.upper)
        np.minimum.at(nearest, two, level.upper)
        edges.append(_chains(model.labels, nearest, states[is_used]))
        # One member of each block; of one that has no other, the state to be left out.
        some = np.full(model.n_blocks, 0 if without is None else without, np.int64)
        some[model.labels[is_used]] = states[is_used]
        differ = one != two
        edges.append((some[one[differ]], some[two[differ]], level.upper[differ]))
    if without is not None:
        edges = [_untouched(edge, without) for edge in edges]
    return _forest(n_states, edges)


def _untouched(
    edge: tuple[IntArray, IntArray, FloatArray], state: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """Links that do not end at a state."""
    first, second, weights = edge
    use = (first != state) & (second != state)
    return first[use], second[use], weights[use]


def lower_forest(
    n_states: int, ground: Ground, keys: IntArray, lower: FloatArray, boxes: Boxes | None = None
) -> Forest:
    """A minimum spanning forest of lower bounds that links at least what all pairs link.

    Args:
        n_states: Number of states.
        ground: What pairs read that are not covered.
        keys: Covered pairs.
        lower: Their bounds.
        boxes: Where states are blocks, and nothing but their rewards and covered pairs is in
            `ground`: boxes of these blocks to read instead, which may have features.
    """
    cells = find_cells(n_states, ground) if boxes is None else Cells.of(np.arange(n_states))
    boxes = Boxes.of(ground.starts, ground.features, cells.labels) if boxes is None else boxes
    first, second = np.divmod(keys, n_states)
    count = cells.first.size
    touched, least, is_used = _uncovered(n_states, ground, cells, keys)
    one, two = np.divmod(touched, count)
    inside = one == two
    known = Neighbours(one[~inside], two[~inside], least[~inside], count)
    tree = _tree(ground.levels, cells, boxes, known)
    # What nobody looked at inside a cell may be at distance 0.
    nearest = np.where(cells.sizes > 1, 0.0, np.inf)
    nearest[one[inside]] = least[inside]
    # The link to the nearest other cell is in the tree, at its own weight.
    for ends in tree[:2]:
        np.minimum.at(nearest, ends, tree[2])
    edges = [
        (cells.first[tree[0]], cells.first[tree[1]], tree[2]),
        _chains(cells.labels, nearest, np.arange(n_states)),
        (first[is_used], second[is_used], lower[is_used]),
    ]
    return _forest(n_states, edges)


def closest_cells(ground: Ground, cells: Cells) -> float:
    """The least lower bound of two cells; infinite for a single one."""
    boxes = Boxes.of(ground.starts, ground.features, cells.labels)
    none = np.empty(0, np.int64)
    known = Neighbours(none, none, np.empty(0), cells.first.size)
    return float(_tree(ground.levels, cells, boxes, known)[2].min(initial=np.inf))


def _uncovered(
    n_states: int, ground: Ground, cells: Cells, keys: IntArray
) -> tuple[IntArray, FloatArray, BoolArray]:
    """Cell pairs with covered pairs between them, and how close the others are at least.

    Returns:
        Keys of these cell pairs; for each the smallest lower bound of an uncovered pair
        (infinity if all are covered); and which covered pairs lie between them.
    """
    count = cells.first.size
    first, second = np.divmod(keys, n_states)
    one, two = cells.labels[first], cells.labels[second]
    cell_keys = np.minimum(one, two) * count + np.maximum(one, two)
    touched, inverse, covered = np.unique(cell_keys, return_inverse=True, return_counts=True)
    a, b = np.divmod(touched, count)
    sizes = cells.sizes
    total = np.where(a == b, sizes[a] * (sizes[a] - 1) // 2, sizes[a] * sizes[b])
    least = np.full(touched.size, np.inf)
    is_known = covered == total
    order = np.argsort(cells.labels, kind="stable")
    begins = np.concatenate([[0], np.cumsum(sizes)])
    by_cell = keys[np.argsort(inverse, kind="stable")]
    ends = np.cumsum(covered)
    left = OPEN_LIMIT
    for k in np.flatnonzero(~is_known)[np.argsort(total[~is_known])].tolist():
        look()
        left -= int(total[k])
        if left < 0:
            break
        s = order[begins[a[k]] : begins[a[k] + 1]]
        t = order[begins[b[k]] : begins[b[k] + 1]]
        x, y = (z.ravel() for z in np.meshgrid(s, t, indexing="ij"))
        if a[k] == b[k]:
            x, y = x[x < y], y[x < y]
        is_new = ~np.isin(
            np.minimum(x, y) * n_states + np.maximum(x, y), by_cell[ends[k] - covered[k] : ends[k]]
        )
        least[k] = ground.read(x[is_new], y[is_new])[0].min(initial=np.inf)
        is_known[k] = True
    return touched[is_known], least[is_known], is_known[inverse]


def row_reader(n_states: int, ground: Ground, cells: Cells) -> Callable[[int], FloatArray]:
    """A function from a cell to lower bounds on its distance from all cells."""
    return _rows(ground.levels, cells, Boxes.of(ground.starts, ground.features, cells.labels))


def _rows(
    levels: tuple[BlockLevel, ...], cells: Cells, boxes: Boxes
) -> Callable[[int], FloatArray]:
    blocks = [level.model.labels[cells.first] for level in levels]

    def read(cell: int) -> FloatArray:
        values = boxes.row(cell)
        for level, block in zip(levels, blocks, strict=True):
            below, _ = level.entries(np.full(block.size, block[cell]), block)
            np.maximum(values, below, out=values)
        return values

    return read


def _tree(
    levels: tuple[BlockLevel, ...], cells: Cells, boxes: Boxes, known: Neighbours
) -> tuple[IntArray, IntArray, FloatArray]:
    """A minimum spanning tree of cells: known distances, or what boxes and levels say."""
    make = _small_tree if cells.first.size <= FEW_CELLS else compiled_tree
    return make(levels, cells, boxes, known)


def compiled_tree(
    levels: tuple[BlockLevel, ...], cells: Cells, boxes: Boxes, known: Neighbours
) -> tuple[IntArray, IntArray, FloatArray]:
    """The same for any number of cells, of which no row is stored."""
    from bisim_abstract._kernels.cells import tree_kernel

    count, total = cells.first.size, 0
    blocks, ends, values = [], [], []
    for level in levels:
        model = level.model
        blocks.append(model.labels[cells.first] + total)
        ends.append(np.stack(np.divmod(level.keys, model.n_blocks)) + total)
        values.append(level.lower)
        total += model.n_blocks
    one, two = np.concatenate(ends, axis=1) if ends else np.empty((2, 0), np.int64)
    lines = Neighbours(one, two, np.concatenate(values) if values else np.empty(0), total)
    parent, weights = np.zeros(count, np.int64), np.empty(count)
    best, is_out = np.full(count, np.inf), np.ones(count, bool)
    own, numbers = boxes.for_kernels(), np.array(blocks, np.int64).reshape(len(blocks), count)
    given = (*own, numbers, *lines.arrays(), *known.arrays())
    columns = len(levels) + own[0].shape[0] + own[2].shape[0]
    steps = 1 + AT_ONCE // (count * (columns + 1))
    node = 0
    while node >= 0:
        look()
        node = tree_kernel(*given, node, steps, best, is_out, parent, weights)
    nodes = np.flatnonzero(np.isfinite(weights))
    return nodes, parent[nodes], weights[nodes]


def _small_tree(
    levels: tuple[BlockLevel, ...], cells: Cells, boxes: Boxes, known: Neighbours
) -> tuple[IntArray, IntArray, FloatArray]:
    """The same for few cells, row by row."""
    read = _rows(levels, cells, boxes)

    def row(cell: int) -> FloatArray:
        values = read(cell)
        others, distances = known.of(cell)
        values[others] = distances
        return values

    return _prim(cells.first.size, row)


def _prim(count: int, row: Callable[[int], FloatArray]) -> tuple[IntArray, IntArray, FloatArray]:
    """A minimum spanning tree of a complete graph whose rows are computed when needed."""
    best, parent = np.full(count, np.inf), np.zeros(count, np.int64)
    is_out = np.ones(count, bool)
    weights = np.full(count, np.inf)
    node = 0
    for _ in range(count):
        is_out[node] = False
        weights[node] = best[node]
        values = row(node)
        is_nearer = is_out & (values < best)
        best[is_nearer] = values[is_nearer]
        parent[is_nearer] = node
        node = int(np.argmin(np.where(is_out, best, np.inf)))
        if not is_out[node]:  # nothing finite is left: go on with any node
            node = int(np.argmax(is_out))
    nodes = np.flatnonzero(np.isfinite(weights))
    return nodes, parent[nodes], weights[nodes]


class Neighbours:
    """Known distances between nodes, by node."""

    def __init__(self, a: IntArray, b: IntArray, values: FloatArray, count: int) -> None:
        ends = np.concatenate([a, b])
        order = np.argsort(ends, kind="stable")
        self._others = np.concatenate([b, a])[order]
        self._values = np.concatenate([values, values])[order]
        self._starts = np.searchsorted(ends[order], np.arange(count + 1))

    def of(self, node: int) -> tuple[IntArray, FloatArray]:
        """The other nodes, and how far they are."""
        span = slice(self._starts[node], self._starts[node + 1])
        return self._others[span], self._values[span]

    def arrays(self) -> tuple[IntArray, IntArray, FloatArray]:
        """For each node from where on its others and their distances are, and these."""
        return self._starts, self._others, self._values


def _chain(states: IntArray, weight: float) -> tuple[IntArray, IntArray, FloatArray]:
    return states[:-1], states[1:], np.full(max(states.size - 1, 0), weight)


def _chains(
    labels: IntArray, weights: FloatArray, states: IntArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Edges that link some states to the others of their block at the block's weight."""
    order = states[np.argsort(labels[states], kind="stable")]
    one, two = order[:-1], order[1:]
    use = (labels[one] == labels[two]) & np.isfinite(weights[labels[one]])
    return one[use], two[use], weights[labels[one[use]]]


def _forest(n_states: int, edges: list[tuple[IntArray, IntArray, FloatArray]]) -> Forest:
    first, second, weights = (
        np.concatenate([np.asarray(edge[k]) for edge in edges]) for k in range(3)
    )
    return spanning_forest(n_states, first, second, weights)


@dataclass(frozen=True)
class Undecided:
    """What two clusterings leave open at a threshold.

    Attributes:
        clusters: Number of clusters of the upper arm that the lower arm cannot keep apart.
        groups: Number of clusters of the lower arm that these lie in.
        pairs: Number of pairs of states that may or may not be linked: those in one of these
            groups but in different clusters.
        example: Two states of one such pair.
    """

    clusters: int
    groups: int
    pairs: int
    example: tuple[int, int]


def undecided(labels_lower: IntArray, labels_upper: IntArray) -> Undecided | None:
    """What is open between two clusterings, the second refining the first; None if nothing."""
    # Cells, not clusters: labels from a file that nobody has verified yet need not refine.
    width = int(labels_upper.max()) + 1
    cells, inner = np.unique(labels_lower * width + labels_upper, return_counts=True)
    group_of = cells // width
    parts = np.bincount(group_of)
    is_split = parts > 1
    if not is_split.any():
        return None
    sizes = np.bincount(labels_lower)
    crossing = sum(math.comb(int(k), 2) for k in sizes[is_split])
    crossing -= sum(math.comb(int(k), 2) for k in inner[is_split[group_of]])
    group = int(np.argmax(np.where(is_split, sizes, 0)))
    members = np.flatnonzero(labels_lower == group)
    other = members[labels_upper[members] != labels_upper[members[0]]][0]
    return Undecided(
        clusters=int(parts[is_split].sum()),
        groups=int(is_split.sum()),
        pairs=crossing,
        example=(int(members[0]), int(other)),
    )
