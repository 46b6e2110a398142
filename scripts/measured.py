"""Figures of benchmarks: how they are taken, kept as JSON, and shown.

`bench.py` makes them, `bench_compare.py` puts two runs side by side, and `bench_table.py` makes
the site's tables of them. All three read and write the one form that is described here.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import bisim_abstract

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks"
BASELINE = KEPT / "baseline.json"
FORMAT = "bisim_abstract benchmarks"
VERSION = 1
PACKAGES = ("faiss-cpu", "gymnasium", "numba", "numpy", "scipy", "POT", "stormpy", "torch")


@dataclass(frozen=True)
class Times:
    """What one piece of work took, each time that it was done."""

    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The least: what the machine can do when nothing else is in the way."""
        return min(self.values)

    @property
    def median(self) -> float:
        """What one may expect."""
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        """Best and median for people, and all values for whoever asks about noise."""
        values = [float(f"{value:.4g}") for value in self.values]
        return {
            "best": min(values),
            "median": statistics.median(values),
            "repeats": len(values),
            "values": values,
        }


@dataclass(frozen=True)
class Peer:
    """Somebody else's work on the same problem, in the same run.

    Attributes:
        name: Who, and with which settings.
        times: In the unit of the figure.
        remark: What else is to be known: its error, what it found.
    """

    name: str
    times: Times
    remark: str = ""


@dataclass(frozen=True)
class Figure:
    """One measured row.

    Attributes:
        benchmark: Its name on the command line.
        title: Of the table that it is a row of.
        name: Of the row.
        unit: Of all times: "s", "µs", or "CPU s" where processor time is meant.
        times: Ours.
        peers: Others on the same problem.
        remark: What else is to be known.
    """

    benchmark: str
    title: str
    name: str
    unit: str
    times: Times
    peers: tuple[Peer, ...] = ()
    remark: str = ""

    @property
    def key(self) -> str:
        """By which figures of two runs are matched."""
        return f"{self.benchmark}: {self.name}"


@dataclass(frozen=True)
class Run:
    """All figures of a run, and where they come from.

    Attributes:
        date: Day and hour, UTC.
        commit: Of the code.
        dirty: Whether there were changes that no commit has.
        quick: Whether sizes were small: such figures show that it runs, and nothing more.
        machine: Processor, cores and memory.
        versions: Of Python, of this package, and of what it stands on or is compared with.
        figures: In the order in which they were taken.
    """

    date: str
    commit: str
    dirty: bool
    quick: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    figures: tuple[Figure, ...] = field(default=())


# -- taking them ---------------------------------------------------------------------------------


def timed(
    work: Callable[[], object],
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    scale: float = 1.0,
    warm: bool = True,
) -> Times:
    """Seconds of several calls, times `scale`.

    Unless `warm` is False, one call goes ahead that is not counted: it loads what was compiled.
    With `time.process_time` for a clock it is processor time, all threads together: where one side
    takes microseconds and the other seconds, only the latter would wait for whatever else runs on
    the machine.
    """
    if warm:
        work()
    values = []
    for _ in range(repeats):
        begin = clock()
        work()
        values.append((clock() - begin) * scale)
    return Times(tuple(values))


def describe_run(*, quick: bool, figures: tuple[Figure, ...] = ()) -> Run:
    """A run of this code, here and now."""
    commit, dirty = read_commit()
    return Run(
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        commit=commit,
        dirty=dirty,
        quick=quick,
        machine=read_machine(),
        versions=read_versions(),
        figures=figures,
    )


def read_machine() -> dict[str, Any]:
    """Processor, cores that we may use, and memory; nothing that tells whose machine it is."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": found[1].strip() if found else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "system": platform.system(),
    }


def read_versions() -> dict[str, str]:
    """Of Python and of the packages that matter, as far as they are installed."""
    # Ours as it is imported: the metadata of an editable install may be of an earlier version.
    found = {"python": platform.python_version(), "bisim-abstract": bisim_abstract.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def read_commit() -> tuple[str, bool]:
    """Hash of the checkout, and whether it has other changes; kept results are none."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        changes = _git("status", "--porcelain", "--", ".", ":!benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True
    return commit, bool(changes.strip())


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


# -- keeping them --------------------------------------------------------------------------------


def as_json(run: Run) -> dict[str, Any]:
    """The run as it is written."""
    figures = []
    for figure in run.figures:
        peers = [
            {
                "name": peer.name,
                **peer.times.as_json(),
                "ratio": float(f"{peer.times.best / figure.times.best:.4g}"),
                "remark": peer.remark,
            }
            for peer in figure.peers
        ]
        named = {key: getattr(figure, key) for key in ("benchmark", "title", "name", "unit")}
        figures.append({**named, **figure.times.as_json(), "remark": figure.remark, "peers": peers})
    return {"format": FORMAT, "version": VERSION, **asdict(run), "figures": figures}


def write_run(run: Run, path: Path) -> Path:
    """Write a run; into a directory by date and commit."""
    if path.is_dir() or not path.suffix:
        dirty = "-dirty" if run.dirty else ""
        path = path / f"{run.date[:10]}-{run.commit[:10]}{dirty}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(run), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read_run(path: Path) -> Run:
    """Read a run, or raise ValueError with what is wrong."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path} holds no benchmarks")
    if found.get("version") != VERSION:
        raise ValueError(f"{path} is of version {found.get('version')}, not {VERSION}")
    try:
        figures = tuple(_read_figure(entry) for entry in found["figures"])
        return Run(
            date=found["date"],
            commit=found["commit"],
            dirty=found["dirty"],
            quick=found["quick"],
            machine=found["machine"],
            versions=found["versions"],
            figures=figures,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is incomplete: {error!r}") from error


def _read_figure(entry: dict[str, Any]) -> Figure:
    return Figure(
        benchmark=entry["benchmark"],
        title=entry["title"],
        name=entry["name"],
        unit=entry["unit"],
        times=_read_times(entry),
        peers=tuple(
            Peer(peer["name"], _read_times(peer), peer["remark"]) for peer in entry["peers"]
        ),
        remark=entry["remark"],
    )


def _read_times(entry: dict[str, Any]) -> Times:
    if not entry["values"]:
        raise TypeError("a figure without values")
    return Times(tuple(float(value) for value in entry["values"]))


# -- showing them --------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits, and no more zeros than are needed."""
    if value >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"


def factor(value: float) -> str:
    """How many times ours."""
    return f"{value:,.0f}x" if value >= 100.0 else f"{value:.2g}x"


def by_title(figures: tuple[Figure, ...]) -> dict[str, list[Figure]]:
    """Figures of each table, in order."""
    tables: dict[str, list[Figure]] = {}
    for figure in figures:
        tables.setdefault(figure.title, []).append(figure)
    return tables


def rows_of(figure: Figure) -> list[list[str]]:
    """Name, best, median, ratio and remark of a figure, and of each of its peers below it."""
    rows = [
        [
            figure.name,
            f"{number(figure.times.best)} {figure.unit}",
            f"{number(figure.times.median)} {figure.unit}",
            "",
            figure.remark,
        ]
    ]
    for peer in figure.peers:
        rows.append(
            [
                f"  {peer.name}",
                f"{number(peer.times.best)} {figure.unit}",
                f"{number(peer.times.median)} {figure.unit}",
                factor(peer.times.best / figure.times.best),
                peer.remark,
            ]
        )
    return rows
