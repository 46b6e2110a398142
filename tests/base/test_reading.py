"""How an environment is read: one object, the same in Python, commands, runs and specifications."""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    Reading,
    TabularMDP,
    abstract_env,
    certify,
)
from bisim_abstract._app import cli
from bisim_abstract._app.config import Config
from bisim_abstract._app.sources import Source
from bisim_abstract._base.atomic import write_json
from bisim_abstract.wrappers import AbstractedEnv, TabularEnv, enumerate_mdp, extract_mdp

LAKE = "FrozenLake-v1"
FIELDS = {entry.name: entry for entry in fields(Reading)}
HINTS = get_type_hints(Reading)
PARSER = cli._parser()
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(1, 10**6),
    int | None: st.none() | st.integers(1, 10**6),
    # A lone -- is taken away by argparse, and the name of no attribute.
    Sequence[str]: st.lists(
        st.text("ab-_ '\"é", min_size=1).filter(lambda name: name != "--"), max_size=3
    ).map(tuple),
    Sequence[float] | None: st.none()
    | st.lists(st.floats(-2, 2), min_size=1, max_size=4).map(tuple),
}


def values(name: str) -> st.SearchStrategy[Any]:
    """Values of a field: a new field of a known kind needs no line here."""
    choices = FIELDS[name].metadata.get("choices")
    return st.sampled_from(choices) if choices else VALUES[HINTS[name]]


READINGS = st.builds(Reading, **{name: values(name) for name in FIELDS})


def other(name: str) -> Reading:
    """One whose field is not what it is by default."""
    default = FIELDS[name].default
    choices = FIELDS[name].metadata.get("choices")
    kinds: dict[Any, Any] = {
        bool: not default,
        int: 7,
        int | None: 7,
        Sequence[str]: ("steps", "-look"),
        Sequence[float] | None: (0.1, 0.9),
    }
    value = next(x for x in choices if x != default) if choices else kinds[HINTS[name]]
    found = Reading(**{name: value})
    assert found.changes() == {name: value}
    return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake") / "c.npz"
    certify(extract_mdp(LAKE), 0.9).save(path)
    return path


def by_command(config: Config) -> Config:
    return cli._config(PARSER.parse_args(["run", *config.words(), "-o", "x"]))


def by_file(config: Config) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / "config.json", config.header())
        return Config.load(Path(folder) / "config.json")


