"""What work on pairs takes, estimated, so that a run does what it can afford.

Of two quiet cores, whatever there is here: what a certificate says must not depend on the machine
that made it. Measured: a backup of a pair and action with rows of 4 takes a microsecond of one
core, one without transport a gather.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisim_abstract._model.mdp import TabularMDP

PATIENCE = 100.0  # seconds that a step may be estimated to take where no budget is given
CORES = 2
SOLVING = 7  # backups of every pair until all of them are solved for, about, whatever gamma is
MOST_SOLVING = 25  # the same, at most: where more are needed it goes in circles for long
MOST_SWEEPS = 10_000
LAX_SOLVING = 12  # the same where actions have no names: both sides of a game move longer,
LAX_GATHERS = 60  # and longer still without transports, which takes little time all the same
MATCHES = 3  # actions that one is compared with where they have no names, about: most are ruled out
SWEEPING = 60  # backups of both arms until covered pairs move no more, about
MOST_COVERED = 10_000_000  # pairs, as each of them takes some memory as well


@dataclass(frozen=True)
class Cost:
    """Estimates for one model.

    Attributes:
        backup: Seconds of one backup of one pair.
        patience: Seconds that a step may take.
        is_given: Whether these are what somebody asked for.
        solving: Backups of every pair until all of them are solved for.
    """

    backup: float
    patience: float
    is_given: bool
    solving: int = SOLVING

    @classmethod
    def of(cls, mdp: TabularMDP, max_seconds: float | None, relation: str = "plain") -> Cost:
        """Of a model, a budget, None for none, and which actions are compared."""
        cells = (mdp.nnz / (mdp.n_states * mdp.n_actions)) ** 2
        micros = 0.02 if mdp.is_deterministic else 0.02 + 0.045 * cells**1.15
        patience = PATIENCE if max_seconds is None else max_seconds
        backup = mdp.n_actions * micros * 1e-6 / CORES
        solving = SOLVING
        if relation == "lax":
            is_quick = mdp.is_deterministic
            backup *= mdp.n_actions if is_quick else min(MATCHES, mdp.n_actions)
            solving = LAX_GATHERS if is_quick else LAX_SOLVING
        return cls(backup, patience, max_seconds is not None, solving)

    def most_pairs(self) -> int:
        """Pairs that can be covered and swept."""
        return int(min(self.patience / (SWEEPING * self.backup), MOST_COVERED))

    def most_sweeps(self, n_pairs: int) -> int:
        """Backups of every pair after which solving for all ends: a budget ends it otherwise."""
        if self.is_given:
            return MOST_SWEEPS
        if self.solving == SOLVING:
            return MOST_SOLVING
        affordable = self.patience / max(n_pairs * self.backup, 1e-9)
        return int(np.clip(affordable, MOST_SOLVING, MOST_SWEEPS))

    def sweeps(self, n_pairs: int, count: int) -> float:
        """Seconds of so many backups of so many pairs."""
        return n_pairs * count * self.backup

    def all_pairs(self, n_pairs: int, *, is_estimate: bool) -> float:
        """Seconds until all pairs are solved for, or swept where the model is an estimate."""
        return n_pairs * self.backup * (SWEEPING if is_estimate else self.solving)
