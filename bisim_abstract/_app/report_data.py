"""What the report draws, as JSON values: bounded in size, and exact where it says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._app.plots import frontier_marks
from bisim_abstract._app.state_map import StateMap
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray, ProgressCallback
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.frontier import MAX_VALUED, Frontier, FrontierPoint
from bisim_abstract._compare.learning import Curve
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._linkage.thresholds import (
    CertifiedInterval,
    best_interval,
    certified_merges,
    middle,
)
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError

MAX_DRAWN = 20_000  # states on the page
MAX_STEPS = 20_000  # breakpoints of each arm that the page knows exactly
MAX_INTERVALS = 2_000  # certified intervals on the page
MAX_PAIRS = 20_000  # pairs behind each histogram
MAX_LEAVES = 60  # more would not fit on a screen
MAX_POINTS = 500  # of a learning curve
BINS = 36
DECADES = 1e-9  # thresholds below this share of the largest one count as 0 on the axes

Json = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Which states are drawn, and in what cells.

    Attributes:
        states: (drawn) their numbers, rising.
        stride: Cells along each side that share one drawn state; 1 if every state is drawn.
    """

    states: IntArray
    stride: int


def choose_drawn(places: StateMap, n_states: int) -> Drawn:
    """All states, or at most `MAX_DRAWN` of them, evenly spread."""
    if n_states <= MAX_DRAWN:
        return Drawn(np.arange(n_states), 1)
    placed = np.flatnonzero(places.has_place)
    if places.is_grid and placed.size > MAX_DRAWN:
        x, y = places.x[placed].astype(np.int64), places.y[placed].astype(np.int64)
        stride = math.isqrt(placed.size // MAX_DRAWN)
        while True:  # a gap between panels may ask for one more than the area suggests
            stride += 1
            wide = int(x.max()) // stride + 1
            _, first = np.unique((y // stride) * wide + x // stride, return_index=True)
            if first.size <= MAX_DRAWN:
                return Drawn(np.sort(placed[first]), stride)
    pool = placed if placed.size else np.arange(n_states)
    if pool.size > MAX_DRAWN:
        pool = pool[np.linspace(0, pool.size - 1, MAX_DRAWN).astype(np.int64)]
    return Drawn(pool, 1)


def check_places(places: StateMap, n_states: int) -> None:
    """Refuse a map of other states, or places that are no numbers."""
    if not isinstance(places, StateMap):
        raise InvalidArgumentError(f"places must be a StateMap or None, got {places!r}")
    for name in ("x", "y"):
        values = getattr(places, name)
        if values.shape != (n_states,) or np.isinf(values).any():
            raise InvalidArgumentError(
                f"places.{name} must have a finite value or NaN for each of {n_states} states, "
                f"got shape {values.shape}"
            )
    if (np.isnan(places.x) != np.isnan(places.y)).any():
        raise InvalidArgumentError("places.x and places.y must be NaN for the same states")
    cells = np.concatenate([places.x[places.has_place], places.y[places.has_place]])
    if places.is_grid and ((cells < 0.0) | (cells != np.floor(cells)) | (cells > 1e9)).any():
        raise InvalidArgumentError("cells of a grid must be whole numbers from 0 on")


def draw_map(places: StateMap, drawn: Drawn, state_ids: IntArray) -> Json:
    """Places of the drawn states; those without one are null."""
    x, y = places.x[drawn.states], places.y[drawn.states]
    if places.is_grid:
        x, y = x // drawn.stride, y // drawn.stride
        across, down = (
            [None if math.isnan(v) else int(v) for v in values.tolist()] for values in (x, y)
        )
        size = [max((v for v in axis if v is not None), default=-1) + 1 for axis in (across, down)]
        entry: Json = {"kind": "grid", "x": across, "y": down, "size": size}
    else:
        entry = {"kind": "points"} | scatter(x, y)
    ids = state_ids[drawn.states]
    is_all = drawn.states.size == places.x.size
    entry["states"] = None if is_all else drawn.states.tolist()
    entry["ids"] = None if np.array_equal(ids, drawn.states) else ids.tolist()
    return entry


def scatter(x: FloatArray, y: FloatArray) -> Json:
    """Points in the unit square, both directions to the same scale; null without a place."""
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        return {"x": [None] * x.size, "y": [None] * x.size, "size": [1.0, 1.0]}
    spans = [float(np.ptp(v[known])) for v in (x, y)]
    scale = max(spans) if max(spans) > 0.0 else 1.0
    columns = []
    for values in (x, y):
        unit = (values - values[known].min()) / scale
        columns.append(
            [
                round(v, 4) if ok else None
                for v, ok in zip(unit.tolist(), known.tolist(), strict=True)
            ]
        )
    return {"x": columns[0], "y": columns[1], "size": [round(span / scale, 4) for span in spans]}


# -- the two arms ------------------------------------------------------------------------------


def restrict(forest: Forest, states: IntArray) -> Forest:
    """The forest over some of the states that links the same of them at every threshold.

    Edges are gone through in rising order; each tree remembers one chosen state, and two trees
    that meet are linked by theirs, if both have one.
    """
    if states.size == forest.n_states:
        return forest
    parent = list(range(forest.n_states))
    chosen = [-1] * forest.n_states
    for k, state in enumerate(states.tolist()):
        chosen[state] = k
    kept, first, second = [], [], []
    ends = zip(forest.first.tolist(), forest.second.tolist(), strict=True)
    for k, (s, t) in enumerate(ends):
        while parent[s] != s:
            parent[s] = s = parent[parent[s]]
        while parent[t] != t:
            parent[t] = t = parent[parent[t]]
        if s == t:
            continue
        parent[t] = s
        if chosen[t] < 0:
            continue
        if chosen[s] < 0:
            chosen[s] = chosen[t]
            continue
        kept.append(k)
        first.append(chosen[s])
        second.append(chosen[t])
    return Forest(
        int(states.size),
        forest.weights[np.array(kept, np.int64)],
        np.array(first, np.int64),
        np.array(second, np.int64),
    )


def draw_forest(forest: Forest) -> Json:
    """A forest with equal weights written once."""
    weights, counts = np.unique(forest.weights, return_counts=True)
    return {
        "tau": weights.tolist(),
        "edges": counts.tolist(),
        "first": forest.first.tolist(),
        "second": forest.second.tolist(),
    }


def draw_steps(forest: Forest, ends: FloatArray) -> Json:
    """Numbers of clusters at every threshold, or at some of them if there are too many.

    Args:
        forest: Of all states.
        ends: Thresholds to be kept in any case.
    """
    tau = np.unique(np.append(forest.weights, 0.0))
    tau = tau[tau >= 0.0]
    is_exact = bool(tau.size <= MAX_STEPS)
    if not is_exact:
        even = np.linspace(0, tau.size - 1, MAX_STEPS // 4).astype(np.int64)
        positive = tau[tau > 0.0]
        marks = np.geomspace(positive[0], positive[-1], MAX_STEPS // 4)
        tau = np.unique(np.concatenate([[0.0], tau[even], marks, ends[np.isfinite(ends)]]))
    return {"tau": tau.tolist(), "count": forest.count(tau).tolist(), "exact": is_exact}


def joined_at(forest: Forest, end: int | None) -> float | None:
    """The threshold from which on the end of episodes is linked to a state, if there is one."""
    if end is None:
        return None
    touching = forest.weights[(forest.first == end) | (forest.second == end)]
    return float(touching.min()) if touching.size else None


def kept_intervals(intervals: Sequence[CertifiedInterval], tau: float) -> list[CertifiedInterval]:
    """All certified intervals, or the widest by ratio of their ends and that around tau."""
    if len(intervals) <= MAX_INTERVALS:
        return list(intervals)
    low = np.array([interval.low for interval in intervals])
    high = np.array([interval.high for interval in intervals])
    with np.errstate(divide="ignore"):
        ratio = np.where(low > 0.0, high / np.maximum(low, 1e-300), np.inf)
    ratio[(low <= tau) & (tau < high)] = np.inf
    order = np.argsort(-ratio, kind="stable")[:MAX_INTERVALS]
    return [intervals[k] for k in np.sort(order).tolist()]


def first_tau(certificate: Certificate, intervals: Sequence[CertifiedInterval]) -> float:
    """Where the slider stands at first: at the certificate's threshold or a telling one."""
    if certificate.tau is not None:
        return certificate.tau
    best = best_interval(list(intervals), certificate.n_live)
    if best is not None:
        return middle(best)
    # Nothing useful is certified: show where the lower arm has merged half of what it merges.
    weights = certificate.forests[0].weights
    positive = weights[weights > 0.0]
    return float(positive[positive.size // 2]) if positive.size else 0.0


def tau_range(forests: tuple[Forest, Forest], tau: float) -> list[float]:
    """The ends of the logarithmic axis: all positive thresholds of interest."""
    weights = np.concatenate([forests[0].weights, forests[1].weights])
    weights = weights[weights > 0.0]
    high = max(float(weights.max(initial=0.0)), tau)
    if high <= 0.0:
        return [0.01, 1.0]
    low = float(weights[weights >= high * DECADES].min(initial=high))
    if 0.0 < tau < low:
        low = tau
    # Some room on both sides, so that the first and the last step are seen; never beyond floats.
    return [max(low / 1.5, 1e-300), min(max(high, low) * 1.5, 1e300)]


# -- value -------------------------------------------------------------------------------------


def is_small(certificate: Certificate) -> bool:
    """Whether thresholds besides the certificate's own are evaluated."""
    return certificate.n_states <= MAX_VALUED


def trace_values(
    certificate: Certificate,
    mdp: TabularMDP,
    intervals: Sequence[CertifiedInterval],
    report: ProgressCallback | None,
) -> Frontier:
    """What planning is worth at certified thresholds; of a large model, at its own only."""
    if is_small(certificate):
        return certificate.frontier(mdp, callback=report)
    own, tau = certificate.value, certificate.tau
    points = []
    if own is not None and tau is not None:
        numbers = (own.loss, own.start_loss, own.kept)
        points = [
            FrontierPoint(found.low, found.high, found.n_clusters, *numbers)
            for found in intervals
            if found.low <= tau < found.high
        ]
    return Frontier(tuple(points), len(intervals), certificate.terminal_state is not None)


def draw_frontier(certificate: Certificate, frontier: Frontier) -> Json:
    """Points as `plot_frontier` draws them, from the finest clustering to the coarsest."""
    points = []
    for mark in frontier_marks(certificate, frontier):
        point = mark.point
        points.append(
            {
                "low": point.low,
                "high": None if math.isinf(point.high) else point.high,
                "clusters": point.n_clusters,
                "percent": mark.percent,
                "proven": mark.is_proven,
                "own": mark.is_own,
                "worth": point.kept >= certificate.keep and point.n_clusters < certificate.n_live,
                "kept": mark.kept_text,
                "loss": point.loss,
                "loss_text": mark.loss_text,
            }
        )
    return {"points": points, "keep": 100.0 * certificate.keep}


# -- pairs, merges, curves ---------------------------------------------------------------------


def draw_widths(certificate: Certificate) -> Json:
    """Histograms of upper minus lower bounds: of all pairs, and of covered ones."""
    n = certificate.n_states
    total = n * (n - 1) // 2
    if total <= MAX_PAIRS:
        s, t = np.triu_indices(n, 1)
    else:
        rng = np.random.default_rng(0)
        s = rng.integers(n, size=MAX_PAIRS)
        t = (s + rng.integers(1, n, size=MAX_PAIRS)) % n  # never a state and itself
    widths = [_widths(certificate, s, t)]
    if certificate.n_covered:
        at = np.arange(certificate.n_covered)
        if at.size > MAX_PAIRS:
            at = np.linspace(0, at.size - 1, MAX_PAIRS).astype(np.int64)
        widths.append(_widths(certificate, *np.divmod(certificate.keys[at], n)))
    largest = max((float(w.max(initial=0.0)) for w in widths), default=0.0)
    edge = largest if largest > 0.0 else 1.0
    groups = []
    names = ("all pairs", "covered pairs")
    for name, sizes, count in zip(names, widths, (total, certificate.n_covered), strict=False):
        bins = np.minimum((sizes / edge * BINS).astype(np.int64), BINS - 1)
        groups.append(
            {
                "name": name,
                "pairs": int(count),
                "looked": int(sizes.size),
                "bins": np.bincount(bins, minlength=BINS).tolist(),
                "median": float(np.median(sizes)) if sizes.size else 0.0,
                "largest": float(sizes.max(initial=0.0)),
            }
        )
    return {"edge": edge, "groups": groups}


def _widths(certificate: Certificate, s: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
    lower, upper = certificate.bounds(s, t)
    return np.maximum(upper - lower, 0.0)


def draw_tree(
    certificate: Certificate, intervals: Sequence[CertifiedInterval], drawn: Drawn
) -> Json | None:
    """Merges of certified clusters, each between the thresholds that bound it.

    Leaves are the clusters of the finest certified interval with few enough of them. Of a merge,
    the lower arm says where it can begin, the upper arm where it must have ended.
    """
    few = [k for k, interval in enumerate(intervals) if interval.n_clusters <= MAX_LEAVES]
    if not few or intervals[few[0]].n_clusters < 2:
        return None
    start = intervals[few[0]]
    labels = certificate.forests[1].labels(start.low)
    k = int(labels.max()) + 1  # the end of episodes may be one of the leaves, but is not counted
    merges = certified_merges(*certificate.forests, labels)
    nodes = [
        {"low": merge.start, "high": merge.upper, "children": list(merge.children)}
        for merge in merges[k:]
    ]
    inner = {child for merge in merges for child in merge.children}
    first = np.unique(labels, return_index=True)[1]
    shown = {int(label): j for j, label in reversed(list(enumerate(labels[drawn.states].tolist())))}
    sizes = np.bincount(labels, minlength=k)
    if certificate.terminal_state is not None:
        sizes[labels[certificate.terminal_state]] -= 1
    return {
        "clusters": start.n_clusters,
        "low": start.low,
        "high": None if math.isinf(start.high) else start.high,
        "leaves": [
            {"state": int(first[leaf]), "size": int(sizes[leaf]), "drawn": shown.get(leaf)}
            for leaf in range(k)
        ],
        "nodes": nodes,
        "roots": [entry for entry in range(len(merges)) if entry not in inner],
        "finer": few[0],
    }


def draw_curves(curves: Sequence[Curve]) -> list[Json]:
    """Median and range over seeds at each point."""
    found = []
    for curve in curves:
        scores = np.asarray(curve.scores, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[1] != len(curve.steps) or scores.shape[0] == 0:
            raise InvalidArgumentError(
                f"the scores of curve {curve.name!r} must have one row per seed and one column "
                f"for each of {len(curve.steps)} points, got shape {scores.shape}"
            )
        at = np.arange(scores.shape[1])
        if at.size > MAX_POINTS:
            at = np.linspace(0, at.size - 1, MAX_POINTS).astype(np.int64)
        columns = scores[:, at]
        is_known: BoolArray = np.asarray(np.isfinite(columns).all(axis=0))
        plain = np.where(is_known, columns, 0.0)
        entry: Json = {
            "name": str(curve.name),
            "seeds": int(scores.shape[0]),
            "steps": [int(curve.steps[k]) for k in at.tolist()],
        }
        for name, values in (
            ("median", np.median(plain, axis=0)),
            ("low", plain.min(axis=0)),
            ("high", plain.max(axis=0)),
        ):
            pairs = zip(values.tolist(), is_known.tolist(), strict=True)
            entry[name] = [round(value, 6) if known else None for value, known in pairs]
        found.append(entry)
    return found
