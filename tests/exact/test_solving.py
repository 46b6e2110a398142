"""Chains are solved to the last bit, whatever the library underneath does."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy.sparse import csr_array

from bisim_abstract._base.linear import factorise
from bisim_abstract._base.types import FloatArray
from bisim_abstract._exact import solving
from bisim_abstract._exact.solving import solve_chain


def exact_values(rows: FloatArray, gamma: float, rewards: FloatArray) -> list[float]:
    """v = rewards + gamma·rows·v by elimination in fractions, each value rounded once."""
    n = rewards.size
    table = [
        [Fraction(int(i == j)) - Fraction(gamma) * Fraction(float(rows[i, j])) for j in range(n)]
        + [Fraction(float(rewards[i]))]
        for i in range(n)
    ]
    for k in range(n):  # the diagonal dominates: no pivot is 0
        table[k] = [entry / table[k][k] for entry in table[k]]
        for i in range(n):
            if i != k:
                factor = table[i][k]
                table[i] = [a - factor * b for a, b in zip(table[i], table[k], strict=True)]
    return [float(row[-1]) for row in table]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.99, 0.999999])
def test_values_are_correctly_rounded(gamma: float) -> None:
    rng = np.random.default_rng(0)
    for size in (1e-280, 1.0, 1e280):
        rows = rng.dirichlet(np.full(7, 0.2), size=7)
        # Values of very different sizes, as at the far end of a corridor.
        rewards = size * rng.normal(size=7) * 10.0 ** rng.integers(-8, 8, size=7)
        found = solve_chain(csr_array(rows), gamma, rewards)
        np.testing.assert_array_equal(found, exact_values(rows, gamma, rewards))


def test_what_a_factorisation_is_off_by_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rows, rewards = csr_array(rng.dirichlet(np.full(40, 0.3), size=40)), rng.normal(size=40)
    found = solve_chain(rows, 0.95, rewards)
    honest = factorise

    def off(matrix: object) -> Callable[[FloatArray], FloatArray]:
        solve = honest(matrix)
        return lambda right: solve(right) * (1.0 + 1e-9 * rng.normal(size=right.size))

    monkeypatch.setattr(solving, "factorise", off)
    np.testing.assert_array_equal(solve_chain(rows, 0.95, rewards), found)


def test_nothing_is_earned() -> None:
    zero: npt.NDArray[np.float64] = np.zeros(3)
    np.testing.assert_array_equal(solve_chain(csr_array(np.eye(3)), 0.9, zero), zero)
