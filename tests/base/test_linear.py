"""Linear systems that are contractions."""

from __future__ import annotations

import numpy as np
import pytest

from bisim_abstract._base.linear import solve_contraction
from tests.support.examples import seeds


@pytest.mark.parametrize("gamma", [0.5, 0.99, 0.9999])
@seeds(5)
def test_solutions(seed: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = gamma * rng.dirichlet(np.full(30, 0.2), size=30)
    right = rng.normal(size=30)
    found = solve_contraction(lambda x: matrix @ x, right, atol=1e-9, max_steps=500)
    assert float(np.abs(found - matrix @ found - right).max()) <= 1e-8


def test_nothing_to_solve() -> None:
    found = solve_contraction(lambda x: 0.9 * x, np.zeros(4), atol=1e-9, max_steps=9)
    np.testing.assert_array_equal(found, np.zeros(4))


def test_a_constant_is_found_at_once() -> None:
    found = solve_contraction(lambda x: 0.75 * x, np.ones(4), atol=1e-12, max_steps=50)
    np.testing.assert_allclose(found, 4.0)
