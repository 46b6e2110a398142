"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bisim_abstract._base.checks import check_path
from bisim_abstract._base.untrusted import kind_in_words, open_regular
from bisim_abstract.errors import FileFormatError

UNFINISHED = re.compile(r"\.[0-9a-f]{12}\.\d+\.\d+\.part")


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes this path's place at the end.

    It is written beside the target, synced and renamed, and the folder is synced: an interruption
    leaves the old file or the new one, never half of it. What a killed writer left at this path is
    removed. A link stays, and what it names is replaced.

    Raises:
        OSError: If something lies there that is no regular file, or it cannot be written.
    """
    target = replaceable(path)
    # Different for every writer at this path.
    writer = f"{os.getpid()}.{threading.get_ident()}"
    unfinished = target.with_name(f".{_mark(target)}.{writer}.part")
    try:
        with _locked(unfinished) as file:
            remove_unfinished(target)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, target)
        _sync_folder(target.parent)
    except OSError as error:
        error.filename = str(path)  # the file that was asked for, not our temporary one
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Let a name in a folder outlast a power cut too, where the file system can."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # one may write into a folder that one may not read
        return
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # folders cannot be synced there
            raise
    finally:
        os.close(number)


def replaceable(path: str | Path) -> Path:
    """Where a file of this path lies: there, or where a link leads, whether or not it is there yet.

    Raises:
        OSError: If what lies there is no regular file. A rename would put one in its place, and
            nobody who opens a device or waits at a pipe would find it again.
    """
    check_no_loop(path)
    target = _followed(path)
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return target
    kind = kind_in_words(mode)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(
            errno.EISDIR, "is a directory, and a file is to be written", str(path)
        )
    if kind:
        raise FileExistsError(
            errno.EEXIST, f"is {kind}, which a file must not replace; give another name", str(path)
        )
    return target


def check_no_loop(path: str | Path) -> None:
    """Refuse a link that leads back to itself, which the system would say other things of.

    Raises:
        OSError: If it is one.
    """
    try:
        os.stat(check_path("path", path))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(
                error.errno, "is a link that leads back to itself; give another name", str(path)
            ) from None


def _followed(path: str | Path) -> Path:
    """The path, or what a link there leads to in the end."""
    target = check_path("path", path)
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def remove_unfinished(path: str | Path) -> None:
    """Remove what killed writers left at a path, or at all paths of a folder.

    A living writer holds a lock on its file, whatever container it is in, and is left alone.
    """
    target = _followed(path)
    is_folder = target.is_dir()
    folder, mark = (target, "") if is_folder else (target.parent, _mark(target))
    for each in list(folder.glob(f".{mark}*.part")):
        if UNFINISHED.fullmatch(each.name):
            # What only has such a name, a pipe say, is not ours.
            with contextlib.suppress(OSError, FileFormatError), open_regular(each) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its writer may have ended well meanwhile, and begun another of that name.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(each)):
                    each.unlink()


def check_writable(path: str | Path) -> None:
    """Refuse at once what could not be written in the end.

    Raises:
        OSError: If something lies there that is no regular file, or its directory is missing or
            could not be written to.
    """
    folder = replaceable(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory to write to", str(folder))
    check_folder_writable(folder)


def check_folder_writable(folder: Path) -> None:
    """Refuse a directory in which no file can be made: a file is made there, and removed.

    Nothing else tells for sure: root is allowed everything, and is refused by some file systems.

    Raises:
        OSError: If it is not possible.
    """
    trial = folder / f".{_mark(folder)}.{os.getpid()}.{threading.get_ident()}.part"
    try:
        with _locked(trial):
            trial.unlink()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise type(error)(
            error.errno, f"no file can be written in this directory: {reason}", str(folder)
        ) from None


def _mark(target: Path) -> str:
    """What temporary names of a file begin with: short, however long its name is."""
    return hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]


def _locked(path: Path) -> IO[bytes]:
    """The file at a path, made anew and locked."""
    while True:
        file = open(path, "wb", opener=_own)  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass  # taken for a dead writer's before it was locked: once more
        except OSError:
            return file  # a file system without locks, where nothing is removed either
        file.close()


def _own(path: str, flags: int) -> int:
    # Anybody may guess the name: a link laid there is not followed, a pipe not waited for.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def write_pieces(path: str | Path, pieces: Iterable[str]) -> None:
    """Write a text that is made piece by piece, none of which is kept."""
    with replacing(path) as file:
        for piece in pieces:
            file.write(piece.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON document for people and programs."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")
