"""The error theorem with an operator error: backups that read costs off an embedding.

Part of the audit. The paper states parts (A), (B) and (C) for any backup within eps_op of the
exact one and names such an instance, but shows no run with eps_op > 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract.parts import landmark_mds, single_build
from paper import grid
from paper.common import ResultTable
from paper.grid import GAMMA, Run

SWEEPS = 8
FORMS = (("zero", 6), ("reward", 2))  # start of the arm, and dimension of its embeddings
OMIT = 0.1  # share of probability mass that the toolkit's own build leaves out


@dataclass(frozen=True)
class Approximate:
    """One run with index-side backups of the lower arm.

    Attributes:
        start: Start of the arm.
        dim: Dimension of its embeddings.
        eps_op: Largest error of a backup that occurred.
        rho: Coverage gap.
        floor: Which term limits the global error, "coverage" or "operator".
        holds_covered: Part (A), after every sweep.
        holds_global: Part (B), after every sweep.
        holds_lemma: Whether every backup's error was at most gamma·eta.
        covered: Covered error after the last sweep.
        bound: What part (A) says of it.
    """

    start: str
    dim: int
    eps_op: float
    rho: float
    floor: str
    holds_covered: bool
    holds_global: bool
    holds_lemma: bool
    covered: float
    bound: float


def approximate(run: Run, start: str, dim: int, *, is_full: bool = False) -> Approximate:
    """The theorem's iteration, f <- Bf on covered pairs, with costs read off an embedding of f.

    Tf lies between the two roundings of an exact backup, so that eps_op is not underestimated.
    """
    world, n = run.world, run.world.n
    pairs = grid.all_pairs(n) if is_full else run.pairs
    arms = grid.make_arms(world, pairs, lower_start=start)
    truth, s, t = world.truth, *grid.all_pairs(n)
    rho = grid.coverage_gap(world, pairs, start)
    first_gap = float((truth - world.start(start)).max())
    tol = grid.tolerance(world, arms)
    eps_op, covered, bound = 0.0, 0.0, 0.0
    holds_covered = holds_global = holds_lemma = True

    def below(states: IntArray, others: IntArray) -> FloatArray:
        return arms.bounds(states, others)[0]

    for sweep in range(1, SWEEPS + 1):
        points = landmark_mds(below, n, dim=dim, seed=np.random.default_rng([run.key, sweep]))
        first, second = arms.ground_pairs()
        costs = np.sqrt(((points[first] - points[second]) ** 2).sum(axis=1))
        costs[0] = 0.0
        values = arms.ground_costs(is_upper=False)
        eta = float(np.abs(costs - values).max())
        new = arms.backup(costs, is_upper=False)
        up, down = arms.backup(values, is_upper=True), arms.backup(values, is_upper=False)
        error = float(np.maximum(up - new, new - down).max())
        eps_op = max(eps_op, error)
        arms.lower = new
        covered = float(np.abs(truth[arms.pairs()] - new).max())
        total = float(np.abs(truth[s, t] - below(s, t)).max())
        transient = GAMMA**sweep * first_gap + tol
        bound = max(eps_op / (1.0 - GAMMA), eps_op + GAMMA * rho) + transient
        holds_covered &= covered <= bound
        holds_global &= total <= max(rho, eps_op / (1.0 - GAMMA)) + transient
        holds_lemma &= error <= GAMMA * eta + tol
    floor = "coverage" if rho >= eps_op / (1.0 - GAMMA) else "operator"
    return Approximate(
        start, dim, eps_op, rho, floor, holds_covered, holds_global, holds_lemma, covered, bound
    )


def corrected_arms_enclose(run: Run) -> bool:
    """Whether the toolkit's index-side build, mass left out, still encloses the metric."""
    certificate = single_build(
        run.world.mdp,
        GAMMA,
        sweeps=4,
        neighbours=run.k,
        embedding=run.points,
        dim=grid.DIM,
        index=run.index,
        backup="index",
        omit=OMIT,
        seed=run.key,
        threads=1,
    )
    bounds = certificate.bounds(*grid.all_pairs(run.world.n))
    return grid.encloses(run.world, *bounds) and certificate.run["eps_op"] > 0.0


def form_table(forms: Sequence[Approximate]) -> ResultTable:
    """Index-side backups: errors beside what parts (A) and (B) allow."""
    rows = []
    for (start, dim), of in grid.grouped(forms, lambda x: (x.start, x.dim)).items():
        rows.append(
            (
                start,
                dim,
                len(of),
                grid.mean(x.eps_op for x in of),
                grid.mean(x.rho for x in of),
                sum(x.floor == "operator" for x in of),
                grid.mean(x.covered for x in of),
                grid.mean(x.bound for x in of),
                sum(x.holds_covered for x in of),
                sum(x.holds_global for x in of),
            )
        )
    return ResultTable(
        "audit_index_side",
        f"Backups that read an embedding, {SWEEPS} sweeps: parts (A) and (B) of the theorem",
        (
            "start",
            "dim",
            "runs",
            "eps_op",
            "rho",
            "eps_op limits",
            "covered error",
            "bound (A)",
            "(A) holds",
            "(B) holds",
        ),
        rows,
    )
