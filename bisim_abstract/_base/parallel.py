"""Work over ranges: fixed chunks, on Python threads here or on the workers of a backend.

Kernels release the interpreter lock. Chunks depend on the work alone, never on who does it, and
every entry of a result is computed within one chunk: results have the same bits for any number
of threads and on any backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_int
from bisim_abstract._base.deadline import look
from bisim_abstract._base.memory import cores

T = TypeVar("T")
Array = npt.NDArray[Any]
Data = Mapping[str, Any]


def thread_count(threads: int | None) -> int:
    """Number of threads to use: as asked, or the cores this process may run on."""
    if threads is not None:
        return check_int("threads", threads, low=1)
    return cores()


def spans(total: int, chunk: int) -> list[tuple[int, int]]:
    """Consecutive ranges of `total` items."""
    return [(begin, min(begin + chunk, total)) for begin in range(0, total, chunk)]


def map_chunks(
    work: Callable[[int, int], T], total: int, *, threads: int, chunk: int = 4096
) -> list[T]:
    """Call `work(begin, end)` on consecutive ranges of `total` items; results in order.

    The ranges depend on `total` and `chunk` only, never on `threads`, so that anything
    computed per range is the same for any number of threads. Between two of them it is looked at
    the time, and Ctrl-C is heard: a range should take a tenth of a second or so.
    """
    ranges = spans(total, chunk)

    def looked(begin: int, end: int) -> T:
        look()
        return work(begin, end)

    if threads == 1 or len(ranges) <= 1:
        return [looked(begin, end) for begin, end in ranges]
    pool = ThreadPoolExecutor(max_workers=min(threads, len(ranges)))
    try:
        # In the context of the caller, who may count what is compiled; a copy for each, as a
        # context is that of one thread at a time.
        contexts = [copy_context() for _ in ranges]
        return list(pool.map(lambda own, span: own.run(looked, *span), contexts, ranges))
    finally:
        # After an error or Ctrl-C, what has not begun is dropped.
        pool.shutdown(wait=True, cancel_futures=True)


class ChunkWork(Protocol):
    """A function of a module, so that it can be named to another process.

    It fills `out[begin:end]`, and may return something small.
    """

    def __call__(
        self, common: Data, part: Any, fresh: Data, begin: int, end: int, out: Array
    ) -> Any:
        """Do one chunk."""


@dataclass(frozen=True)
class Job:
    """Work that is done again and again on the same data.

    Attributes:
        work: What to do with a chunk.
        common: Data that all chunks read and that stay the same.
        total: Number of items.
        chunk: Items per chunk.
        part: Data of one chunk that stay the same; None if there are none.
        narrow: What one chunk reads, given the data of a sweep: entries in the place of those of
            `common` that `tables` names, its part, and its data of the sweep. From these, `work`
            makes of the items 0..(end - begin) what it makes of begin..end from the whole, bit by
            bit. For workers that cannot hold the whole; None if it cannot be divided.
        tables: Names of entries of `common` that grow with the number of items.
        result_bytes: What a chunk returns per item, about, besides what it fills in.
    """

    work: ChunkWork
    common: Data
    total: int
    chunk: int
    part: Callable[[int, int], Any] = field(default=lambda begin, end: None)
    narrow: Callable[[Data, int, int], tuple[Data, Any, Data]] | None = None
    tables: tuple[str, ...] = ()
    result_bytes: int = 0


class Sweep(Protocol):
    """A job made ready."""

    def __call__(self, fresh: Data, out: Array) -> list[Any]:
        """Do all chunks with data of this time; returns what they returned, in order."""


class Backend(Protocol):
    """Who does the work."""

    def prepare(self, job: Job) -> Sweep:
        """Make a job ready."""


@dataclass(frozen=True)
class LocalBackend:
    """The threads of this process."""

    threads: int

    def prepare(self, job: Job) -> Sweep:
        """Nothing has to be made ready: threads share all memory."""

        def sweep(fresh: Data, out: Array) -> list[Any]:
            def part(begin: int, end: int) -> Any:
                return job.work(job.common, job.part(begin, end), fresh, begin, end, out)

            return map_chunks(part, job.total, threads=self.threads, chunk=job.chunk)

        return sweep


def read_only(array: Array) -> Array:
    """A view that cannot be written: compiled code is then the same as for shared memory."""
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view
