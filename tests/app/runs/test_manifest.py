"""The files of a run belong together: edits, losses, strangers, and kills between two steps."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, certify
from bisim_abstract._app import manifest as manifests
from bisim_abstract._app.cli import main
from bisim_abstract._app.manifest import (
    CERTIFICATE,
    MANIFEST,
    NAMES,
    STAGED,
    Entry,
    Manifest,
    file_digest,
    value_digest,
)
from bisim_abstract._app.runs import Done, Run, RunResult, read_run
from bisim_abstract._base.lock import locked
from bisim_abstract._base.untrusted import DEEPEST
from bisim_abstract.errors import FileFormatError
from tests.support.certificates import same_certificate
from tests.support.runs import FILES, ROOMS, config, drop, put, rewritten, sealed, small

LISTED = sorted(FILES - {MANIFEST})


def code_and_sentence(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main([*words, "--quiet"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == (code != 0)
    return code, err


def commands(folder: Path) -> list[list[str]]:
    """Every command that reads a run without going on with it."""
    target = str(folder.parent / "x")
    return [
        ["verify", str(folder)],
        ["verify", f"{folder}/mdp.npz", f"{folder}/certificate.npz"],
        ["report", str(folder), "-o", f"{target}.html"],
        ["report", f"{folder}/mdp.npz", f"{folder}/certificate.npz", "-o", f"{target}.html"],
        ["export", str(folder), "-o", f"{target}.npz"],
        ["solve", f"{folder}/mdp.npz", f"{folder}/certificate.npz"],
    ]


def test_a_manifest_lists_everything(finished: RunResult) -> None:
    document = json.loads((finished.folder / MANIFEST).read_bytes())
    assert sorted(document["files"]) == LISTED == sorted(set(NAMES) & FILES)
    for name, entry in document["files"].items():
        assert entry["sha256"] == file_digest(finished.folder / name)
        for each, digest in entry["made_from"].items():
            assert digest == document["files"][each]["sha256"]
    assert set(document["files"]["report.html"]["made_from"]) == FILES - {
        "report.html",
        "verification.json",
        MANIFEST,
    }
    assert document["settings"] == config().digest
    stated = document.pop("digest")
    assert stated == value_digest(document)
    assert config(seed=1).digest != config().digest != config(gamma=0.8).digest


def test_commands_read_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for words in commands(folder):
        assert code_and_sentence(capsys, *words) == (0, "")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # A page of the run, by itself: with its title, its curves and its own commands.
    assert main(["report", str(folder), "-o", f"{folder.parent}/y.html", "--quiet"]) == 0
    page = (folder.parent / "y.html").read_text()
    for text in ("<title>small rooms</title>", 'id="curves"', "bisim-abstract run bisim_abstract/"):
        assert text in page
        assert text in (folder / "report.html").read_text()
    assert main(["verify", str(folder)]) == 0
    assert f"verified: the run in {folder}" in capsys.readouterr().out


def test_the_page_says_what_it_was_computed_from(finished: RunResult) -> None:
    page = finished.report.read_text()
    files = Manifest.load(finished.folder).files
    for name in ("mdp.npz", "certificate.npz", "encoder.npz", "comparison.json", "config.json"):
        assert files[name].sha256 in page
    assert config().digest in page
    assert finished.certificate.fingerprint in page
    assert f"bisim-abstract verify {finished.folder}" in page
    short = f"certificate.npz {files['certificate.npz'].sha256[:12]}…"
    told = re.search(r'<p class="times" id="bonds">(.*?)</p>', page)
    assert told is not None
    assert told[1].startswith(f"Computed from settings {config().digest[:12]}…, config.json ")
    assert short in told[1]


EDITS: dict[str, Callable[[Any], None]] = {
    "environment": put("config", "source", "env_args", value={"side": 6, "room_size": 3}),
    "tau": put("config", "certify", value={"tau": 2.0}),
    "seed": put("config", "source", "reading", "seed", value=7),
    "title": put("config", "title", value="something else"),
    "versions": put("versions", "numpy", value="1.0"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_settings(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewritten(folder / "config.json", EDITS[name])
    for words in (["run", "--resume", str(folder)], *commands(folder)):
        code, err = code_and_sentence(capsys, *words)
        assert code == 2
        assert "config.json is not as the run wrote it: put it back as it was" in err
        assert "another directory" in err
    assert not list(folder.parent.glob("x*"))


@pytest.mark.parametrize("name", LISTED)
def test_any_bit_that_flips_is_noticed(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rng = folder / name, np.random.default_rng(0)
    whole = path.read_bytes()
    places = {0, 8 * len(whole) - 1, *rng.integers(8 * len(whole), size=6).tolist()}
    for bit in places:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match=rf"{name} is not as the run wrote it.*put it"):
            read_run(folder)
    if name in ("verification.json", "report.html"):
        return  # these are always made anew
    with pytest.raises(FileFormatError, match=rf"{name} is not as the run wrote it"):
        Run.resume(folder)()
    code, err = code_and_sentence(capsys, "run", "--resume", str(folder))
    assert code == 2
    assert name in err


def test_any_bit_of_the_manifest_that_flips_is_noticed(folder: Path) -> None:
    path, rng = folder / MANIFEST, np.random.default_rng(0)
    whole = path.read_bytes()
    for bit in rng.integers(8 * len(whole), size=300).tolist():
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            same = json.loads(data) == json.loads(whole)
        except ValueError:
            same = False
        if not same:  # a space may become another
            with pytest.raises(FileFormatError, match=r"manifest\.json .*put it back"):
                Manifest.load(folder)


@pytest.mark.parametrize("name", LISTED)
def test_files_that_are_missing(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).unlink()
    for words in commands(folder):
        code, err = code_and_sentence(capsys, *words)
        assert code == 2
        assert f"{name} is missing" in err
        if name != "config.json":
            assert f"bisim-abstract run --resume {folder} makes it anew" in err
    if name == "config.json":
        with pytest.raises(FileFormatError, match=r"config\.json is missing: put it back"):
            Run.resume(folder)


def test_a_manifest_that_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / MANIFEST).unlink()
    whole_runs = [words for words in commands(folder) if words[1] == str(folder)]
    for words in (["run", "--resume", str(folder)], *whole_runs):
        code, err = code_and_sentence(capsys, *words)
        assert code == 2
        assert "manifest.json is missing, which says what files belong to the run" in err
    with pytest.raises(FileFormatError, match=r"manifest\.json is missing"):
        Run(folder, config())


@pytest.mark.parametrize("is_finished", [True, False])
def test_certificates_from_elsewhere(
    is_finished: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even of the same model and discount: it is not what this run found."""
    if not is_finished:
        for name in NAMES[4:]:
            Manifest.load(folder).drop(name)
    certify(ROOMS.model(), 0.9, tau=3.0).save(folder / CERTIFICATE)
    for words in (["run", "--resume", str(folder)], *commands(folder)):
        code, err = code_and_sentence(capsys, *words)
        assert code == 2
        what = "is not as the run wrote it" if is_finished else "was not written by the run in"
        assert f"certificate.npz {what}" in err
    (folder / CERTIFICATE).unlink()
    assert Run.resume(folder)().certificate.tau == 1.0


