"""`certify` in both relations: certificates that hold, name actions, and refuse the other one."""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    Covering,
    TabularMDP,
    bisimulation_metric,
    certify,
    evaluate_policy,
    value_iteration,
    verify,
)
from bisim_abstract.errors import InvalidArgumentError, NotCertifiedError
from tests.support.examples import grid, seeds
from tests.support.oracles import transport_exact
from tests.support.relations import renamed_mdp
from tests.support.worlds import mirrored

RELATIONS = ("plain", "lax")
METHODS: dict[str, Blocks | Covering] = {
    "pairs": Blocks(),
    "blocks": Blocks(max_pairs=0),
    "few": Blocks(max_pairs=12),
    "covering": Covering(neighbours=2),
}


@grid(seed=range(6), method=METHODS, relation=RELATIONS)
def test_certificates_hold_and_are_verified(relation: str, method: str, seed: int) -> None:
    mdp = renamed_mdp(seed, n=8, missing=0.3 * (seed % 2))
    gamma = 0.8
    tau = "auto" if seed % 3 == 0 else None
    certificate = certify(
        mdp, gamma, relation=relation, tau=tau, method=METHODS[method], max_rounds=8
    )
    assert certificate.relation == relation
    for mode in ("float", "exact"):
        assert verify(mdp, certificate, mode=mode).verdict == "verified"
    metric = bisimulation_metric(mdp, gamma, relation=relation)
    first, second = np.triu_indices(mdp.n_states, 1)
    lower, upper = certificate.bounds(first, second)
    below, above = metric.bounds(first, second)
    assert (lower <= above + 1e-12).all()
    assert (upper >= below - 1e-12).all()


@seeds(12)
def test_proven_loss_encloses_the_true_one(seed: int) -> None:
    mdp = renamed_mdp(seed, n=9, noise=0.05, missing=0.3 * (seed % 2))
    certificate = certify(mdp, 0.8, relation="lax", max_loss=0.3)
    assert certificate.is_certified
    value = certificate.value
    assert value is not None
    assert value.renaming is not None
    played = value.lifted_policy
    assert mdp.available[np.arange(9), played].all()
    optimal, own = value_iteration(mdp, 0.8), evaluate_policy(mdp, 0.8, played)
    assert (optimal.lower - own.upper).max() <= value.loss <= 0.3
    assert (optimal.upper >= value.optimal_lower).all()


def test_a_corridor_and_its_mirror_image_are_one() -> None:
    mdp = mirrored(11, noise=0.1)
    plain, lax = (certify(mdp, 0.9, relation=relation, max_loss=0.0) for relation in RELATIONS)
    assert plain.n_clusters == 11
    lax = certify(mdp, 0.9, relation="lax", max_loss=1e-6)
    assert lax.n_clusters == 6
    assert np.array_equal(lax.labels, lax.labels[::-1])
    # What is left at one end is right at the other.
    found = lax.correspondence()
    assert found.is_renamed
    assert found.of(0) == {0: 0, 1: 1}
    assert found.of(10) == {0: 1, 1: 0}
    assert found.widest <= 1e-8
    assert "1 state, 10 the first, as state 0 with 0 as 1, 1 as 0" in str(found)
    assert not plain.correspondence().is_renamed
    value = lax.value
    assert value is not None
    assert value.lifted_policy.tolist() == [0] * 5 + [value.lifted_policy[5]] + [1] * 5


