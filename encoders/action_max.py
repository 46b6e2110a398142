"""`ActionMaxEncoder`: the metric that compares states action by action, and takes the worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bisim_abstract._base.checks import check_positive
from bisim_abstract.encoders._losses import cautious_squares, lengths, reward_gaps
from bisim_abstract.encoders._nets import Observer, Samples
from bisim_abstract.encoders.base import Encoder, Generator, Learner

__all__ = ["ActionMaxEncoder"]

MOST_SUCCESSORS = 16  # of a state and action, the most frequent ones


class ActionMaxEncoder(Encoder):
    """Euclidean distances of latent points, fitted to the bisimulation metric.

    Two heads tell for a state and all actions what is paid, R(s, a), and where in latent space
    it leads, by the mean m(s, a) and the mean absolute deviation v(s, a) of each coordinate.
    Distances of latent points are regressed on

        max_a |R(s,a) - R(t,a)| + gamma·sqrt(|m(s,a) - m(t,a)|² + |v(s,a) - v(t,a)|²),

    which stands for max_a |R(s,a) - R(t,a)| + gamma·W₁(P(·|s,a), P(·|t,a)) and agrees with it
    where transitions are deterministic and Euclidean space has room. Heads read the state
    itself rather than its latent point, so that an early collapse of points is not final. No
    gradient passes from a loss of distances to the heads, or from the heads to the points.

    Args:
        dim: Number of coordinates.
        gamma: The discount, in [0, 1).
        steps: Number of training steps.
        batch_size: Samples on either side of the pairs of one step.
        learning_rate: Step size of Adam.
        caution: How much more a distance above its target costs than one below it. At 1 the
            errors of neighbouring pairs, of which the maximum picks the largest, can add up
            without bound; large values shrink all distances.
        hidden: Sizes of hidden layers.
        device: Where torch computes.
        seed: Seed of data, initial weights and batches.
    """

    kind = "action_max"

    def __init__(
        self,
        *,
        dim: int = 8,
        gamma: float = 0.9,
        steps: int = 5_000,
        batch_size: int = 128,
        learning_rate: float = 0.01,
        caution: float = 4.0,
        hidden: Sequence[int] = (64, 64),
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(
            dim=dim,
            gamma=gamma,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            hidden=hidden,
            device=device,
            seed=seed,
        )
        self.caution = check_positive("caution", caution)

    @property
    def trained_for(self) -> str:
        """The bisimulation metric."""
        return "bisimulation"

    def _make(self, n_rows: int, n_features: int, n_actions: int, g: Generator) -> Learner:
        return ActionMaxLearner(self, n_rows, n_features, n_actions, g)


@dataclass(frozen=True, eq=False)
class Told:
    """What is known about some states and all actions.

    Attributes:
        reward: (n, actions) expected rewards.
        after: (n, actions, 2·dim) mean and mean absolute deviation of the latent successors.
        is_known: (n, actions) whether the action was ever tried there.
    """

    reward: Tensor
    after: Tensor
    is_known: Tensor


@dataclass(frozen=True, eq=False)
class Counts:
    """Mean rewards and successor frequencies of each state and action, as sampled.

    Attributes:
        reward: (rows, actions) mean rewards.
        begin: (rows, actions) where the successors of a cell begin.
        size: (rows, actions) number of different successors, at most `width`.
        successors: (entries) successors, cell by cell, the most frequent first.
        counts: (entries) how often each was seen.
        width: Successors that are read at most.
    """

    reward: Tensor
    begin: Tensor
    size: Tensor
    successors: Tensor
    counts: Tensor
    width: int

    @classmethod
    def of(cls, samples: Samples) -> Counts:
        """Count the samples."""
        shape = (samples.n_rows, samples.n_actions)
        cells = samples.n_rows * samples.n_actions
        cell = samples.now * samples.n_actions + samples.actions
        total = torch.bincount(cell, minlength=cells)
        paid = torch.bincount(cell, weights=samples.rewards.double(), minlength=cells)
        entry, counts = torch.unique(cell * samples.n_rows + samples.after, return_counts=True)
        place = entry // samples.n_rows
        order = torch.argsort(place * (len(samples) + 1) - counts, stable=True)
        size = torch.bincount(place, minlength=cells)
        width = min(MOST_SUCCESSORS, int(size.max()))
        return cls(
            reward=(paid / total.clamp(min=1)).float().reshape(shape),
            begin=(size.cumsum(0) - size).reshape(shape),
            size=size.clamp(max=width).reshape(shape),
            successors=(entry % samples.n_rows)[order],
            counts=counts[order].float(),
            width=width,
        )

    def told(self, rows: Tensor, phi: Callable[[Tensor], Tensor]) -> Told:
        """Means over the successors of all actions, placed by `phi`."""
        place = torch.arange(self.width, device=rows.device)
        is_used = place < self.size[rows][..., None]
        at = torch.where(is_used, self.begin[rows][..., None] + place, 0)
        weight = self.counts[at] * is_used
        weight = (weight / weight.sum(dim=-1, keepdim=True).clamp(min=1.0))[..., None]
        points = phi(self.successors[at])
        mean = (weight * points).sum(dim=-2)
        deviation = (weight * (points - mean[..., None, :]).abs()).sum(dim=-2)
        after = torch.cat([mean, deviation], dim=-1)
        return Told(self.reward[rows], after, self.size[rows] > 0)


class ActionMaxLearner(Learner):
    """Latent points, and heads for rewards and latent successors of every action."""

    def __init__(
        self,
        spec: ActionMaxEncoder,
        n_rows: int,
        n_features: int,
        n_actions: int,
        g: Generator,
    ) -> None:
        super().__init__()
        self.n_actions, self.dim, self.gamma = n_actions, spec.dim, spec.gamma
        self.caution = spec.caution
        self.farthest = 1.0 / (1.0 - spec.gamma)  # rewards differ by at most 1
        self.phi = Observer(
            n_rows, n_features, spec.dim, hidden=spec.hidden, spread=0.01, generator=g
        )
        # States that can be counted need no heads: means over what followed them are exact.
        self.heads: Observer | None = None
        if n_features:
            size = n_actions * (1 + 2 * spec.dim)
            self.heads = Observer(
                n_rows, n_features, size, hidden=spec.hidden, spread=0.0, generator=g
            )
        self.counts: Counts | None = None
        self.view = torch.randn(n_actions, spec.dim, generator=g) / math.sqrt(spec.dim)

    def prepare(self, samples: Samples) -> None:
        """Count what followed each state, where states can be counted."""
        super().prepare(samples)
        if samples.pool is None:
            self.counts = Counts.of(samples)
            # Points start at their rewards, seen from a random side: from random points, what
            # alike states differ by at first would be magnified by the maximum.
            rewards = self.counts.reward @ self.view
            self.phi.table.weight.data += rewards

    def loss(self, samples: Samples, rows: Tensor, columns: Tensor) -> Tensor:
        """Distance loss over the pairs, and the heads' losses over all samples."""
        n = rows.shape[0]
        both = torch.cat([rows, columns])
        now = samples.now[both]
        z = self.phi(now, samples)
        if self.counts is not None:
            with torch.no_grad():
                told = self.counts.told(now, self.phi.of_states)
            models = torch.zeros((), device=z.device)
        else:
            told = self.told(now, samples)
            models = self.model_loss(samples, both, told)
        gap = self.pairwise(z[:n], z[n:]) - self.target(told, n)
        # Errors of a fit are picked up by the maximum, sweep after sweep: too far costs more.
        return cautious_squares(gap, self.caution).mean() + models

    def told(self, rows: Tensor, samples: Samples) -> Told:
        """What the heads say about all actions."""
        assert self.heads is not None
        out = self.heads(rows, samples).unflatten(-1, (self.n_actions, 1 + 2 * self.dim))
        return Told(out[..., 0], out[..., 1:], torch.ones_like(out[..., 0], dtype=torch.bool))

    def model_loss(self, samples: Samples, both: Tensor, told: Told) -> Tensor:
        """Squared errors of what the heads say about the actions that were taken."""
        at = torch.arange(both.shape[0], device=both.device)
        taken = samples.actions[both]
        with torch.no_grad():
            after = self.phi(samples.after[both], samples)
        mean, deviation = told.after[at, taken].chunk(2, dim=-1)
        error = after - mean
        spread = error.detach().abs() - deviation
        paid = samples.rewards[both] - told.reward[at, taken]
        missed: Tensor = (error.square() + spread.square()).sum(dim=-1).mean()
        return paid.square().mean() + missed

    def target(self, told: Told, n: int) -> Tensor:
        """(n, rest) what the distances of the first n samples to the rest should be."""
        reward, after = told.reward.detach().T, told.after.detach().transpose(0, 1).contiguous()
        gaps = reward_gaps(reward[:, :n], reward[:, n:])
        gaps = gaps + self.gamma * lengths(after[:, :n], after[:, n:])
        known = told.is_known.T
        # An action that was never tried in one of the two states says nothing about the pair.
        is_told = known[:, :n, None] & known[:, None, n:]
        return (gaps * is_told).amax(dim=0).clamp(max=self.farthest)

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """Euclidean distances."""
        return lengths(x, y)
