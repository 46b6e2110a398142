"""Values of models that are known up to radii: one backup of the least favourable model, solved.

A true reward is in its interval, and a true row p within t of the model's own row q in total
variation. For any function x and any level λ <= max x let y = max(x, λ). Then

    p·x <= p·y = q·y + (p - q)·y <= q·y + t (max x - λ),

as y lies between λ and max x, and no difference of two rows gains more than t times that. The best
level is where the t of q's mass with the least values ends; with it, the bound is attained by the
row that has this mass where x is largest. (Nilim and El Ghaoui 2005, Iyengar 2005.) Below, the
same holds for -x.

So a backup is the largest over a set of rows: monotone, and B(x + c) = Bx + γc. Two things follow.
It contracts, however large radii are: no bound exceeds what rewards alone allow. And the shift that
repairs any function (`value_proof.bounded`) works as for a model that is known.

A function may also be constant on blocks. Its backup is then the least favourable one of a block's
members, and satisfies its inequality in each of them. Such a function sees no more of a row than
its sums by blocks, so that their radius will do, where an estimate has it.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._exact.planning import DIRECT_LIMIT
from bisim_abstract._exact.solving import solve_chain
from bisim_abstract._model.estimation import reward_intervals
from bisim_abstract._model.mdp import TabularMDP

ROUNDS = 100  # of policy iteration; the bounds hold after any number
SWEEPS = 20  # with a fixed choice, where solving for it would take too long


def row_radii(mdp: TabularMDP, values: FloatArray) -> FloatArray:
    """(n_states, n_actions) how far true rows may be, as far as a function over states can tell."""
    assert mdp.estimate is not None
    return mdp.estimate.radius_of(values)


def worst_rows(
    mdp: TabularMDP, values: FloatArray, sign: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """What true rows can gain (sign 1) or lose (-1) at most of a function over states.

    Returns:
        (rows) bounds on p·values; (nnz) what is left of the model's entries in rows that attain
        them; and (rows) the mass that these have where the function is largest, or least.
    """
    radius = row_radii(mdp, values).ravel()
    begins = mdp.indptr[:-1]
    rows = np.repeat(np.arange(begins.size), np.diff(mdp.indptr))
    x = sign * values[mdp.indices]
    best = float((sign * values).max())
    order = np.lexsort((x, rows))
    x, probs = x[order], mdp.normalised_probs[order]
    total = np.cumsum(probs)
    before = (total - probs) - (total - probs)[begins][rows]  # mass with lesser values, in its row
    taken = np.clip(radius[rows] - before, 0.0, probs)
    # The level is that of the last entry which is touched, or the first of all.
    is_left = before + probs >= radius[rows]
    position = np.where(is_left, np.arange(x.size), x.size)
    level = x[np.minimum(np.minimum.reduceat(position, begins), mdp.indptr[1:] - 1)]
    bound = np.add.reduceat(probs * np.maximum(x, level[rows]), begins) + radius * (best - level)
    left = np.empty_like(probs)
    left[order] = probs - taken
    return sign * bound, left, np.add.reduceat(taken, begins)


def backed_up(mdp: TabularMDP, gamma: float, values: FloatArray, sign: float) -> FloatArray:
    """(n_states, n_actions) the most (sign 1) or the least (-1) that actions can be worth."""
    low, high = reward_intervals(mdp)
    ahead, _, _ = worst_rows(mdp, values, sign)
    return np.asarray((high if sign > 0.0 else low) + gamma * ahead.reshape(low.shape))


def solve(
    mdp: TabularMDP,
    gamma: float,
    sign: float,
    policy: IntArray | FloatArray | BoolArray | None,
    guess: FloatArray,
    labels: IntArray | None = None,
) -> FloatArray:
    """(n_states) values near the fixed point of the least favourable backup; not trusted.

    Policy iteration, over actions (where none are given), rows and members of blocks together.

    Args:
        mdp: The estimated model.
        gamma: The discount.
        sign: 1 for upper bounds, -1 for lower ones.
        policy: (n_states) actions, (n_states, n_actions) weights, or booleans, a set of actions of
            which the worst counts; None for the best action.
        guess: (n_states) where to begin.
        labels: (n_states) blocks, numbered from 0, on which values are to be constant.
    """
    from scipy.sparse import csr_array

    n, n_actions = mdp.n_states, mdp.n_actions
    everyone = np.arange(n)
    low, high = reward_intervals(mdp)
    rewards = high if sign > 0.0 else low
    of_block = everyone if labels is None else labels
    count = int(of_block.max()) + 1
    lift = csr_array((np.ones(n), (everyone, of_block)), shape=(n, count))
    values = _worst_members(sign * guess, of_block, count)[1][of_block] * sign
    before = np.full(n, np.inf)
    for _ in range(ROUNDS):
        ahead, left, moved = worst_rows(mdp, values, sign)
        q = rewards + gamma * ahead.reshape(rewards.shape)
        weights = _weights(q, policy)
        members, found = _worst_members(sign * (weights * q).sum(axis=1), of_block, count)
        backup = sign * found[of_block]
        moves = float(np.abs(backup - values).max())
        is_still = moves <= 1e-13 * float(np.abs(backup).max())
        if is_still or np.array_equal(values, before) or not np.isfinite(backup).all():
            break
        before = values
        rows = csr_array((left, np.array(mdp.indices), np.array(mdp.indptr)), shape=(low.size, n))
        picked = (members[:, None] * n_actions + np.arange(n_actions)).ravel()
        choice = csr_array(
            (weights[members].ravel(), (np.repeat(np.arange(count), n_actions), picked)),
            shape=(count, low.size),
        )
        target = int((sign * values).argmax())
        extra, paid = (np.asarray(choice @ each) for each in (moved, rewards.ravel()))
        column = np.full(count, of_block[target], np.int64)
        at = csr_array((extra, column, np.arange(count + 1)), shape=(count, count))
        chain = choice @ rows @ lift + at
        now = np.asarray(backup)
        of_blocks = np.zeros(count)
        of_blocks[of_block] = now
        if count <= DIRECT_LIMIT:
            of_blocks = solve_chain(chain, gamma, paid)
        else:
            for _ in range(SWEEPS):
                of_blocks = paid + gamma * (chain @ of_blocks)
        values = of_blocks[of_block]
        if not np.isfinite(values).all():
            return now
    return np.asarray(values)


def _weights(q: FloatArray, policy: IntArray | FloatArray | BoolArray | None) -> FloatArray:
    """(n_states, n_actions) what is done: the best, a policy's, a mixture's, the worst of a set."""
    if policy is not None and policy.dtype == np.bool_:
        policy = np.where(policy, q, np.inf).argmin(axis=1)
    if policy is not None and policy.ndim == 2:
        return policy.astype(np.float64)
    actions = q.argmax(axis=1) if policy is None else policy.astype(np.int64)
    weights = np.zeros(q.shape)
    weights[np.arange(actions.size), actions] = 1.0
    return weights


def _worst_members(values: FloatArray, labels: IntArray, count: int) -> tuple[IntArray, FloatArray]:
    """(count) the member of each block whose value is largest, and that value."""
    order = np.lexsort((values, labels))
    last = np.searchsorted(labels[order], np.arange(count), side="right") - 1
    members = order[last]
    return members, values[members]
