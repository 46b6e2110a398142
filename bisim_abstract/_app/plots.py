"""Pictures of certificates, clusterings, learning curves and losses.

Every function draws on the axes it is given, or on those of a new figure, and returns them.
Nothing is shown, saved or set globally. However many states there are, what is drawn stays
bounded; where that leaves something out, the picture says so. Colours are those of Okabe and
Ito as far as they go.
"""

from __future__ import annotations

import colorsys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app.palette import KEPT, LOST, LOWER, MERGE, UPPER
from bisim_abstract._app.state_map import StateMap, state_map, two_widest
from bisim_abstract._base.checks import as_generator, check_choice, check_int, check_real, require
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray, SeedLike
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._linkage.thresholds import CertifiedInterval, Merge, certified_merges
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._propose.embedding import Embedding, checked_points
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bisim_abstract._certificate.frontier import Frontier, FrontierPoint

__all__ = [
    "plot_curves",
    "plot_dendrogram",
    "plot_embedding",
    "plot_frontier",
    "plot_losses",
    "plot_map",
    "plot_overview",
    "plot_profile",
    "plot_widths",
]

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, WINE = "#56B4E9", "#CC79A7", "#F0E442", "#882255"
GREY, DARK, PALE = "#999999", "#333333", "#DEDEDE"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW, WINE)
ARMS = ("lower", "upper")
STEPS = 1_500  # positions along an axis that are told apart
SPANS = 500  # certified intervals drawn one by one
POINTS = 50_000  # points of a scatter plot
CELLS = 4_000_000  # cells of an image
BORDERS = 40_000  # cells up to which borders between clusters are drawn
WIDE = 20.0  # times the fewest clusters: where numbers of clusters are drawn logarithmically
NARROWEST = 1e-12  # share of the largest threshold below which axes are linear
BINS = 40
SHADE = 0.2
RUNS = ((slice(1, -1), slice(None, -2)), (slice(1, -1), slice(2, None)))  # begins, ends


# -- structural types of what higher layers make -----------------------------------------------


class CurveLike(Protocol):
    """What is read of a `Curve`."""

    @property
    def name(self) -> str:
        """For legends."""

    @property
    def steps(self) -> Sequence[int]:
        """Environment steps, rising."""

    @property
    def scores(self) -> FloatArray:
        """(seeds, points) scores."""


class LossLike(Protocol):
    """What is read of a `ValueLoss`."""

    @property
    def sup(self) -> float:
        """Upper bound on the largest loss of a state."""


class ComparedLike(Protocol):
    """What is read of an `AbstractionLoss`."""

    @property
    def name(self) -> str:
        """What it is."""

    @property
    def n_clusters(self) -> int:
        """Number of its clusters."""

    @property
    def loss(self) -> LossLike:
        """What planning on it loses."""

    @property
    def is_certified(self) -> bool:
        """Whether it is the certified clustering."""

    @property
    def bound(self) -> float | None:
        """What is proven beforehand."""


# -- certificates ------------------------------------------------------------------------------


def plot_profile(certificate: Certificate, *, ax: Axes | None = None) -> Axes:
    """Numbers of clusters of both arms at every threshold.

    The exact number lies between the two. Thresholds at which the arms agree are shaded, and
    the number of clusters there is written above wherever there is room.

    Args:
        certificate: The certificate.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.

    Example:
        >>> from bisim_abstract import certify
        >>> from bisim_abstract.parts import random_mdp
        >>> from matplotlib.figure import Figure
        >>> figure = Figure(layout="constrained")
        >>> certificate = certify(random_mdp(4, seed=0), 0.9)
        >>> plot_profile(certificate, ax=figure.subplots()).get_ylabel()
        'clusters'
        >>> figure.savefig("profile.png")  # doctest: +SKIP
    """
    ax = _axes(ax)
    from matplotlib.patches import Patch

    profile, tau = certificate.profile(), certificate.tau
    known = profile.tau if tau is None else np.append(profile.tau, tau)
    right = 1.5 * float(known.max()) or 1.0
    _threshold_scale(ax, known, right)
    kept = _kept(ax, profile.tau, right)
    x = np.append(profile.tau[kept], right)
    lower, upper = (np.append(y[kept], y[-1]) for y in (profile.lower, profile.upper))
    ax.fill_between(x, lower, upper, step="post", color=GREY, alpha=0.25, linewidth=0)
    # The upper arm is thinner, so that both are seen where they agree.
    for y, colour, width, order, name in (
        (upper, UPPER.light, 1.4, 3.0, "upper arm"),
        (lower, LOWER.light, 3.5, 2.5, "lower arm"),
    ):
        ax.step(x, y, where="post", color=colour, linewidth=width, zorder=order, label=name)
    is_each = _shade(ax, profile.intervals, right)
    if tau is not None:
        ax.axvline(
            tau,
            color=DARK,
            linestyle="--",
            linewidth=1.2,
            clip_on=False,
            label=_verdict(certificate),
        )
    _count_scale(ax, certificate.n_live)
    title = f"Clusters of {_states(certificate.n_live)}, over {certificate.scope} pairs"
    ax.set_title(title + _reservation(certificate), pad=22)
    dropped = [] if kept.all() else [f"{kept.sum():,} of {kept.size:,} steps drawn"]
    if not is_each:
        dropped.append(f"shaded by the share of {len(profile.intervals):,} certified intervals")
    ax.set_xlabel("threshold τ" + (f" ({'; '.join(dropped)})" if dropped else ""))
    ax.set_ylabel(_counted_axis(certificate.terminal_state is not None))
    handles, _ = ax.get_legend_handles_labels()
    handles.append(Patch(color=GREEN, alpha=SHADE, linewidth=0, label="arms agree: certified"))
    ax.legend(handles=handles, frameon=True, framealpha=0.9, fontsize="small")
    return ax


