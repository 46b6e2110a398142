"""Gymnasium's Blackjack as a table, in closed form.

Its cards are drawn with replacement, so that nothing is remembered but what is seen: the player's
sum, the dealer's open card, and whether an ace of the player counts 11. The dealer's second card
lies there from the start, but nobody has seen it when the player decides: it may as well be drawn
later. So a state has these three numbers, and where rules reward a natural (an ace and a ten at
the start: `natural` and `sab`), a fourth, whether the hand is one. An observation does not tell
that: 21 with an ace may be a natural, and need not be.

All probabilities and expected rewards are fractions, each rounded once to a float.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium.envs.toy_text.blackjack import BlackjackEnv

from bisim_abstract._base.checks import check_choice
from bisim_abstract._base.types import FloatArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import TRUTH, UNKNOWN, Names, Variable
from bisim_abstract.errors import ExtractionError

ACTIONS = ("stick", "hit")
BEST, STANDS = 21, 17  # the dealer draws below the second of them
CARDS = tuple(range(1, 11))  # values of the dealer's open card
DECK: dict[int, Fraction] = {
    card: Fraction(count, 13) for card, count in Counter(min(k, 10) for k in range(1, 14)).items()
}


class Hand(NamedTuple):
    """What matters of cards: their sum, whether an ace counts 11 in it, and whether 2 make 21."""

    total: int
    has_ace: bool
    is_natural: bool = False

    def with_card(self, card: int) -> Hand:
        """The hand with one more card; beyond 21, an ace that counted 11 counts 1."""
        total, has_ace = self.total + card, self.has_ace
        if card == 1 and total + 10 <= BEST:
            total, has_ace = total + 10, True
        if total > BEST and has_ace:
            total, has_ace = total - 10, False
        return Hand(total, has_ace)


class State(NamedTuple):
    """What the player knows."""

    hand: Hand
    dealer: int

    @property
    def ident(self) -> int:
        """A number of its own: a natural has that of 22 with an ace, which there is not."""
        total = self.hand.total + self.hand.is_natural
        return (total * (len(CARDS) + 1) + self.dealer) * 2 + self.hand.has_ace


def adapt_blackjack(env: Any) -> BlackjackTable | None:
    """The table of Gymnasium's Blackjack; None for derived classes, which may have other rules."""
    return BlackjackTable(env) if type(env) is BlackjackEnv else None


class BlackjackTable:
    """The model of a `BlackjackEnv`, and which of its states it is in.

    Args:
        env: The environment itself, no class derived from it.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def to_mdp(self, *, terminal: str = "absorb") -> TabularMDP:
        """The model; every end of an episode leads to one absorbing state.

        Args:
            terminal: "absorb". There is no table that goes on beyond the end.
        """
        check_choice("terminal", terminal, ("absorb", "table"))
        if terminal == "table":
            raise ExtractionError(
                "Blackjack has no table that goes on beyond the end of episodes; use "
                "terminal='absorb'"
            )
        return _model(*self._rules)

    def state_id(self) -> int:
        """The present state; beyond 21 that of no state."""
        hand = two_cards(*self._env.player[:2])
        for card in self._env.player[2:]:
            hand = hand.with_card(card)
        if not any(self._rules):
            hand = hand._replace(is_natural=False)
        return State(hand, int(self._env.dealer[0])).ident if hand.total <= BEST else -1

    def can_pay(self, state: int, action: int, *, is_end: bool) -> tuple[float, ...]:
        """All rewards that an action of a state can have."""
        if ACTIONS[action] == "hit":
            return (-1.0,) if is_end else (0.0,)
        is_natural = state // 2 // (len(CARDS) + 1) > BEST
        pays_more, _ = self._rules
        if is_natural:
            return (0.0, 1.5 if pays_more else 1.0)
        return (-1.0, 0.0, 1.0)

    def observation_of(self, state: int) -> tuple[int, int, int]:
        """What the environment shows in a state."""
        rest, has_ace = divmod(state, 2)
        total, dealer = divmod(rest, len(CARDS) + 1)
        return min(total, BEST), dealer, has_ace

    def end_observations(self) -> Iterator[tuple[int, int, int]]:
        """What the environment shows only when an episode has ended."""
        for total in range(BEST + 1, BEST + 11):
            for dealer in CARDS:
                yield total, dealer, 0

    @property
    def _rules(self) -> tuple[bool, bool]:
        is_book = bool(self._env.sab)
        return bool(self._env.natural) and not is_book, is_book  # as `step` reads them


def two_cards(first: int, second: int) -> Hand:
    """The hand of a start."""
    hand = Hand(0, False).with_card(first).with_card(second)
    return hand._replace(is_natural=hand.total == BEST)


@cache
def dealer_ends(hand: Hand) -> dict[tuple[int, bool], Fraction]:
    """Probabilities of the dealer's (score, is natural) from a hand; a score of 0 is beyond 21."""
    if hand.total >= STANDS:
        return {(hand.total if hand.total <= BEST else 0, hand.is_natural): Fraction(1)}
    ends: defaultdict[tuple[int, bool], Fraction] = defaultdict(Fraction)
    for card, prob in DECK.items():
        for end, share in dealer_ends(hand.with_card(card)).items():
            ends[end] += prob * share
    return dict(ends)


