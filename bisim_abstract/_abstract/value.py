"""`ProvenValue`: what a policy over clusters keeps and can lose, with the bounds that prove it.

Every array here is a function v over states (or clusters) that satisfies one inequality of one
backup, from which a bound on values follows, because backups T are monotone and T(v + c) =
Tv + γc:

- `optimal_upper`: v >= max_a [R + γPv] everywhere, hence v >= V*;
- `optimal_lower`: v <= max_a [R + γPv], hence v <= V*;
- `policy_lower`: v <= R + γPv at the policy's action, hence v <= the policy's value;
- `random_upper`: v >= the mean over actions of R + γPv, hence v >= the value of acting at random.

For an estimated model, "R + γPv" is the most, for upper bounds, or the least that the radii of
reward and row leave possible: see `robust`. One backup of each function therefore decides whether
the bounds hold; how they were found does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.html import table_html
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.renaming import actions_called
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["ProvenValue", "ValueBracket"]

# Of the optimal start value: what is lost below this is noise, and counts as nothing.
NOTHING = 1e-9


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

    def __reduce__(self) -> tuple[Callable[..., ValueBracket], tuple[dict[str, Any]]]:
        return _rebuild_bracket, ({k: getattr(self, k) for k in self.__dataclass_fields__},)


@dataclass(frozen=True, eq=False, kw_only=True)
class ProvenValue:
    """A policy over clusters, and what it is proven to keep and to lose at most.

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
        kept: Proven lower bound on (V^policy - V_random) / (V* - V_random) for values of the
            start distribution, V_random being that of acting at random. 1 where nothing can
            be lost (actions that do not differ, or equal rewards everywhere) or nothing is:
            where the start loss is below a billionth of the optimal start value, or of the
            largest difference of values, if that is less. -inf if nothing is proven.
        optimal_upper: (n_states) upper bounds on the optimal values.
        optimal_lower: (n_states) lower bounds on the optimal values.
        policy_lower: (n_states) lower bounds on the values of `policy`.
        random_upper: (n_states) upper bounds on the values of acting at random.
        bracket: Bounds that the clusters prove by themselves.
    """

    policy: IntArray
    labels: IntArray
    loss: float
    start_loss: float
    kept: float
    optimal_upper: FloatArray
    optimal_lower: FloatArray
    policy_lower: FloatArray
    random_upper: FloatArray
    bracket: ValueBracket
    renaming: IntArray | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name in ("policy", "labels"):
            set_field(self, name, as_frozen(name, getattr(self, name), np.int64))
        for name in BOUNDS:
            set_field(self, name, as_frozen(name, getattr(self, name), np.float64))
        for name in NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
                raise InvalidArgumentError(f"{name} must be a number, got {value!r}")
            set_field(self, name, float(value))
        if not isinstance(self.bracket, ValueBracket):
            raise InvalidArgumentError(f"bracket must be a ValueBracket, got {self.bracket!r}")
        if math.isnan(self.kept) or not (0.0 <= self.start_loss <= self.loss < math.inf):
            raise InvalidArgumentError(
                "losses must be finite with 0 <= start_loss <= loss and kept must be a number, "
                f"got {self.start_loss!r}, {self.loss!r} and {self.kept!r}"
            )
        shape = self.labels.shape
        if len(shape) != 1 or any(getattr(self, name).shape != shape for name in BOUNDS):
            raise InvalidArgumentError("labels and bounds must have one entry per state")
        clusters = self.policy.size
        if self.policy.ndim != 1 or self.bracket.policy.size != clusters or clusters == 0:
            raise InvalidArgumentError("policy and bracket must have one entry per cluster")
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

    @property
    def lifted_policy(self) -> IntArray:
        """(n_states) the action that each state takes, by its own name."""
        names = np.asarray(self.policy[self.labels])
        return names if self.renaming is None else actions_called(self.renaming, names)

    def summary(self) -> str:
        """What it says, in half a sentence."""
        return f"{kept_text(self.kept)} and loses at most {amount_text(self.loss)} in any state"

    def __repr__(self) -> str:
        return f"ProvenValue({counted(self.policy.size, 'choice')}, {self.summary()})"

    def _repr_html_(self) -> str:
        optimal = f"between {self.optimal_lower.min():.6g} and {self.optimal_upper.max():.6g}"
        rows = [
            ("start value kept", share_text(self.kept)),
            ("loss in any state", f"at most {amount_text(self.loss)}"),
            ("loss at the start", f"at most {amount_text(self.start_loss)}"),
            ("optimal values", f"{optimal}, of {counted(self.labels.size, 'state')}"),
            ("policy", f"{counted(self.policy.size, 'choice')}, one per cluster"),
        ]
        return table_html("What a policy over clusters is proven to be worth", rows)

    def __reduce__(self) -> tuple[Callable[..., ProvenValue], tuple[dict[str, Any]]]:
        return _rebuild, ({k: getattr(self, k) for k in self.__dataclass_fields__},)


BOUNDS = ("optimal_upper", "optimal_lower", "policy_lower", "random_upper")
NUMBERS = ("loss", "start_loss", "kept")


def share_text(share: float) -> str:
    """A proven share for people, rounded down: "at least 99.4%", "100%", "nothing proven"."""
    if share >= 1.0:
        return "100%"
    if not share > 0.0:
        return "nothing proven"
    return f"at least {math.floor(share * 1000.0) / 10.0:.1f}%"


def kept_text(share: float) -> str:
    """What is kept, as the end of a sentence about planning: "keeps at least 99.4% of ..."."""
    if not share > 0.0:
        return "is not proven to keep anything of the start value"
    return f"keeps {share_text(share)} of the start value"


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


def start_means(
    start: FloatArray, values: FloatArray, *, slack: float = 16.0
) -> tuple[float, float]:
    """Bounds on the mean of values over the start distribution, divided by its sum.

    Sums are correctly rounded; a product, each sum and the quotient round once: four units of
    EPS of the mean of absolute values, of which `slack` has more.
    """
    used = np.flatnonzero(start)
    weights, picked = start[used], values[used]
    total = math.fsum(weights)
    mean = math.fsum(weights * picked) / total
    pad = slack * EPS * math.fsum(weights * np.abs(picked)) / total
    return mean - pad, mean + pad


def proven_share(
    optimal: tuple[float, float], policy: float, random: float, size: float, *, nothing: float
) -> float:
    """A lower bound on (V^policy - V_random) / (V* - V_random), start values all of them.

    With P, R, S for the three, the quotient rises with P, falls with R (by (P - S)/(S - R)²,
    and P <= S), and falls with S where P >= R, rises where P < R. So: the lower bound of P, the
    upper bound of R, and the upper bound of S or its lower bound.

    Args:
        optimal: Lower and upper bound of S.
        policy: Lower bound of P.
        random: Upper bound of R.
        size: What the loss is measured by: a lower bound on |S|, or the largest difference of
            values, whichever is less.
        nothing: Share of `size` up to which a loss is none.
    """
    low, high = max(optimal[0], policy), optimal[1]
    if high - policy <= nothing * size:
        return 1.0
    gain = (high if policy >= random else low) - random
    if not gain > 0.0:
        return -math.inf
    share = (policy - random) / gain
    # A difference, another one and the quotient round once each.
    return min(1.0, share - 4.0 * EPS * abs(share))


def start_size(
    optimal: tuple[float, float],
    policy: float,
    rewards: tuple[FloatArray, FloatArray],
    gamma: float,
    *,
    has_choice: bool,
) -> float:
    """What start losses are measured by: |V*| at the start, or all that values could differ by.

    The second keeps a constant that is added to all rewards from hiding what is lost. Infinity
    where nothing can be lost: if actions do not differ, or rewards are equal everywhere, all
    policies have the same values.

    Args:
        optimal: Lower and upper bound of the optimal start value.
        policy: Lower bound of a policy's.
        rewards: (n_states, n_actions) lower and upper bounds on rewards.
        gamma: The discount.
        has_choice: Whether actions differ in any state.
    """
    low, high = rewards
    span = float(high.max()) - float(low.min())
    if span == 0.0 or not has_choice:
        return math.inf
    return min(max(optimal[0], policy, -optimal[1], 0.0), span / (1.0 - gamma))


def _rebuild(fields: dict[str, Any]) -> ProvenValue:
    return ProvenValue(**fields)


def _rebuild_bracket(fields: dict[str, Any]) -> ValueBracket:
    return ValueBracket(**fields)
