"""On-demand exactness by dependency closure (Bacci et al.) against restricted sweeps.

The exact value of a pair needs those of all pairs that its successors can form, and so on. The
closure of a query set under this is solved exactly and nothing else is. The paper reports that on
sparse random models (50 and 100 states, support 4, k' = 12) a few hundred queries close to all
pairs, and that the on-demand method takes 425 to 452 s against 13 to 17 s for the restricted
sweeps; it adds that any connected model behaves so. It leaves open which pairs are queried, gamma
and how many sweeps either side makes.

We query the pairs that the index retrieves, so that both sides answer the same question, sweep
both arms of both until they move by less than 1e-9, with the same kernels on one thread, and show
where time comes from: pairs, and sweeps. Beside them stands our own certificate of all pairs.
Then come models with structure, from one query and from 300, among them a connected one that
refutes the general remark: a cycle, on which one query closes to |S| pairs.
"""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np

from bisim_abstract import Certificate, MetricBounds, TabularMDP, bisimulation_metric, certify
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp
from paper.engine import ONE_THREAD, Claim, Near, Often, Options, Result, Row, Rows, Theorem, timed
from paper.inside import Arms, IntArray, retrieve
from paper.restricted import EPS, examine, settle

GAMMA, ACTIONS, SUPPORT, BUDGET, DIM, INDEX = 0.7, 3, 4, 12, 6, "LSH16"
TOL = 1e-9  # how little the arms may still move, as the paper iterates
CLOSURE_SECONDS, ANN_SECONDS, RATIO, SATURATION = (425, 452), (13, 17), (25, 33), 1.0  # published
COLUMNS = """|S|; seed; queries; closed share, published; closed share; steps; sweeps, closure;
sweeps, ANN; ratio of backups; width at queries, closure; error, ANN; certify says"""
SECONDS_COLUMNS = """|S|; seed; closure s, published; closure s; ANN s, published; ANN s;
ratio, published; ratio; all pairs certified s; certify s"""
CYCLE, SPARSE = "a cycle, 101 states", "sparse random, 100 states"

# fmt: off
THEOREMS = (
    Theorem("The closure reads nothing outside itself; there both arms enclose the metric and "
        "meet, to what their defects prove", measure="is_exact"),
    Theorem("The restricted run errs by exactly its coverage gap, and encloses the metric",
        measure="is_identity"),
)
SATURATES = Often("On sparse random models a few hundred queries close to all pairs within a few "
    "steps", "100%", "is_full", "a model did not mix",
    shown="100% in {held}/{runs}, from {low}-{high} queries in at most {most} steps; "
    "a single query closes to {one:.0%}")
TAKES_LONGER = Near("On-demand takes longer than restricted sweeps by this factor, {n} states",
    RATIO, "ratio",
    "it is pairs times sweeps until the arms stand, less what embedding and index "
    "cost; the published seconds are those of one range for 50 and 100 states, "
    "although there are four times as many pairs at 100, and fit the latter",
    shown="{ratios[0]:.1f}-{ratios[1]:.1f}x (backups: "
    "{work[0]:.1f}-{work[1]:.1f}x)", stated="{}-{}x".format(*RATIO))
CLAIMS = (
    Claim("Seconds of on-demand exactness, at most", "{closure s, published} s", "is quick",
        "compiled transport in place of an LP per pair and action",
        shown="{closure s:.2f} s at {|S|} states; all pairs certified by policy iteration {all "
        "pairs certified s:.2f} s, restricted sweeps {ANN s:.2f} s",
        note="compiled transport in place of an LP per pair and action"),
    Claim("Any connected model closes to everything", "asserted", "all close",
        "being connected is not enough: pairs must mix, and under deterministic moves two states "
        "keep their distance along the cycle for ever; slips do mix RoomsGrid",
        shown="false: one query on a cycle of 101 states closes to {cycle:.1%}; not to all pairs "
        "from {most_queries} queries: {apart}"),
)
# fmt: on
CHOICES = f"""
- gamma = {GAMMA}, three actions, rewards spanning [0, 1]; queries are the pairs that the index
  retrieves with k' = {BUDGET}, whose closure is then solved.
- Both sides sweep both arms from d_R and D until they move by at most {TOL:g}; one thread; seconds
  are those of the processor, best of three (of one for `certify`).
- Seconds of the closure contain the search; those of the restricted run contain embedding and
  index.
- Uniform queries on the models with structure; absorbing ends count as a state.
"""


