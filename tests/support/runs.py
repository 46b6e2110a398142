"""Configurations of small runs, and what their folders hold."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bisim_abstract import (
    Blocks,
    Certificate,
    Reading,
    TabularMDP,
    certify,
)
from bisim_abstract._app.config import Config, Training
from bisim_abstract._app.manifest import (
    CONFIG,
    MANIFEST,
    NAMES,
    Entry,
    Manifest,
    file_digest,
    value_digest,
)
from bisim_abstract._app.sources import Source

ROOMS = Source(name="bisim_abstract/RoomsGrid-v0", env_args={"side": 4, "room_size": 2})


FILES = {
    "certificate.npz",
    "comparison.json",
    "config.json",
    "curves.json",
    "encoder.npz",
    "manifest.json",
    "mdp.npz",
    "report.html",
    "verification.json",
}


STAGES = ["extract", "train", "certify", "verify", "compare", "learn", "report"]


ARRAYS = ("keys", "lower", "upper", "labels_lower", "labels_upper")


def config(*, seed: int = 0, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "source": ROOMS,
        "training": Training(steps=5, transitions=100, dim=3),
        "certify": {"tau": 1.0},
        "learn": 40,
        "learn_seeds": 2,
        "title": "small rooms",
    }
    if seed:
        settings["source"] = dataclasses.replace(ROOMS, reading=Reading(seed=seed))
    return Config(**settings | changes)


def small(**changes: Any) -> Config:
    """Without what takes time."""
    return config(**{"training": None, "learn": 0} | changes)


def sealed(folder: Path) -> None:
    """Make the manifest fit whatever lies there now, as somebody who knows the format would."""
    held = json.loads((folder / MANIFEST).read_bytes())
    there = {name: file_digest(folder / name) for name in NAMES if (folder / name).exists()}
    files = {
        name: Entry(
            digest,
            {
                each: there[each]
                for each in held["files"].get(name, {"made_from": ()})["made_from"]
                if each in there
            },
        )
        for name, digest in there.items()
    }
    settings = value_digest(json.loads((folder / CONFIG).read_bytes())["config"])
    Manifest(folder, settings, files).save()


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


# -- a whole run -------------------------------------------------------------------------------


def abstaining() -> Config:
    args = {"side": 4, "room_size": 2, "noise": 0.3}
    source = Source(name=ROOMS.name, env_args=args)
    return small(source=source, certify={"tau": 0.5, "max_pairs": 0}, learn=20)


# -- encoders that are needed, and others ------------------------------------------------------


QUICK = Training(steps=5, transitions=100, dim=3)


IF_NEEDED = dataclasses.replace(QUICK, when="needed")


# -- configurations ----------------------------------------------------------------------------


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


# -- resuming ----------------------------------------------------------------------------------


def forged(mdp: TabularMDP) -> Certificate:
    honest = certify(mdp, 0.9, tau=1.0, method=Blocks(propose=()))
    assert honest.keys.size
    return dataclasses.replace(honest, lower=honest.lower / 2, upper=honest.upper / 2).at(1.0)


# -- interruptions -----------------------------------------------------------------------------


NOISY = {"side": 10, "room_size": 5, "noise": 0.1}
