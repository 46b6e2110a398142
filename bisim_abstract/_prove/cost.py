"""What work takes, estimated, so that a run does what it can afford.

Of two quiet cores, whatever there is here: what a certificate says must not depend on the machine
that made it, nor on its clock. Measured: a backup of a pair and action with rows of 4 takes a
microsecond of one core, one without transport a gather.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract._bounds.blocks import BlockModel
from bisim_abstract._bounds.spanning import CELL_LIMIT
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.base import Relation
from bisim_abstract._relations.table import find_relation

PATIENCE = 100.0  # seconds that a run may be estimated to take where no budget is given
CORES = 2
SOLVING = 7  # backups of every pair until all of them are solved for, about, whatever gamma is
MOST_SOLVING = 25  # the same, at most: where more are needed it goes in circles for long
MOST_SWEEPS = 10_000
LAX_SOLVING = 12  # the same where actions have no names: both sides of a game move longer,
LAX_GATHERS = 60  # and longer still without transports, which takes little time all the same
MATCHES = 3  # actions that one is compared with where they have no names, about: most are ruled out
SWEEPING = 60  # backups of both arms until covered pairs move no more, about
COVERING = 10  # backups that covering a pair takes as long as: it is looked up what these read
MOST_COVERED = 10_000_000  # pairs, as each of them takes some memory as well
FUNCTIONS = 16  # value functions of a run, each of which is kept in three tables while it is made
FINEST = 80_000_000  # bytes that proofs come to in models too large for very fine clusterings
UNCOUNTED = 10_000_000  # bytes of copies of a model that are not worth counting
FREE = 1e-300  # masses below are listed, and not transported


@dataclass
class Cost:
    """Estimates for one model, and what a run has taken by them so far.

    Attributes:
        backup: Seconds of one backup of one pair.
        patience: Seconds that the run may take.
        is_given: Whether these are what somebody asked for: then a clock ends the run.
        solving: Backups of every pair until all of them are solved for.
        spent: Seconds that it is estimated to have taken.
    """

    backup: float
    patience: float
    is_given: bool
    solving: int = SOLVING
    spent: float = 0.0

    @classmethod
    def of(
        cls, mdp: TabularMDP, max_seconds: float | None, relation: str | Relation = "plain"
    ) -> Cost:
        """Of a model, a budget, None for none, and which actions are compared."""
        cells = (mdp.nnz / (mdp.n_states * mdp.n_actions)) ** 2
        micros = 0.02 if mdp.is_deterministic else 0.02 + _transport(cells)
        patience = PATIENCE if max_seconds is None else max_seconds
        backup = mdp.n_actions * micros * 1e-6 / CORES
        solving = SOLVING
        if find_relation(relation).matches_actions:
            is_quick = mdp.is_deterministic
            backup *= mdp.n_actions if is_quick else min(MATCHES, mdp.n_actions)
            solving = LAX_GATHERS if is_quick else LAX_SOLVING
        return cls(backup, patience, max_seconds is not None, solving)

    @property
    def left(self) -> float:
        """Seconds that are left; all of a budget, as a clock knows better what is left of it."""
        return self.patience if self.is_given else max(self.patience - self.spent, 0.0)

    def affords(self, seconds: float) -> bool:
        """Whether so many seconds are left, or a clock decides."""
        return self.is_given or seconds <= self.left

    def spend(self, seconds: float) -> None:
        """Note what a piece of work is estimated to have taken."""
        self.spent += seconds

    def most_pairs(self, kept: float = 0.0) -> int:
        """Pairs that can be covered and swept with what is left, less what is kept for others."""
        left = max(self.left - kept, 0.0)
        return int(min(left / (SWEEPING * self.backup), MOST_COVERED))

    def most_sweeps(self, n_pairs: int) -> int:
        """Backups of every pair after which solving for all ends: a budget ends it otherwise."""
        if self.is_given:
            return MOST_SWEEPS
        if self.solving == SOLVING:
            return MOST_SOLVING
        affordable = self.left / max(n_pairs * self.backup, 1e-9)
        return int(np.clip(affordable, MOST_SOLVING, MOST_SWEEPS))

    def sweeps(self, n_pairs: int, count: int) -> float:
        """Seconds of so many backups of so many pairs."""
        return n_pairs * count * self.backup

    def all_pairs(self, n_pairs: int, *, is_sampled: bool) -> float:
        """Seconds until all pairs are solved for, or swept where the model was sampled."""
        return n_pairs * self.backup * (SWEEPING if is_sampled else self.solving)


def copied_bytes(mdp: TabularMDP) -> int:
    """Bytes of what is copied of a model at the peak of a run, measured: for proofs of value.

    Little where the model is small, and then not counted. Where hardly two states are alike, a
    clustering may be as large as the model, and its proof takes four times as much. Up to
    CELL_LIMIT states such clusterings are found.
    """
    fine = 300 * mdp.nnz
    if mdp.n_states > CELL_LIMIT:
        fine = min(fine, FINEST)
    needed = max(72 * mdp.nnz + 100 * mdp.n_states, fine)
    return needed if needed > UNCOUNTED else 0


def functions_bytes(mdp: TabularMDP) -> int:
    """Bytes of the value functions that a run may come to need."""
    return 24 * FUNCTIONS * mdp.n_states


def block_backup(model: BlockModel, relation: str | Relation = "plain") -> float:
    """Seconds of one backup of one pair of blocks, and which actions are compared in it.

    All cells of two rows are read. Their masses are transported, unless radii leave nothing of it.
    """
    widths = np.diff(model.indptr)
    masses = np.add.reduceat((model.probs > FREE).astype(np.float64), model.indptr[:-1])
    solved = float(np.maximum(1.0 - 2.0 * model.radius, 0.0).mean())
    micros = 1.0 + 0.0025 * float(widths.mean()) ** 2
    micros += solved * _transport(float(masses.mean()) ** 2)
    matches = min(MATCHES, model.n_actions) if find_relation(relation).matches_actions else 1
    return matches * model.n_actions * micros * 1e-6 / CORES


def _transport(cells: float) -> float:
    """Microseconds of a transport with so many cells."""
    return 0.045 * float(cells**1.15)


def proof_of_value(nnz: int, gamma: float) -> float:
    """Seconds of a proof of what a clustering is worth, for a model of so many transitions."""
    return nnz * (6e-7 + 6e-9 / (1.0 - gamma))


def round_of_witnesses(n_states: int, n_blocks: int, count: int) -> float:
    """Seconds of one round in which so many witnesses are made."""
    return 7e-10 * n_states * n_blocks * count
