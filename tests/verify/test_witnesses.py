"""`verify` on witnesses: the joint rule, what is honest by it, and every way to forge them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Resources, TabularMDP, bisimulation_metric, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._bounds.features import value_features
from bisim_abstract._bounds.tell_apart import make_witnesses
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._prove.making import make_certificate
from bisim_abstract.parts import sparse_mdp
from tests.support.blocks import noisy_groups
from tests.support.certificates import changed
from tests.support.examples import seeds
from tests.support.honest import (
    accepted,
    build,
    found,
    is_jointly_enough,
    make_features,
    rejected,
    sharp_corrections,
    witness_spans,
)

ONE = Resources(threads=1)

# -- what is honest ----------------------------------------------------------------------------


def proven(
    n: int, n_groups: int, gamma: float, *, seed: int, rounds: int = 200
) -> tuple[TabularMDP, Certificate]:
    """A certificate whose covered pairs rest on witnesses."""
    mdp, groups = noisy_groups(n, n_groups, 0.05, n_actions=2, seed=seed)
    features = value_features(mdp, gamma, count=2, resources=ONE)
    model = build_blocks(mdp, groups, resources=ONE)
    pairs = np.triu_indices(n_groups, 1)
    made = make_witnesses(
        mdp, gamma, features, model, *pairs, tol=1e-4, max_rounds=rounds, resources=ONE
    )
    arms = Arms(mdp, gamma, resources=ONE)
    arms.set_features(features.with_witnesses(made))
    arms.cover([0, 1, 2], [n - 1, n - 2, n // 2])
    for _ in range(4):
        arms.sweep()
    tau = float(np.median(arms.lower)) / 2.0
    return mdp, make_certificate(arms, tau=tau, stop="", run={})


@pytest.mark.parametrize("rounds", [1, 3, 200])
@pytest.mark.parametrize("gamma", [0.3, 0.9])
def test_accepts_what_is_made(gamma: float, rounds: int) -> None:
    for seed in range(2):
        mdp, certificate = proven(12, 3, gamma, seed=seed, rounds=rounds)
        for mode in ("float", "exact", "sampled"):
            result = verify(mdp, certificate, mode=mode)
            assert result.is_valid, result.problem
            assert result.features_checked == 5
        one, two = (verify(mdp, certificate, resources=Resources(threads=k)) for k in (1, 2))
        assert one == two
        assert one.widening <= 1e-12 / (1.0 - gamma) ** 2


def test_pairs_rest_on_witnesses() -> None:
    """Without them, or with others in their place, what was backed up from them is not proven."""
    mdp, certificate = proven(12, 3, 0.9, seed=0)
    assert certificate.features is not None
    without = changed(certificate, features=certificate.features.with_witnesses(None))
    for mode in ("float", "exact"):
        assert not verify(mdp, without, mode=mode).is_valid


# -- the joint rule ----------------------------------------------------------------------------


def alone(mdp: TabularMDP, gamma: float, first: list[float]) -> dict[str, Any]:
    """g_1 backed up from nothing, and g_2 = R + γ·P g_1, each corrected by itself.

    Potentials on all states are their own extension: that of g_1 is 0, that of g_2 is g_1.
    """
    n, states = mdp.n_states, np.arange(mdp.n_states)
    content = build(mdp, gamma, has_features=False)
    content["features"] = features = SimpleNamespace(
        values=np.zeros((1, n)),
        signs=np.ones((1, mdp.n_actions), np.int64),
        kinds=np.zeros(1, np.int64),
        corrections=np.array([float(np.ptp(mdp.rewards.max(axis=1))) / (1.0 - gamma)]),
        floor=np.array([-np.inf]),
        ceiling=np.array([np.inf]),
        witnesses=SimpleNamespace(
            values=np.array([first, first]),
            actions=np.zeros(2, np.int64),
            signs=np.ones(2, np.int64),
            support=np.stack([states, states]),
            potential=np.array([[0.0] * n, first]),
            corrections=np.zeros(2),
        ),
    )
    witnesses = features.witnesses
    rows = np.array([np.bincount(*mdp.successors(s, 0), minlength=n) for s in range(n)])
    witnesses.values[1] = mdp.rewards[:, 0] + gamma * rows @ np.array(first)
    spans = witness_spans(mdp, gamma, features)
    assert spans[1] == 0
    witnesses.corrections = np.array([float(span / (1 - Fraction(gamma))) for span in spans])
    return content


@pytest.mark.parametrize("has_rewards", [False, True])
@seeds(6)
def test_corrections_of_each_function_by_itself_are_rejected(seed: int, has_rewards: bool) -> None:
    """A residual of 0 does not make g_2 admissible: what it reads is not."""
    rng = np.random.default_rng(seed)
    # In sixteenths and quarters: no sum rounds, and no two rows coincide.
    P = rng.multinomial(16, np.full(5, 0.2), size=(5, 1)) / 16
    mdp = TabularMDP.from_dense(P, has_rewards * rng.integers(0, 3, (5, 1)) / 4)
    first = (64.0 * rng.permutation(5)).tolist()
    content = alone(mdp, 0.5, first)
    witnesses = content["features"].witnesses
    # It really is above the metric, with the correction that would have been enough by itself.
    gaps = np.abs(witnesses.values[1][:, None] - witnesses.values[1])
    exact = bisimulation_metric(mdp, 0.5).upper
    assert (gaps - witnesses.corrections[1] > exact).any()
    rejected(content, mdp, "correction of witness 1")
    # By the joint rule it holds.
    witnesses.corrections = sharp_corrections(mdp, 0.5, content["features"])
    accepted(content, mdp)
    assert (gaps - witnesses.corrections[1] <= exact).all()


def test_features_that_are_off_count_for_all() -> None:
    """The largest correction is a feature's: every witness carries gamma times that."""
    mdp = sparse_mdp(5, 2, support=2, seed=3)
    content = build(mdp, 0.5, has_features=False)
    content["features"] = features = make_features(mdp, 0.5, 12, stretch=2.0)
    assert features.corrections.max() > features.witnesses.corrections.max()
    accepted(content, mdp)
    least = 0.5 * features.corrections.max()
    assert (features.witnesses.corrections >= least).all()
    features.witnesses.corrections = features.witnesses.corrections - 0.5 * least
    rejected(content, mdp, "correction of witness 0")


