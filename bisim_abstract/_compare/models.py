"""Two models beside each other: how far apart they are, proven from both sides.

Both are put into one model, side by side, and the metric of that compares their states. Where all
actions are available, the distance of two states of one part is what it is in that part alone.

The work is chosen by what it takes. Where all pairs of states are solved for in seconds, the
bounds are those of the exact metric. Otherwise the pairs that are asked for are covered, and the
pairs that start states are coupled by: linear in their number. Where that says little, blocks of
similar states are looked for as well.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.checks import (
    as_array,
    check_gamma,
    check_int,
    check_positive,
    check_states,
)
from bisim_abstract._base.html import table_html
from bisim_abstract._base.progress import shown, tell
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.text import counted, surely_text
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray, ProgressCallback
from bisim_abstract._bounds.blocks import BlockLevel
from bisim_abstract._bounds.features import ValueFeatures, value_features
from bisim_abstract._bounds.ground import Starts
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._compare.difference import ModelDifference, explain_difference
from bisim_abstract._compare.starts import (
    MOST_CELLS,
    Bounds,
    StartCoupling,
    couple_starts,
    has_equal_masses,
    start_distance,
)
from bisim_abstract._compare.union import ModelUnion, align_actions, disjoint_union
from bisim_abstract._exact.classes import BisimulationClasses, bisimulation_classes
from bisim_abstract._exact.metric import MetricBounds, bisimulation_metric
from bisim_abstract._model.estimation import reward_intervals
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._prove.certify import certify
from bisim_abstract._prove.cost import Cost
from bisim_abstract._prove.pairs import bound_pairs
from bisim_abstract._relations.base import Bisimulation
from bisim_abstract._relations.table import find_bisimulation, find_relation
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["ModelComparison", "compare_models"]

AT_ONCE = 4.0  # seconds, as estimated, up to which all pairs are solved for
MOST_CLASSES = 5_000  # of which tables of all pairs are made without being asked for
FEATURES = 4  # value functions: the best and the worst value, and what tells most besides
FEATURE_WORK = 14_000_000_000  # transitions that making these may read: about ten seconds
WIDE = 0.25  # of the largest distance: where starts may be as far apart, blocks are looked for
HAIR = 1e-9  # of the largest distance: models that are as close may differ by rounding alone
BLOCK_STEPS = 3  # of certify: one that proposes blocks, and those before it


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelComparison:
    """How far apart two models are, proven from both sides.

    Attributes:
        first: The first model.
        second: The second one.
        gamma: The discount.
        relation: "plain" if actions correspond by their names, "lax" if by what they do.
        digits: Number of digits up to which states and starts count as alike; None if exactly.
        union: Both models in one, and where their states are in it.
        source: Where the bounds come from: the exact metric of the union, or a certificate of it,
            which `verify(comparison.union.model, comparison.source)` checks.
        lower: The start distributions are at least so far apart.
        upper: They are at most so far apart, and so are the optimal start values.
        most: No two states of such models can be farther apart.
        are_bisimilar: Whether the models are proven to be the same from their starts on: both give
            the same probability to each class of states that are exactly alike. Where `digits` are
            given, whether they are the same up to these: `upper` is what is proven then. Estimated
            models never are: the true ones may differ.
        unmatched: How many states of the first, and of the second, are not alike, exactly or up to
            `digits`, to a state of the other model. Of estimated models, all but the end of
            episodes.
        pairs: (k, 2) states of the first and of the second model that were compared.
        pair_lower: (k) lower bounds on their distances.
        pair_upper: (k) upper bounds.
        difference: The pair with the largest lower bound, of these and of start states, and what
            tells it apart; None if no pair is proven to differ.
        labels: (states of the union) classes of states that are alike, exactly or up to `digits`.
        within: How far apart two states of one class can be: 0, unless something was rounded.
    """

    first: TabularMDP
    second: TabularMDP
    gamma: float
    relation: str
    digits: int | None
    union: ModelUnion
    source: MetricBounds | Certificate
    lower: float
    upper: float
    most: float
    are_bisimilar: bool
    unmatched: tuple[int, int]
    pairs: IntArray
    pair_lower: FloatArray
    pair_upper: FloatArray
    difference: ModelDifference | None
    labels: IntArray
    within: float

    @property
    def alpha(self) -> float | None:
        """For estimated models, the bounds hold with probability 1 - alpha; None for exact ones."""
        estimate = self.union.model.estimate
        return None if estimate is None or not estimate.is_sampled else estimate.alpha

    @property
    def is_exact(self) -> bool:
        """Whether states of one class are proven to be exactly alike, and so are the starts."""
        return self.within == 0.0 and self.upper == 0.0

    @property
    def scope(self) -> str:
        """What the bounds come from: "all pairs", "blocks" or "chosen pairs"."""
        if isinstance(self.source, MetricBounds) or self.source.coverage == 1.0:
            return "all pairs"
        return "blocks" if self.source.levels else "chosen pairs"

    def bounds(self, states: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds on distances between the models, by broadcasting two arrays.

        Args:
            states: States of the first model.
            others: States of the second.
        """
        s = check_states("states", states, self.first.n_states)
        t = check_states("others", others, self.second.n_states)
        return _read(self.source, self.union, self.labels, self.within, self.most, s, t)

    def summary(self) -> str:
        """A few lines for people, the answer first."""
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join([self.sentence, *(f"  {name:<{width}}  {text}" for name, text in rows)])

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.are_bisimilar and self.is_exact:
            return "The models are the same from their starts on: distance 0, by exact classes."
        if self.are_bisimilar:
            return (
                f"The models are equal {self._up_to} from their starts on, which are at most "
                f"{self.upper:.6g} apart."
            )
        return (
            f"The starts are at least {self.lower:.6g} and at most {self.upper:.6g} apart, of at "
            f"most {self.most:.6g} possible."
        )

    def to_dict(self) -> dict[str, Any]:
        """What it says, as JSON values."""
        found = self.difference
        return {
            "gamma": self.gamma,
            "relation": self.relation,
            "digits": self.digits,
            "states": [self.first.n_states, self.second.n_states],
            "lower": self.lower,
            "upper": self.upper,
            "most": self.most,
            "are_bisimilar": self.are_bisimilar,
            "unmatched": list(self.unmatched),
            "scope": self.scope,
            "alpha": self.alpha,
            "pairs": int(self.pairs.shape[0]),
            "pair_lower": float(self.pair_lower.max(initial=0.0)),
            "pair_upper": float(self.pair_upper.max(initial=0.0)),
            "difference": None if found is None else found.to_dict(),
        }

    def __repr__(self) -> str:
        adjective = find_relation(self.relation).adjective
        apart = f"{self.lower:.4g} to {self.upper:.4g} apart"
        if self.are_bisimilar:
            apart = "bisimilar" if self.is_exact else f"bisimilar {self._up_to}"
        return (
            f"ModelComparison({self.first.n_states:,} and {self.second.n_states:,} states, "
            f"gamma={self.gamma!r}, {apart}{adjective and ', ' + adjective})"
        )

    def _repr_html_(self) -> str:
        return table_html(self.sentence, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("values", f"optimal start values differ by at most {self.upper:.6g}")]
        if self.union.model.estimate is None:
            rows.append(("alike", self._alike_text()))
            if self.digits is None and not self.are_bisimilar and self.upper <= HAIR * self.most:
                rows.append(("rounding", "may be all that differs: compare with digits=12"))
        if self.pairs.shape[0]:
            rows.append(("pairs", self._pairs_text()))
        if self.difference is not None:
            rows.append(("differ", self.difference.text(self.first, self.second)))
        relation = find_relation(self.relation)
        if relation.adjective:
            rows.append(("relation", f"{relation.name}: states are alike {relation.alike}"))
        rows.append(("bounds", f"from {self.scope}, at gamma = {self.gamma:g}"))
        if self.alpha is not None:
            rows.append(
                ("holds", f"for the true models with probability {surely_text(self.alpha)}")
            )
        return rows

    def _alike_text(self) -> str:
        how = "exactly" if self.digits is None else self._up_to
        if self.unmatched == (0, 0):
            return f"every state of either model is {how} like one of the other"
        one, two = self.unmatched
        return (
            f"{one:,} of {counted(self.first.n_states, 'state')} of the first model and {two:,} of "
            f"{self.second.n_states:,} of the second are {how} like none of the other"
        )

    @property
    def _up_to(self) -> str:
        return f"up to {counted(self.digits or 0, 'digit')}"

    def _pairs_text(self) -> str:
        differ, same = int((self.pair_lower > 0.0).sum()), int((self.pair_upper == 0.0).sum())
        return (
            f"{counted(self.pairs.shape[0], 'pair')} of states: the farthest is at least "
            f"{self.pair_lower.max():.6g} apart, none more than {self.pair_upper.max():.6g}; "
            f"{differ:,} are proven to differ, {same:,} to be the same"
        )


