"""Benchmarks: times and ratios against peers, measured in the same run.

Not a test: machines are noisy, so every figure is the best of several repeats, and the
ratios are what to look at. Peers that are not installed are named and left out.

    python scripts/bench.py            everything, a few minutes
    python scripts/bench.py --quick    small sizes, to see that it runs
    python scripts/bench.py transport metric
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from peers import (
    Chain,
    linprog_value,
    plain_deterministic,
    plain_mico,
    plain_stochastic,
    pot_sweep,
    sinkhorn_value_iteration,
    storm_chain,
    storm_mdp,
    storm_states,
)
from rich.console import Console
from rich.table import Table

from bisim_abstract import (
    Covering,
    Resources,
    TabularMDP,
    bisimulation_classes,
    bisimulation_metric,
    certify,
    mico_distance,
)
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._exact.pair_solvers import Matching, StochasticPairs
from bisim_abstract.parts import landmark_mds, random_mdp, solve_transport, sparse_mdp
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp

os.environ.setdefault("POT_BACKEND_DISABLE_PYTORCH", "1")  # POT then imports in a moment
console = Console(width=110, highlight=False)


@dataclass(frozen=True)
class Options:
    """How much to do."""

    quick: bool
    repeats: int


def best(work: Callable[[], object], repeats: int) -> float:
    """Least seconds over several calls."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def best_cpu(work: Callable[[], object], repeats: int) -> float:
    """Least seconds of processor time over several calls, all threads together.

    Where one side takes microseconds and the other seconds, only the latter would wait for
    whatever else runs on the machine.
    """
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def peer(name: str) -> Any | None:
    """A peer's module, or None with a remark."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        console.print(f"[yellow]{name} is not installed, left out ({error})[/yellow]")
        return None


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """One table of results."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def problems(count: int, m: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Transport problems with m x m supports in a metric space."""
    x, y = rng.random((count, m, 1, 3)), rng.random((count, 1, m, 3))
    cost = np.sqrt(((x - y) ** 2).sum(axis=-1))
    return cost, rng.dirichlet(np.ones(m), count), rng.dirichlet(np.ones(m), count)


