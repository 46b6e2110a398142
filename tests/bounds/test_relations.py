"""Both relations through starts, arms, blocks and features: exact inequalities, and each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from bisim_abstract import TabularMDP, value_iteration
from bisim_abstract._base.resources import Resources
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel, build_blocks
from bisim_abstract._bounds.features import value_features
from bisim_abstract._bounds.jumps import jump
from bisim_abstract._model.renaming import check_renaming, own_names, used_names
from bisim_abstract._propose.renaming import match_actions
from bisim_abstract.errors import InvalidArgumentError
from tests.support.examples import grid
from tests.support.oracles import compared_pair, partial_exact
from tests.support.relations import renamed_mdp

RELATIONS = ("plain", "lax")
SWEEPS = 45
GAMMA = 0.5


def pairs(mdp: TabularMDP) -> tuple[IntArray, IntArray]:
    first, second = np.triu_indices(mdp.n_states, 1)
    return first, second


def tables(arms: Arms) -> tuple[list[list[float]], list[list[float]]]:
    """What both arms say of all pairs."""
    n = arms.n
    found = arms.bounds(*np.divmod(np.arange(n * n), n))
    return found[0].reshape(n, n).tolist(), found[1].reshape(n, n).tolist()


def check_exactly(arms: Arms, *, slack: Fraction = Fraction(0)) -> None:
    """f <= Tf below and f >= Tf above, in fractions, at every pair."""
    lower, upper = tables(arms)
    for s, t in zip(*(x.tolist() for x in pairs(arms.mdp)), strict=True):
        below, above = (
            compared_pair(
                arms.mdp,
                arms.gamma,
                table,
                s,
                t,
                relation=arms.relation.name,
                apart=arms.starts.diameter,
            )
            for table in (lower, upper)
        )
        assert Fraction(lower[s][t]) <= slack + below
        assert Fraction(upper[s][t]) >= -slack + above


def solved(mdp: TabularMDP, gamma: float, relation: str) -> Arms:
    arms = Arms(mdp, gamma, relation=relation, resources=Resources(threads=1))
    arms.cover_all()
    for _ in range(SWEEPS):
        arms.sweep()
    return arms


@grid(seed=range(12), starts=[("reward", "reward"), ("zero", "constant")], relation=RELATIONS)
def test_starts_are_sub_and_super_solutions(
    relation: str, starts: tuple[str, str], seed: int
) -> None:
    mdp = renamed_mdp(seed)
    arms = Arms(mdp, 0.9, relation=relation, lower_start=starts[0], upper_start=starts[1])
    check_exactly(arms)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", range(12))
def test_arms_keep_their_inequalities_in_fractions(relation: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = renamed_mdp(seed, noise=0.01)
    arms = Arms(mdp, 0.8, relation=relation)
    first, second = pairs(mdp)
    some = rng.random(first.size) < 0.6
    arms.cover(first[some], second[some])
    for _ in range(int(rng.integers(1, 6))):
        arms.sweep()
        check_exactly(arms)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", range(8))
def test_arms_meet_at_the_fixed_point(relation: str, seed: int) -> None:
    arms = solved(renamed_mdp(seed), GAMMA, relation)
    assert arms.covered.width <= 1e-11
    check_exactly(arms, slack=Fraction(1, 10**13))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", range(8))
def test_jumps_reach_what_sweeps_reach(relation: str, seed: int) -> None:
    mdp = renamed_mdp(seed, noise=0.02)
    swept = solved(mdp, GAMMA, relation)
    jumped = Arms(mdp, GAMMA, relation=relation)
    jumped.cover_all()
    jump(jumped, is_upper=True)
    jump(jumped, is_upper=False)
    assert (jumped.upper >= swept.lower).all()
    assert (jumped.lower <= swept.upper).all()
    assert jumped.covered.width <= 1e-9
    check_exactly(jumped)


@pytest.mark.parametrize("seed", range(20))
def test_lax_is_at_most_plain_and_values_change_by_no_more(seed: int) -> None:
    mdp = renamed_mdp(seed, noise=0.05)
    plain, lax = (solved(mdp, GAMMA, relation) for relation in RELATIONS)
    assert (lax.lower <= plain.upper).all()
    values = value_iteration(mdp, GAMMA)
    first, second = pairs(mdp)
    apart = np.abs((values.lower + values.upper)[first] - (values.lower + values.upper)[second])
    assert (apart / 2.0 <= lax.upper + values.gap).all()


def test_mirror_images_are_at_distance_0_and_plainly_apart() -> None:
    """Left and right are exchanged: nothing else differs."""
    P = np.zeros((3, 2, 3))
    P[0, 0, 2] = P[0, 1, 0] = P[1, 1, 2] = P[1, 0, 1] = 1.0
    P[2, :, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], order="sas")
    plain, lax = (solved(mdp, GAMMA, relation) for relation in RELATIONS)
    assert lax.bounds(0, 1)[1] <= 1e-12
    assert plain.bounds(0, 1)[0] >= 1.0


def test_states_with_other_actions_are_as_far_apart_as_can_be() -> None:
    """s can only do a, which pays 100, t only b, which pays 0: per action, nothing differs."""
    P = np.eye(2)[:, None, :].repeat(2, axis=1)
    available = [[True, False], [False, True]]
    mdp = TabularMDP.from_dense(P, [[100.0, 0.0], [0.0, 0.0]], available=available, order="sas")
    plain, lax = (solved(mdp, 0.5, relation) for relation in RELATIONS)
    assert plain.starts.diameter >= 200.0
    assert [float(x) for x in plain.bounds(0, 1)] == [plain.starts.diameter] * 2
    assert lax.bounds(0, 1)[0] == pytest.approx(200.0)


@pytest.mark.parametrize("seed", range(12))
def test_columns_are_below_the_starts(seed: int) -> None:
    for relation in RELATIONS:
        mdp = renamed_mdp(seed, n=9, n_actions=4)
        starts = Arms(mdp, 0.9, relation=relation).starts
        low, high = starts.columns
        first, second = pairs(mdp)
        gap = np.maximum(low[first] - high[second], low[second] - high[first]).max(axis=1)
        assert (gap <= starts.read(first, second)[0] * (1.0 + 1e-12)).all()


# -- blocks ------------------------------------------------------------------------------------


def level_of(mdp: TabularMDP, labels: IntArray, relation: str, sweeps: int) -> BlockLevel:
    renaming = match_actions(mdp, labels) if relation == "lax" else None
    arms = Arms(
        mdp,
        GAMMA,
        model=build_blocks(mdp, labels, renaming=renaming),
        relation=relation,
        resources=Resources(threads=1),
    )
    arms.start_diagonal()
    arms.cover_all()
    for _ in range(sweeps):
        arms.sweep()
    return arms.level()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", range(40))
def test_blocks_enclose_the_metric(relation: str, seed: int) -> None:
    mdp = renamed_mdp(seed, n=7, noise=0.02)
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=7)
    if relation == "plain":
        labels = labels * 10 + mdp.action_sets
    level = level_of(mdp, labels, relation, sweeps=int(rng.integers(0, 20)))
    truth = solved(mdp, GAMMA, relation)
    first, second = pairs(mdp)
    blocks = level.model.labels
    lower, upper = level.entries(blocks[first], blocks[second])
    assert (lower <= truth.upper).all()
    assert (upper >= truth.lower).all()
    # Pairs that read the level keep their inequalities.
    arms = Arms(mdp, GAMMA, relation=relation)
    arms.add_level(level)
    arms.cover(first[::2], second[::2])
    arms.sweep()
    lower, upper = arms.bounds(first, second)
    assert (lower <= truth.upper).all()
    assert (upper >= truth.lower).all()


def test_blocks_of_exact_mirror_images_have_no_width() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        base = 3
        P, R = rng.dirichlet(np.ones(base), (base, 4)), rng.random((base, 4))
        orders = [rng.permutation(4) for _ in range(2 * base)]
        both = np.zeros((2 * base, 4, 2 * base))
        paid = np.empty((2 * base, 4))
        for s, order in enumerate(orders):
            both[s, :, :base] = 0.25 * P[s % base][order]
            both[s, :, base:] = 0.75 * P[s % base][order]
            paid[s] = R[s % base][order]
        mdp = TabularMDP.from_dense(both, paid, order="sas")
        labels = np.arange(2 * base) % base
        names = match_actions(mdp, labels)
        assert (np.sort(names, axis=1) == np.arange(4)).all()
        model = build_blocks(mdp, labels, renaming=names)
        assert model.radius.max() <= 1e-14
        assert (model.low == model.high).all()


def test_plain_blocks_do_not_mix_action_sets() -> None:
    mdp = renamed_mdp(3)
    assert mdp.has_action_sets
    with pytest.raises(InvalidArgumentError, match="different actions into one block"):
        build_blocks(mdp, np.zeros(mdp.n_states, np.int64))


@pytest.mark.parametrize("seed", range(30))
def test_names_are_used_by_all_members(seed: int) -> None:
    mdp = renamed_mdp(seed, n=9, n_actions=4)
    labels = np.random.default_rng(seed).integers(3, size=9)
    names = match_actions(mdp, labels)
    assert ((names >= 0) == mdp.available).all()
    used = used_names(names)
    for block in range(3):
        members = used[labels == block]
        if members.size:
            assert (members == members[0]).all()
            assert (np.diff(members[0].astype(int)) <= 0).all()  # numbered from 0 on
    alone = match_actions(mdp, np.arange(9))
    assert (np.sort(np.where(alone < 0, 9, alone), axis=1)[:, 0] == 0).all()


def test_wrong_renamings_are_refused() -> None:
    mdp = renamed_mdp(3)
    labels = np.zeros(mdp.n_states, np.int64)
    names = match_actions(mdp, labels)
    check_renaming(names, labels, 1, mdp.available)
    build_blocks(mdp, labels, renaming=names)
    state, action = (int(k[0]) for k in np.nonzero(mdp.available))
    for wrong, text in (
        (own_names(mdp), "the same names"),
        (np.where(names == -1, 0, names), "-1 to others"),
        (np.full_like(names, -1), "a name in"),
        (names[:-1], "shape"),
        (np.where(names >= 0, names + 100, -1), "a name in"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            build_blocks(mdp, labels, renaming=wrong)
    model = build_blocks(mdp, labels, renaming=names)
    fields = {name: getattr(model, name) for name in BlockModel.__dataclass_fields__}
    none = np.ones_like(model.available)
    if not model.available.all():
        with pytest.raises(InvalidArgumentError, match="available"):
            BlockModel(**fields | {"available": none})
    assert names[state, action] >= 0


# -- features ----------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", range(30))
def test_features_are_admissible(relation: str, seed: int) -> None:
    mdp = renamed_mdp(seed, n=7, noise=0.02, missing=0.3 * (seed % 3 > 0))
    truth = solved(mdp, GAMMA, relation)
    for max_iter in (2, 1_000):
        features = value_features(mdp, GAMMA, count=20, max_iter=max_iter, relation=relation)
        assert (features.lower(*pairs(mdp)) <= truth.upper).all()
        if relation == "lax":
            assert (features.kinds == 0).all()
            assert (np.abs(features.signs.sum(axis=1)) == mdp.n_actions).all()
        elif mdp.has_action_sets:
            signs = features.signs
            assert ((signs >= 0).all(axis=1) | (signs <= 0).all(axis=1)).all()


def swapped() -> TabularMDP:
    """Two states that are mirror images: x pays (1, 0, 0), y pays (0, 0, 1), then both end."""
    P = np.zeros((3, 3, 3))
    P[:, :, 2] = 1.0
    R = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    return TabularMDP.from_dense(P, R, order="sas", terminal_state=2)


def test_features_that_the_lax_relation_must_not_use() -> None:
    """Signs that differ and actions left out tell mirror images apart; so does the second largest.

    That is why none of them is made: the lax distance of these two is 0.
    """
    mdp = swapped()
    lax = solved(mdp, GAMMA, "lax")
    assert lax.bounds(0, 1)[1] <= 1e-300
    R = mdp.rewards
    signs = np.array([1.0, 1.0, -1.0])
    assert (signs * R[0]).max() != (signs * R[1]).max()
    assert R[0, 0] != R[1, 0]
    for features in (value_features(mdp, GAMMA, count=20, relation="lax"),):
        assert features.lower(0, 1) == 0.0


def test_means_and_second_largest_exceed_the_lax_metric() -> None:
    """A duplicated action changes means and ranks, and not what a state can do."""
    P = np.zeros((3, 3, 3))
    P[:, :, 2] = 1.0
    R = [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    mdp = TabularMDP.from_dense(P, R, order="sas", terminal_state=2)
    assert solved(mdp, GAMMA, "lax").bounds(0, 1)[1] <= 1e-300
    assert mdp.rewards[0].mean() != mdp.rewards[1].mean()
    assert np.sort(mdp.rewards[0])[1] != np.sort(mdp.rewards[1])[1]
    features = value_features(mdp, GAMMA, count=20, relation="lax")
    assert features.lower(0, 1) == 0.0


def test_signs_that_differ_exceed_the_distance_of_other_action_sets() -> None:
    """All rewards lie between 9 and 10, and a sum of opposite signs spans far more than 1."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(4), (4, 2))
    R = 9.0 + rng.random((4, 2))
    available = [[True, False], [False, True], [True, True], [True, False]]
    mdp = TabularMDP.from_dense(P, R, available=available, order="sas")
    arms = Arms(mdp, 0.9)
    signed = np.where(np.array(available), [1.0, -1.0], np.nan) * mdp.rewards
    assert np.nanmax(signed) - np.nanmin(signed) > 1.5 * arms.starts.diameter
    features = value_features(mdp, 0.9, count=50)
    assert (features.lower(*pairs(mdp)) <= solved(mdp, 0.9, "plain").upper).all()


