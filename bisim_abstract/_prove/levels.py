"""Levels of blocks: partitions are proposed, repaired and bounded, and the best one is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.labels import numbered
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._bounds.features import value_features
from bisim_abstract._bounds.ground import Ground
from bisim_abstract._bounds.spanning import common_refinement, lower_forest, upper_forest
from bisim_abstract._exact.metric import bisimulation_metric
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._linkage.thresholds import CertifiedInterval, certified_intervals
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._propose.embedding import scaled_points
from bisim_abstract._propose.partitions import (
    propose_classes,
    propose_components,
    repair_labels,
    split_labels,
)
from bisim_abstract._prove.standing import Standing
from bisim_abstract._prove.sweeping import (
    CHECK_EVERY,
    Sweeper,
    moved_outward,
    sweeps_needed,
)
from bisim_abstract._prove.target import Prospect

MOST_BLOCKS = 20_000  # of one level
MOST_BLOCK_PAIRS = 200_000  # up to which all pairs of blocks are covered
MANY_BLOCKS = 2_000  # beyond, looking at the goal takes as long as a few sweeps
VALUE_CHECKS = frozenset(5 * 2**k for k in range(12))  # sweeps after which values are looked at


class Levels:
    """Looks for blocks whose bounds serve.

    Args:
        standing: Where the run stands.
        labels: (n_states) a partition to try first, if there is one.
        points: (n_states, k) an embedding, if there is one.
        sources: What may propose blocks besides.
        seed: Seed of proposals.

    Attributes:
        backups: Backups of pairs of blocks made so far.
    """

    def __init__(
        self,
        standing: Standing,
        *,
        labels: IntArray | None,
        points: npt.NDArray[np.float32] | None,
        sources: tuple[str, ...],
        seed: int,
    ) -> None:
        self._standing, self._labels, self._points = standing, labels, points
        self._sources, self._seed = sources, seed
        self._table, self._target = standing.table, standing.target
        self._resources = standing.table.resources
        self._candidate: tuple[float, Arms, str] | None = None  # blocks not yet in the table
        self.backups = 0

    def take(self) -> str:
        """Add the best blocks so far to the table, if there are any; say which."""
        if self._candidate is None:
            return ""
        _, arms, name = self._candidate
        self._candidate = None
        self._table.add_level(arms.level())
        return f"{counted(arms.n, 'block')} by {name}"

    def choose(self) -> str:
        """Bound the block pairs of proposals until one of them will do; keep the best."""
        for name, labels in self._proposals():
            arms = self._bounded(labels, name)
            if arms is not None and self._is_enough(arms):
                break
        return self.take()

    def split(self) -> str:
        """Cut blocks that stay in the way in two, as one more level."""
        tau, table = self._standing.aim(), self._table
        if tau is None or not table.ground.levels:
            return ""
        below, above = (forest.labels(tau) for forest in self._standing.forests)
        parts = np.bincount(np.unique(np.stack([below, above]), axis=1)[0])
        cells = common_refinement(self._table.n, self._table.ground.levels)
        labels = cells.copy()
        points = self._short_features()
        count = int(labels.max()) + 1
        for block in np.unique(labels[parts[below] > 1]).tolist():
            members = np.flatnonzero(labels == block)
            halves = propose_components(
                scaled_points(points[members]), members.size, n_blocks=2, seed=self._seed
            )
            if halves is not None:
                labels[members[halves == 1]] = count
                count += 1
        if count == int(cells.max()) + 1:
            return ""
        arms = self._bounded(numbered(labels), "splitting")
        self._candidate = None
        if arms is None:
            return ""
        table.add_level(arms.level())
        return f"{counted(arms.n, 'block')} by splitting"

    def _is_enough(self, arms: Arms) -> bool:
        """Whether the bounds of a level would do by themselves."""
        if not self._target.is_by_value:
            return self._target.is_met(self._block_intervals(arms)[0])
        found = self._block_prospect(arms)
        return found.best is not None and found.target is None

    def _block_intervals(self, arms: Arms) -> tuple[list[CertifiedInterval], Forest, Forest]:
        return block_intervals(arms, self._standing.end)

    def _block_prospect(self, arms: Arms) -> Prospect:
        return self._standing.look(*self._block_intervals(arms), arms.model.labels)

    def _proposals(self) -> Iterator[tuple[str, IntArray]]:
        mdp, n = self._table.mdp, self._table.n
        if self._labels is not None:
            yield "the partition given", self._labels
            yield "the partition given, repaired", self._repaired(self._labels)
        if "classes" in self._sources:
            self._standing.pause("looking for classes", "")
            yield "bisimulation classes", propose_classes(mdp, resources=self._resources)
        sources: dict[str, Callable[[], npt.ArrayLike]] = {}
        if self._points is not None and "embedding" in self._sources:
            given = self._points
            sources["the embedding"] = lambda: given
        if "rewards" in self._sources:
            sources["rewards"] = lambda: mdp.rewards
        if "features" in self._sources:
            sources["value features"] = self._short_features
        for name, source in sources.items():
            self._standing.pause(f"looking for blocks in {name}", "")
            points = scaled_points(source())
            for rank in range(2):
                found = propose_components(
                    points, n, n_blocks=self._target.n_clusters, rank=rank, seed=self._seed
                )
                if found is None or found.max() + 1 > MOST_BLOCKS:
                    break
                yield name, self._repaired(found)
                if name == "the embedding":
                    # What an embedding runs together, rewards may tell apart at a glance.
                    finer = split_labels(scaled_points(mdp.rewards), found, seed=self._seed)
                    yield f"{name}, split by rewards", self._repaired(finer)
                if self._target.n_clusters is not None or found.max() + 1 > MANY_BLOCKS:
                    break

    def _repaired(self, labels: IntArray) -> IntArray:
        table = self._table
        return repair_labels(table.mdp, labels, table.gamma, resources=self._resources)

    def _short_features(self) -> FloatArray:
        """Rewards and values a few steps ahead: a good embedding, and cheap."""
        found = value_features(
            self._table.mdp,
            self._table.gamma,
            count=8,
            max_iter=10,
            resources=self._resources,
        )
        return np.hstack([self._table.mdp.rewards, found.points()])

    def _bounded(self, labels: IntArray, name: str) -> Arms | None:
        """Arms over the blocks of a partition, swept; None if it says nothing."""
        table = self._table
        count = int(labels.max()) + 1
        if count == table.n or count > MOST_BLOCKS or (count == 1 and table.n > 1):
            return None
        if self._target.is_by_value:
            self._standing.search.stand_in(labels)
            if not self._standing.is_worth(labels):
                return None  # nor are clusters of these blocks, most likely
        model = build_blocks(table.mdp, labels, resources=self._resources)
        arms = Arms(
            table.mdp,
            table.gamma,
            model=model,
            resources=self._resources,
        )
        arms.start_diagonal()
        if count > MANY_BLOCKS and float(arms.upper.max(initial=0.0)) > arms.starts.diameter / 4:
            return None  # sweeps would take minutes, and blocks as wide as this lead nowhere
        if arms.n_pairs <= MOST_BLOCK_PAIRS:
            arms.cover_all()
        else:
            # What diameters read, and blocks whose rewards do not keep them apart.
            arms.cover(*arms.ground_pairs())
            arms.cover(*_close_blocks(arms, MOST_BLOCK_PAIRS))
        self._propose(arms, name)
        if self._target.is_by_value:
            self._sweep_by_value(arms, name)
        else:
            self._sweep_for_width(arms, name)
        self._propose(arms, name)
        return arms

    def _sweeps(self, arms: Arms, name: str) -> Iterator[tuple[int, float]]:
        """Sweep the arms of blocks: numbers of sweeps, and by how much bounds moved."""
        before, what = self.backups, f"bounding {counted(arms.n, 'block')} by {name}"
        sweeper = Sweeper(
            arms,
            lower=True,
            tol=1e-9 * arms.starts.diameter,
            pause=lambda detail: self._standing.pause(what, detail),
        )
        for sweep in range(1, sweeps_needed(self._table.gamma) + 1):
            moved = sweeper.sweep()
            self.backups = before + arms.backups
            self._standing.pause(what, f"sweep {sweep}, moved {moved:.2g}")
            yield sweep, moved
            if sweeper.is_settled:
                return

    def _sweep_by_value(self, arms: Arms, name: str) -> None:
        """Until the fewest clusters that seem worth enough are certified, or nothing moves."""
        if _is_quotient(arms):
            self._standing.pause(f"solving for {counted(arms.n, 'block')} by {name}", "")
            self._solve_quotient(arms)
            return
        for sweep, moved in self._sweeps(arms, name):
            # Looked at ever more rarely: it takes longer than sweeping.
            if sweep in VALUE_CHECKS:
                found = self._block_prospect(arms)
                if found.best is not None and (found.target is None or arms.n > MANY_BLOCKS):
                    break
            if moved <= 1e-7 * arms.starts.diameter:
                break

    def _solve_quotient(self, arms: Arms) -> None:
        """The exact metric of blocks whose members are exactly alike.

        Their block inequalities are those of a model with one state per block.
        """
        model = arms.model
        quotient = TabularMDP(
            indptr=model.indptr, indices=model.indices, probs=model.probs, rewards=model.low
        )
        found = bisimulation_metric(quotient, arms.gamma, resources=self._resources)
        first, second = arms.pairs()
        lower, upper = moved_outward(arms, *found.bounds(first, second))
        is_pair = first != second  # diameters are 0 already
        arms.tighten(np.where(is_pair, lower, 0.0), np.where(is_pair, upper, np.inf))
        self.backups += arms.keys.size

    def _sweep_for_width(self, arms: Arms, name: str) -> None:
        """Until the threshold asked for is certified, or what is proven grows no more."""
        width = -math.inf
        for sweep, moved in self._sweeps(arms, name):
            if moved <= 1e-12 * arms.starts.diameter:
                break
            if sweep % (CHECK_EVERY if arms.n <= MANY_BLOCKS else 4 * CHECK_EVERY):
                continue
            intervals = self._block_intervals(arms)[0]
            found = self._target.chosen(intervals)
            if found is None:
                # Nothing yet: go on while the bounds still move noticeably.
                if moved <= 1e-3 * max(
                    self._target.tau or arms.starts.diameter, self._target.resolution
                ):
                    break
                continue
            if self._target.tau is not None:
                break
            # Looking for a threshold: go on while what is proven still grows.
            wider = _width_score(arms, found, self._target.resolution)
            if wider <= width + 0.01:
                break
            width = wider

    def _propose(self, arms: Arms, name: str) -> None:
        """Remember these blocks if they are the best so far."""
        score = self._score(arms)
        if self._candidate is None or score >= self._candidate[0] or arms is self._candidate[1]:
            self._candidate = (score, arms, name)

    def _score(self, arms: Arms) -> float:
        """How good the bounds of a level are; above 0 if they give what is looked for."""
        intervals = self._block_intervals(arms)[0]
        if not self._target.is_by_value:
            return _width_score(arms, self._target.chosen(intervals), self._target.resolution)
        best = self._block_prospect(arms).best if arms.backups else None
        if best is not None:
            return 1.0 + self._table.n / max(best.n_clusters, 1)  # the fewer the better
        return _width_score(arms, None, self._target.resolution)


def block_intervals(
    arms: Arms, end: int | None = None
) -> tuple[list[CertifiedInterval], Forest, Forest]:
    """Thresholds that a block level certifies by itself, as far as all its blocks hold together.

    Args:
        arms: Over pairs of blocks.
        end: The state that stands for the end of episodes, which is not counted.

    Returns:
        The thresholds, and the forests of both arms over blocks.
    """
    first, second = arms.pairs()
    nearest = np.where(arms.model.is_point, 0.0, np.inf)
    np.minimum.at(nearest, first, arms.upper)
    np.minimum.at(nearest, second, arms.upper)
    nearest[arms.model.is_point] = 0.0
    floor = float(nearest.max())  # from here on, members of any block are linked
    differ = first != second
    keys = arms.keys[differ]
    ground = Ground(arms.starts)
    lower = lower_forest(arms.n, ground, keys, arms.lower[differ])
    upper = upper_forest(arms.n, ground, keys, arms.upper[differ])
    block = None if end is None else int(arms.model.labels[end])
    found = certified_intervals(
        lower,
        upper,
        block if block is not None and arms.model.is_point[block] else None,
    )
    joined = [
        CertifiedInterval(max(x.low, floor), x.high, x.n_clusters) for x in found if x.high > floor
    ]
    return joined, lower, upper


def _is_quotient(arms: Arms) -> bool:
    """Whether all pairs of blocks are covered, and the members of each are exactly alike."""
    model = arms.model
    is_exact = not model.is_estimate and not model.radius.any() and model.low is model.high
    first, second = arms.pairs()
    is_flat = not arms.upper[first == second].any()
    return is_exact and is_flat and arms.keys.size >= arms.n_pairs


def _width_score(arms: Arms, found: CertifiedInterval | None, resolution: float) -> float:
    """The log width of the interval to choose.

    Below 0 if there is none: then how far its widest block is beyond its closest blocks.
    """
    if found is not None and found.high < math.inf:
        # Logarithms first: the quotient of small numbers may be 0.
        return math.log(found.high) - math.log(max(found.low, resolution)) + 1e-9
    first, second = arms.pairs()
    same = first == second
    wide = max(float(arms.upper[same].max(initial=0.0)), resolution)
    close = max(float(arms.lower[~same].min(initial=np.inf)), 1e-3 * resolution)
    return min(math.log(close) - math.log(wide), -1e-9) if math.isfinite(close) else -1e9


def _close_blocks(arms: Arms, most: int) -> tuple[IntArray, IntArray]:
    """The pairs of blocks with the smallest lower starts, about `most` of them."""
    from scipy.spatial import cKDTree

    middle_of = (arms.model.low + arms.model.high) / 2.0
    k = min(arms.n, 2 + 2 * most // arms.n)
    near = np.asarray(cKDTree(middle_of).query(middle_of, k=k, p=np.inf)[1])
    return np.repeat(np.arange(arms.n), k), near.ravel()
