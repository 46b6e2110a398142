"""Float mode of `verify` where rounding decides: claims that are false by an ulp or two.

Inputs are such that one slack alone saves the bound: numbers that cancel, sums of a large and a
small part, potentials far from 0. Everything is compared with fractions.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP
from bisim_abstract._verify.floats import Reader
from bisim_abstract._verify.kernels import feature_costs_kernel
from bisim_abstract._verify.read import read_claims
from tests.support.examples import cases
from tests.support.honest import (
    build,
    composed,
    down,
    found,
    make_features,
    sharp_corrections,
    witness_spans,
)

EPS = 2.0**-53


@pytest.fixture
def _floats_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fractions decide nothing."""
    monkeypatch.setattr("bisim_abstract._verify.verify.SMALL", -1)


def test_safe_start_values_are_on_the_safe_side() -> None:
    first, second = np.array([0, 0, 1]), np.array([1, 2, 2])
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rewards = rng.standard_normal((3, 2)) * 10.0 ** rng.integers(-8, 8)
        mdp = TabularMDP.from_dense(np.tile(np.eye(3)[:, None], (1, 2, 1)), rewards)
        gamma = float(rng.choice([0.1, 0.7, 0.99]))
        content = build(mdp, gamma, has_features=False)
        certificate: Any = SimpleNamespace(**content)
        claims = read_claims(certificate, mdp)
        reader = Reader(claims.states, gamma)
        below, above = composed(mdp, content)
        for is_safe in (True, False):
            low, high = reader.read(first, second, is_safe=is_safe)
            for k, (s, t) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
                least, most = Fraction(low[k]), Fraction(high[k])
                if is_safe:
                    assert least <= below[s][t]
                    assert most >= above[s][t]
                assert abs(least - below[s][t]) <= Fraction(32 * EPS) * below[s][t]
                assert abs(most - above[s][t]) <= Fraction(32 * EPS) * above[s][t]


def test_distances_of_features_are_rounded_down() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        points = rng.standard_normal((2, 2))
        corrections = rng.random(2) * rng.choice([1e-3, 0.5])
        below = np.zeros(1)
        feature_costs_kernel(np.array([0]), np.array([1]), points, corrections, below)
        exact = [
            abs(Fraction(x) - Fraction(y)) - Fraction(c)
            for x, y, c in zip(*points.tolist(), corrections.tolist(), strict=True)
        ]
        assert Fraction(below[0]) <= max(*exact, Fraction(0))
        assert float(below[0]) >= float(max(exact)) - 16.0 * EPS * float(np.abs(points).max())


def staged(rewards: list[float]) -> TabularMDP:
    """0 and 1 move to 2 and 3, and these to the end: d(0, 1) = |r0 - r1| + gamma·|r2 - r3|."""
    P = np.zeros((5, 1, 5))
    P[0, 0, 2] = P[1, 0, 3] = P[2, 0, 4] = P[3, 0, 4] = P[4, 0, 4] = 1.0
    return TabularMDP.from_dense(P, [*rewards, 0.0], terminal_state=4)


