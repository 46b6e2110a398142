"""Single-linkage clusterings of two arms, and the thresholds at which they agree.

At threshold tau, states are linked if their value is at most tau; clusters are the connected
components. Fewer links are below tau in the upper arm, so its clustering refines the lower
arm's. Hence the two are equal exactly when they have equally many clusters, and all certified
thresholds follow from the two minimum spanning forests: the number of clusters is a step
function of tau that falls at the weights of the forest's edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._linkage.forests import Forest
from bisim_abstract.errors import InvalidArgumentError

THIN = 1e-9  # of its upper end: an interval no wider than this is one number, but for rounding


@dataclass(frozen=True)
class CertifiedInterval:
    """Thresholds at which both arms give the same clustering: low <= tau < high.

    Attributes:
        low: Smallest threshold.
        high: First threshold beyond, or infinity.
        n_clusters: Number of clusters there, the end of episodes not counted.
    """

    low: float
    high: float
    n_clusters: int


def certified_intervals(
    lower: Forest, upper: Forest, end: int | None = None
) -> list[CertifiedInterval]:
    """All thresholds tau >= 0 at which two arms over the same links agree.

    `lower` and `upper` are the forests of the two arms, `end` is the state that stands for the
    end of episodes and is not counted where it is alone. Between two breakpoints both counts
    are constant; neighbouring intervals with the same clustering are joined.
    """
    if lower.n_states != upper.n_states:
        raise InvalidArgumentError(
            f"the arms are over {lower.n_states} and {upper.n_states} states"
        )
    breaks = np.unique(np.concatenate([[0.0], lower.weights, upper.weights]))
    breaks = breaks[breaks >= 0.0]
    counts = upper.count(breaks)
    live = upper.count_live(breaks, end)
    agree = lower.count(breaks) == counts
    ends = np.append(breaks[1:], np.inf)
    found: list[CertifiedInterval] = []
    before = -1
    for k in np.flatnonzero(agree):
        low, high, count = float(breaks[k]), float(ends[k]), int(live[k])
        if found and found[-1].high == low and counts[k] == before:
            found[-1] = CertifiedInterval(found[-1].low, high, count)
        else:
            found.append(CertifiedInterval(low, high, count))
        before = int(counts[k])
    return found


def intervals_below(
    intervals: Iterable[CertifiedInterval], limit: float
) -> list[CertifiedInterval]:
    """What of certified intervals lies below a limit."""
    return [
        CertifiedInterval(x.low, min(x.high, limit), x.n_clusters)
        for x in intervals
        if x.low < limit
    ]


@dataclass(frozen=True, eq=False)
class Profile:
    """Numbers of clusters of both arms at every threshold.

    Attributes:
        tau: (breaks) thresholds, rising from 0, at which a number changes.
        lower: (breaks) clusters of the lower arm from there on, the end not counted.
        upper: (breaks) clusters of the upper arm from there on, the end not counted.
        intervals: Where both agree.
    """

    tau: FloatArray
    lower: IntArray
    upper: IntArray
    intervals: tuple[CertifiedInterval, ...]


def make_profile(lower: Forest, upper: Forest, end: int | None = None) -> Profile:
    """The profile of two arms, by their forests."""
    breaks = np.unique(np.concatenate([[0.0], lower.weights, upper.weights]))
    breaks = breaks[breaks >= 0.0]
    intervals = tuple(certified_intervals(lower, upper, end))
    counts = (lower.count_live(breaks, end), upper.count_live(breaks, end))
    return Profile(breaks, *counts, intervals)


@dataclass(frozen=True)
class Merge:
    """A cluster that both arms agree on, as a node of their common hierarchy.

    Attributes:
        children: Positions of the clusters it is made of, by first leaf; none for a leaf.
        start: No part of it merges with another below this threshold.
        lower: It is no cluster below this threshold (0 for a leaf) ...
        upper: ... and is one from here on, ...
        end: ... up to here at least.
    """

    children: tuple[int, ...]
    start: float
    lower: float
    upper: float
    end: float


def certified_merges(lower: Forest, upper: Forest, labels: IntArray) -> list[Merge]:
    """The hierarchy, above one certified clustering, of the clusters that both arms agree on.

    No link leaves a cluster of the lower arm, and proven links connect one of the upper arm. So
    a set that is a cluster of both at one threshold is one of the metric there, whether or not
    the arms agree elsewhere.

    Args:
        lower: Forest of the lower arm.
        upper: Forest of the upper arm.
        labels: (n_states) clusters of both arms at one threshold, numbered from 0: the leaves,
            which come first in the list. Children come before their parents.
    """
    below, above = _lives(lower, labels), _lives(upper, labels)
    agreed = [(born, members) for members, (born, _) in above.items() if members in below]
    agreed = [(born, members) for born, members in agreed if born < below[members][1]]
    agreed.sort(key=lambda entry: (len(entry[1]), min(entry[1])))
    nodes: list[Merge] = []
    top: dict[int, int] = {}  # the largest node so far that holds a leaf
    for born, members in agreed:
        children = tuple(dict.fromkeys(top[leaf] for leaf in sorted(members) if leaf in top))
        begin, end = below[members]
        start = min((nodes[child].end for child in children), default=begin)
        top |= dict.fromkeys(members, len(nodes))
        nodes.append(Merge(children, start, begin, born, end))
    return nodes


def _lives(forest: Forest, labels: IntArray) -> dict[frozenset[int], tuple[float, float]]:
    """All clusters of a forest, as sets of leaves, with the thresholds from and up to which."""
    first, second = labels[forest.first], labels[forest.second]
    used = np.flatnonzero(first != second)
    at = [frozenset([leaf]) for leaf in range(int(labels.max()) + 1)]
    lives = dict.fromkeys(at, (0.0, np.inf))
    for weight in np.unique(forest.weights[used]).tolist():
        tied = used[forest.weights[used] == weight]  # these merge at once
        touched = set(first[tied].tolist()) | set(second[tied].tolist())
        before = {at[leaf] for leaf in touched}
        for s, t in zip(first[tied].tolist(), second[tied].tolist(), strict=True):
            both = at[s] | at[t]
            for leaf in both:
                at[leaf] = both
        for members in before:
            lives[members] = (lives[members][0], weight)
        lives |= {at[leaf]: (weight, np.inf) for leaf in touched}
    return lives


def wide_intervals(intervals: list[CertifiedInterval]) -> list[CertifiedInterval]:
    """Those that a threshold can be chosen from.

    Thinner ones come up where a bound and what it is compared with are the same number, rounded
    differently: what they certify is true, but no check in floats could confirm it.
    """
    return [x for x in intervals if x.low < (1.0 - THIN) * x.high]


def best_interval(
    intervals: list[CertifiedInterval],
    n_states: int,
    *,
    n_clusters: int | None = None,
    floor: float = 0.0,
) -> CertifiedInterval | None:
    """The most useful certified interval: the widest by ratio of its ends.

    Args:
        intervals: Certified intervals.
        n_states: Number of states.
        n_clusters: Number of clusters it must have; by default more than one, and fewer than
            states.
        floor: Numerical resolution: lower ends count as at least this.
    """
    found, widest = None, 0.0
    for interval in intervals:
        fits = (
            1 < interval.n_clusters < n_states
            if n_clusters is None
            else interval.n_clusters == n_clusters
        )
        low = max(interval.low, floor)
        if not fits or interval.high <= low:
            continue
        ratio = np.inf if low == 0.0 or interval.high == np.inf else interval.high / low
        if ratio > widest:
            found, widest = interval, ratio
    return found


def middle(interval: CertifiedInterval, *, floor: float = 0.0) -> float:
    """A threshold well inside an interval: the geometric mean of its ends."""
    low = max(interval.low, floor)
    if interval.high == np.inf:
        return 2.0 * low if low > 0.0 else 1.0
    between = float(np.sqrt(low) * np.sqrt(interval.high))
    return between if interval.low <= between < interval.high else interval.low
