"""Two models side by side in one: what a metric needs in order to compare their states.

No transition leads from one part into the other, so that every state does in the union what it
does in its own model, and has its value there. Where both models have an end of episodes, the
union has one end for both: an episode that is over is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.types import IntArray
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.mdp import (
    ENTRY_BYTES,
    ROW_BYTES,
    TabularMDP,
    canonical_rows,
    check_mdp,
)
from bisim_abstract._model.names import Names
from bisim_abstract._model.rows import rows_taken
from bisim_abstract._relations.table import check_relation
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["ModelUnion", "disjoint_union"]


@dataclass(frozen=True, eq=False)
class ModelUnion:
    """One model made of two, and where the states of each are in it.

    Attributes:
        model: The union. Live states of the first model come first, in their order, then those of
            the second; the end of episodes, if either has one, comes last.
        first: (states of the first model) the number of each in the union.
        second: (states of the second model) the number of each in the union.
    """

    model: TabularMDP
    first: IntArray
    second: IntArray

    @property
    def has_shared_end(self) -> bool:
        """Whether one state is the end of episodes of both models."""
        end = self.model.terminal_state
        return end is not None and end in self.first and end in self.second

    def __repr__(self) -> str:
        end = ", with one end" if self.has_shared_end else ""
        return (
            f"ModelUnion({self.first.size:,} and {self.second.size:,} states{end}: {self.model!r})"
        )


def disjoint_union(first: TabularMDP, second: TabularMDP, *, relation: str = "plain") -> ModelUnion:
    """One model that holds two, side by side.

    An episode starts in either part with probability one half. States are numbered anew; the
    metadata say what the parts were. If a part is an estimate, so is the union: its radii are
    those of the parts, 0 where a part is exact, and the probabilities that some radius of either
    part fails add up.

    Args:
        first: One model.
        second: Another one, with as many actions.
        relation: "plain" if the union is for comparing actions by their names: both models must
            then have equally many. "lax" if names do not count: the model with fewer actions then
            lacks the others (see `TabularMDP.available`).

    Raises:
        InvalidArgumentError: If the numbers of actions differ and names count, or if both parts
            are estimates and nothing would be left of what they are sure of.

    Example:
        >>> P = np.eye(2)[:, None, :]  # two states that stay where they are
        >>> one = TabularMDP.from_dense(P, [1.0, 0.0])
        >>> union = disjoint_union(one, TabularMDP.from_dense(P, [1.0, 0.5]))
        >>> union.model.rewards.ravel()
        array([1. , 0. , 1. , 0.5])
        >>> union.second
        array([2, 3])
    """
    call = "disjoint_union(first, second)"
    check_mdp(first, call=call)
    check_mdp(second, call=call)
    is_by_name = not check_relation(first, relation).matches_actions
    if first.names.rewards != second.names.rewards:
        one, two = (", ".join(mdp.names.rewards) or "one" for mdp in (first, second))
        raise InvalidArgumentError(
            f"the models keep different rewards side by side ({one}; {two}): read both with the "
            "same ones, or choose one by mdp.for_reward(name)"
        )
    if is_by_name:
        first, second = align_actions(first, second)
    if is_by_name and first.n_actions != second.n_actions:
        raise InvalidArgumentError(
            f"both models must have the same actions, got {first.n_actions} and "
            f"{second.n_actions}: by name, states would all be as far apart as can be. Compare "
            "them with relation='lax', which does not look at names; or give both models all "
            "actions, and say by `available` which of them their states lack"
        )
    n_actions = max(first.n_actions, second.n_actions)
    check_memory(
        ENTRY_BYTES * (first.nnz + second.nnz)
        + ROW_BYTES * n_actions * (first.n_states + second.n_states),
        what=f"a model of {first.n_states + second.n_states:,} states",
        instead="compare models of fewer states, for instance only reachable ones",
    )
    ends = [mdp.terminal_state for mdp in (first, second)]
    live = [
        np.flatnonzero(np.arange(mdp.n_states) != (-1 if end is None else end))
        for mdp, end in zip((first, second), ends, strict=True)
    ]
    n_live = live[0].size + live[1].size
    places = [np.full(mdp.n_states, n_live) for mdp in (first, second)]  # the end comes last
    places[0][live[0]] = np.arange(live[0].size)
    places[1][live[1]] = np.arange(live[0].size, n_live)
    parts = [
        _part(first, live[0], places[0], n_actions),
        _part(second, live[1], places[1], n_actions),
    ]
    if ends != [None, None]:
        k = 0 if ends[0] is not None else 1
        parts.append(_part((first, second)[k], np.array([ends[k]]), places[k], n_actions))
        if None not in ends:
            parts[2] = _merged_end(
                parts[2], _part(second, np.array([ends[1]]), places[1], n_actions)
            )
    rows: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts])
        for name in ("indices", "probs", "rewards", "available", "start")
    }
    sizes = np.concatenate([np.diff(part["indptr"]) for part in parts])
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    if _is_unsorted(indptr, rows["indices"]):  # an end that was not the last state has moved
        indptr, rows["indices"], rows["probs"] = canonical_rows(
            indptr, rows["indices"], rows["probs"]
        )
    for place in places:
        place.setflags(write=False)
    return ModelUnion(
        model=TabularMDP(
            indptr=indptr,
            **rows,
            terminal_state=n_live if len(parts) == 3 else None,
            estimate=_joint_estimate(first, second, parts),
            names=first.names.of_actions() if is_by_name else Names(),
            metadata={"union_of": [_described(mdp) for mdp in (first, second)]},
        ),
        first=places[0],
        second=places[1],
    )


def align_actions(first: TabularMDP, second: TabularMDP) -> tuple[TabularMDP, TabularMDP]:
    """Both models with the same actions in the same order, where they are known by name.

    An action that only one of them has is one that all states of the other lack. Where a model has
    no names, or one name twice, actions correspond by their numbers: nothing changes.
    """
    names = [mdp.names.actions for mdp in (first, second)]
    if names[0] is None or names[1] is None or names[0] == names[1]:
        return first, second
    if any(len(set(own)) < len(own) for own in names if own is not None):
        return first, second
    joint = tuple(dict.fromkeys([*names[0], *names[1]]))
    return _with_actions(first, joint), _with_actions(second, joint)


def _with_actions(mdp: TabularMDP, names: tuple[str, ...]) -> TabularMDP:
    """The model with the actions of these names, in this order; it lacks those it does not know."""
    assert mdp.names.actions is not None
    place = [names.index(name) for name in mdp.names.actions]
    available = np.zeros((mdp.n_states, len(names)), bool)
    available[:, place] = mdp.available
    # What a state lacks does what the first that it has does, now that they are in another order.
    chosen = np.zeros(len(names), np.int64)
    chosen[place] = np.arange(mdp.n_actions)
    taken = np.where(available, chosen, chosen[available.argmax(axis=1)][:, None])
    states = np.arange(mdp.n_states)[:, None]
    indptr, entries = rows_taken(mdp.indptr, (states * mdp.n_actions + taken).ravel())
    return TabularMDP(
        indptr=indptr,
        indices=mdp.indices[entries],
        probs=mdp.probs[entries],
        rewards=np.take_along_axis(mdp.rewards, taken, axis=1),
        available=available,
        start=mdp.start,
        state_ids=mdp.state_ids,
        terminal_state=mdp.terminal_state,
        estimate=None if mdp.estimate is None else mdp.estimate.with_actions(taken),
        names=replace(mdp.names, actions=names),
        metadata=mdp.metadata,
    )


def _part(mdp: TabularMDP, states: IntArray, place: IntArray, n_actions: int) -> dict[str, Any]:
    """Some states of a model, with as many actions as the union has, as arrays by name.

    Actions that the model does not have do what the first available action of a state does.
    """
    own = mdp.n_actions
    chosen = np.repeat(mdp.first_actions[states, None], n_actions, axis=1)
    chosen[:, :own] = np.arange(own)
    indptr, entries = rows_taken(mdp.indptr, (states[:, None] * own + chosen).ravel())
    available = np.zeros(chosen.shape, bool)
    available[:, :own] = mdp.available[states]
    part: dict[str, Any] = {
        "indptr": indptr,
        "indices": place[mdp.indices[entries]],
        "probs": mdp.probs[entries],
        "rewards": np.take_along_axis(mdp.rewards[states], chosen, axis=1),
        "available": available,
        "start": mdp.start[states] / 2.0,
    }
    zeros = np.zeros(chosen.shape)
    part |= {"counts": zeros.astype(np.int64), "reward_radius": zeros, "row_radius": zeros}
    if mdp.estimate is not None:
        taken = mdp.estimate.restrict(states).with_actions(chosen)
        names = ("counts", "reward_radius", "row_radius")
        part |= dict(zip(names, taken.arrays(), strict=True))
    return part


def _merged_end(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """One end for both: where it stays and what it pays is the same in both already.

    It has the actions that either end has, as all of them do the same.
    """
    merged = one | {
        "available": one["available"] | other["available"],
        "start": one["start"] + other["start"],
        "counts": one["counts"] + other["counts"],
    }
    for name in ("reward_radius", "row_radius"):
        # What the first end does, an action that it lacked does as well: one number for all.
        most = max(float(one[name].max()), float(other[name].max()))
        merged[name] = np.full(one[name].shape, most)
    merged["counts"] = np.full(merged["counts"].shape, int(merged["counts"].max()))
    return merged


def _is_unsorted(indptr: IntArray, indices: IntArray) -> bool:
    """Whether successors of some row are not rising."""
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1  # may begin a row
    return not bool(np.isin(falls, indptr, assume_unique=True).all())


def _joint_estimate(
    first: TabularMDP, second: TabularMDP, parts: list[dict[str, Any]]
) -> Estimate | None:
    """What is known of both parts together; None if both are exact.

    Some radius of the union fails only if one of the first part or one of the second does: at most
    with the sum of both probabilities, whether or not the samples have to do with each other.
    """
    known = [mdp.estimate for mdp in (first, second) if mdp.estimate is not None]
    if not known:
        return None
    alpha = known[0].alpha
    if len(known) == 2:
        alpha = known[0].alpha + known[1].alpha
        alpha = math.nextafter(alpha, math.inf) if alpha > 0.0 else 0.0  # two that are sure
    if alpha >= 1.0:
        raise InvalidArgumentError(
            f"both models are estimates that may fail with probability {known[0].alpha:g} and "
            f"{known[1].alpha:g}, together {alpha:g}: nothing is left that is sure; estimate them "
            "with a smaller alpha"
        )
    paid = [x.reward_range for x in known]
    paid += [(float(mdp.rewards.min()), float(mdp.rewards.max())) for mdp in (first, second)]
    return Estimate(
        **{
            name: np.concatenate([part[name] for part in parts])
            for name in ("counts", "reward_radius", "row_radius")
        },
        alpha=alpha,
        reward_range=(min(low for low, _ in paid), max(high for _, high in paid)),
        support_bound=max(
            *(found.support_bound for found in known), first.max_support, second.max_support
        ),
    )


def _described(mdp: TabularMDP) -> dict[str, Any]:
    """What a part was, as JSON values."""
    return {
        "fingerprint": mdp.fingerprint,
        "n_states": mdp.n_states,
        "n_actions": mdp.n_actions,
        "metadata": dict(mdp.metadata),
    }
