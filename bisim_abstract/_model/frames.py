"""Results as tables and graphs of other libraries, neither of which has to be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import require
from bisim_abstract._base.memory import check_memory
from bisim_abstract._model.mdp import TabularMDP

if TYPE_CHECKING:
    from networkx import MultiDiGraph
    from pandas import DataFrame

EDGE_BYTES = 1_000  # what an edge of a graph takes, as dictionaries of Python objects

Columns = dict[str, npt.NDArray[Any]]


def as_frame(columns: Columns) -> DataFrame | Columns:
    """Columns as a DataFrame, or as they are where pandas is not installed."""
    if importlib.util.find_spec("pandas") is None:
        return columns
    from pandas import DataFrame

    return DataFrame(columns)


def model_graph(mdp: TabularMDP, attributes: Mapping[str, npt.NDArray[Any]]) -> MultiDiGraph:
    """A model as a graph; see `Aggregation.to_networkx`.

    Args:
        mdp: The model.
        attributes: (n_states) further attributes of its states, by name.
    """
    networkx = require("networkx", extra="frames")
    check_memory(
        EDGE_BYTES * mdp.nnz,
        what=f"a graph of {mdp.nnz:,} edges",
        instead="take fewer clusters, or read the rows of the model itself",
    )
    graph: MultiDiGraph = networkx.MultiDiGraph()
    end, start = mdp.terminal_state, mdp.start.tolist()
    # Python's own numbers: what writes graphs to files knows no others.
    listed = {name: values.tolist() for name, values in attributes.items()}
    for state in range(mdp.n_states):
        own = {name: values[state] for name, values in listed.items()}
        graph.add_node(state, **own, start=start[state], is_end=state == end)
    rows = np.repeat(np.arange(mdp.indptr.size - 1), np.diff(mdp.indptr))
    begins, actions = np.divmod(rows, mdp.n_actions)
    rewards = mdp.rewards[begins, actions]
    edges = (begins, actions, mdp.indices, mdp.normalised_probs, rewards)
    for state, action, after, prob, reward in zip(*(x.tolist() for x in edges), strict=True):
        if state != end and mdp.available[state, action]:
            graph.add_edge(state, after, key=action, action=action, probability=prob, reward=reward)
    return graph
