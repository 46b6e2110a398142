"""The short form of the soak: cycles in two workers, one of which is killed now and then."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bisim_abstract.parts import sparse_mdp
from tests.stress import soak
from tests.stress.certifying import make_certificate

ROOT = Path(__file__).parents[2]


def run_soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.stress.soak", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.nightly
def test_soak() -> None:
    done = run_soak("--cycles", "12", "--kills", "0.25", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "48 of 48 certificates" in done.stdout
    found = re.search(r"finished files at (\d+) kills", done.stdout)
    assert found is not None
    assert int(found[1]) >= 2  # one may come too late
    assert "PASSED: 12 cycles" in done.stdout


def test_soak_refuses_nonsense() -> None:
    assert run_soak("--cycles", "0").returncode == 2
    assert run_soak("--kills", "1.5").returncode == 2


# -- its judgement, on what it must not let pass -------------------------------------------------


def test_memory_that_grows_fails(capsys: pytest.CaptureFixture[str]) -> None:
    flat = soak.Tally(rss=[300, *[200] * 99, *[209] * 100])
    assert soak.quarters(flat.rss) == (200, 209)
    assert soak.show(flat, 200)
    assert not soak.show(soak.Tally(rss=[200] * 100 + [211] * 100), 200)
    assert soak.show(soak.Tally(rss=[200] * 6 + [211] * 6), 12)  # too few to judge
    assert "grew by 5.5%" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lost", "equal", "verified", "left"])
def test_any_problem_fails(name: str) -> None:
    tally = soak.Tally(rss=[1])
    assert soak.show(tally, 1)
    tally.problems[name].append("something")
    assert not soak.show(tally, 1)


def test_rejected_certificates_are_problems() -> None:
    tally = soak.Tally(rss=[1])
    tally.count(["verified", "rejected"], "cycle 0")
    assert tally.problems["verified"] == ["cycle 0: rejected"]


def test_files_that_differ_or_break_are_found(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    mdp = sparse_mdp(12, 1, seed=0)
    for folder in (one, two):
        folder.mkdir()
        mdp.save(folder / "model.npz")
        make_certificate(mdp, 0.5).save(folder / "certificate.npz")
    assert soak.different(one, two) == []
    assert soak.unreadable(two) == []
    before = soak.finished_files(two)
    assert len(before) == 2
    mdp.save(two / "model.npz")  # the same bytes in a new file
    assert soak.different(one, two) == []
    assert soak.finished_files(two)[two / "model.npz"] != before[two / "model.npz"]
    make_certificate(mdp, 0.5, seed=1).save(two / "certificate.npz")
    assert [text.split(": ")[1] for text in soak.different(one, two)] == ["another certificate"]
    (two / "steps.json").write_text("[1, 2")
    assert len(soak.different(one, two)) == 2
    assert len(soak.unreadable(two)) == 1