def plot_widths(
    certificate: Certificate,
    *,
    sample: int = 20_000,
    seed: SeedLike = 0,
    ax: Axes | None = None,
) -> Axes:
    """How far the bounds are apart: histograms over covered pairs and over all others.

    Each histogram adds up to one, however few of all pairs are covered.

    Args:
        certificate: The certificate.
        sample: Pairs to look at, of each kind; all are looked at if they are no more.
        seed: Of the sample.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    sample = check_int("sample", sample, low=1)
    rng = as_generator(seed)
    ax = _axes(ax)
    groups = _pair_groups(certificate, sample, rng)
    widths = {name: np.subtract(*certificate.bounds(s, t)[::-1]) for name, (s, t) in groups.items()}
    every = np.concatenate([*widths.values(), [0.0]])
    top = float(every.max())
    right = top if top > 0.0 else 1.0
    is_wide = bool((every[every > 0.0] < 0.01 * right).any())
    if is_wide:
        _threshold_scale(ax, every, right)
    else:
        ax.set_xlim(0.0, right)
    # Bins are equally wide on the screen.
    transform = ax.xaxis.get_transform()
    begin, end = np.asarray(transform.transform(np.array([0.0, right]))).tolist()
    edges = np.asarray(transform.inverted().transform(np.linspace(begin, end, BINS + 1)))
    edges[[0, -1]] = 0.0, right
    total = _n_pairs(certificate.n_states)
    sizes = {"covered": certificate.n_covered, "other": total - certificate.n_covered}
    is_complete = all(widths[name].size == sizes[name] for name in sizes)
    proven = "" if is_complete else f"\nproven on all pairs: {certificate.global_width:.3g} at most"
    for name, colour in (("covered", BLUE), ("other", ORANGE)):
        found = widths[name]
        if not found.size:
            continue
        size = sizes[name]
        looked = f"all {size:,}" if found.size == size else f"{found.size:,} of {size:,}"
        ax.hist(
            found,
            bins=edges.tolist(),
            weights=np.full(found.size, 1.0 / found.size),
            histtype="stepfilled",
            color=colour,
            alpha=0.45,
            edgecolor=colour,
            linewidth=1.2,
            label=f"{name} pairs ({looked}): {found.max():.3g} at most",
        )
    ax.set_title(
        f"Width of bounds, {_states(certificate.n_states)}; {100.0 * certificate.coverage:.3g}% "
        f"of pairs covered" + proven + _reservation(certificate)
    )
    ax.set_xlabel("upper bound − lower bound")
    ax.set_ylabel("share of pairs")
    # The largest value stays off the frame.
    ax.set_xlim(0.0, right * (1.3 if is_wide else 1.03))
    if total:
        ax.set_ylim(0.0, 1.25 * max(ax.get_ylim()[1] / 1.05, 1e-3))
        ax.legend(loc="upper left", frameon=False, fontsize="small")
    else:
        ax.text(0.5, 0.5, "one state: no pairs", ha="center", transform=ax.transAxes)
    return ax


def plot_dendrogram(
    certificate: Certificate, *, max_leaves: int = 60, ax: Axes | None = None
) -> Axes:
    """The hierarchy of clusters that both arms agree on.

    Leaves are the clusters of the finest certified interval that has few enough. A cluster is
    a line over the thresholds at which it is certain; a merge is a box from the lower to the
    upper bound on the threshold at which it happens. Where the arms agree on the outcome of
    several merges but not on their order, these are one box, into which lines reach.

    Args:
        certificate: The certificate.
        max_leaves: Most leaves to draw.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    max_leaves = check_int("max_leaves", max_leaves, low=1)
    require("matplotlib", extra="plots")
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Patch, Rectangle

    intervals = certificate.certified_thresholds()
    fitting = [interval for interval in intervals if interval.n_clusters <= max_leaves]
    leaf = fitting[0] if fitting else intervals[-1]
    labels = certificate.forests[1].labels(leaf.low)
    sizes = np.bincount(labels)
    if certificate.terminal_state is not None:  # it is no member of a cluster
        sizes[labels[certificate.terminal_state]] -= 1
    # Clusters of the last interval never merge, so that any of them may be left out.
    most = sizes.size if fitting else max_leaves
    shown = np.sort(np.argsort(-sizes, kind="stable")[:most])
    nodes = certified_merges(*certificate.forests, labels) if fitting else _unmerged(shown)
    order = _leaf_order(nodes)
    ax = _axes(ax, size=(7.0, max(3.2, 1.8 + 0.16 * len(order))))

    merges = [node for node in nodes if node.children]
    left, right = _dendrogram_range(leaf, merges, certificate.tau)
    height = {leaf_: float(k) for k, leaf_ in enumerate(order)}
    segments, is_several = [], set()
    for k, node in enumerate(nodes):
        if node.children:
            ys = [height[child] for child in node.children]
            height[k] = (min(ys) + max(ys)) / 2.0
            several = len(node.children) > 2
            is_several.add(several)
            colour = ORANGE if several else MERGE.light
            box = (node.start, min(ys)), node.upper - node.start, max(ys) - min(ys)
            ax.add_patch(
                Rectangle(*box, facecolor=f"{colour}55", edgecolor=colour, linewidth=1.2, zorder=2)
            )
        begin = node.upper if node.children else left
        segments.append([(begin, height[k]), (min(node.end, right), height[k])])
    ax.add_collection(LineCollection(segments, colors=DARK, linewidths=1.1, zorder=3))

    if right > 10.0 * left > 0.0:
        ax.set_xscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(len(order) - 0.4, -0.6)
    font = float(np.clip(420.0 / len(order), 5.5, 9.0))
    names = [
        f"{shown[k]}: {_states(int(sizes[shown[k]]))}" if sizes[shown[k]] else "the end"
        for k in order
    ]
    ax.set_yticks(range(len(order)), names, fontsize=font)
    ax.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    handles: list[Artist] = [
        Patch(facecolor=f"{colour}55", edgecolor=colour, label=text)
        for several, colour, text in (
            (False, MERGE.light, "merge, between its bounds"),
            (True, ORANGE, "several merges, order open"),
        )
        if several in is_several
    ]
    tau = certificate.tau
    if tau is not None and left <= tau <= right:
        verdict = _verdict(certificate)
        handles.append(ax.axvline(tau, color=VERMILION, linestyle="--", label=verdict))
    if handles:
        _legend_below(ax, handles)
    finer = [interval.n_clusters for interval in intervals if interval.low < leaf.low]
    remark = f" (the next finer certified clustering has {finer[-1]:,})" if finer else ""
    ax.set_xlabel("threshold τ" + remark)
    is_cut = len(order) < sizes.size
    ax.set_title(_dendrogram_title(certificate, leaf, len(order) if is_cut else None))
    return ax


