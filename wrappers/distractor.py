"""`Distractor`: an exogenous background that is seen but does not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from bisim_abstract._base.checks import check_int
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.reading import Reading
from bisim_abstract._base.types import FloatArray
from bisim_abstract._model.checks import ROW_SUM_TOL
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import UNKNOWN, Variable
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.wrappers._source import ends_in_states, find_source, plain_action, state_reader
from bisim_abstract.wrappers.tabular import extract_mdp

# What making the product takes at its peak, in bytes per transition and per state of it.
ENTRY_BYTES, STATE_BYTES = 44, 100


class Distractor(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Multiplies any tabular environment by a Markov chain that the agent cannot influence.

    The background changes at every step, whatever the agent does, and is part of what it
    sees; rewards and transitions of the environment do not depend on it. So the states
    multiply and the bisimulation classes do not: the situation in which learned bisimulation
    embeddings are used in practice.

    A Discrete observation o becomes o * n_background + background; any other becomes the
    pair (o, background). `info` gains "background".

    Args:
        env: The environment.
        n_background: Number of background states.
        support: Successors of each background state, drawn at random; three by default, or
            fewer where there are not so many states. Their probabilities are powers of two in
            random order, so that products with the environment's are exact and equal states
            stay exactly equal.
        seed: Seed of the background chain: part of the model, unlike the seed of `reset`.
        chain: (n_background, n_background) transition probabilities, as nested lists, instead
            of a random chain. Other probabilities than powers of two round; classes are then
            found with `bisimulation_classes(mdp, digits=12)`.

    Example:
        >>> env = Distractor(gym.make("FrozenLake-v1"), n_background=10)
        >>> env.observation_space
        Discrete(160)
        >>> extract_mdp(env).n_states  # the absorbing state is shared
        161
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        n_background: int = 100,
        support: int | None = None,
        seed: int = 0,
        chain: list[list[float]] | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, n_background=n_background, support=support, seed=seed, chain=chain
        )
        gym.Wrapper.__init__(self, env)
        if chain is None:
            self.n_background = check_int("n_background", n_background, low=1)
            if support is None:
                support = min(3, self.n_background)
            support = check_int("support", support, low=1, high=self.n_background)
            check_memory(
                8 * self.n_background**2,
                what=f"the background chain of {self.n_background:,} states",
                instead="ask for a smaller n_background",
            )
            self.chain = _random_chain(self.n_background, support, check_int("seed", seed, low=0))
        else:
            self.chain = _checked_chain(chain)
            self.n_background = self.chain.shape[0]
        self._is_discrete = isinstance(env.observation_space, spaces.Discrete)
        if isinstance(env.observation_space, spaces.Discrete):
            if env.observation_space.start != 0:
                raise InvalidArgumentError(
                    f"observations must be numbered from 0, got {env.observation_space}"
                )
            self.observation_space = spaces.Discrete(
                int(env.observation_space.n) * self.n_background
            )
        else:
            self.observation_space = spaces.Tuple(
                (env.observation_space, spaces.Discrete(self.n_background))
            )
        self.background = 0
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and draw a background, each being equally likely."""
        if seed is not None:
            # A stream of its own: the wrapped environment behaves as it would alone.
            self._rng = np.random.default_rng([seed, 1])
        observation, info = self.env.reset(seed=seed, options=options)
        self.background = int(self._rng.integers(self.n_background))
        return self._seen(observation), {**info, "background": self.background}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; the background moves by itself."""
        observation, reward, terminated, truncated, info = self.env.step(plain_action(action))
        row = self.chain[self.background]
        self.background = int(self._rng.choice(self.n_background, p=row / row.sum()))
        info = {**info, "background": self.background}
        return self._seen(observation), reward, terminated, truncated, info

    @property
    def ends_in_states(self) -> bool:
        """Whether episodes end in states of the model, as those of a `ModelEnv` do."""
        return ends_in_states(find_source(self.env))

    def state_id(self) -> int:
        """The id of the present pair of environment state and background."""
        return _pair_id(state_reader(self.env)(), self.background, self.n_background)

    def to_mdp(self, *, terminal: str = "absorb", action_masks: bool = False) -> TabularMDP:
        """The product model; the absorbing state, if there is one, is shared.

        State (s, b) has index s * n_background + b, and the actions of s.

        Args:
            terminal: As for `extract_mdp`.
            action_masks: Whether to ask the environment which actions its states have.
        """
        from scipy.sparse import csr_array, hstack, kron, vstack

        reading = Reading(terminal=terminal, action_masks=action_masks, checks=0)
        base = extract_mdp(self.env, reading=reading)
        n_actions, size = base.n_actions, self.n_background
        live = base.n_states if base.terminal_state is None else base.n_states - 1
        if base.terminal_state not in (None, live):
            raise InvalidArgumentError("the absorbing state must be the last one")
        rows = base.indptr[live * n_actions]
        count = int(rows) * int(np.count_nonzero(self.chain))
        check_memory(
            ENTRY_BYTES * count + STATE_BYTES * n_actions * live * size,
            what=f"the product of {live:,} states and {size:,} backgrounds, {count:,} transitions,",
            instead="choose a smaller n_background or support, or a smaller environment",
        )
        kernel = csr_array(
            (base.probs[:rows], base.indices[:rows], base.indptr[: live * n_actions + 1]),
            shape=(live * n_actions, base.n_states),
        )
        # Rows come out as (state, action, background) and are put in the order of states.
        product = kron(kernel[:, :live], csr_array(self.chain), format="csr")
        triples = np.arange(live * n_actions * size).reshape(live, n_actions, size)
        order = triples.swapaxes(1, 2).ravel()
        product = product[order]
        rewards = np.repeat(base.rewards[:live], size, axis=0)
        available = np.repeat(base.available[:live], size, axis=0)
        start = np.repeat(base.start[:live] / size, size)
        ids = [_pair_id(i, b, size) for i in base.state_ids[:live].tolist() for b in range(size)]
        absorbing = None
        if base.terminal_state is not None:
            absorbing = live * size
            ends = csr_array(np.repeat(kernel[:, [live]].toarray(), size, axis=0)[order])
            stay = csr_array(
                (np.ones(n_actions), np.full(n_actions, absorbing), np.arange(n_actions + 1)),
                shape=(n_actions, absorbing + 1),
            )
            product = vstack([hstack([product, ends], format="csr"), stay], format="csr")
            rewards = np.vstack([rewards, np.zeros((1, n_actions))])
            available = np.vstack([available, base.available[live:]])
            start, ids = np.append(start, 0.0), [*ids, -1]
        product.sort_indices()
        of_base = np.repeat(np.arange(live), size)
        seen = np.tile(np.arange(size), live)
        if absorbing is not None:
            of_base, seen = np.append(of_base, live), np.append(seen, UNKNOWN)
        names = base.names.take(of_base)
        if names.variables:
            background = Variable(name="background", values=seen)
            names = replace(names, variables=(*names.variables, background))
        metadata: dict[str, Any] = {**base.metadata, "n_background": size}
        if "digits" in metadata:
            metadata["digits"] = [*metadata["digits"], ["background", size]]
        return TabularMDP(
            indptr=product.indptr.astype(np.int64),
            indices=product.indices.astype(np.int64),
            probs=np.asarray(product.data, dtype=np.float64),
            rewards=rewards,
            available=available,
            start=start,
            state_ids=np.array(ids, dtype=np.int64),
            terminal_state=absorbing,
            names=names,
            metadata=metadata,
        )

    def _seen(self, observation: Any) -> Any:
        if self._is_discrete:
            return int(observation) * self.n_background + self.background
        return observation, self.background


def _pair_id(ident: int, background: int, size: int) -> int:
    # Ids of enumerated states use 63 bits; the product is folded back into them.
    return (ident * size + background) % 2**63


def _random_chain(size: int, support: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    chain = np.zeros((size, size))
    weights = 0.5 ** np.minimum(np.arange(1, support + 1), max(support - 1, 0))  # they sum to 1
    for b in range(size):
        chain[b, rng.choice(size, support, replace=False)] = weights
    return chain


def _checked_chain(chain: list[list[float]]) -> FloatArray:
    matrix = np.array(chain, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise InvalidArgumentError(f"chain must be a square matrix, got shape {matrix.shape}")
    bad = np.flatnonzero(
        ~(np.abs(matrix.sum(axis=1) - 1.0) <= ROW_SUM_TOL) | (matrix < 0.0).any(axis=1)
    )
    if bad.size:
        raise InvalidArgumentError(
            f"chain must hold probabilities that sum to 1 by row, got {matrix[bad[0]].tolist()} "
            f"in row {bad[0]}"
        )
    return matrix
