"""Where agents over clusters end, and what they are worth there, against all that they can do."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from bisim_abstract import ProvenValue, TabularMDP, prove_value
from bisim_abstract._abstract.aggregate import aggregate
from bisim_abstract._abstract.value import BoxedShare, ProvenShare
from tests.support.agents import Clustered, Q, Scale, as_sets
from tests.support.examples import cases, naming, seeds
from tests.support.renaming import random_renaming, with_random_actions
from tests.support.values import Case, Exact, Ints, random_case, random_row

pytestmark = pytest.mark.usefixtures("_no_endless_loop")

KEEPS = (0.0, 0.5, 0.95)


def some_case(seed: int) -> tuple[Case, Ints | None]:
    """A small model; every third lacks actions, every fourth calls them by other names."""
    case = random_case(30_000 + seed, max_states=5)
    rng = np.random.default_rng([91, seed])
    mdp, gamma, renaming = case.mdp, case.gamma, None
    if seed % 3 == 1:
        mdp = with_random_actions(mdp, rng)
    if seed % 7 == 2:
        gamma = 0.999
    if seed % 4 == 1:
        renaming = random_renaming(mdp, case.labels, rng)
    return Case(mdp, gamma, case.labels, case.is_plain), renaming


def proven(case: Case, renaming: Ints | None, keep: float = 0.5) -> ProvenValue:
    return prove_value(
        case.mdp,
        case.labels,
        case.gamma,
        renaming=renaming,
        is_enough=lambda share: share.kept >= keep,
    )


def check_box(share: BoxedShare, q: Q) -> None:
    for (c, name), exact in q.items():
        assert Fraction(float(share.q_lower[c, name])) <= exact
        assert exact <= Fraction(float(share.q_upper[c, name]))


def check_inside(
    seen: Clustered, scale: Scale, share: ProvenShare, names: list[set[int]]
) -> list[Fraction]:
    """Every policy that plays only these names, worst from everywhere, is worth what is said."""
    least = seen.model.least_inside(seen.doings(names))
    scale.check(share, least)
    return least


def is_close(case: Case, share: ProvenShare, least: list[Fraction], scale: Scale) -> bool:
    """Whether bounds are about as large as they can be."""
    size = float(np.abs(case.mdp.rewards).max()) / (1.0 - case.gamma)
    low = [Fraction(x) for x in share.lower.tolist()]
    gap = float(max(x - y for x, y in zip(least, low, strict=True)))
    return gap <= 0.02 * share.loss + 2e-4 * size


# -- solvers ---------------------------------------------------------------------------------------


def check_solver(case: Case, renaming: Ints | None, keep: float) -> None:
    value = proven(case, renaming, keep)
    seen = Clustered.of(case.mdp, case.gamma, case.labels, renaming)
    scale = Scale.of(case.mdp, seen.model)
    small = aggregate(case.mdp, case.labels, renaming=renaming)
    stored = Exact.of(small.mdp, case.gamma)
    choices = as_sets(value.choices("solver"))
    # What it solves is stored in floats; on paper its numbers are means.
    for model in (stored, seen.mixed(seen.uniform())):
        q = seen.ends(model)
        check_box(value.solver, q)
        greedy = seen.greedy(q)
        assert all(own <= held for own, held in zip(greedy, choices, strict=True))
        check_inside(seen, scale, value.solver, greedy)
    least = check_inside(seen, scale, value.solver, choices)
    if case.is_plain:
        assert is_close(case, value.solver, least, scale)
        assert choices == greedy or case.gamma == 0.999
    solver = value.solver
    assert (solver.margin is not None) == (solver.kept >= keep)
    if solver.margin is None:
        assert solver.margin_lower.size == 0
        return
    # Whatever its values are within the margin, ties broken against it.
    assert solver.margin_kept >= keep
    names = [set(seen.names(c)) for c in range(seen.count)]
    if solver.margin < np.inf:
        q = seen.ends(stored)
        slack = 2 * Fraction(solver.margin)
        names = seen.greedy(q, slack)
        gaps = {max(q[c, b] for b in seen.names(c)) - worth for (c, _), worth in q.items() if worth}
        beyond = seen.greedy(q, min((gap for gap in gaps if gap > slack), default=slack))
        if case.is_plain and scale.top > scale.base and beyond != names:
            # That is all there is: with one action more, too little is kept.
            least = seen.model.least_inside(seen.doings(beyond))
            assert scale.kept(least) <= keep + 0.01
    least = seen.model.least_inside(seen.doings(names))
    for low, exact in zip(solver.margin_lower.tolist(), least, strict=True):
        assert Fraction(low) <= exact
    scale.check_kept(solver.margin_kept, least)


@pytest.mark.drawn
def test_whoever_solves_the_small_model() -> None:
    for seed in range(cases(300, few=40)):
        with naming(seed=seed):
            case, renaming = some_case(seed)
            check_solver(case, renaming, KEEPS[seed % 3])


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 2_000, 250))
def test_whoever_solves_one_of_many_small_models(first: int) -> None:
    for seed in range(first, first + 250):
        case, renaming = some_case(seed)
        check_solver(case, renaming, KEEPS[seed % 3])


def test_the_worst_policy_inside_a_set_is_the_worst_of_all_there_are() -> None:
    """The reference of these tests against one policy after the other."""
    for seed in range(30):
        case, renaming = some_case(seed)
        value = proven(case, renaming)
        seen = Clustered.of(case.mdp, case.gamma, case.labels, renaming)
        doings = seen.doings(as_sets(value.choices("solver")))
        if np.prod([len(line) for line in doings]) > 50:
            doings = [line[:2] for line in doings]
        every = [seen.model.of_actions(actions) for actions in product(*doings)]
        least = [min(values) for values in zip(*every, strict=True)]
        assert least == seen.model.least_inside(doings)


# -- learners --------------------------------------------------------------------------------------


def check_learner(case: Case, renaming: Ints | None, seed: int) -> None:
    rng = np.random.default_rng([92, seed])
    value = proven(case, renaming)
    learner = value.learner
    assert learner is not None
    assert learner.converged is not None
    seen = Clustered.of(case.mdp, case.gamma, case.labels, renaming)
    scale = Scale.of(case.mdp, seen.model)
    choices, ends = as_sets(value.choices("learner")), as_sets(learner.converged.choices)
    for k in range(6):
        weights = seen.uniform() if k == 0 else seen.random_weights(rng)
        q = seen.ends(seen.mixed(weights))
        check_box(learner, q)
        greedy = seen.greedy(q)
        for names, final, all_ in zip(greedy, ends, choices, strict=True):
            assert names <= final <= all_
        least = check_inside(seen, scale, learner, greedy)
        scale.check(learner.converged, least)
        # What is proven of it is proven by how far its values are above its worth.
        for x, c in enumerate(seen.labels):
            low = max(Fraction(float(learner.q_lower[c, name])) for name in seen.names(c))
            assert least[x] >= low - Fraction(float(learner.converged.excess[x]))
    check_inside(seen, scale, learner, choices)
    assert (learner.converged.lower >= learner.lower).all()
    assert learner.converged.kept >= learner.kept
    # Where all weight may be on the best row, or on the worst one, it ends at an end of the box.
    size = float(np.abs(case.mdp.rewards).max()) / (1.0 - case.gamma)
    if case.is_plain:
        for side, bounds in ((1, learner.q_upper), (-1, learner.q_lower)):
            for key, exact in extreme_ends(seen, side).items():
                assert abs(float(exact) - bounds[key]) <= 1e-6 * size
    assert_stays_inside(seen, learner, rng)


def extreme_ends(seen: Clustered, side: int) -> Q:
    """Where a learner ends whose weights are all on the best (1) or worst (-1) rows, in floats."""
    rows = {
        key: [
            (float(seen.model.rewards[x][a]), {t: float(p) for t, p in seen.lifted(x, a).items()})
            for x, a in held
        ]
        for key, held in seen.rows.items()
    }
    gamma, values = float(seen.model.gamma), [0.0] * seen.count
    for _ in range(20_000):
        q = {
            key: side
            * max(
                side * (reward + gamma * sum(p * values[t] for t, p in row.items()))
                for reward, row in held
            )
            for key, held in rows.items()
        }
        before = values
        values = [max(q[c, name] for name in seen.names(c)) for c in range(seen.count)]
        if max(abs(x - y) for x, y in zip(values, before, strict=True)) <= 1e-13 * (1 - gamma):
            break
    return {key: Fraction(worth) for key, worth in q.items()}


def assert_stays_inside(seen: Clustered, learner: BoxedShare, rng: np.random.Generator) -> None:
    """Once inside the box, no update leaves it, whatever its weights and its step size are."""
    q = {
        key: Fraction(float((learner.q_lower, learner.q_upper)[rng.integers(2)][key]))
        for key in seen.rows
    }
    for _ in range(6):
        key = list(seen.rows)[rng.integers(len(seen.rows))]
        best = [max(q[c, name] for name in seen.names(c)) for c in range(seen.count)]
        x, a = seen.rows[key][rng.integers(len(seen.rows[key]))]
        ahead = sum((p * best[t] for t, p in seen.lifted(x, a).items()), Fraction(0))
        target = seen.model.rewards[x][a] + seen.model.gamma * ahead
        step = Fraction(int(rng.integers(1, 5)), 4)
        q[key] += step * (target - q[key])
        check_box(learner, q)


@pytest.mark.drawn
def test_whoever_learns_through_clusters() -> None:
    for seed in range(cases(300, few=40)):
        with naming(seed=seed):
            case, renaming = some_case(seed)
            check_learner(case, renaming, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 2_000, 250))
def test_whoever_learns_through_many_clusters(first: int) -> None:
    for seed in range(first, first + 250):
        case, renaming = some_case(seed)
        check_learner(case, renaming, seed)


def test_an_excess_beyond_all_numbers_is_none() -> None:
    """Rewards of 1e300 at γ = 0.9999: values are numbers, and what they are off by is not."""
    P = np.eye(3)[[0, 2, 1]][:, None, :]
    mdp = TabularMDP.from_dense(P, [1e300, 0.0, 0.0])
    value = prove_value(mdp, [0, 0, 1], 0.9999)
    assert value.learner is not None
    assert value.learner.converged is None
    assert np.isfinite(value.learner.lower).all()


# -- real steps ------------------------------------------------------------------------------------


class Walk:
    """One-step Q-learning on real steps of a model, which sees clusters.

    Step sizes fall so that their sum has no bound and that of their squares has one. Episodes
    start anew where they end, and sometimes before, where the value of what follows still counts.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.rng = case, np.random.default_rng([99, seed])
        mdp, n = case.mdp, case.mdp.n_states
        self.labels = Clustered.of(mdp, case.gamma, case.labels).labels
        self.sums = np.cumsum(mdp.kernel().toarray(), axis=1).reshape(n, mdp.n_actions, n)
        self.starts = np.cumsum(np.full(n, 1.0 / n))
        count = max(self.labels) + 1
        self.q = self.rng.standard_normal((count, mdp.n_actions))
        self.visits = np.zeros(self.q.shape)
        if mdp.terminal_state is not None:
            self.q[self.labels[mdp.terminal_state]] = 0.0

    def act(self, behaviour: str, step: int, cluster: int) -> int:
        count = self.case.mdp.n_actions
        explores = 1.0
        if behaviour == "greedy":
            explores = 0.3
        elif behaviour == "moody":  # for ever: it prefers another action every now and then
            explores = 0.4
        if self.rng.random() < explores:
            return int(self.rng.integers(count))
        if behaviour == "moody":
            return int(np.log2(step + 1.0)) % count
        return int(self.q[cluster].argmax())

    def learn(self, behaviour: str, steps: int) -> None:
        mdp = self.case.mdp
        x = int(np.searchsorted(self.starts, self.rng.random()))
        for step in range(steps):
            c = self.labels[x]
            a = self.act(behaviour, step, c)
            line = self.sums[x][a]
            y = min(int(np.searchsorted(line, self.rng.random() * line[-1])), mdp.n_states - 1)
            is_over = y == mdp.terminal_state
            ahead = 0.0 if is_over else self.q[self.labels[y]].max()
            self.visits[c, a] += 1.0
            rate = 20.0 / (19.0 + self.visits[c, a])
            target = mdp.rewards[x, a] + self.case.gamma * ahead
            self.q[c, a] += rate * (target - self.q[c, a])
            is_cut = self.rng.random() < 0.1
            x = y
            if is_over or is_cut:
                x = int(np.searchsorted(self.starts, self.rng.random()))
            if x == mdp.terminal_state:
                x = 0 if mdp.terminal_state else 1


