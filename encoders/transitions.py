"""Sampled transitions: what encoders learn from, gathered from environments or models."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.checks import as_generator, check_choice, check_int
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.npz import Archive, Forms, write_npz
from bisim_abstract._base.progress import shown
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import (
    BoolArray,
    FloatArray,
    IntArray,
    Progress,
    ProgressCallback,
    SeedLike,
)
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

__all__ = ["Policy", "Transitions", "collect_transitions", "sample_transitions"]

FORMAT = "bisim_abstract.Transitions"
VERSION = 1
REPORT = 100  # steps of all copies between two reports
EPISODE = 200  # steps after which a rollout of a model starts anew
# What a sampled step, the arrays of one step of all copies, and a copy of an environment take.
STEP_BYTES, ARRAYS_BYTES, COPY_BYTES = 70, 800, 4_000
ARRAYS = ("states", "actions", "rewards", "next_states", "terminated")
OBSERVED = ("states", "next_states")
SCALARS = ("n_actions", "n_states", "terminal_state")

Env: TypeAlias = gym.Env[Any, Any]
Policy: TypeAlias = Callable[[Any], npt.ArrayLike]
"""Actions for a batch of observations, as a vector environment gives them: one row each."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Transitions:
    """Steps taken in one environment, in any order. Arrays are read-only.

    Attributes:
        states: (n) state indices, or (n, features) observations, before the step.
        actions: (n) actions, numbered from 0.
        rewards: (n) rewards.
        next_states: What was observed after the step, of the shape of `states`.
        terminated: (n) whether the step ended the episode for good. A step that only ran out
            of time did not.
        n_actions: Number of actions.
        n_states: Number of states, or None if observations are vectors.
        terminal_state: The index of the absorbing state that ended episodes lead to, where the
            states include one.

    Example:
        >>> from bisim_abstract.parts import random_mdp
        >>> steps = sample_transitions(random_mdp(5, 2, seed=0), 100, seed=0)
        >>> steps
        Transitions(100 steps of 5 states, 2 actions)
    """

    states: npt.NDArray[Any]
    actions: IntArray
    rewards: FloatArray
    next_states: npt.NDArray[Any]
    terminated: BoolArray
    n_actions: int
    n_states: int | None = None
    terminal_state: int | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "n_actions", check_int("n_actions", self.n_actions, low=1))
        kind: type = np.int64
        if self.n_states is None:
            kind = np.float32
            if self.terminal_state is not None:
                raise InvalidArgumentError(
                    f"terminal_state must be None without n_states, got {self.terminal_state!r}"
                )
        else:
            set_field(self, "n_states", check_int("n_states", self.n_states, low=1))
            if self.terminal_state is not None:
                last = self.n_states - 1
                state = check_int("terminal_state", self.terminal_state, low=0, high=last)
                set_field(self, "terminal_state", state)
        for name in ("states", "next_states"):
            set_field(self, name, frozen(name, getattr(self, name), kind))
        set_field(self, "actions", frozen("actions", self.actions, np.int64))
        set_field(self, "rewards", frozen("rewards", self.rewards, np.float64))
        ended = np.array(self.terminated)
        if ended.dtype != bool:
            raise InvalidArgumentError(f"terminated must hold booleans, got dtype {ended.dtype}")
        ended.setflags(write=False)
        set_field(self, "terminated", ended)
        _check_arrays(self)

    @property
    def is_discrete(self) -> bool:
        """Whether states are indices rather than vectors."""
        return self.n_states is not None

    @property
    def n_features(self) -> int:
        """Length of an observation; 1 for state indices."""
        return 1 if self.is_discrete else int(self.states.shape[1])

    def __len__(self) -> int:
        return int(self.actions.size)

    def __repr__(self) -> str:
        kind = counted(self.n_features, "feature")
        if self.n_states is not None:
            kind = counted(self.n_states, "state")
        steps, actions = counted(len(self), "step"), counted(self.n_actions, "action")
        return f"Transitions({steps} of {kind}, {actions})"

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file: arrays and a JSON header; never a pickle."""
        header = {name: getattr(self, name) for name in SCALARS}
        header |= {"format": FORMAT, "version": VERSION}
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        write_npz(path, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Transitions:
        """Read a file written by `save`; its content is checked.

        Raises:
            FileFormatError: If the file is damaged or of another kind.
        """
        try:
            with Archive(path) as archive:
                header = json.loads(archive.header_text())
                if header.pop("format") != FORMAT or header.pop("version") != VERSION:
                    raise FileFormatError(f"{path} holds no transitions of version {VERSION}")
                observed = "t f" if header["n_states"] is None else "t"
                shapes = dict.fromkeys(ARRAYS, "t") | dict.fromkeys(OBSERVED, observed)
                archive.check(Forms(shapes))
                arrays = archive.read(but=("header",))
            if set(arrays) != set(ARRAYS) or set(header) != set(SCALARS):
                raise FileFormatError(f"{path} has parts missing or too many")
            fields: dict[str, Any] = {**arrays, **header}
            return cls(**fields)
        except InvalidArgumentError as error:
            raise FileFormatError(f"{path} holds inconsistent transitions: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path} has a damaged header: {error!r}") from error


def collect_transitions(
    env: Env | str,
    n: int,
    *,
    policy: Policy | None = None,
    n_envs: int = 8,
    seed: SeedLike = 0,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> Transitions:
    """Step copies of an environment and record what happens.

    Copies are made by the environment's id or spec; one that has none, or one whose wrappers
    cannot be rebuilt, is stepped itself, alone. Steps in which a finished episode is replaced
    by a new one are no transitions and are left out.

    States are numbers where observations are made of finitely many values: a `Discrete` space
    counts its own, and the parts of a `MultiDiscrete`, `MultiBinary`, `Tuple` or `Dict` are the
    digits of a number, the last one counting fastest, as in `numpy.ravel_multi_index` (up to
    a million numbers). All others, those with `Box` parts among them, become vectors: reals as
    they are, and each digit as zeros with a single one.

    Args:
        env: An environment with `Discrete` actions and observations of these kinds, or its id.
        n: Number of transitions.
        policy: Actions for a batch of observations; uniformly random by default.
        n_envs: Number of copies.
        seed: Seed or generator, for the copies and for random actions.
        callback: Called after every hundred steps of all copies.
        progress: Show a line of progress, on a terminal, in a notebook or in a log.

    Raises:
        InvalidArgumentError: If the spaces are of other kinds, or the policy's actions are not
            in the action space.

    Example:
        >>> collect_transitions("Blackjack-v1", 100)  # 32 sums, 11 cards, an ace or none
        Transitions(100 steps of 704 states, 2 actions)
    """
    n = check_int("n", n, low=1)
    n_envs = check_int("n_envs", n_envs, low=1)
    check_memory(
        COPY_BYTES * n_envs,
        what=f"{n_envs:,} copies of the environment",
        instead="ask for a smaller n_envs",
    )
    rng = as_generator(seed)
    with (
        _vectorised(env, n_envs) as copies,
        shown(callback, progress, on_terminal=False) as report,
    ):
        n_actions, found = _check_actions(copies), SpaceRows(copies.single_observation_space)
        width = copies.num_envs
        # All is held three times: as stepped, joined, and read-only.
        _check_room(n, 3 * (2 * found.row_bytes + 17) + ARRAYS_BYTES // width)
        columns: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
        first = int(copies.single_action_space.start)  # type: ignore[attr-defined]
        begun: Any = copies.reset(seed=int(rng.integers(2**31)))
        seen = begun[0]
        now = found.rows(seen, width)
        is_over = np.zeros(width, bool)
        count = 0
        for turn in itertools.count(1):
            if policy is None:
                actions = first + rng.integers(n_actions, size=width)
            else:
                actions = _policy_actions(policy, seen, width, first, n_actions)
            stepped: Any = copies.step(actions)
            seen, rewards, terminated, truncated, _ = stepped
            after = found.rows(seen, width)
            # A copy that was over has been reset by this step, whatever the action.
            valid = np.flatnonzero(~is_over)[: n - count]
            step = (now, actions - first, rewards, after, terminated)
            for column, values in zip(columns, step, strict=True):
                column.append(np.asarray(values)[valid])
            count += valid.size
            is_over = np.asarray(terminated | truncated)
            now = after
            if report is not None and (turn % REPORT == 0 or count == n):
                report(Progress("collecting", count, n))
            if count == n:
                break
    states, acts, pay, later, ended = (np.concatenate(column) for column in columns)
    return Transitions(
        states=states,
        actions=acts,
        rewards=pay.astype(np.float64),
        next_states=later,
        terminated=ended.astype(bool),
        n_actions=n_actions,
        n_states=found.n_states,
    )


def sample_transitions(
    mdp: TabularMDP, n: int, *, seed: SeedLike = 0, states: str = "uniform"
) -> Transitions:
    """Draw transitions from a model, with uniformly random actions among those of a state.

    Args:
        mdp: The model.
        n: Number of transitions.
        seed: Seed or generator.
        states: Where they begin: "uniform" over all states but the terminal one, or "rollout",
            along episodes of at most 200 steps from the start distribution.

    Returns:
        Transitions whose rewards are the model's expected ones.
    """
    check_mdp(mdp)
    n = check_int("n", n, low=1)
    _check_room(n, STEP_BYTES)
    rng = as_generator(seed)
    actions = np.empty(n, np.int64)
    draws = rng.random(n) if mdp.has_action_sets else rng.integers(mdp.n_actions, size=n)
    terminal = mdp.terminal_state if mdp.n_states > 1 else None
    if check_choice("states", states, ("uniform", "rollout")) == "uniform":
        live = np.delete(np.arange(mdp.n_states), [] if terminal is None else terminal)
        now = live[rng.integers(live.size, size=n)]
        actions[:] = _own_actions(mdp, now, draws)
        after = _successors(mdp, now, actions, rng)
    else:
        now, after = np.empty(n, np.int64), np.empty(n, np.int64)
        chains = -(-n // EPISODE)
        place = _starts(mdp, chains, rng)
        for begin in range(0, n, chains):
            span = slice(begin, min(begin + chains, n))
            now[span] = place[: span.stop - begin]
            actions[span] = _own_actions(mdp, now[span], draws[span])
            after[span] = _successors(mdp, now[span], actions[span], rng)
            place[: span.stop - begin] = after[span]
            if terminal is not None:
                is_over = place == terminal
                place[is_over] = _starts(mdp, int(is_over.sum()), rng)
    return Transitions(
        states=now,
        actions=actions,
        rewards=mdp.rewards[now, actions],
        next_states=after,
        terminated=np.zeros(n, bool) if terminal is None else after == terminal,
        n_actions=mdp.n_actions,
        n_states=mdp.n_states,
        terminal_state=terminal,
    )


def _check_room(n: int, each: int) -> None:
    check_memory(
        n * each,
        what=f"{n:,} transitions",
        instead="ask for fewer, and fit or estimate with those",
    )


def _own_actions(
    mdp: TabularMDP, states: IntArray, draws: FloatArray | IntArray
) -> FloatArray | IntArray:
    """One action of each state: the draws, or where states lack some, what they fall on."""
    if not mdp.has_action_sets:
        return draws
    own = mdp.available[states]
    rank = np.floor(draws * own.sum(axis=1))
    return np.asarray((own.cumsum(axis=1) <= rank[:, None]).sum(axis=1))


def _successors(
    mdp: TabularMDP, states: IntArray, actions: IntArray, rng: np.random.Generator
) -> IntArray:
    """One successor of each state and action, by inverting the rows' cumulative sums."""
    rows = states * mdp.n_actions + actions
    begin, end = mdp.indptr[rows], mdp.indptr[rows + 1]
    sums = np.append(0.0, np.cumsum(mdp.probs))
    level = sums[begin] + rng.random(rows.size) * (sums[end] - sums[begin])
    at = np.searchsorted(sums, level, side="right") - 1
    return np.asarray(mdp.indices[np.clip(at, begin, end - 1)])


