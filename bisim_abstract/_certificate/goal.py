"""`Goal`: when clusters are good enough. One rule for search, verdict, frontier and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bisim_abstract._abstract.value import GUARANTEES, LEAST_KEPT, ProvenShare, ProvenValue
from bisim_abstract._base.checks import check_choice, check_real
from bisim_abstract.errors import InvalidArgumentError

KEEP = 0.95  # share of the achievable return to retain, if nobody says otherwise


class Numbers(NamedTuple):
    """What is proven of a partition, for the agents that a guarantee speaks of.

    Attributes:
        kept: The kept share.
        loss: The loss of the worst state.
        start_loss: The loss of the start distribution.
        ends_fewer: Whether these agents, or the policy that comes with the clusters, may end
            clearly fewer episodes than the best policy where ending pays.
    """

    kept: float
    loss: float
    start_loss: float
    ends_fewer: bool

    @classmethod
    def of(cls, value: ProvenValue, guarantee: str) -> Numbers | None:
        """Those of a proven value; None if they were not computed for these agents."""
        share = value.share(guarantee)
        if share is None:
            return None
        seen = value.episodes
        fewer = seen is not None and any(map(seen.ends_clearly_fewer, {guarantee, "policy"}))
        return cls(share.kept, share.loss, share.start_loss, fewer)


@dataclass(frozen=True)
class Goal:
    """What agents on the clusters are to keep, by proof.

    Attributes:
        guarantee: Which agents: "solver", whoever solves the small environment; "policy", the
            policy that comes with the certificate; "learner", whoever learns on real steps.
        keep: Share of the achievable return to retain.
        max_loss: What no state may lose, in place of a share.
    """

    guarantee: str = "solver"
    keep: float = KEEP
    max_loss: float | None = None

    def __post_init__(self) -> None:
        check_choice("guarantee", self.guarantee, GUARANTEES)
        object.__setattr__(self, "keep", check_share("keep", self.keep))
        if self.max_loss is not None:
            object.__setattr__(self, "max_loss", check_loss(self.max_loss))

    def is_enough(self, found: Numbers | ProvenShare) -> bool:
        """Whether a share, or a loss, is as good as requested, and better than the baseline's.

        A policy that goes nowhere may lose little, and where no time limit tells how few of its
        episodes end, nothing but the baseline shows what it is.
        """
        if not found.kept >= LEAST_KEPT:
            return False
        if self.max_loss is not None:
            return found.loss <= self.max_loss
        return found.kept >= self.keep

    def is_met(self, found: Numbers | None) -> bool:
        """Whether a partition is: by its share, and by how many episodes end."""
        return found is not None and self.is_enough(found) and not found.ends_fewer

    def in_words(self) -> str:
        """What is requested, after "the fewest clusters found"."""
        if self.max_loss is None:
            return f"to retain {100.0 * self.keep:.4g}%"
        return f"to lose at most {self.max_loss:g}"


def check_share(name: str, share: float) -> float:
    """A share as a float in [0, 1]."""
    value = check_real(name, share)
    if not 0.0 <= value <= 1.0:
        raise InvalidArgumentError(f"{name} must lie in [0, 1], a share, got {value!r}")
    return value


def check_loss(max_loss: float) -> float:
    """A loss as a float of at least 0."""
    value = check_real("max_loss", max_loss)
    if value < 0.0:
        raise InvalidArgumentError(f"max_loss must be at least 0, got {value!r}")
    return value
