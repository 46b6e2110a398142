"""The engine of the experiments: claims stated as data and judged, tables, figures, CSV files.

An experiment measures *figures*, a mapping from names to plain values, and *rows*, mappings from
column headers to cells. Its claims are data: a text, what the paper published, the name of the
figure to hold against it, a tolerance or a comparison, and the reason where the two differ. In all
texts `{name}` stands for the figure of that name, formatted as `str.format` does.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import Resources
from paper.inside import replacing

T = TypeVar("T")
Row = dict[str, Any]

REPRODUCED = "reproduced"
CLOSE = "within tolerance"
DIFFERENT = "not reproduced"
VERDICTS = (REPRODUCED, CLOSE, DIFFERENT)
COLOURS = {REPRODUCED: "green", CLOSE: "yellow", DIFFERENT: "red"}

ONE_THREAD = Resources(threads=1)  # for times, and for many small models
BESIDE = {"fontsize": 8, "loc": "center left", "bbox_to_anchor": (1.01, 0.5)}  # of a legend


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

    def pick(self, quick: T, full: T) -> T:
        """The first in a quick run, else the second."""
        return quick if self.quick else full

    def seeds(self, quick: int, full: int) -> range:
        """So many seeds from the base on."""
        return range(self.seed, self.seed + self.pick(quick, full))


# -- claims ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
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
        if self.verdict == DIFFERENT and not self.why:
            raise ValueError(f"a claim that is not reproduced needs a reason: {self.text}")


@dataclass(frozen=True)
class Claim:
    """A claim that holds or does not: its figure is true or false.

    Attributes:
        text: The claim, in our words.
        published: The paper's figure.
        measure: Name of the figure that decides; where it is None, the claim is left out.
        why: The reason where it is not reproduced.
        shown: How ours is written; `{}` is the figure itself.
        nearly: What makes it within tolerance if it does not hold: always, or a figure's name.
        note: What is said even if it is reproduced.
        in_abstract: Whether the paper's abstract makes it.
    """

    text: str
    published: Any
    measure: str
    why: str = ""
    shown: str = "{}"
    nearly: str | bool = False
    note: str = ""
    in_abstract: bool = False
    is_theorem: ClassVar[bool] = False

    def judge(self, figures: Mapping[str, Any]) -> Judgement | None:
        """Hold the claim against what was measured."""
        value = figures[self.measure]
        if value is None:
            return None
        if isinstance(value, list):
            figures = {**figures, "held": sum(map(bool, value)), "runs": len(value)}
        verdict, why = self.compare(value, figures)
        return Judgement(
            self.text.format_map(figures),
            self.shown_published(figures),
            self.shown.format(
                "yes" if value is True else "no" if value is False else value, **figures
            ),
            verdict,
            (self.note if verdict == REPRODUCED else why).format_map(figures),
            self.is_theorem,
            self.in_abstract,
        )

    def compare(self, value: Any, figures: Mapping[str, Any]) -> tuple[str, str]:
        """The verdict, and the reason if it is not "reproduced"."""
        nearly = figures[self.nearly] if isinstance(self.nearly, str) else self.nearly
        return graded(bool(value), bool(nearly)), self.why

    def shown_published(self, figures: Mapping[str, Any]) -> str:
        """The paper's figure for people."""
        return str(self.published).format_map(figures)


def graded(is_same: bool, is_near: bool) -> str:
    """A verdict."""
    return REPRODUCED if is_same else CLOSE if is_near else DIFFERENT


@dataclass(frozen=True)
class Often(Claim):
    """A claim on many runs: its figure says of each whether it held.

    Attributes:
        enough: In which share of runs it has to hold.
        tolerated: From which share on it is within tolerance.
    """

    shown: str = "{held}/{runs}"
    enough: float = 1.0
    tolerated: float = math.inf

    def compare(self, value: Any, figures: Mapping[str, Any]) -> tuple[str, str]:
        """By the share of runs."""
        share = figures["held"] / max(figures["runs"], 1)
        return graded(share >= self.enough, share >= self.tolerated), self.why


