"""The progress line: where it is shown, how often, and that it never stays behind."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Covering,
    QLearning,
    abstract_env,
    bisimulation_metric,
    certify,
    learning_curve,
    value_iteration,
    verify,
    write_report,
)
from bisim_abstract._base import progress as _progress
from bisim_abstract._base.progress import shown
from bisim_abstract._base.types import Progress
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract.encoders import Encoder, MICoEncoder, collect_transitions
from bisim_abstract.parts import grouped_mdp, random_mdp, single_build, value_features
from bisim_abstract.wrappers import RoomsGridEnv, enumerate_mdp, extract_mdp
from tests.support.terminals import Terminal


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines appear at once."""
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)


def told(k: int) -> Progress:
    return Progress("sweeping", k, 40, f"residual 0.{k}")


def test_elsewhere_nothing_is_shown_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(None) as report:
        assert report is None
    heard: list[Progress] = []
    with shown(heard.append) as report:
        assert report == heard.append
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_plain_lines_are_few_and_end_with_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Progress] = []
    with shown(heard.append, True) as report:
        assert report is not None
        for k in range(1, 1001):
            report(told(k))
    assert len(heard) == 1000
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        "sweeping: 1 of 40, residual 0.1",
        "sweeping: 1,000 of 40, residual 0.1000",
    ]


def test_short_work_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(None, True) as report:
        assert report is not None
        report(told(1))
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_a_terminal_gets_a_line_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with shown(None) as report:
        assert report is not None
        report(told(7))
    assert "sweeping: 7" in screen.getvalue()
    assert "\x1b[2K" in screen.getvalue()  # the line is erased
    quiet: list[dict[str, Any]] = [
        {"callback": lambda _: None},
        {"callback": None, "on_terminal": False},
    ]
    for arguments in quiet:
        with shown(**arguments) as report:
            assert report is arguments["callback"]


@pytest.mark.usefixtures("impatient")
def test_a_notebook_gets_one_output_that_is_emptied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs: list[list[str]] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            outputs[-1].append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        outputs.append([data["text/plain"]])
        return Handle()

    module: Any = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(_progress, "_is_notebook", lambda: True)
    monkeypatch.setattr(_progress, "PACE", 0.0)
    with shown(None, True) as report:
        assert report is not None
        report(told(1))
        report(told(2))
    assert [text.partition(",")[0] for text in outputs[0]] == [
        "sweeping: 1 of 40",
        "sweeping: 2 of 40",
        "",
    ]
    assert len(outputs) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_calls_inside_a_call_show_no_line_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(None, True), shown(None, True) as inner:
        assert inner is None
    with pytest.raises(KeyboardInterrupt), shown(None, True):
        raise KeyboardInterrupt
    with shown(None, True) as report:  # the line of an interrupted call is free again
        assert report is not None


def test_processes_without_standard_error_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    with shown(None) as report:
        assert report is None
    with shown(None, True) as report:
        assert report is not None
        report(told(1))


LONG: list[Callable[..., Any]] = [
    abstract_env,
    bisimulation_metric,
    certify,
    Certificate.frontier,
    collect_transitions,
    Encoder.fit,
    enumerate_mdp,
    extract_mdp,
    learning_curve,
    single_build,
    value_features,
    value_iteration,
    verify,
    write_report,
]


@pytest.mark.parametrize("call", LONG, ids=lambda call: call.__qualname__)
def test_long_calls_take_progress_beside_callback(call: Callable[..., Any]) -> None:
    parameters = inspect.signature(call).parameters
    names = list(parameters)
    assert names.index("progress") == names.index("callback") + 1
    progress = parameters["progress"]
    assert progress.default is False
    assert progress.kind is inspect.Parameter.KEYWORD_ONLY


MDP = random_mdp(6, seed=0)


def curve() -> None:
    def make(seed: int) -> QLearning:
        return QLearning(RoomsGridEnv(side=4, room_size=2), gamma=0.9, seed=seed)

    learning_curve("agent", make, lambda policy: 0.5, [5, 10], seeds=2, progress=True)


CALLS: dict[str, tuple[Callable[[Path], object], str]] = {
    "certify": (lambda _: certify(MDP, 0.9, progress=True), "looking for"),
    "covered": (
        lambda _: certify(MDP, 0.9, method=Covering(), tau=0.1, progress=True),
        "",
    ),
    "collect": (
        lambda _: collect_transitions("FrozenLake-v1", 20, progress=True),
        "collecting: 20 of 20",
    ),
    "curve": (lambda _: curve(), "learning: 20 of 20, agent, seed 1, score 0.5"),
    "features": (lambda _: value_features(MDP, 0.9, progress=True), "value features: "),
    "fit": (
        lambda _: MICoEncoder(dim=2, steps=3).fit(MDP, n_transitions=9, progress=True),
        "training: 3 of 3, loss ",
    ),
    "frontier": (lambda _: certify(MDP, 0.9).frontier(progress=True), "tracing the frontier: "),
    "metric": (lambda _: bisimulation_metric(MDP, 0.9, progress=True), "residual "),
    "report": (
        lambda folder: write_report(folder / "r.html", MDP, certify(MDP, 0.9), progress=True),
        "tracing the frontier: ",
    ),
    "single": (
        lambda _: single_build(MDP, 0.9, sweeps=2, progress=True),
        "certifying, round: 1 of 1",
    ),
    "verify": (lambda _: verify(MDP, certify(MDP, 0.9), progress=True), ""),
    "values": (lambda _: value_iteration(MDP, 0.9, progress=True), "value iteration: "),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", CALLS)
def test_long_calls_show_it_in_logs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call, expected = CALLS[name]
    call(tmp_path)
    found = capsys.readouterr()
    assert expected in found.err
    assert found.err.endswith(" s)\n")
    assert found.out == ""


def test_results_do_not_depend_on_it() -> None:
    mdp, _ = grouped_mdp(20, 4, seed=1)
    quiet, loud = certify(mdp, 0.9), certify(mdp, 0.9, progress=True)
    assert np.array_equal(quiet.labels, loud.labels)
    assert quiet.tau == loud.tau
