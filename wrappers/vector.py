"""Many copies of a model, or of an abstraction, as one vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from bisim_abstract._base.checks import check_int, check_states
from bisim_abstract._base.text import short
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._kernels.steps import steps_kernel
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.wrappers._rows import ModelRows
from bisim_abstract.wrappers._source import plain_action
from bisim_abstract.wrappers.abstracted import AbstractedEnv
from bisim_abstract.wrappers.model_env import checked_model

BLOCK = 512  # random numbers that are drawn ahead for each copy, where these are few
Infos: TypeAlias = dict[str, Any]
Steps: TypeAlias = tuple[IntArray, FloatArray, BoolArray, BoolArray, Infos]


class VectorModelEnv(VectorEnv[IntArray, IntArray, npt.NDArray[Any]]):
    """Copies of a model that are stepped together: `ModelEnv` at millions of steps a second.

    Copies do what single environments do in a `gymnasium.vector.SyncVectorEnv`: with equal seeds
    they are in the same states, and rewards, ends, and the entries of `infos` are the same. Copy i
    has a random stream of its own, that of the seed `seed + i`, or of the i-th seed of a list. The
    streams are drawn ahead in blocks, so that the generators themselves are not to be had.

    What ends is reset as `autoreset_mode` says: at the next step, whose action is then ignored; at
    once, with "final_obs" and "final_info" in `infos`; or not at all, and the copies are to be
    reset by `reset(options={"reset_mask": mask})` before they are stepped on.

    It is what `gymnasium.make_vec("bisim_abstract/Model-v0", num_envs=..., path=...)` makes.

    Args:
        mdp: The model; or else the path of one, as for `ModelEnv`.
        num_envs: Number of copies.
        path: The path of a model's file.
        max_episode_steps: Steps after which episodes are truncated; by default they are not.
        autoreset_mode: What becomes of copies whose episode has ended, as
            `gymnasium.vector.AutoresetMode` or the value of one: "NextStep", "SameStep" or
            "Disabled".
        render_mode: None: vector environments are not drawn.

    Attributes:
        mdp: The model.

    Raises:
        InvalidArgumentError: If the model cannot be an environment, as for `ModelEnv`.

    Example:
        >>> chain = np.array([[[0.0, 1.0]], [[0.0, 1.0]]])
        >>> envs = VectorModelEnv(TabularMDP.from_dense(chain, [[1.0], [0.0]]), num_envs=3)
        >>> observations, infos = envs.reset(seed=0, options={"state": 0})
        >>> observations, rewards, terminated, truncated, infos = envs.step([0, 0, 0])
        >>> observations, rewards, terminated
        (array([1, 1, 1]), array([1., 1., 1.]), array([ True,  True,  True]))
    """

    metadata: dict[str, Any]

    def __init__(
        self,
        mdp: TabularMDP | None = None,
        num_envs: int = 1,
        *,
        path: str | Path | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: None = None,
    ) -> None:
        if render_mode is not None:
            raise InvalidArgumentError(
                f"vector environments are not drawn, got render_mode={render_mode!r}; make one of "
                "single environments, with vectorization_mode='sync'"
            )
        if max_episode_steps is not None:
            max_episode_steps = check_int("max_episode_steps", max_episode_steps, low=1)
        mdp = checked_model(mdp, path)
        self._begin(ModelRows(mdp), mdp.absorbing, max_episode_steps, num_envs, autoreset_mode)

    def _begin(
        self,
        rows: ModelRows,
        is_end: BoolArray,
        limit: int | None,
        num_envs: int,
        autoreset_mode: AutoresetMode | str,
    ) -> None:
        self.mdp, self._rows, self._is_end, self._limit = rows.mdp, rows, is_end, limit
        self.num_envs = check_int("num_envs", num_envs, low=1)
        self._mode = _checked_mode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self._mode}
        self.single_observation_space = spaces.Discrete(self.mdp.n_states)
        self.single_action_space = spaces.Discrete(self.mdp.n_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._rewards = self.mdp.rewards.ravel()
        self._masks = self.mdp.available.astype(np.int8)
        self._names = np.full(self.mdp.n_states, None, object)  # of states that were met
        self._is_named = np.zeros(self.mdp.n_states, bool)
        self._streams = _Streams(self.num_envs)
        self._states = np.full(self.num_envs, -1)  # none before the first reset
        self._steps = np.zeros(self.num_envs, np.int64)
        self._is_over = np.zeros(self.num_envs, bool)
        self._is_any_over = False

    # -- acting ----------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[IntArray, Infos]:
        """Start an episode in every copy.

        Args:
            seed: Of the first copy, the next ones having the numbers that follow; or one seed, or
                None, for each copy.
            options: {"state": s} to start in state s; {"reset_mask": mask} to reset only the
                copies where the mask (num_envs) is true.
        """
        options = options or {}
        where = self._copies(options.get("reset_mask"))
        seeds = self._seeds(seed)
        for i in where.tolist():
            self._streams.seed(i, seeds[i])
        self._restart(where, options)
        self._is_over[where] = False
        self._is_any_over = bool(self._is_over.any())
        return self._states.copy(), self._infos(None if where.size == self.num_envs else where)

    def step(self, actions: npt.ArrayLike) -> Steps:
        """Take an action in every copy."""
        taken = self._checked_actions(actions)
        is_next = self._mode is AutoresetMode.NEXT_STEP
        rows, streams, begins = self._rows, self._streams, self._is_over
        if self._is_any_over and not is_next:
            raise ResetNeeded(
                f"the episode of copy {begins.argmax()} has ended, and autoreset is disabled: call "
                'reset(options={"reset_mask": terminated | truncated}) before step()'
            )
        streams.reserve()
        paid = np.empty(self.num_envs)
        steps_kernel(
            self._states,
            taken,
            begins,
            streams.numbers,
            streams.cursors,
            self.mdp.indptr,
            self.mdp.indices,
            rows.sums,
            self._rewards,
            rows.start_sums,
            paid,
        )
        self._steps += 1
        terminated = self._is_end.take(self._states)
        if self._is_any_over:
            self._steps[begins] = 0
            terminated[begins] = False
        truncated = np.zeros(self.num_envs, bool)
        if self._limit is not None:
            truncated = self._steps >= self._limit
        is_over = terminated | truncated
        self._is_any_over = bool(is_over.any())
        infos: Infos = {}
        if self._mode is AutoresetMode.SAME_STEP:
            if self._is_any_over:
                infos = self._finish(np.flatnonzero(is_over))
        else:
            self._is_over = is_over
        infos |= self._infos(None)
        return self._states.copy(), paid, terminated, truncated, infos

    def action_masks(self) -> BoolArray:
        """(num_envs, n_actions) which actions the present states have."""
        self._check_begun()
        return np.asarray(self.mdp.available[self._states])

    def _finish(self, where: IntArray) -> Infos:
        """Reset copies whose episode has ended, and say how it did."""
        final = np.full(self.num_envs, None, object)
        final[where] = list(self._states[where])  # numbers of NumPy, as single environments have
        is_final = np.zeros(self.num_envs, bool)
        is_final[where] = True
        told = self._infos(where)
        self._restart(where, {})
        self._is_any_over = False
        return {
            "final_obs": final,
            "_final_obs": is_final,
            "final_info": told,
            "_final_info": is_final.copy(),
        }

    def _restart(self, where: IntArray, options: dict[str, Any]) -> None:
        """Begin an episode in some copies."""
        state = options.get("state")
        if state is None:
            sums = self._rows.start_sums
            drawn = self._streams.draw(where) * sums[-1]
            self._states[where] = np.searchsorted(sums, drawn, side="right")
        else:
            self._states[where] = check_int(
                'options["state"]', plain_action(state), low=0, high=self.mdp.n_states - 1
            )
        self._steps[where] = 0

    # -- what is told ----------------------------------------------------------------------

    def _infos(self, where: IntArray | None) -> Infos:
        """What there is to say of some copies, or of all, with masks of the copies meant."""
        infos: Infos = {}
        if where is None:
            for name, values in self._told(self._states).items():
                infos[name], infos[f"_{name}"] = values, np.ones(self.num_envs, bool)
            return infos
        is_meant = np.zeros(self.num_envs, bool)
        is_meant[where] = True
        for name, values in self._told(self._states[where]).items():
            empty = None if values.dtype == object else 0
            infos[name] = np.full((self.num_envs, *values.shape[1:]), empty, values.dtype)
            infos[name][where] = values
            infos[f"_{name}"] = is_meant.copy()
        return infos

    def _told(self, states: IntArray) -> dict[str, npt.NDArray[Any]]:
        if not self._is_named.take(states).all():
            for state in set(states[~self._is_named[states]].tolist()):
                self._names[state] = self.mdp.state_name(state)
                self._is_named[state] = True
        masks = self._masks.take(states, axis=0)
        return {"action_mask": masks, "state_name": self._names.take(states)}

    # -- arguments -------------------------------------------------------------------------

    def _checked_actions(self, actions: npt.ArrayLike) -> IntArray:
        self._check_begun()
        taken = np.asarray(actions)
        n_actions = self.mdp.n_actions
        if taken.shape != (self.num_envs,) or taken.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"actions must be {self.num_envs} whole numbers, one for each copy, got "
                f"{taken.dtype} of shape {taken.shape}"
            )
        taken = np.ascontiguousarray(taken, np.int64)
        if taken.view(np.uint64).max() >= n_actions:  # which negative ones are, too
            check_states("actions", taken, n_actions)
        return taken

    def _check_begun(self) -> None:
        if self._states[0] < 0:
            raise ResetNeeded("call reset() before step()")

    def _copies(self, mask: object) -> IntArray:
        """The copies that are to be reset."""
        if mask is None:
            return np.arange(self.num_envs)
        self._check_begun()
        chosen = np.asarray(mask)
        if chosen.shape != (self.num_envs,) or chosen.dtype != np.bool_ or not chosen.any():
            raise InvalidArgumentError(
                f'options["reset_mask"] must be {self.num_envs} truth values, one for each copy '
                f"and one of them true, got {short(mask)}"
            )
        return np.flatnonzero(chosen)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        count = self.num_envs
        if seed is None:
            return [None] * count
        if isinstance(seed, int | np.integer):
            first = check_int("seed", int(seed), low=0)
            return list(range(first, first + count))
        if len(seed) != count:
            raise InvalidArgumentError(
                f"seeds must be {count}, one for each copy, got {len(seed)}; one number seeds all"
            )
        return [None if each is None else check_int("seed", each, low=0) for each in seed]

    # -- generators ------------------------------------------------------------------------

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seed of each copy."""
        return tuple(self._streams.seeds)

    @property
    def np_random(self) -> np.random.Generator:
        """Not to be had: the numbers of all copies are drawn ahead."""
        raise InvalidArgumentError(
            f"copies of {type(self).__name__} draw from streams of their own, which are drawn "
            "ahead; seed them by reset(seed=...)"
        )

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        _ = self.np_random


