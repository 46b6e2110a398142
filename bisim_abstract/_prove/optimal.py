"""Clusters by the distance of optimal action values: the run of the relation "optimal".

Values are solved for and bounded, one spanning tree links all states, and the threshold is chosen
among those at which both arms agree, which are all but a few that rounding leaves open. Nothing
is quadratic: points that no tree of boxes keeps apart, as those of many independent actions may be,
are moved to a coarser grid, which the bounds then allow for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bisim_abstract._abstract.action_bounds import bound_action_values
from bisim_abstract._base.checks import check_int
from bisim_abstract._bounds.action_values import ActionValues, TooMuchWorkError, equal_rows
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._prove.cost import Cost
from bisim_abstract._prove.making import make_certificate
from bisim_abstract._prove.standing import Standing, go_on
from bisim_abstract._prove.target import Target
from bisim_abstract._prove.work import Pause
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._prove.options import Options

# Comparisons of coordinates that a spanning tree may take: some 20 seconds. A million points with
# four coordinates take a fifth of it.
MOST_WORK = 6_000_000_000
COARSER = 16.0  # times as wide a grid is tried next


@dataclass(frozen=True, kw_only=True, eq=False)
class ActionGaps:
    """The method of the relation "optimal": proven differences of optimal action values."""

    name: ClassVar[str] = "action-values"
    scope: ClassVar[str] = "all"

    def check(self, options: Options) -> None:
        """Every goal can be looked for."""

    def starts(self) -> Mapping[str, Any]:
        """How arms start: what rewards allow says nothing of optimal values."""
        return {"lower_start": "zero", "upper_start": "constant"}

    def begin(self, table: Arms, options: Options) -> Valuation:
        """A run on arms that cover nothing, and never will."""
        return Valuation(table, options)


class Valuation:
    """A run of one step, and the search for a threshold.

    Args:
        table: Arms over pairs of states, which hold the bounds and cover no pair.
        options: What to reach.

    Attributes:
        table: The same.
        target: What to reach.
        standing: What bounds certify.
        done: Whether the step was made.
        log: What it did.
        backups: None, as no pair is backed up.
    """

    unit = "step"
    backups = 0

    def __init__(self, table: Arms, options: Options) -> None:
        self.table, self.target = table, Target.of(options, table)
        apart = table.starts.diameter if table.starts.has_apart else math.inf
        if self.target.tau is not None and self.target.tau >= apart:
            raise InvalidArgumentError(
                f"tau must be below {apart!r}, the distance of states with different actions, "
                f"got {self.target.tau!r}"
            )
        cost = Cost.of(table.mdp, options.max_seconds)
        self.standing = Standing(table, self.target, None, cost, is_final=True)
        self.done = 0
        self.log: list[str] = []

    def step(self, pause: Pause) -> bool:
        """Bound the values, and link all states."""
        if self.done:
            return False
        self.standing.pause = pause
        pause("bounding optimal action values", "")
        table = self.table
        values = bound_action_values(table.mdp, table.gamma)
        pause("linking states by their action values", "")
        grid = 0.0
        while True:
            table.set_action_values(values)
            try:
                self.standing.link(values, MOST_WORK)
                break
            except TooMuchWorkError:
                grid = _coarser(values, table.starts.sets)
                values = bound_action_values(table.mdp, table.gamma, grid=grid)
        self.done = 1
        text = f"optimal action values within {values.radius:.2g}"
        self.log.append(text + (f", on a grid of {grid:.2g}" if grid else ""))
        return True

    def settle(self) -> None:
        """Nothing is left half done."""
        self.standing.pause = go_on

    def settings(self) -> Mapping[str, Any]:
        """What decides the course of the run."""
        return asdict(self.target)

    def record(self) -> Mapping[str, Any]:
        """How it went."""
        return {"steps": list(self.log)}

    def resume(self, checkpoint: Certificate) -> None:
        """Go on from the certificate of an unfinished run."""
        done = check_int("rounds", checkpoint.run["rounds"], low=0, high=1)
        log = [str(text) for text in checkpoint.run["steps"]]
        if checkpoint.action_values is not None:
            self.table.set_action_values(checkpoint.action_values)
        self.done, self.log = done, log

    def reason(self) -> str:
        """Why the goal is reached; empty if it is not."""
        return self.standing.reason(self.done)

    def leftover(self) -> str:
        """Why there was nothing more to try."""
        return self.standing.leftover()

    def certificate(
        self, *, stop: str, run: Mapping[str, Any], is_final: bool, is_hasty: bool = False
    ) -> Certificate:
        """What is proven now; with a threshold and its value if nothing follows."""
        tau = None
        if self.done and is_hasty:
            tau = self.target.tau
        elif self.done and is_final:
            tau = self.standing.threshold()
        return make_certificate(
            self.table,
            tau=tau,
            stop=stop,
            run=run,
            scope=ActionGaps.scope,
            goal=self.target.goal,
            forests=self.standing.forests_at_hand if tau is None else self.standing.forests,
            relation="optimal",
            prove=None if is_hasty else self.standing.search.prove,
        )


def _coarser(values: ActionValues, sets: Any) -> float:
    """A grid on which so few points differ that all pairs of them can be compared."""
    points, step = values.values, 4.0 * values.radius
    most = math.isqrt(MOST_WORK // points.shape[1])
    top = float(np.abs(points).max())
    while step < top:
        step *= COARSER
        if equal_rows(np.round(points / step), sets)[1].size <= most:
            break
    return step
