"""Files: what is written is read back, and what is damaged or foreign is refused."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import InvalidArgumentError, TabularMDP, estimate_mdp, read_model
from bisim_abstract.errors import FileFormatError, MemoryLimitError
from bisim_abstract.parts import read_bridge, single_build, sparse_mdp
from tests.support.examples import cases

CONTENT = {"indptr", "indices", "probs", "rewards", "available", "start", "state_ids"}
NAMES = {"names_values", "names_labels"}
ESTIMATE = {"estimate_counts", "estimate_reward_radius", "estimate_row_radius"}


def plain_mdp() -> TabularMDP:
    return sparse_mdp(4, 2, support=2, seed=0).with_metadata(note="γ and 日本", list=[1, None])


def estimated_mdp() -> TabularMDP:
    rng = np.random.default_rng(5)
    return estimate_mdp(
        rng.integers(3, size=40),
        rng.integers(2, size=40),
        rng.random(40),
        rng.integers(3, size=40),
        rng.random(40) < 0.2,
        n_states=3,
        n_actions=2,
        reward_range=(0.0, 1.0),
        support_bound=4,
        metadata={"env": "small"},
    )


MDPS = {"plain": plain_mdp, "estimated": estimated_mdp}


def members(path: Path) -> dict[str, npt.NDArray[Any]]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def header_of(path: Path) -> dict[str, Any]:
    header = json.loads(members(path)["header"].tobytes())
    assert isinstance(header, dict)
    return header


def as_header(header: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)


# -- round trips -----------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("kind", MDPS)
def test_round_trip(kind: str, compress: bool, tmp_path: Path) -> None:
    mdp = MDPS[kind]()
    path = tmp_path / "mdp.npz"
    mdp.save(path, compress=compress)
    again = TabularMDP.load(path)
    assert again == mdp
    assert again.fingerprint == mdp.fingerprint
    assert dict(again.metadata) == dict(mdp.metadata)
    assert again.terminal_state == mdp.terminal_state
    for name in CONTENT:
        array = getattr(again, name)
        np.testing.assert_array_equal(array, getattr(mdp, name))
        assert array.dtype == getattr(mdp, name).dtype
        assert not array.flags.writeable
    if mdp.estimate is None:
        assert again.estimate is None
    else:
        assert again.estimate is not None
        assert again.estimate.header() == mdp.estimate.header()
        assert again.estimate.reward_range == mdp.estimate.reward_range
        for ours, theirs in zip(mdp.estimate.arrays(), again.estimate.arrays(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["mdp", "mdp.bin", "mdp.npz", "mdp.tar.gz", "é ü.model"])
def test_the_path_is_used_as_it_is(name: str, tmp_path: Path) -> None:
    mdp = plain_mdp()
    mdp.save(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert TabularMDP.load(str(tmp_path / name)) == mdp


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    sparse_mdp(200, 3, seed=1).save(path, compress=False)
    plain_mdp().save(path)
    assert TabularMDP.load(path) == plain_mdp()


def test_compression_compresses(tmp_path: Path) -> None:
    mdp = sparse_mdp(200, 3, seed=1)
    mdp.save(tmp_path / "small.npz")
    mdp.save(tmp_path / "large.npz", compress=False)
    assert (tmp_path / "small.npz").stat().st_size < (tmp_path / "large.npz").stat().st_size
    assert TabularMDP.load(tmp_path / "small.npz") == TabularMDP.load(tmp_path / "large.npz")


def test_special_numbers_survive(tmp_path: Path) -> None:
    tiny = 5e-324
    mdp = TabularMDP(
        indptr=np.arange(4),
        indices=np.array([2, 0, 1]),
        probs=np.array([1.0, 1.0 - 2**-53, 1.0 + 2**-52]),
        rewards=np.array([[tiny], [-1.7e308], [-0.0]]),
        state_ids=np.array([2**62, -1, -1]),
    )
    mdp.save(tmp_path / "mdp")
    again = TabularMDP.load(tmp_path / "mdp")
    assert again == mdp
    assert again.rewards[0, 0] == tiny
    assert again.state_ids[0] == 2**62


@pytest.mark.parametrize("kind", MDPS)
def test_what_a_file_holds(kind: str, tmp_path: Path) -> None:
    """Arrays of numbers under known names and nothing else, so never a pickle."""
    MDPS[kind]().save(tmp_path / "mdp.npz")
    arrays = members(tmp_path / "mdp.npz")
    expected = CONTENT | NAMES | {"header"} | (ESTIMATE if kind == "estimated" else set())
    assert set(arrays) == expected
    assert all(array.dtype.kind in "biuf" for array in arrays.values())
    header = header_of(tmp_path / "mdp.npz")
    assert header["format"] == "bisim_abstract.TabularMDP"
    assert header["version"] == 3
    assert header["fingerprint"] == MDPS[kind]().fingerprint


def test_files_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain_mdp().save(path)
        TabularMDP.load(path)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("kind", ["cut", "no zip", "empty", "array"])
def test_files_are_closed_after_a_refusal(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    plain_mdp().save(path)
    if kind == "array":
        with open(path, "wb") as file:
            np.save(file, np.zeros(3))
    else:
        content = {"cut": path.read_bytes()[:-30], "no zip": b"PK\x03\x04 no", "empty": b""}
        path.write_bytes(content[kind])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(FileFormatError):
            TabularMDP.load(path)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


# -- damage ------------------------------------------------------------------------------------


def outcome_of_loading(path: Path, mdp: TabularMDP) -> str:
    """ "refused", "same", or a description of what must not happen."""
    try:
        again = TabularMDP.load(path)
    except FileFormatError as error:
        return "refused" if str(path) in str(error) else f"refused without its name: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "same" if again == mdp and dict(again.metadata) == dict(mdp.metadata) else "different"


@pytest.mark.parametrize("compress", [True, False])
def test_truncated_files(compress: bool, tmp_path: Path) -> None:
    mdp, path = estimated_mdp(), tmp_path / "mdp.npz"
    mdp.save(path, compress=compress)
    content = path.read_bytes()
    cuts = {round(cut) for cut in np.linspace(0, len(content) - 1, 50)}
    assert len(cuts) == 50
    for cut in sorted(cuts):
        path.write_bytes(content[:cut])
        assert outcome_of_loading(path, mdp) == "refused", cut


@pytest.mark.drawn
@pytest.mark.parametrize("compress", [True, False])
def test_flipped_bytes(compress: bool, tmp_path: Path) -> None:
    """Some bytes mean nothing (dates, say); no other change may pass, or fail differently."""
    mdp, path = plain_mdp(), tmp_path / "mdp.npz"
    mdp.save(path, compress=compress)
    content = path.read_bytes()
    rng = np.random.default_rng(20 + compress)
    seen, count = {"refused": 0, "same": 0}, cases(800)
    wrong = []
    for position in rng.permutation(len(content))[:count].tolist():
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        outcome = outcome_of_loading(path, mdp)
        if outcome in seen:
            seen[outcome] += 1
        else:
            wrong.append(f"byte {position} as {damaged[position]}: {outcome}")
    assert not wrong, f"{len(wrong)} of {count}, such as " + "; ".join(wrong[:5])
    assert seen["refused"] > count // 2


def test_every_byte_of_the_directory(tmp_path: Path) -> None:
    """Where the archive says how to read it: methods, flags, versions, offsets, names."""
    mdp, path = plain_mdp(), tmp_path / "mdp.npz"
    mdp.save(path)
    content = path.read_bytes()
    begin = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x01\x02", begin + 1)
    wrong = []
    for position in range(begin, end):
        for mask in (0x01, 0x04, 0x06, 0x40, 0xFF):
            damaged = bytearray(content)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            outcome = outcome_of_loading(path, mdp)
            if outcome not in ("refused", "same"):
                wrong.append(f"byte {position - begin} of the entry: {outcome}")
    assert not wrong, f"{len(wrong)} cases, such as " + "; ".join(wrong[:5])


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_damage_under_other_compressions(method: int, tmp_path: Path) -> None:
    """Repacked archives fail in ways of their own."""
    mdp, path = plain_mdp(), tmp_path / "mdp.npz"
    mdp.save(path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert outcome_of_loading(path, mdp) in ("refused", "same")
    content = path.read_bytes()
    rng = np.random.default_rng(method)
    wrong = []
    for position in rng.permutation(len(content))[:300].tolist():
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        outcome = outcome_of_loading(path, mdp)
        if outcome not in ("refused", "same"):
            wrong.append(f"byte {position} as {damaged[position]}: {outcome}")
    assert not wrong, f"{len(wrong)} of 300, such as " + "; ".join(wrong[:5])


def test_appended_and_zeroed_content(tmp_path: Path) -> None:
    mdp, path = plain_mdp(), tmp_path / "mdp.npz"
    mdp.save(path)
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    assert outcome_of_loading(path, mdp) == "refused"
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))
    assert outcome_of_loading(path, mdp) == "refused"
    path.write_bytes(content + b"trailing")
    assert outcome_of_loading(path, mdp) in ("refused", "same")


# -- foreign files -----------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TabularMDP.load(tmp_path / "nothing.npz")
    with pytest.raises(FileNotFoundError):
        read_bridge(tmp_path / "nothing.npz")


@pytest.mark.parametrize(
    "content",
    [b"", b"just a text\n", b"\x00" * 100, b"PK\x03\x04", b"\x93NUMPY\x01\x00"],
    ids=["empty", "text", "zeros", "zip magic", "npy magic"],
)
def test_other_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"file\.npz"):
        TabularMDP.load(path)
    with pytest.raises(FileFormatError, match=r"file\.npz"):
        read_bridge(path)


def test_a_single_array(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(FileFormatError, match="single array"):
        TabularMDP.load(tmp_path / "array.npy")
    with pytest.raises(FileFormatError, match="single array"):
        read_bridge(tmp_path / "array.npy")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises((FileFormatError, OSError)):
        TabularMDP.load(tmp_path)


def test_a_foreign_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(FileFormatError, match="holds no TabularMDP"):
        TabularMDP.load(tmp_path / "other.npz")
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FileFormatError):
        TabularMDP.load(tmp_path / "plain.zip")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(FileFormatError):
        TabularMDP.load(tmp_path / "empty.zip")


class _MakesDirectory:
    """Leaves a trace when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["probs", "header", "extra"])
