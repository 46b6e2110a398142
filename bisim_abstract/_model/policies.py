"""Agents of any kind as one table over clusters: what each of them does, asked once.

The end of episodes is no cluster, and nobody acts there: its row says action 0, whatever the agent
would say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError

SUM_TOL = 1e-9  # of probabilities; as `evaluate_policy` asks for
TAKEN = (
    "a table, a function of the cluster, a result with a policy, a QLearning, or an object with "
    "predict(observation, deterministic=...) such as a model of Stable-Baselines3"
)


def policy_table(
    policy: object, mdp: TabularMDP, *, deterministic: bool = True
) -> IntArray | FloatArray:
    """(n_states) actions, or (n_states, n_actions) probabilities, checked.

    Args:
        policy: (n) actions or (n, n_actions) probabilities, with or without the end; or an
            agent, as described in `lift_policy`.
        mdp: The aggregated model; its terminal state, if it has one, is the last.
        deterministic: What agents with `predict` are asked for: their deterministic actions, or
            else their probabilities.
    """
    count = mdp.n_states - (mdp.terminal_state is not None)
    own = getattr(policy, "policy", None)
    if isinstance(own, np.ndarray):  # values, proven values, and agents that are deployed already
        return _checked(own, mdp)
    if callable(getattr(policy, "predict", None)):
        _check_space(policy, mdp)
        ask = _predicted if deterministic else _probabilities
        return _checked(ask(policy, count, mdp.n_actions), mdp)
    if callable(own):
        return _checked(own(), mdp)
    if callable(policy):
        return _checked(_actions(policy, count, mdp.n_actions), mdp)
    return _checked(policy, mdp)


def check_table(table: IntArray | FloatArray, n_actions: int) -> None:
    """Raise unless the numbers of a table are actions, or probabilities of them."""
    if table.ndim == 1:
        bad = np.flatnonzero((table < 0) | (table >= n_actions))
        if bad.size:
            raise InvalidArgumentError(
                f"policy must hold actions in [0, {n_actions}), got {table[bad[0]]} for cluster "
                f"{bad[0]}"
            )
        return
    with np.errstate(over="ignore", invalid="ignore"):
        sums = table.sum(axis=1)
    bad = np.flatnonzero(~(np.abs(sums - 1.0) <= SUM_TOL) | ~(table >= 0.0).all(axis=1))
    if bad.size:
        raise InvalidArgumentError(
            f"policy must hold probabilities that sum to 1, got {table[bad[0]].tolist()} for "
            f"cluster {bad[0]}"
        )


def _checked(given: Any, mdp: TabularMDP) -> IntArray | FloatArray:
    """The table with a row for the end, if its numbers are what they should be."""
    n, n_actions = mdp.rewards.shape
    count = n - (mdp.terminal_state is not None)
    try:
        table = np.asarray(given)
    except ValueError:  # ragged nested lists
        table = np.empty((), object)
    is_actions = table.shape in ((n,), (count,)) and table.dtype.kind in "iu"
    is_probs = table.shape in ((n, n_actions), (count, n_actions)) and table.dtype.kind in "iuf"
    if not is_actions and not is_probs:
        what = f"{table.dtype} of shape {table.shape}" if table.ndim else type(given).__name__
        raise InvalidArgumentError(
            f"policy must be actions of shape ({n},) or probabilities of shape {(n, n_actions)}, "
            f"got {what}; it can be {TAKEN}"
        )
    check_table(table, n_actions)
    if is_actions:
        actions = np.zeros(n, np.int64)
        actions[: table.size] = table
        return actions
    weights = np.zeros((n, n_actions))
    weights[:, 0] = 1.0
    weights[: table.shape[0]] = table
    return weights


def _check_space(agent: Any, mdp: TabularMDP) -> None:
    """Refuse an agent that was trained on something else, as far as it tells."""
    space = getattr(agent, "observation_space", None)
    if space is None:
        return
    size = getattr(space, "n", None)
    if not isinstance(size, int | np.integer) or int(size) != mdp.n_states:
        raise InvalidArgumentError(
            f"policy must be an agent of this abstraction, whose observations are "
            f"Discrete({mdp.n_states}), but it was trained on {space}; if it saw them through a "
            "wrapper, pass a function that does what the wrapper does and asks the agent"
        )


def _predicted(agent: Any, count: int, n_actions: int) -> IntArray:
    """What an agent does in each cluster, asked as an environment would ask."""

    def ask(cluster: int) -> Any:
        answer = agent.predict(np.int64(cluster), deterministic=True)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise InvalidArgumentError(
                "policy.predict must return (action, state), got "
                f"{type(answer).__name__}; pass a function of the cluster instead"
            )
        action, state = answer
        if state is not None:
            raise InvalidArgumentError(
                "policy must act by the cluster alone, but predict returned a state: what a "
                "recurrent agent does depends on what it saw before, and no table holds that"
            )
        return action

    return _actions(ask, count, n_actions)


def _actions(ask: Callable[[int], Any], count: int, n_actions: int) -> IntArray:
    """(count) the actions that a function names."""
    actions = np.empty(count, np.int64)
    for cluster in range(count):
        try:
            answer = ask(cluster)
        except InvalidArgumentError:
            raise
        except Exception as error:  # whatever the agent's own code raises
            raise InvalidArgumentError(
                f"policy could not be asked about cluster {cluster}: {type(error).__name__}: "
                f"{error}"
            ) from error
        found = np.asarray(answer)
        if found.size != 1 or found.dtype.kind not in "iu" or not 0 <= found.item() < n_actions:
            raise InvalidArgumentError(
                f"policy must name an action in [0, {n_actions}) for each cluster, got "
                f"{answer!r} for cluster {cluster}"
            )
        actions[cluster] = found.item()
    return actions


def _probabilities(agent: Any, count: int, n_actions: int) -> FloatArray:
    """(count, n_actions) the probabilities that a model of Stable-Baselines3 acts with."""
    inner = getattr(agent, "policy", agent)
    if not hasattr(inner, "get_distribution") or not hasattr(inner, "obs_to_tensor"):
        raise InvalidArgumentError(
            f"deterministic=False needs an agent that tells its probabilities, as PPO and A2C do; "
            f"{type(agent).__name__} does not: pass deterministic=True, or a table of "
            "probabilities"
        )
    inner.set_training_mode(False)
    seen, _ = inner.obs_to_tensor(np.arange(count))
    told = inner.get_distribution(seen).distribution.probs.detach().cpu().numpy()
    probs = np.asarray(told, np.float64)  # of float32: they sum to 1 up to their own rounding
    if probs.shape != (count, n_actions):
        raise InvalidArgumentError(
            f"policy must have probabilities of shape {(count, n_actions)}, got {probs.shape}"
        )
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))
