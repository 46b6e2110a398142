"""`PartitionProof`: what agents get on any partition, proven, whether or not a metric gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.aggregate import set_end_apart
from bisim_abstract._abstract.value import ProvenValue
from bisim_abstract._abstract.value_proof import prove_value
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import check_gamma, check_int
from bisim_abstract._base.html import table_html
from bisim_abstract._base.npz import Forms, read_record, record_kind, write_record
from bisim_abstract._base.text import clusters_text, counted, plain_text, shortened
from bisim_abstract._base.types import BoolArray, IntArray
from bisim_abstract._certificate.certificate import (
    CONDITIONS,
    MOST,
    MOST_TOLD,
    Certificate,
    holds_text,
)
from bisim_abstract._certificate.goal import KEEP, Goal, Numbers
from bisim_abstract._certificate.value_files import (
    VALUE_SHAPES,
    read_value,
    value_arrays,
    value_header,
)
from bisim_abstract._certificate.verdict import Verdict, _missed, _told
from bisim_abstract._model.estimation import check_alpha
from bisim_abstract._relations.table import find_bisimulation
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._model.mdp import TabularMDP

__all__ = ["PartitionProof", "prove_partition"]

FORMAT = "bisim_abstract.PartitionProof"
VERSION = 1
OWN = "clusters of a given partition, not shown to be those of a metric"
HEADER = (
    *("fingerprint", "gamma", "relation", "guarantee", "keep", "max_loss"),
    *("alpha", "terminal_state", "conditions"),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionProof:
    """A proof of what agents retain and lose on the clusters of a partition, whoever made it.

    It says nothing about distances: states of a cluster need not be alike, nor those of different
    clusters far apart. What agents get is proven exactly as it is for certified clusters, and
    `verify` checks it. `AbstractedEnv(env, proof)` is the environment over these clusters.

    Attributes:
        fingerprint: Of the model.
        gamma: The discount.
        value: What agents retain and lose; its `labels` are the partition.
        relation: "plain": actions keep their names. "lax": those of a cluster's members are
            matched by what they do.
        guarantee: Which agents `keep` and `max_loss` speak of: "solver", "policy" or "learner".
        keep: Share of the achievable return that was requested; `verdict` compares with it.
        max_loss: What no state should lose, if that was requested instead.
        alpha: If the model is an estimate, the proof holds for the true model with probability at
            least 1 - alpha; else None.
        terminal_state: The model's state that stands for the end of episodes, if it has one.
        conditions: What every statement about the environment assumes, in words.
        model: The model itself, while it is at hand. Files do not hold it.
    """

    fingerprint: str
    gamma: float
    value: ProvenValue
    relation: str = "plain"
    guarantee: str = "solver"
    keep: float = KEEP
    max_loss: float | None = None
    alpha: float | None = None
    terminal_state: int | None = None
    conditions: tuple[str, ...] = ()
    model: TabularMDP | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if not isinstance(self.value, ProvenValue):
            raise InvalidArgumentError(f"value must be a ProvenValue, got {self.value!r}")
        if not isinstance(self.fingerprint, str):
            raise InvalidArgumentError(f"fingerprint must be text, got {self.fingerprint!r}")
        set_field(self, "gamma", check_gamma(self.gamma))
        set_field(self, "relation", find_bisimulation(self.relation).name)
        goal = Goal(self.guarantee, self.keep, self.max_loss)
        set_field(self, "keep", goal.keep)
        set_field(self, "max_loss", goal.max_loss)
        if self.alpha is not None:
            set_field(self, "alpha", check_alpha(self.alpha, or_sure=True))
        if self.terminal_state is not None:
            end = check_int("terminal_state", self.terminal_state, low=0, high=self.n_states - 1)
            set_field(self, "terminal_state", end)
        labels, count = set_end_apart(self.labels, self.terminal_state)
        if not np.array_equal(labels, self.labels) or self.value.policy.size != count:
            raise InvalidArgumentError(
                "value must number clusters by their first states, the end of episodes last, as "
                "prove_value does"
            )
        first = np.unique(labels, return_index=True)[1]
        is_mixed = (self.available != self.available[first[labels]]).any(axis=1)
        if is_mixed.any() and not find_bisimulation(self.relation).matches_actions:
            raise InvalidArgumentError(
                f"the states of a cluster must have the same actions, and state "
                f"{int(is_mixed.argmax())} has others than the first of its cluster: separate "
                "them, or match actions by relation='lax'"
            )
        if self.model is not None and self.model.fingerprint != self.fingerprint:
            raise InvalidArgumentError("the proof is of another model than the one given")
        texts = tuple(plain_text(shortened(str(x), MOST_TOLD)) for x in self.conditions)
        set_field(self, "conditions", texts)

    # -- what it says ----------------------------------------------------------------------

    @property
    def scope(self) -> str:
        """What clusters are those of: "partition", where certificates have "all" or "covered"."""
        return "partition"

    @property
    def labels(self) -> IntArray:
        """(n_states) the cluster of each state; the end of episodes is none of those counted."""
        return self.value.labels

    @property
    def n_states(self) -> int:
        """Number of states of the model."""
        return int(self.labels.size)

    @property
    def n_live(self) -> int:
        """Number of states without the end of episodes."""
        return self.n_states - (self.terminal_state is not None)

    @property
    def n_clusters(self) -> int:
        """Number of clusters, the end of episodes not counted."""
        return int(self.value.policy.size) - (self.terminal_state is not None)

    @cached_property
    def available(self) -> BoolArray:
        """(n_states, n_actions) which actions each state has."""
        names = self.value.renaming
        if names is None:
            return np.ones(self.value.constant_upper.shape, np.bool_)
        return np.asarray(names >= 0)

    @property
    def goal(self) -> Goal:
        """What was requested of agents on the clusters."""
        return Goal(self.guarantee, self.keep, self.max_loss)

    @property
    def holds_for(self) -> str:
        """What the proof holds for, in words, where that is not just the stored model."""
        return holds_text(self.alpha)

    @property
    def verdict(self) -> Verdict:
        """Whether it is worth it, in one sentence; never certified."""
        value, found = self.value, Numbers.of(self.value, self.guarantee)
        states = counted(self.n_live, "state")
        has_end = self.terminal_state is not None
        what = clusters_text(self.n_clusters, has_end=has_end, of=states)
        begin, level = "PROVEN FOR AGENTS, not certified", "poor"
        if found is None:
            told = "what these agents retain on them was not computed"
        else:
            told = _told(self, value, found)
            if not self.goal.is_enough(found):
                begin += f", BUT {_missed(self.goal, found)}"
            elif found.ends_fewer:
                begin += ", BUT clearly fewer episodes may end"
            elif self.n_clusters == self.n_live > 1:
                begin += ", BUT nothing is merged"
            else:
                level = "useful"
        return Verdict(
            level=level,
            sentence=f"{begin}: {what}; {told}; {OWN}",
            is_certified=False,
            clusters=self.n_clusters,
            guarantee=self.guarantee,
            kept=None if found is None else found.kept,
            loss=None if found is None else found.loss,
        )

    def summary(self) -> str:
        """A few lines for people, the verdict first."""
        lines = [self.verdict.sentence, *self.value.lines(self.gamma)]
        if self.holds_for:
            lines.append(f"  holds     {self.holds_for}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        clusters = counted(self.n_clusters, "cluster")
        states = counted(self.n_live, "state")
        return f"PartitionProof({clusters} of {states}, proven for agents, not certified)"

    def _repr_html_(self) -> str:
        rows = [("discount", f"{self.gamma:g}"), ("clusters", OWN)]
        if self.holds_for:
            rows.append(("holds", self.holds_for))
        return table_html(self.verdict.sentence, rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> PartitionProof:
        return self  # nothing in it can change

    # -- keeping it ------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file: arrays, JSON header, and a digest of both; never a pickle.

        Args:
            path: The file.
        """
        header = {name: getattr(self, name) for name in HEADER}
        header |= {"n_states": self.n_states, "value": value_header(self.value)}
        arrays = {"labels": self.labels, **value_arrays(self.value)}
        write_record(path, header, arrays, kind=FORMAT, version=VERSION)

    @classmethod
    def load(cls, path: str | Path) -> PartitionProof:
        """Read a file written by `save`; any changed byte is noticed.

        Args:
            path: The file.

        Raises:
            FileFormatError: If the file is damaged, changed, or of another kind.
        """
        header, arrays = read_record(
            path, kind=FORMAT, version=VERSION, what="proof of a partition", forms=_forms
        )
        try:
            labels = arrays.pop("labels")
            value = read_value(header.pop("value"), arrays, labels)
            if arrays or set(header) != {*HEADER, "n_states"}:
                raise FileFormatError(f"{path} has parts missing or too many")
            del header["n_states"]
            return cls(value=value, **header)
        except InvalidArgumentError as error:
            raise FileFormatError(f"{path} holds an inconsistent proof: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path} has a damaged header: {error!r}") from error


