"""From a model to a certificate: `certify`, and `single_build`, the paper's Algorithm 2.

`certify` bounds all pairs of states through blocks, features and single pairs where these are
needed (`refinement`), or, with scope "covered", follows the paper's Algorithm 1: rounds of
retrieval and sweeps over covered pairs (`covering`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.atomic import check_writable, remove_unfinished
from bisim_abstract._base.checks import (
    check_choice,
    check_gamma,
    check_int,
    check_memory_limit,
    check_positive,
    check_real,
)
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.parallel import Backend
from bisim_abstract._base.progress import compiling, shown, tell
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import IntArray, ProgressCallback
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.index_side import index_side_run
from bisim_abstract._certificate.certificate import KEEP, Certificate, check_share
from bisim_abstract._linkage.thresholds import best_interval, middle
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract._prove.covering import Settings, retrieve, run_rounds
from bisim_abstract._prove.refinement import SOURCES, Goal, Refinement
from bisim_abstract._prove.run import INTERRUPTED, Budget, run_record
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._base.jit import Compilation

__all__ = ["certify", "single_build"]

SCOPES = ("all", "covered")
RESOLUTION = 1e-9  # of the diameter: thresholds below are numerical noise
SMALLEST = 1e-300  # where the diameter is 0, so that ratios mean something
BACKENDS = ("local", "ray")
COMPILING = 10  # seconds it takes to compile what a first certificate needs
UNFINISHED = "unfinished"  # the `stop` of a checkpoint
ARMS = ("both", "lower", "upper")
BACKUPS = ("exact", "index")


def single_build(
    mdp: TabularMDP,
    gamma: float,
    *,
    tau: float | None = None,
    sweeps: int = 100,
    neighbours: int = 8,
    embedding: Embedding | npt.ArrayLike | None = None,
    dim: int = 8,
    index: str = "Flat",
    arms: str = "both",
    backup: str = "exact",
    omit: float = 0.0,
    lower_start: str = "reward",
    upper_start: str = "constant",
    seed: int = 0,
    threads: int | None = None,
    memory_limit: int | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
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
        memory_limit: Bytes that tables may take; what is available by default.
        callback: Called after every sweep.
        progress: Show a line also where there is no terminal, as in a notebook.

    Raises:
        MemoryLimitError: If the tables would not fit.

    Example:
        >>> from bisim_abstract.parts import sparse_mdp
        >>> single_build(sparse_mdp(30, seed=0), 0.9, neighbours=4).n_covered > 30
        True
    """
    check_mdp(mdp)
    check_choice("arms", arms, ARMS)
    sweeps = check_int("sweeps", sweeps, low=0)
    neighbours = check_int("neighbours", neighbours, low=0)
    seed = check_int("seed", seed, low=0)
    table = Arms(
        mdp,
        gamma,
        lower_start=lower_start,
        upper_start=upper_start,
        threads=threads,
        memory_limit=check_memory_limit(memory_limit),
    )
    points = None if embedding is None else as_points(embedding, mdp.n_states)
    check_choice("backup", backup, BACKUPS)
    made = 0
    with shown(callback, progress) as report, compiling(report, about=COMPILING) as compiled:
        retrieve(table, points, dim, index, neighbours, np.random.default_rng([seed, 0]))
        if backup == "index":
            return _index_side_build(table, tau, sweeps, dim, omit, seed, threads, compiled)
        while made < sweeps:
            moved = table.sweep(lower=arms != "upper", upper=arms != "lower")
            made += 1
            tell(report, "sweeping", made, sweeps, f"moved {max(moved):.2g}")
            if max(moved) == 0.0:
                break
    run = run_record(
        "single_build",
        seed,
        compiled=compiled,
        rounds=1,
        sweeps=made,
        backups=table.backups,
        index=index,
    )
    return Certificate.of(table, tau=tau, stop=f"{counted(made, 'sweep')} made", run=run)


def _index_side_build(
    table: Arms,
    tau: float | None,
    sweeps: int,
    dim: int,
    omit: float,
    seed: int,
    threads: int | None,
    compiled: Compilation,
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
        memory_limit=table.memory_limit,
    )
    run = run_record(
        "single_build", seed, compiled=compiled, rounds=1, sweeps=sweeps, backup="index"
    )
    run |= {"eps_op": found.eps_op, "eta": found.eta, "omitted": found.omitted}
    return Certificate.of(found.arms, tau=tau, stop=f"{counted(sweeps, 'sweep')} made", run=run)


