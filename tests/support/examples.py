"""How many cases are drawn, how they are named, and Hypothesis without what is left to chance."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, TypeVar

import pytest
from hypothesis.internal.conjecture import providers

F = TypeVar("F", bound=Callable[..., Any])
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "few")


def cases(many: int, *, few: int | None = None) -> int:
    """How many of its own cases a test draws, by the profile; `few` is a fifth, but 4 at least.

    Such a test is marked `drawn`, by which `make test-slow` selects it.
    """
    return many if PROFILE == "many" else few or max(-(-many // 5), min(many, 4))


def seeds(many: int, *, few: int | None = None) -> Callable[[F], F]:
    """Run a test once for each seed, of which the profile says how many there are."""
    chosen = pytest.mark.parametrize("seed", range(cases(many, few=few)))
    return lambda test: pytest.mark.drawn(chosen(test))


def grid(**axes: Iterable[object]) -> Callable[[F], F]:
    """Run a test for each point of a grid; by the profile `few` for as few as every seventh.

    Every value of every axis occurs in any case, seeds excepted.
    """
    values = {name: list(axis) for name, axis in axes.items()}
    points = list(product(*(range(len(axis)) for axis in values.values())))
    for step in (1,) if PROFILE == "many" else (7, 5, 3, 2, 1):
        some = points[::step]
        used = dict(zip(values, map(set, zip(*some, strict=True)), strict=True))
        if all(len(used[name]) == len(values[name]) for name in values if name != "seed"):
            break
    rows = [[axis[k] for axis, k in zip(values.values(), row, strict=True)] for row in some]
    chosen = pytest.mark.parametrize(tuple(values), rows)
    return lambda test: pytest.mark.drawn(chosen(test))


@contextmanager
def naming(**case: object) -> Iterator[None]:
    """Name the case of a loop in whatever fails."""
    try:
        yield
    except BaseException as error:
        error.add_note("case: " + ", ".join(f"{name}={value!r}" for name, value in case.items()))
        raise


def forget_local_constants() -> None:
    """Draw no constants from the source of the modules that happen to be loaded.

    Hypothesis collects the literals of all local modules in `sys.modules` and mixes them into
    what it draws. So examples would change with the selection of test files, with their order,
    and with every edit of the package: of a mutant, too.
    """
    nothing = providers._local_constants
    assert len(nothing) == 0, "constants were collected before any test ran"
    providers._get_local_constants = lambda: nothing
