"""Single linkage of two arms: against a plain union-find, at every threshold that matters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import InvalidArgumentError, Resources
from bisim_abstract._base.labels import by_first_appearance, numbered
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._linkage.forests import Forest, count_clusters, spanning_forest
from bisim_abstract._linkage.thresholds import (
    CertifiedInterval,
    Merge,
    best_interval,
    certified_intervals,
    certified_merges,
    middle,
    wide_intervals,
)
from bisim_abstract.parts import sparse_mdp
from tests.support.oracles import first_appearance, refines

Link = tuple[int, int, float]
TwoArms = tuple[int, list[Link], list[Link]]

# Few values make many ties; zeros and neighbouring floats are among them.
FEW = (0.0, -0.0, 5e-324, 0.25, 0.5, float(np.nextafter(0.5, 1.0)), 1.0, 3.0)
weights = st.sampled_from(FEW) | st.floats(0.0, 1e300, allow_subnormal=True)


@st.composite
def graphs(draw: st.DrawFn, max_states: int = 8) -> tuple[int, list[tuple[int, int]]]:
    """States and links between some of them, each pair at most once, in either direction."""
    n = draw(st.integers(1, max_states))
    pairs = list(itertools.combinations(range(n), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return n, [pair if draw(st.booleans()) else pair[::-1] for pair in chosen]


@st.composite
def links(draw: st.DrawFn) -> tuple[int, list[Link]]:
    n, pairs = draw(graphs())
    return n, [(s, t, draw(weights)) for s, t in pairs]


@st.composite
def two_arms(draw: st.DrawFn) -> TwoArms:
    """The same links with a lower and an upper weight each."""
    n, pairs = draw(graphs(6))
    lower, upper = [], []
    for s, t in pairs:
        low, high = sorted((draw(weights), draw(weights)))
        if draw(st.booleans()):
            high = low
        lower.append((s, t, low))
        upper.append((s, t, high))
    return n, lower, upper


def forest(n: int, edges: Sequence[Link]) -> Forest:
    first = np.array([s for s, _, _ in edges], np.int64)
    second = np.array([t for _, t, _ in edges], np.int64)
    return spanning_forest(n, first, second, np.array([w for _, _, w in edges], np.float64))


def clusters(n: int, edges: Sequence[Link], tau: float) -> list[int]:
    """Components of the links of weight at most tau, numbered by first appearance."""
    parent = list(range(n))

    def root(x: int) -> int:
        while parent[x] != x:
            x = parent[x]
        return x

    for s, t, weight in edges:
        if weight <= tau:
            parent[root(s)] = root(t)
    return first_appearance([root(x) for x in range(n)])


def thresholds(*arms: Sequence[Link]) -> list[float]:
    """All weights, their neighbours, what lies between them, below and beyond."""
    steps = sorted({0.0, *(weight for edges in arms for _, _, weight in edges)})
    found = {*steps, -1.0, steps[-1] * 2 + 1.0, math.inf}
    for step in steps:
        found |= {math.nextafter(step, math.inf), math.nextafter(step, -math.inf)}
    found |= {low + (high - low) / 2 for low, high in itertools.pairwise(steps)}
    return sorted(found)


# -- one forest --------------------------------------------------------------------------------


@given(graph=links())
def test_a_forest_is_single_linkage_at_every_threshold(graph: tuple[int, list[Link]]) -> None:
    n, edges = graph
    tree = forest(n, edges)
    taus = thresholds(edges)
    expected = [clusters(n, edges, tau) for tau in taus]
    for tau, labels in zip(taus, expected, strict=True):
        assert tree.labels(tau).tolist() == labels, tau
        assert int(tree.count(tau)) == max(labels) + 1, tau
    assert tree.count(taus).tolist() == [max(labels) + 1 for labels in expected]


@given(graph=links())
def test_a_forest_is_made_of_links_and_has_no_cycle(graph: tuple[int, list[Link]]) -> None:
    n, edges = graph
    tree = forest(n, edges)
    assert tree.n_states == n
    assert (np.diff(tree.weights) >= 0.0).all()
    chosen = list(
        zip(tree.first.tolist(), tree.second.tolist(), tree.weights.tolist(), strict=True)
    )
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(edges)
    assert len(chosen) == n - len(set(clusters(n, edges, math.inf)))


@given(graph=links(), data=st.data())
def test_the_order_of_links_does_not_matter(
    graph: tuple[int, list[Link]], data: st.DataObject
) -> None:
    n, edges = graph
    tree, other = forest(n, edges), forest(n, data.draw(st.permutations(edges)))
    np.testing.assert_array_equal(tree.weights, other.weights)
    for tau in thresholds(edges):
        np.testing.assert_array_equal(tree.labels(tau), other.labels(tau))


@given(graph=links(), data=st.data())
def test_of_parallel_links_the_lightest_counts(
    graph: tuple[int, list[Link]], data: st.DataObject
) -> None:
    """The same two states may be linked many times, in either direction."""
    n, edges = graph
    more = list(edges)
    for s, t, _ in edges:
        for weight in data.draw(st.lists(weights, max_size=2)):
            more.append((t, s, weight) if data.draw(st.booleans()) else (s, t, weight))
    more = data.draw(st.permutations(more))
    tree = forest(n, more)
    for tau in thresholds(more):
        assert tree.labels(tau).tolist() == clusters(n, more, tau)
        assert int(tree.count(tau)) == len(set(clusters(n, more, tau)))
    chosen = set(zip(tree.first.tolist(), tree.second.tolist(), tree.weights.tolist(), strict=True))
    assert chosen <= set(more)


@given(graph=links())
def test_clusters_are_counted_without_a_forest(graph: tuple[int, list[Link]]) -> None:
    n, edges = graph
    first = np.array([s for s, _, _ in edges], np.int64)
    second = np.array([t for _, t, _ in edges], np.int64)
    values = np.array([w for _, _, w in edges], np.float64)
    for tau in thresholds(edges):
        assert count_clusters(n, first, second, values <= tau) == len(set(clusters(n, edges, tau)))


def test_no_links_leave_every_state_alone() -> None:
    tree = forest(4, [])
    assert tree.weights.size == tree.first.size == tree.second.size == 0
    assert tree.count([-1.0, 0.0, math.inf]).tolist() == [4, 4, 4]
    assert tree.labels(math.inf).tolist() == [0, 1, 2, 3]


def test_links_of_weight_zero_link() -> None:
    tree = forest(5, [(1, 3, 0.0), (3, 0, 0.0), (0, 1, 0.0), (2, 4, 1.0)])
    assert tree.weights.tolist() == [0.0, 0.0, 1.0]
    assert tree.labels(0.0).tolist() == [0, 0, 1, 0, 2]
    assert tree.labels(math.nextafter(0.0, -1.0)).tolist() == [0, 1, 2, 3, 4]
    assert tree.labels(1.0).tolist() == [0, 0, 1, 0, 1]
    assert tree.count([0.0, 0.999, 1.0]).tolist() == [3, 3, 2]


def test_tied_links_join_at_once() -> None:
    ring = [(k, (k + 1) % 6, 2.0) for k in range(6)]
    tree = forest(6, ring)
    assert tree.weights.tolist() == [2.0] * 5
    assert int(tree.count(math.nextafter(2.0, 0.0))) == 6
    assert int(tree.count(2.0)) == 1
    assert tree.labels(2.0).tolist() == [0] * 6


def test_a_large_graph() -> None:
    n = 200
    rng = np.random.default_rng(3)
    s, t = np.triu_indices(n, 1)
    kept = rng.permutation(s.size)[:600]
    values = np.round(rng.random(600), 2)
    edges = list(zip(s[kept].tolist(), t[kept].tolist(), values.tolist(), strict=True))
    tree = forest(n, edges)
    for tau in (0.0, 0.05, 0.1, 0.2, 0.305, 0.5, 1.0):
        expected = clusters(n, edges, tau)
        assert tree.labels(tau).tolist() == expected
        assert int(tree.count(tau)) == len(set(expected))


# -- numbering ---------------------------------------------------------------------------------


@given(
    labels=st.sampled_from([(0, 5), (0, 30), (-5, 5), (2**60, 2**60 + 5)]).flatmap(
        lambda ends: st.lists(st.integers(*ends), min_size=1)
    )
)
def test_numbered_by_first_appearance(labels: list[int]) -> None:
    result, members = by_first_appearance(np.array(labels))
    assert result.dtype == members.dtype == np.int64
    assert result.tolist() == first_appearance(labels) == numbered(labels).tolist()
    assert members.tolist() == sorted(labels.index(label) for label in set(labels))
    np.testing.assert_array_equal(numbered(result), result)


@pytest.mark.parametrize("labels", [["b", "a", "b"], [0.5, -1.0, 0.5], [True, False, True], []])
def test_anything_that_can_be_sorted_is_numbered(labels: list[Any]) -> None:
    assert numbered(labels).tolist() == first_appearance(labels)
    assert numbered(labels).dtype == np.int64


# -- two arms ----------------------------------------------------------------------------------


def check_intervals(n: int, lower: Sequence[Link], upper: Sequence[Link]) -> None:
    """The arms agree exactly inside the intervals, which are sorted, apart and maximal."""
    below, above = forest(n, lower), forest(n, upper)
    found = certified_intervals(below, above)
    assert all(0.0 <= part.low < part.high for part in found)
    for part, following in itertools.pairwise(found):
        assert part.high <= following.low
        assert part.high < following.low or part.n_clusters != following.n_clusters
    assert found
    assert found[-1].high == math.inf
    assert found[-1].n_clusters == len(set(clusters(n, upper, math.inf)))
    for tau in thresholds(lower, upper):
        if tau < 0.0 or tau == math.inf:
            continue
        fine, coarse = clusters(n, upper, tau), clusters(n, lower, tau)
        holding = [part for part in found if part.low <= tau < part.high]
        assert len(holding) == (fine == coarse), tau
        if holding:
            assert holding[0].n_clusters == max(fine) + 1
            assert above.labels(tau).tolist() == below.labels(tau).tolist() == fine


@given(arms=two_arms())
def test_upper_clusters_refine_lower_ones(arms: TwoArms) -> None:
    n, lower, upper = arms
    below, above = forest(n, lower), forest(n, upper)
    for tau in thresholds(lower, upper):
        fine, coarse = above.labels(tau).tolist(), below.labels(tau).tolist()
        assert refines(fine, coarse)
        assert (fine == coarse) == (int(above.count(tau)) == int(below.count(tau)))


@given(arms=two_arms())
def test_certified_intervals_are_where_the_arms_agree(arms: TwoArms) -> None:
    check_intervals(*arms)


@given(graph=links())
def test_equal_arms_agree_everywhere(graph: tuple[int, list[Link]]) -> None:
    n, edges = graph
    found = certified_intervals(forest(n, edges), forest(n, edges))
    assert found[0].low == 0.0
    assert all(part.high == following.low for part, following in itertools.pairwise(found))
    counts = [part.n_clusters for part in found]
    assert counts == sorted(set(counts), reverse=True)


def members_of(nodes: list[Merge]) -> list[set[int]]:
    """The leaves below each node."""
    found: list[set[int]] = []
    for k, node in enumerate(nodes):
        found.append(set().union(*(found[c] for c in node.children)) if node.children else {k})
    return found


def clusters_of(labels: npt.NDArray[np.int64], leaves: npt.NDArray[np.int64]) -> list[set[int]]:
    return [set(leaves[labels == k].tolist()) for k in range(int(labels.max()) + 1)]


@given(arms=two_arms(), pick=st.integers(0, 10))
def test_merges_are_the_clusters_of_both_arms(arms: TwoArms, pick: int) -> None:
    """At every threshold, those alive are the sets that are clusters of either arm there."""
    n, lower, upper = arms
    below, above = forest(n, lower), forest(n, upper)
    intervals = certified_intervals(below, above)
    leaf = intervals[pick % len(intervals)]
    labels = above.labels(leaf.low)
    nodes = certified_merges(below, above, labels)
    members = members_of(nodes)
    assert [node.children for node in nodes[: leaf.n_clusters]] == [()] * leaf.n_clusters
    for node, leaves in zip(nodes, members, strict=True):
        assert node.start <= node.lower <= node.upper < node.end
        if node.children:
            assert len(node.children) > 1
            assert node.start == min(nodes[child].end for child in node.children)
            assert len(leaves) == sum(len(members[child]) for child in node.children)
            if len(node.children) == 2:
                assert node.start == node.lower
    for tau in [t for t in thresholds(lower, upper) if leaf.low <= t < np.inf]:
        both = [clusters_of(arm.labels(tau), labels) for arm in (below, above)]
        expected = [cluster for cluster in both[0] if cluster in both[1]]
        alive = [x for x, node in zip(members, nodes, strict=True) if node.upper <= tau < node.end]
        assert sorted(map(sorted, alive)) == sorted(map(sorted, expected))


def test_merges_by_hand() -> None:
    pairs = [(0, 1), (1, 2), (2, 3)]
    lower = [(s, t, w) for (s, t), w in zip(pairs, (0.1, 0.3, 4.0), strict=True)]
    upper = [(s, t, w) for (s, t), w in zip(pairs, (0.5, 0.4, 5.0), strict=True)]
    assert certified_merges(forest(4, lower), forest(4, upper), np.arange(4)) == [
        Merge((), 0.0, 0.0, 0.0, 0.1),
        Merge((), 0.0, 0.0, 0.0, 0.1),
        Merge((), 0.0, 0.0, 0.0, 0.3),
        Merge((), 0.0, 0.0, 0.0, 4.0),
        Merge((0, 1, 2), 0.1, 0.3, 0.5, 4.0),  # 0-1 or 1-2 may be first
        Merge((4, 3), 4.0, 4.0, 5.0, np.inf),
    ]


def test_intervals_by_hand() -> None:
    pairs = [(0, 1), (1, 2), (2, 3)]
    lower = [(s, t, w) for (s, t), w in zip(pairs, (0.0, 1.0, 4.0), strict=True)]
    upper = [(s, t, w) for (s, t), w in zip(pairs, (0.5, 2.0, 4.0), strict=True)]
    assert certified_intervals(forest(4, lower), forest(4, upper)) == [
        CertifiedInterval(0.5, 1.0, 3),
        CertifiedInterval(2.0, 4.0, 2),
        CertifiedInterval(4.0, math.inf, 1),
    ]


def test_no_links_are_certified_at_every_threshold() -> None:
    assert certified_intervals(forest(3, []), forest(3, [])) == [
        CertifiedInterval(0.0, math.inf, 3)
    ]


# -- the most useful interval ------------------------------------------------------------------

INTERVALS = [
    CertifiedInterval(0.0, 0.01, 10),
    CertifiedInterval(0.01, 0.02, 7),  # ratio 2
    CertifiedInterval(0.1, 0.5, 4),  # ratio 5
    CertifiedInterval(0.6, 0.9, 4),  # ratio 1.5
    CertifiedInterval(1.0, 2.0, 2),  # ratio 2
    CertifiedInterval(3.0, math.inf, 1),
]


def test_the_widest_interval_by_ratio_is_the_best() -> None:
    assert best_interval(INTERVALS, 10) == INTERVALS[2]
    assert best_interval(INTERVALS[::-1], 10) == INTERVALS[2]
    assert best_interval([*INTERVALS[:2], *INTERVALS[3:]], 10) == INTERVALS[1]  # first of equals
    assert best_interval([], 10) is None


def test_one_cluster_and_as_many_as_states_are_of_no_use_unless_asked_for() -> None:
    assert best_interval([INTERVALS[0], INTERVALS[-1]], 10) is None
    assert best_interval(INTERVALS, 10, n_clusters=10) == INTERVALS[0]
    assert best_interval(INTERVALS, 10, n_clusters=1) == INTERVALS[-1]
    assert best_interval(INTERVALS, 11) == INTERVALS[0]  # merges something, from 0 on
    # The last one is no better than any other if several clusters never become one.
    apart = [CertifiedInterval(0.5, 0.7, 5), CertifiedInterval(3.0, math.inf, 2)]
    assert best_interval(apart, 10) == apart[1]


def test_numbers_of_clusters_asked_for() -> None:
    assert best_interval(INTERVALS, 10, n_clusters=4) == INTERVALS[2]
    assert best_interval(INTERVALS, 10, n_clusters=2) == INTERVALS[4]
    assert best_interval(INTERVALS, 10, n_clusters=5) is None


def test_thresholds_below_the_resolution_do_not_count() -> None:
    exact = [CertifiedInterval(0.0, 1e-14, 6), CertifiedInterval(0.2, 0.5, 3)]
    assert best_interval(exact, 10) == exact[0]
    assert best_interval(exact, 10, floor=1e-9) == exact[1]
    assert best_interval(exact, 10, n_clusters=6, floor=1e-9) is None
    assert best_interval(exact, 10, floor=1e-14) == exact[1]  # nothing is left of the first
    wide = [CertifiedInterval(0.0, 1e-3, 6), CertifiedInterval(0.2, 0.5, 3)]
    assert best_interval(wide, 10, floor=1e-9) == wide[0]
    assert best_interval(wide, 10, floor=0.9e-3) == wide[1]


@pytest.mark.parametrize(
    ("low", "high", "floor", "expected"),
    [
        (1.0, 4.0, 0.0, 2.0),
        (0.0, 4.0, 1.0, 2.0),
        (0.0, 4.0, 0.0, 0.0),
        (2.0, math.inf, 0.0, 4.0),
        (0.0, math.inf, 0.5, 1.0),
        (0.0, math.inf, 0.0, 1.0),
        (1.0, math.nextafter(1.0, 2.0), 0.0, 1.0),
        (1e-320, 1e300, 0.0, 1e-10),
        (1e-200, 1e-198, 0.0, 1e-199),
        (1e200, 1e202, 0.0, 1e201),
        (0.0, 5e-324, 0.0, 0.0),
        (1.0, 2.0, 3.0, 1.0),
    ],
)
def test_the_middle_is_the_geometric_mean(
    low: float, high: float, floor: float, expected: float
) -> None:
    found = middle(CertifiedInterval(low, high, 3), floor=floor)
    assert found == pytest.approx(expected, rel=1e-3)
    assert low <= found < high


@given(ends=st.tuples(weights, weights).filter(lambda x: x[0] != x[1]), floor=weights)
def test_the_middle_is_always_inside(ends: tuple[float, float], floor: float) -> None:
    low, high = sorted(ends)
    for top in (high, math.inf):
        assert low <= middle(CertifiedInterval(low, top, 3), floor=floor) < top


def test_arms_over_different_states_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"3 and 4 states"):
        certified_intervals(forest(3, []), forest(4, []))


MODELS: list[Callable[[], Arms]] = [
    lambda: Arms(sparse_mdp(14, 2, support=2, seed=1), 0.5, resources=Resources(threads=1)),
    lambda: Arms(sparse_mdp(14, 2, support=1, seed=2), 0.9, resources=Resources(threads=1)),
    lambda: Arms(sparse_mdp(14, 1, support=3, seed=3), 0.0, resources=Resources(threads=1)),
    lambda: Arms(
        sparse_mdp(14, 2, support=3, seed=4),
        0.7,
        lower_start="zero",
        upper_start="constant",
        resources=Resources(threads=1),
    ),
]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("sweeps", [0, 1, 5, 30])
def test_the_arms_of_a_model(make: Callable[[], Arms], sweeps: int) -> None:
    arms = make()
    n = arms.mdp.n_states
    rng = np.random.default_rng(9)
    arms.cover(rng.integers(n, size=40), rng.integers(n, size=40))
    for _ in range(sweeps):
        arms.sweep()
    s, t = arms.pairs()

    def edges(values: npt.NDArray[np.float64]) -> list[Link]:
        return list(zip(s.tolist(), t.tolist(), values.tolist(), strict=True))

    lower, upper = edges(arms.lower), edges(arms.upper)
    check_intervals(n, lower, upper)
    below, above = forest(n, lower), forest(n, upper)
    for tau in thresholds(lower, upper):
        assert refines(above.labels(tau).tolist(), below.labels(tau).tolist())


def test_no_threshold_is_chosen_from_between_two_roundings_of_one_number() -> None:
    thin = CertifiedInterval(100.0, 100.00000000005, 2)
    wide = CertifiedInterval(1.0, 1.5, 7)
    last = CertifiedInterval(100.0, np.inf, 1)
    first = CertifiedInterval(0.0, 1e-12, 9)
    assert wide_intervals([first, wide, thin, last]) == [first, wide, last]
