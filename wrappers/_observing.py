"""Which observation an environment shows in which state, found by looking.

A model knows states by numbers of its own, which need not be what the environment shows. Where
observations are these numbers, nothing has to be found. Everywhere else each state is visited: a
copy of the environment, wrappers included, is put back into states that were met, and stepped on
from there, until every state that an episode can reach has been seen. Who knows what its states
look like (`Shown`) is asked instead, and believed as far as real steps bear it out.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from bisim_abstract._base.reading import Reading
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.observations import Layout, Observations, key_of, layout_of
from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract.errors import ExtractionError, InvalidArgumentError
from bisim_abstract.wrappers._snapshot import Codec
from bisim_abstract.wrappers._source import (
    Shown,
    StartSeeds,
    copied_env,
    find_source,
    frozen_in,
    has_table,
    layers,
    state_reader,
    unknown_state,
)
from bisim_abstract.wrappers.tabular import env_name, extract_mdp

STEPS = 256  # real steps in which observations must be the numbers of states
TRIES = 64  # steps from one state by one action, to meet all that it can lead to
RESETS = 1_000  # starts, to meet states that no step leads to
REMEMBERING = {  # wrappers whose observations are of more than the present
    "gymnasium.wrappers.stateful_observation.DelayObservation",
    "gymnasium.wrappers.stateful_observation.FrameStackObservation",
    "gymnasium.wrappers.stateful_observation.MaxAndSkipObservation",
    "gymnasium.wrappers.stateful_observation.NormalizeObservation",
    "gymnasium.wrappers.stateful_observation.TimeAwareObservation",
}
INSTEAD = (
    "use AbstractedEnv(env, certificate, dynamics='ground'), whose observations are the clusters, "
    "or look the state up: lift_policy(abstracted.aggregation, agent)[info['state']] of a "
    "TabularEnv"
)


@dataclass(frozen=True)
class Views:
    """What is seen, and in which kinds of states.

    Attributes:
        layout: How an observation is made up.
        kinds: Of each observation, the kinds of states that it is seen in, with a state of each.
    """

    layout: Layout
    kinds: Mapping[Any, Mapping[int, int]]

    def settled(self, acts: npt.NDArray[Any], labels: IntArray, env: str) -> Observations:
        """The kind of every observation; where there are several, the first of them.

        Args:
            acts: (n_kinds) actions, or (n_kinds, n_actions) probabilities, of who is to act.
            labels: (n_states) cluster of each state.
            env: Name of the environment.

        Raises:
            ExtractionError: If kinds that look the same are to act differently.
        """
        found: dict[Any, int] = {}
        for key, kinds in self.kinds.items():
            kind, *others = kinds
            found[key] = kind
            for other in others:
                if not np.array_equal(acts[kind], acts[other]):
                    raise _cannot_tell(env, labels, kinds[kind], kinds[other])
        return Observations.of(self.layout, found)


def _cannot_tell(env: str, labels: IntArray, one: int, other: int) -> ExtractionError:
    what = "the cluster"
    if labels[one] == labels[other]:
        what = "what actions are called in their cluster"
    return ExtractionError(
        f"observations of {env} do not tell {what}, on which the agent's actions depend: states "
        f"{one} (in cluster {labels[one]}) and {other} (in cluster {labels[other]}) look the same; "
        f"{INSTEAD}, or wrap the environment so that it shows all of its state"
    )


def observe_states(
    env: gym.Env[Any, Any],
    mdp: TabularMDP,
    labels: IntArray,
    *,
    kinds: IntArray | None = None,
    seed: int,
) -> Views:
    """The clusters, or the kinds, of every observation that an episode can show.

    Args:
        env: The environment; it is not touched.
        mdp: Its model.
        labels: (n_states) cluster of each state, the end of episodes among them.
        kinds: (n_states) what observations are to tell instead, where that is more: kinds of
            states within clusters, which call their actions differently.
        seed: Of resets: that of the model, if it is one seed's.

    Raises:
        ExtractionError: If observations could not be found out.
    """
    for layer in layers(env):
        kinds_of_layer = {f"{kind.__module__}.{kind.__name__}" for kind in type(layer).__mro__}
        if kinds_of_layer & REMEMBERING:
            raise ExtractionError(
                f"observations of the wrapper {type(layer).__name__} depend on earlier steps, so "
                f"that a state does not always look the same; {INSTEAD}, or deploy without that "
                "wrapper"
            )
    try:
        layout = layout_of(env.observation_space)
    except InvalidArgumentError as error:
        raise ExtractionError(f"{error}; {INSTEAD}") from error
    trial = copied_env(env)
    if trial is None:
        raise ExtractionError(
            f"{env_name(env)} cannot be copied, so that its observations cannot be looked at "
            f"without changing it; {INSTEAD}"
        )
    kinds = labels if kinds is None else kinds
    source = find_source(trial)
    if isinstance(source, Shown):
        found = _told(trial, source, mdp, layout, kinds, seed)
        if found is not None:
            return Views(layout, found)
    if layout["kind"] == "number" and _shows_ids(trial, mdp, seed):
        return Views(layout, _numbered(trial, mdp, kinds, seed))
    walk = _Walk(trial, mdp, layout, seed)
    walk.run()
    return Views(layout, _by_kind(walk.keys, walk.ends, mdp, kinds))


def observe_numbered(
    env: gym.Env[Any, Any], mdp: TabularMDP, kinds: IntArray, *, has_reader: bool
) -> Views:
    """The kinds of observations that were numbered by themselves, as those of an estimate are.

    Args:
        env: The environment; it is not touched.
        mdp: Its estimated model, whose ids are the numbers.
        kinds: (n_states) what observations are to tell: clusters, or kinds of states in them.
        has_reader: Whether states were numbered by somebody else, in a way that is not known.

    Raises:
        ExtractionError: If they were.
    """
    if has_reader:
        raise ExtractionError(
            f"read_state tells the state of an observation, not what states look like; {INSTEAD}"
        )
    layout, rows = layout_of(env.observation_space), SpaceRows(env.observation_space)
    found: Kinds = {}
    for state, ident in enumerate(mdp.state_ids.tolist()):
        if ident >= 0:
            key = key_of(layout, rows.observation(ident))
            found.setdefault(key, {}).setdefault(int(kinds[state]), state)
    return Views(layout, found)


Kinds = dict[Any, dict[int, int]]  # of observations: kinds of states, with a state of each


def _by_kind(keys: dict[int, Any], ends: Iterable[Any], mdp: TabularMDP, kinds: IntArray) -> Kinds:
    found: Kinds = {}
    for state, key in sorted(keys.items()):
        found.setdefault(key, {}).setdefault(int(kinds[state]), state)
    end = mdp.terminal_state
    if end is not None:  # whoever is asked there need not know better
        for key in ends:
            found.setdefault(key, {int(kinds[end]): end})
    return found


def _told(
    trial: gym.Env[Any, Any],
    source: Shown,
    mdp: TabularMDP,
    layout: Layout,
    kinds: IntArray,
    seed: int,
) -> Kinds | None:
    """What a source says that its states look like; None if a wrapper shows something else."""
    read = state_reader(trial, mdp)
    place = {ident: k for k, ident in enumerate(mdp.state_ids.tolist()) if ident >= 0}

    def is_true(observation: Any) -> bool:
        told = source.observation_of(read())
        return trial.observation_space.contains(told) and (
            key_of(layout, observation) == key_of(layout, told)
        )

    rng = np.random.default_rng(seed)
    is_over = True
    for k in range(STEPS):
        if is_over:
            observation, _ = trial.reset(seed=seed + k)
        if not is_true(observation):
            return None
        state = place[read()]
        own = np.flatnonzero(mdp.available[state])
        observation, _, terminated, truncated, _ = trial.step(int(own[rng.integers(own.size)]))
        is_over = bool(terminated or truncated)
    keys = {state: key_of(layout, source.observation_of(ident)) for ident, state in place.items()}
    ends = [key_of(layout, observation) for observation in source.end_observations()]
    return _by_kind(keys, ends, mdp, kinds)


def _shows_ids(trial: gym.Env[Any, Any], mdp: TabularMDP, seed: int) -> bool:
    """Whether observations are the ids of states, in all of many real steps."""
    if mdp.metadata.get("method") == "enumeration":  # ids are digests there
        return False
    read = state_reader(trial)
    place = {ident: k for k, ident in enumerate(mdp.state_ids.tolist()) if ident >= 0}
    everything = np.ones(mdp.n_actions, bool)
    rng = np.random.default_rng(seed)
    is_over = True
    for k in range(STEPS):
        if is_over:
            observation, _ = trial.reset(seed=seed + k)
            if int(observation) != read():
                return False
        state = place.get(read())
        own = np.flatnonzero(everything if state is None else mdp.available[state])
        observation, _, terminated, truncated, _ = trial.step(int(own[rng.integers(own.size)]))
        if int(observation) != read():
            return False
        is_over = bool(terminated or truncated)
    return True


def _numbered(trial: gym.Env[Any, Any], mdp: TabularMDP, labels: IntArray, seed: int) -> Kinds:
    """Clusters by id, and by those ids that only the end of an episode shows."""
    pairs = zip(mdp.state_ids.tolist(), labels.tolist(), strict=True)
    clusters = {i: {cluster: k} for k, (i, cluster) in enumerate(pairs) if i >= 0}
    space: Any = trial.observation_space
    if mdp.terminal_state is not None and len(clusters) < int(space.n):
        literal = extract_mdp(trial, reading=Reading(terminal="table", seed=seed, checks=0))
        for ident in literal.state_ids[literal.reachable()].tolist():
            clusters.setdefault(ident, {int(labels[mdp.terminal_state]): mdp.terminal_state})
    return clusters


class _Walk:
    """A visit to every state that an episode can reach."""

    def __init__(
        self, trial: gym.Env[Any, Any], mdp: TabularMDP, layout: dict[str, Any], seed: int
    ) -> None:
        source: Any = find_source(trial)
        if isinstance(source, gym.Wrapper):
            raise ExtractionError(
                f"{type(source).__name__} is a wrapper with a state of its own, in which it "
                f"cannot be put back, and its observations are not the numbers of states; {INSTEAD}"
            )
        self.keys: dict[int, Any] = {}
        self.ends: set[Any] = set()
        self._trial, self._mdp, self._layout, self._seed = trial, mdp, layout, seed
        self._seeds = StartSeeds(mdp, seed)
        self._read = state_reader(trial, mdp)
        # Where there is a table, its number is all there is to a state; elsewhere, everything is.
        self._codec: Codec | None = None
        if source is not None or not has_table(trial):
            self._codec = Codec(trial.unwrapped, frozenset(frozen_in(mdp)))
        ids = mdp.state_ids.tolist()
        self._place = {ident: k for k, ident in enumerate(ids) if ident >= 0}
        self._snapshots: dict[int, bytes] = {}  # of states that wait
        self._queue: deque[int] = deque()

    def run(self) -> None:
        wanted = set(self._mdp.reachable().tolist()) - {self._mdp.terminal_state}
        seeds = self._seeds.seeds
        for k in range(RESETS if seeds is None else len(seeds)):
            observation, _ = self._trial.reset(seed=self._seeds.nth(k))
            if self._codec is not None:
                self._codec.hold()
            self._meet(observation, is_end=False)
            while self._queue:
                self._expand(self._queue.popleft())
            if wanted <= self.keys.keys():
                return
        missing = wanted - self.keys.keys()
        raise ExtractionError(
            f"the observations of {counted(len(missing), 'state')} (state {min(missing)}, for "
            f"instance) are not known: trying did not lead there; {INSTEAD}"
        )

    def _expand(self, state: int) -> None:
        packed = self._snapshots.pop(state, None)
        snapshot = b"" if packed is None else zlib.decompress(packed)
        for action in np.flatnonzero(self._mdp.available[state]).tolist():
            successors = set(self._mdp.successors(state, action)[0].tolist())
            successors.discard(self._mdp.terminal_state)
            for _ in range(TRIES):  # chance leads to others
                self._put_back(state, snapshot)
                observation, _, terminated, _, _ = self._trial.step(action)
                self._meet(observation, is_end=bool(terminated))
                if successors <= self.keys.keys():
                    break

    def _put_back(self, state: int, snapshot: bytes) -> None:
        if self._codec is None:
            inner: Any = self._trial.unwrapped
            inner.s = int(self._mdp.state_ids[state])
        else:
            self._codec.restore(snapshot)

    def _meet(self, observation: Any, *, is_end: bool) -> None:
        key = key_of(self._layout, observation)
        if is_end:
            self.ends.add(key)
            return
        ident = self._read()
        state = self._place.get(ident)
        if state is None:
            raise unknown_state(self._mdp, ident)
        if state not in self.keys:
            self.keys[state] = key
            if self._codec is not None:
                self._snapshots[state] = zlib.compress(self._codec.snapshot(), 1)
            self._queue.append(state)
        elif self.keys[state] != key:
            raise ExtractionError(
                f"state {state} does not always look the same: a wrapper may add time, history or "
                f"noise to observations; {INSTEAD}, or deploy without that wrapper"
            )