def test_pickles_are_never_opened(name: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "mdp.npz"
    plain_mdp().save(path)
    arrays = members(path)
    arrays[name] = np.array([_MakesDirectory(trace)], dtype=object)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError):
        TabularMDP.load(path)
    assert not trace.exists()

    path.write_bytes(pickle.dumps(_MakesDirectory(trace)))
    with pytest.raises(FileFormatError):
        TabularMDP.load(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists()  # the trap works


# -- archives of ours with changes ---------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CONTENT | ESTIMATE | {"header"}))
def test_missing_arrays(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    estimated_mdp().save(path)
    arrays = members(path)
    del arrays[name]
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError) as caught:
        TabularMDP.load(path)
    if name != "header":
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["rewards", "probs", "start", "estimate_row_radius"])
def test_last_bits_changed_under_an_unchanged_header(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    estimated_mdp().save(path)
    arrays = members(path)
    arrays[name].flat[0] = np.nextafter(arrays[name].flat[0], 2.0)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match="fingerprint"):
        TabularMDP.load(path)


@pytest.mark.parametrize("name", ["state_ids", "estimate_counts"])
def test_numbers_changed_under_an_unchanged_header(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    estimated_mdp().save(path)
    arrays = members(path)
    arrays[name].flat[0] += 100
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match="fingerprint"):
        TabularMDP.load(path)


