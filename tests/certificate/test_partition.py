"""`PartitionProof`: made, verified, forged, saved; it never passes for a certificate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Certificate, TabularMDP, prove_value, verify
from bisim_abstract._certificate.partition import load_proof
from bisim_abstract.errors import FileFormatError, InvalidArgumentError
from bisim_abstract.parts import PartitionProof, grouped_mdp, prove_partition
from tests.support.action_values import masked_estimate, random_model
from tests.support.certificates import same
from tests.support.examples import grid

GAMMA = 0.5


@pytest.fixture(scope="module")
def made() -> tuple[TabularMDP, PartitionProof]:
    mdp, groups = grouped_mdp(12, 3, 2, noise=0.01, support=2, seed=0)
    return mdp, prove_partition(mdp, groups, GAMMA)


@pytest.mark.parametrize("mode", ["float", "exact", "sampled"])
def test_is_verified(made: tuple[TabularMDP, PartitionProof], mode: str) -> None:
    mdp, proof = made
    found = verify(mdp, proof, mode=mode)
    assert found.is_valid, found.problem
    assert found.mode == ("exact" if mode == "exact" else "float")
    assert found.pairs_checked == 0 < found.values_checked


def test_says_what_it_is(made: tuple[TabularMDP, PartitionProof]) -> None:
    _, proof = made
    verdict = proof.verdict
    assert verdict.sentence.startswith("PROVEN FOR AGENTS, not certified: 3 clusters of 12 states;")
    assert "any agent that solves the small environment retains " in verdict.sentence
    assert verdict.sentence.endswith("not shown to be those of a metric")
    assert (verdict.level, verdict.is_certified) == ("useful", False)
    assert "proven for agents, not certified" in repr(proof)
    assert "PROVEN FOR AGENTS" in proof.summary()
    assert "PROVEN FOR AGENTS" in proof._repr_html_()


def test_poor_ones_say_so(made: tuple[TabularMDP, PartitionProof]) -> None:
    mdp, _ = made
    one = prove_partition(mdp, np.zeros(12, np.int64), GAMMA, keep=1.0)
    assert (one.verdict.level, one.n_clusters) == ("poor", 1)
    assert one.verdict.sentence.startswith("PROVEN FOR AGENTS, not certified, BUT ")
    every = prove_partition(mdp, np.arange(12), GAMMA)
    assert "BUT nothing is merged: 12 clusters" in every.verdict.sentence


@pytest.mark.parametrize("mode", ["float", "exact"])
def test_forged_values_are_rejected(made: tuple[TabularMDP, PartitionProof], mode: str) -> None:
    mdp, proof = made
    value = proof.value
    lower = value.solver.lower + 0.5
    forged: list[Any] = [
        replace(value, solver=replace(value.solver, lower=lower)),
        replace(value, optimal_upper=value.optimal_upper - 0.5),
        replace(value, loss=0.0, start_loss=0.0),
    ]
    for bad in forged:
        assert not verify(mdp, replace(proof, value=bad), mode=mode).is_valid
    assert not verify(mdp, replace(proof, gamma=0.6), mode=mode).is_valid
    assert not verify(mdp, replace(proof, alpha=0.05), mode=mode).is_valid
    other, _ = grouped_mdp(12, 3, 2, noise=0.01, support=2, seed=1)
    assert "another model" in verify(other, proof, mode=mode).problem


def test_claims_no_bounds(made: tuple[TabularMDP, PartitionProof]) -> None:
    """Nothing that claims distances is verified as a partition, where these are not checked."""
    mdp, proof = made
    names = ("fingerprint", "n_states", "gamma", "relation", "terminal_state", "available")
    fields = {name: getattr(proof, name) for name in (*names, "alpha", "value", "labels", "scope")}
    assert verify(mdp, SimpleNamespace(**fields)).is_valid  # type: ignore[arg-type]
    for name in ("tau", "keys", "levels", "labels_lower"):
        more: Any = SimpleNamespace(**fields, **{name: None})
        assert "must claim no bounds" in verify(mdp, more).problem
    nothing: Any = SimpleNamespace(**fields | {"value": None})
    assert "must have a value" in verify(mdp, nothing).problem
    for name in fields:
        less: Any = SimpleNamespace(**{x: fields[x] for x in fields if x != name})
        assert not verify(mdp, less).is_valid


def test_files(made: tuple[TabularMDP, PartitionProof], tmp_path: Path) -> None:
    mdp, proof = made
    path = tmp_path / "proof.npz"
    proof.save(path)
    again = PartitionProof.load(path)
    assert verify(mdp, again).is_valid
    assert same(again.value, proof.value)
    assert again.verdict == proof.verdict
    assert isinstance(load_proof(path), PartitionProof)
    with pytest.raises(FileFormatError, match=r"holds a bisim_abstract\.PartitionProof, not"):
        Certificate.load(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileFormatError):
        PartitionProof.load(path)


def test_refusals(made: tuple[TabularMDP, PartitionProof]) -> None:
    mdp, proof = made
    with pytest.raises(InvalidArgumentError, match="give keep or max_loss, not both"):
        prove_partition(mdp, np.arange(12), GAMMA, keep=0.9, max_loss=0.1)
    with pytest.raises(InvalidArgumentError, match="relation must be one of"):
        prove_partition(mdp, np.arange(12), GAMMA, relation="optimal")
    with pytest.raises(InvalidArgumentError, match="value must be a ProvenValue"):
        replace(proof, value=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="of another model"):
        replace(proof, fingerprint="x")


@grid(seed=range(6), kind=("any", "estimate"), relation=("plain", "lax"))
def test_any_partition_of_any_model(seed: int, kind: str, relation: str) -> None:
    """Coarse or fine, of masked and estimated models: what is made is verified in both modes."""
    mdp = masked_estimate(seed) if kind == "estimate" else random_model(seed)
    rng = np.random.default_rng(seed)
    sets = np.unique(mdp.available, axis=0, return_inverse=True)[1].reshape(-1)
    labels = sets * 2 + rng.integers(0, 2, mdp.n_states)  # the same actions in each cluster
    labels = np.unique(labels, return_inverse=True)[1].reshape(-1)
    proof = prove_partition(mdp, labels, GAMMA, relation=relation)
    assert proof.alpha == (None if mdp.estimate is None else mdp.estimate.alpha)
    assert np.array_equal(proof.available, mdp.available)
    for mode in ("float", "exact"):
        found = verify(mdp, proof, mode=mode)
        assert found.is_valid, found.problem


def test_actions_must_be_common() -> None:
    """By name, no cluster can hold states with different actions."""
    available = np.array([[True, True], [True, False], [True, True]])
    mdp = TabularMDP.from_dense(np.full((3, 2, 3), 1 / 3), np.eye(3)[:, :2], available=available)
    with pytest.raises(InvalidArgumentError, match="state 1 has others than the first of its cl"):
        prove_partition(mdp, [0, 0, 1], GAMMA)
    proof = prove_partition(mdp, [0, 1, 0], GAMMA)
    assert proof.n_clusters == 2
    object.__setattr__(proof, "value", prove_value(mdp, [0, 0, 1], GAMMA))
    assert "action 1 of state 1 is not one that all" in verify(mdp, proof).problem
