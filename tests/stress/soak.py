"""Soak: many cycles of certify, save, verify, abstract, step and run, with processes killed.

    python -m tests.stress.soak                             200 cycles, a quarter of them killed
    python -m tests.stress.soak --cycles 12 --kills 0.25    the short form, as in the tests

Two workers do the same cycles in their own folders. The steady one lives from the first cycle
to the last; its resident memory is read after every cycle. The other one is killed (SIGKILL) in
the middle of some cycles: half of the times wherever it happens to be, half of the times between
writing a file and giving it its name. A new worker then goes on with the same cycle. Checked are:

- lost: files of finished stages are the very same ones after a kill, and every file that is
  there can be read;
- equal: certificates and results are those of the steady worker, bit by bit;
- verified: every certificate, by independent code, in every cycle;
- left: no temporary file of a killed writer remains;
- memory: the median of the last quarter of the cycles is at most 5% above that of the second
  (judged from 40 cycles on; before, compilers and caches are still filling up).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bisim_abstract import Certificate, Reading, TabularMDP, verify
from bisim_abstract._app.config import Config
from bisim_abstract._app.manifest import is_leftover
from bisim_abstract._app.runs import Run, plain
from bisim_abstract._app.sources import Source
from bisim_abstract._base.atomic import write_json
from bisim_abstract._base.npz import read_npz
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from bisim_abstract.wrappers import AbstractedEnv
from tests.stress.certifying import ONE, make_certificate

ROOMS = "bisim_abstract/RoomsGrid-v0"
KINDS = ("noisy rooms", "rooms", "lake", "cliff", "covered", "grouped", "seen")
LIMIT = 300.0  # seconds without a word from a worker: it hangs
FLAT = 0.05  # how much memory may grow
JUDGED = 40  # cycles from which on memory is judged
DELAY = 0.05  # seconds: a kill comes up to so much after an event
STAGES = ("model.npz", "certificate.npz", "steps.json")
RUN = ("config.json", "mdp.npz", "certificate.npz", "comparison.json", "curves.json")
FINISHED = (*STAGES, *(f"run/{name}" for name in RUN))
console = Console(width=110, highlight=False)


# -- what a cycle does, inside a worker ------------------------------------------------------------


@dataclass(frozen=True)
class Cycle:
    """A model, how it is certified by hand, and the run that follows."""

    mdp: TabularMDP
    goal: dict[str, Any]
    config: Config
    seed: int


def plan(seed: int, number: int) -> Cycle:
    """The cycle of a number: always the same one for the same seed."""
    rng = np.random.default_rng([seed, number])
    own, kind = int(rng.integers(2**31)), KINDS[number % len(KINDS)]
    side = 3 * int(rng.integers(2, 5))
    rooms = {"side": side, "room_size": 3, "slip": float(rng.choice([0.1, 0.4]))}
    sources = {
        "noisy rooms": Source(name=ROOMS, env_args=rooms | {"noise": 0.1, "seed": own % 100}),
        "lake": Source(name="FrozenLake-v1", env_args={"is_slippery": bool(own % 2)}),
        "cliff": Source(name="CliffWalking-v1"),
        "seen": Source(name="FrozenLake-v1", backgrounds=int(rng.integers(2, 6))),
    }
    source = sources.get(kind, Source(name=ROOMS, env_args=rooms))
    goal: dict[str, Any] = {"max_pairs": 20_000}
    given: dict[str, Any] = {}
    if kind == "covered":
        mdp = sparse_mdp(int(rng.integers(40, 90)), 2, seed=own)
        goal = {"method": "covering", "max_rounds": 4, "tau": 0.5, "neighbours": 4}
        given = {"method": "covering", "max_rounds": 3, "tau": 1.0}
    elif kind == "grouped":
        mdp, _ = grouped_mdp(int(rng.integers(40, 90)), 5, noise=0.05, seed=own)
    else:
        mdp = source.model()
    gamma = float(rng.choice([0.8, 0.9]))
    source = replace(source, reading=Reading(seed=own))
    config = Config(source=source, gamma=gamma, certify=given, learn=100)
    return Cycle(mdp, goal, config, own)


def work(cycle: Cycle, folder: Path, tell: Any) -> list[str]:
    """Do all of a cycle that is not done yet; verdicts on its certificates."""
    folder.mkdir(parents=True, exist_ok=True)

    def hear(_: object) -> None:
        tell("progress")

    model, path, steps = (folder / name for name in STAGES)
    if not model.exists():
        cycle.mdp.save(model)
    mdp, checkpoint = TabularMDP.load(model), folder / "checkpoint.npz"
    if not path.exists():
        given = cycle.goal | {"seed": cycle.seed, "checkpoint": checkpoint, "callback": hear}
        make_certificate(mdp, cycle.config.gamma, **given).save(path)
    checkpoint.unlink(missing_ok=True)
    tell("certified")
    verdicts = [verify(mdp, Certificate.load(path), resources=ONE).verdict]
    tell("verified")
    made = Run(folder / "run", cycle.config, resources=ONE, callback=hear, after=hear)()
    if not steps.exists():
        write_json(steps, stepped(cycle, folder / "run" / "certificate.npz"))
    tell("stepped")
    return [*verdicts, made.verification.verdict]


def stepped(cycle: Cycle, path: Path) -> list[list[Any]]:
    """What some steps of the abstraction show; nothing where it is not certified."""
    seen: list[list[Any]] = []
    if not Certificate.load(path).is_certified:
        return seen
    for dynamics in ("aggregated", "ground"):
        env = AbstractedEnv(cycle.config.source.env(), str(path), dynamics=dynamics)
        observation, _ = env.reset(seed=cycle.seed % 1000)
        seen.append([int(observation)])
        for k in range(30):
            observation, reward, terminated, truncated, _ = env.step(k % env.abstract_mdp.n_actions)
            seen.append(plain([observation, reward, terminated, truncated]))
            if terminated or truncated:
                env.reset()
        env.close()
    return seen


def resident() -> int:
    """Bytes of memory this process holds now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(pipe: Connection, folder: Path, seed: int) -> None:
    """A worker: cycle numbers come in, events go out; None is the end."""
    warnings.simplefilter("error")
    sync, left = os.fsync, -1

    def halting(file: Any) -> None:
        """Wait to be killed when a file is written and has not got its name yet."""
        nonlocal left
        left -= 1
        if left == 0:
            pipe.send("halted")
            signal.pause()
        sync(file)

    os.fsync = halting  # type: ignore[assignment]
    while (asked := pipe.recv()) is not None:
        number, left = asked
        verdicts = work(plan(seed, number), folder / f"{number:04d}", pipe.send)
        pipe.send((verdicts, resident()))


