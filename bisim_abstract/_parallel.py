"""Fixed chunks on Python threads: kernels release the interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bisim_abstract._validation import check_int

T = TypeVar("T")


def thread_count(threads: int | None) -> int:
    """Number of threads to use: as asked, or the cores this process may run on."""
    if threads is not None:
        return check_int("threads", threads, low=1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_chunks(
    work: Callable[[int, int], T], total: int, *, threads: int, chunk: int = 4096
) -> list[T]:
    """Call `work(begin, end)` on consecutive ranges of `total` items; results in order.

    The ranges depend on `total` and `chunk` only, never on `threads`, so that anything
    computed per range is the same for any number of threads.
    """
    ranges = [(begin, min(begin + chunk, total)) for begin in range(0, total, chunk)]
    if threads == 1 or len(ranges) <= 1:
        return [work(begin, end) for begin, end in ranges]
    pool = ThreadPoolExecutor(max_workers=min(threads, len(ranges)))
    try:
        return list(pool.map(lambda span: work(*span), ranges))
    finally:
        # After an error or Ctrl-C, what has not begun is dropped.
        pool.shutdown(wait=True, cancel_futures=True)
