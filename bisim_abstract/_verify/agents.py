"""The verifier's check of what agents over clusters end with: boxes, and sets of actions.

An agent sees clusters C and names b. What a pair (C, b) stands for are rows (x, a) of members: all
their own actions that are called b. Where names are those of actions, and a member lacks one that
others have, its first action counts, which is what it does when it is told to do b.

*Who solves the small environment* has values q* = Rbar + γ Pbar max q* of the mean over members,
each by its mean over the rows that (C, b) stands for; of an estimate, of its stored rows. Backups
are monotone and contract, so that q_upper >= Rbar + γ Pbar v⁺ with v⁺ = max over used names of
q_upper is enough for q_upper >= q*; mirrored below.

*Who learns on real steps* averages over members with any weights, which may change: the most, or
the least, over the rows that (C, b) stands for takes the place of the mean, radii included. What is
learned ends between such bounds.

Greedy actions then lie in G(C) = {b : q_upper(C, b) >= max q_lower(C, ·)}, those of values that are
wrong by m at most in the same set with 2m less on the right. These comparisons are exact. A
function that is at most its backup at every row that G stands for bounds all policies inside G.

*Who learns values that converge* ends with v in [v⁻, v⁺] on clusters, for some fixed weights. With
mid and h a centre and a half-width, B = R + γP(mid∘c) and P̄ the rows summed by clusters,

    q(C, b) <= max over rows y of (C, b) of [B_y + γ P̄_y(v - mid)],

so that q(C, b) - [R + γPv] at a row x of (C, b) is at most the largest of

    B_y - B_x + γ |P̄_y - P̄_x|·h,

and so is an excess E >= σ + γPE above what the policy loses against v⁻, σ being a bound on that at
all rows that remain. An action may go if some other is surely better whatever the weights of
either. Two bounds on sums |P̄_y - P̄_x|·h are taken, whichever is less: entry by entry, from the
largest and the least entry of any y; and P̄_y·h + P̄_x·h. Both take linear work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.rows import rows_taken
from bisim_abstract._verify.arithmetic import Arithmetic, Numbers, above, as_float
from bisim_abstract._verify.read import BoxClaims, ConvergedClaims, ValueClaims
from bisim_abstract.errors import VerificationError


@dataclass(frozen=True)
class Slots:
    """Pairs (cluster, name) that are used, in order, and the rows that they stand for.

    Attributes:
        used: (clusters, names) which there are.
        pairs: (slots) cluster * names + name.
        begins: (slots) where the rows of each begin.
        rows: (entries) state * n_actions + action.
        shares: (entries) into how many parts the whole is divided of which a row is one.
    """

    used: BoolArray
    pairs: IntArray
    begins: IntArray
    rows: IntArray
    shares: IntArray

    @classmethod
    def of(cls, value: ValueClaims, available: BoolArray) -> Slots:
        """Those of the clusters."""
        labels, width = value.labels, value.solver.q_lower.shape[1]
        n_actions = available.shape[1]
        own = np.where(available, np.arange(n_actions), -1)
        names = own if value.renaming is None else value.renaming
        used = np.zeros((value.policy.size, n_actions), bool)
        for action in range(n_actions):
            has_it = available[:, action]
            used[labels[has_it], names[has_it, action]] = True
        if np.array_equal(names, own):
            names = np.where(used[labels], np.arange(n_actions), -1)
        played = np.where(available, np.arange(n_actions), available.argmax(axis=1)[:, None])
        states, actions = np.nonzero(names >= 0)
        pairs = labels[states] * width + names[states, actions]
        rows = states * n_actions + played[states, actions]
        order = np.argsort(pairs, kind="stable")
        pairs, rows, states = pairs[order], rows[order], states[order]
        begins = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
        # Rows of one state and name lie next to each other.
        run = np.cumsum(np.append(True, (pairs[1:] != pairs[:-1]) | (states[1:] != states[:-1])))
        alike = np.bincount(run)[run]
        shares = alike * np.bincount(labels)[pairs // width]
        return cls(used[:, :width], pairs[begins], begins, rows, shares)

    @property
    def slot(self) -> IntArray:
        """(entries) the slot of each row."""
        return np.repeat(np.arange(self.pairs.size), self.sizes)

    @property
    def sizes(self) -> IntArray:
        """(slots) the number of rows."""
        return np.diff(np.append(self.begins, self.rows.size))

    def inside(self, choices: BoolArray, shape: tuple[int, ...]) -> BoolArray:
        """(n_states, n_actions) what states do when clusters choose from a set."""
        found = np.zeros(shape, bool)
        found.ravel()[self.rows[np.repeat(choices.ravel()[self.pairs], self.sizes)]] = True
        return found

    def best_between(self, box: BoxClaims, slack: float = 0.0) -> BoolArray:
        """(clusters, names) what may be the best of values in a box, or within a slack of it."""
        best = np.where(self.used, box.q_lower, -np.inf).max(axis=1)
        least = above(best, slack)
        return np.asarray(self.used & (box.q_upper >= least[:, None]))


def check_box(
    name: str, box: BoxClaims, slots: Slots, labels: IntArray, numbers: Arithmetic, *, is_mean: bool
) -> None:
    """Bounds on values of actions, by one backup."""
    for side, what, claimed in ((1, "q_upper", box.q_upper), (-1, "q_lower", box.q_lower)):
        ahead = np.where(slots.used, claimed, -np.inf).max(axis=1)[labels]
        found = numbers.backups(ahead, side, slots.rows, is_stored=is_mean)
        if is_mean:
            backup = numbers.sums(found / slots.shares, slots.begins)
        else:
            end = np.maximum if side > 0 else np.minimum
            backup = end.reduceat(found, slots.begins)
        stored = claimed.ravel()[slots.pairs]
        beyond = side * (backup - numbers.of(stored))
        slack = numbers.slack(numbers.size(ahead))
        worst = int(beyond.argmax())
        if not beyond[worst] + slack <= 0:
            cluster, action = divmod(int(slots.pairs[worst]), slots.used.shape[1])
            is_open = bool(beyond[worst] - slack <= 0) and not numbers.is_exact
            relation = "below" if side > 0 else "above"
            raise VerificationError(
                f"value: {name}.{what} of cluster {cluster}, action {action} is "
                f"{float(stored[worst])!r}, which {'may be' if is_open else 'is'} {relation} its "
                f"backup {as_float(backup[worst])!r}",
                is_open=is_open,
            )


class Converging:
    """What rows of clusters may differ by for values that converge; see above.

    Args:
        box: Where values of actions end.
        slots: What they stand for.
        labels: (n_states) clusters.
        numbers: The model.
    """

    def __init__(self, box: BoxClaims, slots: Slots, labels: IntArray, numbers: Arithmetic) -> None:
        self._slots, self._numbers, self._count = slots, numbers, slots.used.shape[0]
        low, high = (
            np.where(slots.used, q, -np.inf).max(axis=1) for q in (box.q_lower, box.q_upper)
        )
        mid = low / 2.0 + high / 2.0
        self.floor = low[labels]  # (n_states) v⁻
        self._half = numbers.of(np.maximum(above(high, mid), above(mid, low)))
        self._worth = numbers.backups(mid[labels], 1, slots.rows)  # B
        self._sum_by_clusters(labels)
        # Of a difference of two B, of P̄·h twice, and of the sum.
        size = numbers.largest + 4.0 * float(np.abs([low, high]).max())
        self._pad: Any = 2 * numbers.slack(size)

    def _sum_by_clusters(self, labels: IntArray) -> None:
        """Rows by clusters, and bounds on the entries of any row of a slot."""
        slots, count, half = self._slots, self._count, self._half
        indptr, columns, probs = self._numbers.weights(slots.rows)
        row = np.repeat(np.arange(slots.rows.size), np.diff(indptr))
        key = row * count + labels[columns]
        order = np.argsort(key, kind="stable")
        first = _first_of_runs(key[order])
        probs, key = np.add.reduceat(probs[order], first), key[order][first]
        row, column = np.divmod(key, count)
        begins = _first_of_runs(row)
        self._reach = np.add.reduceat(probs * half[column], begins)  # P̄·h
        key = slots.slot[row] * count + column
        order = np.argsort(key, kind="stable")
        first = _first_of_runs(key[order])
        self._keys = key[order][first]
        high = np.maximum.reduceat(probs[order], first)
        low = np.minimum.reduceat(probs[order], first)
        owner, self._columns = np.divmod(self._keys, count)
        is_everywhere = np.diff(np.append(first, key.size)) == slots.sizes[owner]
        zero = self._numbers.of(np.zeros(low.size))
        self._low, self._high = np.where(is_everywhere, low, zero), high
        self._begins = _first_of_runs(owner)
        self._all = np.add.reduceat(high * half[self._columns], self._begins)
        at = np.searchsorted(self._keys, key)
        # Of the sum over all entries, those of a row itself count otherwise.
        own = np.maximum(high[at] - probs, probs - self._low[at]) - high[at]
        self._spread = self._all[slots.slot] + np.add.reduceat(own * half[column], begins)

    def _pads(self, slots: IntArray) -> Any:
        """What rounding may add to sums over entries of a slot, one per slot.

        An entry P̄ is off by 2·longest units. Of K entries, the sum of all is off by K + 2·longest
        + 1 of its size, and what a row changes of it, a sum of `longest` terms of at most twice
        the size, by 8·longest + 8.
        """
        sizes = np.diff(np.append(self._begins, self._keys.size))[slots]
        terms = 10 * self._numbers.longest + 16 + sizes
        return terms * self._numbers.unit * self._all[slots] + self._pad

    def excess(self, side: int = 1) -> Numbers:
        """(entries) σ: how far a row may be below what its slot learns; rounded up, or down."""
        slots, gamma = self._slots, self._numbers.gamma
        slot = slots.slot
        by_entries = np.maximum.reduceat(self._worth, slots.begins)[slot] - self._worth
        by_entries = by_entries + gamma * self._spread + side * self._pads(slot)
        reach = gamma * self._reach
        by_sums = np.maximum.reduceat(self._worth + reach, slots.begins)[slot]
        by_sums = by_sums - (self._worth - reach) + side * self._pad
        is_single = (slots.sizes == 1)[slot]
        zero = self._numbers.of(np.zeros(slot.size))
        return np.where(is_single, zero, np.minimum(by_entries, by_sums))

    def undominated(self, dropped: BoolArray) -> Iterator[tuple[int, int, bool]]:
        """Actions (cluster, name, whether rounding leaves it open) that no other surely beats."""
        slots, gamma, width = self._slots, self._numbers.gamma, dropped.shape[1]
        begins, worth, reach = slots.begins, self._worth, gamma * self._reach
        highest, lowest = np.maximum.reduceat(worth, begins), np.minimum.reduceat(worth, begins)
        most = np.maximum.reduceat(worth + reach, begins)
        least = np.minimum.reduceat(worth - reach, begins)
        number = np.full(dropped.size, -1)
        number[slots.pairs] = np.arange(slots.pairs.size)
        left = np.flatnonzero(dropped.ravel()[slots.pairs])
        is_open = np.zeros(slots.pairs.size, bool)
        for other in range(width):
            better = number[slots.pairs[left] // width * width + other]
            is_pair = (better >= 0) & (better != left)
            one, two = left[is_pair], better[is_pair]
            if not one.size:
                continue
            by_sums = most[one] - least[two]
            pads = self._pads(one) + self._pads(two)
            by_entries = highest[one] - lowest[two] + gamma * self._between(one, two)
            is_beaten = (by_sums + self._pad < 0) | (by_entries + pads < 0)
            is_open[one] |= (by_sums - self._pad < 0) | (by_entries - pads < 0)
            gone = np.zeros(slots.pairs.size, bool)
            gone[one[np.asarray(is_beaten, bool)]] = True
            left = left[~gone[left]]
        for slot in left.tolist():
            cluster, action = divmod(int(slots.pairs[slot]), width)
            yield cluster, action, bool(is_open[slot]) and not self._numbers.is_exact

    def _between(self, one: IntArray, two: IntArray) -> Numbers:
        """Bounds on |P̄_y - P̄_x|·h for y of one slot and x of another, one per pair of slots."""
        indptr = np.append(self._begins, self._keys.size)
        begins, at = zip(rows_taken(indptr, one), rows_taken(indptr, two), strict=True)
        pair = np.concatenate([np.repeat(np.arange(one.size), np.diff(x)) for x in begins])
        keys = pair * self._count + np.concatenate([self._columns[x] for x in at])
        found, where = np.unique(keys, return_inverse=True)
        high, low = self._numbers.of(np.zeros((2, 2, found.size)))
        for side, (entries, place) in enumerate(
            zip(at, np.split(where.reshape(-1), [at[0].size]), strict=True)
        ):
            high[side, place], low[side, place] = self._high[entries], self._low[entries]
        gap = np.maximum(high[0] - low[1], high[1] - low[0]) * self._half[found % self._count]
        return np.asarray(np.add.reduceat(gap, _first_of_runs(found // self._count)))


def check_converged(
    claims: ConvergedClaims,
    box: BoxClaims,
    slots: Slots,
    labels: IntArray,
    numbers: Arithmetic,
) -> FloatArray:
    """Choices and excess of values that converge; (n_states) v⁻ less the excess, at most."""
    where = "value: learner.converged"
    converging = Converging(box, slots, labels, numbers)
    dropped = slots.best_between(box) & ~claims.choices
    for cluster, action, is_open in converging.undominated(dropped):
        raise VerificationError(
            f"{where}.choices lacks action {action} of cluster {cluster}, which no other action "
            f"{'may surely beat' if is_open else 'surely beats'}",
            is_open=is_open,
        )
    chosen = np.repeat(claims.choices.ravel()[slots.pairs], slots.sizes)
    rows = slots.rows[chosen]
    states = rows // numbers.mdp.n_actions
    indptr, columns, probs = numbers.weights(rows)
    ahead = np.add.reduceat(probs * numbers.of(claims.excess[columns]), indptr[:-1])
    lacks = numbers.gamma * ahead - numbers.of(claims.excess[states])
    short = converging.excess()[chosen]
    slack = numbers.slack(as_float(short.max()) + 4.0 * float(claims.excess.max()))
    beyond = short + lacks
    worst = int(beyond.argmax())
    if not beyond[worst] + slack <= 0:
        least = as_float((converging.excess(-1)[chosen] + lacks).max())
        is_open = not numbers.is_exact and least - slack <= 0.0
        state = int(states[worst])
        raise VerificationError(
            f"{where}.excess of state {state} is {float(claims.excess[state])!r}, which "
            f"{'may be' if is_open else 'is'} too small by {as_float(beyond[worst])!r}",
            is_open=is_open,
        )
    return -above(claims.excess, converging.floor)


def _first_of_runs(keys: IntArray) -> IntArray:
    """Where runs of equal numbers begin."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
