"""Interrupting the command while it starts: it ends at once, and shows no traceback.

Importing takes a moment, before anything could catch an interruption. This is imported before
all that is slow, and takes effect by that.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

COMMAND, MODULE = "bisim-abstract", "bisim_abstract"
STOPPED = 130  # as shells have it


def begun() -> None:
    """While this process is our command, and is being imported, an interruption ends it at once.

    A process of others that imports the package is left alone, and so is one that was started to
    ignore interruptions.
    """
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def done() -> None:
    """All is imported: from here on an interruption is an exception, which keeps what was done."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command() -> bool:
    """Whether this process is `bisim-abstract` or `python -m bisim_abstract`."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if name != "-m":  # which it is until Python has found the module
        return name == COMMAND
    words = sys.orig_argv
    # The first is Python's own; what follows the module's name is the module's.
    at = next((k for k, word in enumerate(words) if word.startswith("-m")), len(words))
    return words[at : at + 2] == ["-m", MODULE] or words[at : at + 1] == [f"-m{MODULE}"]


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{COMMAND}: interrupted\n".encode())
    os._exit(STOPPED)


begun()
