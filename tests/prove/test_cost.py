"""Estimates of what work takes, and what a run decides by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Blocks, Resources, TabularMDP, certify, verify
from bisim_abstract._base.text import duration_text
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._prove import cost, refinement, standing
from bisim_abstract._prove.cost import Cost
from bisim_abstract._prove.sweeping import Purse
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.support.examples import cases


def deterministic(n: int) -> TabularMDP:
    rng = np.random.default_rng(0)
    rows = np.arange(2 * n + 1), rng.integers(n, size=2 * n), np.ones(2 * n)
    return TabularMDP.from_rows(*rows, rng.random((n, 2)))


def test_longer_rows_and_more_actions_take_longer() -> None:
    short, long, wide = (
        Cost.of(sparse_mdp(60, actions, support=support, seed=0), None)
        for actions, support in ((2, 4), (2, 12), (8, 4))
    )
    assert long.backup > 9.0 * short.backup  # no less than in proportion to the cells
    assert wide.backup == pytest.approx(4.0 * short.backup)
    assert Cost.of(deterministic(60), None).backup < short.backup / 10.0
    assert long.most_pairs() < short.most_pairs()


def test_a_budget_takes_the_place_of_patience() -> None:
    mdp = sparse_mdp(60, seed=0)
    plain, rich, poor = (Cost.of(mdp, seconds) for seconds in (None, 1e4, 0.0))
    assert (plain.patience, plain.is_given) == (cost.PATIENCE, False)
    assert (rich.patience, rich.is_given) == (1e4, True)
    assert rich.most_pairs() > plain.most_pairs() > poor.most_pairs() == 0
    assert Cost.of(mdp, np.inf).most_pairs() == cost.MOST_COVERED


def test_what_was_spent_is_not_there_for_later_steps() -> None:
    """A clock knows better what is left of a budget."""
    mdp = sparse_mdp(60, seed=0)
    plain, given = Cost.of(mdp, None), Cost.of(mdp, 50.0)
    most = plain.most_pairs()
    for cost_of_run in (plain, given):
        cost_of_run.spend(40.0)
    assert plain.left == cost.PATIENCE - 40.0
    assert plain.most_pairs() == pytest.approx(0.6 * most, abs=1)
    assert plain.most_pairs(kept=30.0) == pytest.approx(0.3 * most, abs=1)
    assert plain.affords(60.0)
    assert not plain.affords(60.1)
    assert given.left == 50.0
    assert given.affords(1e9)
    plain.spend(1e9)
    assert plain.left == 0.0
    assert plain.most_pairs() == 0


@pytest.mark.slow
def test_no_more_pairs_are_covered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run abstains in little memory; it does not fail there."""
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    mdp, groups = grouped_mdp(300, 12, noise=0.1, seed=1)
    coverage = []
    for limit in (10**6, 4 * 10**6, 10**9):
        found = certify(
            mdp,
            0.9,
            tau=0.5,
            method=Blocks(partition=groups, propose=[]),
            resources=Resources(threads=1, memory_limit=limit),
        )
        coverage.append(found.coverage)
        assert verify(mdp, found).is_valid
    assert coverage == sorted(coverage)
    assert coverage[0] == 0.0 < coverage[-1]


def test_sweeps_are_paid_for() -> None:
    """Up to a limit of their own, unless a clock ends the run."""
    mdp = sparse_mdp(60, seed=0)
    for seconds, is_free in ((None, False), (9.0, True)):
        run = Cost.of(mdp, seconds)
        run.spend(10.0)
        purse = Purse(run, backup=1.0, limit=13.0)
        assert purse.affords(3)
        assert purse.affords(4) == is_free
        purse.pay(3)
        assert run.spent == 13.0
        assert purse.affords(1) == is_free


def test_backups_of_blocks_take_longer_where_more_is_read_or_transported() -> None:
    mdp = sparse_mdp(120, seed=0)
    few, many = (build_blocks(mdp, np.arange(120) % count) for count in (5, 30))
    assert 0.0 < cost.block_backup(few) < cost.block_backup(many)
    mdp, groups = grouped_mdp(120, 6, noise=0.1, seed=0)
    model = build_blocks(mdp, groups)
    wide = replace(model, radius=np.ones_like(model.radius))  # nothing is left to transport
    assert cost.block_backup(wide) < cost.block_backup(model)


