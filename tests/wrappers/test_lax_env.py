"""From a lax certificate to agents: verified, in both dynamics, and deployed."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from bisim_abstract import (
    Certificate,
    Reading,
    abstract_env,
    certify,
    evaluate_policy,
    lift_policy,
    value_iteration,
    verify,
)
from bisim_abstract.wrappers import AbstractedEnv, RoomsGridEnv, extract_mdp, make_env
from tests.support.models import TAXI

GAMMA = 0.9


@functools.cache
def mirrored() -> Certificate:
    return certify(RoomsGridEnv(side=15, room_size=3, mirror=True).to_mdp(), GAMMA, relation="lax")


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_mirrored_rooms_from_certificate_to_deployed_agent(dynamics: str) -> None:
    env = RoomsGridEnv(side=15, room_size=3, mirror=True)
    mdp, certificate = env.to_mdp(), mirrored()
    small = AbstractedEnv(env, certificate, dynamics=dynamics)  # verifies
    assert small.aggregation.n_clusters == certificate.n_clusters == 6
    assert np.unique(env.twins).size == 6
    value = certificate.value
    assert value is not None
    lifted = lift_policy(small.aggregation, value)
    assert np.array_equal(lifted, value.lifted_policy)
    loss = (value_iteration(mdp, GAMMA).lower - evaluate_policy(mdp, GAMMA, lifted).upper).max()
    assert loss <= value.loss
    agent = small.deploy(value)
    assert np.array_equal(agent.predict(np.arange(mdp.n_states))[0], lifted)
    # The same action of a cluster is another one of the environment in rooms that are turned.
    corners = [0, 14, 15 * 14, 15 * 15 - 1]
    assert np.unique(certificate.labels[corners]).size == 1
    assert len({tuple(value.renaming[s]) for s in corners}) > 1  # type: ignore[index]
    cluster, _ = small.reset(seed=0)
    for step in range(200):
        cluster, reward, terminated, _, _ = small.step(small.action_space.sample())
        assert 0 <= cluster < 6
        assert np.isfinite(float(reward))
        assert not terminated, step


@functools.cache
def masked_taxi(relation: str) -> Certificate:
    mdp = extract_mdp(TAXI, reading=Reading(action_masks=True))
    certificate = certify(mdp, GAMMA, relation=relation)
    assert verify(mdp, certificate).verdict == "verified"
    return certificate


@pytest.mark.parametrize("relation", ["plain", "lax"])
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_taxi_with_masks(relation: str, dynamics: str) -> None:
    env = make_env(TAXI)
    mdp = extract_mdp(env, reading=Reading(action_masks=True))
    assert mdp.has_action_sets
    certificate = masked_taxi(relation)
    small = AbstractedEnv(env, certificate, dynamics=dynamics, mdp=mdp)
    cluster, info = small.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        mask = info["action_mask"]
        assert mask.dtype == np.int8
        assert np.array_equal(mask, small.action_masks())
        assert np.array_equal(mask == 1, small.aggregation.mdp.available[cluster])
        action = rng.choice(np.flatnonzero(mask))
        cluster, _, terminated, truncated, info = small.step(action)
        if terminated or truncated:
            cluster, info = small.reset()
    env.close()


def test_one_call() -> None:
    small = abstract_env(
        "bisim_abstract/RoomsGrid-v0",
        gamma=GAMMA,
        relation="lax",
        env_args={"side": 15, "room_size": 3, "mirror": True},
    )
    assert small.certificate.relation == "lax"
    assert small.observation_space == Discrete(6)
    masked = abstract_env(TAXI, gamma=GAMMA, reading=Reading(action_masks=True))
    assert masked.certificate.apart is not None
    assert "different actions" in masked.certificate.summary()
