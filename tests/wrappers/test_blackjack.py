"""Blackjack in closed form: against Gymnasium's own rules, its own steps, and known strategies."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text import blackjack

from bisim_abstract import Certificate, Reading, TabularMDP, certify
from bisim_abstract.errors import ExtractionError, NotCertifiedError, StateLimitError
from bisim_abstract.wrappers import AbstractedEnv, TabularEnv, extract_mdp
from bisim_abstract.wrappers._source import find_source

ID = "Blackjack-v1"
theirs: Any = blackjack  # whose functions have no types
RULES: list[dict[str, bool]] = [
    {"sab": False, "natural": False},
    {"sab": False, "natural": True},
    {"sab": True, "natural": False},
    {"sab": True, "natural": True},
]


def game(rules: dict[str, bool]) -> Any:
    return gym.make(ID, **rules)


# -- an oracle that asks Gymnasium's functions about lists of cards ------------------------------

CARDS = [(card, Fraction(theirs.deck.count(card), len(theirs.deck))) for card in range(1, 11)]


@cache
def final_hands(hand: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
    """The dealer's hands at the end, by their probabilities."""
    if theirs.sum_hand(list(hand)) >= 17:
        return {hand: Fraction(1)}
    found: dict[tuple[int, ...], Fraction] = {}
    for card, prob in CARDS:
        for end, share in final_hands(tuple(sorted((*hand, card)))).items():
            found[end] = found.get(end, Fraction(0)) + prob * share
    return found


@cache
def dealer_scores(dealer: int) -> dict[tuple[int, bool], Fraction]:
    """(score, is natural) of the dealer's hands at the end, by their probabilities."""
    found: dict[tuple[int, bool], Fraction] = {}
    for card, prob in CARDS:
        for end, share in final_hands(tuple(sorted((dealer, card)))).items():
            key = theirs.score(list(end)), theirs.is_natural(list(end))
            found[key] = found.get(key, Fraction(0)) + prob * share
    return found


def sticking(player: list[int], dealer: int, *, sab: bool, natural: bool) -> Fraction:
    total = Fraction(0)
    for (score, has_natural), share in dealer_scores(dealer).items():
        paid = theirs.cmp(theirs.score(player), score)
        if sab and theirs.is_natural(player) and not has_natural:
            paid = 1.0
        elif not sab and natural and theirs.is_natural(player) and paid == 1.0:
            paid = 1.5
        total += share * Fraction(paid)
    return total


def hand_of(total: int, has_ace: bool, is_natural: bool) -> list[int]:
    """Cards that make a hand, of the environment's kind."""
    if is_natural:
        return [1, 10]
    if has_ace:
        return [1, 5, 5] if total == 21 else [1, total - 11]
    return [total - 2, 2] if total <= 12 else [total - 12, 2, 10]


@pytest.mark.parametrize("rules", RULES)
def test_rows_and_rewards_are_those_of_the_rules(rules: dict[str, bool]) -> None:
    mdp, env = extract_mdp(game(rules)), game(rules).unwrapped
    env.reset(seed=0)
    source = find_source(env)
    assert source is not None
    player, dealer, ace, *rest = (v.values for v in mdp.names.variables)
    naturals = rest[0] if rest else np.zeros_like(ace)
    assert len(rest) == any(rules.values())
    for s in range(mdp.n_states - 1):
        hand = hand_of(int(player[s]), bool(ace[s]), bool(naturals[s]))
        assert theirs.sum_hand(hand) == player[s]
        assert theirs.usable_ace(hand) == ace[s]
        env.player, env.dealer = hand, [int(dealer[s]), 2]
        assert source.state_id() == mdp.state_ids[s]
        assert mdp.rewards[s, 0] == float(sticking(hand, int(dealer[s]), **rules))
        assert mdp.successors(s, 0)[0].tolist() == [mdp.terminal_state]
        row: dict[int, Fraction] = {}
        for card, prob in CARDS:
            env.player = [*hand, card]
            if theirs.is_bust(env.player):
                after = -1
            else:
                after = source.state_id()
            row[after] = row.get(after, Fraction(0)) + prob
        found, probs = mdp.successors(s, 1)
        got = dict(zip(mdp.state_ids[found].tolist(), probs.tolist(), strict=True))
        assert got == {ident: float(prob) for ident, prob in row.items()}
        assert mdp.rewards[s, 1] == -float(row.get(-1, 0))


