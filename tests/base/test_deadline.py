"""Time that is over ends what looks, in whatever thread works for a call."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract._base.arrays import row_spans
from bisim_abstract._base.deadline import OutOfTimeError, limited, look, seconds
from bisim_abstract._base.parallel import map_chunks


def test_nobody_is_stopped_without_a_limit() -> None:
    look()
    with limited(None):
        look()
    with limited(lambda: 1.0):
        look()


def test_the_inner_limit_counts_and_the_outer_one_comes_back() -> None:
    with limited(lambda: 0.0):
        with limited(lambda: 1.0):
            look()
        with limited(None):
            look()
        with pytest.raises(OutOfTimeError):
            look()
    look()


def test_a_limit_is_gone_after_an_error() -> None:
    with pytest.raises(KeyError), limited(lambda: 0.0):
        raise KeyError
    look()


def test_seconds_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    left = seconds(2.0)
    assert left() == 2.0
    now[0] = 101.5
    assert left() == 0.5
    now[0] = 103.0
    assert left() == -1.0


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_chunks_end_when_time_does(threads: int) -> None:
    """Those that have begun are finished, the others never begin."""
    lock, done, looks = threading.Lock(), [], [0]

    def left() -> float:
        with lock:
            looks[0] += 1
            return 5.5 - looks[0]

    def work(begin: int, end: int) -> None:
        with lock:
            done.append((begin, end))

    with limited(left), pytest.raises(OutOfTimeError):
        map_chunks(work, 1000, threads=threads, chunk=10)
    assert len(done) == 5
    assert map_chunks(lambda begin, end: end, 30, threads=threads, chunk=10) == [10, 20, 30]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 30))
def test_spans_of_rows_cover_all_rows_and_cut_none(lengths: list[int], most: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    spans = row_spans(indptr, most)
    assert [row for begin, end in spans for row in range(begin, end)] == list(range(len(lengths)))
    for begin, end in spans:
        assert end > begin
        # At most one row more than asked for, the one that crosses.
        assert indptr[end - 1] - indptr[begin] <= most
