"""Coverage sweeps against MICo and DBC, on planted groups.

The paper: MICo and DBC are trained by their published objectives and clustered on their own
learned distances; "ours" retrieves pairs with the DBC-style representation, runs the exact
restricted operator on them, and clusters its upper arm; everything at matched compression.
|S| = 64 with eight groups, k' in {8, 16, 24, 32}, four seeds; |S| = 60 with six groups, k' in
{6, 10, 14, 20, 28, 40}, four seeds; 16 instances of |S| in {60, 120} at k' = 12. Ours reaches the
exact metric's loss once about half of the pairs are covered; MICo and DBC stay 22 to 33 times
above it.

It leaves open the generator, the training, and what matched compression means: here every
distance is cut by single linkage into as many clusters as there are groups (the learned ones by
average linkage too, which suits them better). Uncovered pairs read D, and where fewer links exist
than that needs, pairs at D are joined in the order of their states.

Why half: retrieval that knows nothing about groups covers each pair of a group with the same
probability, and a random graph on eight or ten states is almost surely connected from one half on.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from bisim_abstract._base.labels import (numbered)

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract.encoders import DBCEncoder, MICoEncoder, sample_transitions
from bisim_abstract.parts import single_build
from paper.common import (
    CLOSE,
    DIFFERENT,
    REPRODUCED,
    Claim,
    Options,
    Result,
    ResultTable,
    figure,
    judged,
    theorem,
)
from paper.planted import (
    GAMMA,
    GENERATOR,
    LOSS,
    SWEEPS,
    Checks,
    Truth,
    check_build,
    planted_mdp,
    small,
)
from paper.planted import truth_of as exact_truth

PUBLISHED: dict[int | str, Any] = {
    # budget: coverage, exact, ours, MICo, DBC
    64: {
        8: (0.25, 0.013, 0.056, 0.292, 0.426),
        16: (0.47, 0.013, 0.013, 0.292, 0.426),
        24: (0.65, 0.013, 0.013, 0.292, 0.426),
        32: (0.87, 0.013, 0.013, 0.292, 0.426),
    },
    60: {
        6: (0.13, 0.016, 1.14, 1.82, 0.93),
        10: (0.21, 0.016, 0.72, 1.82, 0.93),
        14: (0.29, 0.016, 0.81, 1.82, 0.93),
        20: (0.38, 0.016, 0.61, 1.82, 0.93),
        28: (0.54, 0.016, 0.016, 1.82, 0.93),
        40: (0.73, 0.016, 0.016, 1.82, 0.93),
    },
    "check": {60: (0.41, None, None), 120: (0.19, 0.026, 1.08)},
    "ratios": (22.0, 33.0),
}
INDEX = "LSH16"
BATCH = 64
TRANSITIONS = 20_000
CHECK_NEIGHBOURS = 12


@dataclass(frozen=True)
class Instance:
    """A model with both surrogates trained on it.

    Attributes:
        truth: The model and its metric.
        count: Number of clusters that all are cut into: that of the groups.
        points: DBC's points, for retrieval.
        losses: Of the exact metric, MICo and DBC at this compression.
        outside: Shares of pairs that MICo and DBC put below, and above, the exact metric.
        seconds: Of training.
    """

    truth: Truth
    count: int
    points: FloatArray
    losses: dict[str, float]
    outside: dict[str, tuple[float, float]]
    seconds: float


def run(options: Options) -> Result:
    """Both sweeps and the check of other sizes."""
    result = Result("surrogates", "Coverage sweeps against MICo and DBC")
    steps, seeds = (100, 1) if options.quick else (1_000, 4)
    base = options.seed
    checks: list[Checks] = []
    eight = [instance(64, 8, base + k, steps) for k in range(seeds)]
    six = [instance(60, 6, base + k, steps) for k in range(seeds)]
    for n, instances in ((64, eight), (60, six)):
        rows = sweep(n, instances, checks, options)
        result.tables.append(sweep_table(n, rows, len(instances)))
        sweep_claims(result, n, rows)
        draw(result, options, n, rows)
    more = [] if options.quick else [instance(60, 6, base + k, steps) for k in range(seeds, 8)]
    large = [] if options.quick else [instance(120, 12, base + k, steps) for k in range(8)]
    other_sizes(result, {60: six + more, 120: large}, checks, options)
    surrogate_claims(result, eight + six + more + large)
    runs = len(checks)
    result.claims += [
        theorem(
            "both arms enclose the metric on all pairs at every budget",
            sum(x.encloses for x in checks),
            runs,
            in_abstract=True,
        ),
        theorem(
            "the lower arm's error equals rho at every budget",
            sum(x.lower_identity for x in checks),
            runs,
        ),
        theorem(
            "the upper arm's error equals its gap on uncovered pairs",
            sum(x.upper_identity for x in checks),
            runs,
        ),
        theorem("refinement chain of the clusterings", sum(x.chain for x in checks), runs),
    ]
    result.choices += [
        GENERATOR,
        LOSS,
        (
            "Matched compression: single linkage of every distance, stopped at the number of "
            "groups; pairs that are not covered read D in ours."
        ),
        (
            f"DBC and MICo as published, in R^8, {steps:,} steps of {BATCH} x {BATCH} pairs on "
            f"{TRANSITIONS:,} uniformly sampled transitions; one encoder serves all budgets."
        ),
        f"Retrieval through an LSH index of {INDEX[3:]} planes over DBC's points.",
        (
            "The paper's coverages cannot be of one kind: at |S| = 60 it gives 41% for k' = 12 "
            "(which is |S|·k' over all pairs, every retrieval counted as a new pair) and 21% and "
            "29% for k' = 10 and 14. Ours are distinct pairs."
        ),
    ]
    return result


def instance(n: int, groups: int, seed: int, steps: int) -> Instance:
    """A model, its truth, and both surrogates."""
    from scipy.cluster.hierarchy import fcluster, linkage

    truth = exact_truth(*planted_mdp(n, groups, seed=seed))
    data = sample_transitions(truth.mdp, TRANSITIONS, seed=seed)
    begin = time.perf_counter()
    common: dict[str, Any] = {
        "dim": 8, "gamma": GAMMA, "steps": steps, "batch_size": BATCH, "seed": seed,
    }  # fmt: skip
    dbc, mico = DBCEncoder(**common).fit(data), MICoEncoder(**common).fit(data)
    seconds = time.perf_counter() - begin
    losses = {"exact": truth.loss(truth.linked_into(truth.above, groups))}
    outside = {}
    for name, encoder in (("MICo", mico), ("DBC", dbc)):
        learned = np.asarray(encoder.distance(truth.first, truth.second), np.float64)
        losses[name] = truth.loss(truth.linked_into(learned, groups))
        # Single linkage chains along noise; average linkage is kinder to learned distances.
        tree = linkage(learned, method="average")
        losses[f"{name}, average"] = truth.loss(numbered(fcluster(tree, groups, "maxclust")))
        below, above = float((learned < truth.below).mean()), float((learned > truth.above).mean())
        outside[name] = (below, above)
    points = np.asarray(dbc.encode(np.arange(n)), np.float64)
    return Instance(truth, groups, points, losses, outside, seconds)


def ours(one: Instance, budget: int, checks: list[Checks], seed: int) -> tuple[float, float]:
    """Coverage and loss of the upper arm at a budget."""
    truth = one.truth
    made = single_build(
        truth.mdp, GAMMA, neighbours=budget, embedding=one.points, index=INDEX, sweeps=SWEEPS,
        seed=seed,
    )  # fmt: skip
    checks.append(check_build(made, truth, truth.gap_threshold()))
    upper = made.bounds(truth.first, truth.second)[1]
    labels: IntArray = truth.linked_into(upper, one.count)
    return made.coverage, truth.loss(labels)


def sweep(
    n: int, instances: list[Instance], checks: list[Checks], options: Options
) -> list[tuple[Any, ...]]:
    """Rows by budget, published and measured."""
    rows = []
    for budget, published in PUBLISHED[n].items():
        found = np.array([ours(x, budget, checks, options.seed) for x in instances])
        own = {
            name: float(np.mean([x.losses[name] for x in instances]))
            for name in instances[0].losses
        }
        coverage, loss = found.mean(axis=0).tolist()
        rows.append(
            (
                budget, published[0], coverage, published[1], own["exact"], published[2], loss,
                published[3], own["MICo"], published[4], own["DBC"], own["MICo, average"],
                own["DBC, average"],
            )
        )  # fmt: skip
    return rows


def sweep_table(n: int, rows: list[tuple[Any, ...]], seeds: int) -> ResultTable:
    """The paper's table with our columns."""
    return ResultTable(
        f"surrogates_{n}",
        f"|S| = {n}: mean value loss at matched compression, {seeds} seed(s) per budget",
        (
            "k'", "paper pairs", "pairs", "paper exact", "exact", "paper ours", "ours",
            "paper MICo", "MICo", "paper DBC", "DBC", "MICo, average linkage",
            "DBC, average linkage",
        ),
        rows,
    )  # fmt: skip