@dataclass(frozen=True)
class Theorem(Often):
    """A claim that must hold in every run."""

    published: Any = ""
    measure: str = ""
    why: str = "violated in {missed} of {runs} runs: a fault"
    is_theorem: ClassVar[bool] = True

    def compare(self, value: Any, figures: Mapping[str, Any]) -> tuple[str, str]:
        """Without exception, and at least once."""
        held, runs = figures["held"], figures["runs"]
        return graded(held == runs > 0, False), self.why.format(missed=runs - held, runs=runs)

    def shown_published(self, figures: Mapping[str, Any]) -> str:
        """What the paper says, or that it held always."""
        return str(self.published) or f"{figures['runs']}/{figures['runs']}"


@dataclass(frozen=True)
class Near(Claim):
    """A figure compared by relative difference: up to `tight`, up to `loose`, or beyond.

    Where both are ranges, their ends are compared; a number is compared with the nearest of a
    published range.

    Attributes:
        tight: Up to here it counts as reproduced.
        loose: Up to here as within tolerance.
        absolute: Whether the difference itself counts instead.
        stated: The paper's figure in words, where it is not written as ours is.
    """

    shown: str = "{:.4g}"
    tight: float = 0.05
    loose: float = 0.3
    absolute: bool = False
    stated: str = ""

    def compare(self, value: Any, figures: Mapping[str, Any]) -> tuple[str, str]:
        """By the difference."""
        theirs, ours = np.atleast_1d(self.published), np.atleast_1d(value)
        if theirs.size > ours.size:
            theirs = np.clip(ours, *theirs)
        unit = 1.0 if self.absolute else np.maximum(np.abs(theirs), 1e-300)
        off = float((np.abs(ours - theirs) / unit).max())
        return graded(off <= self.tight, off <= self.loose), self.why

    def shown_published(self, figures: Mapping[str, Any]) -> str:
        """The paper's figure, written as ours unless said otherwise."""
        return self.stated or self.shown.format(self.published, **figures)


@dataclass(frozen=True)
class NextToNothing(Near):
    """A loss that is next to nothing in the paper: near it, smaller still, or larger.

    Attributes:
        spread: What is added to the tolerance, in units of the loss.
    """

    shown: str = "{:.2g}"
    spread: float = 0.0

    def compare(self, value: Any, figures: Mapping[str, Any]) -> tuple[str, str]:
        """Near, or at least not larger."""
        is_near = abs(value - self.published) <= self.loose * self.published + self.spread
        is_below = value <= self.published
        why = "smaller still" if is_below else "larger"
        return graded(
            is_near, is_below
        ), f"{why}: the noise of the generator, not published, sets it"

    def shown_published(self, figures: Mapping[str, Any]) -> str:
        """The paper's figure in full."""
        return f"{self.published:g}"


# -- rows --------------------------------------------------------------------------------------


class Rows(list[Row]):
    """What was measured, run by run."""

    def column(self, name: str) -> list[Any]:
        """One entry of every row."""
        return [x[name] for x in self]

    def columns(self) -> dict[str, list[Any]]:
        """Every entry of all rows: what theorems are held against."""
        return {name: self.column(name) for name in self[0]}

    def sum(self, name: str) -> int:
        """How often an entry is true, or its sum."""
        return int(sum(self.column(name)))

    def mean(self, name: str) -> float:
        """The mean of an entry."""
        return mean(self.column(name))

    def means(self) -> dict[str, float]:
        """The means of all entries that are numbers."""
        return {x: self.mean(x) for x, y in self[0].items() if isinstance(y, int | float)}

    def interval(self, name: str) -> float:
        """Half the width of a 95% confidence interval of the mean, by Student's t."""
        from scipy.stats import t

        count = len(self)
        if count < 2:
            return 0.0
        return float(t.ppf(0.975, count - 1) * np.std(self.column(name), ddof=1) / np.sqrt(count))

    def where(self, **entries: Any) -> Rows:
        """Rows with these entries."""
        return Rows(x for x in self if all(x[name] == y for name, y in entries.items()))

    def by(self, *names: str) -> dict[Any, Rows]:
        """Rows by one entry, or by several, in order of appearance."""
        found: dict[Any, Rows] = {}
        for row in self:
            key = tuple(row[x] for x in names)
            found.setdefault(key if len(names) > 1 else key[0], Rows()).append(row)
        return found


def mean(values: Iterable[float]) -> float:
    """The mean, as a plain float."""
    return float(np.mean(list(values)))


def spread(values: Iterable[int]) -> str:
    """The range of some counts, for people."""
    low, high = min(values := list(values)), max(values)
    return str(low) if low == high else f"{low}-{high}"


