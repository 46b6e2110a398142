"""What others do, for `bench.py` to compare with: plain iterations, Sinkhorn, POT and Storm.

The iterations are written here from their descriptions, in NumPy, as their readers would write
them. None of them proves anything: they stop when they stop moving, or after so many rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract import TabularMDP

Table = npt.NDArray[np.float64]


# -- transport -----------------------------------------------------------------------------------


def linprog_value(cost: Table, a: Table, b: Table) -> float:
    """One transport problem through SciPy's LP."""
    from scipy.optimize import linprog

    m, n = cost.shape
    rows = np.kron(np.eye(m), np.ones(n))
    cols = np.kron(np.ones(m), np.eye(n))
    result = linprog(
        cost.ravel(), A_eq=np.vstack([rows, cols])[:-1], b_eq=np.append(a, b)[:-1], method="highs"
    )
    assert result.fun is not None
    return float(result.fun)


def as_couplings(plans: Table, a: Table, b: Table) -> Table:
    """(..., m, n) plans with the right sums, as near as little work brings them.

    The rounding of Altschuler, Weed and Rigollet (2017): rows, then columns, that hold too much
    are scaled down, and what is missing is spread by a product.
    """
    sums = plans.sum(axis=-1)
    plans = plans * np.minimum(1.0, a / np.where(sums > 0.0, sums, 1.0))[..., None]
    sums = plans.sum(axis=-2)
    plans = plans * np.minimum(1.0, b / np.where(sums > 0.0, sums, 1.0))[..., None, :]
    short_a = np.maximum(a - plans.sum(axis=-1), 0.0)
    short_b = np.maximum(b - plans.sum(axis=-2), 0.0)
    total = short_a.sum(axis=-1)[..., None, None]
    spread = short_a[..., :, None] * short_b[..., None, :]
    return np.asarray(plans + spread / np.where(total > 0.0, total, 1.0))


# -- plain iterations ----------------------------------------------------------------------------


def plain_deterministic(mdp: TabularMDP, gamma: float, tol: float) -> tuple[Table, int]:
    """The metric of a deterministic model by value iteration on the dense table of pairs."""
    successor = mdp.indices.reshape(mdp.n_states, mdp.n_actions)
    rewards = mdp.rewards
    gaps = [np.abs(rewards[:, a, None] - rewards[:, a]) for a in range(mdp.n_actions)]
    places = [np.ix_(successor[:, a], successor[:, a]) for a in range(mdp.n_actions)]
    table = np.zeros((mdp.n_states, mdp.n_states))
    sweeps = 0
    while True:
        new = gaps[0] + gamma * table[places[0]]
        for gap, place in zip(gaps[1:], places[1:], strict=True):
            np.maximum(new, gap + gamma * table[place], out=new)
        sweeps += 1
        change = float(np.abs(new - table).max())
        table = new
        if change * gamma / (1.0 - gamma) <= tol:
            return table, sweeps


def pot_sweep(
    mdp: TabularMDP, gamma: float, table: Table, emd: Any, pairs: int | None = None
) -> Table:
    """One backup of all pairs, or of the first so many, with one call of POT for each action."""
    n, n_actions = mdp.rewards.shape
    rows = [[mdp.successors(s, a) for a in range(n_actions)] for s in range(n)]
    normal = [[(i, p / p.sum()) for i, p in row] for row in rows]
    rewards, new = mdp.rewards, np.zeros_like(table)
    for s, t in list(zip(*np.triu_indices(n, 1), strict=True))[:pairs]:
        value = 0.0
        for a in range(n_actions):
            (i, p), (j, q) = normal[s][a], normal[t][a]
            cost = table[i[:, None], j]
            plan = emd.emd_c(p, q, cost, 100_000, 1)[0]
            value = max(
                value, abs(rewards[s, a] - rewards[t, a]) + gamma * float((plan * cost).sum())
            )
        new[s, t] = new[t, s] = value
    return new


