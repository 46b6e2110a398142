"""What every figure shows, derived once: `plots` draws it with matplotlib, `page/` with a script.

A figure is a frozen object of arrays, numbers and words, its scales decided. Whoever draws it
computes positions on a screen and nothing else; `as_json` carries it to the page, where fields
have the same names. Figures of states are in `maps`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app.page_parts import percent_text
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.text import clusters_text, counted, shortened
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.verdict import AGENTS
from bisim_abstract._linkage.thresholds import CertifiedInterval, Merge, certified_merges
from bisim_abstract._model.names import Names
from bisim_abstract._relations.table import find_relation
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._certificate.frontier import Frontier
    from bisim_abstract._compare.learning import Curve
    from bisim_abstract._compare.losses import AbstractionLoss

NARROWEST = 1e-9  # share of the largest threshold below which all are 0 to any eye
LINEAR = 0.7 / 0.9  # decades as wide as the linear part of a scale
WIDE = 20.0  # times the fewest clusters: where numbers of clusters are drawn logarithmically
BINS = 40
MAX_POINTS = 500  # of a learning curve
SHORT = 24  # characters of a state's name where there is little room


def as_json(value: Any) -> Any:
    """Dataclasses by field, arrays as lists, and null for what is no finite number."""
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        is_plain = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        return value.tolist() if is_plain else as_json(value.tolist())
    if isinstance(value, Mapping):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- scales ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """An axis that begins at 0: linear, or logarithmic with a linear part at its left."""

    low: float  # the smallest positive value that is told from 0
    right: float  # the last value
    is_log: bool = True  # whether it is logarithmic

    @property
    def limit(self) -> float:
        """Where the linear part ends: a power of ten, below which no tick runs into that of 0."""
        return float(10.0 ** np.floor(np.log10(self.low))) if self.is_log else self.right

    def along(self, values: FloatArray) -> FloatArray:
        """Positions of values, from 0 at the left to 1 at the right."""
        return self._decades(np.asarray(values)) / self._decades(np.array(self.right))

    def at(self, positions: FloatArray) -> FloatArray:
        """The values at positions."""
        decades = positions * self._decades(np.array(self.right))
        far = self.limit * 10.0 ** np.maximum(decades - LINEAR, 0.0)
        return np.where(decades <= LINEAR, decades * (self.limit / LINEAR), far)

    def _decades(self, values: FloatArray) -> FloatArray:
        units = values / self.limit
        far = LINEAR + np.log10(np.maximum(units, 1.0))
        return np.asarray(np.where(units <= 1.0, LINEAR * units, far))


def threshold_scale(values: FloatArray, right: float, *, is_log: bool = True) -> Scale:
    """A scale up to `right` on which positive values are told from 0."""
    telling = values[values >= max(NARROWEST * right, 1e-300)]
    return Scale(float(telling.min()) if telling.size else 0.1 * right, right, is_log)


def is_wide(counts: Sequence[int]) -> bool:
    """Whether numbers of clusters call for a logarithmic axis."""
    return max(counts, default=1) > WIDE * min(counts, default=1)


# -- words -------------------------------------------------------------------------------------


def live_clusters(certificate: Certificate, count: int) -> str:
    """Clusters as they are counted everywhere."""
    return clusters_text(count, has_end=certificate.terminal_state is not None)


def clusters_of_states(certificate: Certificate, count: int) -> str:
    """The same, of all states: "315 clusters of 500 states (plus the terminal state)"."""
    states = counted(certificate.n_live, "state")
    return clusters_text(count, has_end=certificate.terminal_state is not None, of=states)


def counts_label(has_end: bool) -> str:
    """The name of an axis of numbers of clusters."""
    return "clusters (terminal state not counted)" if has_end else "clusters"


def count_live(certificate: Certificate, labels: IntArray) -> int:
    """Number of clusters, the end of episodes not counted."""
    end = certificate.terminal_state
    return int(np.unique(labels if end is None else np.delete(labels, end)).size)


def reservation(certificate: Certificate) -> str:
    """The last lines of a title: whose value it is about, and with what probability it holds."""
    text = "\nunder the given policy" if certificate.is_under_policy else ""
    return f"{text}\n{certificate.holds_for}" if certificate.alpha else text


def verdict_text(certificate: Certificate) -> str:
    """What is known at the certificate's threshold."""
    low, high = (
        count_live(certificate, labels)
        for labels in (certificate.labels_lower, certificate.labels_upper)
    )
    clusters = live_clusters(certificate, high)
    if certificate.is_certified:
        return f"τ = {certificate.tau:.4g}: {clusters}, certified"
    return f"τ = {certificate.tau:.4g}: NOT certified, {low:,} to {clusters}"


