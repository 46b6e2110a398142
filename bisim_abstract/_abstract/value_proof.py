"""`prove_value`: what a partition is worth to the agents that use it, with its proof.

Two policies over clusters are tried: the best one of the averaged model, and the robust one of
the bracket. Each is evaluated on the states themselves, and the better one is handed out. What
agents keep that plan or learn by themselves is proven in `agents`. What all are compared with, the
optimal values and the baseline, belongs to the model alone: `GroundValues` finds it once for all
partitions, as closely as they ask for. Why bounds hold is said in `proofs`.

Names of actions change nothing of this. A policy over clusters tells names, and every state takes
one of its own actions that is called so (`lifted_policy`): an ordinary policy of the model, whose
values are bounded as those of any other. Optimal values and the baseline know no names at all. So
any renaming gives a proof, and a better one a smaller loss.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.agents import (
    Members,
    learner_share,
    solver_share,
    with_converged,
    with_margin,
)
from bisim_abstract._abstract.aggregate import aggregate, set_end_apart
from bisim_abstract._abstract.baseline import Baseline, find_baseline
from bisim_abstract._abstract.brackets import bracket_of, make_boxes
from bisim_abstract._abstract.episodes import EpisodeBounds, Episodes, bound_episodes, horizon_of
from bisim_abstract._abstract.proofs import bounded, with_radii
from bisim_abstract._abstract.robust import backed_up
from bisim_abstract._abstract.scale import NOTHING, Stake, start_means, start_size
from bisim_abstract._abstract.value import (
    GUARANTEES,
    LearnerShare,
    ProvenShare,
    ProvenValue,
    SolverShare,
    ValueBracket,
)
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import check_choice, check_gamma
from bisim_abstract._base.deadline import look
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._exact.planning import (
    find_optimal,
    first_best,
    follow_policy,
    value_iteration,
)
from bisim_abstract._model.estimation import reward_intervals
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.policies import lift_table
from bisim_abstract._model.renaming import own_names
from bisim_abstract._propose.renaming import match_actions
from bisim_abstract._relations.base import Relation
from bisim_abstract._relations.table import check_relation
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
        horizon: Time limit of episodes; the environment's own by default.

    Attributes:
        mdp: The model.
        gamma: The discount.
        size: The most that values can differ by, the measure of what is small.
        optimal_upper: (n_states) upper bounds on optimal values.
        optimal_lower: (n_states) lower bounds on the values of `optimal_policy`.
        optimal_policy: (n_states) an optimal policy, as far as known.
        baseline: Bounds on policies that ignore the state.
        horizon: The time limit; None without one.
    """

    def __init__(
        self,
        mdp: TabularMDP,
        gamma: float,
        *,
        hint: Hint | None = None,
        horizon: int | None = None,
    ) -> None:
        check_mdp(mdp)
        self.mdp, self.gamma = mdp, check_gamma(gamma)
        self.horizon = horizon_of(mdp, horizon)
        rewards = mdp.rewards
        self.size = (float(rewards.max()) - float(rewards.min())) / (1.0 - gamma)
        self._guess = None if hint is None else hint.optimal
        self._tol = math.inf
        self._stake: Stake | None = None
        self._episodes: tuple[int, IntArray, EpisodeBounds] | None = None
        self.optimal_upper: FloatArray = np.full(mdp.n_states, np.inf)
        self.optimal_lower: FloatArray = np.full(mdp.n_states, -np.inf)
        self.optimal_policy: IntArray = mdp.first_actions
        self.baseline: Baseline = find_baseline(
            mdp, gamma, guess=None if hint is None else hint.random
        )

    @property
    def gap(self) -> float:
        """The most by which the bounds on an optimal value differ."""
        return float((self.optimal_upper - self.optimal_lower).max())

    @property
    def stake(self) -> Stake:
        """What is at stake at the start, found once for each pair of bounds."""
        if self._stake is None:
            self._stake = self._make_stake()
        return self._stake

    def _make_stake(self) -> Stake:
        mdp = self.mdp
        optimal = (
            start_means(mdp.start, self.optimal_lower)[0],
            start_means(mdp.start, self.optimal_upper)[1],
        )
        has_choice = mdp.has_choice or (mdp.estimate is not None and mdp.n_actions > 1)
        size = start_size(optimal, reward_intervals(mdp), self.gamma, has_choice=has_choice)
        return Stake(optimal, self.baseline.start, size)

    def judge(self, lower: FloatArray) -> ProvenShare:
        """What an agent is proven to keep and to lose whose values have these lower bounds."""
        stake, own = self.stake, start_means(self.mdp.start, lower)[0]
        # A difference rounds once, and is 0 only if it is; no mean is larger than the largest.
        start_loss = _above(stake.optimal[1] - own)
        loss = max(_above(float((self.optimal_upper - lower).max())), start_loss)
        # Half of what counts as nothing: whoever checks this rounds differently.
        kept = stake.share(own, nothing=NOTHING / 2.0)
        return ProvenShare(kept=kept, loss=loss, start_loss=start_loss, lower=lower)

    def optimal_episodes(self, horizon: int) -> EpisodeBounds:
        """What episodes of the optimal policy look like, found once for each such policy."""
        key, policy = self._episodes, self.optimal_policy
        if key is None or key[0] != horizon or not np.array_equal(key[1], policy):
            found = bound_episodes(self.mdp, policy, horizon)
            self._episodes = key = horizon, policy, found
        return key[2]

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
            values, policy = _optimal(mdp, gamma, tol, start, sweeps)
            self._guess = values
            upper, lower = (
                bounded(mdp, gamma, values, 1.0),
                bounded(mdp, gamma, values, -1.0, policy),
            )
        else:
            upper = with_radii(mdp, gamma, 1.0, None, guess)
            values = with_radii(mdp, gamma, -1.0, None, guess)
            q = backed_up(mdp, gamma, values, -1.0)
            noise = (mdp.max_support + 12) * EPS * np.abs(q).max(axis=1)
            policy = mdp.played(first_best(q, noise))
            lower = bounded(mdp, gamma, values, -1.0, policy)
        # Not before they are there: an interrupt may come between. Radii of an estimate keep the
        # bounds apart, however closely they are solved for.
        self._tol = tol if mdp.estimate is None else 0.0
        before, gap = self.gap, float((upper - lower).max())
        if gap < before:
            self.optimal_upper, self.optimal_lower = _frozen(upper), _frozen(lower)
            self.optimal_policy, self._stake = policy, None
        return gap <= HELPS * before


