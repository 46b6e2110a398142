"""Chance by recorded draws: enumerated models equal those that are written by hand."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text.utils import categorical_sample
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import Reading, TabularMDP, abstract_env, certify, verify
from bisim_abstract.errors import ExtractionError, StochasticEnvError
from bisim_abstract.wrappers import TabularEnv, enumerate_mdp, extract_mdp

Step = tuple[Any, float, bool, bool, dict[str, Any]]
LAKE: Any = gym.make("FrozenLake-v1").unwrapped


class World(gym.Env[Any, Any]):
    """A number, which `play` moves; some actions."""

    observation_space = gym.spaces.Discrete(100)

    def __init__(self, n_actions: int = 2) -> None:
        self.action_space = gym.spaces.Discrete(n_actions)
        self.s = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = 0
        return 0, {}

    def step(self, action: Any) -> Step:
        reward, is_end = self.play(int(action))
        return self.s, reward, is_end, False, {}

    def play(self, action: int) -> tuple[float, bool]:
        raise NotImplementedError


def rows_by(mdp: TabularMDP, name: str) -> dict[tuple[int, int], tuple[dict[int, float], float]]:
    """Rows and rewards of a model by the values of an attribute; the end is -1."""
    (variable,) = (v for v in mdp.names.variables if v.name == name)
    values = variable.values.tolist()
    if variable.words is not None:
        values = [int(variable.words[code]) if code >= 0 else -1 for code in values]
    if mdp.terminal_state is not None:
        values[mdp.terminal_state] = -1
    found = {}
    for state, value in enumerate(values):
        for action in range(mdp.n_actions):
            successors, probs = mdp.successors(state, action)
            row = {values[t]: p for t, p in zip(successors.tolist(), probs.tolist(), strict=True)}
            found[value, action] = row, float(mdp.rewards[state, action])
    return found


# -- a lake that slips -----------------------------------------------------------------------------


class Lake(World):
    """FrozenLake, its outcomes drawn in several ways."""

    def __init__(self, draw: Callable[[Any, list[float]], Any]) -> None:
        super().__init__(4)
        self.draw = draw

    def play(self, action: int) -> tuple[float, bool]:
        outcomes = LAKE.P[self.s][action]
        k = int(self.draw(self.np_random, [p for p, *_ in outcomes]))
        _, self.s, reward, is_end = outcomes[k]
        return reward, is_end


def by_comparisons(rng: Any, p: list[float]) -> int:
    u = rng.random()
    return next(k for k, most in enumerate(np.cumsum(p).tolist()) if u < most)


LAKES = [
    lambda rng, p: rng.choice(len(p), p=p),
    lambda rng, p: categorical_sample(p, rng),
    lambda rng, p: rng.integers(len(p)),
    lambda rng, p: rng.permutation(len(p))[0],
    lambda rng, p: np.searchsorted(np.cumsum(p), rng.random()),
    lambda rng, p: np.argmax(rng.uniform(2.0, 4.0) < 2.0 + 2.0 * np.cumsum(p)),
    by_comparisons,
]


@pytest.mark.parametrize("draw", LAKES)
def test_a_lake_of_draws_equals_the_table(draw: Any) -> None:
    rows = rows_by(enumerate_mdp(Lake(draw)), "s")
    assert {state for state, _ in rows} == {0, 1, 2, 3, 4, 6, 8, 9, 10, 13, 14, -1}
    for (state, action), (row, reward) in rows.items():
        wanted: Counter[int] = Counter()
        for p, successor, _, is_end in LAKE.P[state][action] if state >= 0 else ():
            wanted[-1 if is_end else successor] += p
        if state >= 0:
            assert row == pytest.approx(wanted, abs=1e-15)
            paid = sum(p * r for p, _, r, _ in LAKE.P[state][action])
            assert reward == pytest.approx(paid, abs=1e-15)


def test_a_lake_is_abstracted_and_stepped() -> None:
    env = Lake(LAKES[0])
    small = abstract_env(env, gamma=0.9, dynamics="ground")
    mdp = extract_mdp(env)
    assert verify(mdp, small.certificate)
    assert mdp.metadata["method"] == "enumeration"
    assert mdp.metadata["draws"] == ["choice"]
    assert mdp.metadata["conditions"] == []
    assert mdp.estimate is None
    # Episodes begin alike and go on differently, but as the seed says.
    walker = TabularEnv(env)

    def walk(seed: int | None) -> list[int]:
        walker.reset(seed=seed)
        return [walker.step(action)[4]["state"] for action in (1, 2, 2)]

    assert walk(5) == walk(5)
    assert len({tuple(walk(None)) for _ in range(30)}) > 1


# -- an inventory ----------------------------------------------------------------------------------


class Shop(World):
    """Stock for at most five; demand is Poisson, and what is not met is lost, at a price or not."""

    def __init__(self, fine: float = 0.0) -> None:
        super().__init__(3)
        self.fine = fine

    def play(self, action: int) -> tuple[float, bool]:
        stock = min(self.s + action, 5)
        demand = self.np_random.poisson(1.5)
        sold = min(stock, demand)
        self.s = int(stock - sold)
        return 2.0 * sold - 0.5 * action - self.fine * (demand - sold), False


def chance_of(demand: int) -> float:
    return math.exp(-1.5) * 1.5**demand / math.factorial(demand)


@pytest.mark.parametrize("fine", [0.0, 0.25])
def test_a_shop_with_poisson_demand_equals_a_table_by_hand(fine: float) -> None:
    mdp = extract_mdp(Shop(fine))
    rows = rows_by(mdp, "s")
    assert len(rows) == 18
    for (stock, action), (row, reward) in rows.items():
        full = min(stock + action, 5)
        wanted = {full - demand: chance_of(demand) for demand in range(full)}
        wanted[0] = math.fsum(chance_of(demand) for demand in range(full, 60))
        assert row == pytest.approx(wanted, abs=1e-15)
        paid = math.fsum(
            chance_of(d) * (2.0 * min(full, d) - fine * max(d - full, 0)) for d in range(60)
        )
        assert reward == pytest.approx(paid - 0.5 * action, abs=1e-14)
    (condition,) = mdp.metadata["conditions"]
    assert condition.startswith("poisson draws above ")
    if fine == 0.0:  # however large a demand is: the shop is empty
        assert mdp.estimate is None
    else:
        assert mdp.estimate is not None
        assert mdp.estimate.alpha == 0.0
        assert not mdp.estimate.row_radius.any()
        # What the sum beyond the cut would add, for any stock.
        last = int(condition.split()[3])
        lost = math.fsum(chance_of(d) * fine * (d - last) for d in range(last + 1, 150))
        assert 0.0 < lost < mdp.estimate.reward_radius.min() < 1e-15
    certificate = certify(mdp, 0.9, tau=0.5)
    assert verify(mdp, certificate)


class Steep(World):
    """A demand that costs its square."""

    def play(self, action: int) -> tuple[float, bool]:
        return -float(self.np_random.poisson(1.5) ** 2), False


def test_radii_hold_for_rewards_that_grow_as_the_square() -> None:
    """With the growth that is seen at the tried values, also far beyond the cut."""
    mdp = extract_mdp(Steep())
    assert mdp.estimate is not None
    last = int(mdp.metadata["conditions"][0].split()[3])
    beyond = math.fsum(chance_of(d) * d**2 for d in range(last + 1, 150))
    assert 0.0 < beyond < mdp.estimate.reward_radius.min() < 1e-13


class Queue(World):
    """Arrivals without a bound, room for so many, one served at a time."""

    def __init__(self, room: int | None) -> None:
        super().__init__()
        self.room = room

    def play(self, action: int) -> tuple[float, bool]:
        self.s = max(self.s - action, 0) + int(self.np_random.geometric(0.75)) - 1
        self.s = self.s if self.room is None else min(self.s, self.room)
        return 0.0, False


def test_tails_that_lead_elsewhere_enter_the_radii_of_rows() -> None:
    mdp = enumerate_mdp(Queue(40))
    assert mdp.n_states == 41
    assert mdp.estimate is not None
    assert not mdp.estimate.reward_radius.any()
    rows, radius = rows_by(mdp, "s"), mdp.estimate.row_radius
    order = {value: k for k, (value, action) in enumerate(rows) if action == 0}
    assert sorted(order) == list(range(41))
    for (state, action), (row, _) in rows.items():
        begin = max(state - action, 0)
        wanted = {begin + k: 0.75 * 0.25**k for k in range(40 - begin)}
        wanted[40] = 0.25 ** (40 - begin)
        off = sum(abs(row.get(t, 0.0) - p) for t, p in wanted.items()) / 2.0
        assert off <= radius[order[state] // 2, action] + 1e-15
    assert 0.0 < radius.max() < 1e-18
    full = order[40] // 2
    assert radius[full, 0] == 0.0  # what is full stays full


def test_tails_without_end_are_refused() -> None:
    with pytest.raises(ExtractionError, match=r"more than max_states=40"):
        enumerate_mdp(Queue(None), reading=Reading(max_states=40))

    class Rare(World):
        def play(self, action: int) -> tuple[float, bool]:
            self.s = int(self.np_random.poisson(0.5) >= 60)
            return 0.0, False

    with pytest.raises(ExtractionError, match=r"poisson draws far above \d+ lead to .* cap the"):
        enumerate_mdp(Rare())

    class Twice(World):
        def play(self, action: int) -> tuple[float, bool]:
            if self.np_random.poisson(0.5) > 100:
                self.s = int(self.np_random.integers(2))
            return 0.0, False

    with pytest.raises(StochasticEnvError, match=r"decides what is drawn next"):
        enumerate_mdp(Twice())


# -- single draws ----------------------------------------------------------------------------------


class Once(World):
    """Whatever is drawn is paid and remembered."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__(1)
        self.draw = draw

    def play(self, action: int) -> tuple[float, bool]:
        self.s = np.asarray(self.draw(self.np_random)).tolist()
        return 0.0, self.s is None


