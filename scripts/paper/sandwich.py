"""Sandwich verification: both arms on the audit's grid, and what re-seeding adds.

The paper runs the upper arm beside the lower one in the 80 runs of its audit, checks the
enclosure at every sweep, both one-sided identities, the width of covered pairs and the refinement
of the clusterings, and counts how often both arms agree (9 of 240 cases at three thresholds). It
then rebuilds the index again and again at |S| = 18, k' = 3: with hyperplanes alone over the
evolving embedding (full coverage after 275 rounds) or over a frozen one (stuck at 82 to 84%), and
with one uniform partner per state (full coverage in three of three runs).

Left open: the three thresholds, the hyperplanes and thresholds of the re-seeded runs, and their
number of rounds. Here thresholds are quantiles of the exact metric, 10, 20 and 30%, and quartiles
for comparison; re-seeding uses 6 hyperplanes, and 2 for comparison, over at most 300 rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from bisim_abstract.parts import retrieve_pairs
from paper import grid
from paper.engine import Claim, Near, Often, Options, Result, Row, Rows, Theorem, mean
from paper.grid import GAMMA, Run, World
from paper.inside import Arms, FloatArray, IntArray, as_points, spanning_forest
from paper.planted import refines

EQUAL_RATE, EVOLVING_ROUNDS, STUCK = 9 / 240, 275, (0.82, 0.84)  # published; shares of pairs
LOW, QUARTILES = "10, 20, 30%", "25, 50, 75%"
QUANTILES = {LOW: (0.1, 0.2, 0.3), QUARTILES: (0.25, 0.5, 0.75)}
STARTS = ("zero", "reward")
LOOKED_AT = frozenset({1, 2, 4, 8, 16, 32})  # sweeps after which clusterings are compared

STATES, NEIGHBOURS, RESEED_SEEDS = 18, 3, 3
HORIZON = 10  # rounds within which the paper looks for equality
ROUNDS, QUICK_ROUNDS = 300, 12
POLICIES = {  # label; colour; stuck at, full after and equal after, as published
    "evolving": ("LSH alone, embedded anew", "#2166ac", "-", EVOLVING_ROUNDS, "-"),
    "frozen": ("LSH alone, frozen embedding", "#e08214", "0.82-0.84", "never", "1 of 3"),
    "mixed": ("LSH and one uniform partner", "#1b7837", "-", "3 of 3 seeds", "2 of 3"),
}
RESEED_COLUMNS = """policy; planes; seed; after 10; after 30; after 100; stuck at, pub.; full after;
full, pub.; equal after; equal, pub.; covered error"""

# fmt: off
CHECKS = (
    Theorem("Both arms enclose the metric after every sweep", "80/80", "encloses",
        in_abstract=True),
    Theorem("Exact backups raise the lower arm and lower the upper, at every sweep", "proved",
        "monotone"),
    Theorem("Uncovered pairs have the width U - start, at every sweep", "80/80", "frontier"),
    Theorem("Error of the lower arm equals rho", "80/80", "lower identity"),
    Theorem("Error of the upper arm equals rho_up", "80/80", "upper identity"),
    Theorem("Covered error of the upper arm within gamma·rho_up", "proved", "upper covered"),
    Theorem("Covered width within gamma·(rho + rho_up)", "80/80", "width"),
    Theorem("Upper clustering refines exact covered one, which refines lower", "80/80", "chain"),
    Theorem("Where both arms agree they give the exact covered clustering", "proved", "squeeze",
        in_abstract=True),
)
RESEED_CHECKS = (
    Theorem("Both arms enclose the metric after every re-seeding round", "proved", "encloses"),
    Theorem("Coverage never falls under re-seeding", "proved", "grows"),
)
# fmt: on
FEW = "a count over three models, at a threshold the paper does not name"
# fmt: off
CLAIMS = (
    Near("Rate at which both clusterings agree at a single build", EQUAL_RATE, "rate",
        "thresholds are not published; at the quartiles it is {quartiles}/{cases}, {trivial} of "
        "them with a single cluster or none merged"),
    Often("Pure LSH over the evolving embedding reaches full coverage (rounds)", EVOLVING_ROUNDS,
        "evolving full", "the last pair is drawn late, or beyond the rounds made here",
        shown="{evolving ends}", tolerated=0.01),
    Near("Coverage over a frozen embedding after ten rounds, {fewest} hyperplanes", 0.83, "coarse",
        "hyperplanes and rounds are not published; with 6 hyperplanes it is {fine}",
        shown="{shown_coarse}", tight=0.01, loose=0.1, absolute=True, stated="82-84%"),
    Claim("Coverage over a frozen embedding saturates", "at 82-84%", "is stuck",
        "LSH by Hamming distance always returns k' states, so far pairs are drawn now and then: "
        "coverage grows slowly but does not stop",
        shown="{least_last:.0%} to {most_last:.0%} after up to {rounds} rounds"),
    Often("One uniform partner per state leads to full coverage (rounds)", "3 of 3 seeds",
        "mixed full", "too few rounds", shown="{held} of {runs} ({mixed ends})"),
    Claim("... and to agreement within ten rounds", "2 of 3", "mixed equal", FEW,
        shown="{n_mixed_equal} of {n_mixed}", nearly="n_mixed_equal"),
    Claim("Agreement within ten rounds over a frozen embedding", "1 of 3", "frozen equal", FEW,
        shown="{n_frozen_equal} of {n_frozen}", nearly="n_frozen_equal"),
    Near("Covered error of pure LSH when coverage is full", 0.055, "evolving error",
        "depends on the last pair found, three sweeps before; after ten rounds over the frozen "
        "embedding it is {frozen error:.2g}"),
)
# fmt: on
CHOICES = f"""
- Thresholds lie between neighbouring values of the exact metric at its 10, 20 and 30% quantiles. Of
  nine sets of three thresholds tried (quantiles, shares of the diameter or of U, fixed values)
  these give the rate nearest to the published one; over all sets it ran from 7 to 190 of 240, most
  of it agreement on a single cluster.
