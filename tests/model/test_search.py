"""Models from functions, against tables of the same outcomes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import TabularMDP
from bisim_abstract._base.types import Progress
from bisim_abstract.errors import InvalidArgumentError, InvalidMDPError, StateLimitError
from tests.support.models import ENV_NAMES, env_table

Outcomes = list[tuple[float, Any, float, bool]]


def dense_by_id(mdp: TabularMDP) -> dict[tuple[int, int], tuple[dict[int, float], float]]:
    """Successors by id, and the reward, of every state's id and action."""
    ids = mdp.state_ids.tolist()
    found = {}
    for state, action in itertools.product(range(mdp.n_states), range(mdp.n_actions)):
        successors, probs = mdp.successors(state, action)
        rows = {ids[k]: p for k, p in zip(successors.tolist(), probs.tolist(), strict=True)}
        found[ids[state], action] = rows, float(mdp.rewards[state, action])
    return found


def check_same(one: TabularMDP, two: TabularMDP) -> None:
    a, b = dense_by_id(one), dense_by_id(two)
    assert a.keys() == b.keys()
    for key, (row, reward) in a.items():
        assert row == pytest.approx(b[key][0], rel=1e-15, abs=0.0)
        assert row.keys() == b[key][0].keys()
        assert reward == pytest.approx(b[key][1], rel=1e-14, abs=1e-14)
    starts = [dict(zip(m.state_ids.tolist(), m.start.tolist(), strict=True)) for m in (one, two)]
    assert starts[0] == starts[1]


@pytest.mark.parametrize("name", ENV_NAMES)
def test_functions_are_as_tables(name: str) -> None:
    table, start = env_table(name)
    whole = TabularMDP.from_table(table, start=start)
    begins = {k: p for k, p in enumerate(np.asarray(start).tolist()) if p}
    mdp = TabularMDP.from_function(begins, len(table[0]), lambda s, a: table[s][a])
    check_same(mdp, whole.restrict(whole.reachable()))


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[int, dict[int, Outcomes]], int]:
    n, n_actions = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    parts = st.lists(
        st.tuples(
            st.integers(0, 4), st.integers(0, n - 1), st.integers(-2, 2), st.booleans()
        ).filter(lambda part: part[0] > 0),
        min_size=1,
        max_size=4,
    )
    zeros = st.lists(st.tuples(st.just(0), st.integers(0, n - 1), st.just(9), st.booleans()))
    table: dict[int, dict[int, Outcomes]] = {}
    for state in range(n):
        table[state] = {}
        for action in range(n_actions):
            row = draw(parts)
            total = sum(weight for weight, *_ in row)
            listed = draw(st.permutations([*row, *draw(zeros)]))
            table[state][action] = [
                (weight / total, after, float(paid), end) for weight, after, paid, end in listed
            ]
    return table, draw(st.integers(0, n - 1))


@given(tables())
def test_duplicates_zeros_and_ends(case: tuple[dict[int, dict[int, Outcomes]], int]) -> None:
    table, first = case
    start = np.zeros(len(table))
    start[first] = 1.0
    whole = TabularMDP.from_table(table, start=start)
    part = whole.restrict(whole.reachable())
    mdp = TabularMDP.from_function(first, len(table[0]), lambda s, a: table[s][a])
    check_same(mdp, part)
    assert mdp.state_ids[0] == first
    assert (mdp.terminal_state is None) == (part.terminal_state is None)
    if mdp.terminal_state is not None:
        assert mdp.terminal_state == mdp.n_states - 1
    # As names, the same states are found in the same order.
    named = TabularMDP.from_function(
        f"s{first}",
        [f"a{k}" for k in range(len(table[0]))],
        lambda s, a: [(p, f"s{after}", r, e) for p, after, r, e in table[int(s[1:])][int(a[1:])]],
    )
    ids = mdp.state_ids.tolist()
    assert [named.state_name(k) for k in range(mdp.n_states)] == [
        "the end" if ident < 0 else f"s{ident}" for ident in ids
    ]
    assert named.names.actions == tuple(f"a{k}" for k in range(mdp.n_actions))
    np.testing.assert_array_equal(named.indices, mdp.indices)
    np.testing.assert_array_equal(named.probs, mdp.probs)
    np.testing.assert_array_equal(named.rewards, mdp.rewards)


def gamble(money: int, stake: int) -> Iterator[tuple[float, int, float, bool]]:
    """The gambler's problem with a goal of 8 and a coin of 0.4."""
    yield 0.4, money + stake, float(money + stake == 8), money + stake == 8
    yield 0.6, money - stake, 0.0, money == stake


