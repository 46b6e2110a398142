"""From clusters to a smaller model, and from its policies back: what the detour costs.

Why the bounds hold. Let d be the bisimulation metric, delta the largest diameter of a cluster
under it, c the map from states to clusters, and Q* the optimal action values.

1. Q*(·, a) is 1-Lipschitz: V* is, as the limit of value iteration from 0, and then
   |Q*(x,a) - Q*(y,a)| <= |R(x,a) - R(y,a)| + gamma·W(P(x,a), P(y,a)) <= d(x,y).
2. The aggregated model averages rows and rewards of a cluster with *any* weights w that sum to
   one there. With e = sup |V* - Vbar∘c|, its action values are

       Qbar(C,a) = sum_y w(y) [R(y,a) + gamma·sum_z P(z|y,a) Vbar(c(z))],

   within gamma·e of sum_y w(y) Q*(y,a), which by 1 is within delta of Q*(x,a) for each x in C.
   So |Q*(x,a) - Qbar(C,a)| <= delta + gamma·e; maxima over a differ by no more, hence
   e <= delta + gamma·e, that is e <= E := delta/(1 - gamma), and the gap of Q is at most E too.
3. Let a policy of the aggregated model lose at most eta in one step, Vbar(C) - Qbar(C, pi) <= eta
   (0 if it is greedy). Lifted, it has V*(x) - Q*(x,pi) <= (Vbar + E) - (Qbar(C,pi) - E)
   <= 2E + eta, and a policy that loses so much in each step loses (2E + eta)/(1 - gamma) in all.
4. By 2, V* <= Vbar∘c + E: what the lifted policy really loses is at most Vbar∘c + E - V^pi.

The end of episodes. An aggregated model has its end state apart from all clusters: the terminal
state is taken out of whatever cluster holds it. The proof then speaks of this finer partition:
the end has diameter 0, and of the cluster that held it only the live members count. Leaving the
end inside would be covered by the same inequalities, but would make live states end at random.

Rounding. The stored averages are floats. If a stored row differs from an exact average by r in
the sum of absolute differences, and a stored reward by r·max|R|, then Qbar moves by at most
rho = r·(max|R| + gamma·max|Vbar|), and delta + rho takes the place of delta above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._mdp_checks import frozen
from bisim_abstract._text import counted
from bisim_abstract._typing import FloatArray, IntArray
from bisim_abstract._validation import check_choice, check_gamma
from bisim_abstract.blocks import as_labels
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.mdp import TabularMDP, check_mdp
from bisim_abstract.planning import Values, evaluate_policy, value_iteration

__all__ = [
    "Aggregation",
    "LossBounds",
    "ValueLoss",
    "aggregate",
    "lift_policy",
    "loss_bounds",
    "value_loss",
]

EPS = 2.0**-53
UP = 1.0 + 64.0 * EPS  # more than a dozen roundings of positive numbers
LEFT = 1e-12  # discounted mass of a walk that is not followed any further
WEIGHTINGS = ("uniform", "start", "visitation")


@dataclass(frozen=True, eq=False)
class Aggregation:
    """A model whose states are clusters of another model's states.

    Attributes:
        mdp: The aggregated model. If the other has a terminal state, it has one too, after all
            clusters: its last state.
        labels: (n_states) state of `mdp` that each state of the other model belongs to.
        weights: (n_states) weight of each state within its cluster; they sum to one there.
        weighting: "uniform", "start", "visitation" or "given": where the weights come from.
        rounding: Bound on the sum of absolute differences between a stored row of `mdp` and
            the exact average; and, relative to the largest reward, on that of a reward.
    """

    mdp: TabularMDP
    labels: IntArray
    weights: FloatArray
    weighting: str
    rounding: float

    @property
    def n_clusters(self) -> int:
        """Number of clusters, the end of episodes not counted."""
        return self.mdp.n_states - (self.mdp.terminal_state is not None)

    def members(self, cluster: int) -> IntArray:
        """States of the other model that belong to a cluster."""
        return np.flatnonzero(self.labels == cluster)

    def __repr__(self) -> str:
        return (
            f"Aggregation({counted(self.labels.size, 'state')} in "
            f"{counted(self.n_clusters, 'cluster')}, "
            f"{self.weighting} weights)"
        )


def aggregate(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    *,
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
        labels: (n_states) cluster of each state; any whole numbers.
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
    """
    from scipy.sparse import csr_array

    check_mdp(mdp)
    n, n_actions = mdp.n_states, mdp.n_actions
    given = as_labels(labels, n)
    cluster, count = _apart(given, mdp.terminal_state)
    raw, name = _raw_weights(mdp, weighting, gamma)
    weights = _normalised(raw, cluster, count)

    # Row (C, a) of the averaging matrix holds w(y) at column (y, a), in the order of y.
    order = np.argsort(cluster, kind="stable")
    sizes = np.bincount(cluster, minlength=count)
    pairs = np.repeat(cluster[order], n_actions) * n_actions + np.tile(np.arange(n_actions), n)
    columns = (order[:, None] * n_actions + np.arange(n_actions)).ravel()
    mixer = csr_array(
        (np.repeat(weights[order], n_actions), (pairs, columns)),
        shape=(count * n_actions, n * n_actions),
    )
    lifted = csr_array(
        (mdp.normalised_probs, cluster[mdp.indices], mdp.indptr), shape=(n * n_actions, count)
    )
    rows = csr_array(mixer @ lifted)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rewards = np.add.reduceat((weights[:, None] * mdp.rewards)[order], begins)
    low = np.minimum.reduceat(mdp.rewards[order], begins)
    high = np.maximum.reduceat(mdp.rewards[order], begins)
    start = np.bincount(cluster, weights=mdp.start, minlength=count)
    per_pair = np.bincount(
        np.repeat(cluster, n_actions) * n_actions + np.tile(np.arange(n_actions), n),
        weights=np.diff(mdp.indptr),
    )
    end = None if mdp.terminal_state is None else count - 1
    kept = {key: mdp.metadata[key] for key in ("env", "gymnasium") if key in mdp.metadata}
    small = TabularMDP.from_rows(
        rows.indptr,
        rows.indices,
        rows.data,
        np.clip(rewards, low, high),  # equal rewards stay what they are
        start=start / start.sum(),
        terminal_state=end,
        metadata={**kept, "method": "aggregation", "weighting": name, "ground_states": n},
    )
    # Sums of `terms` positive products, weights off by as many roundings, rows by their sum.
    terms = float(per_pair.max())
    return Aggregation(
        mdp=small,
        labels=frozen("labels", cluster, np.int64),
        weights=frozen("weights", weights, np.float64),
        weighting=name,
        rounding=4.0 * (terms + 16.0) * EPS,
    )


