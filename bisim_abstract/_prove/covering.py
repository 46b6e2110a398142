"""The paper's rounds over covered pairs: retrieve, explore, sweep (Algorithm 1).

Embedding and index only decide which pairs are looked at; nothing they say enters a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import array_digest
from bisim_abstract._base.checks import check_choice, check_fraction, check_int
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.ground import LOWER_STARTS, UPPER_STARTS
from bisim_abstract._bounds.index_side import index_side_run
from bisim_abstract._bounds.spanning import link_forests
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.frontier import ValueSearch
from bisim_abstract._linkage.forests import count_clusters
from bisim_abstract._linkage.thresholds import (
    best_interval,
    certified_intervals,
    middle,
    wide_intervals,
)
from bisim_abstract._propose.embedding import Embedding, as_points, landmark_mds
from bisim_abstract._propose.retrieval import retrieve_pairs, uniform_pairs
from bisim_abstract._prove.making import make_certificate
from bisim_abstract._prove.target import RESOLUTION
from bisim_abstract._prove.work import Pause
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._prove.options import Options

__all__ = ["Covering"]

ARMS = ("both", "lower", "upper")
BACKUPS = ("exact", "index")
ERRORS = ("eps_op", "eta", "omitted")  # of backups off an index


@dataclass(frozen=True, kw_only=True, eq=False)
class Covering:
    """Rounds over covered pairs, as in the paper's Algorithm 1.

    Every round embeds the present lower arm anew (unless an embedding is given), builds an index
    with fresh randomness, covers the retrieved pairs and a few uniform partners per state, and
    sweeps both arms. What is certified is the clustering over the pairs that were covered.

    Attributes:
        embedding: Points (n_states, k), or an object with `encode`, to retrieve pairs from; by
            default the landmark MDS of the lower arm.
        neighbours: Neighbours retrieved per state and round.
        partners: Uniform partners per state and round. With at least one, every pair is covered
            sooner or later.
        sweeps: Sweeps per round; fewer are made if nothing moves any more.
        dim: Dimension of the landmark MDS.
        index: FAISS factory string: "LSH16" has 16 random hyperplanes, new in every round;
            "Flat", "HNSW16", "IVF64,Flat", ...
        lower_start: "reward" or "zero".
        upper_start: "reward" or "constant" (the paper's).
        arms: "both", or one of them alone, the other staying at its start.
        backup: "exact", or "index" to read ground costs off embeddings of the arms. The error of
            such backups is measured and both arms are moved outward by what it can amount to,
            so that the bounds hold as ever; the certificate's `run` states it as "eps_op".
        omit: Share of probability mass that "index" backups may leave out.
    """

    name: ClassVar[str] = "covering"
    scope: ClassVar[str] = "covered"

    embedding: Embedding | npt.ArrayLike | None = None
    neighbours: int = 8
    partners: int = 1
    sweeps: int = 3
    dim: int = 8
    index: str = "LSH16"
    lower_start: str = "reward"
    upper_start: str = "reward"
    arms: str = "both"
    backup: str = "exact"
    omit: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("neighbours", 0), ("partners", 0), ("sweeps", 0), ("dim", 1)):
            object.__setattr__(self, name, check_int(name, getattr(self, name), low=low))
        if not isinstance(self.index, str):
            raise InvalidArgumentError(f"index must be a FAISS factory string, got {self.index!r}")
        check_choice("lower_start", self.lower_start, LOWER_STARTS)
        check_choice("upper_start", self.upper_start, UPPER_STARTS)
        check_choice("arms", self.arms, ARMS)
        check_choice("backup", self.backup, BACKUPS)
        object.__setattr__(self, "omit", check_fraction("omit", self.omit))
        if self.backup == "index" and self.arms != "both":
            raise InvalidArgumentError("backup 'index' moves both arms; arms must be 'both'")
        if self.backup == "exact" and self.omit > 0.0:
            raise InvalidArgumentError("omit is for backup 'index'; exact ones leave nothing out")

    def check(self, options: Options) -> None:
        """Values are not what the paper's rounds look at."""
        for name in ("keep", "max_loss"):
            if getattr(options, name) is not None:
                raise InvalidArgumentError(
                    f"{name} is for method Blocks; the paper's rounds have none"
                )

    def starts(self) -> Mapping[str, Any]:
        """How arms start."""
        return {"lower_start": self.lower_start, "upper_start": self.upper_start}

    def begin(self, table: Arms, options: Options) -> Rounds:
        """A run on arms that cover nothing yet."""
        return Rounds(table, self, options)


# The paper's Algorithm 2, in one round.
SINGLE_BUILD = Covering(partners=0, sweeps=100, index="Flat", upper_start="constant")


class Rounds:
    """A run over covered pairs, one round at a time.

    Args:
        table: Arms over pairs of states, nothing covered.
        method: How to cover.
        options: What to reach.
    """

    unit = "round"

    def __init__(self, table: Arms, method: Covering, options: Options) -> None:
        self.table = table
        self.done = 0
        self._sweeps = self._index_backups = 0
        self._errors: dict[str, float] = {}  # of backups off an index
        self._method, self._options = method, options
        given = method.embedding
        self._points = None if given is None else as_points(given, table.n)

    @property
    def backups(self) -> int:
        """Backups made so far."""
        return self.table.backups + self._index_backups

    def step(self, pause: Pause) -> bool:
        """One round: retrieve, explore, sweep."""
        method, table = self._method, self.table
        rng = np.random.default_rng([self._options.seed, self.done])  # resuming needs no more
        if method.neighbours:
            retrieve(table, self._points, method.dim, method.index, method.neighbours, rng)
        if method.partners:
            pairs = uniform_pairs(
                table.n, per_state=method.partners, seed=rng, resources=table.resources
            )
            table.cover(*pairs)
        if method.backup == "index":
            self._sweep_by_index()
        else:
            self._sweep(pause)
        self.done += 1
        pause("certifying, round", self._state(), may_end=False)
        return True

    def _sweep(self, pause: Pause) -> None:
        method = self._method
        for sweep in range(1, method.sweeps + 1):
            moved = self.table.sweep(lower=method.arms != "upper", upper=method.arms != "lower")
            self._sweeps += 1
            # A checkpoint holds whole rounds, so budgets of backups end between them.
            pause("sweeping", f"sweep {sweep}, moved {max(moved):.2g}", may_end=False)
            if max(moved) == 0.0:
                break

    def _sweep_by_index(self) -> None:
        method, table = self._method, self.table
        first, second = table.pairs()
        found = index_side_run(
            table.mdp,
            table.gamma,
            first=first,
            second=second,
            sweeps=method.sweeps,
            dim=method.dim,
            omit=method.omit,
            lower_start=method.lower_start,
            upper_start=method.upper_start,
            relation=table.relation,
            seed=self._options.seed,
            resources=table.resources,
        )
        # Bounds by themselves, so that the tighter of old and new ones are bounds again.
        table.tighten(found.arms.lower, found.arms.upper)
        self._sweeps += method.sweeps
        self._index_backups += found.backups
        self._errors = {name: getattr(found, name) for name in ERRORS}

    # -- where it stands -------------------------------------------------------------------

    def reason(self) -> str:
        """Why the goal is reached; empty if it is not."""
        tau, tol, width = self._options.threshold, self._options.tol, self._width()
        if tol is not None and width <= tol:
            return f"width {width:.3g} is within {tol:g}"
        if tau is not None:
            low, high = self._cluster_counts(tau)
            if low == high:  # one refines the other, so equal counts are equal clusterings
                return f"both clusterings agree at {tau:g}"
        return ""

    def leftover(self) -> str:
        """There is always one more round."""
        return ""

    def settle(self) -> None:
        """Every sweep is kept at once."""

    def _width(self) -> float:
        table = self.table
        width = table.covered.width
        return width if table.coverage == 1.0 else max(width, table.starts.widest())

    def _cluster_counts(self, tau: float) -> tuple[int, int]:
        """Numbers of clusters of the lower and of the upper arm."""
        table = self.table
        first, second = table.pairs()
        return (
            count_clusters(table.n, first, second, table.lower <= tau),
            count_clusters(table.n, first, second, table.upper <= tau),
        )

    def _state(self) -> str:
        text = f"{self.table.coverage:.1%} covered, width {self._width():.3g}"
        tau = self._options.threshold
        if tau is None:
            return text
        low, high = self._cluster_counts(tau)
        return f"{text}, {low:,} to {high:,} clusters"

    # -- keeping it ------------------------------------------------------------------------

    def settings(self) -> Mapping[str, Any]:
        """The method's options. Goals are looked at between rounds and decide none of them."""
        plain = asdict(replace(self._method, embedding=None))
        return plain | {"embedding": array_digest(self._points)}

    def record(self) -> Mapping[str, Any]:
        """How it went."""
        return {"sweeps": self._sweeps, **self._errors}

    def resume(self, checkpoint: Certificate) -> None:
        """Go on from the certificate of an unfinished run."""
        run = checkpoint.run
        done = check_int("rounds", run["rounds"], low=0)
        sweeps = check_int("sweeps", run["sweeps"], low=0)
        self.table.restore(checkpoint.keys, checkpoint.lower, checkpoint.upper, run["backups"])
        self.done, self._sweeps = done, sweeps
        self._errors = {name: float(run[name]) for name in ERRORS if name in run}

    def certificate(
        self, *, stop: str, run: Mapping[str, Any], is_final: bool, is_hasty: bool = False
    ) -> Certificate:
        """What is proven now; with a threshold and its value if nothing follows."""
        options, table = self._options, self.table
        tau, forests = options.threshold, None
        is_looked_for = is_final and not is_hasty and tau is None
        if is_looked_for and (options.is_widest or options.n_clusters is not None):
            end, floor = table.mdp.terminal_state, RESOLUTION * table.starts.diameter
            forests = link_forests(Covering.scope, table.ground, table.covered)
            best = best_interval(
                wide_intervals(certified_intervals(*forests, end)),
                table.n - (end is not None),
                n_clusters=options.n_clusters,
                floor=floor,
            )
            tau = None if best is None else middle(best, floor=floor)
        return make_certificate(
            table,
            tau=tau if is_final else None,
            stop=stop,
            run=run,
            scope=Covering.scope,
            goal=options.goal,
            forests=forests,
            prove=None
            if is_hasty
            else ValueSearch(
                table.mdp, table.gamma, relation=table.relation, goal=options.goal
            ).prove,
        )


def retrieve(
    table: Arms,
    points: npt.NDArray[np.float32] | None,
    dim: int,
    index: str,
    neighbours: int,
    rng: np.random.Generator,
) -> None:
    """Cover every state with its neighbours among points, by default those of the lower arm."""
    # In units of a power of two near the largest distance: squares and single precision hold it.
    unit = -int(np.frexp(table.starts.diameter)[1])

    def below(states: IntArray, others: IntArray) -> FloatArray:
        return np.asarray(np.ldexp(table.bounds(states, others)[0], unit))

    resources = table.resources
    if points is None:
        placed = landmark_mds(below, table.n, dim=dim, seed=rng, resources=resources)
        points = as_points(placed, table.n)
    table.cover(*retrieve_pairs(points, k=neighbours, index=index, seed=rng, resources=resources))