@dataclass(frozen=True)
class FrontierMark:
    """A point of a frontier as it is drawn, here and in the report.

    Attributes:
        point: What it shows.
        percent: Share of the start value that is kept, in percent; 0 if nothing is proven.
        is_proven: Whether anything is.
        is_own: Whether it is the certificate's choice.
        kept_text: The share in words, rounded down.
        loss_text: The loss of the worst state in words, rounded up.
    """

    point: FrontierPoint
    percent: float
    is_proven: bool
    is_own: bool
    kept_text: str
    loss_text: str


def frontier_marks(certificate: Certificate, frontier: Frontier) -> list[FrontierMark]:
    """What is drawn of a frontier, from the finest clustering to the coarsest."""
    marks = []
    tau = certificate.tau
    for point in frontier.points:
        is_proven = point.kept > 0.0
        marks.append(
            FrontierMark(
                point,
                100.0 * min(point.kept, 1.0) if is_proven else 0.0,
                is_proven,
                tau is not None and point.low <= tau < point.high,
                share_text(point.kept) if is_proven else "nothing proven",
                amount_text(point.loss),
            )
        )
    return marks


def plot_frontier(
    certificate: Certificate,
    *,
    mdp: TabularMDP | None = None,
    frontier: Frontier | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What planning on clusters is proven to keep and to lose, against their number.

    One point for every certified clustering that was evaluated; nothing is drawn in between.
    Clusterings that are proven to keep nothing stand at the bottom. The share of the start value
    that was asked for is a line, the certificate's own choice a star.

    Args:
        certificate: The certificate.
        mdp: The model; needed if the certificate was read from a file and no frontier is given.
        frontier: `certificate.frontier()`, if known already.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes of the share that is kept; those of the loss are their twin.
    """
    require("matplotlib", extra="plots")
    found = certificate.frontier(mdp) if frontier is None else frontier
    marks = frontier_marks(certificate, found)
    ax = _axes(ax, size=(7.0, 5.0))
    _cluster_scale(ax, [mark.point.n_clusters for mark in marks])
    handles: list[Artist] = []
    for is_proven, shape, label in (
        (True, "o", "start value kept, at least"),
        (False, "v", "nothing proven to be kept"),
    ):
        some = [mark for mark in marks if mark.is_proven is is_proven]
        if some:
            handles += ax.plot(
                [mark.point.n_clusters for mark in some],
                [mark.percent for mark in some],
                shape,
                color=KEPT.light,
                markerfacecolor=KEPT.light if is_proven else "white",
                markersize=5.5,
                clip_on=False,
                zorder=3,
                label=label,
            )
    bar = 100.0 * certificate.keep
    handles.append(
        ax.axhline(bar, color=DARK, linewidth=1.0, linestyle="--", label=f"asked for: {bar:g}%")
    )
    for mark in marks:
        if mark.is_own:
            clusters = clusters_text(mark.point.n_clusters, has_end=found.has_end)
            handles += ax.plot(
                [mark.point.n_clusters],
                [mark.percent],
                "*",
                color=GREEN if mark.point.kept >= certificate.keep else ORANGE,
                markeredgecolor=DARK,
                markersize=16.0,
                clip_on=False,
                zorder=4,
                label=f"chosen: {clusters}, keeps {mark.kept_text}, loses at most {mark.loss_text}",
            )
    ax.set_ylim(0.0, 104.0)
    ax.set_yticks(range(0, 101, 20))
    ax.set_xlabel(_counted_axis(found.has_end))
    ax.set_ylabel("start value kept, %", color=KEPT.light)
    handles[1:1] = _draw_frontier_losses(ax, marks)
    _legend_below(ax, handles)
    title = f"What clusters of {_states(certificate.n_live)} are proven to be worth"
    if not found.is_complete:
        title += f"\n{len(marks):,} of {counted(found.n_thresholds, 'certified range')} evaluated"
    ax.set_title(title + _reservation(certificate))
    if not marks:
        ax.text(0.5, 0.5, "no clustering was evaluated", ha="center", transform=ax.transAxes)
    return ax


def plot_map(
    certificate: Certificate,
    places: StateMap | TabularMDP,
    *,
    tau: float | None = None,
    arm: str = "upper",
    ax: Axes | None = None,
) -> Axes:
    """States where they lie, coloured by cluster; the title says whether that is certified.

    A cluster keeps the colour of its first state as far as colours suffice, so that pictures
    at several thresholds can be compared; clusters of one state are grey.

    Args:
        certificate: The certificate.
        places: Where states are drawn; a model stands for its `state_map`.
        tau: The threshold; the certificate's own by default.
        arm: "lower" or "upper": whose clusters. They are the same where certified.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.

    Raises:
        InvalidArgumentError: If no threshold is given here or in the certificate, or the
            places are those of another model.
    """
    check_choice("arm", arm, ARMS)
    places = _places(certificate, places)
    tau = certificate.tau if tau is None else check_real("tau", tau)
    if tau is None:
        raise InvalidArgumentError("tau must be given: the certificate has none of its own")
    if tau < 0.0:
        raise InvalidArgumentError(f"tau must be at least 0, a distance, got {tau!r}")
    if tau == certificate.tau:
        lower, upper = certificate.labels_lower, certificate.labels_upper
    else:
        lower, upper = certificate.partitions(tau)
    labels = numbered(lower if arm == "lower" else upper)
    ax = _axes(ax, size=(7.0, 5.6))
    notes = [places.caption]
    if np.bincount(labels).min() == 1:
        notes.append("Grey: clusters of one state.")
    has_place = places.has_place
    if not has_place.all():
        notes.append(f"{_states(int((~has_place).sum()))} without a place left out.")
    if places.is_grid and has_place.any():
        step = _draw_cells(ax, places, labels)
        if step > 1:
            notes.append(f"Thinned: one of {step} rows and columns is drawn.")
    else:
        drawn = _draw_points(ax, np.column_stack([places.x, places.y]), labels, has_place)
        ax.invert_yaxis()
        if drawn < has_place.sum():
            notes.append(f"{drawn:,} states are drawn.")
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel(textwrap.fill(" ".join(notes), 90), fontsize="small")
    n_lower, n_upper = (_count_live(certificate, x) for x in (lower, upper))
    clusters = _live_clusters(certificate, n_upper)
    if np.array_equal(numbered(lower), numbered(upper)):
        title = f"{clusters} at τ = {tau:.4g}, certified over {certificate.scope} pairs"
    else:
        title = (
            f"NOT certified at τ = {tau:.4g}: between {n_lower:,} and {clusters}\n"
            f"drawn: the {arm} arm's"
        )
    ax.set_title(title + _reservation(certificate))
    return ax


def plot_overview(certificate: Certificate, mdp: TabularMDP | None) -> dict[str, Axes]:
    """What matters of a certificate in one figure: see `Certificate.plot`.

    Args:
        certificate: The certificate.
        mdp: Its model, if it is at hand.

    Returns:
        The axes, by the name of what is on them.
    """
    require("matplotlib", extra="plots")
    import matplotlib.pyplot as plt

    from bisim_abstract._certificate.frontier import MAX_VALUED

    drawn: dict[str, Callable[[Axes], Axes]] = {}
    if mdp is not None and certificate.tau is not None:
        places = state_map(mdp)
        if places.is_grid:
            drawn["map"] = lambda ax: plot_map(certificate, places, ax=ax)
    drawn["profile"] = lambda ax: plot_profile(certificate, ax=ax)
    if mdp is None:
        # So many leaves have room for their names beside the profile.
        drawn["dendrogram"] = lambda ax: plot_dendrogram(certificate, max_leaves=25, ax=ax)
    elif mdp.n_states <= MAX_VALUED:
        drawn["frontier"] = lambda ax: plot_frontier(certificate, mdp=mdp, ax=ax)
    # The map is square: beside it, the others lie one above the other.
    names, is_tall = list(drawn), len(drawn) == 3
    cells: list[Any] = [["map", "profile"], ["map", "frontier"]] if is_tall else [names]
    size = (13.0, 8.4) if is_tall else (6.5 * len(names), 5.0)
    _, axes = plt.subplot_mosaic(cells, figsize=size, layout="constrained")
    return {name: draw(axes[name]) for name, draw in drawn.items()}


# -- clusterings, curves, losses ---------------------------------------------------------------


def plot_embedding(
    points: Embedding | npt.ArrayLike,
    labels: npt.ArrayLike | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Points of states, coloured by cluster.

    Args:
        points: (n_states, k) coordinates, or an object with `encode` that knows its number of
            states, as encoders of states do. If k is above 2, the two directions in which
            points vary most are drawn.
        labels: (n_states) the cluster of each; all look alike by default.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    places = _placed(points, None if labels is None else np.shape(labels))
    found = np.zeros(places.shape[0], np.int64) if labels is None else np.asarray(labels)
    if places.ndim != 2 or 0 in places.shape or not np.isfinite(places).all():
        raise InvalidArgumentError(
            f"points must be finite and of shape (n_states, k), got shape {places.shape}"
        )
    if found.shape != places.shape[:1]:
        raise InvalidArgumentError(
            f"labels must have one entry per point, {places.shape[0]}, got shape {found.shape}"
        )
    flat = places if places.shape[1] == 2 else np.column_stack(two_widest(places))
    ax = _axes(ax, size=(6.4, 5.2))
    clusters = numbered(found)
    n = places.shape[0]
    drawn = _draw_points(ax, flat, clusters, np.ones(n, np.bool_))
    # Distances are what an embedding is about.
    ax.set_aspect("equal", adjustable="datalim")
    is_cut = places.shape[1] > 2
    ax.set_xlabel("widest direction" if is_cut else "first coordinate")
    ax.set_ylabel("second widest direction" if is_cut else "second coordinate")
    title = _states(n)
    if labels is not None:
        title += f" in {_clusters(int(clusters.max()) + 1)}"
    title += f"\n{counted(drawn, 'state')} of them drawn" if drawn < n else ""
    is_single = labels is not None and np.bincount(clusters).min() == 1
    ax.set_title(title + ("\ngrey: clusters of one state" if is_single else ""))
    return ax


def _placed(
    points: Embedding | npt.ArrayLike, labelled: tuple[int, ...] | None
) -> npt.NDArray[np.float64]:
    """Coordinates as they are given, or those of all states of an encoder that have labels."""
    if not isinstance(points, Embedding) or isinstance(points, str):
        try:
            return np.asarray(points, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                "points must be coordinates of shape (n_states, k), or an encoder, "
                f"got {type(points).__name__}"
            ) from None
    count = getattr(points, "n_states", None)
    if labelled is not None and len(labelled) == 1:
        count = labelled[0]  # an encoder may know of an end of episodes that the labels leave out
    if count is None:
        raise InvalidArgumentError(
            f"points must know its number of states, and this {type(points).__name__} does not: "
            "give plot_embedding(encoder.encode(states))"
        )
    return checked_points(points, count)


def plot_curves(
    curves: Sequence[CurveLike], *, level: float | None = None, ax: Axes | None = None
) -> Axes:
    """Learning curves: the median over seeds, and their range.

    Args:
        curves: Curves, as `learning_curve` gives.
        level: A score to mark by a line.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    if not curves:
        raise InvalidArgumentError("curves must hold at least one curve, got none")
    for curve in curves:
        if (
            curve.scores.ndim != 2
            or curve.scores.shape[1] != len(curve.steps)
            or (curve.scores.size == 0)
        ):
            raise InvalidArgumentError(
                f"scores of {curve.name!r} must have shape (seeds, {len(curve.steps)}), none of "
                f"them 0, got {curve.scores.shape}"
            )
    level = None if level is None else check_real("level", level)
    ax = _axes(ax)
    colours = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, DARK)
    for k, curve in enumerate(curves):
        colour = colours[k % len(colours)]
        dash = ("-", "--", ":", "-.")[k // len(colours) % 4]
        median = np.median(curve.scores, axis=0)
        marker = "o" if len(curve.steps) == 1 else None  # a single point has no line
        ax.plot(curve.steps, median, color=colour, linestyle=dash, marker=marker, label=curve.name)
        low, high = curve.scores.min(axis=0), curve.scores.max(axis=0)
        ax.fill_between(curve.steps, low, high, color=colour, alpha=0.2, linewidth=0)
    if level is not None:
        ax.axhline(level, color=GREY, linewidth=1.0, linestyle="--", zorder=1)
        ax.annotate(
            f"{level:g}",
            (1.0, level),
            xycoords=ax.get_yaxis_transform(),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            color=DARK,
        )
    seeds = sorted({curve.scores.shape[0] for curve in curves})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    heading = f"median and range of {number} seeds" if seeds[-1] > 1 else None
    ax.legend(frameon=True, framealpha=0.9, title=heading, fontsize="small", title_fontsize="small")
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == int(x) else f"{x:g}")
    ax.set_xlabel("environment steps")
    ax.set_ylabel("score")
    ax.grid(alpha=0.3)
    return ax


