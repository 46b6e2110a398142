"""Claims about values, honest ones and an oracle for all, in exact arithmetic by slow code.

Shares nothing with the package but the model. Honest bounds move by exact backups that are rounded
outward, so that every inequality holds exactly, however often they are moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract import TabularMDP
from bisim_abstract._base.resources import HERE
from bisim_abstract._verify.read import _Actions, _read_value, _Room
from bisim_abstract._verify.relations import RELATIONS
from bisim_abstract._verify.value import check_value
from bisim_abstract.errors import VerificationError
from tests.support.honest import down, up
from tests.support.oracles import fractions
from tests.support.renaming import end_apart
from tests.support.values import Exact, extreme, largest_span, mean, reward_end

Ints = npt.NDArray[np.int64]
Set = dict[int, set[int]]  # names of each cluster
Steps = Callable[[list[Fraction]], list[Fraction]]

ZERO = Fraction(0)
NOTHING, OF_STAKE = Fraction(1e-9), Fraction(1e-6)


class Ground:
    """A model, clusters and names, and backups of all kinds in fractions."""

    def __init__(
        self, mdp: TabularMDP, gamma: float, labels: Sequence[int] | Ints, renaming: Ints | None
    ) -> None:
        self.mdp, self.gamma, self.labels = mdp, Fraction(gamma), [int(c) for c in labels]
        self.model = self.averaged = Exact.of(mdp, gamma)
        self.states = range(mdp.n_states)
        self.own = [np.flatnonzero(line).tolist() for line in mdp.available]
        self.names = np.where(mdp.available, np.arange(mdp.n_actions), -1)
        is_own = renaming is None or np.array_equal(renaming, self.names)
        if renaming is not None:
            self.names = renaming
        self.used: Set = {}
        for s in self.states:
            self.used.setdefault(self.labels[s], set()).update(
                int(self.names[s, a]) for a in self.own[s]
            )
        # What states do for a name: all that is called so, else the first action.
        self.rows: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
        for s in self.states:
            for b in sorted(self.used[self.labels[s]]):
                called = [a for a in self.own[s] if self.names[s, a] == b]
                assert called or is_own
                entry = (s, called or self.own[s][:1])
                self.rows.setdefault((self.labels[s], b), []).append(entry)

    def q(self, v: list[Fraction], s: int, a: int, side: int, *, is_mean: bool = False) -> Fraction:
        if is_mean:
            return self.averaged.q(v, s, a)
        if self.mdp.estimate is None:
            return self.model.q(v, s, a)
        ahead = extreme(self.mdp, self.model, v, s, a, side)
        return reward_end(self.mdp, s, a, side) + self.gamma * ahead

    def by(self, plan: Sequence[Sequence[int]], how: str, side: int) -> Steps:
        """Backups of the best, the worst or the mean of actions."""

        def step(v: list[Fraction]) -> list[Fraction]:
            found = [[self.q(v, s, a, side) for a in plan[s]] for s in self.states]
            if how == "mean":
                return [sum(q, ZERO) / len(q) for q in found]
            return [max(q) if how == "best" else min(q) for q in found]

        return step

    def lifted(self, policy: Sequence[int]) -> list[list[int]]:
        chosen = []
        for s in self.states:
            called = [a for a in self.own[s] if self.names[s, a] == policy[self.labels[s]]]
            chosen.append((called or self.own[s])[:1])
        return chosen

    def constant(self, action: int) -> list[list[int]]:
        return [[action] if action in own else own for own in self.own]

    def inside(self, chosen: Set) -> list[list[int]]:
        """What states may do when clusters choose from a set."""
        found: list[set[int]] = [set() for _ in self.states]
        for (cluster, b), entries in self.rows.items():
            if b in chosen[cluster]:
                for s, actions in entries:
                    found[s].update(actions)
        return [sorted(x) for x in found]

    def box_step(self, side: int, *, is_mean: bool) -> Steps:
        """Backups of values of actions, (cluster, name) by (cluster, name), in order."""

        def step(q: list[Fraction]) -> list[Fraction]:
            best: dict[int, Fraction] = {}
            for (cluster, _), x in zip(self.rows, q, strict=True):
                best[cluster] = max(best.get(cluster, x), x)
            v = [best[c] for c in self.labels]
            found = []
            for entries in self.rows.values():
                each = [
                    [self.q(v, s, a, side, is_mean=is_mean) for a in actions]
                    for s, actions in entries
                ]
                if is_mean:
                    found.append(sum((sum(x, ZERO) / len(x) for x in each), ZERO) / len(each))
                else:
                    found.append(max(map(max, each)) if side > 0 else min(map(min, each)))
            return found

        return step

    def best_between(self, box: Any, slack: Fraction = ZERO) -> Set:
        chosen: Set = {}
        for c, used in self.used.items():
            least = max(Fraction(float(box.q_lower[c, b])) for b in used) - slack
            chosen[c] = {b for b in used if Fraction(float(box.q_upper[c, b])) >= least}
        return chosen


class Converging:
    """Section "if its values converge", by what it says of each row."""

    def __init__(self, ground: Ground, box: Any) -> None:
        self.ground = ground
        self.mid, self.half, self.low = {}, {}, {}
        for c, used in ground.used.items():
            low = max(Fraction(float(box.q_lower[c, b])) for b in used)
            high = max(Fraction(float(box.q_upper[c, b])) for b in used)
            # Any centre will do; the package takes a float.
            mid = Fraction(float(low) / 2.0 + float(high) / 2.0)
            self.low[c], self.mid[c] = low, mid
            self.half[c] = Fraction(up(max(high - mid, mid - low)))
        v = [self.mid[c] for c in ground.labels]
        self.worth, self.lifted = {}, {}
        for key, entries in ground.rows.items():
            for s, actions in entries:
                for a in actions:
                    row: dict[int, Fraction] = {}
                    for t, p in ground.model.rows[s][a].items():
                        row[ground.labels[t]] = row.get(ground.labels[t], ZERO) + p
                    self.worth[key, s, a] = ground.model.q(v, s, a)
                    self.lifted[key, s, a] = row

    def members(self, key: tuple[int, int]) -> Iterator[tuple[int, int]]:
        for s, actions in self.ground.rows[key]:
            for a in actions:
                yield s, a

    def gap(self, above: tuple[int, int], below: tuple[int, int], at: Any = None) -> Fraction:
        """A bound on what rows of one are worth more than rows of the other, or than one row."""
        one = [(self.worth[above, s, a], self.lifted[above, s, a]) for s, a in self.members(above)]
        two = [
            (self.worth[below, s, a], self.lifted[below, s, a])
            for s, a in ([at] if at is not None else self.members(below))
        ]
        by_entries = by_sums = max(x for x, _ in one) - min(x for x, _ in two)
        for c in {c for _, row in one + two for c in row}:
            ends = [[row.get(c, ZERO) for _, row in side] for side in (one, two)]
            most = max(max(ends[0]) - min(ends[1]), max(ends[1]) - min(ends[0]))
            by_entries += self.ground.gamma * most * self.half[c]

        def reach(row: dict[int, Fraction]) -> Fraction:
            total = sum((p * self.half[c] for c, p in row.items()), ZERO)
            return self.ground.gamma * total

        by_sums = max(x + reach(row) for x, row in one) - min(x - reach(row) for x, row in two)
        return min(by_entries, by_sums)

    def step(self, chosen: Set) -> Steps:
        """Backups of the excess."""
        ground = self.ground
        short: dict[tuple[int, int], Fraction] = {}
        for key in ground.rows:
            members = list(self.members(key))
            if key[1] in chosen[key[0]]:
                for s, a in members:
                    gap = ZERO if len(members) == 1 else self.gap(key, key, (s, a))
                    short[s, a] = max(short.get((s, a), ZERO), gap)

        def step(excess: list[Fraction]) -> list[Fraction]:
            found = [ZERO] * len(excess)
            for (s, a), gap in short.items():
                ahead = sum((p * excess[t] for t, p in ground.model.rows[s][a].items()), ZERO)
                found[s] = max(found[s], gap + ground.gamma * ahead)
            return found

        return step

    def is_beaten(self, c: int, b: int) -> bool:
        return any(self.gap((c, b), (c, other)) < 0 for other in self.ground.used[c] - {b})


# -- honest claims -------------------------------------------------------------------------------


class Maker:
    """Honest claims, up to `room` away from the tightest (relative), by `sweeps` backups."""

    def __init__(self, ground: Ground, *, sweeps: int = 60, room: float = 0.0) -> None:
        self.ground, self.sweeps, self.room = ground, sweeps, Fraction(room)
        mdp, top = ground.mdp, max(abs(x) for line in ground.model.rewards for x in line)
        if mdp.estimate is not None:
            top += Fraction(float(mdp.estimate.reward_radius.max()))
        self.most = top / (1 - ground.gamma)
        self.shift = self.room * self.most

    def solved(self, step: Steps, side: int, count: int) -> Any:
        """A bound (side 1: from above) that a backup confirms."""
        values = [Fraction(up(self.most)) * side] * count
        for _ in range(self.sweeps):
            found = [Fraction(side * up(side * x)) for x in step(values)]
            if found == values:
                break
            values = [side * min(side * x, side * y) for x, y in zip(found, values, strict=True)]
        return np.array([side * up(side * x + self.shift) for x in values])

    def bound(self, plan: Sequence[Sequence[int]], how: str, side: int) -> Any:
        return self.solved(self.ground.by(plan, how, side), side, len(plan))

    def box(self, width: int, *, is_mean: bool) -> dict[str, Any]:
        ground, found = self.ground, {}
        for side, name in ((1, "q_upper"), (-1, "q_lower")):
            step = ground.box_step(side, is_mean=is_mean)
            table = np.zeros((len(ground.used), width))
            for key, x in zip(ground.rows, self.solved(step, side, len(ground.rows)), strict=True):
                table[key] = x
            found[name] = table
        return found

    def greedy(self, v: Any) -> list[list[int]]:
        ground, exact = self.ground, fractions(v)
        found = []
        for s in ground.states:
            q = [ground.q(exact, s, a, -1) for a in ground.own[s]]
            found.append([ground.own[s][q.index(max(q))]])
        return found


def honest_value(
    mdp: TabularMDP,
    gamma: float,
    labels: Sequence[int],
    renaming: Ints | None = None,
    *,
    policy: Sequence[int] | None = None,
    horizon: int | None = None,
    margin: float | None = None,
    sweeps: int = 60,
    room: float = 0.0,
) -> Any:
    """All that can be claimed of a partition, honestly."""
    clusters = end_apart(mdp, labels)
    ground = Ground(mdp, gamma, clusters, renaming)
    make = Maker(ground, sweeps=sweeps, room=room)
    count, width = len(ground.used), mdp.n_actions
    if policy is None:
        policy = [min(ground.used[c]) for c in range(count)]
    upper = make.bound(ground.own, "best", 1)
    optimal = make.greedy(upper)
    robust = [max(ground.used[c]) for c in range(count)]
    # Bounds on values of clusters, by the best or the worst member.
    is_in = [[s for s in ground.states if clusters[s] == c] for c in range(count)]

    def of_clusters(step: Steps, side: int) -> Any:
        def backup(v: list[Fraction]) -> list[Fraction]:
            found = step([v[c] for c in clusters])
            return [side * max(side * found[s] for s in members) for members in is_in]

        return make.solved(backup, side, count)

    value = SimpleNamespace(
        labels=np.array(clusters),
        policy=np.array(policy, np.int64),
        renaming=renaming,
        optimal_upper=upper,
        optimal_lower=make.bound(optimal, "worst", -1),
        optimal_policy=np.array([x[0] for x in optimal]),
        policy_lower=make.bound(ground.lifted(policy), "worst", -1),
        random_upper=make.bound(ground.own, "mean", 1),
        constant_upper=np.stack(
            [make.bound(ground.constant(a), "mean", 1) for a in range(width)], axis=1
        ),
        bracket=SimpleNamespace(
            policy=np.array(robust, np.int64),
            upper=of_clusters(ground.by(ground.own, "best", 1), 1),
            lower=of_clusters(ground.by(ground.lifted(robust), "worst", -1), -1),
        ),
        solver=SimpleNamespace(**make.box(width, is_mean=True), margin=margin),
        learner=SimpleNamespace(**make.box(width, is_mean=False), converged=None),
        episodes=None,
    )
    actions = [-1, *range(width)]
    plans = [ground.own if a < 0 else ground.constant(a) for a in actions]
    lowers = [make.bound(plan, "mean", -1) for plan in plans]
    best = max(range(len(lowers)), key=lambda k: mean(mdp.start, fractions(lowers[k])))
    value.baseline_action, value.baseline_lower = actions[best], lowers[best]
    inside = {name: ground.best_between(getattr(value, name)) for name in ("solver", "learner")}
    for name, chosen in inside.items():
        getattr(value, name).lower = make.bound(ground.inside(chosen), "worst", -1)
    value.solver.margin_lower = np.zeros(0)
    if margin is not None:
        chosen = ground.used
        if math.isfinite(margin):
            chosen = ground.best_between(value.solver, 2 * Fraction(margin))
        value.solver.margin_lower = make.bound(ground.inside(chosen), "worst", -1)
    if mdp.estimate is None:
        _add_converged(value, ground, make, inside["learner"])
    if horizon is not None and mdp.estimate is None:
        followed = {
            "policy": ground.lifted(policy),
            "optimal": optimal,
            **{name: ground.inside(chosen) for name, chosen in inside.items()},
        }
        value.episodes = SimpleNamespace(
            horizon=horizon,
            **{
                name: SimpleNamespace(
                    **_episodes(
                        ground, plan, horizon, is_set=name in inside, room=Fraction(1, 2**40)
                    )
                )
                for name, plan in followed.items()
            },
        )
    follow(value, ground, make.shift)
    return value


def _add_converged(value: Any, ground: Ground, make: Maker, chosen: Set) -> None:
    converging = Converging(ground, value.learner)
    left = {c: {b for b in names if not converging.is_beaten(c, b)} for c, names in chosen.items()}
    choices = np.zeros(value.learner.q_lower.shape, bool)
    for c, names in left.items():
        choices[c, list(names)] = True
    step, plan = converging.step(left), ground.inside(left)
    # Backups of nothing are not below nothing: these rise to an excess, and are then stretched.
    values = [ZERO] * len(plan)
    for _ in range(make.sweeps):
        values = [Fraction(up(x)) for x in step(values)]
    missing = max(
        max((y - x for x, y in zip(values, step(values), strict=True)), default=ZERO), ZERO
    )
    shift = missing / (1 - ground.gamma) + make.shift
    excess = np.array([up(x + shift) for x in values])
    while any(y > x for x, y in zip(fractions(excess), step(fractions(excess)), strict=True)):
        excess = np.nextafter(excess + excess.max() * 2.0**-50, np.inf)
    floor = [
        converging.low[c] - Fraction(float(x)) for c, x in zip(ground.labels, excess, strict=True)
    ]
    backup = ground.by(plan, "worst", -1)
    inner = make.bound(plan, "worst", -1)
    lower = [max(down(x), float(y)) for x, y in zip(floor, inner, strict=True)]
    for _ in range(3):
        found = backup([Fraction(x) for x in lower])
        lower = [max(x, down(max(y, z))) for x, y, z in zip(lower, found, floor, strict=True)]
    lower = [down(Fraction(x) - make.shift) for x in lower]
    value.learner.converged = SimpleNamespace(choices=choices, excess=excess, lower=np.array(lower))


def _episodes(
    ground: Ground, plan: Sequence[Sequence[int]], horizon: int, *, is_set: bool, room: Fraction
) -> dict[str, Any]:
    returns, ends = episode_values(ground, plan, horizon)
    size = max(abs(x) for line in ground.model.rewards for x in line) * horizon
    found: dict[str, Any] = {}
    for what, values, scale in (("return", returns, size), ("ended", ends, Fraction(1))):
        starts = [s for s in ground.states if ground.mdp.start[s] > 0]
        for name, middle in (
            ("mean", mean(ground.mdp.start, values)),
            ("worst", min(values[s] for s in starts)),
        ):
            label = {"mean": "ended", "worst": "worst_ended"}[name]
            if what == "return":
                label = f"{name}_return"
            low, high = down(middle - room * scale), up(middle + room * scale)
            found[label] = (low, math.inf if is_set else high)
            if what == "ended" and ground.mdp.terminal_state is None:
                found[label] = None
    return found


def episode_values(
    ground: Ground, plan: Sequence[Sequence[int]], horizon: int
) -> tuple[list[Fraction], list[Fraction]]:
    """Least returns and shares of ends, exactly."""
    end = ground.mdp.terminal_state
    returns = [ZERO] * len(plan)
    ends = [Fraction(int(s == end)) for s in ground.states]
    for _ in range(horizon):
        ahead = [
            [
                (
                    sum((p * returns[t] for t, p in row.items()), ZERO) + paid[a],
                    sum((p * ends[t] for t, p in row.items()), ZERO),
                )
                for a in plan[s]
                for row in (rows[a],)
            ]
            for s, (rows, paid) in enumerate(
                zip(ground.model.rows, ground.model.rewards, strict=True)
            )
        ]
        returns = [min(x for x, _ in line) for line in ahead]
        ends = [min(x for _, x in line) for line in ahead]
    return returns, ends


# -- what follows --------------------------------------------------------------------------------


class Start:
    """Start values, and the scale of what is kept, in fractions."""

    def __init__(self, value: Any, ground: Ground) -> None:
        self.mdp, start = ground.mdp, ground.mdp.start
        self.best, self.least = (
            mean(start, fractions(x)) for x in (value.optimal_upper, value.optimal_lower)
        )
        uppers = [value.random_upper, *value.constant_upper.T]
        self.base_high = max(mean(start, fractions(x)) for x in uppers)
        self.base_low = mean(start, fractions(value.baseline_lower))
        self.span = largest_span(self.mdp, ground.gamma)

    @cached_property
    def is_all_the_same(self) -> bool:
        mdp = self.mdp
        if self.span == 0 or (mdp.available.sum(axis=1) == 1).all():
            return True
        return mdp.estimate is None and not mdp.has_choice

    def share(self, own: Fraction) -> Fraction | float:
        """The largest share that follows; -inf if none does."""
        low, lost = max(self.least, self.base_low, own), self.best - own
        size = min(max(self.least, -self.best, ZERO), self.span)
        is_settled = self.best - self.base_low <= NOTHING * size
        is_rounding = lost <= NOTHING * size
        if lost <= 0 or self.is_all_the_same:
            return Fraction(1)
        if is_rounding and (is_settled or lost <= OF_STAKE * (low - self.base_high)):
            return Fraction(1)
        gain = (self.best if own >= self.base_high else low) - self.base_high
        return (own - self.base_high) / gain if gain > 0 else -math.inf


def shares_of(value: Any) -> list[tuple[str, Any, Any]]:
    """Names, holders and lower functions of all that is kept and lost."""
    found = [("", value, value.policy_lower), ("solver.", value.solver, value.solver.lower)]
    if value.learner is not None:
        found.append(("learner.", value.learner, value.learner.lower))
        converged = value.learner.converged
        if converged is not None:
            found.append(("learner.converged.", converged, converged.lower))
    return found


def follow(value: Any, ground: Ground, room: Fraction = ZERO) -> None:
    """Set all numbers to the best ones that follow from the functions, but for some room."""
    start, upper = Start(value, ground), fractions(value.optimal_upper)
    value.optimal_start = (down(start.least - room), up(start.best + room))
    value.baseline_start = (down(start.base_low - room), up(start.base_high + room))
    for _, holder, lower in shares_of(value):
        own = mean(ground.mdp.start, fractions(lower))
        lost = max(u - v for u, v in zip(upper, fractions(lower), strict=True))
        holder.loss, holder.start_loss = up(lost + room), up(start.best - own + room)
        holder.kept = _kept(start, own, room)
    value.solver.margin_kept = -math.inf
    if value.solver.margin is not None:
        own = mean(ground.mdp.start, fractions(value.solver.margin_lower))
        value.solver.margin_kept = _kept(start, own, room)


def _kept(start: Start, own: Fraction, room: Fraction) -> float:
    kept = start.share(own)
    if room and kept != -math.inf and not start.is_all_the_same:
        kept = Fraction(kept) - room - abs(Fraction(kept)) * Fraction(1, 1000)
    return -math.inf if kept == -math.inf else down(min(Fraction(kept), Fraction(1)))


def opened(part: Any) -> Any:
    """Claims of the package without the checks of their constructors."""
    if not hasattr(part, "__dataclass_fields__"):
        return part
    fields = part.__dataclass_fields__
    return SimpleNamespace(**{name: opened(getattr(part, name)) for name in fields})


def functions_of(value: Any) -> int:
    """How many functions are claimed, (cluster, name) by (cluster, name) or state by state."""
    count = 10 + int(value.constant_upper.shape[1]) + (value.solver.margin is not None)
    if value.learner is not None:
        count += 3 + 2 * (value.learner.converged is not None)
    return count


# -- what the verifier says ----------------------------------------------------------------------


def problem_of(value: Any, mdp: TabularMDP, gamma: float, mode: str, relation: str) -> str:
    """Why the verifier rejects a value of clusters that are taken for certified; "" if it does not.

    Any partition can have a value, but few can be certified.
    """
    labels = np.array(value.labels, np.int64)
    actions = _Actions(RELATIONS[relation], apart=None)
    radius = 0.0 if mdp.estimate is None else mdp.estimate.reward_radius
    states: Any = SimpleNamespace(low=mdp.rewards - radius, high=mdp.rewards + radius)
    try:
        with np.errstate(all="ignore"):
            claims: Any = SimpleNamespace(
                gamma=gamma,
                states=states,
                value=_read_value(
                    value, mdp, _Room(HERE), actions, labels_lower=labels, labels_upper=labels
                ),
            )
            check_value(claims, mdp, is_exact=mode == "exact")
    except VerificationError as error:
        return str(error)
    return ""


# -- the oracle ----------------------------------------------------------------------------------


def false_claims(
    value: Any, mdp: TabularMDP, gamma: float, *, averaged: TabularMDP | None = None
) -> list[str]:
    """Names of all claims that do not hold, episodes apart; the form of claims must be right.

    Args:
        value: The claims.
        mdp: The model that they are about.
        gamma: The discount.
        averaged: Whose rows the small environment averages, if not this model's: an estimate's,
            where the claims are held against the model that it is an estimate of.
    """
    ground = Ground(mdp, gamma, value.labels.tolist(), value.renaming)
    if averaged is not None:
        ground.averaged = Exact.of(averaged, gamma)
    labels, wrong = value.labels, []

    def check(name: str, values: Any, plan: Any, how: str, side: int, floor: Any = None) -> None:
        v = fractions(np.asarray(values))
        found = ground.by(plan, how, side)(v)
        if floor is not None:
            found = [max(x, y) for x, y in zip(found, floor, strict=True)]
        if any(side * (x - y) < 0 for x, y in zip(v, found, strict=True)):
            wrong.append(name)

    check("optimal_upper", value.optimal_upper, ground.own, "best", 1)
    optimal = [[a] for a in value.optimal_policy.tolist()]
    check("optimal_lower", value.optimal_lower, optimal, "worst", -1)
    check("policy_lower", value.policy_lower, ground.lifted(value.policy), "worst", -1)
    check("random_upper", value.random_upper, ground.own, "mean", 1)
    for a, column in enumerate(value.constant_upper.T):
        check("constant_upper", column, ground.constant(a), "mean", 1)
    check(
        "baseline_lower",
        value.baseline_lower,
        ground.constant(value.baseline_action),
        "mean",
        -1,
    )
    check("bracket.upper", value.bracket.upper[labels], ground.own, "best", 1)
    robust = ground.lifted(value.bracket.policy)
    check("bracket.lower", value.bracket.lower[labels], robust, "worst", -1)
    for name in ("solver", "learner"):
        box = getattr(value, name)
        if box is None:
            continue
        for side, what in ((1, "q_upper"), (-1, "q_lower")):
            q = [Fraction(float(getattr(box, what)[key])) for key in ground.rows]
            found = ground.box_step(side, is_mean=name == "solver")(q)
            if any(side * (x - y) < 0 for x, y in zip(q, found, strict=True)):
                wrong.append(f"{name}.{what}")
        inside = ground.inside(ground.best_between(box))
        if not all(inside):
            return [*wrong, f"{name}.q_lower"]  # nothing is left where bounds contradict each other
        check(f"{name}.lower", box.lower, inside, "worst", -1)
    margin = value.solver.margin
    if margin is not None:
        chosen = ground.used
        if math.isfinite(margin):
            chosen = ground.best_between(value.solver, 2 * Fraction(margin))
        check("solver.margin_lower", value.solver.margin_lower, ground.inside(chosen), "worst", -1)
    if value.learner is not None and value.learner.converged is not None:
        wrong += _false_converged(value, ground, check)
    return wrong + _false_numbers(value, ground)


def _false_converged(value: Any, ground: Ground, check: Callable[..., None]) -> list[str]:
    claims, wrong = value.learner.converged, []
    converging = Converging(ground, value.learner)
    chosen = {c: {b for b in used if claims.choices[c, b]} for c, used in ground.used.items()}
    for c, names in ground.best_between(value.learner).items():
        if any(not converging.is_beaten(c, b) for b in names - chosen[c]):
            wrong.append("learner.converged.choices")
    excess = fractions(claims.excess)
    if any(y > x for x, y in zip(excess, converging.step(chosen)(excess), strict=True)):
        wrong.append("learner.converged.excess")
    if not all(chosen.values()):
        return [*wrong, "learner.converged.choices"]
    floor = [converging.low[c] - x for c, x in zip(ground.labels, excess, strict=True)]
    check("learner.converged.lower", claims.lower, ground.inside(chosen), "worst", -1, floor)
    return wrong


def _false_numbers(value: Any, ground: Ground) -> list[str]:
    start, wrong, weights = Start(value, ground), [], ground.mdp.start
    for name, (low, high), least, most in (
        ("optimal_start", value.optimal_start, start.least, start.best),
        ("baseline_start", value.baseline_start, start.base_low, start.base_high),
    ):
        if low > least or high < most:
            wrong.append(name)
    upper = fractions(value.optimal_upper)
    for prefix, holder, lower in shares_of(value):
        own = mean(weights, fractions(lower))
        lost = max(u - v for u, v in zip(upper, fractions(lower), strict=True))
        if Fraction(holder.loss) < lost:
            wrong.append(f"{prefix}loss")
        if Fraction(holder.start_loss) < start.best - own:
            wrong.append(f"{prefix}start_loss")
        if holder.kept != -math.inf and holder.kept > min(start.share(own), 1):
            wrong.append(f"{prefix}kept")
    if value.solver.margin is not None and value.solver.margin_kept != -math.inf:
        own = mean(weights, fractions(value.solver.margin_lower))
        if value.solver.margin_kept > min(start.share(own), 1):
            wrong.append("solver.margin_kept")
    return wrong
