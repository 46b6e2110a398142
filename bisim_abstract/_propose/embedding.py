"""Points in R^k whose distances imitate a given one: landmark MDS, checks, and its distortion.

An embedding only proposes: it decides which pairs are looked at, never what is proven about
them. Nothing here has to be rounded outward, and a poor embedding costs time, not soundness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import as_array, as_generator, check_int
from bisim_abstract._base.linear import product, symmetric_axes
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import FloatArray, IntArray, SeedLike
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["Distance", "Embedding", "as_points", "distortion", "landmark_mds"]

ALL_LANDMARKS = 64  # up to so many states each is a landmark
PAIR_CHUNK = 65_536  # sampled pairs measured at once
RELATIVE_RANK = 1e-10  # eigenvalues below this share of the largest are rounding errors
SAME_EIGENVALUE = 1e-9  # of the largest: what is closer is one eigenvalue of several axes
SAME_LENGTH = 1e-6  # relative: what is closer is a tie, decided by number
GRID_BITS = 28  # of the largest coordinate of points to be indexed

Distance: TypeAlias = Callable[[IntArray, IntArray], npt.ArrayLike]
"""Distances of states from others, by broadcasting two arrays of indices."""


@runtime_checkable
class Embedding(Protocol):
    """Anything that places states in R^k, for instance a trained encoder."""

    def encode(self, states: IntArray, /) -> npt.ArrayLike:
        """Points of the states, one row each."""


def as_points(embedding: Embedding | npt.ArrayLike, n_states: int) -> npt.NDArray[np.float32]:
    """Embedded states as an index takes them: centred, single precision, C-contiguous.

    The mean is subtracted in double precision, because single precision spends its digits on
    an offset that all points share. Points are then rounded to a grid of 2**-28 of their extent:
    what is 0 but for rounding errors, which differ between processors, becomes 0.

    Args:
        embedding: An object with `encode`, or one row per state.
        n_states: Number of states.

    Returns:
        (n_states, k) points with mean 0.

    Raises:
        InvalidArgumentError: If the rows are not `n_states` finite real points.
    """
    points = checked_points(embedding, n_states)
    check_memory(
        20 * points.size,
        what=f"centring {points.shape[0]:,} points in {points.shape[1]:,} dimensions",
        instead="use fewer dimensions",
    )
    with np.errstate(over="ignore", invalid="ignore"):  # reported just below, with the state
        own = points - points.mean(axis=0)
        unit = int(np.frexp(np.abs(own).max())[1]) - GRID_BITS
        rounded = np.ldexp(np.rint(np.ldexp(own, -unit)) + 0.0, unit)  # no -0 remains
        centred = np.ascontiguousarray(rounded, dtype=np.float32)
    _check_finite(centred, rule="must fit in single precision", remedy="rescale it")
    return centred


def scaled_points(points: npt.ArrayLike) -> FloatArray:
    """Points divided by a power of two near the largest: they fit in single precision.

    Only where distances are compared with each other; none of them means anything by itself.
    """
    given = np.asarray(points, dtype=np.float64)
    top = float(np.abs(given).max(initial=0.0))
    return np.asarray(np.ldexp(given, -int(np.frexp(top)[1])))


def landmark_mds(
    distance: Distance,
    n_states: int,
    *,
    dim: int = 8,
    n_landmarks: int | None = None,
    seed: SeedLike = None,
    resources: Resources = HERE,
) -> FloatArray:
    """Place states in R^dim from their distances to a few landmarks.

    Landmarks are picked one by one, each the state farthest from those before it, the first at
    random. Classical scaling places them, and every state follows by triangulation: with
    `V·diag(lambda)·V'` the centred matrix of the landmarks, x(s) = -1/2·diag(lambda)^(-1/2)·V'·
    (delta(s)² - mean), where delta(s) are the distances of s to the landmarks (de Silva and
    Tenenbaum; Cox and Cox). Exact for Euclidean distances in at most `dim` dimensions, up to
    an isometry; any other symmetric function is imitated as well as that allows. Coordinates
    beyond the positive eigenvalues are 0. `n_states * n_landmarks` distances are read.

    Each axis points to the landmark that lies farthest out along it. Where eigenvalues are equal
    and leave their axes free to turn, the first one passes through the farthest landmark, the
    next one through the farthest of the rest. So processors and versions of LAPACK differ in the
    last bits alone, which are rounded away before points are indexed.

    Args:
        distance: Distances by broadcasting two index arrays; need not be a metric.
        n_states: Number of states.
        dim: Number of coordinates.
        n_landmarks: Number of landmarks, at most all states; by default all states up to 64
            states, and 4·dim + 16 beyond.
        seed: Seed or generator, for the first landmark and among equally far ones.
        resources: Memory that may be used, by `distance` apart; what is available by default.

    Returns:
        (n_states, dim) points.

    Raises:
        InvalidArgumentError: If an argument is out of range, or a distance is negative or not
            finite.
        MemoryLimitError: If the distances would not fit.
    """
    check_resources(resources)
    n = check_int("n_states", n_states, low=1)
    dim = check_int("dim", dim, low=1)
    if n_landmarks is None:
        n_landmarks = n if n <= ALL_LANDMARKS else 4 * dim + 16
    count = min(n, check_int("n_landmarks", n_landmarks, low=1))
    resources.check_memory(
        24 * n * count + 56 * count * count + 16 * n * dim,  # the second for eigenvectors
        what=f"distances of {n:,} states from {count:,} landmarks",
        instead="ask for fewer landmarks or dimensions",
    )
    landmarks, columns = _pick_landmarks(distance, n, count, as_generator(seed))
    points = np.zeros((n, dim))
    scale = float(columns.max())
    if scale > 0.0:
        # Scaled, since squares of very large or very small distances leave the range of floats.
        squares = (columns / scale) ** 2
        axes = _axes(squares[landmarks], dim)
        mean = squares[landmarks].mean(axis=0)
        points[:, : axes.shape[1]] = product(mean - squares, axes) * (0.5 * scale)
    return points


def distortion(
    embedding_points: Embedding | npt.ArrayLike,
    distance: Distance,
    n_states: int,
    *,
    sample: int | None = None,
    seed: SeedLike = None,
) -> float:
    """The largest error of embedded distances, `max | |phi(s) - phi(t)| - distance(s, t) |`.

    Args:
        embedding_points: An object with `encode`, or one row per state.
        distance: Distances by broadcasting two index arrays.
        n_states: Number of states.
        sample: Number of random pairs to measure, with repetition; all pairs by default, which
            takes quadratic time. A sample gives a value that is at most the true one.
        seed: Seed or generator of the sample.

    Returns:
        The distortion, 0 for a single state.

    Raises:
        InvalidArgumentError: If points or distances are not finite, or shapes do not fit.
    """
    points = checked_points(embedding_points, n_states)
    worst = 0.0
    for s, t in _pairs_to_measure(points.shape[0], sample, seed):
        gap = points[s] - points[t]
        embedded = np.sqrt(np.einsum("ij,ij->i", gap, gap))
        worst = max(worst, float(np.abs(embedded - _measured(distance, s, t)).max()))
    return worst


def checked_points(embedding: Embedding | npt.ArrayLike, n_states: int) -> FloatArray:
    """Embedded states in double precision, one finite row each, or an error that says why not."""
    n = check_int("n_states", n_states, low=1)
    if isinstance(embedding, Embedding) and not isinstance(embedding, str):  # text has `encode`
        check_memory(8 * n, what=f"the points of {n:,} states", instead="embed fewer states")
        given = embedding.encode(np.arange(n))
    else:
        given = embedding
    points = as_array("embedding", given)
    if points.dtype.kind not in "fiub":
        raise InvalidArgumentError(f"embedding must hold real numbers, got dtype {points.dtype}")
    if points.ndim != 2 or points.shape[0] != n or points.shape[1] == 0:
        raise InvalidArgumentError(
            f"embedding must have shape ({n}, k) with k >= 1, got {points.shape}; "
            "give one row per state"
        )
    check_memory(
        9 * points.size,
        what=f"a copy of {n:,} points in {points.shape[1]:,} dimensions",
        instead="use fewer dimensions",
    )
    _check_finite(points, rule="must be finite", remedy="retrain or drop it")
    return points.astype(np.float64)


def _check_finite(points: npt.NDArray[np.generic], *, rule: str, remedy: str) -> None:
    is_bad = ~np.isfinite(points).all(axis=1)
    if is_bad.any():
        state = int(np.argmax(is_bad))
        raise InvalidArgumentError(
            f"embedding {rule}, got {points[state].tolist()} for state {state}; {remedy}"
        )


def _pick_landmarks(
    distance: Distance, n: int, count: int, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Landmarks by farthest-point selection, and the distances of all states to each."""
    states = np.arange(n)
    # Many states can be equally far (at 0, once all rewards are seen): the shuffled order
    # spreads the landmarks over them, where index order would take the first few.
    order = rng.permutation(n)
    landmarks = np.empty(count, np.int64)
    columns = np.empty((n, count))
    nearest = np.full(n, np.inf)
    for i in range(count):
        landmark = order[np.argmax(nearest[order])]
        landmarks[i] = landmark
        columns[:, i] = _measured(distance, states, landmark)
        np.minimum(nearest, columns[:, i], out=nearest)
        nearest[landmark] = -1.0  # never twice
    return landmarks, columns


