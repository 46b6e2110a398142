"""Certificates: what they say against brute force, and files that cannot be changed unnoticed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    InvalidArgumentError,
    NotCertifiedError,
    TabularMDP,
    aggregate,
    certify,
    verify,
)
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel, build_blocks
from bisim_abstract._bounds.features import make_witness, value_features
from bisim_abstract._bounds.links import Undecided
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import Estimate, grouped_mdp, random_mdp, sparse_mdp
from bisim_abstract.wrappers import extract_mdp
from tests.support.oracles import first_appearance

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
    arms = Arms(mdp, gamma, lower_start=lower_start, upper_start=upper_start, threads=1)
    s, t = np.triu_indices(n, 1)
    chosen = np.random.default_rng([seed, 1]).permutation(s.size)[: round(share * s.size)]
    arms.cover(s[chosen], t[chosen])
    for _ in range(sweeps):
        arms.sweep()
    run = {"rounds": 1, "versions": {"x": "1.0"}, "note": "γ", "third": 1 / 3}
    return Certificate.of(arms, tau=tau, stop="enough", run=run)


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
    arms = Arms(mdp, 0.7, threads=1)
    for labels in (COARSE, FINE):
        model = build_blocks(mdp, labels, threads=1)
        blocks = Arms(mdp, 0.7, model=model, threads=1)
        blocks.start_diagonal()
        blocks.cover([0, 1, 2, 0], [1, 2, 3, 3])
        if labels is FINE:  # one that the coarse level leaves open
            blocks.cover(3, 7)
        for _ in range(8):
            blocks.sweep()
        arms.add_level(blocks.level())
    features = value_features(mdp, 0.7, count=5, threads=1)
    if not is_estimate:
        pairs = ((0, 1), (4, 7))
        found = [make_witness(mdp, 0.7, features, s, t, threads=1) for s, t in pairs]
        features = features.with_witnesses(found)
    arms.set_features(features)
    arms.cover([0, 1, 3, 8], [5, 2, 4, 9])
    for _ in range(3):
        arms.sweep()
    return mdp, Certificate.of(arms, tau=0.4, scope=scope, stop="enough", run={"rounds": 1})


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


# -- construction ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gamma", 1.0),
        ("gamma", -0.1),
        ("gamma", float("nan")),
        ("gamma", "a"),
        ("n_states", 0),
        ("n_states", 2.5),
        ("rewards", np.zeros((3, 1))),
        ("rewards", np.zeros(4)),
        ("rewards", np.full((4, 1), np.inf)),
        ("rewards", [["a"]] * 4),
        ("keys", [2, 1, 11]),
        ("keys", [1, 1, 11]),
        ("keys", [-3, 1, 11]),
        ("keys", [1, 2, 16]),
        ("keys", [1, 2, 5]),
        ("keys", [1, 2, 9]),
        ("keys", [1.0, 2.0, 11.0]),
        ("keys", [[1, 2, 11]]),
        ("lower", [0.25, 1.0]),
        ("lower", [-0.25, 1.0, 0.5]),
        ("lower", [0.75, 1.0, 0.5]),
        ("lower", [np.nan, 1.0, 0.5]),
        ("upper", [0.5, 2.0, 0.75, 1.0]),
        ("upper", [0.5, np.inf, 0.75]),
        ("upper", [0.5, 2.0, np.nan]),
        ("lower_start", "constant"),
        ("upper_start", "zero"),
        ("tau", 0.5),
        ("alpha", 0.0),
        ("alpha", 1.0),
        ("alpha", float("nan")),
        ("alpha", "a"),
        ("alpha", 0.05),
        ("reward_radius", np.zeros((4, 2))),
        ("reward_radius", np.zeros((4, 1))),
        ("reward_radius", np.full((4, 2), -0.5)),
        ("reward_radius", np.full((4, 2), np.nan)),
        ("levels", ["blocks"]),
        ("features", "values"),
        ("scope", "everything"),
        ("labels_lower", [0, 0, 1, 1]),
        ("labels_upper", [0, 0, 1, 1]),
        ("run", {"x": object()}),
        ("run", {"x": float("nan")}),
    ],
)
def test_bad_fields_are_named(field: str, value: Any) -> None:
    expected = {"tau": "labels_lower"}.get(field, field)
    with pytest.raises(InvalidArgumentError) as caught:
        by_hand(**{field: value})
    assert expected in str(caught.value)


@pytest.mark.parametrize("tau", [float("nan"), float("inf"), "half"])
def test_bad_tau_is_named(tau: Any) -> None:
    labels = np.zeros(4, np.int64)
    with pytest.raises(InvalidArgumentError, match="tau"):
        by_hand(tau=tau, labels_lower=labels, labels_upper=labels)


def test_labels_must_cover_every_state() -> None:
    with pytest.raises(InvalidArgumentError, match="labels_upper"):
        by_hand(tau=0.5, labels_lower=[0, 0, 1, 1], labels_upper=[0, 0, 1])


def test_bad_bounds_are_reported_with_their_pair() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\(2, 3\)"):
        by_hand(lower=[0.25, 1.0, 0.76])


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_only_copies(name: str) -> None:
    given = np.array(getattr(made(tau=0.3), name))
    certificate = changed(made(tau=0.3), **{name: given})
    held = getattr(certificate, name)
    before = held.copy()
    with pytest.raises(ValueError, match="read-only"):
        held[...] = 0
    given[...] = 0
    np.testing.assert_array_equal(held, before)


def test_everything_else_is_frozen_too() -> None:
    certificate = made()
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate.gamma = 0.1  # type: ignore[misc]
    with pytest.raises(TypeError):
        certificate.run["rounds"] = 2  # type: ignore[index]


def test_numbers_are_held_as_plain_python_numbers(tmp_path: Path) -> None:
    radius = np.full((4, 2), 0.125)
    certificate = by_hand(
        n_states=np.int64(4), gamma=np.float32(0.5), alpha=np.float32(0.25), reward_radius=radius
    )
    certificate.save(tmp_path / "c")
    assert same(Certificate.load(tmp_path / "c"), by_hand(alpha=0.25, reward_radius=radius))


def test_components_must_be_of_this_model() -> None:
    _, certificate = layered()
    _, other = layered(is_estimate=True)
    level, features = certificate.levels[0], certificate.features
    small = made()
    with pytest.raises(InvalidArgumentError, match="level 0 speaks of another number of states"):
        changed(small, levels=[level])
    with pytest.raises(InvalidArgumentError, match="features speak of another number of states"):
        changed(small, features=features)
    one_action = certificate.rewards[:, :1]
    with pytest.raises(InvalidArgumentError, match="actions"):
        changed(certificate, levels=(), rewards=one_action)
    with pytest.raises(InvalidArgumentError, match="actions"):
        changed(certificate, features=None, rewards=one_action)
    with pytest.raises(InvalidArgumentError, match="level 1 must be an estimate"):
        changed(other, levels=(other.levels[0], level))
    with pytest.raises(InvalidArgumentError, match="level 0 must be an estimate"):
        changed(certificate, levels=other.levels)


# -- bounds ------------------------------------------------------------------------------------


def naive_start(
    rewards: Floats, gamma: float, s: int, t: int, lower: str, upper: str
) -> tuple[float, float]:
    """Start values as on paper, without any rounding."""
    gap = float(np.abs(rewards[s] - rewards[t]).max())
    D = float(np.ptp(rewards, axis=0).max()) / (1.0 - gamma)
    return (gap if lower == "reward" else 0.0), (gap + gamma * D if upper == "reward" else D)


@pytest.mark.parametrize("starts", BOTH_STARTS)
def test_bounds_of_every_pair(starts: tuple[str, str]) -> None:
    certificate = made(lower_start=starts[0], upper_start=starts[1])
    n = certificate.n_states
    held = {int(key): k for k, key in enumerate(certificate.keys)}
    for s, t in itertools.product(range(n), repeat=2):
        low, high = (float(x) for x in certificate.bounds(s, t))
        if s == t:
            assert (low, high) == (0.0, 0.0)
            continue
        first, last = naive_start(certificate.rewards, certificate.gamma, s, t, *starts)
        k = held.get(min(s, t) * n + max(s, t))
        if k is not None:
            first = max(first, float(certificate.lower[k]))
            last = min(last, float(certificate.upper[k]))
        assert low == pytest.approx(first, rel=1e-12, abs=1e-15)
        assert high == pytest.approx(last, rel=1e-12)
        assert 0.0 <= low <= high


@pytest.mark.parametrize("is_estimate", [False, True])
def test_bounds_are_the_tightest_of_all_components(is_estimate: bool) -> None:
    mdp, certificate = layered(is_estimate=is_estimate)
    assert certificate.features is not None
    n, gamma = certificate.n_states, certificate.gamma
    radius = certificate.reward_radius if is_estimate else np.zeros((n, 2))
    low, high = mdp.rewards - radius, mdp.rewards + radius
    D = float((high.max(axis=0) - low.min(axis=0)).max()) / (1.0 - gamma)
    tightest = set()
    for s, t in itertools.permutations(range(n), 2):
        gap = float(np.maximum(low[s] - high[t], low[t] - high[s]).max(initial=0.0))
        span = float(np.maximum(high[s] - low[t], high[t] - low[s]).max())
        below = {"start": gap, "features": float(certificate.features.lower(s, t))}
        above = {"start": span + gamma * D}
        for k, level in enumerate(certificate.levels):
            one, two = sorted(level.model.labels[[s, t]].tolist())
            at = np.flatnonzero(level.keys == one * level.model.n_blocks + two)
            if at.size:
                below[f"level {k}"] = float(level.lower[at[0]])
                above[f"level {k}"] = float(level.upper[at[0]])
        at = np.flatnonzero(certificate.keys == min(s, t) * n + max(s, t))
        if at.size:
            below["pair"], above["pair"] = (
                float(x[at[0]]) for x in (certificate.lower, certificate.upper)
            )
        found = [float(x) for x in certificate.bounds(s, t)]
        assert found == pytest.approx([max(below.values()), min(above.values())], rel=1e-12)
        tightest |= {max(below, key=lambda k: below[k]), min(above, key=lambda k: above[k])}
    assert tightest >= {"level 0", "level 1", "pair", "start"}
    assert is_estimate or "features" in tightest


def test_bounds_of_covered_pairs_are_those_stored() -> None:
    certificate = made()
    s, t = np.divmod(certificate.keys, certificate.n_states)
    for first, second in ((s, t), (t, s)):
        lower, upper = certificate.bounds(first, second)
        assert lower.tobytes() == certificate.lower.tobytes()
        assert upper.tobytes() == certificate.upper.tobytes()


def test_bounds_broadcast() -> None:
    certificate = made()
    states = np.arange(certificate.n_states)
    table = certificate.bounds(states[:, None], states[None, :])
    assert table[0].shape == table[1].shape == (12, 12)
    for s, t in [(0, 5), (5, 0), (3, 3), (11, 2)]:
        single = certificate.bounds(s, t)
        assert single[0].shape == ()
        assert (single[0], single[1]) == (table[0][s, t], table[1][s, t])
    np.testing.assert_array_equal(table[0], table[0].T)
    np.testing.assert_array_equal(table[1], table[1].T)
    small = certificate.bounds(np.array([1, 2], np.uint8), 7)
    np.testing.assert_array_equal(small[1], table[1][[1, 2], 7])
    assert certificate.bounds([], [])[0].shape == (0,)


@pytest.mark.parametrize("bad", [-1, 12, 0.0, [0, 12], "0", True])
def test_bad_indices_are_refused(bad: Any) -> None:
    certificate = made()
    with pytest.raises(InvalidArgumentError, match="states must"):
        certificate.bounds(bad, 0)
    with pytest.raises(InvalidArgumentError, match="others must"):
        certificate.bounds(0, bad)


# -- coverage and widths -----------------------------------------------------------------------


@pytest.mark.parametrize("starts", BOTH_STARTS)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_widths_against_brute_force(starts: tuple[str, str], share: float) -> None:
    certificate = made(share=share, lower_start=starts[0], upper_start=starts[1])
    n = certificate.n_states
    covered, everywhere, count = 0.0, 0.0, 0
    for s, t in itertools.combinations(range(n), 2):
        low, high = (float(x) for x in certificate.bounds(s, t))
        everywhere = max(everywhere, high - low)
        if s * n + t in certificate.keys:
            count += 1
            covered = max(covered, high - low)
    assert certificate.n_covered == count
    assert certificate.coverage == count / (n * (n - 1) / 2)
    assert certificate.width == pytest.approx(covered, rel=1e-12)
    assert certificate.global_width >= everywhere * (1.0 - 1e-12)
    assert certificate.global_width >= certificate.width
    if starts == ("reward", "reward") or share == 1.0:
        assert certificate.global_width == pytest.approx(everywhere, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_block_levels_bound_the_width_of_all_pairs(seed: int) -> None:
    mdp, _ = grouped_mdp(30, 4, noise=0.02, seed=seed)
    certificate = certify(mdp, 0.9, max_pairs=0)
    s, t = np.triu_indices(30, 1)
    lower, upper = certificate.bounds(s, t)
    largest = float((upper - lower).max())
    starts = dataclasses.replace(certificate, levels=(), features=None)
    assert largest <= certificate.global_width < 0.5 * starts.global_width
    # A level that does not bound all pairs of its blocks says nothing about all pairs.
    level = certificate.levels[0]
    rest = {name: getattr(level, name)[1:] for name in ("keys", "lower", "upper")}
    partial = BlockLevel(model=level.model, **rest)
    less = dataclasses.replace(certificate, levels=(partial,), features=None)
    assert less.global_width == starts.global_width


def test_a_single_state_is_covered() -> None:
    arms = Arms(random_mdp(1, seed=0), 0.9, threads=1)
    certificate = Certificate.of(arms, tau=0.1, stop="", run={})
    assert (certificate.coverage, certificate.width, certificate.global_width) == (1.0, 0.0, 0.0)
    assert certificate.is_certified


# -- clusterings -------------------------------------------------------------------------------


def linked(certificate: Certificate, values: Floats, tau: float) -> list[int]:
    """Components of the covered links at most tau, by union-find."""
    parent = list(range(certificate.n_states))

    def root(x: int) -> int:
        while parent[x] != x:
            x = parent[x]
        return x

    for key, value in zip(certificate.keys.tolist(), values.tolist(), strict=True):
        if value <= tau:
            s, t = divmod(key, certificate.n_states)
            parent[root(s)] = root(t)
    return first_appearance([root(x) for x in range(certificate.n_states)])


def thresholds(certificate: Certificate) -> list[float]:
    """Every value where something can change, just below each, and midpoints."""
    values = np.unique(np.concatenate([certificate.lower, certificate.upper, [0.0]]))
    middle = (values[1:] + values[:-1]) / 2.0
    below = np.nextafter(values, -np.inf)
    return [float(x) for x in (*values, *middle, *below, values[-1] + 1.0)]


@pytest.mark.parametrize("seed", range(4))
def test_partitions_against_union_find(seed: int) -> None:
    certificate = made(10, share=0.45, seed=seed, gamma=0.5, sweeps=2)
    for tau in thresholds(certificate):
        lower, upper = certificate.partitions(tau)
        assert lower.tolist() == linked(certificate, certificate.lower, tau)
        assert upper.tolist() == linked(certificate, certificate.upper, tau)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scope", ["covered", "all"])
def test_certified_thresholds_are_where_partitions_agree(seed: int, scope: str) -> None:
    certificate = changed(made(10, share=0.6, seed=seed, gamma=0.5, sweeps=12), scope=scope)
    intervals = certificate.certified_thresholds()
    assert intervals
    assert intervals[-1].high == np.inf
    probes = [0.0]
    for interval in intervals:
        probes += [interval.low, float(np.nextafter(interval.low, -np.inf))]
        if interval.high < np.inf:
            probes += [interval.high, float(np.nextafter(interval.high, -np.inf))]
            probes.append((interval.low + interval.high) / 2.0)
    for one, other in itertools.pairwise(intervals):
        assert one.low < one.high <= other.low
        probes.append((one.high + other.low) / 2.0)
    probes += np.random.default_rng(seed).uniform(0.0, intervals[-1].low * 1.1, 50).tolist()
    verdicts = set()
    for tau in probes:
        if tau < 0.0:
            continue
        lower, upper = certificate.partitions(tau)
        holding = [i for i in intervals if i.low <= tau < i.high]
        assert np.array_equal(lower, upper) == bool(holding)
        verdicts.add(bool(holding))
        if holding:
            assert holding[0].n_clusters == len(set(upper.tolist()))
    assert verdicts == {True, False}


def test_is_certified_compares_the_clusterings() -> None:
    alike, other = [0, 0, 1, 1], [0, 0, 1, 2]
    assert by_hand(tau=0.8, labels_lower=alike, labels_upper=alike).is_certified
    assert not by_hand(tau=0.6, labels_lower=alike, labels_upper=other).is_certified
    assert not by_hand().is_certified


def test_certificate_of_arms_clusters_at_tau() -> None:
    verdicts = set()
    plain = made(10, gamma=0.5, sweeps=8)
    for tau in thresholds(plain):
        certificate = made(10, gamma=0.5, sweeps=8, tau=tau)
        assert certificate.tau == tau
        assert certificate.labels_lower.tolist() == linked(plain, plain.lower, tau)
        assert certificate.labels_upper.tolist() == linked(plain, plain.upper, tau)
        assert dict(certificate.run) == dict(plain.run)
        verdicts.add(certificate.is_certified)
    assert verdicts == {True, False}


@pytest.mark.parametrize("is_estimate", [False, True])
def test_partitions_of_all_pairs_against_union_find(is_estimate: bool) -> None:
    _, certificate = layered(is_estimate=is_estimate)
    n = certificate.n_states
    s, t = np.triu_indices(n, 1)
    low = certificate.bounds(s, t)[0]
    # Above, no link follows from rewards alone, but for that no pair is farther apart than D.
    high = changed(certificate, upper_start="constant").bounds(s, t)[1]
    whole = changed(certificate, keys=s * n + t, lower=low, upper=high)
    for tau in thresholds(whole):
        lower, upper = certificate.partitions(tau)
        assert lower.tolist() == linked(whole, low, tau)
        assert upper.tolist() == linked(whole, high, tau)


@pytest.mark.parametrize("scope", ["covered", "all"])
def test_at_another_threshold_the_bounds_stay(scope: str, tmp_path: Path) -> None:
    mdp, certificate = layered(scope=scope)
    verdicts = set()
    for tau in np.linspace(0.0, 4.0, 17).tolist():
        other = certificate.at(tau)
        assert other.tau == tau
        lower, upper = certificate.partitions(tau)
        np.testing.assert_array_equal(other.labels_lower, lower)
        np.testing.assert_array_equal(other.labels_upper, upper)
        labels = {"labels_lower": lower, "labels_upper": upper}
        assert same(other, changed(certificate, tau=tau, **labels))
        assert same(other.at(0.4), certificate)
        assert verify(mdp, other).is_valid
        verdicts.add(other.is_certified)
    assert verdicts == {True, False}
    assert type(certificate.at(np.float64(0.5)).tau) is float
    other.save(tmp_path / "c")
    assert same(Certificate.load(tmp_path / "c"), other)
    plain = changed(certificate, tau=None, labels_lower=[], labels_upper=[])
    assert same(plain.at(0.4), certificate)


@pytest.mark.parametrize("tau", [float("nan"), float("inf"), "half", None])
def test_at_no_threshold(tau: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="tau"):
        made().at(tau)


@pytest.mark.parametrize("scope", ["covered", "all"])
def test_undecided_counts_what_is_open(scope: str) -> None:
    _, certificate = layered(scope=scope)
    n, seen = certificate.n_states, set()
    for tau in np.linspace(0.0, 4.0, 33).tolist():
        found = certificate.undecided(tau)
        assert certificate.at(tau).undecided() == found
        lower, upper = certificate.partitions(tau)
        pairs = [
            (s, t)
            for s, t in itertools.combinations(range(n), 2)
            if lower[s] == lower[t] and upper[s] != upper[t]
        ]
        seen.add(found is None)
        if found is None:
            assert not pairs
            assert np.array_equal(lower, upper)
            continue
        states = {s for pair in pairs for s in pair}
        assert found == Undecided(
            clusters=len({int(upper[s]) for s in states}),
            groups=len({int(lower[s]) for s in states}),
            pairs=len(pairs),
            example=found.example,
        )
        assert found.example in pairs
    assert seen == {True, False}


def test_undecided_needs_a_threshold() -> None:
    with pytest.raises(InvalidArgumentError, match="tau must be given"):
        made().undecided()
    assert by_hand().undecided(0.2) is None
    assert by_hand().undecided(0.6) == Undecided(clusters=2, groups=1, pairs=1, example=(2, 3))
    labels = {"labels_lower": [0, 0, 1, 1], "labels_upper": [0, 0, 1, 2]}
    given = by_hand(tau=0.6, **labels)  # its own labels count, whatever the bounds are
    assert given.undecided() == Undecided(clusters=2, groups=1, pairs=1, example=(2, 3))
    assert given.undecided(9.0) is None


# -- certified clusters ------------------------------------------------------------------------


def test_labels_and_clusters_are_those_that_planning_counts() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    certificate = certify(mdp, 0.9)
    small, end = aggregate(mdp, certificate.labels_upper), mdp.terminal_state
    value, count = certificate.value, certificate.n_clusters
    assert value is not None
    assert end is not None
    assert certificate.labels.tolist() == small.labels.tolist() == value.labels.tolist()
    assert certificate.labels.dtype == np.int64
    assert certificate.labels[end] == count
    assert len(certificate.clusters) == count
    for k, members in enumerate(certificate.clusters):
        assert members.tolist() == small.members(k).tolist()
        assert members.dtype == np.int64
    assert sorted(np.concatenate(certificate.clusters)) == np.delete(range(17), end).tolist()
    for array in (certificate.labels, certificate.clusters[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    other = certificate.at(certificate.certified_thresholds()[-1].low)
    assert len(other.clusters) == other.n_clusters != count


def test_clusters_without_an_end() -> None:
    given = by_hand(tau=0.8, labels_lower=[0, 1, 0, 1], labels_upper=[0, 1, 0, 1])
    assert given.labels.tolist() == [0, 1, 0, 1]
    assert [members.tolist() for members in given.clusters] == [[0, 2], [1, 3]]


def test_what_is_not_certified_has_no_labels() -> None:
    bad = by_hand(tau=0.6, labels_lower=[0, 0, 1, 1], labels_upper=[0, 0, 1, 2])
    for name in ("labels", "clusters"):
        with pytest.raises(NotCertifiedError, match="between 2 and 3") as error:
            getattr(bad, name)
        assert "labels_upper" in str(error.value)
        with pytest.raises(NotCertifiedError, match="no threshold"):
            getattr(by_hand(), name)


# -- words -------------------------------------------------------------------------------------


def test_one_interval_is_one() -> None:
    """It said "there are 1 certified interval"."""
    mdp = TabularMDP.from_dense([[[1.0]]], [[0.0]])
    text = Certificate.of(Arms(mdp, 0.5), tau=None, stop="", run={}).summary()
    assert "there is 1 certified interval\n" in text
    assert repr(certify(mdp, 0.5)).startswith("Certificate(1 state, ")
    merged = certify(TabularMDP.from_dense(np.eye(2)[:, None, :], [1.0, 1.0]), 0.5)
    assert "1 cluster of 2 states keeps 100%" in merged.verdict.sentence


def test_summary_and_repr_say_what_matters() -> None:
    alike, other = [0, 0, 1, 1], [0, 0, 1, 2]
    plain = by_hand(stop="budget: 3 rounds")
    good = by_hand(tau=0.8, labels_lower=alike, labels_upper=alike)
    bad = by_hand(tau=0.6, labels_lower=alike, labels_upper=other)
    for certificate in (plain, good, bad):
        text = certificate.summary()
        assert text.splitlines()[0] == certificate.verdict.sentence
        assert "bounds    covered pairs; 3 of 6 looked at (50.0%)" in text
        assert "gamma = 0.5" in text
        assert max(map(len, text.splitlines())) < 120
        assert "50.0% of pairs covered" in repr(certificate)
        assert "\n" not in repr(certificate)
    assert plain.summary().startswith("NOT CERTIFIED: budget: 3 rounds")
    assert "tau       none at gamma = 0.5; there are 3 certified intervals" in plain.summary()
    assert "certified" not in repr(plain)
    assert good.summary().startswith(
        "CERTIFIED over covered pairs only: 2 clusters of 4 states; what planning"
    )
    assert ", certified" in repr(good)
    assert bad.summary().startswith(
        "NOT CERTIFIED at tau 0.6: between 2 and 3 clusters of 4 states"
    )
    assert "not certified" in repr(bad)
    for certificate in (plain, good):
        assert "undecided" not in certificate.summary()
        assert "  holds " not in certificate.summary()


def test_summary_says_what_is_open() -> None:
    bad = by_hand(tau=0.6, labels_lower=[0, 0, 1, 1], labels_upper=[0, 0, 1, 2])
    assert (
        "undecided 2 clusters in 1 group, 1 pair; states 2 and 3, for instance, are between "
        "0.5 and 0.75 apart"
    ) in bad.summary()


def test_summary_says_if_nothing_is_merged() -> None:
    mdp = random_mdp(6, seed=0)
    apart = certify(mdp, 0.5, tau=1e-6)
    assert apart.n_clusters == 6
    assert apart.verdict.level == "poor"
    assert apart.summary().startswith(
        "CERTIFIED, BUT nothing can be merged at this threshold: all 6 states stay apart"
    )
    assert apart.summary().count("  closest   states ") == 3
    together = apart.at(1e9).with_value()
    assert "1 cluster of 6 states" in together.summary()
    assert "nothing can be merged" not in together.summary()
    assert "closest" not in together.summary()
    single = Certificate.of(Arms(random_mdp(1, seed=0), 0.9, threads=1), tau=0.1, stop="", run={})
    assert "1 cluster of 1 state" in single.summary()
    assert single.with_value().verdict.level == "useful"
    assert "stopped   not said" in single.summary()


def test_summary_lists_components_and_the_reservation() -> None:
    plain, reserved = layered()[1].summary(), layered(is_estimate=True)[1].summary()
    assert "bounds    all pairs; " in plain
    for text in (plain, reserved):
        assert "level 1   4 blocks, 7 pairs of blocks bounded" in text  # 3 diameters
        assert "level 2   8 blocks, 7 pairs of blocks bounded" in text  # 2
    assert "features  7 value functions" in plain  # witnesses are two of them
    assert "features  5 value functions" in reserved
    assert "holds     for the true model with probability 0.95" in reserved
    assert "probability" not in plain


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.npz", "c", "c.certificate", "a b.txt"])
@pytest.mark.parametrize("tau", [None, 0.3])
def test_round_trip_is_exact(tmp_path: Path, name: str, tau: float | None) -> None:
    certificate = made(tau=tau, gamma=1 / 3)
    certificate.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    loaded = Certificate.load(str(tmp_path / name))
    assert same(certificate, loaded)
    assert not loaded.lower.flags.writeable


def test_round_trip_of_nothing_covered(tmp_path: Path) -> None:
    certificate = made(share=0.0)
    assert certificate.n_covered == 0
    certificate.save(tmp_path / "c")
    assert same(certificate, Certificate.load(tmp_path / "c"))


@pytest.mark.parametrize("scope", ["covered", "all"])
@pytest.mark.parametrize("is_estimate", [False, True])
def test_round_trip_of_all_components(tmp_path: Path, is_estimate: bool, scope: str) -> None:
    mdp, certificate = layered(is_estimate=is_estimate, scope=scope)
    assert len(certificate.levels) == 2
    assert certificate.features is not None
    assert len(certificate.features.witnesses) == (0 if is_estimate else 2)
    certificate.save(tmp_path / "c")
    loaded = Certificate.load(tmp_path / "c")
    assert same(certificate, loaded)
    for level in loaded.levels:
        assert not level.upper.flags.writeable
        assert not level.model.probs.flags.writeable
        assert level.model.is_estimate == is_estimate
    states = np.arange(10)
    for one, two in zip(
        certificate.bounds(states[:, None], states),
        loaded.bounds(states[:, None], states),
        strict=True,
    ):
        assert one.tobytes() == two.tobytes()
    assert verify(mdp, loaded, mode="exact").is_valid


def test_round_trip_of_one_component(tmp_path: Path) -> None:
    _, certificate = layered()
    assert certificate.features is not None
    few = dataclasses.replace(certificate.features, witnesses=())
    for change in ({"levels": ()}, {"levels": certificate.levels[1:]}, {"features": None}):
        part = changed(certificate, **change)
        part.save(tmp_path / "c")
        assert same(part, Certificate.load(tmp_path / "c"))
    part = changed(certificate, features=few)
    part.save(tmp_path / "c")
    assert same(part, Certificate.load(tmp_path / "c"))
    assert not same(part, certificate)


def test_same_tells_certificates_apart() -> None:
    certificate = made(tau=0.3)
    nudged = certificate.upper.copy()
    nudged[5] = np.nextafter(nudged[5], np.inf)
    assert not same(certificate, changed(certificate, upper=nudged))
    assert not same(certificate, changed(certificate, stop="other"))
    assert not same(certificate, changed(certificate, run={}))
    _, rich = layered()
    level = rich.levels[1]
    nudged = level.upper.copy()
    nudged[2] = np.nextafter(nudged[2], np.inf)
    wider = BlockLevel(model=level.model, keys=level.keys, lower=level.lower, upper=nudged)
    assert not same(rich, changed(rich, levels=(rich.levels[0], wider)))
    assert not same(rich, changed(rich, levels=rich.levels[::-1]))
    assert not same(rich, changed(rich, features=None))
    assert rich.features is not None
    one = dataclasses.replace(rich.features.witnesses[0], correction=1.0)
    swapped = dataclasses.replace(rich.features, witnesses=(one, rich.features.witnesses[1]))
    assert not same(rich, changed(rich, features=swapped))


@pytest.mark.parametrize(
    "make",
    [lambda: made(8, tau=0.3), lambda: layered()[1], lambda: layered(is_estimate=True)[1]],
    ids=["pairs", "layered", "estimate"],
)
def test_any_flipped_bit_is_noticed_or_harmless(
    tmp_path: Path, make: Callable[[], Certificate]
) -> None:
    certificate = make()
    path = tmp_path / "c"
    certificate.save(path)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.choice(len(good), 600, replace=False):
        data = bytearray(good)
        data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            loaded = Certificate.load(path)
        except FileFormatError:
            refused += 1
        else:
            assert same(certificate, loaded), f"byte {at} was changed unnoticed"
    assert refused > 300


def test_every_flipped_byte_of_an_array_is_noticed(tmp_path: Path) -> None:
    """Uncompressed and with checksums that fit: the digest alone must notice."""
    path = tmp_path / "c"
    for _, certificate in (layered(), layered(is_estimate=True)):
        certificate.save(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
        rng = np.random.default_rng(0)
        for name, array in arrays.items():
            for at in rng.choice(array.nbytes, min(3, array.nbytes), replace=False):
                data = bytearray(array.tobytes())
                data[at] ^= int(rng.integers(1, 256))
                other = np.frombuffer(data, array.dtype).reshape(array.shape)
                with open(path, "wb") as file:
                    np.savez(file, **(arrays | {name: other}))
                with pytest.raises(FileFormatError):
                    Certificate.load(path)


@pytest.mark.parametrize("make", [lambda: made(8), lambda: layered()[1]])
def test_truncated_files_are_refused(tmp_path: Path, make: Callable[[], Certificate]) -> None:
    path = tmp_path / "c"
    make().save(path)
    good = path.read_bytes()
    for size in {0, 1, 6, len(good) - 1, *range(0, len(good), 37)}:
        path.write_bytes(good[:size])
        with pytest.raises(FileFormatError):
            Certificate.load(path)


def _model(path: Path) -> None:
    sparse_mdp(5, seed=0).save(path)


def _array(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


def _numbers(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, header=np.zeros(3))


def _objects(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, header=np.array([{"a": 1}, print], dtype=object))


@pytest.mark.parametrize(
    "write",
    [
        _model,
        _array,
        _objects,
        lambda path: path.write_text("bisimulation certificate"),
        lambda path: zipfile.ZipFile(path, "w").close(),
        _numbers,
    ],
    ids=["model", "npy", "pickle", "text", "empty zip", "npz"],
)
def test_foreign_files_are_refused(tmp_path: Path, write: Callable[[Path], object]) -> None:
    path = tmp_path / "c.npz"
    write(path)
    with pytest.raises(FileFormatError, match=r"c\.npz"):
        Certificate.load(path)


def test_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Certificate.load(tmp_path / "none")


def test_file_holds_no_pickle(tmp_path: Path) -> None:
    made(tau=0.3).save(tmp_path / "c")
    with np.load(tmp_path / "c", allow_pickle=False) as archive:
        assert {archive[name].dtype.kind for name in archive.files} == {"u", "i", "f"}
        header = json.loads(archive["header"].tobytes().decode())
    assert header["stop"] == "enough"


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


def test_forging_nothing_changes_nothing(tmp_path: Path) -> None:
    """The forger itself is right: without an edit its files load."""
    certificate = made(tau=0.3)
    certificate.save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: None)
    assert same(certificate, Certificate.load(tmp_path / "c"))
    for _, rich in (layered(), layered(is_estimate=True)):
        rich.save(tmp_path / "c")
        forged(tmp_path / "c", lambda header, arrays: None)
        assert same(rich, Certificate.load(tmp_path / "c"))


@pytest.mark.parametrize(
    "entry",
    [
        {"format": "bisim_abstract.TabularMDP"},
        {"version": 1},
        {"version": 2},
        {"version": None},
        {"gamma": 1.5},
        {"gamma": float("nan")},
        {"gamma": None},
        {"n_states": 11},
        {"n_states": 10**12},
        {"n_states": "12"},
        {"lower_start": "none"},
        {"upper_start": ["reward"]},
        {"eps_op": 0.0},
        {"alpha": 0.05},
        {"alpha": 1.0},
        {"alpha": "0.5"},
        {"levels": 1},
        {"tau": None},
        {"tau": float("inf")},
        {"scope": "some"},
        {"scope": None},
        {"run": [1, 2]},
        {"run": {"x": float("inf")}},
        {"fingerprint": 5},
        {"stop": ["no"]},
        {"surplus": 1},
    ],
    ids=str,
)
def test_inconsistent_headers_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    made(tau=0.3).save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.update(entry))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


HUGE = 10**400  # no float is as large


@pytest.mark.parametrize(
    "name",
    [
        "n_states",
        "levels",
        "version",
        "gamma",
        "tau",
        "alpha",
    ],
)
def test_numbers_beyond_all_floats_are_refused(tmp_path: Path, name: str) -> None:
    layered(is_estimate=True)[1].save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.update({name: HUGE}))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


@pytest.mark.parametrize(
    "name",
    ["fingerprint", "gamma", "stop", "run", "format", "version", "levels", "alpha", "scope"],
)
def test_missing_header_entries_are_refused(tmp_path: Path, name: str) -> None:
    made().save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.pop(name))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


@pytest.mark.parametrize(
    "edit",
    [
        lambda arrays: arrays.pop("upper"),
        lambda arrays: arrays.update(more=np.zeros(2)),
        lambda arrays: arrays.update(keys=arrays["keys"][::-1]),
        lambda arrays: arrays.update(keys=arrays["keys"].astype(np.float64)),
        lambda arrays: arrays.update(lower=arrays["upper"] + 1.0),
        lambda arrays: arrays.update(lower=arrays["lower"][:-1]),
        lambda arrays: arrays.update(upper=arrays["upper"] * np.nan),
        lambda arrays: arrays.update(rewards=arrays["rewards"][:-1]),
        lambda arrays: arrays.update(labels_lower=arrays["labels_lower"][:-1]),
    ],
)
def test_inconsistent_arrays_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    made(tau=0.3).save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: edit(arrays))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


def test_edits_without_a_new_digest_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    made().save(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    arrays["upper"] = arrays["upper"] + 1.0
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(FileFormatError, match="changed"):
        Certificate.load(path)


# -- files of levels and features that were forged ---------------------------------------------

COMPONENTS = [
    *(
        f"level{k}.{name}"
        for k in range(2)
        for name in (
            *("labels", "low", "high", "indptr", "indices", "probs", "radius"),
            *("pair_keys", "pair_lower", "pair_upper"),
        )
    ),
    *(f"features.{name}" for name in ("values", "signs", "kinds", "corrections")),
    *(
        f"witness{k}.{name}"
        for k in range(2)
        for name in ("values", "support", "potential", "action_sign", "correction")
    ),
]
ROOM = 2**22  # bytes that refusing a file of a few kilobytes may take


def refused(path: Path, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Forge a certificate with all components; it must be refused, and cheaply."""
    layered()[1].save(path)
    forged(path, edit)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=path.name):
            Certificate.load(path)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


