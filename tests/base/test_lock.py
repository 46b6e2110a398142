"""One writer at a time: who is kept out, what they are told, and what ends a lock."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bisim_abstract._base.lock import LOCK, holder, locked
from bisim_abstract.errors import InvalidArgumentError
from tests.support import ROOT

HOLD = """
import sys
from pathlib import Path
from bisim_abstract._base.lock import locked

with locked(Path(sys.argv[1]), what="a run"):
    print("held", flush=True)
    sys.stdin.read()
"""


def other(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_is_named_and_its_death_releases(tmp_path: Path) -> None:
    with other(tmp_path) as process:
        about = rf"by process {process.pid} on {re.escape(os.uname().nodename)} since 20\d\d-.* UTC"
        with (
            pytest.raises(InvalidArgumentError, match=f"a run is under way in .*: {about}; wait"),
            locked(tmp_path, what="a run"),
        ):
            pass
        assert re.fullmatch(about, holder(tmp_path) or "")
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK).exists()  # left, and held by nobody
    assert holder(tmp_path) is None
    with locked(tmp_path, what="a run"):
        assert f"process {os.getpid()} " in (holder(tmp_path) or "")
    assert list(tmp_path.iterdir()) == []


def test_an_end_in_peace_leaves_nothing(tmp_path: Path) -> None:
    with other(tmp_path) as process:
        process.communicate("")
    assert list(tmp_path.iterdir()) == []
    assert holder(tmp_path) is None
    assert holder(tmp_path / "missing") is None


def test_the_same_process_is_kept_out_as_well(tmp_path: Path) -> None:
    with locked(tmp_path, what="a run"):
        with (
            pytest.raises(InvalidArgumentError, match=f"by process {os.getpid()} "),
            locked(tmp_path, what="a run"),
        ):
            pass
        assert holder(tmp_path) is not None  # a refusal leaves it as it was
    with pytest.raises(RuntimeError, match="stop"), locked(tmp_path, what="a run"):
        raise RuntimeError("stop")
    with locked(tmp_path, what="a run"):
        pass


def test_children_do_not_keep_a_lock(tmp_path: Path) -> None:
    """A child made by fork lives on, and its parent's lock must not."""
    script = """
import os, sys
from pathlib import Path
from bisim_abstract._base.lock import locked

with locked(Path(sys.argv[1]), what="a run"):
    if os.fork() == 0:
        print("child", flush=True)
        os.read(0, 1)
        os._exit(0)
    os.read(int(sys.argv[2]), 1)
    os.kill(os.getpid(), 9)
"""
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(read)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[read],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"child\n"
        assert holder(tmp_path) is not None  # the child let go of its own copy alone
        os.write(write, b"x")
        process.wait()
        assert holder(tmp_path) is None
        with locked(tmp_path, what="a run"):
            pass
    for number in (read, write):
        os.close(number)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[1]", b"{}", b"[" * 900, b"3"])
def test_holders_that_say_nothing_of_themselves(text: bytes, tmp_path: Path) -> None:
    with open(tmp_path / LOCK, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(text)
        file.flush()
        assert holder(tmp_path) == "by another process"
        with (
            pytest.raises(InvalidArgumentError, match="by another process; wait"),
            locked(tmp_path, what="a run"),
        ):
            pass


def test_what_lies_in_the_place_of_a_lock(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="ymbolic link"), locked(tmp_path, what="a run"):
        pass
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_file_systems_without_locks_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.warns(UserWarning, match=r"has no locks \(No locks available\): see to it"),
        locked(tmp_path, what="a run"),
    ):
        assert holder(tmp_path) is None  # nobody can tell
    assert list(tmp_path.iterdir()) == []
