"""Models estimated from samples, with radii within which the true model lies.

The radii hold for all states and actions at once with probability at least 1 - alpha, also
when the data were gathered by an adaptive policy: the number of visits N is then random, so
each N is given its own share delta / (N (N + 1)) of the error probability (these shares sum
to delta), and the outcomes of the first N visits to a state and action are independent by the
Markov property.

Radii may also hold surely: alpha is then 0, and they cover the rounding of numbers that were
computed, as in the chain that a policy makes of a model (`chains`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.checks import check_int, check_real
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.checks import check_distribution
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError

__all__ = ["Estimate", "estimate_mdp"]

ROW_BYTES, STEP_BYTES = 180, 80  # what a state and action and what a sample take at the peak


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate:
    """What is known about the accuracy of an estimated model, or of one that was computed.

    With probability at least 1 - alpha, for all states and actions at once, the true expected
    reward is within `reward_radius` of the model's, and the true row within `row_radius` of
    the model's in total variation. With alpha = 0 that is sure: nothing was sampled, and the
    radii are those of rounding.

    Attributes:
        counts: (n_states, n_actions) number of visits; 0 where nothing was sampled.
        reward_radius: (n_states, n_actions).
        row_radius: (n_states, n_actions) in total variation, between 0 and 1.
        alpha: Probability that some radius fails; 0 if none can.
        reward_range: Known bounds on single rewards, (low, high).
        support_bound: Known bound on the number of successors of a state and action.
    """

    counts: IntArray
    reward_radius: FloatArray
    row_radius: FloatArray
    alpha: float
    reward_range: tuple[float, float]
    support_bound: int

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "alpha", check_alpha(self.alpha, or_sure=True))
        set_field(self, "reward_range", check_reward_range(self.reward_range))
        set_field(self, "support_bound", check_int("support_bound", self.support_bound, low=1))
        counts = frozen("estimate.counts", self.counts, np.int64)
        if counts.ndim != 2 or (counts < 0).any():
            raise InvalidMDPError("estimate.counts must be non-negative, (n_states, n_actions)")
        set_field(self, "counts", counts)
        for name in ("reward_radius", "row_radius"):
            radius = frozen(f"estimate.{name}", getattr(self, name), np.float64)
            if radius.shape != counts.shape or not (radius >= 0.0).all():
                raise InvalidMDPError(
                    f"estimate.{name} must be non-negative and of shape {counts.shape}"
                )
            set_field(self, name, radius)
        if (self.row_radius > 1.0).any():
            raise InvalidMDPError("estimate.row_radius is a total variation: at most 1")

    def __reduce__(self) -> tuple[Callable[..., Estimate], tuple[dict[str, Any]]]:
        # Through the constructor, so that copies are read-only too.
        return _rebuild, ({name: getattr(self, name) for name in self.__dataclass_fields__},)

    @property
    def is_sampled(self) -> bool:
        """Whether radii hold with some probability only; else surely, as those of rounding do."""
        return self.alpha > 0.0

    def header(self) -> dict[str, Any]:
        """The scalar fields, as JSON values."""
        return {
            "alpha": self.alpha,
            "reward_range": list(self.reward_range),
            "support_bound": self.support_bound,
        }

    def arrays(self) -> list[npt.NDArray[Any]]:
        """The array fields, in the order counts, reward_radius, row_radius."""
        return [self.counts, self.reward_radius, self.row_radius]

    def restrict(self, states: IntArray) -> Estimate:
        """The same on a subset of states."""
        return Estimate(
            counts=self.counts[states],
            reward_radius=self.reward_radius[states],
            row_radius=self.row_radius[states],
            alpha=self.alpha,
            reward_range=self.reward_range,
            support_bound=self.support_bound,
        )

    def with_actions(self, chosen: IntArray) -> Estimate:
        """The same with actions of each state replaced by others, (n_states, n_actions)."""
        counts, reward_radius, row_radius = (
            np.take_along_axis(array, chosen, axis=1) for array in self.arrays()
        )
        return replace(self, counts=counts, reward_radius=reward_radius, row_radius=row_radius)


def _rebuild(fields: dict[str, Any]) -> Estimate:
    return Estimate(**fields)


@runtime_checkable
class TransitionsLike(Protocol):
    """Recorded steps with the numbers that go with them, as `Transitions` has them."""

    @property
    def states(self) -> npt.NDArray[Any]:
        """(N) states acted in."""

    @property
    def actions(self) -> IntArray:
        """(N) actions taken."""

    @property
    def rewards(self) -> FloatArray:
        """(N) rewards received."""

    @property
    def next_states(self) -> npt.NDArray[Any]:
        """(N) states reached."""

    @property
    def terminated(self) -> BoolArray:
        """(N) whether the episode ended there for good."""

    @property
    def n_states(self) -> int | None:
        """Number of states, or None if these are vectors."""

    @property
    def n_actions(self) -> int:
        """Number of actions."""

    @property
    def terminal_state(self) -> int | None:
        """The state that stands for the end of episodes, if it is one of the states."""


def estimate_mdp(
    states: TransitionsLike | npt.ArrayLike,
    actions: npt.ArrayLike | None = None,
    rewards: npt.ArrayLike | None = None,
    next_states: npt.ArrayLike | None = None,
    terminated: npt.ArrayLike | None = None,
    *,
    n_states: int | None = None,
    n_actions: int | None = None,
    reward_range: tuple[float, float],
    alpha: float = 0.05,
    support_bound: int | None = None,
    start: npt.ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
    resources: Resources = HERE,
) -> TabularMDP:
    """The empirical MDP of sampled transitions, marked as an estimate with its radii.

    Rows are visit frequencies and rewards are means. A pair never visited keeps a self-loop
    with radius 1 and the middle of the reward range with half its width: nothing is known, and
    plans made with the estimate alone may well head for such pairs.

    Args:
        states: (N) states acted in. Or `Transitions` of numbered states, as
            `collect_transitions` gives them, and nothing else: these know all that follows up
            to `n_actions`. Where none of them ended an episode, no state is added; where they
            have a terminal state of their own, that is the end.
        actions: (N) actions taken.
        rewards: (N) rewards received.
        next_states: (N) states reached.
        terminated: (N) whether the episode ended there (not: was cut off). If given, such
            outcomes lead to one added absorbing state.
        n_states: Number of states, the added one not counted; needed with arrays.
        n_actions: Number of actions; needed with arrays.
        reward_range: Bounds that every single reward is known to respect. Nothing that follows
            exceeds what they allow.
        alpha: Probability allowed for any radius to fail.
        support_bound: Known bound on the number of successors of a state and action;
            all states by default. A true bound makes the radii far smaller.
        start: (n_states) start distribution; uniform over visited states by default.
        metadata: See `TabularMDP`.
        resources: Memory that may be used; what is available by default.

    Raises:
        InvalidArgumentError: If lengths differ, an index is out of range, or a reward lies
            outside `reward_range`.
        MemoryLimitError: If the model would not fit.

    Example:
        >>> mdp = estimate_mdp([0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1],
        ...                    n_states=2, n_actions=1, reward_range=(0, 1))
        >>> mdp.estimate.counts.ravel()
        array([3, 1])
        >>> mdp.successors(0, 0)[1].round(3)
        array([0.333, 0.667])
    """
    steps = _steps(states, actions, rewards, next_states, terminated, n_states, n_actions)
    n_states, n_actions, end = steps.n_states, steps.n_actions, steps.end
    alpha = check_alpha(alpha)
    low, high = check_reward_range(reward_range)
    n_steps = len(steps.states) if isinstance(steps.states, np.ndarray | list | tuple) else 1
    resources.check_memory(
        ROW_BYTES * n_states * n_actions + STEP_BYTES * n_steps,
        what=f"a model of {n_states:,} states and {n_actions:,} actions from {n_steps:,} steps",
        instead="number only the states and actions that occur",
    )
    s = _indices("states", steps.states, n_states)
    a = _indices("actions", steps.actions, n_actions)
    t = _indices("next_states", steps.next_states, n_states)
    r = frozen("rewards", steps.rewards, np.float64)
    done = np.zeros(s.shape, bool)
    if steps.terminated is not None:
        done = np.asarray(steps.terminated, dtype=bool)
    lengths = {
        "states": s.shape,
        "actions": a.shape,
        "rewards": r.shape,
        "next_states": t.shape,
        "terminated": done.shape,
    }
    if len(set(lengths.values())) != 1 or s.ndim != 1:
        raise InvalidArgumentError(f"transitions must be arrays of one length, got {lengths}")
    outside = np.flatnonzero(~((low <= r) & (r <= high)))
    if outside.size:
        raise InvalidArgumentError(
            f"rewards must lie in reward_range [{low}, {high}], got {r[outside[0]]} "
            f"at position {outside[0]}"
        )
    if end is not None and (s == end).any():
        raise InvalidArgumentError(
            f"states must not hold the terminal state {end}: an ended episode takes no further "
            "step; drop these steps"
        )
    total = n_states + (end == n_states)
    bound = total if support_bound is None else check_int("support_bound", support_bound, low=1)

    row = s * n_actions + a
    n_rows = total * n_actions
    # What the end does is ours to say: nothing about it is uncertain, nor to be estimated.
    is_live = np.repeat(np.arange(total) != (-1 if end is None else end), n_actions)
    counts = np.bincount(row, minlength=n_rows)
    mean, spread = _mean_and_variance(row, r, counts, low, high)
    target = t if end is None else np.where(done, end, t)
    # Unvisited rows, and with them those of the end, get one self-loop.
    loops = np.flatnonzero(counts == 0)
    keys, times = np.unique(row * total + target, return_counts=True)
    keys = np.concatenate([keys, loops * total + loops // n_actions])
    probs = np.concatenate([times / counts[keys[: times.size] // total], np.ones(loops.size)])
    order = np.argsort(keys)
    successors = np.bincount(keys[: times.size] // total, minlength=n_rows)
    if successors.max() > bound:
        at = int(successors.argmax())
        raise InvalidArgumentError(
            f"support_bound is {bound}, but state {at // n_actions}, action {at % n_actions} was "
            f"seen to reach {successors.max()} states"
        )
    indptr = np.searchsorted(keys[order] // total, np.arange(n_rows + 1))

    delta = alpha / max(int(is_live.sum()), 1)
    reward_radius, row_radius = _radii(counts, spread, high - low, delta, bound)
    # Means are rounded at the magnitude of the rewards, not of their range.
    if high > low:
        reward_radius += 8.0 * EPS * max(abs(low), abs(high))
    shape = (total, n_actions)
    if start is None:
        seen = np.bincount(s, minlength=n_states) > 0
        known = seen if seen.any() else np.arange(n_states) != (-1 if end is None else end)
        distribution = known / known.sum()
    else:
        distribution = frozen("start", start, np.float64)
        check_distribution("start", distribution, n_states)
    distribution = np.append(distribution, np.zeros(total - n_states))
    return TabularMDP(
        indptr=indptr,
        indices=keys[order] % total,
        probs=probs[order],
        rewards=np.where(is_live, mean, 0.0).reshape(shape),
        start=distribution,
        terminal_state=end,
        estimate=Estimate(
            counts=counts.reshape(shape),
            reward_radius=np.where(is_live, reward_radius, 0.0).reshape(shape),
            row_radius=np.where(is_live, row_radius, 0.0).reshape(shape),
            alpha=alpha,
            reward_range=(low, high),
            support_bound=bound,
        ),
        metadata=metadata or {},
    )


class _Steps(NamedTuple):
    """What a model is estimated from; arrays are not checked yet.

    `end` is the state that ended episodes lead to: one of the states, or the one after the last.
    """

    states: npt.ArrayLike
    actions: npt.ArrayLike
    rewards: npt.ArrayLike
    next_states: npt.ArrayLike
    terminated: npt.ArrayLike | None
    n_states: int
    n_actions: int
    end: int | None


def _steps(
    states: TransitionsLike | npt.ArrayLike,
    actions: npt.ArrayLike | None,
    rewards: npt.ArrayLike | None,
    next_states: npt.ArrayLike | None,
    terminated: npt.ArrayLike | None,
    n_states: int | None,
    n_actions: int | None,
) -> _Steps:
    """Both ways to give steps as one: an object that has all, or arrays and numbers."""
    arrays = {"actions": actions, "rewards": rewards, "next_states": next_states}
    numbers = {"n_states": n_states, "n_actions": n_actions}
    if not isinstance(states, TransitionsLike):
        missing = [name for name, given in (arrays | numbers).items() if given is None]
        if missing:
            raise InvalidArgumentError(
                f"{' and '.join(missing)} must be given with arrays of states; an object like "
                "Transitions, which has all of them, comes alone"
            )
        assert actions is not None
        assert rewards is not None
        assert next_states is not None
        assert n_states is not None
        assert n_actions is not None
        n = check_int("n_states", n_states, low=1)
        many = check_int("n_actions", n_actions, low=1)
        end = n if terminated is not None else None
        return _Steps(states, actions, rewards, next_states, terminated, n, many, end)
    surplus = arrays | {"terminated": terminated} | numbers
    given = [name for name, value in surplus.items() if value is not None]
    if given:
        raise InvalidArgumentError(
            f"{' and '.join(given)} must be left out: the transitions have their own"
        )
    if states.n_states is None:
        raise InvalidArgumentError(
            "states must be numbered to be counted, and these transitions hold vectors; number "
            "them first, for instance by rounding"
        )
    n = check_int("n_states", states.n_states, low=1)
    end = states.terminal_state
    if end is not None:
        end = check_int("terminal_state", end, low=0, high=n - 1)
    elif np.any(states.terminated):
        end = n
    return _Steps(
        states.states,
        states.actions,
        states.rewards,
        states.next_states,
        states.terminated,
        n,
        check_int("n_actions", states.n_actions, low=1),
        end,
    )


def check_alpha(alpha: float, *, or_sure: bool = False) -> float:
    """Return alpha as a float strictly between 0 and 1; or 0 too, which means surely."""
    value = check_real("alpha", alpha)
    if or_sure and value == 0.0:
        return 0.0
    if not 0.0 < value < 1.0:
        raise InvalidArgumentError(f"alpha must lie strictly between 0 and 1, got {value!r}")
    return value


def check_reward_range(reward_range: tuple[float, float]) -> tuple[float, float]:
    """Return (low, high) as finite floats, low <= high."""
    try:
        low, high = reward_range
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"reward_range must be a pair (low, high), got {reward_range!r}"
        ) from None
    # + 0.0, because -0.0 and 0.0 are the same reward.
    low, high = check_real("reward_range[0]", low) + 0.0, check_real("reward_range[1]", high) + 0.0
    if low > high or not math.isfinite(high - low):
        raise InvalidArgumentError(
            f"reward_range must be (low, high) with a finite difference, got {(low, high)}"
        )
    return low, high


def _indices(name: str, values: npt.ArrayLike, bound: int) -> IntArray:
    array = frozen(name, values, np.int64)
    bad = np.flatnonzero((array < 0) | (array >= bound))
    if bad.size:
        raise InvalidArgumentError(
            f"{name} must lie in [0, {bound}), got {array.ravel()[bad[0]]} at position {bad[0]}"
        )
    return array


def _mean_and_variance(
    row: IntArray, r: FloatArray, counts: IntArray, low: float, high: float
) -> tuple[FloatArray, FloatArray]:
    """Mean reward (mid-range where unvisited) and unbiased variance (0 below two visits)."""
    seen = np.maximum(counts, 1)
    middle = low + (high - low) / 2.0
    # Sums of deviations from the middle lose less than sums of the rewards themselves.
    mean = middle + np.bincount(row, weights=r - middle, minlength=counts.size) / seen
    mean = np.clip(mean, low, high)
    with np.errstate(over="ignore"):  # an infinite variance leaves the other bound
        squares = np.bincount(row, weights=(r - mean[row]) ** 2, minlength=counts.size)
    return mean, squares / np.maximum(counts - 1, 1)


def _radii(
    counts: IntArray, variance: FloatArray, width: float, delta: float, support: int
) -> tuple[FloatArray, FloatArray]:
    """Radii of reward and row per state and action; each row may fail with probability delta.

    Half of delta goes to the row and half to the reward, whose half is shared by two bounds
    of which the smaller is used. N visits get the share 1 / (N (N + 1)) of each.
    """
    n = np.maximum(counts, 1).astype(np.float64)
    log_delta = np.log(delta) - np.log(n * (n + 1.0))
    # Hoeffding: P(|mean - mu| >= e) <= 2 exp(-2 N e² / width²).
    log_part = log_delta - np.log(4.0)
    hoeffding = width * np.sqrt((np.log(2.0) - log_part) / (2.0 * n))
    # Empirical Bernstein (Maurer and Pontil 2009), applied to both sides.
    logs = np.log(4.0) - log_part
    bernstein = np.sqrt(2.0 * variance * logs / n) + 7.0 * width * logs / (
        3.0 * np.maximum(n - 1.0, 1.0)
    )
    reward = np.where(counts >= 2, np.minimum(hoeffding, bernstein), hoeffding)
    # The mean lies in the range, so the width always holds; rounding of the sums is covered
    # by the last term. Unvisited: the middle of the range is within half its width.
    reward = np.minimum(reward, width) + 4e-16 * n * width
    reward = np.where(counts == 0, width / 2.0, reward) * (1.0 + 1e-12)
    # Weissman et al. 2003: P(|p̂ - p|_1 >= e) <= (2^k - 2) exp(-N e² / 2) for k outcomes.
    if support == 1:
        row = np.zeros_like(n)
    else:
        # log(2^k - 2) <= k log 2, and exactly log 2 for k = 2.
        log_sets = np.log(2.0) * (1.0 if support == 2 else support)
        l1 = np.sqrt(2.0 * (log_sets - (log_delta - np.log(2.0))) / n)
        row = np.minimum(l1 / 2.0 * (1.0 + 1e-12), 1.0)
    row = np.where(counts == 0, 1.0, row)
    return reward, row


def reward_intervals(mdp: TabularMDP) -> tuple[FloatArray, FloatArray]:
    """(n_states, n_actions) bounds between which rewards lie: points, unless estimated."""
    if mdp.estimate is None:
        return mdp.rewards, mdp.rewards
    return interval_around(mdp.rewards, mdp.estimate.reward_radius, mdp.estimate.reward_range)


def interval_around(
    rewards: FloatArray, radius: FloatArray, reward_range: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Rewards -/+ radius, rounded outward, where they are in range; points where the radius is 0.

    No single reward leaves the range, by the word of who gave it, so no mean of them does. (The
    least and the largest that were seen would be no such bounds.) Points may lie outside: the end
    of episodes pays 0 whatever the range. An interval never ends short of its own middle.
    """
    is_point = radius == 0.0
    low = np.maximum(np.nextafter(rewards - radius, -np.inf), reward_range[0])
    high = np.minimum(np.nextafter(rewards + radius, np.inf), reward_range[1])
    low, high = np.minimum(low, rewards), np.maximum(high, rewards)
    return np.where(is_point, rewards, low), np.where(is_point, rewards, high)
