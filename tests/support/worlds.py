"""Tiny worlds: MDPs solved by hand, and strategies for random small ones of every kind."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from bisim_abstract import TabularMDP

# -- solved by hand ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """A model with its truth at one discount, as exact numbers.

    Attributes:
        name: For test ids.
        mdp: The model.
        gamma: The discount; the float is meant exactly.
        metric: (n, n) the bisimulation metric.
        labels: (n) bisimulation classes, numbered by first appearance.
        values: (n) optimal values.
    """

    name: str
    mdp: TabularMDP
    gamma: float
    metric: list[list[Fraction]]
    labels: list[int]
    values: list[Fraction]


def two_loops(gamma: float) -> Known:
    """Two states that stay for ever, one paid 1, the other nothing."""
    far = 1 / (1 - Fraction(gamma))
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [1.0, 0.0])
    return Known("two_loops", mdp, gamma, _symmetric(2, {(0, 1): far}), [0, 1], [far, Fraction(0)])


def countdown(gamma: float, n: int = 5) -> Known:
    """State i pays 1 and moves to i - 1; state 0 is the end. No transport anywhere."""
    g = Fraction(gamma)
    P = np.zeros((n, 1, n))
    P[0, 0, 0] = 1.0
    for i in range(1, n):
        P[i, 0, i - 1] = 1.0
    mdp = TabularMDP.from_dense(P, np.minimum(np.arange(n), 1.0), terminal_state=0)
    values = [sum((g**k for k in range(i)), Fraction(0)) for i in range(n)]
    # i > j: equal pay for j steps, then i - j steps against the end.
    metric = _symmetric(n, {(j, i): g**j * values[i - j] for i in range(n) for j in range(i)})
    return Known("countdown", mdp, gamma, metric, list(range(n)), values)


def coins(gamma: float) -> Known:
    """States 0 and 1 toss coins that show heads with 3/4 and 1/4; heads (2) pay for ever.

    State 4 tosses as 0 does: its mass is split between heads and their copy 5.
    """
    g = Fraction(gamma)
    P = np.zeros((6, 1, 6))
    P[0, 0, [2, 3]] = 0.75, 0.25
    P[1, 0, [2, 3]] = 0.25, 0.75
    P[4, 0, [2, 3, 5]] = 0.5, 0.25, 0.25
    P[2, 0, 2] = P[3, 0, 3] = P[5, 0, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    end = 1 / (1 - g)
    quarter = Fraction(1, 4)
    by_class = {
        (0, 1): g * 2 * quarter * end,
        (0, 2): 1 + g * quarter * end,
        (1, 2): 1 + g * 3 * quarter * end,
        (0, 3): g * 3 * quarter * end,
        (1, 3): g * quarter * end,
        (2, 3): end,
    }
    labels = [0, 1, 2, 3, 0, 2]
    table = _symmetric(4, by_class)
    values = [3 * quarter * g * end, quarter * g * end, end, Fraction(0)]
    return Known(
        "coins",
        mdp,
        gamma,
        [[table[x][y] for y in labels] for x in labels],
        labels,
        [values[x] for x in labels],
    )


def best_action(gamma: float) -> Known:
    """Only the second action tells 0 and 1 apart, only the first tells 0 and 2 apart."""
    P = np.zeros((4, 2, 4))
    P[:, :, 3] = 1.0
    rewards = [[1.0, 0.0], [1.0, 3.0], [-1.0, 1.0], [0.0, 0.0]]
    mdp = TabularMDP.from_dense(P, rewards, terminal_state=3)
    gaps = {(0, 1): 3, (0, 2): 2, (1, 2): 2, (0, 3): 1, (1, 3): 3, (2, 3): 1}
    metric = _symmetric(4, {pair: Fraction(gap) for pair, gap in gaps.items()})
    values = [Fraction(1), Fraction(3), Fraction(1), Fraction(0)]
    return Known("best_action", mdp, gamma, metric, [0, 1, 2, 3], values)


def wheel(gamma: float) -> Known:
    """Three states in a circle, paid 0, 1 and 3: distances follow each other for ever."""
    g = Fraction(gamma)
    P = np.zeros((3, 1, 3))
    P[0, 0, 1] = P[1, 0, 2] = P[2, 0, 0] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 1.0, 3.0])
    turn = 1 - g**3
    metric = _symmetric(
        3,
        {
            (0, 1): (1 + 2 * g + 3 * g**2) / turn,
            (1, 2): (2 + 3 * g + g**2) / turn,
            (0, 2): (3 + g + 2 * g**2) / turn,
        },
    )
    values = [(g + 3 * g**2) / turn, (1 + 3 * g) / turn, (3 + g**2) / turn]
    return Known("wheel", mdp, gamma, metric, [0, 1, 2], values)


def all_alike(gamma: float) -> Known:
    """Every state pays the same: one class, whatever the moves are."""
    P = np.array([[[0.5, 0.5, 0.0]], [[0.0, 0.0, 1.0]], [[1 / 3, 1 / 3, 1 / 3]]])
    value = 2 / (1 - Fraction(gamma))
    mdp = TabularMDP.from_dense(P, [2.0, 2.0, 2.0])
    return Known("all_alike", mdp, gamma, _symmetric(3, {}), [0, 0, 0], [value] * 3)


def one_state(gamma: float) -> Known:
    """A single state, paid -1.5."""
    mdp = TabularMDP.from_dense([[[1.0]]], [-1.5])
    value = Fraction(-3, 2) / (1 - Fraction(gamma))
    return Known("one_state", mdp, gamma, [[Fraction(0)]], [0], [value])


def _symmetric(n: int, entries: dict[tuple[int, int], Fraction]) -> list[list[Fraction]]:
    table = [[Fraction(0)] * n for _ in range(n)]
    for (s, t), value in entries.items():
        table[s][t] = table[t][s] = value
    return table


BY_HAND = [
    make(gamma)
    for make in (two_loops, countdown, coins, best_action, wheel, all_alike, one_state)
    for gamma in (0.0, 0.5, 0.9, 0.999)
]


# -- random small models -----------------------------------------------------------------------

KINDS = ("deterministic", "dyadic", "ratios", "tiny", "dense", "mixed")
TINY_MASSES = (1e-10, 1e-12, 2.0**-60, 1e-20, 1e-300)
FEW_REWARDS = (-1.0, 0.0, -0.0, 0.5, 1.0, 2.5)


def gammas(high: float = 0.999) -> st.SearchStrategy[float]:
    """Discounts from 0 to `high`, the usual ones often."""
    usual = [g for g in (0.0, 0.5, 0.9, 0.99, 0.999) if g <= high]
    return st.sampled_from(usual) | st.floats(0.0, high, exclude_min=True, allow_subnormal=False)


@st.composite
def rows(draw: st.DrawFn, n: int, kind: str) -> list[float]:
    """One dense row of n probabilities that sum to 1 up to rounding."""
    if kind == "mixed":
        kind = draw(st.sampled_from(KINDS[:-1]))
    row = [0.0] * n
    if kind == "deterministic":
        row[draw(st.integers(0, n - 1))] = 1.0
        return row
    if kind == "dense":
        weights = draw(st.lists(st.floats(1e-3, 1.0), min_size=n, max_size=n))
        return [w / sum(weights) for w in weights]
    support = draw(
        st.lists(st.integers(0, n - 1), min_size=1, max_size=min(n, 4), unique=True).map(list)
    )
    if kind == "dyadic":
        size = len(support) - 1
        cuts = draw(st.lists(st.integers(1, 15), min_size=size, max_size=size, unique=True))
        edges = [0, *sorted(cuts), 16]
        for k, state in enumerate(support):
            row[state] = (edges[k + 1] - edges[k]) / 16
    elif kind == "ratios":
        # Whole numbers over their sum: three times 1/3 and the like.
        parts = [draw(st.sampled_from((1, 1, 2, 3, 5, 7))) for _ in support]
        for state, part in zip(support, parts, strict=True):
            row[state] = part / sum(parts)
    else:
        row[support[0]] = 1.0
        for state in support[1:]:
            row[state] = draw(st.sampled_from(TINY_MASSES))
    return row


@st.composite
def rewards(draw: st.DrawFn, n: int, n_actions: int) -> list[list[float]]:
    """(n, n_actions) rewards: often equal, often off by the last bit, sometimes huge or tiny."""
    few = st.sampled_from(FEW_REWARDS)
    near = st.sampled_from((1.0, float(np.nextafter(1.0, 2.0))))
    any_size = st.sampled_from((-1e12, -3.0, 0.0, 1e-12, 7e11)) | st.floats(-10.0, 10.0)
    entry = draw(st.sampled_from((few, few, near, any_size)))
    line = st.lists(entry, min_size=n_actions, max_size=n_actions)
    return draw(st.lists(line, min_size=n, max_size=n))


@st.composite
def mdps(
    draw: st.DrawFn,
    max_states: int = 5,
    max_actions: int = 2,
    kinds: tuple[str, ...] = KINDS,
    min_states: int = 1,
) -> TabularMDP:
    """Small MDPs: one state or more, duplicate rows and rewards, absorbing states."""
    n = draw(st.integers(min_states, max_states))
    n_actions = draw(st.integers(1, max_actions))
    kind = draw(st.sampled_from(kinds))
    pool = draw(st.lists(rows(n, kind), min_size=1, max_size=4))
    pick = st.sampled_from(pool) | rows(n, kind)
    P = np.array([[draw(pick) for _ in range(n_actions)] for _ in range(n)])
    R = np.array(draw(rewards(n, n_actions)))
    for state in draw(st.sets(st.integers(0, n - 1), max_size=2)):
        P[state] = np.eye(n)[state]
        R[state] = 0.0
    return TabularMDP.from_dense(P, R, order="sas")


@st.composite
def policies(draw: st.DrawFn, mdp: TabularMDP) -> npt.NDArray[np.float64]:
    """Probabilities of actions, some of them 0, some tiny, in rows that sum to 1 up to rounding."""
    weight = st.sampled_from((0.0, 1.0, 1.0, 0.1, 1e-9, 1e-200, 5e-324)) | st.floats(0.0, 1.0)
    table = np.array([[draw(weight) for _ in range(mdp.n_actions)] for _ in range(mdp.n_states)])
    table[table.sum(axis=1) < 0.1, 0] = 1.0
    return np.asarray(table / table.sum(axis=1, keepdims=True))


def permuted(mdp: TabularMDP, order: npt.ArrayLike) -> TabularMDP:
    """The same model with state `order[k]` renamed to k, rows stored in the new order."""
    take = np.asarray(order, dtype=np.int64)
    P = dense(mdp)
    return TabularMDP.from_dense(P[take][:, :, take], mdp.rewards[take], order="sas")


def dense(mdp: TabularMDP) -> npt.NDArray[np.float64]:
    """(n_states, n_actions, n_states) the stored probabilities."""
    P = np.zeros((mdp.n_states, mdp.n_actions, mdp.n_states))
    for s in range(mdp.n_states):
        for a in range(mdp.n_actions):
            successors, probs = mdp.successors(s, a)
            P[s, a, successors] = probs
    return P


def scaled(mdp: TabularMDP, factor: float) -> TabularMDP:
    """The same model with all rewards multiplied."""
    return TabularMDP(
        indptr=mdp.indptr, indices=mdp.indices, probs=mdp.probs, rewards=mdp.rewards * factor
    )


# -- states that are alike after renaming actions ----------------------------------------------


def scrambled(
    mdp: TabularMDP, seed: int, *, n_states: int, n_actions: int
) -> tuple[TabularMDP, npt.NDArray[np.int64]]:
    """Copies of the states of a model, each with its actions permuted, doubled, and others missing.

    A copy leads to copies of what the original leads to, whichever, with the same masses; so all
    copies of a state can do the same things. About half of them have common names for these.
    Returns the model and what each state is a copy of.
    """
    rng = np.random.default_rng(seed)
    n, least = mdp.n_states, mdp.n_actions
    of = np.concatenate([np.arange(n), rng.integers(n, size=n_states - n)])
    P = np.zeros((n_states, n_actions, n_states))
    R = np.zeros((n_states, n_actions))
    available = np.zeros((n_states, n_actions), bool)
    for s in range(n_states):
        names = np.random.default_rng((seed, int(of[s]))) if rng.random() < 0.5 else rng
        count = int(names.integers(least, n_actions + 1))
        slots = names.permutation(n_actions)[:count]
        played = np.append(np.arange(least), names.integers(least, size=count - least))
        for slot, a in zip(slots, played, strict=True):
            available[s, slot] = True
            R[s, slot] = mdp.rewards[of[s], a]
            for t, mass in zip(*mdp.successors(int(of[s]), int(a)), strict=True):
                P[s, slot, rng.choice(np.flatnonzero(of == t))] += mass
    return TabularMDP.from_dense(P, R, order="sas", available=available), of


@st.composite
def scrambled_mdps(
    draw: st.DrawFn,
    max_states: int = 6,
    max_actions: int = 4,
    kinds: tuple[str, ...] = KINDS,
) -> TabularMDP:
    """Small models with mirror images, double actions, and states that lack some."""
    base = draw(mdps(max_states=3, kinds=kinds))
    n_states = draw(st.integers(base.n_states, max_states))
    n_actions = draw(st.integers(base.n_actions, max_actions))
    seed = draw(st.integers(0, 2**32 - 1))
    return scrambled(base, seed, n_states=n_states, n_actions=n_actions)[0]


def mirrored(length: int, noise: float = 0.0) -> TabularMDP:
    """A corridor with a prize at each end: state x and state -1 - x are mirror images.

    Two actions, left and right, which do what they say but with probability `noise` stay.
    """
    P = np.zeros((length, 2, length))
    R = np.zeros((length, 2))
    for x in range(length):
        for a, y in enumerate((max(x - 1, 0), min(x + 1, length - 1))):
            P[x, a, y] += 1.0 - noise
            P[x, a, x] += noise
    R[0, 0] = R[-1, 1] = 1.0
    return TabularMDP.from_dense(P, R, order="sas")