- U is L/(1 - gamma) with L the largest span of a single action's rewards, which is what the proofs
  need; it is slightly below 1/(1 - gamma).
- The lower arm starts from 0, as in the audit; d_R is reported beside it.
- Re-seeded runs start from d_R and sweep 3 times per round. The frozen embedding is that of d_R;
  the threshold is the 20% quantile.
- Runs without uniform partners end after {ROUNDS} rounds if they never cover all pairs.
"""


def run(options: Options) -> Result:
    """Both parts, with a figure of coverage over rounds."""
    result = Result("sandwich", "Sandwich verification and re-seeding", options)
    checked = Rows(check(x) for x in grid.grid(options))
    seeds = range(options.pick(1, RESEED_SEEDS))
    runs = product(options.pick((6,), (6, 2)), POLICIES, seeds)
    reseeded = Rows(reseed(policy, planes, seed, options) for planes, policy, seed in runs)
    title = "Runs in which each statement held, both starts of the lower arm"
    result.add_table("sandwich_checks", title, check_rows(checked))
    title = "Agreement of both clusterings at a single build; useful: neither one cluster nor n"
    result.add_table("sandwich_equality", title, equality_rows(checked))
    title = (
        "Re-seeding at |S| = 18, k' = 3: shares of pairs covered, rounds to the goals (pub. at 6)"
    )
    result.add_table("sandwich_reseed", title, reseeded, RESEED_COLUMNS)
    result.judge(CHECKS, checked.columns())
    result.judge(RESEED_CHECKS, reseeded.columns())
    result.judge(CLAIMS, agreement_figures(checked) | reseed_figures(reseeded))
    result.choose(CHOICES)
    draw(result, reseeded)
    return result


# -- both arms on the grid ---------------------------------------------------------------------


def thresholds(world: World, quantiles: Sequence[float]) -> list[float]:
    """Thresholds halfway between neighbouring values of the metric, so that none ties."""
    values = np.sort(world.truth[grid.all_pairs(world.n)])
    places = [min(max(int(q * values.size), 1), values.size - 1) for q in quantiles]
    return [float(values[p - 1] + values[p]) / 2.0 for p in places]


def check(run: Run) -> Row:
    """What held in one run, for both starts of the lower arm, and where both arms agree."""
    taus = {name: thresholds(run.world, q) for name, q in QUANTILES.items()}
    row: Row = {"n": run.world.n}
    upper = None
    for start in STARTS:
        arms = grid.make_arms(run.world, run.pairs, lower_start=start)
        held = sweep_out(run, arms, [x for of in taus.values() for x in of], upper)
        held |= check_limits(run, arms)
        row |= {name: row.get(name, True) and is_true for name, is_true in held.items()}
        upper = arms.upper
        for name, of in taus.items():
            counts = np.sum([agreement(arms, tau) for tau in of], axis=0)
            row[f"equal {name} {start}"], row[f"useful {name} {start}"] = counts.tolist()
    return row


def sweep_out(
    run: Run, arms: Arms, taus: Sequence[float], upper: FloatArray | None
) -> dict[str, bool]:
    """Sweep arms from their starts to their fixed points and check every sweep.

    The upper arm does not depend on the lower one: where its fixed point is given, it is taken
    over and not swept again.
    """
    world = run.world
    s, t = grid.all_pairs(world.n)
    if upper is not None:
        arms.tighten(arms.lower, upper)
    unit, left = grid.start_rounding(arms), grid.uncovered(world.n, run.pairs)[s, t]
    frozen = world.ceiling - world.start(arms.starts.lower)[s, t][left]
    held = dict.fromkeys(("encloses", "monotone", "frontier", "chain", "squeeze"), True)
    for sweep in range(1, grid.SWEEPS + 1):
        held["monotone"] &= goes_inward(arms, with_upper=upper is None)
        moved = max(arms.sweep(upper=upper is None))
        low, high = arms.bounds(s, t)
        held["encloses"] &= grid.encloses(world, low, high)
        held["frontier"] &= bool((np.abs((high - low)[left] - frozen) <= unit).all())
        if sweep in LOOKED_AT or moved == 0.0:
            for tau in taus:
                in_chain, is_squeezed = chain_holds(world, arms, tau)
                held["chain"] &= in_chain
                held["squeeze"] &= is_squeezed
        if moved == 0.0:
            break
    return held


def check_limits(run: Run, arms: Arms) -> dict[str, bool]:
    """Whether errors and widths at the fixed points are what coverage says."""
    world = run.world
    lower, upper = arms.bounds(*grid.all_pairs(world.n))
    tol = grid.tolerance(world, arms)
    rho = grid.coverage_gap(world, run.pairs, arms.starts.lower)
    rho_up = grid.upper_gap(world, run.pairs)
    over, width = arms.upper - world.truth[arms.pairs()], arms.upper - arms.lower
    return {
        "lower identity": abs(world.error(lower) - rho) <= tol,
        "upper identity": abs(world.error(upper) - rho_up) <= tol,
        "upper covered": float(over.max()) <= GAMMA * rho_up + tol,
        "width": float(width.max()) <= GAMMA * (rho + rho_up) + 2.0 * tol,
    }


def goes_inward(arms: Arms, *, with_upper: bool) -> bool:
    """Whether Tf >= f for the lower arm and Tf <= f for the upper, as the theorem says.

    A sweep keeps the tighter of old and new, which would hide a violation; so backups are made
    here, rounded towards the claim: if Tf >= f, then so is Tf rounded up.
    """
    below = arms.backup(arms.ground_costs(is_upper=False), is_upper=True)
    if not with_upper:
        return bool((below >= arms.lower).all())
    above = arms.backup(arms.ground_costs(is_upper=True), is_upper=False)
    return bool((below >= arms.lower).all() and (above <= arms.upper).all())


def labels(arms: Arms, weights: FloatArray, tau: float) -> IntArray:
    """Single linkage over the covered pairs."""
    return spanning_forest(arms.n, *arms.pairs(), weights).labels(tau)


def chain_holds(world: World, arms: Arms, tau: float) -> tuple[bool, bool]:
    """The chain upper, exact, lower; and that exact is the same where these two agree.

    No value of the metric is within rounding of tau, so both its tables link the same pairs.
    """
    below, above = world.metric.bounds(*arms.pairs())
    exact = labels(arms, above, tau)
    if not np.array_equal(exact, labels(arms, below, tau)):
        raise AssertionError("a threshold is too close to a value of the metric")
    lower, upper = labels(arms, arms.lower, tau), labels(arms, arms.upper, tau)
    is_squeezed = not np.array_equal(lower, upper) or np.array_equal(exact, upper)
    return refines(upper, exact) and refines(exact, lower), is_squeezed


def agreement(arms: Arms, tau: float) -> tuple[bool, bool]:
    """Whether both arms agree, and on more than one cluster and fewer than states."""
    lower, upper = labels(arms, arms.lower, tau), labels(arms, arms.upper, tau)
    is_equal = np.array_equal(lower, upper)
    return is_equal, is_equal and 0 < int(upper.max()) < arms.n - 1


# -- re-seeding --------------------------------------------------------------------------------


def reseed(policy: str, planes: int, seed: int, options: Options) -> Row:
    """Rounds of Algorithm 1 under one policy, on a model that all policies share.

    Returns:
        The share of pairs covered after each round; rounds until all were covered and until both
        arms agreed within the horizon, or None; the covered error of the lower arm after the last
        round with sweeps; whether both arms enclosed the metric.
    """
    rounds = options.pick(QUICK_ROUNDS, ROUNDS)
    world = grid.make_world(STATES, [options.seed, 3, seed])
    index, key = f"LSH{planes}", 1000 * options.seed + seed
    tau = thresholds(world, QUANTILES[LOW])[1]
    points = as_points(grid.embed(world.rewards, key), world.n) if policy == "frozen" else None
    stuck, full, equal = POLICIES[policy][2:]
    row: Row = {"policy": policy, "planes": planes, "seed": seed}
    row |= {"full after": None, "equal after": None}
    row |= {"stuck at, pub.": stuck, "full, pub.": full, "equal, pub.": equal}
    coverage: list[float] = []
    encloses = True
    for certificate in grid.by_rounds(
        world.mdp,
        rounds if points is None else HORIZON,
        neighbours=NEIGHBOURS,
        partners=1 if policy == "mixed" else 0,
        index=index,
        embedding=points,
        seed=key,
    ):
        coverage.append(certificate.coverage)
        made = len(coverage)
        encloses &= grid.encloses(world, *certificate.bounds(*grid.all_pairs(world.n)))
        if made <= HORIZON and np.array_equal(*certificate.partitions(tau)):
            row["equal after"] = row["equal after"] or made
        if certificate.coverage == 1.0:
            row["full after"] = row["full after"] or made
        if row["full after"] and made >= HORIZON:
            break
    covered = grid.covered_by(certificate)
    if points is not None and not row["full after"]:
        coverage += go_on(points, covered, index, key, range(len(coverage), rounds))
        row["full after"] = len(coverage) if coverage[-1] == 1.0 else None
    return row | {
        "coverage": coverage,
        "covered error": world.error(certificate.lower, covered),
        "encloses": encloses,
        "grows": sorted(coverage) == coverage,
        **{f"after {x}": coverage[min(x, len(coverage)) - 1] for x in (HORIZON, 30, 100)},
    }


def go_on(points: Any, covered: grid.Pairs, index: str, key: int, rounds: range) -> list[float]:
    """Coverage over further rounds with a frozen embedding, until it is full.

    Sweeps do not change what is retrieved there, and are left out.
    """
    s, t = grid.all_pairs(len(points))
    is_covered = ~grid.uncovered(len(points), covered)
    coverage: list[float] = []
    for made in rounds:
        rng = np.random.default_rng([key, made])
        is_covered[retrieve_pairs(points, k=NEIGHBOURS, index=index, seed=rng)] = True
        coverage.append(float(is_covered[s, t].mean()))
        if coverage[-1] == 1.0:
            break
    return coverage


# -- tables and figures ------------------------------------------------------------------------


def check_rows(checked: Rows) -> list[Row]:
    """How often each statement held, by size."""
    by_size = {f"|S| = {n}": checked.where(n=n) for n in grid.SIZES}
    return [
        {"statement": claim.text, "published": claim.published}
        | {size: of.sum(claim.measure) for size, of in by_size.items()}
        | {"runs": len(checked)}
        for claim in CHECKS
    ]


def equality_rows(checked: Rows) -> list[Row]:
    """How often both arms agree at a single build."""
    cases, rows = 3 * len(checked), []
    for name, start in product(QUANTILES, STARTS):
        equal, useful = (checked.sum(f"{x} {name} {start}") for x in ("equal", "useful"))
        row = {"quantiles": name, "lower start": start, "rate pub.": EQUAL_RATE}
        row |= {"rate": equal / cases, "equal": equal, "useful": useful, "cases": cases}
        rows.append(row)
    return rows


def agreement_figures(checked: Rows) -> Row:
    """How often both arms agree from 0."""
    low, _, quartiles, _ = equality_rows(checked)
    trivial = quartiles["equal"] - quartiles["useful"]
    return low | {"quartiles": quartiles["equal"], "trivial": trivial}


def reseed_figures(reseeded: Rows) -> Row:
    """What re-seeded runs reached with 6 hyperplanes, and with the fewest."""
    fewest = min(reseeded.column("planes"))
    coarse = reseeded.where(policy="frozen", planes=fewest).column("after 10")
    figures: Row = {"rounds": ROUNDS, "fewest": fewest, "coarse": mean(coarse)}
    for policy, of in reseeded.where(planes=6).by("policy").items():
        full = of.column("full after")
        n_equal = sum(x is not None for x in of.column("equal after"))
        late = [f"> {len(x)}" for x in of.column("coverage")]
        figures |= {
            f"n_{policy}": len(of),
            f"{policy} full": [x is not None for x in full],
            f"{policy} ends": ", ".join(str(x or y) for x, y in zip(full, late, strict=True)),
            f"{policy} error": of.mean("covered error"),
            f"n_{policy}_equal": n_equal,
        }
    frozen = reseeded.where(policy="frozen", planes=6)
    last = [x[-1] for x in frozen.column("coverage")]
    return figures | {
        "mixed equal": 3 * figures["n_mixed_equal"] == 2 * figures["n_mixed"],
        "frozen equal": 3 * figures["n_frozen_equal"] == figures["n_frozen"],
        "shown_coarse": ", ".join(f"{x:.0%}" for x in coarse),
        "fine": ", ".join(f"{x:.0%}" for x in frozen.column("after 10")),
        "least_last": min(last),
        "most_last": max(last),
        "is stuck": max(last) <= STUCK[1] + 0.01 and not any(figures["frozen full"]),
    }


def draw(result: Result, reseeded: Rows) -> None:
    """Coverage over rounds, by policy."""
    low, high = STUCK
    with result.figure(
        "sandwich_coverage",
        ticks={x: str(x) for x in (1, 3, 10, 30, 100, 300)},
        legend={"fontsize": 8, "loc": "lower right"},
        xscale="log",
        xlabel="rounds",
        ylabel="pairs covered (%)",
        ylim=(15, 103),
    ) as axes:
        for x in reseeded.where(planes=6):
            label, colour, *_ = POLICIES[x["policy"]]
            rounds, percents = range(1, len(x["coverage"]) + 1), 100 * np.array(x["coverage"])
            axes.plot(rounds, percents, color=colour, lw=1.6, label=None if x["seed"] else label)
            if x["full after"] is not None:
                axes.plot(x["full after"], 100, "o", color=colour, ms=5)
        text = "published: frozen embedding stays here"
        axes.axhspan(100 * low, 100 * high, color="#e08214", alpha=0.2, lw=0, label=text)
        text = "published: embedded anew, full coverage"
        axes.plot(EVOLVING_ROUNDS, 100, "o", mfc="white", color="#2166ac", label=text)
        title = "Re-seeding at |S| = 18, k' = 3, 6 hyperplanes (dot: full coverage)"
        axes.set_title(title, fontsize=10, loc="left")
