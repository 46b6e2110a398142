"""Environments over certified clusters: refusals, steps, and Gymnasium's conventions."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import importlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    NotCertifiedError,
    TabularMDP,
    abstract_env,
    aggregate,
    certify,
    verify,
)
from bisim_abstract._base.types import Progress
from bisim_abstract._verify import memory as _verified
from bisim_abstract.errors import ExtractionError, FileFormatError
from bisim_abstract.wrappers import (
    AbstractedEnv,
    Distractor,
    RoomsGridEnv,
    TabularEnv,
    extract_mdp,
)

ROOMS = "bisim_abstract/RoomsGrid-v0"
GAMMA = 0.9
IS_WRAPPED = "ignore:.*is different from the unwrapped version"


def rooms(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make(ROOMS, side=6, room_size=3, slip=0.4, **kwargs)


def lake(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("FrozenLake-v1", **kwargs)


@pytest.fixture(scope="module")
def of_rooms() -> Certificate:
    return certify(extract_mdp(rooms()), GAMMA, tau="auto", threads=1)


@pytest.fixture(scope="module")
def of_lake() -> Certificate:
    return certify(extract_mdp(lake()), GAMMA, tau=1e-9, threads=1)


@pytest.fixture
def path(of_rooms: Certificate, tmp_path: Path) -> Path:
    of_rooms.save(tmp_path / "rooms.npz")
    return tmp_path / "rooms.npz"


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
    assert "clusters and the end of 16 states" in env.summary()


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
    part = certify(extract_mdp(ground, reachable_only=True), GAMMA, tau=1e-9)
    env = AbstractedEnv(ground, part)
    assert env.mdp.n_states == 12
    assert AbstractedEnv(TabularEnv(ground, reachable_only=True), part).mdp.n_states == 12
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
    assert f"states {s} and {t}, for instance, are between {low:.4g} and {high:.4g}" in message
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
    assert poor.certificate.verdict.sentence.startswith("CERTIFIED, BUT planning on it keeps")
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


class Counted:
    """Stands in for the verifier, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        _verified.known_claims.clear()
        home = importlib.import_module("bisim_abstract._verify.verify")
        self._judge = home._Check.judge
        monkeypatch.setattr(home._Check, "judge", lambda check, claims: self(check, claims))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._judge(*args, **kwargs)


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
    certificate = certify(extract_mdp(rooms()), GAMMA, tau="auto", threads=1)
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
    literal = certify(extract_mdp(lake(), terminal="table"), GAMMA, tau=1e-9)
    with pytest.raises(NotCertifiedError, match="beyond the end of episodes"):
        AbstractedEnv(lake(), literal)
    with pytest.raises(NotCertifiedError, match="another model"):
        AbstractedEnv(TabularEnv(lake(), terminal="table"), literal)


def test_narrow_scopes_are_shown_and_can_be_refused() -> None:
    ground = rooms()
    covered = certify(extract_mdp(ground), GAMMA, tau=1.0, scope="covered", seed=0, max_rounds=20)
    tau = covered.certified_thresholds()[0].low
    env = AbstractedEnv(ground, covered, tau)
    assert env.reset(seed=0)[1]["scope"] == "covered"
    assert "covered pairs only" in repr(env)
    assert "covered pairs only" in env.summary()
    with pytest.raises(NotCertifiedError, match=r"scope='all'.*require='all'"):
        AbstractedEnv(ground, covered, tau, require="all")
    with pytest.raises(InvalidArgumentError, match="require must be one of 'all'"):
        AbstractedEnv(ground, covered, tau, require="everything")


def test_advice_for_narrow_scopes_is_to_widen_them(of_rooms: Certificate) -> None:
    covered = certify(
        extract_mdp(rooms()), GAMMA, tau=0.2, scope="covered", max_rounds=1, sweeps_per_round=1
    )
    assert not covered.is_certified
    with pytest.raises(NotCertifiedError, match="or scope='all'"):
        AbstractedEnv(rooms(), covered)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dynamics": "both"}, "dynamics must be one of 'aggregated', 'ground'"),
        ({"weighting": "mean"}, "weighting must be one of"),
        ({"certificate": 3}, "certificate must be a Certificate or the path of one, got int"),
        ({"mdp": 3}, "mdp must be a TabularMDP, got int"),
        ({"seed": -1}, "seed must be at least 0"),
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
    for wrong, remedy in ((vector, "wrap each"), (extract_mdp(rooms()), r"aggregate\(mdp, labels")):
        with pytest.raises(InvalidArgumentError, match=f"env must be a gymnasium.Env.*{remedy}"):
            AbstractedEnv(wrong, of_rooms)
    vector.close()


