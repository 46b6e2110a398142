"""`ProvenValue`: what agents over clusters keep and can lose, with the bounds that prove it.

Every array here is a function v over states (or clusters) that satisfies one inequality of one
backup, from which a bound on values follows, because backups T are monotone and T(v + c) =
Tv + γc:

- `optimal_upper`: v >= max_a [R + γPv] everywhere, hence v >= V*;
- `optimal_lower`: v <= R + γPv at `optimal_policy`, hence v is at most its value, and at most V*;
- `policy_lower`: v <= R + γPv at the policy's action, hence v <= the policy's value;
- `random_upper`: v >= the mean over actions of R + γPv, hence v >= the value of acting at random;
  `constant_upper` the same for each action for ever, `baseline_lower` mirrored for the best of
  these;
- `solver.lower` and `learner.lower`: v <= min over a set of actions of [R + γPv], hence v is at
  most the value of *every* policy that plays inside the set. See `agents` for the sets.

For an estimated model, "R + γPv" is the most, for upper bounds, or the least that the radii of
reward and row leave possible: see `robust`. One backup of each function therefore decides whether
the bounds hold; how they were found does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from bisim_abstract._abstract.episodes import Episodes
from bisim_abstract._abstract.scale import NOTHING
from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.checks import check_choice, check_int
from bisim_abstract._base.html import table_html
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.renaming import actions_called, used_names
from bisim_abstract.errors import InvalidArgumentError

__all__ = [
    "ConvergedShare",
    "LearnerShare",
    "ProvenShare",
    "ProvenValue",
    "SolverShare",
    "ValueBracket",
]

# Whose value a goal speaks of.
GUARANTEES = ("solver", "policy", "learner")
# What the promise about learners assumes, wherever it is printed.
LEARNER_TERMS = (
    "it takes one-step Q-learning updates with the certificate's gamma and falling step sizes, "
    "tries every action in every cluster for ever, bootstraps at truncation and not at the end, "
    "and is evaluated greedily"
)
LEAST_KEPT = 1e-3  # of a smaller share nobody would say that anything is retained
TINY_STAKE = 1e-3  # of the optimal start value: what is at stake below this is worth a word


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueBracket:
    """Bounds on values that a partition proves by itself, one of each per cluster.

    Attributes:
        lower: (clusters) in every state of a cluster, `policy` is worth at least this.
        upper: (clusters) in no state of it is the optimal value higher.
        policy: (clusters) the robust policy: the best one if, in each cluster, the least
            favourable member counts.
    """

    lower: FloatArray
    upper: FloatArray
    policy: IntArray

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name in ("lower", "upper"):
            set_field(self, name, as_frozen(name, getattr(self, name), np.float64))
        set_field(self, "policy", as_frozen("policy", self.policy, np.int64))
        shapes = {self.lower.shape, self.upper.shape, self.policy.shape}
        if len(shapes) != 1 or self.lower.ndim != 1 or self.lower.size == 0:
            raise InvalidArgumentError(
                f"lower, upper and policy must have one entry per cluster, got shapes {shapes}"
            )

    def __repr__(self) -> str:
        return f"ValueBracket({counted(self.policy.size, 'cluster')}, {self._range()})"

    def _range(self) -> str:
        return f"values between {self.lower.min():.6g} and {self.upper.max():.6g}"

    def _repr_html_(self) -> str:
        rows = [
            ("bounds", self._range()),
            ("widest", f"{(self.upper - self.lower).max():.3g} between the two of a cluster"),
        ]
        count = counted(self.policy.size, "cluster")
        return table_html(f"What a partition proves by itself, for {count}", rows)

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], dict[str, Any]]]:
        return _rebuild, (type(self), {k: getattr(self, k) for k in self.__dataclass_fields__})


@dataclass(frozen=True, eq=False, kw_only=True)
class ProvenShare:
    """What every agent of some kind is proven to keep and to lose at most.

    Attributes:
        kept: Proven lower bound on the kept share (V - V₀) / (V* - V₀) of values from the start
            distribution, V₀ being the baseline: see `ProvenValue.kept`.
        loss: Proven upper bound on V* - V in any state.
        start_loss: The same as a mean over the start distribution.
        lower: (n_states) lower bounds on the values of every such agent.
    """

    kept: float
    loss: float
    start_loss: float
    lower: FloatArray

    def __post_init__(self) -> None:
        _freeze(self, ("lower",), np.float64)
        _check_numbers(self)

    def fields(self) -> dict[str, Any]:
        """Share, losses and bounds, for a share of another kind."""
        return {name: getattr(self, name) for name in (*NUMBERS, "lower")}

    def summary(self) -> str:
        """What it says, in half a sentence."""
        return f"{kept_text(self.kept)} and loses at most {amount_text(self.loss)} in any state"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary()})"

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], dict[str, Any]]]:
        return _rebuild, (type(self), {k: getattr(self, k) for k in self.__dataclass_fields__})


@dataclass(frozen=True, eq=False, kw_only=True)
class BoxedShare(ProvenShare):
    """The same for agents whose values of actions end between two bounds.

    Attributes:
        q_lower: (clusters, names) where the agent's values of actions end, from below.
        q_upper: (clusters, names) the same from above.
    """

    q_lower: FloatArray
    q_upper: FloatArray

    def __post_init__(self) -> None:
        super().__post_init__()
        _freeze(self, ("q_lower", "q_upper"), np.float64)
        if self.q_lower.ndim != 2 or self.q_lower.shape != self.q_upper.shape:
            raise InvalidArgumentError(
                "q_lower and q_upper must have a row per cluster and a column per name, got "
                f"{self.q_lower.shape} and {self.q_upper.shape}"
            )
        if not (self.q_lower <= self.q_upper).all():
            raise InvalidArgumentError("q_lower must not exceed q_upper")


@dataclass(frozen=True, eq=False, kw_only=True)
class SolverShare(BoxedShare):
    """What whoever solves the small environment is proven to keep, ties broken against it.

    Attributes:
        margin: How wrong the agent's values of actions may be, each of them, so that
            `margin_kept` is still proven. Infinite where any agent keeps that much. None where it
            was not computed.
        margin_kept: The share that is proven with such values.
        margin_lower: (n_states) the bounds that prove it; empty without a margin.
    """

    margin: float | None = None
    margin_kept: float = -math.inf
    margin_lower: FloatArray

    def __post_init__(self) -> None:
        super().__post_init__()
        _freeze(self, ("margin_lower",), np.float64)
        object.__setattr__(self, "margin_kept", _number("margin_kept", self.margin_kept))
        if self.margin is not None:
            object.__setattr__(self, "margin", _number("margin", self.margin))
        if self.margin is not None and not self.margin >= 0.0:
            raise InvalidArgumentError(f"margin must be at least 0, got {self.margin!r}")
        if math.isnan(self.margin_kept):
            raise InvalidArgumentError("margin_kept must be a number, got nan")

    def margin_text(self) -> str:
        """How wrong its values may be, as the end of a sentence; empty if that is not known."""
        if self.margin is None:
            return ""
        if self.margin == math.inf:
            return f"; {share_text(self.margin_kept)} whatever its values"
        least = _rounded_down(self.margin)
        return f"; {share_text(self.margin_kept)} if its values are off by at most {least}"


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvergedShare(ProvenShare):
    """What a learner on real steps is proven to keep if its values converge.

    Attributes:
        choices: (clusters, names) the actions that it can end with.
        excess: (n_states) by how much its value may be below `LearnerShare.q_lower` at most.
    """

    choices: BoolArray
    excess: FloatArray

    def __post_init__(self) -> None:
        super().__post_init__()
        _freeze(self, ("excess",), np.float64)
        _freeze(self, ("choices",), np.bool_)


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnerShare(BoxedShare):
    """What one-step Q-learning on real steps, seeing clusters, is proven to keep.

    Attributes:
        converged: The same for learners whose values converge, a weaker promise with a larger
            share; None where it was not computed.
    """

    converged: ConvergedShare | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ProvenValue:
    """A policy over clusters, and what it and other agents are proven to keep and to lose at most.

    Clusters are numbered as by `aggregate`: the end of episodes, where there is one, comes last
    and is none of them.

    Attributes:
        policy: (clusters, and the end) the action taken in each, by its name there.
        labels: (n_states) the cluster of each state.
        renaming: (n_states, n_actions) what each action of a state is called in its cluster, -1
            where the state lacks it; None where all states have all actions, and these are
            called what they are.
        loss: Proven upper bound on V* - V^policy in any state.
        start_loss: The same as a mean over the start distribution.
        kept: Proven lower bound on the kept share (V^policy - V₀) / (V* - V₀) of values from the
            start distribution. The baseline V₀ is the best of uniformly random actions and of
            each action for ever. 1 where nothing is lost but rounding: where the start loss is
            below a billionth of the optimal start value, or of the largest difference of values,
            if that is less, and below a millionth of what is at stake. Negative below the
            baseline. -inf if nothing is proven, as where the baseline is optimal and the policy
            loses something.
        optimal_start: Bounds on the optimal start value.
        baseline_start: Bounds on the baseline's.
        baseline_action: The action of the best constant policy, -1 for random actions.
        optimal_upper: (n_states) upper bounds on the optimal values.
        optimal_lower: (n_states) lower bounds on the values of `optimal_policy`.
        optimal_policy: (n_states) an optimal policy, as far as these bounds can tell.
        policy_lower: (n_states) lower bounds on the values of `policy`.
        random_upper: (n_states) upper bounds on the values of acting at random.
        constant_upper: (n_states, n_actions) upper bounds on the values of each action for ever.
        baseline_lower: (n_states) lower bounds on the values of the best of these policies.
        bracket: Bounds that the clusters prove by themselves.
        solver: What whoever solves the small environment keeps.
        learner: What whoever learns on real steps through the clusters keeps; None if not computed.
        episodes: Returns and ends of episodes within the time limit; None without one.
    """

    policy: IntArray
    labels: IntArray
    loss: float
    start_loss: float
    kept: float
    optimal_start: tuple[float, float]
    baseline_start: tuple[float, float]
    baseline_action: int
    optimal_upper: FloatArray
    optimal_lower: FloatArray
    optimal_policy: IntArray
    policy_lower: FloatArray
    random_upper: FloatArray
    constant_upper: FloatArray
    baseline_lower: FloatArray
    bracket: ValueBracket
    solver: SolverShare
    learner: LearnerShare | None = None
    episodes: Episodes | None = None
    renaming: IntArray | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        _freeze(self, ("policy", "labels", "optimal_policy"), np.int64)
        _freeze(self, (*BOUNDS, "constant_upper"), np.float64)
        _check_numbers(self)
        for name in ("optimal_start", "baseline_start"):
            low, high = (float(x) for x in getattr(self, name))
            if not (math.isfinite(low) and low <= high < math.inf):
                raise InvalidArgumentError(f"{name} must be finite bounds, got {low!r}, {high!r}")
            set_field(self, name, (low, high))
        set_field(
            self, "baseline_action", check_int("baseline_action", self.baseline_action, low=-1)
        )
        if not isinstance(self.bracket, ValueBracket):
            raise InvalidArgumentError(f"bracket must be a ValueBracket, got {self.bracket!r}")
        for name, kind in (("solver", SolverShare), ("learner", LearnerShare)):
            share = getattr(self, name)
            if not isinstance(share, kind) and not (share is None and name == "learner"):
                raise InvalidArgumentError(f"{name} must be a {kind.__name__}, got {share!r}")
        if self.episodes is not None and not isinstance(self.episodes, Episodes):
            raise InvalidArgumentError(f"episodes must be Episodes, got {self.episodes!r}")
        shape = self.labels.shape
        per_state = [getattr(self, name) for name in (*BOUNDS, "optimal_policy")]
        per_state += [share.lower for share in self._shares()]
        if len(shape) != 1 or any(array.shape != shape for array in per_state):
            raise InvalidArgumentError("labels and bounds must have one entry per state")
        if self.constant_upper.ndim != 2 or self.constant_upper.shape[0] != shape[0]:
            raise InvalidArgumentError("constant_upper must have a row per state")
        if self.solver.margin_lower.shape not in (shape, (0,)):
            raise InvalidArgumentError("margin_lower must have one entry per state, or none")
        clusters = self.policy.size
        if self.policy.ndim != 1 or self.bracket.policy.size != clusters or clusters == 0:
            raise InvalidArgumentError("policy and bracket must have one entry per cluster")
        boxed = [self.solver] if self.learner is None else [self.solver, self.learner]
        if any(share.q_lower.shape[0] != clusters for share in boxed):
            raise InvalidArgumentError("bounds on values of actions must have a row per cluster")
        if self.labels.min() < 0 or self.labels.max() >= clusters:
            raise InvalidArgumentError(f"labels must lie in [0, {clusters})")
        if self.renaming is not None:
            names = as_frozen("renaming", self.renaming, np.int64)
            set_field(self, "renaming", names)
            if names.ndim != 2 or names.shape[0] != shape[0] or not (names >= 0).any(axis=1).all():
                raise InvalidArgumentError(
                    "renaming must have a row for each state, with a name for one of its actions "
                    f"at least, got shape {names.shape}"
                )

    def _shares(self) -> list[ProvenShare]:
        shares: list[ProvenShare] = [self.solver]
        if self.learner is not None:
            shares.append(self.learner)
            if self.learner.converged is not None:
                shares.append(self.learner.converged)
        return shares

    @property
    def lifted_policy(self) -> IntArray:
        """(n_states) the action that each state takes, by its own name."""
        names = np.asarray(self.policy[self.labels])
        return names if self.renaming is None else actions_called(self.renaming, names)

    def share(self, guarantee: str) -> ProvenShare | None:
        """What is proven of the agents that a guarantee speaks of; None if it was not computed.

        Args:
            guarantee: "policy": the policy that comes with the clusters. "solver": whoever solves
                the small environment. "learner": whoever learns on real steps, seeing clusters.
        """
        check_choice("guarantee", guarantee, GUARANTEES)
        if guarantee == "policy":
            return ProvenShare(
                kept=self.kept, loss=self.loss, start_loss=self.start_loss, lower=self.policy_lower
            )
        return self.solver if guarantee == "solver" else self.learner

    def choices(self, guarantee: str) -> BoolArray:
        """(clusters, names) the actions that agents of a guarantee can end with.

        Args:
            guarantee: "solver" or "learner".
        """
        boxed = self.solver if guarantee == "solver" else self.learner
        if boxed is None:
            raise InvalidArgumentError(f"nothing was computed of the {guarantee}")
        used = np.ones(boxed.q_lower.shape, bool)
        if self.renaming is not None:
            states, names = np.nonzero(used_names(self.renaming))
            used[self.labels] = False
            used[self.labels[states], names] = True
        return best_between(boxed.q_lower, boxed.q_upper, used)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be decided: the baseline is proven optimal, but for rounding.

        A constant that is added to all rewards makes what is at stake small beside values, but
        does not hide it: bounds then show that the best policy gains something.
        """
        gains = self.optimal_start[0] > self.baseline_start[1]
        return self._is_at_stake_below(NOTHING) and not gains

    @property
    def has_tiny_stake(self) -> bool:
        """Whether the best policy gains less than a thousandth of its value over the baseline."""
        return self._is_at_stake_below(TINY_STAKE)

    def _is_at_stake_below(self, part: float) -> bool:
        low, high = self.optimal_start
        return high - self.baseline_start[0] <= part * max(abs(low), abs(high))

    def summary(self) -> str:
        """What it says of the policy, in half a sentence."""
        return f"{kept_text(self.kept)} and loses at most {amount_text(self.loss)} in any state"

    def lines(self, gamma: float) -> list[str]:
        """What is proven of each kind of agent, a line each, with the learner's conditions."""
        best, base = self.optimal_start, self.baseline_start
        found = [
            f"  start     best {best[0]:.6g}, baseline {base[1]:.6g} at gamma = {gamma:g}",
            f"  policy    {self.summary()}",
            f"  solver    {self.solver.summary()}{self.solver.margin_text()}",
        ]
        if self.learner is not None:
            found.append(f"  learner   {self.learner.summary()}")
            if self.learner.converged is not None:
                found.append(
                    f"            {self.learner.converged.summary()} if its values converge"
                )
            found.append(f"            if {LEARNER_TERMS}")
        if self.episodes is not None:
            found.append(f"  episodes  {self.episodes.summary()}")
        return found

    def __repr__(self) -> str:
        return f"ProvenValue({counted(self.policy.size, 'choice')}, {self.summary()})"

    def _repr_html_(self) -> str:
        optimal = f"between {self.optimal_lower.min():.6g} and {self.optimal_upper.max():.6g}"
        best, base = self.optimal_start, self.baseline_start
        rows = [
            ("start value", f"best {best[0]:.6g}, baseline {base[1]:.6g}"),
            ("kept by the policy", share_text(self.kept)),
            ("kept by a solver", share_text(self.solver.kept) + self.solver.margin_text()),
        ]
        if self.learner is not None:
            rows.append(("kept by a learner", share_text(self.learner.kept)))
        rows += [
            ("loss in any state", f"at most {amount_text(self.loss)}"),
            ("loss at the start", f"at most {amount_text(self.start_loss)}"),
            ("optimal values", f"{optimal}, of {counted(self.labels.size, 'state')}"),
            ("policy", f"{counted(self.policy.size, 'choice')}, one per cluster"),
        ]
        if self.episodes is not None:
            rows.append(("episodes", self.episodes.summary()))
        return table_html("What agents over clusters are proven to be worth", rows)

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], dict[str, Any]]]:
        return _rebuild, (type(self), {k: getattr(self, k) for k in self.__dataclass_fields__})


