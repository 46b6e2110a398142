"""Certificates as the verifier reads them: plain arrays of the right shapes, or a rejection.

Whatever object is handed in, only attributes are read from it, each once; arrays are copied.
What is checked here is form alone. Whether the claims are true is decided elsewhere.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.text import short
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._verify.relations import RELATIONS, Relation
from bisim_abstract.errors import MemoryLimitError, VerificationError

SCOPES = ("covered", "all")
# What checking takes at its peak, besides copies: per covered pair of the table that is being
# checked, and per value of a feature or witness.
PAIR_BYTES, VALUE_BYTES = 182, 32
EPISODE_FIELDS = ("mean_return", "worst_return", "ended", "worst_ended")
Interval = tuple[float, float]
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
        is_estimate: Whether radii of the model are part of intervals and radii.
        is_sampled: Whether these hold with some probability only: then true rows may reach what
            no row here does, with all that members differ by.
        off: (n) if they hold surely, how far true rows of members may be from those of the model.
        lower_start: "reward" or "zero".
        upper_start: "reward" or "constant".
        relation: Which actions of two blocks are compared.
        available: (n, n_actions) which actions each block has. Nothing is read of the others
            where actions are matched, and what the members' rows say where they go by name.
        sets: (n) equal numbers for blocks with equal actions, if that matters; else all 0.
        apart: The distance of blocks whose numbers in `sets` differ; None if there are none.
        renaming: (n_states, n_actions) which action of its block each action of a state is, -1
            where the state lacks it; None where actions are called what they are.
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
    is_sampled: bool
    off: FloatArray
    lower_start: str
    upper_start: str
    relation: Relation
    available: BoolArray
    sets: IntArray
    apart: float | None
    renaming: IntArray | None

    def pair(self, index: int) -> tuple[int, int]:
        """The blocks of a covered pair."""
        first, second = divmod(int(self.keys[index]), self.n)
        return first, second

    def name(self, index: int) -> str:
        """The same in words."""
        what = "pair" if self.level is None else f"level {self.level}, block pair"
        return f"{what} {self.pair(index)}"

    def called(self, state: int, action: int) -> int:
        """Which action of its block an action of a state is."""
        return action if self.renaming is None else int(self.renaming[state, action])

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
    floor: FloatArray
    ceiling: FloatArray
    witnesses: WitnessClaims | None

    def functions(self) -> tuple[FloatArray, FloatArray]:
        """(n_states, count) values of all functions, witnesses last, and (count) corrections."""
        if self.witnesses is None:
            return np.ascontiguousarray(self.values.T), self.corrections
        points = np.vstack([self.values, self.witnesses.values])
        corrections = np.append(self.corrections, self.witnesses.corrections)
        return np.ascontiguousarray(points.T), corrections


@dataclass(frozen=True)
class ActionClaims:
    """Bounds on optimal action values; fields as in `action_values.ActionValues`."""

    values: FloatArray
    radius: float


@dataclass(frozen=True)
class ShareClaims:
    """What agents keep and lose as it is claimed; fields as in `value.ProvenShare`."""

    kept: float
    loss: float
    start_loss: float
    lower: FloatArray


@dataclass(frozen=True)
class BoxClaims(ShareClaims):
    """The same of agents whose values of actions end in a box; fields as in `value.BoxedShare`."""

    q_lower: FloatArray
    q_upper: FloatArray


@dataclass(frozen=True)
class ConvergedClaims(ShareClaims):
    """The same of learners whose values converge; fields as in `value.ConvergedShare`."""

    choices: BoolArray
    excess: FloatArray


@dataclass(frozen=True)
class ValueClaims:
    """What is claimed about values; fields as in `value.ProvenValue`, the bracket's among them.

    `labels` are not claimed: they follow from the certified clusters, the end set apart. Figures of
    episodes come by their names, each a tuple of intervals as in `EPISODE_FIELDS`.
    """

    labels: IntArray
    policy: IntArray
    optimal_upper: FloatArray
    optimal_lower: FloatArray
    optimal_policy: IntArray
    policy_lower: FloatArray
    random_upper: FloatArray
    constant_upper: FloatArray
    baseline_lower: FloatArray
    baseline_action: int
    bracket_lower: FloatArray
    bracket_upper: FloatArray
    bracket_policy: IntArray
    optimal_start: Interval
    baseline_start: Interval
    loss: float
    start_loss: float
    kept: float
    renaming: IntArray | None
    solver: BoxClaims
    margin: float | None
    margin_kept: float
    margin_lower: FloatArray
    learner: BoxClaims | None
    converged: ConvergedClaims | None
    horizon: int
    episodes: tuple[tuple[str, tuple[Interval | None, ...]], ...]

    def shares(self) -> list[tuple[str, ShareClaims]]:
        """What is kept and lost by whom, and what names of these fields begin with."""
        policy = ShareClaims(self.kept, self.loss, self.start_loss, self.policy_lower)
        found: list[tuple[str, ShareClaims]] = [("", policy), ("solver.", self.solver)]
        if self.learner is not None:
            found.append(("learner.", self.learner))
        if self.converged is not None:
            found.append(("learner.converged.", self.converged))
        return found


@dataclass(frozen=True)
class Claims:
    """A certificate whose fields have the right types, shapes and ranges."""

    n_states: int
    gamma: float
    relation: Relation
    states: Table
    levels: tuple[Table, ...]
    features: FeatureClaims | None
    actions: ActionClaims | None
    tau: float | None
    scope: str
    labels_lower: IntArray
    labels_upper: IntArray
    value: ValueClaims | None

    @property
    def tables(self) -> tuple[Table, ...]:
        """Levels first, then pairs of states, which read from them."""
        return (*self.levels, self.states)


PARTITION = "partition"  # the scope of what claims nothing but values
BOUNDS = ("tau", "keys", "levels", "features", "action_values", "labels_lower", "labels_upper")


def read_claims(certificate: object, mdp: TabularMDP, *, resources: Resources = HERE) -> Claims:
    """Read a certificate.

    Raises:
        VerificationError: If it is malformed, or of another model.
        MemoryLimitError: If it is too large to be checked here.
    """
    room = _Room(resources)
    try:
        if isinstance(scope := getattr(certificate, "scope", None), str) and scope == PARTITION:
            return _read_partition(certificate, mdp, room)
        return _read(certificate, mdp, room)
    except VerificationError:
        raise
    except Exception as error:  # whatever else a hostile object may do when it is read
        if error is room.refusal:
            raise
        raise VerificationError(f"the certificate cannot be read: {type(error).__name__}") from None


def _read_partition(proof: object, mdp: TabularMDP, room: _Room) -> Claims:
    """The claims of a proof of a partition: a value, and no bound on any distance."""
    for name in BOUNDS:
        if hasattr(proof, name):
            raise VerificationError(
                f"the proof of a partition must claim no bounds, but has {name}"
            )
    if _field(proof, "value") is None:
        raise VerificationError("the proof of a partition must have a value")
    labels = room.copied(proof, "labels", np.int64)
    estimate, none = mdp.estimate, _frozen(np.empty(0))
    relation = RELATIONS[_choice(proof, "relation", tuple(RELATIONS))]
    has_apart = mdp.has_action_sets and not relation.matches_actions
    if has_apart and labels.size == mdp.n_states:
        clusters, _ = _live_clusters(labels, mdp.terminal_state)
        first = np.unique(clusters, return_index=True)[1]
        _first_bad(
            mdp.available == mdp.available[first[clusters]],
            "action {1} of state {0} is not one that all states of its cluster have or lack",
        )
    names = ("fingerprint", "n_states", "gamma", "relation", "terminal_state", "available")
    empty = SimpleNamespace(
        **{name: _field(proof, name) for name in (*names, "alpha", "value")},
        rewards=mdp.rewards,
        reward_radius=np.empty((0, 0)) if estimate is None else estimate.reward_radius,
        reward_range=None if estimate is None else estimate.reward_range,
        apart=0.0 if has_apart else None,  # which nothing that is claimed depends on
        keys=none.astype(np.int64),
        lower=none,
        upper=none,
        lower_start="zero",
        upper_start="constant",
        levels=(),
        features=None,
        action_values=None,
        tau=0.0,
        scope="all",
        labels_lower=labels,
        labels_upper=labels,
    )
    return replace(_read(empty, mdp, room), tau=None, scope=PARTITION)


def _read(certificate: object, mdp: TabularMDP, room: _Room) -> Claims:
    fingerprint = _field(certificate, "fingerprint")
    if not isinstance(fingerprint, str) or fingerprint != mdp.fingerprint:
        raise VerificationError(
            f"fingerprint is {short(fingerprint)}, but that of the model is "
            f"{short(mdp.fingerprint)}: the certificate speaks of another model"
        )
    _check_conditions(certificate, mdp)
    n = _whole(certificate, "n_states")
    if n != mdp.n_states:
        raise VerificationError(f"n_states is {n}, but the model has {mdp.n_states} states")
    gamma = _real(certificate, "gamma")
    if not 0.0 <= gamma < 1.0:
        raise VerificationError(f"gamma must lie in [0, 1), got {gamma!r}")
    if 0.0 < gamma < sys.float_info.min:  # no bound on rounding errors holds for its products
        raise VerificationError(f"gamma must be 0 or a normal number, got {gamma!r}")
    rewards = _field(certificate, "rewards")
    if not isinstance(rewards, np.ndarray) or not np.array_equal(rewards, mdp.rewards):
        raise VerificationError("rewards are not those of the model, on which the starts depend")
    _check_estimate(certificate, mdp)
    relation = RELATIONS[_choice(certificate, "relation", tuple(RELATIONS))]
    actions = _read_actions(certificate, mdp, relation)
    tau = None if _field(certificate, "tau") is None else _real(certificate, "tau")
    scope = _choice(certificate, "scope", SCOPES)
    states = _read_states(certificate, mdp, room, actions)
    labels = {}
    for name in ("labels_lower", "labels_upper"):
        labels[name] = room.copied(certificate, name, np.int64)
        expected = 0 if tau is None else n
        if labels[name].size != expected:
            why = "without tau" if tau is None else "one for each state"
            raise VerificationError(
                f"{name} must have {expected} entries ({why}), got {labels[name].size}"
            )
    end = _field(certificate, "terminal_state")
    # NumPy before 2.2 takes an empty array for False, whatever it is compared with.
    if isinstance(end, np.ndarray) or end != mdp.terminal_state:
        raise VerificationError(
            f"terminal_state is {short(end)}, but that of the model is {mdp.terminal_state}"
        )
    value = _field(certificate, "value")
    levels = _field(certificate, "levels")
    if not isinstance(levels, tuple):
        raise VerificationError(f"levels must be a tuple of block levels, got {short(levels)}")
    features = _field(certificate, "features")
    claims = _read_action_values(certificate, mdp, room, relation)
    if relation.has_action_values:
        is_alone = states.keys.size == 0 and not levels and features is None and scope == "all"
        starts = states.lower_start, states.upper_start
        if not is_alone or starts != ("zero", "constant"):
            raise VerificationError(
                "distances of optimal action values are read off these alone, over all pairs: "
                "pairs, levels, features and starts by rewards say nothing of them"
            )
    return Claims(
        n_states=n,
        gamma=gamma,
        relation=relation,
        states=states,
        levels=tuple(_read_level(level, k, mdp, room, actions) for k, level in enumerate(levels)),
        features=None if features is None else _read_features(features, mdp, room, actions),
        actions=claims,
        tau=tau,
        scope=scope,
        **labels,
        value=None if value is None else _read_value(value, mdp, room, actions, **labels),
    )


@dataclass(frozen=True)
class _Actions:
    """How actions are compared, and what different ones cost."""

    relation: Relation
    apart: float | None


def _check_conditions(certificate: object, mdp: TabularMDP) -> None:
    """Refuse a certificate that is silent on what its model is conditional on.

    Its sentence would claim more than the model shows, as that the starts of a few seeds are all.
    """
    needed = mdp.metadata.get("conditions")
    if not needed or not isinstance(needed, list | tuple):
        return
    run = _field(certificate, "run")
    told = run.get("conditions") if isinstance(run, Mapping) else None
    # Texts alone: other objects may be equal to anything.
    stated = {x for x in told if type(x) is str} if isinstance(told, list | tuple) else set()
    for condition in needed:
        if type(condition) is str and condition not in stated:
            raise VerificationError(
                f"the certificate leaves out a condition of its model, {short(condition)}; certify "
                "the model again"
            )


def _read_actions(certificate: object, mdp: TabularMDP, relation: Relation) -> _Actions:
    available = _field(certificate, "available")
    is_array = isinstance(available, np.ndarray) and available.dtype == np.bool_
    if not is_array or not np.array_equal(available, mdp.available):
        raise VerificationError("available are not the actions that states of the model have")
    apart = _field(certificate, "apart")
    has_apart = mdp.has_action_sets and not relation.matches_actions
    if (apart is not None) != has_apart:
        what = "differ and correspond by name" if has_apart else "are the same or are matched"
        raise VerificationError(f"apart is {short(apart)}, but the actions of states {what}")
    return _Actions(relation, _real(certificate, "apart") if has_apart else None)


def _set_numbers(available: BoolArray, actions: _Actions) -> IntArray:
    """Equal numbers for rows of equal actions, where that matters."""
    if actions.apart is None:
        return _frozen(np.zeros(available.shape[0], np.int64))
    packed = np.packbits(available, axis=1)
    return _frozen(np.unique(packed, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64))


def _used_names(renaming: IntArray, mdp: TabularMDP) -> BoolArray:
    """(n_states, n_actions) which names the actions of each state have."""
    shape = mdp.available.shape
    if renaming.shape != shape:
        raise VerificationError(f"renaming must have shape {shape}, got {renaming.shape}")
    has_name = (renaming >= 0) & (renaming < mdp.n_actions)
    _first_bad(
        np.where(mdp.available, has_name, renaming == -1),
        "renaming must give a name to action {1} of state {0} exactly if the state has it, and -1 "
        "otherwise",
    )
    used = np.zeros(shape, bool)
    states, own = np.nonzero(mdp.available)
    used[states, renaming[states, own]] = True
    return used


def _read_value(
    value: object,
    mdp: TabularMDP,
    room: _Room,
    actions: _Actions,
    *,
    labels_lower: IntArray,
    labels_upper: IntArray,
) -> ValueClaims:
    if labels_upper.size == 0 or not np.array_equal(labels_lower, labels_upper):
        raise VerificationError("value: there is no certified clustering that it could speak of")
    labels, count = _live_clusters(labels_upper, mdp.terminal_state)
    n, n_actions = mdp.rewards.shape
    try:
        bracket = _field(value, "bracket")
        per_state: dict[str, Any] = {
            name: _finite(room, value, name, (n,))
            for name in (
                "optimal_upper",
                "optimal_lower",
                "policy_lower",
                "random_upper",
                "baseline_lower",
            )
        }
        per_cluster: dict[str, Any] = {
            f"bracket_{name}": _finite(room, bracket, name, (count,), called=f"bracket_{name}")
            for name in ("lower", "upper")
        }
        plans = {}
        for name, holder in (("policy", value), ("bracket_policy", bracket)):
            plans[name] = room.copied(holder, "policy", np.int64)
            _check_shape(plans[name], name, (count,))
            _first_bad(
                (plans[name] >= 0) & (plans[name] < n_actions),
                f"{name} takes an action in cluster {{0}} that does not exist",
            )
        optimal_policy = room.copied(value, "optimal_policy", np.int64)
        _check_shape(optimal_policy, "optimal_policy", (n,))
        is_action = (optimal_policy >= 0) & (optimal_policy < n_actions)
        is_action &= mdp.available[np.arange(n), np.where(is_action, optimal_policy, 0)]
        _first_bad(is_action, "optimal_policy takes an action in state {0} that it does not have")
        baseline_action = _whole(value, "baseline_action")
        if not -1 <= baseline_action < n_actions:
            raise VerificationError(
                f"baseline_action must be an action, or -1, got {baseline_action}"
            )
        renaming = _read_names(value, mdp, room, actions, labels, plans)
        least = n_actions
        if renaming is not None and actions.relation.matches_actions:
            least = int(renaming.max()) + 1
        solver, agents = _field(value, "solver"), _Agents(room, n, count, least, n_actions)
        margin = _field(solver, "margin")
        if margin is not None:
            margin = _extended(solver, "margin", math.inf)
            if not margin >= 0.0:
                raise VerificationError(f"margin must be at least 0, got {margin!r}")
        margin_kept = _extended(solver, "margin_kept", -math.inf)
        margin_lower = _finite(
            room,
            solver,
            "margin_lower",
            (0 if margin is None else n,),
            called="solver.margin_lower",
        )
        if margin is None and margin_kept != -math.inf:
            raise VerificationError("margin_kept must be -inf without a margin")
        learner, converged = _field(value, "learner"), None
        if learner is not None:
            converged = _field(learner, "converged")
        if converged is not None and mdp.estimate is not None:
            raise VerificationError("learner.converged says nothing of an estimated model")
        of_solver = agents.box(solver, "solver")
        of_learner = None if learner is None else agents.box(learner, "learner")
        horizon, episodes = _read_episodes(value, mdp, has_learner=learner is not None)
        return ValueClaims(
            labels=labels,
            renaming=renaming,
            optimal_policy=optimal_policy,
            constant_upper=_finite(room, value, "constant_upper", (n, n_actions)),
            baseline_action=baseline_action,
            **per_state,
            **per_cluster,
            **plans,
            optimal_start=_interval(_field(value, "optimal_start"), "optimal_start"),
            baseline_start=_interval(_field(value, "baseline_start"), "baseline_start"),
            loss=_real(value, "loss"),
            start_loss=_real(value, "start_loss"),
            kept=_extended(value, "kept", -math.inf),
            solver=of_solver,
            margin=margin,
            margin_kept=margin_kept,
            margin_lower=margin_lower,
            learner=of_learner,
            converged=None if converged is None else agents.converged(converged),
            horizon=horizon,
            episodes=episodes,
        )
    except VerificationError as error:
        raise VerificationError(f"value: {error}") from None


class _Agents:
    """Reads what agents keep and lose: shapes of their fields."""

    def __init__(self, room: _Room, n: int, count: int, least: int, most: int) -> None:
        self._room, self._n, self._count = room, n, count
        self._widths = range(least, most + 1)  # a column per name at least, or per action

    def _share(self, share: object, name: str) -> dict[str, Any]:
        try:
            return {
                "kept": _extended(share, "kept", -math.inf),
                "loss": _real(share, "loss"),
                "start_loss": _real(share, "start_loss"),
                "lower": _finite(self._room, share, "lower", (self._n,)),
            }
        except VerificationError as error:
            raise VerificationError(f"{name}: {error}") from None

    def box(self, share: object, name: str) -> BoxClaims:
        """Of a solver or a learner."""
        fields = self._share(share, name)
        width = np.shape(_field(share, "q_lower"))[-1:]
        if not width or width[0] not in self._widths:
            raise VerificationError(
                f"{name}.q_lower must have a column for each name, got {width} of {self._widths}"
            )
        self._widths = range(width[0], width[0] + 1)  # the same for all agents
        for side in ("q_lower", "q_upper"):
            shape = (self._count, *width)
            fields[side] = _finite(self._room, share, side, shape, called=f"{name}.{side}")
        _first_bad(
            fields["q_lower"] <= fields["q_upper"],
            f"{name}.q_lower exceeds q_upper in cluster {{0}}, action {{1}}",
        )
        return BoxClaims(**fields)

    def converged(self, share: object) -> ConvergedClaims:
        """Of a learner whose values converge."""
        name = "learner.converged"
        fields = self._share(share, name)
        choices = self._room.copied(share, "choices", np.bool_, 2)
        _check_shape(choices, f"{name}.choices", (self._count, self._widths[0]))
        excess = _finite(self._room, share, "excess", (self._n,), called=f"{name}.excess")
        _first_bad(excess >= 0.0, f"{name}.excess must not be negative at {{0}}")
        return ConvergedClaims(**fields, choices=choices, excess=excess)


def _read_episodes(
    value: object, mdp: TabularMDP, *, has_learner: bool
) -> tuple[int, tuple[tuple[str, tuple[Interval | None, ...]], ...]]:
    """The time limit, and figures of all that act within it; 0 and none if there are none."""
    episodes = _field(value, "episodes")
    if episodes is None:
        return 0, ()
    if mdp.estimate is not None:
        raise VerificationError("episodes of an estimated model are not bounded by its rows")
    horizon = _whole(episodes, "horizon")
    if horizon < 1:
        raise VerificationError(f"episodes: horizon must be at least 1, got {horizon}")
    found = []
    for who in ("policy", "optimal", "solver", "learner"):
        bounds = _field(episodes, who)
        if bounds is None and who == "learner":
            continue
        if who == "learner" and not has_learner:
            raise VerificationError("episodes: learner must be None, as there is no learner")
        intervals = []
        for name in EPISODE_FIELDS:
            given = _field(bounds, name)
            where = f"episodes.{who}.{name}"
            intervals.append(None if given is None else _interval(given, where, is_open=True))
        found.append((who, tuple(intervals)))
    return horizon, tuple(found)


def _finite(
    room: _Room, holder: object, name: str, shape: tuple[int, ...], *, called: str = ""
) -> FloatArray:
    """An array of finite floats of one shape."""
    found = room.copied(holder, name, np.float64, len(shape))
    _check_shape(found, called or name, shape)
    at = ", ".join(f"{{{k}}}" for k in range(len(shape)))
    _first_bad(np.isfinite(found), f"{called or name} must be finite at {at}")
    return found


def _check_shape(found: npt.NDArray[Any], name: str, shape: tuple[int, ...]) -> None:
    if found.shape != shape:
        raise VerificationError(f"{name} must have shape {shape}, got {found.shape}")


def _read_names(
    value: object,
    mdp: TabularMDP,
    room: _Room,
    actions: _Actions,
    labels: IntArray,
    per_cluster: dict[str, IntArray],
) -> IntArray | None:
    """What actions are called in clusters: what they are, or what all states of a cluster have.

    Whatever a renaming says, the policy that it lifts is checked in every state. It must be one
    that agents can act by: in a cluster whose actions are matched all states have all its names.
    """
    if not actions.relation.matches_actions and not mdp.has_action_sets:
        if _field(value, "renaming") is not None:
            raise VerificationError("renaming must be None, as all states have all actions")
        return None
    renaming = room.copied(value, "renaming", np.int64, 2)
    used = _used_names(renaming, mdp)
    if not actions.relation.matches_actions:
        own = np.where(mdp.available, np.arange(mdp.n_actions), -1)
        _first_bad(renaming == own, "renaming must call action {1} of state {0} what it is")
        return renaming
    counts = used.sum(axis=1)
    _first_bad(
        used == (np.arange(mdp.n_actions) < counts[:, None]),
        "renaming must number the names in state {0} from 0 on, and {1} is wrong",
    )
    names = np.zeros(per_cluster["policy"].size, np.int64)
    names[labels] = counts
    _first_bad(
        counts == names[labels],
        "renaming must use the same names in all states of a cluster; state {0} does not",
    )
    for name in ("policy", "bracket_policy"):
        _first_bad(
            per_cluster[name] < names, f"{name} takes an action in cluster {{0}} without a name"
        )
    return renaming


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
        if _field(certificate, "reward_range") is not None:
            raise VerificationError("reward_range must be absent, as the model is no estimate")
        return
    if alpha is None or _real(certificate, "alpha") != mdp.estimate.alpha:
        raise VerificationError(
            f"alpha is {short(alpha)}, but that of the estimated model is {mdp.estimate.alpha!r}"
        )
    if not isinstance(radius, np.ndarray) or not np.array_equal(radius, mdp.estimate.reward_radius):
        raise VerificationError("reward_radius is not that of the estimated model")
    paid = _field(certificate, "reward_range")
    if not isinstance(paid, tuple | list) or [*paid] != [*mdp.estimate.reward_range]:
        raise VerificationError(
            f"reward_range is {short(paid)}, but that of the estimated model is "
            f"{mdp.estimate.reward_range}"
        )


def _read_states(certificate: object, mdp: TabularMDP, room: _Room, actions: _Actions) -> Table:
    n = mdp.n_states
    low = high = mdp.rewards
    radius = np.zeros(low.shape)
    if mdp.estimate is not None:
        # Rounded outward; exact mode computes with the exact ends instead.
        error = mdp.estimate.reward_radius
        # No mean leaves the range of single rewards; but an interval holds its own middle.
        least = np.minimum(mdp.estimate.reward_range[0], mdp.rewards)
        most = np.maximum(mdp.estimate.reward_range[1], mdp.rewards)
        lowest = np.clip(np.nextafter(mdp.rewards - error, -np.inf), least, None)
        highest = np.clip(np.nextafter(mdp.rewards + error, np.inf), None, most)
        low, high = np.where(error == 0.0, low, lowest), np.where(error == 0.0, high, highest)
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
        short=_frozen(radius if mdp.is_sampled else np.zeros(low.shape)),  # else `off` counts
        indptr=mdp.indptr,
        indices=mdp.indices,
        probs=mdp.probs,
        is_estimate=mdp.estimate is not None,
        is_sampled=mdp.is_sampled,
        off=_off(mdp, np.arange(n), n),
        lower_start=_choice(certificate, "lower_start", ("reward", "zero")),
        upper_start=_choice(certificate, "upper_start", ("reward", "constant")),
        relation=actions.relation,
        available=mdp.available,
        sets=_set_numbers(mdp.available, actions),
        apart=actions.apart,
        renaming=None,
    )
    _check_table(table)
    return table


def radius_seen_by(mdp: TabularMDP, labels: npt.NDArray[Any]) -> FloatArray:
    """(n_states, n_actions) radii of rows that matter to who knows states by labels alone.

    If every block of the estimate has one label, rows count by their sums over blocks.
    """
    if mdp.estimate is None:
        return np.zeros(mdp.rewards.shape)
    blocks, radius = mdp.estimate.blocks, mdp.estimate.block_radius
    if blocks is not None and radius is not None:
        _, first, inverse = np.unique(blocks, return_index=True, return_inverse=True)
        if bool((labels[first][inverse] == labels).all()):
            return radius
    return mdp.estimate.row_radius


def _off(mdp: TabularMDP, labels: IntArray, n: int) -> FloatArray:
    """(n) the largest radius of a member's rows, if the radii of the model hold surely."""
    off = np.zeros(n)
    if mdp.estimate is not None and not mdp.is_sampled:
        np.maximum.at(off, labels, mdp.estimate.row_radius.max(axis=1))
    return _frozen(off)


