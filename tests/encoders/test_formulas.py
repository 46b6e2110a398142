"""Losses of encoders on one or two pairs, with every number worked out by hand.

Points, predictions and rewards are set to round numbers, and what is expected is written as the
published formula with these numbers in it. `test_losses.py` has whole batches and slopes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bisim_abstract.encoders import ActionMaxEncoder, DBCEncoder, MICoEncoder, Transitions
from bisim_abstract.encoders._losses import (
    angles,
    cautious_squares,
    coordinate_distances,
    gaussian_distances,
    gaussian_surprise,
    mico_distances,
    reward_gaps,
    same_actions,
)
from bisim_abstract.encoders._nets import Samples
from bisim_abstract.encoders.action_max import Told
from bisim_abstract.encoders.mico import MICoLearner
from tests.support.learners import learner_of, pushed_points

FIRST, SECOND = torch.tensor([0]), torch.tensor([1])  # a pair: the first sample and the second


def steps(
    states: Sequence[int],
    actions: Sequence[int],
    rewards: Sequence[float],
    after: Sequence[int],
    n_states: int = 4,
) -> Transitions:
    return Transitions(
        states=np.array(states),
        actions=np.array(actions),
        rewards=np.array(rewards),
        next_states=np.array(after),
        terminated=np.zeros(len(states), bool),
        n_actions=2,
        n_states=n_states,
    )


def put(parameter: Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values))


def number(value: Tensor) -> float:
    return float(value.detach())


# -- DBC: (|z_i - z_j|_1 - |r_i - r_j| - gamma·W2)² ---------------------------------------------

# Means differ by (3, 0), standard deviations by (4, 12).
THIN = (torch.tensor([[0.0, 7.0]]), torch.tensor([[1.0, 1.0]]))
WIDE = (torch.tensor([[3.0, 7.0]]), torch.tensor([[5.0, 13.0]]))


def test_transport_of_gaussians() -> None:
    # W2² = |mu_i - mu_j|² + |sigma_i - sigma_j|²
    expected = math.sqrt(3.0**2 + 0.0**2 + 4.0**2 + 12.0**2)
    assert expected == 13.0
    assert number(gaussian_distances(THIN, WIDE)) == pytest.approx(expected)
    assert number(gaussian_distances(WIDE, THIN)) == pytest.approx(expected)
    # coordinate by coordinate: 5 and 12
    split = math.sqrt(3.0**2 + 4.0**2) + math.sqrt(0.0**2 + 12.0**2)
    assert split == 17.0
    assert number(coordinate_distances(THIN, WIDE)) == pytest.approx(split)
    assert number(coordinate_distances(WIDE, THIN)) == pytest.approx(split)


def test_pairs_are_rows_and_columns() -> None:
    """Entry (i, j) compares the i-th of one side with the j-th of the other, for all of them."""
    found = reward_gaps(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 4.0, 12.0]))
    assert found.tolist() == [[1.0, 4.0, 12.0], [9.0, 6.0, 2.0]]
    x = (torch.tensor([[0.0], [10.0]]), torch.zeros(2, 1))
    y = (torch.tensor([[1.0], [4.0], [12.0]]), torch.zeros(3, 1))
    for transport in (gaussian_distances, coordinate_distances):
        assert transport(x, y).tolist() == found.tolist()
    # squared norms 0, 100 and 1, 16, 144; all vectors but the first, which vanishes, are parallel
    half = mico_distances(x[0], y[0], 0.0)
    assert half.tolist() == [[0.5, 8.0, 72.0], [50.5, 58.0, 122.0]]
    met = same_actions(torch.tensor([0, 1, 1, 0, 2]), 2)
    assert met.tolist() == [[False, True, False], [True, False, False]]


def test_surprise_of_a_gaussian() -> None:
    # -log N(x; m, s²) = (x - m)²/(2 s²) + log s + log(2 pi)/2
    found = gaussian_surprise(torch.tensor(5.0), torch.tensor(1.0), torch.tensor(2.0))
    assert number(found) == pytest.approx(4.0**2 / (2.0 * 2.0**2) + math.log(2.0))
    density = math.exp(-0.5 * (4.0 / 2.0) ** 2) / (2.0 * math.sqrt(2.0 * math.pi))
    assert number(found) == pytest.approx(-math.log(density) - 0.5 * math.log(2.0 * math.pi))


def dbc(**options: Any) -> tuple[Any, Samples]:
    """States 0 and 1 with networks of one layer, in which the action alone decides.

    Action 0 is said to lead to a Gaussian of mean (0, 7) and deviations (1, 1), and to pay 0.5;
    action 1 to mean (3, 7) and deviations (5, 13), and to pay -1.
    """
    spec = DBCEncoder(dim=2, gamma=0.5, hidden=(), **options)
    learner, samples = learner_of(spec, steps([0, 1], [0, 1], [0.0, 1.0], [2, 3]))
    put(learner.phi.table.weight, [[0.0, 0.0], [2.0, -1.0], [1.0, 6.0], [8.0, 7.0]])
    put(learner.dynamics.weights[0], np.zeros((4, 4)).tolist())
    raw = [[math.log(math.expm1(w - 1e-3)) for w in row] for row in ((1.0, 1.0), (5.0, 13.0))]
    put(learner.dynamics.weights[0][:2, 2:], [[0.0, 3.0], [7.0, 7.0]])  # means, a column an action
    put(learner.dynamics.weights[0][2:, 2:], np.transpose(raw).tolist())
    put(learner.reward.weights[0], [[0.0, 0.0, 0.5, -1.0]])
    return learner, samples


# The models of `dbc`, which lead to (1, 6) and (8, 7) and pay 0 and 1: mean over 2 x 2 coordinates
# of (z' - mu)²/(2 sigma²) + log sigma, and mean squared error of rewards.
SURPRISE = (
    (1.0**2 / 2.0 + math.log(1.0))
    + (1.0**2 / 2.0 + math.log(1.0))
    + (5.0**2 / (2.0 * 5.0**2) + math.log(5.0))
    + (0.0**2 / (2.0 * 13.0**2) + math.log(13.0))
) / 4.0
MISPAID = (0.5**2 + 2.0**2) / 2.0


def test_dbc_loss_of_one_pair() -> None:
    """The defaults are the paper's: any pair, W2 over Euclidean distances."""
    learner, samples = dbc()
    # |z_0 - z_1|_1 = |0 - 2| + |0 + 1| = 3, target |0 - 1| + 0.5·13
    target = 1.0 + 0.5 * 13.0
    assert number(learner.pairwise(*learner.phi.table.weight[:2, None])) == pytest.approx(3.0)
    assert number(
        learner.target(torch.tensor([0.0, 1.0]), *map(torch.cat, zip(THIN, WIDE, strict=True)), 1)
    ) == pytest.approx(target)
    expected = (3.0 - target) ** 2 + SURPRISE + MISPAID
    for pair in ((FIRST, SECOND), (SECOND, FIRST)):
        assert number(learner.loss(samples, *pair)) == pytest.approx(expected, rel=1e-5)