@pytest.mark.parametrize("rules", RULES)
def test_starts_are_those_of_the_rules(rules: dict[str, bool]) -> None:
    mdp, env = extract_mdp(game(rules)), game(rules).unwrapped
    source = find_source(env)
    assert source is not None
    mass: dict[int, Fraction] = {}
    for first, p in CARDS:
        for second, q in CARDS:
            for card, r in CARDS:
                env.player, env.dealer = [first, second], [card, 3]
                mass[source.state_id()] = mass.get(source.state_id(), Fraction(0)) + p * q * r
    found = dict(zip(mdp.state_ids.tolist(), mdp.start.tolist(), strict=True))
    assert {ident: share for ident, share in found.items() if share} == {
        ident: float(share) for ident, share in mass.items()
    }


def best(mdp: TabularMDP) -> tuple[float, Any]:
    """Optimal start value and policy without a discount: a hand cannot be hit forever."""
    values = np.zeros(mdp.n_states)
    for _ in range(30):
        kept = mdp.rewards + (mdp.kernel() @ values).reshape(mdp.rewards.shape)
        values = kept.max(axis=1)
    return float(mdp.start @ values), kept.argmax(axis=1)


def test_values_and_strategies_that_are_known() -> None:
    # Without naturals the house keeps 4.66%; by the rules of the book 4.31%; paid 3:2, 2.57%.
    shares = [best(extract_mdp(game(rules)))[0] for rules in RULES]
    assert shares == pytest.approx([-0.046556, -0.025729, -0.043113, -0.043113], abs=1e-6)
    mdp = extract_mdp(game(RULES[2]))
    _, policy = best(mdp)
    sticks = {}
    for s in range(mdp.n_states - 1):
        player, dealer, ace, _ = (int(v.values[s]) for v in mdp.names.variables)
        sticks[player, dealer, ace] = mdp.action_name(policy[s]) == "stick"
    for dealer in range(1, 11):
        hard = min(total for total in range(4, 22) if sticks[total, dealer, 0])
        soft = min(total for total in range(12, 22) if sticks[total, dealer, 1])
        # The basic strategy, without doubling and splitting.
        assert hard == {2: 13, 3: 13, 4: 12, 5: 12, 6: 12}.get(dealer, 17)
        assert soft == (19 if dealer in (1, 9, 10) else 18)


def played(env: Any, episodes: int) -> tuple[float, dict[Any, int]]:
    """Mean return of hitting below 17, and how often episodes started where."""
    total = 0.0
    starts: dict[Any, int] = {}
    for k in range(episodes):
        seen, _ = env.reset(seed=0 if k == 0 else None)
        starts[seen] = starts.get(seen, 0) + 1
        is_over, reward = False, 0.0
        while not is_over:
            seen, reward, is_over, _, _ = env.step(int(seen[0] < 17))
        total += reward
    return total / episodes, starts


def expected_return(mdp: TabularMDP) -> float:
    acts = (mdp.names.variables[0].values < 17).astype(int)
    acts[-1] = 0
    rows = np.arange(mdp.n_states) * 2 + acts
    values = np.zeros(mdp.n_states)
    for _ in range(30):
        values = mdp.rewards.ravel()[rows] + mdp.kernel()[rows] @ values
    return float(mdp.start @ values)


