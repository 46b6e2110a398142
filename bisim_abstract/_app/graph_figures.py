"""The small model as a graph: clusters, and where actions lead from them.

Probabilities are those of the aggregated model, averages over the states of a cluster. Places are
those of its states on the map where that is one grid, else of a drawing in which arrows are short;
circles never cover each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bisim_abstract._abstract.aggregate import Aggregation
from bisim_abstract._app.figures import SHORT
from bisim_abstract._app.state_figures import PlacesFigure
from bisim_abstract._base.text import shortened
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.mdp import TabularMDP

MAX_NODES = 60
MAX_ARROWS = 3_000
ROUNDS = 300  # of drawing
DIGITS = 6  # of a probability
ROUNDING = 1e-12  # of the mean of a cluster's rows


@dataclass(frozen=True)
class GraphNode:
    """A cluster, or the end of episodes."""

    x: float  # in the unit square
    y: float  # growing downwards
    size: int  # its states
    state: int  # its first state
    drawn: int | None  # position of its first state on the map, if any is drawn
    name: str  # what that is called; empty where it has no name
    start: float  # probability of starting in it
    plan: int | None  # the action that the proven plan takes
    is_end: bool


@dataclass(frozen=True)
class GraphArrow:
    """Where an action leads."""

    source: int
    target: int
    action: int
    probability: float


@dataclass(frozen=True)
class GraphFigure:
    """The model over clusters."""

    nodes: Sequence[GraphNode]
    arrows: Sequence[GraphArrow]  # the likeliest
    n_arrows: int  # how many there are
    actions: Sequence[str]  # what they are called
    tau: float  # the threshold of the clusters


def graph_figure(
    certificate: Certificate, mdp: TabularMDP, places: PlacesFigure
) -> GraphFigure | None:
    """The model over certified clusters; None without these, or where they are too many."""
    tau = certificate.tau
    if tau is None or not certificate.is_certified or certificate.n_clusters > MAX_NODES:
        return None
    small = certificate.aggregate(mdp)
    arrows = _arrows(small)
    arrows_drawn = sorted(arrows, key=lambda arrow: -arrow.probability)[:MAX_ARROWS]
    x, y = _layout(small, places, arrows_drawn)
    seen, position = np.unique(small.labels[places.states], return_index=True)
    drawn = dict(zip(seen.tolist(), position.tolist(), strict=True))
    first = np.unique(small.labels, return_index=True)[1]
    sizes = np.bincount(small.labels)
    value, end = certificate.value, small.mdp.terminal_state
    if value is not None and not np.array_equal(value.labels, small.labels):
        value = None  # of other clusters, as a file may have it
    nodes = [
        GraphNode(
            x=round(float(x[k]), 4),
            y=round(float(y[k]), 4),
            size=int(sizes[k]),
            state=int(first[k]),
            drawn=None if k == end else drawn.get(k),
            name=shortened(mdp.names.state(int(first[k])), SHORT),
            start=_short(float(small.mdp.start[k])),
            plan=None if value is None or k == end else int(value.policy[k]),
            is_end=k == end,
        )
        for k in range(small.mdp.n_states)
    ]
    names = [small.mdp.action_text(a) for a in range(small.mdp.n_actions)]
    return GraphFigure(nodes, arrows_drawn, len(arrows), names, tau)


def _arrows(small: Aggregation) -> list[GraphArrow]:
    model, found = small.mdp, []
    for k in range(model.n_states):
        if k == model.terminal_state:
            continue
        for action in np.flatnonzero(model.available[k]).tolist():
            targets, probs = model.successors(k, action)
            found += [
                GraphArrow(k, int(t), action, _short(float(p)))
                for t, p in zip(targets.tolist(), probs.tolist(), strict=True)
                if p > 0.0
            ]
    return found


def _short(probability: float) -> float:
    """A probability in few digits; 0 or 1 only where it is so, apart from rounding of means."""
    if probability == 0.0 or probability >= 1.0 - ROUNDING:
        return float(round(probability))
    return min(max(round(probability, DIGITS), 10.0**-DIGITS), 1.0 - 10.0**-DIGITS)


# -- places ------------------------------------------------------------------------------------


def _layout(
    small: Aggregation, places: PlacesFigure, arrows: Sequence[GraphArrow]
) -> tuple[FloatArray, FloatArray]:
    """Where clusters are drawn, in the unit square."""
    count = small.mdp.n_states
    # A table of variables is no plane in which clusters could lie.
    names = {variable.name for variable in small.mdp.names.variables}
    is_plane = places.is_grid and {"row", "column"} <= names
    is_one = not (places.panels or places.heads or places.sides)
    if is_plane and is_one and places.has_place.any():
        points = _means(small.labels, places, count)
    else:
        points = _drawn(count, arrows)
    points = _apart(_unit(points))
    return points[:, 0], points[:, 1]


def _means(labels: IntArray, places: PlacesFigure, count: int) -> FloatArray:
    """The middle of each cluster's states; what has no place goes below."""
    has_place = places.has_place
    at = labels[places.states[has_place]]
    sizes = np.bincount(at, minlength=count)
    points = np.empty((count, 2))
    for k, values in enumerate((places.x, places.y)):
        sums = np.bincount(at, weights=values[has_place], minlength=count)
        points[:, k] = sums / np.maximum(sizes, 1)
    span = float(np.ptp(points[sizes > 0], axis=0).max()) or 1.0
    points[sizes == 0] = (points[sizes > 0, 0].mean(), points[sizes > 0, 1].max() + 0.25 * span)
    return points


def _drawn(count: int, arrows: Sequence[GraphArrow]) -> FloatArray:
    """Circles push each other away while arrows pull, as Fruchterman and Reingold (1991) do."""
    angle = 2.0 * math.pi * np.arange(count) / max(count, 1)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    pull = np.zeros((count, count))
    for arrow in arrows:
        if arrow.source != arrow.target:
            pull[arrow.source, arrow.target] += arrow.probability
    pull = np.minimum(pull + pull.T, 3.0)
    best = 1.5 / math.sqrt(max(count, 1))
    for k in range(ROUNDS):
        away = points[:, None, :] - points[None, :, :]
        far = np.maximum(np.linalg.norm(away, axis=2), 1e-3)
        force = best**2 / far**2 - pull * far / best
        np.fill_diagonal(force, 0.0)
        move = (force[:, :, None] * away).sum(axis=1) - 0.05 * points
        length = np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-9)
        points = points + move / length * np.minimum(length, 0.15 * (1.0 - k / ROUNDS))
    return points


def _unit(points: FloatArray) -> FloatArray:
    """Both directions from 0 to 1; the middle where there is but one place."""
    spans = np.ptp(points, axis=0)
    return np.where(spans > 1e-9, (points - points.min(axis=0)) / np.maximum(spans, 1e-9), 0.5)


def _apart(points: FloatArray) -> FloatArray:
    """The same, where no two are closer than circles are wide."""
    count = points.shape[0]
    least = min(0.13, 0.8 / math.sqrt(max(count, 1)))
    turn = 2.4 * np.arange(count)
    jitter = 1e-3 * np.column_stack([np.cos(turn), np.sin(turn)])  # no two are alike
    points = np.clip(points + jitter, 0.0, 1.0)
    for _ in range(200):
        away = points[:, None, :] - points[None, :, :]
        far = np.linalg.norm(away, axis=2) + np.eye(count)
        push = np.maximum(least - far, 0.0) / far
        if not push.any():
            break
        points = np.clip(points + 0.5 * (push[:, :, None] * away).sum(axis=1), 0.0, 1.0)
    return points