def _axes(squares: FloatArray, dim: int) -> FloatArray:
    """(landmarks, rank) eigenvectors of the centred landmark matrix over roots of eigenvalues."""
    squares = (squares + squares.T) / 2.0
    rows = squares.mean(axis=0)
    values, vectors = symmetric_axes(-0.5 * (squares - rows - rows[:, None] + rows.mean()))
    values, vectors = values[::-1], vectors[:, ::-1]
    keep = values > RELATIVE_RANK * max(float(values[0]), 0.0)
    values, vectors = values[keep], vectors[:, keep]
    is_new = np.diff(values, prepend=np.inf) < -SAME_EIGENVALUE * values[:1].sum()
    first = np.flatnonzero(is_new[:dim])
    ends = np.append(np.flatnonzero(is_new)[1:], values.size)[: first.size]
    parts = [_turned(vectors[:, begin:end]) for begin, end in zip(first, ends, strict=True)]
    axes = np.hstack([np.empty((squares.shape[0], 0)), *parts])[:, :dim]
    return np.asarray(axes / np.sqrt(values[: axes.shape[1]]))


def _turned(vectors: FloatArray) -> FloatArray:
    """Axes of the same space, each through the farthest landmark that those before it leave."""
    left, axes = vectors.copy(), np.empty_like(vectors)
    for k in range(vectors.shape[1]):
        length = np.sqrt((left**2).sum(axis=1))
        row = left[np.argmax(length >= (1.0 - SAME_LENGTH) * length.max())]
        along = row / np.sqrt((row**2).sum())
        axes[:, k] = (left * along).sum(axis=1)
        left -= axes[:, k, None] * along
    return axes


