"""Aggregated models, lifted policies, and what these lose: by hand, and against the metric."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    Aggregation,
    InvalidArgumentError,
    TabularMDP,
    aggregate,
    evaluate_policy,
    lift_policy,
    value_iteration,
    value_loss,
)
from bisim_abstract._model.policies import policy_table
from bisim_abstract._model.renaming import own_names
from bisim_abstract.parts import random_mdp, sparse_mdp
from tests.support.examples import grid, seeds
from tests.support.oracles import lifted_exact, optimal_values_exact, policy_values_exact
from tests.support.renaming import random_renaming, taken, with_random_actions
from tests.support.values import Exact, mean
from tests.support.worlds import dense


def ending(seed: int, *, terminal: int | None = None, n: int = 9) -> tuple[TabularMDP, Any]:
    """Three planted groups whose members are nearly alike and may end the episode."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n) % 3
    base_rows = rng.dirichlet(np.ones(4), size=(3, 2))  # three groups and the end
    base_rewards = rng.uniform(-1.0, 1.0, (3, 2))
    noise = rng.choice([0.0, 0.01, 0.1])
    P = np.zeros((n + 1, 2, n + 1))
    R = np.zeros((n + 1, 2))
    for s in range(n):
        R[s] = base_rewards[groups[s]] + noise * rng.random(2)
        for a in range(2):
            row = base_rows[groups[s], a] + noise * rng.random(4)
            for g in range(3):
                members = np.flatnonzero(groups == g)
                P[s, a, members] = row[g] * rng.dirichlet(np.ones(members.size))
            P[s, a, n] = row[3]
            P[s, a] /= P[s, a].sum()
    P[n, :, n] = 1.0
    order = np.arange(n + 1)
    if terminal is not None:  # put it elsewhere
        order = np.insert(np.arange(n), terminal, n)
    labels = np.append(groups, 7)[order]
    return TabularMDP.from_dense(
        P[order][:, :, order], R[order], terminal_state=n if terminal is None else terminal
    ), labels


def averaged(mdp: TabularMDP, labels: Any, weights: Any) -> tuple[Any, Any]:
    """The definition: loops over states, in exact numbers."""
    count = int(np.max(labels)) + 1
    P = [[[Fraction(0)] * count for _ in range(mdp.n_actions)] for _ in range(count)]
    R = [[Fraction(0)] * mdp.n_actions for _ in range(count)]
    total = [Fraction(0)] * count
    for s in range(mdp.n_states):
        total[labels[s]] += Fraction(float(weights[s]))
    for s in range(mdp.n_states):
        share = Fraction(float(weights[s])) / total[labels[s]]
        for a in range(mdp.n_actions):
            R[labels[s]][a] += share * Fraction(float(mdp.rewards[s, a]))
            successors, probs = mdp.successors(s, a)
            mass = sum((Fraction(float(p)) for p in probs), Fraction(0))
            for t, p in zip(successors, probs, strict=True):
                P[labels[s]][a][labels[t]] += share * Fraction(float(p)) / mass
    return P, R


def by_definition(mdp: TabularMDP, found: Aggregation, raw: npt.ArrayLike) -> None:
    P, R = (np.array(x, float) for x in averaged(mdp, found.labels, np.asarray(raw, float)))
    np.testing.assert_allclose(dense(found.mdp), P, rtol=0.0, atol=1e-14)
    np.testing.assert_allclose(found.mdp.rewards, R, rtol=0.0, atol=1e-14)


# -- the aggregated model ----------------------------------------------------------------------


@seeds(5)
def test_rows_and_rewards_are_averages(seed: int) -> None:
    mdp, labels = ending(seed, terminal=4)
    rng = np.random.default_rng(seed)
    raw = rng.random(mdp.n_states)
    found = aggregate(mdp, labels, weighting=raw)
    assert found.weighting == "given"
    by_definition(mdp, found, raw)
    by_definition(mdp, aggregate(mdp, labels), np.ones(mdp.n_states))
    assert found.mdp.terminal_state == 3
    assert found.labels[4] == 3
    np.testing.assert_allclose(np.bincount(found.labels, weights=found.weights), 1.0)


