"""What a run over all pairs aims at: which certified thresholds will do, and which is best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate.goal import Goal
from bisim_abstract._linkage.thresholds import CertifiedInterval, best_interval

if TYPE_CHECKING:
    from bisim_abstract._prove.options import Options

USEFUL = 1.2  # ratio of the ends of an interval worth stopping for when looking for one
RESOLUTION = 1e-9  # of the diameter: thresholds below are numerical noise
SMALLEST = 1e-300  # where the diameter is 0, so that ratios mean something


@dataclass(frozen=True)
class Target:
    """What a run over all pairs is for. One of the first four decides, or else the goal.

    Attributes:
        tau: Threshold at which the clusterings should agree.
        n_clusters: Number of clusters that the threshold to look for should give.
        tol: Width of the bounds over all pairs to reach, in place of a threshold.
        is_widest: Whether to look for the certified interval whose ends have the largest ratio.
        goal: What agents on the clusters must keep, by proof; the fewest clusters count.
        n_states: Number of states, the end of episodes not counted.
        resolution: Thresholds below this are numerical noise.
    """

    tau: float | None
    n_clusters: int | None
    tol: float | None
    is_widest: bool
    goal: Goal
    n_states: int
    resolution: float

    @classmethod
    def of(cls, options: Options, table: Arms) -> Target:
        """The target of options, for arms over the pairs of states of a model."""
        return cls(
            tau=options.threshold,
            n_clusters=options.n_clusters,
            tol=options.tol,
            is_widest=options.is_widest,
            goal=options.goal,
            n_states=table.n - (table.mdp.terminal_state is not None),
            resolution=max(RESOLUTION * table.starts.diameter, SMALLEST),
        )

    @property
    def is_by_value(self) -> bool:
        """Whether proven values decide."""
        others = (self.tau, self.n_clusters, self.tol)
        return not self.is_widest and all(other is None for other in others)

    @property
    def is_free(self) -> bool:
        """Whether any threshold will do that certifies something worth having."""
        return self.is_by_value or self.is_widest

    def chosen(self, intervals: list[CertifiedInterval]) -> CertifiedInterval | None:
        """The certified interval that serves best, if any does and values do not decide."""
        if self.tau is not None:
            return next((x for x in intervals if x.low <= self.tau < x.high), None)
        return best_interval(
            intervals, self.n_states, n_clusters=self.n_clusters, floor=self.resolution
        )

    def is_met(self, intervals: list[CertifiedInterval]) -> bool:
        """Whether these are good enough to stop."""
        found = self.chosen(intervals)
        if found is None or self.tol is not None:
            return False
        if self.tau is not None or self.n_clusters is not None:
            return True
        return found.high >= USEFUL * max(found.low, self.resolution)


@dataclass(frozen=True)
class Prospect:
    """What values say about two arms.

    Attributes:
        best: The coarsest certified interval that is worth enough.
        target: A threshold above it that seems to be as well, with clearly fewer clusters, and
            is not certified; None if there is none.
    """

    best: CertifiedInterval | None
    target: float | None
