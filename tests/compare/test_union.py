"""Two models in one: every state does there what it does in its own model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import (
    InvalidArgumentError,
    TabularMDP,
    bisimulation_metric,
    compare_models,
    estimate_mdp,
    value_iteration,
)
from bisim_abstract._compare.union import align_actions
from bisim_abstract._model.rows import rows_taken
from bisim_abstract.parts import ModelUnion, disjoint_union, random_mdp, sparse_mdp
from tests.support.relations import renamed_mdp
from tests.support.worlds import dense, mdps, permuted


def with_end(seed: int, at: int, n: int = 4) -> TabularMDP:
    """A random model of two actions whose state `at` is the end of episodes."""
    mdp = random_mdp(n, 2, seed=seed)
    P, R = dense(mdp), mdp.rewards.copy()
    P[at], R[at] = np.eye(n)[at], 0.0
    return TabularMDP.from_dense(P, R, order="sas", terminal_state=at)


def check_part(part: TabularMDP, union: ModelUnion, places: np.ndarray) -> None:
    """Rows, rewards and actions of a part are in the union, at the places that are named."""
    whole = union.model
    assert np.unique(places).size == part.n_states
    for s in range(part.n_states):
        is_end = s == part.terminal_state
        for a in range(part.n_actions):
            successors, probs = part.successors(s, a)
            order = np.argsort(places[successors])
            found = whole.successors(int(places[s]), a)
            np.testing.assert_array_equal(found[0], places[successors][order])
            np.testing.assert_array_equal(found[1], probs[order])
            assert whole.rewards[places[s], a] == part.rewards[s, a]
            assert is_end or whole.available[places[s], a] == part.available[s, a]


@given(first=mdps(), second=mdps(), data=st.data())
def test_parts_are_as_they_were(first: TabularMDP, second: TabularMDP, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(second.n_states)))
    second = permuted(second, order)
    union = disjoint_union(first, second, relation="lax")
    for part, places in ((first, union.first), (second, union.second)):
        check_part(part, union, places)
        assert union.model.start[places].sum() == pytest.approx(0.5)
    assert union.model.n_states == first.n_states + second.n_states
    assert not np.intersect1d(union.first, union.second).size
    assert not union.has_shared_end


@pytest.mark.parametrize("ends", [(0, 3), (3, 3), (1, None), (None, 0), (2, 0)])
def test_there_is_one_end_for_both(ends: tuple[int | None, int | None]) -> None:
    parts = [
        random_mdp(4, 2, seed=k) if end is None else with_end(k, end) for k, end in enumerate(ends)
    ]
    union = disjoint_union(*parts)
    check_part(parts[0], union, union.first)
    check_part(parts[1], union, union.second)
    both = None not in ends
    assert union.model.n_states == 8 - both
    assert union.model.terminal_state == 7 - both
    assert union.has_shared_end is both
    assert ("one end" in repr(union)) is both


def test_the_end_has_the_actions_of_either() -> None:
    one = with_end(0, 3).with_available(np.array([[1, 1], [1, 0], [1, 1], [1, 0]], bool))
    two = with_end(1, 3).with_available(np.array([[1, 1], [1, 0], [1, 1], [0, 1]], bool))
    union = disjoint_union(one, two)
    check_part(one, union, union.first)
    check_part(two, union, union.second)
    assert union.model.available[6].tolist() == [True, True]


def test_values_and_distances_are_those_of_the_parts() -> None:
    first, second = with_end(0, 1), with_end(1, 3)
    union = disjoint_union(first, second)
    whole = bisimulation_metric(union.model, 0.9)
    values = value_iteration(union.model, 0.9).upper
    for part, places in ((first, union.first), (second, union.second)):
        np.testing.assert_allclose(values[places], value_iteration(part, 0.9).upper, atol=1e-7)
        own = bisimulation_metric(part, 0.9)
        found = whole.upper[np.ix_(places, places)]
        np.testing.assert_allclose(found, own.upper, atol=1e-7)


def test_actions_must_be_as_many_unless_names_do_not_count() -> None:
    first, second = random_mdp(3, 2, seed=0), random_mdp(2, 3, seed=1)
    with pytest.raises(InvalidArgumentError, match=r"got 2 and 3.*relation='lax'"):
        disjoint_union(first, second)
    for pair in ((first, second), (second, first)):
        union = disjoint_union(*pair, relation="lax")
        check_part(pair[0], union, union.first)
        check_part(pair[1], union, union.second)
        fewer = union.first if pair[0] is first else union.second
        assert not union.model.available[fewer, 2].any()
        assert union.model.available[fewer, :2].all()


def test_padding_keeps_action_sets() -> None:
    first, second = renamed_mdp(3, n_actions=3), renamed_mdp(4, n_actions=2)
    union = disjoint_union(first, second, relation="lax")
    check_part(first, union, union.first)
    check_part(second, union, union.second)


# -- estimates ---------------------------------------------------------------------------------


def estimated(seed: int, alpha: float = 0.05) -> TabularMDP:
    rng = np.random.default_rng(seed)
    return estimate_mdp(
        rng.integers(3, size=60),
        rng.integers(2, size=60),
        rng.random(60),
        rng.integers(3, size=60),
        rng.random(60) < 0.1,
        n_states=3,
        n_actions=2,
        reward_range=(0.0, 1.0),
        alpha=alpha,
    )


def test_radii_carry_over_and_failures_add_up() -> None:
    first, second = estimated(0), estimated(1, alpha=0.1)
    union = disjoint_union(first, second)
    found = union.model.estimate
    assert found is not None
    assert 0.15 <= found.alpha <= 0.15 + 1e-12
    for part, places in ((first, union.first), (second, union.second)):
        own = part.estimate
        assert own is not None
        np.testing.assert_array_equal(found.row_radius[places], own.row_radius)
        np.testing.assert_array_equal(found.reward_radius[places], own.reward_radius)
        np.testing.assert_array_equal(found.counts[places], own.counts)


def test_an_exact_part_has_no_radii() -> None:
    exact = dataclasses.replace(with_end(5, 3), rewards=with_end(5, 3).rewards * 7.0)
    union = disjoint_union(estimated(0), exact)
    found = union.model.estimate
    assert found is not None
    assert found.alpha == 0.05
    assert not found.row_radius[union.second].any()
    assert not found.reward_radius[union.second].any()
    assert found.row_radius[union.first].any()
    assert found.reward_range[1] == exact.rewards.max() > 1.0


def test_nothing_sure_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"0\.6 and 0\.4, together 1.*smaller alpha"):
        disjoint_union(estimated(0, alpha=0.6), estimated(1, alpha=0.4))


def test_an_estimate_with_action_sets_is_padded() -> None:
    lacking = estimated(0).with_available(np.array([[1, 1], [0, 1], [1, 0], [1, 1]], bool))
    union = disjoint_union(lacking, random_mdp(3, 3, seed=0), relation="lax")
    check_part(lacking, union, union.first)


def test_metadata_say_what_it_is_made_of() -> None:
    first, second = random_mdp(3, 2, seed=0), with_end(1, 3)
    made = disjoint_union(first, second).model.metadata["union_of"]
    assert [part["fingerprint"] for part in made] == [first.fingerprint, second.fingerprint]
    assert made[0]["metadata"] == {"generator": "random_mdp"}


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"disjoint_union\(first, second\)"):
        disjoint_union(random_mdp(2, seed=0), 0.9)  # type: ignore[arg-type]


def test_actions_are_aligned_by_name() -> None:
    one = sparse_mdp(4, 3, support=2, seed=0).with_names(actions=["a", "b", "c"])
    order = np.array([2, 0, 1])
    rows = (np.arange(4)[:, None] * 3 + order).ravel()
    indptr, entries = rows_taken(one.indptr, rows)
    two = TabularMDP(
        indptr=indptr,
        indices=one.indices[entries],
        probs=one.probs[entries],
        rewards=one.rewards[:, order],
    ).with_names(actions=["c", "a", "b"])
    same = align_actions(one, two)
    assert same[0] == same[1] == one
    # Where one of them lacks an action, its states do; the order is that of the first.
    short = two.restrict(range(4)).with_available([[True, True, False]] * 4)
    left, right = align_actions(one, short)
    assert left == one
    assert right.names.actions == ("a", "b", "c")
    assert right.available.tolist() == [[True, False, True]] * 4
    assert (right.rewards[:, [0, 2]] == one.rewards[:, [0, 2]]).all()
    assert (right.rewards[:, 1] == right.rewards[:, 0]).all()
    other = one.with_names(actions=["a", "b", "d"])
    left, right = align_actions(one, other)
    assert left.names.actions == right.names.actions == ("a", "b", "c", "d")
    assert left.available[0].tolist() == [True, True, True, False]
    assert right.available[0].tolist() == [True, True, False, True]
    # Numbers decide where names do not.
    assert align_actions(one, one.with_names(actions=["x", "x", "y"]))[0] is one


def test_a_copy_with_its_actions_in_another_order_is_the_same() -> None:
    one = sparse_mdp(4, 2, support=2, seed=1).with_names(actions=["left", "right"])
    indptr, entries = rows_taken(one.indptr, (np.arange(4)[:, None] * 2 + np.array([1, 0])).ravel())
    two = TabularMDP(
        indptr=indptr,
        indices=one.indices[entries],
        probs=one.probs[entries],
        rewards=one.rewards[:, ::-1],
    )
    assert compare_models(one, two.with_names(actions=["right", "left"]), 0.9).are_bisimilar
    assert not compare_models(one, two, 0.9).are_bisimilar