def outcomes_of(draw: Callable[[Any], Any]) -> dict[Any, float]:
    """What is drawn, in one step, and how likely it is."""
    found: dict[Any, float] = {}
    env = Once(draw)
    mdp = enumerate_mdp(env, reading=Reading(checks=16))
    values: dict[int, Any] = {}
    from bisim_abstract.wrappers.enumerate import StateReader

    reader = StateReader(env)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        env.s = np.asarray(draw(rng)).tolist()
        values[reader.state_id()] = env.s if not isinstance(env.s, list) else str(env.s)
    successors, probs = mdp.successors(0, 0)
    for state, p in zip(successors.tolist(), probs.tolist(), strict=True):
        ident = int(mdp.state_ids[state])
        found[values.get(ident, ident)] = p
    return found


@pytest.mark.parametrize(
    ("draw", "wanted"),
    [
        (lambda g: g.integers(3), {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}),
        (lambda g: g.integers(2, 4, endpoint=True), {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}),
        (lambda g: g.integers(0, [1, 2], size=2), {"[0, 0]": 0.5, "[0, 1]": 0.5}),
        (lambda g: g.choice(["a", "b", "b"]), {"a": 1 / 3, "b": 2 / 3}),
        (lambda g: g.choice([5, 7], p=[0.25, 0.75]), {5: 0.25, 7: 0.75}),
        (lambda g: g.choice([(0, 1), (2, 3)]), {"[0, 1]": 0.5, "[2, 3]": 0.5}),
        (
            lambda g: sorted(g.choice(3, size=2, replace=False, p=[0.5, 0.25, 0.25]).tolist()),
            {"[0, 1]": 5 / 12, "[0, 2]": 5 / 12, "[1, 2]": 1 / 6},
        ),
        (lambda g: g.binomial(3, 0.5), {0: 0.125, 1: 0.375, 2: 0.375, 3: 0.125}),
        (lambda g: g.random(2) < 0.25, dict.fromkeys(range(0))),
        (lambda g: sum((g.random(2) < 0.25).tolist()), {0: 0.5625, 1: 0.375, 2: 0.0625}),
        (lambda g: g.random() < 0.25 or g.random() > 0.5, {True: 0.625, False: 0.375}),
        (lambda g: g.uniform(-1, 1) <= 0.25, {True: 0.625, False: 0.375}),
        (lambda g: np.float64(0.25) > g.random(), {True: 0.25, False: 0.75}),
        (lambda g: g.random() < 1.5, {True: 1.0}),
        (lambda g: min(g.poisson(1.0), 1), {0: math.exp(-1), 1: 1 - math.exp(-1)}),
    ],
)
def test_single_draws(draw: Any, wanted: dict[Any, float]) -> None:
    found = outcomes_of(draw)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-15)
    if wanted:
        assert found == pytest.approx(wanted, abs=1e-15)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(0, 2))
