"""Clusters of a certificate at any threshold, against brute force."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    InvalidArgumentError,
    NotCertifiedError,
    aggregate,
    certify,
    verify,
)
from bisim_abstract._bounds.spanning import Undecided
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract.wrappers import extract_mdp
from tests.support.certificates import Floats, by_hand, changed, layered, made, same
from tests.support.oracles import first_appearance

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
