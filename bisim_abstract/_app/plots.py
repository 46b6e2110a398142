"""Pictures of certificates, clusterings, learning curves and losses, drawn with matplotlib.

Every function draws a figure (`figures`, `maps`) on the axes it is given, or on those of a new
one, and returns them. Nothing is displayed, saved or set globally. However many states there
are, what is drawn stays bounded; where that leaves something out, the picture says so. Colours
are those of Okabe and Ito as far as they go.
"""

from __future__ import annotations

import colorsys
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._app import figures, state_figures
from bisim_abstract._app.graph_figures import MAX_NODES, graph_figure
from bisim_abstract._app.palette import KEPT, LOST, LOWER, MERGE, UPPER
from bisim_abstract._app.state_map import StateMap, state_map
from bisim_abstract._base.checks import as_generator, check_choice, check_int, check_real, require
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import FloatArray, IntArray, SeedLike
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import with_name
from bisim_abstract._propose.embedding import Embedding, checked_points
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bisim_abstract._certificate.frontier import Frontier
    from bisim_abstract._compare.learning import Curve
    from bisim_abstract._compare.losses import AbstractionLoss

__all__ = [
    "plot_curves",
    "plot_dendrogram",
    "plot_embedding",
    "plot_frontier",
    "plot_graph",
    "plot_losses",
    "plot_map",
    "plot_overview",
    "plot_profile",
    "plot_widths",
]

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, WINE = "#56B4E9", "#CC79A7", "#F0E442", "#882255"
GREY, DARK, PALE = "#999999", "#333333", "#DEDEDE"
BAR: dict[str, Any] = {"color": DARK, "linewidth": 1.0, "linestyle": "--"}  # what is requested
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW, WINE)
ARMS = ("lower", "upper")
STEPS = 1_500  # positions along an axis that are told apart
SPANS = 500  # certified intervals drawn one by one
POINTS = 50_000  # points of a scatter plot
CELLS = 4_000_000  # cells of an image
PANELS = 6  # that a caption lists
BORDERS = 40_000  # cells up to which borders between clusters are drawn
SHADE = 0.2
RUNS = ((slice(1, -1), slice(None, -2)), (slice(1, -1), slice(2, None)))  # begins, ends


# -- profile -----------------------------------------------------------------------------------