def test_dbc_loss_by_coordinates_and_by_action() -> None:
    learner, samples = dbc(transport="coordinates")
    expected = (3.0 - (1.0 + 0.5 * 17.0)) ** 2 + SURPRISE + MISPAID
    assert number(learner.loss(samples, FIRST, SECOND)) == pytest.approx(expected, rel=1e-5)
    # Actions 0 and 1 are no pair; what remains are the models.
    learner, samples = dbc(pairs="same_action")
    found = number(learner.loss(samples, FIRST, SECOND))
    assert found == pytest.approx(SURPRISE + MISPAID, rel=1e-5)


def test_dbc_models_move_points_only_if_joint() -> None:
    """Of state 0: the distance's slope, and if joint the reward model's through its weights."""
    for joint in (False, True):
        learner, samples = dbc(joint=joint)
        put(learner.reward.weights[0], [[4.0, 0.0, 0.5, -1.0]])  # 0.5 in state 0; 8 - 1 in state 1
        torch.autograd.backward(learner.loss(samples, FIRST, SECOND))
        # d(gap²)/dz_0 = 2·gap·sign(z_0 - z_1), and d((told - r)²/2)/dz_0 = (told - r)·weight
        gap = 3.0 - (1.0 + 0.5 * 13.0)
        expected = np.array([2.0 * gap * -1.0 + joint * 0.5 * 4.0, 2.0 * gap * 1.0])
        slope = learner.phi.table.weight.grad[0].numpy()
        np.testing.assert_allclose(slope, expected, rtol=1e-5)


# -- MICo: Huber(U(x, y) - |r_x - r_y| - gamma·U'(x', y')), U = (|x|² + |y|²)/2 + beta·angle ------


