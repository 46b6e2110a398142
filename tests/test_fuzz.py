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

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import fuzz as script
from fuzzing import files, forge, solvers, truth
from fuzzing.core import Case, Run, Target, Violation, case_rng, fuzz
from fuzzing.models import dense, random_model
from fuzzing.mutate import members_of, read_arrays, write_members

from bisim_abstract import Certificate, TabularMDP, Verification, bisimulation_metric, certify
from bisim_abstract.parts import sparse_mdp
from tests.support.oracles import backup_exact, metric_lp, optimal_values_exact
from tests.support.worlds import BY_HAND

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
COUNTS = {"certify": 30, "estimate": 20, "aggregate": 40, "cli": 40, "certificate": 150}


@pytest.mark.parametrize("name", list(script.TARGETS))
def test_nothing_is_found(name: str, tmp_path: Path) -> None:
    tally = fuzz(
        dataclasses.replace(script.TARGETS[name], limit=60.0),  # some cases compile first
        count=COUNTS.get(name, 100),
        seed=1,
        work=tmp_path / "work",
        kept=tmp_path / "kept",
    )
    assert tally.findings == [], (tmp_path / "kept").name
    assert tally.accepted > 0  # a target that refuses everything tests nothing
    assert tally.cases == COUNTS.get(name, 100)


def run_once(target: Target, tmp_path: Path, count: int = 1) -> Any:
    return fuzz(target, count=count, seed=0, work=tmp_path / "work", kept=tmp_path / "kept")


# -- oracles that must fail ------------------------------------------------------------------------


def test_an_unsound_certificate_that_is_accepted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gullible(certificate: Any, mdp: TabularMDP, **options: Any) -> Verification:
        return Verification(True, "verified", "float", "", 0.0, 0)

    monkeypatch.setattr(forge, "verify", gullible)
    tally = run_once(script.TARGETS["certificate"], tmp_path, 60)
    texts = " ".join(finding.text for finding in tally.findings)
    assert "the values" in texts  # a bound on values on the wrong side
    assert "above the metric" in texts
    assert "below the metric" in texts
    assert "cluster" in texts
    for finding in tally.findings:
        assert finding.command == (
            f"python scripts/fuzz.py certificate --seed 0 --only {finding.index}"
        )
        assert (finding.kept / "input.npz").exists()
        assert TabularMDP.load(finding.kept / "model.npz").n_states > 1
        assert "Violation" in (finding.kept / "finding.txt").read_text()


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
    honest = certify(mdp, 0.9, tau=100.0)  # all states in one cluster
    known = forge.Truth(mdp)
    forge.check_value(honest, known)
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
    with pytest.raises(Violation, match=text):
        forge.check_value(honest.with_proven(forged), known)


def test_a_bound_that_is_off_by_little_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = bisimulation_metric

    def bold(mdp: TabularMDP, gamma: float, **options: Any) -> Any:
        found = honest(mdp, gamma, **options)
        far = found.class_upper * (1.0 + 1e-6)
        return dataclasses.replace(found, class_lower=far, class_upper=far)

    monkeypatch.setattr(solvers, "bisimulation_metric", bold)
    tally = run_once(script.TARGETS["metric"], tmp_path, 30)
    assert any("lower bound above the metric" in x.text for x in tally.findings)


def test_a_loader_that_raises_something_else_is_reported(tmp_path: Path) -> None:
    def read(case: Case, path: Path) -> None:
        raise TypeError("unhashable type: 'list'")

    target = Target("bad", files.archive_target(files.make_bridges, read))
    (finding,) = run_once(target, tmp_path).findings
    assert (finding.kind, finding.text) == ("TypeError", "unhashable type: 'list'")


def prepared(run: Run) -> Any:
    return lambda shared: run


def work_forever() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("hang", "text"), [(work_forever, "running after 0.1"), (lambda: time.sleep(60), "waiting")]
)
def test_a_hang_is_reported(hang: Callable[[], None], text: str, tmp_path: Path) -> None:
    def run(case: Case) -> bool:
        try:
            hang()
        except Exception:  # a handler under test must not swallow the alarm
            return False
        return True

    begin = time.perf_counter()
    (finding,) = run_once(Target("slow", prepared(run), limit=0.1), tmp_path).findings
    assert finding.kind == "Hang"
    assert text in finding.text
    assert time.perf_counter() - begin < 10


def test_a_warning_is_reported(tmp_path: Path) -> None:
    def run(case: Case) -> bool:
        warnings.warn("overflow encountered in cast", RuntimeWarning, stacklevel=1)
        return True

    (finding,) = run_once(Target("loud", prepared(run)), tmp_path).findings
    assert finding.kind == "RuntimeWarning"
    assert run_once(Target("quiet", prepared(run), is_strict=False), tmp_path).findings == []


