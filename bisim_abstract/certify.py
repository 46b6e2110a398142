"""The paper's pipeline: an index proposes pairs, the exact arms prove bounds on them.

`single_build` is its Algorithm 2: one embedding, one index, one covered set, then sweeps.
`certify` is its Algorithm 1: rounds of re-embedding the lower arm, a fresh index, a few uniform
partners per state, and sweeps, until the arms are close enough, agree at a threshold, or a
budget ends. Embedding and index only decide which pairs are looked at; nothing they say enters
a bound.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._npz import read_npz, write_npz
from bisim_abstract._progress import shown
from bisim_abstract._typing import FloatArray, IntArray, Progress, ProgressCallback
from bisim_abstract._validation import (
    check_choice,
    check_gamma,
    check_int,
    check_positive,
    check_real,
)
from bisim_abstract._version import __version__
from bisim_abstract.approximate import index_side_run
from bisim_abstract.arms import Arms
from bisim_abstract.certificate import Certificate
from bisim_abstract.embedding import Embedding, as_points, landmark_mds
from bisim_abstract.errors import FileFormatError, InvalidArgumentError
from bisim_abstract.mdp import TabularMDP, check_mdp
from bisim_abstract.partition import count_clusters
from bisim_abstract.retrieval import retrieve_pairs, uniform_pairs

__all__ = ["certify", "single_build"]

ARMS = ("both", "lower", "upper")
BACKUPS = ("exact", "index")


def single_build(
    mdp: TabularMDP,
    gamma: float,
    *,
    tau: float | None = None,
    sweeps: int = 100,
    neighbours: int = 8,
    embedding: Embedding | FloatArray | None = None,
    dim: int = 8,
    index: str = "Flat",
    arms: str = "both",
    backup: str = "exact",
    omit: float = 0.0,
    lower_start: str = "reward",
    upper_start: str = "constant",
    seed: int = 0,
    threads: int | None = None,
    callback: ProgressCallback | None = None,
) -> Certificate:
    """One embedding, one index, one covered set, and synchronous sweeps (Algorithm 2).

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        tau: Threshold to cluster at.
        sweeps: Number of sweeps; fewer are made if nothing moves any more.
        neighbours: Neighbours retrieved per state.
        embedding: Points (n_states, k), or an object with `encode`; by default the landmark
            MDS of the lower arm's start.
        dim: Dimension of that MDS.
        index: FAISS factory string: "Flat", "LSH16", "HNSW16", "IVF64,Flat", ...
        arms: "both", or one of them alone, the other staying at its start.
        backup: "exact", or "index" to read ground costs off embeddings of the arms. The error
            of such backups is measured and both arms are moved outward by what it can amount
            to, so that the bounds hold as ever; `run` states it as "eps_op".
        omit: Share of probability mass that "index" backups may leave out.
        lower_start: "reward" or "zero".
        upper_start: "constant" or "reward".
        seed: Seed of embedding and index.
        threads: Number of threads; all cores by default. The result does not depend on it.
        callback: Called after every sweep.

    Example:
        >>> from bisim_abstract import sparse_mdp
        >>> single_build(sparse_mdp(30, seed=0), 0.9, neighbours=4).n_covered > 30
        True
    """
    check_mdp(mdp)
    check_choice("arms", arms, ARMS)
    sweeps = check_int("sweeps", sweeps, low=0)
    neighbours = check_int("neighbours", neighbours, low=0)
    seed = check_int("seed", seed, low=0)
    table = Arms(mdp, gamma, lower_start=lower_start, upper_start=upper_start, threads=threads)
    points = None if embedding is None else as_points(embedding, mdp.n_states)
    _retrieve(table, points, dim, index, neighbours, np.random.default_rng([seed, 0]))
    if check_choice("backup", backup, BACKUPS) == "index":
        return _index_side_build(table, tau, sweeps, dim, omit, seed, threads)
    made = 0
    with shown(callback) as report:
        while made < sweeps:
            moved = table.sweep(lower=arms != "upper", upper=arms != "lower")
            made += 1
            _tell(report, "sweeping", made, sweeps, f"moved {max(moved):.2g}")
            if max(moved) == 0.0:
                break
    run = _run_record(
        "single_build", seed, rounds=1, sweeps=made, backups=table.backups, index=index
    )
    return Certificate.of(table, tau=tau, stop=f"{made} sweeps made", run=run)


def _index_side_build(
    table: Arms,
    tau: float | None,
    sweeps: int,
    dim: int,
    omit: float,
    seed: int,
    threads: int | None,
) -> Certificate:
    first, second = table.pairs()
    found = index_side_run(
        table.mdp,
        table.gamma,
        first=first,
        second=second,
        sweeps=sweeps,
        dim=dim,
        omit=omit,
        lower_start=table.starts.lower,
        upper_start=table.starts.upper,
        seed=seed,
        threads=threads,
    )
    run = _run_record("single_build", seed, rounds=1, sweeps=sweeps, backup="index")
    run |= {"eps_op": found.eps_op, "eta": found.eta, "omitted": found.omitted}
    return Certificate.of(found.arms, tau=tau, stop=f"{sweeps} sweeps made", run=run)


@dataclass(frozen=True)
class _Settings:
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


@dataclass(frozen=True)
class _Budget:
    """How much a run may use."""

    rounds: int
    seconds: float | None
    backups: int | None

    def ended(self, rounds: int, seconds: float, backups: int) -> str:
        """Which budget has ended, in words; empty if none has."""
        if rounds >= self.rounds:
            return f"budget: {rounds} rounds"
        if self.seconds is not None and seconds >= self.seconds:
            return f"budget: {seconds:.1f} seconds"
        if self.backups is not None and backups >= self.backups:
            return f"budget: {backups:,} pair backups"
        return ""


def certify(
    mdp: TabularMDP,
    gamma: float,
    *,
    tau: float | None = None,
    tol: float | None = None,
    neighbours: int = 8,
    partners: int = 1,
    sweeps_per_round: int = 3,
    embedding: Embedding | FloatArray | None = None,
    dim: int = 8,
    index: str = "LSH16",
    lower_start: str = "reward",
    upper_start: str = "reward",
    max_rounds: int = 100,
    max_seconds: float | None = None,
    max_backups: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    callback: ProgressCallback | None = None,
) -> Certificate:
    """Rounds of retrieval and sweeps until the arms agree (Algorithm 1).

    Every round embeds the present lower arm anew (unless an embedding is given), builds an
    index with fresh randomness, adds the retrieved pairs and a few uniform partners per state
    to the covered set, and sweeps both arms. It ends when the bounds of all pairs are within
    `tol`, when both clusterings at `tau` are equal, or with a budget. Ctrl-C ends it too: what
    was reached so far is returned.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        tau: Threshold at which the clusterings of both arms should agree.
        tol: Width of the bounds over all pairs to reach.
        neighbours: Neighbours retrieved per state and round.
        partners: Uniform partners per state and round. With at least one, every pair is
            covered sooner or later.
        sweeps_per_round: Sweeps of both arms per round.
        embedding: Points (n_states, k), or an object with `encode`, instead of re-embedding.
        dim: Dimension of the landmark MDS.
        index: FAISS factory string; "LSH16" has 16 random hyperplanes, new in every round.
        lower_start: "reward" or "zero".
        upper_start: "reward" or "constant" (the paper's).
        max_rounds: Budget of rounds.
        max_seconds: Budget of time, looked at after every round.
        max_backups: Budget of pair backups, both arms counted.
        seed: Seed of embeddings, indexes and partners.
        threads: Number of threads; all cores by default. The result does not depend on it.
        checkpoint: File that is written after every round. If it exists, the run goes on
            from it and ends as it would have without the interruption.
        callback: Called after every round.

    Returns:
        The certificate, whether or not the goal was reached: its `stop` says why it ended.

    Example:
        >>> from bisim_abstract import sparse_mdp
        >>> certificate = certify(sparse_mdp(20, seed=0), 0.7, tol=1e-6)
        >>> certificate.coverage, certificate.global_width <= 1e-6
        (1.0, True)
    """
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    if tau is not None:
        tau = check_real("tau", tau)
    if tol is not None:
        tol = check_positive("tol", tol)
    points = None if embedding is None else as_points(embedding, mdp.n_states)
    settings = _Settings(
        fingerprint=mdp.fingerprint,
        gamma=gamma,
        neighbours=check_int("neighbours", neighbours, low=0),
        partners=check_int("partners", partners, low=0),
        sweeps_per_round=check_int("sweeps_per_round", sweeps_per_round, low=1),
        dim=check_int("dim", dim, low=1),
        index=index,
        lower_start=lower_start,
        upper_start=upper_start,
        embedding="" if points is None else hashlib.sha256(points.tobytes()).hexdigest(),
        seed=check_int("seed", seed, low=0),
    )
    budget = _Budget(
        rounds=check_int("max_rounds", max_rounds, low=1),
        seconds=None if max_seconds is None else check_positive("max_seconds", max_seconds),
        backups=None if max_backups is None else check_int("max_backups", max_backups, low=1),
    )
    table = Arms(mdp, gamma, lower_start=lower_start, upper_start=upper_start, threads=threads)
    rounds, sweeps = _resumed(table, settings, checkpoint)
    begin = time.monotonic()
    stop = ""
    if rounds:  # resumed: the run may have been over already
        stop = _reason(table, tau, tol) or budget.ended(rounds, 0.0, table.backups)
    with shown(callback) as report:
        try:
            while not stop:
                rng = np.random.default_rng([settings.seed, rounds])  # resuming needs no more
                if settings.neighbours:
                    _retrieve(table, points, dim, index, settings.neighbours, rng)
                if settings.partners:
                    table.cover(*uniform_pairs(mdp.n_states, per_state=settings.partners, seed=rng))
                for _ in range(settings.sweeps_per_round):
                    table.sweep()
                rounds, sweeps = rounds + 1, sweeps + settings.sweeps_per_round
                if checkpoint is not None:
                    _save_checkpoint(table, settings, rounds, sweeps, checkpoint)
                seconds = time.monotonic() - begin
                stop = _reason(table, tau, tol) or budget.ended(rounds, seconds, table.backups)
                _tell(report, "certifying, round", rounds, budget.rounds, _state(table, tau))
        except KeyboardInterrupt:
            stop = f"interrupted in round {rounds + 1}"
    run = _run_record(
        "certify",
        settings.seed,
        rounds=rounds,
        sweeps=sweeps,
        backups=table.backups,
        seconds=round(time.monotonic() - begin, 3),
        settings=asdict(settings),
    )
    return Certificate.of(table, tau=tau, stop=stop, run=run)


def _retrieve(
    table: Arms,
    points: npt.NDArray[np.float32] | None,
    dim: int,
    index: str,
    neighbours: int,
    rng: np.random.Generator,
) -> None:
    """Cover every state with its neighbours in the embedding."""
    n = table.mdp.n_states

    def below(states: IntArray, others: IntArray) -> FloatArray:
        return table.bounds(states, others)[0]

    if points is None:
        points = as_points(landmark_mds(below, n, dim=dim, seed=rng), n)
    table.cover(*retrieve_pairs(points, k=neighbours, index=index, seed=rng))


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
        count_clusters(table.mdp.n_states, first, second, table.lower <= tau),
        count_clusters(table.mdp.n_states, first, second, table.upper <= tau),
    )


def _state(table: Arms, tau: float | None) -> str:
    text = f"{table.coverage:.1%} covered, width {_global_width(table):.3g}"
    if tau is None:
        return text
    low, high = _cluster_counts(table, tau)
    return f"{text}, {low:,} to {high:,} clusters"


def _tell(
    report: ProgressCallback | None, stage: str, done: int, total: int | None, detail: str
) -> None:
    if report is not None:
        report(Progress(stage, done, total, detail))


def _run_record(function: str, seed: int, **entries: Any) -> dict[str, Any]:
    versions = {"bisim_abstract": __version__, "python": platform.python_version()}
    versions["numpy"] = np.__version__
    return {"function": function, "seed": seed, "versions": versions, **entries}


def _save_checkpoint(
    table: Arms, settings: _Settings, rounds: int, sweeps: int, path: str | Path
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


def _resumed(table: Arms, settings: _Settings, checkpoint: str | Path | None) -> tuple[int, int]:
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
