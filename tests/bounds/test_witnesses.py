"""Witnesses: their joint rule in fractions, bounds against the exact metric, and their use."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bisim_abstract._bounds.tell_apart as module
from bisim_abstract import (
    InvalidArgumentError,
    Resources,
    TabularMDP,
    bisimulation_metric,
    estimate_mdp,
)
from bisim_abstract._base.types import Progress
from bisim_abstract._bounds.blocks import BlockModel, build_blocks
from bisim_abstract._bounds.features import ValueFeatures, value_features
from bisim_abstract._bounds.tell_apart import make_witnesses
from bisim_abstract._bounds.witnesses import Witnesses
from bisim_abstract.errors import MemoryLimitError
from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
from tests.support import honest
from tests.support.blocks import noisy_groups
from tests.support.examples import grid, naming, seeds
from tests.support.oracles import backup_exact
from tests.support.worlds import BY_HAND, gammas, mdps, scaled

Ints = npt.NDArray[np.int64]
ONE = Resources(threads=1)
ROUNDS = st.sampled_from((1, 2, 3, 20, 200))


def some(
    mdp: TabularMDP,
    gamma: float,
    labels: npt.ArrayLike,
    *,
    features: ValueFeatures | None = None,
    pairs: tuple[Ints, Ints] | None = None,
    **options: Any,
) -> ValueFeatures:
    """Features with witnesses of these pairs of blocks, or of all."""
    if features is None:
        features = value_features(mdp, gamma, count=3, resources=ONE)
    model = build_blocks(mdp, labels, resources=ONE)
    first, second = np.triu_indices(model.n_blocks, 1) if pairs is None else pairs
    given: dict[str, Any] = {"tol": 1e-6, "resources": ONE} | options
    return features.with_witnesses(
        make_witnesses(mdp, gamma, features, model, first, second, **given)
    )


def found_in(features: ValueFeatures) -> Witnesses:
    assert features.witnesses is not None
    return features.witnesses


def check_joint(mdp: TabularMDP, gamma: float, features: ValueFeatures) -> None:
    """Corrections are enough by the joint rule, and hardly more than that."""
    witnesses = found_in(features)
    assert honest.is_jointly_enough(mdp, gamma, features)
    sharp = honest.sharp_corrections(mdp, gamma, features)
    size = float(np.abs(mdp.rewards).max()) + float(np.ptp(features.points(), axis=0).max())
    slack = 1e-13 * (size + float(np.abs(witnesses.potential).max())) / (1.0 - gamma) ** 2
    assert (witnesses.corrections <= sharp * (1.0 + 1e-9) + slack + 1e-310 / (1.0 - gamma)).all()


def check_against_metric(mdp: TabularMDP, gamma: float, features: ValueFeatures) -> None:
    states = np.arange(mdp.n_states)
    lower = features.lower(states[:, None], states)
    assert (lower >= 0.0).all()
    assert (np.diag(lower) == 0.0).all()
    np.testing.assert_array_equal(lower, lower.T)
    assert (lower <= bisimulation_metric(mdp, gamma, resources=ONE).upper).all()


# -- soundness ---------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[TabularMDP, list[int], tuple[Ints, Ints]]:
    """A model of any kind, a partition, and pairs of its blocks, in any order, some twice."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    n, n_actions = draw(st.integers(3, 9)), draw(st.integers(2, 4))
    kind = draw(st.sampled_from(("random", "sparse", "deterministic", "grouped", "noisy")))
    if kind == "random":
        mdp = random_mdp(n, n_actions, seed=seed)
    elif kind == "grouped":
        mdp = grouped_mdp(n, 3, n_actions, noise=0.1, support=2, seed=seed)[0]
    elif kind == "noisy":
        mdp = noisy_groups(n + 3, 3, 0.1, n_actions=n_actions, seed=seed)[0]
    else:
        support = 1 if kind == "deterministic" else min(3, n)
        mdp = sparse_mdp(n, n_actions, support=support, seed=seed)
    labels = rng.integers(0, draw(st.integers(2, mdp.n_states)), mdp.n_states)
    labels[:2] = 0, labels.max() + 1
    labels = np.unique(labels, return_inverse=True)[1]
    count = int(labels.max()) + 1
    pairs = draw(st.integers(1, 6))
    first = rng.integers(0, count, pairs)
    second = (first + rng.integers(1, count, pairs)) % count
    return mdp, labels.tolist(), (first, second)


