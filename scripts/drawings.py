"""The drawings of the documentation, made anew: `python scripts/drawings.py [DIR]`.

Each is an SVG whose colours are those of `bisim_abstract._app.palette`, light or dark as the page
around it is. What they show is computed here, from small models; nothing is drawn by hand that
could be computed.
"""

from __future__ import annotations

import argparse
import colorsys
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from bisim_abstract import abstract_env, bisimulation_metric, value_iteration
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app.palette import LOWER, MERGE, UPPER, Shades
from bisim_abstract.parts import build_blocks, single_build, value_bracket
from bisim_abstract.wrappers import RoomsGridEnv

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Circle, Ellipse, FancyArrowPatch, Rectangle

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
INK = Shades("#263238", "#E4E7EC")  # letters and lines
SOFT = Shades("#60717B", "#9AA7B5")  # what is beside the point
FAINT = Shades("#E3E8EB", "#39414F")  # areas
SHADES = {"ink": INK, "soft": SOFT, "faint": FAINT, "upper": UPPER, "lower": LOWER, "merge": MERGE}
FONT = 10.5  # points; a drawing is at most 350 pixels wide on a telephone
STYLE: Any = {
    "axes.edgecolor": SOFT.light,
    "axes.labelcolor": INK.light,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": FONT,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "bisim_abstract",
    "text.color": INK.light,
    "xtick.color": SOFT.light,
    "xtick.labelcolor": INK.light,
    "ytick.color": SOFT.light,
    "ytick.labelcolor": INK.light,
}
ARROWS = {0: (0, -1), 1: (1, 0), 2: (0, 1), 3: (-1, 0)}  # RoomsGrid: up, right, down, left


def page(figure: Any, title: str) -> str:
    """The figure as SVG, its colours as variables that follow the ground."""
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    text = target.getvalue()
    light, dark = (
        " ".join(f"--{name}: {shades[k]};" for name, shades in SHADES.items()) for k in (0, 1)
    )
    rules = f":root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    for name, shades in SHADES.items():
        text = text.replace(f": {shades.light.lower()}", f": var(--{name})")
    head, _, rest = text.partition("<defs>")
    return f"{head}<title>{title}</title>\n <defs>\n  <style>{rules}</style>{rest}"


def arrow(ax: Any, start: tuple[float, float], end: tuple[float, float], **options: Any) -> None:
    """A line with a head, from here to there."""
    shape = {"arrowstyle": "-|>", "mutation_scale": 13, "linewidth": 1.5, "color": INK.light}
    ax.add_patch(FancyArrowPatch(start, end, **{**shape, "shrinkA": 0, "shrinkB": 0, **options}))


def colours(count: int, seed: int = 3) -> np.ndarray:
    """So many colours of middling lightness, neighbours apart; (count, 3)."""
    hues = np.random.default_rng(seed).permutation(count) / count
    lights = 0.52 + 0.1 * (np.arange(count) % 3 - 1)
    return np.array([colorsys.hls_to_rgb(h, x, 0.45) for h, x in zip(hues, lights, strict=True)])


