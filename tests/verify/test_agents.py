"""The verifier's check of what agents over clusters keep, of the baseline and of episodes."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import TabularMDP, prove_value
from bisim_abstract._verify import agents
from bisim_abstract._verify.arithmetic import Arithmetic
from tests.support.proven import (
    Converging,
    Ground,
    episode_values,
    false_claims,
    follow,
    honest_value,
    problem_of,
)
from tests.support.relations import renamed_mdp
from tests.support.renaming import random_renaming
from tests.support.values import mean, random_case, with_radii

Rng = np.random.Generator

MODES = ("float", "exact")
MARGINS = (None, 0.0, 0.05, 0.5, math.inf)
FUNCTIONS = (
    "optimal_upper",
    "optimal_lower",
    "policy_lower",
    "random_upper",
    "constant_upper",
    "baseline_lower",
    "solver.q_lower",
    "solver.q_upper",
    "solver.lower",
    "solver.margin_lower",
    "learner.q_lower",
    "learner.q_upper",
    "learner.lower",
    "learner.converged.lower",
    "learner.converged.excess",
)
NUMBERS = (
    "optimal_start",
    "baseline_start",
    "solver.margin",
    "solver.margin_kept",
    *(
        f"{who}{name}"
        for who in ("", "solver.", "learner.", "learner.converged.")
        for name in ("kept", "loss", "start_loss")
    ),
)
CHOICES = ("policy", "optimal_policy", "baseline_action", "learner.converged.choices")
NONE = -math.inf  # of a share: nothing is proven
EPISODES = ("policy", "optimal", "solver", "learner")
FIGURES = ("mean_return", "worst_return", "ended", "worst_ended")


def holder_of(value: Any, name: str) -> tuple[Any, str]:
    """Where a claim stands, and what it is called there."""
    *path, last = name.split(".")
    for part in path:
        value = getattr(value, part)
    return value, last


def has(value: Any, name: str) -> bool:
    if name.startswith("learner.converged.") and value.learner.converged is None:
        return False
    holder, last = holder_of(value, name)
    found = getattr(holder, last)
    return found is not None and np.size(found) > 0


def changed(value: Any, name: str, change: Any) -> Any:
    """A copy with one other claim."""
    made = copy.deepcopy(value)
    holder, last = holder_of(made, name)
    setattr(holder, last, change)
    return made


def of(value: Any, name: str) -> Any:
    holder, last = holder_of(value, name)
    return getattr(holder, last)


class Drawn:
    """A model, clusters and honest claims; `room` lets floats confirm them."""

    def __init__(self, seed: int, *, room: float = 0.0, sweeps: int = 40) -> None:
        rng = np.random.default_rng([31, seed])
        kind = ("plain", "masked", "lax", "estimate")[seed % 4]
        self.relation = "lax" if kind == "lax" else "plain"
        self.gamma = float(rng.choice([0.0, 0.5, 0.75]))
        renaming = None
        if kind in ("plain", "estimate"):
            case = random_case(seed, max_states=4)
            while not 1e-100 < np.abs(case.mdp.rewards).max() < 1e100:
                case = random_case(int(rng.integers(10**6)), max_states=4)
            self.mdp = case.mdp if kind == "plain" else with_radii(case.mdp, seed)
            labels = case.labels
        else:
            self.mdp = renamed_mdp(seed, n=4, n_actions=3, missing=0.35)
            if rng.random() < 0.5:
                self.mdp = with_end(self.mdp)
            labels = rng.integers(0, 2, self.mdp.n_states)
            if kind == "lax":
                renaming = random_renaming(self.mdp, labels, rng)
            elif self.mdp.has_action_sets:
                renaming = np.where(self.mdp.available, np.arange(3), -1)
        self.value = honest_value(
            self.mdp,
            self.gamma,
            labels.tolist(),
            renaming,
            horizon=None if rng.random() < 0.3 else int(rng.integers(1, 9)),
            margin=MARGINS[int(rng.integers(len(MARGINS)))],
            sweeps=sweeps,
            room=room,
        )

    def problem(self, value: Any, mode: str) -> str:
        return problem_of(value, self.mdp, self.gamma, mode, self.relation)

    def is_true(self, value: Any) -> bool:
        return not false_claims(value, self.mdp, self.gamma)


def with_end(mdp: TabularMDP) -> TabularMDP:
    """The same, its last state the end of episodes; it has all actions."""
    n, n_actions = mdp.n_states, mdp.n_actions
    P = np.zeros((n, n_actions, n))
    for s in range(n):
        for a in range(n_actions):
            at, p = mdp.successors(s, a)
            P[s, a, at] = p
    P[n - 1] = np.eye(n)[n - 1]
    rewards, available = mdp.rewards.copy(), mdp.available.copy()
    rewards[n - 1], available[n - 1] = 0.0, True
    return TabularMDP.from_dense(P, rewards, order="sas", terminal_state=n - 1, available=available)


# -- honest ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_accepts_honest_claims(first: int) -> None:
    for seed in range(first, first + 8):
        tight, loose = Drawn(seed), Drawn(seed, room=1e-10)
        assert tight.is_true(tight.value)
        assert tight.problem(tight.value, "exact") == ""
        assert loose.is_true(loose.value)
        for mode in MODES:
            assert loose.problem(loose.value, mode) == "", seed


def drawn_case(seed: int) -> tuple[TabularMDP, float, npt.NDArray[np.int64], str]:
    rng = np.random.default_rng([3, seed])
    if seed % 4 < 2:
        case = random_case(seed, max_states=7)
        mdp = with_radii(case.mdp, seed) if seed % 4 else case.mdp
        return mdp, case.gamma, case.labels, "plain"
    mdp = renamed_mdp(seed, n=6, n_actions=3, missing=0.3, radius=0.01 * (seed % 5 == 0))
    gamma = float(rng.choice([0.0, 0.5, 0.9, 0.99]))
    return mdp, gamma, rng.integers(0, 3, 6), "lax" if seed % 4 == 3 else "plain"


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_accepts_what_is_proven(first: int) -> None:
    seen = 0
    for seed in range(first, first + 20):
        mdp, gamma, labels, relation = drawn_case(seed)
        value = prove_value(
            mdp,
            labels,
            gamma,
            relation=relation,
            horizon=(None, 1, 50)[seed % 3],
            is_enough=None if seed % 3 == 0 else lambda share: share.kept > 0.5,
        )
        if np.abs(mdp.rewards).max() > 1e-290:  # else products of probabilities underflow
            assert problem_of(value, mdp, gamma, "float", relation) == "", seed
        assert problem_of(value, mdp, gamma, "exact", relation) == "", seed
        seen += value.learner is not None
    assert seen == 20


def test_what_converging_values_may_lack_is_rounded_outward() -> None:
    """The excess in fractions lies between both ends in floats, though often beyond the middle."""
    above = below = 0
    for seed in range(60):
        drawn = Drawn(seed)
        if drawn.mdp.estimate is not None:
            continue
        value = drawn.value
        slots = agents.Slots.of(value, drawn.mdp.available)
        floats, exact = (
            agents.Converging(
                value.learner,
                slots,
                value.labels,
                Arithmetic(drawn.mdp, drawn.gamma, is_exact=is_exact),
            )
            for is_exact in (False, True)
        )
        least, most = floats.excess(-1).tolist(), floats.excess().tolist()
        for low, middle, high in zip(least, exact.excess().tolist(), most, strict=True):
            assert Fraction(low) <= middle <= Fraction(high), seed
            nearest = (Fraction(low) + Fraction(high)) / 2
            above, below = above + (nearest < middle), below + (nearest > middle)
    assert above > 5
    assert below > 5


# -- false ones ----------------------------------------------------------------------------------


def altered(drawn: Drawn, rng: Rng) -> Any:
    """One claim moved a little or much, to either side; sometimes with what follows from it."""
    value = changed(drawn.value, "episodes", None)  # the oracle knows nothing of them
    names = [x for x in (*FUNCTIONS, *NUMBERS, *CHOICES) if has(value, x)]
    if value.solver.margin is None:
        names.remove("solver.margin_kept")
    name = names[int(rng.integers(len(names)))]
    holder, last = holder_of(value, name)
    old = getattr(holder, last)
    amount = float(rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-17, 1))
    if name in CHOICES:
        if name == "baseline_action":
            value.baseline_action = int(rng.integers(-1, drawn.mdp.n_actions))
        elif name == "optimal_policy":
            own = [rng.choice(np.flatnonzero(line)) for line in drawn.mdp.available]
            value.optimal_policy = np.array(own, np.int64)
        elif name == "policy":
            used = Ground(drawn.mdp, drawn.gamma, value.labels, value.renaming).used
            chosen = [rng.choice(sorted(used[c])) for c in range(len(used))]
            value.policy = np.array(chosen, np.int64)
        else:
            holder.choices = holder.choices & (rng.random(old.shape) < 0.7)
    elif name in NUMBERS:
        array = np.array(old, float)
        size = np.where(np.isfinite(array), np.maximum(np.abs(array), 1e-3), 1.0)
        array = np.where(np.isfinite(array), array, 0.5)
        moved = array + amount * size * (rng.random(array.shape) < 0.7)
        if name == "solver.margin":
            moved = np.abs(moved)
        setattr(holder, last, tuple(moved.tolist()) if moved.ndim else float(moved))
    else:
        moved = old.copy()
        at = tuple(rng.integers(moved.shape)) if rng.random() < 0.7 else ...
        moved[at] += amount * max(float(np.abs(moved).max()), 1e-3)
        if name.endswith("excess"):
            moved = np.maximum(moved, 0.0)
        setattr(holder, last, moved)
        for box in (value.solver, value.learner):  # the form must be right
            box.q_upper = np.maximum(box.q_upper, box.q_lower)
    if rng.random() < 0.3:
        margin = value.solver.margin
        follow(value, Ground(drawn.mdp, drawn.gamma, value.labels, value.renaming))
        value.solver.margin = margin
    return value


def check_altered(seed: int, count: int, room: float) -> int:
    """Exact mode decides as the oracle does, and float mode accepts nothing that is false."""
    drawn, rng = Drawn(seed, room=room), np.random.default_rng([17, seed])
    false = 0
    for _ in range(count):
        value = altered(drawn, rng)
        truth = drawn.is_true(value)
        false += not truth
        exact = drawn.problem(value, "exact")
        assert (exact == "") == truth, (seed, exact, false_claims(value, drawn.mdp, drawn.gamma))
        if drawn.problem(value, "float") == "":
            assert truth, seed
    return false


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_decides_as_exact_arithmetic_does(first: int) -> None:
    false = sum(check_altered(k, 12, 1e-9 * (k % 2)) for k in range(first, first + 5))
    assert 10 < false < 58


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 1_400, 50))
def test_decides_as_exact_arithmetic_does_again_and_again(first: int) -> None:
    assert sum(check_altered(k, 20, 1e-9 * (k % 2)) for k in range(first, first + 50)) > 100


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rejects_a_function_that_is_too_good(name: str) -> None:
    """By little or by much: as soon as it is false, in both modes."""
    side = -1.0 if name.endswith(("upper", "excess")) else 1.0
    rejected = set()
    for seed in range(8):
        drawn = Drawn(seed)
        if not has(drawn.value, name):
            continue
        for amount in (1e-12, 1e-6, 1e-2, 1e3):
            for k in range(np.size(of(drawn.value, name))):
                moved = np.array(of(drawn.value, name))
                moved.ravel()[k] += side * amount * (1.0 + abs(moved.ravel()[k]))
                value = changed(drawn.value, name, moved)
                if name.endswith("excess") and moved.min() < 0.0:
                    continue
                boxes = (value.solver, value.learner)
                if any((box.q_lower > box.q_upper).any() for box in boxes):
                    continue
                if not drawn.is_true(value):
                    rejected.add(amount)
                    for mode in MODES:
                        assert drawn.problem(value, mode), (seed, mode, amount, k)
    assert 1e-12 in rejected or name.endswith("excess")
    assert rejected


FORMS: dict[str, Any] = {
    "nan": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x),
    "inf": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 0, np.inf, x),
    "-inf": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 0, -np.inf, x),
    "huge": lambda x: np.where(np.arange(x.size).reshape(x.shape) % 2, -1.7e308, 1.7e308),
    "mirrored": lambda x: np.where(np.arange(x.size).reshape(x.shape) % 2, 1.7e308, -1.7e308),
    "short": lambda x: x[:-1],
    "long": lambda x: np.concatenate([x, x[-1:]]),
    "wide": lambda x: np.stack([x, x], axis=-1),
    "flat": lambda x: x.reshape(1, -1) if x.ndim == 1 else x.ravel(),
    "empty": lambda x: x[:0],
    "float32": lambda x: x.astype(np.float32),
    "object": lambda x: x.astype(object),
    "list": lambda x: x.tolist(),
    "none": lambda x: None,
    "text": lambda x: "0.0",
}


def full(seed: int = 0) -> Drawn:
    """With a margin, values that converge and episodes."""
    for k in range(seed, seed + 400, 4):
        drawn = Drawn(k, room=1e-9)
        value = drawn.value
        is_full = value.episodes is not None and value.solver.margin not in (None, math.inf)
        if is_full and value.episodes.policy.ended is not None and drawn.mdp.n_states > 2:
            return drawn
    raise AssertionError("no model has all")


@pytest.mark.parametrize("form", FORMS)
def test_rejects_malformed_arrays(form: str) -> None:
    drawn = full()
    arrays = (*FUNCTIONS, "optimal_policy", "learner.converged.choices")
    for name in arrays:
        array = of(drawn.value, name)
        if form in ("nan", "inf", "-inf", "huge", "mirrored") and array.dtype != np.float64:
            continue
        with np.errstate(over="ignore"):
            value = changed(drawn.value, name, FORMS[form](array))
        for mode in MODES:
            problem = drawn.problem(value, mode)
            what = "" if form in ("huge", "mirrored") else name.rsplit(".", 1)[-1]
            assert problem, (name, mode)
            assert what in problem, (name, mode, problem)


@pytest.mark.parametrize(
    "wrong", [np.nan, NONE, None, "1", True, 1j, [1.0], np.ones(1), np.ones(2), object(), ()]
)
def test_rejects_malformed_numbers(wrong: Any) -> None:
    drawn = full()
    for name in NUMBERS:
        if (name == "solver.margin" and wrong is None) or ("kept" in name and wrong is NONE):
            continue
        pairs = [wrong] if not name.endswith("start") else [wrong, (wrong, 1.0), (1.0, wrong)]
        for change in pairs:
            value = changed(drawn.value, name, change)
            for mode in MODES:
                assert drawn.problem(value, mode), (name, mode, change)
    for name in ("baseline_action", "episodes.horizon"):
        if not isinstance(wrong, bool):
            value = changed(drawn.value, name, wrong)
            assert all(drawn.problem(value, mode) for mode in MODES), name


def test_rejects_claims_that_have_no_place() -> None:
    drawn = full()
    value, n_actions = drawn.value, drawn.mdp.n_actions
    wrong: list[tuple[Any, str]] = [
        (changed(value, "baseline_action", n_actions), "baseline_action"),
        (changed(value, "baseline_action", -2), "baseline_action"),
        (changed(value, "optimal_policy", value.optimal_policy + n_actions), "optimal_policy"),
        (changed(value, "solver.margin", -0.1), "margin"),
        (changed(value, "solver.margin", None), "margin_lower"),
        (changed(value, "learner", None), "learner"),  # whose episodes are left
        (changed(value, "solver", None), "margin"),
        (changed(value, "episodes.horizon", 0), "horizon"),
        (changed(value, "episodes.horizon", 10**15), "too long"),
        (changed(value, "solver.q_lower", value.solver.q_upper + 1.0), "q_lower exceeds"),
        (changed(value, "learner.converged.excess", -(value.optimal_upper**2) - 1.0), "negative"),
    ]
    lone = changed(value, "solver.margin", None)
    lone.solver.margin_lower, lone.solver.margin_kept = np.empty(0), 0.5
    wrong.append((lone, "margin_kept"))
    none = np.zeros_like(value.learner.converged.choices)
    wrong.append((changed(value, "learner.converged.choices", none), "choices"))
    for claims, words in wrong:
        for mode in MODES:
            assert words in drawn.problem(claims, mode)
    radii = with_radii(drawn.mdp, 1)
    for name, words in (("episodes", "episodes"), ("learner.converged", "converged")):
        claims = changed(value, "episodes" if name != "episodes" else "learner.converged", None)
        for mode in MODES:
            assert words in problem_of(claims, radii, drawn.gamma, mode, drawn.relation)


def test_fewer_claims_are_honest() -> None:
    drawn = full()
    value = changed(drawn.value, "episodes", None)
    for name in ("learner.converged", "learner"):
        value = changed(value, name, None)
        for mode in MODES:
            assert drawn.problem(value, mode) == ""
    value.solver.margin, value.solver.margin_kept = None, -math.inf
    value.solver.margin_lower = np.empty(0)
    value.kept = value.solver.kept = -math.inf
    value.optimal_start = (value.optimal_start[0] - 1.0, value.optimal_start[1] + 1.0)
    for mode in MODES:
        assert drawn.problem(value, mode) == ""


# -- episodes ------------------------------------------------------------------------------------


def test_rejects_figures_of_episodes_that_are_too_good() -> None:
    drawn = full()
    for who in EPISODES:
        for what in FIGURES:
            name = f"episodes.{who}.{what}"
            low, high = of(drawn.value, name)
            for amount in (1e-6, 1.0, 1e9):
                better = [(low + amount, high)]
                if math.isfinite(high):
                    better.append((low, high - amount))
                else:
                    better += [(low, low + amount), (low, 1e300)]  # nothing proves any
                for pair in better:
                    for mode in MODES:
                        value = changed(drawn.value, name, pair)
                        assert name in drawn.problem(value, mode), (name, mode, pair)
            wrong = [None, (low,), (low, high, high), (math.nan, high), (low, math.nan)]
            for change in wrong:
                for mode in MODES:
                    value = changed(drawn.value, name, change)
                    assert name in drawn.problem(value, mode)
            for mode in MODES:
                assert drawn.problem(changed(drawn.value, name, (low - 1.0, math.inf)), mode) == ""


def test_only_models_with_an_end_have_ends() -> None:
    for seed in range(0, 40, 4):
        drawn = Drawn(seed, room=1e-9)
        value, has_end = drawn.value, drawn.mdp.terminal_state is not None
        if value.episodes is None:
            continue
        for mode in MODES:
            wrong = None if has_end else (0.0, 1.0)
            claims = changed(value, "episodes.policy.ended", wrong)
            assert "episodes.policy.ended" in drawn.problem(claims, mode)


def test_figures_of_episodes_are_those_of_exact_arithmetic() -> None:
    """As close as rounding allows: a billionth of what is there is told apart."""
    for seed in range(0, 48, 4):
        drawn = Drawn(seed, room=1e-9)
        value = drawn.value
        if value.episodes is None:
            continue
        ground = Ground(drawn.mdp, drawn.gamma, value.labels, value.renaming)
        plan = ground.inside(ground.best_between(value.solver))
        returns, _ = episode_values(ground, plan, value.episodes.horizon)
        exact = mean(drawn.mdp.start, returns)
        size = float(np.abs(drawn.mdp.rewards).max()) * value.episodes.horizon
        for side in (-1, 1):
            claims = copy.deepcopy(value)
            claims.episodes.solver.mean_return = (float(exact) + side * 1e-9 * size, math.inf)
            for mode in MODES:
                assert (drawn.problem(claims, mode) == "") == (side < 0)


# -- what it means -------------------------------------------------------------------------------


def test_agents_end_in_boxes_and_above_bounds() -> None:
    """Whatever the weights of members: what is learned, and what its greedy policy is worth."""
    rng, above = np.random.default_rng(0), 0
    for seed in range(24):
        drawn = Drawn(seed)
        mdp, value, gamma = drawn.mdp, drawn.value, drawn.gamma
        ground = Ground(mdp, gamma, value.labels, value.renaming)
        keys, kernel = list(ground.rows), mdp.kernel()
        rows = [[(s, a) for s, own in ground.rows[key] for a in own] for key in keys]
        for _ in range(4):
            weights = [rng.dirichlet(np.full(len(own), 0.3)) for own in rows]
            v = np.zeros(len(ground.used))
            q = np.zeros(value.learner.q_lower.shape)
            for _ in range(120):
                ahead = (kernel @ v[value.labels]).reshape(mdp.rewards.shape)
                worth = mdp.rewards + gamma * ahead
                for key, own, w in zip(keys, rows, weights, strict=True):
                    q[key] = sum(x * worth[at] for x, at in zip(w, own, strict=True))
                for c, used in ground.used.items():
                    v[c] = max(q[c, b] for b in used)
            size = 1e-9 * (1.0 + float(np.abs(q).max()))
            at = tuple(np.array(keys).T)
            assert (value.learner.q_lower[at] <= q[at] + size).all()
            assert (value.learner.q_upper[at] >= q[at] - size).all()
            if mdp.estimate is not None:
                continue
            names = np.full(q.shape, -np.inf)
            names[at] = q[at]
            greedy = [x[0] for x in ground.lifted(names.argmax(axis=1).tolist())]
            worth = np.array([float(x) for x in ground.model.of_actions(greedy)])
            assert (value.learner.lower <= worth + size).all()
            assert (value.learner.converged.lower <= worth + size).all()
            above += bool((value.learner.converged.lower > value.learner.lower + size).any())
    assert above > 3


def test_a_name_that_a_member_lacks_is_its_first_action() -> None:
    """Two states of one cluster, of which one lacks what pays best in the other."""
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    mdp = TabularMDP.from_dense(
        P,
        [[0.0, 4.0], [2.0, 2.0], [0.0, 0.0]],
        terminal_state=2,
        available=[[True, True], [True, False], [True, True]],
    )
    names = np.where(mdp.available, np.arange(2), -1)
    value = honest_value(mdp, 0.5, [0, 0, 1], names, margin=1.0, room=1e-10)

    def near(*numbers: float) -> Any:
        return pytest.approx(numbers, abs=1e-8)

    # The mean of name 1 is that of 4 and of what the second state does in its place, 2.
    assert value.solver.q_upper[0] == near(1.0, 3.0)
    assert value.learner.q_upper[0] == near(2.0, 4.0)
    assert value.learner.q_lower[0] == near(0.0, 2.0)
    assert value.solver.lower == near(4.0, 2.0, 0.0)
    assert value.learner.lower == near(0.0, 2.0, 0.0)
    # With values off by 1 the worse action may seem best.
    assert value.solver.margin_lower == near(0.0, 2.0, 0.0)
    for mode in MODES:
        assert problem_of(value, mdp, 0.5, mode, "plain") == ""
        for name, at, to in (
            ("solver.q_upper", (0, 1), 2.99),
            ("solver.q_lower", (0, 0), 1.01),
            ("learner.q_upper", (0, 0), 1.99),
            ("learner.q_lower", (0, 1), 2.01),
            ("learner.lower", 0, 0.01),
            ("solver.margin_lower", 0, 0.01),
        ):
            forged = copy.deepcopy(value)
            of(forged, name)[at] = to
            forged.solver.q_upper = np.maximum(forged.solver.q_upper, forged.solver.q_lower)
            assert name in problem_of(forged, mdp, 0.5, mode, "plain")
        less = changed(value, "solver.margin", 0.999)
        less.solver.margin_lower = less.solver.lower
        assert problem_of(less, mdp, 0.5, mode, "plain") == ""
        less.solver.margin = 1.0
        assert "solver.margin_lower" in problem_of(less, mdp, 0.5, mode, "plain")


@pytest.mark.parametrize(("stake", "is_whole"), [(1.0, True), (1e-3, False), (0.0, True)])
def test_a_small_loss_is_nothing_only_beside_what_is_at_stake(stake: float, is_whole: bool) -> None:
    """A loss of 1e-8 of 1000, which is nothing unless all that can be gained is not much more."""
    stay = np.repeat(np.eye(3)[:, None, :], 2, axis=1)
    rewards = [[1000.0 + stake, 1000.0], [1000.0, 1000.0 + stake], [-1000.0, -1000.0]]
    mdp = TabularMDP.from_dense(stay, rewards, order="sas", start=[0.5, 0.5, 0.0])
    value = honest_value(mdp, 0.0, [0, 1, 2], policy=[0, 1, 0], room=1e-13)
    value.policy_lower = value.policy_lower - 1e-8
    ground = Ground(mdp, 0.0, [0, 1, 2], None)
    follow(value, ground)
    assert (value.kept == 1.0) == is_whole
    assert value.kept > 1.0 - 1e-4
    follow(value, ground, Fraction(1, 10**9))
    value.kept = 1.0
    for mode in MODES:
        problem = problem_of(value, mdp, 0.0, mode, "plain")
        assert ("kept" in problem) == (not is_whole), problem


def test_converging_values_are_told_apart_by_sums_or_entries() -> None:
    """Both bounds on what members differ by are used, whichever is less."""
    least = {"entries": 0, "sums": 0}
    for seed in range(40):
        drawn = Drawn(seed)
        if drawn.mdp.estimate is not None:
            continue
        ground = Ground(drawn.mdp, drawn.gamma, drawn.value.labels, drawn.value.renaming)
        converging = Converging(ground, drawn.value.learner)
        for key in ground.rows:
            members = list(converging.members(key))
            if len(members) < 2:
                continue
            for at in members:
                one = [converging.worth[key, s, a] for s, a in members]
                reach = {
                    x: ground.gamma
                    * sum(
                        (p * converging.half[c] for c, p in converging.lifted[key, *x].items()),
                        Fraction(0),
                    )
                    for x in members
                }
                by_sums = max(w + reach[x] for w, x in zip(one, members, strict=True)) - (
                    converging.worth[key, *at] - reach[at]
                )
                found = converging.gap(key, key, at)
                least["sums" if found == by_sums else "entries"] += 1
    assert min(least.values()) > 0
