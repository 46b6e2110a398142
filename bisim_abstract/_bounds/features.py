"""Value features: functions of states whose differences are lower bounds on the metric.

A function g is admissible if |g(x) - g(y)| <= d(x, y) for all states. Each reward R(·,a) is; if
g is, so are σ·R_a + γ·P_a g for σ = ±1, and maxima and means of such functions. Hence every
generalised value function g = Φg with

    Φg = max over a in A' of (σ_a·R_a + γ·P_a g),   or the mean over A' instead,

is admissible; V* is one of many. So it stays if signed rewards are cut off below or above, which
changes differences by no more than they are. Together they embed the states so that the largest
coordinate difference never exceeds the metric.

Which signs, kinds and cuts keep a function admissible depends on the relation, which gives them
(`Bisimulation.feature_signs`, `feature_cuts`); why they do is said in the module of each. What
follows holds for all of them.

An iteration that is stopped at g with r = Φg - g is off by at most c = span(r)/(1 - γ): let e be
the most by which |g(x) - g(y)| exceeds d(x, y). As |g(x) - g(y)| <= |Φg(x) - Φg(y)| + span(r),
and Φ carries functions within d + e to functions within T(d + e) <= d + γe, e <= γe + span(r).

For an estimated model the true Φ' differs from Φ. At a state x and under an action, the reward
moves by at most its radius, and P g by at most the row's radius (total variation) times span(g).
So |Φ'g - Φg| <= e with e the largest such sum, and span(r') <= span(r) + 2e.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.checks import (
    as_generator,
    check_gamma,
    check_int,
    check_positive,
    check_states,
)
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.parallel import Data, Job, read_only
from bisim_abstract._base.progress import shown
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray, Progress, ProgressCallback, SeedLike
from bisim_abstract._bounds.witnesses import Witnesses, check_spans
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._relations.apart import reward_span
from bisim_abstract._relations.base import Bisimulation
from bisim_abstract._relations.table import find_bisimulation
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["ValueFeatures", "box_gap", "value_features"]

logger = logging.getLogger(__name__)

KINDS = ("max", "mean")
# Far above what products of small numbers lose in any sum met here, but for masses below the normal
# range, whose error counts by the size of what they are multiplied with: 1e-300 times that.
TINY = 1e-315
DOWN = 1.0 - 4.0 * EPS
UP = 1.0 + 16.0 * EPS
CHUNK = 16_384  # states: what a thread takes at a time
DEFAULT_RELATIVE_TOL = 1e-6  # of the largest possible distance


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueFeatures:
    """Functions of states with a bound on how far each is from being admissible.

    Attributes:
        values: (k, n_states) the functions g, each up to a constant.
        signs: (k, n_actions) int64: σ_a = +1 or -1, and 0 where the action is left out.
        kinds: (k) int64: 0 for the maximum over actions, 1 for the mean.
        corrections: (k) for all x, y: |g(x) - g(y)| - correction <= d(x, y).
        floor: (k) signed rewards below this count as this; -inf, the default, for none.
        ceiling: (k) signed rewards above this count as this; inf, the default, for none.
        witnesses: More functions, which tell blocks apart by the distance of all of them.
    """

    values: FloatArray
    signs: IntArray
    kinds: IntArray
    corrections: FloatArray
    floor: FloatArray = field(default=None)  # type: ignore[arg-type]  # filled in below
    ceiling: FloatArray = field(default=None)  # type: ignore[arg-type]
    witnesses: Witnesses | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name, none in (("floor", -np.inf), ("ceiling", np.inf)):
            if getattr(self, name) is None:
                set_field(self, name, np.full(np.shape(self.values)[:1], none))
        for name in ("values", "corrections", "floor", "ceiling"):
            set_field(self, name, as_frozen(name, getattr(self, name), np.float64))
        for name in ("signs", "kinds"):
            set_field(self, name, as_frozen(name, getattr(self, name), np.int64))
        if self.values.ndim != 2 or self.values.size == 0:
            raise InvalidArgumentError(
                f"values must have shape (k, n_states) with both above 0, got {self.values.shape}"
            )
        check_spans(self.values)
        count, n = self.values.shape
        if self.signs.ndim != 2 or self.signs.shape[0] != count or self.signs.size == 0:
            raise InvalidArgumentError(
                f"signs must have shape ({count}, n_actions) with n_actions above 0, "
                f"got {self.signs.shape}"
            )
        for name in ("kinds", "corrections", "floor", "ceiling"):
            if getattr(self, name).shape != (count,):
                raise InvalidArgumentError(
                    f"{name} must have shape ({count},), got {getattr(self, name).shape}"
                )
        wrong = (self.signs < -1) | (self.signs > 1)
        if wrong.any():
            raise InvalidArgumentError(f"signs must be -1, 0 or +1, got {self.signs[wrong][0]}")
        empty = np.flatnonzero(~self.signs.any(axis=1))
        if empty.size:
            raise InvalidArgumentError(
                f"signs must use at least one action per function, got zeros only in row {empty[0]}"
            )
        wrong = (self.kinds < 0) | (self.kinds >= len(KINDS))
        if wrong.any():
            raise InvalidArgumentError(
                f"kinds must be 0 (maximum) or 1 (mean), got {self.kinds[wrong][0]}"
            )
        wrong = ~np.isfinite(self.corrections) | (self.corrections < 0.0)
        if wrong.any():
            raise InvalidArgumentError(
                f"corrections must be finite and at least 0, got {self.corrections[wrong][0]}"
            )
        wrong = ~(self.floor <= self.ceiling)
        if wrong.any():
            raise InvalidArgumentError(
                f"floor must be at most ceiling, got {self.floor[wrong][0]} and "
                f"{self.ceiling[wrong][0]}"
            )
        found = self.witnesses
        if found is None:
            return
        if not isinstance(found, Witnesses):
            raise InvalidArgumentError(f"witnesses must be Witnesses, got {type(found).__name__}")
        if found.values.shape[1] != n or found.actions.max() >= self.signs.shape[1]:
            raise InvalidArgumentError(
                f"witnesses must be of {n} states and {self.signs.shape[1]} actions, got one "
                f"of {found.values.shape[1]} states for action {found.actions.max()}"
            )

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.values.shape[1])

    @property
    def all_corrections(self) -> FloatArray:
        """(k + witnesses) corrections, in the order of the columns of `points`."""
        found = self.witnesses
        return self.corrections if found is None else np.append(self.corrections, found.corrections)

    def points(self) -> FloatArray:
        """(n_states, k + witnesses) the states as points, made anew at each call."""
        parts = self._functions()
        out = np.empty((self.n_states, sum(len(part) for part in parts)))
        for begin in range(0, self.n_states, 1024):  # small enough to turn round in the cache
            at = 0
            for part in parts:
                out[begin : begin + 1024, at : at + len(part)] = part[:, begin : begin + 1024].T
                at += len(part)
        return out

    def lower(self, states: npt.ArrayLike, others: npt.ArrayLike) -> FloatArray:
        """Lower bounds on the distance of pairs of states, by broadcasting two index arrays.

        The largest difference of a function minus its correction, at least 0, and at most
        that in exact arithmetic. Memory is a few numbers per pair.
        """
        s = check_states("states", states, self.n_states)
        t = check_states("others", others, self.n_states)
        try:
            shape = np.broadcast_shapes(s.shape, t.shape)
        except ValueError:
            raise InvalidArgumentError(
                f"states and others must broadcast, got shapes {s.shape} and {t.shape}"
            ) from None
        size = math.prod(shape)
        check_memory(
            32 * size, what=f"the bounds of {size:,} pairs", instead="ask for them in parts"
        )
        from bisim_abstract._kernels.features import lower_kernel

        one, two = (read_only(np.ascontiguousarray(x).ravel()) for x in np.broadcast_arrays(s, t))
        best = np.zeros(size)
        lower_kernel(self.values, self.corrections, one, two, best)
        if self.witnesses is not None:
            lower_kernel(self.witnesses.values, self.witnesses.corrections, one, two, best)
        return best.reshape(shape)

    def boxes(self, labels: npt.ArrayLike, n_blocks: int) -> tuple[FloatArray, FloatArray]:
        """Least and largest value of every function in every block.

        Args:
            labels: (n_states) block of each state, 0 to n_blocks - 1, each of them used.
            n_blocks: Number of blocks.

        Returns:
            (k + witnesses, n_blocks) each: low and high, exact.
        """
        from bisim_abstract._kernels.features import box_kernel

        n_blocks = check_int("n_blocks", n_blocks, low=1)
        label = check_states("labels", labels, n_blocks)
        if label.shape != (self.n_states,):
            raise InvalidArgumentError(
                f"labels must have shape ({self.n_states},), got {label.shape}"
            )
        lines = [line for part in self._functions() for line in part]
        shape = (len(lines), n_blocks)
        low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
        for row, values in enumerate(lines):
            box_kernel(values, label, low[row], high[row])
        empty = np.flatnonzero(low[0] > high[0])
        if empty.size:
            raise InvalidArgumentError(f"labels must use every block, got none of {empty[0]}")
        return low, high

    def with_witnesses(self, witnesses: Witnesses | None) -> ValueFeatures:
        """The same with these witnesses, in place of any that there are."""
        return replace(self, witnesses=witnesses)

    def __repr__(self) -> str:
        more = f" and {self.witnesses.count} witnesses" if self.witnesses is not None else ""
        return (
            f"ValueFeatures({self.values.shape[0]} functions{more} of {self.n_states:,} states, "
            f"correction {self.corrections.max():.2g})"
        )

    def _functions(self) -> list[FloatArray]:
        """(k, n_states) arrays of functions, in the order of `all_corrections`."""
        return [self.values] if self.witnesses is None else [self.values, self.witnesses.values]


def box_gap(
    low: npt.ArrayLike, high: npt.ArrayLike, corrections: npt.ArrayLike, block: int
) -> FloatArray:
    """Lower bounds on the distance between any state of a block and any of each other block.

    Args:
        low: (functions, n_blocks) as from `ValueFeatures.boxes`.
        high: (functions, n_blocks) likewise.
        corrections: (functions) as from `ValueFeatures.all_corrections`.
        block: The block.

    Returns:
        (n_blocks) the largest gap of a function minus its correction, rounded down, at least
        0; 0 for the block itself.
    """
    lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
    slack = np.asarray(corrections, np.float64)
    if lows.ndim != 2 or lows.size == 0 or lows.shape != highs.shape:
        raise InvalidArgumentError(
            "low and high must have one shape (functions, n_blocks) with both above 0, "
            f"got {lows.shape} and {highs.shape}"
        )
    if slack.shape != lows.shape[:1]:
        raise InvalidArgumentError(
            f"corrections must have shape {lows.shape[:1]}, got {slack.shape}"
        )
    block = check_int("block", block, low=0, high=lows.shape[1] - 1)
    best = np.zeros(lows.shape[1])
    for lo, hi, correction in zip(lows, highs, slack, strict=True):
        gap = np.maximum(lo - hi[block], lo[block] - hi)
        np.maximum(best, _lowered(np.maximum(gap, 0.0), correction), out=best)
    return best


def value_features(
    mdp: TabularMDP,
    gamma: float,
    *,
    count: int = 16,
    tol: float | None = None,
    max_iter: int = 10_000,
    relation: str = "plain",
    seed: SeedLike = 0,
    resources: Resources = HERE,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> ValueFeatures:
    """Generalised value functions of a model, with certified corrections.

    First V* (all signs +, maximum) and minus the value of the worst policy (all signs -,
    maximum), then the value of the uniform policy, then those of single actions, then random
    signs for the maximum or the mean over all actions. No two give the same distances for
    every model: a minimum is minus a maximum with the opposite signs, and for means and single
    actions opposite signs give opposite functions. Where states have actions of their own, no
    random signs; in the lax relation V* and minus the value of the worst policy alone, and both
    with rewards that are cut off at some level, below or above.

    All functions are iterated together. The iteration stops where every correction is at most
    `tol` or down to its rounding errors. What it is stopped at does not matter for validity: a
    correction bounds the exact residual of the values returned.

    Args:
        mdp: The model. Of an estimated one the true metric is bounded, as long as its radii
            hold, and the corrections include them.
        gamma: The discount, in [0, 1).
        count: Number of functions; fewer where fewer exist.
        tol: What corrections are to come down to, radii of an estimated model apart; 1e-6 of
            the largest possible distance by default.
        max_iter: Limit on sweeps over the model.
        relation: "plain" or "lax": which metric it is to be below.
        seed: Seed or generator for the random signs.
        resources: Threads, workers and memory. Results do not depend on them.
        callback: Called after every sweep.
        progress: Show a line of progress, on a terminal, in a notebook or in a log.

    Example:
        >>> import numpy as np
        >>> P = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> mdp = TabularMDP.from_dense(P, [[0.0, 1.0], [2.0, 0.0]], order="sas")
        >>> features = value_features(mdp, 0.5)
        >>> features.signs[:3].tolist(), features.kinds[:3].tolist()
        ([[1, 1], [-1, -1], [1, 1]], [0, 0, 1])
        >>> float(features.lower(0, 1).round(4))
        4.0
    """
    check_resources(resources)
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    count = check_int("count", count, low=1)
    max_iter = check_int("max_iter", max_iter, low=1)
    workers = resources.workers
    known = find_bisimulation(relation)
    count = _pattern_count(mdp, count, known)
    resources.check_memory(
        # Two tables, and a third in the order of functions; and signs, as they are drawn.
        (24 * mdp.n_states + 16 * mdp.n_actions) * count,
        what=f"{count:,} value functions of {mdp.n_states:,} states",
        instead="ask for a smaller count",
    )
    signs, kinds = _patterns(mdp.n_actions, count, known, as_generator(seed))
    floor, ceiling = known.feature_cuts(mdp.rewards, signs)
    goal = _goal(mdp, gamma, tol)
    low, high = (np.clip(x, floor, ceiling) for x in _signed_range(mdp.rewards, signs))
    offset = low / 2.0 + high / 2.0
    values = np.zeros((mdp.n_states, kinds.size))
    out = np.empty_like(values)
    bottom, top = np.zeros(kinds.size), np.zeros(kinds.size)  # the range of every function
    sweep = workers.prepare(_job(mdp, gamma, signs, kinds, floor, ceiling))
    with shown(callback, progress, on_terminal=False) as report:
        for iteration in range(1, max_iter + 1):
            found = np.array(sweep({"offset": read_only(offset), "values": read_only(values)}, out))
            lowest, highest = found.min(axis=0), found.max(axis=0)
            ranges = np.stack([lowest[0], highest[1], lowest[2], highest[3]])
            # The sizes of what is added up: rewards less the offset, and values.
            size = np.maximum(np.abs(low - offset), np.abs(high - offset))
            noise = backup_noise(mdp.max_support + mdp.n_actions, size, np.maximum(-bottom, top))
            span = ranges[1] - ranges[0]
            corrections = (span + 2.0 * noise) / (1.0 - gamma) * UP
            if report is not None:
                detail = f"correction {corrections.max():.2g}"
                report(Progress("value features", iteration, None, detail))
            is_done = (corrections <= goal) | (span <= 4.0 * noise)
            if is_done.all() or iteration == max_iter:
                break
            # Constants are free: Φ(g - s) = Φg - γ·s. This offset makes the next `out` centred.
            middle = ranges[2] / 2.0 + ranges[3] / 2.0
            offset = offset + middle + gamma * (middle - (bottom / 2.0 + top / 2.0))
            bottom, top = ranges[2], ranges[3]
            values, out = out, values
    if not is_done.all():
        logger.info(
            "correction %.3g stays above tol %.3g after %d sweeps; the bounds hold nevertheless",
            corrections.max(),
            goal,
            iteration,
        )
    if mdp.estimate is not None:
        error = _model_error(mdp, gamma, signs, kinds, (top - bottom) * UP)
        corrections = (corrections + 2.0 * error / (1.0 - gamma) * UP) * UP
    functions = np.ascontiguousarray(values.T)
    functions.setflags(write=False)
    return ValueFeatures(
        values=functions,
        signs=signs,
        kinds=kinds,
        corrections=corrections,
        floor=floor,
        ceiling=ceiling,
    )


def _lowered(difference: FloatArray, correction: float) -> FloatArray:
    """At most difference - correction in exact arithmetic, or 0; differences are rounded once.

    Each of the three operations and the difference itself is off by EPS relative at most, and
    each factor takes 4·EPS off. Below the normal range differences and sums are exact.
    """
    return np.maximum((difference * DOWN - correction) * DOWN, 0.0)


def _pattern_count(mdp: TabularMDP, count: int, relation: Bisimulation) -> int:
    """How many functions there are that give different distances, at most `count`."""
    if mdp.n_actions == 1:  # all coincide, up to the sign of the function
        return 1
    return min(count, relation.n_features(mdp.n_actions, has_sets=mdp.has_action_sets))


def _patterns(
    n_actions: int, count: int, relation: Bisimulation, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """(count, n_actions) signs and (count) kinds; there must be so many."""
    if n_actions == 1:
        return np.ones((1, 1), np.int64), np.zeros(1, np.int64)
    return relation.feature_signs(n_actions, count, rng)


def _goal(mdp: TabularMDP, gamma: float, tol: float | None) -> float:
    # Sizes met: rewards less a mid-range, and values, whose span is at most span/(1 - gamma).
    with np.errstate(over="ignore"):
        top = 16.0 * float(np.abs(mdp.rewards).max()) / (1.0 - gamma)
    if not math.isfinite(top):
        raise InvalidArgumentError("the values would overflow; rescale the rewards")
    if tol is not None:
        return check_positive("tol", tol)
    return DEFAULT_RELATIVE_TOL * reward_span(mdp.rewards) / (1.0 - gamma)


def _signed_range(rewards: FloatArray, signs: IntArray) -> tuple[FloatArray, FloatArray]:
    """(k) the least and the largest of σ_a·R(x, a) over states and the actions in use."""
    low, high = rewards.min(axis=0), rewards.max(axis=0)
    least = np.where(signs == 0, np.inf, np.where(signs > 0, low, -high))
    largest = np.where(signs == 0, -np.inf, np.where(signs > 0, high, -low))
    return least.min(axis=1), largest.max(axis=1)


def _job(
    mdp: TabularMDP,
    gamma: float,
    signs: IntArray,
    kinds: IntArray,
    floor: FloatArray,
    ceiling: FloatArray,
) -> Job:
    """One sweep of all functions, for any values."""
    common = {
        "indptr": mdp.indptr,
        "indices": mdp.indices,
        "probs": read_only(mdp.normalised_probs),
        "rewards": mdp.rewards,
        "gamma": gamma,
        "by_action": read_only(np.ascontiguousarray(signs.T, dtype=np.float64)),
        "used": read_only(np.count_nonzero(signs, axis=1)),
        "kinds": read_only(kinds),
        "floor": read_only(floor),
        "ceiling": read_only(ceiling),
    }
    return Job(sweep_chunk, common, mdp.n_states, CHUNK)


def sweep_chunk(
    common: Data, part: None, fresh: Data, begin: int, end: int, out: FloatArray
) -> FloatArray:
    """Write Φ(values) - offset of the states begin..end; (4, k) ranges of out - values and out."""
    from bisim_abstract._kernels.features import feature_sweep_kernel

    ranges = np.empty((4, common["kinds"].size))
    feature_sweep_kernel(
        begin,
        end,
        common["indptr"],
        common["indices"],
        common["probs"],
        common["rewards"],
        common["gamma"],
        common["by_action"],
        common["used"],
        common["kinds"],
        common["floor"],
        common["ceiling"],
        fresh["offset"],
        fresh["values"],
        out,
        ranges,
    )
    return ranges


def backup_noise(terms: int, reward_size: FloatArray, value_size: FloatArray) -> FloatArray:
    """(k) bounds on the rounding error of a backup and of a difference taken from it.

    Let R and G bound the rewards less the offset and the values, m the row length and A the
    number of actions, with terms >= m + A. A mass is within 2·EPS relative of the exact one and
    its product rounds once more; adding m of them rounds m times; then the factor gamma, the
    offset and the sum with the reward round once each. The parts are at most R + G in all: the
    backup of an action is off by at most (m + 6)·EPS·(R + G). The maximum over actions keeps
    this. A mean adds A roundings, among them the division, of numbers at most A·(R + G), divided
    by A. Subtracting a value rounds once, with a result of at most R + 2G. That makes
    (m + A + 8)·EPS·(R + G); the factor covers products of errors, as terms·EPS is far below
    1e-6, and that R was rounded itself. Below the normal range a mass is off by 2**-1074 at
    most, times G, and a product by as much.
    """
    size = (reward_size + value_size) * (1.0 + 1e-6)
    return np.asarray((terms + 12) * EPS * size + 1e-300 * value_size + TINY)


def _model_error(
    mdp: TabularMDP, gamma: float, signs: IntArray, kinds: IntArray, span: FloatArray
) -> FloatArray:
    """(k) how far the true Φg may be from that of an estimated model, at any state."""
    estimate = mdp.estimate
    assert estimate is not None
    if not np.isfinite(estimate.reward_radius).all():
        raise InvalidArgumentError("estimate.reward_radius must be finite for value features")
    error = np.empty(kinds.size)
    for f in range(kinds.size):
        used = signs[f] != 0
        radius = estimate.reward_radius[:, used] + gamma * span[f] * estimate.row_radius[:, used]
        by_state = radius.max(axis=1) if kinds[f] == 0 else radius.mean(axis=1)
        error[f] = by_state.max() * (1.0 + 1e-12)  # a few roundings, one per action in means
    return error
