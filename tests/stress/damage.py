"""Damage to files: to bytes, archives, array headers, array contents and JSON headers.

Where a draw decides what kind of damage is done, simple kinds come first: findings shrink to
them.
"""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from tests.stress.strategies import is_drawn, pick, words

Arrays = dict[str, npt.NDArray[Any]]
Seal = Callable[[Arrays], None]
"""Makes stored digests right again, as somebody who knows the format would."""

BOMB = 1 << 22  # entries of an array of zeros: 4 MB or 32 MB from a few kilobytes
DTYPES = words(
    "O U3 S2 bool complex128 complex64 float16 float32 float64 >f8 >i8 int8 uint8 int16 int32 "
    "int64 uint64 longdouble M8[s] m8[s] V8"
)
NAMES = [
    *words("../evil.npy /etc/passwd.npy a/../../b.npy .npy header header.npy.npy ünï.npy dir/"),
    *("", "x" * 300 + ".npy", "rewards", "C:\\evil.npy"),
]
DESCRS = [
    *words("'|O' '<U3' '|S2' '|b1' '<c16' '<f2' '>f8' '<f16' '|V8' '|V0' '<U0' '<M8[s]' 'a5'"),
    *words("'f8,f8' [('x','<f8')] [('x','|O')] ('<f8',(2,)) '<f9' '' None 3 '\\d' '<i8' '|i1'"),
]
SHAPES = [
    *words("() (0,) (0,0) (1,) (-1,) (-2,-3) (1000000000000,) (99999999999999999999999,)"),
    *words("(0,99999999999999999999999) (4,1) (2,2,1) (1,)*40 (3L,) (3L 3 [3] (True,) (1.0,)"),
    *("None", "('a',)", "(1, " * 70 + ")" * 70, "-" * 9000 + "1", "(" + "1," * 64 + ")"),
]
FIELDS = ((10, "<H"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<H"), (42, "<I"))


# -- archives as they are --------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """One file of an archive, as it will be written."""

    name: str
    data: bytes
    method: int = zipfile.ZIP_DEFLATED
    mode: int = 0


def members_of(arrays: Arrays) -> list[Member]:
    """Arrays as the files that `numpy.savez` would write."""
    return [Member(f"{name}.npy", npy(array)) for name, array in arrays.items()]


def npy(array: npt.NDArray[Any]) -> bytes:
    """The bytes of an `.npy` file."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def archive_of(members: list[Member]) -> bytes:
    """An archive of these files, names and all as they are."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # about duplicate names
        for member in members:
            info = zipfile.ZipInfo("x")
            info.filename = member.name
            info.compress_type = member.method
            info.external_attr = member.mode << 16
            archive.writestr(info, member.data)
    return out.getvalue()


def read_arrays(path: Path) -> Arrays:
    """All arrays of an intact archive."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_member(path: Path, name: str) -> npt.NDArray[Any]:
    """One array of an archive that may have anything before it, which `numpy.load` refuses."""
    with zipfile.ZipFile(path) as archive:
        place = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
        return np.asarray(np.lib.format.read_array(io.BytesIO(archive.read(place))))


# -- bytes -----------------------------------------------------------------------------------------


def damaged_bytes(draw: st.DrawFn, data: bytes) -> tuple[bytes, str]:
    """Flips, cuts, insertions, repetitions; and the flags by which archives lie."""
    a, b = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    whole = {
        "emptied": b"",
        "cut": data[:a],
        "removed": data[:a] + data[b:],
        "repeated": data[:b] + data[a:],
        "zeroed": data[:a] + bytes(b - a) + data[b:],
        "reversed": data[::-1],
    }
    kind = pick(draw, [*whole, "inserted", "flipped", "encrypted", "directory"])
    raw = bytearray(whole.get(kind, data))
    places = [k for k in range(len(raw) - 46) if raw[k : k + 4] == b"PK\x01\x02"]
    if kind == "inserted":
        raw[a:a] = draw(st.binary(min_size=1, max_size=64))
    elif kind == "flipped" and raw:
        for bit in draw(st.lists(st.integers(0, 8 * len(raw) - 1), min_size=1, max_size=8)):
            raw[bit // 8] ^= 1 << bit % 8
    elif kind == "encrypted" and places:
        at = pick(draw, places)
        raw[at + 8] |= 1
        local = struct.unpack_from("<I", raw, at + 42)[0]
        if local + 8 < len(raw):
            raw[local + 6] |= 1
    elif kind == "directory" and places:
        place, form = pick(draw, FIELDS)
        top = 0xFFFF if form == "<H" else 0xFFFFFFFF
        value = draw(st.sampled_from((0, 1, 12, 14, 93, 99, top, top // 2)) | st.integers(0, top))
        struct.pack_into(form, raw, pick(draw, places) + place, value)
    return bytes(raw), f"{kind} at {a} to {b}"


# -- archives --------------------------------------------------------------------------------------


def damaged_members(draw: st.DrawFn, members: list[Member]) -> tuple[list[Member], str]:
    """Doubled, missing, renamed and swapped files; other methods, symlinks, bombs."""
    kinds = words("missing half doubled renamed swapped added junk cut method link zeros")
    kind, places = pick(draw, kinds), st.integers(0, len(members) - 1)
    at, out = draw(places), list(members)
    one, note = out[at], f"{out[at].name} {kind}"
    if kind == "missing":
        del out[at]
    elif kind == "half":
        out = [member for member in out if draw(st.booleans())]
    elif kind == "doubled":
        out.append(one)
    elif kind == "renamed":
        out[at] = replace(one, name=pick(draw, NAMES))
        note += f" {out[at].name!r}"
    elif kind == "swapped":
        other = draw(places)
        out[at], out[other] = replace(one, data=out[other].data), replace(out[other], data=one.data)
    elif kind == "added":
        out.append(Member(pick(draw, NAMES), npy(np.zeros(3))))
    elif kind == "junk":
        out.append(Member(f"{pick(draw, NAMES)}.txt", draw(st.binary(max_size=20))))
    elif kind == "cut":
        out[at] = replace(one, data=one.data[: draw(st.integers(0, len(one.data)))])
    elif kind == "method":
        method = pick(draw, (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        out = [replace(member, method=method) for member in out]
    elif kind == "link":
        out[at] = replace(one, mode=0o120777, data=b"/etc/passwd")
    else:
        count = BOMB if is_drawn(draw, 0.1) else 4096
        shape = pick(draw, ((count,), (count, 1), (count // 4, 4)))
        array = np.zeros(shape, pick(draw, ("int8", "float64", "uint8", "bool")))
        out[at] = replace(one, data=npy(array))
    return out, note


def damaged_npy(draw: st.DrawFn, members: list[Member]) -> tuple[list[Member], str]:
    """A header that lies about type, shape or order, over the same payload or none."""
    at, out = draw(st.integers(0, len(members) - 1)), list(members)
    array = np.lib.format.read_array(io.BytesIO(out[at].data))
    descr, shape = repr(array.dtype.str), repr(array.shape)
    payload, order, major = array.tobytes(), "False", 1
    kind = pick(draw, ("descr", "shape", "both", "nothing", "order", "format", "payload"))
    if kind in ("descr", "both"):
        descr = pick(draw, DESCRS)
    if kind in ("shape", "both", "nothing"):
        shape = pick(draw, SHAPES)
    if kind == "nothing":
        payload = b""
    if kind == "order":
        order = pick(draw, ("True", "None", "1", "'x'"))
    if kind == "format":
        major = pick(draw, (0, 2, 3, 4, 255))
    if kind == "payload":
        payload = pick(draw, (payload[:-1], payload + b"\0" * 8))
    if descr in ("'|i1'", "'|V0'"):
        # A shape that fits the payload, so that what is read goes on.
        shape = f"({len(payload)},)"
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode("latin1")
    size = struct.pack("<H" if major == 1 else "<I", len(text))
    out[at] = replace(out[at], data=b"\x93NUMPY" + bytes([major, 0]) + size + text + payload)
    return out, f"{out[at].name}: {text[:100]!r}, format {major}"


# -- arrays ----------------------------------------------------------------------------------------


def damaged_array(draw: st.DrawFn, array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], str]:
    """Other values, another type, another shape."""
    array = np.atleast_1d(array)
    kinds = words("longer reshaped sliced Fortran cast")
    has_values = array.size and array.dtype.kind not in "OV"  # of which none can be drawn
    kind = pick(draw, [*["values"] * 3, *kinds] if has_values else kinds)
    if kind == "values":
        out = array.copy()
        flat = out.reshape(-1)
        for at in draw(st.lists(st.integers(0, flat.size - 1), min_size=1, max_size=3)):
            flat[at] = _other_value(draw, flat[at])
        return out, "values changed"
    if kind == "longer":
        return np.concatenate([array, array[-1:]]), "one more row"
    if kind == "reshaped":
        shapes = [(-1,), (1, -1), (-1, 1), (-1, 1, 1), *([()] if array.size == 1 else [])]
        return array.reshape(pick(draw, shapes)), "reshaped"
    if kind == "sliced":
        turned = array[..., :0], array[:0], array[..., ::-1], array.T, np.zeros((), array.dtype)
        return turned[draw(st.integers(0, 4))], "sliced or turned"
    if kind == "Fortran":
        return np.asfortranarray(array), "Fortran order"
    name = pick(draw, DTYPES)
    is_beyond = is_drawn(draw, 0.4)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            out = array.astype(name)
            if out.size and out.dtype.kind == "f" and is_beyond:
                # Beyond what the type that is wanted can hold.
                out.reshape(-1)[0] = np.longdouble("1e4000" if out.itemsize > 8 else "1e300")
            return out, f"cast to {name}"
        except (TypeError, ValueError, RuntimeError, OverflowError):
            return np.zeros(array.shape, name), f"zeros of {name}"


def _other_value(draw: st.DrawFn, old: Any) -> Any:
    """A neighbour of a value, or any other of its type."""
    with np.errstate(all="ignore"):
        if old.dtype.kind not in "fiu" or draw(st.booleans()):
            return draw(nps.from_dtype(old.dtype))
        if old.dtype.kind == "f":
            near = np.nextafter(old, np.inf), np.nextafter(old, -np.inf), -old, old * (1 + 1e-9)
            return old.dtype.type(pick(draw, near))
        return old + old.dtype.type(1) if draw(st.booleans()) else old - old.dtype.type(1)


# -- JSON ------------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    """Lists inside lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from((0, 1, -1, 2, 10**9, 10**18, 2**63, 2**64, 10**400)),
    st.integers(),
    st.sampled_from((0.0, 0.5, -0.5, 1.0, 0.999, 1e300, 5e-324)),
    st.floats(),
    st.sampled_from(("", "0.5", "auto", "x", "\0", "\ud800", "x" * 5000, "../../etc/passwd")),
    st.text(st.characters(), max_size=9),  # also halves of surrogates
)
JSON = LEAVES | st.recursive(
    LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=2)
)


