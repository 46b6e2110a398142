"""Compiling: seen when it happens, counted apart, done ahead, and for one type only."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest

import bisim_abstract._app.compile as ahead
from bisim_abstract import certify, verify
from bisim_abstract._base import jit
from bisim_abstract._base.jit import kernel, watching
from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.progress import COMPILE, compiling
from bisim_abstract._base.types import Progress
from bisim_abstract._prove.driver import Budget
from bisim_abstract._prove.options import Options
from bisim_abstract.errors import BisimError
from bisim_abstract.parts import grouped_mdp

# What a newcomer does first, and what more was compiled for it than had been before.
PATH = """
import json, sys
import numpy as np
from bisim_abstract import Covering, bisimulation_metric, certify, estimate_mdp, verify
from bisim_abstract.parts import grouped_mdp, single_build, solve_transport, sparse_mdp
from bisim_abstract.wrappers import extract_mdp
from bisim_abstract._app.compile import KERNELS
from bisim_abstract._base.jit import watching
from bisim_abstract._bounds import spanning
from bisim_abstract._prove import levels
rng = np.random.default_rng(0)
states = rng.integers(0, 5, 3_000)
steps = states, rng.integers(0, 2, 3_000), states / 5, rng.integers(0, 5, 3_000), states < 0
estimated = estimate_mdp(*steps, n_states=5, n_actions=2, reward_range=(0, 1))
with watching() as compiled:
    for mdp in (grouped_mdp(60, 4, noise=0.02, seed=0)[0], sparse_mdp(40, seed=0), estimated,
                extract_mdp("FrozenLake-v1"), extract_mdp("CliffWalking-v1")):
        for relation in ("plain", "lax"):
            for options in ({}, {"tau": "auto"}, {"tau": 0.1, "method": Covering()}):
                verify(mdp, certify(mdp, 0.9, relation=relation, **options))
            bisimulation_metric(mdp, 0.9, relation=relation)
        single_build(mdp, 0.9, tau=0.1)
    solve_transport([[1.0, 2.0]], [1.0], [0.5, 0.5])
    spanning.FEW_CELLS, levels.MOST_BLOCK_PAIRS = 0, 1  # as if blocks were many
    certify(grouped_mdp(60, 4, noise=0.02, seed=0)[0], 0.9, tau="auto")