def plot_losses(comparison: Sequence[ComparedLike], *, ax: Axes | None = None) -> Axes:
    """What planning on several clusterings loses at most, one bar each.

    Args:
        comparison: Rows, as `compare_abstractions` gives; the first is on top.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    if not comparison:
        raise InvalidArgumentError("comparison must hold at least one clustering, got none")
    ax = _axes(ax, size=(7.0, 1.4 + 0.42 * len(comparison)))
    losses = [row.loss.sup for row in comparison]
    bars = ax.barh(
        range(len(comparison)),
        losses,
        height=0.66,
        color=[GREEN if row.is_certified else GREY for row in comparison],
    )
    texts = [
        f"{row.loss.sup:.3g}" + ("" if row.bound is None else f" (proven: at most {row.bound:.3g})")
        for row in comparison
    ]
    # Labels of long bars stand inside them, so that none runs off the frame.
    top = max(*losses, 0.0) or 1.0
    for bar, loss, text in zip(bars, losses, texts, strict=True):
        is_long = loss > 0.6 * top
        ax.annotate(
            text,
            (loss, bar.get_y() + bar.get_height() / 2.0),
            xytext=(-4 if is_long else 4, 0),
            textcoords="offset points",
            ha="right" if is_long else "left",
            va="center",
            fontsize="small",
            color="black",
        )
    names = [f"{row.name}\n{_clusters(row.n_clusters)}" for row in comparison]
    ax.set_yticks(range(len(comparison)), names, fontsize="small")
    for tick, row in zip(ax.get_yticklabels(), comparison, strict=True):
        tick.set_fontweight("bold" if row.is_certified else "normal")
    ax.set_ylim(len(comparison) - 0.45, -0.55)
    ax.set_xlim(0.0, 1.03 * top)
    ax.set_xlabel("largest loss of a state, an upper bound")
    ax.set_title("What planning on clusters loses")
    for side in ("right", "top"):
        ax.spines[side].set_visible(False)
    return ax


# -- axes and words ----------------------------------------------------------------------------


def _axes(ax: Axes | None, *, size: tuple[float, float] = (7.0, 4.4)) -> Axes:
    require("matplotlib", extra="plots")
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _states(count: int) -> str:
    return counted(count, "state")


def _clusters(count: int) -> str:
    return clusters_text(count, has_end=False)


def _live_clusters(certificate: Certificate, count: int) -> str:
    return clusters_text(count, has_end=certificate.terminal_state is not None)


def _count_live(certificate: Certificate, labels: IntArray) -> int:
    """Number of clusters, the end of episodes not counted."""
    end = certificate.terminal_state
    return int(np.unique(labels if end is None else np.delete(labels, end)).size)


def _counted_axis(has_end: bool) -> str:
    return "clusters, besides the end" if has_end else "clusters"


def _reservation(certificate: Certificate) -> str:
    if certificate.alpha is None:
        return ""
    return f"\nfor the true model with probability {1.0 - certificate.alpha:g}"


def _verdict(certificate: Certificate) -> str:
    low, high = (
        _count_live(certificate, x) for x in (certificate.labels_lower, certificate.labels_upper)
    )
    clusters = _live_clusters(certificate, high)
    if certificate.is_certified:
        return f"τ = {certificate.tau:.4g}: {clusters}, certified"
    return f"τ = {certificate.tau:.4g}: NOT certified, {low:,} to {clusters}"


def _legend_below(ax: Axes, handles: Sequence[Artist]) -> None:
    """A legend below the axes, by so many points, where nothing is drawn."""
    from matplotlib.transforms import ScaledTranslation

    below = ScaledTranslation(0.0, -38.0 / 72.0, ax.figure.dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + below,
        borderaxespad=0.0,
        ncols=1 if len(handles) > 2 else len(handles),
        frameon=False,
        fontsize="small",
    )


def _n_pairs(n_states: int) -> int:
    return n_states * (n_states - 1) // 2


# -- the parts of pictures ---------------------------------------------------------------------


def _threshold_scale(ax: Axes, values: FloatArray, right: float) -> None:
    """A logarithmic axis from 0 on: linear below the smallest positive value."""
    from matplotlib.ticker import SymmetricalLogLocator

    positive = values[values > 0.0]
    smallest = float(positive.min()) if positive.size else 0.1 * right
    # A power of ten, below which there are no ticks to run into that of 0.
    limit = 10.0 ** np.floor(np.log10(max(smallest, NARROWEST * right)))
    ax.set_xscale("symlog", linthresh=limit, linscale=0.7)
    # Where thresholds span many decades, names of all of them would run into each other.
    locator = SymmetricalLogLocator(base=10.0, linthresh=limit)
    locator.set_params(numticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.set_xlim(0.0, right)


def _count_scale(ax: Axes, n_states: int) -> None:
    """A logarithmic axis of numbers from 1 on, written in full."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_yscale("log")
    ax.set_ylim(0.8, 1.35 * max(n_states, 2))
    subs = (1.0, 2.0, 5.0) if n_states < 500 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}" if y >= 1.0 else "")
    ax.yaxis.set_minor_formatter(NullFormatter())