def test_arrays_that_describe_no_mdp(tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    plain_mdp().save(path)
    arrays = members(path)
    size = arrays["indptr"].size
    wrapping = arrays["indptr"].copy()
    wrapping[1:3] = 2**63 - 1, -2
    changes: list[tuple[str, npt.NDArray[Any]]] = [
        ("indices", arrays["indices"] + 100),
        ("probs", arrays["probs"] * 2.0),
        ("rewards", arrays["rewards"].ravel()),
        ("indptr", arrays["indptr"][:-1]),
        ("indptr", arrays["indptr"].astype(np.float64)),
        ("indptr", np.full(size, 3)),
        ("indptr", wrapping),
        ("start", np.array(["a", "b", "c", "d"])),
        ("rewards", arrays["rewards"].astype(complex)),
    ]
    for name, array in changes:
        np.savez(path, **(arrays | {name: array}))  # type: ignore[arg-type]
        assert outcome_of_loading(path, plain_mdp()) == "refused", (name, array)


def test_narrower_numbers_of_equal_value_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    plain_mdp().save(path)
    arrays = members(path)
    arrays["indices"] = arrays["indices"].astype(np.int32)
    arrays["probs"] = arrays["probs"].astype(">f8")
    np.savez(path, **arrays)  # type: ignore[arg-type]
    again = TabularMDP.load(path)
    assert again == plain_mdp()
    assert again.indices.dtype == np.int64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 4}, ["version 4", "reads 3"]),
        ({"version": 0}, ["version 0"]),
        ({"version": None}, ["version None"]),
        ({"format": "bisim_abstract.Other"}, ["bisim_abstract.Other"]),
        ({"fingerprint": "0" * 64}, ["fingerprint"]),
        ({"fingerprint": None}, ["fingerprint"]),
        ({"terminal_state": None}, ["fingerprint"]),
        ({"terminal_state": 0}, ["terminal_state"]),
        ({"terminal_state": 10**30}, ["terminal_state"]),
        ({"terminal_state": "x"}, []),
        ({"terminal_state": [3]}, []),
        ({"terminal_state": float("inf")}, []),
        ({"metadata": None}, ["metadata"]),
        ({"metadata": [1]}, []),
        ({"metadata": {"x": float("nan")}}, ["metadata"]),
        ({"estimate": None}, ["fingerprint"]),
        ({"estimate": []}, []),
        ({"estimate": {}}, []),
        ({"estimate": {"alpha": 2, "reward_range": [0, 1], "support_bound": 4}}, ["alpha"]),
        ({"estimate": {"alpha": 0.05, "reward_range": 1, "support_bound": 4}}, ["reward_range"]),
        ({"estimate": {"alpha": 0.05, "reward_range": [0, 1], "support_bound": 5}}, []),
    ],
    ids=str,
)
def test_changed_headers(changes: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    estimated_mdp().save(path)
    arrays, header = members(path), header_of(path)
    arrays["header"] = as_header(header | changes)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError) as caught:
        TabularMDP.load(path)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        np.zeros(0, np.uint8),
        np.frombuffer(b"\xff\xfe", np.uint8),
        np.frombuffer(b"{", np.uint8),
        np.frombuffer(b"[" * 100_000, np.uint8),
        as_header([]),
        as_header(None),
        as_header("format"),
        np.zeros((2, 2)),
        np.array("text"),
    ],
    ids=["empty", "not utf-8", "cut", "deep", "list", "null", "string", "floats", "text"],
)
def test_unreadable_headers(header: npt.NDArray[Any], tmp_path: Path) -> None:
    path = tmp_path / "mdp.npz"
    plain_mdp().save(path)
    np.savez(path, **(members(path) | {"header": header}))  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match="header"):
        TabularMDP.load(path)


