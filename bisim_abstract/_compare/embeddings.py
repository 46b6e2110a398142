"""How well an embedding imitates the metric: errors, neighbours, ranks, proven contradictions.

Encoders are trained for different distances, and one that fits its own perfectly may still be far
from the bisimulation metric. With the model at hand, an embedding is held against both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import as_generator, check_int
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.types import FloatArray, IntArray, SeedLike
from bisim_abstract._exact.metric import bisimulation_metric
from bisim_abstract._exact.mico import mico_distance
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.policies import uniform_policy
from bisim_abstract._propose.embedding import Embedding, checked_points
from bisim_abstract._relations.table import find_relation
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["EmbeddingFit", "EmbeddingQuality", "evaluate_embedding"]

# What `trained_for` of an embedding may say, and what it is called.
DISTANCES = {
    "bisimulation": "the bisimulation metric",
    "on_policy": "the on-policy metric",
    "mico": "MICo's distance",
}

CHUNK_CELLS = 2**20  # distances of queries to all states that are held at once
PAIR_BYTES, CELL_BYTES = 150, 80  # what a pair and one of these distances take at the peak
ROUNDING = 1e-6  # of the upper bound: what single precision may be off without contradiction

Measure: TypeAlias = Callable[[IntArray, IntArray], FloatArray]


class Bounds(Protocol):
    """A `Certificate`, `MetricBounds`, or anything else that bounds the metric of pairs."""

    @property
    def n_states(self) -> int:
        """Number of states."""

    def bounds(
        self, states: npt.ArrayLike, others: npt.ArrayLike, /
    ) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds, by broadcasting two index arrays."""


@dataclass(frozen=True)
class EmbeddingFit:
    """How an embedding compares with the distance that it is trained for.

    Attributes:
        name: Which distance: "bisimulation", "on_policy" or "mico".
        distortion: Largest absolute difference of the two distances of a pair.
        mean_error: Mean absolute difference.
        rank_correlation: Spearman's rank correlation of the two distances over the pairs;
            NaN where one of them is constant.
        outside: Share of pairs whose embedded distance lies outside the proven bounds.
    """

    name: str
    distortion: float
    mean_error: float
    rank_correlation: float
    outside: float

    @property
    def title(self) -> str:
        """The distance, in words."""
        return DISTANCES[self.name]


@dataclass(frozen=True)
class EmbeddingQuality:
    """How an embedding compares with the metric, on sampled pairs and states.

    The metric's value of a pair is the midpoint of its bounds throughout.

    Attributes:
        distortion: Largest absolute difference of the two distances of a pair.
        mean_error: Mean absolute difference.
        recall: Share of the k nearest states under the metric that are among the k nearest
            under the embedding. States that are equally far count as one another.
        rank_correlation: Spearman's rank correlation of the two distances over the pairs;
            NaN where one of them is constant.
        outside: Share of pairs whose embedded distance is proven wrong: it lies outside the
            bounds.
        k: Neighbours per state.
        n_pairs: Pairs that were measured.
        n_queries: States whose neighbours were compared.
        is_learned: Whether the embedding's own `distance` was measured, rather than Euclidean
            distances of its points. Neighbours always follow from Euclidean distances, which
            is how an index finds them.
        trained_for: The same figures for the distance that the embedding is trained for; None
            without a model, or if the embedding does not say.
    """

    distortion: float
    mean_error: float
    recall: float
    rank_correlation: float
    outside: float
    k: int
    n_pairs: int
    n_queries: int
    is_learned: bool
    trained_for: EmbeddingFit | None = None

    def summary(self) -> str:
        """A few lines for people."""
        kind = "learned" if self.is_learned else "Euclidean"
        lines = [
            f"embedding, {kind} distances against the metric on {self.n_pairs:,} pairs",
            f"  error     {self.mean_error:.4g} on average, {self.distortion:.4g} at most",
            f"  ranks     correlation {self.rank_correlation:.3f}",
            f"  outside   {self.outside:.1%} of pairs are proven wrong by their bounds",
            f"  recall    {self.recall:.3f} of the {self.k} nearest, {self.n_queries:,} states",
        ]
        fit = self.trained_for
        if fit is not None:
            lines += [
                f"against {fit.title}, which it is trained for",
                f"  error     {fit.mean_error:.4g} on average, {fit.distortion:.4g} at most",
                f"  ranks     correlation {fit.rank_correlation:.3f}",
                f"  outside   {fit.outside:.1%} of pairs are proven wrong by their bounds",
            ]
        return "\n".join(lines)


