"""`Options`: what a certificate is asked for, in one object for Python, commands and runs.

A goal, a method that owns its own options, and budgets. Everything is checked when the object is
made, before any work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self, TypedDict

from bisim_abstract._abstract.value import GUARANTEES
from bisim_abstract._base.checks import (
    check_choice,
    check_int,
    check_positive,
    check_real,
)
from bisim_abstract._base.text import short
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate.goal import KEEP, Goal, check_loss, check_share
from bisim_abstract._prove.work import Work
from bisim_abstract._relations.base import Relation
from bisim_abstract._relations.table import RELATIONS, find_relation
from bisim_abstract.errors import InvalidArgumentError

AUTO = "auto"  # whichever relation gives the fewest clusters


class Method(Protocol):
    """How a certificate is looked for: a frozen object that holds and checks its own options."""

    name: ClassVar[str]
    scope: ClassVar[str]

    def check(self, options: Options) -> None:
        """Refuse goals that it has no way to reach."""

    def starts(self) -> Mapping[str, Any]:
        """How arms start: arguments of `Arms`."""

    def begin(self, table: Arms, options: Options) -> Work:
        """A run on arms that cover nothing yet."""


def default_method(relation: str | Relation = "plain") -> Method:
    """The first method that can prove a relation, with its defaults."""
    from bisim_abstract._prove.methods import METHODS

    method: Method = METHODS[find_relation(relation).methods[0]]()
    return method


class Goals(TypedDict, total=False):
    """The goal and the budget of time, as people give them by name to what certifies for them."""

    relation: str
    keep: float | None
    max_loss: float | None
    guarantee: str
    n_clusters: int | None
    tau: float | None
    max_seconds: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """A goal, a method, budgets, and a seed; see `certify`, whose arguments these are.

    Attributes:
        relation: Which states are alike: a name of the table of relations, or "auto".
        keep: Share of the achievable return to retain.
        max_loss: What no state may lose.
        guarantee: Which agents these two speak of: "solver", "policy" or "learner".
        tau: Threshold, or "auto".
        n_clusters: Number of clusters.
        tol: Width of the bounds.
        method: How to get there.
        max_rounds: Budget of rounds or steps.
        max_seconds: Budget of time.
        max_backups: Budget of pair backups.
        seed: Of everything random.
    """

    relation: str = "plain"
    keep: float | None = None
    max_loss: float | None = None
    guarantee: str = "solver"
    tau: float | str | None = None
    n_clusters: int | None = None
    tol: float | None = None
    method: Method = None  # type: ignore[assignment]  # that of the relation, filled in below
    max_rounds: int = 100
    max_seconds: float | None = None
    max_backups: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        checks: dict[str, Callable[[Any], Any]] = {
            "relation": _relation_name,
            "keep": lambda value: check_share("keep", value),
            "max_loss": check_loss,
            "guarantee": lambda value: check_choice("guarantee", value, GUARANTEES),
            "tau": lambda value: value if check_tau(value) is None else check_tau(value),
            "n_clusters": lambda value: check_int("n_clusters", value, low=1),
            "tol": lambda value: check_positive("tol", value),
            "max_rounds": lambda value: check_int("max_rounds", value, low=1),
            "max_seconds": lambda value: check_positive("max_seconds", value),
            "max_backups": lambda value: check_int("max_backups", value, low=1),
            "seed": lambda value: check_int("seed", value, low=0),
        }
        needed = {"relation", "guarantee", "max_rounds", "seed"}
        for name, check in checks.items():
            value = getattr(self, name)
            if value is not None or name in needed:
                object.__setattr__(self, name, check(value))
        _check_one(tau=self.threshold, n_clusters=self.n_clusters)
        _check_one(keep=self.keep, max_loss=self.max_loss, tau=self.tau)
        _check_one(keep=self.keep, max_loss=self.max_loss, n_clusters=self.n_clusters)
        _check_one(keep=self.keep, max_loss=self.max_loss, tol=self.tol)
        if self.relation == AUTO:
            if self.method is not None or not self.is_by_value:
                raise InvalidArgumentError(
                    "relation='auto' takes the fewest clusters that reach keep= or max_loss=, by "
                    "default methods: give no method, no option of one and no other goal, or name "
                    "a relation"
                )
            return
        if self.method is None:
            object.__setattr__(self, "method", default_method(self.relation))
        if not hasattr(self.method, "begin") or isinstance(self.method, type):
            raise InvalidArgumentError(
                f"method must be Blocks(...) or Covering(...), got {self.method!r}"
            )
        methods = find_relation(self.relation).methods
        if self.method.name not in methods:
            raise InvalidArgumentError(
                f"relation={self.relation!r} is proven by the method {' or '.join(methods)}, "
                f"got {self.method!r}; leave method out"
            )
        self.method.check(self)

    @property
    def goal(self) -> Goal:
        """What agents on the clusters are to keep."""
        return Goal(self.guarantee, KEEP if self.keep is None else self.keep, self.max_loss)

    @property
    def threshold(self) -> float | None:
        """The threshold asked for, if it is a number."""
        return None if self.tau is None or isinstance(self.tau, str) else self.tau

    @property
    def is_by_value(self) -> bool:
        """Whether proven values decide which threshold is taken."""
        return all(other is None for other in (self.tau, self.n_clusters, self.tol))

    @property
    def is_widest(self) -> bool:
        """Whether the certified interval whose ends have the largest ratio is looked for."""
        return isinstance(self.tau, str)

    def with_embedding(self, embedding: Any) -> Self:
        """The same with an embedding to propose from; None changes nothing."""
        if embedding is None:
            return self
        self.check_embedding()
        method: Any = self.method
        return replace(self, method=replace(method, embedding=embedding))

    @property
    def takes_embedding(self) -> bool:
        """Whether the method can propose from an embedding."""
        return hasattr(self.method, "embedding")

    def check_embedding(self) -> None:
        """Refuse an embedding, or an encoder of one, that nothing would read."""
        if not self.takes_embedding:
            why = "uses default methods" if self.relation == AUTO else "compares values"
            raise InvalidArgumentError(
                f"relation={self.relation!r} {why} and takes no embedding: leave out the encoder, "
                "or use relation='plain'"
            )

    @classmethod
    def named(cls, given: Mapping[str, Any]) -> Self:
        """Of arguments by name, those of the method among them, as files and commands hold them.

        Args:
            given: Names and values; "method" is its name, by default that of the relation, and
                whatever is not in this class is its.

        Raises:
            InvalidArgumentError: If a name is unknown, or belongs to the other method.
        """
        from bisim_abstract._prove.methods import METHODS

        if not isinstance(given, Mapping):
            raise InvalidArgumentError(f"options must be names with values, got {given!r}")
        relation = _relation_name(given.get("relation", cls.relation))
        own = {entry.name for entry in fields(cls)} - {"method"}
        if relation == AUTO:
            # Options of methods are refused as methods are.
            mine = {name: value for name, value in given.items() if name in own}
            others: Any = {name: value for name, value in given.items() if name not in own}
            return cls(**mine, method=others or None)  # type: ignore[arg-type]  # as in `certify`
        default = default_method(relation).name
        kind = METHODS[check_choice("method", given.get("method", default), tuple(METHODS))]
        rest = {name: given[name] for name in given if name not in own and name != "method"}
        known = {entry.name for entry in fields(kind)}
        for name in rest:
            if name not in known:
                raise InvalidArgumentError(
                    f"{name} is no option of method {kind.name!r}, which takes "
                    f"{', '.join(sorted(own | known))}"
                )
        mine = {name: given[name] for name in given if name in own}
        return cls(**mine, method=kind(**rest))


def _relation_name(relation: str | Relation) -> str:
    if isinstance(relation, Relation):
        return relation.name
    return check_choice("relation", relation, (*RELATIONS, AUTO))


def check_tau(tau: float | str | None) -> float | None:
    """A threshold as a float of at least 0, or None for "auto" and for none."""
    if tau is None:
        return None
    if isinstance(tau, str):
        if tau != "auto":
            raise InvalidArgumentError(f'tau must be a number or "auto", got {short(tau)}')
        return None
    threshold = check_real("tau", tau)
    if threshold < 0.0:
        raise InvalidArgumentError(f"tau must be at least 0, a distance, got {threshold!r}")
    return threshold


def _check_one(**goals: object) -> None:
    """Refuse more than one way to choose a threshold."""
    given = [name for name, value in goals.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgumentError(f"give {' or '.join(given)}, not both")
