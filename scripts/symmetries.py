"""What renaming actions is worth: plain and lax abstractions of the same environments.

    python scripts/symmetries.py               the table, gamma 0.9
    python scripts/symmetries.py --quick       the small ones
    python scripts/symmetries.py --markdown    the same as a table for the documentation
    python scripts/symmetries.py learn         agents on a mirrored grid: lax, plain and raw states
    python scripts/symmetries.py picture FILE  which action is which, drawn

Every certificate is verified by independent code before its row is printed. The command fails if
one is rejected, or if a proof contradicts the truth.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from guarantees import made
from rich.console import Console
from rich.table import Table

from bisim_abstract import (
    QLearning,
    Reading,
    TabularMDP,
    bisimulation_classes,
    certify,
    learning_curve,
    lift_policy,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract._abstract.value import share_text
from bisim_abstract.parts import score_above_baseline
from bisim_abstract.wrappers import AbstractedEnv, Distractor, RoomsGridEnv, extract_mdp, make_env

GAMMA = 0.9
RELATIONS = ("plain", "lax")
COLUMNS = (
    *("environment", "states", "classes, plain", "lax", "clusters, plain", "lax"),
    *("retained, plain", "lax", "seconds, plain", "lax"),
)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
console = Console(width=170, highlight=False)


@dataclass(frozen=True)
class Case:
    """A row: what it is called, its model, and whether it takes a second or less."""

    name: str
    make: Callable[[], TabularMDP]
    is_small: bool = True


def cases() -> Iterator[Case]:
    """The environments of the table."""
    yield Case("Taxi", partial(extracted, "Taxi-v3"))
    yield Case("FrozenLake 8x8", partial(extracted, "FrozenLake-v1", map_name="8x8"))
    yield Case("CliffWalking", partial(extracted, "CliffWalking-v1"))
    for name in ("Empty-5x5", "Empty-8x8", "DoorKey-5x5", "FourRooms"):
        make = partial(extracted, f"MiniGrid-{name}-v0")
        yield Case(f"MiniGrid-{name}", make, is_small=name != "FourRooms")
    yield Case("grid of 21 x 21, goal in the centre", partial(central_goal, 21))
    for noise in (0.02, 0.05):
        env = RoomsGridEnv(mirror=True, noise=noise)
        yield Case(f"RoomsGrid, mirrored, noise {noise:g}", env.to_mdp, is_small=False)
    yield Case("RoomsGrid, noise 0.02", RoomsGridEnv().to_mdp, is_small=False)
    yield Case("Taxi with 100 backgrounds", many_backgrounds, is_small=False)


def extracted(env_id: str, **args: Any) -> TabularMDP:
    """The model of an environment, of one layout where these are drawn."""
    mdp: TabularMDP = made(lambda: extract_mdp(make_env(env_id, **args), reading=Reading(starts=1)))
    return mdp


def many_backgrounds() -> TabularMDP:
    """Taxi with a background that means nothing."""
    mdp: TabularMDP = made(lambda: extract_mdp(Distractor(make_env("Taxi-v3"), n_background=100)))
    return mdp


def central_goal(side: int) -> TabularMDP:
    """A grid with its goal in the centre, which is worth 1 to enter and is never left."""
    middle, n = side // 2, side * side
    goal = middle * side + middle
    P, R = np.zeros((n, 4, n)), np.zeros((n, 4))
    for s in range(n):
        for a, (down, right) in enumerate(MOVES):
            row = min(max(s // side + down, 0), side - 1)
            col = min(max(s % side + right, 0), side - 1)
            t = s if s == goal else row * side + col
            P[s, a, t] = 1.0
            R[s, a] = float(t == goal and s != goal)
    return TabularMDP.from_dense(P, R, order="sas")


def row_of(name: str, mdp: TabularMDP) -> tuple[list[str], list[str]]:
    """One line of the table, and what is wrong with it."""
    classes, counts, kept, seconds, faults = [], [], [], [], []
    for relation in RELATIONS:
        classes.append(f"{bisimulation_classes(mdp, relation=relation).n_classes:,}")
        begin = time.perf_counter()
        found = certify(mdp, GAMMA, relation=relation)
        seconds.append(f"{time.perf_counter() - begin:.1f}")
        checked = verify(mdp, found)
        if not checked.is_valid:
            faults.append(f"{name}, {relation}: rejected: {checked.problem}")
        if found.value is None:
            counts.append("none")
            kept.append("")
            continue
        small, solver = found.aggregate(mdp), found.value.solver
        true = value_loss(mdp, GAMMA, lift_policy(small, value_iteration(small.mdp, GAMMA).policy))
        if solver.kept > true.kept + 1e-6 or solver.loss < true.sup_lower:
            faults.append(f"{name}, {relation}: the proof contradicts the truth")
        counts.append(f"{found.n_clusters:,}")
        kept.append(share_text(solver.kept).replace("at least", "≥"))
    states = mdp.n_states - (mdp.terminal_state is not None)
    return [name, f"{states:,}", *classes, *counts, *kept, *seconds], faults


def compare(*, is_quick: bool, is_markdown: bool) -> int:
    """The table of plain and lax abstractions."""
    certify(central_goal(3), GAMMA, relation="lax")  # compiles
    table = Table(*COLUMNS)
    if is_markdown:
        print(f"| {' | '.join(COLUMNS)} |")
        print("|" + "---|" * len(COLUMNS))
    faults: list[str] = []
    for case in cases():
        if is_quick and not case.is_small:
            continue
        cells, wrong = row_of(case.name, case.make())
        faults += wrong
        if is_markdown:
            print(f"| {' | '.join(cells)} |", flush=True)
        else:
            table.add_row(*cells)
            console.print(" ".join(cells), style="dim")
    if not is_markdown:
        console.print(table)
    for fault in faults:
        console.print(fault, style="red", markup=False)
    return len(faults)


# -- learning ----------------------------------------------------------------------------------


def mirrored() -> tuple[RoomsGridEnv, TabularMDP]:
    """The grid that agents learn on: 400 states in 25 rooms that are images of 6."""
    env = RoomsGridEnv(side=20, room_size=4, mirror=True)
    return env, env.to_mdp()


def learn(steps: int, seeds: int) -> int:
    """Learning curves of Q-learning on lax clusters, plain clusters and raw states."""
    _, mdp = mirrored()
    points = [steps // 32, steps // 16, steps // 8, steps // 4, steps // 2, steps]
    score = score_above_baseline(mdp, GAMMA)

    def agent(env: gym.Env[Any, Any]) -> Callable[[int], QLearning]:
        top = float(mdp.rewards.max()) / (1.0 - GAMMA)  # so that everything is tried
        return lambda seed: QLearning(
            env, gamma=GAMMA, start=top, epsilon=(1.0, 0.1), decay=steps // 4, seed=seed
        )

    curves = []
    for relation in RELATIONS[::-1]:
        certificate = certify(mdp, GAMMA, relation=relation)
        small = AbstractedEnv(mirrored()[0], certificate, dynamics="ground")

        def lifted(policy: Any, small: AbstractedEnv = small) -> float:
            return score(lift_policy(small.aggregation, policy))

        name = f"{certificate.n_clusters} {relation} clusters"
        curves.append(learning_curve(name, agent(small), lifted, points, seeds=seeds))
    raw = agent(mirrored()[0])
    curves.append(learning_curve(f"{mdp.n_states} raw states", raw, score, points, seeds=seeds))
    table = Table("agent on", *(f"{point:,} steps" for point in points))
    for curve in curves:
        median = np.median(curve.scores, axis=0)
        table.add_row(curve.name, *(f"{share:.1%}" for share in median))
    console.print(f"share of the start value above random actions, median of {seeds} seeds")
    console.print(table)
    lax, plain, by_state = (np.median(curve.scores, axis=0) for curve in curves)
    return int(not (lax[0] > plain[0] > by_state[0]))


# -- picture -----------------------------------------------------------------------------------


def picture(path: Path) -> int:
    """Clusters of a mirrored grid, and what one action of its cluster is in every room."""
    import matplotlib.pyplot as plt

    side, room = 20, 4
    _, mdp = mirrored()
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 5.4), layout="constrained")
    for ax, relation in zip(axes, RELATIONS, strict=True):
        certificate = certify(mdp, GAMMA, relation=relation)
        labels, found = certificate.labels, certificate.correspondence()
        ax.imshow(labels.reshape(side, side) % 20, cmap="tab20", alpha=0.55)
        ax.set_title(f"{relation}: {certificate.n_clusters} clusters of {mdp.n_states} states")
        value = certificate.value
        assert value is not None
        for row in range(side // room):
            for col in range(side // room):
                state = (row * room + room // 2) * side + col * room + room // 2
                down, right = MOVES[int(value.lifted_policy[state])]
                x, y = (col + 0.5) * room - 0.5, (row + 0.5) * room - 0.5
                ax.annotate(
                    "",
                    (x + 1.1 * right, y + 1.1 * down),
                    (x - 0.9 * right, y - 0.9 * down),
                    arrowprops={"arrowstyle": "-|>", "lw": 2.0, "color": "black"},
                )
                name = int(found.labels[state])
                ax.text(x - 1.5, y - 1.1, f"{name}", ha="center", va="center", fontsize=9)
        for line in range(0, side + 1, room):
            ax.axhline(line - 0.5, color="white", lw=1.5)
            ax.axvline(line - 0.5, color="white", lw=1.5)
        ax.set_xticks([])
        ax.set_yticks([])
    figure.suptitle(
        "What is best in each room. After renaming actions, rooms of one colour are one cluster,\n"
        "and its one action is another arrow in each of them."
    )
    figure.savefig(path, dpi=110)
    return 0


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=("table", "learn", "picture"), default="table")
    parser.add_argument("file", nargs="?", type=Path, help="of the picture")
    parser.add_argument("--quick", action="store_true", help="small environments")
    parser.add_argument("--markdown", action="store_true", help="a table for the documentation")
    parser.add_argument("--steps", type=int, default=64_000, help="of each agent (64,000)")
    parser.add_argument("--seeds", type=int, default=5, help="agents of each kind (5)")
    options = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    if options.what == "learn":
        return learn(options.steps, options.seeds)
    if options.what == "picture":
        return picture(options.file or Path("symmetries.png"))
    return compare(is_quick=options.quick, is_markdown=options.markdown)


if __name__ == "__main__":
    sys.exit(main())