def test_a_larger_correction_elsewhere_needs_larger_ones_here() -> None:
    """What one function is off by counts for all that read it: none may be raised alone."""
    mdp = sparse_mdp(5, 2, support=2, seed=3)
    content = build(mdp, 0.5, sweeps=20)
    accepted(content, mdp)
    content["features"].witnesses.corrections[1] += 0.125
    rejected(content, mdp, "correction of witness 0")
    content["features"].witnesses.corrections[0] += 0.0625
    accepted(content, mdp)


# -- forgeries ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharp() -> tuple[TabularMDP, dict[str, Any]]:
    """Witnesses whose corrections have no room, and nothing that rests on them."""
    mdp = sparse_mdp(6, 2, support=2, seed=5)
    content = build(mdp, 0.6, sweeps=9)
    accepted(content, mdp)
    return mdp, content


def forged(content: dict[str, Any], name: str, at: Any, value: Any) -> dict[str, Any]:
    features = SimpleNamespace(**vars(content["features"]))
    features.witnesses = SimpleNamespace(**vars(features.witnesses))
    array = getattr(features.witnesses, name).copy()
    array[at] = value
    setattr(features.witnesses, name, array)
    return {**content, "features": features}


def judged(content: dict[str, Any], mdp: TabularMDP) -> bool:
    """Both modes decide as fractions do, the rule written out; whether it still is valid."""
    is_true = is_jointly_enough(mdp, content["gamma"], content["features"])
    for mode in ("float", "exact"):
        result = found(content, mdp, mode)
        assert result.is_valid == is_true, (mode, result.problem)
        assert is_true or "correction of witness" in result.problem
    return is_true


def test_every_field_counts(sharp: tuple[TabularMDP, dict[str, Any]]) -> None:
    """Each entry of each field changed; what fractions still allow is accepted, nothing else."""
    mdp, content = sharp
    witnesses = content["features"].witnesses
    verdicts: dict[str, list[bool]] = {}
    for name, values in vars(witnesses).items():
        for at in np.ndindex(values.shape):
            old, changes = values[at], list[Any]()
            if name == "support":
                changes = [s for s in range(mdp.n_states) if s != old]
            elif name == "actions":
                changes = [1 - old]
            elif name == "signs":
                changes = [-old]
            elif name == "corrections":
                changes = [old * (1.0 - 1e-6), old * 0.5, 0.0]
            else:
                changes = [old - 0.5, old - 1e-4, old + 1e-4, old + 0.5]
            for value in changes:
                valid = judged(forged(content, name, at, value), mdp)
                verdicts.setdefault(name, []).append(valid)
    assert set(verdicts) == set(vars(witnesses))
    for name, seen in verdicts.items():
        assert not all(seen), name
    for name in ("actions", "signs", "corrections"):  # these have no room at all
        assert not any(verdicts[name]), name


@given(st.integers(0, 2**32 - 1))
def test_random_forgeries_are_judged_by_the_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, gamma = int(rng.integers(3, 6)), float(rng.choice([0.3, 0.6, 0.9]))
    mdp = sparse_mdp(n, 2, support=int(rng.integers(1, 3)), seed=seed)
    content = build(mdp, gamma, sweeps=int(rng.integers(1, 8)))
    assert judged(content, mdp)
    for _ in range(int(rng.integers(1, 4))):
        name = str(rng.choice(["values", "potential", "corrections", "support"]))
        values = getattr(content["features"].witnesses, name)
        at = tuple(int(rng.integers(size)) for size in values.shape)
        factor = 1.0 + float(rng.choice([-1.0, 1.0])) * 10.0 ** -float(rng.integers(0, 6)) / 2.0
        value = int(rng.integers(n)) if name == "support" else values[at] * factor
        content = forged(content, name, at, value)
    if judged(content, mdp):
        features = content["features"]
        lines = np.vstack([features.values, features.witnesses.values])
        slack = np.append(features.corrections, features.witnesses.corrections)
        exact = bisimulation_metric(mdp, gamma, resources=ONE).upper
        for line, c in zip(lines, slack, strict=True):
            assert (np.abs(line[:, None] - line) - c <= exact + 1e-12).all()