# -- the driver ------------------------------------------------------------------------------------


class Worker:
    """A worker process, and what it says."""

    def __init__(self, folder: Path, seed: int) -> None:
        # A fresh interpreter: a fork would inherit threads that are not there.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, folder, seed), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """The next event: a word, or verdicts and memory at the end of a cycle.

        Raises:
            RuntimeError: If there is none because the worker hangs or has ended.
        """
        try:
            if self.pipe.poll(LIMIT):
                return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            raise RuntimeError(f"a worker ended by itself with code {code}") from None
        self.kill()
        raise RuntimeError(f"a worker said nothing for {LIMIT:.0f} seconds")

    def finish(self, number: int) -> tuple[list[str], int]:
        """Do a whole cycle, or the rest of it: verdicts and memory."""
        self.pipe.send((number, -1))
        while isinstance(event := self.hear(), str):
            pass
        verdicts, memory = event
        return verdicts, memory

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """End it in peace."""
        if self.process.is_alive():
            self.pipe.send(None)
            self.process.join(LIMIT)


@dataclass
class Tally:
    """What was seen so far."""

    rss: list[int] = field(default_factory=list)
    moments: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    parts_seen: int = 0
    problems: dict[str, list[str]] = field(
        default_factory=lambda: {
            name: [] for name in ("lost", "equal", "verified", "left", "memory")
        }
    )

    def count(self, verdicts: list[str], where: str) -> None:
        """Note verdicts on certificates."""
        self.verdicts.update(verdicts)
        self.problems["verified"] += [f"{where}: {x}" for x in verdicts if x != "verified"]


def finished_files(folder: Path) -> dict[Path, tuple[int, int, str]]:
    """Files of finished stages: inode, time and digest."""
    found = {}
    for path in (folder / name for name in FINISHED):
        if path.exists():
            about, digest = path.stat(), hashlib.sha256(path.read_bytes()).hexdigest()
            found[path] = (about.st_ino, about.st_mtime_ns, digest)
    return found


def unreadable(folder: Path) -> list[str]:
    """Files in their place that cannot be read: half-written ones."""
    bad = []
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".npz":
                read_npz(path)
            elif path.suffix == ".json":
                json.loads(path.read_bytes())
        except ValueError as error:
            bad.append(f"{path}: {error}")
    return bad


def different(steady: Path, killed: Path) -> list[str]:
    """How the results in two folders differ, times apart."""
    bad = []
    for name in (*FINISHED, "run/verification.json"):
        one, two = steady / name, killed / name
        if one.exists() != two.exists():
            bad.append(f"{two}: only one of the workers has it")
        elif name.endswith("certificate.npz") and one.exists():
            if content(one) != content(two):
                bad.append(f"{two}: another certificate")
        elif one.exists() and one.read_bytes() != two.read_bytes():
            bad.append(f"{two}: other bytes")
    return bad


def content(path: Path) -> Any:
    """All that a certificate says, times apart; arrays as bytes."""
    arrays = dict(read_npz(path))
    header = json.loads(arrays.pop("header").tobytes())
    del arrays["digest"]
    header["run"] = {k: x for k, x in header["run"].items() if not k.endswith("seconds")}
    return header, {name: (x.dtype.str, x.shape, x.tobytes()) for name, x in arrays.items()}


def kill_once(
    worker: Worker, number: int, folder: Path, rng: np.random.Generator, tally: Tally
) -> bool:
    """Begin a cycle and kill the worker in it; whether that came before its end."""
    halts, events = bool(rng.integers(2)), int(rng.integers(0, 25))
    worker.pipe.send((number, int(rng.integers(1, 12)) if halts else -1))
    moment = "at the beginning"
    while moment != "after 'halted'" and (halts or events > 0):
        if not isinstance(event := worker.hear(), str):
            return False
        events -= 1
        moment = f"after '{event}'"
    if not halts:
        time.sleep(float(rng.uniform(0.0, DELAY)))  # anywhere between two events
    worker.kill()
    tally.moments[moment.replace("after 'halted'", "between writing and renaming")] += 1
    tally.parts_seen += len(list(folder.rglob("*.part")))
    tally.problems["lost"] += unreadable(folder)
    return True


def soak(cycles: int, kills: float, seed: int, folder: Path) -> Tally:
    """All cycles, in two workers at a time."""
    rng = np.random.default_rng([seed, 2**32])
    chosen = set(rng.choice(cycles, round(kills * cycles), replace=False).tolist())
    tally, homes = Tally(), (folder / "steady", folder / "killed")
    steady, victim = (Worker(home, seed) for home in homes)
    try:
        for number in range(cycles):
            ours, theirs = (home / f"{number:04d}" for home in homes)
            verdicts, memory = steady.finish(number)
            tally.rss.append(memory)
            tally.count(verdicts, f"cycle {number}")
            before: dict[Path, tuple[int, int, str]] = {}
            if number in chosen and kill_once(victim, number, theirs, rng, tally):
                before, victim = finished_files(theirs), Worker(homes[1], seed)
            verdicts, _ = victim.finish(number)  # after a kill that came too late: nothing to do
            tally.count(verdicts, f"cycle {number}, killed")
            after = finished_files(theirs)
            tally.kept += len(before)
            tally.problems["lost"] += [
                f"{path}: made anew" for path, mark in before.items() if after.get(path) != mark
            ]
            tally.problems["lost"] += unreadable(theirs)
            tally.problems["equal"] += different(ours, theirs)
            tally.problems["left"] += [str(x) for x in theirs.rglob("*") if is_leftover(x)]
            if number % 20 == 19:
                console.print(
                    f"  cycle {number + 1:>4}, {tally.moments.total()} kills, {memory / 1e6:.1f} MB"
                )
    finally:
        steady.close()
        victim.close()
    return tally


def quarters(rss: list[int]) -> tuple[float, float]:
    """Medians of the second and of the last quarter."""
    n = len(rss)
    second, last = rss[n // 4 : max(n // 2, n // 4 + 1)], rss[-max(n // 4, 1) :]
    return statistics.median(second), statistics.median(last)


def show(tally: Tally, cycles: int) -> bool:
    """Print what was seen; whether all is well."""
    second, last = quarters(tally.rss)
    growth = last / second - 1.0
    is_judged = cycles >= JUDGED
    if is_judged and growth > FLAT:
        tally.problems["memory"].append(f"grew by {growth:.1%}")
    seen = {
        "lost": f"{tally.kept} finished files at {tally.moments.total()} kills",
        "equal": f"{cycles} cycles against a worker that was never killed",
        "verified": f"{tally.verdicts['verified']} of {tally.verdicts.total()} certificates",
        "left": f"{tally.parts_seen} temporary files lay there after kills",
        "memory": f"{second / 1e6:.1f} MB in the second quarter, {last / 1e6:.1f} MB in the last, "
        f"{growth:+.2%}" + ("" if is_judged else f" (judged from {JUDGED} cycles on)"),
    }
    for name, text in seen.items():
        console.print(f"{name:<9} {text}; {len(tally.problems[name])} problems", soft_wrap=True)
        for problem in tally.problems[name][:5]:
            console.print(f"  {problem}", soft_wrap=True)
    moments = ", ".join(f"{count} {moment}" for moment, count in sorted(tally.moments.items()))
    console.print(f"kills     {moments or 'none'}", soft_wrap=True)
    return not any(tally.problems.values())


def main() -> int:
    """All of it; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="many cycles of work, with processes killed")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--kills", type=float, default=0.25, help="share of cycles with a kill")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.cycles < 1 or not 0.0 <= given.kills <= 1.0:
        parser.error("--cycles must be at least 1, --kills between 0 and 1")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        try:
            is_well = show(soak(given.cycles, given.kills, given.seed, Path(folder)), given.cycles)
        except RuntimeError as error:  # its own words are on stderr
            console.print(f"FAILED: {error}", soft_wrap=True)
            return 1
    verdict, seconds = "PASSED" if is_well else "FAILED", time.perf_counter() - begin
    console.print(f"{verdict}: {given.cycles} cycles in {seconds:.0f} s")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
