"""The two arms: proven in exact arithmetic at every sweep, and tight as the theory says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import InvalidArgumentError, Resources, TabularMDP, bisimulation_metric
from bisim_abstract._bounds.arms import CHUNK, Arms
from bisim_abstract.parts import Estimate, grouped_mdp, random_mdp, sparse_mdp
from tests.support.examples import grid
from tests.support.oracles import backup_exact, check_inequalities
from tests.support.worlds import BY_HAND, Known, dense, gammas, mdps, scaled

Floats = npt.NDArray[np.float64]
Pair = tuple[int, int]

LOWER = ("reward", "zero")
UPPER = ("reward", "constant")
BOTH_STARTS = list(itertools.product(LOWER, UPPER))
starts = st.sampled_from(BOTH_STARTS)
# Discounts below the normal range of a product have a test of their own.
discounts = gammas().map(lambda gamma: gamma if gamma > 1e-9 else 0.0)


def all_pairs(n: int) -> list[Pair]:
    return list(itertools.combinations(range(n), 2))


def pair_sets(n: int) -> st.SearchStrategy[list[Pair]]:
    """Any set of pairs, in any order and orientation; few, many and all are equally likely."""
    pairs = all_pairs(n)
    if not pairs:
        return st.just([])
    either = st.sampled_from([*pairs, *((t, s) for s, t in pairs)])
    few = st.lists(either, max_size=4)
    left_out = st.sets(st.sampled_from(pairs), max_size=3)
    many = left_out.map(lambda out: [pair for pair in pairs if pair not in out])
    return few | many | st.just(pairs)


@st.composite
def worlds(draw: st.DrawFn, max_states: int = 5, min_states: int = 1) -> tuple[Arms, list[Pair]]:
    """Arms of a random model with nothing covered yet, and pairs to cover."""
    mdp = draw(mdps(max_states, 3, min_states=min_states))
    lower, upper = draw(starts)
    arms = Arms(
        mdp, draw(discounts), lower_start=lower, upper_start=upper, resources=Resources(threads=1)
    )
    return arms, draw(pair_sets(mdp.n_states))


def cover(arms: Arms, pairs: Iterable[Pair]) -> int:
    listed = list(pairs)
    return arms.cover([s for s, _ in listed], [t for _, t in listed])


def covered_pairs(arms: Arms) -> set[Pair]:
    s, t = arms.pairs()
    return set(zip(s.tolist(), t.tolist(), strict=True))


def tables(arms: Arms) -> tuple[Floats, Floats]:
    """(n, n) both arms over all pairs, covered or not."""
    states = np.arange(arms.mdp.n_states)
    return arms.bounds(states[:, None], states)


def reward_gap(mdp: TabularMDP, s: int, t: int) -> Fraction:
    x, y = mdp.rewards[s].tolist(), mdp.rewards[t].tolist()
    return max(abs(Fraction(a) - Fraction(b)) for a, b in zip(x, y, strict=True))


def top_exact(mdp: TabularMDP, gamma: float) -> Fraction:
    """L/(1 - gamma)."""
    span = max((reward_gap(mdp, s, t) for s, t in all_pairs(mdp.n_states)), default=Fraction(0))
    return span / (1 - Fraction(gamma))


def check_form(arms: Arms) -> None:
    """Order, symmetry, zero diagonal, the stored arrays and what bounds() reads of them."""
    lower, upper = tables(arms)
    assert np.isfinite(upper).all()
    assert (lower >= 0.0).all()
    assert (lower <= upper).all()
    for table in (lower, upper):
        np.testing.assert_array_equal(table, table.T)
        assert not np.diag(table).any()
    s, t = arms.pairs()
    assert (s < t).all()
    np.testing.assert_array_equal(arms.keys, s * arms.mdp.n_states + t)
    assert (np.diff(arms.keys) > 0).all()
    np.testing.assert_array_equal(lower[s, t], arms.lower)
    np.testing.assert_array_equal(upper[s, t], arms.upper)


def settle(arms: Arms) -> int:
    """Sweep until nothing moves; how many sweeps that took."""
    for sweep in range(100_000):
        if arms.sweep() == (0.0, 0.0):
            return sweep
    raise AssertionError("the arms never come to rest")


def metric(mdp: TabularMDP, gamma: float) -> tuple[Floats, Floats]:
    """Certified bounds on d, a tenth of what the identities below allow apart."""
    top = float(top_exact(mdp, gamma))
    bounds = bisimulation_metric(
        mdp, gamma, tol=max(1e-10 * top, 1e-300), resources=Resources(threads=1)
    )
    assert bounds.is_converged
    return bounds.lower, bounds.upper


# -- the starts --------------------------------------------------------------------------------


@given(mdp=mdps(6), gamma=discounts, kinds=starts)
def test_uncovered_pairs_read_their_start(
    mdp: TabularMDP, gamma: float, kinds: tuple[str, str]
) -> None:
    arms = Arms(mdp, gamma, lower_start=kinds[0], upper_start=kinds[1])
    lower, upper = tables(arms)
    top = top_exact(mdp, gamma)
    for s, t in all_pairs(mdp.n_states):
        gap = reward_gap(mdp, s, t)
        below, above = Fraction(float(lower[s, t])), Fraction(float(upper[s, t]))
        low = gap if kinds[0] == "reward" else Fraction(0)
        high = top if kinds[1] == "constant" else gap + Fraction(gamma) * top
        assert low * (1 - Fraction(1, 10**14)) <= below <= low
        assert high <= above <= high * (1 + Fraction(1, 10**11))
    check_form(arms)


@given(
    mdp=mdps(4),
    gamma=st.sampled_from((0.0, 1e-9, 0.3, 0.9, 0.999, 0.999999, 1.0 - 2.0**-40)),
    factor=st.sampled_from((2.0**-900, 1e-200, 1e-12, 1.0, 1 / 3, 1e12, 1e200, 1e260)),
    kinds=starts,
)
def test_starts_prove_themselves_at_any_scale(
    mdp: TabularMDP, gamma: float, factor: float, kinds: tuple[str, str]
) -> None:
    arms = Arms(scaled(mdp, factor), gamma, lower_start=kinds[0], upper_start=kinds[1])
    check_inequalities(arms.mdp, arms.gamma, *tables(arms))
    lower, _ = tables(arms)
    for s, t in all_pairs(mdp.n_states):
        assert Fraction(float(lower[s, t])) <= reward_gap(arms.mdp, s, t)


UNIT = 5e-324
UNDERFLOW = [
    (0.1, 3 * UNIT),
    (0.3, 7 * UNIT),
    (0.9, 1e-310),
    (1e-300, 1e-20),
    (1e-200, 1e-120),
    (2.3e-308, 0.75),
]


@pytest.mark.parametrize(("gamma", "reward"), UNDERFLOW)
@pytest.mark.parametrize("upper_start", UPPER)
def test_starts_hold_where_products_underflow(
    gamma: float, reward: float, upper_start: str
) -> None:
    # 0 and 1 pay the same and go on to 2 and 3, one of which pays for ever.
    P = np.eye(4)[[2, 3, 2, 3], None, :]
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, reward, 0.0])
    arms = Arms(mdp, gamma, upper_start=upper_start)
    far = Fraction(reward) / (1 - Fraction(gamma))
    _, upper = tables(arms)
    assert Fraction(float(upper[2, 3])) >= far
    assert Fraction(float(upper[0, 1])) >= Fraction(gamma) * far
    check_inequalities(arms.mdp, arms.gamma, *tables(arms))
    arms.cover_all()
    arms.sweep()
    check_inequalities(arms.mdp, arms.gamma, *tables(arms))


def test_equal_rewards_leave_nothing_open() -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[[1, 2, 0], None, :], [-7.0, -7.0, -7.0])
    for lower, upper in BOTH_STARTS:
        below, above = tables(Arms(mdp, 0.999, lower_start=lower, upper_start=upper))
        assert not below.any()
        assert not above.any()


# -- proofs at every sweep ---------------------------------------------------------------------


@given(world=worlds(max_states=4), sweeps=st.integers(0, 6))
def test_both_arms_prove_themselves(world: tuple[Arms, list[Pair]], sweeps: int) -> None:
    arms, pairs = world
    cover(arms, pairs)
    for _ in range(sweeps):
        arms.sweep()
    check_form(arms)
    check_inequalities(arms.mdp, arms.gamma, *tables(arms))


@given(world=worlds(max_states=4, min_states=2), data=st.data())
def test_proofs_survive_any_history(world: tuple[Arms, list[Pair]], data: st.DataObject) -> None:
    """Coverage that grows between sweeps, and arms swept one at a time."""
    arms, pairs = world
    for _ in range(3):
        cover(arms, pairs)
        for lower, upper in data.draw(st.lists(st.tuples(st.booleans(), st.booleans()))):
            arms.sweep(lower=lower, upper=upper)
        pairs = data.draw(pair_sets(arms.mdp.n_states))
    check_form(arms)
    check_inequalities(arms.mdp, arms.gamma, *tables(arms))


@given(
    known=st.sampled_from(BY_HAND),
    kinds=starts,
    sweeps=st.integers(1, 40),
    data=st.data(),
)
def test_hand_solved_metrics_are_enclosed(
    known: Known, kinds: tuple[str, str], sweeps: int, data: st.DataObject
) -> None:
    n = known.mdp.n_states
    arms = Arms(
        known.mdp,
        known.gamma,
        lower_start=kinds[0],
        upper_start=kinds[1],
        resources=Resources(threads=1),
    )
    cover(arms, data.draw(pair_sets(n)))
    for _ in range(sweeps):
        lower, upper = tables(arms)
        for s, t in all_pairs(n):
            d = known.metric[s][t]
            assert Fraction(float(lower[s, t])) <= d <= Fraction(float(upper[s, t]))
        arms.sweep()


@given(world=worlds(max_states=6), sweeps=st.integers(1, 12))
def test_arms_enclose_the_metric_and_only_tighten(
    world: tuple[Arms, list[Pair]], sweeps: int
) -> None:
    arms, pairs = world
    d = bisimulation_metric(arms.mdp, arms.gamma, resources=Resources(threads=1))
    start = tables(arms)
    cover(arms, pairs)
    np.testing.assert_array_equal(tables(arms), start)
    covered = np.zeros((arms.mdp.n_states,) * 2, bool)
    for s, t in covered_pairs(arms):
        covered[s, t] = covered[t, s] = True
    before = start
    for _ in range(sweeps):
        moved = arms.sweep()
        lower, upper = tables(arms)
        check_form(arms)
        assert (lower <= d.upper).all()
        assert (upper >= d.lower).all()
        assert (lower >= before[0]).all()
        assert (upper <= before[1]).all()
        np.testing.assert_array_equal(lower[~covered], start[0][~covered])
        np.testing.assert_array_equal(upper[~covered], start[1][~covered])
        assert moved == ((lower - before[0]).max(), (before[1] - upper).max())
        before = lower, upper


# -- no looser than the exact operator ---------------------------------------------------------


def check_jacobi(arms: Arms, sweeps: int) -> None:
    """Up to rounding, a sweep moves every covered pair as far as the exact operator does."""
    slack = 1e-12 * float(top_exact(arms.mdp, arms.gamma))
    for _ in range(sweeps):
        lower, upper = tables(arms)
        below = backup_exact(arms.mdp, arms.gamma, lower)
        above = backup_exact(arms.mdp, arms.gamma, upper)
        arms.sweep()
        new_lower, new_upper = tables(arms)
        for s, t in covered_pairs(arms):
            low, high = max(lower[s, t], float(below[s][t])), min(upper[s, t], float(above[s][t]))
            assert abs(new_lower[s, t] - low) <= slack
            assert abs(new_upper[s, t] - high) <= slack


@given(world=worlds(max_states=4, min_states=2), sweeps=st.integers(1, 4))
def test_a_sweep_is_the_exact_jacobi_sweep(world: tuple[Arms, list[Pair]], sweeps: int) -> None:
    arms, pairs = world
    cover(arms, pairs)
    check_jacobi(arms, sweeps)


@pytest.mark.parametrize("gamma", [0.2, 0.9])
@pytest.mark.parametrize("support", [1, 3])
def test_actions_that_cannot_matter_leave_the_others_alone(gamma: float, support: int) -> None:
    """Many actions over different successors, most of them dominated."""
    for seed in range(4):
        mdp = sparse_mdp(7, 6, support=support, seed=seed)
        arms = Arms(mdp, gamma, resources=Resources(threads=1))
        cover(arms, all_pairs(7)[seed:])
        check_jacobi(arms, 2)
        check_inequalities(arms.mdp, arms.gamma, *tables(arms))


# -- the paper's identities at convergence -----------------------------------------------------


def check_identities(
    mdp: TabularMDP, gamma: float, pairs: list[Pair], lower_start: str, upper_start: str
) -> None:
    """The sup error is the coverage gap, and covered pairs err by at most gamma times it."""
    n = mdp.n_states
    d_lower, d_upper = metric(mdp, gamma)
    d = (d_lower + d_upper) / 2
    arms = Arms(
        mdp, gamma, lower_start=lower_start, upper_start=upper_start, resources=Resources(threads=1)
    )
    start_lower, start_upper = tables(arms)
    cover(arms, pairs)
    settle(arms)
    lower, upper = tables(arms)
    # Starts are rounded outward by 1e-315 where a product may underflow.
    tol = 1e-9 * float(top_exact(mdp, gamma)) + 4e-315
    is_covered = np.eye(n, dtype=bool)
    for s, t in covered_pairs(arms):
        is_covered[s, t] = is_covered[t, s] = True
    rho = float((d - start_lower)[~is_covered].max(initial=0.0))
    rho_plus = float((start_upper - d)[~is_covered].max(initial=0.0))
    assert abs(np.abs(d - lower).max() - rho) <= tol
    assert abs(np.abs(upper - d).max() - rho_plus) <= tol
    assert (d - lower)[is_covered].max() <= gamma * rho + tol
    assert (upper - d)[is_covered].max() <= gamma * rho_plus + tol
    width = upper - lower
    assert width[is_covered].max() <= gamma * (rho + rho_plus) + tol
    np.testing.assert_array_equal(width[~is_covered], (start_upper - start_lower)[~is_covered])
    assert (np.abs(d - lower) <= width + tol).all()
    assert (np.abs(upper - d) <= width + tol).all()


@given(
    mdp=mdps(6, min_states=2),
    gamma=st.sampled_from((0.0, 0.3, 0.5, 0.8, 0.9)),
    kinds=starts,
    data=st.data(),
)
def test_the_coverage_gap_is_the_error(
    mdp: TabularMDP, gamma: float, kinds: tuple[str, str], data: st.DataObject
) -> None:
    check_identities(mdp, gamma, data.draw(pair_sets(mdp.n_states)), *kinds)


@grid(share=[0.1, 0.5, 0.9], kinds=BOTH_STARTS)
def test_the_coverage_gap_is_the_error_in_larger_models(
    kinds: tuple[str, str], share: float
) -> None:
    rng = np.random.default_rng(20)
    for mdp in (
        random_mdp(10, 3, seed=1),
        sparse_mdp(24, 2, support=3, seed=2),
        sparse_mdp(24, 2, support=1, seed=3),
        grouped_mdp(24, 4, 2, seed=4)[0],
    ):
        pairs = all_pairs(mdp.n_states)
        chosen = rng.permutation(len(pairs))[: math.ceil(share * len(pairs))]
        check_identities(mdp, 0.9, [pairs[k] for k in chosen], *kinds)


@pytest.mark.parametrize("kinds", BOTH_STARTS)
def test_the_coverage_gap_is_the_error_at_a_high_discount(kinds: tuple[str, str]) -> None:
    mdp = sparse_mdp(8, 1, support=2, seed=7)
    check_identities(mdp, 0.99, all_pairs(8)[::2], *kinds)


@given(
    mdp=mdps(6, min_states=2),
    gamma=st.sampled_from((0.0, 0.5, 0.9)),
    kinds=starts,
    data=st.data(),
)
def test_growing_coverage_tightens_to_the_metric(
    mdp: TabularMDP, gamma: float, kinds: tuple[str, str], data: st.DataObject
) -> None:
    arms = Arms(
        mdp, gamma, lower_start=kinds[0], upper_start=kinds[1], resources=Resources(threads=1)
    )
    d_lower, d_upper = metric(mdp, gamma)
    pairs = all_pairs(mdp.n_states)
    rounds = [data.draw(pair_sets(mdp.n_states)) for _ in range(3)]
    lower, upper = tables(arms)
    for fresh in [*rounds, pairs]:
        known = covered_pairs(arms)
        added = {(min(pair), max(pair)) for pair in fresh} - known
        assert cover(arms, fresh) == len(added)
        assert covered_pairs(arms) == known | added
        for _ in range(data.draw(st.integers(0, 3))):
            arms.sweep()
        check_form(arms)
        new_lower, new_upper = tables(arms)
        assert (new_lower >= lower).all()
        assert (new_upper <= upper).all()
        assert (new_lower <= d_upper).all()
        assert (new_upper >= d_lower).all()
        lower, upper = new_lower, new_upper
    assert arms.coverage == 1.0
    settle(arms)
    lower, upper = tables(arms)
    tol = 1e-9 * float(top_exact(mdp, gamma))
    np.testing.assert_allclose(lower, d_lower, rtol=0.0, atol=tol)
    np.testing.assert_allclose(upper, d_upper, rtol=0.0, atol=tol)


# -- the coverage gap is unavoidable -----------------------------------------------------------


def planted(n: int, pair: Pair, rho0: float, sign: int) -> TabularMDP:
    """Identical rows; all pay nothing but the pair, which pays rho0/2 and sign·rho0/2."""
    rewards = np.zeros(n)
    rewards[list(pair)] = rho0 / 2, sign * rho0 / 2
    return TabularMDP.from_dense(np.full((n, 1, n), 1.0 / n), rewards)


def reward_table(mdp: TabularMDP) -> Floats:
    """The metric where all rows are identical."""
    table = np.abs(mdp.rewards[:, None, :] - mdp.rewards[None, :, :]).max(axis=2)
    return np.asarray(table, dtype=np.float64)


RHO0 = [0.1, 0.4, 0.8, 1.2]


@pytest.mark.parametrize("rho0", RHO0)
@pytest.mark.parametrize("n", [6, 20])
def test_a_planted_pair_is_the_error_until_it_is_covered(rho0: float, n: int) -> None:
    hidden = (1, n // 2 + 1)
    mdp = planted(n, hidden, rho0, -1)
    d = reward_table(mdp)
    d_lower, d_upper = metric(mdp, 0.9)
    np.testing.assert_allclose(d_lower, d, rtol=1e-9, atol=1e-9 * rho0)
    np.testing.assert_allclose(d_upper, d, rtol=1e-9, atol=1e-9 * rho0)
    others = [pair for pair in all_pairs(n) if pair != hidden]
    near = [(s, t) for s, t in others if min(t - s, n - t + s) <= 1]
    for pairs in ([], near, others):
        arms = Arms(
            mdp, 0.9, lower_start="zero", upper_start="constant", resources=Resources(threads=1)
        )
        cover(arms, pairs)
        settle(arms)
        lower, upper = tables(arms)
        assert np.abs(d - lower).max() == rho0
        assert lower[hidden] == 0.0
        assert upper[hidden] == pytest.approx(rho0 / (1.0 - 0.9), rel=1e-12)
    assert cover(arms, [hidden]) == 1
    settle(arms)
    lower, upper = tables(arms)
    assert np.abs(d - lower).max() <= 1e-14 * rho0
    assert np.abs(upper - d).max() <= 1e-14 * rho0


@pytest.mark.parametrize("rho0", RHO0)
def test_covering_the_planted_pair_alone_leaves_its_neighbours(rho0: float) -> None:
    mdp = planted(8, (2, 5), rho0, -1)
    arms = Arms(mdp, 0.9, lower_start="zero", resources=Resources(threads=1))
    cover(arms, [(5, 2)])
    settle(arms)
    lower, _ = tables(arms)
    error = reward_table(mdp) - lower
    assert abs(error[2, 5]) <= 1e-14 * rho0
    assert error.max() == rho0 / 2


@pytest.mark.parametrize("rho0", RHO0)
def test_rewards_read_at_the_start_see_the_planted_pair(rho0: float) -> None:
    """The start d_R is no oblivious coverage: here it is the metric, with nothing covered."""
    mdp = planted(20, (1, 11), rho0, -1)
    lower, _ = tables(Arms(mdp, 0.9))
    assert np.abs(reward_table(mdp) - lower).max() <= 1e-15 * rho0


@pytest.mark.parametrize("rho0", RHO0)
def test_the_sign_of_an_uncovered_planted_pair_leaves_no_trace(rho0: float) -> None:
    hidden = (1, 4)
    results = []
    for sign in (-1, 1):
        arms = Arms(
            planted(8, hidden, rho0, sign), 0.9, lower_start="zero", resources=Resources(threads=1)
        )
        cover(arms, [pair for pair in all_pairs(8) if pair != hidden])
        settle(arms)
        results.append((tables(arms)[0], arms.upper))
        assert reward_table(arms.mdp)[hidden] == (rho0 if sign == -1 else 0.0)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def hidden_bits(signs: tuple[int, ...], rho0: float) -> TabularMDP:
    """Partners 2k and 2k + 1 differ in action k alone, by 0 or by rho0 according to a sign."""
    half = len(signs)
    rewards = np.zeros((2 * half, half))
    for k, sign in enumerate(signs):
        rewards[2 * k, k], rewards[2 * k + 1, k] = rho0 / 2, sign * rho0 / 2
    P = np.full((2 * half, half, 2 * half), 1.0 / (2 * half))
    return TabularMDP.from_dense(P, rewards)


@pytest.mark.parametrize("rho0", [0.1, 1.2])
@pytest.mark.parametrize("signs", list(itertools.product((-1, 1), repeat=3)))
def test_hidden_bits_show_at_covered_partners_alone(signs: tuple[int, ...], rho0: float) -> None:
    mdp = hidden_bits(signs, rho0)
    n = mdp.n_states
    partners = [(2 * k, 2 * k + 1) for k in range(len(signs))]
    strangers = [pair for pair in all_pairs(n) if pair not in partners]
    for missing in range(len(signs)):
        arms = Arms(
            mdp, 0.9, lower_start="zero", upper_start="constant", resources=Resources(threads=1)
        )
        start = tables(arms)
        cover(arms, strangers + [pair for k, pair in enumerate(partners) if k != missing])
        settle(arms)
        lower, upper = tables(arms)
        for k, pair in enumerate(partners):
            if k == missing:
                assert (lower[pair], upper[pair]) == (start[0][pair], start[1][pair])
                assert lower[pair] == 0.0
                assert upper[pair] >= top_exact(mdp, 0.9) > rho0
            else:
                distance = 0.0 if signs[k] == 1 else rho0
                assert lower[pair] == pytest.approx(distance, rel=1e-14)
                assert upper[pair] == pytest.approx(distance, rel=1e-14)
        flipped = tuple(-sign if k == missing else sign for k, sign in enumerate(signs))
        other = Arms(
            hidden_bits(flipped, rho0), 0.9, lower_start="zero", resources=Resources(threads=1)
        )
        other.cover(*arms.pairs())
        settle(other)
        np.testing.assert_array_equal(tables(other)[0], lower)


# -- same bits ---------------------------------------------------------------------------------


def swept(arms: Arms, pairs: list[Pair], sweeps: int = 3) -> Arms:
    cover(arms, pairs)
    for _ in range(sweeps):
        arms.sweep()
    return arms


def check_same(arms: Arms, other: Arms) -> None:
    np.testing.assert_array_equal(arms.keys, other.keys)
    np.testing.assert_array_equal(arms.lower, other.lower)
    np.testing.assert_array_equal(arms.upper, other.upper)
    assert arms.backups == other.backups


@pytest.mark.parametrize("share", [0.9, 1.0])
def test_threads_and_lookups_do_not_change_a_bit(share: float) -> None:
    mdp = sparse_mdp(120, 2, support=3, seed=5)
    pairs = all_pairs(120)
    order = np.random.default_rng(6).permutation(len(pairs))
    chosen = [pairs[k] for k in order[: int(share * len(pairs))]]
    assert len(chosen) > CHUNK
    reference = swept(Arms(mdp, 0.95, resources=Resources(threads=1)), chosen)
    assert (reference.lower > 0.0).any()
    for threads in (1, 2, 3):
        for lookup_bytes in (0, 100_000, 2**30):
            arms = Arms(mdp, 0.95, resources=Resources(threads=threads), lookup_bytes=lookup_bytes)
            check_same(swept(arms, chosen), reference)
    check_same(swept(Arms(mdp, 0.95), chosen), reference)


@given(world=worlds(max_states=6, min_states=2), sweeps=st.integers(1, 4), data=st.data())
def test_order_of_covering_does_not_change_a_bit(
    world: tuple[Arms, list[Pair]], sweeps: int, data: st.DataObject
) -> None:
    arms, pairs = world
    swept(arms, pairs, sweeps)
    shuffled = data.draw(st.permutations(pairs))
    for lookup_bytes in (0, 2**30):
        other = Arms(
            arms.mdp,
            arms.gamma,
            lower_start=arms.starts.lower,
            upper_start=arms.starts.upper,
            resources=Resources(threads=2),
            lookup_bytes=lookup_bytes,
        )
        for s, t in shuffled:
            other.cover(t, s)
        check_same(swept(other, [], sweeps), arms)


@given(world=worlds(max_states=6, min_states=2), data=st.data())
def test_positions_are_found_anew_when_coverage_grows(
    world: tuple[Arms, list[Pair]], data: st.DataObject
) -> None:
    """Cover, sweep, cover more, sweep: kept positions and those found anew agree."""
    kept, pairs = world
    found = Arms(
        kept.mdp,
        kept.gamma,
        lower_start=kept.starts.lower,
        upper_start=kept.starts.upper,
        resources=Resources(threads=1),
        lookup_bytes=0,
    )
    for _ in range(3):
        check_same(swept(kept, pairs, 2), swept(found, pairs, 2))
        pairs = data.draw(pair_sets(kept.mdp.n_states))


# -- what may be covered and read --------------------------------------------------------------


def three() -> TabularMDP:
    P = np.eye(3)[[1, 2, 0], None, :]
    return TabularMDP.from_dense(P, [0.0, 1.0, 3.0])


def test_cover_counts_new_pairs_only() -> None:
    arms = Arms(three(), 0.5)
    assert arms.cover([0, 1, 0, 2, 2], [1, 0, 1, 2, 0]) == 2
    assert arms.keys.tolist() == [1, 2]
    assert arms.n_covered == 2
    assert arms.coverage == pytest.approx(2 / 3)
    assert [x.tolist() for x in arms.pairs()] == [[0, 0], [1, 2]]
    assert arms.cover([1, 2], [0, 0]) == 0
    assert arms.cover([1], [1]) == 0
    assert arms.cover([], []) == 0
    assert arms.cover(2, 1) == 1
    assert arms.cover_all() == 0
    assert arms.coverage == 1.0


def test_covering_again_keeps_what_was_proven() -> None:
    arms = Arms(three(), 0.5)
    arms.cover([0], [2])
    arms.sweep()
    lower, upper = arms.bounds(0, 2)
    assert arms.cover_all() == 2
    assert arms.bounds(2, 0) == (lower, upper)
    assert arms.cover([2], [0]) == 0
    assert arms.bounds(2, 0) == (lower, upper)


def test_small_index_types_do_not_overflow() -> None:
    mdp = sparse_mdp(30, 1, seed=1)
    arms = Arms(mdp, 0.5)
    arms.cover(np.array([29], np.uint8), np.array([28], np.int8))
    assert arms.keys.tolist() == [28 * 30 + 29]
    wide = arms.bounds(29, 28)
    assert arms.bounds(np.array([29], np.uint8), np.array([28], np.int8)) == wide


def test_bounds_broadcast() -> None:
    arms = Arms(three(), 0.5)
    arms.cover([0, 1], [1, 2])
    arms.sweep()
    lower, upper = tables(arms)
    assert arms.bounds(1, 0) == (lower[1, 0], upper[1, 0])
    assert arms.bounds(1, 0)[0].shape == ()
    column = arms.bounds([[0], [2]], [1, 2, 0])
    np.testing.assert_array_equal(column[0], lower[np.ix_([0, 2], [1, 2, 0])])
    np.testing.assert_array_equal(column[1], upper[np.ix_([0, 2], [1, 2, 0])])
    assert [x.shape for x in arms.bounds([], [])] == [(0,), (0,)]


def test_bounds_hands_out_copies() -> None:
    arms = Arms(three(), 0.5)
    arms.cover_all()
    before = tables(arms)
    for table in tables(arms):
        table += 1.0
    np.testing.assert_array_equal(tables(arms), before)


def test_nothing_covered() -> None:
    arms = Arms(three(), 0.5)
    before = tables(arms)
    assert arms.sweep() == (0.0, 0.0)
    assert (arms.n_covered, arms.coverage, arms.backups) == (0, 0.0, 0)
    np.testing.assert_array_equal(tables(arms), before)


def test_a_single_state_has_no_pairs() -> None:
    arms = Arms(TabularMDP.from_dense([[[1.0]]], [-1.5]), 0.9)
    assert arms.cover_all() == 0
    assert arms.cover([0], [0]) == 0
    assert arms.sweep() == (0.0, 0.0)
    assert (arms.n_covered, arms.coverage, arms.backups) == (0, 1.0, 0)
    assert [x.tolist() for x in arms.bounds([0], [0])] == [[0.0], [0.0]]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_two_states(gamma: float) -> None:
    arms = Arms(TabularMDP.from_dense(np.eye(2)[:, None, :], [1.0, 0.0]), gamma)
    assert arms.coverage == 0.0
    assert arms.cover_all() == 1
    assert arms.coverage == 1.0
    settle(arms)
    lower, upper = arms.bounds(0, 1)
    exact = 1 / (1 - Fraction(gamma))
    assert Fraction(float(lower)) <= exact <= Fraction(float(upper))
    assert upper - lower <= 1e-13 * float(exact)


def test_either_arm_alone() -> None:
    mdp = sparse_mdp(12, 2, support=3, seed=8)
    both, low, high = (Arms(mdp, 0.9, resources=Resources(threads=1)) for _ in range(3))
    for arms in (both, low, high):
        arms.cover_all()
    start_lower, start_upper = both.lower.copy(), both.upper.copy()
    for _ in range(4):
        moved = both.sweep()
        assert min(moved) > 0.0
        assert low.sweep(upper=False) == (moved[0], 0.0)
        assert high.sweep(lower=False) == (0.0, moved[1])
    np.testing.assert_array_equal(low.lower, both.lower)
    np.testing.assert_array_equal(low.upper, start_upper)
    np.testing.assert_array_equal(high.upper, both.upper)
    np.testing.assert_array_equal(high.lower, start_lower)
    assert low.sweep(lower=False, upper=False) == (0.0, 0.0)
    np.testing.assert_array_equal(low.lower, both.lower)


def test_backups_count_pairs_of_either_arm() -> None:
    arms = Arms(three(), 0.5)
    arms.cover([0, 1], [1, 2])
    assert arms.backups == 0
    arms.sweep()
    assert arms.backups == 4
    arms.sweep(lower=False)
    arms.sweep(upper=False)
    assert arms.backups == 8
    arms.sweep(lower=False, upper=False)
    assert arms.backups == 8
    arms.cover_all()
    assert arms.backups == 8
    arms.sweep()
    assert arms.backups == 14


REFUSED: list[tuple[str, Callable[[], object], list[str]]] = [
    ("gamma", lambda: Arms(three(), 1.0), ["gamma", "1.0"]),
    ("negative gamma", lambda: Arms(three(), -0.5), ["gamma", "-0.5"]),
    ("lower_start", lambda: Arms(three(), 0.5, lower_start="one"), ["lower_start", "'one'"]),
    ("upper_start", lambda: Arms(three(), 0.5, upper_start="zero"), ["upper_start", "'zero'"]),
    ("threads", lambda: Arms(three(), 0.5, resources=Resources(threads=0)), ["threads", "0"]),
    ("lookup_bytes", lambda: Arms(three(), 0.5, lookup_bytes=-3), ["lookup_bytes", "-3"]),
    ("float states", lambda: Arms(three(), 0.5).cover([0.5], [1]), ["states", "float64"]),
    ("float others", lambda: Arms(three(), 0.5).bounds([0], [1.5]), ["others", "float64"]),
    ("truth values", lambda: Arms(three(), 0.5).cover([True], [1]), ["states", "bool"]),
    ("cover above", lambda: Arms(three(), 0.5).cover([0, 1], [1, 47]), ["others", "47", "3"]),
    ("cover below", lambda: Arms(three(), 0.5).cover([-12], [1]), ["states", "-12", "3"]),
    ("bounds above", lambda: Arms(three(), 0.5).bounds(47, 0), ["states", "47", "3"]),
    ("bounds below", lambda: Arms(three(), 0.5).bounds([0, 1], [1, -12]), ["others", "-12"]),
]


@pytest.mark.parametrize(("call", "words"), [x[1:] for x in REFUSED], ids=[x[0] for x in REFUSED])
def test_refusals_name_argument_and_value(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_refused_pairs_change_nothing() -> None:
    arms = Arms(three(), 0.5)
    arms.cover([0], [1])
    with pytest.raises(InvalidArgumentError):
        arms.cover([1, 2], [2, 3])
    assert arms.keys.tolist() == [1]


def test_rewards_too_far_apart_are_refused() -> None:
    mdp = scaled(three(), 1e300)
    assert Arms(mdp, 0.9).bounds(0, 1)[1] > 1e300
    with pytest.raises(InvalidArgumentError, match="rescale the rewards"):
        Arms(mdp, 1.0 - 1e-6)


@pytest.mark.parametrize("gamma", [0.0, 1e-17, 0.5, 0.99])
@pytest.mark.parametrize("lower", ["reward", "zero"])
@pytest.mark.parametrize("upper", ["reward", "constant"])
def test_widest_bounds_the_gap_of_every_start(gamma: float, lower: str, upper: str) -> None:
    mdp = sparse_mdp(30, 3, support=2, seed=1)
    arms = Arms(mdp, gamma, lower_start=lower, upper_start=upper)
    s, t = np.triu_indices(30, 1)
    low, high = arms.bounds(s, t)
    gaps = [Fraction(b) - Fraction(a) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    assert max(gaps) <= Fraction(arms.starts.widest())
    assert arms.starts.widest() <= max(map(float, gaps)) + arms.starts.diameter


# -- estimated models --------------------------------------------------------------------------


def test_arms_of_an_estimate_enclose_all_models_within_its_radii() -> None:
    rng = np.random.default_rng(0)
    mdp = random_mdp(8, 2, seed=0)
    shape = mdp.rewards.shape
    reward_radius, row_radius = np.full(shape, 0.05), rng.uniform(0.0, 0.1, shape)
    estimate = Estimate(
        counts=np.full(shape, 50),
        reward_radius=reward_radius,
        row_radius=row_radius,
        alpha=0.05,
        reward_range=(-1.0, 2.0),
        support_bound=8,
    )
    tables = []
    for model in (mdp, dataclasses.replace(mdp, estimate=estimate)):
        arms = Arms(model, 0.8, resources=Resources(threads=1))
        arms.cover_all()
        for _ in range(60):
            arms.sweep()
        tables.append(arms.bounds(np.arange(8)[:, None], np.arange(8)))
    (inner_lower, inner_upper), (lower, upper) = tables
    different = ~np.eye(8, dtype=bool)
    assert (lower <= inner_lower).all()
    assert (upper > inner_upper)[different].all()
    P = dense(mdp)
    for _ in range(5):
        # Towards a single state, with a weight that is at most the radius.
        corner = np.eye(8)[rng.integers(8, size=shape)]
        true = TabularMDP.from_dense(
            (1.0 - row_radius[..., None]) * P + row_radius[..., None] * corner,
            mdp.rewards + reward_radius * rng.choice([-1.0, 1.0], size=shape) * (1.0 - 1e-12),
        )
        exact = bisimulation_metric(true, 0.8, resources=Resources(threads=1))
        assert (lower <= exact.upper).all()
        assert (upper >= exact.lower).all()
