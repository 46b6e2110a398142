"""What the experiments share: claims with verdicts, tables, CSV files and figures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract._base.atomic import replacing

REPRODUCED = "reproduced"
CLOSE = "within tolerance"
DIFFERENT = "not reproduced"
VERDICTS = (REPRODUCED, CLOSE, DIFFERENT)


@dataclass(frozen=True)
class Options:
    """How much to do, and where results go.

    Attributes:
        quick: Smaller sizes and fewer seeds, to see that it works.
        out: Folder of CSV files and figures.
        seed: Base of all seeds.
    """

    quick: bool
    out: Path
    seed: int = 0


@dataclass(frozen=True)
class Claim:
    """One claim of the paper beside what was measured here.

    Attributes:
        text: The claim, in our words.
        published: The paper's figure.
        measured: Ours.
        verdict: One of `VERDICTS`.
        why: The likely reason where it differs, or what was chosen where the paper is silent.
        is_theorem: Whether it must hold without exception; if it does not, the script fails.
        in_abstract: Whether the paper's abstract makes it.
    """

    text: str
    published: str
    measured: str
    verdict: str
    why: str = ""
    is_theorem: bool = False
    in_abstract: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {VERDICTS}, got {self.verdict!r}")
        if self.verdict == DIFFERENT and not self.why:
            raise ValueError(f"a claim that is not reproduced needs a reason: {self.text}")


@dataclass(frozen=True)
class ResultTable:
    """A table of an experiment, printed and written as CSV.

    Attributes:
        name: Of the CSV file.
        title: For people.
        columns: Headers; published and measured ones side by side.
        rows: Cells; floats are shown with four significant digits and written in full.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclass
class Result:
    """What an experiment found.

    Attributes:
        name: Of its module.
        title: For people.
        tables: Its tables.
        claims: Claims and verdicts.
        choices: What the paper leaves open and how it was decided here, in sentences.
        figures: Names of figures written.
        seconds: How long it took.
    """

    name: str
    title: str
    tables: list[ResultTable] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def broken(self) -> list[Claim]:
        """Theorems that did not hold."""
        return [x for x in self.claims if x.is_theorem and x.verdict != REPRODUCED]


def theorem(text: str, held: int, runs: int, *, published: str = "", **extra: Any) -> Claim:
    """A claim that must hold in every run."""
    verdict = REPRODUCED if held == runs and runs > 0 else DIFFERENT
    why = "" if verdict == REPRODUCED else f"violated in {runs - held} of {runs} runs: a fault"
    stated = published or f"{runs}/{runs}"
    return Claim(text, stated, f"{held}/{runs}", verdict, why, is_theorem=True, **extra)


def judged(
    text: str,
    published: float,
    measured: float,
    *,
    tight: float = 0.05,
    loose: float = 0.3,
    why: str = "",
    shown: str = "{:.4g}",
    **extra: Any,
) -> Claim:
    """A figure compared by relative difference: up to `tight`, up to `loose`, or beyond.

    Args:
        text: The claim.
        published: The paper's figure.
        measured: Ours.
        tight: Up to here it counts as reproduced.
        loose: Up to here as within tolerance.
        why: The reason where it is not within `tight`.
        shown: How figures are written.
        **extra: Further fields of the claim.
    """
    off = abs(measured - published) / max(abs(published), 1e-300)
    verdict = REPRODUCED if off <= tight else CLOSE if off <= loose else DIFFERENT
    why = why if verdict != REPRODUCED else ""
    return Claim(text, shown.format(published), shown.format(measured), verdict, why, **extra)


def show(console: Console, result: Result) -> None:
    """Print the tables and claims of an experiment."""
    console.rule(f"{result.title} ({result.seconds:.0f} s)", align="left")
    for table in result.tables:
        grid = Table(title=table.title, title_justify="left")
        for k, column in enumerate(table.columns):
            grid.add_column(column, justify="left" if k == 0 else "right")
        for row in table.rows:
            grid.add_row(*(cell(x) for x in row))
        console.print(grid)
    console.print(claim_table(result.claims))
    for choice in result.choices:
        console.print(f"  chosen: {choice}", markup=False)


def claim_table(claims: Sequence[Claim], *, title: str = "Claims") -> Table:
    """Claims and verdicts as a table."""
    grid = Table(title=title, title_justify="left")
    for column in ("claim", "published", "measured", "verdict", "why"):
        grid.add_column(column, overflow="fold")
    colours = {REPRODUCED: "green", CLOSE: "yellow", DIFFERENT: "red"}
    for x in claims:
        colour = colours[x.verdict]
        grid.add_row(x.text, x.published, x.measured, f"[{colour}]{x.verdict}[/{colour}]", x.why)
    return grid


def cell(value: Any) -> str:
    """A table cell for people."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def write_tables(result: Result, out: Path) -> None:
    """Write every table and the claims as CSV files."""
    tables = [
        *result.tables,
        ResultTable(
            f"{result.name}_claims",
            "",
            ("claim", "published", "measured", "verdict", "why", "theorem", "abstract"),
            [
                (x.text, x.published, x.measured, x.verdict, x.why, x.is_theorem, x.in_abstract)
                for x in result.claims
            ],
        ),
    ]
    for table in tables:
        path = out / f"{table.name}.csv"
        with replacing(path) as file:
            lines: list[list[str]] = [list(table.columns)]
            lines += [["" if x is None else _exact(x) for x in row] for row in table.rows]
            file.write(_csv(lines).encode())


def _exact(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def _csv(lines: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


@contextmanager
def figure(
    result: Result, out: Path, name: str, *, size: tuple[float, float] = (7.0, 4.2)
) -> Iterator[Any]:
    """Axes of a new figure, which is written as PNG at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(figsize=size, layout="constrained")
    try:
        yield axes
        drawing.savefig(out / f"{name}.png", dpi=130, metadata={"Software": None})
        result.figures.append(f"{name}.png")
    finally:
        plt.close(drawing)


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The log-log slope of a cost by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
