"""The baseline against exact values of every policy that does not look at the state."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from bisim_abstract import TabularMDP
from bisim_abstract._abstract import baseline as home
from bisim_abstract._abstract.baseline import RANDOM, constant_policy
from bisim_abstract.parts import find_baseline
from tests.support.examples import cases, naming
from tests.support.renaming import with_random_actions
from tests.support.values import Case, Exact, mean, random_case


def lacking(seed: int) -> Case:
    """A random case; in two of three, states lack actions."""
    case = random_case(40_000 + seed)
    if seed % 3 == 0:
        return case
    return replace(case, mdp=with_random_actions(case.mdp, np.random.default_rng([95, seed])))


def check(case: Case) -> None:
    mdp, model = case.mdp, Exact.of(case.mdp, case.gamma)
    found = find_baseline(mdp, case.gamma)
    random = model.at_random(mdp.available)
    constant = [model.for_ever(a, mdp.available) for a in range(mdp.n_actions)]
    for s in range(mdp.n_states):
        assert random[s] <= Fraction(found.random_upper[s])
        for a in range(mdp.n_actions):
            assert constant[a][s] <= Fraction(found.constant_upper[s, a])
    best = random if found.action == RANDOM else constant[found.action]
    for low, exact in zip(found.lower.tolist(), best, strict=True):
        assert Fraction(low) <= exact
    low, high = (Fraction(x) for x in found.start)
    truth = max(mean(mdp.start, values) for values in [random, *constant])
    assert truth == model.baseline(mdp.available, mdp.start)
    assert low <= truth <= high
    size = float(np.ptp(mdp.rewards)) / (1.0 - case.gamma)
    most = float(np.abs(mdp.rewards).max()) / (1.0 - case.gamma)
    assert float(high - low) <= 1e-6 * size + 1e-9 * most + 1e-300


@pytest.mark.drawn
def test_random_models() -> None:
    for seed in range(cases(400)):
        with naming(seed=seed):
            check(lacking(seed))


@pytest.mark.drawn
def test_random_models_that_are_too_large_to_be_solved_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By sweeps, which stop early where another policy is better."""
    monkeypatch.setattr(home, "DIRECT_LIMIT", 0)
    for seed in range(cases(400)):
        with naming(seed=seed):
            check(lacking(1_000 + seed))


def test_what_a_state_lacks_is_replaced_by_all_that_it_has() -> None:
    P = np.zeros((3, 3, 3))
    P[:, :, 2] = 1.0
    P[0, :, :] = [0.0, 1.0, 0.0]
    mdp = TabularMDP.from_dense(
        P,
        [[0.0, 0.0, 0.0], [4.0, 2.0, 9.0], [0.0, 0.0, 0.0]],
        start=[1.0, 0.0, 0.0],
        terminal_state=2,
        available=[[True, True, True], [True, True, False], [True, True, True]],
        order="sas",
    )
    assert constant_policy(mdp, 2).tolist() == [[0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    assert constant_policy(mdp, 0).tolist() == [0, 0, 0]
    np.testing.assert_allclose(constant_policy(mdp, RANDOM)[0], 1.0 / 3.0)
    found = find_baseline(mdp, 0.5)
    assert found.action == 0
    np.testing.assert_allclose(found.constant_upper[1], [4.0, 2.0, 3.0], atol=1e-9)
    np.testing.assert_allclose(found.random_upper[:2], [1.5, 3.0], atol=1e-9)
    assert found.start[0] == pytest.approx(2.0, abs=1e-9)
    assert found.start[1] == pytest.approx(2.0, abs=1e-9)


def test_random_actions_can_be_best() -> None:
    """Two states that stay put for the action that the other one leaves by, and pay for leaving."""
    P = np.array([[[0, 1], [1, 0]], [[0, 1], [1, 0]]], float)
    mdp = TabularMDP.from_dense(P, [[1.0, 0.0], [0.0, 1.0]], start=[0.5, 0.5], order="sas")
    found = find_baseline(mdp, 0.9)
    assert found.action == RANDOM
    assert found.start[0] == pytest.approx(5.0, abs=1e-6)
    assert not any(
        array.flags.writeable for array in (found.random_upper, found.constant_upper, found.lower)
    )


def test_a_guess_changes_nothing_but_the_work() -> None:
    for seed in range(20):
        case = lacking(2_000 + seed)
        guess = np.random.default_rng(seed).standard_normal(case.mdp.n_states)
        found = find_baseline(case.mdp, case.gamma, guess=guess)
        model = Exact.of(case.mdp, case.gamma)
        truth = model.baseline(case.mdp.available, case.mdp.start)
        low, high = found.start
        assert Fraction(low) <= truth <= Fraction(high)
