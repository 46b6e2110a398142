"""Certificates over all pairs: the cases of the documentation, and growth up to a million states.

    python scripts/all_pairs.py                 cases, then growth to 1,000,000 states
    python scripts/all_pairs.py growth --blocks also up to 1,000,000 states in 10,000 rooms
    python scripts/all_pairs.py --quick         the small ones

Thresholds are those of the widest certified interval, whatever it is worth, as rooms are looked
for. Every certificate is verified by independent code before its row is printed. Planted rooms
are read only to compare the result with them.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import Blocks, Certificate, TabularMDP, certify, verify
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._base.types import IntArray, Progress
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp

GAMMA = 0.9
GROWTH = ((50, 10), (100, 10), (300, 30), (1000, 100))  # sides of grids and of their rooms
console = Console(width=160, highlight=False)


@dataclass
class Stages:
    """Seconds spent in the stages of a run, as its progress reports tell them apart."""

    seconds: dict[str, float] = field(default_factory=dict)
    _stage: str = "start"
    _since: float = field(default_factory=time.perf_counter)

    def enter(self, stage: str) -> None:
        """Book the time since the last call to the stage before."""
        now = time.perf_counter()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def __call__(self, progress: Progress) -> None:
        """A progress report of `certify`."""
        name = progress.stage
        stage = "bound" if name.startswith("bounding") else "refine"
        self.enter("propose" if name.startswith("looking") else stage)


@dataclass(frozen=True)
class Case:
    """A model and what is asked of it."""

    name: str
    mdp: TabularMDP
    planted: IntArray | None = None
    tau: float | str = "auto"
    blocks: IntArray | None = None
    expected: int | None = None


def rooms(side: int, room_size: int, noise: float) -> tuple[TabularMDP, IntArray]:
    """A grid of rooms, and the room of each state."""
    env = RoomsGridEnv(side=side, room_size=room_size, noise=noise)
    return env.to_mdp(), env.rooms


def taxi() -> gym.Env[np.int64, np.int64]:
    """Taxi-v3, or its successor with the same dynamics where it is retired."""
    return gym.make("Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4")


def cases(*, is_quick: bool) -> Iterator[Case]:
    """The cases of the documentation."""
    mdp, planted = rooms(50, 10, 0.02)
    yield Case("RoomsGrid 2,500, noise 0.02", mdp, planted)
    rng = np.random.default_rng(0)
    wrong = planted.copy()
    changed = rng.choice(wrong.size, wrong.size // 20, replace=False)
    wrong[changed] = rng.integers(25, size=changed.size)
    yield Case("the same, 5% of given labels wrong", mdp, planted, blocks=wrong)
    yield Case("RoomsGrid 225, noise 0.1", *rooms(15, 5, 0.1))
    for n, groups in ((64, 8), (120, 12)):
        yield Case(f"{groups} groups, {n} states", *grouped_mdp(n, groups, noise=0.02, seed=1))
    lake = gym.make("FrozenLake-v1", map_name="8x8", is_slippery=True)
    yield Case(
        "FrozenLake 8x8 x 100 backgrounds",
        extract_mdp(Distractor(lake, n_background=100)),
        tau=1e-6,
        expected=54,
    )
    yield Case("Taxi below its smallest distance", extract_mdp(taxi()), tau=1e-6, expected=500)
    yield Case("sparse random, 2,500 states", sparse_mdp(2500, seed=0))
    if is_quick:
        return
    yield Case(
        "Taxi x 100 backgrounds",
        extract_mdp(Distractor(taxi(), n_background=100)),
        tau=1e-6,
        expected=500,
    )
    yield Case("RoomsGrid 2,500, noise 0.1", *rooms(50, 10, 0.1))


def run_cases(*, is_quick: bool) -> None:
    """Certify and verify each case."""
    table = Table(title=f"All pairs, gamma = {GAMMA:g}", title_justify="left")
    for k, header in enumerate(
        ("model", "states", "clusters", "planted", "retained", "worst loss", "certified for tau in",
         "pairs covered", "steps", "certify", "verify")
    ):  # fmt: skip
        table.add_column(header, justify="left" if k in (0, 8) else "right", no_wrap=k == 0)
    for case in cases(is_quick=is_quick):
        begin = time.perf_counter()
        found = certify(case.mdp, GAMMA, tau=case.tau, method=Blocks(partition=case.blocks))
        made = time.perf_counter()
        verify(case.mdp, found).raise_if_rejected()
        done = time.perf_counter()
        table.add_row(
            case.name,
            f"{found.n_live:,}",
            clusters(found),
            agrees(found, case),
            *worth(found),
            interval(found),
            f"{found.coverage:.1%}",
            "; ".join(found.run["steps"]),
            f"{made - begin:.1f} s",
            f"{done - made:.1f} s",
        )
    console.print(table)


def clusters(found: Certificate) -> str:
    """Number of clusters, if certified."""
    if not found.is_certified:
        return "abstains"
    count = found.n_clusters
    return f"{count:,}" if count < found.n_live else f"{count:,} (nothing merged)"


def worth(found: Certificate) -> tuple[str, str]:
    """The share that solvers retain, and the loss of the worst state; both proven."""
    if found.value is None:
        return "-", "-"
    solver = found.value.solver
    return share_text(solver.kept).replace("at least ", ""), amount_text(solver.loss)


def agrees(found: Certificate, case: Case) -> str:
    """Whether the clusters are the planted ones, or as many as expected."""
    if not found.is_certified or (case.planted is None and case.expected is None):
        return "-"
    count = found.n_clusters
    if case.planted is None:
        return "yes" if count == case.expected else f"no, {case.expected}"
    both = np.unique(np.stack([found.labels_upper, case.planted]), axis=1).shape[1]
    return "yes" if both == count == int(case.planted.max()) + 1 else "no"


def interval(found: Certificate) -> str:
    """The certified interval around tau."""
    if found.tau is None:
        return "-"
    for x in found.certified_thresholds():
        if x.low <= found.tau < x.high:
            return f"[{x.low:.3g}, {x.high:.3g})"
    return "-"


def run_growth(*, is_quick: bool, has_many_blocks: bool) -> None:
    """RoomsGrid with more and more states, all certified over all pairs."""
    certify(rooms(10, 5, 0.02)[0], GAMMA, tau="auto")  # compiles
    sizes = [*GROWTH[: 2 if is_quick else None]]
    if has_many_blocks:  # rooms of one size, more and more of them
        sizes += [(300, 10), (500, 10), (1000, 10)][: 1 if is_quick else None]
    names = ("model", "propose", "bound", "refine", "verify")
    table = Table(title="RoomsGrid, noise 0.02: seconds by stage", title_justify="left")
    for header in ("states", "rooms", "clusters", *names, "total", "peak memory"):
        table.add_column(header, justify="right")
    times = {}
    for side, room_size in sizes:
        stages = Stages()
        stages.enter("model")
        mdp, planted = rooms(side, room_size, 0.02)
        stages.enter("refine")
        found = certify(mdp, GAMMA, tau="auto", callback=stages)
        stages.enter("verify")
        if found.is_certified:
            verify(mdp, found).raise_if_rejected()
        stages.enter("end")
        total = sum(stages.seconds.get(name, 0.0) for name in names)
        if found.is_certified:  # how long it takes to give up is another matter
            times[side, room_size] = total
        case = Case("", mdp, planted)
        gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        table.add_row(
            f"{mdp.n_states:,}",
            f"{int(planted.max()) + 1:,}",
            f"{clusters(found)} ({agrees(found, case)})",
            *(f"{stages.seconds.get(name, 0.0):.2f}" for name in names),
            f"{total:.1f}",
            f"{gigabytes:.1f} GiB",
        )
        if not found.is_certified:
            console.print(found.summary())
    console.print(table)
    by_states = [(side**2, times[side, size]) for side, size in GROWTH if (side, size) in times]
    console.print(f"  log-log slope of total time against states: {slope(by_states):.2f}")
    if has_many_blocks:
        # Of rooms of 10 x 10, so that states grow as rooms do.
        by_rooms = [((side // 10) ** 2, x) for (side, size), x in times.items() if size == 10]
        by_rooms = [(count, x) for count, x in by_rooms if count >= 100]
        text = f"{slope(by_rooms):.2f}, from {by_rooms[0][0]:,} to {by_rooms[-1][0]:,}"
        console.print(f"  log-log slope of total time against rooms: {text}")


def slope(times: list[tuple[int, float]]) -> float:
    """The exponent by which seconds grow with a size; not a number for less than two sizes."""
    if len(times) < 2:
        return math.nan
    sizes, seconds = np.log(np.array(times)).T
    return float(np.polyfit(sizes, seconds, 1)[0])


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="cases, growth; both by default")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument(
        "--blocks", action="store_true", help="also up to a million states in 10,000 rooms"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - {"cases", "growth"}
    if unknown:
        parser.error(f"no part {sorted(unknown)}; there are cases, growth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if not arguments.parts or "cases" in arguments.parts:
            run_cases(is_quick=arguments.quick)
        if not arguments.parts or "growth" in arguments.parts:
            run_growth(is_quick=arguments.quick, has_many_blocks=arguments.blocks)


if __name__ == "__main__":
    main()