def put(name: str, at: Any, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """An edit that changes some entries of an array."""

    def edit(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        array = arrays[name].copy()
        array[at] = value
        arrays[name] = array

    return edit


def test_files_hold_the_components_by_name(tmp_path: Path) -> None:
    layered()[1].save(tmp_path / "c")
    with np.load(tmp_path / "c", allow_pickle=False) as archive:
        assert {name for name in archive.files if "." in name} == set(COMPONENTS)
        assert {archive[name].dtype.kind for name in archive.files} == {"u", "i", "f"}


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_that_lack_an_array_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path / "c", lambda header, arrays: arrays.pop(name))


@pytest.mark.parametrize(
    "name",
    [
        *("level2.labels", "level-1.labels", "level00.labels", "level0.", "level0.more"),
        *("features.more", "features", "witness2.values", "witness2.support", "witness9.values"),
    ],
)
def test_surplus_component_arrays_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path / "c", lambda header, arrays: arrays.update({name: np.zeros(10)}))


@pytest.mark.parametrize("name", COMPONENTS)
def test_component_arrays_of_wrong_shape_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c"

    def to(shape: Callable[[Any], Any]) -> None:
        refused(path, lambda header, arrays: arrays.update({name: shape(arrays[name])}))

    to(lambda array: array[:-1])
    to(lambda array: np.concatenate([array, array[-1:]]))
    to(lambda array: array[None])
    to(lambda array: array[:0])
    to(lambda array: array.ravel()[0])
    if layered_array(path, name).ndim == 2:
        to(lambda array: array[:, :-1])
        to(lambda array: array.ravel())
        to(lambda array: np.empty((0, 10**12)))


