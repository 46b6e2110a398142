"""Kept benchmarks: files, comparisons, and the site's tables. Times here are made up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import measured

    return measured


@pytest.fixture
def comparing(measured: Any) -> Any:
    import bench_compare

    return bench_compare


@pytest.fixture
def tables(measured: Any) -> Any:
    import bench_table

    return bench_table


def make_run(measured: Any, *, scale: float = 1.0, peer_scale: float = 1.0) -> Any:
    times = measured.Times(tuple(scale * t for t in (1.0, 1.02, 1.04, 1.1, 1.3)))
    theirs = measured.Times(tuple(peer_scale * t for t in (5.0, 5.1, 5.2, 5.3, 5.4)))
    peers = (measured.Peer("POT", theirs, "off by 0.1|0.2"),)
    figures = (
        measured.Figure("transport", "Exact transport", "4 x 4", "µs", times, peers),
        measured.Figure("metric", "Exact metric", "Taxi", "s", measured.Times((scale,)), (), "x"),
    )
    return measured.Run(
        date="2026-11-18T03:00Z",
        commit="0123456789abcdef",
        dirty=False,
        quick=False,
        machine={"cpu": "abacus", "cores": 2, "memory_gb": 8.0, "system": "Linux"},
        versions={"python": "3.11.7", "numpy": "2.4.6"},
        figures=figures,
    )


def test_runs_come_back_from_files(measured: Any, tmp_path: Path) -> None:
    run = make_run(measured)
    path = measured.write_run(run, tmp_path)
    assert path.name == "2026-11-18-0123456789.json"
    assert measured.read_run(path) == run
    first = json.loads(path.read_text())["figures"][0]
    assert (first["best"], first["median"], first["repeats"]) == (1.0, 1.04, 5)
    assert first["peers"][0]["ratio"] == 5.0
    dirty = measured.write_run(replace(run, dirty=True), tmp_path / "new")
    assert dirty.name == "2026-11-18-0123456789-dirty.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "diary"}, "holds no benchmarks"),
        ({"version": 99}, "version 99"),
        ({"figures": [{}]}, "incomplete"),
        ({"machine": None, "figures": 3}, "incomplete"),
    ],
)
def test_other_files_are_refused(
    measured: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    found = {**measured.as_json(make_run(measured)), **change}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=message):
        measured.read_run(path)


def test_a_run_says_where_it_comes_from_and_not_whose_machine_it_was(measured: Any) -> None:
    run = measured.describe_run(quick=True)
    assert set(run.machine) == {"cpu", "cores", "memory_gb", "system"}
    assert run.machine["cores"] >= 1
    assert {"python", "numpy", "numba", "bisim-abstract"} <= set(run.versions)


def verdicts(comparing: Any, first: Any, second: Any) -> list[str]:
    return [change.verdict for change in comparing.compare(first, second)]


def test_what_moved_beyond_noise_is_marked(measured: Any, comparing: Any) -> None:
    base = make_run(measured)
    few = "too few repeats"
    assert verdicts(comparing, base, base) == ["", "", few]
    # Medians 20% apart, but one repeat of the first was as slow as the second's best.
    assert verdicts(comparing, base, make_run(measured, scale=1.2)) == ["", "", few]
    assert verdicts(comparing, base, make_run(measured, scale=1.4)) == ["slower", "", few]
    assert verdicts(comparing, make_run(measured, scale=1.4), base) == ["faster", "", few]
    assert verdicts(comparing, base, make_run(measured, peer_scale=2.0)) == ["", "slower", few]


def test_small_changes_are_none_however_steady(measured: Any, comparing: Any) -> None:
    steady, later = (measured.Times((t,) * 5) for t in (1.0, 1.04))
    assert comparing.Change("x", "s", steady, later).verdict == ""
    assert comparing.Change("x", "s", steady, measured.Times((1.06,) * 5)).verdict == "slower"


def test_figures_of_one_run_alone_and_other_machines_are_named(
    measured: Any, comparing: Any
) -> None:
    base = make_run(measured)
    short = replace(base, figures=base.figures[1:], dirty=True, versions={"python": "3.13.0"})
    assert verdicts(comparing, base, short)[:2] == ["only before", "only before"]
    assert "only after" in verdicts(comparing, short, base)
    told = comparing.differences(base, short)
    assert "python: 3.11.7 and 3.13.0" in told
    assert "numpy: 2.4.6 and none" in told
    assert "the second run had changes that no commit has" in told


def test_the_command_shows_both_and_can_fail(
    measured: Any,
    comparing: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [str(tmp_path / f"{scale}.json") for scale in (1.0, 1.4)]
    for path, scale in zip(paths, (1.0, 1.4), strict=True):
        measured.write_run(make_run(measured, scale=scale), Path(path))
    for arguments, code in ((paths, 0), (["--fail", *paths], 1), (["--fail", *paths[::-1]], 0)):
        monkeypatch.setattr(sys, "argv", ["bench_compare.py", *arguments])
        assert comparing.main() == code
    out = capsys.readouterr().out
    assert "+40%" in out
    assert "ours: 1 slower, 1 too few repeats; peers: 1, moved by +0% (their median)" in out
    quick = replace(make_run(measured), quick=True)
    measured.write_run(quick, tmp_path / "quick.json")
    monkeypatch.setattr(sys, "argv", ["bench_compare.py", paths[0], str(tmp_path / "quick.json")])
    with pytest.raises(SystemExit, match="2"):
        comparing.main()
    assert "one of the two is a quick run" in capsys.readouterr().err


def test_tables_stand_between_their_marks(measured: Any, tables: Any) -> None:
    run = make_run(measured)
    page = f"# Benchmarks\n\n{tables.BEGIN}\nold\n{tables.END}\n\nMore words.\n"
    made = tables.update(page, run)
    assert "old" not in made
    assert made.startswith("# Benchmarks\n\n")
    assert made.endswith("\n\nMore words.\n")
    assert "| ↳ POT | 5 µs | 5.2 µs | 5x | off by 0.1\\|0.2 |" in made
    assert tables.update(made, run) == made
    assert tables.update("# No marks\n", run) is None
    assert all(len(line) <= 100 for line in made.splitlines() if not line.startswith("|"))


def test_the_page_is_made_of_the_baseline(measured: Any, tables: Any) -> None:
    run = measured.read_run(measured.BASELINE)
    assert len({figure.key for figure in run.figures}) == len(run.figures) > 20
    if not tables.PAGE.exists() or tables.BEGIN not in tables.PAGE.read_text(encoding="utf-8"):
        pytest.skip("no page asks for the tables")
    text = tables.PAGE.read_text(encoding="utf-8")
    assert tables.update(text, run) == text, "run: python scripts/bench_table.py"
