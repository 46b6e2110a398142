"""Tables over all pairs of a model: finding one near the fixed point, and testing it.

A `PairSolver` holds one table. `improve` moves it towards the metric in plain floating point
and needs no trust; `residual` bounds, with one-sided arithmetic, how far the exact operator
moves it. `_exact/metric.py` turns these numbers into certified bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from bisim_abstract._base.linear import solve_contraction
from bisim_abstract._base.parallel import Array, Data, Job, LocalBackend, map_chunks, read_only
from bisim_abstract._base.resources import Resources
from bisim_abstract._base.types import FloatArray, IntArray, Progress, ProgressCallback
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.base import Relation
from bisim_abstract._relations.table import find_bisimulation

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 12  # sweeps without a smaller residual before plain sweeps take over
PLAIN_SWEEPS = 8  # how many of them
CIRCLING = 6  # of them after which both sides seem to go in circles, and move in turn
ALONE = 20  # Newton steps of couplings and answers alone, at most
COUPLED = 1e-2  # of the residual of a sweep: where these end
CHUNK = 4096  # pairs per unit of work; results do not depend on it
ROUNDING = 2.0**-50  # plain sweeps cannot bring the residual below this, relative


@dataclass(frozen=True)
class Matching:
    """Which actions of two states are compared.

    Attributes:
        is_lax: Each action of either state with its like among those of the other, not with the
            one that is called the same.
        counts: (n_states) how many actions a state has, the first ones, if is_lax.
        sets: (n_states) states of different ones are not compared, but `apart` from each other.
        apart: How far.
    """

    is_lax: bool
    counts: IntArray
    sets: IntArray
    apart: float

    @property
    def has_sets(self) -> bool:
        """Whether some states are not compared."""
        return bool(self.sets.any())

    @classmethod
    def of(cls, model: TabularMDP, relation: str | Relation, apart: float | None) -> Matching:
        """By a relation; states with different actions are `apart`, if it does not compare them.

        Where actions are matched, the model's states have their first ones, as quotients do.
        """
        n, n_actions = model.rewards.shape
        known = find_bisimulation(relation)
        is_lax = known.matches_actions
        counts = model.available.sum(axis=1) if is_lax else np.full(n, n_actions)
        return cls(is_lax, counts, known.sets(model.available), apart or 0.0)


class PairSolver(Protocol):
    """A table over all pairs of a model."""

    sweeps: int

    def top(self) -> float:
        """Largest entry now."""

    def improve(self, target: float, max_sweeps: int) -> None:
        """Bring the residual below `target`, unless rounding or `max_sweeps` come first."""

    def residual(self) -> tuple[float, float]:
        """(rise, fall) with table - fall <= T(table) <= table + rise, T the exact operator."""

    def full_table(self) -> FloatArray:
        """(n, n), symmetric, zero diagonal."""


def pair_solver(
    model: TabularMDP,
    gamma: float,
    matching: Matching,
    resources: Resources,
    callback: ProgressCallback | None,
) -> PairSolver:
    """The solver that fits the model: without transport where it is deterministic."""
    kind = DeterministicPairs if model.is_deterministic else StochasticPairs
    return kind(model, gamma, matching, resources, callback)


def _check_room(n: int, needed: int, resources: Resources) -> None:
    resources.check_memory(
        needed,
        what=f"the metric of all pairs of {n:,} bisimulation classes",
        instead="keep only reachable states (Reading(reachable_only=True)); if states "
        "are equal but for rounding, merge them with "
        "classes=bisimulation_classes(mdp, digits=12)",
    )


def _report(callback: ProgressCallback | None, stage: str, sweeps: int, detail: str) -> None:
    logger.debug("%s: sweep %d, %s", stage, sweeps, detail)
    if callback is not None:
        callback(Progress(stage, sweeps, None, detail))


def _choice_type(n_actions: int) -> type[np.signedinteger[Any]]:
    """What holds an action of either of two states, and -1."""
    return np.int16 if 2 * n_actions < 2**15 else np.int32


class DeterministicPairs:
    """One successor per action: policy iteration on the graph of pairs, no transport.

    By name, tables grow from step to step. Where actions are renamed, one side chooses and the
    other answers, and moves of both at once may go in circles. So they move in turn: as long as
    the answers to the present choices are not the best ones, answers improve, and tables fall;
    then choices improve by one step, and tables rise again, further than before.
    """

    def __init__(
        self,
        model: TabularMDP,
        gamma: float,
        matching: Matching,
        resources: Resources,
        callback: ProgressCallback | None,
    ) -> None:
        n = model.n_states
        # Answers are kept, for actions of either state, if there are several.
        n_matches = 2 * model.n_actions * matching.is_lax
        # Table, actions, marks, walk, and two full tables for the result.
        _check_room(n, n * n * (8 + 2 + 4 + 4 + 16 + 2 * n_matches), resources)
        self.sweeps = 0
        self._model, self._gamma, self._callback = model, gamma, callback
        self._matching = matching
        self._threads = resources.n_threads
        self._successor = model.indices.reshape(n, model.n_actions)
        self._table = np.zeros((n, n))
        self._action = np.zeros((n, n), _choice_type(model.n_actions))
        self._match = np.zeros((n, n, n_matches), _choice_type(model.n_actions))
        self._order = np.empty(n * (n - 1) // 2, np.int64)
        self._mark = np.empty((n, n), np.int32)
        if matching.has_sets:
            fixed = np.not_equal.outer(matching.sets, matching.sets)
            self._table[fixed], self._action[fixed] = matching.apart, -1

    def top(self) -> float:
        return float(self._table.max())

    def improve(self, target: float, max_sweeps: int) -> None:
        from bisim_abstract._kernels.pairgraph import greedy_kernel

        while self.sweeps < max_sweeps:
            largest = greedy_kernel(
                self._successor,
                self._model.rewards,
                self._gamma,
                self._matching.is_lax,
                self._matching.has_sets,
                self._matching.counts,
                self._table,
                self._action,
                self._match,
                self.sweeps % 2 == 0,
            )
            if self._is_done(largest, target):
                return
            self._evaluate()
            if self._matching.is_lax:
                self._answer(target, max_sweeps)

    def _answer(self, target: float, max_sweeps: int) -> None:
        """Improve the answers to the present choices until they are the best ones."""
        from bisim_abstract._kernels.pairgraph import respond_kernel

        while self.sweeps < max_sweeps:
            largest = respond_kernel(
                self._successor,
                self._model.rewards,
                self._gamma,
                self._matching.counts,
                self._table,
                self._action,
                self._match,
                self.sweeps % 2 == 0,
            )
            if self._is_done(largest, target):
                return
            self._evaluate()

    def _is_done(self, largest: float, target: float) -> bool:
        """Count a sweep that improved the table by `largest`; whether that is nothing any more."""
        self.sweeps += 1
        _report(self._callback, "policy iteration", self.sweeps, f"improves {largest:.2g}")
        return largest <= min(target, ROUNDING * self.top())

    def _evaluate(self) -> None:
        from bisim_abstract._kernels.pairgraph import evaluate_kernel

        evaluate_kernel(
            self._successor,
            self._model.rewards,
            self._gamma,
            self._matching.is_lax,
            self._matching.has_sets,
            self._action,
            self._match,
            self._table,
            self._order,
            self._mark,
        )

    def residual(self) -> tuple[float, float]:
        from bisim_abstract._kernels.pairgraph import residual_kernel

        def part(begin: int, end: int) -> tuple[float, float]:
            return residual_kernel(
                begin,
                end,
                self._successor,
                self._model.rewards,
                self._gamma,
                self._matching.is_lax,
                self._matching.has_sets,
                self._matching.counts,
                self._table,
                self._action,
                self._match,
            )

        rises, falls = zip(*self._map(part), strict=True)
        self.sweeps += 1
        _report(self._callback, "proving", self.sweeps, f"residual {max(*rises, *falls):.2g}")
        return max(rises), max(falls)

    def full_table(self) -> FloatArray:
        upper = np.triu(self._table, 1)
        return upper + upper.T

    def _map(self, work: Callable[[int, int], T]) -> list[T]:
        # A chunk of rows is worth a thread from about a million gathered entries on.
        n, n_actions = self._model.rewards.shape
        chunk = 1 + 2_000_000 // (n * n_actions)
        return map_chunks(work, n, threads=self._threads, chunk=chunk)


class StochasticPairs:
    """Exact transport per pair and action; linear solves between sweeps where they fit.

    Fixing each pair's maximising action, its answer if actions are renamed, and the optimal
    coupling leaves a linear system, whose
    solution is the next table: Newton's method for f = Tf, as in policy iteration for games.
    The residual may rise for some steps before it falls; where it does so for too long, plain
    sweeps from the best table, which contract by gamma, take over for a while.
    """

    def __init__(
        self,
        model: TabularMDP,
        gamma: float,
        matching: Matching,
        resources: Resources,
        callback: ProgressCallback | None,
    ) -> None:
        from bisim_abstract._kernels.transport import reward_gap_kernel

        n = model.n_states
        count = n * (n - 1) // 2
        # An action of either state, or one for both; answers to it are kept if there are several.
        n_choices = (1 + matching.is_lax) * model.n_actions
        n_matches = matching.is_lax * n_choices
        workers = resources.workers
        self._is_local = isinstance(workers, LocalBackend)
        # The table, a few vectors over pairs, and two full tables for the result.
        plain = (8 + 16) * n * n + ((5 + n_choices) * 8 + 2 * n_matches) * count
        # What comes back from elsewhere is there twice for a moment. Whether there is room for
        # couplings must not depend on that, or tables would.
        twice = 0 if self._is_local else ((1 + n_choices) * 8 + 2 * n_matches) * count
        _check_room(n, plain + twice, resources)
        # Couplings have at most this many cells; the solver keeps them twice, plus vectors.
        width = 2 * model.max_support - 1
        if plain + count * (32 * width + 100) > resources.room:
            logger.info("no room for couplings of %d pairs: plain sweeps only", count)
            width = 0
        self.sweeps = 0
        self._model, self._gamma, self._callback = model, gamma, callback
        self._matching = matching
        self._threads = resources.n_threads
        self._line_of = np.arange(n)
        self._table = np.zeros((n, n))
        self._value = np.empty(count)  # the table again, one entry per pair
        self._action = np.empty(count, np.int64)
        self._match = np.zeros((count, n_matches), _choice_type(model.n_actions))
        # What choices were worth when last looked at, and how far tables have moved since.
        self._ceiling, self._drift = np.empty((count, n_choices)), 0.0
        self._cells = np.empty((count, width), np.int64)
        self._masses = np.empty((count, width))

        def fill(begin: int, end: int) -> None:
            reward_gap_kernel(
                begin,
                end,
                model.rewards,
                matching.is_lax,
                matching.counts,
                matching.sets,
                matching.apart,
                self._value,
                self._action,
                self._ceiling,
            )

        self._map(fill)
        self._spread(self._value)
        # Transport is what takes long. The rest reads more than it computes, and stays here.
        sweep, residual = (
            Job(
                work,
                {
                    "indptr": model.indptr,
                    "indices": model.indices,
                    "probs": model.probs,
                    "normalised_probs": model.normalised_probs,
                    "rewards": model.rewards,
                    "gamma": gamma,
                    "is_lax": matching.is_lax,
                    "counts": matching.counts,
                    "width": width,
                },
                count,
                CHUNK,
                narrow=self._narrowed,
                result_bytes=result_bytes,
            )
            for work, result_bytes in (
                (sweep_chunk, 8 * (1 + n_choices) + 2 * n_matches + 16 * width),
                (residual_chunk, 0),
            )
        )
        self._sweep_there, self._residual_there = workers.prepare(sweep), workers.prepare(residual)

    def top(self) -> float:
        return float(self._value.max())

    def improve(self, target: float, max_sweeps: int) -> None:
        best, best_value = np.inf, self._value
        patience, plain_left, is_circling = PATIENCE, 0, False
        while self.sweeps < max_sweeps:
            backup, residual = self._sweep()
            if residual < best:
                best, best_value, patience = residual, backup, PATIENCE
            else:
                patience -= 1
            is_circling = is_circling or patience <= PATIENCE - CIRCLING
            if best <= max(target, ROUNDING * self.top()):
                break
            if patience == 0:
                backup, patience, plain_left = best_value, PATIENCE, PLAIN_SWEEPS
            if plain_left > 0 or self._cells.shape[1] == 0:
                plain_left -= 1
                self._spread(backup)
            else:
                self._spread(self._newton(backup, residual))
                if is_circling:
                    self._couple(COUPLED * residual, max_sweeps)
        self._spread(best_value)

    def _couple(self, target: float, max_sweeps: int) -> None:
        """Newton's method on couplings alone, until the residual of the present actions is small.

        Moves of both sides at once may go in circles. With actions fixed the other side, which
        chooses couplings, and answers where actions are renamed, is alone,
        and its tables fall; then actions improve by one step, and tables rise: policy iteration.
        """
        for _ in range(ALONE):
            if self.sweeps >= max_sweeps:
                return
            backup, residual = self._sweep(is_fixed=True)
            if residual <= target:
                return
            self._spread(self._newton(backup, residual))

    def residual(self) -> tuple[float, float]:
        from bisim_abstract._kernels.transport import residual_kernel

        model, gamma, table = self._model, self._gamma, read_only(self._table)

        def part(begin: int, end: int) -> tuple[float, float]:
            return residual_kernel(
                begin,
                end,
                0,
                model.indptr,
                model.indices,
                model.probs,
                model.normalised_probs,
                model.rewards,
                gamma,
                self._matching.is_lax,
                self._matching.counts,
                self._line_of,
                table,
                self._action,
                self._match,
            )

        if self._is_local:
            found = self._map(part)
        else:
            found = self._residual_there(self._fresh(), np.empty(self._value.size, np.bool_))
        rises, falls = zip(*found, strict=True)
        self.sweeps += 1
        _report(self._callback, "proving", self.sweeps, f"residual {max(*rises, *falls):.2g}")
        return max(rises), max(falls)

    def full_table(self) -> FloatArray:
        return self._table.copy()

    def _sweep(self, *, is_fixed: bool = False) -> tuple[FloatArray, float]:
        """The backup of the table, and how far it moved; choices and couplings are kept.

        With `is_fixed`, choices stay, and it is not the backup but that of these.
        """
        from bisim_abstract._kernels.transport import sweep_kernel

        model, backup = self._model, np.empty_like(self._value)
        table = read_only(self._table)

        def part(begin: int, end: int) -> None:
            sweep_kernel(
                begin,
                end,
                0,
                model.indptr,
                model.indices,
                model.normalised_probs,
                model.rewards,
                self._gamma,
                self._matching.is_lax,
                self._matching.counts,
                self._line_of,
                table,
                self._drift,
                is_fixed,
                self._action,
                self._match,
                self._ceiling,
                backup,
                self._cells,
                self._masses,
            )

        if self._is_local:
            self._map(part)
        else:
            fresh = self._fresh() | {"ceiling": self._ceiling}
            fresh |= {"is_fixed": is_fixed, "drift": self._drift}
            found = self._sweep_there(fresh, backup)
            for k, chunk in enumerate(found):
                own = slice(k * CHUNK, (k + 1) * CHUNK)
                self._action[own], self._match[own], self._ceiling[own] = chunk[:3]
                self._cells[own], self._masses[own] = chunk[3:]
        self.sweeps += 1
        residual = float(np.abs(backup - self._value).max())
        _report(self._callback, "sweeping", self.sweeps, f"residual {residual:.2g}")
        return backup, residual

    def _fresh(self) -> dict[str, Any]:
        """What workers elsewhere read of this sweep."""
        return {
            "first": 0,
            "line_of": self._line_of,
            "table": self._table,
            "action": self._action,
            "match": self._match,
        }

    def _narrowed(self, fresh: Data, begin: int, end: int) -> tuple[Data, Any, Data]:
        """What the pairs begin..end read: their own entries, and lines of the table.

        Costs are read from the lines of the successors of the first state of a pair, and the pair
        itself from that of its first state. Consecutive pairs have few first states.
        """
        model = self._model
        n, n_actions = model.rewards.shape
        after = np.cumsum(np.arange(n - 1, 0, -1))  # the pair after those of each first state
        low, last = np.searchsorted(after, [begin, end - 1], side="right").tolist()
        high = last + 1
        reached = model.indices[model.indptr[low * n_actions] : model.indptr[high * n_actions]]
        lines = np.union1d(np.arange(low, high), reached)
        line_of = np.zeros(n, np.int64)
        line_of[lines] = np.arange(lines.size)
        names = {"action", "match", "ceiling"} & fresh.keys()
        own = {name: fresh[name][begin:end] for name in names}
        place = {"first": begin, "line_of": line_of, "table": fresh["table"][lines]}
        return {}, None, {**fresh, **own, **place}

    def _newton(self, guess: FloatArray, residual: float) -> FloatArray:
        """Solve f = r + gamma·Π f for the couplings of the last sweep, starting at `guess`."""
        # With guess = r + gamma·Π f at the present f, the correction x = solution - guess obeys
        # x = gamma·Π (guess - f) + gamma·Π x. It is solved for in units of the residual, so
        # that norms neither overflow nor vanish.
        constant = self._coupled((guess - self._value) / residual)
        correction = solve_contraction(self._coupled, constant, atol=1e-2, max_steps=200)
        solution = guess + residual * correction
        return np.maximum(solution, 0.0) if np.isfinite(solution).all() else guess

    def _coupled(self, x: FloatArray) -> FloatArray:
        """gamma·Π x, for the couplings of the last sweep."""
        from bisim_abstract._kernels.transport import coupled_kernel

        out = np.empty(x.size)

        def part(begin: int, end: int) -> None:
            coupled_kernel(begin, end, self._cells, self._masses, self._gamma, x, out)

        self._map(part)
        return out

    def _spread(self, value: FloatArray) -> None:
        """Make `value` the table."""
        from bisim_abstract._kernels.transport import spread_kernel

        self._drift += self._gamma * float((value - self._value).max(initial=0.0))
        self._value = value

        def part(begin: int, end: int) -> None:
            spread_kernel(begin, end, value, self._table)

        self._map(part)

    def _map(self, work: Callable[[int, int], T]) -> list[T]:
        return map_chunks(work, self._value.size, threads=self._threads, chunk=CHUNK)


def _chunk_arguments(
    common: Data, fresh: Data, begin: int, end: int
) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    """Range and operator of pairs whose first is fresh["first"] + begin, as kernels want them."""
    at = fresh["first"] + begin
    # Copies of what is small: kernels are compiled anew for arrays that cannot be written to.
    counts, line_of = np.array(common["counts"]), np.array(fresh["line_of"])
    rest = common["gamma"], common["is_lax"], counts, line_of, read_only(fresh["table"])
    return (at, at + end - begin, at), (common["rewards"], *rest)


def sweep_chunk(
    common: Data, part: Any, fresh: Data, begin: int, end: int, out: Array
) -> tuple[Array, ...]:
    """`sweep_kernel` elsewhere: choices, answers, ceilings and couplings are returned."""
    from bisim_abstract._kernels.transport import sweep_kernel

    span, operator = _chunk_arguments(common, fresh, begin, end)
    action, match, ceiling = (
        np.array(fresh[name][begin:end]) for name in ("action", "match", "ceiling")
    )
    cells = np.empty((end - begin, common["width"]), np.int64)
    masses, value = np.empty(cells.shape), np.empty(end - begin)
    sweep: Any = sweep_kernel  # types of arguments that are unpacked cannot be told
    sweep(
        *span,
        common["indptr"],
        common["indices"],
        common["normalised_probs"],
        *operator,
        fresh["drift"],
        fresh["is_fixed"],
        action,
        match,
        ceiling,
        value,
        cells,
        masses,
    )
    out[begin:end] = value
    return action, match, ceiling, cells, masses


def residual_chunk(
    common: Data, part: Any, fresh: Data, begin: int, end: int, out: Array
) -> tuple[float, float]:
    """`residual_kernel` elsewhere; nothing is filled in."""
    from bisim_abstract._kernels.transport import residual_kernel

    span, operator = _chunk_arguments(common, fresh, begin, end)
    out[begin:end] = False
    bound: Any = residual_kernel
    found: tuple[float, float] = bound(
        *span,
        common["indptr"],
        common["indices"],
        common["probs"],
        common["normalised_probs"],
        *operator,
        np.array(fresh["action"][begin:end]),
        np.array(fresh["match"][begin:end]),
    )
    return found
