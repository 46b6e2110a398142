"""Certificates of small models, plain and of all components, and how to compare them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract import (
    Resources,
    TabularMDP,
)
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._bounds.features import value_features
from bisim_abstract._bounds.tell_apart import make_witnesses
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._prove.making import make_certificate
from bisim_abstract.parts import Estimate, sparse_mdp

Floats = npt.NDArray[np.float64]


ARRAYS = ("keys", "lower", "upper", "rewards", "reward_radius", "labels_lower", "labels_upper")


BOTH_STARTS = list(itertools.product(("reward", "zero"), ("reward", "constant")))


def made(
    n: int = 12,
    *,
    gamma: float = 0.8,
    share: float = 0.5,
    sweeps: int = 3,
    tau: float | None = None,
    seed: int = 0,
    lower_start: str = "reward",
    upper_start: str = "reward",
) -> Certificate:
    """The certificate of arms over a random share of the pairs of a random model."""
    mdp = sparse_mdp(n, 2, support=3, seed=seed)
    arms = Arms(
        mdp, gamma, lower_start=lower_start, upper_start=upper_start, resources=Resources(threads=1)
    )
    s, t = np.triu_indices(n, 1)
    chosen = np.random.default_rng([seed, 1]).permutation(s.size)[: round(share * s.size)]
    arms.cover(s[chosen], t[chosen])
    for _ in range(sweeps):
        arms.sweep()
    run = {"rounds": 1, "versions": {"x": "1.0"}, "note": "γ", "third": 1 / 3}
    return make_certificate(arms, tau=tau, stop="enough", run=run)


def estimated(mdp: TabularMDP) -> TabularMDP:
    """The same model, taken for an estimate; rewards of state 0 are known."""
    shape = mdp.rewards.shape
    radius = np.linspace(0.0, 0.02, mdp.n_states)[:, None] * np.ones(shape)
    estimate = Estimate(
        counts=np.full(shape, 50),
        reward_radius=radius,
        row_radius=np.full(shape, 0.01),
        alpha=0.05,
        reward_range=(-1.0, 2.0),
        support_bound=3,
    )
    return dataclasses.replace(mdp, estimate=estimate)


COARSE, FINE = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3], [0, 1, 2, 3, 4, 5, 6, 6, 7, 7]


def near_copies() -> TabularMDP:
    """Ten states that are almost copies of four."""
    rng = np.random.default_rng(3)
    base, rewards = rng.dirichlet(np.ones(4), (4, 2)), rng.random((4, 2))
    P = base[COARSE][:, :, COARSE] * rng.uniform(0.95, 1.05, (10, 2, 10))
    P /= P.sum(axis=2, keepdims=True)
    return TabularMDP.from_dense(P, rewards[COARSE] + rng.uniform(0.0, 0.02, (10, 2)))


@functools.cache
def layered(*, is_estimate: bool = False, scope: str = "all") -> tuple[TabularMDP, Certificate]:
    """A model of 10 states and its certificate, with two levels, features and covered pairs.

    Witnesses are there as well, unless the model is an estimate.
    """
    mdp = estimated(near_copies()) if is_estimate else near_copies()
    arms = Arms(mdp, 0.7, resources=Resources(threads=1))
    for labels in (COARSE, FINE):
        model = build_blocks(mdp, labels, resources=Resources(threads=1))
        blocks = Arms(mdp, 0.7, model=model, resources=Resources(threads=1))
        blocks.start_diagonal()
        blocks.cover([0, 1, 2, 0], [1, 2, 3, 3])
        if labels is FINE:  # one that the coarse level leaves open
            blocks.cover(3, 7)
        for _ in range(8):
            blocks.sweep()
        arms.add_level(blocks.level())
    features = value_features(mdp, 0.7, count=5, resources=Resources(threads=1))
    if not is_estimate:
        found = make_witnesses(
            mdp,
            0.7,
            features,
            model,
            np.array([0, 2]),
            np.array([7, 4]),
            tol=1e-3,
            resources=Resources(threads=1),
        )
        features = features.with_witnesses(found)
    arms.set_features(features)
    arms.cover([0, 1, 3, 8], [5, 2, 4, 9])
    for _ in range(3):
        arms.sweep()
    return mdp, make_certificate(arms, tau=0.4, scope=scope, stop="enough", run={"rounds": 1})


def fields(certificate: Certificate) -> dict[str, Any]:
    return {f.name: getattr(certificate, f.name) for f in dataclasses.fields(certificate)}


def changed(certificate: Certificate, **values: Any) -> Certificate:
    return Certificate(**(fields(certificate) | {"run": dict(certificate.run)} | values))


def same(one: Any, other: Any) -> bool:
    """Bit for bit, down to levels, features and witnesses."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        held = (one.dtype, one.shape, one.tobytes())
        return bool(held == (other.dtype, other.shape, other.tobytes()))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        names = [f.name for f in dataclasses.fields(one) if f.name != "model"]  # not in files
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def by_hand(**values: Any) -> Certificate:
    """Four states, three covered pairs: (0,1) and (2,3) near, (0,2) wide."""
    given: dict[str, Any] = {
        "fingerprint": "abc",
        "n_states": 4,
        "gamma": 0.5,
        "rewards": [[0.0, 1.0], [0.25, 1.0], [1.0, 0.0], [1.0, 0.5]],
        "keys": [1, 2, 11],
        "lower": [0.25, 1.0, 0.5],
        "upper": [0.5, 2.0, 0.75],
    }
    return Certificate(**(given | values))


# -- files -------------------------------------------------------------------------------------


def forged(path: Path, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Edit header and arrays of a saved certificate, and write the digest that fits them."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays.pop("header").tobytes().decode())
    del arrays["digest"]
    edit(header, arrays)
    text = json.dumps(header, sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    arrays["header"] = np.frombuffer(text.encode(), np.uint8)
    arrays["digest"] = np.frombuffer(digest.hexdigest().encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def same_certificate(one: Certificate, other: Certificate) -> None:
    """The same bounds, levels and clusters, and the same end."""
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert len(one.levels) == len(other.levels)
    for ours, theirs in zip(one.levels, other.levels, strict=True):
        np.testing.assert_array_equal(ours.model.labels, theirs.model.labels)
        np.testing.assert_array_equal(ours.lower, theirs.lower)
        np.testing.assert_array_equal(ours.upper, theirs.upper)
    for name in ("tau", "fingerprint", "scope", "stop"):
        assert getattr(one, name) == getattr(other, name), name
