"""`certify(relation="optimal")`: exact clusters, goals, relations tried, and what agents learn."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Certificate, Resources, TabularMDP, certify, evaluate_policy, verify
from bisim_abstract._base.types import Progress
from bisim_abstract._prove.auto import prove_fewest
from bisim_abstract._prove.options import Options
from bisim_abstract._relations.table import RELATIONS
from bisim_abstract.errors import InvalidArgumentError, NotCertifiedError
from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
from bisim_abstract.wrappers import extract_mdp
from tests.support.action_values import (
    distances,
    gaps,
    masked_estimate,
    models_within,
    optimal_q,
    planted,
    random_model,
    single_linkage,
)
from tests.support.agents import Clustered
from tests.support.certificates import same
from tests.support.examples import grid, seeds
from tests.support.oracles import refines
from tests.support.values import Exact

ONE = Resources(threads=1)
GUARANTEES = ("solver", "policy", "learner")


def optimal(mdp: TabularMDP, gamma: float, **given: Any) -> Certificate:
    return certify(mdp, gamma, **{"relation": "optimal", "resources": ONE, **given})


def check_thresholds(made: Certificate, truths: list[TabularMDP]) -> None:
    """At both ends of each certified interval and within it: exact single linkage."""
    tables = [distances(mdp, optimal_q(mdp, made.gamma), made.apart) for mdp in truths]
    for interval in made.certified_thresholds():
        high = min(interval.high, 4.0 * interval.low + 1.0)
        for tau in {interval.low, (interval.low + high) / 2.0, float(np.nextafter(high, 0.0))}:
            if made.apart is not None and tau >= made.apart:
                continue
            found = made.at(tau)
            assert found.is_certified
            for table in tables:
                assert found.labels_upper.tolist() == single_linkage(table, Fraction(tau))


def check_arms(made: Certificate, tau: float, truths: list[TabularMDP]) -> None:
    """Certified or not: the exact clusters lie between those of the arms."""
    if made.apart is not None and tau >= made.apart:
        with pytest.raises(InvalidArgumentError, match="tau must be below"):
            made.partitions(tau)
        return
    lower, upper = (labels.tolist() for labels in made.partitions(tau))
    for mdp in truths:
        table = distances(mdp, optimal_q(mdp, made.gamma), made.apart)
        exact = single_linkage(table, Fraction(tau))
        assert refines(upper, exact)
        assert refines(exact, lower)


# -- clusters ----------------------------------------------------------------------------------


@grid(seed=range(24), gamma=(0.0, 0.5, 0.9, 0.999))
def test_certified_clusters_are_exact(gamma: float, seed: int) -> None:
    mdp = random_model(seed)
    made = optimal(mdp, gamma, tau="auto")
    check_thresholds(made, [mdp])
    for tau in np.unique(np.concatenate([x.weights for x in made.forests])).tolist():
        check_arms(made, tau, [mdp])


@seeds(25)
def test_certified_clusters_are_those_of_all_models_within_the_radii(seed: int) -> None:
    mdp, gamma = masked_estimate(seed), 0.5
    made = optimal(mdp, gamma, tau="auto")
    truths = models_within(mdp, gamma, seed)
    check_thresholds(made, truths)
    for tau in np.unique(np.concatenate([x.weights for x in made.forests])).tolist():
        check_arms(made, tau, truths)


@seeds(30)
def test_distances_are_at_most_the_plain_ones(seed: int) -> None:
    mdp = random_model(seed, kind="plain")
    made, plain = optimal(mdp, 0.8), certify(mdp, 0.8, tol=1e-9, resources=ONE)
    first, second = np.triu_indices(mdp.n_states, 1)
    assert (made.bounds(first, second)[0] <= plain.bounds(first, second)[1]).all()
    assert made.apart == plain.apart


def test_planted_classes_are_found() -> None:
    """Members differ in rewards and dynamics: nothing is merged by the plain relation."""
    for seed in range(6):
        mdp, labels, q = planted(14, 4, 3, seed)
        made = optimal(mdp, 0.5, tau=1e-6)
        names = dict(zip(labels.tolist(), made.labels.tolist(), strict=True))
        assert made.n_clusters == 4
        assert [names[x] for x in labels.tolist()] == made.labels.tolist()
        assert certify(mdp, 0.5, tau=1e-6, resources=ONE).n_clusters == 14
        assert made.action_values is not None
        assert np.abs(made.action_values.values - q[labels]).max() <= made.action_values.radius


# -- goals -------------------------------------------------------------------------------------


def numbers(made: Certificate) -> list[Any]:
    """What is proven at every certified threshold, from the finest."""
    return list(made.frontier(most=10_000).points)


@grid(seed=range(6), guarantee=GUARANTEES, goal=({"keep": 0.9}, {"keep": 1.0}, {"max_loss": 0.2}))
def test_values_decide_the_threshold(goal: dict[str, float], guarantee: str, seed: int) -> None:
    """The goal is reached by proof, and by none of the certified clusterings that are coarser."""
    mdp = sparse_mdp(12, 2, support=2, seed=seed)
    gamma = 0.8
    made = optimal(mdp, gamma, guarantee=guarantee, **goal)
    assert made.is_certified
    assert made.guarantee == guarantee
    value = made.value
    assert value is not None
    share = value.share(guarantee)
    assert share is not None
    is_met = made.goal.is_enough(share)
    assert is_met == (made.verdict.level == "useful" or made.n_clusters == mdp.n_states)
    coarser = [x for x in numbers(made) if x.n_clusters < made.n_clusters]
    assert is_met or not any(made.goal.is_met(x.numbers) for x in coarser)
    met = [x.n_clusters for x in numbers(made) if made.goal.is_met(x.numbers)]
    if met:
        assert is_met
        assert made.n_clusters == min(met)
    # In truth: the policy that comes with it, lifted, loses no more.
    exact = Exact.of(mdp, gamma)
    best, own = exact.optimal([0] * 12), exact.of_actions(value.lifted_policy.tolist())
    assert max(b - o for b, o in zip(best, own, strict=True)) <= Fraction(value.loss)


def test_stronger_guarantees_need_no_fewer_clusters() -> None:
    for seed in range(4):
        mdp = sparse_mdp(16, 2, support=2, seed=seed)
        counts = [
            optimal(mdp, 0.8, guarantee=name, keep=0.95).n_clusters for name in GUARANTEES[:2]
        ]
        assert counts[1] <= counts[0]


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_numbers_of_clusters(count: int) -> None:
    mdp, _, _ = planted(12, 5, 2, 1)
    made = optimal(mdp, 0.5, n_clusters=count)
    assert made.is_certified
    assert made.n_clusters == count
    assert made.stop.startswith("both clusterings agree at")


def test_other_numbers_of_clusters_are_named() -> None:
    mdp, _, _ = planted(12, 5, 2, 1)
    made = optimal(mdp, 0.5, n_clusters=9)
    assert not made.is_certified
    assert made.stop == (
        "7 states have the same optimal action values as another, within rounding: ask for at most "
        "5 clusters"
    )
    assert "blocks" not in made.stop
    assert "no pair is open" not in made.stop
    with pytest.raises(InvalidArgumentError, match="n_clusters must be between 1 and 12"):
        optimal(mdp, 0.5, n_clusters=13)


@seeds(20)
def test_thresholds_that_are_given(seed: int) -> None:
    mdp = random_model(seed, kind="plain")
    for tau in (0.0, 0.07, 0.3):
        made = optimal(mdp, 0.5, tau=tau)
        assert made.tau == tau
        check_arms(made, tau, [mdp])
        if made.is_certified:
            table = distances(mdp, optimal_q(mdp, 0.5), made.apart)
            assert made.labels_upper.tolist() == single_linkage(table, Fraction(tau))
            assert made.value is not None


def test_the_widest_interval() -> None:
    mdp, _, _ = planted(10, 3, 2, 7)
    made = optimal(mdp, 0.5, tau="auto")
    some = [x for x in made.certified_thresholds() if 1 < x.n_clusters < 10]
    assert made.tau is not None
    mine = next(x for x in some if x.low <= made.tau < x.high)
    floor = 1e-9 * made.ground.starts.diameter
    ratios = [x.high / max(x.low, floor) for x in some]
    assert mine.high / max(mine.low, floor) == max(ratios)
    assert mine.n_clusters == 3  # equal but for rounding, against everything else


def test_widths_that_are_requested() -> None:
    mdp = sparse_mdp(10, 2, seed=0)
    made = optimal(mdp, 0.9, tol=1e-6)
    assert made.global_width <= 1e-6
    assert made.stop.endswith("is within 1e-06")
    far = optimal(mdp, 0.9, tol=1e-16)
    assert far.global_width > 1e-16
    assert far.stop.startswith("all pairs are bounded as tightly as rounding allows: the width is")


def test_what_is_not_certified_says_why() -> None:
    mdp = masked_estimate(3)
    assert mdp.estimate is not None
    estimate = dataclasses.replace(mdp.estimate, row_radius=np.ones(mdp.rewards.shape))
    mdp = dataclasses.replace(mdp, estimate=estimate)
    made = optimal(mdp, 0.9, n_clusters=mdp.n_states)
    assert not made.is_certified
    assert "block" not in made.stop
    with pytest.raises(NotCertifiedError):
        _ = made.labels


# -- what is promised --------------------------------------------------------------------------


def test_sentences_say_for_this_reward_and_gamma_only() -> None:
    mdp = sparse_mdp(12, 2, support=2, seed=0)
    for given in ({}, {"tau": 0.01}, {"n_clusters": 1}, {"guarantee": "learner"}):
        made = optimal(mdp, 0.8, **given)
        assert "for this reward at this gamma only" in made.verdict.sentence
        assert "for this reward at this gamma only" in made.summary()
        assert "relation  optimal: states are alike in optimal action values" in made.summary()
    assert "this gamma only" not in certify(mdp, 0.8, resources=ONE).verdict.sentence


def three_alike() -> TabularMDP:
    """Three states worth 10 and 5 each, by other rewards and successors; the last is the end."""
    P = np.zeros((4, 2, 4))
    P[0, 0, 1] = P[1, 1, 2] = P[0, 1, 3] = P[1, 0, 3] = P[2, :, 3] = P[3, :, 3] = 1.0
    R = [[1.0, 5.0], [10.0, -4.0], [10.0, 5.0], [0.0, 0.0]]
    return TabularMDP.from_dense(P, R, order="sas", terminal_state=3, start=[1.0, 0.0, 0.0, 0.0])


def check_fixed_point(mdp: TabularMDP, gamma: float, labels: Any, seed: int) -> None:
    """T_w Q* = Q* for any weights of members, in fractions."""
    q = optimal_q(mdp, gamma)
    seen = Clustered.of(mdp, gamma, labels)
    members = [
        next(x for x in range(mdp.n_states) if seen.labels[x] == c) for c in range(seen.count)
    ]
    for x, c in enumerate(seen.labels):
        assert q[x] == q[members[c]]
    best = [max(q[x]) for x in members]
    rng = np.random.default_rng(seed)
    for weights in (seen.uniform(), *(seen.random_weights(rng) for _ in range(5))):
        model = seen.mixed(weights)
        for c, x in enumerate(members):
            for name in seen.names(c):
                assert model.q(best, c, name) == q[x][name]
        # It is the only one: the optimal values of what the learner sees.
        assert model.optimal([0] * seen.count) == best


def test_learners_end_with_optimal_values_where_these_are_equal() -> None:
    for seed in range(8):
        mdp, _, _ = planted(9, 3, 2, seed)
        made = optimal(mdp, 0.5, tau=1e-6, guarantee="learner")
        assert made.n_clusters == 3
        check_fixed_point(mdp, 0.5, made.labels_upper, seed)
        assert made.value is not None
        assert made.value.learner is not None
        assert made.value.learner.loss <= 1e-6


def test_three_states_that_only_their_values_make_alike() -> None:
    """Rewards of 1 + 0.9 * 10 and -4 + 0.9 * 10 are 10 and 5 in decimals, not in floats."""
    mdp = three_alike()
    made = optimal(mdp, 0.9, tau=1e-6, guarantee="learner")
    assert made.n_clusters == 1
    assert certify(mdp, 0.9, tau=1e-6, resources=ONE).n_clusters == 3
    check_fixed_point(three_alike_exactly(), 0.5, [0, 0, 0, 1], 0)
    q = gaps(optimal_q(mdp, 0.9))
    assert max(q[0][1], q[0][2], q[1][2]) <= Fraction(1, 10**12)


def three_alike_exactly() -> TabularMDP:
    """The same at gamma 1/2, in numbers that floats hold."""
    base = three_alike()
    R = base.rewards.copy()
    R[0, 0], R[1, 1] = 5.0, 0.0
    return TabularMDP(
        indptr=base.indptr, indices=base.indices, probs=base.probs, rewards=R, terminal_state=3
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_simulated_learner_ends_with_optimal_values(seed: int) -> None:
    """One-step Q-learning over clusters, members drawn with weights that change on the way."""
    mdp, labels, q = planted(9, 3, 2, seed, support=1)
    rng = np.random.default_rng(seed)
    table, after = np.zeros((3, 2)), mdp.indices.reshape(9, 2)
    weights = rng.dirichlet(np.ones(9))
    for step in range(6_000):
        if step % 500 == 0:
            weights = rng.dirichlet(np.full(9, 0.5)) * 0.9 + 0.1 / 9.0
        x, a = int(rng.choice(9, p=weights)), int(rng.integers(2))
        target = mdp.rewards[x, a] + 0.5 * table[labels[after[x, a]]].max()
        table[labels[x], a] += 0.5 * (target - table[labels[x], a])
    assert np.abs(table - q).max() <= 1e-9


@seeds(20)
def test_learners_end_within_the_width_of_clusters(seed: int) -> None:
    """Any weights: values off by at most the width of clusters over 1 - gamma."""
    mdp, gamma = sparse_mdp(8, 2, support=2, seed=seed), 0.75
    made = optimal(mdp, gamma, n_clusters=3)
    if not made.is_certified:
        made = made.at(made.certified_thresholds()[-1].low)
    q = optimal_q(mdp, gamma)
    table, labels = gaps(q), made.labels_upper
    alike = labels[:, None] == labels
    width = max(
        table[s][t] for s, t in zip(*map(np.ndarray.tolist, np.nonzero(alike)), strict=True)
    )
    seen = Clustered.of(mdp, gamma, labels)
    for weights in (seen.uniform(), seen.random_weights(np.random.default_rng(seed))):
        model = seen.mixed(weights)
        best = model.optimal([0] * seen.count)
        for x, c in enumerate(seen.labels):
            for a in range(2):
                assert abs(model.q(best, c, a) - q[x][a]) <= width / (1 - Fraction(gamma))


# -- all relations -----------------------------------------------------------------------------


@grid(
    seed=range(6),
    goal=({"keep": 0.95}, {"max_loss": 0.05}, {"keep": 1.0, "guarantee": "policy"}),
    kind=("planted", "sparse", "grouped", "masked"),
)
def test_auto_never_takes_more_clusters(kind: str, goal: dict[str, Any], seed: int) -> None:
    mdp = {
        "planted": lambda: planted(9, 3, 2, seed)[0],
        "sparse": lambda: sparse_mdp(8, 2, support=1, seed=seed),
        "grouped": lambda: grouped_mdp(9, 3, 2, noise=0.0, support=2, seed=seed)[0],
        "masked": lambda: random_model(seed, kind="plain"),
    }[kind]()
    gamma = 0.5
    auto = certify(mdp, gamma, relation="auto", resources=ONE, **goal)
    single = {name: certify(mdp, gamma, relation=name, resources=ONE, **goal) for name in RELATIONS}
    levels = {name: made.verdict.level for name, made in single.items()}
    assert auto.verdict.level == next(x for x in ("useful", "poor", "open") if x in levels.values())
    equals = [name for name in RELATIONS if levels[name] == auto.verdict.level]
    if auto.is_certified:
        equals = [x for x in equals if single[x].is_certified]
        assert auto.n_clusters == min(single[x].n_clusters for x in equals)
        equals = [x for x in equals if single[x].n_clusters == auto.n_clusters]
    assert auto.relation == equals[0]  # of equally few, the one that promises more
    for name, made in single.items():
        count = f"{made.n_clusters}" if levels[name] == "useful" else "none"
        assert auto.run["tried_relations"][name] == count
        assert f"{name} {count}" in auto.stop
    assert verify(mdp, auto, resources=ONE).is_valid


def test_auto_is_for_goals_of_value() -> None:
    for given in ({"tau": 0.1}, {"tau": "auto"}, {"n_clusters": 2}, {"tol": 0.1}):
        with pytest.raises(InvalidArgumentError, match="takes the fewest clusters"):
            Options(relation="auto", **given)
    with pytest.raises(InvalidArgumentError, match="several runs: give no checkpoint"):
        certify(sparse_mdp(4, 2, seed=0), 0.5, relation="auto", checkpoint="x")
    others: tuple[dict[str, Any], ...] = ({"propose": ["rewards"]}, {"max_pairs": 9})
    for given in (*others, {"method": "blocks"}):
        with pytest.raises(InvalidArgumentError, match="give no method, no option of one"):
            Options.named({"relation": "auto", **given})


def test_auto_says_what_was_not_finished() -> None:
    """Ctrl-C among several runs is one of all of them, and budgets are named."""
    mdp = sparse_mdp(40, 2, seed=0)
    own: list[str] = []
    optimal(mdp, 0.9, callback=lambda progress: own.append(progress.stage))

    def stop_at_the_next(progress: Progress) -> None:
        if progress.stage not in own:
            raise KeyboardInterrupt

    found = certify(mdp, 0.9, relation="auto", callback=stop_at_the_next)
    assert found.stop.startswith("interrupted at the relation plain; ")
    assert "by relation: plain not finished, lax not begun, optimal 14" in found.stop
    short = certify(mdp, 0.9, relation="auto", max_seconds=1e-9)
    assert short.stop.startswith("budget: max_seconds = 1e-09 is used up; ")
    assert short.stop.endswith(
        "by relation: plain not begun, lax not begun, optimal not finished; a max_seconds above "
        "1e-09 may find fewer clusters"
    )
    whole = certify(mdp, 0.9, relation="auto")
    alone = certify(mdp, 0.9, relation=whole.relation)
    assert whole.times["seconds"] > 0.0
    assert whole.labels.tolist() == alone.labels.tolist()


def test_auto_gives_every_relation_the_time_that_is_left() -> None:
    """No halves, and no budget that nobody gave."""
    mdp = sparse_mdp(12, 2, seed=0)
    given: list[tuple[str, float | None]] = []

    def prove_one(options: Options) -> Certificate:
        given.append((options.relation, options.max_seconds))
        return certify(mdp, 0.5, relation=options.relation, resources=ONE)

    free = prove_fewest(mdp, Options(relation="auto"), prove_one)
    assert given == [("optimal", None), ("plain", None), ("lax", None)]
    assert "max_seconds" not in free.stop
    given.clear()
    prove_fewest(mdp, Options(relation="auto", max_seconds=1e6), prove_one)
    assert [name for name, _ in given] == ["optimal", "plain", "lax"]
    times = [seconds for _, seconds in given if seconds is not None]
    assert times[0] == 1e6
    assert sorted(times, reverse=True) == times
    assert times[-1] > 0.9e6


def test_thresholds_stay_below_the_distance_of_action_sets() -> None:
    """Also where all live states have the same actions, and no link is that long."""
    transitions = np.zeros((3, 2, 3))
    transitions[0, :, 0] = transitions[1, :, 0] = transitions[2, :, 2] = 1.0
    available = np.array([[True, False]] * 3)
    rewards = np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    mdp = TabularMDP.from_dense(transitions, rewards, available=available, order="sas")
    made = optimal(mdp, 0.9)
    assert made.apart is not None
    assert made.tau is not None
    assert made.tau < made.apart
    for thresholds in (made.certified_thresholds(), made.profile().intervals):
        assert max(x.high for x in thresholds) == made.apart
    words = re.escape(f"tau must be below {made.apart!r}, the distance of states with different")
    for refuse in (made.at, made.partitions, made.undecided):
        for tau in (made.apart, 2.0 * made.apart):
            with pytest.raises(InvalidArgumentError, match=words):
                refuse(tau)
    with pytest.raises(InvalidArgumentError, match=words):
        optimal(mdp, 0.9, tau=made.apart)
    assert verify(mdp, made).is_valid


def test_what_keeps_states_apart_adds_up() -> None:
    """By an action that they have; parts that work against each other are amounts."""
    transitions = np.zeros((3, 2, 3))
    transitions[0, :, 2] = transitions[1, :, 1] = transitions[2, :, 2] = 1.0
    rewards = np.array([[10.1, 10.1], [1.0, 1.0], [0.0, 0.0]])
    mdp = TabularMDP.from_dense(
        transitions, rewards, available=np.array([[False, True]] * 3), order="sas"
    )
    made = optimal(mdp, 0.9, tau=0.01)
    pair = made.nearest(1)[0]
    assert (pair.first, pair.second, pair.action) == (0, 1, 1)
    assert [pair.reward, pair.future] == pytest.approx([9.1, -9.0])
    assert "9.1 reward, -9 future" in str(pair)
    for pair in optimal(sparse_mdp(12, 3, seed=1), 0.9, tau=1e-9).nearest(20):
        assert pair.lower - 1e-9 <= pair.reward + pair.future <= pair.upper + 1e-9


# -- other ways in -----------------------------------------------------------------------------


@seeds(12)
def test_the_chain_of_a_policy_gives_its_own_values(seed: int) -> None:
    """One action is left, whose value is that of the policy: states alike on the policy."""
    mdp, gamma = sparse_mdp(7, 3, support=2, seed=seed), 0.8
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 5, (7, 3)) + (np.arange(3) == 0)
    policy = weights / weights.sum(axis=1, keepdims=True)
    made = optimal(mdp.under_policy(policy), gamma, tau="auto")
    exact = Exact.of(mdp, gamma).values_of(
        [[Fraction(int(w), int(sum(line))) for w in line] for line in weights.tolist()]
    )
    s, t = np.triu_indices(7, 1)
    lower, upper = made.bounds(s, t)
    slack = Fraction(1, 10**12)  # weights as floats are not these fractions
    for k, (x, y) in enumerate(zip(s.tolist(), t.tolist(), strict=True)):
        gap = abs(exact[x] - exact[y])
        assert Fraction(float(lower[k])) - slack <= gap <= Fraction(float(upper[k])) + slack
    assert made.is_under_policy
    own = evaluate_policy(mdp, gamma, policy)
    assert made.action_values is not None
    middles = made.action_values.values[:, 0]
    assert (np.abs(middles - own.lower) <= made.action_values.radius + own.gap + 1e-12).all()
    assert verify(mdp.under_policy(policy), made).is_valid


@pytest.mark.parametrize("kind", ["plain", "masked", "estimate"])
def test_files_keep_everything(kind: str, tmp_path: Path) -> None:
    mdp = masked_estimate(1) if kind == "estimate" else random_model(7 if kind == "plain" else 9)
    made = optimal(mdp, 0.5)
    made.save(tmp_path / "c.npz")
    read = Certificate.load(tmp_path / "c.npz")
    run = {name: x for name, x in made.run.items() if not name.endswith("seconds")}
    assert dict(read.run) == run
    for field in dataclasses.fields(made):
        if field.name not in ("run", "model"):
            assert same(getattr(read, field.name), getattr(made, field.name)), field.name
    assert verify(mdp, read).is_valid
    assert read.certified_thresholds() == made.certified_thresholds()


def test_files_with_other_components_are_refused(tmp_path: Path) -> None:
    made = optimal(sparse_mdp(5, 2, seed=0), 0.5)
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    fields |= {"run": {}, "model": None}
    for wrong in (
        {"relation": "plain"},
        {"relation": "lax"},
        {"scope": "covered"},
        {"keys": [1], "lower": [0.0], "upper": [1.0]},
    ):
        with pytest.raises(InvalidArgumentError, match="nothing else does"):
            Certificate(**fields | wrong)


@pytest.mark.parametrize("goal", [{}, {"tau": 0.05}, {"n_clusters": 3}, {"tol": 1e-9}])
def test_checkpoints_are_resumed(goal: dict[str, Any], tmp_path: Path) -> None:
    mdp = sparse_mdp(12, 2, support=2, seed=4)
    path = tmp_path / "run"
    whole = optimal(mdp, 0.8, **goal)
    first = optimal(mdp, 0.8, checkpoint=path, **goal)
    assert path.exists()
    again = optimal(mdp, 0.8, checkpoint=path, **goal)
    for made in (first, again):
        for field in dataclasses.fields(whole):
            if field.name not in ("run", "model"):
                assert same(getattr(made, field.name), getattr(whole, field.name)), field.name
        assert made.run["steps"] == whole.run["steps"]
        assert made.run["settings"] == whole.run["settings"]
    with pytest.raises(InvalidArgumentError):
        optimal(mdp, 0.7, checkpoint=path, **goal)


def test_interrupted_runs_go_on(tmp_path: Path) -> None:
    """Ctrl-C while the values are bounded: nothing is known yet, and the rest is as without it."""
    mdp, path = sparse_mdp(12, 2, support=2, seed=4), tmp_path / "run"

    def interrupt(told: Any) -> None:
        if "linking" in told.stage:
            raise KeyboardInterrupt

    part = optimal(mdp, 0.8, checkpoint=path, callback=interrupt)
    assert part.stop.startswith("interrupted in step 1")
    assert not part.is_certified
    assert verify(mdp, part).is_valid
    resumed, whole = optimal(mdp, 0.8, checkpoint=path), optimal(mdp, 0.8)
    assert same(resumed.action_values, whole.action_values)
    assert same(resumed.labels_upper, whole.labels_upper)
    assert resumed.stop == whole.stop


def test_budgets_of_time_end_runs() -> None:
    made = optimal(sparse_mdp(30, 2, seed=0), 0.9, max_seconds=1e-9)
    assert made.stop.startswith("budget")
    assert verify(sparse_mdp(30, 2, seed=0), made).is_valid


def test_thresholds_of_other_actions_are_refused() -> None:
    available = np.ones((6, 2), bool)
    available[2, 1] = False
    mdp = sparse_mdp(6, 2, seed=0).with_available(available)
    made = optimal(mdp, 0.5, tau=0.1)
    assert made.apart is not None
    for tau in (made.apart, 2.0 * made.apart):
        with pytest.raises(InvalidArgumentError, match=r"tau must be below .*different actions"):
            optimal(mdp, 0.5, tau=tau)
        with pytest.raises(InvalidArgumentError, match=r"tau must be below .*different actions"):
            made.at(tau)
    largest = optimal(mdp, 0.5, tau=float(np.nextafter(made.apart, 0.0)))
    assert largest.is_certified
    assert largest.n_clusters == 2
    assert optimal(mdp, 0.5, n_clusters=2).n_clusters == 2
    assert not optimal(mdp, 0.5, n_clusters=1).is_certified
    assert max(x.low for x in made.certified_thresholds()) < made.apart


def test_several_rewards_side_by_side_are_refused() -> None:
    from bisim_abstract._model.names import Names

    base = random_mdp(4, 2, seed=0)
    mdp = dataclasses.replace(base, names=Names(rewards=("time", "cost")))
    for given in ({}, {"tau": 0.1}, {"n_clusters": 2}):
        with pytest.raises(InvalidArgumentError, match=r"time, cost.*mdp\.for_reward\(name\)"):
            optimal(mdp, 0.5, **given)
    assert optimal(mdp.for_reward("cost"), 0.5, tau=0.1).tau == 0.1


def test_many_actions() -> None:
    mdp = random_mdp(40, 200, seed=0)
    made = optimal(mdp, 0.5, tau="auto")
    assert made.action_values is not None
    assert made.action_values.values.shape == (40, 200)
    assert verify(mdp, made, resources=ONE).is_valid
    values = made.action_values.values
    table = np.abs(values[:, None] - values).max(axis=2)
    for interval in made.certified_thresholds()[::5]:
        tau = (interval.low + min(interval.high, 10.0)) / 2.0
        assert made.at(tau).labels_upper.tolist() == single_linkage(table, tau)


def test_one_state_and_one_action() -> None:
    one = TabularMDP.from_dense(np.ones((1, 1, 1)), [[1.0]])
    made = optimal(one, 0.9)
    assert made.is_certified
    assert made.n_clusters == 1
    assert verify(one, made).is_valid
    end = TabularMDP.from_dense(np.ones((1, 1, 1)), [[0.0]], terminal_state=0)
    assert verify(end, optimal(end, 0.9)).is_valid


def test_threads_change_nothing() -> None:
    for mdp in (random_mdp(120, 4, seed=0), masked_estimate(5)):
        one, two = (optimal(mdp, 0.9, resources=Resources(threads=k)) for k in (1, 2))
        for field in dataclasses.fields(one):
            if field.name not in ("run", "model"):
                assert same(getattr(one, field.name), getattr(two, field.name)), field.name


def test_nearest_pairs_and_frontier_read_the_values() -> None:
    mdp, labels, q = planted(9, 3, 2, 0)
    made = optimal(mdp, 0.5, tau=1e-6)
    table = np.abs(q[:, None] - q).max(axis=2)
    for pair in made.nearest(2):
        gap = table[labels[pair.first], labels[pair.second]]
        assert pair.lower <= gap <= pair.upper
        assert pair.action is not None
        assert pair.match == pair.action
        own = np.abs(q[labels[pair.first]] - q[labels[pair.second]])
        assert own[pair.action] == own.max()
    heights = sorted({float(table[i, j]) for i in range(3) for j in range(i)})
    closest = made.nearest(1)[0]
    assert closest.lower <= heights[0] <= closest.upper
    points = made.frontier().points
    assert {x.n_clusters for x in points} <= {1, 2, 3, 9}


def test_who_merges_little_is_told_of_this_relation() -> None:
    mdp = sparse_mdp(12, 2, support=2, seed=0)
    advice = "relation='optimal' may merge more, for this reward at this gamma only"
    whole = certify(mdp, 0.9, keep=1.0)
    assert whole.stop.startswith("nothing can be merged: 12 of 12 states")
    assert whole.stop.endswith(advice)
    assert f"  try       {advice}" in whole.summary().splitlines()
    for made in (optimal(mdp, 0.9, keep=1.0), certify(mdp, 0.9, n_clusters=2)):
        assert advice not in made.summary()


def test_advice_is_about_goals_that_can_be_reached() -> None:
    """Rounding alone loses more than nothing, whatever the relation."""
    mdp = extract_mdp("FrozenLake-v1")
    for relation in ("plain", "optimal"):
        none = certify(mdp, 0.9, relation=relation, max_loss=0, resources=ONE)
        assert none.verdict.level == "poor"
        assert "even with all states apart agents are proven to lose at most" in none.stop
        assert none.stop.endswith("so request less")
        assert "relation='optimal'" not in none.stop
