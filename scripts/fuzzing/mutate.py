"""Damage to files: to bytes, archives, array headers, array contents and JSON headers."""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Rng = np.random.Generator
Arrays = dict[str, npt.NDArray[Any]]

BOMB = 1 << 22  # entries of an array of zeros: 4 MB or 32 MB from a few kilobytes
DTYPES = [
    "O",
    "U3",
    "S2",
    "bool",
    "complex128",
    "complex64",
    "float16",
    "float32",
    "float64",
    ">f8",
    ">i8",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint64",
    "longdouble",
    "M8[s]",
    "m8[s]",
    "V8",
]
NUMBERS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.nan,
    np.inf,
    -np.inf,
    5e-324,
    -5e-324,
    1e-310,
    1e-300,
    1e150,
    -1e150,
    1.7e308,
    -1.7e308,
    2.0**53,
    -2.0,
    0.5,
)
WHOLE = (0, 1, -1, 2, 3, 7, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63))
NAMES = (
    "../evil.npy",
    "/etc/passwd.npy",
    "a/../../b.npy",
    "",
    ".npy",
    "header",
    "header.npy.npy",
    "ünï.npy",
    "x" * 300 + ".npy",
    "dir/",
    "rewards",
    "C:\\evil.npy",
)
DESCRS = (
    "'|O'",
    "'<U3'",
    "'|S2'",
    "'|b1'",
    "'<c16'",
    "'<f2'",
    "'>f8'",
    "'<f16'",
    "'|V8'",
    "'|V0'",
    "'<U0'",
    "'<M8[s]'",
    "'a5'",
    "'f8,f8'",
    "[('x', '<f8')]",
    "[('x', '|O')]",
    "('<f8', (2,))",
    "'<f9'",
    "''",
    "None",
    "3",
    "'\\d'",
    "'<i8'",
    "'|i1'",
)
SHAPES = (
    "()",
    "(0,)",
    "(0, 0)",
    "(1,)",
    "(-1,)",
    "(-2, -3)",
    "(1000000000000,)",
    "(99999999999999999999999,)",
    "(0, 99999999999999999999999)",
    "(4, 1)",
    "(2, 2, 1)",
    "(1,) * 40",
    "(3L,)",
    "(3L",
    "3",
    "[3]",
    "(True,)",
    "(1.0,)",
    "None",
    "('a',)",
    "(1, " * 70 + ")" * 70,
    "-" * 9000 + "1",
    "(" + "1," * 64 + ")",
)


@dataclass
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


def raw_npy(
    descr: str, shape: str, payload: bytes, *, order: str = "False", major: int = 1
) -> bytes:
    """An `.npy` file whose header says anything."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    body = text.encode("latin1") + b"\n"
    size = struct.pack("<H", len(body)) if major == 1 else struct.pack("<I", len(body))
    return b"\x93NUMPY" + bytes([major, 0]) + size + body + payload


def read_arrays(path: Path) -> Arrays:
    """All arrays of an intact archive."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_member(path: Path, name: str) -> npt.NDArray[Any]:
    """One array of an archive that may have anything before it, which `numpy.load` refuses."""
    with zipfile.ZipFile(path) as archive:
        place = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
        return np.asarray(np.lib.format.read_array(io.BytesIO(archive.read(place))))


