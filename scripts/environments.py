"""Which environments work at once: outside packages, and ten as people write them.

    python scripts/environments.py               all of them, with what is installed
    python scripts/environments.py --quick       the ten, and five of MiniGrid
    python scripts/environments.py --markdown    the table of docs/benchmarks.md

    pip install -c constraints.txt minigrid gym-classics mo-gymnasium gym-simplegrid jax flax

A row says whether `extract_mdp(env)` works as it is, or with which argument or line: then the first
sentence of the refusal is shown, and what its message names was tried. Clusters are those of
`certify(mdp, 0.9)`; seconds are those of reading and certifying. Every certificate is verified. The
command fails if one is rejected, if fewer than 80% of the rows work at once, or if what a refusal
names does not work. Packages that are not installed are skipped, and named.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import as_people_write
import gymnasium as gym
import numpy as np

from bisim_abstract import Reading, TabularMDP, certify, verify
from bisim_abstract.errors import BisimError
from bisim_abstract.wrappers import extract_mdp, make_env

ENOUGH = 0.8  # share of the rows that must work at once
GAMMA = 0.9
QUICK = ("Empty-5x5", "Empty-Random-5x5", "DistShift1", "LavaGapS5", "MemoryS7")
MINIGRID = (
    *QUICK,
    *("Empty-8x8", "DoorKey-5x5", "DoorKey-6x6", "Unlock", "FourRooms", "SimpleCrossingS9N1"),
    *("GoToDoor-5x5", "Fetch-5x5-N2", "RedBlueDoors-6x6", "Dynamic-Obstacles-5x5"),
)
CLASSICS = (
    *("5Walk", "19Walk", "ClassicGridworld", "CliffWalk", "DynaMaze", "FourRooms"),
    *("JacksCarRental", "JacksCarRentalModified", "SparseGridworld", "WindyGridworld"),
    *("WindyGridworldKings", "WindyGridworldKingsNoOp", "WindyGridworldKingsStochastic"),
)
# Those of mo-gymnasium that have finitely many states. Rewards are vectors until somebody weighs
# them, as `LinearReward` does; the first is also tried without.
SEVERAL = (
    *("deep-sea-treasure", "deep-sea-treasure-concave", "deep-sea-treasure-mirrored"),
    *("fishwood", "four-room", "fruit-tree", "resource-gathering", "breakable-bottles"),
)
FUNCTIONAL = ("tabular/Blackjack-v0", "tabular/CliffWalking-v0")
GRIDS = ("SimpleGrid-4x4-v0", "SimpleGrid-8x8-v0")

Make = Callable[[], gym.Env[Any, Any]]
Remedy = tuple[str, Callable[[], TabularMDP]]


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        package: Where the environment is from.
        name: What it is called.
        way: "at once", or the line with which it works; "refused" if nothing helps.
        states: Its states, without the end; None without a model.
        clusters: By the default, or None.
        seconds: Of reading and certifying.
        refusal: The first sentence of the message, where it does not work at once.
        problem: What makes the command fail.
    """

    package: str
    name: str
    way: str
    states: int | None
    clusters: str
    seconds: float
    refusal: str
    problem: str


# -- packages --------------------------------------------------------------------------------------


def classics(name: str) -> gym.Env[Any, Any]:
    """An environment of gym-classics, which registers its ids on request."""
    if f"{name}-v0" not in gym.registry:
        importlib.import_module("gym_classics").register("gymnasium")
    return make_env(f"{name}-v0")


def registered(module: str, env_id: str) -> gym.Env[Any, Any]:
    """An environment of a package that registers its ids when it is imported."""
    importlib.import_module(module)
    return make_env(env_id)


def weighted(env_id: str) -> gym.Env[Any, Any]:
    """An environment of mo-gymnasium with all rewards weighed alike, by its own wrapper."""
    wrappers = importlib.import_module("mo_gymnasium.wrappers")
    env: gym.Env[Any, Any] = wrappers.LinearReward(registered("mo_gymnasium", env_id))
    return env