# -- the environment and its model -------------------------------------------------------------


def test_environments_by_id(of_lake: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    env = AbstractedEnv("FrozenLake-v1", of_lake)
    assert walk(env) == walk(AbstractedEnv(lake(), of_lake))
    assert env.spec is not None
    assert walk(gym.make(env.spec)) == walk(env)
    with pytest.raises(ExtractionError, match="no environment 'Nowhere-v0'"):
        AbstractedEnv("Nowhere-v0", of_lake)
    # One that was made here and is refused is closed here; that of somebody else is not.
    closed: list[int] = []
    monkeypatch.setattr(RoomsGridEnv, "close", lambda self: closed.append(1))
    with pytest.raises(NotCertifiedError):
        AbstractedEnv(ROOMS, of_lake)
    assert closed == [1]
    with pytest.raises(NotCertifiedError):
        AbstractedEnv(rooms(), of_lake)
    assert closed == [1]


def test_the_docstring_begins_with_what_steps_are() -> None:
    first, _, rest = (AbstractedEnv.__doc__ or "").partition("\n")
    assert "aggregated model" in first
    assert 'dynamics="ground"' in rest.split("\n\n")[0]


def test_a_model_at_hand_is_not_extracted(
    of_rooms: Certificate, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = importlib.import_module("bisim_abstract.wrappers.abstracted")
    rows = extract_mdp(Walk())
    of_rows = certify(rows, GAMMA, tau=1e-9)
    with monkeypatch.context() as patch:
        patch.delattr(home, "extract_again")
        patch.delattr(home, "extract_mdp")
        assert AbstractedEnv(Walk(), of_rows, mdp=rows).mdp is rows
    expected = walk(AbstractedEnv(rooms(), of_rooms))
    env = AbstractedEnv(rooms(), path, mdp=extract_mdp(rooms()))
    assert walk(env) == expected
    # Specifications do without it, and stay JSON.
    assert env.spec is not None
    assert walk(gym.make(EnvSpec.from_json(env.spec.to_json()))) == expected


def test_models_of_something_else_are_refused(of_rooms: Certificate, of_lake: Certificate) -> None:
    mdp = extract_mdp(rooms())
    with pytest.raises(NotCertifiedError, match="mdp must be the model that the certificate"):
        AbstractedEnv(lake(), of_lake, mdp=mdp)
    # The certificate's model, and an environment of the same shape that behaves otherwise.
    other = gym.make(ROOMS, side=6, room_size=3, slip=0.4, seed=1)
    still = gym.make(ROOMS, side=6, room_size=3, slip=0.0, noise=0.0, seed=0)
    small = extract_mdp(still)
    of_still = certify(small, GAMMA, tau="auto")
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(other, of_still, mdp=small)
    # Probabilities and rewards that steps would hardly tell.
    mine = lake()
    lakes = extract_mdp(mine)
    mine.get_wrapper_attr("P")[0][0] = [(0.98, 0, 0.0, False), (0.02, 4, 0.0, False)]
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(mine, of_lake, mdp=lakes)
    for wrong in (lake(), gym.make("Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4")):
        with pytest.raises(NotCertifiedError, match=r"of another model|must be the model of this"):
            AbstractedEnv(wrong, of_rooms, mdp=mdp)
    longer = Walk()
    longer.paid = 2.0
    rows = extract_mdp(Walk())
    with pytest.raises(NotCertifiedError, match="mdp is not the model of this environment"):
        AbstractedEnv(longer, certify(rows, GAMMA, tau=1e-9), mdp=rows)
    literal = extract_mdp(lake(), terminal="table")
    with pytest.raises(NotCertifiedError, match="terminal='table'"):
        AbstractedEnv(lake(), certify(literal, GAMMA, tau=1e-9), mdp=literal)


class Walk(gym.Env[np.int64, np.int64]):
    """A row of cells without a table, whose last one ends the episode."""

    observation_space = gym.spaces.Discrete(6)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.length = 6
        self.paid = 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return np.int64(self.at), {}

    def step(self, action: Any) -> Any:
        self.at = max(0, self.at + (1 if action else -1))
        is_end = self.at == self.length - 1
        return np.int64(self.at), self.paid * is_end, is_end, False, {}


@pytest.fixture
def enumerations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every enumeration that is made."""
    home = importlib.import_module("bisim_abstract.wrappers.enumerate")
    real, made = home.enumerate_mdp, []

    def spied(*args: Any, **kwargs: Any) -> TabularMDP:
        made.append(1)
        return real(*args, **kwargs)  # type: ignore[no-any-return]

    monkeypatch.setattr(home, "enumerate_mdp", spied)
    return made


def test_an_environment_is_enumerated_once(enumerations: list[int]) -> None:
    ground = Walk()
    certificate = certify(extract_mdp(ground), GAMMA, tau=1e-9)
    assert len(enumerations) == 1
    env: gym.Env[Any, Any]
    for env in (ground, gym.wrappers.TimeLimit(ground, 9)):
        for dynamics in ("aggregated", "ground"):
            AbstractedEnv(env, certificate, dynamics=dynamics)
    assert len(enumerations) == 1
    AbstractedEnv(Walk(), certificate)  # another object is another environment
    assert len(enumerations) == 2
    extract_mdp(ground)  # whoever asks for it gets it
    assert len(enumerations) == 3
    with pytest.raises(ExtractionError, match="more than"):
        AbstractedEnv(ground, certificate, max_states=2)


def test_one_call_enumerates_and_verifies_once(
    enumerations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    heard: list[Progress] = []
    env = abstract_env(Walk(), gamma=GAMMA, callback=heard.append)
    assert (len(enumerations), counted.calls) == (1, 1)
    assert "enumerating" in {report.stage for report in heard}
    assert env.value.kept > 0.9


def test_one_call_closes_what_it_made_and_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr(RoomsGridEnv, "close", lambda self: closed.append(1))
    with pytest.raises(InvalidArgumentError, match="gamma must lie"):
        abstract_env(rooms(), gamma=1.5)
    assert not closed
    with pytest.raises(InvalidArgumentError, match="gamma must lie"):
        abstract_env(ROOMS, env_args={"side": 6, "room_size": 3}, gamma=1.5)
    assert closed == [1]


def test_changed_environments_are_looked_at_anew(enumerations: list[int]) -> None:
    """The certificate still fits what is remembered, and the environment no longer does."""
    ground = Walk()
    certificate = certify(extract_mdp(ground), GAMMA, tau=1e-9)
    ground.paid = 2.0
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(ground, certificate)
    ground.paid = 1.0
    assert AbstractedEnv(ground, certificate).mdp.fingerprint == certificate.fingerprint


def test_classes_that_were_changed_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(Walk):
        GOAL = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.length = 40  # further than random steps get

        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, reward * self.GOAL, *rest

    ground = Long()
    certificate = certify(extract_mdp(ground), GAMMA, tau=1e-9)
    AbstractedEnv(ground, certificate)
    monkeypatch.setattr(Long, "GOAL", 5.0)
    with pytest.raises(NotCertifiedError, match="of another model"):
        AbstractedEnv(ground, certificate)


def test_enumerations_are_forgotten_with_their_environment() -> None:
    home = importlib.import_module("bisim_abstract.wrappers.tabular")
    before = set(home._enumerations)
    ground = Walk()
    extract_mdp(ground)
    assert set(home._enumerations) - before == {id(ground)}
    del ground
    gc.collect()
    assert set(home._enumerations) <= before


class Tilted(gym.Env[np.int64, np.int64]):
    """Two states that stay, paid 0 and 1; three starts in four are in the first."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)
    P = {k: {0: [(1.0, k, float(k), False)]} for k in range(2)}  # noqa: RUF012
    initial_state_distrib = np.array([0.75, 0.25])
    s = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = int(self.np_random.random() >= 0.75)
        return np.int64(self.s), {}

    def step(self, action: Any) -> Any:
        return np.int64(self.s), float(self.s), False, False, {}


class Uncopied(Tilted):
    """Cannot be copied, and so not be tried out."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one")


def test_a_model_that_cannot_be_tried_is_extracted_after_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ground = Uncopied()
    mdp = extract_mdp(Tilted())
    certificate = certify(mdp, GAMMA, tau=0.5)
    env = AbstractedEnv(ground, certificate, mdp=mdp)
    assert env.mdp == mdp
    assert env.mdp is not mdp
    assert "not compared with real steps" in caplog.text


# -- steps -------------------------------------------------------------------------------------


def chi_square(counts: Any, probs: Any) -> float:
    """Standardised statistic over rows of counts; infinite if something impossible happened."""
    if (counts[probs == 0.0] > 0).any():
        return np.inf
    expected = probs * counts.sum(axis=-1, keepdims=True)
    used = expected >= 5.0
    freedom = int(used.sum() - used.any(axis=-1).sum())
    statistic = float(((counts - expected)[used] ** 2 / expected[used]).sum())
    return float(abs(statistic - freedom) / np.sqrt(2.0 * freedom))


@pytest.mark.parametrize("name", ["rooms", "lake"])
def test_aggregated_steps_follow_the_kernel(
    name: str, of_rooms: Certificate, of_lake: Certificate
) -> None:
    ground = rooms() if name == "rooms" else lake()
    env = AbstractedEnv(ground, of_rooms if name == "rooms" else of_lake, weighting="visitation")
    small = env.abstract_mdp
    counts = np.zeros((small.n_states, small.n_actions, small.n_states))
    starts = np.zeros(small.n_states)
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    for _ in range(30_000):
        action = int(rng.integers(small.n_actions))
        after, reward, terminated, truncated, _ = env.step(action)
        assert reward == small.rewards[observation, action]
        assert terminated == (after == small.terminal_state)
        counts[observation, action, after] += 1
        observation = after
        if terminated or truncated:
            observation, _ = env.reset()
            starts[observation] += 1
    dense = small.kernel().toarray().reshape(counts.shape)
    assert chi_square(counts, dense) < 4.0
    if name == "rooms":
        assert chi_square(starts, small.start) < 4.0
    wrong = np.roll(dense, 1, axis=2)
    assert chi_square(counts, wrong) > 100.0  # the test can fail


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_episodes_start_as_they_should(dynamics: str) -> None:
    ground = Tilted()
    env = AbstractedEnv(ground, certify(extract_mdp(ground), GAMMA, tau=1.0), dynamics=dynamics)
    assert env.abstract_mdp.start.tolist() == [0.75, 0.25, 0.0]  # never at the end
    counts = np.zeros(3)
    env.reset(seed=0)
    for _ in range(4_000):
        counts[env.reset()[0]] += 1
    assert chi_square(counts, env.abstract_mdp.start) < 4.0


@pytest.mark.parametrize("name", ["rooms", "lake"])
def test_ground_steps_follow_the_environment(
    name: str, of_rooms: Certificate, of_lake: Certificate
) -> None:
    ground = rooms() if name == "rooms" else lake()
    env = AbstractedEnv(ground, of_rooms if name == "rooms" else of_lake, dynamics="ground")
    mdp, labels = env.mdp, env.labels
    counts = np.zeros((mdp.n_states, mdp.n_actions, env.abstract_mdp.n_states))
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=0)
    for _ in range(30_000):
        assert observation == labels[info["state"]] == info["cluster"]
        state, action = info["state"], int(rng.integers(mdp.n_actions))
        observation, _, terminated, truncated, info = env.step(action)
        counts[state, action, observation] += 1
        if terminated or truncated:
            observation, info = env.reset()
    dense = mdp.kernel().toarray().reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
    pushed = np.stack([dense[:, :, labels == k].sum(axis=2) for k in range(counts.shape[2])], 2)
    assert chi_square(counts, pushed) < 4.0


class Leaves(gym.Env[np.int64, np.int64]):
    """Two live states that nearly nothing tells apart; one in 20 steps from 0 ends it."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)
    P = {  # noqa: RUF012
        0: {0: [(0.05, 0, 0.0, True), (0.95, 1, 0.0, False)]},
        1: {0: [(1.0, 0, 0.0, False)]},
    }
    initial_state_distrib = np.array([1.0, 0.0])
    s = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.s = 0
        return np.int64(0), {}

    def step(self, action: Any) -> Any:
        if self.s == 0 and self.np_random.random() < 0.05:
            return np.int64(0), 0.0, True, False, {}
        self.s = 1 - self.s
        return np.int64(self.s), 0.0, False, False, {}


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_episodes_end_at_their_rate_though_the_end_is_in_the_cluster(dynamics: str) -> None:
    """No rewards: all states, the end included, are at distance 0 and form one cluster."""
    ground = Leaves()
    certificate = certify(extract_mdp(ground), GAMMA, tau=0.5)
    assert certificate.labels_upper.tolist() == [0, 0, 0]
    env = AbstractedEnv(ground, certificate, dynamics=dynamics)
    assert env.abstract_mdp.n_states == 2
    np.testing.assert_allclose(env.abstract_mdp.successors(0, 0)[1], [0.975, 0.025])
    assert env.reset(seed=0)[0] == 0
    ends, steps = 0, 20_000
    for _ in range(steps):
        observation, _, terminated, _, _ = env.step(0)
        assert observation == int(terminated)
        ends += terminated
        if terminated:
            assert env.reset()[0] == 0
    # Half of the steps are taken in each live state, a little more in the first.
    expected = 0.025 if dynamics == "aggregated" else 0.05 / 1.95
    assert abs(ends / steps - expected) < 4.0 * np.sqrt(expected / steps)


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_time_limits_hold(of_rooms: Certificate, dynamics: str) -> None:
    env = AbstractedEnv(rooms(max_episode_steps=7), of_rooms, dynamics=dynamics)
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(7)] == [False] * 6 + [True]
    inner: gym.Env[Any, Any] = gym.wrappers.TimeLimit(rooms(max_episode_steps=7), 3)
    env = AbstractedEnv(inner, of_rooms, dynamics=dynamics)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
    free = AbstractedEnv(RoomsGridEnv(side=6, room_size=3, slip=0.4), of_rooms, dynamics=dynamics)
    free.reset(seed=0)
    assert not any(free.step(0)[3] for _ in range(500))


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_seeds(of_rooms: Certificate, dynamics: str) -> None:
    env = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
    walks = []
    for seed in (3, 3, 4):
        walk = [int(env.reset(seed=seed)[0])]
        assert env.np_random_seed == seed
        walk += [int(env.step(k % 4)[0]) for k in range(60)]
        walk += [int(env.reset()[0])]  # the stream goes on
        walks.append(walk)
    assert walks[0] == walks[1] != walks[2]
    env.np_random = np.random.default_rng(5)
    assert env.np_random_seed == -1
    unseeded = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
    assert isinstance(unseeded.np_random, np.random.Generator)


def test_actions(of_rooms: Certificate) -> None:
    for dynamics in ("aggregated", "ground"):
        env = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
        env.reset(seed=0)
        for action in (1, np.int64(1), np.array(1)):
            observation, reward, terminated, truncated, _ = env.step(action)
            assert isinstance(observation, np.int64)
            assert isinstance(reward, float)
            assert type(terminated) is type(truncated) is bool
    env = AbstractedEnv(rooms(), of_rooms)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="action must be between 0 and 3, got 4"):
        env.step(4)