def test_an_array_that_claims_to_be_enormous(tmp_path: Path) -> None:
    """A few bytes that announce eight petabytes must not be taken at their word."""
    path = tmp_path / "mdp.npz"
    plain_mdp().save(path)
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    )
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["probs.npy"] = buffer.getvalue() + bytes(64)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(FileFormatError):
        TabularMDP.load(path)


def test_metadata_may_be_edited(tmp_path: Path) -> None:
    """It is not part of the content, so a changed note is no damage."""
    path = tmp_path / "mdp.npz"
    plain_mdp().save(path)
    arrays, header = members(path), header_of(path)
    arrays["header"] = as_header(header | {"metadata": {"note": "edited"}})
    np.savez(path, **arrays)  # type: ignore[arg-type]
    again = TabularMDP.load(path)
    assert again == plain_mdp()
    assert dict(again.metadata) == {"note": "edited"}


# -- BRIDGE ------------------------------------------------------------------------------------

TRANSITIONS = [[1, -1], [0, 2], [2, 2]]
REWARDS = [[0.1, -1.0], [0.0, 3.0], [0.0, 0.0]]


def write_bridge(path: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {
        "transitions": np.array(TRANSITIONS, np.int32),
        "rewards": np.array(REWARDS, np.float32),
    }
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize("integers", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("reals", [np.float32, np.float64])
def test_bridge(integers: type, reals: type, tmp_path: Path) -> None:
    path = write_bridge(
        tmp_path / "game.npz",
        transitions=np.array(TRANSITIONS, integers),
        rewards=np.array(REWARDS, reals),
        screens=np.zeros((3, 2), np.uint8),
    )
    mdp = read_bridge(path)
    assert (mdp.n_states, mdp.n_actions) == (4, 2)
    assert mdp.is_deterministic
    assert mdp.terminal_state == 3
    np.testing.assert_array_equal(mdp.indices, [1, 3, 0, 2, 2, 2, 3, 3])
    expected = np.vstack([np.array(REWARDS, reals).astype(np.float64), [[0.0, 0.0]]])
    np.testing.assert_array_equal(mdp.rewards, expected)
    np.testing.assert_array_equal(mdp.start, [1.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(mdp.state_ids, [0, 1, 2, -1])
    np.testing.assert_array_equal(mdp.absorbing, [False, False, True, True])
    assert mdp.metadata["source"] == "BRIDGE"
    assert mdp.metadata["file"] == "game.npz"
    assert mdp.reachable().tolist() == [0, 1, 2, 3]


def test_bridge_start_and_own_format(tmp_path: Path) -> None:
    mdp = read_bridge(str(write_bridge(tmp_path / "game.npz")), start=2)
    np.testing.assert_array_equal(mdp.start, [0.0, 0.0, 1.0, 0.0])
    mdp.save(tmp_path / "ours.npz")
    assert TabularMDP.load(tmp_path / "ours.npz") == mdp


@pytest.mark.parametrize("start", [-1, 3, 0.5, None])
def test_bridge_start_out_of_range(start: Any, tmp_path: Path) -> None:
    path = write_bridge(tmp_path / "game.npz")
    with pytest.raises(InvalidArgumentError, match="start"):
        read_bridge(path, start=start)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transitions": None}, ["'transitions'", "rewards"]),
        ({"rewards": None}, ["'rewards'", "transitions"]),
        ({"transitions": np.zeros(6, int)}, ["transitions", "(6,)"]),
        ({"transitions": np.zeros((3, 2))}, ["transitions", "float64"]),
        ({"transitions": np.zeros((0, 2), int), "rewards": np.zeros((0, 2))}, ["(0, 2)"]),
        ({"rewards": np.zeros((2, 3))}, ["rewards", "(3, 2)", "(2, 3)"]),
        ({"rewards": np.array([["a", "b"]] * 3)}, ["rewards"]),
        ({"rewards": np.zeros((3, 2), complex)}, ["rewards", "complex"]),
        ({"transitions": np.array([[0, 0], [0, 3], [0, 0]])}, ["got 3", "state 1, action 1"]),
        ({"transitions": np.array([[0, 0], [0, 0], [-2, 0]])}, ["-2", "state 2, action 0"]),
        ({"rewards": np.array([[0, 0], [0, 0], [0, np.nan]])}, ["nan", "state 2, action 1"]),
        ({"rewards": np.array([[np.inf, 0], [0, 0], [0, 0]])}, ["inf", "state 0, action 0"]),
    ],
    ids=[
        "no transitions",
        "no rewards",
        "flat",
        "fractional",
        "empty",
        "shapes",
        "text",
        "complex",
        "too large",
        "below -1",
        "nan",
        "inf",
    ],
)
def test_bad_bridge_files(changes: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    path = write_bridge(tmp_path / "game.npz", **changes)
    with pytest.raises(FileFormatError, match=r"game\.npz") as caught:
        read_bridge(path)
    for word in words:
        assert word in str(caught.value)


def test_bridge_and_own_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="read_bridge"):
        TabularMDP.load(write_bridge(tmp_path / "game.npz"))
    plain_mdp().save(tmp_path / "ours.npz")
    with pytest.raises(FileFormatError, match="no array 'transitions'"):
        read_bridge(tmp_path / "ours.npz")


def test_damaged_bridge_file(tmp_path: Path) -> None:
    path = write_bridge(tmp_path / "game.npz")
    content = path.read_bytes()
    for cut in range(0, len(content), max(len(content) // 20, 1)):
        path.write_bytes(content[:cut])
        with pytest.raises(FileFormatError):
            read_bridge(path)


def test_bridge_never_opens_a_pickle(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    extra = np.array([_MakesDirectory(trace)], dtype=object)
    path = write_bridge(tmp_path / "game.npz", extra=extra)
    with pytest.raises(FileFormatError):
        read_bridge(path)
    assert not trace.exists()


# -- either kind -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MDPS)
def test_read_model_reads_ours(kind: str, tmp_path: Path) -> None:
    mdp = MDPS[kind]()
    mdp.save(tmp_path / "model")
    again = read_model(tmp_path / "model")
    assert again == mdp
    assert again.fingerprint == mdp.fingerprint
    assert dict(again.metadata) == dict(mdp.metadata)


def test_read_model_reads_bridge(tmp_path: Path) -> None:
    path = tmp_path / "game.npz"
    np.savez(path, transitions=np.array([[1, -1], [0, 1]]), rewards=np.array([[0, 5], [1, 2]]))
    mdp = read_model(str(path))
    assert mdp == read_bridge(path)
    assert (mdp.n_states, mdp.terminal_state) == (3, 2)
    assert mdp.start.tolist() == [1.0, 0.0, 0.0]
    assert mdp.metadata["file"] == "game.npz"


def test_read_model_believes_the_header(tmp_path: Path) -> None:
    """Arrays that others added do not make it a BRIDGE file."""
    path = tmp_path / "mdp.npz"
    plain_mdp().save(path)
    arrays = members(path) | {"transitions": np.array([[0]])}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    assert read_model(path) == plain_mdp()


def test_read_model_refuses_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    single_build(plain_mdp(), 0.9).save(path)
    with pytest.raises(FileFormatError, match=r"holds a bisim_abstract\.Certificate"):
        read_model(path)
    np.savez(path, rewards=np.zeros((2, 2)))
    with pytest.raises(FileFormatError, match="holds no TabularMDP"):
        read_model(path)
    np.savez(path, transitions=np.zeros((2, 2), int))
    with pytest.raises(FileFormatError, match="has no array 'rewards'"):
        read_model(path)
    np.savez(path, transitions=np.full((2, 2), 7), rewards=np.zeros((2, 2)))
    with pytest.raises(FileFormatError, match="next states must lie in"):
        read_model(path)
    path.write_bytes(b"PK\x03\x04 garbage")
    with pytest.raises(FileFormatError, match="not a readable"):
        read_model(path)
    plain_mdp().save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FileFormatError, match="not a readable"):
        read_model(path)
    with pytest.raises(FileNotFoundError):
        read_model(tmp_path / "missing.npz")


# -- found by fuzzing --------------------------------------------------------------------------


def raw_member(path: Path, text: str, payload: bytes = b"") -> None:
    """An archive of one array whose header is this text."""
    body = text.encode("latin1")
    data = b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + payload
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("transitions.npy", data)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3L",  # tokenize.TokenError
        "{'descr': '<f8', 'fortran_order': False, 'shape': " + "-" * 9000 + "1}",  # MemoryError
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3L,), }",  # UserWarning
        "{'descr': 'a8', 'fortran_order': False, 'shape': (3,), }",  # DeprecationWarning
    ],
    ids=["unfinished", "too deep", "of Python 2", "retired type"],
)
@pytest.mark.parametrize("load", [TabularMDP.load, read_model, read_bridge])
def test_headers_that_trip_the_parser_are_refused(text: str, load: Any, tmp_path: Path) -> None:
    raw_member(tmp_path / "x.npz", text, bytes(24))
    with pytest.raises(FileFormatError, match="damaged header"):
        load(tmp_path / "x.npz")


