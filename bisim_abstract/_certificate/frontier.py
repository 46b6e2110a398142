"""Clusters against proven value: the frontier of a certificate, and the search along it.

Finer clusterings of one hierarchy need not be better, but mostly are. So the coarsest one that
is good enough is looked for by bisection, and what is left of the budget goes to coarser ones,
evenly spread. Where the budget allows it, all of them are looked at, from the coarsest on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bisim_abstract._abstract.aggregate import Aggregation, aggregate, set_end_apart
from bisim_abstract._abstract.episodes import horizon_of
from bisim_abstract._abstract.value import ProvenValue, amount_text, share_text
from bisim_abstract._abstract.value_proof import (
    FIRST_TOL,
    GroundValues,
    Hint,
    Proof,
    find_proof,
    matched_actions,
)
from bisim_abstract._base.checks import check_int
from bisim_abstract._base.html import table_html
from bisim_abstract._base.progress import tell
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import IntArray, ProgressCallback
from bisim_abstract._certificate.goal import Goal, Numbers
from bisim_abstract._linkage.thresholds import CertifiedInterval, middle
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.base import Relation
from bisim_abstract._relations.table import find_relation

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate

__all__ = ["Frontier", "FrontierPoint"]

WORK = 3_000_000  # transitions of all clusterings that are looked at, about
MAX_ROWS = 16  # points that a table in a notebook lists
FEWEST, MOST = 12, 60  # clusterings that are looked at, whatever that takes
MAX_VALUED = 50_000  # states up to which pictures evaluate other thresholds than the chosen one
GROWTH = 8  # how many times more clusters are tried next, where trying is slow
LARGE = 5_000  # states from which on a smaller model may stand for the model
MANY = 200_000  # states from which on learners and margins are proven on request only


@dataclass(frozen=True)
class FrontierPoint:
    """A certified clustering, and what agents over it are proven to be worth.

    Attributes:
        low: Smallest threshold that gives it.
        high: First threshold beyond.
        n_clusters: Number of clusters, the end of episodes not counted.
        loss: Proven loss of the worst state.
        start_loss: Proven loss of the start distribution.
        kept: Proven share of the achievable return that is retained.
        ends_fewer: Whether clearly fewer episodes may end than under the best policy.
    """

    low: float
    high: float
    n_clusters: int
    loss: float
    start_loss: float
    kept: float
    ends_fewer: bool = False

    @property
    def numbers(self) -> Numbers:
        """What is proven of it."""
        return Numbers(self.kept, self.loss, self.start_loss, self.ends_fewer)


@dataclass(frozen=True)
class Frontier:
    """Clusters against proven value over certified thresholds.

    Attributes:
        points: Those that were looked at, from the finest to the coarsest.
        n_thresholds: Number of certified intervals of thresholds there are.
        has_end: Whether the model has an end of episodes.
        goal: Whose shares and losses these are, and what is requested of them.
    """

    points: tuple[FrontierPoint, ...]
    n_thresholds: int
    has_end: bool = False
    goal: Goal = field(default_factory=Goal)

    @property
    def is_complete(self) -> bool:
        """Whether all certified thresholds were looked at."""
        return len(self.points) == self.n_thresholds

    def coarsest(self, keep: float | None = None) -> FrontierPoint | None:
        """The fewest clusters that reach the goal, among those looked at.

        Args:
            keep: Another share of the achievable return to retain than the goal's.
        """
        goal = self.goal if keep is None else replace(self.goal, keep=keep, max_loss=None)
        good = [point for point in self.points if goal.is_met(point.numbers)]
        return min(good, key=lambda point: (point.n_clusters, -point.kept), default=None)

    def __repr__(self) -> str:
        looked = f"{len(self.points):,} of {counted(self.n_thresholds, 'certified threshold')}"
        counts = [point.n_clusters for point in self.points]
        span = f": {min(counts):,} to {max(counts):,} clusters" if len(set(counts)) > 1 else ""
        return f"Frontier({looked}{span})"

    def __str__(self) -> str:
        lines = []
        for point in self.points:
            what = clusters_text(point.n_clusters, has_end=self.has_end)
            lines.append(
                f"tau from {point.low:.6g}: {what}: {share_text(point.kept)}, loses at most "
                f"{amount_text(point.loss)}"
            )
        left = self.n_thresholds - len(self.points)
        return "\n".join(lines + ([f"and {counted(left, 'more threshold')}"] if left else []))

    def _repr_html_(self) -> str:
        shown = self.points
        if len(shown) > MAX_ROWS:  # evenly spread, both ends among them
            shown = tuple(shown[k] for k in np.linspace(0, len(shown) - 1, MAX_ROWS).astype(int))
        rows = []
        for point in shown:
            name = clusters_text(point.n_clusters, has_end=self.has_end)
            worth = f"{share_text(point.kept)} kept, loss at most {amount_text(point.loss)}"
            rows.append((name, f"{worth}, from tau {point.low:.6g} on"))
        left = self.n_thresholds - len(shown)
        if left:
            rows.append(("and", counted(left, "more certified threshold")))
        return table_html("Clusters against proven value", rows)


class ValueSearch:
    """Proven values of partitions of one model, each of them found once.

    For a large model, a smaller one that stands for it (`stand_in`) tells about partitions on
    the way. What it says is exact only if its blocks are; `prove` looks at the model itself.

    Args:
        mdp: The model.
        gamma: The discount.
        relation: Which actions of states of a cluster correspond: by name, or renamed.
        goal: Which agents' shares are compared, and what is requested of them.

    Attributes:
        most: Partitions that one search may look at, so that it takes some seconds at most.
    """

    def __init__(
        self,
        mdp: TabularMDP,
        gamma: float,
        *,
        relation: str | Relation = "plain",
        goal: Goal | None = None,
        horizon: int | None = None,
    ) -> None:
        self.mdp, self.gamma, self._relation = mdp, gamma, find_relation(relation)
        self.goal = Goal() if goal is None else goal
        self._horizon = horizon
        self.most = int(np.clip(WORK // mdp.nnz, FEWEST, MOST))
        self._ground: GroundValues | None = None
        self._known: dict[bytes, Numbers] = {}
        self._last: tuple[bytes, Proof] | None = None
        self._small: tuple[Aggregation, IntArray, ValueSearch] | None = None

    def stand_in(self, blocks: IntArray) -> None:
        """Let the model over some blocks tell about partitions of these, if that saves work."""
        count = int(blocks.max()) + 1
        if self.mdp.n_states < LARGE or 4 * count > self.mdp.n_states:
            return
        renaming = matched_actions(self.mdp, blocks, self._relation)
        small = aggregate(self.mdp, blocks, renaming=renaming)
        first = np.unique(small.labels, return_index=True)[1]
        search = ValueSearch(
            small.mdp, self.gamma, relation=self._relation, goal=self.goal, horizon=self._limit
        )
        self._small = small, first, search

    @property
    def has_stand_in(self) -> bool:
        """Whether there is a smaller model that tells about partitions."""
        return self._small is not None

    @property
    def _limit(self) -> int | None:
        return horizon_of(self.mdp, self._horizon)

    def is_single_enough(self) -> bool:
        """Whether a single cluster for all states reaches the goal.

        Where all states have all actions, and these are not renamed, every policy over a single
        cluster takes one action for ever. So it keeps no more than the baseline, which is nothing
        where the best policy is proven to be worth more: for a share, that saves the whole proof.
        """
        is_named = not (self._relation.matches_actions or self.mdp.has_action_sets)
        if is_named and self.goal.max_loss is None and self.goal.keep > 0.0:
            ground = self._known_ground(None)
            ground.tighten(FIRST_TOL * ground.size, np.zeros(self.mdp.n_states))
            if ground.stake.optimal[0] > ground.stake.baseline[1]:
                return False
        return self.goal.is_met(self.numbers(np.zeros(self.mdp.n_states, np.int64)))

    def _known_ground(self, hint: Hint | None) -> GroundValues:
        if self._ground is None:
            self._ground = GroundValues(self.mdp, self.gamma, hint=hint, horizon=self._horizon)
        return self._ground

    def _proof(self, labels: IntArray) -> Proof:
        key = self._key(labels)
        if self._last is None or self._last[0] != key:
            hint = self._hint(labels)
            proof = find_proof(
                self.mdp,
                labels,
                self.gamma,
                relation=self._relation,
                by="start" if self.goal.max_loss is None else "worst",
                guarantee=self.goal.guarantee,
                ground=self._known_ground(hint),
                hint=hint,
            )
            self._last = key, proof
        return self._last[1]

    def prove(self, labels: IntArray) -> ProvenValue:
        """The whole proof; of learners and margins only if requested or the model is not large."""
        is_small = self.mdp.n_states <= MANY
        return self._proof(labels).value(
            self.goal.is_enough if is_small else None,
            with_learner=is_small or self.goal.guarantee == "learner",
        )

    def own_numbers(self, labels: IntArray) -> Numbers:
        """What is proven of a partition, of the model itself."""
        key = self._key(labels)
        if key not in self._known:
            guarantee = self.goal.guarantee
            proof = self._proof(labels)
            share = proof.share(guarantee)
            found: Numbers | None = Numbers(share.kept, share.loss, share.start_loss, False)
            # Episodes take longest, and make no difference where too little is kept.
            if proof.has_episodes and self.goal.is_enough(share):
                found = Numbers.of(proof.value(with_learner=guarantee == "learner"), guarantee)
            assert found is not None
            self._known[key] = found
        return self._known[key]

    def numbers(self, labels: IntArray) -> Numbers:
        """What is proven of a partition, of the model that stands in if there is one."""
        if self._key(labels) not in self._known and self._small is not None and self._fits(labels):
            _, first, search = self._small
            return search.numbers(labels[first])
        if self.mdp.n_states > MANY:  # whether episodes end is looked at in what is taken
            share = self._proof(labels).share(self.goal.guarantee)
            return Numbers(share.kept, share.loss, share.start_loss, False)
        return self.own_numbers(labels)

    def _fits(self, labels: IntArray) -> bool:
        """Whether a partition is one of the blocks that are stood in for, and coarser."""
        if self._small is None:
            return False
        small, first, _ = self._small
        is_coarser = np.unique(labels[first]).size < first.size
        return is_coarser and np.array_equal(labels[first][small.labels], labels)

    def _hint(self, labels: IntArray) -> Hint | None:
        if self._small is None:
            return None
        small, first, search = self._small
        if not np.array_equal(labels[first][small.labels], labels):
            return None
        found, at = search._proof(labels[first]), small.labels
        return Hint(*(values[at] for values in found.near()))

    def _key(self, labels: IntArray) -> bytes:
        clusters, _ = set_end_apart(labels, self.mdp.terminal_state)
        return hashlib.sha256(clusters.tobytes()).digest()


def first_good(count: int, is_good: Callable[[int], bool], most: int) -> int | None:
    """The first of `count` positions, from coarse to fine, that is good; see the module.

    Args:
        count: Number of positions.
        is_good: Asked about a position; may be slow, and is asked about each once at most.
        most: How often it may be asked, about.
    """
    if count <= most:
        return next((k for k in range(count) if is_good(k)), None)
    known: dict[int, bool] = {}

    def ask(position: int) -> bool:
        if position not in known:
            known[position] = is_good(position)
        return known[position]

    def bisect(low: int, high: int) -> int:
        """Between a position that is not good (or -1) and one that is."""
        while high - low > 1:
            between = (low + high) // 2
            if ask(between):
                high = between
            else:
                low = between
        return high

    best = bisect(-1, count - 1) if ask(count - 1) else None
    room = max(most - len(known), 0)
    limit = count if best is None else best
    spread = np.unique(np.linspace(0, limit - 1, min(room, limit)).astype(np.int64)).tolist()
    before = -1
    for position in spread:
        if ask(position):
            return bisect(before, position)
        before = position
    return best


def first_good_from_coarse(
    sizes: IntArray, is_good: Callable[[int], bool], most: int
) -> int | None:
    """`first_good`, where asking about fine positions takes too long to begin with them.

    Sizes grow by a factor until one is good, and what lies between is bisected.

    Args:
        sizes: Number of clusters at each position, from coarse to fine, not falling.
        is_good: Asked about a position; may be slow, and is asked about each once at most.
        most: How often it may be asked.
    """
    before, size = -1, 1
    for asked in range(1, most + 1):
        position = min(int(np.searchsorted(sizes, size)), sizes.size - 1)
        if position > before and is_good(position):
            for _ in range(most - asked):
                if position - before <= 1:
                    break
                least = max(int(sizes[before]), 1) if before >= 0 else 1
                middle_ = int(np.searchsorted(sizes, math.sqrt(least * int(sizes[position]))))
                between = min(max(middle_, before + 1), position - 1)
                if is_good(between):
                    position = between
                else:
                    before = between
            return position
        if position == sizes.size - 1:
            return None
        before, size = max(before, position), size * GROWTH
    return None


def trace_frontier(
    certificate: Certificate,
    mdp: TabularMDP,
    *,
    most: int | None = None,
    callback: ProgressCallback | None = None,
) -> Frontier:
    """See `Certificate.frontier`."""
    goal, own = certificate.goal, certificate.value
    horizon = None if own is None or own.episodes is None else own.episodes.horizon
    relation = certificate.relation
    search = ValueSearch(mdp, certificate.gamma, relation=relation, goal=goal, horizon=horizon)
    if most is not None:
        search.most = check_int("most", most, low=1)
    intervals = certificate.certified_thresholds()[::-1]
    upper = certificate.forests[1]
    points: dict[int, FrontierPoint] = {}

    def ask(k: int) -> bool:
        found, tau = intervals[k], certificate.tau
        numbers = None
        if own is not None and tau is not None and found.low <= tau < found.high:
            numbers = Numbers.of(own, goal.guarantee)
        if numbers is None:
            numbers = search.numbers(upper.labels(middle(found)))
        points[k] = FrontierPoint(found.low, found.high, found.n_clusters, **numbers._asdict())
        count = counted(found.n_clusters, "cluster")
        tell(callback, "tracing the frontier", len(points), None, count)
        return goal.is_met(numbers)

    if len(intervals) <= search.most:
        for k in range(len(intervals)):
            ask(k)
    else:
        for k in _ends_and_own(certificate, intervals):
            ask(k)

        def is_good(k: int) -> bool:
            known = points.get(k)
            return ask(k) if known is None else goal.is_met(known.numbers)

        first_good(len(intervals), is_good, search.most)
    ordered = tuple(points[k] for k in sorted(points, reverse=True))
    return Frontier(ordered, len(intervals), certificate.terminal_state is not None, goal)


def _ends_and_own(certificate: Certificate, intervals: list[CertifiedInterval]) -> Iterator[int]:
    """The coarsest threshold, the finest, and the certificate's own."""
    tau, last = certificate.tau, len(intervals) - 1
    own = {k for k, x in enumerate(intervals) if tau is not None and x.low <= tau < x.high}
    yield from sorted({0, last} | own)