BOUNDS = ("optimal_upper", "optimal_lower", "policy_lower", "random_upper", "baseline_lower")
NUMBERS = ("loss", "start_loss", "kept")


def best_between(
    q_lower: FloatArray, q_upper: FloatArray, used: BoolArray, *, slack: float = 0.0
) -> BoolArray:
    """(clusters, names) actions that may be the best ones of values between two bounds.

    With `slack`, actions that may be within it of the best: if no value of an agent is off by
    more than half of that, its greedy actions are among them.
    """
    best = np.where(used, q_lower, -np.inf).max(axis=1) - slack
    return np.asarray(used & (q_upper >= best[:, None]))


def share_text(share: float) -> str:
    """A proven share for people, rounded down: "at least 99.4%", "100%", "below the baseline"."""
    if share >= 1.0:
        return "100%"
    if share == -math.inf:
        return "nothing proven"
    if share < 0.0:
        return "below the baseline"
    return f"at least {math.floor(share * 1000.0) / 10.0:.1f}%"


def kept_text(share: float) -> str:
    """A kept share as the end of a sentence: "retains at least 99.4% of ..."."""
    if share == -math.inf or 0.0 <= share < LEAST_KEPT:
        return "is not proven to retain anything of the achievable return"
    if share < 0.0:
        return "may return less than the baseline"
    return f"retains {share_text(share)} of the achievable return"


