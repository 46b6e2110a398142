"""The closest pairs of different clusters, against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from bisim_abstract import Certificate, InvalidArgumentError, TabularMDP, certify
from bisim_abstract.parts import NearPair
from tests.support.examples import seeds
from tests.support.oracles import metric_lp, transport_lp
from tests.support.values import random_row, with_equal_radii
from tests.support.worlds import dense

pytestmark = pytest.mark.usefixtures("_no_endless_loop")


def some_model(seed: int) -> TabularMDP:
    rng = np.random.default_rng([3, seed])
    n = int(rng.integers(4, 9))
    kind = ("sparse", "deterministic", "dense")[seed % 3]
    P = np.array([[random_row(rng, n, kind) for _ in range(2)] for _ in range(n)])
    R = rng.random((n, 2))
    if seed % 2:
        P[n - 1], R[n - 1] = np.eye(n)[n - 1], 0.0
    return TabularMDP.from_dense(P, R, terminal_state=n - 1 if seed % 2 else None)


def clusters_of(certificate: Certificate) -> list[int]:
    """The cluster of each state; the end is -1."""
    labels = certificate.labels_upper.tolist()
    if certificate.terminal_state is not None:
        labels[certificate.terminal_state] = -1
    return [int(x) for x in labels]


@seeds(12)
def test_pairs_by_brute_force(seed: int) -> None:
    mdp = some_model(seed)
    whole = certify(mdp, 0.9, tol=1e-6)
    states = np.arange(mdp.n_states)
    upper = whole.bounds(states[:, None], states[None, :])[1]
    for interval in whole.certified_thresholds():
        certificate = whole.at(interval.low)
        labels = clusters_of(certificate)
        pairs = certificate.nearest(100)
        apart = [
            (upper[s, t], s, t)
            for s in range(mdp.n_states)
            for t in range(s + 1, mdp.n_states)
            if labels[s] != labels[t] and -1 not in (labels[s], labels[t])
        ]
        assert bool(pairs) == bool(apart)
        if not apart:
            continue
        assert pairs[0].upper == pytest.approx(min(apart)[0], rel=1e-9)
        assert [p.upper for p in pairs] == sorted(p.upper for p in pairs)
        told = [frozenset((labels[p.first], labels[p.second])) for p in pairs]
        assert all(len(pair) == 2 for pair in told)
        assert len(set(told)) == len(told)
        assert certificate.nearest(1) == pairs[:1]
        for pair in pairs[:3]:
            check_explanation(mdp, certificate, pair.first, pair.second, pair)


def check_explanation(
    mdp: TabularMDP, certificate: Certificate, s: int, t: int, pair: NearPair
) -> None:
    P, states = dense(mdp), np.arange(mdp.n_states)
    below, upper = certificate.bounds(states[:, None], states[None, :])
    found = []
    for action in range(mdp.n_actions):
        reward = abs(mdp.rewards[s, action] - mdp.rewards[t, action])
        future = certificate.gamma * transport_lp(upper, P[s, action], P[t, action])
        found.append((reward, future))
    totals = [sum(x) for x in found]
    assert pair.action is not None
    assert pair.action == pair.match
    assert pair.renaming == ()
    action = pair.action
    assert s < t
    assert totals[action] == pytest.approx(max(totals), abs=1e-7)
    assert pair.reward == pytest.approx(found[action][0], abs=1e-12)
    assert pair.future == pytest.approx(found[action][1], abs=1e-7)
    assert pair.lower == below[s, t]
    assert pair.upper == upper[s, t]
    shares = [share for _, _, share in pair.successors]
    assert len(shares) <= 3
    assert sum(shares) <= 1.0 + 1e-12
    assert shares == sorted(shares, reverse=True)
    for x, y, share in pair.successors:
        assert share > 0.0
        assert P[s, action, x] > 0.0
        assert P[t, action, y] > 0.0
        assert upper[x, y] > 0.0
    assert f"states {s} and {t}" in str(pair)


def test_the_end_does_not_hide_the_closest_pair() -> None:
    """States 0 and 1 are 2 apart, and each is 1 away from the end, which is no cluster."""
    P = np.zeros((5, 1, 5))
    P[:, 0, 4] = 1.0
    mdp = TabularMDP.from_dense(P, [1.0, -1.0, 5.0, -5.0, 0.0], terminal_state=4)
    certificate = certify(mdp, 0.9, tol=1e-6).at(0.5)
    assert certificate.n_clusters == 4
    first = certificate.nearest(1)[0]
    assert (first.first, first.second) == (0, 1)
    assert first.upper == pytest.approx(2.0, abs=1e-6)
    alone = mdp.restrict([0, 1, 4])
    assert len(certify(alone, 0.9, tol=1e-6).at(0.5).nearest()) == 1


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9])
def test_parts_are_no_less_than_the_metric_of_a_true_model(gamma: float) -> None:
    """As said in `NearPair`, for estimates too: the radii belong to the parts."""
    rng = np.random.default_rng(0)
    P = np.array([[random_row(rng, 4, "dense")] for _ in range(4)])
    plain = TabularMDP.from_dense(P, np.array([0.0, 1.0, 2.0, 4.0]))
    mdp = with_equal_radii(plain, 0.25)
    away = 0.25 * np.array([[-1.0], [-1.0], [1.0], [1.0]])
    true = metric_lp(TabularMDP.from_dense(P, plain.rewards + away), gamma)
    certificate = certify(mdp, gamma, tau=0.0)
    for pair in certificate.nearest(10):
        exact = true[pair.first, pair.second]
        assert pair.upper >= exact * (1.0 - 1e-6)
        assert pair.reward + pair.future >= exact * (1.0 - 1e-6)


def test_arguments() -> None:
    mdp = some_model(0)
    certificate = certify(mdp, 0.9, tau=0.0)
    assert certificate.nearest(0) == []
    for wrong in (-1, 1.5):
        with pytest.raises(InvalidArgumentError):
            certificate.nearest(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="another model"):
        certificate.nearest(1, some_model(2))
