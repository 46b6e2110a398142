"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes this path's place at the end.

    It is written beside the target, synced and renamed: an interruption leaves the old file or
    the new one, never half of it.
    """
    target = Path(path)
    # Short, however long the name, and different for every writer at this path.
    mark = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]
    unfinished = target.with_name(f".{mark}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except OSError as error:
        error.filename = str(target)  # the file that was asked for, not our temporary one
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON document for people and programs."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")