def test_mico_distance_of_two_points() -> None:
    x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    expected = (3.0**2 + 4.0**2) / 2.0 + 0.1 * (math.pi / 2.0)
    assert number(mico_distances(x, y, 0.1)) == pytest.approx(expected)
    assert number(mico_distances(x, -2.0 * x, 0.1)) == pytest.approx(
        (3.0**2 + 6.0**2) / 2.0 + 0.1 * math.pi
    )
    assert number(mico_distances(x, x, 0.1)) == pytest.approx(3.0**2)  # not 0, as published
    # cos = (3·1 + 0·1)/(3·sqrt(2))
    assert number(angles(x, torch.tensor([[1.0, 1.0]]))) == pytest.approx(math.pi / 4.0)


def mico(points: list[list[float]], **options: Any) -> tuple[Any, Samples]:
    """States 0 and 1 that lead to 2 and 3, where the target network has points of its own."""
    spec = MICoEncoder(dim=2, gamma=0.5, beta=0.1, **options)
    learner, samples = learner_of(spec, steps([0, 1], [0, 1], [0.0, 1.0], [2, 3]))
    put(learner.phi.table.weight, [*points, [9.0, 9.0], [9.0, 9.0]])
    put(learner.slow.table.weight, [[9.0, 9.0], [9.0, 9.0], [2.0, 0.0], [0.0, 1.0]])
    return learner, samples


# |0 - 1| + gamma·((2² + 1²)/2 + beta·pi/2)
MICO_TARGET = 1.0 + 0.5 * ((2.0**2 + 1.0**2) / 2.0 + 0.1 * math.pi / 2.0)


def test_mico_loss_of_one_pair() -> None:
    learner, samples = mico([[3.0, 0.0], [0.0, 4.0]])
    error = (3.0**2 + 4.0**2) / 2.0 + 0.1 * math.pi / 2.0 - MICO_TARGET
    assert error > 1.0  # where Huber's loss is |e| - 1/2
    for pair in ((FIRST, SECOND), (SECOND, FIRST)):
        assert number(learner.loss(samples, *pair)) == pytest.approx(error - 0.5, rel=1e-5)
    learner, samples = mico([[2.0, 0.0], [1.0, 0.0]])
    error = (2.0**2 + 1.0**2) / 2.0 + 0.1 * 0.0 - MICO_TARGET
    assert 0.1 < abs(error) < 1.0  # where it is e²/2
    assert number(learner.loss(samples, FIRST, SECOND)) == pytest.approx(error**2 / 2.0, rel=1e-5)
    learner, samples = mico([[2.0, 0.0], [1.0, 0.0]], pairs="same_action")
    assert number(learner.loss(samples, FIRST, SECOND)) == 0.0


def test_mico_target_network_moves_every_so_many_steps_and_never_learns() -> None:
    learner, samples = mico([[3.0, 0.0], [0.0, 4.0]], target_every=3)
    assert not any(x.requires_grad for x in learner.slow.parameters())
    old, new = learner.slow.table.weight.clone(), learner.phi.table.weight
    for step, is_moved in enumerate([False, False, True]):
        learner.after_step(step)
        assert torch.equal(learner.slow.table.weight, new if is_moved else old)
    put(new, old.tolist())
    for step, is_moved in enumerate([False, False, True], start=3):
        learner.after_step(step)
        assert torch.equal(learner.slow.table.weight, old) == is_moved
    assert not torch.equal(learner.phi.table.weight[0], torch.tensor([3.0, 0.0]))
    assert len(samples) == 2


# -- max_a |R(s,a) - R(t,a)| + gamma·sqrt(|m(s,a) - m(t,a)|² + |v(s,a) - v(t,a)|²) ---------------


def test_caution_weighs_what_is_too_far() -> None:
    found = cautious_squares(torch.tensor([3.0, -3.0, 0.0]), 4.0)
    assert found.tolist() == [4.0 * 3.0**2, 3.0**2, 0.0]


def told(
    rewards: list[list[float]], after: list[list[list[float]]], known: list[list[bool]]
) -> Told:
    return Told(torch.tensor(rewards), torch.tensor(after), torch.tensor(known))


