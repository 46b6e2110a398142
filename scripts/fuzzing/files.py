"""File targets: everything that is read is damaged first, then read, then judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract import InvalidArgumentError, TabularMDP, estimate_mdp, read_model
from bisim_abstract._app.runs import Config, Training
from bisim_abstract._app.sources import Source
from bisim_abstract.errors import FileFormatError, MemoryLimitError
from bisim_abstract.parts import Estimate, grouped_mdp, read_bridge, sparse_mdp
from fuzzing.core import Case, Run, Violation
from fuzzing.models import random_model
from fuzzing.mutate import (
    Arrays,
    damage_bytes,
    damage_json,
    damaged_archive,
    json_bytes,
    pick,
    read_arrays,
    read_member,
)

REFUSALS = (FileFormatError, MemoryLimitError, OSError)
MDP_ARRAYS = ("indptr", "indices", "probs", "rewards", "start", "state_ids")


def claim(is_true: Any, text: str) -> None:
    """Raise a violation unless something holds."""
    if not is_true:
        raise Violation(text)


def archive_target(
    make: Callable[[Path], list[Path]],
    read: Callable[[Case, Path], None],
    seal: Callable[[Arrays], None] = lambda arrays: None,
) -> Callable[[Path], Run]:
    """A target for one kind of archive.

    Args:
        make: Writes intact files.
        read: Loads one file and checks what comes back; raises on refusal too.
        seal: Makes digests right again.
    """

    def prepare(shared: Path) -> Run:
        pool = [read_arrays(path) for path in make(shared)]

        def run(case: Case) -> bool:
            path = case.folder / "input.npz"
            case.note = damaged_archive(case.rng, pick(case.rng, pool), path, seal)
            try:
                read(case, path)
            except REFUSALS:
                return False
            return True

        return run

    return prepare


# -- models --------------------------------------------------------------------------------------


def sample_estimate(rng: np.random.Generator) -> TabularMDP:
    """A small model estimated from random transitions."""
    return estimate_mdp(
        rng.integers(3, size=40),
        rng.integers(2, size=40),
        rng.random(40),
        rng.integers(3, size=40),
        rng.random(40) < 0.2,
        n_states=3,
        n_actions=2,
        reward_range=(0.0, 1.0),
        support_bound=4,
    )


def make_models(shared: Path) -> list[Path]:
    """Intact models: sparse, grouped, estimated, awkward."""
    rng = np.random.default_rng(0)
    models = [
        sparse_mdp(4, 2, support=2, seed=0).with_metadata(note="γ", list=[1, None, {"a": []}]),
        grouped_mdp(6, 2, 2, seed=1)[0],
        sample_estimate(rng),
        *(random_model(rng) for _ in range(3)),
    ]
    paths = []
    for k, mdp in enumerate(models):
        paths.append(shared / f"model{k}.npz")
        mdp.save(paths[-1], compress=k % 2 == 0)
    return [*paths, *make_bridges(shared)]


def make_bridges(shared: Path) -> list[Path]:
    """Intact BRIDGE files."""
    rng = np.random.default_rng(1)
    paths = []
    for k, kind in enumerate(("int64", "int32", "int8")):
        after = rng.integers(-1, 5, size=(5, 3)).astype(kind)
        rewards = rng.normal(size=(5, 3)).astype("float32" if k else "float64")
        paths.append(shared / f"bridge{k}.npz")
        np.savez_compressed(paths[-1], transitions=after, rewards=rewards, screen=np.zeros(4))
    return paths


def seal_model(arrays: Arrays) -> None:
    """Write the fingerprint that the contents now have, if they are a model at all."""
    try:
        header = json.loads(arrays["header"].tobytes())
        estimate = None
        if header["estimate"] is not None:
            estimate = Estimate(
                counts=arrays["estimate_counts"],
                reward_radius=arrays["estimate_reward_radius"],
                row_radius=arrays["estimate_row_radius"],
                **header["estimate"],
            )
        fields: dict[str, Any] = {name: arrays[name] for name in MDP_ARRAYS}
        mdp = TabularMDP(
            **fields,
            terminal_state=header["terminal_state"],
            estimate=estimate,
        )
        header["fingerprint"] = mdp.fingerprint
    except Exception:  # not a model: the loader has to say so
        return
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)


def check_model(case: Case, mdp: TabularMDP) -> None:
    """What every model promises, by other code than that which checks it; then a round trip."""
    n, n_actions = mdp.rewards.shape
    claim(n >= 1 and n_actions >= 1, "no states or actions")
    for name, kind in zip(MDP_ARRAYS, "iifffi", strict=True):
        array = getattr(mdp, name)
        claim(array.dtype == (np.int64 if kind == "i" else np.float64), f"{name}: {array.dtype}")
        claim(array.flags.c_contiguous and not array.flags.writeable, f"{name} can be written to")
        claim(kind == "i" or np.isfinite(array).all(), f"{name} is not finite")
    claim(mdp.indptr.shape == (n * n_actions + 1,) and mdp.indptr[0] == 0, "indptr")
    claim(mdp.indptr[-1] == mdp.indices.size == mdp.probs.size, "lengths of rows")
    claim((mdp.probs > 0.0).all(), "a probability is not above 0")
    claim(((mdp.indices >= 0) & (mdp.indices < n)).all(), "a successor is no state")
    if n <= 64:
        for row in range(n * n_actions):
            span = slice(int(mdp.indptr[row]), int(mdp.indptr[row + 1]))
            index = mdp.indices[span].tolist()
            claim(index and index == sorted(set(index)), f"row {row} does not rise")
            claim(abs(sum(mdp.probs[span].tolist()) - 1.0) <= 2e-9, f"row {row} does not sum to 1")
    claim(mdp.start.shape == (n,) and abs(mdp.start.sum() - 1.0) <= 2e-9, "start")
    claim(mdp.state_ids.shape == (n,), "state_ids")
    if mdp.terminal_state is not None:
        claim(mdp.absorbing[mdp.terminal_state], "the terminal state is left")
    if mdp.estimate is not None:
        check_estimate(mdp.estimate, mdp)
    again = case.folder / "again.npz"
    mdp.save(again)
    other = TabularMDP.load(again)
    claim(other == mdp and other.metadata == mdp.metadata, "changed by a round trip")
    claim(repr(other) == repr(mdp), "another repr")


def check_estimate(estimate: Estimate, mdp: TabularMDP) -> None:
    """Counts and radii are numbers that can be radii."""
    for array in estimate.arrays():
        claim(array.shape == mdp.rewards.shape, "an estimate of another shape")
        claim(not array.flags.writeable, "radii can be written to")
        claim((array >= 0).all(), "a negative radius or count, or none")  # infinite is allowed
    claim(0.0 < estimate.alpha < 1.0, "alpha")


def read_mdp(case: Case, path: Path) -> None:
    """Both readers, which must agree where both accept."""
    try:
        mdp = TabularMDP.load(path)
    except REFUSALS:
        check_model(case, read_model(path))  # BRIDGE files are read by this one only
        return
    claim(read_model(path) == mdp, "load and read_model differ")
    check_model(case, mdp)


def read_bridge_file(case: Case, path: Path) -> None:
    """A deterministic model with an end, whose successors are those of the file."""
    start = int(case.rng.integers(0, 2))
    try:
        mdp = read_bridge(path, start=start)
    except InvalidArgumentError:  # our argument, not the file: a model of one state
        start = 0
        mdp = read_bridge(path)
    check_model(case, mdp)
    given = read_member(path, "transitions")
    claim(mdp.is_deterministic and mdp.terminal_state == mdp.n_states - 1, "not a BRIDGE model")
    claim(mdp.start[start] == 1.0, "another start")
    if given.size <= 1000:
        want = [[mdp.terminal_state if x == -1 else x for x in row] for row in given.tolist()]
        have = mdp.indices.reshape(mdp.rewards.shape)[:-1].tolist()
        claim(want == have, "other successors than the file's")


# -- encoders and transitions --------------------------------------------------------------------


def make_encoders(shared: Path) -> list[Path]:
    """One small trained encoder of each class, on states and on vectors."""
    from bisim_abstract.encoders import (
        ActionMaxEncoder,
        DBCEncoder,
        MICoEncoder,
        Transitions,
        sample_transitions,
    )

    rng = np.random.default_rng(2)
    vectors = Transitions(
        states=rng.normal(size=(20, 3)),
        actions=rng.integers(2, size=20),
        rewards=rng.random(20),
        next_states=rng.normal(size=(20, 3)),
        terminated=rng.random(20) < 0.2,
        n_actions=2,
    )
    steps = sample_transitions(sparse_mdp(4, 2, support=2, seed=0), 30, seed=0)
    paths = []
    for kind in (ActionMaxEncoder, DBCEncoder, MICoEncoder):
        for k, data in enumerate((steps, vectors)):
            encoder: Any = kind(dim=2, steps=2, batch_size=4, hidden=(3,))
            paths.append(shared / f"{encoder.kind}{k}.npz")
            encoder.fit(data, callback=lambda progress: None).save(paths[-1])
    return paths


def read_encoder(case: Case, path: Path) -> None:
    """It encodes, and does so in the same way after a round trip."""
    from bisim_abstract.encoders import load_encoder

    encoder = load_encoder(path)
    n = encoder.n_states
    inputs: Any = np.arange(min(n, 5)) if n is not None else np.zeros((2, width_of(encoder)))
    with np.errstate(all="ignore"):  # weights may be huge: infinite points are refused later
        points = encoder.encode(inputs)
        again = case.folder / "again.npz"
        encoder.save(again)
        other = load_encoder(again)
        claim(np.array_equal(points, other.encode(inputs), equal_nan=True), "other points")
    claim(points.shape == (len(inputs), encoder.dim) and points.dtype == np.float32, "points")
    claim(type(other) is type(encoder) and other.config() == encoder.config(), "other settings")
    claim(encoder.seen.dtype == bool and encoder.seen.shape == (n or 0,), "seen")


def width_of(encoder: Any) -> int:
    """Number of features, which has no public name."""
    return int(encoder._shape["n_features"])


def make_transitions(shared: Path) -> list[Path]:
    """Intact transitions of states and of vectors."""
    from bisim_abstract.encoders import Transitions, sample_transitions

    mdp = sparse_mdp(4, 2, support=2, seed=0)
    rng = np.random.default_rng(3)
    vectors = Transitions(
        states=rng.normal(size=(6, 3)),
        actions=rng.integers(2, size=6),
        rewards=rng.random(6),
        next_states=rng.normal(size=(6, 3)),
        terminated=rng.random(6) < 0.2,
        n_actions=2,
    )
    paths = [shared / "steps.npz", shared / "vectors.npz"]
    for data, path in zip((sample_transitions(mdp, 12, seed=0), vectors), paths, strict=True):
        data.save(path)
    return paths


def read_transitions(case: Case, path: Path) -> None:
    """Lengths, ranges and types are as promised, also after a round trip."""
    from bisim_abstract.encoders import Transitions

    data = Transitions.load(path)
    n = len(data)
    claim(n >= 1 and data.n_actions >= 1, "empty")
    claim(data.actions.shape == data.rewards.shape == data.terminated.shape == (n,), "lengths")
    claim(data.states.shape == data.next_states.shape and len(data.states) == n, "shapes")
    claim(((data.actions >= 0) & (data.actions < data.n_actions)).all(), "an action is none")
    for array in (data.states, data.next_states, data.rewards):
        claim(np.isfinite(array).all() and not array.flags.writeable, "values")
        if data.is_discrete and array is not data.rewards:
            claim(data.n_states is not None and (array < data.n_states).all(), "a state is none")
            claim((array >= 0).all(), "a negative state")
    again = case.folder / "again.npz"
    data.save(again)
    other = Transitions.load(again)
    for name in ("states", "actions", "rewards", "next_states", "terminated"):
        claim(np.array_equal(getattr(data, name), getattr(other, name)), f"{name} changed")
    claim(repr(other) == repr(data), "another repr")


# -- configurations ------------------------------------------------------------------------------


def prepare_config(shared: Path) -> Run:
    """Configurations of runs, which are JSON."""
    goal = {"tau": 0.5, "scope": "all", "propose": ["classes"], "max_pairs": 10, "tol": 0.1}
    source = Source(name="FrozenLake-v1", env_args={"map_name": "4x4"}, backgrounds=3)
    configs = [
        Config(source=source, training=Training(), certify=goal, learn=5, title="t"),
        Config(source=Source(name="model.npz"), certify={"n_clusters": 2, "max_seconds": 1.0}),
        Config(source=Source(name="model.npz"), certify={"keep": 0.9, "max_loss": 0.5}),
    ]
    pool = [config.header() | {"versions": {"numpy": "2"}} for config in configs]

    def run(case: Case) -> bool:
        rng, path = case.rng, case.folder / "config.json"
        document, notes = pick(rng, pool), []
        for _ in range(int(rng.integers(1, 4))):
            document, note = damage_json(rng, document)
            notes.append(note)
        data = json_bytes(rng, document)
        if rng.random() < 0.15:
            data, note = damage_bytes(rng, data)
            notes.append(note)
        case.note = "; ".join(notes)
        path.write_bytes(data)
        try:
            config = Config.load(path)
        except REFUSALS:
            return False
        check_config(case, config)
        return True

    return run


def check_config(case: Case, config: Config) -> None:
    """It can be written and read again, and says what command asks for the same."""
    claim(0.0 <= config.gamma < 1.0, "gamma")
    claim(config.seed >= 0 and config.learn >= 0 and config.learn_seeds >= 1, "a count")
    text = json.dumps(config.header())
    again = case.folder / "again.json"
    again.write_text(text)
    claim(json.dumps(Config.load(again).header()) == text, "changed by a round trip")
    claim(all(isinstance(word, str) for word in config.words()), "words are no text")
    goals = [config.certify.get(name) for name in ("tau", "n_clusters", "max_loss")]
    claim(sum(goal is not None for goal in goals) <= 1, "two goals, which certify refuses")
    claim(0.0 <= config.certify.get("keep", 0.95) <= 1.0, "a share that is none")


# -- digests of certificates -----------------------------------------------------------------------


def seal_certificate(arrays: Arrays) -> None:
    """The digest as docs/certificate-format.md describes it, over whatever is there now."""
    digest = hashlib.sha256(arrays["header"].tobytes() if "header" in arrays else b"")
    for name in sorted(set(arrays) - {"header", "digest"}):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    arrays["digest"] = np.frombuffer(digest.hexdigest().encode(), np.uint8)