def test_bridge_takes_no_wrapped_number_for_the_end(tmp_path: Path) -> None:
    after = np.array([[2**64 - 1]], dtype=np.uint64)
    np.savez(tmp_path / "x.npz", transitions=after, rewards=np.zeros((1, 1)))
    with pytest.raises(FileFormatError, match="got 18446744073709551615 at state 0, action 0"):
        read_bridge(tmp_path / "x.npz")


def test_bridge_refuses_what_casts_make_infinite(tmp_path: Path) -> None:
    rewards = np.full((1, 1), np.longdouble("1e4000"))
    np.savez(tmp_path / "x.npz", transitions=np.zeros((1, 1), np.int64), rewards=rewards)
    with pytest.raises(FileFormatError, match="rewards must be finite"):
        read_bridge(tmp_path / "x.npz")


def test_casts_to_larger_types_are_reckoned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file of small numbers: what is made of it must fit too, not only what it holds."""
    count = 1 << 20
    np.savez_compressed(
        tmp_path / "x.npz",
        transitions=np.zeros((count, 1), np.int8),
        rewards=np.zeros((count, 1), np.float16),
    )
    assert (tmp_path / "x.npz").stat().st_size < 10_000
    monkeypatch.setattr("bisim_abstract._base.npz.available_bytes", lambda: 8 * count)
    with pytest.raises(MemoryLimitError):
        read_bridge(tmp_path / "x.npz")
    monkeypatch.setattr("bisim_abstract._base.npz.available_bytes", lambda: 100 * count)
    monkeypatch.setattr("bisim_abstract._base.memory.available_bytes", lambda: 100 * count)
    with pytest.raises(MemoryLimitError, match="the model in"):
        read_bridge(tmp_path / "x.npz")


@pytest.mark.parametrize("kind", ["complex128", "float64", "U3"])
@pytest.mark.parametrize("name", ["estimate_counts", "estimate_reward_radius"])
def test_estimates_hold_numbers_of_their_kind(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    estimated_mdp().save(path)
    arrays = members(path)
    if name.endswith("radius") and kind == "float64":
        arrays[name] = arrays[name].astype(np.longdouble) * np.longdouble("1e4000")
    else:
        arrays[name] = arrays[name].astype(kind)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match="estimate"):
        TabularMDP.load(path)


def test_empty_arrays_of_any_kind_are_empty() -> None:
    certificate = single_build(sparse_mdp(4, seed=0), 0.5, neighbours=1)
    empty = np.empty((0, 0), complex)
    fields = {name: getattr(certificate, name) for name in type(certificate).__dataclass_fields__}
    assert type(certificate)(**fields | {"reward_radius": empty}).reward_radius.dtype == float
