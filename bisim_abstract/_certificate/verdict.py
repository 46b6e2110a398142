"""`Verdict`: what a certificate amounts to, in one word and one sentence, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bisim_abstract._abstract.value import LEAST_KEPT, ProvenValue, amount_text, kept_text
from bisim_abstract._base.text import clusters_text, counted, plain_text
from bisim_abstract._certificate.goal import Goal, Numbers
from bisim_abstract._relations.table import find_relation

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate
    from bisim_abstract._certificate.partition import PartitionProof

__all__ = ["Verdict"]

COLOURS = {"useful": "green", "poor": "yellow", "open": "red"}
# Whom a guarantee speaks of.
AGENTS = {
    "solver": "any agent that solves the small environment",
    "policy": "its policy",
    "learner": "any one-step Q-learner on real steps",
}
# How the `stop` of such a run begins: by all pairs, or as far as was looked.
NOTHING_MERGES = "nothing can be merged"
NOTHING_FOUND = "nothing was found that can be merged"


@dataclass(frozen=True)
class Verdict:
    """What a certificate amounts to.

    Attributes:
        level: "useful": certified, and the goal is reached. "poor": certified, but less is proven
            than requested, clearly fewer episodes may end than under the best policy, or nothing
            is merged. "open": not certified.
        sentence: The same for people.
        is_certified: Whether both arms give the same clusters.
        clusters: Number of clusters, the end of episodes not counted; None without a threshold.
        guarantee: Which agents the next two speak of: "solver", "policy" or "learner".
        kept: Proven share of the achievable return that they retain; None if it was not computed.
        loss: Proven loss of the worst state; None likewise.
    """

    level: str
    sentence: str
    is_certified: bool
    clusters: int | None
    guarantee: str
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
            "guarantee": self.guarantee,
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
    found = None if value is None else value.share(certificate.guarantee)
    return Verdict(
        level=level,
        sentence=sentence,
        is_certified=certificate.is_certified and (verification is None or verification.is_valid),
        clusters=None if certificate.tau is None else certificate.n_clusters,
        guarantee=certificate.guarantee,
        kept=None if found is None else found.kept,
        loss=None if found is None else found.loss,
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
            f"{clusters_text(high, has_end=has_end, of=states)}"
        )
    count = certificate.n_clusters
    scope = "" if certificate.scope == "all" else " over covered pairs only"
    what = clusters_text(count, has_end=has_end, of=states)
    value, goal = certificate.value, certificate.goal
    found = None if value is None else Numbers.of(value, goal.guarantee)
    if value is None or found is None:
        return "poor", f"CERTIFIED{scope}: {what}; what agents retain on them was not computed"
    told = _told(certificate, value, found)
    if not goal.is_enough(found):
        return "poor", f"CERTIFIED{scope}, BUT {_missed(goal, found)}: {what}; {told}"
    if found.ends_fewer:
        return "poor", f"CERTIFIED{scope}, BUT clearly fewer episodes may end: {what}; {told}"
    if count == n > 1:
        reason = certificate.stop
        if not reason.startswith((NOTHING_MERGES, NOTHING_FOUND)):
            reason = f"{NOTHING_MERGES} at this threshold: all {states} stay apart"
        return "poor", f"CERTIFIED{scope}, BUT {reason}; {told}"
    # True, and often a sign that the reward was forgotten: then any policy is as good as another.
    alone = "; a single cluster: is the reward the one you meant?" if count == 1 < n else ""
    return "useful", f"CERTIFIED{scope}: {what}; {told}{alone}"


def _missed(goal: Goal, found: Numbers) -> str:
    """How a goal is missed."""
    if not found.kept >= LEAST_KEPT:
        return "agents may do no better than the baseline"
    if goal.max_loss is not None:
        return f"states may lose more than {goal.max_loss:g}"
    return f"less than {100.0 * goal.keep:.4g}% is proven to be retained"


def _told(certificate: Certificate | PartitionProof, value: ProvenValue, found: Numbers) -> str:
    """What a person will get, in the words that are quoted: for whom, from where, how much."""
    conditions = list(certificate.conditions)
    starts = next((text for text in conditions if text.startswith("from ")), "")
    others = [text for text in conditions if text != starts]
    condition = find_relation(certificate.relation).condition
    others += [condition] if condition else []
    agent = f"at gamma {certificate.gamma:g}, {AGENTS[certificate.guarantee]}"
    loss = f"no state loses more than {amount_text(found.loss)}"
    baseline = _baseline_text(certificate, value)
    if value.is_settled:
        optimal = f"{baseline} is already optimal, so there is nothing to decide"
        parts = [f"at gamma {certificate.gamma:g}, {optimal}"]
        parts.append(f"with {AGENTS[certificate.guarantee]}, {loss}")
        others = [starts, *others] if starts else others
    else:
        kept = kept_text(found.kept)
        parts = [f"{agent} {kept} {starts or 'from the start states'}, {loss}"]
        if value.has_tiny_stake:
            parts.append(f"the best policy gains less than 0.1% of its value over {baseline}")
    if value.episodes is not None:
        parts.append(value.episodes.summary(certificate.guarantee))
    return "; ".join(parts + others)


def _baseline_text(certificate: Certificate | PartitionProof, value: ProvenValue) -> str:
    action, model = value.baseline_action, certificate.model
    if action < 0:
        return "acting at random"
    names = None if model is None else model.names.actions
    return f"taking action {action if names is None else plain_text(names[action])} for ever"