def test_choices_have_their_weights(weights: list[int], way: int) -> None:
    p = np.array(weights) / sum(weights)
    rows = rows_by(enumerate_mdp(Split(p, way), reading=Reading(checks=8)), "s")
    row = rows[0, 0][0]
    for k, weight in enumerate(weights, start=1):
        assert row.get(k, 0.0) == pytest.approx(weight / sum(weights), abs=2e-15)


class Split(World):
    """Leads to one of several states, and on from there."""

    def __init__(self, p: Any, way: int) -> None:
        super().__init__(1)
        self.p, self.way = p, way

    def play(self, action: int) -> tuple[float, bool]:
        if self.s == 0:
            draw = (LAKES[0], LAKES[1], LAKES[4])[self.way]
            self.s = int(draw(self.np_random, self.p)) + 1
        return 0.0, False


class Cards(World):
    """Four cards are shuffled and two turned over; the higher one pays."""

    def play(self, action: int) -> tuple[float, bool]:
        deck = [1, 2, 3, 4]
        self.np_random.shuffle(deck)
        self.s = max(deck[:2]) if action else deck[0]
        return float(self.s), False


def test_a_card_game_by_shuffling() -> None:
    for row, reward in (rows_by(enumerate_mdp(Cards()), "s")[1, a] for a in (1,)):
        orders = Counter(max(pair) for pair in itertools.permutations([1, 2, 3, 4], 2))
        assert row == pytest.approx({k: n / 12 for k, n in orders.items()}, abs=1e-15)
        assert reward == pytest.approx(sum(k * n / 12 for k, n in orders.items()))


