"""From clusters to a smaller model, and from its policies back.

An aggregated model averages rows and rewards of a cluster with weights that sum to one there.
Its end state stands apart from all clusters: the terminal state is taken out of whatever
cluster holds it, for leaving it inside would make live states end at random. What planning
on it keeps and loses is proven elsewhere (`value_proof`), for any partition.

Actions of a cluster are names. By themselves, actions are called what they are; a renaming says
what each action of a state is called in its cluster, so that "left" here and "right" there can be
one action of both. Row (C, ā) is then the mean, over members, of their actions that are called ā.
Where a member has no action of that name, its first available one counts, and is what it does: as
everywhere, actions that a state lacks do what its first one does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.checks import check_choice, check_gamma
from bisim_abstract._base.html import table_html
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.frames import model_graph
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.names import Names
from bisim_abstract._model.policies import lift_table, policy_table
from bisim_abstract._model.renaming import check_renaming, own_names, used_names
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from networkx import MultiDiGraph
    from scipy.sparse import csr_array

__all__ = ["Aggregation", "aggregate", "lift_policy"]

LEFT = 1e-12  # discounted mass of a walk that is not followed any further
WEIGHTINGS = ("uniform", "start", "visitation")


@dataclass(frozen=True, eq=False)
class Aggregation:
    """A model whose states are clusters of another model's states.

    Attributes:
        mdp: The aggregated model. If the other has a terminal state, it has one too, after all
            clusters: its last state. Its actions are names: a cluster has those that some of its
            members have.
        labels: (n_states) state of `mdp` that each state of the other model belongs to.
        weights: (n_states) weight of each state within its cluster; they sum to one there.
        weighting: "uniform", "start", "visitation" or "given": where the weights come from.
        renaming: (n_states, n_actions) what each action of a state is called in its cluster, -1
            where the state lacks it; None where all states have all actions, and these are
            called what they are.
    """

    mdp: TabularMDP
    labels: IntArray
    weights: FloatArray
    weighting: str
    renaming: IntArray | None = None

    @property
    def n_clusters(self) -> int:
        """Number of clusters, the end of episodes not counted."""
        return self.mdp.n_states - (self.mdp.terminal_state is not None)

    def members(self, cluster: int) -> IntArray:
        """States of the other model that belong to a cluster."""
        return np.flatnonzero(self.labels == cluster)

    def with_names(self, names: Names) -> Aggregation:
        """The same, clusters called after the first of their states.

        Args:
            names: Of the other model. A cluster has a label if all its states have it.
        """
        first = np.unique(self.labels, return_index=True)[1]
        labels = {}
        for name, held in names.labels.items():
            labels[name] = np.ones(first.size, bool)
            labels[name][self.labels[~held]] = False
        called = replace(self.mdp.names, variables=names.take(first).variables, labels=labels)
        return replace(self, mdp=replace(self.mdp, names=called))

    def __repr__(self) -> str:
        return (
            f"Aggregation({counted(self.labels.size, 'state')} in "
            f"{counted(self.n_clusters, 'cluster')}, "
            f"{self.weighting} weights)"
        )

    def _repr_html_(self) -> str:
        # Where there is nothing but the end of episodes, there are no clusters.
        sizes = np.bincount(self.labels)[: self.n_clusters].tolist() or [0]
        least, most = min(sizes), max(sizes)
        has_end = self.mdp.terminal_state is not None
        rows = [
            ("clusters", clusters_text(self.n_clusters, has_end=has_end)),
            (
                "of each",
                counted(most, "state") if least == most else f"{least:,} to {most:,} states",
            ),
            ("transitions", f"{self.mdp.nnz:,}"),
            ("weights", self.weighting),
        ]
        return table_html(f"{counted(self.labels.size, 'state')}, aggregated", rows)

    def to_networkx(self) -> MultiDiGraph:
        """The model over clusters as a graph, for drawing and for other tools.

        Nodes are clusters by their number, with `size`, `representative` (the first of its
        states), `start` (probability of starting there) and `is_end`. Every action of a cluster
        that can lead from one to another is an edge with the action as its key, and `action`,
        `probability` and `reward` (that of the action, whichever edge is taken). The end of
        episodes has no edges that leave it.

        Raises:
            MissingDependency: If networkx is not installed.
        """
        first = np.unique(self.labels, return_index=True)[1]
        sizes = np.bincount(self.labels, minlength=self.mdp.n_states)
        return model_graph(self.mdp, {"size": sizes, "representative": first})


def aggregate(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    *,
    renaming: npt.ArrayLike | None = None,
    weighting: str | npt.ArrayLike = "uniform",
    gamma: float | None = None,
) -> Aggregation:
    """The model over clusters: rows and rewards averaged, the start pushed forward.

    Clusters are numbered by the first live state of each. The terminal state, where there is
    one, is never averaged with live states, even if the labels put it in one cluster with some:
    it becomes the last state of the result, and episodes end with the probability with which
    members of a cluster end them.

    Args:
        mdp: The model. Confidence radii of an estimate do not carry over.
        labels: (n_states) cluster of each state; whole numbers from 0 on.
        renaming: (n_states, n_actions) what each action of a state is called in its cluster, -1
            where the state lacks it, with the same names in all states of a cluster. The result
            has as many actions as there are names; a cluster lacks those that it does not use.
            By default actions are called what they are.
        weighting: How much each member counts in its cluster: "uniform" for all alike; "start"
            by the start distribution; "visitation" by the discounted visits of the policy that
            takes all actions with equal probability, from the start on; or (n_states) weights
            of your own. They are divided by their sum in each cluster; where that is 0, all
            members count alike.
        gamma: The discount of "visitation", which needs one.

    Example:
        >>> P = np.eye(4)[[2, 2, 3, 3]][:, None, :]  # 0 and 1 lead to 2, it leads to the end
        >>> small = aggregate(
        ...     TabularMDP.from_dense(P, [1.0, 3.0, 5.0, 0.0], terminal_state=3), [0, 0, 1, 1]
        ... )
        >>> small.mdp
        TabularMDP(3 states, 1 action, 3 transitions, terminal state 2)
        >>> small.mdp.rewards.ravel()
        array([2., 5., 0.])

        What pays in one state is another action than in the other, until they are renamed.

        >>> P = np.eye(2)[[[0, 0], [1, 1]]]
        >>> mirrored = TabularMDP.from_dense(P, [[1.0, 0.0], [0.0, 1.0]], order="sas")
        >>> aggregate(mirrored, [0, 0]).mdp.rewards
        array([[0.5, 0.5]])
        >>> aggregate(mirrored, [0, 0], renaming=[[0, 1], [1, 0]]).mdp.rewards
        array([[1., 0.]])
    """
    from scipy.sparse import csr_array

    check_mdp(mdp, call="aggregate(mdp, labels)")
    n, n_actions = mdp.n_states, mdp.n_actions
    given = as_labels(labels, n)
    cluster, count = set_end_apart(given, mdp.terminal_state)
    raw, name = _raw_weights(mdp, weighting, gamma)
    weights = _normalised(raw, cluster, count)

    names, slots, used = find_slots(mdp, cluster, count, renaming)
    n_slots = used.shape[1]
    # Row (C, ā) of the averaging matrix holds w(y) at columns (y, a) that count as ā, in the order
    # of y, divided by their number.
    pairs, columns = slot_rows(cluster, slots, n_slots)
    states = columns // n_actions
    own = states * n_slots + pairs % n_slots
    mixer = csr_array(
        (weights[states] / np.bincount(own)[own], columns, row_begins(pairs, count * n_slots)),
        shape=(count * n_slots, n * n_actions),
    )
    lifted = csr_array(
        (mdp.normalised_probs, cluster[mdp.indices], mdp.indptr), shape=(n * n_actions, count)
    )
    rows = csr_array(mixer @ lifted)
    paid = mdp.rewards.ravel()
    begins = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
    low, high = np.zeros((2, count * n_slots))
    low[pairs[begins]] = np.minimum.reduceat(paid[columns], begins)
    high[pairs[begins]] = np.maximum.reduceat(paid[columns], begins)
    rewards = np.clip(mixer @ paid, low, high)  # equal rewards stay what they are
    start = np.bincount(cluster, weights=mdp.start, minlength=count)
    end = None if mdp.terminal_state is None else count - 1
    # Names of actions are of use where actions are called what they are.
    is_own = renaming is None or np.array_equal(np.asarray(renaming), own_names(mdp))
    kept = {key: mdp.metadata[key] for key in ("env", "gymnasium") if key in mdp.metadata}
    small = TabularMDP.from_rows(
        rows.indptr,
        rows.indices,
        rows.data,
        rewards.reshape(count, n_slots),
        available=None if used.all() else used,
        start=start / start.sum(),
        terminal_state=end,
        names=mdp.names.of_actions() if is_own else Names(),
        metadata={**kept, "method": "aggregation", "weighting": name, "ground_states": n},
    )
    return Aggregation(
        mdp=small,
        labels=frozen("labels", cluster, np.int64),
        weights=frozen("weights", weights, np.float64),
        weighting=name,
        renaming=names,
    )


def lift_policy(
    aggregation: Aggregation, policy: object, *, deterministic: bool = True
) -> IntArray | FloatArray:
    """A policy over clusters as one over the states: each acts as its cluster does.

    The policy tells names of actions; each state takes its own first action of that name, or,
    where probabilities are told, those of that name with equal shares.

    Args:
        aggregation: The clusters.
        policy: Who acts on them: (n) actions or (n, n_actions) probabilities, n being the number
            of clusters, or of states of `aggregation.mdp`, the end among them; a function from
            a cluster to its action; a result with a `policy`, as `value_iteration` and
            certificates have; a `QLearning`; or a trained model with
            `predict(observation, deterministic=...)`, as in Stable-Baselines3. Functions and
            models are asked once about each cluster.
        deterministic: Whether models are asked for their deterministic actions; else for their
            probabilities, which PPO and A2C have.

    Returns:
        (n_states) actions or (n_states, n_actions) probabilities.
    """
    if not isinstance(aggregation, Aggregation):
        raise InvalidArgumentError(
            f"aggregation must be an Aggregation, got {type(aggregation).__name__}; the order is "
            "lift_policy(aggregation, policy)"
        )
    table = policy_table(policy, aggregation.mdp, deterministic=deterministic)
    return lift_table(table, aggregation.labels, aggregation.renaming)


def set_end_apart(given: IntArray, terminal: int | None) -> tuple[IntArray, int]:
    """Labels with the terminal state in a cluster of its own, the last; and their number."""
    if terminal is None:
        return as_labels(given, given.size), int(np.unique(given).size)
    is_live = np.arange(given.size) != terminal
    cluster = np.empty_like(given)
    live = as_labels(given[is_live], given.size - 1) if given.size > 1 else given[:0]
    cluster[is_live] = live
    cluster[terminal] = int(live.max(initial=-1)) + 1
    return cluster, int(cluster[terminal]) + 1


def find_slots(
    mdp: TabularMDP, clusters: IntArray, count: int, renaming: npt.ArrayLike | None
) -> tuple[IntArray | None, IntArray, BoolArray]:
    """What actions are called in their clusters, and as which of these each row counts.

    Args:
        mdp: The model.
        clusters: (n_states) cluster of each state, from 0 to count - 1.
        count: Number of clusters.
        renaming: (n_states, n_actions) names, the same in all states of a cluster; None, or the
            actions' own names, for those that are called what they are, of which a member may
            lack some.

    Returns:
        The renaming, None where all actions are available and called what they are;
        (n_states, n_actions) the name that a row counts as, -1 for none; and (count, names)
        the names that each cluster has.
    """
    own = own_names(mdp)
    if renaming is None or np.array_equal(np.asarray(renaming), own):
        if not mdp.has_action_sets:
            return None, own, np.ones((count, mdp.n_actions), bool)
        used = np.zeros((count, mdp.n_actions), bool)
        for action, has_it in enumerate(mdp.available.T):
            used[clusters[has_it], action] = True
        # A member that lacks what others have counts by its padding.
        slots = np.where(used[clusters], np.arange(mdp.n_actions), -1)
        return frozen("renaming", own, np.int64), slots, used
    names = check_renaming(renaming, clusters, count, mdp.available)
    used = np.zeros((count, int(names.max()) + 1), bool)
    used[clusters] = used_names(names)[:, : used.shape[1]]
    return names, names, used


def slot_rows(clusters: IntArray, slots: IntArray, n_slots: int) -> tuple[IntArray, IntArray]:
    """Rows (C, name) and the rows (y, a) that count as them, sorted by the former, then by y."""
    columns = np.flatnonzero(slots.ravel() >= 0)
    pairs = clusters[columns // slots.shape[1]] * n_slots + slots.ravel()[columns]
    order = np.argsort(pairs, kind="stable")
    return pairs[order], columns[order]


def entry_bounds(
    pairs: IntArray, lifted: csr_array, size: int, max_support: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """What members send where by the same name: no less and no more, entry by entry.

    Args:
        pairs: (rows of `lifted`) the name that a row counts as, cluster * names + name, ascending.
        lifted: Rows of the model, summed by clusters.
        size: Number of pairs of a cluster and a name.
        max_support: Length of the model's longest row.

    Returns:
        Of each entry its pair, ascending, and its cluster; the least of a member; and the most.
    """
    count = lifted.shape[1]
    keys = np.repeat(pairs, np.diff(lifted.indptr)) * count + lifted.indices
    order = np.argsort(keys, kind="stable")
    keys, entries = keys[order], lifted.data[order]
    cut = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    rows, indices = np.divmod(keys[cut], count)
    # An entry is a sum of at most max_support numbers, each within two roundings.
    error = (max_support + 4) * EPS
    most = np.minimum(np.maximum.reduceat(entries, cut) * (1.0 + error), 1.0)
    # What some member does not reach at all, by one of its actions of that name, has least 0.
    sizes = np.bincount(pairs, minlength=size)
    is_common = np.diff(np.append(cut, keys.size)) == sizes[rows]
    least = np.where(is_common, np.minimum.reduceat(entries, cut) * (1.0 - error), 0.0)
    return rows, indices, least, most


def row_begins(rows: IntArray, count: int) -> IntArray:
    """(count + 1) where the entries of each row begin, if they are sorted by rows."""
    return np.asarray(np.searchsorted(rows, np.arange(count + 1)))


def _raw_weights(
    mdp: TabularMDP, weighting: str | npt.ArrayLike, gamma: float | None
) -> tuple[FloatArray, str]:
    if not isinstance(weighting, str):
        raw = np.asarray(weighting, dtype=np.float64)
        if raw.shape != (mdp.n_states,):
            raise InvalidArgumentError(
                f"weighting must be a name or {mdp.n_states} numbers, got shape {raw.shape}"
            )
        wrong = np.flatnonzero(~(np.isfinite(raw) & (raw >= 0.0)))
        if wrong.size:
            raise InvalidArgumentError(
                f"weighting must be finite and at least 0, got {raw[wrong[0]]} at state {wrong[0]}"
            )
        return raw, "given"
    check_choice("weighting", weighting, WEIGHTINGS)
    if weighting == "uniform":
        return np.ones(mdp.n_states), weighting
    if weighting == "start":
        return mdp.start, weighting
    if gamma is None:
        raise InvalidArgumentError("gamma must be given with weighting 'visitation'")
    return _visitation(mdp, check_gamma(gamma)), weighting


def _visitation(mdp: TabularMDP, gamma: float) -> FloatArray:
    """(n_states) discounted visits of the uniform policy, as far as they amount to anything."""
    from scipy.sparse import csr_array

    n, n_actions = mdp.n_states, mdp.n_actions
    # Row s of the walk is the mean of rows (s, a) that s has: its entries lie next to each other.
    sizes = np.where(mdp.available, mdp.available.sum(axis=1, keepdims=True), np.inf)
    share = mdp.normalised_probs / np.repeat(sizes.ravel(), np.diff(mdp.indptr))
    walk = csr_array((share, mdp.indices, mdp.indptr[::n_actions]), shape=(n, n)).T.tocsr()
    mass = mdp.start / mdp.start.sum()
    visits = mass.copy()
    live = np.ones(n, bool)
    if mdp.terminal_state is not None:
        live[mdp.terminal_state] = False
    while float(mass[live].sum()) > LEFT * (1.0 - gamma):
        mass = gamma * (walk @ mass)
        visits += mass
    return np.asarray(visits)


def _normalised(raw: FloatArray, cluster: IntArray, count: int) -> FloatArray:
    """Weights divided by their sum in each cluster, scaled first so that none overflows."""
    top = np.zeros(count)
    np.maximum.at(top, cluster, raw)
    scaled = np.where(top[cluster] > 0.0, raw / np.where(top > 0.0, top, 1.0)[cluster], 1.0)
    return np.asarray(scaled / np.bincount(cluster, weights=scaled, minlength=count)[cluster])
