"""A newcomer's first five minutes, with nothing compiled yet: what they wait for, and what not.

    python scripts/newcomer.py             the first tutorial's lines and commands, cold and warm
    python scripts/newcomer.py --clone     the same in a fresh clone with an environment of its own
    python scripts/newcomer.py --demo      `scripts/demo.py` too
    python scripts/newcomer.py --quick     only what takes no compiling

Every figure stands beside the one that was measured when this was first looked at (two quiet cores)
and beside the limit that was set then. The machine may be another: what matters are the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorials" / "gridworld.md"
HEADING = "## Ten lines"  # of the lines on that page that are run here
# Wraps these lines: times and what of them was compiling, in one line of JSON.
AROUND = """
import json, sys, time
import bisim_abstract as ba
spent = {{}}
def timed(name):
    function = getattr(ba, name)
    def call(*args, **options):
        begin = time.perf_counter()
        found = function(*args, **options)
        compiled = getattr(found, "compile_seconds", None)
        if compiled is None:
            compiled = found.run["compile_seconds"]
        spent[name] = [time.perf_counter() - begin, compiled]
        return found
    setattr(ba, name, call)
for name in ("certify", "verify"):
    timed(name)
lines = {lines!r}
begin = time.perf_counter()
exec(lines, {{}})
first = dict(spent, all=time.perf_counter() - begin)
begin = time.perf_counter()
exec(lines, {{}})
print("SPENT " + json.dumps([first, dict(spent, all=time.perf_counter() - begin)]))
"""


@dataclass(frozen=True)
class Figure:
    """One thing that was measured.

    Attributes:
        what: In words.
        before: When this was first looked at, in seconds; None where nobody had looked.
        limit: What it may be, in seconds; None where none was set.
        now: In seconds.
    """

    what: str
    before: float | None
    limit: float | None
    now: float


def main() -> int:
    """Measure, and print a table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description="What a newcomer waits for.")
    parser.add_argument("--clone", action="store_true", help="in a fresh clone, set up by make")
    parser.add_argument("--demo", action="store_true", help="run the demo as well")
    parser.add_argument("--quick", action="store_true", help="only what takes no compiling")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = cloned(folder) if options.clone else ROOT
        binary = tree / ".venv" / "bin" / "python" if options.clone else Path(sys.executable)
        os.chdir(folder)  # an empty folder: what is tried is what is installed
        figures = list(measure(binary, tree, folder, options))
        os.chdir(ROOT)
    if options.json:
        print(json.dumps({figure.what: figure.now for figure in figures}))
    else:
        show(figures)
    return int(any(f.limit is not None and f.now > f.limit for f in figures))


def cloned(folder: Path) -> Path:
    """A fresh clone with an environment of its own."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    begin = time.perf_counter()
    subprocess.run(["make", "--no-print-directory", "setup"], cwd=clone, check=True)
    print(f"set up in {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return clone


def measure(
    binary: Path, tree: Path, folder: Path, options: argparse.Namespace
) -> Iterator[Figure]:
    """All figures, the cheap ones first."""
    cache = folder / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [str(binary), "-m", "bisim_abstract"]
    run([*command, "--help"], environment)  # reads the disk
    yield Figure("--help, processor time", None, 0.3, processor([*command, "--help"], environment))
    if options.quick:
        return
    first, again = spent(binary, environment)
    compiled = first["certify"][1] + first["verify"][1]
    yield Figure("compiling for the ten lines", 38.0, 18.0, compiled)
    yield Figure("  certify, compiling included", 27.9, None, first["certify"][0])
    yield Figure("  verify, compiling included", 11.1, None, first["verify"][0])
    yield Figure("ten lines, in the same process again", 0.19, None, again["all"])
    yield Figure("ten lines, compiled before", 0.8, None, spent(binary, environment)[0]["all"])
    shutil.rmtree(cache)
    begin = time.perf_counter()
    run([*command, "compile"], environment)
    yield Figure("bisim-abstract compile", None, None, time.perf_counter() - begin)
    target = folder / "lake"
    lake = ["run", "FrozenLake-v1", "-o", str(target), "--gamma", "0.9"]
    total, silence, after = watched([*command, *lake], environment)
    yield Figure("run FrozenLake-v1, from model to report", 71.0, None, total)
    yield Figure("  before its first line", None, None, silence)
    yield Figure("  after its last line", 3.0, 1.0, after)
    if options.demo:
        begin = time.perf_counter()
        demo = [str(binary), str(tree / "scripts" / "demo.py"), "--out", str(folder / "demo")]
        run(demo, environment)
        yield Figure("demo, compiled before", 66.0, 35.0, time.perf_counter() - begin)


def spent(binary: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Seconds of the tutorial's lines in a new process, and once more in the same."""
    lines = first_lines(PAGE)
    # Names are looked up in the package, where the clocks are.
    told = run([str(binary), "-c", AROUND.format(lines=lines)], environment)
    found: list[dict[str, Any]] = json.loads(told.split("SPENT ")[-1])
    return found


def first_lines(path: Path) -> str:
    """The Python under the heading."""
    after = path.read_text(encoding="utf-8").split(HEADING)[1]
    found = re.search(r"```python\n(.*?)```", after, flags=re.DOTALL)
    if found is None:
        raise ValueError(f"{path} has no Python under {HEADING!r}")
    return found[1]


def run(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints; its errors are ours."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 5):  # 5: certified, but of little use
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def processor(command: list[str], environment: dict[str, str]) -> float:
    """Seconds of processor time, the best of three."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(command, environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def watched(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Seconds on a terminal: in all, before anything is seen, and after the last that is."""
    ours, theirs = pty.openpty()
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    first = last = 0.0
    while True:
        try:
            text = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody holds the other end any more
            break
        if not text:
            break
        last = time.perf_counter() - begin
        first = first or last
    process.wait()
    total = time.perf_counter() - begin
    os.close(ours)
    if process.returncode not in (0, 5):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return total, first, total - last


def show(figures: list[Figure]) -> None:
    """A table for people."""

    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:.2f} s"

    print(f"{'':42}{'before':>10}{'limit':>10}{'now':>10}")
    for figure in figures:
        missed = " (missed)" if figure.limit is not None and figure.now > figure.limit else ""
        print(
            f"{figure.what:42}{cell(figure.before):>10}{cell(figure.limit):>10}"
            f"{cell(figure.now):>10}{missed}"
        )


if __name__ == "__main__":
    sys.exit(main())
