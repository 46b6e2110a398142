"""Pieces of a page: escaped text, sections and tables, numbers as people read them, JSON."""

from __future__ import annotations

import decimal
import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeGuard

MAX_TEXT = 2_000  # characters of one value of the record


class Cell(NamedTuple):
    """A cell of a table: its text, how long a bar it has, and what the pointer shows there."""

    text: str
    bar: float | None = None
    title: str = ""


Row = tuple[str, Sequence[Cell], bool]  # head, cells, certified


def embed(data: Any) -> str:
    """JSON that can stand inside a script element whatever its strings say."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def asset(name: str) -> str:
    return files("bisim_abstract._app").joinpath("page", name).read_text(encoding="utf-8")


def escaped(value: str) -> str:
    return html.escape(value, quote=True)


def section(name: str, title: str, note: str, body: str = "") -> str:
    return (
        f'\n<section class="card" id="{name}"><h2>{title}</h2>'
        f'<p class="note">{escaped(note)}</p>{body}</section>\n'
    )


def table_html(kind: str, head: Sequence[str], rows: Iterable[Row]) -> str:
    """A table that a phone shows as lists; the first cell of a row is HTML already."""
    body = []
    for name, cells, is_certified in rows:
        line = f'<th scope="row">{name}</th>'
        for column, cell in zip(head[1:], cells, strict=True):
            style = "" if cell.bar is None else f' class="bar" style="--share:{cell.bar:.4f}"'
            line += f'<td data-head="{escaped(column)}"{style}>{titled(cell)}</td>'
        mark = ' class="certified"' if is_certified else ""
        body.append(f"<tr{mark}>{line}</tr>")
    top = "".join(f'<th scope="col">{escaped(column)}</th>' for column in head)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def titled(cell: Cell) -> str:
    """The text of a cell, as HTML."""
    text = escaped(cell.text)
    return f'<span title="{escaped(cell.title)}">{text}</span>' if cell.title else text


def tiles_html(tiles: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f'<div class="tile"><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>'
        for name, value in tiles
    )


def is_duration(value: Any) -> TypeGuard[float]:
    """Whether it is a number of seconds that was measured."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0.0 < value < math.inf


def seconds_text(value: float) -> str:
    """A duration, to a tenth of a second where that says something."""
    return f"{value:,.1f} s" if value >= 0.05 else "under 0.1 s"


def number_text(value: float) -> str:
    """Three or four digits that people read, and never more."""
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "unbounded"
    if 0.0 < abs(value) < 1e-300:
        return "almost 0"
    value += 0.0  # a zero has no sign
    if value != 0.0 and not 1e-3 <= abs(value) < 1e7:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def bound_text(value: float, *, is_upper: bool) -> str:
    """The same of a proven bound of at least 0: a lower one is rounded down, an upper one up."""
    if not is_upper and 0.0 < value < 1e-300:
        return "0"
    if not 0.0 < value < math.inf or value < 1e-300:
        return number_text(value)
    rounding = decimal.ROUND_CEILING if is_upper else decimal.ROUND_FLOOR
    exact = decimal.Decimal(repr(float(value)))  # as it would be written in full
    if 1000 <= value < 1e7:
        return number_text(float(exact.to_integral_value(rounding)))
    digits = 4 if 1e-3 <= value < 1000 else 3
    return number_text(float(decimal.Context(prec=digits, rounding=rounding).plus(exact)))


def between_text(low: float, high: float) -> str:
    """Two proven bounds on one number, as far apart as their digits make them, or more."""
    least, most = bound_text(low, is_upper=False), bound_text(high, is_upper=True)
    return least if least == most else f"{least} to {most}"


def percent_text(share: float) -> str:
    """A percentage, rounded down; it says 0% or 100% only where it is so."""
    if math.isnan(share):
        return "not known"
    if share in (0.0, 1.0):
        return "100%" if share else "0%"
    if 0.0 < share < 0.001:
        return "under 0.1%"
    return f"{math.floor(share * 1000.0 + 1e-9) / 1000.0:.1%}"


def flat_rows(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as rows of a name and a text."""
    if isinstance(value, Mapping) and len(value):
        for key, inner in value.items():
            yield from flat_rows(inner, f"{name}.{key}" if name else str(key))
        return
    if isinstance(value, list | tuple):
        text = ", ".join(str(entry) for entry in value) or "none"
    else:
        text = "none" if value is None or isinstance(value, Mapping) else str(value)
    yield name, text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
