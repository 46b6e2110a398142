"""A progress line: on a terminal without being asked for, and elsewhere where it is.

Four ways to show reports, by where the work runs: a line on a terminal, which vanishes at the end;
one in a notebook, the same; plain lines in a file or pipe, a few seconds apart; or nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from bisim_abstract._base.checks import check_callback
from bisim_abstract._base.text import plain_text
from bisim_abstract._base.types import Progress, ProgressCallback

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from bisim_abstract._base.jit import Compilation

logger = logging.getLogger(__name__)

COMPILE = "compile"  # the stage that is told at once: nothing else is heard until it ends
PATIENCE = 0.5  # seconds of work before anything is shown
PACE = 0.2  # seconds between two pictures of a line in a notebook
PLAIN_PACE = 5.0  # seconds between plain lines, which stay

# One line at a time: long calls make others, and two lines would write over each other.
_drawing = threading.Lock()


@contextmanager
def shown(
    callback: ProgressCallback | None, progress: bool = False, *, on_terminal: bool = True
) -> Iterator[ProgressCallback | None]:
    """What a long call reports to: the caller's callback, a line that people see, both, or None.

    Lines go to standard error and appear only if the work takes a while. Calls inside a call
    that shows one show none of their own.

    Args:
        callback: The caller's.
        progress: Show a line wherever this runs, also beside a callback.
        on_terminal: Show one on a terminal without being asked to, unless there is a callback.
            Calls that are parts of many others leave that to those.
    """
    check_callback(callback)
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    is_unasked = on_terminal and is_terminal and callback is None
    if not (progress or is_unasked):
        yield callback
        return
    if not _drawing.acquire(blocking=False):
        yield callback
        return
    try:
        line = _line(is_terminal)

        def report(told: Progress) -> None:
            line(told)
            if callback is not None:
                callback(told)

        try:
            yield report
        finally:
            line.close()
    finally:
        _drawing.release()


class _Drawn(Protocol):
    """Something that shows reports, and puts itself away."""

    def __call__(self, report: Progress) -> None: ...

    def close(self) -> None: ...


def _line(is_terminal: bool) -> _Drawn:
    """The line that fits where this runs."""
    if is_terminal:
        return _TerminalLine()
    # Only where IPython already runs is there a notebook to write to.
    if "IPython" in sys.modules and _is_notebook():
        return _NotebookLine()
    return _PlainLines()


def _is_notebook() -> bool:
    from rich.console import Console

    return Console().is_jupyter


class _TerminalLine:
    """Draws reports on one line of a terminal."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._bar: Bar | None = None

    def __call__(self, report: Progress) -> None:
        if self._bar is None:
            if report.stage != COMPILE and time.monotonic() - self._begin < PATIENCE:
                return
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("", detail="")
        self._bar.update(
            self._task,
            description="" if report.stage == COMPILE else f"{report.stage}: {report.done:,}",
            completed=report.done,
            total=report.total,
            detail=plain_text(report.detail),
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[detail]}", style="dim", markup=False),
        TimeElapsedColumn(),
    )
    return Bar(*columns, console=Console(stderr=True), transient=True)


class _NotebookLine:
    """Shows reports in one output of a notebook, which each of them replaces.

    Done by IPython itself, which every notebook has: the line of rich needs widgets there.
    """

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._handle: Any = None

    def __call__(self, report: Progress) -> None:
        now = time.monotonic()
        waits = PATIENCE if self._handle is None else PACE
        if report.stage != COMPILE and now - self._last < waits:
            return
        self._last = now
        self._put(_sentence(report, now - self._begin))

    def close(self) -> None:
        if self._handle is not None:
            self._put("")

    def _put(self, text: str) -> None:
        from IPython.display import display

        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class _PlainLines:
    """Writes a report to standard error now and then."""

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._waits = PATIENCE
        self._unwritten: Progress | None = None

    def __call__(self, report: Progress) -> None:
        self._unwritten = report
        if report.stage == COMPILE or time.monotonic() - self._last >= self._waits:
            self._write()

    def close(self) -> None:
        # Who has seen a beginning sees the end.
        if self._waits == PLAIN_PACE and self._unwritten is not None:
            self._write()

    def _write(self) -> None:
        if self._unwritten is None or sys.stderr is None:
            return
        self._last, self._waits = time.monotonic(), PLAIN_PACE
        sys.stderr.write(_sentence(self._unwritten, self._last - self._begin) + "\n")
        sys.stderr.flush()
        self._unwritten = None


def _sentence(report: Progress, seconds: float) -> str:
    """A report as one line: "sweeping: 12 of 40, residual 0.01 (3 s)"."""
    if report.stage == COMPILE:
        return plain_text(report.detail)
    of = "" if report.total is None else f" of {report.total:,}"
    detail = f", {report.detail}" if report.detail else ""
    return plain_text(f"{report.stage}: {report.done:,}{of}{detail} ({seconds:.0f} s)")


@contextmanager
def compiling(report: ProgressCallback | None, *, about: int) -> Iterator[Compilation]:
    """Count the seconds that go into compiling, and say when that begins.

    Said to `report`; where nobody listens, by a warning in the log, which Python shows on standard
    error unless told otherwise. Calls inside a call that does this stay silent.

    Args:
        report: What a long call reports to.
        about: How many seconds it takes to compile all that this call may need.
    """
    from bisim_abstract._base.jit import is_kept, watching

    def tell() -> None:
        message = f"compiling solvers, once, about {about} s"
        remark = "`bisim-abstract compile` does it ahead"
        if not is_kept():
            message = f"compiling solvers, about {about} s in every process"
            remark = "no folder for compiled code can be written; set NUMBA_CACHE_DIR to one"
        if report is None:
            logger.warning("%s (%s)", message, remark)
        else:
            logger.info(message)
            report(Progress(COMPILE, 0, None, message))

    with watching(tell) as found:
        yield found


def tell(
    report: ProgressCallback | None, stage: str, done: int, total: int | None, detail: str
) -> None:
    """Report progress, if anyone listens."""
    if report is not None:
        report(Progress(stage, done, total, detail))