def cases(*, quick: bool) -> Iterator[tuple[str, str, Make]]:
    """Package, name and maker of every environment whose package is installed."""
    for name, kind in as_people_write.OWN.items():
        yield "own", name, kind
    outside: dict[str, tuple[str, list[tuple[str, Make]]]] = {
        "minigrid": (
            "minigrid",
            [
                (name, partial(make_env, f"MiniGrid-{name}-v0"))
                for name in (QUICK if quick else MINIGRID)
            ],
        )
    }
    if not quick:
        outside |= {
            "gym-classics": ("gym_classics", [(x, partial(classics, x)) for x in CLASSICS]),
            "mo-gymnasium": (
                "mo_gymnasium",
                [(f"LinearReward({x})", partial(weighted, f"{x}-v0")) for x in SEVERAL]
                + [(SEVERAL[0], partial(registered, "mo_gymnasium", f"{SEVERAL[0]}-v0"))],
            ),
            "gymnasium, functional": ("jax", [(x, partial(make_env, x)) for x in FUNCTIONAL]),
            "gym-simplegrid": (
                "gym_simplegrid",
                [(x, partial(registered, "gym_simplegrid", x)) for x in GRIDS],
            ),
        }
    for package, (module, found) in outside.items():
        if importlib.util.find_spec(module) is None:
            print(f"skipped: {package}, as {module} is not installed", flush=True)
            continue
        for name, make in found:
            yield package, name, make


# -- what refusals name ----------------------------------------------------------------------------


def by_reading(message: str, make: Make) -> Remedy | None:
    """`reading=Reading(...)`, as the message has it."""
    found = re.search(r"reading=(Reading\(.*?\))(?=[;,)]|$)", message)
    if found is None:
        return None
    reading = eval(found[1], {"Reading": Reading})
    return found[1], lambda: extract_mdp(make(), reading=reading)


def by_weights(message: str, make: Make) -> Remedy | None:
    """`env = gymnasium.wrappers.TransformReward(...)`, as the message has it."""
    found = re.search(r"env = (gymnasium\.wrappers\..*\)), or ", message)
    if found is None:
        return None
    line = found[1]
    names = {"gymnasium": gym, "numpy": np}
    return line, lambda: extract_mdp(eval(line, {**names, "env": make()}))


def by_numbers(message: str, make: Make) -> Remedy | None:
    """Actions numbered by the two lines that the message has."""
    found = re.search(r"make its action_space (\S+), and begin step with action = (.+)$", message)
    if found is None:
        return None
    space, number = found.groups()
    names = {"gymnasium": gym, "numpy": np}

    def numbered() -> TabularMDP:
        env = make()
        kind: Any = type(env)

        class Numbered(kind):  # type: ignore[misc]
            def step(self, action: Any) -> Any:
                return super().step(eval(number, {**names, "action": action}))

        env.__class__ = Numbered
        env.action_space = eval(space, names)
        return extract_mdp(env)

    return f"action_space = {space}", numbered


def by_other_id(message: str, make: Make) -> Remedy | None:
    """The environment that the message says to extract instead."""
    found = re.search(r"\bExtract ([\w/-]+-v\d+)", message)
    return None if found is None else (found[1], lambda: extract_mdp(found[1]))


def by_function(message: str, make: Make) -> Remedy | None:
    """Outcomes that do not sum to 1, divided by their sum in a function of one's own."""
    if "TabularMDP.from_function" not in message or "sum to 1" not in message:
        return None
    env: Any = make().unwrapped
    if not hasattr(env, "_generate_transitions"):
        return None

    def transitions(state: Any, action: int) -> list[tuple[float, Any, float, bool]]:
        listed = list(env._generate_transitions(state, action))
        mass = sum(prob for *_, prob in listed)
        return [(prob / mass, after, float(paid), bool(ends)) for after, paid, ends, prob in listed]

    start = {state: 1.0 / len(env._starts) for state in env._starts}
    n_actions = int(env.action_space.n)
    return (
        "TabularMDP.from_function, rows divided by their sums",
        lambda: TabularMDP.from_function(start, n_actions, transitions),
    )


