"""The paper's bound experiments in their quick form: theorems, files, determinism, faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from paper import audit, coverage, grid, index_side, pipeline, sandwich
from paper.engine import DIFFERENT, Options, Result, Row, write_tables

from bisim_abstract import Certificate
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._propose.embedding import as_points
from bisim_abstract.parts import retrieve_pairs, single_build
from tests.support.asking import certify_named

pytestmark = pytest.mark.slow  # experiments, if only in their quick form

MODULES = {"audit": audit, "sandwich": sandwich, "pipeline": pipeline, "coverage": coverage}
FIGURES = {
    "audit": ["audit_coverage.png", "audit_bound.png"],
    "sandwich": ["sandwich_coverage.png"],
    "pipeline": ["pipeline_rounds.png"],
    "coverage": ["coverage_errors.png"],
}


def quick(name: str, out: Path, seed: int = 0) -> Result:
    out.mkdir(exist_ok=True)
    result: Result = MODULES[name].run(Options(quick=True, out=out, seed=seed))
    write_tables(result, out)
    return result


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(MODULES))
def test_theorems_hold_and_files_repeat(name: str, tmp_path: Path) -> None:
    result = quick(name, tmp_path / "first")
    assert result.name == name
    assert result.broken() == []
    assert sum(x.is_theorem for x in result.claims) >= 2
    assert result.choices
    tables = [f"{x.name}.csv" for x in result.tables] + [f"{name}_claims.csv"]
    for file in tables:
        assert (tmp_path / "first" / file).stat().st_size > 50
    assert result.figures == FIGURES[name]
    for file in result.figures:
        assert (tmp_path / "first" / file).stat().st_size > 10_000
    for table in result.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert any("pub" in x for x in table.columns) or table.name in (
            "audit_index_side",
            "pipeline_rounds",
        )
    quick(name, tmp_path / "second")
    for file in tables:  # none of these has a timing
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


# -- planted faults ----------------------------------------------------------------------------


def small_runs(options: Options) -> list[grid.Run]:
    return [grid.make_run(10, 3, 6, 0, options.seed)]


def no_rounds(policy: str, planes: int, seed: int, _: Options) -> Row:
    """A re-seeded run that is not made."""
    shares = dict.fromkeys(("after 10", "after 30", "after 100"), 1.0)
    row: Row = dict.fromkeys(x.strip() for x in sandwich.RESEED_COLUMNS.split(";"))
    row |= {"policy": policy, "planes": planes, "seed": seed, "covered error": 0.0, **shares}
    return row | {"coverage": [0.5, 1.0], "encloses": True, "grows": True}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small run instead of the grid."""
    monkeypatch.setattr(grid, "grid", small_runs)


def broken(result: Result) -> set[str]:
    assert all(x.verdict == DIFFERENT and x.why for x in result.broken())
    return {x.text for x in result.broken()}


def plant(monkeypatch: pytest.MonkeyPatch, *, lower: float = 0.0, upper: float = 0.0) -> None:
    """Backups that come out too high in the lower arm, or too low in the upper one."""
    sound = Arms.backup

    def faulty(self: Arms, values: Any, *, is_upper: bool) -> Any:
        return sound(self, values, is_upper=is_upper) + (-upper if is_upper else lower)

    monkeypatch.setattr(Arms, "backup", faulty)


@pytest.mark.usefixtures("few")
def test_a_lower_arm_that_is_too_high_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandwich, "reseed", no_rounds)
    assert quick("sandwich", tmp_path).broken() == []
    plant(monkeypatch, lower=0.05)  # more, and the arms cross: the package refuses
    assert "Both arms enclose the metric after every sweep" in broken(quick("sandwich", tmp_path))


@pytest.mark.usefixtures("few")
def test_an_upper_arm_that_is_too_low_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quick("coverage", tmp_path).broken() == []
    plant(monkeypatch, upper=0.05)
    assert broken(quick("coverage", tmp_path)) == {
        "All arms stay on their side of the metric, whatever the pairs"
    }


