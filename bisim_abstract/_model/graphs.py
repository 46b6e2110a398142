"""Graphs whose edges carry probabilities, rewards and actions, as compressed rows.

Any directed graph with the methods of NetworkX will do; NetworkX itself is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.checks import ROW_SUM_TOL
from bisim_abstract._model.matrices import expected_rewards
from bisim_abstract._model.names import Names, state_words
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError

START, END = "start", "is_end"  # attributes of nodes, as `model_graph` writes them


def rows_of_graph(
    graph: Any,
    *,
    probability: str,
    reward: str,
    action: str,
    default_action: Hashable,
    actions: Iterable[Hashable] | None,
    start: Hashable | Mapping[Any, float] | None,
    normalise: bool,
) -> dict[str, Any]:
    """What makes a model of a graph, rows not yet sorted; see `TabularMDP.from_graph`."""
    if not hasattr(graph, "is_directed") or not hasattr(graph, "nodes"):
        raise InvalidArgumentError(
            f"graph must be a directed graph of NetworkX, got {type(graph).__name__}"
        )
    if not graph.is_directed():
        raise InvalidArgumentError(
            "graph must be directed: an edge says where an action leads; use graph.to_directed() "
            "if every edge is meant both ways"
        )
    attributes = dict(graph.nodes(data=True))
    nodes, is_numbered = _ordered(attributes)
    if not nodes:
        raise InvalidMDPError("graph has no nodes; a model needs at least one state")
    place = {node: k for k, node in enumerate(nodes)}
    edges = list(graph.edges(data=True))
    labels = [data.get(action, default_action) for _, _, data in edges]
    listed, has_names = action_order(labels, actions)
    column = {label: k for k, label in enumerate(listed)}
    n, a = len(nodes), len(listed)

    rows = np.empty(len(edges), np.int64)
    targets, paid = np.empty(len(edges), np.int64), np.empty(len(edges))
    probs = np.empty(len(edges))
    for k, ((u, v, data), label) in enumerate(zip(edges, labels, strict=True)):
        where = f"the edge from {u!r} to {v!r} under action {label!r}"
        if label not in column:
            raise InvalidMDPError(f"{where} is none of the actions given: {list(listed)!r}")
        rows[k], targets[k] = place[u] * a + column[label], place[v]
        paid[k] = _number(data.get(reward, 0.0), reward, where)
        probs[k] = _number(data.get(probability, math.nan), probability, where)
    _fill_missing(probs, rows, [probability in data for _, _, data in edges], edges, labels)

    order = np.argsort(rows, kind="stable")
    rows, targets, probs, paid = rows[order], targets[order], probs[order], paid[order]
    possible = probs > 0.0
    counts = np.bincount(rows, minlength=n * a)
    sums: FloatArray = np.bincount(rows, weights=probs, minlength=n * a).astype(np.float64)
    _check_sums(sums, counts, nodes, listed, normalise)
    if normalise:
        probs = probs / sums[rows]
    rows, targets = rows[possible], targets[possible]
    probs, paid = probs[possible], paid[possible]
    indptr = _boundaries(rows, n * a)
    rewards = expected_rewards(paid, indptr, targets, probs, (n, a))

    available = counts.reshape(n, a) > 0
    sinks = np.flatnonzero(~available.any(axis=1))
    end = _end(attributes, nodes, set(sinks.tolist()))
    available[sinks] = True  # where nothing leads out, every action stays
    stay = (sinks[:, None] * a + np.arange(a)).ravel()
    rows = np.concatenate([rows, stay])
    order = np.argsort(rows, kind="stable")
    names = Names(
        actions=tuple(str(label) for label in listed) if has_names else None,
        variables=() if is_numbered else (state_words(nodes),),
    )
    return {
        "indptr": _boundaries(rows, n * a),
        "indices": np.concatenate([targets, np.repeat(sinks, a)])[order],
        "probs": np.concatenate([probs, np.ones(stay.size)])[order],
        "rewards": rewards,
        "available": None if available.all() else available,
        "start": _start(start, attributes, place),
        "terminal_state": end,
        "names": names,
    }


def _ordered(nodes: Iterable[Any]) -> tuple[list[Any], bool]:
    """Nodes in their order, and whether they are numbers from 0, which are then the states."""
    listed: list[Any] = list(nodes)
    if all(isinstance(node, int | np.integer) for node in listed):
        rising = sorted(listed)
        if rising == list(range(len(listed))):
            return rising, True
    return listed, False


def action_order(
    labels: Sequence[Hashable], given: Iterable[Hashable] | None = None
) -> tuple[list[Any], bool]:
    """Actions in their order, and whether they have names of their own."""
    if given is not None:
        listed = list(given)
        if not listed or len(set(listed)) != len(listed):
            raise InvalidArgumentError(f"actions must be one or more, each once, got {listed!r}")
    else:
        listed = list(dict.fromkeys(labels)) or [0]
        numbers = all(isinstance(label, int | np.integer) for label in listed)
        listed = sorted(listed) if numbers else listed  # type: ignore[type-var]
    return listed, listed != list(range(len(listed)))


def _number(value: Any, name: str, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidMDPError(f"{name} must be a number, got {value!r} at {where}") from None


def _fill_missing(
    probs: FloatArray,
    rows: IntArray,
    is_given: Sequence[bool],
    edges: Sequence[Any],
    labels: Sequence[Hashable],
) -> None:
    """Probability 1 for edges that say nothing and are the only ones of their action."""
    counts = np.bincount(rows) if rows.size else rows
    for k, told in enumerate(is_given):
        u, v, _ = edges[k]
        where = f"the edge from {u!r} to {v!r} under action {labels[k]!r}"
        if told:
            if not (math.isfinite(probs[k]) and probs[k] >= 0.0):
                raise InvalidMDPError(
                    f"probabilities must be finite and non-negative, got {probs[k]} at {where}"
                )
        elif counts[rows[k]] > 1:
            raise InvalidMDPError(
                f"{where} has no probability, and is not the only one of its action; name the "
                "attribute that holds it: probability=..."
            )
        else:
            probs[k] = 1.0


def _check_sums(
    sums: FloatArray,
    counts: IntArray,
    nodes: Sequence[Any],
    actions: Sequence[Any],
    normalise: bool,
) -> None:
    is_wrong = ~(sums > 0.0) | ~np.isfinite(sums)
    rule, remedy = "have a sum above 0 to be divided by it", ""
    if not normalise:
        is_wrong = ~(np.abs(sums - 1.0) <= ROW_SUM_TOL)
        rule, remedy = "sum to 1", "; pass normalise=True to divide them by their sum"
    wrong = np.flatnonzero(is_wrong & (counts > 0))
    if wrong.size:
        state, action = divmod(int(wrong[0]), len(actions))
        raise InvalidMDPError(
            f"probabilities of the edges from {nodes[state]!r} under action {actions[action]!r} "
            f"must {rule}, got {float(sums[wrong[0]])!r}{remedy}"
        )


def _boundaries(rows: IntArray, count: int) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])


def _end(
    attributes: Mapping[Any, Mapping[str, Any]], nodes: Sequence[Any], sinks: set[int]
) -> int | None:
    """The state that stands for the end of episodes, if a node says that it does."""
    marked = [k for k, node in enumerate(nodes) if attributes[node].get(END)]
    for k in marked:
        if k not in sinks:
            raise InvalidMDPError(f"node {nodes[k]!r} is marked {END}, and has edges that lead out")
    if len(marked) > 1:
        raise InvalidMDPError(
            f"one node at most can be marked {END}, got {nodes[marked[0]]!r} and "
            f"{nodes[marked[1]]!r}; nodes without edges that lead out need no mark"
        )
    return marked[0] if marked else None


def _start(
    start: Hashable | Mapping[Any, float] | None,
    attributes: Mapping[Any, Mapping[str, Any]],
    place: Mapping[Any, int],
) -> FloatArray | None:
    """(n_states) start distribution: as given, or as nodes tell; None if nobody does."""
    given: Mapping[Any, Any]
    if isinstance(start, Mapping):
        given = start
    elif start is not None:
        given = {start: 1.0}
    else:
        given = {node: data[START] for node, data in attributes.items() if START in data}
        if not given:
            return None
    found = np.zeros(len(place))
    for node, mass in given.items():
        if node not in place:
            raise InvalidArgumentError(f"start must name nodes of the graph, got {node!r}")
        found[place[node]] = _number(mass, START, f"node {node!r}")
    return found
