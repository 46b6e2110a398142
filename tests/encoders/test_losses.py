"""Losses of encoders against the formulas of their papers, written out pair by pair.

Values are compared in float64 loops over pairs. Slopes are those of the same formula with every
target put in as a plain number, so that a gradient through a target, or a missing one, shows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bisim_abstract import TabularMDP
from bisim_abstract._base.types import FloatArray
from bisim_abstract.encoders import (
    ActionMaxEncoder,
    DBCEncoder,
    Encoder,
    MICoEncoder,
    Transitions,
    sample_transitions,
)
from bisim_abstract.encoders._losses import mean_over
from bisim_abstract.encoders._nets import Mlp, Optimiser, Samples
from bisim_abstract.encoders.action_max import MOST_SUCCESSORS, Counts, Told
from bisim_abstract.parts import random_mdp
from tests.support.learners import QUICK, halves, learner_of, pushed_points

N = 16  # samples on either side of the pairs


def numbers(values: Tensor) -> FloatArray:
    return np.asarray(values.detach().double().numpy())


def network(net: Mlp, inputs: FloatArray) -> FloatArray:
    """What a network says, layer by layer."""
    layers = list(zip(net.weights, net.biases, strict=True))
    for k, (weight, bias) in enumerate(layers):
        inputs = inputs @ numbers(weight).T + numbers(bias)
        if k < len(layers) - 1:
            inputs = np.maximum(inputs, 0.0)
    return inputs


def used_pairs(actions: Tensor, pairs: str) -> list[tuple[int, int]]:
    every = [(i, j) for i in range(N) for j in range(N)]
    return [(i, j) for i, j in every if pairs == "any" or actions[i] == actions[N + j]]


# -- DBC, equations 4 to 6 of Zhang et al. 2021 --------------------------------------------------


class Batch:
    """One batch of a DBC learner, and everything its loss is made of, by formula."""

    def __init__(self, **options: Any) -> None:
        self.spec = DBCEncoder(gamma=0.6, **options, **QUICK)
        data = sample_transitions(random_mdp(6, 2, seed=0), 200)
        self.learner, self.samples = learner_of(self.spec, data)
        with torch.no_grad():  # far apart, so that no part of the loss is negligible
            self.learner.phi.table.weight.mul_(8.0)
        self.rows, self.columns = halves(self.samples)
        self.both = torch.cat([self.rows, self.columns])
        self.actions = self.samples.actions[self.both]
        self.rewards = numbers(self.samples.rewards[self.both])
        table = numbers(self.learner.phi.table.weight)
        self.z = table[self.samples.now[self.both].numpy()]
        self.after = table[self.samples.after[self.both].numpy()]
        chosen = np.concatenate([self.z, np.eye(2)[self.actions.numpy()]], axis=1)
        out = network(self.learner.dynamics, chosen)
        self.mean, self.width = out[:, :3], np.log1p(np.exp(out[:, 3:])) + 1e-3
        self.told = network(self.learner.reward, chosen)[:, 0]

    def transport(self, i: int, j: int) -> float:
        """2-Wasserstein of two Gaussians with diagonal covariances, or its sum of coordinates."""
        squares = (self.mean[i] - self.mean[j]) ** 2 + (self.width[i] - self.width[j]) ** 2
        if self.spec.transport == "coordinates":
            return float(np.sqrt(squares).sum())
        return math.sqrt(squares.sum())

    def target(self, i: int, j: int) -> float:
        return float(abs(self.rewards[i] - self.rewards[j]) + 0.6 * self.transport(i, j))

    def model_loss(self) -> float:
        """-log N(z'; mean, width²) per coordinate but for its constant, and squared errors."""
        likelihood = (self.after - self.mean) ** 2 / (2.0 * self.width**2) + np.log(self.width)
        return float(likelihood.mean() + ((self.told - self.rewards) ** 2).mean())

    def distance_loss(self) -> float:
        pairs = used_pairs(self.actions, self.spec.pairs)
        gaps = [np.abs(self.z[i] - self.z[N + j]).sum() - self.target(i, N + j) for i, j in pairs]
        return float(np.mean(np.square(gaps)))

    def loss(self) -> Tensor:
        found: Tensor = self.learner.loss(self.samples, self.rows, self.columns)
        return found


@pytest.mark.parametrize("transport", ["euclidean", "coordinates"])
@pytest.mark.parametrize("pairs", ["any", "same_action"])
def test_dbc_loss_is_that_of_the_paper(transport: str, pairs: str) -> None:
    batch = Batch(transport=transport, pairs=pairs)
    assert batch.distance_loss() > 0.1
    assert batch.model_loss() > 0.1
    expected = batch.distance_loss() + batch.model_loss()
    assert float(batch.loss().detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("transport", ["euclidean", "coordinates"])
def test_dbc_targets_are_constants(transport: str) -> None:
    """Only the two latent points of a pair move: by 2·gap·sign(z_i - z_j), and nothing else."""
    batch = Batch(transport=transport, pairs="same_action")
    torch.autograd.backward(batch.loss())
    slopes = np.zeros((6, 3))
    pairs = used_pairs(batch.actions, "same_action")
    states = batch.samples.now[batch.both].tolist()
    for i, j in pairs:
        away = batch.z[i] - batch.z[N + j]
        gap = np.abs(away).sum() - batch.target(i, N + j)
        slopes[states[i]] += 2.0 * gap * np.sign(away) / len(pairs)
        slopes[states[N + j]] -= 2.0 * gap * np.sign(away) / len(pairs)
    found = numbers(batch.learner.phi.table.weight.grad)
    np.testing.assert_allclose(found, slopes, rtol=1e-4, atol=1e-6)


def test_dbc_models_are_fitted_by_their_own_losses_alone() -> None:
    """Slopes of the last layers' biases, by hand: of the likelihood, and of squared errors."""
    batch = Batch()
    torch.autograd.backward(batch.loss())
    error = (batch.mean - batch.after) / batch.width**2 / (2 * N * 3)
    wide = (1.0 / batch.width - (batch.mean - batch.after) ** 2 / batch.width**3) / (2 * N * 3)
    raw = np.log(np.expm1(batch.width - 1e-3))  # through the softplus
    wide = wide / (1.0 + np.exp(-raw))
    expected = np.concatenate([error.sum(axis=0), wide.sum(axis=0)])
    found = numbers(batch.learner.dynamics.biases[-1].grad)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    paid = 2.0 * (batch.told - batch.rewards).mean()
    assert float(batch.learner.reward.biases[-1].grad) == pytest.approx(paid, rel=1e-4)


def test_dbc_successors_are_constants_even_if_joint() -> None:
    """A state that is only ever reached receives nothing from the likelihood of reaching it."""
    data = Transitions(
        states=np.array([0, 1, 0, 1]),
        actions=np.zeros(4, np.int64),
        rewards=np.array([0.0, 1.0, 0.0, 1.0]),
        next_states=np.array([2, 2, 2, 2]),
        terminated=np.zeros(4, bool),
        n_actions=1,
        n_states=3,
    )
    learner, samples = learner_of(DBCEncoder(joint=True, **QUICK), data)
    torch.autograd.backward(learner.loss(samples, torch.tensor([0, 1]), torch.tensor([2, 3])))
    slopes = learner.phi.table.weight.grad
    assert float(slopes[:2].abs().min()) > 0.0
    assert float(slopes[2].abs().max()) == 0.0


# -- MICo, equations 2 and 3 of Castro et al. 2021 -----------------------------------------------


def mico_distance(x: FloatArray, y: FloatArray, beta: float) -> float:
    """U = (|x|² + |y|²)/2 + beta·theta."""
    cosine = float(x @ y / math.sqrt((x @ x) * (y @ y)))
    return float((x @ x + y @ y) / 2.0 + beta * math.acos(min(1.0, max(-1.0, cosine))))


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) < 1.0 else abs(error) - 0.5


@pytest.mark.parametrize("pairs", ["any", "same_action"])
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_mico_loss_is_that_of_the_paper(pairs: str, beta: float) -> None:
    spec = MICoEncoder(gamma=0.7, beta=beta, pairs=pairs, **QUICK)
    learner, samples = learner_of(spec, sample_transitions(random_mdp(6, 2, seed=0), 200))
    with torch.no_grad():
        learner.phi.table.weight.mul_(2.0)
        learner.slow.table.weight.mul_(-1.5)  # the target is that of the slow copy
    rows, columns = halves(samples)
    both = torch.cat([rows, columns])
    fast = numbers(learner.phi.table.weight)[samples.now[both].numpy()]
    slow = numbers(learner.slow.table.weight)[samples.after[both].numpy()]
    rewards = numbers(samples.rewards[both])
    errors = []
    for i, j in used_pairs(samples.actions[both], pairs):
        target = abs(rewards[i] - rewards[N + j]) + 0.7 * mico_distance(slow[i], slow[N + j], beta)
        errors.append(mico_distance(fast[i], fast[N + j], beta) - target)
    assert min(map(abs, errors)) < 1.0 < max(map(abs, errors))  # both parts of the loss
    found = float(learner.loss(samples, rows, columns).detach())
    assert found == pytest.approx(float(np.mean([huber(e) for e in errors])), rel=1e-4)


def test_mico_targets_are_constants() -> None:
    """Slopes of the loss in the fast points alone, though both copies are the same at first."""
    learner, samples = learner_of(
        MICoEncoder(gamma=0.7, beta=0.5, **QUICK),
        sample_transitions(random_mdp(6, 2, seed=0), 200),
    )
    now = samples.now
    rows, columns = (torch.nonzero(part).ravel()[:N] for part in (now < 3, now >= 3))
    both = torch.cat([rows, columns])
    torch.autograd.backward(learner.loss(samples, rows, columns))
    points = learner.phi.table.weight.detach().double().requires_grad_()
    start = numbers(learner.slow.table.weight)
    after, rewards = samples.after[both].tolist(), numbers(samples.rewards[both])
    states = samples.now[both].tolist()
    losses = []
    for i in range(N):
        for j in range(N):
            x, y = points[states[i]], points[states[N + j]]
            cosine = (x * y).sum() / (x.norm() * y.norm())
            distance = (x.square().sum() + y.square().sum()) / 2.0 + 0.5 * cosine.acos()
            gap = abs(rewards[i] - rewards[N + j])
            error = distance - (
                gap + 0.7 * mico_distance(start[after[i]], start[after[N + j]], 0.5)
            )
            losses.append(0.5 * error**2 if abs(float(error.detach())) < 1.0 else abs(error) - 0.5)
    torch.autograd.backward(torch.stack(losses).mean())
    assert points.grad is not None
    np.testing.assert_allclose(
        numbers(learner.phi.table.weight.grad), numbers(points.grad), rtol=1e-3, atol=1e-5
    )


def test_mico_angles_reach_as_far_as_any_distance() -> None:
    """beta·pi = 1/(1 - gamma), the largest possible distance, where no beta is given."""
    assert math.pi * MICoEncoder(gamma=0.75).beta == pytest.approx(4.0)
    assert math.pi * MICoEncoder(gamma=0.0).beta == pytest.approx(1.0)
    assert MICoEncoder(gamma=0.75, beta=0.1).beta == 0.1


# -- the action that tells states apart most -----------------------------------------------------


@pytest.mark.parametrize("caution", [1.0, 4.0])
def test_action_max_loss_weighs_what_is_too_far(caution: float) -> None:
    learner, samples = learner_of(
        ActionMaxEncoder(gamma=0.5, caution=caution, **QUICK),
        sample_transitions(random_mdp(6, 2, seed=0), 400),
    )
    rng = np.random.default_rng(0)
    points = rng.normal(size=(6, 3))
    with torch.no_grad():
        learner.phi.table.weight.copy_(torch.as_tensor(points))
    rows, columns = halves(samples)
    told = learner.counts.told(torch.arange(6).repeat(2), learner.phi.of_states)
    target = numbers(learner.target(told, 6))  # by hand in its own test
    gaps = [
        np.linalg.norm(points[i] - points[j]) - target[i, j]
        for i in samples.now[rows].tolist()
        for j in samples.now[columns].tolist()
    ]
    assert min(gaps) < -0.1
    assert max(gaps) > 0.1
    expected = np.mean([(caution if gap > 0.0 else 1.0) * gap**2 for gap in gaps])
    loss = learner.loss(samples, rows, columns)
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-4)


