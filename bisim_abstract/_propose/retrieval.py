"""Candidate pairs: nearest neighbours of embedded states by FAISS, and uniform partners.

Retrieval only proposes what to look at, so an index may miss neighbours; `recall_miss` counts.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import as_generator, check_choice, check_int
from bisim_abstract._base.parallel import spans
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray, SeedLike
from bisim_abstract._propose.embedding import as_points, checked_points
from bisim_abstract._propose.faiss_index import Index, Points, faiss_ready
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["recall_miss", "retrieve_neighbours", "retrieve_pairs", "uniform_pairs"]

MAX_QUERIES = 2_000  # states whose true neighbours `recall_miss` finds
FLAT_POINTS = 1_000  # points up to which the nearest one is found by looking at all
CHUNK_CELLS = 2**21  # distances that it holds at once
SPARE = 8  # hits beyond those wanted, among which ties at the end are decided
K_MEANS_RUNS = 5  # of which the best counts
K_MEANS_POINTS = 256  # per centre, of more a sample is looked at
SMALLEST = 1e-300  # in place of a spread of 0
Returned: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike] | npt.NDArray[np.integer[Any]]


def retrieve_pairs(
    points: npt.ArrayLike,
    *,
    k: int,
    index: str = "Flat",
    seed: SeedLike = None,
    nprobe: int | None = None,
    resources: Resources = HERE,
) -> tuple[IntArray, IntArray]:
    """Pairs of every state with its k nearest neighbours, as far as an index finds them.

    Identical points are indexed once, as graph indices lose their way among duplicates. Each
    state first proposes others at its own point, the next ones around a shuffled ring, then
    states at the nearest other points, k in all; many may propose the same one. Points enter
    the index in random order: every seed draws ties, graphs and cells afresh, as it does the
    hyperplanes of "LSH".

    Args:
        points: (n_states, d) embedded states; centred here.
        k: Neighbours per state; all others where there are fewer.
        index: FAISS factory string: "Flat" (exact), "LSH8" (8 random hyperplanes), "HNSW16",
            "IVF64,Flat". An index with more cells than different points becomes "Flat".
        seed: Seed or generator.
        nprobe: Cells that an "IVF" index visits per query, 8 by default.
        resources: Who searches, and memory that may be used.

    Returns:
        The states of the unordered pairs, (s, t) with s < t, each pair once, sorted.

    Raises:
        InvalidArgumentError: If points are not finite, or FAISS refuses the index.
        MemoryLimitError: If the pairs would not fit.
    """
    check_resources(resources)
    n = len(np.atleast_1d(points))
    s, t = _proposed(points, k, index, seed, nprobe, resources)
    return np.divmod(np.unique(np.minimum(s, t) * n + np.maximum(s, t)), n)


def retrieve_neighbours(
    points: npt.ArrayLike,
    *,
    k: int,
    index: str = "Flat",
    seed: SeedLike = None,
    nprobe: int | None = None,
    resources: Resources = HERE,
) -> IntArray:
    """The k nearest neighbours of every state, as far as an index finds them.

    The same proposals as those behind `retrieve_pairs`, state by state.

    Args:
        points: (n_states, d) embedded states; centred here.
        k: Neighbours per state; all others where there are fewer.
        index: FAISS factory string, as for `retrieve_pairs`.
        seed: Seed or generator.
        nprobe: Cells that an "IVF" index visits per query, 8 by default.
        resources: Who searches, and memory that may be used.

    Returns:
        (n_states, k) neighbours, nearest first; -1 where fewer were found.

    Raises:
        MemoryLimitError: If the neighbours would not fit.
    """
    check_resources(resources)
    n = len(np.atleast_1d(points))
    s, t = _proposed(points, k, index, seed, nprobe, resources)
    order = np.argsort(s, kind="stable")
    counts = np.bincount(s, minlength=n)
    place = np.arange(s.size) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((n, min(k, n - 1)), -1)
    found[s[order], place] = t[order]
    return found


def _proposed(
    points: npt.ArrayLike,
    k: int,
    index: str,
    seed: SeedLike,
    nprobe: int | None,
    resources: Resources,
) -> list[IntArray]:
    """States and what each of them proposes, its nearest first."""
    n = len(np.atleast_1d(points))
    k = min(check_int("k", k, low=1), n - 1)
    resources.check_memory(
        100 * n * (k + 2),
        what=f"looking for {k:,} neighbours of {n:,} states",
        instead="ask for fewer neighbours",
    )
    rng = as_generator(seed)
    unique, members, sizes = _grouped(as_points(points, n), rng)
    hits = np.full((sizes.size, min(k + 1, sizes.size)), -1)  # one more: a point may hit itself
    is_open = sizes <= k  # the others have k partners at their own point
    built = Index(unique, str(index), nprobe=nprobe, seed=int(rng.integers(2**31)))
    is_hashed = str(index).startswith("LSH")  # compares bits, and has its own idea of near
    width = min(hits.shape[1] + (0 if is_hashed else SPARE), sizes.size)
    found = built.search(unique[is_open], width, resources=resources)
    if not is_hashed:
        found = _ranked(unique, np.flatnonzero(is_open), found)
    hits[is_open] = found[:, : hits.shape[1]]
    return _expanded(hits, members, sizes, k)


def _ranked(points: Points, queries: IntArray, hits: IntArray) -> IntArray:
    """The same hits by rising distance in double precision, equally far ones by number.

    Single precision adds up in an order that depends on the processor, and so do ties.
    """
    out = np.empty_like(hits)
    for begin, end in spans(queries.size, max(1, CHUNK_CELLS // hits.shape[1])):
        part = hits[begin:end]
        far = np.zeros(part.shape)
        for column in points.T.astype(np.float64):
            far += (column[part] - column[queries[begin:end], None]) ** 2
        far[part < 0] = np.inf  # nothing was found
        out[begin:end] = np.take_along_axis(part, np.lexsort((part, far)), axis=1)
    return out


def uniform_pairs(
    n_states: int, *, per_state: int, seed: SeedLike, resources: Resources = HERE
) -> tuple[IntArray, IntArray]:
    """Every state with uniformly drawn partners, never itself; none for a single state.

    Args:
        n_states: Number of states.
        per_state: Independent draws for each state, so that partners can repeat.
        seed: Seed or generator.
        resources: Memory that may be used; what is available by default.

    Returns:
        (n_states * per_state) states and their partners.
    """
    n = check_int("n_states", n_states, low=1)
    u = check_int("per_state", per_state, low=0) if n > 1 else 0
    resources.check_memory(
        40 * n * u,
        what=f"{u:,} partners of {n:,} states",
        instead="ask for fewer partners per state",
    )
    s = np.repeat(np.arange(n), u)
    return s, (s + as_generator(seed).integers(1, max(n, 2), size=s.size)) % n


def nearest_points(
    points: npt.ArrayLike, queries: npt.ArrayLike, *, resources: Resources = HERE
) -> IntArray:
    """The nearest of some points (n, d) to each query (m, d), as far as an index finds it."""
    own = np.ascontiguousarray(points, dtype=np.float32)
    asked = np.ascontiguousarray(queries, dtype=np.float32)
    # Means of groups are far from each other and near their members: cells lose none of them, as
    # graphs do.
    text = "Flat" if own.shape[0] <= FLAT_POINTS else f"IVF{round(own.shape[0] ** 0.5)},Flat"
    return Index(own, text).search(asked, 1, resources=resources)[:, 0]


def k_means(points: npt.ArrayLike, k: int, seed: int) -> IntArray:
    """(n) clusters of points by k-means: k of them, or as many as there are distinct points."""
    given = np.ascontiguousarray(points, dtype=np.float64)
    # One unit for all coordinates, so that single precision suffices.
    scaled = (given - given.mean(axis=0)) / max(float(given.std()), SMALLEST)
    own = np.ascontiguousarray(scaled, dtype=np.float32)
    distinct, labels, counts = np.unique(own, axis=0, return_inverse=True, return_counts=True)
    labels = np.asarray(labels.ravel(), np.int64)
    if distinct.shape[0] <= k:
        return labels
    rng, weights = np.random.default_rng(seed), counts.astype(np.float32)
    best, found = np.inf, labels
    sample = np.arange(distinct.shape[0])
    if sample.size > K_MEANS_POINTS * k:  # enough to place k centres
        sample = np.sort(rng.choice(sample, K_MEANS_POINTS * k, replace=False))
    points = np.ascontiguousarray(distinct[sample])
    with faiss_ready() as faiss:
        for _ in range(K_MEANS_RUNS):
            model = faiss.Kmeans(
                own.shape[1],
                k,
                niter=25,
                min_points_per_centroid=1,
                max_points_per_centroid=K_MEANS_POINTS,
            )
            # Equal points count as one of so much weight: drawn as centres twice, they would
            # leave clusters empty.
            weight = weights[sample]
            model.train(points, weights=weight, init_centroids=_spread(points, weight, k, rng))
            squares, nearest = model.index.search(distinct, 1)
            cost = float(squares[:, 0] @ weights)
            if cost < best:
                best, found = cost, np.asarray(nearest[:, 0], np.int64)
    return found[labels]


def _spread(
    points: Points, weights: npt.NDArray[np.float32], k: int, rng: np.random.Generator
) -> Points:
    """So many of the points, each drawn by its squared distance from those before (k-means++)."""
    chances = weights.astype(np.float64)
    nearest = np.full(points.shape[0], np.inf)
    chosen = []
    for _ in range(k):
        at = int(rng.choice(points.shape[0], p=chances / chances.sum()))
        chosen.append(at)
        nearest = np.minimum(nearest, ((points - points[at]) ** 2).sum(axis=1, dtype=np.float64))
        chances = nearest * weights
    return np.ascontiguousarray(points[chosen])


def recall_miss(
    points: npt.ArrayLike,
    pairs_or_neighbours: Returned,
    k: int,
    *,
    ties: str = "index",
    seed: SeedLike = None,
) -> float:
    """Share of the true k nearest embedded neighbours that were not returned, in [0, 1].

    The truth is found in double precision, for at most 2,000 states drawn at random.

    Args:
        points: (n_states, d) embedded states.
        pairs_or_neighbours: A tuple (s, t) of unordered pairs, or an (n_states, any) array of
            neighbours in which negative entries are empty.
        k: Neighbours per state; all others where there are fewer.
        ties: Which of several equally far states count as nearest: those with the smallest
            "index", or "any", which favours the returned ones and is fair among duplicates.
        seed: Seed or generator of the sample.

    Returns:
        The share; 0 for a single state.

    Raises:
        InvalidArgumentError: If points are not finite, or shapes or states do not fit.
    """
    check_choice("ties", ties, ("index", "any"))
    n = len(np.atleast_1d(points))
    rows = checked_points(points, n)
    k = min(check_int("k", k, low=1), n - 1)
    returned = _returned(pairs_or_neighbours, n)
    if n == 1:
        return 0.0
    queries = as_generator(seed).permutation(n)[:MAX_QUERIES]
    parts = np.array_split(queries, -(-queries.size * n // CHUNK_CELLS))
    missed = sum(_missed(rows, part, returned[part].toarray(), k, ties == "any") for part in parts)
    return missed / (queries.size * k)


def _grouped(rows: Points, rng: np.random.Generator) -> tuple[Points, IntArray, IntArray]:
    """Different points in random order, the states at each one after the other, their number."""
    # A power of two changes no digit, and squares then stay in the range of single precision.
    rows = np.ldexp(rows, -np.frexp(np.abs(rows).max())[1])
    unique, inverse = np.unique(rows, axis=0, return_inverse=True)
    order = rng.permutation(unique.shape[0])
    group = np.argsort(order)[inverse.ravel()]
    shuffled = rng.permutation(rows.shape[0])
    members = shuffled[np.argsort(group[shuffled], kind="stable")]
    return np.ascontiguousarray(unique[order]), members, np.bincount(group)


def _expanded(hits: IntArray, members: IntArray, sizes: IntArray, k: int) -> list[IntArray]:
    """Every state and k others: from its own group, then from the groups hit, nearest first."""
    own = np.arange(sizes.size)[:, None]
    hits = np.hstack([own, np.where(hits == own, -1, hits)])
    available = np.where(hits >= 0, sizes[hits], 0)
    available[:, 0] -= 1  # the state itself
    take = np.clip(k - np.cumsum(available, axis=1) + available, 0, available)
    starts = np.cumsum(sizes) - sizes
    group = np.repeat(own.ravel(), sizes)
    place = np.arange(members.size) - starts[group]
    # One entry per proposal. Counting from behind its own place, a state closes a ring of twins.
    count = take[group].ravel()
    hit = np.repeat(hits[group].ravel(), count)
    proposer = np.repeat(np.arange(members.size), take[group].sum(axis=1))
    step = np.arange(hit.size) - np.repeat(np.cumsum(count) - count, count)
    partner = starts[hit] + (place[proposer] + 1 + step) % sizes[hit]
    return [members[proposer], members[partner]]


def _returned(found: Returned, n: int) -> Any:
    """(n, n) sparse table of what was returned for each state."""
    from scipy import sparse

    try:
        if isinstance(found, tuple):
            pairs = np.array(found, dtype=np.int64).reshape(2, -1)
            s, t = np.hstack([pairs, pairs[::-1]])
        else:
            s, t = np.repeat(np.arange(n), found.shape[1]), found.ravel()
            s, t = s[t >= 0], t[t >= 0]
        return sparse.csr_array((np.ones(s.size, bool), (s, t)), shape=(n, n))
    except (IndexError, ValueError) as error:
        what = f"pairs_or_neighbours must be (s, t) or {n} rows of states below {n}: {error}"
        raise InvalidArgumentError(what) from error


def _missed(rows: FloatArray, queries: IntArray, found: BoolArray, k: int, is_any: bool) -> int:
    """How many of the k nearest of the queries were not found."""
    distance = np.zeros((queries.size, rows.shape[0]))
    for column in rows.T:  # never an array of three dimensions
        distance += (column[queries, None] - column) ** 2
    distance[np.arange(queries.size), queries] = np.inf
    radius = np.partition(distance, k - 1, axis=1)[:, k - 1 : k]
    is_nearer, is_tied = distance < radius, distance == radius
    room = k - is_nearer.sum(axis=1, keepdims=True)
    if not is_any:
        is_tied &= np.cumsum(is_tied, axis=1) <= room
    hits = (is_nearer & found).sum() + np.minimum((is_tied & found).sum(axis=1), room[:, 0]).sum()
    return k * queries.size - int(hits)
