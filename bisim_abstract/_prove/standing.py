"""Where a run over all pairs stands: what its bounds certify now, and what that is worth.

If the threshold is to be found, it is chosen by what a policy over its clusters is proven to be
worth: the coarsest certified one that is worth enough; and while a clearly coarser one seems to
be, though it is not certified yet, that is where the next step should look.
"""

from __future__ import annotations

import math

import numpy as np

from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._base.memory import human_bytes
from bisim_abstract._base.text import counted, duration_text
from bisim_abstract._base.types import IntArray
from bisim_abstract._bounds.action_values import ActionValues
from bisim_abstract._bounds.arms import PAIR_BYTES, Arms
from bisim_abstract._bounds.features import ValueFeatures, value_features
from bisim_abstract._bounds.ground import Ground
from bisim_abstract._bounds.pair_table import PairTable
from bisim_abstract._bounds.spanning import Cells, closest_cells, common_refinement, link_forests
from bisim_abstract._certificate.frontier import (
    MANY,
    ValueSearch,
    first_good,
    first_good_from_coarse,
)
from bisim_abstract._certificate.goal import Goal, Numbers
from bisim_abstract._certificate.verdict import NOTHING_FOUND, NOTHING_MERGES
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._linkage.thresholds import (
    CertifiedInterval,
    certified_intervals,
    intervals_below,
    middle,
    wide_intervals,
)
from bisim_abstract._prove.cost import Cost
from bisim_abstract._prove.reach import shortest_links
from bisim_abstract._prove.target import Prospect, Target
from bisim_abstract._prove.work import Pause

HOPE = 20.0  # seconds that all pairs may take where nothing but hope speaks for it
WORTH = 0.8  # clusters that others must have fewer than, times these, to be worth more work
FINER = 3  # finer thresholds that are tried where one was promising only
FEATURES = 32  # value functions where blocks are many: each of them saves pairs of blocks
FEATURE_TOL = 1e-3  # of the diameter: what they may be off by, far below the width of blocks
FOUND_BYTES = 88  # what a pair takes that is looked up, at most
KEPT_BACK = 0.5  # of the patience: what all pairs may take to be kept in reach
LOOSE = 20.0  # blocks wider than this many times their distances are no sign of structure
FARTHER = 2.0  # times as far apart as they are now, blocks may still get


def go_on(stage: str, detail: str, *, may_end: bool = True) -> None:
    """Go on whatever happens: nobody waits for a step any more, or not yet."""


