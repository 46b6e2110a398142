"""Float mode at the ends of what floats are: inflated numbers, underflow, specks of mass.

Floats decide by themselves here: no fractions are asked where rounding leaves something open.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP, bisimulation_metric
from bisim_abstract._verify.floats import explained
from bisim_abstract._verify.read import read_claims
from bisim_abstract._verify.verify import verify_rest
from tests.support.honest import (
    block_model,
    build,
    deep,
    down,
    estimated,
    found,
    make_features,
    make_level,
    up,
)
from tests.support.oracles import lifted_exact, metric_exact, variation_exact

EPS = 2.0**-53
OPEN = '; mode "exact" would decide, slowly'

pytestmark = pytest.mark.usefixtures("_floats_alone")


@pytest.fixture
def _floats_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisim_abstract._verify.verify.SMALL", -1)


# -- what rounding may explain -------------------------------------------------------------------


def four_states() -> TabularMDP:
    rows = np.random.default_rng(1).dirichlet(np.ones(4), size=(4, 1))
    return TabularMDP.from_dense(rows, [0.0, 0.3, 0.7, 1.0])


def one_function(values: Any, correction: float) -> SimpleNamespace:
    return SimpleNamespace(
        values=np.array([values], np.float64),
        signs=np.ones((1, 1), np.int64),
        kinds=np.zeros(1, np.int64),
        corrections=np.array([correction]),
        floor=np.array([-np.inf]),
        ceiling=np.array([np.inf]),
        witnesses=None,
    )


def with_all_pairs(mdp: TabularMDP, gamma: float) -> dict[str, Any]:
    """Lower bounds with no room; upper ones with some."""
    n = mdp.n_states
    content = build(mdp, gamma, has_features=False)
    s, t = np.triu_indices(n, 1)
    d = metric_exact(mdp, gamma, bisimulation_metric(mdp, gamma).lower)
    exact = [d[x][y] for x, y in zip(s.tolist(), t.tolist(), strict=True)]
    # Less δ they gain (1 - γ)·δ, more than what their own rounding loses.
    spare = Fraction(4e-16) / (1 - Fraction(gamma))
    content["keys"] = s * n + t
    content["lower"] = np.array([down(max(x - spare, Fraction(0))) for x in exact])
    content["upper"] = np.array([2.0 * up(x) for x in exact])
    return content


@pytest.mark.parametrize("gamma", [0.999, 0.9999])
@pytest.mark.parametrize("correction", [1e20, 1e300])
def test_a_correction_excuses_no_other_claim(gamma: float, correction: float) -> None:
    """A function that says nothing, with a correction of any size, changes no verdict."""
    mdp = four_states()
    content = with_all_pairs(mdp, gamma)
    content["features"] = one_function(np.zeros(4), correction)
    assert found(content, mdp, "exact").is_valid
    assert found(content, mdp).is_valid
    for step in (1e-10, 9.6e-7, 1e-3):
        lie = {**content, "lower": content["lower"] + step}
        for mode in ("float", "exact"):
            result = found(lie, mdp, mode)
            assert result.verdict == "rejected"
            assert "above its backup" in result.problem  # certain, not open
            assert OPEN not in result.problem


def test_values_that_are_stretched_excuse_nothing_either() -> None:
    """What a function says is lost in its own rounding: no reason to believe the pairs."""
    P = np.eye(4)[:, None]
    mdp = TabularMDP.from_dense(P, [0.0, 0.3, 0.7, 1.0])
    content = with_all_pairs(mdp, 0.999)
    values = np.array([0.0, 1.0, 2.0, 3.0])
    for size in (1e3, 1e9, 1e15):
        # Self-loops: the residual of g is R - (1 - γ)·g, so that no less is enough.
        exact = [
            Fraction(r) - (1 - Fraction(0.999)) * Fraction(x * size)
            for r, x in zip(mdp.rewards[:, 0].tolist(), values.tolist(), strict=True)
        ]
        correction = up((max(exact) - min(exact)) / (1 - Fraction(0.999)))
        content["features"] = one_function(values * size, correction)
        assert found(content, mdp, "exact").is_valid
        lie = {**content, "lower": content["lower"] + 9.6e-7}
        assert found(lie, mdp).verdict == "rejected"
        assert found(lie, mdp, "exact").verdict == "rejected"


def room(content: dict[str, Any], mdp: TabularMDP, size: float) -> Fraction:
    claims = read_claims(SimpleNamespace(**content), mdp)
    return explained(claims.states, claims, Fraction(size), Fraction(size))


def test_the_limit_of_the_widening_is_the_one_that_is_documented() -> None:
    mdp = four_states()
    content = build(mdp, 0.5, labelings=[[0, 0, 1, 2]], has_features=False)
    # Rows of 4 entries, one action; centres are shorter.
    assert room(content, mdp, 2.0) == Fraction((64 * 4 + 32 + 512) * EPS * 2.0)
    longer = TabularMDP.from_dense(np.full((9, 2, 9), 1 / 9), np.zeros((9, 2)))
    other = build(longer, 0.5, has_features=False)
    assert room(other, longer, 1.0) == Fraction((64 * 9 + 64 + 512) * EPS)
    # Nothing that is stored takes part in it.
    content["levels"][0].model.high[0, 0] = 1e200
    content["features"] = one_function(np.full(4, 1e200), 1e300)
    assert room(content, mdp, 2.0) == Fraction((64 * 4 + 32 + 512) * EPS * 2.0)
    wide = estimated(mdp, 0.5, 0.0)
    ends = np.abs(wide.rewards) + wide.estimate.reward_radius  # type: ignore[union-attr]
    least = (64 * 4 + 32 + 512) * EPS * (2.0 + 2.0 * float(ends.max()))
    found = room(build(wide, 0.5, has_features=False), wide, 2.0)
    assert least <= found <= least * (1.0 + 1e-9)


def test_what_rounding_does_not_explain_is_not_verified() -> None:
    """Potentials far from 0 leave so much open that a correction is not confirmed."""
    mdp, gamma = four_states(), 0.5
    content = build(mdp, gamma, has_features=False)
    for far, is_open in ((2.0**3, False), (2.0**20, True)):
        content["features"] = make_features(mdp, gamma, 40)
        witnesses = content["features"].witnesses
        witnesses.potential = witnesses.potential + far
        assert found(content, mdp, "exact").is_valid
        result = found(content, mdp)
        assert result.is_valid is not is_open
        if is_open:
            assert "rounding leaves" in result.problem
            assert result.problem.endswith(OPEN)


# -- radii ---------------------------------------------------------------------------------------


def rounded_rows() -> tuple[TabularMDP, dict[str, Any], Fraction]:
    """Two members whose rows are the same but for rounding, and a centre that one of them has."""
    P = np.zeros((4, 1, 4))
    P[0, 0, [2, 3]] = 0.1, 0.9
    P[1, 0, [2, 3]] = 0.1, np.nextafter(0.9, 1.0)
    P[[2, 3], 0, [2, 3]] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1.0, 3.0])
    labels = [0, 0, 1, 2]
    content = build(mdp, 0.5, labelings=[labels], has_features=False, sweeps=60)
    model = content["levels"][0].model
    model.probs[:2] = 0.1, 0.9
    model.spare[:] = 0.0
    rows = [lifted_exact(mdp, labels, s, 0) for s in (0, 1)]
    return mdp, content, variation_exact(*rows)


@pytest.mark.parametrize("name", ["radius", "short"])
def test_both_modes_agree_on_radii_that_are_too_small_by_less_than_rounding(name: str) -> None:
    mdp, content, off = rounded_rows()
    assert 0 < off < 3e-17
    model, level = content["levels"][0].model, content["levels"][0]
    model.radius[0, 0] = model.short[0, 0] = up(off)
    level.upper = level.upper + 1e-9  # room enough for any radius
    for mode in ("float", "exact"):
        result = found(content, mdp, mode)
        assert result.is_valid, result.problem
        assert "radii" not in result.remark
    for stored in (0.0, down(off)):
        lie = deep(content)
        getattr(lie["levels"][0].model, name)[0, 0] = stored
        for mode in ("float", "exact"):
            result = found(lie, mdp, mode)
            assert result.verdict == "rejected", mode
            assert f"{name} is {stored!r}" in result.problem


def test_radii_that_are_too_many_to_decide_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp, content, _ = rounded_rows()
    model, level = content["levels"][0].model, content["levels"][0]
    model.radius[0, 0] = model.short[0, 0] = 0.0
    level.upper = level.upper + 1e-9
    monkeypatch.setattr("bisim_abstract._verify.verify.FEW", -1)
    result = found(content, mdp)
    assert result.is_valid, result.problem
    assert "level 0: rounding leaves open whether radii" in result.remark
    assert "action 0 of state 1 in block 0" in result.remark
    assert 'mode "exact" decides' in result.remark
    assert "remark" in result._repr_html_()


def test_a_widening_is_told_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = four_states()
    content = with_all_pairs(mdp, 0.5)
    assert not found(content, mdp, "exact").remark
    d = metric_exact(mdp, 0.5, bisimulation_metric(mdp, 0.5).lower)
    content["lower"] = np.array([up(d[k // 4][k % 4]) for k in content["keys"].tolist()])
    result = found(content, mdp)
    assert result.is_valid, result.problem
    assert result.widening > 0.0
    assert f"moved outward by {result.widening!r}" in result.remark
    assert not found(content, mdp, "exact").is_valid
    # The same, if rounding explained less.
    for name in ("PER_ENTRY", "IN_ALL"):
        monkeypatch.setattr(f"bisim_abstract._verify.floats.{name}", 0)
    result = found(content, mdp)
    assert result.verdict == "rejected"
    assert "could not be confirmed" in result.problem
    assert "rounding explains 0 at most" in result.problem
    assert result.problem.endswith(OPEN)


def test_what_is_remembered_keeps_its_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("known_bounds", "known_claims"):
        monkeypatch.setattr(f"bisim_abstract._verify.verify.{name}", {})
    monkeypatch.setattr("bisim_abstract._verify.verify.FEW", -1)
    mdp, content, _ = rounded_rows()
    model, level = content["levels"][0].model, content["levels"][0]
    model.radius[0, 0] = model.short[0, 0] = 0.0
    level.upper = level.upper + 1e-9
    first = found(content, mdp)
    assert "radii" in first.remark
    labels = np.zeros(4, np.int64)
    other: Any = SimpleNamespace(
        **content | {"tau": 99.0, "labels_lower": labels, "labels_upper": labels}
    )
    again = verify_rest(mdp, other)
    assert again.is_valid, again.problem
    assert again.remark == first.remark


# -- numbers next to 0 ---------------------------------------------------------------------------


def loops(rewards: list[float]) -> TabularMDP:
    return TabularMDP.from_dense(np.eye(len(rewards))[:, None], rewards)


@pytest.mark.parametrize("reward", [5e-324, 1e-310, 1e-300])
@pytest.mark.parametrize("has_start", [True, False])
def test_rewards_next_to_0(reward: float, has_start: bool) -> None:
    """Two loops are 1.43 times what they are claimed to be; start values underflow as well."""
    mdp = loops([reward, 0.0])
    start = "reward" if has_start else "constant"
    content = build(mdp, 0.3, has_features=False, pairs=[(0, 1)], starts=("reward", start))
    content["lower"], content["upper"] = np.zeros(1), np.array([reward])
    together = np.zeros(2, np.int64)
    content |= {"tau": reward, "labels_lower": together, "labels_upper": together}
    result = found(content, mdp)
    assert result.verdict == "rejected"
    assert "too small to be checked in float mode unless rewards are scaled up" in result.problem
    assert result.problem.endswith(OPEN)
    assert found(content, mdp, "exact").verdict == "rejected"
    far = up(Fraction(reward) / (1 - Fraction(0.3)))
    true = {**content, "upper": np.array([far]), "tau": far}
    assert found(true, mdp, "exact").is_valid


def test_fractions_decide_where_rewards_are_next_to_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisim_abstract._verify.verify.SMALL", 1_000_000)
    mdp = loops([5e-324, 0.0])
    content = build(mdp, 0.3, has_features=False, pairs=[(0, 1)])
    for upper, is_true in ((5e-324, False), (1e-323, True)):
        content["lower"], content["upper"] = np.zeros(1), np.array([upper])
        result = found(content, mdp)
        assert (result.mode, result.is_valid) == ("exact", is_true)


def test_a_start_that_underflows_is_not_0() -> None:
    """γ·D is 1e-400: 0 as a float, but not a distance of 0."""
    P = np.zeros((4, 1, 4))
    P[[0, 1, 2, 3], 0, [2, 3, 2, 3]] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 1e-200, 2e-200])
    content = build(mdp, 1e-200, has_features=False, pairs=[(0, 1)])
    content["lower"], content["upper"] = np.zeros(1), np.zeros(1)
    result = found(content, mdp)
    assert result.widening > 0.0 or not result.is_valid
    assert bool(result.remark) is result.is_valid
    assert not found(content, mdp, "exact").is_valid


SPECKS = [5e-324, 5.7e-305, 1e-301, 1e-299]


def specks(mass: float, reward: float) -> TabularMDP:
    """0 comes to the rich state 3 with next to no mass; the entry of the rest is not 1."""
    P = np.zeros((4, 1, 4))
    P[0, 0, [2, 3]] = 1.0 + 9e-10, mass
    P[[1, 2, 3], 0, [2, 2, 3]] = 1.0
    return TabularMDP.from_dense(P, [0.0, 0.0, 0.0, reward])


@pytest.mark.parametrize("mass", SPECKS)
@pytest.mark.parametrize("reward", [1.0, 1e299])
def test_claims_about_specks_of_mass(mass: float, reward: float) -> None:
    """True ones are not rejected; false ones are, or the widening says that they may be."""
    mdp, gamma = specks(mass, reward), 0.5
    content = build(mdp, gamma, has_features=False, starts=("reward", "constant"))
    d = metric_exact(mdp, gamma, np.zeros((4, 4)))
    content["keys"] = np.array([1, 2, 3, 6, 7, 11])
    exact = [d[k // 4][k % 4] for k in content["keys"].tolist()]
    assert exact[0] > 0
    honest = {
        "lower": np.array([down(x) for x in exact]),
        "upper": np.array([up(x) for x in exact]),
    }
    content |= honest
    assert found(content, mdp, "exact").is_valid
    result = found(content, mdp)
    assert result.is_valid or result.problem.endswith(OPEN), result.problem
    for side, factors in (("lower", (1.0 + 8e-10, 2.0, 1e30)), ("upper", (1.0 - 1e-9, 0.5, 0.0))):
        for factor in factors:
            lie = {**content, side: content[side].copy()}
            lie[side][0] = float(exact[0]) * factor
            if side == "lower":
                lie["upper"] = np.maximum(lie["upper"], lie["lower"])
            missed = Fraction(float(lie[side][0])) - exact[0]
            missed = missed if side == "lower" else -missed
            assert found(lie, mdp, "exact").is_valid is (missed <= 0)
            result = found(lie, mdp)
            assert not result.is_valid or missed <= Fraction(result.widening)


def test_a_speck_may_take_what_is_left() -> None:
    """1 comes to 4, which is like 3, with a mass that no transport is bothered with: it counts."""
    P = np.zeros((5, 1, 5))
    P[0, 0, [2, 3]], P[1, 0, [2, 4]] = (1.0, 1e-299), (1.0, 9e-301)
    P[[2, 3, 4], 0, [2, 3, 4]] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 1e299, 1e299])
    content = build(mdp, 0.5, has_features=False, pairs=[(0, 1)])
    exact = Fraction(0.5) * (Fraction(1e-299) - Fraction(9e-301)) * Fraction(1e299)
    for share in (0.99, 1.05):
        content["lower"] = np.array([share * float(exact)])
        content["upper"] = np.array([1e300])
        assert found(content, mdp, "exact").is_valid is (share < 1.0)
        result = found(content, mdp)
        missed = Fraction(float(content["lower"][0])) - exact
        assert not result.is_valid or missed <= Fraction(result.widening)


@pytest.mark.parametrize("mass", SPECKS[1:])  # half of the first is 0, which no row may hold
def test_blocks_with_specks_of_mass(mass: float) -> None:
    """The same with a radius, where mass may go anywhere besides."""
    mdp = specks(mass, 1.0)
    level = make_level(mdp, 0.5, [0, 0, 1, 2], 40)
    content = build(mdp, 0.5, has_features=False)
    content["levels"] = (level,)
    assert found(content, mdp, "exact").is_valid
    result = found(content, mdp)
    assert result.is_valid or result.problem.endswith(OPEN), result.problem


def test_radii_that_sum_to_almost_1_leave_something_to_carry() -> None:
    """t + t' is rounded to 1, so that floats carry nothing: what is claimed is still true."""
    P = np.zeros((6, 1, 6))
    P[[0, 1], 0, 4] = 1.0
    P[[2, 3], 0, 5] = 1.0
    P[[4, 5], 0, [4, 5]] = 1.0
    mdp = TabularMDP.from_dense(P, [0.0, 0.0, 0.0, 0.0, 0.0, 8.0])
    model = block_model(mdp, [0, 0, 1, 1, 2, 3])
    model.spare[:] = 0.0
    model.radius[:2, 0] = 0.5, 0.5 - 2.0**-54
    content = build(mdp, 0.5, has_features=False)
    carried = Fraction(1) - Fraction(0.5) - Fraction(0.5 - 2.0**-54)
    claim = Fraction(0.5) * carried * 16  # of 4 from 5, at this discount
    level = SimpleNamespace(
        model=model,
        keys=np.array([1, 2 * 4 + 3]),
        lower=np.array([down(claim), 16.0]),
        upper=np.array([16.0, 16.0]),
    )
    content["levels"] = (level,)
    for mode in ("exact", "float"):
        result = found(content, mdp, mode)
        assert result.is_valid, result.problem
    level.lower[0] = 4.0 * float(claim)
    assert not found(content, mdp, "exact").is_valid
    result = found(content, mdp)
    assert not result.is_valid or result.widening >= 3.0 * float(claim)