def plot_profile(certificate: Certificate, *, ax: Axes | None = None) -> Axes:
    """Numbers of clusters of both arms at every threshold.

    The exact number lies between the two. Thresholds at which the arms agree are shaded, and
    the number of clusters there is written above wherever there is room.

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
    figure = figures.profile_figure(certificate, positions=STEPS)
    _set_scale(ax, figure.scale)
    x = np.append(figure.tau, figure.scale.right)
    lower, upper = (np.append(y, y[-1]) for y in (figure.lower, figure.upper))
    ax.fill_between(x, lower, upper, step="post", color=GREY, alpha=0.25, linewidth=0)
    # The upper arm is thinner, so that both are seen where they agree.
    for y, colour, width, order, name in (
        (upper, UPPER.light, 1.4, 3.0, "upper arm"),
        (lower, LOWER.light, 3.5, 2.5, "lower arm"),
    ):
        ax.step(x, y, where="post", color=colour, linewidth=width, zorder=order, label=name)
    _shade(ax, figure)
    _count_clusters(ax, figure)
    if certificate.tau is not None:
        line: dict[str, Any] = {"color": DARK, "linestyle": "--", "linewidth": 1.2}
        ax.axvline(certificate.tau, **line, clip_on=False, label=figures.verdict_text(certificate))
    _count_scale(ax, certificate.n_live)
    ax.set_title(figure.title, pad=22)
    ax.set_xlabel("threshold τ" + _left_out(figure))
    ax.set_ylabel(figures.counts_label(certificate.terminal_state is not None))
    _profile_legend(ax)
    return ax


def _left_out(figure: figures.ProfileFigure) -> str:
    """What a profile does not show one by one."""
    words = []
    if figure.tau.size < figure.n_steps:
        words.append(f"{figure.tau.size:,} of {figure.n_steps:,} steps drawn")
    if figure.n_intervals > SPANS:
        words.append(f"shaded by the share of {figure.n_intervals:,} certified intervals")
    return f" ({'; '.join(words)})" if words else ""


def _profile_legend(ax: Axes) -> None:
    from matplotlib.patches import Patch

    handles, _ = ax.get_legend_handles_labels()
    handles.append(Patch(color=GREEN, alpha=SHADE, linewidth=0, label="arms agree: certified"))
    ax.legend(handles=handles, frameon=True, framealpha=0.9, fontsize="small")


def _interval_ends(figure: figures.ProfileFigure) -> FloatArray:
    """(intervals, 2) where certified intervals begin and end on the picture."""
    right = figure.scale.right
    ends = [(interval.low, min(interval.high, right)) for interval in figure.intervals]
    return np.array(ends).reshape(-1, 2)


def _shade(ax: Axes, figure: figures.ProfileFigure) -> None:
    """Shade certified intervals."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    ends = _interval_ends(figure)
    depth = np.full(len(ends), SHADE)
    if len(ends) > SPANS:
        # Too many to be seen: every position on screen is as dark as it is certified.
        along = figure.scale.along(ends)
        lengths = np.column_stack([np.zeros(len(ends)), along[:, 1] - along[:, 0]])
        at = np.linspace(0.0, 1.0, STEPS + 1)
        certified = np.interp(at, along.ravel(), np.cumsum(lengths.ravel()), left=0.0)
        depth = SHADE * np.clip(STEPS * np.diff(certified), 0.0, 1.0)
        edges = figure.scale.at(at)
        ends, depth = np.column_stack([edges[:-1], edges[1:]])[depth > 0.0], depth[depth > 0.0]
    spans = PolyCollection(
        [[(a, 0.0), (a, 1.0), (b, 1.0), (b, 0.0)] for a, b in ends.tolist()],
        transform=ax.get_xaxis_transform(),
        facecolors=[to_rgba(GREEN, alpha) for alpha in depth.tolist()],
        linewidth=0,
        antialiased=False,  # no seams between neighbours
        zorder=0.5,
    )
    ax.add_collection(spans, autolim=False)


def _count_clusters(ax: Axes, figure: figures.ProfileFigure) -> None:
    """Write numbers of clusters above the widest certified intervals."""
    low, high = figure.scale.along(_interval_ends(figure)).T
    middles = figure.scale.at((low + high) / 2.0)
    for k in np.argsort(low - high, kind="stable")[:12].tolist():
        text = f"{figure.intervals[k].n_clusters:,}"
        if high[k] - low[k] < 0.02 + 0.014 * len(text):
            break
        place: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "ha": "center"}
        ax.text(middles[k], 1.01, text, **place, va="bottom", fontsize="small", color="#00664A")


# -- widths ------------------------------------------------------------------------------------


def plot_widths(
    certificate: Certificate,
    *,
    sample: int = 20_000,
    seed: SeedLike = 0,
    ax: Axes | None = None,
) -> Axes:
    """How far the bounds are apart: histograms over covered pairs and over all others.

    In the relation "optimal", which covers no pairs, one histogram is over all of them. Each
    histogram adds up to one, however few of all pairs are covered. Of each kind, so many pairs are
    looked at as the sample says, or all if they are no more.
    """
    sample = check_int("sample", sample, low=1)
    rng = as_generator(seed)
    ax = _axes(ax)
    figure = figures.widths_figure(certificate, sample=sample, rng=rng)
    scale = figure.scale
    if scale.is_log:
        _set_scale(ax, scale)
    _draw_widths(ax, figure)
    ax.set_title(figure.title)
    ax.set_xlabel("upper bound − lower bound")
    ax.set_ylabel("share of pairs")
    # The largest value stays off the frame.
    ax.set_xlim(0.0, scale.right * (1.3 if scale.is_log else 1.03))
    if figure.groups:
        ax.set_ylim(0.0, 1.25 * max(ax.get_ylim()[1] / 1.05, 1e-3))
        ax.legend(loc="upper left", frameon=False, fontsize="small")
    else:
        ax.text(0.5, 0.5, "one state: no pairs", ha="center", transform=ax.transAxes)
    return ax


