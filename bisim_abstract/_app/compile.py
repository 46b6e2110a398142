"""Compile all kernels before they are needed, in several processes: `bisim-abstract compile`.

Numba compiles under one lock, so that threads gain nothing; processes share what they compile
through numba's cache. Each of the parts below calls, on a model of a few states, what its kernels
are called from in earnest, so that they are compiled for the very types that will be met.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract._base.parallel import read_only, thread_count
from bisim_abstract._base.progress import COMPILE
from bisim_abstract._base.types import Progress, ProgressCallback
from bisim_abstract._bounds.action_values import spanning_tree
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel, build_blocks
from bisim_abstract._bounds.boxes import Boxes
from bisim_abstract._bounds.features import ValueFeatures, value_features
from bisim_abstract._bounds.ground import Starts
from bisim_abstract._bounds.jumps import jump
from bisim_abstract._bounds.spanning import Cells, Neighbours, compiled_tree
from bisim_abstract._bounds.tell_apart import make_witnesses
from bisim_abstract._bounds.witnesses import Witnesses
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._exact.classes import BisimulationClasses, bisimulation_classes
from bisim_abstract._exact.metric import bisimulation_metric
from bisim_abstract._exact.planning import value_iteration
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.renaming import own_names
from bisim_abstract._propose.partitions import repair_labels
from bisim_abstract._propose.renaming import match_actions
from bisim_abstract._relations.table import BISIMULATIONS, find_relation
from bisim_abstract._verify.points import linked_points
from bisim_abstract._verify.verify import verify
from bisim_abstract.errors import BisimError
from bisim_abstract.wrappers.vector import VectorModelEnv

GAMMA = 0.9
BEGUN = "compiling"  # what a process says when it has something to compile
SECONDS = {1: 25, 2: 15, 3: 13, 4: 8}  # by number of processes, on an ordinary machine
KERNELS = (
    *(
        f"_kernels.{name}"
        for name in (
            "transport",
            "chains",
            "refine",
            "features",
            "lookup",
            "pairgraph",
            "cells",
            "hausdorff",
            "matching",
            "points",
            "steps",
        )
    ),
    "_verify.kernels",
    "_verify.points",
)


@dataclass(frozen=True)
class Compiled:
    """What compiling ahead has done.

    Attributes:
        n_kernels: Kernels that are ready now, for any process. 0 if there is no folder that
            compiled code could be kept in.
        n_fresh: Kernels that had to be compiled for that; the others were ready before.
        seconds: How long it took, from beginning to end.
    """

    n_kernels: int
    n_fresh: int
    seconds: float


def compile_kernels(
    *, jobs: int | None = None, callback: ProgressCallback | None = None
) -> Compiled:
    """Compile every kernel that has not been yet, in processes of their own.

    Args:
        jobs: Number of processes at a time; as many as there are cores by default.
        callback: Called at the beginning and after every part.

    Raises:
        BisimError: If one of the processes fails.
    """
    groups = GROUPS[min(thread_count(jobs), max(GROUPS))]
    begin = time.perf_counter()
    is_told = threading.Event()

    def tell(done: int, detail: str) -> None:
        if callback is not None:
            callback(Progress(COMPILE, done, len(groups), detail))

    def begun() -> None:
        """A process has something to compile."""
        if not is_told.is_set():
            is_told.set()
            tell(0, f"compiling solvers, once, about {SECONDS[len(groups)]} s")

    found = []
    running: set[subprocess.Popen[str]] = set()
    with ThreadPoolExecutor(len(groups)) as pool:
        waiting = [pool.submit(_in_process, names, running, begun) for names in groups]
        try:
            for future in as_completed(waiting):
                found.append(future.result())
                if is_told.is_set():
                    tell(len(found), f"compiling solvers: {len(found)} of {len(groups)} are done")
        finally:
            # After an error or Ctrl-C nobody waits for what has begun; what is done is kept.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
    return Compiled(
        n_kernels=len({name for part in found for name in part["kept"]}),
        n_fresh=sum(part["fresh"] for part in found),
        seconds=time.perf_counter() - begin,
    )


def _in_process(
    names: Sequence[str], running: set[subprocess.Popen[str]], begun: Callable[[], None]
) -> dict[str, Any]:
    """Compile parts in a process that finds this very package, and is in `running` meanwhile."""
    home = str(Path(__file__).parents[2])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    report: dict[str, Any] = {}
    # Errors go to a file: a pipe that nobody empties meanwhile could stop the process.
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "bisim_abstract._app.compile", *names],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        running.add(process)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == BEGUN:
                begun()
            else:
                report = json.loads(line)
        process.wait()
        running.discard(process)
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if process.returncode != 0:
        reason = (said or [f"it ended with {process.returncode}"])[-1]
        raise BisimError(f"solvers ({', '.join(names)}) could not be compiled: {reason}")
    return report


# -- parts -------------------------------------------------------------------------------------


def _model() -> TabularMDP:
    """Two pairs of bisimilar states and one more, with two actions."""
    P = np.zeros((5, 2, 5))
    P[:4, 0, :4] = 0.25
    P[:4, 1, 4] = 0.5
    P[:4, 1, 2] = 0.5
    P[4, :, 4] = 0.75
    P[4, :, 0] = 0.25
    R = np.array([[0.0, 0.1], [0.0, 0.1], [1.0, 1.2], [1.0, 1.2], [0.3, 0.4]])
    return TabularMDP.from_dense(P, R)


def _identity(mdp: TabularMDP, relation: str) -> BisimulationClasses:
    states = np.arange(mdp.n_states)
    names = own_names(mdp) if find_relation(relation).matches_actions else None
    return BisimulationClasses(mdp, states, states, mdp, 0.0, 0.0, 0.0, None, relation, names)


def _compile_arms() -> None:
    for lookup_bytes in (0, 2**20):  # places of costs are found anew, or once
        arms = Arms(_model(), GAMMA, lookup_bytes=lookup_bytes)
        arms.cover_all()
        arms.sweep()
        jump(arms, is_upper=True)
    for reward_radius in (0.0, 0.1):  # sets of rewards, or of intervals
        low = _model().rewards
        high = low if reward_radius == 0.0 else read_only(low + reward_radius)
        starts = Starts.of(low, high, GAMMA, relation="lax", lower="reward", upper="reward")
        starts.read(np.array([0]), np.array([1]))


def _compile_verifier() -> None:
    """By a certificate that is written by hand: making one would compile all the rest."""
    mdp = _model()
    # Two blocks of two states each, and the last one.
    labels = np.array([0, 0, 1, 1, 2])
    model = BlockModel(
        labels=labels,
        low=mdp.rewards[[0, 2, 4]],
        high=mdp.rewards[[0, 2, 4]],
        indptr=np.array([0, 2, 4, 6, 8, 10, 12]),
        indices=np.array([0, 1, 1, 2, 0, 1, 1, 2, 0, 2, 0, 2]),
        probs=np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.75, 0.25, 0.75]),
        radius=np.zeros((3, 2)),
    )
    # The largest distance is at most 1.1 / (1 - gamma) = 11; a little less still holds.
    level = BlockLevel(model=model, keys=np.array([1]), lower=np.zeros(1), upper=np.full(1, 10.99))
    features = ValueFeatures(
        values=np.zeros((2, 5)),
        signs=np.ones((2, 2), np.int64),
        kinds=np.array([0, 1]),
        corrections=np.full(2, 100.0),
        witnesses=Witnesses(
            values=np.zeros((1, 5)),
            actions=np.zeros(1, np.int64),
            signs=np.ones(1, np.int64),
            support=np.zeros((1, 1), np.int64),
            potential=np.zeros((1, 1)),
            corrections=np.full(1, 100.0),
        ),
    )
    certificate = Certificate(
        fingerprint=mdp.fingerprint,
        n_states=mdp.n_states,
        gamma=GAMMA,
        rewards=mdp.rewards,
        keys=np.array([4]),
        lower=np.zeros(1),
        upper=np.full(1, 10.99),
        levels=(level,),
        features=features,
        lower_start="reward",
        upper_start="reward",
        scope="all",
        stop="",
        run={},
    )
    verify(mdp, certificate).raise_if_rejected()
    linked_points(mdp.rewards, 1.0)


def _compile_partitions() -> None:
    mdp = _model()
    labels = bisimulation_classes(mdp).labels
    bisimulation_classes(mdp, relation="lax")
    value_iteration(mdp, GAMMA)
    build_blocks(mdp, labels, renaming=match_actions(mdp, labels))
    repair_labels(mdp, labels, GAMMA)
    envs = VectorModelEnv(mdp)
    envs.reset(seed=0)
    envs.step([0])


def _compile_metric() -> None:
    for mdp in (_model(), TabularMDP.from_dense(np.eye(3)[:, None, :], [0.0, 0.5, 1.0])):
        for relation in BISIMULATIONS:
            classes = _identity(mdp, relation)
            bisimulation_metric(mdp, GAMMA, relation=relation, classes=classes)


def _compile_features() -> None:
    mdp = _model()
    features = value_features(mdp, GAMMA, count=2)
    blocks = build_blocks(mdp, np.array([0, 0, 1, 1, 2]))
    make_witnesses(mdp, GAMMA, features, blocks, np.array([0]), np.array([1]), tol=1.0)
    states = np.arange(mdp.n_states)
    features.boxes(states, mdp.n_states)
    features.lower(0, states)
    boxes = Boxes.of(Arms(mdp, GAMMA).starts, features, states)
    boxes.close_pairs(1.0, most=mdp.n_states**2, threads=1)
    known = Neighbours(states[:1], states[1:2], np.ones(1), mdp.n_states)
    compiled_tree((), Cells.of(states), boxes, known)
    spanning_tree(mdp.rewards, np.zeros(mdp.n_states, np.int64))


PARTS: dict[str, Callable[[], None]] = {
    "verifier": _compile_verifier,
    "partitions": _compile_partitions,
    "arms": _compile_arms,
    "metric": _compile_metric,
    "features": _compile_features,
}
# By number of processes. The last three share the transport solver, which is compiled once in a
# process: they are parted last.
GROUPS: dict[int, tuple[tuple[str, ...], ...]] = {
    1: (tuple(PARTS),),
    2: (("verifier", "partitions"), ("arms", "metric", "features")),
    3: (("verifier",), ("partitions",), ("arms", "metric", "features")),
    4: (("verifier",), ("partitions",), ("arms", "features"), ("metric",)),
}


def main() -> None:
    """Compile the parts that are named; say when that begins, and in JSON what came of it."""
    from bisim_abstract._base.jit import watching

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    with watching(lambda: say(BEGUN)) as compiled:
        for name in sys.argv[1:]:
            PARTS[name]()
    kept = [
        f"{module}.{name}"
        for module in KERNELS
        if (loaded := sys.modules.get(f"bisim_abstract.{module}")) is not None
        for name, value in vars(loaded).items()
        if type(getattr(value, "_cache", None)).__name__ == "FunctionCache"
    ]
    say(json.dumps({"kept": kept, "fresh": compiled.count}))


if __name__ == "__main__":
    main()
