"""Tar archives of flat binary files: written atomically, read without trust."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from bisim_abstract._base.atomic import replacing
from bisim_abstract._base.memory import available_bytes, human_bytes
from bisim_abstract._base.text import plain_text
from bisim_abstract._base.untrusted import open_regular
from bisim_abstract.errors import FileFormatError, MemoryLimitError

# What the standard library raises on damaged archives.
DAMAGE = (
    tarfile.TarError,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    zlib.error,
    lzma.LZMAError,
)
GZIP, XZ = b"\x1f\x8b\x08", b"\xfd7zXZ\x00"
MAX_MEMBERS = 100_000
HEADER = 2**16  # bytes that tell of one file, at most
BUFFER = 10_240  # bytes that are read ahead
PIECE = 2**20  # bytes that are read at a time


def is_tarball(path: str | Path) -> bool:
    """Whether a file begins as a tar archive does, compressed by gzip or xz or not at all."""
    with open_regular(path) as file:
        head = file.read(512)
    return head[257:262] == b"ustar" or head[:3] == GZIP or head[:6] == XZ


def read_tarball(path: str | Path) -> dict[str, bytes]:
    """All files of an archive, by name. Folders are passed over; links and devices are refused.

    Raises:
        FileFormatError: If it is not an archive, or is damaged.
        MemoryLimitError: If it holds more than the memory available.
    """
    found: dict[str, bytes] = {}
    room = available_bytes()
    with open_regular(path) as file:
        try:
            unpacked = _Unpacked(file, path)
            # As a stream: a compressed archive is unpacked once, and never further than is read.
            with tarfile.open(  # type: ignore[call-overload]  # it is only read from
                fileobj=unpacked, mode="r|", bufsize=BUFFER
            ) as archive:
                for number, member in enumerate(archive):
                    name = plain_text(member.name).removeprefix("./")
                    if number >= MAX_MEMBERS:
                        raise FileFormatError(f"{path} holds more than {MAX_MEMBERS:,} files")
                    # What tells of it is kept, as it was read and taken apart.
                    room -= 3 * unpacked.taken()
                    unpacked.expect(HEADER)
                    if member.isdir():
                        _check_room(room, path, name, 0)
                        continue
                    if not member.isreg() or member.issparse():
                        raise FileFormatError(f"{path}: {name} is not a regular file")
                    if name in found:
                        raise FileFormatError(f"{path} holds {name} twice")
                    # Twice: as bytes, and as the numbers that are made of them.
                    room -= 2 * member.size
                    _check_room(room, path, name, member.size)
                    unpacked.expect(member.size + HEADER)
                    data = _content(archive.extractfile(member))
                    if len(data) != member.size:
                        raise FileFormatError(f"{path} ends within {name}")
                    found[name] = data
                    unpacked.taken()
                    unpacked.expect(HEADER)
        except (FileFormatError, MemoryLimitError):
            raise
        except DAMAGE as error:
            raise FileFormatError(f"{path} is not a readable tar archive: {error}") from error
    return found


class _Unpacked:
    """The archive itself, unpacked as it is read, and never more of it than is expected.

    What tells of a file (its name, say) lies in the archive as files do, and is read whole by the
    standard library, however much of it there is claimed to be.
    """

    def __init__(self, file: IO[bytes], path: str | Path) -> None:
        head = file.read(6)
        file.seek(0)
        self._file: IO[bytes] | gzip.GzipFile | lzma.LZMAFile = file
        if head[:3] == GZIP:
            self._file = gzip.GzipFile(fileobj=file, mode="rb")
        elif head == XZ:
            self._file = lzma.LZMAFile(file)  # noqa: SIM115 - it holds nothing to be closed
        self._path, self._taken = path, 0
        self.expect(HEADER)

    def expect(self, size: int) -> None:
        """Let this many bytes be read, and what is read ahead."""
        self._left = size + 2 * BUFFER

    def taken(self) -> int:
        """Bytes that were read since this was last asked."""
        taken, self._taken = self._taken, 0
        return taken

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = self._file.read(size)
        self._left -= len(data)
        self._taken += len(data)
        if self._left < 0:
            raise FileFormatError(
                f"{self._path} tells more of one of its files than the {human_bytes(HEADER)} "
                "that are read"
            )
        return data


def _check_room(room: int, path: str | Path, name: str, size: int) -> None:
    if room < 0:
        raise MemoryLimitError(
            f"{path} holds more than the memory available: {name} alone has {human_bytes(size)}"
        )


def _content(file: IO[bytes] | None) -> bytes:
    """All of a file, piece by piece: read in one go it would be there three times for a moment."""
    whole = io.BytesIO()
    while file is not None and (piece := file.read(PIECE)):
        whole.write(piece)
    return whole.getvalue()


def write_tarball(
    path: str | Path, files: Iterable[tuple[str, bytes]], *, compress: bool = True
) -> None:
    """Write an archive to exactly this path, atomically; equal files give equal bytes.

    Args:
        path: The archive.
        files: Names and contents, in this order.
        compress: By gzip.
    """
    with replacing(path) as file:
        if not compress:
            _write(file, files)
            return
        # Without name and time, which would make equal files differ.
        with gzip.GzipFile(
            filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0
        ) as packed:
            _write(packed, files)  # type: ignore[arg-type]  # it writes as a file does


def _write(file: IO[bytes], files: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in _with_folders(files):
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
                continue
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))


def _with_folders(files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | None]]:
    """The files, and before the first of each folder that folder."""
    seen = set()
    for name, content in files:
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder not in seen:
                seen.add(folder)
                yield folder, None
        yield name, content
