"""Several relations side by side: the one with the fewest clusters that reach the goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bisim_abstract._certificate.certificate import TIMES, Certificate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.options import Options
from bisim_abstract._prove.work import BUDGET, INTERRUPTED
from bisim_abstract._relations.table import RELATIONS
from bisim_abstract.errors import InvalidArgumentError

SECONDS = 60.0  # for all relations, where no other budget is given
QUICKEST_FIRST = ("optimal", "plain", "lax")
LEVELS = ("useful", "poor", "open")


def prove_fewest(
    mdp: TabularMDP, options: Options, prove: Callable[[Options], Certificate]
) -> Certificate:
    """The certificate of the relation with the fewest clusters that reach the goal.

    Of equally few, those of the relation that promises more: plain, then lax, then optimal. Where
    none reaches the goal, what is certified counts more than what is not. The quickest search comes
    first, and each leaves half of the budget of time to those after it.

    Args:
        mdp: The model. Relations that cannot compare its states are not tried.
        options: What is requested.
        prove: Makes the certificate of one relation.
    """
    found: dict[str, Certificate] = {}
    left = SECONDS if options.max_seconds is None else options.max_seconds
    before = ""
    for name in QUICKEST_FIRST:
        try:
            RELATIONS[name].check(mdp)
        except InvalidArgumentError:
            continue
        share = left if name == QUICKEST_FIRST[-1] else left / 2.0
        found[name] = prove(replace(options, relation=name, max_seconds=share))
        if found[name].stop.startswith(INTERRUPTED):
            before = f"{INTERRUPTED} at the relation {name}"
            break
        left = max(left - found[name].times.get("seconds", 0.0), 1e-3)

    def rank(name: str) -> tuple[int, int]:
        certificate = found[name]
        level = LEVELS.index(certificate.verdict.level)
        return level, certificate.n_clusters if certificate.is_certified else 0

    by_promise = [name for name in RELATIONS if name in found]
    best = min(by_promise, key=rank)
    texts = (f"{name} {_outcome(found[name])}" for name in by_promise)
    times = {kind: sum(x.times.get(kind, 0.0) for x in found.values()) for kind in TIMES}
    told = found[best].with_record(
        f"by relation: {', '.join(texts)}",
        before="" if found[best].stop.startswith(INTERRUPTED) else before,
        tried_relations={name: _outcome(found[name]) for name in by_promise},
    )
    return told.with_times(times)


def _outcome(certificate: Certificate) -> str:
    """How many clusters reach the goal, or why none do."""
    if certificate.verdict.level == "useful":
        return f"{certificate.n_clusters:,}"
    is_cut = certificate.stop.startswith((INTERRUPTED, BUDGET))
    return "not finished" if is_cut else "none"
