"""Deterministic models: a pair of states and a pair of their actions has one successor pair.

There is no transport. By name, the metric is the value of a deterministic decision problem on
pairs, d(s,t) = max_a |R(s,a) - R(t,a)| + gamma·d(s_a, t_a), solved by policy iteration. After
renaming it is the value of a game: one side chooses an action of either state, the other answers
with an action of the other state, and d(s,t) is what the first can make sure of.

`table` is (n, n); only entries above the diagonal are used, and the diagonal is 0. `action` (n, n)
is the choice of the first side: a of state s, or n_actions + b for b of state t; -1 for pairs whose
entry of the table is fixed. `match` (n, n, choices) is the answer to each, if actions are renamed.
By name, a choice a is answered by a.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import AnyIntArray, FloatArray, IntArray

LOW = 2**32 - 1  # a pair is kept as one number, taken apart by shifts: divisions are slow


@inner
def game_kernel(
    s: int,
    t: int,
    choice: int,
    is_fixed: bool,
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    counts: IntArray,
    table: FloatArray,
    match: AnyIntArray,
) -> tuple[float, int]:
    """The backup of a pair after renaming, and a choice that attains it.

    In: choice, the one to try first, or the only one (is_fixed); counts (n): how many actions a
    state has, the first ones. In/out: match, the answers to try first, and the best that were
    found. A choice is given up as soon as an answer leaves no more than another one is worth.
    """
    n_actions = rewards.shape[1]
    best, chosen = -1.0, choice
    for k in range(1 if is_fixed else 2 * n_actions):
        c = choice if k == 0 else (k - 1 if k <= choice else k)
        if c >= n_actions + counts[t] or counts[s] <= c < n_actions:
            continue
        first = match[s, t, c]
        least, kept, answer = np.inf, np.inf, first
        for j in range(counts[t] if c < n_actions else counts[s]):
            m = first if j == 0 else (j - 1 if j <= first else j)
            a, b = (c, m) if c < n_actions else (m, c - n_actions)
            value = abs(rewards[s, a] - rewards[t, b])
            if value >= least:
                continue
            x, y = successor[s, a], successor[t, b]
            if x < y:
                value += gamma * table[x, y]
            elif y < x:
                value += gamma * table[y, x]
            # Keep the old answer on a tie up to rounding: otherwise ties may alternate for ever.
            if j == 0 or value < kept - 4.0 * EPS * kept:
                kept, answer = value, m
            if value < least:
                least = value
                if least <= best:
                    break
        match[s, t, c] = answer
        if least > best:
            best, chosen = least, c
    return best, chosen


@kernel
def greedy_kernel(
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    is_lax: bool,
    has_fixed: bool,
    counts: IntArray,
    table: FloatArray,
    action: AnyIntArray,
    match: AnyIntArray,
    forward: bool,
) -> float:
    """Improve the choice and the value of every pair, in place, in one direction or the other.

    In: successor (n, A), rewards (n, A), counts (n) as in `game_kernel`; has_fixed: whether there
    are pairs whose entry of the table stays. In/out: table, action
    and match. Returns the largest improvement. Later pairs see the values of earlier ones, so
    that a change travels along whole paths in one pass; this is why it is not cut into chunks.
    """
    n, n_actions = rewards.shape
    largest = 0.0
    for i in range(n):
        s = i if forward else n - 1 - i
        for j in range(n - 1 - s):
            t = s + 1 + j if forward else n - 1 - j
            if has_fixed and action[s, t] < 0:
                continue
            now = table[s, t]
            best = -1.0
            chosen = 0
            if is_lax:
                best, chosen = game_kernel(
                    s, t, action[s, t], False, successor, rewards, gamma, counts, table, match
                )
            else:
                for a in range(n_actions):
                    x, y = successor[s, a], successor[t, a]
                    value = abs(rewards[s, a] - rewards[t, a])
                    if x < y:
                        value += gamma * table[x, y]
                    elif y < x:
                        value += gamma * table[y, x]
                    if value > best:
                        best = value
                        chosen = a
            # Keep the old action on a tie up to rounding: otherwise ties may alternate for ever.
            if best > now + 4.0 * EPS * now:
                action[s, t] = chosen
                table[s, t] = best
                largest = max(largest, best - now)
    return largest


@kernel
def respond_kernel(
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    counts: IntArray,
    table: FloatArray,
    action: AnyIntArray,
    match: AnyIntArray,
    forward: bool,
) -> float:
    """Improve the answer to the choice of every pair, and its value, in place.

    As in `greedy_kernel`, for the side that wants little. Returns the largest improvement.
    """
    n = rewards.shape[0]
    largest = 0.0
    for i in range(n):
        s = i if forward else n - 1 - i
        for j in range(n - 1 - s):
            t = s + 1 + j if forward else n - 1 - j
            now = table[s, t]
            least, _ = game_kernel(
                s, t, action[s, t], True, successor, rewards, gamma, counts, table, match
            )
            if least < now - 4.0 * EPS * now:
                table[s, t] = least
                largest = max(largest, now - least)
    return largest


@kernel
def evaluate_kernel(
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    is_lax: bool,
    has_fixed: bool,
    action: AnyIntArray,
    match: AnyIntArray,
    table: FloatArray,
    order: IntArray,
    mark: AnyIntArray,
) -> None:
    """Value of following `action` and `match` for ever, for all pairs, in one pass.

    Every pair has one successor, so the pairs form a functional graph: walk until a known
    value, the diagonal or a cycle is met; close the cycle by its geometric series; unwind.
    In: has_fixed: whether there are pairs whose entry of the table stays.
    Out: table (above the diagonal). Scratch: order (pairs), mark (n, n), int32, zeroed here.
    """
    n, n_actions = rewards.shape
    mark[:, :] = 0
    if has_fixed:
        for s in range(n):
            for t in range(s + 1, n):
                if action[s, t] < 0:
                    mark[s, t] = -1
    for s0 in range(n):
        for t0 in range(s0 + 1, n):
            if mark[s0, t0] == -1:
                continue
            size = 0
            s, t = s0, t0
            while s != t and mark[s, t] == 0:
                size += 1
                mark[s, t] = size  # place on the walk, from 1
                order[size - 1] = (s << 32) | t
                a = b = action[s, t]
                if is_lax:
                    b = match[s, t, a]
                    if a >= n_actions:
                        a, b = b, a - n_actions
                x, y = successor[s, a], successor[t, b]
                if x < y:
                    s, t = x, y
                else:
                    s, t = y, x
            if s == t:
                value = 0.0
            elif mark[s, t] == -1:
                value = table[s, t]
            else:
                # A cycle: the walk from its first pair back to itself.
                first = mark[s, t] - 1
                total = 0.0
                for k in range(size - 1, first - 1, -1):
                    x, y = order[k] >> 32, order[k] & LOW
                    a = b = action[x, y]
                    if is_lax:
                        b = match[x, y, a]
                        if a >= n_actions:
                            a, b = b, a - n_actions
                    total = abs(rewards[x, a] - rewards[y, b]) + gamma * total
                value = total / (1.0 - gamma ** (size - first))
            for k in range(size - 1, -1, -1):
                x, y = order[k] >> 32, order[k] & LOW
                a = b = action[x, y]
                if is_lax:
                    b = match[x, y, a]
                    if a >= n_actions:
                        a, b = b, a - n_actions
                value = abs(rewards[x, a] - rewards[y, b]) + gamma * value
                table[x, y] = value
                mark[x, y] = -1


@kernel
def residual_kernel(
    begin: int,
    end: int,
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    is_lax: bool,
    has_fixed: bool,
    counts: IntArray,
    table: FloatArray,
    action: AnyIntArray,
    match: AnyIntArray,
) -> tuple[float, float]:
    """Bound how far the exact backup leaves `table`, over pairs s < t with begin <= s < end.

    In: action and match: which pairs stay, if any (has_fixed), and hints what to try first.
    Returns (rise, fall) with table - fall <= T(table) <= table + rise in exact arithmetic.
    What two actions are apart is computed by one subtraction, one product and one sum of
    terms >= 0: relative error below 4·EPS; underflow of the product is below 1e-315. Maxima and
    minima of such numbers do not round. The last subtraction is off by at most EPS relative,
    covered by the outer factor.
    """
    n, n_actions = rewards.shape
    rise = 0.0
    fall = 0.0
    for s in range(begin, end):
        for t in range(s + 1, n):
            if has_fixed and action[s, t] < 0:
                continue
            best = 0.0
            if is_lax:
                best, _ = game_kernel(
                    s, t, action[s, t], False, successor, rewards, gamma, counts, table, match
                )
            else:
                for a in range(n_actions):
                    x, y = successor[s, a], successor[t, a]
                    value = abs(rewards[s, a] - rewards[t, a])
                    if x < y:
                        value += gamma * table[x, y]
                    elif y < x:
                        value += gamma * table[y, x]
                    best = max(best, value)
            now = table[s, t]
            slack = 4.0 * EPS * best + 1e-315
            rise = max(rise, ((best - now) + slack) * (1.0 + 8.0 * EPS))
            fall = max(fall, ((now - best) + slack) * (1.0 + 8.0 * EPS))
    return rise, fall
