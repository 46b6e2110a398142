"""Parts of the verifier by themselves, and certificates that are odd in other ways."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    TabularMDP,
    verify,
)
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._verify.exact import partial_transport
from bisim_abstract._verify.floats import check_radii
from bisim_abstract._verify.kernels import row_masses, transport_bounds
from bisim_abstract._verify.read import read_claims
from tests.support.altered import ALTER_MDP, EMPTY
from tests.support.honest import accepted, block_model, build, deep, found, rejected, undecided
from tests.support.oracles import partial_exact

# -- parts -------------------------------------------------------------------------------------


def test_partial_transport() -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        n, m = rng.integers(1, 5, size=2)
        cost = rng.random((n, m)) * (rng.random((n, m)) < 0.8)
        a, b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        free = float(rng.choice([1e-15, 1e-6, 0.1, 0.5, 0.99]) * rng.random())
        exact = [[Fraction(v) for v in line] for line in cost.tolist()]
        sides = [Fraction(v) for v in a.tolist()], [Fraction(v) for v in b.tolist()]
        truth = partial_exact(exact, a.tolist(), b.tolist(), Fraction(free))
        assert partial_transport(exact, *sides, Fraction(free)) == truth
        k = max(n, m) + 1
        p, q = np.empty(n), np.empty(m)
        row_masses(0, n, a, p)
        row_masses(0, m, b, q)
        wide = np.empty((k, k))
        wide[:n, :m] = cost
        scratch = np.empty((k, k)), np.empty((7, k)), np.empty((4, k), np.int64)
        low, high = transport_bounds(n, m, p, q, wide, free, *scratch)
        assert Fraction(low) <= truth <= Fraction(high)
        assert high - low <= 1e-13


def test_a_radius_is_0_only_if_sums_are_exact() -> None:
    """0.1 + 0.2 is rounded: a centre that equals the rounded sum is not the row summed."""
    for entries, is_exact in (((0.7, 0.1, 0.2), False), ((0.25, 0.5, 0.25), True)):
        P = np.zeros((3, 1, 3))
        P[:, 0] = entries
        P[1:, 0] = np.eye(3)[1:]
        mdp = TabularMDP.from_dense(P, np.zeros((3, 1)))
        labels = [0, 1, 1]
        model = block_model(mdp, labels)
        # Block 0 is the state itself; its row reaches block 0 and, by two entries, block 1.
        model.probs[:2] = [entries[0], entries[1] + entries[2]]
        model.radius[:] = model.spare[:] = model.short[:] = 0.0
        level = SimpleNamespace(
            model=model, keys=np.empty(0, np.int64), lower=np.empty(0), upper=np.empty(0)
        )
        content = build(mdp, 0.5, has_features=False) | {"levels": (level,)}
        total = Fraction(entries[1]) + Fraction(entries[2])
        assert (total == Fraction(entries[1] + entries[2])) == is_exact
        assert found(content, mdp, "exact").is_valid == is_exact
        made: Any = SimpleNamespace(**content)
        radii = check_radii(read_claims(made, mdp).levels[0], mdp, 1)
        assert (radii.radius[0, 0] == 0.0) == (radii.short[0, 0] == 0.0) == is_exact


def test_garbage_never_crashes(honest: dict[str, Any]) -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __repr__(self) -> str:
            raise RuntimeError

    junk: list[Any] = [
        None,
        -3,
        2**70,
        float("nan"),
        "x",
        [],
        (),
        {},
        np.zeros(0),
        np.zeros((2, 2)),
        np.full((3, 2), 1.7e308),
        np.full((3, 8), -1.7e308),
        np.full(8, 2**62),
        np.full(8, 1.7e308),
        np.array(5),
        np.ma.masked_array(np.zeros(8)),
        object(),
        Hostile(),
    ]
    level, features = honest["levels"][0], honest["features"]
    for holder in (level, level.model, features, features.witnesses):
        for name in vars(holder):
            for value in junk:
                content = deep(honest)
                target = next(
                    new
                    for old, new in (
                        (level, content["levels"][0]),
                        (level.model, content["levels"][0].model),
                        (features, content["features"]),
                        (features.witnesses, content["features"].witnesses),
                    )
                    if old is holder
                )
                setattr(target, name, value)
                # No witnesses claim less; and actions that go by name have no others.
                is_fine = name in ("witnesses", "renaming") and value is None
                for mode in ("float", "sampled"):
                    result = found(content, ALTER_MDP, mode)
                    if not is_fine:
                        assert not result.is_valid, (name, value, mode)


def test_large_values_are_decided(honest: dict[str, Any]) -> None:
    content = deep(honest)
    content["levels"][0].model.high[0, 0] = 1e305
    assert "too large" in undecided(content, ALTER_MDP)
    rejected(content, ALTER_MDP, "which is at least 9.9")  # in fractions, it certainly is wrong
    content = deep(honest)
    content["features"].values[:] = np.array([-1.7e308, 1.7e308] * 4)
    rejected(content, ALTER_MDP, "")


def test_counts_what_was_checked(honest: dict[str, Any]) -> None:
    result = found(honest, ALTER_MDP)
    assert (result.levels_checked, result.features_checked) == (1, 5)
    sampled: Any = SimpleNamespace(**honest)
    assert verify(ALTER_MDP, sampled, mode="sampled", sample=3).pairs_checked == 3


# -- found by a review -------------------------------------------------------------------------


@pytest.mark.parametrize("n_actions", [8, 64, 200])
def test_the_worst_state_of_an_estimate_is_located_in_floats(n_actions: int) -> None:
    """Two states whose mean radii floats cannot tell apart: the needed one is the larger."""
    radius = np.zeros((2, n_actions))
    radius[:, 0] = 1.0
    radius[1, 1:] = 2.0**-53
    known = Estimate(
        counts=np.ones((2, n_actions), np.int64),
        reward_radius=radius,
        row_radius=np.zeros((2, n_actions)),
        alpha=0.1,
        reward_range=(-10.0, 10.0),
        support_bound=2,
    )
    mdp = TabularMDP(
        indptr=np.arange(2 * n_actions + 1),
        indices=np.repeat(np.arange(2), n_actions),
        probs=np.ones(2 * n_actions),
        rewards=np.zeros((2, n_actions)),
        estimate=known,
    )
    needed = 4 * sum(map(Fraction, radius[1].tolist())) / n_actions
    verdicts = set()
    for deficit in range(0, 2 * n_actions, max(1, n_actions // 16)):
        correction = float(needed * (1 - Fraction(deficit, 2**53)))
        content: dict[str, Any] = {
            "fingerprint": mdp.fingerprint,
            "n_states": 2,
            "gamma": 0.5,
            "rewards": mdp.rewards,
            "available": mdp.available,
            "relation": "plain",
            "apart": None,
            "reward_radius": radius,
            "alpha": 0.1,
            "reward_range": known.reward_range,
            "keys": np.empty(0, np.int64),
            "lower": np.empty(0),
            "upper": np.empty(0),
            "levels": (),
            "terminal_state": None,
            "value": None,
            "action_values": None,
            "features": SimpleNamespace(
                values=np.zeros((1, 2)),
                signs=np.ones((1, n_actions), np.int64),
                kinds=np.array([1]),
                corrections=np.array([correction]),
                floor=np.array([-np.inf]),
                ceiling=np.array([np.inf]),
                witnesses=None,
            ),
            "lower_start": "reward",
            "upper_start": "reward",
            "tau": None,
            "scope": "covered",
            **EMPTY,
        }
        result = found(content, mdp)
        verdicts.add(result.is_valid)
        if result.is_valid:
            assert Fraction(correction) + Fraction(result.widening) >= needed
    assert True in verdicts


def test_fractions_are_asked_only_where_that_takes_seconds(honest: dict[str, Any]) -> None:
    """Work that no pair shows: many features and witnesses, one of them too large for floats."""
    content = deep(honest)
    features = content["features"]
    for name in ("values", "signs", "kinds", "corrections", "floor", "ceiling"):
        line = getattr(features, name)
        setattr(features, name, np.repeat(line, 80, axis=0))
    for name, line in vars(features.witnesses).items():
        setattr(features.witnesses, name, np.repeat(line, 6000, axis=0))
    features.witnesses.values[0] *= 1e303
    result = found(content, ALTER_MDP)
    assert result.mode == "float"
    assert result.problem.endswith('"exact" would decide, slowly')


def test_a_support_names_no_more_states_than_there_are(honest: dict[str, Any]) -> None:
    """Else its work would have no limit; a state may stand more than once."""
    for times, is_fine in ((2, True), (3, False)):
        content = deep(honest)
        witnesses = content["features"].witnesses
        witnesses.support = np.repeat(witnesses.support, times, axis=1)
        witnesses.potential = np.repeat(witnesses.potential, times, axis=1)
        if is_fine:
            accepted(content, ALTER_MDP)
        else:
            rejected(content, ALTER_MDP, "witnesses: support and potential must have one shape")


def test_distances_to_a_support_are_not_all_held_at_once() -> None:
    """A support of all states is a small part of a certificate, its distances are not."""
    n = 3000
    mdp = TabularMDP(
        indptr=np.arange(n + 1),
        indices=np.arange(n),
        probs=np.ones(n),
        rewards=np.arange(n)[:, None] / n,
    )
    content = build(mdp_of_two(), 0.5, has_features=False) | {
        "fingerprint": mdp.fingerprint,
        "n_states": n,
        "rewards": mdp.rewards,
        "available": mdp.available,
        "features": SimpleNamespace(
            values=2.0 * mdp.rewards.T,
            signs=np.ones((1, 1), np.int64),
            kinds=np.zeros(1, np.int64),
            corrections=np.full(1, 1e-9),
            floor=np.full(1, -np.inf),
            ceiling=np.full(1, np.inf),
            witnesses=SimpleNamespace(
                values=-2.0 * mdp.rewards.T,
                actions=np.zeros(1, np.int64),
                signs=np.full(1, -1),
                support=np.arange(n)[None],
                potential=-2.0 * mdp.rewards.T,  # the last states decide for all
                corrections=np.full(1, 1e-9),
            ),
        ),
    }
    assert found(content, mdp).is_valid  # compiled
    tracemalloc.start()
    try:
        result = found(content, mdp)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.is_valid, result.problem
    assert peak < 8 * n * n
    content["features"].witnesses.potential = 2.0 * mdp.rewards.T
    assert not found(content, mdp).is_valid


def mdp_of_two() -> TabularMDP:
    return TabularMDP.from_dense(np.eye(2)[:, None], np.zeros((2, 1)))


def test_a_certificate_is_read_once(honest: dict[str, Any]) -> None:
    """What fractions decide about is what was read, whatever an object says later."""
    content = deep(honest)
    content["features"].values[:] = np.array([-1e305, 1e305] * 4)  # open in floats
    reads: list[str] = []

    class Turning:
        def __getattr__(self, name: str) -> Any:
            reads.append(name)
            return content[name]

    turning: Any = Turning()
    result = verify(ALTER_MDP, turning)
    assert result.mode == "exact"
    assert not result.is_valid
    assert reads.count("keys") == reads.count("levels") == reads.count("features") == 1
