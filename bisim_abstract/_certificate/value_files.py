"""Proven values in the files of certificates: arrays with telling names, and JSON numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.episodes import Episodes
from bisim_abstract._abstract.value import (
    BOUNDS,
    NUMBERS,
    ConvergedShare,
    LearnerShare,
    ProvenShare,
    ProvenValue,
    SolverShare,
    ValueBracket,
)
from bisim_abstract._base.types import IntArray
from bisim_abstract.errors import InvalidArgumentError

Arrays = dict[str, npt.NDArray[Any]]

BRACKET = ("lower", "upper", "policy")
# Arrays of each part and their shapes: states, clusters with the end, actions, names of actions.
PARTS: dict[str, dict[str, str]] = {
    "value": {
        "policy": "c",
        **dict.fromkeys((*BOUNDS, "optimal_policy"), "n"),
        "constant_upper": "n A",
    },
    "bracket": dict.fromkeys(BRACKET, "c"),
    "solver": {"lower": "n", "q_lower": "c N", "q_upper": "c N", "margin_lower": "n|0"},
    "learner": {"lower": "n", "q_lower": "c N", "q_upper": "c N"},
    "converged": {"lower": "n", "excess": "n", "choices": "c N"},
}
VALUE_SHAPES = {f"{part}.{name}": axes for part in PARTS for name, axes in PARTS[part].items()}
VALUE_SHAPES["value.renaming"] = "n A"
STARTS = ("optimal_start", "baseline_start")
INFINITE = "infinite"


def value_arrays(value: ProvenValue) -> Arrays:
    """The arrays of a proven value, by name."""
    arrays = {
        f"{part}.{name}": getattr(holder, name)
        for part, holder in _holders(value)
        for name in PARTS[part]
    }
    if value.renaming is not None:
        arrays["value.renaming"] = value.renaming
    return arrays


def _holders(value: ProvenValue) -> Iterator[tuple[str, object]]:
    yield from (("value", value), ("bracket", value.bracket), ("solver", value.solver))
    if value.learner is not None:
        yield "learner", value.learner
        if value.learner.converged is not None:
            yield "converged", value.learner.converged


def value_header(value: ProvenValue) -> dict[str, Any]:
    """Its numbers as JSON values; a share of which nothing is proven is null."""
    learner, solver = value.learner, value.solver
    converged = None if learner is None else learner.converged
    margin = INFINITE if solver.margin == math.inf else solver.margin
    header = _numbers(value) | {
        **{name: list(getattr(value, name)) for name in STARTS},
        "baseline_action": value.baseline_action,
        "solver": _numbers(solver) | {"margin": margin, "margin_kept": _share(solver.margin_kept)},
        "learner": None,
        "episodes": None if value.episodes is None else value.episodes.header(),
    }
    if learner is not None:
        header["learner"] = _numbers(learner)
        header["learner"]["converged"] = None if converged is None else _numbers(converged)
    return header


def _numbers(share: ProvenValue | ProvenShare) -> dict[str, Any]:
    return {"kept": _share(share.kept), "loss": share.loss, "start_loss": share.start_loss}


def _share(share: float) -> float | None:
    return share if math.isfinite(share) else None


def read_value(header: Mapping[str, Any], arrays: Arrays, labels: IntArray) -> ProvenValue:
    """A proven value of such numbers and arrays, which are taken out of the dictionary.

    Args:
        header: What `value_header` made.
        arrays: Arrays of a file.
        labels: (n_states) clusters, the end apart.
    """
    wanted = {*NUMBERS, *STARTS, "baseline_action", "solver", "learner", "episodes"}
    if set(header) != wanted:
        raise InvalidArgumentError(f"value has entries missing or too many: {sorted(header)}")

    def held(part: str) -> dict[str, Any]:
        return {name: arrays.pop(f"{part}.{name}") for name in PARTS[part]}

    own = dict(header["solver"])
    margin, kept = own.pop("margin"), own.pop("margin_kept")
    solver = SolverShare(
        **_given(own),
        **held("solver"),
        margin=math.inf if margin == INFINITE else margin,
        margin_kept=-math.inf if kept is None else kept,
    )
    learner = None
    if header["learner"] is not None:
        found = dict(header["learner"])
        numbers, converged = found.pop("converged"), None
        if numbers is not None:
            converged = ConvergedShare(**_given(numbers), **held("converged"))
        learner = LearnerShare(**_given(found), **held("learner"), converged=converged)
    episodes = header["episodes"]
    starts: dict[str, Any] = {name: tuple(header[name]) for name in STARTS}
    return ProvenValue(
        **_given({name: header[name] for name in NUMBERS}),
        **starts,
        **held("value"),
        baseline_action=header["baseline_action"],
        labels=labels,
        renaming=arrays.pop("value.renaming", None),
        bracket=ValueBracket(**held("bracket")),
        solver=solver,
        learner=learner,
        episodes=None if episodes is None else Episodes.read(episodes),
    )


def _given(numbers: Mapping[str, Any]) -> dict[str, Any]:
    if set(numbers) != set(NUMBERS):
        raise InvalidArgumentError(f"a share has entries missing or too many: {sorted(numbers)}")
    kept = numbers["kept"]
    return {**numbers, "kept": -np.inf if kept is None else kept}
