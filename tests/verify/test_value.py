"""The verifier's check of proven values: honest ones, altered ones, and exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    InvalidArgumentError,
    TabularMDP,
    certify,
    prove_value,
    verify,
)
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import grouped_mdp, random_mdp
from tests.support import proven
from tests.support.examples import cases, grid
from tests.support.honest import down, up
from tests.support.oracles import fractions
from tests.support.values import (
    mean,
    random_case,
    with_equal_radii,
    with_radii,
)

pytestmark = pytest.mark.usefixtures("_no_endless_loop")

MODES = ("float", "exact")
PER_STATE = ("optimal_upper", "optimal_lower", "policy_lower", "random_upper", "baseline_lower")
NUMBERS = ("loss", "start_loss", "kept")


def opened(certificate: Certificate, **changes: Any) -> Any:
    """A certificate, its value and its bracket without their constructors' checks.

    Changes are named after the field; those of the bracket begin with "bracket_".
    """
    value = proven.opened(certificate.value)
    for name, change in changes.items():
        if name.startswith("bracket_"):
            setattr(value.bracket, name.removeprefix("bracket_"), change)
        else:
            setattr(value, name, change)
    content = {name: getattr(certificate, name) for name in Certificate.__dataclass_fields__}
    return SimpleNamespace(**content | {"value": value})


def without_shares(forged: Any) -> Any:
    """The same, with nothing claimed of agents but what they lose at most, and that is much."""
    learner = forged.value.learner
    for share in (forged.value.solver, learner, learner.converged):
        share.kept, share.loss, share.start_loss = -np.inf, 1e3, 1e3
    return forged


def is_true(forged: Any, mdp: TabularMDP, gamma: float) -> bool:
    """Whether all that is claimed about values holds, in exact arithmetic."""
    return not proven.false_claims(forged.value, mdp, gamma)


def some_certificate(seed: int, *, is_estimate: bool = False) -> tuple[Certificate, TabularMDP]:
    """A small model with a certified clustering and its proven value."""
    rng = np.random.default_rng([11, seed])
    case = random_case(9_000 + seed, max_states=5)
    mdp = with_radii(case.mdp, seed) if is_estimate else case.mdp
    found = certify(mdp, case.gamma, tol=1e-6)
    taus = [x.low for x in found.certified_thresholds()]
    certificate = found.at(float(rng.choice(taus))).with_value()
    assert certificate.is_certified
    return certificate, mdp


# -- honest ones ---------------------------------------------------------------------------------


def check_accepted(certificate: Certificate, mdp: TabularMDP) -> None:
    for mode in (*MODES, "sampled"):
        found = verify(mdp, certificate, mode=mode)
        assert found.is_valid, found.problem
        value = certificate.value
        assert found.values_checked == (0 if value is None else proven.functions_of(value))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_accepts_what_certify_makes(first: int) -> None:
    for seed in range(first, first + 10):
        case = random_case(6_000 + seed)
        check_accepted(certify(case.mdp, case.gamma), case.mdp)
        check_accepted(*some_certificate(seed, is_estimate=seed % 3 == 0))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100, 1_100, 100))
def test_accepts_much_of_what_certify_makes(first: int) -> None:
    for seed in range(first, first + 100):
        case = random_case(6_000 + seed)
        check_accepted(certify(case.mdp, case.gamma), case.mdp)
        check_accepted(*some_certificate(seed, is_estimate=seed % 2 == 0))


@pytest.mark.parametrize("n", [60, 300, 900])
def test_float_mode_leaves_nothing_open_for_dense_rows(n: int) -> None:
    """Rows much longer than the boxes of a few clusters: the bracket has room for the verifier."""
    mdp = random_mdp(n, 2, seed=0)
    certificate = certify(mdp, 0.9, tau=1e3)
    assert certificate.n_clusters == 1
    found = verify(mdp, certificate)
    assert found.is_valid, found.problem
    assert found.mode == "float"


@pytest.mark.drawn
def test_float_mode_leaves_nothing_open_where_shifts_are_large() -> None:
    """Estimates, whose bounds are far from what they were shifted from; exact mode is not asked.

    But where distances are so small that they drown in underflow.
    """
    left = []
    for seed in range(cases(40)):
        case = random_case(20_000 + seed, max_states=5)
        for mdp in (case.mdp, with_radii(case.mdp, seed)):
            found = verify(mdp, certify(mdp, case.gamma, tau=1e305))
            assert found.is_valid, found.problem
            is_small = 0.0 < np.abs(mdp.rewards).max() < 1e-280
            if found.mode != "float" and not is_small:
                left.append((seed, mdp.estimate is not None))
    assert left == []


# -- altered ones --------------------------------------------------------------------------------


def check_rejected(forged: Any, mdp: TabularMDP, what: str = "value: ") -> None:
    for mode in MODES:
        found = verify(mdp, forged, mode=mode)
        assert not found.is_valid, (mode, what)
        assert found.problem.startswith(what), found.problem


def plain_certificate(kind: str) -> tuple[Certificate, TabularMDP]:
    mdp, _ = grouped_mdp(9, 3, 2, noise=0.2, support=2, seed=4)
    if kind != "plain":
        mdp = with_equal_radii(mdp, 1e-4)
    certificate = certify(mdp, 0.9, tol=1e-6)
    some = [x for x in certificate.certified_thresholds() if 2 <= x.n_clusters < 9]
    return certificate.at(some[-1].low).with_value(), mdp


@pytest.mark.parametrize("kind", ["plain", "estimate"])
@pytest.mark.parametrize("name", [*PER_STATE, "bracket_upper", "bracket_lower"])
def test_rejects_a_bound_that_is_too_good_in_one_state(kind: str, name: str) -> None:
    certificate, mdp = plain_certificate(kind)
    value = certificate.value
    assert value is not None
    source = value.bracket if name.startswith("bracket_") else value
    honest = getattr(source, name.removeprefix("bracket_"))
    side = -1.0 if name.endswith("upper") else 1.0
    first = set()
    for at in range(honest.size):
        # Where an inequality is not tight, a bound may be better, but not much.
        for amount in (1e-6, 1e-4, 1e-2, 1.0, 1e3):
            moved = honest.copy()
            moved[at] += side * amount * (1.0 + abs(moved[at]))
            forged = opened(certificate, **{name: moved})
            if not is_true(forged, mdp, 0.9):
                first.add(amount)
                break
        check_rejected(forged, mdp)
    # Boxes are wider than what their members do: no inequality of a bracket need be tight.
    if not name.startswith("bracket_"):
        assert min(first) == 1e-6
        check_rejected(opened(certificate, **{name: honest + side * 1e-3}), mdp)
    assert max(first) <= 1.0


@pytest.mark.parametrize("kind", ["plain", "estimate"])
def test_rejects_numbers_that_are_too_good(kind: str) -> None:
    certificate, mdp = plain_certificate(kind)
    value = certificate.value
    assert value is not None
    assert value.loss > 0.0
    for change in (
        {"loss": value.loss * (1.0 - 1e-6)},
        {"loss": 0.0},
        {"loss": -1.0},
        {"start_loss": value.start_loss * (1.0 - 1e-6)},
        {"start_loss": 0.0},
        {"kept": 1.0},
        {"kept": 1.1},
        {"kept": max(value.kept, -5.0) + 1e-6},
    ):
        check_rejected(opened(certificate, **change), mdp)
    # Claiming less is honest.
    for change in ({"loss": value.loss + 1.0}, {"kept": -np.inf}, {"start_loss": 1e6}):
        for mode in MODES:
            assert verify(mdp, opened(certificate, **change), mode=mode).is_valid


def test_rejects_other_policies() -> None:
    certificate, mdp = plain_certificate("plain")
    value = certificate.value
    assert value is not None
    rejected = 0
    for at in range(value.policy.size):
        for name, policy in (("policy", value.policy), ("bracket_policy", value.bracket.policy)):
            other = policy.copy()
            other[at] = 1 - other[at]
            forged = opened(certificate, **{name: other})
            truth = is_true(forged, mdp, 0.9)
            rejected += not truth
            for mode in MODES:
                assert truth or not verify(mdp, forged, mode=mode).is_valid
    assert rejected >= value.policy.size


VALUE_ARRAYS = ("value.", "bracket.", "solver.", "learner.", "converged.")
FORMS: dict[str, Callable[[Any], Any]] = {
    "nan": lambda x: np.where(np.arange(x.size) == 0, np.nan, x),
    "inf": lambda x: np.where(np.arange(x.size) == 0, np.inf, x),
    "-inf": lambda x: np.where(np.arange(x.size) == 0, -np.inf, x),
    "huge": lambda x: np.where(np.arange(x.size) % 2, -1.7e308, 1.7e308),
    "short": lambda x: x[:-1],
    "long": lambda x: np.append(x, x[-1]),
    "column": lambda x: x[:, None],
    "empty": lambda x: x[:0],
    "float32": lambda x: x.astype(np.float32),
    "complex": lambda x: x.astype(np.complex128),
    "object": lambda x: x.astype(object),
    "list": lambda x: x.tolist(),
    "none": lambda x: None,
    "text": lambda x: "0.0",
}


@pytest.mark.parametrize("form", FORMS)
def test_rejects_malformed_arrays(form: str) -> None:
    certificate, mdp = plain_certificate("plain")
    honest = opened(certificate).value
    for name in (*PER_STATE, "bracket_lower", "bracket_upper", "policy", "bracket_policy"):
        if name.startswith("bracket_"):
            array = getattr(honest.bracket, name.removeprefix("bracket_"))
        else:
            array = getattr(honest, name)
        if form in ("nan", "inf", "-inf", "huge") and array.dtype != np.float64:
            continue
        with np.errstate(over="ignore"):  # in float32
            check_rejected(opened(certificate, **{name: FORMS[form](array)}), mdp)


@grid(
    name=NUMBERS,
    wrong=[np.nan, np.inf, None, "1", True, 1j, [1.0], np.ones(1), np.ones(2), object()],
)
def test_rejects_malformed_numbers(name: str, wrong: Any) -> None:
    certificate, mdp = plain_certificate("plain")
    forged = opened(certificate, **{name: wrong})
    for mode in MODES:
        assert not verify(mdp, forged, mode=mode).is_valid


def test_rejects_actions_that_do_not_exist() -> None:
    certificate, mdp = plain_certificate("plain")
    value = certificate.value
    assert value is not None
    for name in ("policy", "bracket_policy"):
        for action in (-1, 2, 10**9):
            wrong = np.full(value.policy.size, action, np.int64)
            check_rejected(opened(certificate, **{name: wrong}), mdp)


def test_rejects_a_value_of_clusters_that_are_not_certified() -> None:
    certificate, mdp = plain_certificate("plain")
    forged = opened(certificate)
    forged.labels_lower = np.zeros(mdp.n_states, np.int64)
    for mode in MODES:
        assert not verify(mdp, forged, mode=mode).is_valid
    without = opened(certificate)
    without.tau, without.labels_lower, without.labels_upper = None, *(np.empty(0, np.int64),) * 2
    check_rejected(without, mdp)
    loose = certify(
        mdp, 0.9, tau=0.5, max_rounds=1, max_backups=1, method=Blocks(max_pairs=0, propose=[])
    )
    if not loose.is_certified:
        assert loose.value is None
        with pytest.raises(InvalidArgumentError):
            loose.with_proven(prove_value(mdp, loose.labels_upper, 0.9))


def test_rejects_a_value_of_other_clusters() -> None:
    certificate, mdp = plain_certificate("plain")
    fine = prove_value(mdp, np.arange(mdp.n_states), 0.9)
    with pytest.raises(InvalidArgumentError, match="other clusters"):
        certificate.with_proven(fine)
    forged = opened(certificate)
    forged.value = fine  # labels are not read: sizes give it away
    check_rejected(forged, mdp)


def test_rejects_another_end() -> None:
    P = np.zeros((4, 2, 4))
    P[:, :, 3] = 1.0
    P[0, 0] = np.eye(4)[1]
    mdp = TabularMDP.from_dense(
        P, [[0.0, 1.0], [2.0, 0.0], [3.0, 1.0], [0.0, 0.0]], terminal_state=3
    )
    certificate = certify(mdp, 0.9)
    check_accepted(certificate, mdp)
    for end in (None, 0, 2, 4, -1, "3", np.arange(2)):
        forged = opened(certificate)
        forged.terminal_state = end
        for mode in MODES:
            assert not verify(mdp, forged, mode=mode).is_valid
    unmarked = replace(mdp, terminal_state=None, state_ids=mdp.state_ids)
    assert not verify(unmarked, certificate).is_valid


# -- by less than a rounding error -----------------------------------------------------------------


def test_float_mode_accepts_nothing_that_rounding_hides() -> None:
    """Bounds that are wrong by less than one unit in the last place are wrong."""
    hidden = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        mdp = TabularMDP.from_dense(np.full((1, 3, 1), 1.0), rng.random((1, 3)))
        certificate = certify(mdp, 0.0, tau=0.0)
        exact = sum(fractions(mdp.rewards[0]), Fraction(0)) / 3
        nearest = float(exact)
        below = nearest if Fraction(nearest) < exact else float(np.nextafter(nearest, -np.inf))
        forged = opened(certificate, random_upper=np.array([below]), kept=-np.inf)
        hidden += float(mdp.rewards.sum() / 3.0) <= below
        for mode in MODES:
            assert not verify(mdp, forged, mode=mode).is_valid
    assert hidden > 5  # plain float arithmetic would not have noticed


def test_a_loss_is_compared_exactly() -> None:
    mdp = TabularMDP.from_dense(np.ones((1, 1, 1)), [1.0])
    certificate = certify(mdp, 0.0, tau=0.0)
    high, low = 1.0 + 2.0**-30, -(2.0**-60)
    assert high - low == high
    claims = {
        "optimal_upper": np.array([high]),
        "policy_lower": np.array([low]),
        "start_loss": 2.0,
        "optimal_start": (0.0, 2.0),
        "kept": -np.inf,
    }
    less = without_shares(opened(certificate, **claims, loss=high))
    check_rejected(less, mdp, "value: loss")
    more = without_shares(opened(certificate, **claims, loss=float(np.nextafter(high, 2.0))))
    assert all(verify(mdp, more, mode=mode).is_valid for mode in MODES)


def test_a_negative_share_is_measured_by_the_least_gain() -> None:
    """All states share the action that ruins the starts: worth 0, at best 1, the baseline 0.5."""
    P = np.zeros((4, 3, 4))
    P[:, :, 3] = 1.0
    mdp = TabularMDP.from_dense(
        P,
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 9.0], [0.0, 0.0, 0.0]],
        terminal_state=3,
        start=[0.5, 0.5, 0.0, 0.0],
    )
    certificate = certify(mdp, 0.9, tau=1_000.0)
    assert certificate.n_clusters == 1
    value = prove_value(mdp, certificate.labels_upper, 0.9, by="worst")
    certificate = certificate.with_proven(value)
    assert value.kept == pytest.approx(-1.0, abs=1e-9)
    # Looser bounds are bounds: now the best is known to be between 0.8 and 1.2 only.
    loose = {
        "optimal_upper": value.optimal_upper + 0.2,
        "optimal_lower": value.optimal_lower - 0.2,
        "bracket_upper": value.bracket.upper + 1.0,
        "bracket_lower": value.bracket.lower - 1.0,
        "optimal_start": (0.7, 1.3),
        "loss": 10.0,
        "start_loss": 10.0,
    }
    for mode in MODES:
        for kept, is_valid in ((-0.5 / 0.3 - 1e-9, True), (-0.5 / 0.3 + 1e-9, False)):
            forged = without_shares(opened(certificate, **loose, kept=kept))
            found = verify(mdp, forged, mode=mode)
            assert (found.is_valid, found.mode) == (is_valid, mode)


# -- altered at random, against an oracle ----------------------------------------------------------


def altered(certificate: Certificate, rng: np.random.Generator) -> Any:
    """One claim changed a little or much, to either side."""
    value = certificate.value
    assert value is not None
    name = str(rng.choice([*PER_STATE, *NUMBERS, "bracket_upper", "bracket_lower", "policies"]))
    amount = float(rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-17, 1))
    n_actions = certificate.rewards.shape[1]
    if name == "policies":
        drawn = rng.integers(0, n_actions, value.policy.size)
        which = "policy" if rng.random() < 0.5 else "bracket_policy"
        return opened(certificate, **{which: drawn.astype(np.int64)})
    if name in NUMBERS:
        old = getattr(value, name)
        return opened(certificate, **{name: old + amount * (abs(old) if old > -np.inf else 1.0)})
    source = value.bracket if name.startswith("bracket_") else value
    moved = getattr(source, name.removeprefix("bracket_")).copy()
    size = float(np.abs(moved).max())
    moved[rng.integers(moved.size) if rng.random() < 0.7 else slice(None)] += amount * size
    return opened(certificate, **{name: moved})


def check_altered(seed: int, count: int) -> int:
    """Exact mode decides as the oracle does, and float mode accepts nothing that is false."""
    certificate, mdp = some_certificate(seed, is_estimate=seed % 2 == 0)
    rng = np.random.default_rng([13, seed])
    false = 0
    for _ in range(count):
        forged = altered(certificate, rng)
        truth = is_true(forged, mdp, certificate.gamma)
        false += not truth
        assert verify(mdp, forged, mode="exact").is_valid == truth
        if verify(mdp, forged, mode="float").is_valid:
            assert truth
    return false


def test_decides_as_exact_arithmetic_does() -> None:
    assert sum(check_altered(seed, 8) for seed in range(20)) > 40


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 2_000, 100))
def test_decides_as_exact_arithmetic_does_again_and_again(first: int) -> None:
    assert sum(check_altered(seed, 20) for seed in range(first, first + 100)) > 500


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "estimate"])
def test_files_keep_values_bit_for_bit(kind: str, tmp_path: Path) -> None:
    certificate, mdp = plain_certificate(kind)
    certificate.save(tmp_path / "a.npz")
    loaded = Certificate.load(tmp_path / "a.npz")
    ours, theirs = certificate.value, loaded.value
    assert ours is not None
    assert theirs is not None
    for name in (*PER_STATE, "policy", "labels"):
        assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()
    for name in ("lower", "upper", "policy"):
        assert getattr(ours.bracket, name).tobytes() == getattr(theirs.bracket, name).tobytes()
    for name in NUMBERS:
        assert getattr(ours, name) == getattr(theirs, name)
    assert (loaded.keep, loaded.terminal_state) == (certificate.keep, certificate.terminal_state)
    check_accepted(loaded, mdp)
    loaded.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    certificate, _ = plain_certificate("plain")
    path = tmp_path / "a.npz"
    certificate.save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    own = [name for name in arrays if name.startswith(VALUE_ARRAYS)]
    assert len(own) == 21
    for name in own:
        for change in ("bit", "missing", "shape") if arrays[name].size else ("missing",):
            changed = dict(arrays)
            if change == "missing":
                del changed[name]
            elif change == "shape":
                changed[name] = arrays[name][:, None]
            else:
                raw = bytearray(arrays[name].tobytes())
                raw[0] ^= 1
                changed[name] = np.frombuffer(bytes(raw), arrays[name].dtype)
            np.savez(path, **changed)
            with pytest.raises(FileFormatError):
                Certificate.load(path)
    text = arrays["header"].tobytes().replace(b'"kept": ', b'"kept":  ')
    np.savez(path, **arrays | {"header": np.frombuffer(text, np.uint8)})
    with pytest.raises(FileFormatError):
        Certificate.load(path)


def test_numbers_that_rounding_leaves_open_are_not_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest that follow from the functions: exact mode accepts them, floats cannot tell."""
    monkeypatch.setattr("bisim_abstract._verify.verify.SMALL", -1)
    seen = {"start_loss": 0, "kept": 0}
    for seed in range(30):
        certificate, mdp = some_certificate(seed)
        value = certificate.value
        assert value is not None
        if np.abs(mdp.rewards).max() < 1e-200:
            continue
        start = proven.Start(value, proven.Ground(mdp, certificate.gamma, value.labels, None))
        own = mean(mdp.start, fractions(value.policy_lower))
        sharp = {"start_loss": up(start.best - own)}
        kept = start.share(own)
        if kept > -np.inf and value.kept < 1.0:
            sharp["kept"] = down(Fraction(kept))
        for name, number in sharp.items():
            forged = opened(certificate, **{name: number})
            if not verify(mdp, forged, mode="exact").is_valid:
                continue
            result = verify(mdp, forged)
            seen[name] += not result.is_valid
            assert result.is_valid or result.problem.endswith("would decide, slowly")
            step = 1e-9 * max(abs(number), 1e-300)
            false = opened(
                certificate, **{name: number - step if name == "start_loss" else number + step}
            )
            result = verify(mdp, false)
            assert not result.is_valid
            if number > 1e-6 * float(max(abs(start.best), abs(own))):
                assert "follows from the bounds" in result.problem
                assert not result.problem.endswith("would decide, slowly")
    assert min(seen.values()) >= 1
