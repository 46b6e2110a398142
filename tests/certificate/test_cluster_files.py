"""Certified clusters for other programs, and names in what certificates say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    InvalidArgumentError,
    NotCertifiedError,
    TabularMDP,
    certify,
    write_clusters,
)
from bisim_abstract._certificate import cluster_files
from bisim_abstract.parts import grouped_mdp, random_mdp
from tests.support.models import env_mdp
from tests.support.worlds import mirrored


def called(mdp: TabularMDP) -> TabularMDP:
    n = mdp.n_states
    return mdp.with_names(
        states={"row": np.arange(n) // 4, "cluster": [f"=x{s}" for s in range(n)]},
        actions=[f"go {a}" for a in range(mdp.n_actions)],
        labels={"goal": np.arange(n) < 6},
    )


@pytest.fixture(scope="module")
def lake() -> tuple[TabularMDP, Certificate]:
    mdp = called(env_mdp("lake4"))
    return mdp, certify(mdp, 0.9)


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("chunk", [1, 5, 4096])
def test_csv_reads_back(
    lake: tuple[TabularMDP, Certificate],
    chunk: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_files, "STATES", chunk)
    mdp, certificate = lake
    lines = table(write_clusters(mdp, certificate, tmp_path / "c.csv"))
    assert len(lines) == mdp.n_states
    columns = certificate.to_columns()
    assert list(lines[0]) == list(columns)
    for name, values in columns.items():
        read: list[Any] = [line[name] for line in lines]
        if values.dtype.kind == "b":
            read = [text == "true" for text in read]
        elif values.dtype.kind != "O":
            read = [values.dtype.type(text) for text in read]
        else:
            read = [text.removeprefix("'") for text in read]
        assert read == values.tolist(), name
    assert lines[5]["variable_cluster"] == "'=x5"
    assert lines[5]["action_name"] == mdp.action_name(int(lines[5]["action"]))


@pytest.mark.parametrize("chunk", [2, 4096])
def test_json_reads_back(
    lake: tuple[TabularMDP, Certificate],
    chunk: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_files, "STATES", chunk)
    mdp, certificate = lake
    found = json.loads(write_clusters(mdp, certificate, tmp_path / "c.json").read_bytes())
    for name in ("tau", "gamma", "relation", "scope", "alpha", "fingerprint", "terminal_state"):
        assert found[name] == getattr(certificate, name), name
    assert found["verdict"] == certificate.verdict.header()
    assert len(found["clusters"]) == certificate.n_clusters
    for entry, members in zip(found["clusters"], certificate.clusters, strict=True):
        assert entry["members"] == members.tolist()
        assert (entry["size"], entry["representative"]) == (members.size, members[0])
        assert entry["name"] == mdp.state_name(int(members[0]))
        assert entry["names"] == [mdp.state_name(s) for s in members.tolist()]
    listed = sorted(s for entry in found["clusters"] for s in entry["members"])
    assert listed == [s for s in range(mdp.n_states) if s != mdp.terminal_state]


def test_without_names_there_are_none(tmp_path: Path) -> None:
    mdp = grouped_mdp(12, 3, seed=0)[0]
    certificate = certify(mdp, 0.9)
    found = json.loads(write_clusters(mdp, certificate, tmp_path / "c.json").read_bytes())
    assert all(
        set(entry) == {"cluster", "size", "representative", "members"}
        for entry in found["clusters"]
    )
    lines = table(write_clusters(mdp, certificate, tmp_path / "c.csv"))
    assert list(lines[0])[:3] == ["state", "id", "is_end"]


def test_only_certified_clusters_are_written(tmp_path: Path) -> None:
    mdp = env_mdp("lake4")
    open_ = certify(mdp, 0.9, tau=0.05, method=Blocks(max_pairs=0, propose=("rewards",)))
    assert not open_.is_certified
    for certificate in (open_, certify(mdp, 0.9, tol=1.0)):
        if not certificate.is_certified:
            for name in ("c.csv", "c.json"):
                with pytest.raises(NotCertifiedError):
                    write_clusters(mdp, certificate, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_arguments(lake: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = lake
    with pytest.raises(InvalidArgumentError, match=r"must end in \.csv or \.json"):
        write_clusters(mdp, certificate, tmp_path / "c.npz")
    with pytest.raises(InvalidArgumentError, match="another model"):
        write_clusters(random_mdp(4, seed=0), certificate, tmp_path / "c.csv")
    with pytest.raises(InvalidArgumentError, match=r"write_clusters\(mdp, certificate, path\)"):
        write_clusters(mdp, "c.csv", certificate)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        write_clusters(mdp, certificate, tmp_path / "missing" / "c.csv")


# -- the model over clusters -------------------------------------------------------------------


def test_clusters_are_called_after_their_first_states(
    lake: tuple[TabularMDP, Certificate],
) -> None:
    mdp, certificate = lake
    small = certificate.aggregate().mdp
    for cluster, members in enumerate(certificate.clusters):
        assert small.state_name(cluster) == mdp.state_name(int(members[0]))
        assert small.names.labels["goal"][cluster] == mdp.names.labels["goal"][members].all()
    assert small.names.actions == mdp.names.actions


def test_actions_that_some_states_lack_keep_their_names() -> None:
    mdp = grouped_mdp(12, 3, 2, seed=0)[0]
    available = np.ones((12, 2), bool)
    available[certify(mdp, 0.9).labels == 0, 1] = False
    mdp = mdp.with_available(available).with_names(actions=["left", "right"])
    certificate = certify(mdp, 0.9)
    assert certificate.value is not None
    assert certificate.value.renaming is not None
    assert certificate.aggregate().mdp.names.actions == ("left", "right")


def test_renamed_actions_of_clusters_have_no_names() -> None:
    mdp = mirrored(6, noise=0.1).with_names(actions=["left", "right"], states="abcdef")
    certificate = certify(mdp, 0.9, relation="lax", keep=0.99)
    assert certificate.correspondence().is_renamed
    small = certificate.aggregate().mdp
    assert small.names.actions is None
    assert small.state_name(0) == "a"


# -- names in words ----------------------------------------------------------------------------


def test_closest_states_are_told_by_name(lake: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = lake
    [named] = certificate.nearest(1)
    [plain] = certificate.nearest(1, env_mdp("lake4"))
    assert named == plain  # names do not count
    assert f"states {mdp.state_text(named.first)} and {mdp.state_text(named.second)}," in str(named)
    assert named.action is not None
    assert f"by action go {named.action}" in str(named)
    for s, t, _ in named.successors:
        assert f"{mdp.state_text(s)} and {mdp.state_text(t)} (" in str(named)
    assert f"states {plain.first} and {plain.second}, " in str(plain)
    assert f"by action {plain.action}:" in str(plain)


def test_states_with_other_actions_have_names_too() -> None:
    mdp = random_mdp(3, 2, seed=0).with_available([[True, True], [True, True], [True, False]])
    mdp = mdp.with_names(states="xyz")
    texts = [str(pair) for pair in certify(mdp, 0.5, tau=0.0).nearest(5)]
    assert any("2 (z)" in text and "different actions" in text for text in texts)


def test_what_is_open_is_told_by_name() -> None:
    mdp = called(env_mdp("lake4"))
    open_ = certify(mdp, 0.9, tau=0.05, method=Blocks(max_pairs=0, propose=("rewards",)))
    assert open_.undecided() is not None
    s, t = open_.undecided().example  # type: ignore[union-attr]
    assert f"states {mdp.state_text(s)} and {mdp.state_text(t)}, for instance" in open_.summary()
    bare = Certificate(**{**open_._fields(), "model": None})
    assert f"states {s} and {t}, for instance" in bare.summary()


def test_renamed_actions_are_told_by_name() -> None:
    plain = mirrored(6, noise=0.1)
    mdp = plain.with_names(actions=["left", "right"], states="abcdef")
    named = certify(mdp, 0.9, relation="lax", keep=0.99).correspondence()
    numbered = certify(plain, 0.9, relation="lax", keep=0.99).correspondence()
    assert "left as right, right as left" in str(named)
    assert "0 as 1, 1 as 0" in str(numbered)
    state = next(s for s in range(6) if any(a != b for a, b in named.of(s).items()))
    model = int(named.models[named.labels[state]])
    assert f"{mdp.state_text(state)} the first, as state {mdp.state_text(model)} with" in str(named)
    assert f"{state} the first, as state {model} with" in str(numbered)
    assert named.text(state) == "left as right, right as left"
    assert named.text(model) == "left as left, right as right"
    assert named.text(model, is_whole=False) == ""
    near = certify(mdp, 0.9, relation="lax", keep=0.99).nearest(5)
    assert all("0 as 1" not in str(pair) for pair in near)


def test_columns_of_frames(lake: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = lake
    columns = certificate.to_columns()
    assert list(columns)[:4] == ["state", "id", "row", "variable_cluster"]
    assert columns["row"].tolist() == mdp.names.variables[0].values.tolist()
    assert columns["variable_cluster"][3] == "=x3"
    assert columns["cluster"].tolist() == certificate.labels.tolist()
    assert columns["action_name"][0] == f"go {columns['action'][0]}"
    assert "row" not in certificate.to_columns(env_mdp("lake4"))
