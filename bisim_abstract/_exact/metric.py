"""The exact bisimulation metric over all pairs, as a certified pair of tables.

Find first, prove afterwards. A table f close to the fixed point is found by any means (here
policy iteration), in plain floating point and without trust. One more sweep, with one-sided
arithmetic, bounds how far the exact operator T moves it: f - fall <= Tf <= f + rise. Then

    f + c with (1 - gamma)·c >= rise is a super-solution, hence an upper bound on d, and
    f - c with (1 - gamma)·c >= fall, cut at 0, is a sub-solution, hence a lower bound,

because T(f + c) <= Tf + gamma·c and T(f - c) >= Tf - gamma·c (masses sum to one; the zero
diagonal only helps the former, and for the latter 0 >= f - c there). Nothing else is needed of T,
so that it may be the operator of either relation. Pairs of states with different actions, which
the plain one puts at a fixed distance, are at that distance in both tables. Where a model has radii
of rounding, as the chain of a policy does, both tables move by what these can change.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import (
    check_gamma,
    check_int,
    check_positive,
    check_states,
)
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.progress import compiling, shown
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray, ProgressCallback
from bisim_abstract._exact.classes import BisimulationClasses, bisimulation_classes
from bisim_abstract._exact.pair_solvers import Matching, PairSolver, pair_solver
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._relations.apart import TINY
from bisim_abstract._relations.table import find_bisimulation, find_relation
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["MetricBounds", "bisimulation_metric"]

logger = logging.getLogger(__name__)

DEFAULT_RELATIVE_TOL = 1e-9
COMPILING = 8  # seconds it takes to compile what this needs, on an ordinary machine


@dataclass(frozen=True, eq=False)
class MetricBounds:
    """Certified lower and upper bounds on the bisimulation metric of every pair of states.

    Attributes:
        gamma: The discount.
        labels: (n_states) bisimulation class of each state.
        class_lower: (n_classes, n_classes) lower bounds between states of two classes.
        class_upper: (n_classes, n_classes) upper bounds between states of two classes.
        within: Upper bound between two different states of one class; 0 if the classes are
            exact and nothing in the model is rounded. The lower bound there is 0.
        gap: Largest difference between an upper and a lower bound.
        tol: What the gap was asked to stay below.
        sweeps: Backups of all pairs that were made, the proving ones included.
        relation: "plain" if actions correspond by their names, "lax" if by what they do.
        apart: Distance of states that do not have the same actions, by the plain relation; None
            where there are no such states, or names do not count.
    """

    gamma: float
    labels: IntArray
    class_lower: FloatArray
    class_upper: FloatArray
    within: float
    gap: float
    tol: float
    sweeps: int
    relation: str = "plain"
    apart: float | None = None

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.labels.size)

    @property
    def n_classes(self) -> int:
        """Number of bisimulation classes."""
        return int(self.class_lower.shape[0])

    @property
    def is_converged(self) -> bool:
        """Whether the gap is at most the tolerance; the bounds hold in either case."""
        return self.gap <= self.tol

    @property
    def diameter(self) -> tuple[float, float]:
        """Lower and upper bound on the largest distance between two states."""
        upper = float(self.class_upper.max())
        has_twins = self.n_classes < self.n_states
        return float(self.class_lower.max()), max(upper, self.within if has_twins else 0.0)

    def bounds(self, states: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds for pairs of states, by broadcasting two index arrays."""
        s, t = np.broadcast_arrays(
            check_states("states", states, self.n_states),
            check_states("others", others, self.n_states),
        )
        check_memory(
            48 * s.size,
            what=f"the bounds of {s.size:,} pairs",
            instead="ask for them in parts",
        )
        x, y = self.labels[s], self.labels[t]
        lower = self.class_lower[x, y]
        upper = np.where((x == y) & (s != t), self.within, self.class_upper[x, y])
        return lower, upper

    @property
    def lower(self) -> FloatArray:
        """(n_states, n_states) lower bounds, made anew at each access."""
        return self._expanded(self.class_lower, 0.0)

    @property
    def upper(self) -> FloatArray:
        """(n_states, n_states) upper bounds, made anew at each access."""
        return self._expanded(self.class_upper, self.within)

    def summary(self) -> str:
        """A few lines for people."""
        low, high = self.diameter
        n = self.n_states
        verdict = "within tolerance" if self.is_converged else "NOT within tolerance"
        adjective = find_relation(self.relation).adjective
        kind = f"{adjective} bisimulation".strip()
        lines = [
            f"exact {kind} metric, gamma = {self.gamma!r}",
            f"  pairs     {n * (n - 1) // 2:,} of {n:,} states ({self.n_classes:,} classes)",
            f"  diameter  between {low:.12g} and {high:.12g}",
            f"  gap       {self.gap:.3g}, {verdict} ({self.tol:.3g})",
            f"  sweeps    {self.sweeps}",
        ]
        if self.apart is not None:
            lines.append(f"  apart     {self.apart:.12g} where states have different actions")
        return "\n".join(lines)

    def __repr__(self) -> str:
        adjective = find_relation(self.relation).adjective
        return (
            f"MetricBounds({counted(self.n_states, 'state')}, {counted(self.n_classes, 'class')}, "
            f"gamma={self.gamma!r}, diameter {self.diameter[1]:.6g}, gap {self.gap:.2g}"
            f"{adjective and ', ' + adjective})"
        )

    def _expanded(self, table: FloatArray, within: float) -> FloatArray:
        n = self.n_states
        check_memory(
            8 * n * n + 16 * n * n * (self.n_classes < n),
            what=f"the table of all {n:,} x {n:,} states",
            instead="use bounds(states, others) for the pairs you need, or the class tables",
        )
        full = table[np.ix_(self.labels, self.labels)]
        if within > 0.0:
            full[self.labels[:, None] == self.labels] = within
            np.fill_diagonal(full, 0.0)
        return full


