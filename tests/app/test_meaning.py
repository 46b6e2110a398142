"""What the page says of an environment, and the lines of Python that it offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import bisim_abstract._app.meaning as module
from bisim_abstract import Certificate, TabularMDP, certify
from bisim_abstract._abstract.value import amount_text, kept_text
from bisim_abstract._app.meaning import MAX_VARIABLES, _all_but_one, meaning, snippet
from bisim_abstract._base.types import IntArray
from bisim_abstract.parts import grouped_mdp
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp


def run_of(name: str, imports: list[str] | None = None, **env_args: Any) -> dict[str, Any]:
    """What a page is told of a run."""
    config: dict[str, Any] = {"source": {"name": name, "env_args": env_args}}
    return {"config": config if imports is None else {**config, "imports": imports}}


def told(mdp: TabularMDP, certificate: Certificate, *, is_rejected: bool = False) -> str:
    return " ".join(meaning(certificate, mdp, is_rejected=is_rejected))


def test_clusters_are_told_in_terms_of_the_environment() -> None:
    mdp = RoomsGridEnv(side=6, room_size=3).to_mdp()
    certificate = certify(mdp, 0.9, tau="auto")
    text = told(mdp, certificate)
    assert "given only which of 4 clusters it is in, not which of 36 states" in text
    assert "All clusters have 9 states each." in text
    assert "hold states that differ in row or column" in text
    assert "of 4 clusters." in text
    assert any(f"{name} in " in text for name in ("up", "right", "down", "left"))


def test_what_makes_no_difference_is_named() -> None:
    mdp = extract_mdp(Distractor(gym.make("FrozenLake-v1"), n_background=3))
    certificate = certify(mdp, 0.9)
    text = told(mdp, certificate)
    assert "States that differ in background alone are always in one cluster." in text
    assert "gym.make" not in snippet(certificate, mdp)  # which would make another environment


def test_what_a_cluster_shares_is_named() -> None:
    mdp, labels = grouped_mdp(12, 3, seed=0)
    mdp = mdp.with_names(states={"group": labels, "copy": np.arange(12)})
    text = told(mdp, certify(mdp, 0.9, n_clusters=3))
    assert "States of one cluster always have the same group." in text


def test_nothing_is_claimed_without_a_proof() -> None:
    mdp, _ = grouped_mdp(12, 3, seed=0)
    certificate = certify(mdp, 0.9)
    assert "Any agent that solves the small environment retains" in told(mdp, certificate)
    rejected = told(mdp, certificate, is_rejected=True)
    assert rejected.endswith("Nothing on this page is proven.")
    bounds = certificate.at(float(certificate.tau or 0.0))
    assert "retains" not in told(mdp, bounds)  # a threshold without a proof of value


def test_renamed_actions_are_said() -> None:
    mdp = RoomsGridEnv(side=4, room_size=2).to_mdp()
    assert "renamed in each state" in told(mdp, certify(mdp, 0.9, relation="lax"))
    assert "renamed in each state" not in told(mdp, certify(mdp, 0.9))


@pytest.mark.parametrize("source", ["lake", "model"])
def test_the_snippet_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run_of("FrozenLake-v1", map_name="8x8", is_slippery=False)
    if source == "lake":
        mdp = extract_mdp("FrozenLake-v1", env_args={"map_name": "8x8", "is_slippery": False})
    else:
        mdp, _ = grouped_mdp(12, 3, seed=0)
    certificate = certify(mdp, 0.9)
    mdp.save(tmp_path / "mdp.npz")
    certificate.save(tmp_path / "certificate.npz")
    code = snippet(certificate, mdp, record)
    assert max(len(line) for line in code.splitlines()) <= 120
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(code, found)
    assert ("env" in found) == (source == "lake")
    small = found["small"]
    assert isinstance(small, TabularMDP)
    assert small.n_states == certificate.n_clusters + (mdp.terminal_state is not None)
    assert len(np.asarray(found["plan"])) == mdp.n_states


def test_names_in_the_snippet_stay_text() -> None:
    mdp, _ = grouped_mdp(6, 2, seed=0)
    name = 'x"); import os  # '
    certificate, mdp = certify(mdp, 0.9), mdp.with_metadata(env=name)
    odd: dict[str, Any] = {"a b": 1}
    assert "AbstractedEnv(" not in snippet(certificate, mdp, run_of(name, ["my.envs"], **odd))
    assert "AbstractedEnv(" not in snippet(certificate, mdp, run_of(name, ["os; evil()"]))
    assert "evil" not in snippet(certificate, mdp, run_of(name, ["os; evil()"]))
    code = snippet(certificate, mdp, run_of(name, ["my.envs"]))
    assert 'gym.make("x\\"); import os  # ")' in code
    assert "\nimport my.envs  # registers the environment\n" in code


def test_an_environment_is_made_only_where_that_works(tmp_path: Path) -> None:
    mdp = extract_mdp("FrozenLake-v1", env_args={"map_name": "8x8"})
    certificate = certify(mdp, 0.9)
    good = run_of("FrozenLake-v1", map_name="8x8")
    assert "gym.make(\"FrozenLake-v1\", map_name='8x8')" in snippet(certificate, mdp, good)
    # Nothing tells with which arguments it was made.
    assert "gym.make" not in snippet(certificate, mdp)
    assert "gym.make" not in snippet(certificate, mdp, {"config": {"gamma": 0.9}})
    assert "gym.make" not in snippet(certificate, mdp, run_of("mdp.npz"))
    # What cannot be written as code.
    for bad in (float("inf"), [float("nan")], {"a": -float("inf")}, object(), "a\ufffd"):
        assert "gym.make" not in snippet(certificate, mdp, run_of("FrozenLake-v1", desc=bad))
    word: dict[str, Any] = {"lambda": 1}
    assert "gym.make" not in snippet(certificate, mdp, run_of("FrozenLake-v1", **word))
    # An environment of no id goes by the name of its class.
    rooms = extract_mdp(RoomsGridEnv(side=4, room_size=2))
    assert rooms.metadata["env"] == "RoomsGridEnv"
    code = snippet(certify(rooms, 0.9), rooms, run_of("RoomsGridEnv"))
    assert "gym" not in code
    # A name that was registered by this very process.
    gym.register(id="Own-v0", entry_point=f"{__name__}:nothing")
    try:
        own = mdp.with_metadata(env="Own-v0")
        assert "gym.make" not in snippet(certificate, own, run_of("Own-v0"))
        assert "import own\n" not in snippet(certificate, own, run_of("Own-v0", ["own"]))
        assert "import own  # reg" in snippet(certificate, own, run_of("Own-v0", ["own"]))
    finally:
        del gym.registry["Own-v0"]


def test_retired_ids_are_the_same_environment() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    certificate = certify(mdp, 0.9)
    name = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gym.registry)
    for asked in ("Taxi-v3", "Taxi-v4"):
        code = snippet(certificate, mdp.with_metadata(env=name), run_of(asked))
        assert f'gym.make("{name}")' in code


def test_minigrid_is_imported_once() -> None:
    pytest.importorskip("minigrid")
    mdp = extract_mdp("FrozenLake-v1").with_metadata(env="MiniGrid-Empty-5x5-v0")
    certificate = certify(mdp, 0.9)
    for imports in (None, [], ["minigrid"]):
        code = snippet(certificate, mdp, run_of("MiniGrid-Empty-5x5-v0", imports))
        assert code.count("import minigrid") == 1


def test_what_a_model_leaves_out_is_said() -> None:
    mdp, _ = grouped_mdp(12, 3, seed=0)
    certificate = certify(mdp, 0.9)
    assert "frozen in the model" not in told(mdp, certificate)
    assert "All of this holds" not in told(mdp, certificate)
    plain = mdp.with_metadata(method="enumeration", seed=3, frozen=["step_count"])
    assert "frozen in the model" not in told(plain, certificate)
    conditions = ["from 5 sampled starts", "for an agent that sees the whole state\u202e"]
    several = mdp.with_metadata(frozen=["clock", "step_count\u202e"], conditions=conditions)
    text = told(several, certify(several, 0.9))
    assert (
        "clock and step_count\ufffd are frozen in the model. bisim_abstract does not check that "
        "this does not matter."
    ) in text
    whole = "for an agent that sees the whole state\ufffd"
    assert text.endswith(f"All of this holds from 5 sampled starts; {whole}.")
    assert "All of this holds" not in told(several, certificate, is_rejected=True)
    odd = mdp.with_metadata(method="enumeration", frozen=[[1]])
    assert "frozen in the model" not in told(odd, certificate)


def test_work_grows_as_the_number_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, plain = np.random.default_rng(0), module._together
    calls: list[int] = []

    def counting(*columns: IntArray) -> IntArray:
        calls.append(len(columns))
        return plain(*columns)

    monkeypatch.setattr(module, "_together", counting)
    for count in (1, 2, MAX_VARIABLES):
        calls.clear()
        found = list(_all_but_one([rng.integers(0, 3, 50) for _ in range(count)]))
        assert len(found) == count
        assert sum(calls) <= 6 * count  # columns that were read


def test_all_but_one_are_joined() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 5):
        columns = [rng.integers(0, 3, 40) for _ in range(count)]
        for k, codes in enumerate(_all_but_one(columns)):
            others = [c for j, c in enumerate(columns) if j != k] or [np.zeros(40, np.int64)]
            expected = np.unique(np.column_stack(others), axis=0, return_inverse=True)[1]
            pairs = set(zip(codes.tolist(), expected.reshape(-1).tolist(), strict=True))
            assert len(pairs) == len(set(codes.tolist())) == len({b for _, b in pairs})


@pytest.mark.parametrize(
    ("guarantee", "agent"),
    [
        ("policy", "Its policy"),
        ("solver", "Any agent that solves the small environment"),
        ("learner", "Any one-step Q-learner on real steps"),
    ],
)
def test_the_agents_of_the_guarantee_are_named(guarantee: str, agent: str) -> None:
    mdp, _ = grouped_mdp(20, 4, seed=0)
    certificate = certify(mdp, 0.9, guarantee=guarantee)
    value = certificate.value
    assert value is not None
    share = value.share(guarantee)
    assert share is not None
    text = told(mdp, certificate)
    assert f"{agent} {kept_text(share.kept)}, from the start." in text
    assert f"lose more than {amount_text(share.loss)} against the best policy" in text
    assert "On this scale 0% is the baseline" in text


def test_where_a_constant_action_is_best_there_is_nothing_to_decide() -> None:
    rows = np.zeros((2, 2, 2))
    rows[:, 0, 0] = rows[:, 1, 1] = 1.0
    mdp = TabularMDP.from_dense(rows, np.array([[0.0, 1.0], [0.0, 1.0]]), order="sas")
    mdp = mdp.with_names(actions=["rest", "work"])
    text = told(mdp, certify(mdp, 0.9))
    assert "Taking work for ever is already optimal from the start" in text
    assert "retains" not in text