def damaged_json(draw: st.DrawFn, document: Any) -> tuple[Any, str]:
    """Another value, a missing or an added key, somewhere; the result is a new document."""
    try:
        document = json.loads(json.dumps(document))
    except RecursionError:  # nested deeply before: deep enough
        return document, "left"
    places = _places(document)
    if not places or is_drawn(draw, 0.03):
        return (draw(JSON) if draw(st.booleans()) else deep(400)), "document replaced"
    holder, key = places[draw(st.integers(0, len(places) - 1))]
    old = holder[key]
    kind = pick(draw, ("set", "removed", "added", "deep", "long", "scaled", "swapped", "set"))
    if kind == "removed":
        del holder[key]
    elif kind == "added" and isinstance(holder, dict):
        holder[pick(draw, ("x", "", "seed", "__class__", "self", "ü"))] = draw(JSON)
    elif kind == "deep":
        holder[key] = deep(pick(draw, (10, 100, 400, 900, 990)))
    elif kind == "long" and (isinstance(old, list) or is_drawn(draw, 0.3)):
        holder[key] = [1] * 50_000
    elif kind == "scaled" and isinstance(old, int | float) and abs(old) < 1e250:
        holder[key] = old * pick(draw, (-1, 2, 1.0 + 1e-12, 1e-3, 1e18))
    elif kind == "swapped" and isinstance(holder, dict):
        other = pick(draw, list(holder))
        holder[key], holder[other] = holder[other], holder[key]
    else:
        kind, holder[key] = "set", draw(JSON)
    return document, f"{key} {kind}"


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value[:20])
        for key, entry in entries:
            found += [(value, key), *_places(entry)]
    return found