def test_rewards_and_ends_may_be_drawn() -> None:
    class Lottery(World):
        def play(self, action: int) -> tuple[float, bool]:
            prize = float(self.np_random.choice([0.0, 10.0], p=[0.75, 0.25]))
            return prize, bool(self.np_random.random() < 0.125)

    mdp = extract_mdp(Lottery())
    assert mdp.rewards[0].tolist() == [2.5, 2.5]
    assert mdp.successors(0, 0)[1].tolist() == [0.875, 0.125]
    assert mdp.metadata["drawn_rewards"] == (0.0, 10.0) or mdp.metadata["drawn_rewards"] == [0, 10]

    class Prize(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            seen, reward, *rest = self.env.step(action)
            return seen, float(reward) + 11.0, *rest

    class Endless(World):
        def play(self, action: int) -> tuple[float, bool]:
            return float(self.np_random.integers(3)), False

    assert extract_mdp(Endless()).rewards[0].tolist() == [1.0, 1.0]
    with pytest.raises(ExtractionError, match=r"it paid 1\d.0, the table says 1"):
        extract_mdp(Prize(Endless()))


def test_generators_in_other_attributes() -> None:
    class Own(World):
        def reset(self, **options: Any) -> Any:
            found = super().reset(**options)
            self.rng = np.random.default_rng(3)
            self.same = self.np_random
            return found

        def play(self, action: int) -> tuple[float, bool]:
            rng = self.same if action else self.rng
            self.s = int(rng.integers(2))
            self.kept = rng
            return 0.0, False

    env = Own()
    env.reset(seed=1)
    before, state = dict(vars(env)), env.np_random.bit_generator.state
    mdp = extract_mdp(env)
    assert mdp.n_states == 2
    assert mdp.probs.tolist() == [0.5] * 8
    assert dict(vars(env)) == before
    assert env.np_random.bit_generator.state == state


# -- refusals --------------------------------------------------------------------------------------


def until_another(rng: Any) -> int:
    while True:
        k = int(rng.integers(5))
        if k != 0:
            return k


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda g: g.normal(), r"normal\(\) has no outcomes"),
    (lambda g: g.standard_normal() > 0, r"standard_normal\(\) has no outcomes"),
    (lambda g: g.bytes(2), r"bytes\(\) has no outcomes"),
    (lambda g: copy.deepcopy(g).integers(2), r"copy\(\) of a generator draws by itself"),
    (lambda g: copy.copy(g).integers(2), r"copy\(\) of a generator draws by itself"),
    (lambda g: g.bit_generator, r"bit_generator\(\) is asked for"),
    (lambda g: int(g.random() * 4), r"random\(\) gives a real number .* but calculated with"),
    (lambda g: float(g.uniform(0, 2)), r"uniform\(\) gives .* converted to a plain number"),
    (lambda g: g.random() < g.random(), r"random\(\) gives .* compared with another one"),
    (lambda g: np.sqrt(g.random()), r"random\(\) gives .* given to numpy.sqrt"),
    (lambda g: 1 if g.random() else 0, r"taken for a truth value"),
    (lambda g: g.integers(10**6), r"integers\(\) has 1,000,000 outcomes"),
    (lambda g: g.permutation(52), r"permutation\(\) orders 52 elements"),
    (lambda g: g.poisson(1e4), r"poisson\(\) has a mean of 10000"),
    (lambda g: g.geometric(1e-4), r"geometric\(\) of 0.0001 has too many"),
    (until_another, r"more than 200 draws in one step, as of a loop .*choice\(those_that_fit\)"),
    (lambda g: [g.integers(9) for _ in range(9)], r"more than 4,096 sequences of outcomes"),
]


