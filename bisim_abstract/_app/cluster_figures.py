"""What the page tells of a cluster that is chosen: its states, and what keeps it from others.

Numbers of states are those of the certificate, with fewer digits: lower bounds are rounded down and
upper bounds up, so that they hold as they are written.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bisim_abstract._app.page_parts import between_text
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.nearest import NearPair, explain_pair
from bisim_abstract._model.mdp import TabularMDP

DIGITS = 6  # of a value in a list
MAX_PAIRS = 300  # pairs of clusters that are explained
MAX_STATES = 20_000  # of a model in which they are
MAX_COSTS = 8_000_000  # pairs of successors that are compared for that, some seconds
NAME = 60  # characters of a state's name in a sentence


@dataclass(frozen=True, eq=False)
class StatesFigure:
    """What is proven of states, and what the proven plan does in them."""

    optimal_lower: FloatArray  # (drawn) lower bounds on optimal values
    optimal_upper: FloatArray  # (drawn) upper bounds
    policy_lower: FloatArray  # (drawn) lower bounds on what the plan is worth
    action: IntArray  # (drawn) what it does, by number
    actions: Sequence[str]  # what actions are called
    tau: float  # the threshold of the clusters that it was made on


def states_figure(
    certificate: Certificate, mdp: TabularMDP, states: IntArray
) -> StatesFigure | None:
    """Values and plan in some states; None where the certificate proves nothing of values."""
    value, tau = certificate.value, certificate.tau
    if value is None or tau is None:
        return None
    down, up = decimal.ROUND_FLOOR, decimal.ROUND_CEILING
    return StatesFigure(
        optimal_lower=rounded(value.optimal_lower[states], down),
        optimal_upper=rounded(value.optimal_upper[states], up),
        policy_lower=rounded(value.policy_lower[states], down),
        action=value.lifted_policy[states],
        actions=[mdp.action_text(a) for a in range(mdp.n_actions)],
        tau=tau,
    )


def rounded(values: FloatArray, direction: str) -> FloatArray:
    """Values with few digits, none of them on the other side of what it was."""
    context = decimal.Context(prec=DIGITS, rounding=direction)
    return np.array([float(context.create_decimal_from_float(v)) for v in values.tolist()])


# -- pairs of clusters -------------------------------------------------------------------------


@dataclass(frozen=True)
class Separation:
    """What keeps two clusters apart, by a state of each."""

    first: int  # position of a drawn state of one cluster
    second: int  # of the other
    text: str  # in sentences


@dataclass(frozen=True)
class SeparationsFigure:
    """What keeps clusters of the certificate's own threshold apart."""

    pairs: Sequence[Separation]  # all pairs of a few clusters, else links that join them
    tau: float  # the threshold


def separations_figure(
    certificate: Certificate, mdp: TabularMDP, states: IntArray
) -> SeparationsFigure | None:
    """All pairs of a few clusters, else the shortest links of the tree that joins all of them.

    Pairs that are no link may be closer than some links: three clusters that are close to each
    other have two links, and a cluster far away has one as well.

    Args:
        certificate: The certificate.
        mdp: Its model.
        states: States that are drawn.
    """
    tau = certificate.tau
    if tau is None or not certificate.is_certified or certificate.n_states > MAX_STATES:
        return None
    most = min(MAX_PAIRS, MAX_COSTS // max(mdp.n_actions * mdp.max_support**2, 1))
    labels = certificate.labels
    seen, position = np.unique(labels[states], return_index=True)
    drawn = dict(zip(seen.tolist(), position.tolist(), strict=True))
    found: dict[tuple[int, int], Separation] = {}
    for pair in _pairs(certificate, mdp, most):
        one, two = sorted((int(labels[pair.first]), int(labels[pair.second])))
        if one in drawn and two in drawn and (one, two) not in found:
            text = separation_text(pair, mdp, certificate)
            found[one, two] = Separation(drawn[one], drawn[two], text)
    return SeparationsFigure(list(found.values()), tau)


def _pairs(certificate: Certificate, mdp: TabularMDP, most: int) -> Iterator[NearPair]:
    """States of clusters that are linked, the closest first, then first states of all others."""
    labels, end = certificate.labels, certificate.terminal_state
    near = certificate.nearest(most, mdp)
    yield from near
    first = np.unique(labels, return_index=True)[1]
    first = first[first != end] if end is not None else first
    if first.size * (first.size - 1) // 2 > most:
        return
    done = {frozenset((int(labels[p.first]), int(labels[p.second]))) for p in near}
    for k, s in enumerate(first.tolist()):
        for t in first[k + 1 :].tolist():
            if frozenset((int(labels[s]), int(labels[t]))) not in done:
                yield explain_pair(certificate, mdp, s, t)


def separation_text(pair: NearPair, mdp: TabularMDP, certificate: Certificate) -> str:
    """What keeps two states apart, in sentences."""
    one, two = (mdp.state_text(state, most=NAME) for state in (pair.first, pair.second))
    text = f"States {one} and {two} are {between_text(pair.lower, pair.upper)} apart."
    if pair.action is None:
        return f"{text} They do not have the same actions."
    text += f" They differ most under {pair.action_text()}"
    if pair.reward == pair.future == 0.0:
        return f"{text}."
    if pair.reward == 0.0:
        text += ": rewards are the same at once, and all of it comes from what follows"
    else:
        now, later = pair.parts
        text += f": {now} is a difference of rewards at once, and {later} comes from what follows"
    met = [(s, t, share) for s, t, share in pair.successors if share >= 0.005]
    if met:
        named = (
            f"{_called(mdp, s)} against {_called(mdp, t)} ({share:.0%} of that)"
            for s, t, share in met
        )
        text += f", namely {', '.join(named)}"
    return f"{text}."


def _called(mdp: TabularMDP, state: int) -> str:
    return "the end" if state == mdp.terminal_state else mdp.state_text(state, most=NAME)
