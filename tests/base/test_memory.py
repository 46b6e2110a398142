"""Memory: what is available, and refusals before anything is allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    Certificate,
    Covering,
    InvalidArgumentError,
    QLearning,
    Reading,
    Resources,
    TabularMDP,
    bisimulation_metric,
    certify,
    estimate_mdp,
    evaluate_embedding,
    learning_curve,
    verify,
)
from bisim_abstract._app.figures import pair_groups
from bisim_abstract._base.memory import _left_by_groups, available_bytes, check_memory, human_bytes
from bisim_abstract.encoders import RandomEmbedding, collect_transitions, sample_transitions
from bisim_abstract.errors import MemoryLimitError
from bisim_abstract.parts import (
    cluster_by_metric,
    distortion,
    grouped_mdp,
    landmark_mds,
    random_mdp,
    retrieve_neighbours,
    retrieve_pairs,
    single_build,
    solve_transport,
    sparse_mdp,
    value_features,
)
from bisim_abstract.wrappers import Distractor, RoomsGridEnv, enumerate_mdp

UNLIMITED = "9223372036854771712"  # what version 1 calls no limit


def peak(call: Callable[[], Any]) -> int:
    """Bytes that a call held at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(call: Callable[[], Any], *, most: int = 200_000) -> str:
    """The message of a refusal, before which hardly anything was allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(MemoryLimitError) as caught:
            call()
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    what, _, remedy = text.partition("; ")
    assert " needs " in what
    assert "B, but " in what
    assert remedy
    assert "\n" not in text
    assert held <= most, f"{held:,} bytes before: {text}"
    return text


# -- control groups ----------------------------------------------------------------------------


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def left(tmp_path: Path, groups: str) -> list[int]:
    listed = tmp_path / "cgroup"
    listed.write_text(groups)
    return _left_by_groups(listed, tmp_path / "fs")


def test_groups_of_version_two_and_their_ancestors(tmp_path: Path) -> None:
    fs = tmp_path / "fs"
    write(fs / "a" / "b", memory__max="5000\n", memory__current="1000\n")
    write(fs / "a", memory__max="3000\n", memory__current="1500\n")
    write(fs / "other", memory__max="1\n", memory__current="1\n")
    assert left(tmp_path, "0::/a/b\n") == [1500, 4000]
    assert left(tmp_path, "0::/a\n") == [1500]
    assert left(tmp_path, "0::/\n") == []


def test_a_namespace_has_its_own_top(tmp_path: Path) -> None:
    write(tmp_path / "fs", memory__max="700", memory__current="200")
    assert left(tmp_path, "0::/\n") == [500]
    assert left(tmp_path, "0::/not/mounted/here\n") == [500]


def test_groups_of_version_one(tmp_path: Path) -> None:
    memory = tmp_path / "fs" / "memory"
    names = {"memory__limit_in_bytes": UNLIMITED, "memory__usage_in_bytes": "99"}
    write(memory, **names)
    write(
        memory / "docker" / "x",
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="900",
        memory__stat="cache 1\ninactive_file 1\ntotal_inactive_file 300\n",
    )
    lines = "12:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n1:name=systemd:/memory\n0::/\n"
    assert left(tmp_path, lines) == [int(UNLIMITED) - 99, 400]
    assert left(tmp_path, "7:hugetlb,memory:/docker/x\n")[-1] == 400


def test_what_can_be_dropped_is_not_used(tmp_path: Path) -> None:
    stat = "anon 50\ninactive_file 400\nactive_file 300\ntotal_inactive_file 7\n"
    write(tmp_path / "fs" / "a", memory__max="1000", memory__current="900", memory__stat=stat)
    assert left(tmp_path, "0::/a\n") == [500]
    write(tmp_path / "fs" / "a", memory__current="100")  # the two were not read at one time
    assert left(tmp_path, "0::/a\n") == [1000]
    write(tmp_path / "fs" / "a", memory__current="2000")
    assert left(tmp_path, "0::/a\n") == [0]


@pytest.mark.parametrize("limit", ["max\n", "", "-1", "ten", "1e9", "²"])
def test_groups_without_a_limit(tmp_path: Path, limit: str) -> None:
    write(tmp_path / "fs" / "a", memory__max=limit, memory__current="5")
    assert left(tmp_path, "0::/a\n") == []


def test_a_limit_without_a_use_is_still_one(tmp_path: Path) -> None:
    write(tmp_path / "fs" / "a", memory__max="1000", memory__stat="nonsense\ninactive_file x\n")
    assert left(tmp_path, "0::/a\n") == [1000]


@pytest.mark.parametrize(
    "groups",
    ["0::/../secret\n", "0::/a/../../secret\n", "4:memory:/../../secret\n", "0::/a\0b\n", "0", ""],
)
def test_paths_lead_nowhere_else(tmp_path: Path, groups: str) -> None:
    write(tmp_path / "secret", memory__max="1", memory__current="0")
    write(tmp_path / "fs" / "secret", memory__max="2", memory__current="0")
    write(tmp_path / "fs", memory__max="1000", memory__current="0")
    write(tmp_path / "fs" / "memory", memory__limit_in_bytes="1000")
    assert set(left(tmp_path, groups)) <= {1000}


def test_files_that_cannot_be_read_are_no_error(tmp_path: Path) -> None:
    fs = tmp_path / "fs"
    write(fs, memory__max="1000", memory__current="300")
    assert _left_by_groups(tmp_path / "missing", fs) == [700]
    assert _left_by_groups(fs, tmp_path / "missing") == []  # a folder, and nothing
    (fs / "memory.current").unlink()
    (fs / "memory.current").write_bytes(b"\xff\xfe\x00")
    assert _left_by_groups(tmp_path / "missing", fs) == [1000]


def test_small_requests_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisim_abstract._base.memory.available_bytes", lambda: 0)
    check_memory(2**20, what="A table", instead="use less")
    with pytest.raises(MemoryLimitError, match="0 bytes are available"):
        check_memory(2**20 + 1, what="A table", instead="use less")
    with pytest.raises(MemoryLimitError, match="1 bytes are allowed"):
        check_memory(2, what="A table", instead="use less", memory_limit=1)


# -- functions with a limit --------------------------------------------------------------------

N = 300


def gap(s: npt.NDArray[np.int64], t: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.abs(s - t), float)


class World:
    """Things to measure, made once."""

    def __init__(self) -> None:
        self.mdp = sparse_mdp(N, seed=0)
        self.points = np.random.default_rng(0).normal(size=(N, 2))
        self.metric = bisimulation_metric(self.mdp, 0.5)
        self.certificate = single_build(self.mdp, 0.5, neighbours=8, sweeps=2)
        rng = np.random.default_rng(1)
        self.steps = (rng.integers(N, size=500), np.zeros(500, int), np.zeros(500))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


# A call with a limit, a limit that is enough, and what the refusal says.
LIMITED: dict[str, tuple[Callable[[World, int | None], Any], int, tuple[str, ...]]] = {
    "single_build": (
        lambda w, b: (
            single_build(
                w.mdp, 0.5, neighbours=4, sweeps=1, resources=Resources(memory_limit=b)
            ).upper
        ),
        10_000_000,
        ("300 states", "landmarks"),
    ),
    "single_build, index side": (
        lambda w, b: (
            single_build(
                w.mdp,
                0.5,
                neighbours=4,
                sweeps=1,
                backup="index",
                resources=Resources(memory_limit=b),
            ).upper
        ),
        10_000_000,
        ("300 states", "landmarks"),
    ),
    "single_build, own points": (
        lambda w, b: (
            single_build(
                w.mdp,
                0.5,
                neighbours=4,
                sweeps=1,
                embedding=w.points,
                resources=Resources(memory_limit=b),
            ).upper
        ),
        10_000_000,
        ("4 neighbours of 300 states", "fewer neighbours"),
    ),
    "cluster_by_metric": (
        lambda w, b: cluster_by_metric(w.metric, 0.3, resources=Resources(memory_limit=b)),
        10_000_000,
        ("300 classes", "certify(mdp, gamma, tau=tau)"),
    ),
    "landmark_mds": (
        lambda w, b: landmark_mds(
            gap, N, n_landmarks=100, seed=0, resources=Resources(memory_limit=b)
        ),
        1_400_000,
        ("300 states from 100 landmarks", "fewer landmarks"),
    ),
    "retrieve_neighbours": (
        lambda w, b: retrieve_neighbours(
            w.points, k=5, seed=0, resources=Resources(memory_limit=b)
        ),
        210_000,
        ("5 neighbours of 300 states", "fewer neighbours"),
    ),
    "retrieve_pairs": (
        lambda w, b: retrieve_pairs(w.points, k=5, seed=0, resources=Resources(memory_limit=b)),
        210_000,
        ("5 neighbours of 300 states", "fewer neighbours"),
    ),
    "evaluate_embedding": (
        lambda w, b: evaluate_embedding(
            w.metric, w.points, sample=50_000, resources=Resources(memory_limit=b)
        ),
        7_300_000,
        ("44,850 pairs", "smaller sample"),
    ),
    "verify": (
        lambda w, b: verify(w.mdp, w.certificate, resources=Resources(memory_limit=b)),
        1_000_000,
        ("checking a certificate", "larger machine"),
    ),
    "verify, exact": (
        lambda w, b: verify(
            w.mdp, w.certificate, mode="sampled", sample=5, resources=Resources(memory_limit=b)
        ),
        1_000_000,
        ("checking a certificate", "larger machine"),
    ),
    "estimate_mdp": (
        lambda w, b: estimate_mdp(
            *w.steps,
            w.steps[0],
            n_states=N,
            n_actions=2,
            reward_range=(0, 1),
            resources=Resources(memory_limit=b),
        ),
        200_000,
        ("300 states and 2 actions from 500 steps", "that occur"),
    ),
    "value_features": (
        lambda w, b: (
            value_features(w.mdp, 0.5, count=9, resources=Resources(memory_limit=b)).values
        ),
        66_000,
        ("9 value functions of 300 states", "smaller count"),
    ),
    "bisimulation_metric": (
        lambda w, b: bisimulation_metric(w.mdp, 0.5, resources=Resources(memory_limit=b)).upper,
        50_000_000,
        ("300 bisimulation classes", "reachable"),
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits_are_kept_and_enough(name: str, world: World) -> None:
    call, enough, words = LIMITED[name]
    text = refused(lambda: call(world, 20_000))
    for word in (*words, "20.0 kB are allowed by memory_limit"):
        assert word in text
    for bad in (0, -5, 1.5, "4GB"):
        with pytest.raises(InvalidArgumentError, match="memory_limit"):
            call(world, bad)  # type: ignore[arg-type]
    found, plain = call(world, enough), call(world, None)
    if isinstance(plain, np.ndarray | tuple):
        np.testing.assert_array_equal(found, plain)
    else:
        assert found == plain


def test_links_are_found_a_few_rows_at_once(world: World) -> None:
    for tau in (1e-9, 0.1, 0.3, 1e9):
        plain = cluster_by_metric(world.metric, tau)
        for limit in (53_000, 60_000, 200_000):
            few = cluster_by_metric(world.metric, tau, resources=Resources(memory_limit=limit))
            np.testing.assert_array_equal(few, plain)
    assert (
        peak(lambda: cluster_by_metric(world.metric, 1e9, resources=Resources(memory_limit=60_000)))
        < 120_000
    )


def test_limits_reach_what_single_build_covers(world: World) -> None:
    """Embedding and retrieval fit, the lookup of ground costs does not."""
    with pytest.raises(MemoryLimitError, match="covered pairs"):
        single_build(world.mdp, 0.5, neighbours=8, resources=Resources(memory_limit=650_000))


def test_limits_reach_rounds_over_covered_pairs(world: World) -> None:
    with pytest.raises(MemoryLimitError, match="40 partners of 300 states"):
        certify(
            world.mdp,
            0.5,
            method=Covering(neighbours=0, partners=40),
            resources=Resources(memory_limit=400_000),
        )
    with pytest.raises(MemoryLimitError, match="landmarks"):
        certify(world.mdp, 0.5, method=Covering(), resources=Resources(memory_limit=100_000))


# -- a check that does not fit is no rejection -------------------------------------------------


def test_verify_looks_at_all_parts_of_a_certificate(world: World) -> None:
    mdp, _ = grouped_mdp(N, 5, seed=0)
    found = certify(mdp, 0.9, tau="auto")
    found = replace(found, features=value_features(mdp, 0.9), run={})
    assert found.levels
    assert verify(mdp, found, resources=Resources(memory_limit=10**8)).is_valid
    names = set()
    for limit in range(1_000, 400_000, 1_000):
        try:
            verify(mdp, found, resources=Resources(memory_limit=limit))
        except MemoryLimitError as error:
            names.add(str(error).split(" up to its ")[1].split(" ")[0])
        else:
            break
    assert {"labels", "values"} <= names
    # Pairs are checked one table after the other: only the largest counts.
    pairs = verify(world.mdp, world.certificate).pairs_checked
    text = refused(
        lambda: verify(world.mdp, world.certificate, resources=Resources(memory_limit=1))
    )
    assert human_bytes(190 * pairs) in text


def test_wrong_certificates_are_rejected_where_they_fit(world: World) -> None:
    made = world.certificate
    wrong = replace(made, lower=made.lower + 9.0, upper=made.upper + 9.0, run={})
    assert verify(world.mdp, wrong, resources=Resources(memory_limit=10**8)).verdict == "rejected"
    with pytest.raises(MemoryLimitError):
        verify(world.mdp, wrong, resources=Resources(memory_limit=10_000))


class Impostor:
    """A certificate, but for one field."""

    def __init__(self, certificate: Certificate, name: str, value: Any) -> None:
        self._of, self._name, self._value = certificate, name, value

    def __getattr__(self, name: str) -> Any:
        if name != self._name:
            return getattr(self._of, name)
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def test_certificates_larger_than_memory_are_not_copied(world: World) -> None:
    endless = Impostor(world.certificate, "keys", np.broadcast_to(np.int64(1), 10**13))
    assert "larger machine" in refused(lambda: verify(world.mdp, endless))  # type: ignore[arg-type]


def test_certificates_cannot_pretend_to_be_too_large(world: World) -> None:
    class Liar(np.ndarray[Any, Any]):
        @property
        def size(self) -> int:
            raise MemoryLimitError("go away")

    for value in (MemoryLimitError("go away"), world.certificate.keys.view(Liar)):
        found = verify(world.mdp, Impostor(world.certificate, "keys", value))  # type: ignore[arg-type]
        assert found.verdict == "rejected"


# -- small calls that ask for too much ---------------------------------------------------------


def far(*shape: int) -> npt.NDArray[np.float64]:
    """An array of any size that takes no memory."""
    return np.broadcast_to(np.float64(0.5), shape)


class Shown(gym.Env[Any, Any]):
    """Every step finds a new state, larger than the last one."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.noise = 0, b""
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.noise = np.random.default_rng(self.count).bytes(10**6)
        return 0, 0.0, False, False, {}


