"""Proven values against exact arithmetic: random models, partitions, and worst true models."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, ProvenValue, TabularMDP, estimate_mdp, prove_value
from bisim_abstract._abstract import value_proof
from bisim_abstract._abstract.brackets import make_boxes
from bisim_abstract._abstract.proofs import backup, bounded
from bisim_abstract._abstract.scale import start_means
from bisim_abstract._abstract.value import LearnerShare, amount_text, best_between, share_text
from bisim_abstract._abstract.value_proof import GroundValues
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.renaming import own_names
from bisim_abstract._propose.renaming import match_actions
from bisim_abstract.parts import ValueBracket, grouped_mdp, random_mdp, value_bracket
from tests.support.agents import Clustered, Scale, as_sets
from tests.support.examples import cases, naming, seeds
from tests.support.oracles import fractions, lifted_exact
from tests.support.renaming import (
    end_apart,
    random_renaming,
    taken,
    with_random_actions,
)
from tests.support.values import (
    NOTHING_TO_LOSE,
    Case,
    Exact,
    Ints,
    Values,
    backup_exact,
    check_inequality,
    mean,
    random_case,
    random_row,
    with_radii,
)
from tests.support.worlds import BY_HAND, Known

pytestmark = pytest.mark.usefixtures("_no_endless_loop")


# -- exact truth -------------------------------------------------------------------------------


def own_actions(mdp: TabularMDP, labels: Ints, renaming: Ints | None, policy: Ints) -> list[int]:
    """What each state does where its cluster is told a name."""
    return [taken(mdp, renaming, s, int(policy[c])) for s, c in enumerate(labels.tolist())]


def check_inequalities(mdp: TabularMDP, gamma: float, value: ProvenValue) -> None:
    model, labels = Exact.of(mdp, gamma), value.labels
    own = own_actions(mdp, labels, value.renaming, value.policy)
    assert own == value.lifted_policy.tolist()
    check_inequality(mdp, model, value.optimal_upper, 1, "best")
    check_inequality(mdp, model, value.optimal_lower, -1, value.optimal_policy.tolist())
    check_inequality(mdp, model, value.policy_lower, -1, own)
    check_inequality(mdp, model, value.random_upper, 1, "mean")
    for action, upper in enumerate(value.constant_upper.T):
        check_inequality(mdp, model, upper, 1, f"for ever {action}")
    best = "mean" if value.baseline_action < 0 else f"for ever {value.baseline_action}"
    check_inequality(mdp, model, value.baseline_lower, -1, best)
    check_bracket_inequalities(mdp, gamma, labels, value.bracket, value.renaming)
    check_agents(mdp, model, value)


def check_agents(mdp: TabularMDP, model: Exact, value: ProvenValue) -> None:
    """One backup of each function that speaks of agents."""
    seen = Clustered.of(mdp, float(model.gamma), value.labels, value.renaming)
    assert value.learner is not None
    for guarantee, share in (("solver", value.solver), ("learner", value.learner)):
        doings = seen.doings(as_sets(value.choices(guarantee)))
        check_inequality(mdp, model, share.lower, -1, doings)
    # What a learner's values end between: the best and the worst members of a cluster.
    for side, bounds in ((1, value.learner.q_upper), (-1, value.learner.q_lower)):
        q = {key: Fraction(float(bounds[key])) for key in seen.rows}
        ahead = [max(q[c, name] for name in seen.names(c)) for c in seen.labels]
        for key, rows in seen.rows.items():
            for x, a in rows:
                assert side * (q[key] - backup_exact(mdp, model, ahead, x, a, side)) >= 0
    if value.learner.converged is not None:
        check_converged(seen, value.learner)


def check_converged(seen: Clustered, learner: LearnerShare) -> None:
    """The values that a converged learner has are above its worth by the excess at most."""
    found = learner.converged
    assert found is not None
    lower, upper = (
        [max(Fraction(float(q[c, name])) for name in seen.names(c)) for c in range(seen.count)]
        for q in (learner.q_lower, learner.q_upper)
    )
    middle = [(x + y) / 2 for x, y in zip(lower, upper, strict=True)]
    half = [(y - x) / 2 for x, y in zip(lower, upper, strict=True)]
    rows = {row: seen.lifted(*row) for rows in seen.rows.values() for row in rows}
    promised = {
        (x, a): seen.model.rewards[x][a]
        + seen.model.gamma * sum((p * middle[c] for c, p in row.items()), Fraction(0))
        for (x, a), row in rows.items()
    }

    zero = Fraction(0)

    def gains(one: tuple[int, int], other: tuple[int, int]) -> Fraction:
        """How much more than a row another one may promise."""
        apart = sum(
            (
                abs(rows[other].get(c, zero) - rows[one].get(c, zero)) * half[c]
                for c in range(seen.count)
            ),
            zero,
        )
        return promised[other] - promised[one] + seen.model.gamma * apart

    excess, choices = fractions(found.excess), as_sets(found.choices)
    boxed = as_sets(best_between(learner.q_lower, learner.q_upper, np.ones_like(found.choices)))
    worth = fractions(found.lower)
    for c in range(seen.count):
        # Left out is only what promises less than something else, whoever the members are.
        for name in (boxed[c] & set(seen.names(c))) - choices[c]:
            assert any(
                all(gains(x, y) < 0 for y in seen.rows[c, name] for x in seen.rows[c, other])
                for other in boxed[c] & set(seen.names(c))
            )
        for name in choices[c]:
            held = seen.rows[c, name]
            for x, a in held:
                sigma = max(gains((x, a), y) for y in held)
                ahead = sum((p * excess[t] for t, p in seen.model.rows[x][a].items()), Fraction(0))
                assert excess[x] >= sigma + seen.model.gamma * ahead
    for x, doings in enumerate(seen.doings(choices)):
        floor = lower[seen.labels[x]] - excess[x]
        assert worth[x] <= max(floor, min(seen.model.q(worth, x, a) for a in doings))


def check_bracket_inequalities(
    mdp: TabularMDP,
    gamma: float,
    labels: Ints,
    bracket: ValueBracket,
    renaming: Ints | None = None,
) -> None:
    model = Exact.of(mdp, gamma)
    own = own_actions(mdp, labels, renaming, bracket.policy)
    check_inequality(mdp, model, bracket.upper[labels], 1, "best")
    check_inequality(mdp, model, bracket.lower[labels], -1, own)


def check_true_model(mdp: TabularMDP, model: Exact, value: ProvenValue) -> Truth:
    """All bounds against the exact values of a model, which may be the stored one or a true one."""
    labels = value.labels.tolist()
    best = model.optimal(model.greedy(fractions(value.optimal_lower)))
    lifted = (
        own_actions(mdp, value.labels, value.renaming, policy)
        for policy in (value.policy, value.bracket.policy)
    )
    own, robust = (model.of_actions(actions) for actions in lifted)
    for s, cluster in enumerate(labels):
        assert value.optimal_lower[s] <= best[s] <= value.optimal_upper[s]
        assert value.policy_lower[s] <= own[s]
        assert best[s] <= value.bracket.upper[cluster]
        assert value.bracket.lower[cluster] <= robust[s]
    check_baseline(mdp, model, value)
    scale = Scale.of(mdp, model)
    for bound, exact in ((value.optimal_start, scale.top), (value.baseline_start, scale.base)):
        assert bound[0] <= exact <= bound[1]
    policy = value.share("policy")
    assert policy is not None
    scale.check(policy, own)
    start = mean(mdp.start, own)
    return Truth(max(b - o for b, o in zip(best, own, strict=True)), scale.top - start)


@dataclass(frozen=True)
class Truth:
    """The exact loss of the worst state, and of the start."""

    loss: Fraction
    start_loss: Fraction


def check_baseline(mdp: TabularMDP, model: Exact, value: ProvenValue) -> None:
    """Bounds on policies that do not look at the state, against their exact values."""
    random = model.at_random(mdp.available)
    constant = [model.for_ever(a, mdp.available) for a in range(mdp.n_actions)]
    chosen = random if value.baseline_action < 0 else constant[value.baseline_action]
    for s in range(mdp.n_states):
        assert random[s] <= value.random_upper[s]
        assert value.baseline_lower[s] <= chosen[s]
        for a in range(mdp.n_actions):
            assert constant[a][s] <= value.constant_upper[s, a]


# -- bounds of known models ----------------------------------------------------------------------


def check_stored_model(
    case: Case, *, by: str = "start", renaming: Ints | None = None
) -> ProvenValue:
    value = prove_value(case.mdp, case.labels, case.gamma, by=by, renaming=renaming)
    check_inequalities(case.mdp, case.gamma, value)
    truth = check_true_model(case.mdp, Exact.of(case.mdp, case.gamma), value)
    if case.is_plain:
        size = float(np.abs(case.mdp.rewards).max()) / (1.0 - case.gamma)
        assert value.loss <= 1.1 * float(truth.loss) + 1e-9 * size
        assert value.start_loss <= value.loss
    return value


@pytest.mark.drawn
def test_random_models() -> None:
    for seed in range(cases(1_000, few=100)):
        with naming(seed=seed):
            check_stored_model(random_case(seed), by="worst" if seed % 4 == 0 else "start")


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 5_000, 1_000))
def test_many_random_models(first: int) -> None:
    for seed in range(first, first + 1_000):
        check_stored_model(random_case(seed), by="worst" if seed % 4 == 0 else "start")


# -- actions of states and names of clusters -----------------------------------------------------


def lacking(seed: int) -> Case:
    """A random case in which states lack actions."""
    case = random_case(seed)
    rng = np.random.default_rng([78, seed])
    return replace(case, mdp=with_random_actions(case.mdp, rng))


def check_names(case: Case, value: ProvenValue) -> None:
    """Policies tell names that clusters have."""
    for policy in (value.policy, value.bracket.policy):
        for cluster, name in enumerate(policy.tolist()):
            names = own_names(case.mdp) if value.renaming is None else value.renaming
            assert (names[value.labels == cluster] == name).any()


@pytest.mark.drawn
def test_states_that_lack_actions() -> None:
    for seed in range(cases(400, few=40)):
        with naming(seed=seed):
            case = lacking(seed)
            value = check_stored_model(case, by="worst" if seed % 4 == 0 else "start")
            check_names(case, value)
            assert (value.renaming is None) != case.mdp.has_action_sets


@pytest.mark.drawn
def test_any_renaming_gives_a_proof() -> None:
    for seed in range(cases(400, few=40)):
        with naming(seed=seed):
            case = lacking(seed) if seed % 2 else random_case(seed)
            rng = np.random.default_rng([79, seed])
            renaming = random_renaming(case.mdp, case.labels, rng)
            value = check_stored_model(case, renaming=renaming)
            check_names(case, value)
            own = own_names(case.mdp) if value.renaming is None else value.renaming
            assert np.array_equal(own, renaming)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 3_000, 500))
def test_any_renaming_of_many_models_gives_a_proof(first: int) -> None:
    for seed in range(first, first + 500):
        case = lacking(seed) if seed % 2 else random_case(seed)
        rng = np.random.default_rng([79, seed])
        check_stored_model(case, renaming=random_renaming(case.mdp, case.labels, rng))


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_boxes_run_over_all_actions_of_a_name(first: int) -> None:
    for seed in range(first, first + 50):
        case = lacking(seed) if seed % 2 else random_case(seed)
        rng = np.random.default_rng([80, seed])
        names = random_renaming(case.mdp, case.labels, rng) if seed % 3 else None
        clusters = np.array(end_apart(case.mdp, case.labels))
        count = int(clusters.max()) + 1
        boxes = make_boxes(case.mdp, clusters, count, renaming=names)
        held = zip(boxes.rows.tolist(), boxes.indices.tolist(), strict=True)
        place = {key: k for k, key in enumerate(held)}
        width = boxes.low.shape[1]
        for cluster, name in np.argwhere(boxes.available).tolist():
            pairs = [
                (x, a)
                for x in np.flatnonzero(clusters == cluster).tolist()
                for a in range(case.mdp.n_actions)
                if (names[x, a] == name if names is not None else a == name)
            ]
            paid = [case.mdp.rewards[x, a] for x, a in pairs]
            assert boxes.low[cluster, name] == min(paid)
            assert boxes.high[cluster, name] == max(paid)
            rows = [lifted_exact(case.mdp, clusters.tolist(), x, a) for x, a in pairs]
            for t in range(count):
                masses = [row.get(t, Fraction(0)) for row in rows]
                k = place.get((cluster * width + name, t))
                assert (k is None) == (max(masses) == 0)
                if k is not None:
                    assert boxes.least[k] <= min(masses) <= max(masses) <= boxes.most[k]
                    assert boxes.least[k] >= float(min(masses)) * (1.0 - 1e-12)
                    assert boxes.most[k] <= float(max(masses)) * (1.0 + 1e-12)


def test_what_mirror_images_lose_without_a_renaming() -> None:
    # One pays for the first action, the other for the second: alike once these are renamed.
    P = np.eye(3)[[[2, 2], [2, 2], [2, 2]]]
    mdp = TabularMDP.from_dense(
        P, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], order="sas", terminal_state=2
    )
    plain = prove_value(mdp, [0, 0, 0], 0.9)
    assert plain.loss == pytest.approx(1.0)
    assert plain.renaming is None
    named = prove_value(mdp, [0, 0, 0], 0.9, renaming=[[0, 1], [1, 0], [0, 0]])
    assert named.loss < 1e-9
    assert named.kept == 1.0
    assert named.lifted_policy[:2].tolist() == [0, 1]
    np.testing.assert_allclose(named.bracket.lower, [1.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(named.bracket.upper, [1.0, 0.0], atol=1e-9)


def test_the_lax_relation_matches_actions_with_the_end_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def match(mdp: TabularMDP, labels: Ints) -> Ints:
        asked.append(labels.tolist())
        return match_actions(mdp, labels)

    monkeypatch.setattr(value_proof, "match_actions", match)
    P = np.eye(3)[[[0, 0], [0, 0], [0, 0]]]
    mdp = TabularMDP.from_dense(
        P, [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], order="sas", terminal_state=0
    )
    value = prove_value(mdp, [5, 5, 5], 0.9, relation="lax")
    assert asked == [[1, 0, 0]]
    assert value.loss < 1e-9
    assert value.lifted_policy[1:].tolist() == [0, 1]
    with pytest.raises(InvalidArgumentError, match="relation must be"):
        prove_value(mdp, [5, 5, 5], 0.9, relation="loose")


@pytest.mark.parametrize("known", BY_HAND, ids=lambda k: f"{k.name}-{k.gamma}")
def test_worlds_solved_by_hand(known: Known) -> None:
    value = prove_value(known.mdp, known.labels, known.gamma)
    size = float(np.abs(known.mdp.rewards).max()) / (1.0 - known.gamma)
    for s, exact in enumerate(known.values):
        assert value.optimal_lower[s] <= exact <= value.optimal_upper[s]
        assert value.optimal_upper[s] - value.optimal_lower[s] <= 1e-9 * size
    assert value.loss <= 1e-9 * size
    check_inequalities(known.mdp, known.gamma, value)


def test_the_policy_can_be_worse_than_the_baseline() -> None:
    # States 0 and 1 disagree: either steady action ruins one of them, and 0 is the start.
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    mdp = TabularMDP.from_dense(
        P, [[1.0, 0.0], [0.0, 9.0], [0.0, 0.0]], terminal_state=2, start=[1.0, 0.0, 0.0]
    )
    value = prove_value(mdp, [0, 0, 1], 0.9, by="worst")
    assert value.policy.tolist()[0] == 1
    # One action for ever is best from the start: there is no scale, and something is lost.
    assert value.kept == -np.inf
    assert value.start_loss == pytest.approx(1.0, abs=1e-9)
    assert value.loss == pytest.approx(1.0, abs=1e-9)
    # Judged by the start, the robust policy is better: it serves the start, and ruins state 1.
    other = prove_value(mdp, [0, 0, 1], 0.9, by="start")
    assert (other.policy.tolist()[0], other.kept) == (0, 1.0)
    assert other.loss == pytest.approx(9.0, abs=1e-9)


def test_the_better_of_two_policies_is_handed_out() -> None:
    # Averages favour action 0 (mean 5.5), the worst member favours action 1 (4 in both).
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    rewards = [[0.0, 4.0], [11.0, 4.0], [0.0, 0.0]]
    for state, action, lost in ((0, 1, 0.0), (1, 0, 0.0)):
        mdp = TabularMDP.from_dense(P, rewards, terminal_state=2, start=np.eye(3)[state])
        value = prove_value(mdp, [0, 0, 1], 0.9, by="start")
        assert value.policy.tolist()[0] == action
        assert value.start_loss == pytest.approx(lost, abs=1e-9)
        assert value.kept == 1.0
        assert prove_value(mdp, [0, 0, 1], 0.9, by="worst").loss == pytest.approx(4.0, abs=1e-9)


def test_the_end_is_no_cluster() -> None:
    P = np.zeros((4, 1, 4))
    P[[0, 1, 2, 3], 0, [1, 3, 3, 3]] = 1.0
    mdp = TabularMDP.from_dense(P, [1.0, 1.0, 1.0, 0.0], terminal_state=3)
    value = prove_value(mdp, [0, 0, 0, 0], 0.5)
    assert value.labels.tolist() == [0, 0, 0, 1]
    assert value.policy.size == value.bracket.upper.size == 2
    # The end is worth nothing, and is known to be.
    assert abs(value.bracket.upper[1]) + abs(value.bracket.lower[1]) <= 1e-12
    assert value.bracket.lower[0] == pytest.approx(1.0, abs=1e-9)
    assert value.bracket.upper[0] == pytest.approx(2.0, abs=1e-9)
    unmarked = replace(mdp, terminal_state=None)
    assert prove_value(unmarked, [0, 0, 0, 0], 0.5).labels.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("offset", [0.0, 1.0, -1e6, 1e12])
def test_a_constant_hides_nothing(gamma: float, offset: float) -> None:
    """What is kept does not change if all rewards get a constant, as long as floats have room."""
    mdp = random_mdp(6, 2, seed=3)
    shifted = replace(mdp, rewards=mdp.rewards + offset)
    plain = prove_value(mdp, [0, 0, 0, 1, 1, 1], gamma)
    value = prove_value(shifted, [0, 0, 0, 1, 1, 1], gamma)
    check_inequalities(shifted, gamma, value)
    check_true_model(shifted, Exact.of(shifted, gamma), value)
    assert plain.kept < 1.0
    noise = 1e-11 * (1.0 + abs(offset)) / (1.0 - gamma) ** 2
    if noise < 0.1:
        assert value.kept == pytest.approx(plain.kept, abs=10.0 * noise)
        assert value.loss == pytest.approx(plain.loss, abs=10.0 * noise)


@pytest.mark.parametrize("spread", [1e-9, 1e-10, 1e-11, 1e-12, 1e-14])
def test_ends_where_rounding_decides(spread: float) -> None:
    """Differences near the rounding error of a large constant: no bound gets any closer."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        P = rng.dirichlet(np.ones(4), size=(4, 2))
        mdp = TabularMDP.from_dense(P, 1.0 + spread * rng.random((4, 2)))
        value = prove_value(mdp, rng.integers(0, 2, 4), 0.9)
        check_true_model(mdp, Exact.of(mdp, 0.9), value)


