"""The small random models that the bound experiments share, with everything known of them.

One run is a model whose metric is known exactly, its embedding, an index over it, and the pairs
that the index covers. The paper's grid has 8 configurations and 10 seeds: |S| in {10, 18}, k' in
{3, 6}, 2 or 6 hyperplanes, three actions, gamma = 0.7, rewards that span [0, 1], scaling into R^6.

What the checks tolerate is measured, never chosen. The metric is enclosed between two tables
`gap` apart (near 1e-13). A backup is rounded outward; making it both ways shows by how much at
most, and `slack / (1 - gamma)` is what such errors add up to over any number of sweeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bisim_abstract import (
    Certificate,
    Covering,
    MetricBounds,
    TabularMDP,
    bisimulation_metric,
    certify,
)
from bisim_abstract.parts import (
    distortion,
    landmark_mds,
    random_mdp,
    recall_miss,
    retrieve_neighbours,
    single_build,
)
from paper.engine import ONE_THREAD, Options, Row
from paper.inside import Arms, BoolArray, FloatArray, IntArray, as_points

GAMMA = 0.7
N_ACTIONS = 3
DIM = 6
SIZES = (10, 18)
BUDGETS = (3, 6)
PLANES = (2, 6)
SEEDS = 10
SWEEPS = 1000  # at most; they end when nothing moves
METRIC_TOL = 1e-12  # the default would leave gaps of 1e-9; rounding allows 1e-13

Pairs = tuple[IntArray, IntArray]


@dataclass(frozen=True, eq=False)
class World:
    """A model and its exact metric.

    Attributes:
        mdp: The model.
        metric: Certified tables of its metric.
        truth: (n, n) the middle of the two tables, off by at most half their gap.
        rewards: (n, n) d_R, the largest reward difference over actions.
        mean_rewards: (n, n) the mean difference instead, which is not the paper's d_R.
    """

    mdp: TabularMDP
    metric: MetricBounds
    truth: FloatArray
    rewards: FloatArray
    mean_rewards: FloatArray

    @property
    def n(self) -> int:
        """Number of states."""
        return self.mdp.n_states

    @property
    def ceiling(self) -> float:
        """U = L/(1 - gamma), with L the largest span of one action's rewards, at most 1."""
        return float(np.ptp(self.mdp.rewards, axis=0).max()) / (1.0 - GAMMA)

    def start(self, name: str) -> FloatArray:
        """(n, n) the lower start, "zero" or "reward", in plain arithmetic."""
        return self.rewards if name == "reward" else np.zeros((self.n, self.n))

    def error(self, values: FloatArray, pairs: Pairs | None = None) -> float:
        """The largest distance of some values of pairs, or of all, from the metric."""
        truth = self.truth[all_pairs(self.n) if pairs is None else pairs]
        return float(np.abs(truth - values).max())


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the grid.

    Attributes:
        world: The model and its metric.
        k: Neighbours asked for per state.
        planes: Hyperplanes of the index.
        key: What all its randomness is drawn from.
        points: (n, DIM) embedding of the exact metric.
        neighbours: (n, k) states that the index returned for each state.
        eta: Distortion of the embedding.
        recall: Share of a state's own k nearest that the index did not return for it.
        pair_recall: The same if a neighbour also counts that was found from the other side.
    """

    world: World
    k: int
    planes: int
    key: int
    points: FloatArray
    neighbours: IntArray
    eta: float
    recall: float
    pair_recall: float

    @property
    def configuration(self) -> tuple[int, int, int]:
        """Number of states, of neighbours and of hyperplanes."""
        return self.world.n, self.k, self.planes

    @property
    def index(self) -> str:
        """The index as FAISS names it."""
        return f"LSH{self.planes}"

    @property
    def pairs(self) -> Pairs:
        """The covered pairs, each once."""
        return unordered(self.neighbours)


def make_world(n: int, key: Sequence[int]) -> World:
    """A random model of the audit and its metric."""
    mdp = random_mdp(n, N_ACTIONS, seed=np.random.default_rng(key))
    metric = bisimulation_metric(mdp, GAMMA, tol=METRIC_TOL, resources=ONE_THREAD)
    differences = np.abs(mdp.rewards[:, None] - mdp.rewards)
    truth = (metric.lower + metric.upper) / 2.0
    return World(mdp, metric, truth, differences.max(axis=2), differences.mean(axis=2))


def make_run(n: int, k: int, planes: int, seed: int, base: int) -> Run:
    """One run: every configuration and seed has a model of its own, as in the paper."""
    world = make_world(n, [base, seed, n, k, planes])
    key = int(np.random.default_rng([base, seed, n, k, planes, 1]).integers(2**31))
    points = embed(world.truth, key)
    # As `single_build` gives them to the index and seeds it, so that both cover the same pairs.
    rng = np.random.default_rng([key, 0])
    found = retrieve_neighbours(as_points(points, n), k=k, index=f"LSH{planes}", seed=rng)
    recalls = recall_miss(points, found, k), recall_miss(points, unordered(found), k)
    return Run(world, k, planes, key, points, found, distortion_of(points, world), *recalls)


def grid(options: Options) -> Iterator[Run]:
    """All runs, configuration by configuration, in the order of the paper's table."""
    for configuration in product(SIZES, BUDGETS, PLANES):
        for seed in range(options.pick(1, SEEDS)):
            yield make_run(*configuration, seed, options.seed)


