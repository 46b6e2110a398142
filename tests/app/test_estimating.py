"""`estimate_mdp` with an environment: gathering until something is proven."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, TabularMDP, certify, estimate_mdp, prove_value
from bisim_abstract._app import estimating
from bisim_abstract._base.types import Progress
from bisim_abstract._model import estimation
from bisim_abstract.wrappers import AbstractedEnv


class Halls(gym.Env[Any, Any]):
    """Two halls of two seats: actions stay or leave, with luck, and chance chooses the seat.

    It has no table. The second hall pays 1. Which action stays depends on the hall, so that no
    action is good everywhere.
    """

    observation_space = gym.spaces.Discrete(4)
    action_space = gym.spaces.Discrete(2, start=3)

    def __init__(self, *, ends: float = 0.0, noise: float = 0.0) -> None:
        self.ends, self.noise, self.seat, self.steps = ends, noise, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seat = int(self.np_random.integers(4))
        return np.int64(self.seat), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        paid = float(self.seat >= 2) + self.noise * float(self.np_random.random() < 0.5)
        is_lucky = bool(self.np_random.random() < 0.9)
        hall = (int(action) - 3 + (self.seat >= 2) + (not is_lucky)) % 2
        self.seat = 2 * hall + int(self.np_random.integers(2))
        ended = bool(self.np_random.random() < self.ends)
        return np.int64(self.seat), paid, ended, False, {}


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimating, "ROUNDS", 2)


def gathered(env: Any, **options: Any) -> TabularMDP:
    given: dict[str, Any] = {
        "gamma": 0.5,
        "reward_range": (0.0, 1.0),
        "deterministic_rewards": True,
        "never_ends": True,
        "max_steps": 8_000,
        "goal": "value",
        "keep": 0.2,
        "seed": 0,
    }
    return estimate_mdp(env, **(given | options))


@pytest.mark.slow
def test_it_ends_when_the_goal_is_met() -> None:
    told: list[Progress] = []
    mdp = gathered(Halls(), callback=told.append)
    about = mdp.metadata["gathered"]
    assert about["is_met"]
    assert about["steps"] < 8_000
    assert mdp.estimate is not None
    assert mdp.estimate.alpha == 0.05
    assert mdp.estimate.blocks is not None
    assert prove_value(mdp, mdp.estimate.blocks, 0.5).kept >= 0.2
    # Halls are what is worth telling apart, and radii of their rows are what makes it cheap.
    assert mdp.estimate.blocks.tolist() == [0, 0, 1, 1]
    done = [report.done for report in told]
    assert done == sorted(done)
    assert done[-1] == about["steps"]
    assert {report.stage for report in told} == {"sampling"}
    assert {report.total for report in told} == {8_000}
    again = gathered(Halls())
    assert again.fingerprint == mdp.fingerprint
    assert gathered(Halls(), seed=1).fingerprint != mdp.fingerprint


def test_the_certificate_is_one_that_an_environment_takes() -> None:
    mdp = gathered(Halls(), goal="certificate", max_steps=16_000, metadata={"note": "x"})
    assert mdp.metadata["note"] == "x"
    assert mdp.metadata["gathered"]["is_met"]
    certificate = certify(mdp, 0.5, keep=0.2)
    assert certificate.verdict.level == "useful"
    env = AbstractedEnv(Halls(), certificate, mdp=mdp, dynamics="ground")
    assert env.observation_space == gym.spaces.Discrete(2)
    assert env.reset(seed=0)[1]["holds"] == "for the true model with probability at least 0.95"


def test_steps_that_propose_are_never_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every partition is made of steps that come before all of those it is used with."""
    seen: list[tuple[str, Any]] = []
    plain = estimating._Gathering._proposed

    def proposed(self: Any, steps: Any) -> Any:
        seen.append(("proposed", len(steps)))
        found = plain(self, steps)
        seen.append(("blocks", found))
        return found

    def counted(states: Any, *args: Any, **options: Any) -> Any:
        seen.append(("counted", (len(states), options["alpha"])))
        return estimation.count_steps(states, *args, **options)

    monkeypatch.setattr(estimating._Gathering, "_proposed", proposed)
    monkeypatch.setattr(estimating, "count_steps", counted)
    mdp = gathered(Halls(), keep=0.9999, max_steps=1_024)
    used = [size for what, size in seen if what == "proposed"]
    assert used == [64, 128, 256, 512]
    about = mdp.metadata["gathered"]
    assert not about["is_met"]
    assert about["steps"] == 1_024
    # An epoch counts what is new in it, at most as many steps as have proposed; and each has its
    # share of alpha.
    assert mdp.estimate is not None
    assert int(mdp.estimate.counts.sum()) <= 512
    shares = {entry[1] for what, entry in seen if what == "counted"}
    assert max(shares) == 0.05 / len(used)


@pytest.mark.slow
def test_an_end_that_was_never_seen_is_possible_unless_told() -> None:
    mdp = gathered(Halls(), never_ends=False, max_steps=1_000)
    assert mdp.terminal_state == 4
    with pytest.raises(InvalidArgumentError, match="an episode ended; leave it out"):
        gathered(Halls(ends=0.2), max_steps=1_000)
    ended = gathered(Halls(ends=0.2), never_ends=False, max_steps=2_000)
    assert ended.terminal_state == 4
    assert ended.estimate is not None
    assert ended.estimate.blocks is not None
    assert (ended.estimate.blocks[:4] != ended.estimate.blocks[4]).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": None}, "gamma must be given"),
        ({"seed": None, "max_steps": None}, "max_steps and seed must be given"),
        ({"actions": [0], "blocks": [0]}, "actions and blocks must be left out"),
        ({"goal": "fame"}, "goal must be"),
        ({"noise": 1.0, "reward_range": (0.0, 2.0)}, "deterministic_rewards is True, but"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    noise = changes.pop("noise", 0.0)
    with pytest.raises(InvalidArgumentError, match=words):
        gathered(Halls(noise=noise), **changes)


def test_vectors_and_given_steps_are_refused() -> None:
    boxed = gym.wrappers.TransformObservation(
        Halls(), lambda seat: np.array([seat], np.float32), gym.spaces.Box(0.0, 8.0, (1,))
    )
    with pytest.raises(InvalidArgumentError, match="finitely many observations"):
        gathered(boxed)
    with pytest.raises(InvalidArgumentError, match="gamma and seed must be left out"):
        estimate_mdp(
            [0], [0], [0.0], [0], n_states=1, n_actions=1, reward_range=(0, 1), gamma=0.5, seed=0
        )
