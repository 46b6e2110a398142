"""What commands print: stages, colours, one object, or nothing."""

from __future__ import annotations

import dataclasses
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract import (
    Certificate,
    Verification,
    __version__,
    verify,
)
from bisim_abstract._app import compile as _compile
from bisim_abstract._app import runs
from bisim_abstract._app.cli import main
from bisim_abstract._base import jit
from bisim_abstract._base.types import Progress
from bisim_abstract._prove.driver import prove
from tests.support.commands import COMMANDS, World, check_refused, command, loaded, started
from tests.support.terminals import Terminal

# -- good paths --------------------------------------------------------------------------------


def test_stages_are_announced_when_they_begin(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def heard(*args: Any, **kwargs: Any) -> Certificate:
        seen.append(capsys.readouterr().out)
        return prove(*args, **kwargs)

    monkeypatch.setattr(runs, "prove", heard)
    assert main([str(word) for word in command("run", world, world.lake)]) == 0
    assert seen[0].splitlines()[-1] == "  certify ..."


@pytest.mark.parametrize("more", [(), ("--quiet",), ("--json",)])
def test_logs_are_told_that_solvers_are_compiled(
    more: tuple[str, ...], call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(*args: Any, callback: Any, **kwargs: Any) -> Certificate:
        callback(Progress("compile", 0, None, "compiling solvers, once, about 20 s"))
        callback(Progress("compile", 1, 2, "more of them"))
        callback(Progress("sweeping", 1, None, "moved 0.1"))
        return prove(*args, callback=callback, **kwargs)

    monkeypatch.setattr(runs, "prove", compiling)
    ended = call(*command("run", world, world.lake), *more)
    assert ended.code == 0
    is_quiet = "--quiet" in more
    assert ended.err == ("" if is_quiet else "note: compiling solvers, once, about 20 s\n")


def test_compiling_is_told_apart(call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 seconds that went by, 99 went into compiling."""
    monkeypatch.setattr(jit._watch, "is_kept", True)
    clock = iter(range(0, 10**6, 100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))

    def slow(*args: Any, **kwargs: Any) -> Certificate:
        found = prove(*args, **kwargs)
        return dataclasses.replace(found, run={**found.run, "compile_seconds": 99.0})

    def slowly(*args: Any, **kwargs: Any) -> Verification:
        return dataclasses.replace(verify(*args, **kwargs), compile_seconds=99.0)

    for module, name, patch in (
        ("_prove.driver", "prove", slow),
        ("_verify.verify", "verify", slowly),
    ):
        monkeypatch.setattr(sys.modules[f"bisim_abstract.{module}"], name, patch)
    for words in (
        ["certify", world.lake, "-o", "c.npz"],
        ["verify", world.lake, world.certificate],
    ):
        ended = call(*words)
        assert ended.code == 0
        took = next(line for line in ended.out.splitlines() if line.split()[0] == "took")
        assert re.fullmatch(r"  took +\S+ s, and 99.0 s to compile the solvers, once", took)
        found = loaded(call(*words, "--json").out)
        assert found["compile_seconds"] == 99.0
        assert found["seconds"] % 100.0 == 1.0


def test_compiling_in_stages_is_told_apart(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any, **kwargs: Any) -> Certificate:
        found = prove(*args, **kwargs)
        return dataclasses.replace(found, run={**found.run, "compile_seconds": 7.0})

    monkeypatch.setattr(runs, "prove", slow)
    words = command("run", world, world.lake)[:-1]
    for is_kept, often in ((True, "once"), (False, "in every process")):
        monkeypatch.setattr(jit._watch, "is_kept", is_kept)
        ended = call(*words, often)
        assert f"    0.0 s, and 7.0 s to compile the solvers, {often}: CERTIFIED: " in ended.out
    found = loaded(call(*words, "s", "--json").out)
    rows = {row["stage"]: row["compile_seconds"] for row in found["stages"]}
    assert rows["certify"] == 7.0
    assert found["compile_seconds"] == sum(rows.values())


@pytest.mark.parametrize(
    ("fresh", "row"), [(3, "  compiled  in 1.5 s"), (0, "  compiled  all of them before")]
)
def test_compile(fresh: int, row: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compiled(*, jobs: int | None, callback: Any) -> _compile.Compiled:
        asked.append(jobs)
        callback(Progress("compile", 0, 5, "compiling solvers, once, about 9 s"))
        callback(Progress("compile", 1, 5, "1 of 5 parts"))
        return _compile.Compiled(n_kernels=5, n_fresh=fresh, seconds=1.5)

    monkeypatch.setattr(_compile, "compile_kernels", compiled)
    ended = call("compile", "--jobs", "2")
    assert ended.code == 0
    assert ended.out.splitlines() == ["5 solvers ready for use", row]
    assert ended.err == "note: compiling solvers, once, about 9 s\n"
    ended = call("compile", "--json")
    assert (ended.code, ended.err) == (0, "note: compiling solvers, once, about 9 s\n")
    assert loaded(ended.out) == {"kernels": 5, "compiled": fresh, "seconds": 1.5}
    assert call("compile", "--quiet") == (0, "", "")
    assert asked == [2, None, None]


def test_compile_refuses(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_refused(call("compile", "--jobs", "0"), "must be at least 1")
    nothing = _compile.Compiled(n_kernels=0, n_fresh=0, seconds=1.0)
    monkeypatch.setattr(_compile, "compile_kernels", lambda **kwargs: nothing)
    check_refused(call("compile"), "set NUMBA_CACHE_DIR to one that is")


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_pipes_get_no_colours(
    name: str, more: tuple[str, ...], call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the environment asks for them, as services for integration do."""
    monkeypatch.setenv(name, "1")
    for words in (
        command("verify", world, world.lake),
        command("run", world, world.lake),
        ["verify", world.lake, world.forged],
        ["verify", "Nope-v0", world.forged],
    ):
        ended = call(*words, *more)
        assert ended.out + ended.err
        assert "\x1b" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("settings", "has_colours"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),  # as no-color.org has it
        ({"TERM": "dumb"}, False),
    ],
)
def test_terminals_get_colours(
    settings: dict[str, str], has_colours: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main([str(word) for word in command("verify", world, world.lake)]) == 0
    text = terminal.getvalue()
    assert text.startswith("\x1b[1;32mverified: ") is has_colours
    assert ("\x1b" in text) is has_colours


@pytest.mark.parametrize("name", COMMANDS)
def test_quiet_prints_nothing(name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, world.lake), "--quiet")
    assert ended == (0, "", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_json_prints_one_object(name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, world.lake), "--json", "--quiet")
    assert (ended.code, ended.err) == (0, "")
    loaded(ended.out)


def test_version(call: Any) -> None:
    assert call("--version") == (0, f"bisim-abstract {__version__}\n", "")


# -- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help(name: str, call: Any) -> None:
    ended = call(*name.split(), "--help")
    assert (ended.code, ended.err) == (0, "")
    for text in ("usage: bisim-abstract", "exit codes:", "130  interrupted"):
        assert text in ended.out
    for option in ("--json", "--quiet", "--debug", "--threads", "--seed"):
        assert (option in ended.out) == bool(name)
    if not name:
        assert all(command in ended.out for command in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from bisim_abstract._app.cli import main
for words in [["--help"], *([name, "--help"] for name in {COMMANDS!r})]:
    try:
        main(words)
    except SystemExit as stop:
        assert stop.code == 0
heavy = {{"torch", "faiss", "numba", "scipy", "rich"}}
ours = {{name for name in sys.modules if name.startswith("bisim_abstract.")}}
light = ("_app", "_app.cli", "_base", "_base.checks", "_base.memory", "_base.reading")
light += ("_base.starting", "_base.text", "_base.types", "_register", "_version", "errors")
ours -= {{f"bisim_abstract.{{name}}" for name in light}}
print(sorted(heavy & set(sys.modules)), sorted(ours), file=sys.stderr)
"""
    done = started("-c", code)
    assert (done.returncode, done.stderr) == (0, "[] []\n")


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), (["--version"], 0), (["certify", "--gama"], 2)]
)
def test_help_answers_at_once(words: list[str], code: int) -> None:
    """In seconds of work, which other work on the machine does not lengthen much."""
    took = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert started("-m", "bisim_abstract", *words).returncode == code
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if min(took) < 0.3:
            return
    pytest.fail(f"took {min(took):.2f} s")


def test_the_end_does_not_take_objects_down_one_by_one() -> None:
    """That took seconds after torch. What is registered to be done at the end is done."""
    code = """
import atexit, sys
from bisim_abstract._app.cli import console

class Late:
    def __del__(self):
        print("taken down")

late = Late()
atexit.register(print, "at the end")
sys.argv = ["bisim-abstract", "extract", "FrozenLake-v1", "--quiet"]
console()
"""
    done = started("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "at the end\n", "")
    assert Path("mdp.npz").is_file()
    done = started("-m", "bisim_abstract", "extract", "Nope-v0", "--json")
    assert done.returncode == 2
    assert loaded(done.stdout)["exit_code"] == 2