def before_after() -> str:
    """2,500 states, and the 25 that are left of them, with what that is proven to be worth."""
    env = RoomsGridEnv()
    small = abstract_env(env, gamma=0.9)
    labels, value = small.certificate.labels, small.certificate.value
    assert value is not None
    side, rooms, size = 50, 5, 10
    tints = colours(small.certificate.n_clusters)
    paid = env.to_mdp().rewards.mean(axis=1)
    shade = np.zeros(paid.size)
    for label in range(labels.max() + 1):
        inside = labels == label
        spread = paid[inside] - paid[inside].mean()
        shade[inside] = spread / np.abs(spread).max()
    cells = np.clip(tints[labels] + 0.28 * shade[:, None], 0.0, 1.0).reshape(side, side, 3)

    figure = plt.figure(figsize=(5.6, 3.25))
    left = figure.add_axes((0.01, 0.19, 0.41, 0.71))
    right = figure.add_axes((0.58, 0.19, 0.41, 0.71))
    left.imshow(cells, interpolation="nearest")
    right.imshow(tints[labels].reshape(side, side, 3), interpolation="nearest")
    for row in range(rooms):
        for column in range(rooms):
            state = (row * size + size // 2) * side + column * size + size // 2
            x, y = ARROWS[int(value.policy[labels[state]])]
            middle = (column * size + size / 2 - 0.5, row * size + size / 2 - 0.5)
            arrow(
                right,
                (middle[0] - 2.8 * x, middle[1] - 2.8 * y),
                (middle[0] + 2.8 * x, middle[1] + 2.8 * y),
                color="white",
                mutation_scale=9,
            )
    for ax in (left, right):
        ax.set_axis_off()
    n = labels.size
    left.set_title(f"{n:,} states", fontsize=FONT + 2)
    right.set_title(f"{small.certificate.n_clusters} clusters", fontsize=FONT + 2)
    between = figure.add_axes((0.42, 0.19, 0.16, 0.71))
    between.set(xlim=(0, 1), ylim=(0, 1))
    between.set_axis_off()
    arrow(between, (0.16, 0.5), (0.86, 0.5), linewidth=2.5, mutation_scale=22)
    between.text(0.5, 0.6, "proven", ha="center")
    figure.text(0.215, 0.105, "no two exactly alike", ha="center")
    share = share_text(value.solver.kept)
    figure.text(0.785, 0.105, f"solvers retain {share},", ha="center")
    lost = amount_text(value.solver.loss)
    figure.text(0.785, 0.03, f"no state loses more than {lost}", ha="center")
    return page(figure, "A grid of 2,500 states becomes 25 clusters with a proof")


def sandwich(sweeps: int) -> str:
    """Both arms around the metric, pair by pair, and what a threshold finds decided."""
    mdp = RoomsGridEnv(side=4, room_size=2, noise=0.05).to_mdp()
    first, second = np.triu_indices(mdp.n_states, 1)
    truth = bisimulation_metric(mdp, 0.9).bounds(first, second)[1]
    arms = single_build(mdp, 0.9, neighbours=mdp.n_states - 1, sweeps=sweeps, upper_start="reward")
    lower, upper = arms.bounds(first, second)
    order = np.argsort(truth)
    truth, lower, upper = truth[order], lower[order], upper[order]
    tau = 2.0
    is_open = (lower <= tau) & (upper > tau)
    x = np.arange(truth.size)
    figure, ax = plt.subplots(figsize=(4.6, 3.1), layout="constrained")
    ax.fill_between(x, lower, upper, step="mid", color=FAINT.light, linewidth=0)
    if is_open.any():
        ax.vlines(x[is_open], lower[is_open], upper[is_open], color=MERGE.light, linewidth=1.1)
    ax.step(x, upper, where="mid", color=UPPER.light, linewidth=2, label="upper arm")
    ax.plot(x, truth, color=INK.light, linewidth=1.3, linestyle=":", label="metric")
    ax.step(x, lower, where="mid", color=LOWER.light, linewidth=2, label="lower arm")
    ax.axhline(tau, color=INK.light, linewidth=1.2, linestyle="--")
    ax.text(x[-1], tau + 0.12, "threshold τ", ha="right")
    count = int(is_open.sum())
    found = f"{count} of {x.size} pairs open" if count else "every pair is decided"
    ax.set(xlabel="pairs of states, closest first", ylabel="distance", ylim=(0, 9.4))
    ax.set_title(f"after {sweeps} sweeps: {found}", fontsize=FONT + 1)
    ax.set_xticks([])
    ax.legend(loc="upper left" if count else "center right", fontsize=FONT - 1)
    return page(figure, f"The two arms around the metric after {sweeps} sweeps")


def block_pairs() -> str:
    """Two blocks: one pair of bounds for all pairs of their members."""
    figure = plt.figure(figsize=(4.6, 2.7))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 10), ylim=(0, 5.87))
    ax.set_axis_off()
    rng = np.random.default_rng(4)
    places = []
    for x, name, count in ((2.1, "C", 6), (7.9, "C′", 5)):
        ax.add_patch(Ellipse((x, 3.1), 3.5, 3.4, facecolor=FAINT.light, edgecolor=SOFT.light))
        ax.text(x, 5.1, f"block {name}", ha="center")
        angle = np.arange(count) * 2 * np.pi / count + rng.uniform()
        points = np.stack((x + 1.1 * np.cos(angle), 3.1 + 1.0 * np.sin(angle)), axis=1)
        places.append(points)
        for point in points:
            ax.add_patch(Circle(tuple(point), 0.13, color=INK.light))
    for here in places[0]:
        for there in places[1]:
            ax.plot(*zip(here, there, strict=True), color=SOFT.light, linewidth=0.4, alpha=0.6)
    ax.text(5, 5.1, "30 pairs (x, y)", ha="center", color=SOFT.light, fontsize=FONT - 1)
    ax.text(5, 0.75, "ℓ(C, C′)  ≤  d(x, y)  ≤  u(C, C′)", ha="center", fontsize=FONT + 2)
    ax.text(4.92, 0.15, "one lower and one upper bound for all", ha="center", color=SOFT.light)
    return page(figure, "Bounds on two blocks hold for all pairs of their members")


