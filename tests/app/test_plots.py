"""Pictures: what their axes hold, read back and compared with what they are pictures of."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")  # no window system is needed to run tests

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bisim_abstract import (
    AbstractionLoss,
    Certificate,
    Curve,
    InvalidArgumentError,
    StateMap,
    TabularMDP,
    ValueLoss,
    certify,
    plot_curves,
    plot_embedding,
    plot_losses,
    state_map,
)
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app import figures, plots
from bisim_abstract._app import palette as _palette
from bisim_abstract._app.plots import (
    plot_dendrogram,
    plot_frontier,
    plot_map,
    plot_profile,
    plot_widths,
)
from bisim_abstract._certificate.frontier import Frontier, FrontierPoint
from bisim_abstract.errors import MissingDependency
from bisim_abstract.parts import random_mdp, sparse_mdp
from bisim_abstract.wrappers import extract_mdp
from tests.support.examples import grid


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    plt.close("all")
    yield
    plt.close("all")


def by_hand(
    n: int,
    links: dict[tuple[int, int], tuple[float, float]],
    *,
    tau: float | None = None,
    high: float = 1.0,
) -> Certificate:
    """A certificate over covered pairs with these bounds; nothing is claimed of a model."""
    pairs = sorted(links)
    bounds = np.array([links[pair] for pair in pairs]).reshape(-1, 2)
    plain = Certificate(
        fingerprint="by hand",
        n_states=n,
        gamma=0.9,
        rewards=np.linspace(0.0, high, n)[:, None],
        keys=np.array([s * n + t for s, t in pairs], np.int64),
        lower=bounds[:, 0],
        upper=bounds[:, 1],
        lower_start="zero",
        upper_start="constant",
    )
    return plain if tau is None else plain.at(tau)


# 0-1 and 2-3 merge early, both groups later; 4, 5 and 6 in an order that is open.
LINKS = {
    (0, 1): (0.1, 0.2),
    (2, 3): (0.3, 0.3),
    (1, 2): (1.0, 1.5),
    (4, 5): (0.4, 0.7),
    (5, 6): (0.5, 0.6),
    (3, 4): (4.0, 5.0),
}


def small(tau: float | None = 0.8) -> Certificate:
    return by_hand(7, LINKS, tau=tau)


def random_chain(n: int, *, seed: int = 0, width: float = 0.3) -> Certificate:
    """States in a row, each linked with the next."""
    rng = np.random.default_rng(seed)
    lower = np.round(rng.random(n - 1), 2)
    upper = lower + width * np.round(rng.random(n - 1), 1)
    links = {(k, k + 1): (float(lower[k]), float(upper[k])) for k in range(n - 1)}
    return by_hand(n, links, tau=0.5)


def points_of(ax: Axes, label: str) -> tuple[Any, Any]:
    (line,) = (line for line in ax.lines if line.get_label() == label)
    assert line.get_drawstyle() == "steps-post"
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def only(ax: Axes, kind: type[Any]) -> Any:
    (found,) = (artist for artist in ax.get_children() if type(artist) is kind)
    return found


def image_of(ax: Axes) -> Any:
    (image,) = ax.images
    return image


def texts(ax: Axes) -> str:
    legend = ax.get_legend()
    labels = [] if legend is None else [text.get_text() for text in legend.get_texts()]
    return "\n".join([ax.get_title(), ax.get_xlabel(), *labels])


def spans_of(ax: Axes) -> list[tuple[float, float]]:
    collection: PolyCollection = only(ax, PolyCollection)
    found = [np.asarray(path.vertices)[:, 0] for path in collection.get_paths()]
    return [(float(x.min()), float(x.max())) for x in found]


# -- profile -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [small, lambda: random_chain(50)])
def test_profile_holds_both_arms_and_all_certified_thresholds(
    make: Callable[[], Certificate],
) -> None:
    certificate = make()
    ax = plot_profile(certificate)
    profile, right = certificate.profile(), ax.get_xlim()[1]
    for name, counts in (("lower arm", profile.lower), ("upper arm", profile.upper)):
        x, y = points_of(ax, name)
        assert np.array_equal(x, np.append(profile.tau, right))
        assert np.array_equal(y, np.append(counts, counts[-1]))
    expected = [(i.low, min(i.high, right)) for i in certificate.certified_thresholds()]
    assert spans_of(ax) == expected
    assert right > profile.tau.max()


@pytest.mark.parametrize(
    ("tau", "said"),
    [
        (0.8, "2 to 3 clusters"),
        (0.25, "certified"),
        (0.0, "certified"),
        (1e6, "1 cluster, certified"),
    ],
)
def test_profile_marks_the_threshold(tau: float, said: str) -> None:
    certificate = by_hand(4, {(0, 1): (0.1, 0.2), (2, 3): (0.3, 0.9), (1, 2): (2.0, 2.0)}, tau=tau)
    ax = plot_profile(certificate)
    (mark,) = (line for line in ax.lines if str(line.get_label()).startswith("τ"))
    assert set(np.asarray(mark.get_xdata())) == {tau}
    assert ax.get_xlim()[0] <= tau < ax.get_xlim()[1]
    assert said in str(mark.get_label())
    assert ("NOT" in str(mark.get_label())) is not certificate.is_certified


def test_profile_without_threshold_has_no_mark() -> None:
    assert len(plot_profile(small(None)).lines) == 2


def test_many_steps_are_thinned_and_said_to_be() -> None:
    certificate = by_hand(
        6_000, {(k, k + 1): (1e-3 * k, 1e-3 * k + 5e-4) for k in range(5_999)}, tau=1.0
    )
    ax = plot_profile(certificate)
    profile = certificate.profile()
    x, y = points_of(ax, "upper arm")
    assert x.size <= 2 * plots.STEPS + 3 < profile.tau.size
    at = np.searchsorted(profile.tau, x[:-1])
    assert np.array_equal(profile.tau[at], x[:-1])
    assert np.array_equal(profile.upper[at], y[:-1])
    assert f"of {profile.tau.size:,} steps drawn" in ax.get_xlabel()
    assert "certified intervals" in ax.get_xlabel()
    assert len(spans_of(ax)) <= plots.STEPS
    # Half of the thresholds are certified wherever single intervals are not seen.
    collection = only(ax, PolyCollection)
    depth = collection.get_facecolors()[:, 3] / plots.SHADE
    middle = np.array([(a + b) / 2.0 for a, b in spans_of(ax)])
    inner = (middle > 1.0) & (middle < 5.0)
    assert inner.sum() > 100
    assert np.abs(depth[inner] - 0.5).max() < 0.2


# -- widths ------------------------------------------------------------------------------------


def heights_of(ax: Axes) -> dict[str, float]:
    """Total height of each histogram by the first word of its label."""
    found = {}
    for patch in ax.patches:
        outline = patch.get_path().vertices
        rows = np.asarray(outline)
        # An outline goes along the tops and back along the bottom.
        found[str(patch.get_label()).split()[0]] = float(rows[1:-1:2, 1].sum())
    return found


def test_widths_keep_covered_pairs_apart() -> None:
    ax = plot_widths(small())
    assert np.isclose(heights_of(ax)["covered"], 1.0)
    assert np.isclose(heights_of(ax)["other"], 1.0)
    said = texts(ax)
    assert "28.5% of pairs covered" in said
    assert "covered pairs (all 6): 1 at most" in said
    assert "other pairs (all 15)" in said


def test_widths_of_a_sample_say_so() -> None:
    certificate = random_chain(40)
    ax = plot_widths(certificate, sample=10, seed=3)
    said = texts(ax)
    assert "covered pairs (10 of 39)" in said
    assert f"proven on all pairs: {certificate.global_width:.3g} at most" in said
    assert "of 741)" in said
    assert all(np.isclose(height, 1.0) for height in heights_of(ax).values())


def test_pairs_of_a_sample_are_of_their_kind() -> None:
    certificate = random_chain(200)
    for sample in (20, 500, 100_000):
        groups = figures.pair_groups(certificate, sample, np.random.default_rng(0))
        for name, (first, second) in groups.items():
            assert (first < second).all()
            assert 0 < first.size <= max(sample, 199)
            is_covered = np.isin(first * 200 + second, certificate.keys)
            assert is_covered.all() if name == "covered" else not is_covered.any()


def test_one_state_has_no_widths() -> None:
    ax = plot_widths(by_hand(1, {}, tau=1.0))
    assert [text.get_text() for text in ax.texts] == ["one state: no pairs"]


# -- dendrogram --------------------------------------------------------------------------------


def cut(ax: Axes, tau: float) -> int:
    """Number of lines of the tree that a threshold crosses."""
    lines: LineCollection = only(ax, LineCollection)
    return sum(1 for (begin, _), (end, _) in lines.get_segments() if begin <= tau < end)


def test_merges_lie_between_their_bounds() -> None:
    ax = plot_dendrogram(small())
    boxes = {
        (round(box.get_x(), 9), round(box.get_x() + box.get_width(), 9))
        for box in ax.patches
        if isinstance(box, Rectangle)
    }
    assert boxes == {(0.1, 0.2), (0.3, 0.3), (1.0, 1.5), (0.4, 0.7), (4.0, 5.0)}
    assert len(ax.get_yticks()) == 7
    assert "several merges" in texts(ax)


@pytest.mark.parametrize("max_leaves", [1, 3, 10, 60])
def test_cuts_are_the_certified_clusterings(max_leaves: int) -> None:
    for seed in range(5):
        certificate = random_chain(30, seed=seed, width=0.02)
        ax = plot_dendrogram(certificate, max_leaves=max_leaves)
        left, right = ax.get_xlim()
        fitting = [i for i in certificate.certified_thresholds() if i.n_clusters <= max_leaves]
        assert len(ax.get_yticks()) == fitting[0].n_clusters
        for interval in fitting:
            low, high = max(interval.low, left), min(interval.high, right)
            if low < high:
                assert cut(ax, (low + high) / 2.0) == interval.n_clusters
        plt.close("all")


def test_leaves_say_how_many_states_they_have() -> None:
    ax = plot_dendrogram(small(), max_leaves=3)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "0: 2 states",
        "1: 2 states",
        "2: 3 states",
    ]
    assert "next finer certified clustering has 5" in ax.get_xlabel()


def test_clusters_that_never_merge_are_counted() -> None:
    links = {(k, k + 1): (0.5, 0.5) for k in range(0, 20, 2)}
    ax = plot_dendrogram(by_hand(21, links, tau=0.1), max_leaves=4)
    assert len(ax.get_yticks()) == 4
    assert "the 4 largest of 11 clusters" in ax.get_title()
    assert all("2 states" in label.get_text() for label in ax.get_yticklabels())


# -- maps --------------------------------------------------------------------------------------

GRID = StateMap(
    np.array([0.0, 1.0, 2.0, 0.0, 1.0, 2.0, np.nan]),
    np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, np.nan]),
    True,
    "A grid.",
)


@pytest.mark.parametrize("arm", ["lower", "upper"])
@pytest.mark.parametrize("tau", [None, 0.0, 0.15, 0.55, 1.2, 100.0])
def test_cells_hold_their_clusters(arm: str, tau: float | None) -> None:
    certificate = small()
    ax = plot_map(certificate, GRID, tau=tau, arm=arm)
    lower, upper = certificate.partitions(0.8 if tau is None else tau)
    labels = lower if arm == "lower" else upper
    image = image_of(ax)
    assert np.array_equal(np.ma.getdata(image.get_array()), labels[:6].reshape(2, 3))
    assert ("NOT certified" in ax.get_title()) is not np.array_equal(lower, upper)
    assert "Not drawn: 1 state without a place." in ax.get_xlabel()
    # What is drawn tells clusters of several states apart.
    drawn = np.asarray(image.to_rgba(image.get_array()))[..., :3].reshape(-1, 3)
    sizes = np.bincount(labels)
    several = [tuple(drawn[k]) for k in range(6) if sizes[labels[k]] > 1]
    ids = [int(labels[k]) for k in range(6) if sizes[labels[k]] > 1]
    assert len(set(several)) == len(set(ids)) == len(set(zip(several, ids, strict=True)))


def test_a_model_stands_for_its_places() -> None:
    mdp = sparse_mdp(12, seed=0)
    certificate = by_model(mdp)
    ax = plot_map(certificate, mdp)
    places = state_map(mdp)
    drawn = np.asarray(only(ax, PathCollection).get_offsets())
    assert np.array_equal(drawn, np.column_stack([places.x, places.y]))
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # y grows downwards
    with pytest.raises(InvalidArgumentError, match="places must be of the certificate's model"):
        plot_map(certificate, sparse_mdp(12, seed=1))


def by_model(mdp: TabularMDP) -> Certificate:
    return Certificate(
        fingerprint=mdp.fingerprint,
        n_states=mdp.n_states,
        gamma=0.9,
        rewards=mdp.rewards,
        keys=np.array([1]),
        lower=np.array([0.1]),
        upper=np.array([0.2]),
    ).at(0.3)


def test_borders_run_where_clusters_change() -> None:
    ax = plot_map(small(), GRID, tau=0.35)
    lines: LineCollection = only(ax, LineCollection)
    borders = {
        tuple(sorted((float(x), float(y)) for x, y in line)) for line in lines.get_segments()
    }
    # Clusters {0, 1}, {2, 3}, {4} and {5} on a grid of 2 rows and 3 columns.
    assert borders == {
        ((-0.5, -0.5), (-0.5, 1.5)),
        ((0.5, 0.5), (0.5, 1.5)),
        ((1.5, -0.5), (1.5, 1.5)),
        ((2.5, -0.5), (2.5, 1.5)),
        ((-0.5, -0.5), (2.5, -0.5)),
        ((-0.5, 0.5), (2.5, 0.5)),
        ((-0.5, 1.5), (2.5, 1.5)),
    }


def test_large_maps_are_thinned_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "CELLS", 100)
    monkeypatch.setattr(plots, "POINTS", 50)
    certificate = random_chain(400)
    y, x = np.divmod(np.arange(400.0), 20.0)
    ax = plot_map(certificate, StateMap(x, y, True, "A grid."))
    image = np.ma.getdata(image_of(ax).get_array())
    assert image.shape == (10, 10)
    assert np.array_equal(image, certificate.labels_upper.reshape(20, 20)[::2, ::2])
    assert "One state stands for each 2 by 2 squares: 100 of 400 are drawn." in ax.get_xlabel()
    ax = plot_map(certificate, StateMap(x, y, False, "Points."))
    assert len(only(ax, PathCollection).get_offsets()) == 50
    assert "An even sample of 50 of 400 states is drawn." in ax.get_xlabel()


def test_clusters_keep_their_colours() -> None:
    fine = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    coarse = np.array([0, 0, 1, 1, 2, 2, 2, 2])
    assert np.array_equal(plots._colours(fine)[:3], plots._colours(coarse))
    many = np.repeat(np.arange(64), 2)
    assert len(np.unique(plots._colours(many), axis=0)) == 64
    huge = np.repeat(np.arange(5_000), 2)
    assert len(np.unique(plots._colours(huge), axis=0)) == 5_000


# -- the end of episodes -----------------------------------------------------------------------


def with_end(tau: float) -> Certificate:
    """Two pairs of states that merge, and an end that is linked to them late."""
    plain = by_hand(
        5, {(0, 1): (0.1, 0.1), (2, 3): (0.2, 0.6), (1, 2): (1.0, 1.0), (3, 4): (3.0, 3.0)}
    )
    return dataclasses.replace(plain, terminal_state=4).at(tau)


def test_the_end_is_no_cluster() -> None:
    certificate = with_end(0.15)
    for ax in (plot_profile(certificate), plot_dendrogram(certificate)):
        assert "τ = 0.15: 3 clusters (plus the terminal state), certified" in texts(ax)
        assert "of 4 states" in ax.get_title()
    _, y = points_of(plot_profile(certificate), "upper arm")
    assert y.tolist() == [4, 3, 3, 2, 1, 1, 1]  # linking the end is no merge
    row = StateMap(np.arange(5.0), np.zeros(5), True, "A row.")
    assert (
        plot_map(certificate, row).get_title().startswith("3 clusters (plus the terminal state) at")
    )
    doubtful = with_end(0.3)
    assert (
        "between 2 and 3 clusters (plus the terminal state)" in plot_map(doubtful, row).get_title()
    )
    assert "NOT certified, 2 to 3 clusters (plus the terminal state)" in texts(
        plot_profile(doubtful)
    )
    names = [label.get_text() for label in plot_dendrogram(certificate).get_yticklabels()]
    assert sorted(names) == ["0: 1 state", "1: 1 state", "2: 1 state", "3: 1 state", "the end"]
    joined = plot_dendrogram(with_end(4.0), max_leaves=1)
    assert "leaves: 1 cluster (plus the terminal state)" in joined.get_title()
    assert len(joined.get_yticks()) == 2


# -- the frontier ------------------------------------------------------------------------------

POINTS = (
    FrontierPoint(0.0, 0.1, 7, 0.0, 0.0, 1.0),
    FrontierPoint(0.7, 1.0, 3, 0.5, 0.25, 0.9704),
    FrontierPoint(1.5, 4.0, 2, 1.5, 1.0, -0.25),
    FrontierPoint(5.0, np.inf, 1, 2.0, 2.0, -np.inf),
)
FRONTIER = Frontier(POINTS, 6)


def series(ax: Axes) -> dict[str, list[tuple[float, float]]]:
    """Points of every line by the begin of its label, those of the twin included."""
    found = {}
    for axes in ax.figure.axes:
        for line in axes.lines:
            x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
            found[str(line.get_label()).split(",")[0].split(":")[0]] = list(
                zip(x.tolist(), y.tolist(), strict=True)
            )
    return found


def test_frontier_holds_every_point() -> None:
    ax = plot_frontier(small(), frontier=FRONTIER)
    found = series(ax)
    assert np.allclose(
        found["achievable return retained"], [(7.0, 100.0), (3.0, 97.04)], rtol=1e-12
    )
    assert found["below the baseline"] == [(2.0, 0.0), (1.0, 0.0)]
    assert found["loss of the worst state"] == [(7.0, 0.0), (3.0, 0.5), (2.0, 1.5), (1.0, 2.0)]
    assert np.allclose(found["chosen"], [(3.0, 97.04)], rtol=1e-12)
    assert [y for _, y in found["requested"]] == [95.0, 95.0]
    assert "chosen: 3 clusters, at least 97.0% retained, loss at most 0.5" in texts(ax)
    assert "4 of 6 certified ranges evaluated" in ax.get_title()
    assert "of 7 states" in ax.get_title()
    assert ax.get_ylim()[0] == 0.0
    assert ax.get_xscale() == "linear"
    ax.figure.canvas.draw()


def test_frontier_marks_a_poor_choice_by_another_colour() -> None:
    colours = {}
    for tau in (0.8, 2.0):
        ax = plot_frontier(small(tau), frontier=FRONTIER)
        (star,) = (line for line in ax.lines if str(line.get_label()).startswith("chosen"))
        colours[tau] = star.get_color()
        assert np.asarray(star.get_ydata())[0] == pytest.approx(97.04 if tau == 0.8 else 0.0)
    assert colours == {0.8: plots.GREEN, 2.0: plots.ORANGE}
    assert "chosen: 2 clusters, below the baseline, loss at most 1.5" in texts(ax)
    for certificate in (small(None), small(0.5)):  # no threshold, and none that is certified
        assert "chosen" not in texts(plot_frontier(certificate, frontier=FRONTIER))


def test_frontier_is_logarithmic_where_it_is_wide() -> None:
    wide = Frontier((FrontierPoint(0.0, 1.0, 5_000, 0.0, 0.0, 1.0), POINTS[-1]), 2, has_end=True)
    ax = plot_frontier(small(), frontier=wide)
    assert ax.get_xscale() == "log"
    assert ax.get_xlim()[0] < 1.0 < 5_000.0 < ax.get_xlim()[1]
    assert "evaluated" not in ax.get_title()
    assert ax.get_xlabel() == "clusters (terminal state not counted)"
    ax.figure.canvas.draw()


TINY = FrontierPoint(0.0, np.inf, 1, 1e-304, 1e-304, 1.0)


@pytest.mark.parametrize("points", [(), POINTS[:1], POINTS[-1:], POINTS[2:], (TINY,)])
def test_frontiers_of_few_points_are_drawn(points: tuple[FrontierPoint, ...]) -> None:
    ax = plot_frontier(small(), frontier=Frontier(points, max(len(points), 1)))
    ax.figure.canvas.draw()
    assert (ax.texts[0].get_text() == "no clustering was evaluated") if not points else True


def test_frontier_of_a_model_is_its_own() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    certificate = certify(mdp, 0.9)
    value = certificate.value
    assert value is not None
    traced = certificate.frontier(mdp)
    ax = plot_frontier(certificate, mdp=mdp)
    losses = series(ax)["loss of the worst state"]
    assert losses == [(point.n_clusters, point.loss) for point in traced.points]
    share = value.solver
    said = f"{share_text(share.kept)} retained, loss at most {amount_text(share.loss)}"
    chosen = f"chosen: {certificate.n_clusters} clusters (plus the terminal state)"
    assert f"{chosen}, {said}" in texts(ax)
    assert ax.get_title().startswith("Proven for any agent that solves the small environment")
    assert "of 16 states" in ax.get_title()
    read = dataclasses.replace(certificate, model=None)
    plt.close("all")
    with pytest.raises(InvalidArgumentError, match="give mdp"):
        plot_frontier(read)
    assert plt.get_fignums() == []
    assert texts(plot_frontier(read, mdp=mdp)) == texts(ax)


def test_ticks_of_few_clusters_are_whole() -> None:
    """A frontier of one clustering had the ticks 0, 1, 1, 1, ..., 2."""
    only_one = Frontier((FrontierPoint(0.0, 1.0, 1, 2.0, 0.0, 0.99),), 1)
    ax = plot_frontier(small(None), frontier=only_one)
    ax.figure.canvas.draw()
    assert [x.get_text() for x in ax.get_xticklabels() if 0.5 <= x.get_position()[0] <= 1.5] == [
        "1"
    ]


# -- overviews ---------------------------------------------------------------------------------


def test_an_overview_shows_what_fits() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    certificate = certify(mdp, 0.9)
    axes = certificate.plot()
    assert list(axes) == ["map", "profile", "frontier"]
    assert plt.get_fignums() == [1]
    assert len({ax.figure for ax in axes.values()}) == 1
    for name, ax in axes.items():
        alone = getattr(certificate, f"plot_{name}")()
        assert alone.get_title() == ax.get_title()
        assert set(texts(ax)) == set(texts(alone))
    axes["map"].figure.canvas.draw()
    stored = dataclasses.replace(certificate, model=None)
    assert list(stored.plot(mdp)) == ["map", "profile", "frontier"]
    assert list(stored.plot()) == ["profile", "dendrogram"]
    with pytest.raises(InvalidArgumentError, match="another model"):
        stored.plot(sparse_mdp(4, seed=0))
    with pytest.raises(InvalidArgumentError, match="give mdp"):
        stored.plot_map()
    # No grid, no map; and without a threshold there is nothing to colour.
    assert list(certify(sparse_mdp(5, seed=0), 0.9).plot()) == ["profile", "frontier"]
    plain = certificate._changed(tau=None, labels_lower=[], labels_upper=[], value=None)
    assert list(plain.plot()) == ["profile", "frontier"]


def test_an_overview_of_many_states_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.import_module("bisim_abstract._certificate.frontier"), "MAX_VALUED", 4
    )
    assert list(certify(sparse_mdp(5, seed=0), 0.9).plot()) == ["profile"]


# -- colours -----------------------------------------------------------------------------------


def page_colours(ground: str) -> dict[str, str]:
    """The variables that a report's page gets, on a light or on a dark ground."""
    light, _, dark = _palette.style_sheet().partition("@media (prefers-color-scheme: dark)")
    return dict(re.findall(r"--(\w+): (#\w+);", light if ground == "light" else dark))


