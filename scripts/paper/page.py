"""Results as a page of the documentation, with the figures beside it."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from paper.engine import VERDICTS, Judgement, Options, Result, ResultTable, cell
from paper.inside import replacing

INTRODUCTION = """# The paper's experiments

All experiments of *Sub-Quadratic Bisimulation Metrics via Approximate Nearest Neighbors*, run on
this implementation beside the published numbers. The page is written by

```
python scripts/reproduce.py --docs docs
```

which also leaves every table as CSV. What the paper proves is checked in every single run: one
violation, and the script fails. What it measured is compared; where a generator, a threshold or a
normalisation is not published, the choice made here is stated, and a figure that differs is
reported as such, with the likely reason. "Within tolerance" means up to 30% off, unless said
otherwise.
"""


def write_page(folder: Path, results: Sequence[Result], options: Options, seconds: float) -> None:
    """Write `paper.md` and copy the figures to `images/paper/`."""
    images = folder / "images" / "paper"
    images.mkdir(parents=True, exist_ok=True)
    claims = [claim for result in results for claim in result.claims]
    theorems = [claim for claim in claims if claim.is_theorem]
    counts = ", ".join(f"{sum(x.verdict == v for x in claims)} {v}" for v in VERDICTS)
    broken = sum(len(result.broken()) for result in results)
    lines = [
        INTRODUCTION,
        f"{len(claims)} claims: {counts}.",
        f"Of these, {len(theorems)} are theorems, checked in every run: {broken or 'none'} failed.",
        f"The run took {seconds / 60:.0f} minutes on two cores, with seed {options.seed}.",
        "",
        "## Claims of the abstract",
        "",
        *_claims([claim for claim in claims if claim.in_abstract]),
    ]
    for result in results:
        lines += ["", f"## {result.title}", ""]
        for table in result.tables:
            lines += [_wrapped(f"**{_plain(table.title)}**"), "", *_table(table), ""]
        for name in result.figures:
            shutil.copyfile(options.out / name, images / name)
            words = name.removesuffix(".png").replace("_", " ")
            lines += [f"![{result.title}: {words}](images/paper/{name})", ""]
        lines += [*_claims(result.claims), ""]
        if result.choices:
            lines += ["Choices made here:", "", *(_item(x) for x in result.choices)]
    with replacing(folder / "paper.md") as file:
        file.write(("\n".join(lines).rstrip() + "\n").encode())


def _claims(claims: Sequence[Judgement]) -> list[str]:
    rows = [
        (x.text, x.published, x.measured, x.verdict + (" (theorem)" * x.is_theorem), x.why)
        for x in claims
    ]
    columns = ("claim", "published", "measured", "verdict", "why")
    return _table(ResultTable("", "", columns, list(rows)))


def _table(table: ResultTable) -> list[str]:
    head = [_row(table.columns), _row(["---"] * len(table.columns))]
    return [*head, *(_row([cell(x) for x in row]) for row in table.rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(x) for x in cells) + " |"


def _item(text: str) -> str:
    return _wrapped(f"- {_plain(text)}", indent="  ")


def _wrapped(text: str, *, indent: str = "") -> str:
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
