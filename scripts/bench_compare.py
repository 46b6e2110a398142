"""Two kept runs of the benchmarks side by side, and what moved beyond noise.

    python scripts/bench_compare.py benchmarks/baseline.json benchmarks/2026-11-18-0123456789.json
    python scripts/bench_compare.py                the baseline and the newest other run
    python scripts/bench_compare.py --fail A B     exit code 1 if one of ours became slower

What is called noise: a figure has moved if **every** repeat of one run is slower than **every**
repeat of the other, and the medians differ by more than 5%. Were nothing different, all of five
repeats would lie above all of five others, or below, once in 126 times; with three, once in ten,
so that fewer than four repeats on either side are said to be too few. What this cannot see is a
machine that was slower all through one run. Peers run code that we do not change: how far they
moved is shown below the table, and where they moved as well it was the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from measured import BASELINE, KEPT, Run, Times, number, read_run
from rich.console import Console
from rich.table import Table

LEAST = 0.05  # of the median; less is never called a change
ENOUGH = 4  # repeats on either side

console = Console(width=120, highlight=False)


@dataclass(frozen=True)
class Change:
    """One figure in two runs.

    Attributes:
        name: Of the figure, or of a peer, which is set in.
        unit: Of both times.
        before: Times of the first run, None if it has no such figure.
        after: Times of the second.
        is_peer: Whether it is the work of somebody else.
    """

    name: str
    unit: str
    before: Times | None
    after: Times | None
    is_peer: bool = False

    @property
    def ratio(self) -> float:
        """Median after by median before."""
        assert self.before is not None
        assert self.after is not None
        return self.after.median / self.before.median

    @property
    def verdict(self) -> str:
        """One of "slower", "faster", "", "too few repeats", "only before", "only after"."""
        if self.before is None or self.after is None:
            return "only after" if self.before is None else "only before"
        if min(len(self.before.values), len(self.after.values)) < ENOUGH:
            return "too few repeats"
        if abs(self.ratio - 1.0) <= LEAST:
            return ""
        if min(self.after.values) > max(self.before.values):
            return "slower"
        return "faster" if max(self.after.values) < min(self.before.values) else ""


def compare(first: Run, second: Run) -> list[Change]:
    """All figures of both runs, each with its peers below it."""
    ours = ({f.key: f for f in first.figures}, {f.key: f for f in second.figures})
    changes = []
    for key in dict.fromkeys([*ours[0], *ours[1]]):
        before, after = ours[0].get(key), ours[1].get(key)
        known = after if before is None else before
        assert known is not None
        times = (before.times if before else None, after.times if after else None)
        changes.append(Change(key, known.unit, *times))
        theirs = [
            {p.name: p.times for p in f.peers} if f is not None else {} for f in (before, after)
        ]
        for name in dict.fromkeys([*theirs[0], *theirs[1]]):
            both = (theirs[0].get(name), theirs[1].get(name))
            changes.append(Change(f"  {name}", known.unit, *both, is_peer=True))
    return changes


def differences(first: Run, second: Run) -> list[str]:
    """What else is different between two runs: machine, versions, changes without a commit."""
    found = []
    for kind in ("machine", "versions"):
        one, other = getattr(first, kind), getattr(second, kind)
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                found.append(f"{key}: {one.get(key, 'none')} and {other.get(key, 'none')}")
    found += [
        f"the {name} run had changes that no commit has"
        for name, run in (("first", first), ("second", second))
        if run.dirty
    ]
    return found


def show(first: Run, second: Run) -> list[Change]:
    """Print both, and return what was compared."""
    changes = compare(first, second)
    table = Table(title="Medians; what is marked moved beyond noise", title_justify="left")
    table.add_column("")
    for run in (first, second):
        table.add_column(f"{run.date[:10]} {run.commit[:10]}", justify="right")
    table.add_column("change", justify="right")
    table.add_column("")
    styles = {"slower": "red", "faster": "green"}
    for change in changes:
        both = (change.before, change.after)
        cells = ["-" if t is None else f"{number(t.median)} {change.unit}" for t in both]
        moved = "" if None in both else f"{change.ratio - 1.0:+.0%}"
        style = "dim" if change.is_peer else styles.get(change.verdict)
        table.add_row(change.name, *cells, moved, change.verdict, style=style)
    console.print(table)
    for line in differences(first, second):
        console.print(f"different: {line}", markup=False)
    console.print(summary(changes))
    return changes


def summary(changes: list[Change]) -> str:
    """How many of ours moved, and how far peers did."""
    ours = [change.verdict for change in changes if not change.is_peer]
    counts = ", ".join(
        f"{ours.count(verdict)} {verdict or 'within noise'}"
        for verdict in ("slower", "faster", "", "too few repeats", "only before", "only after")
        if verdict in ours
    )
    peers = [c.ratio for c in changes if c.is_peer and not c.verdict.startswith("only")]
    if not peers:
        return f"ours: {counts}"
    middle = statistics.median(peers) - 1.0
    return f"ours: {counts}; peers: {len(peers)}, moved by {middle:+.0%} (their median)"


def newest() -> Path:
    """The run in `benchmarks` that was written last, baseline apart."""
    found = [path for path in KEPT.glob("*.json") if path != BASELINE]
    if not found:
        raise ValueError("there is no run beside the baseline; `make bench` makes one")
    return max(found, key=lambda path: path.stat().st_mtime)


def main() -> int:
    """Compare two files; 1 if asked to fail and something became slower, 2 if one is no run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", nargs="?", type=Path, help="the baseline by default")
    parser.add_argument("second", nargs="?", type=Path, help="the newest other run by default")
    parser.add_argument("--fail", action="store_true", help="exit code 1 if ours became slower")
    asked = parser.parse_args()
    try:
        first, second = read_run(asked.first or BASELINE), read_run(asked.second or newest())
    except ValueError as error:
        parser.error(str(error))
    if first.quick != second.quick:
        parser.error("one of the two is a quick run, of small sizes: they cannot be compared")
    changes = show(first, second)
    slower = any(change.verdict == "slower" for change in changes if not change.is_peer)
    return int(asked.fail and slower)


if __name__ == "__main__":
    sys.exit(main())
