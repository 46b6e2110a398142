"""The relation of optimal action values: states are alike if all actions are worth the same.

The distance of two states is the largest difference of their optimal action values. It is at most
the plain one: values of actions differ by no more than rewards, and gamma times the transport
distance of what follows. It has no backups of pairs, as it is read off the values.
"""

from __future__ import annotations

from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.base import Bisimulation, Relation
from bisim_abstract._relations.plain import Plain
from bisim_abstract.errors import InvalidArgumentError


class Optimal(Relation):
    """Every action with the one of the same name, by what both are worth to the best policy."""

    name = "optimal"
    adjective = "optimal-value"
    alike = "in optimal action values"
    closeness = (
        "Two states are close if every action is worth much the same in both, to an agent that "
        "acts optimally afterwards"
    )
    metric = "the distance of optimal action values"
    condition = "alike in optimal action values, for this reward at this gamma only"
    caution = "Clusters are for this reward at this gamma only; the dynamics are not preserved."
    methods = ("action-values",)

    @property
    def above(self) -> Bisimulation:
        """The plain relation."""
        return Plain()

    def check(self, mdp: TabularMDP) -> None:
        """Refuse several rewards side by side, of which none is the one to be optimal for."""
        if mdp.names.rewards:
            raise InvalidArgumentError(
                f"the model keeps several rewards side by side ({', '.join(mdp.names.rewards)}), "
                "and relation='optimal' is about one: take it by mdp.for_reward(name)"
            )
