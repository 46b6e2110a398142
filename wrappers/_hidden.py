"""What a model of an environment knows and no agent sees: hidden layouts, and hidden generators.

Two episodes that have looked the same so far, after the same actions, and then differ are a proof
that the state holds more than the agent was shown. They are searched twice. Before the enumeration
some episodes are played: frozen attributes, which the model leaves out, take part, and generators
are met that have too many states to be enumerated. After it, pairs of states are followed through
the model (`find_pair`), late and rare differences included.

If what the episodes differ in makes new numbers by itself, whatever the agent does, the environment
is random: a model of its states would foresee chance.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from bisim_abstract.errors import StochasticEnvError
from bisim_abstract.wrappers._encoding import HANDLERS, Encoder, Handler, is_told
from bisim_abstract.wrappers._snapshot import CHECK_SEED, NOT_STATE, AnyEnv, reseed
from bisim_abstract.wrappers._source import reset_env, step_env

__all__ = ["Player", "Witness", "find_pair", "find_witness", "refuse_generator", "replay"]

logger = logging.getLogger(__name__)

HORIZON = 48  # steps of an episode that is played
ROUNDS = 3  # sequences of actions for every group of starts that look the same
MEMBERS = 6  # starts of a group that are played
MOST_STEPS = 1_500  # in all, for a witness
DEPTH = 3  # of attributes of attributes in which a generator is searched
WALK = 12  # steps along which an attribute is watched
ACTIONS = 6  # actions that are tried at each of them
CHANGES = 6  # observed changes of an attribute without which nothing is said about it
MOST_LEAVES = 4_096  # numbers of an attribute; what has more is a world, not a generator

Path: TypeAlias = tuple[str, ...]
Leaf: TypeAlias = int | float | str | bytes


@dataclass(frozen=True)
class _Look:
    """What an agent is shown at a time, and what it could do then."""

    seen: bytes
    mask: bytes
    reward: float
    is_over: bool

    def difference(self, other: _Look) -> str:
        if self.is_over != other.is_over:
            return "one of them ended"
        if self.reward != other.reward:
            return f"the reward was {self.reward} and {other.reward}"
        if self.seen != other.seen:
            return "the observations differed"
        return "the action masks differed"


@dataclass(frozen=True)
class Witness:
    """Two seeds whose episodes look the same until a step tells them apart.

    Attributes:
        seeds: The two.
        actions: The steps up to and including that one.
        difference: What differs then, in words.
    """

    seeds: tuple[int, int]
    actions: tuple[int, ...]
    difference: str


class Player:
    """Plays episodes of an environment, always from a reset.

    Args:
        env: The environment, with its wrappers; it is stepped.
        n_actions: Number of its actions.
        has_masks: Whether the environment reports which actions a state has.
    """

    def __init__(self, env: AnyEnv, n_actions: int, *, has_masks: bool) -> None:
        self.env, self.home = env, env.unwrapped
        self.n_actions, self._has_masks = n_actions, has_masks
        self._handlers: dict[type, Handler] = dict(HANDLERS)
        self.steps = self._strange = self._time = 0

    def reset(self, seed: int) -> _Look:
        self._time = 0
        observation, info = reset_env(self.env, seed)
        return self._look(observation, info, 0.0, is_over=False)

    def step(self, action: int) -> _Look:
        self.steps += 1
        self._time += 1
        for value in vars(self.home).values():
            # What steps draw is gone through elsewhere: here all episodes draw the same.
            if type(value) is np.random.Generator:
                reseed(value, CHECK_SEED + self._time)
        observation, reward, terminated, truncated, info = step_env(
            self.env, action, "a state that a reset leads to"
        )
        return self._look(observation, info, reward, is_over=terminated or truncated)

    def play(self, seed: int, draws: Iterable[int]) -> tuple[list[_Look], list[int]]:
        """An episode, its actions picked by numbers among those that the agent has."""
        looks, actions = [self.reset(seed)], list[int]()
        for draw in draws:
            if looks[-1].is_over:
                break
            own = self.own(looks[-1])
            actions.append(own[draw % len(own)])
            looks.append(self.step(actions[-1]))
        return looks, actions

    def own(self, look: _Look) -> list[int]:
        """The actions that the agent has."""
        actions = list(range(self.n_actions))
        return [action for action in actions if look.mask[action]] if look.mask else actions

    def encoded(self, value: object) -> bytes:
        encoder = Encoder(self.home, self._handlers)
        encoder.add(value)
        return encoder.result()

    def attributes(self, *, depth: int = 1) -> dict[Path, bytes]:
        """Attributes that have a value, frozen ones included, each in its canonical encoding.

        Args:
            depth: 1 for those of the environment, 2 for those of its attributes too, and so on.
        """
        found = {}
        level: list[tuple[Path, Any]] = [((), self.home)]
        for _ in range(depth):
            level = [
                ((*path, name), value)
                for path, item in level
                for name, value in _parts(item).items()
                if (path or name not in NOT_STATE) and is_told(value) and value is not self.home
            ]
            for path, value in level:
                try:
                    found[path] = self.encoded(value)
                except Exception as error:  # of the environment's own code
                    logger.debug("%s cannot be compared: %s", _called(path), error)
        return found

    def value(self, path: Path) -> Any:
        """An attribute; None if it is not there."""
        item: Any = self.home
        for name in path:
            item = _parts(item).get(name)
        return item

    def put(self, path: Path, value: Any) -> None:
        """Set an attribute."""
        *above, name = path
        item = self.value(tuple(above))
        if isinstance(item, tuple):
            self.put(tuple(above), item._replace(**{name: value}))  # type: ignore[attr-defined]
        elif isinstance(item, dict):
            item[name] = value
        else:
            vars(item)[name] = value

    def _look(
        self, observation: Any, info: Mapping[str, Any], reward: float, *, is_over: bool
    ) -> _Look:
        mask = b""
        if self._has_masks and "action_mask" in info:
            mask = (np.asarray(info["action_mask"]).ravel() != 0).astype(np.uint8).tobytes()
        try:
            seen = self.encoded(observation)
        except Exception as error:  # of the observation's own code
            logger.debug("an observation cannot be compared: %s", error)
            self._strange += 1
            seen = b"strange %d" % self._strange  # looks like no other
        return _Look(seen, mask, reward, is_over)


def _parts(item: Any) -> dict[str, Any]:
    """Named parts of an object, a dictionary or a named tuple."""
    if isinstance(item, tuple) and hasattr(item, "_asdict"):
        return dict(item._asdict())
    parts = item if isinstance(item, dict) else getattr(item, "__dict__", {})
    if not isinstance(parts, dict) or isinstance(item, type | ModuleType | FunctionType):
        return {}
    return {name: value for name, value in parts.items() if isinstance(name, str)}


def _called(path: Path) -> str:
    return repr(".".join(path))


# -- episodes that look the same -------------------------------------------------------------------


def find_witness(
    env: AnyEnv, seeds: Sequence[int], n_actions: int, *, has_masks: bool
) -> Witness | None:
    """Two episodes that look the same and then differ; None if none were met.

    Args:
        env: A copy of the environment, with its wrappers; it is stepped.
        seeds: Whose resets are not all the same.
        n_actions: Number of its actions.
        has_masks: Whether the environment reports which actions a state has.

    Raises:
        StochasticEnvError: If an episode does not come back with its seed.
    """
    player = Player(env, n_actions, has_masks=has_masks)
    rng = np.random.default_rng(CHECK_SEED)
    groups: dict[tuple[bytes, bytes], dict[bytes, int]] = {}
    for seed in seeds:
        look = player.reset(seed)
        state = repr(sorted(player.attributes().items())).encode()
        groups.setdefault((look.seen, look.mask), {}).setdefault(state, seed)
    alike = [list(group.values())[:MEMBERS] for group in groups.values() if len(group) > 1]
    alike.sort(key=len, reverse=True)  # stable: the first seeds of equal ones come first
    for _ in range(ROUNDS):
        for group in alike:
            if player.steps >= MOST_STEPS:
                return None
            draws = rng.integers(2**31, size=HORIZON).tolist()
            witness = _split(player, group, draws)
            if witness is not None:
                return witness
    return None


def _split(player: Player, group: Sequence[int], draws: Sequence[int]) -> Witness | None:
    """Play a group with the same actions, and return the two that part first."""
    episodes: list[tuple[int, list[_Look], list[int]]] = []
    for seed in group:
        looks, actions = player.play(seed, draws)
        for other, their_looks, _ in episodes:
            k = _first_difference(looks, their_looks)
            if k is None or k == 0:
                continue
            for again, its_looks in ((seed, looks), (other, their_looks)):
                if not _comes_back(player, again, draws, its_looks[: k + 1]):
                    return None
            difference = their_looks[k].difference(looks[k])
            return Witness((other, seed), tuple(actions[:k]), difference)
        episodes.append((seed, looks, actions))
    return None


def _first_difference(one: Sequence[_Look], other: Sequence[_Look]) -> int | None:
    """Where two episodes part; what ends one of them is a part of its looks."""
    pairs = zip(one, other, strict=False)
    return next((k for k, (left, right) in enumerate(pairs) if left != right), None)


def _comes_back(player: Player, seed: int, draws: Sequence[int], looks: Sequence[_Look]) -> bool:
    """Whether an episode looks as before; one that pays or ends otherwise is chance."""
    again, actions = player.play(seed, draws[: len(looks) - 1])
    for k, (first, second) in enumerate(zip(looks, again, strict=False)):
        if (first.reward, first.is_over) != (second.reward, second.is_over):
            raise StochasticEnvError(
                f"{type(player.home).__name__} is random: after reset(seed={seed}) and the actions "
                f"{actions[:k]} for a second time, {first.difference(second)}; let the seed decide "
                "over everything random, and draw from self.np_random, which is enumerated; or use "
                "estimate_mdp on sampled transitions instead"
            )
        if first != second:
            return False  # an observation of something that outlives episodes proves nothing
    return True


# -- pairs of states -------------------------------------------------------------------------------


def find_pair(
    groups: Iterable[Sequence[int]],
    actions: Callable[[int], Iterable[int]],
    follow: Callable[[int, int], int],
    differ: Callable[[int, int, int], bool],
) -> tuple[int, int, tuple[int, ...]] | None:
    """Two starts that look the same, and actions after which they differ.

    Breadth-first over pairs of states, both of which take the same action. States that were met as
    a pair are joined, and a pair whose states are joined already, by others, is not followed: being
    told apart by no actions is transitive (Hopcroft and Karp). So there are fewer pairs than
    states, no limit is needed, and None means that no two starts of a group can ever be told apart.

    Args:
        groups: Starts that look the same, by their states.
        actions: The actions of a state; those of states that look the same are the same.
        follow: The state after a state and an action; negative where the episode has ended.
        differ: Of two states and an action, whether what the agent is told then differs.

    Returns:
        The starts and the actions, or None.
    """
    above: dict[int, int] = {}

    def root(state: int) -> int:
        while (up := above.get(state, state)) != state:
            above[state] = state = above.get(up, up)
        return state

    met: list[tuple[int, int, int, int]] = []  # a pair, the pair before it, and the action there

    def join(one: int, other: int, before: int, action: int) -> None:
        left, right = root(one), root(other)
        if left != right:
            above[right] = left
            met.append((one, other, before, action))

    for first, *others in groups:
        for start in others:
            join(first, start, -1, -1)
    place = 0
    while place < len(met):
        one, other, *_ = met[place]
        for action in actions(one):
            if differ(one, other, action):
                path, k = [action], place
                while met[k][2] >= 0:
                    path.append(met[k][3])
                    k = met[k][2]
                return met[k][0], met[k][1], tuple(reversed(path))
            after = follow(one, action), follow(other, action)
            if min(after) >= 0:
                join(*after, place, action)
        place += 1
    return None


def replay(player: Player, seeds: tuple[int, int], actions: Sequence[int]) -> Witness | None:
    """Take the same steps in two episodes; None if these look the same all the way.

    Args:
        player: Of the environment. Where it is truncated, it is stepped on: models do not end
            there either.
        seeds: Of the episodes.
        actions: The steps.
    """
    one, other = ([player.reset(seed), *map(player.step, actions)] for seed in seeds)
    k = _first_difference(one, other)
    if k is None or k == 0:
        return None
    return Witness(seeds, tuple(actions[:k]), one[k].difference(other[k]))


# -- generators ------------------------------------------------------------------------------------


def refuse_generator(env: AnyEnv, witness: Witness, n_actions: int, *, has_masks: bool) -> None:
    """Raise if an attribute in which two episodes differ is a generator of chance.

    That is an attribute, or several of which the last two are true together, with all of these:

    - steps change it, at least two actions do (or the only one), and all that do change it alike;
    - put into another episode it goes on as in its own: it depends on nothing but itself;
    - what it becomes is new each time, unlike a deck that shrinks or a guard on a round, and does
      not move by one or two constants, unlike what counts;
    - put into another episode it decides what happens there.

    A generator that comes round within a dozen steps, moves by constants or keeps bits in a list is
    not told from a guard on a round: its environment is for an agent that sees the whole state.

    Args:
        env: As for `find_witness`.
        witness: What that found.
        n_actions: Number of actions.
        has_masks: Whether the environment reports which actions a state has.

    Raises:
        StochasticEnvError: If there is such an attribute; its name and a remedy are in the message.
    """
    player = Player(env, n_actions, has_masks=has_masks)
    first, other = witness.seeds
    player.reset(first)
    here = player.attributes(depth=DEPTH)
    player.reset(other)
    there = player.attributes(depth=DEPTH)
    paths = [path for path in here if path in there and here[path] != there[path]]
    found = sorted(_scrambled(player, paths, witness))
    # One alone, or all together: a generator may keep its numbers in several attributes.
    for some in [*([path] for path in found), *([found] if len(found) > 1 else [])]:
        if not _decides(player, some, witness):
            continue
        name = " and ".join(_called(path) for path in some)
        deeds = ("makes", "decides") if len(some) == 1 else ("make", "decide")
        raise StochasticEnvError(
            f"{type(player.home).__name__} is random: {name} {deeds[0]} a new number in every "
            f"step, whatever the action, and {deeds[1]} what happens. With seeds "
            f"{first} and {other} the same is seen until, after the actions "
            f"{list(witness.actions)}, {witness.difference}: a model with {name} in its states "
            "would foresee what no agent can. Draw from self.np_random instead, which is "
            "enumerated; describe the chances by a function (TabularMDP.from_function), a P table "
            "or to_mdp(); or use estimate_mdp on sampled transitions; if agents do see "
            f"{name}, put that into the observation"
        )


def _scrambled(player: Player, paths: Sequence[Path], witness: Witness) -> set[Path]:
    """Those that steps change alike, whatever the action, to what never was there before."""
    left, rng = set(paths), np.random.default_rng(CHECK_SEED)
    jumps: dict[Path, list[tuple[Leaf, ...]]] = {path: [] for path in paths}
    for seed in [*witness.seeds, *range(max(witness.seeds) + 1, max(witness.seeds) + 7)]:
        draws = rng.integers(2**31, size=WALK).tolist()
        met: dict[Path, set[Leaf]] = {}
        for k in range(WALK):
            looks, _ = player.play(seed, draws[:k])
            if looks[-1].is_over or not left:
                break
            before = {path: _leaves(player, player.value(path)) for path in left}
            after: dict[Path, list[list[Leaf]]] = {path: [] for path in left}
            own = player.own(looks[-1])[:ACTIONS]
            for action in own:
                player.play(seed, draws[:k])
                player.step(action)
                for path in left:
                    after[path].append(_leaves(player, player.value(path)))
            for path in sorted(left):
                old = before[path]
                changed = [new for new in after[path] if new != old]
                met.setdefault(path, set()).update(old)
                is_alike = all(new == changed[0] for new in changed)
                is_moved = len(changed) >= min(2, len(own))
                if not (is_alike and is_moved and set(changed[0]) - met[path]):
                    left.discard(path)
                    continue
                jumps[path].append(_jump(old, changed[0]))
    # Counters, also those that begin anew, move by one or two amounts.
    return {path for path in left if len(jumps[path]) >= CHANGES and len(set(jumps[path])) > 2}


def _decides(player: Player, paths: Sequence[Path], witness: Witness) -> bool:
    """Whether attributes go on by themselves in another episode, and change what happens there."""
    first, other = witness.seeds
    rng = np.random.default_rng(CHECK_SEED)
    found = False
    for k in range(ROUNDS):
        if k == 0:
            draws = _as_draws(player, first, witness.actions)
        else:
            draws = rng.integers(2**31, size=HORIZON).tolist()
        own_looks, _ = player.play(first, draws)
        own_orbit = _orbit(player, paths, other, draws)
        player.reset(other)
        try:
            values = [copy.deepcopy(player.value(path)) for path in paths]
        except Exception as error:  # of an attribute's own code
            logger.debug("%s cannot be copied: %s", " or ".join(map(_called, paths)), error)
            return False
        looks, orbit = [player.reset(first)], list[list[list[Leaf]]]()
        for path, value in zip(paths, values, strict=True):
            player.put(path, value)
        for draw in draws:
            if looks[-1].is_over:
                break
            own = player.own(looks[-1])
            looks.append(player.step(own[draw % len(own)]))
            orbit.append([_leaves(player, player.value(path)) for path in paths])
        shared = min(len(orbit), len(own_orbit))
        if orbit[:shared] != own_orbit[:shared]:
            return False
        found |= looks[1:] != own_looks[1:]
    return found


def _as_draws(player: Player, seed: int, actions: Sequence[int]) -> list[int]:
    """Numbers that pick just these actions."""
    draws, look = list[int](), player.reset(seed)
    for action in actions:
        draws.append(player.own(look).index(action))
        look = player.step(action)
    return draws


def _orbit(
    player: Player, paths: Sequence[Path], seed: int, draws: Sequence[int]
) -> list[list[list[Leaf]]]:
    """What becomes of attributes in their own episode."""
    look, orbit = player.reset(seed), list[list[list[Leaf]]]()
    for draw in draws:
        if look.is_over:
            break
        own = player.own(look)
        look = player.step(own[draw % len(own)])
        orbit.append([_leaves(player, player.value(path)) for path in paths])
    return orbit


def _jump(old: Sequence[Leaf], new: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """How far numbers moved; the new value itself where these are not numbers."""
    pairs = list(zip(old, new, strict=False))
    if len(old) == len(new) and all(
        isinstance(x, int | float) and isinstance(y, int | float) for x, y in pairs
    ):
        return tuple(y - x for x, y in pairs)  # type: ignore[operator]
    return tuple(new)


def _leaves(player: Player, value: Any) -> list[Leaf]:
    """The numbers and texts that a value consists of."""
    found: list[Leaf] = []
    waiting, met = [value], set[int]()
    while waiting and len(found) < MOST_LEAVES:
        item = waiting.pop()
        if isinstance(item, int | float | str | bytes):
            found.append(item)
        elif isinstance(item, np.generic | np.ndarray):
            found += np.asarray(item).ravel()[:MOST_LEAVES].tolist()
        elif item is None or item is player.home or id(item) in met:
            continue
        elif isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, set | frozenset):
            waiting += sorted(item, key=player.encoded)  # the order of a set is nobody's
        elif isinstance(item, list | tuple | deque):
            waiting += item
        elif hasattr(item, "__array__"):
            found += _numbers(item)
        elif hasattr(item, "__dict__"):
            waiting += vars(item).values()
        else:
            found.append(player.encoded(item))
        met.add(id(item))
    return found


def _numbers(item: Any) -> list[Leaf]:
    """Those of another library's array; JAX's keys of the newer kind are none, but show them."""
    try:
        return list(np.asarray(item).ravel()[:MOST_LEAVES].tolist())
    except (TypeError, ValueError):
        return [repr(item)]
