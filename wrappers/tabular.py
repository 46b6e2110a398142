"""From a Gymnasium environment to a `TabularMDP`, faithfully or not at all."""

from __future__ import annotations

import inspect
import logging
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs

from bisim_abstract._base.arrays import frozen
from bisim_abstract._base.checks import check_callback, check_env_args
from bisim_abstract._base.progress import shown
from bisim_abstract._base.reading import CHECKS, FREEZE, Reading
from bisim_abstract._base.types import BoolArray, ProgressCallback
from bisim_abstract._model.checks import check_distribution
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import ExtractionError, InvalidMDPError
from bisim_abstract.wrappers._make import make_env
from bisim_abstract.wrappers._naming import (
    grid_letters,
    named_as_in_gymnasium,
    named_as_in_minigrid,
)
from bisim_abstract.wrappers._rewards import Pay, find_memory, find_pay, weigh, weights_in
from bisim_abstract.wrappers._snapshot import class_digest
from bisim_abstract.wrappers._source import (
    Holding,
    StartSeeds,
    StateLookup,
    TableSource,
    as_mask,
    copied_env,
    drawn_rewards_in,
    find_source,
    has_table,
    layers,
    mask_reader,
    numbering_advice,
    outer_time_limit,
    plain_action,
    state_met,
    state_reader,
    state_text,
    time_limit_in,
    unknown_state,
    vector_reward,
)

logger = logging.getLogger(__name__)

FUNCTIONAL = "gymnasium.envs.functional_jax_env.FunctionalJaxEnv"
INSTEAD = {
    "BlackJackJaxEnv": "Extract Blackjack-v1, whose table is known exactly",
    "CliffWalkingJaxEnv": "Extract CliffWalking-v1, which has a table",
}
ESTIMATE = (
    "Estimate a model from samples with bisim_abstract.estimate_mdp or, if nothing is left to "
    "chance, name the key: reading=Reading(freeze=('rng',))"
)