def lift_policy(
    aggregation: Aggregation, policy: npt.ArrayLike
) -> IntArray | npt.NDArray[np.float64]:
    """A policy over clusters as one over the states: each acts as its cluster does.

    Args:
        aggregation: The clusters.
        policy: (n) actions or (n, n_actions) probabilities, n being the number of states of
            `aggregation.mdp`.

    Returns:
        (n_states) actions or (n_states, n_actions) probabilities.
    """
    given = np.asarray(policy)
    small = aggregation.mdp
    is_actions = given.shape == (small.n_states,) and given.dtype.kind in "iu"
    is_probs = given.shape == small.rewards.shape and given.dtype.kind in "iuf"
    if not is_actions and not is_probs:
        raise InvalidArgumentError(
            f"policy must be actions of shape ({small.n_states},) or probabilities of shape "
            f"{small.rewards.shape}, got {given.dtype} of shape {given.shape}"
        )
    if is_actions:
        return given.astype(np.int64)[aggregation.labels]
    return given.astype(np.float64)[aggregation.labels]


@dataclass(frozen=True)
class ValueLoss:
    """How far the values of a policy are below the optimal ones.

    Each figure is proven to lie between its lower and its upper bound; the upper one is what
    may be claimed.

    Attributes:
        sup: Upper bound on the largest loss of a state.
        mean: Upper bound on the mean over all states.
        start: Upper bound on the mean over the start distribution.
        sup_lower: Lower bound on the largest loss.
        mean_lower: Lower bound on the mean.
        start_lower: Lower bound on the mean over the start.
        start_share: Lower bound on the policy's start value as a share of the optimal one;
            NaN unless the latter is proven positive.
    """

    sup: float
    mean: float
    start: float
    sup_lower: float
    mean_lower: float
    start_lower: float
    start_share: float


