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

import numpy as np

from bisim_abstract import TabularMDP, bisimulation_metric
from bisim_abstract.parts import retrieve_pairs
from paper.engine import Claim, Near, Options, Result, Row, Rows, Theorem
from paper.inside import Arms, FloatArray, IntArray
from paper.restricted import EPS, examine, is_between, settle

GAMMA, ACTIONS, BUDGET, RHO = 0.7, 3, 8, 0.8
COMMON = 20  # states that the common row reaches, where there are as many
PUBLISHED_ERRORS = {0.1: 0.1, 0.4: 0.4, 0.8: 0.8, 1.2: 1.2}
PUBLISHED_COVERAGE = {20: 0.42, 160: 0.05}

# fmt: off
PLANTED_CLAIMS = (
    Theorem("(i) Realised global error equals the planted gap", "equal", "is_exact",
        in_abstract=True),
    Theorem("(i) Two instances differ by the gap at the hidden pair (certified) and agree bit for "
        "bit wherever the rule looked, so that any answer errs by half the gap in one",
        measure="is_hidden"),
    Theorem("(i) Error equals the coverage gap, covered error at most gamma times it",
        measure="is_identity"),
    Theorem("(i) Both arms enclose the metric", measure="is_enclosed"),
    Theorem("(i) Full coverage drives the error to 0", measure="is_removed"),
    Near("(i) Correlation of planted gap and realised error", 1.0, "correlation", "rounding",
        shown="{:.12g}", tight=1e-12),
    *(
        Near(f"(i) Coverage at |S| = {n}, k' = {BUDGET}", theirs, f"coverage {n}", shown="{:.1%}")
        for n, theirs in PUBLISHED_COVERAGE.items()
    ),
    Near(f"(i) At fixed k' = {BUDGET} the error does not depend on |S|", 0.0, "spread",
        "the error moved with the size", shown="spread {:.1e} from {fewest} to {most} states",
        tight=1e-12, loose=1e-12, absolute=True, stated="independent"),
)
BIT_CLAIMS = (
    Theorem("(ii) Expected error at least half the gap below {n_bits} evaluations ({n} states, "
        "all {values} values of the bits)", "proved", "at least half", in_abstract=True),
    Theorem("(ii) Pairs of strangers show the same for all bits; both arms enclose",
        measure="blind and enclosed"),
    Theorem("(ii) All pairs evaluated: exact", measure="exact in the end"),
    Claim("(ii) The bound is tight: {n_bits} well-chosen evaluations suffice, {one_less} leave "
        "half the gap", "Omega(|S|) needed", "is tight", "a fault in the construction",
        shown="{before:.3g} then {after:.1g}"),
)
# fmt: on
CHOICES = f"""
- The common row is uniform over the first {COMMON} states, or over all if there are fewer: which
  row it is changes nothing, and dense rows cost |S|^2 per pair.
- The oblivious index sees states around a circle in random order: k' = 8 neighbours are mutual, as
  the published coverage k'/(|S| - 1) requires. The hidden pair is drawn from those it does not
  cover.
- The lower arm starts at 0: to start at d_R is to read rewards, which the rule may not.
- gamma = {GAMMA}; on growing models the gap is {RHO:g}. Rewards span the gap, so that L = rho_0,
  also where that is above the L = 1 of the paper's other studies.
- (ii) by enumeration of all bits. Rules: partner pairs in order, and all pairs in a random order;
  outputs: the lower arm, and half the gap wherever nothing is known.
"""


