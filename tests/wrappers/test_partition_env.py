"""`AbstractedEnv` over a partition that is proven for agents and not certified."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import NotCertifiedError, prove_value
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.parts import PartitionProof, prove_partition
from bisim_abstract.wrappers import AbstractedEnv, extract_mdp
from tests.support.abstractions import GAMMA, lake, rooms


@pytest.fixture(scope="module")
def proof() -> PartitionProof:
    """Of the rooms, each of which is a cluster."""
    grid: Any = rooms().unwrapped
    mdp = extract_mdp(rooms())
    rows, columns = np.divmod(mdp.state_ids, grid.side)
    across = grid.side // grid.room_size
    return prove_partition(mdp, rows // grid.room_size * across + columns // grid.room_size, GAMMA)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_steps_and_says_what_is_proven(proof: PartitionProof, dynamics: str) -> None:
    env = AbstractedEnv(rooms(), proof, dynamics=dynamics)
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert info["scope"] == "partition"
    for action in (0, 1, 2, 3):
        observation, _, _, _, info = env.step(action)
        assert info["cluster"] == observation
        assert dynamics == "aggregated" or env.labels[info["state"]] == observation
    assert env.tau is None
    for text in (env.summary(), env._repr_html_()):
        assert "PROVEN FOR AGENTS, not certified: 4 clusters of" in text
        assert "whoever" in text
    assert "proven for agents on a given partition, not certified" in str(env)
    assert env.value.kept > 0.9
    with pytest.raises(NotCertifiedError, match=r"not certified: env\.proof"):
        _ = env.certificate


def test_agents_are_deployed(proof: PartitionProof) -> None:
    env = AbstractedEnv(rooms(), proof)
    assert env.evaluate(env.value).share.kept >= env.value.kept
    agent = env.deploy(env.value)
    assert agent.metadata["verdict"].startswith("PROVEN FOR AGENTS")
    assert 0 <= int(agent.predict(3)[0]) < 4


def test_from_a_file(proof: PartitionProof, tmp_path: Path) -> None:
    proof.save(tmp_path / "rooms.npz")
    env = AbstractedEnv(rooms(), str(tmp_path / "rooms.npz"))
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.observation_space == env.observation_space


def test_nothing_unproven_is_handed_out(
    proof: PartitionProof, caplog: pytest.LogCaptureFixture
) -> None:
    forged = replace(
        proof.value, solver=replace(proof.value.solver, lower=proof.value.solver.lower + 1.0)
    )
    with pytest.raises(NotCertifiedError, match="the proof of the partition does not hold"):
        AbstractedEnv(rooms(), replace(proof, value=forged))
    with pytest.raises(NotCertifiedError, match="another model"):
        AbstractedEnv(lake(), proof)
    with pytest.raises(NotCertifiedError, match="not certified at all"):
        AbstractedEnv(rooms(), proof, require="all")
    with pytest.raises(InvalidArgumentError, match="a partition has none: leave it out"):
        AbstractedEnv(rooms(), proof, tau=0.1)
    mdp = extract_mdp(lake())
    value = prove_value(mdp, np.zeros(mdp.n_states, np.int64), GAMMA)
    with pytest.raises(InvalidArgumentError, match=r"prove_partition\(mdp, value\.labels, gamma\)"):
        AbstractedEnv(lake(), value)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        poor = prove_partition(mdp, np.zeros(mdp.n_states, np.int64), GAMMA)
        AbstractedEnv(lake(), poor)
    assert "PROVEN FOR AGENTS, not certified, BUT" in caplog.text