@pytest.mark.parametrize(("draw", "match"), REFUSED)
def test_what_cannot_be_gone_through_is_refused_by_name(draw: Any, match: str) -> None:
    with pytest.raises(StochasticEnvError, match=match) as told:
        enumerate_mdp(Once(draw))
    text = str(told.value)
    assert "Once is random in a way that is not enumerated: at state 0, action 0, " in text
    assert text.index("from_function") < text.index("P table") < text.index("estimate_mdp")
    (example,) = told.value.__notes__
    assert "mdp = TabularMDP.from_function(0, 1, transitions)" in example
    assert len(example.splitlines()) == 3


def test_a_refusal_is_not_to_be_caught() -> None:
    class Deaf(World):
        def play(self, action: int) -> tuple[float, bool]:
            try:
                self.s = int(self.np_random.normal() > 0)
            except Exception:
                self.s = 1
            return 0.0, False

    with pytest.raises(StochasticEnvError, match=r"normal\(\)"):
        enumerate_mdp(Deaf())

    class Keeping(World):
        def play(self, action: int) -> tuple[float, bool]:
            self.luck = self.np_random.random()
            return 0.0, bool(self.luck < 0.5)

    with pytest.raises(StochasticEnvError, match=r"but kept in the state; .* name in freeze"):
        enumerate_mdp(Keeping())
    env = Keeping()
    env.luck = 0.0
    assert enumerate_mdp(env, reading=Reading(freeze=["luck"])).n_states == 2


def test_other_generators_are_noticed_as_before() -> None:
    class Both(World):
        def play(self, action: int) -> tuple[float, bool]:
            coin = np.random.mtrand.random_sample() if action else self.np_random.random()
            self.s = int(coin < 0.5)
            return 0.0, False

    with pytest.raises(StochasticEnvError, match=r"and not by draws from self.np_random") as told:
        enumerate_mdp(Both())
    assert "from_function(0, 2, transitions)" in told.value.__notes__[0]
