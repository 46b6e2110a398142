"""Runs that end when their time does, wherever they are, with nothing lost and nothing wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Blocks, Certificate, Covering, Resources, TabularMDP, certify, verify
from bisim_abstract._base.deadline import OutOfTimeError
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate import frontier
from bisim_abstract._certificate.frontier import ValueSearch
from bisim_abstract._certificate.goal import Numbers
from bisim_abstract._prove import driver
from bisim_abstract._prove.refinement import Refinement
from bisim_abstract._prove.work import INTERRUPTED
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.support.examples import cases

ONE = Resources(threads=1)


class Clock:
    """A clock on which a second passes whenever somebody looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic(self) -> float:
        """Seconds: looks so far."""
        self.looks += 1
        return float(self.looks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(driver, "time", made)
    return made


MODELS: dict[str, Any] = {
    "groups": lambda: grouped_mdp(60, 4, noise=0.05, seed=0)[0],
    "sparse": lambda: sparse_mdp(40, 3, support=3, seed=1),
}
ASKED: dict[str, dict[str, Any]] = {
    "value": {},
    "tau": {"tau": 0.5},
    "lax": {"relation": "lax"},
    "covering": {"method": Covering(neighbours=4, sweeps=5), "tau": 0.5, "max_rounds": 3},
}


def looks_of_a_whole_run(clock: Clock, mdp: TabularMDP, asked: dict[str, Any]) -> int:
    before = clock.looks
    certify(mdp, 0.9, max_seconds=1e9, resources=ONE, **asked)
    return clock.looks - before


@pytest.mark.drawn
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("goal", ASKED)
def test_a_run_may_end_at_any_look(clock: Clock, model: str, goal: str) -> None:
    """Bounds of a run that was cut short are bounds, and it says why it ended."""
    mdp, asked = MODELS[model](), ASKED[goal]
    total = looks_of_a_whole_run(clock, mdp, asked)
    assert total > 20
    for seconds in np.unique(np.geomspace(1.0, total, cases(12)).astype(int)).tolist():
        before = clock.looks
        found = certify(mdp, 0.9, max_seconds=float(seconds), resources=ONE, **asked)
        used = clock.looks - before
        # A look or two more to see that it is over, and to write down how long it took.
        assert used <= (1.0 + driver.SHARE) * seconds + driver.SPARE + 12
        if used > seconds + 12:
            assert found.stop.startswith("budget: ")
        assert verify(mdp, found).is_valid, (seconds, found.stop)


def test_without_time_to_derive_clusters(clock: Clock) -> None:
    mdp = grouped_mdp(300, 4, noise=0.05, seed=0)[0]
    found = certify(mdp, 0.9, max_seconds=1.0, resources=ONE)
    assert found.tau is None
    assert found.is_cut_short
    assert driver.UNDERIVED in found.stop
    assert "certified_thresholds() derives" in found.summary()
    assert found.thresholds_at_hand() is None
    assert "forests" not in found.__dict__  # neither has derived them
    assert not found.verdict.is_certified
    assert found.certified_thresholds()  # nothing but one cluster, perhaps
    assert found.thresholds_at_hand() == found.certified_thresholds()
    again = certify(mdp, 0.9, resources=ONE)
    assert not again.is_cut_short
    assert again.is_certified


def test_a_threshold_asked_for_is_kept_without_its_value(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where clusters are derived and only their value is missing, they are in the certificate."""
    mdp = grouped_mdp(60, 4, noise=0.01, seed=0)[0]
    whole = certify(mdp, 0.9, tau=1.0, resources=ONE)
    assert whole.is_certified

    def slow(*args: Any, **options: Any) -> None:
        raise OutOfTimeError

    monkeypatch.setattr(ValueSearch, "prove", slow)
    found = certify(mdp, 0.9, tau=1.0, max_seconds=1e6, resources=ONE)
    assert found.is_certified
    assert found.value is None
    assert driver.UNDERIVED in found.stop
    np.testing.assert_array_equal(found.labels, whole.labels)
    assert verify(mdp, found).is_valid


def test_what_was_cut_short_is_resumed(clock: Clock, tmp_path: Path) -> None:
    mdp, path = MODELS["sparse"](), tmp_path / "checkpoint.npz"
    method = Blocks(propose=("rewards", "features"))
    whole = certify(mdp, 0.9, method=method, resources=ONE)
    resumed = 0
    for seconds in (30.0, 60.0, 120.0, 240.0, 480.0):
        found = certify(
            mdp, 0.9, method=method, resources=ONE, max_seconds=seconds, checkpoint=path
        )
        assert verify(mdp, found).is_valid
        if not found.stop.startswith("budget"):
            break
        resumed += path.exists()
    assert resumed
    last = certify(mdp, 0.9, method=method, resources=ONE, checkpoint=path)
    np.testing.assert_array_equal(last.labels, whole.labels)
    np.testing.assert_array_equal(last.lower, whole.lower)
    np.testing.assert_array_equal(last.upper, whole.upper)


def test_an_interrupted_run_has_a_second_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C nobody waits for clusters that take longer than that."""
    mdp = grouped_mdp(200, 4, noise=0.05, seed=0)[0]

    def interrupt(progress: Any) -> None:
        raise KeyboardInterrupt

    found = certify(mdp, 0.9, resources=ONE, callback=interrupt)
    assert found.stop.startswith(INTERRUPTED)
    monkeypatch.setattr(driver, "WAIT", 0.0)
    hasty = certify(mdp, 0.9, resources=ONE, callback=interrupt)
    assert hasty.stop.startswith(INTERRUPTED)
    assert hasty.is_cut_short
    assert hasty.tau is None
    for certificate in (found, hasty):
        assert isinstance(certificate, Certificate)
        assert verify(mdp, certificate).is_valid


@pytest.mark.parametrize("moment", ["settle", "certificate"])
def test_ctrl_c_after_the_last_step_keeps_what_is_known(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deriving clusters may take long, and Ctrl-C then must not lose the bounds; a second may."""
    mdp = grouped_mdp(60, 4, noise=0.05, seed=0)[0]
    whole = certify(mdp, 0.9, tau=0.5, resources=ONE)
    calls = [0]
    real = getattr(Refinement, moment)

    def interrupted(self: Refinement, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return real(self, **options)

    monkeypatch.setattr(Refinement, moment, interrupted)
    found = certify(mdp, 0.9, tau=0.5, resources=ONE)
    assert found.stop.startswith(f"{INTERRUPTED} after step ")
    assert found.is_cut_short
    assert len(found.levels) == len(whole.levels)
    np.testing.assert_array_equal(found.upper, whole.upper)
    assert verify(mdp, found).is_valid

    def twice(self: Refinement, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Refinement, moment, twice)
    with pytest.raises(KeyboardInterrupt):
        certify(mdp, 0.9, tau=0.5, resources=ONE)


def test_callbacks_have_time_of_their_own(clock: Clock) -> None:
    """Whatever a caller does in a callback is not ended by the budget of the run."""
    mdp = MODELS["groups"]()
    other = certify(mdp, 0.9, resources=ONE)
    verdicts = []

    def check(progress: Any) -> None:
        clock.looks += 1000  # the budget is over
        verdicts.append(verify(mdp, other).verdict)

    found = certify(mdp, 0.9, max_seconds=50.0, resources=ONE, callback=check)
    assert found.stop.startswith("budget: ")
    assert set(verdicts) == {"verified"}


@pytest.mark.parametrize("moment", ["GroundValues", "find_proof", "Numbers"])
def test_numbers_and_proof_are_known_together(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between the two must not leave one without the other."""
    mdp, groups = grouped_mdp(30, 3, noise=0.05, seed=0)
    search = ValueSearch(mdp, 0.9)

    class Interrupted:
        def __init__(self, *args: Any, **options: Any) -> None:
            raise KeyboardInterrupt

        of = __init__

    with monkeypatch.context() as patch:
        patch.setattr(frontier, moment, Interrupted)
        with pytest.raises(KeyboardInterrupt):
            search.numbers(groups)
    found = search.numbers(groups)
    assert found == Numbers.of(search.prove(groups), "solver")
    assert found == ValueSearch(mdp, 0.9).numbers(groups)


def test_levels_are_kept_or_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are swept are not lost where an interrupt comes while they are added."""
    mdp = grouped_mdp(60, 4, noise=0.05, seed=0)[0]
    real, calls = Arms.add_level, [0]

    def interrupted(self: Arms, level: Any) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        real(self, level)

    monkeypatch.setattr(Arms, "add_level", interrupted)
    found = certify(mdp, 0.9, tau=0.5, resources=ONE)
    assert found.stop.startswith(INTERRUPTED)
    assert found.levels
    assert verify(mdp, found).is_valid
