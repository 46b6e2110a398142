"""What is remembered as verified, and how easily that is forgotten."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Certificate, TabularMDP, certify, verify
from bisim_abstract import _verified as memory
from bisim_abstract.parts import grouped_mdp, sparse_mdp

MDP = grouped_mdp(20, 4, noise=0.02, seed=0)[0]


@pytest.fixture(autouse=True)
def _nothing_yet() -> Iterator[None]:
    memory._digests.clear()
    yield
    memory._digests.clear()


@pytest.fixture
def certificate() -> Certificate:
    return certify(MDP, 0.9, tau="auto")


def rewrite(array: Any, index: int, value: float) -> None:
    """As somebody could who insists."""
    array.setflags(write=True)
    array[index] = value
    array.setflags(write=False)


def test_only_full_checks_are_remembered(certificate: Certificate) -> None:
    assert not memory.is_remembered(MDP, certificate)
    assert verify(MDP, certificate, mode="sampled", sample=3).is_valid
    assert not memory.is_remembered(MDP, certificate)
    for mode in ("float", "exact"):
        memory._digests.clear()
        assert verify(MDP, certificate, mode=mode).is_valid
        assert memory.is_remembered(MDP, certificate)


def test_equal_claims_are_the_same_claims(certificate: Certificate, tmp_path: Path) -> None:
    assert verify(MDP, certificate).is_valid
    certificate.save(tmp_path / "c.npz")
    MDP.save(tmp_path / "m.npz")
    again, model = Certificate.load(tmp_path / "c.npz"), TabularMDP.load(tmp_path / "m.npz")
    assert memory.is_remembered(model, again)
    assert memory.is_remembered(MDP, dataclasses.replace(certificate, stop="", run={}))


def test_rejected_certificates_are_not_remembered(certificate: Certificate) -> None:
    (level, *rest) = certificate.levels
    tight = dataclasses.replace(level, upper=np.maximum(level.lower, 1e-9 * level.upper))
    forged = dataclasses.replace(certificate, levels=(tight, *rest), run={}).at(0.2)
    assert not verify(MDP, forged).is_valid
    assert not memory.is_remembered(MDP, forged)


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
        assert not memory.is_remembered(MDP, other)
    assert not memory.is_remembered(sparse_mdp(20, seed=1), certificate)


def test_what_is_altered_by_force_is_forgotten(certificate: Certificate) -> None:
    assert verify(MDP, certificate).is_valid
    level = certificate.levels[0]
    kept = float(level.upper[0])
    rewrite(level.upper, 0, 0.0)
    assert not memory.is_remembered(MDP, certificate)
    rewrite(level.upper, 0, kept)
    assert memory.is_remembered(MDP, certificate)
    object.__setattr__(certificate, "gamma", 0.5)
    assert not memory.is_remembered(MDP, certificate)


def test_the_model_is_looked_at_as_well() -> None:
    """Its fingerprint was computed once; its arrays can be altered afterwards."""
    mdp = grouped_mdp(20, 4, noise=0.02, seed=0)[0]
    certificate = certify(mdp, 0.9, tau="auto")
    assert verify(mdp, certificate).is_valid
    stale = mdp.fingerprint
    rewrite(mdp.rewards, 0, mdp.rewards[0] + 1.0)
    assert mdp.fingerprint == stale
    assert not memory.is_remembered(mdp, certificate)


def test_objects_that_may_change_their_mind_are_not_remembered(certificate: Certificate) -> None:
    class Later(Certificate):
        pass

    plain = {name: getattr(certificate, name) for name in Certificate.__dataclass_fields__}
    lookalike: Any = SimpleNamespace(**plain)
    heir = Later(**plain | {"run": {}})
    for other in (lookalike, heir):
        assert verify(MDP, other).is_valid
        assert not memory.is_remembered(MDP, other)
    odd = dataclasses.replace(certificate, run={})
    object.__setattr__(odd, "levels", list(odd.levels))
    memory.remember(MDP, odd)
    assert not memory._digests


def test_memory_is_bounded(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST", 2)
    made = [dataclasses.replace(certificate, keep=k / 8, run={}) for k in range(4)]
    for each in made:
        memory.remember(MDP, each)
    assert [memory.is_remembered(MDP, each) for each in made] == [False, False, True, True]
