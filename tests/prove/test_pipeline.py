"""The whole chain: what the pipeline claims, the independent checker accepts, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    Covering,
    InvalidArgumentError,
    TabularMDP,
    bisimulation_metric,
    certify,
    verify,
)
from bisim_abstract._base.labels import numbered
from bisim_abstract._linkage.forests import spanning_forest
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import grouped_mdp, random_mdp, single_build, sparse_mdp
from tests.support.examples import grid
from tests.support.oracles import refines

MODELS: dict[str, Callable[[int], TabularMDP]] = {
    "dense": lambda seed: random_mdp(9, 2, seed=seed),
    "sparse": lambda seed: sparse_mdp(14, 2, support=3, seed=seed),
    "deterministic": lambda seed: sparse_mdp(16, 3, support=1, seed=seed),
    "grouped": lambda seed: grouped_mdp(18, 3, 2, noise=0.02, support=3, seed=seed)[0],
}


@grid(gamma=[0.0, 0.7, 0.95], name=MODELS)
def test_every_certificate_is_verified_exactly_and_brackets_the_clustering(
    name: str, gamma: float
) -> None:
    for seed in range(2):
        mdp = MODELS[name](seed)
        exact = bisimulation_metric(mdp, gamma)
        tau = 0.3 * exact.diameter[1]
        made = [
            single_build(mdp, gamma, tau=tau, neighbours=3, sweeps=4, seed=seed),
            single_build(
                mdp, gamma, tau=tau, neighbours=3, sweeps=4, lower_start="zero", seed=seed
            ),
            single_build(mdp, gamma, tau=tau, neighbours=3, sweeps=2, backup="index", omit=0.1),
            certify(mdp, gamma, tau=tau, method=Covering(neighbours=2), max_rounds=4, seed=seed),
            certify(
                mdp,
                gamma,
                tol=1e-9,
                method=Covering(neighbours=2, index="Flat"),
                max_rounds=6,
                seed=seed,
            ),
            certify(mdp, gamma, tau=tau, seed=seed),
        ]
        for certificate in made:
            found = verify(mdp, certificate, mode="exact")
            assert (found.verdict, found.widening) == ("verified", 0.0), found.problem
            assert verify(mdp, certificate).is_valid
            # The clustering of the exact metric over pairs in scope lies between both arms'.
            first, second = np.triu_indices(mdp.n_states, 1)
            if certificate.scope == "covered":
                first, second = np.divmod(certificate.keys, mdp.n_states)
            lower, upper = certificate.partitions(tau)
            for table in (exact.lower, exact.upper):
                middle = spanning_forest(mdp.n_states, first, second, table[first, second])
                if np.abs(table[first, second] - tau).min(initial=1.0) > exact.gap:
                    assert refines(upper.tolist(), middle.labels(tau).tolist())
                    assert refines(middle.labels(tau).tolist(), lower.tolist())


@pytest.fixture(scope="module")
def honest() -> tuple[TabularMDP, Certificate]:
    mdp = sparse_mdp(12, 2, support=3, seed=5)
    # Converged, so that no bound has room left.
    certificate = single_build(mdp, 0.8, tau=1.2, neighbours=4, sweeps=2000, upper_start="reward")
    assert not certificate.is_certified
    return mdp, certificate


def changed(array: np.ndarray, at: int, value: float) -> np.ndarray:
    copied = array.copy()
    copied[at] = value
    return copied


def merged(labels: np.ndarray) -> np.ndarray:
    return numbered(np.where(labels == labels.max(), 0, labels))


# Alterations that make a claim false; each is written to a file with a fresh digest.
ALTERATIONS: dict[str, Callable[[Certificate], dict[str, Any]]] = {
    "lower raised": lambda c: {"lower": changed(c.lower, 0, c.upper[0])},
    "lower raised a little": lambda c: {"lower": changed(c.lower, 3, c.lower[3] * (1 + 1e-9))},
    "last lower raised": lambda c: {"lower": changed(c.lower, -1, c.upper[-1])},
    "all lower raised": lambda c: {"lower": np.minimum(c.lower * 1.01, c.upper)},
    "upper lowered": lambda c: {"upper": changed(c.upper, 0, c.lower[0])},
    "upper lowered a little": lambda c: {"upper": changed(c.upper, 5, c.upper[5] * (1 - 1e-9))},
    "last upper lowered": lambda c: {"upper": changed(c.upper, -1, c.lower[-1])},
    "all upper lowered": lambda c: {"upper": np.maximum(c.upper * 0.99, c.lower)},
    "upper at zero": lambda c: {"upper": c.upper * 0.0, "lower": c.lower * 0.0},
    "arms swapped": lambda c: {"lower": c.upper, "upper": c.lower},
    "bounds negative": lambda c: {"lower": changed(c.lower, 0, -1.0)},
    "bounds not finite": lambda c: {"upper": changed(c.upper, 0, np.inf)},
    "a pair dropped": lambda c: {
        "keys": c.keys[1:], "lower": c.lower[1:], "upper": c.upper[1:]
    },
    "keys reversed": lambda c: {"keys": c.keys[::-1].copy()},
    "a key moved": lambda c: {"keys": changed(c.keys, -1, 11 * 12 + 11)},
    "a key repeated": lambda c: {"keys": changed(c.keys, 1, c.keys[0])},
    "lengths differ": lambda c: {"lower": c.lower[:-1]},
    "gamma smaller": lambda c: {"gamma": 0.5},
    "gamma larger": lambda c: {"gamma": 0.9},
    "lower start zero": lambda c: {"lower_start": "zero"},
    "upper start constant": lambda c: {"upper_start": "constant"},
    "rewards of another model": lambda c: {"rewards": c.rewards * 2.0},
    "fingerprint of another model": lambda c: {"fingerprint": "0" * 64},
    "other number of states": lambda c: {"n_states": 13},
    "clusters merged": lambda c: {"labels_upper": merged(c.labels_upper)},
    "clusters split": lambda c: {"labels_lower": np.arange(12)},
    "clusters agree": lambda c: {"labels_lower": c.labels_upper},
    "clusters renumbered": lambda c: {"labels_upper": c.labels_upper[::-1].copy()},
    "threshold raised": lambda c: {"tau": 1e9},
    "threshold lowered": lambda c: {"tau": 0.01},
}  # fmt: skip


@pytest.mark.parametrize("name", ALTERATIONS)
def test_altered_certificates_are_rejected_whatever_their_digest(
    honest: tuple[TabularMDP, Certificate], name: str, tmp_path: Path
) -> None:
    mdp, certificate = honest
    path = tmp_path / "altered.npz"
    try:
        dataclasses.replace(certificate, **ALTERATIONS[name](certificate)).save(path)
        altered = Certificate.load(path)
    except (InvalidArgumentError, FileFormatError):
        return  # refused at sight: no such certificate can even be held
    for mode in ("float", "exact"):
        found = verify(mdp, altered, mode=mode)
        assert found.verdict == "rejected", name
        assert found.problem


@pytest.mark.parametrize("tau", [0.65, 0.8, 1.05])
def test_a_widened_scope_is_rejected(tau: float, tmp_path: Path) -> None:
    """Clusters that no covered pair links, but others do: true in one scope, false in the other."""
    mdp = sparse_mdp(12, 2, support=3, seed=0)
    certificate = single_build(
        mdp, 0.5, tau=tau, neighbours=1, sweeps=2000, upper_start="reward", seed=0
    )
    labels = certificate.labels_lower
    first, second = np.triu_indices(12, 1)
    is_linked = bisimulation_metric(mdp, 0.5).upper[first, second] <= tau
    assert (labels[first] != labels[second])[is_linked].any()
    assert verify(mdp, certificate, mode="exact").is_valid
    dataclasses.replace(certificate, scope="all").save(tmp_path / "altered.npz")
    altered = Certificate.load(tmp_path / "altered.npz")
    for mode in ("float", "exact"):
        found = verify(mdp, altered, mode=mode)
        assert found.verdict == "rejected"
        assert "labels_lower" in found.problem
    # Asked for this scope, the same bounds give other clusters, and these are right.
    honest = altered.at(tau)
    assert not np.array_equal(honest.labels_lower, labels)
    assert verify(mdp, honest, mode="exact").is_valid


def test_the_honest_one_passes(honest: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = honest
    certificate.save(tmp_path / "honest.npz")
    for mode in ("float", "exact", "sampled"):
        assert verify(mdp, Certificate.load(tmp_path / "honest.npz"), mode=mode).is_valid
    other = sparse_mdp(12, 2, support=3, seed=6)
    assert "another model" in verify(other, certificate).problem
