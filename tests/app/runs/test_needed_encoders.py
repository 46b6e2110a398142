"""Encoders that a run trains where they may help, and only there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract import (
    Certificate,
    Resources,
    certify,
)
from bisim_abstract._app import runs
from bisim_abstract._app.config import Config, Training
from bisim_abstract._app.runs import Run, RunResult
from bisim_abstract._app.sources import Source
from bisim_abstract._prove.driver import prove
from bisim_abstract.parts import random_mdp
from tests.support.certificates import same_certificate
from tests.support.runs import (
    FILES,
    IF_NEEDED,
    QUICK,
    abstaining,
    rewritten,
    sealed,
    small,
)

# -- encoders that are needed, and others ------------------------------------------------------


def test_no_encoder_where_none_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy seconds were spent on an encoder for a lake of 17 states."""
    monkeypatch.setattr(runs, "train_encoder", lambda *a, **k: pytest.fail("not needed"))
    lake = Source(name="FrozenLake-v1")
    found = Run(tmp_path / "run", Config(source=lake, training=Training(when="needed")))()
    assert found.verdict.level == "useful"
    assert not found.encoder.is_trained
    assert str(found.encoder) == (
        "not trained: the clusters found without one are certified and useful"
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
    assert found.encoder.reason == ("it was requested" if is_trained else "none was requested")
    assert ("train" in [done.stage for done in found.stages]) is is_trained


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

    def helped(mdp: Any, gamma: float, options: Any, **kwargs: Any) -> Certificate:
        if options.method.embedding is None:
            return prove(mdp, gamma, options, **kwargs)
        return dataclasses.replace(good, run=good_run)

    monkeypatch.setattr(runs, "prove", helped)
    found = Run(tmp_path / "helped", config)()
    assert found.certificate.is_certified
    assert (found.encoder.is_trained, found.encoder.is_used) == (True, True)
    assert "did not help" not in str(found.encoder)

    def same(mdp: Any, gamma: float, options: Any, **kwargs: Any) -> Certificate:
        blind = dataclasses.replace(options.method, embedding=None)
        plain = dataclasses.replace(options, method=blind)
        return prove(mdp, gamma, plain, **kwargs)

    monkeypatch.setattr(runs, "prove", same)
    found = Run(tmp_path / "not helped", config)()
    assert (found.encoder.is_trained, found.encoder.is_used) == (True, False)
    assert str(found.encoder).endswith("; it did not help")


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ({"tau": 1000.0}, "the requested clusters are certified"),
        ({"n_clusters": 16}, "the requested clusters are certified"),
        ({"method": "covering", "tol": 100.0}, "all bounds are as narrow as requested"),
        (
            {"tau": 0.5, "max_pairs": 0, "propose": ["rewards"]},
            "embeddings are not among the requested pro",
        ),
        ({"method": "covering", "max_rounds": 1}, "no clusters are requested"),
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
    sealed(first.folder)
    found = Run.resume(first.folder)()
    assert found.encoder.reason == "there was a certificate already"


def test_threads_do_not_matter(tmp_path: Path) -> None:
    one, two = (Run(tmp_path / str(k), small(), resources=Resources(threads=k))() for k in (1, 2))
    same_certificate(one.certificate, two.certificate)
