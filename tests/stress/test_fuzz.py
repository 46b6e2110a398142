"""A short run of every fuzzing target, and proof that the oracles can fail."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Certificate, TabularMDP, Verification, bisimulation_metric
from bisim_abstract.parts import sparse_mdp
from tests.stress import commands, files, forging, fuzz, running, solvers, truth
from tests.stress.certifying import make_certificate
from tests.stress.damage import archive_of, members_of, read_arrays
from tests.stress.running import COMPILE_SECONDS, Tally, Target
from tests.stress.strategies import models
from tests.support.oracles import backup_exact, metric_lp
from tests.support.worlds import BY_HAND

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CASES = {"certify": 30, "estimate": 20, "aggregate": 40, "cli": 40, "certificate": 150}


def run_fuzz(target: Target, kept: Path, *, cases: int = 1, seed: int = 0, **given: Any) -> Tally:
    return running.fuzz(target, cases=cases, seed=seed, kept=kept, **given)


def numbers(run: Callable[[int], bool], name: str = "number", **options: Any) -> Target:
    """A target whose cases are numbers."""
    cases = st.fixed_dictionaries({"number": st.integers(0, 2**60)})
    return Target(name, lambda _: (cases, lambda folder, number: run(number)), **options)


@pytest.mark.parametrize("name", list(fuzz.TARGETS))
def test_nothing_is_found(name: str, tmp_path: Path) -> None:
    target = dataclasses.replace(fuzz.TARGETS[name], limit=COMPILE_SECONDS)
    tally = run_fuzz(target, tmp_path, cases=CASES.get(name, 100), seed=1)
    assert tally.findings == []
    assert tally.accepted > 0  # a target that refuses everything tests nothing
    assert tally.cases == CASES.get(name, 100)


# -- oracles that must fail ------------------------------------------------------------------------


@pytest.mark.nightly
def test_an_unsound_certificate_that_is_accepted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gullible(mdp: TabularMDP, certificate: Certificate, **options: Any) -> Verification:
        return Verification(True, "verified", "float", "", 0.0, 0)

    monkeypatch.setattr(forging, "verify", gullible)
    # A search ends soon after it has found something: several, so that different things are found.
    findings = [
        finding
        for seed in range(8)
        for finding in run_fuzz(fuzz.TARGETS["certificate"], tmp_path, cases=60, seed=seed).findings
    ]
    texts = [finding.text for finding in findings]
    assert any("the values" in text for text in texts)  # a bound on values on the wrong side
    assert any("lower above upper" in text or "the metric" in text for text in texts)
    for finding in findings:
        assert finding.command.startswith("python -m tests.stress.fuzz certificate --replay A")
        assert finding.kept is not None
        assert (finding.kept / "input.npz").exists()
        assert TabularMDP.load(finding.kept / "model.npz").n_states > 1
        assert finding.text in (finding.kept / "finding.txt").read_text()


@pytest.mark.parametrize(
    ("names", "off", "text"),
    [
        (["lower", "upper"], 1e-6, "above the metric"),
        (["lower", "upper"], -1e-6, "below the metric"),
        (["labels_lower"], np.arange(5), "within tau in different clusters"),
        (["labels_upper"], np.zeros(5, np.int64), "in one cluster without links"),
    ],
)
def test_a_pair_or_a_cluster_that_is_wrong_is_reported(
    names: list[str], off: Any, text: str, tmp_path: Path
) -> None:
    mdp, path = sparse_mdp(5, 2, support=2, seed=3), tmp_path / "certificate.npz"
    known = truth.Truth(mdp)
    honest = make_certificate(mdp, 0.9, is_single=True, neighbours=2, tau=0.9, sweeps=20)
    truth.check_certificate(honest, known, 0.0)
    honest.save(path)
    arrays = read_arrays(path)
    near = known.tables(0.9)[0][np.divmod(arrays["keys"], 5)]
    arrays |= {name: off if name.startswith("labels") else near + off for name in names}
    files.seal_certificate(arrays)
    path.write_bytes(archive_of(members_of(arrays)))
    with pytest.raises(AssertionError, match=text):
        truth.check_certificate(Certificate.load(path), known, 0.0)


VALUE = ("optimal_upper", "optimal_lower", "policy_lower", "random_upper")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, f"{name} is ") for name in VALUE),
        *((f"bracket.{name}", f"bracket.{name} is ") for name in ("lower", "upper")),
        ("loss", "a state loses"),
        ("start_loss", "the start loses"),
        ("kept", "kept by proof"),
    ],
)
def test_a_value_that_is_off_by_little_is_reported(name: str, text: str) -> None:
    mdp = sparse_mdp(6, 2, support=2, seed=0)
    honest = make_certificate(mdp, 0.9, tau=100.0)  # all states in one cluster
    known = truth.Truth(mdp)
    truth.check_value(honest, known)
    value = honest.value
    assert value is not None
    assert value.start_loss > 0.01
    low, high = known.values(0.9, "optimal")
    own, chance = (
        known.values(0.9, policy)[1] for policy in (value.lifted_policy.tolist(), "random")
    )
    start = mdp.start / mdp.start.sum()
    numbers: dict[str, Any] = {
        "optimal_upper": low - 1e-6,
        "optimal_lower": high + 1e-6,
        "policy_lower": own + 1e-6,
        "random_upper": chance - 1e-6,
        "loss": float((low - own).max()) - 1e-6,
        "start_loss": float(start @ (low - own)) - 1e-6,
        "kept": float(start @ (own - chance)) / float(start @ (low - chance)) + 1e-6,
    }
    if name.startswith("bracket."):
        side = name.removeprefix("bracket.")
        robust = known.values(0.9, value.bracket.policy[value.labels].tolist())
        wrong = robust[1].min() + 1e-6 if side == "lower" else low.max() - 1e-6
        bracket = dataclasses.replace(value.bracket, **{side: np.full(1, wrong)})
        forged = dataclasses.replace(value, bracket=bracket)
    elif name == "loss":
        both = {"start_loss": min(value.start_loss, numbers["loss"]), "loss": numbers["loss"]}
        forged = dataclasses.replace(value, **both)
    else:
        forged = dataclasses.replace(value, **{name: numbers[name]})
    with pytest.raises(AssertionError, match=text):
        truth.check_value(honest.with_proven(forged), known)


def test_a_bound_that_is_off_by_little_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bold(mdp: TabularMDP, gamma: float, **options: Any) -> Any:
        found = bisimulation_metric(mdp, gamma, **options)
        far = found.class_upper * (1.0 + 1e-6)
        return dataclasses.replace(found, class_lower=far, class_upper=far)

    monkeypatch.setattr(solvers, "bisimulation_metric", bold)
    (finding,) = run_fuzz(fuzz.TARGETS["metric"], tmp_path, cases=150).findings
    assert "a lower bound above the metric" in finding.text
    assert finding.kept is not None
    assert TabularMDP.load(finding.kept / "model.npz").n_states == 2  # shrunk


def test_a_loader_that_raises_something_else_is_reported(tmp_path: Path) -> None:
    def check(folder: Path, path: Path) -> None:
        raise TypeError("unhashable type: 'list'")

    target = files.archive_target("bad", files.make_bridges, check)
    (finding,) = run_fuzz(target, tmp_path).findings
    assert (finding.kind, finding.text) == ("TypeError", "unhashable type: 'list'")


def work_forever() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("hang", "text"), [(work_forever, "running after 0.02"), (lambda: time.sleep(60), "waiting")]
)
def test_a_hang_is_reported(hang: Callable[[], None], text: str, tmp_path: Path) -> None:
    def run(number: int) -> bool:
        try:
            hang()
        except Exception:  # a handler under test must not swallow the alarm
            return False
        return True

    begin = time.perf_counter()
    (finding,) = run_fuzz(numbers(run, limit=0.02), tmp_path).findings
    assert finding.kind == "TimeoutError"
    assert text in finding.text
    assert time.perf_counter() - begin < 10


def test_a_warning_is_reported(tmp_path: Path) -> None:
    def run(number: int) -> bool:
        warnings.warn("overflow encountered in cast", RuntimeWarning, stacklevel=1)
        return True

    (finding,) = run_fuzz(numbers(run), tmp_path).findings
    assert finding.kind == "RuntimeWarning"
    assert run_fuzz(numbers(run, is_strict=False), tmp_path).findings == []


def test_memory_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter(range(0, 1 << 50, 2 << 30))
    monkeypatch.setattr("tests.stress.running.peak_bytes", lambda: next(peaks))
    (finding,) = run_fuzz(numbers(lambda number: True), tmp_path).findings
    assert finding.text.startswith("memory grew by 2048 MB")


def test_a_command_that_fails_by_its_own_fault_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "main", lambda line: 1)
    (finding,) = run_fuzz(fuzz.TARGETS["cli"], tmp_path).findings
    assert finding.text.startswith("exit code 1")


# -- the parts -------------------------------------------------------------------------------------


def test_cases_can_be_repeated(tmp_path: Path) -> None:
    seen: list[int] = []

    def run(number: int) -> bool:
        seen.append(number)
        return True

    for seed in (3, 3, 4):
        run_fuzz(numbers(run), tmp_path, cases=30, seed=seed)
    assert seen[:30] == seen[30:60] != seen[60:]
    assert len(set(seen[:30])) > 20


def test_a_finding_is_simple_and_can_be_repeated_alone(tmp_path: Path) -> None:
    seen: list[int] = []

    def run(number: int) -> bool:
        seen.append(number)
        assert number < 1000, "large"
        return True

    (finding,) = run_fuzz(numbers(run), tmp_path, cases=100).findings
    assert seen[-1] == 1000
    seen.clear()
    blob = finding.command.split()[-1]
    (again,) = run_fuzz(numbers(run), tmp_path, replay=blob).findings
    assert seen == [1000]
    assert (again.text, again.command) == (finding.text, finding.command)


def test_seals_are_those_of_the_package(tmp_path: Path) -> None:
    make_certificate(sparse_mdp(6, 2, seed=0), 0.9).save(tmp_path / "certificate.npz")
    arrays = read_arrays(tmp_path / "certificate.npz")
    digest = arrays["digest"].copy()
    files.seal_certificate(arrays)
    assert np.array_equal(arrays["digest"], digest)
    (tmp_path / "again.npz").write_bytes(archive_of(members_of(arrays)))
    assert Certificate.load(tmp_path / "again.npz").n_states == 6


@pytest.mark.parametrize("known", BY_HAND, ids=lambda known: f"{known.name}-{known.gamma}")
def test_the_oracle_knows_models_solved_by_hand(known: Any) -> None:
    n = known.mdp.n_states
    want = np.array([[float(x) for x in row] for row in known.metric]).reshape(n, n)
    low, high = truth.metric_enclosure(known.mdp, known.gamma, want)
    assert (low <= want).all()
    assert (want <= high).all()
    if known.mdp.is_deterministic:
        assert truth.exact_deterministic_metric(known.mdp, known.gamma) == known.metric


@given(models(max_states=3), st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3))
def test_the_oracle_agrees_with_fractions(mdp: TabularMDP, entries: list[float]) -> None:
    n = mdp.n_states
    table = np.zeros((n, n))
    table[np.triu_indices(n, 1)] = entries[: n * (n - 1) // 2]
    table += table.T
    P = truth.dense(mdp)
    W = truth.whole_rows(P)
    fast = truth.backup(np.where(W > 0.0, P, 0.0), W, mdp.rewards, 0.9, table)
    exact = np.array(backup_exact(mdp, 0.9, table)).astype(float)
    assert np.abs(fast - exact).max() <= 1e-14 * (1.0 + float(np.ptp(mdp.rewards)))


def test_the_oracle_needs_no_good_guess() -> None:
    mdp = sparse_mdp(5, 2, support=3, seed=0)
    low, high = truth.metric_enclosure(mdp, 0.5, np.full((5, 5), 7.0))
    assert (high - low).max() < 1e-10
    assert np.abs(metric_lp(mdp, 0.5) - low).max() < 1e-6


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.fuzz", "config", "--cases", "20", "--seed", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "config: 20 cases" in done.stdout
    assert "findings" in done.stdout


def test_the_command_fails_where_something_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(number: int) -> bool:
        raise KeyError("x")

    monkeypatch.setitem(fuzz.TARGETS, "bad", numbers(run, "bad"))
    assert fuzz.main(["bad", "--cases", "7", "--kept", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "KeyError: 'x'" in out
    assert "python -m tests.stress.fuzz bad --replay A" in out
    for words, text in (
        (["nothing"], "no target nothing"),
        (["--replay", "x"], "finding of one target"),
    ):
        with pytest.raises(SystemExit):
            fuzz.main(words)
        assert text in capsys.readouterr().err
