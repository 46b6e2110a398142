"""The verifier's check of episodes within a time limit: as many backups as there are steps.

With t steps to go the mean return is u_t = R + P u_{t-1}, u_0 = 0, and the share of episodes that
have ended e_t = P e_{t-1}, e_0 being 1 at the end and 0 elsewhere. Of a set of actions the least
counts in each step, which bounds from below whatever is played inside the set.

Both modes compute this with floats, as denominators of fractions would grow with every step. An
entry of a row of k entries is off by two roundings, a product with it, a sum of k and a reward add
k + 1: (k + 3)·EPS of t·max|R|, or of 1, with t steps to go. Errors before are averaged by rows that
are off by as little, so that H steps add up to H·(H + 1)/2, or H, of these; a ten-thousandth more
is enough for products of errors, as H·(k + 5)·EPS is far less than that for all that is checked.
"""

from __future__ import annotations

import math

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._verify.arithmetic import TINY, Arithmetic, float_sums
from bisim_abstract._verify.read import EPISODE_FIELDS, Interval
from bisim_abstract.errors import VerificationError

MOST_WORK = 8e9  # transitions that are read for one figure


def check_episodes(
    name: str,
    claimed: tuple[Interval | None, ...],
    horizon: int,
    plan: BoolArray,
    numbers: Arithmetic,
    known: dict[bytes, tuple[FloatArray, FloatArray]],
    *,
    is_set: bool,
) -> None:
    """Mean and least return, and share of ends, of a policy or of all inside a set.

    Args:
        name: Whose they are.
        claimed: Intervals as in `EPISODE_FIELDS`.
        horizon: The time limit.
        plan: (n_states, n_actions) the set; of a policy one action for each state.
        numbers: The model, no estimate.
        known: What was found of other plans, to which this one is added: they are often equal.
        is_set: Whether lower ends alone are claimed.
    """
    mdp = numbers.mdp
    if horizon * mdp.nnz > MOST_WORK:
        raise VerificationError(
            f"value: episodes of {horizon:,} steps take too long to check in this model"
        )
    key = plan.tobytes()
    if key not in known:
        known[key] = _followed(plan, horizon, numbers)
    found = known[key]
    if not (np.isfinite(found[0]).all() and np.isfinite(found[1]).all()):
        raise VerificationError(f"value: episodes.{name} cannot be told, rewards are too large")
    size = (numbers.longest + 5) * EPS * (1.0 + 1e-4)
    top = float(np.abs(mdp.rewards).max())
    pads = (
        size * top * horizon * (horizon + 1) / 2.0 + (TINY if top > 0.0 else 0.0),
        size * horizon,
    )
    # The mean rounds four times.
    used = np.flatnonzero(mdp.start)
    weights = mdp.start[used]
    total = math.fsum(weights)
    bounds = []
    for values, pad in zip(found, pads, strict=True):
        picked = values[used]
        middle = math.fsum(weights * picked) / total
        spread = pad + 6.0 * EPS * math.fsum(weights * np.abs(picked)) / total
        bounds.append((middle - spread, middle + spread))
        bounds.append((float(picked.min()) - pad, float(picked.min()) + pad))
    for k, (what, interval) in enumerate(zip(EPISODE_FIELDS, claimed, strict=True)):
        is_share = "ended" in what
        if (interval is None) != (is_share and mdp.terminal_state is None):
            has = "has no end" if mdp.terminal_state is None else "has an end"
            raise VerificationError(
                f"value: episodes.{name}.{what} is {interval}, but the model {has}"
            )
        if interval is None:
            continue
        low, high = bounds[k]
        if is_share:
            low, high = max(low, 0.0), min(high, 1.0)
        if not (interval[0] <= low and interval[1] >= (math.inf if is_set else high)):
            raise VerificationError(
                f"value: episodes.{name}.{what} is {interval}, but no more than "
                f"{(low, math.inf if is_set else high)} can be told"
            )


def _followed(plan: BoolArray, horizon: int, numbers: Arithmetic) -> tuple[FloatArray, FloatArray]:
    """(n_states) least returns and shares of ends."""
    from scipy.sparse import csr_array

    mdp = numbers.mdp
    n, end = mdp.n_states, mdp.terminal_state
    rows = np.flatnonzero(plan)
    begins = _begins(plan)
    indptr, at = numbers.row_entries(rows)
    probs = mdp.probs[at]
    masses = float_sums(probs, indptr[:-1])
    chain = csr_array(
        (probs / np.repeat(masses, np.diff(indptr)), mdp.indices[at], indptr), shape=(rows.size, n)
    )
    paid = mdp.rewards.ravel()[rows]
    returns, ends = np.zeros(n), np.zeros(n)
    if end is not None:
        ends[end] = 1.0
    for _ in range(horizon):
        returns = np.minimum.reduceat(paid + np.asarray(chain @ returns), begins)
        if end is not None:
            ends = np.minimum.reduceat(np.asarray(chain @ ends), begins)
            returns[end], ends[end] = 0.0, 1.0
    return returns, ends


def _begins(plan: BoolArray) -> IntArray:
    counts = plan.sum(axis=1)
    return np.asarray(np.cumsum(counts) - counts)