def test_action_max_targets_are_constants() -> None:
    """A state that is never left, but reached, receives nothing: targets are numbers."""
    data = Transitions(
        states=np.array([0, 1]),
        actions=np.zeros(2, np.int64),
        rewards=np.array([0.0, 1.0]),
        next_states=np.array([2, 3]),
        terminated=np.zeros(2, bool),
        n_actions=1,
        n_states=4,
    )
    learner, samples = learner_of(ActionMaxEncoder(**QUICK), data)
    torch.autograd.backward(learner.loss(samples, torch.tensor([0]), torch.tensor([1])))
    slopes = learner.phi.table.weight.grad
    assert float(slopes[:2].abs().max()) > 0.0
    assert float(slopes[2:].abs().max()) == 0.0


def test_action_max_heads_are_fitted_by_squared_errors() -> None:
    """Rewards, mean successors, and the distance from that mean, which is a constant there."""
    learner, samples = learner_of(ActionMaxEncoder(**QUICK), pushed_points())
    rows, _ = halves(samples)
    out = torch.randn(N, 2, 7, generator=torch.Generator().manual_seed(3), requires_grad=True)
    told = Told(out[..., 0], out[..., 1:], torch.ones(N, 2, dtype=torch.bool))
    loss = learner.model_loss(samples, rows, told)
    after = numbers(learner.phi(samples.after[rows], samples))
    said, taken = numbers(out), samples.actions[rows].tolist()
    paid = numbers(samples.rewards[rows])
    expected, slopes = 0.0, np.zeros_like(said)
    for k, a in enumerate(taken):
        reward, mean, deviation = said[k, a, 0], said[k, a, 1:4], said[k, a, 4:]
        off = np.abs(after[k] - mean)
        missed = ((after[k] - mean) ** 2).sum() + ((off - deviation) ** 2).sum()
        expected += ((paid[k] - reward) ** 2 + missed) / N
        slopes[k, a] = 2.0 * np.r_[reward - paid[k], mean - after[k], deviation - off] / N
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    torch.autograd.backward(loss)
    assert out.grad is not None
    np.testing.assert_allclose(numbers(out.grad), slopes, rtol=1e-4, atol=1e-6)


def test_action_max_heads_loss_is_part_of_the_loss() -> None:
    learner, samples = learner_of(ActionMaxEncoder(gamma=0.5, **QUICK), pushed_points())
    rows, columns = halves(samples)
    both = torch.cat([rows, columns])
    told = learner.told(samples.now[both], samples)
    z = numbers(learner.phi(samples.now[both], samples))
    away = np.linalg.norm(z[:N, None] - z[None, N:], axis=2)
    gap = away - numbers(learner.target(told, N))
    distances = (np.where(gap > 0.0, 4.0, 1.0) * gap**2).mean()
    models = float(learner.model_loss(samples, both, told).detach())
    assert models > 0.1
    found = float(learner.loss(samples, rows, columns).detach())
    assert found == pytest.approx(float(distances) + models, rel=1e-4)


def test_action_max_looks_at_actions_that_both_states_tried_and_no_farther_than_all() -> None:
    gamma = 0.5
    learner, _ = learner_of(
        ActionMaxEncoder(gamma=gamma, **QUICK), sample_transitions(random_mdp(6, 2, seed=0), 400)
    )
    reward = torch.tensor([[0.0, 9.0], [1.0, 0.0], [0.25, 0.0]])
    after = torch.zeros(3, 2, 6)
    after[2, 0, 0] = 100.0
    is_known = torch.tensor([[True, False], [True, True], [True, True]])
    told = Told(reward, after, is_known)
    # 0 and 1 by the first action alone; 0 and 2 are cut off at 1/(1 - gamma).
    assert numbers(learner.target(told, 1)).tolist() == [[1.0, 1.0 / (1.0 - gamma)]]