def test_action_max_target_of_one_pair() -> None:
    spec = ActionMaxEncoder(dim=2, gamma=0.9)
    learner, _ = learner_of(spec, steps([0, 1], [0, 1], [0.0, 1.0], [2, 3]))
    # Of action 0 means differ by (1, 0) and deviations by (2, 2); of action 1 rewards alone.
    rewards = [[0.5, 0.0], [0.25, -1.0]]
    after = [[[0.0] * 4, [0.0] * 4], [[1.0, 0.0, 2.0, 2.0], [0.0] * 4]]
    first = abs(0.5 - 0.25) + 0.9 * math.sqrt(1.0**2 + 0.0**2 + 2.0**2 + 2.0**2)
    second = abs(0.0 - -1.0) + 0.9 * 0.0
    both = [[True, True], [True, True]]
    found = number(learner.target(told(rewards, after, both), 1))
    assert found == pytest.approx(max(first, second))
    # An action that one of the two never tried says nothing.
    for known in ([[True, True], [False, True]], [[False, True], [True, True]]):
        assert number(learner.target(told(rewards, after, known), 1)) == pytest.approx(second)
    for known in ([[True, False], [False, True]], [[False, False], [True, True]]):
        assert number(learner.target(told(rewards, after, known), 1)) == 0.0
    # Rewards differ by at most 1 once scaled: nothing is farther than 1/(1 - gamma) = 10.
    after[1][0][0] = 1000.0
    found = number(learner.target(told(rewards, after, both), 1))
    assert found == pytest.approx(10.0)


def test_action_max_loss_of_counted_states() -> None:
    """State 0 leads to 2 three times of four and to 3 once; state 1 always to 3."""
    data = steps([0, 0, 0, 0, 1], [0] * 5, [0.0, 0.0, 0.0, 1.0, 1.0], [2, 2, 2, 3, 3])
    learner, samples = learner_of(ActionMaxEncoder(dim=1, gamma=0.5), data)
    put(learner.phi.table.weight, [[0.0], [5.0], [8.0], [0.0]])
    # R = 1/4 and 1. m = (3·8 + 0)/4 = 6 and 0; v = (3·|8 - 6| + |0 - 6|)/4 = 3 and 0.
    target = abs(1.0 / 4.0 - 1.0) + 0.5 * math.sqrt((6.0 - 0.0) ** 2 + (3.0 - 0.0) ** 2)
    assert target > 2.0
    # 1/(1 - gamma) = 2 is the most; 5 apart is too far, which costs four times as much.
    last = torch.tensor([4])
    expected = 4.0 * (5.0 - 2.0) ** 2
    assert number(learner.loss(samples, FIRST, last)) == pytest.approx(expected, rel=1e-5)
    put(learner.phi.table.weight, [[0.0], [0.5], [0.8], [0.0]])
    target = abs(1.0 / 4.0 - 1.0) + 0.5 * math.sqrt(0.6**2 + 0.3**2)
    expected = (0.5 - target) ** 2  # too near
    assert number(learner.loss(samples, FIRST, last)) == pytest.approx(expected, rel=1e-5)


def test_action_max_heads_learn_of_what_comes_after() -> None:
    """Two steps of a point on a line, and heads that say the same of everything."""
    data = Transitions(
        states=np.array([[0.0], [4.0]]),
        actions=np.array([0, 1]),
        rewards=np.array([0.0, 1.0]),
        next_states=np.array([[2.0], [6.0]]),
        terminated=np.zeros(2, bool),
        n_actions=2,
    )
    learner, samples = learner_of(ActionMaxEncoder(dim=1, gamma=0.5, hidden=()), data)
    # Observations 0, 4, 2, 6 have mean 3 and deviation sqrt(5); phi is 10·(x - 3)/sqrt(5) + 1.
    put(learner.phi.mlp.weights[0], [[10.0]])
    put(learner.phi.mlp.biases[0], [1.0])
    put(learner.heads.mlp.weights[0], [[0.0]] * 6)
    put(learner.heads.mlp.biases[0], [0.25, 3.0, 2.0, 0.5, -1.0, 4.0])  # R, m, v of each action
    after = [10.0 * (x - 3.0) / math.sqrt(5.0) + 1.0 for x in (2.0, 6.0)]
    # (r - R)² + (z' - m)² + (|z' - m| - v)², mean over both
    first = (0.0 - 0.25) ** 2 + (after[0] - 3.0) ** 2 + (abs(after[0] - 3.0) - 2.0) ** 2
    second = (1.0 - 0.5) ** 2 + (after[1] + 1.0) ** 2 + (abs(after[1] + 1.0) - 4.0) ** 2
    both = torch.tensor([0, 1])
    found = number(learner.model_loss(samples, both, learner.told(samples.now[both], samples)))
    assert found == pytest.approx((first + second) / 2.0, rel=1e-5)
    # Heads that say the same of both states ask for a distance of 0; theirs is 10·4/sqrt(5).
    whole = 4.0 * (10.0 * 4.0 / math.sqrt(5.0)) ** 2 + found
    assert number(learner.loss(samples, FIRST, SECOND)) == pytest.approx(whole, rel=1e-5)


