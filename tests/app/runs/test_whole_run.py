"""A whole run: its stages, its files, and what they hold."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    Reading,
    TabularMDP,
    certify,
    compare_abstractions,
    verify,
)
from bisim_abstract._app import cli, runs
from bisim_abstract._app.cli import main
from bisim_abstract._app.config import Config, Training
from bisim_abstract._app.runs import (
    Begun,
    Done,
    Run,
    RunResult,
    learning_curves,
    plain,
    train_encoder,
)
from bisim_abstract._app.sources import Source
from bisim_abstract._certificate.verdict import judge
from bisim_abstract._prove.driver import prove
from bisim_abstract.encoders import load_encoder
from tests.support.certificates import same_certificate
from tests.support.runs import FILES, ROOMS, STAGES, abstaining, config, small

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
    certificate = certify(mdp, 0.9, tau=1.0, method=Blocks(embedding=stored))
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
        assert curve.scores.shape == (3, 7)
        assert curve.measure == runs.MEASURE
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

    def spy(path: Path, mdp: Any, certificate: Any, **kwargs: Any) -> None:
        seen.append((path, mdp, certificate, kwargs))
        path.write_text("a page")

    monkeypatch.setattr(runs, "write_report", spy)
    run = Run.resume(folder)
    found = run()
    [(path, mdp, certificate, kwargs)] = seen
    assert path == folder / ".new-report.html"
    assert found.report == folder / "report.html"
    assert found.report.read_text() == "a page"
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
    assert second[1:] == ["verify", str(folder)]


@pytest.mark.parametrize(
    "config",
    [
        Config(source=Source(name="Taxi-v3", backgrounds=3, reading=Reading(seed=4))),
        Config(
            source=Source(
                name="FrozenLake-v1",
                env_args={"map_name": "8x8", "is_slippery": False, "desc": None},
                reading=Reading(terminal="table", reachable_only=True, max_states=7),
            ),
            gamma=0.123456789012345,
            training=Training(kind="mico", steps=3, dim=2, experience="steps", same_action=True),
            certify={"n_clusters": 3, "method": "blocks", "propose": ["rewards", "classes"]},
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
    assert main([*words, "--learn", "200"]) == 0
    curves = json.loads((tmp_path / "two/curves.json").read_bytes())
    assert len(curves) == 3  # on clusters, on clusters by steps of the model, and on its states


def test_learning_where_a_file_is_gone(tmp_path: Path) -> None:
    ROOMS.model().save(tmp_path / "m.npz")
    config = small(source=Source(name=str(tmp_path / "m.npz")), learn=40)
    first = Run(tmp_path / "run", config)()
    (tmp_path / "m.npz").unlink()
    (tmp_path / "run/curves.json").unlink()
    again = Run.resume(tmp_path / "run")()
    assert again.certificate.fingerprint == first.certificate.fingerprint
    assert (tmp_path / "run/curves.json").is_file()


@pytest.mark.parametrize("changes", [{"terminal": "table"}, {"reachable_only": True}])
def test_learning_on_other_models_of_an_environment(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    source = Source(name="FrozenLake-v1", reading=Reading.of(changes))
    found = Run(tmp_path / "run", small(source=source, certify={}, learn=20))()
    assert found.certificate.is_certified
    if "reachable_only" in changes:
        assert (found.folder / "curves.json").is_file()
    assert found.report.is_file()


def test_without_a_threshold(tmp_path: Path) -> None:
    found = Run(tmp_path / "run", small(certify={"method": "covering", "max_rounds": 1}, learn=5))()
    assert found.certificate.tau is None
    assert [done.stage for done in found.stages] == ["extract", "certify", "verify", "report"]
    assert found.verdict.level == "open"
    assert found.verdict.sentence.startswith("NOT CERTIFIED: budget: 1 round")
    assert found.report.is_file()


def test_abstention_is_a_result(tmp_path: Path) -> None:
    found = Run(tmp_path / "run", abstaining())()
    assert not found.certificate.is_certified
    assert found.verification.is_valid
    assert found.verdict.sentence.startswith(
        "NOT CERTIFIED at tau 0.5: between 7 and 16 clusters of 16 states"
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
        return prove(*args, **kwargs)

    monkeypatch.setattr(runs, "prove", heard)
    Run(tmp_path / "run", small(), before=told.append)()
    assert seen == [Begun("extract"), Begun("certify")]
