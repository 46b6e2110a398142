"""The command line from within: calls, what they print, and what is compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bisim_abstract import (
    Certificate,
)
from bisim_abstract.parts import ProvenShare
from tests.support import ROOT

ROOMS = ("bisim_abstract/RoomsGrid-v0", "--env-arg", "side=20", "--env-arg", "room_size=10")


SMALL = ("bisim_abstract/RoomsGrid-v0", "--env-arg", "side=4", "--env-arg", "room_size=2")


QUICK = ("--steps", "5", "--transitions", "50")


COMMANDS = ("extract", "train", "certify", "verify", "solve", "report", "export", "run")


ARRAYS = ("keys", "lower", "upper", "labels_lower", "labels_upper")


class Ended(NamedTuple):
    code: Any
    out: str
    err: str


class World(NamedTuple):
    """Files that commands read."""

    folder: Path
    lake: Path
    rooms: Path
    bridge: Path
    certificate: Path  # of the lake
    rooms_certificate: Path
    unclear: Path  # a true certificate of the lake whose arms disagree
    forged: Path  # of the lake, and false
    bare: Path  # of the lake, without a threshold
    encoder: Path  # of the lake
    rooms_encoder: Path
    garbage: Path
    truncated: Path


def loaded(text: str) -> dict[str, Any]:
    """Exactly one JSON object, without NaN and infinity."""

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert text.endswith("\n")
    assert text.count("\n") == 1
    found = json.loads(text, parse_constant=refused)
    assert isinstance(found, dict)
    return found


def check_refused(ended: Ended, *causes: str) -> None:
    """Bad input: one line that names the cause, nothing written."""
    assert ended.code == 2, ended
    assert ended.err.startswith("bisim-abstract")
    assert ended.err.count("\n") == 1
    assert ended.err.endswith("\n")
    assert "Traceback" not in ended.err
    for cause in causes:
        assert cause in ended.err
    assert list(Path.cwd().iterdir()) == []


def command(name: str, world: World, *source: Any) -> list[Any]:
    """A good command, but for its source."""
    return {
        "extract": ["extract", *source, "-o", "out.npz"],
        "train": ["train", *source, *QUICK, "-o", "out.npz"],
        "certify": ["certify", *source, "-o", "out.npz"],
        "verify": ["verify", *source[:1], world.certificate, *source[1:]],
        "solve": ["solve", *source, "-o", "out.npz"],
        "report": ["report", *source[:1], world.certificate, *source[1:], "-o", "out.html"],
        "export": ["export", world.certificate, "--model", *source, "-o", "out.csv"],
        "run": ["run", *source, "--train", "never", "--learn", "0", "-o", "out"],
    }[name]


def check_described(found: dict[str, Any], certificate: Certificate) -> None:
    assert found["states"] == certificate.n_live
    assert found["gamma"] == certificate.gamma
    assert found["tau"] == certificate.tau
    assert found["certified"] == certificate.is_certified
    assert found["scope"] == certificate.scope
    assert found["coverage"] == certificate.coverage
    assert found["width"] == certificate.width
    assert found["global_width"] == certificate.global_width
    assert found["stop"] == certificate.stop
    assert found["fingerprint"] == certificate.fingerprint
    intervals = certificate.certified_thresholds()
    assert len(found["certified_thresholds"]) == len(intervals)
    for ours, theirs in zip(found["certified_thresholds"], intervals, strict=True):
        for name, value in vars(theirs).items():
            assert ours[name] == (None if value == np.inf else value)
    verdict, value = certificate.verdict, certificate.value
    assert (found["sentence"], found["level"]) == (verdict.sentence, verdict.level)
    assert found["clusters"] == (None if certificate.tau is None else certificate.n_clusters)
    assert found["guarantee"] == certificate.guarantee
    if value is None:
        assert (found["value"], found["kept"], found["loss"], found["start_loss"]) == (None,) * 4
        return
    share = value.share(certificate.guarantee)
    assert share is not None
    check_share(found, share)
    for name in ("policy", "solver", "learner"):
        own = value.share(name)
        assert own is not None
        check_share(found["value"][name], own)
    assert found["value"]["baseline_start"] == list(value.baseline_start)
    assert (found["value"]["episodes"] is None) == (value.episodes is None)


def check_share(found: dict[str, Any], share: ProvenShare) -> None:
    """What JSON says of agents against what is proven of them."""
    assert found["kept"] == (None if share.kept == -np.inf else share.kept)
    assert (found["loss"], found["start_loss"]) == (share.loss, share.start_loss)


# -- imports, warnings, pipes ------------------------------------------------------------------


def started(*words: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )
