"""What states, actions and rewards of a model are called, for people.

No number depends on a name, and names are not part of what a model is: two models that differ in
them are equal. The one thing that names do say about numbers is that of several rewards kept side
by side (`Names.rewards`): then every action occurs once for each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import as_frozen
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.text import plain_text, shortened
from bisim_abstract._base.types import BoolArray, IntArray
from bisim_abstract.errors import InvalidMDPError

UNKNOWN = int(np.iinfo(np.int64).min)  # the value of a variable that a state does not have
TRUTH = ("false", "true")
WHOLE = 2**53  # up to here floats hold all whole numbers
MOST = 60  # characters of a name inside a sentence


@dataclass(frozen=True, eq=False, kw_only=True)
class Variable:
    """One of the variables that tell states apart: a whole number for each state.

    Attributes:
        name: Its name; empty where the value alone says enough.
        values: (n_states) its values, `UNKNOWN` where a state has none.
        words: What the values 0, 1, ... are called; None where they are numbers.
    """

    name: str
    values: IntArray
    words: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "name", plain_text(str(self.name)))
        set_field(self, "values", as_frozen(f"variable {self.name}", self.values, np.int64))
        if self.values.ndim != 1:
            raise InvalidMDPError(f"variable {self.name!r} must have one value for each state")
        if self.words is None:
            return
        set_field(self, "words", tuple(plain_text(str(word)) for word in self.words))
        known = self.values[self.values != UNKNOWN]
        if known.size and (known.min() < 0 or known.max() >= len(self.words)):
            raise InvalidMDPError(
                f"variable {self.name!r} has {len(self.words)} words, and a value outside of them"
            )

    def text(self, state: int) -> str:
        """Name and value in a state; empty where it has none."""
        value = int(self.values[state])
        if value == UNKNOWN:
            return ""
        word = str(value) if self.words is None else self.words[value]
        return f"{self.name}={word}" if self.name else word

    def listed(self, begin: int, end: int) -> list[Any]:
        """Values of some states in a row, numbers or words; None where there is none."""
        values, words = self.values[begin:end].tolist(), self.words
        return [None if v == UNKNOWN else v if words is None else words[v] for v in values]

    def column(self) -> npt.NDArray[Any]:
        """(n_states) values for a table: numbers, or words; NaN or None where there is none."""
        is_known = self.values != UNKNOWN
        if self.words is not None:
            words = np.array([*self.words, None], object)  # the last stands for none
            return np.asarray(words[np.where(is_known, self.values, len(self.words))])
        if is_known.all():
            return self.values
        if int(np.abs(self.values[is_known]).max(initial=0)) <= WHOLE:
            return np.where(is_known, self.values, np.nan)
        found = self.values.astype(object)
        found[~is_known] = None
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Names:
    """What states, actions and rewards are called.

    Attributes:
        actions: A name for each action; None where they are numbered.
        variables: What tells states apart.
        labels: (n_states) sets of states that have a name, such as a goal.
        rewards: Names of rewards that are kept side by side, if there are several: action
            `a * len(rewards) + k` then does what action a does, and pays the k-th of them.
    """

    actions: tuple[str, ...] | None = None
    variables: tuple[Variable, ...] = ()
    labels: Mapping[str, BoolArray] = field(default_factory=dict)
    rewards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if self.actions is not None:
            set_field(self, "actions", tuple(plain_text(str(name)) for name in self.actions))
        set_field(self, "variables", tuple(self.variables))
        set_field(self, "rewards", tuple(plain_text(str(name)) for name in self.rewards))
        labels = {
            plain_text(str(name)): as_frozen(f"label {name}", states, np.bool_)
            for name, states in self.labels.items()
        }
        set_field(self, "labels", MappingProxyType(labels))

    def check(self, n_states: int, n_actions: int) -> None:
        """Raise unless these are names for so many states and actions."""
        if self.actions is not None and len(self.actions) != n_actions:
            raise InvalidMDPError(f"names.actions must be {n_actions}, got {len(self.actions)}")
        for variable in self.variables:
            if variable.values.shape != (n_states,):
                raise InvalidMDPError(
                    f"variable {variable.name!r} must have {n_states} values, got "
                    f"{variable.values.size}"
                )
        for name, states in self.labels.items():
            if states.shape != (n_states,):
                raise InvalidMDPError(
                    f"label {name!r} must have shape ({n_states},), got {states.shape}"
                )
        if self.rewards and n_actions % len(self.rewards):
            raise InvalidMDPError(
                f"{n_actions} actions cannot hold {len(self.rewards)} rewards each"
            )

    def take(self, states: IntArray, *, has_own_actions: bool = True) -> Names:
        """The names of some states, in their order, and those of actions unless they changed."""
        own = self if has_own_actions else replace(self, actions=None, rewards=())
        return replace(
            own,
            variables=tuple(replace(v, values=v.values[states]) for v in self.variables),
            labels={name: members[states] for name, members in self.labels.items()},
        )

    def of_actions(self) -> Names:
        """The names of actions and rewards alone, for other states."""
        return Names(actions=self.actions, rewards=self.rewards)

    def state(self, state: int) -> str:
        """What a state is called; empty where nothing is known of it."""
        return ", ".join(filter(None, (variable.text(state) for variable in self.variables)))

    def columns(self, taken: Collection[str] = ()) -> dict[str, Variable]:
        """Variables by names that columns of a table can have: no two are the same.

        Args:
            taken: Names of other columns: variables of these names have `variable_` before them.
        """
        found: dict[str, Variable] = {}
        for variable in self.variables:
            name = variable.name or "name"
            while name in taken or name in found:
                name = f"variable_{name}"
            found[name] = variable
        return found

    def state_text(self, state: int, *, most: int | None = MOST) -> str:
        """A state in a sentence: its number, and what it is called, if anything.

        Args:
            state: Its number.
            most: Characters of the name, of which a longer one is cut; None for all.
        """
        name = self.state(state)
        return with_name(state, name, most=most)

    def action_text(self, action: int) -> str:
        """An action in a sentence: its name, or its number where it has no name of its own."""
        name = "" if self.actions is None else self.actions[action]
        if name and name not in self._unclear:
            return shortened(name, MOST)
        return with_name(action, name)

    @cached_property
    def _unclear(self) -> frozenset[str]:
        """Names of actions that do not tell which is meant: shared ones, and numbers."""
        counts = Counter(self.actions or ())
        return frozenset(name for name, n in counts.items() if n > 1 or name.isdecimal())

    def __reduce__(self) -> tuple[Any, ...]:
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _rebuild, (parts | {"labels": dict(self.labels)},)

    # -- files -----------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """What a file holds besides arrays."""
        return {
            "actions": None if self.actions is None else list(self.actions),
            "variables": [
                [v.name, None if v.words is None else list(v.words)] for v in self.variables
            ],
            "labels": list(self.labels),
            "rewards": list(self.rewards),
        }

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Values of variables, one row each, and labels likewise, as bits."""
        values = np.array([v.values for v in self.variables], np.int64)
        labels = np.array(list(self.labels.values()), bool)
        return {"values": values, "labels": np.packbits(labels, axis=-1) if labels.size else labels}

    @classmethod
    def from_parts(
        cls,
        header: Mapping[str, Any],
        values: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        n_states: int,
    ) -> Names:
        """What `header` and `arrays` told of."""
        variables = header["variables"]
        if values.shape[:1] != (len(variables),) or labels.shape[:1] != (len(header["labels"]),):
            raise InvalidMDPError("names and their arrays do not fit together")
        if labels.size and labels.dtype != np.uint8:
            raise InvalidMDPError(f"labels must be packed as bytes, not as {labels.dtype}")
        bits = np.unpackbits(labels, axis=-1, count=n_states) if labels.size else labels
        return cls(
            actions=None if header["actions"] is None else tuple(header["actions"]),
            variables=tuple(
                Variable(name=name, values=row, words=None if words is None else tuple(words))
                for (name, words), row in zip(variables, values, strict=True)
            ),
            labels=dict(zip(header["labels"], bits.astype(bool), strict=True)),
            rewards=tuple(header["rewards"]),
        )