# -- profile -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ProfileFigure:
    """Numbers of clusters of both arms against the threshold."""

    tau: FloatArray  # (steps) thresholds, rising from 0: all, or the ends of each position
    lower: IntArray  # (steps) clusters of the lower arm, the end not counted
    upper: IntArray  # (steps) clusters of the upper arm
    agrees: IntArray  # (steps) 1 where both arms have the same clusters, else 0
    n_steps: int  # how many steps there are
    intervals: Sequence[CertifiedInterval]  # where the arms agree
    n_intervals: int  # how many such intervals there are
    scale: Scale  # of thresholds
    title: str


def profile_figure(certificate: Certificate, *, positions: int) -> ProfileFigure:
    """The profile of a certificate, exact if there are at most two steps for each position."""
    profile, tau = certificate.profile(), certificate.tau
    known = profile.tau if tau is None else np.append(profile.tau, tau)
    scale = threshold_scale(known, min(1.5 * float(known.max()), 1e300) or 1.0)
    is_drawn = ends_of_positions(scale.along(profile.tau), positions)
    steps = profile.tau[is_drawn]
    lower, upper = (forest.count(steps) for forest in certificate.forests)
    title = f"Clusters of {counted(certificate.n_live, 'state')}, over {certificate.scope} pairs"
    return ProfileFigure(
        tau=steps,
        lower=profile.lower[is_drawn],
        upper=profile.upper[is_drawn],
        agrees=(lower == upper).astype(np.int64),
        n_steps=profile.tau.size,
        intervals=profile.intervals,
        n_intervals=len(profile.intervals),
        scale=scale,
        title=title + reservation(certificate),
    )


def ends_of_positions(along: FloatArray, positions: int) -> BoolArray:
    """Which of rising values to draw: all of a few, else the first and last at each position."""
    if along.size <= 2 * positions:
        return np.ones(along.size, np.bool_)
    changes = np.diff(np.floor(along * positions)) != 0.0
    return np.asarray(np.append(True, changes) | np.append(changes, True))


def widest_intervals(
    intervals: Sequence[CertifiedInterval], tau: float, most: int
) -> Sequence[CertifiedInterval]:
    """All intervals, or the widest by ratio of their ends and the one around tau."""
    if len(intervals) <= most:
        return intervals
    low = np.array([interval.low for interval in intervals])
    high = np.array([interval.high for interval in intervals])
    with np.errstate(divide="ignore"):
        ratio = np.where(low > 0.0, high / np.maximum(low, 1e-300), np.inf)
    ratio[(low <= tau) & (tau < high)] = np.inf
    order = np.argsort(-ratio, kind="stable")[:most]
    return [intervals[k] for k in np.sort(order).tolist()]


# -- widths ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WidthGroup:
    """How far the bounds of one kind of pairs are apart."""

    name: str  # "covered" or "other"; "all" where no pair is covered by itself
    n_pairs: int  # how many there are
    n_sampled: int  # how many were looked at
    shares: FloatArray  # (bins) the share of these in each bin
    median: float  # their median width
    largest: float  # their largest width


@dataclass(frozen=True, eq=False)
class WidthsFigure:
    """Histograms of upper minus lower bounds."""

    groups: Sequence[WidthGroup]  # kinds of pairs, as far as there are any
    edges: FloatArray  # (bins + 1) edges of the bins, equally wide on the scale
    scale: Scale  # of widths
    title: str


def widths_figure(
    certificate: Certificate, *, sample: int, rng: np.random.Generator
) -> WidthsFigure:
    """Widths over covered pairs and over others: of all, or of so many of each."""
    has_arms = find_relation(certificate.relation).has_arms
    widths = {}
    for name, pair in pair_groups(certificate, sample, rng).items():
        lower, upper = certificate.bounds(*pair)
        widths[name] = np.maximum(upper - lower, 0.0)
    together = np.concatenate([*widths.values(), [0.0]])
    right = float(together.max()) or 1.0
    positive = together[together > 0.0]
    is_log = bool(positive.size) and bool(np.median(positive) < 0.01 * right)  # else in one bin
    scale = threshold_scale(together, right, is_log=is_log)
    edges = scale.at(np.linspace(0.0, 1.0, BINS + 1))
    edges[[0, -1]] = 0.0, right
    total = count_pairs(certificate.n_states)
    sizes = {"covered": certificate.n_covered, "other": total - certificate.n_covered}
    groups = []
    for name, sample_of in widths.items():
        if sample_of.size:
            shares = np.histogram(sample_of, edges)[0] / sample_of.size
            numbers = float(np.median(sample_of)), float(sample_of.max())
            shown = name if has_arms else "all"
            groups.append(WidthGroup(shown, sizes[name], sample_of.size, shares, *numbers))
    title = f"Width of bounds, {counted(certificate.n_states, 'state')}"
    if has_arms:
        title += f"; {percent_text(certificate.coverage)} of pairs covered"
    if sum(group.n_sampled for group in groups) < total:
        title += f"\nproven on all pairs: {certificate.global_width:.3g} at most"
    return WidthsFigure(groups, edges, scale, title + reservation(certificate))


