"""The command line: what it prints and writes, how it refuses, and how it ends."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    TabularMDP,
    Verification,
    __version__,
    certify,
    lift_policy,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract._abstract.aggregate import aggregate
from bisim_abstract._app import cli, report, runs, sources
from bisim_abstract._app import compile as _compile
from bisim_abstract._app.cli import main
from bisim_abstract._base.types import Progress
from bisim_abstract.encoders import ActionMaxEncoder, load_encoder
from bisim_abstract.errors import ExtractionError
from bisim_abstract.parts import read_bridge
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp
from tests.support import ROOT

ROOMS = ("bisim_abstract/RoomsGrid-v0", "--env-arg", "side=20", "--env-arg", "room_size=10")
SMALL = ("bisim_abstract/RoomsGrid-v0", "--env-arg", "side=4", "--env-arg", "room_size=2")
QUICK = ("--steps", "5", "--transitions", "50")
COMMANDS = ("extract", "train", "certify", "verify", "solve", "report", "run")
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


@pytest.fixture(scope="module")
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
    unclear = certify(lake, 0.9, tau=0.05, max_pairs=0, propose=("rewards",))
    assert not unclear.is_certified
    unclear.save(names["unclear"])
    pairs = certify(lake, 0.9, propose=(), tau=0.05)
    forged = dataclasses.replace(pairs, lower=pairs.lower / 2, upper=pairs.upper / 2)
    forged.at(0.05).save(names["forged"])
    bare = certify(lake, 0.9, scope="covered", max_rounds=1)
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
        "run": ["run", *source, "--train", "never", "--learn", "0", "-o", "out"],
    }[name]


def same_certificate(one: Certificate, other: Certificate) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert len(one.levels) == len(other.levels)
    for ours, theirs in zip(one.levels, other.levels, strict=True):
        np.testing.assert_array_equal(ours.model.labels, theirs.model.labels)
        np.testing.assert_array_equal(ours.lower, theirs.lower)
        np.testing.assert_array_equal(ours.upper, theirs.upper)
    assert (one.tau, one.fingerprint, one.scope) == (other.tau, other.fingerprint, other.scope)


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
    assert found["kept"] == (None if value is None or value.kept == -np.inf else value.kept)
    assert found["loss"] == (None if value is None else value.loss)
    assert found["start_loss"] == (None if value is None else value.start_loss)


# -- good paths --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["env", "rooms", "model", "bridge", "backgrounds", "reachable"])
def test_extract(kind: str, call: Any, world: World) -> None:
    lake = extract_mdp("FrozenLake-v1")
    words, expected = {
        "env": (["FrozenLake-v1"], lake),
        "rooms": (ROOMS, RoomsGridEnv(side=20, room_size=10).to_mdp()),
        "model": ([world.lake], lake),
        "bridge": ([world.bridge], read_bridge(world.bridge)),
        "backgrounds": (
            ["FrozenLake-v1", "--backgrounds", 3],
            extract_mdp(Distractor(gym.make("FrozenLake-v1"), n_background=3, seed=0)),
        ),
        "reachable": (
            ["FrozenLake-v1", "--reachable-only"],
            extract_mdp("FrozenLake-v1", reachable_only=True),
        ),
    }[kind]
    ended = call("extract", *words, "-o", "m.npz", "--json")
    assert (ended.code, ended.err) == (0, "")
    mdp = TabularMDP.load("m.npz")
    assert mdp == expected
    found = loaded(ended.out)
    assert found["file"] == "m.npz"
    assert (found["states"], found["actions"]) == (expected.n_states, expected.n_actions)
    assert found["transitions"] == expected.nnz
    assert found["terminal_state"] == expected.terminal_state
    assert found["fingerprint"] == expected.fingerprint
    assert found["metadata"] == json.loads(json.dumps(dict(mdp.metadata)))


@pytest.mark.parametrize("false", ["false", "False"])
def test_arguments_of_environments(false: str, call: Any) -> None:
    words = ["--env-arg", "map_name=8x8", "--env-arg", f"is_slippery={false}"]
    assert call("extract", "FrozenLake-v1", *words, "-o", "m.npz").code == 0
    expected = extract_mdp("FrozenLake-v1", env_args={"map_name": "8x8", "is_slippery": False})
    assert TabularMDP.load("m.npz") == expected
    words = ["--env-arg", 'desc=["SF", "FG"]', "--terminal", "table"]
    assert call("extract", "FrozenLake-v1", *words, "-o", "m.npz").code == 0
    mdp = TabularMDP.load("m.npz")
    assert (mdp.n_states, mdp.terminal_state) == (4, None)


def test_extract_as_text(call: Any, world: World) -> None:
    ended = call("extract", world.bridge, "-o", "m.npz")
    lines = ended.out.splitlines()
    assert lines[0] == f"model of {world.bridge}"
    rows = {line.split()[0]: line.split()[-1] for line in lines[1:]}
    assert (rows["states"], rows["actions"], rows["end"]) == ("5", "2", "4")
    assert rows["written"] == "m.npz"
    assert ended.err == ""


def test_train(call: Any, world: World) -> None:
    ended = call("train", world.lake, *QUICK, "-o", "e.npz", "--json")
    assert (ended.code, ended.err) == (0, "")
    found = loaded(ended.out)
    assert (found["file"], found["encoder"], found["steps"], found["dim"]) == (
        "e.npz",
        "action-max",
        5,
        8,
    )
    states = np.arange(17)
    expected = load_encoder(world.encoder)
    np.testing.assert_array_equal(load_encoder("e.npz").encode(states), expected.encode(states))
    assert call("train", world.lake, *QUICK, "-o", "f.npz", "--seed", 1).code == 0
    assert (load_encoder("f.npz").encode(states) != expected.encode(states)).any()


@pytest.mark.parametrize(("kind", "name"), [("dbc", "DBCEncoder"), ("mico", "MICoEncoder")])
@pytest.mark.parametrize("experience", ["model", "steps"])
def test_train_others(kind: str, name: str, experience: str, call: Any) -> None:
    words = ["--encoder", kind, "--experience", experience, "--same-action", "--dim", "3"]
    ended = call("train", *SMALL, *QUICK, *words, "-o", "e.npz")
    assert ended.code == 0
    encoder = load_encoder("e.npz")
    assert type(encoder).__name__ == name
    assert encoder.encode(np.arange(16)).shape == (16, 3)
    assert f"{name}(dim=3" in ended.out
    assert "16 states" in ended.out


@pytest.mark.parametrize("kind", ["env", "rooms", "bridge", "goal", "covered", "encoder"])
def test_certify(kind: str, call: Any, world: World) -> None:
    lake = extract_mdp("FrozenLake-v1")
    cases: dict[str, tuple[Any, TabularMDP, float, dict[str, Any]]] = {
        "env": (["FrozenLake-v1"], lake, 0.9, {}),
        "rooms": (ROOMS, TabularMDP.load(world.rooms), 0.9, {}),
        "bridge": ([world.bridge, "--gamma", "0.5"], read_bridge(world.bridge), 0.5, {}),
        "goal": (
            [world.lake, "--tau", "0.01", "--propose", "rewards,features", "--seed", "3"],
            lake,
            0.9,
            {"tau": 0.01, "propose": ["rewards", "features"], "seed": 3},
        ),
        "covered": (
            [world.lake, "--scope", "covered", "--max-rounds", "2", "--tol", "0.1"],
            lake,
            0.9,
            {"scope": "covered", "max_rounds": 2, "tol": 0.1},
        ),
        "encoder": (
            [world.lake, "--encoder", world.encoder, "--clusters", "12"],
            lake,
            0.9,
            {"embedding": load_encoder(world.encoder), "n_clusters": 12},
        ),
    }
    words, mdp, gamma, goal = cases[kind]
    ended = call("certify", *words, "-o", "c.npz", "--json", "--threads", "1")
    expected = certify(mdp, gamma, **goal)
    codes = {"useful": 0, "poor": 5, "open": 0 if kind == "covered" else 3}
    assert ended.code == codes[expected.verdict.level]
    assert ended.err == ""
    certificate = Certificate.load("c.npz")
    same_certificate(certificate, expected)
    found = loaded(ended.out)
    check_described(found, certificate)
    assert found["file"] == "c.npz"
    assert verify(mdp, certificate).is_valid


def test_certify_as_text(call: Any, world: World) -> None:
    ended = call("certify", world.rooms, "-o", "c.npz", "--checkpoint", "k.npz")
    certificate = Certificate.load("c.npz")
    lines = ended.out.splitlines()
    assert lines[0] == certificate.summary().splitlines()[0]
    rows = [line.split(None, 1) for line in lines[1:]]
    assert [name for name, _ in rows][-2:] == ["took", "written"]
    for line in certificate.summary().splitlines()[1:]:
        assert line.split() in [row.split() for row in lines]
    assert not ended.err


def test_certify_goes_on_from_a_checkpoint(call: Any, world: World) -> None:
    words = ["certify", world.rooms, "--checkpoint", "k.npz", "--tau", "0.5", "-o"]
    # One round is not enough at this threshold, so that a checkpoint remains.
    first = call(*words, "a.npz", "--max-rounds", "2", "--max-pairs", "0")
    assert first.code == 3
    if Path("k.npz").exists():
        other = call(*words, "b.npz", "--max-pairs", "7")
        assert other.code == 2
        assert "k.npz belongs to a run with other settings" in other.err
    else:
        pytest.fail("no checkpoint was kept")


@pytest.mark.parametrize("mode", ["float", "exact", "sampled"])
def test_verify(mode: str, call: Any, world: World) -> None:
    words = ["--mode", mode, "--sample", "50", "--json", "--seed", "2"]
    ended = call("verify", "FrozenLake-v1", world.certificate, *words)
    assert (ended.code, ended.err) == (0, "")
    found = loaded(ended.out)
    certificate = Certificate.load(world.certificate)
    check_described(found, certificate)
    lake = TabularMDP.load(world.lake)
    expected = verify(lake, certificate, mode=mode, sample=50, seed=2)
    assert found["is_valid"] is True
    for name in ("verdict", "mode", "problem", "pairs_checked"):
        assert found[name] == getattr(expected, name)


def test_verify_as_text(call: Any, world: World) -> None:
    ended = call("verify", ROOMS[0], world.rooms_certificate, *ROOMS[1:])
    assert ended.code == 0
    assert "CERTIFIED: 4 clusters of 400 states keep" in ended.out
    assert "float arithmetic" in ended.out


def test_solve(call: Any, world: World) -> None:
    ended = call("solve", "FrozenLake-v1", "--gamma", "0.8", "--json", "-o", "s.npz")
    assert (ended.code, ended.err) == (0, "")
    lake = TabularMDP.load(world.lake)
    best = value_iteration(lake, 0.8)
    found = loaded(ended.out)
    assert found["start_value"] == list(best.start_bounds(lake))
    assert (found["gamma"], found["states"], found["file"]) == (0.8, 17, "s.npz")
    assert "loss_sup" not in found
    with np.load("s.npz", allow_pickle=False) as written:
        np.testing.assert_array_equal(written["policy"], best.policy)
        np.testing.assert_array_equal(written["lower"], best.lower)
        np.testing.assert_array_equal(written["upper"], best.upper)
        np.testing.assert_array_equal(written["state_ids"], lake.state_ids)


def test_solve_takes_a_discount_of_its_own(call: Any, world: World) -> None:
    assert loaded(call("solve", world.lake, "--json").out)["gamma"] == 0.9
    assert "optimal start value  between" in call("solve", world.lake).out
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("tau", [None, 1000.0])
def test_solve_through_a_certificate(tau: float | None, call: Any, world: World) -> None:
    rooms = TabularMDP.load(world.rooms)
    certificate = Certificate.load(world.rooms_certificate)
    own = certificate.tau
    assert own is not None
    _, labels = certificate.partitions(own if tau is None else tau)
    small = aggregate(rooms, labels)
    policy = lift_policy(small, value_iteration(small.mdp, 0.9).policy)
    loss = value_loss(rooms, 0.9, policy)
    words = [] if tau is None else ["--tau", tau]
    words += ["--json", "-o", "s.npz"]
    ended = call("solve", world.rooms, world.rooms_certificate, *words)
    assert (ended.code, ended.err) == (0, "")
    found = loaded(ended.out)
    assert found["clusters"] == small.n_clusters == (4 if tau is None else 1)
    assert (found["loss_sup"], found["loss_mean"]) == (loss.sup, loss.mean)
    assert found["loss_start"] == loss.start
    with np.load("s.npz", allow_pickle=False) as written:
        np.testing.assert_array_equal(written["policy"], policy)


def test_report(call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = report.write_report

    def spy(path: Any, mdp: Any, certificate: Any, **kwargs: Any) -> Any:
        seen.append((path, mdp, certificate, kwargs))
        return real(path, mdp, certificate, **kwargs)

    monkeypatch.setattr(report, "write_report", spy)
    words = ["--learn", "40", "--title", "Rooms <1>", "--encoder", world.rooms_encoder]
    ended = call(
        "report", ROOMS[0], world.rooms_certificate, *ROOMS[1:], *words, "-o", "r.html", "--json"
    )
    assert (ended.code, ended.err) == (0, "")
    found = loaded(ended.out)
    assert found["file"] == "r.html"
    assert Path("r.html").is_file()
    assert found["verdict"].startswith("CERTIFIED: 4 clusters of 400 states keep ")
    assert found["verdict"].endswith("(verified)")
    check_described(found, Certificate.load(world.rooms_certificate))
    [(path, mdp, certificate, kwargs)] = seen
    assert (str(path), mdp) == ("r.html", TabularMDP.load(world.rooms))
    assert certificate.fingerprint == mdp.fingerprint
    assert kwargs["verification"].is_valid
    assert kwargs["title"] == "Rooms <1>"
    assert kwargs["places"].is_grid
    assert [row.is_certified for row in kwargs["comparison"]] == [True] + [False] * 5
    assert [curve.name for curve in kwargs["curves"]] == [
        "4 clusters, aggregated steps",
        "4 clusters, real steps",
        "400 raw states",
    ]
    assert all(curve.steps[-1] == 40 for curve in kwargs["curves"])
    assert kwargs["embedding"].n_states == 400
    [line] = kwargs["commands"]
    assert line.startswith("bisim-abstract report ")
    assert "--title 'Rooms <1>'" in line
    assert kwargs["record"]["versions"]["bisim_abstract"] == __version__


def test_report_of_a_file_draws_no_curves(call: Any, world: World) -> None:
    assert call("report", world.rooms, world.rooms_certificate, "-o", "r.html").code == 0
    assert Path("r.html").is_file()
    Path("r.html").unlink()
    ended = call("report", world.rooms, world.rooms_certificate, "--learn", 5, "-o", "r.html")
    check_refused(ended, "--learn needs an environment")


def test_run(call: Any) -> None:
    words = [*SMALL, *QUICK, "--learn", "40", "--title", "small"]
    ended = call("run", *words, "-o", "r", "--json", "--tau", "1", "--learn-seeds", "2")
    assert (ended.code, ended.err) == (0, "")
    found = loaded(ended.out)
    check_described(found, Certificate.load("r/certificate.npz"))
    mdp = RoomsGridEnv(side=4, room_size=2).to_mdp()
    encoder = load_encoder("r/encoder.npz")
    same_certificate(
        Certificate.load("r/certificate.npz"), certify(mdp, 0.9, tau=1.0, embedding=encoder)
    )
    assert found["is_valid"] is True
    assert (found["folder"], found["report"]) == ("r", "r/report.html")
    stages = ["extract", "train", "certify", "verify", "compare", "learn", "report"]
    assert [row["stage"] for row in found["stages"]] == stages
    assert all(row["is_new"] for row in found["stages"])
    config = json.loads(Path("r/config.json").read_bytes())["config"]
    assert (config["title"], config["learn"], config["learn_seeds"]) == ("small", 40, 2)
    assert (config["certify"], config["training"]["steps"]) == ({"tau": 1.0}, 5)
    assert config["source"]["env_args"] == {"side": 4, "room_size": 2}
    again = loaded(call("run", "--resume", "r", "--json").out)
    new = [row["stage"] for row in again["stages"] if row["is_new"]]
    assert new == ["verify", "report"]


def test_run_as_text(call: Any, world: World) -> None:
    ended = call("run", world.lake, "--train", "never", "-o", "r")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"{world.lake} in r"
    # Each stage is announced, then comes what it found. A file has no environment: nobody learns.
    stages = ["extract", "certify", "verify", "compare", "report"]
    assert lines[1:11:2] == [f"  {stage} ..." for stage in stages]
    assert all(re.match(r"    \d+\.\d s(, and|:) ", line) for line in lines[2:11:2])
    verdict = "CERTIFIED: 6 clusters and the end of 16 states keep at least 99.6%"
    assert verdict in lines[4]
    assert lines[11].startswith(verdict)
    assert lines[12:] == ["  encoder  not trained: none was asked for", "  report   r/report.html"]
    again = call("run", "--resume", "r").out.splitlines()
    told = [line.split()[0].rstrip(",") for line in again[1:8] if not line.startswith("    ")]
    assert told == stages
    assert [line for line in again[1:8] if "done before" in line] == [again[k] for k in (1, 2, 5)]


def test_run_trains_where_it_is_needed(call: Any) -> None:
    lake = ("run", "FrozenLake-v1", "--learn", "0", "--json", "-o")
    plain = loaded(call(*lake, "plain").out)
    assert plain["encoder"] == {
        "is_trained": False,
        "reason": "the clusters found without one are certified and worth it",
        "is_used": False,
    }
    assert "train" not in [row["stage"] for row in plain["stages"]]
    for k, words in enumerate((QUICK, (*QUICK, "--train", "always"))):
        asked = loaded(call(*lake, str(k), *words).out)
        assert asked["encoder"]["reason"] == "it was asked for"
        assert [row["stage"] for row in asked["stages"]][1] == "train"
    undecided = ("--env-arg", "noise=0.3", "--tau", "0.5", "--max-pairs", "0", "--learn", "0")
    ended = call("run", *SMALL, *undecided, *QUICK, "--train", "needed", "-o", "open")
    assert ended.code == 3
    lines = ended.out.splitlines()
    why = "what is found without an encoder is NOT CERTIFIED at tau 0.5: between 6 and 16 clusters"
    assert f"  train ... ({why} of 16 states)" in lines
    assert "  certify ... (again, with the encoder)" in lines
    assert any(line.startswith(f"  encoder  trained: {why}") for line in lines)
    ended = call("run", "FrozenLake-v1", "--train", "never", "--steps", "5", "-o", "never")
    assert ended.code == 2
    assert "--train never leaves nothing to set; leave out --steps" in ended.err


def test_stages_are_announced_when_they_begin(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def heard(*args: Any, **kwargs: Any) -> Certificate:
        seen.append(capsys.readouterr().out)
        return certify(*args, **kwargs)

    monkeypatch.setattr(runs, "certify", heard)
    assert main(["run", str(world.lake), "-o", "r"]) == 0
    assert seen[0].splitlines()[-1] == "  certify ..."


@pytest.mark.parametrize("more", [(), ("--quiet",), ("--json",)])
def test_logs_are_told_that_solvers_are_compiled(
    more: tuple[str, ...], call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(*args: Any, callback: Any, **kwargs: Any) -> Certificate:
        callback(Progress("compile", 0, None, "compiling solvers, once, about 20 s"))
        callback(Progress("compile", 1, 2, "more of them"))
        callback(Progress("sweeping", 1, None, "moved 0.1"))
        return certify(*args, callback=callback, **kwargs)

    monkeypatch.setattr(runs, "certify", compiling)
    ended = call("run", world.lake, "-o", "r", *more)
    assert ended.code == 0
    is_quiet = "--quiet" in more
    assert ended.err == ("" if is_quiet else "note: compiling solvers, once, about 20 s\n")


def test_compiling_is_told_apart(call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 seconds that went by, 99 went into compiling."""
    clock = iter(range(0, 10**6, 100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))

    def slow(*args: Any, **kwargs: Any) -> Certificate:
        found = certify(*args, **kwargs)
        return dataclasses.replace(found, run={**found.run, "compile_seconds": 99.0})

    def slowly(*args: Any, **kwargs: Any) -> Verification:
        return dataclasses.replace(verify(*args, **kwargs), compile_seconds=99.0)

    for module, name, patch in (
        ("_prove.certify", "certify", slow),
        ("_verify.verify", "verify", slowly),
    ):
        monkeypatch.setattr(sys.modules[f"bisim_abstract.{module}"], name, patch)
    for words in (
        ["certify", world.lake, "-o", "c.npz"],
        ["verify", world.lake, world.certificate],
    ):
        ended = call(*words)
        assert ended.code == 0
        took = next(line for line in ended.out.splitlines() if line.split()[0] == "took")
        assert re.fullmatch(r"  took +\S+ s, and 99.0 s to compile the solvers, once", took)
        found = loaded(call(*words, "--json").out)
        assert found["compile_seconds"] == 99.0
        assert found["seconds"] % 100.0 == 1.0


