"""Runs: their files, what a resumed one redoes, and interruptions at bad moments."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    TabularMDP,
    __version__,
    certify,
    compare_abstractions,
    verify,
)
from bisim_abstract._app import cli, runs
from bisim_abstract._app.cli import main
from bisim_abstract._app.runs import (
    Begun,
    Config,
    Done,
    Run,
    RunResult,
    Training,
    learning_curves,
    plain,
    train_encoder,
    versions,
)
from bisim_abstract._app.sources import Source
from bisim_abstract._base.atomic import replacing, write_json
from bisim_abstract._certificate.verdict import judge
from bisim_abstract.encoders import load_encoder
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import random_mdp, single_build
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support import ROOT

ROOMS = Source(name="bisim_abstract/RoomsGrid-v0", env_args={"side": 4, "room_size": 2})
FILES = {
    "certificate.npz",
    "comparison.json",
    "config.json",
    "curves.json",
    "encoder.npz",
    "mdp.npz",
    "report.html",
    "verification.json",
}
STAGES = ["extract", "train", "certify", "verify", "compare", "learn", "report"]
ARRAYS = ("keys", "lower", "upper", "labels_lower", "labels_upper")


def config(**changes: Any) -> Config:
    settings: dict[str, Any] = {
        "source": ROOMS,
        "training": Training(steps=5, transitions=100, dim=3),
        "certify": {"tau": 1.0},
        "learn": 40,
        "learn_seeds": 2,
        "title": "small rooms",
    }
    return Config(**settings | changes)


def small(**changes: Any) -> Config:
    """Without what takes time."""
    return config(**{"training": None, "learn": 0} | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return Run(tmp_path_factory.mktemp("runs") / "run", config())()


@pytest.fixture
def folder(finished: RunResult, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def same_certificate(one: Certificate, other: Certificate) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert len(one.levels) == len(other.levels)
    for ours, theirs in zip(one.levels, other.levels, strict=True):
        np.testing.assert_array_equal(ours.model.labels, theirs.model.labels)
        np.testing.assert_array_equal(ours.lower, theirs.lower)
        np.testing.assert_array_equal(ours.upper, theirs.upper)
    assert (one.tau, one.fingerprint, one.stop) == (other.tau, other.fingerprint, other.stop)


# -- a whole run -------------------------------------------------------------------------------


def test_files(finished: RunResult) -> None:
    assert {path.name for path in finished.folder.iterdir()} == FILES
    assert finished.report == finished.folder / "report.html"
    assert [done.stage for done in finished.stages] == STAGES == list(runs.STAGES)
    assert all(done.is_new and done.seconds >= 0.0 for done in finished.stages)
    assert all(done.detail for done in finished.stages)


def test_files_hold_what_the_functions_give(finished: RunResult) -> None:
    folder = finished.folder
    mdp = ROOMS.model()
    assert TabularMDP.load(folder / "mdp.npz") == mdp
    training = config().training
    assert training is not None
    encoder = train_encoder(ROOMS, mdp, training, 0.9, 0)
    states = np.arange(16)
    stored = load_encoder(folder / "encoder.npz")
    np.testing.assert_array_equal(stored.encode(states), encoder.encode(states))
    certificate = certify(mdp, 0.9, tau=1.0, embedding=stored)
    same_certificate(finished.certificate, certificate)
    same_certificate(Certificate.load(folder / "certificate.npz"), certificate)
    assert finished.verification.is_valid
    verification = json.loads((folder / "verification.json").read_bytes())
    assert verification == json.loads(json.dumps(plain(verify(mdp, certificate))))
    comparison = compare_abstractions(mdp, certificate, embedding=stored)
    assert json.loads((folder / "comparison.json").read_bytes()) == plain(comparison)
    curves = learning_curves(ROOMS, mdp, certificate, steps=40, seeds=2)
    assert json.loads((folder / "curves.json").read_bytes()) == plain(curves)
    assert finished.verdict == judge(certificate, finished.verification)


def test_curves(finished: RunResult) -> None:
    mdp = ROOMS.model()
    curves = learning_curves(ROOMS, mdp, finished.certificate, steps=7)
    assert [curve.name for curve in curves] == [
        "4 clusters, aggregated steps",
        "4 clusters, real steps",
        "16 raw states",
    ]
    for curve in curves:
        assert curve.steps == (1, 2, 3, 4, 5, 6, 7)
        assert curve.scores.shape == (1, 7)
        assert (curve.scores <= 1.0 + 1e-9).all()
    long = learning_curves(ROOMS, mdp, finished.certificate, steps=2000, seeds=2)
    assert [len(curve.steps) for curve in long] == [20] * 3
    assert long[0].steps[-1] == 2000
    for curve in long[:2]:
        assert (curve.at(2000) > 0.95).all()  # four clusters are learnt in 2,000 steps


def test_large_tables_of_raw_states_are_left_out(
    finished: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RAW_LIMIT", 16 * 4 - 1)
    curves = learning_curves(ROOMS, ROOMS.model(), finished.certificate, steps=2)
    assert len(curves) == 2


def test_the_report_is_told_everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def spy(path: Any, mdp: Any, certificate: Any, **kwargs: Any) -> Any:
        seen.append((path, mdp, certificate, kwargs))
        return path

    monkeypatch.setattr(runs, "write_report", spy)
    run = Run.resume(folder)
    found = run()
    [(path, mdp, certificate, kwargs)] = seen
    assert path == folder / "report.html" == found.report
    assert (certificate, mdp) == (found.certificate, ROOMS.model())
    assert kwargs["verification"] is found.verification
    assert kwargs["title"] == "small rooms"
    assert kwargs["places"].is_grid
    assert kwargs["embedding"].n_states == 16
    assert plain(kwargs["comparison"]) == json.loads((folder / "comparison.json").read_bytes())
    assert plain(kwargs["curves"]) == json.loads((folder / "curves.json").read_bytes())
    assert kwargs["record"]["versions"]["numpy"] == np.__version__
    assert kwargs["record"]["config"]["learn"] == 40
    first, second = (shlex.split(line) for line in kwargs["commands"])
    assert first[:2] == ["bisim-abstract", "run"]
    assert cli._config(cli._parser().parse_args(first[1:])) == run.config
    assert second[2:] == [str(folder / "mdp.npz"), str(folder / "certificate.npz")]


@pytest.mark.parametrize(
    "config",
    [
        Config(source=Source(name="Taxi-v3", backgrounds=3, seed=4), seed=4),
        Config(
            source=Source(
                name="FrozenLake-v1",
                env_args={"map_name": "8x8", "is_slippery": False, "desc": None},
                terminal="table",
                reachable_only=True,
                max_states=7,
            ),
            gamma=0.123456789012345,
            training=Training(kind="mico", steps=3, dim=2, experience="steps", same_action=True),
            certify={"n_clusters": 3, "scope": "all", "propose": ["rewards", "classes"]},
            learn_seeds=2,
            title="a title; with 'signs'",
        ),
        Config(
            source=Source(name="x.npz"),
            certify={"tau": 1e-300, "tol": 0.1, "max_pairs": 0, "max_seconds": 1.5},
        ),
        Config(source=Source(name="x.npz"), certify={"tau": "auto", "max_backups": 9}),
        Config(source=Source(name="x.npz"), training=Training(when="needed")),
        Config(source=Source(name="x.npz"), training=Training(when="needed", steps=3)),
        Config(source=Source(name="x.npz"), training=Training()),
    ],
    ids=["taxi", "lake", "file", "auto", "needed", "needed with settings", "always"],
)
def test_commands_ask_for_the_same(config: Config) -> None:
    words = shlex.split(shlex.join(config.words()))
    assert cli._config(cli._parser().parse_args(["run", *words, "-o", "x"])) == config


def test_stages_that_are_not_asked_for(tmp_path: Path) -> None:
    found = Run(tmp_path / "run", small())()
    assert [done.stage for done in found.stages] == [
        "extract",
        "certify",
        "verify",
        "compare",
        "report",
    ]
    assert {path.name for path in found.folder.iterdir()} == FILES - {"encoder.npz", "curves.json"}


def test_files_as_sources(tmp_path: Path) -> None:
    ROOMS.model().save(tmp_path / "m.npz")
    found = Run(tmp_path / "run", small(source=Source(name=str(tmp_path / "m.npz"))))()
    assert found.certificate.is_certified
    (tmp_path / "m.npz").unlink()
    assert Run.resume(tmp_path / "run")().certificate.is_certified  # it has its own copy
    words = ["run", str(tmp_path / "run/mdp.npz"), "--train", "never", "-o", f"{tmp_path}/two"]
    assert main(words) == 0
    assert not (tmp_path / "two/curves.json").exists()


@pytest.mark.parametrize("changes", [{"terminal": "table"}, {"reachable_only": True}])
def test_learning_on_other_models_of_an_environment(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    source = Source(name="FrozenLake-v1", **changes)
    found = Run(tmp_path / "run", small(source=source, certify={}, learn=20))()
    assert found.certificate.is_certified
    if "reachable_only" in changes:
        assert (found.folder / "curves.json").is_file()
    assert found.report.is_file()


def test_without_a_threshold(tmp_path: Path) -> None:
    found = Run(tmp_path / "run", small(certify={"scope": "covered", "max_rounds": 1}, learn=5))()
    assert found.certificate.tau is None
    assert [done.stage for done in found.stages] == ["extract", "certify", "verify", "report"]
    assert found.verdict.level == "open"
    assert found.verdict.sentence.startswith("NOT CERTIFIED: budget: 1 round")
    assert found.report.is_file()


def abstaining() -> Config:
    args = {"side": 4, "room_size": 2, "noise": 0.3}
    source = Source(name=ROOMS.name, env_args=args)
    return small(source=source, certify={"tau": 0.5, "max_pairs": 0}, learn=20)


def test_abstention_is_a_result(tmp_path: Path) -> None:
    found = Run(tmp_path / "run", abstaining())()
    assert not found.certificate.is_certified
    assert found.verification.is_valid
    assert found.verdict.sentence.startswith(
        "NOT CERTIFIED at tau 0.5: between 6 and 16 clusters of 16 states"
    )
    assert found.report.is_file()
    assert "learn" not in [done.stage for done in found.stages]
    names = [row["name"] for row in json.loads((tmp_path / "run/comparison.json").read_bytes())]
    assert names[:2] == ["upper arm", "lower arm"]
    assert main(["run", "--resume", str(tmp_path / "run"), "--quiet"]) == 3


def test_stages_are_told(tmp_path: Path) -> None:
    told: list[Any] = []
    progress: list[Any] = []
    hear: dict[str, Any] = {"before": told.append, "after": told.append}
    found = Run(tmp_path / "run", small(), **hear, callback=progress.append)()
    assert tuple(told[1::2]) == found.stages
    assert told[::2] == [Begun(done.stage) for done in found.stages]
    assert progress
    # What is done already does not begin.
    told.clear()
    again = Run.resume(tmp_path / "run", **hear)()
    assert [x for x in told if isinstance(x, Done)] == list(again.stages)
    assert [x.stage for x in told if isinstance(x, Begun)] == ["verify", "report"]


def test_stages_are_told_before_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    seen: list[Any] = []

    def heard(*args: Any, **kwargs: Any) -> Certificate:
        seen.extend(told)
        return certify(*args, **kwargs)

    monkeypatch.setattr(runs, "certify", heard)
    Run(tmp_path / "run", small(), before=told.append)()
    assert seen == [Begun("extract"), Begun("certify")]


# -- encoders that are needed, and others ------------------------------------------------------

QUICK = Training(steps=5, transitions=100, dim=3)
IF_NEEDED = dataclasses.replace(QUICK, when="needed")


def test_no_encoder_where_none_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy seconds were spent on an encoder for a lake of 17 states."""
    monkeypatch.setattr(runs, "train_encoder", lambda *a, **k: pytest.fail("not needed"))
    lake = Source(name="FrozenLake-v1")
    found = Run(tmp_path / "run", Config(source=lake, training=Training(when="needed")))()
    assert found.verdict.level == "useful"
    assert not found.encoder.is_trained
    assert str(found.encoder) == (
        "not trained: the clusters found without one are certified and worth it"
    )
    assert [done.stage for done in found.stages].count("certify") == 1
    names = {path.name for path in found.folder.iterdir()}
    assert names == FILES - {"encoder.npz", "curves.json"}
    assert str(found.encoder) in found.report.read_text()
    same_certificate(found.certificate, certify(lake.model(), 0.9))
    again = Run.resume(tmp_path / "run")()
    assert again.encoder == found.encoder
    assert [done.stage for done in again.stages if done.is_new] == ["verify", "report"]


