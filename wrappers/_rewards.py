"""Rewards of the outermost environment: wrappers that change them, as functions of one reward.

A wrapper that computes a reward from the reward alone is applied to every outcome, before rewards
are averaged. One that keeps a memory pays the same step differently at different times, which no
table can say, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from bisim_abstract._base.reading import Reading
from bisim_abstract.errors import ExtractionError
from bisim_abstract.wrappers._source import RAISED, TableSource, find_source, layers

LINEAR = "mo_gymnasium.wrappers.wrappers.LinearReward"  # its weights are called `w`
BONUS = "how often places were visited"
MEMORIES = {
    "gymnasium.wrappers.stateful_action.StickyAction": "the last action",
    "gymnasium.wrappers.stateful_reward.NormalizeReward": "the spread of earlier returns",
    "minigrid.wrappers.ActionBonus": BONUS,
    "minigrid.wrappers.PositionBonus": BONUS,
    "minigrid.wrappers.StateBonus": BONUS,
    "mo_gymnasium.wrappers.wrappers.MONormalizeReward": "the spread of earlier returns",
}


OWN = ("env", "_cached_spec")  # attributes that Gymnasium gives wrappers and sets itself


class WeightedReward(gym.RewardWrapper[Any, Any], RecordConstructorArgs):
    """Pays the sum of a vector's numbers times weights.

    Args:
        env: An environment whose rewards are vectors.
        weights: One for each of their numbers.
    """

    def __init__(self, env: gym.Env[Any, Any], weights: Sequence[float]) -> None:
        self.weights = [float(weight) for weight in weights]
        RecordConstructorArgs.__init__(self, weights=self.weights)
        gym.RewardWrapper.__init__(self, env)

    def reward(self, reward: Any) -> float:
        """The weighted sum of a reward."""
        numbers = np.asarray(reward, np.float64)
        if numbers.shape != (len(self.weights),):
            what = f"vectors of {numbers.size}" if numbers.ndim else "single numbers"
            raise ExtractionError(
                f"weights has length {len(self.weights)}, but rewards of "
                f"{type(self.unwrapped).__name__} are {what}; "
                f"{'give one for each' if numbers.ndim else 'leave it out'}"
            )
        return math.fsum(w * r for w, r in zip(self.weights, numbers.tolist(), strict=True))


def weigh(env: gym.Env[Any, Any], reading: Reading) -> gym.Env[Any, Any]:
    """The environment with rewards weighted as a reading says, if it does and they are not yet.

    Raises:
        ExtractionError: If it describes itself, or was weighted otherwise.
    """
    if reading.weights is None:
        return env
    known = [layer.weights for layer in layers(env) if isinstance(layer, WeightedReward)]
    if known == [list(reading.weights)]:
        return env
    if known:
        raise ExtractionError(
            f"rewards are weighted already, by {known[0]}, and weights says {reading.weights}"
        )
    if find_source(env) is not None:
        raise ExtractionError(
            f"weights goes with rewards that are vectors; {type(env.unwrapped).__name__} is "
            "described by a model, whose rewards are numbers"
        )
    return WeightedReward(env, reading.weights)


def weights_in(reading: Reading) -> dict[str, Any]:
    """What the metadata of a model say about weights."""
    return {} if reading.weights is None else {"weights": list(reading.weights)}


class Pay:
    """What the wrappers of an environment make of a reward, from the innermost outwards.

    Attributes:
        wrappers: Their names, from the outside in.
    """

    def __init__(self, functions: dict[str, Callable[[Any], Any]]) -> None:
        self.wrappers = tuple(functions)
        self._functions = list(reversed(functions.values()))
        self._known: dict[bytes, bytes] = {}

    def __call__(self, reward: Any) -> Any:
        """The reward of the outermost environment.

        Raises:
            ExtractionError: If it is not the same whenever it is asked for.
        """
        paid, again = self._apply(reward), self._apply(reward)
        found = np.asarray(paid, np.float64).tobytes()
        known = self._known.setdefault(np.asarray(reward, np.float64).tobytes(), found)
        if found != known or np.asarray(again, np.float64).tobytes() != known:
            raise ExtractionError(
                f"the wrapper {' or '.join(self.wrappers)} makes different rewards of the reward "
                f"{reward}: it keeps a memory, or depends on more than the reward, which the table "
                "does not know; extract the model without it"
            )
        return paid

    def _apply(self, reward: Any) -> Any:
        try:
            for function in self._functions:
                reward = function(reward)
        except ExtractionError:
            raise
        except Exception as error:
            error.add_note(f"{RAISED} reward of {' or '.join(self.wrappers)}")
            raise
        return reward


def find_pay(env: gym.Env[Any, Any]) -> Pay | None:
    """What wrappers make of rewards; None if there are none that change them.

    Wrappers inside of one that describes itself are its own business. Of others that change rewards
    in `step`, without saying so by their class, real steps tell.

    Raises:
        ExtractionError: If a wrapper keeps a memory, or rewards are known as averages only.
    """
    functions: dict[str, Callable[[Any], Any]] = {}
    for layer in layers(env):
        if isinstance(layer, TableSource):
            break
        name = type(layer).__name__
        kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(layer).__mro__}
        for memory in kinds & MEMORIES.keys():
            raise ExtractionError(
                f"the wrapper {name} keeps a memory ({MEMORIES[memory]}), which no state of the "
                "table holds; extract the model without it"
            )
        if LINEAR in kinds:
            functions[_free(name, functions)] = _weighted(layer)
        elif isinstance(layer, gym.RewardWrapper):
            own: Any = type(layer)
            if own.step is not gym.RewardWrapper.step or own.reset is not gym.Wrapper.reset:
                raise ExtractionError(
                    f"the wrapper {name} changes rewards in a step or reset of its own, and may "
                    "keep a memory there; compute them in reward(reward) alone, or extract the "
                    "model without it"
                )
            functions[_free(name, functions)] = layer.reward
    if not functions:
        return None
    if find_source(env) is not None:
        described = type(env.unwrapped).__name__
        raise ExtractionError(
            f"the wrapper {next(iter(functions))} changes rewards, but {described} is described "
            "by a model, which holds average rewards only; extract the model without "
            "this wrapper"
        )
    return Pay(functions)


def find_memory(env: gym.Env[Any, Any], trial: gym.Env[Any, Any]) -> str:
    """A sentence on wrappers whose attributes changed while a copy was stepped; or empty.

    Args:
        env: The environment.
        trial: The copy. Gymnasium's own wrappers and those of this package are not mentioned.
    """
    for layer, stepped in zip(layers(env), layers(trial), strict=True):
        package = type(layer).__module__.partition(".")[0]
        if not isinstance(layer, gym.Wrapper) or package in ("gymnasium", "bisim_abstract"):
            continue
        before, after = vars(layer), vars(stepped)
        changed = [name for name in after if name not in OWN and _differs(before, after, name)]
        if changed:
            memory = ", ".join(sorted(changed))
            return (
                f"The wrapper {type(layer).__name__} keeps a memory ({memory}), which no state "
                "of the table holds; extract the model without it"
            )
    return ""


def _differs(before: dict[str, Any], after: dict[str, Any], name: str) -> bool:
    return name not in before or repr(before[name]) != repr(after[name])


def _weighted(layer: Any) -> Callable[[Any], Any]:
    return lambda reward: np.dot(reward, layer.w)


def _free(name: str, taken: dict[str, Any]) -> str:
    """The name, or for a second wrapper of a class the name with a number."""
    count = sum(each.partition(" ")[0] == name for each in taken)
    return f"{name} {count + 1}" if count else name
