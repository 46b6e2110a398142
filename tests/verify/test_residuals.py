"""Residuals of features lie within the bounds that float mode gives them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    Blocks,
    TabularMDP,
    certify,
    verify,
)
from bisim_abstract._model.generators import sparse_mdp
from bisim_abstract._verify.kernels import residual_kernel
from tests.support.honest import (
    Floats,
)

# -- residuals ---------------------------------------------------------------------------------


def residual_exact(
    mdp: TabularMDP,
    values: Floats,
    base: Floats,
    signs: Sequence[int],
    offsets: Floats,
    shifts: tuple[float, float],
    gamma: float,
    *,
    is_mean: bool,
    cut: tuple[float, float] = (-np.inf, np.inf),
) -> list[Fraction]:
    out = []
    for state in range(mdp.n_states):
        found = []
        for action, sign in enumerate(signs):
            if sign:
                successors, probs = mdp.successors(state, action)
                masses = [Fraction(p) for p in probs.tolist()]
                ahead = sum(
                    m * (Fraction(float(values[k])) - Fraction(shifts[0]))
                    for m, k in zip(masses, successors, strict=True)
                )
                paid = float(sign * mdp.rewards[state, action])
                reward = Fraction(min(max(paid, cut[0]), cut[1]))
                reward -= Fraction(float(offsets[action]))
                found.append(reward + Fraction(gamma) * ahead / sum(masses))
        best = sum(found, Fraction(0)) / len(found) if is_mean else max(found)
        out.append(best - Fraction(float(base[state])) + Fraction(shifts[1]))
    return out


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, 1e6, 1e12]),
    st.sampled_from([1e-310, 1e-8, 1.0, 1e100]),
    st.booleans(),
    st.booleans(),
)
def test_residuals_lie_within_their_bounds(
    seed: int, offset: float, scale: float, is_mean: bool, is_cut: bool
) -> None:
    """Fractions agree with every end, wherever rewards lie; and the ends are near."""
    rng = np.random.default_rng(seed)
    plain = sparse_mdp(4, 3, support=int(rng.integers(1, 5)), seed=seed)
    rewards = scale * (plain.rewards + offset)
    mdp = TabularMDP(indptr=plain.indptr, indices=plain.indices, probs=plain.probs, rewards=rewards)
    values, base = scale * rng.standard_normal(4), scale * rng.standard_normal(4)
    signs = rng.integers(-1, 2, size=3)
    signs[rng.integers(3)] = 1
    gamma = float(rng.choice([0.0, 0.3, 0.999]))
    shifts = float(values.mean()), float(base[0])
    offsets = signs * rewards.mean(axis=0)
    if not is_mean:
        offsets = np.full(3, offsets[signs != 0].max())
    widest = float(np.abs(values - shifts[0]).max())
    cut = (-np.inf, np.inf)
    if is_cut:  # some rewards are below, some above
        cut = tuple(np.sort(rng.choice((signs * rewards).ravel(), 2)).tolist())
    low, high = np.empty(4), np.empty(4)
    residual_kernel(
        0,
        4,
        mdp.indptr,
        mdp.indices,
        mdp.probs,
        mdp.rewards,
        offsets,
        values,
        shifts[0],
        widest,
        base,
        shifts[1],
        signs,
        *cut,
        is_mean,
        gamma,
        low,
        high,
    )
    exact = residual_exact(
        mdp, values, base, signs.tolist(), offsets, shifts, gamma, is_mean=is_mean, cut=cut
    )
    for least, value, most in zip(low.tolist(), exact, high.tolist(), strict=True):
        assert Fraction(least) <= value <= Fraction(most)
    if not is_cut and (is_mean or (signs >= 0).all()):
        # Rewards have a grain of u·offset; nothing else may be of the size of the offset.
        assert (high - low).max() <= scale * 1e-13 + 1e-289


@pytest.mark.parametrize("kind", ["values", "rewards", "base", "underflow"])
def test_every_part_of_the_slack_of_residuals_is_needed(kind: str) -> None:
    """Sums that cancel, so that one error alone decides: no other part of the slack covers it."""
    is_mean = kind == "rewards"
    signs = np.array([1, 1 if is_mean else 0])
    for seed in range(40):
        rng = np.random.default_rng(seed)
        probs = rng.dirichlet(np.ones(3))
        values: Floats = np.zeros(3)
        base = base_shift = 0.0
        rewards, offsets = np.zeros((3, 2)), np.zeros(2)
        if kind == "values":
            values = rng.standard_normal(3)
        elif kind == "rewards":  # their mean is about 0, but for rounding
            rewards[:] = (1.0 + rng.random()) * np.array([1.0, -1.0])
            offsets = 1e-17 * rng.random(2)
        elif kind == "base":
            base, base_shift = float(rng.random()), 1e-17 * float(rng.random())
        else:
            values = np.array(5e-324 * rng.integers(1, 50, size=3), np.float64)
        # P(values - shift) is about 0, but for rounding.
        shift = float(probs @ values) if kind == "values" else 0.0
        mdp = TabularMDP(
            indptr=np.array([0, 3, 6, 7, 8, 9, 10]),
            indices=np.array([0, 1, 2, 0, 1, 2, 1, 1, 2, 2]),
            probs=np.concatenate([probs, probs, np.ones(4)]),
            rewards=rewards,
        )
        bases, widest = np.full(3, base), float(np.abs(values - shift).max())
        low, high = np.empty(3), np.empty(3)
        rows = (mdp.indptr, mdp.indices, mdp.probs, mdp.rewards, offsets, values, shift, widest)
        residual_kernel(
            0, 3, *rows, bases, base_shift, signs, -np.inf, np.inf, is_mean, 0.75, low, high
        )
        shifts = shift, base_shift
        exact = residual_exact(
            mdp, values, bases, signs.tolist(), offsets, shifts, 0.75, is_mean=is_mean
        )
        for least, value, most in zip(low.tolist(), exact, high.tolist(), strict=True):
            assert Fraction(least) <= value <= Fraction(most)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e10])
def test_rewards_that_differ_by_little_are_no_obstacle(offset: float) -> None:
    """Features of rewards around a large number, of which rounding takes a part."""
    plain = sparse_mdp(600, 3, support=3, seed=1)
    mdp = TabularMDP(
        indptr=plain.indptr,
        indices=plain.indices,
        probs=plain.probs,
        rewards=plain.rewards + offset,
    )
    certificate = certify(mdp, 0.9, tau=0.05, method=Blocks(max_pairs=2_000))
    assert certificate.features is not None
    result = verify(mdp, certificate)
    assert result.is_valid, result.problem
    assert result.mode == "float"
    assert result.widening < 1e-11
