"""Every command on its good path."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    Reading,
    TabularMDP,
    __version__,
    certify,
    lift_policy,
    read_model,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract._abstract.aggregate import aggregate
from bisim_abstract._app import report
from bisim_abstract._app.runs import Run
from bisim_abstract.encoders import load_encoder
from bisim_abstract.parts import read_bridge
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp
from tests.support.asking import certify_named
from tests.support.certificates import same_certificate
from tests.support.commands import (
    QUICK,
    ROOMS,
    SMALL,
    World,
    check_described,
    loaded,
)
from tests.support.counting import Door
from tests.support.runs import small

# -- good paths --------------------------------------------------------------------------------


def test_compare(call: Any, world: World) -> None:
    slips = ["FrozenLake-v1", "--second-arg", "is_slippery=false"]
    ended = call("compare", world.lake, *slips, "--gamma", 0.9, "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert 0.6158 <= told["lower"] <= told["upper"] <= 0.6159
    assert not told["are_bisimilar"]
    assert told["difference"]["first"] == 14
    ended = call("compare", world.lake, "FrozenLake-v1", "--digits", 12, "--json")
    assert json.loads(ended.out)["digits"] == 12
    ended = call("compare", world.lake, "FrozenLake-v1", "--relation", "lax")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("The models are the same")
    assert "values" in ended.out
    ended = call("compare", world.lake, "CliffWalking-v1", "--first-arg", "x=1")
    assert ended.code == 2
    assert "is a file" in ended.err


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
            extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True)),
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
            [world.lake, "--method", "covering", "--max-rounds", "2", "--tol", "0.1"],
            lake,
            0.9,
            {"method": "covering", "max_rounds": 2, "tol": 0.1},
        ),
        "encoder": (
            [world.lake, "--encoder", world.encoder, "--clusters", "12"],
            lake,
            0.9,
            {"embedding": load_encoder(world.encoder), "n_clusters": 12},
        ),
    }
    words, mdp, gamma, goal = cases[kind]
    expected = certify_named(mdp, gamma, **goal)  # compiles, where that is not kept
    ended = call("certify", *words, "-o", "c.npz", "--json", "--threads", "1")
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
    assert "CERTIFIED: 4 clusters of 400 states; at gamma 0.9, any agent" in ended.out
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
    assert found["verdict"].startswith(
        "CERTIFIED: 4 clusters of 400 states; at gamma 0.9, any agent "
    )
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


def test_report_of_a_file_draws_curves_if_asked(call: Any, world: World) -> None:
    for words, is_drawn in (((), False), (("--learn", 5), True)):
        ended = call("report", world.rooms, world.rooms_certificate, *words, "-o", "r.html")
        assert ended.code == 0, ended
        assert ('id="learning"' in Path("r.html").read_text(encoding="utf-8")) == is_drawn


def test_run(call: Any) -> None:
    words = [*SMALL, *QUICK, "--learn", "40", "--title", "small"]
    ended = call("run", *words, "-o", "r", "--json", "--tau", "1", "--learn-seeds", "2")
    assert (ended.code, ended.err) == (0, "")
    found = loaded(ended.out)
    check_described(found, Certificate.load("r/certificate.npz"))
    mdp = RoomsGridEnv(side=4, room_size=2).to_mdp()
    encoder = load_encoder("r/encoder.npz")
    same_certificate(
        Certificate.load("r/certificate.npz"),
        certify(mdp, 0.9, tau=1.0, method=Blocks(embedding=encoder)),
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
    ended = call("run", world.lake, "--train", "never", "--learn", "40", "-o", "r")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"{world.lake} in r"
    # Each stage is announced, then comes what it found.
    stages = ["extract", "certify", "verify", "compare", "learn", "report"]
    assert lines[1:13:2] == [f"  {stage} ..." for stage in stages]
    assert all(re.match(r"    \d+\.\d s(, and|:) ", line) for line in lines[2:13:2])
    verdict = (
        "CERTIFIED: 6 clusters of 16 states (plus the terminal state); at gamma 0.9, any agent "
    )
    assert verdict in lines[4]
    assert lines[13].startswith(verdict)
    assert lines[14:] == ["  encoder  not trained: none was requested", "  report   r/report.html"]
    again = call("run", "--resume", "r").out.splitlines()
    told = [line.split()[0].rstrip(",") for line in again[1:8] if not line.startswith("    ")]
    assert told == stages
    assert [line for line in again[1:8] if "done before" in line] == [
        again[k] for k in (1, 2, 5, 6)
    ]


def test_run_trains_where_it_is_needed(call: Any) -> None:
    lake = ("run", "FrozenLake-v1", "--learn", "0", "--json", "-o")
    plain = loaded(call(*lake, "plain").out)
    assert plain["encoder"] == {
        "is_trained": False,
        "reason": "the clusters found without one are certified and useful",
        "is_used": False,
    }
    assert "train" not in [row["stage"] for row in plain["stages"]]
    for k, words in enumerate((QUICK, (*QUICK, "--train", "always"))):
        asked = loaded(call(*lake, str(k), *words).out)
        assert asked["encoder"]["reason"] == "it was requested"
        assert [row["stage"] for row in asked["stages"]][1] == "train"
    undecided = ("--env-arg", "noise=0.3", "--tau", "0.5", "--max-pairs", "0", "--learn", "0")
    ended = call("run", *SMALL, *undecided, *QUICK, "--train", "needed", "-o", "open")
    assert ended.code == 3
    lines = ended.out.splitlines()
    why = "what is found without an encoder is NOT CERTIFIED at tau 0.5: between 7 and 16 clusters"
    assert f"  train ... ({why} of 16 states)" in lines
    assert "  certify ... (again, with the encoder)" in lines
    assert any(line.startswith(f"  encoder  trained: {why}") for line in lines)
    ended = call("run", "FrozenLake-v1", "--train", "never", "--steps", "5", "-o", "never")
    assert ended.code == 2
    assert "--train never leaves nothing to set; leave out --steps" in ended.err


# -- export ------------------------------------------------------------------------------------


def test_export_of_a_certificate(call: Any, world: World) -> None:
    words = ["--model", world.rooms, "-o", "q.npz", "--clusters", "c.csv", "--json"]
    ended = call("export", world.rooms_certificate, *words)
    assert (ended.code, ended.err) == (0, "")
    mdp, certificate = read_model(world.rooms), Certificate.load(world.rooms_certificate)
    small_model = certificate.aggregate(mdp).mdp
    assert TabularMDP.load("q.npz") == small_model
    found = loaded(ended.out)
    check_described(found, certificate)
    assert (found["file"], found["clusters_file"]) == ("q.npz", "c.csv")
    assert found["exported"]["fingerprint"] == small_model.fingerprint
    assert found["exported"]["states"] == small_model.n_states < mdp.n_states
    with open("c.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["cluster"]) for line in lines] == certificate.labels.tolist()


@pytest.mark.parametrize("name", ["q.json", "q.csv"])
def test_export_for_people(name: str, call: Any, world: World) -> None:
    ended = call("export", world.certificate, "--model", world.lake, "-o", name)
    assert ended.code == 0
    assert "CERTIFIED" in ended.out
    assert name in ended.out
    if name == "q.json":
        document = json.loads(Path(name).read_bytes())
        certificate = Certificate.load(world.certificate)
        has_end = certificate.terminal_state is not None
        assert document["n_states"] == certificate.n_clusters + has_end


def test_export_of_a_run(call: Any, tmp_path: Path) -> None:
    done = Run(tmp_path / "run", small())()
    assert done.certificate.is_certified
    ended = call("export", "run", "-o", "q.npz", "--clusters", "c.json")
    assert (ended.code, ended.err) == (0, "")
    assert TabularMDP.load("q.npz").n_states >= done.certificate.n_clusters
    document = json.loads(Path("c.json").read_bytes())
    assert document["fingerprint"] == done.certificate.fingerprint
    assert [entry["members"] for entry in document["clusters"]] == [
        members.tolist() for members in done.certificate.clusters
    ]
    ended = call("export", "run", "--model", *SMALL, "-o", "q2.npz")
    assert ended.code == 2
    assert "drop --model" in ended.err
    (tmp_path / "run" / "certificate.npz").unlink()
    ended = call("export", "run", "-o", "q2.npz")
    assert ended.code == 2
    assert "run --resume run" in ended.err


def test_export_at_another_threshold(call: Any, world: World) -> None:
    certificate = Certificate.load(world.certificate)
    coarsest = certificate.certified_thresholds()[-1]
    words = ["--model", world.lake, "--tau", coarsest.low, "--clusters", "c.json"]
    assert call("export", world.certificate, *words).code == 0
    document = json.loads(Path("c.json").read_bytes())
    assert len(document["clusters"]) == coarsest.n_clusters
    assert document["tau"] == coarsest.low


# -- environments that count their steps ---------------------------------------------------------


@pytest.fixture
def door() -> Iterator[str]:
    gym.register("tests/Door-v0", entry_point="tests.support.counting:Door")
    yield "tests/Door-v0"
    del gym.registry["tests/Door-v0"]


def test_what_counts_steps_is_named(call: Any, door: str) -> None:
    ended = call("extract", door, "-o", "door.npz", "--max-states", 200)
    assert ended.code == 2
    assert "--freeze steps" in ended.err
    module = "tests.support.counting"
    ended = call("run", door, "-o", "run", "--freeze", "steps", "--learn", 40, "--import", module)
    assert (ended.code, ended.err) == (0, "")
    config = json.loads(Path("run/config.json").read_bytes())["config"]
    assert config["source"]["reading"]["freeze"] == ["steps"]
    assert config["imports"] == [module]
    assert f"--import {module}" in Path("run/report.html").read_text()
    words = ["--model", "run/mdp.npz"]
    assert call("verify", "run").code == 0
    assert call("verify", door, "run/certificate.npz", "--freeze", "steps").code == 0
    assert call("export", "run/certificate.npz", *words, "-o", "small.npz").code == 0
    ended = call("verify", "run", "--freeze", "steps")
    assert ended.code == 2
    assert "drop --freeze" in ended.err


def test_what_has_a_table_or_is_a_file_has_nothing_to_freeze(call: Any, world: World) -> None:
    ended = call("extract", "FrozenLake-v1", "-o", "lake.npz", "--freeze", "steps")
    assert ended.code == 2
    assert "freeze goes with environments that are enumerated" in ended.err
    ended = call("certify", world.lake, "-o", "c.npz", "--freeze", "steps")
    assert ended.code == 2
    assert "what to freeze go with environments" in ended.err


def test_what_draws_its_first_state_begins_in_many(
    call: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gym.register("tests/Scattered-v0", entry_point="tests.wrappers.test_starts:Scattered")
    words = ["tests/Scattered-v0", "--freeze", "steps", "-o"]
    try:
        ended = call("extract", *words, "one.npz", "--starts", 1)
        assert ended.code == 0
        assert "begins elsewhere with other seeds" in caplog.text
        caplog.clear()
        ended = call("extract", *words, "many.npz", "--starts", 40)
        assert (ended.code, ended.err) == (0, "")
        assert not caplog.records
        mdp = TabularMDP.load("many.npz")
        assert (mdp.start > 0.0).sum() == 5
        ended = call("extract", *words, "all.npz")
        assert (ended.code, ended.err) == (0, "")
        assert (TabularMDP.load("all.npz").start > 0.0).sum() == 5
        ended = call("run", *words, "run", "--starts", 40, "--learn", 40)
        assert (ended.code, ended.err) == (0, "")
        config = json.loads(Path("run/config.json").read_bytes())["config"]
        assert config["source"]["reading"]["starts"] == 40
        assert "--starts 40" in Path("run/report.html").read_text()
        caplog.clear()
        call("run", *words, "alone", "--starts", 1, "--learn", 40)
        told = [x for x in caplog.records if "begins elsewhere" in x.message]
        assert len(told) <= 1  # however often a run reads its environment
        assert "--starts 1" in Path("alone/report.html").read_text()
    finally:
        del gym.registry["tests/Scattered-v0"]


class FallsOver(Door):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("nobody is here")


def test_errors_of_an_environment_are_its_own(call: Any) -> None:
    gym.register("tests/Falls-v0", entry_point=f"{__name__}:FallsOver")
    try:
        ended = call("extract", "tests/Falls-v0", "--freeze", "steps", "-o", "m.npz")
    finally:
        del gym.registry["tests/Falls-v0"]
    assert ended.code == 2
    text = "ZeroDivisionError: nobody is here, raised by step of FallsOver, at state 0, action 0"
    assert text in ended.err
    assert "fault of this program" not in ended.err


def test_directories_and_files_are_no_environments(call: Any, tmp_path: Path) -> None:
    Run(tmp_path / "run", small())()
    ended = call("certify", "run", "-o", "c.npz")
    assert ended.code == 2
    assert "no environment 'run': it is a directory; those of runs are read by verify" in ended.err
    ended = call("certify", "Nothing-v0", "-o", "c.npz")
    assert ended.code == 2
    assert "--import MODULE" in ended.err


@pytest.mark.parametrize("guarantee", ["policy", "solver", "learner"])
def test_the_guarantee_chooses_clusters(guarantee: str, call: Any, world: World) -> None:
    words = ["--guarantee", guarantee, "-o", "c.npz", "--json"]
    found = loaded(call("certify", world.lake, *words).out)
    certificate = Certificate.load("c.npz")
    assert certificate.guarantee == guarantee
    assert (
        certificate.n_clusters
        == certify(TabularMDP.load(world.lake), 0.9, guarantee=guarantee).n_clusters
    )
    check_described(found, certificate)
