"""A progress line for people at a terminal, where the caller gave no callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bisim_abstract._typing import Progress, ProgressCallback

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

PATIENCE = 0.5  # seconds of work before anything is shown


@contextmanager
def shown(callback: ProgressCallback | None) -> Iterator[ProgressCallback | None]:
    """The caller's callback; else, on a terminal, one that shows a line; else None.

    The line goes to standard error, appears only if the work takes a while, and vanishes at
    the end.
    """
    if callback is not None or not sys.stderr.isatty():
        yield callback
        return
    line = _Line()
    try:
        yield line
    finally:
        line.close()


class _Line:
    """Draws reports on one line."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._bar: Bar | None = None

    def __call__(self, report: Progress) -> None:
        if self._bar is None:
            if time.monotonic() - self._begin < PATIENCE:
                return
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("", detail="")
        self._bar.update(
            self._task,
            description=f"{report.stage}: {report.done:,}",
            completed=report.done,
            total=report.total,
            detail=report.detail,
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
        TextColumn("{task.description}"),
        TextColumn("{task.fields[detail]}", style="dim"),
        TimeElapsedColumn(),
    )
    return Bar(*columns, console=Console(stderr=True), transient=True)
