"""UMB, the Unified Markov Binary format of PRISM, Storm and Modest, read and written by NumPy.

A UMB file is a tar archive (plain, or packed by gzip or xz) of a JSON index and flat arrays. The
specification is at https://github.com/pmc-tools/umb. Nothing in a file is trusted: every array must
have the size that the index says before it is looked at, and all numbers are checked.

What UMB cannot say is kept in annotations of our own group, which other tools pass over: a start
distribution that is not uniform, ids of states, and which state is the end of episodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.tarball import read_tarball, write_tarball
from bisim_abstract._base.text import plain_text
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray
from bisim_abstract._base.untrusted import parse_json
from bisim_abstract._model.explicit import ExplicitModel, Reward, check_csr
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import TRUTH, UNKNOWN, Variable, paid_in
from bisim_abstract._version import __version__
from bisim_abstract.errors import FileFormatError, InvalidArgumentError, InvalidMDPError

FORMAT_VERSION = 1
OURS = "bisim-abstract"  # our group of annotations
CHUNK_BITS = 2**28  # of valuations that are unpacked at a time, a byte each
LONGEST_ID = 64  # characters: a name in a tar archive has 100, and as many before it
SIZE_BYTES = 32  # per state, choice and branch while they are checked
EXACT = ("rational", "rational-interval")
INTERVALS = ("double-interval", "int-interval", "uint-interval")
SIZES = {"bool": 1, "int": 64, "uint": 64, "double": 64, "string": 64}
DTYPES = {"int": "<i8", "uint": "<u8", "double": "<f8"}


# -- reading -----------------------------------------------------------------------------------


def read_umb(path: str | Path) -> ExplicitModel:
    """The model in a UMB file.

    Raises:
        FileFormatError: If the file is damaged, or holds what a `TabularMDP` cannot be made of.
    """
    files = read_tarball(path)
    try:
        return _Reader(path, files).model()
    except InvalidMDPError as error:
        raise FileFormatError(f"{path} does not describe an MDP: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} has a damaged index: {error!r}") from error


class _Reader:
    """The files of one archive, looked at one by one."""

    def __init__(self, path: str | Path, files: Mapping[str, bytes]) -> None:
        self.path, self.files = path, files
        if "index.json" not in files:
            raise FileFormatError(f"{path} is no UMB file: it holds no index.json")
        self.index: dict[str, Any] = parse_json(files["index.json"], path)
        if self.index["format-version"] != FORMAT_VERSION:
            raise FileFormatError(
                f"{path} is of UMB version {self.index['format-version']!r}; this release reads "
                f"{FORMAT_VERSION}"
            )
        system = self.index["transition-system"]
        self.n_states = self._count(system, "#states")
        self.n_choices = self._count(system, "#choices")
        self.n_branches = self._count(system, "#branches")
        self.n_actions = self._count(system, "#choice-actions")
        self._check_kind(system)

    def model(self) -> ExplicitModel:
        """All of it that an MDP has."""
        n = self.n_states
        # Branches first: there are no more of them than the file has numbers for. That each choice
        # has one, and each state one choice, may go without saying.
        targets = self._numbers("branch-to-target.bin", self.n_branches, "<u8")
        branches = self._csr("choice-to-branches.bin", self.n_choices, self.n_branches)
        choices = self._csr("state-to-choices.bin", n, self.n_choices)
        self._check_memory()
        if targets.size and targets.max() >= n:
            raise FileFormatError(f"{self.path}: a branch leads to state {targets.max()} of {n}")
        probs = self._numbers("branch-to-probability.bin", self.n_branches, "<f8")
        if not np.isfinite(probs).all() or (probs < 0.0).any():
            raise FileFormatError(f"{self.path} holds probabilities that are no numbers from 0 on")
        lengths = np.diff(branches)
        sums = np.bincount(np.repeat(np.arange(lengths.size), lengths), probs, lengths.size)
        if (lengths == 0).any() or (sums <= 0.0).any():
            where = int(np.argmax((lengths == 0) | (sums <= 0.0)))
            raise FileFormatError(f"{self.path}: choice {where} leads nowhere")
        initial = self._bits("state-is-initial.bin", n)
        if not initial.any():
            raise FileFormatError(f"{self.path} has no initial state")
        actions, action_names = self._actions()
        own = self.index.get("annotations", {}).get(OURS, {})
        start = initial / initial.sum()
        if "start" in own:
            start = self._annotation(OURS, "start", "states", n)
        ends = np.zeros(0, np.int64)
        if "end" in own:
            ends = np.flatnonzero(self._annotation(OURS, "end", "states", n))
        return ExplicitModel(
            choices=choices,
            branches=branches,
            targets=targets.astype(np.int64),
            probs=probs,
            start=start,
            choice_actions=actions,
            action_names=action_names,
            rewards={name: self._reward(key) for key, name in self._aliases("rewards")},
            labels={
                name: self._annotation("aps", key, "states", n).astype(bool)
                for key, name in self._aliases("aps")
            },
            variables=self._variables(),
            state_ids=self._annotation(OURS, "id", "states", n) if "id" in own else None,
            terminal_state=int(ends[0]) if ends.size else None,
        )

    def _check_memory(self) -> None:
        """Refuse what would not fit once it is unpacked: some bits of a file become 8 bytes each.

        What is made of the model afterwards is counted where it is made.
        """
        annotations = self.index.get("annotations", {})
        described = self.index.get("valuations", {}).get("states") or {"classes": []}
        n_labels = len(annotations.get("aps", {}))
        n_variables = sum(len(each["variables"]) for each in described["classes"])
        # A label is unpacked to bytes and copied as truth values; a variable and what it is
        # decoded from have 8 bytes each; each reward may be one of states, choices and branches.
        counts = self.n_states + self.n_choices + self.n_branches
        check_memory(
            self.n_states * (2 * n_labels + 24 * n_variables)
            + counts * (SIZE_BYTES + 16 * len(annotations.get("rewards", {}))),
            what=f"the model in {self.path}, {self.n_states:,} states,",
            instead="write it with fewer labels or variables, or use a larger machine",
        )

    def _check_kind(self, system: Mapping[str, Any]) -> None:
        """Refuse what is no Markov chain or MDP with floating-point numbers, in one sentence."""
        if system["time"] != "discrete":
            raise FileFormatError(
                f"{self.path} holds a model in continuous time ({system['time']}); only Markov "
                "chains and MDPs in discrete time are read"
            )
        if system["#players"] not in (0, 1):
            raise FileFormatError(
                f"{self.path} holds a game of {system['#players']} players; only Markov chains "
                "and MDPs are read"
            )
        if system.get("#observations", 0):
            raise FileFormatError(
                f"{self.path} holds a model with observations (a POMDP), whose states an agent "
                "does not see; only Markov chains and MDPs are read"
            )
        kind = system.get("branch-probability-type")
        if kind is None:
            raise FileFormatError(f"{self.path} holds a model without probabilities")
        self._check_double("probabilities", kind)

    def _check_double(self, what: str, kind: Mapping[str, Any]) -> None:
        name = kind["type"]
        if name in EXACT or name in INTERVALS:
            raise FileFormatError(
                f"{self.path} holds {what} as values of type {name}; only floating-point numbers "
                "(double) are read: write it again with those"
            )
        if name != "double" or kind.get("size", 64) != 64:
            raise FileFormatError(f"{self.path} holds {what} of unknown type {kind!r}")

    def _count(self, system: Mapping[str, Any], key: str) -> int:
        value = system[key]
        if type(value) is not int or not 0 <= value < 2**48:
            raise FileFormatError(f"{self.path}: {key} must be a whole number, got {value!r}")
        return value

    def _numbers(self, name: str, count: int, dtype: str) -> npt.NDArray[Any]:
        if name not in self.files:
            raise FileFormatError(f"{self.path} lacks {name}")
        data, size = self.files[name], count * np.dtype(dtype).itemsize
        if len(data) != size:
            raise FileFormatError(
                f"{self.path}: {name} must have {size:,} bytes for {count:,} values, has "
                f"{len(data):,}"
            )
        return np.frombuffer(data, dtype)

    def _bits(self, name: str, count: int) -> BoolArray:
        if name not in self.files:
            return np.zeros(count, bool)
        words = self._numbers(name, (count + 63) // 64, "<u8")
        return np.unpackbits(words.view(np.uint8), count=count, bitorder="little").astype(bool)

    def _csr(self, name: str, count: int, size: int) -> IntArray:
        """Where the parts of `size` things begin; one each where the file is left out."""
        if name not in self.files:
            if count != size:
                raise FileFormatError(f"{self.path} lacks {name}, without which {count} != {size}")
            return np.arange(count + 1)
        begins = self._numbers(name, count + 1, "<u8")
        if begins.max() > size:
            raise FileFormatError(f"{self.path}: {name} goes beyond {size}")
        begins = begins.astype(np.int64)
        check_csr(name, begins, size)
        return begins

    def _strings(self, folder: str, count: int) -> list[str]:
        begins = self._csr(
            f"{folder}/string-mapping.bin", count, self._length(f"{folder}/strings.bin")
        )
        data = self.files[f"{folder}/strings.bin"]
        ends = begins.tolist()
        return [plain_text(data[i:j].decode()) for i, j in pairwise(ends)]

    def _length(self, name: str) -> int:
        if name not in self.files:
            raise FileFormatError(f"{self.path} lacks {name}")
        return len(self.files[name])

    def _actions(self) -> tuple[IntArray | None, tuple[str, ...] | None]:
        folder = "actions/choices"
        if not self.n_actions:
            return None, None
        values = np.zeros(self.n_choices, np.int64)
        if f"{folder}/values.bin" in self.files:
            values = self._numbers(f"{folder}/values.bin", self.n_choices, "<u4").astype(np.int64)
        if values.size and values.max() >= self.n_actions:
            raise FileFormatError(f"{self.path}: a choice has action {values.max()}")
        if f"{folder}/string-mapping.bin" not in self.files:
            return values, None
        return values, tuple(self._strings(folder, self.n_actions))

    def _aliases(self, group: str) -> list[tuple[str, str]]:
        """Identifiers of a group's annotations, with the names that people know them by."""
        found: dict[str, str] = {}
        for key, entry in self.index.get("annotations", {}).get(group, {}).items():
            name = plain_text(str(entry.get("alias", key)))
            if name in found.values():
                raise FileFormatError(f"{self.path} has two {group} called {name!r}")
            found[str(key)] = name
        return list(found.items())

    def _annotation(self, group: str, key: str, entity: str, count: int) -> npt.NDArray[Any]:
        entry = self.index["annotations"][group][key]
        what = f"{group} {plain_text(key)!r}"
        if "probability-type" in entry:
            raise FileFormatError(f"{self.path} holds {what} as distributions")
        kind, name = entry["type"], f"annotations/{group}/{key}/{entity}/values.bin"
        if kind["type"] == "bool":
            return self._bits(name, count)
        if kind["type"] in ("int", "uint") and kind.get("size", 64) == 64:
            if name not in self.files:
                return np.zeros(count, np.int64)
            return self._numbers(name, count, "<i8").astype(np.int64)
        self._check_double(what, kind)
        return self._numbers(name, count, "<f8") if name in self.files else np.zeros(count)

    def _reward(self, key: str) -> Reward:
        entry = self.index["annotations"]["rewards"][key]
        counts = {"states": self.n_states, "choices": self.n_choices, "branches": self.n_branches}
        parts: dict[str, FloatArray] = {}
        for entity in entry["applies-to"]:
            if entity not in counts:
                raise FileFormatError(f"{self.path}: reward {key!r} applies to {entity!r}")
            values = self._annotation("rewards", key, entity, counts[entity])
            parts[entity] = values.astype(np.float64)
            if not np.isfinite(parts[entity]).all():
                raise FileFormatError(
                    f"{self.path}: reward {plain_text(key)!r} is not finite everywhere"
                )
        return Reward(**parts)

    # -- valuations ----------------------------------------------------------------------------

    def _variables(self) -> tuple[Variable, ...]:
        """The variables of states. Those that are no whole numbers or words are left out."""
        described = self.index.get("valuations", {}).get("states")
        folder = "valuations/states"
        if described is None:
            return ()
        if len(described["classes"]) != 1 or f"{folder}/valuation-to-class.bin" in self.files:
            return ()  # states of several kinds have no variables in common
        fields, bits = _layout(described["classes"][0]["variables"])
        if bits % 8:
            raise FileFormatError(f"{self.path}: valuations have {bits} bits, not whole bytes")
        words: tuple[str, ...] = ()
        if "#strings" in described:
            words = tuple(self._strings(folder, self._count(described, "#strings")))
        size = bits // 8
        data = self._numbers(f"{folder}/valuations.bin", self.n_states * size, "u1")
        values = {name: np.empty(self.n_states, np.int64) for name, *_ in fields}
        rows = data.reshape(self.n_states, size)
        step = max(CHUNK_BITS // max(bits, 1), 1)
        for begin in range(0, self.n_states, step):
            part = np.unpackbits(rows[begin : begin + step], axis=1, bitorder="little")
            for name, entry, at, width in fields:
                values[name][begin : begin + step] = _decode(entry, part, at, width)
        return tuple(
            Variable(name=name, values=values[name], words=_words(entry, words))
            for name, entry, _, _ in fields
        )


def _layout(
    entries: list[Mapping[str, Any]],
) -> tuple[list[tuple[str, Mapping[str, Any], int, int]], int]:
    """Variables that are kept (name, entry, first bit, bits), and the bits of all together."""
    at, fields = 0, []
    for entry in entries:
        if "padding" in entry:
            at += _bits_of(entry["padding"])
            continue
        kind = entry["type"]
        width = _bits_of(kind.get("size", SIZES.get(kind["type"], 128)))
        is_optional = bool(entry.get("is-optional", False))
        # Fractions and wide numbers tell nothing that a name would need.
        if kind["type"] in ("bool", "int", "uint", "string") and width <= 64:
            fields.append((plain_text(str(entry["name"])), entry, at, width))
        at += width + is_optional
    names = [name for name, *_ in fields]
    if len(set(names)) != len(names):
        raise ValueError("two variables have the same name")
    return fields, at


def _bits_of(value: Any) -> int:
    if type(value) is not int or not 1 <= value < 2**20:
        raise ValueError(f"a variable must have a whole number of bits, got {value!r}")
    return value


def _decode(entry: Mapping[str, Any], bits: npt.NDArray[np.uint8], at: int, width: int) -> IntArray:
    """(rows) values of one variable of unpacked valuations."""
    is_known = np.ones(len(bits), bool)
    if entry.get("is-optional", False):  # the highest bit, as the specification's example has it
        is_known = bits[:, at + width].astype(bool)
    kind = entry["type"]["type"]
    raw = np.zeros(len(bits), np.uint64)
    for k in range(width):
        raw |= bits[:, at + k].astype(np.uint64) << np.uint64(k)
    if kind == "bool":
        value = (raw != 0).astype(np.int64)
    else:
        value = raw.view(np.int64)
        if kind == "int" and width < 64:  # the sign is the highest bit
            value = value - (bits[:, at + width - 1].astype(np.int64) << np.int64(width))
        offset = entry.get("offset", 0)
        if type(offset) is not int or abs(offset) >= 2**62:
            raise ValueError(f"offset must be a whole number, got {offset!r}")
        value = value + np.int64(offset)
    return np.where(is_known, value, UNKNOWN)


def _words(entry: Mapping[str, Any], words: tuple[str, ...]) -> tuple[str, ...] | None:
    kind = entry["type"]["type"]
    return TRUTH if kind == "bool" else words if kind == "string" else None


# -- writing -----------------------------------------------------------------------------------


def write_umb(mdp: TabularMDP, path: str | Path, *, compress: bool = True) -> None:
    """Write a model as a UMB file, for PRISM, Storm and Modest.

    States have their own actions only. Rewards belong to choices; several that are kept side by
    side become reward structures of their own. Names of states become valuations, labels atomic
    propositions.

    Args:
        mdp: The model. Of an estimate, UMB could not hold the radii: it is refused.
        path: The file, written atomically.
        compress: By gzip.

    Raises:
        InvalidArgumentError: If it is an estimate.
    """
    if mdp.estimate is not None:
        raise InvalidArgumentError(
            "UMB cannot hold confidence radii, and without them an estimate would look like the "
            "truth: use mdp.save, which keeps them"
        )
    write_tarball(path, _members(mdp), compress=compress)


def _members(mdp: TabularMDP) -> Iterator[tuple[str, bytes]]:
    """The files of a model, the index first."""
    rewards = mdp.names.rewards or (_reward_name(mdp),)
    depth = len(mdp.names.rewards) or 1
    own = mdp.available[:, ::depth]
    states, actions = np.nonzero(own)
    rows = states * mdp.n_actions + actions * depth
    lengths = np.diff(mdp.indptr)[rows]
    branches = np.append(0, np.cumsum(lengths))
    entries = np.repeat(mdp.indptr[rows] - branches[:-1], lengths) + np.arange(branches[-1])
    variables, bits, n_strings = _valuations(mdp)
    is_start = mdp.start > 0.0
    kept: dict[str, tuple[str, npt.NDArray[Any]]] = {}
    if (mdp.start[is_start] != mdp.start[is_start][0]).any():
        kept["start"] = ("double", mdp.start)
    if (mdp.state_ids != np.arange(mdp.n_states)).any():
        kept["id"] = ("int", mdp.state_ids)
    if mdp.terminal_state is not None:
        kept["end"] = ("bool", np.arange(mdp.n_states) == mdp.terminal_state)
    index: dict[str, Any] = {
        "format-version": FORMAT_VERSION,
        "format-revision": 0,
        "file-data": {"tool": "bisim_abstract", "tool-version": __version__},
        "transition-system": {
            "time": "discrete",
            "#players": 0 if own.shape[1] == 1 else 1,
            "#states": mdp.n_states,
            "#initial-states": int(is_start.sum()),
            "#choices": rows.size,
            "#choice-actions": own.shape[1],
            "#branches": int(branches[-1]),
            "#branch-actions": 0,
            "#observations": 0,
            "branch-probability-type": {"type": "double", "size": 64},
        },
        "annotations": {
            "rewards": {
                _identifier("reward", k, name): {
                    "alias": name,
                    "applies-to": ["choices"],
                    "type": {"type": "double", "size": 64},
                }
                for k, name in enumerate(rewards)
            },
            "aps": {
                _identifier("label", k, name): {
                    "alias": name,
                    "applies-to": ["states"],
                    "type": {"type": "bool", "size": 1},
                }
                for k, name in enumerate(mdp.names.labels)
            },
            OURS: {
                key: {"applies-to": ["states"], "type": {"type": kind, "size": SIZES[kind]}}
                for key, (kind, _) in kept.items()
            },
        },
    }
    index["annotations"] = {group: of for group, of in index["annotations"].items() if of}
    if variables:
        index["valuations"] = {"states": {"unique": False, "classes": [{"variables": variables}]}}
        if n_strings:
            index["valuations"]["states"]["#strings"] = n_strings
    yield "index.json", json.dumps(index, indent=1).encode()
    yield "state-to-choices.bin", _u8(np.append(0, np.cumsum(own.sum(axis=1))))
    yield "state-is-initial.bin", _packed(is_start)
    yield "choice-to-branches.bin", _u8(branches)
    yield "branch-to-target.bin", _u8(mdp.indices[entries])
    yield "branch-to-probability.bin", mdp.probs[entries].astype("<f8").tobytes()
    yield "actions/choices/values.bin", actions.astype("<u4").tobytes()
    names = [mdp.action_name(a * depth) for a in range(own.shape[1])]
    if mdp.names.rewards:
        names = [name.removesuffix(paid_in(rewards[0])) for name in names]
    yield from _string_files("actions/choices", names)
    for k, name in enumerate(rewards):
        values = mdp.rewards.ravel()[rows + k].astype("<f8").tobytes()
        yield f"annotations/rewards/{_identifier('reward', k, name)}/choices/values.bin", values
    for k, (name, members) in enumerate(mdp.names.labels.items()):
        folder = f"annotations/aps/{_identifier('label', k, name)}/states"
        yield f"{folder}/values.bin", _packed(members)
    for key, (kind, array) in kept.items():
        data = _packed(array) if kind == "bool" else array.astype(DTYPES[kind]).tobytes()
        yield f"annotations/{OURS}/{key}/states/values.bin", data
    if variables:
        yield "valuations/states/valuations.bin", bits
        if n_strings:
            words = [word for v in mdp.names.variables for word in _own_words(v)]
            yield from _string_files("valuations/states", words)


def _reward_name(mdp: TabularMDP) -> str:
    """What the only reward is called: as in the file that it came from, if it is the same."""
    name = mdp.metadata.get("reward")
    return name if isinstance(name, str) and name and not name.startswith("-") else "reward"


def _identifier(kind: str, number: int, name: str) -> str:
    """The name itself if UMB allows it as an identifier, else a number; people see the alias.

    Neither long ones, which are names of files, nor those that look like another's number.
    """
    is_allowed = re.fullmatch(rf"[a-z0-9_-]{{1,{LONGEST_ID}}}", name) is not None
    is_numbered = re.fullmatch(rf"{kind}-[0-9]+", name) is not None
    return name if is_allowed and not is_numbered else f"{kind}-{number}"


def _u8(values: npt.NDArray[Any]) -> bytes:
    return values.astype("<u8").tobytes()


def _packed(mask: BoolArray) -> bytes:
    """Bits, the first in the lowest, up to a whole number of 64-bit words."""
    words = np.zeros((mask.size + 63) // 64 * 8, np.uint8)
    packed = np.packbits(mask, bitorder="little")
    words[: packed.size] = packed
    return words.tobytes()


def _string_files(folder: str, texts: list[str]) -> Iterator[tuple[str, bytes]]:
    encoded = [text.encode() for text in texts]
    yield f"{folder}/string-mapping.bin", _u8(np.append(0, np.cumsum([len(e) for e in encoded])))
    yield f"{folder}/strings.bin", b"".join(encoded)


def _own_words(variable: Variable) -> tuple[str, ...]:
    """Words that a file must hold: truth values need none."""
    return () if variable.words is None or variable.words == TRUTH else variable.words


def _valuations(mdp: TabularMDP) -> tuple[list[dict[str, Any]], bytes, int]:
    """How variables are laid out, their packed values, and how many words they use."""
    entries: list[dict[str, Any]] = []
    columns: list[tuple[IntArray, int, BoolArray | None]] = []
    n_words = total = 0
    for variable in mdp.names.variables:
        is_known = variable.values != UNKNOWN
        values = np.where(is_known, variable.values, 0)
        entry: dict[str, Any] = {"name": variable.name}
        if variable.words == TRUTH:
            width, entry["type"] = 1, {"type": "bool", "size": 1}
        elif variable.words is not None:
            width, entry["type"] = 64, {"type": "string", "size": 64}
            values = values + n_words
            n_words += len(variable.words)
        else:
            low, high = int(values.min()), int(values.max())
            if high - low >= 2**62 or abs(low) >= 2**62:
                width, entry["type"] = 64, {"type": "int", "size": 64}
            else:
                width = max((high - low).bit_length(), 1)
                values = values - low
                entry |= {"type": {"type": "uint", "size": width}, "offset": low}
        is_optional = not bool(is_known.all())
        if is_optional:
            entry["is-optional"] = True
        entries.append(entry)
        columns.append((values, width, is_known if is_optional else None))
        total += width + is_optional
    if -total % 8:
        entries.append({"padding": -total % 8})
    size = (total + 7) // 8
    packed = np.zeros((mdp.n_states, size), np.uint8)
    step = max(CHUNK_BITS // max(8 * size, 1), 1)
    for begin in range(0, mdp.n_states, step):
        span = slice(begin, min(begin + step, mdp.n_states))
        bits = np.zeros((span.stop - begin, 8 * size), np.uint8)
        at = 0
        for values, width, is_known_or_none in columns:
            for k in range(width):
                bits[:, at + k] = (values[span] >> k) & 1
            at += width
            if is_known_or_none is not None:
                bits[:, at] = is_known_or_none[span]
                at += 1
        packed[span] = np.packbits(bits, axis=1, bitorder="little")
    return entries, packed.tobytes(), n_words
