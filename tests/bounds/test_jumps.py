"""Jumps of the arms: near the fixed point, and bounds whatever the guess was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisim_abstract import Resources, TabularMDP, bisimulation_metric, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._bounds.jumps import CHUNK, can_jump, jump
from bisim_abstract._prove.making import make_certificate
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.support.blocks import Floats, partition, small_mdp
from tests.support.examples import grid
from tests.support.oracles import check_inequalities

ONE = Resources(threads=1)
GAMMAS = (0.5, 0.9, 0.99, 0.999)


def arms_of(mdp: TabularMDP, gamma: float, kind: str, seed: int, share: float = 1.0) -> Arms:
    """Arms over states ("states") or blocks, with a share of the pairs covered."""
    model = None if kind == "states" else build_blocks(mdp, partition(mdp, kind, seed))
    arms = Arms(mdp, gamma, model=model, resources=ONE)
    arms.start_diagonal()
    s, t = np.triu_indices(arms.n)
    use = np.random.default_rng([seed, 5]).random(s.size) < share
    arms.cover(s[use], t[use])
    return arms


def lifted(arms: Arms) -> tuple[Floats, Floats]:
    """(n_states, n_states) what the arms say of all pairs of states; 0 of equal ones."""
    labels = arms.model.labels
    lower, upper = (x.copy() for x in arms.bounds(labels[:, None], labels))
    for table in (lower, upper):
        np.fill_diagonal(table, 0.0)
    return lower, upper


def check_sound(arms: Arms) -> None:
    """Proven in fractions, and around the exact metric."""
    lower, upper = lifted(arms)
    if arms.mdp.estimate is None:
        check_inequalities(arms.mdp, arms.gamma, lower, upper)
    exact = bisimulation_metric(arms.mdp, arms.gamma, resources=ONE)
    assert (lower <= exact.upper).all()
    assert (upper >= exact.lower).all()
    first, second = arms.pairs()
    assert not arms.lower[first == second].any()


def verified(arms: Arms, mode: str) -> None:
    """The verifier agrees to what these arms say, as pairs of states or as a level."""
    table = arms
    if arms.n < arms.mdp.n_states or not arms.model.is_point.all():
        table = Arms(arms.mdp, arms.gamma, resources=ONE)
        table.add_level(arms.level())
    verify(
        arms.mdp, make_certificate(table, tau=None, stop="", run={}), mode=mode
    ).raise_if_rejected()


@grid(seed=range(8), kind=["states", "random", "one", "classes"])
def test_jumps_prove_themselves(seed: int, kind: str) -> None:
    mdp = small_mdp(seed)
    arms = arms_of(mdp, GAMMAS[seed % 4], kind, seed, share=(1.0, 0.5)[seed % 3 == 0])
    before = lifted(arms)
    for is_upper in (True, False):
        jump(arms, is_upper=is_upper)
        check_sound(arms)
    now = lifted(arms)
    assert (now[0] >= before[0]).all()
    assert (now[1] <= before[1]).all()
    for mode in ("float", "exact"):
        verified(arms, mode)


def guesses(arms: Arms, truth: Floats, rng: np.random.Generator) -> dict[str, Floats]:
    """(covered) tables that nobody should believe, from nearly right to nonsense."""
    count, top = arms.n_covered, arms.starts.diameter
    far = truth * (1.0 + 1e-9)
    return {
        "nothing": np.zeros(count),
        "random": top * rng.random(count),
        "small": 1e-3 * top * rng.random(count),
        "negative": -top * rng.random(count),
        "half": 0.5 * truth,
        "double": 2.0 * truth,
        "a little less": truth * (1.0 - 1e-9),
        "a little more": far,
        "one wrong": np.where(np.arange(count) == count // 2, 0.0, far),
        "not a number": np.full(count, np.nan),
        "endless": np.full(count, np.inf),
    }


@grid(seed=range(6), kind=["states", "random", "one"])
def test_no_guess_is_believed(seed: int, kind: str) -> None:
    mdp, rng = small_mdp(seed), np.random.default_rng([seed, 6])
    gamma = GAMMAS[seed % 4]
    exact = bisimulation_metric(mdp, gamma, resources=ONE)
    probe = arms_of(mdp, gamma, kind, seed)
    labels = probe.model.labels
    first, second = probe.pairs()
    # What the metric says of members, the largest distance for the upper arm to fall below.
    truth = np.array(
        [
            exact.upper[np.ix_(labels == c, labels == d)].max()
            for c, d in zip(first.tolist(), second.tolist(), strict=True)
        ]
    )
    for name, guess in guesses(probe, truth, rng).items():
        arms = arms_of(mdp, gamma, kind, seed)
        for is_upper in (True, False):
            before = lifted(arms)
            moved = arms.adopt(guess, is_upper=is_upper)
            now = lifted(arms)
            assert moved >= 0.0, name
            assert (now[0] >= before[0]).all(), name
            assert (now[1] <= before[1]).all(), name
            check_sound(arms)


def test_what_lies_a_little_inside_is_moved_outward() -> None:
    mdp = sparse_mdp(7, 2, support=3, seed=3)
    exact = bisimulation_metric(mdp, 0.99, resources=ONE)
    arms = arms_of(mdp, 0.99, "states", 0)
    s, t = arms.pairs()
    assert arms.adopt(exact.lower[s, t] * (1.0 - 1e-9), is_upper=True) > 0.0
    assert arms.adopt(exact.upper[s, t] * (1.0 + 1e-9), is_upper=False) > 0.0
    check_sound(arms)
    assert float((arms.upper - arms.lower).max()) <= 1e-6 * exact.diameter[1]


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("n_actions", [1, 2, 3])
def test_a_jump_reaches_the_metric(n_actions: int, gamma: float) -> None:
    seed = n_actions
    mdp = sparse_mdp(12, n_actions, support=3, seed=seed)
    exact = bisimulation_metric(mdp, gamma, resources=ONE)
    arms = arms_of(mdp, gamma, "states", seed)
    for is_upper in (True, False):
        jump(arms, is_upper=is_upper)
    lower, upper = lifted(arms)
    # Up to a residual of 1e-13 of the largest distance, over 1 - gamma.
    assert float((upper - exact.lower).max()) <= 1e-9 * arms.starts.diameter
    assert float((exact.upper - lower).max()) <= 1e-9 * arms.starts.diameter


def test_a_guess_of_diameters_does_not_spoil_the_rest_of_it() -> None:
    mdp, labels = grouped_mdp(24, 4, 2, noise=0.01, support=2, seed=4)
    arms = Arms(mdp, 0.9, model=build_blocks(mdp, labels), resources=ONE)
    arms.cover_all()
    jumped = Arms(mdp, 0.9, model=arms.model, resources=ONE)
    jumped.cover_all()
    assert jump(jumped, is_upper=False) > 0.0
    first, second = arms.pairs()
    guess = np.where(first == second, arms.starts.diameter, jumped.lower)
    assert arms.adopt(guess, is_upper=False) > 0.0
    np.testing.assert_allclose(arms.lower, jumped.lower, atol=1e-9)
    check_sound(arms)


@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_a_jump_of_blocks_reaches_what_sweeps_do(gamma: float) -> None:
    mdp, labels = grouped_mdp(60, 5, 2, noise=0.001, support=3, seed=2)
    model = build_blocks(mdp, labels)
    swept, jumped = (Arms(mdp, gamma, model=model, resources=ONE) for _ in range(2))
    for arms in (swept, jumped):
        arms.start_diagonal()
        arms.cover_all()
    while max(swept.sweep()) > 1e-12:
        pass
    for is_upper in (True, False):
        jump(jumped, is_upper=is_upper)
    np.testing.assert_allclose(jumped.lower, swept.lower, atol=1e-7)
    np.testing.assert_allclose(jumped.upper, swept.upper, atol=1e-7)


@grid(seed=range(6), kind=["states", "random"], is_upper=[True, False])
def test_couplings_say_where_a_backup_came_from(seed: int, kind: str, is_upper: bool) -> None:
    mdp = small_mdp(seed) if seed else sparse_mdp(6, 1, support=3, seed=1)
    arms = arms_of(mdp, 0.9, kind, seed)
    costs = arms.ground_costs(is_upper=is_upper)
    found = arms.coupled_backup(costs, is_upper=is_upper)
    plain = arms.backup(costs, is_upper=is_upper)
    np.testing.assert_array_equal(found[:, 0], plain)
    lines = found[:, 1:].reshape(arms.n_covered, arms.model.n_actions, -1)
    width = lines.shape[2] // 2
    places, masses = lines[..., 1 : 1 + width].astype(np.int64), lines[..., 1 + width :]
    assert (masses >= 0.0).all()
    assert (masses.sum(axis=2) <= 1.0 + 1e-9).all()
    values = lines[..., 0] + 0.9 * (masses * costs[places]).sum(axis=2)
    np.testing.assert_allclose(np.maximum(values.max(axis=1), 0.0), plain, atol=1e-12)


def test_the_number_of_threads_does_not_matter() -> None:
    mdp = sparse_mdp(280, 2, support=2, seed=1)
    found: list[Any] = []
    for threads in (1, 3):
        arms = Arms(mdp, 0.95, resources=Resources(threads=threads))
        arms.cover_all()
        assert arms.n_covered > CHUNK
        for is_upper in (True, False):
            assert jump(arms, is_upper=is_upper, tol=1e-3) > 0.0
        found.append((arms.lower, arms.upper))
    np.testing.assert_array_equal(found[0], found[1])


def test_nothing_to_gain_is_no_error() -> None:
    mdp = sparse_mdp(6, 2, support=2, seed=0)
    for arms in (Arms(mdp, 0.9, resources=ONE), arms_of(mdp, 0.0, "states", 0)):
        assert not can_jump(arms)
        assert jump(arms, is_upper=True) == 0.0
    flat = TabularMDP.from_dense(np.eye(3)[:, None, :], [1.0, 1.0, 1.0])
    arms = arms_of(flat, 0.9, "states", 0)
    assert jump(arms, is_upper=False) == 0.0
    check_sound(arms)