def _cluster_scale(ax: Axes, counts: Sequence[int]) -> None:
    """An axis of numbers of clusters: logarithmic where they are wide apart."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = min(counts, default=1), max(counts, default=1)
    if high > WIDE * low:
        ax.set_xscale("log")
        ax.set_xlim(low / 1.25, high * 1.25)
        subs = (1.0, 2.0, 5.0) if high < 500 * low else (1.0,)
        ax.xaxis.set_major_locator(LogLocator(subs=subs))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        room = max(0.06 * (high - low), 0.5)
        ax.set_xlim(low - room, high + room)
        # One tick will do: where it asks for two, it puts some between whole numbers.
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")


def _draw_frontier_losses(ax: Axes, marks: Sequence[FrontierMark]) -> list[Artist]:
    """Losses of worst states on an axis of their own, at the right."""
    if not marks:
        return []
    losses = [mark.point.loss for mark in marks]
    right = ax.twinx()
    points = right.plot(
        [mark.point.n_clusters for mark in marks],
        losses,
        "s",
        color=LOST.light,
        markerfacecolor="none",
        markersize=4.0,
        clip_on=False,
        label="loss of the worst state, at most",
    )
    # What is less is 0 to any eye, and breaks the axis.
    right.set_ylim(0.0, 1.04 * max(losses) if max(losses) > 1e-290 else 1.0)
    right.set_ylabel("loss of the worst state", color=LOST.light)
    ax.set_zorder(right.get_zorder() + 1)  # the choice stays on top
    ax.patch.set_visible(False)
    return list(points)


def _kept(ax: Axes, x: FloatArray, right: float) -> BoolArray:
    """Which points of a step function to draw: all, or the ends of each position on screen."""
    if x.size <= 2 * STEPS:
        return np.ones(x.size, np.bool_)
    along = ax.xaxis.get_transform().transform(x)
    end = float(ax.xaxis.get_transform().transform(np.array([right]))[0])
    position = np.floor(along / end * STEPS)
    changes = position[1:] != position[:-1]
    return np.asarray(np.append(True, changes) | np.append(changes, True))


def _shade(ax: Axes, intervals: Sequence[CertifiedInterval], right: float) -> bool:
    """Shade certified intervals and label wide ones; return whether each is drawn by itself."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    transform = ax.xaxis.get_transform()
    ends = np.array([(i.low, min(i.high, right)) for i in intervals]).reshape(-1, 2)
    along = np.asarray(transform.transform(ends.ravel()))
    low, high = along.reshape(-1, 2).T
    end = float(transform.transform(np.array([right]))[0])
    depth = np.full(len(ends), SHADE)
    is_each = len(ends) <= SPANS
    if not is_each:
        # Too many to be seen: every position on screen is as dark as it is certified.
        certified = np.cumsum(np.column_stack([np.zeros(len(ends)), high - low]).ravel())
        at = np.linspace(0.0, end, STEPS + 1)
        share = np.diff(np.interp(at, along, certified, left=0.0)) / (end / STEPS)
        edges = np.asarray(transform.inverted().transform(at))
        ends, depth = np.column_stack([edges[:-1], edges[1:]]), SHADE * np.clip(share, 0.0, 1.0)
        ends, depth = ends[depth > 0.0], depth[depth > 0.0]
    spans = PolyCollection(
        [[(a, 0.0), (a, 1.0), (b, 1.0), (b, 0.0)] for a, b in ends.tolist()],
        transform=ax.get_xaxis_transform(),
        facecolors=[to_rgba(GREEN, alpha) for alpha in depth.tolist()],
        linewidth=0,
        antialiased=False,  # no seams between neighbours
        zorder=0.5,
    )
    ax.add_collection(spans, autolim=False)
    for k in np.argsort(low - high, kind="stable")[:12].tolist():
        text = f"{intervals[k].n_clusters:,}"
        if (high[k] - low[k]) / end < 0.02 + 0.014 * len(text):
            break
        middle = float(transform.inverted().transform(np.array([(low[k] + high[k]) / 2.0]))[0])
        ax.text(
            middle,
            1.01,
            text,
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize="small",
            color="#00664A",
        )
    return is_each