@given(READINGS)
def test_readings_survive_json_files_and_commands(reading: Reading) -> None:
    assert Reading.of(json.loads(json.dumps(reading.to_dict(), allow_nan=False))) == reading
    config = Config(source=Source(name=LAKE, reading=reading))
    assert by_file(config) == config
    assert by_command(config) == config
    assert hash(reading) == hash(Reading.of(reading.to_dict()))


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_goes_everywhere(
    name: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = other(name)
    assert json.loads(json.dumps(reading.to_dict()))[name] is not None
    config = Config(source=Source(name=LAKE, reading=reading))
    assert json.loads(json.dumps(config.header()))["config"]["source"]["reading"].keys() == {
        *FIELDS
    }
    assert by_file(config).source.reading == by_command(config).source.reading == reading
    # Specifications, of environments that need not be such that they can be read so.
    mdp = extract_mdp(LAKE)
    met: list[Reading] = []

    def extracted(*_: object, reading: Reading) -> TabularMDP:
        met.append(reading)
        return mdp

    monkeypatch.setattr("bisim_abstract.wrappers.tabular.extract_mdp", extracted)
    monkeypatch.setattr(
        "bisim_abstract.wrappers.abstracted._model_of", lambda *args: extracted(reading=args[-1])
    )
    wrappers: list[Callable[[], gym.Env[Any, Any]]] = []
    wrappers.append(lambda: TabularEnv(gym.make(LAKE), reading=reading))
    if reading.terminal == "absorb":
        wrappers.append(lambda: AbstractedEnv(gym.make(LAKE), str(certificate), reading=reading))
    for make in wrappers:
        met.clear()
        spec = make().spec
        assert spec is not None
        gym.make(EnvSpec.from_json(spec.to_json()))
        assert met == [reading, reading]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_described(name: str) -> None:
    described = re.findall(r"^    (\w+):", inspect.cleandoc(Reading.__doc__ or ""), re.MULTILINE)
    assert name in described
    commands = next(x.choices for x in PARSER._actions if isinstance(x.choices, dict))
    assert f"--{name.replace('_', '-')}" in commands["extract"].format_help()
    assert FIELDS[name].metadata["help"]


def test_specifications_are_read_for_real(certificate: Path) -> None:
    reading = Reading(terminal="table", reachable_only=True, seed=3, checks=5)
    env = TabularEnv(gym.make(LAKE), reading=reading)
    assert env.mdp == extract_mdp(LAKE, reading=reading)
    assert env.spec is not None
    again: Any = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.get_wrapper_attr("mdp") == env.mdp
    # Whether all states or the reachable ones are certified, the certificate decides.
    part = Reading(reachable_only=True, action_masks=True)
    assert AbstractedEnv(LAKE, certificate, reading=part).mdp.n_states == 17


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"terminal": "end"}, "terminal must be one of 'absorb', 'table', got 'end'"),
    ({"terminal": ["table"]}, "terminal must be one of"),
    ({"reachable_only": 1}, "reachable_only must be true or false, got 1"),
    ({"action_masks": "yes"}, "action_masks must be true or false, got 'yes'"),
    ({"start": 3}, "start must be a list of probabilities, one for each state, got 3"),
    ({"start": []}, "start must be a list of probabilities"),
    ({"start": ["a"]}, "start must be a list of probabilities"),
    ({"start": [[0.5], [0.5]]}, "start must be a list of probabilities"),
    ({"start": [[0.5], 0.5]}, "start must be a regular array"),
    ({"start": [0.5, float("nan")]}, "start must be finite, got nan"),
    ({"weights": "1,2"}, "weights must be a list of numbers, one for each reward, got '1,2'"),
    ({"weights": []}, "weights must be a list of numbers"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"seed": None}, "seed must be a whole number, got None"),
    ({"checks": 1.5}, r"checks must be a whole number, got 1\.5"),
    ({"checks": -1}, "checks must be at least 0, got -1"),
    ({"max_states": 0}, "max_states must be at least 1, got 0"),
    ({"max_states": "9"}, "max_states must be a whole number, got '9'"),
    ({"freeze": "steps"}, "freeze must be a sequence of attribute names, got 'steps'"),
    ({"freeze": [3]}, "freeze must be a sequence of attribute names"),
    ({"freeze": [""]}, "freeze must be a sequence of attribute names"),
    ({"freeze": None}, "freeze must be a sequence of attribute names, got None"),
    ({"starts": 0}, "starts must be between 1 and 1000000, got 0"),
    ({"starts": True}, "starts must be a whole number, got True"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_wrong_values_are_refused_wherever_they_come_from(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Reading(**given)
    with pytest.raises(InvalidArgumentError, match=words):
        Source(name=LAKE, reading=given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=words):
        TabularEnv(gym.make(LAKE), reading=given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_state": 3}, "reading has no option 'max_state'; did you mean max_states?"),
        ({"colour": 3}, "reading has no option 'colour'; known are terminal, reachable_only"),
        ({3: 3}, "reading has no option 3"),
        (3, r"reading must be Reading\(\.\.\.\), such as Reading\(seed=3\), got 3"),
        ([3], r"reading must be Reading\(\.\.\.\)"),
    ],
)
def test_what_is_no_reading(given: Any, words: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: extract_mdp(LAKE, reading=given),
        lambda: enumerate_mdp(gym.make(LAKE), reading=given),
        lambda: abstract_env(LAKE, gamma=0.9, reading=given),
        lambda: TabularEnv(gym.make(LAKE), reading=given),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=words):
            call()


def test_readings_are_values() -> None:
    assert Reading(start=np.array([0.5, 0.5])).start == (0.5, 0.5)  # type: ignore[arg-type]
    assert Reading(freeze=["a"]) == Reading(freeze=("a",))
    assert type(Reading(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    assert Reading.of(None) == Reading()
    with pytest.raises(FrozenInstanceError):
        Reading().seed = 3  # type: ignore[misc]


def test_an_abstraction_in_one_call_takes_few_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(inspect.signature(abstract_env).parameters) <= 12
    ready = abstract_env(LAKE, gamma=0.9, keep=0.9, reading=Reading(reachable_only=True))
    assert isinstance(ready.certificate, Certificate)
    monkeypatch.setattr("bisim_abstract._app.abstract_env.certify", None)  # nothing is done first
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'kep'$"):
        abstract_env(LAKE, gamma=0.9, kep=0.9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'seed'; it is one of Reading: reading=Reading\(seed="):
        abstract_env(LAKE, gamma=0.9, seed=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="give keep or max_loss, not both"):
        abstract_env(LAKE, gamma=0.9, keep=0.9, max_loss=0.1)
    with pytest.raises(InvalidArgumentError, match="terminal='table' follows the table beyond"):
        abstract_env(LAKE, gamma=0.9, reading=Reading(terminal="table"))