@pytest.mark.drawn
@pytest.mark.parametrize("goal", [{"tau": 0.7}, {"tau": "auto"}, {}])
def test_a_run_ends_when_its_patience_is_spent(
    goal: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By estimates alone: the same on any machine, and what was proven until then holds."""
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    monkeypatch.setattr(refinement, "QUICK_CELLS", 0)
    mdp, _ = grouped_mdp(120, 12, noise=0.1, seed=1)
    options = {"resources": Resources(threads=1), **goal}
    whole = certify(mdp, 0.9, **options)
    needed = whole.run["estimated_seconds"]
    assert 0.0 < needed < cost.PATIENCE
    for share in (0.05, 0.5)[: cases(2, few=1)]:
        monkeypatch.setattr(cost, "PATIENCE", share * needed)
        poor = certify(mdp, 0.9, **options)
        # What was begun is ended: a jump, or a look at values.
        assert poor.run["estimated_seconds"] <= 2.0 * cost.PATIENCE
        assert poor.run["steps"] == certify(mdp, 0.9, **options).run["steps"]
        assert verify(mdp, poor).is_valid


def test_all_pairs_that_take_too_long_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is tried where no structure was found and nobody asked for more."""
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    mdp = sparse_mdp(60, seed=0)
    seconds = Cost.of(mdp, None).all_pairs(60 * 59 // 2, is_sampled=False)
    options: dict[str, Any] = {"resources": Resources(threads=1)}
    monkeypatch.setattr(standing, "HOPE", 0.5 * seconds)
    hopeless = certify(mdp, 0.9, tau="auto", **options)
    assert hopeless.coverage < 1.0
    assert f"would take about {duration_text(seconds)}" in hopeless.stop
    assert "which a larger max_seconds would allow" in hopeless.stop
    assert certify(mdp, 0.9, tau=2.5, **options).coverage == 1.0
    monkeypatch.setattr(cost, "PATIENCE", 0.5 * seconds)
    assert certify(mdp, 0.9, tau=2.5, **options).coverage < 1.0
    assert certify(mdp, 0.9, tau=2.5, max_seconds=600.0, **options).coverage == 1.0


@pytest.mark.parametrize(("n_groups", "is_solved"), [(2, True), (12, False)])
def test_all_pairs_are_solved_for_where_sweeps_would_take_longer(
    n_groups: int, is_solved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of all pairs lie within two blocks, a thirteenth within twelve."""
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    mdp, _ = grouped_mdp(120, n_groups, noise=0.1, seed=1)
    found = certify(mdp, 0.9, tau=0.7, resources=Resources(threads=1))
    assert any("inside" in step for step in found.run["steps"]) != is_solved
    assert verify(mdp, found).is_valid


def test_solving_for_all_pairs_ends() -> None:
    """Where it goes in circles: bounds hold all the same; a budget is an end of its own."""
    mdp = sparse_mdp(60, seed=0)
    assert Cost.of(mdp, None).most_sweeps(1_000) == cost.MOST_SOLVING
    assert Cost.of(mdp, 5.0).most_sweeps(1_000) > cost.MOST_SOLVING


def test_estimates_do_not_depend_on_the_machine() -> None:
    mdp, _ = grouped_mdp(90, 5, noise=0.1, seed=0)
    one, two = (
        certify(mdp, 0.9, tau=0.5, method=Blocks(), resources=Resources(threads=k)) for k in (1, 2)
    )
    assert one.run["steps"] == two.run["steps"]
    np.testing.assert_array_equal(one.lower, two.lower)
    np.testing.assert_array_equal(one.upper, two.upper)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "0.0123 seconds"), (64.3, "64.3 seconds"), (150.0, "2 minutes"), (1e5, "28 hours")],
)
def test_durations_are_told_in_units_of_their_size(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert duration_text(41 * 86_400.0 * 10) == "410 days"
