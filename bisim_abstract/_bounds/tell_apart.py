"""`make_witnesses`: looks for functions that tell blocks apart where blocks and features do not.

The lower bound of two blocks pays their radii at every step into the future; a function of single
states does not. So for every pair of blocks that is to be told apart, one function is made: the
transport between the blocks' mean rows has a potential, which is extended to all states and
backed up once. The distance that transports read is that of the functions themselves, so they are
found by rounds, first on the blocks as if these were states, which is cheap, then on the states.
What is stopped at need not be a fixed point: what the functions are off by is measured, and counted
(see `Witnesses`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.checks import check_callback, check_gamma, check_int, check_states
from bisim_abstract._base.parallel import map_chunks, spans
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray, Progress, ProgressCallback
from bisim_abstract._bounds.blocks import BlockModel
from bisim_abstract._bounds.features import UP, ValueFeatures, backup_noise
from bisim_abstract._bounds.witnesses import Witnesses
from bisim_abstract._exact.transport import solve_transport
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["make_witnesses"]

SPECK = 1e-9  # mass of a mean row that no potential is bothered with
WIDEST = 64  # largest masses of a mean row that transports are solved for
CELLS = 4_000_000  # costs of transports at a time
STATES = 4096  # per unit of work
FUNCTIONS = 8
SETTLED = 1e-4  # of the largest difference, by which functions on blocks need not move any more
FEWEST, MOST = 60, 400  # rounds on blocks, at most, where gamma is small and where it is large
AGAIN = 16  # rounds on states after which transports are not solved anew
SLOW = 0.2  # of 1 - gamma: the share by which rounds should lower the residual
PATIENCE = 40  # rounds that may fail to


def make_witnesses(
    mdp: TabularMDP,
    gamma: float,
    features: ValueFeatures,
    model: BlockModel,
    first: IntArray,
    second: IntArray,
    *,
    tol: float,
    max_rounds: int = 200,
    resources: Resources = HERE,
    callback: ProgressCallback | None = None,
) -> Witnesses:
    """One function for each pair of blocks, made to differ between their members.

    Args:
        mdp: The model, not one that was estimated from samples.
        gamma: The discount, the one of the features.
        features: Features of this model; their witnesses, if there are any, are not read.
        model: Blocks of the model.
        first: (k) blocks.
        second: (k) other blocks.
        tol: What corrections are to come down to, beyond those of the features.
        max_rounds: Rounds over all states, at most; what they come to is valid in any case.
        resources: Threads and memory. Results do not depend on them.
        callback: Called between rounds.

    Raises:
        InvalidArgumentError: If the model was estimated from samples: witnesses are made for
            radii of rounding at most.
    """
    check_resources(resources)
    check_callback(callback)
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    max_rounds = check_int("max_rounds", max_rounds, low=1)
    if mdp.is_sampled:
        raise InvalidArgumentError(
            "mdp must not be an estimate: witnesses do not know its radii; use its features alone"
        )
    if not isinstance(features, ValueFeatures):
        raise InvalidArgumentError(f"features must be ValueFeatures, got {type(features).__name__}")
    if (features.n_states, features.signs.shape[1]) != mdp.rewards.shape:
        raise InvalidArgumentError(
            f"features must be of the model's {mdp.n_states} states and {mdp.n_actions} actions, "
            f"got {features.n_states} and {features.signs.shape[1]}"
        )
    if not isinstance(model, BlockModel):
        raise InvalidArgumentError(f"model must be a BlockModel, got {type(model).__name__}")
    if (model.labels.size, model.low.shape[1]) != mdp.rewards.shape:
        raise InvalidArgumentError(
            f"model must be of the model's {mdp.n_states} states and {mdp.n_actions} actions, "
            f"got {model.labels.size} and {model.low.shape[1]}"
        )
    one = check_states("first", first, model.n_blocks)
    two = check_states("second", second, model.n_blocks)
    if one.ndim != 1 or one.size == 0 or one.shape != two.shape or (one == two).any():
        raise InvalidArgumentError("first and second must name pairs of different blocks, some")
    count, known = one.size, features.values.shape[0]
    resources.check_memory(
        # Functions of this round, the next and the best one, all of them together, and distances.
        8 * (4 * count + known + model.n_blocks) * mdp.n_states,
        what=f"{count:,} witnesses of {mdp.n_states:,} states",
        instead="ask for fewer of them",
    )
    search = _Search(mdp, gamma, model, one, two, resources.n_threads)
    states = _representatives(mdp, gamma, model, search.rows, resources.n_threads)
    blocks = _Space(
        known=np.ascontiguousarray(features.values[:, states]),
        rows=search.rows,
        rewards=search.rewards,
        middle=np.arange(model.n_blocks),
    )
    values = np.zeros((count, model.n_blocks))
    for _ in range(int(np.clip(4.0 / (1.0 - gamma), FEWEST, MOST))):
        found = search.solved(search.gaps(blocks, values))
        fresh = search.backed_up(blocks, values, found)
        moved, values = fresh.moved(values), fresh.values
        if callback is not None:
            callback(Progress("witnesses", 0, None, f"on blocks, moved {float(moved.max()):.2g}"))
        if float(moved.max()) <= SETTLED * float(np.ptp(values, axis=1).max()):
            break
    everyone = _Space(
        known=features.values,
        rows=(mdp.indptr, mdp.indices, mdp.normalised_probs),
        rewards=mdp.rewards,
        middle=states,
    )
    values = values[:, model.labels]
    best, least, patience = (values, found, np.full(count, np.inf)), np.inf, PATIENCE
    for k in range(max_rounds):
        if k < AGAIN:  # what the blocks promise is not quite what their states keep
            found = search.solved(search.gaps(everyone, values))
        fresh = search.backed_up(everyone, values, found)
        missing = _missing(mdp, gamma, values, found, fresh)
        error = float(missing.max()) / (1.0 - gamma)
        if callback is not None:
            callback(Progress("witnesses", k + 1, None, f"correction {error:.2g}"))
        patience -= 1
        if error < (1.0 - SLOW * (1.0 - gamma)) * least or k <= AGAIN:
            patience = PATIENCE
        if error < least:
            best, least = (values, found, missing), error
        if error <= tol or patience == 0:
            break
        values = fresh.values
    values, found, missing = best
    return Witnesses(
        values=values,
        actions=found.actions,
        signs=found.signs,
        support=states[found.support],
        potential=found.potential,
        corrections=_corrections(missing, gamma, float(features.corrections.max())),
    )


@dataclass(frozen=True)
class _Space:
    """What functions live on: the states, or the blocks as if each were a state.

    Attributes:
        known: (k, points) value features.
        rows: Boundaries, successors and masses of the rows of all points and actions.
        rewards: (points, actions).
        middle: (blocks) the point that stands for each block.
    """

    known: FloatArray
    rows: tuple[IntArray, IntArray, FloatArray]
    rewards: FloatArray
    middle: IntArray


@dataclass(frozen=True)
class _Potentials:
    """What functions are backed up from: fields as in `Witnesses`, the support by block."""

    actions: IntArray
    signs: IntArray
    support: IntArray
    potential: FloatArray


@dataclass(frozen=True)
class _Backup:
    """One backup of all functions.

    Attributes:
        values: (k, points) the backups.
        reach: Largest distance that was read.
        largest: (k) largest extended potential.
    """

    values: FloatArray
    reach: float
    largest: FloatArray

    def moved(self, values: FloatArray) -> FloatArray:
        """(k) span of the difference to values; constants do not count."""
        span = np.empty(values.shape[0])
        for k, (after, before) in enumerate(zip(self.values, values, strict=True)):
            span[k] = np.ptp(after - before)
        return span


class _Search:
    """Transports between pairs of blocks, and functions made from their potentials."""

    def __init__(
        self,
        mdp: TabularMDP,
        gamma: float,
        model: BlockModel,
        first: IntArray,
        second: IntArray,
        threads: int,
    ) -> None:
        self._gamma, self._first, self._second, self._threads = gamma, first, second, threads
        self.rows = _mean_rows(mdp, model)
        self._columns, self._masses = _padded(self.rows, mdp.n_actions)
        self.rewards = (model.low + model.high) / 2.0

    def gaps(self, space: _Space, values: FloatArray) -> FloatArray:
        """(blocks, blocks) distances of the points that stand for blocks."""
        some = np.vstack([space.known[:, space.middle], values[:, space.middle]])
        return self._away(some, np.arange(space.middle.size))

    def solved(self, gaps: FloatArray) -> _Potentials:
        """For each pair the action that tells it apart best, and the potential of its transport.

        With optimal potentials u_i + v_j <= cost_ij, the extension of -v from the second row's
        successors is at least u on those of the first and at most -v on its own: it differs by
        the cost of the transport between both rows, and the sign adds the rewards' difference.
        """
        count, (n_actions, width) = self._first.size, self._columns.shape[1:]
        actions, signs = np.empty(count, np.int64), np.empty(count, np.int64)
        support, potential = np.empty((count, width), np.int64), np.empty((count, width))
        resources = Resources(threads=self._threads)
        for begin, end in spans(count, 1 + CELLS // (n_actions * width * width)):
            one, two = self._first[begin:end], self._second[begin:end]
            x, y = self._columns[one], self._columns[two]
            plans = solve_transport(
                gaps[x[..., :, None], y[..., None, :]],
                self._masses[one],
                self._masses[two],
                resources=resources,
            )
            gap = self.rewards[one] - self.rewards[two]
            best = (np.abs(gap) + self._gamma * plans.value).argmax(axis=1)
            at = np.arange(end - begin), best
            actions[begin:end], support[begin:end] = best, y[at]
            signs[begin:end] = np.where(gap[at] >= 0.0, 1, -1)
            v = plans.v[at]
            potential[begin:end] = v.max(axis=1, keepdims=True) - v  # constants are free
        return _Potentials(actions, signs, support, potential)

    def backed_up(self, space: _Space, values: FloatArray, found: _Potentials) -> _Backup:
        """The backup of every function under the distance of all of them."""
        from bisim_abstract._kernels.features import witness_kernel

        used, rank = np.unique(found.support, return_inverse=True)
        rank = rank.reshape(found.support.shape).astype(np.int64)
        away = self._away(np.vstack([space.known, values]), space.middle[used])
        rewards = space.rewards
        middle = rewards.min(axis=0) / 2.0 + rewards.max(axis=0) / 2.0
        offsets = found.signs * middle[found.actions]
        # In one layout, whatever that of the values is: kernels are compiled for each.
        out, largest = np.empty(values.shape), np.empty(values.shape[0])

        def part(begin: int, end: int) -> None:
            witness_kernel(
                begin,
                end,
                found.actions,
                found.signs,
                offsets,
                rank,
                found.potential,
                away,
                *space.rows,
                rewards,
                self._gamma,
                out,
                largest,
            )

        map_chunks(part, values.shape[0], threads=self._threads, chunk=FUNCTIONS)
        return _Backup(out, float(away.max()), largest)

    def _away(self, values: FloatArray, points: IntArray) -> FloatArray:
        """(points, all) the largest difference of a function, without any correction."""
        from bisim_abstract._kernels.features import distance_kernel

        here = np.ascontiguousarray(values[:, points].T)
        out = np.empty((points.size, values.shape[1]))

        def part(begin: int, end: int) -> None:
            distance_kernel(begin, end, values, here, out)

        map_chunks(part, values.shape[1], threads=self._threads, chunk=STATES)
        return out


def _missing(
    mdp: TabularMDP, gamma: float, values: FloatArray, found: _Potentials, fresh: _Backup
) -> FloatArray:
    """(k) bounds on the spans of what exact backups differ by from the values.

    The exact extension differs from the one computed by a rounding of the distance and one of
    the sum, for every state of the support: at most 2·EPS·(potential + distance). The minimum
    over them keeps that, and so do rows; after that it is a backup like any other. Rewards within a
    radius r and rows within t of those stored move a backup of u by r + γ·t·span(u) at most, where
    span(u) <= 2·max|u|.
    """
    low, high = mdp.rewards.min(axis=0), mdp.rewards.max(axis=0)
    middle = low / 2.0 + high / 2.0
    size = np.maximum(np.abs(low - middle), np.abs(high - middle))[found.actions]
    most = np.maximum(fresh.largest, np.abs(values).max(axis=1))
    wobble = 2.0 * EPS * (np.abs(found.potential).max(axis=1) + fresh.reach) * (1.0 + 1e-6)
    noise = backup_noise(mdp.max_support, size, most) + wobble
    if mdp.estimate is not None:
        rewards = mdp.estimate.reward_radius.max(axis=0)[found.actions]
        rows = mdp.estimate.row_radius.max(axis=0)[found.actions]
        noise += (rewards + 2.0 * gamma * rows * (fresh.largest + wobble)) * UP
    return np.asarray((fresh.moved(values) + 2.0 * noise) * UP)


def _corrections(missing: FloatArray, gamma: float, known: float) -> FloatArray:
    """(k) corrections that are enough for residuals of these spans, with features off by `known`.

    With E = max(known, max(missing)/(1 - γ)), correction_j = missing_j + γ·E: none is above E, as
    missing_j <= (1 - γ)·E, so that γ times the largest of all corrections is at most γ·E. The
    factor on E makes room for the rounding of these sums, of a few EPS each.
    """
    slack = 1.0 + 64.0 * EPS + 64.0 * EPS / (1.0 - gamma)
    most = max(known, float(missing.max()) / (1.0 - gamma)) * slack
    return (missing + gamma * most) * UP


def _mean_rows(mdp: TabularMDP, model: BlockModel) -> tuple[IntArray, IntArray, FloatArray]:
    """Rows of blocks and actions: the mean of the members' rows, summed by block.

    Not the centres: these leave out what few members send somewhere, where potentials would then
    not be held down.
    """
    from scipy.sparse import csr_array

    n_actions, n_blocks = mdp.n_actions, model.n_blocks
    rows = np.repeat(np.arange(mdp.indptr.size - 1), np.diff(mdp.indptr))
    owner = model.labels[rows // n_actions]
    masses = mdp.normalised_probs / model.sizes[owner]
    at = owner * n_actions + rows % n_actions, model.labels[mdp.indices]
    mean = csr_array((masses, at), shape=(n_blocks * n_actions, n_blocks))
    mean.sum_duplicates()
    return mean.indptr.astype(np.int64), mean.indices.astype(np.int64), mean.data


def _representatives(
    mdp: TabularMDP,
    gamma: float,
    model: BlockModel,
    rows: tuple[IntArray, IntArray, FloatArray],
    threads: int,
) -> IntArray:
    """(blocks) the member of each block whose rewards and rows are nearest to their means."""
    from bisim_abstract._kernels.refine import fit_kernel

    mean = np.stack([np.bincount(model.labels, line) for line in mdp.rewards.T], axis=1)
    weight = gamma * float(np.ptp(mdp.rewards, axis=0).max())
    away = np.empty((mdp.n_states, 1))

    def part(begin: int, end: int) -> None:
        fit_kernel(
            begin,
            end,
            np.arange(mdp.n_states),
            model.labels[:, None],
            mdp.n_actions,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            mdp.rewards,
            model.labels,
            model.n_blocks,
            mdp.max_support,
            mean / model.sizes[:, None],
            *rows,
            weight,
            away,
        )

    map_chunks(part, mdp.n_states, threads=threads, chunk=max(STATES, mdp.n_states // 16))
    order = np.lexsort((away[:, 0], model.labels))
    return np.asarray(order[np.cumsum(model.sizes) - model.sizes], np.int64)


def _padded(
    rows: tuple[IntArray, IntArray, FloatArray], n_actions: int
) -> tuple[IntArray, FloatArray]:
    """Rows without what hardly counts, made equally long by entries without mass.

    Returns:
        (blocks, actions, width) successors, and their masses.
    """
    indptr, indices, masses = rows
    count = indptr.size - 1
    owner = np.repeat(np.arange(count), np.diff(indptr))
    order = np.lexsort((-masses, owner))
    rank = np.arange(order.size) - indptr[owner]  # within its row, by mass
    use = (rank == 0) | ((masses[order] >= SPECK) & (rank < WIDEST))
    order, rank, owner = order[use], rank[use], owner[use]
    width = int(rank.max()) + 1
    columns, out = np.empty((count, width), np.int64), np.zeros((count, width))
    columns[:] = indices[order[rank == 0]][:, None]
    columns[owner, rank], out[owner, rank] = indices[order], masses[order]
    shape = (count // n_actions, n_actions, width)
    return columns.reshape(shape), out.reshape(shape)