def test_settings_are_compared_by_value(folder: Path) -> None:
    assert Run(folder, config(certify={"tau": 1}))().certificate.tau == 1.0


def test_settings_that_a_later_version_knows(folder: Path) -> None:
    """A run that was begun without them goes on."""
    rewritten(folder / "config.json", drop("config", "source", "goal"))
    sealed(folder)
    assert Run.resume(folder)().verification.is_valid
    rewritten(folder / "config.json", put("config", "source", "reading", "seed", value=3))
    held = Manifest.load(folder)
    held.files["config.json"] = Entry(file_digest(folder / "config.json"))
    held.save()
    with pytest.raises(FileFormatError, match=r"holds other settings than manifest\.json states"):
        Run.resume(folder)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_versions_that_are_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = nested(DEEPEST - 2)
    for versions in (deep, {"numpy": deep, "x": "1"}, 3, None):
        rewritten(folder / "config.json", put("versions", value=versions))
        sealed(folder)
        words = ["report", str(folder), "-o", f"{folder.parent}/y.html"]
        assert code_and_sentence(capsys, *words) == (0, "")
        assert Run.resume(folder)().verification.is_valid


def test_versions_nested_too_deep_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(folder / "config.json", put("versions", value=nested(400)))
    sealed(folder)
    code, sentence = code_and_sentence(capsys, "verify", str(folder))
    assert code == 2
    assert f"nested more than {DEEPEST} deep" in sentence


