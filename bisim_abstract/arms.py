"""The two arms over covered pairs: the only place that moves a bound.

The lower arm starts from a sub-solution (f <= Tf) and the upper arm from a super-solution
(f >= Tf); both then lie on their side of the metric d. A sweep replaces the entry of every
covered pair by its backup if that is tighter. T is monotone, so f <= d gives Tf <= d and both
properties last: max(f, Tf) <= T max(f, Tf), and mirrored. This holds for any set of pairs, in
any order, and whatever the transport solver answers, because the backups are rounded outward.

Uncovered pairs are never stored. They read their start value, which depends on rewards alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bisim_abstract._memory import check_memory
from bisim_abstract._parallel import map_chunks, thread_count
from bisim_abstract._typing import FloatArray, IntArray
from bisim_abstract._validation import check_choice, check_gamma, check_int, check_states
from bisim_abstract.bisimulation import reward_span
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.mdp import TabularMDP

EPS = 2.0**-53
TINY = 1e-315  # far above what a few products lose by underflow
CHUNK = 4096  # pairs per unit of work; results do not depend on it
LOOKUP_BYTES = 2**30  # memory for looked-up positions, beyond which they are found anew

LOWER_STARTS = ("reward", "zero")
UPPER_STARTS = ("reward", "constant")


@dataclass(frozen=True)
class Starts:
    """Start values of both arms, computed when read.

    With L the largest reward difference and D = L/(1 - gamma), rounded up far enough:

    - lower "zero": 0, a sub-solution as T0 >= 0;
    - lower "reward": d_R(s,t) = max_a |R(s,a) - R(t,a)|, rounded down, as Tf >= d_R for f >= 0;
    - upper "constant": D, a super-solution as TD <= L + gamma·D <= D;
    - upper "reward": h = d_R + gamma·D rounded up. No entry of h exceeds D (below), so
      Th <= d_R + gamma·D <= h.

    D is L/(1 - gamma)·(1 + 16·EPS + 16·EPS/(1 - gamma)): then (L + gamma·D)(1 + 8·EPS) <= D,
    which covers the rounding of h and of the sums above; h and D carry TINY and 4·TINY/(1 - gamma)
    more against underflow, which the same inequality still leaves room for.
    """

    rewards: FloatArray
    gamma: float
    diameter: float
    lower: str
    upper: str

    @classmethod
    def of(cls, rewards: FloatArray, gamma: float, *, lower: str, upper: str) -> Starts:
        """The starts of a model with these rewards, (n_states, n_actions)."""
        check_choice("lower_start", lower, LOWER_STARTS)
        check_choice("upper_start", upper, UPPER_STARTS)
        span = reward_span(rewards)
        inflation = 1.0 + 16.0 * EPS + 16.0 * EPS / (1.0 - gamma)
        diameter = span / (1.0 - gamma) * inflation
        if span > 0.0:  # products below the normal range lose up to 5e-324 each
            diameter += 4.0 * TINY / (1.0 - gamma)
        if not math.isfinite(diameter / (1.0 - gamma)):
            raise InvalidArgumentError("the metric would overflow; rescale the rewards")
        return cls(rewards, gamma, diameter, lower, upper)

    def widest(self) -> float:
        """Bound on the gap between both start values of any pair, rounded up."""
        # Reward over reward leaves gamma·D, and what d_R <= D was rounded by; else at most D.
        both = self.lower == self.upper == "reward"
        main = self.diameter * (self.gamma if both else 1.0)
        return main + 32.0 * EPS * self.diameter + 2.0 * TINY

    def read(self, s: IntArray, t: IntArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper start values of pairs of different states."""
        gap = np.zeros(s.shape)
        if "reward" in (self.lower, self.upper):
            for a in range(self.rewards.shape[1]):
                np.maximum(gap, np.abs(self.rewards[s, a] - self.rewards[t, a]), out=gap)
        # One subtraction: off by EPS relative.
        lower = gap * (1.0 - 4.0 * EPS) if self.lower == "reward" else np.zeros(s.shape)
        if self.upper == "constant":
            return lower, np.full(s.shape, self.diameter)
        tiny = TINY if self.gamma > 0.0 and self.diameter > 0.0 else 0.0
        return lower, (gap + self.gamma * self.diameter) * (1.0 + 4.0 * EPS) + tiny


