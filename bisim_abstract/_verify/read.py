"""Certificates as the verifier reads them: plain arrays of the right shapes, or a rejection.

Whatever object is handed in, only attributes are read from it, each once; arrays are copied.
What is checked here is form alone. Whether the claims are true is decided elsewhere.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import MemoryLimitError, VerificationError

SCOPES = ("covered", "all")
# What checking takes at its peak, besides copies: per covered pair of the table that is being
# checked, and per value of a feature or witness.
PAIR_BYTES, VALUE_BYTES = 150, 32
SUM_TOL = 2e-9  # of a centre row; it is divided by its sum, so this is about form only


@dataclass(frozen=True)
class Table:
    """Claims on pairs of blocks, and what the claims rest on; a state is a block of one.

    Attributes:
        level: Number of the block level, or None for pairs of states.
        n: Number of blocks.
        keys: (covered) sorted keys C * n + C', C < C', or C = C' for blocks of several members.
        lower: (covered) claimed lower bounds.
        upper: (covered) claimed upper bounds.
        labels: (n_states) block of each state.
        sizes: (n) number of members.
        low: (n, n_actions) lower ends of the reward intervals.
        high: (n, n_actions) upper ends.
        radius: (n, n_actions) how far members' rows may be from the centre row.
        spare: (n, n_actions) a share of the centre row that members need not have.
        short: (n, n_actions) how much members may lack of the rest.
        indptr: (n * n_actions + 1) boundaries of the centre rows.
        indices: (nnz) blocks.
        probs: (nnz) entries of the centre rows.
        is_estimate: Whether true rows may reach what no row here does.
        lower_start: "reward" or "zero".
        upper_start: "reward" or "constant".
    """

    level: int | None
    n: int
    keys: IntArray
    lower: FloatArray
    upper: FloatArray
    labels: IntArray
    sizes: IntArray
    low: FloatArray
    high: FloatArray
    radius: FloatArray
    spare: FloatArray
    short: FloatArray
    indptr: IntArray
    indices: IntArray
    probs: FloatArray
    is_estimate: bool
    lower_start: str
    upper_start: str

    def pair(self, index: int) -> tuple[int, int]:
        """The blocks of a covered pair."""
        first, second = divmod(int(self.keys[index]), self.n)
        return first, second

    def name(self, index: int) -> str:
        """The same in words."""
        what = "pair" if self.level is None else f"level {self.level}, block pair"
        return f"{what} {self.pair(index)}"

    def row(self, block: int, action: int) -> tuple[list[int], list[float]]:
        """Blocks and entries of a centre row."""
        at = block * self.low.shape[1] + action
        part = slice(int(self.indptr[at]), int(self.indptr[at + 1]))
        return self.indices[part].tolist(), self.probs[part].tolist()


@dataclass(frozen=True)
class WitnessClaims:
    """Witnesses as they are claimed; fields as in `witnesses.Witnesses`."""

    values: FloatArray
    actions: IntArray
    signs: IntArray
    support: IntArray
    potential: FloatArray
    corrections: FloatArray


@dataclass(frozen=True)
class FeatureClaims:
    """Value features as they are claimed; fields as in `features.ValueFeatures`."""

    values: FloatArray
    signs: IntArray
    kinds: IntArray
    corrections: FloatArray
    witnesses: WitnessClaims | None

    def functions(self) -> tuple[FloatArray, FloatArray]:
        """(n_states, count) values of all functions, witnesses last, and (count) corrections."""
        if self.witnesses is None:
            return np.ascontiguousarray(self.values.T), self.corrections
        points = np.vstack([self.values, self.witnesses.values])
        corrections = np.append(self.corrections, self.witnesses.corrections)
        return np.ascontiguousarray(points.T), corrections


@dataclass(frozen=True)
class ValueClaims:
    """What is claimed about values; fields as in `value.ProvenValue`, the bracket's among them.

    `labels` are not claimed: they follow from the certified clusters, the end set apart.
    """

    labels: IntArray
    policy: IntArray
    optimal_upper: FloatArray
    optimal_lower: FloatArray
    policy_lower: FloatArray
    random_upper: FloatArray
    bracket_lower: FloatArray
    bracket_upper: FloatArray
    bracket_policy: IntArray
    loss: float
    start_loss: float
    kept: float


@dataclass(frozen=True)
class Claims:
    """A certificate whose fields have the right types, shapes and ranges."""

    n_states: int
    gamma: float
    states: Table
    levels: tuple[Table, ...]
    features: FeatureClaims | None
    tau: float | None
    scope: str
    labels_lower: IntArray
    labels_upper: IntArray
    value: ValueClaims | None

    @property
    def tables(self) -> tuple[Table, ...]:
        """Levels first, then pairs of states, which read from them."""
        return (*self.levels, self.states)


def read_claims(certificate: object, mdp: TabularMDP, *, resources: Resources = HERE) -> Claims:
    """Read a certificate.

    Raises:
        VerificationError: If it is malformed, or of another model.
        MemoryLimitError: If it is too large to be checked here.
    """
    room = _Room(resources)
    try:
        return _read(certificate, mdp, room)
    except VerificationError:
        raise
    except Exception as error:  # whatever else a hostile object may do when it is read
        if error is room.refusal:
            raise
        raise VerificationError(f"the certificate cannot be read: {type(error).__name__}") from None


def _read(certificate: object, mdp: TabularMDP, room: _Room) -> Claims:
    fingerprint = _field(certificate, "fingerprint")
    if not isinstance(fingerprint, str) or fingerprint != mdp.fingerprint:
        raise VerificationError(
            f"fingerprint is {short(fingerprint)}, but that of the model is "
            f"{short(mdp.fingerprint)}: the certificate speaks of another model"
        )
    n = _whole(certificate, "n_states")
    if n != mdp.n_states:
        raise VerificationError(f"n_states is {n}, but the model has {mdp.n_states} states")
    gamma = _real(certificate, "gamma")
    if not 0.0 <= gamma < 1.0:
        raise VerificationError(f"gamma must lie in [0, 1), got {gamma!r}")
    rewards = _field(certificate, "rewards")
    if not isinstance(rewards, np.ndarray) or not np.array_equal(rewards, mdp.rewards):
        raise VerificationError("rewards are not those of the model, on which the starts depend")
    _check_estimate(certificate, mdp)
    tau = None if _field(certificate, "tau") is None else _real(certificate, "tau")
    scope = _choice(certificate, "scope", SCOPES)
    states = _read_states(certificate, mdp, room)
    labels = {}
    for name in ("labels_lower", "labels_upper"):
        labels[name] = room.copied(certificate, name, np.int64)
        expected = 0 if tau is None else n
        if labels[name].size != expected:
            why = "without tau" if tau is None else "one for each state"
            raise VerificationError(
                f"{name} must have {expected} entries ({why}), got {labels[name].size}"
            )
    if _field(certificate, "terminal_state") != mdp.terminal_state:
        raise VerificationError(
            f"terminal_state is {short(_field(certificate, 'terminal_state'))}, but that of the "
            f"model is {mdp.terminal_state}"
        )
    value = _field(certificate, "value")
    levels = _field(certificate, "levels")
    if not isinstance(levels, tuple):
        raise VerificationError(f"levels must be a tuple of block levels, got {short(levels)}")
    features = _field(certificate, "features")
    return Claims(
        n_states=n,
        gamma=gamma,
        states=states,
        levels=tuple(_read_level(level, k, mdp, room) for k, level in enumerate(levels)),
        features=None if features is None else _read_features(features, mdp, room),
        tau=tau,
        scope=scope,
        **labels,
        value=None if value is None else _read_value(value, mdp, room, **labels),
    )


def _read_value(
    value: object,
    mdp: TabularMDP,
    room: _Room,
    *,
    labels_lower: IntArray,
    labels_upper: IntArray,
) -> ValueClaims:
    if labels_upper.size == 0 or not np.array_equal(labels_lower, labels_upper):
        raise VerificationError("value: there is no certified clustering that it could speak of")
    labels, count = _live_clusters(labels_upper, mdp.terminal_state)
    try:
        bracket = _field(value, "bracket")
        per_state = {
            name: room.copied(value, name, np.float64)
            for name in ("optimal_upper", "optimal_lower", "policy_lower", "random_upper")
        }
        per_cluster = {
            "policy": room.copied(value, "policy", np.int64),
            "bracket_policy": room.copied(bracket, "policy", np.int64),
            "bracket_lower": room.copied(bracket, "lower", np.float64),
            "bracket_upper": room.copied(bracket, "upper", np.float64),
        }
        for arrays, size, what in (
            (per_state, mdp.n_states, "states"),
            (per_cluster, count, "clusters, the end among them where there is one"),
        ):
            for name, array in arrays.items():
                if array.size != size:
                    raise VerificationError(
                        f"{name} must have {size} entries ({what}), got {array.size}"
                    )
                if name.endswith("policy"):
                    _first_bad(
                        (array >= 0) & (array < mdp.n_actions),
                        f"{name} takes an action in cluster {{0}} that does not exist",
                    )
                else:
                    _first_bad(np.isfinite(array), f"{name} must be finite at {{0}}")
        kept = _field(value, "kept")
        return ValueClaims(
            labels=labels,
            **per_state,
            **per_cluster,
            loss=_real(value, "loss"),
            start_loss=_real(value, "start_loss"),
            kept=-math.inf if kept == -math.inf else _real(value, "kept"),
        )
    except VerificationError as error:
        raise VerificationError(f"value: {error}") from None


def _live_clusters(labels: IntArray, terminal: int | None) -> tuple[IntArray, int]:
    """Clusters numbered by their first live state, the end last and by itself."""
    order = np.arange(labels.size)
    live = order if terminal is None else np.delete(order, terminal)
    _, first, inverse = np.unique(labels[live], return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    clusters = np.full(labels.size, first.size, np.int64)
    clusters[live] = rank[inverse]
    return _frozen(clusters), first.size + (terminal is not None)


def _check_estimate(certificate: object, mdp: TabularMDP) -> None:
    alpha = _field(certificate, "alpha")
    radius = _field(certificate, "reward_radius")
    if mdp.estimate is None:
        if alpha is not None:
            raise VerificationError(f"alpha is {short(alpha)}, but the model is no estimate")
        if not isinstance(radius, np.ndarray) or radius.size:
            raise VerificationError("reward_radius must be empty, as the model is no estimate")
        return
    if alpha is None or _real(certificate, "alpha") != mdp.estimate.alpha:
        raise VerificationError(
            f"alpha is {short(alpha)}, but that of the estimated model is {mdp.estimate.alpha!r}"
        )
    if not isinstance(radius, np.ndarray) or not np.array_equal(radius, mdp.estimate.reward_radius):
        raise VerificationError("reward_radius is not that of the estimated model")


def _read_states(certificate: object, mdp: TabularMDP, room: _Room) -> Table:
    n = mdp.n_states
    low = high = mdp.rewards
    radius = np.zeros(low.shape)
    if mdp.estimate is not None:
        # Rounded outward; exact mode computes with the exact ends instead.
        error = mdp.estimate.reward_radius
        low = np.where(error == 0.0, low, np.nextafter(mdp.rewards - error, -np.inf))
        high = np.where(error == 0.0, high, np.nextafter(mdp.rewards + error, np.inf))
        radius = mdp.estimate.row_radius
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise VerificationError("the reward radii of the model are too large to be of use")
    table = Table(
        level=None,
        n=n,
        keys=room.copied(certificate, "keys", np.int64),
        lower=room.copied(certificate, "lower", np.float64),
        upper=room.copied(certificate, "upper", np.float64),
        labels=_frozen(np.arange(n)),
        sizes=_frozen(np.ones(n, np.int64)),
        low=_frozen(low),
        high=_frozen(high),
        radius=_frozen(radius),
        spare=_frozen(np.zeros(low.shape)),
        short=_frozen(radius),
        indptr=mdp.indptr,
        indices=mdp.indices,
        probs=mdp.probs,
        is_estimate=mdp.estimate is not None,
        lower_start=_choice(certificate, "lower_start", ("reward", "zero")),
        upper_start=_choice(certificate, "upper_start", ("reward", "constant")),
    )
    _check_table(table)
    return table


def _read_level(level: object, number: int, mdp: TabularMDP, room: _Room) -> Table:
    try:
        model = _field(level, "model")
        low, high, radius, spare, lacks = (
            room.copied(model, name, np.float64, 2)
            for name in ("low", "high", "radius", "spare", "short")
        )
        n, n_actions = low.shape
        shapes = [low.shape, high.shape, radius.shape, spare.shape, lacks.shape]
        if n_actions != mdp.n_actions or len(set(shapes)) > 1 or n == 0:
            raise VerificationError(
                "low, high, radius, spare and short must have one row per block and one column per "
                f"action, got shapes {', '.join(map(str, shapes))}"
            )
        _first_bad(
            np.isfinite(low) & np.isfinite(high) & (low <= high),
            "reward interval of block {0}, action {1} must be finite with low <= high",
        )
        for name, shares in (("radius", radius), ("spare", spare), ("short", lacks)):
            _first_bad(
                (shares >= 0.0) & (shares <= 1.0),
                f"{name} of block {{0}}, action {{1}} must lie in [0, 1]",
            )
        labels = room.copied(model, "labels", np.int64)
        if labels.size != mdp.n_states:
            raise VerificationError(f"labels must give a block to each of {mdp.n_states} states")
        _first_bad((labels >= 0) & (labels < n), "the label of state {0} is that of no block")
        sizes = np.bincount(labels, minlength=n).astype(np.int64)
        _first_bad(sizes > 0, "block {0} has no members")
        is_estimate = _field(model, "is_estimate")
        if is_estimate is not (mdp.estimate is not None):
            raise VerificationError(
                f"is_estimate is {short(is_estimate)}, which is not true of the model"
            )
        table = Table(
            level=number,
            n=n,
            keys=room.copied(level, "keys", np.int64),
            lower=room.copied(level, "lower", np.float64),
            upper=room.copied(level, "upper", np.float64),
            labels=labels,
            sizes=_frozen(sizes),
            low=low,
            high=high,
            radius=radius,
            spare=spare,
            short=lacks,
            indptr=room.copied(model, "indptr", np.int64),
            indices=room.copied(model, "indices", np.int64),
            probs=room.copied(model, "probs", np.float64),
            is_estimate=is_estimate,
            lower_start="reward",
            upper_start="reward",
        )
        _check_rows(table)
    except VerificationError as error:
        raise VerificationError(f"level {number}: {error}") from None
    _check_table(table)
    return table


def _check_rows(table: Table) -> None:
    """Centre rows must be distributions over blocks, with rising indices."""
    indptr, indices, probs = table.indptr, table.indices, table.probs
    n_actions = table.low.shape[1]
    if indptr.size != table.n * n_actions + 1 or indices.size != probs.size:
        raise VerificationError(
            f"indptr must have {table.n * n_actions + 1} entries, and indices as many as probs; "
            f"got {indptr.size}, {indices.size} and {probs.size}"
        )
    if indptr[0] != 0 or indptr[-1] != indices.size:
        raise VerificationError(f"indptr must rise from 0 to {indices.size}")
    _first_bad(indptr[1:] > indptr[:-1], f"centre row {{0}} (of {n_actions} per block) is empty")
    _first_bad((indices >= 0) & (indices < table.n), "entry {0} of the centre rows is at no block")
    _first_bad(
        np.isfinite(probs) & (probs > 0.0) & (probs <= 1.0 + SUM_TOL),
        "entry {0} of the centre rows is no probability above 0",
    )
    rising = np.ones(indices.size, bool)
    rising[1:] = indices[1:] > indices[:-1]
    rising[indptr[:-1]] = True
    _first_bad(rising, "entry {0} of the centre rows is at a block before its predecessor's")
    sums = np.add.reduceat(probs, indptr[:-1])
    _first_bad(
        np.abs(sums - 1.0) <= SUM_TOL, f"centre row {{0}} (of {n_actions} per block) has no sum 1"
    )


def _check_table(table: Table) -> None:
    keys, n = table.keys, table.n
    where = "" if table.level is None else f"level {table.level}: "
    # Blocks first: whatever else is wrong with the order, each key must name a pair.
    s, t = np.divmod(keys, n)
    is_pair = (keys >= 0) & (s < n) & (s < t)
    if table.level is not None:
        is_pair |= (keys >= 0) & (s < n) & (s == t) & (table.sizes[np.clip(s, 0, n - 1)] > 1)
    bad = np.flatnonzero(~is_pair)
    if bad.size:
        k = int(bad[0])
        what = "states s < t" if table.level is None else "blocks, or a block of several members,"
        raise VerificationError(
            f"{where}keys[{k}] is {int(keys[k])}, not a pair of {what} of {n}: "
            f"it reads ({int(s[k])}, {int(t[k])})"
        )
    bad = np.flatnonzero(keys[1:] <= keys[:-1])
    if bad.size:
        k = int(bad[0])
        raise VerificationError(
            f"{where}keys must be strictly increasing, but keys[{k + 1}] = {int(keys[k + 1])}, "
            f"pair ({int(s[k + 1])}, {int(t[k + 1])}), follows {int(keys[k])}"
        )
    for name, values in (("lower", table.lower), ("upper", table.upper)):
        if values.size != keys.size:
            raise VerificationError(
                f"{where}{name} has {values.size} entries, but there are {keys.size} keys"
            )
        bad = np.flatnonzero(~np.isfinite(values) | (values < 0.0))
        if bad.size:
            raise VerificationError(
                f"{name} bound of {table.name(bad[0])} must be finite and not negative, "
                f"got {float(values[bad[0]])!r}"
            )
    bad = np.flatnonzero(table.lower > table.upper)
    if bad.size:
        raise VerificationError(
            f"lower bound of {table.name(bad[0])} is {float(table.lower[bad[0]])!r}, "
            f"above its upper bound {float(table.upper[bad[0]])!r}"
        )
    bad = np.flatnonzero((s == t) & (table.lower > 0.0))
    if bad.size:
        raise VerificationError(
            f"lower bound of {table.name(bad[0])} is {float(table.lower[bad[0]])!r}, but within "
            "a block it must be 0"
        )


def _read_features(features: object, mdp: TabularMDP, room: _Room) -> FeatureClaims:
    n, n_actions = mdp.n_states, mdp.n_actions
    try:
        values = room.copied(features, "values", np.float64, 2)
        signs = room.copied(features, "signs", np.int64, 2)
        kinds = room.copied(features, "kinds", np.int64)
        corrections = room.copied(features, "corrections", np.float64)
        count = corrections.size
        if values.shape != (count, n) or signs.shape != (count, n_actions) or kinds.size != count:
            raise VerificationError(
                f"values, signs, kinds and corrections must be of {count} functions of {n} states "
                f"and {n_actions} actions; got shapes {values.shape}, {signs.shape}, "
                f"{kinds.shape} and {corrections.shape}"
            )
        _first_bad(np.isfinite(values), "value of function {0} at state {1} must be finite")
        _first_bad(np.abs(signs) <= 1, "sign of function {0}, action {1} must be -1, 0 or 1")
        _first_bad((signs != 0).any(axis=1), "function {0} uses no action")
        _first_bad((kinds == 0) | (kinds == 1), "kind of function {0} must be 0 or 1")
        _first_bad(
            np.isfinite(corrections) & (corrections >= 0.0),
            "correction of function {0} must be finite and not negative",
        )
        witnesses = _field(features, "witnesses")
        if witnesses is not None and mdp.estimate is not None:
            raise VerificationError("witnesses say nothing of an estimated model's true rows")
    except VerificationError as error:
        raise VerificationError(f"features: {error}") from None
    return FeatureClaims(
        values=values,
        signs=signs,
        kinds=kinds,
        corrections=corrections,
        witnesses=None if witnesses is None else _read_witnesses(witnesses, mdp, room),
    )


def _read_witnesses(witnesses: object, mdp: TabularMDP, room: _Room) -> WitnessClaims:
    try:
        values = room.copied(witnesses, "values", np.float64, 2)
        actions = room.copied(witnesses, "actions", np.int64)
        signs = room.copied(witnesses, "signs", np.int64)
        support = room.copied(witnesses, "support", np.int64, 2)
        potential = room.copied(witnesses, "potential", np.float64, 2)
        corrections = room.copied(witnesses, "corrections", np.float64)
        count = corrections.size
        sizes = {actions.size, signs.size, support.shape[0], potential.shape[0], values.shape[0]}
        if sizes != {count} or count == 0 or values.shape[1] != mdp.n_states:
            raise VerificationError(
                f"values, actions, signs, support, potential and corrections must be of {count} "
                f"functions, at least one, of {mdp.n_states} states; got shapes {values.shape}, "
                f"{actions.shape}, {signs.shape}, {support.shape} and {potential.shape}"
            )
        if support.shape != potential.shape or not 0 < support.shape[1] <= mdp.n_states:
            raise VerificationError(
                "support and potential must have one shape, with at least one state and no more "
                f"than there are for each function; got {support.shape} and {potential.shape}"
            )
        _first_bad(np.isfinite(values), "value of function {0} at state {1} must be finite")
        _first_bad(np.isfinite(potential), "potential {1} of function {0} must be finite")
        _first_bad((support >= 0) & (support < mdp.n_states), "support[{0}, {1}] is no state")
        _first_bad((actions >= 0) & (actions < mdp.n_actions), "action of function {0} is none")
        _first_bad(np.abs(signs) == 1, "sign of function {0} must be -1 or 1")
        _first_bad(
            np.isfinite(corrections) & (corrections >= 0.0),
            "correction of function {0} must be finite and not negative",
        )
    except VerificationError as error:
        raise VerificationError(f"witnesses: {error}") from None
    return WitnessClaims(
        values=values,
        actions=actions,
        signs=signs,
        support=support,
        potential=potential,
        corrections=corrections,
    )


def _first_bad(is_good: npt.NDArray[np.bool_], text: str) -> None:
    """Reject the first entry that is not good; the text may name its indices."""
    if not is_good.all():
        at = np.unravel_index(int(np.argmin(is_good)), is_good.shape)
        raise VerificationError(text.format(*(int(k) for k in at)))


def _field(holder: object, name: str) -> Any:
    try:
        return getattr(holder, name)
    except Exception:  # whatever a malformed certificate does when it is read
        raise VerificationError(f"the certificate has no {name} that can be read") from None


def _whole(holder: object, name: str) -> int:
    value = _field(holder, name)
    try:
        return int(operator.index(value))
    except TypeError:
        raise VerificationError(f"{name} must be a whole number, got {short(value)}") from None


def _real(holder: object, name: str) -> float:
    value = _field(holder, name)
    if not isinstance(value, Real) or isinstance(value, bool):
        raise VerificationError(f"{name} must be a real number, got {short(value)}")
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = math.inf
    # A number that is rounded on the way would not be the one that was claimed.
    if not math.isfinite(number) or number != value:
        raise VerificationError(f"{name} must be a finite float, got {short(value)}")
    return number


def _choice(holder: object, name: str, choices: tuple[str, ...]) -> str:
    value = _field(holder, name)
    if not isinstance(value, str) or value not in choices:
        listed = " or ".join(repr(choice) for choice in choices)
        raise VerificationError(f"{name} must be {listed}, got {short(value)}")
    return choices[choices.index(value)]


class _Room:
    """The memory that a check may take, of which every array that is read needs a part."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._copies = self._pairs = self._values = 0
        self.refusal: MemoryLimitError | None = None

    def copied(self, holder: object, name: str, dtype: type, ndim: int = 1) -> npt.NDArray[Any]:
        """An array of the certificate, copied."""
        values = _field(holder, name)
        wanted = np.dtype(dtype)
        if not isinstance(values, np.ndarray):
            raise VerificationError(
                f"{name} must be an array of {wanted}, got {type(values).__name__}"
            )
        if values.dtype != wanted or values.ndim != ndim:
            raise VerificationError(
                f"{name} must be a {('one', 'two')[ndim - 1]}-dimensional array of {wanted}, "
                f"got shape {values.shape} and dtype {values.dtype}"
            )
        self._take(values.size, name)
        # A copy: nobody else can change it while it is checked, and it is contiguous.
        return _frozen(np.array(values, dtype=wanted, order="C", subok=False))

    def _take(self, size: int, name: str) -> None:
        """Refuse an array, before it is copied, if checking it would not fit."""
        # Without a limit copies made so far are no longer among what is available.
        before = 0 if self._resources.memory_limit is None else self._copies
        self._copies += 8 * size
        if name == "keys":
            self._pairs = max(self._pairs, size)
        elif name == "values":
            self._values += size
        try:
            self._resources.check_memory(
                before + 8 * size + PAIR_BYTES * self._pairs + VALUE_BYTES * self._values,
                what=f"checking a certificate up to its {name} ({size:,} numbers)",
                instead="use a larger machine, or certify with fewer covered pairs (max_pairs)",
            )
        except MemoryLimitError as error:
            self.refusal = error
            raise


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read-only and contiguous, so that kernels are compiled for one kind of array."""
    values = np.ascontiguousarray(values).view()
    values.setflags(write=False)
    return values


def short(value: object) -> str:
    """What a value looks like, cut to a few words; never fails."""
    try:
        text = repr(value)
    except Exception:  # any repr of a malformed field may fail; the verdict must not
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 40 else text[:36] + " ..."