@pytest.mark.parametrize(("training", "is_trained"), [(None, False), (QUICK, True)])
def test_encoders_as_asked_for(training: Training | None, is_trained: bool, tmp_path: Path) -> None:
    found = Run(tmp_path / "run", small(training=training))()
    assert found.encoder.is_trained is found.encoder.is_used is is_trained
    assert found.encoder.reason == ("it was asked for" if is_trained else "none was asked for")
    assert ("train" in [done.stage for done in found.stages]) is is_trained


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run that does not get anywhere without an encoder, nor with one."""
    told: list[Any] = []
    config = dataclasses.replace(abstaining(), training=IF_NEEDED, learn=0)
    found = Run(tmp_path_factory.mktemp("needed") / "run", config, before=told.append)()
    first = "NOT CERTIFIED at tau 0.5: between 6 and 16 clusters of 16 states"
    assert told[:4] == [
        Begun("extract"),
        Begun("certify"),
        Begun("train", f"what is found without an encoder is {first}"),
        Begun("certify", "again, with the encoder"),
    ]
    return found


def test_an_encoder_where_one_may_help(needed: RunResult) -> None:
    assert needed.encoder.is_trained
    assert "NOT CERTIFIED at tau 0.5" in needed.encoder.reason
    names = {path.name for path in needed.folder.iterdir()}
    assert names == FILES - {"curves.json"} | {"first-certificate.npz"}
    first = Certificate.load(needed.folder / "first-certificate.npz")
    assert first.run["settings"]["embedding"] == ""
    again = Run.resume(needed.folder)()
    assert again.encoder == needed.encoder
    assert [done.stage for done in again.stages if done.is_new] == ["verify", "report"]
    same_certificate(again.certificate, needed.certificate)


def test_the_better_certificate_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(abstaining(), training=IF_NEEDED, learn=0)
    good = certify(config.source.model(), 0.9, tau=0.5)
    assert good.is_certified
    good_run = {**good.run, "settings": good.run["settings"] | {"embedding": "x"}}

    def helped(*args: Any, embedding: Any, **kwargs: Any) -> Certificate:
        if embedding is None:
            return certify(*args, embedding=None, **kwargs)
        return dataclasses.replace(good, run=good_run)

    monkeypatch.setattr(runs, "certify", helped)
    found = Run(tmp_path / "helped", config)()
    assert found.certificate.is_certified
    assert (found.encoder.is_trained, found.encoder.is_used) == (True, True)
    assert "did not help" not in str(found.encoder)

    def same(*args: Any, embedding: Any, **kwargs: Any) -> Certificate:
        return certify(*args, embedding=None, **kwargs)

    monkeypatch.setattr(runs, "certify", same)
    found = Run(tmp_path / "not helped", config)()
    assert (found.encoder.is_trained, found.encoder.is_used) == (True, False)
    assert str(found.encoder).endswith("; it did not help")


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ({"tau": 1000.0}, "the clusters asked for are certified"),
        ({"n_clusters": 16}, "the clusters asked for are certified"),
        ({"scope": "covered", "tol": 100.0}, "all bounds are as narrow as asked for"),
        ({"tau": 0.5, "max_pairs": 0, "propose": ["rewards"]}, "embeddings are not among the pro"),
        ({"scope": "covered", "max_rounds": 1}, "no clusters are asked for"),
    ],
    ids=["threshold", "number", "width", "proposals", "covered"],
)
def test_encoders_that_could_not_help(
    goal: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Poor results too, if proposals have no part in them."""
    monkeypatch.setattr(runs, "train_encoder", lambda *a, **k: pytest.fail("not needed"))
    config = dataclasses.replace(abstaining(), training=IF_NEEDED, learn=0, certify=goal)
    found = Run(tmp_path / "run", config)()
    assert found.verdict.level != "useful"
    assert found.encoder.reason.startswith(reason)