def test_weights_matter() -> None:
    mdp, labels = ending(0)
    raw = np.where(np.arange(10) < 3, 1.0, 0.0)  # one member of each group counts
    found = aggregate(mdp, labels, weighting=raw)
    np.testing.assert_array_equal(found.mdp.rewards[:3], mdp.rewards[:3])
    assert not np.allclose(found.mdp.rewards, aggregate(mdp, labels).mdp.rewards)


def test_start_is_pushed_forward() -> None:
    P = np.full((4, 1, 4), 0.25)
    mdp = TabularMDP.from_dense(P, np.zeros(4), start=[0.5, 0.125, 0.25, 0.125])
    found = aggregate(mdp, [5, 3, 5, 3])
    assert found.mdp.start.tolist() == [0.75, 0.25]
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.members(0).tolist() == [0, 2]
    assert repr(found) == "Aggregation(4 states in 2 clusters, uniform weights)"


def test_start_weights() -> None:
    P = np.full((4, 1, 4), 0.25)
    R = [1.0, 2.0, 3.0, 7.0]
    mdp = TabularMDP.from_dense(P, R, start=[0.5, 0.0, 0.5, 0.0])
    found = aggregate(mdp, [0, 0, 1, 1], weighting="start")
    assert found.mdp.rewards.ravel().tolist() == [1.0, 3.0]
    # Nothing starts in the second cluster: all members count alike.
    found = aggregate(mdp, [0, 1, 0, 1], weighting="start")
    assert found.mdp.rewards.ravel().tolist() == [2.0, 4.5]


def test_visitation_is_that_of_the_uniform_policy() -> None:
    gamma = 0.8
    mdp, labels = ending(3)
    walk = dense(mdp).mean(axis=1)
    visits = np.linalg.solve(np.eye(10) - gamma * walk.T, mdp.start)
    found = aggregate(mdp, labels, weighting="visitation", gamma=gamma)
    by_definition(mdp, found, visits)
    np.testing.assert_allclose(
        found.weights, visits / np.bincount(found.labels, weights=visits)[found.labels], rtol=1e-10
    )
    with pytest.raises(InvalidArgumentError, match="gamma must be given"):
        aggregate(mdp, labels, weighting="visitation")


def test_where_nothing_is_visited_members_count_alike() -> None:
    P = np.zeros((4, 1, 4))
    P[[0, 1, 2, 3], 0, [1, 0, 3, 2]] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 1.0, 2.0, 4.0], start=[1.0, 0.0, 0.0, 0.0])
    found = aggregate(mdp, [0, 0, 1, 1], weighting="visitation", gamma=0.5)
    np.testing.assert_allclose(found.weights, [2 / 3, 1 / 3, 0.5, 0.5], rtol=1e-10)


def test_the_end_is_never_averaged_with_live_states() -> None:
    """Two live states share the end's cluster: one ends with 1/2, the other never."""
    P = np.zeros((3, 1, 3))
    P[0, 0, [0, 2]] = 0.5
    P[1, 0, 1] = 1.0
    P[2, 0, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [1.0, 3.0, 0.0], terminal_state=2)
    found = aggregate(mdp, [0, 0, 0])
    assert found.n_clusters == 1
    assert found.mdp.terminal_state == 1
    assert dense(found.mdp)[:, 0].tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert found.mdp.rewards.ravel().tolist() == [2.0, 0.0]
    assert found.labels.tolist() == [0, 0, 1]


def test_an_end_of_its_own_becomes_the_end() -> None:
    mdp, labels = ending(1)
    found = aggregate(mdp, labels)
    assert (found.n_clusters, found.mdp.n_states) == (3, 4)
    only = TabularMDP.from_dense([[[1.0]]], [0.0], terminal_state=0)
    assert aggregate(only, [5]).mdp.n_states == 1


