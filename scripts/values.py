"""What abstractions are worth: the default choice of `certify` on ordinary environments.

    python scripts/values.py                 all environments at gamma 0.9, 0.99 and 0.999
    python scripts/values.py --quick         the small ones at gamma 0.9
    python scripts/values.py --markdown      the same as a table for the documentation
    python scripts/values.py losses          proven against true losses of given partitions
    python scripts/values.py large           a proof of value for 1,000,000 states

Every certificate is verified by independent code before its row is printed. Shares and proven
losses are those of any agent that solves the small environment; the true loss is that of one such
agent, evaluated on the model itself. `guarantees.py` shows what other agents get. The command
fails if a row does not reach the goal.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import (
    Certificate,
    TabularMDP,
    certify,
    lift_policy,
    prove_value,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp, make_env

GAMMAS = (0.9, 0.99, 0.999)
console = Console(width=170, highlight=False)
COLUMNS = (
    "environment",
    "states",
    "gamma",
    "clusters",
    "retained",
    "proven loss",
    "true loss",
    "s",
)


@dataclass(frozen=True)
class Case:
    """An environment by name."""

    name: str
    make: Callable[[], TabularMDP]
    is_small: bool = True


def cases() -> Iterator[Case]:
    """The environments of the table."""
    yield Case("Taxi", lambda: made("Taxi-v3"))
    for size in ("4x4", "8x8"):
        for is_slippery in (True, False):
            name = f"FrozenLake {size}" + ("" if is_slippery else ", not slippery")
            args = {"map_name": size, "is_slippery": is_slippery}
            yield Case(name, lambda args=args: made("FrozenLake-v1", **args))  # type: ignore[misc]
    yield Case("CliffWalking", lambda: made("CliffWalking-v1"))
    for name in ("Empty-8x8", "DoorKey-5x5", "FourRooms"):
        env_id = f"MiniGrid-{name}-v0"
        yield Case(
            f"MiniGrid-{name}",
            lambda env_id=env_id: made(env_id),  # type: ignore[misc]
            is_small=name != "FourRooms",
        )
    for noise in (0.02, 0.1):
        yield Case(
            f"RoomsGrid, noise {noise:g}",
            lambda noise=noise: RoomsGridEnv(noise=noise).to_mdp(),  # type: ignore[misc]
            is_small=False,
        )
    yield Case(
        "Taxi with 100 backgrounds",
        lambda: extract_mdp(Distractor(make_env("Taxi-v3"), n_background=100)),
        is_small=False,
    )


def made(env_id: str, **kwargs: object) -> TabularMDP:
    """The model of an environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ids that this Gymnasium has retired
        env = make_env(env_id, **kwargs)
    try:
        return extract_mdp(env, starts=1)
    finally:
        env.close()


def row_of(name: str, mdp: TabularMDP, gamma: float) -> tuple[list[str], Certificate, str]:
    """One line of the table, its certificate, and what is wrong with it, if anything is."""
    begin = time.perf_counter()
    found = certify(mdp, gamma)
    seconds = time.perf_counter() - begin
    checked = verify(mdp, found)
    problem = "" if checked.is_valid else f"rejected: {checked.problem}"
    cells = [name, f"{found.n_live:,}", f"{gamma:g}"]
    if found.value is None:
        return [*cells, "none", "", "", "", f"{seconds:.1f}"], found, problem or "not certified"
    small, solver = found.aggregate(mdp), found.value.solver
    policy = lift_policy(small, value_iteration(small.mdp, gamma).policy)
    true = value_loss(mdp, gamma, policy)
    cells += [
        f"{found.n_clusters:,}",
        share_text(solver.kept),
        amount_text(solver.loss),
        amount_text(true.sup_lower),
    ]
    if found.verdict.level == "poor":
        problem = problem or found.verdict.sentence
    if solver.kept > true.kept + 1e-6 or solver.loss < true.sup_lower:
        problem = problem or "the proof contradicts the truth"
    return [*cells, f"{seconds:.1f}"], found, problem


def defaults(gammas: tuple[float, ...], *, is_quick: bool, is_markdown: bool) -> int:
    """The table of default choices."""
    table = Table(*COLUMNS)
    if is_markdown:
        print(f"| {' | '.join(COLUMNS)} |")
        print("|" + "---|" * len(COLUMNS))
    faults = []
    for case in cases():
        if is_quick and not case.is_small:
            continue
        mdp = case.make()
        for gamma in gammas:
            cells, found, problem = row_of(case.name, mdp, gamma)
            if is_markdown:
                print(f"| {' | '.join(cells)} |", flush=True)
            else:
                table.add_row(*cells)
                console.print(f"{case.name}, gamma {gamma:g}: {found.verdict.sentence}")
            if problem:
                faults.append(f"{case.name}, gamma {gamma:g}: {problem}: {found.stop}")
    if not is_markdown:
        console.print(table)
    for fault in faults:
        console.print(f"short of the goal: {fault}", style="yellow", markup=False)
    return len(faults)


def losses() -> int:
    """Proven against true losses of given partitions, with what may be proven at most."""
    table = Table("partition", "gamma", "proven loss", "true loss", "at most")
    short = 0
    taxi = made("Taxi-v3")
    coarse = certify(taxi, 0.9, tau=36.7).labels_upper
    rooms = {noise: RoomsGridEnv(noise=noise) for noise in (0.02, 0.1)}
    for name, mdp, labels, gamma, limit in (
        ("RoomsGrid 0.02, its rooms", rooms[0.02].to_mdp(), rooms[0.02].rooms, 0.9, 0.028),
        ("RoomsGrid 0.02, its rooms", rooms[0.02].to_mdp(), rooms[0.02].rooms, 0.99, 0.25),
        ("RoomsGrid 0.1, its rooms", rooms[0.1].to_mdp(), rooms[0.1].rooms, 0.9, 0.40),
        ("Taxi at tau 36.7", taxi, coarse, 0.9, 1e-6),
    ):
        value = prove_value(mdp, labels, gamma)
        true = value_loss(mdp, gamma, value.lifted_policy).sup_lower
        table.add_row(name, f"{gamma:g}", f"{value.loss:.3g}", f"{true:.3g}", f"{limit:g}")
        short += value.loss > limit or value.loss < true
    console.print(table)
    return short


def large(gamma: float, side: int) -> int:
    """A proof of value for a grid of 100 rooms, and how long it takes."""
    env = RoomsGridEnv(side=side, room_size=side // 10, noise=0.02)
    mdp = env.to_mdp()
    begin = time.perf_counter()
    value = prove_value(mdp, env.rooms, gamma)
    seconds = time.perf_counter() - begin
    console.print(
        f"{mdp.n_states:,} states, {mdp.nnz:,} transitions, gamma {gamma:g}: {value.summary()}; "
        f"{seconds:.1f} s"
    )
    return int(not np.isfinite(value.loss))


def main() -> int:
    """Print what is requested."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=("defaults", "losses", "large"))
    parser.add_argument("--quick", action="store_true", help="small environments, gamma 0.9")
    parser.add_argument("--markdown", action="store_true", help="a table for the documentation")
    parser.add_argument("--gamma", type=float, help="only this discount")
    parser.add_argument("--side", type=int, default=1_000, help="of the large grid")
    options = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    if options.what == "losses":
        return losses()
    if options.what == "large":
        return large(options.gamma or 0.9, options.side)
    gammas = GAMMAS[:1] if options.quick else GAMMAS
    if options.gamma is not None:
        gammas = (options.gamma,)
    return defaults(gammas, is_quick=options.quick, is_markdown=options.markdown)


if __name__ == "__main__":
    sys.exit(main())