def json_bytes(draw: st.DrawFn, document: Any) -> bytes:
    """A document as bytes, rarely not UTF-8, with keys twice, raw deep nesting or long digits."""
    try:
        text = json.dumps(document)
    except RecursionError:
        text = "[" * 2000 + "]" * 2000
    if is_drawn(draw, 0.15):
        is_object = text.startswith("{") and len(text) > 2
        odd = (
            f"{{{text[1:-1]}, {text[1:]}" if is_object else text,
            "[" * 100_000,
            text.replace("1", "1" * 5000, 1),
            text[: draw(st.integers(0, len(text)))],
            "\ufeff" + text,
            text + " x",
        )
        text = odd[draw(st.integers(0, 5))]
    coding = pick(draw, ("utf-16", "utf-32", "latin-1")) if is_drawn(draw, 0.15) else "utf-8"
    return text.encode(coding, errors="replace")


# -- whole files -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damaged:
    """What stands at a path: a file with these bytes unless `place` says otherwise."""

    note: str
    data: bytes = field(repr=False)
    place: str = "file"

    def write(self, path: Path) -> None:
        """Put it there."""
        target = path.with_suffix(".target")
        if self.place == "directory":
            path.mkdir()
        elif self.place == "loop":
            path.symlink_to(path)
        elif self.place != "nothing":
            target.write_bytes(self.data)
            if self.place == "link":
                path.symlink_to(target)
            elif self.place == "hard link":
                os.link(target, path)
            else:
                target.rename(path)