def test_single_states_give_the_model_itself() -> None:
    mdp = sparse_mdp(20, seed=0)
    found = aggregate(mdp, np.arange(20))
    np.testing.assert_array_equal(found.mdp.rewards, mdp.rewards)
    np.testing.assert_allclose(dense(found.mdp), dense(mdp), atol=1e-15)


def test_equal_rewards_stay_what_they_are() -> None:
    P = np.full((7, 1, 7), 1.0 / 7.0)
    mdp = TabularMDP.from_dense(P, np.full(7, 0.1))
    assert aggregate(mdp, np.zeros(7, np.int64)).mdp.rewards.tolist() == [[0.1]]


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e300])
def test_weights_of_any_size(scale: float) -> None:
    mdp = random_mdp(4, seed=0)
    found = aggregate(mdp, [0, 0, 1, 1], weighting=np.full(4, scale))
    np.testing.assert_array_equal(found.weights, 0.5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"labels": [0, 1]}, "labels must be one whole number per state"),
        ({"weighting": "visits"}, "weighting must be one of 'uniform', 'start', 'visitation'"),
        ({"weighting": [1.0, 1.0]}, "weighting must be a name or 4 numbers"),
        ({"weighting": [1.0, -1.0, 1.0, 1.0]}, "finite and at least 0, got -1.0"),
        ({"weighting": [1.0, math.nan, 1.0, 1.0]}, "finite and at least 0, got nan"),
    ],
)
def test_bad_arguments_are_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        aggregate(random_mdp(4, seed=0), **{"labels": [0, 0, 1, 1], **kwargs})


# -- lifting -----------------------------------------------------------------------------------


def test_lifted_policies() -> None:
    mdp, labels = ending(0, terminal=0)
    found = aggregate(mdp, labels)
    policy = np.array([1, 0, 1, 0])
    lifted = lift_policy(found, policy)
    assert lifted.tolist() == policy[found.labels].tolist()
    mixed = np.random.default_rng(0).dirichlet(np.ones(2), 4)
    assert lift_policy(found, mixed).shape == (10, 2)
    np.testing.assert_array_equal(lift_policy(found, mixed)[3], mixed[found.labels[3]])
    for bad in (policy[:2], policy * 1.0, mixed[:, :1]):
        with pytest.raises(InvalidArgumentError, match="policy must be actions of shape"):
            lift_policy(found, bad)
    # At the end nobody acts: a table may do without it.
    live = found.labels != found.mdp.terminal_state
    assert lift_policy(found, policy[:3])[live].tolist() == lifted[live].tolist()
    np.testing.assert_array_equal(lift_policy(found, mixed[:3])[live], mixed[found.labels[live]])
    assert lift_policy(found, lambda cluster: 1)[live].tolist() == [1] * 9


