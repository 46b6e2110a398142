"""Options of model files, as words and in what they are read into."""

from __future__ import annotations

from typing import Any

import pytest

from bisim_abstract._app.cli import _constants, _joined, _parser, _source
from bisim_abstract._app.config import Config
from bisim_abstract._app.sources import Source
from bisim_abstract.errors import InvalidArgumentError
from tests.support.commands import check_refused


def source_of(*words: str) -> Source:
    return _source(_parser().parse_args(_joined(["extract", "m.prism", *words])))


def test_options_of_model_files_reach_the_source() -> None:
    found = source_of(
        *("--const", "N=3,p=0.5", "--const", "fast=true", "--reward", "time"),
        *("--reward", "-cost", "--goal", "done", "--actions", "positions"),
    )
    assert found == Source(
        name="m.prism",
        constants={"N": 3, "p": 0.5, "fast": True},
        reward=("time", "-cost"),
        goal="done",
        actions="positions",
    )
    assert source_of() == Source(name="m.prism")


@pytest.mark.parametrize(
    "name", ["extract", "train", "certify", "verify", "solve", "report", "run"]
)
def test_every_command_that_reads_a_model_knows_them(name: str, call: Any) -> None:
    words = ["certificate.npz"] if name in ("verify", "report") else []
    ended = call(name, "FrozenLake-v1", *words, "--goal", "done", *["-o", "out"] * (name == "run"))
    if not words:
        check_refused(ended, "FrozenLake-v1 is no file: goal go with model files")
    else:  # a source is looked at before the certificate is
        check_refused(ended, "is no file")


def test_the_words_of_a_run_ask_for_the_same() -> None:
    source = Source(name="m.jani", constants={"K": 2, "b": False}, reward=("-cost",), goal="g")
    config = Config(source=source, learn=0)
    options = _parser().parse_args(_joined(["run", *config.words(), "-o", "x"]))
    assert _source(options) == source


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {}),
        (["N=3"], {"N": 3}),
        (["N=-3, p = 1e-3"], {"N": -3, "p": 1e-3}),
        (["a=true", "b=false,c=True"], {"a": True, "b": False, "c": "True"}),
        (["x=1_000,y=٣,z=1/3"], {"x": "1_000", "y": "٣", "z": "1/3"}),
        (["x=a=b"], {"x": "a=b"}),
    ],
)
def test_constants(given: list[str], expected: dict[str, Any]) -> None:
    found = _constants(given)
    assert found == expected
    assert [type(v) for v in found.values()] == [type(v) for v in expected.values()]


@pytest.mark.parametrize("given", [[""], ["N"], ["N="], ["=3"], ["N=1,"], ["N=1", "N=2"]])
def test_bad_constants(given: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="--const"):
        _constants(given)


def test_costs_are_joined_and_nothing_else() -> None:
    assert _joined(["--reward", "-cost", "-o", "x"]) == ["--reward=-cost", "-o", "x"]
    for words in (["--reward", "-o", "x"], ["--reward", "--goal"], ["-o", "-x"], ["--reward", "-"]):
        assert _joined(words) == words
