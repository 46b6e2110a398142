"""Words for people, and cells for spreadsheets."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract._base.csv_text import csv_pieces, safe_text
from bisim_abstract._base.text import plain_text, shortened


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("row=3, column=1", 15, "row=3, column=1"),
        ("row=3, column=1", 14, "row=3, …"),
        ("row=3, column=1", 8, "row=3, …"),
        ("row=3, column=1", 7, "row=3,…"),
        ("ab, cd, ef", 7, "ab, …"),
        ("abcdefgh", 4, "abc…"),
        ("", 4, ""),
    ],
)
def test_long_lists_are_cut_between_entries(text: str, most: int, expected: str) -> None:
    assert shortened(text, most) == expected


@given(st.text("ab, =", max_size=40), st.integers(2, 30))
def test_what_is_cut_fits_and_begins_as_before(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) <= most
    assert short == text if len(text) <= most else text.startswith(short.removesuffix("…"))


def read(*pieces: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO("".join(pieces), newline="")))


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.booleans(),
            st.text(max_size=8).map(plain_text),
        ),
        max_size=5,
    )
)
def test_cells_read_back(rows: list[tuple[int, float, bool, str]]) -> None:
    head, *found = read(*csv_pieces("abcd", [rows[:2], rows[2:]]))
    assert head == list("abcd")
    for row, cells in zip(rows, found, strict=True):
        assert (int(cells[0]), float(cells[1]), cells[2] == "true") == row[:3]
        assert math.copysign(1.0, float(cells[1])) == math.copysign(1.0, row[1])
        assert cells[3].removeprefix("'") == row[3] or cells[3] == row[3]
        assert not cells[3].lstrip().startswith(tuple("=+-@"))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "  =1", "＝1", "'quoted"])
def test_formulas_become_texts(text: str) -> None:
    assert safe_text(text) == f"'{text}"
    assert read(*csv_pieces([text], [[(text,)]])) == [[f"'{text}"], [f"'{text}"]]


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_not_known_is_empty(value: Any) -> None:
    assert read(*csv_pieces(["a", "b"], [[(value, -1.5)]]))[1] == ["", "-1.5"]


def test_plain_names_stay() -> None:
    assert safe_text("row=3") == "row=3"
    assert read(*csv_pieces(["x, y"], [[('a"b',)]])) == [["x, y"], ['a"b']]
