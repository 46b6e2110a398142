"""Deterministic models: a pair of states has one successor pair per action.

There is no transport: the metric is the value of a deterministic decision problem on pairs,
d(s,t) = max_a |R(s,a) - R(t,a)| + gamma·d(s_a, t_a), solved by policy iteration. `table` is
(n, n); only entries above the diagonal are used, and the diagonal is 0.
"""

from __future__ import annotations

from bisim_abstract._base.jit import kernel
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import AnyIntArray, FloatArray, IntArray

LOW = 2**32 - 1  # a pair is kept as one number, taken apart by shifts: divisions are slow


@kernel
def greedy_kernel(
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    table: FloatArray,
    action: AnyIntArray,
    forward: bool,
) -> float:
    """Improve the action and the value of every pair, in place, in one direction or the other.

    In: successor (n, A), rewards (n, A). In/out: table (n, n), action (n, n).
    Returns the largest improvement. Later pairs see the values of earlier ones, so that a
    change travels along whole paths in one pass; this is why it is not cut into chunks.
    """
    n, n_actions = rewards.shape
    largest = 0.0
    for i in range(n):
        s = i if forward else n - 1 - i
        for j in range(n - 1 - s):
            t = s + 1 + j if forward else n - 1 - j
            now = table[s, t]
            best = -1.0
            chosen = 0
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
def evaluate_kernel(
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    action: AnyIntArray,
    table: FloatArray,
    order: IntArray,
    mark: AnyIntArray,
) -> None:
    """Value of following `action` for ever, for all pairs, in one pass.

    Every pair has one successor, so the pairs form a functional graph: walk until a known
    value, the diagonal or a cycle is met; close the cycle by its geometric series; unwind.
    Out: table (above the diagonal). Scratch: order (pairs), mark (n, n), int32, zeroed here.
    """
    n = rewards.shape[0]
    mark[:, :] = 0
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
                a = action[s, t]
                x, y = successor[s, a], successor[t, a]
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
                    a = action[x, y]
                    total = abs(rewards[x, a] - rewards[y, a]) + gamma * total
                value = total / (1.0 - gamma ** (size - first))
            for k in range(size - 1, -1, -1):
                x, y = order[k] >> 32, order[k] & LOW
                a = action[x, y]
                value = abs(rewards[x, a] - rewards[y, a]) + gamma * value
                table[x, y] = value
                mark[x, y] = -1


@kernel
def residual_kernel(
    begin: int,
    end: int,
    successor: IntArray,
    rewards: FloatArray,
    gamma: float,
    table: FloatArray,
) -> tuple[float, float]:
    """Bound how far the exact backup leaves `table`, over pairs s < t with begin <= s < end.

    Returns (rise, fall) with table - fall <= T(table) <= table + rise in exact arithmetic.
    The computed backup of a pair and an action is one subtraction, one product and one sum of
    terms >= 0: relative error below 4·EPS; underflow of the product is below 1e-315. The last
    subtraction is off by at most EPS relative, covered by the outer factor.
    """
    n, n_actions = rewards.shape
    rise = 0.0
    fall = 0.0
    for s in range(begin, end):
        for t in range(s + 1, n):
            best = 0.0
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