@pytest.mark.parametrize(
    ("rules", "episodes"),
    [
        (RULES[2], 3_000),
        pytest.param(RULES[0], 100_000, marks=pytest.mark.slow),
        *(pytest.param(rules, 100_000, marks=pytest.mark.nightly) for rules in RULES[1:]),
    ],
)
def test_real_episodes(rules: dict[str, bool], episodes: int) -> None:
    env = game(rules).unwrapped
    mdp = extract_mdp(env)
    mean, starts = played(env, episodes)
    assert mean == pytest.approx(expected_return(mdp), abs=4.0 / np.sqrt(episodes))
    source: Any = find_source(env)
    mass: dict[Any, float] = {}
    for ident, share in zip(mdp.state_ids.tolist(), mdp.start.tolist(), strict=True):
        if ident >= 0:
            seen = source.observation_of(ident)
            mass[seen] = mass.get(seen, 0.0) + share
    away = sum(abs(starts.get(seen, 0) / episodes - share) for seen, share in mass.items())
    assert starts.keys() <= mass.keys()
    assert away < 1.2 * np.sqrt(len(mass) / episodes)  # the mean is 0.8 of that, or less


# -- as any other environment --------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certify(extract_mdp(game(RULES[1])), 0.9)


def test_abstracted_and_deployed(certificate: Certificate) -> None:
    env = game(RULES[1])
    for dynamics in ("aggregated", "ground"):
        small = AbstractedEnv(env, certificate, dynamics=dynamics)
        assert small.aggregation.n_clusters < 100
        small.reset(seed=0)
        for k in range(40):
            seen, reward, is_over, _, _ = small.step(k % 2)
            assert seen in small.observation_space
            assert -1.0 <= float(reward) <= 1.5
            if is_over:
                small.reset()
    agent, home = small.deploy(small.value), find_source(env)
    assert home is not None
    for k in range(20):
        seen, _ = env.reset(seed=k)
        is_over = False
        while not is_over:
            state = small._place[home.state_id()]
            action = int(agent.predict(seen)[0])
            assert action == int(small.value.policy[small.labels[state]])
            seen, _, is_over, _, _ = env.step(action)
        agent.predict(seen)  # as vector environments do, where an episode is over
    options: dict[str, Any] = {**RULES[1]}
    pair = gym.make_vec(ID, num_envs=2, **options)
    seen, _ = pair.reset(seed=0)
    for _ in range(10):
        seen, *_ = pair.step(agent.predict(seen)[0])


def test_agents_that_tell_naturals_from_others_are_refused(certificate: Certificate) -> None:
    env = game(RULES[1])
    mdp, small = extract_mdp(env), AbstractedEnv(env, certificate)
    natural = mdp.names.variables[3].values == 1
    policy = np.zeros(small.abstract_mdp.n_states, int)
    policy[small.labels[natural]] = 1
    with pytest.raises(ExtractionError, match="do not tell the cluster, on which the agent's"):
        small.deploy(policy)
    assert small.deploy(np.zeros_like(policy)).predict((21, 5, 1))[0] == 0


def test_the_rules_are_in_the_metadata() -> None:
    about = extract_mdp(ID).metadata  # by the book, if nothing else is said
    assert (about["method"], about["sab"], about["natural"]) == ("closed form", True, False)


def test_wrappers_and_other_rules_are_noticed(certificate: Certificate) -> None:
    class Generous(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            seen, reward, *rest = self.env.step(action)
            return seen, float(reward) + 0.25, *rest

    with pytest.raises(ExtractionError, match=r"it paid -?\d\.\d+, possible are"):
        extract_mdp(Generous(game(RULES[0])))

    class Tables(blackjack.BlackjackEnv):
        pass

    with pytest.raises(StateLimitError):  # enumerated, as the rules may be other ones
        extract_mdp(Tables(), reading=Reading(max_states=20))
    with pytest.raises(ExtractionError, match="no table that goes on"):
        extract_mdp(ID, reading=Reading(terminal="table"))
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(game(RULES[0]), certificate)


def test_states_through_wrappers() -> None:
    env = TabularEnv(game(RULES[2]))
    for k in range(30):
        seen, info = env.reset(seed=k)
        player, dealer, ace, _ = (v.values[info["state"]] for v in env.mdp.names.variables)
        assert (player, dealer, ace) == seen
        seen, _, is_over, _, info = env.step(1)
        if is_over:
            assert info["state"] == env.mdp.terminal_state
