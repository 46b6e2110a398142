"""Models from graphs of NetworkX."""

from __future__ import annotations

import inspect
import io
import json
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Reading, TabularMDP, aggregate
from bisim_abstract._model.frames import model_graph
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import extract_mdp


def shop() -> Any:
    graph = nx.MultiDiGraph()
    graph.add_edge("open", "open", action="wait", probability=0.75, reward=1.0)
    graph.add_edge("open", "shut", action="wait", probability=0.25, reward=5.0)
    graph.add_edge("open", "shut", action="leave")
    return graph


def test_nodes_edges_and_actions() -> None:
    mdp = TabularMDP.from_graph(shop(), start="open")
    assert [mdp.state_name(s) for s in range(2)] == ["open", "shut"]
    assert [mdp.action_name(a) for a in range(2)] == ["wait", "leave"]
    assert mdp.rewards.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert mdp.successors(0, 0)[1].tolist() == [0.75, 0.25]
    assert mdp.successors(0, 1)[0].tolist() == [1]
    assert mdp.absorbing.tolist() == [False, True]
    assert mdp.terminal_state is None
    assert mdp.start.tolist() == [1.0, 0.0]
    assert not mdp.has_action_sets


def test_other_attributes_and_order_of_actions() -> None:
    graph = nx.DiGraph([(0, 1), (1, 0), (1, 1)])
    nx.set_edge_attributes(graph, {(0, 1): 2.0, (1, 0): 1.0, (1, 1): 3.0}, "weight")
    nx.set_edge_attributes(graph, {(1, 0): 8.0}, "pay")
    mdp = TabularMDP.from_graph(graph, probability="weight", reward="pay", normalise=True)
    assert mdp.successors(1, 0)[1].tolist() == [0.25, 0.75]
    assert mdp.rewards.tolist() == [[0.0], [2.0]]
    assert mdp.names.actions is None
    assert not mdp.names.variables
    named = TabularMDP.from_graph(shop(), actions=["leave", "wait", "sleep"])
    assert named.names.actions == ("leave", "wait", "sleep")
    assert named.available[0].tolist() == [True, True, False]
    assert named.start.tolist() == [0.5, 0.5]


def test_states_have_the_actions_of_their_edges() -> None:
    graph = nx.MultiDiGraph()
    graph.add_edge(1, 0, action=1)
    graph.add_edge(0, 1, action=0)
    graph.add_edge(0, 0, action=1, reward=3.0)
    graph.add_edge(1, 0, action=1, probability=0.0)
    graph.edges[1, 0, 0]["probability"] = 1.0
    mdp = TabularMDP.from_graph(graph, start={0: 0.25, 1: 0.75})
    assert mdp.available.tolist() == [[True, True], [False, True]]
    assert mdp.start.tolist() == [0.25, 0.75]
    assert mdp.rewards[0].tolist() == [0.0, 3.0]


def test_parallel_edges_add_up() -> None:
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", probability=0.25, reward=4.0)
    graph.add_edge("a", "b", probability=0.75, reward=0.0)
    mdp = TabularMDP.from_graph(graph)
    assert mdp.nnz == 2
    assert mdp.rewards.tolist() == [[1.0], [0.0]]


@given(st.integers(4, 9), st.integers(1, 3), st.integers(0, 10**6), st.booleans())
def test_what_is_written_is_read(n: int, a: int, seed: int, has_sets: bool) -> None:
    mdp = sparse_mdp(n, n_actions=a, seed=seed)
    rng = np.random.default_rng(seed)
    if has_sets:
        available = rng.random((n, a)) < 0.6
        available[np.arange(n), rng.integers(a, size=n)] = True
        available[0] = True  # an action that no state has would not be seen
        mdp = mdp.with_available(available)
    # A graph holds normalised probabilities: those of a model that has been written once.
    graph = model_graph(mdp, {})
    once = TabularMDP.from_graph(graph)
    assert TabularMDP.from_graph(model_graph(once, {})).rewards.tolist() == mdp.rewards.tolist()
    assert np.array_equal(once.indices, mdp.indices)
    assert np.array_equal(once.probs, mdp.normalised_probs)
    assert np.array_equal(once.available, mdp.available)
    assert np.array_equal(once.start, mdp.start)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1"])
