"""FAISS behind a fence: an index that is built here, and searched by threads or workers.

FAISS is told to compute with one thread and by plain differences, it may not end the process, and
forks of this process wait until nobody is inside it. What it finds is never trusted.
"""

from __future__ import annotations

import _thread
import contextlib
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

from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import check_int, require
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.parallel import Array, Data, Job, LocalBackend
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.types import IntArray
from bisim_abstract.errors import InvalidArgumentError

LEAST_SIZES = {"LSH": 1, "IVF": 1, "HNSW": 2, "NSG": 2}  # below, FAISS ends the process
# Bits that such an index takes: per hyperplane, links and neighbours of a point, and per cell.
INDEX_BITS = {"LSH": 1, "IVF": 384, "HNSW": 64, "NSG": 32}
# Queries that are answered between two looks at the time: together they compare so many numbers at
# most, in a tenth of a second or so, whatever the index. What is found does not depend on it.
COMPARED = 2**26
MOST_QUERIES, LEAST_QUERIES = 4_096, 16
Points: TypeAlias = npt.NDArray[np.float32]


class Index:
    """An index that holds points. It can be sent to other processes.

    Args:
        points: (n, d) different points.
        text: FAISS factory string.
        nprobe: Cells that an "IVF" index visits per query, 8 by default.
        seed: Of hyperplanes.

    Raises:
        InvalidArgumentError: If FAISS refuses the index.
    """

    def __init__(self, points: Points, text: str, *, nprobe: int | None = None, seed: int = 0):
        self.size = int(points.size)
        with faiss_ready() as faiss:
            self.faiss_index = _built(faiss, points, text, nprobe, seed)

    def search(self, queries: Points, k: int, *, resources: Resources = HERE) -> IntArray:
        """(queries, k) what it finds nearest, -1 where that is less; the same bits for any workers.

        Args:
            queries: (m, d) points.
            k: How many.
            resources: Who searches. What takes a moment is done here.
        """
        found = np.empty((queries.shape[0], k), np.int64)
        chunk = min(max(COMPARED // self.size, LEAST_QUERIES), MOST_QUERIES)
        is_short = queries.shape[0] <= chunk
        workers = LocalBackend(1) if is_short else resources.workers
        job = Job(
            _search_chunk,
            {"index": self},
            queries.shape[0],
            chunk,
            part=lambda begin, end: queries[begin:end],
        )
        # Not from inside FAISS: a fork would wait for this thread, this thread for the others, and
        # these for the fork.
        workers.prepare(job)({}, found)
        return found

    @cached_property
    def faiss_index(self) -> Any:
        """What FAISS searches; in another process, made of what was sent."""
        with faiss_ready() as faiss:
            return faiss.deserialize_index(np.array(self.packed))  # FAISS wants to own it

    @cached_property
    def packed(self) -> npt.NDArray[np.uint8]:
        """The same as bytes."""
        with faiss_ready() as faiss:
            packed: npt.NDArray[np.uint8] = faiss.serialize_index(self.faiss_index)
            return packed

    @property
    def nbytes(self) -> int:
        """Bytes that are sent."""
        return int(self.packed.nbytes)

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "packed": self.packed}


def _search_chunk(
    common: Data, part: Points, fresh: Data, begin: int, end: int, out: Array
) -> None:
    index = common["index"].faiss_index
    with faiss_ready():
        out[begin:end] = index.search(part, out.shape[1])[1]


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
        self._is_forking = self._is_interrupted = False
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
        self._is_forking, self._is_interrupted = True, False
        while self._depths.keys() - {threading.get_ident()}:
            # Python forks whatever is raised here.
            try:
                self._changed.wait()
            except KeyboardInterrupt:
                self._is_interrupted = True

    def _go_on(self) -> None:
        self._is_forking = False
        self._changed.notify_all()
        self._lock.release()
        if self._is_interrupted:  # from outside: what is raised here is dropped as well
            threading.Timer(0.01, _thread.interrupt_main).start()

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
        return require("faiss", package="faiss-cpu")


@contextmanager
def faiss_ready() -> Iterator[Any]:
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