def block_rows() -> str:
    """What is kept of a block: the centre of its members' rows, and how far they stray."""
    env = RoomsGridEnv(side=8, room_size=4, noise=0.1)
    mdp = env.to_mdp()
    block, action = 0, 1
    blocks = build_blocks(mdp, env.rooms)
    n, k = mdp.n_actions, blocks.n_blocks
    begin, end = blocks.indptr[block * n + action : block * n + action + 2]
    centre = np.zeros(k)
    centre[blocks.indices[begin:end]] = blocks.normalised_probs[begin:end]
    lifted = mdp.kernel()[np.flatnonzero(env.rooms == block) * n + action].toarray()
    rows = np.stack([np.bincount(env.rooms, weights=row, minlength=k) for row in lifted])
    radius = float(blocks.radius[block, action])
    figure, ax = plt.subplots(figsize=(4.6, 2.7), layout="constrained")
    ax.bar(np.arange(k), centre, width=0.72, color=FAINT.light, edgecolor=SOFT.light)
    offset = np.linspace(-0.28, 0.28, rows.shape[0])
    for j in range(k):
        dots: Any = {"color": UPPER.light, "markersize": 3.5, "linestyle": "none", "marker": "o"}
        ax.plot(j + offset, rows[:, j], label="members" if j == 0 else None, **dots)
    ax.plot([], [], color=SOFT.light, linewidth=6, alpha=0.4, label="centre")
    ax.set_xticks(np.arange(k), [f"to {chr(65 + j)}" for j in range(k)])
    ax.set(ylabel="probability", ylim=(0, 1))
    ax.set_title(f"block A, action right: radius {radius:.2f}", fontsize=FONT + 1)
    ax.legend(fontsize=FONT - 1)
    return page(figure, "Where the members of a block lead, and the centre of their rows")


