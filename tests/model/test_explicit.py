"""Models of choices and branches, made into tables of actions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisim_abstract import TabularMDP, bisimulation_classes, bisimulation_metric, certify
from bisim_abstract._model.explicit import ExplicitModel, Reward
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.parts import sparse_mdp
from tests.support.checkers import random_model
from tests.support.examples import seeds


def by_hand(model: ExplicitModel, reward: str | None, goal: str | None) -> list[list[Any]]:
    """For each state its choices: (number of the name, successors, reward), in fractions."""
    found = []
    for s in range(model.n_states):
        is_goal = goal is not None and bool(model.labels[goal][s])
        own = []
        for c in range(model.choices[s], model.choices[s + 1]):
            span = range(model.branches[c], model.branches[c + 1])
            total = sum(Fraction(model.probs[b]) for b in span)
            row: dict[int, Fraction] = {}
            paid = Fraction(0)
            for b in span:
                t, p = int(model.targets[b]), Fraction(model.probs[b]) / total
                row[t] = row.get(t, Fraction(0)) + p
                if reward is None:
                    assert goal is not None
                    paid += p * int(model.labels[goal][t])
                elif (per_branch := model.rewards[reward].branches) is not None:
                    paid += p * Fraction(per_branch[b])
            if reward is not None:
                for per, k in (("states", s), ("choices", c)):
                    values = getattr(model.rewards[reward], per)
                    paid += 0 if values is None else Fraction(values[k])
            assert model.choice_actions is not None
            own.append((int(model.choice_actions[c]), row, paid))
        found.append([] if is_goal else own)
    return found


@given(
    st.integers(0, 10_000),
    st.sampled_from(["all", "states", "none", None]),
    st.sampled_from(["names", "positions"]),
    st.booleans(),
)
def test_tables_hold_what_choices_say(
    seed: int, reward: str | None, actions: str, has_goal: bool
) -> None:
    model = random_model(seed)
    goal = "goal" if has_goal or reward is None else None
    mdp = model.to_mdp(reward=reward, goal=goal, actions=actions)
    for s, own in enumerate(by_hand(model, reward, goal)):
        if not own:  # absorbing, whatever is done
            assert mdp.absorbing[s]
            assert mdp.available[s].all()
            continue
        left = [a for a in range(mdp.n_actions) if mdp.available[s, a]]
        assert len(left) == len(own)
        seen: dict[int, int] = {}
        for position, (number, row, paid) in enumerate(own):
            if actions == "positions":
                a = position
            else:
                seen[number] = seen.get(number, 0) + 1
                assert model.action_names is not None
                name = model.action_names[number] or "unnamed"
                name += f" ({seen[number]})" if seen[number] > 1 else ""
                assert mdp.names.actions is not None
                a = mdp.names.actions.index(name)
            assert mdp.available[s, a]
            states, probs = mdp.successors(s, a)
            assert states.tolist() == sorted(row)
            assert probs == pytest.approx([float(row[t]) for t in sorted(row)], rel=1e-14)
            assert mdp.rewards[s, a] == pytest.approx(float(paid), rel=1e-14, abs=1e-300)


def test_costs_and_weights() -> None:
    model = random_model(3)
    plain = model.to_mdp(reward="all")
    assert (model.to_mdp(reward="-all").rewards == -plain.rewards).all()
    assert (model.to_mdp(reward={"all": 2.5}).rewards == 2.5 * plain.rewards).all()


@seeds(20)
def test_several_rewards_side_by_side(seed: int) -> None:
    """The distance is that of the largest weighted difference of rewards, by its definition."""
    model = random_model(seed, n_states=5)
    joint = model.to_mdp(reward={"all": 1.0, "states": -0.5}, actions="positions")
    parts = [model.to_mdp(reward=name, actions="positions") for name in ("all", "states")]
    for name, part, weight in zip(("all", "states"), parts, (1.0, -0.5), strict=True):
        own = joint.for_reward(name)
        assert (own.rewards == weight * part.rewards).all()
        assert (own.indices == part.indices).all()
        assert (own.probs == part.probs).all()
        assert (own.available == part.available).all()
    # By definition: coded rewards tell whether vectors are equal.
    pairs = np.stack([p.rewards for p in parts], axis=-1).reshape(-1, 2)
    codes = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(parts[0].rewards.shape)
    coded = TabularMDP.from_rows(
        parts[0].indptr,
        parts[0].indices,
        parts[0].probs,
        codes.astype(float),
        available=parts[0].available,
    )
    for relation in ("plain", "lax"):
        found = bisimulation_classes(joint, relation=relation)
        want = bisimulation_classes(coded, relation=relation)
        assert found.labels.tolist() == want.labels.tolist()
        assert found.is_exact
        assert found.quotient.n_states == want.n_classes
        assert found.quotient.names.rewards == ("all", "states")


def test_the_distance_of_several_rewards_is_the_largest_difference() -> None:
    """Two states that stay: weights times differences, over 1 - gamma."""
    model = ExplicitModel(
        choices=np.arange(3),
        branches=np.arange(3),
        targets=np.arange(2),
        probs=np.ones(2),
        start=np.array([1.0, 0.0]),
        rewards={
            "x": Reward(states=np.array([0.0, 3.0])),
            "y": Reward(states=np.array([5.0, 1.0])),
        },
    )
    for weights, most in (({"x": 1.0, "y": 1.0}, 4.0), ({"x": 1.0, "y": 0.5}, 3.0)):
        metric = bisimulation_metric(model.to_mdp(reward=weights), 0.5)
        low, high = metric.bounds(0, 1)
        assert low <= 2.0 * most <= high <= 2.0 * most + 1e-6


@pytest.mark.parametrize("relation", ["plain", "lax"])
@pytest.mark.parametrize(
    ("x", "y", "count"),
    [
        ([1.0, 1.0], [2.0, 3.0], 2),  # the second tells them apart
        ([1.0, 0.0], [0.0, 1.0], 2),  # neither may stand for the other
        ([1.0, 1.0], [0.0, -0.0], 1),
    ],
)
def test_all_rewards_count_in_classes(
    x: list[float], y: list[float], count: int, relation: str
) -> None:
    model = ExplicitModel(
        choices=np.arange(3),
        branches=np.arange(3),
        targets=np.arange(2),
        probs=np.ones(2),
        start=np.array([1.0, 0.0]),
        rewards={"x": Reward(states=np.array(x)), "y": Reward(choices=np.array(y))},
    )
    joint = model.to_mdp(reward=["x", "y"])
    assert bisimulation_classes(joint, relation=relation).n_classes == count


def test_renaming_would_mix_rewards_up() -> None:
    """Paid 1 in x here, in y there: alike for whoever may match any two rewards."""
    joint = random_model(0).to_mdp(reward=["all", "states"])
    with pytest.raises(InvalidArgumentError, match="renaming would mix up"):
        bisimulation_metric(joint, 0.9, relation="lax")
    with pytest.raises(InvalidArgumentError, match="renaming would mix up"):
        certify(joint, 0.9, relation="lax", tau=1.0)
    with pytest.raises(InvalidArgumentError, match="no value can be kept"):
        certify(joint, 0.9)
    with pytest.raises(InvalidArgumentError, match="digits cannot be given"):
        bisimulation_classes(joint, relation="lax", digits=3)
    assert certify(joint, 0.9, tau=1e-9).gamma == 0.9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "several rewards .all, states, none.: choose one"),
        ({"reward": "al"}, "unknown; it has all, states, none; did you mean all"),
        ({"reward": ["all", "-all"]}, "is named twice"),
        ({"reward": []}, "at least one of"),
        ({"reward": {"all": 0.0}}, "finite and not 0"),
        ({"reward": {"all": float("nan")}}, "finite and not 0"),
        ({"reward": [1]}, "must hold names"),
        ({"goal": "gaol"}, "it has goal; did you mean goal"),
        ({"reward": "all", "actions": "name"}, "actions must be"),
    ],
)
def test_what_cannot_be_chosen(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        random_model(0).to_mdp(**options)


def test_one_reward_is_no_list() -> None:
    mdp = sparse_mdp(3, support=2, seed=0)
    with pytest.raises(InvalidArgumentError, match="none, but one that all actions pay"):
        mdp.for_reward("x")