def timed(
    work: Callable[[], T], repeats: int = 1, *, clock: Callable[[], float] = time.perf_counter
) -> tuple[T, float]:
    """What a call returns, and its least seconds over some repeats."""
    seconds = []
    for _ in range(repeats):
        begin = clock()
        found = work()
        seconds.append(clock() - begin)
    return found, min(seconds)


# -- results -----------------------------------------------------------------------------------


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
        options: How it was run.
        tables: Its tables.
        claims: Claims and verdicts.
        choices: What the paper leaves open and how it was decided here, in sentences.
        figures: Names of figures written.
        seconds: How long it took.
    """

    name: str
    title: str
    options: Options
    tables: list[ResultTable] = field(default_factory=list)
    claims: list[Judgement] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def broken(self) -> list[Judgement]:
        """Theorems that did not hold."""
        return [x for x in self.claims if x.is_theorem and x.verdict != REPRODUCED]

    def add_table(self, name: str, title: str, rows: Sequence[Row], columns: str = "") -> None:
        """Add a table.

        Args:
            name: Of the CSV file.
            title: For people.
            rows: Cells by header.
            columns: Headers to show, separated by semicolons; all by default.
        """
        headers = tuple(" ".join(columns.split()).split("; ")) if columns else tuple(rows[0])
        cells = [tuple(row[x] for x in headers) for row in rows]
        self.tables.append(ResultTable(name, title, headers, cells))

    def judge(self, claims: Iterable[Claim], figures: Mapping[str, Any]) -> None:
        """Hold claims against figures; those whose figure is None are left out."""
        self.claims += [x for claim in claims if (x := claim.judge(figures)) is not None]

    def choose(self, text: str) -> None:
        """Add choices, given as a list whose items begin with a dash."""
        self.choices += [" ".join(x.split()) for x in f"\n{text.strip()}".split("\n- ")[1:]]

    @contextmanager
    def figure(
        self,
        name: str,
        *,
        size: tuple[float, float] = (7.0, 4.2),
        ticks: Mapping[Any, str] | None = None,
        legend: Mapping[str, Any] = BESIDE,
        grid: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Iterator[Any]:
        """Axes of a new figure, which is finished and written as PNG at the end.

        Args:
            name: Of the file.
            size: In inches.
            ticks: Places on the first axis and what is written there.
            legend: How the legend is set.
            grid: How the grid is set.
            **settings: Labels, scales, limits and title of the axes.
        """
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        drawing, axes = plt.subplots(figsize=size, layout="constrained")
        try:
            yield axes
            axes.set(**settings)
            if ticks is not None:
                axes.set_xticks(list(ticks), list(ticks.values()))
                axes.minorticks_off()
            axes.grid(**({"alpha": 0.3} if grid is None else grid))
            axes.legend(**legend)
            path = self.options.out / f"{name}.png"
            drawing.savefig(path, dpi=130, metadata={"Software": None})
            self.figures.append(path.name)
        finally:
            plt.close(drawing)


def show(console: Console, result: Result) -> None:
    """Print the tables and claims of an experiment."""
    console.rule(f"{result.title} ({result.seconds:.0f} s)", align="left")
    for table in result.tables:
        grid = Table(title=table.title, title_justify="left")
        for k, column in enumerate(table.columns):
            grid.add_column(column, justify="left" if k == 0 else "right")
        for row in table.rows:
            grid.add_row(*map(cell, row))
        console.print(grid)
    console.print(claim_table(result.claims))
    for choice in result.choices:
        console.print(f"  chosen: {choice}", markup=False)


def claim_table(claims: Sequence[Judgement], *, title: str = "Claims") -> Table:
    """Claims and verdicts as a table."""
    grid = Table(title=title, title_justify="left")
    for column in ("claim", "published", "measured", "verdict", "why"):
        grid.add_column(column, overflow="fold")
    for x in claims:
        colour = COLOURS[x.verdict]
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
    columns = ("claim", "published", "measured", "verdict", "why", "theorem", "abstract")
    claims = [
        (x.text, x.published, x.measured, x.verdict, x.why, x.is_theorem, x.in_abstract)
        for x in result.claims
    ]
    for table in (*result.tables, ResultTable(f"{result.name}_claims", "", columns, list(claims))):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows([_exact(x) for x in row] for row in table.rows)
        with replacing(out / f"{table.name}.csv") as file:
            file.write(text.getvalue().encode())


def _exact(value: Any) -> str:
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)