def test_the_most_frequent_successors_are_kept() -> None:
    n = MOST_SUCCESSORS + 4
    times = np.arange(1, n + 1)[::-1].copy()
    times[[0, 5]] = times[[5, 0]]
    after = np.repeat(np.arange(n), times)
    data = Transitions(
        states=np.zeros(after.size, np.int64),
        actions=np.zeros(after.size, np.int64),
        rewards=np.where(after == 3, 1.0, 0.0),
        next_states=after,
        terminated=np.zeros(after.size, bool),
        n_actions=1,
        n_states=n,
    )
    counts = Counts.of(Samples.of(data, torch.device("cpu")))
    assert float(counts.reward[0, 0]) == pytest.approx(times[3] / times.sum())
    assert int(counts.size[0, 0]) == MOST_SUCCESSORS
    kept = counts.successors[:MOST_SUCCESSORS].tolist()
    assert sorted(kept) == sorted(np.argsort(-times)[:MOST_SUCCESSORS].tolist())
    told = counts.told(torch.tensor([0]), lambda rows: rows[..., None].float())
    mean = sum(int(times[k]) * k for k in kept) / sum(int(times[k]) for k in kept)
    spread = sum(int(times[k]) * abs(k - mean) for k in kept) / sum(int(times[k]) for k in kept)
    assert numbers(told.after)[0, 0].tolist() == pytest.approx([mean, spread], rel=1e-5)


