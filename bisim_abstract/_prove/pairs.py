"""Bounds on the distances of chosen pairs of states, in time linear in their number.

For pairs of states that correspond, as those of a model and of a noisy copy of it: what both do is
nearly the same, so that nearly all of the mass goes to pairs that correspond again. These are
covered, and what their backups read as far as that is quick; others read their start values, what
levels of blocks say, and value features.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from bisim_abstract._base.checks import check_gamma
from bisim_abstract._base.linear import solve_contraction
from bisim_abstract._base.progress import compiling, tell
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray, ProgressCallback
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel
from bisim_abstract._bounds.features import ValueFeatures
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.rows import rows_taken
from bisim_abstract._prove.apart import pairs_ahead
from bisim_abstract._prove.cost import SWEEPING, Cost
from bisim_abstract._prove.driver import COMPILING, run_record
from bisim_abstract._prove.making import make_certificate
from bisim_abstract._prove.sweeping import Purse, Sweeper, sweeps_needed
from bisim_abstract._prove.work import time_is_up
from bisim_abstract._relations.base import Relation

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["bound_pairs"]

AHEAD = 5.0  # seconds of sweeps, as estimated, up to which more pairs are covered
MOST_CELLS = 5_000_000  # costs that backups read, beyond which nobody lists their pairs
LITTLE = 1e-2  # of the largest upper bound: what sweeps could still gain when they end
LONG = 40.0  # seconds of sweeps, as estimated, where no budget is given
ANSWERS = 30  # rounds of actions, at most, until a guess stands
SOLVED = 1e-7  # of the largest distance: a guess is solved for until here
NEAR = 0.03  # of the residual: one system is solved until here
STEPS = 300  # of the linear solver in one system


def bound_pairs(
    mdp: TabularMDP,
    gamma: float,
    first: IntArray | None = None,
    second: IntArray | None = None,
    *,
    relation: str | Relation = "plain",
    levels: tuple[BlockLevel, ...] = (),
    features: ValueFeatures | None = None,
    max_seconds: float | None = None,
    resources: Resources = HERE,
    report: ProgressCallback | None = None,
) -> Certificate:
    """Lower and upper bounds on the distances of pairs, as a certificate without clusters.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        first: (k) states; None for all pairs there are.
        second: (k) the others.
        relation: Which actions are compared.
        levels: Levels of blocks, proven for this model, discount and relation.
        features: Value features, likewise.
        max_seconds: Budget of time.
        resources: Threads, workers and memory. The result does not depend on them.
        report: Told about sweeps.
    """
    gamma = check_gamma(gamma)
    begin = time.monotonic()
    with compiling(report, about=COMPILING) as compiled, resources.started(report) as ready:
        arms = Arms(mdp, gamma, relation=relation, resources=ready)
        cost = Cost.of(mdp, max_seconds, arms.relation)
        for level in levels:
            arms.add_level(level)
        if features is not None:
            arms.set_features(features)
        if first is None or second is None:
            arms.cover_all()
        else:
            arms.cover(first, second)
            arms.adopt(_followed(arms), is_upper=True)
            _cover_ahead(arms, cost)
        stop, sweeps = "there is nothing to sweep", 0
        if arms.n_covered:
            sweeper = Sweeper(
                arms,
                lower=True,
                tol=1e-2 * LITTLE * (1.0 - gamma) * float(arms.upper.max()),
                pause=lambda detail: tell(report, "solving", sweeps, None, detail),
                purse=Purse(cost, cost.backup, LONG),
            )
            stop = "bounds move no more"
            for sweeps in range(1, sweeps_needed(gamma) + 1):
                moved = sweeper.sweep()
                tell(report, "sweeping pairs", sweeps, None, f"moved {moved:.2g}")
                if moved <= LITTLE * (1.0 - gamma) * float(arms.upper.max()):
                    break
                if sweeper.is_settled:
                    break
                seconds = time.monotonic() - begin - compiled.seconds
                if max_seconds is not None and seconds >= max_seconds:
                    stop = time_is_up(max_seconds)
                    break
                if not sweeper.is_affordable:
                    stop = f"budget: {counted(sweeps, 'sweep')}"
                    break
        run = run_record(
            "bound_pairs",
            0,
            compiled=compiled,
            sweeps=sweeps,
            backups=arms.backups,
            seconds=round(time.monotonic() - begin - compiled.seconds, 3),
        )
        return make_certificate(arms, tau=None, stop=stop, run=run, scope="covered")


def _cover_ahead(arms: Arms, cost: Cost) -> None:
    """Cover what backups of covered pairs read, and what these read, while that is quick."""
    lengths = np.diff(arms.mdp.indptr).reshape(arms.n, -1)
    while True:
        first, second = arms.pairs()
        if int(arms.relation.n_cells(lengths, first, second).sum()) > MOST_CELLS:
            return
        ahead = pairs_ahead(arms, arms.keys)
        count = np.union1d(ahead, arms.keys).size
        if count == arms.n_covered or cost.sweeps(count, SWEEPING) > AHEAD:
            return
        arms.cover(*np.divmod(ahead, arms.n))


def _followed(arms: Arms) -> FloatArray:
    """(covered) what pairs are apart at most if they are followed side by side: a guess.

    Nobody has to trust it: `Arms.adopt` makes a bound of it, or refuses it. Of a covered pair, the
    mass that both states send to one covered pair goes there, and all the rest as far as anything
    is. The best actions against that are found by policy iteration, one linear system at a time.
    """
    model, gamma, far = arms.model, arms.gamma, arms.starts.diameter
    first, second = arms.pairs()
    n_actions, count = model.n_actions, first.size
    table = np.zeros(count)
    if count == 0 or far == 0.0:
        return table
    shared = _shared_mass(arms.mdp, first, second)
    rest = 1.0 - np.asarray(shared.sum(axis=1)).reshape(count, n_actions)
    rest = np.clip(rest + model.radius[first] + model.radius[second], 0.0, 1.0)
    low, high = model.low, model.high
    constant = np.maximum(high[first] - low[second], high[second] - low[first])
    constant += gamma * rest * far

    def answered(table: FloatArray) -> FloatArray:
        """(count, n_actions) what each action makes of a table."""
        ahead = shared @ np.append(table, 0.0)  # the last one stands for equal states
        return constant + gamma * np.asarray(ahead).reshape(count, n_actions)

    for _ in range(ANSWERS):
        answers = answered(table)
        answer, best = answers.max(axis=1), answers.argmax(axis=1)
        residual = float(np.abs(answer - table).max())
        if residual <= SOLVED * far:
            break
        rows = gamma * shared[np.arange(count) * n_actions + best]

        def apply(x: FloatArray, rows: csr_array = rows) -> FloatArray:
            return np.asarray(rows @ np.append(x, 0.0))

        # f = answer + x, where x = rows (answer - table) + rows x, in units of the residual.
        right = apply((answer - table) / residual)
        x = solve_contraction(apply, right, atol=NEAR, max_steps=STEPS)
        table = answer + residual * x
        if not np.isfinite(table).all():
            return np.full(count, far)  # it breaks down rarely; sweeps do without a guess
    # What is left of the residual, up to rounding, makes all answers at most the table.
    return np.asarray(np.minimum(answered(table).max(axis=1) + 2.0 * SOLVED * far, far))


def _shared_mass(mdp: TabularMDP, first: IntArray, second: IntArray) -> csr_array:
    """(k * n_actions, k + 1) mass that the states of a pair both send to a pair, or to one state.

    A state that is in several pairs counts in one of them.
    """
    from scipy.sparse import csr_array

    count, a = first.size, mdp.n_actions
    parts = []
    for states in (first, second):
        column = np.full(mdp.n_states, -1)
        column[states[::-1]] = np.arange(count - 1, -1, -1)
        if mdp.terminal_state is not None:
            column[mdp.terminal_state] = count
        rows = (states[:, None] * a + np.arange(a)).ravel()
        indptr, entries = rows_taken(mdp.indptr, rows)
        place = column[mdp.indices[entries]]
        mass = np.where(place >= 0, mdp.normalised_probs[entries], 0.0)
        shape = (rows.size, count + 1)
        part = csr_array((mass, np.maximum(place, 0), indptr), shape=shape)
        part.sum_duplicates()
        parts.append(part)
    return csr_array(parts[0].minimum(parts[1]))
