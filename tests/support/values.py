"""Values of small models in exact arithmetic, and random models to take them of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import TabularMDP
from bisim_abstract._abstract.value_proof import GroundValues
from bisim_abstract._model.estimation import Estimate
from tests.support.oracles import fractions, lifted_exact

Ints = npt.NDArray[np.int64]


Row = dict[int, Fraction]


Values = Sequence[Fraction]


GAMMAS = (0.0, 0.5, 0.9, 0.99)


KERNELS = ("dense", "sparse", "deterministic", "skewed")


REWARDS = ("plain", "negative", "offset", "tiny", "zero", "few", "huge")


MOST_ROUNDS = 300  # of tightening; an endless loop fails instead of hanging


# -- exact truth -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    """A model whose numbers are fractions; each row is divided by its exact sum."""

    rewards: list[list[Fraction]]
    rows: list[list[Row]]
    gamma: Fraction

    @classmethod
    def of(cls, mdp: TabularMDP, gamma: float) -> Exact:
        same = range(mdp.n_states)
        return cls(
            [[Fraction(r) for r in line] for line in mdp.rewards.tolist()],
            [[lifted_exact(mdp, same, s, a) for a in range(mdp.n_actions)] for s in same],
            Fraction(gamma),
        )

    def q(self, values: Values, s: int, a: int) -> Fraction:
        ahead = sum((p * values[t] for t, p in self.rows[s][a].items()), Fraction(0))
        return self.rewards[s][a] + self.gamma * ahead

    def values_of(self, weights: Sequence[Sequence[Fraction]]) -> list[Fraction]:
        """Values of a policy of action probabilities, by elimination in whole numbers."""
        n = len(self.rewards)
        system = []
        for s in range(n):
            line = [Fraction(int(s == t)) for t in range(n)] + [Fraction(0)]
            for a, weight in enumerate(weights[s]):
                if weight:
                    line[n] += weight * self.rewards[s][a]
                    for t, p in self.rows[s][a].items():
                        line[t] -= self.gamma * weight * p
            system.append(line)
        return solved(system)

    def of_actions(self, actions: Sequence[int]) -> list[Fraction]:
        count = len(self.rewards[0])
        return self.values_of([[Fraction(int(a == b)) for b in range(count)] for a in actions])

    def for_ever(self, action: int, available: npt.NDArray[np.bool_]) -> list[Fraction]:
        """One action for ever; where a state lacks it, all of its own with equal chances."""
        weights = []
        for line in available.tolist():
            own = [a == action for a in range(len(line))] if line[action] else line
            weights.append([Fraction(int(is_one), sum(own)) for is_one in own])
        return self.values_of(weights)

    def baseline(
        self, available: npt.NDArray[np.bool_], start: npt.NDArray[np.float64]
    ) -> Fraction:
        """The best start value of a policy that does not look at the state."""
        count = len(self.rewards[0])
        each = [self.for_ever(a, available) for a in range(count)]
        return max(mean(start, values) for values in [self.at_random(available), *each])

    def least_inside(self, allowed: Sequence[Sequence[int]]) -> list[Fraction]:
        """The least that any policy is worth that plays inside a set of actions of each state.

        Policy iteration that minimises: one policy is worst from everywhere at once.
        """
        choice = [line[0] for line in allowed]
        while True:
            values = self.of_actions(choice)
            worse = list(choice)
            for s, line in enumerate(allowed):
                q = {a: self.q(values, s, a) for a in line}
                least = min(q.values())
                if q[choice[s]] > least:
                    worse[s] = next(a for a in line if q[a] == least)
            if worse == choice:
                return values
            choice = worse

    def at_random(self, available: npt.NDArray[np.bool_]) -> list[Fraction]:
        return self.values_of(
            [[Fraction(int(has_it), sum(line)) for has_it in line] for line in available.tolist()]
        )

    def optimal(self, first: Sequence[int]) -> list[Fraction]:
        """By policy iteration; it ends where no action is better, exactly."""
        choice = list(first)
        while True:
            values = self.of_actions(choice)
            better = self.greedy(values, choice)
            if better == choice:
                return values
            choice = better

    def greedy(self, values: Values, choice: Sequence[int] | None = None) -> list[int]:
        """The best actions by values, those chosen already where they are among the best."""
        best = []
        for s, line in enumerate(self.rewards):
            q = [self.q(values, s, a) for a in range(len(line))]
            is_best = choice is not None and q[choice[s]] == max(q)
            best.append(choice[s] if choice is not None and is_best else q.index(max(q)))
        return best


def solved(system: list[list[Fraction]]) -> list[Fraction]:
    """Solve a system [A | b] whose diagonal dominates, fraction-free."""
    n = len(system)
    lines = []
    for line in system:
        unit = 1
        for x in line:
            unit = max(unit, x.denominator) if unit % x.denominator == 0 else unit * x.denominator
        lines.append([int(x * unit) for x in line])
    before = 1
    for k in range(n):
        pivot = lines[k][k]
        assert pivot != 0
        for i in range(n):
            if i != k:
                factor = lines[i][k]
                lines[i] = [
                    (pivot * x - factor * y) // before
                    for x, y in zip(lines[i], lines[k], strict=True)
                ]
        before = pivot
    return [Fraction(lines[k][n], lines[k][k]) for k in range(n)]


def mean(start: npt.NDArray[np.float64], values: Values) -> Fraction:
    weights = [Fraction(w) for w in start.tolist()]
    return sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0)) / sum(weights)


def check_inequality(
    mdp: TabularMDP,
    model: Exact,
    values: npt.NDArray[np.float64],
    side: int,
    policy: Sequence[int | Sequence[int]] | str,
) -> None:
    """One backup of one function, with the radii of an estimate.

    Args:
        mdp: The model.
        model: The same in exact arithmetic.
        values: The function.
        side: 1 if it bounds values from above, -1 from below.
        policy: "best", "mean", "for ever 2", or what each state does: an action, or a set of
            actions of which the least counts.
    """
    v = fractions(values)
    for s in range(mdp.n_states):
        found = []
        for a in range(mdp.n_actions):
            found.append(backup_exact(mdp, model, v, s, a, side))
        own = [q for q, has_it in zip(found, mdp.available[s], strict=True) if has_it]
        told = policy if isinstance(policy, str) else policy[s]
        if isinstance(told, str) and told.startswith("for ever "):
            action = int(told.removeprefix("for ever "))
            told = action if mdp.available[s, action] else "mean"
        if told == "best":
            whole = max(found)
        elif told == "mean":
            whole = sum(own, Fraction(0)) / len(own)
        elif isinstance(told, int):
            whole = found[told]
        else:
            assert not isinstance(told, str)
            whole = min(found[a] for a in told)
        assert side * (v[s] - whole) >= 0, (s, float(v[s]), float(whole))


def backup_exact(
    mdp: TabularMDP, model: Exact, values: Values, s: int, a: int, side: int
) -> Fraction:
    """What an action is worth before values; the most (1) or the least (-1) for an estimate."""
    if mdp.estimate is None:
        return model.q(values, s, a)
    ahead = extreme(mdp, model, values, s, a, side)
    return reward_end(mdp, s, a, side) + model.gamma * ahead


def reward_end(mdp: TabularMDP, s: int, a: int, side: int) -> Fraction:
    """The largest (1) or least (-1) reward that an estimate leaves possible."""
    assert mdp.estimate is not None
    middle = Fraction(float(mdp.rewards[s, a]))
    end = middle + side * Fraction(float(mdp.estimate.reward_radius[s, a]))
    last = Fraction(mdp.estimate.reward_range[side > 0])
    return side * min(side * end, max(side * last, side * middle))


def extreme(mdp: TabularMDP, model: Exact, values: Values, s: int, a: int, side: int) -> Fraction:
    """The largest (1) or least (-1) mean of values by a row within the radius of the estimate's.

    Unit by unit: the mass with the worst values moves to where they are best.
    """
    assert mdp.estimate is not None
    radius, blocks = mdp.estimate.row_radius, mdp.estimate.blocks
    if blocks is not None and mdp.estimate.block_radius is not None:
        pairs = set(zip(blocks.tolist(), values, strict=True))
        if len(pairs) == len({block for block, _ in pairs}):  # one value for each block
            radius = mdp.estimate.block_radius
    left = Fraction(float(radius[s, a]))
    best = max(side * v for v in values)
    total = Fraction(0)
    for worth, p in sorted((side * values[t], p) for t, p in model.rows[s][a].items()):
        moved = min(left, p)
        left -= moved
        total += moved * best + (p - moved) * worth
    return side * total


def largest_span(mdp: TabularMDP, gamma: Fraction) -> Fraction:
    """All that values could differ by, whichever true model it is."""
    rewards = fractions(mdp.rewards.ravel())
    radii = [Fraction(0)] * len(rewards)
    if mdp.estimate is not None:
        radii = fractions(mdp.estimate.reward_radius.ravel())
    high = max(r + away for r, away in zip(rewards, radii, strict=True))
    low = min(r - away for r, away in zip(rewards, radii, strict=True))
    return (high - low) / (1 - gamma)


# -- random models -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    mdp: TabularMDP
    gamma: float
    labels: Ints
    is_plain: bool  # whether rounding is far below what is lost


def random_case(seed: int, *, max_states: int = 6) -> Case:
    """A small model of any kind, a discount and a partition."""
    rng = np.random.default_rng([77, seed])
    n = int(rng.integers(1, max_states + 1))
    n_actions = int(rng.integers(1, 4))
    kernel, reward = str(rng.choice(KERNELS)), str(rng.choice(REWARDS))
    P = np.zeros((n, n_actions, n))
    for s in range(n):
        for a in range(n_actions):
            P[s, a] = random_row(rng, n, kernel)
    R = rng.random((n, n_actions))
    if reward == "negative":
        R = -R
    elif reward == "offset":
        R += 10.0 ** rng.integers(1, 13) * rng.choice([-1.0, 1.0])
    elif reward == "tiny":
        R *= 10.0 ** -float(rng.choice([12, 100, 300, 307, 312]))
    elif reward == "zero":
        R[:] = 0.0
    elif reward == "few":
        R = rng.choice([0.0, 0.0, 1.0, -1.0], size=R.shape)
    elif reward == "huge":
        R *= 10.0 ** float(rng.choice([9, 100, 290]))
    terminal = None
    if n > 1 and rng.random() < 0.5:
        terminal = int(rng.integers(n))
        P[terminal], R[terminal] = np.eye(n)[terminal], 0.0
    weights = np.eye(n)[rng.integers(n)] if rng.random() < 0.5 else rng.dirichlet(np.ones(n))
    mdp = TabularMDP.from_dense(P, R, order="sas", terminal_state=terminal, start=weights)
    labels = rng.integers(0, int(rng.integers(1, n + 1)), n)
    return Case(
        mdp, float(rng.choice(GAMMAS)), labels.astype(np.int64), reward in ("plain", "negative")
    )


def random_row(rng: np.random.Generator, n: int, kernel: str) -> npt.NDArray[np.float64]:
    row = np.zeros(n)
    if kernel == "dense":
        return np.asarray(rng.dirichlet(np.ones(n)))
    if kernel == "skewed":
        row[rng.integers(n)] = 1.0
        row[rng.integers(n)] += float(rng.choice([1e-10, 1e-20, 1e-300]))
        return np.asarray(row / row.sum())
    support = rng.permutation(n)[: 1 if kernel == "deterministic" else int(rng.integers(1, 4))]
    row[support] = rng.dirichlet(np.ones(support.size))
    return row


def limit_tightening(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GroundValues.tighten

    def counted(self: GroundValues, tol: float, guess: npt.NDArray[np.float64]) -> Any:
        calls = self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
        assert calls <= MOST_ROUNDS, "tightening does not come to an end"
        return plain(self, tol, guess)

    monkeypatch.setattr(GroundValues, "tighten", counted)


# -- bounds of known models ----------------------------------------------------------------------


NOTHING_TO_LOSE = {
    "no rewards": TabularMDP.from_dense(np.eye(3)[[1, 2, 0]][:, None, :], np.zeros((3, 1))),
    "no rewards, an end": TabularMDP.from_dense(
        np.eye(3)[[2, 2, 2]][:, None, :], np.zeros((3, 1)), terminal_state=2
    ),
    "one state": TabularMDP.from_dense(np.ones((1, 2, 1)), [[1.0, 1.0]]),
    "one class": TabularMDP.from_dense(np.full((3, 2, 3), 1 / 3), np.ones((3, 2))),
    "one action": TabularMDP.from_dense(np.full((3, 1, 3), 1 / 3), [1.0, 2.0, 4.0]),
    "one action, start value 0": TabularMDP.from_dense(
        np.eye(3)[[2, 2, 2]][:, None, :], [1.0, -1.0, 0.0], terminal_state=2
    ),
    "one action, late reward": TabularMDP.from_dense(
        np.eye(100)[[*range(1, 100), 99]][:, None, :],
        np.eye(100)[98],
        terminal_state=99,
        start=np.eye(100)[0],
    ),
    "all actions alike": TabularMDP.from_dense(
        np.repeat(np.full((3, 1, 3), 1 / 3), 2, axis=1), [[1.0, 1.0], [2.0, 2.0], [-3.0, -3.0]]
    ),
}


# -- estimated models ----------------------------------------------------------------------------


def with_equal_radii(mdp: TabularMDP, radius: float) -> TabularMDP:
    """The same as an estimate whose rewards and rows all have one radius."""
    shape = mdp.rewards.shape
    estimate = Estimate(
        counts=np.ones(shape, np.int64),
        reward_radius=np.full(shape, radius),
        row_radius=np.full(shape, radius),
        alpha=0.05,
        reward_range=paid_range(mdp, np.full(shape, radius)),
        support_bound=mdp.n_states,
    )
    return replace(mdp, estimate=estimate)


def paid_range(mdp: TabularMDP, radius: npt.NDArray[np.float64]) -> tuple[float, float]:
    """A range that radii do not leave."""
    low, high = float((mdp.rewards - radius).min()), float((mdp.rewards + radius).max())
    return float(np.nextafter(low, -np.inf)), float(np.nextafter(high, np.inf))


# -- estimated models ----------------------------------------------------------------------------


def with_radii(mdp: TabularMDP, seed: int, *, scale: float | None = None) -> TabularMDP:
    """The same as an estimate with radii from nothing to everything; the end is known."""
    rng = np.random.default_rng([5, seed])
    shape = mdp.rewards.shape
    size = float(np.abs(mdp.rewards).max()) if scale is None else scale
    row = np.minimum(10.0 ** rng.uniform(-5, 0.5, shape), 1.0) * (rng.random(shape) < 0.7)
    reward = size * 10.0 ** rng.uniform(-6, 0, shape) * (rng.random(shape) < 0.7)
    if mdp.terminal_state is not None:
        row[mdp.terminal_state] = reward[mdp.terminal_state] = 0.0
    estimate = Estimate(
        counts=np.ones(shape, np.int64),
        reward_radius=reward,
        row_radius=row,
        alpha=0.05,
        reward_range=paid_range(mdp, reward),
        support_bound=mdp.n_states,
    )
    return replace(mdp, estimate=estimate)
