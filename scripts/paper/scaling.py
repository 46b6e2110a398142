"""Wall-clock scaling: one exact sweep over all pairs against one over the retrieved ones.

The paper times both with one inner kernel, once with a cheap fixed ground cost (50 to 1600
states) and once with full Wasserstein backups (50 to 400), eight neighbours per state, and fits
log-log slopes. It leaves open the models, gamma, and whether retrieval is part of a sweep. We
take sparse models (three actions, support 4, gamma 0.7, as in its other studies); for the cheap
cost one successor per action, so that a backup is a gather under given costs; one thread; the
same `Arms` and the same compiled kernel on both sides, which differ in the covered pairs alone.
Seconds are those of the processor in the one thread that sweeps, which other programs on the
machine do not prolong: wall-clock time where there are none. Embedding, index and looking up
costs are done once per build, not once per sweep: their time has columns of its own. Our sweeps
go on to 6,400 states, and over all pairs to 1,600.

Its table shows realised errors of covered pairs of 0.004 to 0.006 without saying after how many
sweeps or from what start; we run both arms to their limits and check all bounds there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bisim_abstract import TabularMDP, bisimulation_metric
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._prove.covering import retrieve
from bisim_abstract.parts import solve_transport, sparse_mdp
from paper.common import (
    DIFFERENT,
    REPRODUCED,
    Claim,
    Options,
    Result,
    ResultTable,
    figure,
    judged,
    slope,
    theorem,
)
from paper.restricted import Findings, examine, settle

GAMMA, ACTIONS, DIM, INDEX, BUDGET = 0.7, 3, 6, "LSH16", 8
SUPPORTS = {"cheap cost": 1, "full W1": 4}
# Seconds of a sweep over all pairs and over retrieved ones, by number of states.
PUBLISHED = {
    "cheap cost": {50: (0.0012, 0.0010), 200: (0.0146, 0.0040), 800: (0.2103, 0.0384),
                   1600: (0.8616, 0.1192)},
    "full W1": {50: (13.05, 4.24), 100: (53.07, 8.59), 200: (212.64, 17.06), 400: (871.83, 34.20)},
}  # fmt: skip
PUBLISHED_SLOPES = {"cheap cost": (1.91, 1.41), "full W1": (2.02, 1.00)}
PUBLISHED_SPEEDUP = {"cheap cost": (1600, 7.2), "full W1": (400, 25.5)}
PUBLISHED_ERROR = {50: 0.004, 100: 0.005, 200: 0.006, 400: 0.006}

BENT = "fixed costs of a call weigh on small sizes, and costs leave the caches at large ones"


@dataclass(frozen=True)
class Errors:
    """Errors of covered pairs.

    Attributes:
        limit: Both arms at their limits, against the metric.
        early: After one sweep and after two, against as many sweeps over all pairs.
    """

    limit: Findings
    early: tuple[float, float]


@dataclass(frozen=True)
class Timing:
    """Seconds at one size; None where it was not measured.

    Attributes:
        n: Number of states.
        pairs: Pairs that the restricted sweep visits.
        exact: One sweep over all pairs.
        ann: One sweep over retrieved pairs.
        exact_setup: Looking up the costs of all pairs, once.
        ann_setup: Embedding, index, queries and looking up, once.
    """

    n: int
    pairs: int
    exact: float | None
    ann: float
    exact_setup: float | None
    ann_setup: float


def run(options: Options) -> Result:
    """Times, slopes and errors."""
    result = Result("scaling", "Wall-clock scaling")
    if options.quick:
        exact = {"cheap cost": (50, 100, 200, 400), "full W1": (50, 100)}
        further: dict[str, tuple[int, ...]] = {"cheap cost": (), "full W1": (200, 400)}
    else:
        exact = {
            "cheap cost": (50, 100, 200, 400, 800, 1600),
            "full W1": (50, 100, 200, 400, 800, 1600),
        }
        further = {"cheap cost": (3200, 6400), "full W1": (3200, 6400)}
    times = {}
    for support in SUPPORTS.values():  # compiles, and loads what is loaded late
        timing(model(10, support, options.seed), True, options)
    for setting, support in SUPPORTS.items():
        sizes = [(n, True) for n in exact[setting]] + [(n, False) for n in further[setting]]
        times[setting] = [
            timing(model(n, support, options.seed), with_exact, options) for n, with_exact in sizes
        ]
    errors = {n: errors_of(n, options.seed) for n in exact["full W1"] if n <= max(PUBLISHED_ERROR)}
    gap, agree, count = support_gap(50, 60 if options.quick else 300, options.seed)
    result.tables += [seconds_table(times), slopes_table(times), errors_table(errors)]
    result.claims += [
        *error_claims(errors),
        theorem(
            "Transport on the union of supports equals the dense program "
            f"(certified bounds of both meet; largest difference {gap:.1e})",
            agree,
            count,
            published="gap 0.0",
        ),
    ]
    result.claims += timing_claims(times)
    result.choices += [
        (
            f"Sparse random models with {ACTIONS} actions, supports of 4, gamma = {GAMMA}, L = 1; "
            "for the cheap cost one successor per action and ground costs that stay as given."
        ),
        (
            f"Landmark MDS of d_R into {DIM} dimensions, 16 random hyperplanes, k' = {BUDGET}; a "
            "pair retrieved from both ends is visited once, where the paper's times fit |S|·k' "
            "visits."
        ),
        (
            "Processor seconds of one thread, best of at least five repeats (of two where a sweep "
            "takes above a second); single calls of a build are timed once."
        ),
        "Slopes are fitted over the paper's range of sizes; the further sizes stand beside them.",
        "Covered errors are those of the lower arm from d_R at its limit.",
    ]
    draw(result, options, times)
    return result


def model(n: int, support: int, seed: int) -> TabularMDP:
    """A sparse random model."""
    return sparse_mdp(n, ACTIONS, support=support, seed=np.random.default_rng([seed, n, support]))


def timing(mdp: TabularMDP, with_exact: bool, options: Options) -> Timing:
    """Seconds of a sweep, and of what is done once."""
    n, least = mdp.n_states, 0.02 if options.quick else 0.2
    some = Arms(mdp, GAMMA, threads=1)
    begin = time.thread_time()
    retrieve(some, None, DIM, INDEX, BUDGET, np.random.default_rng([options.seed, n]))
    some.ground_pairs()
    ann_setup = time.thread_time() - begin
    ann = best(one_sweep(some), least)
    exact = exact_setup = None
    if with_exact:
        every = Arms(mdp, GAMMA, threads=1)
        begin = time.thread_time()
        every.cover_all()
        every.ground_pairs()
        exact_setup = time.thread_time() - begin
        exact = best(one_sweep(every), least)
    return Timing(n, some.n_covered, exact, ann, exact_setup, ann_setup)


def one_sweep(arms: Arms) -> Callable[[], object]:
    """A sweep of the lower arm: under given costs where a backup is a gather."""
    if arms.mdp.is_deterministic:
        costs = arms.ground_costs(is_upper=False)
        return lambda: arms.backup(costs, is_upper=False)
    return lambda: arms.sweep(upper=False)


def best(work: Callable[[], object], least: float, *, repeats: int = 5) -> float:
    """Least seconds of a call, over several and over `least` seconds; the first one compiles."""
    work()
    times: list[float] = []
    while len(times) < repeats or sum(times) < least:
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
        if len(times) >= 2 and sum(times) > 2.0:
            break
    return min(times)


def errors_of(n: int, seed: int) -> Errors:
    """Errors of covered pairs at the limit and on the way."""
    mdp = model(n, SUPPORTS["full W1"], seed)
    metric = bisimulation_metric(mdp, GAMMA, tol=1e-12)
    arms = Arms(mdp, GAMMA, upper_start="constant")
    retrieve(arms, None, DIM, INDEX, BUDGET, np.random.default_rng([seed, n]))
    every = Arms(mdp, GAMMA)
    every.cover_all()
    early = []
    for _ in range(2):
        arms.sweep(upper=False)
        every.sweep(upper=False)
        early.append(float((every.bounds(*arms.pairs())[0] - arms.lower).max()))
    settle(arms)
    return Errors(examine(arms, metric), (early[0], early[1]))


def support_gap(n: int, count: int, seed: int) -> tuple[float, int, int]:
    """Dense programs against those on supports, under a lower arm after a few sweeps.

    Returns:
        The largest difference of values, how often certified bounds meet, and the number.
    """
    mdp = model(n, SUPPORTS["full W1"], seed)
    arms = Arms(mdp, GAMMA)
    arms.cover_all()
    for _ in range(3):
        arms.sweep(upper=False)
    states = np.arange(n)
    cost = arms.bounds(states[:, None], states)[0]
    rng = np.random.default_rng([seed, n, 1])
    worst, agree = 0.0, 0
    for _ in range(count):
        s, t = rng.choice(n, 2, replace=False)
        a = int(rng.integers(ACTIONS))
        (i, p), (j, q) = mdp.successors(int(s), a), mdp.successors(int(t), a)
        dense = np.zeros((2, n))
        dense[0, i], dense[1, j] = p, q
        small = solve_transport(cost[np.ix_(i, j)], p, q)
        large = solve_transport(cost, dense[0], dense[1])
        agree += bool(small.lower <= large.upper and large.lower <= small.upper)
        worst = max(worst, abs(float(small.value - large.value)))
    return worst, agree, count


def seconds_table(times: dict[str, list[Timing]]) -> ResultTable:
    """Seconds by setting and size."""
    rows = []
    for setting, found in times.items():
        for x in found:
            theirs = PUBLISHED[setting].get(x.n)
            rows.append(
                (
                    setting,
                    x.n,
                    x.pairs,
                    None if theirs is None else theirs[0],
                    x.exact,
                    None if theirs is None else theirs[1],
                    x.ann,
                    None if theirs is None else theirs[0] / theirs[1],
                    None if x.exact is None else x.exact / x.ann,
                    x.n * (x.n - 1) / 2 / x.pairs,
                    x.exact_setup,
                    x.ann_setup,
                )
            )
    columns = ("setting", "|S|", "pairs visited", "exact s, published", "exact s",
               "ANN s, published", "ANN s", "speed-up, published", "speed-up",
               "ratio of pairs", "exact, once s", "ANN, once s")  # fmt: skip
    return ResultTable("scaling_seconds", "Seconds per sweep", columns, rows)


def fitted(found: list[Timing], limit: int) -> tuple[float, float]:
    """Slopes of both sweeps over sizes up to a limit."""
    exact = [(x.n, x.exact) for x in found if x.exact is not None and x.n <= limit]
    ann = [(x.n, x.ann) for x in found if x.n <= limit]
    return slope(*zip(*exact, strict=True)), slope(*zip(*ann, strict=True))


def slopes_table(times: dict[str, list[Timing]]) -> ResultTable:
    """Slopes over the paper's sizes and over all of ours."""
    rows = []
    for setting, found in times.items():
        limit = max(PUBLISHED[setting])
        ours, further = fitted(found, limit), fitted(found, found[-1].n)
        some = [x for x in found if x.n <= limit]
        every = slope([x.n for x in some], [x.n * (x.n - 1) / 2 for x in some])
        visited = slope([x.n for x in some], [x.pairs for x in some])
        for k, (name, pairs) in enumerate((("exact", every), ("ANN", visited))):
            theirs = PUBLISHED_SLOPES[setting][k]
            rows.append((setting, name, theirs, ours[k], further[k], pairs))
    columns = ("setting", "sweep", "slope, published", "slope", "slope over all our sizes",
               "slope of pairs visited")  # fmt: skip
    return ResultTable("scaling_slopes_seconds", "Log-log slopes of seconds", columns, rows)