def write_members(path: Path, members: list[Member]) -> None:
    """An archive of these files, names and all as they are."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # about duplicate names
        for member in members:
            info = zipfile.ZipInfo("x")
            info.filename = member.name
            info.compress_type = member.method
            info.external_attr = member.mode << 16
            archive.writestr(info, member.data)


def pick(rng: Rng, choices: Any) -> Any:
    """One of a sequence, as it is."""
    return choices[int(rng.integers(len(choices)))]


# -- bytes ---------------------------------------------------------------------------------------


def damage_bytes(rng: Rng, data: bytes) -> tuple[bytes, str]:
    """Flips, cuts, insertions, repetitions; and the flags by which archives lie."""
    raw = bytearray(data)
    size = max(len(raw), 1)
    kind = int(rng.integers(9))
    a, b = sorted(rng.integers(0, size + 1, size=2).tolist())
    if kind == 0:
        for _ in range(int(rng.integers(1, 9))):
            if raw:
                raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        return bytes(raw), "bits flipped"
    if kind == 1:
        return bytes(raw[:a]), f"cut to {a} bytes"
    if kind == 2:
        junk = rng.bytes(int(rng.integers(1, 65)))
        return bytes(raw[:a] + junk + raw[a:]), f"{len(junk)} bytes inserted at {a}"
    if kind == 3:
        return bytes(raw[:a] + raw[b:]), f"bytes {a} to {b} removed"
    if kind == 4:
        return bytes(raw[:b] + raw[a:]), f"bytes {a} to {b} repeated"
    if kind == 5:
        raw[a:b] = bytes(b - a)
        return bytes(raw), f"bytes {a} to {b} zeroed"
    if kind == 6:
        return b"", "emptied"
    places = [k for k in range(len(raw) - 46) if raw[k : k + 4] == b"PK\x01\x02"]
    if not places:
        return bytes(raw[::-1]), "reversed"
    at = int(pick(rng, places))
    if kind == 7:
        raw[at + 8] |= 1
        local = struct.unpack_from("<I", raw, at + 42)[0]
        if local + 8 < len(raw):
            raw[local + 6] |= 1
        return bytes(raw), "a member flagged as encrypted"
    field, form = pick(
        rng, ((10, "<H"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<H"), (42, "<I"))
    )
    top = 0xFFFF if form == "<H" else 0xFFFFFFFF
    value = int(pick(rng, (0, 1, 12, 14, 93, 99, top, top // 2, int(rng.integers(top)))))
    struct.pack_into(form, raw, at + field, value)
    return bytes(raw), f"field {field} of a directory entry set to {value}"


# -- archives ------------------------------------------------------------------------------------


def damage_members(rng: Rng, members: list[Member]) -> str:
    """Doubled, missing, renamed and swapped files; other methods, symlinks, bombs."""
    one = int(rng.integers(len(members)))
    kind = int(rng.integers(11))
    if kind == 0:
        members.append(members[one])
        return f"{members[one].name} twice"
    if kind == 1:
        gone = members.pop(one)
        return f"{gone.name} missing"
    if kind == 2:
        old, members[one].name = members[one].name, pick(rng, NAMES)
        return f"{old} renamed {members[one].name!r}"
    if kind == 3:
        two = int(rng.integers(len(members)))
        members[one].data, members[two].data = members[two].data, members[one].data
        return f"{members[one].name} and {members[two].name} swapped"
    if kind == 4:
        members.append(Member(pick(rng, NAMES), npy(np.zeros(3))))
        return f"{members[-1].name!r} added"
    if kind == 5:
        members.append(Member(f"{pick(rng, NAMES)}.txt", rng.bytes(20)))
        return "junk added"
    if kind == 6:
        method = int(pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)))
        for member in members:
            member.method = method
        return f"compression method {method}"
    if kind == 7:
        members[one].mode, members[one].data = 0o120777, b"/etc/passwd"
        return f"{members[one].name} a symbolic link"
    if kind == 8:
        count = BOMB if rng.random() < 0.1 else 4096
        kind_of = str(pick(rng, ("int8", "float64", "uint8", "bool")))
        shape = pick(rng, ((count,), (count, 1), (count // 4, 4)))
        members[one].data = npy(np.zeros(shape, kind_of))
        return f"{members[one].name} made {count} zeros of {kind_of}"
    if kind == 9:
        members[:] = [member for member in members if rng.random() < 0.5]
        return "half of the members missing"
    data = members[one].data
    members[one].data = data[: int(rng.integers(len(data) + 1))]
    return f"{members[one].name} cut short"


def damage_npy(rng: Rng, members: list[Member]) -> str:
    """A header that lies about type, shape or order, over the same payload or none."""
    one = int(rng.integers(len(members)))
    data = members[one].data
    array = np.lib.format.read_array(io.BytesIO(data))
    descr, shape = repr(array.dtype.str), repr(array.shape)
    payload, order, major = array.tobytes(), "False", 1
    kind = int(rng.integers(7))
    if kind in (0, 1):
        descr = pick(rng, DESCRS)
    if kind in (1, 2, 3):
        shape = pick(rng, SHAPES)
    if kind == 3 and rng.random() < 0.5:
        payload = b""
    if kind == 4:
        order = pick(rng, ("True", "None", "1", "'x'"))
    if kind == 5:
        major = int(pick(rng, (0, 2, 3, 4, 255)))
    if kind == 6:
        payload = payload[:-1] if rng.random() < 0.5 else payload + b"\0" * 8
    if "'|i1'" in descr or "'|V0'" in descr:
        # A shape that fits the payload, so that what is read goes on.
        shape = f"({len(payload)},)"
    members[one].data = raw_npy(descr, shape, payload, order=order, major=major)
    return f"{members[one].name}: descr {descr}, shape {shape[:60]}, order {order}, format {major}"


# -- arrays --------------------------------------------------------------------------------------


def damage_array(rng: Rng, array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], str]:
    """Other values, another type, another shape."""
    kind = int(rng.integers(8))
    if array.ndim == 0:
        array = array[None]
    if kind in (0, 1, 2) and array.size:
        out = array.copy()
        flat = out.reshape(-1)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(flat.size))
            flat[at] = _value(rng, flat[at], out.dtype)
        return out, "values changed"
    if kind == 3:
        name = str(pick(rng, DTYPES))
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                out = array.astype(name)
                if out.size and out.dtype.kind == "f" and rng.random() < 0.4:
                    # Beyond what the type that is wanted can hold.
                    out.reshape(-1)[0] = np.longdouble("1e4000" if out.itemsize > 8 else "1e300")
                return out, f"cast to {name}"
            except (TypeError, ValueError, RuntimeError, OverflowError):
                return np.zeros(array.shape, name), f"zeros of {name}"
    if kind == 4:
        shapes: list[tuple[int, ...]] = [(-1,), (1, -1), (-1, 1), (-1, 1, 1)]
        if array.size == 1:
            shapes.append(())
        return array.reshape(pick(rng, shapes)), "reshaped"
    if kind == 5:
        kinds = (array[..., :0], array[:0], array[..., ::-1], array.T, np.zeros((), array.dtype))
        return pick(rng, kinds), "sliced or turned"
    if kind == 6:
        return np.asfortranarray(array), "Fortran order"
    return np.concatenate([array, array[-1:]]), "one more row"


def _value(rng: Rng, old: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        near = (np.nextafter(old, np.inf), np.nextafter(old, -np.inf), -old, old * (1 + 1e-9))
        with np.errstate(all="ignore"):
            return dtype.type(pick(rng, (*NUMBERS, *near)))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        value = int(pick(rng, (*WHOLE, int(old) + 1, int(old) - 1)))
        return dtype.type(min(max(value, int(info.min)), int(info.max)))
    if dtype.kind == "b":
        return not old
    return old


# -- JSON ----------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    """Lists inside lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


