"""`.npz` archives: written atomically, read from anywhere without trust and without pickle."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import math
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.atomic import replacing
from bisim_abstract._base.memory import available_bytes, human_bytes
from bisim_abstract._base.untrusted import check_json, open_regular, parse_text, plain_values
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
DENSEST = 1_032  # bytes that one byte can stand for, as NumPy packs
LONGEST = 10_000  # bytes of what an array says of itself; NumPy reads no more either
LARGE_HEADER = 2**16  # bytes from which on headers are stored as they are


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
            is_large = name == "header" and array.nbytes > LARGE_HEADER
            archive.compression = zipfile.ZIP_STORED if is_large else packing
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def write_record(
    path: str | Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    kind: str,
    version: int,
    compress: bool = True,
) -> None:
    """Write arrays, a JSON header and a digest of both."""
    text = json.dumps({**header, "format": kind, "version": version}, sort_keys=True)
    own = {"header": text, "digest": _content_digest(text, arrays)}
    written = {name: np.frombuffer(value.encode(), np.uint8) for name, value in own.items()}
    write_npz(path, {**arrays, **written}, compress=compress)


def read_record(
    path: str | Path,
    *,
    kind: str,
    version: int,
    what: str,
    forms: Callable[[Mapping[str, Any]], Forms],
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Header and arrays of a file by `write_record`; any changed byte is noticed.

    Args:
        path: The file.
        kind: The format it must have.
        version: The version of it.
        what: What such a file holds, for people.
        forms: The arrays of such a file, by what its header says.

    Raises:
        FileFormatError: If it is damaged, changed, or of another kind.
    """
    with Archive(path) as archive:
        if "header" not in archive.claims:
            raise FileFormatError(f"{path} holds no {what}")
        try:
            text = archive.header_text()
            header = plain_values(parse_text(text))
            found, number = header.pop("format"), header.pop("version")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path} has a damaged header: {error!r}") from error
        if found != kind:
            raise FileFormatError(f"{path} holds a {found}, not a {kind}")
        if number != version:
            raise FileFormatError(
                f"{path} is of format version {number}; this release reads {version}"
            )
        archive.check(forms(header).plus(digest="64"))
        arrays = archive.read(but=("header",))
    digest = arrays.pop("digest", np.empty(0, np.uint8)).tobytes()
    if digest != _content_digest(text, arrays).encode():
        raise FileFormatError(f"{path} was changed after it was written")
    return header, arrays


def record_kind(path: str | Path) -> str:
    """The format that a file by `write_record` names; empty if it names none that can be read."""
    with Archive(path) as archive:
        try:
            header = parse_text(archive.header_text())
        except (*DAMAGE, RecursionError):
            return ""
    found = header.get("format") if isinstance(header, dict) else None
    return found if isinstance(found, str) else ""