def errors_table(errors: dict[int, Errors]) -> ResultTable:
    """Errors of covered pairs."""
    rows = [
        (
            n,
            PUBLISHED_ERROR.get(n),
            *x.early,
            x.limit.covered_error,
            x.limit.mean_covered_error,
            GAMMA * x.limit.rho,
            x.limit.rho,
            x.limit.error,
            x.limit.coverage,
        )
        for n, x in errors.items()
    ]
    columns = ("|S|", "covered error, published", "after one sweep", "after two",
               "at the limit", "its mean", "gamma·rho", "rho", "global error",
               "coverage")  # fmt: skip
    return ResultTable("scaling_errors", "Errors of the lower arm on covered pairs", columns, rows)


def error_claims(errors: dict[int, Errors]) -> list[Claim]:
    """Theorems of the limit, and the realised error."""
    found, count = [x.limit for x in errors.values()], len(errors)
    early = [max(x.early[k] for x in errors.values()) for k in range(2)]
    return [
        theorem(
            "Error of covered pairs is at most gamma·rho throughout",
            sum(x.is_contracted for x in found),
            count,
            published="throughout",
        ),
        theorem("Global error equals rho", sum(x.is_identity for x in found), count),
        theorem("Lower arm <= exact metric <= upper arm", sum(x.is_enclosed for x in found), count),
        judged(
            "Largest realised error of covered pairs",
            max(PUBLISHED_ERROR.values()),
            max(x.covered_error for x in found),
            why="the paper does not say after how many sweeps or against what it measured; "
            f"against as many exact sweeps we find {early[0]:.2g} after one and {early[1]:.2g} "
            "after two, and its own bound audit has 0.27-0.33 at the limit (from 0): no reading "
            "we tried gives 0.006 at gamma = 0.7",
        ),
    ]


