"""`.npz` archives: written atomically, read from anywhere without trust and without pickle."""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.atomic import replacing
from bisim_abstract._base.memory import available_bytes, human_bytes
from bisim_abstract._base.untrusted import open_regular, parse_json, plain_values
from bisim_abstract.errors import FileFormatError, MemoryLimitError

# What the standard library and NumPy raise on damaged archives, besides ValueError.
DAMAGE = (
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
# How NumPy packs. The others are unpacked by the standard library without a limit: some kilobytes
# may become gigabytes before the first of them can be looked at.
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
PIECE = 2**20  # bytes that are unpacked at a time
# How hard to pack. Numbers of models are packed three times as fast as at NumPy's level 6, to the
# same size within 2%.
LEVEL = 1


def write_npz(
    path: str | Path, arrays: Mapping[str, npt.NDArray[Any]], *, compress: bool = True
) -> None:
    """Write an archive to exactly this path, atomically; NumPy reads it as one of its own."""
    packing = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", packing, compresslevel=LEVEL) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def write_record(
    path: str | Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    kind: str,
    version: int,
) -> None:
    """Write arrays, a JSON header and a digest of both."""
    text = json.dumps({**header, "format": kind, "version": version}, sort_keys=True)
    own = {"header": text, "digest": _content_digest(text, arrays)}
    written = {name: np.frombuffer(value.encode(), np.uint8) for name, value in own.items()}
    write_npz(path, {**arrays, **written})


def read_record(
    path: str | Path, *, kind: str, version: int, what: str
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Header and arrays of a file by `write_record`; any changed byte is noticed.

    Args:
        path: The file.
        kind: The format it must have.
        version: The version of it.
        what: What such a file holds, for people.

    Raises:
        FileFormatError: If it is damaged, changed, or of another kind.
    """
    arrays = read_npz(path)
    if "header" not in arrays:
        raise FileFormatError(f"{path} holds no {what}")
    try:
        data = arrays.pop("header").tobytes()
        header = plain_values(parse_json(data, path))
        text = data.decode()
        found, number = header.pop("format"), header.pop("version")
        stored = arrays.pop("digest").tobytes().decode() if found == kind else ""
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path} has a damaged header: {error!r}") from error
    if found != kind:
        raise FileFormatError(f"{path} holds a {found}, not a {kind}")
    if number != version:
        raise FileFormatError(f"{path} is of format version {number}; this release reads {version}")
    if stored != _content_digest(text, arrays):
        raise FileFormatError(f"{path} was changed after it was written")
    return header, arrays


def _content_digest(text: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of a header and of all arrays."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def read_npz(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an archive, by name.

    Raises:
        FileFormatError: If it is not an archive of arrays, or is damaged.
        FileNotFoundError: If there is no such file.
        MemoryLimitError: If it holds more than the memory available.
    """
    with open_regular(path) as file:
        if file.read(6) == b"\x93NUMPY":
            raise FileFormatError(f"{path} is a single array, not an .npz archive")
        try:
            return _read(file, path)
        except (FileFormatError, MemoryLimitError):
            raise
        except DAMAGE as error:
            raise FileFormatError(f"{path} is not a readable .npz archive: {error}") from error


def _read(file: IO[bytes], path: str | Path) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    room = available_bytes()
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in arrays:
                raise FileFormatError(f"{path} holds {name!r} twice")
            if entry.compress_type not in PACKINGS:
                raise FileFormatError(
                    f"{path} holds {name!r} packed by other means than NumPy packs: refused"
                )
            with archive.open(entry) as member:
                # What the array claims to be must be what the archive holds, before any
                # memory is set aside for it.
                version = np.lib.format.read_magic(member)
                if version not in ((1, 0), (2, 0)):
                    raise FileFormatError(f"{path} holds {name!r} in an unknown format {version}")
                shape, is_fortran, dtype = _header(member, version[0])
                if dtype.hasobject:
                    raise FileFormatError(f"{path} holds Python objects in {name!r}: refused")
                size = math.prod(shape) * dtype.itemsize
                if member.tell() + size != entry.file_size:
                    raise FileFormatError(
                        f"{path}: {name!r} claims {human_bytes(size)}, the archive holds "
                        f"{human_bytes(entry.file_size)}"
                    )
                # Twice: as they are read, and as the copies that nobody else can write to, for
                # which whole numbers of one byte are made ones of eight.
                room -= size + math.prod(shape) * max(dtype.itemsize, 8)
                if room < 0:
                    raise MemoryLimitError(
                        f"{path} holds more than the memory available: {name!r} alone has "
                        f"{human_bytes(size)}"
                    )
                array = np.frombuffer(_exactly(member, size), dtype=dtype)
            arrays[name] = array.reshape(shape, order="F" if is_fortran else "C")
    return arrays


def _header(member: IO[bytes], major: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array; what NumPy only remarks on is refused too."""
    read = getattr(np.lib.format, f"read_array_header_{major}_0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            shape, is_fortran, dtype = read(member)
    except (MemoryError, Warning, tokenize.TokenError) as error:  # from Python's parser
        raise ValueError(f"an array has a damaged header: {error!r}") from error
    return shape, is_fortran, dtype


def _exactly(member: IO[bytes], size: int) -> npt.NDArray[np.uint8]:
    # Piece by piece into its place: unpacked in one go, it would be there twice for a moment.
    data = np.empty(size, np.uint8)
    done = 0
    while done < size:
        piece = member.read(min(PIECE, size - done))
        if not piece:
            break
        data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    # Reading on to the end makes the archive check its checksum.
    if done != size or member.read(1):
        raise FileFormatError("an array is shorter or longer than its header says")
    data.setflags(write=False)
    return data