def _draw_widths(ax: Axes, figure: figures.WidthsFigure) -> None:
    for group in figure.groups:
        is_whole = group.n_sampled == group.n_pairs
        sample = "all" if is_whole else f"{group.n_sampled:,} of"
        colour = BLUE if group.name == "covered" else ORANGE
        ax.hist(
            figure.edges[:-1],
            bins=figure.edges.tolist(),
            weights=group.shares,
            histtype="stepfilled",
            color=colour,
            alpha=0.45,
            edgecolor=colour,
            linewidth=1.2,
            label=f"{group.name} pairs ({sample} {group.n_pairs:,}): {group.largest:.3g} at most",
        )


# -- merges ------------------------------------------------------------------------------------


def plot_dendrogram(
    certificate: Certificate, *, max_leaves: int = 60, ax: Axes | None = None
) -> Axes:
    """The hierarchy of clusters that both arms agree on.

    Leaves are the clusters of the finest certified interval that has few enough. A cluster is
    a line over the thresholds at which it is certain; a merge is a box from the lower to the
    upper bound on the threshold at which it happens. Where the arms agree on the outcome of
    several merges but not on their order, these are one box, into which lines reach.
    """
    max_leaves = check_int("max_leaves", max_leaves, low=1)
    require("matplotlib", extra="plots")
    model = certificate.model
    names = None if model is None else model.names
    tree = figures.tree_figure(certificate, max_leaves=max_leaves, names=names)
    ax = _axes(ax, size=(7.0, max(3.2, 1.8 + 0.16 * len(tree.leaves))))
    handles = _draw_tree(ax, tree)
    if tree.right > 10.0 * tree.left > 0.0:
        ax.set_xscale("log")
    ax.set_xlim(tree.left, tree.right)
    _name_leaves(ax, tree)
    tau = certificate.tau
    if tau is not None and tree.left <= tau <= tree.right:
        label = figures.verdict_text(certificate)
        handles.append(ax.axvline(tau, color=VERMILION, linestyle="--", label=label))
    if handles:
        _legend_below(ax, handles)
    remark = f" (the next finer certified clustering has {tree.finer[-1]:,})" if tree.finer else ""
    ax.set_xlabel("threshold τ" + remark)
    ax.set_title(tree.title)
    return ax


