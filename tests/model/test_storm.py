"""PRISM, JANI and DRN through Storm, and Storm as a reader of what we write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP, bisimulation_classes, read_model
from bisim_abstract._model.names import UNKNOWN, Names, Variable
from bisim_abstract._model.umb import write_umb
from bisim_abstract.errors import BisimError, FileFormatError, InvalidArgumentError
from bisim_abstract.parts import sparse_mdp

# A walker on a line of N + 1 places. Carefully it goes one step, in haste it may slip.
WALK = """mdp
const int N;
const double slip = 0.25;
module walker
  x : [0..N] init 0;
  tired : bool init false;
  [care] x<N -> 1-slip : (x'=x+1) + slip : true;
  [haste] x<N -> 0.5 : (x'=min(N,x+2)) + 0.5 : (tired'=true);
  [] x<N & tired -> (tired'=false);
  [] x<N & tired -> 0.5 : (tired'=false) + 0.5 : true;
endmodule
rewards "steps"
  x<N : 1;
endrewards
rewards "effort"
  [haste] true : 3;
  tired : 0.5;
endrewards
label "home" = x=N;
"""


@pytest.fixture
def walk(tmp_path: Path) -> Path:
    path = tmp_path / "walk.nm"
    path.write_text(WALK)
    return path


def storm_value(model: Any, formula: str) -> float:
    """What Storm finds for a property in the initial state."""
    import stormpy

    properties = stormpy.parse_properties(formula)
    result = stormpy.model_checking(model, properties[0])
    return float(result.get_value(model.initial_states[0]))


def test_a_prism_model(walk: Path) -> None:
    mdp = read_model(walk, constants={"N": 4}, reward="-steps")
    assert mdp.names.actions == ("unnamed", "unnamed (2)", "care", "haste")
    assert mdp.n_states == 10
    s = int(np.argmax(mdp.start))
    assert mdp.state_name(s) == "tired=false, x=0"
    assert mdp.available[s].tolist() == [False, False, True, True]
    assert mdp.rewards[s, 2] == -1.0
    assert mdp.names.labels["home"].sum() == 2
    assert mdp.absorbing[mdp.names.labels["home"]].all()
    assert mdp.metadata["constants"] == {"N": 4}
    # State rewards go to every action, and are added to what actions pay.
    effort = read_model(walk, constants={"N": 4}, reward="effort")
    tired = next(k for k in range(10) if effort.state_name(k) == "tired=true, x=0")
    assert effort.rewards[tired].tolist() == [0.5, 0.5, 0.5, 3.5]


def test_a_goal_pays_on_entry(walk: Path) -> None:
    mdp = read_model(walk, constants={"N": 1}, goal="home")
    home = mdp.names.labels["home"]
    assert mdp.absorbing[home].all()
    s = int(np.argmax(mdp.start))
    assert mdp.rewards[s, mdp.available[s]].tolist() == [0.75, 0.5]


def test_values_survive_the_way_to_storm_and_back(walk: Path, tmp_path: Path) -> None:
    """UMB of Storm -> model -> UMB of ours -> Storm: the same values as on the original."""
    import stormpy

    program = stormpy.parse_prism_program(str(walk))
    program, _ = stormpy.instantiate_constants(program, {"N": 6})
    original = stormpy.build_model(program)
    stormpy.io.export_to_umb(original, str(tmp_path / "theirs.umb"))
    read = read_model(tmp_path / "theirs.umb", reward=["steps", "effort"])
    write_umb(read, tmp_path / "ours.umb")
    again = stormpy.build_model_from_umb(str(tmp_path / "ours.umb"))
    assert again.nr_states == original.nr_states
    assert again.nr_choices == original.nr_choices
    for formula in (
        'R{"steps"}min=? [F "home"]',
        'R{"steps"}max=? [C<=50]',
        'R{"effort"}min=? [F "home"]',
        'R{"effort"}max=? [C<=50]',
        'Pmax=? [F<=7 "home"]',
    ):
        want = storm_value(original, formula)
        assert storm_value(again, formula) == pytest.approx(want, abs=1e-6), formula
    assert read_model(tmp_path / "ours.umb", reward=["steps", "effort"]) == read
    total = 'R{"steps"}min=? [F "home"]'
    assert storm_value(again, total) > 4.0


def test_storm_reads_whatever_names_we_write(tmp_path: Path) -> None:
    import stormpy

    base = sparse_mdp(5, 2, support=2, seed=0)
    names = Names(
        actions=("go there", "ß"),
        variables=(
            Variable(name="low", values=np.arange(5) - 3),
            Variable(name="on", values=np.arange(5) % 2, words=("false", "true")),
            Variable(name="big", values=np.arange(5) * 2**60),
        ),
        labels={"Goal": np.arange(5) == 3},
    )
    mdp = TabularMDP.from_rows(
        base.indptr,
        base.indices,
        base.probs,
        base.rewards,
        start=[0.5, 0.25, 0.25, 0, 0],
        names=names,
    )
    write_umb(mdp, tmp_path / "m.umb")
    model = stormpy.build_model_from_umb(str(tmp_path / "m.umb"))
    assert list(model.initial_states) == [0, 1, 2]
    assert "Goal" in model.labeling.get_labels()
    stormpy.io.export_to_umb(model, str(tmp_path / "again.umb"))
    again = read_model(tmp_path / "again.umb")
    assert np.array_equal(again.probs, mdp.probs)
    assert np.array_equal(again.rewards, mdp.rewards)


def test_drn_and_jani(walk: Path, tmp_path: Path) -> None:
    import stormpy

    program = stormpy.parse_prism_program(str(walk))
    program, _ = stormpy.instantiate_constants(program, {"N": 3})
    stormpy.io.export_to_drn(stormpy.build_model(program), str(tmp_path / "walk.drn"))
    want = read_model(walk, constants={"N": 3}, reward="steps", actions="positions")
    got = read_model(tmp_path / "walk.drn", reward="steps", actions="positions")
    assert np.array_equal(got.rewards, want.rewards)
    assert np.array_equal(got.probs, want.probs)
    with pytest.raises(InvalidArgumentError, match="no constants to set"):
        read_model(tmp_path / "walk.drn", constants={"N": 3})


def test_storm_counts_as_many_classes(walk: Path) -> None:
    import stormpy
    from stormpy.transformations import (
        BisimulationOptions,
        StateLabelPreservation,
        perform_bisimulation,
    )

    program = stormpy.parse_prism_program(str(walk))
    program, _ = stormpy.instantiate_constants(program, {"N": 9})
    model = stormpy.build_model(program)
    mdp = read_model(walk, constants={"N": 9}, reward=["steps", "effort"], actions="positions")
    for relation in ("plain", "lax"):
        options = BisimulationOptions()
        options.action_sensitive = relation == "plain"
        options.preserve_all_rewards = True
        options.preserve_choice_labels = False
        options.state_label_preservation = StateLabelPreservation.NONE
        count = perform_bisimulation(model, [], options=options).nr_states
        assert bisimulation_classes(mdp, relation=relation).n_classes == count


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (WALK, {}, "leaves constants open: N; give them values"),
        (WALK, {"constants": {"M": 1}}, "'M' of .* is unknown; to be set are N"),
        (WALK, {"constants": {"N": 3, "slip": 0.5}}, "'slip' of .* is set in the file"),
        (WALK, {"constants": {"N": 3}}, "several rewards"),
        (WALK, {"constants": {"N": "x"}, "reward": "steps"}, "N"),
        (WALK.replace("endmodule", ""), {}, "Storm cannot build"),
        ("ctmc\nmodule m x:[0..1]; [] x=0 -> 2:(x'=1); endmodule", {}, "holds a CTMC"),
        ("", {}, "Storm cannot build"),
        ("mdp\nmodule m x:[0..1]; [] true->(x'=5); endmodule", {}, "leave its range"),
    ],
)
def test_what_cannot_be_read(
    tmp_path: Path, text: str, options: dict[str, Any], words: str, capfd: Any
) -> None:
    path = tmp_path / "m.nm"
    path.write_text(text)
    with pytest.raises(BisimError, match=words) as caught:
        read_model(path, **options)
    assert isinstance(caught.value, FileFormatError | InvalidArgumentError)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_model(tmp_path / "none.nm")


def test_optional_variables_are_read_as_the_specification_says(tmp_path: Path) -> None:
    base = sparse_mdp(4, 1, support=2, seed=0)
    names = Names(variables=(Variable(name="x", values=np.array([1, UNKNOWN, 3, UNKNOWN])),))
    mdp = TabularMDP.from_rows(base.indptr, base.indices, base.probs, base.rewards, names=names)
    write_umb(mdp, tmp_path / "m.umb")
    assert [read_model(tmp_path / "m.umb").state_name(s) for s in range(4)] == [
        "x=1",
        "state 1",
        "x=3",
        "state 3",
    ]


def test_the_formats_own_library_reads_what_we_write(tmp_path: Path) -> None:
    """An independent reader, which knows nothing of us."""
    import umbi

    mdp = sparse_mdp(5, 2, support=2, seed=0).with_names(labels={"g": np.arange(5) == 3})
    write_umb(mdp, tmp_path / "m.umb")
    theirs = umbi.umb.read(str(tmp_path / "m.umb"))
    assert theirs.index.transition_system.num_states == 5
    assert list(theirs.branch_to_target) == mdp.indices.tolist()
    assert [float(p) for p in theirs.branch_to_probability] == mdp.probs.tolist()