def agent(seed: int = 0, n_states: int | None = None) -> QLearning:
    return QLearning(RoomsGridEnv(side=4, room_size=2), gamma=0.9, n_states=n_states, seed=seed)


GIGANTIC: dict[str, tuple[Callable[[World], Any], str]] = {
    "random": (lambda w: random_mdp(10**6), "sparse_mdp"),
    "random, actions": (lambda w: random_mdp(10, 10**12), "sparse_mdp"),
    "sparse": (lambda w: sparse_mdp(10**10), "fewer states"),
    "sparse, support": (lambda w: sparse_mdp(10**6, support=10**6), "support"),
    "grouped": (lambda w: grouped_mdp(10**10, 10), "fewer states"),
    "grouped, support": (
        lambda w: grouped_mdp(10**6, 10**6, support=10**6),
        "fewer states",
    ),
    "dense": (lambda w: TabularMDP.from_dense(far(10**6, 1, 10**6), [0.0]), "from_rows"),
    "rows": (lambda w: TabularMDP.from_rows([0], far(10**12), far(10**12), [[0.0]]), "pass fewer"),
    "rewards": (
        lambda w: TabularMDP(
            indptr=w.mdp.indptr,
            indices=w.mdp.indices,
            probs=w.mdp.probs,
            rewards=far(10**6, 10**6),
        ),
        "copy of rewards, 1,000,000,000,000 numbers",
    ),
    "grid": (lambda w: RoomsGridEnv(side=10**9), "smaller side"),
    "background": (
        lambda w: Distractor(gym.make("FrozenLake-v1"), n_background=10**9),
        "smaller n_background",
    ),
    "table": (lambda w: agent(n_states=10**13), "AbstractedEnv"),
    "steps": (lambda w: agent().learn(10**13), "several times"),
    "seeds": (lambda w: learning_curve("x", agent, lambda p: 0.0, [1], seeds=10**13), "seeds"),
    "transport": (
        lambda w: solve_transport(np.ones((300, 1, 2, 2)), np.ones((1, 10**4, 2)), np.ones(2)),
        "fewer at a time",
    ),
    "metric, all": (
        lambda w: w.metric.bounds(np.zeros((10**4, 1), int), np.zeros((1, 10**4), int)),
        "in parts",
    ),
    "certificate, all": (
        lambda w: w.certificate.bounds(np.zeros((10**4, 1), int), np.zeros((1, 10**4), int)),
        "in parts",
    ),
    "features": (lambda w: value_features(sparse_mdp(9, 60, seed=0), 0.5, count=10**14), "count"),
    "landmarks": (lambda w: landmark_mds(gap, 10**12), "fewer landmarks"),
    "neighbours": (lambda w: retrieve_pairs(far(10**12, 1), k=1), "fewer neighbours"),
    "links": (lambda w: retrieve_pairs(w.points, k=1, index="HNSW10000000000"), "after HNSW"),
    "cells": (lambda w: retrieve_pairs(w.points, k=1, index="IVF1000000000000,Flat"), "after IVF"),
    "dimensions": (lambda w: retrieve_pairs(far(300, 10**12), k=1), "fewer dimensions"),
    "points": (lambda w: distortion(far(10**13, 1), gap, 10**13, sample=1), "fewer dimensions"),
    "encoded": (
        lambda w: distortion(RandomEmbedding(3), gap, 10**14, sample=1),
        "embed fewer states",
    ),
    "estimate": (
        lambda w: estimate_mdp(
            [0], [0], [0], [0], n_states=1, n_actions=10**18, reward_range=(0, 1)
        ),
        "that occur",
    ),
    "transitions": (lambda w: sample_transitions(w.mdp, 10**12), "ask for fewer"),
    "rollouts": (lambda w: sample_transitions(w.mdp, 10**12, states="rollout"), "ask for fewer"),
    "collected": (lambda w: collect_transitions("FrozenLake-v1", 10**13), "ask for fewer"),
    "copies": (lambda w: collect_transitions("FrozenLake-v1", 1, n_envs=10**11), "n_envs"),
    "random points": (lambda w: RandomEmbedding(10, dim=10**13), "ask for fewer"),
}
MADE = {"certificate, all", "collected", "steps", "features"}  # some things are made before


