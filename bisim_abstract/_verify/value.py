"""The verifier's check of proven values: one backup of every function, and what follows.

Functions v over states are claimed (those of the bracket are constant on clusters). Each must
satisfy v >= Bv (upper bounds) or v <= Bv (lower bounds) in every state, B being the backup of the
best action, of a policy's action, of several actions with equal weights, or of the worst action of
a set. B is monotone and B(v + c) = Bv + γc for the *true* model: so if m is the most by which the
value in question exceeds an upper bound v, B-values exceed v by at most γm, m <= γm, and m <= 0;
mirrored below. With the worst action of a set, v bounds whatever is played inside the set. Sets are
those that agents end in: see `agents`.

Boxes of rows, from which a bracket was made, are neither read nor needed: if a function that is
constant on clusters satisfies its inequality for the worst row of a box, it satisfies it in
every state, and that is what is checked.

A policy says what to do in a cluster, by the names that actions have there. In a state it takes the
first action that is called so, or the first of all if none is, which is what an action that the
state lacks does anyway. Nothing else depends on names, nor on the relation of the bounds.

Losses and kept shares must follow from these functions and the model's start. With V the value in
question from the start, V₀ the baseline's and S the best one, the share (V - V₀)/(S - V₀) rises
with V, falls with V₀, and falls with S where V >= V₀, else rises. The baseline is the best of
random actions and each action for ever (random ones where a state lacks it), all of which have
upper bounds; one of them has a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._verify.agents import Slots, check_box, check_converged
from bisim_abstract._verify.arithmetic import Arithmetic, above, as_float
from bisim_abstract._verify.episodes import check_episodes
from bisim_abstract._verify.read import Claims, ValueClaims
from bisim_abstract.errors import VerificationError

NOTHING = 1e-9  # of the optimal start value: a loss below this counts as none,
OF_STAKE = 1e-6  # if it is below this share of what is at stake


@dataclass(frozen=True)
class Function:
    """One claimed function over states.

    Attributes:
        name: What it is called in the certificate.
        values: (n_states).
        actions: (n_states, n_actions) the actions whose backups count.
        is_upper: Whether it must not be below its backup; else not above.
        how: "best", "worst" or "mean" of these backups.
        floor: (n_states) where values are at most this, a lower bound is proven already.
    """

    name: str
    values: FloatArray
    actions: BoolArray
    is_upper: bool = False
    how: str = "worst"
    floor: FloatArray | None = None


def claimed_functions(
    value: ValueClaims, mdp: TabularMDP, sets: dict[str, BoolArray], floor: FloatArray | None
) -> Iterator[Function]:
    """All of them.

    Args:
        value: The claims.
        mdp: The model.
        sets: (n_states, n_actions) actions that agents of a kind can end with.
        floor: (n_states) bounds on what is learned by values that converge.
    """
    labels, available = value.labels, mdp.available

    def at(actions: IntArray) -> BoolArray:
        return np.asarray(np.arange(mdp.n_actions) == actions[:, None])

    def constant(action: int) -> BoolArray:
        has_it = available[:, action, None] if action >= 0 else np.zeros((mdp.n_states, 1), bool)
        return np.where(has_it, at(np.full(mdp.n_states, action)), available)

    policy, robust = _lifted(value, value.policy), _lifted(value, value.bracket_policy)
    yield Function("optimal_upper", value.optimal_upper, available, True, "best")
    yield Function("optimal_lower", value.optimal_lower, at(value.optimal_policy))
    yield Function("policy_lower", value.policy_lower, at(policy))
    yield Function("random_upper", value.random_upper, available, True, "mean")
    for action, upper in enumerate(value.constant_upper.T):
        name = f"constant_upper[:, {action}]"
        yield Function(name, np.ascontiguousarray(upper), constant(action), True, "mean")
    yield Function(
        "baseline_lower", value.baseline_lower, constant(value.baseline_action), how="mean"
    )
    yield Function("bracket upper", value.bracket_upper[labels], available, True, "best")
    yield Function("bracket lower", value.bracket_lower[labels], at(robust))
    yield Function("solver.lower", value.solver.lower, sets["solver"])
    if value.margin is not None:
        yield Function("solver.margin_lower", value.margin_lower, sets["margin"])
    if value.learner is not None:
        yield Function("learner.lower", value.learner.lower, sets["learner"])
    if value.converged is not None:
        yield Function(
            "learner.converged.lower", value.converged.lower, sets["converged"], floor=floor
        )


def _lifted(claims: ValueClaims, policy: IntArray) -> IntArray:
    """(n_states) the action that each state takes, by its own name."""
    names = policy[claims.labels]
    if claims.renaming is None:
        return names
    is_called = claims.renaming == names[:, None]
    has_none = ~is_called.any(axis=1)
    is_called[has_none] = claims.renaming[has_none] >= 0
    return np.asarray(is_called.argmax(axis=1))


def check_value(claims: Claims, mdp: TabularMDP, *, is_exact: bool = False) -> int:
    """Check all that is claimed about values; the number of functions.

    Args:
        claims: The certificate as it was read.
        mdp: The model.
        is_exact: Whether to compute with fractions, which leave nothing open.
    """
    value = claims.value
    if value is None:
        return 0
    numbers = Arithmetic(mdp, claims.gamma, is_exact=is_exact)
    slots, labels, floor = Slots.of(value, mdp.available), value.labels, None
    check_box("solver", value.solver, slots, labels, numbers, is_mean=True)
    choices, count = {"solver": slots.best_between(value.solver)}, 2
    if value.margin is not None:
        slack = 2.0 * value.margin
        choices["margin"] = slots.best_between(value.solver, slack)
    if value.learner is not None:
        check_box("learner", value.learner, slots, labels, numbers, is_mean=False)
        choices["learner"] = slots.best_between(value.learner)
        count += 2
        if value.converged is not None:
            floor = check_converged(value.converged, value.learner, slots, labels, numbers)
            choices["converged"] = value.converged.choices & slots.used
            count += 1
    sets = {name: slots.inside(chosen, mdp.available.shape) for name, chosen in choices.items()}
    for name, inside in sets.items():
        if not inside.any(axis=1).all():
            raise VerificationError(f"value: {name} leaves no action to some state")
    for function in claimed_functions(value, mdp, sets, floor):
        _check_function(function, numbers)
        count += 1
    _check_start(claims, mdp, numbers)
    known: dict[bytes, tuple[FloatArray, FloatArray]] = {}
    policies = {"policy": _lifted(value, value.policy), "optimal": value.optimal_policy}
    for name, policy in policies.items():
        sets[name] = np.asarray(np.arange(mdp.n_actions) == policy[:, None])
    for name, bounds in value.episodes:
        is_set = name not in policies
        check_episodes(name, bounds, value.horizon, sets[name], numbers, known, is_set=is_set)
    return count


def _check_function(function: Function, numbers: Arithmetic) -> None:
    """One inequality in every state."""
    values, side = function.values, 1 if function.is_upper else -1
    left = np.ones(values.size, bool) if function.floor is None else ~(values <= function.floor)
    states = np.flatnonzero(left)
    if not states.size:
        return
    actions = function.actions[states]
    counts = actions.sum(axis=1)
    begins = np.cumsum(counts) - counts
    rows = np.flatnonzero((function.actions & left[:, None]).ravel())
    found = numbers.backups(values, side, rows)
    if function.how == "mean":
        backup = np.add.reduceat(found, begins) / counts
    else:
        backup = (np.maximum if function.how == "best" else np.minimum).reduceat(found, begins)
    more = numbers.mdp.n_actions if function.how == "mean" else 0
    slack = numbers.slack(numbers.size(values), more=more)
    beyond = side * (backup - numbers.of(values[states]))
    worst = int(beyond.argmax())  # the first NaN, if there is one
    if not beyond[worst] + slack <= 0:
        is_open = not numbers.is_exact and bool(beyond[worst] - slack <= 0.0)
        relation = "below" if function.is_upper else "above"
        state = int(states[worst])
        raise VerificationError(
            f"value: {function.name} of state {state} is {float(values[state])!r}, which "
            f"{'may be' if is_open else 'is'} {relation} its backup {as_float(backup[worst])!r}",
            is_open=is_open,
        )


# -- what follows from them ----------------------------------------------------------------------


def _check_start(claims: Claims, mdp: TabularMDP, numbers: Arithmetic) -> None:
    """Losses, start values and kept shares."""
    value = claims.value
    assert value is not None
    mean = numbers.start_mean
    best, least = mean(value.optimal_upper), mean(value.optimal_lower)
    base_low, base_high = mean(value.baseline_lower), mean(value.random_upper)
    for upper in value.constant_upper.T:
        found = mean(np.ascontiguousarray(upper))
        base_high = (max(base_high[0], found[0]), max(base_high[1], found[1]))
    for name, (low, high), lowest, highest in (
        ("optimal_start", value.optimal_start, least, best),
        ("baseline_start", value.baseline_start, base_low, base_high),
    ):
        _compare(f"{name}[0]", low, -1, lowest, numbers)
        _compare(f"{name}[1]", high, 1, highest, numbers)
    reach = claims.states.high.max(), claims.states.low.min()
    span: Any = (float(reach[0]) - float(reach[1])) / (1.0 - claims.gamma)
    if numbers.is_exact:
        span = (Fraction(float(reach[0])) - Fraction(float(reach[1]))) / (1 - numbers.gamma)
    is_same = _is_all_the_same(claims, mdp)
    ends = (best, least, base_low, base_high)
    for prefix, share in value.shares():
        lost = above(value.optimal_upper, share.lower)
        at = int(lost.argmax())
        if not lost[at] <= share.loss:
            raise VerificationError(
                f"value: {prefix}loss is {share.loss!r}, but state {at} may lose "
                f"{float(lost[at])!r}"
            )
        own = mean(share.lower)
        _compare(
            f"{prefix}start_loss",
            share.start_loss,
            1,
            (best[0] - own[1], best[1] - own[0]),
            numbers,
        )
        _check_kept(f"{prefix}kept", share.kept, own, ends, span, numbers, is_same=is_same)
    if value.margin is not None:
        own = mean(value.margin_lower)
        _check_kept(
            "solver.margin_kept", value.margin_kept, own, ends, span, numbers, is_same=is_same
        )


def _check_kept(
    name: str,
    kept: float,
    own: tuple[Any, Any],
    ends: tuple[tuple[Any, Any], ...],
    span: Any,
    numbers: Arithmetic,
    *,
    is_same: bool,
) -> None:
    """A share must not be above what follows; none at all is always true."""
    if kept == -math.inf or (kept <= 1.0 and is_same):
        return
    best, least, base_low, base_high = ends
    unit = numbers.unit
    sure = _share(best[1], least[0], own[0], base_low[0], base_high[1], span, -unit)
    most = _share(best[0], least[1], own[1], base_low[1], base_high[0], span, unit)
    _compare(name, kept, -1, (min(sure, 1), min(most, 1)), numbers)


def _share(
    best: Any, least: Any, own: Any, base_low: Any, base_high: Any, span: Any, unit: Any
) -> Any:
    """The share of the start value that is kept, rounded down (a negative unit) or up.

    It rises with `least`, `own` and `base_low` and falls with `best` and `base_high`, also as far
    as it is 1 where no more is lost than what counts as nothing: this is measured by a lower bound
    on |S|, or by what all values can differ by, if that is less, and by what is at stake (unless
    that is nothing itself). So the other ends of all give the other end of the share.
    """
    low, lost = max(least, base_low, own), best - own
    room = 1 + 8 * unit
    size = min(max(least, -best, 0), span)
    nothing = (Fraction(NOTHING) if unit == 0 else NOTHING) * size * room
    part = (Fraction(OF_STAKE) if unit == 0 else OF_STAKE) * (low - base_high) * room
    if lost <= 0 or (lost <= nothing and (best - base_low <= nothing or lost <= part)):
        return 1
    gain = (best if own >= base_high else low) - base_high
    if not gain > 0:
        return math.inf if unit > 0 else -math.inf
    share = (own - base_high) / gain
    # Two differences and a quotient round once each.
    return share + 3.1 * unit * abs(share) if unit and math.isfinite(share) else share


def _compare(
    name: str, stored: float, side: int, found: tuple[Any, Any], numbers: Arithmetic
) -> None:
    """A number must be at least (side 1) the upper bound that was found, or at most the lower."""
    low, high = found
    bound, other = (high, low) if side > 0 else (low, high)
    exact = Fraction(stored) if numbers.is_exact else stored
    if not side * exact >= side * bound:
        is_open = not numbers.is_exact and bool(side * exact >= side * other)
        relation = "at least" if side > 0 else "at most"
        raise VerificationError(
            f"value: {name} is {stored!r}, but {relation} {as_float(bound)!r} follows from the "
            "bounds",
            is_open=is_open,
        )


def _is_all_the_same(claims: Claims, mdp: TabularMDP) -> bool:
    """Whether all policies have the same values.

    They do if rewards are equal everywhere, or if all actions do the same in every state (true
    ones that are estimated may differ, unless there is only one).
    """
    is_single = bool((mdp.available.sum(axis=1) == 1).all())
    if bool(claims.states.high.max() == claims.states.low.min()) or is_single:
        return True
    return mdp.estimate is None and not mdp.has_choice
