"""What people quote of a certificate, and what they then get: known environments, simulated."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import Certificate, TabularMDP, certify, prove_value, value_iteration
from bisim_abstract._abstract.episodes import bound_episodes
from bisim_abstract._certificate.certificate import CONDITIONS
from bisim_abstract.parts import grouped_mdp
from bisim_abstract.wrappers import extract_mdp

Ints = npt.NDArray[np.int64]
LIMIT = 200


@cache
def model(name: str, **options: Any) -> TabularMDP:
    """The model of an environment whose observations are its states, with a time limit."""
    with gym.make(name, **options) as env:
        mdp = extract_mdp(env)
    return dataclasses.replace(mdp, metadata={**mdp.metadata, "time_limit": LIMIT})


@cache
def default(name: str, gamma: float, **options: Any) -> Certificate:
    return certify(model(name, **options), gamma)


def solved(mdp: TabularMDP, certificate: Certificate) -> Ints:
    """What an agent does that solves the small environment by itself: by averages, in loops."""
    labels = certificate.labels
    count, n_actions = int(labels.max()) + 1, mdp.n_actions
    rows = np.zeros((count, n_actions, count))
    paid = np.zeros((count, n_actions))
    for x, c in enumerate(labels.tolist()):
        for a in range(n_actions):
            to, p = mdp.successors(x, a)
            np.add.at(rows[c, a], labels[to], p)
            paid[c, a] += mdp.rewards[x, a]
    sizes = np.bincount(labels)
    rows, paid = rows / sizes[:, None, None], paid / sizes[:, None]
    values = np.zeros(count)
    for _ in range(1_500):
        q = paid + certificate.gamma * rows @ values
        values = q.max(axis=1)
    return np.asarray(q.argmax(axis=1))[labels]


def simulated(env: gym.Env[Any, Any], policy: Ints, episodes: int) -> tuple[float, float]:
    """The share of real episodes that end within the limit, and their mean return."""
    ended, total = 0, 0.0
    for seed in range(episodes):
        state, _ = env.reset(seed=seed)
        for _ in range(LIMIT):
            state, reward, terminated, _, _ = env.step(int(policy[state]))
            total += float(reward)
            if terminated:
                ended += 1
                break
    return ended / episodes, total / episodes


# -- a policy that goes nowhere ------------------------------------------------------------------


def test_going_nowhere_retains_nothing() -> None:
    """Seven clusters of the slippery cliff, whose policy reaches the goal once in 12,000 times."""
    mdp = model("CliffWalking-v1", is_slippery=True)
    found = certify(mdp, 0.95, n_clusters=7)
    assert found.value is not None
    own = bound_episodes(mdp, found.value.lifted_policy, 20_000).ended
    assert own is not None
    assert own[1] < 1e-4
    for guarantee in ("policy", "solver", "learner"):
        share = found.value.share(guarantee)
        assert share is not None
        assert share.kept < 0.01
    assert found.verdict.level == "poor"
    assert found.verdict.sentence.startswith("CERTIFIED, BUT agents may do no better than the base")
    # No share is asked for, and it is said all the same how few episodes end.
    asked = certify(mdp, 0.95, keep=0.0)
    assert asked.value is not None
    assert asked.verdict.level == "useful"
    assert asked.value.episodes is not None
    assert not asked.value.episodes.ends_clearly_fewer("solver")


def test_what_is_green_reaches_the_goal() -> None:
    mdp = model("CliffWalking-v1", is_slippery=True)
    found = default("CliffWalking-v1", 0.95, is_slippery=True)
    assert found.verdict.level == "useful", found.verdict.sentence
    with gym.make("CliffWalking-v1", is_slippery=True, max_episode_steps=10**6) as env:
        ended, _ = simulated(env, solved(mdp, found), 100)
    assert ended >= 0.95
    value = found.value
    assert value is not None
    assert value.episodes is not None
    assert value.episodes.solver.ended is not None
    assert value.episodes.solver.ended[0] >= 0.95
    assert (
        "% of episodes end within 200 steps (policy optimal at this gamma: 99.9%)"
        in found.verdict.sentence
    )


# -- driving in circles --------------------------------------------------------------------------


@pytest.mark.slow
def test_taxis_arrive() -> None:
    mdp, found = model("Taxi-v3"), default("Taxi-v3", 0.9)
    value = found.value
    assert value is not None
    assert found.verdict.level == "useful", found.verdict.sentence
    assert found.n_clusters == 340
    assert value.episodes is not None
    assert value.episodes.solver.ended is not None
    assert value.episodes.solver.ended[0] >= 0.95
    with gym.make("Taxi-v3", max_episode_steps=10**6) as env:
        ended, returned = simulated(env, solved(mdp, found), 300)
    assert ended >= 0.95
    bounds = value.episodes.solver.mean_return[0], value.episodes.optimal.mean_return[1]
    assert bounds[0] - 2.0 <= returned <= bounds[1] + 2.0  # 300 of all starts
    assert found.verdict.sentence.startswith(
        "CERTIFIED: 340 clusters of 500 states (plus the terminal state); at gamma 0.9, any agent "
        "that solves the small environment retains at least 98.7% of the achievable return from "
        "the start states, no state loses more than 6.87; at least 98.0% of episodes end within "
        "200 steps (policy optimal at this gamma: 100%)"
    )
    fewer = certify(mdp, 0.9, n_clusters=315).verdict
    assert (fewer.level, fewer.kept is not None and fewer.kept > 0.95) == ("poor", True)
    assert fewer.sentence.startswith("CERTIFIED, BUT clearly fewer episodes may end: 315 clusters")


def test_a_single_cluster_retains_nothing() -> None:
    mdp = model("Taxi-v3")
    value = prove_value(mdp, np.zeros(mdp.n_states, np.int64), 0.9)
    for guarantee in ("policy", "solver", "learner"):
        share = value.share(guarantee)
        assert share is not None
        assert share.kept <= 0.0
    assert value.episodes is not None
    assert value.episodes.ends_clearly_fewer("policy")


def test_one_cluster_for_each_best_action_is_nothing_to_learn_on() -> None:
    """Six clusters of 500 states on which the best policy can be said, and not be found."""
    mdp = model("Taxi-v3")
    value = prove_value(mdp, value_iteration(mdp, 0.9).policy, 0.9)
    assert value.policy.size == 7
    assert (value.kept, value.solver.kept) == (1.0, 1.0)
    assert value.learner is not None
    assert value.learner.converged is not None
    assert value.learner.kept < 0.0
    assert value.learner.converged.kept < 0.0
    assert value.episodes is not None
    assert value.episodes.ends_clearly_fewer("learner")
    assert not value.episodes.ends_clearly_fewer("solver")


# -- one rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gamma"),
    [
        ("CliffWalking-v1", 0.9),
        pytest.param("Taxi-v3", 0.9, marks=pytest.mark.slow),
        pytest.param("Blackjack-v1", 0.9, marks=pytest.mark.slow),
        pytest.param("FrozenLake-v1", 0.99, marks=pytest.mark.slow),
    ],
)
def test_the_frontier_and_the_certificate_choose_alike(name: str, gamma: float) -> None:
    found = default(name, gamma)
    coarsest = found.frontier().coarsest()
    assert coarsest is not None
    assert coarsest.n_clusters == found.n_clusters
    assert found.value is not None
    assert coarsest.kept == found.value.solver.kept >= found.keep
    assert found.verdict.level == "useful"
    # Asking for one cluster less gives less than was requested.
    fewer = [x for x in found.frontier().points if x.n_clusters < found.n_clusters]
    assert fewer
    again = certify(model(name), gamma, n_clusters=max(x.n_clusters for x in fewer))
    assert again.verdict.level == "poor"


# -- words ---------------------------------------------------------------------------------------


def test_sentences_name_gamma_the_agents_and_the_starts() -> None:
    mdp = grouped_mdp(40, 4, noise=0.01, seed=0)[0]
    told = {
        "solver": "any agent that solves the small environment",
        "policy": "its policy",
        "learner": "any one-step Q-learner on real steps",
    }
    for guarantee, agents in told.items():
        sentence = certify(mdp, 0.85, guarantee=guarantee, keep=0.5).verdict.sentence
        assert f"of 40 states; at gamma 0.85, {agents} retains " in sentence
        assert "of the achievable return from the start states, no state loses more" in sentence
    sampled = {CONDITIONS: ["from 100 sampled starts", "for an agent that sees the whole state"]}
    found = certify(dataclasses.replace(mdp, metadata=sampled), 0.85, keep=0.5)
    sentence = found.verdict.sentence
    assert "of the achievable return from 100 sampled starts, no state loses more" in sentence
    assert sentence.endswith("; for an agent that sees the whole state")
    assert "from the start states" not in sentence


def test_where_clearly_fewer_episodes_may_end_nothing_is_green() -> None:
    """A loss of 10 in any state would be allowed; a single cluster walks about for ever."""
    mdp = model("CliffWalking-v1")
    found = certify(mdp, 0.9, max_loss=10.0)
    assert found.verdict.level == "useful"
    assert found.value is not None
    assert found.value.episodes is not None
    assert found.value.episodes.solver.ended is not None
    assert found.value.episodes.solver.ended[0] >= 0.95
    one = found.at(found.certified_thresholds()[-1].low).with_value()
    assert one.n_clusters == 1
    assert one.value is not None
    assert one.value.solver.loss <= 10.0
    assert one.verdict.level == "poor"
    assert one.verdict.sentence.startswith("CERTIFIED, BUT agents may do no better than the base")
    assert "; no share of episodes is proven to end within 200 steps (p" in one.verdict.sentence
    # Nor without a time limit, where nobody knows how few end.
    timeless = dataclasses.replace(mdp, metadata={})
    asked = certify(timeless, 0.9, max_loss=10.0)
    assert asked.value is not None
    assert asked.value.solver.kept > 0.0
    assert asked.n_clusters > 1