def timing_claims(times: dict[str, list[Timing]]) -> list[Claim]:
    """Slopes and speed-ups."""
    claims = []
    are_apart = True
    for setting, found in times.items():
        exact, ann = fitted(found, max(PUBLISHED[setting]))
        theirs = PUBLISHED_SLOPES[setting]
        are_apart &= exact > 1.75 and ann < 1.5
        claims += [
            judged(
                f"Log-log slope of the exact sweep, {setting}",
                theirs[0],
                exact,
                tight=0.1,
                why=BENT,
            ),
            judged(
                f"Log-log slope of the ANN sweep, {setting}",
                theirs[1],
                ann,
                tight=0.1,
                why="a sweep visits at most |S|·k' pairs, so its slope is about 1; the paper's "
                "1.41 probably contains retrieval, which we do once per build"
                if theirs[1] > 1.2
                else "fewer pairs are retrieved from both ends as |S| grows, so that distinct ones "
                "grow a little faster than |S|; costs leave the caches at large sizes",
            ),
        ]
        claims.append(speed_claim(setting, found))
    claims.append(
        Claim(
            "Quadratic against sub-quadratic time per sweep under cheap and full backups",
            "yes",
            "yes" if are_apart else "no",
            REPRODUCED if are_apart else DIFFERENT,
            "" if are_apart else "sizes too small or the machine too busy to tell slopes apart",
            in_abstract=True,
        )
    )
    return claims