def bisimulation_metric(
    mdp: TabularMDP,
    gamma: float,
    *,
    relation: str = "plain",
    tol: float | None = None,
    classes: BisimulationClasses | None = None,
    max_sweeps: int = 10_000,
    resources: Resources = HERE,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> MetricBounds:
    """The exact bisimulation metric of all pairs, enclosed between two tables.

    d(s,t) = max_a |R(s,a) - R(t,a)| + gamma·W₁(P(·|s,a), P(·|t,a)), W₁ under d itself
    (Ferns, Panangaden and Precup 2004); states that do not have the same actions are as far
    apart as rewards allow. Under the lax relation actions need not correspond by their names:
    d(s,t) is the Hausdorff distance between what s can do and what t can do, action a of s and b
    of t being |R(s,a) - R(t,b)| + gamma·W₁(P(·|s,a), P(·|t,b)) apart (Taylor, Precup and
    Panangaden 2009). It is never larger, and optimal values differ by no more.

    Bisimilar states are merged first; the work is then quadratic in the number of classes. The
    bounds hold in exact arithmetic for the stored numbers, each row divided by its exact sum,
    and do not depend on the number of threads. Of the chain of a policy, by
    `TabularMDP.under_policy`, they hold for the exact mixtures that it stands for.

    Args:
        mdp: The model. Confidence radii of one that was estimated from samples are not read.
        gamma: The discount, in [0, 1).
        relation: "plain", or "lax" for distances after renaming actions.
        tol: Largest gap between the tables; 1e-9 of the diameter by default.
        classes: Classes to merge by, if known already; those of the same relation, by
            `bisimulation_classes`, by default. Classes that are not exact widen the bounds by
            their distortion.
        max_sweeps: Limit on backups of all pairs.
        resources: Threads, workers and memory; all cores and what is available by default. Workers
            of a cluster do the transport of models that are not deterministic.
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
        >>> P = np.eye(2)[:, None, :]  # two states that stay where they are
        >>> d = bisimulation_metric(TabularMDP.from_dense(P, [1.0, 0.0]), 0.5)
        >>> lower, upper = d.bounds(0, 1)
        >>> bool(lower <= 2.0 <= upper) and d.gap < 1e-8
        True
    """
    check_resources(resources)
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    known = find_bisimulation(relation)
    known.check(mdp)
    if tol is not None:
        tol = check_positive("tol", tol)
    max_sweeps = check_int("max_sweeps", max_sweeps, low=1)
    if classes is not None and not isinstance(classes, BisimulationClasses):
        raise InvalidArgumentError(
            f"classes must come from bisimulation_classes(mdp), got {type(classes).__name__}"
        )
    if classes is not None and classes.mdp is not mdp and classes.mdp != mdp:
        raise InvalidArgumentError(f"classes are those of another model, {classes.mdp}, not {mdp}")
    if classes is not None and classes.relation != known.name:
        raise InvalidArgumentError(
            f"classes are those of the {classes.relation} relation, not of the {known.name} one; "
            f"make them by bisimulation_classes(mdp, relation={known.name!r})"
        )
    apart = known.apart(mdp, gamma)
    with shown(callback, progress) as report, compiling(report, about=COMPILING):
        if classes is None:
            classes = bisimulation_classes(mdp, relation=known.name, resources=resources)
        model = classes.quotient
        if not math.isfinite(known.span(model) / (1.0 - gamma) / (1.0 - gamma)):
            raise InvalidArgumentError("the metric would overflow; rescale the rewards")
        if model.n_states == 1:
            table, rise, fall, sweeps, goal = np.zeros((1, 1)), 0.0, 0.0, 0, tol or 0.0
        else:
            matching = Matching.of(model, known, apart)
            with resources.started(report) as ready:
                pairs = pair_solver(model, gamma, matching, ready, report)
                rise, fall, goal = _solve(pairs, gamma, tol, max_sweeps)
                table, sweeps = pairs.full_table(), pairs.sweeps

    distortion = classes.distortion(gamma)
    lower, upper = _enclose(table, gamma, rise, fall, distortion)
    rounding = _rounding(mdp, gamma, max(float(upper.max()), distortion, apart or 0.0))
    if rounding > 0.0:
        distortion = (distortion + rounding) * (1.0 + 2.0 * EPS)
        lower, upper = _enclose(table, gamma, rise, fall, distortion)
    if apart is not None:
        # T puts them there whatever the table is, in the model as in the quotient.
        fixed = np.not_equal.outer(model.action_sets, model.action_sets)
        lower[fixed] = upper[fixed] = apart
    lower.setflags(write=False)
    upper.setflags(write=False)
    within = 0.0 if classes.is_exact and rounding == 0.0 else distortion
    gap = float((upper - lower).max()) * (1.0 + 2.0 * EPS)
    result = MetricBounds(
        gamma=gamma,
        labels=classes.labels,
        class_lower=lower,
        class_upper=upper,
        within=within,
        gap=max(gap, within),
        tol=goal,
        sweeps=sweeps,
        relation=known.name,
        apart=apart,
    )
    if not result.is_converged:
        logger.warning(
            "gap %.3g stays above tol %.3g after %d sweeps; the bounds hold nevertheless",
            result.gap,
            goal,
            sweeps,
        )
    return result


def _rounding(mdp: TabularMDP, gamma: float, largest: float) -> float:
    """Bound on |d(s,t) - d'(s,t)|, d being that of any model within radii that hold surely.

    d' is the metric of the stored numbers, of which none is above `largest`. Rewards that are off
    by r and rows by total variation t move what two actions differ by under d' by at most
    2r + 2·gamma·t·largest, so the operator of the other model moves d' by no more; as it is a
    gamma-contraction with fixed point d, |d - d'| is at most that over 1 - gamma. The last factor
    covers the rounding of these few operations, and TINY their underflow: a product of small
    numbers may be computed as 0, where d is not.
    """
    if mdp.estimate is None or mdp.estimate.is_sampled:
        return 0.0
    rewards, rows = mdp.estimate.reward_radius.max(), mdp.estimate.row_radius.max()
    local = 2.0 * float(rewards) + 2.0 * gamma * float(rows) * largest
    if rewards > 0.0 or (gamma > 0.0 and rows > 0.0 and largest > 0.0):
        local += TINY
    return local / (1.0 - gamma) * (1.0 + 1e-12)


def _enclose(
    table: FloatArray, gamma: float, rise: float, fall: float, distortion: float
) -> tuple[FloatArray, FloatArray]:
    """Move a table of the quotient outward until it encloses the metric, rounding included.

    Let e bound the rounding of one addition to the table. The stored upper entry u satisfies
    f + c - e <= u <= f + c + e, so Tu <= Tf + gamma·(c + e) <= f + rise + gamma·(c + e), which
    is at most f + c - e <= u if (1 - gamma)·c >= rise + (1 + gamma)·e: a super-solution. The
    lower table mirrors it. The metric of the full model is within `distortion` of the
    quotient's, so moving both tables that much further encloses it.
    """
    largest = float(table.max()) + (rise + fall) / (1.0 - gamma) + distortion
    # Entries exceed `largest` only by the shifts below, a few rounding errors over 1 - gamma.
    e = 2.0 * EPS * largest * (1.0 + 64.0 * EPS / (1.0 - gamma)) + 5e-324

    def shift(residual: float) -> float:
        return ((residual + 2.0 * e) / (1.0 - gamma) + distortion) * (1.0 + 16.0 * EPS)

    lower = np.maximum(table - shift(fall), 0.0)
    upper = table + shift(rise)
    np.fill_diagonal(lower, 0.0)
    np.fill_diagonal(upper, 0.0)
    return lower, upper


def _goal(pairs: PairSolver, tol: float | None) -> float:
    """The gap to reach. Where nothing differs, underflow is all that is left of it."""
    return max(DEFAULT_RELATIVE_TOL * pairs.top(), 1e-310) if tol is None else tol


def _solve(
    pairs: PairSolver, gamma: float, tol: float | None, max_sweeps: int
) -> tuple[float, float, float]:
    """Improve until the proven gap is small enough, rounding stops progress, or sweeps end.

    Returns (rise, fall, goal).
    """
    previous = math.inf
    ahead = 0.25  # the residual in plain arithmetic must be below the goal by this factor
    while True:
        # While the table grows from its start its largest entry is at most the diameter, so
        # the goal taken from it is never too loose.
        goal = _goal(pairs, tol)
        if pairs.sweeps < max_sweeps - 1:
            pairs.improve(goal * (1.0 - gamma) * ahead, max_sweeps - 1)
        rise, fall = pairs.residual()
        goal = _goal(pairs, tol)
        gap = (rise + fall) / (1.0 - gamma)
        if gap <= 0.9 * goal or gap >= 0.9 * previous or pairs.sweeps >= max_sweeps:
            return rise, fall, goal
        previous = gap
        ahead *= 0.1