def _read_level(
    level: object, number: int, mdp: TabularMDP, room: _Room, actions: _Actions
) -> Table:
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
        available, renaming = _read_block_actions(model, mdp, room, actions, labels, low.shape)
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
            is_sampled=mdp.is_sampled,
            off=_off(mdp, labels, n),
            lower_start="reward",
            upper_start="reward",
            relation=actions.relation,
            available=available,
            sets=_set_numbers(available, actions),
            apart=actions.apart,
            renaming=renaming,
        )
        _check_rows(table)
    except VerificationError as error:
        raise VerificationError(f"level {number}: {error}") from None
    _check_table(table)
    return table


def _read_block_actions(
    model: object,
    mdp: TabularMDP,
    room: _Room,
    actions: _Actions,
    labels: IntArray,
    shape: tuple[int, ...],
) -> tuple[BoolArray, IntArray | None]:
    """Which actions blocks have, and which of them each action of a member is.

    Every member must have all actions of its block, and no other: what is claimed of a block's
    action then speaks of some action of every member, and of each action of a member.
    """
    available = room.copied(model, "available", np.bool_, 2)
    if available.shape != shape:
        raise VerificationError(f"available must have shape {shape}, got {available.shape}")
    has_action: BoolArray = np.asarray(available.any(axis=1))
    _first_bad(has_action, "block {0} has no action")
    if not actions.relation.matches_actions:
        if _field(model, "renaming") is not None:
            raise VerificationError("renaming must be None, as actions correspond by name")
        _first_bad(
            available[labels] == mdp.available,
            "state {0} and its block must have the same actions, but differ in action {1}",
        )
        return available, None
    renaming = room.copied(model, "renaming", np.int64, 2)
    _first_bad(
        _used_names(renaming, mdp) == available[labels],
        "renaming must use in state {0} the actions that its block has, but differs in action {1}",
    )
    return available, renaming


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