def by_fitting_draws(message: str, make: Make) -> Remedy | None:
    """A draw among the cells that fit, where MiniGrid draws until a cell does."""
    env: Any = make().unwrapped
    if "draw among what fits" not in message or not hasattr(env, "place_obj"):
        return None
    kind: Any = type(env)

    class Fitting(kind):  # type: ignore[misc]
        def place_obj(
            self, obj: Any, top: Any = None, size: Any = None, reject_fn: Any = None, **_: Any
        ) -> Any:
            left, above = (max(int(x), 0) for x in top or (0, 0))
            width, height = size or (self.grid.width, self.grid.height)
            free = [
                (x, y)
                for x in range(left, min(left + width, self.grid.width))
                for y in range(above, min(above + height, self.grid.height))
                if self.grid.get(x, y) is None
                and (x, y) != tuple(map(int, self.agent_pos))
                and not (reject_fn and reject_fn(self, (x, y)))
            ]
            if not free:
                raise RecursionError("no cell is free")
            place = free[int(self.np_random.choice(len(free)))]
            self.grid.set(*place, obj)
            obj.init_pos = obj.cur_pos = place
            return place

    return "self.np_random.choice(those_that_fit)", lambda: extract_mdp(Fitting(size=env.width))


REMEDIES = (by_reading, by_weights, by_numbers, by_other_id, by_function, by_fitting_draws)


# -- rows ------------------------------------------------------------------------------------------


def first_sentence(message: str) -> str:
    """Where a message says what is wrong, before what to do."""
    return re.split(r"; |\. |: at ", message, maxsplit=1)[0]


def row_of(package: str, name: str, make: Make, budget: float) -> Row:
    """One environment: as it is, or else as its refusal says."""
    way, refusal = "at once", ""
    begin = time.perf_counter()
    try:
        mdp = extract_mdp(make())
    except BisimError as error:
        refusal = str(error)
        begin = time.perf_counter()
        named = next(filter(None, (find(refusal, make) for find in REMEDIES)), None)
        fail = partial(Row, package, name, "refused", None, "–")
        if named is None:
            return fail(0.0, first_sentence(refusal), f"its refusal names nothing: {refusal}")
        way, read = named
        try:
            mdp = read()
        except BisimError as second:
            spent = time.perf_counter() - begin
            return fail(spent, first_sentence(refusal), f"{way} does not work: {second}")
    found = certify(mdp, GAMMA, max_seconds=budget)
    seconds = time.perf_counter() - begin
    checked = verify(mdp, found)
    return Row(
        package=package,
        name=name,
        way=way,
        states=found.n_live,
        clusters=f"{found.n_clusters:,}" if found.verdict.level == "useful" else "–",
        seconds=seconds,
        refusal=first_sentence(refusal),
        problem="" if checked.is_valid else f"rejected: {checked.problem}",
    )


def line_of(row: Row, *, markdown: bool) -> str:
    """A row as text."""
    states = "–" if row.states is None else f"{row.states:,}"
    seconds = f"{row.seconds:.1f} s"
    if markdown:
        way = row.way if row.way in ("at once", "refused") else f"`{row.way}`"
        name = f"{row.package}: {row.name}"
        return f"| {name} | {way} | {states} | {row.clusters} | {seconds} | {row.refusal} |"
    name = f"{row.package}: {row.name}"
    refusal = f"  (refused: {row.refusal})" if row.refusal else ""
    return f"{name:52} {states:>7} {row.clusters:>7} {seconds:>8}  {row.way}{refusal}"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the ten, and five of MiniGrid")
    parser.add_argument("--markdown", action="store_true", help="as docs/benchmarks.md has it")
    parser.add_argument("--only", metavar="TEXT", help="environments whose names contain TEXT")
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of each proof (60)")
    options = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    warnings.simplefilter("ignore")
    rows = []
    head = "environment | works | states | clusters | seconds | refused as it is"
    print(f"| {head} |\n|---|---|---|---|---|---|" if options.markdown else head)
    for package, name, make in cases(quick=options.quick):
        if options.only is None or options.only in f"{package}: {name}":
            rows.append(row_of(package, name, make, options.seconds))
            print(line_of(rows[-1], markdown=options.markdown), flush=True)
    at_once = sum(row.way == "at once" for row in rows)
    share = at_once / max(len(rows), 1)
    refused = sum(row.way == "refused" for row in rows)
    print(
        f"\n{at_once} of {len(rows)} work at once ({share:.0%}), {len(rows) - at_once - refused} "
        f"by what their refusals name, {refused} not at all"
    )
    for row in rows:
        if row.problem:
            print(f"{row.package}: {row.name}: {row.problem}", file=sys.stderr)
    return int(any(row.problem for row in rows) or share < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