def test_action_max_distances_do_not_move_the_heads() -> None:
    """Slopes of the whole loss in the heads are those of their own loss."""
    slopes = []
    for is_whole in (True, False):
        learner, samples = learner_of(ActionMaxEncoder(dim=1, hidden=()), pushed_points(2))
        put(learner.heads.mlp.weights[0], [[1.0, 0.0]] * 6)  # says different things of both
        both = torch.tensor([0, 1])
        told_of = learner.told(samples.now[both], samples)
        assert number(learner.target(told_of, 1)) > 0.1
        own = learner.model_loss(samples, both, told_of)
        torch.autograd.backward(learner.loss(samples, FIRST, SECOND) if is_whole else own)
        slopes.append(learner.heads.mlp.weights[0].grad)
    torch.testing.assert_close(slopes[0], slopes[1])


def test_points_start_at_their_rewards() -> None:
    """A table's points are the mean rewards of its actions, seen from a random side."""
    data = steps([0, 0, 1, 1], [0, 1, 0, 0], [2.0, 0.0, 1.0, 3.0], [2, 3, 3, 3])
    learner, samples = learner_of(ActionMaxEncoder(dim=2), data)
    assert samples.scale == 3.0
    rewards = np.array([[2.0, 0.0], [(1.0 + 3.0) / 2.0, 0.0]]) / 3.0
    expected = rewards @ learner.view.numpy()
    found = learner.phi.table.weight[:2].detach().numpy()
    assert np.abs(expected).max() > 0.1
    assert np.abs(found - expected).max() < 0.05  # what they are spread by


# -- what samples look like to all of them -------------------------------------------------------


def test_rewards_are_divided_by_their_range() -> None:
    """So that no two differ by more than 1, however large they are; 1 where all are equal."""
    data = steps([0, 1, 2], [0, 0, 0], [5.0, 7.0, 6.0], [1, 2, 0])
    samples = Samples.of(data, torch.device("cpu"))
    assert samples.scale == 7.0 - 5.0
    assert samples.rewards.tolist() == [5.0 / 2.0, 7.0 / 2.0, 6.0 / 2.0]
    data = steps([0, 1, 2], [0, 0, 0], [5.0, 5.0, 5.0], [1, 2, 0])
    assert Samples.of(data, torch.device("cpu")).scale == 1.0


def test_the_end_has_a_point_of_its_own_and_is_no_observation() -> None:
    data = Transitions(
        states=np.array([[10.0], [14.0]]),
        actions=np.array([0, 1]),
        rewards=np.array([0.0, 1.0]),
        next_states=np.array([[12.0], [16.0]]),
        terminated=np.array([False, True]),
        n_actions=2,
    )
    learner, samples = learner_of(MICoEncoder(dim=1, hidden=()), data)
    assert samples.end == 4
    # Observations 10, 14, 12, 16 have mean 13 and deviation sqrt(5); the end has no part in them.
    assert number(learner.phi.centre[0]) == pytest.approx(13.0)
    assert number(learner.phi.width[0]) == pytest.approx(math.sqrt(5.0))
    put(learner.phi.mlp.weights[0], [[2.0]])
    put(learner.phi.mlp.biases[0], [1.0])
    put(learner.phi.end, [-7.0])
    found = learner.phi(samples.after[:2], samples)[:, 0].tolist()
    assert found == pytest.approx([2.0 * (12.0 - 13.0) / math.sqrt(5.0) + 1.0, -7.0])


def test_every_step_compares_two_fresh_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with itself would train on the distance of points from themselves."""
    batches: list[tuple[Tensor, Tensor]] = []
    ended: list[int] = []
    loss = MICoLearner.loss

    def watched(self: MICoLearner, samples: Samples, rows: Tensor, columns: Tensor) -> Tensor:
        batches.append((rows, columns))
        return loss(self, samples, rows, columns)

    monkeypatch.setattr(MICoLearner, "loss", watched)
    monkeypatch.setattr(MICoLearner, "after_step", lambda self, step: ended.append(step))
    n = 200
    data = steps([0, 1, 2, 3] * (n // 4), [0] * n, [0.0, 1.0] * (n // 2), [1, 2, 3, 0] * (n // 4))
    MICoEncoder(dim=2, steps=70, batch_size=32).fit(data)  # batches are drawn 64 steps at a time
    assert ended == list(range(70))
    sides = [side for batch in batches for side in batch]
    assert len(sides) == 140
    assert len({tuple(side.tolist()) for side in sides}) == 140
    seen = torch.cat(sides)
    assert (int(seen.min()), int(seen.max())) == (0, n - 1)
