"""`Episodes`: what episodes look like within a time limit, without discount.

With H steps to go, the mean return of a policy is u_H = R + P u_{H-1}, u_0 = 0, and the share of
episodes that have ended is e_H = P e_{H-1}, where e is 1 at the end of episodes and 0 elsewhere:
an end at step H counts. For a set of actions in each state, the least over the set in each of
these steps bounds every policy inside the set from below, also one with memory: by induction, no
policy does better or worse with k steps to go than the best or worst first step followed by it.

Rounding. A backup of a row with k entries, each within two roundings of the exact quotient, is off
by (k + 6)·EPS of the sum of its absolute terms: of 1 for shares, and of t·max|R| with t steps to
go. Errors of earlier steps are averaged, so that they add up to H and H² of these at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bisim_abstract._base.checks import check_int
from bisim_abstract._base.deadline import look
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._model.mdp import TabularMDP

__all__ = ["EpisodeBounds", "Episodes"]

WORK = 4e9  # transitions that may be read for one figure; beyond, there are no figures
CLEARLY = 0.95  # ends below this share of the best policy's are clearly fewer
NAMES = ("mean_return", "ended", "worst_return", "worst_ended")
Interval = tuple[float, float]


@dataclass(frozen=True)
class EpisodeBounds:
    """Bounds on what episodes of a policy, or of every policy inside a set, come to.

    Attributes:
        mean_return: Of the sum of rewards, as a mean over the start distribution.
        worst_return: The same from the worst start.
        ended: Of the share of episodes that end within the limit; None where episodes never end.
        worst_ended: The same from the worst start.
    """

    mean_return: Interval
    worst_return: Interval
    ended: Interval | None
    worst_ended: Interval | None

    def __post_init__(self) -> None:
        for name in NAMES:
            given = getattr(self, name)
            if given is None and "ended" in name:
                continue
            low, high = (float(x) for x in given)
            if not (math.isfinite(low) and low <= high):
                raise InvalidArgumentError(f"{name} must be bounds, got {low!r} and {high!r}")
            object.__setattr__(self, name, (low, high))

    def header(self) -> dict[str, Any]:
        """As JSON values; an upper bound that says nothing is null."""
        found = {name: getattr(self, name) for name in NAMES}
        return {
            name: None if x is None else [y if math.isfinite(y) else None for y in x]
            for name, x in found.items()
        }

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> EpisodeBounds:
        """From such values."""
        found = {}
        for name in NAMES:
            pair = header[name]
            if pair is not None:
                low, high = pair
                pair = (low, math.inf if high is None else high)
            found[name] = pair
        return cls(**found)


@dataclass(frozen=True)
class Episodes:
    """What episodes look like within a time limit.

    Attributes:
        horizon: The number of steps after which episodes are cut off.
        policy: Of the policy that comes with the clusters.
        optimal: Of the policy that is best for the discounted return (`optimal_policy`). Another
            one may return more within the limit.
        solver: At least that of whoever solves the small environment; no upper bounds.
        learner: The same of whoever learns on real steps; None if it was not computed.
    """

    horizon: int
    policy: EpisodeBounds
    optimal: EpisodeBounds
    solver: EpisodeBounds
    learner: EpisodeBounds | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "horizon", check_int("horizon", self.horizon, low=1))
        for name in ("policy", "optimal", "solver", "learner"):
            bounds = getattr(self, name)
            if not isinstance(bounds, EpisodeBounds) and not (bounds is None and name == "learner"):
                raise InvalidArgumentError(f"{name} must be EpisodeBounds, got {bounds!r}")

    def of(self, guarantee: str) -> EpisodeBounds | None:
        """Those of the agents that a guarantee speaks of."""
        found: EpisodeBounds | None = getattr(self, guarantee)
        return found

    def summary(self, guarantee: str = "policy") -> str:
        """Ends, or returns where nothing ends, as the end of a sentence."""
        own = self.of(guarantee)
        if own is None:
            return "nothing was computed of episodes"
        text = episodes_text(own, self.optimal, self.horizon)
        if guarantee != "policy" and text.startswith("0.0%"):
            return f"no share{text.removeprefix('0.0%').replace(' end ', ' is proven to end ')}"
        is_sure = guarantee == "policy" or text.startswith(("100%", "episodes"))
        return text if is_sure else f"at least {text}"

    def ends_clearly_fewer(self, guarantee: str) -> bool:
        """Whether agents may end clearly fewer episodes than the best policy where ending pays.

        That is: less than 95% as many, and they are not proven to return as much.
        """
        own, best = self.of(guarantee), self.optimal
        if own is None or own.ended is None or best.ended is None:
            return False
        return ends_too_few(own, best)

    def header(self) -> dict[str, Any]:
        """As JSON values."""
        learner = None if self.learner is None else self.learner.header()
        found: dict[str, Any] = {"horizon": self.horizon, "learner": learner}
        return found | {x: getattr(self, x).header() for x in ("policy", "optimal", "solver")}

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> Episodes:
        """From such values."""
        fields = {x: EpisodeBounds.read(header[x]) for x in ("policy", "optimal", "solver")}
        learner = header["learner"]
        return cls(
            horizon=header["horizon"],
            learner=None if learner is None else EpisodeBounds.read(learner),
            **fields,
        )


def episodes_text(own: EpisodeBounds, best: EpisodeBounds, horizon: int) -> str:
    """Ends, or returns where nothing ends, of an agent beside the best policy."""
    steps = counted(horizon, "step")
    if own.ended is None or best.ended is None:
        returned = f"episodes return at least {own.mean_return[0]:.4g} in {steps}"
        return f"{returned} (policy optimal at this gamma: {best.mean_return[0]:.4g})"
    ended, most = _percent(own.ended[0]), _percent(best.ended[0])
    return f"{ended} of episodes end within {steps} (policy optimal at this gamma: {most})"


def ends_too_few(own: EpisodeBounds, best: EpisodeBounds) -> bool:
    """See `Episodes.ends_clearly_fewer`, of an agent beside the best policy."""
    assert own.ended is not None
    assert best.ended is not None
    returns_less = own.mean_return[0] < best.mean_return[0] - 1e-9 * abs(best.mean_return[0])
    return own.ended[0] < CLEARLY * best.ended[0] and returns_less


def horizon_of(mdp: TabularMDP, horizon: int | None) -> int | None:
    """The time limit: the one given, or the environment's own, or none.

    Nothing is said of episodes of estimated models. Where figures would take too long, there are
    none by default, and a limit that was requested is refused.
    """
    if horizon is not None:
        horizon = check_int("horizon", horizon, low=1)
    limit = mdp.metadata.get("time_limit") if horizon is None else horizon
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        return None
    if mdp.estimate is not None:
        return None
    if limit * mdp.nnz > WORK:
        if horizon is None:
            return None
        most = max(int(WORK // mdp.nnz), 1)
        raise InvalidArgumentError(
            f"horizon must be at most {most:,} steps for a model of {mdp.nnz:,} transitions, got "
            f"{horizon:,}: each step reads all of them"
        )
    return limit


def bound_episodes(
    mdp: TabularMDP, plan: IntArray | FloatArray | BoolArray, horizon: int
) -> EpisodeBounds:
    """Bounds on episodes of a policy, or from below on those of every policy inside a set.

    Args:
        mdp: The model.
        plan: (n_states) actions; (n_states, n_actions) probabilities; or booleans, the set.
        horizon: The time limit.
    """
    n, n_actions = mdp.n_states, mdp.n_actions
    is_set, is_mixed = plan.dtype == np.bool_, plan.dtype == np.float64
    # Rows that count, state by state: those of the set, all of them, or one of each.
    rows = np.arange(n * n_actions)
    if is_set:
        rows = np.flatnonzero(plan)
    elif not is_mixed:
        rows = np.arange(n) * n_actions + plan.astype(np.int64)
    kernel, rewards = mdp.kernel()[rows], mdp.rewards.ravel()[rows]
    begins = np.searchsorted(rows, np.arange(n) * n_actions)
    returns, ends, end = np.zeros(n), np.zeros(n), mdp.terminal_state
    if end is not None:
        ends[end] = 1.0
    for _ in range(horizon):
        look()
        ahead = kernel @ np.stack([returns, ends], axis=1)
        returns, ends = rewards + ahead[:, 0], ahead[:, 1]
        if is_set:
            returns, ends = (np.minimum.reduceat(each, begins) for each in (returns, ends))
        elif is_mixed:
            returns, ends = ((plan * x.reshape(n, n_actions)).sum(axis=1) for x in (returns, ends))
        if end is not None:
            returns[end], ends[end] = 0.0, 1.0
    # A mixture adds as many products as there are actions, of weights that sum to 1 but for that.
    terms = (mdp.max_support + 8 + (2 * n_actions if is_mixed else 0)) * EPS * (1.0 + 1e-6)
    top = float(np.abs(mdp.rewards).max())
    error = terms * top * horizon * (horizon + 1) + 1e-300
    mean_return, worst_return = _from_start(mdp, returns, error, is_set=is_set)
    if end is None:
        return EpisodeBounds(mean_return, worst_return, None, None)
    ended, worst_ended = _from_start(mdp, ends, terms * (horizon + 1), is_set=is_set)
    return EpisodeBounds(mean_return, worst_return, _share(ended), _share(worst_ended))


def _from_start(
    mdp: TabularMDP, values: FloatArray, error: float, *, is_set: bool
) -> tuple[Interval, Interval]:
    """Bounds on the mean over the start distribution, and on the least of a start."""
    used = np.flatnonzero(mdp.start)
    weights, picked = mdp.start[used], values[used]
    total = math.fsum(weights)
    mean = math.fsum(weights * picked) / total
    # A product, two sums and a quotient round once each; more is kept for whoever checks it.
    error = 2.0 * error + 16.0 * EPS * math.fsum(weights * np.abs(picked)) / total
    least = float(picked.min())
    found = []
    for middle in (mean, least):
        found.append((middle - error, math.inf if is_set else middle + error))
    return found[0], found[1]


def _share(bounds: Interval) -> Interval:
    low, high = bounds
    return min(max(low, 0.0), 1.0), (high if math.isinf(high) else min(high, 1.0))


def _percent(share: float) -> str:
    """A share, rounded down, but for what rounding errors take from the whole."""
    if share >= 1.0 - 1e-9:
        return "100%"
    return f"{math.floor((share + 1e-12) * 1000.0) / 10.0:.1f}%"
