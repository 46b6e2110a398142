"""Files of certificates: exact round trips, and damage that is noticed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    certify,
    verify,
)
from bisim_abstract._bounds.blocks import BlockLevel
from bisim_abstract._certificate.certificate import TIMES, Certificate
from bisim_abstract._prove import driver
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import sparse_mdp
from tests.support.certificates import changed, forged, layered, made, same
from tests.support.examples import cases

# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.npz", "c", "c.certificate", "a b.txt"])
@pytest.mark.parametrize("tau", [None, 0.3])
def test_round_trip_is_exact(tmp_path: Path, name: str, tau: float | None) -> None:
    certificate = made(tau=tau, gamma=1 / 3)
    certificate.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    loaded = Certificate.load(str(tmp_path / name))
    assert same(certificate, loaded)
    assert not loaded.lower.flags.writeable


def test_equal_runs_write_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock and the calendar say."""
    mdp, written = sparse_mdp(12, 2, seed=0), []
    for pace in (0.001, 7.0):
        clock = itertools.count()
        told = types.SimpleNamespace(monotonic=lambda clock=clock, pace=pace: pace * next(clock))
        monkeypatch.setattr(driver, "time", told)
        monkeypatch.setattr(time, "time", lambda pace=pace: 1e9 * pace)
        certificate = certify(mdp, 0.9)
        assert certificate.run["seconds"] > 0.0
        certificate.save(tmp_path / "c")
        written.append((tmp_path / "c").read_bytes())
        assert not set(TIMES) & set(Certificate.load(tmp_path / "c").run)
    assert written[0] == written[1]


def test_times_are_added_to_what_a_file_holds(tmp_path: Path) -> None:
    certificate = certify(sparse_mdp(5, 2, seed=0), 0.9)
    certificate.save(tmp_path / "c")
    loaded = Certificate.load(tmp_path / "c")
    assert loaded.times == {}
    assert dict(loaded.with_times(certificate.times).run) == dict(certificate.run)
    assert loaded.with_times({}) is loaded


def test_round_trip_of_nothing_covered(tmp_path: Path) -> None:
    certificate = made(share=0.0)
    assert certificate.n_covered == 0
    certificate.save(tmp_path / "c")
    assert same(certificate, Certificate.load(tmp_path / "c"))


@pytest.mark.parametrize("scope", ["covered", "all"])
@pytest.mark.parametrize("is_estimate", [False, True])
def test_round_trip_of_all_components(tmp_path: Path, is_estimate: bool, scope: str) -> None:
    mdp, certificate = layered(is_estimate=is_estimate, scope=scope)
    assert len(certificate.levels) == 2
    assert certificate.features is not None
    found = certificate.features.witnesses
    assert (0 if found is None else found.count) == (0 if is_estimate else 2)
    certificate.save(tmp_path / "c")
    loaded = Certificate.load(tmp_path / "c")
    assert same(certificate, loaded)
    for level in loaded.levels:
        assert not level.upper.flags.writeable
        assert not level.model.probs.flags.writeable
        assert level.model.is_estimate == is_estimate
    states = np.arange(10)
    for one, two in zip(
        certificate.bounds(states[:, None], states),
        loaded.bounds(states[:, None], states),
        strict=True,
    ):
        assert one.tobytes() == two.tobytes()
    assert verify(mdp, loaded, mode="exact").is_valid


def test_round_trip_of_one_component(tmp_path: Path) -> None:
    _, certificate = layered()
    assert certificate.features is not None
    few = dataclasses.replace(certificate.features, witnesses=None)
    for change in ({"levels": ()}, {"levels": certificate.levels[1:]}, {"features": None}):
        part = changed(certificate, **change)
        part.save(tmp_path / "c")
        assert same(part, Certificate.load(tmp_path / "c"))
    part = changed(certificate, features=few)
    part.save(tmp_path / "c")
    assert same(part, Certificate.load(tmp_path / "c"))
    assert not same(part, certificate)