def layered_array(path: Path, name: str) -> npt.NDArray[Any]:
    layered()[1].save(path)
    with np.load(path, allow_pickle=False) as archive:
        found: npt.NDArray[Any] = archive[name]
    return found


@pytest.mark.parametrize("name", COMPONENTS)
def test_component_arrays_of_wrong_dtype_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c"
    array = layered_array(path, name)
    kinds: list[Any] = [np.complex128, np.dtype("V8")]
    if array.dtype.kind == "i":
        kinds.append(np.float64)
    if not name.endswith(("action_sign", "correction")):  # their numbers are looked at instead
        kinds += [np.dtype("U8"), np.dtype("M8[s]")]
    for dtype in kinds:

        def recast(header: dict[str, Any], arrays: dict[str, Any], dtype: Any = dtype) -> None:
            array = arrays[name]
            is_bits = np.dtype(dtype).kind in "MV"
            arrays[name] = array.view(dtype) if is_bits else array.astype(dtype)

        refused(path, recast)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("level0.labels", 0, -1),
        ("level0.labels", 0, 4),
        ("level0.labels", 0, 2**62),
        ("level0.labels", 9, 0),  # leaves block 3 without a member
        ("level0.low", (0, 0), np.nan),
        ("level0.low", (0, 0), 1e9),  # above high
        ("level0.high", (0, 0), np.inf),
        ("level0.indptr", 1, -1),
        ("level0.indptr", -1, 2**62),
        ("level0.indptr", 1, 2**62),
        ("level0.indices", 0, -1),
        ("level0.indices", 0, 4),
        ("level0.indices", 0, 2**62),
        ("level0.probs", 0, -0.5),
        ("level0.probs", 0, np.nan),
        ("level0.probs", 0, 0.0),
        ("level0.probs", 0, 1e308),
        ("level0.radius", (0, 0), -1e-9),
        ("level0.radius", (0, 0), 1.5),
        ("level0.radius", (0, 0), np.nan),
        ("level0.pair_keys", 0, -1),
        ("level0.pair_keys", -1, 16),
        ("level0.pair_keys", -1, 15),  # the diameter of a block of one
        ("level0.pair_keys", -1, 2**63 - 1),
        ("level0.pair_keys", 1, 0),
        ("level0.pair_lower", 0, 1e-9),  # of a diameter
        ("level0.pair_lower", 1, -1.0),
        ("level0.pair_lower", 1, 1e9),
        ("level0.pair_lower", 1, np.nan),
        ("level0.pair_upper", 1, np.inf),
        ("features.values", (0, 0), np.nan),
        ("features.values", (0, 0), np.inf),
        ("features.signs", (0, 0), 2),
        ("features.signs", 0, 0),
        ("features.kinds", 0, -1),
        ("features.kinds", 0, 2**62),
        ("features.corrections", 0, -1e-9),
        ("features.corrections", 0, np.nan),
        ("features.corrections", 0, np.inf),
        ("witness0.values", 0, np.nan),
        ("witness0.support", 0, -1),
        ("witness0.support", 0, 10),
        ("witness0.support", 0, 2**62),
        ("witness0.potential", 0, np.inf),
        ("witness1.action_sign", 0, -1),
        ("witness1.action_sign", 0, 2),
        ("witness1.action_sign", 0, 2**62),
        ("witness1.action_sign", 1, 0),
        ("witness1.action_sign", 1, 2),
        ("witness1.correction", 0, -1e-9),
        ("witness1.correction", 0, np.nan),
    ],
)
def test_absurd_components_are_refused(tmp_path: Path, name: str, at: Any, value: Any) -> None:
    refused(tmp_path / "c", put(name, at, value))


