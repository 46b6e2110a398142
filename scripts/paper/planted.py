"""What the abstraction experiments share: planted groups, the truth about them, and checks.

The paper describes its grouped models in one line: states of a group share base rewards and
transition structure up to noise, with distances of the order of the noise within groups and of
the order of 1 across. One detail decides its results: whether members of a group share their
*successors*, or only the groups these lie in. If they share successors, two members differ by a
small mass whatever the ground cost, so that a covered pair is settled at once although almost
all others are frozen; if not, the upper arm must first cover the pairs of their successors. The
published numbers of clusters (25 to 46 under random coverage of a fifth of the pairs of 120
states: the components of random graphs within groups) fit the first reading only. So here every
group has, per action, a few successor states with probabilities, and every member has these times
1 + noise·U(-1, 1), divided by their sum; rewards are the group's plus noise·U(0, 1), rescaled to
span [0, 1], so that L <= 1. (`grouped_mdp` of the library is the second, harder reading.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bisim_abstract import (
    Certificate,
    MetricBounds,
    TabularMDP,
    Values,
    bisimulation_metric,
    certify,
    prove_value,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract.parts import compare_clusterings
from paper.engine import Row, timed
from paper.inside import BoolArray, FloatArray, IntArray, numbered, spanning_forest

GAMMA = 0.9
NOISE = 0.1
SUPPORT = 4
SWEEPS = 300  # 0.9**300 is 2e-14: what is left of the starts after so many
ROUNDING = 1e-12  # of D: a backup rounds by some hundred ulps, and the sum over sweeps by 1/(1-γ)

CHOICES = f"""
- Grouped models are not specified in the paper. Here members of a group share rewards and {SUPPORT}
  successor states per action up to noise {NOISE:g}; rewards are rescaled to [0, 1]. Shared
  successors are what the published counts of clusters imply; see planted.py. This was chosen after
  looking at others: dense rows, distributions over groups, the library's grouped_mdp, and noise
  0.01 and 0.05.
- Value loss is the mean over states of V* - V of the lifted greedy policy: the reading under which
  Taxi's published 45.9 comes out to the digit.
"""


def planted_mdp(
    n_states: int,
    n_groups: int,
    n_actions: int = 3,
    *,
    targets: list[IntArray] | None = None,
    seed: int,
) -> tuple[TabularMDP, IntArray]:
    """Groups that share rewards and successor states up to noise; the model and the groups.

    Args:
        n_states: Number of states.
        n_groups: Number of groups, equal in size up to one.
        n_actions: Number of actions.
        targets: For each group and action, in this order, the states that successors are drawn
            from; all by default.
        seed: Seed.
    """
    rng = np.random.default_rng(seed)
    groups = np.sort(np.arange(n_states) % n_groups)
    kinds = n_groups * n_actions
    pools = targets or [np.arange(n_states)] * kinds
    successors = np.stack([rng.choice(pool, SUPPORT, replace=False) for pool in pools])
    weights = rng.dirichlet(np.ones(SUPPORT), size=kinds)
    base = rng.random((n_groups, n_actions))
    kind = (groups[:, None] * n_actions + np.arange(n_actions)).ravel()
    probs = weights[kind] * (1.0 + NOISE * rng.uniform(-1.0, 1.0, size=(kind.size, SUPPORT)))
    rewards = base[groups] + NOISE * rng.random((n_states, n_actions))
    mdp = TabularMDP.from_rows(
        np.arange(kind.size + 1) * SUPPORT,
        successors[kind].ravel(),
        (probs / probs.sum(axis=1, keepdims=True)).ravel(),
        (rewards - rewards.min()) / np.ptp(rewards),
    )
    return mdp, groups


@dataclass(frozen=True)
class Truth:
    """A model with its exact metric on all pairs, enclosed between two certified tables.

    Attributes:
        mdp: The model.
        groups: (n_states) planted groups.
        metric: The exact metric.
        optimal: Optimal values.
        first: (pairs) first state of each pair.
        second: (pairs) second state.
        below: (pairs) certified lower bounds.
        above: (pairs) certified upper bounds; at most `metric.gap` above.
    """

    mdp: TabularMDP
    groups: IntArray
    metric: MetricBounds
    optimal: Values
    first: IntArray
    second: IntArray
    below: FloatArray
    above: FloatArray

    @property
    def n(self) -> int:
        """Number of states."""
        return self.mdp.n_states

    @property
    def is_within(self) -> BoolArray:
        """(pairs) whether both states are of one group."""
        return np.asarray(self.groups[self.first] == self.groups[self.second])

    def gap(self) -> tuple[float, float]:
        """The largest distance within groups, and the least one across."""
        inside, across = self.above[self.is_within], self.above[~self.is_within]
        return float(inside.max()), float(across.min())

    def gap_threshold(self) -> float:
        """The geometric mean of the two, as the library's own choice of thresholds is."""
        low, high = self.gap()
        return math.sqrt(low * high)

    def band_threshold(self, share: float) -> float:
        """Between the mean distance within groups (0) and the mean distance across (1)."""
        inside, across = self.above[self.is_within].mean(), self.above[~self.is_within].mean()
        return float(inside + share * (across - inside))

    def loss(self, labels: IntArray) -> float:
        """The mean value loss of planning on these clusters."""
        return mean_loss(self.mdp, labels, self.optimal)

    def linked(self, distances: FloatArray, tau: float, among: BoolArray | None = None) -> IntArray:
        """Single linkage of distances of all pairs, or of some, at a threshold."""
        used = slice(None) if among is None else among
        return spanning_forest(self.n, self.first[used], self.second[used], distances[used]).labels(
            tau
        )

    def linked_into(self, distances: FloatArray, count: int) -> IntArray:
        """Single linkage of distances of all pairs, stopped at a number of clusters."""
        return linked_into(self.n, self.first, self.second, distances, count)