def value_loss(
    mdp: TabularMDP, gamma: float, policy: npt.ArrayLike, *, optimal: Values | None = None
) -> ValueLoss:
    """What a policy loses against the optimal values, between certified bounds.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        policy: (n_states) actions, or (n_states, n_actions) probabilities.
        optimal: `value_iteration(mdp, gamma)`, if known already.
    """
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    if optimal is None:
        optimal = value_iteration(mdp, gamma)
    if optimal.lower.size != mdp.n_states or optimal.gamma != gamma:
        raise InvalidArgumentError(
            f"optimal must be the values of these {mdp.n_states} states at gamma {gamma:g}, got "
            f"{optimal.lower.size} states at {optimal.gamma:g}"
        )
    own = evaluate_policy(mdp, policy, gamma)
    # One rounding of each difference, and one each of sum and quotient.
    size = float(max(np.abs(optimal.upper).max(), np.abs(own.lower).max()))
    size = max(size, float(max(np.abs(optimal.lower).max(), np.abs(own.upper).max())))
    pad = 8.0 * EPS * size + 1e-315
    high, low = optimal.upper - own.lower + pad, optimal.lower - own.upper - pad
    best, reached = optimal.start_bounds(mdp), own.start_bounds(mdp)
    n = mdp.n_states
    share = math.nan
    if best[0] > 0.0:
        share = reached[0] / best[1]
        share -= 4.0 * EPS * abs(share)
    return ValueLoss(
        sup=float(high.max()),
        mean=math.fsum(high) / n + pad,
        start=best[1] - reached[0] + pad,
        sup_lower=max(0.0, float(low.max())),
        mean_lower=max(0.0, math.fsum(low) / n - pad),
        start_lower=max(0.0, best[0] - reached[1] - pad),
        start_share=share,
    )


@dataclass(frozen=True)
class LossBounds:
    """What a policy of the aggregated model can lose, proven without the optimal values.

    Attributes:
        diameter: delta, the largest diameter of a cluster.
        value_error: Bound on |V* - Vbar∘c|: delta/(1 - gamma), and rounding.
        greedy_error: Bound eta on what the policy loses in one step of the aggregated model;
            hardly above 0 if it is greedy.
        a_priori: Bound on the loss of the lifted policy: (2·value_error + eta)/(1 - gamma).
            Often far too large to be useful.
        a_posteriori: Bound on the same through its values: the largest Vbar∘c + value_error
            - V^pi.
        a_posteriori_start: The same as a mean over the start distribution.
    """

    diameter: float
    value_error: float
    greedy_error: float
    a_priori: float
    a_posteriori: float
    a_posteriori_start: float

    @property
    def best(self) -> float:
        """The smaller of the two bounds on the largest loss."""
        return min(self.a_priori, self.a_posteriori)