@pytest.mark.parametrize(
    "count", [0, 1, 3, -1, 10**9, 10**30, 2.0, 1e300, float("nan"), "2", None, [2], {}, True]
)
def test_absurd_numbers_of_levels_are_refused(tmp_path: Path, count: Any) -> None:
    refused(tmp_path / "c", lambda header, arrays: header.update(levels=count))


def test_levels_of_exact_models_are_no_estimates(tmp_path: Path) -> None:
    """Whether a level is an estimate is not stored: it follows the model."""
    radius = np.full((10, 2), 0.1)

    def edit(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        header["alpha"] = 0.05
        arrays["reward_radius"] = radius

    layered()[1].save(tmp_path / "c")
    forged(tmp_path / "c", edit)
    mdp = layered()[0]
    loaded = Certificate.load(tmp_path / "c")
    assert all(level.model.is_estimate for level in loaded.levels)
    assert verify(mdp, loaded).verdict == "rejected"
    refused(tmp_path / "d", lambda header, arrays: arrays.update(reward_radius=radius))
    refused(tmp_path / "d", lambda header, arrays: header.update(alpha=0.05))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels_upper", np.full(4, -5)),
        ("labels_lower", np.full(4, 2**62)),
        ("rewards", np.empty((4, 0))),
        ("rewards", np.array([[1e308], [-1e308], [0.0], [0.0]])),
    ],
)
def test_numbers_that_would_fail_later_are_refused_at_once(
    name: str, value: npt.NDArray[Any]
) -> None:
    labels = np.zeros(4, np.int64)
    fields = {"tau": 0.5, "labels_lower": labels, "labels_upper": labels, name: value}
    with pytest.raises(InvalidArgumentError):
        by_hand(**fields)
