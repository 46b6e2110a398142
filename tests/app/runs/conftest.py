"""Runs that are made once."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract import (
    Certificate,
    certify,
)
from bisim_abstract._app.runs import Begun, Run, RunResult
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support.runs import IF_NEEDED, NOISY, abstaining, config


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return Run(tmp_path_factory.mktemp("runs") / "run", config())()


@pytest.fixture
def folder(finished: RunResult, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


# -- encoders that are needed, and others ------------------------------------------------------


@pytest.fixture(scope="session")
def needed(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run that does not get anywhere without an encoder, nor with one."""
    told: list[Any] = []
    config = dataclasses.replace(abstaining(), training=IF_NEEDED, learn=0)
    found = Run(tmp_path_factory.mktemp("needed") / "run", config, before=told.append)()
    first = "NOT CERTIFIED at tau 0.5: between 7 and 16 clusters of 16 states"
    assert told[:4] == [
        Begun("extract"),
        Begun("certify"),
        Begun("train", f"what is found without an encoder is {first}"),
        Begun("certify", "again, with the encoder"),
    ]
    return found


# -- interruptions -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def uninterrupted() -> Certificate:
    found = certify(RoomsGridEnv(**NOISY).to_mdp(), 0.9, tau="auto")  # type: ignore[arg-type]
    assert found.is_certified
    assert len(found.run["steps"]) > 1
    return found
