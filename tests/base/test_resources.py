"""What a computation may use: checked when it is stated, and looked at where it counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, Resources
from bisim_abstract._base.parallel import LocalBackend
from bisim_abstract._base.resources import HERE
from bisim_abstract.errors import MemoryLimitError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"threads": 1.5}, "threads must be a whole number"),
        ({"memory_limit": 0}, "memory_limit must be at least 1"),
        ({"memory_limit": "4GB"}, "memory_limit must be a whole number"),
        ({"backend": "spark"}, "backend must be one of 'local', 'ray'"),
        ({"backend": None}, "backend must be 'local', 'ray' or a RayBackend, got None"),
        ({"address": "auto"}, "address goes with backend 'ray'"),
    ],
)
def test_bad_ones_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Resources(**given)


def test_whole_numbers_of_any_type_are_taken() -> None:
    assert Resources(threads=np.int64(3)).n_threads == 3  # type: ignore[arg-type]


def test_workers_are_threads_unless_others_are_given() -> None:
    assert Resources(threads=2).workers == LocalBackend(2)
    own = LocalBackend(5)
    assert Resources(backend=own).workers is own
    with pytest.raises(InvalidArgumentError, match="make a RayBackend"):
        _ = Resources(backend="ray").workers


def test_local_ones_start_at_once() -> None:
    with HERE.started(None) as ready:
        assert ready is HERE


def test_memory_is_refused_beyond_the_limit_only() -> None:
    limited = Resources(memory_limit=100)
    limited.check_memory(100, what="a table", instead="ask for less")
    with pytest.raises(MemoryLimitError, match=r"a table needs 101 bytes, .* ask for less"):
        limited.check_memory(101, what="a table", instead="ask for less")
    assert limited.room == 100
    assert HERE.room > 10**6
