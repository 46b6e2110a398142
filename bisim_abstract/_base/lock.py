"""A folder that one process at a time writes to.

The system releases the lock when its holder ends, however that happens: what a killed process
leaves is a file that nobody holds, and the next one takes it over. Locks are those of `flock`:
they hold between processes, threads and containers of one machine, and over NFS between machines.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from bisim_abstract._base.untrusted import open_regular
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

LOCK = ".lock"
# Whoever only asks whether a lock is held holds it for a moment: no reason to give up at once.
TRIES, PAUSE = 20, 0.01
LONGEST = 1_000  # bytes of what a holder says of itself
_held: set[int] = set()  # descriptors of this process


def _let_go() -> None:
    """In a child made by `fork`: the lock is its parent's, and ends with the parent."""
    for number in _held:
        os.close(number)  # this copy alone: the parent's stays locked
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked(folder: Path, *, what: str) -> Iterator[None]:
    """Hold the lock of a folder, and say in it who does.

    On a file system without locks a warning says that there is none, and nothing is held.

    Args:
        folder: The folder, which must exist.
        what: What is done there, for the message that others get: "a run".

    Raises:
        InvalidArgumentError: If another holds it; the message names the process.
        OSError: If no file can be made there.
    """
    number = _taken(folder, what)
    _held.add(number)
    try:
        about = {"pid": os.getpid(), "host": platform.node(), "since": _now()}
        os.ftruncate(number, 0)
        os.pwrite(number, json.dumps(about).encode(), 0)
        yield
    finally:
        # Not in a child made by `fork`, whose copy is closed already.
        if number in _held:
            _held.discard(number)
            with suppress(FileNotFoundError):
                (folder / LOCK).unlink()  # while it is held: nobody else's can lie there
            os.close(number)


def holder(folder: Path) -> str | None:
    """Who holds the lock of a folder, in words; None if nobody does, or nobody can tell.

    Args:
        folder: The folder, which need not exist.
    """
    with suppress(OSError, FileFormatError), open_regular(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _in_words(file.read(LONGEST))
    return None


def _taken(folder: Path, what: str) -> int:
    """A descriptor of the lock's file, locked."""
    path = folder / LOCK
    for k in range(TRIES):
        # Anybody may guess the name: a link laid there is not followed, a pipe not waited for.
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file after we opened it.
            if os.path.samestat(os.fstat(number), os.stat(path)):
                return number
        except FileNotFoundError:
            pass  # removed, and not yet made anew: once more
        except BlockingIOError:
            if k + 1 == TRIES:
                about = _in_words(os.pread(number, LONGEST, 0))
                os.close(number)
                raise InvalidArgumentError(
                    f"{what} is under way in {folder}: {about}; wait for its end, or give another "
                    "directory"
                ) from None
            time.sleep(PAUSE)
        except OSError as error:
            warnings.warn(
                f"the file system of {folder} has no locks ({error.strerror}): see to it that "
                "nobody else writes there meanwhile",
                stacklevel=4,
            )
            return number
        os.close(number)
    raise InvalidArgumentError(f"{path} is taken and released too often; try again")


def _in_words(data: bytes) -> str:
    """What a holder says of itself; it may be about to say it, or be anybody."""
    try:
        about = json.loads(data)
        pid, host, since = (about[name] for name in ("pid", "host", "since"))
    except (KeyError, TypeError, ValueError, RecursionError):
        return "by another process"
    return f"by process {str(pid)[:20]} on {str(host)[:80]} since {str(since)[:40]}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