def prove_partition(
    mdp: TabularMDP,
    labels: npt.ArrayLike,
    gamma: float,
    *,
    relation: str = "plain",
    keep: float | None = None,
    max_loss: float | None = None,
    guarantee: str = "solver",
) -> PartitionProof:
    """A proof of what agents get on any partition, of which `AbstractedEnv` makes an environment.

    For clusters that no threshold of a metric gives, or that come from elsewhere: blocks that a run
    of `certify` found and could not certify, rooms drawn by hand, clusters of a learned embedding.

    Args:
        mdp: The model.
        labels: (n_states) cluster of each state; whole numbers from 0 on. The end of episodes is
            taken out of its cluster.
        gamma: The discount, in [0, 1).
        relation: "plain" keeps the names of actions; "lax" matches those of a cluster's members.
        keep: Share of the achievable return that is wanted, 0.95 by default.
        max_loss: Instead: what no state may lose.
        guarantee: Which agents these speak of: "solver", "policy" or "learner"; see `certify`.

    Example:
        >>> from bisim_abstract.parts import grouped_mdp
        >>> mdp, groups = grouped_mdp(60, 5, noise=0.01, seed=0)
        >>> proof = prove_partition(mdp, groups, 0.9)
        >>> proof, proof.verdict.level
        (PartitionProof(5 clusters of 60 states, proven for agents, not certified), 'useful')
    """
    if keep is not None and max_loss is not None:
        raise InvalidArgumentError("give keep or max_loss, not both")
    goal = Goal(guarantee, KEEP if keep is None else keep, max_loss)
    known = find_bisimulation(relation)
    value = prove_value(
        mdp, labels, gamma, relation=known.name, guarantee=guarantee, is_enough=goal.is_enough
    )
    told = mdp.metadata.get(CONDITIONS) or ()
    return PartitionProof(
        fingerprint=mdp.fingerprint,
        gamma=gamma,
        value=value,
        relation=known.name,
        guarantee=guarantee,
        keep=goal.keep,
        max_loss=goal.max_loss,
        alpha=None if mdp.estimate is None else mdp.estimate.alpha,
        terminal_state=mdp.terminal_state,
        conditions=tuple(x for x in told if isinstance(x, str)),
        model=mdp,
    )


def load_proof(path: str | Path) -> Certificate | PartitionProof:
    """The certificate, or the proof of a partition, that a file holds."""
    return PartitionProof.load(path) if record_kind(path) == FORMAT else Certificate.load(path)


def _forms(header: Mapping[str, Any]) -> Forms:
    return Forms({"labels": "n", **VALUE_SHAPES}, known={"n": header.get("n_states")}, most=MOST)
