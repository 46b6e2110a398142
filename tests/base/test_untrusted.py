"""Files that are no files, archives that hold more than fits, and texts that move the cursor."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    GroundAgent,
    TabularMDP,
    certify,
    read_model,
    write_clusters,
    write_model,
    write_report,
)
from bisim_abstract._app.config import Config
from bisim_abstract._app.manifest import Entry, Manifest
from bisim_abstract._app.runs import Run
from bisim_abstract._app.sources import Source, kind_of
from bisim_abstract._base import atomic, memory, npz, tarball
from bisim_abstract._base.atomic import remove_unfinished, replacing, write_json
from bisim_abstract._base.tarball import is_tarball, read_tarball
from bisim_abstract._base.untrusted import (
    DEEPEST,
    DEEPEST_METADATA,
    JSON_BYTES,
    open_regular,
    parse_json,
    parse_text,
    plain_values,
    read_regular,
)
from bisim_abstract._model import umb
from bisim_abstract._model.observations import Observations
from bisim_abstract.encoders import ActionMaxEncoder, load_encoder
from bisim_abstract.encoders.transitions import Transitions, sample_transitions
from bisim_abstract.errors import FileFormatError, InvalidArgumentError, MemoryLimitError
from bisim_abstract.parts import read_bridge, sparse_mdp
from tests.support import ROOT

READERS: dict[str, Callable[[Path], Any]] = {
    "model": TabularMDP.load,
    "read_model": read_model,
    "certificate": Certificate.load,
    "agent": GroundAgent.load,
    "encoder": load_encoder,
    "transitions": Transitions.load,
    "config": Config.load,
    "tarball": read_tarball,
    "is_tarball": is_tarball,
    "json": read_regular,
    "bridge": read_bridge,
}


@pytest.fixture(scope="module")
def mdp() -> TabularMDP:
    return sparse_mdp(6, 2, seed=0)


@pytest.fixture(scope="module")
def certificate(mdp: TabularMDP) -> Certificate:
    return certify(mdp, 0.5)


def device(path: Path) -> Path:
    """A device that is thrown away after the test, not one of the system's."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        with open(path, "rb"):
            return path
    except PermissionError:
        pytest.skip("making devices is not allowed here")


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def plug(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))
    return path


SPECIAL = {"device": device, "pipe": pipe, "socket": plug}


@pytest.fixture(params=SPECIAL)
def special(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    return SPECIAL[request.param](tmp_path / "x.npz"), request.param


# -- writing -----------------------------------------------------------------------------------


def test_writers_replace_files_only(
    special: tuple[Path, str], mdp: TabularMDP, certificate: Certificate
) -> None:
    path, kind = special
    named = {suffix: path.with_name(f"y{suffix}") for suffix in (".csv", ".json", ".umb", ".npz")}
    for link in named.values():
        link.symlink_to(path)
    before = path.stat()
    writers: list[Callable[[], Any]] = [
        lambda: mdp.save(path),
        lambda: certificate.save(path),
        lambda: certify(mdp, 0.5, checkpoint=path),
        lambda: write_report(path, mdp, certificate),
        lambda: write_clusters(mdp, certificate, named[".csv"]),
        *(lambda link=link: write_model(mdp, link) for link in named.values()),
    ]
    for write in writers:
        with pytest.raises(FileExistsError, match=f"is a {kind}, which a file must not replace"):
            write()
    assert os.path.samestat(path.stat(), before)
    assert all(link.is_symlink() for link in named.values())
    assert len(list(path.parent.iterdir())) == 1 + len(named)


def test_a_folder_is_not_replaced(tmp_path: Path, mdp: TabularMDP) -> None:
    for path in (tmp_path, tmp_path / "link"):
        if path != tmp_path:
            path.symlink_to(tmp_path)
        with pytest.raises(IsADirectoryError, match="a file is to be written"):
            mdp.save(path)


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "dangling"])
def test_links_stay_and_lead_to_the_file(is_there: bool, tmp_path: Path, mdp: TabularMDP) -> None:
    (tmp_path / "far").mkdir()
    goal, near, link = tmp_path / "far" / "m.npz", tmp_path / "near", tmp_path / "link"
    near.symlink_to("far/m.npz")
    link.symlink_to(near)
    if is_there:
        goal.write_bytes(b"what was there")
    mdp.save(link)
    assert (os.readlink(link), os.readlink(near)) == (str(near), "far/m.npz")
    assert not goal.is_symlink()
    assert TabularMDP.load(goal).fingerprint == mdp.fingerprint
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["far", "link", "m.npz", "near"]


