"""What a Ray cluster costs beside threads: local against a local cluster of two processes.

    python scripts/cluster.py          from 2,500 to 1,000,000 states
    python scripts/cluster.py --only verify  tasks whose names have that word
    python scripts/cluster.py --quick  small sizes, to see that it works

On one machine a cluster can only be slower: the table shows by how much, and that the bits are
the same. Times are the best of two, starting the cluster apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import Covering, RayBackend, Resources, bisimulation_metric, certify, verify
from bisim_abstract._base.parallel import Backend, LocalBackend, thread_count
from bisim_abstract._bounds.arms import Arms
from bisim_abstract.parts import retrieve_pairs, sparse_mdp, value_features
from bisim_abstract.wrappers import RoomsGridEnv

GAMMA = 0.9
Task = Callable[[Backend], tuple[np.ndarray[Any, Any], ...]]


def certified(side: int, room_size: int) -> Task:
    """A certificate of RoomsGrid: blocks, and whatever they leave open."""
    mdp = RoomsGridEnv(side=side, room_size=room_size).to_mdp()

    def task(backend: Backend) -> tuple[np.ndarray[Any, Any], ...]:
        found = certify(mdp, GAMMA, tau="auto", resources=Resources(backend=backend))
        levels = [array for x in found.levels for array in (x.keys, x.lower, x.upper)]
        return (found.keys, found.lower, found.upper, found.labels_upper, *levels)

    return task


def swept(n: int) -> Task:
    """One sweep of both arms over all pairs of a sparse model."""
    mdp = sparse_mdp(n, seed=0)

    def task(backend: Backend) -> tuple[np.ndarray[Any, Any], ...]:
        arms = Arms(mdp, GAMMA, resources=Resources(backend=backend))
        arms.cover_all()
        arms.sweep()
        return arms.lower, arms.upper

    return task


def featured(side: int) -> Task:
    """Ten sweeps of eight value features."""
    mdp = RoomsGridEnv(side=side, room_size=side // 10).to_mdp()
    return lambda backend: (
        value_features(
            mdp, GAMMA, count=8, max_iter=10, resources=Resources(backend=backend)
        ).values,
    )


def measured(n: int, node_bytes: int | None = None) -> Task:
    """The exact metric of all pairs of a sparse model; on nodes that small, if asked for."""
    mdp = sparse_mdp(n, seed=0)

    def task(backend: Backend) -> tuple[np.ndarray[Any, Any], ...]:
        if node_bytes is not None and isinstance(backend, RayBackend):
            backend = RayBackend(node_bytes=node_bytes)
        found = bisimulation_metric(mdp, GAMMA, resources=Resources(backend=backend))
        return found.class_lower, found.class_upper

    return task


def checked(n: int, neighbours: int) -> Task:
    """`verify` of a certificate of many covered pairs, in float mode."""
    mdp = sparse_mdp(n, seed=0)
    method = Covering(neighbours=neighbours)
    certificate = certify(mdp, GAMMA, tau=0.5, method=method, max_rounds=1)

    def task(backend: Backend) -> tuple[np.ndarray[Any, Any], ...]:
        found = verify(mdp, certificate, resources=Resources(backend=backend))
        return np.array([found.is_valid, found.widening, found.pairs_checked]), np.zeros(0)

    return task


def searched(n: int) -> Task:
    """Twenty neighbours of every point, in an exact index."""
    points = np.random.default_rng(0).normal(size=(n, 8))
    return lambda backend: retrieve_pairs(
        points, k=20, seed=0, resources=Resources(backend=backend)
    )


def tasks(*, quick: bool) -> dict[str, Callable[[], Task]]:
    """Names and makers of what is timed."""
    if quick:
        return {
            "certify RoomsGrid, 400 states": lambda: certified(20, 5),
            "one sweep of all pairs, 200 states": lambda: swept(200),
            "ten sweeps of 8 features, 10,000 states": lambda: featured(100),
            "exact metric, 100 states": lambda: measured(100),
            "exact metric, 200 states, in parts": lambda: measured(200, 1_400_000),
            "verify, 100 neighbours of 200 states": lambda: checked(200, 100),
            "20 nearest of 4,000 points": lambda: searched(4_000),
        }
    return {
        "certify RoomsGrid, 2,500 states": lambda: certified(50, 10),
        "certify RoomsGrid, 10,000 states": lambda: certified(100, 10),
        "certify RoomsGrid, 90,000 states": lambda: certified(300, 30),
        "certify RoomsGrid, 1,000,000 states": lambda: certified(1000, 100),
        "one sweep of all pairs, 1,000 states": lambda: swept(1_000),
        "ten sweeps of 8 features, 90,000 states": lambda: featured(300),
        "ten sweeps of 8 features, 1,000,000 states": lambda: featured(1000),
        "exact metric, 300 states": lambda: measured(300),
        "exact metric, 600 states": lambda: measured(600),
        "exact metric, 600 states, in parts": lambda: measured(600, 12_000_000),
        "verify, 400 neighbours of 1,000 states": lambda: checked(1_000, 400),
        "20 nearest of 30,000 points": lambda: searched(30_000),
    }


def timed(task: Task, backend: Backend, repeats: int) -> tuple[float, Any]:
    """Best time, and the result."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        found = task(backend)
        best = min(best, time.perf_counter() - begin)
    return best, found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="A Ray cluster beside threads.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", metavar="WORD", default="", help="tasks with that word")
    parser.add_argument("--address", help="of a running cluster; else a local one is started")
    options = parser.parse_args()
    console = Console(width=110, highlight=False)
    local = LocalBackend(thread_count(None))
    begin = time.perf_counter()
    with RayBackend(address=options.address, num_cpus=2) as cluster:
        seconds = time.perf_counter() - begin
        console.print(f"a cluster of {cluster.cpus} processors: {seconds:.1f} s")
        grid = Table(title="Threads against a Ray cluster", title_justify="left")
        for column in ("task", "threads", "Ray", "ratio", "same bits"):
            grid.add_column(column, justify="left" if column == "task" else "right")
        is_same = True
        for name, make in tasks(quick=options.quick).items():
            if options.only not in name:
                continue
            task = make()
            here, one = timed(task, local, 2)
            there, other = timed(task, cluster, 2)
            same = [x.tobytes() for x in one] == [x.tobytes() for x in other]
            is_same &= same
            verdict = "yes" if same else "NO"
            grid.add_row(name, f"{here:.2f} s", f"{there:.2f} s", f"{there / here:.1f}x", verdict)
        console.print(grid)
    if not is_same:
        raise SystemExit("results differ")


if __name__ == "__main__":
    main()
