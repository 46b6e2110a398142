"""`verify` accepts honest certificates of all components, and what it accepts is true."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    Resources,
    TabularMDP,
    bisimulation_metric,
    certify,
    verify,
)
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockModel
from bisim_abstract._model.generators import grouped_mdp, sparse_mdp
from bisim_abstract._prove.making import make_certificate
from tests.support.honest import (
    Operator,
    _renamed,
    accepted,
    assert_encloses,
    at_tau,
    block_model,
    bounds,
    build,
    estimated,
    found,
    thresholds,
)
from tests.support.oracles import first_appearance, linked

# -- honest certificates -----------------------------------------------------------------------


CASES: dict[str, Callable[[int], tuple[TabularMDP, list[list[int]]]]] = {
    "grouped": lambda seed: (
        _renamed(grouped_mdp(8, 3, 2, noise=0.01, support=2, seed=seed)),
        [_labels(seed)],
    ),
    "sparse": lambda seed: (
        sparse_mdp(6, 2, support=2, seed=seed),
        [[0, 1, 0, 2, 1, 3], [0, 0, 1, 1, 1, 2]],
    ),
    "bisimilar": lambda seed: (
        _renamed(grouped_mdp(8, 3, 2, noise=0.0, support=2, seed=seed)),
        [_labels(seed, 0.0)],
    ),
    "deterministic": lambda seed: (
        sparse_mdp(6, 2, support=1, seed=seed),
        [[0, 1, 1, 2, 2, 2]],
    ),
    "estimated": lambda seed: (
        estimated(sparse_mdp(5, 2, support=2, seed=seed), 0.05, 0.1, seed),
        [[0, 1, 1, 2, 0]],
    ),
}


def _labels(seed: int, noise: float = 0.01) -> list[int]:
    return first_appearance(grouped_mdp(8, 3, 2, noise=noise, support=2, seed=seed)[1].tolist())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gamma", [0.0, 0.6])
def test_accepts_honest_certificates_and_they_are_true(name: str, gamma: float) -> None:
    for seed in range(2):
        mdp, labelings = CASES[name](seed)
        content = build(
            mdp,
            gamma,
            labelings=labelings,
            pairs=[(0, 1), (0, 4), (1, 3), (2, 4)],
            sweeps=3 + 4 * seed,
            starts=(("reward", "reward"), ("zero", "constant"))[seed],
        )
        widening = accepted(content, mdp)
        below, above = bounds(mdp, content)
        if mdp.estimate is None:
            assert_encloses(mdp, gamma, below, above, widening)
        for tau in thresholds(below, above)[-3:]:
            accepted(at_tau(mdp, content, tau), mdp)


def test_estimated_bounds_hold_for_models_within_the_radii() -> None:
    rng = np.random.default_rng(0)
    for seed in range(3):
        base = sparse_mdp(5, 2, support=2, seed=seed)
        mdp = estimated(base, 0.05, 0.08, seed)
        assert mdp.estimate is not None
        content = build(
            mdp, 0.6, labelings=[[0, 1, 1, 2, 0]], pairs=[(0, 1), (1, 2), (3, 4)], sweeps=8
        )
        widening = accepted(content, mdp)
        below, above = bounds(mdp, content)
        for _ in range(4):
            rewards = mdp.rewards + mdp.estimate.reward_radius * rng.choice([-1, 1], (5, 2))
            P = np.zeros((5, 2, 5))
            for s in range(5):
                for a in range(2):
                    x, p = mdp.successors(s, a)
                    t = float(mdp.estimate.row_radius[s, a])
                    P[s, a, x] = p
                    # Move t of the mass anywhere, also to states that no row reaches.
                    P[s, a] = (1.0 - t) * P[s, a] + t * rng.dirichlet(np.full(5, 0.3))
            true = TabularMDP.from_dense(P / P.sum(axis=2, keepdims=True), rewards)
            assert_encloses(true, 0.6, below, above, widening + 1e-9)


def test_accepts_the_arms_over_blocks() -> None:
    for seed in range(3):
        mdp = _renamed(grouped_mdp(12, 3, 2, noise=0.02, support=3, seed=seed))
        for labels in ([s % 4 for s in range(12)], list(range(12)), _twelve(seed)):
            plain = block_model(mdp, labels)
            model = BlockModel(**vars(plain))
            level = Arms(mdp, 0.9, model=model)
            level.cover_all()
            for _ in range(60):
                level.sweep()
            arms = Arms(mdp, 0.9)
            arms.cover([0, 1, 2, 5], [3, 4, 7, 9])
            arms.add_level(level.level())
            for _ in range(10):
                arms.sweep()
            certificate = make_certificate(arms, tau=None, stop="", run={})
            for mode in ("float", "exact"):
                result = verify(mdp, certificate, mode=mode)
                assert result.is_valid, result.problem
            assert verify(mdp, certificate, resources=Resources(threads=1)) == verify(
                mdp, certificate, resources=Resources(threads=2)
            )
            s, t = np.triu_indices(12, 1)
            low, high = certificate.bounds(s, t)
            exact = bisimulation_metric(mdp, 0.9)
            assert (low <= exact.upper[s, t] + 1e-9).all()
            assert (high >= exact.lower[s, t] - 1e-9).all()


def _twelve(seed: int) -> list[int]:
    return first_appearance(grouped_mdp(12, 3, 2, noise=0.02, support=3, seed=seed)[1].tolist())


def test_exact_bisimulation_needs_no_widening() -> None:
    """Rows that coincide once summed, with sums that do not round: diameters of exactly 0."""
    P = np.zeros((5, 1, 5))
    P[0, 0, [2, 4]] = [0.25, 0.75]
    P[1, 0, [3, 4]] = [0.25, 0.75]
    P[2, 0, [2, 3]] = [0.5, 0.5]
    P[3, 0, [2, 3]] = [0.125, 0.875]
    P[4, 0, 4] = 1.0
    mdp = TabularMDP.from_dense(P, np.array([[0.0], [0.0], [1.0], [1.0], [3.0]]))
    content = build(mdp, 0.5, labelings=[[0, 0, 1, 1, 2]], sweeps=1, has_features=False, pairs=[])
    level = content["levels"][0]
    assert (level.model.radius == 0.0).all()
    is_diameter = level.keys % 4 == 0
    level.upper = np.where(is_diameter, 0.0, level.upper)
    assert accepted(content, mdp) == 0.0
    merged = at_tau(mdp, content, 0.0)
    assert merged["labels_upper"].tolist() == [0, 0, 1, 1, 2]
    assert accepted(merged, mdp) == 0.0
    # One bit less in one row, and 0 is no longer true.
    P[1, 0, [3, 4]] = [np.nextafter(0.25, 1.0), np.nextafter(0.75, 0.0)]
    other = TabularMDP.from_dense(P, mdp.rewards)
    content = {**merged, "fingerprint": other.fingerprint}
    assert "radius is 0.0" in found(content, other, "exact").problem
    assert not found(content, other).is_valid


# -- truth -------------------------------------------------------------------------------------


def perturb(content: dict[str, Any], rng: np.random.Generator) -> None:
    """Change one thing, outward or inward, a little or a lot."""
    factor = 1.0 + float(rng.choice([-1.0, 1.0])) * 10.0 ** -float(rng.integers(0, 5)) / 2.0
    level = content["levels"][int(rng.integers(len(content["levels"])))]
    features = content["features"]
    holder, name = [
        (level, "lower"),
        (level, "upper"),
        (level.model, "radius"),
        (level.model, "low"),
        (level.model, "high"),
        (level.model, "probs"),
        (features, "values"),
        (features, "corrections"),
        (None, "lower"),
        (None, "upper"),
        (level.model, "labels"),
        (features.witnesses, "values"),
        (features.witnesses, "potential"),
        (features.witnesses, "corrections"),
    ][int(rng.integers(14))]
    old = content[name] if holder is None else getattr(holder, name)
    new = old.copy()
    if name == "labels":
        new[int(rng.integers(new.size))] = int(rng.integers(new.max() + 1))
    elif new.size:
        where: Any = (
            ... if rng.random() < 0.5 else np.unravel_index(int(rng.integers(new.size)), new.shape)
        )
        new[where] = new[where] * factor
    if name in ("lower", "upper"):
        other = content if holder is None else vars(holder)
        if name == "lower":
            new = np.minimum(new, other["upper"])
        else:
            new = np.maximum(new, other["lower"])
    if holder is None:
        content[name] = new
    else:
        setattr(holder, name, new)


@given(seed=st.integers(0, 2**32 - 1), changes=st.integers(0, 4))
def test_what_float_mode_accepts_is_true(seed: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    gamma = float(rng.choice([0.2, 0.6, 0.8]))
    mdp = sparse_mdp(n, 2, support=int(rng.integers(1, 3)), seed=seed)
    labelings = [first_appearance(rng.integers(0, 3, n).tolist()) for _ in range(2)]
    every = [(s, t) for s in range(n) for t in range(s + 1, n)]
    pairs = [pair for pair in every if rng.random() < 0.4]
    content = build(mdp, gamma, labelings=labelings, pairs=pairs, sweeps=int(rng.integers(1, 5)))
    for _ in range(changes):
        perturb(content, rng)
    below, above = bounds(mdp, content)
    taus = thresholds(below, above)
    if taus:
        content = at_tau(mdp, content, taus[int(rng.integers(len(taus)))])
        if rng.random() < 0.3:
            content["labels_lower"] = content["labels_upper"]
        elif rng.random() < 0.3:
            content["labels_upper"] = content["labels_lower"]
    result, exact = found(content, mdp), found(content, mdp, "exact")
    if changes == 0 and not taus:
        assert result.is_valid, result.problem
    for one in (result, exact):
        if one.is_valid:
            assert_encloses(mdp, gamma, below, above, one.widening)
            assert_clusters(mdp, content)


def assert_clusters(mdp: TabularMDP, content: dict[str, Any]) -> None:
    """The exact clustering lies between the claimed ones, if it can be told."""
    if content["tau"] is None:
        return
    exact = bisimulation_metric(mdp, content["gamma"])
    tau, n = content["tau"], mdp.n_states
    room = exact.gap + 1e-12
    for table, shift in ((exact.lower, -room), (exact.upper, room)):
        moved = [[Fraction(float(table[s, t]) + shift) for t in range(n)] for s in range(n)]
        clusters = linked(moved, tau)
        for s in range(n):
            for t in range(n):
                if shift < 0 and content["labels_upper"][s] == content["labels_upper"][t]:
                    assert clusters[s] == clusters[t]
                if shift > 0 and clusters[s] == clusters[t]:
                    assert content["labels_lower"][s] == content["labels_lower"][t]


@given(seed=st.integers(0, 2**32 - 1))
def test_random_tables_are_judged_as_by_definition(seed: int) -> None:
    """Block tables of any kind: accepted exactly if all inequalities hold."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    gamma = float(rng.choice([0.3, 0.8]))
    mdp = sparse_mdp(n, 2, support=2, seed=seed)
    if rng.random() < 0.4:
        mdp = estimated(mdp, 0.1, 0.2, seed)
    labels = first_appearance(rng.integers(0, 3, n).tolist())
    content = build(mdp, gamma, labelings=[labels], sweeps=2, has_features=False)
    level = content["levels"][0]
    model, count = level.model, len(level.model.low)
    noise = 10.0 ** -float(rng.integers(1, 4))
    is_inner = level.keys % (count + 1) == 0
    level.upper = level.upper * (1.0 + noise * (rng.random(level.keys.size) - 0.3))
    level.lower = np.where(
        is_inner, 0.0, level.lower * (1.0 + noise * (rng.random(level.keys.size) - 0.7))
    )
    level.lower = np.minimum(level.lower, level.upper)
    operator = Operator(model, gamma)
    below = [[operator.starts(s, t)[0] for t in range(count)] for s in range(count)]
    above = [[operator.starts(s, t)[1] for t in range(count)] for s in range(count)]
    sizes = np.bincount(model.labels)
    for s in range(count):
        if sizes[s] == 1:
            above[s][s] = Fraction(0)
    starts = copy.deepcopy(below), copy.deepcopy(above)
    pairs = [divmod(key, count) for key in level.keys.tolist()]
    for (s, t), low, high in zip(pairs, level.lower.tolist(), level.upper.tolist(), strict=True):
        below[s][t] = below[t][s] = max(below[s][t], Fraction(low))
        above[s][t] = above[t][s] = min(above[s][t], Fraction(high))
    is_true = True
    for (s, t), low, high in zip(pairs, level.lower.tolist(), level.upper.tolist(), strict=True):
        if high < starts[1][s][t]:
            is_true &= operator.backup(above, s, t, is_upper=True) <= Fraction(high)
        if s != t and low > starts[0][s][t]:
            is_true &= operator.backup(below, s, t, is_upper=False) >= Fraction(low)
    assert found(content, mdp, "exact").is_valid == is_true
    # Claims that no rounding touches, so both modes see the same.
    assert found(content, mdp).is_valid == is_true


def test_what_a_model_is_conditional_on_cannot_be_left_out() -> None:
    """The sentence would then be about all starts, and not about those that were sampled."""
    mdp, _ = grouped_mdp(20, 4, noise=0.0, seed=0)
    mdp = mdp.with_metadata(conditions=["from 3 sampled starts"])
    made = certify(mdp, 0.9)
    assert "from 3 sampled starts" in made.verdict.sentence
    for mode in ("float", "exact"):
        assert verify(mdp, made, mode=mode).is_valid
        for conditions in ([], None, ["from every start there is"], [3], "from 3 sampled starts"):
            silent = replace(made, run={**made.run, "conditions": conditions})
            checked = verify(mdp, silent, mode=mode)
            assert not checked.is_valid
            assert "leaves out a condition of its model, 'from 3 sampled starts'" in checked.problem