def test_compiling_in_stages_is_told_apart(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any, **kwargs: Any) -> Certificate:
        found = certify(*args, **kwargs)
        return dataclasses.replace(found, run={**found.run, "compile_seconds": 7.0})

    monkeypatch.setattr(runs, "certify", slow)
    ended = call("run", world.lake, "-o", "r")
    assert "    0.0 s, and 7.0 s to compile the solvers, once: CERTIFIED: " in ended.out
    found = loaded(call("run", world.lake, "-o", "s", "--json").out)
    rows = {row["stage"]: row["compile_seconds"] for row in found["stages"]}
    assert rows["certify"] == 7.0
    assert found["compile_seconds"] == sum(rows.values())


@pytest.mark.parametrize(
    ("fresh", "row"), [(3, "  compiled  in 1.5 s"), (0, "  compiled  all of them before")]
)
def test_compile(fresh: int, row: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compiled(*, jobs: int | None, callback: Any) -> _compile.Compiled:
        asked.append(jobs)
        callback(Progress("compile", 0, 5, "compiling solvers, once, about 9 s"))
        callback(Progress("compile", 1, 5, "1 of 5 parts"))
        return _compile.Compiled(n_kernels=5, n_fresh=fresh, seconds=1.5)

    monkeypatch.setattr(_compile, "compile_kernels", compiled)
    ended = call("compile", "--jobs", "2")
    assert ended.code == 0
    assert ended.out.splitlines() == ["5 solvers ready for use", row]
    assert ended.err == "note: compiling solvers, once, about 9 s\n"
    ended = call("compile", "--json")
    assert (ended.code, ended.err) == (0, "note: compiling solvers, once, about 9 s\n")
    assert loaded(ended.out) == {"kernels": 5, "compiled": fresh, "seconds": 1.5}
    assert call("compile", "--quiet") == (0, "", "")
    assert asked == [2, None, None]


def test_compile_refuses(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_refused(call("compile", "--jobs", "0"), "must be at least 1")
    nothing = _compile.Compiled(n_kernels=0, n_fresh=0, seconds=1.0)
    monkeypatch.setattr(_compile, "compile_kernels", lambda **kwargs: nothing)
    check_refused(call("compile"), "set NUMBA_CACHE_DIR to one that is")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_pipes_get_no_colours(
    name: str, more: tuple[str, ...], call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the environment asks for them, as services for integration do."""
    monkeypatch.setenv(name, "1")
    for words in (
        command("verify", world, world.lake),
        command("run", world, world.lake),
        ["verify", world.lake, world.forged],
        ["verify", "Nope-v0", world.forged],
    ):
        ended = call(*words, *more)
        assert ended.out + ended.err
        assert "\x1b" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("settings", "has_colours"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),  # as no-color.org has it
        ({"TERM": "dumb"}, False),
    ],
)
def test_terminals_get_colours(
    settings: dict[str, str], has_colours: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main([str(word) for word in command("verify", world, world.lake)]) == 0
    text = terminal.getvalue()
    assert text.startswith("\x1b[1;32mverified: ") is has_colours
    assert ("\x1b" in text) is has_colours


@pytest.mark.parametrize("name", COMMANDS)
def test_quiet_prints_nothing(name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, world.lake), "--quiet")
    assert ended == (0, "", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_json_prints_one_object(name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, world.lake), "--json", "--quiet")
    assert (ended.code, ended.err) == (0, "")
    loaded(ended.out)


def test_version(call: Any) -> None:
    assert call("--version") == (0, f"bisim-abstract {__version__}\n", "")


# -- exit codes --------------------------------------------------------------------------------


def test_not_certified_is_3(call: Any, world: World) -> None:
    goal = ["--tau", "0.05", "--max-pairs", "0", "--propose", "rewards"]
    ended = call("certify", world.lake, *goal, "-o", "c.npz", "--json")
    assert ended.code == 3
    assert loaded(ended.out)["certified"] is False
    assert Path("c.npz").is_file()
    # Its bounds hold, and a report of it can be written: both did what they were asked for.
    assert call("verify", world.lake, world.unclear).code == 0
    report = call("report", world.lake, world.unclear, "-o", "r.html", "--json")
    assert report.code == 0
    assert loaded(report.out)["verdict"].startswith(
        "NOT CERTIFIED at tau 0.05: between 6 and 16 clusters and the end"
    )
    assert Path("r.html").is_file()
    run = call("run", world.lake, "--train", "never", *goal, "-o", "run")
    assert run.code == 3
    assert "NOT CERTIFIED" in run.out
    assert Path("run/report.html").is_file()


def test_certified_and_poor_is_5(call: Any, world: World) -> None:
    """Everything in one cluster: certified, and worth nothing."""
    ended = call("certify", world.lake, "--tau", "1000", "-o", "c.npz", "--json")
    assert ended.code == 5
    found = loaded(ended.out)
    assert (found["certified"], found["level"], found["clusters"]) == (True, "poor", 1)
    assert found["kept"] < 0.95
    assert found["sentence"].startswith("CERTIFIED, BUT planning on it ")
    # With a lower bar it is what was asked for.
    share = str(found["kept"] - 1e-6)
    words = ("--tau", "1000", "--keep", share if found["kept"] > 0.0 else "0")
    ended = call("certify", world.lake, *words, "-o", "c.npz", "--json")
    assert ended.code == (0 if found["kept"] >= 0.0 else 5)
    run = call("run", *SMALL, "--train", "never", "--learn", "0", "--tau", "1e-9", "-o", "run")
    assert run.code == 5
    assert "CERTIFIED, BUT nothing can be merged" in run.out
    assert "closest  states " in run.out


def test_goals_by_value(call: Any, world: World) -> None:
    words = ("certify", world.lake, "-o", "c.npz", "--json")
    by_share = loaded(call(*words, "--keep", "0.5").out)
    by_loss = loaded(call(*words, "--max-loss", "0.01").out)
    assert by_share["kept"] >= 0.5
    assert by_loss["loss"] <= 0.01
    assert by_share["clusters"] <= 6 < by_loss["clusters"]


def test_solve_without_a_proof_is_3(call: Any, world: World) -> None:
    ended = call("solve", world.lake, world.unclear, "--json", "-o", "s.npz")
    assert ended.code == 3
    assert "NOT CERTIFIED at tau 0.05: between 6 and 16 clusters and the end" in ended.err
    assert loaded(ended.out)["exit_code"] == 3
    assert not Path("s.npz").exists()


def test_without_a_threshold_there_is_nothing_to_agree_on(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.bare, "--json")
    assert ended.code == 0
    found = loaded(ended.out)
    assert found["clusters"] is found["kept"] is found["loss"] is found["tau"] is None
    assert call("report", world.lake, world.bare, "-o", "r.html").code == 0
    ended = call("solve", world.lake, world.bare)
    assert ended.code == 2
    assert "give --tau" in ended.err


def test_rejected_is_4(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.forged, "--json")
    assert ended.code == 4
    found = loaded(ended.out)
    assert (found["is_valid"], found["verdict"]) == (False, "rejected")
    assert found["problem"]
    assert "REJECTED" in call("verify", world.lake, world.forged).out
    ended = call("report", world.lake, world.forged, "-o", "r.html")
    assert ended.code == 4
    assert Path("r.html").is_file()
    assert "REJECTED" in ended.out
    ended = call("solve", world.lake, world.forged, "-o", "s.npz")
    assert ended.code == 4
    assert ended.err.count("\n") == 1
    assert not Path("s.npz").exists()


def test_a_certificate_of_another_model_is_4(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.rooms_certificate)
    assert ended.code == 4
    assert "fingerprint" in ended.out
    assert call("solve", world.lake, world.rooms_certificate).code == 4


@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_is_130(
    name: str, call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "read_model", interrupted)
    ended = call(*command(name, world, world.lake), "--json")
    assert ended.code == 130
    assert ended.err.startswith("bisim-abstract: interrupted")
    assert ended.err.count("\n") == 1
    assert loaded(ended.out)["exit_code"] == 130
    if name == "run":
        assert "run --resume out" in ended.err


def test_certify_keeps_what_it_has_when_interrupted(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_ignore", interrupt)
    ended = call("certify", world.lake, "-o", "c.npz", "--quiet")
    assert ended.code == 130
    found = Certificate.load("c.npz")
    assert found.stop == "interrupted in step 1"
    assert verify(TabularMDP.load(world.lake), found).is_valid


def broken(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("boom\nand more")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_fault_is_1(name: str, call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "read_model", broken)
    ended = call(*command(name, world, world.lake), "--json")
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "RuntimeError: boom and more" in ended.err
    assert "--debug" in ended.err
    assert loaded(ended.out) == {"error": ended.err[16:-1], "exit_code": 1}
    with pytest.raises(RuntimeError, match="boom"):
        main([str(word) for word in [*command(name, world, world.lake), "--debug"]])


def test_memory_is_bad_input(call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise MemoryError("4 TiB")

    monkeypatch.setattr(sources, "read_model", full)
    check_refused(call("extract", world.lake, "-o", "m.npz"), "out of memory 4 TiB")


# -- bad input ---------------------------------------------------------------------------------

BAD_SOURCES: dict[str, tuple[list[str], str]] = {
    "unknown": (["Nope-v0"], "no environment 'Nope-v0'"),
    "no such version": (["FrozenLake-v99"], "no environment 'FrozenLake-v99'"),
    "continuous": (["CartPole-v1"], "CartPole-v1 has continuous observations"),
    "empty": ([""], "an id or a path"),
    "colon": (["some_module:Env-v0"], "--import some_module"),
    "missing": (["missing.npz"], "missing.npz: No such file"),
    "garbage": (["{garbage}"], "garbage.npz is not a readable .npz"),
    "truncated": (["{truncated}"], "truncated.npz is not a readable .npz"),
    "certificate": (["{certificate}"], "certificate.npz holds a "),
    "encoder": (["{encoder}"], "encoder.npz"),
    "folder": (["{folder}"], "no environment"),
    "no value": (["FrozenLake-v1", "--env-arg", "foo"], "key=value, got 'foo'"),
    "no key": (["FrozenLake-v1", "--env-arg", "=1"], "key=value, got '=1'"),
    "no name": (["FrozenLake-v1", "--env-arg", "2x=1"], "key=value, got '2x=1'"),
    "not taken": (
        ["FrozenLake-v1", "--env-arg", "foo=1"],
        "takes no argument 'foo'; it takes render_mode",
    ),
    "not possible": ([ROOMS[0], "--env-arg", "side=x"], "takes a whole number, got 'x'"),
    "no truth value": (["FrozenLake-v1", "--env-arg", "is_slippery=no"], "takes true or false"),
    "mistyped": (["FrozenLake-v1", "--env-arg", "is_slipery=true"], "did you mean is_slippery?"),
    "twice": ([ROOMS[0], "--env-arg", "side=4", "--env-arg", "side=6"], "side is given twice"),
    "no pair": ([ROOMS[0], "--env-arg", "side=20", "--env-arg", "room_size=3"], "room_size"),
    "of a file": (["{lake}", "--env-arg", "side=4"], "is a file"),
    "backgrounds of a file": (["{lake}", "--backgrounds", "4"], "is a file"),
    "backgrounds": (["FrozenLake-v1", "--backgrounds", "0"], "backgrounds must be at least 1"),
    "states": (["FrozenLake-v1", "--max-states", "0"], "max_states must be at least 1"),
    "too many": (["MiniGrid-Empty-5x5-v0", "--max-states", "3"], "more than"),
    "seed": (["FrozenLake-v1", "--seed", "-1"], "seed must be at least 0"),
    "seed text": (["FrozenLake-v1", "--seed", "x"], "argument --seed: invalid int value"),
    "terminal": (["FrozenLake-v1", "--terminal", "x"], "argument --terminal: invalid choice"),
    "import": (["FrozenLake-v1", "--import", "no_such"], "--import no_such: No module named"),
    "too much": (["FrozenLake-v1", "more", "more"], "unrecognized arguments: more"),
    "option": (["FrozenLake-v1", "--colour", "red"], "there is no option --colour; see bisim-"),
    "near option": (["FrozenLake-v1", "--sed", "1"], "there is no option --sed; did you mean --se"),
}


# What Python and the environments themselves say to such arguments is not an error of ours.
STRANGE_SOURCES: dict[str, tuple[list[str], str]] = {
    "import relative": (["FrozenLake-v1", "--import", ".no_such"], "--import .no_such"),
    "import nothing": (["FrozenLake-v1", "--import", ""], "--import"),
    "map": (["FrozenLake-v1", "--env-arg", "map_name=9x9"], "9x9"),
    "desc": (["FrozenLake-v1", "--env-arg", "desc=[]"], "FrozenLake-v1"),
    "our name": (["FrozenLake-v1", "--env-arg", "env_id=1"], "env_id"),
    "our checker": (["FrozenLake-v1", "--env-arg", "disable_env_checker=1"], "checker"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("bad", BAD_SOURCES)
def test_bad_sources(bad: str, name: str, call: Any, world: World) -> None:
    words, cause = BAD_SOURCES[bad]
    source = [word.format(**{k: str(v) for k, v in world._asdict().items()}) for word in words]
    check_refused(call(*command(name, world, *source)), cause)


@pytest.mark.parametrize("bad", STRANGE_SOURCES)
def test_strange_sources(bad: str, call: Any, world: World) -> None:
    words, cause = STRANGE_SOURCES[bad]
    check_refused(call(*command("extract", world, *words)), cause)


@pytest.mark.parametrize("name", ["train", "certify", "solve", "run"])
@pytest.mark.parametrize("gamma", ["1", "-0.1", "nan", "inf", "x"])
def test_bad_discounts(gamma: str, name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, world.lake), "--gamma", gamma)
    check_refused(ended, "gamma", {"x": "'x'", "1": "1.0"}.get(gamma, gamma))


@pytest.mark.parametrize("name", ["certify", "run", "solve"])
@pytest.mark.parametrize("tau", ["-1", "nan", "inf", "abc"])
def test_bad_thresholds(tau: str, name: str, call: Any, world: World) -> None:
    words = command(name, world, world.lake)
    if name == "solve":
        words.insert(2, world.certificate)
    check_refused(call(*words, "--tau", tau), "tau", "-1.0" if tau == "-1" else tau)


GOALS = {
    "--clusters 0": "n_clusters must be",
    "--clusters 18": "n_clusters must be between 1 and 16",
    "--clusters 2 --tau 0.1": "tau or n_clusters",
    "--clusters x": "invalid int value",
    "--tol 0": "tol must be above 0",
    "--tol nan": "tol must be finite",
    "--scope some": "invalid choice",
    "--propose guess": "propose must be one of",
    "--propose ,": "propose must be one of",
    "--max-pairs -1": "max_pairs must be at least 0",
    "--max-seconds 0": "max_seconds must be above 0",
    "--max-seconds inf": "max_seconds must be finite",
    "--max-rounds 0": "max_rounds must be at least 1",
    "--max-backups 0": "max_backups must be at least 1",
    "--threads 0": "threads must be at least 1",
}


@pytest.mark.parametrize("goal", GOALS)
def test_bad_goals(goal: str, call: Any, world: World) -> None:
    check_refused(call(*command("certify", world, world.lake), *goal.split()), GOALS[goal])


@pytest.mark.parametrize("goal", GOALS)
def test_bad_goals_of_runs(goal: str, call: Any, world: World) -> None:
    check_refused(call(*command("run", world, world.lake), *goal.split()), GOALS[goal])


@pytest.mark.parametrize("name", ["train", "run"])
@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--steps 0", "steps must be at least 1"),
        ("--dim 0", "dim must be at least 1"),
        ("--transitions 0", "transitions must be at least 1"),
        ("--encoder nope", "invalid choice: 'nope'"),
        ("--experience nope", "invalid choice: 'nope'"),
        ("--experience steps", "there is no environment to step"),
    ],
)
def test_bad_training(words: str, cause: str, name: str, call: Any, world: World) -> None:
    start = command(name, world, world.lake)
    start = [word for word in start if word not in ("--train", "never")]
    if name == "run":
        start += QUICK
    check_refused(call(*start, *words.split()), cause)


@pytest.mark.parametrize("words", ["--learn -1", "--learn x", "--learn-seeds 0"])
def test_bad_learning(words: str, call: Any, world: World) -> None:
    check_refused(call(*command("run", world, "FrozenLake-v1"), *words.split()), "learn")
    if "seeds" not in words:
        check_refused(call(*command("report", world, "FrozenLake-v1"), *words.split()), "learn")


@pytest.mark.parametrize("name", ["verify", "report", "solve"])
@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("missing", "missing.npz: No such file"),
        ("garbage", "garbage.npz is not a readable .npz"),
        ("truncated", "truncated.npz is not a readable .npz"),
        ("lake", "lake.npz"),
        ("encoder", "encoder.npz"),
        ("bridge", "bridge.npz"),
        ("folder", "Is a directory"),
    ],
)
def test_bad_certificates(file: str, cause: str, name: str, call: Any, world: World) -> None:
    path = getattr(world, file, world.folder / "missing.npz")
    words = {
        "verify": ["verify", world.lake, path],
        "report": ["report", world.lake, path, "-o", "out.html"],
        "solve": ["solve", world.lake, path, "-o", "out.npz"],
    }[name]
    check_refused(call(*words), cause)


@pytest.mark.parametrize("name", ["verify", "report", "solve"])
@pytest.mark.parametrize("second", ["FrozenLake-v1", "lake", "bridge", "missing.npz"])
@pytest.mark.parametrize("more", [(), ("--env-arg", "map_name=8x8")])
def test_swapped_files_are_told_the_order(
    name: str, second: str, more: tuple[str, ...], call: Any, world: World
) -> None:
    model = getattr(world, second, second)
    ended = call(name, world.certificate, model, *more)
    check_refused(
        ended,
        f"bisim-abstract: {name} takes SOURCE, then CERTIFICATE; {world.certificate} holds a "
        "certificate and stands first",
    )
    if second in ("lake", "bridge"):
        ended = call(name, "FrozenLake-v1", model)
        check_refused(ended, f"{model} holds a model and stands second")


def test_a_model_is_not_called_a_damaged_certificate(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.lake)
    check_refused(ended, "lake.npz holds a model and stands second")


@pytest.mark.parametrize("name", ["certify", "report"])
@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("rooms_encoder", "encodes 400 numbered states, the model has 17"),
        ("missing", "missing.npz: No such file"),
        ("garbage", "garbage.npz"),
        ("lake", "holds no encoder"),
        ("certificate", "holds no encoder"),
    ],
)
def test_bad_encoders(file: str, cause: str, name: str, call: Any, world: World) -> None:
    path = getattr(world, file, world.folder / "missing.npz")
    check_refused(call(*command(name, world, world.lake), "--encoder", path), cause)


@pytest.mark.parametrize(
    ("file", "cause"),
    [("garbage", "garbage.npz"), ("lake", "lake.npz"), ("folder", "directory")],
)
def test_bad_checkpoints(file: str, cause: str, call: Any, world: World) -> None:
    before = {path: path.stat().st_mtime_ns for path in world.folder.iterdir()}
    words = command("certify", world, world.lake)
    check_refused(call(*words, "--checkpoint", getattr(world, file)), cause)
    check_refused(call(*words, "--checkpoint", "no_folder/k.npz"), "no_folder")
    check_refused(call(*words, "--checkpoint", world.rooms_certificate), "other settings")
    assert before == {path: path.stat().st_mtime_ns for path in world.folder.iterdir()}


@pytest.mark.parametrize("name", ["extract", "train", "certify", "solve", "report"])
def test_targets_that_cannot_be_written(
    name: str, call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*args: Any, **kwargs: Any) -> None:
        pytest.fail("the target is to be looked at first")

    monkeypatch.setattr(sources.Source, "model", too_late)
    words = command(name, world, world.lake)[:-2]
    check_refused(call(*words, "-o", world.lake / "below"), "lake.npz", "directory")
    check_refused(call(*words, "-o", "no/such/file"), "no/such: there is no such directory")
    check_refused(call(*words, "-o", world.folder), str(world.folder), "is a directory")
    check_refused(call(*words, "-o", ""), "is a directory")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    check_refused(call(*words, "-o", "out"), "not writable")


def test_runs_that_cannot_be_written(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command("run", world, world.lake)[:-2]
    check_refused(call(*words, "-o", world.lake), "lake.npz: is a file")
    check_refused(call(*words, "-o", world.lake / "below"), "lake.npz: is no directory")
    check_refused(call(*words, "-o", world.folder), "is not empty and holds no run")

    def refused(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    check_refused(call(*words, "-o", "out"), "out: Permission denied")


def test_run_needs_to_know_where(call: Any, world: World) -> None:
    check_refused(call("run"), "run needs SOURCE and -o DIR")
    check_refused(call("run", world.lake), "run needs SOURCE and -o DIR")
    check_refused(call("run", "-o", "out"), "run needs SOURCE and -o DIR")
    check_refused(call("run", "--resume", "out"), "out holds no run")
    check_refused(call("run", "--resume", world.folder), "holds no run")
    check_refused(call("run", world.lake, "--resume", "out"), "takes all settings")
    check_refused(call("run", "--resume", "out", "-o", "more"), "takes all settings")


def test_settings_beside_resume_are_refused(call: Any, world: World) -> None:
    """They would be ignored, and the caller think otherwise."""
    assert call("run", world.lake, "--train", "never", "-o", "out").code == 0
    ended = call("run", "--resume", "out", "--gamma", "0.5")
    assert ended.code == 2
    assert "--resume" in ended.err


def test_commands(call: Any) -> None:
    check_refused(call(), "COMMAND", "--help")
    check_refused(call("destroy"), "there is no command 'destroy'; commands are extract, train")
    for name in COMMANDS:
        if name != "run":
            check_refused(call(name), f"bisim-abstract {name} --help", "SOURCE")
    check_refused(call("compile", "more"), "unrecognized arguments: more")
    check_refused(call("solve", "FrozenLake-v1", "--tau", "1"), "--tau goes with a certificate")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["certfy", "FrozenLake-v1"], "there is no command 'certfy'; did you mean certify?"),
        (["veryfy"], "did you mean verify?"),
        (["--vresion"], "there is no option --vresion; did you mean --version?"),
        (["certify", "--gama", "0.5"], "there is no option --gama; did you mean --gamma?"),
        (["certify", "x", "--max_pairs=3"], "did you mean --max-pairs?"),
        (["run", "x", "--no-train"], "there is no option --no-train"),
    ],
)
def test_mistyped_words(words: list[str], hint: str, call: Any) -> None:
    check_refused(call(*words), hint)


def test_words_that_only_look_mistyped(call: Any, world: World) -> None:
    ended = call("report", world.lake, world.certificate, "--title", "--a title", "-o", "r.html")
    assert ended.code == 0
    assert call("solve", "--gam", "0.5", world.lake).code == 0
    assert call("--help", "certfy").code == 0
    assert call("certify", "--help", "--gama").code == 0
    Path("--gama").write_bytes(world.lake.read_bytes())
    assert call("solve", "--", "--gama").code == 0


def test_another_discount_than_the_certificates(call: Any, world: World) -> None:
    words = ["solve", world.lake, world.certificate, "--gamma"]
    check_refused(call(*words, "0.5"), "--gamma 0.5", "0.9")
    assert call(*words, "0.9").code == 0


def test_reports_are_of_one_model(call: Any, world: World) -> None:
    ended = call("report", world.lake, world.rooms_certificate, "-o", "r.html")
    check_refused(ended, "is of another model")


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_as_json(name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, "Nope-v0"), "--json", "--quiet")
    assert ended.code == 2
    found = loaded(ended.out)
    assert found["exit_code"] == 2
    assert "no environment 'Nope-v0'" in found["error"]
    assert ended.err == f"bisim-abstract: {found['error']}\n"


@pytest.mark.parametrize(
    "words", [["certify", "x", "--json", "--gamma", "x"], ["extract", "--json"]]
)
def test_errors_of_the_parser_as_json(words: list[str], call: Any) -> None:
    ended = call(*words)
    check_refused(ended)
    found = loaded(ended.out)
    assert found["exit_code"] == 2
    assert found["error"] in ended.err


def test_errors_of_the_parser_are_one_line(call: Any) -> None:
    check_refused(call("extract", "FrozenLake-v1", "two\nlines"), "unrecognized arguments: two")


def test_debug_raises(call: Any, world: World) -> None:
    with pytest.raises(ExtractionError, match="Nope-v0"):
        main(["extract", "Nope-v0", "--debug"])
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        main(["verify", "FrozenLake-v1", "missing.npz", "--debug"])


def test_names_that_are_no_text(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"out\xff")
    words = ["run", str(world.lake), "--train", "never", "-o", name, "--quiet"]
    monkeypatch.setattr(sys, "argv", ["bisim-abstract", *words])
    assert main() == 0
    assert (Path(name) / "report.html").is_file()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_no_json(value: str, call: Any, world: World) -> None:
    words = [ROOMS[0], "--env-arg", f"noise={value}"]
    check_refused(call(*command("run", world, *words)), "noise")
    check_refused(call(*command("extract", world, *words)), "noise")


# -- imports, warnings, pipes ------------------------------------------------------------------

MODULE = """
import gymnasium as gym


class Tiny(gym.Env):
    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)
    P = {0: {0: [(1.0, 1, 2.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)]}}
    initial_state_distrib = [1.0, 0.0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.s = 0
        return 0, {}

    def step(self, action):
        reward = 2.0 if self.s == 0 else 0.0
        self.s = 1 - self.s
        return self.s, reward, False, False, {}


gym.register("tests/Tiny-v0", entry_point=Tiny)
"""


@pytest.fixture
def module(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "tiny_world_of_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    yield "tiny_world_of_tests"
    sys.modules.pop("tiny_world_of_tests", None)
    gym.registry.pop("tests/Tiny-v0", None)


def test_modules_that_register(call: Any, module: str) -> None:
    check_refused(call("extract", "tests/Tiny-v0", "-o", "m.npz"), "tests/Tiny-v0")
    # Gymnasium itself would import what stands before a colon.
    check_refused(call("extract", f"{module}:tests/Tiny-v0", "-o", "m.npz"), f"--import {module}")
    assert module not in sys.modules
    assert call("extract", "tests/Tiny-v0", "--import", module, "-o", "m.npz").code == 0
    mdp = TabularMDP.load("m.npz")
    assert mdp.rewards[:2].tolist() == [[2.0], [0.0]]


@pytest.mark.filterwarnings("default")
def test_warnings_are_notes(call: Any) -> None:
    pair = ("CliffWalking-v0", "CliffWalking-v1")
    [retired] = [name for name in pair if name not in gym.registry]
    before = warnings.showwarning
    ended = call("extract", retired, "-o", "m.npz", "--json")
    assert ended.code == 0
    assert ended.err.startswith(f"note: {retired} is not in Gymnasium")
    assert ended.err.count("\n") == 1
    assert loaded(ended.out)["states"] == 49
    assert warnings.showwarning is before


@pytest.mark.filterwarnings("default")
def test_notes_do_not_speak_of_options_that_nobody_gave(call: Any) -> None:
    [retired] = [f"CliffWalking-v{k}" for k in (0, 1) if f"CliffWalking-v{k}" not in gym.registry]
    assert "options" not in call("extract", retired, "-o", "m.npz").err


@pytest.mark.filterwarnings("default")
def test_warnings_of_imports_are_notes(
    call: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "warning_module_of_tests.py").write_text("import warnings\nwarnings.warn('ho')\n")
    monkeypatch.syspath_prepend(str(folder))
    ended = call("extract", world.lake, "--import", "warning_module_of_tests", "-o", "m.npz")
    sys.modules.pop("warning_module_of_tests")
    assert (ended.code, ended.err) == (0, "note: ho\n")


@pytest.mark.parametrize("kind", ["text", "json", "run", "error"])
def test_a_closed_pipe_ends_quietly(
    kind: str,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = {
        "text": command("extract", world, world.lake),
        "json": [*command("extract", world, world.lake), "--json"],
        "run": command("run", world, world.lake),
        "error": [*command("extract", world, "Nope-v0"), "--json"],
    }[kind]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        try:
            code: Any = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        finally:
            # Whatever happened, closing it must not fail in this process.
            with open(os.devnull, "w") as hole:
                os.dup2(hole.fileno(), pipe.fileno())
    err = capsys.readouterr().err
    assert code == (2 if kind == "error" else 0)
    assert err == "" or (kind == "error" and err.count("\n") == 1)


def started(*words: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )


def test_the_module_is_the_command(world: World) -> None:
    """As a process: no traceback without --debug, a traceback with it."""
    done = started("-m", "bisim_abstract", "extract", "Nope-v0", "-o", "m.npz")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bisim-abstract: no environment 'Nope-v0'")
    assert done.stderr.count("\n") == 1
    done = started("-m", "bisim_abstract", "extract", "Nope-v0", "--debug")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "ExtractionError" in done.stderr


def test_head_of_the_output(world: World) -> None:
    command = f"{sys.executable} -m bisim_abstract solve {world.lake} | head -1"
    done = subprocess.run(
        command,
        shell=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{world.lake}, gamma = 0.9\n"
    assert done.stderr == ""


# -- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help(name: str, call: Any) -> None:
    ended = call(*name.split(), "--help")
    assert (ended.code, ended.err) == (0, "")
    for text in ("usage: bisim-abstract", "exit codes:", "130  interrupted"):
        assert text in ended.out
    for option in ("--json", "--quiet", "--debug", "--threads", "--seed"):
        assert (option in ended.out) == bool(name)
    if not name:
        assert all(command in ended.out for command in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from bisim_abstract._app.cli import main
for words in [["--help"], *([name, "--help"] for name in {COMMANDS!r})]:
    try:
        main(words)
    except SystemExit as stop:
        assert stop.code == 0
heavy = {{"torch", "faiss", "numba", "scipy", "rich"}}
ours = {{name for name in sys.modules if name.startswith("bisim_abstract.")}}
light = ("_app", "_app.cli", "_base", "_base.text", "_register", "_version", "errors")
ours -= {{f"bisim_abstract.{{name}}" for name in light}}
print(sorted(heavy & set(sys.modules)), sorted(ours), file=sys.stderr)
"""
    done = started("-c", code)
    assert (done.returncode, done.stderr) == (0, "[] []\n")


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), (["--version"], 0), (["certify", "--gama"], 2)]
)
def test_help_answers_at_once(words: list[str], code: int) -> None:
    """In seconds of work, which other work on the machine does not lengthen much."""
    took = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert started("-m", "bisim_abstract", *words).returncode == code
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if min(took) < 0.3:
            return
    pytest.fail(f"took {min(took):.2f} s")