def extract_mdp(
    env: gym.Env[Any, Any] | str,
    *,
    reading: Reading | None = None,
    env_args: Mapping[str, Any] | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> TabularMDP:
    """The tabular MDP behind an environment, through any stack of wrappers.

    An environment that describes itself by `to_mdp(terminal=...)` and `state_id()`, as
    `RoomsGrid`, `ModelEnv` and `Distractor` do, is asked; one with a `P` table is read; that of
    Gymnasium's Blackjack is known in closed form; any other is enumerated, with what its steps
    draw from `self.np_random`. Time limits are not part of the model. Rewards are those of the
    outermost environment: wrappers that compute a reward from the reward (`RewardWrapper`,
    `TransformReward`, `ClipReward`, mo-gymnasium's `LinearReward`) are applied to every outcome,
    and rewards that are vectors are summed by `Reading(weights=...)`.
    The table is then compared with `checks` real steps of a copy of the environment, wrappers
    included, so that a wrapper which changes rewards or transitions is noticed.

    Args:
        env: An environment, or the id of one. Ids that this Gymnasium has retired are
            resolved to their successors with a warning. An environment is not changed.
        reading: How: what ends episodes, which states and actions there are, the seed, limits and
            checks.
        env_args: Arguments for `gymnasium.make`, where `env` is an id.
        callback: Told about progress of an enumeration. Without one, a progress line is
            shown if the program runs in a terminal.
        progress: Show a line also where there is no terminal, as in a notebook.

    Returns:
        The model. `state_ids` maps its states back to the environment's; the added absorbing
        state has id -1.

    Raises:
        ExtractionError: If the environment cannot be described faithfully by a table; the
            message says why, and what can be done.

    Example:
        >>> from bisim_abstract import Reading
        >>> extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True))
        TabularMDP(12 states, 4 actions, 130 transitions, terminal state 11, from FrozenLake-v1)
    """
    check_callback(callback)
    reading = Reading.of(reading)
    if isinstance(env, str):
        made = make_env(env, **({} if env_args is None else check_env_args(env_args)))
        try:
            return extract_mdp(made, reading=reading, callback=callback, progress=progress)
        finally:
            made.close()
    if env_args is not None:
        raise ExtractionError("env_args goes with an environment id, not with an environment")
    _refuse_unfaithful(env, reading)
    env = weigh(env, reading)
    source, pay = find_source(env), find_pay(env)
    if reading.start is not None and (source is not None or not has_table(env)):
        raise ExtractionError(
            f"start goes with environments that have a P table; {env_name(env)} tells its own"
        )
    has_starts = reading.starts is not None and reading.starts > 1
    if (reading.freeze != FREEZE or has_starts) and (source is not None or has_table(env)):
        name = "starts" if has_starts else "freeze"
        raise ExtractionError(
            f"{name} goes with environments that are enumerated; {env_name(env)} has a table"
        )
    if source is not None:
        mdp = _described(env, source, reading)
        mdp = mdp.with_metadata(method=mdp.metadata.get("method", "self"))
    elif has_table(env):
        mdp = _from_table(env, reading)
    else:
        with shown(callback, progress) as report:
            mdp = _enumerated(env, reading, report)
        if reading.terminal == "absorb" and reading.checks >= CHECKS and pay is None:
            _remember(env, reading, mdp)
    limit = outer_time_limit(env)
    if limit is not None:
        mdp = mdp.with_metadata(time_limit=min(limit, time_limit_in(mdp) or limit))
    if reading.action_masks:
        mdp = mdp.with_metadata(action_masks=True)
    if pay is not None:
        mdp = mdp.with_metadata(reward_wrappers=list(pay.wrappers))
    compare_with_steps(env, mdp, reading)
    if reading.reachable_only:
        mdp = mdp.restrict(mdp.reachable())
    return _named(mdp, env, reading)


def extract_again(env: gym.Env[Any, Any], reading: Reading) -> TabularMDP:
    """`extract_mdp`, without enumerating what this very environment was found to be.

    That a certificate fits what is remembered does not show that the environment still does: it
    may have been changed. So a remembered model must pass real steps once more, and the attributes
    of its class must be what they were. The ids of its states are digests of its own attributes,
    and a change to any of them shows at the first reset. (Globals of its module are not looked at.)
    Tables are not remembered: reading one is quick, and steps would follow a changed one.
    """
    mdp = _remembered(env, reading)
    if mdp is not None:
        _refuse_unfaithful(env, reading)
        try:
            is_true = compare_with_steps(env, mdp, replace(reading, checks=CHECKS))
        except ExtractionError as error:
            logger.debug("%s has changed: %s", env_name(env), error)
            is_true = False
        if is_true:
            mdp = mdp.restrict(mdp.reachable()) if reading.reachable_only else mdp
            return _named(mdp, env, reading)
    return extract_mdp(env, reading=reading)


@dataclass(frozen=True)
class _Enumeration:
    """What an environment was found to be.

    Attributes:
        env: Itself, so that an address which is used again is not mistaken for it.
        shared: Digest of what its class has.
        reading: How it was read.
        mdp: The model.
    """

    env: weakref.ref[gym.Env[Any, Any]]
    shared: bytes
    reading: Reading
    mdp: TabularMDP


# The last one of every environment that is alive, by its address.
_enumerations: dict[int, _Enumeration] = {}


def _remember(env: gym.Env[Any, Any], reading: Reading, mdp: TabularMDP) -> None:
    inner = env.unwrapped
    address = id(inner)

    def forget(_: object) -> None:
        _enumerations.pop(address, None)

    shared = class_digest(inner)
    if shared is not None:
        _enumerations[address] = _Enumeration(weakref.ref(inner, forget), shared, reading, mdp)


def _remembered(env: gym.Env[Any, Any], reading: Reading) -> TabularMDP | None:
    if find_source(env) is not None or find_pay(env) is not None:  # around what was enumerated
        return None
    inner = env.unwrapped
    known = _enumerations.get(id(inner))
    if known is None or known.env() is not inner or class_digest(inner) != known.shared:
        return None
    if _whole(known.reading) != _whole(reading):
        return None
    mdp = known.mdp
    if reading.starts not in (known.reading.starts, mdp.metadata["starts"]):
        return None
    is_allowed = mdp.n_states - (mdp.terminal_state is not None) <= reading.max_states
    return mdp if is_allowed else None


def _whole(reading: Reading) -> Reading:
    """The same without what says nothing about the states that were enumerated, or how many."""
    names = sorted(set(reading.freeze))
    plain = replace(reading, reachable_only=False, freeze=names, starts=None)
    return replace(plain, checks=CHECKS, max_states=1)


def _named(mdp: TabularMDP, env: gym.Env[Any, Any], reading: Reading) -> TabularMDP:
    return mdp.with_metadata(
        env=env_name(env),
        terminal=reading.terminal,
        reachable_only=reading.reachable_only,
        gymnasium=gym.__version__,
    )


class TabularEnv(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A wrapper that carries the environment's model and tells the state at each step.

    Observations and actions are untouched, and rewards unless `reading` weighs them. `info` gains
    "state", the index of the present state in `mdp`, and "env_state", the environment's own id of
    it. After a step that ended the episode, "state" is the absorbing state (with
    terminal="absorb"). Where states lack actions (`action_masks`), `info["action_mask"]` and
    `action_masks()` tell which there are; one that is taken all the same goes to the environment
    as it is.

    Where the model was enumerated it is that of one seed, or of as many as `starts` says: every
    reset then begins as with one of these, whatever seed it is given.

    Attributes:
        mdp: The model, as given by `extract_mdp`.

    Example:
        >>> env = TabularEnv(gym.make("FrozenLake-v1"))
        >>> _, info = env.reset(seed=0)
        >>> info["state"], env.mdp.n_states
        (0, 17)
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        reading: Reading | Mapping[str, Any] | None = None,
    ) -> None:
        reading = Reading.of(reading)
        RecordConstructorArgs.__init__(self, reading=reading.to_dict())
        gym.Wrapper.__init__(self, weigh(env, reading))
        self.mdp = extract_mdp(self.env, reading=reading)
        self._state: int | None = None
        self._absorbs = reading.terminal == "absorb"
        self._seeds = StartSeeds(self.mdp, reading.seed)
        self._lookup = StateLookup(self.mdp)
        ids = self.mdp.state_ids.tolist()
        self._place = {ident: index for index, ident in enumerate(ids) if ident >= 0}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; see the class for what `info` gains."""
        observation, info = self._seeds.reset(self.env, seed, options)
        self._lookup.begin()
        return observation, self._with_state(info, terminated=False)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; see the class for what `info` gains."""
        observation, reward, terminated, truncated, info = self.env.step(plain_action(action))
        return observation, reward, terminated, truncated, self._with_state(info, terminated)

    def action_masks(self) -> BoolArray:
        """(n_actions) which actions the present state has, as MaskablePPO asks for them."""
        if self._state is None:
            raise ResetNeeded("call reset() before action_masks()")
        return np.array(self.mdp.available[self._state])

    def _with_state(self, info: dict[str, Any], terminated: bool) -> dict[str, Any]:
        ident = self._lookup.ident(self.env)
        state = self._place.get(ident)
        if terminated and self._absorbs:
            source = self._lookup.source(self.env)
            state = state_met(self.mdp, self._place, ident, source, is_end=True)
        if state is None:
            raise unknown_state(self.mdp, ident)
        self._state = state
        info = {**info, "state": state, "env_state": ident}
        if self.mdp.has_action_sets:
            info["action_mask"] = self.mdp.available[state].astype(np.int8)
        return info


def env_name(env: gym.Env[Any, Any]) -> str:
    """Its id, or what its class is called."""
    spec = env.spec
    return type(env.unwrapped).__name__ if spec is None else spec.id


def _refuse_unfaithful(env: gym.Env[Any, Any], reading: Reading) -> None:
    """Raise where a table could not describe what `step` does."""
    if not isinstance(env, gym.Env):
        hint = ""
        if isinstance(env, gym.vector.VectorEnv):
            hint = "; it is a vector environment: pass one of its single environments"
        what = type(env).__name__
        if isinstance(env, type) and issubclass(env, gym.Env):
            what, hint = f"the class {env.__name__}", f": make one, {env.__name__}()"
        raise ExtractionError(f"env must be a gymnasium.Env or an id, got {what}{hint}")
    for name in ("action_space", "observation_space"):
        if not isinstance(getattr(env, name, None), spaces.Space):
            raise ExtractionError(
                f"{env_name(env)} has no {name}: give it one of gymnasium.spaces in __init__"
            )
    for layer in layers(env):
        if isinstance(layer, gym.ActionWrapper):
            raise ExtractionError(
                f"the wrapper {type(layer).__name__} changes actions, which the table behind it "
                "does not know; extract the model without this wrapper"
            )
    inner: Any = env.unwrapped
    if getattr(inner, "fickle_passenger", False):
        raise ExtractionError(
            "Taxi with fickle_passenger=True cannot be extracted: its P table does not describe "
            "what step() does (the destination changes with a hidden flag); use "
            "fickle_passenger=False"
        )
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(inner).__mro__}
    if FUNCTIONAL in kinds and "rng" not in reading.freeze:
        raise ExtractionError(
            f"{env_name(env)} is one of Gymnasium's functional environments, which keep their "
            "random key in an attribute, 'rng': a model with that key in its states would foresee "
            f"chance. {INSTEAD.get(type(inner).__name__, ESTIMATE)}"
        )
    action_space = env.action_space
    if not isinstance(action_space, spaces.Discrete):
        raise ExtractionError(
            f"actions must be Discrete to be tabulated, got {action_space}; "
            f"{numbering_advice(action_space)}"
        )
    if action_space.start != 0:
        raise ExtractionError(
            f"actions must be numbered from 0, got {action_space}; shift them with a wrapper "
            "inside the environment"
        )
    if find_source(env) is None and not has_table(env) and _is_continuous(inner.observation_space):
        raise ExtractionError(
            f"{env_name(env)} has continuous observations ({inner.observation_space}) and no P "
            "table: its states cannot be enumerated. Cells of a grid over them, as those of "
            "DiscretizeObservation, are no Markov states: what follows depends on the place within "
            "a cell, and no table of cells describes that. Write an environment of finitely many "
            "states, or learn a distance"
        )


