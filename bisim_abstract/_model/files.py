"""Reading and writing MDP files: our own `.npz` format, and what others write. Never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_int
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.npz import Archive, Forms, write_npz
from bisim_abstract._base.tarball import is_tarball
from bisim_abstract._base.text import plain_text
from bisim_abstract._base.untrusted import parse_text, plain_values
from bisim_abstract._model.estimation import Estimate
from bisim_abstract._model.explicit import RewardLike
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import Names
from bisim_abstract._model.storm import PRISM, SUFFIXES, Constant, build_model
from bisim_abstract._model.umb import read_umb
from bisim_abstract.errors import FileFormatError, InvalidArgumentError, InvalidMDPError

__all__ = ["read_bridge", "read_model"]

FORMAT = "bisim_abstract.TabularMDP"
VERSION = 3
BRIDGE_BYTES = 128  # per state and action while a model is made: measured, and rounded up
BLOCKS = ("blocks", "block_radius")  # of estimates that know of any
ARRAYS = ("indptr", "indices", "probs", "rewards", "available", "start", "state_ids")
# Shapes of all arrays, as docs/certificate-format.md has them.
SHAPES = {
    "indptr": "n*A+1",
    **dict.fromkeys(("indices", "probs"), "e"),
    **dict.fromkeys(("rewards", "available"), "n A"),
    **dict.fromkeys(("start", "state_ids", "estimate_blocks"), "n"),
    **{
        f"estimate_{name}": "n A"
        for name in ("counts", "reward_radius", "row_radius", "block_radius")
    },
    "names_values": "v n|0",
    "names_labels": "l b|0",
}
MOST = {"e": "n*n*A", "b": "n"}  # labels are bits


def save_mdp(mdp: TabularMDP, path: str | Path, *, compress: bool) -> None:
    """Write `mdp` to exactly this path (NumPy alone would append `.npz`)."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "terminal_state": mdp.terminal_state,
        "estimate": None if mdp.estimate is None else mdp.estimate.header(),
        "names": mdp.names.header(),
        "metadata": dict(mdp.metadata),
        "fingerprint": mdp.fingerprint,
    }
    arrays: dict[str, npt.NDArray[Any]] = {name: getattr(mdp, name) for name in ARRAYS}
    arrays |= {f"names_{name}": array for name, array in mdp.names.arrays().items()}
    if mdp.estimate is not None:
        names = ("counts", "reward_radius", "row_radius")
        arrays |= {
            f"estimate_{name}": array
            for name, array in zip(names, mdp.estimate.arrays(), strict=True)
        }
        of_blocks = zip(BLOCKS, mdp.estimate.block_arrays(), strict=False)
        arrays |= {f"estimate_{name}": array for name, array in of_blocks}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    write_npz(path, arrays, compress=compress)


def load_mdp(path: str | Path) -> TabularMDP:
    """Read a file written by `save_mdp`, checking everything."""
    with Archive(path) as archive:
        return _ours(path, archive)


def read_model(
    path: str | Path,
    *,
    constants: Mapping[str, Constant] | None = None,
    reward: RewardLike | None = None,
    goal: str | None = None,
    actions: str = "names",
) -> TabularMDP:
    """Read a model from a file, whichever program wrote it.

    These are read: what `TabularMDP.save` writes, BRIDGE files, UMB (of PRISM, Storm and Modest),
    and, if stormpy is installed, models in PRISM's language (`.nm`, `.pm`, `.sm`, `.prism`), JANI
    (`.jani`) and DRN (`.drn`). The options are for files of model checkers.

    Args:
        path: The file.
        constants: Values of constants that a PRISM or JANI model leaves open.
        reward: Which of the file's rewards is paid; the only one by default. What states pay,
            every action of theirs pays. A minus before the name makes it a cost. Several, as a
            list of names or a mapping to weights, are kept side by side: the distance of two
            states is then the largest weighted difference (see `TabularMDP.for_reward`).
        goal: A label of the file: states that have it become absorbing. Where no reward is named,
            entering one of them pays 1.
        actions: Which choices of different states are the same action: those of one name, or with
            "positions" the first ones, the second ones and so on. Storm compares choices by their
            positions: its numbers of classes are those of "positions".

    Raises:
        FileFormatError: If it is none of these, or damaged.
        InvalidArgumentError: If the options do not fit to the file.
        MissingDependency: If it needs stormpy, which is not installed.
    """
    options = {"reward": reward, "goal": goal}
    suffix = Path(path).suffix.lower()
    metadata: dict[str, Any] = {"file": plain_text(Path(path).name), "actions": actions}
    metadata |= {key: value for key, value in options.items() if value is not None}
    if suffix in SUFFIXES:
        metadata["source"] = "PRISM" if suffix in PRISM else suffix[1:].upper()
        metadata["constants"] = dict(constants or {})
        explicit = build_model(path, constants=constants)
    elif is_tarball(path):
        metadata["source"] = "UMB"
        if constants:
            raise InvalidArgumentError(f"{path} is a UMB file, which has no constants to set")
        explicit = read_umb(path)
    else:
        given = [name for name, value in options.items() if value is not None]
        given += ["constants"] if constants else []
        given += ["actions"] if actions != "names" else []
        if given:
            raise InvalidArgumentError(
                f"{path} is an .npz file, in which {' and '.join(given)} cannot be chosen: that is "
                "for UMB, PRISM and JANI"
            )
        return _archive(path)
    try:
        return explicit.to_mdp(reward=reward, goal=goal, actions=actions, metadata=metadata)
    except InvalidMDPError as error:
        raise FileFormatError(f"{path} does not describe an MDP: {error}") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None