class AbstractedVectorEnv(VectorModelEnv):
    """Copies of an abstraction that are stepped together, on aggregated steps.

    As many `AbstractedEnv` in a `gymnasium.vector.SyncVectorEnv` would do the same, a hundred
    times slower; see `VectorModelEnv`. There is no other way to make one than from an
    `AbstractedEnv`, whose certificate has been verified: what is proven of agents there holds of
    agents that learn here, and `abstracted.deploy` and `abstracted.evaluate` take them.

    `infos` have "cluster" and "scope", and "action_mask" where clusters lack actions. Time
    limits are those of the abstraction. The environment itself is neither stepped nor reset, and
    "reset_mask" is the only option of `reset`.

    Args:
        abstracted: The abstraction. Steps of the environment itself (dynamics="ground") are no
            steps of a model: put such ones into a `gymnasium.vector.SyncVectorEnv`.
        num_envs: Number of copies.
        autoreset_mode: What becomes of copies whose episode has ended; see `VectorModelEnv`.

    Attributes:
        abstracted: The abstraction.
        mdp: The aggregated model.

    Example:
        >>> from bisim_abstract import abstract_env
        >>> small = abstract_env("CliffWalking-v1", gamma=0.9)
        >>> envs = AbstractedVectorEnv(small, num_envs=4)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations.shape, infos["scope"][0]
        ((4,), 'all')
    """

    def __init__(
        self,
        abstracted: AbstractedEnv,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        # A class derived from it could have skipped the proof.
        if type(abstracted) is not AbstractedEnv:
            raise InvalidArgumentError(
                "abstracted must be an AbstractedEnv, whose certificate was verified when it was "
                f"made, got {type(abstracted).__name__}; make one with abstract_env, or "
                "with AbstractedEnv(env, certificate)"
            )
        if abstracted.dynamics == "ground":
            raise InvalidArgumentError(
                "abstracted steps the environment itself (dynamics='ground'), which cannot be done "
                "for many copies at once; put such environments into a "
                "gymnasium.vector.SyncVectorEnv, or make it with dynamics='aggregated'"
            )
        self.abstracted = abstracted
        self._begin(
            abstracted._rows, abstracted._is_end, abstracted._limit, num_envs, autoreset_mode
        )
        self._constants = {
            name: np.full(self.num_envs, text, object)
            for name, text in abstracted._constants.items()
        }

    def _restart(self, where: IntArray, options: dict[str, Any]) -> None:
        super()._restart(where, {})  # options are those of the environment, which is not reset

    def _told(self, states: IntArray) -> dict[str, npt.NDArray[Any]]:
        told: dict[str, npt.NDArray[Any]] = {"cluster": states.copy()}
        for name, texts in self._constants.items():
            told[name] = texts[: states.size].copy()
        if self.mdp.has_action_sets:
            told["action_mask"] = self._masks.take(states, axis=0)
        return told


class _Streams:
    """A stream of uniform numbers for each copy, as its own generator would give them.

    Args:
        count: Number of copies.

    Attributes:
        numbers: The numbers that are drawn ahead, one block after another.
        cursors: (count) where the next number of each copy is.
        seeds: The seed of each copy.
    """

    def __init__(self, count: int) -> None:
        self.seeds: list[int | None] = [None] * count
        self._block = max(min(BLOCK, 2**22 // count), 8)
        self.numbers = np.empty(count * self._block)
        self._ends = np.arange(1, count + 1) * self._block
        self.cursors = self._ends.copy()
        self._rngs: list[np.random.Generator | None] = [None] * count
        self._left = 0  # numbers that every copy has, at least

    def seed(self, copy: int, seed: int | None) -> None:
        """Begin a stream; without a seed that goes on, or begins anyhow."""
        if seed is None and self._rngs[copy] is not None:
            return
        self._rngs[copy], self.seeds[copy] = seeding.np_random(seed)
        self.cursors[copy] = self._ends[copy]
        self._left = 0

    def reserve(self) -> None:
        """Make sure that every copy has a number, of which one is about to be taken."""
        if self._left == 0:
            for end, cursor, rng in zip(
                self._ends.tolist(), self.cursors.tolist(), self._rngs, strict=True
            ):
                begin, rest = end - self._block, end - cursor
                self.numbers[begin : begin + rest] = self.numbers[cursor:end]
                assert rng is not None
                rng.random(out=self.numbers[begin + rest : end])
            self.cursors = self._ends - self._block
            self._left = self._block
        self._left -= 1

    def draw(self, where: IntArray) -> FloatArray:
        """The next number of some copies."""
        self.reserve()
        found = self.numbers[self.cursors[where]]
        self.cursors[where] += 1
        return found


def _checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        values = ", ".join(repr(each.value) for each in AutoresetMode)
        raise InvalidArgumentError(
            f"autoreset_mode must be one of gymnasium.vector.AutoresetMode, or of {values}; got "
            f"{mode!r}"
        ) from None