def prove_value(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    gamma: float,
    *,
    renaming: npt.ArrayLike | None = None,
    relation: str = "plain",
    by: str = "start",
    guarantee: str = "solver",
    is_enough: Callable[[ProvenShare], bool] | None = None,
    horizon: int | None = None,
    with_learner: bool = True,
    ground: GroundValues | None = None,
    hint: Hint | None = None,
) -> ProvenValue:
    """What a partition is worth: to its own policy, to whoever solves it, to who learns on it.

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
        by: Which policy or renaming is the better one: "start" for the smaller proven start loss,
            "worst" for the smaller proven loss of any state.
        guarantee: Whose loss decides between renamings: "solver", "policy" or "learner".
        is_enough: Whether a share is; then the solver's margin is proven as well, the error of
            values that leaves it enough.
        horizon: Time limit for figures of episodes; by default the environment's own, if it has
            one.
        with_learner: Whether to prove what learners on real steps keep, which takes longest.
        ground: What is known of the model already; it is tightened where that helps.
        hint: Values to begin with, if some are known.

    Example:
        >>> from bisim_abstract.parts import grouped_mdp
        >>> mdp, groups = grouped_mdp(60, 5, noise=0.01, seed=0)
        >>> value = prove_value(mdp, groups, 0.9)
        >>> value.kept > 0.99, value.start_loss <= value.loss < 0.1
        (True, True)
        >>> value.solver.kept > 0.98
        True
    """
    proof = find_proof(
        mdp,
        labels,
        gamma,
        renaming=renaming,
        relation=relation,
        by=by,
        guarantee=guarantee,
        horizon=horizon,
        ground=ground,
        hint=hint,
    )
    return proof.value(is_enough, with_learner=with_learner)


def find_proof(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    gamma: float,
    *,
    renaming: npt.ArrayLike | None = None,
    relation: str | Relation = "plain",
    by: str = "start",
    guarantee: str = "solver",
    horizon: int | None = None,
    ground: GroundValues | None = None,
    hint: Hint | None = None,
) -> Proof:
    """The best proof of a partition, of which `prove_value` makes a result."""
    check_choice("by", by, CRITERIA)
    check_choice("guarantee", guarantee, GUARANTEES)
    known = check_relation(mdp, relation)
    gamma = check_gamma(gamma)
    if ground is None:
        ground = GroundValues(mdp, gamma, hint=hint, horizon=horizon)
    if ground.gamma != gamma or ground.mdp.fingerprint != mdp.fingerprint:
        raise InvalidArgumentError("ground must be of this model at this discount")
    given = [renaming] if renaming is not None else _candidates(mdp, labels, known)
    proofs = [Proof(ground, labels, names, known, by, hint) for names in given]
    shares = [proof.share(guarantee) for proof in proofs]
    return proofs[_first_best(shares, by, LAST_TOL * ground.size)]


