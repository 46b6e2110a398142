"""The site's tables of benchmarks, made from a kept run.

    python scripts/bench_table.py            bring docs/benchmarks.md up to date
    python scripts/bench_table.py --print    only print the tables
    python scripts/bench_table.py --check    exit code 1 if the page is not up to date

The page says where the tables go by two lines, `<!-- bench:begin -->` and `<!-- bench:end -->`;
what stands between them is replaced, and everything else is left alone.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from measured import BASELINE, ROOT, Run, by_title, read_run, rows_of

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def make_tables(run: Run) -> str:
    """Where the figures come from, and a table for each title, in Markdown."""
    machine, versions = run.machine, run.versions
    packages = ", ".join(f"{k} {v}" for k, v in versions.items() if k not in ("python", "torch"))
    dirty = " with changes that no commit has" if run.dirty else ""
    origin = (
        f"Measured on {run.date[:10]} at commit `{run.commit[:10]}`{dirty}: {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['memory_gb']:g} GB of memory; Python "
        f"{versions['python']}, {packages}. Best and median of all repeats; ratios are of the "
        "best, and say how many times ours."
    )
    lines = textwrap.wrap(origin, 99, break_long_words=False, break_on_hyphens=False)
    if run.quick:
        lines += ["", "**Small sizes, to see that it runs: these figures say nothing.**"]
    for title, figures in by_title(run.figures).items():
        lines += ["", f"**{title}**", "", "| | best | median | ratio | |", "|---|---|---|---|---|"]
        for figure in figures:
            for cells in rows_of(figure):
                name = cells[0].lstrip()
                cells[0] = f"↳ {name}" if name != cells[0] else name
                lines.append("| " + " | ".join(c.replace("|", r"\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def update(text: str, run: Run) -> str | None:
    """A page with the tables of a run between its marks; None if it has no marks."""
    before, begin, rest = text.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    return f"{before}{begin}\n{make_tables(run)}\n{end}{after}"


def main() -> int:
    """Print, check or write; 2 if there is no page to write to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=BASELINE, help="the baseline by default")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--print", action="store_true", dest="only_print")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    try:
        run = read_run(asked.run)
    except ValueError as error:
        parser.error(str(error))
    if asked.only_print:
        print(make_tables(run), end="")
        return 0
    text = asked.page.read_text(encoding="utf-8") if asked.page.exists() else ""
    made = update(text, run)
    if made is None:
        parser.error(f"{asked.page} has no lines {BEGIN} and {END}")
    if asked.check:
        return int(made != text)
    asked.page.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