def plain_stochastic(mdp: TabularMDP, gamma: float, tol: float, emd: Any) -> tuple[Table, int]:
    """The metric of any model by value iteration, with POT inside."""
    table, sweeps = np.zeros((mdp.n_states, mdp.n_states)), 0
    while True:
        new = pot_sweep(mdp, gamma, table, emd)
        sweeps += 1
        change = float(np.abs(new - table).max())
        table = new
        if change * gamma / (1.0 - gamma) <= tol:
            return table, sweeps


def plain_values(mdp: TabularMDP, gamma: float, tol: float) -> Table:
    """Optimal values by sweeps over all states, as in any textbook."""
    values, kernel = np.zeros(mdp.n_states), mdp.kernel()
    while True:
        ahead = (kernel @ values).reshape(mdp.rewards.shape)
        new: Table = (mdp.rewards + gamma * ahead).max(axis=1)
        change = float(np.abs(new - values).max())
        values = new
        if change * gamma / (1.0 - gamma) <= tol:
            return values


def plain_mico(P: Table, rewards: Table, gamma: float, tol: float) -> tuple[Table, int]:
    """MICo's distance, U = |r - r'| + gamma·P U Pᵀ (Castro et al. 2021), on a dense chain."""
    gaps = np.abs(rewards[:, None] - rewards)
    table, sweeps = np.zeros_like(gaps), 0
    while True:
        new = gaps + gamma * (P @ table @ P.T)
        sweeps += 1
        change = float(np.abs(new - table).max())
        table = new
        if change * gamma / (1.0 - gamma) <= tol:
            return table, sweeps


# -- Sinkhorn value iteration --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Chain:
    """A one-action model whose rows all have as many successors.

    Attributes:
        after: (n, m) successors of each state.
        probs: (n, m) their probabilities.
        gaps: (n, n) differences of rewards.
    """

    after: npt.NDArray[np.int64]
    probs: Table
    gaps: Table

    @classmethod
    def of(cls, mdp: TabularMDP) -> Chain:
        """The chain of a model with one action."""
        sizes = np.unique(np.diff(mdp.indptr))
        if mdp.n_actions != 1 or sizes.size != 1:
            raise ValueError("this needs one action, and rows of one length")
        shape = (mdp.n_states, int(sizes[0]))
        probs = mdp.probs.reshape(shape)
        paid = mdp.rewards[:, 0]
        return cls(
            after=mdp.indices.reshape(shape).astype(np.int64),
            probs=probs / probs.sum(axis=1, keepdims=True),
            gaps=np.abs(paid[:, None] - paid),
        )

    def ahead(self, table: Table) -> Table:
        """(n, n, m, m) entries of a table at the successors of both states."""
        return np.asarray(table[self.after[:, None, :, None], self.after[None, :, None, :]])


def sinkhorn_value_iteration(
    chain: Chain, gamma: float, *, eta: float, rounds: int, tol: float
) -> Table:
    """What the plans cost that the method of Calo et al. (NeurIPS 2024) ends with.

    Each pair of states has a plan of its successors, the product to begin with. A round multiplies
    each plan by exp(-eta·gamma·V), V the value of pairs so far, and corrects row sums in odd
    rounds, column sums in even ones, instead of solving a transport problem; the logarithms of
    what was corrected are the next V. Errors fall like 1/(eta·rounds) down to some multiple of
    eta. At the end plans are made couplings, so that what they cost is no less than the metric.
    """
    n, m = chain.probs.shape
    sides = (chain.probs[:, None, :, None], chain.probs[None, :, None, :])
    logs = np.log(sides[0]) + np.log(sides[1])
    table = np.zeros((n, n))
    for k in range(rounds):
        side, axis = sides[k % 2], 3 - k % 2
        logs = logs - eta * gamma * chain.ahead(table)
        top = logs.max(axis=axis, keepdims=True)
        sums = top + np.log(np.exp(logs - top).sum(axis=axis, keepdims=True))
        short = np.log(side) - sums
        # V(x,y) = c(x,y) - 1/eta·sum_x' P(x'|x)·log(sum_y' plan(x',y')·exp(...) / P(x'|x))
        table = chain.gaps + (side * short).sum(axis=(2, 3)) / eta
        logs = logs + short
    plans = as_couplings(
        np.exp(logs),
        np.broadcast_to(chain.probs[:, None], (n, n, m)),
        np.broadcast_to(chain.probs[None, :], (n, n, m)),
    )
    return plan_values(chain, gamma, plans, tol)


