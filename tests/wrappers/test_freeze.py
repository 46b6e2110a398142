"""Environments that count their steps: what is not part of the state is named once, and known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from bisim_abstract import NotCertifiedError, Reading, TabularMDP, abstract_env, certify
from bisim_abstract._base.reading import FREEZE
from bisim_abstract.errors import ExtractionError, InvalidArgumentError, StateLimitError
from bisim_abstract.wrappers import AbstractedEnv, TabularEnv, extract_mdp
from bisim_abstract.wrappers._source import frozen_in, state_text
from bisim_abstract.wrappers.tabular import compare_with_steps
from tests.support.counting import Door

FROZEN = ("steps",)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_a_counter_is_no_part_of_the_abstraction(dynamics: str) -> None:
    small = abstract_env(Door(), gamma=0.9, reading=Reading(freeze=FROZEN), dynamics=dynamics)
    assert small.value.kept == pytest.approx(1.0)
    for _ in range(2):
        small.reset(seed=0)
        for action in (0, 0, 1, 1, 1, 1, 1):
            _, reward, is_over, _, _ = small.step(action)
            if is_over:
                break
        # Steps of the small model are those of the average member of a cluster.
        assert dynamics == "aggregated" or (is_over and reward == 1.0)
    agent, env = small.deploy(small.value), Door()
    seen, _ = env.reset()
    for _ in range(7):
        seen, reward, is_over, _, _ = env.step(int(agent.predict(seen)[0]))
    assert is_over
    assert reward == 1.0


def test_a_model_knows_what_was_frozen() -> None:
    mdp = extract_mdp(Door(), reading=Reading(freeze=FROZEN))
    assert frozen_in(mdp) == FROZEN
    certificate = certify(mdp, 0.9)
    by_model = AbstractedEnv(Door(), certificate, mdp=mdp)
    by_name = AbstractedEnv(Door(), certificate, reading=Reading(freeze=FROZEN))
    assert by_model.observation_space == by_name.observation_space
    env = TabularEnv(Door(), reading=Reading(freeze=FROZEN))
    assert env.mdp == mdp
    _, info = env.reset()
    start = info["state"]
    for action in (1, 0, 1, 0):  # back where it was, and later
        info = env.step(action)[-1]
    assert info["state"] == start
    with pytest.raises(StateLimitError, match=r"freeze=\['steps'\]"):
        AbstractedEnv(Door(), certificate, reading=Reading(max_states=500))


def test_only_what_counts_is_named() -> None:
    """The guard changes at every step too, but returns."""
    with pytest.raises(StateLimitError, match="'steps' changed in every step") as caught:
        extract_mdp(Door(), reading=Reading(max_states=200))
    assert "guard" not in str(caught.value)


@pytest.mark.parametrize("freeze", [("steps", "nothing"), ("nothing",)])
def test_names_of_nothing_are_refused(freeze: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="'nothing', but Door has"):
        extract_mdp(Door(), reading=Reading(freeze=freeze))


@pytest.mark.parametrize("freeze", ["steps", 3, None, [1], b"steps"])
@pytest.mark.parametrize("env", [Door(), "FrozenLake-v1"])
def test_anything_but_names_is_refused(env: Any, freeze: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="freeze must be a sequence of attribute names"):
        abstract_env(env, gamma=0.9, reading=Reading(freeze=freeze))


def test_tables_have_nothing_to_freeze() -> None:
    with pytest.raises(ExtractionError, match="freeze goes with environments that are enumerated"):
        extract_mdp("FrozenLake-v1", reading=Reading(freeze=FROZEN))


def test_another_choice_is_another_model() -> None:
    """What was found before, with a smaller state, is not taken for it."""
    env = Door()
    mdp = extract_mdp(env, reading=Reading(freeze=FROZEN))
    coarse = extract_mdp(env, reading=Reading(freeze=("steps", "guard")))
    assert coarse.n_states < mdp.n_states
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(env, certify(mdp, 0.9), reading=Reading(freeze=("steps", "guard")))


@pytest.mark.parametrize("frozen", [3, "steps", [1, 2], {"a": 1}, None])
def test_what_a_file_says_was_frozen_is_not_trusted(frozen: object) -> None:
    mdp = TabularMDP.from_dense([[[1.0]]], [[0.0]]).with_metadata(frozen=frozen)
    assert frozen_in(mdp) == FREEZE


def test_messages_show_no_digests() -> None:
    """Ids of enumerated states say nothing to anybody."""
    env = TabularEnv(Door(), reading=Reading(freeze=FROZEN))
    ident = int(env.mdp.state_ids[3])
    assert state_text(env.mdp, ident) == "state 3 of its model"
    env.reset(seed=0)
    inner: Any = env.unwrapped
    inner.key = 7
    with pytest.raises(ExtractionError, match="is in a state that its model does not have; was"):
        env.step(0)


class Slippery(gym.Wrapper[Any, Any, Any, Any]):
    """Stays where it is, once in a while."""

    def step(self, action: Any) -> Any:
        inner: Any = self.unwrapped
        place = inner.place
        found = self.env.step(action)
        if inner.steps % 3 == 0:
            inner.place = place
        return found


def test_contradictions_name_states_by_number() -> None:
    mdp = extract_mdp(Door(), reading=Reading(freeze=FROZEN))
    with pytest.raises(ExtractionError, match=r"at state \d{1,2} of its model, action \d: it led"):
        compare_with_steps(Slippery(Door()), mdp, Reading(checks=100))