def sweep_claims(result: Result, n: int, rows: list[tuple[Any, ...]]) -> None:
    """Where ours reaches the skyline, and by how much the surrogates miss it."""
    is_main = n == 64
    scale = "training, index and generator are not published"
    skyline = rows[0][4]
    reached = [x for x in rows if abs(x[6] - skyline) <= 0.005]
    # From there on, not once by luck: the first budget after which none is above.
    first = next((k for k in range(len(rows)) if all(x in reached for x in rows[k:])), None)
    published = 0.47 if is_main else 0.535
    at = rows[first][2] if first is not None else None
    before = rows[first - 1][2] if first else 0.0
    shown = (
        "never"
        if at is None
        else f"between {before:.0%} and {at:.0%} of the pairs (k' = {rows[first or 0][0]})"
    )
    is_half = at is not None and before <= 0.6 and at >= 0.4
    result.claims.append(
        Claim(
            f"|S| = {n}: ours reaches the exact metric's loss at about half of the pairs",
            f"{published:.0%} of the pairs",
            shown,
            REPRODUCED if is_half else CLOSE if at is not None else DIFFERENT,
            "" if is_half else scale,
            in_abstract=is_main,
        )
    )
    result.claims += [
        small(f"|S| = {n}: loss of the exact metric", rows[0][3], skyline),
        judged(f"|S| = {n}: loss of ours at k' = {rows[0][0]}", rows[0][5], rows[0][6], why=scale),
        judged(f"|S| = {n}: loss of MICo", rows[0][7], rows[0][8], why=scale),
        judged(f"|S| = {n}: loss of DBC", rows[0][9], rows[0][10], why=scale),
    ]
    if is_main:
        ratios = sorted(x / max(skyline, 1e-12) for x in (rows[0][8], rows[0][10]))
        kinder = sorted(x / max(skyline, 1e-12) for x in rows[0][11:13])
        low, high = PUBLISHED["ratios"]
        is_near = ratios[0] >= 0.7 * low and ratios[1] <= 1.3 * high
        result.claims.append(
            Claim(
                "|S| = 64: MICo and DBC lose a multiple of the exact metric's loss",
                f"{low:.0f}-{high:.0f} times",
                f"{ratios[0]:.3g}-{ratios[1]:.3g} times; by average linkage {kinder[0]:.3g}-"
                f"{kinder[1]:.3g}",
                REPRODUCED if is_near else DIFFERENT,
                ""
                if is_near
                else "both do lose far more, but the quotient is by a skyline near 0, which the "
                "noise of the generator sets",
                in_abstract=True,
            )
        )
    else:
        falls = all(b[6] <= a[6] + 1e-9 for a, b in itertools.pairwise(rows))
        result.claims.append(
            Claim(
                "|S| = 60: the loss falls monotonically in coverage",
                "said so; its own figures rise from 0.72 to 0.81",
                "yes" if falls else "no",
                REPRODUCED if falls else CLOSE,
                "" if falls else "falls over all, not at every step, as the published figures do",
            )
        )


