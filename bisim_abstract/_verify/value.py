"""The verifier's check of proven values: one backup of every function, and what follows.

Six functions over states are claimed (those of the bracket are constant on clusters). Each must
satisfy v >= Bv (upper bounds) or v <= Bv (lower bounds) in every state, B being the backup of the
best action, of the policy's action, or of all actions that the state has with equal weights. B is
monotone and B(v + c) = Bv + γc for the *true* model: so if m is the most by which the value in
question exceeds an upper bound v, B-values exceed v by at most γm, m <= γm, and m <= 0; mirrored
below.

For an estimated model B is bounded from the safe side: a true reward is within its radius r and
in the range of single rewards, and a true row p has at most t of its mass elsewhere than the row q
of the model. For any level λ <= max v and w = max(v, λ),

    p·v <= p·w <= q·w + t (max v - λ),

as w spans no more than that; and mirrored below. A level for each row is chosen such that the
least of q's mass, t in all, lies at or below it; the inequality holds whatever is chosen. If v is
constant on the blocks of the estimate, so is w, and t is the radius of rows summed by blocks.

Boxes of rows, from which a bracket was made, are neither read nor needed: if a function that is
constant on clusters satisfies its inequality for the worst row of a box, it satisfies it in
every state, and that is what is checked.

A policy says what to do in a cluster, by the names that actions have there. In a state it takes the
first action that is called so, or the first of all if none is, which is what an action that the
state lacks does anyway. Nothing else depends on names, nor on the relation of the bounds.

Loss, start loss and kept share must follow from these functions and the model's start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._verify.read import Claims, ValueClaims, radius_seen_by
from bisim_abstract.errors import VerificationError

TINY = 1e-305  # above all that underflow may lose in a backup
NOTHING = 1e-9  # of the optimal start value: a loss below this counts as none


@dataclass(frozen=True)
class Function:
    """One claimed function over states.

    Attributes:
        name: What it is called in the certificate.
        values: (n_states).
        is_upper: Whether it must not be below its backup; else not above.
        policy: (n_states) the action whose backup counts; None for the best one.
        is_mixed: Whether all actions that a state has count alike.
    """

    name: str
    values: FloatArray
    is_upper: bool
    policy: IntArray | None = None
    is_mixed: bool = False


def claimed_functions(claims: ValueClaims) -> Iterator[Function]:
    """All six."""
    labels = claims.labels
    yield Function("optimal_upper", claims.optimal_upper, True)
    yield Function("optimal_lower", claims.optimal_lower, False)
    yield Function("policy_lower", claims.policy_lower, False, _lifted(claims, claims.policy))
    yield Function("random_upper", claims.random_upper, True, is_mixed=True)
    yield Function("bracket upper", claims.bracket_upper[labels], True)
    yield Function(
        "bracket lower",
        claims.bracket_lower[labels],
        False,
        _lifted(claims, claims.bracket_policy),
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


# -- floats ------------------------------------------------------------------------------------


def check_value(claims: Claims, mdp: TabularMDP) -> int:
    """Check all that is claimed about values; the number of functions."""
    value = claims.value
    if value is None:
        return 0
    count = 0
    masses = np.add.reduceat(mdp.probs, mdp.indptr[:-1])
    for function in claimed_functions(value):
        _check_function(function, mdp, masses, claims.gamma)
        count += 1
    _check_loss(value)
    best, least, own, random = (
        _start_bounds(mdp.start, values)
        for values in (
            value.optimal_upper,
            value.optimal_lower,
            value.policy_lower,
            value.random_upper,
        )
    )
    lost = best[1] - own[0]
    if not lost <= value.start_loss:
        is_open = best[0] - own[1] <= value.start_loss
        raise _wrong("start_loss", value.start_loss, "at least", lost, is_open=is_open)
    if value.kept == -math.inf or (value.kept <= 1.0 and _is_all_the_same(claims, mdp)):
        return count
    span = (float(claims.states.high.max()) - float(claims.states.low.min())) / (1.0 - claims.gamma)
    share = _share(best[1], least[0], own[0], random[1], span, -1.0)
    if not value.kept <= min(share, 1.0):
        most = _share(best[0], least[1], own[1], random[0], span, 1.0)
        is_open = value.kept <= min(most, 1.0)
        raise _wrong("kept", value.kept, "at most", share, is_open=is_open)
    return count


def _share(best: float, least: float, own: float, random: float, span: float, side: float) -> float:
    """The share of the start value that is kept, rounded down (side -1) or up (side 1).

    (own - random) / (best - random) rises with `own`, falls with `random` as own <= best, and falls
    with `best` where own >= random; else `least` stands in its place, with which it rises. So the
    other end of all four gives the other end of the share.
    """
    low = max(least, own)
    size = min(max(low, -best, 0.0), span) * (1.0 + side * 8.0 * EPS)
    if best - own <= NOTHING * size:
        return 1.0
    gain = (best if own >= random else low) - random
    if not gain > 0.0:
        return side * math.inf
    share = (own - random) / gain
    # Two differences and a quotient round once each.
    return share + side * 3.1 * EPS * abs(share) if math.isfinite(share) else share


def _check_function(function: Function, mdp: TabularMDP, masses: FloatArray, gamma: float) -> None:
    """One inequality in every state.

    A mean of a row of k entries is a quotient of two sums, each off by k roundings of the sum
    of its sizes; radii, rewards and a mean over actions add at most n_actions + 12. No size is
    above |R| + r + 4·max|v|. So a backup is off by `slack` at most.
    """
    values, n_actions = function.values, mdp.n_actions
    size = float(np.abs(mdp.rewards).max()) + 4.0 * float(np.abs(values).max())
    side = 1.0 if function.is_upper else -1.0
    with np.errstate(under="ignore"):
        if mdp.estimate is None:
            sums = np.add.reduceat(mdp.probs * values[mdp.indices], mdp.indptr[:-1])
            q = mdp.rewards + gamma * (sums / masses).reshape(mdp.rewards.shape)
        else:
            ahead = side * _most_ahead(mdp, masses, side * values, radius_seen_by(mdp, values))
            q = _last_reward(mdp, side) + gamma * ahead.reshape(mdp.rewards.shape)
            size += float(mdp.estimate.reward_radius.max())
    if function.is_mixed:
        backup = np.where(mdp.available, q, 0.0).sum(axis=1) / mdp.available.sum(axis=1)
    elif function.policy is None:
        backup = q.max(axis=1)
    else:
        backup = q[np.arange(values.size), function.policy]
    terms = 2 * int(np.diff(mdp.indptr).max()) + 24 + (n_actions if function.is_mixed else 0)
    slack = terms * EPS * size + (TINY if size > 0.0 else 0.0)
    beyond = side * (backup - values)
    worst = int(beyond.argmax())  # the first NaN, if there is one
    if not beyond[worst] + slack <= 0.0:
        raise _unproven(
            function, worst, float(backup[worst]), is_open=bool(beyond[worst] - slack <= 0.0)
        )


def _last_reward(mdp: TabularMDP, side: float) -> FloatArray:
    """(n_states, n_actions) the largest (1) or least (-1) true reward; rounds once."""
    assert mdp.estimate is not None
    last = side * mdp.estimate.reward_range[1 if side > 0.0 else 0]
    middle = side * mdp.rewards
    end = middle + mdp.estimate.reward_radius
    return np.asarray(side * np.minimum(end, np.maximum(middle, last)))


def _most_ahead(
    mdp: TabularMDP, masses: FloatArray, values: FloatArray, radius: FloatArray
) -> FloatArray:
    """(rows) the most that a true row can make of values, by the level of each row."""
    begins = mdp.indptr[:-1]
    row = np.repeat(np.arange(begins.size), np.diff(mdp.indptr))
    order = np.lexsort((values[mdp.indices], row))
    worth, probs = values[mdp.indices][order], mdp.probs[order]
    away = radius.ravel()
    # The first entry, by rising worth, with which t of the mass is passed; none may be left.
    passed = np.cumsum(probs)
    passed -= (passed - probs)[begins][row]
    is_past = passed >= (away * masses)[row]
    ends = mdp.indptr[1:] - 1
    at = np.minimum.reduceat(np.where(is_past, np.arange(worth.size), worth.size), begins)
    level = worth[np.minimum(at, ends)]
    sums = np.add.reduceat(probs * np.maximum(worth, level[row]), begins)
    return np.asarray(sums / masses + away * (float(values.max()) - level))


def _is_all_the_same(claims: Claims, mdp: TabularMDP) -> bool:
    """Whether all policies have the same values.

    They do if rewards are equal everywhere, or if all actions do the same in every state (true
    ones that are estimated may differ, unless there is only one).
    """
    is_single = bool((mdp.available.sum(axis=1) == 1).all())
    if bool(claims.states.high.max() == claims.states.low.min()) or is_single:
        return True
    return mdp.estimate is None and not mdp.has_choice


def _check_loss(value: ValueClaims) -> None:
    """No state may lose more than is claimed; decided exactly.

    With s = fl(u - l) and e its error, u - l = s + e is at most a float x exactly if s < x, or
    s = x and e <= 0, as s is the float nearest to it.
    """
    upper, lower = value.optimal_upper, value.policy_lower
    lost = upper - lower
    part = lost - upper
    rest = (upper - (lost - part)) - (lower + part)
    good = (lost < value.loss) | ((lost == value.loss) & (rest <= 0.0))
    if not good.all():
        at = int(np.argmin(good))
        raise VerificationError(
            f"value: loss is {value.loss!r}, but state {at} may lose {float(lost[at])!r}"
        )


def _start_bounds(start: FloatArray, values: FloatArray) -> tuple[float, float]:
    """Bounds on the mean over the start.

    A product, two sums and a quotient round once each, a difference of two such means once
    more: five units of EPS of the mean size, and one to spare.
    """
    used = np.flatnonzero(start)
    weights, picked = start[used], values[used]
    total = math.fsum(weights)
    mean = math.fsum(weights * picked) / total
    pad = 6.0 * EPS * math.fsum(weights * np.abs(picked)) / total
    return mean - pad, mean + pad


# -- fractions ---------------------------------------------------------------------------------


def check_exact_value(claims: Claims, mdp: TabularMDP) -> int:
    """The same with fractions, which leave nothing open."""
    value = claims.value
    if value is None:
        return 0
    count = 0
    for function in claimed_functions(value):
        _check_exact_function(function, mdp, Fraction(claims.gamma))
        count += 1
    upper, lower = _fractions(value.optimal_upper), _fractions(value.policy_lower)
    lost, at = max((u - v, s) for s, (u, v) in enumerate(zip(upper, lower, strict=True)))
    if lost > Fraction(value.loss):
        raise VerificationError(
            f"value: loss is {value.loss!r}, but state {at} may lose {float(lost)!r}"
        )
    weights = _fractions(mdp.start)
    total = sum(weights, Fraction(0))

    def mean(values: list[Fraction]) -> Fraction:
        return sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0)) / total

    best, own = mean(upper), mean(lower)
    least = max(mean(_fractions(value.optimal_lower)), own)
    random = mean(_fractions(value.random_upper))
    if best - own > Fraction(value.start_loss):
        raise _wrong("start_loss", value.start_loss, "at least", float(best - own))
    if value.kept == -math.inf or (value.kept <= 1.0 and _is_all_the_same(claims, mdp)):
        return count
    highest, lowest = claims.states.high.max(), claims.states.low.min()
    span = (Fraction(float(highest)) - Fraction(float(lowest))) / (1 - Fraction(claims.gamma))
    size = min(max(least, -best, Fraction(0)), span)
    if best - own <= Fraction(NOTHING) * size and value.kept <= 1.0:
        return count
    gain = (best if own >= random else least) - random
    if gain <= 0 or Fraction(value.kept) > min(Fraction(1), (own - random) / gain):
        bound = float((own - random) / gain) if gain > 0 else -math.inf
        raise _wrong("kept", value.kept, "at most", bound)
    return count


def _check_exact_function(function: Function, mdp: TabularMDP, gamma: Fraction) -> None:
    values = _fractions(function.values)
    side = 1 if function.is_upper else -1
    best = max(side * v for v in values)
    radius = radius_seen_by(mdp, function.values)
    for state, own in enumerate(values):
        if function.policy is None:
            actions = np.flatnonzero(mdp.available[state]).tolist()
        else:
            actions = [int(function.policy[state])]
        found = []
        for action in actions:
            successors, probs = mdp.successors(state, action)
            masses = _fractions(probs)
            total = sum(masses, Fraction(0))
            worth = [side * values[s] for s in successors.tolist()]
            paid, left = Fraction(float(mdp.rewards[state, action])), Fraction(0)
            if mdp.estimate is not None:
                end = side * paid + Fraction(float(mdp.estimate.reward_radius[state, action]))
                last = side * Fraction(mdp.estimate.reward_range[1 if side > 0 else 0])
                paid = side * min(end, max(last, side * paid))
                left = Fraction(float(radius[state, action]))
            # The least of the row's mass, `left` in all, goes where it is worth most.
            ahead = Fraction(0)
            for value, mass in sorted(zip(worth, masses, strict=True)):
                moved = min(left, mass / total)
                left -= moved
                ahead += moved * best + (mass / total - moved) * value
            found.append(paid + gamma * side * ahead)
        backup = sum(found, Fraction(0)) / len(found) if function.is_mixed else max(found)
        if side * (backup - own) > 0:
            raise _unproven(function, state, float(backup), is_open=False)


def _fractions(values: FloatArray) -> list[Fraction]:
    return [Fraction(x) for x in values.tolist()]


def _unproven(function: Function, state: int, backup: float, *, is_open: bool) -> VerificationError:
    side = "below" if function.is_upper else "above"
    how = "may be" if is_open else "is"
    return VerificationError(
        f"value: {function.name} of state {state} is {float(function.values[state])!r}, which "
        f"{how} {side} its backup {backup!r}",
        is_open=is_open,
    )


def _wrong(
    name: str, stored: float, relation: str, bound: float, *, is_open: bool = False
) -> VerificationError:
    return VerificationError(
        f"value: {name} is {stored!r}, but {relation} {bound!r} follows from the bounds",
        is_open=is_open,
    )