def test_links_to_nowhere_and_in_circles(tmp_path: Path, mdp: TabularMDP) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing" / "m.npz")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("nowhere", "circle"):
        with pytest.raises(OSError) as caught:
            mdp.save(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)
        assert (tmp_path / name).is_symlink()


def test_names_of_unfinished_files_are_no_trap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody who may write to the folder can guess them."""
    victim, target = tmp_path / "victim", tmp_path / "t"
    victim.write_bytes(b"kept")
    mark = f".{atomic._mark(target)}"
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(threading, "get_ident", lambda: 2)
    (tmp_path / f"{mark}.1.2.part").symlink_to(victim)
    with pytest.raises(OSError), replacing(target) as file:
        file.write(b"x")
    assert victim.read_bytes() == b"kept"
    os.mkfifo(tmp_path / f"{mark}.3.4.part")
    remove_unfinished(target)  # does not wait at the pipe


# -- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_readers_read_files_only(reader: str, special: tuple[Path, str]) -> None:
    path, kind = special
    link = path.with_name("link.npz")
    link.symlink_to(path)
    for each in (path, link):
        with pytest.raises(FileFormatError, match=f"{each.name} is a {kind}; only regular files"):
            READERS[reader](each)


def test_what_lies_there_is_not_waited_for(special: tuple[Path, str]) -> None:
    path, _ = special
    assert kind_of(path) == ""


@pytest.mark.parametrize("suffix", [".nm", ".jani", ".drn"])
def test_storm_is_given_files_only(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="is a pipe"):
        read_model(pipe(tmp_path / f"m{suffix}"))


def test_what_is_exchanged_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pipe(tmp_path / "p")
    (tmp_path / "file").write_bytes(b"")
    regular = os.stat(tmp_path / "file")
    monkeypatch.setattr(os, "stat", lambda *_: regular)
    with pytest.raises(FileFormatError, match="is a pipe"):
        open_regular(path)


def test_files_that_are_longer_than_they_say() -> None:
    if not Path("/proc/self/status").is_file():
        pytest.skip("there is no /proc")
    with pytest.raises(FileFormatError, match="not as long as it says"):
        read_regular(Path("/proc/self/status"))


def test_the_settings_of_a_run_are_a_file(tmp_path: Path) -> None:
    pipe(tmp_path / "config.json")
    config = Config(source=Source(name="FrozenLake-v1"))
    Manifest(tmp_path, config.digest, {"config.json": Entry("0" * 64)}).save()
    with pytest.raises(FileFormatError, match="is a pipe"):
        Run(tmp_path, config)
    (tmp_path / "manifest.json").unlink()
    pipe(tmp_path / "manifest.json")
    with pytest.raises(FileFormatError, match=r"manifest\.json is a pipe"):
        Run(tmp_path, config)


# -- more than fits ----------------------------------------------------------------------------


def zipped(path: Path, size: int, *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """An archive of one array of zeros."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    )
    with (
        zipfile.ZipFile(path, "w", method) as archive,
        archive.open("header.npy", "w", force_zip64=True) as member,
    ):
        member.write(head.getvalue())
        written(member, size)
    return path


