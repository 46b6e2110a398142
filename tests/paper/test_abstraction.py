"""The abstraction experiments of the paper in their quick form, and with planted faults."""

from __future__ import annotations

import csv
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT / "scripts") not in sys.path:
    sys.path.insert(0, str(ROOT / "scripts"))

engine: Any = importlib.import_module("paper.engine")

pytestmark = pytest.mark.slow  # experiments, if only in their quick form
planted: Any = importlib.import_module("paper.planted")

NAMES = ("downstream", "taxi", "gridworld", "surrogates")


def module(name: str) -> Any:
    return importlib.import_module(f"paper.{name}")


def run_into(name: str, out: Path) -> Any:
    out.mkdir()
    options = engine.Options(quick=True, out=out)
    result = module(name).run(options)
    engine.write_tables(result, out)
    return result


def untimed(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    kept = [k for k, column in enumerate(rows[0]) if "seconds" not in column or "paper" in column]
    return [[row[k] for k in kept] for row in rows]


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_quick_form(name: str, tmp_path: Path) -> None:
    result = run_into(name, tmp_path / "one")
    run_into(name, tmp_path / "two")
    assert result.name == name
    assert result.broken() == []
    assert any(claim.is_theorem for claim in result.claims)
    assert result.choices
    files = sorted(path.name for path in (tmp_path / "one").glob("*.csv"))
    assert {f"{table.name}.csv" for table in result.tables} < set(files)
    for file in files:
        one, two = untimed(tmp_path / "one" / file), untimed(tmp_path / "two" / file)
        if file.endswith("_claims.csv"):  # some tell times in words
            one, two = ([x for x in rows if not re.search(r"\d s$", x[2])] for rows in (one, two))
        assert one == two, file
    for figure in result.figures:
        assert (tmp_path / "one" / figure).stat().st_size > 10_000
    for table in result.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)


def build_of(truth: Any, neighbours: int = 6) -> Any:
    from bisim_abstract.parts import single_build

    return single_build(truth.mdp, planted.GAMMA, neighbours=neighbours, sweeps=300)


@pytest.fixture(scope="module")
def truth() -> Any:
    return planted.truth_of(*planted.planted_mdp(30, 6, seed=0))


def test_sound_build_passes_all_checks(truth: Any) -> None:
    check = planted.check_build(build_of(truth), truth, truth.gap_threshold())
    assert check["encloses"]
    assert check["lower identity"]
    assert check["upper identity"]
    assert check["chain"]


class Tampered:
    """A build whose upper arm is too low by a factor."""

    def __init__(self, build: Any, factor: float) -> None:
        self._build, self._factor = build, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._build, name)

    @property
    def upper(self) -> Any:
        return self._build.upper * self._factor

    def bounds(self, s: Any, t: Any) -> tuple[Any, Any]:
        lower, upper = self._build.bounds(s, t)
        return lower, upper * self._factor

    def partitions(self, tau: float) -> tuple[Any, Any]:
        lower, upper = self._build.forests
        return lower.labels(tau), upper.labels(tau / self._factor)


def test_bounds_that_are_too_tight_are_noticed(truth: Any) -> None:
    tampered = Tampered(build_of(truth), 0.02)
    check = planted.check_build(tampered, truth, truth.gap_threshold())
    assert not check["encloses"]
    assert not check["chain"]


def test_lower_arm_off_its_identity_is_noticed(truth: Any) -> None:
    made = build_of(truth)

    class Off(Tampered):
        def bounds(self, s: Any, t: Any) -> tuple[Any, Any]:
            lower, upper = made.bounds(s, t)
            covered = planted.is_covered(made, s, t)
            return np.where(covered, 0.0, np.maximum(truth.below - 1e-3, lower)), upper

    check = planted.check_build(Off(made, 1.0), truth, truth.gap_threshold())
    assert check["encloses"]
    assert not check["lower identity"]


@pytest.mark.parametrize(
    ("name", "text"), [("downstream", "enclose"), ("gridworld", "stays above")]
)
def test_planted_fault_breaks_a_theorem(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = module(name)
    real = own.single_build
    monkeypatch.setattr(own, "single_build", lambda *a, **k: Tampered(real(*a, **k), 0.02))
    result = run_into(name, tmp_path / "out")
    assert any(text in claim.text for claim in result.broken())


def test_planted_groups_share_successors() -> None:
    mdp, groups = planted.planted_mdp(24, 4, seed=1)
    assert np.ptp(mdp.rewards) == 1.0
    for group in range(4):
        first, *others = np.flatnonzero(groups == group)
        for other in others:
            for action in range(mdp.n_actions):
                own, theirs = (mdp.successors(int(s), action)[0] for s in (first, other))
                assert np.array_equal(own, theirs)


def test_single_linkage_into_a_number_of_clusters() -> None:
    s, t = np.triu_indices(5, 1)
    place = np.array([0.0, 1.0, 5.0, 6.0, 20.0])
    labels = planted.linked_into(5, s, t, np.abs(place[s] - place[t]), 3)
    assert labels.tolist() == [0, 0, 1, 1, 2]
    assert planted.refines(labels, np.array([0, 0, 0, 0, 1]))
    assert planted.refines(labels, labels)
    assert not planted.refines(np.array([0, 0, 0, 0, 1]), labels)
