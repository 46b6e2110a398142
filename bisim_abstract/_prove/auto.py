"""Several relations side by side: the one with the fewest clusters that reach the goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.options import Options
from bisim_abstract._prove.work import INTERRUPTED
from bisim_abstract._relations.table import RELATIONS
from bisim_abstract.errors import InvalidArgumentError

BUDGET = 60.0  # seconds for all relations, where no other budget is given
QUICKEST_FIRST = ("optimal", "plain", "lax")


def prove_fewest(
    mdp: TabularMDP, options: Options, prove: Callable[[Options], Certificate]
) -> Certificate:
    """The certificate of the relation with the fewest clusters that reach the goal.

    Of equally few, those of the relation that promises more: plain, then lax, then optimal. Where
    none reaches the goal, it is that of the plain relation. The quickest search comes first, and
    each leaves half of the budget of time to those after it.

    Args:
        mdp: The model. Relations that cannot compare its states are not tried.
        options: What is requested.
        prove: Makes the certificate of one relation.
    """
    found: dict[str, Certificate] = {}
    left = BUDGET if options.max_seconds is None else options.max_seconds
    for name in QUICKEST_FIRST:
        try:
            RELATIONS[name].check(mdp)
        except InvalidArgumentError:
            continue
        share = left if name == QUICKEST_FIRST[-1] else left / 2.0
        found[name] = prove(replace(options, relation=name, max_seconds=share))
        left = max(left - float(found[name].times.get("seconds", 0.0)), 1e-3)
        if found[name].stop.startswith(INTERRUPTED):
            break

    def size(name: str) -> float:
        is_good = found[name].verdict.level == "useful"
        return found[name].n_clusters if is_good else float("inf")

    by_promise = [name for name in RELATIONS if name in found]
    best = min(by_promise, key=size)
    counts = {
        name: found[name].n_clusters if size(name) < float("inf") else None for name in by_promise
    }
    texts = (f"{name} {'none' if n is None else f'{n:,}'}" for name, n in counts.items())
    return found[best].with_record(
        f"fewest clusters of all relations ({', '.join(texts)})", tried_relations=counts
    )
