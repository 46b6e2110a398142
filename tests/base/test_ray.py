"""Sweeps on a Ray cluster: the bits of a local run, whatever happens to workers."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    Covering,
    InvalidArgumentError,
    RayBackend,
    Resources,
    TabularMDP,
    bisimulation_metric,
    certify,
    estimate_mdp,
    verify,
)
from bisim_abstract._base import ray as ray_backend
from bisim_abstract._base.parallel import Array, ChunkWork, Data, Job, LocalBackend, Sweep
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._propose import faiss_index
from bisim_abstract._verify import floats
from bisim_abstract.encoders import sample_transitions
from bisim_abstract.errors import MemoryLimitError, MissingDependency
from bisim_abstract.parts import (
    grouped_mdp,
    random_mdp,
    retrieve_neighbours,
    sparse_mdp,
    value_features,
)
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support import ROOT
from tests.support.asking import certify_named
from tests.support.shared import parts


def estimated() -> TabularMDP:
    mdp, _ = grouped_mdp(12, 3, noise=0.0, seed=0)
    data = sample_transitions(mdp, 40_000, seed=0)
    return estimate_mdp(
        data.states,
        data.actions,
        data.rewards,
        data.next_states,
        n_states=12,
        n_actions=mdp.n_actions,
        alpha=0.1,
        reward_range=(float(mdp.rewards.min()), float(mdp.rewards.max())),
    )


# -- without a cluster -------------------------------------------------------------------------


def test_ray_is_not_imported_by_default() -> None:
    code = (
        "import sys\n"
        "from bisim_abstract import certify\n"
        "from bisim_abstract.parts import random_mdp\n"
        "certify(random_mdp(5, seed=0), 0.9)\n"
        "print('ray' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_bad_backends() -> None:
    mdp = random_mdp(3, seed=0)
    with pytest.raises(InvalidArgumentError, match="backend must be one of 'local', 'ray'"):
        certify(mdp, 0.9, resources=Resources(backend="spark"))
    with pytest.raises(InvalidArgumentError, match="address goes with backend 'ray'"):
        certify(mdp, 0.9, resources=Resources(address="auto"))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"-e '\.\[ray\]'"):
        certify(random_mdp(3, seed=0), 0.9, resources=Resources(backend="ray"))


def test_a_head_that_does_not_answer_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "WAIT", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        context = SimpleNamespace(gcs_address=address)
        head = ray_backend._Head(SimpleNamespace(get_runtime_context=lambda: context), None)
        head.knock()
    with pytest.raises(ConnectionError, match=rf"at {address} does not.*refused; .*checkpoint"):
        head.knock()


@pytest.mark.parametrize(("words", "is_gone"), [("bye", False), ("", False), ("", True)])
def test_whoever_outlives_a_program_that_ray_ended(words: str, is_gone: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = [str(x) for x in server.getsockname()]
        if is_gone:
            server.close()
        done = subprocess.run(
            [sys.executable, "-S", "-c", ray_backend.WATCH, *place, "the head is gone"],
            input=words,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stderr == ("the head is gone\n" if is_gone else "")


def test_a_head_that_answers_once_more_before_it_goes() -> None:
    """Its node is gone, and Ray has ended the program, while the head is still being ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = [str(x) for x in server.getsockname()]
        watch = subprocess.Popen(
            [sys.executable, "-S", "-c", ray_backend.WATCH, *place, "the head is gone"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watch.stdin is not None
        watch.stdin.close()
        server.accept()[0].close()  # it has asked, and was answered
    assert watch.stderr is not None
    assert watch.stderr.read() == "the head is gone\n"
    watch.stderr.close()
    assert watch.wait(60.0) == 1


# -- with one ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayBackend]:
    with RayBackend(num_cpus=2) as backend:
        yield backend


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rooms": (lambda: RoomsGridEnv().to_mdp(), {}),
    "noisy rooms": (lambda: RoomsGridEnv(side=15, room_size=5, noise=0.1).to_mdp(), {}),
    "groups": (lambda: grouped_mdp(60, 5, noise=0.05, seed=1)[0], {"max_pairs": 500}),
    "covered": (
        lambda: sparse_mdp(300, seed=2),
        {"method": "covering", "tau": 0.5, "max_rounds": 4, "neighbours": 30},
    ),
    "estimate": (estimated, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_certificates_are_the_same(name: str, cluster: RayBackend) -> None:
    make, options = MODELS[name]
    mdp = make()
    local = certify_named(mdp, 0.9, **options)
    remote = certify_named(mdp, 0.9, resources=Resources(backend=cluster), **options)
    assert parts(local) == parts(remote)
    assert verify(mdp, remote).is_valid


@pytest.mark.slow
@pytest.mark.parametrize("lookup_bytes", [pytest.param(0, marks=pytest.mark.nightly), 2**30])
def test_many_shards_give_the_bits_of_one_thread(cluster: RayBackend, lookup_bytes: int) -> None:
    mdp = sparse_mdp(200, seed=3)
    small = RayBackend(shard_bytes=1)  # joins the cluster that runs; a chunk is a shard
    divided = Divided(1)
    tables = []
    for backend in (LocalBackend(1), cluster, small, divided):
        divided.node_bytes = 1_400_000
        arms = Arms(mdp, 0.9, resources=Resources(backend=backend), lookup_bytes=lookup_bytes)
        arms.cover_all()
        for _ in range(3):
            arms.sweep()
        divided.node_bytes = 3_050_000  # couplings take more
        coupled = arms.coupled_backup(arms.ground_costs(is_upper=True), is_upper=True)
        tables.append([arms.lower.tobytes(), arms.upper.tobytes(), arms.backups, coupled.tobytes()])
    assert tables == tables[:1] * 4
    # Where positions are not kept, that of couplings too: chunks have them whole otherwise.
    assert divided.divided == (6 if lookup_bytes else 7)
    small.close()  # leaves the cluster alone
    assert cluster.cpus == 2


class Divided(RayBackend):
    """A cluster whose nodes cannot hold the tables; counts sweeps that were divided."""

    def __init__(self, node_bytes: int) -> None:
        super().__init__(node_bytes=node_bytes)
        self.divided = 0

    def _sweep_pieces(self, *args: Any) -> list[Any]:
        self.divided += 1
        return super()._sweep_pieces(*args)


# With fewer bytes per node than tables and couplings have, and more than a chunk reads of them.
METRICS: dict[str, tuple[Any, dict[str, Any], Resources, int]] = {
    "sparse": (lambda: sparse_mdp(200, seed=3), {}, Resources(), 1_400_000),
    "lax": (
        lambda: sparse_mdp(200, 3, support=3, seed=4),
        {"relation": "lax", "max_sweeps": 8},
        Resources(),
        1_500_000,
    ),
    "without couplings": (
        lambda: sparse_mdp(200, seed=3),
        {"max_sweeps": 8},
        Resources(memory_limit=5_000_000),
        1_000_000,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METRICS))
def test_metrics_are_the_same(name: str, cluster: RayBackend) -> None:
    make, options, resources, node_bytes = METRICS[name]
    mdp, divided = make(), Divided(node_bytes)
    local = bisimulation_metric(mdp, 0.9, resources=resources, **options)
    for backend in (cluster, divided):
        there = dataclasses.replace(resources, backend=backend)
        remote = bisimulation_metric(mdp, 0.9, resources=there, **options)
        assert local.class_lower.tobytes() == remote.class_lower.tobytes()
        assert local.class_upper.tobytes() == remote.class_upper.tobytes()
        assert (local.sweeps, local.gap) == (remote.sweeps, remote.gap)
    assert divided.divided > 5


@pytest.mark.slow
def test_what_a_chunk_reads_must_fit_on_a_node(cluster: RayBackend) -> None:
    there = Resources(backend=RayBackend(node_bytes=200_000))
    with pytest.raises(MemoryLimitError, match=r"but 200\.0 kB may be used on a node; start Ray"):
        bisimulation_metric(sparse_mdp(150, seed=3), 0.9, resources=there)


# Costs that are read at once, and bytes of a node that cannot hold the tables, but these costs.
CELLS = {"noisy rooms": (2**14, 600_000), "covered": (2**14, 450_000), "lax": (2**10, 85_000)}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CELLS))
def test_verdicts_are_the_same(
    name: str, cluster: RayBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "lax":
        mdp = sparse_mdp(120, 3, support=3, seed=5)
        options: dict[str, Any] = {"relation": "lax", "method": "covering", "max_rounds": 2}
    else:
        make, options = MODELS[name]
        mdp = make()
    cells, node_bytes = CELLS[name]
    monkeypatch.setattr(floats, "CELLS", cells)
    certificate = certify_named(mdp, 0.9, **options)
    lower = certificate.lower.copy()
    lower[lower.size // 2] = certificate.upper[lower.size // 2] + 1e-3
    upper = np.maximum(lower, certificate.upper)
    forged = dataclasses.replace(certificate, lower=lower, upper=upper)
    divided = Divided(node_bytes)
    seen: list[int] = []
    cluster.listener = lambda done, total: seen.append(total)
    for one, is_valid in ((certificate, True), (forged, False)):
        local = verify(mdp, one)
        assert local.is_valid == is_valid
        assert verify(mdp, one, resources=Resources(backend=cluster)) == local
        assert verify(mdp, one, resources=Resources(backend=divided)) == local
    cluster.listener = None
    assert seen
    assert divided.divided >= 1


@pytest.mark.slow
@pytest.mark.parametrize("index", ["Flat", "IVF64,Flat", "HNSW16", "LSH12"])
def test_neighbours_are_the_same(
    index: str, cluster: RayBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(cluster, "listener", lambda *counts: told.append(counts))
    monkeypatch.setattr(faiss_index, "COMPARED", 2**20)  # so that there are many chunks
    points = np.random.default_rng(0).normal(size=(3_000, 6))
    ours, theirs = (
        retrieve_neighbours(points, k=7, index=index, seed=1, resources=resources)
        for resources in (Resources(threads=1), Resources(backend=cluster))
    )
    np.testing.assert_array_equal(ours, theirs)
    assert told[-1][1] > 1


@pytest.mark.slow
def test_features_are_the_same(cluster: RayBackend) -> None:
    mdp = sparse_mdp(10_000, seed=4)
    local, remote = (
        value_features(mdp, 0.9),
        value_features(mdp, 0.9, resources=Resources(backend=cluster)),
    )
    assert local.values.tobytes() == remote.values.tobytes()
    assert local.corrections.tobytes() == remote.corrections.tobytes()


def dies(marks: str, work: ChunkWork, *args: Any) -> Any:
    """ChunkWork whose worker is killed in the middle, as often as there are marks to take."""
    begin, end, out = args[-3:]
    if begin > 0:
        for path in sorted(Path(marks).iterdir()):
            path.unlink(missing_ok=True)
            out[begin:end] = 7.0  # half done, and wrong
            os.kill(os.getpid(), signal.SIGKILL)
    return work(*args)


class Deadly(RayBackend):
    """A cluster whose workers die."""

    marks = ""

    def prepare(self, job: Job) -> Sweep:
        return super().prepare(
            dataclasses.replace(job, work=functools.partial(dies, self.marks, job.work))
        )


@pytest.mark.slow
def test_killed_workers_change_nothing(cluster: RayBackend, tmp_path: Path) -> None:
    mdp = sparse_mdp(300, seed=2)
    options: dict[str, Any] = {"method": "covering", "tau": 0.5, "max_rounds": 3, "neighbours": 60}
    for k in range(3):
        (tmp_path / str(k)).touch()
    backend = Deadly()
    backend.marks = str(tmp_path)
    remote = certify_named(mdp, 0.9, resources=Resources(backend=backend), **options)
    assert list(tmp_path.iterdir()) == []  # all three deaths took place
    assert parts(remote) == parts(certify_named(mdp, 0.9, **options))
    assert verify(mdp, remote).is_valid


def fails(common: Data, part: Any, fresh: Data, begin: int, end: int, out: Array) -> None:
    raise InvalidArgumentError(f"no good at {begin}")


@pytest.mark.slow
def test_errors_of_workers_are_raised_here(cluster: RayBackend) -> None:
    sweep = cluster.prepare(Job(fails, {}, 10, 5))
    with pytest.raises(InvalidArgumentError, match="no good at"):
        sweep({}, np.empty(10))


def notes(folder: str, common: Data, part: Any, fresh: Data, begin: int, *args: Any) -> None:
    (Path(folder) / str(begin)).touch()
    args[-1][begin : args[0]] = 1.0


@pytest.mark.slow
def test_an_interrupted_sweep_cancels_nothing_and_leaves_little(
    cluster: RayBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `ray.cancel` races with results on their way, and then aborts the whole process.
    monkeypatch.delattr("ray.cancel")
    backend = RayBackend(shard_bytes=1)
    sweep = backend.prepare(Job(functools.partial(notes, str(tmp_path)), {}, 100, 1))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    backend.listener = stop
    out = np.zeros(100)
    with pytest.raises(KeyboardInterrupt):
        sweep({}, out)
    time.sleep(1)  # what was handed out runs out
    assert len(list(tmp_path.iterdir())) <= ray_backend.AHEAD_PER_CPU * backend.cpus
    backend.listener = None
    sweep({}, out)
    assert out.tolist() == [1.0] * 100


def dies_for_good(folder: str, common: Data, *args: Any) -> None:
    """ChunkWork that ends its worker, as often as there is a mark to take."""
    (Path(folder) / str(os.getpid())).touch()
    marks = sorted(Path(folder).glob("mark*"))
    if marks:
        marks[0].unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    args[-1][:] = 1.0


@pytest.mark.slow
def test_ray_itself_retries_more_often_than_shards_are_handed_out(
    cluster: RayBackend, tmp_path: Path
) -> None:
    for k in range(ray_backend.HAND_OUTS + 1):
        (tmp_path / f"mark{k}").touch()
    out = np.zeros(10)
    work = functools.partial(dies_for_good, str(tmp_path))
    cluster.prepare(Job(work, {}, 10, 10))({}, out)
    assert out.tolist() == [1.0] * 10
    assert len(list(tmp_path.iterdir())) == ray_backend.HAND_OUTS + 2


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, 9])
def test_what_ray_gives_up_is_handed_out_again_but_not_for_ever(
    cluster: RayBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    monkeypatch.setattr(ray_backend, "RETRIES", 0)
    backend = RayBackend()
    for k in range(deaths):
        (tmp_path / f"mark{k}").touch()
    out = np.zeros(10)
    sweep = backend.prepare(Job(functools.partial(dies_for_good, str(tmp_path)), {}, 10, 10))
    if deaths == 1:
        sweep({}, out)
        assert out.tolist() == [1.0] * 10
        return
    with pytest.raises(ConnectionError, match=r"lost by the Ray cluster 3 times.*backend 'local'"):
        sweep({}, out)
    assert len(list(tmp_path.glob("mark*"))) == deaths - ray_backend.HAND_OUTS


def adds(common: Data, part: Any, fresh: Data, begin: int, end: int, out: Array) -> None:
    out[begin:end] = common["x"][begin:end] + part[: end - begin] + fresh["y"][begin:end]


def dies_and_adds(folder: str, *args: Any) -> None:
    """ChunkWork that ends its worker, as often as there is a mark to take, and else adds."""
    for path in sorted(Path(folder).iterdir())[:1]:
        path.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
    adds(*args)


@pytest.mark.nightly
def test_parts_of_tables_are_sent_again_to_other_workers(
    cluster: RayBackend, tmp_path: Path
) -> None:
    for k in range(2):
        (tmp_path / str(k)).touch()
    n = 100_000
    x = np.arange(n, dtype=float)

    def narrow(fresh: Data, begin: int, end: int) -> tuple[Data, Any, Data]:
        own = slice(begin, end)
        return {"x": x[own]}, 2.0 * x[own], {"y": fresh["y"][own]}

    job = Job(
        functools.partial(dies_and_adds, str(tmp_path)),
        {"x": x},
        n,
        n // 10,
        lambda begin, end: 2.0 * x[begin:end],
        narrow=narrow,
        tables=("x",),
    )
    # A chunk reads three tenths of a table, and gives one. All of them have two megabytes.
    for node_bytes, words in ((400_000, ""), (300_000, "320.0 kB .* 300.0 kB may be used")):
        divided, out = Divided(node_bytes), np.empty(n)
        sweep = divided.prepare(job)
        if words:
            with pytest.raises(MemoryLimitError, match=words):
                sweep({"y": 4.0 * x}, out)
            continue
        sweep({"y": 4.0 * x}, out)
        assert divided.divided == 1
        assert list(tmp_path.iterdir()) == []  # the deaths took place
        assert out.tobytes() == (7.0 * x).tobytes()


class Owner:
    """A process that puts data into the store; they are lost with it."""

    def put(self, value: Any) -> list[Any]:
        import ray

        return [ray.put(value)]


@pytest.mark.slow
@pytest.mark.parametrize("which", [pytest.param([1], marks=pytest.mark.nightly), [0, 1, 3]])
def test_lost_data_are_put_again(
    cluster: RayBackend, monkeypatch: pytest.MonkeyPatch, which: list[int]
) -> None:
    import ray

    n = 100_000
    x = np.arange(n, dtype=float)
    put = ray.put
    owner: Any = ray.remote(num_cpus=0)(Owner).remote()
    stored: list[Any] = []

    def note(value: Any) -> Any:
        is_lost = len(stored) in which
        stored.append(ray.get(owner.put.remote(value))[0] if is_lost else put(value))
        return stored[-1]

    monkeypatch.setattr(ray, "put", note)
    sweep = cluster.prepare(Job(adds, {"x": x}, n, n // 2, lambda begin, end: 2.0 * x[begin:end]))
    out = np.empty(n)
    sweep({"y": 4.0 * x}, out)
    assert len(stored) == 4  # what is common, a part, what is new, and the other part
    ray.kill(owner)
    end, left = time.monotonic() + 120.0, list(which)
    while left:  # the store lets go of them when it has missed their owner
        assert time.monotonic() < end
        try:
            ray.get(stored[left[0]])
            time.sleep(0.05)
        except ray.exceptions.ObjectLostError:
            left.pop(0)
    found = [out.tobytes()]
    for more in (1 + len(which), 1):  # what is new, and what was lost, once
        before, out = len(stored), np.empty(n)
        sweep({"y": 4.0 * x}, out)
        assert len(stored) == before + more
        found.append(out.tobytes())
    assert found == [(7.0 * x).tobytes()] * 3


@pytest.mark.slow
def test_workers_of_another_version_are_refused(
    cluster: RayBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_backend, "__version__", "0.0.1")
    with pytest.raises(ConnectionError, match=r"but 0\.0\.1 asks it; install the same version"):
        certify(
            sparse_mdp(100, seed=0),
            0.9,
            resources=Resources(backend=cluster),
            method=Covering(),
            max_rounds=1,
        )


@pytest.mark.slow
@pytest.mark.parametrize("is_work", [True, False])
def test_what_workers_cannot_import(
    cluster: RayBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_work: bool
) -> None:
    import ray

    (tmp_path / "only_here.py").write_text("def work(*args):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("only_here").work
    if not is_work:  # as if this package were missing there
        monkeypatch.setattr(cluster, "_task", ray.remote(work))
    sweep = cluster.prepare(Job(work if is_work else adds, {}, 10, 10))
    with pytest.raises(ConnectionError, match=r"cannot load.*same packages on every node"):
        sweep({}, np.empty(10))


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_its_size(cluster: RayBackend) -> None:
    # A view of one zero that claims a terabyte: nothing is allocated to ask.
    huge = np.broadcast_to(np.zeros(1), (2**37,))
    with pytest.raises(MemoryLimitError, match=r"1\.1 TB of the object store.*max_pairs"):
        cluster.prepare(Job(fails, {"huge": huge}, 10, 5))


@pytest.mark.slow
def test_progress_of_shards_is_told(cluster: RayBackend) -> None:
    seen: list[tuple[int, int]] = []
    cluster.listener = lambda done, total: seen.append((done, total))
    arms = Arms(sparse_mdp(200, seed=3), 0.9, resources=Resources(backend=cluster))
    arms.cover_all()
    arms.sweep(upper=False)
    cluster.listener = None
    total = seen[0][1]
    assert [done for done, _ in seen] == list(range(1, total + 1))


@pytest.mark.slow
def test_a_cluster_of_its_own_by_name(tmp_path: Path) -> None:
    """`backend="ray"` and the command line start a cluster, use it, and end it."""
    code = (
        "import json, sys, ray\n"
        "from bisim_abstract import Resources, certify\n"
        "from bisim_abstract.parts import grouped_mdp\n"
        "mdp, _ = grouped_mdp(60, 5, noise=0.05, seed=1)\n"
        "mdp.save('m.npz')\n"
        "stages = []\n"
        "two = Resources(backend='ray', threads=2)\n"
        "found = certify(mdp, 0.9, tau='auto', resources=two, callback=lambda p: "
        "stages.append(p.stage))\n"
        "found.save('api.npz')\n"
        "print(json.dumps([ray.is_initialized(), 'shards' in stages]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = functools.partial(
        subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [False, True]
    words = ["certify", "m.npz", "--tau", "auto", "-o", "cli.npz", "--json"]
    words += ["--backend", "ray", "--threads", "2"]
    done = run([sys.executable, "-m", "bisim_abstract", *words])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["certified"]
    api, cli = (Certificate.load(tmp_path / name) for name in ("api.npz", "cli.npz"))
    local = certify(grouped_mdp(60, 5, noise=0.05, seed=1)[0], 0.9, tau="auto")
    assert parts(api) == parts(cli) == parts(local)


def speaks_http(line: socket.socket) -> None:
    line.recv(100)
    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


ANSWERS: dict[str, tuple[Callable[[socket.socket], Any], str]] = {
    "http": (speaks_http, "is not a Ray cluster"),
    "silent": (lambda line: line.recv(100) and line.recv(100), "timed out"),
    "gone": (lambda line: line.recv(100), "is not a Ray cluster"),
}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "ray://"])
@pytest.mark.parametrize("name", list(ANSWERS))
def test_an_address_of_something_else(
    name: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_backend, "PATIENCE", 1.0)
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delattr(ray, "init")  # never gets there
    answer, words = ANSWERS[name]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                answer(line)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"{prefix}127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{address}.*{words}"):
            RayBackend(address=address)
        thread.join()


def speaks_grpc(line: socket.socket) -> None:
    line.recv(100)
    line.sendall(bytes([0, 0, 0, ray_backend.SETTINGS, 0, 0, 0, 0, 0]))


@pytest.mark.slow
def test_what_answers_but_lets_nobody_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray_backend, "JOINING", 4.0)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delattr(ray, "init")  # would not come back
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = []

        def serve() -> None:
            for k in range(2):  # whoever knocks, and Ray, as loopback is dialled as it is given
                lines.append(server.accept()[0])
                if k == 0:
                    speaks_grpc(lines[0])

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{address} answers, but .* within 4 s; give"):
            RayBackend(address=address, callback=lambda progress: told.append(progress.detail))
        thread.join(60.0)
        assert len(lines) == 2
        for line in lines:
            line.close()
    assert told == [f"joining the Ray cluster at {address}, for at most 14 s"]


@pytest.mark.slow
def test_a_local_cluster_listens_to_this_machine_alone(cluster: RayBackend) -> None:
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    assert host == "127.0.0.1"
    with socket.create_connection((host, int(port)), timeout=10.0):
        pass
    # Another address of this machine: what listens to the whole network answers here too.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=10.0)
    assert ray_backend.NETWORK not in os.environ  # what was changed for that is as it was
    assert importlib.import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER


@pytest.mark.slow
def test_a_token_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**options: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster") from RuntimeError(
            "Last connection error:\nray.exceptions.AuthenticationError: RPC error"
        )

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray_backend, "TRIAL", "pass")
    with pytest.raises(ConnectionError, match=r"auto could not be reached.*RAY_AUTH_MODE=token"):
        RayBackend(address="auto")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ("raise ConnectionError('no way.\\nReally.')", "reached: no way$"),
        ("import os; os.abort()", "reached: it ended without a word$"),
        ("import sys; sys.exit('ray.exceptions.AuthenticationError: RPC')", "RAY_AUTH_MODE=token"),
    ],
)
def test_the_last_words_of_a_trial(trial: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delattr(ray, "init")
    monkeypatch.setattr(ray_backend, "TRIAL", trial)
    with pytest.raises(ConnectionError, match=words):
        RayBackend(address="auto")


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--address", "auto"]])
def test_the_address_of_the_environment(words: list[str], tmp_path: Path) -> None:
    random_mdp(4, seed=0).save(tmp_path / "m.npz")
    done = subprocess.run(
        [sys.executable, "-m", "bisim_abstract", "certify", "m.npz", "--backend", "ray", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr


@pytest.mark.slow
def test_an_address_where_nobody_is(tmp_path: Path) -> None:
    random_mdp(4, seed=0).save(tmp_path / "m.npz")
    words = ["certify", "m.npz", "--backend", "ray", "--address", "127.0.0.1:1"]
    done = subprocess.run(
        [sys.executable, "-m", "bisim_abstract", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("bisim-abstract: ")]
    assert len(lines) == 1
    assert "127.0.0.1:1" in lines[0]