def test_same_tells_certificates_apart() -> None:
    certificate = made(tau=0.3)
    nudged = certificate.upper.copy()
    nudged[5] = np.nextafter(nudged[5], np.inf)
    assert not same(certificate, changed(certificate, upper=nudged))
    assert not same(certificate, changed(certificate, stop="other"))
    assert not same(certificate, changed(certificate, run={}))
    _, rich = layered()
    level = rich.levels[1]
    nudged = level.upper.copy()
    nudged[2] = np.nextafter(nudged[2], np.inf)
    wider = BlockLevel(model=level.model, keys=level.keys, lower=level.lower, upper=nudged)
    assert not same(rich, changed(rich, levels=(rich.levels[0], wider)))
    assert not same(rich, changed(rich, levels=rich.levels[::-1]))
    assert not same(rich, changed(rich, features=None))
    assert rich.features is not None
    witnesses = rich.features.witnesses
    assert witnesses is not None
    other = dataclasses.replace(witnesses, corrections=witnesses.corrections * [1.0, 2.0])
    assert not same(rich, changed(rich, features=rich.features.with_witnesses(other)))


@pytest.mark.drawn
@pytest.mark.parametrize(
    "make",
    [lambda: made(8, tau=0.3), lambda: layered()[1], lambda: layered(is_estimate=True)[1]],
    ids=["pairs", "layered", "estimate"],
)
def test_any_flipped_bit_is_noticed_or_harmless(
    tmp_path: Path, make: Callable[[], Certificate]
) -> None:
    certificate = make()
    path = tmp_path / "c"
    certificate.save(path)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    refused, count = 0, cases(600)
    for at in rng.choice(len(good), count, replace=False):
        data = bytearray(good)
        data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            loaded = Certificate.load(path)
        except FileFormatError:
            refused += 1
        else:
            assert same(certificate, loaded), f"byte {at} was changed unnoticed"
    assert refused > count // 2


