"""While the command starts: an interruption ends it at once, and so does a lack of address space.

Importing takes a moment, before anything could catch an interruption, and crashes where libraries
cannot be loaded. This is imported before all that is slow, and takes effect by that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bisim_abstract._base.memory import check_address_space
from bisim_abstract.errors import MemoryLimitError

COMMAND, MODULE = "bisim-abstract", "bisim_abstract"
BAD_INPUT, STOPPED = 2, 130  # the latter as shells have it
LIGHT = {"-h", "--help", "--version"}  # which load no libraries


def begun() -> None:
    """While this process is our command, and is being imported, an interruption ends it at once.

    One whose address space is too small for the libraries ends here too, with a sentence.

    A process of others that imports the package is left alone, and so is one that was started to
    ignore interruptions.
    """
    if not is_command():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    if not LIGHT & set(sys.argv[1:]):
        try:
            check_address_space()
        except MemoryLimitError as error:
            if "--json" in sys.argv:
                document = json.dumps({"error": str(error), "exit_code": BAD_INPUT})
                os.write(1, f"{document}\n".encode())
            os.write(2, f"{COMMAND}: {error}\n".encode())
            os._exit(BAD_INPUT)


def done() -> None:
    """All is imported: from here on an interruption is an exception, which keeps what was done."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stopped() -> None:
    """The command ends and says so: another interruption no longer counts."""
    if is_command():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def finishing() -> Iterator[None]:
    """What the command does in here is done before an interruption counts: writing a result, say.

    Only in the main thread of our command; elsewhere, whoever calls decides.
    """
    is_ours = is_command() and threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    late: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: late.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if late:
        raise KeyboardInterrupt


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
    os.write(2, f"{COMMAND}: interrupted: nothing was written\n".encode())
    os._exit(STOPPED)


begun()
