"""Certificates that tests of wrappers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisim_abstract import (
    Certificate,
    Resources,
    certify,
)
from bisim_abstract.wrappers import (
    extract_mdp,
)
from tests.support.abstractions import GAMMA, lake, rooms


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is told about starts anew."""
    monkeypatch.setattr("bisim_abstract.wrappers.enumerate._told", set())


@pytest.fixture(scope="session")
def of_rooms() -> Certificate:
    return certify(extract_mdp(rooms()), GAMMA, tau="auto", resources=Resources(threads=1))


@pytest.fixture(scope="session")
def of_lake() -> Certificate:
    return certify(extract_mdp(lake()), GAMMA, tau=1e-9, resources=Resources(threads=1))


@pytest.fixture
def path(of_rooms: Certificate, tmp_path: Path) -> Path:
    of_rooms.save(tmp_path / "rooms.npz")
    return tmp_path / "rooms.npz"