def test_pictures_and_the_page_mean_the_same_by_a_colour() -> None:
    """The upper arm was orange in one and blue in the other, the lower arm the reverse."""
    page = page_colours("light")
    arms = {str(line.get_label()): line.get_color() for line in plot_profile(small()).lines}
    assert arms["upper arm"] == page["upper"]
    assert arms["lower arm"] == page["lower"]
    ax = plot_frontier(small(), frontier=FRONTIER)
    twin = next(other for other in ax.figure.axes if other is not ax)
    assert ax.yaxis.label.get_color() == ax.lines[0].get_color() == page["kept"]
    assert twin.yaxis.label.get_color() == twin.lines[0].get_color() == page["lost"]
    assert set(page) == set(page_colours("dark"))
    assert len({page[name] for name in ("upper", "lower", "merge")}) == 3


def test_the_page_takes_its_colours_from_there() -> None:
    folder = Path(plots.__file__).parent / "page"
    style = (folder / "report.css").read_text(encoding="utf-8")
    for name in page_colours("light"):
        assert f"var(--{name})" in style
        assert f"--{name}:" not in style
    for selector, name in ((r"svg \.upper", "upper"), (r"svg \.lower", "lower")):
        (rule,) = re.findall(selector + r" \{([^}]*)\}", style)
        assert f"stroke: var(--{name})" in rule