def mean_loss(mdp: TabularMDP, labels: IntArray, optimal: Values) -> float:
    """The mean value loss of planning on clusters."""
    return compare_clusterings(mdp, {"": labels}, GAMMA, optimal=optimal)[0].loss.mean


def linked_into(
    n: int, first: IntArray, second: IntArray, distances: FloatArray, count: int
) -> IntArray:
    """Single linkage, stopped at a number of clusters; ties join in the order of pairs."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    forest = spanning_forest(n, first, second, distances)
    ends = (forest.first[: n - count], forest.second[: n - count])
    graph = coo_array((np.ones(n - count, np.int8), ends), shape=(n, n))
    return numbered(connected_components(graph, directed=False)[1])


def truth_of(mdp: TabularMDP, groups: IntArray, gamma: float = GAMMA) -> Truth:
    """The exact metric and the optimal values of a model."""
    metric = bisimulation_metric(mdp, gamma)
    first, second = np.triu_indices(mdp.n_states, 1)
    below, above = metric.bounds(first, second)
    return Truth(mdp, groups, metric, value_iteration(mdp, gamma), first, second, below, above)


def is_covered(build: Certificate, first: IntArray, second: IntArray) -> BoolArray:
    """(pairs) whether a build looked at them."""
    return np.isin(first * build.n_states + second, build.keys)


def check_build(build: Certificate, truth: Truth, tau: float) -> Row:
    """Compare a build with the truth.

    Enclosure and the chain need no tolerance: certified bounds are compared with certified
    bounds. Identities hold in the limit: what is left is the gap of the metric's tables, the
    starts after the sweeps made, and rounding.

    Returns:
        Whether both arms enclose the metric on every pair, whether the error of either arm is its
        largest one on uncovered pairs, and whether clusters of the upper arm refine the exact
        metric's while these over covered pairs refine the lower arm's ("chain"); and rho, the
        coverage gap.
    """
    lower, upper = build.bounds(truth.first, truth.second)
    below, above = truth.below, truth.above
    covered = is_covered(build, truth.first, truth.second)
    left = build.gamma ** int(build.run["sweeps"]) + ROUNDING
    tol = truth.metric.gap + left * build.ground.starts.diameter
    under, over = above - lower, upper - below
    rho, rho_up = (float(x[~covered].max(initial=0.0)) for x in (under, over))
    part_lower, part_upper = build.partitions(tau)
    chain = (
        refines(part_upper, truth.linked(below, tau))
        and refines(part_upper, truth.linked(below, tau, covered))
        and refines(truth.linked(above, tau, covered), part_lower)
    )
    return {
        "encloses": bool((lower <= above).all() and (upper >= below).all()),
        "lower identity": abs(float(under.max()) - rho) <= tol,
        "upper identity": abs(float(over.max()) - rho_up) <= tol,
        "chain": chain,
        "rho": rho,
    }


@dataclass(frozen=True)
class Certified:
    """A certificate over all pairs, beyond the paper, with its verdict.

    Attributes:
        found: The certificate.
        verdict: What its verification says.
        seconds: To certify, and to verify.
        bound: What no state loses more than on its clusters, by proof.
        loss: What the worst state loses at least.
    """

    found: Certificate
    verdict: str
    seconds: tuple[float, float]
    bound: float
    loss: float

    @classmethod
    def of(cls, mdp: TabularMDP, optimal: Values, tau: float | str) -> Certified:
        """Certify, verify, and prove a loss; where nothing is certified, of the upper arm."""
        found, seconds = timed(lambda: certify(mdp, GAMMA, tau=tau))
        verified, checked = timed(lambda: verify(mdp, found))
        value = found.value or prove_value(mdp, found.labels_upper, GAMMA)
        loss = value_loss(mdp, GAMMA, value.lifted_policy, optimal=optimal)
        return cls(found, verified.verdict, (seconds, checked), value.loss, loss.sup_lower)


def refines(fine: IntArray, coarse: IntArray) -> bool:
    """Whether every cluster of the first lies in one of the second."""
    pairs = np.unique(np.stack([fine, coarse]), axis=1)
    return bool(pairs.shape[1] == np.unique(fine).size)


def count(labels: IntArray) -> int:
    """Number of clusters."""
    return int(np.unique(labels).size)