def run(options: Options) -> Result:
    """Planted gaps, hidden bits, and a fixed budget on growing models."""
    result = Result("lower_bounds", "Lower bounds: the coverage gap cannot be avoided", options)
    seeds = options.seeds(2, 10)
    gaps = {gap: Rows(planted(20, gap, seed) for seed in seeds) for gap in PUBLISHED_ERRORS}
    sizes = options.pick((20, 40), (20, 40, 80, 160))
    grown = {n: Rows(planted(n, RHO, seed) for seed in seeds) for n in sizes}
    n_bits = options.pick(3, 5)
    bits = hidden_bits(n_bits, options.seed)
    title = f"(i) Planted gaps, 20 states, k' = {BUDGET}, {len(seeds)} hidden pairs each"
    rows = [planted_row(gap, runs) for gap, runs in gaps.items()]
    result.add_table("lower_bounds_planted", title, rows)
    title = f"(i) Fixed budget k' = {BUDGET}, planted gap {RHO:g}"
    rows = [growth_row(n, runs) for n, runs in grown.items()]
    result.add_table("lower_bounds_growth", title, rows)
    title = f"(ii) {n_bits} hidden bits, {2 * n_bits} states, gap {RHO:g}: expected errors"
    result.add_table("lower_bounds_bits", title, bit_rows(bits, n_bits))
    result.judge(PLANTED_CLAIMS, planted_figures(gaps, grown))
    result.judge(BIT_CLAIMS, bit_figures(bits, n_bits))
    result.choose(CHOICES)
    draw_growth(result, grown)
    draw_bits(result, bits, n_bits)
    return result


# -- (i) a planted pair ------------------------------------------------------------------------


def common_kernel(n: int, rewards: FloatArray) -> TabularMDP:
    """A model in which every state and action leads to the same distribution."""
    size, rows = min(n, COMMON), rewards.size
    successors, probs = np.tile(np.arange(size), rows), np.full(rows * size, 1.0 / size)
    return TabularMDP.from_rows(np.arange(rows + 1) * size, successors, probs, rewards)


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


def from_zero(mdp: TabularMDP, first: IntArray, second: IntArray) -> Arms:
    """Arms over some pairs at their limits, the lower one from 0."""
    arms = Arms(mdp, GAMMA, lower_start="zero", upper_start="constant")
    arms.cover(first, second)
    settle(arms)
    return arms


def planted(n: int, gap: float, seed: int) -> Row:
    """Plant a gap at a pair that an oblivious rule missed, and run both instances.

    Returns:
        Coverage and error of the lower arm from 0 where the gap is there, its error with all
        pairs covered and that of the arm from d_R with none; and whether the metrics of both
        instances differ by the gap, certified, while all that was looked at is the same bit for
        bit ("is_hidden"), the error is the gap, is the coverage gap, and goes with full coverage.
    """
    first, second = oblivious_pairs(n, seed)
    is_open = np.triu(np.ones((n, n), bool), 1)
    is_open[first, second] = False
    missed = np.argwhere(is_open)
    i, j = missed[np.random.default_rng([seed, n, 1]).integers(len(missed))]
    tables, found, metrics = [], [], []
    for sign in (1, -1):
        mdp = common_kernel(n, planted_rewards(n, (int(i), int(j)), gap, sign))
        metric = bisimulation_metric(mdp, GAMMA)
        arms = from_zero(mdp, first, second)
        # What the model of evaluation reveals, besides the arm made of it.
        tables.append((arms.lower, np.abs(mdp.rewards[first] - mdp.rewards[second])))
        metrics.append(metric.bounds(i, j))
        found.append(examine(arms, metric))
    (low_none, high_none), (low, high) = metrics
    is_planted = bool(low_none <= 0.0 <= high_none and low <= gap <= high)
    is_planted &= bool(high - low <= 1e-8 * gap and high_none <= 1e-8 * gap)
    is_same = all(np.array_equal(*both) for both in zip(*tables, strict=True))
    full = examine(from_zero(mdp, *np.triu_indices(n, 1)), metric)
    untouched = examine(Arms(mdp, GAMMA), metric)
    return {
        "gap": gap,
        "coverage": found[1].coverage,
        "error": found[1].error,
        "full error": full.error,
        "error from d_R": untouched.error,
        "is_hidden": is_planted and is_same,
        "is_identity": all(x.is_identity and x.is_contracted for x in found),
        "is_exact": abs(found[1].error - gap) <= found[1].slack,
        "is_enclosed": all(x.is_enclosed for x in (*found, full, untouched)),
        "is_removed": full.error <= full.slack,
    }