def _measured(distance: Distance, s: IntArray, t: IntArray) -> FloatArray:
    """Distances of pairs, checked."""
    found = np.asarray(distance(s, t), dtype=np.float64)
    shape = np.broadcast_shapes(np.shape(s), np.shape(t))
    if found.shape != shape:
        raise InvalidArgumentError(
            f"distance must broadcast its arguments to shape {shape}, got shape {found.shape}"
        )
    is_bad = ~(np.isfinite(found) & (found >= 0.0))
    if is_bad.any():
        at = int(np.argmax(is_bad))
        first, second = (int(np.broadcast_to(index, shape)[at]) for index in (s, t))
        raise InvalidArgumentError(
            f"distance must be finite and at least 0, got {float(found[at])!r} for states "
            f"{first} and {second}"
        )
    return found


def _pairs_to_measure(
    n: int, sample: int | None, seed: SeedLike
) -> Iterator[tuple[IntArray, IntArray]]:
    """All pairs by their first state, or random pairs in chunks."""
    if sample is None:
        for state in range(n - 1):
            yield np.full(n - 1 - state, state), np.arange(state + 1, n)
        return
    left = check_int("sample", sample, low=1) if n > 1 else 0
    rng = as_generator(seed)
    while left > 0:
        size = min(left, PAIR_CHUNK)
        s = rng.integers(n, size=size)
        yield s, (s + rng.integers(1, n, size=size)) % n
        left -= size