def test_memory_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([0, 2 << 30])
    monkeypatch.setattr("fuzzing.core._peak_bytes", lambda: next(peaks))
    (finding,) = run_once(Target("fat", prepared(lambda case: True)), tmp_path).findings
    assert finding.text == "memory grew by 2048 MB"


def test_a_command_that_fails_by_its_own_fault_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzing.commands.main", lambda words: 1)
    target = dataclasses.replace(script.TARGETS["cli"], warm=0)
    (finding,) = run_once(target, tmp_path).findings
    assert finding.text.startswith("exit code 1")


# -- the parts -------------------------------------------------------------------------------------


def test_cases_can_be_repeated_alone(tmp_path: Path) -> None:
    seen: list[float] = []

    def run(case: Case) -> bool:
        seen.append(float(case.rng.random()))
        return True

    target = Target("number", prepared(run))
    places: dict[str, Any] = {"work": tmp_path / "work", "kept": tmp_path / "kept"}
    fuzz(target, count=5, seed=3, **places)
    fuzz(target, count=1, seed=3, first=4, **places)
    assert len(set(seen)) == 5
    assert seen[4] == seen[5] == case_rng(3, "number", 4).random()


def test_seals_are_those_of_the_package(tmp_path: Path) -> None:
    certify(sparse_mdp(6, 2, seed=0), 0.9).save(tmp_path / "certificate.npz")
    arrays = read_arrays(tmp_path / "certificate.npz")
    digest = arrays["digest"].copy()
    files.seal_certificate(arrays)
    assert np.array_equal(arrays["digest"], digest)
    write_members(tmp_path / "again.npz", members_of(arrays))
    assert Certificate.load(tmp_path / "again.npz").n_states == 6


@pytest.mark.parametrize("known", BY_HAND, ids=lambda known: f"{known.name}-{known.gamma}")
def test_the_oracle_knows_models_solved_by_hand(known: Any) -> None:
    n = known.mdp.n_states
    want = np.array([[float(x) for x in row] for row in known.metric]).reshape(n, n)
    low, high = truth.metric_enclosure(known.mdp, known.gamma, want)
    assert (low <= want).all()
    assert (want <= high).all()
    if known.mdp.is_deterministic:
        exact = truth.exact_deterministic_metric(known.mdp, known.gamma)
        assert all(exact[s, t] == known.metric[s][t] for s in range(n) for t in range(n))


def test_the_oracles_agree_with_those_of_the_tests() -> None:
    rng = np.random.default_rng(0)
    for _ in range(15):
        mdp = random_model(rng, max_states=3)
        table = rng.random((mdp.n_states, mdp.n_states))
        table = np.triu(table, 1) + np.triu(table, 1).T
        mine, theirs = truth.exact_backup(mdp, 0.9, table), backup_exact(mdp, 0.9, table)
        assert all(value == theirs[s][t] for (s, t), value in mine.items())
        assert truth.exact_values(mdp, 0.9, None) == optimal_values_exact(mdp, 0.9)
        P = dense(mdp)
        W = truth.whole_rows(P)
        fast = truth.backup(np.where(W > 0.0, P, 0.0), W, mdp.rewards, 0.9, table)
        scale = 1.0 + float(np.ptp(mdp.rewards))
        assert all(abs(float(v) - fast[s, t]) < 1e-14 * scale for (s, t), v in mine.items())


def test_the_oracle_needs_no_good_guess() -> None:
    mdp = sparse_mdp(5, 2, support=3, seed=0)
    low, high = truth.metric_enclosure(mdp, 0.5, np.full((5, 5), 7.0))
    assert (high - low).max() < 1e-10
    assert np.abs(metric_lp(mdp, 0.5) - low).max() < 1e-6


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_the_script_says_what_it_did(jobs: str, tmp_path: Path) -> None:
    words = ["config", "--count", "20", "--jobs", jobs, "--kept", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "scripts/fuzz.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "config: 20 cases" in done.stdout
    assert "findings" in done.stdout


def test_the_script_fails_where_something_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(case: Case) -> bool:
        raise KeyError("x")

    monkeypatch.setitem(script.TARGETS, "bad", Target("bad", prepared(run)))
    assert script.main(["bad", "--count", "7", "--kept", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "python scripts/fuzz.py bad --seed 0 --only 2" in out
    assert "--only 3" not in out  # one cause is shown three times
    with pytest.raises(SystemExit):
        script.main(["nothing"])
    assert "no target nothing" in capsys.readouterr().err
