"""Small torch modules with their own generator, and the samples they are trained on."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bisim_abstract._base.memory import check_memory
from bisim_abstract.encoders.transitions import Transitions

LARGE_TABLE = 200_000  # rows from which on only those in a batch are updated
END_SHARE = 100  # at least one in so many samples stays at the end of an episode


class _Threads:
    """Torch's number of threads as it was before the first of our contexts was entered."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, 0
        os.register_at_fork(
            before=lambda: self.lock.acquire(),
            after_in_parent=lambda: self.lock.release(),
            after_in_child=lambda: self.lock.release(),
        )


_threads = _Threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, the same bits on any machine of a kind; restored afterwards.

    A Python thread that begins inside the context of another one would read 1 as the number to
    restore, so that the number before the first of them counts.
    """
    now = torch.get_num_threads()  # asked first: a new thread would else take it over later
    with _threads.lock:
        if _threads.inside == 0:
            _threads.before = now
        _threads.inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _threads.lock:
            _threads.inside -= 1
            torch.set_num_threads(_threads.before)


@dataclass(frozen=True, eq=False)
class Samples:
    """Transitions as tensors; states are rows of a pool in either kind of observation.

    Attributes:
        now: (n) rows of the states.
        actions: (n) actions.
        rewards: (n) rewards divided by `scale`.
        after: (n) rows of the successors; the end of an episode is one row.
        n_actions: Number of actions.
        scale: Largest difference of two rewards, or 1 if there is none.
        n_rows: Rows of the pool.
        end: The row of the end, or None where no episode ended.
        pool: (n_rows, features) observations, or None where a row is a state.
    """

    now: Tensor
    actions: Tensor
    rewards: Tensor
    after: Tensor
    n_actions: int
    scale: float
    n_rows: int
    end: int | None
    pool: Tensor | None

    @classmethod
    def of(cls, data: Transitions, device: torch.device) -> Samples:
        """The samples, with steps added that stay at the end for ever and pay nothing."""
        n = len(data)
        if data.n_states is not None:
            now, after, n_rows, pool = data.states, data.next_states, data.n_states, None
            stays = max(1, n // n_rows)
        else:
            now, after, n_rows = np.arange(n), np.arange(n, 2 * n), 2 * n
            pool = np.concatenate([data.states, data.next_states])
            stays = 1
        actions, rewards = data.actions, data.rewards
        end: int | None = None
        if data.terminated.any():
            end = data.terminal_state
            if end is None:
                end, n_rows = n_rows, n_rows + 1
                if pool is not None:
                    pool = np.concatenate([pool, np.zeros((1, pool.shape[1]), np.float32)])
            stays = max(stays, n // END_SHARE, data.n_actions)
            after = np.append(np.where(data.terminated, end, after), np.full(stays, end))
            now = np.append(now, np.full(stays, end))
            actions = np.append(actions, np.arange(stays) % data.n_actions)
            rewards = np.append(rewards, np.zeros(stays))
        scale = float(np.ptp(rewards)) or 1.0
        return cls(
            now=torch.as_tensor(now.astype(np.int64), device=device),
            actions=torch.as_tensor(actions.astype(np.int64), device=device),
            rewards=torch.as_tensor((rewards / scale).astype(np.float32), device=device),
            after=torch.as_tensor(after.astype(np.int64), device=device),
            n_actions=data.n_actions,
            scale=scale,
            n_rows=n_rows,
            end=end,
            pool=None if pool is None else torch.as_tensor(pool, device=device),
        )

    def __len__(self) -> int:
        return int(self.now.shape[0])


def _check_room(weights: int, what: str, generator: torch.Generator | None) -> None:
    """Refuse weights that would not fit; in training each has a slope and two moments besides.

    Without a generator nothing is set aside: weights that a file holds take their place.
    """
    if generator is not None:
        check_memory(
            16 * weights,
            what=f"{what} with {weights:,} weights",
            instead="ask for fewer dimensions (dim) or smaller layers (hidden)",
        )


class Table(nn.Module):
    """One learned vector per row: a linear map of one-hot vectors, without the zeros."""

    def __init__(
        self, n_rows: int, size: int, spread: float, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        _check_room(n_rows * size, f"a table of {n_rows:,} states", generator)
        self.weight = nn.Parameter(spread * torch.randn(n_rows, size, generator=generator))

    def forward(self, rows: Tensor) -> Tensor:
        """(..., size) vectors of the rows."""
        is_sparse = self.weight.shape[0] >= LARGE_TABLE
        return functional.embedding(rows, self.weight, sparse=is_sparse)


class Mlp(nn.Module):
    """Linear layers with rectifiers between them."""

    def __init__(self, sizes: Sequence[int], generator: torch.Generator | None) -> None:
        super().__init__()
        count = sum(fan_in * fan_out for fan_in, fan_out in itertools.pairwise(sizes))
        _check_room(count, f"a network of layers {tuple(sizes)}", generator)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(sizes):
            spread = math.sqrt(2.0 / fan_in) if len(self.weights) < len(sizes) - 2 else 0.5
            weight = torch.randn(fan_out, fan_in, generator=generator)
            self.weights.append(nn.Parameter(spread / math.sqrt(2.0) * weight))
            self.biases.append(nn.Parameter(torch.zeros(fan_out)))

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., outputs) of the last layer."""
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            inputs = functional.linear(inputs, weight, bias)
            if layer < last:
                inputs = functional.relu(inputs)
        return inputs


