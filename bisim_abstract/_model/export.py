"""`write_model`: a model as a file for other programs, for spreadsheets or for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract._base.atomic import check_writable, write_pieces
from bisim_abstract._base.checks import check_suffix
from bisim_abstract._base.csv_text import csv_pieces
from bisim_abstract._model.mdp import TabularMDP, check_mdp

__all__ = ["write_model"]

FORMAT = "bisim_abstract.Model"
VERSION = 1
STATES = 4_096  # of which rows and names are held at a time
ROW = ("state", "action", "next_state", "probability", "reward")


def write_model(mdp: TabularMDP, path: str | Path) -> Path:
    """Write a model, in the format that the file's name asks for by its ending.

    - `.npz`: all of it, as `TabularMDP.save` does; `read_model` reads it.
    - `.umb`: for model checkers: Storm, PRISM and Modest read it, and so does `read_model`.
    - `.json`: all of it, for people and for other programs: states, names of actions, and one row
      for each state and each action that it has.
    - `.csv`: one line per transition, with state, action, next state, probability and reward, and
      with names where there are any; the start and ids are not in it. Names that a spreadsheet
      would take for formulas have an apostrophe before them.

    Numbers in text read back exactly. Probabilities are those that are stored; a row stands for
    them divided by their sum. The file replaces an older one in one step.

    Args:
        mdp: The model.
        path: The file; its folder must exist.

    Returns:
        The path of the file.

    Raises:
        InvalidArgumentError: If the name ends in something else.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [0.5, 1.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(write_model(mdp, f"{folder}/model.csv").read_text().strip())
        state,action,next_state,probability,reward
        0,0,0,1.0,0.5
        1,0,1,1.0,1.0
    """
    check_mdp(mdp, call="write_model(mdp, path)")
    write = WRITERS[check_suffix("path", path, WRITERS)]
    check_writable(path)
    write(mdp, path)
    return Path(path)


def _write_npz(mdp: TabularMDP, path: str | Path) -> None:
    mdp.save(path)


def _write_umb(mdp: TabularMDP, path: str | Path) -> None:
    from bisim_abstract._model.umb import write_umb

    write_umb(mdp, path)


# -- CSV ---------------------------------------------------------------------------------------


def _write_csv(mdp: TabularMDP, path: str | Path) -> None:
    names, head = mdp.names, list(ROW)
    if names.variables:
        head += ["state_name", "next_state_name"]
    if names.actions is not None:
        head.append("action_name")
    write_pieces(path, csv_pieces(head, (_lines(mdp, *span) for span in _spans(mdp))))


def _lines(mdp: TabularMDP, begin: int, end: int) -> Iterator[Sequence[Any]]:
    """One line for each transition of some states."""
    names = mdp.names
    entries = slice(mdp.indptr[begin * mdp.n_actions], mdp.indptr[end * mdp.n_actions])
    successors = mdp.indices[entries]
    called: dict[int, str] = {}
    if names.variables:
        states = np.union1d(np.arange(begin, end), successors).tolist()
        called = {state: _state_name(mdp, state) for state in states}
    for state, action, reward, after, probs in _rows(mdp, begin, end):
        own = () if names.actions is None else (names.actions[action],)
        for next_state, prob in zip(after, probs, strict=True):
            line = (state, action, next_state, prob, reward)
            both = (called[state], called[next_state]) if called else ()
            yield (*line, *both, *own)


def _state_name(mdp: TabularMDP, state: int) -> str:
    return "the end" if state == mdp.terminal_state else mdp.names.state(state)


def _rows(
    mdp: TabularMDP, begin: int, end: int
) -> Iterator[tuple[int, int, float, list[int], list[float]]]:
    """State, action, reward, successors and probabilities of what some states can do."""
    ends = mdp.indptr[begin * mdp.n_actions : end * mdp.n_actions + 1]
    entries = slice(int(ends[0]), int(ends[-1]))
    after, probs = mdp.indices[entries].tolist(), mdp.probs[entries].tolist()
    rewards = mdp.rewards[begin:end].ravel().tolist()
    is_there = mdp.available[begin:end].ravel().tolist()
    for row, (first, last) in enumerate(pairwise((ends - ends[0]).tolist())):
        if is_there[row]:
            state, action = divmod(row, mdp.n_actions)
            yield begin + state, action, rewards[row], after[first:last], probs[first:last]


def _spans(mdp: TabularMDP) -> Iterator[tuple[int, int]]:
    for begin in range(0, mdp.n_states, STATES):
        yield begin, min(begin + STATES, mdp.n_states)


# -- JSON --------------------------------------------------------------------------------------


def _write_json(mdp: TabularMDP, path: str | Path) -> None:
    write_pieces(path, _json_pieces(mdp))


def _json_pieces(mdp: TabularMDP) -> Iterator[str]:
    names, estimate = mdp.names, mdp.estimate
    header = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": mdp.fingerprint,
        "n_states": mdp.n_states,
        "n_actions": mdp.n_actions,
        "terminal_state": mdp.terminal_state,
        "actions": None if names.actions is None else list(names.actions),
        "rewards": list(names.rewards),
        "labels": {name: np.flatnonzero(held).tolist() for name, held in names.labels.items()},
        "estimate": None if estimate is None else estimate.header(),
        "metadata": dict(mdp.metadata),
    }
    yield "{\n"
    for name, value in header.items():
        yield f"{json.dumps(name)}: {as_json(value)},\n"
    yield '"states": ['
    for span in _spans(mdp):
        yield _listed(_state_entries(mdp, *span), is_first=span[0] == 0)
    yield '\n],\n"rows": ['
    for span in _spans(mdp):
        yield _listed(_row_entries(mdp, *span), is_first=span[0] == 0)
    yield "\n]\n}\n"


def as_json(value: Any) -> str:
    """A JSON value on one line; numbers that are not finite are refused."""
    return json.dumps(value, allow_nan=False)


def _listed(entries: Iterator[dict[str, Any]], *, is_first: bool) -> str:
    lines = ",\n".join(as_json(entry) for entry in entries)
    return f"\n{lines}" if is_first else f",\n{lines}"


def _state_entries(mdp: TabularMDP, begin: int, end: int) -> Iterator[dict[str, Any]]:
    columns = {name: v.listed(begin, end) for name, v in mdp.names.columns().items()}
    for state in range(begin, end):
        entry: dict[str, Any] = {
            "state": state,
            "id": int(mdp.state_ids[state]),
            "start": float(mdp.start[state]),
        }
        if columns:
            entry["name"] = _state_name(mdp, state)
            values = {name: values[state - begin] for name, values in columns.items()}
            entry["variables"] = {name: v for name, v in values.items() if v is not None}
        yield entry


def _row_entries(mdp: TabularMDP, begin: int, end: int) -> Iterator[dict[str, Any]]:
    estimate = mdp.estimate
    for state, action, reward, after, probs in _rows(mdp, begin, end):
        entry: dict[str, Any] = {"state": state, "action": action, "reward": reward}
        entry |= {"next": after, "probability": probs}
        if estimate is not None:
            entry |= {
                name: getattr(estimate, name)[state, action].item()
                for name in ("counts", "reward_radius", "row_radius")
            }
        yield entry


WRITERS: dict[str, Callable[[TabularMDP, str | Path], None]] = {
    ".npz": _write_npz,
    ".json": _write_json,
    ".csv": _write_csv,
    ".umb": _write_umb,
}