def speed_claim(setting: str, found: list[Timing]) -> Claim:
    """The speed-up at the paper's largest size, or at our largest below it."""
    size, theirs = PUBLISHED_SPEEDUP[setting]
    last = [x for x in found if x.exact is not None and x.n <= size][-1]
    assert last.exact is not None
    ours = last.exact / last.ann
    if last.n < size:
        seconds = PUBLISHED[setting].get(last.n)
        theirs = 1.0 if seconds is None else seconds[0] / seconds[1]
    is_met = ours >= theirs
    return Claim(
        f"Speed-up of a sweep at {last.n} states, {setting}, at least",
        f"{theirs:.1f}x",
        f"{ours:.1f}x",
        REPRODUCED if is_met else DIFFERENT,
        "larger, since a pair retrieved from both ends is visited once (ratio of pairs "
        f"{last.n * (last.n - 1) / 2 / last.pairs:.1f}) and few pairs stay in the caches"
        if is_met
        else "fixed costs of a call, or a busy machine",
    )


def draw(result: Result, options: Options, times: dict[str, list[Timing]]) -> None:
    """Seconds per sweep on log-log axes, published ones beside ours."""
    colours = {"exact": "tab:red", "ANN": "tab:blue"}
    with figure(result, options.out, "scaling", size=(9.0, 5.2)) as axes:
        for setting, found in times.items():
            line = "-" if setting == "full W1" else "--"
            marker = "o" if setting == "full W1" else "s"
            limit = max(PUBLISHED[setting])
            for k, (name, slope_of) in enumerate(
                zip(("exact", "ANN"), fitted(found, limit), strict=True)
            ):
                ours = [(x.n, x.exact if k == 0 else x.ann) for x in found]
                ours = [(n, y) for n, y in ours if y is not None]
                axes.plot(
                    *zip(*ours, strict=True),
                    line + marker,
                    color=colours[name],
                    markersize=5,
                    label=f"{setting}, {name}: slope {slope_of:.2f}",
                )
                theirs = [(n, y[k]) for n, y in PUBLISHED[setting].items()]
                axes.plot(
                    *zip(*theirs, strict=True),
                    line + marker,
                    color=colours[name],
                    markersize=6,
                    markerfacecolor="none",
                    alpha=0.45,
                    linewidth=1.0,
                    label=f"the same, published: slope {PUBLISHED_SLOPES[setting][k]:.2f}",
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = sorted({x.n for found in times.values() for x in found})
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.minorticks_off()
        axes.set_xlabel("states")
        axes.set_ylabel("seconds per sweep (one thread)")
        axes.set_title("One sweep over all pairs, and over eight neighbours per state")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