def value_brackets() -> str:
    """What clusters prove by themselves about values, beside the values of their members."""
    env = RoomsGridEnv(side=20, room_size=5, noise=0.05)
    mdp = env.to_mdp()
    bracket = value_bracket(mdp, env.rooms, 0.9)
    best = value_iteration(mdp, 0.9).upper
    order = np.argsort(bracket.upper)
    figure, ax = plt.subplots(figsize=(5.2, 3.0), layout="constrained")
    for x, cluster in enumerate(order):
        values = best[env.rooms == cluster]
        low, high = bracket.lower[cluster], bracket.upper[cluster]
        ax.add_patch(Rectangle((x - 0.34, low), 0.68, high - low, color=FAINT.light))
        for y, shades in ((high, UPPER), (low, LOWER)):
            ax.plot([x - 0.36, x + 0.36], [y, y], color=shades.light, linewidth=2.2)
        spread = np.linspace(-0.24, 0.24, values.size)
        ax.plot(x + spread, values, color=INK.light, linestyle="none", marker=".", markersize=2.2)
    ax.plot([], [], color=UPPER.light, linewidth=2.2, label="no policy is worth more")
    ax.plot([], [], color=INK.light, linestyle="none", marker=".", label="optimal value of a state")
    ax.plot([], [], color=LOWER.light, linewidth=2.2, label="the policy is worth at least")
    ax.set(xlabel="16 clusters of 25 states", ylabel="value", xlim=(-0.7, 15.7))
    ax.set_xticks([])
    ax.legend(loc="lower right", fontsize=FONT - 1)
    return page(figure, "Value brackets of sixteen clusters")


def matching_actions() -> str:
    """Two ends of a corridor whose actions correspond crosswise."""
    figure = plt.figure(figsize=(4.8, 3.1))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 10), ylim=(0, 6.46))
    ax.set_axis_off()
    for k in range(5):
        is_goal = k == 2
        ax.add_patch(
            Rectangle(
                (0.5 + 1.8 * k, 4.5), 1.8, 1.5, facecolor="none" if is_goal else FAINT.light,
                edgecolor=SOFT.light,
            )
        )  # fmt: skip
    ax.text(5.0, 5.25, "goal", ha="center", va="center")
    for k, name in ((1, "s"), (3, "t")):
        ax.text(1.4 + 1.8 * k, 5.25, name, ha="center", va="center", fontsize=FONT + 4)
    heights = (3.3, 2.1)
    for x, name in ((3.2, "s"), (6.8, "t")):
        side = -1 if name == "s" else 1
        for y, word in zip(heights, ("left", "right"), strict=True):
            ax.add_patch(Circle((x, y), 0.16, color=INK.light))
            place = "right" if side < 0 else "left"
            is_towards = (name == "s") == (word == "right")
            tail = " (to the goal)" if is_towards else ""
            ax.text(x + 0.35 * side, y, f"{word}{tail}", ha=place, va="center", fontsize=FONT - 0.5)
    for here, there, shades in ((0, 1, UPPER), (1, 0, LOWER)):
        ax.plot((3.36, 6.64), (heights[here], heights[there]), color=shades.light, linewidth=2.4)
    for y in heights:
        ax.plot((3.36, 6.64), (y, y), color=SOFT.light, linewidth=1.2, linestyle=":")
    ax.plot((1.2, 2.0), (1.15, 1.15), color=SOFT.light, linewidth=1.2, linestyle=":")
    ax.text(2.2, 1.15, "by name (plain): s and t are apart", va="center")
    for x, shades in ((1.2, UPPER), (1.62, LOWER)):
        ax.plot((x, x + 0.38), (0.5, 0.5), color=shades.light, linewidth=2.4)
    ax.text(2.2, 0.5, "by what they do (lax): distance 0", va="center")
    return page(figure, "Left at one end of a corridor corresponds to right at the other")


DRAWINGS: dict[str, Callable[[], str]] = {
    "before-after": before_after,
    "sandwich-open": lambda: sandwich(6),
    "sandwich-closed": lambda: sandwich(30),
    "block-pairs": block_pairs,
    "block-rows": block_rows,
    "value-brackets": value_brackets,
    "matching-actions": matching_actions,
}


def main() -> None:
    """Draw all of them, into docs/images unless told otherwise."""
    parser = argparse.ArgumentParser(description="The drawings of the documentation.")
    parser.add_argument("target", type=Path, nargs="?", default=IMAGES, help="where they go")
    target: Path = parser.parse_args().target
    target.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, draw in DRAWINGS.items():
            (target / f"{name}.svg").write_text(draw(), encoding="utf-8")
    print(f"{len(DRAWINGS)} drawings in {target}")


if __name__ == "__main__":
    main()
