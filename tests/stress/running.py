"""Cases, drawn and shrunk by Hypothesis: each has a time limit; what fails is kept on disk."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bisim_abstract import TabularMDP

HANG_SECONDS = 5.0  # of work
COMPILE_SECONDS = 60.0  # the same for first cases, which compile what they call
PATIENCE = 12  # how many times as long it may take by the clock on the wall
MEMORY_STEP = 1 << 30  # bytes by which one case may raise the peak of the process

Case = dict[str, Any]
"""Arguments of one run; a model in it is saved if the case fails."""
Run = Callable[..., bool]
"""`run(folder, **case)` tells whether an input was accepted; a refusal in an allowed way is False.

It raises on a finding; the folder is empty and the case's own.
"""


class Hang(BaseException):
    """The alarm went off; not an `Exception`, so that no handler under test swallows it."""


@dataclass(frozen=True)
class Target:
    """Something to fuzz.

    Attributes:
        name: As on the command line.
        prepare: Makes the strategy of cases and their run, given a directory for shared files.
        limit: Seconds of work after which a case counts as hanging.
        is_strict: Whether a warning is a finding.
        warm: Number of first cases that may take longer, because they compile.
    """

    name: str
    prepare: Callable[[Path], tuple[st.SearchStrategy[Case], Run]]
    limit: float = HANG_SECONDS
    is_strict: bool = True
    warm: int = 0


@dataclass(frozen=True)
class Finding:
    """The simplest case that went wrong in one way; `kept` holds its input."""

    kind: str
    text: str
    command: str
    kept: Path | None


@dataclass
class Tally:
    """What a target came to; cases are counted up to the first that went wrong."""

    target: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """Number of cases that went well."""
        return self.accepted + self.refused


def fuzz(target: Target, *, cases: int, seed: int, kept: Path, replay: str = "") -> Tally:
    """Run cases of a target: as many as asked for, or until some go wrong.

    Args:
        target: What to fuzz.
        cases: Number of cases.
        seed: Decides all of them.
        kept: Directory where failing inputs are put.
        replay: Runs this one case of an earlier finding instead.
    """
    tally, failed = Tally(target.name), False
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        shared, folder = Path(work, "shared"), Path(work, "case")
        shared.mkdir()
        strategy, run = target.prepare(shared)

        def test(case: Case) -> None:
            nonlocal failed
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            is_first = tally.cases < target.warm and not replay
            limit = max(target.limit, COMPILE_SECONDS if is_first else 0.0)
            try:
                is_accepted = attempt(target, run, case, folder, limit)
            except Exception as error:
                failed = True
                keep(kept / f"{target.name}-{seed}", folder, case, error)
                raise
            if not failed:
                tally.accepted += is_accepted
                tally.refused += not is_accepted

        drawn = settings(
            max_examples=cases,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            derandomize=False,
            deadline=None,  # ours counts work
            database=None,
            print_blob=True,
        )(given(strategy)(test))
        drawn = hypothesis.seed(seed)(drawn)
        if replay:
            drawn = hypothesis.reproduce_failure(hypothesis.__version__, replay.encode())(drawn)
        begin = time.perf_counter()
        try:
            drawn()
        except Exception as error:
            tally.findings = [finding(target, each, replay) for each in leaves(error)]
        tally.seconds = time.perf_counter() - begin
    return tally


def attempt(target: Target, run: Run, case: Case, folder: Path, limit: float) -> bool:
    """One case under its time limit; whether it was accepted."""
    peak, hang = peak_bytes(), ""
    with warnings.catch_warnings():
        warnings.simplefilter("error" if target.is_strict else "ignore")
        try:
            with time_limit(limit):
                is_accepted = run(folder, **case)
        except Hang as alarm:
            hang = str(alarm)
    if hang:  # raised here, so that all hangs are one finding, wherever the alarm went off
        raise TimeoutError(hang)
    grown = peak_bytes() - peak
    assert grown <= MEMORY_STEP, f"memory grew by {grown / 2**20:.0f} MB"
    return is_accepted


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the main thread after so many seconds of work, or far more of waiting.

    On a busy machine a case may wait for its turn, which is not its fault.
    """

    def ring(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGPROF:
            raise Hang(f"still running after {seconds:g} s of work")
        raise Hang(f"still waiting after {PATIENCE * seconds:g} s")

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


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def keep(prefix: Path, folder: Path, case: Case, error: Exception) -> None:
    """Put a failing input where others of the same cause, less simple, may lie already."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = prefix.with_name(f"{prefix.name}-{Path(last.filename).stem}-{last.lineno}")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place, symlinks=True)
    for value in case.values():
        if isinstance(value, TabularMDP):
            value.save(place / "model.npz")
    error.kept = place  # type: ignore[attr-defined]


def leaves(error: BaseException) -> list[BaseException]:
    """What a group of exceptions consists of."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


def finding(target: Target, error: BaseException, replay: str) -> Finding:
    """A failure by which Hypothesis ended, and the command that repeats it."""
    notes = "\n".join(getattr(error, "__notes__", []))
    blob = re.search(r"reproduce_failure\('[^']*', b'([^']*)'\)", notes)
    words = f"{target.name} --replay {blob[1] if blob else replay}"
    command, place = f"python -m tests.stress.fuzz {words}", getattr(error, "kept", None)
    if place is not None:
        text = f"{command}\n\n{''.join(traceback.format_exception(error))}"
        (place / "finding.txt").write_text(text, errors="backslashreplace")
    return Finding(type(error).__name__, str(error), command, place)