@pytest.mark.parametrize("relation", RELATIONS)
@seeds(8)
def test_correspondences_bound_what_actions_differ_by(relation: str, seed: int) -> None:
    """In fractions, under lower bounds of the metric: a wrong name or a dropped term shows."""
    mdp = renamed_mdp(seed, n=7, noise=0.1, missing=0.2)
    gamma = 0.7
    certificate = certify(mdp, gamma, relation=relation, max_loss=0.5)
    found = certificate.correspondence()
    metric = bisimulation_metric(mdp, gamma, relation=relation).lower
    for s in range(mdp.n_states):
        model = int(found.models[found.labels[s]])
        assert found.labels[model] == found.labels[s]
        for a, b in found.of(s).items():
            (x, p), (y, q) = mdp.successors(s, a), mdp.successors(model, b)
            gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[model, b])))
            cost = [[Fraction(float(metric[i, j])) for j in y] for i in x]
            moved = transport_exact(cost, p.tolist(), q.tolist())
            assert Fraction(float(found.difference[s, a])) >= gap + Fraction(gamma) * moved
        lacking = ~mdp.available[s]
        assert (found.renaming[s][lacking] == -1).all()


def test_correspondences_need_a_proven_value() -> None:
    mdp = mirrored(5)
    certificate = certify(mdp, 0.9, relation="lax")
    with pytest.raises(NotCertifiedError, match="with_value"):
        certificate.at(1e9).correspondence()
    assert certificate.at(1e9).with_value().correspondence().models.size == 1


def test_nearest_pairs_tell_which_action_is_which() -> None:
    mdp = mirrored(9, noise=0.1)
    certificate = certify(mdp, 0.9, relation="lax", tau=1e-4)
    pairs = certificate.nearest(4)
    assert all(len(pair.renaming) >= 2 for pair in pairs)
    for pair in pairs:
        assert {a for a, _ in pair.renaming} == {b for _, b in pair.renaming} == {0, 1}
        assert pair.is_renamed == any(a != b for a, b in pair.renaming)
        assert ("against" in str(pair)) == pair.is_renamed
    far = TabularMDP.from_dense(
        np.eye(2)[:, None, :].repeat(2, axis=1),
        [[1.0, 0.0], [0.0, 0.0]],
        available=[[True, False], [False, True]],
        order="sas",
    )
    (pair,) = certify(far, 0.5, tau=0.5).nearest(1)
    assert pair.action is None
    assert "different actions" in str(pair)


def test_files_keep_the_relation(tmp_path: Path) -> None:
    for seed in range(4):
        mdp = renamed_mdp(seed, missing=0.4)
        for relation in RELATIONS:
            made = certify(mdp, 0.8, relation=relation)
            made.save(tmp_path / "c.npz")
            read = Certificate.load(tmp_path / "c.npz")
            assert read.relation == relation
            assert read.apart == made.apart
            assert np.array_equal(read.available, mdp.available)
            assert verify(mdp, read).verdict == "verified"


def test_the_other_relation_is_refused() -> None:
    mdp = mirrored(7)
    lax = certify(mdp, 0.9, relation="lax", max_loss=1e-6)
    assert lax.n_clusters < 7
    forged = replace(lax, relation="plain", value=None)
    found = verify(mdp, forged)
    assert not found.is_valid
    with pytest.raises(InvalidArgumentError, match="relation must be"):
        certify(mdp, 0.9, relation="loose")


def test_checkpoints_belong_to_a_relation(tmp_path: Path) -> None:
    mdp = renamed_mdp(1, n=10)
    file = tmp_path / "checkpoint.npz"
    certify(mdp, 0.9, relation="lax", method=Covering(), max_rounds=2, tau=0.1, checkpoint=file)
    assert file.exists()
    with pytest.raises(InvalidArgumentError, match="other settings"):
        certify(mdp, 0.9, method=Covering(), max_rounds=2, tau=0.1, checkpoint=file)


@pytest.mark.parametrize("mode", ["float", "exact"])
def test_the_distance_of_other_actions_is_the_one_that_bounds_read(mode: str) -> None:
    """A larger one, or another gamma, and `bounds` would leave the stated distance out."""
    mdp = renamed_mdp(2, missing=0.4)
    made = certify(mdp, 0.8)
    assert made.apart is not None
    for name, value in (("apart", 1.5 * made.apart), ("gamma", 0.5), ("apart", 0.99 * made.apart)):
        forged = copy.copy(made)
        object.__setattr__(forged, name, value)
        found = verify(mdp, forged, mode=mode)
        assert not found.is_valid
