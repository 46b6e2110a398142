"""Reading and writing MDP files: our own `.npz` format and BRIDGE's. Never a pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_int
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.npz import read_npz, write_npz
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.errors import FileFormatError, InvalidArgumentError, InvalidMDPError

__all__ = ["read_bridge", "read_model"]

FORMAT = "bisim_abstract.TabularMDP"
VERSION = 2
BRIDGE_BYTES = 128  # per state and action while a model is made: measured, and rounded up
Arrays = dict[str, npt.NDArray[Any]]
ARRAYS = ("indptr", "indices", "probs", "rewards", "available", "start", "state_ids")


def save_mdp(mdp: TabularMDP, path: str | Path, *, compress: bool) -> None:
    """Write `mdp` to exactly this path (NumPy alone would append `.npz`)."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "terminal_state": mdp.terminal_state,
        "estimate": None if mdp.estimate is None else mdp.estimate.header(),
        "metadata": dict(mdp.metadata),
        "fingerprint": mdp.fingerprint,
    }
    arrays: dict[str, npt.NDArray[Any]] = {name: getattr(mdp, name) for name in ARRAYS}
    if mdp.estimate is not None:
        names = ("counts", "reward_radius", "row_radius")
        arrays |= {
            f"estimate_{name}": array
            for name, array in zip(names, mdp.estimate.arrays(), strict=True)
        }
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    write_npz(path, arrays, compress=compress)


def load_mdp(path: str | Path) -> TabularMDP:
    """Read a file written by `save_mdp`, checking everything."""
    return _ours(path, read_npz(path))


def read_model(path: str | Path) -> TabularMDP:
    """Read a model from a file of either kind: `TabularMDP.save`'s or BRIDGE's.

    Args:
        path: The file.

    Raises:
        FileFormatError: If it is neither, or damaged.
    """
    arrays = read_npz(path)
    if "header" not in arrays and "transitions" in arrays:
        return _bridge(path, arrays, 0)
    return _ours(path, arrays)


def _ours(path: str | Path, arrays: Arrays) -> TabularMDP:
    if "header" not in arrays:
        kind = "a BRIDGE file: use read_bridge" if "transitions" in arrays else "not ours"
        raise FileFormatError(f"{path} holds no TabularMDP ({kind})")
    try:
        header = json.loads(arrays["header"].tobytes().decode())
        if header["format"] != FORMAT:
            raise FileFormatError(f"{path} holds a {header['format']}, not a {FORMAT}")
        if header["version"] != VERSION:
            raise FileFormatError(
                f"{path} is of format version {header['version']}; this release reads {VERSION}"
            )
        estimate = None
        if header["estimate"] is not None:
            estimate = Estimate(
                counts=arrays["estimate_counts"],
                reward_radius=arrays["estimate_reward_radius"],
                row_radius=arrays["estimate_row_radius"],
                **header["estimate"],
            )
        mdp = TabularMDP(
            **{name: arrays[name] for name in ARRAYS},
            terminal_state=header["terminal_state"],
            estimate=estimate,
            metadata=header["metadata"],
        )
        stored = header["fingerprint"]
    except InvalidArgumentError as error:
        raise FileFormatError(f"{path} does not describe an MDP: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} has a damaged header: {error!r}") from error
    if mdp.fingerprint != stored:
        raise FileFormatError(f"{path} was changed after it was written: its fingerprint differs")
    return mdp


def read_bridge(path: str | Path, *, start: int = 0) -> TabularMDP:
    """Read a BRIDGE file: a deterministic tabular MDP of an Atari, Procgen or MiniGrid game.

    Args:
        path: An `.npz` with `transitions` (n_states, n_actions), -1 for the end of the
            episode, and `rewards` of the same shape. Other arrays are ignored.
        start: The start state.

    Returns:
        The MDP with one added absorbing state that every -1 leads to.

    Raises:
        FileFormatError: If the file is damaged or an array is missing or misshapen.
    """
    return _bridge(path, read_npz(path), start)


def _bridge(path: str | Path, arrays: Arrays, start: int) -> TabularMDP:
    for name in ("transitions", "rewards"):
        if name not in arrays:
            listed = ", ".join(sorted(arrays)) or "nothing"
            raise FileFormatError(f"{path} has no array {name!r}; it holds {listed}")
    successor, rewards = arrays["transitions"], arrays["rewards"]
    if successor.ndim != 2 or successor.dtype.kind not in "iu" or successor.size == 0:
        raise FileFormatError(
            f"{path}: transitions must be whole numbers of shape (n_states, n_actions), "
            f"got {successor.dtype} of shape {successor.shape}"
        )
    if rewards.shape != successor.shape or rewards.dtype.kind not in "iuf":
        raise FileFormatError(
            f"{path}: rewards must be numbers of shape {successor.shape}, "
            f"got {rewards.dtype} of shape {rewards.shape}"
        )
    n_states, n_actions = successor.shape
    check_memory(
        BRIDGE_BYTES * successor.size,
        what=f"the model in {path}",
        instead="split it, or use a larger machine",
    )
    start = check_int("start", start, low=0, high=n_states - 1)
    first = np.zeros(n_states + 1)
    first[start] = 1.0
    if successor.max() >= n_states:  # before the cast, which would make 2**64 - 1 a -1
        entry = int(successor.argmax())
        raise FileFormatError(
            f"{path}: next states must lie in [-1, {n_states}), got {successor.flat[entry]} at "
            f"state {entry // n_actions}, action {entry % n_actions}"
        )
    flat = successor.astype(np.int64).ravel()
    indices = np.concatenate([np.where(flat == -1, n_states, flat), np.full(n_actions, n_states)])
    with np.errstate(over="ignore"):  # what becomes infinite is refused as such
        paid = rewards.astype(np.float64)
    try:
        return TabularMDP(
            indptr=np.arange(indices.size + 1),
            indices=indices,
            probs=np.ones(indices.size),
            rewards=np.vstack([paid, np.zeros((1, n_actions))]),
            start=first,
            terminal_state=n_states,
            metadata={"source": "BRIDGE", "file": Path(path).name},
        )
    except InvalidMDPError as error:
        raise FileFormatError(f"{path} does not describe an MDP: {error}") from error