def _starts(mdp: TabularMDP, count: int, rng: np.random.Generator) -> IntArray:
    """States that episodes start in, none of which is already the end."""
    weights = mdp.start.copy()
    if mdp.terminal_state is not None and mdp.n_states > 1:
        weights[mdp.terminal_state] = 0.0
    if not weights.any():
        raise InvalidArgumentError(
            "mdp must start in a state that is not terminal; use states='uniform'"
        )
    sums = np.cumsum(weights)
    at = np.searchsorted(sums, rng.random(count) * sums[-1], side="right")
    # A level that rounds to the last sum must not lead past the last possible start.
    return np.asarray(np.minimum(at, np.flatnonzero(weights)[-1]))


def _check_arrays(data: Transitions) -> None:
    n = data.actions.size
    ndim = 1 if data.is_discrete else 2
    if data.states.ndim != ndim or data.next_states.shape != data.states.shape:
        rule = "(n)" if data.is_discrete else "(n, features)"
        raise InvalidArgumentError(
            f"states and next_states must both have shape {rule}, got {data.states.shape} and "
            f"{data.next_states.shape}"
        )
    for name in ("actions", "rewards", "terminated"):
        if getattr(data, name).shape != data.states.shape[:1]:
            raise InvalidArgumentError(
                f"{name} must have shape {data.states.shape[:1]} like states, "
                f"got {getattr(data, name).shape}"
            )
    if n == 0 or data.states.size == 0:
        raise InvalidArgumentError("transitions must hold at least one step with one feature")
    _check_range("actions", data.actions, data.n_actions)
    if data.n_states is not None:
        _check_range("states", data.states, data.n_states)
        _check_range("next_states", data.next_states, data.n_states)
    for name in ("states", "rewards", "next_states"):
        if not np.isfinite(getattr(data, name)).all():
            raise InvalidArgumentError(f"{name} must be finite")
    if data.terminal_state is not None and (data.states == data.terminal_state).any():
        raise InvalidArgumentError(
            f"states must not hold terminal_state {data.terminal_state}: an ended episode takes "
            "no further step; drop these steps"
        )


