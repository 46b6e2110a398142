"""Commands as processes: modules to import, warnings, pipes, memory, what is written over."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from bisim_abstract import (
    Certificate,
    TabularMDP,
)
from bisim_abstract._app import cli
from bisim_abstract._app.cli import main
from bisim_abstract._base import memory
from bisim_abstract._prove.driver import prove
from tests.support import ROOT
from tests.support.commands import World, check_refused, command, loaded, started

# -- memory ------------------------------------------------------------------------------------


def limited(*words: str, most: int) -> subprocess.CompletedProcess[str]:
    """A command whose address space is limited."""
    code = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, ({most}, {most})); "
        f"sys.argv = ['bisim-abstract', *{list(words)!r}]; "
        "runpy.run_module('bisim_abstract', run_name='__main__', alter_sys=False)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )


def test_too_little_address_space_is_told(tmp_path: Path) -> None:
    target = tmp_path / "c.npz"
    done = limited("certify", "FrozenLake-v1", "-o", str(target), "--json", most=500 * 10**6)
    assert done.returncode == 2
    sentence = done.stderr.strip()
    assert sentence.startswith("bisim-abstract: the address space of this process is limited to ")
    assert "500.0 MB" in sentence
    assert "ulimit -v" in sentence
    assert json.loads(done.stdout)["exit_code"] == 2
    assert not target.exists()
    assert limited("--version", most=500 * 10**6).returncode == 0


def test_training_needs_more_address_space(
    monkeypatch: pytest.MonkeyPatch, call: Any, world: World
) -> None:
    monkeypatch.setattr(memory, "address_limit", lambda: 10**14)
    monkeypatch.setattr(memory, "TORCH", 2 * 10**14)
    check_refused(call("train", world.lake, "-o", "e.npz"), "limited to 100.0 TB", "ulimit -v")


@pytest.mark.parametrize("kind", [ImportError, OSError])
def test_libraries_that_cannot_be_loaded_name_the_limit(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = kind("failed to map segment from shared object")
    monkeypatch.setattr(memory, "address_limit", lambda: 10**9)
    code, text = cli._explained(error)
    assert code == 2
    assert "address space of this process is limited to 1.0 GB" in text


# -- imports, warnings, pipes ------------------------------------------------------------------


MODULE = """
import gymnasium as gym


