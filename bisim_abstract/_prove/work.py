"""What the driver drives: a run under way, whichever method it follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate.certificate import Certificate

INTERRUPTED = "interrupted"  # how the `stop` of a run begins that Ctrl-C ended
BUDGET = "budget"  # or a budget
TIME = f"{BUDGET}: max_seconds"  # or that of time


def time_is_up(max_seconds: float) -> str:
    """That the budget of time has ended, in words."""
    return f"{TIME} = {max_seconds:g} is used up"


class OverBudgetError(Exception):
    """What ends a step that may take no longer; says which budget it was."""


class Pause(Protocol):
    """Called between sweeps; raises `OverBudgetError` if a budget has."""

    def __call__(self, stage: str, detail: str, *, may_end: bool = True) -> None:
        """Tell what is under way; `may_end` is False where a step cannot be cut short."""


class Work(Protocol):
    """A run, one step at a time.

    Attributes:
        table: The arms over pairs of states.
        unit: What a step is called.
        done: Number of steps made.
    """

    table: Arms
    unit: str
    done: int

    @property
    def backups(self) -> int:
        """Backups made so far."""

    def step(self, pause: Pause) -> bool:
        """Make the next step; False if there is none left."""

    def reason(self) -> str:
        """Why the goal is reached; empty if it is not."""

    def leftover(self) -> str:
        """Why there is nothing more to try."""

    def settle(self) -> None:
        """After the last step, or an interruption: keep what an unfinished one has proven."""

    def settings(self) -> Mapping[str, Any]:
        """What decides the course of the run; a checkpoint is resumed under the same only."""

    def record(self) -> Mapping[str, Any]:
        """How it went, for the certificate's `run`; `resume` reads it."""

    def resume(self, checkpoint: Certificate) -> None:
        """Go on from the certificate of an unfinished run."""

    def certificate(
        self, *, stop: str, run: Mapping[str, Any], is_final: bool, is_hasty: bool = False
    ) -> Certificate:
        """What is proven now; with a threshold and its value if nothing follows.

        Where it is hasty, there is no time to derive more than is at hand.
        """