def test_ends_are_read(name: str) -> None:
    mdp = extract_mdp(name)
    found = TabularMDP.from_graph(model_graph(mdp, {}))
    assert found.terminal_state == mdp.terminal_state
    assert found.state_ids.tolist() == mdp.state_ids.tolist()
    exact = extract_mdp("CliffWalking-v1")  # every probability is 1: nothing is rounded
    assert TabularMDP.from_graph(model_graph(exact, {})) == exact


def test_clusters_through_a_file() -> None:
    mdp = extract_mdp("CliffWalking-v1", reading=Reading(reachable_only=True))
    small = aggregate(mdp, np.arange(mdp.n_states))
    known = inspect.signature(nx.node_link_data).parameters
    named = {"edges" if "edges" in known else "link": "links"}  # from NetworkX 3.4, and before
    text = json.dumps(nx.node_link_data(small.to_networkx(), **named))
    read = nx.node_link_graph(json.load(io.StringIO(text)), **named)
    assert TabularMDP.from_graph(read).rewards.tolist() == small.mdp.rewards.tolist()
    assert TabularMDP.from_graph(read, state_ids=small.mdp.state_ids) == small.mdp


def broken(**change: Any) -> Any:
    graph = shop()
    graph.edges["open", "shut", 0].update(change)
    return graph


def without(name: str) -> Any:
    graph = shop()
    del graph.edges["open", "shut", 0][name]
    return graph


def ended(*nodes: str) -> Any:
    graph = shop()
    graph.add_node("gone")
    for node in nodes:
        graph.nodes[node]["is_end"] = True
    return graph


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        ([1], {}, "must be a directed graph of NetworkX, got list"),
        (nx.Graph(), {}, "graph must be directed"),
        (nx.DiGraph(), {}, "graph has no nodes"),
        (broken(probability=0.5), {}, r"from 'open' under action 'wait' must sum to 1, got 1\.25"),
        (
            broken(probability=-0.5),
            {},
            r"non-negative, got -0\.5 at the edge from 'open' to 'shut'",
        ),
        (broken(probability=float("nan")), {}, "finite and non-negative, got nan"),
        (broken(probability="much"), {}, "probability must be a number, got 'much' at the edge"),
        (broken(reward=None), {}, "reward must be a number, got None at the edge from 'open'"),
        (broken(reward=float("inf")), {}, "rewards must be finite, got inf"),
        (without("probability"), {}, "has no probability, and is not the only one"),
        (shop(), {"actions": ["wait"]}, "action 'leave' is none of the actions given"),
        (shop(), {"actions": []}, "actions must be one or more"),
        (shop(), {"actions": ["wait", "wait"]}, "each once"),
        (shop(), {"start": "closed"}, "start must name nodes of the graph, got 'closed'"),
        (shop(), {"start": {"open": 0.5}}, "start must sum to 1"),
        (ended("open"), {}, "node 'open' is marked is_end, and has edges"),
        (ended("shut", "gone"), {}, "one node at most can be marked is_end"),
    ],
)
def test_what_is_wrong_is_named(graph: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidMDPError, InvalidArgumentError), match=message):
        TabularMDP.from_graph(graph, **options)


def test_sums_of_nothing_cannot_be_divided() -> None:
    graph = nx.DiGraph([(0, 1, {"probability": 0.0})])
    with pytest.raises(InvalidMDPError, match="a sum above 0"):
        TabularMDP.from_graph(graph, normalise=True)


def test_one_end_is_the_end() -> None:
    mdp = TabularMDP.from_graph(ended("gone"))
    assert mdp.terminal_state == 2
    assert mdp.state_ids.tolist() == [0, 1, -1]
    assert mdp.start.tolist() == [0.5, 0.5, 0.0]