def planted_figures(gaps: dict[float, Rows], grown: dict[int, Rows]) -> Row:
    """Theorems on planted pairs; coverage falls, the error stays."""
    some, more = (Rows(x for runs in of.values() for x in runs) for of in (gaps, grown))
    errors = more.column("error")
    spread = max(errors) - min(errors)
    return Rows(some + more).columns() | {
        "correlation": float(np.corrcoef(some.column("gap"), some.column("error"))[0, 1]),
        **{
            f"coverage {n}": max(grown[n].column("coverage")) if n in grown else None
            for n in PUBLISHED_COVERAGE
        },
        "spread": spread,
        "fewest": min(grown),
        "most": max(grown),
    }


# -- (ii) hidden bits --------------------------------------------------------------------------


def hidden_bits(n_bits: int, seed: int) -> list[Row]:
    """Expected errors of several rules, by enumeration of all bits."""
    n = 2 * n_bits
    partners = np.arange(n).reshape(n_bits, 2)
    every = np.stack(np.triu_indices(n, 1), axis=1)
    shuffled = np.random.default_rng([seed, n]).permutation(every)
    quarters = {len(every) * k // 4 for k in range(5)}
    return [
        *enumerated("partner pairs in order", partners, list(range(n_bits + 1)), n_bits),
        *enumerated("all pairs in random order", shuffled, sorted({n_bits - 1} | quarters), n_bits),
    ]


def enumerated(name: str, order: IntArray, counts: list[int], n_bits: int) -> list[Row]:
    """Errors over all values of the bits, by number of evaluations, for two outputs.

    Returns:
        For either output the numbers of evaluations, expected errors, what the bounds of the
        metric leave open ("slack"), whether all runs enclosed the metric, and whether pairs of
        strangers showed the same whatever the bits are ("is_blind").
    """
    sums = np.zeros((2, len(counts)))
    is_enclosed, slack = True, 0.0
    strangers: list[FloatArray] = []
    values = list(itertools.product((1, -1), repeat=n_bits))
    for bits in values:
        mdp = bit_model(bits)
        metric = bisimulation_metric(mdp, GAMMA)
        slack = max(slack, metric.gap + 16.0 * EPS * RHO / (1.0 - GAMMA))
        for k, count in enumerate(counts):
            arms = from_zero(mdp, order[:count, 0], order[:count, 1])
            is_enclosed &= is_between(arms, metric)
            sums[:, k] += errors_of(arms, metric.upper)
        s, t = arms.pairs()
        is_partner = (s % 2 == 0) & (t == s + 1)
        strangers.append(arms.lower[~is_partner])
    is_blind = all(np.array_equal(strangers[0], x) for x in strangers)
    return [
        {
            "rule": f"{name}, {output}",
            "evaluations": counts,
            "errors": (row / len(values)).tolist(),
            "slack": slack,
            "is_enclosed": is_enclosed,
            "is_blind": is_blind,
        }
        for row, output in zip(sums, ("lower arm", "half the gap elsewhere"), strict=True)
    ]


def errors_of(arms: Arms, truth: FloatArray) -> tuple[float, float]:
    """Of the lower arm, and of half the gap wherever nothing is known."""
    every = np.triu_indices(arms.n, 1)
    guess = np.full(truth.shape, RHO / 2)  # right for strangers, half right for partners
    guess[arms.pairs()] = arms.lower
    low = arms.bounds(*every)[0]
    error, other = np.abs(low - truth[every]).max(), np.abs(guess - truth)[every].max()
    return float(error), float(other)


def bit_model(bits: tuple[int, ...]) -> TabularMDP:
    """The family of part (ii): partners differ in their own action alone, if their bit says so."""
    count = len(bits)
    rewards = np.full((2 * count, count), RHO / 2)
    for k, bit in enumerate(bits):
        rewards[2 * k, k] = RHO
        rewards[2 * k + 1, k] = RHO if bit > 0 else 0.0
    return common_kernel(2 * count, rewards)


def bit_figures(bits: list[Row], n_bits: int) -> Row:
    """The adaptive bound in every run."""
    smart = next(x for x in bits if x["rule"].startswith("partner") and "half" in x["rule"])
    before, after = smart["errors"][-2:]
    return {
        "n_bits": n_bits,
        "n": 2 * n_bits,
        "values": 2**n_bits,
        "one_less": n_bits - 1,
        "at least half": [
            error >= RHO / 2 - x["slack"]
            for x in bits
            for count, error in zip(x["evaluations"], x["errors"], strict=True)
            if count < n_bits
        ],
        "blind and enclosed": [x["is_blind"] and x["is_enclosed"] for x in bits],
        "exact in the end": [
            x["errors"][-1] <= 1e-8 * RHO for x in bits if x["rule"].startswith("all")
        ],
        "before": before,
        "after": after,
        "is tight": after <= 1e-8 < before,
    }


# -- tables and figures ------------------------------------------------------------------------


def planted_row(gap: float, runs: Rows) -> Row:
    """Errors under one planted gap."""
    return {
        "planted gap": gap,
        "error, published": PUBLISHED_ERRORS[gap],
        "least error": min(runs.column("error")),
        "largest error": max(runs.column("error")),
        "what any rule must risk": gap / 2,
    }


def growth_row(n: int, runs: Rows) -> Row:
    """A fixed budget at one size."""
    coverage = max(runs.column("coverage"))
    return {
        "|S|": n,
        "coverage, published": PUBLISHED_COVERAGE.get(n),
        "coverage": coverage,
        "error, published": RHO,
        "least error": min(runs.column("error")),
        "largest error": max(runs.column("error")),
        "least expected error of any rule": (1.0 - coverage) * RHO / 2,
        "error, all pairs covered": max(runs.column("full error")),
        "error from d_R, no pair covered": max(runs.column("error from d_R")),
    }


def bit_rows(bits: list[Row], n_bits: int) -> list[Row]:
    """Expected errors of part (ii)."""
    rows = []
    for x in bits:
        for count, error in zip(x["evaluations"], x["errors"], strict=True):
            bound = RHO / 2 if count < n_bits else 0.0
            row = {"rule": x["rule"], "evaluations": count, "expected error": error}
            rows.append(row | {"bound": bound})
    return rows


def draw_growth(result: Result, grown: dict[int, Rows]) -> None:
    """Error and coverage against the number of states."""
    series = (
        ("error", "o-", "tab:red", f"error of the lower arm, k' = {BUDGET}"),
        ("full error", "s-", "tab:green", "error with all pairs covered"),
        ("coverage", "^--", "tab:blue", "coverage (share of pairs)"),
    )
    with result.figure(
        "lower_bounds",
        size=(8.5, 4.2),
        ticks={n: str(n) for n in grown},
        xscale="log",
        ylim=(-0.03, RHO * 1.1),
        xlabel="states",
        ylabel="error, and share of pairs",
        title=f"Coverage falls, the planted gap of {RHO:g} stays",
    ) as axes:
        for name, style, colour, text in series:
            values = [max(runs.column(name)) for runs in grown.values()]
            axes.plot(list(grown), values, style, color=colour, label=text)
        axes.axhline(RHO / 2, color="tab:orange", ls=":", label="half the gap: risk of any answer")
        known = {n: x for n, x in PUBLISHED_COVERAGE.items() if n in grown}
        hollow: Row = {"ms": 12, "mfc": "none", "color": "tab:blue", "label": "coverage, published"}
        axes.plot(list(known), list(known.values()), "o", **hollow)


def draw_bits(result: Result, bits: list[Row], n_bits: int) -> None:
    """Expected error against evaluations."""
    styles = (("o-", "tab:red"), ("s-", "tab:blue"), ("o--", "tab:red"), ("s--", "tab:blue"))
    with result.figure(
        "lower_bounds_bits",
        size=(9.0, 4.2),
        ylim=(-0.02, RHO * 1.05),
        xlabel="pairs evaluated",
        ylabel="expected error over all bits",
        title=f"{n_bits} hidden bits in {2 * n_bits} states, gap {RHO:g}",
    ) as axes:
        for x, (marker, colour) in zip(bits, styles, strict=True):
            style = {"color": colour, "ms": 4, "label": x["rule"]}
            axes.plot(x["evaluations"], x["errors"], marker, **style)
        style = {"color": "grey", "alpha": 0.25, "label": "excluded by part (ii)"}
        axes.fill_between([0, n_bits - 1], 0.0, RHO / 2, **style)
