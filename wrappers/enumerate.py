"""Exact tables of deterministic environments that have none: breadth-first search.

`_snapshot` takes and restores states, `_encoding` tells which of them are the same; this module
searches, checks, and makes the table.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from bisim_abstract._base.memory import check_memory, human_bytes
from bisim_abstract._base.progress import shown
from bisim_abstract._base.reading import FREEZE, Reading, check_freeze
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import Progress, ProgressCallback
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import Names, Variable
from bisim_abstract.errors import (
    ExtractionError,
    InvalidArgumentError,
    StateLimitError,
    StochasticEnvError,
)
from bisim_abstract.wrappers._counting import find_time_limit, reward_trend
from bisim_abstract.wrappers._hidden import find_witness, refuse_generator
from bisim_abstract.wrappers._naming import AttributeStates, MiniGridStates
from bisim_abstract.wrappers._snapshot import (
    CHECK_SEED,
    NOT_STATE,
    AnyEnv,
    Codec,
    borrowed,
    listed,
    mark_of,
    reseed,
)
from bisim_abstract.wrappers._source import (
    as_mask,
    copied_env,
    outer_time_limit,
    reset_env,
    step_env,
)

__all__ = ["StateReader", "enumerate_mdp"]

logger = logging.getLogger(__name__)

RESEEDS = 8  # other seeds under which a step that drew random numbers is repeated
REPORT_EVERY = 64  # states between two calls of the callback
STEP_BYTES, STATE_BYTES = 120, 600  # what a step takes in the table, a state besides its snapshot
LOOK_EVERY = 2**24  # bytes of snapshots after which memory is looked at
CHANGES = 32  # steps remembered that changed a frozen attribute
FROZEN_STEPS = 16  # times as many steps as in other checks look at what frozen attributes do
OTHER_SEEDS = 8  # with which it is tried whether episodes begin elsewhere
QUIET = 32  # seeds without a new first state, after which no more are taken, where some differ
STARTS = 100  # seeds that are taken at most where nobody says how many
ENOUGH = 5_000  # states, beyond which no further seed is taken then: MiniGrid takes 40 s for these
PAYING = 8  # steps that pay something, and others, whose rewards are compared with later ones
_told: set[bytes] = set()  # starts that were warned of
COMPARED = 500  # states looked at to explain a state limit; enough to clear innocent attributes


def enumerate_mdp(
    env: AnyEnv,
    *,
    reading: Reading | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> TabularMDP:
    """Every state that can be reached from `reset(seed=...)`, by breadth-first search.

    Where `reset` draws the state that an episode begins in, several seeds are taken together, as
    `starts` says. The metadata entry `conditions` holds what then qualifies every claim about the
    model, such as "from 100 sampled starts"; `time_limit` is the number of steps after which the
    environment truncates episodes, if it does.

    Episodes of several seeds are compared. If two that look the same go on differently, and that
    is because of an attribute that makes random numbers by itself, the environment is refused as
    random. Otherwise the model is "for an agent that sees the whole state".

    For environments with deterministic transitions, a `Discrete` action space and no `P` table,
    such as MiniGrid with a fixed layout. The table is that of `env.unwrapped`: `TimeLimit` is
    not part of it, nor is any other wrapper. States are numbered in breadth-first order with
    actions ascending, the state after reset first, and `state_ids` holds what
    `StateReader.state_id` returns in each.

    The search runs inside the given environment, on copies of its attributes. Afterwards, also
    after an error, it holds the very objects it held before, and its random generators and the
    global ones are put back.

    MiniGrid pays `1 - 0.9 * step_count / max_steps` at the goal. With `step_count` frozen at 0
    every step is the first of an episode, so the table pays `1 - 0.9 / max_steps` whenever the
    goal is reached. The metadata entry `frozen` names what was held still.

    Whether an environment is deterministic can be refuted by trying, not proven. Each step that
    draws from a generator held by the environment or from the global ones is repeated under
    other seeds. At the end a sample of steps is repeated, from states as first met and from
    states that were reached in another form (an array in place of a tuple), and one random walk
    is made without restoring anything. Where steps change a frozen attribute, and not all of them
    do as for a counter, steps from there must lead where the table says.

    Args:
        env: The environment; it need not have been reset.
        reading: How. Its seed is passed to `reset`, as MiniGrid's layout depends on it: one table
            per seed. All states that are found can be reached.
        callback: Called after every 64 states, and at the end.
        progress: Show a line of progress, on a terminal, in a notebook or in a log.

    Raises:
        StochasticEnvError: If repeating a step or the reset gave another result.
        StateLimitError: If there are more than `max_states` states.
        ExtractionError: If the environment cannot be enumerated for another reason.

    Example:
        Gymnasium's cliff keeps the last action for drawing, which is not part of the state.

        >>> env = gym.make("CliffWalking-v1")
        >>> enumerate_mdp(env, reading=Reading(freeze=("lastaction",)))
        TabularMDP(38 states, 4 actions, 152 transitions, terminal state 37, from CliffWalking-v1)
    """
    reading = Reading.of(reading)
    if reading.start is not None:
        raise InvalidArgumentError("start goes with environments that have a P table: leave it out")
    codec = Codec(_home(env), frozenset(reading.freeze))
    n_actions = _action_count(env)
    with borrowed(codec), shown(callback, progress, on_terminal=False) as report:
        search, advice = _Search(codec, n_actions, reading), ""
        search.sample()
        is_hidden = search.look_for_hidden(env)
        try:
            search.run(report)
        except StateLimitError:
            complete = search.n_seeds - 1
            if reading.starts is not None or complete == 0:
                raise
            # Nobody asked for so many seeds: those that fit will do.
            search = _Search(codec, n_actions, replace(reading, starts=complete))
            advice = "a larger max_states has room for more of them"
            search.sample()
            search.run(report)
        search.check(reading.checks)
        search.warn_of_starts(advice or _advice(reading.starts, search.n_seeds))
        spec = codec.home.spec
        limits = [outer_time_limit(env), search.time_limit()]
        mdp = search.table(
            {
                "env": type(codec.home).__name__ if spec is None else spec.id,
                "method": "enumeration",
                "seed": reading.seed,
                "starts": search.n_seeds,
                "frozen": search.frozen(),
                "held": search.held(),
                "gymnasium": gym.__version__,
                "terminal": reading.terminal,
                "conditions": search.conditions(is_hidden=is_hidden, checks=reading.checks),
                **({"time_limit": min(filter(None, limits))} if any(limits) else {}),
            }
        )
        return replace(mdp, names=Names(variables=search.variables(mdp.n_states)))


class StateReader:
    """Tells which state an environment is in, by the ids of an enumerated table.

    The id depends on the values in the environment alone, not on the process, on rendering or
    on the random generators. The environment must be made with the same arguments as the
    enumerated one, `render_mode` excepted.

    Args:
        env: The environment, wrapped or not.
        freeze: As given to `enumerate_mdp`.

    Example:
        >>> env = gym.make("CliffWalking-v1")
        >>> mdp = enumerate_mdp(env, reading=Reading(freeze=("lastaction",)))
        >>> reader = StateReader(env, freeze=("lastaction",))
        >>> _ = env.reset()
        >>> reader.state_id() == mdp.state_ids[0]
        np.True_
    """

    def __init__(self, env: AnyEnv, *, freeze: Sequence[str] = FREEZE) -> None:
        self._codec = Codec(_home(env), frozenset(check_freeze(freeze)))

    def state_id(self) -> int:
        """The id of the present state, in [0, 2**63).

        Raises:
            ExtractionError: If an attribute of the environment cannot be pickled.
        """
        codec = self._codec
        return _short_id(codec.digest(codec.snapshot()))


# -- arguments -----------------------------------------------------------------------------


def _home(env: AnyEnv) -> AnyEnv:
    if not isinstance(env, gym.Env):
        raise InvalidArgumentError(
            f"env must be a gymnasium.Env, got {type(env).__name__}; vector environments have "
            "no single state"
        )
    home = env.unwrapped
    slotted = [kind.__name__ for kind in type(home).__mro__ if kind.__dict__.get("__slots__")]
    if slotted:
        raise ExtractionError(
            f"{', '.join(slotted)} keeps state in __slots__, which a snapshot of the attributes "
            "does not hold; remove __slots__ from the class"
        )
    return home


def _action_count(env: AnyEnv) -> int:
    space = env.unwrapped.action_space
    if not isinstance(space, gym.spaces.Discrete):
        raise ExtractionError(
            f"the action space must be Discrete, got {space}; a table needs finitely many "
            "actions, so give the environment a Discrete action space"
        )
    if space.start != 0:
        raise ExtractionError(
            f"actions must be numbered from 0, got {space}; a table numbers its actions from 0 "
            "and could not be used with this environment"
        )
    if env.action_space != space:
        raise ExtractionError(
            f"a wrapper changes the action space from {space} to {env.action_space}, but the "
            "table is that of env.unwrapped; pass env.unwrapped, or build the change into the "
            "environment"
        )
    return int(space.n)


def _advice(asked: int | None, taken: int) -> str:
    """What to do where episodes begin in states that a model of so many seeds does not have."""
    if asked == 1:
        return f"without Reading(starts=1), up to {STARTS} seeds are taken together"
    more = STARTS if taken < STARTS else 10 * taken
    return (
        f"Reading(starts={more}), for instance, takes {more} seeds together (at the command line, "
        f"--starts {more})"
    )


def _short_id(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1


# -- search --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _First:
    """The state after a reset: a compressed snapshot, its digest, and its mask as in `_Outcome`."""

    packed: bytes
    digest: bytes
    mask: bytes


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a step did; `snapshot` and `digest` are empty where the episode ends.

    `mask` tells the actions that there are then, one byte each; it is empty if nobody asked.
    """

    reward: float
    is_end: bool
    snapshot: bytes
    digest: bytes
    mask: bytes