def test_steps_after_the_end_stay_there(of_lake: Certificate) -> None:
    env = AbstractedEnv(lake(), of_lake)
    env.reset(seed=0)
    while not env.step(2)[2]:
        pass
    observation, reward, terminated, _, _ = env.step(2)
    assert (int(observation), reward, terminated) == (env.abstract_mdp.terminal_state, 0.0, True)


def test_unknown_states_are_named(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(), of_rooms, dynamics="ground")
    env.reset(seed=0)
    env._place = {}
    with pytest.raises(ExtractionError, match="which its model does not have"):
        env.step(0)


def test_a_background_is_abstracted_away() -> None:
    ground = Distractor(lake(), n_background=5)
    env = AbstractedEnv(ground, certify(extract_mdp(ground), GAMMA, tau=1e-9), dynamics="ground")
    plain = extract_mdp(lake())
    assert env.mdp.n_states == 5 * 16 + 1
    assert env.aggregation.n_clusters <= 16
    assert plain.n_states == 17
    _, info = env.reset(seed=0)
    assert "background" in info
    assert info["env_state"] == ground.state_id()


def test_enumerated_environments() -> None:
    pytest.importorskip("minigrid")
    from bisim_abstract.wrappers import make_env

    ground = make_env("MiniGrid-Empty-5x5-v0")
    mdp = extract_mdp(ground, seed=0)
    certificate = certify(mdp, GAMMA, tau=1e-9)
    env = AbstractedEnv(ground, certificate)
    walks = []
    for seed in (0, 1):
        env.reset(seed=seed)
        walks.append([int(env.step(k % 3)[0]) for k in range(20)])
    assert env.aggregation.n_clusters > 1
    below = AbstractedEnv(ground, certificate, dynamics="ground")
    observation, info = below.reset(seed=5)  # the layout of the one seed, whatever is asked for
    assert info["state"] in np.flatnonzero(mdp.start)
    for k in range(50):
        observation, _, terminated, truncated, info = below.step(k % 3)
        assert observation == below.labels[info["state"]]
        if terminated or truncated:
            below.reset()


