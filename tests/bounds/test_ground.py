"""What pairs without an entry read: the tightest of all components, and a proof like each."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import Resources, TabularMDP, bisimulation_metric
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel, build_blocks
from bisim_abstract._bounds.features import ValueFeatures, value_features
from bisim_abstract._bounds.ground import Ground, Starts
from bisim_abstract._bounds.tell_apart import make_witnesses
from tests.support.blocks import estimated, partition, small_mdp
from tests.support.oracles import backup_exact

Floats = npt.NDArray[np.float64]


def make_level(mdp: TabularMDP, gamma: float, seed: int, sweeps: int) -> BlockLevel:
    """Bounds on a random partition, all or some block pairs covered."""
    arms = Arms(
        mdp,
        gamma,
        model=build_blocks(mdp, partition(mdp, "random", seed)),
        resources=Resources(threads=1),
    )
    if seed % 3:
        arms.start_diagonal()
    if seed % 2:
        arms.cover_all()
    else:
        arms.cover(*np.random.default_rng(seed).integers(arms.n, size=(2, 3)))
    for _ in range(sweeps):
        arms.sweep()
    return arms.level()


def make_features(mdp: TabularMDP, gamma: float, seed: int) -> ValueFeatures:
    features = value_features(
        mdp, gamma, count=4, max_iter=3 + 20 * (seed % 2), resources=Resources(threads=1)
    )
    if mdp.estimate is not None:
        return features
    blocks = build_blocks(mdp, np.minimum(np.arange(mdp.n_states), 2))
    made = make_witnesses(
        mdp,
        gamma,
        features,
        blocks,
        np.array([0, 0]),
        np.array([1, 2]),
        tol=1e-3,
        max_rounds=seed + 1,
    )
    return features.with_witnesses(made)


def read(arms: Arms) -> tuple[Floats, Floats]:
    """(n, n) the bounds of all pairs of states."""
    states = np.arange(arms.mdp.n_states)
    lower, upper = arms.bounds(states[:, None], states)
    return lower.copy(), upper.copy()


def component_tables(mdp: TabularMDP, ground: Ground) -> list[tuple[Floats, Floats]]:
    """What every component says by itself."""
    n = mdp.n_states
    s, t = (x.ravel() for x in np.indices((n, n)))
    found = [ground.starts.read(s, t)]
    for level in ground.levels:
        labels = level.model.labels
        found.append(level.entries(labels[s], labels[t]))
    if ground.features is not None:
        found.append((ground.features.lower(s, t), np.full(s.size, np.inf)))
    return [(below.reshape(n, n), above.reshape(n, n)) for below, above in found]


def check(arms: Arms, *, is_exact: bool = True) -> None:
    """Enclosure, nothing looser than a component, and both inequalities in fractions."""
    mdp, gamma = arms.mdp, arms.gamma
    lower, upper = read(arms)
    metric = bisimulation_metric(mdp, gamma, resources=Resources(threads=1))
    assert (lower <= metric.upper).all()
    assert (upper >= metric.lower).all()
    off = ~np.eye(mdp.n_states, dtype=bool)
    for below, above in component_tables(mdp, arms.ground):
        assert (lower >= below)[off].all()
        assert (upper <= above)[off].all()
    if is_exact:
        under, over = (backup_exact(mdp, gamma, table) for table in (lower, upper))
        for s, t in np.ndindex(lower.shape):
            assert Fraction(float(lower[s, t])) <= under[s][t], ("lower", s, t)
            assert Fraction(float(upper[s, t])) >= over[s][t], ("upper", s, t)


@pytest.mark.parametrize("seed", range(48))
def test_components_compose_in_any_order(seed: int) -> None:
    mdp = small_mdp(seed)
    rng = np.random.default_rng([seed, 5])
    gamma = float(rng.choice([0.0, 0.5, 0.9]))
    arms = Arms(mdp, gamma, resources=Resources(threads=1))
    steps = ["level", "level", "features", "cover", "sweep", "sweep"]
    before = read(arms)
    for k, step in enumerate(rng.permutation(steps).tolist()):
        if step == "level":
            arms.add_level(make_level(mdp, gamma, seed + k, sweeps=int(rng.integers(0, 6))))
        elif step == "features":
            arms.set_features(make_features(mdp, gamma, seed))
        elif step == "cover":
            arms.cover(*rng.integers(mdp.n_states, size=(2, 6)))
        else:
            arms.sweep()
        now = read(arms)
        assert (now[0] >= before[0]).all()
        assert (now[1] <= before[1]).all()
        before = now
        check(arms, is_exact=k in (2, 5))


def test_each_component_is_the_tightest_somewhere() -> None:
    """Over the collection no component is idle, so that the test above tests them all."""
    wins = {"starts": 0, "levels": 0, "features": 0}
    for seed in range(12):
        mdp = small_mdp(seed)
        arms = Arms(mdp, 0.9, resources=Resources(threads=1))
        arms.add_level(make_level(mdp, 0.9, 3 * seed + 1, sweeps=12))
        arms.set_features(make_features(mdp, 0.9, 1))
        tables = component_tables(mdp, arms.ground)
        best = np.max([below for below, _ in tables], axis=0)
        for name, (below, _) in zip(wins, tables, strict=True):
            wins[name] += int(((below == best) & (best > 0.0)).sum())
        assert (tables[1][1] < tables[0][1]).any() or seed % 6 == 5
    assert min(wins.values()) > 10, wins


@pytest.mark.parametrize("seed", range(6))
def test_sweeps_read_new_components_at_once(seed: int) -> None:
    """Uncovered pairs that backups read must be read anew when a component is added."""
    mdp = small_mdp(6 * seed + 1)
    old, new = (Arms(mdp, 0.9, resources=Resources(threads=1)) for _ in range(2))
    level, features = make_level(mdp, 0.9, 6 * seed + 1, 20), make_features(mdp, 0.9, 1)
    pairs = np.array([0, 1]), np.array([2, 3])
    old.cover(*pairs)
    old.sweep(lower=False, upper=False)
    old.ground_costs(is_upper=True)  # looked up before the components come
    for arms in (old, new):
        arms.add_level(level)
        arms.set_features(features)
    new.cover(*pairs)
    moved = 0.0
    for _ in range(3):
        moved = max(moved, *old.sweep())
        new.sweep()
        np.testing.assert_array_equal(old.lower, new.lower)
        np.testing.assert_array_equal(old.upper, new.upper)
        s, t = old.ground_pairs()
        lower, upper = old.bounds(s, t)
        np.testing.assert_array_equal(old.ground_costs(is_upper=False)[1:], lower[1:])
        np.testing.assert_array_equal(old.ground_costs(is_upper=True)[1:], upper[1:])
    assert moved > 0.0


def test_reading_by_hand() -> None:
    P = np.eye(4)[[0, 1, 2, 3], None, :]
    mdp = TabularMDP.from_dense(P, [0.0, 0.25, 1.0, 1.0])
    model = build_blocks(mdp, [0, 0, 1, 1])
    level = BlockLevel(
        model=model,
        keys=np.array([0, 1, 3]),
        lower=np.array([0.0, 1.5, 0.0]),
        upper=np.array([0.5, 2.0, 0.0]),
    )
    starts = Starts.of(mdp.rewards, mdp.rewards, 0.5, lower="reward", upper="reward")
    ground = Ground(starts)
    lower, upper = ground.read(np.array([0, 0, 2]), np.array([1, 2, 3]))
    assert lower == pytest.approx([0.25, 1.0, 0.0])
    assert upper == pytest.approx([1.25, 2.0, 1.0])
    both = ground.with_level(level)
    assert both.levels == (level,)
    assert ground.levels == ()
    lower, upper = both.read(np.array([0, 0, 2]), np.array([1, 2, 3]))
    assert lower == pytest.approx([0.25, 1.5, 0.0])
    assert upper == pytest.approx([0.5, 2.0, 0.0])
    features = value_features(mdp, 0.5)
    with_all = both.with_features(features)
    lower, _ = with_all.read(np.array([0, 0]), np.array([1, 2]))
    assert lower == pytest.approx([0.5, 2.0], abs=1e-5)
    # The level bounds all pairs of its blocks, to within 0.5 each.
    assert 0.5 <= with_all.widest() <= 0.5 * (1.0 + 1e-15)


@pytest.mark.parametrize("kinds", [("reward", "reward"), ("zero", "constant")])
def test_starts_of_intervals(kinds: tuple[str, str]) -> None:
    """Intervals [0, 1] and [3, 4]: at least 2 and at most 4 apart at once; D = 4/(1 - 0.5)."""
    low, high = np.array([[0.0], [3.0]]), np.array([[1.0], [4.0]])
    starts = Starts.of(low, high, 0.5, lower=kinds[0], upper=kinds[1])
    assert starts.diameter == pytest.approx(8.0)
    assert not starts.is_exact
    lower, upper = starts.read(np.array([0, 0]), np.array([1, 0]))
    if kinds[0] == "reward":
        assert lower == pytest.approx([2.0, 0.0])
        assert upper == pytest.approx([8.0, 5.0])
    else:
        assert not lower.any()
        assert upper == pytest.approx([8.0, 8.0])
    assert starts.widest() >= 8.0
    assert Fraction(float(upper[0])) >= 8 or kinds[1] == "reward"


def test_intervals_are_not_mistaken_for_points() -> None:
    """Rewards known up to 1/4: start values are off by twice as much, on either side."""
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [0.0, 1.0])
    arms = Arms(estimated(mdp, 0.25, 0.0), 0.5)
    lower, upper = arms.bounds(0, 1)
    assert 0.5 * (1.0 - 1e-12) <= lower <= 0.5
    assert upper >= 1.5 + 0.5 * 3.0  # 3.0 = 1.5/(1 - 0.5)
    arms.cover_all()
    for _ in range(60):
        arms.sweep()
    assert arms.lower[0] == pytest.approx(1.0)
    assert arms.upper[0] == pytest.approx(3.0)