def count_pairs(n_states: int) -> int:
    """Number of pairs of different states."""
    return n_states * (n_states - 1) // 2


def pair_groups(
    certificate: Certificate, sample: int, rng: np.random.Generator
) -> dict[str, tuple[IntArray, IntArray]]:
    """Covered pairs and others, both as states: all, or as many as requested at random."""
    n, keys = certificate.n_states, certificate.keys
    total = count_pairs(n)
    is_every = total - keys.size <= sample or total <= 50 * sample
    count = total if is_every else sample
    check_memory(
        40 * count, what=f"choosing from {count:,} pairs", instead="ask for a smaller sample"
    )
    if is_every:
        first, second = np.triu_indices(n, 1)
        others = np.setdiff1d(first * n + second, keys, assume_unique=True)
        others = others if others.size <= sample else rng.choice(others, sample, replace=False)
    else:
        first = rng.integers(n, size=sample)
        second = rng.integers(n - 1, size=sample)
        second += second >= first
        others = np.minimum(first, second) * n + np.maximum(first, second)
        others = np.setdiff1d(others, keys)
    if keys.size > sample:
        keys = rng.choice(keys, sample, replace=False)
    return {"covered": np.divmod(keys, n), "other": np.divmod(others, n)}


# -- frontier ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrontierMark:
    """A certified clustering, and what agents on it are proven to retain and lose."""

    low: float  # smallest threshold that gives it
    high: float  # first threshold beyond
    n_clusters: int  # its clusters, the end not counted
    percent: float  # of the achievable return, retained at least; 0 for what is below the baseline
    is_proven: bool  # whether it is proven to be no worse than the baseline
    is_own: bool  # whether it is the certificate's choice
    is_worth: bool  # it reaches the goal, with fewer clusters than states
    kept_text: str  # the share in words, rounded down
    ends_fewer: bool  # whether clearly fewer episodes may end than under the best policy
    loss: float  # proven loss of the worst state
    loss_text: str  # the loss in words, rounded up


@dataclass(frozen=True)
class FrontierFigure:
    """Proven value against numbers of clusters."""

    marks: Sequence[FrontierMark]  # what was evaluated, from the finest to the coarsest
    keep: float | None  # requested share of the achievable return, in percent
    max_loss: float | None  # or the requested loss of the worst state, in its place
    requested: str  # the request in words
    is_log: bool  # whether the axis of clusters is logarithmic
    worst: float  # the largest loss, the end of its axis
    has_end: bool  # whether there is an end of episodes
    title: str


def frontier_figure(certificate: Certificate, frontier: Frontier) -> FrontierFigure:
    """The frontier of a certificate."""
    tau, goal = certificate.tau, frontier.goal
    marks = [
        FrontierMark(
            low=point.low,
            high=point.high,
            n_clusters=point.n_clusters,
            percent=100.0 * min(max(point.kept, 0.0), 1.0),
            is_proven=point.kept >= 0.0,
            is_own=tau is not None and point.low <= tau < point.high,
            is_worth=goal.is_met(point.numbers) and point.n_clusters < certificate.n_live,
            kept_text=share_text(point.kept),
            ends_fewer=point.ends_fewer,
            loss=point.loss,
            loss_text=amount_text(point.loss),
        )
        for point in frontier.points
    ]
    bar = f"{100.0 * goal.keep:.4g}%" if goal.max_loss is None else f"at most {goal.max_loss:g}"
    worst = max([mark.loss for mark in marks] + [goal.max_loss or 0.0])
    title = f"Proven for {AGENTS[goal.guarantee]}\non clusters of "
    title += counted(certificate.n_live, "state")
    if not frontier.is_complete:
        ranges = counted(frontier.n_thresholds, "certified range")
        title += f"\n{len(marks):,} of {ranges} evaluated"
    return FrontierFigure(
        marks=marks,
        keep=100.0 * goal.keep if goal.max_loss is None else None,
        max_loss=goal.max_loss,
        requested=f"requested: {bar}",
        is_log=is_wide([mark.n_clusters for mark in marks]),
        worst=worst if worst > 1e-290 else 1.0,  # what is less is 0 to any eye, and breaks axes
        has_end=frontier.has_end,
        title=title + reservation(certificate),
    )


