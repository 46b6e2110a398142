"""Folders that hold a run, or something else, and what is made anew."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    certify,
)
from bisim_abstract._app.cli import main
from bisim_abstract._app.config import Training
from bisim_abstract._app.runs import Begun, Done, Run, RunResult, read_run, train_encoder
from bisim_abstract._prove import driver
from bisim_abstract._prove.driver import Budget
from bisim_abstract.encoders import load_encoder
from bisim_abstract.errors import FileFormatError
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support.certificates import same_certificate
from tests.support.runs import FILES, ROOMS, STAGES, config, forged, sealed, small

# -- folders -----------------------------------------------------------------------------------


def test_a_folder_has_one_run(folder: Path) -> None:
    others: list[dict[str, Any]] = [
        {"gamma": 0.8},
        {"certify": {}},
        {"seed": 1},
        {"title": None},
        {"learn": 41},
    ]
    for changes in others:
        with pytest.raises(InvalidArgumentError, match="a run with other settings"):
            Run(folder, config(**changes))
    with pytest.raises(InvalidArgumentError, match="a run with other settings"):
        Run(folder, config(source=dataclasses.replace(ROOMS, env_args={"side": 6})))
    assert not any(done.is_new for done in Run(folder, config())().stages[:3])


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="is not empty and holds no run"):
        Run(tmp_path, config())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(InvalidArgumentError, match="holds no run"):
        Run.resume(tmp_path)
    with pytest.raises(InvalidArgumentError, match="holds no run"):
        Run.resume(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_empty_and_missing_folders_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/and/deep"):
        seen: list[str] = []

        def look(done: Done, folder: Path = tmp_path / name, seen: list[str] = seen) -> None:
            if done.stage == "extract":
                seen += sorted(path.name for path in folder.iterdir())

        Run(tmp_path / name, small(), after=look)()
        assert seen == [".lock", "config.json", "manifest.json", "mdp.npz"]
        assert not (tmp_path / name / ".lock").exists()


# -- resuming ----------------------------------------------------------------------------------


def test_a_finished_run_is_only_checked_again(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    found = Run.resume(folder)()
    assert [done.stage for done in found.stages] == STAGES
    assert [done.stage for done in found.stages if done.is_new] == ["verify", "report"]
    assert all(done.seconds == 0.0 for done in found.stages if not done.is_new)
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(after) == FILES
    changed = {name for name in FILES if after[name] != before[name]}
    assert changed == {"verification.json", "report.html", "manifest.json"}


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("mdp.npz", {"extract"}),
        ("encoder.npz", {"train"}),
        ("verification.json", {"verify"}),
        ("comparison.json", {"compare"}),
        ("curves.json", {"learn"}),
        ("report.html", {"report"}),
    ],
)
def test_what_is_missing_is_made_anew(
    name: str, stages: set[str], folder: Path, finished: RunResult
) -> None:
    (folder / name).unlink()
    told: list[Begun] = []
    found = Run.resume(folder, before=told.append)()
    assert {done.stage for done in found.stages if done.is_new} == stages | {"verify", "report"}
    if name not in ("verification.json", "report.html"):
        assert f"{name} is gone" in [begun.detail for begun in told]
    assert {path.name for path in folder.iterdir()} == FILES
    same_certificate(found.certificate, finished.certificate)
    if name.endswith(".json"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes()
    if name == "encoder.npz":
        encoders = [load_encoder(path / name) for path in (folder, finished.folder)]
        one, other = (encoder.encode(np.arange(16)) for encoder in encoders)
        np.testing.assert_array_equal(one, other)


def took(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """Let every proof say that it took so long."""
    patch.setattr(Budget, "elapsed", lambda self: seconds)


def made_again(folder: Path) -> set[str]:
    """Stages that are done after the certificate of a run was deleted."""
    (folder / "certificate.npz").unlink()
    return {done.stage for done in Run.resume(folder)().stages if done.is_new}


def test_all_that_follows_from_another_certificate_is_made_anew(
    folder: Path, finished: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "__version__", "another")
    assert made_again(folder) == {"certify", "verify", "compare", "learn", "report"}
    same_certificate(Certificate.load(folder / "certificate.npz"), finished.certificate)
    assert {path.name for path in folder.iterdir()} == FILES


def test_the_same_certificate_made_anew_changes_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the clock says: seconds are in the manifest, and from there in the report."""
    before = (folder / "certificate.npz").read_bytes()
    for seconds in (1.5, 2345.6):
        took(seconds, monkeypatch)
        assert made_again(folder) == {"certify", "verify", "report"}
        assert (folder / "certificate.npz").read_bytes() == before
        assert "seconds" not in Certificate.load(folder / "certificate.npz").run
        assert read_run(folder).certificate.run["seconds"] == seconds
        assert f"{seconds:,.1f} s to certify" in (folder / "report.html").read_text()


