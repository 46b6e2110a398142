"""`value_bracket`: what a partition proves about values by itself, certified or not.

For a cluster C and an action, keep the interval [lo, hi] of its members' rewards and, for every
cluster that members can reach, the least and the most that any of them sends there: a box Π of
distributions that holds the lifted row of every member (a bounded-parameter MDP: Givan, Leach
and Dean 2000). With

    (Uv)(C) = max_a [hi + γ·max_{p ∈ Π} p·v],    (Lv)(C) = lo + γ·min_{p ∈ Π} p·v at a = π(C),

Uv <= v implies T(v∘c) <= v∘c on all states, for each member's own reward and row are among
those that U maximises over; hence V* <= v∘c. Mirrored, v <= Lv implies that π, lifted, is worth
at least v∘c in every state.

Names of actions change nothing. Where a renaming says what each action of a state is called in its
cluster, the interval and the box of (C, ā) run over all members x and all of their actions a that
are called ā. Every action of every member has a name, so U still maximises over all of them; and
the lifted policy takes, in each member, an action that is called π(C), whose reward and row are in
the interval and the box of L. Names that a cluster does not have are left out of both, and a
member that has no action of a name (actions called what they are, of which it lacks one) takes
part with its first one, which is what it then does.

No extreme distribution has to be found exactly: for p in the box and *any* λ, as p sums to one,

    p·v = λ + Σ p_i (v_i - λ) <= λ + Σ [most_i (v_i - λ)⁺ - least_i (λ - v_i)⁺],

which is what is computed, at the λ that a greedy filling of the box ends at; it is the best one.

A stopped iteration is repaired by a shift: for a residual Uv - v of at most b, v + b/(1 - γ)
satisfies its inequality, as U(v + c) = Uv + γc.

For an estimated model, rewards carry their radii, and t·span v is added to p·v (taken off
below), t being the largest radius of a member's row: a true row has at most t of its mass
elsewhere, and no unit of it can gain more. That is more than `robust` allows state by state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.aggregate import entry_bounds, find_slots, set_end_apart, slot_rows
from bisim_abstract._abstract.proofs import largest_reward, safe_shift
from bisim_abstract._abstract.value import ValueBracket
from bisim_abstract._base.arrays import row_spans
from bisim_abstract._base.checks import check_gamma
from bisim_abstract._base.deadline import look
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._exact.planning import DIRECT_LIMIT, first_best
from bisim_abstract._exact.solving import solve_chain
from bisim_abstract._model.estimation import reward_intervals
from bisim_abstract._model.mdp import TabularMDP, check_mdp

__all__ = ["value_bracket"]

AT_ONCE = 1_000_000  # entries that are sorted between two looks at the time
ROUNDS = 60  # of policy iteration; the bounds hold after any number,
WORK = 20_000_000  # so that fewer are made where boxes have many entries, each of which is sorted
SWEEPS = 20  # with a fixed choice, where solving for it would take too long


@dataclass(frozen=True)
class Boxes:
    """Reward intervals and boxes of lifted rows; row C * names + ā is that of C and ā.

    What a cluster lacks is a copy of its first name's, so that every row has entries.

    Attributes:
        available: (clusters, names) which names each cluster has.
        low: (clusters, names) lower ends of reward intervals.
        high: (clusters, names) upper ends.
        begins: (rows) where the entries of each row begin.
        rows: (entries) row of each entry.
        indices: (entries) clusters that members can reach.
        least: (entries) no member sends less there ...
        most: (entries) ... or more.
        radius: (clusters, names) share of mass that may be anywhere else.
        longest: Length of the longest row.
        terms: Length of the model's longest row, and its number of actions.
        top: No reward of the model, radius included, is larger.
    """

    available: BoolArray
    low: FloatArray
    high: FloatArray
    begins: IntArray
    rows: IntArray
    indices: IntArray
    least: FloatArray
    most: FloatArray
    radius: FloatArray
    longest: int
    terms: int
    top: float


def value_bracket(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    gamma: float,
    *,
    renaming: npt.ArrayLike | None = None,
) -> ValueBracket:
    """Bounds on optimal values, and a policy with bounds of its own, proven by clusters alone.

    Args:
        mdp: The model. If it is an estimate, the bounds hold for the true model with
            probability 1 - alpha.
        labels: (n_states) cluster of each state; whole numbers from 0 on. The end of episodes is
            taken out of its cluster, as by `aggregate`, and comes last.
        gamma: The discount, in [0, 1).
        renaming: (n_states, n_actions) what each action of a state is called in its cluster, as
            for `aggregate`; the policy tells names. By default actions are called what they are.

    Example:
        >>> P = np.eye(3)[[2, 2, 2]][:, None, :]  # both states lead to the end
        >>> mdp = TabularMDP.from_dense(P, [1.0, 3.0, 0.0], terminal_state=2)
        >>> bracket = value_bracket(mdp, [0, 0, 1], 0.9)
        >>> bracket.lower.round(6), bracket.upper.round(6)
        (array([ 1., -0.]), array([3., 0.]))
    """
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    clusters, count = set_end_apart(as_labels(labels, mdp.n_states), mdp.terminal_state)
    return bracket_of(make_boxes(mdp, clusters, count, renaming=renaming), gamma)


def make_boxes(
    mdp: TabularMDP,
    clusters: IntArray,
    count: int,
    *,
    renaming: npt.ArrayLike | None = None,
) -> Boxes:
    """The boxes of a partition whose clusters are numbered from 0 to count - 1."""
    from scipy.sparse import csr_array

    n, n_actions = mdp.n_states, mdp.n_actions
    lifted = csr_array(
        (np.array(mdp.normalised_probs), clusters[mdp.indices], np.array(mdp.indptr)),
        shape=(n * n_actions, count),
    )
    lifted.sum_duplicates()
    _, slots, used = find_slots(mdp, clusters, count, renaming)
    pairs, columns = _padded_rows(clusters, slots, used)
    lifted = lifted[columns]
    rows, indices, least, most = entry_bounds(pairs, lifted, used.size, mdp.max_support)
    sizes = np.bincount(pairs, minlength=used.size)
    starts = np.cumsum(sizes) - sizes
    low, high = (side.ravel()[columns] for side in reward_intervals(mdp))
    radius = np.zeros(used.shape)
    if mdp.estimate is not None:
        away = mdp.estimate.radius_of(clusters).ravel()[columns]
        radius = np.maximum.reduceat(away, starts).reshape(used.shape)
    begins = np.searchsorted(rows, np.arange(used.size))
    return Boxes(
        available=used,
        low=np.minimum.reduceat(low, starts).reshape(used.shape),
        high=np.maximum.reduceat(high, starts).reshape(used.shape),
        begins=begins,
        rows=rows,
        indices=indices,
        least=least,
        most=most,
        radius=radius,
        longest=int(np.diff(np.append(begins, rows.size)).max()),
        terms=mdp.max_support + n_actions,
        top=largest_reward(mdp),
    )


def _padded_rows(clusters: IntArray, slots: IntArray, used: BoolArray) -> tuple[IntArray, IntArray]:
    """As `slot_rows`, with those of its first name for every name that a cluster lacks."""
    n_slots = used.shape[1]
    pairs, columns = slot_rows(clusters, slots, n_slots)
    if used.all():
        return pairs, columns
    found = [(pairs, columns)]
    where, called = np.divmod(pairs, n_slots)
    is_first = called == used.argmax(axis=1)[where]
    for name in range(n_slots):
        more = is_first & ~used[where, name]
        found.append((where[more] * n_slots + name, columns[more]))
    pairs, columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(pairs, kind="stable")
    return pairs[order], columns[order]


def bracket_of(boxes: Boxes, gamma: float, guess: FloatArray | None = None) -> ValueBracket:
    """Both sides of the bracket, found from a guess of the clusters' values."""
    values = np.zeros(boxes.low.shape[0]) if guess is None else guess
    upper, _ = _solved(boxes, gamma, boxes.high, 1.0, values)
    lower, policy = _solved(boxes, gamma, boxes.low, -1.0, values)
    # A name that a cluster lacks is a copy of its first one's.
    is_there = boxes.available[np.arange(policy.size), policy]
    policy = np.where(is_there, policy, boxes.available.argmax(axis=1))
    return ValueBracket(lower=lower, upper=upper, policy=policy)


