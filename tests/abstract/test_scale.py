"""The scale of start values: shares that are never above the true ones."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from bisim_abstract import TabularMDP, prove_value
from bisim_abstract._abstract.scale import NOTHING, OF_STAKE, Stake, start_size
from tests.support.examples import cases, naming, seeds
from tests.support.values import random_row


def around(rng: np.random.Generator, value: float, width: float) -> tuple[float, float]:
    """A bracket of a value; an end of every third is the value itself."""
    low, high = width * rng.random(2) * (rng.random(2) < 0.67)
    return math.nextafter(value - low, -math.inf), math.nextafter(value + high, math.inf)


def drawn(seed: int) -> tuple[Stake, float, tuple[Fraction, Fraction, Fraction]]:
    """True V <= S and V0 <= S anywhere on either side of 0, brackets, and a lower bound of V."""
    rng = np.random.default_rng([93, seed])
    scale = 10.0 ** float(rng.choice([-300, -12, 0, 0, 0, 9, 300]))
    best, base, own = (
        scale * (rng.standard_normal(3) + rng.choice([-3.0, 0.0, 3.0, 1e6]))
    ).tolist()
    if rng.random() < 0.2:
        base = best
    if rng.random() < 0.2:
        own = best if rng.random() < 0.5 else base
    best = max(best, base, own)
    width = scale * 10.0 ** float(rng.integers(-14, 1))
    optimal, baseline = around(rng, best, width), around(rng, base, width)
    size = min(abs(best), 2.0 * scale)
    return (
        Stake(optimal, baseline, size),
        around(rng, own, width)[0],
        (Fraction(own), Fraction(base), Fraction(best)),
    )


@pytest.mark.drawn
def test_no_share_is_above_the_true_one() -> None:
    found = 0
    for seed in range(cases(20_000)):
        with naming(seed=seed):
            stake, policy, (own, base, best) = drawn(seed)
            share = stake.share(policy)
            assert share <= 1.0
            lost, gain = best - own, best - base
            if share == -math.inf or lost == 0:
                continue
            if share == 1.0:  # by definition, where the loss is rounding
                assert lost <= Fraction(NOTHING) * Fraction(stake.size) * (1 + Fraction(1, 10**12))
                little = Fraction(OF_STAKE) * gain * (1 + Fraction(1, 10**12))
                assert lost <= little or gain <= Fraction(NOTHING) * Fraction(stake.size)
                continue
            assert gain > 0
            assert Fraction(share) <= 1 - lost / gain
            found += 1
    assert found > cases(20_000) // 6


@seeds(20)
def test_shares_are_as_large_as_bounds_allow(seed: int) -> None:
    """For some values inside the bounds, the share is true."""
    for k in range(50 * seed, 50 * seed + 50):
        stake, policy, _ = drawn(k)
        share = stake.share(policy)
        if share in (-math.inf, 1.0):
            continue
        shares = [
            (Fraction(policy) - Fraction(base)) / (Fraction(best) - Fraction(base))
            for base in stake.baseline
            for best in (*stake.optimal, *stake.baseline, policy)
            if best >= max(policy, base, stake.optimal[0]) and best > base
        ]
        least = min(shares)
        assert Fraction(share) <= least
        assert float(least - Fraction(share)) <= 1e-14 * abs(share) + 1e-300


@pytest.mark.parametrize(
    ("policy", "optimal", "baseline", "share"),
    [
        (2.0, (3.0, 3.0), (1.0, 1.0), 0.5),
        (2.0, (3.0, 5.0), (1.0, 1.0), 0.25),  # above the baseline, the best may be higher
        (2.0, (3.0, 3.0), (0.0, 1.0), 0.5),
        (0.0, (3.0, 5.0), (1.0, 1.0), -0.5),  # below it, the best may be lower
        (0.0, (3.0, 5.0), (0.5, 1.0), -0.5),
        (1.0, (3.0, 5.0), (1.0, 1.0), 0.0),
        (-3.0, (-1.0, -1.0), (-2.0, -2.0), -1.0),
        (0.0, (0.5, 5.0), (0.0, 1.0), -math.inf),  # perhaps nothing is at stake, and it loses
        (1.0, (1.0, 1.0), (1.0, 1.0), 1.0),
        (0.5, (1.0, 1.0), (1.0, 1.0), -math.inf),  # nothing is to be decided, and it loses
        (0.5, (0.4, 1.0), (0.0, 0.2), 0.375),
    ],
)
def test_shares_by_hand(
    policy: float, optimal: tuple[float, float], baseline: tuple[float, float], share: float
) -> None:
    assert Stake(optimal, baseline, 1.0).share(policy) == pytest.approx(share, abs=1e-15)


def test_what_counts_as_nothing() -> None:
    """A billionth of the size, and a millionth of the stake unless the stake is nothing, too."""
    steep = Stake((100.0, 100.0), (0.0, 0.0), 100.0)
    assert steep.share(100.0 - 0.9e-7) == 1.0
    assert steep.share(100.0 - 1.1e-7) < 1.0
    slight = Stake((100.0, 100.0), (100.0 - 1e-3, 100.0 - 1e-3), 100.0)
    assert slight.share(100.0 - 0.9e-9) == 1.0
    assert slight.share(100.0 - 1.1e-9) < 1.0
    settled = Stake((100.0, 100.0), (100.0 - 0.9e-7, 100.0), 100.0)
    assert settled.share(100.0 - 0.9e-7) == 1.0
    assert settled.share(100.0 - 1.1e-7) == -math.inf
    assert [stake.is_nothing for stake in (steep, slight, settled)] == [False, False, True]
    assert [stake.is_tiny for stake in (steep, slight, settled)] == [False, True, True]
    assert steep.share(100.0 - 0.9e-7, nothing=NOTHING / 2.0) < 1.0


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e3, 1e6])
@seeds(12)
def test_a_constant_hides_no_loss(seed: int, offset: float) -> None:
    """The same shares, whatever is added to all rewards, and the same that is said of them."""
    rng = np.random.default_rng([94, seed])
    n = 5
    P = np.array([[random_row(rng, n, "dense") for _ in range(2)] for _ in range(n)])
    plain = TabularMDP.from_dense(P, rng.random((n, 2)), order="sas")
    moved = TabularMDP.from_dense(P, plain.rewards + offset, order="sas")
    labels = rng.integers(0, 2, n)
    value, other = (prove_value(mdp, labels, 0.9) for mdp in (plain, moved))
    noise = 1e-10 * abs(offset) + 1e-7  # of rounding
    assert other.kept == pytest.approx(value.kept, rel=noise, abs=noise)
    assert other.solver.kept == pytest.approx(value.solver.kept, rel=noise, abs=noise)
    assert other.start_loss == pytest.approx(value.start_loss, abs=noise)
    assert other.is_settled == value.is_settled


def test_where_nothing_is_to_be_decided() -> None:
    """Large values make a stake tiny beside them, and do not hide that there is one."""
    P = np.ones((2, 2, 2)) / 2.0
    for offset in (0.0, 1e3, 1e9):
        steady = TabularMDP.from_dense(P, [[offset + 1.0, offset]] * 2, order="sas")
        assert prove_value(steady, [0, 1], 0.5).is_settled
        value = prove_value(steady, [0, 0], 0.5, renaming=[[0, 1], [1, 0]])
        assert (value.is_settled, value.kept) == (True, -math.inf)  # and it loses something
        mixed = TabularMDP.from_dense(
            P, [[offset + 1.0, offset], [offset, offset + 1.0]], order="sas"
        )
        value = prove_value(mixed, [0, 1], 0.5)
        assert not value.is_settled
        assert value.has_tiny_stake == (offset > 1e2)


def test_sizes_by_hand() -> None:
    rewards = np.array([[1.0, 3.0]])
    same = np.array([[2.0, 2.0]])
    # All that values can differ by is 2 / (1 - γ) = 20, however large they are.
    assert start_size((1e6, 1e6), (rewards, rewards), 0.9, has_choice=True) == pytest.approx(20.0)
    assert start_size((-1e6, -1e6), (rewards, rewards), 0.9, has_choice=True) == pytest.approx(20.0)
    assert start_size((4.0, 5.0), (rewards, rewards), 0.9, has_choice=True) == 4.0
    assert start_size((-5.0, -4.0), (rewards, rewards), 0.9, has_choice=True) == 4.0
    assert start_size((-1.0, 1.0), (rewards, rewards), 0.9, has_choice=True) == 0.0
    assert start_size((4.0, 5.0), (same, same), 0.9, has_choice=True) == math.inf
    assert start_size((4.0, 5.0), (rewards, rewards), 0.9, has_choice=False) == math.inf
    assert start_size((4.0, 5.0), (same - 1.0, same), 0.0, has_choice=True) == 1.0
