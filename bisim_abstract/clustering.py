"""Diameters of clusters, proven; and other ways to cluster, for comparison.

`cluster_diameters` bounds the diameter of every cluster from above. The `cluster_by_*`
functions give the single-linkage clustering of other distances at the same threshold; nothing
about them is certified.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bisim_abstract._linkage import joined, linked_pairs, linked_points
from bisim_abstract._memory import available_bytes, check_memory
from bisim_abstract._typing import BoolArray, FloatArray, IntArray
from bisim_abstract._validation import check_choice, check_int, check_memory_limit, check_real
from bisim_abstract.certificate import Certificate
from bisim_abstract.embedding import Embedding, checked_points
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.mdp import TabularMDP, check_mdp
from bisim_abstract.metric import MetricBounds
from bisim_abstract.partition import Forest, numbered

__all__ = [
    "cluster_by_arm",
    "cluster_by_embedding",
    "cluster_by_metric",
    "cluster_by_rewards",
    "cluster_diameters",
]

EPS = 2.0**-53
PAIR_LIMIT = 500_000  # pairs of one cluster up to which all are read
TOTAL_LIMIT = 5_000_000  # pairs that are read in all
CELL_LIMIT = 1_000  # cells of one cluster up to which all pairs of them are
CHUNK = 2**20  # pairs that are held at once
# What a covered pair, a pair held at once and a state take at the peak, in bytes.
COVERED_BYTES, PAIR_BYTES, STATE_BYTES = 64, 96, 80
ARMS = ("lower", "upper")


def cluster_diameters(
    certificate: Certificate | MetricBounds,
    labels: npt.ArrayLike,
    *,
    pair_limit: int = PAIR_LIMIT,
    memory_limit: int | None = None,
) -> FloatArray:
    """(n_clusters) certified upper bounds on the diameters of clusters.

    The upper bounds of all pairs are read where a cluster is small. The pairs of a large one
    are read by cells, sets of states that no block level tells apart, with covered pairs where
    these are all that a pair of cells has; its links in the spanning forest of the upper arm
    give another bound, the longest path along them; and D bounds everything. The least counts.

    Single linkage chains: a diameter can exceed the threshold of the clustering.

    Args:
        certificate: A `Certificate`, or the `MetricBounds` of an exact metric.
        labels: (n_states) cluster of each state; any whole numbers. The result is in their
            rising order.
        pair_limit: Number of pairs up to which a cluster is small.
        memory_limit: Bytes that may be used; what is available by default.

    Raises:
        MemoryLimitError: If the covered pairs would not fit a second time.
    """
    given = np.asarray(labels)
    if given.shape != (certificate.n_states,) or given.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"labels must be one whole number per state ({certificate.n_states}), "
            f"got shape {given.shape} and dtype {given.dtype}"
        )
    pair_limit = check_int("pair_limit", pair_limit, low=0)
    memory_limit = check_memory_limit(memory_limit)
    cluster = np.unique(given, return_inverse=True)[1].astype(np.int64)
    groups = _members(cluster)
    sizes = np.array([group.size for group in groups])
    pairs = sizes * (sizes - 1) // 2
    if isinstance(certificate, MetricBounds):
        _check_room(certificate.n_states, 0, 8 * _held(sizes.max()), memory_limit)
        return np.array([_metric_diameter(certificate, group) for group in groups])
    small = sizes[pairs <= min(pair_limit, TOTAL_LIMIT)].max(initial=0)
    held = PAIR_BYTES * _held(small)
    _check_room(certificate.n_states, certificate.n_covered, held, memory_limit)
    result = np.zeros(len(groups))
    covered = _Covered(certificate, cluster, len(groups))
    for k, group in enumerate(groups):
        if group.size > 1:
            result[k] = _cell_diameter(certificate, group, *covered.of(k))
    left = TOTAL_LIMIT
    large = []
    for k in np.argsort(pairs, kind="stable").tolist():
        if result[k] == 0.0:
            continue
        if pairs[k] <= min(pair_limit, left):
            left -= int(pairs[k])
            result[k] = _pair_diameter(certificate, groups[k])
        else:
            large.append(k)
    if large:
        chains = _chain_lengths(certificate.forests[1], cluster, len(groups))
        result[large] = np.minimum(result[large], chains[large])
    return result


def cluster_by_metric(
    metric: MetricBounds, tau: float, *, arm: str = "upper", memory_limit: int | None = None
) -> IntArray:
    """(n_states) single linkage of the exact metric at a threshold.

    The work is quadratic in the number of bisimulation classes, as the metric's was; a bounded
    number of their pairs is held at once.

    Args:
        metric: The metric.
        tau: The threshold.
        arm: "upper" links what is proven to be within tau, "lower" what may be.
        memory_limit: Bytes that may be used; what is available by default.

    Raises:
        MemoryLimitError: If not even one row of these pairs would fit.
    """
    tau = check_real("tau", tau)
    check_choice("arm", arm, ARMS)
    table = metric.class_upper if arm == "upper" else metric.class_lower
    within = metric.within if arm == "upper" else 0.0
    count = metric.n_classes
    memory_limit = check_memory_limit(memory_limit)
    fixed = STATE_BYTES * metric.n_states
    check_memory(
        PAIR_BYTES * count + fixed,
        what=f"linking {count:,} classes of {metric.n_states:,} states",
        instead="use certify(mdp, gamma, tau=tau), which visits no more pairs than it needs",
        memory_limit=memory_limit,
    )
    # As many rows at once as there is room for.
    room = (available_bytes() if memory_limit is None else memory_limit) - fixed
    rows = max(1, min(CHUNK, room // PAIR_BYTES) // count)
    of_class = np.arange(count)
    # Members of a class are linked directly, or through any other class that is near enough.
    is_joined: BoolArray = np.full(count, within <= tau)
    for begin in range(0, count, rows):
        is_link = np.asarray(table[begin : begin + rows] <= tau)
        np.fill_diagonal(is_link[:, begin:], False)
        is_joined[begin : begin + rows] |= is_link.any(axis=1)
        first, second = np.nonzero(is_link)
        of_class = joined(of_class, first + begin, second)
    members = np.arange(metric.n_states) + count
    return numbered(np.where(is_joined[metric.labels], of_class[metric.labels], members))


def cluster_by_arm(certificate: Certificate, tau: float, *, arm: str = "lower") -> IntArray:
    """(n_states) single linkage of one arm of a certificate at a threshold.

    Args:
        certificate: The certificate.
        tau: The threshold.
        arm: "lower" or "upper". Where the two agree, the clustering is certified.
    """
    check_choice("arm", arm, ARMS)
    return certificate.partitions(check_real("tau", tau))[ARMS.index(arm)]


def cluster_by_rewards(mdp: TabularMDP, tau: float) -> IntArray:
    """(n_states) single linkage of d_R(s,t) = max_a |R(s,a) - R(t,a)| at a threshold.

    Args:
        mdp: The model.
        tau: The threshold.
    """
    check_mdp(mdp)
    return linked_points(mdp.rewards, check_real("tau", tau), np.inf)


def cluster_by_embedding(
    embedding: Embedding | npt.ArrayLike,
    n_states: int,
    tau: float,
    *,
    max_pairs: int = 50_000_000,
) -> IntArray:
    """(n_states) single linkage of a learned distance at a threshold.

    Points are compared by their Euclidean distance, through a tree. An object with a method
    `distance` of two index arrays is asked for every single pair: quadratic in the number of
    states, with a bounded number of pairs in memory at once.

    Args:
        embedding: An object with `encode`, or one row per state.
        n_states: Number of states.
        tau: The threshold.
        max_pairs: Pairs that a `distance` may be asked for.
    """
    n_states = check_int("n_states", n_states, low=1)
    tau = check_real("tau", tau)
    distance = getattr(embedding, "distance", None)
    if not callable(distance):
        return linked_points(checked_points(embedding, n_states), tau, 2.0)
    pairs = n_states * (n_states - 1) // 2
    if pairs > max_pairs:
        raise InvalidArgumentError(
            f"max_pairs = {max_pairs:,} does not allow the {pairs:,} pairs of {n_states:,} "
            "states; pass embedding.encode(...) for Euclidean distances, which need no pairs, "
            "or more max_pairs"
        )
    return linked_pairs(distance, n_states, tau)


# -- diameters ---------------------------------------------------------------------------------


def _members(cluster: IntArray) -> list[IntArray]:
    order = np.argsort(cluster, kind="stable")
    return np.split(order, np.cumsum(np.bincount(cluster))[:-1])


def _held(size: int) -> int:
    """Pairs of a cluster that are held at once."""
    return int(min(size * size, max(size, CHUNK)))


def _check_room(n_states: int, n_covered: int, held: int, memory_limit: int | None) -> None:
    """Refuse to read diameters where states, covered pairs and `held` bytes would not fit."""
    check_memory(
        COVERED_BYTES * n_covered + held + STATE_BYTES * n_states,
        what=f"reading diameters of {n_states:,} states with {n_covered:,} covered pairs",
        instead="choose a smaller pair_limit, or a certificate with fewer pairs (max_pairs)",
        memory_limit=memory_limit,
    )


def _metric_diameter(metric: MetricBounds, group: IntArray) -> float:
    classes, sizes = np.unique(metric.labels[group], return_counts=True)
    top, rows = 0.0, max(1, CHUNK // classes.size)
    for begin in range(0, classes.size, rows):
        part = metric.class_upper[np.ix_(classes[begin : begin + rows], classes)]
        top = max(top, float(part.max()))
    return max(top, metric.within) if (sizes > 1).any() else top


def _pair_diameter(certificate: Certificate, group: IntArray) -> float:
    """The largest upper bound of a pair, a few rows at a time."""
    top = 0.0
    rows = max(1, CHUNK // group.size)
    for begin in range(0, group.size, rows):
        part = group[begin : begin + rows]
        _, upper = certificate.bounds(part[:, None], group[begin:])
        top = max(top, float(upper.max()))
    return top


class _Covered:
    """Covered pairs that lie within clusters, by cluster."""

    def __init__(self, certificate: Certificate, cluster: IntArray, count: int) -> None:
        first, second = np.divmod(certificate.keys, certificate.n_states)
        inside = np.flatnonzero(cluster[first] == cluster[second])
        order = inside[np.argsort(cluster[first[inside]], kind="stable")]
        self._first, self._second = first[order], second[order]
        self._upper = certificate.upper[order]
        self._begins = np.searchsorted(cluster[self._first], np.arange(count + 1))

    def of(self, cluster: int) -> tuple[IntArray, IntArray, FloatArray]:
        """Both states and the upper bound of each covered pair of a cluster."""
        span = slice(self._begins[cluster], self._begins[cluster + 1])
        return self._first[span], self._second[span], self._upper[span]


def _cell_diameter(
    certificate: Certificate,
    group: IntArray,
    first: IntArray,
    second: IntArray,
    covered: FloatArray,
) -> float:
    """The largest upper bound of a pair of cells: states of a group that no level tells apart.

    A pair of cells is as far apart as blocks of any level, or as start values over the reward
    intervals of the group, allow; or as its covered pairs, if there are no others.
    """
    limit = _start_diameter(certificate, group)
    place, used = np.zeros(group.size, np.int64), []
    for level in certificate.levels:
        both = place * level.model.n_blocks + level.model.labels[group]
        finer = np.unique(both, return_inverse=True)[1]
        if finer.max() < CELL_LIMIT:  # else it is left out, here and below
            place = finer
            used.append(level)
    sizes = np.bincount(place)
    count = sizes.size
    some = group[np.unique(place, return_index=True)[1]]
    one, two = np.triu_indices(count)
    upper = np.full(one.size, limit)
    for level in used:
        blocks = level.model.labels[some]
        np.minimum(upper, level.entries(blocks[one], blocks[two])[1], out=upper)
    total = np.where(one == two, sizes[one] * (sizes[one] - 1) // 2, sizes[one] * sizes[two])
    upper[total == 0] = 0.0  # a single state
    if covered.size:
        # `group` rises, so that a state is found in it by bisection.
        a = place[np.searchsorted(group, first)]
        b = place[np.searchsorted(group, second)]
        a, b = np.minimum(a, b), np.maximum(a, b)
        at = a * count - a * (a - 1) // 2 + b - a  # as triu_indices numbers them
        widest = np.zeros(one.size)
        np.maximum.at(widest, at, covered)
        is_full = np.bincount(at, minlength=one.size) == total
        upper[is_full] = np.minimum(upper[is_full], widest[is_full])
    return float(upper.max())


def _start_diameter(certificate: Certificate, group: IntArray) -> float:
    """What the start values of the upper arm allow for any pair of the group."""
    starts = certificate.ground.starts
    if starts.upper == "constant":
        return starts.diameter
    span = float((starts.high[group].max(axis=0) - starts.low[group].min(axis=0)).max())
    # A few roundings, as in `Starts.read`.
    return (span + starts.gamma * starts.diameter) * (1.0 + 8.0 * EPS) + 1e-315


def _chain_lengths(forest: Forest, cluster: IntArray, count: int) -> FloatArray:
    """(count) longest paths along the forest's edges within each cluster; infinity if it breaks.

    The metric satisfies the triangle inequality, so a path is at least as long as its ends are
    apart. Sums are rounded up.
    """
    inside = cluster[forest.first] == cluster[forest.second]
    first, second, weights = forest.first[inside], forest.second[inside], forest.weights[inside]
    sizes = np.bincount(cluster, minlength=count)
    edges = np.bincount(cluster[first], minlength=count)
    lengths = np.full(count, np.inf)
    lengths[sizes == 1] = 0.0
    neighbours = _adjacency(cluster.size, first, second, weights)
    for k in np.flatnonzero((edges == sizes - 1) & (sizes > 1)).tolist():
        root = int(first[np.argmax(cluster[first] == k)])
        far, _ = _farthest(neighbours, root)
        lengths[k] = _farthest(neighbours, far)[1] * (1.0 + 2.0 * sizes[k] * EPS)
    return lengths


def _adjacency(
    n: int, first: IntArray, second: IntArray, weights: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    ends = np.concatenate([first, second])
    order = np.argsort(ends, kind="stable")
    indptr = np.searchsorted(ends[order], np.arange(n + 1))
    others = np.concatenate([second, first])[order]
    return indptr, others, np.concatenate([weights, weights])[order]


def _farthest(neighbours: tuple[IntArray, IntArray, FloatArray], root: int) -> tuple[int, float]:
    """The node of a tree that is farthest from one of its nodes, and how far it is."""
    indptr, others, weights = neighbours
    best, top = root, 0.0
    stack = [(root, -1, 0.0)]
    while stack:
        node, parent, length = stack.pop()
        if length > top:
            best, top = node, length
        for at in range(int(indptr[node]), int(indptr[node + 1])):
            if others[at] != parent:
                stack.append((int(others[at]), node, length + float(weights[at])))
    return best, top
