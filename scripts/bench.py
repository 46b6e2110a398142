"""Benchmarks: times and ratios against peers, measured in the same run.

Not a test: machines are noisy, so every figure is kept with all of its repeats, and the ratios are
what to look at. Peers that are not installed are named and left out.

    python scripts/bench.py            everything, a few minutes
    python scripts/bench.py --quick    small sizes, to see that it runs
    python scripts/bench.py transport metric
    python scripts/bench.py --out benchmarks    keep the figures as JSON, by date and commit

`bench_compare.py` puts two kept runs side by side.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from measured import Figure, Peer, Times, by_title, describe_run, rows_of, timed, write_run
from peers import (
    Chain,
    linprog_value,
    plain_deterministic,
    plain_mico,
    plain_stochastic,
    plain_values,
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
    Reading,
    Resources,
    TabularMDP,
    bisimulation_classes,
    bisimulation_metric,
    certify,
    mico_distance,
    value_iteration,
)
from bisim_abstract._abstract.action_bounds import bound_action_values
from bisim_abstract._base.checks import require
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._exact.pair_solvers import Matching, StochasticPairs
from bisim_abstract.errors import MissingDependency
from bisim_abstract.parts import landmark_mds, random_mdp, read_bridge, solve_transport, sparse_mdp
from bisim_abstract.wrappers import (
    AbstractedEnv,
    AbstractedVectorEnv,
    Distractor,
    ModelEnv,
    RoomsGridEnv,
    TabularEnv,
    enumerate_mdp,
    extract_mdp,
    make_env,
)

os.environ.setdefault("POT_BACKEND_DISABLE_PYTORCH", "1")  # POT then imports in a moment
console = Console(width=120, highlight=False)
timed_cpu = partial(timed, clock=time.process_time)


@dataclass(frozen=True)
class Options:
    """How much to do."""

    quick: bool
    repeats: int


def peer(name: str) -> Any | None:
    """A peer's module, or None with a remark."""
    try:
        return require(name, extra="bench")
    except MissingDependency as error:
        console.print(f"left out: {error}", style="yellow", markup=False)
        return None


def show(figures: tuple[Figure, ...]) -> None:
    """A table for each title."""
    for title, own in by_title(figures).items():
        table = Table(title=title, title_justify="left")
        for k, column in enumerate(("", "best", "median", "ratio", "")):
            table.add_column(column, justify="right" if k in (1, 2, 3) else "left")
        for figure in own:
            for row in rows_of(figure):
                table.add_row(*row)
        console.print(table)