def loss_bounds(
    mdp: TabularMDP,
    aggregation: Aggregation,
    gamma: float,
    diameters: npt.ArrayLike,
    *,
    policy: npt.ArrayLike | None = None,
) -> LossBounds:
    """Bounds on what a policy of the aggregated model loses on the model itself.

    Args:
        mdp: The model. If it is an estimate, values are those of the estimate.
        aggregation: Of this model.
        gamma: The discount, in [0, 1).
        diameters: Upper bounds on the diameters of the clusters, as `cluster_diameters`
            gives for `aggregation.labels`, or one number above all of them.
        policy: A policy over clusters, as for `lift_policy`; the greedy one by default.

    Example:
        >>> from bisim_abstract import certify, cluster_diameters, grouped_mdp
        >>> mdp, _ = grouped_mdp(40, 4, noise=0.01, seed=0)
        >>> certificate = certify(mdp, 0.9)
        >>> small = aggregate(mdp, certificate.labels_upper)
        >>> diameters = cluster_diameters(certificate, small.labels)
        >>> bounds = loss_bounds(mdp, small, 0.9, diameters)
        >>> loss = value_loss(mdp, 0.9, lift_policy(small, value_iteration(small.mdp, 0.9).policy))
        >>> loss.sup <= bounds.a_posteriori <= bounds.a_priori
        True
    """
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    small = aggregation.mdp
    if aggregation.labels.size != mdp.n_states or small.n_actions != mdp.n_actions:
        raise InvalidArgumentError(
            f"aggregation is of {aggregation.labels.size} states and {small.n_actions} actions, "
            f"the model has {mdp.n_states} and {mdp.n_actions}"
        )
    given = np.asarray(diameters, dtype=np.float64)
    if given.shape not in ((), (small.n_states,)) or not (given >= 0.0).all():
        raise InvalidArgumentError(
            f"diameters must be one number >= 0 or {small.n_states} of them, got {diameters!r}"
        )
    delta = float(given.max())
    values = value_iteration(small, gamma)
    if policy is None:
        policy = values.policy
    lifted = lift_policy(aggregation, policy)
    own = evaluate_policy(mdp, lifted, gamma)

    top_reward = float(max(np.abs(mdp.rewards).max(), np.abs(small.rewards).max()))
    top_value = float(max(np.abs(values.lower).max(), np.abs(values.upper).max()))
    rho = (aggregation.rounding * (top_reward + gamma * top_value) + 1e-300) * UP
    value_error = (delta + rho) / (1.0 - gamma) * UP
    eta = _one_step_loss(small, gamma, values, np.asarray(policy), top_reward + top_value)
    a_priori = (2.0 * value_error + eta) / (1.0 - gamma) * UP

    size = top_value + value_error + float(np.abs(own.lower).max())
    pad = 8.0 * EPS * size
    gap = (values.upper[aggregation.labels] + value_error) - own.lower + pad
    used = np.flatnonzero(mdp.start)
    share = mdp.start[used] / math.fsum(mdp.start[used])
    return LossBounds(
        diameter=delta,
        value_error=value_error,
        greedy_error=eta,
        a_priori=a_priori,
        a_posteriori=float(gap.max()),
        a_posteriori_start=math.fsum(share * gap[used]) + 2.0 * pad,
    )


def _one_step_loss(
    small: TabularMDP, gamma: float, values: Values, policy: npt.NDArray[np.generic], size: float
) -> float:
    """Bound on the largest Vbar(C) - Qbar(C, pi), at least 0."""
    q = small.rewards + gamma * (small.kernel() @ values.lower).reshape(small.rewards.shape)
    if policy.ndim == 1:
        taken = q[np.arange(small.n_states), policy.astype(np.int64)]
    else:
        weights = policy.astype(np.float64)
        taken = (weights / weights.sum(axis=1, keepdims=True) * q).sum(axis=1)
    pad = (small.max_support + small.n_actions + 16) * EPS * size * 2.0
    return max(0.0, float((values.upper - taken).max()) + pad)


def _apart(given: IntArray, terminal: int | None) -> tuple[IntArray, int]:
    """Labels with the terminal state in a cluster of its own, the last; and their number."""
    if terminal is None:
        return given, int(given.max()) + 1
    is_live = np.arange(given.size) != terminal
    cluster = np.empty_like(given)
    live = as_labels(given[is_live], given.size - 1) if given.size > 1 else given[:0]
    cluster[is_live] = live
    cluster[terminal] = int(live.max(initial=-1)) + 1
    return cluster, int(cluster[terminal]) + 1


def _raw_weights(
    mdp: TabularMDP, weighting: str | npt.ArrayLike, gamma: float | None
) -> tuple[FloatArray, str]:
    if not isinstance(weighting, str):
        raw = np.asarray(weighting, dtype=np.float64)
        if raw.shape != (mdp.n_states,) or not (np.isfinite(raw) & (raw >= 0.0)).all():
            raise InvalidArgumentError(
                f"weighting must be a name or {mdp.n_states} finite numbers >= 0, "
                f"got shape {raw.shape}"
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
    # Row s of the walk is the mean of rows (s, a): its entries lie next to each other.
    walk = csr_array(
        (mdp.normalised_probs / n_actions, mdp.indices, mdp.indptr[::n_actions]), shape=(n, n)
    ).T.tocsr()
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
