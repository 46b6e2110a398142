"""What an environment that counts its steps does with the count: time limits, and rewards."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from bisim_abstract.wrappers._snapshot import Codec, unpacked
from bisim_abstract.wrappers._source import step_env

__all__ = ["find_time_limit", "played_time_limit", "reward_trend"]

logger = logging.getLogger(__name__)

LONGEST = 2**20  # steps: what allows more has no limit that anybody meets
MOST_PLAYED = 10_000  # steps of an episode that is played until it is truncated
EPISODES = 6  # that are played at most, where some of them terminate
LATER = 16  # steps after which rewards are compared with those of first steps


def find_time_limit(codec: Codec, snapshot: bytes, action: int) -> int | None:
    """The number of steps after which the environment itself truncates an episode.

    That is read from what it does, not from a name: a frozen number is set ahead as if so many
    steps had been taken, and one step is taken. What truncates now and not one step earlier is the
    limit. Only whole numbers that count up, and limits that go on to hold beyond themselves, are
    found in this way; `played_time_limit` finds others.

    Args:
        codec: Of the environment, with what is frozen held.
        snapshot: Of the state after reset.
        action: One that does not end the episode there.
    """
    limits = [
        limit
        for name, make in sorted(codec.held.items())
        if type(begin := make()) is int
        and (limit := _limit_of(codec, snapshot, action, name, begin)) is not None
    ]
    codec.restore(snapshot)
    return min(limits, default=None)


def _limit_of(codec: Codec, snapshot: bytes, action: int, name: str, begin: int) -> int | None:
    def is_cut(taken: int) -> bool:
        """Whether the step after so many is truncated."""
        codec.restore(snapshot)
        vars(codec.home)[name] = begin + taken
        return step_env(codec.home, action, "the state after reset", codec.pay)[3]

    attributes = vars(codec.home)
    told = {value for value in attributes.values() if type(value) is int and 1 < value < LONGEST}
    try:
        for limit in sorted(told):  # most are kept in an attribute, and two steps settle it
            if is_cut(limit - 1) and not is_cut(limit - 2):
                return limit
        high = 1
        while not is_cut(high):
            high *= 2
            if high > LONGEST:
                return None
        low = high // 2  # where no step is cut, or `high` is 1 and the first one is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_cut(middle) else (middle, high)
    except Exception as error:  # of the environment's own code, for counts that it never has
        logger.debug("no time limit from %r: %s: %s", name, type(error).__name__, error)
        return None
    return high + 1


def played_time_limit(episode: Callable[[int], Iterator[bool]]) -> int | None:
    """The number of steps after which two episodes with different actions are truncated.

    However the environment counts. It is assumed, and not proven, that the limit depends on the
    number of steps alone: two episodes were truncated after the same number. Limits above
    `MOST_PLAYED` steps are not found, nor are those that episodes terminate before.

    Args:
        episode: Plays one of several episodes, step by step, for as long as it does not terminate,
            and says of each step whether it was truncated. Nothing is held.
    """
    limits: list[int] = []
    for turn in range(EPISODES):
        taken = 0
        try:
            for is_cut in islice(episode(turn), MOST_PLAYED):
                taken += 1
                if is_cut:
                    limits.append(taken)
                    break
        except Exception as error:  # of the environment's own code, beyond the enumerated steps
            logger.debug("no time limit by playing: %s: %s", type(error).__name__, error)
            return None
        if len(limits) == 2:
            return limits[0] if limits[0] == limits[1] else None
        if taken == MOST_PLAYED and not limits:
            return None
    return None


def reward_trend(
    codec: Codec,
    steps: Sequence[tuple[bytes, int, float]],
    walk: Callable[[], bool],
) -> str:
    """How rewards move with the steps taken: "fall", "rise", "change", or "" if they do not.

    Args:
        codec: Of the environment, with what is frozen held.
        steps: Compressed snapshots, actions, and what the model has them pay.
        walk: Takes one step of an episode, nothing held, and says whether it can go on.
    """
    for _ in range(LATER):
        if not walk():
            break
    later: dict[str, Any] = {}
    for name in sorted(codec.freeze & set(vars(codec.home))):
        try:
            later[name] = copy.deepcopy(vars(codec.home)[name])
        except Exception as error:  # of the attribute's own code: it stays as it is held
            logger.debug("%r cannot be copied: %s", name, error)
    moved: set[int] = set()
    for stored, action, reward in steps:
        codec.restore(unpacked(stored))
        vars(codec.home).update(copy.deepcopy(later))
        found = step_env(codec.home, action, "a state", codec.pay)[1]
        moved.add((found > reward) - (found < reward))
    moved.discard(0)
    if not moved:
        return ""
    return "change" if len(moved) > 1 else "rise" if 1 in moved else "fall"
