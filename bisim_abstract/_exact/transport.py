"""Small exact optimal transport, solved in batches, with certified bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.parallel import map_chunks, read_only
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import FloatArray
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["TransportPlans", "solve_transport"]


@dataclass(frozen=True, eq=False)
class TransportPlans:
    """Solutions of a batch of transport problems; leading axes are those of the input.

    Attributes:
        value: Cost of the coupling in plain floating point.
        lower: Proven lower bound on the exact cost, from repaired potentials.
        upper: Proven upper bound on the exact cost, from the repaired coupling.
        coupling: (..., m, n) masses moved, with the given marginals up to rounding.
        u: (..., m) potentials of the sources.
        v: (..., n) potentials of the sinks, with u_i + v_j <= cost_ij up to rounding.
    """

    value: FloatArray
    lower: FloatArray
    upper: FloatArray
    coupling: FloatArray
    u: FloatArray
    v: FloatArray


def solve_transport(
    cost: npt.ArrayLike,
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    resources: Resources = HERE,
) -> TransportPlans:
    """Move mass `a` to mass `b` at least cost: one problem, or many of one shape.

    Masses are weights: each side is divided by its own sum first, whatever that is, and values
    are per unit of mass. Zero masses are allowed. Every problem ends: where
    degenerate pivots or rounding should stop the simplex early, the bounds widen and stay true.

    Args:
        cost: (..., m, n) non-negative costs.
        a: (..., m) non-negative masses of the sources; leading axes broadcast.
        b: (..., n) non-negative masses of the sinks; leading axes broadcast.
        resources: Threads; all cores by default.

    Example:
        >>> plan = solve_transport([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.5], [0.25, 0.75])
        >>> float(plan.value)
        0.25
        >>> bool(plan.lower <= 0.25 <= plan.upper)
        True
    """
    check_resources(resources)
    from bisim_abstract._kernels.transport import batch_kernel

    costs = _checked("cost", cost, 2)
    m, n = costs.shape[-2:]
    masses_a, masses_b = _checked("a", a, 1), _checked("b", b, 1)
    if masses_a.shape[-1] != m or masses_b.shape[-1] != n or m == 0 or n == 0:
        raise InvalidArgumentError(
            f"cost of shape (..., {m}, {n}) needs a of length {m} and b of length {n}, both above "
            f"0, got {masses_a.shape[-1]} and {masses_b.shape[-1]}"
        )
    try:
        lead = np.broadcast_shapes(costs.shape[:-2], masses_a.shape[:-1], masses_b.shape[:-1])
    except ValueError:
        raise InvalidArgumentError(
            "the leading axes of cost, a and b must broadcast, got "
            f"{costs.shape[:-2]}, {masses_a.shape[:-1]} and {masses_b.shape[:-1]}"
        ) from None
    count = math.prod(lead)
    check_memory(
        count * (32 * m * n + 56 * (m + n)),  # costs twice, flows, their product; masses
        what=f"solving {count:,} problems of {m:,} x {n:,} masses",
        instead="solve fewer at a time",
    )
    flat_cost = np.ascontiguousarray(np.broadcast_to(costs, (*lead, m, n))).reshape(count, m * n)
    # Near the end of the number line potentials would overflow: scale by a power of two.
    unit = np.where(flat_cost.max(axis=1, initial=0.0) > 2.0**900, 2.0**64, 1.0)
    flat_cost = flat_cost / unit[:, None]
    flat_a = _normalised("a", masses_a, lead, m)
    flat_b = _normalised("b", masses_b, lead, n)
    flow = np.empty((count, m * n))
    pot = np.empty((count, m + n))
    lower, upper = np.empty(count), np.empty(count)

    def part(begin: int, end: int) -> None:
        batch_kernel(flat_cost, flat_a, flat_b, flow, pot, lower, upper, begin, end)

    map_chunks(part, count, threads=resources.n_threads, chunk=1 + 100_000 // (m * n))
    with np.errstate(over="ignore"):  # an infinite upper bound is a bound
        value = (flow * flat_cost).sum(axis=1) * unit
        lower, upper, pot = lower * unit, upper * unit, pot * unit[:, None]
    return TransportPlans(
        value=np.asarray(value.reshape(lead)),
        lower=lower.reshape(lead),
        upper=upper.reshape(lead),
        coupling=flow.reshape(*lead, m, n),
        u=pot[:, :m].reshape(*lead, m),
        v=pot[:, m:].reshape(*lead, n),
    )


def _checked(name: str, values: npt.ArrayLike, ndim: int) -> FloatArray:
    array = frozen(name, values, np.float64)
    if array.ndim < ndim:
        raise InvalidArgumentError(f"{name} needs at least {ndim} axes, got shape {array.shape}")
    bad = ~np.isfinite(array) | (array < 0.0)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InvalidArgumentError(
            f"{name} must be finite and non-negative, got {array[at]} at {at}"
        )
    return array


def _normalised(name: str, masses: FloatArray, lead: tuple[int, ...], size: int) -> FloatArray:
    """Masses divided by their sums, (problems, size)."""
    from bisim_abstract._kernels.transport import normalise_rows_kernel

    flat = np.ascontiguousarray(np.broadcast_to(masses, (*lead, size))).reshape(-1, size)
    # A power of two near the largest mass is divided out first, exactly, so that sums neither
    # overflow nor underflow.
    top = flat.max(axis=1, initial=0.0)
    if (top <= 0.0).any():
        at = int(np.argmax(top <= 0.0))
        raise InvalidArgumentError(f"{name} must have positive total mass, problem {at} has none")
    flat = np.asarray(np.ldexp(flat, -np.frexp(top)[1][:, None]), dtype=np.float64)
    out = np.empty_like(flat)
    if size == 1:
        out[:] = 1.0
    else:
        indptr = read_only(np.arange(0, flat.size + 1, size))
        normalise_rows_kernel(indptr, read_only(flat.ravel()), out.reshape(-1))
    return out
