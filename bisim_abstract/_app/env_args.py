"""Arguments of environments as people write them: `key=value`, read by what the environment takes.

`is_slippery=no` would be a text, hence true, hence the opposite of what was meant. So text is taken
only where the constructor of the environment says that it takes text.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from bisim_abstract._app.sources import RESERVED, Source
from bisim_abstract._base.checks import require
from bisim_abstract._base.text import SHORT, did_you_mean, short
from bisim_abstract.errors import InvalidArgumentError


class _Parameter(NamedTuple):
    """What is known about an argument of an environment.

    Attributes:
        takes_text: None if nothing says so or otherwise.
        words: What it takes, for people; empty if that is not known.
    """

    takes_text: bool | None
    words: str


UNKNOWN = _Parameter(None, "")
KINDS = ((bool, "true or false"), (int, "a whole number"), (float, "a number"), (str, "text"))
# What `gymnasium.make` takes besides the constructor's.
OF_MAKE = {"max_episode_steps": _Parameter(False, "a whole number or null")}


def read_env_args(name: str, entries: Iterable[str]) -> dict[str, Any]:
    """Arguments of an environment from words of the form key=value.

    A value is what JSON or Python make of it: `false` or `False`, `null` or `None`, numbers,
    lists, objects, text in quotes. Anything else is text, and only for an argument that takes
    text: `is_slippery=no` would be true otherwise.

    Args:
        name: The environment's id, or a file, which takes none.
        entries: The words.

    Raises:
        InvalidArgumentError: If a word has no value, or the environment takes no such argument
            or no text there.
    """
    given: dict[str, tuple[Any, bool]] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        if not equals or not key.isidentifier():
            raise InvalidArgumentError(f"--env-arg must be key=value, got {short(entry)}")
        if key in given:
            raise InvalidArgumentError(f"--env-arg {key} is given twice; give it once")
        given[key] = _literal(text)
    found = _parameters(name) if given and not Source(name=name).is_file else None
    if found is not None:
        known, is_open = found
        for key, (value, is_bare) in given.items():
            if key not in RESERVED:
                _check_argument(name, key, value, known, is_bare=is_bare, is_open=is_open)
    return {key: value for key, (value, _) in given.items()}


def _literal(text: str) -> tuple[Any, bool]:
    """A value as JSON or Python write it; else the text itself, and True."""
    for read in (json.loads, _python_value):
        try:
            return read(text), False
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue  # not written this way
    return text, True


def _python_value(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python remarks on odd numbers before it refuses them
        value = ast.literal_eval(text.strip())
    if not isinstance(value, bool | int | float | str | list | tuple | dict | None):
        raise TypeError(f"{text} is no value that JSON has too")
    return value


def _check_argument(
    name: str,
    key: str,
    value: Any,
    known: Mapping[str, _Parameter],
    *,
    is_bare: bool,
    is_open: bool,
) -> None:
    """Refuse an argument that the environment does not have, and text where it takes none."""
    if key not in known and not is_open:
        hint = did_you_mean(key, known) or (
            f"; it takes {', '.join(known)}" if known else "; it takes none"
        )
        raise InvalidArgumentError(f"{name} takes no argument {short(key)}{hint}")
    parameter = known.get(key, UNKNOWN)
    if value is None and parameter.takes_text is False and "null" not in parameter.words:
        raise InvalidArgumentError(f"argument {key} of {name} takes {parameter.words}, got null")
    if not isinstance(value, str) or parameter.takes_text:
        return
    if parameter.takes_text is False:
        raise InvalidArgumentError(
            f"argument {key} of {name} takes {parameter.words}, got {short(value)}"
        )
    if is_bare:
        quoted = json.dumps(value)
        quoted = quoted if len(quoted) <= SHORT else '"..."'
        raise InvalidArgumentError(
            f"argument {key} of {name} is not known to take text, and {short(value)} is neither a "
            f"number, true, false, null nor a list; if text is meant, quote it: '{key}={quoted}'"
        )


def _parameters(name: str) -> tuple[dict[str, _Parameter], bool] | None:
    """What an environment takes, and whether it may take more; None if it cannot be looked up.

    Then making it says what is wrong.
    """
    from gymnasium.envs.registration import load_env_creator

    spec = _spec(name)
    if spec is None or spec.entry_point is None:
        return None
    entry: Any = spec.entry_point
    if isinstance(entry, str):
        try:
            entry = load_env_creator(entry)
        except (ImportError, AttributeError):
            return None
    known: dict[str, _Parameter] = {}
    is_open = False
    for depth, function in enumerate(_constructors(entry)):
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return known, True
        hints = _hints(function)
        entries = list(signature.parameters.values())
        if inspect.isclass(entry):
            entries = entries[1:]  # self
        takes_more = any(x.kind is x.VAR_KEYWORD for x in entries)
        for x in entries:
            if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY):
                # What is registered with the id stands in for the default.
                default = spec.kwargs.get(x.name, x.default)
                known.setdefault(x.name, _described(hints.get(x.name, x.annotation), default))
        if depth == 0:
            is_open = takes_more
        if not takes_more:
            break
    for key, value in spec.kwargs.items():
        known.setdefault(key, _described(inspect.Parameter.empty, value))
    return known | OF_MAKE, is_open


def _spec(name: str) -> Any:
    """The registered specification behind an id, as making it would find it; None without one."""
    import gymnasium as gym
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    from bisim_abstract.wrappers._make import MINIGRID, SAME_DYNAMICS

    if name.startswith(MINIGRID):
        require("minigrid", extra="minigrid")  # importing it registers its environments
    names = [name, *(other for pair in SAME_DYNAMICS if name in pair for other in pair)]
    try:
        space, base, version = parse_env_id(name)
    except gym.error.Error:
        return None
    if version is None:
        newest = find_highest_version(space, base)
        names.append(get_env_id(space, base, newest))
    return next((gym.registry[x] for x in names if x in gym.registry), None)


def _constructors(entry: Any) -> list[Callable[..., Any]]:
    """A function itself; of a class its constructor, and those that `**kwargs` may go on to."""
    if not inspect.isclass(entry):
        return [entry]
    return [
        vars(cls)["__init__"]
        for cls in entry.__mro__
        if "__init__" in vars(cls) and cls is not object
    ]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved annotations, but for those whose names are not there at run time."""
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(alone, getattr(function, "__globals__", {}))
        except (NameError, TypeError, AttributeError, SyntaxError):
            continue  # a type checker's import, most likely: the default has to do
    return found


def _described(annotation: Any, default: Any) -> _Parameter:
    """What an annotation says; else the kind of the default."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    if str in members or any(typing.get_origin(x) is typing.Literal for x in members):
        return _Parameter(True, "text")
    simple = [words for kind, words in KINDS if kind in members]
    if simple and len(simple) + (type(None) in members) == len(members):
        return _Parameter(False, " or ".join([*simple, *["null"] * (type(None) in members)]))
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        for kind, words in KINDS:
            if type(default) is kind:
                return _Parameter(kind is str, words)
    return UNKNOWN
