"""Values of a Markov chain, correctly rounded: the same bits on every processor.

A factorisation is off by some units in the last place, and by others where the library underneath
chooses other code for another processor. A policy that takes the best action would then hang on
these units wherever two actions are equally good. Refined with residuals in twice the precision,
the solution is within about 2**-100 of the exact one, and rounding it leaves nothing of the way
it was found. (A value that lies halfway between two floats could still fall to either side; that
takes a coincidence of 47 bits.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bisim_abstract._base.linear import factorise
from bisim_abstract._base.types import FloatArray

ROUNDS = 8  # of refinement; each gains 10 digits or more, unless gamma is within 1e-6 of 1
SETTLED = 2.0**-90  # of a value: a step that changes no float any more


def solve_chain(kernel: Any, gamma: float, rewards: FloatArray) -> FloatArray:
    """The values v = rewards + gamma·kernel·v of a chain; not trusted, like every solver.

    Args:
        kernel: (n, n) sparse rows.
        gamma: The discount.
        rewards: (n) rewards.
    """
    from scipy.sparse import eye_array

    from bisim_abstract._kernels.chains import chain_residual_kernel

    n, rows = rewards.size, kernel.tocsr()
    # A power of two changes no digit, and keeps products away from the ends of the range.
    unit = int(np.frexp(np.abs(rewards).max(initial=0.0))[1])
    right = np.ldexp(rewards, -unit)
    solve = factorise(eye_array(n, format="csr") - gamma * rows)
    parts = rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data
    high, low, residual = np.zeros(n), np.zeros(n), right.copy()
    for _ in range(ROUNDS):
        step = solve(residual)
        total = high + step  # two floats become their rounded sum and its error, exactly
        part = total - high
        low += (high - (total - part)) + (step - part)
        high = total + low
        low -= high - total
        if not float(np.abs(step).max(initial=0.0)) > SETTLED * float(
            np.abs(high).max(initial=0.0)
        ):
            break
        chain_residual_kernel(*parts, gamma, right, high, low, residual)
    return np.ldexp(high, unit)
