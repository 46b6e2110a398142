"""The engine of the paper's experiments: claims as data, and what becomes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from paper.engine import (
    CLOSE,
    DIFFERENT,
    REPRODUCED,
    Claim,
    Near,
    NextToNothing,
    Often,
    Options,
    Result,
    Rows,
    Theorem,
    write_tables,
)
from paper.page import write_page


def verdict(claim: Claim, **figures: Any) -> str:
    judged = claim.judge(figures)
    assert judged is not None
    return judged.verdict


@pytest.mark.parametrize(
    ("measured", "expected"), [(1.04, REPRODUCED), (0.75, CLOSE), (1.31, DIFFERENT)]
)
def test_figures_are_compared_by_relative_difference(measured: float, expected: str) -> None:
    assert verdict(Near("a figure", 1.0, "x", "chance"), x=measured) == expected


def test_differences_may_be_absolute() -> None:
    claim = Near("a gap", 0.0, "x", "chance", tight=0.1, loose=0.2, absolute=True)
    assert [verdict(claim, x=x) for x in (0.1, 0.15, 0.3)] == [REPRODUCED, CLOSE, DIFFERENT]


def test_ranges_are_compared_by_their_ends_and_numbers_with_the_nearest_of_them() -> None:
    claim = Near("a range", (10.0, 20.0), "x", "chance", shown="{}", stated="10-20")
    values: tuple[Any, ...] = (15.0, (10.1, 20.0), 22.0, (10.0, 24.0), 30.0, (5.0, 20.0))
    verdicts = [REPRODUCED, REPRODUCED, CLOSE, CLOSE, DIFFERENT, DIFFERENT]
    assert [verdict(claim, x=x) for x in values] == verdicts


def test_claims_hold_nearly_hold_or_do_not() -> None:
    claim = Claim("it holds", "yes", "x", "chance", nearly="y")
    assert verdict(claim, x=True, y=False) == REPRODUCED
    assert verdict(claim, x=False, y=True) == CLOSE
    assert verdict(claim, x=False, y=False) == DIFFERENT


def test_shares_of_runs() -> None:
    claim = Often("often", "all", "x", "{held} of {runs}", enough=0.75, tolerated=0.5)
    for held, expected in ((4, REPRODUCED), (3, REPRODUCED), (2, CLOSE), (1, DIFFERENT)):
        assert verdict(claim, x=[k < held for k in range(4)]) == expected


@pytest.mark.parametrize(
    ("measured", "expected"), [(0.025, REPRODUCED), (1e-9, CLOSE), (0.04, DIFFERENT)]
)
def test_losses_next_to_nothing(measured: float, expected: str) -> None:
    assert verdict(NextToNothing("a loss", 0.02, "x"), x=measured) == expected


def test_a_theorem_holds_in_every_run_or_is_broken() -> None:
    claim = Theorem("a theorem", measure="x")
    sound, broken, idle = (claim.judge({"x": x}) for x in ([True] * 3, [True, False], []))
    assert sound is not None
    assert broken is not None
    assert idle is not None
    assert (sound.verdict, sound.published, sound.measured) == (REPRODUCED, "3/3", "3/3")
    assert broken.verdict == DIFFERENT
    assert broken.why == "violated in 1 of 2 runs: a fault"
    assert idle.verdict == DIFFERENT


def test_texts_are_filled_with_figures() -> None:
    claim = Claim("at {n} states", "{theirs} s", "x", "{why}", shown="{ours:.1f} s", note="{n}!")
    judged = claim.judge({"x": True, "n": 3, "theirs": 2, "ours": 1.25, "why": "chance"})
    assert judged is not None
    assert (judged.text, judged.published) == ("at 3 states", "2 s")
    assert (judged.measured, judged.why) == ("1.2 s", "3!")


def test_what_was_not_measured_is_left_out_and_what_is_unknown_is_not() -> None:
    claim = Near("a figure", 1.0, "x", "chance")
    assert claim.judge({"x": None}) is None
    with pytest.raises(KeyError):
        claim.judge({"y": 1.0})


def test_a_difference_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Near("a figure", 1.0, "x").judge({"x": 2.0})


def test_rows() -> None:
    rows = Rows({"n": n, "k": k, "x": 0.5 * n, "ok": n > 1} for n in (1, 2) for k in (3, 4))
    assert rows.column("n") == [1, 1, 2, 2]
    assert rows.means() == {"n": 1.5, "k": 3.5, "x": 0.75, "ok": 0.5}
    assert rows.sum("ok") == 2
    assert list(rows.by("n", "k")) == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert rows.where(n=2, k=4) == [{"n": 2, "k": 4, "x": 1.0, "ok": True}]
    assert rows[:1] == [rows[0]]
    assert Rows(rows[:1]).interval("x") == 0.0


def test_a_result_becomes_files_and_a_page(tmp_path: Path) -> None:
    options = Options(quick=True, out=tmp_path)
    result = Result("trial", "A trial", options)
    result.add_table("trial", "Numbers", [{"|S|": 3, "x": 0.1, "no": 1}], "|S|; x")
    result.judge([Theorem("holds", measure="x", in_abstract=True)], {"x": [True]})
    result.choose("- one\n  choice\n- another")
    with result.figure("trial", xlabel="x", ticks={1: "one"}) as axes:
        axes.plot([1, 2], [1, 2], label="a line")
    write_tables(result, tmp_path)
    write_page(tmp_path / "docs", [result], options, 60.0)
    assert (tmp_path / "trial.csv").read_text() == "|S|,x\n3,0.1\n"
    assert (tmp_path / "trial_claims.csv").read_text().splitlines()[1].startswith("holds,1/1,1/1")
    page = (tmp_path / "docs" / "paper.md").read_text()
    assert "1 claims: 1 reproduced" in page
    assert "- one choice\n- another\n" in page
    assert (tmp_path / "docs" / "images" / "paper" / "trial.png").stat().st_size > 5_000