def test_every_flipped_byte_of_an_array_is_noticed(tmp_path: Path) -> None:
    """Uncompressed and with checksums that fit: the digest alone must notice."""
    path = tmp_path / "c"
    for _, certificate in (layered(), layered(is_estimate=True)):
        certificate.save(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
        rng = np.random.default_rng(0)
        for name, array in arrays.items():
            for at in rng.choice(array.nbytes, min(3, array.nbytes), replace=False):
                data = bytearray(array.tobytes())
                data[at] ^= int(rng.integers(1, 256))
                other = np.frombuffer(data, array.dtype).reshape(array.shape)
                with open(path, "wb") as file:
                    np.savez(file, **(arrays | {name: other}))
                with pytest.raises(FileFormatError):
                    Certificate.load(path)


@pytest.mark.parametrize("make", [lambda: made(8), lambda: layered()[1]])
def test_truncated_files_are_refused(tmp_path: Path, make: Callable[[], Certificate]) -> None:
    path = tmp_path / "c"
    make().save(path)
    good = path.read_bytes()
    for size in {0, 1, 6, len(good) - 1, *range(0, len(good), 37)}:
        path.write_bytes(good[:size])
        with pytest.raises(FileFormatError):
            Certificate.load(path)


def _model(path: Path) -> None:
    sparse_mdp(5, seed=0).save(path)


def _array(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


def _numbers(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, header=np.zeros(3))


def _objects(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, header=np.array([{"a": 1}, print], dtype=object))


@pytest.mark.parametrize(
    "write",
    [
        _model,
        _array,
        _objects,
        lambda path: path.write_text("bisimulation certificate"),
        lambda path: zipfile.ZipFile(path, "w").close(),
        _numbers,
    ],
    ids=["model", "npy", "pickle", "text", "empty zip", "npz"],
)
def test_foreign_files_are_refused(tmp_path: Path, write: Callable[[Path], object]) -> None:
    path = tmp_path / "c.npz"
    write(path)
    with pytest.raises(FileFormatError, match=r"c\.npz"):
        Certificate.load(path)


def test_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Certificate.load(tmp_path / "none")


def test_file_holds_no_pickle(tmp_path: Path) -> None:
    made(tau=0.3).save(tmp_path / "c")
    with np.load(tmp_path / "c", allow_pickle=False) as archive:
        assert {archive[name].dtype.kind for name in archive.files} == {"b", "u", "i", "f"}
        header = json.loads(archive["header"].tobytes().decode())
    assert header["stop"] == "enough"


def test_forging_nothing_changes_nothing(tmp_path: Path) -> None:
    """The forger itself is right: without an edit its files load."""
    certificate = made(tau=0.3)
    certificate.save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: None)
    assert same(certificate, Certificate.load(tmp_path / "c"))
    for _, rich in (layered(), layered(is_estimate=True)):
        rich.save(tmp_path / "c")
        forged(tmp_path / "c", lambda header, arrays: None)
        assert same(rich, Certificate.load(tmp_path / "c"))


@pytest.mark.parametrize(
    "entry",
    [
        {"format": "bisim_abstract.TabularMDP"},
        {"version": 1},
        {"version": 2},
        {"version": 3},
        {"version": 6},
        {"version": 8},
        {"version": None},
        {"gamma": 1.5},
        {"gamma": float("nan")},
        {"gamma": None},
        {"n_states": 11},
        {"n_states": 10**12},
        {"n_states": "12"},
        {"lower_start": "none"},
        {"upper_start": ["reward"]},
        {"eps_op": 0.0},
        {"alpha": 0.05},
        {"alpha": 1.0},
        {"alpha": "0.5"},
        {"levels": 1},
        {"tau": None},
        {"tau": float("inf")},
        {"scope": "some"},
        {"scope": None},
        {"run": [1, 2]},
        {"run": {"x": float("inf")}},
        {"fingerprint": 5},
        {"stop": ["no"]},
        {"surplus": 1},
    ],
    ids=str,
)
def test_inconsistent_headers_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    made(tau=0.3).save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.update(entry))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


HUGE = 10**400  # no float is as large


@pytest.mark.parametrize(
    "name",
    [
        "n_states",
        "levels",
        "version",
        "gamma",
        "tau",
        "alpha",
    ],
)
def test_numbers_beyond_all_floats_are_refused(tmp_path: Path, name: str) -> None:
    layered(is_estimate=True)[1].save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.update({name: HUGE}))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


@pytest.mark.parametrize(
    "name",
    ["fingerprint", "gamma", "stop", "run", "format", "version", "levels", "alpha", "scope"],
)
def test_missing_header_entries_are_refused(tmp_path: Path, name: str) -> None:
    made().save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.pop(name))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


@pytest.mark.parametrize(
    "edit",
    [
        lambda arrays: arrays.pop("upper"),
        lambda arrays: arrays.update(more=np.zeros(2)),
        lambda arrays: arrays.update(keys=arrays["keys"][::-1]),
        lambda arrays: arrays.update(keys=arrays["keys"].astype(np.float64)),
        lambda arrays: arrays.update(lower=arrays["upper"] + 1.0),
        lambda arrays: arrays.update(lower=arrays["lower"][:-1]),
        lambda arrays: arrays.update(upper=arrays["upper"] * np.nan),
        lambda arrays: arrays.update(rewards=arrays["rewards"][:-1]),
        lambda arrays: arrays.update(labels_lower=arrays["labels_lower"][:-1]),
    ],
)
def test_inconsistent_arrays_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    made(tau=0.3).save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: edit(arrays))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


def test_edits_without_a_new_digest_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    made().save(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    arrays["upper"] = arrays["upper"] + 1.0
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(FileFormatError, match="changed"):
        Certificate.load(path)