# -- embeddings, curves, losses ----------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_embedding_draws_every_point(dim: int) -> None:
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(30, dim)), np.repeat([7, 3, 5], 10)
    ax = plot_embedding(points, labels)
    scatter = only(ax, PathCollection)
    drawn = np.asarray(scatter.get_offsets())
    assert drawn.shape == (30, 2)
    if dim == 2:
        assert np.array_equal(drawn, points)
    colours = {(int(k), tuple(c)) for k, c in zip(labels, scatter.get_facecolors(), strict=True)}
    assert len(colours) == len({c for _, c in colours}) == 3
    assert ax.get_title() == "30 states in 3 clusters"


class Taught:
    """Places states on a line, and knows how many there are."""

    n_states = 6

    def encode(self, states: Any, /) -> Any:
        return np.asarray(states, dtype=np.float64)[:, None] * [1.0, 2.0]


def test_embedding_takes_an_encoder_and_needs_no_labels() -> None:
    ax = plot_embedding(Taught())
    drawn = np.asarray(only(ax, PathCollection).get_offsets())
    assert drawn.tolist() == [[k, 2.0 * k] for k in range(6)]
    assert ax.get_title() == "6 states"
    assert len({tuple(c) for c in only(ax, PathCollection).get_facecolors()}) == 1
    # An encoder may know of one state more, the end, than there are labels.
    ax = plot_embedding(Taught(), [0, 0, 1, 1, 1])
    assert ax.get_title() == "5 states in 2 clusters"
    assert plot_embedding(np.eye(3)).get_title() == "3 states"


