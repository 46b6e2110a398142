"""Where agents over clusters end, whoever they are, and what they are worth there.

An agent ends with a value q(C, b) for each cluster C and each name b of an action, and plays a
largest one. If q is known to lie between two bounds, it plays inside

    G(C) = {b : q_upper(C, b) >= max over b' of q_lower(C, b')},

and `proofs.least_inside` bounds from below the value of every policy that plays inside G. The two
kinds of agents differ in what their q is known to be.

- *Solvers* plan or learn on the small environment. They end with the optimal values q* of the
  averaged model. Where their values are off by m at most, they play inside G with 2m to spare.
- *Learners* take real steps and see clusters. Each update averages R + γ max q over members, with
  weights that depend on where the agent walks, and may change for ever. With T_upper the largest
  and T_lower the least of these over the members of a cluster, q_upper >= T_upper q_upper and
  q_lower <= T_lower q_lower give a box that one-step Q-learning ends in, whatever the weights:
  both are monotone γ-contractions, and every update moves towards a point between them.
- *Learners whose values converge* end with the fixed point q of one mixture of members per
  cluster and name. Let mid and hw be centre and half-width of what max q can be,
  B = R + γP(mid∘c), P̄ rows summed by clusters, and v = max q. Two members x, y of a cluster differ
  in what an action promises by at most B_y - B_x + γ|P̄_y - P̄_x|·hw. So the mixture that v(C) is
  exceeds what member x gets by σ(x, a) at most, its maximum over y, and if E >= σ + γPE for all
  actions the agent may play, then its value is at least v∘c - E >= max q_lower - E. An action
  that promises less than another one in all members cannot be a largest one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bisim_abstract._abstract.aggregate import Aggregation, entry_bounds, find_slots, slot_rows
from bisim_abstract._abstract.proofs import backup, largest_reward, least_inside, safe_shift
from bisim_abstract._abstract.robust import backed_up
from bisim_abstract._abstract.value import (
    ConvergedShare,
    LearnerShare,
    ProvenShare,
    SolverShare,
    best_between,
)
from bisim_abstract._base.deadline import look
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._exact.planning import DIRECT_LIMIT, Values
from bisim_abstract._exact.solving import solve_chain
from bisim_abstract._model.mdp import TabularMDP

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ROUNDS = 60  # of policy iteration; the bounds hold after any number
SWEEPS = 20  # with a fixed choice, where solving for it would take too long
LONG = 4_000  # sweeps where policy iteration runs in circles, or for estimates
MANY = 32  # names of a cluster beyond which they are not compared with each other
WORK = 2e8  # transitions that may be read to raise a bound by sweeps, about

# What a lower bound on values comes to: kept share, loss, start loss.
Judge = Callable[[FloatArray], ProvenShare]


@dataclass(frozen=True, eq=False)
class Members:
    """Which rows (x, a) of a model count as which name of a cluster.

    Attributes:
        mdp: The model.
        gamma: The discount.
        labels: (n_states) clusters.
        slots: (n_states, n_actions) the name that a row counts as in its cluster, -1 for none.
        used: (clusters, names) the names of each cluster.
        pairs: (entries) cluster * names + name, ascending.
        columns: (entries) the row of the model, state * n_actions + action, that counts as it.
        begins: Where the entries of each used name begin.
    """

    mdp: TabularMDP
    gamma: float
    labels: IntArray
    slots: IntArray
    used: BoolArray
    pairs: IntArray
    columns: IntArray
    begins: IntArray

    @classmethod
    def of(cls, mdp: TabularMDP, gamma: float, small: Aggregation) -> Members:
        """Those of an aggregation."""
        count = small.mdp.n_states
        _, slots, used = find_slots(mdp, small.labels, count, small.renaming)
        pairs, columns = slot_rows(small.labels, slots, used.shape[1])
        begins = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
        return cls(mdp, gamma, small.labels, slots, used, pairs, columns, begins)

    @property
    def longest(self) -> int:
        """The largest number of rows that count as one name of a cluster."""
        return int(np.diff(np.append(self.begins, self.pairs.size)).max())

    def extreme(self, rows: FloatArray, sign: float) -> FloatArray:
        """(clusters, names) the largest (sign 1) or least (-1) over members; 0 if not used."""
        found = np.zeros(self.used.size)
        at = self.pairs[self.begins]
        pick = np.maximum if sign > 0.0 else np.minimum
        found[at] = pick.reduceat(rows[self.columns], self.begins)
        return found.reshape(self.used.shape)

    def rows(self, values: FloatArray, sign: float) -> FloatArray:
        """(n_states * n_actions) one backup of values of clusters, with radii of an estimate."""
        of_state = values[self.labels]
        if self.mdp.estimate is not None:
            return backed_up(self.mdp, self.gamma, of_state, sign).ravel()
        return np.asarray(self.mdp.rewards.ravel() + self.gamma * (self.mdp.kernel() @ of_state))

    def lifted(self, rows: IntArray) -> csr_array:
        """Rows of the kernel, summed by clusters."""
        from scipy.sparse import csr_array

        picked = self.mdp.kernel()[rows]
        found = csr_array(
            (picked.data, self.labels[picked.indices], picked.indptr),
            shape=(rows.size, self.used.shape[0]),
        )
        found.sum_duplicates()
        return found

    def allowed(self, choices: BoolArray) -> BoolArray:
        """(n_states, n_actions) the actions that count as a chosen name.

        A member that lacks a name does its first action instead, as its padded row says.
        """
        return np.asarray((self.slots >= 0) & choices[self.labels[:, None], self.slots])


def solver_share(
    members: Members,
    small: Aggregation,
    planned: Values,
    judge: Judge,
    tol: float,
    guess: FloatArray,
) -> SolverShare:
    """What whoever solves the averaged model keeps, ties broken against it; without a margin.

    Args:
        members: Rows of the model, by clusters and names.
        small: The averaged model.
        planned: Bounds on its optimal values.
        judge: Makes a share of lower bounds on values.
        tol: How far below the least values bounds may be, about.
        guess: (n_states) values to begin with.
    """
    mdp, gamma = members.mdp, members.gamma
    values = _on_grid(planned.lower / 2.0 + planned.upper / 2.0)
    kernel, shape = small.mdp.kernel(), small.mdp.rewards.shape
    # An averaged row sums the entries of as many rows, and is summed again by whoever checks it.
    terms = members.longest * mdp.max_support + small.mdp.max_support + shape[1]

    def averaged(values: FloatArray) -> FloatArray:
        return np.asarray(small.mdp.rewards + gamma * (kernel @ values).reshape(shape))

    upper, lower = (_ends(members, averaged, values, sign, terms) for sign in (1.0, -1.0))
    choices = best_between(lower, upper, members.used)
    share = judge(least_inside(mdp, gamma, members.allowed(choices), tol, guess))
    return SolverShare(**share.fields(), q_lower=lower, q_upper=upper, margin_lower=np.empty(0))


def with_margin(
    members: Members,
    share: SolverShare,
    is_enough: Callable[[ProvenShare], bool],
    judge: Judge,
    tol: float,
) -> SolverShare:
    """The same with the margin: how wrong values of actions may be while the share is enough.

    Args:
        members: As for `solver_share`.
        share: What is proven without a margin, and enough.
        is_enough: Whether a share is.
        judge: As for `solver_share`.
        tol: Likewise.
    """
    lower, upper, used = share.q_lower, share.q_upper, members.used
    gaps = np.where(used, lower, -np.inf).max(axis=1, keepdims=True) - upper
    steps = np.unique(gaps[used & (gaps > 0.0)])
    proven: dict[int, ProvenShare] = {}

    def is_good(k: int) -> bool:
        """Whether everything up to the k-th gap may be played."""
        choices = used & (gaps <= steps[k])
        bound = least_inside(members.mdp, members.gamma, members.allowed(choices), tol, share.lower)
        proven[k] = judge(bound)
        return is_enough(proven[k])

    low, high = -1, steps.size  # good, and not good or beyond all
    while high - low > 1:
        look()
        between = (low + high) // 2
        if is_good(between):
            low = between
        else:
            high = between
    found = proven.get(low, share)
    # Half of the next gap, and less: whoever checks it rounds gaps.
    room = 64.0 * EPS * float(max(np.abs(lower).max(), np.abs(upper).max()))
    margin = math.inf if high == steps.size else max(0.0, (float(steps[high]) - room) / 2.0 - room)
    if margin == 0.0:
        found = share
    return SolverShare(
        **share.fields(),
        q_lower=lower,
        q_upper=upper,
        margin=margin,
        margin_kept=found.kept,
        margin_lower=found.lower,
    )


def learner_share(members: Members, judge: Judge, tol: float, guess: FloatArray) -> LearnerShare:
    """What one-step Q-learning on real steps keeps; see `with_converged` for more.

    Args:
        members: Rows of the model, by clusters and names.
        judge: Makes a share of lower bounds on values.
        tol: How far below the least values bounds may be, about.
        guess: (n_states) values to begin with.
    """
    mdp, gamma, labels = members.mdp, members.gamma, members.labels
    first = np.zeros(members.used.shape[0])
    np.add.at(first, labels, guess)
    first /= np.bincount(labels, minlength=first.size)
    terms = mdp.max_support + mdp.n_actions

    def box(sign: float) -> FloatArray:
        def worst(values: FloatArray) -> FloatArray:
            return members.extreme(members.rows(values, sign), sign)

        return _ends(members, worst, _on_grid(_solved(members, sign, first)), sign, terms)

    upper, lower = box(1.0), box(-1.0)
    lower = np.minimum(lower, upper)  # where they meet, but for rounding
    choices = best_between(lower, upper, members.used)
    share = judge(least_inside(mdp, gamma, members.allowed(choices), tol, guess))
    return LearnerShare(**share.fields(), q_lower=lower, q_upper=upper, converged=None)


def with_converged(
    members: Members, learner: LearnerShare, judge: Judge, tol: float
) -> LearnerShare:
    """The same share of learners with what they keep, which is more, where their values converge.

    It takes many times as long to find. Of estimated models nothing more is known.
    """
    if members.mdp.estimate is not None:
        return learner
    lower, upper = learner.q_lower, learner.q_upper
    choices = best_between(lower, upper, members.used)
    found = _converged_share(members, lower, upper, choices, learner.lower, judge, tol)
    return replace(learner, converged=found)


def _ends(
    members: Members,
    backed: Callable[[FloatArray], FloatArray],
    values: FloatArray,
    sign: float,
    terms: int,
) -> FloatArray:
    """(clusters, names) values of actions that their backup confirms, above (sign 1) or below.

    With v near the fixed point, q = Tv and b >= max q - v for all clusters, v + s is an upper
    bound for s >= b/(1 - γ), and so is q + γs for values of actions: T(max(q + γs)) <= T(v + s)
    = q + γs. What `safe_shift` leaves beyond b/(1 - γ) is room for rounding, and is shared out.
    """
    q = backed(values)
    best = np.where(members.used, q, -np.inf).max(axis=1)
    away = float((sign * (best - values)).max())
    gamma, top = members.gamma, largest_reward(members.mdp)
    shift = safe_shift(away, terms, top, values, gamma)
    room = (1.0 - gamma) * shift - away
    return np.where(members.used, q + sign * (gamma * shift + room / 2.0), 0.0)


def _on_grid(values: FloatArray) -> FloatArray:
    """Values without their last bits, which depend on the processor; any values make a bound."""
    unit = np.ldexp(1.0, int(np.frexp(np.abs(values).max())[1]) - 40)
    return np.asarray(np.round(values / unit) * unit) if unit > 0.0 else values


def _solved(members: Members, sign: float, values: FloatArray) -> FloatArray:
    """(clusters) values near the fixed point for the best (sign 1) or worst (-1) members.

    Policy iteration on names and members together, which may run in circles where the members
    are adversaries; sweeps then, whose distance to the fixed point shrinks by γ each.
    """
    gamma, mdp = members.gamma, members.mdp
    count, names = members.used.shape
    best, least = values, math.inf
    is_estimate = mdp.estimate is not None
    most = int(np.clip(WORK / mdp.nnz, SWEEPS, LONG))
    for k in range(ROUNDS + most):
        look()
        rows = members.rows(values, sign)
        q = members.extreme(rows, sign)
        name = np.where(members.used, q, -np.inf).argmax(axis=1)
        backed = q[np.arange(count), name]
        residual = backed - values
        low, high = float(residual.min()), float(residual.max())
        if high - low < least:
            # What all clusters are off by in common is known at once.
            best, least = values + (low + high) / 2.0 / (1.0 - gamma), high - low
        if high - low <= 8.0 * EPS * float(np.abs(backed).max()):
            break
        if is_estimate or k >= ROUNDS:
            values = backed
            continue
        # The first member that is as good, or as bad, as its cluster's name.
        is_it = rows[members.columns] == q.ravel()[members.pairs]
        is_it &= members.pairs % names == name[members.pairs // names]
        found = np.flatnonzero(is_it)[::-1]
        member = np.zeros(count, np.int64)
        member[members.pairs[found] // names] = members.columns[found]
        chain, paid = members.lifted(member), mdp.rewards.ravel()[member]
        if count <= DIRECT_LIMIT:
            solved = solve_chain(chain, gamma, paid)
        else:
            solved = backed
            for _ in range(SWEEPS):
                solved = paid + gamma * (chain @ solved)
        if np.array_equal(solved, values):
            break
        values = solved if k < ROUNDS - 1 else best
    return best


@dataclass(frozen=True, eq=False)
class Spread:
    """How far the members of a cluster can differ in what an action promises.

    Attributes:
        high: (clusters * names) the largest B of a member.
        low: The least.
        most: Sparse (clusters * names, clusters): the largest entry of a lifted row.
        least: The least.
        noise: What B and sums of |P̄_y - P̄_x|·hw may be off by, many times over.
    """

    high: FloatArray
    low: FloatArray
    most: csr_array
    least: csr_array
    noise: float


def _converged_share(
    members: Members,
    q_lower: FloatArray,
    q_upper: FloatArray,
    choices: BoolArray,
    known: FloatArray,
    judge: Judge,
    tol: float,
) -> ConvergedShare | None:
    """What a learner keeps whose values converge; None if its excess is beyond all numbers."""
    mdp, gamma, labels, used = members.mdp, members.gamma, members.labels, members.used
    below, above = (np.where(used, q, -np.inf).max(axis=1) for q in (q_lower, q_upper))
    middle, half = below / 2.0 + above / 2.0, (above - below) / 2.0
    half = np.nextafter(half, np.inf) + 4.0 * EPS * np.abs(middle)  # contains both ends
    promised = members.rows(middle, 1.0)
    spread = _spread(members, promised, middle, half)
    choices = _undominated(members, spread, half, choices)
    allowed = members.allowed(choices)
    # σ: with p an entry of the row of x, no |P̄_y - p| exceeds max(most - p, p - least).
    everything = members.lifted(np.arange(mdp.n_states * mdp.n_actions))
    slot = labels[:, None] * used.shape[1] + members.slots
    slot = np.where(allowed, slot, 0).ravel()
    whole = spread.most @ half
    row = np.repeat(np.arange(slot.size), np.diff(everything.indptr))
    column = np.asarray(everything.indices).astype(np.int64)
    most = _entries(spread.most, slot[row], column)
    least = _entries(spread.least, slot[row], column)
    part = np.maximum(most - everything.data, everything.data - least) - most
    part *= half[column]
    apart = whole[slot] + np.bincount(row, weights=part, minlength=slot.size)
    sigma = spread.high[slot] - promised + gamma * apart
    # Or, as |P̄_y - P̄_x| <= P̄_y + P̄_x: the most that y can promise, less the least that x can.
    most = members.extreme(members.rows(middle + half, 1.0), 1.0).ravel()[slot]
    sigma = np.minimum(sigma, most - members.rows(middle - half, -1.0)) + spread.noise
    sigma = np.where(allowed, sigma.reshape(allowed.shape), 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        excess = -least_inside(mdp, gamma, allowed, tol, np.zeros(mdp.n_states), -sigma)
    if not np.isfinite(excess).all():
        return None
    # What is known of all learners holds here, too: it is below its backup over more actions.
    floor = np.maximum(below[labels] - excess, known)
    lower = np.maximum(_raised(members, floor, allowed), known)
    share = judge(lower)
    return ConvergedShare(**share.fields(), choices=choices, excess=excess)


def _spread(members: Members, promised: FloatArray, middle: FloatArray, half: FloatArray) -> Spread:
    from scipy.sparse import csr_array

    mdp, count = members.mdp, members.used.shape[0]
    lifted = members.lifted(members.columns)
    size = members.used.size
    rows, indices, least, most = entry_bounds(members.pairs, lifted, size, mdp.max_support)
    begins = np.searchsorted(rows, np.arange(size + 1))
    shape = (size, count)
    top = largest_reward(mdp) + 4.0 * float((np.abs(middle) + half).max())
    longest = int(np.diff(begins).max())
    bounds = csr_array((most, indices, begins), shape=shape)
    noise = (2 * mdp.max_support + 2 * longest + 24) * top
    noise += (10 * mdp.max_support + longest + 16) * float(np.asarray(bounds @ half).max())
    return Spread(
        high=members.extreme(promised, 1.0).ravel(),
        low=members.extreme(promised, -1.0).ravel(),
        most=bounds,
        least=csr_array((least, indices, begins), shape=shape),
        noise=4.0 * EPS * noise,
    )


def _entries(matrix: csr_array, rows: IntArray, columns: IntArray) -> FloatArray:
    """Entries of a sparse matrix with sorted columns, 0 where it has none."""
    count = matrix.shape[1]
    own = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * count + matrix.indices
    wanted = rows * count + columns
    at = np.minimum(np.searchsorted(own, wanted), max(own.size - 1, 0))
    return np.where(own[at] == wanted, matrix.data[at], 0.0)


def _undominated(
    members: Members, spread: Spread, half: FloatArray, choices: BoolArray
) -> BoolArray:
    """Choices without those that promise less than another one, whatever the weights."""
    count, names = choices.shape
    if names > MANY or (choices.sum(axis=1) <= 1).all():
        return choices
    kept = choices.copy()
    clusters = np.arange(count) * names
    for a in range(names):
        for b in range(names):
            both = np.flatnonzero(choices[:, a] & choices[:, b])
            if a == b or both.size == 0:
                continue
            look()
            ours, other = clusters[both] + a, clusters[both] + b
            # |P̄_y - P̄_x| <= max(most_a - least_b, most_b - least_a), entry by entry.
            first = spread.most[ours] - spread.least[other]
            second = spread.most[other] - spread.least[ours]
            apart = first.maximum(second) @ half
            gain = spread.high[ours] - spread.low[other] + members.gamma * apart
            kept[both[gain + 2.0 * spread.noise < 0.0], a] = False
    return kept


def _raised(members: Members, floor: FloatArray, allowed: BoolArray) -> FloatArray:
    """The largest v found with v <= max(floor, least backup over allowed actions), with room.

    Every iterate of v <- max(floor, Bv) from the floor satisfies the inequality, as B is
    monotone. Lowered by s, it has (1 - γ)s to spare for rounding.
    """
    mdp, gamma = members.mdp, members.gamma
    values = floor
    tol = 1e-10 * max(float(np.abs(floor).max()), largest_reward(mdp), 1e-300)
    for _ in range(int(np.clip(WORK / mdp.nnz, SWEEPS, LONG))):
        look()
        raised = np.maximum(values, backup(mdp, gamma, values, -1.0, allowed))
        moved = float((raised - values).max())
        values = raised
        if moved <= tol * (1.0 - gamma):
            break
    terms = mdp.max_support + mdp.n_actions
    return values - safe_shift(0.0, terms, largest_reward(mdp), values, gamma)