def other_sizes(
    result: Result,
    instances: dict[int, list[Instance]],
    checks: list[Checks],
    options: Options,
) -> None:
    """The same budget at two sizes."""
    rows: list[tuple[Any, ...]] = []
    for n, own in instances.items():
        if not own:
            continue
        found = np.array([ours(x, CHECK_NEIGHBOURS, checks, options.seed) for x in own])
        coverage, loss = found.mean(axis=0).tolist()
        published = PUBLISHED["check"][n]
        means = {k: float(np.mean([x.losses[k] for x in own])) for k in own[0].losses}
        visits = 2 * CHECK_NEIGHBOURS / (n - 1)
        rows.append(
            (
                n, len(own), published[0], visits, coverage, published[1], means["exact"],
                published[2], loss, means["MICo"], means["DBC"],
                float(np.mean([x.seconds for x in own])),
            )
        )  # fmt: skip
    result.tables.append(
        ResultTable(
            "surrogates_sizes",
            f"k' = {CHECK_NEIGHBOURS} at two sizes",
            (
                "states", "instances", "paper pairs", "|S|k' / pairs", "pairs", "paper exact",
                "exact", "paper ours", "ours", "MICo", "DBC", "training seconds",
            ),
            rows,
        )
    )  # fmt: skip
    for row in rows:
        n = row[0]
        result.claims.append(
            judged(f"|S| = {n}, k' = 12: |S|·k' as a share of all pairs", row[2], row[3])
        )
        if row[7] is not None:
            is_above = row[8] > 5.0 * max(row[6], 0.01)
            result.claims.append(
                Claim(
                    f"|S| = {n}, k' = 12: ours is far from the exact metric's loss at low coverage",
                    f"{row[7]:g} against {row[5]:g}",
                    f"{row[8]:.3g} against {row[6]:.3g}",
                    REPRODUCED if is_above else CLOSE,
                    "" if is_above else "retrieval finds members of groups more often here",
                )
            )


