"""Configurations: round trips, hostile settings, and small parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Covering,
    InvalidArgumentError,
    Reading,
    TabularMDP,
    __version__,
    certify,
)
from bisim_abstract._app import runs
from bisim_abstract._app.config import Config, Training, versions
from bisim_abstract._app.runs import Run, RunResult, plain
from bisim_abstract._app.sources import Source
from bisim_abstract._base.atomic import replacing, write_json
from bisim_abstract._certificate.verdict import judge
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import random_mdp, single_build
from tests.support.runs import FILES, ROOMS, config, drop, put, rewritten, sealed, small

# -- configurations ----------------------------------------------------------------------------


def test_config_round_trip(finished: RunResult, tmp_path: Path) -> None:
    assert Config.load(finished.folder / "config.json") == config()
    for each in (small(), config(gamma=0.5, seed=3, title=None), Config(source=ROOMS)):
        write_json(tmp_path / "config.json", each.header())
        assert Config.load(tmp_path / "config.json") == each


def test_how_a_model_file_is_read_is_kept(tmp_path: Path) -> None:
    source = Source(
        name="m.prism",
        constants={"N": 3, "p": 0.25, "fast": True},
        reward=("time", "-cost"),
        goal="done",
        actions="positions",
    )
    each = Config(source=source, learn=0)
    write_json(tmp_path / "config.json", each.header())
    again = Config.load(tmp_path / "config.json")
    assert again == each
    assert again.source.options == source.options
    assert again.words() == each.words()
    text = " ".join(each.words())
    assert "--const N=3 --const p=0.25 --const fast=true" in text
    assert "--reward time --reward=-cost --goal done --actions positions" in text


def test_what_an_environment_counts_is_kept(tmp_path: Path) -> None:
    each = small(source=Source(name="Door-v0", reading=Reading(freeze=("steps", "seen"))))
    write_json(tmp_path / "config.json", each.header())
    again = Config.load(tmp_path / "config.json")
    assert again == each
    assert again.source.reading.freeze == ("steps", "seen")
    assert "--freeze steps --freeze seen" in " ".join(each.words())
    assert "--freeze" not in small().words()


def test_what_was_imported_is_told_and_not_imported(tmp_path: Path) -> None:
    each = small(imports=("no_such_module", "neither.this"))
    write_json(tmp_path / "config.json", each.header())
    assert Config.load(tmp_path / "config.json") == each
    assert "--import no_such_module --import neither.this" in " ".join(each.words())
    for bad in ("os", ["a b"], ["; import os"], [""], [3]):
        with pytest.raises(InvalidArgumentError, match="imports must be a list of modules"):
            small(imports=bad)


def test_runs_of_earlier_versions_say_nothing_about_what_is_new(tmp_path: Path) -> None:
    document = small().header()
    for name in ("constants", "reward", "goal", "actions", "reading"):
        del document["config"]["source"][name]
    del document["config"]["imports"]
    write_json(tmp_path / "config.json", document)
    assert Config.load(tmp_path / "config.json") == small()


def test_versions_are_recorded(finished: RunResult) -> None:
    document = json.loads((finished.folder / "config.json").read_bytes())
    assert document["format"] == "bisim_abstract.Run"
    assert document["versions"] == versions()
    assert versions()["bisim_abstract"] == __version__
    assert versions()["torch"] == metadata.version("torch")
    assert versions()["python"] == sys.version.split()[0]


def test_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisim_abstract._app.config.PACKAGES", ("numpy", "no-such-package"))
    assert versions()["no-such-package"] == "not installed"


HOSTILE: dict[str, Callable[[Any], None]] = {
    "other format": put("format", value="bisim_abstract.Certificate"),
    "no format": drop("format"),
    "other version": put("version", value=2),
    "no config": drop("config"),
    "config is a list": put("config", value=[]),
    "config is null": put("config", value=None),
    "unknown setting": put("config", "colour", value="red"),
    "no source": drop("config", "source"),
    "source is text": put("config", "source", value="FrozenLake-v1"),
    "source is empty": put("config", "source", value={}),
    "unknown entry of the source": put("config", "source", "path", value="x"),
    "name is a number": put("config", "source", "name", value=3),
    "arguments are a list": put("config", "source", "env_args", value=[1]),
    "reading is a list": put("config", "source", "reading", value=[1]),
    "reading is text": put("config", "source", "reading", value="x"),
    "unknown entry of the reading": put("config", "source", "reading", "colour", value="x"),
    "terminal": put("config", "source", "reading", "terminal", value="x"),
    "states": put("config", "source", "reading", "max_states", value=0),
    "constants": put("config", "source", "constants", value=[1]),
    "reward": put("config", "source", "reward", value="time"),
    "goal": put("config", "source", "goal", value="done"),
    "actions": put("config", "source", "actions", value="x"),
    "no training": drop("config", "training"),
    "training is a list": put("config", "training", value=[]),
    "training is text": put("config", "training", value="dbc"),
    "unknown entry of the training": put("config", "training", "epochs", value=3),
    "kind": put("config", "training", "kind", value="x"),
    "kind is a list": put("config", "training", "kind", value=["dbc"]),
    "steps": put("config", "training", "steps", value=0),
    "steps are real": put("config", "training", "steps", value=5.5),
    "dim": put("config", "training", "dim", value=0),
    "transitions": put("config", "training", "transitions", value=-1),
    "experience": put("config", "training", "experience", value="x"),
    "when": put("config", "training", "when", value="never"),
    "gamma": put("config", "gamma", value=1.0),
    "gamma is null": put("config", "gamma", value=None),
    "gamma is a list": put("config", "gamma", value=[0.9]),
    "gamma is NaN": put("config", "gamma", value=float("nan")),
    "learn": put("config", "learn", value=-1),
    "learn is real": put("config", "learn", value=1.5),
    "learn seeds": put("config", "learn_seeds", value=0),
    "seed": put("config", "source", "reading", "seed", value=-1),
    "seed is text": put("config", "source", "reading", "seed", value="0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_settings(name: str, folder: Path) -> None:
    rewritten(folder / "config.json", HOSTILE[name])
    with pytest.raises(FileFormatError, match=r"config\.json"):
        Config.load(folder / "config.json")
    with pytest.raises(FileFormatError, match=r"config\.json"):
        Run.resume(folder)
    assert {path.name for path in folder.iterdir()} == FILES


def test_unknown_settings_are_named(folder: Path) -> None:
    rewritten(folder / "config.json", HOSTILE["unknown setting"])
    with pytest.raises(FileFormatError, match=r"an unknown setting, 'colour'; known are source,"):
        Config.load(folder / "config.json")


def test_unknown_parts_of_the_file_are_named(folder: Path) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_bytes())
    write_json(path, document | {"gama": 0.5, "confg": {}})
    with pytest.raises(FileFormatError, match=r"an unknown setting, 'gama'; known are format"):
        Config.load(path)
    write_json(path, document | {"confg": {}})
    with pytest.raises(FileFormatError, match=r"unknown setting, 'confg'; did you mean config\?"):
        Config.load(path)


HOSTILE_CERTIFY: dict[str, Any] = {
    "list": [],
    "number": 3,
    "null": None,
    "unknown": {"colour": "red"},
    "our seed": {"seed": 1},
    "our checkpoint": {"checkpoint": "x.npz"},
    "our model": {"mdp": 1},
}


@pytest.mark.parametrize("name", HOSTILE_CERTIFY)
def test_hostile_arguments_of_certify(name: str, folder: Path) -> None:
    rewritten(folder / "config.json", put("config", "certify", value=HOSTILE_CERTIFY[name]))
    with pytest.raises(FileFormatError, match=r"config\.json"):
        Config.load(folder / "config.json")


@pytest.mark.parametrize("value", [3, ["x"], {}])
def test_hostile_titles(value: Any, folder: Path) -> None:
    rewritten(folder / "config.json", put("config", "title", value=value))
    with pytest.raises(FileFormatError, match=r"config\.json"):
        Config.load(folder / "config.json")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"[]", b"3", b'"x"', b"\xff\xfe", b"[" * 100_000, b"\x00" * 10],
    ids=["empty", "open", "null", "list", "number", "text", "bytes", "deep", "zeros"],
)
def test_what_is_no_configuration(text: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(text)
    with pytest.raises(FileFormatError, match=r"config\.json"):
        Run.resume(folder)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (Training, {"kind": "x"}, "encoder must be one of"),
        (Training, {"steps": 0}, "steps must be at least 1"),
        (Training, {"dim": 0}, "dim must be at least 1"),
        (Training, {"transitions": 0}, "transitions must be at least 1"),
        (Training, {"experience": "x"}, "experience must be one of"),
        (config, {"gamma": 1}, "gamma must lie in"),
        (config, {"learn": -1}, "learn must be at least 0"),
        (config, {"learn_seeds": 0}, "learn_seeds must be at least 1"),
        (config, {"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_settings(kind: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        kind(**changes)


# -- small parts -------------------------------------------------------------------------------


def test_verdicts(finished: RunResult) -> None:
    certificate = finished.certificate
    assert certificate.value is not None
    found = judge(certificate)
    assert (found.level, found.colour, found.clusters) == ("useful", "green", 4)
    assert (found.kept, found.loss) == (
        certificate.value.solver.kept,
        certificate.value.solver.loss,
    )
    assert found.sentence.startswith("CERTIFIED: 4 clusters of 16 states; at gamma 0.9, any agent ")
    assert judge(certificate, finished.verification).sentence == f"{found.sentence} (verified)"
    mdp = random_mdp(6, seed=0)
    covered = certify(mdp, 0.9, method=Covering(), tau=1e6)
    assert judge(covered).sentence.startswith("CERTIFIED over covered pairs only")
    assert "1 cluster of 6 states" in judge(covered).sentence
    bare = judge(single_build(mdp, 0.9))
    assert (bare.level, bare.colour, bare.clusters, bare.kept) == ("open", "red", None, None)
    poor = judge(certificate.at(1e6).with_value())
    assert (poor.level, poor.colour) == ("poor", "yellow")
    assert poor.sentence.startswith("CERTIFIED, BUT agents may do no better than the baseline: ")


def test_plain() -> None:
    value = {
        1: (np.int64(3), np.float64(0.5), float("nan"), -float("inf")),
        "path": Path("a") / "b",
        "array": np.array([[1.0, np.nan]]),
        "none": None,
        "flag": np.bool_(True),
    }
    assert plain(value) == {
        "1": [3, 0.5, None, None],
        "path": "a/b",
        "array": [[1.0, None]],
        "none": None,
        "flag": True,
    }
    json.dumps(plain(value), allow_nan=False)


def spied(path: Path, told: list[Any], what: Any) -> None:
    told.append(what)
    path.write_text("a page")


def test_losses_without_a_share_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinity is null in the file."""
    TabularMDP.from_dense(np.ones((1, 2, 1)), [[1.0, 1.0]]).save(tmp_path / "m.npz")
    source = Source(name=str(tmp_path / "m.npz"))
    first = Run(tmp_path / "run", small(source=source, certify={"tau": 0.1}))()
    path = tmp_path / "run/comparison.json"
    rows = json.loads(path.read_bytes())
    assert rows[0]["loss"]["kept"] == 1.0
    rows[0]["loss"]["kept"] = None
    write_json(path, rows)
    sealed(tmp_path / "run")
    told: list[Any] = []
    monkeypatch.setattr(
        runs, "write_report", lambda path, *args, **kwargs: spied(path, told, kwargs["comparison"])
    )
    assert [done.detail for done in Run.resume(tmp_path / "run")().stages][:3] == [
        done.detail for done in first.stages
    ][:3]
    assert told[0][0].loss.kept == -np.inf


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"γ": [1, None]})
    assert path.read_bytes() == b'{\n  "\\u03b3": [\n    1,\n    null\n  ]\n}\n'
    for bad in (float("nan"), object()):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, {"a": bad})

    def halfway() -> None:
        with replacing(path) as file:
            file.write(b"half")
            assert path.read_bytes().startswith(b"{")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        halfway()
    assert json.loads(path.read_bytes()) == {"γ": [1, None]}
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(OSError) as caught:
        write_json(tmp_path / "missing/x.json", 1)
    assert caught.value.filename == str(tmp_path / "missing/x.json")


# -- found by fuzzing --------------------------------------------------------------------------


def test_configurations_nested_deeply_are_refused(tmp_path: Path) -> None:
    header = Config(source=Source(name="FrozenLake-v1")).header()
    text = json.dumps(header).replace(
        '"env_args": {}', f'"env_args": {{"x": {"[" * 400 + "]" * 400}}}'
    )
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(FileFormatError, match="nested"):
        Config.load(tmp_path / "config.json")


@pytest.mark.parametrize("tau", [1, 1.0])
def test_any_number_as_tau_excludes_a_number_of_clusters(tau: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not both"):
        Config(source=Source(name="m.npz"), certify={"tau": tau, "n_clusters": 2})
    Config(source=Source(name="m.npz"), certify={"tau": "auto", "n_clusters": 2})
    with pytest.raises(InvalidArgumentError, match="tau must be a real number, got True"):
        Config(source=Source(name="m.npz"), certify={"tau": True})