def with_name(number: int, name: str, *, most: int | None = MOST) -> str:
    """A number with a name, as it stands in sentences: "17 (row=3, column=1)".

    Args:
        number: The number.
        name: The name; empty for none, and the number stands alone.
        most: Characters of the name, of which a longer one is cut; None for all.
    """
    if not name:
        return f"{number}"
    return f"{number} ({name if most is None else shortened(name, most)})"


def state_words(names: Iterable[object]) -> Variable:
    """A variable that calls each state by a name of its own."""
    texts = [str(name) for name in names]
    return Variable(name="", values=np.arange(len(texts)), words=tuple(texts))


def as_variable(name: str, values: npt.ArrayLike | Sequence[object]) -> Variable:
    """A variable from whatever tells states apart: numbers, truth values or words.

    Args:
        name: Its name.
        values: (n_states) whole numbers, booleans, or anything whose text is a name.
    """
    given = np.asarray(values)
    if given.dtype.kind == "b":
        return Variable(name=name, values=given.astype(np.int64), words=TRUTH)
    if given.dtype.kind in "iu":
        return Variable(name=name, values=given)
    texts = [str(value) for value in values]  # type: ignore[union-attr]
    words, codes = np.unique(texts, return_inverse=True)
    return Variable(name=name, values=codes, words=tuple(words.tolist()))


def paid_in(reward: str) -> str:
    """What is added to the name of an action that pays one of several rewards."""
    return f", paid in {reward}"


def _rebuild(parts: dict[str, Any]) -> Names:
    return Names(**parts)
