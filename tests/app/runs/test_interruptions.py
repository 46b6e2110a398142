"""Runs that are stopped or killed go on where they were."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract import (
    Certificate,
)
from bisim_abstract._app.cli import main
from bisim_abstract._app.config import Config
from bisim_abstract._app.runs import Run, RunResult
from bisim_abstract._app.sources import Source
from tests.support import ROOT
from tests.support.certificates import same_certificate
from tests.support.runs import FILES, IF_NEEDED, NOISY, ROOMS, abstaining, small

# -- interruptions -----------------------------------------------------------------------------


BEGUN = {".lock", "config.json", "manifest.json", "mdp.npz"}
STOPPED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit none
from bisim_abstract._app import cli

stage, number = sys.argv[1], int(sys.argv[2])


def stop(progress):
    if progress.stage.startswith(stage):
        os.kill(os.getpid(), number)


cli._ignore = stop
sys.exit(cli.main(sys.argv[3:]))
"""


def stopped(stage: str, number: signal.Signals, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as a process that gets a signal at a stage's first sign of progress."""
    return subprocess.run(
        [sys.executable, "-c", STOPPED, stage, str(int(number)), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def words_of(folder: Path) -> list[str]:
    pairs = [f"--env-arg={name}={value}" for name, value in NOISY.items()]
    goal = ["--tau", "auto", "--train", "never", "--learn", "0"]
    return ["run", ROOMS.name, *pairs, *goal, "-o", str(folder), "--quiet"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_while_certifying(
    number: signal.Signals,
    tmp_path: Path,
    uninterrupted: Certificate,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    done = stopped("solving for all pairs", number, *words_of(folder))
    if number == signal.SIGINT:
        assert done.returncode == 130
        assert done.stderr == (
            f"bisim-abstract: interrupted: what was done is kept in {folder}; go on with "
            f"bisim-abstract run --resume {folder}\n"
        )
    else:
        assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""
    left = {path.name for path in folder.iterdir()}
    # Nobody releases the lock of a killed process but the system, which leaves its file.
    assert left == (BEGUN | {"checkpoint.npz"}) - ({".lock"} if number == signal.SIGINT else set())
    assert Certificate.load(folder / "checkpoint.npz").stop == "unfinished"
    assert main(["run", "--resume", str(folder), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    same_certificate(Certificate.load(folder / "certificate.npz"), uninterrupted)
    assert not (folder / "checkpoint.npz").exists()
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_killed_while_training(tmp_path: Path, finished: RunResult) -> None:
    folder = tmp_path / "run"
    words = ["run", ROOMS.name, "--env-arg=side=4", "--env-arg=room_size=2", "--tau", "1"]
    words += ["--steps", "5", "--transitions", "100", "--dim", "3", "--learn", "40"]
    words += ["--learn-seeds", "2", "--title", "small rooms", "-o", str(folder), "--quiet"]
    done = stopped("training", signal.SIGKILL, *words)
    assert done.returncode == -signal.SIGKILL
    assert {path.name for path in folder.iterdir()} == BEGUN
    found = Run.resume(folder)()
    assert found.stages[0].is_new is False
    assert found.stages[1].is_new is True
    same_certificate(found.certificate, finished.certificate)
    for name in ("curves.json", "comparison.json", "verification.json"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("stage", "left"),
    [
        ("looking for classes", {"first-checkpoint.npz"}),
        ("training", {"first-certificate.npz"}),
        (
            "looking for blocks in the embedding",
            {"first-certificate.npz", "encoder.npz", "checkpoint.npz"},
        ),
    ],
)
def test_killed_while_looking_whether_an_encoder_is_needed(
    stage: str, left: set[str], tmp_path: Path, needed: RunResult
) -> None:
    folder = tmp_path / "run"
    words = shlex.split(shlex.join(needed_words()))
    done = stopped(stage, signal.SIGKILL, "run", *words, "-o", str(folder), "--quiet")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert {path.name for path in folder.iterdir()} == BEGUN | left
    found = Run.resume(folder)()
    same_certificate(found.certificate, needed.certificate)
    assert found.encoder == needed.encoder
    assert {path.name for path in folder.iterdir()} == {x.name for x in needed.folder.iterdir()}
    for name in ("comparison.json", "verification.json"):
        assert (folder / name).read_bytes() == (needed.folder / name).read_bytes()


def needed_words() -> list[str]:
    return dataclasses.replace(abstaining(), training=IF_NEEDED, learn=0).words()


def test_killed_before_the_first_certificate_takes_its_name(tmp_path: Path) -> None:
    """It is enough, but was not yet given its name."""
    config = Config(source=Source(name="FrozenLake-v1"), training=IF_NEEDED)
    found = Run(tmp_path / "run", config)()
    (found.folder / "certificate.npz").rename(found.folder / "first-certificate.npz")
    (found.folder / "first-checkpoint.npz").write_bytes(b"left over")
    again = Run.resume(found.folder)()
    assert again.encoder == found.encoder
    same_certificate(again.certificate, found.certificate)
    names = {path.name for path in found.folder.iterdir()}
    assert names == FILES - {"encoder.npz", "curves.json"}


def test_interrupted_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="interrupted in step 2"):
        Run(tmp_path / "run", small(), callback=interrupt)()
    assert not (tmp_path / "run/certificate.npz").exists()
    assert Run.resume(tmp_path / "run")().certificate.is_certified
