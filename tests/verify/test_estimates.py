"""`verify` on certificates of estimated models, honest and altered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import certify, estimate_mdp, verify
from bisim_abstract._model.generators import sparse_mdp
from tests.abstract.test_value import in_halves
from tests.support.altered import GAMMA, at, drop_support, in_features, put
from tests.support.honest import (
    accepted,
    block_model,
    build,
    deep,
    estimated,
    make_features,
    rejected,
    up,
)
from tests.support.oracles import lifted_exact, variation_exact

# -- estimated models --------------------------------------------------------------------------


GUESS = estimated(sparse_mdp(5, 2, support=2, seed=2), 0.05, 0.1, 2)


@pytest.fixture(scope="module")
def guessed() -> dict[str, Any]:
    content = build(
        GUESS, GAMMA, labelings=[[0, 1, 1, 2, 0]], pairs=[(0, 1), (0, 3), (2, 4)], sweeps=24
    )
    accepted(content, GUESS)
    return content


def shift_interval(content: dict[str, Any]) -> None:
    """Intervals of the estimated rewards themselves."""
    model = content["levels"][0].model
    for block in range(3):
        rewards = GUESS.rewards[model.labels == block]
        model.low[block], model.high[block] = rewards.min(axis=0), rewards.max(axis=0)


def forget_rows(content: dict[str, Any]) -> None:
    """Radii of the estimated rows alone."""
    plain = dataclasses.replace(GUESS, estimate=None)
    model = block_model(plain, [0, 1, 1, 2, 0])
    content["levels"][0].model.radius, content["levels"][0].model.short = model.radius, model.short


def sure_features(content: dict[str, Any]) -> None:
    plain = dataclasses.replace(GUESS, estimate=None)
    content["features"] = make_features(plain, GAMMA, 24, has_witnesses=False)


def some_witnesses(content: dict[str, Any]) -> None:
    plain = dataclasses.replace(GUESS, estimate=None)
    content["features"].witnesses = make_features(plain, GAMMA, 24).witnesses


GUESSES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "alpha smaller": (put(alpha=0.01), "alpha is 0.01"),
    "alpha dropped": (put(alpha=None), "alpha is None"),
    "range wider": (put(reward_range=(-10.0, 11.0)), "reward_range is (-10.0, 11.0)"),
    "range dropped": (put(reward_range=None), "reward_range is None"),
    "alpha text": (put(alpha="0.1"), "alpha must be a real number"),
    "radius dropped": (put(reward_radius=np.empty((0, 0))), "reward_radius is not that"),
    "radius shrunk": (lambda c: c.update(reward_radius=c["reward_radius"] / 2), "reward_radius"),
    "intervals of the estimate": (shift_interval, "reward interval"),
    "radii of the estimate": (forget_rows, "radius is"),
    "features of the estimate": (sure_features, "correction of feature"),
    "witnesses": (some_witnesses, "witnesses say nothing"),
    "level of no estimate": (
        lambda c: setattr(c["levels"][0].model, "is_estimate", False),
        "is_estimate is False",
    ),
    "correction shrunk": (
        in_features("corrections", at(1, lambda x: x * 0.999)),
        "correction of feature 1",
    ),
}


@pytest.mark.parametrize("name", GUESSES)
def test_rejects_alterations_of_estimates(guessed: dict[str, Any], name: str) -> None:
    content = deep(guessed)
    alter, words = GUESSES[name]
    alter(content)
    rejected(content, GUESS, words)


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_no_entry_of_an_estimate_has_room(guessed: dict[str, Any], side: str) -> None:
    for name in ("level", "states"):
        count = (guessed["levels"][0].keys if name == "level" else guessed["keys"]).size
        for k in range(count):
            content = deep(guessed)
            holder = content["levels"][0] if name == "level" else SimpleNamespace(**content)
            move = 1e-4 * (1.0 + getattr(holder, side)[k])
            getattr(holder, side)[k] += move if side == "lower" else -move
            rejected(content, GUESS, "bound of")


def test_true_rows_of_an_estimate_may_leave_the_support(guessed: dict[str, Any]) -> None:
    """A centre that leaves a block out: the mass that goes there counts for the radius."""
    content = deep(guessed)
    model = content["levels"][0].model
    drop_support(content)
    labels = model.labels.tolist()
    for block, action in np.ndindex(model.radius.shape):
        at_row = block * 2 + action
        part = slice(int(model.indptr[at_row]), int(model.indptr[at_row + 1]))
        entries = [Fraction(v) for v in model.probs[part].tolist()]
        total = sum(entries, Fraction(0))
        centre = {b: v / total for b, v in zip(model.indices[part].tolist(), entries, strict=True)}
        model.radius[block, action] = max(
            up(
                min(
                    Fraction(1),
                    variation_exact(lifted_exact(GUESS, labels, s, action), centre)
                    + Fraction(float(GUESS.estimate.row_radius[s, action])),  # type: ignore[union-attr]
                )
            )
            for s in range(5)
            if labels[s] == block
        )
    model.spare, model.short = np.zeros(model.radius.shape), model.radius.copy()
    assert (model.radius < 1.0).all()
    level = SimpleNamespace(
        model=model, keys=np.empty(0, np.int64), lower=np.empty(0), upper=np.empty(0)
    )
    bare = {**content, "levels": (level,), "features": None, "keys": level.keys}
    bare |= {"lower": level.lower, "upper": level.upper}
    accepted(bare, GUESS)
    for index in np.ndindex(model.radius.shape):
        changed = deep(bare)
        changed["levels"][0].model.radius[index] *= 1.0 - 1e-6
        rejected(changed, GUESS, "radius is")


def test_interval_ends_are_compared_exactly(guessed: dict[str, Any]) -> None:
    for name, away in (("low", np.inf), ("high", -np.inf)):
        values = getattr(guessed["levels"][0].model, name)
        for index in np.ndindex(values.shape):
            content = deep(guessed)
            holder = getattr(content["levels"][0].model, name)
            holder[index] = np.nextafter(holder[index], away)
            rejected(content, GUESS, "reward interval")


def test_bounds_of_estimates_end_where_the_range_of_rewards_does() -> None:
    """Rewards in [0, 1] at γ = 0.9: no distance exceeds 10, whatever the radii."""
    rng = np.random.default_rng(0)
    s, t, a = rng.integers(0, 4, (3, 60))
    mdp = estimate_mdp(
        s, a % 2, rng.random(60), t, n_states=4, n_actions=2, reward_range=(0.0, 1.0)
    )
    certificate = certify(mdp, 0.9, tau=1.0)
    assert certificate.width <= 10.0 + 1e-9
    assert certificate.global_width <= 10.0 + 1e-9
    for mode in ("float", "exact"):
        assert verify(mdp, certificate, mode=mode).is_valid
    assert mdp.estimate is not None
    wider = dataclasses.replace(mdp.estimate, reward_range=(-1.0, 2.0))
    other = dataclasses.replace(mdp, estimate=wider)
    assert certify(other, 0.9, tau=1.0).global_width > 12.0
    # What is narrower than means can be is refused, and so is the range of another estimate.
    forged = dataclasses.replace(certificate, fingerprint=other.fingerprint, model=None)
    for mode in ("float", "exact"):
        found = verify(other, forged, mode=mode)
        assert not found.is_valid
        assert "reward_range" in found.problem
    told = dataclasses.replace(forged, reward_range=(-1.0, 2.0), model=None)
    for mode in ("float", "exact"):
        assert not verify(other, told, mode=mode).is_valid


def test_radii_of_blocks_serve_functions_and_levels_that_are_constant_on_them() -> None:
    halves = [0] * 12 + [1] * 12
    _, mdp = in_halves(60_000, halves)
    certificate = certify(mdp, 0.5, tau=0.9)
    assert certificate.is_certified
    assert certificate.n_clusters == 2
    assert certificate.value is not None
    for mode in ("float", "exact"):
        assert verify(mdp, certificate, mode=mode).is_valid
    assert mdp.estimate is not None
    bare = dataclasses.replace(
        mdp, estimate=dataclasses.replace(mdp.estimate, blocks=None, block_radius=None)
    )
    # The same certificate of an estimate that knows rows only by their own radii.
    taken = dataclasses.replace(certificate, fingerprint=bare.fingerprint, model=None)
    others = dataclasses.replace(mdp.estimate, blocks=np.arange(24) % 2)
    mixed = dataclasses.replace(mdp, estimate=others)
    moved = dataclasses.replace(certificate, fingerprint=mixed.fingerprint, model=None)
    for mode in ("float", "exact"):
        assert not verify(bare, taken, mode=mode).is_valid
        assert not verify(mixed, moved, mode=mode).is_valid
    # A function that tells members of a block apart pays for whole rows: more is not safer.
    for name, sign in (("optimal_upper", 1.0), ("policy_lower", -1.0)):
        values = np.array(getattr(certificate.value, name))
        values[0] += sign * 1e-7
        changed: dict[str, Any] = {name: values, "loss": 10.0, "start_loss": 10.0, "kept": -np.inf}
        value = dataclasses.replace(certificate.value, **changed)
        forged = certificate._changed(value=value)
        for mode in ("float", "exact"):
            found = verify(mdp, forged, mode=mode)
            assert not found.is_valid
            assert name in found.problem
