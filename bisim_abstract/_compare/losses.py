"""What abstractions lose: the certified one beside clusterings that nobody has proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.aggregate import aggregate, lift_policy
from bisim_abstract._abstract.baseline import find_baseline
from bisim_abstract._abstract.value_loss import ValueLoss, value_loss
from bisim_abstract._abstract.value_proof import matched_actions, prove_value
from bisim_abstract._base.checks import check_gamma, check_int, check_real
from bisim_abstract._base.types import IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._compare.clusterings import cluster_by_embedding, cluster_by_rewards
from bisim_abstract._exact.planning import Values, value_iteration
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract._propose.retrieval import k_means
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["AbstractionLoss", "compare_abstractions", "compare_clusterings"]


@dataclass(frozen=True)
class AbstractionLoss:
    """One clustering, and what planning on its clusters loses.

    Attributes:
        name: What it is.
        n_clusters: Number of its clusters, the end of episodes not counted.
        loss: Of the policy planned on the clusters and lifted to the states; for the certified
            clustering, of the policy that is handed out with it.
        is_certified: Whether it is the certified clustering.
        bound: What that policy is proven to lose at most in any state; None where nothing is.
    """

    name: str
    n_clusters: int
    loss: ValueLoss
    is_certified: bool = False
    bound: float | None = None


def compare_clusterings(
    mdp: TabularMDP,
    clusterings: Mapping[str, npt.ArrayLike],
    gamma: float,
    *,
    relation: str = "plain",
    optimal: Values | None = None,
) -> list[AbstractionLoss]:
    """What planning on each of several clusterings loses, evaluated on the model.

    Args:
        mdp: The model.
        clusterings: (n_states) labels by name.
        gamma: The discount, in [0, 1).
        relation: Whether actions of a cluster's members correspond by their names ("plain") or are
            matched by what they do ("lax"), for each clustering.
        optimal: `value_iteration(mdp, gamma)`, if known already.
    """
    check_mdp(mdp, call="compare_clusterings(mdp, clusterings, gamma)")
    gamma = check_gamma(gamma)
    best = value_iteration(mdp, gamma) if optimal is None else optimal
    baseline = find_baseline(mdp, gamma)
    rows = []
    for name, labels in clusterings.items():
        small = aggregate(mdp, labels, renaming=matched_actions(mdp, labels, relation))
        policy = value_iteration(small.mdp, gamma).policy
        lifted = lift_policy(small, policy)
        loss = value_loss(mdp, gamma, lifted, optimal=best, baseline=baseline)
        rows.append(AbstractionLoss(name, small.n_clusters, loss))
    return rows


def compare_abstractions(
    mdp: TabularMDP,
    certificate: Certificate,
    *,
    tau: float | None = None,
    embedding: Embedding | npt.ArrayLike | None = None,
    seed: int = 0,
) -> list[AbstractionLoss]:
    """The clusterings of a certificate beside rewards, an embedding and chance.

    Each of these appears twice: as single linkage at the same threshold, and as k-means with
    as many clusters. Where the arms differ at the threshold, both of theirs appear.

    Args:
        mdp: The model.
        certificate: Of this model.
        tau: The threshold; the certificate's own by default.
        embedding: Points (n_states, k), or an object with `encode`, to compare with as well.
        seed: Of k-means and chance.
    """
    check_mdp(mdp, call="compare_abstractions(mdp, certificate)")
    if certificate.fingerprint != mdp.fingerprint:
        raise InvalidArgumentError("the certificate is of another model")
    tau = certificate.tau if tau is None else tau
    if tau is None:
        raise InvalidArgumentError("tau must be given: the certificate has none of its own")
    if check_real("tau", tau) < 0.0:
        raise InvalidArgumentError(f"tau must be at least 0, a distance, got {tau!r}")
    gamma, n = certificate.gamma, mdp.n_states
    lower, upper = certificate.partitions(tau)
    k = int(upper.max()) + 1
    is_certified = bool(np.array_equal(lower, upper))
    own = {"certified": upper} if is_certified else {"upper arm": upper, "lower arm": lower}
    rng = np.random.default_rng(check_int("seed", seed, low=0))
    others: dict[str, IntArray] = {
        "rewards, same threshold": cluster_by_rewards(mdp, tau),
        "rewards, k-means": k_means(mdp.rewards, k, seed),
    }
    if embedding is not None:
        points = as_points(embedding, n)
        others["embedding, same threshold"] = cluster_by_embedding(points, n, tau)
        others["embedding, k-means"] = k_means(points, k, seed)
    # Every cluster gets a state, so that there are k of them.
    chance = np.concatenate([np.arange(k), rng.integers(k, size=n - k)])
    others["chance"] = rng.permutation(chance)
    relation = certificate.relation
    rows = compare_clusterings(mdp, own | others, gamma, relation=relation)
    if is_certified:
        value = certificate.value if tau == certificate.tau else None
        proven = prove_value(mdp, upper, gamma, relation=relation) if value is None else value
        loss = value_loss(mdp, gamma, proven.lifted_policy)
        rows[0] = replace(rows[0], loss=loss, is_certified=True, bound=proven.loss)
    return rows
