"""Other ways to cluster, for comparison: single linkage of other distances at a threshold.

Nothing about these clusterings is certified.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_choice, check_int, check_real
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import BoolArray, IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._exact.metric import MetricBounds
from bisim_abstract._linkage.points import joined, linked_pairs, linked_points
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import Embedding, checked_points
from bisim_abstract.errors import InvalidArgumentError

__all__ = [
    "cluster_by_arm",
    "cluster_by_embedding",
    "cluster_by_metric",
    "cluster_by_rewards",
]

CHUNK = 2**20  # pairs that are held at once
PAIR_BYTES, STATE_BYTES = 96, 80  # what a pair held at once and a state take at the peak
ARMS = ("lower", "upper")


def cluster_by_metric(
    metric: MetricBounds, tau: float, *, arm: str = "upper", resources: Resources = HERE
) -> IntArray:
    """(n_states) single linkage of the exact metric at a threshold.

    The work is quadratic in the number of bisimulation classes, as the metric's was; a bounded
    number of their pairs is held at once.

    Args:
        metric: The metric.
        tau: The threshold.
        arm: "upper" links what is proven to be within tau, "lower" what may be.
        resources: Memory that may be used; what is available by default.

    Raises:
        MemoryLimitError: If not even one row of these pairs would fit.
    """
    check_resources(resources)
    tau = check_real("tau", tau)
    check_choice("arm", arm, ARMS)
    table = metric.class_upper if arm == "upper" else metric.class_lower
    within = metric.within if arm == "upper" else 0.0
    count = metric.n_classes
    fixed = STATE_BYTES * metric.n_states
    resources.check_memory(
        PAIR_BYTES * count + fixed,
        what=f"linking {count:,} classes of {metric.n_states:,} states",
        instead="use certify(mdp, gamma, tau=tau), which visits no more pairs than it needs",
    )
    # As many rows at once as there is room for.
    room = resources.room - fixed
    rows = max(1, min(CHUNK, room // PAIR_BYTES) // count)
    of_class = np.arange(count)
    # Members of a class are linked directly, or through any other class that is near enough.
    is_joined: BoolArray = np.full(count, within <= tau)
    for begin in range(0, count, rows):
        is_link = np.asarray(table[begin : begin + rows] <= tau)
        np.fill_diagonal(is_link[:, begin:], False)
        is_joined[begin : begin + rows] |= is_link.any(axis=1)
        first, second = np.nonzero(is_link)
        of_class = joined(of_class, first + begin, second)
    members = np.arange(metric.n_states) + count
    return numbered(np.where(is_joined[metric.labels], of_class[metric.labels], members))


def cluster_by_arm(certificate: Certificate, tau: float, *, arm: str = "lower") -> IntArray:
    """(n_states) single linkage of one arm of a certificate at a threshold.

    Args:
        certificate: The certificate.
        tau: The threshold.
        arm: "lower" or "upper". Where the two agree, the clustering is certified.
    """
    check_choice("arm", arm, ARMS)
    return certificate.partitions(check_real("tau", tau))[ARMS.index(arm)]


def cluster_by_rewards(mdp: TabularMDP, tau: float) -> IntArray:
    """(n_states) single linkage of d_R(s,t) = max_a |R(s,a) - R(t,a)| at a threshold.

    Args:
        mdp: The model.
        tau: The threshold.
    """
    check_mdp(mdp)
    return linked_points(mdp.rewards, check_real("tau", tau), np.inf)


def cluster_by_embedding(
    embedding: Embedding | npt.ArrayLike,
    n_states: int,
    tau: float,
    *,
    max_pairs: int = 50_000_000,
) -> IntArray:
    """(n_states) single linkage of a learned distance at a threshold.

    Points are compared by their Euclidean distance, through a tree. An object with a method
    `distance` of two index arrays is asked for every single pair: quadratic in the number of
    states, with a bounded number of pairs in memory at once.

    Args:
        embedding: An object with `encode`, or one row per state.
        n_states: Number of states.
        tau: The threshold.
        max_pairs: Pairs that a `distance` may be asked for.
    """
    n_states = check_int("n_states", n_states, low=1)
    tau = check_real("tau", tau)
    distance = getattr(embedding, "distance", None)
    if not callable(distance):
        return linked_points(checked_points(embedding, n_states), tau, 2.0)
    pairs = n_states * (n_states - 1) // 2
    if pairs > max_pairs:
        raise InvalidArgumentError(
            f"max_pairs = {max_pairs:,} does not allow the {pairs:,} pairs of {n_states:,} "
            "states; pass embedding.encode(...) for Euclidean distances, which need no pairs, "
            "or more max_pairs"
        )
    return linked_pairs(distance, n_states, tau)
