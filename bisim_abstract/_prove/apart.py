"""Keeping many blocks apart without covering all their pairs.

Rewards and features keep most pairs of blocks apart as far as is needed. Only the others are
covered. A backup of such a pair reads the distances of the blocks that both lead to, for which
rewards are all that a level knows unless they are covered too. So for pairs that stay too close,
the pair that the most promising action leads to is covered in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.boxes import Boxes

ROUNDS = 12  # of looking one step further
BROAD = 100  # pairs covered for each open one, up to which all that it reads is covered too
SAMPLE = 200_000  # pairs by which the others are judged


def likely_limit(boxes: Boxes, n_pairs: int, seed: int) -> float:
    """A distance that boxes leave open for about so many pairs of blocks."""
    rng = np.random.default_rng([seed, 2])
    first = rng.integers(boxes.count, size=SAMPLE)
    second = (first + rng.integers(1, boxes.count, size=SAMPLE)) % boxes.count
    share = 2.0 * n_pairs / (boxes.count * (boxes.count - 1))
    return float(np.quantile(boxes.pairs(first, second), min(share, 1.0)))


def raise_lower(
    arms: Arms, boxes: Boxes, limit: float, *, most: int, swept: Callable[[int, float], None]
) -> None:
    """Sweep the lower arm, and cover more of what it reads, until no covered pair is too close.

    Args:
        arms: Over blocks; all pairs are covered that boxes leave open.
        boxes: Rewards and features of the blocks.
        limit: How far apart pairs should be.
        most: Pairs that may be covered.
        swept: Called after each sweep, with its number and how far bounds moved.
    """
    model = arms.model
    heaviest = _heaviest(model.indptr, model.indices, model.probs).reshape(arms.n, -1)
    known = ends = np.empty(0, np.int64)  # open pairs, and how far their paths were followed
    depth = 0
    for sweep in range(1, 2 * ROUNDS + 1):
        moved, _ = arms.sweep(upper=False)
        swept(sweep, moved)
        first, second = _open_pairs(arms, boxes, limit)
        if first.size == 0:
            return
        if sweep % 2:
            continue  # what was covered last has been swept once only
        keys = first * arms.n + second
        if first.size * BROAD <= arms.n_covered:
            # Few are left: all that they read, and what that reads, round by round.
            depth += 1
            one, two = np.divmod(_all_ahead(arms, keys, depth), arms.n)
        else:
            at, is_known = _found_in(known, keys)
            at_end = np.where(is_known, ends[at], keys) if known.size else keys
            one, two = _leads_to(arms, boxes, heaviest, *np.divmod(at_end, arms.n))
            known, ends = keys, one * arms.n + two
            # A path that was of no use is followed further, and the others are begun as well.
            others = [heaviest[x[is_known]].ravel() for x in (first, second)]
            one, two = np.concatenate([one, others[0]]), np.concatenate([two, others[1]])
        if arms.n_covered + one.size > most or arms.cover(one, two) == 0:
            return


def _open_pairs(arms: Arms, boxes: Boxes, limit: float) -> tuple[IntArray, IntArray]:
    """Covered pairs of different blocks that nothing keeps apart by the limit."""
    first, second = arms.pairs()
    at = np.flatnonzero((first != second) & (arms.lower < limit))
    first, second = first[at], second[at]
    is_open = boxes.pairs(first, second) < limit
    return first[is_open], second[is_open]


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
        keys = np.setdiff1d(_ahead(arms, keys), seen)
        seen = np.union1d(seen, keys)
    return seen


def _ahead(arms: Arms, keys: IntArray) -> IntArray:
    """Keys of all pairs of different blocks that backups of pairs read."""
    model = arms.model
    first, second = np.divmod(keys, arms.n)
    found = [np.empty(0, np.int64)]
    for a in range(model.n_actions):
        row, other = first * model.n_actions + a, second * model.n_actions + a
        width, height = (np.diff(model.indptr)[x] for x in (row, other))
        total = width * height
        place = np.arange(int(total.sum())) - np.repeat(np.cumsum(total) - total, total)
        down, across = np.divmod(place, np.repeat(height, total))
        one = model.indices[np.repeat(model.indptr[row], total) + down]
        two = model.indices[np.repeat(model.indptr[other], total) + across]
        use = one != two
        found.append(np.unique((np.minimum(one, two) * arms.n + np.maximum(one, two))[use]))
    return np.unique(np.concatenate(found))


def _leads_to(
    arms: Arms, boxes: Boxes, heaviest: IntArray, first: IntArray, second: IntArray
) -> tuple[IntArray, IntArray]:
    """Where pairs of blocks go most likely, by the action that promises the largest distance."""
    low, high = arms.model.low, arms.model.high
    best, one, two = np.full(first.size, -1.0), first.copy(), second.copy()
    for a in range(arms.model.n_actions):
        to, too = heaviest[first, a], heaviest[second, a]
        gap = np.maximum(low[first, a] - high[second, a], low[second, a] - high[first, a])
        value = np.maximum(gap, 0.0) + arms.gamma * np.where(to != too, boxes.pairs(to, too), 0.0)
        is_better = value > best
        best[is_better] = value[is_better]
        one[is_better], two[is_better] = to[is_better], too[is_better]
    return np.minimum(one, two), np.maximum(one, two)


def _heaviest(indptr: IntArray, indices: IntArray, probs: FloatArray) -> IntArray:
    """(rows) the block that each row leads to with the largest probability."""
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    order = np.lexsort((probs, rows))  # no row is empty: its last entry is the heaviest
    return np.asarray(indices[order][indptr[1:] - 1])