def test_own_files_of_people_are_left_alone(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    assert read_run(folder).certificate.is_certified
    assert Run.resume(folder)().verification.is_valid
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_manifest_is_no_signature(folder: Path) -> None:
    """Who knows the format can write one that fits; `verify` still judges the certificate."""
    rewritten(folder / "config.json", put("config", "title", value="forged"))
    sealed(folder)
    assert Run.resume(folder)().verification.is_valid


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("format", value="x"), "another format"),
        (put("version", value=2), "another format or version"),
        (put("settings", value="x"), "is no digest"),
        (put("settings", value=None), "is no digest"),
        (put("files", value=[]), "manifest"),
        (put("files", "mdp.npz", value=3), "manifest"),
        (put("files", "mdp.npz", "sha256", value="A" * 64), "is no digest"),
        (put("files", "mdp.npz", "made_from", value={"x": "0" * 64}), "other files than a run's"),
        (put("files", "../x", value={"sha256": "0" * 64}), "no file of a run"),
        (put("files", "mdp.npz", "size", value=3), "manifest"),
    ],
)
def test_hostile_manifests(change: Callable[[Any], None], words: str, folder: Path) -> None:
    def both(document: Any) -> None:
        del document["digest"]
        change(document)
        document["digest"] = value_digest(document)

    rewritten(folder / MANIFEST, both)
    with pytest.raises(FileFormatError, match=words):
        Run.resume(folder)