# -- merges ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """A cluster that a tree begins with."""

    label: int  # its number
    state: int  # its first state
    size: int  # its states, the end of episodes not counted
    drawn: int | None  # position of its first state on the map, if any is drawn
    name: str  # what its first state is called; empty where it has no name
    short: str  # the same in few characters


@dataclass(frozen=True)
class TreeNode:
    """A cluster that both arms agree on, as a line; and the merge it comes from, as a box."""

    children: tuple[int, ...]  # positions of the nodes that merge; none for a leaf
    start: float  # where the box begins: below, no child merges
    begin: float  # where the line begins and the box ends: from here on it is a cluster
    end: float  # up to here at least
    row: float  # height of the line, in leaves from the top
    first: float  # height of its highest child
    last: float  # height of its lowest child


@dataclass(frozen=True)
class TreeFigure:
    """The hierarchy of certified clusters."""

    leaves: Sequence[Leaf]  # clusters that it begins with
    nodes: Sequence[TreeNode]  # all clusters, the leaves first and children before their parents
    interval: CertifiedInterval  # where the leaves are certified
    left: float  # smallest threshold to draw
    right: float  # largest threshold to draw
    finer: Sequence[int]  # numbers of clusters of finer certified intervals
    title: str


def tree_figure(
    certificate: Certificate,
    *,
    max_leaves: int,
    states: IntArray | None = None,
    names: Names | None = None,
) -> TreeFigure:
    """Certified merges above the finest certified interval that has few enough clusters.

    If none has, its leaves are the largest clusters of the last one, which never merge. `states`
    are those that are drawn on a map, all by default; `names` are what they are called.
    """
    names = Names() if names is None else names
    intervals = certificate.certified_thresholds()
    fitting = [interval for interval in intervals if interval.n_clusters <= max_leaves]
    interval = fitting[0] if fitting else intervals[-1]
    labels = certificate.forests[1].labels(interval.low)
    _, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    if certificate.terminal_state is not None:  # it is no member of a cluster
        sizes[labels[certificate.terminal_state]] -= 1
    chosen = np.arange(sizes.size)
    if fitting:
        merges = certified_merges(*certificate.forests, labels)
    else:
        chosen = np.sort(np.argsort(-sizes, kind="stable")[:max_leaves])
        merges = [Merge((), 0.0, 0.0, 0.0, np.inf)] * chosen.size
    seen = np.unique(labels if states is None else labels[states], return_index=True)
    drawn = dict(zip(seen[0].tolist(), seen[1].tolist(), strict=True))
    boxes = [merge for merge in merges if merge.children]
    left, right = _tree_range(interval, boxes, certificate.tau)
    is_cut = chosen.size < sizes.size
    return TreeFigure(
        leaves=[
            _leaf(k, int(first[k]), int(sizes[k]), drawn.get(k), names) for k in chosen.tolist()
        ],
        nodes=_tree_nodes(merges, left),
        interval=interval,
        left=left,
        right=right,
        finer=[finer.n_clusters for finer in intervals if finer.low < interval.low],
        title=_tree_title(certificate, interval, chosen.size if is_cut else None),
    )


def _leaf(label: int, state: int, size: int, drawn: int | None, names: Names) -> Leaf:
    name = names.state(state)
    return Leaf(label, state, size, drawn, name, shortened(name, SHORT))


def _tree_nodes(merges: Sequence[Merge], left: float) -> list[TreeNode]:
    """Nodes with their rows, leaves in such an order that no lines cross."""
    inner = {child for merge in merges for child in merge.children}
    waiting = [k for k in range(len(merges)) if k not in inner][::-1]
    rows: dict[int, float] = {}
    while waiting:
        k = waiting.pop()
        if merges[k].children:
            waiting += merges[k].children[::-1]
        else:
            rows[k] = float(len(rows))
    nodes = []
    for k, merge in enumerate(merges):
        heights = [rows[child] for child in merge.children] or [rows[k]]
        first, last = min(heights), max(heights)
        rows[k] = (first + last) / 2.0
        begin = merge.upper if merge.children else left
        nodes.append(TreeNode(merge.children, merge.start, begin, merge.end, rows[k], first, last))
    return nodes


