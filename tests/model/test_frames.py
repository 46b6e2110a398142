"""States as tables, clusters as graphs: against what they are made from."""

from __future__ import annotations

import io
import sys
from typing import Any

import networkx
import numpy as np
import pandas
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    NotCertifiedError,
    Reading,
    TabularMDP,
    aggregate,
    certify,
)
from bisim_abstract.errors import InvalidArgumentError, MissingDependency
from bisim_abstract.parts import random_mdp, sparse_mdp
from bisim_abstract.wrappers import extract_mdp


@pytest.fixture(scope="module")
def lake() -> tuple[TabularMDP, Certificate]:
    mdp = extract_mdp("FrozenLake-v1", reading=Reading(reachable_only=True))
    return mdp, certify(mdp, 0.9)


def test_columns_are_those_of_the_certificate(lake: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = lake
    value = certificate.value
    assert value is not None
    columns = certificate.to_columns()
    assert list(columns) == [
        "state",
        "id",
        "row",
        "column",
        "is_end",
        "cluster",
        "optimal_lower",
        "optimal_upper",
        "action",
        "policy_lower",
        "action_name",
    ]
    assert all(column.shape == (mdp.n_states,) for column in columns.values())
    assert columns["id"].tolist() == mdp.state_ids.tolist()
    assert np.flatnonzero(columns["is_end"]).tolist() == [mdp.terminal_state]
    assert columns["cluster"].tolist() == certificate.labels.tolist()
    assert columns["action"].tolist() == value.policy[value.labels].tolist()
    assert (columns["optimal_lower"] <= columns["optimal_upper"]).all()
    assert (columns["policy_lower"] <= columns["optimal_upper"]).all()


def test_what_is_not_known_is_left_out(lake: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = lake
    stored = certificate._changed(model=None)
    assert "id" not in stored.to_columns()
    assert stored.to_columns(mdp)["id"].tolist() == mdp.state_ids.tolist()
    with pytest.raises(InvalidArgumentError, match="another model"):
        stored.to_columns(random_mdp(4, seed=0))
    open_ = certify(
        sparse_mdp(12, 2, seed=0), 0.9, tau=0.4, max_rounds=1, method=Blocks(max_pairs=0)
    )
    assert not open_.is_certified
    columns = open_.to_columns()
    assert list(columns) == ["state", "id", "is_end", "cluster_lower", "cluster_upper"]
    assert not columns["is_end"].any()


def test_frames_where_pandas_is(lake: tuple[TabularMDP, Certificate]) -> None:
    _, certificate = lake
    frame = certificate.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    columns = certificate.to_columns()
    assert list(frame.columns) == list(columns)
    for name, column in columns.items():
        assert pandas.Series(column).equals(
            frame[name]
        )  # where a state has no value, both have none
    live = frame[~frame["is_end"]]
    assert live.groupby("cluster").size().tolist() == [x.size for x in certificate.clusters]
    frame["cluster"] = 0  # what is handed out is a copy
    assert certificate.to_columns()["cluster"].any()


def test_columns_where_pandas_is_not(
    lake: tuple[TabularMDP, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    frame = lake[1].to_frame()
    assert isinstance(frame, dict)
    assert frame["cluster"].tolist() == lake[1].labels.tolist()


def test_graphs_hold_the_model_over_clusters(lake: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = lake
    graph: Any = certificate.to_networkx()
    small = aggregate(mdp, certificate.labels)
    assert isinstance(graph, networkx.MultiDiGraph)
    assert set(graph.nodes) == set(range(small.mdp.n_states))
    end = small.mdp.terminal_state
    for cluster, data in graph.nodes(data=True):
        assert data["size"] == small.members(cluster).size
        assert data["representative"] == small.members(cluster)[0]
        assert data["is_end"] is (cluster == end)
        assert data["start"] == small.mdp.start[cluster]
        for action in range(small.mdp.n_actions):
            after, probs = small.mdp.successors(cluster, action)
            edges = {
                (t, data["probability"], data["reward"])
                for _, t, key, data in graph.out_edges(cluster, keys=True, data=True)
                if key == data["action"] == action
            }
            reward = small.mdp.rewards[cluster, action]
            truth = zip(after.tolist(), probs.tolist(), strict=True)
            expected = set() if cluster == end else {(t, p, reward) for t, p in truth}
            assert {(t, r) for t, _, r in edges} == {(t, r) for t, _, r in expected}
            np.testing.assert_allclose(sorted(p for _, p, _ in edges), sorted(probs[: len(edges)]))
    # Python's own numbers, which files of graphs can hold.
    networkx.write_graphml(graph, io.BytesIO())


def test_graphs_need_clusters_and_networkx(
    lake: tuple[TabularMDP, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp, certificate = lake
    with pytest.raises(InvalidArgumentError, match="model is not at hand"):
        certificate._changed(model=None).to_networkx()
    assert len(certificate._changed(model=None).to_networkx(mdp)) == certificate.n_clusters + 1
    plain = certificate._changed(tau=None, labels_lower=[], labels_upper=[], value=None)
    with pytest.raises(NotCertifiedError, match="no threshold"):
        plain.to_networkx()
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingDependency, match=r"-c constraints.txt -e '\.\[frames\]'"):
        certificate.to_networkx()


def test_neither_is_loaded_by_the_package() -> None:
    import subprocess

    code = (
        "import sys, bisim_abstract, bisim_abstract.parts\n"
        "print([name for name in ('pandas', 'networkx', 'IPython') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout.strip() == "[]"
