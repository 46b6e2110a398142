"""Kills by stage: runs that are killed in every stage, resumed, and compared with a whole one.

    python -m tests.stress.kills                   200 cycles, spread evenly over all stages
    python -m tests.stress.kills --cycles 14       one for each stage, as in the tests

A cycle begins a small run in a process of its own, waits for its stage, and ends the process there:
by SIGKILL after a while, at most as long as that stage took in a whole run; by SIGKILL while it is
about to sync or to rename a file, before or after it is listed in the manifest; every fifth time by
SIGINT. Then a new process goes on with the directory, which may be killed as well. Checked are:

- lost: files that were listed are the very same ones in the end;
- equal: every file is that of a run that was never stopped, bit by bit, times apart;
- bound: all files are as the manifest says, and the certificate is verified;
- left: nothing temporary remains, no lock is held.

Processes are forked from one that has compiled everything: a cycle takes seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bisim_abstract._app.config import Config
from bisim_abstract._app.manifest import ALWAYS_ANEW, MANIFEST, Manifest
from bisim_abstract._app.runs import Begun, Run, read_run
from bisim_abstract._base.lock import holder
from bisim_abstract.errors import BisimError
from tests.stress.certifying import ONE
from tests.stress.soak import content
from tests.support.runs import IF_NEEDED, abstaining, config

LIMIT = 120.0  # seconds without a word: it hangs
AGAIN = 0.3  # share of resumed runs that are killed as well
MOST_KILLS = 4  # of one cycle
CASES: dict[str, Callable[[], Config]] = {
    "trained-at-once": config,
    "trained-if-needed": lambda: dataclasses.replace(abstaining(), training=IF_NEEDED, learn=0),
}
console = Console(width=110, highlight=False)


@dataclass(frozen=True)
class Reference:
    """A run that was never stopped: where it is, and how long its stages took, in order."""

    folder: Path
    seconds: dict[str, float]


@dataclass
class Tally:
    """What was seen so far."""

    kills: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    late: int = 0
    kept: int = 0
    problems: list[str] = field(default_factory=list)


# -- inside a process that may be killed -----------------------------------------------------------


def labelled(tell: Callable[[str], None]) -> Callable[[Begun], None]:
    """Tell of each stage that begins: the second attempt at a certificate is one of its own."""

    def before(begun: Begun) -> None:
        is_again = begun.detail.startswith("again, with")
        tell("certify again" if is_again else begun.stage)

    return before


def live(folder: Path, wanted: Config, pipe: int, stop: tuple[str, int] | None) -> int:
    """A run, or the rest of it; with a stop it waits at a file operation of that stage."""
    now, left = "", stop[1] if stop else 0
    calls = {name: getattr(os, name) for name in ("fsync", "replace")}

    def tell(stage: str) -> None:
        nonlocal now
        now = stage
        os.write(pipe, f"{stage}\n".encode())

    def halting(name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            nonlocal left
            if stop is not None and now == stop[0]:
                left -= 1
                if left == 0:
                    os.write(pipe, b"halted\n")
                    signal.pause()
            calls[name](*arguments)

        return call

    for name in calls:
        setattr(os, name, halting(name))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        options: dict[str, Any] = {"resources": ONE, "before": labelled(tell)}
        is_begun = (folder / MANIFEST).exists()
        run = Run.resume(folder, **options) if is_begun else Run(folder, wanted, **options)
        return 0 if run().verification.is_valid else 1
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1


class Process:
    """A child that runs, and what it says."""

    def __init__(self, folder: Path, wanted: Config, stop: tuple[str, int] | None = None) -> None:
        self.pipe, theirs = os.pipe()
        self.stage, self.text = "before the first stage", b""
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self.pipe)
                code = live(folder, wanted, theirs, stop)
            finally:
                os._exit(code)
        os.close(theirs)

    def wait_for(self, word: str) -> bool:
        """Whether this was said before the end."""
        while True:
            line, end, rest = self.text.partition(b"\n")
            if end:
                self.text, said = rest, line.decode()
                self.stage = self.stage if said == "halted" else said
                if said == word:
                    return True
                continue
            if not select.select([self.pipe], [], [], LIMIT)[0]:
                os.kill(self.pid, signal.SIGKILL)
                raise RuntimeError(f"nothing was said for {LIMIT:.0f} seconds in {self.stage}")
            piece = os.read(self.pipe, 4096)
            if not piece:
                return False
            self.text += piece

    def end(self, number: int = 0) -> int:
        """Its exit code, or minus the signal that ended it."""
        if number:
            os.kill(self.pid, number)
        self.wait_for("")  # until the pipe is closed
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


# -- the driver ------------------------------------------------------------------------------------


def reference(folder: Path, wanted: Config) -> Reference:
    """A whole run in this process; the second one, which compiles nothing."""
    for name in ("warm", "whole"):
        seen: list[tuple[str, float]] = []

        def note(stage: str, seen: list[tuple[str, float]] = seen) -> None:
            seen.append((stage, time.perf_counter()))

        Run(folder / name, wanted, resources=ONE, before=labelled(note))()
        ends = [*(at for _, at in seen[1:]), time.perf_counter()]
    times = {stage: end - at for (stage, at), end in zip(seen, ends, strict=True)}
    return Reference(folder / "whole", times)


def listed(folder: Path) -> dict[str, tuple[int, str]]:
    """Files that are finished: inode and digest."""
    if not (folder / MANIFEST).exists():
        return {}
    held = Manifest.load(folder)
    found = {}
    for name, entry in held.files.items():
        path = held.path_of(name)
        if name not in ALWAYS_ANEW and path is not None:
            found[name] = (path.stat().st_ino, entry.sha256)
    return found


def page(path: Path) -> str:
    """A report without times, places and digests of files that hold times."""
    text = path.read_text()
    text = re.sub(r'<p class="times".*?</p>', "", text, flags=re.S)
    text = re.sub(r'<tr><th scope="row">[^<]*seconds[^<]*</th><td>[^<]*</td></tr>', "", text)
    return re.sub(r"[0-9a-f]{64}", "", text).replace(str(path.parent), "")


def different(whole: Path, folder: Path) -> list[str]:
    """How the files of two runs differ, times apart."""
    names = [{path.name for path in each.iterdir()} for each in (whole, folder)]
    bad = [f"{folder / name}: only one of the runs has it" for name in names[0] ^ names[1]]
    for name in sorted((names[0] & names[1]) - {MANIFEST}):
        one, two = whole / name, folder / name
        if name.endswith("certificate.npz"):
            is_same = content(one) == content(two)
        elif name.endswith(".html"):
            is_same = page(one) == page(two)
        else:
            is_same = one.read_bytes() == two.read_bytes()
        bad += [] if is_same else [f"{two}: other content"]
    return bad


def killed(
    folder: Path, wanted: Config, stage: str, whole: Reference, rng: Any, number: int
) -> tuple[str, str]:
    """Begin or go on, and stop in a stage: where that was in the end, and how; empty if late."""
    at_file = int(rng.integers(1, 7)) if rng.random() < 0.5 and number == signal.SIGKILL else 0
    process = Process(folder, wanted, (stage, at_file) if at_file else None)
    if not process.wait_for("halted" if at_file else stage):
        process.end()
        return "", ""  # that stage is done, or has fewer files
    if not at_file:
        time.sleep(float(rng.uniform(0.0, whole.seconds[stage])))
    code = process.end(number)
    if code not in (-number, 130):
        if code != 0:
            raise RuntimeError(f"a run ended by itself with code {code} in {process.stage}")
        return "", ""
    how = f"{signal.Signals(number).name}{', at a file' if at_file else ''}"
    return process.stage, how


def cycle(number: int, folder: Path, whole: dict[str, Reference], rng: Any, tally: Tally) -> None:
    """One run, killed at least once if it can be, resumed to its end, and judged."""
    case = list(CASES)[number % len(CASES)]
    wanted, ours = CASES[case](), whole[case]
    stages = list(ours.seconds)
    stage = stages[number // len(CASES) % len(stages)]
    kept: dict[str, tuple[int, str]] = {}
    for attempt in range(MOST_KILLS):
        if attempt and rng.random() >= AGAIN:
            break
        if attempt:
            stage = str(rng.choice(stages[stages.index(stage) :]))
        signals = (signal.SIGINT if number % 5 == 4 else signal.SIGKILL, signal.SIGKILL)
        where, how = killed(folder, wanted, stage, ours, rng, signals[attempt > 0])
        if not where:
            tally.late += 1
            continue
        tally.kills[where] += 1
        tally.ways[how] += 1
        now = listed(folder)
        changed = [name for name, mark in kept.items() if now.get(name, mark) != mark]
        tally.problems += [f"cycle {number}: {name} was made anew" for name in changed]
        kept |= now
    code = Process(folder, wanted).end()
    if code != 0:
        tally.problems.append(f"cycle {number}, {case}: not resumed, code {code}, {folder}")
        return
    now = listed(folder)
    tally.problems += [
        f"cycle {number}: {name} was made anew or lost"
        for name, mark in kept.items()
        if now.get(name) != mark
    ]
    tally.kept += len(kept)
    tally.problems += [f"cycle {number}: {text}" for text in different(ours.folder, folder)]
    try:
        read_run(folder)
    except BisimError as error:
        tally.problems.append(f"cycle {number}: {error}")
    if holder(folder) is not None:
        tally.problems.append(f"cycle {number}: a lock is held")


def kills(cycles: int, seed: int, folder: Path) -> Tally:
    """All cycles, one after the other."""
    tally, rng = Tally(), np.random.default_rng([seed, 21])
    whole = {name: reference(folder / name, make()) for name, make in CASES.items()}
    for number in range(cycles):
        cycle(number, folder / f"{number:04d}", whole, rng, tally)
        if number % 20 == 19:
            console.print(f"  cycle {number + 1:>4}, {tally.kills.total()} kills")
    return tally


def show(tally: Tally, cycles: int) -> bool:
    """Print what was seen; whether all is well."""
    console.print(f"{tally.kills.total()} kills in {cycles} cycles, {tally.late} came too late")
    for counts in (tally.kills, tally.ways):
        console.print("  " + ", ".join(f"{name}: {count}" for name, count in counts.items()))
    console.print(f"  {tally.kept} listed files lay there at kills and were kept")
    for text in tally.problems[:20]:
        console.print(f"  {text}", markup=False)
    return not tally.problems


def main(argv: list[str] | None = None) -> int:
    """Run as asked for; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=0, help="of moments (0)")
    given = parser.parse_args(argv)
    if given.cycles < 1:
        parser.error("--cycles must be at least 1")
    import numba
    import torch

    # Of all layers of threads, the one that a process can be forked with.
    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        tally = kills(given.cycles, given.seed, Path(name))
    is_well = show(tally, given.cycles)
    verdict, seconds = "PASSED" if is_well else "FAILED", time.perf_counter() - begin
    console.print(f"{verdict}: {given.cycles} cycles in {seconds:.0f} s")
    return 0 if is_well else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