def _first_best(shares: list[ProvenShare], by: str, noise: float) -> int:
    """Where the smallest proven loss is; the first of those that rounding cannot tell apart."""
    left = list(range(len(shares)))
    for name in ("start_loss", "loss") if by == "start" else ("loss", "start_loss"):
        least = min(getattr(shares[k], name) for k in left)
        left = [k for k in left if getattr(shares[k], name) <= least + noise]
    return left[0]


def _candidates(
    mdp: TabularMDP, labels: npt.ArrayLike, relation: Relation
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


def matched_actions(
    mdp: TabularMDP, labels: npt.ArrayLike, relation: str | Relation
) -> IntArray | None:
    """What actions are called in their clusters; None for what they are called themselves.

    Args:
        mdp: The model.
        labels: (n_states) cluster of each state. The end of episodes is taken out of its cluster
            first: what it does is nothing to match with.
        relation: Which actions are compared.
    """
    if not check_relation(mdp, relation).matches_actions:
        return None
    clusters, _ = set_end_apart(as_labels(labels, mdp.n_states), mdp.terminal_state)
    return match_actions(mdp, clusters)


class Proof:
    """What one partition and one renaming are worth: the better policy, solvers, learners.

    Args:
        ground: What is known of the model.
        labels: (n_states) clusters.
        renaming: (n_states, n_actions) names of actions there; None for their own.
        relation: See `prove_value`.
        by: Likewise.
        hint: Values to begin with.

    Attributes:
        own: What the policy keeps.
        solver: What whoever solves the averaged model keeps, without a margin.
    """

    def __init__(
        self,
        ground: GroundValues,
        labels: npt.ArrayLike,
        renaming: npt.ArrayLike | None,
        relation: Relation,
        by: str,
        hint: Hint | None,
    ) -> None:
        mdp, gamma = ground.mdp, ground.gamma
        self._ground, self._relation = ground, relation
        look()
        small = self._small = aggregate(mdp, labels, renaming=renaming)
        planned = value_iteration(small.mdp, gamma)
        of_cluster = _middle(planned.lower, planned.upper)
        self._by, self._of_cluster = by, of_cluster
        self._followed_for: dict[bytes, EpisodeBounds] = {}  # within the time limit, by plan
        self._guess = of_cluster[small.labels]
        look()
        ground.tighten(FIRST_TOL * ground.size, self._guess)
        if hint is not None:
            self._guess = hint.policy
        self._planned = planned.policy.astype(np.int64)
        first = self._first = ground.judge(self._followed(self._planned))
        self._members = Members.of(mdp, gamma, small)
        self._tol = max(min(SHARE * first.loss / 8.0, FIRST_TOL * ground.size), 1e-300)
        self.solver: SolverShare = solver_share(
            self._members, small, planned, ground.judge, self._tol, first.lower
        )

    @cached_property
    def learner(self) -> LearnerShare:
        """What learners on real steps keep, whether or not their values converge."""
        return learner_share(self._members, self._ground.judge, self._tol, self._first.lower)

    @cached_property
    def _all_learners(self) -> LearnerShare:
        """The same, and what those keep whose values converge."""
        return with_converged(self._members, self.learner, self._ground.judge, self._tol)

    @cached_property
    def _bracket(self) -> ValueBracket:
        """What clusters prove by themselves; a search need not know it."""
        small, mdp = self._small, self._ground.mdp
        look()
        boxes = make_boxes(mdp, small.labels, small.mdp.n_states, renaming=small.renaming)
        return bracket_of(boxes, self._ground.gamma, self._of_cluster)

    @cached_property
    def _chosen(self) -> tuple[ProvenShare, IntArray]:
        """The better one of two policies, and what is proven of it."""
        policies, shares = [self._planned], [self._first]
        if not np.array_equal(self._planned, self._bracket.policy):
            policies.append(self._bracket.policy)
            shares.append(self._ground.judge(self._followed(self._bracket.policy)))
        at = _first_best(shares, self._by, LAST_TOL * self._ground.size)
        return shares[at], policies[at]

    @property
    def own(self) -> ProvenShare:
        """What the policy keeps that comes with the clusters."""
        return self._chosen[0]

    @property
    def has_episodes(self) -> bool:
        """Whether there is a time limit, within which episodes are bounded too."""
        return self._ground.horizon is not None

    def near(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Values near the optimal ones, those of random actions, and those of a policy."""
        ground = self._ground
        return ground.optimal_upper, ground.baseline.random_upper, self._first.lower

    def share(self, guarantee: str) -> ProvenShare:
        """Of the agents that a guarantee speaks of."""
        if guarantee == "learner":
            return self.learner
        return self.own if guarantee == "policy" else self.solver

    def value(
        self,
        is_enough: Callable[[ProvenShare], bool] | None = None,
        *,
        with_learner: bool,
    ) -> ProvenValue:
        """All of it, with a margin if the solver's share is enough."""
        ground, own, solver = self._ground, self.own, self.solver
        if is_enough is not None and is_enough(solver):
            solver = with_margin(self._members, solver, is_enough, ground.judge, self._tol)
        stake, baseline, renaming = ground.stake, ground.baseline, self._small.renaming
        if self._relation.matches_actions and renaming is None:
            renaming = own_names(ground.mdp)  # matched, and called what they are
        value = ProvenValue(
            **{name: getattr(own, name) for name in ("kept", "loss", "start_loss")},
            policy=self._chosen[1],
            labels=self._small.labels,
            renaming=renaming,
            optimal_start=stake.optimal,
            baseline_start=stake.baseline,
            baseline_action=baseline.action,
            optimal_upper=ground.optimal_upper,
            optimal_lower=ground.optimal_lower,
            optimal_policy=ground.optimal_policy,
            policy_lower=_frozen(own.lower),
            random_upper=baseline.random_upper,
            constant_upper=baseline.constant_upper,
            baseline_lower=baseline.lower,
            bracket=self._bracket,
            solver=solver,
            learner=self._all_learners if with_learner else None,
        )
        if ground.horizon is None:
            return value
        return replace(value, episodes=self._episodes(value, ground.horizon))

    def _episodes(self, value: ProvenValue, horizon: int) -> Episodes:
        def bounds(plan: IntArray | BoolArray) -> EpisodeBounds:
            key = hashlib.sha256(plan.tobytes()).digest()
            if key not in self._followed_for:
                self._followed_for[key] = bound_episodes(self._ground.mdp, plan, horizon)
            return self._followed_for[key]

        def inside(guarantee: str) -> EpisodeBounds:
            return bounds(self._members.allowed(value.choices(guarantee)))

        return Episodes(
            horizon=horizon,
            policy=bounds(value.lifted_policy),
            optimal=self._ground.optimal_episodes(horizon),
            solver=inside("solver"),
            learner=None if value.learner is None else inside("learner"),
        )

    def _followed(self, policy: IntArray) -> FloatArray:
        """Lower bounds on the values of a policy, as close as its loss asks for."""
        ground = self._ground
        lifted = lift_table(policy, self._small.labels, self._small.renaming).astype(np.int64)
        lower, slack = _policy_lower(ground, lifted, 0.05 * FIRST_TOL * ground.size, self._guess)
        while True:
            loss = float((ground.optimal_upper - lower).max())
            if ground.gap + slack <= SHARE * loss:
                return lower
            tol = SHARE * max(loss - ground.gap - slack, 0.0) / 4.0
            tol = max(min(tol, ground.gap / 16.0), LAST_TOL * ground.size)
            has_helped = ground.tighten(tol, lower)
            before = slack
            lower, slack = _policy_lower(ground, lifted, tol, lower)
            if not has_helped and not slack < HELPS * before:
                return lower


def _policy_lower(
    ground: GroundValues, lifted: IntArray, tol: float, guess: FloatArray
) -> tuple[FloatArray, float]:
    """Lower bounds on the values of a policy, and how far above them the values can be."""
    mdp, gamma = ground.mdp, ground.gamma
    if mdp.estimate is not None:
        return with_radii(mdp, gamma, -1.0, lifted, guess), 0.0
    own = follow_policy(mdp, gamma, lifted, max(tol, 1e-300), guess=guess)
    lower = bounded(mdp, gamma, _middle(own.lower, own.upper), -1.0, lifted)
    return lower, float((own.upper - lower).max())


def _optimal(
    mdp: TabularMDP, gamma: float, tol: float, guess: FloatArray, sweeps: int
) -> tuple[FloatArray, IntArray]:
    """Values near the optimal ones, and a policy; not trusted."""
    values, low, high, policy, _ = find_optimal(
        mdp, gamma, max(tol, 1e-300), max_sweeps=sweeps, guess=guess
    )
    return np.asarray(values + (low / 2.0 + high / 2.0) / (1.0 - gamma)), policy


def _above(difference: float) -> float:
    return float(np.nextafter(difference, np.inf)) if difference > 0.0 else 0.0


def _middle(lower: FloatArray, upper: FloatArray) -> FloatArray:
    return np.asarray(lower / 2.0 + upper / 2.0)


def _frozen(values: FloatArray) -> FloatArray:
    values.setflags(write=False)
    return values
