"""Exit codes: not certified, poor, rejected, interrupted, faulty."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract import (
    Certificate,
    TabularMDP,
    verify,
)
from bisim_abstract._app import cli, sources
from bisim_abstract._app.cli import main
from bisim_abstract._base import starting
from bisim_abstract._prove import driver
from tests.support.commands import COMMANDS, SMALL, World, check_refused, command, loaded

# -- exit codes --------------------------------------------------------------------------------


def test_not_certified_is_3(call: Any, world: World) -> None:
    goal = ["--tau", "0.05", "--max-pairs", "0", "--propose", "rewards"]
    ended = call("certify", world.lake, *goal, "-o", "c.npz", "--json")
    assert ended.code == 3
    assert loaded(ended.out)["certified"] is False
    assert Path("c.npz").is_file()
    # Its bounds hold, and a report of it can be written: both did what they were asked for.
    assert call("verify", world.lake, world.unclear).code == 0
    report = call("report", world.lake, world.unclear, "-o", "r.html", "--json")
    assert report.code == 0
    assert loaded(report.out)["verdict"].startswith(
        "NOT CERTIFIED at tau 0.05: between 6 and 16 clusters of 16 states (plus"
    )
    assert Path("r.html").is_file()
    run = call("run", world.lake, "--train", "never", "--learn", "0", *goal, "-o", "run")
    assert run.code == 3
    assert "NOT CERTIFIED" in run.out
    assert Path("run/report.html").is_file()


def test_certified_and_poor_is_5(call: Any, world: World) -> None:
    """Everything in one cluster: certified, and worth nothing."""
    ended = call("certify", world.lake, "--tau", "1000", "-o", "c.npz", "--json")
    assert ended.code == 5
    found = loaded(ended.out)
    assert (found["certified"], found["level"], found["clusters"]) == (True, "poor", 1)
    assert found["kept"] < 0.95
    assert found["sentence"].startswith(
        "CERTIFIED, BUT agents may do no better than the baseline: "
    )
    # One goal at a time.
    ended = call("certify", world.lake, "--tau", "1000", "--keep", "0.5", "-o", "c.npz")
    assert ended.code == 2
    assert "give keep or tau, not both" in ended.err
    run = call("run", *SMALL, "--train", "never", "--learn", "0", "--tau", "1e-9", "-o", "run")
    assert run.code == 5
    assert "CERTIFIED, BUT nothing can be merged" in run.out
    assert "closest  states " in run.out


def test_goals_by_value(call: Any, world: World) -> None:
    words = ("certify", world.lake, "-o", "c.npz", "--json")
    by_share = loaded(call(*words, "--keep", "0.5").out)
    by_loss = loaded(call(*words, "--max-loss", "0.01").out)
    assert by_share["kept"] >= 0.5
    assert by_loss["loss"] <= 0.01
    assert by_share["clusters"] <= 6 < by_loss["clusters"]


def test_solve_without_a_proof_is_3(call: Any, world: World) -> None:
    ended = call("solve", world.lake, world.unclear, "--json", "-o", "s.npz")
    assert ended.code == 3
    assert "NOT CERTIFIED at tau 0.05: between 6 and 16 clusters of 16 states (plus" in ended.err
    assert loaded(ended.out)["exit_code"] == 3
    assert not Path("s.npz").exists()


def test_without_a_threshold_there_is_nothing_to_agree_on(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.bare, "--json")
    assert ended.code == 0
    found = loaded(ended.out)
    assert found["clusters"] is found["kept"] is found["loss"] is found["tau"] is None
    assert call("report", world.lake, world.bare, "-o", "r.html").code == 0
    ended = call("solve", world.lake, world.bare)
    assert ended.code == 2
    assert "give --tau" in ended.err


def test_rejected_is_4(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.forged, "--json")
    assert ended.code == 4
    found = loaded(ended.out)
    assert (found["is_valid"], found["verdict"]) == (False, "rejected")
    assert found["problem"]
    assert "REJECTED" in call("verify", world.lake, world.forged).out
    ended = call("report", world.lake, world.forged, "-o", "r.html")
    assert ended.code == 4
    assert Path("r.html").is_file()
    assert "REJECTED" in ended.out
    ended = call("solve", world.lake, world.forged, "-o", "s.npz")
    assert ended.code == 4
    assert ended.err.count("\n") == 1
    assert not Path("s.npz").exists()


def test_a_certificate_of_another_model_is_4(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.rooms_certificate)
    assert ended.code == 4
    assert "fingerprint" in ended.out
    assert call("solve", world.lake, world.rooms_certificate).code == 4


@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_is_130(
    name: str, call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "read_model", interrupted)
    ended = call(*command(name, world, world.lake), "--json")
    assert ended.code == 130
    assert ended.err.startswith("bisim-abstract: interrupted")
    assert ended.err.count("\n") == 1
    assert loaded(ended.out)["exit_code"] == 130
    left = "nothing is kept yet; give the same command again"
    assert f"interrupted: {left if name == 'run' else 'nothing was written'}\n" in ended.err


def interrupting(after: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does its work, and is interrupted right after it."""

    def done(*args: Any, **kwargs: Any) -> None:
        after(*args, **kwargs)
        raise KeyboardInterrupt

    return done


