"""Models estimated from samples, with radii within which the true model lies.

The radii hold for all states and actions at once with probability at least 1 - alpha, also
when the data were gathered by an adaptive policy that stopped when it liked: the outcomes of the
visits to a state and action are independent by the Markov property, and the radii of all numbers
N of visits hold together. For rewards, each N is given its own share delta / (N (N + 1)) of the
error probability (these shares sum to delta). Rows do better.

For a set S of outcomes, let p be its probability, q its frequency in N visits and kl(q, p) the
divergence of two coins. The likelihood of a coin whose bias is drawn from Beta(1/2, 1/2), divided
by that of p, is a martingale with mean 1, so that with probability 1 - delta it is never above
1 / delta (Ville); and it is at least exp(N kl(q, p)) / (2 sqrt N) (Krichevsky and Trofimov 1981).
Hence, for all N at once,

    N kl(q, p) <= log(1 / delta) + log(2 sqrt N).

Total variation is the most by which q exceeds p in any set, and a set of outcomes that were seen
will do, as others add nothing to q. Each of the C(K, m) sets of m of K outcomes has the share
1 / ((K - 1) C(K, m)) of the error probability, fixed before any data. So a row that was seen to
reach m outcomes pays about m log(K / m), not K, and what is nearly certain pays for its small
variance, not for the worst (compare Weissman et al. 2003, whose radius has K log 2 in it).

Summed by blocks, a row has as many outcomes as there are blocks. Radii of such rows need a
partition that was fixed before the data were seen: one made of *other* data, never of these.

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
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import short
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.checks import check_distribution
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.recorded import Dataset, read_episodes
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError

__all__ = ["Estimate"]

COLUMNS = ("state", "action", "reward", "next_state", "terminated")  # of a frame of steps
ENDED = "never_ends is True, but an episode ended; leave it out"
WIDEST = 1e300  # range of rewards; radii are thousands of times as wide before they are cut to it
MOST_SEEN, SETS = 8, 2_000_000  # outcomes of rows that are gone through set by set, and sets in all
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
        blocks: (n_states) a partition that the samples had no part in, if there is one.
        block_radius: (n_states, n_actions) the same as `row_radius` for rows summed by these
            blocks, or by any coarser ones; at most as large. It says nothing of single successors.
    """

    counts: IntArray
    reward_radius: FloatArray
    row_radius: FloatArray
    alpha: float
    reward_range: tuple[float, float]
    support_bound: int
    blocks: IntArray | None = None
    block_radius: FloatArray | None = None

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
        if (self.blocks is None) != (self.block_radius is None):
            raise InvalidMDPError("estimate.blocks and block_radius belong together: give both")
        if self.blocks is not None and self.block_radius is not None:
            blocks = frozen("estimate.blocks", self.blocks, np.int64)
            radius = frozen("estimate.block_radius", self.block_radius, np.float64)
            if blocks.shape != counts.shape[:1] or radius.shape != counts.shape:
                raise InvalidMDPError(
                    f"estimate.blocks must have shape {counts.shape[:1]}, and block_radius "
                    f"{counts.shape}"
                )
            if not ((radius >= 0.0) & (radius <= self.row_radius)).all():
                raise InvalidMDPError(
                    "estimate.block_radius must lie between 0 and row_radius: sums by blocks are "
                    "no farther apart than rows"
                )
            set_field(self, "blocks", blocks)
            set_field(self, "block_radius", radius)

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

    def block_arrays(self) -> list[npt.NDArray[Any]]:
        """The arrays of blocks: blocks and block_radius, if there are any."""
        if self.blocks is None or self.block_radius is None:
            return []
        return [self.blocks, self.block_radius]

    def radius_of(self, labels: npt.NDArray[Any]) -> FloatArray:
        """(n_states, n_actions) radii of rows as far as labels tell their successors apart.

        Args:
            labels: (n_states) anything: clusters, or the values of a function.
        """
        if self.blocks is None or self.block_radius is None:
            return self.row_radius
        # Constant on blocks: of one label each.
        order = np.argsort(self.blocks, kind="stable")
        is_same = self.blocks[order][1:] == self.blocks[order][:-1]
        is_apart = labels[order][1:] != labels[order][:-1]
        return self.row_radius if (is_same & is_apart).any() else self.block_radius

    def restrict(self, states: IntArray) -> Estimate:
        """The same on a subset of states."""
        blocks = [array[states] for array in self.block_arrays()]
        return Estimate(
            counts=self.counts[states],
            reward_radius=self.reward_radius[states],
            row_radius=self.row_radius[states],
            alpha=self.alpha,
            reward_range=self.reward_range,
            support_bound=self.support_bound,
            **dict(zip(("blocks", "block_radius"), blocks, strict=False)),
        )

    def with_actions(self, chosen: IntArray) -> Estimate:
        """The same with actions of each state replaced by others, (n_states, n_actions)."""
        counts, reward_radius, row_radius = (
            np.take_along_axis(array, chosen, axis=1) for array in self.arrays()
        )
        found = replace(
            self,
            blocks=None,
            block_radius=None,
            counts=counts,
            reward_radius=reward_radius,
            row_radius=row_radius,
        )
        if self.block_radius is None:
            return found
        block_radius = np.take_along_axis(self.block_radius, chosen, axis=1)
        return replace(found, blocks=self.blocks, block_radius=block_radius)


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


