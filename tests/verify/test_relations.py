"""The verifier where states have different actions, and where actions are matched.

Certificates are made by slow code of its own, in exact arithmetic: no part of the package that
makes bounds is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP, verify
from bisim_abstract._verify import remembered
from bisim_abstract._verify.floats import Reader
from bisim_abstract._verify.read import read_claims
from tests.support.examples import cases
from tests.support.honest import (
    Floats,
    Ints,
    Operator,
    accepted,
    at_tau,
    bounds,
    build,
    deep,
    found,
    make_features,
    make_level,
    make_witnesses,
    rejected,
    relation_of,
    state_model,
    thresholds,
)
from tests.support.oracles import compared_metric
from tests.support.proven import functions_of, honest_value
from tests.support.relations import random_labels, random_renaming, renamed_mdp
from tests.support.values import Exact

RELATIONS = ("plain", "lax")
EPS = 2.0**-53


def some_certificate(
    seed: int, relation: str, *, sweeps: int = 8, radius: float = 0.0
) -> tuple[dict[str, Any], TabularMDP]:
    """All components, of a model with and without missing actions."""
    rng = np.random.default_rng([3, seed])
    missing = 0.0 if seed % 4 == 0 else 0.35
    mdp = renamed_mdp(seed, n=4, n_actions=2 + seed % 2, missing=missing, radius=radius)
    gamma = 0.0 if seed % 17 == 5 else (0.5, 0.8)[seed % 2]
    labels = random_labels(mdp, rng, is_pure=relation == "plain")
    names = random_renaming(mdp, labels, rng) if relation == "lax" else None
    content = build(
        mdp,
        gamma,
        labelings=[labels],
        renamings=[names],
        pairs=[(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)],
        sweeps=sweeps,
        relation=relation,
        starts=(("reward", "zero")[seed % 3 == 1], ("reward", "constant")[seed % 5 == 1]),
    )
    return content, mdp


def check_encloses(content: dict[str, Any], mdp: TabularMDP) -> None:
    """What is claimed, against the metric by its definition."""
    gamma, how = content["gamma"], (content["relation"], content["apart"])
    d = compared_metric(mdp, gamma, relation=how[0], apart=how[1], sweeps=20)
    missing = gamma**20 * float(Operator(state_model(mdp), gamma, how).diameter) + 1e-12
    low, high = bounds(mdp, content)
    for s, t in np.ndindex(d.shape):
        assert float(low[s][t]) <= d[s, t] + missing, (s, t)
        assert float(high[s][t]) >= d[s, t] - 1e-12, (s, t)


# -- honest certificates -------------------------------------------------------------------------


@pytest.mark.drawn
@pytest.mark.parametrize("relation", RELATIONS)
def test_accepts_honest_certificates(relation: str) -> None:
    for seed in range(cases(100)):
        content, mdp = some_certificate(seed, relation)
        accepted(content, mdp)
        if seed % 3 == 0:
            check_encloses(content, mdp)


@pytest.mark.nightly
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("first", range(1_000, 1_600, 100))
def test_accepts_many_honest_certificates(first: int, relation: str) -> None:
    for seed in range(first, first + 100):
        content, mdp = some_certificate(seed, relation)
        accepted(content, mdp)
        check_encloses(content, mdp)


@pytest.mark.parametrize("relation", RELATIONS)
def test_accepts_honest_certificates_of_estimates(relation: str) -> None:
    for seed in range(12):
        content, mdp = some_certificate(seed, relation, radius=0.05)
        accepted(content, mdp)


@pytest.mark.drawn
@pytest.mark.parametrize("relation", RELATIONS)
def test_accepts_clusters_over_all_pairs(relation: str) -> None:
    for seed in range(cases(16)):
        content, mdp = some_certificate(seed, relation)
        for tau in thresholds(*bounds(mdp, content))[-3:]:
            accepted(at_tau(mdp, content, tau), mdp)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", [1, 2, 6])
def test_no_entry_has_room(seed: int, relation: str) -> None:
    """Every bound of blocks and pairs, once converged, moved inward by a little."""
    honest, mdp = some_certificate(seed, relation, sweeps=40)
    honest["features"] = None
    fresh = build(
        mdp,
        honest["gamma"],
        pairs=[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
        sweeps=40,
        has_features=False,
        relation=relation,
    )
    accepted(fresh, mdp)
    for name in ("level", "states"):
        source = {**honest, **{k: honest[k][:0] for k in ("keys", "lower", "upper")}}
        if name == "states":
            source = fresh
        count = (source["levels"][0] if name == "level" else SimpleNamespace(**source)).keys.size
        assert count > 1
        for k in range(count):
            for side, sign in (("lower", 1.0), ("upper", -1.0)):
                content = deep(source)
                holder = content["levels"][0] if name == "level" else SimpleNamespace(**content)
                values = getattr(holder, side)
                values[k] += sign * 1e-4 * (1.0 + values[k])
                rejected(content, mdp)


@pytest.mark.drawn
@pytest.mark.parametrize("relation", RELATIONS)
def test_verdicts_are_those_of_the_inequalities(relation: str) -> None:
    """Entries moved at random: accepted exactly if every inequality holds, by its definition."""
    verdicts = []
    for seed in range(cases(60)):
        rng = np.random.default_rng([8, seed])
        mdp = renamed_mdp(seed, n=4, n_actions=2 + seed % 2)
        gamma, how = 0.5, relation_of(mdp, 0.5, relation)
        labels = random_labels(mdp, rng, is_pure=relation == "plain")
        names = random_renaming(mdp, labels, rng) if relation == "lax" else None
        level = make_level(mdp, gamma, labels, 12, relation=how, renaming=names)
        count = len(level.model.low)
        is_inner = level.keys % (count + 1) == 0
        chosen = rng.random(level.keys.size) < 0.3
        push = np.where(chosen, rng.choice([1e-9, 0.05]) * (rng.random(chosen.size) - 0.5), 0.0)
        if rng.random() < 0.5:
            level.upper = np.maximum(level.upper + push, level.lower)
        else:
            level.lower = np.clip(level.lower + push * ~is_inner, 0.0, level.upper)
        operator = Operator(level.model, gamma, how)
        sizes = np.bincount(labels)
        below, above = (
            [
                [
                    Fraction(0) if s == t and sizes[s] == 1 else operator.starts(s, t)[side]
                    for t in range(count)
                ]
                for s in range(count)
            ]
            for side in range(2)
        )
        start = [list(line) for line in below], [list(line) for line in above]
        for key, low, high in zip(level.keys.tolist(), level.lower, level.upper, strict=True):
            s, t = divmod(key, count)
            below[s][t] = below[t][s] = max(below[s][t], Fraction(float(low)))
            above[s][t] = above[t][s] = min(above[s][t], Fraction(float(high)))
        is_true = True
        for key, low, high in zip(level.keys.tolist(), level.lower, level.upper, strict=True):
            s, t = divmod(key, count)
            least = max(start[0][s][t], operator.backup(below, s, t, is_upper=False))
            most = min(start[1][s][t], operator.backup(above, s, t, is_upper=True))
            is_true &= Fraction(float(low)) <= least and Fraction(float(high)) >= most
        content = build(mdp, gamma, has_features=False, relation=relation) | {"levels": (level,)}
        verdicts.append(is_true)
        assert found(content, mdp, "exact").is_valid == is_true, seed
        result = found(content, mdp)
        assert result.is_valid or not is_true, result.problem
        if result.is_valid and not is_true:  # rounding may hide as much as it is widened by
            assert 0.0 < result.widening < 1e-12
    assert cases(60) // 6 <= sum(verdicts) <= cases(60) * 5 // 6


def test_safe_start_values_are_on_the_safe_side() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        mdp = renamed_mdp(seed, n=4, n_actions=1 + seed % 4)
        size = 10.0 ** rng.integers(-8, 8)
        mdp = TabularMDP(
            indptr=mdp.indptr,
            indices=mdp.indices,
            probs=mdp.probs,
            rewards=size * (mdp.rewards * rng.random() + 1.0),
            available=mdp.available,
        )
        gamma = float(rng.choice([0.1, 0.7, 0.99]))
        first, second = np.triu_indices(4, 1)
        for relation in RELATIONS:
            content: Any = build(mdp, gamma, has_features=False, relation=relation)
            operator = Operator(state_model(mdp), gamma, relation_of(mdp, gamma, relation))
            reader = Reader(read_claims(SimpleNamespace(**content), mdp).states, gamma)
            for is_safe in (True, False):
                low, high = reader.read(first, second, is_safe=is_safe)
                for k, pair in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
                    below, above = operator.starts(*pair)
                    least, most = Fraction(low[k]), Fraction(high[k])
                    if is_safe:
                        assert least <= below
                        assert most >= above
                    assert abs(least - below) <= Fraction(32 * EPS) * below
                    assert abs(most - above) <= Fraction(32 * EPS) * above


def test_one_thread_or_two() -> None:
    from bisim_abstract import Resources

    for relation in RELATIONS:
        content, mdp = some_certificate(2, relation)
        made: Any = SimpleNamespace(**content)
        one, two = (verify(mdp, made, resources=Resources(threads=k)) for k in (1, 2))
        assert one == two


# -- one relation in place of the other ----------------------------------------------------------


def swapped() -> TabularMDP:
    """State 0 pays (1, 0), state 1 pays (0, 1), then both end: 1 apart by name, 0 if matched."""
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    return TabularMDP.from_dense(
        P, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], order="sas", terminal_state=2
    )


def with_pair(relation: str, lower: float, upper: float) -> dict[str, Any]:
    content = build(swapped(), 0.5, has_features=False, relation=relation)
    return content | {
        "keys": np.array([1]),
        "lower": np.array([lower]),
        "upper": np.array([upper]),
    }


def test_bounds_of_one_relation_are_not_those_of_the_other() -> None:
    mdp = swapped()
    accepted(with_pair("plain", 1.0, 1.0), mdp)
    accepted(with_pair("lax", 0.0, 0.0), mdp)
    accepted(with_pair("lax", 0.0, 1.0), mdp)  # what is by name is an upper bound
    rejected(with_pair("lax", 1.0, 1.0), mdp, "lower bound of pair (0, 1)")
    rejected(with_pair("lax", 1e-6, 1.0), mdp, "lower bound of pair (0, 1)")
    rejected(with_pair("plain", 0.0, 0.0), mdp, "upper bound of pair (0, 1)")
    rejected(with_pair("plain", 0.0, 1.0 - 1e-6), mdp, "upper bound of pair (0, 1)")


@pytest.mark.drawn
def test_a_relation_that_is_flipped_is_noticed() -> None:
    noticed = 0
    for seed in range(cases(40)):
        mdp = renamed_mdp(seed, n=4, n_actions=2, missing=0.0)
        metrics = [compared_metric(mdp, 0.5, relation=name, sweeps=25) for name in RELATIONS]
        if np.abs(metrics[0] - metrics[1]).max() < 1e-3:
            continue
        pairs = [(s, t) for s in range(4) for t in range(s + 1, 4)]
        for relation, other in (("plain", "lax"), ("lax", "plain")):
            content = build(mdp, 0.5, pairs=pairs, sweeps=25, has_features=False, relation=relation)
            rejected(content | {"relation": other}, mdp, "bound of pair")
            noticed += 1
    assert noticed >= cases(40) // 2


@pytest.mark.parametrize("relation", RELATIONS)
def test_flipping_the_relation_of_all_components(relation: str) -> None:
    other = RELATIONS[relation == "plain"]
    for seed in range(12):
        content, mdp = some_certificate(seed, relation)
        apart = relation_of(mdp, content["gamma"], other)[1]
        rejected(content | {"relation": other, "apart": apart}, mdp)
        if mdp.has_action_sets:
            rejected(content | {"relation": other}, mdp, "apart is")


@pytest.mark.parametrize("junk", [None, "", "Lax", 0, ["lax"], np.array("lax")])
def test_unknown_relations(junk: Any) -> None:
    rejected(with_pair("lax", 0.0, 0.0) | {"relation": junk}, swapped(), "relation must be")


def test_rewards_by_name_keep_no_clusters_apart_where_actions_are_matched() -> None:
    """The whole proof over all pairs looks at boxes of rewards first."""
    mdp = swapped()
    apart = {"tau": 0.25, "labels_lower": np.arange(3), "labels_upper": np.arange(3)}
    accepted(with_pair("plain", 1.0, 1.0) | apart, mdp)
    empty = {"keys": np.empty(0, np.int64), "lower": np.empty(0), "upper": np.empty(0)}
    content = with_pair("lax", 0.0, 0.0) | apart
    for claim in (content, content | empty):
        rejected(claim, mdp, "labels_lower keeps states 0 and 1 apart")
    together = np.array([0, 0, 1])
    accepted(content | {"labels_lower": together, "labels_upper": together}, mdp)


# -- different action sets -----------------------------------------------------------------------


def one_action_each() -> TabularMDP:
    """State 0 can only do what pays 100, state 1 only what pays 0; state 2 can do both."""
    P = np.tile(np.eye(3)[:, None], (1, 2, 1))
    rewards = [[100.0, 100.0], [0.0, 0.0], [100.0, 0.0]]
    available = [[True, False], [False, True], [True, True]]
    return TabularMDP.from_dense(P, rewards, order="sas", available=available)


def test_the_distance_of_different_actions() -> None:
    mdp = one_action_each()
    content = build(mdp, 0.5, pairs=[(0, 1), (0, 2), (1, 2)])
    assert content["apart"] == 200.0
    assert content["lower"].tolist() == content["upper"].tolist() == [200.0] * 3
    accepted(content, mdp)
    # It may be rounded up. A larger one would be a metric too, but not what bounds are read by.
    for apart, verdict in ((float(np.nextafter(200.0, np.inf)), accepted), (250.0, None)):
        more = {"apart": apart, "lower": np.full(3, apart), "upper": np.full(3, apart)}
        if verdict is None:
            rejected(content | {"features": None} | more, mdp, "apart is 250.0")
        else:
            verdict(content | {"features": None} | more, mdp)
    rejected(content | {"apart": float(np.nextafter(200.0, 0.0))}, mdp, "apart is 199.99")
    rejected(content | {"apart": 0.0}, mdp, "apart is 0.0")
    for junk in (None, np.inf, np.nan, "200", 10**400, True):
        rejected(content | {"apart": junk}, mdp, "apart")
    for side, sign in (("lower", 1.0), ("upper", -1.0)):
        for amount in (1e-6, 1.0, 150.0):
            changed = deep(content)
            changed["lower"][1], changed["upper"][1] = 0.0, 1e3
            changed[side][1] = 200.0 + sign * amount
            rejected(changed, mdp, f"{side} bound of pair (0, 2)")
            changed["features"] = None
            rejected(changed, mdp, f"{side} bound of pair (0, 2)")


def test_radii_count_in_the_distance_of_different_actions() -> None:
    mdp = renamed_mdp(3, n=4, radius=0.1)
    assert mdp.estimate is not None
    content = build(mdp, 0.5)
    accepted(content, mdp)
    bare = float(np.ptp(mdp.rewards)) / 0.5
    assert bare < content["apart"]
    rejected(content | {"apart": bare}, mdp, "apart is")
    rejected(content | {"apart": float(np.nextafter(content["apart"], 0.0))}, mdp, "apart is")


def test_actions_of_states_are_those_of_the_model() -> None:
    mdp = one_action_each()
    content = build(mdp, 0.5)
    all_of_them = np.ones((3, 2), bool)
    for junk in (None, all_of_them, mdp.available.astype(int), mdp.available[:2], [[1, 1]] * 3):
        rejected(content | {"available": junk}, mdp, "available are not")
    rejected(content | {"available": all_of_them, "apart": None}, mdp, "available are not")


def test_blocks_of_different_actions() -> None:
    """By name, a block must be of one action set, and is `apart` from blocks of others."""
    mdp = one_action_each()
    how = relation_of(mdp, 0.5, "plain")
    content = build(mdp, 0.5, labelings=[[0, 1, 2]])
    assert content["levels"][0].upper.tolist() == [200.0] * 3
    accepted(content, mdp)
    for k in range(3):
        changed = deep(content)
        changed["levels"][0].upper[k] -= 1e-6
        changed["levels"][0].lower[k] -= 1e-6
        rejected(changed, mdp, "upper bound of level 0")
    mixed = make_level(mdp, 0.5, [0, 1, 0], 4, relation=how)
    rejected(content | {"levels": (mixed,)}, mdp, "must have the same actions")
    mixed.model.available = np.ones((2, 2), bool)
    rejected(content | {"levels": (mixed,)}, mdp, "must have the same actions")
    named = deep(content)
    named["levels"][0].model.renaming = np.where(mdp.available, np.arange(2), -1)
    rejected(named, mdp, "renaming must be None")


def test_different_actions_keep_clusters_apart() -> None:
    mdp = one_action_each()
    content = build(mdp, 0.5, has_features=False)
    apart = {"labels_lower": np.arange(3), "labels_upper": np.arange(3)}
    accepted(content | apart | {"tau": 199.0}, mdp)
    rejected(content | apart | {"tau": 200.0}, mdp, "labels_")
    one = {"labels_lower": np.zeros(3, np.int64), "labels_upper": np.zeros(3, np.int64)}
    accepted(content | one | {"tau": 200.0}, mdp)
    rejected(content | one | {"tau": 199.0}, mdp, "labels_upper puts")


# -- blocks whose actions are matched ------------------------------------------------------------


def turned() -> tuple[TabularMDP, dict[str, Any]]:
    """States 0 and 1 do the same, once the actions of one are swapped; and so do 2 and 3."""
    P = np.zeros((5, 3, 5))
    P[[0, 1], [0, 1], 2] = P[[0, 1], [0, 1], 3] = 0.5
    P[[0, 1], [1, 0], 4] = 1.0
    P[2, :, 0], P[3, :, 1], P[4, :, 4] = 1.0, 1.0, 1.0
    rewards = [[1, 0, 0], [0, 1, 0], [3, 2, 2], [2, 3, 2], [0, 0, 0]]
    available = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]], bool)
    mdp = TabularMDP.from_dense(P, np.array(rewards, float), order="sas", available=available)
    names = np.array([[0, 1, -1], [1, 0, -1], [0, 1, 1], [1, 0, -1], [0, 0, 0]])
    content = build(
        mdp,
        0.5,
        labelings=[[0, 0, 1, 1, 2]],
        renamings=[names],
        sweeps=30,
        has_features=False,
        relation="lax",
    )
    return mdp, content


def test_blocks_of_renamed_states_are_as_exact_as_states() -> None:
    mdp, content = turned()
    level = content["levels"][0]
    accepted(content, mdp)
    inner = level.upper[level.keys % 4 == 0]
    assert inner.size == 2
    assert inner.max() < 1e-15
    d = compared_metric(mdp, 0.5)
    np.testing.assert_allclose(level.lower[level.keys == 1], d[0, 2], atol=1e-8)
    np.testing.assert_allclose(level.upper[level.keys == 1], d[0, 2], atol=1e-8)


RENAMINGS: dict[str, tuple[Callable[[Ints], Any], str]] = {
    "not all names": (lambda x: np.where(x == 1, 0, x), "must use in state 0"),
    "a name left out in one state": (
        lambda x: np.vstack([[0, 0, -1], x[1:]]),
        "must use in state 0",
    ),
    "another name": (lambda x: np.vstack([[2, 1, -1], x[1:]]), "must use in state 0"),
    "a name beyond": (lambda x: np.vstack([[3, 1, -1], x[1:]]), "action 0 of state 0"),
    "a name below": (lambda x: np.vstack([[0, 1, -2], x[1:]]), "action 2 of state 0"),
    "no name for an action": (lambda x: np.vstack([[0, -1, -1], x[1:]]), "action 1 of state 0"),
    "a name for what is lacking": (lambda x: np.vstack([[0, 1, 1], x[1:]]), "action 2 of state 0"),
    "rewards that do not fit": (lambda x: np.vstack([[1, 0, -1], x[1:]]), "reward interval"),
    "the last one": (lambda x: np.vstack([x[:3], [[0, 1, -1]], x[4:]]), "reward interval"),
    "by name": (lambda x: np.where(x >= 0, np.arange(3), -1), "must use in state 2"),
    "short": (lambda x: x[:4], "renaming must have shape"),
    "narrow": (lambda x: x[:, :2], "renaming must have shape"),
    "flat": (lambda x: x.ravel(), "renaming must be a two-dimensional"),
    "floats": (lambda x: x.astype(float), "renaming must be a two-dimensional"),
    "none": (lambda x: None, "renaming must be an array"),
}


@pytest.mark.parametrize("name", RENAMINGS)
def test_rejects_wrong_renamings(name: str) -> None:
    mdp, content = turned()
    alter, words = RENAMINGS[name]
    model = content["levels"][0].model
    model.renaming = alter(model.renaming)
    rejected(content, mdp, words)


def test_mixed_actions_need_wider_intervals_and_radii() -> None:
    """Rewards and rows of all actions that are called alike count."""
    mdp, content = turned()
    names = content["levels"][0].model.renaming.copy()
    names[0] = [1, 0, -1]
    how = ("lax", None)
    wide = make_level(mdp, 0.5, [0, 0, 1, 1, 2], 30, relation=how, renaming=names)
    assert (wide.model.radius[0, :2] > 0.0).all()
    accepted(content | {"levels": (wide,)}, mdp)
    for field, words in (("low", "interval"), ("high", "interval"), ("radius", "radius is")):
        changed = deep(content | {"levels": (wide,)})
        values = getattr(changed["levels"][0].model, field)
        values[0, 0] = {"low": 0.5, "high": 0.5, "radius": 0.25}[field]
        rejected(changed, mdp, words)
    changed = deep(content | {"levels": (wide,)})
    changed["levels"][0].model.short[0, 0] *= 0.5
    rejected(changed, mdp, "short is")


def test_blocks_say_which_actions_they_have() -> None:
    mdp, content = turned()
    for alter, words in (
        (lambda x: np.ones_like(x), "must use in state 0"),
        (lambda x: np.zeros_like(x), "block 0 has no action"),
        (lambda x: x[:2], "available must have shape"),
        (lambda x: x.astype(np.int64), "available must be"),
    ):
        changed = deep(content)
        model = changed["levels"][0].model
        model.available = alter(model.available)  # type: ignore[no-untyped-call]
        rejected(changed, mdp, words)


def test_unused_actions_of_blocks_are_not_read() -> None:
    """What stands there is neither trusted nor taken for more than it says."""
    mdp, content = turned()
    plain = found(content, mdp)
    changed = deep(content)
    model = changed["levels"][0].model
    model.low[0, 2], model.high[0, 2] = -1e6, 1e6
    model.radius[0, 2] = model.spare[0, 2] = model.short[0, 2] = 1.0
    accepted(changed, mdp)
    assert found(changed, mdp).widening == plain.widening


# -- features ------------------------------------------------------------------------------------


def forged_features(
    mdp: TabularMDP, relation: str, signs: Sequence[int], kind: int
) -> tuple[dict[str, Any], float]:
    """A function whose residual is honest, and by how much it exceeds the metric, at most."""
    how = relation_of(mdp, 0.5, relation)
    content = build(mdp, 0.5, has_features=False, relation=relation)
    made = make_features(
        mdp, 0.5, 60, has_witnesses=False, relation=how, signs=[signs], kinds=[kind]
    )
    content["features"] = made
    d = compared_metric(mdp, 0.5, relation=relation, apart=how[1], sweeps=30)
    gaps = np.abs(made.values[0][:, None] - made.values[0]) - made.corrections[0]
    return content, float((gaps - d).max())


UNSOUND: dict[str, tuple[str, list[int], int, str]] = {
    "mixed signs": ("lax", [1, -1, 1], 0, "signs of both kinds"),
    "an action left out": ("lax", [1, 1, 0], 0, "leaves out an action"),
    "a single action": ("lax", [0, -1, 0], 0, "leaves out an action"),
    "mean": ("lax", [1, 1, 1], 1, "mean over actions"),
    "mixed signs, action sets": ("plain", [1, -1, 1], 0, "signs of both kinds"),
    "mean of mixed signs, action sets": ("plain", [-1, 0, 1], 1, "signs of both kinds"),
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", UNSOUND)
def test_rejects_functions_that_the_relation_does_not_allow(name: str) -> None:
    relation, signs, kind, words = UNSOUND[name]
    worst = 0.0
    for seed in range(cases(30)):
        plain = renamed_mdp(seed, n=4, n_actions=3)
        if not plain.has_action_sets:
            continue
        # Rewards around a number far from 0: turned signs add it up across action sets.
        mdp = TabularMDP(
            indptr=plain.indptr,
            indices=plain.indices,
            probs=plain.probs,
            rewards=plain.rewards + 5.0,
            available=plain.available,
        )
        content, excess = forged_features(mdp, relation, signs, kind)
        rejected(content, mdp, words)
        worst = max(worst, excess)
    # Where actions are matched, such functions are no bounds. By name, every state has something in
    # the place of every action: there the rule is stricter than it need be.
    assert worst > 1e-3 or relation == "plain"


@pytest.mark.drawn
@pytest.mark.parametrize("relation", RELATIONS)
def test_accepts_functions_that_the_relation_allows(relation: str) -> None:
    allowed = [([1, 1, 1], 0), ([-1, -1, -1], 0)]
    if relation == "plain":
        allowed += [([1, 0, 1], 1), ([0, -1, 0], 0), ([-1, -1, -1], 1)]
    for seed in range(cases(12)):
        mdp = renamed_mdp(seed, n=4, n_actions=3)
        for signs, kind in allowed:
            content, excess = forged_features(mdp, relation, signs, kind)
            assert excess <= 1e-8
            accepted(content, mdp)


def test_witnesses_go_by_name() -> None:
    for seed in range(8):
        mdp = renamed_mdp(seed, n=4, n_actions=2)
        for relation in RELATIONS:
            content = build(mdp, 0.5, relation=relation)
            features = content["features"]
            features.witnesses = make_witnesses(mdp, 0.5, features, 12)
            if relation == "plain":
                accepted(content, mdp)
                check_encloses(content, mdp)
            else:
                rejected(content, mdp, "witnesses look at one action")


@pytest.mark.parametrize("relation", RELATIONS)
def test_floors_and_ceilings(relation: str) -> None:
    """They are part of what is checked: moved, the residual is another."""
    P = np.random.default_rng(1).dirichlet(np.ones(4), (4, 2))
    rewards = [[-1.0, -0.75], [0.0, 0.0], [0.5, 0.75], [1.0, 0.125]]
    available = np.arange(8).reshape(4, 2) != 3
    mdp = TabularMDP.from_dense(P, rewards, order="sas", available=available)
    how = relation_of(mdp, 0.5, relation)
    content = build(mdp, 0.5, has_features=False, relation=relation)
    content["features"] = make_features(
        mdp,
        0.5,
        60,
        has_witnesses=False,
        relation=how,
        signs=[[1, 1], [-1, -1]],
        kinds=[0, 0],
        cuts=[(0.0, np.inf), (-0.5, 0.25)],
    )
    accepted(content, mdp)
    check_encloses(content, mdp)
    words = "correction of feature"
    for name, k, value, why in (
        ("floor", 0, -np.inf, words),
        ("floor", 0, 0.125, words),
        ("ceiling", 0, 0.75, words),
        ("ceiling", 1, np.inf, words),
        ("floor", 1, -0.25, words),
        ("ceiling", 1, -1.0, "must be at most its ceiling"),
        ("floor", 1, np.nan, "must be at most its ceiling"),
        ("floor", 0, np.inf, "must be at most its ceiling"),
        ("ceiling", 1, -np.inf, "must be at most its ceiling"),
    ):
        changed = deep(content)
        getattr(changed["features"], name)[k] = value
        rejected(changed, mdp, why)
    for name in ("floor", "ceiling"):
        changed = deep(content)
        setattr(changed["features"], name, getattr(changed["features"], name)[:1])
        rejected(changed, mdp, "must be of 2 functions")


# -- values --------------------------------------------------------------------------------------


def with_value(
    content: dict[str, Any],
    mdp: TabularMDP,
    renaming: Ints | None,
    policy: Sequence[int],
    *,
    lifted: Sequence[int] | None = None,
    weights: Floats | None = None,
) -> dict[str, Any]:
    """One cluster, and what following a policy in it is worth; `lifted` is what is really done."""
    zeros, gamma = np.zeros(mdp.n_states, np.int64), content["gamma"]
    tau = float(Operator(state_model(mdp), gamma, (content["relation"], content["apart"])).diameter)
    value = honest_value(mdp, gamma, zeros.tolist(), renaming, policy=policy, room=1e-9)
    made = content | {
        "tau": np.nextafter(tau, np.inf).item(),
        "labels_lower": zeros,
        "labels_upper": zeros,
        "value": value,
    }
    if lifted is not None:
        value.policy_lower = lifted_values(mdp, gamma, lifted)
    if weights is not None:
        share = [[Fraction(w) for w in line] for line in weights.tolist()]
        random = Exact.of(mdp, gamma).values_of([[w / sum(line) for w in line] for line in share])
        value.random_upper = np.array([float(v) for v in random]) + 1e-9
    return made


def lifted_values(mdp: TabularMDP, gamma: float, lifted: Sequence[int]) -> Floats:
    """What a policy is worth, nearly."""
    return np.array([float(v) for v in Exact.of(mdp, gamma).of_actions(lifted)]) - 1e-9


def lift(mdp: TabularMDP, renaming: Ints | None, names: Ints) -> list[int]:
    """The first action so called, or the first that there is."""
    out = []
    for s, name in enumerate(names.tolist()):
        own = np.flatnonzero(mdp.available[s]).tolist()
        called = [a for a in own if (a if renaming is None else renaming[s, a]) == name]
        out.append((called or own)[0])
    return out


def random_value(seed: int, relation: str) -> tuple[dict[str, Any], TabularMDP]:
    rng = np.random.default_rng([6, seed])
    mdp = renamed_mdp(seed, n=4, n_actions=3, missing=0.35 * (seed % 3 > 0))
    names: Ints | None = None
    count = 3
    if relation == "lax":
        names = random_renaming(mdp, [0] * 4, rng)
        count = int(names.max()) + 1
    elif mdp.has_action_sets:
        names = np.where(mdp.available, np.arange(3), -1)
    content = build(mdp, 0.5, has_features=False, relation=relation)
    return with_value(content, mdp, names, [int(rng.integers(count))]), mdp


@pytest.mark.parametrize("relation", RELATIONS)
def test_accepts_honest_values(relation: str) -> None:
    for seed in range(40):
        content, mdp = random_value(seed, relation)
        accepted(content, mdp)
        assert found(content, mdp).values_checked == functions_of(content["value"])


@pytest.mark.drawn
@pytest.mark.parametrize("relation", RELATIONS)
def test_rejects_policies_that_are_lifted_otherwise(relation: str) -> None:
    """Values of what another choice of actions would do, wherever it does something else."""
    rejections = 0
    for seed in range(cases(40)):
        content, mdp = random_value(seed, relation)
        value = content["value"]
        names = value.renaming
        honest = lift(mdp, names, value.policy[value.labels])
        for s in range(4):
            for a in np.flatnonzero(mdp.available[s]).tolist():
                other = [*honest]
                other[s] = a
                forged = deep(content)
                forged["value"].policy_lower = lifted_values(mdp, content["gamma"], other)
                gain = forged["value"].policy_lower - value.policy_lower
                if gain.max() > 1e-6:
                    rejected(forged, mdp, "value: policy_lower of state")
                    rejections += 1
    assert rejections > cases(40) // 2


def test_acting_at_random_is_over_actions_that_there_are() -> None:
    """A lacking action does what the first one does; it is not chosen twice as often."""
    P = np.tile(np.eye(2)[:, None], (1, 3, 1))
    mdp = TabularMDP.from_dense(
        P,
        [[0.0, 1.0, 0.0], [0.0, 1.0, 2.0]],
        order="sas",
        available=[[True, True, False], [True, True, True]],
    )
    own = np.where(mdp.available, np.arange(3), -1)
    for relation, names, policy in (
        ("plain", own, [1]),
        ("lax", np.array([[0, 1, -1], [0, 1, 1]]), [1]),
    ):
        content = build(mdp, 0.5, has_features=False, relation=relation)
        accepted(with_value(content, mdp, names, policy), mdp)
        padded = with_value(content, mdp, names, policy, weights=np.ones((2, 3)))
        assert padded["value"].random_upper[0] == pytest.approx(2 / 3)
        rejected(padded, mdp, "value: random_upper of state 0")


def test_a_state_that_lacks_an_action_takes_its_first() -> None:
    mdp = one_action_each()
    own = np.where(mdp.available, np.arange(2), -1)
    content = build(mdp, 0.5, has_features=False)
    for name, done in ((0, [0, 1, 0]), (1, [0, 1, 1])):
        honest = with_value(content, mdp, own, [name])
        assert lift(mdp, own, np.full(3, name)) == done
        accepted(honest, mdp)
        # Below M the clusters would be others, and states 0 and 1 could not share a policy.
        rejected(honest | {"tau": 199.0}, mdp, "labels_upper puts")


VALUE_NAMES: dict[str, tuple[str, Any, str]] = {
    "none, though states differ": ("plain", None, "renaming must be an array"),
    "called otherwise": ("plain", [[0, -1], [-1, 0], [0, 1]], "must call action 1 of state 1"),
    "lacking": ("plain", [[0, 1], [-1, 1], [0, 1]], "action 1 of state 0"),
    "none, though matched": ("lax", None, "renaming must be an array"),
    "not from 0 on": ("lax", [[1, -1], [-1, 1], [1, 1]], "number the names in state 0"),
    "not the same": ("lax", [[0, -1], [-1, 0], [0, 1]], "state 0 does not"),
    "not all": ("lax", [[0, -1], [-1, 0], [0, -1]], "action 1 of state 2"),
    "beyond": ("lax", [[0, -1], [-1, 0], [0, 2]], "action 1 of state 2"),
}


@pytest.mark.parametrize("name", VALUE_NAMES)
def test_rejects_wrong_names_of_values(name: str) -> None:
    relation, names, words = VALUE_NAMES[name]
    mdp = one_action_each()
    honest = {"plain": [[0, -1], [-1, 1], [0, 1]], "lax": [[0, -1], [-1, 0], [0, 0]]}[relation]
    content = build(mdp, 0.5, has_features=False, relation=relation)
    content = with_value(content, mdp, np.array(honest), [0])
    accepted(content, mdp)
    content["value"].renaming = None if names is None else np.array(names)
    rejected(content, mdp, words)


def test_names_of_policies_must_exist() -> None:
    mdp = one_action_each()
    content = build(mdp, 0.5, has_features=False, relation="lax")
    content = with_value(content, mdp, np.array([[0, -1], [-1, 0], [0, 0]]), [0])
    for holder, name in ((content["value"], "policy"), (content["value"].bracket, "policy")):
        honest = getattr(holder, name)
        setattr(holder, name, np.array([1]))
        rejected(content, mdp, "policy takes an action in cluster 0 without a name")
        setattr(holder, name, honest)
    accepted(content, mdp)


def test_values_by_name_have_no_renaming() -> None:
    mdp = swapped()
    content = build(mdp, 0.5, has_features=False)
    content = with_value(content, mdp, None, [0, 0])
    accepted(content, mdp)
    content["value"].renaming = np.tile(np.arange(2), (3, 1))
    rejected(content, mdp, "renaming must be None")


def test_the_end_of_episodes_has_names_of_its_own() -> None:
    """It is no part of the cluster that it is linked with."""
    mdp = swapped()
    content = build(mdp, 0.5, has_features=False, relation="lax")
    for last in ([0, 0], [0, 1], [1, 0]):
        names = np.array([[0, 1], [1, 0], last])
        honest = with_value(content, mdp, names, [0, 0])
        accepted(honest, mdp)
        assert honest["value"].policy_lower[:2] == pytest.approx(1.0)
    by_name = np.tile(np.arange(2), (3, 1))
    accepted(with_value(content, mdp, by_name, [0, 0]), mdp)
    forged = with_value(content, mdp, by_name, [0, 0], lifted=[0, 1, 0])
    rejected(forged, mdp, "value: policy_lower of state 1")


# -- what is no certificate ----------------------------------------------------------------------


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError


def test_garbage_never_crashes() -> None:
    mdp, honest = turned()
    names = honest["levels"][0].model.renaming.copy()
    names[4] = [0, 1, 1]
    honest = with_value(honest, mdp, names, [0])
    honest["features"] = make_features(mdp, 0.5, 8, has_witnesses=False, relation=("lax", None))
    accepted(honest, mdp)
    junk: list[Any] = [
        -3,
        2**70,
        float("nan"),
        "x",
        [],
        {},
        np.zeros(0),
        np.zeros((3, 3)),
        np.zeros((5, 3), np.int64),
        np.full((5, 3), -(2**63)),
        np.full((5, 3), 2**62),
        np.ones((3, 3), bool),
        np.ones((5, 3), bool),
        np.full(3, np.nan),
        np.full(3, 1.7e308),
        np.array(5),
        object(),
        Hostile(),
    ]

    def holders(content: dict[str, Any]) -> dict[str, Any]:
        level = content["levels"][0].model
        return {"model": level, "features": content["features"], "value": content["value"]}

    for value in junk:
        for name in ("relation", "available", "apart"):
            rejected(honest | {name: value}, mdp)
        for holder, name in (
            ("model", "available"),
            ("model", "renaming"),
            ("features", "floor"),
            ("features", "ceiling"),
            ("value", "renaming"),
        ):
            content = deep(honest)
            setattr(holders(content)[holder], name, value)
            rejected(content, mdp)


def test_missing_fields() -> None:
    mdp, honest = turned()
    for name in ("relation", "available", "apart"):
        content = {key: value for key, value in honest.items() if key != name}
        rejected(content, mdp, f"no {name} that can be read")


# -- what is remembered --------------------------------------------------------------------------


def test_relations_are_part_of_what_is_remembered() -> None:
    mdp, content = turned()
    names = content["levels"][0].model.renaming.copy()
    names[4] = [0, 1, 1]
    content = with_value(content, mdp, names, [0])
    content["features"] = make_features(mdp, 0.5, 8, has_witnesses=False, relation=("lax", None))

    def digests(changed: dict[str, Any]) -> tuple[bytes, bytes]:
        claims = read_claims(SimpleNamespace(**changed), mdp)
        of_bounds = remembered.bounds_digest(mdp, claims)
        return of_bounds, remembered.claims_digest(of_bounds, claims)

    before = digests(content)
    assert before == digests(deep(content))

    def renamed_level(changed: dict[str, Any]) -> None:
        changed["levels"][0].model.renaming[0] = [1, 0, -1]

    def renamed_block(changed: dict[str, Any]) -> None:
        model = changed["levels"][0].model
        model.renaming = np.where(model.renaming == 1, 2, model.renaming)
        model.available = model.available[:, [0, 2, 1]]

    def cut(changed: dict[str, Any]) -> None:
        changed["features"].floor[0] = -1e3

    def cut_above(changed: dict[str, Any]) -> None:
        changed["features"].ceiling[0] = 1e3

    for alter in (renamed_level, renamed_block, cut, cut_above):
        changed = deep(content)
        alter(changed)
        after = digests(changed)
        assert after[0] != before[0]
        assert after[1] != before[1]
    changed = deep(content)
    changed["value"].renaming[4] = [0, 0, 1]
    after = digests(changed)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)
    bare = content | {"levels": (), "features": None, "value": None}
    by_name = bare | {"relation": "plain", "apart": 10.0}
    kinds = [digests(x)[0] for x in (bare, by_name, by_name | {"apart": 11.0})]
    assert len(set(kinds)) == 3
