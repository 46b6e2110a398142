"""Clusters against proven value: the frontier of a certificate, and the search along it.

Finer clusterings of one hierarchy need not be better, but mostly are. So the coarsest one that
is good enough is looked for by bisection, and what is left of the budget goes to coarser ones,
evenly spread. Where the budget allows it, all of them are looked at, from the coarsest on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bisim_abstract._abstract.aggregate import Aggregation, aggregate, set_end_apart
from bisim_abstract._abstract.value import ProvenValue, amount_text, share_text
from bisim_abstract._abstract.value_proof import (
    GroundValues,
    Hint,
    matched_actions,
    prove_value,
)
from bisim_abstract._base.checks import check_int
from bisim_abstract._base.html import table_html
from bisim_abstract._base.progress import tell
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import IntArray, ProgressCallback
from bisim_abstract._linkage.thresholds import CertifiedInterval, middle
from bisim_abstract._model.mdp import TabularMDP

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate

__all__ = ["Frontier", "FrontierPoint"]

WORK = 3_000_000  # transitions of all clusterings that are looked at, about
MAX_ROWS = 16  # points that a table in a notebook lists
FEWEST, MOST = 12, 60  # clusterings that are looked at, whatever that takes
MAX_VALUED = 50_000  # states up to which pictures evaluate other thresholds than the chosen one
LARGE = 5_000  # states from which on a smaller model may stand for the model


class Numbers(NamedTuple):
    """What is proven of a partition: the share kept, the worst loss, and that of the start."""

    kept: float
    loss: float
    start_loss: float


@dataclass(frozen=True)
class FrontierPoint:
    """A certified clustering, and what a policy over it is proven to be worth.

    Attributes:
        low: Smallest threshold that gives it.
        high: First threshold beyond.
        n_clusters: Number of clusters, the end of episodes not counted.
        loss: Proven loss of the worst state.
        start_loss: Proven loss of the start distribution.
        kept: Proven share of the start value that is kept.
    """

    low: float
    high: float
    n_clusters: int
    loss: float
    start_loss: float
    kept: float

    @property
    def numbers(self) -> Numbers:
        """What is proven of it."""
        return Numbers(self.kept, self.loss, self.start_loss)


@dataclass(frozen=True)
class Frontier:
    """Clusters against proven value over certified thresholds.

    Attributes:
        points: Those that were looked at, from the finest to the coarsest.
        n_thresholds: Number of certified intervals of thresholds there are.
        has_end: Whether the model has an end of episodes.
        blind: What is proven of a single cluster for all states, of knowing nothing; None if
            it was not looked at.
    """

    points: tuple[FrontierPoint, ...]
    n_thresholds: int
    has_end: bool = False
    blind: Numbers | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all certified thresholds were looked at."""
        return len(self.points) == self.n_thresholds

    def coarsest(self, keep: float) -> FrontierPoint | None:
        """The fewest clusters that are worth having, among those looked at.

        Args:
            keep: Share to be kept: of the start value above that of random actions, and of what
                can be gained over a single cluster.
        """
        good = [point for point in self.points if is_worth(point.numbers, self.blind, keep)]
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
                f"tau from {point.low:.6g}: {what}, keeps {share_text(point.kept)}, loses at most "
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


ALL_OF_IT = 1.0 - 1e-9  # a share this large is 1, but for what rounding adds to proven losses


def is_worth(found: Numbers, blind: Numbers | None, keep: float) -> bool:
    """Whether a clustering keeps enough to be worth having.

    It must do so twice: of what can be gained over random actions, and of what can be gained
    over knowing nothing, a single cluster for all states. Where random actions are ruinous, any
    steady one keeps almost everything of the first. What keeps all of it, but for rounding, is
    worth having: where knowing nothing loses nothing, losses are rounding alone, and no share.
    """
    if found.kept < keep:
        return False
    if blind is None or found.kept >= ALL_OF_IT:
        return True
    return found.start_loss <= (1.0 - keep) * blind.start_loss