class Tiny(gym.Env):
    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)
    P = {0: {0: [(1.0, 1, 2.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)]}}
    initial_state_distrib = [1.0, 0.0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.s = 0
        return 0, {}

    def step(self, action):
        reward = 2.0 if self.s == 0 else 0.0
        self.s = 1 - self.s
        return self.s, reward, False, False, {}


gym.register("tests/Tiny-v0", entry_point=Tiny)
"""


@pytest.fixture
def module(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "tiny_world_of_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    yield "tiny_world_of_tests"
    sys.modules.pop("tiny_world_of_tests", None)
    gym.registry.pop("tests/Tiny-v0", None)


def test_modules_that_register(call: Any, module: str) -> None:
    check_refused(call("extract", "tests/Tiny-v0", "-o", "m.npz"), "tests/Tiny-v0")
    # Gymnasium itself would import what stands before a colon.
    check_refused(call("extract", f"{module}:tests/Tiny-v0", "-o", "m.npz"), f"--import {module}")
    assert module not in sys.modules
    assert call("extract", "tests/Tiny-v0", "--import", module, "-o", "m.npz").code == 0
    mdp = TabularMDP.load("m.npz")
    assert mdp.rewards[:2].tolist() == [[2.0], [0.0]]


def test_modules_of_the_present_directory(tmp_path: Path) -> None:
    """A script does not look there by itself, other than `python -m`."""
    (tmp_path / "tiny_world_beside.py").write_text(MODULE)
    command = ["extract", "tests/Tiny-v0", "--import", "tiny_world_beside", "-o", "m.npz"]
    code = "from bisim_abstract._app.cli import console; console()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.npz").exists()


@pytest.mark.filterwarnings("default")
def test_warnings_are_notes(call: Any) -> None:
    pair = ("CliffWalking-v0", "CliffWalking-v1")
    [retired] = [name for name in pair if name not in gym.registry]
    before = warnings.showwarning
    ended = call("extract", retired, "-o", "m.npz", "--json")
    assert ended.code == 0
    assert ended.err.startswith(f"note: {retired} is not in Gymnasium")
    assert ended.err.count("\n") == 1
    assert loaded(ended.out)["states"] == 49
    assert warnings.showwarning is before


@pytest.mark.filterwarnings("default")
def test_notes_do_not_speak_of_options_that_nobody_gave(call: Any) -> None:
    [retired] = [f"CliffWalking-v{k}" for k in (0, 1) if f"CliffWalking-v{k}" not in gym.registry]
    assert "options" not in call("extract", retired, "-o", "m.npz").err


@pytest.mark.filterwarnings("default")
def test_warnings_of_imports_are_notes(
    call: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "warning_module_of_tests.py").write_text("import warnings\nwarnings.warn('ho')\n")
    monkeypatch.syspath_prepend(str(folder))
    ended = call("extract", world.lake, "--import", "warning_module_of_tests", "-o", "m.npz")
    sys.modules.pop("warning_module_of_tests")
    assert (ended.code, ended.err) == (0, "note: ho\n")


@pytest.mark.parametrize("kind", ["text", "json", "run", "error"])
def test_a_closed_pipe_ends_quietly(
    kind: str,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = {
        "text": command("extract", world, world.lake),
        "json": [*command("extract", world, world.lake), "--json"],
        "run": command("run", world, world.lake),
        "error": [*command("extract", world, "Nope-v0"), "--json"],
    }[kind]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        try:
            code: Any = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        finally:
            # Whatever happened, closing it must not fail in this process.
            with open(os.devnull, "w") as hole:
                os.dup2(hole.fileno(), pipe.fileno())
    err = capsys.readouterr().err
    assert code == (2 if kind == "error" else 0)
    assert err == "" or (kind == "error" and err.count("\n") == 1)


def test_the_module_is_the_command(world: World) -> None:
    """As a process: no traceback without --debug, a traceback with it."""
    done = started("-m", "bisim_abstract", "extract", "Nope-v0", "-o", "m.npz")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bisim-abstract: no environment 'Nope-v0'")
    assert done.stderr.count("\n") == 1
    done = started("-m", "bisim_abstract", "extract", "Nope-v0", "--debug")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "ExtractionError" in done.stderr


def test_head_of_the_output(world: World) -> None:
    command = f"{sys.executable} -m bisim_abstract solve {world.lake} | head -1"
    done = subprocess.run(
        command,
        shell=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{world.lake}, gamma = 0.9\n"
    assert done.stderr == ""


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("500mb", 5 * 10**8), ("1.5 kB", 1500), ("7", 7), ("2TB", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert cli._bytes(text) == size


@pytest.mark.parametrize("text", ["", "4XB", "GB", "-1", "0", "nan", "1e99TB", "4GBGB"])
def test_bad_sizes(call: Any, world: World, text: str) -> None:
    ended = call("certify", world.lake, f"--memory-limit={text}")
    check_refused(ended, "must be a size such as 500MB")


def test_memory_limits_are_kept(call: Any, world: World) -> None:
    ended = call("certify", world.rooms, "--memory-limit", "1kB", "-o", "c.npz")
    check_refused(ended, "allowed by memory_limit", "needs")


def test_memory_limits_of_a_check_are_kept(call: Any, world: World) -> None:
    arguments = ("verify", world.rooms, world.rooms_certificate, "--memory-limit")
    check_refused(call(*arguments, "1kB"), "allowed by memory_limit", "checking a certificate")
    assert call(*arguments, "1GB").code == 0


def test_names_that_are_no_text_are_shown_escaped(call: Any, world: World) -> None:
    """Found by fuzzing: the file was written, and telling so was a fault of this program."""
    ended = call("extract", world.lake, "-o", os.fsdecode(b"out\xff.npz"))
    assert ended.code == 0
    assert r"out\udcff.npz" in ended.out
    assert Path(os.fsdecode(b"out\xff.npz")).is_file()


@pytest.mark.parametrize("flag", ["--checkpoint", "--encoder", "--import", "--out"])
def test_null_characters_are_bad_input(flag: str, call: Any, world: World) -> None:
    """Found by fuzzing; a shell cannot pass one, a program can."""
    ended = call("certify", world.lake, flag, "a\0b")
    assert ended.code == 2
    assert "null" in ended.err


def test_what_is_read_is_not_written_over(call: Any, world: World) -> None:
    before = world.lake.read_bytes()
    ended = call("certify", world.lake, "-o", world.lake)
    assert ended.code == 2
    assert "is what is read; give another file to write" in ended.err
    assert world.lake.read_bytes() == before


def test_half_a_run_does_not_replace_a_whole_one(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("certify", world.lake, "-o", "c.npz").code == 0
    before = Path("c.npz").read_bytes()
    home = importlib.import_module("bisim_abstract._prove.driver")

    def interrupted(*args: Any, **kwargs: Any) -> Certificate:
        return dataclasses.replace(prove(*args, **kwargs), stop="interrupted in step 1")

    monkeypatch.setattr(home, "prove", interrupted)
    ended = call("certify", world.lake, "-o", "c.npz")
    assert ended.code == 130
    assert "c.npz.interrupted" in ended.out
    assert Path("c.npz").read_bytes() == before
    assert Certificate.load("c.npz.interrupted").stop == "interrupted in step 1"


@pytest.mark.filterwarnings("default")
def test_colours_of_others_do_not_come_through(call: Any) -> None:
    ended = call("extract", "FrozenLake", "-o", "m.npz")  # Gymnasium warns, in yellow
    assert ended.code == 0
    assert ended.err.startswith("note: ")
    assert "\x1b" not in ended.err


def test_errors_of_gymnasium_are_no_faults_of_ours(call: Any) -> None:
    ended = call("extract", "FrozenLake-v1", "--env-arg", "map_name=9x9", "-o", "m.npz")
    assert ended.code == 2
    assert "fault" not in ended.err
