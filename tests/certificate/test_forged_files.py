"""Files whose levels and features were forged, digest and all."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    InvalidArgumentError,
    verify,
)
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract.errors import FileFormatError
from tests.support.certificates import by_hand, forged, layered
from tests.support.examples import cases

# -- files of levels and features that were forged ---------------------------------------------


COMPONENTS = [
    *(
        f"level{k}.{name}"
        for k in range(2)
        for name in (
            *("labels", "low", "high", "indptr", "indices", "probs", "radius", "spare", "short"),
            *("available", "pair_keys", "pair_lower", "pair_upper"),
        )
    ),
    *(
        f"features.{name}"
        for name in ("values", "signs", "kinds", "corrections", "floor", "ceiling")
    ),
    *(
        f"witnesses.{name}"
        for name in ("values", "actions", "signs", "support", "potential", "corrections")
    ),
]


ROOM = 2**22  # bytes that refusing a file of a few kilobytes may take


def refused(path: Path, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Forge a certificate with all components; it must be refused, and cheaply."""
    layered()[1].save(path)
    forged(path, edit)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=path.name):
            Certificate.load(path)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


def put(name: str, at: Any, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """An edit that changes some entries of an array."""

    def edit(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        array = arrays[name].copy()
        array[at] = value
        arrays[name] = array

    return edit


def test_files_hold_the_components_by_name(tmp_path: Path) -> None:
    layered()[1].save(tmp_path / "c")
    with np.load(tmp_path / "c", allow_pickle=False) as archive:
        assert {name for name in archive.files if "." in name} == set(COMPONENTS)
        assert {archive[name].dtype.kind for name in archive.files} == {"b", "u", "i", "f"}


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_that_lack_an_array_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path / "c", lambda header, arrays: arrays.pop(name))


@pytest.mark.parametrize(
    "name",
    [
        *("level2.labels", "level-1.labels", "level00.labels", "level0.", "level0.more"),
        *("features.more", "features", "witnesses.more", "witnesses", "witnesses."),
        *("witness0.values", "witnesses0.values", "witnesses.action"),
    ],
)
def test_surplus_component_arrays_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path / "c", lambda header, arrays: arrays.update({name: np.zeros(10)}))


SHAPES: list[Callable[[Any], Any]] = [
    lambda array: array[:-1],
    lambda array: np.concatenate([array, array[-1:]]),
    lambda array: array[None],
    lambda array: array[:0],
    lambda array: array.ravel()[0],
]
SHAPES_OF_TABLES: list[Callable[[Any], Any]] = [
    lambda array: array[:, :-1],
    lambda array: array.ravel(),
    lambda array: np.empty((0, 10**12)),
]


def some_of(wrong: list[Any], name: str) -> list[Any]:
    """All of them by the profile `many`, one by `few`: another one for the next component."""
    count = cases(len(wrong), few=1)
    return (wrong * 2)[COMPONENTS.index(name) % len(wrong) :][:count]


@pytest.mark.drawn
@pytest.mark.parametrize("name", COMPONENTS)
def test_component_arrays_of_wrong_shape_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c"
    shapes = some_of(SHAPES, name)
    if layered_array(path, name).ndim == 2:
        shapes += some_of(SHAPES_OF_TABLES, name)
    for shape in shapes:

        def reshape(header: dict[str, Any], arrays: dict[str, Any], shape: Any = shape) -> None:
            arrays[name] = shape(arrays[name])

        refused(path, reshape)


def layered_array(path: Path, name: str) -> npt.NDArray[Any]:
    layered()[1].save(path)
    with np.load(path, allow_pickle=False) as archive:
        found: npt.NDArray[Any] = archive[name]
    return found