def count_steps(
    states: TransitionsLike | Dataset | npt.ArrayLike,
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
    blocks: npt.ArrayLike | None = None,
    deterministic_rewards: bool = False,
    never_ends: bool = False,
    start: npt.ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
    resources: Resources = HERE,
) -> TabularMDP:
    """`bisim_abstract.estimate_mdp` of steps that are given; its arguments are described there."""
    steps = _steps(
        states, actions, rewards, next_states, terminated, n_states, n_actions, never_ends
    )
    n_states, n_actions, end = steps.n_states, steps.n_actions, steps.end
    alpha = check_alpha(alpha)
    low, high = check_reward_range(reward_range)
    if high - low > WIDEST:
        raise InvalidArgumentError(
            f"reward_range is {high - low:.3g} wide, too much for radii that floats can hold; "
            "rescale the rewards"
        )
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
        done = np.asarray(steps.terminated)
        if done.dtype != bool and not np.isin(done, (0, 1)).all():
            raise InvalidArgumentError(
                f"terminated must hold True and False, got {short(done.tolist())}"
            )
        done = done.astype(bool)
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

    # Rewards and rows have halves of the error probability each, rows and their sums quarters.
    delta = alpha / max(int(is_live.sum()), 1)
    reward_radius = _reward_radii(counts, spread, high - low, delta / 2.0)
    # Means are rounded at the magnitude of the rewards, not of their range.
    if high > low:
        reward_radius += 8.0 * EPS * max(abs(low), abs(high))
    if deterministic_rewards:
        mean, reward_radius = _single_rewards(row, r, counts, mean, reward_radius, n_actions)
    shape = (total, n_actions)
    of_row = keys[: times.size] // total
    share = delta / (2.0 if blocks is None else 4.0)
    row_radius = row_radii(times, of_row, counts, share, bound)
    of_blocks: dict[str, Any] = {}
    if blocks is not None:
        labels = as_labels(blocks, n_states, name="blocks")
        labels = np.append(labels, np.full(total - n_states, labels.max() + 1))
        count = int(labels.max()) + 1
        lifted, inverse = np.unique(
            of_row * count + labels[keys[: times.size] % total], return_inverse=True
        )
        sums = np.bincount(inverse, weights=times, minlength=lifted.size).astype(np.int64)
        radius = row_radii(sums, lifted // count, counts, share, min(count, bound))
        radius = np.where(is_live, np.minimum(radius, row_radius), 0.0).reshape(shape)
        of_blocks = {"blocks": labels, "block_radius": radius}
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
            **of_blocks,
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
    states: TransitionsLike | Dataset | npt.ArrayLike,
    actions: npt.ArrayLike | None,
    rewards: npt.ArrayLike | None,
    next_states: npt.ArrayLike | None,
    terminated: npt.ArrayLike | None,
    n_states: int | None,
    n_actions: int | None,
    never_ends: bool,
) -> _Steps:
    """Both ways to give steps as one: an object that has all, or arrays and numbers."""
    if hasattr(states, "collect"):  # a lazy frame of Polars, which has no columns yet
        states = states.collect()
    arrays = {"actions": actions, "rewards": rewards, "next_states": next_states}
    numbers = {"n_states": n_states, "n_actions": n_actions}
    if hasattr(states, "columns") and not isinstance(states, TransitionsLike):
        given = [name for name, value in arrays.items() if value is not None]
        if given or terminated is not None:
            raise InvalidArgumentError(
                f"{' and '.join(given) or 'terminated'} must be left out: a frame has columns of "
                "its own"
            )
        states, actions, rewards, next_states, terminated = _columns(states)
        arrays = {"actions": actions, "rewards": rewards, "next_states": next_states}
    if isinstance(states, Dataset):
        states = read_episodes(states)
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
        end = n if terminated is not None and not never_ends else None
        if never_ends and np.any(terminated):
            raise InvalidArgumentError(ENDED)
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
    elif not never_ends:
        # Also where none was seen: what may happen must not depend on what did.
        end = n
    if never_ends and np.any(states.terminated):
        raise InvalidArgumentError(ENDED)
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