def surrogate_claims(result: Result, instances: list[Instance]) -> None:
    """Learned distances are numbers, not intervals, and miss the metric."""
    for name in ("MICo", "DBC"):
        below, above = np.mean([x.outside[name] for x in instances], axis=0).tolist()
        misses = below + above > 0.99
        result.claims.append(
            Claim(
                f"{name}'s distance encloses the metric on no instance",
                "never",
                f"{below:.1%} of pairs below the metric, {above:.1%} above",
                REPRODUCED if misses else CLOSE,
                "" if misses else "some learned distances hit the metric",
            )
        )


def draw(result: Result, options: Options, n: int, rows: list[tuple[Any, ...]]) -> None:
    """Loss by coverage, published and measured."""
    with figure(result, options.out, f"surrogates_{n}") as axes:
        floor = 1e-3  # for the logarithm
        lines = (
            ("exact metric", 3, "gray"),
            ("ours", 5, "C0"),
            ("MICo", 7, "C1"),
            ("DBC", 9, "C2"),
        )
        for name, k, colour in lines:
            for at, loss, style in ((2, k + 1, "o-"), (1, k, "x--")):
                axes.plot(
                    [x[at] for x in rows],
                    [max(x[loss], floor) for x in rows],
                    style,
                    color=colour,
                    label=name if style == "o-" else None,
                    lw=1.8 if style == "o-" else 1,
                    alpha=1.0 if style == "o-" else 0.55,
                )
        axes.plot([], [], "kx--", lw=1, alpha=0.55, label="published")
        axes.axvline(0.5, color="k", ls=":", lw=1)
        axes.set_yscale("log")
        axes.set_ylim(top=axes.get_ylim()[1] * 4)
        axes.set_xlabel("share of all pairs covered")
        axes.set_ylabel("mean value loss (drawn as 0.001 if below)")
        axes.set_title(f"|S| = {n}: matched compression, by coverage")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9, ncols=5, loc="upper center")
