"""The short form of kills by stage, and that its judgement can fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bisim_abstract._app.runs import Run
from tests.stress import kills
from tests.support import ROOT
from tests.support.runs import small


def run_kills(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.stress.kills", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.nightly
def test_kills_in_every_stage() -> None:
    done = run_kills("--cycles", "14", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED: 14 cycles" in done.stdout
    found = re.search(r"(\d+) kills in 14 cycles", done.stdout)
    assert found is not None
    assert int(found[1]) >= 10  # some come too late
    for stage in ("extract", "train", "certify", "certify again", "verify", "report"):
        assert f"{stage}: " in done.stdout


def test_nonsense_is_refused() -> None:
    with pytest.raises(SystemExit):
        kills.main(["--cycles", "0"])


def test_runs_that_differ_are_found(tmp_path: Path) -> None:
    one = Run(tmp_path / "one", small())().folder
    two = Run(tmp_path / "two", small())().folder
    assert kills.different(one, two) == []
    assert len(kills.listed(two)) == 4
    path = two / "comparison.json"
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert kills.different(one, two) == [f"{path}: other content"]
    assert "comparison.json" not in kills.listed(two)
    shutil.copyfile(one / "comparison.json", path)
    page = two / "report.html"
    page.write_text(page.read_text().replace("CERTIFIED", "certified", 1))
    assert kills.different(one, two) == [f"{page}: other content"]
    (two / ".new-mdp.npz").write_bytes(b"")
    assert any(".new-mdp.npz: only one" in text for text in kills.different(one, two))


def test_any_problem_fails() -> None:
    tally = kills.Tally()
    assert kills.show(tally, 1)
    tally.problems.append("something")
    assert not kills.show(tally, 1)