def compare_models(
    first: TabularMDP,
    second: TabularMDP,
    gamma: float,
    *,
    relation: str = "plain",
    digits: int | None = None,
    pairs: npt.ArrayLike | None = None,
    exact: bool | None = None,
    max_seconds: float | None = None,
    resources: Resources = HERE,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> ModelComparison:
    """How far apart two models are: a simulator and the real thing, or before and after a change.

    The distance is that of their start distributions (Kantorovich's) under the bisimulation metric
    of both models in one. It is 0 exactly if nobody who acts can tell them apart, and optimal
    start values differ by no more, whatever it is.

    Args:
        first: One model.
        second: The other, with the same actions. Both ends of episodes count as one.
        gamma: The discount, in [0, 1).
        relation: "plain" compares action by action; "lax" lets actions be renamed, and the models
            may have different numbers of them.
        digits: States and starts count as alike if they are so up to this many digits, as by
            `bisimulation_classes`; 12 suits models that differ by rounding alone. Bounds still
            hold, and include what was rounded. None compares floats exactly.
        pairs: (k, 2) states of the first and of the second model to compare besides: those that
            should correspond. By default, states with the same `state_ids`, if both models have
            the same ids; else none. Bounds hold for any pairs. Good ones make them tight where
            models are large.
        exact: True solves for all pairs of states, which takes quadratic time; False never does.
            By default it is done where it takes seconds.
        max_seconds: Budget of time, looked at between sweeps.
        resources: Threads, workers and memory. Without a budget the result does not depend on them.
        callback: Called after every sweep.
        progress: Show a line also where there is no terminal, as in a notebook.

    Raises:
        InvalidArgumentError: If the models do not have equally many actions and the relation is
            plain, or pairs name states that are none.
        MemoryLimitError: If the tables would not fit, before they are made.

    Example:
        >>> P = np.eye(2)[:, None, :]  # two states that stay where they are
        >>> one = TabularMDP.from_dense(P, [1.0, 0.0], start=[1.0, 0.0])
        >>> other = TabularMDP.from_dense(P, [0.9, 0.0], start=[1.0, 0.0])
        >>> found = compare_models(one, other, 0.5)
        >>> bool(found.lower <= 0.2 <= found.upper)
        True
        >>> compare_models(one, one, 0.5).are_bisimilar
        True
    """
    check_resources(resources)
    call = "compare_models(first, second, gamma)"
    check_mdp(first, call=call)
    check_mdp(second, call=call)
    gamma = check_gamma(gamma)
    known = find_bisimulation(relation)
    if digits is not None:
        digits = check_int("digits", digits, low=1, high=15)
    if max_seconds is not None:
        max_seconds = check_positive("max_seconds", max_seconds)
    if exact is not None and type(exact) is not bool:
        raise InvalidArgumentError(f"exact must be True, False or None, got {exact!r}")
    chosen = _own_pairs(first, second) if pairs is None else _given_pairs(pairs, first, second)
    begin = time.monotonic()
    if not known.matches_actions:  # names count: what is called the same is compared
        first, second = align_actions(first, second)
    union = disjoint_union(first, second, relation=known.name)
    with shown(callback, progress) as report, resources.started(report) as ready:
        tell(report, "looking for classes", 0, None, "")
        classes = bisimulation_classes(
            union.model, relation=known.name, digits=digits, resources=ready
        )
        work = _Work(
            first=first,
            second=second,
            gamma=gamma,
            union=union,
            classes=classes,
            pairs=chosen,
            exact=exact,
            max_seconds=max_seconds,
            begin=begin,
            resources=ready,
            report=report,
        )
        return work.compared()


@dataclass(frozen=True, eq=False, kw_only=True)
class _Work:
    """One comparison under way; see `compare_models`, whose arguments these are."""

    first: TabularMDP
    second: TabularMDP
    gamma: float
    union: ModelUnion
    classes: BisimulationClasses
    pairs: IntArray
    exact: bool | None
    max_seconds: float | None
    begin: float
    resources: Resources
    report: ProgressCallback | None

    @property
    def relation(self) -> Bisimulation:
        return find_bisimulation(self.classes.relation)

    @property
    def is_estimate(self) -> bool:
        return self.union.model.estimate is not None

    @cached_property
    def most(self) -> float:
        """No distance is larger."""
        low, high = reward_intervals(self.union.model)
        return Starts.of(
            low,
            high,
            self.gamma,
            available=self.union.model.available,
            relation=self.relation,
            lower="reward",
            upper="reward",
        ).diameter

    @cached_property
    def labels(self) -> IntArray:
        """(states of the union) classes of states that are alike.

        They are those of the stored numbers, and say nothing of true models that these estimate:
        every state is then one of its own, so that nothing is claimed.
        """
        return np.arange(self.union.model.n_states) if self.is_estimate else self.classes.labels

    @cached_property
    def within(self) -> float:
        """How far apart states of one class can be."""
        return 0.0 if self.classes.is_exact else self.classes.distortion(self.gamma)

    def compared(self) -> ModelComparison:
        """All of it."""
        one, two = self.first, self.second
        is_same = self.classes.is_exact and self._has_same_starts(None)
        digits = self.classes.digits
        are_bisimilar = is_same or (digits is not None and self._has_same_starts(digits))
        alike = self._alike(self.pairs[:, 0], self.pairs[:, 1])
        is_known = are_bisimilar and bool(alike.all())  # all that is asked for, by classes
        is_all = self._solves_all()
        features = None
        n_starts = np.count_nonzero(one.start) * np.count_nonzero(two.start)
        if not is_known and (not is_all or n_starts > MOST_CELLS):
            features = self._features()
        # Where starts are the same by classes, only states of one class are coupled.
        fitting = self.pairs[alike] if are_bisimilar else self.pairs
        order = self._order(None if are_bisimilar else features)
        coupling = couple_starts(one.start, two.start, fitting, order)
        source: MetricBounds | Certificate
        if is_all:
            source = self._exact()
        elif is_known:
            source = self._certified(np.empty((0, 2), np.int64), None)
        else:
            source = self._certified(self._all_pairs(coupling), features)

        def read(s: IntArray, t: IntArray) -> tuple[FloatArray, FloatArray]:
            return _read(source, self.union, self.labels, self.within, self.most, s, t)

        def starts() -> tuple[float, float]:
            places = self.union.first, self.union.second
            return start_distance(one.start, two.start, coupling, read, features, places, self.most)

        lower, upper = (0.0, 0.0) if is_same else starts()
        if not is_all and upper > WIDE * self.most and lower < 0.5 * upper:
            source = self._with_blocks(coupling, features)
            lower, upper = starts()
        pair_lower, pair_upper = read(self.pairs[:, 0], self.pairs[:, 1])
        for array in (self.pairs, pair_lower, pair_upper):
            array.setflags(write=False)
        return ModelComparison(
            first=one,
            second=two,
            gamma=self.gamma,
            relation=self.relation.name,
            digits=digits,
            union=self.union,
            source=source,
            lower=lower,
            upper=upper,
            most=self.most,
            are_bisimilar=are_bisimilar,
            unmatched=self._unmatched(),
            pairs=self.pairs,
            pair_lower=pair_lower,
            pair_upper=pair_upper,
            difference=self._difference(coupling, read),
            labels=self.labels,
            within=self.within,
        )

    def _has_same_starts(self, digits: int | None) -> bool:
        """Whether starts give each class the same mass, exactly or up to so many digits."""
        if self.is_estimate:
            return False
        one, two = (self.labels[place] for place in (self.union.first, self.union.second))
        return has_equal_masses(self.first.start, self.second.start, one, two, digits=digits)

    def _alike(self, s: IntArray, t: IntArray) -> BoolArray:
        """Which pairs of states are of one class."""
        return np.asarray(self.labels[self.union.first[s]] == self.labels[self.union.second[t]])

    def _order(self, features: ValueFeatures | None) -> tuple[FloatArray, FloatArray]:
        """In what order mass that corresponds to none is carried over: by value, or by class."""
        values = self.labels.astype(np.float64) if features is None else features.values[0]
        return values[self.union.first], values[self.union.second]

    def _all_pairs(self, coupling: StartCoupling) -> IntArray:
        """(k, 2) pairs that are asked for, and those that starts are coupled by."""
        carried = np.stack([coupling.first, coupling.second], axis=1)
        return np.concatenate([self.pairs, carried])

    def _left(self) -> float | None:
        """Seconds of the budget that are left, a little at least; None if there is none."""
        if self.max_seconds is None:
            return None
        return max(self.max_seconds - (time.monotonic() - self.begin), 0.1)

    def _solves_all(self) -> bool:
        """Whether all pairs are solved for: as asked, or where it takes seconds."""
        if self.exact is not None:
            return self.exact
        count = self.union.model.n_states if self.is_estimate else self.classes.n_classes
        cost = Cost.of(self.classes.quotient, None, self.relation)
        seconds = cost.all_pairs(count * (count - 1) // 2, is_sampled=self.is_estimate)
        limit = AT_ONCE if self.max_seconds is None else min(AT_ONCE, self.max_seconds)
        return count <= MOST_CLASSES and seconds <= limit

    def _features(self) -> ValueFeatures:
        model = self.union.model
        return value_features(
            model,
            self.gamma,
            count=FEATURES,
            max_iter=int(np.clip(FEATURE_WORK // (FEATURES * model.nnz), 50, 10_000)),
            relation=self.relation.name,
            resources=self.resources,
            callback=self.report,
        )

    def _exact(self) -> MetricBounds | Certificate:
        """Bounds on all pairs. The metric of all pairs knows no radii; sweeps do."""
        if self.is_estimate:
            return bound_pairs(
                self.union.model,
                self.gamma,
                relation=self.relation,
                max_seconds=self._left(),
                resources=self.resources,
                report=self.report,
            )
        return bisimulation_metric(
            self.union.model,
            self.gamma,
            relation=self.relation.name,
            classes=self.classes,
            resources=self.resources,
            callback=self.report,
        )

    def _certified(
        self,
        pairs: IntArray,
        features: ValueFeatures | None,
        levels: tuple[BlockLevel, ...] = (),
    ) -> Certificate:
        """Bounds on pairs, those of other pairs being what they start from."""
        return bound_pairs(
            self.union.model,
            self.gamma,
            self.union.first[pairs[:, 0]],
            self.union.second[pairs[:, 1]],
            relation=self.relation,
            levels=levels,
            features=features,
            max_seconds=self._left(),
            resources=self.resources,
            report=self.report,
        )

    def _with_blocks(self, coupling: StartCoupling, features: ValueFeatures | None) -> Certificate:
        """The same, where pairs that are not covered read the bounds of blocks."""
        found = certify(
            self.union.model,
            self.gamma,
            relation=self.relation.name,
            tau="auto",
            max_rounds=BLOCK_STEPS,
            max_seconds=self._left(),
            resources=self.resources,
            callback=self.report,
        )
        return self._certified(self._all_pairs(coupling), features, found.levels)

    def _unmatched(self) -> tuple[int, int]:
        """States of either model whose class has no state of the other."""
        one, two = self.labels[self.union.first], self.labels[self.union.second]
        return int((~np.isin(one, two)).sum()), int((~np.isin(two, one)).sum())

    def _difference(self, coupling: StartCoupling, read: Bounds) -> ModelDifference | None:
        s, t = self._all_pairs(coupling).T
        lower, upper = read(s, t)
        k = int(lower.argmax()) if lower.size else 0
        if lower.size == 0 or lower[k] <= 0.0:
            return None
        pair = int(s[k]), int(t[k]), float(lower[k]), float(upper[k])
        return explain_difference(self.first, self.second, self.gamma, self.relation, read, *pair)


def _read(
    source: MetricBounds | Certificate,
    union: ModelUnion,
    labels: IntArray,
    within: float,
    most: float,
    s: IntArray,
    t: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Bounds of pairs from their source and from exact classes, nothing above what is possible."""
    x, y = union.first[s], union.second[t]
    lower, upper = source.bounds(x, y)
    is_alike = labels[x] == labels[y]
    upper = np.minimum(np.where(is_alike, np.minimum(upper, within), upper), most)
    return np.where(is_alike & (within == 0.0), 0.0, lower), np.asarray(upper)


def _own_pairs(first: TabularMDP, second: TabularMDP) -> IntArray:
    """(k, 2) states with the same ids, if both models have the same; else none."""
    sides = []
    for mdp in (first, second):
        states = np.flatnonzero(mdp.state_ids >= 0)
        sides.append(states[np.argsort(mdp.state_ids[states], kind="stable")])
    if not np.array_equal(first.state_ids[sides[0]], second.state_ids[sides[1]]):
        return np.empty((0, 2), np.int64)
    found = np.stack(sides, axis=1)
    return found[np.argsort(found[:, 0], kind="stable")]


def _given_pairs(pairs: npt.ArrayLike, first: TabularMDP, second: TabularMDP) -> IntArray:
    given = as_array("pairs", pairs)
    if given.size == 0:
        return np.empty((0, 2), np.int64)
    if given.ndim != 2 or given.shape[1] != 2:
        raise InvalidArgumentError(
            f"pairs must have shape (k, 2), a state of the first model and one of the second, got "
            f"{given.shape}"
        )
    one = check_states("pairs[:, 0]", given[:, 0], first.n_states)
    two = check_states("pairs[:, 1]", given[:, 1], second.n_states)
    return np.stack([one, two], axis=1)
