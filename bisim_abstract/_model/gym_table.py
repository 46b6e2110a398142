"""Gymnasium `P` tables as compressed rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from bisim_abstract.errors import InvalidMDPError


def rows_of_table(table: Mapping[int, Any] | Sequence[Any], *, absorb: bool) -> dict[str, Any]:
    """Compressed rows and expected rewards of a `P` table; see `TabularMDP.from_table`.

    With `absorb`, outcomes marked done go to one more state, numbered last, if there are any.
    """
    n_table = len(table)
    if n_table == 0:
        raise InvalidMDPError("the table has no states")
    first = _entry(table, 0, "state 0")
    if not isinstance(first, Sized):
        raise InvalidMDPError(f"actions must be a table, got {first!r} at state 0")
    n_actions = len(first)
    rewards = np.zeros((n_table + 1, n_actions))
    has_end = False
    indptr, indices, probs = [0], [], []
    for state in range(n_table):
        actions = _entry(table, state, f"state {state}")
        if not isinstance(actions, Sized):
            raise InvalidMDPError(f"actions must be a table, got {actions!r} at state {state}")
        if len(actions) != n_actions:
            raise InvalidMDPError(
                f"every state needs the same actions: state 0 has {n_actions}, "
                f"state {state} has {len(actions)}"
            )
        for action in range(n_actions):
            where = f"state {state}, action {action}"
            outcomes = _outcomes(_entry(actions, action, where), n_table, where)
            merged: dict[int, list[float]] = {}
            for prob, successor, _, done in outcomes:
                is_end = absorb and done
                has_end |= is_end
                target = n_table if is_end else successor
                merged.setdefault(target, []).append(prob)
            for target in sorted(merged):
                indices.append(target)
                probs.append(_sum(merged[target], where))
            indptr.append(len(indices))
            rewards[state, action] = _mean_reward(outcomes, where)
    if has_end:
        for _ in range(n_actions):
            indices.append(n_table)
            probs.append(1.0)
            indptr.append(len(indices))
    return {
        "indptr": np.array(indptr, dtype=np.int64),
        "indices": np.array(indices, dtype=np.int64),
        "probs": np.array(probs),
        "rewards": rewards if has_end else rewards[:n_table],
        "terminal_state": n_table if has_end else None,
    }


def _entry(table: Any, key: int, where: str) -> Any:
    try:
        return table[key]
    except TypeError:
        raise InvalidMDPError(f"the table holds {table!r} above {where}, not a list") from None
    except (KeyError, IndexError):
        raise InvalidMDPError(
            f"the table has no entry for {where}; states and actions must be numbered from 0"
        ) from None


def _outcomes(raw: Any, n_table: int, where: str) -> list[tuple[float, int, float, bool]]:
    outcomes = []
    if not isinstance(raw, Iterable):
        raise InvalidMDPError(f"outcomes must be a list, got {raw!r} at {where}")
    for outcome in raw:
        try:
            prob, successor, reward, done = outcome
            prob, successor, reward = float(prob), operator.index(successor), float(reward)
        except (TypeError, ValueError):
            raise InvalidMDPError(
                f"outcomes must be (probability, next state, reward, done), got {outcome!r} "
                f"at {where}"
            ) from None
        if not math.isfinite(prob) or prob < 0.0:
            raise InvalidMDPError(
                f"probabilities must be finite and non-negative, got {prob} at {where}, "
                f"next state {successor}"
            )
        if not 0 <= successor < n_table:
            raise InvalidMDPError(
                f"next states must lie in [0, {n_table}), got {successor} at {where}"
            )
        if not math.isfinite(reward):
            raise InvalidMDPError(f"rewards must be finite, got {reward} at {where}")
        if prob > 0.0:
            outcomes.append((prob, successor, reward, bool(done)))
    if not outcomes:
        raise InvalidMDPError(f"every row needs an outcome of positive probability: {where}")
    return outcomes


def _sum(values: Iterable[float], where: str) -> float:
    """The correctly rounded sum, which does not depend on the order of its terms."""
    try:
        return math.fsum(values)
    except OverflowError:
        raise InvalidMDPError(f"numbers too large to be added up at {where}") from None


def _mean_reward(outcomes: list[tuple[float, int, float, bool]], where: str) -> float:
    rewards = {reward for _, _, reward, _ in outcomes}
    if len(rewards) == 1:  # not the quotient of two sums, which may round
        return rewards.pop()
    total = _sum((prob for prob, *_ in outcomes), where)
    return _sum((prob / total * reward for prob, _, reward, _ in outcomes), where)