def certify(
    mdp: TabularMDP,
    gamma: float,
    *,
    keep: float = KEEP,
    max_loss: float | None = None,
    tau: float | str | None = None,
    n_clusters: int | None = None,
    tol: float | None = None,
    scope: str = "all",
    blocks: npt.ArrayLike | None = None,
    embedding: Embedding | npt.ArrayLike | None = None,
    propose: Sequence[str] = SOURCES,
    max_pairs: int = 1_000_000,
    neighbours: int = 8,
    partners: int = 1,
    sweeps_per_round: int = 3,
    dim: int = 8,
    index: str = "LSH16",
    lower_start: str = "reward",
    upper_start: str = "reward",
    max_rounds: int = 100,
    max_seconds: float | None = None,
    max_backups: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    backend: str | Backend = "local",
    address: str | None = None,
    memory_limit: int | None = None,
    checkpoint: str | Path | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> Certificate:
    """Bounds on the metric until both arms agree on clusters that are worth having.

    If nothing else is asked for, the threshold is chosen by value: the coarsest certified one on
    whose clusters planning is *proven* to keep `keep` of the start value. The certificate's
    `value` holds the proof, its `verdict` says what it amounts to.

    With scope "all" (the default) the certified clustering is that of the metric itself, over
    all pairs of states. Blocks of similar states are proposed, by bisimulation classes, by the
    embedding, by rewards and by value features; bounds on pairs of blocks hold for all their
    members. Where these leave the clustering open, value features, covered pairs inside and
    across blocks, finer blocks, and at last all single pairs settle it. A proposal is never
    trusted.

    With scope "covered" it is the clustering over the pairs that were looked at (the paper's
    Algorithm 1): every round embeds the present lower arm anew (unless an embedding is given),
    builds an index with fresh randomness, covers the retrieved pairs and a few uniform partners
    per state, and sweeps both arms.

    Either ends when the goal is reached or a budget is. Ctrl-C ends it too: what was reached so
    far is returned.

    Args:
        mdp: The model. If it was estimated from samples, its confidence radii enter all bounds,
            which then hold for the true model with probability 1 - alpha.
        gamma: The discount, in [0, 1).
        keep: Share of the optimal start value, above that of random actions, that planning on
            the clusters must keep. Decides about the threshold unless one of the next four is
            given or the scope is "covered"; `verdict` holds the result against it in any case.
        max_loss: Look for the fewest clusters on which no state is proven to lose more.
        tau: Threshold at which the clusterings of both arms should agree. "auto" looks for the
            certified interval whose ends have the largest ratio, whatever it is worth.
        n_clusters: Look for a threshold that gives this many clusters, the end of episodes not
            counted.
        tol: Width of the bounds over all pairs to reach.
        scope: "all" or "covered".
        blocks: (n_states) a partition of the states to try first. Scope "all" only.
        embedding: Points (n_states, k), or an object with `encode`: where blocks are looked
            for, or pairs retrieved.
        propose: What may propose blocks besides `blocks`: any of "classes" (bisimulation
            classes), "embedding" (if one is given), "rewards" and "features" (value
            functions). Scope "all" only.
        max_pairs: Pairs of states that may be covered. Scope "all" only.
        neighbours: Neighbours retrieved per state and round. This and what follows, down to
            `upper_start`, is for scope "covered".
        partners: Uniform partners per state and round. With at least one, every pair is
            covered sooner or later.
        sweeps_per_round: Sweeps of both arms per round.
        dim: Dimension of the landmark MDS.
        index: FAISS factory string; "LSH16" has 16 random hyperplanes, new in every round.
        lower_start: "reward" or "zero".
        upper_start: "reward" or "constant" (the paper's).
        max_rounds: Budget of rounds; with scope "all", of refinement steps.
        max_seconds: Budget of time, looked at after every round or sweep.
        max_backups: Budget of pair backups, both arms counted, block pairs included.
        seed: Seed of embeddings, indexes, partners and proposals.
        threads: Number of threads; all cores by default. The result does not depend on it.
        backend: "local" for threads of this process, "ray" for a Ray cluster, or a
            `RayBackend`. Sweeps of pairs, blocks and features are done there; the result does
            not depend on it.
        address: Of a running Ray cluster; a local one is started by default.
        memory_limit: Bytes that tables may take; what is available by default. A run that
            would not fit ends with a `MemoryLimitError` before it takes them.
        checkpoint: File that is written after every round. If it exists, the run goes on
            from it and ends as it would have without the interruption.
        callback: Called after every round or sweep.
        progress: Show a line also where there is no terminal, as in a notebook.

    Returns:
        The certificate, whether or not the goal was reached: its `stop` says why it ended.

    Example:
        >>> from bisim_abstract.parts import grouped_mdp
        >>> mdp, groups = grouped_mdp(60, 5, noise=0.01, seed=0)
        >>> certificate = certify(mdp, 0.9)
        >>> certificate.is_certified, certificate.n_clusters, certificate.value.kept > 0.95
        (True, 4, True)
        >>> certify(mdp, 0.9, tau="auto").n_clusters
        5
    """
    check_mdp(mdp)
    gamma = check_gamma(gamma)
    check_choice("scope", scope, SCOPES)
    is_auto = isinstance(tau, str)
    threshold = check_tau(tau)
    if isinstance(propose, str):
        raise InvalidArgumentError(f"propose must be a list of names, got {propose!r}")
    keep = check_share("keep", keep)
    check_one_goal(tau=threshold, n_clusters=n_clusters, max_loss=max_loss)
    check_one_goal(tau=tau, max_loss=max_loss)
    check_one_goal(max_loss=max_loss, tol=tol)
    n_live = mdp.n_states - (mdp.terminal_state is not None)
    if n_clusters is not None:
        n_clusters = check_int("n_clusters", n_clusters, low=1, high=max(n_live, 1))
    if tol is not None:
        tol = check_positive("tol", tol)
    if max_loss is not None:
        max_loss = check_loss(max_loss)
    points = None if embedding is None else as_points(embedding, mdp.n_states)
    settings = Settings(
        fingerprint=mdp.fingerprint,
        gamma=gamma,
        neighbours=check_int("neighbours", neighbours, low=0),
        partners=check_int("partners", partners, low=0),
        sweeps_per_round=check_int("sweeps_per_round", sweeps_per_round, low=1),
        dim=check_int("dim", dim, low=1),
        index=index,
        lower_start=lower_start,
        upper_start=upper_start,
        embedding=_digest(points),
        seed=check_int("seed", seed, low=0),
    )
    memory_limit = check_memory_limit(memory_limit)
    max_rounds = check_int("max_rounds", max_rounds, low=1)
    if max_seconds is not None:
        max_seconds = check_positive("max_seconds", max_seconds)
    if max_backups is not None:
        max_backups = check_int("max_backups", max_backups, low=1)
    if checkpoint is not None:  # before any work that could not be kept
        check_writable(checkpoint)
        remove_unfinished(checkpoint)
    for name, given in (("blocks", blocks), ("max_loss", max_loss)):
        if given is not None and scope != "all":
            raise InvalidArgumentError(f"{name} is for scope 'all'; the paper's rounds have none")
    with (
        shown(callback, progress) as report,
        compiling(report, about=COMPILING) as compiled,
        _workers(backend, address, threads, callback) as workers,
    ):
        budget = Budget(max_rounds, max_seconds, max_backups, compiled)
        table = Arms(
            mdp,
            gamma,
            lower_start=lower_start,
            upper_start=upper_start,
            threads=threads,
            backend=workers,
            memory_limit=memory_limit,
        )
        if scope == "all":
            goal = Goal(
                tau=threshold,
                n_clusters=n_clusters,
                tol=tol,
                is_widest=is_auto,
                max_loss=max_loss,
                keep=keep,
                n_states=n_live,
                resolution=max(RESOLUTION * table.starts.diameter, SMALLEST),
            )
            labels = None if blocks is None else as_labels(blocks, mdp.n_states, name="blocks")
            work = Refinement(
                table,
                goal,
                labels=labels,
                points=points,
                sources=tuple(check_choice("propose", name, SOURCES) for name in propose),
                max_pairs=check_int("max_pairs", max_pairs, low=0),
                seed=settings.seed,
                threads=threads,
                backend=workers,
            )
            return _refined(work, settings, labels, budget, checkpoint, report)
        made = run_rounds(
            table,
            settings,
            points,
            tau=threshold,
            tol=tol,
            budget=budget,
            checkpoint=checkpoint,
            report=report,
        )
        run = run_record(
            "certify",
            settings.seed,
            compiled=compiled,
            rounds=made.rounds,
            sweeps=made.sweeps,
            backups=table.backups,
            seconds=round(budget.elapsed(), 3),
            settings=asdict(settings),
        )
        found = Certificate.of(table, tau=threshold, stop=made.stop, run=run, keep=keep)
        if is_auto or n_clusters is not None:
            floor = RESOLUTION * table.starts.diameter
            best = best_interval(
                found.certified_thresholds(), n_live, n_clusters=n_clusters, floor=floor
            )
            if best is not None:
                found = found.at(middle(best, floor=floor))
        return found.with_value() if found.is_certified else found


@contextmanager
def _workers(
    backend: str | Backend,
    address: str | None,
    threads: int | None,
    callback: ProgressCallback | None,
) -> Iterator[Backend | None]:
    """Who sweeps: None for threads of this process. A cluster started here ends here."""
    if not isinstance(backend, str):
        yield backend
        return
    check_choice("backend", backend, BACKENDS)
    if backend == "local":
        if address is not None:
            raise InvalidArgumentError("address goes with backend 'ray'")
        yield None
        return
    from bisim_abstract._base.ray import RayBackend

    with RayBackend(address=address, num_cpus=threads) as cluster:
        if callback is not None:
            cluster.listener = lambda done, total: tell(callback, "shards", done, total, "on Ray")
        yield cluster


def check_one_goal(**goals: object) -> None:
    """Refuse more than one way to choose a threshold."""
    given = [name for name, value in goals.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgumentError(f"give {' or '.join(given)}, not both")


def check_loss(max_loss: float) -> float:
    """A loss as a float of at least 0."""
    value = check_real("max_loss", max_loss)
    if value < 0.0:
        raise InvalidArgumentError(f"max_loss must be at least 0, got {value!r}")
    return value


def check_tau(tau: float | str | None) -> float | None:
    """A threshold as a float of at least 0, or None for "auto" and for none."""
    if tau is None:
        return None
    if isinstance(tau, str):
        check_choice("tau", tau, ("auto",))
        return None
    threshold = check_real("tau", tau)
    if threshold < 0.0:
        raise InvalidArgumentError(f"tau must be at least 0, a distance, got {threshold!r}")
    return threshold


def _refined(
    work: Refinement,
    settings: Settings,
    labels: IntArray | None,
    budget: Budget,
    checkpoint: str | Path | None,
    report: ProgressCallback | None,
) -> Certificate:
    """Steps over all pairs until the goal is reached or a budget ends."""
    record = asdict(settings) | asdict(work.goal) | {"blocks": _digest(labels), "scope": "all"}
    record |= {"max_pairs": work.max_pairs, "propose": list(work.sources)}

    def certificate(stop: str) -> Certificate:
        run = run_record(
            "certify",
            settings.seed,
            compiled=budget.compiled,
            rounds=work.done,
            steps=list(work.log),
            backups=work.backups,
            seconds=round(budget.elapsed(), 3),
            settings=record,
        )
        return work.certificate(stop=stop, run=run, is_final=stop != UNFINISHED)

    if checkpoint is not None and Path(checkpoint).exists():
        _resume(work, record, checkpoint)

    def pause(stage: str, detail: str) -> None:
        tell(report, stage, work.done, None, detail)
        ended = budget.ended(0, work.backups)
        if ended:
            raise TimeoutError(ended)

    stop = ""
    try:
        while not stop:
            stop = work.reason() if work.done else ""
            stop = stop or budget.ended(work.done, work.backups)
            if not stop and not work.step(pause):
                stop = work.leftover()
            if checkpoint is not None and not stop:
                certificate(UNFINISHED).save(checkpoint)
    except TimeoutError as ended:
        stop = str(ended)
    except KeyboardInterrupt:
        stop = f"{INTERRUPTED} in step {work.done + 1}"
    work.settle()
    return certificate(stop)


def _resume(work: Refinement, record: dict[str, Any], checkpoint: str | Path) -> None:
    """Take over the bounds of a checkpoint: a certificate of an unfinished run.

    They are taken as they are: `verify` the certificate of a resumed run if the file may have
    been changed.
    """
    found = Certificate.load(checkpoint)
    theirs = found.run.get("settings")
    if theirs != json.loads(json.dumps(record)):
        raise InvalidArgumentError(
            f"{checkpoint} belongs to a run with other settings or of another model: {theirs}"
        )
    work.resume(found)


def _digest(array: npt.NDArray[Any] | None) -> str:
    return "" if array is None else hashlib.sha256(array.tobytes()).hexdigest()