def _is_continuous(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Box):
        return bool(np.issubdtype(space.dtype, np.floating))
    if isinstance(space, spaces.Dict):
        return any(_is_continuous(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(_is_continuous(part) for part in space.spaces)
    return False


def _described(env: gym.Env[Any, Any], source: TableSource, reading: Reading) -> TabularMDP:
    """What an environment says of itself, with the actions of its states if it is asked."""
    tell: Any = source.to_mdp
    terminal = reading.terminal
    if not reading.action_masks:
        mdp: TabularMDP = tell(terminal=terminal)
    elif "action_masks" in inspect.signature(tell).parameters:
        mdp = tell(terminal=terminal, action_masks=True)
    else:
        mdp = tell(terminal=terminal)
        if not mdp.has_action_sets:  # else it has told already
            mdp = mdp.with_available(_told_masks(env, mdp))
    return mdp


def _told_masks(env: gym.Env[Any, Any], mdp: TabularMDP) -> BoolArray:
    """(n_states, n_actions) what an environment tells of the actions of each state."""
    tell = mask_reader(env)
    if tell is None:
        raise ExtractionError(
            f"{env_name(env)} does not tell which actions a state has: give it a method "
            "action_mask(state), or extract it without action_masks"
        )
    masks = np.ones(mdp.rewards.shape, bool)
    for k, ident in enumerate(mdp.state_ids.tolist()):
        if ident >= 0:
            masks[k] = as_mask(tell(ident), mdp.n_actions, f"state {ident} of {env_name(env)}")
    return masks


def _from_table(env: gym.Env[Any, Any], reading: Reading) -> TabularMDP:
    inner: Any = env.unwrapped
    table, terminal = _paid(inner.P, find_pay(env)), reading.terminal
    start: Any = reading.start
    if start is None:
        start = getattr(inner, "initial_state_distrib", None)
    if start is None:
        start = _start_by_reset(env, len(table), reading.seed)
    check_distribution("start", frozen("start", start, np.float64), len(table))
    try:
        mdp = TabularMDP.from_table(table, start=start, terminal=terminal)
    except InvalidMDPError as error:
        _refuse_vectors(env, table)
        raise ExtractionError(f"the P table of {env_name(env)} is not an MDP: {error}") from error
    if mdp.n_actions != env.action_space.n:  # type: ignore[attr-defined]
        raise ExtractionError(
            f"the P table of {env_name(env)} has {mdp.n_actions} actions, its action space is "
            f"{env.action_space}"
        )
    if reading.action_masks:
        mdp = mdp.with_available(_told_masks(env, mdp))
    entries: dict[str, Any] = {
        "method": "table",
        **weights_in(reading),
        **_reachable_counts(mdp, table, terminal),
    }
    digits = _digits(inner, len(table))
    if digits:
        entries["digits"] = digits
        letters = grid_letters(inner, digits)
        if letters:
            entries["letters"] = letters
    return named_as_in_gymnasium(mdp, inner, digits).with_metadata(**entries)


def _refuse_vectors(env: gym.Env[Any, Any], table: Any) -> None:
    """Raise if a table that is no MDP has vectors of rewards, whatever else is wrong with it."""
    try:
        paid = table[0][0][0][2]
    except (LookupError, TypeError):
        return
    if np.ndim(paid) == 1 and len(paid) > 1:
        raise vector_reward(type(env.unwrapped).__name__, paid) from None


def _paid(table: Any, pay: Pay | None) -> Any:
    """A `P` table with what wrappers make of the reward of each outcome."""
    if pay is None:
        return table
    return {
        state: {
            action: [
                (prob, after, pay(reward) if prob > 0.0 else reward, done)
                for prob, after, reward, done in table[state][action]
            ]
            for action in range(len(table[state]))
        }
        for state in range(len(table))
    }


def _digits(inner: Any, n_states: int) -> list[list[Any]]:
    """How the state numbers of the grids in Gymnasium's toy text are made up; else nothing."""
    from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    size: list[list[Any]] = []
    if isinstance(inner, TaxiEnv):
        size = [["row", 5], ["column", 5], ["passenger", 5], ["destination", 4]]
    elif isinstance(inner, FrozenLakeEnv):
        size = [["row", int(inner.nrow)], ["column", int(inner.ncol)]]
    elif isinstance(inner, CliffWalkingEnv):
        size = [["row", 4], ["column", 12]]
    return size if math.prod(count for _, count in size) == n_states else []


def _reachable_counts(mdp: TabularMDP, table: Any, terminal: str) -> dict[str, int]:
    """How many live states, and states entered at an episode's end, the start can reach."""
    if terminal != "absorb":
        return {}
    live = [int(s) for s in mdp.reachable() if s != mdp.terminal_state]
    ends = {
        int(successor)
        for s in live
        for a in np.flatnonzero(mdp.available[s]).tolist()
        for prob, successor, _, done in table[s][a]
        if done and prob > 0.0
    }
    return {"reachable_live": len(set(live) - ends), "reachable_terminal": len(ends)}


def _start_by_reset(env: gym.Env[Any, Any], n_states: int, seed: int) -> npt.NDArray[np.float64]:
    """The start distribution of an environment that does not tell it, if it is one state."""
    trial = copied_env(env)
    if trial is None:
        raise ExtractionError(
            f"{env_name(env)} does not tell its start distribution (initial_state_distrib), and "
            "cannot be copied to find out; pass "
            "reading=Reading(start=...)"
        )
    read = state_reader(trial)
    seen = set()
    for k in range(64):
        trial.reset(seed=seed + k)
        seen.add(read())
    if len(seen) > 1:
        raise ExtractionError(
            f"{env_name(env)} starts in several states and does not tell their distribution "
            "(initial_state_distrib); pass reading=Reading(start=...)"
        )
    distribution = np.zeros(n_states)
    distribution[seen.pop()] = 1.0
    return distribution


def _enumerated(
    env: gym.Env[Any, Any], reading: Reading, report: ProgressCallback | None
) -> TabularMDP:
    from bisim_abstract.wrappers.enumerate import enumerate_mdp

    mdp = enumerate_mdp(env, reading=reading, callback=report)
    return named_as_in_minigrid(mdp, env.unwrapped)


def compare_with_steps(
    env: gym.Env[Any, Any],
    mdp: TabularMDP,
    reading: Reading,
    *,
    is_given: bool = False,
) -> bool:
    """Raise if real steps, through all wrappers, contradict the table.

    Only actions that states have are taken. What the others do, the model does not know.

    Args:
        env: The environment; a copy of it is stepped.
        mdp: The model.
        reading: How it was read; with the number of steps.
        is_given: Whether the model is somebody's word, and not this environment's table.

    Returns:
        Whether any step was looked at.
    """
    terminal, seed, checks = reading.terminal, reading.seed, reading.checks
    if checks == 0:
        return False
    trial = copied_env(env)
    if trial is None:
        logger.warning(
            "%s cannot be copied, so its table was not compared with real steps; pass "
            "reading=Reading(checks=0) to silence this",
            env_name(env),
        )
        return False
    read = state_reader(trial, mdp)
    place = {ident: k for k, ident in enumerate(mdp.state_ids.tolist()) if ident >= 0}
    rng = np.random.default_rng(seed)
    check = _outcome_check(trial, mdp, place, terminal, is_given=is_given)
    seeds = StartSeeds(mdp, seed)
    holding = Holding(trial, mdp)
    needs_reset = True
    # Rewards of the model are those with frozen attributes held still, which real steps change. So
    # as many steps again are made with these held; all of them must lead where the model says.
    for k in range(2 * checks if holding.is_needed else checks):
        is_held = not holding.is_needed or k >= checks
        if needs_reset or k == checks:
            _, info = seeds.reset_for_check(trial, k)
            holding.begin(is_first=k == 0)
            before = read()
            if place.get(before) is None or mdp.start[place[before]] <= 0.0:
                raise ExtractionError(
                    f"reset() put {env_name(env)} into {state_text(mdp, before)}, which the start "
                    "distribution excludes; a wrapper may change how episodes start"
                )
        before = read()
        own = np.flatnonzero(mdp.available[place[before]])
        problem = _mask_problem(mdp, place[before], info)
        action = int(own[rng.integers(own.size)])
        if is_held:
            holding.hold()
        _, reward, terminated, truncated, info = trial.step(action)
        problem = problem or check(
            before, action, read(), float(reward) if is_held else None, bool(terminated)
        )
        if problem:
            stack = " > ".join(type(layer).__name__ for layer in layers(env))
            advice = f"A wrapper may change the dynamics ({stack}); extract the model without it"
            raise ExtractionError(
                f"step() of {env_name(env)} contradicts its table at {state_text(mdp, before)}, "
                f"action {action}: {problem}. {holding.advice}{find_memory(env, trial) or advice}"
            )
        needs_reset = bool(terminated or truncated)
    return True


def _mask_problem(mdp: TabularMDP, state: int, info: dict[str, Any]) -> str:
    """What is wrong with the action mask that comes with a state ("" if nothing is)."""
    if not mdp.metadata.get("action_masks") or "action_mask" not in info:
        return ""
    told = np.asarray(info["action_mask"]) != 0
    if np.array_equal(told, mdp.available[state]):
        return ""
    return f"info has the action mask {told.tolist()}, not {mdp.available[state].tolist()}"


def _outcome_check(
    env: gym.Env[Any, Any],
    mdp: TabularMDP,
    place: dict[int, int],
    terminal: str,
    *,
    is_given: bool,
) -> Callable[[int, int, int, float | None, bool], str]:
    """A function that says what is wrong with an observed outcome ("" if nothing is).

    It is given no reward where that may be another than the model's.
    """
    inner: Any = env.unwrapped
    source: Any = find_source(env)
    # A source whose rewards are drawn tells which there can be.
    can_pay: Callable[..., tuple[float, ...]] | None = getattr(source, "can_pay", None)
    is_read = source is None and has_table(env) and not is_given
    table, pay = (inner.P, find_pay(env)) if is_read else (None, None)

    def against_table(
        before: int, action: int, after: int, reward: float | None, done: bool
    ) -> str:
        assert table is not None
        assert reward is not None
        listed = [
            (int(successor), float(r if pay is None else pay(r)), bool(end))
            for prob, successor, r, end in table[before][action]
            if prob > 0.0
        ]
        for successor, r, end in listed:
            if successor == after and end == done and math.isclose(r, reward, abs_tol=1e-12):
                return ""
        return f"it gave (state {after}, reward {reward}, terminated {done}), listed are {listed}"

    def against_model(
        before: int, action: int, after: int, reward: float | None, done: bool
    ) -> str:
        # The model knows expected rewards only: these settle it where they are certain.
        state = place[before]
        is_end = done and terminal == "absorb"
        target = state_met(mdp, place, after, source, is_end=is_end)
        successors, _ = mdp.successors(state, action)
        if target is None or target not in successors:
            led = state_text(mdp, after)
            return f"it led to {led} (terminated {done}), to which the table gives no mass"
        if reward is None:
            return ""
        if can_pay is not None:
            listed = can_pay(before, action, is_end=done)
            is_listed = any(math.isclose(reward, r, abs_tol=1e-12) for r in listed)
            return "" if is_listed else f"it paid {reward}, possible are {listed}"
        if len(successors) == 1 and not math.isclose(
            reward, mdp.rewards[state, action], rel_tol=1e-9, abs_tol=1e-12
        ):
            least, most = drawn_rewards_in(mdp)
            if least <= reward <= most:
                return ""
            return f"it paid {reward}, the table says {mdp.rewards[state, action]}"
        return ""

    return against_model if table is None else against_table
