"""Ten environments as people write them: read at once, or as the refusal says, states by hand."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import Reading
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers import extract_mdp
from tests.support import load_script

people = load_script("as_people_write")
# Live states, by hand.
STATES = {
    "dict observations": 16 * 15,  # an agent elsewhere than its target
    "Poisson inventory": 11,
    "card game": 2**6,  # which treasures are left
    "queue": 9**2,
    "slip by np_random": 5 * 7 - 2,  # without pit and goal
    "key in hand": 9 + 9 + 18,  # no key; a key; the door open: it and a second room without exit
    "random start": 26,
}
# A subset of samples, and the cells where no other one lies; home ends it with both.
ROVER = 34 + 35 + 35 + 35
TWINS = 5 * 4 - 1  # two cells that differ, but for the end


def test_all_ten_are_here() -> None:
    assert set(people.OWN) == {*STATES, "elevator", "step counter", "tuple actions"}


@pytest.mark.parametrize("name", STATES)
def test_an_environment_works_at_once(name: str) -> None:
    mdp = extract_mdp(people.OWN[name]())
    assert mdp.n_states - (mdp.terminal_state is not None) == STATES[name]


def test_an_elevator_of_three_floors() -> None:
    """A floor, and where people wait; every floor calls by itself."""
    mdp = extract_mdp(people.Elevator(3, call_prob=0.25))
    assert mdp.n_states == 3 * 2**3
    _, probs = mdp.successors(0, 0)
    by_hand = [0.75 ** (3 - calls) * 0.25**calls for calls in (0, 1, 1, 1, 2, 2, 2, 3)]
    assert sorted(probs.tolist()) == pytest.approx(sorted(by_hand), abs=1e-15)


def test_demand_is_that_of_poisson() -> None:
    """From 5 of 10 with nothing ordered: sold is the demand, or 5 if that is larger."""
    mdp = extract_mdp(people.Inventory())
    wanted = [np.exp(-3.0)]
    for demand in range(1, 5):
        wanted.append(wanted[-1] * 3.0 / demand)
    wanted.append(1.0 - sum(wanted))
    successors, probs = mdp.successors(0, 0)
    by_stock = {mdp.state_name(s): float(p) for s, p in zip(successors, probs, strict=True)}
    assert by_stock == pytest.approx(
        {f"inventory={5 - sold}": p for sold, p in enumerate(wanted)}, abs=1e-15
    )
    paid = sum(p * (5.0 * sold - 0.5 * (5 - sold)) for sold, p in enumerate(wanted))
    assert mdp.rewards[0, 0] == pytest.approx(paid, abs=1e-12)


def test_cards_are_drawn_without_replacement() -> None:
    """Of seven cards one is the skull; stopping pays what was drawn, nothing at first."""
    mdp = extract_mdp(people.PushYourLuck())
    successors, probs = mdp.successors(0, 1)
    assert probs == pytest.approx([1 / 7] * 7, abs=1e-15)
    assert mdp.terminal_state in successors
    assert mdp.rewards[:-1, 1].max() == 0.0
    assert sorted(mdp.rewards[:, 0].tolist())[-1] == 1 + 2 + 3 + 4 + 5 + 6


def test_a_slip_goes_any_way() -> None:
    """From the corner, moving down: 0.8 and 0.05 down, 0.05 right, and two moves into walls."""
    mdp = extract_mdp(people.SlipperyGrid())
    _, probs = mdp.successors(0, 2)
    assert sorted(probs.tolist()) == pytest.approx([0.05, 0.1, 0.85], abs=1e-15)


def test_a_counter_is_named_with_the_line_that_helps() -> None:
    with pytest.raises(ExtractionError, match="a time limit is not part of the MDP") as caught:
        extract_mdp(people.Rover(max_steps=20))
    found = re.search(r"reading=(Reading\(.*\))\)$", str(caught.value))
    assert found is not None
    assert found[1] == "Reading(freeze=['current_step'])"
    mdp = extract_mdp(people.Rover(), reading=Reading(freeze=["current_step"]))
    assert mdp.n_states - 1 == ROVER
    assert mdp.metadata["time_limit"] == 100


def test_tuple_actions_are_numbered_as_the_message_says() -> None:
    with pytest.raises(ExtractionError, match="actions must be Discrete") as caught:
        extract_mdp(people.Twins())
    assert "gymnasium.spaces.Discrete(9)" in str(caught.value)
    (line,) = re.findall(r"begin step with action = (.*)$", str(caught.value))
    assert line == "numpy.array(numpy.unravel_index(action, (3, 3)))"

    class Numbered(people.Twins):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.action_space: gym.Space[Any] = gym.spaces.Discrete(9)

        def step(self, action: Any) -> Any:
            return super().step(np.array(np.unravel_index(action, (3, 3))))

    assert extract_mdp(Numbered()).n_states - 1 == TWINS