class Vectors:
    """Takes observations: how many there are, nobody knows."""

    n_states = None

    def encode(self, states: Any, /) -> Any:
        return np.asarray(states)


@pytest.mark.parametrize("points", [Vectors(), "text", {"a": 1}, [[1.0], [1.0, 2.0]]])
def test_what_cannot_be_drawn_is_refused_in_a_sentence(points: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="points must"):
        plot_embedding(points)
    assert plt.get_fignums() == []


def test_curves_are_medians_and_ranges() -> None:
    scores = np.array([[0.0, 0.5, 1.0], [0.1, 0.4, 0.9], [0.4, 0.9, 0.8]])
    ax = plot_curves([Curve("one", (1, 2, 3), scores), Curve("two", (1, 3), scores[:1, :2])])
    assert np.array_equal(np.asarray(ax.lines[0].get_ydata()), [0.1, 0.5, 0.9])
    band = ax.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1, band.y0, band.y1) == (1.0, 3.0, 0.0, 1.0)
    assert "1 to 3 seeds" in ax.get_legend().get_title().get_text()  # type: ignore[union-attr]
    assert len(ax.lines) == 2
    marked = plot_curves([Curve("one", (1, 2, 3), scores)], level=0.95)
    assert list(np.asarray(marked.lines[-1].get_ydata())) == [0.95, 0.95]


