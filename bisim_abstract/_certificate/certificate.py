"""`Certificate`: bounds on the metric that can be checked without the code that made them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.aggregate import Aggregation, aggregate, set_end_apart
from bisim_abstract._abstract.value import ProvenValue
from bisim_abstract._base.arrays import checked_metadata, frozen
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import (
    check_choice,
    check_gamma,
    check_int,
    check_real,
    check_states,
)
from bisim_abstract._base.html import table_html
from bisim_abstract._base.labels import as_labels
from bisim_abstract._base.late import maker
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.npz import Forms, read_record, write_record
from bisim_abstract._base.progress import shown
from bisim_abstract._base.text import counted, plain_text, shortened, surely_text, there_are
from bisim_abstract._base.types import (
    BoolArray,
    FloatArray,
    IntArray,
    ProgressCallback,
    SeedLike,
)
from bisim_abstract._bounds.action_values import ActionValues
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel
from bisim_abstract._bounds.features import ValueFeatures
from bisim_abstract._bounds.ground import LOWER_STARTS, UPPER_STARTS, Ground, Starts
from bisim_abstract._bounds.pair_table import PairTable
from bisim_abstract._bounds.spanning import Undecided, link_forests, undecided
from bisim_abstract._bounds.witnesses import Witnesses
from bisim_abstract._certificate.goal import KEEP, Goal
from bisim_abstract._certificate.value_files import (
    VALUE_SHAPES,
    read_value,
    value_arrays,
    value_header,
)
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._linkage.thresholds import (
    CertifiedInterval,
    Profile,
    certified_intervals,
    intervals_below,
    make_profile,
)
from bisim_abstract._model.checks import check_available
from bisim_abstract._model.estimation import (
    check_alpha,
    check_reward_range,
    interval_around,
)
from bisim_abstract._model.frames import Columns, as_frame
from bisim_abstract._model.names import Names
from bisim_abstract._relations.table import RELATIONS, find_relation
from bisim_abstract.errors import FileFormatError, InvalidArgumentError, NotCertifiedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from networkx import MultiDiGraph
    from pandas import DataFrame

    from bisim_abstract._certificate.correspondence import Correspondence
    from bisim_abstract._certificate.frontier import Frontier
    from bisim_abstract._certificate.nearest import NearPair
    from bisim_abstract._certificate.verdict import Verdict
    from bisim_abstract._model.mdp import TabularMDP

__all__ = ["Certificate"]

FORMAT = "bisim_abstract.Certificate"
VERSION = 7
CONDITIONS = "conditions"  # in the record of a run, from the metadata of its model
MOST_TOLD = 200  # characters of one of them
CUT_SHORT = "is_cut_short"  # in the record of a run that had no time to derive clusters
TIMES = ("seconds", "compile_seconds")  # in the record of a run, and not in files
SCOPES = ("covered", "all")
DERIVED = ("ground", "forests", "global_width")  # from the bounds alone
INTEGERS = ("keys", "labels_lower", "labels_upper")
BOOLEANS = ("available",)
# Of the chain that a policy makes of a model.
OF_POLICY = "speaks of the value of the given policy, not of the best one"
REALS = ("rewards", "reward_radius", "lower", "upper")
SCALARS = (
    "fingerprint",
    "n_states",
    "terminal_state",
    "gamma",
    "lower_start",
    "upper_start",
    "tau",
    "scope",
    "guarantee",
    "keep",
    "max_loss",
    "alpha",
    "reward_range",
    "relation",
    "apart",
    "stop",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Certificate:
    """Lower and upper bounds on distances of states, with everything needed to check them.

    The distance is the bisimulation metric, plain or lax, or that of optimal action values: the
    `relation` says which. `verify` checks all bounds.

    Several components bound the bisimulation metric of pairs of states, and the tightest of them
    counts: stored bounds of covered pairs; bounds on pairs of blocks, at any number of levels;
    distances of value features; and start values, which depend on the rewards alone. Each claims
    no more than one inequality, lower <= T(lower) or upper >= T(upper), from which enclosure
    follows. In the relation "optimal" none of these is used: the bounds of all pairs follow from
    `action_values`, which one backup proves.

    Attributes:
        fingerprint: Of the model.
        n_states: Number of states of the model.
        gamma: The discount.
        rewards: (n_states, n_actions) rewards of the model, which start values depend on.
        available: (n_states, n_actions) which actions each state has; all by default.
        relation: "plain": states are compared action by action. "lax": every action of one state
            is compared with the action of the other that is most like it, and the other way round.
            "optimal": optimal values of actions are compared, by name.
        apart: The distance of states that have different actions, in the relations "plain" and
            "optimal"; None where all states have the same ones, or the relation is lax.
        reward_radius: (n_states, n_actions) how far true rewards may be from these, if the
            model is an estimate; else of shape (0, 0).
        alpha: If the model is an estimate, the bounds hold for the metric of the true model
            with probability at least 1 - alpha; surely, if that is 0: then radii are those of
            rounding, in the chain of a policy. Else None, and they hold for what is stored.
        reward_range: If the model is an estimate, bounds on its single rewards, which no mean
            leaves; else None.
        keys: (covered) sorted pair keys, s * n_states + t with s < t.
        lower: (covered) lower bounds.
        upper: (covered) upper bounds.
        levels: Block levels.
        features: Value features, or None.
        action_values: In the relation "optimal", proven bounds on optimal action values, of which
            all distances follow; else None.
        lower_start: "reward" or "zero": what uncovered pairs read below.
        upper_start: "reward" or "constant": what uncovered pairs read above.
        tau: The threshold asked for, or None.
        scope: "covered": clusterings link covered pairs only. "all": they link all pairs.
        labels_lower: (n_states) clusters of the lower arm at tau (empty without tau). With
            scope "all", no two states of different clusters are within tau.
        labels_upper: (n_states) clusters of the upper arm at tau (empty without tau). With
            scope "all", the states of a cluster are linked by steps of at most tau.
        value: What agents on the certified clusters retain and can lose, proven; None if
            nothing is certified at tau, or it was not computed.
        guarantee: Which agents `keep` and `max_loss` speak of: "solver", "policy" or "learner".
        keep: Share of the achievable return that was requested; `verdict` compares with it.
        max_loss: What no state should lose, if that was requested instead.
        terminal_state: The model's state that stands for the end of episodes, if it has one;
            it is none of the clusters that are counted.
        stop: Why the run ended, in words.
        run: Rounds, sweeps, seeds, versions and the like; JSON values. Files do not hold its
            `seconds` and `compile_seconds`: equal runs write equal bytes.
        model: The model itself, while it is at hand: `frontier` and `nearest` read it. Files do
            not hold it.
    """

    fingerprint: str
    n_states: int
    gamma: float
    rewards: FloatArray
    keys: IntArray
    lower: FloatArray
    upper: FloatArray
    reward_radius: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    available: BoolArray = field(default=None)  # type: ignore[arg-type]  # filled in below
    relation: str = "plain"
    apart: float | None = None
    alpha: float | None = None
    reward_range: tuple[float, float] | None = None
    levels: tuple[BlockLevel, ...] = ()
    features: ValueFeatures | None = None
    action_values: ActionValues | None = None
    lower_start: str = "reward"
    upper_start: str = "reward"
    tau: float | None = None
    scope: str = "covered"
    labels_lower: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    labels_upper: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    value: ProvenValue | None = None
    guarantee: str = "solver"
    keep: float = KEEP
    max_loss: float | None = None
    terminal_state: int | None = None
    stop: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
    model: TabularMDP | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "gamma", check_gamma(self.gamma))
        set_field(self, "n_states", check_int("n_states", self.n_states, low=1))
        for name in INTEGERS:
            set_field(self, name, frozen(name, getattr(self, name), np.int64))
        for name in REALS:
            set_field(self, name, frozen(name, getattr(self, name), np.float64))
        if self.available is None:
            set_field(self, "available", np.ones(self.rewards.shape, np.bool_))
        set_field(self, "available", frozen("available", self.available, np.bool_))
        check_choice("relation", self.relation, tuple(RELATIONS))
        check_choice("lower_start", self.lower_start, LOWER_STARTS)
        check_choice("upper_start", self.upper_start, UPPER_STARTS)
        check_choice("scope", self.scope, SCOPES)
        for name in ("fingerprint", "stop"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgumentError(f"{name} must be text, got {getattr(self, name)!r}")
        if self.alpha is not None:
            set_field(self, "alpha", check_alpha(self.alpha, or_sure=True))
        if self.reward_range is not None:
            set_field(self, "reward_range", check_reward_range(self.reward_range))
        _check_rewards(self)
        covered = PairTable(self.n_states, self.keys, self.lower, self.upper)
        covered.check_diagonal()
        for name in ("keys", "lower", "upper"):
            set_field(self, name, getattr(covered, name))
        self.__dict__["covered"] = covered
        _check_components(self)
        for name in ("labels_lower", "labels_upper"):
            expected = (0,) if self.tau is None else (self.n_states,)
            if getattr(self, name).shape != expected:
                raise InvalidArgumentError(
                    f"{name} must have shape {expected}, got {getattr(self, name).shape}"
                )
            labels = getattr(self, name)
            if ((labels < 0) | (labels >= self.n_states)).any():
                raise InvalidArgumentError(f"{name} must lie in [0, {self.n_states})")
        if self.tau is not None:
            set_field(self, "tau", check_real("tau", self.tau))
        goal = Goal(self.guarantee, self.keep, self.max_loss)
        set_field(self, "keep", goal.keep)
        set_field(self, "max_loss", goal.max_loss)
        if self.terminal_state is not None:
            top = self.n_states - 1
            end = check_int("terminal_state", self.terminal_state, low=0, high=top)
            set_field(self, "terminal_state", end)
        _check_value(self)
        if self.model is not None:
            self._check_model(self.model)
        set_field(self, "run", MappingProxyType(checked_metadata(self.run, "run")))

    # -- what it says ----------------------------------------------------------------------

    @cached_property
    def covered(self) -> PairTable:
        """The covered pairs with their bounds."""
        return PairTable(self.n_states, self.keys, self.lower, self.upper)

    @property
    def n_covered(self) -> int:
        """Number of covered pairs."""
        return int(self.keys.size)

    @property
    def coverage(self) -> float:
        """Share of all pairs that is covered."""
        total = self.n_states * (self.n_states - 1) // 2
        return self.n_covered / total if total else 1.0

    @property
    def width(self) -> float:
        """Largest distance between the two bounds over covered pairs."""
        return self.covered.width

    @cached_property
    def global_width(self) -> float:
        """Bound on the same over all pairs; what uncovered pairs read is part of it."""
        if self.coverage == 1.0:
            return self.width
        return max(self.width, self.ground.widest())

    @property
    def is_certified(self) -> bool:
        """Whether both arms give the same clustering at `tau`.

        It is then the exact clustering over the pairs in scope. Over all pairs that is the
        clustering of the distance itself; over covered pairs, an uncovered one may still link
        two of its clusters.
        """
        return self.tau is not None and np.array_equal(self.labels_lower, self.labels_upper)

    @property
    def n_live(self) -> int:
        """Number of states without the end of episodes."""
        return self.n_states - (self.terminal_state is not None)

    @property
    def n_clusters(self) -> int:
        """Number of clusters of the upper arm at `tau`, the end of episodes not counted.

        Raises:
            InvalidArgumentError: If the certificate has no threshold.
        """
        if self.tau is None:
            raise InvalidArgumentError("the certificate has no threshold, so there are no clusters")
        return self._count_live(self.labels_upper)

    @cached_property
    def labels(self) -> IntArray:
        """(n_states) the certified cluster of each state, as `aggregate` and agents count them.

        Clusters are numbered from 0 on by the first live state of each. The end of episodes is
        none of them: its label is the number of clusters.

        Raises:
            NotCertifiedError: If the arms do not agree on clusters, or there is no threshold.
        """
        if self.tau is None:
            raise NotCertifiedError(
                "nothing is certified, as the certificate has no threshold: choose one of "
                "certificate.certified_thresholds(), and take certificate.at(tau).labels"
            )
        if not self.is_certified:
            low, high = (self._count_live(x) for x in (self.labels_lower, self.labels_upper))
            raise NotCertifiedError(
                f"no clusters are certified at tau {self.tau:.6g}: there are between {low:,} and "
                f"{high:,}. labels_lower and labels_upper are those of the arms; at a threshold of "
                "certificate.certified_thresholds(), certificate.at(tau).labels are certified"
            )
        return frozen("labels", set_end_apart(self.labels_upper, self.terminal_state)[0], np.int64)

    @cached_property
    def clusters(self) -> tuple[IntArray, ...]:
        """The states of each certified cluster, rising; the end of episodes is in none.

        Raises:
            NotCertifiedError: If the arms do not agree on clusters, or there is no threshold.
        """
        order = np.argsort(self.labels, kind="stable")
        sizes = np.bincount(self.labels, minlength=self.n_clusters)[: self.n_clusters]
        order.setflags(write=False)  # and with it, all its parts
        return tuple(np.split(order, np.cumsum(sizes))[: self.n_clusters])

    def _count_live(self, labels: IntArray) -> int:
        live = labels if self.terminal_state is None else np.delete(labels, self.terminal_state)
        return int(np.unique(live).size)

    @property
    def verdict(self) -> Verdict:
        """Whether it is certified, and worth it, in one sentence."""
        from bisim_abstract._certificate.verdict import judge

        return judge(self)

    def bounds(self, states: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds on the distances of any pairs, by broadcasting index arrays.

        The distance is that of the relation; in "optimal", the largest difference of optimal
        action values.
        """
        s, t = np.broadcast_arrays(
            check_states("states", states, self.n_states),
            check_states("others", others, self.n_states),
        )
        check_memory(
            96 * s.size,
            what=f"the bounds of {s.size:,} pairs",
            instead="ask for them in parts",
        )
        small, large = np.minimum(s, t).ravel(), np.maximum(s, t).ravel()
        lower, upper = self.ground.read(small, large)
        at, known = self.covered.find(small, large)
        lower[known] = np.maximum(lower[known], self.lower[at[known]])
        upper[known] = np.minimum(upper[known], self.upper[at[known]])
        lower[small == large] = upper[small == large] = 0.0
        return lower.reshape(s.shape), upper.reshape(s.shape)

    def partitions(self, tau: float) -> tuple[IntArray, IntArray]:
        """(n_states) clusters of the lower and of the upper arm at a threshold.

        Raises:
            InvalidArgumentError: If it would merge states with different actions where distances
                are those of optimal action values.
        """
        _check_below(tau, self.apart if self.action_values is not None else None)
        return self.forests[0].labels(tau), self.forests[1].labels(tau)

    def certified_thresholds(self) -> list[CertifiedInterval]:
        """All thresholds at which both arms agree, as half-open intervals."""
        return self._allowed(certified_intervals(*self.forests, self.terminal_state))

    def _allowed(self, intervals: Sequence[CertifiedInterval]) -> list[CertifiedInterval]:
        """Thresholds that may be taken, of those at which both arms agree."""
        if self.action_values is None or self.apart is None:
            return list(intervals)
        # No policy over clusters can be told what states with different actions have in common.
        return intervals_below(intervals, self.apart)

    def thresholds_at_hand(self) -> list[CertifiedInterval] | None:
        """The same, or None where the run had no time to derive them: that may take long."""
        if self.is_cut_short and "forests" not in self.__dict__:
            return None
        return self.certified_thresholds()

    def profile(self) -> Profile:
        """Numbers of clusters of both arms at every threshold, and where they agree."""
        found = make_profile(*self.forests, self.terminal_state)
        return replace(found, intervals=tuple(self._allowed(found.intervals)))

    def frontier(
        self,
        mdp: TabularMDP | None = None,
        *,
        most: int | None = None,
        callback: ProgressCallback | None = None,
        progress: bool = False,
    ) -> Frontier:
        """Clusters against proven value, over all certified thresholds.

        Args:
            mdp: The model; needed if the certificate was read from a file.
            most: Thresholds that are looked at; by default as many as take some seconds. Where
                there are more, those on the way to the coarsest one that keeps `keep`.
            callback: Called after every threshold.
            progress: Show a line of progress, on a terminal, in a notebook or in a log.
        """
        from bisim_abstract._certificate.frontier import trace_frontier

        mdp = self._model(mdp)
        with shown(callback, progress, on_terminal=False) as report:
            return trace_frontier(self, mdp, most=most, callback=report)

    def nearest(self, k: int = 5, mdp: TabularMDP | None = None) -> list[NearPair]:
        """The closest pairs of different clusters, and what keeps them apart.

        Args:
            k: How many.
            mdp: The model; needed if the certificate was read from a file.
        """
        from bisim_abstract._certificate.nearest import nearest_pairs

        return nearest_pairs(self, self._model(mdp), check_int("k", k, low=0))

    def correspondence(self, mdp: TabularMDP | None = None) -> Correspondence:
        """Which actions of the states of a cluster correspond, and by how much they can differ.

        In the lax relation they correspond whatever they are called; otherwise by name.

        Args:
            mdp: The model; needed if the certificate was read from a file.

        Raises:
            NotCertifiedError: If the certificate has no proven value, and so no clusters whose
                actions were matched.
        """
        from bisim_abstract._certificate.correspondence import find_correspondence

        return find_correspondence(self, self._model(mdp))

    def _model(self, mdp: TabularMDP | None) -> TabularMDP:
        if mdp is not None:
            self._check_model(mdp)
            return mdp
        if self.model is None:
            raise InvalidArgumentError(
                "the model is not at hand, as the certificate was read from a file: give mdp, "
                "or use certificate.with_model(mdp)"
            )
        return self.model

    def _check_model(self, mdp: TabularMDP) -> None:
        if mdp.fingerprint != self.fingerprint:
            raise InvalidArgumentError("the certificate is of another model than the one given")

    def undecided(self, tau: float | None = None) -> Undecided | None:
        """What the arms leave open at a threshold, by default `tau`; None if they agree.

        Raises:
            InvalidArgumentError: If no threshold is given here or in the certificate.
        """
        if tau is not None:
            return undecided(*self.partitions(tau))
        if self.tau is None:
            raise InvalidArgumentError("tau must be given: the certificate has none of its own")
        return undecided(self.labels_lower, self.labels_upper)

    def summary(self) -> str:
        """A few lines for people, the verdict first."""
        n = self.n_states
        lines = [self.verdict.sentence]
        if self.value is not None:
            lines += self.value.lines(self.gamma)
        if self.tau is not None:
            lines.append(f"  tau       {self.tau:g} at gamma = {self.gamma:g}")
        else:
            known = self.thresholds_at_hand()
            found = "certified_thresholds() derives what is certified"
            if known is not None:
                found = there_are(len(known), "certified interval")
            lines.append(f"  tau       none at gamma = {self.gamma:g}; {found}")
        relation = find_relation(self.relation)
        if not relation.has_arms:
            lines.append(f"  bounds    all pairs, {bounded_by(self.action_values)}")
        else:
            lines.append(
                f"  bounds    {self.scope} pairs; {self.n_covered:,} of {n * (n - 1) // 2:,} "
                f"looked at ({self.coverage:.1%}), width {self.width:.4g} there, "
                f"{self.global_width:.4g} on all"
            )
        for k, level in enumerate(self.levels):
            lines.append(
                f"  level {k + 1:<3} {counted(level.model.n_blocks, 'block')}, "
                f"{counted(level.keys.size, 'pair')} of blocks bounded"
            )
        if self.features is not None:
            lines.append(
                f"  features  {counted(self.features.points().shape[1], 'value function')}"
            )
        if self.tau is not None and not self.is_certified:
            lines.append(f"  undecided {self._what_is_open()}")
        if relation.adjective:
            lines.append(f"  relation  {relation.name}: states are alike {relation.alike}")
        if self.apart is not None:
            lines.append(f"  apart     {self.apart:.4g} between states with different actions")
        if self.is_under_policy:
            lines.append(f"  policy    {OF_POLICY}")
        if self.holds_for:
            lines.append(f"  holds     {self.holds_for}")
        lines.append(f"  stopped   {self.stop or 'not said'}")
        if self.advice:
            lines.append(f"  try       {self.advice}")
        # Explaining a pair takes a transport problem per action: not where rows are long.
        if self.merges_little and self.model is not None and self.model.max_support <= 64:
            lines += [f"  closest   {pair}" for pair in self.nearest(3)]
        return "\n".join(lines)

    @property
    def is_cut_short(self) -> bool:
        """Whether the run had no time to derive clusters from its bounds."""
        return CUT_SHORT in self.run

    @property
    def goal(self) -> Goal:
        """What was requested of agents on the clusters."""
        return Goal(self.guarantee, self.keep, self.max_loss)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What every statement about the environment assumes, in words, as extraction found it."""
        told = self.run.get(CONDITIONS)  # maybe of a file
        texts = told if isinstance(told, list | tuple) else ()
        return tuple(plain_text(shortened(x, MOST_TOLD)) for x in texts if isinstance(x, str))

    @property
    def is_under_policy(self) -> bool:
        """Whether the model is the chain of a policy: then the proof speaks of its value.

        That is what the run wrote down when the model was at hand; a fingerprint is that of the
        chain, wherever it comes from.
        """
        return "under_policy" in self.run

    @property
    def holds_for(self) -> str:
        """What the bounds hold for, in words, where that is not just the stored model."""
        return holds_text(self.alpha)

    @property
    def merges_little(self) -> bool:
        """Whether more than half of the states stay apart at `tau`, or it is not certified."""
        return self.tau is not None and self.n_live > 1 and 2 * self.n_clusters > self.n_live

    @property
    def advice(self) -> str:
        """What may merge more, in words, where little is merged; empty if nothing is known to."""
        return find_relation(self.relation).instead if self.merges_little else ""

    def _what_is_open(self) -> str:
        """What the arms leave undecided at `tau`, in words."""
        open_ = self.undecided()
        if open_ is None:
            return "nothing"
        s, t = open_.example
        below, above = self.bounds(s, t)
        return (
            f"{counted(open_.clusters, 'cluster')} in {counted(open_.groups, 'group')}, "
            f"{counted(open_.pairs, 'pair')}; states {self.state_text(s)} and "
            f"{self.state_text(t)}, for instance, are between {float(below):.4g} and "
            f"{float(above):.4g} apart"
        )

    def state_text(self, state: int) -> str:
        """A state in a sentence: its number, with its name if the model is at hand and has one.

        Args:
            state: Its number.
        """
        return f"{state}" if self.model is None else self.model.state_text(state)

    def __repr__(self) -> str:
        verdict = (
            "" if self.tau is None else (", certified" if self.is_certified else ", not certified")
        )
        bounds = f"{self.coverage:.1%} of pairs covered, width {self.width:.3g}"
        if not find_relation(self.relation).has_arms:
            bounds = f"all pairs {bounded_by(self.action_values)}"
        return (
            f"Certificate({counted(self.n_states, 'state')}, {bounds}{verdict}"
            f"{', of a given policy' * self.is_under_policy})"
        )

    def _repr_html_(self) -> str:
        relation = find_relation(self.relation)
        bounds = f"; {self.coverage:.1%} have bounds of their own"
        if not relation.has_arms:
            bounds = f", bounded {bounded_by(self.action_values)}"
        rows = [
            ("threshold", "none" if self.tau is None else f"{self.tau:.6g}"),
            ("discount", f"{self.gamma:g}"),
            ("scope", f"{self.scope} pairs{bounds}"),
        ]
        if relation.adjective:
            rows.append(("relation", f"{relation.name}: alike {relation.alike}"))
        if self.is_under_policy:
            rows.append(("policy", OF_POLICY))
        if self.holds_for:
            rows.append(("holds", self.holds_for))
        rows.append(("stopped", self.stop or "not said"))
        return table_html(self.verdict.sentence, rows)

    def __reduce__(self) -> tuple[Callable[..., Certificate], tuple[dict[str, Any]]]:
        return _rebuild, (self._fields() | {"model": None},)

    def _fields(self) -> dict[str, Any]:
        """What the constructor takes."""
        fields = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        return fields | {"run": dict(self.run)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Certificate:
        return self  # nothing in it can change

    # -- as tables and graphs ----------------------------------------------------------------

    def to_columns(self, mdp: TabularMDP | None = None) -> Columns:
        """States with their clusters and values: arrays of one entry per state, by name.

        What the certificate does not know is left out:

        - `state`, its number; if the model is at hand, `id`, the environment's own, and one column
          for each variable that states are called by, of the variable's name (`name` where it
          has none; `variable_` comes before names that are columns of their own).
        - `is_end`, whether it stands for the end of episodes.
        - `cluster`, if certified; else `cluster_lower` and `cluster_upper`, those of the arms,
          if there is a threshold.
        - `optimal_lower` and `optimal_upper`, bounds on the optimal value, `action`, that of the
          policy planned on the clusters, `action_name` where actions have names, and
          `policy_lower`, a bound on what it is worth, if the certificate has a proven `value`.

        Args:
            mdp: The model, whose ids and names are listed; by default the one at hand, if there is
                one.
        """
        model = self.model if mdp is None else self._model(mdp)
        columns: Columns = {"state": np.arange(self.n_states)}
        if model is not None:
            columns["id"] = model.state_ids
        columns["is_end"] = np.arange(self.n_states) == self.terminal_state
        if self.is_certified:
            columns["cluster"] = self.labels
        elif self.tau is not None:
            columns |= {"cluster_lower": self.labels_lower, "cluster_upper": self.labels_upper}
        value = self.value
        if value is not None:
            columns |= {
                "optimal_lower": value.optimal_lower,
                "optimal_upper": value.optimal_upper,
                "action": value.lifted_policy,
                "policy_lower": value.policy_lower,
            }
        if model is None:
            return columns
        if value is not None and model.names.actions is not None:
            columns["action_name"] = np.array(model.names.actions, object)[columns["action"]]
        return _with_variables(columns, model.names)

    def to_frame(self, mdp: TabularMDP | None = None) -> DataFrame | Columns:
        """The same as a pandas DataFrame where pandas is installed, and as columns elsewhere.

        Either answers `frame["cluster"]`; code that needs one type takes `to_columns`, and makes
        of it what it likes.

        Args:
            mdp: The model, whose ids are listed; by default the one at hand, if there is one.
        """
        return as_frame(self.to_columns(mdp))

    def to_networkx(
        self, mdp: TabularMDP | None = None, *, weighting: str | npt.ArrayLike = "uniform"
    ) -> MultiDiGraph:
        """The certified clusters as a graph: see `Aggregation.to_networkx`.

        Args:
            mdp: The model; needed if the certificate was read from a file.
            weighting: How much each member counts in its cluster, as for `aggregate`.

        Raises:
            NotCertifiedError: If nothing is certified.
            MissingDependency: If networkx is not installed.
        """
        return self.aggregate(mdp, weighting=weighting).to_networkx()

    def aggregate(
        self, mdp: TabularMDP | None = None, *, weighting: str | npt.ArrayLike = "uniform"
    ) -> Aggregation:
        """The model over the certified clusters, its actions matched as the relation asks for.

        Where states have names, a cluster has that of its first state, and a label if all its
        states have it.

        Args:
            mdp: The model; needed if the certificate was read from a file.
            weighting: How much each member counts in its cluster, as for `aggregate`.

        Raises:
            NotCertifiedError: If nothing is certified.
        """
        from bisim_abstract._abstract.value_proof import matched_actions

        mdp = self._model(mdp)
        if self.value is not None:
            renaming = self.value.renaming
        else:
            renaming = matched_actions(mdp, self.labels, self.relation)
        small = aggregate(
            mdp, self.labels, renaming=renaming, weighting=weighting, gamma=self.gamma
        )
        return small.with_names(mdp.names)

    # -- pictures, which need the extra "plots" ----------------------------------------------

    def plot(self, mdp: TabularMDP | None = None) -> dict[str, Axes]:
        """Draw what matters of it, side by side in one new figure.

        Numbers of clusters by threshold ("profile"); with the model at hand also what they are
        proven to be worth ("frontier", unless there are too many states to look at), and where
        they lie, if the model is a grid ("map"). Without the model, the hierarchy of
        certified merges ("dendrogram").

        Args:
            mdp: The model, if the certificate was read from a file.

        Returns:
            The axes of each picture by these names; `axes["profile"].figure` is the figure.
        """
        axes: dict[str, Axes] = maker("plots").plot_overview(
            self, self.model if mdp is None else self._model(mdp)
        )
        return axes

    def plot_frontier(self, mdp: TabularMDP | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw clusters against proven value, the chosen ones as a star."""
        axes: Axes = maker("plots").plot_frontier(self, mdp=mdp, ax=ax)
        return axes

    def plot_graph(self, mdp: TabularMDP | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw the model over certified clusters as a graph with its actions."""
        axes: Axes = maker("plots").plot_graph(self, self._model(mdp), ax=ax)
        return axes

    def plot_profile(self, *, ax: Axes | None = None) -> Axes:
        """Draw the numbers of clusters of both arms by threshold."""
        axes: Axes = maker("plots").plot_profile(self, ax=ax)
        return axes

    def plot_widths(
        self, *, sample: int = 20_000, seed: SeedLike = 0, ax: Axes | None = None
    ) -> Axes:
        """Draw how far the bounds are apart, of covered pairs and of others, or of all."""
        axes: Axes = maker("plots").plot_widths(self, sample=sample, seed=seed, ax=ax)
        return axes

    def plot_dendrogram(self, *, max_leaves: int = 60, ax: Axes | None = None) -> Axes:
        """Draw the hierarchy of certified merges."""
        axes: Axes = maker("plots").plot_dendrogram(self, max_leaves=max_leaves, ax=ax)
        return axes

    def plot_map(
        self,
        places: Any = None,
        *,
        tau: float | None = None,
        arm: str = "upper",
        ax: Axes | None = None,
    ) -> Axes:
        """Draw states where they lie, coloured by cluster.

        Args:
            places: Where states are drawn, a `StateMap`; a model stands for its `state_map`, that
                of the model at hand by default.
            tau: The threshold; the certificate's own by default.
            arm: "lower" or "upper": whose clusters. They are the same where certified.
            ax: Axes to draw on; those of a new figure by default.
        """
        places = self._model(None) if places is None else places
        axes: Axes = maker("plots").plot_map(self, places, tau=tau, arm=arm, ax=ax)
        return axes

    # -- making and keeping it -------------------------------------------------------------

    def at(self, tau: float) -> Certificate:
        """The same bounds with another threshold, and without a proven value: see `with_value`."""
        tau = check_real("tau", tau)
        lower, upper = self.partitions(tau)
        fields = {"tau": tau, "labels_lower": lower, "labels_upper": upper, "value": None}
        return self._changed(**fields)

    def with_value(self, mdp: TabularMDP | None = None) -> Certificate:
        """The same with a proof of what a policy over its clusters keeps, where it is certified.

        Args:
            mdp: The model; needed if the certificate was read from a file.
        """
        from bisim_abstract._abstract.value_proof import prove_value

        mdp = self._model(mdp)
        value = None
        if self.is_certified:
            value = prove_value(
                mdp,
                self.labels_upper,
                self.gamma,
                relation=self.relation,
                guarantee=self.guarantee,
                is_enough=self.goal.is_enough,
            )
        return self._changed(value=value, model=mdp)

    def with_proven(self, value: ProvenValue) -> Certificate:
        """The same with a proof that was made elsewhere.

        Args:
            value: For the certified clusters, as `prove_value` gives it; `verify` checks it.
        """
        return self._changed(value=value)

    def with_model(self, mdp: TabularMDP) -> Certificate:
        """The same with its model at hand.

        Args:
            mdp: The model; no other is taken.
        """
        return self._changed(model=mdp)

    def with_record(self, stop: str, *, before: str = "", **entries: Any) -> Certificate:
        """The same with more words on why the run ended, and entries in its record."""
        stop = "; ".join(filter(None, (before, self.stop, stop)))
        return self._changed(stop=stop, run={**self.run, **entries})

    @property
    def times(self) -> dict[str, float]:
        """Seconds that making it took, and of compiling, as far as they are known."""
        return {name: self.run[name] for name in TIMES if name in self.run}

    def with_times(self, times: Mapping[str, float]) -> Certificate:
        """The same with such seconds, which its file does not hold."""
        return self._changed(run={**self.run, **times}) if times else self

    def _changed(self, **fields: Any) -> Certificate:
        changed = type(self)(**self._fields() | fields)
        # What does not depend on the threshold need not be found again.
        known = {name: self.__dict__[name] for name in DERIVED if name in self.__dict__}
        changed.__dict__.update(known)
        return changed

    def save(self, path: str | Path, *, compress: bool = True) -> None:
        """Write one `.npz` file: arrays, JSON header, and a digest of both; never a pickle.

        Args:
            path: The file.
            compress: Whether to pack it, which takes longer than all else.
        """
        arrays = {name: getattr(self, name) for name in (*INTEGERS, *REALS, *BOOLEANS)}
        arrays |= _component_arrays(self)
        run = {name: entry for name, entry in self.run.items() if name not in TIMES}
        header = {name: getattr(self, name) for name in SCALARS} | {"run": run}
        header["levels"] = len(self.levels)
        header["value"] = None if self.value is None else value_header(self.value)
        write_record(path, header, arrays, kind=FORMAT, version=VERSION, compress=compress)

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a file written by `save`; any changed byte is noticed.

        Raises:
            FileFormatError: If the file is damaged, changed, or of another kind.
        """
        header, arrays = read_record(
            path, kind=FORMAT, version=VERSION, what="certificate", forms=_forms
        )
        try:
            components = _components(arrays, header.pop("levels"), header["alpha"] is not None)
            numbers, upper = header.pop("value"), arrays["labels_upper"]
            if numbers is not None:
                labels, _ = set_end_apart(as_labels(upper, upper.size), header["terminal_state"])
                components["value"] = read_value(numbers, arrays, labels)
            if set(arrays) != {*INTEGERS, *REALS, *BOOLEANS} or set(header) != {*SCALARS, "run"}:
                raise FileFormatError(f"{path} has parts missing or too many")
            fields: dict[str, Any] = {**arrays, **header, **components}
            return cls(**fields)
        except InvalidArgumentError as error:
            raise FileFormatError(f"{path} holds an inconsistent certificate: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path} has a damaged header: {error!r}") from error

    @cached_property
    def ground(self) -> Ground:
        """What pairs read that are not covered: levels, features and start values."""
        low = high = self.rewards
        if self.reward_radius.size:
            assert self.reward_range is not None
            low, high = interval_around(self.rewards, self.reward_radius, self.reward_range)
        starts = Starts.of(
            low,
            high,
            self.gamma,
            available=self.available,
            relation=find_relation(self.relation).above,
            lower=self.lower_start,
            upper=self.upper_start,
        )
        return Ground(starts, self.levels, self.features, self.action_values)

    @cached_property
    def forests(self) -> tuple[Forest, Forest]:
        """Minimum spanning forests of both arms: their single linkage at every threshold."""
        return link_forests(self.scope, self.ground, self.covered)


def _with_variables(columns: Columns, names: Names) -> Columns:
    """The same with columns of variables after the ids: no text is made for any state."""
    placed = {name: variable.column() for name, variable in names.columns(columns).items()}
    first = {name: columns[name] for name in ("state", "id")}
    return first | placed | {name: columns[name] for name in columns if name not in first}


def holds_text(alpha: float | None) -> str:
    """What claims hold for, in words, where that is not just the stored model."""
    if alpha is None:
        return ""
    if alpha == 0.0:
        return "for exact mixtures of actions: all bounds include their rounding"
    return f"for the true model with probability at least {surely_text(alpha)}"


def bounded_by(values: ActionValues | None) -> str:
    """What bounds all pairs of a relation without arms, in words; no values if a run ended early.

    Args:
        values: Those of the certificate.
    """
    if values is None:
        return "by rewards alone"
    return f"by optimal action values within {values.radius:.3g}"


def _rebuild(fields: dict[str, Any]) -> Certificate:
    return Certificate(**fields)


def _check_rewards(certificate: Certificate) -> None:
    n, shape = certificate.n_states, certificate.rewards.shape
    if certificate.rewards.ndim != 2 or shape[0] != n or shape[1] == 0:
        raise InvalidArgumentError(
            f"rewards must have {n} rows and one column per action, got shape {shape}"
        )
    if not np.isfinite(certificate.rewards).all():
        raise InvalidArgumentError("rewards must be finite")
    check_available(certificate.available, shape)
    is_mixed = find_relation(certificate.relation).has_apart(certificate.available)
    if (certificate.apart is not None) != is_mixed:
        raise InvalidArgumentError(
            "apart must be given where states have different actions and are compared action by "
            f"action, and nowhere else, got {certificate.apart!r}"
        )
    if certificate.apart is not None:
        object.__setattr__(certificate, "apart", check_real("apart", certificate.apart))
        if certificate.apart != certificate.ground.starts.diameter:
            raise InvalidArgumentError(
                f"apart must be the largest distance there can be, "
                f"{certificate.ground.starts.diameter!r}, got {certificate.apart!r}"
            )


def _check_components(certificate: Certificate) -> None:
    n, shape = certificate.n_states, certificate.rewards.shape
    radius = certificate.reward_radius
    is_radius = radius.shape == shape and bool(((radius >= 0.0) & np.isfinite(radius)).all())
    if radius.shape != (0, 0) and not is_radius:
        raise InvalidArgumentError(
            f"reward_radius must be finite, non-negative and of shape {shape}, or of shape (0, 0)"
        )
    known = {certificate.alpha is None, certificate.reward_range is None, radius.size == 0}
    if len(known) != 1:
        raise InvalidArgumentError(
            "alpha, reward_radius and reward_range belong together: give all of them or none"
        )
    object.__setattr__(certificate, "levels", tuple(certificate.levels))
    for k, level in enumerate(certificate.levels):
        if not isinstance(level, BlockLevel):
            raise InvalidArgumentError(f"levels must be BlockLevel objects, got {level!r}")
        if level.model.labels.size != n or level.model.n_actions != shape[1]:
            raise InvalidArgumentError(f"level {k} speaks of another number of states or actions")
        if level.model.is_estimate != (certificate.alpha is not None):
            raise InvalidArgumentError(f"level {k} must be an estimate if the model is one")
    features = certificate.features
    if features is not None:
        if not isinstance(features, ValueFeatures):
            raise InvalidArgumentError(f"features must be ValueFeatures, got {features!r}")
        if features.values.shape[1] != n or features.signs.shape[1] != shape[1]:
            raise InvalidArgumentError("features speak of another number of states or actions")
    values = certificate.action_values
    if values is not None:
        if not isinstance(values, ActionValues):
            raise InvalidArgumentError(f"action_values must be ActionValues, got {values!r}")
        if values.values.shape != shape:
            raise InvalidArgumentError("action_values speak of another number of states or actions")
        _check_alone(certificate)
    _ = certificate.ground  # refuses rewards whose metric would overflow


def _check_alone(certificate: Certificate) -> None:
    """Nothing but action values may bound distances that are read off them."""
    relation = find_relation(certificate.relation)
    others = certificate.keys.size or certificate.levels or certificate.features is not None
    if relation.has_arms or others or certificate.scope != "all":
        raise InvalidArgumentError(
            "action_values bound distances of the relation 'optimal' over all pairs, and nothing "
            "else does: keys, levels and features must be empty"
        )
    if certificate.tau is not None:
        _check_below(certificate.tau, certificate.apart)


def _check_below(tau: float, apart: float | None) -> None:
    """Thresholds are below the distance of states with different actions, if there are any."""
    if apart is not None and tau >= apart:
        raise InvalidArgumentError(
            f"tau must be below {apart!r}, the distance of states with different actions, "
            f"got {tau!r}"
        )


def _check_value(certificate: Certificate) -> None:
    """A proven value must speak of the certified clusters; whether it holds, `verify` decides."""
    value = certificate.value
    if value is None:
        return
    if not isinstance(value, ProvenValue):
        raise InvalidArgumentError(f"value must be a ProvenValue, got {value!r}")
    if not certificate.is_certified:
        raise InvalidArgumentError("value must be None where nothing is certified")
    labels, count = set_end_apart(certificate.labels_upper, certificate.terminal_state)
    if not np.array_equal(value.labels, labels) or value.policy.size != count:
        raise InvalidArgumentError("value speaks of other clusters than the certified ones")
    if value.policy.min() < 0 or value.policy.max() >= certificate.rewards.shape[1]:
        raise InvalidArgumentError("value takes an action that does not exist")


MODEL_ARRAYS = (
    *("labels", "low", "high", "indptr", "indices", "probs", "radius", "spare", "short"),
    "available",
)
LEVEL_ARRAYS = ("keys", "lower", "upper")
FEATURE_ARRAYS = ("values", "signs", "kinds", "corrections", "floor", "ceiling")
WITNESS_ARRAYS = ("values", "actions", "signs", "support", "potential", "corrections")


# Shapes of all arrays, as docs/certificate-format.md has them.
SHAPES = {
    **dict.fromkeys(("rewards", "available", "level#.renaming"), "n A"),
    "reward_radius": "n A|0 0",
    **dict.fromkeys(("keys", "lower", "upper"), "p"),
    **dict.fromkeys(("labels_lower", "labels_upper"), "n|0"),
    **{f"level#.{name}": "K# A" for name in MODEL_ARRAYS},
    "level#.labels": "n",
    "level#.indptr": "K#*A+1",
    **dict.fromkeys(("level#.indices", "level#.probs"), "e#"),
    **{f"level#.pair_{name}": "q#" for name in LEVEL_ARRAYS},
    **{f"features.{name}": "k" for name in FEATURE_ARRAYS},
    "action_values.values": "n A",
    "action_values.radius": "1",
    "features.values": "k n",
    "features.signs": "k A",
    **{f"witnesses.{name}": "w" for name in WITNESS_ARRAYS},
    "witnesses.values": "w n",
    **dict.fromkeys(("witnesses.support", "witnesses.potential"), "w m"),
    **VALUE_SHAPES,
}
MOST = {"p": "n*n", "K#": "n", "e#": "K#*K#*A", "q#": "K#*K#", "c": "n+1", "N": "A"}


def _forms(header: Mapping[str, Any]) -> Forms:
    return Forms(SHAPES, known={"n": header.get("n_states")}, most=MOST)


def _component_arrays(certificate: Certificate) -> dict[str, npt.NDArray[Any]]:
    """Levels and features as arrays with telling names."""
    arrays = {}
    for k, level in enumerate(certificate.levels):
        for name in MODEL_ARRAYS:
            arrays[f"level{k}.{name}"] = getattr(level.model, name)
        if level.model.renaming is not None:
            arrays[f"level{k}.renaming"] = level.model.renaming
        for name in LEVEL_ARRAYS:
            arrays[f"level{k}.pair_{name}"] = getattr(level, name)
    features = certificate.features
    if features is not None:
        for name in FEATURE_ARRAYS:
            arrays[f"features.{name}"] = getattr(features, name)
        if features.witnesses is not None:
            for name in WITNESS_ARRAYS:
                arrays[f"witnesses.{name}"] = getattr(features.witnesses, name)
    if certificate.action_values is not None:
        arrays["action_values.values"] = certificate.action_values.values
        arrays["action_values.radius"] = np.array([certificate.action_values.radius])
    if certificate.value is not None:
        arrays |= value_arrays(certificate.value)
    return arrays


def _components(
    arrays: dict[str, npt.NDArray[Any]], count: int, is_estimate: bool
) -> dict[str, Any]:
    """All components from such arrays, which are taken out of the dictionary."""
    levels = []
    for k in range(check_int("levels", count, low=0, high=len(arrays))):
        model: dict[str, Any] = {name: arrays.pop(f"level{k}.{name}") for name in MODEL_ARRAYS}
        table = {name: arrays.pop(f"level{k}.pair_{name}") for name in LEVEL_ARRAYS}
        model["renaming"] = arrays.pop(f"level{k}.renaming", None)
        blocks = BlockModel(**model, is_estimate=is_estimate)
        levels.append(BlockLevel(model=blocks, **table))
    features = None
    if "features.values" in arrays:
        fields = {name: arrays.pop(f"features.{name}") for name in FEATURE_ARRAYS}
        witnesses = None
        if "witnesses.values" in arrays:
            found = {name: arrays.pop(f"witnesses.{name}") for name in WITNESS_ARRAYS}
            witnesses = Witnesses(**found)
        features = ValueFeatures(**fields, witnesses=witnesses)
    action_values = None
    if "action_values.values" in arrays:
        (radius,) = arrays.pop("action_values.radius").tolist()
        action_values = ActionValues(values=arrays.pop("action_values.values"), radius=radius)
    return {"levels": tuple(levels), "features": features, "action_values": action_values}
