"""The one loop: steps of a method until the goal is reached, a budget ends, or somebody stops it.

Budgets, progress, interruption and checkpoints are here, for all methods. A checkpoint is the
certificate of an unfinished run: one format, one reader.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bisim_abstract._base.atomic import check_writable, remove_unfinished
from bisim_abstract._base.checks import check_gamma, check_path
from bisim_abstract._base.deadline import OutOfTimeError, limited, seconds
from bisim_abstract._base.progress import compiling, shown, tell
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate.certificate import CUT_SHORT, Certificate
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._prove.auto import prove_fewest
from bisim_abstract._prove.cost import copied_bytes, functions_bytes
from bisim_abstract._prove.options import AUTO, Options
from bisim_abstract._prove.work import BUDGET, INTERRUPTED, OverBudgetError, Work, time_is_up
from bisim_abstract._relations.table import check_relation
from bisim_abstract._version import __version__
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._base.jit import Compilation

COMPILING = 10  # seconds it takes to compile what a first certificate needs
UNFINISHED = "unfinished"  # the `stop` of a checkpoint
# What a run may take beyond its budget of time until its certificate is there: a share of it, and
# some seconds more. Ctrl-C leaves as much for that as people wait.
SHARE, SPARE, WAIT = 0.2, 0.4, 0.7
UNDERIVED = (
    "no time was left to derive clusters and their value from its bounds: certified_thresholds() "
    "and frontier() of the certificate do"
)


def prove(
    mdp: TabularMDP,
    gamma: float,
    options: Options,
    *,
    resources: Resources = HERE,
    checkpoint: str | Path | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
    gives_up: bool = False,
    given_seconds: float | None = None,
) -> Certificate:
    """`certify`, with its goal, method and budgets in one object.

    If it `gives_up`, Ctrl-C ends it at once, by a `KeyboardInterrupt` that says where, and without
    a certificate: for callers that go on from the checkpoint. What is said of a budget of time
    names `given_seconds`, of which `max_seconds` may be what is left; by default they are the same.
    """
    check_resources(resources)
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    if options.relation == AUTO:
        if checkpoint is not None:
            raise InvalidArgumentError(
                "relation='auto' is several runs: give no checkpoint, or name a relation"
            )

        def one(relation: Options) -> Certificate:
            return prove(
                mdp,
                gamma,
                relation,
                resources=resources,
                callback=callback,
                progress=progress,
                gives_up=gives_up,
                given_seconds=options.max_seconds,
            )

        return prove_fewest(mdp, options, one)
    known = check_relation(mdp, options.relation)
    if mdp.names.rewards and options.is_by_value:
        # An agent that may choose in every step which reward it is paid is nobody's agent.
        raise InvalidArgumentError(
            "with several rewards side by side no value can be kept: say how many clusters by "
            "n_clusters=, or how far states may differ by tau= (tau='auto' for what stands out "
            "most), and ask prove_value(mdp.for_reward(name), certificate.labels, gamma) what "
            "a policy over these keeps of each"
        )
    n_live = mdp.n_states - (mdp.terminal_state is not None)
    if options.n_clusters is not None and options.n_clusters > max(n_live, 1):
        raise InvalidArgumentError(
            f"n_clusters must be between 1 and {max(n_live, 1)}, got {options.n_clusters}"
        )
    if checkpoint is not None:  # before any work that could not be kept
        check_path("checkpoint", checkpoint)
        check_writable(checkpoint)
        remove_unfinished(checkpoint)
    with (
        shown(callback, progress) as report,
        compiling(report, about=COMPILING) as compiled,
        resources.started(callback) as ready,
    ):
        budget = Budget(options, compiled, given_seconds)
        left = _room_for_tables(mdp, ready)
        table = Arms(mdp, gamma, relation=known.above, resources=left, **options.method.starts())
        run = _Run(options.method.begin(table, options), options, budget, report, gives_up)
        return run.to_the_end(checkpoint)


def _room_for_tables(mdp: TabularMDP, resources: Resources) -> Resources:
    """The same with what copies of the model leave of a limit of memory, before any is made."""
    copies = copied_bytes(mdp)
    if copies == 0:
        return resources
    resources.check_memory(
        copies + functions_bytes(mdp),
        what=f"working on {counted(mdp.n_states, 'state')} with {mdp.nnz:,} transitions",
        instead="merge states first (bisimulation_classes), or allow more (memory_limit)",
    )
    if resources.memory_limit is None:
        return resources
    return replace(resources, memory_limit=max(resources.memory_limit - copies, 1))


@dataclass(frozen=True)
class Budget:
    """How much a run may use; the clock starts with it, and stands still while solvers compile."""

    options: Options
    compiled: Compilation
    given_seconds: float | None = None  # what max_seconds is in words, if not that
    begin: float = field(default_factory=lambda: time.monotonic())

    def elapsed(self) -> float:
        """Seconds since the run began, without those of compiling."""
        return time.monotonic() - self.begin - self.compiled.seconds

    def left(self) -> float:
        """Seconds that are left for steps; infinitely many without a budget."""
        limit = self.options.max_seconds
        return math.inf if limit is None else limit - self.elapsed()

    def left_in_all(self) -> float:
        """Seconds that are left until the certificate should be there."""
        return self.left() + SHARE * (self.options.max_seconds or 0.0) + SPARE

    def ended(self, rounds: int, backups: int) -> str:
        """Which budget has ended, in words; empty if none has."""
        limits = self.options
        if rounds >= limits.max_rounds:
            return f"{BUDGET}: {counted(rounds, 'round')}"
        if self.left() <= 0.0:
            return self.time_is_up()
        if limits.max_backups is not None and backups >= limits.max_backups:
            return f"{BUDGET}: {counted(backups, 'pair backup')}"
        return ""

    def time_is_up(self) -> str:
        """That no time is left, in words."""
        given = self.given_seconds or self.options.max_seconds
        assert given is not None
        return time_is_up(given)


@dataclass(frozen=True)
class _Run:
    """A run of some method under way."""

    work: Work
    options: Options
    budget: Budget
    report: ProgressCallback | None
    gives_up: bool

    def to_the_end(self, checkpoint: str | Path | None) -> Certificate:
        """All steps that are needed and allowed, and the certificate."""
        work, budget = self.work, self.budget
        if checkpoint is not None and Path(checkpoint).exists():
            self._resume(checkpoint)
        stop, left = "", budget.left_in_all
        try:
            with limited(budget.left):
                while not stop:
                    stop = work.reason() if work.done else ""
                    stop = stop or budget.ended(work.done, work.backups)
                    if not stop and not work.step(self._pause):
                        stop = work.leftover()
                    if checkpoint is not None and not stop:
                        self._certificate(UNFINISHED).save(checkpoint)
        except OverBudgetError as ended:
            stop = str(ended)
        except OutOfTimeError:
            stop = budget.time_is_up()
        except KeyboardInterrupt:
            stop, left = f"{INTERRUPTED} in {work.unit} {work.done + 1}", seconds(WAIT)
            if self.gives_up:
                raise KeyboardInterrupt(stop) from None
        try:
            work.settle()
            with limited(left):
                return self._certificate(stop)
        except OutOfTimeError:
            why = stop
        except KeyboardInterrupt:
            if stop.startswith(INTERRUPTED):
                raise  # a second one gives all of it up
            why = f"{INTERRUPTED} after {work.unit} {work.done}"
            if self.gives_up:
                raise KeyboardInterrupt(why) from None
        work.settle()
        return self._certificate(f"{why}; {UNDERIVED}", is_hasty=True)

    def _pause(self, stage: str, detail: str, *, may_end: bool = True) -> None:
        total = self.options.max_rounds if self.work.unit == "round" else None
        with limited(None):  # what the caller does in a callback has time of its own
            tell(self.report, stage, self.work.done, total, detail)
        ended = self.budget.ended(0, self.work.backups) if may_end else ""
        if ended:
            raise OverBudgetError(ended)

    def _settings(self) -> dict[str, Any]:
        """What decides the course of the run, as it is read from a file."""
        table = self.work.table
        settings = {
            "fingerprint": table.mdp.fingerprint,
            "gamma": table.gamma,
            "relation": self.options.relation,
            "method": self.options.method.name,
            "seed": self.options.seed,
            **self.work.settings(),
        }
        read: dict[str, Any] = json.loads(json.dumps(settings))
        return read

    def _certificate(self, stop: str, *, is_hasty: bool = False) -> Certificate:
        run = run_record(
            "certify",
            self.options.seed,
            compiled=self.budget.compiled,
            rounds=self.work.done,
            backups=self.work.backups,
            seconds=round(self.budget.elapsed(), 3),
            settings=self._settings(),
            **self.work.record(),
        )
        if is_hasty:
            run = {**run, CUT_SHORT: True}
        return self.work.certificate(
            stop=stop, run=run, is_final=stop != UNFINISHED, is_hasty=is_hasty
        )

    def _resume(self, checkpoint: str | Path) -> None:
        """Take over the bounds of a checkpoint.

        They are taken as they are: `verify` the certificate of a resumed run if the file may have
        been changed.
        """
        found = Certificate.load(checkpoint)
        if found.stop != UNFINISHED:
            raise FileFormatError(
                f"{checkpoint} is a certificate, not a checkpoint, and would be written over; give "
                "another file"
            )
        theirs = found.run.get("settings")
        if theirs != self._settings():
            raise InvalidArgumentError(
                f"{checkpoint} belongs to a run with other settings or of another model: {theirs}"
            )
        try:
            self.work.resume(found)
        except (KeyError, TypeError, InvalidArgumentError) as error:
            raise FileFormatError(f"{checkpoint} is not a sound checkpoint: {error}") from error


def run_record(
    function: str, seed: int, *, compiled: Compilation, **entries: Any
) -> Mapping[str, Any]:
    """How a run went, as JSON values. Its seconds are without those of compiling."""
    entries["compile_seconds"] = round(compiled.seconds, 3)
    versions = {"bisim_abstract": __version__, "python": platform.python_version()}
    versions["numpy"] = np.__version__
    return {"function": function, "seed": seed, "versions": versions, **entries}