def _tree_range(
    leaf: CertifiedInterval, merges: Sequence[Merge], tau: float | None
) -> tuple[float, float]:
    """Thresholds to draw: from a little before the first merge to a little after the last."""
    if merges:
        left, right = min(node.start for node in merges), max(node.upper for node in merges)
    else:
        left, right = leaf.low, 2.0 * leaf.low or 1.0
    if tau is not None and tau >= leaf.low:
        # A threshold far below the first merge would leave no room for the tree.
        left = tau if left / 1e3 < tau < left else left
        right = max(right, tau)
    if not merges:
        return left, right
    left = max(left, NARROWEST * right)  # what merges below is off the picture
    if right > 10.0 * left:  # the axis is logarithmic
        margin = (right / left) ** 0.12
        return max(left / margin, leaf.low), right * margin
    # Differences in the last digits are no range to look at.
    is_range = right - left > 1e-6 * right
    margin = 0.12 * (right - left) if is_range else 0.2 * left
    return max(left - margin, leaf.low), right + margin


def _tree_title(certificate: Certificate, leaf: CertifiedInterval, largest: int | None) -> str:
    """The title, where only so many of the clusters are drawn, or all of them."""
    states = counted(certificate.n_live, "state")
    title = f"Certified hierarchy of {states}, over {certificate.scope} pairs"
    clusters = live_clusters(certificate, leaf.n_clusters)
    if largest is not None:
        title += f"\nthe {largest:,} largest of {clusters}, which nothing merges"
    else:
        digits = 4 if f"{leaf.low:.4g}" != f"{leaf.high:.4g}" else 12
        until = "" if leaf.high == np.inf else f" < {leaf.high:.{digits}g}"
        title += f"\nleaves: {clusters}, certified for {leaf.low:.{digits}g} ≤ τ{until}"
    return title + reservation(certificate)


# -- curves and losses -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CurveLine:
    """A learning curve over its seeds."""

    name: str  # for legends
    seeds: int  # number of seeds
    steps: IntArray  # (points) environment steps: all, or evenly spread ones
    median: FloatArray  # (points) median over seeds, NaN where a score is no finite number
    low: FloatArray  # (points) the smallest score
    high: FloatArray  # (points) the largest score


def curve_lines(curves: Sequence[Curve]) -> list[CurveLine]:
    """Learning curves as lines and bands."""
    lines = []
    for curve in curves:
        scores, steps = np.asarray(curve.scores, dtype=np.float64), np.asarray(curve.steps)
        if scores.ndim != 2 or scores.shape[1] != steps.size or scores.size == 0:
            raise InvalidArgumentError(
                f"scores of {curve.name!r} must have shape (seeds, {steps.size}), none of "
                f"them 0, got {scores.shape}"
            )
        points = np.linspace(0, steps.size - 1, min(steps.size, MAX_POINTS)).astype(np.int64)
        scores, steps = scores[:, points], steps[points]
        scores = np.where(np.isfinite(scores).all(axis=0), scores, np.nan)
        bands = (np.median(scores, axis=0), scores.min(axis=0), scores.max(axis=0))
        lines.append(CurveLine(str(curve.name), scores.shape[0], steps, *bands))
    return lines


def curves_label(curves: Sequence[Curve]) -> str:
    """What the scores of curves are, where they are all the same."""
    measures = {str(curve.measure) for curve in curves}
    return measures.pop() if len(measures) == 1 else "score"


@dataclass(frozen=True)
class LossRow:
    """What planning on one clustering loses."""

    name: str  # what it is
    n_clusters: int  # its clusters
    losses: tuple[float, float, float]  # at most: largest, mean, at the start
    shares: tuple[float, ...]  # the same by the largest of all clusterings; 0 if not finite
    kept: float  # retained share of the achievable return, at least
    bound: float | None  # what the certificate proves of the largest loss beforehand
    is_certified: bool  # whether it is the certified clustering


def loss_rows(comparison: Sequence[AbstractionLoss]) -> list[LossRow]:
    """Compared clusterings, in the given order."""
    losses = [(row.loss.sup, row.loss.mean, row.loss.start) for row in comparison]
    finite = np.nan_to_num(np.array(losses), nan=0.0, posinf=0.0, neginf=0.0).reshape(-1, 3)
    tops = finite.max(axis=0, initial=0.0)
    shares = np.clip(finite / np.where(tops > 0.0, tops, 1.0), 0.0, 1.0).tolist()
    return [
        LossRow(
            row.name, row.n_clusters, own, tuple(share), row.loss.kept, row.bound, row.is_certified
        )
        for row, own, share in zip(comparison, losses, shares, strict=True)
    ]