# -- kills between two steps -------------------------------------------------------------------


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_a_kill_at_every_step_of_every_file(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended at each rename in turn, all in one directory: resumed, and equal to a whole run."""
    whole, folder = Run(tmp_path / "whole", small())(), tmp_path / "run"
    replace, count, left = os.replace, 0, 1

    def killing(source: Any, target: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0 and moment == "before":
            raise Killed
        replace(source, target)
        if left == 0:
            raise Killed

    monkeypatch.setattr(os, "replace", killing)
    while True:
        left = count = count + 1
        shutil.rmtree(folder, ignore_errors=True)
        try:
            Run(folder, small())()
        except Killed:
            pass
        else:
            break
        left = -1
        found = Run(folder, small())()
        same_certificate(found.certificate, whole.certificate)
        assert found.verdict == whole.verdict
        names = {path.name for path in folder.iterdir()}
        assert names == {path.name for path in whole.folder.iterdir()}
        for name in ("mdp.npz", "comparison.json", "verification.json"):
            assert (folder / name).read_bytes() == (whole.folder / name).read_bytes()
        read_run(folder)
    assert count > 12  # six files, each staged, listed and named


@pytest.mark.parametrize("name", ["certificate.npz", "comparison.json", "report.html"])
def test_a_file_that_is_listed_and_not_yet_named_is_taken(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = (folder / name).read_bytes(), (folder / name).stat().st_ino
    (folder / name).rename(folder / f"{STAGED}{name}")
    (folder / f"{STAGED}curves.json").write_bytes(b"half, and not listed")
    code, err = code_and_sentence(capsys, "verify", str(folder))
    assert code == 2
    assert f"was stopped while {name} was written; go on with it by bisim-abstract run" in err
    found = Run.resume(folder)()
    assert all(not done.is_new for done in found.stages if done.stage in ("certify", "compare"))
    if name != "report.html":
        assert ((folder / name).read_bytes(), (folder / name).stat().st_ino) == mark
    assert {path.name for path in folder.iterdir()} == FILES


def test_what_was_made_from_another_file_is_made_anew(folder: Path) -> None:
    """A run that is killed after it made its certificate again has the old comparison."""
    certificate = read_run(folder).certificate
    held = Manifest.load(folder)
    certificate.save(held.staged(CERTIFICATE))
    rerun = certify(ROOMS.model(), 0.9, tau=1.0)
    rerun.save(held.staged(CERTIFICATE))
    held.land(CERTIFICATE, held.staged(CERTIFICATE), made_from=["mdp.npz", "encoder.npz"])
    with pytest.raises(FileFormatError, match=r"computed from other files .*--resume"):
        read_run(folder)
    told: list[Any] = []
    again = Run.resume(folder, before=told.append)()
    assert {done.stage for done in again.stages if done.is_new} == {
        "verify",
        "compare",
        "learn",
        "report",
    }
    assert "again, from what was made anew" in {begun.detail for begun in told}
    read_run(folder)


# -- two at once -------------------------------------------------------------------------------


def test_a_second_run_is_kept_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "comparison.json").unlink()
    with locked(folder, what="a run"):
        code, err = code_and_sentence(capsys, "run", "--resume", str(folder))
        assert code == 2
        about = f"a run is under way in {folder}: by process {os.getpid()} on "
        assert about in err
        with pytest.raises(InvalidArgumentError, match="a run is under way"):
            Run(folder, config())()
        # A half-state is no error without saying whose it is.
        for words in commands(folder):
            code, err = code_and_sentence(capsys, *words)
            assert code == 2
            assert f"a run is under way in {folder}, by process {os.getpid()}" in err
        assert "comparison.json" not in {path.name for path in folder.iterdir()}
    assert Run.resume(folder)().verification.is_valid


def test_reading_while_a_run_is_under_way(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(folder, what="a run"):
        for words in commands(folder):
            assert code_and_sentence(capsys, *words) == (0, "")
        for name in NAMES[4:]:
            Manifest.load(folder).drop(name)
        code, err = code_and_sentence(capsys, "verify", str(folder))
        assert code == 2
        assert f"no certificate yet: it is under way, by process {os.getpid()}" in err
    code, err = code_and_sentence(capsys, "verify", str(folder))
    assert "go on with it by bisim-abstract run --resume" in err


@pytest.mark.parametrize("is_other", [True, False])
def test_two_runs_at_once_leave_no_mixture(is_other: bool, tmp_path: Path) -> None:
    """Both find nothing there; the second comes when the first is under way."""
    folder, results = tmp_path / "run", []
    met, begun = threading.Event(), threading.Event()

    def wait(done: Done) -> None:
        if done.stage == "extract":
            begun.set()
            assert met.wait(60)

    first = Run(folder, small(), after=wait)
    second = Run(folder, small(seed=1) if is_other else small())
    thread = threading.Thread(target=lambda: results.append(first()))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(InvalidArgumentError, match=r"a run is under way in .* by process"):
        second()
    met.set()
    thread.join()
    assert results[0].verification.is_valid
    assert read_run(folder).config == small()
    if is_other:
        with pytest.raises(InvalidArgumentError, match="a run with other settings"):
            second()
    else:
        assert second().verification.is_valid
    assert read_run(folder).config == small()


def test_names_of_files_are_known() -> None:
    assert set(NAMES) >= FILES - {MANIFEST}
    assert set(manifests.ALWAYS_ANEW) <= set(NAMES)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--env-arg", "side=4"], "its own model: drop --env-arg"),
        (["--reachable-only", "--goal", "x"], "drop --reachable-only, --goal"),
    ],
)
def test_options_of_sources_do_not_go_with_runs(
    words: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("verify", "report"):
        code, err = code_and_sentence(capsys, name, str(folder), *words)
        assert code == 2
        assert text in err
    code, err = code_and_sentence(capsys, "report", str(folder), "--learn", "3")
    assert code == 2
    assert "drop --learn and --encoder" in err
    code, err = code_and_sentence(capsys, "verify", f"{folder}/mdp.npz")
    assert code == 2
    assert "takes SOURCE and CERTIFICATE, or the directory of a run" in err