def _pair_groups(
    certificate: Certificate, sample: int, rng: np.random.Generator
) -> dict[str, tuple[IntArray, IntArray]]:
    """Covered pairs and others, both as states: all, or as many as asked for at random."""
    n, keys = certificate.n_states, certificate.keys
    total = _n_pairs(n)
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


def _unmerged(leaves: IntArray) -> list[Merge]:
    return [Merge((), 0.0, 0.0, 0.0, np.inf) for _ in leaves]


def _leaf_order(nodes: Sequence[Merge]) -> list[int]:
    """Leaves from top to bottom, so that lines of the tree do not cross."""
    inner = {child for node in nodes for child in node.children}
    waiting = [k for k in range(len(nodes)) if k not in inner][::-1]
    order = []
    while waiting:
        k = waiting.pop()
        if nodes[k].children:
            waiting += nodes[k].children[::-1]
        else:
            order.append(k)
    return order


def _dendrogram_range(
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


def _dendrogram_title(
    certificate: Certificate, leaf: CertifiedInterval, largest: int | None
) -> str:
    """The title, where only so many of the clusters are drawn, or all of them."""
    title = f"Certified hierarchy of {_states(certificate.n_live)}, over {certificate.scope} pairs"
    clusters = _live_clusters(certificate, leaf.n_clusters)
    if largest is not None:
        title += f"\nthe {largest:,} largest of {clusters}, which nothing merges"
    else:
        digits = 4 if f"{leaf.low:.4g}" != f"{leaf.high:.4g}" else 12
        until = "" if leaf.high == np.inf else f" < {leaf.high:.{digits}g}"
        title += f"\nleaves: {clusters}, certified for {leaf.low:.{digits}g} ≤ τ{until}"
    return title + _reservation(certificate)


def _places(certificate: Certificate, places: StateMap | TabularMDP) -> StateMap:
    if isinstance(places, TabularMDP):
        if places.fingerprint != certificate.fingerprint:
            raise InvalidArgumentError("places must be of the certificate's model, not another")
        places = state_map(places)
    if not isinstance(places, StateMap):
        raise InvalidArgumentError(f"places must be a StateMap or the model, got {places!r}")
    expected = (certificate.n_states,)
    if places.x.shape != expected or places.y.shape != expected:
        raise InvalidArgumentError(
            f"places must have one entry per state, {certificate.n_states}, got "
            f"{places.x.shape} and {places.y.shape}"
        )
    return places


def _draw_cells(ax: Axes, places: StateMap, labels: IntArray) -> int:
    """Draw an image of clusters, and return the step between drawn rows."""
    from matplotlib.colors import ListedColormap, NoNorm

    has_place = places.has_place
    x, y = (np.rint(z[has_place]).astype(np.int64) for z in (places.x, places.y))
    wide, high = int(x.max()) + 1, int(y.max()) + 1
    step = max(1, int(np.ceil(np.sqrt(wide * high / CELLS))))
    is_drawn = (x % step == 0) & (y % step == 0)
    cells = np.full((-(-high // step), -(-wide // step)), -1, np.int64)
    cells[y[is_drawn] // step, x[is_drawn] // step] = labels[has_place][is_drawn]
    ax.imshow(
        np.ma.masked_less(cells, 0),
        cmap=ListedColormap(_colours(labels)),
        norm=NoNorm(),
        interpolation="nearest",
    )
    ax.set_facecolor("white")
    for spine in ax.spines.values():
        spine.set_visible(False)
    if cells.size <= BORDERS:
        _draw_borders(ax, cells)
    return step


def _draw_borders(ax: Axes, cells: IntArray) -> None:
    """Lines between clusters: these are told apart even where colours are not."""
    from matplotlib.collections import LineCollection

    lines = []
    for is_upright, grid in ((True, cells), (False, cells.T)):
        padded = np.pad(grid, ((0, 0), (1, 1)), constant_values=-1)
        differs = np.pad(padded[:, 1:] != padded[:, :-1], ((1, 1), (0, 0)))
        # Neighbouring pieces are one line: joints would show.
        begins, ends = (np.nonzero(differs[a].T & ~differs[b].T) for a, b in RUNS)
        for across, begin, end in zip(*begins, ends[1], strict=True):
            line = [(across - 0.5, begin - 0.5), (across - 0.5, end + 0.5)]
            lines.append(line if is_upright else [(v, u) for u, v in line])
    width = float(np.clip(60.0 / max(cells.shape), 0.3, 1.2))
    borders = LineCollection(lines, colors=DARK, linewidths=width, capstyle="projecting")
    borders.set_clip_on(False)  # the outermost lie on the frame
    ax.add_collection(borders, autolim=False)


def _draw_points(ax: Axes, points: FloatArray, labels: IntArray, is_drawn: BoolArray) -> int:
    """Draw points coloured by cluster, and return how many; at most `POINTS`."""
    chosen = np.flatnonzero(is_drawn)
    if chosen.size > POINTS:
        chosen = np.random.default_rng(0).choice(chosen, POINTS, replace=False)
    size = float(np.clip(4_000.0 / max(chosen.size, 1), 2.0, 40.0))
    ax.scatter(
        points[chosen, 0],
        points[chosen, 1],
        c=_colours(labels)[labels[chosen]],
        s=size,
        linewidths=0.4 if size > 8.0 else 0.0,
        edgecolors=DARK,
        alpha=0.9,
        rasterized=chosen.size > 5_000,  # vector files stay small
    )
    return int(chosen.size)


def _colours(labels: IntArray) -> FloatArray:
    """(clusters, 3) colours: grey for single states, and else those of first states.

    Up to 64 clusters get different colours: where one is taken, the next free one is used.

    Args:
        labels: Clusters, numbered by first appearance.
    """
    from matplotlib.colors import to_rgb

    _, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    colours = np.tile(to_rgb(PALE), (first.size, 1))
    colours[sizes > 1] = _own_colours(first[sizes > 1])
    return colours


def _own_colours(first: IntArray) -> FloatArray:
    from matplotlib.colors import to_rgb

    if first.size > 64:
        return _spread(first)
    table = np.array([to_rgb(c) for c in PALETTE]) if first.size <= 8 else _spread(np.arange(64))
    chosen: list[int] = []
    for state in first.tolist():
        at = state % len(table)
        while at in chosen:
            at = (at + 1) % len(table)
        chosen.append(at)
    return np.asarray(table[chosen])


def _spread(numbers: IntArray) -> FloatArray:
    """(numbers, 3) colours that differ in hue and in lightness: a low-discrepancy sequence."""
    hue, light = (numbers * 0.7548776662466927) % 1.0, (numbers * 0.5698402909980532) % 1.0
    rgb = [
        colorsys.hls_to_rgb(h, 0.35 + 0.5 * l_, 0.65)
        for h, l_ in zip(hue.tolist(), light.tolist(), strict=True)
    ]
    return np.array(rgb).reshape(-1, 3)