def test_actions_of_states() -> None:
    mdp = TabularMDP.from_function(1, lambda money: range(min(money, 8 - money), 0, -1), gamble)
    assert mdp.names.actions == ("1", "2", "3", "4")
    of = {ident: k for k, ident in enumerate(mdp.state_ids.tolist())}
    assert sorted(of) == [-1, *range(1, 8)]
    for money in range(1, 8):
        most = min(money, 8 - money)
        assert mdp.available[of[money]].tolist() == [stake <= most for stake in range(1, 5)]
        for stake in range(1, most + 1):
            successors, probs = mdp.successors(of[money], stake - 1)
            lost = of[money - stake] if money > stake else of[-1]
            won = of[money + stake] if money + stake < 8 else of[-1]
            expected = {lost: 0.6} if lost != won else {lost: 1.0}
            if lost != won:
                expected[won] = 0.4
            assert dict(zip(successors.tolist(), probs.tolist(), strict=True)) == expected
            assert mdp.rewards[of[money], stake - 1] == (0.4 if money + stake == 8 else 0.0)
    assert mdp.available[of[-1]].all()


class Cell(NamedTuple):
    row: int
    column: int
    has_key: bool


class Move(Enum):
    LEFT = (0, -1)
    RIGHT = (0, 1)


@dataclass(frozen=True)
class Room:
    name: str
    door: Move


def moved(cell: Cell, move: Move) -> Outcomes:
    column = min(max(cell.column + move.value[1], 0), 2)
    done = column == 2 and cell.has_key
    return [(1.0, Cell(cell.row, column, cell.has_key or column == 0), float(done), done)]


def test_names_of_parts() -> None:
    mdp = TabularMDP.from_function(Cell(0, 1, False), Move, moved)
    assert mdp.names.actions == ("LEFT", "RIGHT")
    assert mdp.state_name(0) == "row=0, column=1, has_key=false"
    assert mdp.terminal_state is not None
    assert mdp.state_name(mdp.terminal_state) == "the end"
    rooms = TabularMDP.from_function(
        Room("hall", Move.LEFT),
        1,
        lambda room, _: [(Fraction(1, 2), Room("bath", Move.RIGHT), 0, False)] * 2,
    )
    assert [rooms.state_name(k) for k in (0, 1)] == [
        "name=hall, door=LEFT",
        "name=bath, door=RIGHT",
    ]
    plain = TabularMDP.from_function((0, "x"), 1, lambda s, a: [(1.0, (1, "y"), 0.0, np.False_)])
    assert plain.state_name(1) == "(1, 'y')"


def test_enumerations_of_numbers_keep_their_names() -> None:
    class Step(IntEnum):
        STAY = 0
        GO = 1

    mdp = TabularMDP.from_function(0, Step, lambda s, a: [(1.0, min(s + a, 3), 0.0, False)])
    assert mdp.names.actions == ("STAY", "GO")
    assert mdp.state_ids.tolist() == [0, 1, 2, 3]


def test_names_are_written_and_read(tmp_path: Any) -> None:
    mdp = TabularMDP.from_function(Cell(0, 1, False), Move, moved, metadata={"env": "Cells"})
    mdp.save(tmp_path / "model.npz")
    again = TabularMDP.load(tmp_path / "model.npz")
    assert again == mdp
    assert again.names.actions == mdp.names.actions
    assert again.state_name(0) == mdp.state_name(0)


def test_starts() -> None:
    def stay(state: str, action: int) -> Outcomes:
        return [(1.0, state, 0.0, False)]

    mdp = TabularMDP.from_function({"a": 0.25, "b": 0.75, "c": 0.0}, 1, stay)
    assert mdp.start.tolist() == [0.25, 0.75]
    for start, message in (
        ({"a": 0.5}, r"probabilities of start must sum to 1, got 0\.5"),
        ({"a": -0.5, "b": 1.5}, r"finite probabilities of 0 or more, got -0\.5 for 'a'"),
        ({"a": math.nan}, "finite probabilities of 0 or more, got nan for 'a'"),
        ({"a": "x"}, "start must map states to probabilities, got 'x' for 'a'"),
        ({}, "probabilities of start must sum to 1"),
        (["a"], r"start must be a state, or a dictionary .* got \['a'\]; states must be hashable"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            TabularMDP.from_function(start, 1, stay)  # type: ignore[arg-type]
    with pytest.raises(StateLimitError, match="max_states=1 states: one more was met as a start"):
        TabularMDP.from_function({"a": 0.25, "b": 0.75}, 1, stay, max_states=1)


def raises(state: Any, action: Any) -> Outcomes:
    if state == (2, 0):
        raise KeyError("the door")
    return [(1.0, (state[0] + 1, 0), 0.0, False)]


def generates(state: Any, action: Any) -> Iterator[tuple[float, Any, float, bool]]:
    yield 0.5, state, 0.0, False
    raise RuntimeError("late")


BAD: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda s, a: [(0.5, s, 0.0, False)], r"probabilities must sum to 1, got 0\.5"),
    (lambda s, a: [(0.7, s, 0.0, False)] * 2, r"probabilities must sum to 1, got 1\.4"),
    (lambda s, a: [(1.5, s, 0.0, False), (-0.5, s, 0.0, True)], r"finite and >= 0, got -0\.5"),
    (lambda s, a: [(math.nan, s, 0.0, False)], "probabilities must be finite and >= 0, got nan"),
    (lambda s, a: [(1.0, s, math.inf, False)], "rewards must be finite, got inf"),
    (lambda s, a: [], "probabilities must be listed, got no outcome"),
    (lambda s, a: [(0.0, s, 0.0, False)], "probabilities must be listed, got no outcome"),
    (lambda s, a: [(1.0, [0, 0], 0.0, False)], r"hashable, got \[0, 0\] as a next state of .*;"),
    (lambda s, a: [(1.0, s, 0.0)], r"list of \(probability, .*\), got \(1.0, \(0, 0\), 0.0\) in"),
    (lambda s, a: (1.0, s, 0.0, False), r"list of \(probability, .*\), got 1\.0 in it"),
    (lambda s, a: None, r"must give a list of \(probability, .*\), got None"),
    (lambda s, a: [(1.0, s, False, 0.0)], r"terminated must be True or False, got 0\.0"),
    (lambda s, a: [("1", s, 0.0, False)], "probabilities must be numbers, got '1'"),
    (lambda s, a: [(1.0, s, np.zeros(2), False)], "rewards must be numbers, got array"),
    (lambda s, a: 1 / 0, r"raised ZeroDivisionError: division by zero"),
    (generates, "raised RuntimeError: late"),
]


