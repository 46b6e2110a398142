"""Tables of pairs: validated once, looked up in one way, never written to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError
from bisim_abstract._bounds.pair_table import PairTable


def table(**changes: Any) -> PairTable:
    content = {"keys": [1, 2, 6], "lower": [0.0, 0.5, 1.0], "upper": [1.0, 0.5, 2.0]}
    return PairTable(4, **{name: np.array(x) for name, x in (content | changes).items()})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": [1, 2]}, "aligned"),
        ({"upper": [[1.0, 0.5, 2.0]]}, "aligned"),
        ({"keys": [2, 1, 6]}, "rise strictly"),
        ({"keys": [1, 1, 6]}, "rise strictly"),
        ({"keys": [-1, 2, 6]}, "rise strictly"),
        ({"keys": [1, 2, 16]}, "rise strictly"),
        ({"keys": [1, 2, 4]}, "s <= t"),
        ({"lower": [0.0, 0.6, 1.0]}, r"got 0.6 and 0.5 at pair \(0, 2\)"),
        ({"lower": [-0.1, 0.5, 1.0]}, "0 <= lower <= upper"),
        ({"lower": [0.0, np.nan, 1.0]}, "0 <= lower <= upper"),
        ({"upper": [np.inf, 0.5, 2.0]}, "must be finite"),
        ({"upper": [np.nan, 0.5, 2.0]}, "must be finite"),
    ],
)
def test_bad_tables_are_refused(changes: dict[str, Any], words: str) -> None:
    table()
    with pytest.raises(InvalidArgumentError, match=words):
        table(**changes)


def test_pairs_are_found_in_either_order() -> None:
    at, known = table().find(np.array([0, 2, 1, 3]), np.array([1, 0, 2, 3]))
    assert known.tolist() == [True, True, True, False]
    assert at[known].tolist() == [0, 1, 2]
    _, known = PairTable.empty(4).find(np.array([0]), np.array([1]))
    assert not known.any()


def test_derived_tables_are_checked_and_leave_theirs_alone() -> None:
    plain = table()
    tighter = plain.with_bounds(lower=np.array([0.5, 0.5, 1.5]))
    assert tighter.lower.tolist() == [0.5, 0.5, 1.5]
    assert plain.lower.tolist() == [0.0, 0.5, 1.0]
    assert tighter.keys is plain.keys
    with pytest.raises(InvalidArgumentError, match="0 <= lower <= upper"):
        plain.with_bounds(lower=np.array([0.0, 0.6, 1.0]))
    with pytest.raises(InvalidArgumentError, match="must be finite"):
        plain.with_bounds(upper=np.array([1.0, np.nan, 2.0]))
    with pytest.raises(InvalidArgumentError, match="one entry per covered pair"):
        plain.with_bounds(lower=np.zeros(1))
    shared = np.zeros(6)
    apart = plain.with_bounds(lower=shared[:3])
    shared[0] = 0.5
    assert apart.lower.tolist() == [0.0, 0.0, 0.0]
    assert plain.with_bounds(lower=np.zeros(3, np.float32)).lower.dtype == np.float64
    more = plain.with_pairs(np.array([11, 3]), np.zeros(2), np.array([3.0, 4.0]))
    assert more.keys.tolist() == [1, 2, 3, 6, 11]
    assert more.upper.tolist() == [1.0, 0.5, 4.0, 2.0, 3.0]


def test_nobody_can_write() -> None:
    given = np.array([0.0, 0.5, 1.0])
    made = table(lower=given)
    given[0] = 9.0
    assert made.lower[0] == 0.0
    for array in (made.keys, made.lower, made.upper, made.with_bounds(lower=given * 0.0).lower):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_diagonals_are_for_blocks_of_several() -> None:
    made = table(keys=[0, 1, 2])
    made.check_diagonal(np.array([True, False, False, False]))
    with pytest.raises(InvalidArgumentError, match="pairs of different states, got 0"):
        made.check_diagonal()
    with pytest.raises(InvalidArgumentError, match="diameter to store"):
        made.check_diagonal(np.array([False, True, True, True]))