# -- conventions -------------------------------------------------------------------------------


@pytest.mark.filterwarnings(IS_WRAPPED)
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
@pytest.mark.parametrize("name", ["rooms", "lake"])
def test_environment_checkers(
    name: str, dynamics: str, of_rooms: Certificate, of_lake: Certificate
) -> None:
    make, certificate = (rooms, of_rooms) if name == "rooms" else (lake, of_lake)
    check_env(
        AbstractedEnv(make(render_mode="rgb_array"), certificate, dynamics=dynamics),
        skip_render_check=name == "lake",  # it would open windows
    )


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_the_checker_of_stable_baselines(of_lake: Certificate, dynamics: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other libraries warn of when they are imported
        checker = importlib.import_module("stable_baselines3.common.env_checker")
    checker.check_env(AbstractedEnv(lake(), of_lake, dynamics=dynamics))


def walk(env: gym.Env[Any, Any]) -> list[int]:
    seen = [int(env.reset(seed=11)[0])]
    for k in range(50):
        observation, _, terminated, truncated, _ = env.step(k % 4)
        seen.append(int(observation))
        if terminated or truncated:
            seen.append(int(env.reset()[0]))
    return seen


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_copies_are_the_same(of_rooms: Certificate, path: Path, dynamics: str) -> None:
    for certificate in (of_rooms, path):
        env = AbstractedEnv(rooms(), certificate, dynamics=dynamics)
        expected = walk(env)
        for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
            assert walk(copied) == expected
            assert copied.summary() == env.summary()
        env.reset(seed=2)
        middle = copy.deepcopy(env)  # in the middle of an episode, generator included
        assert [env.step(0)[0] for _ in range(20)] == [middle.step(0)[0] for _ in range(20)]


@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
def test_making_it_from_its_specification(of_rooms: Certificate, path: Path, dynamics: str) -> None:
    env = AbstractedEnv(rooms(), path, float(of_rooms.tau or 0.0), dynamics=dynamics, require="all")
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, AbstractedEnv)
    assert again.spec == env.spec
    assert walk(again) == walk(env)
    held = AbstractedEnv(rooms(), of_rooms, dynamics=dynamics)
    assert held.spec is not None
    assert walk(gym.make(held.spec)) == walk(env)
    outer: gym.Env[Any, Any] = gym.wrappers.TimeLimit(held, 5)
    for spec in (held.spec, outer.spec):
        assert spec is not None
        with pytest.raises(InvalidArgumentError, match=r"certificate\.save\(path\)"):
            spec.to_json()
    weighted = AbstractedEnv(rooms(), path, weighting=np.ones(36).tolist())
    assert weighted.spec is not None
    weighted.spec.to_json()
    assert AbstractedEnv(Leaves(), certify(extract_mdp(Leaves()), 0.9, tau=0.1)).spec is None


