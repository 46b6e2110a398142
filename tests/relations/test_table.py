"""Relations as objects: found by name once, the same in the verifier, and never told by name."""

from __future__ import annotations

import ast
import io
from contextlib import redirect_stdout

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Covering,
    bisimulation_classes,
    bisimulation_metric,
    certify,
    compare_models,
    prove_value,
)
from bisim_abstract._app.cli import main
from bisim_abstract._prove.optimal import ActionGaps
from bisim_abstract._prove.options import Options, default_method
from bisim_abstract._relations.base import Bisimulation, Relation
from bisim_abstract._relations.table import (
    BISIMULATIONS,
    RELATIONS,
    check_relation,
    find_bisimulation,
    find_relation,
)
from bisim_abstract._verify import relations as verified
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
from tests.support import house

NAMES = {"plain", "lax", "optimal"}
# The only modules that say which relation is which.
TOLD = ("_relations.plain", "_relations.lax", "_verify.relations")


class ByValue(Relation):
    """A relation without arms, whose actions correspond by name."""

    name = "by value"
    alike = "in value"
    methods = ("values",)

    @property
    def above(self) -> Bisimulation:
        return find_bisimulation("plain")


@pytest.fixture
def by_value(monkeypatch: pytest.MonkeyPatch) -> ByValue:
    relation = ByValue()
    monkeypatch.setitem(RELATIONS, relation.name, relation)
    return relation


def test_tables_name_the_same_relations() -> None:
    assert set(RELATIONS) == NAMES
    assert set(verified.RELATIONS) == NAMES
    for name, relation in RELATIONS.items():
        assert relation.name == name
        assert verified.RELATIONS[name].name == name
        assert verified.RELATIONS[name].matches_actions == relation.matches_actions
        assert name in repr(relation)
        assert name in repr(verified.RELATIONS[name])


def test_relations_are_found_once() -> None:
    for name in NAMES:
        relation = find_relation(name)
        assert find_relation(relation) is relation
        assert check_relation(sparse_mdp(5, 2, seed=0), name) is relation
    for name, bisimulation in BISIMULATIONS.items():
        assert find_bisimulation(name) is find_bisimulation(bisimulation) is find_relation(name)
        assert bisimulation.above is bisimulation
    with pytest.raises(InvalidArgumentError, match="relation must be one of 'plain', 'lax'"):
        find_relation("loose")


def test_no_module_compares_names() -> None:
    """A relation is asked what it means; only its own module says what it is called."""
    for module, path in house.find_modules().items():
        if module in TOLD:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            compared: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                compared = [node.left, *node.comparators]
            elif isinstance(node, ast.MatchValue):
                compared = [node.value]
            for side in compared:
                parts = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
                names = {part.value for part in parts if isinstance(part, ast.Constant)}
                assert not names & NAMES, (module, ast.unparse(node))


def test_commands_offer_every_relation() -> None:
    help_text = io.StringIO()
    with redirect_stdout(help_text), pytest.raises(SystemExit):
        main(["certify", "--help"])
    words = " ".join(help_text.getvalue().split())
    assert "--relation {" + ",".join([*RELATIONS, "auto"]) + "}" in words
    for one in RELATIONS.values():
        assert f"{one.alike} ({one.name})" in words


@pytest.mark.parametrize("relation", BISIMULATIONS.values(), ids=repr)
def test_lines_and_counts_agree(relation: Bisimulation) -> None:
    rng = np.random.default_rng(0)
    for n_actions in (1, 2, 5):
        actions = range(n_actions)
        lines = relation.lines(actions, actions)
        assert len(lines) == relation.n_lines(n_actions)
        assert len(relation.compared(actions, actions)) == relation.n_compared(n_actions)
        assert verified.RELATIONS[relation.name].lines(actions, actions) == lines
        lengths = rng.integers(1, 4, size=(3, n_actions))
        first, second = np.array([0, 0, 1]), np.array([1, 2, 2])
        expected = [
            sum(lengths[s, a] * lengths[t, b] for a, b in relation.compared(actions, actions))
            for s, t in zip(first, second, strict=True)
        ]
        assert relation.n_cells(lengths, first, second).tolist() == expected


@pytest.mark.parametrize("relation", BISIMULATIONS.values(), ids=repr)
def test_states_with_different_actions_are_compared_or_far_apart(relation: Bisimulation) -> None:
    available = np.array([[True, True], [True, False], [True, True]])
    mdp = random_mdp(3, 2, seed=0).with_available(available)
    sets = relation.sets(available)
    apart = relation.apart(mdp, 0.5)
    assert sets[0] == sets[2]
    assert (sets[0] != sets[1]) == relation.has_apart(available) == (apart is not None)
    assert bool(relation.lines([0, 1], [0])) == (sets[0] == sets[1])
    assert not relation.has_apart(available[[0, 2]])
    assert relation.apart(random_mdp(3, 2, seed=0), 0.5) is None


@pytest.mark.parametrize("relation", BISIMULATIONS.values(), ids=repr)
def test_gaps_of_rewards_enclose_the_backup_of_nothing(relation: Bisimulation) -> None:
    """Of points, by the lines themselves: the largest of the least differences."""
    rewards = np.random.default_rng(1).normal(size=(6, 3))
    s, t = np.triu_indices(6, 1)
    gap, span = relation.reward_gaps(*relation.arranged(rewards, rewards), s, t)
    actions = range(3)
    for k, (x, y) in enumerate(zip(s.tolist(), t.tolist(), strict=True)):
        expected = max(
            min(abs(rewards[x, a] - rewards[y, b]) for a, b in line)
            for line in relation.lines(actions, actions)
        )
        assert gap[k] == span[k] == pytest.approx(expected)
    assert relation.reward_span(rewards, rewards, has_all=True) >= span.max()
    low, high = relation.columns(rewards, rewards, np.zeros(6, np.int64), 0.0)
    far = np.maximum(low[s] - high[t], low[t] - high[s]).max(axis=1)
    assert (far <= gap * (1.0 + 1e-12)).all()


def test_methods_follow_the_relation(by_value: ByValue) -> None:
    for name in BISIMULATIONS:
        assert isinstance(default_method(name), Blocks)
        for method in (Blocks(), Covering()):
            Options(relation=name, method=method, tau=0.5)
    assert isinstance(default_method("optimal"), ActionGaps)
    for relation, words in (("optimal", "action-values"), (by_value.name, "values")):
        with pytest.raises(InvalidArgumentError, match=f"is proven by the method {words}, got Bl"):
            Options(relation=relation, method=Blocks(), tau=0.5)


def test_relations_without_arms_offer_no_pairs_and_no_classes(by_value: ByValue) -> None:
    mdp, groups = grouped_mdp(12, 3, noise=0.0, seed=0)
    for ask in (
        lambda: bisimulation_classes(mdp, relation=by_value.name),
        lambda: bisimulation_metric(mdp, 0.5, relation=by_value.name),
        lambda: compare_models(mdp, mdp, 0.5, relation=by_value.name),
        lambda: find_bisimulation(by_value),
    ):
        with pytest.raises(InvalidArgumentError, match="relation must be one of 'plain', 'lax'"):
            ask()
    with pytest.raises(InvalidArgumentError, match="proven by the method values"):
        certify(mdp, 0.5, relation=by_value.name, method=Blocks())
    # Values of its clusters are those of actions by name.
    found = prove_value(mdp, groups, 0.5, relation=by_value.name)
    assert found.kept == prove_value(mdp, groups, 0.5).kept
    assert found.renaming is None
