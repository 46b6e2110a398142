"""The constructions that make the coverage gap unavoidable (Proposition rho-lower).

(i) All kernels are one and the same, so that the metric is the difference of rewards; one pair
that a reward-oblivious rule did not look at carries the gap rho_0 or none, and nothing that was
looked at tells which. The paper reports that the realised error equals the planted gap, that it
does so at a fixed budget k' = 8 while coverage falls from 42% to 5%, and that full coverage
removes it. (ii) With |S|/2 actions, |S|/2 independent bits each show at one pair only, so that
fewer evaluations than that, however chosen, leave an expected error of rho_0/2 or more; here the
paper proves and does not measure.

It leaves open the embedding of (i). Coverage of k'/(|S| - 1), which its figures equal, means that
neighbours are mutual: we place the states around a circle, in random order. The expectation of
(ii) is taken over *all* values of the bits, so that no sampling error enters.

Beyond the paper: our own lower arm reads rewards, which is linear work, and starts from d_R. On
this family that is exact before any pair is looked at; the last column shows it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from bisim_abstract import TabularMDP, bisimulation_metric
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract.parts import retrieve_pairs
from paper.common import (
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
from paper.restricted import EPS, examine, is_between, settle

GAMMA, ACTIONS, BUDGET, RHO = 0.7, 3, 8, 0.8
COMMON = 20  # states that the common row reaches, where there are as many
PUBLISHED_ERRORS = {0.1: 0.1, 0.4: 0.4, 0.8: 0.8, 1.2: 1.2}
PUBLISHED_CORRELATION = 1.0
PUBLISHED_COVERAGE = {20: 0.42, 160: 0.05}


@dataclass(frozen=True)
class Planted:
    """What a bounded rule found in the two instances of a planted pair.

    Attributes:
        coverage: Share of pairs that it looked at.
        error: Of the lower arm from 0, where the gap is there.
        full_error: Of the same with all pairs covered.
        reward_error: Of the lower arm from d_R with nothing covered.
        is_planted: The metrics of both instances differ by the gap at the pair, certified.
        is_hidden: Whatever was looked at is the same in both, bit for bit.
        is_identity: The error is the coverage gap.
        is_exact: The error is the planted gap, to rounding.
        is_enclosed: Both arms enclose both metrics.
        is_removed: Full coverage removes the error, to rounding.
    """

    coverage: float
    error: float
    full_error: float
    reward_error: float
    is_planted: bool
    is_hidden: bool
    is_identity: bool
    is_exact: bool
    is_enclosed: bool
    is_removed: bool


def run(options: Options) -> Result:
    """Planted gaps, hidden bits, and a fixed budget on growing models."""
    result = Result("lower_bounds", "Lower bounds: the coverage gap cannot be avoided")
    seeds = range(options.seed, options.seed + (2 if options.quick else 10))
    gaps = {gap: [planted(20, gap, seed) for seed in seeds] for gap in PUBLISHED_ERRORS}
    sizes = (20, 40) if options.quick else (20, 40, 80, 160)
    grown = {n: [planted(n, RHO, seed) for seed in seeds] for n in sizes}
    n_bits = 3 if options.quick else 5
    bits = hidden_bits(n_bits, options.seed)

    rows = [
        (gap, PUBLISHED_ERRORS[gap], least(runs, "error"), most(runs, "error"), gap / 2)
        for gap, runs in gaps.items()
    ]
    result.tables.append(
        ResultTable(
            "lower_bounds_planted",
            f"(i) Planted gaps, 20 states, k' = {BUDGET}, {len(seeds)} hidden pairs each",
            (
                "planted gap",
                "error, published",
                "least error",
                "largest error",
                "what any rule must risk",
            ),
            rows,
        )
    )
    result.tables.append(growth_table(grown))
    result.tables.append(bits_table(bits, n_bits))
    result.claims += planted_claims(gaps, grown) + growth_claims(grown) + bit_claims(bits, n_bits)
    result.choices += [
        (
            f"The common row is uniform over the first {COMMON} states, or over all if there are "
            "fewer: which row it is changes nothing, and dense rows cost |S|^2 per pair."
        ),
        (
            "The oblivious index sees states around a circle in random order: k' = 8 neighbours "
            "are mutual, as the published coverage k'/(|S| - 1) requires. The hidden pair is "
            "drawn from those it does not cover."
        ),
        "The lower arm starts at 0: to start at d_R is to read rewards, which the rule may not.",
        (
            f"gamma = {GAMMA}; on growing models the gap is {RHO:g}. Rewards span the gap, so that "
            "L = rho_0, also where that is above the L = 1 of the paper's other studies."
        ),
        (
            "(ii) by enumeration of all bits. Rules: partner pairs in order, and all pairs in a "
            "random order; outputs: the lower arm, and half the gap wherever nothing is known."
        ),
    ]
    draw_growth(result, options, grown)
    draw_bits(result, options, bits, n_bits)
    return result


def common_kernel(n: int, rewards: FloatArray) -> TabularMDP:
    """A model in which every state and action leads to the same distribution."""
    size = min(n, COMMON)
    rows = rewards.size
    return TabularMDP.from_rows(
        np.arange(rows + 1) * size,
        np.tile(np.arange(size), rows),
        np.full(rows * size, 1.0 / size),
        rewards,
    )


def planted_rewards(n: int, pair: tuple[int, int], gap: float, sign: int) -> FloatArray:
    """Rewards of M(i, j, b), moved up by half the gap; all differences are exact floats."""
    rewards = np.full((n, ACTIONS), gap / 2)
    rewards[pair[0]] = gap
    rewards[pair[1]] = gap if sign > 0 else 0.0
    return rewards


def oblivious_pairs(n: int, seed: int) -> tuple[IntArray, IntArray]:
    """Neighbours around a circle: what an index proposes that knows no rewards."""
    angle = 2.0 * np.pi * np.random.default_rng([seed, n]).permutation(n) / n
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return retrieve_pairs(points, k=BUDGET, seed=seed)


def planted(n: int, gap: float, seed: int) -> Planted:
    """Plant a gap at a pair that an oblivious rule missed, and run both instances."""
    first, second = oblivious_pairs(n, seed)
    is_open = np.triu(np.ones((n, n), bool), 1)
    is_open[first, second] = False
    missed = np.argwhere(is_open)
    i, j = missed[np.random.default_rng([seed, n, 1]).integers(len(missed))]
    tables, found, metrics = [], [], []
    for sign in (1, -1):
        mdp = common_kernel(n, planted_rewards(n, (int(i), int(j)), gap, sign))
        metric = bisimulation_metric(mdp, GAMMA)
        arms = Arms(mdp, GAMMA, lower_start="zero", upper_start="constant")
        arms.cover(first, second)
        settle(arms)
        # What the model of evaluation reveals, besides the arm made of it.
        seen = np.abs(mdp.rewards[first] - mdp.rewards[second])
        tables.append((arms.lower, seen))
        metrics.append(metric.bounds(i, j))
        found.append(examine(arms, metric))
    (low_none, high_none), (low, high) = metrics
    is_planted = bool(low_none <= 0.0 <= high_none and low <= gap <= high)
    is_planted &= bool(high - low <= 1e-8 * gap and high_none <= 1e-8 * gap)
    is_hidden = all(np.array_equal(*both) for both in zip(*tables, strict=True))

    whole = Arms(mdp, GAMMA, lower_start="zero", upper_start="constant")
    whole.cover_all()
    settle(whole)
    full = examine(whole, metric)
    untouched = examine(Arms(mdp, GAMMA), metric)
    return Planted(
        coverage=found[1].coverage,
        error=found[1].error,
        full_error=full.error,
        reward_error=untouched.error,
        is_planted=is_planted,
        is_hidden=is_hidden,
        is_identity=all(x.is_identity and x.is_contracted for x in found),
        is_exact=abs(found[1].error - gap) <= found[1].slack,
        is_enclosed=all(x.is_enclosed for x in (*found, full, untouched)),
        is_removed=full.error <= full.slack,
    )


@dataclass(frozen=True)
class Bits:
    """Expected errors over all values of the hidden bits, by number of evaluations.

    Attributes:
        rule: Which pairs are evaluated, and what is said of the others.
        evaluations: Numbers of evaluations.
        errors: Expected errors.
        is_enclosed: All runs enclosed the metric.
        is_blind: Pairs of strangers showed the same whatever the bits are.
        slack: What the bounds of the metric leave open, and rounding.
    """

    rule: str
    evaluations: list[int]
    errors: list[float]
    is_enclosed: bool
    is_blind: bool
    slack: float


def hidden_bits(n_bits: int, seed: int) -> list[Bits]:
    """Expected errors of several rules, by enumeration of all bits."""
    n = 2 * n_bits
    partners = np.array([(2 * k, 2 * k + 1) for k in range(n_bits)])
    every = np.stack(np.triu_indices(n, 1), axis=1)
    shuffled = np.random.default_rng([seed, n]).permutation(every)
    is_partner = np.zeros((n, n), bool)
    is_partner[partners[:, 0], partners[:, 1]] = True
    values = list(itertools.product((1, -1), repeat=n_bits))
    quarters = [len(every) * k // 4 for k in range(5)]
    found = []
    for name, order, counts in (
        ("partner pairs in order", partners, list(range(n_bits + 1))),
        ("all pairs in random order", shuffled, sorted({n_bits - 1, *quarters})),
    ):
        sums = np.zeros((2, len(counts)))
        is_enclosed, slack = True, 0.0
        strangers: list[FloatArray] = []
        for bits in values:
            mdp = bit_model(bits)
            metric = bisimulation_metric(mdp, GAMMA)
            truth = metric.upper
            slack = max(slack, metric.gap + 16.0 * EPS * RHO / (1.0 - GAMMA))
            for k, count in enumerate(counts):
                arms = Arms(mdp, GAMMA, lower_start="zero", upper_start="constant")
                arms.cover(order[:count, 0], order[:count, 1])
                settle(arms)
                is_enclosed &= is_between(arms, metric)
                s, t = arms.pairs()
                guess = np.full((n, n), RHO / 2)  # right for strangers, half right for partners
                guess[s, t] = arms.lower
                low = arms.bounds(np.arange(n)[:, None], np.arange(n))[0]
                above = np.triu_indices(n, 1)
                sums[0, k] += np.abs(low - truth)[above].max()
                sums[1, k] += np.abs(guess - truth)[above].max()
                if count == counts[-1]:
                    strangers.append(arms.lower[~is_partner[s, t]])
        is_blind = all(np.array_equal(strangers[0], x) for x in strangers)
        for row, output in zip(sums, ("lower arm", "half the gap elsewhere"), strict=True):
            expected = [float(x) / len(values) for x in row]
            rule = f"{name}, {output}"
            found.append(Bits(rule, counts, expected, is_enclosed, is_blind, slack))
    return found


def bit_model(bits: tuple[int, ...]) -> TabularMDP:
    """The family of part (ii): partners differ in their own action alone, if their bit says so."""
    count = len(bits)
    rewards = np.full((2 * count, count), RHO / 2)
    for k, bit in enumerate(bits):
        rewards[2 * k, k] = RHO
        rewards[2 * k + 1, k] = RHO if bit > 0 else 0.0
    return common_kernel(2 * count, rewards)


def least(runs: list[Planted], name: str) -> float:
    """Least of a figure over runs."""
    return min(float(getattr(x, name)) for x in runs)


def most(runs: list[Planted], name: str) -> float:
    """Largest of a figure over runs."""
    return max(float(getattr(x, name)) for x in runs)


def growth_table(grown: dict[int, list[Planted]]) -> ResultTable:
    """A fixed budget on growing models."""
    rows = [
        (
            n,
            PUBLISHED_COVERAGE.get(n),
            most(runs, "coverage"),
            RHO,
            least(runs, "error"),
            most(runs, "error"),
            (1.0 - most(runs, "coverage")) * RHO / 2,
            most(runs, "full_error"),
            most(runs, "reward_error"),
        )
        for n, runs in grown.items()
    ]
    columns = ("|S|", "coverage, published", "coverage", "error, published", "least error",
               "largest error", "least expected error of any rule", "error, all pairs covered",
               "error from d_R, no pair covered")  # fmt: skip
    title = f"(i) Fixed budget k' = {BUDGET}, planted gap {RHO:g}"
    return ResultTable("lower_bounds_growth", title, columns, rows)


def bits_table(bits: list[Bits], n_bits: int) -> ResultTable:
    """Expected errors of part (ii)."""
    rows = [
        (x.rule, count, error, RHO / 2 if count < n_bits else 0.0)
        for x in bits
        for count, error in zip(x.evaluations, x.errors, strict=True)
    ]
    return ResultTable(
        "lower_bounds_bits",
        f"(ii) {n_bits} hidden bits, {2 * n_bits} states, gap {RHO:g}: expected errors",
        ("rule", "evaluations", "expected error", "bound"),
        rows,
    )


def planted_claims(
    gaps: dict[float, list[Planted]], grown: dict[int, list[Planted]]
) -> list[Claim]:
    """Theorems on planted pairs, and the correlation."""
    runs = [x for some in (*gaps.values(), *grown.values()) for x in some]
    count = len(runs)
    planned = [gap for gap, some in gaps.items() for _ in some]
    realised = [x.error for some in gaps.values() for x in some]
    correlation = float(np.corrcoef(planned, realised)[0, 1])
    return [
        theorem(
            "(i) Realised global error equals the planted gap",
            sum(x.is_exact for x in runs),
            count,
            published="equal",
            in_abstract=True,
        ),
        theorem(
            "(i) Two instances differ by the gap at the hidden pair (certified) and agree bit "
            "for bit wherever the rule looked, so that any answer errs by half the gap in one",
            sum(x.is_planted and x.is_hidden for x in runs),
            count,
        ),
        theorem(
            "(i) Error equals the coverage gap, covered error at most gamma times it",
            sum(x.is_identity for x in runs),
            count,
        ),
        theorem("(i) Both arms enclose the metric", sum(x.is_enclosed for x in runs), count),
        theorem("(i) Full coverage drives the error to 0", sum(x.is_removed for x in runs), count),
        judged(
            "(i) Correlation of planted gap and realised error",
            PUBLISHED_CORRELATION,
            correlation,
            tight=1e-12,
            shown="{:.12g}",
            why="rounding",
        ),
    ]


def growth_claims(grown: dict[int, list[Planted]]) -> list[Claim]:
    """Coverage falls, the error stays."""
    claims = [
        judged(
            f"(i) Coverage at |S| = {n}, k' = {BUDGET}",
            PUBLISHED_COVERAGE[n],
            most(runs, "coverage"),
            shown="{:.1%}",
        )
        for n, runs in grown.items()
        if n in PUBLISHED_COVERAGE
    ]
    spread = max(most(x, "error") for x in grown.values()) - min(
        least(x, "error") for x in grown.values()
    )
    is_flat = spread <= 1e-12
    claims.append(
        Claim(
            f"(i) At fixed k' = {BUDGET} the error does not depend on |S|",
            "independent",
            f"spread {spread:.1e} from {min(grown)} to {max(grown)} states",
            REPRODUCED if is_flat else DIFFERENT,
            "" if is_flat else "the error moved with the size",
        )
    )
    return claims


def bit_claims(bits: list[Bits], n_bits: int) -> list[Claim]:
    """The adaptive bound in every run."""
    below = [
        error >= RHO / 2 - x.slack
        for x in bits
        for count, error in zip(x.evaluations, x.errors, strict=True)
        if count < n_bits
    ]
    read = [x.errors[-1] <= 1e-8 * RHO for x in bits if x.rule.startswith("all")]
    smart = next(x for x in bits if x.rule.startswith("partner") and "half" in x.rule)
    return [
        theorem(
            f"(ii) Expected error at least half the gap below {n_bits} evaluations "
            f"({2 * n_bits} states, all {2**n_bits} values of the bits)",
            sum(below),
            len(below),
            published="proved",
            in_abstract=True,
        ),
        theorem(
            "(ii) Pairs of strangers show the same for all bits; both arms enclose",
            sum(x.is_blind and x.is_enclosed for x in bits),
            len(bits),
        ),
        theorem("(ii) All pairs evaluated: exact", sum(read), len(read)),
        Claim(
            f"(ii) The bound is tight: {n_bits} well-chosen evaluations suffice, "
            f"{n_bits - 1} leave half the gap",
            "Omega(|S|) needed",
            f"{smart.errors[-2]:.3g} then {smart.errors[-1]:.1g}",
            REPRODUCED if smart.errors[-1] <= 1e-8 < smart.errors[-2] else DIFFERENT,
            "" if smart.errors[-1] <= 1e-8 < smart.errors[-2] else "a fault in the construction",
        ),
    ]


def draw_growth(result: Result, options: Options, grown: dict[int, list[Planted]]) -> None:
    """Error and coverage against the number of states."""
    sizes = list(grown)
    with figure(result, options.out, "lower_bounds", size=(8.5, 4.2)) as axes:
        axes.plot(
            sizes,
            [most(x, "error") for x in grown.values()],
            "o-",
            color="tab:red",
            label=f"error of the lower arm, k' = {BUDGET}",
        )
        axes.axhline(RHO / 2, color="tab:orange", ls=":", label="half the gap: risk of any answer")
        axes.plot(
            sizes,
            [most(x, "full_error") for x in grown.values()],
            "s-",
            color="tab:green",
            label="error with all pairs covered",
        )
        axes.plot(
            sizes,
            [most(x, "coverage") for x in grown.values()],
            "^--",
            color="tab:blue",
            label="coverage (share of pairs)",
        )
        known = [n for n in sizes if n in PUBLISHED_COVERAGE]
        axes.plot(
            known,
            [PUBLISHED_COVERAGE[n] for n in known],
            "o",
            markersize=12,
            markerfacecolor="none",
            color="tab:blue",
            label="coverage, published",
        )
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.set_ylim(-0.03, RHO * 1.1)
        axes.set_xlabel("states")
        axes.set_ylabel("error, and share of pairs")
        axes.set_title(f"Coverage falls, the planted gap of {RHO:g} stays")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))


def draw_bits(result: Result, options: Options, bits: list[Bits], n_bits: int) -> None:
    """Expected error against evaluations."""
    with figure(result, options.out, "lower_bounds_bits", size=(9.0, 4.2)) as axes:
        markers = ("o-", "s-", "o--", "s--")
        colours = ("tab:red", "tab:blue", "tab:red", "tab:blue")
        for x, marker, colour in zip(bits, markers, colours, strict=True):
            axes.plot(x.evaluations, x.errors, marker, color=colour, markersize=4, label=x.rule)
        axes.fill_between(
            [0, n_bits - 1], 0.0, RHO / 2, color="grey", alpha=0.25, label="excluded by part (ii)"
        )
        axes.set_ylim(-0.02, RHO * 1.05)
        axes.set_xlabel("pairs evaluated")
        axes.set_ylabel("expected error over all bits")
        axes.set_title(f"{n_bits} hidden bits in {2 * n_bits} states, gap {RHO:g}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
