"""Candidate pairs: nearest neighbours of embedded states by FAISS, and uniform partners.

Retrieval only proposes what to look at, so an index may miss neighbours; `recall_miss` counts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import (
    as_generator,
    check_choice,
    check_int,
)
from bisim_abstract._base.deadline import look
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.parallel import spans
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray, SeedLike
from bisim_abstract._propose.embedding import as_points, checked_points
from bisim_abstract.errors import InvalidArgumentError, MissingDependency

__all__ = ["recall_miss", "retrieve_neighbours", "retrieve_pairs", "uniform_pairs"]

QUERIES = 4_096  # that an index answers between two looks at the time
MAX_QUERIES = 2_000  # states whose true neighbours `recall_miss` finds
FLAT_POINTS = 1_000  # points up to which the nearest one is found by looking at all
CHUNK_CELLS = 2**21  # distances that it holds at once
K_MEANS_RUNS = 5  # of which the best counts
K_MEANS_POINTS = 256  # per centre, of more a sample is looked at
SMALLEST = 1e-300  # in place of a spread of 0
LEAST_SIZES = {"LSH": 1, "IVF": 1, "HNSW": 2, "NSG": 2}  # below, FAISS ends the process
# Bits that such an index takes: per hyperplane, links and neighbours of a point, and per cell.
INDEX_BITS = {"LSH": 1, "IVF": 384, "HNSW": 64, "NSG": 32}
Points: TypeAlias = npt.NDArray[np.float32]
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
        resources: Memory that may be used; what is available by default.

    Returns:
        The states of the unordered pairs, (s, t) with s < t, each pair once, sorted.

    Raises:
        InvalidArgumentError: If points are not finite, or FAISS refuses the index.
        MemoryLimitError: If the pairs would not fit.
    """
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
        resources: Memory that may be used; what is available by default.

    Returns:
        (n_states, k) neighbours, nearest first; -1 where fewer were found.

    Raises:
        MemoryLimitError: If the neighbours would not fit.
    """
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
    with _faiss_ready() as faiss:
        built = _built(faiss, unique, str(index), nprobe, int(rng.integers(2**31)))
        hits[is_open] = _searched(built, unique[is_open], hits.shape[1])
    return _expanded(hits, members, sizes, k)


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


def nearest_points(points: npt.ArrayLike, queries: npt.ArrayLike) -> IntArray:
    """The nearest of some points (n, d) to each query (m, d), as far as an index finds it."""
    own = np.ascontiguousarray(points, dtype=np.float32)
    asked = np.ascontiguousarray(queries, dtype=np.float32)
    with _faiss_ready() as faiss:
        # Means of groups are far from each other and near their members: cells lose none of them,
        # as graphs do.
        text = "Flat" if own.shape[0] <= FLAT_POINTS else f"IVF{round(own.shape[0] ** 0.5)},Flat"
        built = _built(faiss, own, text, None, 0)
        return _searched(built, asked, 1)[:, 0]


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
    with _faiss_ready() as faiss:
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
    rows = np.ldexp(rows, -np.frexp(np.abs(rows).max())[1]) + np.float32(0.0)  # no -0 remains
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


def _searched(index: Any, queries: Points, k: int) -> IntArray:
    """(queries, k) what an index finds nearest, some queries at a time."""
    found = np.empty((queries.shape[0], k), np.int64)
    for begin, end in spans(queries.shape[0], QUERIES):
        look()
        found[begin:end] = index.search(queries[begin:end], k)[1]
    return found


def _built(faiss: Any, points: Points, text: str, nprobe: int | None, seed: int) -> Any:
    """An index that holds the points."""
    n, d = points.shape
    _check_factory(text, n)
    try:
        if text.startswith("LSH"):
            index = faiss.IndexLSH(d, int(text[3:]))
            index.rrot.init(seed)  # FAISS seeds every rotation alike
        else:
            index = faiss.index_factory(d, text)
        ivf = faiss.try_extract_index_ivf(index)
        if ivf is None and nprobe is not None:
            raise InvalidArgumentError(f"nprobe is for 'IVF' only, got {nprobe!r} with {text!r}")
        if ivf:
            ivf.nprobe = min(check_int("nprobe", 8 if nprobe is None else nprobe, low=1), ivf.nlist)
            ivf.cp.min_points_per_centroid = 1  # FAISS prints a warning below 39
        if n == 1 or (ivf and ivf.nlist > n):  # too few to train with
            index = faiss.IndexFlatL2(d)
        index.train(points)
        index.add(points)
    except RuntimeError as error:
        reason = str(error).rsplit("failed: ", 1)[-1].rsplit(": ", 1)[-1].strip()
        raise InvalidArgumentError(
            f"index must be a FAISS factory string that suits {n} different points in {d} "
            f"dimensions, got {text!r} (FAISS: {reason[:120]}); try 'Flat', 'LSH8' or 'HNSW16'"
        ) from error
    return index


def _check_factory(text: str, n: int) -> None:
    """Refuse what would end the process inside FAISS, and LSH that could not be re-seeded."""
    for kind, size in re.findall(r"(LSH|IVF|HNSW|NSG)(\d+)", text):
        count = check_int(f"the number after {kind} in index", int(size), low=LEAST_SIZES[kind])
        check_memory(
            INDEX_BITS[kind] * count * (1 if kind == "IVF" else n) // 8,
            what=f"an index {text!r} of {n:,} points",
            instead=f"choose a smaller number after {kind}",
        )
    if "LSH" in text and not re.fullmatch(r"LSH\d{1,4}", text):
        raise InvalidArgumentError(f"index must be 'LSH<bits>', got {text!r}; try 'LSH8'")


class _Inside:
    """The threads that are inside FAISS, and its switch to expanded squares, off meanwhile.

    The switch is one variable for the whole process: the first thread in turns it off, the last
    one out restores it. FAISS has locks of its own that a child of a fork would inherit as taken,
    by a thread that it does not have: a fork waits until no other thread is inside, and threads
    that want in wait for the fork.
    """

    def __init__(self) -> None:
        # Taken itself, not through its condition, whose methods Ctrl-C may end with it taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._depths: dict[int, int] = {}  # how often each thread is inside
        self._before: int | None = None  # what the switch was
        self._is_forking = False
        os.register_at_fork(
            before=self._wait_for_others,
            after_in_parent=self._go_on,
            after_in_child=self._forget_others,
        )

    @property
    def depth(self) -> int:
        """How often this thread is inside."""
        return self._depths.get(threading.get_ident(), 0)

    def enter(self) -> Any:
        """FAISS, with plain differences."""
        with self._lock:
            while self._is_forking and not self.depth:
                self._changed.wait()
            faiss = _import_faiss()
            if self._before is None:
                self._before = faiss.cvar.distance_compute_blas_threshold
            # The expanded |x - y|² cancels: in clusters 1e-4 wide, nine in ten neighbours were
            # wrong.
            faiss.cvar.distance_compute_blas_threshold = 2**31 - 1
            self._depths[threading.get_ident()] = self.depth + 1
            return faiss

    def leave(self, depth: int) -> None:
        """Be inside `depth` times only, however far an interrupted `enter` came."""
        with self._lock:
            if depth:
                self._depths[threading.get_ident()] = depth
            else:
                self._depths.pop(threading.get_ident(), None)
            if not self._depths and self._before is not None:
                _import_faiss().cvar.distance_compute_blas_threshold = self._before
                self._before = None
            self._changed.notify_all()

    def _wait_for_others(self) -> None:
        self._lock.acquire()
        self._is_forking = True
        while self._depths.keys() - {threading.get_ident()}:
            self._changed.wait()

    def _go_on(self) -> None:
        self._is_forking = False
        self._changed.notify_all()
        self._lock.release()

    def _forget_others(self) -> None:
        """In a child: threads that waited are not there to be notified."""
        self._lock, self._is_forking = threading.Lock(), False
        self._changed = threading.Condition(self._lock)


_inside = _Inside()


def _import_faiss() -> Any:
    with contextlib.ExitStack() as stack:
        if "faiss" not in sys.modules:  # filters are those of all threads: touched once
            stack.enter_context(warnings.catch_warnings())
            # Types made by SWIG lack a module name, which newer Pythons remark on.
            warnings.filterwarnings("ignore", "builtin type [sS]wig", DeprecationWarning)
        try:
            return importlib.import_module("faiss")
        except ImportError as error:
            raise MissingDependency(f"{error}; try: pip install faiss-cpu") from error


@contextmanager
def _faiss_ready() -> Iterator[Any]:
    """FAISS on one thread and with plain differences; both settings are restored."""
    depth, restore = _inside.depth, contextlib.ExitStack()
    try:
        faiss = _inside.enter()
        # Of this Python thread alone.
        restore.callback(faiss.omp_set_num_threads, faiss.omp_get_max_threads())
        faiss.omp_set_num_threads(1)
        yield faiss
    finally:
        restore.close()
        _inside.leave(depth)


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