def _draw_tree(ax: Axes, tree: figures.TreeFigure) -> list[Artist]:
    """Draw lines and boxes, and return handles of the boxes for a legend."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Patch, Rectangle

    handles: list[Artist] = []
    for is_several, colour, label in (
        (False, MERGE.light, "merge, between its bounds"),
        (True, ORANGE, "several merges, order open"),
    ):
        look: dict[str, Any] = {"facecolor": f"{colour}55", "edgecolor": colour}
        boxes = [node for node in tree.nodes if node.children]
        boxes = [node for node in boxes if (len(node.children) > 2) is is_several]
        for node in boxes:
            size = node.begin - node.start, node.last - node.first
            box = Rectangle((node.start, node.first), *size, **look, linewidth=1.2, zorder=2)
            ax.add_patch(box)
        if boxes:
            handles.append(Patch(**look, label=label))
    lines = [[(node.begin, node.row), (min(node.end, tree.right), node.row)] for node in tree.nodes]
    ax.add_collection(LineCollection(lines, colors=DARK, linewidths=1.1, zorder=3))
    return handles


def _name_leaves(ax: Axes, tree: figures.TreeFigure) -> None:
    count = len(tree.leaves)
    names = [
        f"{leaf.label}: {counted(leaf.size, 'state')}" if leaf.size else "the end"
        for leaf in tree.leaves
    ]
    for k, leaf in enumerate(tree.leaves):
        if leaf.size and leaf.name:
            # A dollar would begin a formula.
            called = with_name(leaf.state, leaf.short).replace("$", r"\$")
            names[k] += f" like {called}" if leaf.size > 1 else f", {called}"
    rows = [node.row for node in tree.nodes[:count]]
    order = np.argsort(rows).tolist()
    font = float(np.clip(420.0 / count, 5.5, 9.0))
    ax.set_yticks(range(count), [names[k] for k in order], fontsize=font)
    ax.set_ylim(count - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


# -- frontier ----------------------------------------------------------------------------------


def plot_frontier(
    certificate: Certificate,
    *,
    mdp: TabularMDP | None = None,
    frontier: Frontier | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What agents are proven to retain and to lose, against numbers of clusters.

    One point for every certified clustering that was evaluated; nothing is drawn in between. The
    shares are those of the agents that the certificate's guarantee names. What may be below the
    baseline stands at the bottom. The requested share or loss is a line, the certificate's own
    choice a star.

    Args:
        certificate: The certificate.
        mdp: The model; needed if the certificate was read from a file and no frontier is given.
        frontier: `certificate.frontier()`, if known already.
        ax: Axes of the kept share; those of the loss are their twin.
    """
    require("matplotlib", extra="plots")
    frontier = certificate.frontier(mdp) if frontier is None else frontier
    figure = figures.frontier_figure(certificate, frontier)
    ax = _axes(ax, size=(7.0, 5.0))
    _cluster_scale(ax, figure)
    handles = _draw_kept(ax, figure)
    ax.set_ylim(0.0, 104.0)
    ax.set_yticks(range(0, 101, 20))
    ax.set_xlabel(figures.counts_label(figure.has_end))
    ax.set_ylabel("achievable return retained, %", color=KEPT.light)
    handles[1:1] = _draw_losses(ax, figure)
    _legend_below(ax, handles)
    ax.set_title(figure.title)
    if not figure.marks:
        ax.text(0.5, 0.5, "no clustering was evaluated", ha="center", transform=ax.transAxes)
    return ax


def _stamp(
    ax: Axes, marks: Sequence[figures.FrontierMark], ys: Sequence[float], shape: str, **look: Any
) -> list[Artist]:
    """One stamp for each mark, as one handle of a legend; none for none."""
    if not marks:
        return []
    x = [mark.n_clusters for mark in marks]
    return list(ax.plot(x, ys, shape, clip_on=False, **look))


def _draw_kept(ax: Axes, figure: figures.FrontierFigure) -> list[Artist]:
    """Kept shares, the requested one, and the choice."""
    handles: list[Artist] = []
    for is_proven, shape, fill, label in (
        (True, "o", KEPT.light, "achievable return retained, at least"),
        (False, "v", "white", "below the baseline, or nothing proven"),
    ):
        marks = [mark for mark in figure.marks if mark.is_proven is is_proven]
        look = {"color": KEPT.light, "markerfacecolor": fill, "markersize": 5.5, "zorder": 3}
        percents = [mark.percent for mark in marks]
        handles += _stamp(ax, marks, percents, shape, **look, label=label)
    if figure.keep is not None:
        handles.append(ax.axhline(figure.keep, **BAR, label=figure.requested))
    for mark in figure.marks:
        if mark.is_own:
            clusters = clusters_text(mark.n_clusters, has_end=figure.has_end)
            look = {"color": GREEN if mark.is_worth else ORANGE, "markeredgecolor": DARK}
            retained = f"{mark.kept_text} retained" if mark.is_proven else mark.kept_text
            worth = f"{retained}, loss at most {mark.loss_text}"
            worth += ", clearly fewer episodes may end" if mark.ends_fewer else ""
            look |= {"markersize": 16.0, "zorder": 4, "label": f"chosen: {clusters}, {worth}"}
            handles += _stamp(ax, [mark], [mark.percent], "*", **look)
    return handles


