"""Certificates over all pairs, by blocks: the method's options; `refinement` is its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_choice, check_int
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.types import IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract._prove.refinement import Refinement
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._prove.options import Options

__all__ = ["Blocks"]

SOURCES = ("classes", "embedding", "rewards", "ahead", "features")  # of proposed blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Blocks of similar states first, then what their bounds leave open, over all pairs.

    Blocks are proposed, by bisimulation classes, by the embedding, by rewards now and after a step
    and by value features; bounds on pairs of blocks hold for all their members. Where these leave
    the clustering open, value features, covered pairs inside and across blocks, finer blocks, and
    at last all single pairs settle it. A proposal is never trusted.

    Attributes:
        partition: (n_states) a partition of the states to try first.
        embedding: Points (n_states, k), or an object with `encode`: where blocks are looked for.
        propose: What may propose blocks besides: any of "classes" (bisimulation classes),
            "embedding" (if one is given), "rewards", "ahead" (rewards after a step) and
            "features" (value functions).
        max_pairs: Pairs of states that may be covered; None for as many as are estimated to take
            `max_seconds`, or a minute or two if that is not given.
    """

    name: ClassVar[str] = "blocks"
    scope: ClassVar[str] = "all"

    partition: npt.ArrayLike | None = None
    embedding: Embedding | npt.ArrayLike | None = None
    propose: Sequence[str] = SOURCES
    max_pairs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.propose, str) or not isinstance(self.propose, Sequence):
            raise InvalidArgumentError(f"propose must be a list of names, got {self.propose!r}")
        names = tuple(check_choice("propose", name, SOURCES) for name in self.propose)
        object.__setattr__(self, "propose", names)
        if self.max_pairs is not None:
            object.__setattr__(self, "max_pairs", check_int("max_pairs", self.max_pairs, low=0))

    def check(self, options: Options) -> None:
        """Every goal can be looked for."""

    def starts(self) -> Mapping[str, Any]:
        """How arms start: as their defaults say."""
        return {}

    def read(self, n_states: int) -> tuple[IntArray | None, npt.NDArray[np.float32] | None]:
        """Labels and points, if there are any, as those of so many states."""
        labels, points = self.partition, self.embedding
        return (
            None if labels is None else as_labels(labels, n_states, name="partition"),
            None if points is None else as_points(points, n_states),
        )

    def begin(self, table: Arms, options: Options) -> Refinement:
        """A run on arms that cover nothing yet."""
        return Refinement(table, self, options)