def _read_action_values(
    certificate: object, mdp: TabularMDP, room: _Room, relation: Relation
) -> ActionClaims | None:
    found = _field(certificate, "action_values")
    if found is None:
        return None
    if not relation.has_action_values:
        raise VerificationError(f"action_values say nothing of the relation {relation.name!r}")
    values = _finite(room, found, "values", mdp.rewards.shape, called="action_values")
    radius = _real(found, "radius")
    if radius < 0.0:
        raise VerificationError(f"radius of action_values must not be negative, got {radius!r}")
    return ActionClaims(values, radius)


def _read_features(
    features: object, mdp: TabularMDP, room: _Room, actions: _Actions
) -> FeatureClaims:
    n, n_actions = mdp.n_states, mdp.n_actions
    try:
        values = room.copied(features, "values", np.float64, 2)
        signs = room.copied(features, "signs", np.int64, 2)
        kinds = room.copied(features, "kinds", np.int64)
        corrections = room.copied(features, "corrections", np.float64)
        floor, ceiling = (room.copied(features, name, np.float64) for name in ("floor", "ceiling"))
        count = corrections.size
        is_short = any(array.size != count for array in (kinds, floor, ceiling))
        if values.shape != (count, n) or signs.shape != (count, n_actions) or is_short:
            raise VerificationError(
                "values, signs, kinds, floor, ceiling and corrections must be of "
                f"{count} functions of {n} states and {n_actions} actions; got shapes "
                f"{values.shape}, {signs.shape}, {kinds.shape}, {floor.shape}, {ceiling.shape} "
                f"and {corrections.shape}"
            )
        _first_bad(np.isfinite(values), "value of function {0} at state {1} must be finite")
        _first_bad(np.abs(signs) <= 1, "sign of function {0}, action {1} must be -1, 0 or 1")
        _first_bad((signs != 0).any(axis=1), "function {0} uses no action")
        _first_bad((kinds == 0) | (kinds == 1), "kind of function {0} must be 0 or 1")
        _first_bad(
            np.isfinite(corrections) & (corrections >= 0.0),
            "correction of function {0} must be finite and not negative",
        )
        _first_bad(
            (floor <= ceiling) & (floor < np.inf) & (ceiling > -np.inf),
            "floor of function {0} must be at most its ceiling, and one of them of some use",
        )
        witnesses = _field(features, "witnesses")
        if witnesses is not None and mdp.is_sampled:
            raise VerificationError("witnesses say nothing of an estimated model's true rows")
        _check_signs(signs, kinds, witnesses, actions)
    except VerificationError as error:
        raise VerificationError(f"features: {error}") from None
    return FeatureClaims(
        values=values,
        signs=signs,
        kinds=kinds,
        corrections=corrections,
        floor=floor,
        ceiling=ceiling,
        witnesses=None if witnesses is None else _read_witnesses(witnesses, mdp, room),
    )


