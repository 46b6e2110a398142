"""Cases: each has its own seed, a time limit, and a verdict; what fails is kept on disk."""

from __future__ import annotations

import resource
import shutil
import signal
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

from bisim_abstract import TabularMDP

HANG_SECONDS = 5.0  # of work
PATIENCE = 12  # how many times as long it may take by the clock on the wall
MEMORY_STEP = 1 << 30  # bytes by which one case may raise the peak of the process


class Violation(Exception):  # noqa: N818 - not an error of the fuzzer but what it looks for
    """An oracle says that a result is wrong."""


class Hang(BaseException):
    """The alarm went off; not an `Exception`, so that no handler under test swallows it."""


@dataclass
class Case:
    """One input.

    Attributes:
        rng: Source of everything random in it.
        folder: An empty directory of its own.
        note: What was done to the input, in words.
        mdp: The model at hand, saved if the case fails.
    """

    rng: np.random.Generator
    folder: Path
    note: str = ""
    mdp: TabularMDP | None = None


Run = Callable[[Case], bool]
"""Whether the input was accepted (or refused in an allowed way); raises on a finding."""


@dataclass(frozen=True)
class Target:
    """Something to fuzz.

    Attributes:
        name: As on the command line.
        prepare: Makes the function that runs one case, given a directory for shared files.
        limit: Seconds of work after which a case counts as hanging.
        is_strict: Whether a warning is a finding.
        warm: Cases that are run first and not judged: compiling takes longer than the limit.
    """

    name: str
    prepare: Callable[[Path], Run]
    limit: float = HANG_SECONDS
    is_strict: bool = True
    warm: int = 0


@dataclass(frozen=True)
class Finding:
    """A case that went wrong.

    Attributes:
        target: Name of the target.
        index: Number of the case.
        kind: Type of what was raised.
        text: Its message.
        command: What repeats it.
        kept: Where its input was put.
    """

    target: str
    index: int
    kind: str
    text: str
    command: str
    kept: Path


@dataclass
class Tally:
    """What a target came to."""

    target: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """Number of cases."""
        return self.accepted + self.refused + len(self.findings)

    def add(self, other: Tally) -> None:
        """Take in what other cases of the same target came to."""
        self.accepted += other.accepted
        self.refused += other.refused
        self.seconds = max(self.seconds, other.seconds)
        self.findings += other.findings


def fuzz(
    target: Target,
    *,
    count: int,
    seed: int,
    work: Path,
    kept: Path,
    seconds: float | None = None,
    first: int = 0,
) -> Tally:
    """Run cases `first` to `first + count - 1` of a target, or fewer if time is up.

    Args:
        target: What to fuzz.
        count: Number of cases.
        seed: Case k depends on this, on the target and on k only.
        work: Directory for files; emptied as it goes.
        kept: Directory where failing inputs are put.
        seconds: Budget.
        first: Number of the first case.
    """
    shared, folder = work / f"{target.name}-shared", work / f"{target.name}-case"
    shared.mkdir(parents=True, exist_ok=True)
    run = target.prepare(shared)
    warm_up(target, run, folder)
    tally = Tally(target.name)
    begin = time.perf_counter()
    for index in range(first, first + count):
        if seconds is not None and time.perf_counter() - begin > seconds:
            break
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        case = Case(case_rng(seed, target.name, index), folder)
        try:
            if attempt(target, run, case):
                tally.accepted += 1
            else:
                tally.refused += 1
        except (Exception, Hang) as error:
            tally.findings.append(_finding(target, case, index, seed, error, kept))
    tally.seconds = time.perf_counter() - begin
    shutil.rmtree(folder, ignore_errors=True)
    return tally


def warm_up(target: Target, run: Run, folder: Path) -> None:
    """A few cases that do not count: what has to be compiled is compiled."""
    for index in range(target.warm):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            run(Case(case_rng(0, f"{target.name}, warm", index), folder))


def case_rng(seed: int, target: str, index: int) -> np.random.Generator:
    """The generator of one case."""
    return np.random.default_rng([seed, zlib.crc32(target.encode()), index])


def attempt(target: Target, run: Run, case: Case) -> bool:
    """One case under its time limit; whether it was accepted."""
    peak = _peak_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error" if target.is_strict else "ignore")
        with time_limit(target.limit):
            is_accepted = run(case)
    grown = _peak_bytes() - peak
    if grown > MEMORY_STEP:
        raise Violation(f"memory grew by {grown / 2**20:.0f} MB")
    return is_accepted


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the main thread after so many seconds of work, or far more of waiting.

    On a busy machine a case may wait for its turn, which is not its fault.
    """

    def ring(signum: int, frame: FrameType | None) -> None:
        is_work = signum == signal.SIGPROF
        raise Hang(
            f"still running after {seconds:g} s of work"
            if is_work
            else f"still waiting after {PATIENCE * seconds:g} s"
        )

    clocks = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE * seconds),
    )
    before = {number: signal.signal(number, ring) for number, _, _ in clocks}
    for _, clock, limit in clocks:
        signal.setitimer(clock, limit)
    try:
        yield
    finally:
        for _, clock, _ in clocks:
            signal.setitimer(clock, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _finding(
    target: Target, case: Case, index: int, seed: int, error: BaseException, kept: Path
) -> Finding:
    place = kept / f"{target.name}-{seed}-{index}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(case.folder, place, symlinks=True)
    if case.mdp is not None:
        case.mdp.save(place / "model.npz")
    command = f"python scripts/fuzz.py {target.name} --seed {seed} --only {index}"
    trace = "".join(traceback.format_exception(error))
    (place / "finding.txt").write_text(
        f"{command}\n{case.note}\n\n{trace}", errors="backslashreplace"
    )
    return Finding(target.name, index, type(error).__name__, str(error), command, place)