twice = [
    name
    for module in KERNELS
    for name, value in vars(sys.modules[f"bisim_abstract.{module}"]).items()
    if len({tuple(map(str, s)) for s in getattr(value, "signatures", ())}) > 1
]
print(json.dumps([compiled.count, twice]))
"""


def run(code: str, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_what_is_compiled_ahead_is_all_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts know every kernel, with the types that are met in earnest, and only these."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    told: list[Progress] = []
    found = ahead.compile_kernels(jobs=2, callback=told.append)
    assert min(found.n_fresh, found.n_kernels) > 25
    assert [report.done for report in told] == [0, 1, 2]
    assert told[0].detail.startswith("compiling solvers, once, about ")
    compiled, twice = json.loads(run(PATH, tmp_path))
    assert compiled == 0
    assert twice == []
    told.clear()
    again = ahead.compile_kernels(jobs=2, callback=told.append)
    assert (again.n_fresh, again.n_kernels) == (0, found.n_kernels)
    assert told == []  # nothing to do, and nothing to say


def test_a_part_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "GROUPS", {1: (("nothing of the kind",),)})
    with pytest.raises(BisimError, match=r"\(nothing of the kind\) could not be compiled: KeyErr"):
        ahead.compile_kernels()


def test_every_module_of_kernels_is_known() -> None:
    """A name that no module has would leave out its kernels without a word."""
    home = Path(ahead.__file__).parents[1]
    found = {f"_kernels.{path.stem}" for path in (home / "_kernels").glob("[!_]*.py")}
    assert {*ahead.KERNELS} == found | {"_verify.kernels", "_verify.points"}
    for name in ahead.KERNELS:
        importlib.import_module(f"bisim_abstract.{name}")


def test_every_part_is_in_every_grouping() -> None:
    for count, groups in ahead.GROUPS.items():
        assert len(groups) == count
        assert sorted(name for names in groups for name in names) == sorted(ahead.PARTS)
        assert count in ahead.SECONDS


# -- seen and counted --------------------------------------------------------------------------


def fresh() -> object:
    """A kernel that is compiled at its first call."""

    def add(x: float) -> float:
        return x + 1.0

    return numba.njit(add)  # not kept, unlike kernels


def call(function: object) -> None:
    assert function(1.0) == 2.0  # type: ignore[operator]


def test_compiling_is_counted_once_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit._watch, "is_kept", True)  # also in a checkout that is read-only
    told: list[Progress] = []
    with compiling(told.append, about=7) as outer:
        with compiling(told.append, about=9) as inner:
            call(fresh())
            call(fresh())
        call(fresh())
    call(fresh())
    assert [(report.stage, report.detail) for report in told] == [
        (COMPILE, "compiling solvers, once, about 7 s")
    ]
    assert (outer.count, inner.count) == (3, 2)
    assert outer.seconds > inner.seconds > 0.0


def test_where_nobody_listens_the_log_says_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit._watch, "is_kept", True)
    with caplog.at_level(logging.WARNING), compiling(None, about=7):
        call(fresh())
        call(fresh())
    assert [record.message for record in caplog.records] == [
        "compiling solvers, once, about 7 s (`bisim-abstract compile` does it ahead)"
    ]


def test_threads_that_work_for_a_call_are_counted() -> None:
    ours = [fresh(), fresh()]
    with watching() as found:
        map_chunks(lambda begin, _: call(ours[begin]), 2, threads=2, chunk=1)
        # Not what somebody else compiles at the same time.
        other = threading.Thread(target=call, args=(fresh(),))
        other.start()
        other.join()
    assert found.count == 2


def test_who_only_counts_silences_nobody() -> None:
    told: list[Progress] = []
    with watching() as counted, compiling(told.append, about=7):
        call(fresh())
    assert counted.count == len(told) == 1


def test_an_end_without_a_beginning_is_none() -> None:
    """Numba sends one where Ctrl-C comes between the two."""
    module = importlib.import_module("bisim_abstract._base.jit")
    module._watch.on_end(None)
    with watching() as found:
        call(fresh())
    assert found.count == 1
    assert gc.isenabled()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_left_as_it_was(is_enabled: bool) -> None:
    seen = []
    try:
        (gc.enable if is_enabled else gc.disable)()
        with watching(lambda: seen.append(gc.isenabled())):
            call(fresh())
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert seen == [False]


def test_an_error_while_compiling_leaves_nothing_behind() -> None:
    def wrong(x: float) -> float:
        return x + "a"  # type: ignore[operator]

    with watching() as found, pytest.raises(Exception, match="No implementation"):
        call(kernel(wrong))
    assert found.count == 1
    assert gc.isenabled()


def test_budgets_stand_still_while_solvers_compile() -> None:
    with watching() as found:
        budget = Budget(Options(max_rounds=1, max_seconds=5.0), found)
        found.seconds = -10.0  # as if ten seconds had passed
        assert budget.ended(0, 0) == "budget: max_seconds = 5 is used up"
        found.seconds = 10.0
        assert budget.elapsed() < 0.0
        assert budget.ended(0, 0) == ""


def test_certificates_say_what_compiling_took(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp, _ = grouped_mdp(30, 3, seed=0)
    verify(mdp, certify(mdp, 0.9))
    certificate = certify(mdp, 0.9)
    assert certificate.run["compile_seconds"] == 0.0
    assert verify(mdp, certificate).compile_seconds == 0.0
    # The same where a kernel has to be compiled on the way.
    refine = importlib.import_module("bisim_abstract._kernels.refine")
    monkeypatch.setattr(refine, "deviation_kernel", numba.njit(refine.deviation_kernel.py_func))
    told: list[Progress] = []
    found = certify(mdp, 0.9, callback=told.append)
    assert found.run["compile_seconds"] > 0.0
    assert [report.stage for report in told].count(COMPILE) == 1
