"""The paper's experiments on growth: scaling, lower bounds, scale, closure."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import bisimulation_metric
from bisim_abstract._base.types import FloatArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract.parts import sparse_mdp

pytestmark = pytest.mark.slow  # experiments, if only in their quick form

SCRIPTS = str(Path(__file__).parents[2] / "scripts")
NAMES = ("scaling", "lower_bounds", "scale", "closure")
FIGURES = {
    "scaling": ["scaling.png"],
    "lower_bounds": ["lower_bounds.png", "lower_bounds_bits.png"],
    "scale": ["scale.png"],
    "closure": ["closure.png"],
}


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    # Another "paper" may have been imported from elsewhere; ours is found by the path above.
    found = sys.modules.get("paper")
    if found is not None and not str(found.__file__).startswith(SCRIPTS):
        monkeypatch.delitem(sys.modules, "paper")


def run(name: str, out: Path) -> Any:
    """The quick form of an experiment, with its tables written."""
    engine = importlib.import_module("paper.engine")
    module = importlib.import_module(f"paper.{name}")
    out.mkdir(exist_ok=True)
    result = module.run(engine.Options(quick=True, out=out))
    engine.write_tables(result, out)
    return result


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_no_theorem_breaks_and_runs_repeat(name: str, tmp_path: Path) -> None:
    first = run(name, tmp_path / "a")
    second = run(name, tmp_path / "b")
    assert first.broken() == []
    assert sum(x.is_theorem for x in first.claims) >= 2
    assert first.choices
    assert first.figures == FIGURES[name]
    for figure in first.figures:
        assert (tmp_path / "a" / figure).stat().st_size > 10_000
    for table in first.tables:
        written = rows(tmp_path / "a" / f"{table.name}.csv")
        assert len(written) == len(table.rows) + 1
        if not table.name.endswith("_seconds"):  # all that is timed is kept apart
            assert written == rows(tmp_path / "b" / f"{table.name}.csv")
    claims = [[(x.text, x.measured) for x in r.claims if x.is_theorem] for r in (first, second)]
    assert claims[0] == claims[1]
    assert len(rows(tmp_path / "a" / f"{name}_claims.csv")) == len(first.claims) + 1


@pytest.mark.parametrize("name", NAMES)
def test_bounds_that_are_too_tight_break_theorems(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Arms.backup
    closure = importlib.import_module("paper.closure")
    # `certify` itself would notice: let the experiment come to its own checks.
    certificate = closure.certify(sparse_mdp(10, seed=0), 0.7)
    monkeypatch.setattr(closure, "certify", lambda *_, **__: certificate)

    def boastful(self: Arms, values: FloatArray, *, is_upper: bool) -> FloatArray:
        # In both arms, and never above the upper one: tables refuse arms that cross.
        found = 1.5 * honest(self, values, is_upper=is_upper)
        return np.minimum(found, self.upper)

    monkeypatch.setattr(Arms, "backup", boastful)
    # What is found too large must not be swept for ever.
    monkeypatch.setattr(importlib.import_module("paper.restricted"), "MAX_SWEEPS", 60)
    broken = run(name, tmp_path / "out").broken()
    assert broken
    assert all("violated" in x.why for x in broken)


def covered(n: int = 20) -> tuple[Arms, Any]:
    restricted = importlib.import_module("paper.restricted")
    mdp = sparse_mdp(n, seed=3)
    arms = Arms(mdp, 0.7, lower_start="zero", upper_start="constant")
    arms.cover(np.arange(n - 1), np.arange(1, n))
    restricted.settle(arms)
    return arms, restricted


def test_findings_of_an_honest_run() -> None:
    arms, restricted = covered()
    metric = bisimulation_metric(arms.mdp, 0.7, tol=1e-12)
    found = restricted.examine(arms, metric)
    assert found.is_enclosed
    assert found.is_identity
    assert found.is_contracted
    assert found.slack < 1e-11
    assert found.covered_error < 0.7 * found.rho < found.error


def test_checks_notice_small_faults() -> None:
    arms, restricted = covered()
    metric = bisimulation_metric(arms.mdp, 0.7, tol=1e-12)
    honest = restricted.examine(arms, metric)
    lower = arms.lower.copy()
    lower[3] = metric.bounds(*arms.pairs())[1][3] + 1e-11  # by less than any fixed tolerance
    arms.restore(arms.keys, lower, arms.upper, arms.backups)
    assert not restricted.examine(arms, metric).is_enclosed
    lower[3] = 0.0  # a covered pair that was not swept to its limit
    arms.restore(arms.keys, lower, arms.upper, arms.backups)
    late = restricted.examine(arms, metric)
    assert late.slack > honest.slack + 1e-3
    assert not late.is_contracted  # the slack is too wide for the check to say anything


def test_closure_of_a_cycle_is_as_long_as_it() -> None:
    closure = importlib.import_module("paper.closure")
    engine = importlib.import_module("paper.engine")
    cycle = closure.models(engine.Options(quick=True, out=Path()))["a cycle, 101 states"]
    arms, sizes = closure.close(cycle, np.array([0]), np.array([7]))
    assert arms.n_covered == 101
    assert sizes == list(range(1, 102))
    s, t = arms.pairs()
    assert set((t - s).tolist()) == {7, 94}