def test_registration_with_additional_wrappers(path: Path) -> None:
    name = "bisim_abstract_tests/AbstractRooms-v0"
    gym.register(
        name,
        entry_point="bisim_abstract.wrappers.rooms:RoomsGridEnv",
        kwargs={"side": 6, "room_size": 3, "slip": 0.4},
        max_episode_steps=10,
        additional_wrappers=(AbstractedEnv.wrapper_spec(certificate=str(path)),),
    )
    try:
        env = gym.make(name)
        assert isinstance(env, AbstractedEnv)
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(10)].index(True) == 9
        assert env.spec is not None
        assert isinstance(gym.make(env.spec), AbstractedEnv)
    finally:
        gym.registry.pop(name)


def made(path: str) -> gym.Env[Any, Any]:
    return AbstractedEnv(rooms(), path)


def test_vector_environments(path: Path) -> None:
    makers: Any = [functools.partial(made, str(path))] * 2
    together: Any = gym.vector.SyncVectorEnv(makers)
    apart: Any = gym.vector.AsyncVectorEnv(makers, context="spawn")
    try:
        seen = []
        for env in (together, apart):
            observations, info = env.reset(seed=3)
            assert info["scope"].tolist() == ["all", "all"]
            assert info["cluster"].tolist() == observations.tolist()
            steps = [env.step(np.array([k % 4, 3 - k % 4]))[0].tolist() for k in range(20)]
            seen.append([observations.tolist(), *steps])
        assert seen[0] == seen[1]
        alone = made(str(path))
        first = [int(alone.reset(seed=3)[0])] + [int(alone.step(k % 4)[0]) for k in range(20)]
        assert [row[0] for row in seen[0]] == first
    finally:
        together.close()
        apart.close()


