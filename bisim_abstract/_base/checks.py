"""Argument checks that several modules share: each names argument, rule and value."""

from __future__ import annotations

import importlib
import math
import operator
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.text import short
from bisim_abstract._base.types import IntArray, SeedLike
from bisim_abstract.errors import InvalidArgumentError, MissingDependency


def check_gamma(gamma: float) -> float:
    """Return the discount as a float; it must lie in [0, 1) and not be subnormal."""
    if isinstance(gamma, list | tuple | np.ndarray) and np.ndim(gamma) > 0:
        raise InvalidArgumentError(
            f"gamma must be a real number, got an array of shape {np.shape(gamma)}; subjects come "
            "in this order: model, certificate or clusters, gamma, policy"
        )
    value = check_real("gamma", gamma)
    if not 0.0 <= value < 1.0:
        raise InvalidArgumentError(
            f"gamma must lie in [0, 1), got {value!r}; "
            "the metric and the values are not finite at 1 and beyond"
        )
    # Products with less lose most of their digits, and no bound on rounding holds for them.
    if 0.0 < value < sys.float_info.min:
        raise InvalidArgumentError(
            f"gamma must be 0 or at least {sys.float_info.min:.4g}, got {value!r}: floats below "
            "that have fewer digits than others"
        )
    return value


def check_real(name: str, value: float) -> float:
    """Return `value` as a finite float; truth values and texts are none."""
    try:
        if isinstance(value, bool | np.bool_ | str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} must be a real number, got {short(value)}") from None
    except OverflowError:
        raise InvalidArgumentError(f"{name} must be finite, got a number beyond floats") from None
    if not math.isfinite(number):
        raise InvalidArgumentError(f"{name} must be finite, got {number!r}")
    return number


def check_positive(name: str, value: float) -> float:
    """Return `value` as a finite float above zero."""
    number = check_real(name, value)
    if number <= 0.0:
        raise InvalidArgumentError(f"{name} must be above 0, got {number!r}")
    return number


def check_fraction(name: str, value: float) -> float:
    """Return `value` as a float in [0, 1]."""
    number = check_real(name, value)
    if not 0.0 <= number <= 1.0:
        raise InvalidArgumentError(f"{name} must lie in [0, 1], got {number!r}")
    return number


def check_int(name: str, value: int, *, low: int, high: int | None = None) -> int:
    """Return `value` as an int between `low` and `high` (both included); truth values are none."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} must be a whole number, got {short(value)}") from None
    if number < low or (high is not None and number > high):
        rule = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidArgumentError(f"{name} must be {rule}, got {number}")
    return number


def check_memory_limit(memory_limit: int | None) -> int | None:
    """Return a limit in bytes, at least 1, or None."""
    return None if memory_limit is None else check_int("memory_limit", memory_limit, low=1)


def check_states(name: str, values: npt.ArrayLike, n_states: int) -> IntArray:
    """Return state indices as int64; they must be whole numbers in [0, n_states)."""
    index = as_array(name, values)
    if index.size and index.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{name} must be state indices, got dtype {index.dtype}")
    bad = np.flatnonzero((index < 0) | (index >= n_states)) if index.size else index
    if bad.size:
        raise InvalidArgumentError(
            f"{name} must lie in [0, {n_states}), got {index.ravel()[bad[0]]}"
        )
    return index.astype(np.int64)


def as_array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return anything like an array as one; rows of different lengths are none."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} must be a regular array: {error}") from None


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidArgumentError(f"{name} must be one of {listed}, got {short(value)}")
    return value


def check_callback(callback: object) -> None:
    """Refuse what cannot be called with a report."""
    if callback is not None and not callable(callback):
        raise InvalidArgumentError(
            f"callback must be a function of one report of progress, or None, got {short(callback)}"
        )


def check_env_args(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of an environment by name."""
    if not isinstance(env_args, Mapping) or not all(isinstance(name, str) for name in env_args):
        raise InvalidArgumentError(
            "env_args must be a mapping from names to values, such as {'map_name': '8x8'}, got "
            f"{short(env_args)}"
        )
    return dict(env_args)


def check_path(name: str, path: str | Path) -> Path:
    """Return the path of a file; numbers, which the system takes for open files, are none."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgumentError(f"{name} must be the name of a file, got {short(path)}")
    return Path(path)


def check_suffix(name: str, path: str | Path, suffixes: Iterable[str]) -> str:
    """Return the ending of a file's name, in small letters, if it is one of these."""
    suffix = check_path(name, path).suffix.lower()
    listed = list(suffixes)
    if suffix not in listed:
        others = f"{', '.join(listed[:-1])} or {listed[-1]}"
        raise InvalidArgumentError(
            f"{name} must end in {others}, which says what is written, got {str(path)!r}"
        )
    return suffix


def as_generator(seed: SeedLike) -> np.random.Generator:
    """Turn a seed into a Generator; an existing Generator is used as it is."""
    if isinstance(seed, np.random.Generator):
        return seed
    if seed is not None:
        seed = check_int("seed", seed, low=0)
    return np.random.default_rng(seed)


def require(module: str, *, extra: str | None = None, package: str | None = None) -> ModuleType:
    """Import a module, or say how to install it.

    Args:
        module: Its name.
        extra: The extra of this package that brings it, if one does.
        package: What pip calls it, if that differs and no extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # This package is on no index: its name would install nothing, or a stranger's package.
        what = f"-e '.[{extra}]'" if extra else package or module
        raise MissingDependency(
            f"{module} is needed here and could not be imported ({error}); "
            f"run in your clone of bisim_abstract: pip install -c constraints.txt {what}"
        ) from error