class Arms:
    """Covered pairs of a model with a lower and an upper bound on the metric of each.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        lower_start: "reward" or "zero", see `Starts`.
        upper_start: "reward" or "constant".
        threads: Number of threads; all cores by default. Results do not depend on it.
        lookup_bytes: Memory for looked-up positions; beyond it they are found anew at every
            sweep, in chunks.

    Attributes:
        keys: (covered) sorted pair keys, s * n_states + t with s < t.
        lower: (covered) lower bounds.
        upper: (covered) upper bounds.
        backups: Pair backups made so far, of either arm.
    """

    def __init__(
        self,
        mdp: TabularMDP,
        gamma: float,
        *,
        lower_start: str = "reward",
        upper_start: str = "reward",
        threads: int | None = None,
        lookup_bytes: int = LOOKUP_BYTES,
    ) -> None:
        self.mdp = mdp
        self.gamma = check_gamma(gamma)
        self.starts = Starts.of(mdp.rewards, self.gamma, lower=lower_start, upper=upper_start)
        self.keys: IntArray = np.empty(0, np.int64)
        self.lower: FloatArray = np.empty(0)
        self.upper: FloatArray = np.empty(0)
        self.backups = 0
        self._threads = thread_count(threads)
        self._lookup_bytes = check_int("lookup_bytes", lookup_bytes, low=0)
        self._lookup: _Lookup | None = None

    @property
    def n_covered(self) -> int:
        """Number of covered pairs."""
        return int(self.keys.size)

    @property
    def coverage(self) -> float:
        """Share of all pairs that is covered."""
        n = self.mdp.n_states
        return self.n_covered / (n * (n - 1) // 2) if n > 1 else 1.0

    def pairs(self) -> tuple[IntArray, IntArray]:
        """The states of the covered pairs, the smaller ones first."""
        first, second = np.divmod(self.keys, self.mdp.n_states)
        return first, second

    def cover(self, states: npt.ArrayLike, others: npt.ArrayLike) -> int:
        """Add pairs, at their start values; how many of them were new.

        Pairs of equal states and pairs that are covered already are passed over.
        """
        s = check_states("states", states, self.mdp.n_states)
        t = check_states("others", others, self.mdp.n_states)
        n = self.mdp.n_states
        keys = np.minimum(s, t) * n + np.maximum(s, t)
        fresh = np.setdiff1d(keys[s != t], self.keys)
        if fresh.size == 0:
            return 0
        lower, upper = self.starts.read(*np.divmod(fresh, n))
        merged = np.concatenate([self.keys, fresh])
        order = np.argsort(merged, kind="stable")
        lower = np.concatenate([self.lower, lower])[order]
        upper = np.concatenate([self.upper, upper])[order]
        # At once, so that an interrupt leaves the arms as they were or as they will be.
        self.keys, self.lower, self.upper, self._lookup = merged[order], lower, upper, None
        return int(fresh.size)

    def cover_all(self) -> int:
        """Add every pair; how many of them were new."""
        s, t = np.triu_indices(self.mdp.n_states, 1)
        return self.cover(s, t)

    def restore(self, keys: IntArray, lower: FloatArray, upper: FloatArray, backups: int) -> None:
        """Take over covered pairs and bounds as they were; the caller answers for the latter."""
        n = self.mdp.n_states
        if keys.dtype != np.int64 or lower.dtype != np.float64 or upper.dtype != np.float64:
            raise InvalidArgumentError("keys must be int64, lower and upper float64")
        if keys.ndim != 1 or not keys.shape == lower.shape == upper.shape:
            raise InvalidArgumentError("keys, lower and upper must be aligned arrays")
        first, second = np.divmod(keys, n)
        if (keys[1:] <= keys[:-1]).any() or (keys < 0).any() or (first >= second).any():
            raise InvalidArgumentError("keys must rise strictly and be those of pairs s < t")
        if keys.size and keys[-1] >= n * n:
            raise InvalidArgumentError(f"keys must be those of pairs of {n} states")
        if not (np.isfinite(upper).all() and (lower >= 0.0).all() and (lower <= upper).all()):
            raise InvalidArgumentError("bounds must be finite with 0 <= lower <= upper")
        self.keys, self.lower, self.upper = keys.copy(), lower.copy(), upper.copy()
        self.backups = check_int("backups", backups, low=0)
        self._lookup = None

    def sweep(self, *, lower: bool = True, upper: bool = True) -> tuple[float, float]:
        """One Jacobi sweep over the covered pairs; the largest change of each arm."""
        if self.n_covered == 0:
            return 0.0, 0.0
        moved = [0.0, 0.0]
        if lower:
            values = self.ground_costs(is_upper=False)
            new = np.maximum(self.lower, self.backup(values, is_upper=False))
            moved[0] = float((new - self.lower).max())
            self.lower = new
        if upper:
            values = self.ground_costs(is_upper=True)
            new = np.minimum(self.upper, self.backup(values, is_upper=True))
            moved[1] = float((self.upper - new).max())
            self.upper = new
        return moved[0], moved[1]

    def ground_pairs(self) -> tuple[IntArray, IntArray]:
        """The pairs of states whose costs backups read, place by place.

        Place 0 is a pair of equal states; covered pairs come next, then the frontier: pairs
        that are read but not covered.
        """
        keys = np.concatenate([[0], self.keys, self._looked_up().frontier])
        first, second = np.divmod(keys, self.mdp.n_states)
        return first, second

    def ground_costs(self, *, is_upper: bool) -> FloatArray:
        """What one arm says of each of `ground_pairs` now."""
        lookup = self._looked_up()
        if is_upper:
            return np.concatenate([[0.0], self.upper, lookup.frontier_upper])
        return np.concatenate([[0.0], self.lower, lookup.frontier_lower])

    def bounds(self, states: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds for any pairs, covered or not, by broadcasting."""
        s, t = np.broadcast_arrays(
            check_states("states", states, self.mdp.n_states),
            check_states("others", others, self.mdp.n_states),
        )
        small, large = np.minimum(s, t).ravel(), np.maximum(s, t).ravel()
        lower, upper = self.starts.read(small, large)
        keys = small * self.mdp.n_states + large
        if self.n_covered:
            at = np.minimum(np.searchsorted(self.keys, keys), self.n_covered - 1)
            known = self.keys[at] == keys
            lower[known], upper[known] = self.lower[at[known]], self.upper[at[known]]
        lower[small == large] = upper[small == large] = 0.0
        return lower.reshape(s.shape), upper.reshape(s.shape)

    def backup(self, values: FloatArray, *, is_upper: bool) -> FloatArray:
        """The backup of every covered pair under given ground costs, rounded outward.

        Args:
            values: Costs of `ground_pairs`, at least 0, the first of them 0.
            is_upper: Round up; else down.
        """
        from bisim_abstract._kernels.transport import arm_kernel

        lookup, mdp = self._looked_up(), self.mdp
        out = np.empty(self.n_covered)

        def part(begin: int, end: int) -> None:
            offset, positions = lookup.chunk(begin, end)
            arm_kernel(
                begin,
                end,
                lookup.first,
                lookup.second,
                offset,
                positions,
                mdp.indptr,
                mdp.indices,
                mdp.probs,
                mdp.normalised_probs,
                mdp.rewards,
                self.gamma,
                mdp.max_support,
                is_upper,
                values,
                out,
            )

        map_chunks(part, self.n_covered, threads=self._threads, chunk=CHUNK)
        self.backups += self.n_covered
        return out

    def _looked_up(self) -> _Lookup:
        if self._lookup is None:
            self._lookup = _Lookup(self, self._lookup_bytes)
        return self._lookup


class _Lookup:
    """Positions of all ground costs that the covered pairs read, found once per coverage."""

    def __init__(self, arms: Arms, limit: int) -> None:
        self._mdp, self._count = arms.mdp, arms.n_covered
        self.first, self.second = arms.pairs()
        sizes = self._cells_per_pair()
        total = int(sizes.sum())
        n = self._mdp.n_states
        # Every cell may add one pair to the frontier, but no pair twice.
        most = min(total, n * (n - 1) // 2) + self._count
        capacity = 1 << max(4, math.ceil(math.log2(2 * most + 1)))
        self._is_kept = 4 * total <= limit
        check_memory(
            16 * capacity + 24 * most + (4 * total if self._is_kept else 0),
            what=f"looking up the ground costs of {self._count:,} covered pairs",
            instead="cover fewer pairs per round, or merge states first",
            memory_limit=None,
        )
        self._slots = np.full(capacity, -1, np.int64)
        self._places = np.empty(capacity, np.int64)
        self._kept: dict[int, tuple[IntArray, npt.NDArray[np.int32]]] = {}
        self._sizes = sizes
        self._find_frontier(arms)

    def chunk(self, begin: int, end: int) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Offsets and positions of the pairs begin..end, a chunk of CHUNK pairs."""
        if self._is_kept:
            return self._kept[begin]
        offset, positions, _ = self._located(begin, end, 0, np.empty(0, np.int64))
        return offset, positions

    def _find_frontier(self, arms: Arms) -> None:
        from bisim_abstract._kernels.lookup import insert_kernel

        insert_kernel(arms.keys, 1, self._slots, self._places)
        found = []
        place = 1 + self._count
        for begin in range(0, self._count, CHUNK):
            end = min(begin + CHUNK, self._count)
            room = np.empty(int(self._sizes[begin:end].sum()), np.int64)
            offset, positions, added = self._located(begin, end, place, room)
            found.append(room[:added].copy())
            place += added
            if self._is_kept:
                self._kept[begin] = (offset, positions)
        self.frontier: IntArray = np.concatenate(found)
        s, t = np.divmod(self.frontier, self._mdp.n_states)
        self.frontier_lower, self.frontier_upper = arms.starts.read(s, t)

    def _located(
        self, begin: int, end: int, place: int, room: IntArray
    ) -> tuple[IntArray, npt.NDArray[np.int32], int]:
        from bisim_abstract._kernels.lookup import locate_kernel

        mdp = self._mdp
        offset = np.empty(end - begin + 1, np.int64)
        positions = np.empty(int(self._sizes[begin:end].sum()), np.int32)
        added = locate_kernel(
            begin,
            end,
            self.first,
            self.second,
            mdp.indptr,
            mdp.indices,
            mdp.n_states,
            mdp.n_actions,
            self._slots,
            self._places,
            place,
            room,
            offset,
            positions,
        )
        return offset, positions, added

    def _cells_per_pair(self) -> IntArray:
        widths = np.diff(self._mdp.indptr).reshape(self._mdp.n_states, -1)
        return np.asarray((widths[self.first] * widths[self.second]).sum(axis=1))