def _columns(frame: Any) -> tuple[npt.ArrayLike, ...]:
    """The columns of a frame of pandas or Polars that holds a step in each row."""
    has = list(frame.columns)
    missing = [name for name in COLUMNS if name not in has]
    if missing:
        raise InvalidArgumentError(
            f"a frame of steps must have the columns {', '.join(COLUMNS)}; it lacks "
            f"{', '.join(missing)} and has {short(has)}"
        )
    return tuple(np.asarray(frame[name]) for name in COLUMNS)


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


def _reward_radii(counts: IntArray, variance: FloatArray, width: float, delta: float) -> FloatArray:
    """Radii of rewards; each may fail with probability delta.

    Two bounds have halves of it, and the smaller is used. N visits get the share 1 / (N (N + 1)).
    """
    n = np.maximum(counts, 1).astype(np.float64)
    # Hoeffding: P(|mean - mu| >= e) <= 2 exp(-2 N e² / width²).
    log_part = np.log(delta) - np.log(n * (n + 1.0)) - np.log(2.0)
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
    return np.asarray(np.where(counts == 0, width / 2.0, reward) * (1.0 + 1e-12))


def _single_rewards(
    row: IntArray,
    r: FloatArray,
    counts: IntArray,
    mean: FloatArray,
    radius: FloatArray,
    n_actions: int,
) -> tuple[FloatArray, FloatArray]:
    """Rewards that were seen once and are always the same, with radius 0."""
    first = np.zeros(counts.size)
    first[row] = r
    other = np.flatnonzero(first[row] != r)
    if other.size:
        at = int(row[other[0]])
        raise InvalidArgumentError(
            f"deterministic_rewards is True, but state {at // n_actions}, action {at % n_actions} "
            f"paid {first[at]!r} and {r[other[0]]!r}; leave it out"
        )
    return np.where(counts > 0, first, mean), np.where(counts > 0, 0.0, radius)


def row_radii(
    times: IntArray, rows: IntArray, counts: IntArray, delta: float, outcomes: int
) -> FloatArray:
    """(rows) radii in total variation, each of which may fail with probability delta.

    The bound is h(q) = q - p at the least p with N kl(q, p) <= log(1 / delta_m) + log(2 sqrt N),
    the largest over sets of outcomes that were seen; delta_m is the share of a set of m. Rows that
    were seen to reach few outcomes are gone through set by set; for others, see `_many_outcomes`.

    Args:
        times: (seen) how often a row led to an outcome, at least once each.
        rows: (seen) which row, rising.
        counts: (rows) visits.
        delta: Probability that a radius may fail.
        outcomes: How many outcomes a row can have.
    """
    radius = np.where(counts == 0, 1.0, 0.0)
    if outcomes == 1 or times.size == 0:
        return radius
    seen = np.bincount(rows, minlength=counts.size)
    begins = np.cumsum(seen) - seen
    room, few = SETS, 0  # sets are gone through while there are not too many in all
    for m in range(1, MOST_SEEN + 1):
        room -= int((seen == m).sum()) << m
        if room < 0:
            break
        few = m
    for m in range(1, few + 1):
        chosen = np.flatnonzero(seen == m)
        sets = (np.arange(1, 1 << m)[:, None] >> np.arange(m)) & 1
        sizes = sets.sum(axis=1).astype(np.float64)
        step = max((1 << 18) >> m, 1)
        for part in (chosen[k : k + step] for k in range(0, chosen.size, step)):
            n = counts[part].astype(np.float64)[:, None]
            q = times[begins[part][:, None] + np.arange(m)] @ sets.T / n
            level = _levels(np.broadcast_to(sizes, q.shape), n, delta, outcomes)
            away = np.where(sizes >= outcomes, 0.0, q - _least_chance(q, level))
            radius[part] = away.max(axis=1)
    many = seen[rows] > few
    if many.any():
        found = _many_outcomes(times[many], rows[many], counts, delta, outcomes)
        np.maximum.at(radius, rows[many], found)
    # The factor covers the rounding of the radius. A frequency is rounded by EPS of itself, and so
    # is the row's sum, by which it is divided: together at most 2·EPS in total variation, which
    # many visits do not make smaller.
    return np.minimum(np.where(seen > 0, radius * (1.0 + 1e-12) + 8.0 * EPS, radius), 1.0)