def _content_digest(text: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of a header and of all arrays."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Claim:
    """What an array of an archive says it is.

    Attributes:
        shape: Its shape.
        dtype: The type of its entries.
        is_fortran: Whether the first axis counts fastest.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


@dataclass(frozen=True)
class Forms:
    """The arrays that a format has, with their shapes.

    Attributes:
        shapes: By name, the axes: "n A" is a table, "n*A+1" a list, and "n A|0 0" one of two. A
            letter stands for the same length wherever it is. In names and axes, # is any number.
        known: Lengths that the header tells.
        most: What a letter may be at most: {"p": "n*n"}.
        is_open: Whether there may be other arrays, which nobody reads.
    """

    shapes: Mapping[str, str]
    known: Mapping[str, Any] = field(default_factory=dict)
    most: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False

    def plus(self, **shapes: str) -> Forms:
        """The same with some more arrays."""
        return replace(self, shapes={**self.shapes, **shapes})


class Archive:
    """An open archive: what its arrays claim to be is known before any of them is unpacked.

    Some kilobytes may become gigabytes. So whoever knows what should be in there compares that
    with the `claims` first.

    Args:
        path: The file.

    Attributes:
        claims: What each array claims to be, by name; the archive holds as many bytes.

    Raises:
        FileFormatError: If it is not an archive of arrays, or is damaged.
        FileNotFoundError: If there is no such file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.claims: dict[str, Claim] = {}
        self._entries: dict[str, zipfile.ZipInfo] = {}
        self._file = open_regular(path)
        try:
            with self._readable():
                if self._file.read(6) == b"\x93NUMPY":
                    raise FileFormatError(f"{path} is a single array, not an .npz archive")
                self._zip = zipfile.ZipFile(self._file)
                for entry in self._zip.infolist():
                    self._look(entry)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self._zip.close()
        self._file.close()

    def header_text(self) -> str:
        """The JSON document of the header, which must fit in memory.

        Raises:
            FileFormatError: If it has another form, or is packed though it is large.
            MemoryLimitError: If parsing it takes more than the memory available.
        """
        claim, entry = self.claims["header"], self._entries["header"]
        if claim.dtype != np.uint8 or len(claim.shape) != 1:
            raise FileFormatError(f"{self.path} has a damaged header: it is {claim}, not bytes")
        check_json(claim.size, self.path)
        if claim.size > LARGE_HEADER and entry.compress_type != zipfile.ZIP_STORED:
            raise FileFormatError(
                f"{self.path} has a packed header of {human_bytes(claim.size)}: refused, as one of "
                f"more than {human_bytes(LARGE_HEADER)} is written as it is"
            )
        return self._unpacked("header").tobytes().decode()

    def check(self, forms: Forms) -> None:
        """Refuse an archive with arrays that a format does not have, or not in these shapes.

        Raises:
            FileFormatError: If an array is none of these, holds no numbers, or does not fit to
                the header or to the other arrays.
        """
        known = {x: n for x, n in forms.known.items() if isinstance(n, int)}
        given = {
            name: claim
            for name, claim in self.claims.items()
            if name != "header" and (name in forms.shapes or not forms.is_open)
        }
        axes = {name: self._axes(name, claim, forms) for name, claim in given.items()}
        # Letters alone come first: they say how long products are.
        for is_product in (False, True):
            for name, claim in given.items():
                for axis, length in zip(axes[name], claim.shape, strict=True):
                    if ("*" in axis) != is_product:
                        continue
                    expected = _length(axis, known)
                    if expected is None:
                        known[axis] = length
                    elif expected != length:
                        raise FileFormatError(
                            f"{self.path} has parts that do not fit together: {name!r} is {claim}, "
                            f"where an axis of {expected:,} is needed"
                        )
        for letter, most in forms.most.items():
            for each in (x for x in known if re.sub(r"\d+", "#", x) == letter):
                number = re.search(r"\d+", each)
                limit = _length(most.replace("#", number[0] if number else ""), known)
                if limit is not None and known[each] > limit:
                    names = [name for name in given if each in axes[name]]
                    raise FileFormatError(
                        f"{self.path} has parts that do not fit together: "
                        f"{' and '.join(names)} may have {limit:,} entries along an axis, got "
                        f"{known[each]:,}"
                    )

    def read(self, *, but: Collection[str] = ()) -> dict[str, npt.NDArray[Any]]:
        """All arrays by name, or all but some, unpacked.

        Raises:
            FileFormatError: If they are damaged.
            MemoryLimitError: If they take more than the memory available.
        """
        names = [name for name in self.claims if name not in but]
        room = available_bytes()
        for name in names:
            claim = self.claims[name]
            # Twice: as they are read, and as the copies that nobody else can write to, for
            # which whole numbers of one byte are made ones of eight.
            room -= claim.size + math.prod(claim.shape) * max(claim.dtype.itemsize, 8)
            if room < 0:
                raise MemoryLimitError(
                    f"{self.path} holds more than the memory available: {name!r} alone has "
                    f"{human_bytes(claim.size)}"
                )
        return {name: self._unpacked(name) for name in names}

    def _look(self, entry: zipfile.ZipInfo) -> None:
        """Note what an array claims to be, if that is what the archive holds of it."""
        path, name = self.path, entry.filename.removesuffix(".npy")
        if name in self.claims:
            raise FileFormatError(f"{path} holds {name!r} twice")
        if entry.compress_type not in PACKINGS:
            raise FileFormatError(
                f"{path} holds {name!r} packed by other means than NumPy packs: refused"
            )
        with self._zip.open(entry) as member:
            claim = _claim(member)
            begin = member.tell()
        if claim.dtype.hasobject:
            raise FileFormatError(f"{path} holds Python objects in {name!r}: refused")
        if begin + claim.size != entry.file_size:
            raise FileFormatError(
                f"{path}: {name!r} claims {human_bytes(claim.size)}, the archive holds "
                f"{human_bytes(entry.file_size)}"
            )
        if entry.file_size > DENSEST * (entry.compress_size + 1):
            raise FileFormatError(
                f"{path}: {name!r} claims {human_bytes(claim.size)}, more than can be packed into "
                f"{human_bytes(entry.compress_size)}"
            )
        self.claims[name], self._entries[name] = claim, entry

    def _axes(self, name: str, claim: Claim, forms: Forms) -> list[str]:
        """The axes that an array has in a format, as letters and products."""
        number = re.search(r"\d+", name)
        shapes = forms.shapes.get(re.sub(r"\d+", "#", name, count=1), forms.shapes.get(name))
        if shapes is None:
            raise FileFormatError(f"{self.path} has parts missing or too many: {name!r}")
        if claim.dtype.kind not in "biuf" or claim.dtype.itemsize > 8:
            raise FileFormatError(f"{self.path}: {name!r} must hold numbers, got {claim.dtype}")
        options = [option.split() for option in shapes.split("|")]
        fitting = [option for option in options if len(option) == len(claim.shape)]
        # Where two have as many axes, one of them is of fixed lengths.
        fixed = [option for option in fitting if [str(x) for x in claim.shape] == option]
        if not fitting:
            raise FileFormatError(
                f"{self.path}: {name!r} must have {' or '.join(str(len(x)) for x in options)} "
                f"dimensions, got {claim}"
            )
        found = (fixed or fitting)[0]
        return [axis.replace("#", number[0] if number else "") for axis in found]

    def _unpacked(self, name: str) -> npt.NDArray[Any]:
        claim = self.claims[name]
        with self._readable(), self._zip.open(self._entries[name]) as member:
            _claim(member)  # known; what follows is the array
            array = np.frombuffer(_exactly(member, claim.size), dtype=claim.dtype)
            return array.reshape(claim.shape, order="F" if claim.is_fortran else "C")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (FileFormatError, MemoryLimitError):
            raise
        except DAMAGE as error:
            raise FileFormatError(f"{self.path} is not a readable .npz archive: {error}") from error


def read_npz(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an archive, by name, whatever they are.

    Raises:
        FileFormatError: If it is not an archive of arrays, or is damaged.
        FileNotFoundError: If there is no such file.
        MemoryLimitError: If it holds more than the memory available.
    """
    with Archive(path) as archive:
        return archive.read()


def _length(axis: str, known: Mapping[str, int]) -> int | None:
    """A letter, number or product, and what is added to it; None if a letter is not known yet."""
    product, _, more = axis.partition("+")
    factors = [int(x) if x.isdecimal() else known.get(x) for x in product.split("*")]
    if any(factor is None for factor in factors):
        return None
    return math.prod(factor for factor in factors if factor is not None) + int(more or 0)


def _claim(member: IO[bytes]) -> Claim:
    """What the array claims to be that begins here; its entries come next."""
    version = np.lib.format.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array has an unknown format {version}")
    begin = member.read(2 * version[0])
    length = int.from_bytes(begin, "little")
    if length > LONGEST:  # NumPy reads all of it before it looks
        raise ValueError(f"an array has a header of {human_bytes(length)}")
    shape, is_fortran, dtype = _header(io.BytesIO(begin + member.read(length)), version[0])
    return Claim(shape, dtype, is_fortran)


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
