"""Models from functions: breadth-first search over what a function says of states and actions."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum, EnumType
from typing import Any, SupportsFloat, TypeAlias, cast

import numpy as np

from bisim_abstract._base.checks import check_int
from bisim_abstract._base.deadline import look
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.text import short
from bisim_abstract._base.types import IntArray, Progress, ProgressCallback
from bisim_abstract._model.checks import ROW_SUM_TOL
from bisim_abstract._model.graphs import action_order
from bisim_abstract._model.matrices import expected_rewards
from bisim_abstract._model.names import UNKNOWN, Names, Variable, as_variable, state_words
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError, StateLimitError

Outcome: TypeAlias = tuple[SupportsFloat, Hashable, SupportsFloat, bool | np.bool_]
Transitions: TypeAlias = Callable[[Any, Any], Iterable[Outcome]]
Actions: TypeAlias = int | Sequence[Hashable] | type[Enum] | Callable[[Any], Iterable[Hashable]]

BATCH = 64  # most states between two looks at how many outcomes there are
AT_ONCE = 2**14  # outcomes between two reports, and two checks of their numbers
ENTRY_BYTES, STATE_BYTES = 140, 800  # at the peak: of an outcome, and of a state with its name
CELL_BYTES = 80  # of a state and an action
REPEATS = 256  # calls that are made twice
COMPARED = 10_000  # last states whose parts are compared to explain a state limit
NOTHING: Any = object()  # in place of what a call has not given yet
END = -1  # where an outcome leads that ends the episode
NEAR = 1e-3  # what may be missing of a row for it to be rounding, or a tail that was cut
NORMALISE = "if that is rounding or a tail that was cut, divide each row by its sum"
FORM = "(probability, next state, reward, terminated)"


def rows_of_function(
    start: Hashable | Mapping[Any, float],
    actions: Actions,
    transitions: Transitions,
    *,
    max_states: int,
    callback: ProgressCallback | None,
) -> dict[str, Any]:
    """What makes a model of a function, rows not yet sorted; see `TabularMDP.from_function`."""
    if not callable(transitions):
        raise InvalidArgumentError(
            f"transitions must be a function of state and action, got {short(transitions)}"
        )
    max_states = check_int("max_states", max_states, low=1)
    search = _Search(actions, transitions, max_states)
    begins = search.add_start(start)
    search.run(callback)
    search.repeat()
    return search.rows(begins)


class _Numbers(dict[Hashable, int]):
    """Numbers by first appearance: what is not known yet gets the next one, and is listed."""

    def __init__(self, limit: float = math.inf) -> None:
        self.listed: list[Any] = []
        self.limit = limit

    def __missing__(self, key: Hashable) -> int:
        number = len(self)
        if number >= self.limit:
            raise StateLimitError
        self[key] = number
        self.listed.append(key)
        return number


class _Search:
    """The search: states in the order in which they are met, and a row for each of their actions.

    Args:
        actions: As `TabularMDP.from_function` takes them.
        transitions: The function.
        limit: Most states.
    """

    def __init__(self, actions: Actions, transitions: Transitions, limit: int) -> None:
        self._transitions = transitions
        self._numbers = _Numbers(limit)
        self._columns = _Numbers()
        self._tell: Callable[[Any], Iterable[Hashable]] | None = None
        self._fixed = _fixed_actions(actions)
        if self._fixed is None:
            self._tell = cast(Callable[[Any], Iterable[Hashable]], actions)
        else:
            for action in self._fixed:
                self._columns[action]
        # Outcomes one after another, where those of each row end, and state and action of a row.
        self._targets, self._probs, self._paid = array("q"), array("d"), array("d")
        self._ends, self._row_states, self._row_columns = array("q"), array("q"), array("q")
        self._checked = 0  # rows

    def add_start(self, start: Any) -> dict[int, float]:
        """Where episodes begin: probabilities by number."""
        given = start if isinstance(start, Mapping) else {_hashable_start(start): 1.0}
        begins: dict[int, float] = {}
        for state, mass in given.items():
            try:
                value = float(mass)
            except (TypeError, ValueError):
                raise InvalidArgumentError(
                    f"start must map states to probabilities, got {short(mass)} for {short(state)}"
                ) from None
            if not math.isfinite(value) or value < 0.0:
                raise InvalidArgumentError(
                    f"start must hold finite probabilities of 0 or more, got {value} for "
                    f"{short(state)}"
                )
            if value > 0.0:
                try:
                    begins[self._numbers[state]] = value
                except StateLimitError:
                    raise self._too_many("as a start") from None
        total = math.fsum(begins.values())
        if not abs(total - 1.0) <= ROW_SUM_TOL:
            raise InvalidArgumentError(f"probabilities of start must sum to 1, got {total!r}")
        return begins

    def run(self, callback: ProgressCallback | None) -> None:
        """Search until all states are explored."""
        states, done, checked, size = self._numbers.listed, 0, 0, 1
        while done < len(states):
            batch = states[done : done + size]
            self._explore(batch, done)
            done += len(batch)
            if done == 1:
                self._check_rows()  # what is wrong with the first state often is with all
            fitting = AT_ONCE * done // max(len(self._targets), 1)
            size = max(min(2 * size, BATCH, fitting), 1)
            if done < len(states) and len(self._targets) - checked < AT_ONCE:
                continue
            checked = len(self._targets)
            self._check_rows()
            look()
            self._check_room()
            if callback is not None:
                waiting = len(states) - done
                callback(Progress("states", done, detail=f"{waiting:,} found and not explored yet"))

    def _explore(self, batch: list[Any], number: int) -> None:
        """Call the function for all actions of some states, the first of which has this number."""
        transitions, numbers, tell = self._transitions, self._numbers, self._tell
        targets, ends = self._targets, self._ends
        add_target, add_prob, add_paid = targets.append, self._probs.append, self._paid.append
        add_end, add_state, add_column = ends.append, self._row_states.append, None
        own: Iterable[Any] = self._fixed or ()
        if tell is not None:
            add_column = self._row_columns.append
        outcomes: Any
        for number, state in enumerate(batch, number):  # noqa: B020 - goes on from it
            if tell is not None:
                own = self._actions_of(state)
            action = outcomes = outcome = NOTHING
            try:
                for action in own:
                    outcomes = outcome = NOTHING
                    outcomes = transitions(state, action)
                    for outcome in outcomes:
                        prob, after, reward, is_end = outcome
                        if is_end is False:
                            if prob:
                                add_target(numbers[after])
                                add_prob(prob)
                                add_paid(reward)
                        elif is_end is True:
                            if prob:
                                add_target(END)
                                add_prob(prob)
                                add_paid(reward)
                        elif not isinstance(is_end, np.bool_):
                            raise TypeError
                        elif prob:
                            add_target(END if is_end else numbers[after])
                            add_prob(prob)
                            add_paid(reward)
                    add_end(len(targets))
                    add_state(number)
                    if add_column is not None:
                        add_column(self._columns[action])
            except StateLimitError:
                raise self._too_many(f"as a next state of {_where(state, action)}") from None
            except MemoryError:
                raise
            except Exception as error:
                raise _problem(error, _where(state, action), outcomes, outcome) from error

    def _actions_of(self, state: Any) -> list[Any]:
        """The actions of a state, where a function tells them."""
        assert self._tell is not None
        try:
            own = list(self._tell(state))
        except MemoryError:
            raise
        except Exception as error:
            raise InvalidMDPError(
                f"actions(state) raised {_error_text(error)} at state {short(state)}"
            ) from error
        try:
            is_repeated = len(set(own)) < len(own)
        except TypeError:
            raise InvalidMDPError(
                f"actions must be hashable, got {short(own)} at state {short(state)}; use tuples "
                "in place of lists and arrays"
            ) from None
        if is_repeated:
            raise InvalidMDPError(
                f"actions(state) must list each action once, got {short(own)} at state "
                f"{short(state)}"
            )
        if not own:
            raise InvalidMDPError(
                f"state {short(state)} has no actions; give it one that stays, or mark outcomes "
                "that lead there as terminated"
            )
        return own

    # -- checking --------------------------------------------------------------------------

    def _place(self, row: int) -> tuple[Any, Any]:
        """State and action of a row."""
        column = self._row_columns[row] if self._tell else row % len(self._columns)
        return self._numbers.listed[self._row_states[row]], self._columns.listed[column]

    def _check_rows(self) -> None:
        """Raise unless the rows that were added since the last check hold distributions."""
        first, self._checked = self._checked, len(self._ends)
        begin = self._ends[first - 1] if first else 0
        sizes = np.diff(np.array(self._ends[first:]), prepend=begin)
        probs, paid = np.array(self._probs[begin:]), np.array(self._paid[begin:])
        rows = np.repeat(np.arange(sizes.size), sizes)
        for values, is_bad, rule in (
            (probs, ~(np.isfinite(probs) & (probs > 0.0)), "probabilities must be finite and >= 0"),
            (paid, ~np.isfinite(paid), "rewards must be finite"),
        ):
            if is_bad.any():
                k = int(np.argmax(is_bad))
                where = _where(*self._place(first + int(rows[k])))
                raise InvalidMDPError(f"{rule}, got {values[k]} at {where}")
        sums = np.bincount(rows, weights=probs, minlength=sizes.size)
        is_bad = ~(np.abs(sums - 1.0) <= ROW_SUM_TOL)
        if is_bad.any():
            k = int(np.argmax(is_bad))
            where = _where(*self._place(first + k))
            found = f"sum to 1, got {float(sums[k])!r}" if sizes[k] else "be listed, got no outcome"
            advice = f"; {NORMALISE}" if abs(sums[k] - 1.0) <= NEAR else ""
            raise InvalidMDPError(f"probabilities must {found} at {where}{advice}")

    def _check_room(self) -> None:
        """Refuse to go on where twice as many states and outcomes would not fit."""
        n = len(self._numbers)
        check_memory(
            ENTRY_BYTES * len(self._targets) + STATE_BYTES * n,
            what=f"the search, at {n:,} states and {len(self._targets):,} outcomes,",
            instead="leave out of the state what does not matter, or lower max_states",
        )

    def repeat(self) -> None:
        """Raise if the function answers otherwise when some of its calls are made again."""
        n_rows = len(self._ends)
        for row in np.unique(np.linspace(0, n_rows - 1, REPEATS).astype(np.int64)).tolist():
            state, action = self._place(row)
            begin, end = self._ends[row - 1] if row else 0, self._ends[row]
            found = zip(
                self._probs[begin:end],
                self._targets[begin:end],
                self._paid[begin:end],
                strict=True,
            )
            if self._again(state, action) != list(found):
                raise InvalidMDPError(
                    f"transitions(state, action) gave other outcomes when called again for "
                    f"{_where(state, action)}; list all outcomes with their probabilities, instead "
                    "of drawing one, and let them depend on state and action alone"
                )

    def _again(self, state: Any, action: Any) -> list[tuple[float, int, float]]:
        try:
            return [
                (float(prob), END if is_end else self._numbers.get(after, END - 1), float(reward))
                for prob, after, reward, is_end in self._transitions(state, action)
                if prob
            ]
        except Exception as error:
            raise _problem(error, _where(state, action), NOTHING, NOTHING) from error

    # -- explaining ------------------------------------------------------------------------

    def _too_many(self, where: str) -> StateLimitError:
        states = self._numbers.listed
        return StateLimitError(
            f"more than max_states={len(states):,} states: one more was met {where}{_grown(states)}"
            "; raise max_states, or make the states finitely many (clip what grows without bound, "
            "and leave out counters that do not matter)"
        )

    # -- result ----------------------------------------------------------------------------

    def rows(self, begins: Mapping[int, float]) -> dict[str, Any]:
        """Arguments of `TabularMDP.from_rows`, for episodes that begin with these probabilities."""
        listed = self._numbers.listed
        targets = np.array(self._targets)
        is_end = targets == END
        has_end = bool(is_end.any())
        n = len(listed)
        targets[is_end] = n
        actions, has_names, columns = self._layout()
        n_actions = len(actions)
        shape = (n + has_end, n_actions)
        check_memory(
            CELL_BYTES * shape[0] * n_actions,
            what=f"a table of {shape[0]:,} states and {n_actions:,} actions",
            instead="give actions of different states the same names where they can have them",
        )
        rows = np.array(self._row_states) * n_actions + columns
        if has_end:
            rows = np.append(rows, np.arange(n * n_actions, (n + 1) * n_actions))
            targets = np.append(targets, np.full(n_actions, n))
        added = rows.size - len(self._ends)
        sizes = np.append(np.diff(np.array(self._ends), prepend=0), np.ones(added, np.int64))
        probs = np.append(np.array(self._probs), np.ones(added))
        paid = np.append(np.array(self._paid), np.zeros(added))
        all_sizes = np.zeros(shape[0] * n_actions, np.int64)
        all_sizes[rows] = sizes
        if (np.diff(rows) < 0).any():  # a state listed its actions in another order
            order = np.argsort(np.repeat(rows, sizes), kind="stable")
            targets, probs, paid = targets[order], probs[order], paid[order]
        indptr = np.concatenate([[0], np.cumsum(all_sizes)])
        available = all_sizes.reshape(shape) > 0
        start = np.zeros(shape[0])
        start[list(begins)] = list(begins.values())
        ids, variables = _named_states(listed, has_end=has_end)
        return {
            "indptr": indptr,
            "indices": targets,
            "probs": probs,
            "rewards": expected_rewards(paid, indptr, targets, probs, shape),
            "available": None if available.all() else available,
            "start": start,
            "state_ids": ids,
            "terminal_state": n if has_end else None,
            "names": Names(
                actions=tuple(map(_name, actions)) if has_names else None,
                variables=variables,
            ),
        }

    def _layout(self) -> tuple[list[Any], bool, IntArray]:
        """Actions in order, whether they have names, and which of them each row is."""
        listed, n_rows = self._columns.listed, len(self._ends)
        if self._tell is None:
            has_names = listed != list(range(len(listed))) or isinstance(listed[0], Enum)
            return listed, has_names, np.arange(n_rows) % len(listed)
        actions, has_names = action_order(listed)
        place = {action: k for k, action in enumerate(actions)}
        moved = np.array([place[action] for action in listed])
        return actions, has_names, moved[np.array(self._row_columns)]


# -- arguments -------------------------------------------------------------------------------


def _fixed_actions(actions: Any) -> list[Any] | None:
    """The actions that all states have; None where a function tells them."""
    if isinstance(actions, int | np.integer) and not isinstance(actions, bool):
        return list(range(check_int("actions", int(actions), low=1)))
    if isinstance(actions, Sequence | np.ndarray | EnumType) and not isinstance(
        actions, str | bytes
    ):
        listed = actions.tolist() if isinstance(actions, np.ndarray) else list(actions)
        try:
            is_once = len(set(listed)) == len(listed)
        except TypeError:
            raise InvalidArgumentError(
                f"actions must be hashable, got {short(actions)}; use tuples in place of lists"
            ) from None
        if not listed or not is_once:
            raise InvalidArgumentError(
                f"actions must be one or more, each once, got {short(actions)}"
            )
        return listed
    if callable(actions):
        return None
    raise InvalidArgumentError(
        "actions must be their number, a list of names, or a function of a state that gives such "
        f"a list, got {short(actions)}"
    )


def _hashable_start(start: Any) -> Hashable:
    try:
        hash(start)
    except TypeError:
        raise InvalidArgumentError(
            f"start must be a state, or a dictionary of states and probabilities, got "
            f"{short(start)}; states must be hashable: use tuples in place of lists and arrays"
        ) from None
    found: Hashable = start
    return found


# -- words -----------------------------------------------------------------------------------


def _where(state: Any, action: Any) -> str:
    return f"state {short(state)}, action {short(action)}"


def _error_text(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _problem(error: Exception, where: str, outcomes: Any, outcome: Any) -> InvalidMDPError:
    """What went wrong in a call, as its outcomes tell; else an error of the function itself."""
    if outcomes is not NOTHING and not isinstance(outcomes, Iterable):
        return InvalidMDPError(
            f"transitions must give a list of {FORM}, got {short(outcomes)} at {where}"
        )
    if outcome is not NOTHING:
        if not isinstance(outcome, Sequence) or isinstance(outcome, str) or len(outcome) != 4:
            return InvalidMDPError(
                f"transitions must give a list of {FORM}, got {short(outcome)} in it at {where}"
            )
        prob, after, reward, is_end = outcome
        for name, number in (("probabilities", prob), ("rewards", reward)):
            if not _is_number(number):
                return InvalidMDPError(f"{name} must be numbers, got {short(number)} at {where}")
        if not isinstance(is_end, bool | np.bool_):
            return InvalidMDPError(
                f"terminated must be True or False, got {short(is_end)} at {where}; outcomes are "
                f"{FORM}"
            )
        if not _is_hashable(after):
            return InvalidMDPError(
                f"states must be hashable, got {short(after)} as a next state of {where}; use "
                "tuples in place of lists and arrays, and frozen dataclasses"
            )
    return InvalidMDPError(f"transitions(state, action) raised {_error_text(error)} at {where}")


def _is_number(value: Any) -> bool:
    try:
        array("d", [value])
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _grown(states: Sequence[Any]) -> str:
    """Which part of the states takes most values, as part of a sentence; empty if unclear."""
    recent = states[-COMPARED:]
    fields = _fields(recent)
    if not fields:
        return ""
    counts = {name: len(set(map(repr, values))) for name, values in fields.items()}
    name = max(counts, key=lambda each: counts[each])
    where = f"part {name}" if isinstance(name, int) else repr(name)
    return f" ({where} of the states has {counts[name]:,} values in the last {len(recent):,})"


def _fields(states: Sequence[Any]) -> dict[str | int, list[Any]]:
    """Values of the parts of states, by name, or by place in plain tuples; empty if there are none.

    Parts are those of a named tuple or of a dataclass, or of tuples of one length.
    """
    kinds = set(map(type, states))
    if len(kinds) != 1:
        return {}
    kind = kinds.pop()
    if issubclass(kind, tuple):
        if len(set(map(len, states))) != 1:
            return {}
        names: Sequence[str | int] = getattr(kind, "_fields", range(len(states[0])))
        return dict(zip(names, map(list, zip(*states, strict=True)), strict=True))
    if dataclasses.is_dataclass(kind):
        own = [field.name for field in dataclasses.fields(kind)]
        return {name: [getattr(state, name) for state in states] for name in own}
    return {}


def _named_states(
    states: Sequence[Any], *, has_end: bool
) -> tuple[IntArray | None, tuple[Variable, ...]]:
    """Ids of states that are whole numbers, and what others are called."""
    kinds = set(map(type, states))
    are_numbers = all(
        issubclass(kind, int | np.integer) and not issubclass(kind, bool | Enum) for kind in kinds
    )
    if are_numbers and 0 <= min(states) <= max(states) < 2**63:
        return np.array([*states, *([-1] * has_end)], np.int64), ()
    fields = _fields(states)
    if fields and all(isinstance(name, str) for name in fields):
        variables = tuple(_variable(str(name), values) for name, values in fields.items())
    else:
        variables = (state_words(map(_name, states)),)
    if has_end:
        variables = tuple(
            dataclasses.replace(each, values=np.append(each.values, UNKNOWN)) for each in variables
        )
    return None, variables


def _name(value: Any) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def _variable(name: str, values: list[Any]) -> Variable:
    kinds = set(map(type, values))
    if kinds == {bool} or (kinds == {int} and -(2**63) < min(values) <= max(values) < 2**63):
        return as_variable(name, values)
    return as_variable(name, [_name(value) for value in values])