def bench_transport(options: Options) -> None:
    """Batches of small transport problems, one core."""
    emd = peer("ot.lp.emd_wrap")
    rng = np.random.default_rng(0)
    overhead = 0.0
    if emd is not None:
        one, unit = np.ones((1, 1)), np.ones(1)
        calls = 2_000
        overhead = best(
            lambda: [emd.emd_c(unit, unit, one, 100_000, 1) for _ in range(calls)],
            2 * options.repeats,
        )
        overhead *= 1e6 / calls
    rows = []
    for m in (2, 4, 5, 8, 18) if options.quick else (2, 3, 4, 5, 8, 18, 50, 150):
        count = 200 if options.quick else (20_000 if m <= 8 else 400_000 // m**2 + 20)
        cost, a, b = problems(count, m, rng)
        solve_transport(cost[:2], a[:2], b[:2])
        solve = partial(solve_transport, cost, a, b, resources=Resources(threads=1))
        ours = best(solve, options.repeats) / count * 1e6
        row = [f"{m} x {m}", f"{ours:.2f}"]
        if emd is not None:
            some = min(count, 3_000)
            prepared = [(a[k].copy(), b[k].copy(), cost[k].copy()) for k in range(some)]
            pot = best(
                lambda: [emd.emd_c(*p, 100_000, 1) for p in prepared],  # noqa: B023
                options.repeats,
            )
            pot *= 1e6 / some
            row += [f"{pot:.2f}", f"{pot / ours:.1f}x"]
        else:
            row += ["-", "-"]
        if m <= 8:
            few = 5 if options.quick else 50
            lp = best(lambda: [linprog_value(cost[k], a[k], b[k]) for k in range(few)], 2)  # noqa: B023
            lp *= 1e6 / few
            row += [f"{lp:.0f}", f"{lp / ours:,.0f}x"]
        else:
            row += ["-", "-"]
        rows.append(row)
    show(
        "Exact transport, one core, µs per problem (ours with duals and certified bounds)",
        ["supports", "ours", "POT emd_c", "ratio", "SciPy LP", "ratio"],
        rows,
    )
    if emd is not None:
        console.print(
            f"  POT's call overhead, measured on 1 x 1 problems: {overhead:.2f} µs (most of its "
            "time on small supports)\n"
        )


def bench_sweep(options: Options) -> None:
    """One full exact sweep: every pair, every action."""
    n = 60 if options.quick else 400
    mdp = sparse_mdp(n, 3, support=4, seed=0)
    gamma, pairs = 0.9, n * (n - 1) // 2
    table = bisimulation_metric(mdp, gamma).upper
    rows = []
    ours = {}
    for threads in (1, 2):
        solver = StochasticPairs(
            mdp, gamma, Matching.by_name(mdp, None), Resources(threads=threads), None
        )
        solver._sweep()
        ours[threads] = best(solver._sweep, options.repeats)
        rows.append([f"ours, {threads} thread(s)", f"{ours[threads]:.3f}",
                     f"{ours[threads] / pairs * 1e6:.2f}", ""])  # fmt: skip
        proof = best(solver.residual, options.repeats)
        rows.append([f"  with certified bounds, {threads} thread(s)", f"{proof:.3f}",
                     f"{proof / pairs * 1e6:.2f}", ""])  # fmt: skip
    emd = peer("ot.lp.emd_wrap")
    if emd is not None:
        seconds = best(lambda: pot_sweep(mdp, gamma, table, emd), 1)
        ratio = seconds / ours[2]
        rows.append(["through POT, one thread", f"{seconds:.2f}", f"{seconds / pairs * 1e6:.1f}",
                     f"{ratio:.1f}x slower than ours on two"])  # fmt: skip
    show(
        f"One full exact sweep, {n} states, 3 actions, support 4 ({pairs:,} pairs)",
        ["", "seconds", "µs per pair", ""],
        rows,
    )
    if not options.quick:
        console.print("  The paper reports 872 s for its sweep of this size (an LP per pair).\n")


def bench_metric(options: Options) -> None:
    """Exact metrics to 1e-9 of the diameter."""
    rows = []
    name = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"
    taxi = extract_mdp(name)
    for gamma in (0.9,) if options.quick else (0.9, 0.99):
        metric = bisimulation_metric(taxi, gamma)
        ours = best(lambda: bisimulation_metric(taxi, gamma), options.repeats)  # noqa: B023
        begin = time.perf_counter()
        table, sweeps = plain_deterministic(taxi, gamma, metric.tol)
        seconds = time.perf_counter() - begin
        assert np.abs(table - metric.upper).max() <= 2.0 * metric.tol
        rows.append([f"{name}, {taxi.n_states} states, gamma {gamma:g}", f"{ours:.4f}",
                     f"{metric.sweeps}", f"{metric.gap:.1e}",
                     f"NumPy {seconds:.2f} s, {sweeps} sweeps: {seconds / ours:.0f}x"])  # fmt: skip
    sizes = (60,) if options.quick else (100, 400)
    for n in sizes:
        mdp = sparse_mdp(n, 3, support=4, seed=0)
        for gamma in (0.9,) if options.quick else (0.9, 0.99, 0.999):
            metric = bisimulation_metric(mdp, gamma)
            ours = best(lambda: bisimulation_metric(mdp, gamma), min(options.repeats, 3))  # noqa: B023
            rows.append([f"sparse, {n} states, gamma {gamma:g}", f"{ours:.3f}",
                         f"{metric.sweeps}", f"{metric.gap:.1e}", ""])  # fmt: skip
    show(
        "Exact metric of all pairs, certified, to 1e-9 of the diameter",
        ["model", "seconds", "sweeps", "gap", "peer, same accuracy"],
        rows,
    )


def one_action(mdp: TabularMDP) -> TabularMDP:
    """The chain that the first action makes of a model."""
    rows = np.arange(mdp.n_states) * mdp.n_actions
    sizes = np.diff(mdp.indptr)[rows]
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    take = np.repeat(mdp.indptr[rows] - indptr[:-1], sizes) + np.arange(indptr[-1])
    return TabularMDP(
        indptr=indptr,
        indices=mdp.indices[take],
        probs=mdp.probs[take],
        rewards=mdp.rewards[:, :1],
    )


def bench_classes(options: Options) -> None:
    """Bisimulation classes by partition refinement."""
    side = 100 if options.quick else 1000
    rooms = gym.make("bisim_abstract/RoomsGrid-v0", side=side, room_size=side // 10, noise=0.0)
    begin = time.perf_counter()
    grid = extract_mdp(rooms, checks=0)
    build = time.perf_counter() - begin
    backgrounds = 20 if options.quick else 2000
    name = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"
    taxi = extract_mdp(Distractor(gym.make(name), n_background=backgrounds), checks=0)
    n = grid.n_states
    line = TabularMDP(
        indptr=np.arange(n + 1),
        indices=np.minimum(np.arange(1, n + 1), n - 1),
        probs=np.ones(n),
        rewards=(np.arange(n) == n - 1).astype(float)[:, None],
    )
    chain = one_action(grid)
    repeats = min(options.repeats, 3)
    rows = []
    for title, mdp, digits in (
        (f"RoomsGrid without noise (built in {build:.1f} s)", grid, 12),
        (f"{name} x {backgrounds} backgrounds", taxi, None),
        ("a line whose states differ only at its end", line, None),
        ("RoomsGrid, one action", chain, 6),
    ):
        classes = bisimulation_classes(mdp, digits=digits)
        ours = best(lambda: bisimulation_classes(mdp, digits=digits), repeats)  # noqa: B023
        rows.append([title, f"{mdp.n_states:,}", f"{mdp.nnz:,}", f"{classes.n_classes:,}",
                     f"{ours:.2f}", ""])  # fmt: skip
    storm = peer("stormpy")
    if storm is not None:
        from stormpy.transformations import perform_bisimulation

        model = storm_chain(chain)
        seconds = best(lambda: perform_bisimulation(model, []), repeats)
        found = perform_bisimulation(model, []).nr_states
        rows.append(["  the same through Storm", f"{n:,}", f"{chain.nnz:,}", f"{found:,}",
                     f"{seconds:.2f}", f"{seconds / ours:.1f}x ours"])  # fmt: skip
    show(
        "Bisimulation classes",
        ["model", "states", "transitions", "classes", "seconds", ""],
        rows,
    )


def bench_arms(options: Options) -> None:
    """Sweeps of the two arms over retrieved pairs, as in the paper's gridworld run."""
    side, neighbours = (20, 8) if options.quick else (50, 20)
    rooms = gym.make("bisim_abstract/RoomsGrid-v0", side=side, room_size=side // 5)
    mdp = extract_mdp(rooms, checks=0)
    rows = []
    for threads in (1, 2):
        arms = Arms(mdp, 0.9, upper_start="constant", resources=Resources(threads=threads))
        states = np.repeat(np.arange(mdp.n_states), neighbours)
        others = np.random.default_rng(0).integers(mdp.n_states, size=states.size)
        arms.cover(states, others)
        begin = time.perf_counter()
        for _ in range(8):
            arms.sweep(lower=False)
        eight = time.perf_counter() - begin
        both = best(arms.sweep, options.repeats)
        rows.append([f"{threads} thread(s)", f"{arms.n_covered:,}", f"{eight:.2f}",
                     f"{1200 / eight:,.0f}x", f"{both:.3f}",
                     f"{2 * arms.n_covered / both:,.0f}"])  # fmt: skip
    show(
        f"The two arms on {mdp.n_states:,} states, {neighbours} pairs per state, support 5, "
        "4 actions",
        ["", "pairs", "8 upper sweeps, s", "paper's 1,200 s", "sweep of both, s", "backups/s"],
        rows,
    )


def bench_scaling(options: Options) -> None:
    """One sweep over 8 neighbours per state against one over all pairs."""
    sizes = (50, 100) if options.quick else (50, 100, 200, 400, 800, 1600)
    rows, times = [], []
    for n in sizes:
        mdp = sparse_mdp(n, 3, support=4, seed=0)
        few = Arms(mdp, 0.9, resources=Resources(threads=1))
        states = np.repeat(np.arange(n), 8)
        few.cover(states, np.random.default_rng(0).integers(n, size=states.size))
        few.sweep()
        sparse = best(few.sweep, options.repeats)
        solver = StochasticPairs(mdp, 0.9, Matching.by_name(mdp, None), Resources(threads=1), None)
        repeats = options.repeats if n <= 400 else 1
        full = 2.0 * best(solver.residual, repeats)  # both arms, like the other
        times.append((n, full, sparse))
        rows.append([f"{n:,}", f"{full:.4f}", f"{sparse:.4f}", f"{full / sparse:.1f}x"])
    logs = np.log(np.array(times))
    slopes = [np.polyfit(logs[:, 0], logs[:, k], 1)[0] for k in (1, 2)]
    show(
        "One certified sweep of both arms, one thread, seconds",
        ["states", "all pairs", "8 per state", "ratio"],
        rows,
    )
    console.print(f"  log-log slopes: {slopes[0]:.2f} and {slopes[1]:.2f}\n")


def bench_reseeding(options: Options) -> None:
    """The paper's re-seeding study: 18 states, 3 neighbours, 6 hyperplanes, gamma 0.7."""
    seeds = range(3 if options.quick else 10)
    rows = []
    for title, partners, frozen in (
        ("one uniform partner per state", 1, False),
        ("retrieval only, evolving embedding", 0, False),
        ("retrieval only, frozen embedding", 0, True),
    ):
        coverage, equal = [], 0
        for seed in seeds:
            mdp = random_mdp(18, 3, seed=seed)
            rewards = mdp.rewards
            points = landmark_mds(
                lambda s, t: np.abs(rewards[s] - rewards[t]).max(axis=-1),  # noqa: B023
                18,
                dim=6,
                seed=seed,
            )
            method = Covering(
                neighbours=3,
                partners=partners,
                dim=6,
                index="LSH6",
                upper_start="constant",
                embedding=points if frozen else None,
            )
            made = certify(mdp, 0.7, method=method, max_rounds=60, seed=seed, tol=1e-9)
            coverage.append(made.coverage)
            middle = 0.5 * float(made.upper.max())
            equal += np.array_equal(*made.partitions(middle))
        rows.append([title, f"{min(coverage):.1%}", f"{np.mean(coverage):.1%}",
                     f"{equal} of {len(coverage)}"])  # fmt: skip
    show(
        "Re-seeding for 60 rounds, random MDPs of 18 states",
        ["", "least coverage", "mean", "equal partitions at half the diameter"],
        rows,
    )


def peers_storm(options: Options) -> None:
    """Storm's quotient with a tolerance, where states are nearly alike."""
    env = RoomsGridEnv(side=20, room_size=5) if options.quick else RoomsGridEnv()
    mdp = env.to_mdp()
    made = certify(mdp, 0.9)
    seconds = best_cpu(lambda: certify(mdp, 0.9), min(options.repeats, 3))
    loss = made.value.loss if made.value is not None else float("nan")
    rows = [["ours, noisy rewards and rows", "", f"{made.n_clusters:,}", f"{seconds:.2f}",
             f"at most {loss:.3g} lost, proven"]]  # fmt: skip
    if peer("stormpy") is not None:
        quiet = RoomsGridEnv(side=env.side, room_size=env.room_size, noise=0.0).to_mdp().rewards
        for title, rewards, tolerances in (
            ("Storm, the same", mdp.rewards, (None, "0.02", "0.5", "1", "1.05")),
            ("Storm, rewards rounded to 0.1", mdp.rewards.round(1), ("0.02", "0.5", "1.05")),
            ("Storm, rewards without noise", quiet, (None, "0.01", "0.02", "0.5")),
        ):
            model = storm_mdp(mdp, rewards)
            for tolerance in tolerances:
                count = storm_states(model, tolerance)
                seconds = best_cpu(lambda: storm_states(model, tolerance), options.repeats)  # noqa: B023
                rows.append([title, tolerance or "default", f"{count:,}", f"{seconds:.3f}", ""])
    show(
        f"States nearly alike: RoomsGrid, {mdp.n_states:,} states in {env.rooms.max() + 1} rooms, "
        "noise 0.02",
        ["", "tolerance", "states left", "CPU s", "what is known of them"],
        rows,
    )


def peers_batch(options: Options) -> None:
    """POT's batched solvers against exact transport."""
    batch = peer("ot.batch")
    rng = np.random.default_rng(0)
    rows = []
    for m, count in ((4, 50),) if options.quick else ((4, 200), (18, 50)):
        cost, a, b = problems(count, m, rng)
        solve = partial(solve_transport, cost, a, b, resources=Resources(threads=1))
        exact = solve()
        ours = best_cpu(solve, options.repeats) / count * 1e6
        rows.append([f"{m} x {m}", "ours", f"{ours:.1f}", "",
                     f"{np.max(exact.upper - exact.lower):.0e}"])  # fmt: skip
        if batch is None:
            continue
        for title, asked in (
            ("POT proximal, as by default", {}),
            ("POT proximal, inner_reg 0.03", {"inner_reg": 0.03, "inner_iter": 3}),
            ("POT Sinkhorn, reg 0.01", {"reg": 0.01, "method": "log_sinkhorn"}),
        ):
            work = partial(batch.solve_batch, cost, a=a, b=b, **asked)
            off = np.abs(np.asarray(work().value_linear) - exact.value).max()
            theirs = best_cpu(work, min(options.repeats, 2)) / count * 1e6
            rows.append([f"{m} x {m}", title, f"{theirs:,.0f}", f"{theirs / ours:,.0f}x",
                         f"{off:.1e}"])  # fmt: skip
    show(
        "Batches of transport problems, costs up to 1.7 (ours on one core)",
        ["supports", "", "CPU µs per problem", "ratio", "largest error"],
        rows,
    )


def peers_sinkhorn(options: Options) -> None:
    """Sinkhorn value iteration and plain iteration against the exact metric of chains."""
    gamma = 0.9
    emd = peer("ot.lp.emd_wrap")
    rows = []
    chains = [("10 states, rows of 10", random_mdp(10, 1, seed=0))]
    if not options.quick:
        chains += [
            ("20 states, rows of 20", random_mdp(20, 1, seed=0)),
            ("50 states, rows of 4", sparse_mdp(50, 1, support=4, seed=0)),
        ]
    for title, mdp in chains:
        metric = bisimulation_metric(mdp, gamma)
        ours = best_cpu(lambda: bisimulation_metric(mdp, gamma), options.repeats)  # noqa: B023
        rows.append([title, "ours", f"{ours:.4f}", "", f"{metric.gap:.0e}"])
        chain, truth = Chain.of(mdp), metric.upper
        for rounds in (100,) if options.quick else (100, 1000):
            found = []  # the best of three rates: which one that is depends on the rounds
            for eta in (0.03, 0.1, 0.3):
                begin = time.process_time()
                table = sinkhorn_value_iteration(
                    chain, gamma, eta=eta, rounds=rounds, tol=metric.tol
                )
                seconds = time.process_time() - begin
                found.append((float(np.abs(table - truth).max()), seconds, eta))
            off, seconds, eta = min(found)
            rows.append([title, f"Sinkhorn value iteration, {rounds:,} rounds, rate {eta:g}",
                         f"{seconds:.2f}", f"{seconds / ours:,.0f}x", f"{off:.1e}"])  # fmt: skip
        if emd is not None:
            begin = time.process_time()
            table, sweeps = plain_stochastic(mdp, gamma, 1e-6, emd)
            seconds = time.process_time() - begin
            off = float(np.abs(table - truth).max())
            rows.append([title, f"value iteration, POT inside, {sweeps} sweeps",
                         f"{seconds:.2f}", f"{seconds / ours:,.0f}x", f"{off:.1e}"])  # fmt: skip
    show(
        f"The metric of chains, gamma {gamma:g}, distances up to 2.5",
        ["chain", "", "CPU s", "ratio", "largest error"],
        rows,
    )


def peers_mico(options: Options) -> None:
    """MICo's distance by plain iteration: another distance, cheaper than the metric."""
    rows = []
    for n in (50,) if options.quick else (50, 400):
        mdp = sparse_mdp(n, 1, support=4, seed=0)
        P, paid = mdp.kernel().toarray(), mdp.rewards[:, 0]
        metric = bisimulation_metric(mdp, 0.9)
        ours = best_cpu(lambda: bisimulation_metric(mdp, 0.9), min(options.repeats, 3))  # noqa: B023
        theirs = best_cpu(lambda: plain_mico(P, paid, 0.9, metric.tol), min(options.repeats, 3))  # noqa: B023
        table, sweeps = plain_mico(P, paid, 0.9, metric.tol)
        proven = mico_distance(mdp, 0.9, np.zeros(n, np.int64), tol=metric.tol)
        own = best_cpu(
            lambda: mico_distance(mdp, 0.9, np.zeros(n, np.int64), tol=metric.tol),  # noqa: B023
            min(options.repeats, 3),
        )
        assert (np.abs(table - proven.upper) <= 2.0 * metric.tol + proven.gap).all()
        # Independent successors are one coupling of many: no pair is nearer than by the metric.
        assert (table >= metric.lower - 2.0 * metric.tol).all()
        off = np.triu(table - metric.upper, 1).max()
        rows.append([f"{n:,} states, rows of 4", f"{ours:.3f}", f"{theirs:.3f}",
                     f"{own:.3f}", f"{sweeps}",
                     f"{off:.2f} of {metric.upper.max():.2f}",
                     f"{np.diag(table).max():.2f}"])  # fmt: skip
    show(
        "MICo's distance by plain iteration in NumPy, to the same accuracy, gamma 0.9",
        [
            "chain",
            "metric, ours, CPU s",
            "MICo, CPU s",
            "MICo, proven, ours",
            "sweeps",
            "above the metric by",
            "from itself",
        ],
        rows,
    )


def bench_peers(options: Options) -> None:
    """Others on their own ground, in one run."""
    peers_storm(options)
    peers_batch(options)
    peers_sinkhorn(options)
    peers_mico(options)


BENCHMARKS = {
    "reseeding": bench_reseeding,
    "arms": bench_arms,
    "scaling": bench_scaling,
    "transport": bench_transport,
    "sweep": bench_sweep,
    "metric": bench_metric,
    "classes": bench_classes,
    "peers": bench_peers,
}


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--repeats", type=int, default=5, help="best of this many (5)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {sorted(unknown)}; there are {', '.join(BENCHMARKS)}")
    options = Options(arguments.quick, 1 if arguments.quick else arguments.repeats)
    cores = len(os.sched_getaffinity(0))
    console.print(f"{cores} cores; best of {options.repeats} repeats\n")
    for name, bench in BENCHMARKS.items():
        if not arguments.names or name in arguments.names:
            bench(options)


if __name__ == "__main__":
    main()
