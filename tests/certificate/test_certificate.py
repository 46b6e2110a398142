"""Certificates: what they say against brute force, and files that cannot be changed unnoticed."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    InvalidArgumentError,
    Resources,
    TabularMDP,
    certify,
)
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._prove.making import make_certificate
from bisim_abstract.parts import grouped_mdp, random_mdp
from tests.support.certificates import (
    ARRAYS,
    BOTH_STARTS,
    Floats,
    by_hand,
    changed,
    layered,
    made,
    same,
)

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
        n_states=np.int64(4),
        gamma=np.float32(0.5),
        alpha=np.float32(0.25),
        reward_radius=radius,
        reward_range=(np.float32(-2.0), np.int64(3)),
    )
    certificate.save(tmp_path / "c")
    plain = by_hand(alpha=0.25, reward_radius=radius, reward_range=(-2.0, 3.0))
    assert same(Certificate.load(tmp_path / "c"), plain)


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
    certificate = certify(mdp, 0.9, method=Blocks(max_pairs=0))
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
    arms = Arms(random_mdp(1, seed=0), 0.9, resources=Resources(threads=1))
    certificate = make_certificate(arms, tau=0.1, stop="", run={})
    assert (certificate.coverage, certificate.width, certificate.global_width) == (1.0, 0.0, 0.0)
    assert certificate.is_certified


# -- words -------------------------------------------------------------------------------------


def test_one_interval_is_one() -> None:
    """It said "there are 1 certified interval"."""
    mdp = TabularMDP.from_dense([[[1.0]]], [[0.0]])
    text = make_certificate(Arms(mdp, 0.5), tau=None, stop="", run={}).summary()
    assert "there is 1 certified interval\n" in text
    assert repr(certify(mdp, 0.5)).startswith("Certificate(1 state, ")
    merged = certify(TabularMDP.from_dense(np.eye(2)[:, None, :], [1.0, 1.0]), 0.5)
    assert merged.verdict.sentence.startswith(
        "CERTIFIED: 1 cluster of 2 states; at gamma 0.5, acting at random is already optimal, so "
        "there is nothing to decide; with any agent that solves the small environment, no state "
        "loses more than "
    )
    assert merged.verdict.sentence.endswith("; a single cluster: is the reward the one you meant?")


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
        "CERTIFIED over covered pairs only: 2 clusters of 4 states; what agents retain on them "
        "was not computed\n"
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
    single = make_certificate(
        Arms(random_mdp(1, seed=0), 0.9, resources=Resources(threads=1)), tau=0.1, stop="", run={}
    )
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
    assert "holds     for the true model with probability at least 0.95" in reserved
    assert "probability" not in plain
