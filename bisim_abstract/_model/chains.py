"""The chain that a policy makes of a model: one action, which does what the policy does.

What is stored are floats, and what is meant is the exact mixture: Σ_a w_a·P(·|s,a) / Σ_a w_a, with
rows divided by their exact sums, and rewards mixed by the same weights. Where the policy has one
action, or all that it takes do the same, the row is copied and nothing is rounded. Elsewhere radii
say how far the exact mixture may be from the stored one. They hold surely (`Estimate.alpha` is 0),
and everything that knows the radii of an estimate knows these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.mdp import ENTRY_BYTES, ROW_BYTES, TabularMDP, canonical_rows
from bisim_abstract._model.policies import policy_matrix
from bisim_abstract._model.rows import rows_taken

UNDER_POLICY = "under_policy"  # the entry of metadata that tells such a chain from other models
TINY = 1e-315  # far above what products of two numbers at most 1 lose by underflow, in any sum
UP = 1.0 + 1e-12  # covers the few roundings of sums of radii, which have at most A terms


def policy_chain(mdp: TabularMDP, policy: npt.ArrayLike) -> TabularMDP:
    """The model with one action, that of the policy: see `TabularMDP.under_policy`."""
    weights = policy_matrix(mdp, policy)
    n, n_actions = weights.shape
    # A weight is divided by a sum within 1e-9 of 1, so that none above 0 becomes 0.
    used = weights > 0.0
    first = used.argmax(axis=1)
    sizes = np.diff(mdp.indptr).reshape(n, n_actions)
    check_memory(
        ENTRY_BYTES * int(sizes[used].sum()) + ROW_BYTES * n * n_actions,
        what=f"the chain of {n:,} states that the policy makes",
        instead="give a policy with fewer actions of each state, or restrict the model",
    )
    is_copied = _do_the_same(mdp, used)
    chosen = used & (~is_copied[:, None] | (np.arange(n_actions) == first[:, None]))
    rows = np.flatnonzero(chosen)
    _, entries = rows_taken(mdp.indptr, rows)
    of_state = np.concatenate([[0], np.cumsum((sizes * chosen).sum(axis=1))])
    probs = mdp.probs[entries]
    if not is_copied.all():
        mixed = np.repeat(weights.ravel()[rows], sizes.ravel()[rows])
        mixed *= mdp.normalised_probs[entries]
        probs = np.where(np.repeat(is_copied, np.diff(of_state)), probs, mixed)
    indptr, indices, probs = canonical_rows(of_state, mdp.indices[entries], probs)
    rewards, reward_rounding = _mixed_rewards(mdp, weights, used)
    return TabularMDP(
        indptr=indptr,
        indices=indices,
        probs=probs,
        rewards=rewards[:, None],
        start=mdp.start,
        state_ids=mdp.state_ids,
        terminal_state=mdp.terminal_state,
        estimate=_radii(mdp, weights, used, reward_rounding, _row_rounding(is_copied, n_actions)),
        names=replace(mdp.names, actions=None, rewards=()),
        metadata={UNDER_POLICY: _origin(mdp, used), **mdp.metadata},
    )


def is_under_policy(mdp: TabularMDP) -> bool:
    """Whether a model is the chain of a policy, as far as its metadata tell."""
    return UNDER_POLICY in mdp.metadata


def _origin(mdp: TabularMDP, used: BoolArray) -> dict[str, Any]:
    """Whose chain it is, as JSON values."""
    return {
        "model": mdp.fingerprint,
        "n_actions": mdp.n_actions,
        "is_deterministic": bool((used.sum(axis=1) == 1).all()),
    }


def _do_the_same(mdp: TabularMDP, used: BoolArray) -> BoolArray:
    """(n_states) whether all actions that are taken have the same row, exactly.

    Rows of one successor are the same if it is, whatever they are stored as: they are divided by
    their sum.
    """
    n_actions = mdp.n_actions
    rows = np.flatnonzero(used)
    states = rows // n_actions
    own = states * n_actions + used.argmax(axis=1)[states]
    lengths = np.diff(mdp.indptr)
    is_same = lengths[rows] == lengths[own]
    sizes = np.where(is_same, lengths[rows], 0)
    shift = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    one, two = (np.repeat(mdp.indptr[at], sizes) + shift for at in (rows, own))
    is_other = mdp.indices[one] != mdp.indices[two]
    is_other |= (mdp.probs[one] != mdp.probs[two]) & (np.repeat(sizes, sizes) > 1)
    is_same[np.repeat(np.arange(rows.size), sizes)[is_other]] = False
    agree = np.ones(mdp.n_states, bool)
    agree[states[~is_same]] = False
    return agree


def _row_rounding(is_copied: BoolArray, n_actions: int) -> FloatArray:
    """(n_states) how far the exact mixture of rows may be from the stored row.

    A weight is off by a common factor, which the division of a row by its sum takes out again, by
    one rounding, and by A more where it took in those of actions that the state lacks; a
    normalised probability by two, its product with the weight by one, a sum of at most A of them
    by A - 1. So each entry is off by a factor within 1 ± e with e = (2A + 3)·EPS(1 + small), and
    by underflow, by which it may be lost, below TINY for all of a row together. The entries of a
    row, of exact sum W, are off by at most W·e' in all with e' = e + TINY/W; dividing them by
    their own sum instead of W moves them by as much again; and total variation is half of that:
    e'/(1 - e') at most. (2A + 8)·EPS is more.
    """
    return np.where(is_copied, 0.0, (2 * n_actions + 8) * EPS)


def _mixed_rewards(
    mdp: TabularMDP, weights: FloatArray, used: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """(n_states) expected rewards, and how far the exact ones may be from them.

    Products with weights (A + 1 roundings, as above) round once, their sum and that of the weights
    A - 1 times each, the quotient once: below (3A + 4)·EPS of the largest absolute reward that is
    mixed. The exact mean lies between the least and the largest of them, and moving the computed
    one there brings it nearer. Where these are equal, so is the mean.
    """
    least = np.where(used, mdp.rewards, np.inf).min(axis=1)
    most = np.where(used, mdp.rewards, -np.inf).max(axis=1)
    scale = np.maximum(np.abs(least), np.abs(most))
    # Divided by powers of two, which is exact, no sum of large rewards overflows.
    unit = np.ldexp(1.0, np.frexp(scale)[1] - 1)
    unit = np.where(scale > 0.0, unit, 1.0)
    parts = np.where(used, weights * (mdp.rewards / unit[:, None]), 0.0)
    with np.errstate(over="ignore"):  # of a mean next to the largest float, cut to what is mixed
        mean = np.clip(parts.sum(axis=1) / weights.sum(axis=1) * unit, least, most)
    rounding = (3 * mdp.n_actions + 8) * EPS * scale + TINY
    return mean, np.where(least == most, 0.0, rounding)


def _radii(
    mdp: TabularMDP,
    weights: FloatArray,
    used: BoolArray,
    reward_rounding: FloatArray,
    row_rounding: FloatArray,
) -> Estimate | None:
    """Radii of the chain, those of the model mixed and rounding added; None if all are 0.

    The distance of two mixtures by the same weights is at most the mixture of the distances, and
    so at most the largest of them.
    """
    known, n = mdp.estimate, mdp.n_states
    if known is None:
        if not reward_rounding.any() and not row_rounding.any():
            return None
        return Estimate(
            counts=np.zeros((n, 1), np.int64),
            reward_radius=reward_rounding[:, None],
            row_radius=row_rounding[:, None],
            alpha=0.0,
            reward_range=(float(mdp.rewards.min()), float(mdp.rewards.max())),
            support_bound=min(n, mdp.n_actions * mdp.max_support),
        )
    # Weights sum to 1 up to their roundings, which UP covers as well.
    reward_radius, row_radius = (
        np.minimum(
            np.where(used, weights * np.where(used, radius, 0.0), 0.0).sum(axis=1) * UP + TINY,
            np.where(used, radius, 0.0).max(axis=1),
        )
        for radius in (known.reward_radius, known.row_radius)
    )
    rewards = np.where(reward_rounding > 0.0, (reward_radius + reward_rounding) * UP, reward_radius)
    rows = np.where(row_rounding > 0.0, (row_radius + row_rounding) * UP, row_radius)
    return Estimate(
        counts=np.where(used, known.counts, 0).sum(axis=1, keepdims=True),
        reward_radius=rewards[:, None],
        row_radius=np.minimum(rows, 1.0)[:, None],
        alpha=known.alpha,
        reward_range=known.reward_range,
        support_bound=min(n, mdp.n_actions * known.support_bound),
    )
