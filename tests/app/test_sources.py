"""Sources: ids with their arguments, and files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from bisim_abstract import InvalidArgumentError, Reading, TabularMDP, certify
from bisim_abstract._app.sources import Source, kind_of
from bisim_abstract.errors import ExtractionError, FileFormatError
from bisim_abstract.parts import read_bridge, sparse_mdp
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp


def saved(folder: Path, name: str = "m.npz") -> tuple[str, TabularMDP]:
    mdp = sparse_mdp(5, 2, support=2, seed=0)
    mdp.save(folder / name)
    return str(folder / name), mdp


def test_ids() -> None:
    source = Source(name="FrozenLake-v1")
    assert not source.is_file
    assert source.model() == extract_mdp("FrozenLake-v1")
    env = source.env()
    assert isinstance(env, gym.Env)
    assert env.spec is not None
    assert env.spec.id == "FrozenLake-v1"
    assert source.env() is not env


def test_arguments_reach_the_environment() -> None:
    name = "bisim_abstract/RoomsGrid-v0"
    source = Source(name=name, env_args={"side": 6, "room_size": 3, "noise": 0.2})
    expected = RoomsGridEnv(side=6, room_size=3, noise=0.2).to_mdp()
    assert source.model().fingerprint == expected.fingerprint
    inner: Any = source.env().unwrapped
    assert (inner.side, inner.room_size) == (6, 3)


@pytest.mark.parametrize("seed", [0, 7])
def test_backgrounds(seed: int) -> None:
    source = Source(name="FrozenLake-v1", backgrounds=4, reading=Reading(seed=seed))
    env = source.env()
    assert isinstance(env, Distractor)
    assert env.n_background == 4
    expected = extract_mdp(Distractor(gym.make("FrozenLake-v1"), n_background=4, seed=seed))
    assert source.model() == expected
    other = Source(name="FrozenLake-v1", backgrounds=4, reading=Reading(seed=seed + 1)).model()
    assert other.fingerprint != expected.fingerprint


def test_options_of_the_extraction() -> None:
    assert (
        Source(name="FrozenLake-v1", reading=Reading(terminal="table")).model().terminal_state
        is None
    )
    assert Source(name="FrozenLake-v1", reading=Reading(reachable_only=True)).model().n_states == 12
    with pytest.raises(ExtractionError, match="more than"):
        Source(name="MiniGrid-Empty-5x5-v0", reading=Reading(max_states=3)).model()


def test_progress_of_an_enumeration_is_told() -> None:
    seen: list[Any] = []
    Source(name="MiniGrid-Empty-5x5-v0").model(callback=seen.append)
    assert seen


def test_environments_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(RoomsGridEnv, "close", lambda self: closed.append(True))
    name = "bisim_abstract/RoomsGrid-v0"
    Source(name=name, env_args={"side": 4, "room_size": 2}).model()
    assert closed == [True]
    with pytest.raises(ExtractionError):
        Source(name="CartPole-v1").model()


@pytest.mark.parametrize("name", ["m.npz", "m", "FrozenLake-v1"])
def test_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, mdp = saved(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    source = Source(name=name)
    assert source.is_file
    assert source.model() == mdp
    env = source.env()
    assert extract_mdp(env) == mdp
    assert isinstance(env, TimeLimit)  # models need not end
    (tmp_path / name).unlink()
    if name.endswith(".npz"):  # else it would be taken for an id
        assert extract_mdp(source.env(mdp)) == mdp


def test_models_that_cannot_be_stepped() -> None:
    ids = TabularMDP.from_dense(np.eye(2)[:, None], [0.0, 1.0], state_ids=[-1, -1])
    source = Source(name="m.npz")
    assert source.can_be_abstracted
    assert not source.can_be_learned_on(ids)
    assert source.can_be_learned_on(TabularMDP.from_dense(np.eye(2)[:, None], [0.0, 1.0]))
    assert Source(name="FrozenLake-v1").can_be_learned_on(ids)  # of which it is not the model
    assert not Source(name="FrozenLake-v1", reading=Reading(terminal="table")).can_be_learned_on(
        ids
    )


def test_bridge_files(tmp_path: Path) -> None:
    path = tmp_path / "b.npz"
    np.savez(path, transitions=np.array([[1], [-1], [0]]), rewards=np.ones((3, 1)))
    assert Source(name=str(path)).model() == read_bridge(path)
    # State 2 cannot be reached from the start.
    small = Source(name=str(path), reading=Reading(reachable_only=True)).model()
    assert small.rewards.tolist() == [[1.0], [1.0], [0.0]]
    assert small.state_ids[:2].tolist() == [0, 1]


def test_missing_files_are_files(tmp_path: Path) -> None:
    source = Source(name=str(tmp_path / "missing.npz"))
    assert source.is_file
    with pytest.raises(FileNotFoundError):
        source.model()
    (tmp_path / "bad.npz").write_bytes(b"bad")
    with pytest.raises(FileFormatError, match=r"bad\.npz"):
        Source(name=str(tmp_path / "bad.npz")).model()
    folder = Source(name=str(tmp_path))
    assert not folder.is_file
    with pytest.raises(ExtractionError, match="no environment"):
        folder.model()


def test_ids_with_a_colon_import_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_of_tests.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = Source(name="trap_of_tests:Some-v0")
    for use in (source.env, source.model):
        with pytest.raises(ExtractionError, match=r"--import trap_of_tests.*'Some-v0'"):
            use()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": ""}, "an id or a path"),
        ({"name": 3}, "an id or a path"),
        ({"name": None}, "an id or a path"),
        ({"env_args": [1]}, "env_args must be a mapping"),
        ({"env_args": None}, "env_args must be a mapping"),
        ({"reading": {"terminal": "end"}}, "terminal must be one of"),
        ({"reading": {"max_states": 0}}, "max_states must be at least 1"),
        ({"reading": {"max_states": 1.5}}, "max_states must be a whole number"),
        ({"reading": {"seed": -1}}, "seed must be at least 0"),
        ({"reading": {"seed": None}}, "seed must be a whole number"),
        ({"backgrounds": 0}, "backgrounds must be at least 1"),
        ({"backgrounds": "2"}, "backgrounds must be a whole number"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Source(**{"name": "FrozenLake-v1"} | settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"env_args": {"a": 1}},
        {"backgrounds": 2},
        {"reading": Reading(terminal="table")},
        {"reading": Reading(action_masks=True)},
        {"reading": Reading(start=(1.0,))},
        {"reading": Reading(freeze=())},
        {"reading": Reading(starts=1)},
    ],
)
def test_files_take_no_arguments(settings: dict[str, Any], tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    with pytest.raises(InvalidArgumentError, match="is a file"):
        Source(name=path, **settings)


ENDINGS = ["m.umb", "m.nm", "m.pm", "m.sm", "m.prism", "m.jani", "m.drn", "M.PRISM", "m.npz"]


@pytest.mark.parametrize("name", ENDINGS)
def test_model_files_are_known_by_their_endings(name: str, tmp_path: Path) -> None:
    for path in (name, str(tmp_path / name)):
        source = Source(name=path)
        assert source.is_file
        with pytest.raises(InvalidArgumentError, match="is a file"):
            Source(name=path, env_args={"a": 1})
    assert kind_of(tmp_path / name) == ("" if name == "m.npz" else "model")


def test_what_a_model_file_is_read_with() -> None:
    source = Source(name="m.prism")
    assert source.options == {}
    source = Source(
        name="m.prism",
        constants={"N": 3, "p": 0.5, "fast": True, "mode": "a"},
        reward=("-cost",),
        goal="done",
        actions="positions",
    )
    assert source.options == {
        "constants": {"N": 3, "p": 0.5, "fast": True, "mode": "a"},
        "reward": "-cost",
        "goal": "done",
        "actions": "positions",
    }
    several: Any = ["time", "-cost"]
    assert Source(name="m.umb", reward=several).options == {"reward": ["time", "-cost"]}
    assert Source(name="m.umb", reward=several).reward == ("time", "-cost")


READINGS: list[tuple[dict[str, Any], str]] = [
    ({"constants": {"N": 1}}, "constants"),
    ({"reward": ("time",)}, "reward"),
    ({"goal": "done"}, "goal"),
    ({"actions": "positions"}, "actions"),
]


@pytest.mark.parametrize(("settings", "word"), READINGS)
def test_environments_are_not_read_so(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"is no file: {word} go with model files"):
        Source(name="FrozenLake-v1", **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"constants": [1]}, "constants must have names"),
        ({"constants": {1: 1}}, "constants must have names"),
        ({"constants": {"N": None}}, "constant N must be a number, true, false or text"),
        ({"constants": {"N": [1]}}, "constant N"),
        ({"constants": {"N": float("nan")}}, "got NaN"),
        ({"constants": {"N": float("inf")}}, "got inf"),
        ({"reward": "time"}, "reward must be a list of names"),
        ({"reward": [""]}, "reward must be a list of names"),
        ({"reward": [3]}, "reward must be a list of names"),
        ({"goal": ""}, "goal must be a label"),
        ({"goal": 3}, "goal must be a label"),
        ({"actions": "order"}, "actions must be one of"),
    ],
)
def test_bad_readings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Source(**{"name": "m.prism"} | settings)


def test_sources_are_values() -> None:
    source = Source(name="FrozenLake-v1", env_args={"map_name": "8x8"})
    assert source == Source(name="FrozenLake-v1", env_args={"map_name": "8x8"})
    assert source != Source(name="FrozenLake-v1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"foo": 1}, "does not take these arguments"),
        ({"map_name": "9x9"}, "9x9"),
        ({"desc": []}, "FrozenLake-v1"),
    ],
)
def test_arguments_that_do_not_fit(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ExtractionError, match=words):
        Source(name="FrozenLake-v1", env_args=args).model()


@pytest.mark.parametrize("name", ["id", "env_id", "disable_env_checker"])
def test_arguments_that_are_not_the_environments(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"may not set {name}$"):
        Source(name="FrozenLake-v1", env_args={name: "x"})


def test_arguments_nested_too_deeply_are_refused() -> None:
    """Found by fuzzing: JSON holds them, but recursion over them later fails."""
    value: Any = 0
    for _ in range(400):
        value = [value]
    with pytest.raises(InvalidArgumentError, match="nested"):
        Source(name="FrozenLake-v1", env_args={"desc": value})
    assert Source(name="FrozenLake-v1", env_args={"desc": [["SF", "HG"]]}).env_args


def test_arguments_are_what_a_file_would_give_back() -> None:
    """Else a run that is resumed would make another environment than the one that began it."""
    source = Source(name="FrozenLake-v1", env_args={"desc": ("SF", "HG")})
    assert source.env_args == {"desc": ["SF", "HG"]}
    with pytest.raises(InvalidArgumentError, match="desc must have text as keys"):
        Source(name="FrozenLake-v1", env_args={"desc": [{1: "S"}]})


def test_kinds_of_files(tmp_path: Path) -> None:
    path, mdp = saved(tmp_path)
    certify(mdp, 0.9).save(tmp_path / "c.npz")
    np.savez(tmp_path / "b.npz", transitions=np.array([[-1]]), rewards=np.ones((1, 1)))
    np.savez(tmp_path / "other.npz", header=np.frombuffer(b"[]", np.uint8))
    (tmp_path / "text.npz").write_text("text")
    names = ("m.npz", "b.npz", "c.npz", "other.npz", "text.npz", "missing.npz", "")
    assert [kind_of(tmp_path / name) for name in names] == [
        "model",
        "model",
        "certificate",
        *[""] * 4,
    ]
    assert kind_of(path) == "model"
