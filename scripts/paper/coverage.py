"""Budget-matched random coverage against what an index retrieves.

The paper replaces the retrieved pairs of its audit by as many random ones. The coverage gap stays
much the same (ratio 1.04), and the upper arm over retrieved pairs has a mean error over all pairs
of 0.21 where random coverage has 0.54.

Left open: what "budget" counts, which arm the 0.54 belongs to, and at which constant the upper arm
starts. Here a budget is a number of unordered pairs. All combinations are measured: retrieved and
random pairs, the lower arm from 0 and from d_R, and the upper arm from U = L/(1 - gamma) and from
the exact diameter (which only an oracle knows).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paper import grid
from paper.engine import Claim, Near, Options, Result, Row, Rows, Theorem
from paper.grid import Pairs, Run, World
from paper.inside import Arms

RHO_RATIO, RANDOM, RETRIEVED, IMPROVEMENT = 1.04, 0.54, 0.21, 2.5  # published
ARMS = ("lower, from 0", "lower, from d_R", "upper, from U", "upper, from the diameter")
FITTING = {"random": (0, RANDOM), "retrieved": (3, RETRIEVED)}  # which arms these figures fit
PICKS = ("retrieved", "random")

# fmt: off
CLAIMS = (
    Theorem("All arms stay on their side of the metric, whatever the pairs", "proved", "encloses"),
    Theorem("Errors equal their coverage gaps, whatever the pairs", "proved", "identity"),
    Near("Ratio of rho, retrieved to random", RHO_RATIO, "rho ratio", "random models"),
    Near("Mean error of random pairs (lower arm from 0)", RANDOM, "random low", "random models"),
    Near("Mean error of retrieved pairs (upper arm from the exact diameter)", RETRIEVED, "near",
        "random models; from U = L/(1 - gamma) it is {far:.2g}"),
    Near("Improvement if both the pairs and the arm are changed", IMPROVEMENT, "both changed",
        "random models"),
    Near("Improvement by retrieval alone, same upper arm from the diameter", IMPROVEMENT,
        "pairs changed",
        "the published factor fits a comparison of random pairs under the lower arm with "
        "retrieved ones under the upper; most of it is the change of arm (from U the factor is "
        "{beyond:.2f})"),
    Claim("Retrieved pairs are nearer than random ones (mean exact distance)", "nearer",
        "is nearer", "too few runs", shown="{distances[0]:.3g} against {distances[1]:.3g}"),
    Claim("Retrieval with the upper arm is better than random coverage under any freeze",
        "strictly", "is best",
        "better under the same arm, but random pairs under the lower arm from d_R have a smaller "
        "mean error on these models",
        shown="{near:.3g} against {random_near:.3g} (upper, diameter) and {reward:.3g} (lower, "
        "d_R)"),
)
# fmt: on
CHOICES = """
- Random coverage draws as many different pairs as the index covers, uniformly.
- Errors are means over all pairs, then over runs.
- An upper arm that starts from the exact diameter is not available at run time: it is here because
  the published 0.21 is out of reach of any arm that starts from U.