def test_swapped_arguments_are_told_the_order() -> None:
    mdp, labels = ending(0)
    found = aggregate(mdp, labels)
    policy = np.zeros(mdp.n_states, int)
    for call, order in (
        (lambda: lift_policy(policy, found), r"lift_policy\(aggregation, policy\)"),  # type: ignore[arg-type]
        (lambda: aggregate(labels, mdp), r"aggregate\(mdp, labels\)"),  # type: ignore[arg-type]
        (lambda: value_loss(0.9, mdp, policy), r"value_loss\(mdp, gamma, policy\)"),  # type: ignore[arg-type]
        (lambda: evaluate_policy(policy, 0.9, mdp), r"evaluate_policy\(mdp, gamma, policy\)"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match=f"the order is {order}"):
            call()


# -- losses ------------------------------------------------------------------------------------


@seeds(10)
def test_losses_are_enclosed(seed: int) -> None:
    mdp = random_mdp(6, n_actions=2, seed=seed)
    policy = np.random.default_rng(seed).integers(2, size=6)
    best = optimal_values_exact(mdp, 0.9)
    own = policy_values_exact(mdp, np.eye(2)[policy].tolist(), 0.9)
    loss = [x - y for x, y in zip(best, own, strict=True)]
    found = value_loss(mdp, 0.9, policy)
    assert found.sup_lower <= max(loss) <= found.sup
    assert found.mean_lower <= sum(loss, Fraction(0)) / 6 <= found.mean
    total = sum((Fraction(float(p)) for p in mdp.start), Fraction(0))
    start = sum((Fraction(float(p)) * x for p, x in zip(mdp.start, loss, strict=True)), Fraction(0))
    assert found.start_lower <= start / total <= found.start
    assert found.sup - found.sup_lower < 1e-6
    assert max(found.mean, found.start) <= found.sup
    base = Exact.of(mdp, 0.9).baseline(mdp.available, mdp.start)
    gain = mean(mdp.start, best) - base
    assert 0.0 <= float(1 - start / total / gain) - found.kept < 1e-6


def test_the_share_is_a_bound_whatever_the_signs() -> None:
    """Rewards below 0 and policies worse than the baseline: shares below 0, and proven so."""
    P = np.zeros((3, 2, 3))
    P[0, :, 1] = P[1:, :, 2] = 1.0
    mdp = TabularMDP.from_dense(
        P, [[-1.0, -2.0], [-4.0, -1.0], [0.0, 0.0]], start=[1.0, 0.0, 0.0], terminal_state=2
    )
    # At γ = 1/2 action 1 for ever is worth -5/2, random actions -11/4, and the best policy -3/2.
    for first, second, share in ((0, 1, 1.0), (1, 1, 0.0), (0, 0, -0.5), (1, 0, -1.5)):
        found = value_loss(mdp, 0.5, [first, second, 0])
        assert share - 1e-9 <= found.kept <= share
    assert value_loss(TabularMDP.from_dense([[[1.0]]], [-1.0]), 0.5, [0]).kept == 1.0
    # One action for ever is best: there is no scale, and what is lost is said all the same.
    steady = TabularMDP.from_dense(np.ones((1, 3, 1)), [[-1.0, -2.0, -6.0]])
    assert value_loss(steady, 0.5, [0]).kept == 1.0
    worse = value_loss(steady, 0.5, [1])
    assert (worse.kept, worse.start_lower > 1.99) == (-np.inf, True)


def test_values_of_another_model_are_refused() -> None:
    mdp = random_mdp(4, seed=0)
    with pytest.raises(InvalidArgumentError, match="optimal must be the values"):
        value_loss(mdp, 0.9, [0] * 4, optimal=value_iteration(mdp, 0.8))


# -- names of actions ----------------------------------------------------------------------------


def matched(
    mdp: TabularMDP, labels: Any, weights: Any, renaming: Any, cluster: int, name: int
) -> tuple[Fraction, list[Fraction]]:
    """Reward and row of a cluster and a name by definition, in exact numbers."""
    count = int(np.max(labels)) + 1
    members = [s for s in range(mdp.n_states) if labels[s] == cluster]
    total = sum(Fraction(float(weights[s])) for s in members)
    paid, row = Fraction(0), [Fraction(0)] * count
    for s in members:
        share = Fraction(float(weights[s])) / total
        own = [a for a in range(mdp.n_actions) if mdp.available[s, a]]
        called = [a for a in own if renaming[s, a] == name] or own[:1]
        for a in called:
            paid += share / len(called) * Fraction(float(mdp.rewards[s, a]))
            for t, mass in lifted_exact(mdp, list(labels), s, a).items():
                row[t] += share / len(called) * mass
    return paid, row


@grid(seed=range(20), by_name=[False, True])
def test_rows_and_rewards_are_averages_over_matched_actions(seed: int, by_name: bool) -> None:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(9, 4, seed=seed)
    if seed % 2:
        mdp, _ = ending(seed, terminal=4)
    if by_name or seed % 4:
        mdp = with_random_actions(mdp, rng)
    given = rng.integers(3, size=mdp.n_states)
    renaming = None if by_name else random_renaming(mdp, given, rng)
    raw = rng.random(mdp.n_states)
    found = aggregate(mdp, given, renaming=renaming, weighting=raw)
    names = own_names(mdp) if renaming is None else renaming
    np.testing.assert_array_equal(found.renaming, names)
    small = found.mdp
    assert small.n_actions == (mdp.n_actions if by_name else names.max() + 1)
    P = dense(small)
    for cluster in range(small.n_states):
        members = found.members(cluster)
        has = {int(name) for name in names[members].ravel() if name >= 0}
        assert set(np.flatnonzero(small.available[cluster]).tolist()) == has
        for name in has:
            paid, row = matched(mdp, found.labels, raw, names, cluster, name)
            assert small.rewards[cluster, name] == pytest.approx(float(paid), abs=1e-14)
            np.testing.assert_allclose(P[cluster, name], np.array(row, float), atol=1e-14)


def test_a_renaming_by_name_is_none() -> None:
    mdp = random_mdp(6, 3, seed=0)
    found = aggregate(mdp, [0, 0, 1, 1, 2, 2], renaming=own_names(mdp))
    assert found.renaming is None
    assert found.mdp == aggregate(mdp, [0, 0, 1, 1, 2, 2]).mdp


@seeds(10)
def test_lifted_policies_name_actions_that_states_have(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = with_random_actions(random_mdp(12, 5, seed=seed), rng)
    given = rng.integers(4, size=12)
    for renaming in (None, random_renaming(mdp, given, rng)):
        found = aggregate(mdp, given, renaming=renaming)
        small = found.mdp
        names = rng.integers(small.n_actions, size=small.n_states)  # some that clusters lack
        lifted = lift_policy(found, names)
        played = small.played(names)
        expected = [
            taken(mdp, found.renaming, s, int(played[c])) for s, c in enumerate(found.labels)
        ]
        assert lifted.tolist() == expected
        assert mdp.available[np.arange(12), lifted].all()


@seeds(10)
def test_lifted_probabilities_are_spread_evenly_and_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = with_random_actions(random_mdp(12, 6, seed=seed), rng, share=0.9)
    given = rng.integers(3, size=12)
    found = aggregate(mdp, given, renaming=random_renaming(mdp, given, rng))
    names = found.renaming
    assert names is not None
    told = rng.dirichlet(np.ones(found.mdp.n_actions), size=found.mdp.n_states)
    told = np.where(found.mdp.available, told, 0.0)
    told /= told.sum(axis=1, keepdims=True)
    lifted = lift_policy(found, told)
    assert (lifted[~mdp.available] == 0.0).all()
    for s, cluster in enumerate(found.labels):
        for name in np.flatnonzero(found.mdp.available[cluster]).tolist():
            parts = lifted[s, names[s] == name]
            assert sum(map(Fraction, parts.tolist())) == Fraction(float(told[cluster, name]))
            np.testing.assert_allclose(parts, told[cluster, name] / parts.size, rtol=1e-14)


def test_clusters_of_single_states_with_renamed_actions_plan_as_the_model_does() -> None:
    rng = np.random.default_rng(3)
    mdp = random_mdp(8, 4, seed=3)
    renaming = np.stack([rng.permutation(4) for _ in range(8)])
    found = aggregate(mdp, np.arange(8), renaming=renaming)
    best = value_iteration(found.mdp, 0.9)
    np.testing.assert_allclose(best.upper, value_iteration(mdp, 0.9).upper, atol=1e-7)
    assert value_loss(mdp, 0.9, lift_policy(found, best)).sup < 1e-6


@pytest.mark.parametrize(
    ("renaming", "message"),
    [
        ([[0, 1], [0, 0], [0, 1]], "same names in all states of a cluster"),
        ([[0, 2], [0, 2], [0, 1]], "must give a name in"),
        ([[0, -1], [0, -1], [0, 1]], "must give a name in"),
        ([[0, 1]], "renaming must have shape"),
    ],
)
def test_bad_renamings_are_refused(renaming: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        aggregate(random_mdp(3, 2, seed=0), [0, 0, 1], renaming=renaming)


def test_the_end_is_taken_out_before_names_are_compared() -> None:
    P = np.eye(3)[[[2, 2], [2, 2], [2, 2]]]
    mdp = TabularMDP.from_dense(P, np.zeros((3, 2)), order="sas", terminal_state=2)
    found = aggregate(mdp, [0, 0, 0], renaming=[[0, 1], [1, 0], [0, 0]])
    assert found.mdp.available.tolist() == [[True, True], [True, False]]


# -- action sets ---------------------------------------------------------------------------------


@seeds(10)
def test_visitation_acts_at_random_among_the_actions_of_a_state(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = with_random_actions(random_mdp(7, 3, seed=seed), rng)
    walk = np.array([dense(mdp)[s, mdp.available[s]].mean(axis=0) for s in range(7)])
    visits = np.linalg.solve(np.eye(7) - 0.9 * walk.T, mdp.start)
    found = aggregate(mdp, np.zeros(7, int), weighting="visitation", gamma=0.9)
    np.testing.assert_allclose(found.weights, visits / visits.sum(), atol=1e-9)


@seeds(10)
def test_what_a_state_lacks_is_never_planned(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = with_random_actions(random_mdp(7, 4, seed=seed), rng)
    states = np.arange(7)
    best = value_iteration(mdp, 0.9)
    assert mdp.available[states, best.policy].all()
    told = rng.integers(4, size=7)
    own = evaluate_policy(mdp, 0.9, told)
    assert own.policy.tolist() == mdp.played(told).tolist()
    weights = rng.dirichlet(np.ones(4), size=7)
    mixed = evaluate_policy(mdp, 0.9, weights)
    assert (mixed.policy[~mdp.available] == 0.0).all()
    np.testing.assert_allclose(mixed.policy.sum(axis=1), 1.0)
    exact = policy_values_exact(mdp, weights.tolist(), 0.9)  # the padding does what it should
    np.testing.assert_allclose(np.array(exact, float), mixed.upper, atol=1e-7)


class Masked:
    """Asks for masks, as MaskablePPO does, and would do what is not there without."""

    def predict(
        self, observation: Any, deterministic: bool = False, action_masks: Any = None
    ) -> tuple[Any, None]:
        wanted = np.array([1.0, 2.0, 3.0])
        if action_masks is not None:
            wanted = np.where(action_masks, wanted, 0.0)
        return wanted.argmax(), None


def test_agents_are_told_which_actions_there_are() -> None:
    mask = np.array([[True, True, False], [True, False, True], [False, True, False]])
    mdp = random_mdp(3, 3, seed=0).with_available(mask)
    assert policy_table(Masked(), mdp).tolist() == [1, 2, 1]
    assert policy_table(lambda cluster: 2, mdp).tolist() == [0, 2, 1]
    assert policy_table(Masked(), random_mdp(3, 3, seed=0)).tolist() == [2, 2, 2]


def test_graphs_have_no_edges_for_what_clusters_lack() -> None:
    pytest.importorskip("networkx")
    mask = np.array([[True, False], [False, True], [True, True]])
    mdp = random_mdp(3, 2, seed=0).with_available(mask)
    graph = aggregate(mdp, [0, 1, 2]).to_networkx()
    edges = {(begin, action) for begin, _, action in graph.edges(keys=True)}
    assert edges == {(0, 0), (1, 1), (2, 0), (2, 1)}
