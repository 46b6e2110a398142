"""Certificates of chains: radii that hold surely, whatever true rows are within them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    Covering,
    Resources,
    TabularMDP,
    bisimulation_metric,
    certify,
    evaluate_policy,
    verify,
    write_report,
)
from bisim_abstract._app.figures import reservation
from bisim_abstract._base.types import FloatArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.policies import uniform_policy
from bisim_abstract._prove.making import make_certificate
from bisim_abstract.parts import (
    build_blocks,
    grouped_mdp,
    make_witnesses,
    random_mdp,
    sparse_mdp,
    value_features,
)
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support.oracles import chain_exact, variation_exact

ONE = Resources(threads=1)
GAMMA = 0.7


def sure(mdp: TabularMDP, row: float, reward: float) -> TabularMDP:
    """A model with radii that hold surely, far larger than rounding, of half of its states."""
    shape = mdp.rewards.shape
    half = (np.arange(shape[0]) % 2 == 0)[:, None] * np.ones(shape)
    return replace(
        mdp,
        estimate=Estimate(
            counts=np.zeros(shape, np.int64),
            reward_radius=reward * half,
            row_radius=row * half,
            alpha=0.0,
            reward_range=(0.0, 1.0),
            support_bound=shape[0],
        ),
    )


def true_ones(mdp: TabularMDP, count: int) -> list[TabularMDP]:
    """Models at the edge of the radii, whose rows also reach what no stored row does."""
    rng, estimate = np.random.default_rng(0), mdp.estimate
    assert estimate is not None
    n, n_actions = mdp.rewards.shape
    stored = mdp.kernel().toarray().reshape(n, n_actions, n)
    found = []
    for _ in range(count):
        t = estimate.row_radius[:, :, None]
        there = np.eye(n)[rng.integers(n, size=(n, n_actions))]
        P = (1.0 - t) * stored + t * there
        sign = rng.choice([-1.0, 1.0], (n, n_actions))
        R = mdp.rewards + sign * estimate.reward_radius
        found.append(TabularMDP.from_dense(P, R, order="sas"))
    return found


MODELS = {
    "random": lambda: random_mdp(8, 1, seed=0),
    "sparse": lambda: sparse_mdp(12, 2, seed=1),
    "groups": lambda: grouped_mdp(16, 4, seed=2, noise=0.05)[0],
}
WAYS: dict[str, dict[str, Any]] = {
    "all pairs": {"tol": 1e-6},
    "blocks": {"tau": "auto", "method": Blocks(max_pairs=0)},
    "covering": {"tau": 0.3, "method": Covering(neighbours=2), "max_rounds": 2},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_bounds_hold_for_all_models_within_the_radii(name: str, way: str) -> None:
    mdp = sure(MODELS[name](), 0.02, 0.01)
    certificate = certify(mdp, GAMMA, resources=ONE, **WAYS[way])
    for mode in ("float", "exact"):
        found = verify(mdp, certificate, mode=mode, resources=ONE)
        assert found.is_valid, found.problem
        assert found.widening <= 1e-12
    states = np.arange(mdp.n_states)
    lower, upper = certificate.bounds(states[:, None], states)
    metric = bisimulation_metric(mdp, GAMMA)
    for true in true_ones(mdp, 10):
        exact = bisimulation_metric(true, GAMMA)
        for below, above in ((lower, upper), (metric.lower, metric.upper)):
            assert (below <= exact.upper + 1e-9).all()
            assert (exact.lower <= above + 1e-9).all()


def test_radii_that_are_sure_cost_less_than_those_of_samples() -> None:
    """Only what rows are off by may go anywhere, not all that the members of a block differ by."""
    mdp = sure(grouped_mdp(40, 4, seed=0, noise=0.2)[0], 1e-15, 1e-15)
    estimate = mdp.estimate
    assert estimate is not None
    labels = np.arange(40) % 4
    uppers = []
    for alpha in (None, 0.0, 0.1):
        kept = None if alpha is None else replace(estimate, alpha=alpha)
        model = replace(mdp, estimate=kept)
        arms = Arms(model, GAMMA, model=build_blocks(model, labels))
        arms.cover(*np.triu_indices(4))
        for _ in range(30):
            arms.sweep()
        uppers.append(arms.upper.max())
    assert uppers[0] <= uppers[1] <= uppers[0] + 1e-13
    assert uppers[2] >= uppers[0]


@pytest.mark.parametrize("method", [Blocks(), Covering(neighbours=3)])
def test_rounding_changes_next_to_nothing(method: Any) -> None:
    mdp = RoomsGridEnv(side=6, room_size=3).to_mdp()
    chain = mdp.under_policy(uniform_policy(mdp))
    assert chain.estimate is not None
    states = np.arange(mdp.n_states)
    tables = []
    for model in (chain, replace(chain, estimate=None)):
        found = certify(model, 0.9, tau=0.1, method=method, max_rounds=3, resources=ONE)
        assert verify(model, found, resources=ONE).is_valid
        tables.append(found.bounds(states[:, None], states))
    (lower, upper), (below, above) = tables
    np.testing.assert_allclose(lower, below, atol=1e-11)
    np.testing.assert_allclose(upper, above, atol=1e-11)


def test_it_bounds_values_of_the_policy_not_of_the_best_one() -> None:
    mdp = sparse_mdp(12, 3, seed=0)
    weights = uniform_policy(mdp)
    found = certify(mdp.under_policy(weights), 0.9, tol=1e-6, resources=ONE)
    values = evaluate_policy(mdp, 0.9, weights)
    states = np.arange(12)
    upper = found.bounds(states[:, None], states)[1]
    assert (np.abs(values.lower[:, None] - values.upper) <= upper + 1e-9).all()
    best = bisimulation_metric(mdp, 0.9)
    assert best.diameter[0] > upper.max()  # another metric


def made() -> tuple[TabularMDP, Certificate]:
    mdp = sparse_mdp(8, 2, seed=0)
    chain = mdp.under_policy(uniform_policy(mdp))
    return chain, certify(chain, 0.9, tau=0.2, resources=ONE)


def test_it_says_whose_value_it_speaks_of(tmp_path: Path) -> None:
    chain, found = made()
    said = "speaks of the value of the given policy, not of the best one"
    assert said in found.summary()
    assert said in found._repr_html_()
    assert "of a given policy" in repr(found)
    assert "under the given policy" in reservation(found)
    page = write_report(tmp_path / "r.html", chain, found).read_text(encoding="utf-8")
    assert said in page
    for text in (found.summary(), found._repr_html_(), reservation(found), page):
        assert "with probability" not in text
        assert "estimated from samples" not in text
    assert "rounding" in found.summary()
    found.save(tmp_path / "c.npz")
    again = Certificate.load(tmp_path / "c.npz")
    assert again.is_under_policy
    assert again.alpha == 0.0
    assert again.summary() == replace(found, model=None).summary()
    assert verify(chain, again).is_valid


def test_other_models_say_nothing_of_a_policy() -> None:
    found = certify(sparse_mdp(8, 2, seed=0), 0.9, tau=0.2, resources=ONE)
    assert not found.is_under_policy
    assert "policy" not in found.summary().split("stopped")[0].split("bounds")[1]
    assert found.holds_for == ""
    assert reservation(found) == ""


def test_actions_copied_have_no_radii_and_still_a_policy() -> None:
    chain = sparse_mdp(8, 2, seed=0).under_policy(np.zeros(8, np.int64))
    found = certify(chain, 0.9, tau=0.2, resources=ONE)
    assert found.alpha is None
    assert found.is_under_policy


def test_the_verifier_wants_the_radii() -> None:
    """What is proven of the stored numbers alone is not proven of all models within radii."""
    mdp = sure(random_mdp(6, 1, seed=0), 0.02, 0.01)
    plain = replace(mdp, estimate=None)
    proven = certify(plain, GAMMA, tol=1e-9, resources=ONE)
    assert mdp.estimate is not None
    claimed = replace(
        proven,
        fingerprint=mdp.fingerprint,
        alpha=0.0,
        reward_range=mdp.estimate.reward_range,
        reward_radius=mdp.estimate.reward_radius,
        features=None,
        levels=(),
        value=None,
        model=None,
    )
    for mode in ("float", "exact"):
        found = verify(mdp, claimed, mode=mode, resources=ONE)
        assert not found.is_valid
        assert "bound of pair" in found.problem
    other = replace(claimed, alpha=0.1)
    assert "alpha is 0.1" in verify(mdp, other, resources=ONE).problem


@pytest.mark.parametrize("mode", ["float", "exact"])
@pytest.mark.parametrize("side", ["lower", "upper"])
def test_no_entry_has_room(mode: str, side: str) -> None:
    mdp = sure(random_mdp(5, 1, seed=3), 0.02, 0.01)
    honest = certify(mdp, GAMMA, method=Covering(neighbours=4), max_rounds=60, resources=ONE)
    honest = replace(honest, features=None, model=None)
    assert verify(mdp, honest, mode=mode, resources=ONE).is_valid
    sign = 1.0 if side == "lower" else -1.0
    for k in range(0, honest.keys.size, 2):
        values = getattr(honest, side).copy()
        values[k] += sign * 1e-3
        altered = replace(honest, **{side: values})
        assert not verify(mdp, altered, mode=mode, resources=ONE).is_valid


@pytest.mark.parametrize("mode", ["float", "exact"])
def test_witnesses_know_of_radii_that_are_sure(mode: str) -> None:
    plain = grouped_mdp(12, 3, seed=2, noise=0.05)[0]
    mdp = sure(plain, 0.01, 0.005)
    labels, pairs = np.arange(12) // 4, np.triu_indices(3, 1)
    found = []
    for model in (mdp, plain):
        features = value_features(model, GAMMA, count=2, resources=ONE)
        blocks = build_blocks(model, labels, resources=ONE)
        found.append(make_witnesses(model, GAMMA, features, blocks, *pairs, tol=1e-9))
        if model is mdp:
            known = features
    certificate = certify(mdp, GAMMA, method=Covering(sweeps=0), max_rounds=1, resources=ONE)
    honest = replace(certificate, features=known.with_witnesses(found[0]), model=None)
    assert verify(mdp, honest, mode=mode, resources=ONE).is_valid
    states = np.arange(12)
    lower = known.with_witnesses(found[0]).lower(states[:, None], states)
    assert (lower > known.lower(states[:, None], states) + 1e-3).any()  # they are of use
    for true in true_ones(mdp, 5):
        assert (lower <= bisimulation_metric(true, GAMMA).upper + 1e-9).all()
    least = float(known.corrections.max())
    short = replace(found[1], corrections=found[1].corrections + GAMMA * least)
    altered = replace(honest, features=known.with_witnesses(short))
    said = verify(mdp, altered, mode=mode, resources=ONE)
    assert "correction of witness" in said.problem


def stored_alike(reward: float) -> tuple[TabularMDP, FloatArray]:
    """States 0 and 1 mix rows that differ by a bit, and their stored mixtures are the same."""
    P = np.zeros((4, 2, 4))
    P[[2, 3], :, [2, 3]] = 1.0
    P[0, :, 2] = 0.3, 0.1
    P[1, :, 2] = 0.3, np.nextafter(0.1, 1.0)
    P[:2, :, 3] = 0.7, 0.9
    R = np.zeros((4, 2))
    R[3] = reward
    return TabularMDP.from_dense(P, R, order="sas"), np.full((4, 2), 0.5)


@pytest.mark.parametrize("reward", [1.0, 1e-300, 1e-310, 1e-320])
def test_what_mixing_rounds_away_is_never_nothing(reward: float) -> None:
    """Also where a row's rounding, times the largest distance, is below all floats."""
    mdp, weights = stored_alike(reward)
    chain = mdp.under_policy(weights)
    for mine, theirs in zip(chain.successors(0, 0), chain.successors(1, 0), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    rows = chain_exact(mdp, weights.tolist())[1]
    apart = Fraction(1, 2) * variation_exact(rows[0], rows[1]) * Fraction(reward) * 2
    assert apart > 0
    assert Fraction(float(bisimulation_metric(chain, 0.5).bounds(0, 1)[1])) >= apart
    for way in WAYS.values():
        found = certify(chain, 0.5, resources=ONE, **way)
        assert Fraction(float(found.bounds(0, 1)[1])) >= apart
        for mode in ("float", "exact"):
            assert verify(chain, found, mode=mode, resources=ONE).is_valid
    arms = Arms(chain, 0.5)
    arms.cover_all()
    assert 2 * Fraction(float(arms.rounding[:2].min())) >= apart
    for _ in range(5):
        arms.sweep()
    assert Fraction(float(arms.bounds(0, 1)[1])) >= apart
    arms.tighten(np.zeros(arms.n_covered), np.where(arms.keys == 1, 0.0, np.inf))
    lie = make_certificate(arms, tau=None, stop="", run={}, scope="all")
    assert lie.bounds(0, 1)[1] == 0.0
    judged = verify(chain, lie, mode="float", resources=ONE)
    assert not judged.is_valid or Fraction(judged.widening) >= apart
    assert not verify(chain, lie, mode="exact", resources=ONE).is_valid