def _solved(
    boxes: Boxes, gamma: float, rewards: FloatArray, sign: float, values: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Values that satisfy their inequality (sign 1: above, -1: below), and the actions taken.

    Policy iteration on actions and extreme rows together. Where it stops early, or runs in
    circles, the shift at the end is larger, and the bounds hold all the same.
    """
    count = rewards.shape[0]
    everyone = np.arange(count)
    before = np.full(count, np.inf)
    # What values can differ by at most: with a larger span, radii would let them run away.
    widest = (float(boxes.high.max()) - float(boxes.low.min())) / (1.0 - gamma)
    rounds = int(np.clip(WORK // boxes.rows.size, 2, ROUNDS))
    for round_ in range(rounds + 1):
        ahead, extreme, _ = _extremes(boxes, values, sign)
        span = min(float(values.max() - values.min()), widest)
        q = rewards + gamma * (ahead.reshape(rewards.shape) + sign * boxes.radius * span)
        policy = q.argmax(axis=1)
        backup = q[everyone, policy]
        moved = float(np.abs(backup - values).max())
        if round_ == rounds or moved <= 1e-13 * float(np.abs(values).max()):
            break
        if np.array_equal(values, before):
            break
        before = values
        fixed = rewards[everyone, policy] + gamma * sign * boxes.radius[everyone, policy] * span
        values = _follow(boxes, gamma, policy, extreme, fixed, backup)
        if not np.isfinite(values).all():
            values = backup
            break
    # Where radii are large, a constant, whose span is 0, may be the better bound.
    with np.errstate(over="ignore", invalid="ignore"):
        found, acts = _shifted(boxes, gamma, rewards, sign, values)
    plain, first = _shifted(boxes, gamma, rewards, sign, np.zeros(count))
    if not np.isfinite(found).all():
        return plain, first
    if not boxes.radius.any():
        return (found, acts) if bool((sign * (found - plain)).sum() <= 0.0) else (plain, first)
    # Backups over all rows that radii allow are monotone, so the better of two bounds in every
    # cluster is one too (with the action that goes with it): Bw >= Bv >= v for w >= v, below.
    is_better = sign * (found - plain) <= 0.0
    better = np.where(is_better, found, plain)
    # Each had room for rounding at its own size.
    better = better + sign * safe_shift(0.0, boxes.terms, boxes.top, better, gamma)
    return better, np.where(is_better, acts, first)


def _shifted(
    boxes: Boxes, gamma: float, rewards: FloatArray, sign: float, values: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Values moved until they satisfy their inequality with room to spare.

    A bound on p·v sums at most `longest` products, whose sizes amount to mass·2·max|v| at most,
    `mass` being what the coefficients of a row sum to; the rest of a backup is |R|, λ and a span
    of rows, each at most 2·max|v|. Every term is rounded longest + 12 times at most, which is
    added to the residual.
    """
    ahead, _, mass = _extremes(boxes, values, sign)
    span = float(values.max() - values.min())
    q = rewards + gamma * (ahead.reshape(rewards.shape) + sign * boxes.radius * span)
    # The same count of roundings as below, of what each row by itself adds up.
    near = np.maximum.reduceat(np.abs(values[boxes.indices]), boxes.begins).reshape(q.shape)
    near = np.abs(rewards) + (2.0 * mass + 4.0) * (near + boxes.radius * span)
    policy = first_best(q, 2.0 * (boxes.longest + 16) * EPS * near.max(axis=1))
    # Above, no action may be better; below, the one that is taken counts.
    backup = q.max(axis=1) if sign > 0.0 else q[np.arange(policy.size), policy]
    residual = float((sign * (backup - values)).max())
    size = boxes.top + (2.0 * mass + 4.0) * float(np.abs(values).max())
    residual += (boxes.longest + 16) * EPS * size
    shift = safe_shift(residual, boxes.terms, boxes.top, values, gamma)
    return values + sign * shift, policy


def _extremes(
    boxes: Boxes, values: FloatArray, sign: float
) -> tuple[FloatArray, FloatArray, float]:
    """Bounds on p·v over boxes, above for sign 1 and below for -1.

    Returns:
        (rows) the bounds; (entries) rows that attain them; and the largest sum of a row's
        coefficients in them.
    """
    indptr = np.append(boxes.begins, boxes.rows.size)
    bound, extreme = np.empty(boxes.begins.size), np.empty(boxes.rows.size)
    mass = 0.0
    for begin, end in row_spans(indptr, AT_ONCE):
        look()
        at = slice(indptr[begin], indptr[end])
        bound[begin:end], extreme[at], own = _extremes_of_rows(
            sign * values[boxes.indices[at]],
            boxes.rows[at] - begin,
            boxes.begins[begin:end] - indptr[begin],
            boxes.least[at],
            boxes.most[at],
        )
        mass = max(mass, own)
    return sign * bound, extreme, mass


def _extremes_of_rows(
    x: FloatArray, rows: IntArray, begins: IntArray, least: FloatArray, most: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """Bounds above on p·x over some rows' boxes: as `_extremes`, entry by entry."""
    order = np.lexsort((-x, rows))  # sorting within rows leaves rows and begins as they are
    x, least, most = x[order], least[order], most[order]
    slack = most - least
    room = np.maximum(1.0 - np.add.reduceat(least, begins), 0.0)[rows]
    total = np.cumsum(slack)
    filled = total - (total - slack)[begins][rows]  # running sums within rows
    taken = np.clip(room - (filled - slack), 0.0, slack)
    # λ is the value at which the room is used up, or the last one of the row.
    is_full = filled >= room
    position = np.where(is_full, np.arange(x.size), x.size)
    at = np.minimum.reduceat(position, begins)
    ends = np.append(begins[1:], x.size) - 1
    level = x[np.minimum(at, ends)]
    away = x - level[rows]
    weight = np.where(away > 0.0, most, least)
    bound = level + np.add.reduceat(weight * away, begins)
    extreme = np.empty_like(x)
    extreme[order] = least + taken
    return bound, extreme, float(np.add.reduceat(weight, begins).max())


def _follow(
    boxes: Boxes,
    gamma: float,
    policy: IntArray,
    extreme: FloatArray,
    rewards: FloatArray,
    values: FloatArray,
) -> FloatArray:
    """Values of fixed actions and rows; not trusted."""
    from scipy.sparse import csr_array

    count = policy.size
    n_actions = boxes.low.shape[1]
    is_used = policy[boxes.rows // n_actions] == boxes.rows % n_actions
    origin = boxes.rows[is_used] // n_actions
    chain = csr_array((extreme[is_used], (origin, boxes.indices[is_used])), shape=(count, count))
    if count <= DIRECT_LIMIT:
        return solve_chain(chain, gamma, rewards)
    for _ in range(SWEEPS):
        look()
        values = rewards + gamma * (chain @ values)
    return values