def walked(seed: int) -> Case:
    """A model with rewards near 1, in which all states are started from."""
    rng = np.random.default_rng([100, seed])
    n, n_actions, has_end = 6, 2, seed % 2 == 1
    kind = ("deterministic", "sparse")[seed // 2 % 2]
    P = np.array([[random_row(rng, n, kind) for _ in range(n_actions)] for _ in range(n)])
    R = rng.random((n, n_actions))
    if has_end:
        P[n - 1], R[n - 1] = np.eye(n)[n - 1], 0.0
    mdp = TabularMDP.from_dense(P, R, order="sas", terminal_state=n - 1 if has_end else None)
    return Case(mdp, 0.7, np.array([0, 0, 1, 1, 2, 3]), True)


@pytest.mark.parametrize("behaviour", ["uniform", "greedy", "moody"])
@seeds(10)
def test_q_learning_on_real_steps_ends_inside_its_box(seed: int, behaviour: str) -> None:
    """After finite many steps, up to a tolerance: a fiftieth of what values can differ by."""
    case = walked(seed)
    value = proven(case, None)
    learner = value.learner
    assert learner is not None
    agent = Walk(case, seed)
    agent.learn(behaviour, 15_000)
    live = [c for c in range(len(agent.q)) if (agent.visits[c] > 0).all()]
    assert len(live) >= 3
    allowed = 0.02 / (1.0 - case.gamma)
    assert (agent.q[live] >= learner.q_lower[live] - allowed).all()
    assert (agent.q[live] <= learner.q_upper[live] + allowed).all()
    # What it then does is inside what it may end with, but for actions within the tolerance.
    seen = Clustered.of(case.mdp, case.gamma, case.labels)
    scale = Scale.of(case.mdp, seen.model)
    chosen = [{int(line.argmax())} for line in agent.q]
    choices = as_sets(value.choices("learner"))
    wide = as_sets(learner.q_upper >= learner.q_lower.max(axis=1, keepdims=True) - 2.0 * allowed)
    assert all(own <= held for own, held in zip(chosen, wide, strict=True))
    own = seen.model.of_actions([line[0] for line in seen.doings(chosen)])
    if all(own_ <= held for own_, held in zip(chosen, choices, strict=True)):
        scale.check(learner, own)
