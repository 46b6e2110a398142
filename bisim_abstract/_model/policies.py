"""Agents of any kind as one table over clusters: what each of them does, asked once.

The end of episodes is no cluster, and nobody acts there: its row says the first action, whatever
the agent would say. A table names only actions that exist: whoever names one that a cluster lacks
does what its first available action does, and is written down as taking that one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.renaming import actions_called
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
            agent, as described in `lift_policy`. Actions are those of the model, by their names.
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
        return _checked(ask(policy, count, mdp), mdp)
    if callable(own):
        return _checked(own(), mdp)
    if callable(policy):
        return _checked(_actions(policy, count, mdp.n_actions), mdp)
    return _checked(policy, mdp)


def uniform_policy(mdp: TabularMDP) -> FloatArray:
    """(n_states, n_actions) acting at random: all actions that a state has alike."""
    return np.asarray(mdp.available / mdp.available.sum(axis=1, keepdims=True))


def played_weights(mdp: TabularMDP, weights: FloatArray) -> FloatArray:
    """(n_states, n_actions) probabilities, those of actions that states lack given to the first."""
    if not mdp.has_action_sets:
        return np.asarray(weights)
    played = np.where(mdp.available, weights, 0.0)
    lost = np.where(mdp.available, 0.0, weights).sum(axis=1)
    played[np.arange(mdp.n_states), mdp.first_actions] += lost
    return played


def policy_matrix(mdp: TabularMDP, policy: npt.ArrayLike) -> FloatArray:
    """(n_states, n_actions) probabilities of a policy over states, checked.

    Args:
        mdp: The model.
        policy: (n_states) actions, or (n_states, n_actions) probabilities. What states lack
            becomes their first available action.
    """
    n, n_actions = mdp.n_states, mdp.n_actions
    given = np.asarray(policy)
    if given.shape == (n,) and given.dtype.kind in "iu":
        bad = np.flatnonzero((given < 0) | (given >= n_actions))
        if bad.size:
            raise InvalidArgumentError(
                f"policy must hold actions in [0, {n_actions}), got {given[bad[0]]} "
                f"at state {bad[0]}"
            )
        weights = np.zeros((n, n_actions))
        weights[np.arange(n), mdp.played(given.astype(np.int64))] = 1.0
        return weights
    if given.shape != (n, n_actions) or given.dtype.kind not in "iuf":
        raise InvalidArgumentError(
            f"policy must be actions of shape ({n},) or probabilities of shape "
            f"({n}, {n_actions}), got {given.dtype} of shape {given.shape}"
        )
    weights = given.astype(np.float64)
    sums = weights.sum(axis=1)
    bad = np.flatnonzero(~(np.abs(sums - 1.0) <= SUM_TOL) | (weights < 0.0).any(axis=1))
    if bad.size:
        raise InvalidArgumentError(
            f"policy must hold probabilities that sum to 1, got {weights[bad[0]].tolist()} "
            f"at state {bad[0]}"
        )
    return played_weights(mdp, weights / sums[:, None])


def lift_table(
    table: IntArray | FloatArray, labels: IntArray, renaming: IntArray | None
) -> IntArray | FloatArray:
    """A table over clusters as one over states, whose actions have names of their own.

    What a cluster does is the first of a state's actions that is called so; probabilities of a
    name are spread evenly over all that are. Where a state has none of that name, it is its first
    action, as for all that states lack.

    Args:
        table: (n_clusters) names or (n_clusters, names) probabilities.
        labels: (n_states) the cluster of each state.
        renaming: (n_states, n_actions) names of actions; None if these are called what they are.
    """
    if renaming is None:
        return table[labels]
    if table.ndim == 1:
        return actions_called(renaming, table[labels].astype(np.int64))
    masses = table[labels].astype(np.float64)
    weights = np.zeros(renaming.shape)
    first = (renaming >= 0).argmax(axis=1)
    for name in range(masses.shape[1]):
        is_called = renaming == name
        has_none = ~is_called.any(axis=1)
        is_called[has_none, first[has_none]] = True
        weights += _spread(masses[:, name], is_called)
    return weights


def _spread(mass: FloatArray, is_called: BoolArray) -> FloatArray:
    """Mass over the actions that are marked, in parts that add up to it exactly.

    All parts are multiples of the spacing of floats at the mass: no sum of some of them rounds.
    """
    count = is_called.sum(axis=1)
    unit = np.spacing(mass)
    part = np.floor(mass / count / unit) * unit
    weights = np.where(is_called, part[:, None], 0.0)
    weights[np.arange(mass.size), is_called.argmax(axis=1)] = mass - (count - 1) * part
    return np.asarray(weights)


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
        return mdp.played(actions)
    weights = np.zeros((n, n_actions))
    weights[:, 0] = 1.0
    weights[: table.shape[0]] = table
    return played_weights(mdp, weights)


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


def _predicted(agent: Any, count: int, mdp: TabularMDP) -> IntArray:
    """What an agent does in each cluster, asked as an environment would ask."""
    is_masked = _takes_masks(agent.predict, mdp)

    def ask(cluster: int) -> Any:
        masks = {"action_masks": mdp.available[cluster]} if is_masked else {}
        answer = agent.predict(np.int64(cluster), deterministic=True, **masks)
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

    return _actions(ask, count, mdp.n_actions)


def _takes_masks(asked: Callable[..., Any], mdp: TabularMDP) -> bool:
    """Whether an agent is to be told which actions there are, as MaskablePPO is."""
    return mdp.has_action_sets and "action_masks" in inspect.signature(asked).parameters


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


def _probabilities(agent: Any, count: int, mdp: TabularMDP) -> FloatArray:
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
    masks = {}
    if _takes_masks(inner.get_distribution, mdp):
        masks["action_masks"] = mdp.available[:count]
    told = inner.get_distribution(seen, **masks).distribution.probs.detach().cpu().numpy()
    probs = np.asarray(told, np.float64)  # of float32: they sum to 1 up to their own rounding
    if probs.shape != (count, mdp.n_actions):
        raise InvalidArgumentError(
            f"policy must have probabilities of shape {(count, mdp.n_actions)}, got {probs.shape}"
        )
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))
