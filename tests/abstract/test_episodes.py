"""Episodes within a time limit, against exact recursion and all that can be done step by step."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, TabularMDP, prove_value
from bisim_abstract._abstract.episodes import EpisodeBounds, Episodes, bound_episodes, horizon_of
from bisim_abstract._model.generators import grouped_mdp
from tests.support.examples import cases, naming
from tests.support.renaming import with_random_actions
from tests.support.values import Case, Exact, mean, random_case, with_radii

Line = list[Fraction]


def some_case(seed: int, *, max_states: int = 5) -> Case:
    case = random_case(50_000 + seed, max_states=max_states)
    if seed % 3 == 1:
        rng = np.random.default_rng([96, seed])
        return replace(case, mdp=with_random_actions(case.mdp, rng))
    return case


def after(
    model: Exact, ends: int | None, returns: Line, ended: Line, actions: list[int]
) -> tuple[Line, Line]:
    """One step more, with an action for each state; the end of episodes stays what it is."""
    more, over = [], []
    for s, a in enumerate(actions):
        if s == ends:
            more.append(Fraction(0))
            over.append(Fraction(1))
            continue
        row = model.rows[s][a]
        more.append(
            model.rewards[s][a] + sum((p * returns[t] for t, p in row.items()), Fraction(0))
        )
        over.append(sum((p * ended[t] for t, p in row.items()), Fraction(0)))
    return more, over


def begun(mdp: TabularMDP) -> tuple[Line, Line]:
    n, end = mdp.n_states, mdp.terminal_state
    return [Fraction(0)] * n, [Fraction(int(s == end)) for s in range(n)]


def check_encloses(mdp: TabularMDP, found: EpisodeBounds, returns: Line, ended: Line) -> None:
    """Bounds contain the mean and the worst start of these exact figures."""
    starts = np.flatnonzero(mdp.start).tolist()
    for bounds, exact in (
        (found.mean_return, mean(mdp.start, returns)),
        (found.worst_return, min(returns[s] for s in starts)),
    ):
        assert bounds[0] <= exact <= bounds[1]
    if mdp.terminal_state is None:
        assert (found.ended, found.worst_ended) == (None, None)
        return
    for share, exact in (
        (found.ended, mean(mdp.start, ended)),
        (found.worst_ended, min(ended[s] for s in starts)),
    ):
        assert share is not None
        assert 0.0 <= share[0] <= exact <= share[1]


def width(bounds: tuple[float, float]) -> float:
    return bounds[1] - bounds[0]


@pytest.mark.drawn
def test_a_policy_against_exact_recursion() -> None:
    for seed in range(cases(300)):
        with naming(seed=seed):
            case = some_case(seed)
            mdp, model = case.mdp, Exact.of(case.mdp, case.gamma)
            rng = np.random.default_rng([97, seed])
            policy = mdp.played(rng.integers(0, mdp.n_actions, mdp.n_states))
            horizon = int(rng.choice([1, 2, 3, 10, 25]))
            returns, ended = begun(mdp)
            for _ in range(horizon):
                returns, ended = after(model, mdp.terminal_state, returns, ended, policy.tolist())
            found = bound_episodes(mdp, policy, horizon)
            check_encloses(mdp, found, returns, ended)
            size = float(np.abs(mdp.rewards).max()) * horizon**2
            assert width(found.mean_return) <= 1e-13 * size + 1e-299
            assert width(found.worst_return) <= 1e-13 * size + 1e-299
            if found.ended is not None:
                assert width(found.ended) <= 1e-13 * (horizon + 1)


def test_a_policy_that_leaves_it_to_chance_against_exact_recursion() -> None:
    for seed in range(40):
        with naming(seed=seed):
            case = some_case(2_000 + seed)
            mdp, model = case.mdp, Exact.of(case.mdp, case.gamma)
            rng = np.random.default_rng([101, seed])
            plan = mdp.available * rng.random(mdp.rewards.shape)
            plan /= plan.sum(axis=1, keepdims=True)
            weights = [
                [Fraction(w) / sum(map(Fraction, line)) for w in line] for line in plan.tolist()
            ]
            horizon = int(rng.choice([1, 2, 3, 10]))
            returns, ended = begun(mdp)
            for _ in range(horizon):
                each = [
                    after(model, mdp.terminal_state, returns, ended, [a] * mdp.n_states)
                    for a in range(mdp.n_actions)
                ]
                returns, ended = (
                    [
                        sum((w * each[a][k][s] for a, w in enumerate(line)), Fraction(0))
                        for s, line in enumerate(weights)
                    ]
                    for k in (0, 1)
                )
            check_encloses(mdp, bound_episodes(mdp, plan, horizon), returns, ended)


@pytest.mark.drawn
def test_a_set_against_everything_that_can_be_done_inside_it() -> None:
    """All plans that may change their mind at every step, and chance between them."""
    for seed in range(cases(120)):
        with naming(seed=seed):
            case = some_case(1_000 + seed, max_states=3)
            mdp, model = case.mdp, Exact.of(case.mdp, case.gamma)
            rng = np.random.default_rng([98, seed])
            n, horizon = mdp.n_states, 2
            allowed = rng.random(mdp.rewards.shape) < 0.6
            allowed[np.arange(n), rng.integers(0, mdp.n_actions, n)] = True
            found = bound_episodes(mdp, allowed, horizon)
            lines = [np.flatnonzero(line).tolist() for line in allowed]
            plans = list(product(*lines))
            every = []
            for first, second in product(plans, plans):
                returns, ended = begun(mdp)
                for actions in (second, first):  # backwards
                    returns, ended = after(model, mdp.terminal_state, returns, ended, list(actions))
                check_encloses(mdp, found, returns, ended)
                every.append((mean(mdp.start, returns), mean(mdp.start, ended)))
            # From each start the worst is worst step by step, which one plan does for all starts.
            least = [float(min(column)) for column in zip(*every, strict=True)]
            size = float(np.abs(mdp.rewards).max())
            assert found.mean_return[0] >= least[0] - 1e-12 * size - 1e-299
            assert (found.mean_return[1], found.worst_return[1]) == (math.inf, math.inf)
            if found.ended is not None:
                assert found.ended[0] >= least[1] - 1e-12


def corridor(n: int) -> TabularMDP:
    """Steps of -1 to the end, which is n of them away; action 1 stays."""
    P = np.zeros((n + 1, 2, n + 1))
    P[np.arange(n), 0, np.arange(1, n + 1)] = 1.0
    P[np.arange(n), 1, np.arange(n)] = 1.0
    P[n, :, n] = 1.0
    R = -np.ones((n + 1, 2))
    R[n] = 0.0
    start = np.eye(n + 1)[0] / 2 + np.eye(n + 1)[n - 1] / 2
    return TabularMDP.from_dense(P, R, order="sas", terminal_state=n, start=start)


@pytest.mark.parametrize(
    ("horizon", "ended", "worst", "mean_return", "worst_return"),
    [
        (1, 0.5, 0.0, -1.0, -1.0),
        (3, 0.5, 0.0, -2.0, -3.0),
        (4, 1.0, 1.0, -2.5, -4.0),
        (5, 1.0, 1.0, -2.5, -4.0),
    ],
)
def test_an_end_at_the_last_step_counts(
    horizon: int, ended: float, worst: float, mean_return: float, worst_return: float
) -> None:
    found = bound_episodes(corridor(4), np.zeros(5, np.int64), horizon)
    assert found.ended == pytest.approx((ended, ended), abs=1e-12)
    assert found.worst_ended == pytest.approx((worst, worst), abs=1e-12)
    assert found.mean_return == pytest.approx((mean_return, mean_return), abs=1e-12)
    assert found.worst_return == pytest.approx((worst_return, worst_return), abs=1e-12)


def test_where_nothing_ends() -> None:
    mdp = TabularMDP.from_dense(np.ones((1, 1, 1)), [2.0])
    found = bound_episodes(mdp, np.zeros(1, np.int64), 7)
    assert (found.ended, found.worst_ended) == (None, None)
    assert found.mean_return == pytest.approx((14.0, 14.0))
    value = prove_value(mdp, [0], 0.9, horizon=7)
    assert value.episodes is not None
    assert (
        value.episodes.summary()
        == "episodes return at least 14 in 7 steps (policy optimal at this gamma: 14)"
    )
    assert not value.episodes.ends_clearly_fewer("policy")


# -- what is said of them --------------------------------------------------------------------------


def bounds(ended: float | None, returned: float) -> EpisodeBounds:
    share = None if ended is None else (ended, 1.0)
    return EpisodeBounds((returned, math.inf), (returned, math.inf), share, share)


@pytest.mark.parametrize(
    ("own", "best", "expected"),
    [
        ((0.9, 0.0), (1.0, 1.0), True),
        ((0.951, 0.0), (1.0, 1.0), False),  # nearly as many
        ((0.9, 1.0), (1.0, 1.0), False),  # as much is returned: ending is not what pays
        ((0.0, 2.0), (1.0, 1.0), False),
        ((0.0, -1.0), (0.0, 1.0), False),  # the best policy does not end any, either
        ((0.45, 0.0), (0.5, 1.0), True),
        ((0.48, 0.0), (0.5, 1.0), False),
        ((0.0, -2.0), (1.0, -1.0), True),
        ((None, 0.0), (None, 1.0), False),
    ],
)
def test_clearly_fewer_ends(
    own: tuple[float | None, float], best: tuple[float | None, float], expected: bool
) -> None:
    found = Episodes(10, policy=bounds(1.0, 9.0), optimal=bounds(*best), solver=bounds(*own))
    assert found.ends_clearly_fewer("solver") is expected
    assert found.ends_clearly_fewer("learner") is False  # not computed


def test_of_whom_they_speak() -> None:
    """Two states apart pay for different actions; together, an agent may do either or worse."""
    mdp = corridor(4)
    apart = prove_value(mdp, np.arange(5), 0.9, horizon=4).episodes
    assert apart is not None
    assert apart.learner is not None
    for guarantee in ("policy", "solver", "learner"):
        own = apart.of(guarantee)
        assert own is not None
        assert own.ended is not None
        assert own.ended[0] == pytest.approx(1.0, abs=1e-9)
        text = apart.summary(guarantee)
        assert text == "100% of episodes end within 4 steps (policy optimal at this gamma: 100%)"
    # Episodes that end late pay: who knows nothing of ends may go on for ever.
    paid = replace(mdp, rewards=-mdp.rewards)
    late = prove_value(paid, [0] * 5, 0.9, horizon=4).episodes
    assert late is not None
    assert late.optimal.ended is not None
    assert late.optimal.ended[1] <= 1e-9
    assert not late.ends_clearly_fewer("policy")
    # Where any action is as good, whoever breaks ties against us stays.
    free = prove_value(replace(mdp, rewards=0.0 * mdp.rewards), [0] * 5, 0.9, horizon=4)
    assert free.episodes is not None
    assert free.episodes.solver.ended == (0.0, math.inf)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = corridor(4)
    assert horizon_of(mdp, None) is None
    timed = replace(mdp, metadata={"time_limit": 9})
    assert horizon_of(timed, None) == 9
    assert horizon_of(timed, 4) == 4
    for wrong in (True, 0, -1, "9", 9.0, None):
        assert horizon_of(replace(mdp, metadata={"time_limit": wrong}), None) is None
    for given in (0, True, 2.5, "many"):
        with pytest.raises(InvalidArgumentError, match="horizon"):
            horizon_of(timed, given)  # type: ignore[arg-type]
    assert horizon_of(replace(with_radii(mdp, 0), metadata={"time_limit": 9}), None) is None
    monkeypatch.setattr("bisim_abstract._abstract.episodes.WORK", 9 * mdp.nnz)
    assert horizon_of(timed, None) == 9
    with pytest.raises(InvalidArgumentError, match="horizon must be at most 9 steps"):
        horizon_of(timed, 10)


def test_objects_are_checked_and_survive_json() -> None:
    mdp = corridor(3)
    found = prove_value(mdp, [0, 0, 0, 1], 0.9, horizon=5).episodes
    assert found is not None
    assert Episodes.read(found.header()) == found
    endless = Episodes(
        3, policy=bounds(None, 0.0), optimal=bounds(None, 0.0), solver=bounds(None, 0.0)
    )
    assert Episodes.read(endless.header()) == endless
    for wrong in ((1.0, 0.5), (math.nan, 1.0), (-math.inf, 0.0)):
        with pytest.raises(InvalidArgumentError, match="must be bounds"):
            EpisodeBounds(wrong, (0.0, 1.0), None, None)
    with pytest.raises(InvalidArgumentError, match="horizon"):
        replace(found, horizon=0)
    with pytest.raises(InvalidArgumentError, match="solver must be"):
        replace(found, solver="nobody")  # type: ignore[arg-type]


def test_a_limit_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = grouped_mdp(20, 4, noise=0.01, seed=0)[0]
    monkeypatch.setattr("bisim_abstract._abstract.episodes.WORK", 10 * mdp.nnz)
    assert prove_value(mdp, np.arange(20), 0.9, horizon=10).episodes is not None
    with pytest.raises(InvalidArgumentError, match="at most 10 steps for a model of"):
        prove_value(mdp, np.arange(20), 0.9, horizon=11)
    own = mdp.with_metadata(time_limit=11)  # nobody asked: there are no figures
    assert prove_value(own, np.arange(20), 0.9).episodes is None