def test_tables_in_notebooks(of_rooms: Certificate, of_lake: Certificate) -> None:
    for ground, certificate in ((rooms(), of_rooms), (lake(), of_lake)):
        env = AbstractedEnv(ground, certificate, dynamics="ground")
        text = env._repr_html_()
        assert text.startswith("<table")
        assert "<script" not in text
        assert certificate.at(env.tau).verdict.sentence.split(" ")[0] in text
        assert "of the environment itself" in text
        assert "end after" in text
    env.aggregation = dataclasses.replace(env.aggregation, weighting="<b>&")
    assert "&lt;b&gt;&amp;" in env._repr_html_()


# -- showing -----------------------------------------------------------------------------------


def test_images_of_rooms(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(render_mode="rgb_array"), of_rooms, dynamics="ground")
    env.reset(seed=0)
    env.unwrapped.s = 8  # type: ignore[attr-defined]
    image = env.render()
    assert image.shape == (498, 498, 3)
    assert image.dtype == np.uint8
    at = 83 // 2
    assert tuple(image[83 + at, 2 * 83 + at]) == (20, 20, 20)
    middles = image[at::83, at::83].reshape(36, 3)
    by_cluster = {int(k): {tuple(x) for x in middles[env.labels == k].tolist()} for k in range(4)}
    assert sum(len(x - {(20, 20, 20)}) for x in by_cluster.values()) == 4

    env = AbstractedEnv(rooms(render_mode="rgb_array"), of_rooms)
    cluster, _ = env.reset(seed=0)
    middles = env.render()[at::83, at::83].reshape(36, 3).astype(int)
    shown = middles.min(axis=1)
    assert shown[env.labels == cluster].max() < shown[env.labels != cluster].min()


