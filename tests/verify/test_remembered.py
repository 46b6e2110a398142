"""What is remembered as verified, and how easily that is forgotten."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Certificate, TabularMDP, certify, verify
from bisim_abstract._base.types import Progress
from bisim_abstract._verify import remembered
from bisim_abstract._verify.read import read_claims
from bisim_abstract._verify.verify import verify_rest
from bisim_abstract.errors import VerificationError
from bisim_abstract.parts import grouped_mdp, sparse_mdp

MDP = grouped_mdp(20, 4, noise=0.02, seed=0)[0]


@pytest.fixture(autouse=True)
def _nothing_yet() -> Iterator[None]:
    for known in (remembered.known_claims, remembered.known_bounds):
        known.clear()
    yield
    for known in (remembered.known_claims, remembered.known_bounds):
        known.clear()


@pytest.fixture
def certificate() -> Certificate:
    return certify(MDP, 0.9, tau="auto")


def is_remembered(mdp: TabularMDP, certificate: Certificate) -> bool:
    """Whether exactly these claims were verified, in full."""
    try:
        claims = read_claims(certificate, mdp)
    except VerificationError:
        return False
    digest = remembered.claims_digest(remembered.bounds_digest(mdp, claims), claims)
    return digest in remembered.known_claims


def rewrite(array: Any, index: int, value: float) -> None:
    """As somebody could who insists."""
    array.setflags(write=True)
    array[index] = value
    array.setflags(write=False)


def test_only_full_checks_are_remembered(certificate: Certificate) -> None:
    assert not is_remembered(MDP, certificate)
    assert verify(MDP, certificate, mode="sampled", sample=3).is_valid
    assert not is_remembered(MDP, certificate)
    for mode in ("float", "exact"):
        remembered.known_claims.clear()
        assert verify(MDP, certificate, mode=mode).is_valid
        assert is_remembered(MDP, certificate)


def test_equal_claims_are_the_same_claims(certificate: Certificate, tmp_path: Path) -> None:
    assert verify(MDP, certificate).is_valid
    certificate.save(tmp_path / "c.npz")
    MDP.save(tmp_path / "m.npz")
    again, model = Certificate.load(tmp_path / "c.npz"), TabularMDP.load(tmp_path / "m.npz")
    assert is_remembered(model, again)
    assert is_remembered(MDP, dataclasses.replace(certificate, stop="", run={}))


def test_rejected_certificates_are_not_remembered(certificate: Certificate) -> None:
    (level, *rest) = certificate.levels
    tight = dataclasses.replace(level, upper=np.maximum(level.lower, 1e-9 * level.upper))
    forged = dataclasses.replace(certificate, levels=(tight, *rest), run={}).at(0.2)
    assert not verify(MDP, forged).is_valid
    assert not is_remembered(MDP, forged)


def test_other_claims_are_not_remembered(certificate: Certificate) -> None:
    assert verify(MDP, certificate).is_valid
    tau = certificate.certified_thresholds()[0].low
    value = certificate.value
    assert value is not None
    weaker = dataclasses.replace(value, loss=value.loss * 2.0)
    for other in (
        certificate.at(tau),
        dataclasses.replace(certificate, value=None, run={}),
        dataclasses.replace(certificate, value=weaker, run={}),
        dataclasses.replace(certificate, scope="covered", run={}),
    ):
        assert not is_remembered(MDP, other)
    assert not is_remembered(sparse_mdp(20, seed=1), certificate)


def test_what_is_altered_by_force_is_forgotten(certificate: Certificate) -> None:
    assert verify(MDP, certificate).is_valid
    level = certificate.levels[0]
    kept = float(level.upper[0])
    rewrite(level.upper, 0, 0.0)
    assert not is_remembered(MDP, certificate)
    rewrite(level.upper, 0, kept)
    assert is_remembered(MDP, certificate)
    object.__setattr__(certificate, "gamma", 0.5)
    assert not is_remembered(MDP, certificate)


def test_the_model_is_looked_at_as_well() -> None:
    """Its fingerprint was computed once; its arrays can be altered afterwards."""
    mdp = grouped_mdp(20, 4, noise=0.02, seed=0)[0]
    certificate = certify(mdp, 0.9, tau="auto")
    assert verify(mdp, certificate).is_valid
    stale = mdp.fingerprint
    rewrite(mdp.rewards, 0, mdp.rewards[0] + 1.0)
    assert mdp.fingerprint == stale
    assert not is_remembered(mdp, certificate)


def test_rows_of_the_model_are_looked_at() -> None:
    """Rewards stand in the certificate too; rows and starts stand in the model alone."""
    mdp = grouped_mdp(20, 4, noise=0.02, seed=0)[0]
    certificate = certify(mdp, 0.9, tau="auto")
    assert verify(mdp, certificate).is_valid
    for array in (mdp.probs, mdp.start):
        before = float(array[0])
        rewrite(array, 0, before * 0.5)
        assert not is_remembered(mdp, certificate)
        rewrite(array, 0, before)
        assert is_remembered(mdp, certificate)


def test_clusters_are_claims_too(certificate: Certificate) -> None:
    bare = dataclasses.replace(certificate, value=None, run={})
    assert verify(MDP, bare).is_valid
    merged = np.minimum(bare.labels_lower, 1)
    forged = dataclasses.replace(bare, labels_lower=merged, labels_upper=merged)
    assert is_remembered(MDP, bare)
    assert not is_remembered(MDP, forged)
    assert not verify_rest(MDP, forged).is_valid


def altered_models(certificate: Certificate) -> Iterator[Certificate]:
    """Other centres, intervals, radii and blocks under the same bounds."""
    (level, *rest) = certificate.levels
    model = level.model
    labels = model.labels.copy()
    labels[0] = (labels[0] + 1) % model.n_blocks
    for other in (
        {"radius": model.radius * 0.5},
        {"high": model.low},
        {"probs": model.probs[::-1].copy()},
        {"labels": labels},
    ):
        changed = dataclasses.replace(level, model=dataclasses.replace(model, **other))
        yield dataclasses.replace(certificate, levels=(changed, *rest), run={})


def test_block_models_are_claims_too(certificate: Certificate) -> None:
    assert verify(MDP, certificate).is_valid
    for forged in altered_models(certificate):
        assert not is_remembered(MDP, forged)
        assert not verify_rest(MDP, forged).is_valid


def test_what_is_remembered_is_what_was_checked(certificate: Certificate) -> None:
    """A callback may alter the certificate while it is checked; the claims were copied before."""
    upper = certificate.levels[0].upper

    def alter(_: Progress) -> None:
        rewrite(upper, 0, float(certificate.levels[0].lower[0]))

    before = float(upper[0])
    assert verify(MDP, certificate, callback=alter).is_valid
    assert upper[0] != before
    assert not is_remembered(MDP, certificate)
    rewrite(upper, 0, before)
    assert is_remembered(MDP, certificate)


def test_thresholds_share_their_bounds(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found of bounds serves other thresholds; asked for in so many words, it is not."""
    assert verify(MDP, certificate).is_valid
    other = certificate.at(certificate.certified_thresholds()[0].low)
    counts = {"tables": 0}
    verifier = importlib.import_module("bisim_abstract._verify.verify")
    check_table = verifier.check_table

    def counted(*args: Any) -> Any:
        counts["tables"] += 1
        return check_table(*args)

    monkeypatch.setattr(verifier, "check_table", counted)
    again = verify_rest(MDP, other)
    assert counts["tables"] == 0
    assert again == verify(MDP, other)
    assert counts["tables"] > 0
    value = other.with_value(MDP).value
    assert value is not None
    bold = dataclasses.replace(value, loss=0.0, start_loss=0.0)
    assert not verify_rest(MDP, other.with_proven(bold)).is_valid


def test_subclasses_are_verified_as_ever(certificate: Certificate) -> None:
    class Mine(TabularMDP):
        pass

    names = [entry.name for entry in dataclasses.fields(TabularMDP) if entry.init]
    own = Mine(**{name: getattr(MDP, name) for name in names})
    assert verify(own, certificate).is_valid


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 2)
    known: dict[bytes, int] = {}
    for number in (0, 1, 2, 1, 3):
        remembered.remember(known, bytes([number]), number)
    assert list(known.values()) == [1, 3]
