"""Tables as CSV: numbers that read back as they were, and names that no spreadsheet computes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# What a spreadsheet takes for the beginning of a formula, in either width; and our own mark.
RISKY = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "'")


def csv_pieces(head: Sequence[str], chunks: Iterable[Iterable[Sequence[Any]]]) -> Iterator[str]:
    """A table as pieces of text: its head, then one piece for each chunk of rows.

    Numbers are written in full, so that they read back exactly; truth values are `true` and
    `false`; None and NaN are empty cells. Lines end with a line feed.

    Args:
        head: Names of columns.
        chunks: Rows, in chunks that are held one at a time.
    """
    yield _lines([[safe_text(name) for name in head]])
    for rows in chunks:
        yield _lines([_cell(value) for value in row] for row in rows)


def safe_text(text: str) -> str:
    """A text that spreadsheets show and do not compute.

    What looks like the beginning of a formula gets an apostrophe before it, and so does what
    begins with one: taking a leading apostrophe away gives the text back.
    """
    return f"'{text}" if text.lstrip().startswith(RISKY) else text


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return safe_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value != value:
        return ""
    return repr(value)


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()
