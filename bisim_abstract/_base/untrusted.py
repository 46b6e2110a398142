"""What comes out of files that may be anybody's: opened, parsed and shown with care."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bisim_abstract._base.checks import check_path
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.text import without_controls
from bisim_abstract.errors import FileFormatError

# Bytes that parsing takes per byte of JSON: the text, its decoded copy of up to four bytes a
# character, and objects, of which `{"":1},` makes most: about 30 bytes each.
JSON_BYTES = 40
# How deep documents may be nested. Python's own limit depends on who calls, so that a document
# could be read in one place and not in another.
DEEPEST = 100
DEEPEST_METADATA, DEEPEST_ARGUMENTS = 80, 60  # of what files hold, so that they can be read
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


def kind_in_words(mode: int) -> str:
    """What lies at a path, if it is no regular file; empty if it is one.

    Args:
        mode: `st_mode` of what lies there.
    """
    return "" if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "something else")


def open_regular(path: str | Path) -> IO[bytes]:
    """A regular file to read from, if that is what lies at a path; links are followed.

    A device may give bytes for ever, and a pipe may wait for ever: both are refused. What lies
    there is asked before it is opened, since opening alone wakes some devices, and once more
    after, since it may have been exchanged meanwhile.

    Raises:
        FileFormatError: If it is a pipe, a device or a socket.
        OSError: If it cannot be opened, or is a directory.
    """
    _check_regular(os.stat(check_path("path", path)).st_mode, path)
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    try:
        _check_regular(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | Path) -> bytes:
    """All of a regular file of JSON, if parsing it fits in memory.

    Raises:
        FileFormatError: If it is no regular file, or is not as long as it says.
        MemoryLimitError: If it is too large.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_json(size, path)
        # One byte more than it has: some files of the system say 0 and never end.
        data = file.read(size + 1)
    if len(data) != size:
        raise FileFormatError(f"{path} is not as long as it says; it may be being written")
    return data


def parse_json(data: bytes, path: str | Path) -> Any:
    """A JSON document, if parsing it fits in memory.

    Args:
        data: The document.
        path: The file that it came out of, for people.

    Raises:
        ValueError: If it is none, or no text, or is nested too deep.
        RecursionError: If it is nested far too deep.
        MemoryLimitError: If it is too large.
    """
    check_json(len(data), path)
    return parse_text(data.decode())


def parse_text(text: str | bytes) -> Any:
    """A JSON document that is not nested too deep; errors as of `parse_json`."""
    value = json.loads(text)
    check_nesting(value, DEEPEST)
    return value


def check_nesting(value: Any, most: int) -> None:
    """Refuse JSON values that are nested deeper than so.

    Raises:
        ValueError: If they are.
    """
    path = [iter((value,))]  # a walk in depth: it takes no memory to speak of
    while path:
        for entry in path[-1]:
            if isinstance(entry, dict | list):
                if len(path) > most:
                    raise ValueError(f"it is nested more than {most} deep")
                path.append(iter(entry.values() if isinstance(entry, dict) else entry))
                break
        else:
            path.pop()


def plain_values(value: Any) -> Any:
    """JSON values whose texts, names of entries included, hold no control characters.

    Line ends and tabs stay: they are part of texts, and do nothing to a terminal.
    """
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, Mapping):
        return {plain_values(name): plain_values(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(entry) for entry in value]
    return value


def _check_regular(mode: int, path: str | Path) -> None:
    kind = kind_in_words(mode)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind:
        raise FileFormatError(f"{path} is {kind}; only regular files are read")


def check_json(size: int, path: str | Path) -> None:
    """Refuse a JSON document of so many bytes if parsing it does not fit in memory.

    Raises:
        MemoryLimitError: If it does not.
    """
    check_memory(
        JSON_BYTES * size,
        what=f"the JSON document in {path}",
        instead="none that was written by this package is of that size",
    )


def _without_waiting(path: str, flags: int) -> int:
    # Reading a regular file is the same with and without this; opening a pipe is not.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