def amount_text(amount: float) -> str:
    """A proven loss for people, rounded up to three digits."""
    if amount == 0.0 or not math.isfinite(amount):
        return f"{amount:g}"
    digits = 2 - math.floor(math.log10(amount))
    try:
        up = math.ceil(amount * 10.0**digits) / 10.0**digits
    except OverflowError:
        up = amount * 1.005
    return f"{up:.3g}"


def _rounded_down(amount: float) -> str:
    """A margin for people, rounded down to three digits."""
    if amount <= 0.0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(amount)) - 2)
    return f"{math.floor(amount / unit) * unit:.3g}"


def _freeze(owner: object, names: tuple[str, ...], dtype: type) -> None:
    for name in names:
        object.__setattr__(owner, name, as_frozen(name, getattr(owner, name), dtype))


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        raise InvalidArgumentError(f"{name} must be a number, got {value!r}")
    return float(value)


def _check_numbers(owner: Any) -> None:
    """Losses and kept share as floats that can be true."""
    for name in NUMBERS:
        object.__setattr__(owner, name, _number(name, getattr(owner, name)))
    if math.isnan(owner.kept) or not (0.0 <= owner.start_loss <= owner.loss < math.inf):
        raise InvalidArgumentError(
            "losses must be finite with 0 <= start_loss <= loss and kept must be a number, "
            f"got {owner.start_loss!r}, {owner.loss!r} and {owner.kept!r}"
        )


def _rebuild(kind: Any, fields: dict[str, Any]) -> Any:
    return kind(**fields)