class Observer(nn.Module):
    """A vector for each observation: a table of states, or an MLP of standardised features."""

    def __init__(
        self,
        n_rows: int,
        n_features: int,
        size: int,
        *,
        hidden: Sequence[int],
        spread: float,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.is_table = n_features == 0
        if self.is_table:
            self.table = Table(n_rows, size, spread, generator)
        else:
            self.mlp = Mlp((n_features, *hidden, size), generator)
            self.end = nn.Parameter(spread * torch.randn(size, generator=generator))
            self.register_buffer("centre", torch.zeros(n_features))
            self.register_buffer("width", torch.ones(n_features))

    def standardise(self, pool: Tensor, end: int | None) -> None:
        """Take mean and spread of the features from the observations."""
        seen = (pool if end is None else pool[:end]).double()
        width = seen.std(dim=0, correction=0)
        self.centre = seen.mean(dim=0).float()
        self.width = torch.where(width > 0.0, width, torch.ones_like(width)).float()

    def forward(self, rows: Tensor, samples: Samples) -> Tensor:
        """(..., size) vectors of rows of the pool."""
        if samples.pool is None:
            return self.of_states(rows)
        found = self.of_features(samples.pool[rows])
        if samples.end is None:
            return found
        return torch.where((rows == samples.end)[..., None], self.end, found)

    def of_states(self, states: Tensor) -> Tensor:
        """(..., size) vectors of states."""
        found: Tensor = self.table(states)
        return found

    def of_features(self, features: Tensor) -> Tensor:
        """(..., size) vectors of observations."""
        found: Tensor = self.mlp((features - self.centre) / self.width)
        return found


class Optimiser:
    """Adam with a step size that falls linearly to 0; large tables update only used rows."""

    def __init__(self, net: nn.Module, learning_rate: float, steps: int) -> None:
        plain: list[nn.Parameter] = []
        large: list[nn.Parameter] = []
        for module in net.modules():
            is_large = isinstance(module, Table) and module.weight.shape[0] >= LARGE_TABLE
            trained = [x for x in module.parameters(recurse=False) if x.requires_grad]
            (large if is_large else plain).extend(trained)
        self._parts: list[torch.optim.Optimizer] = []
        if plain:
            self._parts.append(torch.optim.Adam(plain, lr=learning_rate))
        if large:
            self._parts.append(torch.optim.SparseAdam(large, lr=learning_rate))
        self._rate, self._steps, self._done = learning_rate, steps, 0

    def step(self, loss: Tensor) -> None:
        """Follow the gradient of a loss."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        rate = self._rate * min(1.0, 2.0 * (1.0 - self._done / self._steps))
        for part in self._parts:
            part.param_groups[0]["lr"] = rate
            part.step()
        self._done += 1