@given(
    cases(), st.floats(0.3, 0.99), ROUNDS, st.sampled_from((1, 3, 10_000)), st.sampled_from((1, 3))
)
def test_witnesses_never_exceed_the_metric(
    case: tuple[TabularMDP, list[int], tuple[Ints, Ints]],
    gamma: float,
    rounds: int,
    max_iter: int,
    count: int,
) -> None:
    """However few rounds there were, and however far off the features are."""
    mdp, labels, pairs = case
    features = value_features(mdp, gamma, count=count, max_iter=max_iter, resources=ONE)
    features = some(mdp, gamma, labels, features=features, pairs=pairs, max_rounds=rounds)
    assert found_in(features).count == pairs[0].size
    check_against_metric(mdp, gamma, features)


@given(mdps(min_states=2, max_states=4), gammas(0.99), ROUNDS, st.data())
def test_the_joint_rule_holds_in_rational_arithmetic(
    mdp: TabularMDP, gamma: float, rounds: int, data: st.DataObject
) -> None:
    """Rows with tiny masses, rewards of any size, equal ones: what rounding could go wrong on."""
    drawn = data.draw(
        st.lists(st.integers(0, 2), min_size=mdp.n_states, max_size=mdp.n_states).filter(
            lambda x: len(set(x)) > 1
        )
    )
    labels = np.unique(drawn, return_inverse=True)[1]
    features = value_features(mdp, gamma, count=2, max_iter=5, resources=ONE)
    features = some(mdp, gamma, labels, features=features, max_rounds=rounds)
    check_joint(mdp, gamma, features)
    check_against_metric(mdp, gamma, features)


def test_hand_solved_metrics() -> None:
    for known in BY_HAND:
        with naming(name=known.name, gamma=known.gamma):
            n = known.mdp.n_states
            if n == 1:
                continue
            for rounds in (1, 200):
                features = some(known.mdp, known.gamma, np.arange(n), max_rounds=rounds)
                check_joint(known.mdp, known.gamma, features)
                for x, y in np.ndindex(n, n):
                    assert Fraction(float(features.lower(x, y))) <= known.metric[x][y]


def test_differences_are_no_more_than_exact_backups_allow() -> None:
    """In fractions throughout: lower - correction never exceeds backups of an upper bound."""
    for seed in range(4):
        mdp, gamma = sparse_mdp(4, 2, support=2, seed=seed), 0.5
        features = some(mdp, gamma, [0, 1, 2, 2], max_rounds=(1, 4)[seed % 2])
        lines = np.vstack([features.values, found_in(features).values]).tolist()
        above = [[Fraction(4)] * 4 for _ in range(4)]  # rewards are at most 1
        for x in range(4):
            above[x][x] = Fraction(0)
        for _ in range(12):
            above = backup_exact(mdp, gamma, above)
        for x, y in np.ndindex(4, 4):
            most = max(
                abs(Fraction(line[x]) - Fraction(line[y])) - Fraction(c)
                for line, c in zip(lines, features.all_corrections.tolist(), strict=True)
            )
            assert most <= above[x][y]


@seeds(6)
def test_features_that_are_far_off_are_allowed_for(seed: int) -> None:
    """Functions three times too large, with the corrections that this takes."""
    mdp, gamma = random_mdp(6, 2, seed=seed), (0.3, 0.6, 0.9)[seed % 3]
    plain = honest.make_features(mdp, gamma, 12, has_witnesses=False, stretch=3.0)
    features = some(mdp, gamma, [0, 0, 1, 1, 2, 2], features=ValueFeatures(**vars(plain)), tol=1e-3)
    check_joint(mdp, gamma, features)
    check_against_metric(mdp, gamma, features)
    bare = found_in(features)
    free = features.with_witnesses(replace(bare, corrections=np.zeros(bare.count)))
    states = np.arange(6)
    exact = bisimulation_metric(mdp, gamma, resources=ONE)
    assert (free.lower(states[:, None], states) > exact.upper).any()


WORLDS: dict[str, TabularMDP] = {
    "random": random_mdp(6, 3, seed=1),
    "sparse": sparse_mdp(7, 2, support=3, seed=2),
    "deterministic": sparse_mdp(7, 3, support=1, seed=3),
    "grouped": grouped_mdp(7, 3, seed=4)[0],
    "matched": grouped_mdp(7, 4, noise=0.0, matched_rewards=True, seed=5)[0],
    "one action": random_mdp(6, 1, seed=6),
    "equal rewards": TabularMDP.from_dense(np.full((4, 2, 4), 0.25), np.full((4, 2), 0.1)),
    "huge": scaled(random_mdp(5, 2, seed=7), 2.0**900),
    "small": scaled(random_mdp(5, 2, seed=7), 2.0**-1000),
    "subnormal": scaled(random_mdp(5, 2, seed=7), 2.0**-1060),
}