@st.composite
def damaged_archives(draw: st.DrawFn, pool: list[Arrays], seal: Seal) -> Damaged:
    """A damaged copy of one of some archives."""
    arrays = dict(pool[draw(st.integers(0, len(pool) - 1))])
    kind = pick(draw, [*["arrays"] * 5, *["header"] * 5, *["bytes"] * 4, *["members", "npy"] * 2])
    if is_drawn(draw, 0.1):
        kind = "place"
    members, notes = members_of(arrays), []
    if kind == "place":
        place = pick(draw, ("nothing", "directory", "loop", "link", "hard link", "file"))
        data = members[0].data if place == "file" else archive_of(members)
        return Damaged("a single array" if place == "file" else "intact", data, place)
    if kind == "bytes":
        data, note = damaged_bytes(draw, archive_of(members))
        return Damaged(note, data)
    if kind in ("members", "npy"):
        members, note = (damaged_npy if kind == "npy" else damaged_members)(draw, members)
        return Damaged(note, archive_of(members))
    kind = kind if "header" in arrays else "arrays"
    document = json.loads(arrays["header"].tobytes()) if kind == "header" else None
    for _ in range(draw(st.integers(1, 2))):
        if kind == "arrays":
            name = pick(draw, sorted(set(arrays) - {"digest"}))
            arrays[name], note = damaged_array(draw, arrays[name])
            notes.append(f"{name}: {note}")
        else:
            document, note = damaged_json(draw, document)
            notes.append(f"header: {note}")
    if kind == "header":
        arrays["header"] = np.frombuffer(json_bytes(draw, document), np.uint8)
    if is_drawn(draw, 0.8):
        seal(arrays)
        notes.append("sealed")
    return Damaged("; ".join(notes), archive_of(members_of(arrays)))
