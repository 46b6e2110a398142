"""What files say does nothing to a terminal, and neither does an interruption while we start."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP, certify, read_model, verify
from bisim_abstract._base import npz
from bisim_abstract._base.progress import _sentence
from bisim_abstract._base.types import Progress
from bisim_abstract.errors import BisimError, InvalidArgumentError, MissingDependency
from bisim_abstract.parts import sparse_mdp
from tests.support import ROOT
from tests.support.commands import World, check_refused, command

NASTY = "\x1b[31m\r\u202e"


def check_plain(text: str) -> None:
    assert not {"\x1b", "\r", "\u202e", "\x9b"} & set(text), repr(text)


def with_header(path: Path, target: str, **entries: Any) -> Path:
    arrays = npz.read_npz(path)
    header = json.loads(arrays["header"].tobytes()) | entries
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    npz.write_npz(target, arrays)
    return Path(target)


@pytest.mark.parametrize("field", ["format", "version", "estimate", "names", "fingerprint"])
@pytest.mark.parametrize("name", ["extract", "certify", "run"])
def test_headers_in_errors(field: str, name: str, call: Any, world: World) -> None:
    bad = with_header(world.lake, "bad.npz", **{field: NASTY})
    for words in (command(name, world, bad), [*command(name, world, bad), "--json"]):
        ended = call(*words)
        assert ended.code == 2, ended
        check_plain(ended.out + ended.err)
        assert ended.err.count("\n") == 1


def test_headers_of_certificates_in_errors(call: Any, world: World) -> None:
    for field in ("format", "version"):
        bad = with_header(world.certificate, "bad.npz", **{field: NASTY})
        ended = call("verify", world.lake, bad)
        assert ended.code == 2
        check_plain(ended.out + ended.err)


def test_metadata_in_results_and_on_the_page(call: Any, world: World) -> None:
    told = {"env": f"Env{NASTY}", "file": NASTY, f"key{NASTY}": [NASTY]}
    bad = with_header(world.lake, f"bad{NASTY}.npz", metadata=told)
    check_plain(repr(read_model(bad)))
    ended = call("run", bad, "--train", "never", "--learn", "0", "--title", NASTY, "-o", "out")
    assert ended.code == 0, ended
    check_plain(ended.out + ended.err)
    check_plain(Path("out/report.html").read_text(encoding="utf-8"))
    ended = call("extract", bad, "-o", f"{NASTY}.npz")
    assert ended.code == 0
    check_plain(ended.out + ended.err)
    assert Path(f"{NASTY}.npz").is_file()  # names are shown otherwise, and used as they are


def test_bytes_that_are_no_text_are_no_controls(call: Any, world: World) -> None:
    """0x9b begins a command on some terminals, and such bytes may pass as they are."""
    ended = call("extract", world.lake, "-o", os.fsdecode(b"out\x9b1m.npz"))
    assert ended.code == 0
    assert r"out\udc9b1m.npz" in ended.out


def test_messages_have_one_line_and_no_controls() -> None:
    for kind in (BisimError, InvalidArgumentError, MissingDependency):
        assert str(kind(f"a{NASTY}b\n\tc")) == "a\ufffd[31m\ufffd\ufffdb  c"
    assert BisimError(3, None).args == (3, None)


def test_progress_has_no_controls() -> None:
    check_plain(_sentence(Progress(f"x{NASTY}", 1, 2, NASTY), 1.0))


# -- what is written ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["extract", "train", "certify", "solve", "report", "export"])
def test_pipes_and_devices_are_no_targets(name: str, call: Any, world: World) -> None:
    words = command(name, world, world.lake)
    target = Path(words[-1])
    os.mkfifo(target)
    ended = call(*words)
    assert ended.code == 2, ended
    assert "is a pipe, which a file must not replace" in ended.err
    assert ended.err.count("\n") == 1
    assert stat.S_ISFIFO(target.stat().st_mode)


def test_pipes_are_no_sources(call: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    pipe = tmp_path_factory.mktemp("pipes") / "pipe.npz"
    os.mkfifo(pipe)
    check_refused(call("extract", pipe, "-o", "m.npz"), "is a pipe; only regular files are read")


# -- discounts that are hardly numbers ---------------------------------------------------------


@pytest.mark.parametrize("gamma", ["5e-324", "1e-310"])
def test_subnormal_discounts_are_refused(gamma: str, call: Any, world: World) -> None:
    ended = call("certify", world.lake, "--gamma", gamma, "-o", "c.npz")
    check_refused(ended, "gamma must be 0 or at least")
    with pytest.raises(InvalidArgumentError, match="fewer digits"):
        certify(sparse_mdp(4, 2, seed=0), float(gamma))


@pytest.mark.parametrize("gamma", [0.0, sys.float_info.min])
def test_the_smallest_discounts_are_taken(gamma: float) -> None:
    mdp: TabularMDP = sparse_mdp(4, 2, seed=0)
    found = certify(mdp, gamma)
    assert found.gamma == gamma
    assert verify(mdp, found).is_valid


def test_the_verifier_refuses_subnormal_discounts() -> None:
    mdp = sparse_mdp(4, 2, seed=0)
    found = certify(mdp, sys.float_info.min)
    claims = SimpleNamespace(
        **{each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
    )
    assert verify(mdp, claims).is_valid  # type: ignore[arg-type]  # only attributes are read
    claims.gamma = 5e-324
    said = verify(mdp, claims)  # type: ignore[arg-type]
    assert not said.is_valid
    assert "gamma must be 0 or a normal number" in said.problem


# -- interruptions -----------------------------------------------------------------------------

# Sends the signal when a module is asked for; found by Python itself before anything else runs.
HOOK = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
SCRIPT = "import sys; from bisim_abstract._app.cli import console; sys.exit(console())\n"
OURS = "bisim_abstract._app"
MOMENTS = ("gymnasium", "numpy", "argparse", f"{OURS}.cli", f"{OURS}.sources")


def interrupted(
    moment: str, folder: Path, *, is_script: bool, before: Any = None
) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(HOOK)
    script = folder / "bisim-abstract"
    script.write_text(SCRIPT)
    words = [str(script)] if is_script else ["-m", "bisim_abstract"]
    return subprocess.run(
        [sys.executable, *words, "extract", "FrozenLake-v1", "-o", str(folder / "m.npz")],
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "INTERRUPT_AT": moment},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("is_script", [True, False], ids=["script", "module"])
def test_interruptions_while_starting(moment: str, is_script: bool, tmp_path: Path) -> None:
    done = interrupted(moment, tmp_path, is_script=is_script)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "bisim-abstract: interrupted: nothing was written\n"


def test_who_ignores_interruptions_goes_on(tmp_path: Path) -> None:
    """As a shell starts jobs in the background."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = interrupted("numpy", tmp_path, is_script=True, before=ignore)
    assert done.returncode == 0, done.stderr


def test_processes_of_others_are_left_alone(tmp_path: Path) -> None:
    code = (
        "import signal, bisim_abstract\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    for words in (["-c", code], ["-m", "other", "-m", "bisim_abstract"]):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "__init__.py").write_text(code)
        (tmp_path / "other" / "__main__.py").write_text("")
        done = subprocess.run(
            [sys.executable, *words],
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