@grid(name=WORLDS, gamma=[0.0, 0.5, 0.99], rounds=[1, 4, 200])
def test_named_worlds(name: str, gamma: float, rounds: int) -> None:
    mdp = WORLDS[name]
    for labels in (np.arange(mdp.n_states) % 2, np.arange(mdp.n_states)):
        pairs = np.array([0, 1, 0]), np.array([1, 0, labels.max()])
        tol = 1e-6 * float(np.ptp(mdp.rewards) or 1.0)
        features = some(mdp, gamma, labels, pairs=pairs, max_rounds=rounds, tol=tol)
        check_joint(mdp, gamma, features)
        if name not in ("huge", "subnormal"):
            check_against_metric(mdp, gamma, features)


def test_corrections_are_rounded_up() -> None:
    """gamma·c, which no correction is below, where c is large and all else is small."""
    mdp, gamma = random_mdp(5, 2, seed=1), 0.7
    made = value_features(mdp, gamma, count=3, resources=ONE)
    for seed in range(40):
        large = 1e6 * np.random.default_rng(seed).random(3)
        features = some(
            mdp, gamma, [0, 0, 1, 1, 2], features=replace(made, corrections=large), max_rounds=3
        )
        corrections = found_in(features).corrections
        most = max(map(Fraction, large.tolist()))
        assert min(map(Fraction, corrections.tolist())) >= Fraction(gamma) * most
        assert max(map(Fraction, corrections.tolist())) <= most


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9, 0.999])
def test_corrections_keep_the_rule_whatever_is_missing(gamma: float) -> None:
    """No rounding of the sums leaves one too small; and the largest is what the rule needs."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        missing = 10.0 ** rng.uniform(-12, 3) * rng.random(4)
        known = float(rng.choice([0.0, 1e-9, 1.0, 1e6])) * rng.random()
        found = module._corrections(missing, gamma, known)
        most = max(map(Fraction, [*found.tolist(), known]))
        for c, span in zip(found.tolist(), missing.tolist(), strict=True):
            assert Fraction(span) + Fraction(gamma) * most <= Fraction(c)
        need = max(known, float(missing.max()) / (1.0 - gamma))
        assert float(most) <= need * (1.0 + 1e-12 / (1.0 - gamma))


# -- what they are good for --------------------------------------------------------------------


def test_they_tell_noisy_groups_apart() -> None:
    """Features leave thousands of pairs across groups open, and blocks alone most of them."""
    for seed in range(2):
        mdp, groups = noisy_groups(120, 8, 0.02, seed=seed)
        gamma = 0.9
        metric = bisimulation_metric(mdp, gamma)
        s, t = np.triu_indices(120, 1)
        is_across = groups[s] != groups[t]
        inside = metric.upper[s, t][~is_across].max()
        tau = math.sqrt(inside * metric.lower[s, t][is_across].min())
        assert inside < tau
        features = value_features(mdp, gamma)
        more = some(mdp, gamma, groups, features=features, tol=0.01 * tau)
        assert found_in(more).corrections.max() <= 0.02 * tau
        before = int((features.lower(s, t)[is_across] <= tau).sum())
        after = int((more.lower(s, t)[is_across] <= tau).sum())
        assert before > 1000
        assert after <= before // 20
        assert (more.lower(s, t) >= features.lower(s, t)).all()
        assert (more.lower(s, t) <= metric.upper[s, t]).all()


def test_they_read_one_another() -> None:
    """By features alone a backup would reach less: what others found counts."""
    mdp, groups = noisy_groups(60, 6, 0.02, seed=3)
    features = value_features(mdp, 0.9, count=1)
    together = some(mdp, 0.9, groups, features=features)
    pairs = np.triu_indices(6, 1)
    gains = []
    for k, (one, two) in enumerate(zip(*pairs, strict=True)):
        alone = some(mdp, 0.9, groups, features=features, pairs=(np.array([one]), np.array([two])))
        s, t = np.flatnonzero(groups == one), np.flatnonzero(groups == two)
        both, single = (float(x.lower(s[:, None], t).min()) for x in (together, alone))
        gains.append(both - single)
        assert found_in(together).count > k
    assert min(gains) > -1e-3
    assert max(gains) > 0.1


def test_more_rounds_leave_less_to_correct() -> None:
    mdp, groups = noisy_groups(60, 6, 0.05, seed=1)
    most = [
        float(found_in(some(mdp, 0.9, groups, max_rounds=rounds)).corrections.max())
        for rounds in (1, 20, 60, 200)
    ]
    assert most[1:] == sorted(most[1:], reverse=True)
    assert most[-1] < 0.01 * most[0]


def test_witnesses_that_are_there_are_not_read() -> None:
    mdp, groups = noisy_groups(30, 3, 0.05, seed=1)
    once = some(mdp, 0.8, groups)
    assert same(found_in(once), found_in(some(mdp, 0.8, groups, features=once)))


def same(one: Witnesses, two: Witnesses) -> bool:
    return all(getattr(one, name).tobytes() == getattr(two, name).tobytes() for name in vars(one))


def test_threads_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp, groups = noisy_groups(400, 8, 0.05, seed=0)
    reference = found_in(some(mdp, 0.9, groups))
    for functions, states, cells, threads in (
        (8, 4096, 4_000_000, 2),
        (1, 4096, 4_000_000, 3),
        (5, 33, 1, 1),
        (3, 7, 100, 2),
    ):
        monkeypatch.setattr(module, "FUNCTIONS", functions)
        monkeypatch.setattr(module, "STATES", states)
        monkeypatch.setattr(module, "CELLS", cells)
        assert same(
            reference, found_in(some(mdp, 0.9, groups, resources=Resources(threads=threads)))
        )


def test_progress_is_reported() -> None:
    mdp, groups = noisy_groups(30, 3, 0.05, seed=1)
    reports: list[Progress] = []
    some(mdp, 0.9, groups, max_rounds=5, tol=1e-12, callback=reports.append)
    on_states = [report for report in reports if report.done]
    assert [report.done for report in on_states] == [1, 2, 3, 4, 5]
    assert {report.stage for report in reports} == {"witnesses"}
    assert all(report.detail.startswith("correction ") for report in on_states)
    on_blocks = reports[: -len(on_states)]
    assert on_blocks
    assert all(report.detail.startswith("on blocks") for report in on_blocks)


# -- refusals ----------------------------------------------------------------------------------


def test_estimates_are_refused() -> None:
    mdp = estimate_mdp([0], [0], [0.0], [1], n_states=2, n_actions=1, reward_range=(0.0, 1.0))
    with pytest.raises(InvalidArgumentError, match="mdp must not be an estimate"):
        some(mdp, 0.9, [0, 1])


def test_too_many_are_refused() -> None:
    mdp, groups = noisy_groups(60, 6, 0.05, seed=1)
    with pytest.raises(MemoryLimitError, match="15 witnesses of 60 states"):
        some(mdp, 0.9, groups, resources=Resources(threads=1, memory_limit=10_000))


def blocks_of(n: int, n_actions: int) -> BlockModel:
    return build_blocks(random_mdp(n, n_actions, seed=0), np.arange(n) % 2, resources=ONE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mdp": "x"}, "mdp must be a TabularMDP"),
        ({"mdp": random_mdp(5, 2, seed=0)}, "features must be of the model's 5 states"),
        ({"mdp": random_mdp(4, 3, seed=0)}, "and 3 actions"),
        ({"gamma": -0.5}, "gamma"),
        ({"gamma": 1.0}, "gamma"),
        ({"features": "x"}, "features must be ValueFeatures, got str"),
        ({"model": [0, 1]}, "model must be a BlockModel, got list"),
        ({"model": blocks_of(5, 2)}, "model must be of the model's 4 states .* got 5 and 2"),
        ({"model": blocks_of(4, 3)}, "and 2 actions, got 4 and 3"),
        ({"first": [2]}, r"first must lie in \[0, 2\), got 2"),
        ({"second": [-1]}, "second must lie .* got -1"),
        ({"second": [0]}, "pairs of different blocks"),
        ({"second": [1, 1]}, "pairs of different blocks"),
        ({"first": [], "second": []}, "pairs of different blocks"),
        ({"first": [[0]], "second": [[1]]}, "pairs of different blocks"),
        ({"max_rounds": 0}, "max_rounds must be at least 1, got 0"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], words: str) -> None:
    mdp = random_mdp(4, 2, seed=0)
    options: dict[str, Any] = {
        "mdp": mdp,
        "gamma": 0.5,
        "features": value_features(mdp, 0.5),
        "model": blocks_of(4, 2),
        "first": [0],
        "second": [1],
        "tol": 1e-3,
    }
    make_witnesses(**options)
    with pytest.raises(InvalidArgumentError, match=words):
        make_witnesses(**(options | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"values": [0.0, 1.0, 2.0]}, r"values must have shape \(k, n_states\)"),
        ({"values": np.zeros((0, 3))}, "values must have shape"),
        ({"values": [[0.0, math.inf, 0.0], [0.0] * 3]}, "values must be finite"),
        ({"values": [[0.0] * 3, [0.0, math.nan, 1.0]]}, "row 1"),
        ({"values": [[-1.7e308, 1.7e308, 1.0], [0.0] * 3]}, "a span of inf"),
        ({"values": [["a"] * 3] * 2}, "values must hold real numbers"),
        ({"actions": [0]}, r"actions must have shape \(2,\), got \(1,\)"),
        ({"actions": [0, -1]}, "actions must be numbers of actions, at least 0, got -1"),
        ({"actions": [0.0, 1.0]}, "actions must hold whole numbers"),
        ({"signs": [[1, 1]]}, r"signs must have shape \(2,\)"),
        ({"signs": [1, 0]}, "signs must be .1 or -1, got 0"),
        ({"signs": [2, 1]}, "signs must be .1 or -1, got 2"),
        ({"signs": [-(2**63), 1]}, "signs must be .1 or -1, got -9223372036854775808"),
        ({"signs": [1.0, 1.0]}, "signs must hold whole numbers"),
        ({"support": [[0, 2]], "potential": [[0.0, 0.0]]}, r"support must have shape \(2, m\)"),
        ({"support": np.zeros((2, 0), np.int64)}, "with m above 0"),
        ({"support": [0, 2]}, "support must have shape"),
        ({"support": [[0, 2], [0, 3]]}, r"support must lie in \[0, 3\), got 3"),
        ({"support": [[-1, 2], [0, 1]]}, "support must lie .* got -1"),
        ({"potential": [[0.0], [0.0]]}, r"potential must have the shape of support \(2, 2\)"),
        ({"potential": [[0.0, 0.0], [0.0, math.nan]]}, "potential must be finite, got nan"),
        ({"corrections": [0.5]}, r"corrections must have shape \(2,\)"),
        ({"corrections": [0.0, -0.5]}, "corrections must be finite and at least 0, got -0.5"),
        ({"corrections": [math.inf, 0.0]}, "corrections must be finite and at least 0, got inf"),
    ],
)
def test_they_are_checked(changes: dict[str, Any], words: str) -> None:
    Witnesses(**FIELDS)
    with pytest.raises(InvalidArgumentError, match=words):
        Witnesses(**(FIELDS | changes))


FIELDS: dict[str, Any] = {
    "values": [[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]],
    "actions": [0, 1],
    "signs": [1, -1],
    "support": [[0, 2], [1, 1]],
    "potential": [[0.0, 0.5], [0.0, -1.0]],
    "corrections": [0.0, 0.5],
}


def test_arrays_are_read_only_and_not_shared() -> None:
    values = np.zeros((2, 3))
    witnesses = Witnesses(**(FIELDS | {"values": values}))
    values[0, 0] = 5.0
    assert witnesses.values[0, 0] == 0.0
    made = found_in(some(random_mdp(4, 2, seed=0), 0.5, [0, 0, 1, 1]))
    for found in (witnesses, made):
        assert all(not array.flags.writeable for array in vars(found).values())


def test_foreign_witnesses_are_refused() -> None:
    witnesses = Witnesses(**FIELDS)
    for n, n_actions in ((3, 1), (4, 2), (2, 2)):
        features = value_features(random_mdp(n, n_actions, seed=0), 0.5)
        with pytest.raises(
            InvalidArgumentError, match=f"witnesses must be of {n} states and {n_actions} actions"
        ):
            features.with_witnesses(witnesses)
    features = value_features(random_mdp(3, 2, seed=0), 0.5)
    assert features.with_witnesses(witnesses).with_witnesses(None).witnesses is None
    plain: Any = SimpleNamespace(**FIELDS)
    with pytest.raises(InvalidArgumentError, match="witnesses must be Witnesses, got SimpleName"):
        features.with_witnesses(plain)


def test_they_print_briefly() -> None:
    witnesses = Witnesses(**FIELDS)
    assert repr(witnesses) == "Witnesses(2 functions of 3 states, correction 0.5)"
    assert witnesses.count == 2