def _archive(path: str | Path) -> TabularMDP:
    with Archive(path) as archive:
        if "header" not in archive.claims and "transitions" in archive.claims:
            return _bridge(path, archive, 0)
        return _ours(path, archive)


def _ours(path: str | Path, archive: Archive) -> TabularMDP:
    if "header" not in archive.claims:
        is_bridge = "transitions" in archive.claims
        kind = "a BRIDGE file: use read_bridge" if is_bridge else "not ours"
        raise FileFormatError(f"{path} holds no TabularMDP ({kind})")
    try:
        header = parse_text(archive.header_text())
        if header["format"] != FORMAT:
            raise FileFormatError(f"{path} holds a {header['format']}, not a {FORMAT}")
        if header["version"] != VERSION:
            raise FileFormatError(
                f"{path} is of format version {header['version']}; this release reads {VERSION}"
            )
        count = {"v": len(header["names"]["variables"]), "l": len(header["names"]["labels"])}
        archive.check(Forms(SHAPES, known=count, most=MOST, is_open=True))
        arrays = archive.read(but=set(archive.claims) - set(SHAPES))
        estimate = None
        if header["estimate"] is not None:
            estimate = Estimate(
                counts=arrays["estimate_counts"],
                reward_radius=arrays["estimate_reward_radius"],
                row_radius=arrays["estimate_row_radius"],
                blocks=arrays.get("estimate_blocks"),
                block_radius=arrays.get("estimate_block_radius"),
                **header["estimate"],
            )
        mdp = TabularMDP(
            **{name: arrays[name] for name in ARRAYS},
            terminal_state=header["terminal_state"],
            estimate=estimate,
            names=Names.from_parts(
                header["names"],
                arrays["names_values"],
                arrays["names_labels"],
                len(arrays["rewards"]),
            ),
            metadata=plain_values(header["metadata"]),
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
    with Archive(path) as archive:
        return _bridge(path, archive, start)


def _bridge(path: str | Path, archive: Archive, start: int) -> TabularMDP:
    claims = archive.claims
    for name in ("transitions", "rewards"):
        if name not in claims:
            listed = ", ".join(sorted(claims)) or "nothing"
            raise FileFormatError(f"{path} has no array {name!r}; it holds {listed}")
    # What they claim to be is enough to refuse them: nothing is unpacked yet.
    successor, rewards = claims["transitions"], claims["rewards"]
    if len(successor.shape) != 2 or successor.dtype.kind not in "iu" or 0 in successor.shape:
        raise FileFormatError(
            f"{path}: transitions must be whole numbers of shape (n_states, n_actions), "
            f"got {successor}"
        )
    if rewards.shape != successor.shape or rewards.dtype.kind not in "iuf":
        raise FileFormatError(
            f"{path}: rewards must be numbers of shape {successor.shape}, got {rewards}"
        )
    n_states, n_actions = successor.shape
    check_memory(
        BRIDGE_BYTES * n_states * n_actions,
        what=f"the model in {path}",
        instead="split it, or use a larger machine",
    )
    start = check_int("start", start, low=0, high=n_states - 1)
    first = np.zeros(n_states + 1)
    first[start] = 1.0
    arrays = archive.read(but=set(claims) - {"transitions", "rewards"})
    following, paid = arrays["transitions"], arrays["rewards"]
    if following.max() >= n_states:  # before the cast, which would make 2**64 - 1 a -1
        entry = int(following.argmax())
        raise FileFormatError(
            f"{path}: next states must lie in [-1, {n_states}), got {following.flat[entry]} at "
            f"state {entry // n_actions}, action {entry % n_actions}"
        )
    flat = following.astype(np.int64).ravel()
    indices = np.concatenate([np.where(flat == -1, n_states, flat), np.full(n_actions, n_states)])
    with np.errstate(over="ignore"):  # what becomes infinite is refused as such
        paid = paid.astype(np.float64)
    try:
        return TabularMDP(
            indptr=np.arange(indices.size + 1),
            indices=indices,
            probs=np.ones(indices.size),
            rewards=np.vstack([paid, np.zeros((1, n_actions))]),
            start=first,
            terminal_state=n_states,
            metadata={"source": "BRIDGE", "file": plain_text(Path(path).name)},
        )
    except InvalidMDPError as error:
        raise FileFormatError(f"{path} does not describe an MDP: {error}") from error