def problems(count: int, m: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Transport problems with m x m supports in a metric space."""
    x, y = rng.random((count, m, 1, 3)), rng.random((count, 1, m, 3))
    cost = np.sqrt(((x - y) ** 2).sum(axis=-1))
    return cost, rng.dirichlet(np.ones(m), count), rng.dirichlet(np.ones(m), count)


def bench_transport(options: Options) -> list[Figure]:
    """Batches of small transport problems, one core."""
    emd = peer("ot.lp.emd_wrap")
    rng = np.random.default_rng(0)
    title = "Exact transport, one core, per problem (ours with duals and certified bounds)"
    figures = []
    for m in (2, 4, 5, 8, 18) if options.quick else (2, 3, 4, 5, 8, 18, 50, 150):
        count = 200 if options.quick else (20_000 if m <= 8 else 400_000 // m**2 + 20)
        cost, a, b = problems(count, m, rng)
        solve = partial(solve_transport, cost, a, b, resources=Resources(threads=1))
        ours = timed(solve, options.repeats, scale=1e6 / count)
        peers = []
        if emd is not None:
            some = min(count, 3_000)
            prepared = [(a[k].copy(), b[k].copy(), cost[k].copy()) for k in range(some)]
            pot = timed(
                lambda: [emd.emd_c(*p, 100_000, 1) for p in prepared],  # noqa: B023
                options.repeats,
                scale=1e6 / some,
            )
            peers.append(Peer("POT emd_c", pot))
        if m <= 8:
            few = 5 if options.quick else 50
            lp = timed(
                lambda: [linprog_value(cost[k], a[k], b[k]) for k in range(few)],  # noqa: B023
                min(options.repeats, 2),
                scale=1e6 / few,
            )
            peers.append(Peer("SciPy LP", lp))
        figures.append(Figure("transport", title, f"{m} x {m}", "µs", ours, tuple(peers)))
    if emd is not None:
        one, unit, calls = np.ones((1, 1)), np.ones(1), 2_000
        overhead = timed(
            lambda: [emd.emd_c(unit, unit, one, 100_000, 1) for _ in range(calls)],
            2 * options.repeats,
            scale=1e6 / calls,
        )
        figures.append(
            Figure(
                "transport",
                title,
                "POT's call overhead, on 1 x 1 problems",
                "µs",
                overhead,
                remark="most of its time on small supports",
            )
        )
    return figures


def bench_sweep(options: Options) -> list[Figure]:
    """One full exact sweep: every pair, every action."""
    n = 60 if options.quick else 400
    mdp = sparse_mdp(n, 3, support=4, seed=0)
    gamma, pairs = 0.9, n * (n - 1) // 2
    table = bisimulation_metric(mdp, gamma).upper
    title = f"One full exact sweep, {n} states, 3 actions, support 4 ({pairs:,} pairs)"
    figures = []
    emd = peer("ot.lp.emd_wrap")
    for threads in (1, 2):
        solver = StochasticPairs(
            mdp, gamma, Matching.of(mdp, "plain", None), Resources(threads=threads), None
        )
        ours = timed(solver._sweep, options.repeats)
        others: tuple[Peer, ...] = ()
        if emd is not None and threads == 2:
            seconds = timed(lambda: pot_sweep(mdp, gamma, table, emd), 1, warm=False)
            others = (Peer("through POT, one thread", seconds),)
        each = f"{ours.best / pairs * 1e6:.2f} µs per pair"
        figures.append(Figure("sweep", title, f"{threads} thread(s)", "s", ours, others, each))
        proof = timed(solver.residual, options.repeats)
        each = f"{proof.best / pairs * 1e6:.2f} µs per pair"
        name = f"with certified bounds, {threads} thread(s)"
        figures.append(Figure("sweep", title, name, "s", proof, remark=each))
    if not options.quick:
        console.print("The paper reports 872 s for its sweep of this size (an LP per pair).")
    return figures


def bench_metric(options: Options) -> list[Figure]:
    """Exact metrics to 1e-9 of the diameter."""
    title = "Exact metric of all pairs, certified, to 1e-9 of the diameter"
    figures = []
    name = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"
    taxi = extract_mdp(name)
    for gamma in (0.9,) if options.quick else (0.9, 0.99):
        metric = bisimulation_metric(taxi, gamma)
        ours = timed(lambda: bisimulation_metric(taxi, gamma), options.repeats)  # noqa: B023
        begin = time.perf_counter()
        table, sweeps = plain_deterministic(taxi, gamma, metric.tol)
        seconds = Times((time.perf_counter() - begin,))
        assert np.abs(table - metric.upper).max() <= 2.0 * metric.tol
        figures.append(
            Figure(
                "metric",
                title,
                f"{name}, {taxi.n_states} states, gamma {gamma:g}",
                "s",
                ours,
                (Peer("NumPy value iteration, same accuracy", seconds, f"{sweeps} sweeps"),),
                f"{metric.sweeps} sweeps, gap {metric.gap:.1e}",
            )
        )
    for n in (60,) if options.quick else (100, 400):
        mdp = sparse_mdp(n, 3, support=4, seed=0)
        for gamma in (0.9,) if options.quick else (0.9, 0.99, 0.999):
            metric = bisimulation_metric(mdp, gamma)
            ours = timed(lambda: bisimulation_metric(mdp, gamma), options.repeats)  # noqa: B023
            remark = f"{metric.sweeps} sweeps, gap {metric.gap:.1e}"
            row = f"sparse, {n} states, gamma {gamma:g}"
            figures.append(Figure("metric", title, row, "s", ours, remark=remark))
    return figures


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


def bench_classes(options: Options) -> list[Figure]:
    """Bisimulation classes by partition refinement."""
    side = 100 if options.quick else 1000
    rooms = gym.make("bisim_abstract/RoomsGrid-v0", side=side, room_size=side // 10, noise=0.0)
    grid = extract_mdp(rooms, reading=Reading(checks=0))
    backgrounds = 20 if options.quick else 2000
    name = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"
    taxi = extract_mdp(
        Distractor(gym.make(name), n_background=backgrounds), reading=Reading(checks=0)
    )
    n = grid.n_states
    line = TabularMDP(
        indptr=np.arange(n + 1),
        indices=np.minimum(np.arange(1, n + 1), n - 1),
        probs=np.ones(n),
        rewards=(np.arange(n) == n - 1).astype(float)[:, None],
    )
    chain = one_action(grid)
    figures = []
    for row, mdp, digits in (
        ("RoomsGrid without noise", grid, 12),
        (f"{name} x {backgrounds} backgrounds", taxi, None),
        ("a line whose states differ only at its end", line, None),
        ("RoomsGrid, one action", chain, 6),
    ):
        classes = bisimulation_classes(mdp, digits=digits)
        ours = timed(lambda: bisimulation_classes(mdp, digits=digits), options.repeats)  # noqa: B023
        remark = f"{mdp.n_states:,} states, {mdp.nnz:,} transitions, {classes.n_classes:,} classes"
        others: tuple[Peer, ...] = ()
        if mdp is chain and peer("stormpy") is not None:
            from stormpy.transformations import perform_bisimulation

            model = storm_chain(chain)
            seconds = timed(lambda: perform_bisimulation(model, []), options.repeats)  # noqa: B023
            found = perform_bisimulation(model, []).nr_states
            others = (Peer("Storm", seconds, f"{found:,} classes"),)
        figures.append(Figure("classes", "Bisimulation classes", row, "s", ours, others, remark))
    return figures


def bench_arms(options: Options) -> list[Figure]:
    """Sweeps of the two arms over retrieved pairs, as in the paper's gridworld run."""
    side, neighbours = (20, 8) if options.quick else (50, 20)
    rooms = gym.make("bisim_abstract/RoomsGrid-v0", side=side, room_size=side // 5)
    mdp = extract_mdp(rooms, reading=Reading(checks=0))
    title = (
        f"The two arms on {mdp.n_states:,} states, {neighbours} pairs per state, support 5, "
        "4 actions"
    )
    figures = []
    for threads in (1, 2):
        spent = []
        for _ in range(options.repeats + 1):  # anew each time: later sweeps do less
            resources = Resources(threads=threads)
            arms = Arms(mdp, 0.9, upper_start="constant", resources=resources)
            states = np.repeat(np.arange(mdp.n_states), neighbours)
            others = np.random.default_rng(0).integers(mdp.n_states, size=states.size)
            arms.cover(states, others)
            begin = time.perf_counter()
            for _ in range(8):
                arms.sweep(lower=False)
            spent.append(time.perf_counter() - begin)
        upper = Times(tuple(spent[1:]))  # the first one loads what was compiled
        pairs = f"{arms.n_covered:,} pairs"
        row = f"8 upper sweeps, {threads} thread(s)"
        paper = f"{pairs}; {1200 / upper.best:,.0f} times the paper's speed (about 1,200 s)"
        figures.append(
            Figure("arms", title, row, "s", upper, remark="" if options.quick else paper)
        )
        both = timed(arms.sweep, options.repeats)
        rate = f"{pairs}, {2 * arms.n_covered / both.best:,.0f} backups per second"
        row = f"a sweep of both, {threads} thread(s)"
        figures.append(Figure("arms", title, row, "s", both, remark=rate))
    return figures


def bench_scaling(options: Options) -> list[Figure]:
    """One sweep over 8 neighbours per state against one over all pairs."""
    sizes = (50, 100) if options.quick else (50, 100, 200, 400, 800, 1600)
    figures, times = [], []
    for n in sizes:
        mdp = sparse_mdp(n, 3, support=4, seed=0)
        few = Arms(mdp, 0.9, resources=Resources(threads=1))
        states = np.repeat(np.arange(n), 8)
        few.cover(states, np.random.default_rng(0).integers(n, size=states.size))
        sparse = timed(few.sweep, options.repeats)
        solver = StochasticPairs(
            mdp, 0.9, Matching.of(mdp, "plain", None), Resources(threads=1), None
        )
        few_states = n <= 400
        # Twice: both arms, like the other.
        repeats = options.repeats if few_states else 1
        full = timed(solver.residual, repeats, scale=2.0, warm=few_states)
        times.append((n, full.best, sparse.best))
        figures.append(
            Figure(
                "scaling",
                "One certified sweep of both arms, one thread",
                f"{n:,} states, 8 pairs per state",
                "s",
                sparse,
                (Peer("all pairs, ours too", full),),
            )
        )
    logs = np.log(np.array(times))
    slopes = [np.polyfit(logs[:, 0], logs[:, k], 1)[0] for k in (1, 2)]
    console.print(f"log-log slopes: {slopes[1]:.2f}, and {slopes[0]:.2f} of all pairs")
    return figures


def bench_reseeding(options: Options) -> list[Figure]:
    """The paper's re-seeding study: 18 states, 3 neighbours, 6 hyperplanes, gamma 0.7."""
    seeds = range(3 if options.quick else 10)
    figures = []
    for row, partners, frozen in (
        ("one uniform partner per state", 1, False),
        ("retrieval only, evolving embedding", 0, False),
        ("retrieval only, frozen embedding", 0, True),
    ):
        coverage, equal = [], 0
        begin = time.perf_counter()
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
        figures.append(
            Figure(
                "reseeding",
                f"Re-seeding for 60 rounds, {len(seeds)} random MDPs of 18 states, all together",
                row,
                "s",
                Times((time.perf_counter() - begin,)),
                remark=f"coverage {min(coverage):.1%} at least, {np.mean(coverage):.1%} on "
                f"average; partitions at half the diameter equal in {equal} of {len(coverage)}",
            )
        )
    return figures


def bench_optimal(options: Options) -> list[Figure]:
    """Distances of optimal action values: bounds and a tree of all states, then the whole run."""
    grids = ((50, 10),) if options.quick else ((100, 10), (300, 30), (1000, 100))
    figures = []
    for side, room in grids:
        mdp = extract_mdp(RoomsGridEnv(side=side, room_size=room))
        sets = np.zeros(mdp.n_states, np.int64)

        def link(mdp: TabularMDP = mdp, sets: Any = sets) -> Any:
            values = bound_action_values(mdp, 0.9)
            return values.forests(sets, float(np.ptp(mdp.rewards)) / 0.1)

        repeats = options.repeats if side < 1000 else 2
        sweeps = timed(partial(plain_values, mdp, 0.9, 1e-10), repeats)
        ours = timed(partial(value_iteration, mdp, 0.9), repeats)
        peers = (Peer("value iteration, plain sweeps", sweeps), Peer("value_iteration", ours))
        title = "Relation optimal: RoomsGrid, gamma 0.9"
        row = f"{mdp.n_states:,} states, bounds and tree"
        figures.append(Figure("optimal", title, row, "s", timed(link, repeats), peers))
        whole = timed(partial(certify, mdp, 0.9, relation="optimal"), min(repeats, 2))
        row = f"{mdp.n_states:,} states, certified"
        figures.append(Figure("optimal", title, row, "s", whole, peers))
    return figures


def step_times(env: Any, options: Options, *, count: int) -> Times:
    """Processor time of a step, in µs; of a vector environment, of the step of one copy."""
    rng = np.random.default_rng(0)
    copies = getattr(env, "num_envs", None)
    space = env.action_space if copies is None else env.single_action_space
    actions = rng.integers(int(space.n), size=count if copies is None else (count, copies))
    chosen = actions.tolist() if copies is None else list(actions)
    env.reset(seed=0)

    def walk() -> None:
        for action in chosen:
            _, _, terminated, truncated, _ = env.step(action)
            if copies is None and (terminated or truncated):
                env.reset()

    return timed_cpu(walk, options.repeats, scale=1e6 / (count * (copies or 1)))


def bench_steps(options: Options) -> list[Figure]:
    """Steps of wrapped environments, of abstractions, and of many copies of one at once."""
    count = 500 if options.quick else 10_000
    taxi = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"
    made: dict[str, Any] = {
        taxi: partial(gym.make, taxi),
        "FrozenLake-v1, 8x8": partial(gym.make, "FrozenLake-v1", map_name="8x8"),
        "CliffWalking-v1": partial(gym.make, "CliffWalking-v1"),
        "RoomsGrid, 20 x 20": partial(
            gym.make, "bisim_abstract/RoomsGrid-v0", side=20, room_size=10
        ),
        f"ModelEnv of {taxi}": lambda: gym.wrappers.TimeLimit(ModelEnv(extract_mdp(taxi)), 1_000),
    }
    if peer("minigrid") is not None:
        made["MiniGrid-Empty-5x5-v0, enumerated"] = partial(make_env, "MiniGrid-Empty-5x5-v0")
    title, title_of_many = "One step, one core", "1,024 copies at once, a step of each, one core"
    figures, many = [], []
    for name, make in made.items():
        raw = step_times(make(), options, count=count)
        itself = (Peer("the environment itself", raw),)
        certificate = certify(extract_mdp(make()), 0.9, tau=1e-9)
        small = AbstractedEnv(make(), certificate)
        ground = AbstractedEnv(make(), certificate, dynamics="ground")
        for kind, env in (("TabularEnv", TabularEnv(make())), ("ground", ground), ("", small)):
            row = f"{name}, {kind or 'aggregated'}"
            ours = step_times(env, options, count=count)
            figures.append(Figure("steps", title, row, "µs", ours, itself))
        envs = AbstractedVectorEnv(small, 1_024)
        ours = step_times(envs, options, count=count // 10)
        sync = gym.vector.SyncVectorEnv([lambda: AbstractedEnv(make(), certificate)] * 16)  # noqa: B023
        others = (
            Peer("SyncVectorEnv of 16", step_times(sync, options, count=count // 50)),
            Peer("the environment itself", raw),
        )
        many.append(Figure("steps", title_of_many, name, "µs", ours, others))
    return [*figures, *many]


class PlainGrid(gym.Env[int, np.int64]):
    """A square grid as people write one: two attributes, and four actions."""

    def __init__(self, side: int) -> None:
        self.observation_space = gym.spaces.Discrete(side**2)
        self.action_space = gym.spaces.Discrete(4)
        self.side, self.x, self.y = side, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Begin in a corner."""
        super().reset(seed=seed)
        self.x = self.y = 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move, if there is no wall."""
        dx, dy = ((1, 0), (-1, 0), (0, 1), (0, -1))[int(action)]
        self.x = min(max(self.x + dx, 0), self.side - 1)
        self.y = min(max(self.y + dy, 0), self.side - 1)
        is_end = self.x == self.y == self.side - 1
        return self.x * self.side + self.y, float(is_end), is_end, False, {}


def bench_enumeration(options: Options) -> list[Figure]:
    """States that enumeration finds, beside as many steps of the environment itself."""
    side = 20 if options.quick else 100
    made: dict[str, Any] = {f"grid of {side} x {side}": partial(PlainGrid, side)}
    if peer("minigrid") is not None:
        name = f"MiniGrid-DoorKey-{'5x5' if options.quick else '8x8'}-v0"
        made[name] = partial(gym.make, name)
    figures = []
    reading = Reading(starts=1)
    for name, make in made.items():
        n_states = enumerate_mdp(make(), reading=reading).n_states
        scale = 1e6 / n_states

        def search(make: Any = make) -> TabularMDP:
            return enumerate_mdp(make(), reading=reading)

        ours = timed_cpu(search, options.repeats, scale=scale)
        itself = Peer("its steps alone", step_times(make(), options, count=1_000))
        figures.append(Figure("enumeration", "One state, one core", name, "µs", ours, (itself,)))
    return figures


def turned(state: int, action: int, *, n: int) -> list[tuple[float, int, float, bool]]:
    """A light function: two ways on from each of n states, all of which are met."""
    return [(1.0, (2 * state + action) % n, 0.0, False)]


def plain_search(start: int, n_actions: int, outcomes: Any) -> int:
    """Breadth-first search that builds nothing: how many states there are."""
    seen, states = {start}, [start]
    for state in states:
        for action in range(n_actions):
            for _, after, _, _ in outcomes(state, action):
                if after not in seen:
                    seen.add(after)
                    states.append(after)
    return len(states)


def bench_sources(options: Options) -> list[Figure]:
    """Models from a function, and from a file as BRIDGE writes them."""
    n = 2_000 if options.quick else 200_000
    outcomes = partial(turned, n=n)
    search = partial(plain_search, 1, 2, outcomes)
    assert search() == n
    ours = timed_cpu(lambda: TabularMDP.from_function(1, 2, outcomes), options.repeats)
    plain = Peer("a plain search that builds nothing", timed_cpu(search, options.repeats))
    row, rate = f"from_function, {n:,} states, 2 actions", f"{n / ours.best:,.0f} states a second"
    title = "Models from elsewhere, one core"
    figures = [Figure("sources", title, row, "CPU s", ours, (plain,), rate)]
    states, paid = np.arange(n)[:, None], np.zeros((n, 4), np.float32)
    after = np.where(states == n - 1, -1, (4 * states + np.arange(4)) % n)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bridge.npz"
        np.savez(path, transitions=after, rewards=paid)

        def arrays() -> list[Any]:
            with np.load(path) as file:
                return [file[name] for name in ("transitions", "rewards")]

        ours = timed_cpu(lambda: read_bridge(path), options.repeats)
        theirs = Peer("its arrays, by numpy.load", timed_cpu(arrays, options.repeats))
    row, rate = f"read_bridge, {n:,} states, 4 actions", f"{n / ours.best:,.0f} states a second"
    return [*figures, Figure("sources", title, row, "CPU s", ours, (theirs,), rate)]


def peers_storm(options: Options) -> list[Figure]:
    """Storm's quotient with a tolerance, where states are nearly alike."""
    env = RoomsGridEnv(side=20, room_size=5) if options.quick else RoomsGridEnv()
    mdp = env.to_mdp()
    made = certify(mdp, 0.9)
    ours = timed_cpu(lambda: certify(mdp, 0.9), options.repeats)
    loss = made.value.loss if made.value is not None else float("nan")
    others = []
    if peer("stormpy") is not None:
        quiet = RoomsGridEnv(side=env.side, room_size=env.room_size, noise=0.0).to_mdp().rewards
        for who, rewards, tolerances in (
            ("Storm", mdp.rewards, (None, "0.02", "0.5", "1", "1.05")),
            ("Storm, rewards rounded to 0.1", mdp.rewards.round(1), ("0.02", "0.5", "1.05")),
            ("Storm, rewards without noise", quiet, (None, "0.01", "0.02", "0.5")),
        ):
            model = storm_mdp(mdp, rewards)
            for tolerance in tolerances:
                count = storm_states(model, tolerance)
                times = timed_cpu(lambda: storm_states(model, tolerance), options.repeats)  # noqa: B023
                name = f"{who}, tolerance {tolerance or 'default'}"
                others.append(Peer(name, times, f"{count:,} states"))
    rooms = env.rooms.max() + 1
    title = f"States nearly alike: RoomsGrid, {mdp.n_states:,} states in {rooms} rooms, noise 0.02"
    remark = f"{made.n_clusters:,} clusters, at most {loss:.3g} lost, proven"
    return [Figure("peers", title, "certify, gamma 0.9", "CPU s", ours, tuple(others), remark)]


def peers_batch(options: Options) -> list[Figure]:
    """POT's batched solvers against exact transport."""
    batch = peer("ot.batch")
    rng = np.random.default_rng(0)
    figures = []
    for m, count in ((4, 50),) if options.quick else ((4, 200), (18, 50)):
        cost, a, b = problems(count, m, rng)
        solve = partial(solve_transport, cost, a, b, resources=Resources(threads=1))
        exact = solve()
        scale = 1e6 / count
        ours = timed_cpu(solve, options.repeats, scale=scale)
        others = []
        if batch is not None:
            for who, asked in (
                ("POT proximal, as by default", {}),
                ("POT proximal, inner_reg 0.03", {"inner_reg": 0.03, "inner_iter": 3}),
                ("POT Sinkhorn, reg 0.01", {"reg": 0.01, "method": "log_sinkhorn"}),
            ):
                work = partial(batch.solve_batch, cost, a=a, b=b, **asked)
                off = np.abs(np.asarray(work().value_linear) - exact.value).max()
                theirs = timed_cpu(work, min(options.repeats, 2), scale=scale)
                others.append(Peer(who, theirs, f"off by {off:.1e}"))
        figures.append(
            Figure(
                "peers",
                "Batches of transport problems, costs up to 1.7, per problem (ours on one core)",
                f"{count} of {m} x {m}",
                "CPU µs",
                ours,
                tuple(others),
                f"bounds {np.max(exact.upper - exact.lower):.0e} apart",
            )
        )
    return figures


def peers_sinkhorn(options: Options) -> list[Figure]:
    """Sinkhorn value iteration and plain iteration against the exact metric of chains."""
    gamma = 0.9
    emd = peer("ot.lp.emd_wrap")
    figures = []
    chains = [("10 states, rows of 10", random_mdp(10, 1, seed=0))]
    if not options.quick:
        chains += [
            ("20 states, rows of 20", random_mdp(20, 1, seed=0)),
            ("50 states, rows of 4", sparse_mdp(50, 1, support=4, seed=0)),
        ]
    for row, mdp in chains:
        metric = bisimulation_metric(mdp, gamma)
        ours = timed_cpu(lambda: bisimulation_metric(mdp, gamma), options.repeats)  # noqa: B023
        chain, truth = Chain.of(mdp), metric.upper
        others = []
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
            who = f"Sinkhorn value iteration, {rounds:,} rounds"
            others.append(Peer(who, Times((seconds,)), f"off by {off:.1e}, rate {eta:g}"))
        if emd is not None:
            begin = time.process_time()
            table, sweeps = plain_stochastic(mdp, gamma, 1e-6, emd)
            times = Times((time.process_time() - begin,))
            off = float(np.abs(table - truth).max())
            remark = f"off by {off:.1e}, {sweeps} sweeps"
            others.append(Peer("value iteration, POT inside", times, remark))
        figures.append(
            Figure(
                "peers",
                f"The metric of chains, gamma {gamma:g}, distances up to 2.5",
                row,
                "CPU s",
                ours,
                tuple(others),
                f"gap {metric.gap:.0e}",
            )
        )
    return figures


def peers_mico(options: Options) -> list[Figure]:
    """MICo's distance by plain iteration: another distance, cheaper than the metric."""
    title = "MICo's distance, to the same accuracy, gamma 0.9"
    figures = []
    for n in (50,) if options.quick else (50, 400):
        mdp = sparse_mdp(n, 1, support=4, seed=0)
        P, paid = mdp.kernel().toarray(), mdp.rewards[:, 0]
        policy = np.zeros(n, np.int64)
        metric = bisimulation_metric(mdp, 0.9)
        ours = timed_cpu(lambda: bisimulation_metric(mdp, 0.9), options.repeats)  # noqa: B023
        theirs = timed_cpu(lambda: plain_mico(P, paid, 0.9, metric.tol), options.repeats)  # noqa: B023
        table, sweeps = plain_mico(P, paid, 0.9, metric.tol)
        proven = mico_distance(mdp, 0.9, policy, tol=metric.tol)
        own = timed_cpu(
            lambda: mico_distance(mdp, 0.9, policy, tol=metric.tol),  # noqa: B023
            options.repeats,
        )
        assert (np.abs(table - proven.upper) <= 2.0 * metric.tol + proven.gap).all()
        # Independent successors are one coupling of many: no pair is nearer than by the metric.
        assert (table >= metric.lower - 2.0 * metric.tol).all()
        off = np.triu(table - metric.upper, 1).max()
        remark = (
            f"{sweeps} sweeps; up to {off:.2f} above metrics of at most "
            f"{metric.upper.max():.2f}, up to {np.diag(table).max():.2f} from itself"
        )
        chain = f"{n:,} states, rows of 4"
        numpy = Peer("MICo by plain iteration in NumPy", theirs, remark)
        figures.append(Figure("peers", title, f"the metric, {chain}", "CPU s", ours, (numpy,)))
        figures.append(
            Figure("peers", title, f"MICo, proven, {chain}", "CPU s", own, remark="between bounds")
        )
    return figures


def bench_peers(options: Options) -> list[Figure]:
    """Others on their own ground, in one run."""
    parts = (peers_storm, peers_batch, peers_sinkhorn, peers_mico)
    return [figure for part in parts for figure in part(options)]


BENCHMARKS = {
    "reseeding": bench_reseeding,
    "arms": bench_arms,
    "scaling": bench_scaling,
    "transport": bench_transport,
    "sweep": bench_sweep,
    "metric": bench_metric,
    "classes": bench_classes,
    "optimal": bench_optimal,
    "steps": bench_steps,
    "enumeration": bench_enumeration,
    "sources": bench_sources,
    "peers": bench_peers,
}


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is done (5)")
    parser.add_argument("--out", type=Path, help="a JSON file, or a directory to name it in")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {sorted(unknown)}; there are {', '.join(BENCHMARKS)}")
    options = Options(arguments.quick, 1 if arguments.quick else arguments.repeats)
    run = describe_run(quick=options.quick)
    machine = run.machine
    console.print(f"{machine['cpu']}, {machine['cores']} cores; {options.repeats} repeats\n")
    figures: list[Figure] = []
    for name, bench in BENCHMARKS.items():
        if not arguments.names or name in arguments.names:
            found = bench(options)
            show(tuple(found))
            figures += found
    if arguments.out is not None:
        path = write_run(replace(run, figures=tuple(figures)), arguments.out)
        console.print(f"written to {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