@pytest.mark.drawn
@pytest.mark.parametrize("name", COMPONENTS)
def test_component_arrays_of_wrong_dtype_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c"
    array = layered_array(path, name)
    kinds: list[Any] = [np.complex128, np.dtype("U8"), np.dtype(f"V{array.itemsize}")]
    if array.dtype.kind in "ib":
        kinds.append(np.float64)
    if array.itemsize == 8:
        kinds.append(np.dtype("M8[s]"))
    for dtype in some_of(kinds, name):

        def recast(header: dict[str, Any], arrays: dict[str, Any], dtype: Any = dtype) -> None:
            array = arrays[name]
            is_bits = np.dtype(dtype).kind in "MV"
            arrays[name] = array.view(dtype) if is_bits else array.astype(dtype)

        refused(path, recast)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("level0.labels", 0, -1),
        ("level0.labels", 0, 4),
        ("level0.labels", 0, 2**62),
        ("level0.labels", 9, 0),  # leaves block 3 without a member
        ("level0.low", (0, 0), np.nan),
        ("level0.low", (0, 0), 1e9),  # above high
        ("level0.high", (0, 0), np.inf),
        ("level0.indptr", 1, -1),
        ("level0.indptr", -1, 2**62),
        ("level0.indptr", 1, 2**62),
        ("level0.indices", 0, -1),
        ("level0.indices", 0, 4),
        ("level0.indices", 0, 2**62),
        ("level0.probs", 0, -0.5),
        ("level0.probs", 0, np.nan),
        ("level0.probs", 0, 0.0),
        ("level0.probs", 0, 1e308),
        ("level0.radius", (0, 0), -1e-9),
        ("level0.radius", (0, 0), 1.5),
        ("level0.radius", (0, 0), np.nan),
        ("level0.spare", (0, 0), 1.5),
        ("level0.short", (0, 0), -1e-9),
        ("level0.pair_keys", 0, -1),
        ("level0.pair_keys", -1, 16),
        ("level0.pair_keys", -1, 15),  # the diameter of a block of one
        ("level0.pair_keys", -1, 2**63 - 1),
        ("level0.pair_keys", 1, 0),
        ("level0.pair_lower", 0, 1e-9),  # of a diameter
        ("level0.pair_lower", 1, -1.0),
        ("level0.pair_lower", 1, 1e9),
        ("level0.pair_lower", 1, np.nan),
        ("level0.pair_upper", 1, np.inf),
        ("features.values", (0, 0), np.nan),
        ("features.values", (0, 0), np.inf),
        ("features.signs", (0, 0), 2),
        ("features.signs", 0, 0),
        ("features.kinds", 0, -1),
        ("features.kinds", 0, 2**62),
        ("features.corrections", 0, -1e-9),
        ("features.corrections", 0, np.nan),
        ("features.corrections", 0, np.inf),
        ("witnesses.values", (0, 0), np.nan),
        ("witnesses.values", (1, 9), np.inf),
        ("witnesses.values", (1, slice(2)), [-1.7e308, 1.7e308]),
        ("witnesses.actions", 1, -1),
        ("witnesses.actions", 0, 2),
        ("witnesses.actions", 1, 2**62),
        ("witnesses.signs", 0, 0),
        ("witnesses.signs", 1, 2),
        ("witnesses.signs", 1, -(2**63)),
        ("witnesses.support", (0, 0), -1),
        ("witnesses.support", (1, 0), 10),
        ("witnesses.support", (0, 1), 2**62),
        ("witnesses.potential", (0, 0), np.inf),
        ("witnesses.potential", (1, 1), np.nan),
        ("witnesses.corrections", 0, -1e-9),
        ("witnesses.corrections", 1, np.nan),
        ("witnesses.corrections", 1, np.inf),
    ],
)
def test_absurd_components_are_refused(tmp_path: Path, name: str, at: Any, value: Any) -> None:
    refused(tmp_path / "c", put(name, at, value))


@pytest.mark.parametrize(
    "count", [0, 1, 3, -1, 10**9, 10**30, 2.0, 1e300, float("nan"), "2", None, [2], {}, True]
)
def test_absurd_numbers_of_levels_are_refused(tmp_path: Path, count: Any) -> None:
    refused(tmp_path / "c", lambda header, arrays: header.update(levels=count))


def test_levels_of_exact_models_are_no_estimates(tmp_path: Path) -> None:
    """Whether a level is an estimate is not stored: it follows the model."""
    radius = np.full((10, 2), 0.1)

    def edit(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        header |= {"alpha": 0.05, "reward_range": [-1.0, 2.0]}
        arrays["reward_radius"] = radius

    layered()[1].save(tmp_path / "c")
    forged(tmp_path / "c", edit)
    mdp = layered()[0]
    loaded = Certificate.load(tmp_path / "c")
    assert all(level.model.is_estimate for level in loaded.levels)
    assert verify(mdp, loaded).verdict == "rejected"
    refused(tmp_path / "d", lambda header, arrays: arrays.update(reward_radius=radius))
    refused(tmp_path / "d", lambda header, arrays: header.update(alpha=0.05))
    refused(tmp_path / "d", lambda header, arrays: header.update(reward_range=[0.0, 1.0]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels_upper", np.full(4, -5)),
        ("labels_lower", np.full(4, 2**62)),
        ("rewards", np.empty((4, 0))),
        ("rewards", np.array([[1e308], [-1e308], [0.0], [0.0]])),
    ],
)
def test_numbers_that_would_fail_later_are_refused_at_once(
    name: str, value: npt.NDArray[Any]
) -> None:
    labels = np.zeros(4, np.int64)
    fields = {"tau": 0.5, "labels_lower": labels, "labels_upper": labels, name: value}
    with pytest.raises(InvalidArgumentError):
        by_hand(**fields)