def test_a_pipeline_whose_bounds_are_too_tight_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "SIZES", (10,))
    monkeypatch.setattr(grid, "BUDGETS", (6,))
    sound = Certificate.bounds

    def too_tight(self: Certificate, states: Any, others: Any) -> Any:
        lower, _ = sound(self, states, others)
        return lower, lower

    monkeypatch.setattr(Certificate, "bounds", too_tight)
    assert "Both arms enclose the metric at every checkpoint" in broken(quick("pipeline", tmp_path))


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (0.9, "Global error equals rho, from 0"),
        (1.1, "Global error equals rho, from 0"),
        (0.2, "Covered error within gamma·rho, from 0"),
    ],
)
@pytest.mark.usefixtures("few")
def test_a_wrong_coverage_gap_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, expected: str
) -> None:
    sound = grid.coverage_gap
    monkeypatch.setattr(grid, "coverage_gap", lambda *x: factor * sound(*x))
    monkeypatch.setattr(audit, "transport_gaps", lambda _: ([0.0], [True]))
    assert expected in broken(quick("audit", tmp_path))


def test_an_operator_error_beyond_eps_op_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = grid.make_run(10, 6, 6, 0, 0)
    sound = index_side.approximate(run, "reward", 2)
    assert sound["holds (A)"]
    assert sound["holds (B)"]
    assert sound["holds lemma"]
    assert 0.0 < sound["eps_op"] < 1.0
    # An error that is there but not seen: both exact backups move with the approximate one.
    plant(monkeypatch, lower=1.0, upper=-1.0)
    unseen = index_side.approximate(run, "reward", 2)
    assert not unseen["holds (A)"]


# -- the grid ----------------------------------------------------------------------------------


def test_lists_are_those_behind_the_retrieved_pairs() -> None:
    run = grid.make_run(18, 6, 2, 0, 3)
    points = as_points(run.points, 18)
    pairs = retrieve_pairs(points, k=6, index="LSH2", seed=np.random.default_rng([run.key, 0]))
    assert np.array_equal(np.stack(pairs), np.stack(run.pairs))
    built = single_build(
        run.world.mdp, 0.7, sweeps=0, neighbours=6, embedding=run.points, index="LSH2", seed=run.key
    )
    assert np.array_equal(np.stack(grid.covered_by(built)), np.stack(run.pairs))
    assert (run.neighbours >= 0).all()
    assert (run.neighbours != np.arange(18)[:, None]).all()
    assert 0.0 < run.pair_recall <= run.recall < 1.0


def test_rounds_one_by_one_are_the_pipeline() -> None:
    world = grid.make_world(10, [1])
    settings: dict[str, Any] = {"neighbours": 3, "index": "LSH6", "seed": 5}
    *_, last = grid.by_rounds(world.mdp, 4, **settings)
    whole = certify_named(
        world.mdp, 0.7, method="covering", max_rounds=4, dim=6, upper_start="constant", **settings
    )
    assert np.array_equal(last.keys, whole.keys)
    assert np.array_equal(last.lower, whole.lower)
    assert np.array_equal(last.upper, whole.upper)


def test_tolerances_are_those_of_rounding() -> None:
    run = grid.make_run(10, 3, 6, 0, 0)
    arms = grid.make_arms(run.world, run.pairs)
    for _ in range(50):
        arms.sweep()
    assert run.world.metric.gap < 1e-12
    assert 0.0 < grid.tolerance(run.world, arms) < 1e-11


def test_published_rows_are_those_of_single_runs() -> None:
    """Shares of |S| k' neighbours: means over ten seeds would be ten times finer."""
    for (n, k, _), row in audit.PUBLISHED_ROWS.items():
        assert abs(row[1] * n * k - round(row[1] * n * k)) < 0.5e-4 * n * k + 1e-9