class Standing:
    """What two arms over pairs of states say, derived when asked for and until they move.

    Args:
        table: The arms.
        target: What to reach.
        max_pairs: Pairs of states that may be covered; None for as many as can be afforded.
        cost: What work takes, and may take.
        is_final: Whether bounds will not be tightened any more.

    Attributes:
        cost: The same.
        search: What clusterings are worth.
        pause: Called between sweeps; may end a step.
    """

    def __init__(
        self,
        table: Arms,
        target: Target,
        max_pairs: int | None,
        cost: Cost,
        *,
        is_final: bool = False,
    ) -> None:
        self.is_final = is_final
        self.table, self.target, self.cost, self._max_pairs = table, target, cost, max_pairs
        self.search = ValueSearch(table.mdp, table.gamma, relation=table.relation, goal=target.goal)
        self.pause: Pause = go_on
        self._features: ValueFeatures | None = None
        self.forget()

    def forget(self) -> None:
        """Bounds have moved."""
        self._forests: tuple[Forest, Forest] | None = None
        self._bounds: tuple[Ground, PairTable] | None = None  # what they were derived from
        self._intervals: list[CertifiedInterval] | None = None
        self._prospect: Prospect | None = None
        self._is_stuck: bool | None = None

    @property
    def forests(self) -> tuple[Forest, Forest]:
        """Spanning forests of both arms over all pairs."""
        if self.forests_at_hand is None:
            bounds = self.table.ground, self.table.covered
            self._forests, self._bounds = link_forests("all", *bounds), bounds
        assert self._forests is not None
        return self._forests

    def link(self, values: ActionValues, most: int) -> None:
        """Find the forests of distances that are read off action values, with limited work."""
        starts, bounds = self.table.starts, (self.table.ground, self.table.covered)
        found = values.forests(starts.sets, starts.diameter, most=most)
        self.forget()
        self._forests, self._bounds = found, bounds

    @property
    def forests_at_hand(self) -> tuple[Forest, Forest] | None:
        """The same, if they are known: of these very bounds, whatever was interrupted meanwhile."""
        ground, covered = self._bounds or (None, None)
        if ground is not self.table.ground or covered is not self.table.covered:
            self.forget()
        return self._forests

    @property
    def intervals(self) -> list[CertifiedInterval]:
        """Thresholds that are certified now; where one is to be chosen, those that allow it."""
        if self.forests_at_hand is None or self._intervals is None:
            found = certified_intervals(*self.forests, self.end)
            if self.is_final and self.table.starts.has_apart:  # states with different actions stay
                found = intervals_below(found, self.table.starts.diameter)
            self._intervals = found if self.target.tau is not None else wide_intervals(found)
        return self._intervals

    @property
    def features(self) -> ValueFeatures:
        """Value functions that keep many blocks apart, computed when first asked for."""
        if self._features is None:
            self.pause("computing value features", "")
            table = self.table
            tol = FEATURE_TOL * table.starts.diameter
            self._features = value_features(
                table.mdp,
                table.gamma,
                count=FEATURES,
                tol=tol,
                relation=table.relation.name,
                resources=table.resources,
            )
        return self._features

    @property
    def end(self) -> int | None:
        return self.table.mdp.terminal_state

    @property
    def prospect(self) -> Prospect:
        """What values say about the present bounds."""
        if self.forests_at_hand is None or self._prospect is None:
            self.pause("looking for a threshold worth having", "")
            everyone = np.arange(self.table.n)
            self._prospect = self.look(self.intervals, *self.forests, everyone)
        return self._prospect

    def look(
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
            return self.is_worth(upper.labels(tau)[nodes])

        most = self.search.most

        def is_good(k: int) -> bool:
            return is_enough(middle(open_[k], floor=floor))

        if self.is_final and self.table.n > MANY:
            sizes = np.array([x.n_clusters for x in open_], np.int64)
            at = first_good_from_coarse(sizes, is_good, most)
        else:
            at = first_good(len(open_), is_good, most)
        best = None if at is None else open_[at]
        is_useful = best is not None and not self._merges_nothing(best)
        if self.is_final or (is_useful and not self._is_worth_chasing()):
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

    def is_worth(self, labels: IntArray) -> bool:
        return self.target.goal.is_met(self.search.numbers(labels))

    def _fallback(self) -> CertifiedInterval | None:
        """Where nothing certified is worth enough: what is worth most, of more than one cluster."""
        floor, upper = self.target.resolution, self.forests[1]
        some = [x for x in self.intervals if x.high > floor and x.n_clusters > 1]
        if len(some) > self.search.most:
            picked = np.linspace(0, len(some) - 1, self.search.most).astype(np.int64)
            some = [some[k] for k in np.unique(picked)]

        def worth(interval: CertifiedInterval) -> tuple[float, int]:
            found = self.search.numbers(upper.labels(middle(interval, floor=floor)))
            by_loss = self.target.goal.max_loss is not None
            return -found.loss if by_loss else found.kept, -interval.n_clusters

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
        floor, upper = self.target.resolution, self.forests[1]
        finer = [x for x in self.intervals if x.high > floor and x.n_clusters > best.n_clusters]
        for interval in [best, *finer[::-1][:FINER]]:
            labels = upper.labels(middle(interval, floor=floor))
            if self.target.goal.is_met(self.search.own_numbers(labels)):
                return interval
        return None

    def threshold(self) -> float | None:
        """The threshold to put into the certificate."""
        if self.target.tau is not None:
            return self.target.tau
        found = self.interval()
        return None if found is None else middle(found, floor=self.target.resolution)

    def reason(self, done: int) -> str:
        """Why the goal is reached; empty if it is not."""
        tol, table = self.target.tol, self.table
        if tol is not None:
            width = self._width() if self.is_final or table.coverage == 1.0 else math.inf
            return f"width {width:.3g} is within {tol:g}" if width <= tol else ""
        if not self.is_final and done == 1 and table.n_covered == 0 and self.n_pairs:
            # Nothing is known yet but that no distance exceeds D: one cluster, from there on.
            if not self.target.is_by_value:
                return ""
            if not self.search.is_single_enough():
                return ""
        if self.target.is_by_value:
            best, target = self.prospect.best, self.prospect.target
            if best is None or table.n_covered == self.n_pairs or self.is_final:
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
        return self.all_seconds() <= HOPE and not self.too_many()

    def _merges_nothing(self, best: CertifiedInterval) -> bool:
        return best.n_clusters == self.target.n_states > 1

    def _found(self, best: CertifiedInterval) -> str:
        """What the search for a threshold by value came to."""
        n, wish = self.target.n_states, self.target.goal.in_words()
        if not self._merges_nothing(best):
            return f"the fewest clusters found {wish}: {best.n_clusters:,} of {counted(n, 'state')}"
        is_all = self.is_final or self.table.n_covered == self.n_pairs
        text = NOTHING_MERGES if is_all else NOTHING_FOUND
        text += f": {n:,} of {counted(n, 'state')} are needed {wish}{self._would()}"
        why = "" if is_all else self.too_many()
        return text + (f"; {why}" if why else "") + self._advice()

    def _would(self) -> str:
        """What fewer clusters than all states would come to."""
        n = self.target.n_states
        of_blocks = self._blocks_that_serve()
        if of_blocks:
            return of_blocks
        floor = self.target.resolution
        coarser = [x for x in self.intervals if 0 < x.n_clusters < n and x.high > floor]
        if not coarser:
            return ""
        labels = self.forests[1].labels(middle(coarser[0], floor=floor))
        found = self.search.numbers(labels)
        if self.target.goal.max_loss is None:
            would = f"retain {share_text(found.kept)}"
            if found.ends_fewer:
                would += ", and might end clearly fewer episodes than the best policy"
        else:
            would = f"lose up to {amount_text(found.loss)}"
        return f"; {counted(coarser[0].n_clusters, 'cluster')} would {would}"

    def _blocks_that_serve(self) -> str:
        """The fewest blocks that reach the goal without being clusters, and how to use them."""
        levels = self.table.ground.levels
        for at in sorted(range(len(levels)), key=lambda k: levels[k].model.n_blocks):
            labels = levels[at].model.labels
            found = self.search.own_numbers(labels)
            if not self.target.goal.is_met(found):
                continue
            live = labels if self.end is None else np.delete(labels, self.end)
            return (
                f"; a partition into {np.unique(live).size:,} is proven to "
                f"{_proven_text(found, self.target.goal)}, but no threshold of the metric was "
                f"found to give it{self._use_of(at)}"
            )
        return ""

    def _use_of(self, at: int) -> str:
        """How to make an environment of the blocks of a level."""
        table = self.table
        relation = f", relation={table.relation.name!r}" if table.relation.adjective else ""
        return (
            f": bisim_abstract.parts.prove_partition(mdp, certificate.levels[{at}].model.labels, "
            f"{table.gamma!r}{relation}) makes a proof of which AbstractedEnv makes an environment"
        )

    def _advice(self) -> str:
        """Which relation merges more, if one does and the goal can be reached at all."""
        is_known = self.table.mdp.estimate is None  # of estimates, coarser models may prove more
        if is_known and self.target.is_by_value and self.prospect.best is None:
            found, goal = self.search.own_numbers(np.arange(self.table.n)), self.target.goal
            if not goal.is_enough(found):
                text = (
                    f"even with all states apart agents are proven to {_proven_text(found, goal)}"
                )
                return f"; {text}, so request less"
        instead = "" if self.is_final else self.table.relation.instead
        return f"; {instead}" if instead else ""

    def leftover(self) -> str:
        """Why there was nothing more to try."""
        if self.target.is_by_value and self.prospect.best is not None:
            return self._found(self.prospect.best)
        if self.is_final or self.table.n_covered == self.n_pairs:
            return self._all_tried()
        if self.target.is_by_value and self.table.ground.levels:
            return self._unproven()
        blocks = ", ".join(f"{x.model.n_blocks:,}" for x in self.table.ground.levels)
        found = f"blocks tried ({blocks}) are too coarse" if blocks else "no block structure found"
        return f"nothing left to try: {found}, and {self.too_many() or 'no pair is open'}"

    def _width(self) -> float:
        """The gap between both bounds of any pair, once all of them are covered or read bounds."""
        if self.is_final:
            return self.table.ground.widest()
        return float((self.table.upper - self.table.lower).max(initial=0.0))

    def _all_tried(self) -> str:
        """Why the goal is not reached although all pairs are bounded as tightly as can be."""
        target, text = self.target, "all pairs are bounded as tightly as rounding allows"
        if target.tol is not None:
            width = self._width()
            return f"{text}: the width is {width:.3g}, not {target.tol:g}"
        if target.tau is not None:
            return f"{text}, which leaves open whether some are within {target.tau:.6g}" + (
                self._other_thresholds(target.tau)
            )
        if target.is_by_value:
            return (
                f"{text}: no certified threshold is proven {target.goal.in_words()}"
                + self._advice()
            )
        counts = sorted({x.n_clusters for x in self.intervals})
        if target.n_clusters is None or not counts:
            return f"{text}: no threshold separates states into several clusters and merges any"
        wanted = target.n_clusters
        if self.is_final and wanted > counts[-1]:
            same = target.n_states - counts[-1]
            has = "has" if same == 1 else "have"
            return (
                f"{counted(same, 'state')} {has} the same optimal action values as another, within "
                f"rounding: ask for at most {counted(counts[-1], 'cluster')}"
            )
        below, above = [x for x in counts if x < wanted][-1:], [x for x in counts if x > wanted][:1]
        near = " or ".join(f"{x:,}" for x in below + above)
        return f"{text}, and no certified threshold gives {wanted:,} clusters; ask for {near}"

    def _other_thresholds(self, tau: float) -> str:
        """Certified thresholds next to one that is not."""
        below = [x.high for x in self.intervals if x.high <= tau][-1:]
        above = [x.low for x in self.intervals if x.low > tau][:1]
        near = [f"just below {x!r}" for x in below] + [f"from {x!r}" for x in above]
        return f"; it is certified {' and '.join(near)}" if near else ""

    def _unproven(self) -> str:
        """What would be worth enough, and is not certified."""
        levels = self.table.ground.levels
        at = int(np.argmin([level.model.n_blocks for level in levels]))
        level, count = levels[at], levels[at].model.n_blocks
        found = self.search.own_numbers(level.model.labels)
        first, second = np.divmod(level.keys, count)
        wide = float(level.upper[first == second].max(initial=0.0))
        near = float(level.lower[first != second].min(initial=np.inf))
        use = self._use_of(at) if self.target.goal.is_met(found) else ""
        return (
            f"no clustering {self.target.goal.in_words()} could be certified; the {count:,} blocks "
            f"found would retain {share_text(found.kept)} and lose at most "
            f"{amount_text(found.loss)}, but their members may differ by {wide:.3g}, and blocks by "
            f"no more than {near:.3g}{use}{self._advice()}"
        )

    def aim(self) -> float | None:
        """The threshold to work at: the one asked for, or a promising one; None if none is."""
        target = self.target
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

    def aim_apart(self) -> float | None:
        """How far apart clusters should be: as the aim, or as links inside them need it."""
        tau, target = self.aim(), self.target
        if tau is None or not target.is_free:
            return tau
        # The aim is where the lower arm keeps some clusters apart. As many are linked in the upper
        # arm from another threshold on, above which the lower one must get as well.
        lower, upper = self.forests
        links = self.table.n - int(lower.count(np.array([tau]))[0])
        if not 0 < links <= upper.weights.size:
            return tau
        needed = float(upper.weights[links - 1]) * (1.0 + 1e-6)
        return max(tau, needed) if needed < self.table.starts.diameter else tau

    @property
    def is_stuck(self) -> bool:
        """Whether pairs inside blocks would not link these, however long they were swept.

        At the threshold asked for; or, if it is to be found, at any at which there could be
        several clusters, once more is known of how far these are apart.
        """
        if self._is_stuck is None:
            tau = self.aim()
            if tau is None or not self.table.ground.levels:
                self._is_stuck = False
            else:
                lower, upper = self.forests
                limit = (
                    FARTHER * float(lower.weights.max(initial=0.0)) if self.target.is_free else tau
                )
                blocks = common_refinement(self.table.n, self.table.ground.levels)
                self._is_stuck = shortest_links(self.table, blocks, upper.labels(tau)) > limit
        return self._is_stuck

    def _has_structure(self) -> bool:
        """Whether there are blocks, and not far wider than they are apart."""
        table = self.table
        if not table.ground.levels:
            return False
        level = table.ground.levels[-1]
        first, second = np.divmod(level.keys, level.model.n_blocks)
        widest = float(level.upper[first == second].max(initial=0.0))
        cells = Cells.of(common_refinement(table.n, table.ground.levels))
        return widest <= LOOSE * closest_cells(table.ground, cells)

    @property
    def room(self) -> int:
        """Pairs of states that may still be covered: allowed, afforded, and as many as fit.

        What all pairs take is kept back where that is not too much: they settle it for certain.
        """
        kept = 0.0
        if not self.cost.is_given and self.all_seconds() <= KEPT_BACK * self.cost.patience:
            kept = 0.0 if self.too_many() else self.all_seconds()
        most = min(self.cost.most_pairs(kept), self._most_that_fit())
        if self._max_pairs is not None:
            most = min(most, self._max_pairs)
        return max(most - self.table.n_covered, 0)

    def pair_costs(self) -> float:
        """Ground costs that a sweep over all pairs reads: for each action, two rows' product."""
        mdp = self.table.mdp
        return self.n_pairs * self.n_compared * (mdp.nnz / (mdp.n_states * mdp.n_actions)) ** 2

    @property
    def n_compared(self) -> int:
        """Pairs of actions that are compared in a pair of states: by name, or each with each."""
        return self.table.relation.n_compared(self.table.mdp.n_actions)

    def _most_that_fit(self) -> int:
        """Pairs that can be covered in the memory there is, with what their backups look up."""
        bytes_, cells = self.table.resources.room, self.pair_costs() / max(self.n_pairs, 1)
        each = PAIR_BYTES + FOUND_BYTES + 4.0 * cells
        # Every cell may be a pair that nothing else reads, and no pair is met twice.
        all_met = (bytes_ - FOUND_BYTES * self.n_pairs) / each
        return int(max(all_met, bytes_ / (each + FOUND_BYTES * cells), 0.0))

    @property
    def n_pairs(self) -> int:
        return self.table.n * (self.table.n - 1) // 2

    def all_seconds(self) -> float:
        """How long all pairs are estimated to take."""
        return self.cost.all_pairs(self.n_pairs, is_sampled=self.table.mdp.is_sampled)

    def most_sweeps(self) -> int:
        """Backups of every pair that solving for them may take."""
        return self.cost.most_sweeps(self.n_pairs)

    def sweep_seconds(self, n_pairs: int, sweeps: int) -> float:
        """How long so many sweeps of one arm over so many pairs are estimated to take."""
        return self.cost.sweeps(n_pairs, sweeps)

    def too_long(self) -> str:
        """Why all pairs would take too long; empty if they would not."""
        seconds, patience = self.all_seconds(), self.cost.left
        is_asked = self.cost.is_given or not self.target.is_free
        if HOPE < seconds <= patience and not is_asked:
            patience = patience if self._has_structure() else HOPE
        if seconds <= patience:
            return ""
        text = f"all {self.n_pairs:,} pairs would take about {duration_text(seconds)}"
        if self.cost.is_given:
            return f"{text}, more than the {duration_text(patience)} left of max_seconds"
        return f"{text}, which a larger max_seconds would allow"

    def too_many(self) -> str:
        """Why not all pairs can be looked at; empty if they can."""
        pairs, mdp = self.n_pairs, self.table.mdp
        if self._max_pairs is not None and pairs > self._max_pairs:
            return f"all {pairs:,} pairs are more than max_pairs = {self._max_pairs:,}"
        why = self.too_long()
        if why:
            return why
        # The metric's tables, and what covering takes.
        tables = (44 + 4 * mdp.n_actions) * mdp.n_states**2
        needed, room = tables + PAIR_BYTES * pairs, self.table.resources.room
        if needed > room:
            limit = self.table.resources.memory_limit
            source = "available" if limit is None else "allowed by memory_limit"
            return (
                f"all {pairs:,} pairs need {human_bytes(needed)}, {human_bytes(room)} are "
                f"{source}; merge states first, or use a larger machine"
            )
        return ""


def _proven_text(found: Numbers, goal: Goal) -> str:
    """What agents are proven to get, in the terms of a goal."""
    if goal.max_loss is None:
        return f"retain {share_text(found.kept)}"
    return f"lose at most {amount_text(found.loss)}"
