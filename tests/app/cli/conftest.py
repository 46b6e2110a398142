"""A world of small files for commands, and a folder to run them in."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Covering,
    certify,
)
from bisim_abstract._app.cli import main
from bisim_abstract.encoders import ActionMaxEncoder
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp
from tests.support.commands import Ended, World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    names = {name: folder / f"{name}.npz" for name in World._fields[1:]}
    lake = extract_mdp("FrozenLake-v1")
    lake.save(names["lake"])
    rooms = RoomsGridEnv(side=20, room_size=10).to_mdp()
    rooms.save(names["rooms"])
    successors = np.array([[1, 2], [3, -1], [3, -1], [-1, -1]])
    np.savez(names["bridge"], transitions=successors, rewards=np.arange(8.0).reshape(4, 2))
    certify(lake, 0.9).save(names["certificate"])
    certify(rooms, 0.9).save(names["rooms_certificate"])
    unclear = certify(lake, 0.9, tau=0.05, method=Blocks(max_pairs=0, propose=("rewards",)))
    assert not unclear.is_certified
    unclear.save(names["unclear"])
    pairs = certify(lake, 0.9, method=Blocks(propose=()), tau=0.05)
    forged = dataclasses.replace(pairs, lower=pairs.lower / 2, upper=pairs.upper / 2)
    forged.at(0.05).save(names["forged"])
    bare = certify(lake, 0.9, method=Covering(), max_rounds=1)
    assert bare.tau is None
    bare.save(names["bare"])
    for mdp, name in ((lake, "encoder"), (rooms, "rooms_encoder")):
        fitted = ActionMaxEncoder(dim=8, gamma=0.9, steps=5, seed=0).fit(mdp, n_transitions=50)
        fitted.save(names[name])
    names["garbage"].write_bytes(b"\x00garbage\xff" * 50)
    names["truncated"].write_bytes(names["certificate"].read_bytes()[:700])
    return World(folder, **names)


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def ended(*words: Any) -> Ended:
        try:
            code: Any = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        return Ended(code, *capsys.readouterr())

    return ended