@pytest.mark.parametrize("relation", RELATIONS)
def test_results_do_not_depend_on_threads(relation: str) -> None:
    mdp = renamed_mdp(5, n=60, n_actions=4)
    found = []
    for threads in (1, 3):
        arms = Arms(mdp, 0.9, relation=relation, resources=Resources(threads=threads))
        arms.cover_all()
        arms.sweep()
        found.append((arms.lower, arms.upper))
    assert (found[0][0] == found[1][0]).all()
    assert (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize("relation", RELATIONS)
def test_positions_found_anew_give_the_same(relation: str) -> None:
    mdp = renamed_mdp(6, n=20)
    found = []
    for limit in (2**30, 0):
        arms = Arms(mdp, 0.9, relation=relation, lookup_bytes=limit)
        arms.cover_all()
        arms.sweep()
        found.append((arms.lower, arms.upper))
    assert (found[0][0] == found[1][0]).all()
    assert (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize("seed", range(60))
def test_backups_of_blocks_are_what_they_should_be(seed: int) -> None:
    """By definition and in fractions: each action with the one most like it, radii for free."""
    rng = np.random.default_rng(seed)
    n_blocks, n_actions = 5, 3
    lengths = rng.integers(1, 3, size=n_blocks * n_actions)
    low = np.round(rng.random((n_blocks, n_actions)), 1)
    model = BlockModel(
        labels=np.arange(2 * n_blocks) % n_blocks,
        low=low,
        high=low + rng.choice([0.0, 0.05], size=low.shape),
        indptr=np.concatenate([[0], np.cumsum(lengths)]),
        indices=np.concatenate([np.sort(rng.permutation(n_blocks)[:k]) for k in lengths]),
        probs=np.concatenate([rng.dirichlet(np.ones(k)) for k in lengths]),
        radius=rng.choice([0.0, 0.1, 0.3, 0.6], size=low.shape),
    )
    mdp = renamed_mdp(seed, n=2 * n_blocks)  # which has no part in a backup
    arms = Arms(mdp, GAMMA, model=model, relation="lax", resources=Resources(threads=1))
    arms.cover_all()
    table = np.zeros((n_blocks, n_blocks))
    table[np.triu_indices(n_blocks)] = rng.random(n_blocks * (n_blocks + 1) // 2) + 0.2
    table = np.maximum(table, table.T)
    values = table[arms.ground_pairs()]
    values[0] = 0.0
    found = arms.backup(values, is_upper=False)
    actions = range(n_actions)
    for k, (s, t) in enumerate(zip(*(x.tolist() for x in arms.pairs()), strict=True)):
        if s != t:
            differ = [[compared_blocks(model, table, s, a, t, b) for b in actions] for a in actions]
            truth = max(max(map(min, differ)), max(map(min, zip(*differ, strict=True))))
            assert Fraction(float(found[k])) <= truth
            assert float(truth) - found[k] <= 1e-12


def compared_blocks(
    model: BlockModel, table: FloatArray, s: int, a: int, t: int, b: int
) -> Fraction:
    """A lower bound on what members' actions differ by: both radii of the mass travel free."""
    low, high = (Fraction(float(x)) for x in (model.low[s, a], model.high[t, b]))
    other, top = (Fraction(float(x)) for x in (model.low[t, b], model.high[s, a]))
    gap = max(Fraction(0), low - high, other - top)
    rows = []
    for block, action in ((s, a), (t, b)):
        at = block * model.n_actions + action
        span = slice(model.indptr[at], model.indptr[at + 1])
        rows.append((model.indices[span].tolist(), model.probs[span].tolist()))
    (x, p), (y, q) = rows
    cost = [[Fraction(float(table[i, j])) for j in y] for i in x]
    free = Fraction(float(model.radius[s, a])) + Fraction(float(model.radius[t, b]))
    moved = Fraction(0) if free >= 1 else partial_exact(cost, p, q, free)
    return gap + Fraction(GAMMA) * moved