def _draw_losses(ax: Axes, figure: figures.FrontierFigure) -> list[Artist]:
    """Losses of worst states on an axis of their own, at the right."""
    if not figure.marks:
        return []
    right = ax.twinx()
    look = {"color": LOST.light, "markerfacecolor": "none", "markersize": 4.0}
    label = "loss of the worst state, at most"
    losses = [mark.loss for mark in figure.marks]
    handles = _stamp(right, figure.marks, losses, "s", **look, label=label)
    if figure.max_loss is not None:
        handles.append(right.axhline(figure.max_loss, **BAR, label=figure.requested))
    right.set_ylim(0.0, 1.04 * figure.worst)
    right.set_ylabel("loss of the worst state", color=LOST.light)
    ax.set_zorder(right.get_zorder() + 1)  # the choice stays on top
    ax.patch.set_visible(False)
    return handles


# -- maps --------------------------------------------------------------------------------------


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
    most = CELLS if places.is_grid else POINTS
    figure = state_figures.places_figure(places, certificate.terminal_state, most=most)
    if figure.is_grid and figure.has_place.any():
        _draw_cells(ax, figure, labels)
    else:
        states = figure.states[figure.has_place]
        _draw_points(ax, np.column_stack([places.x, places.y]), labels, states)
        ax.invert_yaxis()
    ax.set(xticks=[], yticks=[])
    is_grey = np.bincount(labels).min() == 1
    caption = figure.caption + (" Grey: clusters of one state." if is_grey else "")
    titles = [f"{k + 1}: {panel[-1]}" for k, panel in enumerate(figure.panels[:PANELS])]
    if titles:
        more = "; ..." if len(figure.panels) > PANELS else "."
        caption += f" {'; '.join(titles)}{more}"
    ax.set_xlabel(textwrap.fill(caption, 90), fontsize="small")
    pad = 18.0 if figure.heads or figure.panels else None  # captions stand in between
    ax.set_title(_map_title(certificate, lower, upper, tau, arm), pad=pad)
    return ax


def _map_title(
    certificate: Certificate, lower: IntArray, upper: IntArray, tau: float, arm: str
) -> str:
    n_lower, n_upper = (figures.count_live(certificate, labels) for labels in (lower, upper))
    clusters = figures.live_clusters(certificate, n_upper)
    if np.array_equal(numbered(lower), numbered(upper)):
        title = f"{clusters} at τ = {tau:.4g}, certified over {certificate.scope} pairs"
    else:
        title = (
            f"NOT certified at τ = {tau:.4g}: between {n_lower:,} and {clusters}\n"
            f"drawn: the {arm} arm's"
        )
    return title + figures.reservation(certificate)


def _places(certificate: Certificate, places: StateMap | TabularMDP) -> StateMap:
    if isinstance(places, TabularMDP):
        if places.fingerprint != certificate.fingerprint:
            raise InvalidArgumentError("places must be of the certificate's model, not another")
        places = state_map(places)
    state_figures.check_places(places, certificate.n_states)
    return places


def _draw_cells(ax: Axes, figure: state_figures.PlacesFigure, labels: IntArray) -> None:
    """Draw an image of clusters."""
    from matplotlib.colors import ListedColormap, NoNorm

    x, y = (z[figure.has_place].astype(np.int64) for z in (figure.x, figure.y))
    cells = np.full((int(y.max()) + 1, int(x.max()) + 1), -1, np.int64)
    cells[y, x] = labels[figure.states[figure.has_place]]
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
    _write_on_cells(ax, figure, cells.shape[0])


def _write_on_cells(ax: Axes, figure: state_figures.PlacesFigure, rows: int) -> None:
    """Captions of panels, and what is printed in cells."""
    small: dict[str, Any] = {"fontsize": 7, "color": DARK, "clip_on": False, "parse_math": False}
    for column, columns, text in figure.heads:
        across = column + (columns - 1) / 2.0
        ax.text(across, -0.8, text, ha="center", va="bottom", **small)
    for row, height, text in figure.sides:
        down = row + (height - 1) / 2.0
        ax.text(-0.8, down, text, ha="right", va="center", rotation=90, **small)
    for k, (column, row, *_) in enumerate(figure.panels):
        ax.text(column - 0.5, row - 0.8, f"{k + 1}", ha="left", va="bottom", **small)
    size = float(np.clip(90.0 / rows, 3.0, 14.0))
    for column, row, text in figure.letters:
        ax.text(
            column, row, text, ha="center", va="center", fontsize=size, color=DARK, parse_math=False
        )


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


