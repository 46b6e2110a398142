"""`Verdict`: what a certificate amounts to, in one word and one sentence, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bisim_abstract._abstract.value import amount_text, kept_text, share_text
from bisim_abstract._base.text import clusters_text, counted

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate

__all__ = ["Verdict"]

COLOURS = {"useful": "green", "poor": "yellow", "open": "red"}
# How the `stop` of such a run begins: by all pairs, or as far as was looked.
NOTHING_MERGES = "nothing can be merged"
NOTHING_FOUND = "nothing was found that can be merged"


@dataclass(frozen=True)
class Verdict:
    """What a certificate amounts to.

    Attributes:
        level: "useful": certified and worth it. "poor": certified, but its policy keeps
            less than was asked for, or nothing is merged. "open": not certified.
        sentence: The same for people.
        is_certified: Whether both arms give the same clusters.
        clusters: Number of clusters, the end of episodes not counted; None without a threshold.
        kept: Proven share of the start value that is kept; None if it was not asked for.
        loss: Proven loss of the worst state; None likewise.
    """

    level: str
    sentence: str
    is_certified: bool
    clusters: int | None
    kept: float | None
    loss: float | None

    @property
    def colour(self) -> str:
        """Green, yellow or red."""
        return COLOURS[self.level]

    def header(self) -> dict[str, Any]:
        """As JSON values; a share of which nothing is proven is null."""
        kept = self.kept if self.kept is not None and self.kept > float("-inf") else None
        return {
            "sentence": self.sentence,
            "level": self.level,
            "certified": self.is_certified,
            "kept": kept,
            "loss": self.loss,
            "clusters": self.clusters,
        }


class Checked(Protocol):
    """What a check found: a `Verification`, of which a verdict needs this much."""

    @property
    def is_valid(self) -> bool:
        """Whether all claims hold."""

    @property
    def verdict(self) -> str:
        """How they were checked, in words."""

    @property
    def problem(self) -> str:
        """The first claim that does not hold."""


def judge(certificate: Certificate, verification: Checked | None = None) -> Verdict:
    """The verdict on a certificate.

    Args:
        certificate: The certificate.
        verification: What a check found, if there was one.
    """
    value = certificate.value
    level, sentence = _words(certificate)
    if verification is not None:
        if verification.is_valid:
            sentence = f"{sentence} ({verification.verdict})"
        else:
            level, sentence = "open", f"REJECTED: {verification.problem}"
    return Verdict(
        level=level,
        sentence=sentence,
        is_certified=certificate.is_certified and (verification is None or verification.is_valid),
        clusters=None if certificate.tau is None else certificate.n_clusters,
        kept=None if value is None else value.kept,
        loss=None if value is None else value.loss,
    )


def _words(certificate: Certificate) -> tuple[str, str]:
    n, has_end = certificate.n_live, certificate.terminal_state is not None
    states = counted(n, "state")
    if certificate.tau is None:
        why = certificate.stop or f"bounds on {states}, and no threshold to cluster at"
        return "open", f"NOT CERTIFIED: {why}"
    if not certificate.is_certified:
        low, high = (
            certificate._count_live(labels)
            for labels in (certificate.labels_lower, certificate.labels_upper)
        )
        return "open", (
            f"NOT CERTIFIED at tau {certificate.tau:.4g}: between {low:,} and "
            f"{clusters_text(high, has_end=has_end)} of {states}"
        )
    count = certificate.n_clusters
    scope = "" if certificate.scope == "all" else " over covered pairs only"
    what = f"{clusters_text(count, has_end=has_end)} of {states}"
    value = certificate.value
    if value is None:
        return "poor", f"CERTIFIED{scope}: {what}; what a policy over them is worth was not asked"
    kept, loss = share_text(value.kept), amount_text(value.loss)
    if value.kept < certificate.keep:
        only = kept_text(value.kept).replace("at least", "only")
        return "poor", (
            f"CERTIFIED{scope}, BUT its policy {only}: {what}, any state loses at most {loss}"
        )
    if count == n > 1:
        reason = certificate.stop
        if not reason.startswith((NOTHING_MERGES, NOTHING_FOUND)):
            reason = f"{NOTHING_MERGES} at this threshold: all {states} stay apart"
        return "poor", f"CERTIFIED{scope}, BUT {reason}"
    keeps = "keeps" if count == 1 and not has_end else "keep"
    # True, and often a sign that the reward was forgotten: then any policy is as good as another.
    alone = "; a single cluster: is the reward the one you meant?" if count == 1 < n else ""
    return "useful", (
        f"CERTIFIED{scope}: {what} {keeps} {kept} of the start value, "
        f"no state loses more than {loss}{alone}"
    )
