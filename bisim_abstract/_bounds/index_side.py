"""Arms with approximate backups, corrected until they are exact bounds again.

The paper allows a covered backup B with |Bf - Tf| <= eps_op. Its index-side instance reads
ground costs off an embedding instead of the arm itself, and may leave out a share r of the
probability mass; then eps_op <= gamma·(eta + r·D), with eta the largest difference between an
embedded distance and the cost it stands for.

If f <= Bf + 0 held exactly we would have f <= Tf. Here f <= Tf + eps_op, and with
c = eps_op/(1 - gamma) the shifted arm satisfies f - c <= Tf + eps_op - c = Tf - gamma·c
<= T(f - c): a sub-solution. The upper arm mirrors it. So the arms, moved outward by c, are
bounds in the ordinary sense; their certificates are verified like any other, and clustering
them at tau is what the paper calls merging at the shrunken threshold tau - c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.checks import check_fraction, check_int
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import landmark_mds
from bisim_abstract._relations.base import Relation

__all__ = ["IndexSideRun", "index_side_run", "truncated_mdp"]


@dataclass(frozen=True, eq=False)
class IndexSideRun:
    """What a run with index-side backups found.

    Attributes:
        raw_lower: (covered) the lower arm as iterated.
        raw_upper: (covered) the upper arm as iterated.
        arms: The same pairs with both arms moved outward by eps_op/(1 - gamma), and never
            beyond their starts: bounds on the metric.
        eps_op: Bound on the error of every backup made: gamma·(eta + omitted·D), with the
            largest cost in place of D where an arm went beyond it.
        eta: Largest difference between an embedded distance and the cost it stood for.
        omitted: Largest probability mass left out, both rows of a pair together.
        backups: Pair backups made.
    """

    raw_lower: FloatArray
    raw_upper: FloatArray
    arms: Arms
    eps_op: float
    eta: float
    omitted: float
    backups: int


def index_side_run(
    mdp: TabularMDP,
    gamma: float,
    *,
    first: IntArray,
    second: IntArray,
    sweeps: int,
    dim: int = 8,
    omit: float = 0.0,
    lower_start: str = "reward",
    upper_start: str = "constant",
    relation: str | Relation = "plain",
    seed: int = 0,
    resources: Resources = HERE,
) -> IndexSideRun:
    """Sweep both arms over given pairs, reading ground costs off embeddings of the arms.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        first: States of the covered pairs.
        second: Their partners.
        sweeps: Number of sweeps.
        dim: Dimension of the landmark MDS, made anew for each arm and sweep.
        omit: Share of probability mass that may be left out per pair: from each row its
            least likely successors, up to half of it.
        lower_start: "reward" or "zero".
        upper_start: "constant" or "reward".
        relation: Which actions are compared.
        seed: Seed of the embeddings.
        resources: Threads, workers and memory. Results do not depend on them.
    """
    check_mdp(mdp)
    sweeps = check_int("sweeps", sweeps, low=0)
    seed = check_int("seed", seed, low=0)
    short, omitted = truncated_mdp(mdp, check_fraction("omit", omit) / 2.0)

    def covered(model: TabularMDP) -> Arms:
        arms = Arms(
            model,
            gamma,
            lower_start=lower_start,
            upper_start=upper_start,
            relation=relation,
            resources=resources,
        )
        arms.cover(first, second)
        return arms

    table = covered(short)
    # As iterated, these are no bounds yet: the arms never hold them.
    lower, upper = table.lower, table.upper
    eta, top = 0.0, table.starts.diameter
    for sweep in range(sweeps if table.n_covered else 0):
        below, off, most = _embedded_backup(table, lower, False, dim, [seed, sweep, 0])
        eta, top = max(eta, off), max(top, most)
        above, off, most = _embedded_backup(table, upper, True, dim, [seed, sweep, 1])
        eta, top = max(eta, off), max(top, most)
        lower, upper = np.maximum(lower, below), np.minimum(upper, above)
    # Omitting mass from both rows moves a transport cost by at most that mass times the largest
    # cost: D, or more where errors have carried an arm beyond it. The last factor covers the
    # rounding of this line and of eta.
    eps_op = gamma * (eta + 2.0 * omitted * top) * (1.0 + 1e-12)
    shift = eps_op / (1.0 - gamma) * (1.0 + 1e-12)
    exact = covered(mdp)
    exact.tighten(lower - shift, upper + shift)
    return IndexSideRun(lower, upper, exact, eps_op, eta, 2.0 * omitted, table.backups)


def truncated_mdp(mdp: TabularMDP, share: float) -> tuple[TabularMDP, float]:
    """The model without its least likely successors, about `share` of each row's mass at most.

    Returns:
        The model, each row divided by what is left of it, and the largest total variation
        distance between an old row and its new one: the mass left out, rounded up.
    """
    check_fraction("share", share)
    if share == 0.0:
        return mdp, 0.0
    probs = mdp.normalised_probs
    rows = np.repeat(np.arange(mdp.indptr.size - 1), np.diff(mdp.indptr))
    order = np.lexsort((probs, rows))
    # Sums from the least likely successor on, row by row: leave out while they are small.
    running = np.cumsum(probs[order])
    before = np.concatenate([[0.0], running])[mdp.indptr[:-1]]
    within = running - before[rows[order]]
    gone = np.zeros(probs.size, bool)
    # Running sums over the whole model round; what was left out is added up anew below.
    gone[order] = within <= share + 1e-9
    kept = ~gone
    removed = np.bincount(rows, weights=np.where(gone, probs, 0.0), minlength=mdp.indptr.size - 1)
    sums = np.bincount(rows, weights=np.where(kept, probs, 0.0), minlength=mdp.indptr.size - 1)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=sums.size))])
    short = TabularMDP(
        indptr=indptr,
        indices=mdp.indices[kept],
        probs=probs[kept] / sums[rows[kept]],
        rewards=mdp.rewards,
        available=mdp.available,
        start=mdp.start,
        state_ids=mdp.state_ids,
        terminal_state=mdp.terminal_state,
        estimate=mdp.estimate,  # true rows are as far from these as before, but for what was cut
        names=mdp.names,
        metadata=mdp.metadata,
    )
    return short, float(removed.max()) * (1.0 + 1e-9) + 1e-12


def _embedded_backup(
    table: Arms, values: FloatArray, is_upper: bool, dim: int, seed: list[int]
) -> tuple[FloatArray, float, float]:
    """The backup under the distances of an embedding of one arm.

    Args:
        table: The covered pairs.
        values: (covered) what the arm says of them.
        is_upper: Which arm it is.
        dim: Dimension of the embedding.
        seed: Of the embedding.

    Returns:
        The backup, the largest difference between a distance and the cost it stands for, and
        the largest of these costs.
    """

    def distance(states: IntArray, others: IntArray) -> FloatArray:
        s, t = np.broadcast_arrays(states, others)
        read = table.ground.read(np.minimum(s, t), np.maximum(s, t))[1 if is_upper else 0]
        at, known = table.covered.find(s, t)
        read = np.where(known, values[at], read)
        return np.where(s == t, 0.0, read)

    points = landmark_mds(
        distance,
        table.n,
        dim=dim,
        seed=np.random.default_rng(seed),
        resources=table.resources,
    )
    first, second = table.ground_pairs()
    gaps = points[first] - points[second]
    unit = int(np.frexp(np.abs(gaps).max(initial=0.0))[1])  # squares of these cannot overflow
    costs = np.ldexp(np.sqrt((np.ldexp(gaps, -unit) ** 2).sum(axis=1)), unit)
    costs[0] = 0.0
    true = table.ground_costs(is_upper=is_upper, covered=values)
    off = float(np.abs(costs - true).max())
    return table.backup(costs, is_upper=is_upper), off, float(true.max())