def _many_outcomes(
    times: IntArray, rows: IntArray, counts: IntArray, delta: float, outcomes: int
) -> FloatArray:
    """(seen) bounds on h for all sets of 1, 2, ... outcomes of each row.

    Among sets of m outcomes, q lies between the sum of the m least frequencies and that of the m
    largest. As kl is convex in both arguments, p is convex in q and h concave; it rises up to
    q = 1/2 at least (where p' <= 1, as log((1 + 2e)/(1 - 2e)) <= 4e/(1 - 4e²)). So h at the upper
    end bounds it below 1/2, its tangent at the lower end above; and sqrt(b / 2) everywhere, for
    kl(q, p) <= b (Pinsker).
    """
    mass = times[np.lexsort((times, rows))].astype(np.float64)  # the least first
    begins = np.searchsorted(rows, rows)
    seen = np.searchsorted(rows, rows, side="right") - begins
    size = np.arange(times.size) - begins + 1  # of the set: m
    n = counts[rows].astype(np.float64)
    running = np.cumsum(mass)
    low = running - (running - mass)[begins]  # sums of whole numbers: exact below 2**53
    high = n - np.where(size == seen, 0.0, low[np.maximum(begins + seen - size, 1) - 1])
    level = _levels(size.astype(np.float64), n, delta, outcomes)
    low, high = low / n, high / n
    pinsker = np.sqrt(level / 2.0)
    at = np.where(high <= 0.5, high, low)
    least = _least_chance(at, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(at / least) - np.log((1.0 - at) / (1.0 - least))
        slope = 1.0 - odds * least * (1.0 - least) / (at - least)
    reach = np.maximum(high - at, 0.0)
    ahead = np.where(reach > 0.0, (np.maximum(slope, 0.0) + 1e-9) * reach, 0.0)
    is_near = (high <= 0.5) | (low >= 0.5)
    found = np.where(is_near, np.fmin(at - least + ahead, pinsker), pinsker)
    # All outcomes together have probability 1: there is nothing to learn of that set.
    return np.asarray(np.where(size >= outcomes, 0.0, found))


def _levels(sizes: FloatArray, n: FloatArray, delta: float, outcomes: int) -> FloatArray:
    """What kl of a set of so many outcomes may be after n visits, a little more for rounding."""
    from scipy.special import gammaln

    k = float(outcomes)
    sets = gammaln(k + 1.0) - gammaln(sizes + 1.0) - gammaln(np.maximum(k - sizes, 0.0) + 1.0)
    sets = sets + 16.0 * EPS * gammaln(k + 1.0)  # each is off by a few roundings of its size
    level = (sets + np.log(k - 1.0) - np.log(delta) + np.log(2.0 * np.sqrt(n))) / n
    return np.asarray(level * (1.0 + 1e-9) + 1e-15)


def _least_chance(q: FloatArray, level: FloatArray) -> FloatArray:
    """The least p <= q with kl(q, p) <= level, or a little less: by bisection."""
    below, above = np.zeros(q.shape), q.copy()
    for _ in range(48):
        p = (below + above) / 2.0
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = np.where(q > 0.0, q * np.log(q / p), 0.0)
            losses = np.where(q < 1.0, (1.0 - q) * np.log((1.0 - q) / (1.0 - p)), 0.0)
        is_far = ~(gains + losses <= level)  # NaN counts as far
        below, above = np.where(is_far, p, below), np.where(is_far, above, p)
    return below


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