def test_certificates_of_other_models_are_refused(folder: Path) -> None:
    certify(RoomsGridEnv(side=6, room_size=3).to_mdp(), 0.9).save(folder / "certificate.npz")
    sealed(folder)
    with pytest.raises(FileFormatError, match=r"certificate\.npz is not of this run's model"):
        Run.resume(folder)()
    certify(ROOMS.model(), 0.8).save(folder / "certificate.npz")
    sealed(folder)
    with pytest.raises(FileFormatError, match="model and discount"):
        Run.resume(folder)()
    assert main(["run", "--resume", str(folder), "--quiet"]) == 2


def test_verdicts_in_files_are_not_believed(folder: Path, finished: RunResult) -> None:
    good = (folder / "verification.json").read_bytes()
    for text in (b'{"is_valid": false}', b"garbage", b""):
        (folder / "verification.json").write_bytes(text)
        assert Run.resume(folder)().verification.is_valid
        assert (folder / "verification.json").read_bytes() == good
    forged(ROOMS.model()).save(folder / "certificate.npz")
    for name in ("comparison.json", "curves.json"):
        (folder / name).unlink()
    sealed(folder)
    found = Run.resume(folder)()
    assert not found.verification.is_valid
    assert found.verdict.sentence.startswith("REJECTED: ")
    assert json.loads((folder / "verification.json").read_bytes())["is_valid"] is False
    assert found.report.is_file()
    # Nothing is computed from a certificate that does not hold.
    assert not (folder / "comparison.json").exists()
    assert not (folder / "curves.json").exists()
    assert main(["run", "--resume", str(folder), "--quiet"]) == 4


@pytest.mark.parametrize("name", ["mdp.npz", "encoder.npz", "certificate.npz"])
def test_damaged_files(name: str, folder: Path) -> None:
    whole = (folder / name).read_bytes()
    for data in (b"garbage", whole[: len(whole) // 2], b""):
        (folder / name).write_bytes(data)
        with pytest.raises(FileFormatError, match=f"{name} is not as the run wrote it"):
            Run.resume(folder)()
        sealed(folder)
        with pytest.raises(FileFormatError, match=name):
            Run.resume(folder)()
    assert (folder / name).read_bytes() == b""


@pytest.mark.parametrize("name", ["comparison.json", "curves.json"])
@pytest.mark.parametrize(
    "text", ["null", "3", "[1]", '[{"name": "x"}]', '[{"loss": "x"}]', "", "[" * 100_000]
)
def test_damaged_results(text: str, name: str, folder: Path) -> None:
    (folder / name).write_text(text)
    sealed(folder)
    with pytest.raises(FileFormatError, match=rf"{name} is damaged .*delete it"):
        Run.resume(folder)()


@pytest.mark.parametrize("text", ["[]", "{}"])
def test_comparisons_that_are_empty(text: str, folder: Path) -> None:
    (folder / "comparison.json").write_text(text)
    sealed(folder)
    with pytest.raises(FileFormatError, match=r"comparison\.json is damaged"):
        Run.resume(folder)()


@pytest.mark.parametrize("scores", [[], [1.0], [[]], [[1.0, 2.0]], [[[1.0]]]])
def test_curves_of_other_shapes(scores: Any, folder: Path) -> None:
    row = {"name": "x", "steps": [1], "scores": scores}
    (folder / "curves.json").write_text(json.dumps([row]))
    sealed(folder)
    with pytest.raises(FileFormatError, match=r"curves\.json is damaged"):
        Run.resume(folder)()


def test_encoders_of_other_models(folder: Path) -> None:
    other = RoomsGridEnv(side=6, room_size=3).to_mdp()
    encoder = train_encoder(ROOMS, other, Training(steps=2, transitions=20), 0.9, 0)
    encoder.save(folder / "encoder.npz")
    (folder / "certificate.npz").unlink()
    sealed(folder)
    with pytest.raises((InvalidArgumentError, FileFormatError)):
        Run.resume(folder)()
