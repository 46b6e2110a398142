"""What runs have in common: budgets, progress, and the record of how they went."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bisim_abstract._base.text import counted
from bisim_abstract._version import __version__

if TYPE_CHECKING:
    from bisim_abstract._base.jit import Compilation

INTERRUPTED = "interrupted"  # how the `stop` of a run begins that Ctrl-C ended


@dataclass(frozen=True)
class Budget:
    """How much a run may use; the clock starts with it, and stands still while solvers compile."""

    rounds: int
    seconds: float | None
    backups: int | None
    compiled: Compilation
    begin: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        """Seconds since the run began, without those of compiling."""
        return time.monotonic() - self.begin - self.compiled.seconds

    def ended(self, rounds: int, backups: int) -> str:
        """Which budget has ended, in words; empty if none has."""
        if rounds >= self.rounds:
            return f"budget: {counted(rounds, 'round')}"
        if self.seconds is not None and self.elapsed() >= self.seconds:
            return f"budget: {self.elapsed():.1f} seconds"
        if self.backups is not None and backups >= self.backups:
            return f"budget: {counted(backups, 'pair backup')}"
        return ""


def run_record(
    function: str, seed: int, *, compiled: Compilation, **entries: Any
) -> dict[str, Any]:
    """How a run went, as JSON values. Its seconds are without those of compiling."""
    entries["compile_seconds"] = round(compiled.seconds, 3)
    versions = {"bisim_abstract": __version__, "python": platform.python_version()}
    versions["numpy"] = np.__version__
    return {"function": function, "seed": seed, "versions": versions, **entries}
