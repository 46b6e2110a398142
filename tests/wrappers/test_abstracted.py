"""Environments over certified clusters: refusals, steps, and Gymnasium's conventions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    Covering,
    InvalidArgumentError,
    NotCertifiedError,
    Reading,
    Resources,
    TabularMDP,
    aggregate,
    certify,
    verify,
)
from bisim_abstract.errors import FileFormatError
from bisim_abstract.wrappers import (
    AbstractedEnv,
    TabularEnv,
    extract_mdp,
)
from tests.support.abstractions import GAMMA, ROOMS, Counted, lake, rooms

# -- what it is --------------------------------------------------------------------------------


def test_an_abstraction_shows_clusters_and_their_proof(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(), of_rooms)
    assert env.observation_space == gym.spaces.Discrete(4)
    assert env.action_space == gym.spaces.Discrete(4)
    assert env.tau == of_rooms.tau
    assert env.labels.tolist() == of_rooms.labels_upper.tolist()
    assert env.abstract_mdp == aggregate(env.mdp, of_rooms.labels_upper).mdp
    observation, info = env.reset(seed=0)
    assert info == {"cluster": observation, "scope": "all"}
    assert "4 clusters of 36 states" in repr(env)
    assert "certified over all pairs of states" in repr(env)
    for line in ("4 clusters of 36", "largest   9 states", "scope     all", "after 200 steps"):
        assert line in env.summary()


def test_the_end_is_the_last_number(of_lake: Certificate) -> None:
    env = AbstractedEnv(lake(), of_lake)
    end = env.abstract_mdp.terminal_state
    assert end == env.abstract_mdp.n_states - 1
    assert env.observation_space == gym.spaces.Discrete(end + 1)
    # Holes and goal lead to the end at once: they are clustered with it, and kept apart.
    assert of_lake.labels_upper[16] == of_lake.labels_upper[5]
    assert env.labels[16] == end != env.labels[5]
    assert "clusters of 16 states (plus the terminal state)" in env.summary()


def test_the_table(of_lake: Certificate) -> None:
    env = AbstractedEnv(lake(), of_lake)
    small = env.abstract_mdp
    table = env.P
    again = TabularMDP.from_table(table, start=small.start, terminal="table")
    np.testing.assert_array_equal(again.probs, small.probs)
    np.testing.assert_array_equal(again.indices, small.indices)
    np.testing.assert_allclose(again.rewards, small.rewards, atol=1e-15)
    np.testing.assert_array_equal(env.initial_state_distrib, small.start)
    for rows in table.values():
        for outcomes in rows.values():
            assert all(done == (t == small.terminal_state) for _, t, _, done in outcomes)


def test_reachable_states_and_tabular_layers(of_lake: Certificate) -> None:
    ground = lake()
    part = certify(extract_mdp(ground, reading=Reading(reachable_only=True)), GAMMA, tau=1e-9)
    env = AbstractedEnv(ground, part)
    assert env.mdp.n_states == 12
    assert (
        AbstractedEnv(TabularEnv(ground, reading=Reading(reachable_only=True)), part).mdp.n_states
        == 12
    )
    env = AbstractedEnv(ground, part, dynamics="ground")
    env.reset(seed=0)
    for k in range(100):
        observation, _, terminated, _, _ = env.step(k % 4)
        assert env.observation_space.contains(observation)
        if terminated:
            assert observation == env.abstract_mdp.n_states - 1
            env.reset()


def test_weighting(of_lake: Certificate) -> None:
    ground = lake()
    for weighting in ("uniform", "start", "visitation", np.arange(17.0).tolist()):
        env = AbstractedEnv(ground, of_lake, weighting=weighting)
        expected = aggregate(env.mdp, of_lake.labels_upper, weighting=weighting, gamma=GAMMA)
        assert env.abstract_mdp == expected.mdp


# -- refusals ----------------------------------------------------------------------------------


def test_uncertified_thresholds_are_refused(of_rooms: Certificate) -> None:
    with pytest.raises(NotCertifiedError) as caught:
        AbstractedEnv(rooms(), of_rooms, 0.2)
    message = str(caught.value)
    open_ = of_rooms.undecided(0.2)
    assert open_ is not None
    assert f"not certified at tau = 0.2: {open_.clusters} clusters" in message
    assert f"{open_.pairs} pairs of states" in message
    s, t = open_.example
    low, high = of_rooms.bounds(s, t)
    one, two = (extract_mdp(rooms()).state_text(x) for x in (s, t))
    assert f"states {one} and {two}, for instance, are between {low:.4g} and {high:.4g}" in message
    near = min(of_rooms.certified_thresholds(), key=lambda x: max(x.low - 0.2, 0.2 - x.high))
    assert f"certified: [{near.low:.6g}, {near.high:.6g}) with {near.n_clusters}" in message
    assert "max_pairs" in message
    assert "scope=" not in message
    # Just outside the certified interval, and just inside.
    (best,) = (x for x in of_rooms.certified_thresholds() if x.n_clusters == 4)
    assert AbstractedEnv(rooms(), of_rooms, best.low).aggregation.n_clusters == 4
    for tau in (np.nextafter(best.low, 0.0), best.high):
        with pytest.raises(NotCertifiedError, match="not certified"):
            AbstractedEnv(rooms(), of_rooms, float(tau))
    with pytest.raises(InvalidArgumentError, match="tau must be at least 0"):
        AbstractedEnv(rooms(), of_rooms, -1.0)


def test_the_clusters_that_are_open_are_named(of_rooms: Certificate) -> None:
    lower, upper = of_rooms.partitions(0.2)
    split = [g for g in range(int(lower.max()) + 1) if len(set(upper[lower == g].tolist())) > 1]
    which = sorted({int(u) for g in split for u in upper[lower == g]})
    with pytest.raises(NotCertifiedError, match=", ".join(map(str, which[:5]))):
        AbstractedEnv(rooms(), of_rooms, 0.2)


def test_uncertified_certificates_are_refused(of_rooms: Certificate) -> None:
    open_ = of_rooms.at(0.2)
    assert not open_.is_certified
    with pytest.raises(NotCertifiedError, match=r"not certified at tau = 0\.2"):
        AbstractedEnv(rooms(), open_)
    without = dataclasses.replace(
        open_, tau=None, labels_lower=np.empty(0, int), labels_upper=np.empty(0, int), run={}
    )
    with pytest.raises(NotCertifiedError, match=r"no threshold of its own: give tau.*certified: "):
        AbstractedEnv(rooms(), without)
    assert AbstractedEnv(rooms(), without, of_rooms.tau).aggregation.n_clusters == 4


def test_altered_labels_are_refused(of_rooms: Certificate) -> None:
    open_ = of_rooms.at(0.2)
    forged = dataclasses.replace(open_, labels_lower=open_.labels_upper, run={})
    assert forged.is_certified  # by what it says of itself
    with pytest.raises(NotCertifiedError, match="do not follow from its bounds: it was altered"):
        AbstractedEnv(rooms(), forged)
    merged = dataclasses.replace(
        of_rooms.at(1.0), labels_lower=np.zeros(36, int), labels_upper=np.zeros(36, int), run={}
    )
    with pytest.raises(NotCertifiedError, match="altered"):
        AbstractedEnv(rooms(), merged)


def test_what_is_not_worth_it_is_told(
    of_rooms: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    assert AbstractedEnv(rooms(), of_rooms).value.kept >= 0.95
    assert not caplog.records
    poor = AbstractedEnv(rooms(), of_rooms, 1e6)  # everything in one cluster
    assert poor.value.kept < 0.95
    assert [record.getMessage() for record in caplog.records] == [poor.certificate.verdict.sentence]
    assert poor.certificate.verdict.sentence.startswith(
        "CERTIFIED, BUT agents may do no better than"
    )
    assert poor.certificate.verdict.sentence in poor.summary()
    # The policy handed out acts on observations, and is proven of what it plays.
    lifted = poor.value.policy[poor.labels]
    assert lifted.tolist() == poor.value.lifted_policy.tolist()


def forged_bounds(certificate: Certificate) -> Certificate:
    """Upper bounds far below what is true, and the clusters that follow."""
    (level,) = certificate.levels
    tight = dataclasses.replace(level, upper=np.maximum(level.lower, 1e-9 * level.upper))
    return dataclasses.replace(certificate, levels=(tight,), run={}).at(0.2)


def test_altered_bounds_are_found(of_rooms: Certificate, tmp_path: Path) -> None:
    forged = forged_bounds(of_rooms)
    forged.save(tmp_path / "forged.npz")
    for given in (forged, tmp_path / "forged.npz"):
        with pytest.raises(NotCertifiedError, match=r"not hold at tau = 0\.2: .*a new one"):
            AbstractedEnv(rooms(), given)
    for tau in (None, 0.3):  # also at thresholds other than its own
        with pytest.raises(NotCertifiedError, match="does not hold"):
            AbstractedEnv(rooms(), forged, tau)
    # Whoever asks for it gets what the bounds say.
    assert not of_rooms.at(0.2).is_certified
    assert AbstractedEnv(rooms(), forged, verify=False).tau == 0.2


def test_altered_values_are_found(of_rooms: Certificate) -> None:
    coarse = of_rooms.at(1e6).with_value(extract_mdp(rooms()))  # all in one cluster
    value = coarse.value
    assert value is not None
    assert value.loss > 0.1
    better = dataclasses.replace(value, loss=0.1, start_loss=0.1, kept=0.99)
    with pytest.raises(NotCertifiedError, match=r"does not hold at tau = 1e\+06: value"):
        AbstractedEnv(rooms(), coarse.with_proven(better))


def test_nothing_is_verified_twice(
    of_rooms: Certificate, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    AbstractedEnv(rooms(), of_rooms, verify=False)
    assert counted.calls == 0
    for given in (of_rooms, of_rooms, path, path):
        AbstractedEnv(rooms(), given)
    assert counted.calls == 1
    tau = of_rooms.certified_thresholds()[0].low
    for _ in range(2):  # another threshold has other clusters and another value
        AbstractedEnv(rooms(), of_rooms, tau)
    assert counted.calls == 2
    fresh = certify(extract_mdp(lake()), GAMMA)
    assert verify(extract_mdp(lake()), fresh).is_valid
    assert counted.calls == 3
    AbstractedEnv(lake(), fresh)
    assert counted.calls == 3


def test_what_is_altered_after_it_was_verified_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certify(extract_mdp(rooms()), GAMMA, tau="auto", resources=Resources(threads=1))
    counted = Counted(monkeypatch)
    AbstractedEnv(rooms(), certificate)
    upper = certificate.levels[0].upper
    upper.setflags(write=True)
    upper[:] = certificate.levels[0].lower
    upper.setflags(write=False)
    with pytest.raises(NotCertifiedError, match="does not hold"):
        AbstractedEnv(rooms(), certificate)
    assert counted.calls == 2


def test_what_is_handed_out_is_what_was_verified(of_rooms: Certificate) -> None:
    """Clusterings kept beside the bounds are not trusted: here, those of another threshold."""
    certificate = dataclasses.replace(of_rooms, run={})
    coarse = certificate.forests[1].labels(1e6)
    other = certificate.certified_thresholds()[0].low

    class Coarse:
        def labels(self, tau: float) -> Any:
            return coarse

    certificate.__dict__["forests"] = (Coarse(), Coarse())
    for tau in (None, other):
        with pytest.raises(NotCertifiedError, match=r"altered|does not hold"):
            AbstractedEnv(rooms(), certificate, tau)


def test_changed_files_are_refused(path: Path) -> None:
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["labels_upper"] = np.zeros_like(arrays["labels_upper"])
    np.savez(path, **arrays)
    with pytest.raises(FileFormatError, match="changed"):
        AbstractedEnv(rooms(), path)


def test_other_environments_are_refused(of_rooms: Certificate, of_lake: Certificate) -> None:
    with pytest.raises(NotCertifiedError, match="of another model: 36 states and 4 actions") as x:
        AbstractedEnv(lake(), of_rooms)
    assert "certify(extract_mdp(env), gamma)" in str(x.value)
    assert "17 states (12 reachable)" in str(x.value)
    other = gym.make(ROOMS, side=6, room_size=3, slip=0.4, seed=1)  # the same shape
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(other, of_rooms)
    literal = certify(extract_mdp(lake(), reading=Reading(terminal="table")), GAMMA, tau=1e-9)
    with pytest.raises(NotCertifiedError, match="beyond the end of episodes"):
        AbstractedEnv(lake(), literal)
    with pytest.raises(NotCertifiedError, match="another model"):
        AbstractedEnv(TabularEnv(lake(), reading=Reading(terminal="table")), literal)


def test_narrow_scopes_are_shown_and_can_be_refused() -> None:
    ground = rooms()
    covered = certify(extract_mdp(ground), GAMMA, tau=1.0, method=Covering(), seed=0, max_rounds=20)
    tau = covered.certified_thresholds()[0].low
    env = AbstractedEnv(ground, covered, tau)
    assert env.reset(seed=0)[1]["scope"] == "covered"
    assert "covered pairs only" in repr(env)
    assert "covered pairs only" in env.summary()
    with pytest.raises(NotCertifiedError, match=r"by Blocks, .*require='all'"):
        AbstractedEnv(ground, covered, tau, require="all")
    with pytest.raises(InvalidArgumentError, match="require must be one of 'all'"):
        AbstractedEnv(ground, covered, tau, require="everything")


def test_advice_for_narrow_scopes_is_to_widen_them(of_rooms: Certificate) -> None:
    covered = certify(extract_mdp(rooms()), GAMMA, tau=0.2, method=Covering(sweeps=1), max_rounds=1)
    assert not covered.is_certified
    with pytest.raises(NotCertifiedError, match="or by Blocks"):
        AbstractedEnv(rooms(), covered)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dynamics": "both"}, "dynamics must be one of 'aggregated', 'ground'"),
        ({"weighting": "mean"}, "weighting must be one of"),
        ({"certificate": 3}, "certificate must be a Certificate or the path of one, got int"),
        ({"mdp": 3}, "mdp must be a TabularMDP, got int"),
        ({"reading": {"seed": -1}}, "seed must be at least 0"),
    ],
)
def test_bad_arguments_are_named(
    of_rooms: Certificate, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        AbstractedEnv(rooms(), **{"certificate": of_rooms, **kwargs})


def test_derived_certificates_are_refused(of_rooms: Certificate) -> None:
    class Turning(Certificate):
        """Could say one thing when it is verified and another afterwards."""

    fields = {name: getattr(of_rooms, name) for name in Certificate.__dataclass_fields__}
    with pytest.raises(InvalidArgumentError, match=r"certificate must be a Certificate .*Turning"):
        AbstractedEnv(rooms(), Turning(**fields | {"run": {}}))


def test_swapped_arguments_are_told_the_order(of_rooms: Certificate) -> None:
    wrong: Any
    for wrong in (of_rooms, 3, None):
        with pytest.raises(InvalidArgumentError, match=r"order is AbstractedEnv\(env, certificate"):
            AbstractedEnv(wrong, rooms())  # type: ignore[arg-type]
    vector: Any = gym.vector.SyncVectorEnv([rooms])
    for wrong, remedy in ((vector, "wrap each"), (extract_mdp(rooms()), r"ModelEnv\(mdp")):
        with pytest.raises(InvalidArgumentError, match=f"env must be a gymnasium.Env.*{remedy}"):
            AbstractedEnv(wrong, of_rooms)
    vector.close()


def test_ground_steps_are_not_sold_by_what_solvers_retain(
    of_rooms: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    """The sentence is about solvers; of learners on real steps less is proven."""
    learner = of_rooms.with_value().value
    assert learner is not None
    assert learner.learner is not None
    assert learner.learner.kept < 0.95 < learner.solver.kept
    AbstractedEnv(rooms(), of_rooms, dynamics="ground")
    (record,) = caplog.records
    assert "these steps are the environment's own, on which any one-step Q-learner" in (
        record.getMessage()
    )
    caplog.clear()
    AbstractedEnv(rooms(), of_rooms)
    assert not caplog.records
