"""The error theorem with an operator error: backups that read costs off an embedding.

Part of the audit. The paper states parts (A), (B) and (C) for any backup within eps_op of the
exact one and names such an instance, but shows no run with eps_op > 0.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract.parts import landmark_mds
from paper import grid
from paper.engine import Row, Rows
from paper.grid import GAMMA, Run
from paper.inside import Arms, FloatArray, IntArray

SWEEPS = 8
FORMS = (("zero", 6), ("reward", 2))  # start of the arm, and dimension of its embeddings
OMIT = 0.1  # share of probability mass that the toolkit's own build leaves out


def approximate(run: Run, start: str, dim: int, *, is_full: bool = False) -> Row:
    """The theorem's iteration, f <- Bf on covered pairs, with costs read off an embedding of f.

    Tf lies between the two roundings of an exact backup, so that eps_op is not underestimated.

    Returns:
        The largest error of a backup that occurred ("eps_op"); the coverage gap; covered error
        and what part (A) says of it after the last sweep; whether parts (A) and (B) held after
        every sweep, and whether each backup's error was at most gamma·eta.
    """
    world, n = run.world, run.world.n
    pairs = grid.all_pairs(n) if is_full else run.pairs
    arms = grid.make_arms(world, pairs, lower_start=start)
    rho = grid.coverage_gap(world, pairs, start)
    first_gap = float((world.truth - world.start(start)).max())
    tol = grid.tolerance(world, arms)
    row: Row = {"start": start, "dim": dim, "eps_op": 0.0, "rho": rho}
    row |= {"holds (A)": True, "holds (B)": True, "holds lemma": True}
    for sweep in range(1, SWEEPS + 1):
        error, eta = inexact_sweep(arms, dim, np.random.default_rng([run.key, sweep]))
        eps_op = row["eps_op"] = max(row["eps_op"], error)
        row["covered"] = world.error(arms.lower, arms.pairs())
        total = world.error(arms.bounds(*grid.all_pairs(n))[0])
        transient = GAMMA**sweep * first_gap + tol
        row["bound"] = max(eps_op / (1.0 - GAMMA), eps_op + GAMMA * rho) + transient
        row["holds (A)"] &= row["covered"] <= row["bound"]
        row["holds (B)"] &= total <= max(rho, eps_op / (1.0 - GAMMA)) + transient
        row["holds lemma"] &= error <= GAMMA * eta + tol
    return row


def inexact_sweep(arms: Arms, dim: int, rng: np.random.Generator) -> tuple[float, float]:
    """Replace the lower arm by backups under embedded costs; their error, and that of costs."""

    def below(states: IntArray, others: IntArray) -> FloatArray:
        return arms.bounds(states, others)[0]

    points = landmark_mds(below, arms.n, dim=dim, seed=rng)
    first, second = arms.ground_pairs()
    costs = np.sqrt(((points[first] - points[second]) ** 2).sum(axis=1))
    costs[0] = 0.0
    values = arms.ground_costs(is_upper=False)
    new = arms.backup(costs, is_upper=False)
    up, down = arms.backup(values, is_upper=True), arms.backup(values, is_upper=False)
    # What an inexact backup says is no bound, so that the upper arm has to make room for it.
    arms.restore(arms.keys, new, np.maximum(arms.upper, new), arms.backups)
    return float(np.maximum(up - new, new - down).max()), float(np.abs(costs - values).max())


def corrected_arms_enclose(run: Run) -> bool:
    """Whether the toolkit's index-side build, mass left out, still encloses the metric."""
    certificate = grid.build(
        run.world, start="reward", k=run.k, index=run.index, key=run.key,
        sweeps=4, embedding=run.points, dim=grid.DIM, backup="index", omit=OMIT,
    )  # fmt: skip
    bounds = certificate.bounds(*grid.all_pairs(run.world.n))
    return grid.encloses(run.world, *bounds) and certificate.run["eps_op"] > 0.0


def form_rows(forms: Rows) -> list[Row]:
    """Index-side backups: errors beside what parts (A) and (B) allow."""
    return [
        {
            "start": start,
            "dim": dim,
            "runs": len(of),
            "eps_op": of.mean("eps_op"),
            "rho": of.mean("rho"),
            "eps_op limits": sum(x["rho"] < x["eps_op"] / (1.0 - GAMMA) for x in of),
            "covered error": of.mean("covered"),
            "bound (A)": of.mean("bound"),
            "(A) holds": of.sum("holds (A)"),
            "(B) holds": of.sum("holds (B)"),
        }
        for (start, dim), of in forms.by("start", "dim").items()
    ]
