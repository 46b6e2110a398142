"""A Ray cluster of several nodes that are joined, killed and replaced, and the bits stay.

Drivers run in processes of their own, as Ray is initialised once per process; nodes are real
raylets, killed without a farewell.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract import Certificate, RayBackend, Resources, TabularMDP, certify, verify
from bisim_abstract._base import ray as module
from bisim_abstract._base.parallel import Array, ChunkWork, Job, Sweep
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.support import ROOT
from tests.support.asking import certify_named
from tests.support.shared import parts

DEADLINE = 120.0  # seconds for anything to happen: only a fault takes that long
INLINE = 100 * 1024  # bytes up to which Ray keeps results in the driver, not in a node's store
OPTIONS: dict[str, Any] = {"method": "covering", "tau": 0.5, "max_rounds": 1, "neighbours": 150}

pytestmark = pytest.mark.slow


def model() -> TabularMDP:
    return sparse_mdp(200, seed=2)


def large() -> tuple[TabularMDP, dict[str, Any]]:
    """A model with four shards, all with results that are large enough for the store."""
    return sparse_mdp(362, seed=2), OPTIONS | {"neighbours": 361}


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # ended in the meantime
        if int(sid) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def end_session(session: int) -> None:
    """Kill all processes of a session at once, however they were started."""

    def is_empty() -> bool:
        for pid in members(session):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # ended by itself
        return not members(session)

    until(is_empty, "processes to end")


def name(pid: int) -> str:
    """Of a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


# -- drivers and what they hand to workers -----------------------------------------------------


def node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def meets(folder: str, work: ChunkWork, *args: Any) -> Any:
    """ChunkWork that goes on when two nodes have come to it."""
    (Path(folder) / node_id()).touch()
    until(lambda: len(list(Path(folder).iterdir())) >= 2, "a second node")
    return work(*args)


def stalls(folder: str, doomed: str, work: ChunkWork, *args: Any) -> Any:
    """ChunkWork of which one node does the first shard that it gets, and hangs in the second.

    Other nodes leave it the time to come to that.
    """
    import ray

    here, task = node_id(), str(ray.get_runtime_context().get_task_id())
    (Path(folder) / f"{args[-3]} {here}").touch()
    first = Path(folder) / "first"
    if here != doomed:
        until((Path(folder) / "second").exists, "a task on the other node")
        return work(*args)
    if not first.exists():
        first.write_text(task)
        (Path(folder) / "pid").write_text(str(os.getpid()))
    if first.read_text() != task:
        (Path(folder) / "second").touch()
        until((Path(folder) / "never").exists, "the end of this node")
    return work(*args)


def hangs(folder: str, work: ChunkWork, *args: Any) -> Any:
    """ChunkWork that does not end before its node is killed."""
    (Path(folder) / node_id()).touch()
    until((Path(folder) / "killed").exists, "the end of this node")
    return work(*args)


class Wrapped(RayBackend):
    """A cluster on which work is done in some odd way."""

    wrap: Callable[..., Any]

    def prepare(self, job: Job) -> Sweep:
        return super().prepare(
            dataclasses.replace(job, work=functools.partial(self.wrap, job.work))
        )


class Late(Wrapped):
    """A driver that fetches nothing of its first sweep before a node is gone."""

    folder: Path
    doomed: str

    def _gather(
        self,
        hand_out: Callable[[int, str], Any],
        ranges: list[list[tuple[int, int]]],
        out: Array,
        **options: Any,
    ) -> list[Any]:
        from ray.experimental import get_object_locations

        if (self.folder / "killed").exists():
            return super()._gather(hand_out, ranges, out)
        tasks = {k: hand_out(k, "") for k in range(len(ranges))}

        def there() -> list[int]:
            """Where shards begin whose results are on that node and nowhere else."""
            found = get_object_locations(list(tasks.values()))
            return [
                ranges[k][0][0]
                for k, task in tasks.items()
                if found[task]["node_ids"] == [self.doomed]
                and (found[task]["object_size"] or 0) > INLINE  # None as long as it is not known
            ]

        until(there, "a result in the store of the node")
        until((self.folder / "second").exists, "a task on the node")
        (self.folder / "ready").write_text(json.dumps(there()))
        until((self.folder / "killed").exists, "the end of the node")
        return super()._gather(
            lambda k, lost: tasks.pop(k) if k in tasks else hand_out(k, lost), ranges, out
        )


def drive(kind: str, address: str, folder: str) -> None:
    """One run on a cluster, in a process of its own."""
    ray: Any = importlib.import_module("ray")
    module.QUIET = 2.0
    module.SHARDS_PER_CPU = 2  # few shards of a small model, larger than what goes inline
    backend = (Late if kind == "stalls" else Wrapped)(address=address)
    nodes = [x["NodeID"] for x in ray.nodes() if x["Alive"] and x["Resources"].get("CPU")]
    if isinstance(backend, Late):
        backend.folder, backend.doomed = Path(folder), nodes[0]
        backend.wrap = functools.partial(stalls, folder, nodes[0])
    else:
        backend.wrap = functools.partial({"meets": meets, "hangs": hangs}[kind], folder)
    mdp, options = large() if kind == "stalls" else (model(), OPTIONS)
    with backend:
        found = certify_named(mdp, 0.9, resources=Resources(backend=backend), **options)
    found.save(Path(folder).with_suffix(".npz"))


