"""Exact tables of environments that have none: breadth-first search.

`_snapshot` takes and restores states, `_encoding` tells which of them are the same, `_draws` goes
through what a step may draw; this module searches, checks, and makes the table.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np

from bisim_abstract._base.memory import check_memory, human_bytes
from bisim_abstract._base.progress import shown
from bisim_abstract._base.reading import FREEZE, Reading, check_freeze
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray, Progress, ProgressCallback
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.mdp import TabularMDP, canonical_rows
from bisim_abstract._model.names import Names, Variable
from bisim_abstract.errors import (
    ExtractionError,
    InvalidArgumentError,
    StateLimitError,
    StochasticEnvError,
)
from bisim_abstract.wrappers._counting import find_time_limit, played_time_limit, reward_trend
from bisim_abstract.wrappers._draws import Chance, Script, TailedDraw, merged, ways_out
from bisim_abstract.wrappers._hidden import (
    Player,
    find_pair,
    find_witness,
    refuse_generator,
    replay,
)
from bisim_abstract.wrappers._naming import AttributeStates, MiniGridStates, simple_attributes
from bisim_abstract.wrappers._rewards import find_pay, weigh, weights_in
from bisim_abstract.wrappers._snapshot import (
    CHECK_SEED,
    NOT_STATE,
    AnyEnv,
    Codec,
    borrowed,
    listed,
    mark_of,
    packed,
    reseed,
    unpacked,
)
from bisim_abstract.wrappers._source import (
    as_mask,
    copied_env,
    numbering_advice,
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
ROUNDED_UP = 1.0 + 1e-12  # covers the few roundings of radii
_told: set[bytes] = set()  # starts that were warned of
NAMED_AFTER = 1_024  # explored states, after which what counts the steps is named
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

    Episodes of several seeds are compared, some that are played and then all that the model has. If
    two that look the same go on differently, and that is because of an attribute that makes random
    numbers by itself, the environment is refused as random. Otherwise the model is "for an agent
    that sees the whole state", or if it has one start alone, "for an agent that knows which start
    it is". That an attribute is no such generator is not proven.

    For environments with a `Discrete` action space and no `P` table, such as MiniGrid with a fixed
    layout. The table is that of `env.unwrapped`: `TimeLimit` is not part of it, nor is any other
    wrapper but those that compute a reward from the reward. States are numbered in breadth-first
    order with actions ascending, the state after reset first, and `state_ids` holds what
    `StateReader.state_id` returns in each.

    Steps may draw from `self.np_random`, or from a NumPy `Generator` in another attribute: each
    step is repeated for everything that it can draw, and has the exact probability of that.
    `choice`, `integers`, `binomial`, `permutation` and `shuffle` have finitely many outcomes, and
    `random` and `uniform` are split at what they are compared with. `poisson` and `geometric` are
    cut where less than 1e-18 of the mass is left. What lies beyond is tried at four larger values:
    if these do what the largest outcome does, that outcome stands for all, and else radii
    (`mdp.estimate`, with `alpha` 0) hold what the tail may change, if rewards grow no faster than
    the square of the draw. That is sampled, and `conditions` says so. Any other draw is refused by
    its name. The metadata entry `draws` lists the methods that were gone through.

    The search runs inside the given environment, on copies of its attributes. Afterwards, also
    after an error, it holds the very objects it held before, and its random generators and the
    global ones are put back.

    MiniGrid pays `1 - 0.9 * step_count / max_steps` at the goal. With `step_count` frozen at 0
    every step is the first of an episode, so the table pays `1 - 0.9 / max_steps` whenever the
    goal is reached. The metadata entry `frozen` names what was held still.

    Whether anything else is left to chance can be refuted by trying, not proven. Each step that
    draws from another generator held by the environment or from the global ones is repeated under
    other seeds. At the end a sample of steps is repeated, from states as first met and from
    states that were reached in another form (an array in place of a tuple), and one random walk
    is made without restoring anything and with the true generators. Where steps change a frozen
    attribute, and not all of them do as for a counter, steps from there must lead where the table
    says.

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
    env = weigh(env, reading)
    codec = Codec(_home(env), frozenset(reading.freeze))
    codec.pay = find_pay(env)
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
        is_hidden = is_hidden or search.look_for_pairs(env)
        search.warn_of_starts(advice or _advice(reading.starts, search.n_seeds))
        spec = codec.home.spec
        limits = [outer_time_limit(env), search.time_limit()]
        mdp = search.table(
            {
                "env": type(codec.home).__name__ if spec is None else spec.id,
                "method": "enumeration",
                **weights_in(reading),
                **search.drawn(),
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
            f"actions: {numbering_advice(space)}"
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


class _Branch(NamedTuple):
    """What a step does if it draws this: `successor` is -1 where the episode ends."""

    script: Script
    prob: float
    successor: int
    reward: float
    is_end: bool


class _Outcome(NamedTuple):
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
        self._chance = Chance(type(codec.home).__name__, self._ways)
        self._branches: dict[int, list[_Branch]] = {}  # of rows that are left to chance
        self._tails: dict[int, tuple[float, float]] = {}  # of rows: radii of row and reward
        self._beyond: list[tuple[int, int, TailedDraw, bytes]] = []  # what tails lead to
        self._first_values: dict[str, Any] = {}  # attributes that are simple, after a reset
        self._cut: dict[str, int] = {}  # draws whose tail is cut, and the largest last outcome
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
        self._changes: dict[str, list[tuple[int, Script]]] = {}  # steps that changed a frozen one
        self._changed: dict[str, int] = {}  # how many did, of `_taken`
        self._taken = 0  # steps; states that lack actions have more rows
        self._draws = 0
        self._marked: list[tuple[int, object]] = []  # the state of generators
        self._held = self._looked = 0  # bytes of states, now and when memory was looked at

    @property
    def n_seeds(self) -> int:
        """Number of seeds whose first states episodes begin in."""
        return len(self._firsts)

    def sample(self) -> None:
        """Reset with as many seeds as are taken, and with some more to see whether these differ."""
        codec = self._codec
        self._reset()
        self._first_values = simple_attributes(codec.home, NOT_STATE | codec.freeze)
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
            first = _First(packed(snapshot), digest, self._mask(info, "the state after reset"))
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

    def look_for_pairs(self, env: AnyEnv) -> bool:
        """The same, decided on the model: whether two of its starts look alike and pay differently.

        If not, whoever remembers the first observation and its own actions knows all that decides
        over rewards and ends, however late these come: starts that look the same are bisimilar.
        If so, a difference may still be shown before it is paid for; the condition is the careful
        answer then. It is about the starts of the model alone.

        Of a single start that is one of several, this says whether another one looks like it.

        Raises:
            StochasticEnvError: If that is because of a generator of chance.
        """
        if not self._differs:
            return False
        trial = copied_env(env) or env.unwrapped
        n_actions, has_masks = self._n_actions, self._has_masks
        player = Player(trial, n_actions, has_masks=has_masks)
        seeds: dict[bytes, int] = {}  # of first states
        groups: dict[tuple[bytes, bytes], list[bytes]] = {}
        firsts = self._firsts if self.n_seeds > 1 else [*self._firsts, *self._others]
        for turn, first in enumerate(firsts):
            if first.digest not in seeds:
                seeds[first.digest] = self._seed + turn
                look = player.reset(self._seed + turn)
                groups.setdefault((look.seen, look.mask), []).append(first.digest)
        if self.n_seeds == 1:
            taken = self._firsts[0].digest
            return any(taken in group and len(group) > 1 for group in groups.values())

        # What a step may draw belongs to the action: equal draws may lead elsewhere, too.
        most = max(map(len, self._branches.values()), default=1)

        def branch(state: int, deed: int) -> _Branch | None:
            found = self._branches_of(state, deed // most)
            return found[deed % most] if deed % most < len(found) else None

        def follow(state: int, deed: int) -> int:
            led = branch(state, deed)
            return -1 if led is None or led.is_end else led.successor

        def told(state: int, deed: int) -> object:
            led, after = branch(state, deed), follow(state, deed)
            mask = b"" if after < 0 else self._masks[after]
            return None if led is None else (led.script, led.prob, led.reward, led.is_end, mask)

        def deeds(state: int) -> list[int]:
            own = [a for a in range(n_actions) if self._played(state, a) == a]
            return [most * a + k for a in own for k in range(len(self._branches_of(state, a)))]

        pair = find_pair(
            [[self._numbers[digest] for digest in group] for group in groups.values()],
            deeds,
            follow,
            lambda one, other, deed: told(one, deed) != told(other, deed),
        )
        if pair is None:
            return False
        if self._branches:
            return True  # real steps draw what they like, and show no generator
        one, other, actions = pair
        both = seeds[self._digests[one]], seeds[self._digests[other]]
        witness = replay(player, both, actions)
        logger.debug("hidden in the model: %s, by real steps: %s", pair, witness)
        if witness is not None:
            refuse_generator(trial, witness, n_actions, has_masks=has_masks)
        return True

    def run(self, callback: ProgressCallback | None) -> None:
        """Find all states, those of one seed after those of another."""
        state = begin = 0
        self._marked = self._marks()
        firsts, self._firsts = self._firsts, []
        for turn, first in enumerate(firsts):
            if turn and self._asked is None and len(self._snapshots) > ENOUGH:
                self._others = firsts[turn:]
                break
            self._firsts.append(first)
            snapshot = unpacked(first.packed)
            self._starts.append(self._number(snapshot, first.digest, first.mask, parent=0))
            while state < len(self._snapshots):
                try:
                    self._expand(state)
                except ExtractionError:  # of which chance may be the reason
                    self._look_for_draws(range(begin, state))
                    raise
                state += 1
                if state % REPORT_EVERY == 0:
                    self._look_for_draws(range(begin, state))
                    if begin < NAMED_AFTER <= state:
                        self._warn_of_counters()
                    begin = state
                    if callback is not None:
                        waiting = len(self._snapshots) - state
                        callback(Progress("enumerating", state, None, f"{waiting} waiting"))
        self._look_for_draws(range(begin, state))
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
                snapshot = unpacked(self._snapshots[start])
                limit = find_time_limit(self._codec, snapshot, action)
                if limit is None and self._changed:  # nothing else can count
                    limit = played_time_limit(self._episode)
                    self._codec.restore(snapshot)
                return limit
        return None

    def _episode(self, turn: int) -> Iterator[bool]:
        """Steps of an episode, nothing held, that do not end it: whether each is truncated.

        None where steps are left to chance: nobody knows where they led.
        """
        if self._branches:
            return
        rng = np.random.default_rng(CHECK_SEED + turn)
        turn %= len(self._starts)
        self._reset(turn)
        state = self._starts[turn]
        while state >= 0:
            first = state * self._n_actions
            rows = range(first, first + self._n_actions)
            going = [row for row in rows if self._is_own(row) and not self._ends[row]]
            if not going:
                return
            row = going[int(rng.integers(len(going)))]
            _, action = divmod(row, self._n_actions)
            _, _, terminated, truncated, _ = step_env(
                self._codec.home, action, f"state {state}", self._codec.pay
            )
            yield truncated
            state = -1 if terminated else self._successors[row]

    def conditions(self, *, is_hidden: bool, checks: int) -> list[str]:
        """What qualifies every claim about the model, in short phrases."""
        found = []
        several = len({first.digest for first in [*self._firsts, *self._others]}) > 1
        count = self.n_seeds
        if several or is_hidden:
            found.append(f"from {counted(count, 'sampled start')}{' of several' * (count == 1)}")
        if is_hidden and (
            count > 1 or self._branches
        ):  # with chance, actions do not tell the state
            found.append("for an agent that sees the whole state")
        elif is_hidden:  # what is hidden is the same in all episodes of the model
            found.append("for an agent that knows which start it is")
        trend = self._reward_trend() if checks else ""
        for name, last in sorted(self._cut.items()):
            found.append(
                f"{name} draws above {last} (less than 1e-18 of the mass) checked at 4 values"
            )
        if trend:
            found.append(f"rewards as at step 0 (the environment's {trend} with the steps taken)")
        return found

    def _reward_trend(self) -> str:
        """How rewards move with what every step changes, of a few steps; as `reward_trend` says."""
        codec, n_actions = self._codec, self._n_actions
        if not codec.held and not self._changed:
            return ""
        rows = [row for row in range(len(self._rewards)) if self._is_own(row)]
        rows = [row for row in rows if row not in self._branches]  # whose rewards may be chance
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
            _, _, terminated, truncated, info = step_env(codec.home, action, "a state", codec.pay)
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
        has_end = bool((successors < 0).any()) or any(
            branch.successor < 0 for row in self._branches.values() for branch in row
        )
        terminal = n if has_end else None
        if terminal is not None:
            successors = np.append(np.where(successors < 0, n, successors), [n] * n_actions)
            rewards = np.append(rewards, np.zeros(n_actions))
            ids.append(-1)
        self._check_beyond(has_end=has_end)
        indptr, indices, probs = np.arange(successors.size + 1), successors, np.ones(rewards.size)
        if self._branches:
            indptr, indices, probs = self._chance_rows(successors, n)
            for row, branches in self._branches.items():
                rewards[row] = math.fsum(branch.prob * branch.reward for branch in branches)
        start = np.bincount(self._starts, minlength=len(ids)) / len(self._starts)
        available = np.ones((len(ids), n_actions), bool)
        if self._has_masks:
            told = np.frombuffer(b"".join(self._masks), np.uint8)
            available[:n] = told.reshape(n, n_actions) != 0
        return TabularMDP(
            indptr=indptr,
            indices=indices,
            probs=probs,
            rewards=rewards.reshape(-1, n_actions),
            available=available,
            start=start,
            state_ids=np.array(ids),
            terminal_state=terminal,
            estimate=self._radii(rewards.reshape(-1, n_actions)),
            metadata=metadata,
        )

    def _chance_rows(self, successors: IntArray, end: int) -> tuple[IntArray, IntArray, FloatArray]:
        """Rows as they are stored, where some are left to chance."""
        rows = [[(int(successor), 1.0)] for successor in successors]
        for row, branches in self._branches.items():
            pairs = [(end if b.successor < 0 else b.successor, b.prob) for b in branches]
            rows[row] = sorted(merged(pairs).items())
        indptr = np.cumsum([0, *(len(row) for row in rows)])
        indices, probs = zip(*(entry for row in rows for entry in row), strict=True)
        return canonical_rows(indptr, np.array(indices), np.array(probs))

    def _radii(self, rewards: FloatArray) -> Estimate | None:
        """How far tails of draws may move rows and rewards; None if they do not."""
        if not self._tails:
            return None
        rows, radii = np.zeros(rewards.shape), np.zeros(rewards.shape)
        for row in range(len(self._successors)):
            state, action = divmod(row, self._n_actions)
            own = state * self._n_actions + self._played(state, action)
            rows[state, action], radii[state, action] = self._tails.get(own, (0.0, 0.0))
        rows, radii = rows * ROUNDED_UP, radii * ROUNDED_UP
        return Estimate(
            counts=np.zeros(rewards.shape, np.int64),
            reward_radius=radii,
            row_radius=np.minimum(rows, 1.0),
            alpha=0.0,
            reward_range=(
                float(np.nextafter(rewards - radii, -np.inf).min()),
                float(np.nextafter(rewards + radii, np.inf).max()),
            ),
            support_bound=len(rewards),
        )

    def _check_beyond(self, *, has_end: bool) -> None:
        """Refuse draws whose tail leads to what the model does not have."""
        for state, action, tail, digest in self._beyond:
            if digest not in self._numbers if digest else not has_end:
                raise ExtractionError(
                    f"at state {state}, action {action}, {tail.name} draws far above {tail.last} "
                    "lead to states that no others lead to, so that there may be states without "
                    "end; cap the draw, as by min(draw, most)"
                )

    def drawn(self) -> dict[str, Any]:
        """What was gone through instead of being drawn, for the metadata; empty if nothing was."""
        if not self._chance.names:
            return {}
        paid = [b.reward for row in self._branches.values() for b in row] or [0.0]
        return {"draws": sorted(self._chance.names), "drawn_rewards": [min(paid), max(paid)]}

    def variables(self, n_states: int) -> tuple[Variable, ...]:
        """What states are called: as MiniGrid's are, or by attributes that are simple values."""
        states: MiniGridStates | AttributeStates
        if MiniGridStates.knows(self._codec.home):
            states = MiniGridStates()
        else:
            states = AttributeStates(NOT_STATE | self._codec.freeze)
        for snapshot in self._snapshots:
            self._codec.restore(unpacked(snapshot))
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
        snapshot = unpacked(self._snapshots[state])
        is_there = is_scanned = False
        found: dict[int, list[_Branch]] = {}
        for action in range(self._n_actions):
            if self._played(state, action) != action:
                continue
            script: Script | None = ()
            branches = found[action] = []
            while script is not None:
                if is_there:  # many actions change nothing, and loading is half of the work
                    self._codec.refreeze()
                else:
                    self._codec.restore(snapshot, is_scanned=is_scanned)
                outcome = self._step(state, action, script)
                is_scanned = bool(outcome.snapshot)
                script, prob, tails, following = self._chance.result()
                self._note_changes(state * self._n_actions + action, script)
                is_there = outcome.snapshot == snapshot
                successor = -1
                if outcome.digest:
                    successor = self._number(
                        outcome.snapshot, outcome.digest, outcome.mask, parent=state
                    )
                branches.append(_Branch(script, prob, successor, outcome.reward, outcome.is_end))
                for tail in tails:
                    self._try_tail(state, action, snapshot, branches[-1], outcome, tail)
                    is_there = is_scanned = False
                script = following
        for action in range(self._n_actions):
            # What a state lacks does what its first action does.
            branches = found[self._played(state, action)]
            if len(branches) > 1:
                self._branches[len(self._successors)] = branches
            self._successors.append(branches[0].successor)
            self._rewards.append(branches[0].reward)
            self._ends.append(branches[0].is_end)

    def _look_for_draws(self, states: range) -> None:
        """If generators that nobody stands in for were drawn from: find the steps, repeat them."""
        if self._marks() == self._marked:
            return
        for row in range(states.start * self._n_actions, states.stop * self._n_actions):
            state, action = divmod(row, self._n_actions)
            if not self._is_own(row) or row >= len(self._successors):
                continue
            snapshot, before = unpacked(self._snapshots[state]), self._marks()
            for branch in self._branches_of(state, action):
                expected = self._expected(branch)
                self._codec.restore(snapshot)
                difference = self._difference(expected, self._step(state, action, branch.script))
                if difference:
                    raise self._stochastic(state, action, difference)
                if self._marks() != before:
                    self._draws += 1
                    self._repeat(state, action, snapshot, expected, branch.script)
                    before = self._marks()
        self._marked = self._marks()

    def _note_changes(self, row: int, script: Script) -> None:
        """Remember a step that changed a frozen attribute."""
        self._taken += 1
        for name in self._codec.changed():
            self._changed[name] = self._changed.get(name, 0) + 1
            steps = self._changes.setdefault(name, [])
            if len(steps) < CHANGES:
                steps.append((row, script))

    def _try_tail(
        self,
        state: int,
        action: int,
        snapshot: bytes,
        branch: _Branch,
        outcome: _Outcome,
        tail: TailedDraw,
    ) -> None:
        """Radii for what lies beyond the last outcome of a draw, which larger ones are tried for.

        If W is the probability of the branch and what lies beyond has the share s of it, rows are
        off by at most W·s in total variation, as this mass goes to the branch's own successor. If
        rewards differ from the branch's by at most g·(k / last)² for an outcome k, expected ones
        are off by at most W·g·q, where q is the mean of (k / last)² over what lies beyond. Twice
        the g that was seen is taken, which covers what grows linearly from `last` on.
        """
        is_moved, growth = False, 0.0
        for value in tail.probes():
            self._codec.restore(snapshot)
            other = self._step(state, action, branch.script, probe=(tail.place, value))
            if self._chance.taken != branch.script:
                self._chance.refuse(
                    tail.name,
                    f"decides what is drawn next also where it is above {tail.last}",
                    "cap it before anything else depends on it",
                )
            if (other.digest, other.is_end) != (outcome.digest, outcome.is_end):
                is_moved = True
                self._beyond.append((state, action, tail, other.digest))
            times = value / max(tail.last, 1)
            growth = max(growth, abs(other.reward - outcome.reward) / times**2)
        self._cut[tail.name] = max(tail.last, self._cut.get(tail.name, 0))
        if is_moved or growth:
            row = state * self._n_actions + action
            rows, rewards = self._tails.get(row, (0.0, 0.0))
            rows += branch.prob * tail.share if is_moved else 0.0
            self._tails[row] = rows, rewards + 2.0 * branch.prob * growth * tail.square

    def _step(
        self,
        state: int,
        action: int,
        script: Script = (),
        *,
        probe: tuple[int, int] | None = None,
    ) -> _Outcome:
        """A step with the given draws, and the first of those that follow."""
        codec, chance = self._codec, self._chance
        chance.begin(script, (state, action), probe)
        try:
            own = codec.stand_in(chance.stands_in)
            try:
                found = step_env(codec.home, action, f"state {state}", codec.pay)
            finally:
                codec.take_back(own, chance.stands_in)
            outcome = self._outcome(state, action, found)
        except Exception:
            chance.end()  # a refused draw is what is wrong, whatever became of it
            raise
        chance.end()
        return outcome

    def _outcome(
        self, state: int, action: int, found: tuple[Any, float, bool, bool, Mapping[str, Any]]
    ) -> _Outcome:
        """What a step has come to, its results given."""
        codec = self._codec
        _, reward, terminated, truncated, info = found
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
            stored = packed(snapshot)
            self._check_room(len(stored) + STATE_BYTES)
            self._snapshots.append(stored)
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
            self._variants[number] = packed(snapshot)
        return number

    def _check_room(self, more: int) -> None:
        """Refuse states whose table, and as many bytes as come before the next look, do not fit."""
        self._held += more
        held = self._held + self._codec.n_bytes
        if held - self._looked < LOOK_EVERY:
            return
        self._looked = held
        count = len(self._snapshots) + 1
        check_memory(
            STEP_BYTES * count * self._n_actions + LOOK_EVERY,
            what=f"going on from {count:,} states, which hold {human_bytes(held)},",
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

    def _repeat(
        self, state: int, action: int, snapshot: bytes, outcome: _Outcome, script: Script
    ) -> None:
        for _ in range(RESEEDS):
            self._codec.restore(snapshot)
            self._reseed()
            difference = self._difference(outcome, self._step(state, action, script))
            if difference:
                raise self._stochastic(state, action, difference)

    def _sample(self, states: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
        """`size` pairs, all of them equally often up to one."""
        pairs = len(states) * self._n_actions
        while pairs and size > 0:
            for pair in self._rng.permutation(pairs)[:size]:
                place, action = divmod(int(pair), self._n_actions)
                yield states[place], action
            size -= pairs

    def _compare(
        self, state: int, action: int, stored: bytes, error: type[ExtractionError]
    ) -> None:
        self._codec.restore(unpacked(stored))
        self._reseed()
        branches = self._branches_of(state, action)
        branch = branches[int(self._rng.integers(len(branches)))] if branches[1:] else branches[0]
        found = self._step(state, action, branch.script)
        difference = self._difference(self._expected(branch), found)
        if not difference:
            return
        if error is StochasticEnvError:
            raise self._stochastic(state, action, difference)
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
                if self._branches:
                    self._reseed()  # else every episode would draw the same
            codec.refreeze()
            action = self._played(state, int(self._rng.integers(self._n_actions)))
            branches = self._branches_of(state, action)
            found = self._outcome(
                state, action, step_env(codec.home, action, f"state {state}", codec.pay)
            )
            difference = ""
            for branch in branches:
                difference = self._difference(self._expected(branch), found)
                if not difference:
                    break
            if difference and branches[1:]:
                raise ExtractionError(
                    f"at state {state}, action {action}, a step with the true generator did what "
                    f"none of {len(branches):,} enumerated draws does (in the last of them "
                    f"{difference}); keep the whole state in attributes of the environment, and "
                    "draw from self.np_random alone"
                )
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
                waiting.append((state, packed(loose.snapshot())))

        for row, script in sorted({step for name in names for step in self._changes[name]}):
            state, action = divmod(row, self._n_actions)
            codec.restore(unpacked(self._snapshots[state]))
            found = self._step(state, action, script)
            if found.digest:
                meet(self._numbers[found.digest])
        while waiting and steps > 0:
            state, stored = waiting.popleft()
            snapshot = unpacked(stored)
            for action in range(self._n_actions):
                if self._played(state, action) != action:
                    continue
                for branch in self._branches_of(state, action):
                    loose.restore(snapshot)
                    steps -= 1
                    expected = self._expected(branch)
                    found = self._step(state, action, branch.script)
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

    def _warn_of_counters(self) -> None:
        """Warn if an attribute changed in every step and none led back, as where steps count."""
        codec, always = self._codec, set[str]()
        depth = [0] * len(self._snapshots)  # steps from a start
        for state, parent in enumerate(self._parents):
            depth[state] = 0 if state in self._starts else depth[parent] + 1
        rows = [row for row, successor in enumerate(self._successors) if successor >= 0]
        rows = np.random.default_rng(CHECK_SEED).permutation(rows)[:COMPARED].astype(int).tolist()
        for k, row in enumerate(rows):
            state, successor = row // self._n_actions, self._successors[row]
            if depth[successor] != depth[state] + 1:
                return
            before, after = unpacked(self._snapshots[state]), unpacked(self._snapshots[successor])
            changed = set(codec.differing(before, after))
            always = always & changed if k else changed
            if not always:
                return
        logger.warning(
            "%s: %s changed in each of %d steps that were compared, as a counter does, and %d "
            "states were found so far; if it is not part of the state, name it in freeze "
            "(reading=Reading(freeze=%r))",
            type(codec.home).__name__,
            listed(sorted(always)),
            len(rows),
            len(self._snapshots),
            sorted(always),
        )

    def _return_to_start(self, turn: int) -> int:
        codec, start = self._codec, self._starts[turn]
        self._reset(turn)
        codec.refreeze()
        snapshot = codec.snapshot()
        if codec.digest(snapshot) != self._digests[start]:
            names = codec.differing(unpacked(self._snapshots[start]), snapshot)
            raise StochasticEnvError(
                f"reset(seed={self._seed + turn}) led to another state the second time "
                f"({_in_attributes(names)}); let the seed decide over everything random, and "
                "name in freeze what counts episodes or is left over from the one before"
                + (f" (reading=Reading(freeze={sorted({*codec.held, *names})!r}))" if names else "")
            )
        return start

    def _branches_of(self, state: int, action: int) -> list[_Branch]:
        """What a state and action may do."""
        row = state * self._n_actions + action
        if row in self._branches:
            return self._branches[row]
        return [_Branch((), 1.0, self._successors[row], self._rewards[row], self._ends[row])]

    def _expected(self, branch: _Branch) -> _Outcome:
        """A branch as an outcome."""
        snapshot, digest, mask = b"", b"", b""
        if branch.successor >= 0:
            snapshot = unpacked(self._snapshots[branch.successor])
            digest, mask = self._digests[branch.successor], self._masks[branch.successor]
        return _Outcome(branch.reward, branch.is_end, snapshot, digest, mask)

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

    def _ways(self) -> tuple[str, str]:
        first = self._first_values
        return ways_out(list(first), list(first.values()), self._n_actions)

    def _stochastic(self, state: int, action: int, difference: str) -> StochasticEnvError:
        name = type(self._codec.home).__name__
        ways, example = self._ways()
        error = StochasticEnvError(
            f"{name} is random, and not by draws from self.np_random: repeating state {state}, "
            f"action {action}, {difference}. {ways}"
        )
        error.add_note(example)
        return error

    def _refuse_truncation(self, state: int, action: int) -> NoReturn:
        codec = self._codec
        changed = codec.differing(unpacked(self._snapshots[state]), codec.snapshot())
        at = state
        for _ in range(COMPARED):  # what counts changed in every step up to here
            if at in self._starts:
                break
            at, after = self._parents[at], at
            names = codec.differing(*(unpacked(self._snapshots[k]) for k in (at, after)))
            changed = [name for name in changed if name in names]
        remedy = (
            f"{listed(changed)} changed in every step up to there, as a counter does: "
            "if it is not part of the state, name it in freeze "
            f"(reading=Reading(freeze={sorted({*codec.held, *changed})!r}))"
            if changed
            else "name the attribute that counts the steps in freeze (held now: "
            f"{listed(sorted(codec.held)) or 'none'})"
        )
        raise ExtractionError(
            f"step returned truncated=True at state {state}, action {action}: a time limit is "
            f"not part of the MDP; {remedy}"
        )

    def _refuse_more(self) -> NoReturn:
        codec = self._codec
        n = len(self._snapshots)
        always: set[str] | None = None
        values: dict[str, set[bytes]] = {}
        for state in range(1, n, max(1, n // COMPARED)):
            child, parent = (
                codec.encodings(unpacked(self._snapshots[which]))
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