JSON_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    10**9,
    10**18,
    2**63,
    2**64,
    10**30,
    10**400,
    0.0,
    0.5,
    -0.5,
    1.0,
    0.999,
    1e300,
    5e-324,
    float("nan"),
    float("inf"),
    "",
    "0.5",
    "auto",
    "x",
    "\u0000",
    "\ud800",
    "日本",
    "x" * 5000,
    "../../etc/passwd",
    [],
    [1],
    [1, 2],
    [None],
    ["x"],
    {},
    {"x": 1},
    [[1]],
)


def damage_json(rng: Rng, document: Any) -> tuple[Any, str]:
    """Another value, a missing or an added key, somewhere; the result is a new document."""
    try:
        document = json.loads(json.dumps(document))
    except RecursionError:  # nested deeply before: deep enough
        return document, "left"
    places = list(_places(document))
    if not places or rng.random() < 0.03:
        return pick(rng, (*JSON_VALUES, deep(400))), "document replaced"
    holder, key = pick(rng, places)
    kind = int(rng.integers(8))
    if kind == 0:
        value = holder.pop(key)
        return document, f"{key} removed (was {str(value)[:40]})"
    if kind == 1 and isinstance(holder, dict):
        holder[str(pick(rng, ("x", "", "seed", "__class__", "self", "ü")))] = pick(rng, JSON_VALUES)
        return document, "a key added"
    if kind == 2:
        holder[key] = deep(int(pick(rng, (10, 100, 400, 900, 990))))
        return document, f"{key} nested deeply"
    if kind == 3 and (isinstance(holder[key], list) or rng.random() < 0.3):
        holder[key] = [1] * 50_000
        return document, f"{key} a long list"
    if kind == 4 and isinstance(holder[key], int | float) and abs(holder[key]) < 1e250:
        scale = pick(rng, (-1, 2, 1.0 + 1e-12, 1e-3, 1e18))
        holder[key] = holder[key] * scale
        return document, f"{key} times {scale}"
    if kind == 5 and isinstance(holder, dict):
        other = pick(rng, list(holder))
        holder[key], holder[other] = holder[other], holder[key]
        return document, f"{key} and {other} swapped"
    holder[key] = pick(rng, JSON_VALUES)
    return document, f"{key} set to {str(holder[key])[:40]!r}"


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        for key, entry in value.items():
            found += [(value, key), *_places(entry)]
    elif isinstance(value, list):
        for key, entry in enumerate(value[:20]):
            found += [(value, key), *_places(entry)]
    return found


