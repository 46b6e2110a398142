"""How long bounds are swept, and how far they are kept from their inequalities' edge."""

from __future__ import annotations

import math

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray
from bisim_abstract._bounds.arms import Arms

CHECK_EVERY = 5  # sweeps between two looks at the goal


def sweeps_needed(gamma: float, share: float = 1e-9) -> int:
    """Sweeps after which no more than a share of the start shows: by default, nine digits."""
    return 1 if gamma == 0.0 else min(10_000, math.ceil(math.log(share) / math.log(gamma)) + 1)


def moved_outward(
    arms: Arms, lower: FloatArray, upper: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bounds moved outward far beyond rounding, so that they satisfy their inequalities exactly.

    f - δ gains a slack of (1 - gamma)·δ in f <= Tf, and f + δ in f >= Tf.
    """
    delta = 64.0 * EPS * arms.starts.diameter / (1.0 - arms.gamma)
    return np.maximum(lower - delta, 0.0), upper + delta
