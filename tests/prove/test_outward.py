"""Bounds of the exact metric that are taken over by a table must satisfy its inequalities."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from bisim_abstract import TabularMDP, bisimulation_metric, certify, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._model.generators import random_mdp, sparse_mdp
from bisim_abstract._prove.sweeping import moved_outward
from tests.support.examples import seeds
from tests.support.oracles import backup_exact

MODELS = [random_mdp(4, 2, seed=0), sparse_mdp(5, 2, support=2, seed=1), random_mdp(3, 1, seed=2)]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("mdp", MODELS)
def test_bounds_moved_outward_prove_themselves(mdp: TabularMDP, gamma: float) -> None:
    """f <= Tf below and f >= Tf above in fractions, also where bounds meet but for rounding."""
    n = mdp.n_states
    arms = Arms(mdp, gamma)
    first, second = np.triu_indices(n, 1)
    arms.cover(first, second)
    exact = bisimulation_metric(mdp, gamma)
    below, above = exact.bounds(first, second)
    lower, upper = moved_outward(arms, below, above)
    for side, values in ((1, lower), (-1, upper)):
        table = np.zeros((n, n))
        table[first, second] = table[second, first] = values
        backup = backup_exact(mdp, gamma, table)
        for s, t in zip(first.tolist(), second.tolist(), strict=True):
            assert side * (backup[s][t] - Fraction(float(table[s, t]))) >= 0
    delta = float((below - lower).max())
    assert delta <= 1e-13 * arms.starts.diameter / (1.0 - gamma)


@seeds(12)
def test_what_is_taken_over_needs_no_widening(seed: int) -> None:
    """Bounds that only meet their inequalities up to rounding would be accepted with one."""
    mdp = sparse_mdp(9, 2, support=3, seed=seed)
    certificate = certify(mdp, 0.9)
    assert certificate.coverage == 1.0
    assert verify(mdp, certificate).widening == 0.0