"""


def run(options: Options) -> Result:
    """Both choices of pairs on the grid of the audit."""
    result = Result("coverage", "Random coverage against retrieval", options)
    compared = Rows(compare(x) for x in grid.grid(options))
    title = "Mean error over all pairs; published figures beside what they fit"
    result.add_table("coverage_errors", title, [error_row(compared, k) for k in range(len(ARMS))])
    title = "Coverage gaps of retrieved and random pairs, and how far covered pairs are apart"
    rows = [gap_row(key, of.means()) for key, of in compared.by("row").items()]
    result.add_table("coverage_gaps", title, rows)
    result.judge(CLAIMS, figures_of(compared))
    result.choose(CHOICES)
    draw(result, compared)
    return result


def compare(run: Run) -> Row:
    """Sweep all arms over retrieved and over random pairs: gaps, distances, mean errors."""
    s, t = grid.all_pairs(run.world.n)
    rng = np.random.default_rng([run.key, 9])
    drawn = np.sort(rng.choice(s.size, size=run.pairs[0].size, replace=False))
    row: Row = {"row": run.configuration, "pairs": drawn.size, "encloses": True, "identity": True}
    for pick, pairs in zip(PICKS, (run.pairs, (s[drawn], t[drawn])), strict=True):
        found = examine(run.world, pairs)
        row["encloses"] &= found.pop("encloses")
        row["identity"] &= found.pop("identity")
        row |= {f"{pick} {name}": value for name, value in found.items()}
    return row


def examine(world: World, pairs: Pairs) -> Row:
    """All four arms over some pairs, at their fixed points."""
    s, t = grid.all_pairs(world.n)
    fixed = [
        swept(grid.make_arms(world, pairs)),
        swept(grid.make_arms(world, pairs, lower_start="reward"), upper=False),
        swept(from_diameter(world, pairs), lower=False),
    ]
    (zero, upper), (reward, _), (_, near) = found = [x.bounds(s, t) for x in fixed]
    rho, rho_reward = (grid.coverage_gap(world, pairs, x) for x in ("zero", "reward"))
    tol = grid.tolerance(world, fixed[0])
    gaps = ((zero, rho), (reward, rho_reward), (upper, grid.upper_gap(world, pairs)))
    errors = [float(np.abs(x - world.truth[s, t]).mean()) for x in (zero, reward, upper, near)]
    return {
        "rho": rho,
        "rho from d_R": rho_reward,
        "distance": float(world.truth[pairs].mean()),
        **dict(zip(ARMS, errors, strict=True)),
        "encloses": all(grid.encloses(world, *x) for x in found),
        "identity": all(abs(world.error(values) - gap) <= tol for values, gap in gaps),
    }


def swept(arms: Arms, *, lower: bool = True, upper: bool = True) -> Arms:
    """The same arms at their fixed points."""
    for _ in range(grid.SWEEPS):
        if max(arms.sweep(lower=lower, upper=upper)) == 0.0:
            break
    return arms


def from_diameter(world: World, pairs: Pairs) -> Arms:
    """Arms whose upper one starts from the exact diameter instead of U.

    That constant need not be a super-solution, but it bounds the metric, and so does the smaller
    of a bound and its backup.
    """
    arms = grid.make_arms(world, (pairs[0][:0], pairs[1][:0]))
    starts = replace(arms.starts, diameter=world.metric.diameter[1])
    arms.ground = replace(arms.ground, starts=starts)
    arms.cover(*pairs)
    return arms


def figures_of(compared: Rows) -> Row:
    """Ratio of gaps, and errors under every reading; theorems run by run."""
    means = compared.means()
    low, reward, far, near = ({x: means[f"{x} {arm}"] for x in PICKS} for arm in ARMS)
    distance, random_distance = (means[f"{x} distance"] for x in PICKS)
    return {
        "encloses": compared.column("encloses"),
        "identity": compared.column("identity"),
        "rho ratio": means["retrieved rho"] / means["random rho"],
        "random low": low["random"],
        "near": near["retrieved"],
        "random_near": near["random"],
        "far": far["retrieved"],
        "reward": reward["random"],
        "both changed": low["random"] / near["retrieved"],
        "pairs changed": near["random"] / near["retrieved"],
        "beyond": far["random"] / far["retrieved"],
        "distances": (distance, random_distance),
        "is nearer": distance < random_distance,
        "is best": near["retrieved"] < min(reward["random"], near["random"]),
    }


def error_row(compared: Rows, k: int) -> Row:
    """Mean errors of an arm under both choices of pairs."""
    retrieved, random = (compared.mean(f"{pick} {ARMS[k]}") for pick in PICKS)
    return {
        "arm": ARMS[k],
        "random pub.": RANDOM if k == FITTING["random"][0] else None,
        "random": random,
        "retrieved pub.": RETRIEVED if k == FITTING["retrieved"][0] else None,
        "retrieved": retrieved,
        "random / retrieved": random / retrieved,
    }


def gap_row(key: tuple[int, int, int], means: Row) -> Row:
    """Coverage gaps of both choices in one configuration."""
    return {
        **dict(zip(("|S|", "k'", "planes"), key, strict=True)),
        "pairs": means["pairs"],
        "rho retrieved": means["retrieved rho"],
        "rho random": means["random rho"],
        "ratio pub.": RHO_RATIO,
        "ratio": means["retrieved rho"] / means["random rho"],
        "ratio from d_R": means["retrieved rho from d_R"] / means["random rho from d_R"],
        "distance retrieved": means["retrieved distance"],
        "distance random": means["random distance"],
    }


def draw(result: Result, compared: Rows) -> None:
    """Mean errors of every arm, side by side."""
    x = np.arange(len(ARMS))
    with result.figure(
        "coverage_errors",
        ticks={k: arm.replace(", ", "\n") for k, arm in enumerate(ARMS)},
        legend={"fontsize": 8, "loc": "upper left"},
        grid={"axis": "y", "alpha": 0.3},
        ylabel="mean error over all pairs",
        ylim=(0, 1.15 * max(compared.mean(f"{p} {a}") for p in PICKS for a in ARMS)),
    ) as axes:
        for pick, colour, at in (("retrieved", "#2166ac", -0.2), ("random", "#bdbdbd", 0.2)):
            names = [f"{pick} {arm}" for arm in ARMS]
            heights, errors = list(map(compared.mean, names)), list(map(compared.interval, names))
            style = {"color": colour, "label": f"{pick} pairs", "capsize": 3}
            bars = axes.bar(x + at, heights, 0.38, yerr=errors, **style)
            axes.bar_label(bars, [f"{v:.2f}" for v in heights], fontsize=8, padding=2)
            place, value = FITTING[pick]
            label = "published, where it fits" if pick == "random" else None
            axes.plot(place + at, value, "D", mfc="white", color="black", zorder=3, label=label)
        axes.set_axisbelow(True)