def _draw_points(ax: Axes, points: FloatArray, labels: IntArray, states: IntArray) -> None:
    """Draw the points of some states, coloured by cluster."""
    size = float(np.clip(4_000.0 / max(states.size, 1), 2.0, 40.0))
    ax.scatter(
        points[states, 0],
        points[states, 1],
        c=_colours(labels)[labels[states]],
        s=size,
        linewidths=0.4 if size > 8.0 else 0.0,
        edgecolors=DARK,
        alpha=0.9,
        rasterized=states.size > 5_000,  # vector files stay small
    )


# -- overview ----------------------------------------------------------------------------------


def plot_overview(certificate: Certificate, mdp: TabularMDP | None) -> dict[str, Axes]:
    """What matters of a certificate in one figure, axes by name: see `Certificate.plot`."""
    require("matplotlib", extra="plots")
    import matplotlib.pyplot as plt

    from bisim_abstract._certificate.frontier import MAX_VALUED

    parts: dict[str, Callable[[Axes], Axes]] = {}
    if mdp is not None and certificate.tau is not None:
        places = state_map(mdp)
        if places.is_grid:
            parts["map"] = lambda ax: plot_map(certificate, places, ax=ax)
    parts["profile"] = lambda ax: plot_profile(certificate, ax=ax)
    if mdp is None:
        # So many leaves have room for their names beside the profile.
        parts["dendrogram"] = lambda ax: plot_dendrogram(certificate, max_leaves=25, ax=ax)
    elif mdp.n_states <= MAX_VALUED:
        parts["frontier"] = lambda ax: plot_frontier(certificate, mdp=mdp, ax=ax)
    # The map is square: beside it, the others lie one above the other.
    names, is_tall = list(parts), len(parts) == 3
    cells: list[Any] = [["map", "profile"], ["map", "frontier"]] if is_tall else [names]
    size = (13.0, 8.4) if is_tall else (6.5 * len(names), 5.0)
    _, axes = plt.subplot_mosaic(cells, figsize=size, layout="constrained")
    return {name: draw(axes[name]) for name, draw in parts.items()}


# -- embeddings, curves, losses ----------------------------------------------------------------


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
    given = _coordinates(points, None if labels is None else np.shape(labels))
    own = np.zeros(given.shape[0], np.int64) if labels is None else np.asarray(labels)
    if given.ndim != 2 or 0 in given.shape or not np.isfinite(given).all():
        raise InvalidArgumentError(
            f"points must be finite and of shape (n_states, k), got shape {given.shape}"
        )
    if own.shape != given.shape[:1]:
        raise InvalidArgumentError(
            f"labels must have one entry per point, {given.shape[0]}, got shape {own.shape}"
        )
    figure = state_figures.embedding_figure(given)
    ax = _axes(ax, size=(6.4, 5.2))
    clusters, states = numbered(own), state_figures.evenly(own.size, POINTS)
    _draw_points(ax, np.column_stack([figure.x, figure.y]), clusters, states)
    # Distances are what an embedding is about.
    ax.set_aspect("equal", adjustable="datalim")
    ax.set(xlabel=figure.axes[0], ylabel=figure.axes[1])
    title = counted(own.size, "state")
    if labels is not None:
        title += f" in {counted(int(clusters.max()) + 1, 'cluster')}"
    if states.size < own.size:
        title += f"\n{counted(states.size, 'state')} of them drawn"
    is_grey = labels is not None and np.bincount(clusters).min() == 1
    ax.set_title(title + ("\ngrey: clusters of one state" if is_grey else ""))
    return ax


