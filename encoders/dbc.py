"""`DBCEncoder`: deep bisimulation for control (Zhang et al., ICLR 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bisim_abstract._base.checks import check_choice
from bisim_abstract.encoders._losses import (
    coordinate_distances,
    gaussian_distances,
    gaussian_surprise,
    lengths,
    mean_over,
    reward_gaps,
    same_actions,
)
from bisim_abstract.encoders._nets import Mlp, Observer, Samples
from bisim_abstract.encoders.base import PAIRS, Encoder, Generator, Learner

__all__ = ["DBCEncoder"]

TRANSPORTS = ("coordinates", "euclidean")
NARROWEST = 1e-3  # least standard deviation of a predicted latent coordinate


class DBCEncoder(Encoder):
    """L1 distances of latent points, fitted to rewards and learned latent dynamics.

    The loss of a pair of transitions is (|z_i - z_j|_1 - |r_i - r_j| - gamma·W)², where W is
    the 2-Wasserstein distance of the Gaussians with diagonal covariance that a dynamics model
    predicts for the next latent points. Only z_i and z_j receive its gradient. The dynamics
    model is fitted to the (detached) latent successors by likelihood, and a reward model to the
    rewards; with `joint` their losses shape the latent points too, as in the authors' code.

    On purpose not as published: all pairs of two batches are compared instead of a batch with
    itself in another order, rewards are predicted from the latent point and the action rather
    than from a sampled successor, and the end of an episode is a state of its own.

    Args:
        dim: Number of coordinates.
        gamma: The discount, in [0, 1).
        steps: Number of training steps.
        batch_size: Samples on either side of the pairs of one step.
        learning_rate: Step size of Adam.
        pairs: "any" compares all transitions, as published: the distance is then that of the
            policy that gathered them, and under a random one alike states are not close, as two
            different actions are compared as often as equal ones. "same_action" compares
            transitions of equal actions only, which proposes far better blocks.
        transport: "euclidean" takes W over Euclidean distances, as in the paper's formula, which
            falls short of L1 distances and shortens the horizon; "coordinates" adds up W of
            the coordinates, which fits L1. (The authors' code compares each coordinate with its
            own W, and adds the whole reward gap to each.)
        joint: Whether the models' losses reach the latent points.
        hidden: Sizes of hidden layers.
        device: Where torch computes.
        seed: Seed of data, initial weights and batches.
    """

    kind = "dbc"

    def __init__(
        self,
        *,
        dim: int = 8,
        gamma: float = 0.9,
        steps: int = 5_000,
        batch_size: int = 128,
        learning_rate: float = 0.01,
        pairs: str = "any",
        transport: str = "euclidean",
        joint: bool = False,
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
        self.pairs = check_choice("pairs", pairs, PAIRS)
        self.transport = check_choice("transport", transport, TRANSPORTS)
        self.joint = bool(joint)

    @property
    def trained_for(self) -> str:
        """The on-policy metric; with pairs of equal actions only, the bisimulation metric.

        With these it is a mean over actions that is learned, where the metric has the largest.
        """
        return "on_policy" if self.pairs == "any" else "bisimulation"

    def _make(self, n_rows: int, n_features: int, n_actions: int, g: Generator) -> Learner:
        return DBCLearner(self, n_rows, n_features, n_actions, g)


class DBCLearner(Learner):
    """Latent points with a Gaussian dynamics model and a reward model."""

    def __init__(
        self, spec: DBCEncoder, n_rows: int, n_features: int, n_actions: int, g: Generator
    ) -> None:
        super().__init__()
        self.phi = Observer(
            n_rows, n_features, spec.dim, hidden=spec.hidden, spread=0.1, generator=g
        )
        self.dynamics = Mlp((spec.dim + n_actions, *spec.hidden, 2 * spec.dim), g)
        self.reward = Mlp((spec.dim + n_actions, *spec.hidden, 1), g)
        self.n_actions, self.gamma = n_actions, spec.gamma
        self.is_split = spec.transport == "coordinates"
        self.is_matched, self.is_joint = spec.pairs == "same_action", spec.joint

    def loss(self, samples: Samples, rows: Tensor, columns: Tensor) -> Tensor:
        """Distance loss over the pairs, and both models' losses over all samples."""
        both = torch.cat([rows, columns])
        z = self.phi(samples.now[both], samples)
        actions, rewards = samples.actions[both], samples.rewards[both]
        latent = z if self.is_joint else z.detach()
        mean, width = self.predicted(latent, actions)
        with torch.no_grad():
            successors = self.phi(samples.after[both], samples)
        models = self.model_loss(latent, actions, rewards, mean, width, successors)
        n = rows.shape[0]
        target = self.target(rewards, mean.detach(), width.detach(), n)
        gap = self.pairwise(z[:n], z[n:]) - target
        is_used = same_actions(actions, n) if self.is_matched else None
        return mean_over(gap.square(), is_used) + models

    def target(self, rewards: Tensor, mean: Tensor, width: Tensor, n: int) -> Tensor:
        """(n, rest) what the distances of the first n samples to the rest should be."""
        transport = coordinate_distances if self.is_split else gaussian_distances
        moved = transport((mean[:n], width[:n]), (mean[n:], width[n:]))
        return reward_gaps(rewards[:n], rewards[n:]) + self.gamma * moved

    def model_loss(
        self,
        latent: Tensor,
        actions: Tensor,
        rewards: Tensor,
        mean: Tensor,
        width: Tensor,
        successors: Tensor,
    ) -> Tensor:
        """Negative log-likelihood of latent successors, and squared error of rewards."""
        surprise = gaussian_surprise(successors, mean, width)
        told = self.reward(self._with_action(latent, actions)).squeeze(-1)
        return surprise.mean() + functional.mse_loss(told, rewards)

    def predicted(self, latent: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the next latent point."""
        mean, width = self.dynamics(self._with_action(latent, actions)).chunk(2, dim=-1)
        return mean, functional.softplus(width) + NARROWEST

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """L1 distances."""
        return lengths(x, y, p=1.0)

    def _with_action(self, latent: Tensor, actions: Tensor) -> Tensor:
        chosen: Any = functional.one_hot(actions, self.n_actions)
        return torch.cat([latent, chosen.to(latent.dtype)], dim=-1)