def embed(table: FloatArray, seed: int | list[int]) -> FloatArray:
    """Landmark scaling of a table, as the pipeline makes it."""
    rng = np.random.default_rng(seed)
    return landmark_mds(lambda s, t: table[s, t], len(table), dim=DIM, seed=rng)


def distortion_of(points: FloatArray, world: World) -> float:
    """Against the exact metric."""
    return distortion(points, lambda s, t: world.truth[s, t], world.n)


def unordered(neighbours: IntArray) -> Pairs:
    """The pairs of all lists, each once, sorted."""
    n, k = neighbours.shape
    s, t = np.repeat(np.arange(n), k), neighbours.ravel()
    s, t = s[t >= 0], t[t >= 0]
    first, second = np.divmod(np.unique(np.minimum(s, t) * n + np.maximum(s, t)), n)
    return first, second


def make_arms(world: World, pairs: Pairs, *, lower_start: str = "zero") -> Arms:
    """Arms over given pairs, at their starts; those of the paper's audit by default."""
    starts: Row = {"lower_start": lower_start, "upper_start": "constant"}
    arms = Arms(world.mdp, GAMMA, **starts, resources=ONE_THREAD)
    arms.cover(*pairs)
    return arms


def all_pairs(n: int) -> Pairs:
    """Every pair of states once."""
    first, second = np.triu_indices(n, 1)
    return first.astype(np.int64), second.astype(np.int64)


def uncovered(n: int, pairs: Pairs) -> BoolArray:
    """(n, n) pairs s < t that are not covered."""
    left = np.triu(np.ones((n, n), bool), 1)
    left[pairs] = False
    return left


def coverage_gap(world: World, pairs: Pairs, start: str) -> float:
    """rho: the largest distance between metric and lower start over uncovered pairs."""
    left = uncovered(world.n, pairs)
    return float((world.truth - world.start(start))[left].max(initial=0.0))


def upper_gap(world: World, pairs: Pairs) -> float:
    """rho_up: the largest distance between the constant U and the metric there."""
    left = uncovered(world.n, pairs)
    return float((world.ceiling - world.truth[left]).max(initial=0.0))


def slack(arms: Arms, *, is_upper: bool) -> float:
    """How far a backup of one arm is from the exact operator at most, as rounded now."""
    values = arms.ground_costs(is_upper=is_upper)
    above, below = arms.backup(values, is_upper=True), arms.backup(values, is_upper=False)
    return float((above - below).max(initial=0.0))


def tolerance(world: World, arms: Arms) -> float:
    """What rounding can add to an error of either arm at its fixed point, and of the truth."""
    most = max(slack(arms, is_upper=False), slack(arms, is_upper=True))
    return most / (1.0 - GAMMA) + 2.0 * world.metric.gap + start_rounding(arms)


def start_rounding(arms: Arms) -> float:
    """How far start values, and their differences, are from plain arithmetic at most.

    `Starts` raises D by 16·EPS·(1 + 1/(1 - gamma)) relative to it, so that it stays a bound; the
    other roundings (of L, of d_R, of a division and of subtractions) are a few EPS each.
    """
    return (16.0 * (1.0 + 1.0 / (1.0 - GAMMA)) + 16.0) * 2.0**-53 * arms.starts.diameter


def encloses(world: World, lower: FloatArray, upper: FloatArray) -> bool:
    """Whether bounds on all pairs s < t enclose the metric; no tolerance is needed."""
    below, above = world.metric.bounds(*all_pairs(world.n))
    return bool((lower <= above).all() and (upper >= below).all() and (lower <= upper).all())


def build(
    world: World, *, start: str, k: int, index: str, key: int, **settings: Any
) -> Certificate:
    """A single build of the paper, swept to its fixed point unless said otherwise."""
    settings = {"sweeps": SWEEPS, "lower_start": start, "resources": ONE_THREAD, **settings}
    return single_build(world.mdp, GAMMA, neighbours=k, index=index, seed=key, **settings)


def by_rounds(mdp: TabularMDP, rounds: int, *, seed: int, **covering: Any) -> Iterator[Certificate]:
    """Certificates of the paper's Algorithm 1 after 1, 2, ... rounds.

    Each call goes on from the checkpoint of the one before, by a single round.
    """
    method = Covering(dim=DIM, upper_start="constant", **covering)
    with TemporaryDirectory() as folder:
        settings: Row = {"checkpoint": Path(folder) / "rounds", "resources": ONE_THREAD}
        for made in range(1, rounds + 1):
            yield certify(mdp, GAMMA, method=method, max_rounds=made, seed=seed, **settings)


def covered_by(certificate: Certificate) -> Pairs:
    """The pairs that a certificate covers."""
    first, second = np.divmod(certificate.keys, certificate.n_states)
    return first, second
