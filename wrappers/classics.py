"""Environments of the package gym-classics, which tell all outcomes of a state and an action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

from bisim_abstract._base.checks import check_choice
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.search import NORMALISE
from bisim_abstract.errors import ExtractionError, InvalidMDPError

# A line that divides by sums. Outcomes hold single floats, which would not sum to 1 once divided.
DIVIDED = (
    "mdp = TabularMDP.from_function({env.encode(s): 1 / len(env._starts) for s in env._starts}, "
    "int(env.action_space.n), lambda s, a: [(float(p) / total, env.encode(t), float(r), "
    "bool(d)) for rows in [list(env._generate_transitions(env.decode(s), a))] "
    "for total in [sum(float(row[3]) for row in rows)] for t, r, d, p in rows])"
)

Outcome: TypeAlias = tuple[float, int, float, bool]


class ClassicsTable:
    """The model of an environment of gym-classics, and which of its states it is in.

    Read is what the environment's `model(state, action)` is made of. `model` itself merges outcomes
    of the same next state, of which some may end the episode and others not.

    Args:
        env: A `gym_classics.envs.abstract.base_env.BaseEnv`.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def to_mdp(self, *, terminal: str = "absorb") -> TabularMDP:
        """The model of the states that can be reached.

        Args:
            terminal: "absorb" or "table", as in `TabularMDP.from_table`.
        """
        check_choice("terminal", terminal, ("absorb", "table"))
        env = self._env
        absorbs = terminal == "absorb"

        def outcomes(state: int, action: int) -> Iterator[Outcome]:
            for prob, after, reward, is_end in self._outcomes(state, action):
                yield prob, after, reward, is_end and absorbs

        starts = Counter(map(env.encode, env._starts))
        start = {state: count / starts.total() for state, count in starts.items()}
        try:
            mdp = TabularMDP.from_function(start, int(env.action_space.n), outcomes)
        except InvalidMDPError as error:
            line = f", with env = env.unwrapped: {DIVIDED}"
            if NORMALISE not in str(error):
                line = (
                    "; correct them in a function of your own: "
                    "TabularMDP.from_function(start, actions, transitions)"
                )
            raise ExtractionError(
                f"the outcomes that {type(env).__name__} lists are not an MDP: {error}{line}"
            ) from error
        names = [env.decode(state) if state >= 0 else "the end" for state in mdp.state_ids.tolist()]
        return mdp.with_names(states=names).with_metadata(method="outcomes")

    def state_id(self) -> int:
        """The number of the present state, which is its observation."""
        return int(self._env.encode(self._env.state))

    def can_pay(self, state: int, action: int, *, is_end: bool) -> tuple[float, ...]:
        """All rewards that an action of a state can have; at an end, those of ends alone."""
        listed = self._outcomes(state, action)
        return tuple(paid for prob, _, paid, ends in listed if prob > 0.0 and (ends or not is_end))

    def _outcomes(self, state: int, action: int) -> Iterator[Outcome]:
        env = self._env
        for after, reward, is_end, prob in env._generate_transitions(env.decode(state), action):
            yield prob, env.encode(after), float(reward), bool(is_end)
