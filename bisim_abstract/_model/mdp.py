"""`TabularMDP`: the one immutable data type that everything else reads.

A finite MDP without a discount (the discount belongs to the metric). Transition rows are
compressed: row `s * n_actions + a` holds the successors of state `s` under action `a`. The
stored floats are taken as exact numbers, and a kernel row is its entries divided by their
exact sum, so that rows which miss 1 by a rounding error still mean something definite.

A state may lack some of the actions (`available`). What it lacks does what its first available
action does: the same row, the same reward. So the best action, the worst one, and the set of all
that a state can do are what they are without the padding, and nothing that is computed of them has
to look at the mask. What counts actions (acting at random) or compares them by name must.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import checked_metadata, frozen, row_spans
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import check_choice
from bisim_abstract._base.deadline import look
from bisim_abstract._base.html import table_html
from bisim_abstract._base.labels import by_first_appearance
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.text import counted, plain_text, shortened, surely_text
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray, ProgressCallback
from bisim_abstract._model.checks import (
    ROW_SUM_TOL,
    check_available,
    check_distribution,
    check_entries,
    check_layout,
    check_rewards,
    check_state_ids,
    dense_order,
)
from bisim_abstract._model.names import (
    MOST,
    Names,
    as_variable,
    paid_in,
    state_words,
    with_name,
)
from bisim_abstract._model.rows import Rows, rows_taken
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from bisim_abstract._model.estimation import Estimate, TransitionsLike
    from bisim_abstract._model.search import Actions, Transitions

# What making a model takes at its peak, in bytes, measured: per entry of a dense array, per entry
# of rows that are sorted and merged, and per row.
DENSE_BYTES, ENTRY_BYTES, ROW_BYTES = 64, 80, 40
AT_ONCE = 1_000_000  # entries that are sorted between two looks at the time


@dataclass(frozen=True, eq=False, kw_only=True)
class TabularMDP(Rows):
    """A finite MDP with sparse rows. Arrays are read-only; equality is by content.

    Use the `from_*` constructors unless the rows are already sorted, merged and free of
    zeros: the plain constructor checks this and does not repair it.

    Attributes:
        indptr: (n_states * n_actions + 1) row boundaries.
        indices: (nnz) successor states, strictly increasing within a row.
        probs: (nnz) probabilities, above 0; each row sums to one up to rounding.
        rewards: (n_states, n_actions) expected rewards.
        available: (n_states, n_actions) which actions each state has, at least one of them; all
            by default. Rows and rewards of the others are those of its first available one.
        start: (n_states) start distribution; uniform over non-terminal states by default.
        state_ids: (n_states) the environment's own id of each state; -1 for an added state.
        terminal_state: The absorbing state that stands for the end of an episode, if any.
        estimate: Counts and confidence radii, if the model was estimated from samples; or radii
            of rounding, if it is the chain of a policy.
        names: What states and actions are called; not part of the fingerprint.
        metadata: Where the model comes from; JSON values only, not part of the fingerprint.

    Example:
        >>> import numpy as np
        >>> P = np.array([[[0.0, 1.0]], [[0.5, 0.5]]])  # (state, action, next state)
        >>> mdp = TabularMDP.from_dense(P, [[1.0], [0.0]])
        >>> mdp
        TabularMDP(2 states, 1 action, 3 transitions)
        >>> mdp.successors(1, 0)
        (array([0, 1]), array([0.5, 0.5]))
    """

    rewards: FloatArray
    available: BoolArray = field(default=None)  # type: ignore[arg-type]  # filled in below
    start: FloatArray = field(default=None)  # type: ignore[arg-type]
    state_ids: IntArray = field(default=None)  # type: ignore[arg-type]
    terminal_state: int | None = None
    estimate: Estimate | None = None
    names: Names = field(default_factory=Names)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rewards = frozen("rewards", self.rewards, np.float64)
        if rewards.ndim != 2 or rewards.size == 0:
            raise InvalidMDPError(
                "an MDP needs at least one state and one action: rewards must have shape "
                f"(n_states, n_actions) with both above 0, got {rewards.shape}"
            )
        n_states, n_actions = rewards.shape
        check_rewards(rewards)
        set_field = object.__setattr__
        set_field(self, "rewards", rewards)
        self._keep_rows(n_states, n_actions, frozen)
        if self.available is None:
            set_field(self, "available", np.ones(rewards.shape, bool))
        set_field(self, "available", frozen("available", self.available, np.bool_))
        check_available(self.available, rewards.shape)
        if self.has_action_sets:
            _check_padding(self)

        if self.terminal_state is not None:
            set_field(self, "terminal_state", _whole("terminal_state", self.terminal_state))
            _check_terminal(self)
        if self.start is None:
            start = np.ones(n_states)
            if self.terminal_state is not None and n_states > 1:
                start[self.terminal_state] = 0.0
            set_field(self, "start", start / start.sum())
        set_field(self, "start", frozen("start", self.start, np.float64))
        check_distribution("start", self.start, n_states)
        if self.state_ids is None:
            ids = np.arange(n_states)
            if self.terminal_state is not None:
                ids[self.terminal_state] = -1
            set_field(self, "state_ids", ids)
        set_field(self, "state_ids", frozen("state_ids", self.state_ids, np.int64))
        check_state_ids(self.state_ids, n_states)
        if self.estimate is not None and self.estimate.counts.shape != rewards.shape:
            raise InvalidMDPError(
                f"estimate.counts must have the shape of rewards {rewards.shape}, "
                f"got {self.estimate.counts.shape}"
            )
        self.names.check(n_states, n_actions)
        set_field(self, "metadata", MappingProxyType(checked_metadata(self.metadata)))

    # -- reading ---------------------------------------------------------------------------

    @property
    def n_states(self) -> int:
        """Number of states, an added absorbing state included."""
        return int(self.rewards.shape[0])

    @property
    def n_actions(self) -> int:
        """Number of actions; which of them a state has, `available` tells."""
        return int(self.rewards.shape[1])

    @cached_property
    def has_action_sets(self) -> bool:
        """Whether some state lacks an action."""
        return not bool(self.available.all())

    @cached_property
    def action_sets(self) -> IntArray:
        """(n_states) equal numbers for states with the same actions, by first appearance."""
        labels = action_sets(self.available)
        labels.setflags(write=False)
        return labels

    @cached_property
    def first_actions(self) -> IntArray:
        """(n_states) the first available action of each state, which those it lacks stand for."""
        first: IntArray = self.available.argmax(axis=1)
        first.setflags(write=False)
        return first

    def played(self, actions: IntArray) -> IntArray:
        """(n_states) available actions that do what the given ones do, state by state."""
        states = np.arange(self.n_states)
        return np.where(self.available[states, actions], actions, self.first_actions)

    @property
    def is_sampled(self) -> bool:
        """Whether the model was estimated from samples: radii of rounding alone do not count."""
        return self.estimate is not None and self.estimate.is_sampled

    @property
    def is_deterministic(self) -> bool:
        """Whether every state and action has exactly one successor."""
        return self.max_support == 1

    @cached_property
    def absorbing(self) -> BoolArray:
        """(n_states) whether every action stays with certainty and pays nothing."""
        n, a = self.n_states, self.n_actions
        single = np.diff(self.indptr).reshape(n, a) == 1
        first = self.indices[self.indptr[:-1]].reshape(n, a)
        stays = single & (first == np.arange(n)[:, None]) & (self.rewards == 0.0)
        return np.asarray(stays.all(axis=1))

    @cached_property
    def has_choice(self) -> bool:
        """Whether in some state two actions differ, in what they pay or where they lead."""
        if (self.rewards != self.rewards[:, :1]).any():
            return True
        a, lengths = self.n_actions, np.diff(self.indptr)
        if (lengths.reshape(-1, a) != lengths[::a, None]).any():
            return True
        # Equal lengths: compare every row, entry by entry, with that of its state's action 0.
        rows = np.repeat(np.arange(lengths.size), lengths)
        shift = np.arange(self.nnz) - self.indptr[rows]
        first = self.indptr[rows - rows % a] + shift
        same = (self.indices == self.indices[first]) & (self.probs == self.probs[first])
        return not bool(same.all())

    def successors(self, state: int, action: int) -> tuple[IntArray, FloatArray]:
        """Successor states and their probabilities, as stored."""
        if not 0 <= state < self.n_states or not 0 <= action < self.n_actions:
            raise InvalidArgumentError(
                f"state and action must lie in [0, {self.n_states}) and [0, {self.n_actions}), "
                f"got {state} and {action}"
            )
        row = state * self.n_actions + action
        span = slice(self.indptr[row], self.indptr[row + 1])
        return self.indices[span], self.probs[span]

    def state_name(self, state: int) -> str:
        """What a state is called, for people: its variables, the end, or its id."""
        if state == self.terminal_state:
            return "the end"
        return self.names.state(state) or f"state {self.state_ids[state]}"

    def action_name(self, action: int) -> str:
        """What an action is called, for people: its name, or its number."""
        actions = self.names.actions
        return f"action {action}" if actions is None else actions[action] or f"action {action}"

    def state_text(self, state: int, *, most: int | None = MOST, with_id: bool = False) -> str:
        """A state in a sentence: its number, with its name if the states of this model have any.

        Args:
            state: Its number.
            most: Characters of the name, of which a longer one is cut; None for all.
            with_id: Whether to tell the environment's own id, where that is another number.

        Example:
            >>> mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [0.0, 1.0])
            >>> mdp.state_text(1), mdp.with_names(states=["left", "right"]).state_text(1)
            ('1', '1 (right)')
        """
        if self.names.variables and state == self.terminal_state:
            return with_name(state, "the end")
        name, own = self.names.state(state), int(self.state_ids[state])
        name = name if most is None else shortened(name, most)
        if with_id and own not in (state, -1):
            name = f"id {own}, {name}" if name else f"id {own}"
        return with_name(state, name, most=None)

    def action_text(self, action: int) -> str:
        """An action in a sentence: its name, or its number where it has no name of its own."""
        return self.names.action_text(action)

    def kernel(self) -> csr_array:
        """Normalised transition matrix, (n_states * n_actions, n_states), as SciPy CSR."""
        from scipy.sparse import csr_array

        shape = (self.n_states * self.n_actions, self.n_states)
        return csr_array((self.normalised_probs, self.indices, self.indptr), shape=shape)

    def reachable(self) -> IntArray:
        """States that can be reached from the support of the start distribution, sorted."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        n, a = self.n_states, self.n_actions
        # One more node, with an edge to every start state, makes it a single search.
        starts = np.flatnonzero(self.start)
        indptr = np.append(self.indptr[::a], self.nnz + starts.size)
        indices = np.concatenate([self.indices, starts])
        graph = csr_array((np.ones(indices.size, np.int8), indices, indptr), shape=(n + 1, n + 1))
        order = breadth_first_order(graph, n, return_predecessors=False)
        return np.sort(order[order < n]).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content: rows, rewards, start, ids, terminal state and estimate."""
        digest = hashlib.sha256()
        shape = [self.n_states, self.n_actions, self.nnz, self.terminal_state]
        digest.update(json.dumps(["bisim_abstract.TabularMDP", 1, shape]).encode())
        arrays: list[npt.NDArray[Any]]
        arrays = [self.indptr, self.indices, self.probs, self.rewards, self.start, self.state_ids]
        if self.has_action_sets:
            arrays.append(self.available)
        if self.estimate is not None:
            digest.update(json.dumps(self.estimate.header()).encode())
            arrays += self.estimate.arrays() + self.estimate.block_arrays()
        for array in arrays:
            # Adding 0.0 turns -0.0 into 0.0: equal numbers must not differ in their bytes.
            plain = array + 0.0 if array.dtype == np.float64 else array
            digest.update(plain.astype(plain.dtype.newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TabularMDP):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Callable[..., TabularMDP], tuple[dict[str, Any]]]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["metadata"] = dict(self.metadata)
        return _rebuild, (fields,)

    def __repr__(self) -> str:
        parts = [counted(self.n_states, "state"), counted(self.n_actions, "action")]
        parts.append(counted(self.nnz, "transition"))
        if self.has_action_sets:
            parts.append(self._action_sets_text())
        if self.terminal_state is not None:
            parts.append(f"terminal state {self.terminal_state}")
        if self.is_sampled:
            parts.append("estimated from samples")
        if "under_policy" in self.metadata:
            parts.append("under a policy")
        if "env" in self.metadata:
            parts.append(f"from {plain_text(str(self.metadata['env']))}")
        return f"TabularMDP({', '.join(parts)})"

    def _repr_html_(self) -> str:
        low, high = (x + 0.0 for x in (self.rewards.min(), self.rewards.max()))  # no "-0"
        rows = [
            ("transitions", f"{self.nnz:,}, at most {self.max_support:,} of a state and action"),
            ("rewards", f"from {low:.6g} to {high:.6g}"),
        ]
        if self.has_action_sets:
            rows.append(("actions of states", self._action_sets_text()))
        if self.terminal_state is not None:
            rows.append(("end of episodes", f"state {self.terminal_state:,}"))
        if self.estimate is not None and self.is_sampled:
            rows.append(("estimated", f"holds with probability {surely_text(self.estimate.alpha)}"))
        elif self.estimate is not None:
            rows.append(("computed", "up to rounding, which its radii hold"))
        if "under_policy" in self.metadata:
            rows.append(("policy", "a given one: the only action does what it does"))
        if "env" in self.metadata:
            rows.append(("environment", plain_text(str(self.metadata["env"]))))
        rows.append(("fingerprint", self.fingerprint[:12]))
        title = f"{counted(self.n_states, 'state')}, {counted(self.n_actions, 'action')}"
        return table_html(f"Model of {title}", rows)

    def _action_sets_text(self) -> str:
        count = int(self.action_sets.max()) + 1
        sizes = self.available.sum(axis=1)
        least, most = int(sizes.min()), int(sizes.max())
        each = f"{most}" if least == most else f"{least} to {most}"
        return f"{counted(count, 'action set')} of {each}"

    # -- deriving --------------------------------------------------------------------------

    def restrict(self, states: npt.ArrayLike) -> TabularMDP:
        """The same MDP on a closed subset of states (no transition may leave it).

        Args:
            states: State indices, or a mask of states; the result numbers them in
                increasing order.

        Raises:
            InvalidArgumentError: If a transition leaves the subset, or no start mass is in it.
        """
        given = np.asarray(states)
        if given.dtype == bool and given.shape == (self.n_states,):
            given = np.flatnonzero(given)
        if given.size and given.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"states must be state indices or a mask of all states, got dtype {given.dtype}"
            )
        keep = np.unique(given).astype(np.int64)
        if self.is_sampled and keep.size < self.n_states:
            # True rows may lead to any state with the mass that their radii leave open.
            raise InvalidArgumentError(
                "an estimate cannot be restricted: rows may lead to states that were left out, "
                "though none was seen to; number fewer states before estimating"
            )
        if keep.size == 0 or keep[0] < 0 or keep[-1] >= self.n_states:
            raise InvalidArgumentError(
                f"states must be a non-empty set of indices in [0, {self.n_states})"
            )
        place = np.full(self.n_states, -1, np.int64)
        place[keep] = np.arange(keep.size)
        rows = (keep[:, None] * self.n_actions + np.arange(self.n_actions)).ravel()
        indptr, take = rows_taken(self.indptr, rows)
        indices = place[self.indices[take]]
        if indices.size and indices.min() < 0:
            bad = int(np.searchsorted(indptr, int(np.argmin(indices)), side="right")) - 1
            state, action = divmod(int(rows[bad]), self.n_actions)
            raise InvalidArgumentError(
                f"states is not closed: state {state}, action {action} leads outside it"
            )
        mass = float(self.start[keep].sum())
        if mass <= 0.0:
            raise InvalidArgumentError("states holds none of the start distribution")
        whole = math.isclose(mass, 1.0, abs_tol=ROW_SUM_TOL)
        terminal = self.terminal_state
        if terminal is not None:
            terminal = int(place[terminal]) if place[terminal] >= 0 else None
        return TabularMDP(
            indptr=indptr,
            indices=indices,
            probs=self.probs[take],
            rewards=self.rewards[keep],
            available=self.available[keep],
            start=self.start[keep] if whole else self.start[keep] / mass,
            state_ids=self.state_ids[keep],
            terminal_state=terminal,
            estimate=None if self.estimate is None else self.estimate.restrict(keep),
            names=self.names.take(keep),
            metadata=self.metadata,
        )

    def with_available(self, available: npt.ArrayLike) -> TabularMDP:
        """The same MDP where states have some of their actions only.

        Args:
            available: (n_states, n_actions) which; at least one in every state. Those that a
                state lacks already stay away.

        Raises:
            InvalidMDPError: If a state is left without an action.
        """
        given = frozen("available", available, np.bool_)
        check_available(given, self.rewards.shape)
        indptr, indices, probs, rewards, mask = _padded(
            self.indptr, self.indices, self.probs, self.rewards, given & self.available
        )
        chosen = np.where(mask, np.arange(self.n_actions), mask.argmax(axis=1)[:, None])
        estimate = None if self.estimate is None else self.estimate.with_actions(chosen)
        return TabularMDP(
            indptr=indptr,
            indices=indices,
            probs=probs,
            rewards=rewards,
            available=mask,
            start=self.start,
            state_ids=self.state_ids,
            terminal_state=self.terminal_state,
            estimate=estimate,
            names=self.names,
            metadata=self.metadata,
        )

    def for_reward(self, reward: str) -> TabularMDP:
        """The model with one of several rewards that are kept side by side (see `Names.rewards`).

        Args:
            reward: Its name; it is paid with the weight that it was given.

        Raises:
            InvalidArgumentError: If there is no such reward.
        """
        rewards = self.names.rewards
        if reward not in rewards:
            listed = ", ".join(rewards) or "none, but one that all actions pay"
            raise InvalidArgumentError(f"reward must be one of {listed}; got {reward!r}")
        if self.estimate is not None:
            raise InvalidArgumentError("an estimate has one reward")
        k, depth = rewards.index(reward), len(rewards)
        own = np.arange(k, self.n_actions, depth)
        rows = (np.arange(self.n_states)[:, None] * self.n_actions + own).ravel()
        indptr, entries = rows_taken(self.indptr, rows)
        actions = self.names.actions
        short = None
        if actions is not None:
            short = tuple(name.removesuffix(paid_in(reward)) for name in actions[k::depth])
        return TabularMDP.from_rows(
            indptr,
            self.indices[entries],
            self.probs[entries],
            self.rewards[:, own],
            available=self.available[:, own] if self.has_action_sets else None,
            start=self.start,
            state_ids=self.state_ids,
            terminal_state=self.terminal_state,
            names=replace(self.names, actions=short, rewards=()),
            metadata={**self.metadata, "reward": reward},
        )

    def under_policy(self, policy: npt.ArrayLike) -> TabularMDP:
        """The chain that a policy makes of the model: one action, which does what it does.

        The metric of the chain is the on-policy metric of the policy: it says how far apart the
        values of the policy are, not those of the best one. Where the policy has one action its
        row is copied; a mixture is rounded, and `estimate` then holds radii of rounding, with
        alpha = 0, so that what is proven of the chain holds for the exact mixture. Radii of a
        model that was estimated are mixed.

        Args:
            policy: (n_states) actions, or (n_states, n_actions) probabilities, as
                `evaluate_policy` takes them. Where a state lacks an action that is named, its
                first available one is taken.

        Returns:
            A model of the same states, whose metadata say "under_policy".

        Raises:
            InvalidArgumentError: If these are no actions or probabilities of the model.

        Example:
            >>> import numpy as np
            >>> P = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
            >>> mdp = TabularMDP.from_dense(P, [[0.0, 1.0], [2.0, 0.0]], order="sas")
            >>> chain = mdp.under_policy([[0.25, 0.75], [0.5, 0.5]])
            >>> chain.successors(0, 0)
            (array([0, 1]), array([0.25, 0.75]))
            >>> chain.rewards.ravel()
            array([0.75, 1.  ])
        """
        from bisim_abstract._model.chains import policy_chain

        return policy_chain(self, policy)

    def with_metadata(self, **entries: Any) -> TabularMDP:
        """A copy with metadata entries added or replaced."""
        return self._copy(metadata=MappingProxyType(checked_metadata({**self.metadata, **entries})))

    def with_names(
        self,
        *,
        states: Iterable[object] | Mapping[str, npt.ArrayLike] | None = None,
        actions: Iterable[str] | None = None,
        labels: Mapping[str, npt.ArrayLike] | None = None,
    ) -> TabularMDP:
        """A copy whose states and actions have names, for people; what is not given stays.

        Args:
            states: A name for each state, or named variables with a value for each state.
            actions: A name for each action.
            labels: (n_states) named sets of states, as masks.

        Example:
            >>> mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [0.0, 1.0])
            >>> mdp.with_names(states={"row": [0, 0], "column": [0, 1]}).state_name(1)
            'row=0, column=1'
        """
        changed: dict[str, Any] = {}
        if isinstance(states, Mapping):
            changed["variables"] = tuple(as_variable(name, v) for name, v in states.items())
        elif states is not None:
            changed["variables"] = (state_words(states),)
        if actions is not None:
            changed["actions"] = tuple(actions)
        if labels is not None:
            changed["labels"] = labels
        names = replace(self.names, **changed)
        names.check(self.n_states, self.n_actions)
        return self._copy(names=names)

    def _copy(self, **fields: Any) -> TabularMDP:
        # The arrays were checked and cannot change, so the copy may share them.
        copied = object.__new__(TabularMDP)
        copied.__dict__.update(self.__dict__, **fields)
        return copied

    # -- constructors ----------------------------------------------------------------------

    @classmethod
    def from_rows(
        cls,
        indptr: npt.ArrayLike,
        indices: npt.ArrayLike,
        probs: npt.ArrayLike,
        rewards: npt.ArrayLike,
        *,
        available: npt.ArrayLike | None = None,
        **options: Any,
    ) -> TabularMDP:
        """From compressed rows in any order: sorts them, adds up duplicates, drops zeros.

        Args:
            indptr: (n_states * n_actions + 1) row boundaries.
            indices: (nnz) successor states.
            probs: (nnz) probabilities.
            rewards: (n_states, n_actions) expected rewards.
            available: (n_states, n_actions) which actions each state has; all by default. Rows and
                rewards of the others are not looked at, and may be empty.
            **options: start, state_ids, terminal_state, estimate, names, metadata.
        """
        R = frozen("rewards", rewards, np.float64)
        if isinstance(indices, np.ndarray):  # anything else takes more as it is
            check_memory(
                ENTRY_BYTES * indices.size,
                what=f"sorting {indices.size:,} transitions",
                instead="pass fewer, for instance only reachable states",
            )
        rows = _as_rows(indptr, indices, probs, R.shape)
        if available is not None:
            ptr, index, prob, R, options["available"] = _padded(*rows, R, available)
            rows = ptr, index, prob
        ptr, index, prob = canonical_rows(*rows)
        return cls(indptr=ptr, indices=index, probs=prob, rewards=R, **options)

    @classmethod
    def from_dense(
        cls,
        transitions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        *,
        order: str | None = None,
        available: npt.ArrayLike | None = None,
        **options: Any,
    ) -> TabularMDP:
        """From dense arrays.

        Args:
            transitions: Probabilities, (n_states, n_actions, n_states) or
                (n_actions, n_states, n_states). The shape tells which, unless there are as many
                actions as states.
            rewards: (n_states, n_actions), or (n_states) where they do not depend on actions. Where
                they depend on the next state, an array of either shape of transitions: expected
                rewards are then taken over rows divided by their sums.
            order: "sas" for the first of these shapes, "ass" for the second; needed where the
                shape fits both.
            available: (n_states, n_actions) which actions each state has; all by default. Rows and
                rewards of the others are not looked at.
            **options: start, state_ids, terminal_state, estimate, names, metadata.

        Example:
            >>> stay, move = np.eye(3), np.roll(np.eye(3), 1, axis=1)
            >>> TabularMDP.from_dense([stay, move], [0.0, 0.0, 1.0])  # one matrix per action
            TabularMDP(3 states, 2 actions, 6 transitions)
        """
        is_array = isinstance(transitions, np.ndarray) and transitions.dtype.kind in "biuf"
        if is_array:
            _check_dense(np.asarray(transitions))  # anything else takes more as it is
        from bisim_abstract._model.matrices import dense_rewards, holds_sparse

        given: npt.NDArray[Any]
        if is_array:
            given = np.asarray(transitions)
        elif holds_sparse(transitions):
            raise InvalidMDPError(
                "transitions must be dense here; TabularMDP.from_matrices takes sparse matrices"
            )
        else:
            given = frozen("transitions", transitions, np.float64)
        found = dense_order(given.shape, order)
        if found == "ass":
            given = given.transpose(1, 0, 2)
        P = frozen("transitions", given, np.float64)
        R = frozen("rewards", rewards, np.float64)
        n, a = P.shape[:2]
        flat = P.reshape(-1, n)
        rows, cols = np.nonzero(flat)
        indptr, probs = np.searchsorted(rows, np.arange(n * a + 1)), flat[rows, cols]
        check_entries(indptr, cols, probs, n, a)  # before rewards are averaged by them
        R = dense_rewards(R, indptr, cols, probs, (n, a), found, available)
        if available is not None:
            return cls.from_rows(indptr, cols, probs, R, available=available, **options)
        return cls(indptr=indptr, indices=cols, probs=probs, rewards=R, **options)

    @classmethod
    def from_matrices(
        cls,
        transitions: Sequence[Any] | npt.NDArray[Any],
        rewards: Any,
        *,
        available: npt.ArrayLike | None = None,
        **options: Any,
    ) -> TabularMDP:
        """From one matrix per action, dense or sparse, as pymdptoolbox takes them.

        Sparse matrices are never made dense, so that large models fit.

        Args:
            transitions: One (n_states, n_states) matrix of probabilities for each action: a list
                or tuple, an array of objects, or an array (n_actions, n_states, n_states). Any
                format of SciPy will do; entries that are stored twice add up.
            rewards: An array (n_states), (n_states, n_actions) or (n_actions, n_states, n_states),
                or a list with a vector (n_states) or a matrix (n_states, n_states), dense or
                sparse, for each action. Of what depends on the next state, expected rewards are
                taken, over rows divided by their sums.
            available: (n_states, n_actions) which actions each state has; all by default. Rows and
                rewards of the others are not looked at.
            **options: start, state_ids, terminal_state, estimate, names, metadata.

        Example:
            >>> from scipy.sparse import eye_array
            >>> stay, move = eye_array(1000), eye_array(1000, k=1).tolil()
            >>> move[999, 0] = 1.0
            >>> TabularMDP.from_matrices([stay, move], [np.zeros(1000), move])
            TabularMDP(1,000 states, 2 actions, 2,000 transitions)
        """
        from bisim_abstract._model.matrices import rewards_of_matrices, rows_of_matrices

        ptr, index, prob, shape = rows_of_matrices(transitions)
        ptr, index, prob = canonical_rows(*_as_rows(ptr, index, prob, shape))
        R = rewards_of_matrices(rewards, ptr, index, prob, shape, available)
        if available is not None:
            return cls.from_rows(ptr, index, prob, R, available=available, **options)
        return cls(indptr=ptr, indices=index, probs=prob, rewards=R, **options)

    @classmethod
    def from_graph(
        cls,
        graph: Any,
        *,
        probability: str = "probability",
        reward: str = "reward",
        action: str = "action",
        default_action: Hashable = 0,
        actions: Iterable[Hashable] | None = None,
        start: Hashable | Mapping[Any, float] | None = None,
        normalise: bool = False,
        **options: Any,
    ) -> TabularMDP:
        """From a directed graph of NetworkX: nodes are states, edges are transitions.

        Nodes that are the numbers 0, 1, ... are the states of these numbers; all others become
        states in the graph's order, which are called by them. A node without edges that lead out
        stays where it is and pays nothing. A node has the actions that its edges name. Reads what
        `Aggregation.to_networkx` writes.

        Args:
            graph: A `DiGraph` or `MultiDiGraph`, or anything with their methods.
            probability: Attribute of edges. An edge that is the only one of its node and action
                need not have it.
            reward: Attribute of edges, 0 where it is absent. Expected rewards are taken.
            action: Attribute of edges: numbers from 0, or names.
            default_action: The action of edges that name none.
            actions: All actions in their order, where the edges do not show it: by default, numbers
                rise and names come as they appear.
            start: A node, or the probabilities of nodes. By default the attribute `start` of nodes
                or, where none has it, any state but the end with equal probability.
            normalise: Whether to divide probabilities of a node and action by their sum; without
                it, sums that are not 1 are an error.
            **options: state_ids, names, metadata. A node marked `is_end` is the `terminal_state`.

        Example:
            >>> import networkx as nx
            >>> graph = nx.DiGraph()
            >>> graph.add_edge("home", "work", action="drive", probability=0.9, reward=1.0)
            >>> graph.add_edge("home", "ditch", action="drive", probability=0.1, reward=-9.0)
            >>> mdp = TabularMDP.from_graph(graph, start="home")
            >>> mdp, mdp.state_name(1), mdp.rewards[0].tolist()
            (TabularMDP(3 states, 1 action, 4 transitions), 'work', [0.0])
        """
        from bisim_abstract._model.graphs import rows_of_graph

        parts = rows_of_graph(
            graph,
            probability=probability,
            reward=reward,
            action=action,
            default_action=default_action,
            actions=actions,
            start=start,
            normalise=normalise,
        )
        return cls.from_rows(**{**parts, **options})

    @classmethod
    def from_function(
        cls,
        start: Hashable | Mapping[Any, float],
        actions: Actions,
        transitions: Transitions,
        *,
        max_states: int = 1_000_000,
        callback: ProgressCallback | None = None,
        progress: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> TabularMDP:
        """From a function that lists the outcomes of a state and an action.

        All states that can be reached from the start are found by breadth-first search, in which
        order they are numbered. States that are whole numbers from 0 on are the `state_ids`; all
        others are the names of states. Parts of named tuples and of dataclasses become variables.

        256 of the calls are made twice, to notice a function that draws its outcomes. A function
        that depends on more than state and action, in other calls only, is not noticed.

        Args:
            start: A state, or a dictionary from states to probabilities. States are hashable.
            actions: Their number (actions are then 0, 1, ...), a sequence of hashable names (or an
                enumeration), or a function from a state to the actions of this state. Where these
                differ, numbers rise, and names come in order of appearance.
            transitions: `transitions(state, action)` gives tuples `(probability, next state,
                reward, terminated)`. Probabilities sum to 1. Outcomes that lead to the same state
                are merged: probabilities add up, rewards are averaged by them. Those that are
                terminated lead to one absorbing state that pays nothing, added if there are any.
            max_states: Limit on the states, the absorbing one not counted.
            callback: Called with a report of progress from time to time.
            progress: Show a line of progress, on a terminal, in a notebook or in a log.
            metadata: See the class.

        Raises:
            InvalidMDPError: If outcomes are no distribution, states cannot be hashed, or the
                function fails; the message names state and action.
            StateLimitError: If there are more than `max_states` states.

        Example:
            >>> def flip(coins, action):
            ...     yield 0.5, coins + 1, 1.0, coins == 3
            ...     yield 0.5, 0, 0.0, False
            >>> TabularMDP.from_function(0, ["flip"], flip)
            TabularMDP(5 states, 1 action, 9 transitions, terminal state 4)
        """
        from bisim_abstract._base.progress import shown
        from bisim_abstract._model.search import rows_of_function

        with shown(callback, progress, on_terminal=False) as report:
            rows = rows_of_function(
                start, actions, transitions, max_states=max_states, callback=report
            )
        return cls.from_rows(**rows, metadata=metadata or {})

    @classmethod
    def from_table(
        cls,
        table: Mapping[int, Any] | Sequence[Any],
        *,
        start: npt.ArrayLike | None = None,
        terminal: str = "absorb",
        metadata: Mapping[str, Any] | None = None,
    ) -> TabularMDP:
        """From a Gymnasium `P` table: `P[state][action] = [(prob, next, reward, done), ...]`.

        Duplicate outcomes are merged: probabilities add up, rewards are averaged by them.

        Args:
            table: The table, with states and actions numbered from 0.
            start: (n_states) start distribution over the table's states.
            terminal: "absorb" sends every outcome marked done to one absorbing state that pays
                nothing, added if there are any; "table" follows the table literally and ignores
                the mark.
            metadata: See the class.
        """
        from bisim_abstract._model.gym_table import rows_of_table

        check_choice("terminal", terminal, ("absorb", "table"))
        rows = rows_of_table(table, absorb=terminal == "absorb")
        distribution = None
        if start is not None:
            distribution = frozen("start", start, np.float64)
            check_distribution("start", distribution, len(table))
            if rows["terminal_state"] is not None:
                distribution = np.append(distribution, 0.0)
        return cls(
            **rows,
            start=distribution,  # type: ignore[arg-type]
            metadata=metadata or {},
        )

    @classmethod
    def from_transitions(
        cls,
        states: TransitionsLike | npt.ArrayLike,
        actions: npt.ArrayLike | None = None,
        rewards: npt.ArrayLike | None = None,
        next_states: npt.ArrayLike | None = None,
        terminated: npt.ArrayLike | None = None,
        **options: Any,
    ) -> TabularMDP:
        """The empirical MDP of sampled transitions: see `bisim_abstract.estimate_mdp`."""
        from bisim_abstract._model.estimation import count_steps

        return count_steps(states, actions, rewards, next_states, terminated, **options)

    # -- files -----------------------------------------------------------------------------

    def save(self, path: str | Path, *, compress: bool = True) -> None:
        """Write one `.npz` file: arrays, JSON metadata and the fingerprint; never a pickle."""
        from bisim_abstract._model.files import save_mdp

        save_mdp(self, path, compress=compress)

    @classmethod
    def load(cls, path: str | Path) -> TabularMDP:
        """Read a file written by `save`; content and fingerprint are checked.

        Raises:
            FileFormatError: If the file is damaged, changed, or of another kind.
        """
        from bisim_abstract._model.files import load_mdp

        return load_mdp(path)


def action_sets(available: BoolArray) -> IntArray:
    """(n) equal numbers for rows with the same actions, by first appearance."""
    if available.all():
        return np.zeros(available.shape[0], np.int64)
    packed = np.packbits(available, axis=1)
    return by_first_appearance(np.unique(packed, axis=0, return_inverse=True)[1])[0]


def check_mdp(mdp: object, *, call: str = "") -> None:
    """Raise unless it is a model, with what to do instead.

    Args:
        mdp: What was given as one.
        call: The call as it should be, for those who swap its arguments.
    """
    if isinstance(mdp, TabularMDP):
        return
    kind = type(mdp)
    if isinstance(mdp, str | Path):
        remedy = (
            "a file is read by bisim_abstract.read_model(path), and the id of an environment "
            "becomes a model by bisim_abstract.wrappers.extract_mdp(env)"
        )
    elif hasattr(mdp, "unwrapped"):
        remedy = "an environment becomes one by bisim_abstract.wrappers.extract_mdp(env)"
    else:
        order = "the model comes first, then the certificate or aggregation, gamma and policy"
        remedy = f"the order is {call}" if call else order
    raise InvalidArgumentError(f"mdp must be a TabularMDP, got {kind.__name__}; {remedy}")


def canonical_rows(
    indptr: IntArray, indices: IntArray, probs: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Sort compressed rows by successor, add up duplicates and drop zeros.

    Duplicates are added in increasing order of size, so the result does not depend on the
    order in which they are listed.
    """
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    is_rising = (indices[1:] > indices[:-1]) | (rows[1:] != rows[:-1])
    if is_rising.all() and (probs != 0.0).all():
        return indptr, indices, probs
    parts = []
    for begin, end in row_spans(indptr, AT_ONCE):
        look()
        at = slice(indptr[begin], indptr[end])
        parts.append(_summed_rows(rows[at], indices[at], probs[at]))
    rows, indices, probs = (np.concatenate(column) for column in zip(*parts, strict=True))
    ptr = np.searchsorted(rows, np.arange(indptr.size))
    return ptr.astype(np.int64), indices, probs