@cache
def sticking(hand: Hand, dealer: int, pays_more: bool, is_book: bool) -> Fraction:
    """What sticking pays, expected.

    Args:
        hand: The player's.
        dealer: The dealer's open card.
        pays_more: Whether a natural that wins pays 1.5 (`natural`).
        is_book: Whether a natural beats everything but a natural (`sab`).
    """
    expected = Fraction(0)
    for card, prob in DECK.items():
        for (score, has_natural), share in dealer_ends(two_cards(dealer, card)).items():
            paid = Fraction((hand.total > score) - (hand.total < score))
            if hand.is_natural and is_book and not has_natural:
                paid = Fraction(1)
            elif hand.is_natural and pays_more and paid == 1:
                paid = Fraction(3, 2)
            expected += prob * share * paid
    return expected


def states(has_naturals: bool) -> list[State]:
    """All states: by the open card, then by the hand."""
    hands = [Hand(total, False) for total in range(4, BEST + 1)]
    hands += [Hand(total, True) for total in range(12, BEST + 1)]
    hands += [Hand(BEST, True, True)] if has_naturals else []
    return [State(hand, dealer) for dealer in CARDS for hand in hands]


@cache
def _model(pays_more: bool, is_book: bool) -> TabularMDP:
    has_naturals = pays_more or is_book
    listed = states(has_naturals)
    place = {state: k for k, state in enumerate(listed)}
    end = len(listed)
    indptr, indices, probs = [0], [], []
    rewards = np.zeros((end + 1, len(ACTIONS)))
    for k, (hand, dealer) in enumerate(listed):
        rewards[k, 0] = float(sticking(hand, dealer, pays_more, is_book))
        after: defaultdict[int, Fraction] = defaultdict(Fraction)
        for card, prob in DECK.items():
            drawn = hand.with_card(card)
            target = end if drawn.total > BEST else place[State(drawn, dealer)]
            after[target] += prob
        rewards[k, 1] = 0.0 - float(after.get(end, 0))
        for row in ({end: Fraction(1)}, dict(after)):
            indices += sorted(row)
            probs += [float(row[target]) for target in sorted(row)]
            indptr.append(len(indices))
    for _ in ACTIONS:
        indices.append(end)
        probs.append(1.0)
        indptr.append(len(indices))
    return TabularMDP(
        indptr=np.array(indptr),
        indices=np.array(indices),
        probs=np.array(probs),
        rewards=rewards,
        start=_start(place, has_naturals),
        state_ids=np.array([*(state.ident for state in listed), -1]),
        terminal_state=end,
        names=_names(listed, has_naturals),
        metadata={"method": "closed form", "natural": pays_more, "sab": is_book},
    )


def _start(place: dict[State, int], has_naturals: bool) -> FloatArray:
    mass = [Fraction(0)] * (len(place) + 1)
    for first, p in DECK.items():
        for second, q in DECK.items():
            hand = two_cards(first, second)
            if not has_naturals:
                hand = hand._replace(is_natural=False)
            for dealer, r in DECK.items():
                mass[place[State(hand, dealer)]] += p * q * r
    return np.array([float(share) for share in mass])


def _names(listed: list[State], has_naturals: bool) -> Names:
    def variable(name: str, values: list[int], words: tuple[str, ...] | None = None) -> Variable:
        return Variable(name=name, values=np.array([*values, UNKNOWN]), words=words)

    variables = [
        variable("player", [state.hand.total for state in listed]),
        variable("dealer", [state.dealer for state in listed]),
        variable("usable ace", [int(state.hand.has_ace) for state in listed], TRUTH),
    ]
    if has_naturals:
        naturals = [int(state.hand.is_natural) for state in listed]
        variables.append(variable("natural", naturals, TRUTH))
    return Names(actions=ACTIONS, variables=tuple(variables))
