"""What states and actions are called."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from bisim_abstract import TabularMDP, aggregate, bisimulation_classes
from bisim_abstract._model.names import UNKNOWN, Names, Variable
from bisim_abstract.errors import InvalidMDPError


def line(n_states: int = 4) -> TabularMDP:
    """States in a row, each leading to the next, the last of them the end."""
    P = np.eye(n_states)[np.minimum(np.arange(n_states) + 1, n_states - 1)]
    rewards = np.ones(n_states)
    rewards[-1] = 0.0
    return TabularMDP.from_dense(P[:, None, :], rewards, terminal_state=n_states - 1)


def named() -> TabularMDP:
    return line().with_names(
        states={"row": [0, 0, 1, 1], "is_wet": [True, False, True, False], "who": list("abab")},
        actions=["go"],
        labels={"goal": [False, False, True, False]},
    )


def test_names_tell_variables_ends_and_ids() -> None:
    mdp = named()
    assert mdp.state_name(1) == "row=0, is_wet=false, who=b"
    assert mdp.state_name(3) == "the end"
    assert mdp.action_name(0) == "go"
    assert line().state_name(2) == "state 2"
    assert line().action_name(0) == "action 0"
    assert line().with_names(states=["left", "mid", "right", "out"]).state_name(1) == "mid"


def test_names_are_not_part_of_what_a_model_is() -> None:
    assert named() == line()
    assert named().fingerprint == line().fingerprint


def test_names_survive_files_pickles_and_restriction(tmp_path: Path) -> None:
    mdp = named()
    mdp.save(tmp_path / "m.npz")
    for copy in (TabularMDP.load(tmp_path / "m.npz"), pickle.loads(pickle.dumps(mdp))):
        assert [copy.state_name(s) for s in range(4)] == [mdp.state_name(s) for s in range(4)]
        assert copy.names.actions == ("go",)
        assert copy.names.labels["goal"].tolist() == [False, False, True, False]
    part = mdp.with_metadata(a=1).restrict([3, 2]).with_available([[True], [True]])
    assert part.state_name(0) == "row=1, is_wet=true, who=a"
    assert part.names.labels["goal"].tolist() == [True, False]


def test_a_quotient_keeps_the_names_of_its_representatives() -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[[2, 2, 2]][:, None, :], [1.0, 1.0, 0.0])
    mdp = mdp.with_names(states="xyz", actions=["stay"])
    classes = bisimulation_classes(mdp)
    assert [classes.quotient.state_name(s) for s in range(2)] == ["x", "z"]
    small = aggregate(mdp, classes.labels).mdp
    assert small.action_name(0) == "stay"
    assert small.state_name(0) == "state 0"


def test_what_a_state_does_not_have_is_left_out() -> None:
    names = Names(
        variables=(
            Variable(name="x", values=np.array([UNKNOWN, 1])),
            Variable(name="y", values=np.array([2, UNKNOWN])),
        )
    )
    assert [names.state(s) for s in range(2)] == ["y=2", "x=1"]


def test_control_characters_do_not_pass() -> None:
    mdp = line().with_names(actions=["\x1b[31mred"], states=["a\nb", "c", "d", "e"])
    assert "\x1b" not in mdp.action_name(0)
    assert "\n" not in mdp.state_name(0)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"actions": ["a", "b"]}, "names.actions must be 1, got 2"),
        ({"states": {"x": [1, 2]}}, "must have 4 values, got 2"),
        ({"labels": {"goal": [True]}}, "must have shape"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidMDPError, match=words):
        line().with_names(**names)  # type: ignore[arg-type]


def test_a_value_without_a_word_is_refused() -> None:
    with pytest.raises(InvalidMDPError, match="outside of them"):
        Variable(name="x", values=np.array([0, 2]), words=("no", "yes"))


def test_sentences_hold_number_and_name() -> None:
    mdp = named()
    assert mdp.state_text(1) == "1 (row=0, is_wet=false, who=b)"
    assert mdp.state_text(1, most=12) == "1 (row=0, …)"
    assert mdp.state_text(3) == "3 (the end)"
    assert mdp.action_text(0) == "go"
    for plain in (line(), line().with_names(actions=[""])):
        assert [plain.state_text(s) for s in range(4)] == list("0123")
        assert plain.action_text(0) == "0"


def test_long_names_are_cut_in_sentences_only() -> None:
    many = line().with_names(states={f"variable{k}": [k] * 4 for k in range(30)})
    assert len(many.state_text(0)) <= 70
    assert many.state_text(0).endswith(", …)")
    assert many.state_text(0, most=None) == f"0 ({many.state_name(0)})"


def test_names_that_do_not_tell_actions_apart_come_with_numbers() -> None:
    names = Names(actions=("go", "stay", "go", "0", ""))
    assert [names.action_text(a) for a in range(5)] == ["0 (go)", "stay", "2 (go)", "3 (0)", "4"]


def test_a_state_without_any_value_is_its_number() -> None:
    names = Names(variables=(Variable(name="x", values=np.array([UNKNOWN, 7])),))
    assert [names.state_text(s) for s in range(2)] == ["0", "1 (x=7)"]


def test_columns_of_variables() -> None:
    huge = 2**53 + 1
    plain = Variable(name="x", values=np.array([3, 1]))
    lacking = Variable(name="x", values=np.array([UNKNOWN, -1]))
    exact = Variable(name="y", values=np.array([UNKNOWN, huge]))
    words = Variable(name="", values=np.array([UNKNOWN, 0]), words=("a",))
    assert plain.column() is plain.values
    assert np.isnan(lacking.column()[0])
    assert lacking.column()[1] == -1.0
    assert exact.column().tolist() == [None, huge]
    assert words.column().tolist() == [None, "a"]
    assert [v.listed(0, 2) for v in (plain, lacking, exact, words)] == [
        [3, 1],
        [None, -1],
        [None, huge],
        [None, "a"],
    ]
    names = Names(variables=(plain, lacking, exact, words))
    assert list(names.columns(["y", "variable_y"])) == [
        "x",
        "variable_x",
        "variable_variable_y",
        "name",
    ]


@pytest.mark.parametrize("dtype", [np.complex128, np.float64, np.int64])
def test_labels_of_another_type_are_refused(dtype: type) -> None:
    """A cast would warn, or take other bits for them."""
    names = Names(labels={"goal": np.array([True, False, True])})
    parts = names.arrays()
    read = Names.from_parts(names.header(), parts["values"], parts["labels"], 3)
    np.testing.assert_array_equal(read.labels["goal"], names.labels["goal"])
    with pytest.raises(InvalidMDPError, match="packed as bytes"):
        Names.from_parts(names.header(), parts["values"], parts["labels"].astype(dtype), 3)
