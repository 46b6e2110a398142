"""The short form of the forgeries, and whether they notice a verifier that believes too much."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bisim_abstract import bisimulation_metric
from bisim_abstract._verify import verify as module
from bisim_abstract.parts import sparse_mdp
from tests.stress import forgeries
from tests.stress.truth import exact_deterministic_metric
from tests.support.examples import cases
from tests.support.oracles import metric_exact
from tests.support.worlds import best_action, coins, countdown


@pytest.mark.drawn
@pytest.mark.parametrize("component", forgeries.FORGERS)
def test_no_forgery_is_accepted(component: str) -> None:
    tally, wrong = forgeries.run(component, cases(12), seed=1)
    assert sum(tally.values()) == cases(12)
    assert not wrong


@pytest.mark.nightly
@pytest.mark.parametrize("component", forgeries.FORGERS)
def test_no_forgery_of_many_is_accepted(component: str) -> None:
    assert not forgeries.run(component, 200, seed=2)[1]


@pytest.mark.parametrize("component", ["pairs", pytest.param("estimates", marks=pytest.mark.slow)])
def test_a_verifier_that_believes_all_pairs_is_noticed(
    component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believes(*_: Any) -> Fraction:
        return Fraction(0)

    monkeypatch.setattr(module, "check_table", believes)
    tally, wrong = forgeries.run(component, 40, seed=1)
    assert tally["false"] + tally["unsaid"] > 5
    assert len(wrong) == tally["false"] + tally["unsaid"] + tally["lost"]


def test_a_verifier_that_believes_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Fraction:
        raise module.VerificationError("no")

    forgeries.run("pairs", 12, seed=1)  # honest ones are accepted
    monkeypatch.setattr(module, "check_table", refuses)
    assert forgeries.run("pairs", 12, seed=1)[0]["lost"] > 0


def test_the_exact_metric_is_that_of_models_solved_by_hand() -> None:
    for known in (countdown(0.5), coins(0.75), best_action(0.5)):
        n = known.mdp.n_states
        assert metric_exact(known.mdp, known.gamma, np.zeros((n, n))) == known.metric
    mdp = sparse_mdp(5, 2, support=1, seed=3)
    guess = bisimulation_metric(mdp, 0.9).lower
    assert metric_exact(mdp, 0.9, guess) == exact_deterministic_metric(mdp, 0.9)


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert forgeries.main(["pairs", "--count", "3", "--seed", "4"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["forged", *forgeries.COLUMNS, "seconds"]
    assert line.split()[:2] == ["pairs", "3"]
    with pytest.raises(SystemExit):
        forgeries.main(["nothing"])
    assert "no component nothing" in capsys.readouterr().err
