"""Models as model checkers write them: states, choices and branches, with several rewards.

There every state has a list of choices, which may have names, and nothing is padded. `to_mdp` makes
a `TabularMDP` of them: which choice is which action, which reward is paid, and where it ends, is
said by whoever reads the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bisim_abstract._base.checks import check_choice
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.text import did_you_mean
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import ENTRY_BYTES, TabularMDP
from bisim_abstract._model.names import Names, Variable, paid_in
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError

ACTIONS = ("names", "positions")
RewardLike = str | Sequence[str] | Mapping[str, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reward:
    """One reward structure: what states, choices and branches pay; None where they pay nothing."""

    states: FloatArray | None = None
    choices: FloatArray | None = None
    branches: FloatArray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ExplicitModel:
    """A Markov decision process, or a chain, as a file holds it.

    Attributes:
        choices: (n_states + 1) where the choices of each state begin.
        branches: (n_choices + 1) where the branches of each choice begin.
        targets: (n_branches) where they lead.
        probs: (n_branches) with which probability.
        start: (n_states) start distribution.
        choice_actions: (n_choices) the number of each choice's action, if choices have actions.
        action_names: What these are called, if they are called anything.
        rewards: Reward structures by name.
        labels: (n_states) named sets of states.
        variables: What tells states apart.
        state_ids: (n_states) ids, if states have others than their numbers.
        terminal_state: The end of episodes, if one state is.
    """

    choices: IntArray
    branches: IntArray
    targets: IntArray
    probs: FloatArray
    start: FloatArray
    choice_actions: IntArray | None = None
    action_names: tuple[str, ...] | None = None
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    labels: Mapping[str, BoolArray] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    state_ids: IntArray | None = None
    terminal_state: int | None = None

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.choices.size - 1)

    def to_mdp(
        self,
        *,
        reward: RewardLike | None = None,
        goal: str | None = None,
        actions: str = "names",
        metadata: Mapping[str, Any] | None = None,
    ) -> TabularMDP:
        """The model with one way of counting actions, and one reward, or several side by side.

        Args:
            reward: Which reward is paid; the only one by default. A minus before its name makes it
                a cost. Several, by name or with weights, are kept side by side.
            goal: A label: states that have it become absorbing. Where no reward is named, entering
                one of them pays 1.
            actions: "names" makes choices of one name one action, "positions" the first choices of
                all states, the second ones, and so on.
            metadata: Of the model.
        """
        check_choice("actions", actions, ACTIONS)
        is_goal = self._goal(goal)
        weights = self._weights(reward, has_goal=goal is not None)
        stays = np.diff(self.choices) == 0  # nothing to do there: it is where runs end
        if is_goal is not None:
            stays = stays | is_goal
        whole = self._staying(stays) if stays.any() else self
        owner = np.repeat(np.arange(self.n_states), np.diff(whole.choices))
        slots, n_slots, names = whole._slots(owner, ~stays[owner], actions)
        paid = [whole._paid(name, owner, is_goal) * weight for name, weight in weights.items()]
        n, depth = self.n_states, len(paid)
        check_memory(
            ENTRY_BYTES * n_slots * depth * max(whole.targets.size // max(owner.size, 1), 1) * n,
            what=f"{n:,} states with {n_slots:,} actions and {depth} rewards",
            instead="read it with actions='positions', or with one reward",
        )
        # The row of (state, action, reward) is that of the choice; absorbing states have them all.
        choice_of = np.full((n, n_slots), -1, np.int64)
        moves = np.flatnonzero(~stays[owner])
        choice_of[owner[moves], slots] = moves
        choice_of[stays] = whole.choices[:-1][stays, None]
        available = choice_of >= 0
        taken = np.where(available, choice_of, choice_of.max(axis=1, keepdims=True))
        rows = np.repeat(taken, depth, axis=1).ravel()
        lengths = np.diff(whole.branches)[rows]
        indptr = np.append(0, np.cumsum(lengths))
        entries = np.repeat(whole.branches[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        rewards = np.stack([each[taken] for each in paid], axis=-1).reshape(n, n_slots * depth)
        return TabularMDP.from_rows(
            indptr,
            whole.targets[entries],
            whole.probs[entries],
            rewards,
            available=None if available.all() else np.repeat(available, depth, axis=1),
            start=self.start,
            state_ids=self.state_ids,
            terminal_state=self.terminal_state,
            names=Names(
                actions=stacked_names(names, tuple(weights)),
                variables=self.variables,
                labels=self.labels,
                rewards=tuple(weights) if depth > 1 else (),
            ),
            metadata={**(metadata or {}), **_only_reward(weights)},
        )

    def _goal(self, goal: str | None) -> BoolArray | None:
        if goal is None:
            return None
        if goal not in self.labels:
            known = ", ".join(sorted(self.labels)) or "none"
            raise InvalidArgumentError(
                f"goal must be a label of the model, got {goal!r}; it has {known}"
                + did_you_mean(goal, self.labels)
            )
        if not self.labels[goal].any():
            raise InvalidArgumentError(f"no state has the label {goal!r}: no goal can be reached")
        return self.labels[goal]

    def _weights(self, reward: RewardLike | None, *, has_goal: bool) -> dict[str, float]:
        """Which rewards are paid, and by how much they count; the goal's own is called ""."""
        known = ", ".join(self.rewards) or "none"
        if reward is None and has_goal:
            return {"": 1.0}
        if reward is None:
            if len(self.rewards) == 1:
                return dict.fromkeys(self.rewards, 1.0)
            if not self.rewards:
                labels = ", ".join(sorted(self.labels)) or "none"
                raise InvalidArgumentError(
                    "the model has no rewards: name a goal, whose entry then pays 1, by goal= (on "
                    f"the command line --goal); its labels are {labels}"
                )
            raise InvalidArgumentError(
                f"the model has several rewards ({known}): choose one by reward= (on the command "
                "line --reward), or keep several side by side by a list of names"
            )
        given = [reward] if isinstance(reward, str) else reward
        weights: dict[str, float] = {}
        for each in given:
            if not isinstance(each, str):
                raise InvalidArgumentError(f"reward must hold names, got {each!r}")
            is_cost = each not in self.rewards and each.startswith("-")
            name = each[1:] if is_cost else each
            if name not in self.rewards or name in weights:
                problem = "is named twice" if name in weights else f"is unknown; it has {known}"
                raise InvalidArgumentError(
                    f"reward {name!r} of the model {problem}" + did_you_mean(name, self.rewards)
                )
            weight = float(given[each]) if isinstance(given, Mapping) else 1.0
            if not np.isfinite(weight) or weight == 0.0:
                raise InvalidArgumentError(
                    f"the weight of reward {name!r} must be finite and not 0, got {weight}"
                )
            weights[name] = -weight if is_cost else weight
        if not weights:
            raise InvalidArgumentError(f"reward must name at least one of {known}")
        return weights

    def _staying(self, stays: BoolArray) -> ExplicitModel:
        """The same where some states have one choice only, which stays and pays nothing."""
        counts = np.diff(self.choices)
        kept = ~np.repeat(stays, counts)  # of choices
        new_counts = np.where(stays, 1, counts)
        choices = np.append(0, np.cumsum(new_counts))
        is_loop = np.repeat(stays, new_counts)
        lengths = np.ones(is_loop.size, np.int64)
        lengths[~is_loop] = np.diff(self.branches)[kept]
        branches = np.append(0, np.cumsum(lengths))
        on_loop = np.repeat(is_loop, lengths)  # of branches
        kept_branches = np.repeat(kept, np.diff(self.branches))

        def placed(old: Any, mask: BoolArray, where: BoolArray, fill: float) -> Any:
            new = np.full(where.size, fill, old.dtype)
            new[~where] = old[mask]
            return new

        targets = placed(self.targets, kept_branches, on_loop, 0)
        targets[on_loop] = np.flatnonzero(stays)
        rewards = {
            name: Reward(
                states=None if r.states is None else np.where(stays, 0.0, r.states),
                choices=None if r.choices is None else placed(r.choices, kept, is_loop, 0.0),
                branches=(
                    None if r.branches is None else placed(r.branches, kept_branches, on_loop, 0.0)
                ),
            )
            for name, r in self.rewards.items()
        }
        given = self.choice_actions
        return ExplicitModel(
            choices=choices,
            branches=branches,
            targets=targets,
            probs=placed(self.probs, kept_branches, on_loop, 1.0),
            start=self.start,
            choice_actions=None if given is None else placed(given, kept, is_loop, 0),
            action_names=self.action_names,
            rewards=rewards,
        )

    def _slots(
        self, owner: IntArray, is_move: BoolArray, actions: str
    ) -> tuple[IntArray, int, tuple[str, ...] | None]:
        """Which action each choice that moves is, how many there are, and their names."""
        if not is_move.any():
            return np.empty(0, np.int64), 1, None
        moves = np.flatnonzero(is_move)
        position = moves - self.choices[owner[moves]]
        if actions == "positions" or self.choice_actions is None:
            return position, int(position.max()) + 1, None
        # The k-th choice of one name in a state is another action than the first.
        action = self.choice_actions[moves]
        count = int(action.max()) + 1
        kinds = owner[moves] * count + action
        order = np.argsort(kinds, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(kinds[order]) != 0))
        sizes = np.diff(np.append(begins, moves.size))
        repeat = np.empty(moves.size, np.int64)
        repeat[order] = np.arange(moves.size) - np.repeat(begins, sizes)
        most = int(repeat.max()) + 1
        is_used = np.bincount(action * most + repeat, minlength=count * most) > 0
        slots = (np.cumsum(is_used) - 1)[action * most + repeat]
        names = []
        for number, k in zip(*np.divmod(np.flatnonzero(is_used), most), strict=True):
            text = f"action {number}" if self.action_names is None else self.action_names[number]
            text = text or "unnamed"
            names.append(text if k == 0 else f"{text} ({k + 1})")
        return slots, len(names), tuple(names)

    def _paid(self, name: str, owner: IntArray, is_goal: BoolArray | None) -> FloatArray:
        """(n_choices) what each choice pays on average."""
        per_choice = np.diff(self.branches)
        choice_of = np.repeat(np.arange(owner.size), per_choice)

        def mean(values: FloatArray) -> FloatArray:
            mass = np.bincount(choice_of, weights=self.probs, minlength=owner.size)
            total = np.bincount(choice_of, weights=self.probs * values, minlength=owner.size)
            return np.asarray(total / mass)

        if name not in self.rewards:  # the goal's own
            assert is_goal is not None
            entered = mean(is_goal[self.targets].astype(np.float64))
            return np.where(is_goal[owner], 0.0, entered)
        reward = self.rewards[name]
        paid = np.zeros(owner.size)
        if reward.states is not None:
            paid += reward.states[owner]
        if reward.choices is not None:
            paid += reward.choices
        if reward.branches is not None:
            paid += mean(reward.branches)
        return paid


def _only_reward(weights: Mapping[str, float]) -> dict[str, Any]:
    """The entry of metadata that says which reward is paid, if one of the file's is."""
    ((name, weight),) = list(weights.items())[:1]
    if len(weights) > 1 or not name:
        return {}
    signs = {1.0: name, -1.0: f"-{name}"}
    return {"reward": signs.get(weight, {name: weight})}


def stacked_names(
    names: tuple[str, ...] | None, rewards: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Names of actions that occur once for each of several rewards."""
    if names is None or len(rewards) < 2:
        return names
    return tuple(f"{name}{paid_in(reward)}" for name in names for reward in rewards)


def check_csr(name: str, begins: IntArray, size: int) -> None:
    """Raise unless these are the beginnings of consecutive parts of `size` things."""
    # Compared, not subtracted: differences of hostile numbers may wrap round.
    if begins[0] != 0 or begins[-1] != size or (begins[1:] < begins[:-1]).any():
        raise InvalidMDPError(f"{name} must rise from 0 to {size}")
