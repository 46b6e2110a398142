"""`Correspondence`: which action of a state is which action of its cluster, and how nearly.

A cluster's actions are those of one of its states, its model. What an action a of another state x
differs by from the action b of the model z that has the same name,

    δ((x, a), (z, b)) = |R(x, a) - R(z, b)| + γ·W(P(x, a), P(z, b)),

is bounded above by the certificate's upper bounds in place of the metric in W, as W grows with its
costs, and by any coupling, rounded up. δ obeys the triangle inequality: actions of one name of any
two states of the cluster differ by no more than twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import check_int
from bisim_abstract._base.labels import by_first_appearance
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._exact.transport import solve_transport
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import Names
from bisim_abstract._model.renaming import actions_called, own_names
from bisim_abstract._relations.apart import TINY
from bisim_abstract.errors import NotCertifiedError

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate

__all__ = ["Correspondence"]

CELLS = 2_000_000  # costs of transports at a time


@dataclass(frozen=True, eq=False)
class Correspondence:
    """How actions of the states of certified clusters correspond, with proven differences.

    Attributes:
        labels: (n_states) the cluster of each state, as `Certificate.labels`.
        renaming: (n_states, n_actions) what each action of a state is called in its cluster, -1
            where the state lacks it.
        models: (clusters, and the end) the state that each cluster's actions are those of.
        difference: (n_states, n_actions) proven upper bounds on what an action differs by from
            the action of the same name of its cluster's model, at once and in all that follows;
            0 where the state lacks it.
        names: What states and actions are called, for the text that it makes.
    """

    labels: IntArray
    renaming: IntArray
    models: IntArray
    difference: FloatArray
    names: Names = field(default_factory=Names, repr=False)

    @property
    def widest(self) -> float:
        """No action differs by more from the one that it is called after."""
        return float(self.difference.max())

    @cached_property
    def model_actions(self) -> IntArray:
        """(n_states, n_actions) the action of its cluster's model that each corresponds to, or -1.

        The first that is called so, where the model has several.
        """
        theirs = _called(self.renaming)[self.models[self.labels]]
        found = np.take_along_axis(theirs, np.maximum(self.renaming, 0), axis=1)
        return np.where(self.renaming >= 0, found, -1)

    @property
    def is_renamed(self) -> bool:
        """Whether some action corresponds to one of another number."""
        named = self.renaming >= 0
        return bool((self.model_actions != np.arange(self.renaming.shape[1]))[named].any())

    def of(self, state: int) -> dict[int, int]:
        """Which action of its cluster's model each action of a state corresponds to.

        Args:
            state: The state.
        """
        state = check_int("state", state, low=0, high=self.labels.size - 1)
        return {a: int(b) for a, b in enumerate(self.model_actions[state]) if b >= 0}

    def text(self, state: int, *, is_whole: bool = True) -> str:
        """The same in words: "left as right, right as left".

        Args:
            state: The state.
            is_whole: Whether to list actions that correspond to themselves as well.
        """
        called = self.names.action_text
        return ", ".join(
            f"{called(a)} as {called(b)}" for a, b in self.of(state).items() if is_whole or a != b
        )

    def __str__(self) -> str:
        lines = []
        for cluster, model in enumerate(self.models.tolist()):
            members = np.flatnonzero(self.labels == cluster)
            kinds, which = np.unique(self.model_actions[members], axis=0, return_inverse=True)
            for kind in range(len(kinds)):
                own = members[which.reshape(-1) == kind]
                changed = self.text(int(own[0]), is_whole=False)
                if changed:
                    first, like = (self.names.state_text(s) for s in (int(own[0]), model))
                    lines.append(
                        f"cluster {cluster}: {counted(own.size, 'state')}, {first} the first, "
                        f"as state {like} with {changed}; differs by at most "
                        f"{self.difference[own].max():.3g}"
                    )
        return "\n".join(lines) or "all actions are called what they are"

    def __repr__(self) -> str:
        how = "renamed" if self.is_renamed else "by name"
        count = counted(self.models.size, "cluster")
        return f"Correspondence(actions of {count}, {how}, up to {self.widest:.3g})"


def find_correspondence(certificate: Certificate, mdp: TabularMDP) -> Correspondence:
    """See `Certificate.correspondence`."""
    value = certificate.value
    if value is None:
        raise NotCertifiedError(
            "actions correspond where clusters are certified and their value is proven: "
            "certificate.with_value(mdp) proves it, if they are"
        )
    renaming = own_names(mdp) if value.renaming is None else value.renaming
    models = by_first_appearance(value.labels)[1]
    # Clusters are numbered by their first live state; the end is the last, whatever its number.
    models = models[np.argsort(value.labels[models])]
    states, actions = np.nonzero(renaming >= 0)
    model = models[value.labels[states]]
    other = _called(renaming)[model, renaming[states, actions]]
    difference = np.zeros(mdp.rewards.shape)
    difference[states, actions] = _differences(certificate, mdp, states, actions, model, other)
    return Correspondence(value.labels, renaming, models, difference, mdp.names)


def _called(renaming: IntArray) -> IntArray:
    """(n_states, n_actions) the first action of each state that has each name."""
    count, names = renaming.shape
    return np.stack([actions_called(renaming, np.full(count, name)) for name in range(names)], 1)


def _differences(
    certificate: Certificate,
    mdp: TabularMDP,
    s: IntArray,
    a: IntArray,
    t: IntArray,
    b: IntArray,
) -> FloatArray:
    """Upper bounds on δ of pairs of states and actions; 0 for those that are the same."""
    gamma, n_actions = certificate.gamma, mdp.n_actions
    out = np.zeros(s.size)
    row, other = s * n_actions + a, t * n_actions + b
    lengths = np.diff(mdp.indptr)
    kinds, which = np.unique(np.stack([lengths[row], lengths[other]]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    for kind, (m, n) in enumerate(kinds.T.tolist()):
        of_kind = np.flatnonzero((which == kind) & (row != other))
        size = max(1, CELLS // (m * n))
        for begin in range(0, of_kind.size, size):
            at = of_kind[begin : begin + size]
            one = mdp.indptr[row[at]][:, None] + np.arange(m)
            two = mdp.indptr[other[at]][:, None] + np.arange(n)
            x, y = mdp.indices[one], mdp.indices[two]
            costs = certificate.bounds(x[:, :, None], y[:, None, :])[1]
            out[at] = solve_transport(costs, mdp.probs[one], mdp.probs[two]).upper
    gap = np.abs(mdp.rewards[s, a] - mdp.rewards[t, b])
    if mdp.estimate is not None:
        # True rewards may be that far off, and so much mass anywhere, at D a unit.
        radius, away = mdp.estimate.reward_radius, mdp.estimate.row_radius
        gap = gap + (radius[s, a] + radius[t, b])
        out += (away[s, a] + away[t, b]) * certificate.ground.starts.diameter
    # A few roundings of terms that are at least 0, and underflow.
    found = (gap + gamma * out) * (1.0 + 16.0 * EPS) + TINY
    return np.where(row == other, 0.0, found)
