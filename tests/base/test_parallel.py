"""Chunks on threads, and refusals where memory would not do."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Any

import pytest

from bisim_abstract import BisimError, InvalidArgumentError
from bisim_abstract._base.memory import available_bytes, check_memory, human_bytes
from bisim_abstract._base.parallel import map_chunks, thread_count
from bisim_abstract.errors import MemoryLimitError


def span(begin: int, end: int) -> tuple[int, int]:
    return begin, end


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, []),
        (1, [(0, 1)]),
        (4, [(0, 4)]),
        (5, [(0, 4), (4, 5)]),
        (12, [(0, 4), (4, 8), (8, 12)]),
    ],
)
def test_ranges_do_not_depend_on_threads(
    total: int, expected: list[tuple[int, int]], threads: int
) -> None:
    assert map_chunks(span, total, threads=threads, chunk=4) == expected


def test_results_come_in_order_of_the_ranges() -> None:
    """The first range finishes last, yet stands first."""
    later_done = threading.Event()

    def work(begin: int, end: int) -> int:
        if begin == 0:
            assert later_done.wait(timeout=30.0)
        elif begin == 20:
            later_done.set()
        return begin

    assert map_chunks(work, 30, threads=2, chunk=10) == [0, 10, 20]


def test_same_sums_for_any_number_of_threads() -> None:
    def work(begin: int, end: int) -> float:
        total = 0.0
        for number in range(begin, end):
            total += math.sin(number)
        return total

    sums = [sum(map_chunks(work, 5000, threads=threads, chunk=97)) for threads in (1, 2, 3, 8)]
    assert len(set(sums)) == 1
    assert sums[0] == pytest.approx(math.fsum(math.sin(number) for number in range(5000)))


def test_threads_are_used_and_not_more_than_asked() -> None:
    lock = threading.Lock()
    meeting = threading.Barrier(2)
    running = most = 0
    names = set()

    def work(begin: int, end: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            names.add(threading.get_ident())
        meeting.wait(timeout=30.0)  # passes only where two run at once
        time.sleep(0.001)
        with lock:
            running -= 1

    map_chunks(work, 8, threads=2, chunk=1)
    assert most == 2
    assert len(names) == 2


def test_one_thread_is_the_callers() -> None:
    def work(begin: int, end: int) -> int:
        return threading.get_ident()

    assert set(map_chunks(work, 10, threads=1, chunk=2)) == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 3])
def test_errors_propagate(threads: int) -> None:
    def work(begin: int, end: int) -> int:
        if begin == 6:
            raise KeyError("sixth")
        return begin

    with pytest.raises(KeyError, match="sixth"):
        map_chunks(work, 10, threads=threads, chunk=2)


def test_the_first_error_in_order_is_the_one_raised() -> None:
    failed = threading.Event()

    def work(begin: int, end: int) -> int:
        if begin == 0:
            assert failed.wait(timeout=30.0)
            raise ValueError("first")
        failed.set()
        raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        map_chunks(work, 2, threads=2, chunk=1)


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    map_chunks(span, 100, threads=4, chunk=1)
    assert threading.active_count() == before


def test_thread_count() -> None:
    assert thread_count(1) == 1
    assert thread_count(7) == 7
    available = thread_count(None)
    assert 1 <= available <= (os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        assert available == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [0, -2, 1.5, "2"])
def test_impossible_thread_counts(threads: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="threads") as caught:
        thread_count(threads)
    assert str(threads) in str(caught.value)


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (1500, "1.5 kB"),
        (2_340_000, "2.3 MB"),
        (16 * 10**9, "16.0 GB"),
        (7 * 10**12, "7.0 TB"),
        (12_345 * 10**12, "12345.0 TB"),
    ],
)
def test_human_bytes(size: int, text: str) -> None:
    assert human_bytes(size) == text


@pytest.mark.parametrize("size", [999_949, 999_950, 999_999, 999_999_999, 999_960 * 10**6])
def test_human_bytes_next_to_the_next_unit(size: int) -> None:
    number, unit = human_bytes(size).split()
    assert float(number) < 1000.0
    factor = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[unit]
    assert float(number) * factor == pytest.approx(size, rel=0.05)


def test_available_memory_is_plausible() -> None:
    assert 10**7 < available_bytes() < 10**14


def test_memory_within_the_limit() -> None:
    check_memory(1000, what="A table", instead="use less", memory_limit=1000)
    check_memory(0, what="A table", instead="use less", memory_limit=None)


def test_memory_beyond_a_given_limit() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        check_memory(3_200_000, what="A table", instead="ask for fewer", memory_limit=1_000_000)
    message = str(caught.value)
    for word in ("A table", "3.2 MB", "1.0 MB", "memory_limit", "ask for fewer"):
        assert word in message
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, BisimError)


def test_memory_beyond_what_there_is() -> None:
    with pytest.raises(MemoryLimitError, match="available") as caught:
        check_memory(10**18, what="A table", instead="ask for fewer", memory_limit=None)
    assert "memory_limit" not in str(caught.value)
    assert "1000000.0 TB" in str(caught.value)