@pytest.mark.parametrize("name", NOTHING_TO_LOSE)
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
def test_nothing_to_lose(name: str, gamma: float) -> None:
    mdp = NOTHING_TO_LOSE[name]
    value = prove_value(mdp, np.zeros(mdp.n_states, np.int64), gamma)
    assert value.kept == 1.0
    assert value.loss <= 1e-8
    if not mdp.rewards.any():
        assert value.loss == value.start_loss == 0.0


def test_a_proof_is_of_its_own_model_and_discount() -> None:
    mdp, other = random_mdp(5, 2, seed=0), random_mdp(5, 2, seed=1)
    with pytest.raises(InvalidArgumentError):
        prove_value(mdp, np.arange(5), 0.9, ground=GroundValues(mdp, 0.5))
    with pytest.raises(InvalidArgumentError):
        prove_value(mdp, np.arange(5), 0.9, ground=GroundValues(other, 0.9))


def test_shared_ground_values_are_only_tightened() -> None:
    mdp, groups = grouped_mdp(30, 3, noise=0.05, seed=1)
    ground = GroundValues(mdp, 0.9)
    gaps = []
    for labels in (np.zeros(30, np.int64), groups, np.arange(30)):
        shared = prove_value(mdp, labels, 0.9, ground=ground)
        alone = prove_value(mdp, labels, 0.9)
        assert shared.loss == pytest.approx(alone.loss, rel=0.11, abs=1e-9)
        gaps.append(ground.gap)
    assert gaps == sorted(gaps, reverse=True)