# -- a cluster ---------------------------------------------------------------------------------


START = """
from ray._private import services
services.get_node_ip_address = lambda address=None: "127.0.0.1"
from ray.scripts.scripts import main
main()
"""


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


def environment_of_ray(folder: Path) -> dict[str, str]:
    """Nothing of a cluster that somebody else may run here."""
    found = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return found | token | {"RAY_TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}


class Nodes:
    """A head without processors, nodes with one each, and drivers; all are ended by `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = environment_of_ray(folder)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.nodes: list[int] = []

    def start(
        self,
        words: list[str],
        log: Path,
        *,
        cwd: Path = ROOT,
        environment: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start Python in a session of its own."""
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *words],
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=cwd,
                env=environment or self.environment,
            )
        self.processes.append(process)
        return process

    def add(self, *nodes: list[str]) -> list[int]:
        """Start nodes with these options, one by one; returns their sessions."""
        common = ["--object-store-memory=100000000", "--disable-usage-stats", "--block"]
        # As an administrator would: elsewhere, knowing nothing of the package, and on loopback,
        # which Ray dials only if told so. A killed node is missed within seconds, not half a
        # minute.
        environment = {k: v for k, v in self.environment.items() if k != "PYTHONPATH"} | {
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
        }
        started = []
        for words in nodes:
            log = self.folder / f"{len(self.processes)}.log"
            command = ["-c", START, "start", *words, *common]
            process = self.start(command, log, cwd=self.folder, environment=environment)
            wait_for(process, log, functools.partial(says, log, "Ray runtime started"))
            started.append(process.pid)
        return started

    def have(self, count: int) -> list[int]:
        """Sessions of that many nodes with a processor; those that are missing are started."""
        self.nodes = [node for node in self.nodes if members(node)]
        words = [f"--address={self.address}", "--num-cpus=1"]
        self.nodes += self.add(*[words] * (count - len(self.nodes)))
        return list(self.nodes)

    def drive(self, kind: str, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
        """A driver, and what it says."""
        folder.mkdir()
        call = "import sys; from tests.base.test_ray_nodes import drive; drive(*sys.argv[1:])"
        log = folder.with_suffix(".log")
        return self.start(["-c", call, kind, self.address, str(folder)], log), log

    def stop(self) -> None:
        """End everything that was started."""
        for process in self.processes:
            end_session(process.pid)
            process.wait()


def wait_for(process: subprocess.Popen[bytes], log: Path, condition: Callable[[], Any]) -> None:
    """Wait for something that a process does, which must not end before."""
    until(lambda: condition() or process.poll() is not None, log.name)
    assert process.poll() is None, log.read_text()


def says(log: Path, words: str) -> bool:
    return words in log.read_text()


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the good end of a driver."""
    assert process.wait(DEADLINE) == 0, log.read_text()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    # A short path: names of sockets have at most 107 letters.
    folder = Path(tempfile.mkdtemp(prefix="nodes"))
    found = Nodes(folder)
    try:
        port = found.address.rpartition(":")[2]
        words = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        found.add([*words, f"--temp-dir={folder}"])
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def local() -> Certificate:
    return certify_named(model(), 0.9, **OPTIONS)


def test_a_cluster_is_joined_at_its_address(
    nodes: Nodes, local: Certificate, tmp_path: Path
) -> None:
    nodes.have(2)
    finish(*nodes.drive("meets", tmp_path / "met"))
    assert len(list((tmp_path / "met").iterdir())) == 2  # both nodes came
    found = Certificate.load(tmp_path / "met.npz")
    assert parts(found) == parts(local)
    assert verify(model(), found).is_valid

    small, _ = grouped_mdp(60, 5, noise=0.05, seed=1)
    small.save(tmp_path / "m.npz")
    words = ["certify", "m.npz", "-o", "cli.npz", "--backend", "ray", "--address", nodes.address]
    command = ["-m", "bisim_abstract", *words]
    log = tmp_path / "cli.log"
    finish(nodes.start(command, log, cwd=tmp_path), log)
    assert parts(Certificate.load(tmp_path / "cli.npz")) == parts(certify(small, 0.9))


def test_a_node_is_killed_with_tasks_and_results(nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(2)
    folder = tmp_path / "late"
    driver, log = nodes.drive("stalls", folder)
    wait_for(driver, log, (folder / "ready").exists)
    end_session(os.getsid(int((folder / "pid").read_text())))
    (folder / "killed").touch()
    finish(driver, log)
    lost = json.loads((folder / "ready").read_text())
    assert lost
    for begin in lost:  # done there, and once more elsewhere
        assert len(list(folder.glob(f"{begin} *"))) == 2
    found = Certificate.load(folder.with_suffix(".npz"))
    mdp, options = large()
    assert parts(found) == parts(certify_named(mdp, 0.9, **options))
    assert verify(mdp, found).is_valid


@pytest.mark.nightly
def test_without_any_processor_it_waits_for_a_node_and_says_so(
    nodes: Nodes, local: Certificate, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    old = nodes.have(1)
    driver, log = nodes.drive("hangs", folder)
    wait_for(driver, log, lambda: list(folder.iterdir()))
    for node in old:
        end_session(node)
    (folder / "killed").touch()
    wait_for(driver, log, functools.partial(says, log, "no processor left"))
    nodes.have(1)
    finish(driver, log)
    assert log.read_text().count("no processor left") == 1
    assert len(list(folder.iterdir())) == len(old) + 2  # the new node came too
    assert parts(Certificate.load(folder.with_suffix(".npz"))) == parts(local)


# -- Ctrl-C ------------------------------------------------------------------------------------

LONG = ["certify", "m.npz", "--method", "covering", "--tol", "1e-13", "--max-rounds", "100000"]
LONG += ["--checkpoint", "state.npz", "--threads", "1"]
CLI = """
import signal, sys, bisim_abstract._base.ray as module
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit none
from bisim_abstract._app.cli import main
module.QUIET = 2.0
sys.exit(main(sys.argv[1:]))
"""


def check_interrupted(driver: subprocess.Popen[bytes], log: Path) -> None:
    """Ctrl-C ends a driver as it should, with its processes, and its checkpoint can be used."""
    os.killpg(driver.pid, signal.SIGINT)  # a terminal tells all processes of the group
    assert driver.wait(DEADLINE) == 130, log.read_text()
    assert "interrupted" in log.read_text()
    assert "Traceback" not in log.read_text()
    until(lambda: not members(driver.pid), "the processes of the driver to end")
    check_resumed(log)


def check_resumed(log: Path) -> None:
    """The checkpoint that a driver left can be used."""
    mdp = TabularMDP.load(log.parent / "m.npz")
    options: dict[str, Any] = {"method": "covering", "tol": 1e-13}
    state = log.parent / "state.npz"
    rounds = certify_named(mdp, 0.9, checkpoint=state, max_rounds=1, **options).run["rounds"]
    resumed = certify_named(mdp, 0.9, checkpoint=state, max_rounds=rounds + 1, **options)
    assert parts(resumed) == parts(certify_named(mdp, 0.9, max_rounds=rounds + 1, **options))


def test_waiting_for_a_node_can_be_interrupted(nodes: Nodes, tmp_path: Path) -> None:
    sparse_mdp(120, seed=2).save(tmp_path / "m.npz")
    old = nodes.have(1)
    log = tmp_path / "log"
    command = ["-c", CLI, *LONG, "--backend", "ray", "--address", nodes.address]
    driver = nodes.start(command, log, cwd=tmp_path)
    wait_for(driver, log, (tmp_path / "state.npz").exists)
    for node in old:
        end_session(node)
    wait_for(driver, log, functools.partial(says, log, "no processor left"))
    check_interrupted(driver, log)


def test_a_cluster_of_its_own_ends_with_an_interrupted_run(tmp_path: Path) -> None:
    sparse_mdp(120, seed=2).save(tmp_path / "m.npz")
    folder = Path(tempfile.mkdtemp(prefix="nodes"))
    own = Nodes(folder)
    log = tmp_path / "log"
    try:
        driver = own.start(["-c", CLI, *LONG, "--backend", "ray"], log, cwd=tmp_path)
        wait_for(driver, log, (tmp_path / "state.npz").exists)
        assert any("raylet" in name(pid) for pid in members(driver.pid))
        check_interrupted(driver, log)
    finally:
        own.stop()
        shutil.rmtree(folder)


def test_a_head_that_goes_away_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    sparse_mdp(120, seed=2).save(tmp_path / "m.npz")
    folder = Path(tempfile.mkdtemp(prefix="nodes"))
    own = Nodes(folder)
    log = tmp_path / "log"
    try:
        port = own.address.rpartition(":")[2]
        words = ["--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
        (head,) = own.add([*words, f"--temp-dir={folder}"])
        command = ["-c", CLI, *LONG, "--backend", "ray", "--address", own.address]
        driver = own.start(command, log, cwd=tmp_path)
        wait_for(driver, log, (tmp_path / "state.npz").exists)
        end_session(head)
        # Ray ends the process at once if it needs the node that is gone, or after a minute if it
        # needs the head; we see that before.
        assert driver.wait(50.0) in (1, 2), log.read_text()
        until(lambda: says(log, "bisim-abstract: "), "a sentence")
    finally:
        own.stop()
        shutil.rmtree(folder)
    (line,) = (x for x in log.read_text().splitlines() if x.startswith("bisim-abstract: "))
    assert f"head of the Ray cluster at {own.address} does not answer any more" in line
    assert "Traceback" not in log.read_text()
    check_resumed(log)
