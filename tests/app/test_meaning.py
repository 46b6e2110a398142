"""What the page says of an environment, and the lines of Python that it offers."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from bisim_abstract import Certificate, TabularMDP, certify
from bisim_abstract._app.meaning import meaning, snippet
from bisim_abstract.parts import grouped_mdp
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, extract_mdp


def told(mdp: TabularMDP, certificate: Certificate, *, is_rejected: bool = False) -> str:
    return " ".join(meaning(certificate, mdp, is_rejected=is_rejected))


def test_clusters_are_told_in_terms_of_the_environment() -> None:
    mdp = RoomsGridEnv(side=6, room_size=3).to_mdp()
    certificate = certify(mdp, 0.9, tau="auto")
    text = told(mdp, certificate)
    assert "told only which of 4 clusters it is in, and not which of 36 states" in text
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
    assert "gains at least" in told(mdp, certificate) or "gains 100%" in told(mdp, certificate)
    rejected = told(mdp, certificate, is_rejected=True)
    assert rejected.endswith("Nothing on this page is proven.")
    bounds = certificate.at(float(certificate.tau or 0.0))
    assert "gains" not in told(mdp, bounds)  # a threshold without a proof of value


def test_renamed_actions_are_said() -> None:
    mdp = RoomsGridEnv(side=4, room_size=2).to_mdp()
    assert "renamed in each state" in told(mdp, certify(mdp, 0.9, relation="lax"))
    assert "renamed in each state" not in told(mdp, certify(mdp, 0.9))


@pytest.mark.parametrize("source", ["lake", "model"])
def test_the_snippet_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"config": {"source": {"env_args": {"map_name": "8x8", "is_slippery": False}}}}
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
    mdp = mdp.with_metadata(env='x"); import os  # ')
    code = snippet(certify(mdp, 0.9), mdp, {"config": {"source": {"env_args": {"a b": 1}}}})
    assert "AbstractedEnv(" not in code
    code = snippet(certify(mdp, 0.9), mdp)
    assert 'gym.make("x\\"); import os  # ")' in code
