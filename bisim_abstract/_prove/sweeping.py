"""How long bounds are swept, and how far they are kept from their inequalities' edge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.jumps import can_jump, jump
from bisim_abstract._prove.cost import Cost

CHECK_EVERY = 5  # sweeps between two looks at the goal
JUMP_AFTER = 30  # sweeps that a jump of one arm takes as long as, about
SYSTEMS = 3  # times a backup: a round of a jump, with the systems that it solves
LITTLE = 1e-4  # of the largest distance: a jump that gains less has shown that this is all
LONG = 100  # sweeps to a thousandth of the start, beyond which a jump comes first


def first_jump(gamma: float) -> int:
    """Sweeps after which a jump pays: where thousands are ahead, at once."""
    return CHECK_EVERY if sweeps_needed(gamma, 1e-3) > LONG else JUMP_AFTER


@dataclass(frozen=True)
class Purse:
    """What sweeps are paid from.

    Attributes:
        cost: Of the run.
        backup: Seconds of one backup.
        limit: Seconds of the whole run, as estimated, beyond which there are no more sweeps.
    """

    cost: Cost
    backup: float
    limit: float = math.inf

    def affords(self, backups: int) -> bool:
        """Whether so many backups are within the limit and what is left."""
        seconds = backups * self.backup
        is_within = self.cost.is_given or self.cost.spent + seconds <= self.limit
        return is_within and self.cost.affords(seconds)

    def pay(self, backups: int) -> None:
        """Note so many backups."""
        self.cost.spend(backups * self.backup)


class Sweeper:
    """Moves the bounds of covered pairs, by sweeps and, where these take too many, by jumps.

    What is done when depends on gamma and on bounds alone, not on the clock: a certificate does not
    depend on who made it.

    Args:
        arms: The arms.
        lower: Whether the lower arm is to move.
        upper: Whether the upper arm is to move.
        tol: Distance from the fixed point that does not matter.
        pause: Called within a jump, with words.
        purse: What is paid for sweeps and jumps.

    Attributes:
        sweeps: Sweeps made.
        is_settled: Whether a jump and the sweeps after it have shown that little is left to gain.
    """

    def __init__(
        self,
        arms: Arms,
        *,
        lower: bool,
        upper: bool = True,
        tol: float,
        pause: Callable[[str], None],
        purse: Purse,
    ) -> None:
        self.sweeps = 0
        self.is_settled = False
        self._arms, self._tol, self._pause = arms, tol, pause
        self._sides = {"lower": lower, "upper": upper}
        self._next = first_jump(arms.gamma)
        self._purse = purse

    @property
    def _backups(self) -> int:
        """Of one sweep."""
        return self._arms.n_covered * sum(self._sides.values())

    @property
    def is_affordable(self) -> bool:
        """Whether another sweep is."""
        return self._purse.affords(self._backups)

    def sweep(self) -> float:
        """Sweep once, and jump where it is time; the largest change of a bound."""
        moved = max(self._arms.sweep(**self._sides))
        self._purse.pay(self._backups)
        self.sweeps += 1
        if self.sweeps < self._next or moved <= self._tol or not can_jump(self._arms):
            return moved
        if not self._purse.affords(JUMP_AFTER * self._backups):
            return moved
        self._next = self.sweeps + JUMP_AFTER
        before = self._arms.backups
        jumped = max(
            jump(self._arms, is_upper=side == "upper", tol=self._tol, pause=self._tell)
            for side, is_moving in self._sides.items()
            if is_moving
        )
        self._purse.pay(SYSTEMS * (self._arms.backups - before))
        # Where jumps are refused, sweeps creep: what they can still gain is not worth it.
        self.is_settled = jumped <= LITTLE * self._arms.starts.diameter
        return max(moved, jumped)

    def _tell(self, residual: float) -> None:
        self._pause(f"solving, residual {residual:.2g}")


def sweeps_needed(gamma: float, share: float = 1e-9) -> int:
    """Sweeps after which no more than a share of the start shows: by default, nine digits."""
    return 1 if gamma == 0.0 else min(10_000, math.ceil(math.log(share) / math.log(gamma)) + 1)


def moved_outward(
    arms: Arms, lower: FloatArray, upper: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bounds moved outward far beyond rounding, so that they satisfy their inequalities exactly.

    f - δ gains a slack of (1 - gamma)·δ in f <= Tf, and f + δ in f >= Tf. Upper backups add what
    rows of the model may be off by themselves, if they were computed.
    """
    rounding = 2.0 * float(arms.rounding.max())
    delta = (64.0 * EPS * arms.starts.diameter + rounding) / (1.0 - arms.gamma)
    return np.maximum(lower - delta, 0.0), upper + delta