def test_losses_are_bars() -> None:
    rows = [
        AbstractionLoss("mine", 5, loss(0.25), is_certified=True, bound=2.0),
        AbstractionLoss("theirs", 1, loss(3.0)),
    ]
    ax = plot_losses(rows)
    assert [bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)] == [0.25, 3.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "mine\n5 clusters",
        "theirs\n1 cluster",
    ]
    assert [text.get_text() for text in ax.texts] == ["0.25 (proven: at most 2)", "3"]
    certified, other = (patch.get_facecolor() for patch in ax.patches)
    assert certified != other
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first is on top


def loss(sup: float) -> ValueLoss:
    return ValueLoss(sup, sup, sup, 0.0, 0.0, 0.0, 1.0)


# -- all of them -------------------------------------------------------------------------------

DRAW: dict[str, Callable[[Axes | None], Axes]] = {
    "profile": lambda ax: plot_profile(small(), ax=ax),
    "widths": lambda ax: plot_widths(small(), ax=ax),
    "dendrogram": lambda ax: plot_dendrogram(small(), ax=ax),
    "map": lambda ax: plot_map(small(), GRID, ax=ax),
    "frontier": lambda ax: plot_frontier(small(), frontier=FRONTIER, ax=ax),
    "embedding": lambda ax: plot_embedding(np.eye(3), [0, 0, 1], ax=ax),
    "curves": lambda ax: plot_curves([Curve("one", (1,), np.ones((1, 1)))], level=0.9, ax=ax),
    "losses": lambda ax: plot_losses([AbstractionLoss("none", 1, loss(0.0))], ax=ax),
}
every = pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)