def _coordinates(
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


def plot_graph(certificate: Certificate, mdp: TabularMDP, *, ax: Axes | None = None) -> Axes:
    """The model over certified clusters as a graph: where actions lead, those of the plan dark.

    A circle is a cluster, with the number of its first state; clusters of one state are grey. An
    arrow is the wider the likelier it is; what stays in a cluster has none.

    Args:
        certificate: The certificate, certified at its threshold with 60 clusters at most.
        mdp: The model.
        ax: Axes to draw on; those of a new figure by default.

    Raises:
        InvalidArgumentError: If nothing is certified, or more clusters are.
    """
    require("matplotlib", extra="plots")
    places = state_figures.places_figure(state_map(mdp), certificate.terminal_state, most=POINTS)
    figure = graph_figure(certificate, mdp, places)
    if figure is None:
        raise InvalidArgumentError(
            f"a graph needs certified clusters, and {MAX_NODES} at most, got {certificate!r}"
        )
    ax = _axes(ax, size=(8.0, 6.0))
    labels = numbered(certificate.labels)
    colours = _colours(labels)
    ways: dict[tuple[int, int], tuple[bool, float]] = {}
    for arrow in figure.arrows:
        key = (arrow.source, arrow.target)
        is_plan, likely = ways.get(key, (False, 0.0))
        is_plan |= figure.nodes[arrow.source].plan == arrow.action
        ways[key] = (is_plan, max(likely, arrow.probability))
    for (source, target), (is_plan, likely) in ways.items():
        if source == target:
            continue
        one, two = figure.nodes[source], figure.nodes[target]
        look = {
            "arrowstyle": "-|>",
            "connectionstyle": "arc3,rad=0.12",
            "linewidth": 0.4 + 1.4 * math.sqrt(likely),
            "color": DARK if is_plan else GREY,
            "alpha": 0.9 if is_plan else 0.35,
            "shrinkA": 9,
            "shrinkB": 9,
        }
        ax.annotate("", (two.x, two.y), (one.x, one.y), arrowprops=look)
    for node in figure.nodes:
        colour = "white" if node.is_end else colours[labels[node.state]]
        ax.scatter([node.x], [node.y], s=260, color=[colour], edgecolors=DARK, zorder=3)
        text = "end" if node.is_end else f"{node.state}"
        ax.text(node.x, node.y, text, ha="center", va="center", fontsize=7, zorder=4)
    ax.set(xticks=[], yticks=[], xlim=(-0.08, 1.08), ylim=(1.08, -0.08))
    clusters = figures.live_clusters(certificate, certificate.n_clusters)
    title = f"The model of {clusters}, at τ = {figure.tau:.4g}"
    ax.set_title(title + figures.reservation(certificate))
    return ax


def plot_curves(
    curves: Sequence[Curve], *, level: float | None = None, ax: Axes | None = None
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
    lines = figures.curve_lines(curves)
    level = None if level is None else check_real("level", level)
    ax = _axes(ax)
    colours = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, DARK)
    for k, line in enumerate(lines):
        colour = colours[k % len(colours)]
        dash = ("-", "--", ":", "-.")[k // len(colours) % 4]
        marker = "o" if line.steps.size == 1 else None  # a single point has no line
        look: dict[str, Any] = {"linestyle": dash, "marker": marker, "label": line.name}
        ax.plot(line.steps, line.median, color=colour, **look)
        ax.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
    if level is not None:
        _mark_level(ax, level)
    seeds = sorted({line.seeds for line in lines})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    heading = f"median and range of {number} seeds" if seeds[-1] > 1 else None
    ax.legend(frameon=True, framealpha=0.9, title=heading, fontsize="small", title_fontsize="small")
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == int(x) else f"{x:g}")
    ax.set(xlabel="environment steps")
    ax.set_ylabel(figures.curves_label(curves), parse_math=False)
    ax.grid(alpha=0.3)
    return ax


def _mark_level(ax: Axes, level: float) -> None:
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


def plot_losses(comparison: Sequence[AbstractionLoss], *, ax: Axes | None = None) -> Axes:
    """What planning on several clusterings loses at most, one bar each.

    Args:
        comparison: Rows, as `compare_abstractions` gives; the first is on top.
        ax: Axes to draw on; those of a new figure by default.

    Returns:
        The axes.
    """
    if not comparison:
        raise InvalidArgumentError("comparison must hold at least one clustering, got none")
    rows = figures.loss_rows(comparison)
    ax = _axes(ax, size=(7.0, 1.4 + 0.42 * len(rows)))
    losses = [row.losses[0] for row in rows]
    colours = [GREEN if row.is_certified else GREY for row in rows]
    ax.barh(range(len(rows)), losses, height=0.66, color=colours)
    for k, row in enumerate(rows):
        text = "" if row.bound is None else f" (proven: at most {row.bound:.3g})"
        # Labels of long bars stand inside them, so that none runs off the frame.
        is_long = row.shares[0] > 0.6
        ax.annotate(
            f"{losses[k]:.3g}{text}",
            (losses[k], k),
            xytext=(-4 if is_long else 4, 0),
            textcoords="offset points",
            ha="right" if is_long else "left",
            va="center",
            fontsize="small",
            color="black",
        )
    names = [f"{row.name}\n{counted(row.n_clusters, 'cluster')}" for row in rows]
    ax.set_yticks(range(len(rows)), names, fontsize="small")
    for tick, row in zip(ax.get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if row.is_certified else "normal")
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.set_xlim(0.0, 1.03 * (max(*losses, 0.0) or 1.0))
    ax.set_xlabel("largest loss of a state, an upper bound")
    ax.set_title("What planning on clusters loses")
    for side in ("right", "top"):
        ax.spines[side].set_visible(False)
    return ax


# -- axes, legends, colours --------------------------------------------------------------------


def _axes(ax: Axes | None, *, size: tuple[float, float] = (7.0, 4.4)) -> Axes:
    require("matplotlib", extra="plots")
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


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


def _set_scale(ax: Axes, scale: figures.Scale) -> None:
    """A logarithmic axis from 0 on."""
    from matplotlib.ticker import SymmetricalLogLocator

    ax.set_xscale("symlog", linthresh=scale.limit, linscale=0.7)
    # Where thresholds span many decades, names of all of them would run into each other.
    locator = SymmetricalLogLocator(base=10.0, linthresh=scale.limit)
    locator.set_params(numticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.set_xlim(0.0, scale.right)


def _count_scale(ax: Axes, n_states: int) -> None:
    """A logarithmic axis of numbers from 1 on, written in full."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_yscale("log")
    ax.set_ylim(0.8, 1.35 * max(n_states, 2))
    subs = (1.0, 2.0, 5.0) if n_states < 500 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}" if y >= 1.0 else "")
    ax.yaxis.set_minor_formatter(NullFormatter())


def _cluster_scale(ax: Axes, figure: figures.FrontierFigure) -> None:
    """An axis of numbers of clusters: logarithmic where they are wide apart."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    counts = [mark.n_clusters for mark in figure.marks]
    low, high = min(counts, default=1), max(counts, default=1)
    if figure.is_log:
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


def _colours(labels: IntArray) -> FloatArray:
    """(clusters, 3) colours: grey for single states, and else those of first states.

    Up to 64 clusters get different colours: where one is taken, the next free one is used.
    Labels are numbered by first appearance.
    """
    from matplotlib.colors import to_rgb

    _, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    colours = np.tile(to_rgb(PALE), (first.size, 1))
    several = first[sizes > 1]
    if several.size > 64:
        colours[sizes > 1] = _spread(several)
        return colours
    few = several.size <= len(PALETTE)
    table = np.array([to_rgb(c) for c in PALETTE]) if few else _spread(np.arange(64))
    chosen: list[int] = []
    for state in several.tolist():
        chosen.append(next(k for k in np.roll(range(len(table)), -state) if k not in chosen))
    colours[sizes > 1] = table[chosen]
    return colours


def _spread(numbers: IntArray) -> FloatArray:
    """(numbers, 3) colours that differ in hue and in lightness: a low-discrepancy sequence."""
    hue, light = (numbers * 0.7548776662466927) % 1.0, (numbers * 0.5698402909980532) % 1.0
    pairs = zip(hue.tolist(), light.tolist(), strict=True)
    return np.array([colorsys.hls_to_rgb(h, 0.35 + 0.5 * lift, 0.65) for h, lift in pairs])
