"""`prove_value`: which policy a partition hands out, and the proof of what it keeps and loses.

Two policies over clusters are tried: the best one of the averaged model, and the robust one of
the bracket. Each is evaluated on the states themselves, and the better one is handed out. What
it is compared with, the optimal values and those of acting at random, belongs to the model
alone: `GroundValues` finds it once for all partitions, as closely as they ask for.

Why the bounds hold. Let v be any function over states, found by whatever solver, and B the
backup of the bound in question (see `value`). With b >= Bv - v on all states,

    B(v + s) = Bv + γs <= v + b + γs <= v + s    for s = b/(1 - γ),

as a constant shift leaves spans as they are: v + s is an upper bound; mirrored below. Rounding
of the backup enters b, four times over, so that another float backup can confirm the result.

Names of actions change nothing of this. A policy over clusters tells names, and every state takes
one of its own actions that is called so (`lifted_policy`): an ordinary policy of the model, whose
values are bounded as those of any other. Optimal values and those of acting at random know no
names at all. So any renaming gives a proof, and a better one a smaller loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.aggregate import Aggregation, aggregate, set_end_apart
from bisim_abstract._abstract.brackets import bracket_of, largest_reward, make_boxes, safe_shift
from bisim_abstract._abstract.robust import backed_up, solve
from bisim_abstract._abstract.value import (
    NOTHING,
    ProvenValue,
    ValueBracket,
    proven_share,
    start_means,
    start_size,
)
from bisim_abstract._base.checks import check_choice, check_gamma
from bisim_abstract._base.deadline import look
from bisim_abstract._base.labels import as_labels, numbered
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._exact.planning import find_optimal, follow_policy, value_iteration
from bisim_abstract._model.estimation import reward_intervals
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.policies import lift_table, uniform_policy
from bisim_abstract._model.renaming import check_relation, own_names
from bisim_abstract._propose.renaming import match_actions
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["prove_value"]

FIRST_TOL = 1e-4  # of all that values could differ by: how closely optimal values are found first
LAST_TOL = 1e-10  # of the same: beyond, rounding decides
SHARE = 1.0 / 11.0  # of the proven loss that may be slack: within 10% of what it can become
HELPS = 0.9  # of a gap that must not be left for more work to be worth it
WORK = 4e9  # transitions that may be read in search of optimal values, about
CRITERIA = ("start", "worst")


@dataclass(frozen=True, eq=False)
class Hint:
    """Values to begin with, from wherever; the better they are the less is left to do.

    Attributes:
        optimal: (n_states) near the optimal ones.
        random: (n_states) near those of acting at random.
        policy: (n_states) near those of the policy that will be handed out.
    """

    optimal: FloatArray
    random: FloatArray
    policy: FloatArray


class GroundValues:
    """What is proven about a model's own values, shared by all its partitions.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        hint: Where to begin.

    Attributes:
        mdp: The model.
        gamma: The discount.
        size: The most that values can differ by, the measure of what is small.
        optimal_upper: (n_states) upper bounds on optimal values.
        optimal_lower: (n_states) lower bounds on them.
        random_upper: (n_states) upper bounds on the values of acting at random.
    """

    def __init__(self, mdp: TabularMDP, gamma: float, *, hint: Hint | None = None) -> None:
        check_mdp(mdp)
        self.mdp, self.gamma = mdp, check_gamma(gamma)
        rewards = mdp.rewards
        self.size = (float(rewards.max()) - float(rewards.min())) / (1.0 - gamma)
        self._guess = None if hint is None else hint.optimal
        self._tol = math.inf
        self.optimal_upper: FloatArray = np.full(mdp.n_states, np.inf)
        self.optimal_lower: FloatArray = np.full(mdp.n_states, -np.inf)
        self.random_upper = self._random(None if hint is None else hint.random)

    @property
    def gap(self) -> float:
        """The most by which the bounds on an optimal value differ."""
        return float((self.optimal_upper - self.optimal_lower).max())

    def tighten(self, tol: float, guess: FloatArray) -> bool:
        """Bring the bounds on optimal values together, to about `tol` if the work allows it.

        Args:
            tol: How far bounds may be apart.
            guess: (n_states) values to begin with the first time.

        Returns:
            Whether that helped. Once it did not, it never will.
        """
        mdp, gamma = self.mdp, self.gamma
        tol = max(tol, LAST_TOL * self.size)
        if tol >= self._tol:
            return False
        sweeps = int(np.clip(WORK / mdp.nnz, 20, 20_000))
        if mdp.estimate is None:
            start = guess if self._guess is None else self._guess
            values = _optimal(mdp, gamma, tol, start, sweeps)
            self._guess = values
            upper, lower = (bounded(mdp, gamma, values, sign) for sign in (1.0, -1.0))
        else:
            upper = _with_radii(mdp, gamma, 1.0, None, guess)
            lower = _with_radii(mdp, gamma, -1.0, None, guess)
        # Not before they are there: an interrupt may come between. Radii of an estimate keep the
        # bounds apart, however closely they are solved for.
        self._tol = tol if mdp.estimate is None else 0.0
        before, gap = self.gap, float((upper - lower).max())
        if gap < before:
            self.optimal_upper, self.optimal_lower = _frozen(upper), _frozen(lower)
        return gap <= HELPS * before

    def _random(self, guess: FloatArray | None) -> FloatArray:
        mdp, gamma = self.mdp, self.gamma
        policy = uniform_policy(mdp)
        if mdp.estimate is not None:
            start = np.zeros(mdp.n_states)
            return _frozen(_with_radii(mdp, gamma, 1.0, policy, start))
        tol = max(1e-3 * FIRST_TOL * self.size, 1e-300)
        found = follow_policy(mdp, gamma, policy, tol, guess=guess)
        return _frozen(bounded(mdp, gamma, _middle(found.lower, found.upper), 1.0, policy))


def prove_value(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    gamma: float,
    *,
    renaming: npt.ArrayLike | None = None,
    relation: str = "plain",
    by: str = "start",
    ground: GroundValues | None = None,
    hint: Hint | None = None,
) -> ProvenValue:
    """The policy that a partition hands out, and what it is proven to keep and to lose at most.

    Args:
        mdp: The model. If it is an estimate, everything holds for the true model with
            probability 1 - alpha.
        labels: (n_states) cluster of each state; whole numbers from 0 on. The end of episodes is
            taken out of its cluster, as by `aggregate`.
        gamma: The discount, in [0, 1).
        renaming: (n_states, n_actions) what each action of a state is called in its cluster, as
            for `aggregate`. By default the relation decides.
        relation: "plain": actions are called what they are. "lax": actions of a cluster's members
            are matched by what they do.
        by: Which policy is the better one: "start" for the smaller proven start loss, "worst"
            for the smaller proven loss of any state.
        ground: What is known of the model already; it is tightened where that helps.
        hint: Values to begin with, if some are known.

    Example:
        >>> from bisim_abstract.parts import grouped_mdp
        >>> mdp, groups = grouped_mdp(60, 5, noise=0.01, seed=0)
        >>> value = prove_value(mdp, groups, 0.9)
        >>> value.kept > 0.99, value.start_loss <= value.loss < 0.1
        (True, True)
    """
    check_choice("by", by, CRITERIA)
    check_relation(mdp, relation)
    gamma = check_gamma(gamma)
    if ground is None:
        ground = GroundValues(mdp, gamma, hint=hint)
    if ground.gamma != gamma or ground.mdp.fingerprint != mdp.fingerprint:
        raise InvalidArgumentError("ground must be of this model at this discount")
    given = [renaming] if renaming is not None else _candidates(mdp, labels, relation)
    found = [value for names in given for value in _proofs(ground, labels, names, hint)]
    best = _best(found, by, LAST_TOL * ground.size)
    if relation == "lax" and best.renaming is None:
        return replace(best, renaming=own_names(mdp))  # matched, and called what they are
    return best


def _best(found: list[ProvenValue], by: str, noise: float) -> ProvenValue:
    """The one with the smallest proven loss; the first of those that rounding cannot tell apart."""
    names = ("start_loss", "loss") if by == "start" else ("loss", "start_loss")
    for name in names:
        least = min(getattr(value, name) for value in found)
        found = [value for value in found if getattr(value, name) <= least + noise]
    return found[0]


def _candidates(
    mdp: TabularMDP, labels: npt.ArrayLike, relation: str
) -> list[npt.ArrayLike | None]:
    """Renamings to try: matched actions, and where all states have all actions their own names.

    Any renaming will do, and the better one is handed out. Where clusters are coarse, what states
    have in common may be a direction rather than what it does at once.
    """
    matched = matched_actions(mdp, labels, relation)
    if matched is None:
        return [None]
    own = own_names(mdp)
    if mdp.has_action_sets or np.array_equal(matched, own):
        return [matched]
    return [matched, own]


def _proofs(
    ground: GroundValues, labels: npt.ArrayLike, renaming: npt.ArrayLike | None, hint: Hint | None
) -> list[ProvenValue]:
    """What each policy of one renaming is proven to be worth."""
    mdp, gamma = ground.mdp, ground.gamma
    look()
    small = aggregate(mdp, labels, renaming=renaming)
    planned = value_iteration(small.mdp, gamma)
    of_cluster = _middle(planned.lower, planned.upper)
    guess = of_cluster[small.labels]
    look()
    boxes = make_boxes(mdp, small.labels, small.mdp.n_states, renaming=small.renaming)
    bracket = bracket_of(boxes, gamma, of_cluster)
    ground.tighten(FIRST_TOL * ground.size, guess)
    policies = [planned.policy.astype(np.int64)]
    if not np.array_equal(policies[0], bracket.policy):
        policies.append(bracket.policy)
    if hint is not None:
        guess = hint.policy
    return [_judged(ground, small, policy, guess, bracket) for policy in policies]


def matched_actions(mdp: TabularMDP, labels: npt.ArrayLike, relation: str) -> IntArray | None:
    """What actions are called in their clusters; None for what they are called themselves.

    Args:
        mdp: The model.
        labels: (n_states) cluster of each state. The end of episodes is taken out of its cluster
            first: what it does is nothing to match with.
        relation: "plain" or "lax".
    """
    check_relation(mdp, relation)
    if relation == "plain":
        return None
    clusters, _ = set_end_apart(as_labels(labels, mdp.n_states), mdp.terminal_state)
    return match_actions(mdp, clusters)


def _judged(
    ground: GroundValues,
    small: Aggregation,
    policy: IntArray,
    guess: FloatArray,
    bracket: ValueBracket,
) -> ProvenValue:
    """One policy, with bounds as close as its loss asks for."""
    lifted = lift_table(policy, small.labels, small.renaming).astype(np.int64)
    lower, slack = _policy_lower(ground, lifted, 0.05 * FIRST_TOL * ground.size, guess)
    while True:
        loss = float((ground.optimal_upper - lower).max())
        if ground.gap + slack <= SHARE * loss:
            break
        tol = SHARE * max(loss - ground.gap - slack, 0.0) / 4.0
        tol = max(min(tol, ground.gap / 16.0), LAST_TOL * ground.size)
        has_helped = ground.tighten(tol, guess)
        before = slack
        lower, slack = _policy_lower(ground, lifted, tol, lower)
        if not has_helped and not slack < HELPS * before:
            break
    return _summed_up(ground, small, policy, lower, bracket)


def _policy_lower(
    ground: GroundValues, lifted: IntArray, tol: float, guess: FloatArray
) -> tuple[FloatArray, float]:
    """Lower bounds on the values of a policy, and how far above them the values can be."""
    mdp, gamma = ground.mdp, ground.gamma
    if mdp.estimate is not None:
        return _with_radii(mdp, gamma, -1.0, lifted, guess), 0.0
    own = follow_policy(mdp, gamma, lifted, max(tol, 1e-300), guess=guess)
    lower = bounded(mdp, gamma, _middle(own.lower, own.upper), -1.0, lifted)
    return lower, float((own.upper - lower).max())


def _summed_up(
    ground: GroundValues,
    small: Aggregation,
    policy: IntArray,
    lower: FloatArray,
    bracket: ValueBracket,
) -> ProvenValue:
    mdp = ground.mdp
    lower = _frozen(lower)
    optimal = (
        start_means(mdp.start, ground.optimal_lower)[0],
        start_means(mdp.start, ground.optimal_upper)[1],
    )
    own = start_means(mdp.start, lower)[0]
    random = start_means(mdp.start, ground.random_upper)[1]
    # Half of what counts as nothing: whoever checks this rounds differently.
    share = proven_share(
        optimal,
        own,
        random,
        start_size(
            optimal,
            own,
            reward_intervals(mdp),
            ground.gamma,
            has_choice=mdp.has_choice or (mdp.estimate is not None and mdp.n_actions > 1),
        ),
        nothing=NOTHING / 2.0,
    )
    # A difference rounds once, and is 0 only if it is; no mean is larger than the largest.
    start_loss = _above(optimal[1] - own)
    loss = _above(float((ground.optimal_upper - lower).max()))
    return ProvenValue(
        policy=policy,
        labels=small.labels,
        renaming=small.renaming,
        loss=max(loss, start_loss),
        start_loss=start_loss,
        kept=share,
        optimal_upper=ground.optimal_upper,
        optimal_lower=ground.optimal_lower,
        policy_lower=lower,
        random_upper=ground.random_upper,
        bracket=bracket,
    )


# -- bounds from any values --------------------------------------------------------------------


def backup(
    mdp: TabularMDP,
    gamma: float,
    values: FloatArray,
    sign: float,
    policy: IntArray | FloatArray | None,
) -> FloatArray:
    """(n_states) one backup: of the best action, of a policy's, or of a mixture's.

    For an estimate it is the most (sign 1) or the least (-1) that radii allow.
    """
    n, n_actions = mdp.n_states, mdp.n_actions
    is_plan = policy is not None and policy.ndim == 1
    if mdp.estimate is not None:
        q = backed_up(mdp, gamma, values, sign)
    elif is_plan:
        assert policy is not None
        states, actions = np.arange(n), policy.astype(np.int64)
        rows = mdp.kernel()[states * n_actions + actions]
        return np.asarray(mdp.rewards[states, actions] + gamma * (rows @ values))
    else:
        q = mdp.rewards + gamma * (mdp.kernel() @ values).reshape(n, n_actions)
    if policy is None:
        return np.asarray(q.max(axis=1))
    return np.asarray(q[np.arange(n), policy] if is_plan else (policy * q).sum(axis=1))


def bounded(
    mdp: TabularMDP,
    gamma: float,
    values: FloatArray,
    sign: float,
    policy: IntArray | FloatArray | None = None,
) -> FloatArray:
    """Values moved up (sign 1) or down (-1) until they satisfy their inequality, with room.

    A backup is a product of a row of at most max_support entries (each within 2·EPS relative of
    the exact quotient), a multiplication, an addition, a radius times a difference of values, and
    for a mixture as many products as there are actions: no term is rounded more than max_support +
    n_actions + 12 times, and their sizes amount to |R| + |radius| + 4·max|v| at most.
    """
    look()
    away = float((sign * (backup(mdp, gamma, values, sign, policy) - values)).max())
    top = largest_reward(mdp)
    shift = safe_shift(away, mdp.max_support + mdp.n_actions, top, values, gamma)
    return values + sign * shift


def _optimal(
    mdp: TabularMDP, gamma: float, tol: float, guess: FloatArray, sweeps: int
) -> FloatArray:
    """Values near the optimal ones; not trusted."""
    values, low, high, _, _ = find_optimal(
        mdp, gamma, max(tol, 1e-300), max_sweeps=sweeps, guess=guess
    )
    return np.asarray(values + (low / 2.0 + high / 2.0) / (1.0 - gamma))


def _with_radii(
    mdp: TabularMDP,
    gamma: float,
    sign: float,
    policy: IntArray | FloatArray | None,
    guess: FloatArray,
) -> FloatArray:
    """Bounds for an estimated model: the best of a constant and of what is solved for."""
    # A constant is moved to the ends of what rewards allow.
    best = bounded(mdp, gamma, np.zeros(mdp.n_states), sign, policy)
    assert mdp.estimate is not None
    partitions: list[IntArray | None] = [None]
    if mdp.estimate.blocks is not None:  # whose radii are smaller, for functions constant on them
        partitions.append(numbered(mdp.estimate.blocks))
    for labels in partitions:
        found = bounded(mdp, gamma, solve(mdp, gamma, sign, policy, guess, labels), sign, policy)
        # Judged by the start, and by all states where that makes no difference.
        score = sign * (start_means(mdp.start, found)[0] - start_means(mdp.start, best)[0])
        if score < 0.0 or (score == 0.0 and sign * float((found - best).mean()) < 0.0):
            best = found
    return best


def _above(difference: float) -> float:
    return float(np.nextafter(difference, np.inf)) if difference > 0.0 else 0.0


def _middle(lower: FloatArray, upper: FloatArray) -> FloatArray:
    return np.asarray(lower / 2.0 + upper / 2.0)


def _frozen(values: FloatArray) -> FloatArray:
    values.setflags(write=False)
    return values