def plan_values(chain: Chain, gamma: float, plans: Table, tol: float) -> Table:
    """What pairs of states cost if their successors are coupled by these plans."""
    table: Table = chain.gaps
    while True:
        new = chain.gaps + gamma * (plans * chain.ahead(table)).sum(axis=(2, 3))
        change = float(np.abs(new - table).max())
        table = new
        if change * gamma / (1.0 - gamma) <= tol:
            return table


# -- Storm ---------------------------------------------------------------------------------------


def storm_chain(chain: TabularMDP) -> Any:
    """The Markov chain of a one-action model as a Storm model, rewards as labels."""
    from stormpy.datastructures import SparseMatrixBuilder
    from stormpy.models import SparseDtmc, SparseModelComponents

    n = chain.n_states
    builder = SparseMatrixBuilder[float](
        rows=n, columns=n, entries=chain.nnz, force_dimensions=True, has_custom_row_grouping=False
    )
    indptr, indices, probs = (x.tolist() for x in (chain.indptr, chain.indices, chain.probs))
    for s in range(n):
        for k in range(indptr[s], indptr[s + 1]):
            builder.add_next_value(s, indices[k], probs[k])
    _, kinds = np.unique(chain.rewards[:, 0], return_inverse=True)
    parts = SparseModelComponents[float](
        transition_matrix=builder.build(), state_labeling=_storm_labels(kinds)
    )
    return SparseDtmc[float](parts)


def storm_mdp(mdp: TabularMDP, rewards: Table) -> Any:
    """A model whose states all have all actions, as one of Storm's, with these rewards."""
    from stormpy.datastructures import SparseMatrixBuilder
    from stormpy.models import SparseMdp, SparseModelComponents, SparseRewardModel

    builder = SparseMatrixBuilder[float](
        rows=0, columns=0, entries=0, force_dimensions=False, has_custom_row_grouping=True
    )
    indptr, indices, probs = (x.tolist() for x in (mdp.indptr, mdp.indices, mdp.probs))
    for row in range(mdp.n_states * mdp.n_actions):
        if row % mdp.n_actions == 0:
            builder.new_row_group(row)
        for k in range(indptr[row], indptr[row + 1]):
            builder.add_next_value(row, indices[k], probs[k])
    parts = SparseModelComponents[float](
        transition_matrix=builder.build(),
        state_labeling=_storm_labels(np.zeros(mdp.n_states, int)),
    )
    paid = SparseRewardModel[float](optional_state_action_reward_vector=rewards.ravel().tolist())
    parts.reward_models = {"paid": paid}
    return SparseMdp[float](parts)


def storm_states(model: Any, tolerance: str | None) -> int:
    """How many states Storm's quotient has, actions by name, numbers compared up to a tolerance."""
    from stormpy import Rational
    from stormpy.transformations import BisimulationOptions, perform_bisimulation

    options = BisimulationOptions()
    options.action_sensitive = True
    options.preserve_all_rewards = True
    if tolerance is not None:
        options.tolerance = Rational(tolerance)
    return int(perform_bisimulation(model, [], options=options).nr_states)


def _storm_labels(kinds: Any) -> Any:
    from stormpy.datastructures import BitVector
    from stormpy.models import StateLabeling

    labels = StateLabeling(kinds.size)
    for kind in np.unique(kinds).tolist():
        labels.add_label(f"r{kind}")
        labels.set_states(f"r{kind}", BitVector(kinds.size, np.flatnonzero(kinds == kind).tolist()))
    labels.add_label("init")
    labels.set_states("init", BitVector(kinds.size, [0]))
    return labels
