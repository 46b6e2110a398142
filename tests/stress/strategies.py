"""Small models of every awkward kind, and the draws that all targets share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from bisim_abstract import TabularMDP
from tests.support import worlds

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

SIZES = (2, 2, 3, 3, 4, 4, 5, 6, 7, 8)
GAMMAS = (0.9, 0.0, 0.5, 0.99, 0.999)
TINY_MASSES = (*worlds.TINY_MASSES, 1e-100, 5e-324)
ROWS = ("deterministic", "dyadic", "ratios", "sparse", "dense", "tiny", "loose")


def pick(draw: st.DrawFn, choices: Sequence[T]) -> T:
    """One of a sequence, as it is; the first is the simplest."""
    return draw(st.sampled_from(choices))


def words(text: str) -> list[str]:
    """Words as a list: long ones are easier to read as one text."""
    return text.split()


def is_drawn(draw: st.DrawFn, share: float) -> bool:
    """True in about this share of the cases; False is simpler."""
    return draw(st.integers(0, 99)) >= round(100 * (1.0 - share))


@st.composite
def rarely(draw: st.DrawFn, share: float, values: st.SearchStrategy[T]) -> T | None:
    """None except in about this share of the cases."""
    return draw(values) if is_drawn(draw, share) else None


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Powers of 10."""
    return st.floats(low, high).map(lambda exponent: float(10.0**exponent))


@st.composite
def gammas(draw: st.DrawFn, *, patience: float = 1.0) -> float:
    """One of the usual discounts, or any; of those near 1 only this share is kept."""
    gamma = (
        draw(st.floats(0.0, 0.999, allow_subnormal=False))
        if is_drawn(draw, 0.1)
        else pick(draw, GAMMAS)
    )
    return gamma if gamma <= 0.99 or patience == 1.0 or is_drawn(draw, patience) else 0.9


def weights(n: int) -> st.SearchStrategy[Floats]:
    """(n) probabilities, none of them 0."""
    return st.lists(st.floats(1e-3, 1.0), min_size=n, max_size=n).map(
        lambda w: np.array(w) / sum(w)
    )


def whole(n: int, top: int) -> st.SearchStrategy[npt.NDArray[np.int64]]:
    """(n) whole numbers below `top`."""
    return st.lists(st.integers(0, top - 1), min_size=n, max_size=n).map(np.array)


@st.composite
def rows(draw: st.DrawFn, n: int, kind: str) -> Floats:
    """(n) probabilities that sum to 1, exactly, up to rounding, or within the tolerance only."""
    if kind == "mixed":
        kind = pick(draw, ROWS)
    if kind in ("deterministic", "dyadic", "ratios"):
        return np.array(draw(worlds.rows(n, kind)))
    if kind == "dense":
        return draw(weights(n))
    row, states = np.zeros(n), st.integers(0, n - 1)
    support = draw(st.lists(states, min_size=1, max_size=min(n, 4), unique=True))
    if kind == "tiny":
        row[support] = [1.0, *(pick(draw, TINY_MASSES) for _ in support[1:])]
        return row
    row[support] = draw(weights(len(support)))
    if kind == "loose":  # the sum misses 1 by nearly all that is allowed
        row *= 1.0 + draw(st.floats(-9e-10, 9e-10))
    return row


@st.composite
def rewards(draw: st.DrawFn, n: int, n_actions: int) -> Floats:
    """(n, n_actions) rewards from 5e-324 to 1e290, often equal, often off by the last bit."""
    normal, huge = st.floats(-3.0, 3.0), pick(draw, (1e40, 1e150, 1e200, 1e290))
    kinds: dict[str, st.SearchStrategy[float]] = {
        "few": st.sampled_from(worlds.FEW_REWARDS),
        "unit": st.floats(0.0, 1.0),
        "equal": st.just(draw(normal)),
        "last bit": st.sampled_from((1.0, float(np.nextafter(1.0, 2.0)), 1.0 - 2.0**-53)),
        "tiny": normal.map(lambda x: x * 1e-300),
        "huge": normal.map(lambda x: x * huge),
        "any size": st.builds(
            lambda x, e: x * 10.0**e, st.sampled_from((1.0, -1.0)), st.integers(-300, 150)
        ),
        "denormal": st.sampled_from((0.0, 5e-324, -5e-324, 1e-310, 2.2e-308)),
    }
    entry = kinds[pick(draw, list(kinds))]
    size = n * n_actions
    return np.array(draw(st.lists(entry, min_size=size, max_size=size))).reshape(n, n_actions)


@st.composite
def models(draw: st.DrawFn, *, max_states: int = 8) -> TabularMDP:
    """2 to 8 states and 1 to 3 actions: duplicates, absorbing states, extreme numbers."""
    n, n_actions = min(pick(draw, SIZES), max_states), draw(st.integers(1, 3))
    kind = pick(draw, (*ROWS, "mixed"))
    P = np.array([[draw(rows(n, kind)) for _ in range(n_actions)] for _ in range(n)])
    R = draw(rewards(n, n_actions))
    states, terminal = st.integers(0, n - 1), None
    if is_drawn(draw, 0.4):  # duplicates: exact copies of other states
        for s, t in draw(st.lists(st.tuples(states, states), min_size=1, max_size=n - 1)):
            P[s], R[s] = P[t], R[t]
    if is_drawn(draw, 0.3):
        for s in draw(st.lists(states, min_size=1, max_size=2)):
            P[s], R[s] = np.eye(n)[s], 0.0
            terminal = s
    if draw(st.booleans()):
        terminal = None
    start = draw(rarely(0.3, weights(n)))
    return TabularMDP.from_dense(P, R, order="sas", terminal_state=terminal, start=start)
