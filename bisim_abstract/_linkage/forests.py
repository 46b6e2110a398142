"""Single linkage at every threshold: the minimum spanning forest of weighted links.

States are linked at threshold tau if their weight is at most tau; clusters are the connected
components. The number of clusters is a step function of tau that falls at the weights of the
forest's edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.labels import numbered
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Forest:
    """A minimum spanning forest of weighted links: single linkage at every threshold.

    Attributes:
        n_states: Number of states.
        weights: (edges) weights of the forest's edges, rising.
        first: (edges) one end of each edge.
        second: (edges) the other.
    """

    n_states: int
    weights: FloatArray
    first: IntArray
    second: IntArray

    def count(self, tau: npt.ArrayLike) -> IntArray:
        """Number of clusters at each threshold."""
        return np.asarray(self.n_states - np.searchsorted(self.weights, tau, side="right"))

    def count_live(self, tau: npt.ArrayLike, end: int | None) -> IntArray:
        """The same without a state that stands for the end of episodes, if it is alone."""
        counts = self.count(tau)
        if end is None:
            return counts
        touching = self.weights[(self.first == end) | (self.second == end)]
        joined = float(touching.min(initial=np.inf))
        return np.asarray(counts - (np.asarray(tau) < joined))

    def labels(self, tau: float) -> IntArray:
        """(n_states) clusters at a threshold, numbered by first appearance."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        used = int(np.searchsorted(self.weights, tau, side="right"))
        n = self.n_states
        links = (np.ones(used, np.int8), (self.first[:used], self.second[:used]))
        _, labels = connected_components(coo_array(links, shape=(n, n)), directed=False)
        return numbered(labels)


def count_clusters(n_states: int, first: IntArray, second: IntArray, is_link: BoolArray) -> int:
    """Number of connected components of the links so marked."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = (first[is_link], second[is_link])
    graph = coo_array((np.ones(ends[0].size, np.int8), ends), shape=(n_states, n_states))
    count, _ = connected_components(graph, directed=False)
    return int(count)


def spanning_forest(
    n_states: int, first: IntArray, second: IntArray, weights: FloatArray
) -> Forest:
    """The minimum spanning forest of links between states.

    SciPy's graphs take a stored 0 for no edge, so the algorithm is given the rank of each
    weight, counted from 1, instead of the weight: the forest depends on the order alone. They
    also add up parallel links, of which only the lightest is kept here.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    if weights.size == 0:
        empty = np.empty(0, np.int64)
        return Forest(n_states, np.empty(0), empty, empty)
    order = np.argsort(weights, kind="stable")
    keys = np.minimum(first, second)[order] * n_states + np.maximum(first, second)[order]
    lightest = np.unique(keys, return_index=True)[1]
    small, large = np.divmod(keys[lightest], n_states)
    # SciPy before 1.17 takes no other indices here; newer ones take both, for what does not fit.
    fits = max(n_states, lightest.size) < 2**31
    ends = (small.astype(np.int32), large.astype(np.int32)) if fits else (small, large)
    graph = coo_array((lightest + 1.0, ends), shape=(n_states, n_states))
    kept = np.sort(minimum_spanning_tree(graph.tocsr()).data).astype(np.int64) - 1
    chosen = order[kept]
    return Forest(n_states, weights[chosen], first[chosen], second[chosen])