def test_text_of_rooms(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(render_mode="ansi"), of_rooms, dynamics="ground")
    env.reset(seed=0)
    env.unwrapped.s = 8  # type: ignore[attr-defined]
    env._cluster = int(env.labels[8])
    lines = env.render().splitlines()
    assert lines[0] == "cluster 0 of 4 (9 states), cell (1, 2)"
    assert lines[1:] == ["000111", "00@111", "000111", "222333", "222333", "222333"]
    env = AbstractedEnv(rooms(render_mode="ansi"), of_rooms)
    cluster, _ = env.reset(seed=0)
    text = env.render()
    assert text.startswith(f"cluster {cluster} of 4 (9 states)\n")
    assert text.count(str(cluster), text.index("\n")) == 9
    assert text.count(".") == 27


def test_other_environments_draw_themselves(of_lake: Certificate) -> None:
    below = AbstractedEnv(lake(render_mode="ansi"), of_lake, dynamics="ground")
    below.reset(seed=0)
    assert below.render() == below.env.render()
    env = AbstractedEnv(lake(render_mode="ansi"), of_lake)
    cluster, _ = env.reset(seed=0)
    assert env.render() == f"cluster {cluster} of {env.aggregation.n_clusters} (1 states)\n"
    # A background hides the grid's own state from its picture.
    ground = Distractor(rooms(render_mode="rgb_array"), n_background=2)
    env = AbstractedEnv(ground, certify(extract_mdp(ground), GAMMA), dynamics="aggregated")
    env.reset(seed=0)
    assert env.render().ndim == 3


def test_rendering_without_a_mode_or_a_start(of_rooms: Certificate) -> None:
    env = AbstractedEnv(rooms(render_mode="ansi"), of_rooms)
    with pytest.raises(ResetNeeded):
        env.render()


def test_ctrl_c_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """`certify` hands out what it has reached; a loop over `abstract_env` must end."""
    home = importlib.import_module("bisim_abstract._app.abstract_env")

    def interrupted(*args: Any, **kwargs: Any) -> Certificate:
        return dataclasses.replace(certify(*args, **kwargs), stop="interrupted in step 1", run={})

    monkeypatch.setattr(home, "certify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        abstract_env(lake(), gamma=GAMMA)
