"""File targets: everything that is read is damaged first, then read, then judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st

from bisim_abstract import InvalidArgumentError, TabularMDP, estimate_mdp, read_model
from bisim_abstract._abstract.deploy import GroundAgent
from bisim_abstract._app import runs
from bisim_abstract._app.config import Config, Training
from bisim_abstract._app.manifest import MANIFEST, NAMES, STAGED, value_digest
from bisim_abstract._app.sources import Source
from bisim_abstract._base.tarball import read_tarball, write_tarball
from bisim_abstract._model.observations import Observations, key_of, layout_of
from bisim_abstract._model.umb import write_umb
from bisim_abstract.errors import FileFormatError, MemoryLimitError
from bisim_abstract.parts import Estimate, grouped_mdp, read_bridge, sparse_mdp
from tests.stress.certifying import ONE
from tests.stress.damage import (
    Arrays,
    Damaged,
    Seal,
    damaged_archives,
    damaged_bytes,
    damaged_json,
    json_bytes,
    read_arrays,
    read_member,
)
from tests.stress.running import Case, Run, Target
from tests.stress.strategies import is_drawn
from tests.support import worlds
from tests.support.checkers import many_names, random_model

REFUSALS = (FileFormatError, MemoryLimitError, OSError)
MDP_ARRAYS = ("indptr", "indices", "probs", "rewards", "start", "state_ids")


def file_run(name: str, check: Callable[[Path, Path], None]) -> Run:
    """Write a damaged file, read it, and judge what was read; refusals are allowed."""

    def run(folder: Path, file: Damaged) -> bool:
        file.write(folder / name)
        try:
            check(folder, folder / name)
        except REFUSALS:
            return False
        return True

    return run


def archive_target(
    name: str,
    make: Callable[[Path], list[Path]],
    check: Callable[[Path, Path], None],
    seal: Seal = lambda arrays: None,
) -> Target:
    """A target for one kind of archive.

    Args:
        name: Of the target.
        make: Writes intact files into a folder.
        check: Loads one file and checks what comes back; raises on refusal too.
        seal: Makes digests right again.
    """

    def prepare(shared: Path) -> tuple[st.SearchStrategy[Case], Run]:
        pool = [read_arrays(path) for path in make(shared)]
        cases = st.fixed_dictionaries({"file": damaged_archives(pool, seal)})
        return cases, file_run("input.npz", check)

    return Target(name, prepare)


# -- models ----------------------------------------------------------------------------------------


def sample_estimate() -> TabularMDP:
    """A small model estimated from random transitions."""
    rng = np.random.default_rng(0)
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


def named_model() -> TabularMDP:
    """A small model with names of all kinds."""
    plain = sparse_mdp(5, 2, support=2, seed=0)
    return TabularMDP.from_rows(
        *(plain.indptr, plain.indices, plain.probs, plain.rewards),
        names=many_names(5, np.random.default_rng(0)),
    )


def make_models(shared: Path) -> list[Path]:
    """Intact models: sparse, grouped, estimated, solved by hand, from BRIDGE."""
    models = [
        sparse_mdp(4, 2, support=2, seed=0).with_metadata(note="γ", list=[1, None, {"a": []}]),
        grouped_mdp(6, 2, 2, seed=1)[0],
        random_model(1).to_mdp(reward=["all", "states"]),
        named_model(),
        sample_estimate(),
        *(make(0.5).mdp for make in (worlds.coins, worlds.best_action, worlds.all_alike)),
    ]
    paths = [shared / f"model{k}.npz" for k in range(len(models))]
    for k, mdp in enumerate(models):
        mdp.save(paths[k], compress=k % 2 == 0)
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
    with suppress(Exception):  # not a model: the loader has to say so
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
        mdp = TabularMDP(**fields, terminal_state=header["terminal_state"], estimate=estimate)
        header["fingerprint"] = mdp.fingerprint
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)


def check_model(folder: Path, mdp: TabularMDP) -> None:
    """What every model promises, by other code than that which checks it; then a round trip."""
    n, n_actions = mdp.rewards.shape
    assert min(n, n_actions) >= 1, "no states or actions"
    for name, kind in zip(MDP_ARRAYS, "iifffi", strict=True):
        array = getattr(mdp, name)
        assert array.dtype == (np.int64 if kind == "i" else np.float64), f"{name}: {array.dtype}"
        assert array.flags.c_contiguous, f"{name} is not contiguous"
        assert not array.flags.writeable, f"{name} can be written to"
        assert kind == "i" or np.isfinite(array).all(), f"{name} is not finite"
    assert mdp.indptr.shape == (n * n_actions + 1,), "length of indptr"
    assert mdp.indptr[0] == 0, "begin of indptr"
    assert mdp.indptr[-1] == mdp.indices.size == mdp.probs.size, "lengths of rows"
    assert (mdp.probs > 0.0).all(), "a probability is not above 0"
    assert ((mdp.indices >= 0) & (mdp.indices < n)).all(), "a successor is no state"
    for row in range(n * n_actions if n <= 64 else 0):
        span = slice(int(mdp.indptr[row]), int(mdp.indptr[row + 1]))
        index = mdp.indices[span].tolist()
        assert index, f"row {row} is empty"
        assert index == sorted(set(index)), f"row {row} does not rise"
        assert abs(sum(mdp.probs[span].tolist()) - 1.0) <= 2e-9, f"row {row} does not sum to 1"
    assert mdp.start.shape == mdp.state_ids.shape == (n,), "lengths"
    assert abs(mdp.start.sum() - 1.0) <= 2e-9, "start"
    if mdp.terminal_state is not None:
        assert mdp.absorbing[mdp.terminal_state], "the terminal state is left"
    if mdp.estimate is not None:
        assert 0.0 <= mdp.estimate.alpha < 1.0, "alpha"
        for array in mdp.estimate.arrays():
            assert array.shape == mdp.rewards.shape, "an estimate of another shape"
            assert not array.flags.writeable, "radii can be written to"
            assert (array >= 0).all(), "a negative radius or count, or none"  # infinite is allowed
    mdp.save(folder / "again.npz")
    other = TabularMDP.load(folder / "again.npz")
    assert other == mdp, "changed by a round trip"
    assert other.metadata == mdp.metadata, "other metadata after a round trip"
    assert repr(other) == repr(mdp), "another repr"
    check_names(mdp)
    assert names_of(other) == names_of(mdp), "other names after a round trip"


def check_names(mdp: TabularMDP) -> None:
    """Names fit the model, and people can be told them."""
    names = mdp.names
    if names.actions is not None:
        assert len(names.actions) == mdp.n_actions, "names of other actions"
    for variable in names.variables:
        assert variable.values.shape == (mdp.n_states,), "values of other states"
    for mask in names.labels.values():
        assert mask.dtype == np.bool_, "a label that is no set"
        assert mask.shape == (mdp.n_states,), "a label of other states"
    for state in (0, mdp.n_states - 1):
        assert names.state_text(state).isprintable(), "a name that is not for reading"
    for action in (0, mdp.n_actions - 1):
        assert names.action_text(action).isprintable(), "a name that is not for reading"


def names_of(mdp: TabularMDP) -> Any:
    """All names of a model, as values that compare."""
    variables = [(each.name, each.values.tolist(), each.words) for each in mdp.names.variables]
    labels = {name: mask.tolist() for name, mask in mdp.names.labels.items()}
    return mdp.names.actions, variables, labels, mdp.names.rewards


def check_mdp_file(folder: Path, path: Path) -> None:
    """Both readers, which must agree where both accept."""
    try:
        mdp = TabularMDP.load(path)
    except REFUSALS:
        check_model(folder, read_model(path))  # BRIDGE files are read by this one only
        return
    assert read_model(path) == mdp, "load and read_model differ"
    check_model(folder, mdp)


def check_bridge_file(folder: Path, path: Path) -> None:
    """A deterministic model with an end, whose successors are those of the file."""
    for start in (0, 1):
        try:
            mdp = read_bridge(path, start=start)
        except InvalidArgumentError:  # our argument, not the file: a model of one state
            assert start == 1, "a start of 0 is refused"
            continue
        check_model(folder, mdp)
        given = read_member(path, "transitions")
        assert mdp.is_deterministic, "not a BRIDGE model"
        assert mdp.terminal_state == mdp.n_states - 1, "another end"
        assert mdp.start[start] == 1.0, "another start"
        if given.size <= 1000:
            want = [[mdp.terminal_state if x == -1 else x for x in row] for row in given.tolist()]
            have = mdp.indices.reshape(mdp.rewards.shape)[:-1].tolist()
            assert want == have, "other successors than the file's"


# -- encoders and transitions ----------------------------------------------------------------------


def sample_data(size: int) -> list[Any]:
    """Transitions of states and of vectors."""
    from bisim_abstract.encoders import Transitions, sample_transitions

    rng = np.random.default_rng(2)
    vectors = Transitions(
        states=rng.normal(size=(size, 3)),
        actions=rng.integers(2, size=size),
        rewards=rng.random(size),
        next_states=rng.normal(size=(size, 3)),
        terminated=rng.random(size) < 0.2,
        n_actions=2,
    )
    return [sample_transitions(sparse_mdp(4, 2, support=2, seed=0), 2 * size, seed=0), vectors]


def make_encoders(shared: Path) -> list[Path]:
    """One small trained encoder of each class, on states and on vectors."""
    from bisim_abstract.encoders import ActionMaxEncoder, DBCEncoder, MICoEncoder

    paths = []
    for kind in (ActionMaxEncoder, DBCEncoder, MICoEncoder):
        for k, data in enumerate(sample_data(20)):
            encoder: Any = kind(dim=2, steps=2, batch_size=4, hidden=(3,))
            paths.append(shared / f"{encoder.kind}{k}.npz")
            encoder.fit(data, callback=lambda progress: None).save(paths[-1])
    return paths


def check_encoder_file(folder: Path, path: Path) -> None:
    """It encodes, and does so in the same way after a round trip."""
    from bisim_abstract.encoders import load_encoder

    encoder: Any = load_encoder(path)
    n = encoder.n_states
    # The number of features has no public name.
    inputs = np.arange(min(n, 5)) if n is not None else np.zeros((2, encoder._shape["n_features"]))
    with np.errstate(all="ignore"):  # weights may be huge: infinite points are refused later
        points = encoder.encode(inputs)
        encoder.save(folder / "again.npz")
        other = load_encoder(folder / "again.npz")
        assert np.array_equal(points, other.encode(inputs), equal_nan=True), "other points"
    assert points.shape == (len(inputs), encoder.dim), "shape of points"
    assert points.dtype == np.float32, "type of points"
    assert type(other) is type(encoder), "another class"
    assert other.config() == encoder.config(), "other settings"
    assert encoder.seen.dtype == bool, "type of seen"
    assert encoder.seen.shape == (n or 0,), "length of seen"


def make_transitions(shared: Path) -> list[Path]:
    """Intact transitions of states and of vectors."""
    paths = [shared / "steps.npz", shared / "vectors.npz"]
    for data, path in zip(sample_data(6), paths, strict=True):
        data.save(path)
    return paths


def check_transitions_file(folder: Path, path: Path) -> None:
    """Lengths, ranges and types are as promised, also after a round trip."""
    from bisim_abstract.encoders import Transitions

    data = Transitions.load(path)
    n = len(data)
    assert min(n, data.n_actions) >= 1, "empty"
    assert data.actions.shape == data.rewards.shape == data.terminated.shape == (n,), "lengths"
    assert data.states.shape == data.next_states.shape, "shapes"
    assert len(data.states) == n, "number of states"
    assert ((data.actions >= 0) & (data.actions < data.n_actions)).all(), "an action is none"
    for array in (data.states, data.next_states, data.rewards):
        assert np.isfinite(array).all(), "values are not finite"
        assert not array.flags.writeable, "values can be written to"
        if data.is_discrete and array is not data.rewards:
            assert data.n_states is not None, "no number of states"
            assert ((array >= 0) & (array < data.n_states)).all(), "a state is none"
    data.save(folder / "again.npz")
    other = Transitions.load(folder / "again.npz")
    for name in ("states", "actions", "rewards", "next_states", "terminated"):
        assert np.array_equal(getattr(data, name), getattr(other, name)), f"{name} changed"
    assert repr(other) == repr(data), "another repr"


# -- agents ----------------------------------------------------------------------------------------

SPACES: tuple[gym.Space[Any], ...] = (
    gym.spaces.Discrete(5),
    gym.spaces.Box(0, 4, (2,), np.int64),
    gym.spaces.Dict({"where": gym.spaces.MultiDiscrete([3, 3]), "what": gym.spaces.Text(9)}),
)


def sample_observations(space: gym.Space[Any]) -> list[Any]:
    """Different elements of a space."""
    layout, seen = layout_of(space), {}
    space.seed(0)
    for _ in range(50):
        drawn = space.sample()
        seen[key_of(layout, drawn)] = drawn
    return [seen[key] for key in sorted(seen)][:5]


def make_agents(shared: Path) -> list[Path]:
    """Intact agents: by numbers and by digests, with actions, probabilities and renamings."""
    paths: list[Path] = []
    for k, space in enumerate(SPACES):
        layout = layout_of(space)
        keys = [key_of(layout, each) for each in sample_observations(space)]
        known = Observations.of(layout, {key: j % 2 for j, key in enumerate(keys)})
        tables: list[Any] = [np.array([1, 0, 0]), np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])]
        renamed: dict[str, Any] = {"kinds": [0, 1, 2], "renaming": [[0, 1], [1, 0], [0, 1]]}
        for table in tables:
            for names in ({}, renamed):
                agent = GroundAgent(
                    table,
                    known,
                    n_actions=2,
                    has_end=True,
                    seed=0,
                    metadata={"env": "Some-v0", "seed": k},
                    **names,
                )
                paths.append(shared / f"agent{len(paths)}.npz")
                agent.save(paths[-1])
    return paths


def check_agent_file(folder: Path, path: Path) -> None:
    """It acts where it knows the observation, with actions that there are, and so after a trip."""
    agent = GroundAgent.load(path, seed=0)
    assert min(agent.n_actions, agent.n_observations, agent.n_clusters + agent.has_end) >= 1, "none"
    assert len(agent.policy) == agent.n_clusters + agent.has_end, "length of the table"
    assert not agent.policy.flags.writeable, "the table can be written to"
    agent.save(folder / "again.npz")
    other = GroundAgent.load(folder / "again.npz", seed=0)
    assert np.array_equal(other.policy, agent.policy), "another table"
    assert (repr(other), other.metadata) == (repr(agent), agent.metadata), "another agent"
    for space in SPACES:
        for seen in sample_observations(space):
            try:
                cluster, (action, _) = agent.cluster(seen), agent.predict(seen)
            except InvalidArgumentError:  # of another environment than it knows
                continue
            # What is one observation to us may be several to an agent of other observations.
            assert np.all((cluster >= 0) & (cluster < len(agent.policy))), "a cluster that is none"
            assert np.all((action >= 0) & (action < agent.n_actions)), "an action that is none"
            assert np.all(other.predict(seen)[0] == action), "acts otherwise after a round trip"


# -- configurations --------------------------------------------------------------------------------


def prepare_config(shared: Path) -> tuple[st.SearchStrategy[Case], Run]:
    """Configurations of runs, which are JSON."""
    goal = {"tau": 0.5, "method": "blocks", "propose": ["classes"], "max_pairs": 10, "tol": 0.1}
    source = Source(name="FrozenLake-v1", env_args={"map_name": "4x4"}, backgrounds=3)
    configs = [
        Config(source=source, training=Training(), certify=goal, learn=5, title="t"),
        Config(source=Source(name="model.npz"), certify={"n_clusters": 2, "max_seconds": 1.0}),
        Config(source=Source(name="model.npz"), certify={"keep": 0.9, "guarantee": "learner"}),
    ]
    pool = [config.header() | {"versions": {"numpy": "2"}} for config in configs]

    @st.composite
    def damaged_configs(draw: st.DrawFn) -> Damaged:
        document, notes = draw(st.sampled_from(pool)), []
        for _ in range(draw(st.integers(1, 3))):
            document, note = damaged_json(draw, document)
            notes.append(note)
        data = json_bytes(draw, document)
        if is_drawn(draw, 0.15):
            data, note = damaged_bytes(draw, data)
            notes.append(note)
        return Damaged("; ".join(notes), data)

    cases = st.fixed_dictionaries({"file": damaged_configs()})
    return cases, file_run("config.json", check_config_file)


def check_config_file(folder: Path, path: Path) -> None:
    """It can be written and read again, and says what command asks for the same."""
    config = Config.load(path)
    assert 0.0 <= config.gamma < 1.0, "gamma"
    assert min(config.seed, config.learn, config.learn_seeds - 1) >= 0, "a count"
    text = json.dumps(config.header())
    again = folder / "again.json"
    again.write_text(text)
    assert json.dumps(Config.load(again).header()) == text, "changed by a round trip"
    assert all(isinstance(word, str) for word in config.words()), "words are no text"
    goals = [config.certify.get(name) for name in ("tau", "n_clusters", "max_loss", "keep")]
    # "auto" is a threshold, too, but may come with a number of clusters.
    goals = [goal for goal in goals if goal is not None and goal != "auto"]
    assert len(goals) <= 1, "two goals, which certify refuses"
    assert 0.0 <= config.certify.get("keep", 0.95) <= 1.0, "a share that is none"


# -- UMB -------------------------------------------------------------------------------------------


def make_umbs(shared: Path) -> list[Path]:
    """Intact UMB files: with names of all kinds, with action sets, with several rewards."""
    named = named_model()
    models = [
        named,
        named.with_available([[True, False], *[[True, True]] * 3, [False, True]]),
        random_model(1).to_mdp(reward=["all", "states"]),
        worlds.coins(0.5).mdp,
    ]
    paths = [shared / f"model{k}.umb" for k in range(len(models))]
    for k, mdp in enumerate(models):
        write_umb(mdp, paths[k], compress=k % 2 == 0)
    return paths


def prepare_umb(shared: Path) -> tuple[st.SearchStrategy[Case], Run]:
    """UMB files with damaged members, a damaged index, or damaged as a whole."""
    pool = [(path.read_bytes(), read_tarball(path)) for path in make_umbs(shared)]

    @st.composite
    def damaged_umbs(draw: st.DrawFn) -> Damaged:
        whole, members = draw(st.sampled_from(pool))
        kind = draw(st.sampled_from(["whole", "index", "index", "index", "member", "member"]))
        if kind == "whole":
            data, note = damaged_bytes(draw, whole)
            return Damaged(note, data)
        files, notes = dict(members), []
        if kind == "index":
            document = json.loads(files["index.json"])
            for _ in range(draw(st.integers(1, 3))):
                document, note = damaged_json(draw, document)
                notes.append(note)
            files["index.json"] = json_bytes(draw, document)
        else:
            name = draw(st.sampled_from(sorted(files)))
            files[name], note = damaged_bytes(draw, files[name])
            notes.append(f"{name} {note}")
        path = shared / "made.umb"
        write_tarball(path, files.items(), compress=False)
        return Damaged("; ".join(notes), path.read_bytes())

    cases = st.fixed_dictionaries({"file": damaged_umbs()})
    return cases, file_run("input.umb", check_umb_file)


def check_umb_file(folder: Path, path: Path) -> None:
    """Whatever is accepted is a model, which UMB holds."""
    said = ""
    try:
        mdp = read_model(path)
    except InvalidArgumentError as error:  # a choice that the file leaves to us
        said = str(error)
    if said:
        assert "several rewards" in said or "no rewards" in said, said
        return
    check_model(folder, mdp)
    write_umb(mdp, folder / "again.umb")
    assert read_model(folder / "again.umb") == mdp, "changed by a round trip as UMB"


# -- run directories -------------------------------------------------------------------------------


def prepare_run(shared: Path) -> tuple[st.SearchStrategy[Case], Run]:
    """Directories of a run in which files were damaged, lost, swapped, added or left by a kill."""
    source = Source(name="bisim_abstract/RoomsGrid-v0", env_args={"side": 4, "room_size": 2})
    config = Config(source=source, certify={"tau": 1.0}, learn=20)
    whole = runs.Run(shared / "run", config, resources=ONE)().folder
    intact = {path.name: path.read_bytes() for path in whole.iterdir()}
    foreign = runs.Run(shared / "other", replace(config, gamma=0.8), resources=ONE)().folder
    others = {path.name: path.read_bytes() for path in foreign.iterdir()}

    @st.composite
    def damaged_runs(draw: st.DrawFn) -> dict[str, bytes]:
        files = dict(intact)
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(["bytes", "json", "lost", "foreign", "staged", "sealed"]))
            name = draw(st.sampled_from(sorted(files)))
            if kind == "bytes":
                files[name], _ = damaged_bytes(draw, files[name])
            elif kind == "json" and name.endswith(".json"):
                with suppress(ValueError, RecursionError):  # damaged before
                    document, _ = damaged_json(draw, json.loads(files[name]))
                    files[name] = json_bytes(draw, document)
            elif kind == "lost" and len(files) > 1:
                del files[name]
            elif kind == "foreign":
                strange = draw(st.sampled_from(sorted(others)))
                files[strange] = others[strange]
            elif kind == "staged" and name in NAMES:
                files[f"{STAGED}{name}"] = files[name]
                if draw(st.booleans()):
                    del files[name]
            elif kind == "sealed" and MANIFEST in files:
                files[MANIFEST] = sealed_manifest(files)
        return files

    def run(folder: Path, files: dict[str, bytes]) -> bool:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        try:
            found = runs.read_run(folder)
        except (*REFUSALS, InvalidArgumentError):
            return False
        finally:
            after = {path.name: path.read_bytes() for path in folder.iterdir()}
            assert after == before, "reading changed something"
        manifest = found.manifest
        for name in NAMES:
            path = folder / name
            assert path.exists() == (name in manifest.files), f"{name} is there or listed alone"
            if path.exists():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                assert digest == manifest.files[name].sha256, f"{name} is not what is listed"
        settings = json.loads((folder / "config.json").read_bytes())["config"]
        assert value_digest(settings) == manifest.settings, "other settings"
        assert found.certificate.fingerprint == found.mdp.fingerprint, "of another model"
        assert found.certificate.gamma == found.config.gamma, "of another discount"
        return True

    return st.fixed_dictionaries({"files": damaged_runs()}), run


def sealed_manifest(files: dict[str, bytes]) -> bytes:
    """A manifest that fits, as somebody who knows the format would write it."""
    there = {name: hashlib.sha256(files[name]).hexdigest() for name in NAMES if name in files}
    settings = "0" * 64
    with suppress(Exception):  # the loader has to say that it is no configuration
        settings = value_digest(json.loads(files["config.json"])["config"])
    document = {
        "format": "bisim_abstract.Manifest",
        "version": 1,
        "settings": settings,
        "files": {name: {"sha256": digest, "made_from": {}} for name, digest in there.items()},
    }
    return json.dumps(document | {"digest": value_digest(document)}).encode()


# -- digests of certificates -----------------------------------------------------------------------


def seal_certificate(arrays: Arrays) -> None:
    """The digest as docs/certificate-format.md describes it, over whatever is there now."""
    digest = hashlib.sha256(arrays["header"].tobytes() if "header" in arrays else b"")
    for name in sorted(set(arrays) - {"header", "digest"}):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    arrays["digest"] = np.frombuffer(digest.hexdigest().encode(), np.uint8)


TARGETS = (
    archive_target("mdp", make_models, check_mdp_file, seal_model),
    archive_target("bridge", make_bridges, check_bridge_file),
    archive_target("encoder", make_encoders, check_encoder_file),
    archive_target("agent", make_agents, check_agent_file, lambda arrays: seal_certificate(arrays)),
    archive_target("transitions", make_transitions, check_transitions_file),
    Target("config", prepare_config),
    Target("umb", prepare_umb),
    Target("run", prepare_run, warm=20),
)