@pytest.mark.parametrize(("transitions", "message"), BAD, ids=range(len(BAD)))
def test_bad_outcomes_are_named(transitions: Callable[[Any, Any], Any], message: str) -> None:
    with pytest.raises(InvalidMDPError, match=message) as caught:
        TabularMDP.from_function((0, 0), ["go"], transitions)
    assert r"state (0, 0), action 'go'" in str(caught.value)


def test_errors_of_functions_are_chained() -> None:
    with pytest.raises(InvalidMDPError, match=r"at state \(2, 0\), action 0") as caught:
        TabularMDP.from_function((0, 0), 1, raises)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(InvalidMDPError, match=r"actions\(state\) raised .* at state \(0, 0\)"):
        TabularMDP.from_function((0, 0), lambda state: state.actions, raises)


def test_infinite_state_spaces() -> None:
    def count(state: tuple[int, int], action: int) -> Outcomes:
        return [(1.0, (state[0] % 2, state[1] + 1), 0.0, False)]

    with pytest.raises(StateLimitError) as caught:
        TabularMDP.from_function((0, 0), 2, count, max_states=1000)
    assert str(caught.value) == (
        "more than max_states=1,000 states: one more was met as a next state of state (0, 999), "
        "action 0 (part 1 of the states has 1,000 values in the last 1,000); raise max_states, or "
        "make the states finitely many (clip what grows without bound, and leave out counters "
        "that do not matter)"
    )
    assert (
        TabularMDP.from_function(
            0, 1, lambda s, a: [(1.0, min(s + 1, 9), 0.0, False)], max_states=10
        ).n_states
        == 10
    )


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (0, "actions must be at least 1"),
        (True, "actions must be their number, a list of names"),
        ("NESW", "actions must be their number, a list of names"),
        ([], "actions must be one or more, each once"),
        (["a", "a"], "actions must be one or more, each once"),
        ([["a"]], "actions must be hashable"),
        (lambda s: [], "state 0 has no actions; give it one that stays"),
        (lambda s: None, "raised TypeError: 'NoneType' object is not iterable at state 0"),
        (lambda s: [1, 1], r"must list each action once, got \[1, 1\] at state 0"),
        (lambda s: [[1]], r"actions must be hashable, got \[\[1\]\] at state 0"),
    ],
)
def test_bad_actions(actions: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TabularMDP.from_function(0, actions, lambda s, a: [(1.0, s, 0.0, False)])


def test_functions_that_draw_are_refused() -> None:
    rng = np.random.default_rng(0)

    def slip(state: int, action: int) -> Outcomes:
        return [(1.0, (state + int(rng.integers(3))) % 50, 0.0, False)]

    with pytest.raises(InvalidMDPError, match="gave other outcomes when called again for state"):
        TabularMDP.from_function(0, 2, slip)
    with pytest.raises(InvalidArgumentError, match="transitions must be a function"):
        TabularMDP.from_function(0, 2, {})  # type: ignore[arg-type]


def test_long_chains_report() -> None:
    told: list[Progress] = []
    mdp = TabularMDP.from_function(
        0, 1, lambda s, a: [(1.0, min(s + 1, 39_999), 0.0, False)], callback=told.append
    )
    assert mdp.n_states == 40_000
    assert [report.stage for report in told] == ["states"] * 3
    assert told[-1].done == 40_000