def test_encoders_add_nothing_to_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "train_encoder", lambda *a, **k: pytest.fail("not needed"))
    random_mdp(12, seed=2).save(tmp_path / "m.npz")
    source = Source(name=str(tmp_path / "m.npz"))
    goal = {"keep": 1.0}
    found = Run(tmp_path / "run", small(source=source, training=IF_NEEDED, certify=goal))()
    assert found.verdict.sentence.startswith("CERTIFIED, BUT nothing can be merged")
    assert found.encoder.reason.startswith("all pairs of states were looked at")


def test_a_certificate_of_unknown_origin_is_kept(tmp_path: Path) -> None:
    config = dataclasses.replace(abstaining(), training=IF_NEEDED, learn=0)
    first = Run(tmp_path / "run", dataclasses.replace(config, training=None))()
    rewritten(first.folder / "config.json", lambda found: found.update(config.header()))
    found = Run.resume(first.folder)()
    assert found.encoder.reason == "there was a certificate already"


def test_threads_do_not_matter(tmp_path: Path) -> None:
    one, two = (Run(tmp_path / str(k), small(), threads=k)() for k in (1, 2))
    same_certificate(one.certificate, two.certificate)


# -- configurations ----------------------------------------------------------------------------


def test_config_round_trip(finished: RunResult, tmp_path: Path) -> None:
    assert Config.load(finished.folder / "config.json") == config()
    for each in (small(), config(gamma=0.5, seed=3, title=None), Config(source=ROOMS)):
        write_json(tmp_path / "config.json", each.header())
        assert Config.load(tmp_path / "config.json") == each


