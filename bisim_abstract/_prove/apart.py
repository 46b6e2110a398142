"""Keeping many blocks apart without covering all their pairs.

Rewards and features keep most pairs of blocks apart as far as is needed. Only the others are
covered. A backup of such a pair reads the distances of the blocks that both lead to, for which
rewards are all that a level knows unless they are covered too. So for pairs that stay too close,
the pair that the most promising action leads to is covered in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby  # FIX

import numpy as np

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.boxes import Boxes
from bisim_abstract._bounds.pair_table import PairTable

ROUNDS = 12  # of looking one step further
SWEEPS = 2  # of each
BROAD = 100  # pairs covered for each open one, up to which all that it reads is covered too
SLOW = 0.8  # of the open pairs are still open: paths are of little use
SAMPLE = 200_000  # pairs by which the others are judged


def likely_limit(boxes: Boxes, n_pairs: int, seed: int) -> float:
    """A distance that boxes leave open for about so many pairs of blocks."""
    rng = np.random.default_rng([seed, 2])
    first = rng.integers(boxes.count, size=SAMPLE)
    second = (first + rng.integers(1, boxes.count, size=SAMPLE)) % boxes.count
    share = 2.0 * n_pairs / (boxes.count * (boxes.count - 1))
    return float(np.quantile(boxes.pairs(first, second), min(share, 1.0)))


def raise_lower(
    arms: Arms,
    boxes: Boxes,
    limit: float,
    first: IntArray,
    second: IntArray,
    *,
    most: int,
    swept: Callable[[int, float], None],
) -> None:
    """Raise the lower bounds of pairs of blocks, and cover them, until they are far enough apart.

    Each round has arms of its own, over the pairs that are still too close and what these lead
    to; pairs that are settled are not swept again. Their tables start from what was found before.
    Let M be the largest of all bounds found, pair by pair. Every one of them is a start value, or
    a backup of bounds that are at most M; as backups are monotone, it is at most the backup of M.
    So M is a sub-solution, and all of it goes into `arms`.

    Args:
        arms: Over blocks.
        boxes: Rewards and features of the blocks.
        limit: How far apart pairs should be.
        first: Pairs that boxes leave open.
        second: Their other blocks.
        most: Pairs that may be covered.
        swept: Called after each sweep, with its number and how far bounds moved.
    """
    model = arms.model
    heaviest = _heaviest(model.indptr, model.indices, model.probs).reshape(arms.n, -1)
    found = PairTable.empty(arms.n)
    keys = np.unique(np.minimum(first, second) * arms.n + np.maximum(first, second))
    known = ends = np.empty(0, np.int64)  # open pairs, and how far their paths were followed
    ahead = keys
    depth = 0
    for number in range(1, ROUNDS + 1):
        found = found.raised_by(_swept(arms, found, ahead, number, swept))
        at, _ = found.find(*np.divmod(keys, arms.n))
        before, keys = keys.size, keys[found.lower[at] < limit]
        if keys.size == 0 or found.size > most:
            break
        is_slow = number > 1 and keys.size > SLOW * before
        if keys.size * BROAD <= found.size or is_slow:
            # Few are left, or paths are of little use: all that they read, and what that reads,
            # round by round.
            depth += 1
            ahead = _all_ahead(arms, keys, depth)
            continue
        at, is_known = _found_in(known, keys)
        at_end = np.where(is_known, ends[at], keys) if known.size else keys
        ahead = _leads_to(arms, boxes, heaviest, at_end)
        known, ends = keys, ahead
        # A path that was of no use is followed further, and the others are begun as well.
        one, two = (heaviest[x].ravel() for x in np.divmod(keys[is_known], arms.n))
        use = one != two
        others = (np.minimum(one, two) * arms.n + np.maximum(one, two))[use]
        ahead = np.unique(np.concatenate([keys, ahead, others]))
    arms.cover(*found.pairs())
    at, is_found = found.find(*arms.pairs())
    lower = np.where(is_found, found.lower[at], 0.0)
    arms.tighten(lower, np.full(lower.size, np.inf))


def _swept(
    arms: Arms,
    found: PairTable,
    keys: IntArray,
    number: int,
    swept: Callable[[int, float], None],
) -> PairTable:
    """Bounds of pairs, from what was found before and by a few sweeps of the lower arm."""
    own = Arms(
        arms.mdp,
        arms.gamma,
        model=arms.model,
        relation=arms.relation,
        resources=arms.resources,
    )
    own.cover(*np.divmod(keys, arms.n))
    if found.size:
        at, is_found = found.find(*own.pairs())
        own.tighten(np.where(is_found, found.lower[at], 0.0), np.full(at.size, np.inf))
    for sweep in range(SWEEPS if found.size else 1):  # at first, there is nothing but rewards
        moved, _ = own.sweep(upper=False)
        arms.backups += own.n_covered
        swept(SWEEPS * (number - 1) + sweep + 1, moved)
    return own.covered


def _found_in(sorted_keys: IntArray, keys: IntArray) -> tuple[IntArray, BoolArray]:
    """Where keys are among sorted ones, and which of them are."""
    if sorted_keys.size == 0:
        return np.zeros(keys.size, np.int64), np.zeros(keys.size, bool)
    at = np.minimum(np.searchsorted(sorted_keys, keys), sorted_keys.size - 1)
    return at, sorted_keys[at] == keys


def _all_ahead(arms: Arms, keys: IntArray, depth: int) -> IntArray:
    """Keys of all pairs of different blocks that so many backups of pairs read."""
    seen = keys
    for _ in range(depth):
        keys = np.setdiff1d(pairs_ahead(arms, keys), seen)
        seen = np.union1d(seen, keys)
    return seen


def pairs_ahead(arms: Arms, keys: IntArray) -> IntArray:
    """Keys of all pairs of different blocks that backups of pairs read."""
    model = arms.model
    first, second = np.divmod(keys, arms.n)
    found = [np.empty(0, np.int64)]
    for a, b in compared_actions(arms):
        row, other = first * model.n_actions + a, second * model.n_actions + b
        width, height = (np.diff(model.indptr)[x] for x in (row, other))
        total = width * height
        place = np.arange(int(total.sum())) - np.repeat(np.cumsum(total) - total, total)
        down, across = np.divmod(place, np.repeat(height, total))
        one = model.indices[np.repeat(model.indptr[row], total) + down]
        two = model.indices[np.repeat(model.indptr[other], total) + across]
        use = one != two
        found.append(np.unique((np.minimum(one, two) * arms.n + np.maximum(one, two))[use]))
    return np.unique(np.concatenate(found))


def compared_actions(arms: Arms) -> list[tuple[int, int]]:
    """Actions of both blocks of a pair that backups compare: by name, or each with each."""
    actions = range(arms.model.n_actions)
    return arms.relation.compared(actions, actions)


def _leads_to(arms: Arms, boxes: Boxes, heaviest: IntArray, keys: IntArray) -> IntArray:
    """Where pairs of blocks go most likely, by the action that promises the largest distance."""
    first, second = np.divmod(keys, arms.n)
    low, high = arms.model.low, arms.model.high
    best, one, two = np.full(first.size, -1.0), first.copy(), second.copy()
    for a, others in groupby(compared_actions(arms), key=lambda pair: pair[0]):
        # Of what an action may be compared with, the nearest counts.
        least, near, far = np.full(first.size, np.inf), first.copy(), second.copy()
        for _, b in others:
            to, too = heaviest[first, a], heaviest[second, b]
            gap = np.maximum(low[first, a] - high[second, b], low[second, b] - high[first, a])
            ahead = np.where(to != too, boxes.pairs(to, too), 0.0)
            value = np.maximum(gap, 0.0) + arms.gamma * ahead
            is_nearer = value < least
            least[is_nearer] = value[is_nearer]
            near[is_nearer], far[is_nearer] = to[is_nearer], too[is_nearer]
        is_better = least > best
        best[is_better] = least[is_better]
        one[is_better], two[is_better] = near[is_better], far[is_better]
    return np.minimum(one, two) * arms.n + np.maximum(one, two)


def _heaviest(indptr: IntArray, indices: IntArray, probs: FloatArray) -> IntArray:
    """(rows) the block that each row leads to with the largest probability."""
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    order = np.lexsort((probs, rows))  # no row is empty: its last entry is the heaviest
    return np.asarray(indices[order][indptr[1:] - 1])
