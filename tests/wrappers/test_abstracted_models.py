"""`AbstractedEnv` and the model behind it: given, extracted, or enumerated once."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    NotCertifiedError,
    Reading,
    TabularMDP,
    abstract_env,
    certify,
)
from bisim_abstract._base.types import Progress
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import (
    AbstractedEnv,
    RoomsGridEnv,
    extract_mdp,
)
from tests.support.abstractions import GAMMA, ROOMS, Counted, Tilted, lake, rooms, walk

# -- the environment and its model -------------------------------------------------------------


def test_environments_by_id(of_lake: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    env = AbstractedEnv("FrozenLake-v1", of_lake)
    assert walk(env) == walk(AbstractedEnv(lake(), of_lake))
    assert env.spec is not None
    assert walk(gym.make(env.spec)) == walk(env)
    with pytest.raises(ExtractionError, match="no environment 'Nowhere-v0'"):
        AbstractedEnv("Nowhere-v0", of_lake)
    # One that was made here and is refused is closed here; that of somebody else is not.
    closed: list[int] = []
    monkeypatch.setattr(RoomsGridEnv, "close", lambda self: closed.append(1))
    with pytest.raises(NotCertifiedError):
        AbstractedEnv(ROOMS, of_lake)
    assert closed == [1]
    with pytest.raises(NotCertifiedError):
        AbstractedEnv(rooms(), of_lake)
    assert closed == [1]


def test_the_docstring_begins_with_what_steps_are() -> None:
    first, _, rest = (AbstractedEnv.__doc__ or "").partition("\n")
    assert "aggregated model" in first
    assert 'dynamics="ground"' in rest.split("\n\n")[0]


def test_a_model_at_hand_is_not_extracted(
    of_rooms: Certificate, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = importlib.import_module("bisim_abstract.wrappers.abstracted")
    rows = extract_mdp(Walk())
    of_rows = certify(rows, GAMMA, tau=1e-9)
    with monkeypatch.context() as patch:
        patch.delattr(home, "extract_again")
        patch.delattr(home, "extract_mdp")
        assert AbstractedEnv(Walk(), of_rows, mdp=rows).mdp is rows
    expected = walk(AbstractedEnv(rooms(), of_rooms))
    env = AbstractedEnv(rooms(), path, mdp=extract_mdp(rooms()))
    assert walk(env) == expected
    # Specifications do without it, and stay JSON.
    assert env.spec is not None
    assert walk(gym.make(EnvSpec.from_json(env.spec.to_json()))) == expected


def test_models_of_something_else_are_refused(of_rooms: Certificate, of_lake: Certificate) -> None:
    mdp = extract_mdp(rooms())
    with pytest.raises(NotCertifiedError, match="mdp must be the model that the certificate"):
        AbstractedEnv(lake(), of_lake, mdp=mdp)
    # The certificate's model, and an environment of the same shape that behaves otherwise.
    other = gym.make(ROOMS, side=6, room_size=3, slip=0.4, seed=1)
    still = gym.make(ROOMS, side=6, room_size=3, slip=0.0, noise=0.0, seed=0)
    small = extract_mdp(still)
    of_still = certify(small, GAMMA, tau="auto")
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(other, of_still, mdp=small)
    # Probabilities and rewards that steps would hardly tell.
    mine = lake()
    lakes = extract_mdp(mine)
    mine.get_wrapper_attr("P")[0][0] = [(0.98, 0, 0.0, False), (0.02, 4, 0.0, False)]
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(mine, of_lake, mdp=lakes)
    for wrong in (lake(), gym.make("Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4")):
        with pytest.raises(NotCertifiedError, match=r"of another model|must be the model of this"):
            AbstractedEnv(wrong, of_rooms, mdp=mdp)
    longer = Walk()
    longer.paid = 2.0
    rows = extract_mdp(Walk())
    with pytest.raises(NotCertifiedError, match="mdp is not the model of this environment"):
        AbstractedEnv(longer, certify(rows, GAMMA, tau=1e-9), mdp=rows)
    literal = extract_mdp(lake(), reading=Reading(terminal="table"))
    with pytest.raises(NotCertifiedError, match="terminal='table'"):
        AbstractedEnv(lake(), certify(literal, GAMMA, tau=1e-9), mdp=literal)


class Walk(gym.Env[np.int64, np.int64]):
    """A row of cells without a table, whose last one ends the episode."""

    observation_space = gym.spaces.Discrete(6)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.length = 6
        self.paid = 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return np.int64(self.at), {}

    def step(self, action: Any) -> Any:
        self.at = max(0, self.at + (1 if action else -1))
        is_end = self.at == self.length - 1
        return np.int64(self.at), self.paid * is_end, is_end, False, {}


@pytest.fixture
def enumerations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every enumeration that is made."""
    home = importlib.import_module("bisim_abstract.wrappers.enumerate")
    real, made = home.enumerate_mdp, []

    def spied(*args: Any, **kwargs: Any) -> TabularMDP:
        made.append(1)
        return real(*args, **kwargs)  # type: ignore[no-any-return]

    monkeypatch.setattr(home, "enumerate_mdp", spied)
    return made


