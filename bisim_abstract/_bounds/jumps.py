"""Tables near the fixed point of one arm, by policy iteration: a guess that nobody has to trust.

Sweeps contract by gamma, so that thousands of them are needed near 1. A backup is a game: one
side picks an action, the other a coupling (and, where actions may be renamed, the action that it is
compared with). Couplings are fixed, for every covered pair and action,
and the actions that answer them best are found by policy iteration, one linear system at a time;
then couplings are improved, by one sweep. The tables fall from round to round, and a handful of
them reaches what rounding allows, whatever gamma is. (Both sides at once, Newton's method, needs
fewer systems where it converges, and goes in circles where it does not.)

Couplings of covered pairs enter a system. The rest are constants of a round: rewards, uncovered
pairs, and what radii send along the dearest cell. Nothing on the way is a bound: `Arms.adopt`
makes one of what comes out, or refuses it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bisim_abstract._base.linear import solve_contraction
from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms

ROUNDS = 30  # of couplings, at most
ANSWERS = 30  # rounds of actions in each of them
ANSWERED = 1e-2  # of the residual of a round: actions are looked for until here
SOLVED = 3e-2  # of a system's residual: it is solved until here
STEPS = 200  # of the linear solver in one system
ENOUGH = 1e-13  # of the largest distance there can be: residuals at which rounding shows
CHUNK = 32_768  # pairs per unit of work; results do not depend on it
ROOM = 0.25  # of the memory there is that couplings may take


def can_jump(arms: Arms) -> bool:
    """Whether there is something to gain, and room for couplings."""
    has_room = arms.coupling_bytes <= ROOM * arms.resources.room
    return arms.n_covered > 0 and arms.gamma > 0.0 and has_room


def jump(
    arms: Arms,
    *,
    is_upper: bool,
    tol: float = 0.0,
    pause: Callable[[float], None] | None = None,
) -> float:
    """Bring one arm near its fixed point at once; the largest change of a bound.

    Args:
        arms: The arms, of states or of blocks. Pairs that are not covered keep what they read.
        is_upper: The upper arm; else the lower one.
        tol: How far bounds may stay from the fixed point, about.
        pause: Called after every round, with the residual.
    """
    if not can_jump(arms):
        return 0.0
    sign, reach = 1.0 if is_upper else -1.0, (1.0 + 1e-9) / (1.0 - arms.gamma)
    enough = max(ENOUGH * arms.starts.diameter, tol * (1.0 - arms.gamma))
    # Both arms from above: what is above the fixed point of the upper one is above both.
    table, first, second = arms.upper, *arms.pairs()
    fixed = np.zeros(table.size, bool) if is_upper else first == second
    found, best = table, np.inf
    for _ in range(ROUNDS):
        table = np.where(fixed, 0.0, table)
        costs = arms.ground_costs(is_upper=is_upper, covered=table)
        couplings = arms.coupled_backup(costs, is_upper=is_upper)
        residual = float(np.abs(couplings[:, 0] - table).max())
        if pause is not None:
            pause(residual)
        # Moved outward by what keeps it from being a bound; the tightest such table is kept.
        defect = max(float((sign * (couplings[:, 0] - table)).max()), 0.0)
        outward = table + sign * defect * reach
        if sign * float(outward.mean()) < best:
            found, best = outward, sign * float(outward.mean())
        if residual <= enough:
            break
        table = _answered(arms, couplings, costs, ANSWERED * residual)
    return arms.adopt(found, is_upper=is_upper)


def _answered(arms: Arms, couplings: FloatArray, costs: FloatArray, goal: float) -> FloatArray:
    """The table of the best actions where couplings are given, up to a residual."""
    from bisim_abstract._kernels.transport import respond_kernel

    lines, count, threads = arms.n_lines, arms.n_covered, arms.resources.n_threads
    action, costs = np.zeros(count, np.int64), costs.copy()
    table, answer = costs[1 : 1 + count], np.empty(count)

    def part(begin: int, end: int) -> None:
        respond_kernel(begin, end, couplings, lines, arms.gamma, costs, action, answer)

    for _ in range(ANSWERS):
        map_chunks(part, count, threads=threads, chunk=CHUNK)
        if float(np.abs(answer - table).max()) <= goal:
            break
        system = _System(couplings, action, lines, arms.gamma, threads)
        table[:] = system.solve(table, answer)
    return np.maximum(answer, 0.0)


class _System:
    """The linear system f = r + gamma·Π f that actions and couplings leave.

    Args:
        couplings: As `Arms.coupled_backup` gives them.
        action: (covered) the line of each pair.
        n_lines: Number of lines.
        gamma: The discount.
        threads: Who works; the solution does not depend on it.
    """

    def __init__(
        self, couplings: FloatArray, action: IntArray, n_lines: int, gamma: float, threads: int
    ) -> None:
        count, size = couplings.shape[0], (couplings.shape[1] - 1) // n_lines
        lines = couplings[:, 1:].reshape(count, n_lines, size)[np.arange(count), action]
        self._cells = lines[:, 1 : 1 + size // 2].astype(np.int64) - 1  # place 0 costs nothing
        self._cells[self._cells >= count] = -1  # and the frontier does not move
        self._masses = lines[:, 1 + size // 2 :].copy()
        self._gamma, self._threads = gamma, threads

    def solve(self, table: FloatArray, backup: FloatArray) -> FloatArray:
        """Its solution, about, where backup = r + gamma·Π table."""
        # The correction x = f - backup obeys x = gamma·Π (backup - table) + gamma·Π x. It is
        # solved for in units of the residual, so that norms neither overflow nor vanish.
        residual = float(np.abs(backup - table).max())
        constant = self._apply((backup - table) / residual)
        correction = solve_contraction(self._apply, constant, atol=SOLVED, max_steps=STEPS)
        solution = backup + residual * correction
        return np.maximum(solution, 0.0) if np.isfinite(solution).all() else backup

    def _apply(self, x: FloatArray) -> FloatArray:
        """gamma·Π x."""
        from bisim_abstract._kernels.transport import coupled_kernel

        out = np.empty(x.size)

        def part(begin: int, end: int) -> None:
            coupled_kernel(begin, end, self._cells, self._masses, self._gamma, x, out)

        map_chunks(part, x.size, threads=self._threads, chunk=CHUNK)
        return out
