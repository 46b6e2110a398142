"""Several relations side by side: the one with the fewest clusters that reach the goal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from bisim_abstract._certificate.certificate import TIMES, Certificate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.options import Options
from bisim_abstract._prove.work import BUDGET, INTERRUPTED, TIME
from bisim_abstract._relations.table import RELATIONS
from bisim_abstract.errors import InvalidArgumentError

QUICKEST_FIRST = ("optimal", "plain", "lax")
LEVELS = ("useful", "poor", "open")


def prove_fewest(
    mdp: TabularMDP, options: Options, prove: Callable[[Options], Certificate]
) -> Certificate:
    """The certificate of the relation with the fewest clusters that reach the goal.

    Of equally few, those of the relation that promises more: plain, then lax, then optimal. Where
    none reaches the goal, what is certified counts more than what is not. Each relation runs as it
    would by itself: without `max_seconds` there is no budget of time, and with it each has all the
    time that those before it left, the quickest search first.

    Args:
        mdp: The model. Relations that cannot compare its states are not tried.
        options: What is requested.
        prove: Makes the certificate of one relation.
    """
    found: dict[str, Certificate] = {}
    begin, left, before = time.monotonic(), math.inf, ""
    tried = [name for name in QUICKEST_FIRST if _can_compare(name, mdp)]
    for name in tried:
        share = options.max_seconds
        if found and share is not None:
            compiling = sum(x.times.get("compile_seconds", 0.0) for x in found.values())
            share = left = share - (time.monotonic() - begin - compiling)
        if left <= 0.0:
            break
        found[name] = prove(replace(options, relation=name, max_seconds=share))
        if found[name].stop.startswith(INTERRUPTED):
            before = f"{INTERRUPTED} at the relation {name}"
            break

    def rank(name: str) -> tuple[int, int]:
        certificate = found[name]
        level = LEVELS.index(certificate.verdict.level)
        return level, certificate.n_clusters if certificate.is_certified else 0

    by_promise = [name for name in RELATIONS if name in found]
    best = min(by_promise, key=rank)
    outcomes = {
        name: _outcome(found[name]) if name in found else "not begun"
        for name in RELATIONS
        if name in tried
    }
    text = f"by relation: {', '.join(f'{name} {outcome}' for name, outcome in outcomes.items())}"
    is_out = left <= 0.0 or any(x.stop.startswith(TIME) for x in found.values())
    if is_out and options.max_seconds is not None:
        text += f"; a max_seconds above {options.max_seconds:g} may find fewer clusters"
    times = {kind: sum(x.times.get(kind, 0.0) for x in found.values()) for kind in TIMES}
    told = found[best].with_record(
        text,
        before="" if found[best].stop.startswith(INTERRUPTED) else before,
        tried_relations=outcomes,
    )
    return told.with_times(times)


def _can_compare(name: str, mdp: TabularMDP) -> bool:
    """Whether a relation can compare the states of a model."""
    try:
        RELATIONS[name].check(mdp)
    except InvalidArgumentError:
        return False
    return True


def _outcome(certificate: Certificate) -> str:
    """How many clusters reach the goal, or why none do."""
    if certificate.verdict.level == "useful":
        return f"{certificate.n_clusters:,}"
    if certificate.stop.startswith((INTERRUPTED, BUDGET)):
        return "not finished"
    return "none"