def test_an_environment_is_enumerated_once(enumerations: list[int]) -> None:
    ground = Walk()
    certificate = certify(extract_mdp(ground), GAMMA, tau=1e-9)
    assert len(enumerations) == 1
    env: gym.Env[Any, Any]
    for env in (ground, gym.wrappers.TimeLimit(ground, 9)):
        for dynamics in ("aggregated", "ground"):
            AbstractedEnv(env, certificate, dynamics=dynamics)
    assert len(enumerations) == 1
    AbstractedEnv(Walk(), certificate)  # another object is another environment
    assert len(enumerations) == 2
    extract_mdp(ground)  # whoever asks for it gets it
    assert len(enumerations) == 3
    with pytest.raises(ExtractionError, match="more than"):
        AbstractedEnv(ground, certificate, reading=Reading(max_states=2))


def test_one_call_enumerates_and_verifies_once(
    enumerations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    heard: list[Progress] = []
    env = abstract_env(Walk(), gamma=GAMMA, callback=heard.append)
    assert (len(enumerations), counted.calls) == (1, 1)
    assert "enumerating" in {report.stage for report in heard}
    assert env.value.kept > 0.9


def test_one_call_closes_what_it_made_and_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr(RoomsGridEnv, "close", lambda self: closed.append(1))
    with pytest.raises(InvalidArgumentError, match="gamma must lie"):
        abstract_env(rooms(), gamma=1.5)
    assert not closed
    with pytest.raises(InvalidArgumentError, match="gamma must lie"):
        abstract_env(ROOMS, env_args={"side": 6, "room_size": 3}, gamma=1.5)
    assert closed == [1]


def test_changed_environments_are_looked_at_anew(enumerations: list[int]) -> None:
    """The certificate still fits what is remembered, and the environment no longer does."""
    ground = Walk()
    certificate = certify(extract_mdp(ground), GAMMA, tau=1e-9)
    ground.paid = 2.0
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(ground, certificate)
    ground.paid = 1.0
    assert AbstractedEnv(ground, certificate).mdp.fingerprint == certificate.fingerprint


def test_classes_that_were_changed_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(Walk):
        GOAL = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.length = 40  # further than random steps get

        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, reward * self.GOAL, *rest

    ground = Long()
    certificate = certify(extract_mdp(ground), GAMMA, tau=1e-9)
    AbstractedEnv(ground, certificate)
    monkeypatch.setattr(Long, "GOAL", 5.0)
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(ground, certificate)


def test_enumerations_are_forgotten_with_their_environment() -> None:
    home = importlib.import_module("bisim_abstract.wrappers.tabular")
    before = set(home._enumerations)
    ground = Walk()
    extract_mdp(ground)
    assert set(home._enumerations) - before == {id(ground)}
    del ground
    gc.collect()
    assert set(home._enumerations) <= before


class Uncopied(Tilted):
    """Cannot be copied, and so not be tried out."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one")


def test_a_model_that_cannot_be_tried_is_extracted_after_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ground = Uncopied()
    mdp = extract_mdp(Tilted())
    certificate = certify(mdp, GAMMA, tau=0.5)
    env = AbstractedEnv(ground, certificate, mdp=mdp)
    assert env.mdp == mdp
    assert env.mdp is not mdp
    assert "not compared with real steps" in caplog.text