# -- one function at a time ----------------------------------------------------------------------


@seeds(40)
def test_any_values_can_be_moved_until_they_are_bounds(seed: int) -> None:
    case = random_case(2_000 + seed)
    mdp = with_radii(case.mdp, seed) if seed % 2 else case.mdp
    rng = np.random.default_rng(seed)
    model, n = Exact.of(mdp, case.gamma), mdp.n_states
    size = float(np.abs(mdp.rewards).max()) / (1.0 - case.gamma)
    mixture = np.full(mdp.rewards.shape, 1.0 / mdp.n_actions)
    choice = rng.integers(0, mdp.n_actions, n)
    for spread in (0.0, 1.0):
        values = size * (rng.random() + spread * rng.standard_normal(n))
        for sign in (1.0, -1.0):
            for policy, name in ((None, "best"), (choice, choice.tolist()), (mixture, "mean")):
                found = bounded(mdp, case.gamma, values, sign, policy)
                check_inequality(mdp, model, found, int(sign), name)
                # Moved by one number, and by no more than needed.
                assert np.ptp(found - values) <= 1e-12 * size
                left = sign * (found - backup(mdp, case.gamma, found, sign, policy))
                assert left.min() <= 1e-8 * size + 1e-300


@seeds(60)
def test_start_means_enclose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    start = rng.dirichlet(np.ones(n))
    start[rng.random(n) < 0.3] = 0.0
    start[0] += 1.0 - start.sum() + 1e-10 * rng.standard_normal()
    values = rng.standard_normal(n) * 10.0 ** rng.uniform(-20, 20, n)
    low, high = start_means(start, values)
    assert Fraction(low) <= mean(start, fractions(values)) <= Fraction(high)