class ValueSearch:
    """Proven values of partitions of one model, each of them found once.

    For a large model, a smaller one that stands for it (`stand_in`) tells about partitions on
    the way. What it says is exact only if its blocks are; `prove` looks at the model itself.

    Args:
        mdp: The model.
        gamma: The discount.
        relation: Which actions of states of a cluster correspond: by name, or renamed.
        by: See `prove_value`.

    Attributes:
        most: Partitions that one search may look at, so that it takes some seconds at most.
    """

    def __init__(
        self, mdp: TabularMDP, gamma: float, *, relation: str = "plain", by: str = "start"
    ) -> None:
        self.mdp, self.gamma, self._relation, self._by = mdp, gamma, relation, by
        self.most = int(np.clip(WORK // mdp.nnz, FEWEST, MOST))
        self._ground: GroundValues | None = None
        self._known: dict[bytes, Numbers] = {}
        self._last: tuple[bytes, ProvenValue] | None = None
        self._small: tuple[Aggregation, IntArray, ValueSearch] | None = None

    def stand_in(self, blocks: IntArray) -> None:
        """Let the model over some blocks tell about partitions of these, if that saves work."""
        count = int(blocks.max()) + 1
        if self.mdp.n_states < LARGE or 4 * count > self.mdp.n_states:
            return
        renaming = matched_actions(self.mdp, blocks, self._relation)
        small = aggregate(self.mdp, blocks, renaming=renaming)
        first = np.unique(small.labels, return_index=True)[1]
        search = ValueSearch(small.mdp, self.gamma, relation=self._relation, by=self._by)
        self._small = small, first, search

    @property
    def has_stand_in(self) -> bool:
        """Whether there is a smaller model that tells about partitions."""
        return self._small is not None

    def prove(self, labels: IntArray) -> ProvenValue:
        """The whole proof."""
        key = self._key(labels)
        if self._last is None or self._last[0] != key:
            hint = self._hint(labels)
            if self._ground is None:
                self._ground = GroundValues(self.mdp, self.gamma, hint=hint)
            value = prove_value(
                self.mdp,
                labels,
                self.gamma,
                relation=self._relation,
                by=self._by,
                ground=self._ground,
                hint=hint,
            )
            self._known[key] = Numbers(value.kept, value.loss, value.start_loss)
            self._last = key, value  # after these: an interrupt may come between
        return self._last[1]

    def blind(self) -> Numbers:
        """Those of a single cluster: of knowing nothing."""
        return self.numbers(np.zeros(self.mdp.n_states, np.int64))

    def numbers(self, labels: IntArray) -> Numbers:
        """What is proven of a partition, of the model that stands in if there is one."""
        key = self._key(labels)
        if key not in self._known:
            if self._small is not None and self._fits(labels):
                _, first, search = self._small
                return search.numbers(labels[first])
            self.prove(labels)
        return self._known[key]

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
        found, at = search.prove(labels[first]), small.labels
        return Hint(found.optimal_upper[at], found.random_upper[at], found.policy_lower[at])

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


def trace_frontier(
    certificate: Certificate,
    mdp: TabularMDP,
    *,
    most: int | None = None,
    callback: ProgressCallback | None = None,
) -> Frontier:
    """See `Certificate.frontier`."""
    search = ValueSearch(mdp, certificate.gamma, relation=certificate.relation)
    if most is not None:
        search.most = check_int("most", most, low=1)
    intervals = certificate.certified_thresholds()[::-1]
    upper = certificate.forests[1]
    points: dict[int, FrontierPoint] = {}

    def ask(k: int) -> bool:
        found, own, tau = intervals[k], certificate.value, certificate.tau
        if own is not None and tau is not None and found.low <= tau < found.high:
            numbers = Numbers(own.kept, own.loss, own.start_loss)
        else:
            numbers = search.numbers(upper.labels(middle(found)))
        points[k] = FrontierPoint(found.low, found.high, found.n_clusters, **numbers._asdict())
        count = counted(found.n_clusters, "cluster")
        tell(callback, "tracing the frontier", len(points), None, count)
        return is_worth(numbers, blind, certificate.keep)

    blind = search.blind()
    if len(intervals) <= search.most:
        for k in range(len(intervals)):
            ask(k)
    else:
        for k in _ends_and_own(certificate, intervals):
            ask(k)

        def is_good(k: int) -> bool:
            known = points.get(k)
            return ask(k) if known is None else is_worth(known.numbers, blind, certificate.keep)

        first_good(len(intervals), is_good, search.most)
    ordered = tuple(points[k] for k in sorted(points, reverse=True))
    return Frontier(ordered, len(intervals), certificate.terminal_state is not None, blind)


def _ends_and_own(certificate: Certificate, intervals: list[CertifiedInterval]) -> Iterator[int]:
    """The coarsest threshold, the finest, and the certificate's own."""
    tau, last = certificate.tau, len(intervals) - 1
    own = {k for k, x in enumerate(intervals) if tau is not None and x.low <= tau < x.high}
    yield from sorted({0, last} | own)
