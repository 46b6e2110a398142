"""Models for other programs: what is written reads back as it was."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import InvalidArgumentError, TabularMDP, read_model, write_model
from bisim_abstract._base.atomic import write_pieces
from bisim_abstract._model import export
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.names import UNKNOWN, Names, Variable
from bisim_abstract.parts import random_mdp, sparse_mdp
from tests.support.certificates import estimated
from tests.support.models import env_mdp
from tests.support.renaming import with_random_actions


def named(mdp: TabularMDP) -> TabularMDP:
    n = mdp.n_states
    column = np.arange(n)
    column[0] = UNKNOWN
    variables = (
        Variable(name="row", values=np.arange(n) // 3),
        Variable(name="column", values=column),
        Variable(name="", values=np.arange(n) % 2, words=("=even", 'odd, "x"')),
    )
    labels = {"goal": np.arange(n) == 1}
    actions = tuple(f"-go {a}" for a in range(mdp.n_actions))
    return replace(mdp, names=Names(actions=actions, variables=variables, labels=labels))


def models() -> list[TabularMDP]:
    rng = np.random.default_rng(0)
    return [
        random_mdp(4, 2, seed=0),
        named(sparse_mdp(9, 3, support=2, seed=1)),
        named(env_mdp("lake4")),
        named(with_random_actions(random_mdp(6, 3, seed=2), rng)),
        estimated(random_mdp(4, 2, seed=3)),
    ]


def from_json(document: dict[str, Any]) -> TabularMDP:
    """The model that a file tells of, by nothing but the file."""
    n, a = document["n_states"], document["n_actions"]
    rows: list[tuple[list[int], list[float]]] = [([0], [1.0])] * (n * a)
    rewards, available = np.zeros((n, a)), np.zeros((n, a), bool)
    counts, reward_radius, row_radius = np.zeros((3, n, a))
    for row in document["rows"]:
        at = row["state"], row["action"]
        rows[at[0] * a + at[1]] = row["next"], row["probability"]
        rewards[at], available[at] = row["reward"], True
        if document["estimate"] is not None:
            counts[at], reward_radius[at] = row["counts"], row["reward_radius"]
            row_radius[at] = row["row_radius"]
    estimate = None
    if document["estimate"] is not None:
        estimate = Estimate(
            counts=counts.astype(np.int64),
            reward_radius=reward_radius,
            row_radius=row_radius,
            **document["estimate"],
        )
    return TabularMDP.from_rows(
        np.cumsum([0, *(len(after) for after, _ in rows)]),
        np.concatenate([after for after, _ in rows]),
        np.concatenate([probs for _, probs in rows]),
        rewards,
        available=None if available.all() else available,
        start=[entry["start"] for entry in document["states"]],
        state_ids=[entry["id"] for entry in document["states"]],
        terminal_state=document["terminal_state"],
        estimate=estimate,
    )


@pytest.mark.parametrize("chunk", [1, 2, 4096])
@pytest.mark.parametrize("k", range(5))
def test_json_holds_all_of_a_model(
    k: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "STATES", chunk)
    mdp = models()[k]
    path = write_model(mdp, tmp_path / "m.json")
    document = json.loads(path.read_bytes())
    assert from_json(document).fingerprint == mdp.fingerprint == document["fingerprint"]
    assert document["metadata"] == json.loads(json.dumps(dict(mdp.metadata)))
    names = mdp.names
    assert document["actions"] == (None if names.actions is None else list(names.actions))
    for entry in document["states"]:
        if names.variables and entry["state"] != mdp.terminal_state:
            assert entry["name"] == mdp.state_name(entry["state"])
        assert ("name" in entry) == bool(names.variables)
    if names.variables:
        assert document["labels"] == {"goal": [1]}
        assert document["states"][0]["variables"] == {"row": 0, "name": "=even"}
        assert document["states"][1]["variables"]["column"] == 1


@pytest.mark.parametrize("chunk", [1, 4096])
@pytest.mark.parametrize("k", range(5))
def test_csv_holds_all_transitions(
    k: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "STATES", chunk)
    mdp = models()[k]
    with open(write_model(mdp, tmp_path / "m.csv"), newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == int(np.diff(mdp.indptr)[mdp.available.ravel()].sum())
    seen = set()
    for key, group in groupby(lines, key=lambda line: (int(line["state"]), int(line["action"]))):
        own = list(group)
        after, probs = mdp.successors(*key)
        assert [int(line["next_state"]) for line in own] == after.tolist()
        assert [float(line["probability"]) for line in own] == probs.tolist()
        assert {float(line["reward"]) for line in own} == {mdp.rewards[key]}
        seen.add(key)
        for line in own:
            if mdp.names.actions is not None:
                assert line["action_name"] == f"'{mdp.names.actions[key[1]]}"
            if mdp.names.variables:
                for name in ("state", "next_state"):
                    assert line[f"{name}_name"] == mdp.state_name(int(line[name]))
    assert seen == {tuple(at) for at in np.argwhere(mdp.available).tolist()}


def test_a_model_without_names_has_five_columns(tmp_path: Path) -> None:
    path = write_model(random_mdp(2, 1, seed=0), tmp_path / "m.csv")
    assert path.read_text().splitlines()[0] == "state,action,next_state,probability,reward"


def test_npz_is_what_save_writes(tmp_path: Path) -> None:
    mdp = named(env_mdp("lake4"))
    found = read_model(write_model(mdp, tmp_path / "M.NPZ"))
    assert found == mdp
    assert found.state_name(3) == mdp.state_name(3)


def test_umb_is_read_back(tmp_path: Path) -> None:
    mdp = named(sparse_mdp(9, 3, support=2, seed=1))
    found = read_model(write_model(mdp, tmp_path / "m.umb"))
    assert found.rewards.tolist() == mdp.rewards.tolist()
    assert found.probs.tolist() == mdp.probs.tolist()
    assert found.names.actions == mdp.names.actions


@pytest.mark.parametrize("name", ["m.txt", "m", "m.json.gz", "npz", ".csv"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must end in \.npz, \.json, \.csv or \.umb"):
        write_model(random_mdp(2, 1, seed=0), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_arguments(tmp_path: Path) -> None:
    mdp = random_mdp(2, 1, seed=0)
    with pytest.raises(InvalidArgumentError, match="mdp must be a TabularMDP"):
        write_model("m.csv", mdp)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="name of a file"):
        write_model(mdp, 3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        write_model(mdp, tmp_path / "missing" / "m.csv")


def test_what_fails_half_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.csv"
    path.write_text("old")

    def broken(*args: Any) -> Any:
        yield (0, 0, 0, 1.0, 0.0)
        raise RuntimeError("broken")

    monkeypatch.setattr(export, "_lines", broken)
    with pytest.raises(RuntimeError):
        write_model(random_mdp(2, 1, seed=0), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_names_of_many_states_are_not_held_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large a model is, no more texts live at a time than a chunk of states needs."""
    n = 300
    P = np.minimum(np.arange(n) + 1, n - 1)[:, None]
    mdp = TabularMDP.from_rows(np.arange(n + 1), P.ravel(), np.ones(n), np.ones((n, 1)))
    mdp = mdp.with_names(states={"x": np.arange(n)})
    monkeypatch.setattr(export, "STATES", 10)
    most = 0

    def watched(path: Path, given: Any) -> None:
        def each() -> Any:
            nonlocal most
            for piece in given:
                most = max(most, len(piece))
                yield piece

        write_pieces(path, each())

    monkeypatch.setattr(export, "write_pieces", watched)
    for name in ("m.csv", "m.json"):
        write_model(mdp, tmp_path / name)
    assert most < 10 * 120