def json_text(rng: Rng, document: Any) -> str:
    """A document as text, sometimes with keys twice, raw deep nesting or digits without end."""
    try:
        text = json.dumps(document)
    except RecursionError:
        return "[" * 2000 + "]" * 2000
    kind = int(rng.integers(40))
    if kind == 0 and text.startswith("{") and len(text) > 2:
        return "{" + text[1:-1] + ", " + text[1:]
    if kind == 1:
        return "[" * 100_000
    if kind == 2:
        return text.replace("1", "1" * 5000, 1)
    if kind == 3:
        return text[: int(rng.integers(len(text) + 1))]
    if kind == 4:
        return "\ufeff" + text
    if kind == 5:
        return text + " x"
    return text


def json_bytes(rng: Rng, document: Any) -> bytes:
    """The same as bytes: UTF-8, or now and then another encoding."""
    text = json_text(rng, document)
    coding = str(pick(rng, ("utf-8",) * 20 + ("utf-16", "utf-32", "latin-1")))
    return text.encode(coding, errors="replace")


# -- whole files ---------------------------------------------------------------------------------

Seal = Callable[[Arrays], None]
"""Makes stored digests right again, as somebody who knows the format would."""


def damaged_archive(rng: Rng, arrays: Arrays, path: Path, seal: Seal) -> str:
    """Write a damaged copy of an archive; what was done to it."""
    kind = int(rng.integers(20))
    if kind < 2:
        return _damaged_place(rng, arrays, path)
    if kind < 6:
        write_members(path, members_of(arrays))
        data, note = damage_bytes(rng, path.read_bytes())
        path.write_bytes(data)
        return note
    if kind < 10:
        members = members_of(arrays)
        note = damage_members(rng, members) if kind < 8 else damage_npy(rng, members)
        write_members(path, members)
        return note
    arrays, notes = dict(arrays), []
    for _ in range(int(rng.integers(1, 3))):
        if kind < 15 or "header" not in arrays:
            name = str(pick(rng, sorted(set(arrays) - {"digest"})))
            arrays[name], note = damage_array(rng, arrays[name])
            notes.append(f"{name}: {note}")
        else:
            try:
                document = json.loads(arrays["header"].tobytes())
            except (ValueError, RecursionError):
                break
            document, note = damage_json(rng, document)
            arrays["header"] = np.frombuffer(json_bytes(rng, document), np.uint8)
            notes.append(f"header: {note}")
    if rng.random() < 0.8:
        seal(arrays)
        notes.append("sealed")
    write_members(path, members_of(arrays))
    return "; ".join(notes)


def _damaged_place(rng: Rng, arrays: Arrays, path: Path) -> str:
    """Not the contents but what stands at the path: nothing, a directory, links."""
    kind = int(rng.integers(6))
    if kind == 0:
        return "no file"
    if kind == 1:
        path.mkdir()
        return "a directory"
    if kind == 2:
        path.symlink_to(path)
        return "a link to itself"
    target = path.with_suffix(".target")
    write_members(target, members_of(arrays))
    if kind == 3:
        path.symlink_to(target)
        return "a link to a good file"
    if kind == 4:
        path.write_bytes(npy(next(iter(arrays.values()))))
        return "a single array"
    os.link(target, path)
    return "a hard link"