class _Search:
    """Breadth-first search from the state after reset, and the checks of what it found."""

    def __init__(self, codec: Codec, n_actions: int, reading: Reading) -> None:
        self._codec = codec
        self._has_masks = reading.action_masks
        self._n_actions = n_actions
        self._seed = reading.seed
        self._asked = reading.starts
        self._firsts: list[_First] = []  # seed by seed; equal ones are one object
        self._others: list[_First] = []  # those of seeds that are inspected and not taken
        self._differs = False  # whether resets do, in anything, what is frozen included
        self._starts: list[int] = []  # the state after reset, seed by seed
        self._absorb = reading.terminal == "absorb"
        self._limit = reading.max_states
        self._rng = np.random.default_rng(CHECK_SEED)
        self._snapshots: list[bytes] = []  # compressed
        self._hashes: list[int] = []  # of the snapshot as it was first taken
        self._digests: list[bytes] = []
        self._parents: list[int] = []
        self._masks: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._by_id: dict[int, int] = {}
        self._variants: dict[int, bytes] = {}  # another form in which a state was reached
        self._successors: list[int] = []  # -1 for the end of the episode
        self._rewards: list[float] = []
        self._ends: list[bool] = []
        self._changes: dict[str, list[int]] = {}  # rows whose steps changed a frozen attribute
        self._changed: dict[str, int] = {}  # how many did, of `_taken`
        self._taken = 0  # steps; states that lack actions have more rows
        self._draws = 0
        self._held = self._looked = 0  # bytes of states, now and when memory was looked at

    @property
    def n_seeds(self) -> int:
        """Number of seeds whose first states episodes begin in."""
        return len(self._firsts)

    def sample(self) -> None:
        """Reset with as many seeds as are taken, and with some more to see whether these differ."""
        codec = self._codec
        self._reset()
        codec.hold()
        missing = codec.freeze - set(codec.held) - {"step_count"}
        if missing:
            raise InvalidArgumentError(
                f"freeze names {listed(sorted(missing))}, but {type(codec.home).__name__} has "
                f"no such attribute after reset; it has {listed(sorted(vars(codec.home)))}"
            )
        met: dict[_First, _First] = {}
        digests: set[bytes] = set()
        whole: set[tuple[bytes, bytes]] = set()
        newest = 0
        info: dict[str, Any] | None = None
        while self._wants_more(newest):
            turn = len(self._firsts)
            info = self._reset(turn)
            aside = codec.frozen_digest(codec.held)
            codec.refreeze()
            snapshot = codec.snapshot()
            digest = codec.digest(snapshot)
            first = _First(
                zlib.compress(snapshot, 1), digest, self._mask(info, "the state after reset")
            )
            if digest not in digests:
                newest = turn
            digests.add(digest)
            whole.add((digest, aside))
            self._firsts.append(met.setdefault(first, first))
        self._differs = len(whole) > 1
        taken = self._asked
        if taken is None:
            taken = 1 if len(digests) == 1 else min(len(self._firsts), STARTS)
        self._firsts, self._others = self._firsts[:taken], self._firsts[taken:]

    def _wants_more(self, newest: int) -> bool:
        """Whether to reset with one more seed; `newest` is the last that led to another state."""
        done = len(self._firsts)
        if done == 0:
            return True
        if self._asked is not None:
            return done < self._asked + OTHER_SEEDS
        # As many again as it took to see the last new one, and some at least.
        is_open = done <= newest + max(QUIET if newest else OTHER_SEEDS, newest)
        return is_open and done < STARTS + OTHER_SEEDS

    def look_for_hidden(self, env: AnyEnv) -> bool:
        """Whether episodes that look the same differ by what no agent sees.

        Raises:
            StochasticEnvError: If that is because of a generator of chance.
        """
        if not self._differs:
            return False
        trial = copied_env(env)
        if trial is None:
            trial = env.unwrapped
        count = len(self._firsts) + len(self._others)
        seeds = range(self._seed, self._seed + min(count, STARTS))
        has_masks = self._has_masks
        witness = find_witness(trial, seeds, self._n_actions, has_masks=has_masks)
        if witness is not None:
            logger.debug("hidden: %s", witness)
            refuse_generator(trial, witness, self._n_actions, has_masks=has_masks)
        return witness is not None

    def run(self, callback: ProgressCallback | None) -> None:
        """Find all states, those of one seed after those of another."""
        state = 0
        firsts, self._firsts = self._firsts, []
        for turn, first in enumerate(firsts):
            if turn and self._asked is None and len(self._snapshots) > ENOUGH:
                self._others = firsts[turn:]
                break
            self._firsts.append(first)
            snapshot = zlib.decompress(first.packed)
            self._starts.append(self._number(snapshot, first.digest, first.mask, parent=0))
            while state < len(self._snapshots):
                self._expand(state)
                state += 1
                if callback is not None and state % REPORT_EVERY == 0:
                    waiting = len(self._snapshots) - state
                    callback(Progress("enumerating", state, None, f"{waiting} waiting"))
        if callback is not None:
            callback(Progress("enumerating", state, state, "0 waiting"))
        if self._draws:
            logger.warning(
                "%s drew random numbers in %d of %d steps; repeating each under %d other seeds "
                "showed no effect",
                type(self._codec.home).__name__,
                self._draws,
                len(self._successors),
                RESEEDS,
            )

    def check(self, checks: int) -> None:
        """Repeat steps that are already in the table."""
        if checks == 0:
            return
        for state, drawn in self._sample(range(len(self._snapshots)), checks):
            action = self._played(state, drawn)
            self._compare(state, action, self._snapshots[state], StochasticEnvError)
        variants = min(checks, len(self._variants) * self._n_actions)  # once each is enough
        for state, drawn in self._sample(sorted(self._variants), variants):
            action = self._played(state, drawn)
            self._compare(state, action, self._variants[state], ExtractionError)
        self._walk(checks)
        self._check_frozen(FROZEN_STEPS * checks)

    def time_limit(self) -> int | None:
        """The number of steps after which the environment itself truncates, if anything counts."""
        start = self._starts[0]
        for action in range(self._n_actions):
            is_own = self._played(start, action) == action
            if is_own and not self._ends[start * self._n_actions + action]:
                snapshot = zlib.decompress(self._snapshots[start])
                return find_time_limit(self._codec, snapshot, action)
        return None

    def conditions(self, *, is_hidden: bool, checks: int) -> list[str]:
        """What qualifies every claim about the model, in short phrases."""
        found = []
        several = len({first.digest for first in [*self._firsts, *self._others]}) > 1
        if several:
            count = self.n_seeds
            found.append(f"from {counted(count, 'sampled start')}{' of several' * (count == 1)}")
        if is_hidden and self.n_seeds > 1:
            found.append("for an agent that sees the whole state")
        trend = self._reward_trend() if checks else ""
        if trend:
            found.append(f"rewards as at step 0 (the environment's {trend} with the steps taken)")
        return found

    def _reward_trend(self) -> str:
        """How rewards move with what every step changes, of a few steps; as `reward_trend` says."""
        codec, n_actions = self._codec, self._n_actions
        if not codec.held and not self._changed:
            return ""
        rows = [row for row in range(len(self._rewards)) if self._is_own(row)]
        paying = [row for row in rows if self._rewards[row] != 0.0]
        others = [row for row in rows if self._rewards[row] == 0.0]
        steps = [
            (self._snapshots[row // n_actions], row % n_actions, self._rewards[row])
            for some in (paying, others)
            for row in self._rng.permutation(some)[:PAYING].astype(int).tolist()
        ]
        mask = self._mask(self._reset(), "the state after reset")

        def walk() -> bool:
            nonlocal mask
            own = np.flatnonzero(np.frombuffer(mask, np.uint8)) if mask else n_actions
            action = int(self._rng.choice(own))
            _, _, terminated, truncated, info = step_env(codec.home, action, "a state")
            mask = self._mask(info, "a state")
            return not (terminated or truncated)

        return reward_trend(codec, steps, walk)

    def _is_own(self, row: int) -> bool:
        state, action = divmod(row, self._n_actions)
        return self._played(state, action) == action

    def table(self, metadata: Mapping[str, Any]) -> TabularMDP:
        n, n_actions = len(self._snapshots), self._n_actions
        successors, rewards = np.array(self._successors), np.array(self._rewards)
        ids = [_short_id(digest) for digest in self._digests]
        terminal = n if (successors < 0).any() else None
        if terminal is not None:
            successors = np.append(np.where(successors < 0, n, successors), [n] * n_actions)
            rewards = np.append(rewards, np.zeros(n_actions))
            ids.append(-1)
        start = np.bincount(self._starts, minlength=len(ids)) / len(self._starts)
        available = np.ones((len(ids), n_actions), bool)
        if self._has_masks:
            told = np.frombuffer(b"".join(self._masks), np.uint8)
            available[:n] = told.reshape(n, n_actions) != 0
        return TabularMDP(
            indptr=np.arange(successors.size + 1),
            indices=successors,
            probs=np.ones(successors.size),
            rewards=rewards.reshape(-1, n_actions),
            available=available,
            start=start,
            state_ids=np.array(ids),
            terminal_state=terminal,
            metadata=metadata,
        )

    def variables(self, n_states: int) -> tuple[Variable, ...]:
        """What states are called: as MiniGrid's are, or by attributes that are simple values."""
        states: MiniGridStates | AttributeStates
        if MiniGridStates.knows(self._codec.home):
            states = MiniGridStates()
        else:
            states = AttributeStates(NOT_STATE | self._codec.freeze)
        for snapshot in self._snapshots:
            self._codec.restore(zlib.decompress(snapshot))
            try:
                states.add(self._codec.home)
            except (AttributeError, IndexError, TypeError, ValueError) as error:
                # Somebody's own kind of MiniGrid: names are for people, and not worth an error.
                logger.debug("no names for states of %s: %s", type(self._codec.home), error)
                return ()
        return states.variables(n_states)

    def frozen(self) -> list[str]:
        """Attributes that were held still; a step may have been the first to set one."""
        return sorted(set(self._codec.held) | set(self._changed))

    def held(self) -> dict[str, str]:
        """What each of these is after a reset, as a digest; not of what counts resets."""
        codec = self._codec
        first: dict[str, bytes] = {}
        again: dict[str, bytes] = {}
        for found in (first, again):
            self._reset()
            found |= {name: codec.frozen_digest([name]) for name in codec.held}
        return {
            name: told.hex()[:16] for name, told in sorted(first.items()) if told == again[name]
        }

    # -- searching -------------------------------------------------------------------------

    def _reset(self, turn: int = 0) -> dict[str, Any]:
        """Begin an episode, with the seed itself or one that follows it."""
        info: dict[str, Any] = reset_env(self._codec.home, self._seed + turn)[1]
        return info

    def _mask(self, info: Mapping[str, Any], where: str) -> bytes:
        if not self._has_masks:
            return b""
        name = type(self._codec.home).__name__
        if "action_mask" not in info:
            raise ExtractionError(
                f"{name} does not tell which actions a state has: let reset and step put "
                '"action_mask" into info, or extract it without action_masks'
            )
        return as_mask(info["action_mask"], self._n_actions, f"{where} of {name}").tobytes()

    def _played(self, state: int, action: int) -> int:
        """The action itself, or the first that the state has."""
        if not self._has_masks or self._masks[state][action]:
            return action
        return self._masks[state].index(1)

    def _expand(self, state: int) -> None:
        codec = self._codec
        snapshot = zlib.decompress(self._snapshots[state])
        is_there = False
        found: dict[int, tuple[int, float, bool]] = {}
        before = self._marks()
        for action in range(self._n_actions):
            if self._played(state, action) != action:
                continue
            if is_there:  # many actions change nothing, and loading is half of the work
                codec.refreeze()
            else:
                codec.restore(snapshot)
            outcome = self._step(state, action)
            self._taken += 1
            for name in codec.changed():
                self._changed[name] = self._changed.get(name, 0) + 1
                rows = self._changes.setdefault(name, [])
                if len(rows) < CHANGES:
                    rows.append(state * self._n_actions + action)
            is_there = outcome.snapshot == snapshot
            after = self._marks()
            if after != before:
                self._draws += 1
                self._repeat(state, action, snapshot, outcome)
                is_there, after = False, self._marks()
            before = after
            successor = -1
            if outcome.digest:
                successor = self._number(
                    outcome.snapshot, outcome.digest, outcome.mask, parent=state
                )
            found[action] = successor, outcome.reward, outcome.is_end
        for action in range(self._n_actions):
            # What a state lacks does what its first action does.
            successor, reward, is_end = found[self._played(state, action)]
            self._successors.append(successor)
            self._rewards.append(reward)
            self._ends.append(is_end)

    def _step(self, state: int, action: int) -> _Outcome:
        codec = self._codec
        _, reward, terminated, truncated, info = step_env(codec.home, action, f"state {state}")
        if truncated:
            self._refuse_truncation(state, action)
        if not math.isfinite(reward):
            raise ExtractionError(
                f"rewards must be finite, got {reward} at state {state}, action {action}"
            )
        if terminated and self._absorb:
            return _Outcome(reward, True, b"", b"", b"")
        snapshot = codec.snapshot()
        mask = self._mask(info, f"the state after state {state}, action {action}")
        return _Outcome(reward, bool(terminated), snapshot, codec.digest(snapshot), mask)

    def _number(self, snapshot: bytes, digest: bytes, mask: bytes, *, parent: int) -> int:
        number = self._numbers.get(digest)
        if number is None:
            number = len(self._snapshots)
            if number >= self._limit:
                self._refuse_more()
            self._numbers[digest] = number
            twin = self._by_id.setdefault(_short_id(digest), number)
            if twin != number:
                raise ExtractionError(
                    f"states {twin} and {number} share the id {_short_id(digest)} by "
                    "coincidence; add any constant attribute to the environment to get other ids"
                )
            packed = zlib.compress(snapshot, 1)
            self._check_room(len(packed) + STATE_BYTES)
            self._snapshots.append(packed)
            self._hashes.append(hash(snapshot))
            self._digests.append(digest)
            self._parents.append(parent)
            self._masks.append(mask)
        elif mask != self._masks[number]:
            raise ExtractionError(
                f"state {number} was met with two action masks, {list(self._masks[number])} and "
                f"{list(mask)}; let the mask depend on the state alone"
            )
        elif number not in self._variants and hash(snapshot) != self._hashes[number]:
            self._variants[number] = zlib.compress(snapshot, 1)
        return number

    def _check_room(self, more: int) -> None:
        """Refuse states whose table, and as many bytes as come before the next look, do not fit."""
        self._held += more
        if self._held - self._looked < LOOK_EVERY:
            return
        self._looked = self._held
        count = len(self._snapshots) + 1
        check_memory(
            STEP_BYTES * count * self._n_actions + LOOK_EVERY,
            what=f"going on from {count:,} states, which hold {human_bytes(self._held)},",
            instead="name in the freeze argument of enumerate_mdp what is not part of the state, "
            "or choose a smaller environment",
        )

    def _marks(self) -> list[tuple[int, object]]:
        streams = [random, np.random.mtrand.get_bit_generator(), *self._codec.streams()]
        return [(id(stream), mark_of(stream)) for stream in streams]

    def _reseed(self) -> None:
        for stream in [random, np.random.mtrand.get_bit_generator(), *self._codec.streams()]:
            reseed(stream, int(self._rng.integers(2**32)))

    # -- checking --------------------------------------------------------------------------

    def _repeat(self, state: int, action: int, snapshot: bytes, outcome: _Outcome) -> None:
        for _ in range(RESEEDS):
            self._codec.restore(snapshot)
            self._reseed()
            difference = self._difference(outcome, self._step(state, action))
            if difference:
                raise StochasticEnvError(self._stochastic(state, action, difference))

    def _sample(self, states: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
        """`size` pairs, all of them equally often up to one."""
        pairs = len(states) * self._n_actions
        while pairs and size > 0:
            for pair in self._rng.permutation(pairs)[:size]:
                place, action = divmod(int(pair), self._n_actions)
                yield states[place], action
            size -= pairs

    def _compare(
        self, state: int, action: int, packed: bytes, error: type[ExtractionError]
    ) -> None:
        self._codec.restore(zlib.decompress(packed))
        self._reseed()
        difference = self._difference(self._entry(state, action), self._step(state, action))
        if not difference:
            return
        if error is StochasticEnvError:
            raise StochasticEnvError(self._stochastic(state, action, difference))
        raise ExtractionError(
            f"state {state} was reached in two forms with equal values that behave differently: "
            f"under action {action} {difference}; let the environment keep one type for each "
            "of its attributes"
        )

    def _walk(self, steps: int) -> None:
        """Compare the table with the environment stepping freely, nothing restored."""
        codec = self._codec
        state = -1
        for k in range(steps):
            if state < 0:
                state = self._return_to_start(k % len(self._starts))
            codec.refreeze()
            action = self._played(state, int(self._rng.integers(self._n_actions)))
            expected, found = self._entry(state, action), self._step(state, action)
            difference = self._difference(expected, found)
            if difference:
                raise ExtractionError(
                    f"restoring a state does not restore all of it: at state {state}, action "
                    f"{action}, stepping on from a reset and stepping from a snapshot disagree "
                    f"({difference}); keep the whole state in attributes of the environment, "
                    "not in globals, closures, or objects that pickle themselves incompletely"
                )
            state = -1 if found.is_end else self._numbers[found.digest]

    def _check_frozen(self, steps: int) -> None:
        """Compare the table with steps after frozen attributes changed, counters held still.

        What every step changes counts them, and is said not to matter. What some steps change may
        be a part of the state after all, as a key in the hand is.
        """
        codec = self._codec
        names = {name for name, count in self._changed.items() if count < self._taken}
        if not names:
            return
        loose = codec.loosened(names)
        waiting: deque[tuple[int, bytes]] = deque()
        seen: set[tuple[int, bytes]] = set()

        def meet(state: int) -> None:
            key = state, codec.frozen_digest(names)
            if key not in seen:
                seen.add(key)
                waiting.append((state, zlib.compress(loose.snapshot(), 1)))

        for row in sorted({row for name in names for row in self._changes[name]}):
            state, action = divmod(row, self._n_actions)
            codec.restore(zlib.decompress(self._snapshots[state]))
            self._step(state, action)
            if self._successors[row] >= 0:
                meet(self._successors[row])
        while waiting and steps > 0:
            state, packed = waiting.popleft()
            snapshot = zlib.decompress(packed)
            for action in range(self._n_actions):
                if self._played(state, action) != action:
                    continue
                loose.restore(snapshot)
                steps -= 1
                expected, found = self._entry(state, action), self._step(state, action)
                difference = self._difference(expected, found)
                if difference:
                    raise ExtractionError(
                        f"freeze names {listed(sorted(names))}, which is part of the state: at "
                        f"state {state}, action {action}, {difference} once earlier steps had "
                        "changed it; leave it out of freeze"
                    )
                if found.digest:
                    meet(self._numbers[found.digest])

    def warn_of_starts(self, advice: str) -> None:
        """Warn, once, if episodes of other seeds begin in states that this model does not have.

        Args:
            advice: What can be done.
        """
        digests = {first.digest for first in self._firsts}
        elsewhere = sum(first.digest not in digests for first in self._others)
        unknown = sum(first.digest not in self._numbers for first in self._others)
        if not (unknown or (elsewhere and self.n_seeds == 1)):
            return
        key = hashlib.sha256(b"".join(sorted(digests))).digest()
        if key in _told:
            return
        _told.add(key)
        count = self.n_seeds
        logger.warning(
            "%s begins elsewhere with other seeds: %d of %d resets led to another start, %d "
            "of them to a state that this model does not have. What is proven is about "
            "episodes that begin as with %s; %s",
            type(self._codec.home).__name__,
            elsewhere,
            len(self._others),
            unknown,
            f"seed {self._seed}" if count == 1 else f"these {count} seeds",
            advice,
        )

    def _return_to_start(self, turn: int) -> int:
        codec, start = self._codec, self._starts[turn]
        self._reset(turn)
        codec.refreeze()
        snapshot = codec.snapshot()
        if codec.digest(snapshot) != self._digests[start]:
            names = codec.differing(zlib.decompress(self._snapshots[start]), snapshot)
            raise StochasticEnvError(
                f"reset(seed={self._seed + turn}) led to another state the second time "
                f"({_in_attributes(names)}); let the seed decide over everything random, and "
                "name in freeze what counts episodes"
            )
        return start

    def _entry(self, state: int, action: int) -> _Outcome:
        row = state * self._n_actions + action
        successor = self._successors[row]
        snapshot, digest, mask = b"", b"", b""
        if successor >= 0:
            snapshot = zlib.decompress(self._snapshots[successor])
            digest, mask = self._digests[successor], self._masks[successor]
        return _Outcome(self._rewards[row], self._ends[row], snapshot, digest, mask)

    def _difference(self, one: _Outcome, other: _Outcome) -> str:
        """What differs between two outcomes, in words; empty if nothing does."""
        if one.is_end != other.is_end:
            return f"terminated was {one.is_end} and then {other.is_end}"
        if one.reward != other.reward:
            return f"the reward was {one.reward} and then {other.reward}"
        if one.digest != other.digest:
            names = self._codec.differing(one.snapshot, other.snapshot)
            return f"the next state differs {_in_attributes(names)}"
        if one.mask != other.mask:
            return f"the action mask was {list(one.mask)} and then {list(other.mask)}"
        return ""

    # -- refusing --------------------------------------------------------------------------

    def _stochastic(self, state: int, action: int, difference: str) -> str:
        name = type(self._codec.home).__name__
        return (
            f"{name} is stochastic: repeating state {state}, action {action}, {difference}; "
            "enumeration needs deterministic transitions, use estimate_mdp on sampled "
            "transitions instead"
        )

    def _refuse_truncation(self, state: int, action: int) -> NoReturn:
        codec = self._codec
        changed = codec.differing(zlib.decompress(self._snapshots[state]), codec.snapshot())
        raise ExtractionError(
            f"step returned truncated=True at state {state}, action {action}: a time limit is "
            "not part of the MDP; name the attribute that counts the steps in freeze (held "
            f"now: {listed(sorted(codec.held)) or 'none'}; changed in this step: "
            f"{listed(changed) or 'none'})"
        )

    def _refuse_more(self) -> NoReturn:
        codec = self._codec
        n = len(self._snapshots)
        always: set[str] | None = None
        values: dict[str, set[bytes]] = {}
        for state in range(1, n, max(1, n // COMPARED)):
            child, parent = (
                codec.encodings(zlib.decompress(self._snapshots[which]))
                for which in (state, self._parents[state])
            )
            names = child.keys() | parent.keys()
            changed = {name for name in names if child.get(name) != parent.get(name)}
            always = changed if always is None else always & changed
            for name in names:
                values.setdefault(name, set()).add(child.get(name, b""))
        message = (
            f"more than max_states={self._limit:,} states: {n:,} were found, and "
            f"{n - len(self._successors) // self._n_actions:,} of them are not explored yet"
        )
        if always:
            # What counts has more values than what only moves about.
            most_values = max(len(values[name]) for name in always)
            always = {name for name in always if 2 * len(values[name]) > most_values}
            flags = " ".join(f"--freeze {name}" for name in sorted(always))
            message += (
                f"; {listed(sorted(always))} changed in every step that found a new state, as "
                "a counter does: if it is not part of the state, name it in freeze "
                f"(reading=Reading(freeze={sorted(always)!r}); at the command line, {flags}), or "
                "else raise max_states"
            )
        else:
            most = sorted(values, key=lambda name: (-len(values[name]), name))[:3]
            counts = ", ".join(f"{name!r} ({len(values[name])})" for name in most)
            message += "; raise max_states, or name in freeze what is not part of the state" + (
                f" (attributes with most values in a sample: {counts})" if most else ""
            )
        raise StateLimitError(message)


def _in_attributes(names: Sequence[str]) -> str:
    if not names:
        return "in which of its parts are one and the same object"
    return f"in attribute{'s' if len(names) > 1 else ''} {listed(names)}"
