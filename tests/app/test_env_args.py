"""Arguments of environments: what JSON and Python write, what is text, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest

from bisim_abstract import InvalidArgumentError
from bisim_abstract._app.env_args import read_env_args
from bisim_abstract._app.sources import Source

LAKE = "FrozenLake-v1"


class Bare(gym.Env[Any, Any]):
    """Nothing annotated, nothing else taken."""

    def __init__(self, size=3, flag=False, name="a", anything=None, scale=0.5) -> None:  # type: ignore[no-untyped-def]
        pass


class Typed(gym.Env[Any, Any]):
    def __init__(
        self,
        *,
        size: int,
        label: str | None = None,
        flag: bool | None = None,
        names: list[str] | None = None,
        odd: NoSuchName = "x",  # type: ignore[name-defined] # noqa: F821
        **kwargs: Any,
    ) -> None:
        pass


class Child(Typed):
    """Hands on what it does not know."""

    def __init__(self, colour: str, **kwargs: Any) -> None:
        super().__init__(size=1, **kwargs)


def made(flag: bool = True, title: str = "") -> gym.Env[Any, Any]:
    return Bare()


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    entries = {
        "tests/Bare-v0": Bare,
        "tests/Bare-v3": Bare,
        "tests/Typed-v0": Typed,
        "tests/Child-v0": Child,
        "tests/Made-v0": made,
        "tests/Missing-v0": "no_such_module_of_tests:Env",
    }
    for name, entry in entries.items():
        gym.register(name, entry_point=entry)  # type: ignore[arg-type]
    preset: Any = Child
    gym.register("tests/Preset-v0", entry_point=preset, kwargs={"extra": True, "shape": "round"})
    yield
    for name in (*entries, "tests/Preset-v0"):
        gym.registry.pop(name)


def read(name: str, /, **words: str) -> dict[str, Any]:
    return read_env_args(name, [f"{key}={text}" for key, text in words.items()])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("false", False),
        ("False", False),
        (" False ", False),
        ("null", None),
        ("None", None),
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("1_000", 1000),
        ("[1, true]", [1, True]),
        ("[1, True, None]", [1, True, None]),
        ("(1, 'a')", (1, "a")),
        ('{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("{'a': False}", {"a": False}),
        ('"8x8"', "8x8"),
        ("'False'", "False"),
        ('"3"', "3"),
    ],
)
def test_values_of_json_and_python(text: str, value: Any) -> None:
    found = read("tests/Bare-v0", anything=text)["anything"]
    assert (found, type(found)) == (value, type(value))


def test_false_is_not_a_text() -> None:
    """The trap that this module is about: the text "False" is true."""
    for text in ("False", "false"):
        source = Source(name=LAKE, env_args=read(LAKE, is_slippery=text))
        assert source.model() == Source(name=LAKE, env_args={"is_slippery": False}).model()


@pytest.mark.parametrize("text", ["no", "FALSE", "off", "'no'", '"False"', "f"])
def test_text_is_no_truth_value(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is_slippery of FrozenLake-v1 takes true or f"):
        read(LAKE, is_slippery=text)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (LAKE, "map_name"),  # by its default
        (LAKE, "render_mode"),  # by its annotation
        ("FrozenLake8x8-v1", "map_name"),
        ("FrozenLake", "map_name"),  # the newest version is made
        ("tests/Bare-v0", "name"),
        ("tests/Typed-v0", "label"),
        ("tests/Typed-v0", "odd"),  # an annotation that says nothing here
        ("tests/Child-v0", "colour"),
        ("tests/Child-v0", "label"),  # goes on to the parent
        ("tests/Made-v0", "title"),
        ("tests/Preset-v0", "shape"),  # registered with the id
    ],
)
def test_text_for_what_takes_text(name: str, key: str) -> None:
    for text in ("8x8", "no", "a b", "1/2", "ä"):
        assert read(name, **{key: text}) == {key: text}


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("tests/Bare-v0", "size", "takes a whole number, got 'abc'"),
        ("tests/Bare-v0", "flag", "takes true or false, got 'abc'"),
        ("tests/Bare-v0", "scale", "takes a number, got 'abc'"),
        ("tests/Bare", "size", "takes a whole number"),
        ("tests/Typed-v0", "size", "takes a whole number"),
        ("tests/Typed-v0", "flag", "takes true or false or null"),
        ("tests/Child-v0", "size", "takes a whole number"),
        ("tests/Made-v0", "flag", "takes true or false"),
        ("tests/Preset-v0", "extra", "takes true or false"),
        (LAKE, "max_episode_steps", "takes a whole number or null"),
        ("Taxi-v3", "is_rainy", "takes true or false"),  # whatever version there is
    ],
)
def test_text_for_what_takes_none(name: str, key: str, words: str) -> None:
    for text in ("abc", "'abc'"):
        with pytest.raises(InvalidArgumentError, match=f"{key} of {name} {words}"):
            read(name, **{key: text})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tests/Bare-v0", "anything"),
        ("tests/Typed-v0", "names"),
        ("tests/Typed-v0", "unheard_of"),
        (LAKE, "desc"),
    ],
)
def test_text_for_what_is_not_known_must_be_quoted(name: str, key: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"if text is meant, quote it: '{key}=\"no\"'"):
        read(name, **{key: "no"})
    assert read(name, **{key: '"no"'}) == {key: "no"}


def test_names_that_are_not_taken() -> None:
    with pytest.raises(InvalidArgumentError, match="no argument 'is_slipery'; did you mean is_sli"):
        read(LAKE, is_slipery="true")
    with pytest.raises(InvalidArgumentError, match=r"'colour'; it takes size, flag, name, anythi"):
        read("tests/Bare-v0", colour="1")
    with pytest.raises(InvalidArgumentError, match="'is_slippery'"):
        read("tests/Made-v0", is_slippery="false")
    # What hands on what it does not know may take anything.
    assert read("tests/Typed-v0", colour="1") == {"colour": 1}


@pytest.mark.parametrize("name", ["Nope-v0", "mod:Env-v0", "a b", "tests/Missing-v0", "x.npz"])
def test_what_cannot_be_looked_up_is_left_to_whoever_makes_it(name: str) -> None:
    assert read(name, a="b", c="False") == {"a": "b", "c": False}


@pytest.mark.parametrize("text", ["1if 2else 3", "0x1for", "{1}", "1j", "b'x'", "...", "[" * 9999])
def test_odd_texts_are_texts(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read("tests/Bare-v0", name=text) == {"name": text}


@pytest.mark.parametrize("word", ["a", "=1", "2x=1", "a-b=1", ""])
def test_words_that_are_no_pairs(word: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be key=value"):
        read_env_args("tests/Bare-v0", [word])
    with pytest.raises(InvalidArgumentError, match="size is given twice"):
        read_env_args("tests/Bare-v0", ["size=1", "size=2"])


def test_nothing_is_no_truth_value() -> None:
    """None would pass for false; where the constructor takes it, it is taken."""
    with pytest.raises(InvalidArgumentError, match=r"is_slippery of .* takes true or false, got"):
        read(LAKE, is_slippery="None")
    assert read("tests/Typed-v0", size="1", flag="null") == {"size": 1, "flag": None}