def _summed_rows(
    rows: IntArray, indices: IntArray, probs: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Row, successor and probability of each entry of some rows, sorted, without zeros."""
    order = np.lexsort((probs, indices, rows))
    rows, indices, probs = rows[order], indices[order], probs[order]
    first = np.ones(rows.size, dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (indices[1:] != indices[:-1])
    begins = np.flatnonzero(first)
    with np.errstate(over="ignore"):  # infinite sums are refused by name later
        sums = np.add.reduceat(probs, begins) if begins.size else probs
    kept = sums != 0.0
    begins = begins[kept]
    return rows[begins], indices[begins], sums[kept]


def _padded(
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    available: npt.ArrayLike,
) -> tuple[IntArray, IntArray, FloatArray, FloatArray, BoolArray]:
    """Rows and rewards with those that a state lacks replaced by those of its first action."""
    mask = frozen("available", available, np.bool_)
    check_available(mask, rewards.shape)
    n, a = rewards.shape
    chosen = np.where(mask, np.arange(a), mask.argmax(axis=1)[:, None])
    ptr, entries = rows_taken(indptr, (np.arange(n)[:, None] * a + chosen).ravel())
    paid = np.take_along_axis(rewards, chosen, axis=1)
    return ptr, indices[entries], probs[entries], paid, mask


def _check_padding(mdp: TabularMDP) -> None:
    """Raise unless what a state lacks does what its first available action does."""
    states, actions = np.nonzero(~mdp.available)
    first = mdp.first_actions[states]
    row, own = states * mdp.n_actions + actions, states * mdp.n_actions + first
    lengths = np.diff(mdp.indptr)
    wrong = (mdp.rewards[states, actions] != mdp.rewards[states, first]) | (
        lengths[row] != lengths[own]
    )
    if mdp.estimate is not None and mdp.estimate.counts.shape == mdp.rewards.shape:
        for array in [*mdp.estimate.arrays(), *mdp.estimate.block_arrays()[1:]]:
            wrong |= array[states, actions] != array[states, first]
    if not wrong.any():
        sizes = lengths[row]
        shift = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        one, two = (np.repeat(mdp.indptr[at], sizes) + shift for at in (row, own))
        is_other = (mdp.indices[one] != mdp.indices[two]) | (mdp.probs[one] != mdp.probs[two])
        wrong[np.repeat(np.arange(row.size), sizes)[is_other]] = True
    if wrong.any():
        k = int(np.argmax(wrong))
        raise InvalidMDPError(
            f"state {states[k]} lacks action {actions[k]}, which must then do what its first "
            f"available action {first[k]} does; use TabularMDP.from_rows, from_dense or "
            "with_available, which see to that"
        )


def _check_dense(transitions: npt.NDArray[Any]) -> None:
    """Refuse a dense array if its copy, or its entries besides, would not fit."""
    dense, count = 8 * transitions.size, 0
    for _ in range(2):  # entries are counted only where the copy fits: there may be too many
        check_memory(
            dense + (DENSE_BYTES - 16) * count,
            what=f"a model of {transitions.size:,} probabilities",
            instead="pass rows to TabularMDP.from_rows, with possible transitions only",
        )
        count = int(np.count_nonzero(transitions))


def _rebuild(fields: dict[str, Any]) -> TabularMDP:
    return TabularMDP(**fields)


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidMDPError(f"{name} must be a whole number, got {value!r}") from None


def _as_rows(
    indptr: npt.ArrayLike, indices: npt.ArrayLike, probs: npt.ArrayLike, shape: tuple[int, ...]
) -> tuple[IntArray, IntArray, FloatArray]:
    ptr = frozen("indptr", indptr, np.int64)
    index = frozen("indices", indices, np.int64)
    prob = frozen("probs", probs, np.float64)
    if len(shape) != 2:
        raise InvalidMDPError(f"rewards must have shape (n_states, n_actions), got {shape}")
    check_layout(ptr, index, prob, shape[0] * shape[1])
    # Checked before duplicates are added up: a negative entry must not hide in a sum.
    check_entries(ptr, index, prob, shape[0], shape[1])
    return ptr, index, prob


def _check_terminal(mdp: TabularMDP) -> None:
    state = mdp.terminal_state
    assert state is not None
    if not 0 <= state < mdp.n_states:
        raise InvalidMDPError(f"terminal_state must lie in [0, {mdp.n_states}), got {state}")
    for action in range(mdp.n_actions):
        successors, _ = mdp.successors(state, action)
        reward = mdp.rewards[state, action]
        if successors.tolist() != [state] or reward != 0.0:
            raise InvalidMDPError(
                f"terminal_state {state} must stay where it is and pay 0, but action {action} "
                f"leads to {successors.tolist()} with reward {reward}"
            )