@pytest.mark.parametrize("name", ["extract", "train", "certify", "solve", "report"])
def test_what_was_written_before_an_interruption_is_named(
    name: str, call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.Out, "finish", interrupting(lambda *args, **kwargs: None))
    words = command(name, world, world.lake)
    for quiet in ([], ["--quiet"]):  # over what was there before, too
        ended = call(*words, *quiet)
        assert ended.code == 130
        assert ended.err == f"bisim-abstract: interrupted: {words[-1]} is written\n"


def test_a_checkpoint_is_named(call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Certificate.save
    monkeypatch.setattr(Certificate, "save", interrupting(save))
    monkeypatch.setattr(driver._Run, "_certificate", interrupted_twice(driver._Run._certificate))
    words = ("certify", world.lake, "-o", "c.npz", "--checkpoint", "k.npz")
    ended = call(*words)
    assert ended.code == 130
    assert "the steps that were done are kept in k.npz; the same command goes on" in ended.err
    assert not Path("c.npz").exists()
    assert Certificate.load("k.npz").stop == "unfinished"


def test_what_is_being_written_is_written_before_an_interruption_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "is_command", lambda: True)
    before, done = signal.getsignal(signal.SIGINT), []

    def write() -> None:
        with starting.finishing():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("written")

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert done == ["written"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with starting.finishing():
            done.append("again")
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted_twice(make: Callable[..., Any]) -> Callable[..., Any]:
    """Certificates as they are made, but for those that an interruption leaves."""

    def made(self: Any, stop: str, **kwargs: Any) -> Any:
        if stop != driver.UNFINISHED:
            raise KeyboardInterrupt
        return make(self, stop, **kwargs)

    return made


def test_certify_keeps_what_it_has_when_interrupted(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_ignore", interrupt)
    ended = call("certify", world.lake, "-o", "c.npz", "--quiet")
    assert ended.code == 130
    assert ended.err == "bisim-abstract: interrupted: what is proven so far is in c.npz\n"
    found = Certificate.load("c.npz")
    assert found.stop == "interrupted in step 1"
    with zipfile.ZipFile("c.npz") as archive:  # packing it would take most of the time
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    assert verify(TabularMDP.load(world.lake), found).is_valid


def broken(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("boom\nand more")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_fault_is_1(name: str, call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "read_model", broken)
    ended = call(*command(name, world, world.lake), "--json")
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "RuntimeError: boom and more" in ended.err
    assert "--debug" in ended.err
    assert loaded(ended.out) == {"error": ended.err[16:-1], "exit_code": 1}
    with pytest.raises(RuntimeError, match="boom"):
        main([str(word) for word in [*command(name, world, world.lake), "--debug"]])


def test_memory_is_bad_input(call: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise MemoryError("4 TiB")

    monkeypatch.setattr(sources, "read_model", full)
    check_refused(call("extract", world.lake, "-o", "m.npz"), "out of memory 4 TiB")