@every
def test_axes_given_are_used(draw: Callable[[Axes | None], Axes]) -> None:
    ax = Figure().subplots()
    assert draw(ax) is ax
    assert plt.get_fignums() == []


@every
def test_nothing_is_set_globally(draw: Callable[[Axes | None], Axes]) -> None:
    settings, backend = dict(matplotlib.rcParams), matplotlib.get_backend()
    ax = draw(None)
    assert dict(matplotlib.rcParams) == settings
    assert matplotlib.get_backend() == backend
    assert len(plt.get_fignums()) == 1
    ax.figure.canvas.draw()  # warnings, of layouts for instance, are errors


@every
def test_without_matplotlib_the_extra_is_named(
    draw: Callable[[Axes | None], Axes], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(f"No module named {name!r}")
        return load(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingDependency, match=r"-e '\.\[plots\]'"):
        draw(None)


def test_methods_draw_the_same() -> None:
    certificate = small()
    for own, other in (
        (certificate.plot_profile(), plot_profile(certificate)),
        (certificate.plot_widths(sample=5, seed=1), plot_widths(certificate, sample=5, seed=1)),
        (certificate.plot_dendrogram(max_leaves=3), plot_dendrogram(certificate, max_leaves=3)),
        (
            certificate.plot_map(GRID, tau=0.5, arm="lower"),
            plot_map(certificate, GRID, tau=0.5, arm="lower"),
        ),
    ):
        assert texts(own) == texts(other)
        assert len(own.get_children()) == len(other.get_children())


@grid(
    make=[
        lambda tau: by_hand(1, {}, tau=tau),
        lambda tau: by_hand(2, {}, tau=tau),
        lambda tau: by_hand(2, {(0, 1): (0.0, 0.0)}, tau=tau),
        lambda tau: by_hand(2, {(0, 1): (0.0, 1.0)}, tau=tau),
        lambda tau: by_hand(3, {(0, 1): (1e-300, 1e-300), (1, 2): (5.0, 9.0)}, tau=tau),
        lambda tau: by_hand(3, {(0, 1): (1e8, 1e8)}, tau=tau, high=1e9),
    ],
    tau=[None, 0.0, 0.5, 1e9],
)
def test_odd_certificates_are_drawn(
    make: Callable[[float | None], Certificate], tau: float | None
) -> None:
    certificate = make(tau)
    n = certificate.n_states
    places = StateMap(np.arange(float(n)), np.zeros(n), True, "A row.")
    for ax in (
        plot_profile(certificate),
        plot_widths(certificate),
        plot_dendrogram(certificate),
        plot_map(certificate, places, tau=0.5),
    ):
        ax.figure.canvas.draw()
        plt.close("all")


def test_importing_draws_in_nothing() -> None:
    code = "import sys, bisim_abstract._app.plots; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot_map(small(None), GRID), "tau must be given"),
        (lambda: plot_map(small(), GRID, tau=-1.0), "tau must be at least 0"),
        (lambda: plot_map(small(), GRID, tau=float("nan")), "tau must be finite"),
        (lambda: plot_map(small(), GRID, arm="both"), "arm must be one of"),
        (
            lambda: plot_map(random_chain(9), GRID),
            r"places\.x must have a finite value or NaN for each of 9 states",
        ),
        (lambda: plot_map(small(), "GRID"), "places must be a StateMap"),  # type: ignore[arg-type]
        (lambda: plot_dendrogram(small(), max_leaves=0), "max_leaves must be at least 1"),
        (lambda: plot_widths(small(), sample=0), "sample must be at least 1"),
        (lambda: plot_widths(small(), seed=-1), "seed must be at least 0"),
        (lambda: plot_embedding(np.eye(3), [0, 1]), "labels must have one entry per point, 3"),
        (lambda: plot_embedding([1.0, 2.0], [0, 1]), "points must be finite and of shape"),
        (lambda: plot_embedding([[np.nan, 2.0]], [0]), "points must be finite and of shape"),
        (lambda: plot_curves([]), "curves must hold at least one"),
        (lambda: plot_curves([Curve("x", (1, 2), np.ones((3, 1)))]), "scores of 'x' must have"),
        (lambda: plot_losses([]), "comparison must hold at least one"),
    ],
)
def test_errors_name_the_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call()
    assert plt.get_fignums() == []  # no empty figure is left behind


def test_the_small_model_is_a_graph() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    certificate = certify(mdp, 0.9)
    ax = certificate.plot_graph(mdp)
    texts = {text.get_text() for text in ax.texts}
    assert {"0", "end"} <= texts
    assert f"{certificate.n_clusters} clusters (plus the terminal state)" in ax.get_title()
    many = random_mdp(80, seed=0)
    with pytest.raises(InvalidArgumentError, match="60 at most"):
        certify(many, 0.9, tau=0.0).plot_graph(many)
    plt.close("all")