def test_versions_are_recorded(finished: RunResult) -> None:
    document = json.loads((finished.folder / "config.json").read_bytes())
    assert document["format"] == "bisim_abstract.Run"
    assert document["versions"] == versions()
    assert versions()["bisim_abstract"] == __version__
    assert versions()["torch"] == metadata.version("torch")
    assert versions()["python"] == sys.version.split()[0]


def test_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "PACKAGES", ("numpy", "no-such-package"))
    assert versions()["no-such-package"] == "not installed"


def put(*path: str, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]

    return change


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
    "terminal": put("config", "source", "terminal", value="x"),
    "states": put("config", "source", "max_states", value=0),
    "seed of the source": put("config", "source", "seed", value=-1),
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
    "seed": put("config", "seed", value=-1),
    "seed is text": put("config", "seed", value="0"),
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
    with pytest.raises(FileFormatError, match=r"unknown settings: \['colour'\]"):
        Config.load(folder / "config.json")


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
        Run(tmp_path / name, small())._extract(tmp_path / name / "mdp.npz")
        found = sorted(path.name for path in (tmp_path / name).iterdir())
        assert found == ["config.json", "mdp.npz"]


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
    assert changed == {"verification.json", "report.html"}


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("mdp.npz", "extract"),
        ("encoder.npz", "train"),
        ("certificate.npz", "certify"),
        ("verification.json", "verify"),
        ("comparison.json", "compare"),
        ("curves.json", "learn"),
        ("report.html", "report"),
    ],
)
def test_what_is_missing_is_made_anew(
    name: str, stage: str, folder: Path, finished: RunResult
) -> None:
    (folder / name).unlink()
    found = Run.resume(folder)()
    assert {done.stage for done in found.stages if done.is_new} == {stage, "verify", "report"}
    assert {path.name for path in folder.iterdir()} == FILES
    same_certificate(found.certificate, finished.certificate)
    if name.endswith(".json"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes()
    if name == "encoder.npz":
        encoders = [load_encoder(path / name) for path in (folder, finished.folder)]
        one, other = (encoder.encode(np.arange(16)) for encoder in encoders)
        np.testing.assert_array_equal(one, other)


def test_certificates_of_other_models_are_refused(folder: Path) -> None:
    certify(RoomsGridEnv(side=6, room_size=3).to_mdp(), 0.9).save(folder / "certificate.npz")
    with pytest.raises(FileFormatError, match=r"certificate\.npz is not of this run's model"):
        Run.resume(folder)()
    certify(ROOMS.model(), 0.8).save(folder / "certificate.npz")
    with pytest.raises(FileFormatError, match="model and discount"):
        Run.resume(folder)()
    assert main(["run", "--resume", str(folder), "--quiet"]) == 2


def forged(mdp: TabularMDP) -> Certificate:
    honest = certify(mdp, 0.9, tau=1.0, propose=())
    assert honest.keys.size
    return dataclasses.replace(honest, lower=honest.lower / 2, upper=honest.upper / 2).at(1.0)


def test_verdicts_in_files_are_not_believed(folder: Path, finished: RunResult) -> None:
    good = (folder / "verification.json").read_bytes()
    for text in (b'{"is_valid": false}', b"garbage", b""):
        (folder / "verification.json").write_bytes(text)
        assert Run.resume(folder)().verification.is_valid
        assert (folder / "verification.json").read_bytes() == good
    forged(ROOMS.model()).save(folder / "certificate.npz")
    for name in ("comparison.json", "curves.json"):
        (folder / name).unlink()
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
        with pytest.raises(FileFormatError, match=name):
            Run.resume(folder)()
    assert (folder / name).read_bytes() == b""


@pytest.mark.parametrize("name", ["comparison.json", "curves.json"])
@pytest.mark.parametrize("text", ["null", "3", "[1]", '[{"name": "x"}]', "", "[" * 100_000])
def test_damaged_results(text: str, name: str, folder: Path) -> None:
    (folder / name).write_text(text)
    with pytest.raises(FileFormatError, match=rf"{name} is damaged .*delete it"):
        Run.resume(folder)()


@pytest.mark.parametrize("text", ["[]", "{}"])
def test_comparisons_that_are_empty(text: str, folder: Path) -> None:
    (folder / "comparison.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"comparison\.json is damaged"):
        Run.resume(folder)()


@pytest.mark.parametrize("scores", [[], [1.0], [[]], [[1.0, 2.0]], [[[1.0]]]])
def test_curves_of_other_shapes(scores: Any, folder: Path) -> None:
    row = {"name": "x", "steps": [1], "scores": scores}
    (folder / "curves.json").write_text(json.dumps([row]))
    with pytest.raises(FileFormatError, match=r"curves\.json is damaged"):
        Run.resume(folder)()


def test_encoders_of_other_models(folder: Path) -> None:
    other = RoomsGridEnv(side=6, room_size=3).to_mdp()
    encoder = train_encoder(ROOMS, other, Training(steps=2, transitions=20), 0.9, 0)
    encoder.save(folder / "encoder.npz")
    (folder / "certificate.npz").unlink()
    with pytest.raises((InvalidArgumentError, FileFormatError)):
        Run.resume(folder)()


# -- interruptions -----------------------------------------------------------------------------

NOISY = {"side": 10, "room_size": 5, "noise": 0.1}
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


@pytest.fixture(scope="module")
def uninterrupted() -> Certificate:
    found = certify(RoomsGridEnv(**NOISY).to_mdp(), 0.9, tau="auto")  # type: ignore[arg-type]
    assert found.is_certified
    assert len(found.run["steps"]) > 1
    return found


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
            f"bisim-abstract: interrupted: go on with bisim-abstract run --resume {folder}\n"
        )
    else:
        assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""
    left = {path.name for path in folder.iterdir()}
    assert left == {"config.json", "mdp.npz", "checkpoint.npz"}
    assert Certificate.load(folder / "checkpoint.npz").stop == "unfinished"
    assert main(["run", "--resume", str(folder), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    same_certificate(Certificate.load(folder / "certificate.npz"), uninterrupted)
    assert not (folder / "checkpoint.npz").exists()
    assert (folder / "report.html").is_file()


def test_killed_while_training(tmp_path: Path, finished: RunResult) -> None:
    folder = tmp_path / "run"
    words = ["run", ROOMS.name, "--env-arg=side=4", "--env-arg=room_size=2", "--tau", "1"]
    words += ["--steps", "5", "--transitions", "100", "--dim", "3", "--learn", "40"]
    words += ["--learn-seeds", "2", "--title", "small rooms", "-o", str(folder), "--quiet"]
    done = stopped("training", signal.SIGKILL, *words)
    assert done.returncode == -signal.SIGKILL
    assert {path.name for path in folder.iterdir()} == {"config.json", "mdp.npz"}
    found = Run.resume(folder)()
    assert found.stages[0].is_new is False
    assert found.stages[1].is_new is True
    same_certificate(found.certificate, finished.certificate)
    for name in ("curves.json", "comparison.json", "verification.json"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes()


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
    assert {path.name for path in folder.iterdir()} == {"config.json", "mdp.npz"} | left
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


# -- small parts -------------------------------------------------------------------------------


def test_verdicts(finished: RunResult) -> None:
    certificate = finished.certificate
    assert certificate.value is not None
    found = judge(certificate)
    assert (found.level, found.colour, found.clusters) == ("useful", "green", 4)
    assert (found.kept, found.loss) == (certificate.value.kept, certificate.value.loss)
    assert found.sentence.startswith("CERTIFIED: 4 clusters of 16 states keep ")
    assert judge(certificate, finished.verification).sentence == f"{found.sentence} (verified)"
    mdp = random_mdp(6, seed=0)
    covered = certify(mdp, 0.9, scope="covered", tau=1e6)
    assert judge(covered).sentence.startswith("CERTIFIED over covered pairs only")
    assert "1 cluster of 6 states" in judge(covered).sentence
    bare = judge(single_build(mdp, 0.9))
    assert (bare.level, bare.colour, bare.clusters, bare.kept) == ("open", "red", None, None)
    poor = judge(certificate.at(1e6).with_value())
    assert (poor.level, poor.colour) == ("poor", "yellow")
    assert poor.sentence.startswith("CERTIFIED, BUT planning on it keeps ")


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
    told: list[Any] = []
    monkeypatch.setattr(
        runs, "write_report", lambda path, *args, **kwargs: told.append(kwargs["comparison"])
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


@pytest.mark.parametrize("tau", [1, 1.0, True])
def test_any_number_as_tau_excludes_a_number_of_clusters(tau: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not both"):
        Config(source=Source(name="m.npz"), certify={"tau": tau, "n_clusters": 2})
    Config(source=Source(name="m.npz"), certify={"tau": "auto", "n_clusters": 2})
