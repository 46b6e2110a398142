"""Where blocks come from: partitions of the states that are worth trying, none of them trusted.

- `propose_classes`: bisimulation classes, up to rounding.
- `propose_components`: states that hang together in an embedding (of a trained encoder, of value
  features, of anything) at a scale where its distances show a gap.
- `split_labels`: cuts blocks that a clear gap runs through.
- `repair_labels`: moves states that fit another block better; a single wrong label spoils the
  bounds of its whole block.

A bad proposal widens the arms; it cannot make them wrong.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import as_generator, check_int
from bisim_abstract._base.labels import as_labels, numbered
from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import FloatArray, IntArray, SeedLike
from bisim_abstract._exact.classes import bisimulation_classes
from bisim_abstract._linkage.forests import Forest, spanning_forest
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import Embedding, as_points, scaled_points
from bisim_abstract._propose.faiss_index import Points
from bisim_abstract._propose.retrieval import nearest_points, retrieve_pairs
from bisim_abstract._relations.apart import reward_span
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["propose_classes", "propose_components", "repair_labels", "split_labels"]

DIGITS = 12  # of signatures: far above rounding errors, far below what anyone means
SAMPLE = 8_000  # states whose neighbours are looked up at first
GROWTH = 8  # how many times as many, where there is no clear gap between these
MEMBERS = 6  # of a group, on average, that a sample must have to tell how many groups there are
CLEAR_GAP = 1.5  # ratio of two scales that is taken for a gap
FLAT_LIMIT = 8_000  # points up to which an exact index is fast enough
CELL_LIMIT = 100_000  # points up to which an index of cells is; beyond, graphs are
CELL_SIZE = 250  # points per cell of an index
SPLIT_SIZE = 4  # no part of a split block is smaller
DENSE_LIMIT = 2_000  # components that are compared each with each
MOST_COMPARED = 20_000_000_000  # states with means, where the sample missed groups
CANDIDATES = 16  # blocks that a state is compared with
STAYS = 0.9  # a state moves only to a block that it fits better by this factor


def propose_classes(
    mdp: TabularMDP, *, relation: str = "plain", resources: Resources = HERE
) -> IntArray:
    """Bisimulation classes, with signatures rounded to twelve digits.

    Args:
        mdp: The model.
        relation: Which actions are compared.
        resources: Threads; all cores by default.

    Returns:
        (n_states) labels.
    """
    check_resources(resources)
    return bisimulation_classes(mdp, relation=relation, digits=DIGITS, resources=resources).labels


def propose_components(
    embedding: Embedding | npt.ArrayLike,
    n_states: int,
    *,
    n_blocks: int | None = None,
    rank: int = 0,
    neighbours: int = 8,
    most: int | None = None,
    seed: SeedLike = 0,
    resources: Resources = HERE,
) -> IntArray | None:
    """States that hang together in an embedding.

    Links each state of a sample with its nearest neighbours, cuts the minimum spanning forest
    of these links where its lengths show the widest gap (by ratio), and gives every other
    state the component whose mean is nearest. If there is no clear gap, the sample grows. States
    that are farther from their component than the gap is wide are of groups that the sample
    missed: they are sampled and cut again, at the same scale.

    Args:
        embedding: Points (n_states, k), or an object with `encode`.
        n_states: Number of states.
        n_blocks: Number of components to cut to, instead of looking for a gap.
        rank: 0 for the widest gap, 1 for the next, and so on.
        neighbours: Neighbours per state.
        most: States that the sample may grow to; by default, all.
        seed: Seed or generator of sample and index.
        resources: Who searches for neighbours.

    Returns:
        (n_states) labels; None if there are fewer gaps than asked for, or no clear one in the
        largest sample.
    """
    check_resources(resources)
    points = as_points(embedding, n_states)
    rng = as_generator(seed)
    rank = check_int("rank", rank, low=0)
    if n_states < 3:
        return None
    size = min(n_states, max(SAMPLE, MEMBERS * (n_blocks or 0)))
    if most is not None and size > max(most, SAMPLE):
        return None
    order = rng.permutation(n_states)
    while True:
        chosen = np.sort(order[:size])
        forest = _neighbour_forest(points[chosen], neighbours, rng, resources)
        cuts = _gaps(forest.weights, size) if n_blocks is None else [(np.inf, n_blocks)]
        is_clear = bool(cuts) and cuts[0][0] >= np.log(CLEAR_GAP)
        if is_clear or size == n_states:
            break
        size = min(n_states, GROWTH * size)
        if most is not None and size > max(most, SAMPLE):
            return None
    if rank >= len(cuts) or cuts[rank][1] > size:
        return None
    used = max(size - cuts[rank][1], 0)
    tau = forest.weights[used - 1] if used else -1.0
    labels = forest.labels(float(tau))
    if size == n_states:
        return labels
    out, away = _extended(points, chosen, labels, resources)
    if n_blocks is None and used:
        # Between what was linked and what was not: a length that tells groups apart.
        scale = float(np.sqrt(max(tau, 1e-3 * forest.weights[used]) * forest.weights[used]))
        missed = np.flatnonzero(away > scale)
        _add_missed(points, out, missed, scale, neighbours, rng, resources)
    return numbered(out)


def split_labels(
    points: npt.ArrayLike, labels: npt.ArrayLike, *, ratio: float = 2.5, seed: SeedLike = 0
) -> IntArray:
    """Cut blocks in which points fall into groups with a clear gap between them.

    Args:
        points: (n_states, k) points, for instance rewards.
        labels: (n_states) block of each state.
        ratio: How much wider than what is next to it a gap must be.
        seed: Seed or generator.

    Returns:
        (n_states) labels of a finer partition, or of the same one.
    """
    rows = np.asarray(points)
    if rows.ndim != 2:
        raise InvalidArgumentError(f"points must have shape (n_states, k), got {rows.shape}")
    block = as_labels(labels, rows.shape[0])
    rng = as_generator(seed)
    out = block.copy()
    count = int(block.max()) + 1
    order, ends = np.argsort(block, kind="stable"), np.cumsum(np.bincount(block))
    for k, members in enumerate(np.split(order, ends[:-1])):
        if members.size < 2 * SPLIT_SIZE:
            continue
        inner = as_points(rows[members], members.size)
        forest = _neighbour_forest(inner, SPLIT_SIZE, rng, HERE)
        for gap, parts in _gaps(forest.weights, members.size)[:1]:
            found = forest.labels(float(forest.weights[members.size - parts - 1]))
            if gap >= np.log(ratio) and np.bincount(found).min() >= SPLIT_SIZE:
                out[members] = np.where(found == 0, k, count + found - 1)
                count += parts - 1
    return numbered(out)


def repair_labels(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    gamma: float,
    *,
    rounds: int = 3,
    resources: Resources = HERE,
) -> IntArray:
    """Move states to the block whose median reward and mean lifted row they fit best.

    A state that fits its own block about as well as half of the members do stays without
    being compared. Blocks that lose all members disappear.

    Args:
        mdp: The model.
        labels: (n_states) block of each state.
        gamma: The discount; differences of rows count by it and by the span of rewards.
        rounds: Rounds at most; it ends when nobody moves.
        resources: Threads; all cores by default.
    """
    check_resources(resources)
    check_mdp(mdp)
    block = as_labels(labels, mdp.n_states)
    for _ in range(check_int("rounds", rounds, low=0)):
        moved = _moved(mdp, block, gamma, resources.n_threads)
        if np.array_equal(moved, block):
            break
        block = numbered(moved)
    return block


def _neighbour_forest(
    points: Points, k: int, rng: np.random.Generator, resources: Resources
) -> Forest:
    """The spanning forest of neighbour links; components are joined through their means."""
    n = points.shape[0]
    index = "Flat"
    if n > FLAT_LIMIT:
        # Graphs lose their way where points come in groups, and cut groups to pieces.
        index = f"IVF{n // CELL_SIZE},Flat" if n <= CELL_LIMIT else "HNSW16"
    s, t = retrieve_pairs(points, k=k, index=index, seed=rng, resources=resources)
    forest = spanning_forest(n, s, t, _lengths(points, s, t))
    labels = forest.labels(np.inf)
    count = int(labels.max()) + 1
    if count == 1:
        return forest
    means = _means(points, labels)
    if count <= DENSE_LIMIT:
        a, b = np.triu_indices(count, 1)
    else:
        a, b = retrieve_pairs(means, k=k, index="Flat", seed=rng, resources=resources)
    some = np.unique(labels, return_index=True)[1].astype(np.int64)
    # Means of different components are farther apart than what hangs together within either: of
    # these two, as nearly equal points may make several components of one group.
    widest = np.zeros(count)
    np.maximum.at(widest, labels[forest.first], forest.weights)
    between = np.maximum(_lengths(means, a, b), np.maximum(widest[a], widest[b]))
    return spanning_forest(
        n,
        np.concatenate([forest.first, some[a]]),
        np.concatenate([forest.second, some[b]]),
        np.concatenate([forest.weights, between]),
    )


def _gaps(weights: FloatArray, n: int) -> list[tuple[float, int]]:
    """Gaps between successive link lengths, widest first: log ratio, components below it."""
    floor = 1e-9 * float(weights.max(initial=0.0))
    if floor == 0.0:
        return []
    logs = np.log(np.maximum(weights, floor))
    used = np.arange(max(1, n // 2), weights.size)  # links below the gap: 2 to n/2 components
    jumps = logs[used] - logs[used - 1]
    best = used[np.argsort(-jumps, kind="stable")]
    return [(float(logs[k] - logs[k - 1]), n - int(k)) for k in best if logs[k] > logs[k - 1]]


def _add_missed(
    points: Points,
    labels: IntArray,
    missed: IntArray,
    scale: float,
    neighbours: int,
    rng: np.random.Generator,
    resources: Resources,
) -> None:
    """Give states that are far from their component, `missed`, components of their own.

    By samples of them, until nobody is left; but where there are far more than groups could
    account for, the last ones keep the component that is nearest, however far.
    """
    left = MOST_COMPARED
    while missed.size:
        chosen = missed if missed.size <= SAMPLE else np.sort(rng.permutation(missed)[:SAMPLE])
        parts = np.zeros(1, np.int64)
        if chosen.size > 1:
            parts = _neighbour_forest(points[chosen], neighbours, rng, resources).labels(scale)
        left -= missed.size * (int(parts.max()) + 1)
        if left < 0:
            return
        first = int(labels.max()) + 1
        sample = np.searchsorted(missed, chosen)
        again, away = _extended(points[missed], sample, parts, resources)
        labels[missed] = first + again
        missed = missed[away > scale]


def _extended(
    points: Points, chosen: IntArray, labels: IntArray, resources: Resources
) -> tuple[IntArray, FloatArray]:
    """Labels of all states from those of a sample: the component with the nearest mean.

    Returns:
        The labels, and how much farther each state is from that mean than all of its sample.
    """
    means = _means(points[chosen], labels)
    out = nearest_points(means, points, resources=resources)
    out[chosen] = labels
    away = np.zeros(points.shape[0])
    for column, middle in zip(points.T.astype(np.float64), means.T, strict=True):
        away += (column - middle[out]) ** 2
    np.sqrt(away, out=away)
    radius = np.zeros(means.shape[0])
    np.maximum.at(radius, labels, away[chosen])
    return out, away - radius[out]


def _means(points: Points, labels: IntArray) -> Points:
    counts = np.bincount(labels)
    sums = [np.bincount(labels, weights=column) for column in points.T]
    return np.ascontiguousarray((np.array(sums) / counts).T, dtype=np.float32)


def _lengths(points: Points, s: IntArray, t: IntArray) -> FloatArray:
    total = np.zeros(s.size)
    for column in points.T.astype(np.float64):
        total += (column[s] - column[t]) ** 2
    return np.sqrt(total)


def _moved(mdp: TabularMDP, block: IntArray, gamma: float, threads: int) -> IntArray:
    from scipy.sparse import csr_array
    from scipy.spatial import cKDTree

    from bisim_abstract._kernels.refine import fit_kernel

    n, n_actions, count = mdp.n_states, mdp.n_actions, int(block.max()) + 1
    # Squares of distances must be finite: a tree that finds nobody names a block that is none.
    rewards = scaled_points(mdp.rewards)
    order = np.argsort(block, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(block))])
    median = np.array([np.median(rewards[order[a:b]], axis=0) for a, b in pairwise(starts)])
    # Mean lifted rows: transitions summed by (block, action) and by block of the successor.
    rows = np.repeat(np.arange(n * n_actions), np.diff(mdp.indptr))
    owner = block[rows // n_actions]
    mass = mdp.normalised_probs / np.diff(starts)[owner]
    shape = (count * n_actions, count)
    mean = csr_array((mass, (owner * n_actions + rows % n_actions, block[mdp.indices])), shape)
    mean.sort_indices()
    weight = gamma * reward_span(rewards)

    def fits(states: IntArray, candidates: IntArray) -> FloatArray:
        out = np.empty(candidates.shape)

        def part(begin: int, end: int) -> None:
            fit_kernel(
                begin,
                end,
                states,
                candidates,
                n_actions,
                mdp.indptr,
                mdp.indices,
                mdp.probs,
                rewards,
                block,
                count,
                mdp.max_support,
                median,
                mean.indptr.astype(np.int64),
                mean.indices.astype(np.int64),
                mean.data,
                weight,
                out,
            )

        map_chunks(part, states.size, threads=threads, chunk=max(1024, states.size // 16))
        return out

    own = fits(np.arange(n), block[:, None])[:, 0]
    usual = np.array([np.median(own[order[a:b]]) for a, b in pairwise(starts)])
    doubtful = np.flatnonzero(own > 2.0 * usual[block])
    if doubtful.size == 0 or count == 1:
        return block
    near = cKDTree(median).query(rewards[doubtful], k=min(CANDIDATES, count))[1]
    candidates = np.asarray(near, np.int64).reshape(doubtful.size, -1)
    found = fits(doubtful, candidates)
    best = found.argmin(axis=1)
    better = found[np.arange(doubtful.size), best] < STAYS * own[doubtful]
    moved = block.copy()
    moved[doubtful[better]] = candidates[np.flatnonzero(better), best[better]]
    return moved