def run(options: Options) -> Result:
    """Saturation, times, and models that do not saturate."""
    result = Result("closure", "On-demand closure", options)
    sizes = options.pick((50,), (50, 100))
    repeats = options.pick(2, 3)
    contests = Rows(contest(n, seed, repeats) for n in sizes for seed in options.seeds(1, 3))
    counts = options.pick((1, 300), (1, 10, 100, 300))
    shares = {
        name: [share(mdp, count, options.seed) for count in counts]
        for name, mdp in models(options).items()
    }
    title = f"Closure of the pairs retrieved with k' = {BUDGET}"
    result.add_table("closure", title, contests, COLUMNS)
    result.add_table("closure_seconds", "Seconds", contests, SECONDS_COLUMNS)
    result.add_table("closure_models", "Closure of uniform queries", share_rows(shares, counts))
    result.judge(THEOREMS, contests.columns())
    result.judge([SATURATES], saturation(contests) | {"one": shares[SPARSE][0][0]})
    for n, of in contests.by("|S|").items():
        result.judge([TAKES_LONGER], ratios(n, of))
    result.judge(CLAIMS, slowest(contests) | unmixed(shares, counts))
    result.choose(CHOICES)
    draw(result, shares, counts)
    return result


# -- closures ----------------------------------------------------------------------------------


def close(mdp: TabularMDP, first: IntArray, second: IntArray) -> tuple[Arms, list[int]]:
    """All pairs that the values of some pairs depend on, by breadth-first search.

    Returns:
        Arms over them, and the number of pairs after each step.
    """
    n = mdp.n_states
    arms = Arms(mdp, GAMMA, upper_start="constant", resources=ONE_THREAD)
    arms.cover(first, second)
    fresh, sizes = arms.keys, [arms.n_covered]
    while fresh.size:
        layer = Arms(mdp, GAMMA, resources=ONE_THREAD)  # only what is new is looked at again
        layer.cover(*np.divmod(fresh, n))
        s, t = layer.ground_pairs()
        keys = (np.minimum(s, t) * n + np.maximum(s, t))[s != t]
        fresh = np.setdiff1d(keys, arms.keys)
        arms.cover(*np.divmod(fresh, n))
        sizes.append(arms.n_covered)
    return arms, sizes[:-1]


def contest(n: int, seed: int, repeats: int) -> Row:
    """Closure, restricted sweeps and all pairs on one sparse random model.

    Returns:
        Columns of both tables, and whether the theorems held.
    """
    mdp = sparse_mdp(n, ACTIONS, support=SUPPORT, seed=np.random.default_rng([seed, n]))

    def restricted() -> tuple[Arms, int]:
        arms = Arms(mdp, GAMMA, upper_start="constant", resources=ONE_THREAD)
        retrieve(arms, None, DIM, INDEX, BUDGET, np.random.default_rng([seed, n, 1]))
        return arms, settle(arms, tol=TOL)

    def on_demand() -> tuple[Arms, list[int], int]:
        arms, sizes = close(mdp, *queries)
        return arms, sizes, settle(arms, tol=TOL)

    def certified() -> Certificate:
        return certify(mdp, GAMMA, tau="auto", resources=ONE_THREAD)

    def all_pairs() -> MetricBounds:
        return bisimulation_metric(mdp, GAMMA, resources=ONE_THREAD)

    (some, made), some_seconds = timed(restricted, repeats, clock=time.thread_time)
    queries = some.pairs()
    (closed, sizes, needed), closed_seconds = timed(on_demand, repeats, clock=time.thread_time)
    metric, all_seconds = timed(all_pairs, repeats, clock=time.thread_time)
    certificate, certify_seconds = timed(certified, clock=time.thread_time)
    is_exact, width = meets(closed, metric, queries)
    settle(some)  # to its limit, of which the identity speaks
    found = examine(some, bisimulation_metric(mdp, GAMMA, tol=1e-12))
    return {
        "|S|": n,
        "seed": seed,
        "queries": queries[0].size,
        "closed share, published": SATURATION,
        "closed share": closed.n_covered / (n * (n - 1) / 2),
        "steps": len(sizes) - 1,
        "sweeps, closure": needed,
        "sweeps, ANN": made,
        "ratio of backups": closed.n_covered * needed / (queries[0].size * made),
        "width at queries, closure": width,
        "error, ANN": found.error,
        "certify says": said_by(certificate),
        "closure s, published": "{}-{}".format(*CLOSURE_SECONDS),
        "closure s": closed_seconds,
        "ANN s, published": "{}-{}".format(*ANN_SECONDS),
        "ANN s": some_seconds,
        "ratio, published": "{}-{}".format(*RATIO),
        "ratio": closed_seconds / some_seconds,
        "all pairs certified s": all_seconds,
        "certify s": certify_seconds,
        "is_full": closed.n_covered == n * (n - 1) // 2,
        "is_exact": is_exact and closed.ground_pairs()[0].size == 1 + closed.n_covered,
        "is_identity": found.is_identity and found.is_contracted and found.is_enclosed,
    }


def said_by(certificate: Certificate) -> str:
    """What `certify` says of a model."""
    if not certificate.is_certified:
        return "abstains"
    return f"{int(certificate.labels_upper.max()) + 1} clusters"


