"""Rewards ahead: by hand, of wide models, and telling apart what rewards alone do not."""

from __future__ import annotations

import numpy as np
import pytest

from bisim_abstract import TabularMDP
from bisim_abstract._propose import partitions
from bisim_abstract._propose.ahead import MOST_ACTIONS, MOST_COLUMNS, rewards_ahead
from bisim_abstract._propose.partitions import propose_components
from bisim_abstract.parts import sparse_mdp
from bisim_abstract.wrappers import RoomsGridEnv


def test_columns_are_rewards_now_and_after_each_action() -> None:
    P = np.zeros((2, 2, 2))
    P[0, 0] = [0.5, 0.5]
    P[0, 1] = [0.0, 1.0]
    P[1, :, 0] = 1.0
    R = np.array([[0.25, 0.5], [0.75, 0.125]])  # below 1: their scale is kept
    found = rewards_ahead(TabularMDP.from_dense(P, R, order="sas"), 0.5)
    expected = [
        [0.25, 0.5, 0.25, 0.15625, 0.375, 0.0625],
        [0.75, 0.125, 0.125, 0.25, 0.125, 0.25],
    ]
    assert np.allclose(found, expected, rtol=0.0, atol=1e-15)


def test_one_action_is_enough() -> None:
    mdp = sparse_mdp(6, 1, seed=0)
    assert rewards_ahead(mdp, 0.9).shape == (6, 2)


def test_wide_models_have_few_columns_drawn_by_the_seed() -> None:
    mdp = sparse_mdp(20, 40, seed=0)
    found = rewards_ahead(mdp, 0.9, seed=3)
    assert found.shape == (20, MOST_COLUMNS * (1 + MOST_ACTIONS))
    assert np.array_equal(found, rewards_ahead(mdp, 0.9, seed=3))
    assert not np.array_equal(found, rewards_ahead(mdp, 0.9, seed=4))


def test_rooms_that_pay_alike_differ_ahead() -> None:
    # 400 rooms in 4 dimensions: some pay so much alike that their cells run into one another.
    env = RoomsGridEnv(side=80, room_size=4, noise=0.05)
    mdp = env.to_mdp()
    by_rewards = propose_components(mdp.rewards, mdp.n_states)
    found = propose_components(rewards_ahead(mdp, 0.9), mdp.n_states)
    assert found is not None
    assert np.array_equal(found, np.unique(env.rooms, return_inverse=True)[1])
    assert by_rewards is None or not np.array_equal(found, by_rewards)


def test_more_groups_than_the_first_sample_shows_are_found_in_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    centres = 10.0 * rng.random((1_500, 6))
    labels = rng.permutation(np.repeat(np.arange(1_500), 14))
    points = centres[labels] + 0.01 * rng.random((labels.size, 6))
    monkeypatch.setattr(partitions, "SAMPLE", 1_600)  # about one state of each group: no gap
    assert propose_components(points, labels.size, most=1_600) is None
    found = propose_components(points, labels.size, most=12_800)
    assert found is not None
    assert np.unique(np.stack([found, labels]), axis=1).shape[1] == 1_500
    assert found.max() + 1 == 1_500