def test_the_end_does_not_take_objects_down_one_by_one() -> None:
    """That took seconds after torch. What is registered to be done at the end is done."""
    code = """
import atexit, sys
from bisim_abstract._app.cli import console

class Late:
    def __del__(self):
        print("taken down")

late = Late()
atexit.register(print, "at the end")
sys.argv = ["bisim-abstract", "extract", "FrozenLake-v1", "--quiet"]
console()
"""
    done = started("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "at the end\n", "")
    assert Path("mdp.npz").is_file()
    done = started("-m", "bisim_abstract", "extract", "Nope-v0", "--json")
    assert done.returncode == 2
    assert loaded(done.stdout)["exit_code"] == 2


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("500mb", 5 * 10**8), ("1.5 kB", 1500), ("7", 7), ("2TB", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert cli._bytes(text) == size


@pytest.mark.parametrize("text", ["", "4XB", "GB", "-1", "0", "nan", "1e99TB", "4GBGB"])
def test_bad_sizes(call: Any, world: World, text: str) -> None:
    ended = call("certify", world.lake, f"--memory-limit={text}")
    check_refused(ended, "must be a size such as 500MB")


def test_memory_limits_are_kept(call: Any, world: World) -> None:
    ended = call("certify", world.rooms, "--memory-limit", "1kB", "-o", "c.npz")
    check_refused(ended, "allowed by memory_limit", "needs")


def test_memory_limits_of_a_check_are_kept(call: Any, world: World) -> None:
    arguments = ("verify", world.rooms, world.rooms_certificate, "--memory-limit")
    check_refused(call(*arguments, "1kB"), "allowed by memory_limit", "checking a certificate")
    assert call(*arguments, "1GB").code == 0


def test_names_that_are_no_text_are_shown_escaped(call: Any, world: World) -> None:
    """Found by fuzzing: the file was written, and telling so was a fault of this program."""
    ended = call("extract", world.lake, "-o", os.fsdecode(b"out\xff.npz"))
    assert ended.code == 0
    assert r"out\udcff.npz" in ended.out
    assert Path(os.fsdecode(b"out\xff.npz")).is_file()


@pytest.mark.parametrize("flag", ["--checkpoint", "--encoder", "--import", "--out"])
def test_null_characters_are_bad_input(flag: str, call: Any, world: World) -> None:
    """Found by fuzzing; a shell cannot pass one, a program can."""
    ended = call("certify", world.lake, flag, "a\0b")
    assert ended.code == 2
    assert "null" in ended.err


def test_what_is_read_is_not_written_over(call: Any, world: World) -> None:
    before = world.lake.read_bytes()
    ended = call("certify", world.lake, "-o", world.lake)
    assert ended.code == 2
    assert "is what is read; give another file to write" in ended.err
    assert world.lake.read_bytes() == before


def test_half_a_run_does_not_replace_a_whole_one(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("certify", world.lake, "-o", "c.npz").code == 0
    before = Path("c.npz").read_bytes()
    home = importlib.import_module("bisim_abstract._prove.certify")

    def interrupted(*args: Any, **kwargs: Any) -> Certificate:
        return dataclasses.replace(certify(*args, **kwargs), stop="interrupted in step 1")

    monkeypatch.setattr(home, "certify", interrupted)
    ended = call("certify", world.lake, "-o", "c.npz")
    assert ended.code == 130
    assert "c.npz.interrupted" in ended.out
    assert Path("c.npz").read_bytes() == before
    assert Certificate.load("c.npz.interrupted").stop == "interrupted in step 1"


@pytest.mark.filterwarnings("default")
def test_colours_of_others_do_not_come_through(call: Any) -> None:
    ended = call("extract", "FrozenLake", "-o", "m.npz")  # Gymnasium warns, in yellow
    assert ended.code == 0
    assert ended.err.startswith("note: ")
    assert "\x1b" not in ended.err


def test_errors_of_gymnasium_are_no_faults_of_ours(call: Any) -> None:
    ended = call("extract", "FrozenLake-v1", "--env-arg", "map_name=9x9", "-o", "m.npz")
    assert ended.code == 2
    assert "fault" not in ended.err