def _check_signs(signs: IntArray, kinds: IntArray, witnesses: object, actions: _Actions) -> None:
    """Which functions bound the metric; see `verify`."""
    if not actions.relation.matches_actions and actions.apart is None:
        return
    is_turned = (signs.min(axis=1) < 0) & (signs.max(axis=1) > 0)
    _first_bad(
        ~is_turned, "function {0} has signs of both kinds, though actions differ between states"
    )
    if actions.relation.matches_actions:
        _first_bad(
            np.all(signs != 0, axis=1), "function {0} leaves out an action, though they are matched"
        )
        _first_bad(kinds == 0, "function {0} is a mean over actions, though they are matched")
        if witnesses is not None:
            raise VerificationError("witnesses look at one action, though actions are matched")


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
    return _as_real(_field(holder, name), name)


def _extended(holder: object, name: str, end: float) -> float:
    """A real number, or one of the infinities."""
    value = _field(holder, name)
    return end if isinstance(value, float) and value == end else _as_real(value, name)


def _interval(value: object, name: str, *, is_open: bool = False) -> Interval:
    """Two real numbers, of which the second may be infinite where that is `is_open`."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise VerificationError(f"{name} must be a tuple of two numbers, got {short(value)}")
    low, high = value
    is_infinite = is_open and isinstance(high, float) and high == math.inf
    return _as_real(low, f"{name}[0]"), (math.inf if is_infinite else _as_real(high, f"{name}[1]"))


def _as_real(value: Any, name: str) -> float:
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
