"""MICo's distance of a policy over all pairs, as a certified pair of tables.

U(s,t) = |r(s) - r(t)| + gamma·Σ P(x|s)·P(y|t)·U(x,y), r and P those of the chain that the policy
makes of the model: successors are drawn independently, so that a state is in general not at
distance 0 from itself (Castro et al., NeurIPS 2021). It is what MICo encoders imitate, and lies
above the on-policy metric, whose coupling is the best one. It is a yardstick for these encoders.
Never cluster by it: states that are exactly alike may be far apart.

Find first, prove afterwards, as for the metric. The operator T is linear, monotone, and moves
tables of one constant by gamma times that, as masses sum to one. For any table f with
f - fall <= Tf <= f + rise,

    f + c >= T(f + c) if (1 - gamma)·c >= rise, hence f + c >= U, and
    f - c <= T(f - c) if (1 - gamma)·c >= fall, hence f - c <= U,

the diagonal being a pair like any other. So one backup proves both tables, however f was found:
by sweeps, or by doubling, f_2k = f_k + gamma^k·P^k·f_k·(P^k)ᵀ, which squares the horizon at every
step (Smith's method for discrete Lyapunov equations) and does not mind a gamma near 1.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_gamma, check_int, check_positive, check_states
from bisim_abstract._base.linear import product
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.progress import shown
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, Progress, ProgressCallback
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._relations.apart import TINY
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["MicoBounds", "mico_distance"]

logger = logging.getLogger(__name__)

DEFAULT_RELATIVE_TOL = 1e-9
TABLES = 7  # tables of all pairs that are held at the peak, both results and a power included
# Seconds of a product with an entry of a sparse row, and of one in a product of dense tables.
SPARSE, DENSE = 1.5e-9, 1e-10
# Seconds that three dense products take in any case, on threads that others use too; and a sweep.
CALL, SWEEP = 0.05, 1e-4


@dataclass(frozen=True, eq=False)
class MicoBounds:
    """Certified lower and upper bounds on MICo's distance of every pair of states.

    A state has a distance to itself, so that this is no metric, and no distance to cluster by.

    Attributes:
        gamma: The discount.
        lower: (n_states, n_states) lower bounds, the diagonal included.
        upper: (n_states, n_states) upper bounds.
        gap: Largest difference between an upper and a lower bound.
        tol: What the gap was asked to stay below.
        sweeps: Backups of all pairs that were made, the proving ones included; a doubling counts
            as one.
    """

    gamma: float
    lower: FloatArray
    upper: FloatArray
    gap: float
    tol: float
    sweeps: int

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.lower.shape[0])

    @property
    def is_converged(self) -> bool:
        """Whether the gap is at most the tolerance; the bounds hold in either case."""
        return self.gap <= self.tol

    def bounds(self, states: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds for pairs of states, by broadcasting two index arrays."""
        s, t = np.broadcast_arrays(
            check_states("states", states, self.n_states),
            check_states("others", others, self.n_states),
        )
        check_memory(
            32 * s.size,
            what=f"the bounds of {s.size:,} pairs",
            instead="ask for them in parts",
        )
        return self.lower[s, t], self.upper[s, t]

    def summary(self) -> str:
        """A few lines for people."""
        verdict = "within tolerance" if self.is_converged else "NOT within tolerance"
        own = np.diag(self.upper)
        return "\n".join(
            [
                f"MICo's distance of a policy, gamma = {self.gamma!r}",
                f"  pairs     all of {self.n_states:,} states, each with itself included",
                f"  largest   between {self.lower.max():.12g} and {self.upper.max():.12g}",
                f"  itself    a state is up to {own.max():.6g} from itself: never cluster by this",
                f"  gap       {self.gap:.3g}, {verdict} ({self.tol:.3g})",
                f"  sweeps    {self.sweeps}",
            ]
        )

    def __repr__(self) -> str:
        return (
            f"MicoBounds({counted(self.n_states, 'state')}, gamma={self.gamma!r}, "
            f"largest {self.upper.max():.6g}, gap {self.gap:.2g})"
        )


