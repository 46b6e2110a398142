"""Exact bisimulation classes by partition refinement, and the quotient MDP they give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_gamma, check_int
from bisim_abstract._base.labels import by_first_appearance
from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.progress import compiling
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["BisimulationClasses", "bisimulation_classes", "reward_span"]

LIFT_ERROR = 4.0 * EPS
COMPILING = 4  # seconds it takes to compile what this needs, on an ordinary machine


@dataclass(frozen=True, eq=False)
class BisimulationClasses:
    """A partition of the states, with what its members are proven to differ by.

    Attributes:
        mdp: The model it is a partition of.
        labels: (n_states) class of each state, numbered by first appearance.
        representatives: (n_classes) the member each class is compared with: the terminal
            state in its class, the first member elsewhere.
        quotient: The MDP on classes: each behaves as its representative, with rows summed
            by class. Its start distribution is pushed forward.
        reward_gap: Bound on how much a member's reward differs from its representative's,
            for any action.
        variation: Bound on the total variation distance between a member's row, summed by
            class, and its representative's.
        lift_error: The same between the representative's summed row and the quotient's, which
            is rounded to floats.
        digits: Number of digits the signatures were rounded to, None for none.

    Members of a class are bisimilar, at distance exactly 0, if `is_exact`.
    """

    mdp: TabularMDP
    labels: IntArray
    representatives: IntArray
    quotient: TabularMDP
    reward_gap: float
    variation: float
    lift_error: float
    digits: int | None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.representatives.size)

    @property
    def is_exact(self) -> bool:
        """Whether members are proven bisimilar, not only nearly so."""
        return self.reward_gap == 0.0 and self.variation == 0.0

    def distortion(self, gamma: float) -> float:
        """Bound on |d(s,t) - d'(class of s, class of t)|, d' being the quotient's metric.

        Read d' as a function of states. It is a pseudometric, so W₁ under it obeys the
        triangle inequality, and moving a row by total variation v costs at most v·D, where
        D = L/(1 - gamma) bounds d'. Hence Td' differs from d' by at most
        2·reward_gap + 2·gamma·(variation + lift_error)·D. As T is a gamma-contraction with
        fixed point d, |d - d'| is at most that over 1 - gamma. The last factor covers the
        rounding of these few operations.
        """
        gamma = check_gamma(gamma)
        variation = self.variation + self.lift_error
        diameter = reward_span(self.quotient.rewards) / (1.0 - gamma)
        local = 2.0 * self.reward_gap + 2.0 * gamma * variation * diameter
        return local / (1.0 - gamma) * (1.0 + 1e-12)

    def __repr__(self) -> str:
        kind = "exact"
        if not self.is_exact:
            kind = f"reward gap {self.reward_gap:.2g}, variation {self.variation:.2g}"
        count, n = self.n_classes, self.labels.size
        return f"BisimulationClasses({counted(count, 'class')} of {counted(n, 'state')}, {kind})"


def bisimulation_classes(
    mdp: TabularMDP,
    *,
    digits: int | None = None,
    initial: npt.ArrayLike | None = None,
    resources: Resources = HERE,
) -> BisimulationClasses:
    """The coarsest partition into bisimilar states, in near-linear time.

    Two states are bisimilar if every action pays the same in both and reaches every class
    with the same probability. By default numbers are the same if they are equal as floats,
    sums being correctly rounded and so independent of their order. That is brittle where
    equal models were computed along different ways; `digits` then rounds what is compared,
    and the result states what its members are proven to differ by.

    Args:
        mdp: The model.
        digits: Compare rewards rounded to this many digits relative to their span, and class
            probabilities rounded to this many decimals. None compares floats.
        initial: (n_states) labels; the result refines this partition.
        resources: Threads for the final check; all cores by default.

    Returns:
        The classes. Rounding may merge or split too much, but never in secret: see
        `BisimulationClasses.is_exact`.

    Example:
        >>> import numpy as np
        >>> P = np.eye(3)[:, None, :]  # three states that stay where they are
        >>> bisimulation_classes(TabularMDP.from_dense(P, [1.0, 0.0, 1.0])).labels
        array([0, 1, 0])
    """
    from bisim_abstract._kernels.refine import deviation_kernel, refine_kernel

    check_mdp(mdp)
    n = mdp.n_states
    if initial is None:
        block = np.zeros(n, np.int64)
    else:
        given = np.asarray(initial)
        if given.shape != (n,):
            raise InvalidArgumentError(
                f"initial must have one label per state ({n}), got shape {given.shape}"
            )
        block = by_first_appearance(given)[0]
    keys, scale = _reward_keys(mdp.rewards, digits)
    bits = np.empty(1)
    word = bits.view(np.uint64)
    rows = mdp.indptr, mdp.indices, mdp.probs
    with compiling(None, about=COMPILING):
        refine_kernel(mdp.n_actions, *rows, keys, scale, block, bits, word)
    labels, representatives = by_first_appearance(block)
    if mdp.terminal_state is not None:
        representatives[labels[mdp.terminal_state]] = mdp.terminal_state
    quotient, lift_error = _quotient(mdp, labels, representatives)

    def deviation(begin: int, end: int) -> tuple[float, float]:
        return deviation_kernel(
            begin,
            end,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            mdp.rewards,
            labels,
            representatives,
            mdp.max_support,
        )

    # A chunk takes time for every class as well: where there are many, chunks are few.
    chunk = max(4096, n // 64, representatives.size // 4)
    parts = map_chunks(deviation, n, threads=resources.n_threads, chunk=chunk)
    labels.setflags(write=False)
    representatives.setflags(write=False)
    return BisimulationClasses(
        mdp=mdp,
        labels=labels,
        representatives=representatives,
        quotient=quotient,
        reward_gap=max(gap for gap, _ in parts),
        variation=max(variation for _, variation in parts),
        lift_error=lift_error,
        digits=digits,
    )


def reward_span(rewards: FloatArray) -> float:
    """L: the largest reward difference between two states under one action, rounded up."""
    with np.errstate(over="ignore"):
        span = float(np.ptp(rewards, axis=0).max())
    if not math.isfinite(span):
        raise InvalidArgumentError("rewards differ by more than a float can hold; rescale them")
    return math.nextafter(span, math.inf) if span > 0.0 else 0.0


def _reward_keys(rewards: FloatArray, digits: int | None) -> tuple[IntArray, float]:
    """What stands for a reward in a signature, and the grid of probabilities (0: none)."""
    if digits is None:
        # + 0.0, because -0.0 and 0.0 are the same reward.
        return (rewards + 0.0).view(np.int64), 0.0
    scale = 10.0 ** check_int("digits", digits, low=1, high=15)
    with np.errstate(over="ignore"):
        span = float(np.ptp(rewards)) or 1.0
    if not math.isfinite(span):
        raise InvalidArgumentError("rewards differ by more than a float can hold; rescale them")
    grid = np.rint((rewards - rewards.min()) / span * scale)
    return (grid + 0.0).view(np.int64), scale


def _quotient(
    mdp: TabularMDP, labels: IntArray, representatives: IntArray
) -> tuple[TabularMDP, float]:
    """The MDP on classes, and by how much rounding moved its rows in total variation.

    A class probability is a sum held to twice float precision and rounded once, so the row's
    entries are off by EPS relative each. Dividing both rows by their sums leaves at most
    2·EPS(1 + EPS) relative, half of which is total variation: 4·EPS is ample.
    """
    from bisim_abstract._kernels.refine import lift_rows_kernel

    count, n_actions = representatives.size, mdp.n_actions
    if count == mdp.n_states:
        return mdp, 0.0
    rows = (representatives[:, None] * n_actions + np.arange(n_actions)).ravel()
    room = int(np.diff(mdp.indptr)[rows].sum())
    indptr = np.empty(rows.size + 1, np.int64)
    indices, probs = np.empty(room, np.int64), np.empty(room)
    is_exact = lift_rows_kernel(
        rows, mdp.indptr, mdp.indices, mdp.probs, labels, count, indptr, indices, probs
    )
    start = np.bincount(labels, weights=mdp.start, minlength=count)
    quotient = TabularMDP(
        indptr=indptr,
        indices=indices[: indptr[-1]],
        probs=probs[: indptr[-1]],
        rewards=mdp.rewards[representatives],
        start=start / start.sum(),
        state_ids=mdp.state_ids[representatives],
        terminal_state=None if mdp.terminal_state is None else int(labels[mdp.terminal_state]),
        metadata=mdp.metadata,
    )
    return quotient, 0.0 if is_exact else LIFT_ERROR
