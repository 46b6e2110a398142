"""Soak: many cycles of certify, save, verify, abstract, step and run, with processes killed.

    python scripts/soak.py                             200 cycles, a quarter of them killed
    python scripts/soak.py --cycles 12 --kills 0.25    the short form, as in the tests

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
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import Certificate, TabularMDP, certify, verify
from bisim_abstract._app.runs import Config, Run, plain
from bisim_abstract._app.sources import Source
from bisim_abstract._base.atomic import write_json
from bisim_abstract._base.npz import read_npz
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from bisim_abstract.wrappers import AbstractedEnv

ROOMS = "bisim_abstract/RoomsGrid-v0"
LIMIT = 300.0  # seconds without a word from a worker: it hangs
FLAT = 0.05  # how much memory may grow
JUDGED = 40  # cycles from which on memory is judged
DELAY = 0.05  # seconds: a kill comes up to so much after an event
STAGE_FILES = ("model.npz", "certificate.npz", "steps.json")
RUN_FILES = ("config.json", "mdp.npz", "certificate.npz", "comparison.json", "curves.json")
console = Console(width=110, highlight=False)


# -- what a cycle does, inside a worker -----------------------------------------------------------


@dataclass(frozen=True)
class Cycle:
    """A model, how it is certified by hand, and the run that follows."""

    kind: str
    mdp: TabularMDP
    goal: dict[str, Any]
    config: Config
    seed: int


def plan(seed: int, number: int) -> Cycle:
    """The cycle of a number: always the same one for the same seed."""
    rng = np.random.default_rng([seed, number])
    own = int(rng.integers(2**31))
    side = int(rng.integers(2, 5))
    rooms = {"side": 3 * side, "room_size": 3, "slip": float(rng.choice([0.1, 0.4]))}
    kind = ("noisy rooms", "rooms", "lake", "cliff", "covered", "grouped", "seen")[number % 7]
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
        goal = {"scope": "covered", "max_rounds": 4, "tau": 0.5, "neighbours": 4}
        given = {"scope": "covered", "max_rounds": 3, "tau": 1.0}
    elif kind == "grouped":
        mdp, _ = grouped_mdp(int(rng.integers(40, 90)), 5, noise=0.05, seed=own)
    else:
        mdp = source.model()
    config = Config(
        source=source, gamma=float(rng.choice([0.8, 0.9])), certify=given, learn=100, seed=own
    )
    return Cycle(kind, mdp, goal, config, own)


def work(cycle: Cycle, folder: Path, tell: Callable[..., None]) -> list[str]:
    """Do all of a cycle that is not done yet; verdicts on its certificates."""
    folder.mkdir(parents=True, exist_ok=True)

    def hear(_: object) -> None:
        tell(event="progress")

    model, path, steps = (folder / name for name in STAGE_FILES)
    if not model.exists():
        cycle.mdp.save(model)
    mdp = TabularMDP.load(model)
    checkpoint = folder / "checkpoint.npz"
    if not path.exists():
        found = certify(
            mdp,
            cycle.config.gamma,
            seed=cycle.seed,
            threads=1,
            checkpoint=checkpoint,
            callback=hear,
            **cycle.goal,
        )
        found.save(path)
    checkpoint.unlink(missing_ok=True)
    tell(event="certified")
    verdicts = [verify(mdp, Certificate.load(path), threads=1).verdict]
    tell(event="verified")
    made = Run(folder / "run", cycle.config, threads=1, callback=hear, after=hear)()
    verdicts.append(made.verification.verdict)
    if not steps.exists():
        write_json(steps, stepped(cycle, folder / "run" / "certificate.npz"))
    tell(event="stepped")
    return verdicts


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


def serve(folder: Path, seed: int) -> None:
    """A worker: cycle numbers come in by lines, events go out by lines."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed goes elsewhere

    def tell(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")

    sync, left = os.fsync, -1

    def halting(file: Any) -> None:
        """Wait to be killed when a file is written and has not got its name yet."""
        nonlocal left
        left -= 1
        if left == 0:
            tell(event="halted")
            signal.pause()
        sync(file)

    os.fsync = halting  # type: ignore[assignment]
    with out:
        tell(event="ready")
        for line in sys.stdin:
            number, left = json.loads(line)
            verdicts = work(plan(seed, number), folder / f"{number:04d}", tell)
            tell(event="done", verdicts=verdicts, resident=resident())


# -- the driver ------------------------------------------------------------------------------------


class Worker:
    """A worker process, and what it says."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, "--serve", str(folder), "--seed", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.number = -1
        self._events: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.hear()["event"] == "ready"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(line)
        self._events.put("")

    def ask(self, number: int, halt_at: int = -1) -> None:
        """Begin a cycle; at the `halt_at`-th file it would stop and wait to be killed."""
        assert self.process.stdin is not None
        self.number = number
        self.process.stdin.write(json.dumps([number, halt_at]) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next event.

        Raises:
            RuntimeError: If there is none because the worker hangs or has ended.
        """
        try:
            line = self._events.get(timeout=LIMIT)
        except queue.Empty:
            self.kill()
            raise RuntimeError(
                f"a worker said nothing for {LIMIT:.0f} seconds in cycle {self.number}"
            ) from None
        if not line:
            code = self.process.wait()
            raise RuntimeError(f"a worker ended by itself with code {code} in cycle {self.number}")
        event: dict[str, Any] = json.loads(line)
        return event

    def finish(self) -> dict[str, Any]:
        """Hear the rest of a cycle; its last event."""
        while True:
            event = self.hear()
            if event["event"] == "done":
                return event

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it in peace."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=LIMIT)


@dataclass
class Tally:
    """What was seen so far."""

    rss: list[int] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    moments: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    parts_seen: int = 0
    problems: dict[str, list[str]] = field(
        default_factory=lambda: {
            name: [] for name in ("lost", "equal", "verified", "left", "memory")
        }
    )

    def count(self, verdicts: list[str], where: str) -> None:
        """Note verdicts on certificates."""
        for verdict in verdicts:
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
            if verdict != "verified":
                self.problems["verified"].append(f"{where}: {verdict}")


def finished_files(folder: Path) -> dict[Path, tuple[int, int, str]]:
    """Files of finished stages: inode, time and digest."""
    found = {}
    for path in [
        *(folder / name for name in STAGE_FILES),
        *(folder / "run" / name for name in RUN_FILES),
    ]:
        if path.exists():
            about = path.stat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[path] = (about.st_ino, about.st_mtime_ns, digest)
    return found


def unreadable(folder: Path) -> list[str]:
    """Files in their place that cannot be read: half-written ones."""
    bad = []
    for path in folder.rglob("*"):
        try:
            if path.name.endswith(".part") or path.is_dir():
                continue
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
    for name in (*STAGE_FILES, *(f"run/{name}" for name in RUN_FILES), "run/verification.json"):
        one, two = steady / name, killed / name
        if one.exists() != two.exists():
            bad.append(f"{two}: only one of the workers has it")
        elif name.endswith("certificate.npz") and one.exists():
            if content(Certificate.load(one)) != content(Certificate.load(two)):
                bad.append(f"{two}: another certificate")
        elif one.exists() and one.read_bytes() != two.read_bytes():
            bad.append(f"{two}: other bytes")
    return bad


def content(certificate: Certificate) -> dict[str, Any]:
    """All that a certificate says, times apart; arrays as bytes."""

    def bare(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.tobytes()
        if isinstance(value, tuple):
            return [bare(entry) for entry in value]
        if hasattr(value, "__dataclass_fields__"):
            return {entry.name: bare(getattr(value, entry.name)) for entry in fields(value)}
        return value

    held = {entry.name: bare(getattr(certificate, entry.name)) for entry in fields(certificate)}
    held["run"] = {name: x for name, x in certificate.run.items() if name != "seconds"}
    return held


def killed_once(
    worker: Worker, number: int, folder: Path, rng: np.random.Generator, tally: Tally
) -> bool:
    """Begin a cycle and kill the worker in it; whether that came before its end."""
    halts = bool(rng.integers(2))
    halt_at = int(rng.integers(1, 12)) if halts else -1
    events = int(rng.integers(0, 25))
    worker.ask(number, halt_at)
    moment = "at the beginning"
    while halts or events > 0:
        event = worker.hear()["event"]
        if event == "done":
            return False
        events -= 1
        moment = f"after '{event}'"
        if event == "halted":
            moment = "between writing and renaming"
            break
    if not moment.startswith("between"):
        time.sleep(float(rng.uniform(0.0, DELAY)))  # anywhere between two events
    worker.kill()
    tally.moments[moment] = tally.moments.get(moment, 0) + 1
    tally.parts_seen += len(list(folder.rglob("*.part")))
    tally.problems["lost"] += unreadable(folder)
    return True


def soak(cycles: int, kills: float, seed: int, folder: Path) -> Tally:
    """All cycles, in two workers at a time."""
    rng = np.random.default_rng([seed, 2**32])
    chosen = set(rng.choice(cycles, round(kills * cycles), replace=False).tolist())
    tally = Tally()
    homes = folder / "steady", folder / "killed"
    steady, victim = (Worker(home, seed) for home in homes)
    try:
        for number in range(cycles):
            ours, theirs = (home / f"{number:04d}" for home in homes)
            steady.ask(number)
            ended = steady.finish()
            tally.rss.append(ended["resident"])
            tally.count(ended["verdicts"], f"cycle {number}")
            kind = plan(seed, number).kind
            tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
            before: dict[Path, tuple[int, int, str]] = {}
            if number not in chosen:
                victim.ask(number)
                ended = victim.finish()
            else:
                if killed_once(victim, number, theirs, rng, tally):
                    before = finished_files(theirs)
                    victim = Worker(homes[1], seed)
                victim.ask(number)  # where it came too late: nothing is left to do
                ended = victim.finish()
            tally.count(ended["verdicts"], f"cycle {number}, killed")
            after = finished_files(theirs)
            tally.kept += len(before)
            tally.problems["lost"] += [
                f"{path}: made anew" for path, mark in before.items() if after.get(path) != mark
            ]
            tally.problems["lost"] += unreadable(theirs)
            tally.problems["equal"] += different(ours, theirs)
            tally.problems["left"] += [str(path) for path in theirs.rglob("*.part")]
            if number % 20 == 19:
                console.print(
                    f"  cycle {number + 1:>4}, {sum(tally.moments.values())} kills, "
                    f"{tally.rss[-1] / 1e6:.1f} MB"
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
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "seen", "problems"):
        table.add_column(heading, justify="left" if heading != "problems" else "right")
    checked = sum(tally.verdicts.values())
    told = ", ".join(f"{count} {moment}" for moment, count in sorted(tally.moments.items()))
    seen = {
        "lost": f"{tally.kept} finished files at {sum(tally.moments.values())} kills",
        "equal": f"{cycles} cycles against a worker that was never killed",
        "verified": f"{tally.verdicts.get('verified', 0)} of {checked} certificates",
        "left": f"{tally.parts_seen} temporary files lay there after kills",
        "memory": f"{second / 1e6:.1f} MB in the second quarter, {last / 1e6:.1f} MB in the last, "
        f"{growth:+.2%}" + ("" if is_judged else f" (judged from {JUDGED} cycles on)"),
    }
    for name, text in seen.items():
        table.add_row(name, text, str(len(tally.problems[name])))
    console.print(table)
    console.print("kinds: " + ", ".join(f"{k} {name}" for name, k in tally.kinds.items()))
    console.print(f"kills: {told or 'none'}")
    for name, problems in tally.problems.items():
        for problem in problems[:5]:
            console.print(f"  {name}: {problem}")
    return not any(tally.problems.values())


def main() -> int:
    """The driver, or a worker."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--kills", type=float, default=0.25, help="share of cycles with a kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, given.seed)
        return 0
    if given.cycles < 1 or not 0.0 <= given.kills <= 1.0:
        parser.error("--cycles must be at least 1, --kills between 0 and 1")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        try:
            tally = soak(given.cycles, given.kills, given.seed, Path(folder))
        except RuntimeError as error:  # its own words are on stderr
            console.print(f"FAILED: {error}")
            return 1
    is_well = show(tally, given.cycles)
    verdict = "PASSED" if is_well else "FAILED"
    console.print(f"{verdict}: {given.cycles} cycles in {time.perf_counter() - begin:.0f} s")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