def meets(
    arms: Arms, metric: MetricBounds, queries: tuple[IntArray, IntArray]
) -> tuple[bool, float]:
    """Whether both arms enclose the metric on a closed set and meet as they must.

    Nothing outside is read, so the arms contract to d itself. With c the defect of an arm, how
    far its backup lies beyond it (rounded outward), d is within c/(1 - gamma) of the arm: the
    width is at most the sum of both.

    Returns:
        Whether all this holds, and the largest width at the queries.
    """
    low, high = arms.lower, arms.upper
    below, above = metric.bounds(*arms.pairs())
    is_true = bool((low <= above).all() and (high >= below).all())
    rise = arms.backup(arms.ground_costs(is_upper=False), is_upper=True) - low
    fall = high - arms.backup(arms.ground_costs(is_upper=True), is_upper=False)
    most = max(0.0, float(rise.max())) + max(0.0, float(fall.max()))
    allowed = most / (1.0 - GAMMA) + 16.0 * EPS * arms.starts.diameter
    is_true &= bool((high - low).max() <= allowed)
    # The arms have stopped: a defect is a few times what they still moved, so this says a lot.
    is_true &= allowed <= 4.0 * (TOL + 64.0 * EPS * arms.starts.diameter) / (1.0 - GAMMA)
    lows, highs = arms.bounds(*queries)
    return is_true, float((highs - lows).max())


def models(options: Options) -> dict[str, TabularMDP]:
    """Models to close queries on: the paper's, and others with structure."""
    n = 101
    rewards = np.random.default_rng(options.seed).random((n, 1))
    step = (np.arange(n) + 1) % n
    taxi = "Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4"
    found = {
        SPARSE: sparse_mdp(100, ACTIONS, support=SUPPORT, seed=options.seed),
        "RoomsGrid, slippery, 100 states": RoomsGridEnv(side=10, room_size=5).to_mdp(),
        "RoomsGrid, no slip, 144 states": RoomsGridEnv(side=12, room_size=4, slip=0.0).to_mdp(),
        CYCLE: TabularMDP.from_rows(np.arange(n + 1), step, np.ones(n), rewards),
        "FrozenLake 8x8, 65 states": extract_mdp(gym.make("FrozenLake-v1", map_name="8x8")),
    }
    if not options.quick:
        found["Taxi, 501 states"] = extract_mdp(gym.make(taxi))
    return found


def share(mdp: TabularMDP, count: int, seed: int) -> tuple[float, int]:
    """Share of all pairs that uniform queries close to, and the steps it took."""
    n = mdp.n_states
    rng = np.random.default_rng([seed, count])
    s = rng.integers(n, size=count)
    arms, sizes = close(mdp, s, (s + rng.integers(1, n, size=count)) % n)
    return arms.coverage, len(sizes) - 1


# -- figures of claims -------------------------------------------------------------------------

Shares = dict[str, list[tuple[float, int]]]


def saturation(contests: Rows) -> Row:
    """How far the paper's models close."""
    queries, steps = contests.column("queries"), contests.column("steps")
    return contests.columns() | {"low": min(queries), "high": max(queries), "most": max(steps)}


def ratios(n: int, contests: Rows) -> Row:
    """How much longer the on-demand method takes at one size."""
    found, work = contests.column("ratio"), contests.column("ratio of backups")
    ranges = {"ratios": (min(found), max(found)), "work": (min(work), max(work))}
    return {"n": n, "ratio": float(np.median(found)), **ranges}


def slowest(contests: Rows) -> Row:
    """The closure that took longest."""
    row = max(contests, key=lambda x: x["closure s"])
    return row | {"is quick": row["closure s"] <= CLOSURE_SECONDS[1]}


def unmixed(shares: Shares, counts: tuple[int, ...]) -> Row:
    """Models that do not close to all pairs."""
    apart = [name for name, found in shares.items() if found[-1][0] < 1.0]
    return {
        "all close": not apart,
        "apart": ", ".join(apart) or "none",
        "cycle": shares[CYCLE][0][0],
        "most_queries": counts[-1],
    }


# -- tables and figures ------------------------------------------------------------------------


def share_rows(shares: Shares, counts: tuple[int, ...]) -> list[Row]:
    """Closures of uniform queries on several models."""
    names = [f"{count} queries" if count > 1 else "1 query" for count in counts]
    rows = []
    for model, found in shares.items():
        row: Row = {"model": model}
        rows.append(row)
        for name, (part, steps) in zip(names, found, strict=True):
            row |= {f"share, {name}": part, f"steps, {name}": steps}
    return rows


def draw(result: Result, shares: Shares, counts: tuple[int, ...]) -> None:
    """Share of pairs that queries close to, by model."""
    with result.figure(
        "closure",
        size=(9.0, 4.2),
        ticks={x: str(x) for x in counts},
        xscale="log",
        ylim=(-3, 105),
        xlabel="queries",
        ylabel="pairs in their closure, %",
        title="What an exact answer on demand depends on",
    ) as axes:
        for k, ((name, found), marker) in enumerate(zip(shares.items(), "os^vDP", strict=False)):
            percents = [100 * x for x, _ in found]
            # The first lies below the second: let it show.
            size, width = (11, 4.0) if k == 0 else (6, 1.5)
            axes.plot(counts, percents, marker + "-", label=name, markersize=size, linewidth=width)
