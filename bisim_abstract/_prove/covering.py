"""The paper's rounds over covered pairs: retrieve, explore, sweep (Algorithm 1).

Embedding and index only decide which pairs are looked at; nothing they say enters a bound.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_int
from bisim_abstract._base.npz import read_npz, write_npz
from bisim_abstract._base.progress import tell
from bisim_abstract._base.types import FloatArray, IntArray, ProgressCallback
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._linkage.forests import count_clusters
from bisim_abstract._propose.embedding import as_points, landmark_mds
from bisim_abstract._propose.retrieval import retrieve_pairs, uniform_pairs
from bisim_abstract._prove.run import INTERRUPTED, Budget
from bisim_abstract.errors import FileFormatError, InvalidArgumentError


@dataclass(frozen=True)
class Settings:
    """What decides the course of a run; a checkpoint resumes only under the same."""

    fingerprint: str
    gamma: float
    neighbours: int
    partners: int
    sweeps_per_round: int
    dim: int
    index: str
    lower_start: str
    upper_start: str
    embedding: str  # digest of the points given; empty where the arm is embedded anew
    seed: int


@dataclass
class Rounds:
    """How far a run has come."""

    rounds: int = 0
    sweeps: int = 0
    stop: str = ""


def run_rounds(
    table: Arms,
    settings: Settings,
    points: npt.NDArray[np.float32] | None,
    *,
    tau: float | None,
    tol: float | None,
    budget: Budget,
    checkpoint: str | Path | None,
    report: ProgressCallback | None,
) -> Rounds:
    """Rounds of retrieval and sweeps until the arms agree, or a budget ends."""
    made = Rounds(*_resumed(table, settings, checkpoint))
    if made.rounds:  # resumed: the run may have been over already
        made.stop = _reason(table, tau, tol) or budget.ended(made.rounds, table.backups)
    try:
        while not made.stop:
            rng = np.random.default_rng([settings.seed, made.rounds])  # resuming needs no more
            if settings.neighbours:
                retrieve(table, points, settings.dim, settings.index, settings.neighbours, rng)
            if settings.partners:
                limit, count = table.memory_limit, settings.partners
                pairs = uniform_pairs(table.n, per_state=count, seed=rng, memory_limit=limit)
                table.cover(*pairs)
            for _ in range(settings.sweeps_per_round):
                table.sweep()
            made.rounds, made.sweeps = made.rounds + 1, made.sweeps + settings.sweeps_per_round
            if checkpoint is not None:
                _save_checkpoint(table, settings, made.rounds, made.sweeps, checkpoint)
            made.stop = _reason(table, tau, tol) or budget.ended(made.rounds, table.backups)
            tell(report, "certifying, round", made.rounds, budget.rounds, _state(table, tau))
    except KeyboardInterrupt:
        made.stop = f"{INTERRUPTED} in round {made.rounds + 1}"
    return made


def retrieve(
    table: Arms,
    points: npt.NDArray[np.float32] | None,
    dim: int,
    index: str,
    neighbours: int,
    rng: np.random.Generator,
) -> None:
    """Cover every state with its neighbours in the embedding."""
    n = table.n
    if neighbours == 0:
        return

    # In units of a power of two near the largest distance: squares and single precision hold it.
    unit = -int(np.frexp(table.starts.diameter)[1])

    def below(states: IntArray, others: IntArray) -> FloatArray:
        return np.asarray(np.ldexp(table.bounds(states, others)[0], unit))

    if points is None:
        limit = table.memory_limit
        points = as_points(landmark_mds(below, n, dim=dim, seed=rng, memory_limit=limit), n)
    table.cover(
        *retrieve_pairs(
            points, k=neighbours, index=index, seed=rng, memory_limit=table.memory_limit
        )
    )


def _global_width(table: Arms) -> float:
    covered = float((table.upper - table.lower).max(initial=0.0))
    return covered if table.coverage == 1.0 else max(covered, table.starts.widest())


def _reason(table: Arms, tau: float | None, tol: float | None) -> str:
    """Why the run has reached its goal; empty if it has not."""
    if tol is not None and _global_width(table) <= tol:
        return f"width {_global_width(table):.3g} is within {tol:g}"
    if tau is not None:
        low, high = _cluster_counts(table, tau)
        if low == high:  # one refines the other, so equal counts are equal clusterings
            return f"both clusterings agree at {tau:g}"
    return ""


def _cluster_counts(table: Arms, tau: float) -> tuple[int, int]:
    """Numbers of clusters of the lower and of the upper arm."""
    first, second = table.pairs()
    return (
        count_clusters(table.n, first, second, table.lower <= tau),
        count_clusters(table.n, first, second, table.upper <= tau),
    )


def _state(table: Arms, tau: float | None) -> str:
    text = f"{table.coverage:.1%} covered, width {_global_width(table):.3g}"
    if tau is None:
        return text
    low, high = _cluster_counts(table, tau)
    return f"{text}, {low:,} to {high:,} clusters"


def _save_checkpoint(
    table: Arms, settings: Settings, rounds: int, sweeps: int, path: str | Path
) -> None:
    header = {"settings": asdict(settings), "rounds": rounds, "sweeps": sweeps}
    header["backups"] = table.backups
    write_npz(
        path,
        {
            "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
            "keys": table.keys,
            "lower": table.lower,
            "upper": table.upper,
        },
        compress=False,
    )


def _resumed(table: Arms, settings: Settings, checkpoint: str | Path | None) -> tuple[int, int]:
    """Put a checkpoint, if there is one, into the table; rounds and sweeps made before.

    The bounds of a checkpoint are those of an earlier run of this program and are taken as
    they are: `verify` the certificate of a resumed run if the file may have been changed.
    """
    if checkpoint is None or not Path(checkpoint).exists():
        return 0, 0
    arrays = read_npz(checkpoint)
    try:
        header = json.loads(arrays["header"].tobytes().decode())
        theirs = header["settings"]
        rounds = check_int("rounds", header["rounds"], low=0)
        sweeps = check_int("sweeps", header["sweeps"], low=0)
        is_same = theirs == asdict(settings)
        if is_same:
            table.restore(arrays["keys"], arrays["lower"], arrays["upper"], header["backups"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{checkpoint} is not a sound checkpoint: {error}") from error
    if not is_same:
        raise InvalidArgumentError(
            f"{checkpoint} belongs to a run with other settings or of another model: {theirs}"
        )
    return rounds, sweeps
