"""The table of relations: the one place where their names are looked up."""

from __future__ import annotations

from bisim_abstract._base.checks import check_choice
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.base import Bisimulation, Relation
from bisim_abstract._relations.lax import Lax
from bisim_abstract._relations.optimal import Optimal
from bisim_abstract._relations.plain import Plain

RELATIONS: dict[str, Relation] = {
    relation.name: relation for relation in (Plain(), Lax(), Optimal())
}
# Those with arms and classes.
BISIMULATIONS = {name: x for name, x in RELATIONS.items() if isinstance(x, Bisimulation)}


def find_relation(relation: str | Relation) -> Relation:
    """The relation of this name; one that has been found already stays what it is."""
    if isinstance(relation, Relation):
        return relation
    return RELATIONS[check_choice("relation", relation, tuple(RELATIONS))]


def find_bisimulation(relation: str | Relation) -> Bisimulation:
    """The same, for what only relations with arms and classes can offer."""
    name = relation.name if isinstance(relation, Relation) else relation
    return BISIMULATIONS[check_choice("relation", name, tuple(BISIMULATIONS))]


def check_relation(mdp: TabularMDP, relation: str | Relation) -> Relation:
    """The relation of this name, if it can compare the model's states."""
    found = find_relation(relation)
    found.check(mdp)
    return found
