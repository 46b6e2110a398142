"""Encoders and their learners: quick settings, small data, batches that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bisim_abstract import TabularMDP
from bisim_abstract.encoders import Encoder, Transitions
from bisim_abstract.encoders._nets import Samples

QUICK: dict[str, Any] = {"dim": 3, "steps": 20, "batch_size": 16, "hidden": (8,)}


def steps_down(n: int = 5) -> TabularMDP:
    """State i pays 1 and moves to i - 1; state 0 is the end."""
    P = np.zeros((n, 1, n))
    P[0, 0, 0] = 1.0
    P[np.arange(1, n), 0, np.arange(n - 1)] = 1.0
    return TabularMDP.from_dense(P, np.minimum(np.arange(n), 1.0), terminal_state=0)


def pushed_points(n: int = 400) -> Transitions:
    """A point on a line that is pushed to and fro, and is paid for where it is."""
    rng = np.random.default_rng(0)
    x, actions = rng.normal(size=(n, 2)).astype(np.float32), rng.integers(2, size=n)
    after = x + (actions[:, None] - 0.5).astype(np.float32)
    return Transitions(
        states=x,
        actions=actions,
        rewards=x[:, 0].astype(np.float64),
        next_states=after,
        terminated=after[:, 0] > 1.5,
        n_actions=2,
    )


def learner_of(encoder: Encoder, data: Transitions) -> tuple[Any, Samples]:
    """An untrained learner, ready for the data, and what these look like to it."""
    samples = Samples.of(data, torch.device("cpu"))
    n_features = 0 if data.is_discrete else data.n_features
    generator = torch.Generator().manual_seed(0)
    learner = encoder._make(samples.n_rows, n_features, data.n_actions, generator)
    learner.prepare(samples)
    return learner, samples


def halves(samples: Samples, n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides of the pairs of one step."""
    drawn = torch.randint(len(samples), (2, n), generator=torch.Generator().manual_seed(1))
    return drawn[0], drawn[1]