def written(file: IO[bytes], size: int) -> None:
    piece = bytes(2**20)
    for begin in range(0, size, len(piece)):
        file.write(piece[: size - begin])


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def limit(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for module in (memory, npz, tarball):
        monkeypatch.setattr(module, "available_bytes", lambda: size)


SIZE = 2**23
EMOJI = '"\U0001f600",'.encode()


def test_arrays_are_unpacked_once(tmp_path: Path, peak: Callable[[], int]) -> None:
    path = zipped(tmp_path / "z.npz", SIZE)
    assert npz.read_npz(path)["header"].size == SIZE
    assert peak() < 1.6 * SIZE


@pytest.mark.parametrize(("room", "fits"), [(9 * SIZE, True), (9 * SIZE - 1, False)])
def test_arrays_and_their_copies_must_fit(
    room: int,
    fits: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    peak: Callable[[], int],
) -> None:
    """One byte as it is read, and eight as a number."""
    path = zipped(tmp_path / "z.npz", SIZE)
    limit(monkeypatch, room)
    if fits:
        npz.read_npz(path)
        return
    with pytest.raises(MemoryLimitError, match="'header' alone has"):
        npz.read_npz(path)
    assert peak() < SIZE // 2


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_without_a_limit_are_refused(
    method: int, tmp_path: Path, peak: Callable[[], int]
) -> None:
    path = zipped(tmp_path / "z.npz", SIZE, method=method)
    tracemalloc.reset_peak()
    with pytest.raises(FileFormatError, match="packed by other means"):
        npz.read_npz(path)
    assert peak() < SIZE // 2


def test_headers_must_fit_as_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = b"[" + b'{"":1},' * 20_000 + b"0]"
    np.savez(tmp_path / "h.npz", header=np.frombuffer(header, np.uint8))
    limit(monkeypatch, 30 * len(header))
    for reader in ("model", "certificate", "agent", "encoder", "transitions"):
        with pytest.raises(MemoryLimitError, match="the JSON document in"):
            READERS[reader](tmp_path / "h.npz")
    assert kind_of(tmp_path / "h.npz") == ""
    (tmp_path / "config.json").write_bytes(header)
    with pytest.raises(MemoryLimitError, match="the JSON document in"):
        Config.load(tmp_path / "config.json")


def test_what_json_takes_is_counted(peak: Callable[[], int]) -> None:
    entries = (b'{"":1},', b"[],", b"{},", b'"ab",', b"1234567,", b"1.5,", EMOJI)
    for entry in entries:
        data = b"[" + entry * 5_000 + b"0]"
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        kept = parse_json(data, "x")
        assert peak() - before < JSON_BYTES * len(data), entry
        del kept


def quick_xz(path: Path, mode: Any) -> Any:
    return lzma.open(path, mode, preset=0)  # with a small dictionary, which is memory too


def packed(path: Path, kind: str, members: list[tuple[tarfile.TarInfo, int]]) -> Path:
    openers: dict[str, Any] = {"plain": open, "gzip": gzip.open, "xz": quick_xz}
    with openers[kind](path, "wb") as file:
        for entry, size in members:
            file.write(entry.tobuf(tarfile.USTAR_FORMAT))
            written(file, size + -size % 512)
        file.write(bytes(1024))
    return path


def entry(name: str, size: int, *, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type = size, kind
    return made


PACKINGS = ("plain", "gzip", "xz")


@pytest.mark.parametrize("kind", PACKINGS)
def test_files_of_archives_are_read_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peak: Callable[[], int]
) -> None:
    path = packed(tmp_path / "t", kind, [(entry("a", SIZE), SIZE), (entry("b", 3), 3)])
    tracemalloc.reset_peak()
    assert {name: len(data) for name, data in read_tarball(path).items()} == {"a": SIZE, "b": 3}
    assert peak() < 2 * SIZE
    limit(monkeypatch, 2 * SIZE)
    tracemalloc.reset_peak()
    with pytest.raises(MemoryLimitError, match="a alone has"):
        read_tarball(path)
    assert peak() < SIZE


@pytest.mark.parametrize("kind", PACKINGS)
@pytest.mark.parametrize("head", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_what_tells_of_files_is_bounded(
    head: bytes, kind: str, tmp_path: Path, peak: Callable[[], int]
) -> None:
    """Names and remarks are read whole by the standard library, before anyone could look."""
    members = [(entry("h", SIZE, kind=head), SIZE), (entry("a", 3), 3)]
    path = packed(tmp_path / "t", kind, members)
    tracemalloc.reset_peak()
    with pytest.raises(FileFormatError, match="tells more of one of its files"):
        read_tarball(path)
    assert peak() < SIZE // 2


def test_counts_without_numbers_take_no_memory(
    tmp_path: Path, mdp: TabularMDP, peak: Callable[[], int]
) -> None:
    """What may go without saying in a UMB file (each state has one choice) has no bytes there."""
    system = {
        "time": "discrete",
        "#players": 1,
        **dict.fromkeys(("#states", "#choices", "#branches"), 2**30),
        "#choice-actions": 0,
        "branch-probability-type": {"type": "double"},
    }
    index = json.dumps({"format-version": 1, "transition-system": system}).encode()
    tarball.write_tarball(tmp_path / "m.umb", [("index.json", index)])
    with pytest.raises(FileFormatError, match=r"lacks branch-to-target.bin"):
        read_model(tmp_path / "m.umb")
    assert peak() < 2**22


def test_labels_and_variables_must_fit(
    tmp_path: Path, mdp: TabularMDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(mdp, tmp_path / "m.umb")
    files = read_tarball(tmp_path / "m.umb")
    index = json.loads(files["index.json"])
    label = {"applies-to": ["states"], "type": {"type": "bool"}}
    index.setdefault("annotations", {})["aps"] = {f"l{k}": label for k in range(1_000)}
    files["index.json"] = json.dumps(index).encode()
    tarball.write_tarball(tmp_path / "m.umb", files.items())
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(umb, "parse_json", lambda data, _: json.loads(data))
    monkeypatch.setattr(memory, "available_bytes", lambda: 10_000)
    with pytest.raises(MemoryLimitError, match="write it with fewer labels"):
        read_model(tmp_path / "m.umb")


PEAK = """
import resource, sys
from bisim_abstract import read_model
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_model(sys.argv[1])
except (ValueError, MemoryError) as error:
    print(type(error).__name__, error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["npz", "umb"])
def test_two_gigabytes_in_two_megabytes(kind: str, tmp_path: Path) -> None:
    """Refused where 3 GB are available, before anything is unpacked."""
    path, size = tmp_path / f"bomb.{kind}", 2 * 10**9
    if kind == "npz":
        zipped(path, size)
    else:
        packed(path, "gzip", [(entry("index.json", size), size)])
    assert path.stat().st_size < 3 * 10**6
    code = PEAK.replace(
        "before =",
        "from bisim_abstract._base import npz, tarball\n"
        "npz.available_bytes = tarball.available_bytes = lambda: 3 * 2**30\n"
        "before =",
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    said, kilobytes = done.stdout.splitlines()
    assert said.startswith("MemoryLimitError"), said
    assert int(kilobytes) < 100_000


# -- texts that do something -------------------------------------------------------------------

# Colours what follows, begins the line anew, turns the direction of reading.
NASTY = "\x1b[31m\r\u202e"


def test_texts_of_files_do_nothing() -> None:
    found = plain_values({"a\x1b[31m": ["\r\u202e", {"b": "x\n\ty"}], "n": 1.5, "z": None})
    assert found == {"a\ufffd[31m": ["\ufffd\ufffd", {"b": "x\n\ty"}], "n": 1.5, "z": None}


def is_plain(text: str) -> bool:
    return not {"\x1b", "\r", "\u202e"} & set(text)


def changed(value: Any) -> Iterator[Any]:
    """A JSON document with nasty text in one place, for every place: values and names."""
    if isinstance(value, dict):
        for name, inner in value.items():
            rest = {key: each for key, each in value.items() if key != name}
            yield rest | {f"{name}{NASTY}": inner}
            yield from (rest | {name: each} for each in changed(inner))
    elif isinstance(value, list):
        for k, inner in enumerate(value[:2]):
            yield from ([*value[:k], each, *value[k + 1 :]] for each in changed(inner))
        yield [*value, NASTY]
    else:
        yield f"{value}{NASTY}"


def outcome(read: Callable[[Path], Any], path: Path) -> list[str]:
    """All that people get to see of a file: of what it holds, or of why it is refused."""
    try:
        found = read(path)
    except (ValueError, MemoryError, ImportError) as error:
        return [str(error)]
    shown = [repr(found), str(found)]
    for name in ("_repr_html_", "summary"):
        if hasattr(found, name):
            shown.append(getattr(found, name)())
    for name in ("metadata", "run"):
        shown.append(str(dict(getattr(found, name, {}))))
        shown += [f"{key}{value}" for key, value in getattr(found, name, {}).items()]
    return shown


@pytest.fixture(scope="module")
def files(
    mdp: TabularMDP, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One file of every format of ours."""
    folder = tmp_path_factory.mktemp("files")
    paths = {kind: folder / f"{kind}.npz" for kind in ("model", "certificate", "agent", "encoder")}
    told = mdp.with_metadata(env="Some-v0", digits=[["row", 2], ["column", 3]])
    told.with_names(actions=["up", "down"]).save(paths["model"])
    certificate.save(paths["certificate"])
    known = Observations({"kind": "number"}, np.zeros(1, int), np.zeros(1, int))
    about = {"env": "Some-v0", "agent": "a table", "verdict": "certified", "seed": 0}
    GroundAgent(np.zeros(1, int), known, n_actions=2, metadata=about).save(paths["agent"])
    fitted = ActionMaxEncoder(dim=2, gamma=0.9, steps=2, seed=0).fit(mdp, n_transitions=20)
    fitted.save(paths["encoder"])
    paths["transitions"] = folder / "transitions.npz"
    sample_transitions(mdp, 20, seed=0).save(paths["transitions"])
    paths["bridge"] = folder / "bridge.npz"
    np.savez(paths["bridge"], transitions=np.zeros((3, 2), int), rewards=np.zeros((3, 2)))
    paths["read_model"] = write_model(mdp, folder / "model.umb")
    paths["config"] = folder / "config.json"
    write_json(paths["config"], Config(source=Source(name="FrozenLake-v1"), title="x").header())
    return paths


def rewritten(kind: str, path: Path, target: Path) -> Iterator[Path]:
    """The file with nasty text in one place of its header, for every place."""
    if kind == "config":
        for document in changed(json.loads(path.read_bytes())):
            write_json(target, document)
            yield target
        return
    if kind == "read_model":
        members = read_tarball(path)
        for document in changed(json.loads(members["index.json"])):
            own = members | {"index.json": json.dumps(document).encode()}
            tarball.write_tarball(target, own.items(), compress=False)
            yield target
        for name in members:
            renamed = {f"{key}{NASTY}" if key == name else key: members[key] for key in members}
            tarball.write_tarball(target, renamed.items(), compress=False)
            yield target
        return
    arrays = npz.read_npz(path)
    header = json.loads(arrays["header"].tobytes())
    for document in changed(header):
        text = json.dumps(document, sort_keys=True)
        rest = {key: each for key, each in arrays.items() if key not in ("header", "digest")}
        texts = {"header": text}
        if "digest" in arrays:  # a forger makes a fitting one
            texts["digest"] = npz._content_digest(text, rest)
        made = {key: np.frombuffer(each.encode(), np.uint8) for key, each in texts.items()}
        npz.write_npz(target, rest | made, compress=False)
        yield target
    for name in arrays:
        renamed_arrays = {f"{k}{NASTY}" if k == name else k: x for k, x in arrays.items()}
        npz.write_npz(target, renamed_arrays, compress=False)
        yield target


@pytest.mark.parametrize(
    "kind", ["model", "certificate", "agent", "encoder", "config", "read_model"]
)
def test_nothing_that_a_file_says_reaches_a_terminal(
    kind: str, files: dict[str, Path], tmp_path: Path
) -> None:
    count = 0
    for path in rewritten(kind, files[kind], tmp_path / "x.npz"):
        for text in outcome(READERS[kind], path):
            assert is_plain(text), repr(text)
        count += 1
    assert count > 10


BOMB = 2**20  # entries of an array of zeros, which is packed into a 200th or less


def bombs(path: Path, target: Path) -> Iterator[str]:
    """The file with one array that is much longer than the others say, for every array."""
    arrays: dict[str, Any] = npz.read_npz(path)
    for name, array in arrays.items():
        length = BOMB if array.ndim < 2 else max(BOMB // max(array.shape[1], 1), 1)
        long = np.zeros((length, *array.shape[1:]), array.dtype)
        changed_arrays: dict[str, Any] = arrays | {name: long}
        np.savez_compressed(target, **changed_arrays)
        yield name
    np.savez_compressed(target, **arrays, more=np.zeros(BOMB))
    yield "more"


@pytest.mark.parametrize(
    "kind", ["model", "certificate", "agent", "encoder", "transitions", "bridge"]
)
def test_arrays_of_a_wrong_size_are_refused_before_they_are_unpacked(
    kind: str, files: dict[str, Path], tmp_path: Path, peak: Callable[[], int]
) -> None:
    for name in bombs(files[kind], tmp_path / "x.npz"):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        if kind in ("model", "bridge") and name == "more":  # which nobody reads or unpacks
            READERS[kind](tmp_path / "x.npz")
        else:
            with pytest.raises(FileFormatError, match=r"x\.npz"):
                READERS[kind](tmp_path / "x.npz")
        assert peak() - before < BOMB // 2, name
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        kind_of(tmp_path / "x.npz")
        assert peak() - before < BOMB // 2, name


@pytest.mark.parametrize("kind", ["model", "certificate", "agent"])
def test_a_large_header_is_stored_as_it_is(
    kind: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, found = tmp_path / "x.npz", READERS[kind](files[kind])
    monkeypatch.setattr(npz, "LARGE_HEADER", 10)
    found.save(path)
    READERS[kind](path)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("header.npy").compress_type == zipfile.ZIP_STORED


def test_what_arrays_say_of_themselves_is_bounded(tmp_path: Path, peak: Callable[[], int]) -> None:
    path = tmp_path / "x.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("header.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY\x02\x00" + SIZE.to_bytes(4, "little"))
        written(member, SIZE)
    tracemalloc.reset_peak()
    with pytest.raises(FileFormatError, match=r"a header of 8.4 MB"):
        npz.read_npz(path)
    assert peak() < SIZE // 2


@pytest.mark.parametrize("compress", [True, False])
def test_archives_are_those_of_numpy(tmp_path: Path, compress: bool) -> None:
    """NumPy reads them, and the same arrays make the same bytes."""
    arrays = {
        "a": np.arange(1000.0).reshape(10, 100),
        "fortran": np.asfortranarray(np.ones((3, 4))),
        "empty": np.zeros((0, 2), np.int64),
        "text": np.frombuffer(b"text", np.uint8),
    }
    paths = [tmp_path / name for name in ("one", "two.npz")]
    for path in paths:
        npz.write_npz(path, arrays, compress=compress)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with np.load(paths[0], allow_pickle=False) as read:
        assert set(read) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array)
            assert read[name].dtype == array.dtype
    with pytest.raises(ValueError, match=r"[Oo]bject arrays"):
        npz.write_npz(tmp_path / "objects", {"a": np.array([{}])})
    assert not (tmp_path / "objects").exists()


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 5_000])
def test_documents_are_refused_at_one_depth_whoever_reads_them(depth: int) -> None:
    """Python's own limit depends on the caller: a file could be read here and not there."""
    text = "[" * depth + "0" + "]" * depth
    if depth == DEEPEST:
        assert parse_text(text)
    else:
        with pytest.raises((ValueError, RecursionError)):
            parse_text(text)


def test_metadata_that_could_not_be_read_again_are_refused(tmp_path: Path) -> None:
    def nested(depth: int) -> dict[str, Any]:
        value: Any = 0
        for _ in range(depth - 1):
            value = [value]
        return {"x": value}

    mdp = sparse_mdp(3, 2, support=2, seed=0)
    for depth in (DEEPEST_METADATA + 1, 5_000):
        with pytest.raises(InvalidArgumentError, match=r"nested|recursion"):
            mdp.with_metadata(**nested(depth))
    deep = mdp.with_metadata(**nested(DEEPEST_METADATA))
    deep.save(tmp_path / "deep.npz")
    assert TabularMDP.load(tmp_path / "deep.npz").metadata == deep.metadata