@pytest.mark.usefixtures("_floats_alone")
@pytest.mark.parametrize("later", [0.0, 1e-7, 1.0])
def test_backups_are_widened_by_what_they_round(later: float) -> None:
    """Claims as floats compute them: where these are off, either way, the widening says so.

    Without later rewards the gap is all there is; with small ones, errors of the sum are larger
    than what transport allows for; with large ones all parts take part.
    """
    gamma, n = 0.7, 5
    false = {"lower": 0, "upper": 0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rewards = [3.0 * rng.random() + 1.0, 0.3 * rng.random(), *(later * rng.random(2))]
        mdp = staged([float(r) for r in rewards])
        a, b, c, d, _ = (Fraction(r) for r in mdp.rewards[:, 0].tolist())
        truth = {(0, 1): abs(a - b) + Fraction(gamma) * abs(c - d), (2, 3): abs(c - d)}
        gap, after = abs(mdp.rewards[0, 0] - mdp.rewards[1, 0]), abs(rewards[2] - rewards[3])
        claims = np.array([gap + gamma * after, after])
        content = build(mdp, gamma, has_features=False, starts=("zero", "constant"))
        content["keys"] = np.array([1, 2 * n + 3])
        for side in ("lower", "upper"):
            weak = {"lower": np.zeros(2), "upper": np.full(2, 9.0 / (1.0 - gamma))}
            result = found({**content, **weak, side: claims}, mdp)
            assert result.is_valid, result.problem
            sign = 1 if side == "lower" else -1
            for claim, exact in zip(claims.tolist(), truth.values(), strict=True):
                missed = sign * (Fraction(claim) - exact)
                assert missed <= Fraction(result.widening)
                false[side] += missed > 0
    assert min(false.values()) >= 10


@pytest.mark.usefixtures("_floats_alone")
def test_features_keep_clusters_apart_only_beyond_rounding() -> None:
    """|x - y| - c is rounded twice: where it rounds up to more than tau, but is not, 0 and 1 meet.

    Both as a whole (cells of states) and pair by pair.
    """
    P = np.zeros((4, 1, 4))
    P[0, 0, 2] = P[1, 0, 3] = P[2, 0, 2] = P[3, 0, 3] = 1.0
    mdp = TabularMDP.from_dense(P, [[0.0], [0.0], [4.0], [0.0]])
    content = build(mdp, 0.5, has_features=False)
    labels = np.array([0, 1, 2, 1])
    ties = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        features = make_features(mdp, 0.5, 60, has_witnesses=False)
        features.values = features.values + 0.01 * rng.random(features.values.shape)
        features.values[:, 3] = features.values[:, 1]
        features.corrections = np.array([0.1 * (1.0 + rng.random()), 9.0, 9.0])
        x, y = (float(v) for v in features.values[0, :2])
        c = float(features.corrections[0])
        exact = abs(Fraction(x) - Fraction(y)) - Fraction(c)
        tau = float(np.nextafter(abs(x - y) - c, 0.0))
        if exact > Fraction(tau):
            continue
        ties += 1
        content["features"] = features
        content |= {"tau": tau, "labels_lower": labels, "labels_upper": np.arange(4)}
        for mode in ("float", "exact"):
            result = found(content, mdp, mode)
            assert not result.is_valid
            assert "labels_lower keeps states" in result.problem, result.problem
        content["tau"] = down(exact - Fraction(1, 10**9))
        assert found(content, mdp).is_valid
    assert ties >= 10


@pytest.mark.drawn
@pytest.mark.usefixtures("_floats_alone")
def test_potentials_far_from_0_are_rounded_at_their_size() -> None:
    """Corrections of witnesses that are too small by less than their potentials are rounded by."""
    mdp = TabularMDP.from_dense(
        np.random.default_rng(1).dirichlet(np.ones(4), size=(4, 1)), [0.0, 0.3, 0.7, 1.0]
    )
    gamma, false = 0.5, 0
    content = build(mdp, gamma, has_features=False)
    for seed in range(cases(40)):
        rng = np.random.default_rng(seed)
        features = make_features(mdp, gamma, 40)
        witnesses = features.witnesses
        witnesses.potential = 2.0**7 + rng.random(witnesses.potential.shape)
        sharp = sharp_corrections(mdp, gamma, features)
        witnesses.corrections = sharp - 2e-14 * rng.random(2)
        content["features"] = features
        result = found(content, mdp)
        if not result.is_valid:  # by too much to be rounding
            assert "witness" in result.problem
            continue
        stored = [Fraction(c) for c in witnesses.corrections.tolist()]
        most = max(*stored, Fraction(features.corrections.max()))
        missed = max(
            span + Fraction(gamma) * most - c
            for span, c in zip(witness_spans(mdp, gamma, features), stored, strict=True)
        )
        assert Fraction(result.widening) * (1 - Fraction(gamma)) >= missed
        false += missed > 0
    assert false >= cases(40) // 4
