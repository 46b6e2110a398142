"""Bounds on chosen pairs: they enclose the metric, and a guess helps but is not believed."""

from __future__ import annotations

import numpy as np
import pytest

from bisim_abstract import TabularMDP, bisimulation_metric, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._prove import pairs as proving
from bisim_abstract._prove.pairs import bound_pairs
from bisim_abstract.parts import build_blocks, random_mdp, sparse_mdp, value_features
from tests.support.relations import renamed_mdp


def chosen(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    first, second = rng.integers(n, size=(2, 2 * n))
    return first[first != second], second[first != second]


@pytest.mark.parametrize("relation", ["plain", "lax"])
@pytest.mark.parametrize("ahead", [0.0, 5.0])
def test_bounds_enclose_the_metric(
    relation: str, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "AHEAD", ahead)
    for mdp in (renamed_mdp(3, n=6), random_mdp(6, 2, seed=1)):
        first, second = chosen(mdp.n_states)
        features = value_features(mdp, 0.9, count=4, relation=relation)
        found = bound_pairs(mdp, 0.9, first, second, relation=relation, features=features)
        truth = bisimulation_metric(mdp, 0.9, relation=relation)
        states = np.arange(mdp.n_states)
        lower, upper = found.bounds(states[:, None], states[None, :])
        assert (lower <= truth.upper).all()
        assert (upper >= truth.lower).all()
        assert verify(mdp, found, mode="exact").is_valid
        if ahead:  # all that is read is covered, so that the bounds are tight
            gap = (upper - lower)[first, second].max()
            assert gap <= 0.1 * truth.diameter[1]


def test_all_pairs_are_covered_if_none_are_named() -> None:
    mdp = random_mdp(5, 2, seed=0)
    found = bound_pairs(mdp, 0.5)
    assert found.coverage == 1.0
    truth = bisimulation_metric(mdp, 0.5)
    assert (found.lower <= truth.upper[np.triu_indices(5, 1)]).all()
    assert (found.upper >= truth.lower[np.triu_indices(5, 1)]).all()
    assert found.width <= 0.05 * truth.diameter[1]


def test_levels_are_read() -> None:
    mdp = random_mdp(6, 2, seed=2)
    arms = Arms(mdp, 0.9, model=build_blocks(mdp, [0, 0, 1, 1, 2, 2]))
    arms.start_diagonal()
    arms.cover_all()
    for _ in range(50):
        arms.sweep()
    first, second = np.array([0]), np.array([2])
    with_blocks = bound_pairs(mdp, 0.9, first, second, levels=(arms.level(),))
    assert with_blocks.levels
    assert verify(mdp, with_blocks).is_valid


def test_a_guess_is_a_bound_before_any_sweep() -> None:
    """Of two copies side by side, one noisy, it is far below what pairs start from."""
    one = sparse_mdp(50, 2, support=3, seed=0)
    rng = np.random.default_rng(0)
    rows = [one.kernel().toarray(), one.kernel().toarray() * rng.uniform(0.99, 1.01, (100, 50))]
    P = np.zeros((100, 2, 100))
    for k, part in enumerate(rows):
        normal = (part / part.sum(axis=1, keepdims=True)).reshape(50, 2, 50)
        P[50 * k : 50 * (k + 1), :, 50 * k : 50 * (k + 1)] = normal
    mdp = TabularMDP.from_dense(P, np.concatenate([one.rewards, one.rewards]), order="sas")
    arms = Arms(mdp, 0.9)
    arms.cover(np.arange(50), np.arange(50, 100))
    before = arms.upper.max()
    moved = arms.adopt(proving._followed(arms), is_upper=True)
    assert moved > 0.0
    assert arms.upper.max() < 0.1 * before
    truth = bisimulation_metric(mdp, 0.9).bounds(np.arange(50), np.arange(50, 100))[0]
    assert (arms.upper >= truth).all()


def test_budgets_end_it() -> None:
    mdp = sparse_mdp(300, seed=0)
    first, second = chosen(300)
    found = bound_pairs(mdp, 0.99, first, second, max_seconds=1e-4)
    assert found.stop.startswith("budget")
    assert found.run["sweeps"] == 1
    nothing = bound_pairs(mdp, 0.9, first[:0], second[:0])
    assert nothing.stop == "there is nothing to sweep"
    assert nothing.n_covered == 0