@pytest.mark.parametrize("name", GIGANTIC)
def test_gigantic_requests_are_refused(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, remedy = GIGANTIC[name]
    if name in ("metric, all", "certificate, all", "transport"):  # of which the inputs are real
        monkeypatch.setattr("bisim_abstract._base.memory.available_bytes", lambda: 10**8)
    text = refused(lambda: call(world), most=3_000_000 if name in MADE else 500_000)
    assert remedy in text


def test_features_of_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    features = value_features(world.mdp, 0.5, count=2)
    monkeypatch.setattr("bisim_abstract._base.memory.available_bytes", lambda: 10**8)
    states = np.zeros((10**4, 1), int)
    assert "in parts" in refused(lambda: features.lower(states, states.T))


def test_pairs_to_draw_are_refused(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr("bisim_abstract._base.memory.available_bytes", lambda: 1_500_000)
    rng = np.random.default_rng(0)
    text = refused(lambda: pair_groups(world.certificate, 10**12, rng))
    assert "44,850 pairs" in text
    assert pair_groups(world.certificate, 100, rng)["covered"][0].size == 100


def test_models_of_an_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = RoomsGridEnv(side=100)
    product = Distractor(RoomsGridEnv(side=10), n_background=200)
    monkeypatch.setattr("bisim_abstract._base.memory.available_bytes", lambda: 3_000_000)
    assert "the model of 100 x 100 cells needs 13.5 MB" in refused(grid.to_mdp)
    text = refused(product.to_mdp, most=2_000_000)  # the smaller model is made first
    assert "100 states and 200 backgrounds" in text


def test_enumeration_ends_where_snapshots_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bisim_abstract._base.memory.available_bytes", lambda: 10**6)
    text = refused(
        lambda: enumerate_mdp(Shown(), reading=Reading(max_states=10**12)), most=60_000_000
    )
    assert "which hold" in text
    assert "freeze" in text


def test_networks_and_batches_are_refused() -> None:
    pytest.importorskip("torch")
    from bisim_abstract.encoders import ActionMaxEncoder, DBCEncoder

    mdp = sparse_mdp(30, seed=0)
    most = 2_000_000  # the transitions
    for encoder, remedy in (
        (DBCEncoder(dim=10**11, steps=1), "(dim)"),
        (DBCEncoder(hidden=(10**7, 10**7), steps=1), "(hidden)"),
        (ActionMaxEncoder(batch_size=10**7, steps=1), "batch_size"),
    ):
        text = refused(lambda e=encoder: e.fit(mdp, n_transitions=100), most=most)  # type: ignore[misc]
        assert remedy in text
    # Layers that a table of states does not have are not counted.
    assert ActionMaxEncoder(hidden=(10**7, 10**7), steps=1).fit(mdp, n_transitions=100).is_fitted


def test_much_of_what_is_available_may_be_used() -> None:
    """A tenth of the memory there is, or a gigabyte, is never refused."""
    size = min(available_bytes() // 10, 10**9)
    check_memory(size, what="A table", instead="use less")


# -- estimates are true ------------------------------------------------------------------------

# What is measured here counts arrays only; torch, FAISS and kernels have their own memory.
TRUE: dict[str, tuple[Callable[[], Any], int]] = {
    "random": (lambda: random_mdp(200, seed=0), 64 * 3 * 200 * 200),
    "sparse": (lambda: sparse_mdp(10_000, seed=0), 96 * 120_000 + 40 * 30_000),
    "grid": (lambda: RoomsGridEnv(side=200), 88 * 40_000),
    "model of a grid": (RoomsGridEnv(side=100).to_mdp, 1350 * 10_000),
    "estimate": (
        lambda: estimate_mdp([0], [0], [0], [0], n_states=20_000, n_actions=2, reward_range=(0, 1)),
        180 * 40_000,
    ),
    "landmarks": (lambda: landmark_mds(gap, 5_000, n_landmarks=100), 24 * 500_000 + 56 * 10**4),
    "transitions": (lambda: sample_transitions(sparse_mdp(9, seed=0), 50_000), 70 * 50_000),
    "transport": (
        lambda: solve_transport(np.ones((2_000, 10, 20)), np.ones(10), np.ones(20)),
        2_000 * (32 * 200 + 56 * 30),
    ),
}


@pytest.mark.parametrize("name", TRUE)
def test_estimates_are_near_the_peak(name: str) -> None:
    call, estimate = TRUE[name]
    call()  # everything is loaded
    assert 0.5 <= estimate / peak(call) <= 1.5