def mico_distance(
    mdp: TabularMDP,
    gamma: float,
    policy: npt.ArrayLike,
    *,
    tol: float | None = None,
    max_sweeps: int = 10_000,
    resources: Resources = HERE,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> MicoBounds:
    """MICo's distance of a policy for all pairs, enclosed between two tables.

    U(s,t) = |r(s) - r(t)| + gamma·Σ P(x|s)·P(y|t)·U(x,y), with r and P as the policy mixes them
    (Castro et al. 2021). It is what MICo encoders learn, and a yardstick for these alone: it is at
    least the on-policy metric, and a state is in general not at distance 0 from itself. Never
    cluster by it.

    The bounds hold in exact arithmetic for the exact mixture of the stored numbers.

    Args:
        mdp: The model. Confidence radii of one that was estimated from samples are not read.
        gamma: The discount, in [0, 1).
        policy: (n_states) actions, or (n_states, n_actions) probabilities, as `evaluate_policy`
            takes them.
        tol: Largest gap between the tables; 1e-9 of the largest distance by default.
        max_sweeps: Limit on backups of all pairs.
        resources: Memory; what is available by default.
        callback: Called after every sweep. Without one, a progress line is shown if the
            program runs in a terminal and takes a while.
        progress: Show a line also where there is no terminal, as in a notebook.

    Returns:
        The bounds. Where rounding or `max_sweeps` keep the gap above `tol`, they still hold,
        and `is_converged` is False.

    Raises:
        MemoryLimitError: If the tables would not fit.

    Example:
        >>> import numpy as np
        >>> P = np.full((2, 1, 2), 0.5)  # both states lead anywhere
        >>> d = mico_distance(TabularMDP.from_dense(P, [1.0, 0.0]), 0.5, [0, 0])
        >>> d.upper.round(6)  # their own metric: 1 from one another, 0 from themselves
        array([[0.5, 1.5],
               [1.5, 0.5]])
    """
    check_resources(resources)
    check_mdp(mdp, call="mico_distance(mdp, gamma, policy)")
    gamma = check_gamma(gamma)
    if tol is not None:
        tol = check_positive("tol", tol)
    max_sweeps = check_int("max_sweeps", max_sweeps, low=1)
    # The stored numbers are the model here, as for the metric: radii are those of mixing alone.
    chain = replace(mdp, estimate=None).under_policy(policy)
    n = chain.n_states
    resources.check_memory(
        8 * TABLES * n * n,
        what=f"MICo's distance of all {n:,} x {n:,} states",
        instead="restrict the model to fewer states",
    )
    rewards = chain.rewards[:, 0]
    span = float(rewards.max() / 2.0 - rewards.min() / 2.0) * 2.0
    if not math.isfinite(span / (1.0 - gamma) / (1.0 - gamma)):
        raise InvalidArgumentError("the distance would overflow; rescale the rewards")
    pairs = _Pairs(chain, gamma)
    with shown(callback, progress) as report:
        table, rise, fall, goal = _solve(pairs, tol, max_sweeps, report)
    lower, upper = _enclose(table, gamma, rise, fall)
    for bound in (lower, upper):
        bound.setflags(write=False)
    gap = float((upper - lower).max()) * (1.0 + 2.0 * EPS)
    result = MicoBounds(gamma, lower, upper, gap, goal, pairs.sweeps)
    if not result.is_converged:
        logger.warning(
            "gap %.3g stays above tol %.3g after %d sweeps; the bounds hold nevertheless",
            result.gap,
            goal,
            pairs.sweeps,
        )
    return result


class _Pairs:
    """The operator on tables of all pairs, and what its floats are off by."""

    def __init__(self, chain: TabularMDP, gamma: float) -> None:
        self.gamma, self.sweeps = gamma, 0
        self.kernel: Any = chain.kernel()
        self.gaps = np.abs(np.subtract.outer(chain.rewards[:, 0], chain.rewards[:, 0]))
        # Everything that is summed is at least 0, so that relative errors never grow by
        # cancelling. With k entries in a row: an entry of a row is off by 2 roundings, a product
        # with it and the sum of k of them by k; twice, as there are two rows; the difference of
        # rewards, the product with gamma and the last sum by one each. So the backup computed is
        # the exact one times something within 1 ± (2k + 7)·EPS(1 + small).
        self._share = (2 * chain.max_support + 16) * EPS
        estimate = chain.estimate
        self._radii = (0.0, 0.0)  # of rewards and rows, where the policy mixes
        if estimate is not None:
            self._radii = float(estimate.reward_radius.max()), float(estimate.row_radius.max())

    @property
    def n(self) -> int:
        """Number of states."""
        return int(self.gaps.shape[0])

    def backup(self, table: FloatArray) -> FloatArray:
        """T of a table, in floats. Tables are symmetric, and so is what comes of them."""
        self.sweeps += 1
        half = self.kernel @ table
        full: FloatArray = self.kernel @ np.ascontiguousarray(half.T)
        full *= self.gamma
        full += self.gaps
        # Both triangles are correct to the same bound, and so is the larger entry of the two.
        return np.maximum(full, full.T)

    def residual(self, table: FloatArray, backup: FloatArray) -> tuple[float, float]:
        """(rise, fall): bounds on how far T moves a table of numbers that are at least 0.

        What floats are off by is a share of the backup itself. Exact mixtures are within the
        radii: rewards of two states move a backup by 2r, rows by 2·gamma·t·(largest - least
        entry). Differences and the sums here round a few times more, and products may underflow.
        """
        largest = float(table.max())
        off = self._share * float(backup.max())
        off += 2.0 * self._radii[0] + 2.0 * self.gamma * self._radii[1] * largest
        off += 8.0 * EPS * (largest + float(backup.max())) + TINY
        moved = backup - table
        return float(moved.max()) + off, float(-moved.min()) + off

    def doubling_pays(self, sweeps: float) -> bool:
        """Whether dense products are quicker than so many sweeps."""
        steps = math.log2(max(sweeps, 2.0)) + 1.0
        dense = steps * (3.0 * self.n**3 * DENSE + CALL)
        cells = 2.0 * self.kernel.nnz * self.n + 4.0 * self.n**2
        return bool(dense < sweeps * (cells * SPARSE + SWEEP))


def _solve(
    pairs: _Pairs, tol: float | None, max_sweeps: int, report: ProgressCallback | None
) -> tuple[FloatArray, float, float, float]:
    """A table near the fixed point, bounds on how far T moves it, and the gap that was asked for.

    Sweeps from 0 contract the error by gamma, and what all pairs are still off by in common is
    added at once. Where too many would be needed, doubling comes first.
    """
    gamma = pairs.gamma
    needed = math.log(1e-3 * DEFAULT_RELATIVE_TOL * (1.0 - gamma)) / math.log(max(gamma, 1e-3))
    table = pairs.gaps
    if max_sweeps > 2 and (needed > max_sweeps or pairs.doubling_pays(needed)):
        table = _doubled(pairs, max_sweeps - 1, report)
    previous = math.inf
    while True:
        backup = pairs.backup(table)
        rise, fall = pairs.residual(table, backup)
        gap = max(rise + fall, 0.0) / (1.0 - gamma)
        # The largest entry that is proven: never too loose a goal.
        largest = max(float(table.max()) - fall / (1.0 - gamma), 0.0)
        goal = max(DEFAULT_RELATIVE_TOL * largest, 1e-300) if tol is None else tol
        if report is not None:
            report(Progress("MICo's distance", pairs.sweeps, None, f"gap {gap:.2g}"))
        # Rounding is all that is left where a sweep no longer helps by what it must.
        is_stuck = gap >= (0.5 + 0.5 * gamma) * previous
        if gap <= 0.9 * goal or is_stuck or pairs.sweeps >= max_sweeps:
            return table, rise, fall, goal
        previous = gap
        table = np.maximum(backup + gamma / (1.0 - gamma) * (rise - fall) / 2.0, 0.0)


def _doubled(pairs: _Pairs, most: int, report: ProgressCallback | None) -> FloatArray:
    """Σ gamma^k·P^k·|r - r'|·(P^k)ᵀ, over so many k that the rest is nothing but rounding."""
    power, factor = pairs.kernel.toarray(), pairs.gamma
    table = pairs.gaps.copy()
    while factor > EPS * (1.0 - pairs.gamma) and pairs.sweeps < most:
        half = product(power, table)
        step = product(half, power.T)
        step *= factor
        table += step
        pairs.sweeps += 1
        if report is not None:
            report(Progress("MICo's distance", pairs.sweeps, None, "doubling the horizon"))
        power, factor = product(power, power), factor * factor
    return np.asarray(np.maximum(table / 2.0 + table.T / 2.0, 0.0))


def _enclose(
    table: FloatArray, gamma: float, rise: float, fall: float
) -> tuple[FloatArray, FloatArray]:
    """Both tables, rounding included.

    Both shifts may be of either sign: a table that T moves by the same everywhere needs only that.
    A shift is off by the two roundings of a quotient, a sum by one: less than the pad, by which
    tables are moved outward in the end. Below, 0 is a bound too.
    """
    above, below = rise / (1.0 - gamma), fall / (1.0 - gamma)
    pad = 16.0 * EPS * (float(table.max()) + abs(above) + abs(below)) + TINY
    return np.maximum(table - (below + pad), 0.0), table + (above + pad)