# -- what they share -----------------------------------------------------------------------------


def test_a_mean_of_no_pairs_is_0() -> None:
    losses = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert float(mean_over(losses, None)) == 2.75
    assert float(mean_over(losses, torch.tensor([[True, False], [False, True]]))) == 3.0
    assert float(mean_over(losses, torch.zeros(2, 2, dtype=torch.bool))) == 0.0


def test_step_sizes_stay_for_half_of_the_steps_and_fall_to_0() -> None:
    net = torch.nn.Linear(1, 1, bias=False)
    optimiser = Optimiser(net, 0.5, 8)
    rates = []
    for _ in range(8):
        optimiser.step(net.weight.sum())
        rates.append(optimiser._parts[0].param_groups[0]["lr"])
    assert rates == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.5, 0.375, 0.25, 0.125])


def test_losses_are_descended() -> None:
    net = torch.nn.Linear(1, 1, bias=False)
    before = float(net.weight.detach())
    Optimiser(net, 0.5, 8).step(net.weight.sum())
    assert float(net.weight.detach()) < before


@pytest.mark.parametrize("cls", [ActionMaxEncoder, DBCEncoder, MICoEncoder])
def test_distances_are_those_of_points_in_the_unit_of_rewards(cls: type[Encoder]) -> None:
    mdp = random_mdp(6, 2, seed=0)
    large = TabularMDP(
        indptr=mdp.indptr, indices=mdp.indices, probs=mdp.probs, rewards=4.0 * mdp.rewards
    )
    small, encoder = (cls(**QUICK).fit(x, n_transitions=300) for x in (mdp, large))
    s, t = np.triu_indices(6, 1)
    found = encoder.distance(s, t)
    assert (found == 4.0 * small.distance(s, t)).all()
    points = encoder.encode(np.arange(6)).astype(np.float64)
    away = points[s] - points[t]
    if isinstance(encoder, MICoEncoder):
        beta = encoder.beta * encoder._shape["scale"]
        expected = [mico_distance(points[i], points[j], beta) for i, j in zip(s, t, strict=True)]
    elif cls is DBCEncoder:
        expected = np.abs(away).sum(axis=1).tolist()
    else:
        expected = np.linalg.norm(away, axis=1).tolist()
    np.testing.assert_allclose(found, expected, rtol=1e-4)