def _check_range(name: str, values: IntArray, bound: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= bound:
        raise InvalidArgumentError(
            f"{name} must lie in [0, {bound}), got {low if low < 0 else high}"
        )


@contextmanager
def _vectorised(env: Env | str, n_envs: int) -> Iterator[SyncVectorEnv]:
    """Copies of an environment that are closed at the end, or itself, left open."""
    if isinstance(env, str):
        spec: Any = env
    elif isinstance(env, gym.Env):
        spec = _rebuildable(env)
    else:
        raise InvalidArgumentError(
            f"env must be an environment or its id, got {type(env).__name__}; models are "
            "sampled by sample_transitions(mdp, n)"
        )
    mode = AutoresetMode.NEXT_STEP
    if spec is None:
        assert isinstance(env, gym.Env)
        yield SyncVectorEnv([lambda: env], autoreset_mode=mode)
        return
    try:
        copies = SyncVectorEnv([lambda: gym.make(spec)] * n_envs, autoreset_mode=mode)
    except gym.error.Error as error:
        raise InvalidArgumentError(f"no environment {env!r}: {error}") from error
    try:
        yield copies
    finally:
        copies.close()


def _rebuildable(env: Env) -> Any:
    """The spec that makes an equal environment, or None."""
    spec = env.spec
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        return None
    return spec


def _check_actions(copies: SyncVectorEnv) -> int:
    space = copies.single_action_space
    if not isinstance(space, spaces.Discrete):
        raise InvalidArgumentError(
            f"env must have Discrete actions, got {space}; encoders compare finitely many"
        )
    return int(space.n)


def _policy_actions(
    policy: Policy, seen: Any, count: int, first: int, n_actions: int
) -> npt.NDArray[Any]:
    actions = np.asarray(policy(seen))
    if actions.shape != (count,) or actions.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"policy must return whole numbers of shape {(count,)}, got {actions.dtype} of "
            f"shape {actions.shape}"
        )
    if (actions < first).any() or (actions >= first + n_actions).any():
        raise InvalidArgumentError(
            f"policy must return actions in [{first}, {first + n_actions}), "
            f"got {actions.min()} to {actions.max()}"
        )
    return actions
