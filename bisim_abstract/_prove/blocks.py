"""Certificates over all pairs: blocks first, then what their bounds leave open.

One step after another tightens the bounds, and none loosens them:

1. blocks: partitions are proposed, repaired and bounded as block pairs; the best one is kept
   (if there are few states, all pairs follow at once, or come first where they are quick and
   values decide, so that there are many thresholds to choose from);
2. features: value functions keep states apart that blocks do not;
3. inside: pairs within blocks that are too wide are covered, and swept;
4. across: pairs between blocks that may be too close are covered, and swept;
5. witnesses: functions made to tell apart two blocks that are still too close;
6. split: blocks that stay in the way are cut in two, as a further level;
7. all pairs, if these are few enough.

After every step the clusterings of both arms are compared. What they still disagree about at the
threshold decides where the next step looks. If the threshold is to be found, it is chosen by
what planning on its clusters is proven to be worth: the coarsest certified one that is worth
enough; and while a clearly coarser one seems to be, though it is not certified yet, that is
where the next step looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._base.arrays import array_digest
from bisim_abstract._base.checks import check_choice, check_int
from bisim_abstract._base.labels import as_labels, numbered
from bisim_abstract._base.memory import human_bytes
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import PAIR_BYTES, Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._bounds.features import make_witness, value_features
from bisim_abstract._bounds.ground import Ground
from bisim_abstract._bounds.links import (
    Cells,
    common_refinement,
    find_cells,
    link_forests,
    lower_forest,
    row_reader,
    upper_forest,
)
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.frontier import Numbers, ValueSearch, first_good
from bisim_abstract._certificate.verdict import NOTHING_FOUND, NOTHING_MERGES
from bisim_abstract._exact.metric import bisimulation_metric
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._linkage.thresholds import (
    CertifiedInterval,
    certified_intervals,
    middle,
)
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._propose.embedding import Embedding, as_points, scaled_points
from bisim_abstract._propose.partitions import (
    propose_classes,
    propose_components,
    repair_labels,
    split_labels,
)
from bisim_abstract._prove.making import make_certificate
from bisim_abstract._prove.target import Prospect, Target
from bisim_abstract._prove.work import Pause
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._prove.options import Options

__all__ = ["Blocks"]

MOST_BLOCKS = 20_000  # of one level
MOST_BLOCK_PAIRS = 200_000  # up to which all pairs of blocks are covered
MANY_BLOCKS = 2_000  # beyond, looking at the goal takes as long as a few sweeps
CHECK_EVERY = 5  # sweeps between two looks at the goal
FEATURES = 16  # value functions
SOURCES = ("classes", "embedding", "rewards", "features")  # of proposed blocks
WITNESSES = 16  # at most, per step
SPLITS = 2  # rounds of splitting
FEW_PAIRS = 150_000  # pairs that are solved for at once rather than narrowed down to
QUICK_CELLS = 10_000_000  # ground costs of all pairs up to which these come first
MOST_CELLS = 2_000_000_000  # ground costs that one sweep over all pairs may read
WORTH = 0.8  # clusters that others must have fewer than, times these, to be worth more work
VALUE_CHECKS = frozenset(5 * 2**k for k in range(12))  # sweeps after which values are looked at
CHASE = 8_000_000  # backups of pairs in one step towards a threshold that seems worth it
FINER = 3  # finer thresholds that are tried where one was promising only
HOPELESS = 20.0  # blocks wider than this many times their distances are not worth more work


def _never(stage: str, detail: str, *, may_end: bool = True) -> None:
    """Go on whatever happens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Blocks of similar states first, then what their bounds leave open, over all pairs.

    Blocks are proposed, by bisimulation classes, by the embedding, by rewards and by value
    features; bounds on pairs of blocks hold for all their members. Where these leave the
    clustering open, value features, covered pairs inside and across blocks, finer blocks, and at
    last all single pairs settle it. A proposal is never trusted.

    Attributes:
        partition: (n_states) a partition of the states to try first.
        embedding: Points (n_states, k), or an object with `encode`: where blocks are looked for.
        propose: What may propose blocks besides: any of "classes" (bisimulation classes),
            "embedding" (if one is given), "rewards" and "features" (value functions).
        max_pairs: Pairs of states that may be covered.
    """

    scope: ClassVar[str] = "all"

    partition: npt.ArrayLike | None = None
    embedding: Embedding | npt.ArrayLike | None = None
    propose: Sequence[str] = SOURCES
    max_pairs: int = 1_000_000

    def __post_init__(self) -> None:
        if isinstance(self.propose, str) or not isinstance(self.propose, Sequence):
            raise InvalidArgumentError(f"propose must be a list of names, got {self.propose!r}")
        names = tuple(check_choice("propose", name, SOURCES) for name in self.propose)
        object.__setattr__(self, "propose", names)
        object.__setattr__(self, "max_pairs", check_int("max_pairs", self.max_pairs, low=0))

    def check(self, options: Options) -> None:
        """Every goal can be looked for."""

    def starts(self) -> Mapping[str, Any]:
        """How arms start: as their defaults say."""
        return {}

    def read(self, n_states: int) -> tuple[IntArray | None, npt.NDArray[np.float32] | None]:
        """Labels and points, if there are any, as those of so many states."""
        labels, points = self.partition, self.embedding
        return (
            None if labels is None else as_labels(labels, n_states, name="partition"),
            None if points is None else as_points(points, n_states),
        )

    def begin(self, table: Arms, options: Options) -> Refinement:
        """A run on arms that cover nothing yet."""
        return Refinement(table, self, options)


class Refinement:
    """A run over all pairs, one step at a time.

    Args:
        table: Arms over pairs of states, nothing covered.
        method: How to look for blocks.
        options: What to reach.

    Attributes:
        table: The arms over pairs of states and what these read.
        target: What to reach.
        done: Number of steps made.
        log: What each of them did.
        search: What clusterings are worth.
    """

    unit = "step"

    def __init__(self, table: Arms, method: Blocks, options: Options) -> None:
        self.table = table
        self.target = Target.of(options, table)
        self.done = 0
        self.log: list[str] = []
        self._method, self._seed = method, options.seed
        self._labels, self._points = method.read(table.n)
        self._resources = table.resources
        self._pause: Pause = _never
        self._block_backups = 0
        self._candidate: tuple[float, Arms, str] | None = None  # blocks not yet in the table
        self._intervals: list[CertifiedInterval] | None = None
        self._forests: tuple[Forest, Forest] | None = None
        self._prospect: Prospect | None = None
        by = "start" if self.target.max_loss is None else "worst"
        self.search = ValueSearch(table.mdp, table.gamma, by=by)
        pairs = (self._inside, self._across, self._witnesses)
        self._plan: tuple[Callable[[], str], ...] = (
            self._quick_pairs,
            self._blocks,
            self._few_pairs,
            self._features,
            *pairs,
            *((self._split, *pairs) * SPLITS),
            self._all_pairs,
        )

    def step(self, pause: Pause) -> bool:
        """Make the next step; False if there is none left."""
        if self.done == len(self._plan) or (self.done and self.table.n_covered == self._n_pairs):
            return False
        self._pause = pause
        text = self._plan[self.done]()
        self._forget()
        self.done += 1
        if text:
            self.log.append(text)
        return True

    def settle(self) -> None:
        """After the last step, or an interruption: keep what an unfinished step has proven."""
        self._pause = _never  # nobody waits for a step any more
        if self._candidate is not None:
            _, arms, name = self._candidate
            self._candidate = None
            self.table.add_level(arms.level())
            self.log.append(f"{counted(arms.n, 'block')} by {name}")
        self._forget()

    def _forget(self) -> None:
        """Bounds have moved."""
        self._forests = self._intervals = self._prospect = None

    def settings(self) -> Mapping[str, Any]:
        """The target decides where steps look, and the method what they may take."""
        method = self._method
        return asdict(self.target) | {
            "partition": array_digest(self._labels),
            "embedding": array_digest(self._points),
            "propose": list(method.propose),
            "max_pairs": method.max_pairs,
        }

    def record(self) -> Mapping[str, Any]:
        """How it went."""
        return {"steps": list(self.log)}

    def resume(self, checkpoint: Certificate) -> None:
        """Go on from the certificate of an unfinished run."""
        run = checkpoint.run
        done = check_int("rounds", run["rounds"], low=0, high=len(self._plan))
        log = [str(text) for text in run["steps"]]
        for level in checkpoint.levels:
            self.table.add_level(level)
        if checkpoint.features is not None:
            self.table.set_features(checkpoint.features)
        self.table.restore(checkpoint.keys, checkpoint.lower, checkpoint.upper, run["backups"])
        self.done, self.log = done, log

    @property
    def backups(self) -> int:
        """Backups made so far, of pairs of states and of blocks."""
        return self.table.backups + self._block_backups

    # -- where it stands -------------------------------------------------------------------

    @property
    def forests(self) -> tuple[Forest, Forest]:
        """Spanning forests of both arms over all pairs."""
        if self._forests is None:
            self._forests = link_forests(Blocks.scope, self.table.ground, self.table.covered)
        return self._forests

    @property
    def intervals(self) -> list[CertifiedInterval]:
        """Thresholds that are certified now."""
        if self._intervals is None:
            self._intervals = certified_intervals(*self.forests, self._end)
        return self._intervals

    @property
    def _end(self) -> int | None:
        return self.table.mdp.terminal_state

    @property
    def prospect(self) -> Prospect:
        """What values say about the present bounds."""
        if self._prospect is None:
            self._pause("looking for a threshold worth having", "")
            everyone = np.arange(self.table.n)
            self._prospect = self._look(self.intervals, *self.forests, everyone)
        return self._prospect

    def _look(
        self, intervals: list[CertifiedInterval], lower: Forest, upper: Forest, nodes: IntArray
    ) -> Prospect:
        """The coarsest interval that is worth enough, and what may be better.

        Args:
            intervals: Certified ones.
            lower: Forest of the lower arm, over blocks.
            upper: Forest of the upper arm, over the same.
            nodes: (n_states) the block of each state.
        """
        floor = self.target.resolution
        open_ = [x for x in intervals if x.high > floor][::-1]

        def is_enough(tau: float) -> bool:
            return self._is_worth(upper.labels(tau)[nodes])

        most = self.search.most
        at = first_good(len(open_), lambda k: is_enough(middle(open_[k], floor=floor)), most)
        best = None if at is None else open_[at]
        if best is not None and not self._is_worth_chasing():
            return Prospect(best, None)
        # Every clustering of the upper arm that is clearly coarser than that.
        limit = self.table.n if best is None else int(WORTH * best.n_clusters)
        cuts = np.unique(upper.weights)[::-1]
        cuts = cuts[(upper.count(cuts) <= limit) & (cuts < self.table.starts.diameter)]
        seen = first_good(cuts.size, lambda k: is_enough(float(cuts[k])), most)
        if seen is None or any(x.low <= cuts[seen] < x.high for x in intervals):
            return Prospect(best, None)  # nothing, or certified: it was among those above
        # Where the lower arm keeps these clusters apart: links inside them are what is missing.
        labels = upper.labels(float(cuts[seen]))
        crossing = labels[lower.first] != labels[lower.second]
        apart = float(lower.weights[crossing].min(initial=np.inf)) * (1.0 - 1e-6)
        return Prospect(best, apart if floor < apart < cuts[seen] else float(cuts[seen]))

    def _is_worth(self, labels: IntArray) -> bool:
        return self.target.is_worth(self.search.numbers(labels), self.search.blind())

    def _fallback(self) -> CertifiedInterval | None:
        """Where nothing certified is worth enough: what is worth most, of more than one cluster."""
        floor, upper = self.target.resolution, self.forests[1]
        some = [x for x in self.intervals if x.high > floor and x.n_clusters > 1]
        if len(some) > self.search.most:
            picked = np.linspace(0, len(some) - 1, self.search.most).astype(np.int64)
            some = [some[k] for k in np.unique(picked)]

        def worth(interval: CertifiedInterval) -> tuple[float, int]:
            found = self.search.numbers(upper.labels(middle(interval, floor=floor)))
            return (
                found.kept if self.target.max_loss is None else -found.loss
            ), -interval.n_clusters

        return max(some, key=worth, default=None)

    def interval(self) -> CertifiedInterval | None:
        """The certified interval to take the threshold from."""
        if not self.target.is_by_value:
            return self.target.chosen(self.intervals)
        return self._confirmed(self.prospect.best) or self._fallback()

    def _confirmed(self, best: CertifiedInterval | None) -> CertifiedInterval | None:
        """The interval, or the next finer one that is worth enough, by the model itself."""
        if best is None:
            return None
        floor, upper, blind = self.target.resolution, self.forests[1], self.search.blind()
        finer = [x for x in self.intervals if x.high > floor and x.n_clusters > best.n_clusters]
        for interval in [best, *finer[::-1][:FINER]]:
            value = self.search.prove(upper.labels(middle(interval, floor=floor)))
            found = Numbers(value.kept, value.loss, value.start_loss)
            if self.target.is_worth(found, blind):
                return interval
        return None

    def threshold(self) -> float | None:
        """The threshold to put into the certificate."""
        if self.target.tau is not None:
            return self.target.tau
        found = self.interval()
        return None if found is None else middle(found, floor=self.target.resolution)

    def reason(self) -> str:
        """Why the goal is reached; empty if it is not."""
        tol, table = self.target.tol, self.table
        if tol is not None:
            width = float((table.upper - table.lower).max(initial=0.0))
            if table.coverage == 1.0 and width <= tol:
                return f"width {width:.3g} is within {tol:g}"
            return ""
        if self.done == 1 and table.n_covered == 0 and self._n_pairs:
            # Nothing is known yet but that no distance exceeds D: one cluster, from there on.
            if not self.target.is_by_value:
                return ""
            blind = self.search.blind()
            if not self.target.is_worth(blind, blind):
                return ""
        if self.target.is_by_value:
            best, target = self.prospect.best, self.prospect.target
            if best is None or table.n_covered == self._n_pairs:
                return "" if best is None else self._found(best)
            is_open = target is not None or self._merges_nothing(best)
            return "" if is_open else self._found(best)
        if not self.target.is_met(self.intervals):
            return ""
        return f"both clusterings agree at {self.threshold():.6g}"

    def _is_worth_chasing(self) -> bool:
        """Whether a coarser clustering that seems worth enough can be certified for certain.

        Where not all pairs can be looked at, that may take long and come to nothing.
        """
        return not self._too_many()

    def _merges_nothing(self, best: CertifiedInterval) -> bool:
        return best.n_clusters == self.target.n_states > 1

    def _found(self, best: CertifiedInterval) -> str:
        """What the search for a threshold by value came to."""
        n, wish = self.target.n_states, self.target.in_words()
        if not self._merges_nothing(best):
            return f"the fewest clusters found {wish}: {best.n_clusters:,} of {counted(n, 'state')}"
        is_all = self.table.n_covered == self._n_pairs
        text = NOTHING_MERGES if is_all else NOTHING_FOUND
        text += f": {n:,} of {counted(n, 'state')} are needed {wish}"
        if self.table.ground.levels:
            model = min((x.model for x in self.table.ground.levels), key=lambda x: x.n_blocks)
            kept = share_text(self.search.numbers(model.labels).kept)
            return (
                f"{text}; the {model.n_blocks:,} blocks found would keep {kept}, but they are not "
                "proven to be the metric's clusters at any threshold"
            )
        floor = self.target.resolution
        coarser = [x for x in self.intervals if 0 < x.n_clusters < n and x.high > floor]
        if not coarser:
            return text
        labels = self.forests[1].labels(middle(coarser[0], floor=floor))
        found = self.search.numbers(labels)
        if self.target.max_loss is None:
            would = f"keep {share_text(found.kept)}"
        else:
            would = f"lose up to {amount_text(found.loss)}"
        return f"{text}; {counted(coarser[0].n_clusters, 'cluster')} would {would}"

    def certificate(self, *, stop: str, run: Mapping[str, Any], is_final: bool) -> Certificate:
        """What is proven now; with a threshold and its value if nothing follows."""
        tau = self.threshold() if is_final else None
        return make_certificate(
            self.table,
            tau=tau,
            stop=stop,
            run=run,
            scope=Blocks.scope,
            keep=self.target.keep,
            forests=self._forests if tau is None else self.forests,
            prove=self.search.prove,
        )

    # -- the steps -------------------------------------------------------------------------

    def leftover(self) -> str:
        """Why there was nothing more to try."""
        if self.target.is_by_value and self.prospect.best is not None:
            return self._found(self.prospect.best)
        if self.table.n_covered == self._n_pairs:
            return "all pairs are covered as tightly as this goes"
        if self.target.is_by_value and self.table.ground.levels:
            return self._unproven()
        blocks = ", ".join(f"{x.model.n_blocks:,}" for x in self.table.ground.levels)
        found = f"blocks tried ({blocks}) are too coarse" if blocks else "no block structure found"
        return f"nothing left to try: {found}, and {self._too_many() or 'no pair is open'}"

    def _unproven(self) -> str:
        """What would be worth enough, and is not certified."""
        level = min(self.table.ground.levels, key=lambda level: level.model.n_blocks)
        count = level.model.n_blocks
        found = self.search.prove(level.model.labels)
        first, second = np.divmod(level.keys, count)
        wide = float(level.upper[first == second].max(initial=0.0))
        near = float(level.lower[first != second].min(initial=np.inf))
        return (
            f"no clustering {self.target.in_words()} could be certified; the {count:,} blocks "
            f"found would keep {share_text(found.kept)} and lose at most "
            f"{amount_text(found.loss)}, but their members may differ by {wide:.3g}, and blocks by "
            f"no more than {near:.3g}"
        )

    # -- blocks ----------------------------------------------------------------------------

    def _blocks(self) -> str:
        """Bound the block pairs of proposals until one of them will do; keep the best."""
        for name, labels in self._proposals():
            arms = self._bounded(labels, name)
            if arms is not None and self._is_enough(arms):
                break
        if self._candidate is None:
            return ""
        _, arms, name = self._candidate
        self._candidate = None
        self.table.add_level(arms.level())
        return f"{counted(arms.n, 'block')} by {name}"

    def _is_enough(self, arms: Arms) -> bool:
        """Whether the bounds of a level would do by themselves."""
        if not self.target.is_by_value:
            return self.target.is_met(self._block_intervals(arms)[0])
        found = self._block_prospect(arms)
        return found.best is not None and found.target is None

    def _block_intervals(self, arms: Arms) -> tuple[list[CertifiedInterval], Forest, Forest]:
        return block_intervals(arms, self._end)

    def _block_prospect(self, arms: Arms) -> Prospect:
        return self._look(*self._block_intervals(arms), arms.model.labels)

    def _proposals(self) -> Iterator[tuple[str, IntArray]]:
        mdp, n = self.table.mdp, self.table.n
        if self._labels is not None:
            yield "the partition given", self._labels
            repaired = repair_labels(mdp, self._labels, self.table.gamma, resources=self._resources)
            yield "the partition given, repaired", repaired
        if "classes" in self._method.propose:
            self._pause("looking for classes", "")
            yield "bisimulation classes", propose_classes(mdp, resources=self._resources)
        sources: dict[str, Callable[[], npt.ArrayLike]] = {}
        if self._points is not None and "embedding" in self._method.propose:
            given = self._points
            sources["the embedding"] = lambda: given
        if "rewards" in self._method.propose:
            sources["rewards"] = lambda: mdp.rewards
        if "features" in self._method.propose:
            sources["value features"] = self._short_features
        for name, source in sources.items():
            self._pause(f"looking for blocks in {name}", "")
            points = scaled_points(source())
            for rank in range(2):
                found = propose_components(
                    points, n, n_blocks=self.target.n_clusters, rank=rank, seed=self._seed
                )
                if found is None or found.max() + 1 > MOST_BLOCKS:
                    break
                yield name, repair_labels(mdp, found, self.table.gamma, resources=self._resources)
                if name == "the embedding":
                    # What an embedding runs together, rewards may tell apart at a glance.
                    finer = split_labels(scaled_points(mdp.rewards), found, seed=self._seed)
                    yield (
                        f"{name}, split by rewards",
                        repair_labels(mdp, finer, self.table.gamma, resources=self._resources),
                    )
                if self.target.n_clusters is not None or found.max() + 1 > MANY_BLOCKS:
                    break

    def _short_features(self) -> FloatArray:
        """Rewards and values a few steps ahead: a good embedding, and cheap."""
        found = value_features(
            self.table.mdp,
            self.table.gamma,
            count=8,
            max_iter=10,
            resources=self._resources,
        )
        return np.hstack([self.table.mdp.rewards, found.points()])

    def _bounded(self, labels: IntArray, name: str) -> Arms | None:
        """Arms over the blocks of a partition, swept; None if it says nothing."""
        table = self.table
        count = int(labels.max()) + 1
        if count == table.n or count > MOST_BLOCKS or (count == 1 and table.n > 1):
            return None
        if self.target.is_by_value:
            self.search.stand_in(labels)
            if not self._is_worth(labels):
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
        if self.target.is_by_value:
            self._sweep_by_value(arms, name)
        else:
            self._sweep_for_width(arms, name)
        self._propose(arms, name)
        return arms

    def _sweeps(self, arms: Arms, name: str) -> Iterator[tuple[int, float]]:
        """Sweep the arms of blocks: numbers of sweeps, and by how much bounds moved."""
        before = self._block_backups
        for sweep in range(1, _sweeps_needed(self.table.gamma) + 1):
            moved = max(arms.sweep())
            self._block_backups = before + arms.backups
            self._pause(
                f"bounding {counted(arms.n, 'block')} by {name}",
                f"sweep {sweep}, moved {moved:.2g}",
            )
            yield sweep, moved

    def _sweep_by_value(self, arms: Arms, name: str) -> None:
        """Until the fewest clusters that seem worth enough are certified, or nothing moves."""
        if _is_quotient(arms):
            self._pause(f"solving for {counted(arms.n, 'block')} by {name}", "")
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
        lower, upper = _outward(arms, *found.bounds(first, second))
        is_pair = first != second  # diameters are 0 already
        arms.tighten(np.where(is_pair, lower, 0.0), np.where(is_pair, upper, np.inf))
        self._block_backups += arms.keys.size

    def _sweep_for_width(self, arms: Arms, name: str) -> None:
        """Until the threshold asked for is certified, or what is proven grows no more."""
        width = -math.inf
        for sweep, moved in self._sweeps(arms, name):
            if moved <= 1e-12 * arms.starts.diameter:
                break
            if sweep % (CHECK_EVERY if arms.n <= MANY_BLOCKS else 4 * CHECK_EVERY):
                continue
            intervals = self._block_intervals(arms)[0]
            found = self.target.chosen(intervals)
            if found is None:
                # Nothing yet: go on while the bounds still move noticeably.
                if moved <= 1e-3 * max(
                    self.target.tau or arms.starts.diameter, self.target.resolution
                ):
                    break
                continue
            if self.target.tau is not None:
                break
            # Looking for a threshold: go on while what is proven still grows.
            wider = _width_score(arms, found, self.target.resolution)
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
        if not self.target.is_by_value:
            return _width_score(arms, self.target.chosen(intervals), self.target.resolution)
        best = self._block_prospect(arms).best if arms.backups else None
        if best is not None:
            return 1.0 + self.table.n / max(best.n_clusters, 1)  # the fewer the better
        return _width_score(arms, None, self.target.resolution)

    # -- features and pairs ----------------------------------------------------------------

    def _features(self) -> str:
        table = self.table
        if table.starts.diameter == 0.0:
            return ""  # rewards are all the same, and so are the states
        self._pause("computing value features", "")
        found = value_features(
            table.mdp,
            table.gamma,
            count=FEATURES,
            resources=self._resources,
        )
        table.set_features(found)
        return f"{found.values.shape[0]} value features"

    def _widest_block(self) -> float:
        """Upper bound on the diameters of blocks at the last level."""
        if not self.table.ground.levels:
            return self.table.starts.diameter
        level = self.table.ground.levels[-1]
        first, second = np.divmod(level.keys, level.model.n_blocks)
        return float(level.upper[first == second].max(initial=0.0))

    def _closest_blocks(self) -> float:
        """Lower bound on the distance of members of different blocks."""
        table = self.table
        cells = Cells.of(common_refinement(table.n, table.ground.levels))
        read = row_reader(table.n, table.ground, cells)
        closest = np.inf
        for cell in range(cells.first.size):
            values = read(cell)
            values[cell] = np.inf
            closest = min(closest, float(values.min()))
        return closest

    def _target(self) -> float | None:
        """The threshold to work at: the one asked for, or a promising one; None if none is."""
        target = self.target
        if self._widest_block() > HOPELESS * self._closest_blocks():
            return None
        if target.tau is not None:
            return target.tau
        if target.is_by_value:
            return self.prospect.target
        lower = self.forests[0]
        weights = np.maximum(lower.weights, self.target.resolution)
        if weights.size == 0:
            return None
        if target.n_clusters is not None:
            at = self.table.n - target.n_clusters
        else:
            # Just below the widest gap between the distances at which the lower arm merges.
            at = int(np.argmax(np.diff(np.log(weights)))) + 1 if weights.size > 1 else 0
        if not 0 <= at < weights.size:
            return None
        return float(weights[at]) * (1.0 - 1e-6)

    def _inside(self) -> str:
        """Cover pairs within blocks that the upper arm cannot connect, small blocks first."""
        tau = self._target()
        if tau is None:
            return ""
        labels = common_refinement(self.table.n, self.table.ground.levels)
        above = self.forests[1].labels(tau)
        parts = np.unique(np.stack([labels, above]), axis=1)[0]  # block of each part of a block
        sizes = np.bincount(labels)
        wide = np.flatnonzero(np.bincount(parts, minlength=sizes.size) > 1)
        wide = wide[np.argsort(sizes[wide], kind="stable")]
        room = self._method.max_pairs - self.table.n_covered
        wide = wide[np.cumsum(sizes[wide] * (sizes[wide] - 1) // 2) <= room]
        order = np.argsort(labels, kind="stable")
        begins = np.concatenate([[0], np.cumsum(sizes)])
        first, second = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for block in wide.tolist():
            members = order[begins[block] : begins[block + 1]]
            i, j = np.triu_indices(members.size, 1)
            first.append(members[i])
            second.append(members[j])
        added = self.table.cover(np.concatenate(first), np.concatenate(second))
        if added == 0:
            return ""
        self._sweep_pairs(tau, "inside blocks", is_lower=False)
        return f"{counted(added, 'pair')} inside {counted(wide.size, 'block')}"

    def _across(self) -> str:
        """Cover pairs that may be linked although the upper arm keeps them apart."""
        tau = self._target()
        if tau is None:
            return ""
        s, t = self._open_pairs(tau, self._method.max_pairs - self.table.n_covered)
        added = self.table.cover(s, t) if s.size else 0
        if added == 0:
            return ""
        self._sweep_pairs(tau, "across blocks", is_lower=True)
        return f"{counted(added, 'pair')} across blocks"

    def _open_pairs(self, tau: float, room: int) -> tuple[IntArray, IntArray]:
        """Uncovered pairs in different clusters of the upper arm that may be within tau."""
        table = self.table
        above = self.forests[1].labels(tau)
        cells = find_cells(table.n, table.ground)
        read = row_reader(table.n, table.ground, cells)
        order = np.argsort(cells.labels, kind="stable")
        begins = np.concatenate([[0], np.cumsum(cells.sizes)])
        none = np.empty(0, np.int64)
        found: list[tuple[IntArray, IntArray]] = []
        total = seen = 0
        for cell in range(cells.first.size):
            near = read(cell) <= tau
            near[:cell] = False
            s = order[begins[cell] : begins[cell + 1]]
            t = order[near[cells.labels[order]]]
            seen += s.size * t.size
            if seen > 20 * self._method.max_pairs:
                return none, none
            for block in np.array_split(s, 1 + s.size * t.size // 1_000_000):
                x, y = (z.ravel() for z in np.meshgrid(block, t, indexing="ij"))
                use = (above[x] != above[y]) & ((cells.labels[y] != cell) | (x < y))
                x, y = x[use], y[use]
                close = table.bounds(x, y)[0] <= tau
                found.append((x[close], y[close]))
                total += int(close.sum())
                if total > room:
                    return none, none
        if not found:
            return none, none
        return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])

    def _sweep_pairs(self, tau: float, where: str, *, is_lower: bool) -> None:
        table = self.table
        limit, begin = _sweeps_needed(table.gamma), table.backups
        for sweep in range(1, limit + 1):
            if self.target.is_by_value and table.backups - begin > CHASE:
                break  # this threshold was only a hope
            moved = table.sweep(lower=is_lower)
            self._pause(
                f"sweeping {counted(table.n_covered, 'pair')} {where}",
                f"sweep {sweep}, moved {max(moved):.2g}",
            )
            if max(moved) <= 1e-4 * max(tau, self.target.resolution):
                break
            if sweep % CHECK_EVERY == 0 and self.target.tol is None:
                self._forget()
                if self.target.is_by_value:
                    if any(x.low <= tau < x.high for x in self.intervals):
                        break
                elif self.target.is_met(self.intervals):
                    break

    def _witnesses(self) -> str:
        """Functions that tell apart blocks which only rewards and rows further on tell apart."""
        tau, table = self._target(), self.table
        features = table.ground.features
        if tau is None or features is None or table.model.is_estimate:
            return ""
        s, t = self._open_pairs(tau, self._method.max_pairs)
        if s.size == 0:
            return ""
        picked = np.random.default_rng([self._seed, 1]).permutation(s.size)[:WITNESSES]
        made = []
        for k in picked.tolist():
            witness = make_witness(
                table.mdp, table.gamma, features, int(s[k]), int(t[k]), resources=self._resources
            )
            gap = abs(float(witness.values[s[k]] - witness.values[t[k]])) - witness.correction
            if gap > table.bounds(s[k], t[k])[0]:
                made.append(witness)
        if not made:
            return ""
        table.set_features(features.with_witnesses(made))
        return "1 witness" if len(made) == 1 else f"{len(made)} witnesses"

    def _split(self) -> str:
        """Cut blocks that stay in the way in two, as one more level."""
        tau, table = self._target(), self.table
        if tau is None or not table.ground.levels:
            return ""
        below, above = (forest.labels(tau) for forest in self.forests)
        parts = np.bincount(np.unique(np.stack([below, above]), axis=1)[0])
        cells = common_refinement(self.table.n, self.table.ground.levels)
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

    def _quick_pairs(self) -> str:
        """All pairs at once, if that is quick and all thresholds are of interest."""
        is_quick = self._pair_costs() <= QUICK_CELLS
        return self._all_pairs() if self.target.is_by_value and is_quick else ""

    def _few_pairs(self) -> str:
        """All pairs already, if they are few."""
        return self._all_pairs() if self._n_pairs <= FEW_PAIRS else ""

    def _all_pairs(self) -> str:
        """Every pair by itself: the exact metric."""
        table = self.table
        if table.n_covered == self._n_pairs or self._too_many():
            return ""
        table.cover_all()
        if table.model.is_estimate:
            self._sweep_pairs(self.target.resolution, "one by one", is_lower=True)
        else:
            found = bisimulation_metric(
                table.mdp,
                table.gamma,
                resources=self._resources,
                callback=lambda progress: self._pause("solving for all pairs", progress.detail),
            )
            table.tighten(*_outward(table, *found.bounds(*table.pairs())))
        return f"all {counted(table.n_covered, 'pair')}"

    def _pair_costs(self) -> float:
        """Ground costs that a sweep over all pairs reads: for each action, two rows' product."""
        mdp = self.table.mdp
        return self._n_pairs * mdp.n_actions * (mdp.nnz / (mdp.n_states * mdp.n_actions)) ** 2

    @property
    def _n_pairs(self) -> int:
        return self.table.n * (self.table.n - 1) // 2

    def _too_many(self) -> str:
        """Why not all pairs can be looked at; empty if they can."""
        pairs, mdp = self._n_pairs, self.table.mdp
        if pairs > self._method.max_pairs:
            return f"all {pairs:,} pairs are more than max_pairs = {self._method.max_pairs:,}"
        cells = self._pair_costs()
        if cells > MOST_CELLS:
            return f"all {pairs:,} pairs have too dense rows: {cells:.1e} ground costs per sweep"
        # The metric's tables, and what covering takes.
        needed, room = 44 * mdp.n_states**2 + PAIR_BYTES * pairs, self._resources.room
        if needed > room:
            limit = self._resources.memory_limit
            source = "available" if limit is None else "allowed by memory_limit"
            return (
                f"all {pairs:,} pairs need {human_bytes(needed)}, {human_bytes(room)} are "
                f"{source}; merge states first, or use a larger machine"
            )
        return ""


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


def _sweeps_needed(gamma: float) -> int:
    """Sweeps after which the start no longer shows in the first nine digits."""
    return 1 if gamma == 0.0 else min(10_000, math.ceil(math.log(1e-9) / math.log(gamma)) + 1)


def _outward(table: Arms, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds moved outward far beyond rounding, so that they satisfy their inequalities exactly.

    f - δ gains a slack of (1 - gamma)·δ in f <= Tf, and f + δ in f >= Tf.
    """
    delta = 64.0 * EPS * table.starts.diameter / (1.0 - table.gamma)
    return np.maximum(lower - delta, 0.0), upper + delta