def evaluate_embedding(
    certificate: Bounds,
    embedding: Embedding | npt.ArrayLike,
    *,
    mdp: TabularMDP | None = None,
    policy: npt.ArrayLike | None = None,
    k: int = 10,
    sample: int = 20_000,
    seed: SeedLike = 0,
    resources: Resources = HERE,
) -> EmbeddingQuality:
    """Compare an embedding with certified bounds on the metric, and on what it is trained for.

    All pairs are measured where there are at most `sample` of them, else so many random ones.
    Neighbours are compared for as many random states as keep the work within 50 distances per
    sampled pair. Memory stays linear in `sample` and the number of states, unless a model is
    given: the distance that the embedding is trained for is then solved for on all pairs.

    Args:
        certificate: A `Certificate` or the `MetricBounds` of an exact metric.
        embedding: An object with `encode`, or one row per state. If it has a method `distance`
            of two index arrays, that is measured instead of Euclidean distances.
        mdp: The model. With it, an embedding that says what it is `trained_for`, as encoders
            do, is compared with that too, at its own `gamma`: "bisimulation", the bisimulation
            metric; "on_policy", that of the chain of a policy; "mico", MICo's distance.
        policy: The policy that gathered what the embedding was trained on, as `evaluate_policy`
            takes it; acting at random by default, as encoders do.
        k: Neighbours per state; all others where there are fewer.
        sample: Number of pairs.
        seed: Seed or generator of the samples.
        resources: Memory that may be used; what is available by default.

    Raises:
        InvalidArgumentError: If the points or distances are not finite, or their number differs
            from that of the states; or if a policy comes without a model.
        MemoryLimitError: If the sample, or a table of all pairs, would not fit.
    """
    check_resources(resources)
    if not hasattr(certificate, "bounds"):
        raise InvalidArgumentError(
            "certificate must have bounds, as a Certificate or MetricBounds has, "
            f"got {type(certificate).__name__}"
        )
    n = certificate.n_states
    if mdp is None and policy is not None:
        raise InvalidArgumentError("policy is of use with a model only: give mdp too")
    if mdp is not None:
        check_mdp(mdp)
        if mdp.n_states != n:
            raise InvalidArgumentError(
                f"mdp must be the model of the certificate, of {n:,} states, got {mdp}"
            )
    sample = check_int("sample", sample, low=1)
    k = min(check_int("k", k, low=1), n - 1)
    n_pairs = min(sample, n * (n - 1) // 2)
    n_queries = min(n, max(1, 50 * sample // n))
    cells = min(n_queries * n, max(n, CHUNK_CELLS))
    resources.check_memory(
        max(PAIR_BYTES * n_pairs, CELL_BYTES * cells),
        what=f"measuring {n_pairs:,} pairs, and neighbours of {n_queries:,} states",
        instead="ask for a smaller sample",
    )
    rng = as_generator(seed)
    points = checked_points(embedding, n)
    learned = getattr(embedding, "distance", None)

    def euclidean(s: IntArray, t: IntArray) -> FloatArray:
        return np.asarray(np.linalg.norm(points[s] - points[t], axis=-1))

    s, t = _pairs(n, sample, rng)
    found = _checked(learned if callable(learned) else euclidean, s, t)
    fit = _fit("bisimulation", found, *certificate.bounds(s, t))
    queries = rng.permutation(n)[:n_queries]
    trained_for = None
    if mdp is not None:
        name = _trained_for(embedding)
        own = None if name is None else _own(name, certificate, embedding, mdp, policy, resources)
        trained_for = None if own is None or name is None else _fit(name, found, *own.bounds(s, t))
    return EmbeddingQuality(
        distortion=fit.distortion,
        mean_error=fit.mean_error,
        recall=_recall(certificate, points, queries, k),
        rank_correlation=fit.rank_correlation,
        outside=fit.outside,
        k=k,
        n_pairs=int(s.size),
        n_queries=int(queries.size),
        is_learned=callable(learned),
        trained_for=trained_for,
    )


def _fit(name: str, found: FloatArray, lower: FloatArray, upper: FloatArray) -> EmbeddingFit:
    """Distances of pairs against their bounds."""
    truth = (lower + upper) / 2.0
    error = np.abs(found - truth)
    slack = ROUNDING * upper
    is_outside = (found < lower - slack) | (found > upper + slack)
    return EmbeddingFit(
        name=name,
        distortion=float(error.max(initial=0.0)),
        mean_error=float(error.mean()) if found.size else 0.0,
        rank_correlation=_rank_correlation(found, truth),
        outside=float(is_outside.mean()) if found.size else 0.0,
    )


def _trained_for(embedding: object) -> str | None:
    """Which distance an embedding is trained for, if it says."""
    name = getattr(embedding, "trained_for", None)
    if name is None or name in DISTANCES:
        return name
    raise InvalidArgumentError(
        f"embedding.trained_for must be one of {', '.join(map(repr, DISTANCES))}, or None, "
        f"got {name!r}"
    )


def _own(
    name: str,
    certificate: Bounds,
    embedding: object,
    mdp: TabularMDP,
    policy: npt.ArrayLike | None,
    resources: Resources,
) -> Bounds:
    """Bounds on the distance that an embedding is trained for, at its own discount."""
    known = getattr(certificate, "gamma", None)
    gamma = getattr(embedding, "gamma", known)
    if gamma is None:
        raise InvalidArgumentError("embedding.gamma must say which discount it is trained for")
    if name == "bisimulation":
        relation = find_relation(getattr(certificate, "relation", "plain"))
        if gamma == known and relation.distance == name:
            return certificate
        return bisimulation_metric(mdp, gamma, resources=resources)
    behaviour = uniform_policy(mdp) if policy is None else policy
    if name == "on_policy":
        return bisimulation_metric(mdp.under_policy(behaviour), gamma, resources=resources)
    return mico_distance(mdp, gamma, behaviour, resources=resources)


def _pairs(n: int, sample: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """All pairs s < t where they are few, else random ones."""
    if n * (n - 1) // 2 <= sample:
        s, t = np.triu_indices(n, 1)
        return s.astype(np.int64), t.astype(np.int64)
    s = rng.integers(n, size=sample)
    return s, (s + rng.integers(1, n, size=sample)) % n


def _checked(measure: Measure, s: IntArray, t: IntArray) -> FloatArray:
    found = np.asarray(measure(s, t), dtype=np.float64)
    if found.shape != s.shape or not np.isfinite(found).all():
        raise InvalidArgumentError(
            f"embedding.distance must return {s.size} finite numbers, got shape {found.shape}"
        )
    return found


def _recall(certificate: Bounds, points: FloatArray, queries: IntArray, k: int) -> float:
    """Share of the k nearest under the metric among the k nearest points, ties as one."""
    n = points.shape[0]
    if k == 0:
        return 1.0
    hits = 0
    everything = np.arange(n)
    for part in np.array_split(queries, -(-queries.size * n // CHUNK_CELLS)):
        lower, upper = certificate.bounds(part[:, None], everything)
        truth = (lower + upper) / 2.0
        embedded = np.zeros_like(truth)
        for column in points.T:  # never an array of three dimensions
            embedded += (column[part, None] - column) ** 2
        at = np.arange(part.size)
        truth[at, part] = embedded[at, part] = np.inf
        nearest = np.argpartition(embedded, k - 1, axis=1)[:, :k]
        radius = np.partition(truth, k - 1, axis=1)[:, k - 1 : k]
        # A returned state is right if fewer than k states are strictly nearer than it is.
        reached = np.take_along_axis(truth, nearest, axis=1)
        hits += int((reached <= radius * (1.0 + 1e-12)).sum())
    return hits / (queries.size * k)


def _rank_correlation(x: FloatArray, y: FloatArray) -> float:
    if x.size < 2:
        return float("nan")
    a, b = _ranks(x), _ranks(y)
    spread = float(a.std() * b.std())
    if spread == 0.0:
        return float("nan")
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread)


def _ranks(values: FloatArray) -> FloatArray:
    """Ranks from 0, equal values sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2.0)[inverse.ravel()])
