"""How soon a run stops: budgets of time and Ctrl-C, over models on which that once took minutes.

Each row is one run in a process of its own. With a budget, "took" is the time of the whole call,
certificate included, its solvers loaded before; with Ctrl-C the time from that until `certify`
returned, or until the command ended. "!" marks what took longer than it should.

    python scripts/stopping.py              all models, a few minutes
    python scripts/stopping.py wide dense   some of them
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bisim_abstract import TabularMDP, certify
from bisim_abstract.parts import grouped_mdp, sparse_mdp

BUDGETS = (0.5, 2.0, 8.0)
MOMENTS = (0.3, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)  # seconds after which Ctrl-C is pressed
COMMANDS = (3.0, 6.0)  # the same after the command `certify` was started
SPARE, SHARE = 1.0, 1.2  # what a budget of b seconds may become: SHARE * b + SPARE
WORDS = {"budget": "budget of", "interrupt": "Ctrl-C after", "command": "command after"}
SOON = 2.0  # seconds within which Ctrl-C should be heard


MODELS: dict[str, Callable[[], TabularMDP]] = {
    "small": lambda: sparse_mdp(1_200, 4, support=3, seed=0),
    "wide": lambda: sparse_mdp(5_000, 200, support=3, seed=0),
    "wider": lambda: sparse_mdp(1_000, 1_000, support=3, seed=0),
    "dense": lambda: sparse_mdp(2_000, 2, support=2_000, seed=0),
    "different": lambda: sparse_mdp(17_226, 4, support=1, seed=0),
    "noisy": lambda: grouped_mdp(20_000, 50, noise=0.05, seed=0)[0],
    "million": lambda: grouped_mdp(1_000_000, 100, noise=0.01, seed=0)[0],
}


def child(name: str, kind: str, seconds: float, path: str) -> None:
    """One run, in this process; prints what it took as JSON."""
    mdp = MODELS[name]() if not path else _read(path)
    certify(grouped_mdp(300, 5, noise=0.05, seed=0)[0], 0.9)  # loads what is compiled
    stages: list[str] = []
    pressed = [float("nan")]

    def press() -> None:
        pressed[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    options: dict[str, Any] = {"max_seconds": seconds} if kind == "budget" else {}
    timer = threading.Timer(seconds, press)
    begin = time.perf_counter()
    if kind == "interrupt":
        timer.start()
    try:
        stop = certify(mdp, 0.9, callback=lambda p: stages.append(p.stage), **options).stop
    except KeyboardInterrupt:
        stop = "interrupted before anything was known"
    end = time.perf_counter()
    timer.cancel()
    took = end - begin if kind == "budget" else end - pressed[0]
    print(json.dumps({"took": took, "stop": stop, "stage": stages[-1] if stages else ""}))


def _read(path: str) -> TabularMDP:
    from bisim_abstract import read_model

    return read_model(path, constants={"COL": 0}, reward="-cost")


def measure(name: str, kind: str, seconds: float, path: str) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--child", name, kind, str(seconds), path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}, {kind} {seconds}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_command(name: str, seconds: float, path: str) -> dict[str, Any]:
    """The command `certify`, interrupted so many seconds after its start."""
    with TemporaryDirectory() as folder:
        model, out = Path(folder, "model.npz"), Path(folder, "certificate.npz")
        (_read(path) if path else MODELS[name]()).save(model)
        command = [sys.executable, "-m", "bisim_abstract", "certify", str(model)]
        with subprocess.Popen(
            [*command, "--gamma", "0.9", "-o", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(seconds)
            is_under_way = process.poll() is None
            begin = time.perf_counter()
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=900)
            took = time.perf_counter() - begin if is_under_way else float("nan")
        kept = "a certificate is kept" if out.exists() else "nothing was known yet"
    return {"took": took, "stage": f"exit code {code}", "stop": kept}


def main() -> None:
    """All cases, a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--file", action="append", default=[], help="a PRISM file as well")
    parser.add_argument("--budgets", type=float, nargs="*", default=list(BUDGETS))
    parser.add_argument("--moments", type=float, nargs="*", default=list(MOMENTS))
    parser.add_argument("--commands", type=float, nargs="*", default=list(COMMANDS))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], given.child[1], float(given.child[2]), given.child[3])
        return
    cases = [(name, "") for name in given.names or list(MODELS)[1:]] + [
        (Path(path).stem, path) for path in given.file
    ]
    late: list[float] = []
    print(f"{'model':12}{'asked':>17}{'took':>9}  what was under way; why it ended")
    for name, path in cases:
        asked = [("budget", seconds) for seconds in given.budgets]
        asked += [("interrupt", seconds) for seconds in given.moments]
        asked += [("command", seconds) for seconds in given.commands]
        for kind, seconds in asked:
            if kind == "command":
                found = measure_command(name, seconds, path)
            else:
                found = measure(name, kind, seconds, path)
            took = float(found["took"])
            if not np.isfinite(took):
                continue  # it had ended before Ctrl-C
            is_late = took > (SHARE * seconds + SPARE if kind == "budget" else SOON)
            if kind != "budget":
                late.append(took)
            word = WORDS[kind]
            mark = " !" if is_late else ""
            print(
                f"{name:12}{word:>14} {seconds:<4g}{took:7.2f} s{mark:2} {found['stage']}; "
                f"{found['stop'][:90]}",
                flush=True,
            )
    if late:
        print(
            f"Ctrl-C: {len(late)} times, median {np.median(late):.2f} s, 99th percentile "
            f"{np.quantile(late, 0.99):.2f} s, longest {max(late):.2f} s"
        )


if __name__ == "__main__":
    main()
