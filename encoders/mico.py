"""`MICoEncoder`: matching under independent couplings (Castro et al., NeurIPS 2021)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bisim_abstract._base.checks import check_choice, check_int, check_positive
from bisim_abstract.encoders._losses import (
    mean_over,
    mico_distances,
    reward_gaps,
    same_actions,
)
from bisim_abstract.encoders._nets import Observer, Samples
from bisim_abstract.encoders.base import PAIRS, Encoder, Generator, Learner

__all__ = ["MICoEncoder"]


class MICoEncoder(Encoder):
    """Norms and angles of latent points, fitted to sampled rewards and sampled successors.

    The learned distance is U(x, y) = (|phi(x)|² + |phi(y)|²)/2 + beta·theta, with theta the
    angle between phi(x) and phi(y). It is regressed by a Huber loss on |r_x - r_y| +
    gamma·U'(x', y'), where x' and y' are sampled successors and U' is that of a target network.
    Its fixed point is not the bisimulation metric: successors are coupled independently, and a
    state has a distance to itself, which grows with how random its future is.

    The paper squares the error, its authors' code has the Huber loss. On purpose not as in that
    code: both x and y are points of the network that learns, as in the paper's formula, where the
    code takes one of them from the target network; all pairs of two batches are compared instead
    of one batch with itself; and the end of an episode is a state of its own.

    Args:
        dim: Number of coordinates.
        gamma: The discount, in [0, 1).
        steps: Number of training steps.
        batch_size: Samples on either side of the pairs of one step.
        learning_rate: Step size of Adam.
        beta: Weight of the angle, in units of the range of rewards; the angle can contribute at
            most pi·beta. By default 1/(pi·(1 - gamma)), enough for any rewards; published
            results use 0.1.
        pairs: "any" compares all transitions, as published; "same_action" those of equal actions
            only. See `DBCEncoder`.
        target_every: Steps between updates of the target network.
        hidden: Sizes of hidden layers.
        device: Where torch computes.
        seed: Seed of data, initial weights and batches.
    """

    kind = "mico"

    def __init__(
        self,
        *,
        dim: int = 8,
        gamma: float = 0.9,
        steps: int = 5_000,
        batch_size: int = 128,
        learning_rate: float = 0.01,
        beta: float | None = None,
        pairs: str = "any",
        target_every: int = 50,
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
        enough = 1.0 / (math.pi * (1.0 - self.gamma))
        self.beta = enough if beta is None else check_positive("beta", beta)
        self.pairs = check_choice("pairs", pairs, PAIRS)
        self.target_every = check_int("target_every", target_every, low=1)

    @property
    def trained_for(self) -> str:
        """MICo's distance; with pairs of equal actions only, the bisimulation metric.

        With these it is a mean over actions that is learned, where the metric has the largest.
        """
        return "mico" if self.pairs == "any" else "bisimulation"

    def _make(self, n_rows: int, n_features: int, n_actions: int, g: Generator) -> Learner:
        return MICoLearner(self, n_rows, n_features, g)

    def _unit(self, scale: float) -> float:
        return math.sqrt(scale)  # squared norms are in the unit of rewards


class MICoLearner(Learner):
    """Latent points and a slower copy of them."""

    def __init__(self, spec: MICoEncoder, n_rows: int, n_features: int, g: Generator) -> None:
        super().__init__()
        self.phi = Observer(
            n_rows, n_features, spec.dim, hidden=spec.hidden, spread=0.5, generator=g
        )
        self.slow = copy.deepcopy(self.phi).requires_grad_(False)
        self.is_matched = spec.pairs == "same_action"
        self.gamma, self.beta, self.target_every = spec.gamma, spec.beta, spec.target_every

    def loss(self, samples: Samples, rows: Tensor, columns: Tensor) -> Tensor:
        """Huber loss over the pairs."""
        n = rows.shape[0]
        both = torch.cat([rows, columns])
        z = self.phi(samples.now[both], samples)
        target = self.target(samples, both, n)
        losses = functional.huber_loss(self.pairwise(z[:n], z[n:]), target, reduction="none")
        is_used = same_actions(samples.actions[both], n) if self.is_matched else None
        return mean_over(losses, is_used)

    def target(self, samples: Samples, both: Tensor, n: int) -> Tensor:
        """(n, rest) what the distances of the first n samples to the rest should be."""
        with torch.no_grad():
            after = self.slow(samples.after[both], samples)
            rewards = samples.rewards[both]
            gaps = reward_gaps(rewards[:n], rewards[n:])
            return gaps + self.gamma * self.pairwise(after[:n], after[n:])

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """U, of which only the angle vanishes for equal points."""
        return mico_distances(x, y, self.beta)

    def after_step(self, step: int) -> None:
        """Move the target network now and then."""
        if (step + 1) % self.target_every == 0:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.phi.parameters(), strict=True):
                    slow.copy_(fast)
