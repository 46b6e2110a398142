"""Levels of blocks: partitions are proposed, repaired and bounded, and the best one is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._bounds.boxes import Boxes
from bisim_abstract._bounds.features import ValueFeatures, value_features
from bisim_abstract._bounds.ground import Ground
from bisim_abstract._bounds.pair_table import PairTable
from bisim_abstract._bounds.spanning import common_refinement, lower_forest, upper_forest
from bisim_abstract._exact.metric import bisimulation_metric
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._linkage.thresholds import (
    CertifiedInterval,
    certified_intervals,
    wide_intervals,
)
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._propose.ahead import rewards_ahead
from bisim_abstract._propose.embedding import scaled_points
from bisim_abstract._propose.order import by_worth
from bisim_abstract._propose.partitions import (
    propose_classes,
    propose_components,
    repair_labels,
    split_labels,
)
from bisim_abstract._propose.renaming import match_actions
from bisim_abstract._prove.apart import likely_limit, raise_lower
from bisim_abstract._prove.cost import block_backup, proof_of_value
from bisim_abstract._prove.standing import Standing
from bisim_abstract._prove.sweeping import (
    CHECK_EVERY,
    Purse,
    Sweeper,
    moved_outward,
    sweeps_needed,
)
from bisim_abstract._prove.target import USEFUL, Prospect

MOST_BLOCKS = 20_000  # of one level
MOST_BLOCK_PAIRS = 200_000  # up to which all pairs of blocks are covered
MOST_OPEN = 8_000_000  # pairs of blocks that are covered where all would be too many
FEW_OPEN = 50_000  # pairs of blocks that are covered in any case
OPEN_BYTES = 1_500  # what each of them takes, with the costs that it reads
MANY_BLOCKS = 2_000  # beyond, looking at the goal takes as long as a few sweeps
LIMIT = 1.01 * USEFUL  # times the diameters of blocks: how far these should be apart
ONE_OF_MANY = 0.5  # of what is left: what the sweeps of one proposal may take
WIDE = 0.25  # of the largest distance: blocks as wide as this lead nowhere
SEARCH_BYTES = 1_000  # per state whose neighbours are looked for
SAMPLES = (8_000, 64_000)  # states in which blocks are looked for before all of them
AHEAD = "rewards ahead"
VALUE_CHECKS = frozenset(5 * 2**k for k in range(12))  # sweeps after which values are looked at


BlockIntervals: TypeAlias = tuple[list[CertifiedInterval], Forest, Forest]


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
        self._features: ValueFeatures | None = None  # by which blocks are kept apart, if needed
        self._boxes: tuple[Arms, Boxes] | None = None  # of the arms looked at last
        self._looked_at: tuple[PairTable, BlockIntervals] | None = None  # what bounds certify
        self.backups = 0

    def take(self) -> str:
        """Add the best blocks so far to the table, if there are any; say which."""
        if self._candidate is None:
            return ""
        _, arms, name = self._candidate
        self._table.add_level(arms.level())
        if self._features is not None:
            self._table.set_features(self._features)
        self._candidate = None  # not before: an interrupt may come between
        if self._features is None:
            return f"{counted(arms.n, 'block')} by {name}"
        count = self._features.values.shape[0]
        return f"{counted(arms.n, 'block')} by {name}, and {count} value features"

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
        arms = self._bounded(numbered(labels), "splitting", is_rival=False)
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

    def _block_intervals(self, arms: Arms) -> BlockIntervals:
        # Tables are replaced when a bound moves: the same one certifies the same.
        if self._looked_at is None or self._looked_at[0] is not arms.covered:
            found = block_intervals(arms, self._standing.end, self._boxes_of(arms))
            self._looked_at = arms.covered, found
        return self._looked_at[1]

    def _block_prospect(self, arms: Arms) -> Prospect:
        return self._standing.look(*self._block_intervals(arms), arms.model.labels)

    def _proposals(self) -> Iterator[tuple[str, IntArray]]:
        mdp, n = self._table.mdp, self._table.n
        if self._labels is not None:
            yield "the partition given", self._labels
            yield "the partition given, repaired", self._repaired(self._labels)
        if mdp.estimate is not None and mdp.estimate.blocks is not None:
            # As they are: repaired by the samples, they would not be independent of them.
            yield "the blocks of the estimate", numbered(mdp.estimate.blocks)
        if "classes" in self._sources:
            self._standing.pause("looking for classes", "")
            yield (
                "bisimulation classes",
                propose_classes(mdp, relation=self._table.relation.name, resources=self._resources),
            )
        sources: dict[str, Callable[[], npt.ArrayLike]] = {}
        if self._points is not None and "embedding" in self._sources:
            given = self._points
            sources["the embedding"] = lambda: given
        if "rewards" in self._sources:
            sources["rewards"] = lambda: self._rewards
        if "ahead" in self._sources:
            sources[AHEAD] = lambda: rewards_ahead(self._sorted, self._table.gamma, seed=self._seed)
        if "features" in self._sources:
            sources["value features"] = self._short_features
        done: set[str] = set()
        points: dict[str, FloatArray] = {}
        # What shows in a small sample is tried first, whatever shows it.
        for most in [*(size for size in SAMPLES if size < n), None]:
            for name, source in sources.items():
                if most is None and n > SAMPLES[-1] and name == AHEAD:
                    continue  # in more points of many columns gaps are found too slowly
                self._standing.pause(f"looking for blocks in {name}", "")
                if name not in points:
                    points[name] = scaled_points(source())
                found = self._components(points[name], most, 0)
                if found is None:
                    continue
                yield from self._variants(name, found)
                if self._target.n_clusters is None and found.max() + 1 <= MANY_BLOCKS:
                    found = self._components(points[name], most, 1)
                    if found is not None:
                        yield from self._variants(name, found)
                done.add(name)
            sources = {name: source for name, source in sources.items() if name not in done}

    def _components(self, points: FloatArray, most: int | None, rank: int) -> IntArray | None:
        # Memory is kept to by what is looked at; a sample of the smallest size takes little.
        fits = self._resources.room // SEARCH_BYTES
        return propose_components(
            points,
            self._table.n,
            n_blocks=self._target.n_clusters,
            rank=rank,
            most=fits if most is None else min(most, fits),
            seed=self._seed,
            resources=replace(self._resources, memory_limit=None),
        )

    def _variants(self, name: str, found: IntArray) -> Iterator[tuple[str, IntArray]]:
        """A partition, repaired; that of an embedding also in another way."""
        if found.max() + 1 > MOST_BLOCKS:
            return
        if self._table.relation.matches_actions:
            yield name, found  # what an order of actions has to do with it may mislead a repair
        yield name, self._repaired(found)
        if name == "the embedding":
            # What an embedding runs together, rewards may tell apart at a glance.
            rewards = scaled_points(self._rewards)
            finer = split_labels(rewards, found, seed=self._seed)
            yield f"{name}, split by rewards", self._repaired(finer)

    def _repaired(self, labels: IntArray) -> IntArray:
        table = self._table
        return repair_labels(self._sorted, labels, table.gamma, resources=self._resources)

    @property
    def _rewards(self) -> FloatArray:
        """(n_states, n_actions) rewards, in rising order where actions have no names."""
        rewards = self._table.mdp.rewards
        return self._table.relation.arranged(rewards, rewards)[0]

    @cached_property
    def _sorted(self) -> TabularMDP:
        """The model; where actions have no names, each state's sorted by what they are worth."""
        table = self._table
        return by_worth(table.mdp, table.gamma) if table.relation.matches_actions else table.mdp

    def _short_features(self) -> FloatArray:
        """Rewards and values a few steps ahead: a good embedding, and cheap."""
        found = value_features(
            self._table.mdp,
            self._table.gamma,
            count=8,
            max_iter=10,
            relation=self._table.relation.name,
            resources=self._resources,
        )
        return np.hstack([self._rewards, found.points()])

    def _bounded(self, labels: IntArray, name: str, *, is_rival: bool = True) -> Arms | None:
        """Arms over the blocks of a partition, swept; None if it says nothing.

        A rival of other partitions is compared with them, which may take longer than to sweep it.
        """
        table = self._table
        if table.starts.has_sets:  # states with different actions are far apart
            labels = numbered(labels * (int(table.starts.sets.max()) + 1) + table.starts.sets)
        count = int(labels.max()) + 1
        if count == table.n or count > MOST_BLOCKS or (count == 1 and table.n > 1):
            return None
        is_quick = table.n * (table.n - 1) // 2 <= MOST_BLOCK_PAIRS
        if 2 * count > table.n and not is_quick and not self._standing.too_many():
            return None  # all pairs of states take no longer, and say more
        if self._target.is_by_value:
            self._standing.search.stand_in(labels)
            if not self._standing.is_worth(labels):
                return None  # nor are clusters of these blocks, most likely
        renaming = None
        if table.relation.matches_actions:
            renaming = match_actions(table.mdp, labels, resources=self._resources)
        model = build_blocks(table.mdp, labels, renaming=renaming, resources=self._resources)
        arms = Arms(
            table.mdp,
            table.gamma,
            model=model,
            relation=table.relation,
            resources=self._resources,
        )
        arms.start_diagonal()
        if count > MANY_BLOCKS and _widest(arms) > WIDE * arms.starts.diameter:
            return None  # sweeps would take minutes
        if arms.n_pairs > MOST_BLOCK_PAIRS and self._keep_apart(arms, name):
            self._propose(arms, name, is_rival=is_rival)
            return arms
        if arms.n_pairs <= MOST_BLOCK_PAIRS:
            arms.cover_all()
        else:
            # What diameters read, and blocks whose rewards do not keep them apart.
            arms.cover(*arms.ground_pairs())
            arms.cover(*_close_blocks(arms, MOST_BLOCK_PAIRS))
        self._propose(arms, name, is_rival=is_rival)
        if self._target.is_by_value:
            self._sweep_by_value(arms, name)
        else:
            self._sweep_for_width(arms, name)
        self._propose(arms, name, is_rival=is_rival)
        return arms

    def _keep_apart(self, arms: Arms, name: str) -> bool:
        """Bound diameters, and cover the pairs of blocks that nothing else keeps apart.

        Returns:
            Whether that could be done; it cannot if the pairs are too many.
        """
        before = self.backups

        def swept(sweep: int, moved: float) -> None:
            self.backups = before + arms.backups
            self._tell(arms, name, sweep, moved)

        arms.cover(*arms.ground_pairs())  # what diameters read
        wide = math.inf
        for sweep in range(1, sweeps_needed(self._table.gamma, 1e-3) + 1):
            moved = arms.sweep(lower=False)[1]
            swept(sweep, moved)
            wide = _widest(arms)
            if moved <= 1e-3 * wide:
                break
        if not 0.0 < wide <= WIDE * arms.starts.diameter:
            return False
        self._features = self._standing.features
        boxes = self._boxes_with(self._features, arms)
        limit = self._target.tau
        if limit is None:
            # As far as makes an interval worth having; farther, where that takes little.
            limit = max(LIMIT * wide, likely_limit(boxes, FEW_OPEN, self._seed))
        most = min(MOST_OPEN, self._resources.room // OPEN_BYTES)
        limit = math.nextafter(limit, math.inf)
        close = boxes.close_pairs(limit, most=most, threads=self._resources.n_threads)
        if close is None:
            return False
        raise_lower(arms, boxes, limit, *close, most=most, swept=swept)
        return True

    def _boxes_of(self, arms: Arms) -> Boxes | None:
        """Rewards and features of blocks, if features are known."""
        return None if self._features is None else self._boxes_with(self._features, arms)

    def _boxes_with(self, features: ValueFeatures, arms: Arms) -> Boxes:
        if self._boxes is None or self._boxes[0] is not arms:
            rewards = Boxes.of(arms.starts, None, np.arange(arms.n))
            self._boxes = arms, rewards.with_features(features, arms.model.labels)
        return self._boxes[1]

    def _tell(self, arms: Arms, name: str, sweep: int, moved: float) -> None:
        self._standing.pause(
            f"bounding {counted(arms.n, 'block')} by {name}", f"sweep {sweep}, moved {moved:.2g}"
        )

    def _sweeps(self, arms: Arms, name: str) -> Iterator[tuple[int, float]]:
        """Sweep the arms of blocks: numbers of sweeps, and by how much bounds moved."""
        before, what = self.backups, f"bounding {counted(arms.n, 'block')} by {name}"
        cost = self._standing.cost
        limit = cost.spent + ONE_OF_MANY * cost.left
        sweeper = Sweeper(
            arms,
            lower=True,
            tol=1e-9 * arms.starts.diameter,
            pause=lambda detail: self._standing.pause(what, detail),
            purse=Purse(cost, block_backup(arms.model, arms.relation), limit),
        )
        for sweep in range(1, sweeps_needed(self._table.gamma) + 1):
            if not sweeper.is_affordable:
                return
            moved = sweeper.sweep()
            self.backups = before + arms.backups
            self._tell(arms, name, sweep, moved)
            yield sweep, moved
            if sweeper.is_settled:
                return

    def _sweep_by_value(self, arms: Arms, name: str) -> None:
        """Until the fewest clusters that seem worth enough are certified, or nothing moves."""
        if _is_quotient(arms):
            self._standing.pause(f"solving for {counted(arms.n, 'block')} by {name}", "")
            self._solve_quotient(arms)
            return
        cost, look = self._standing.cost, self._look_seconds(arms)
        looked = -math.inf  # what had been spent when values were looked at last
        for sweep, moved in self._sweeps(arms, name):
            # Looked at ever more rarely, and not before sweeps have taken as long as a look does.
            is_time = sweep in VALUE_CHECKS and cost.spent - looked >= look
            if is_time and self._has_clusters(arms):
                cost.spend(look)
                looked = cost.spent
                found = self._block_prospect(arms)
                if found.best is not None and (found.target is None or arms.n > MANY_BLOCKS):
                    break
            if moved <= 1e-7 * arms.starts.diameter:
                break

    def _has_clusters(self, arms: Arms) -> bool:
        """Whether anything is certified but a single cluster: else there is no value to look at."""
        return any(interval.n_clusters > 1 for interval in self._block_intervals(arms)[0])

    def _look_seconds(self, arms: Arms) -> float:
        """How long it takes to see what the clusterings of blocks are worth, at most."""
        search, mdp = self._standing.search, self._table.mdp
        nnz = int(arms.model.indptr[-1]) if search.has_stand_in else mdp.nnz
        return min(arms.n, search.most) * proof_of_value(nnz, self._table.gamma)

    def _solve_quotient(self, arms: Arms) -> None:
        """The exact metric of blocks whose members are exactly alike.

        Their block inequalities are those of a model with one state per block.
        """
        model = arms.model
        quotient = TabularMDP(
            indptr=model.indptr,
            indices=model.indices,
            probs=model.probs,
            rewards=model.low,
            available=model.available,
        )
        found = bisimulation_metric(
            quotient, arms.gamma, relation=arms.relation.name, resources=self._resources
        )
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
            if self._target.is_met(intervals) and not self._target.is_widest:
                break
            # Looking for the widest interval: go on while what is proven still grows.
            wider = _width_score(arms, found, self._target.resolution)
            if wider <= width + 0.01:
                break
            width = wider

    def _propose(self, arms: Arms, name: str, *, is_rival: bool) -> None:
        """Remember these blocks if they are the best so far."""
        score = self._score(arms) if is_rival else math.inf
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
    arms: Arms, end: int | None = None, boxes: Boxes | None = None
) -> tuple[list[CertifiedInterval], Forest, Forest]:
    """Thresholds that a block level certifies by itself, as far as all its blocks hold together.

    Args:
        arms: Over pairs of blocks.
        end: The state that stands for the end of episodes, which is not counted.
        boxes: What blocks occupy, if features are to keep them apart as well.

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
    below = arms.lower[differ]
    if boxes is not None:
        below = np.maximum(below, boxes.pairs(first[differ], second[differ]))
    lower = lower_forest(arms.n, ground, keys, below, boxes)
    upper = upper_forest(arms.n, ground, keys, arms.upper[differ])
    block = None if end is None else int(arms.model.labels[end])
    found = certified_intervals(
        lower,
        upper,
        block if block is not None and arms.model.is_point[block] else None,
    )
    joined = [
        CertifiedInterval(max(x.low, floor), x.high, x.n_clusters)
        for x in wide_intervals(found)
        if x.high > floor
    ]
    return joined, lower, upper


def _widest(arms: Arms) -> float:
    """The largest bound on the diameter of a block."""
    first, second = arms.pairs()
    return float(arms.upper[first == second].max(initial=0.0))


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

    low, high = arms.starts.columns
    middle_of = (low + high) / 2.0
    k = min(arms.n, 2 + 2 * most // arms.n)
    near = np.asarray(cKDTree(middle_of).query(middle_of, k=k, p=np.inf)[1])
    return np.repeat(np.arange(arms.n), k), near.ravel()
