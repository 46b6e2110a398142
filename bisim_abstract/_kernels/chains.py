"""Residuals of linear systems in twice the working precision.

Products are split (Veltkamp, Dekker) and sums carry their rounding errors (Knuth), in one fixed
order and without fused operations: the same bits on every processor.
"""

from __future__ import annotations

from bisim_abstract._base.jit import inlined, kernel
from bisim_abstract._base.types import FloatArray, IntArray


@inlined
def add_kernel(high: float, low: float, term: float, error: float) -> tuple[float, float]:
    """(high + low) + (term + error), with a relative error of a few units of 2**-104."""
    s = high + term
    part = s - high
    low += ((high - (s - part)) + (term - part)) + error
    total = s + low
    return total, low - (total - s)


@inlined
def multiply_kernel(a: float, b: float) -> tuple[float, float]:
    """a·b as a float and what it is off by; exact unless a part over- or underflows."""
    c = 134217729.0 * a
    a_big = c - (c - a)
    a_small = a - a_big
    c = 134217729.0 * b
    b_big = c - (c - b)
    b_small = b - b_big
    product = a * b
    return product, ((a_big * b_big - product) + a_big * b_small + a_small * b_big) + (
        a_small * b_small
    )


@kernel
def chain_residual_kernel(
    indptr: IntArray,
    indices: IntArray,
    mass: FloatArray,
    gamma: float,
    rewards: FloatArray,
    high: FloatArray,
    low: FloatArray,
    out: FloatArray,
) -> None:
    """Rewards + gamma·P·v - v for values v = high + low, rounded once at the end.

    In: the rows of P; rewards, high, low (n). Out: out (n).
    """
    for x in range(rewards.size):
        ahead, rest = 0.0, 0.0
        for e in range(indptr[x], indptr[x + 1]):
            y = indices[e]
            term, error = multiply_kernel(mass[e], high[y])
            ahead, rest = add_kernel(ahead, rest, term, error + mass[e] * low[y])
        term, error = multiply_kernel(gamma, ahead)
        total, rest = add_kernel(rewards[x], 0.0, term, error + gamma * rest)
        total, rest = add_kernel(total, rest, -high[x], -low[x])
        out[x] = total + rest