@pytest.mark.parametrize("text", ["share", "amount"])
def test_numbers_for_people_are_rounded_to_the_safe_side(text: str) -> None:
    rng = np.random.default_rng(5)
    some = (10.0 ** rng.uniform(-12, 12, 300)).tolist()
    for x in [*some, 1e-310, 1e-300, 1e300, 1.0, 0.9996]:
        if text == "amount":
            assert float(amount_text(x)) >= x * (1.0 - 1e-12)
            assert float(amount_text(x)) <= x * 1.011
        elif x < 1.0:
            for share in (x, min(1.0 - x, 1.0 - 1e-15)):
                text_ = share_text(share)
                assert text_ != "100%"
                if text_.startswith("at least "):
                    told = float(text_.removeprefix("at least ").removesuffix("%")) / 100.0
                    assert share - 0.0011 <= told <= share + 1e-12
                else:
                    assert share < 0.001
            assert "100" not in share_text(-x)
    assert share_text(1.0) == "100%"


# -- brackets ------------------------------------------------------------------------------------


def test_a_bracket_holds_whichever_action_a_tie_is_given_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Above, no action may be better than the bound, also those that are not taken."""
    monkeypatch.setattr(
        "bisim_abstract._abstract.brackets.first_best", lambda q, _: np.zeros(len(q), np.int64)
    )
    for seed in range(10):
        case = random_case(seed)
        bracket = value_bracket(case.mdp, case.labels, case.gamma)
        clusters = np.array(end_apart(case.mdp, case.labels))
        check_bracket_inequalities(case.mdp, case.gamma, clusters, bracket)


def plain_bracket(mdp: TabularMDP, labels: Ints, gamma: float, sides: int) -> list[float]:
    """Interval value iteration in loops: the best (1) or worst (-1) row of each box by filling."""
    count = int(labels.max()) + 1
    values = [0.0] * count
    boxes = {}
    for c in range(count):
        members = np.flatnonzero(labels == c).tolist()
        for a in range(mdp.n_actions):
            rows = [lifted_exact(mdp, labels.tolist(), s, a) for s in members]
            keys = sorted(set().union(*rows))
            least = {k: float(min(row.get(k, Fraction(0)) for row in rows)) for k in keys}
            most = {k: float(max(row.get(k, Fraction(0)) for row in rows)) for k in keys}
            paid = [float(mdp.rewards[s, a]) for s in members]
            boxes[c, a] = (max(paid) if sides > 0 else min(paid), least, most)
    for _ in range(2_000):
        new = []
        for c in range(count):
            q = []
            for a in range(mdp.n_actions):
                reward, least, most = boxes[c, a]
                room, total = 1.0 - sum(least.values()), 0.0
                for k in sorted(least, key=lambda k: -sides * values[k]):
                    extra = min(room, most[k] - least[k])
                    room -= extra
                    total += (least[k] + extra) * values[k]
                q.append(reward + gamma * total)
            new.append(max(q))
        moved = max(abs(x - y) for x, y in zip(new, values, strict=True))
        values = new
        if moved <= 1e-13:
            break
    return values


@seeds(30)
def test_a_bracket_is_that_of_interval_value_iteration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    P = np.array([[random_row(rng, n, "sparse") for _ in range(2)] for _ in range(n)])
    mdp = TabularMDP.from_dense(P, rng.standard_normal((n, 2)), order="sas")
    gamma = (0.0, 0.5, 0.9)[seed % 3]
    _, labels = np.unique(rng.integers(0, 3, n), return_inverse=True)
    order = np.argsort(np.unique(labels, return_index=True)[1])
    labels = np.argsort(order)[labels]  # by first appearance, as clusters are numbered
    bracket = value_bracket(mdp, labels, gamma)
    np.testing.assert_allclose(bracket.upper, plain_bracket(mdp, labels, gamma, 1), atol=1e-9)
    np.testing.assert_allclose(bracket.lower, plain_bracket(mdp, labels, gamma, -1), atol=1e-9)


@seeds(30)
def test_a_bracket_of_single_states_is_tight(seed: int) -> None:
    case = random_case(3_000 + seed)
    n = case.mdp.n_states
    bracket = value_bracket(case.mdp, np.arange(n), case.gamma)
    size = float(np.abs(case.mdp.rewards).max()) / (1.0 - case.gamma)
    assert (bracket.upper - bracket.lower).max() <= 1e-8 * size + 1e-290


# -- estimated models ----------------------------------------------------------------------------


def worst_model(mdp: TabularMDP, gamma: float, values: Values, side: int) -> Exact:
    """The true model within the radii whose one backup of `values` is the highest or lowest."""
    plain, estimate = Exact.of(mdp, gamma), mdp.estimate
    assert estimate is not None
    target = max(range(mdp.n_states), key=lambda s: side * values[s])
    rewards, rows = [], []
    for s in range(mdp.n_states):
        rewards.append(
            [
                r + side * Fraction(float(radius))
                for r, radius in zip(plain.rewards[s], estimate.reward_radius[s], strict=True)
            ]
        )
        line = []
        for a in range(mdp.n_actions):
            row = dict(plain.rows[s][a])
            left = Fraction(float(estimate.row_radius[s, a]))
            for t in sorted(row, key=lambda t: side * values[t]):
                moved = min(left, row[t]) if t != target else Fraction(0)
                row[t] -= moved
                left -= moved
                row[target] = row.get(target, Fraction(0)) + moved
            assert sum(row.values()) == 1
            line.append(row)
        rows.append(line)
    return Exact(rewards, rows, plain.gamma)


def random_model(mdp: TabularMDP, gamma: float, seed: int) -> Exact:
    """Some true model within the radii."""
    rng = np.random.default_rng(seed)
    n = mdp.n_states
    up = worst_model(mdp, gamma, fractions(rng.random(n)), 1)
    down = worst_model(mdp, gamma, fractions(rng.random(n)), -1)
    rewards, rows = [], []
    for s in range(n):
        pick = rng.integers(0, 2, mdp.n_actions).tolist()
        rewards.append([(up, down)[k].rewards[s][a] for a, k in enumerate(pick)])
        rows.append([(down, up)[k].rows[s][a] for a, k in enumerate(pick)])
    return Exact(rewards, rows, Fraction(gamma))


def check_estimate(
    mdp: TabularMDP, gamma: float, labels: Ints, seed: int, *, renaming: Ints | None = None
) -> ProvenValue:
    value = prove_value(mdp, labels, gamma, renaming=renaming)
    check_inequalities(mdp, gamma, value)
    check_true_model(mdp, Exact.of(mdp, gamma), value)
    check_true_model(mdp, random_model(mdp, gamma, seed), value)
    for values in (value.optimal_upper, value.policy_lower, value.random_upper):
        for side in (1, -1):
            check_true_model(mdp, worst_model(mdp, gamma, fractions(values), side), value)
    return value


@pytest.mark.drawn
def test_estimates_hold_for_the_worst_true_model() -> None:
    for seed in range(cases(80)):
        with naming(seed=seed):
            case = random_case(4_000 + seed, max_states=4)
            check_estimate(with_radii(case.mdp, seed), case.gamma, case.labels, seed)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_estimates_of_renamed_actions_hold_for_the_worst_true_model(first: int) -> None:
    for seed in range(first, first + 10):
        case, rng = random_case(5_000 + seed, max_states=4), np.random.default_rng([81, seed])
        mdp = with_radii(case.mdp, seed)
        if seed % 2:
            mdp = with_random_actions(mdp, rng)
        names = random_renaming(mdp, case.labels, rng)
        check_estimate(mdp, case.gamma, case.labels, seed, renaming=names)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 2_000, 100))
def test_many_estimates_hold_for_the_worst_true_model(first: int) -> None:
    for seed in range(first, first + 100):
        case = random_case(4_000 + seed, max_states=5)
        check_estimate(with_radii(case.mdp, seed), case.gamma, case.labels, seed)


def test_the_radii_of_an_estimate_are_what_bounds_pay_for() -> None:
    """Two states, solved by hand: each radius is paid for once, and no more than once."""
    mdp = TabularMDP.from_dense(np.eye(2)[[1, 1]][:, None, :], [1.0, 0.0], start=[1.0, 0.0])
    gamma, r, t = 0.5, 0.25, 0.125
    radii = {"reward_radius": np.array([[r], [0.0]]), "row_radius": np.array([[t], [0.0]])}
    estimate = Estimate(
        counts=np.ones((2, 1), np.int64),
        **radii,
        alpha=0.05,
        reward_range=(0.0, 2.0),
        support_bound=2,
    )
    value = prove_value(replace(mdp, estimate=estimate), [0, 1], gamma)
    # State 1 is worth 0, state 0 at most v = 1 + r + γ·t·v, and at least v = 1 - r: its row leads
    # to where the least is already. Boxes do not know that: v = 1 - r - γ·t·v.
    high, low, boxed = (1.0 + r) / (1.0 - gamma * t), 1.0 - r, (1.0 - r) / (1.0 + gamma * t)
    # Estimates are solved for to about 1e-4 of what values could differ by.
    np.testing.assert_allclose(value.optimal_upper, [high, 0.0], atol=1e-3)
    np.testing.assert_allclose(value.random_upper, [high, 0.0], atol=1e-3)
    np.testing.assert_allclose(value.optimal_lower, [low, 0.0], atol=1e-3)
    np.testing.assert_allclose(value.policy_lower, [low, 0.0], atol=1e-3)
    np.testing.assert_allclose(value.bracket.upper, [high, 0.0], atol=1e-3)
    np.testing.assert_allclose(value.bracket.lower, [boxed, 0.0], atol=1e-3)
    assert value.loss == pytest.approx(high - low, abs=1e-3)


@pytest.mark.parametrize("scale", [1.0, 1e290])
@pytest.mark.parametrize("radius", [0.05, 0.5, 1.0])
def test_a_bracket_is_never_worse_than_a_constant(radius: float, scale: float) -> None:
    """No value is above the highest reward paid for ever: a constant, whose span is 0."""
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [scale, 0.0])
    shape = (2, 1)
    estimate = Estimate(
        counts=np.ones(shape, np.int64),
        reward_radius=np.zeros(shape),
        row_radius=np.full(shape, radius),
        alpha=0.05,
        reward_range=(0.0, scale),
        support_bound=2,
    )
    bracket = value_bracket(replace(mdp, estimate=estimate), [0, 1], 0.99)
    assert np.isfinite(bracket.upper).all()
    assert bracket.upper.max() <= 100.0 * scale * (1.0 + 1e-6)
    assert bracket.lower.min() >= -1e-6 * scale


@pytest.mark.parametrize("steps", [0, 30, 3_000])
@pytest.mark.parametrize("has_end", [False, True])
def test_nothing_exceeds_what_the_range_of_rewards_allows(steps: int, has_end: bool) -> None:
    """Rewards in [2, 3] at γ = 0.9: values in [20, 30], or in [0, 30] where episodes end."""
    rng = np.random.default_rng(steps)
    s, t, a = rng.integers(0, 5, (3, steps))
    ended = rng.random(steps) < 0.1 if has_end else None
    paid = rng.uniform(2.0, 3.0, steps)
    mdp = estimate_mdp(s, a % 2, paid, t, ended, n_states=5, n_actions=2, reward_range=(2.0, 3.0))
    value = prove_value(mdp, np.arange(mdp.n_states) // 2, 0.9)
    least, most = (0.0 if has_end else 20.0) - 1e-9, 30.0 + 1e-9
    for values in (value.optimal_upper, value.random_upper, value.bracket.upper):
        assert (values <= most).all()
    for values in (value.optimal_lower, value.policy_lower, value.bracket.lower):
        assert (values >= least).all()
    assert value.loss <= most - least
    check_inequalities(mdp, 0.9, value)


def test_a_range_that_is_seen_is_no_range_that_is_known() -> None:
    """All samples paid 0, but 1 is possible: bounds above must not forget it."""
    mdp = estimate_mdp(
        [0] * 20, [0] * 20, [0.0] * 20, [0] * 20, n_states=1, n_actions=1, reward_range=(0.0, 1.0)
    )
    value = prove_value(mdp, [0], 0.5)
    assert value.optimal_upper[0] > 0.5  # the mean may well be above 1/4
    assert value.optimal_lower[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("has_blocks", [False, True])
@seeds(8)
def test_sampled_models(seed: int, has_blocks: bool) -> None:
    """From samples to bounds on the model that was sampled."""
    rng = np.random.default_rng(seed)
    n, steps = 4, int(10.0 ** rng.uniform(1.0, 5.0))
    P = np.array([[random_row(rng, n, "sparse") for _ in range(2)] for _ in range(n)])
    R = rng.random((n, 2))
    s, a = rng.integers(0, n, steps), rng.integers(0, 2, steps)
    t = (rng.random((steps, 1)) > np.cumsum(P[s, a], axis=1)).sum(axis=1).clip(max=n - 1)
    paid = (rng.random(steps) < R[s, a]).astype(float)
    ended = t == n - 1 if seed % 2 else None
    blocks = rng.integers(0, 3, n) if has_blocks else None
    mdp = estimate_mdp(
        s,
        a,
        paid,
        t,
        ended,
        n_states=n,
        n_actions=2,
        reward_range=(0.0, 1.0),
        alpha=1e-6,
        blocks=blocks,
    )
    if ended is not None:
        P = np.concatenate([P, np.zeros((n, 2, 1))], axis=2)
        P[:, :, n], P[:, :, n - 1] = P[:, :, n - 1], 0.0
        P = np.concatenate([P, np.broadcast_to(np.eye(n + 1)[n], (1, 2, n + 1))])
        R = np.concatenate([R, np.zeros((1, 2))])
    true = Exact.of(TabularMDP.from_dense(P, R), 0.9)
    labels = rng.integers(0, 2, mdp.n_states).astype(np.int64)
    value = prove_value(mdp, labels, 0.9)
    check_inequalities(mdp, 0.9, value)
    check_true_model(mdp, true, value)


def in_halves(n: int, blocks: list[int] | None) -> tuple[TabularMDP, TabularMDP]:
    """24 states in two halves that lead anywhere in either: the truth, and its estimate.

    Action 0 stays in its half, action 1 leads to the other one, and the second half pays.
    """
    rng = np.random.default_rng(0)
    halves = np.arange(24) // 12
    P = np.array([[np.where(halves == a ^ h, 0.9, 0.1) / 12 for a in (0, 1)] for h in halves])
    true = TabularMDP.from_dense(P, np.repeat(halves[:, None], 2, axis=1))
    s, a, t = rng.integers(0, 24, n), rng.integers(0, 2, n), rng.random(n)
    t = (t[:, None] > np.cumsum(P[s, a], axis=1)).sum(axis=1).clip(max=23)
    paid = halves[s].astype(float)
    return true, estimate_mdp(
        s,
        a,
        paid,
        t,
        n_states=24,
        n_actions=2,
        reward_range=(0.0, 1.0),
        deterministic_rewards=True,
        blocks=blocks,
    )


def test_blocks_that_samples_had_no_part_in_sharpen_values() -> None:
    halves = [0] * 12 + [1] * 12
    true, plain = in_halves(60_000, None)
    _, mdp = in_halves(60_000, halves)
    wide, value = (prove_value(model, halves, 0.8) for model in (plain, mdp))
    assert value.loss < 0.61 * wide.loss
    assert value.kept > 0.0
    assert wide.kept < value.kept
    check_inequalities(mdp, 0.8, value)
    check_true_model(mdp, Exact.of(true, 0.8), value)
    # Other clusters than the blocks' see more of a row, and pay for all of it.
    odd = prove_value(mdp, np.arange(24) % 2, 0.8)
    check_inequalities(mdp, 0.8, odd)
    assert odd.loss > value.loss


# -- the objects ---------------------------------------------------------------------------------


def test_objects_are_frozen_and_checked() -> None:
    value = prove_value(random_mdp(5, 2, seed=0), [0, 0, 1, 1, 1], 0.9)
    assert value.learner is not None
    names = ("optimal_upper", "optimal_lower", "optimal_policy", "policy_lower", "random_upper")
    for name in (*names, "constant_upper", "baseline_lower", "labels"):
        assert not getattr(value, name).flags.writeable
    copied = pickle.loads(pickle.dumps(value))
    for name in ProvenValue.__dataclass_fields__:
        mine, theirs = getattr(value, name), getattr(copied, name)
        if name in ("bracket", "solver", "learner"):
            assert type(theirs) is type(mine)
            assert np.array_equal(theirs.lower, mine.lower)
        else:
            assert np.array_equal(theirs, mine)
    for share in (value.solver, value.learner, value.learner.converged):
        assert share is not None
        for name in ("lower", "excess", "choices", "q_lower", "q_upper", "margin_lower"):
            assert not getattr(share, name, value.labels).flags.writeable
    assert value.lifted_policy.tolist() == value.policy[[0, 0, 1, 1, 1]].tolist()
    for wrong in (
        {"kept": np.nan},
        {"kept": True},
        {"loss": np.inf},
        {"loss": np.nan},
        {"start_loss": -1.0},
        {"start_loss": 2.0 * value.loss + 1.0},
        {"optimal_upper": value.optimal_upper[:-1]},
        {"policy": value.policy[:-1]},
        {"labels": value.labels + 1},
        {"bracket": None},
        {"solver": None},
        {"solver": value.learner},
        {"learner": value.solver},
        {"episodes": "many"},
        {"baseline_start": (1.0, 0.5)},
        {"optimal_start": (0.0, np.inf)},
        {"constant_upper": value.constant_upper[:, 0]},
        {"baseline_lower": value.baseline_lower[1:]},
        {"solver": replace(value.solver, lower=value.solver.lower[1:])},
        {"learner": replace(value.learner, q_lower=np.zeros((1, 1)), q_upper=np.zeros((1, 1)))},
    ):
        with pytest.raises(InvalidArgumentError):
            replace(value, **wrong)
    with pytest.raises(InvalidArgumentError, match="must not exceed"):
        replace(value.solver, q_lower=value.solver.q_upper + 1.0)
    with pytest.raises(InvalidArgumentError, match="margin"):
        replace(value.solver, margin=-1.0)
    with pytest.raises(InvalidArgumentError):
        replace(value.bracket, upper=value.bracket.upper[:-1])
    with pytest.raises(InvalidArgumentError, match="by must be"):
        prove_value(random_mdp(5, 2, seed=0), [0, 0, 1, 1, 1], 0.9, by="best")
