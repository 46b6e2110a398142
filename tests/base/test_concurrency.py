"""Threads, forks, vector environments and actors: the same bits, and never a hang."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bisim_abstract import Resources
from bisim_abstract._base.atomic import write_json
from bisim_abstract._propose import faiss_index
from bisim_abstract._propose.faiss_index import faiss_ready
from bisim_abstract._prove.certify import certify
from bisim_abstract.parts import grouped_mdp, retrieve_pairs
from tests.support import ROOT
from tests.support.jobs import PARTS, job, part_of_job, small_certificate, verified, walk

pytestmark = pytest.mark.slow

LIMIT = 120.0  # seconds after which something hangs


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Results of so many Python threads that begin at once."""
    gate = threading.Barrier(count)

    def wait_and_work(number: int) -> Any:
        gate.wait(timeout=LIMIT)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [found.result(timeout=LIMIT) for found in
                [pool.submit(wait_and_work, k) for k in range(count)]]  # fmt: skip


def run(code: str, *arguments: object) -> Any:
    """The JSON that a program prints last. If it hangs, it is ended with all its children."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"no end after {LIMIT:.0f} s")
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out + err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def expected() -> str:
    """What all of the work gives, alone and on one thread."""
    return job(threads=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("saved") / "certificate.npz"
    small_certificate().save(path)
    return str(path)


# -- Python threads ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_threads_find_what_one_finds(count: int, expected: str) -> None:
    assert together(count, lambda _: job()) == [expected] * count


def test_different_work_at_once() -> None:
    alone = [part_of_job(name, threads=1) for name in PARTS]
    assert together(len(PARTS), lambda k: part_of_job(PARTS[k])) == alone
    assert together(len(PARTS), lambda k: part_of_job(PARTS[-1 - k])) == alone[::-1]


def test_threads_share_a_model_and_a_certificate() -> None:
    """What is computed once and kept is computed right, whoever comes first."""
    mdp, _ = grouped_mdp(120, 4, noise=0.1, seed=8)
    alone = certify(mdp, 0.9, resources=Resources(threads=1))
    shared = certify(mdp.with_metadata(shared=True), 0.9, resources=Resources(threads=1))
    assert together(4, lambda _: verified(shared, mdp)) == [verified(alone, mdp)] * 4


def test_threads_step_their_own_environments(saved: str) -> None:
    for dynamics in ("aggregated", "ground"):
        alone = walk(saved, dynamics)
        assert together(3, lambda _, d=dynamics: walk(saved, d)) == [alone] * 3  # type: ignore[misc]


def test_writers_at_one_path_leave_one_whole_file(tmp_path: Path) -> None:
    """Each removes what dead writers left, and none takes the others for dead."""
    path = tmp_path / "x.json"
    write_json(path, [0] * 500)
    unsound = []

    def work(number: int) -> None:
        for k in range(100):
            if number == 0:
                held = json.loads(path.read_bytes())
                if len(held) != 500 or len(set(held)) != 1:
                    unsound.append(held)
            else:
                write_json(path, [number * 100 + k] * 500)

    together(4, work)
    assert unsound == []
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


# -- settings of the whole process -------------------------------------------------------------


def faiss_settings() -> tuple[int, int, int]:
    import faiss

    threshold = faiss.cvar.distance_compute_blas_threshold
    return threshold, faiss.omp_get_max_threads(), len(warnings.filters)


@pytest.mark.parametrize("first_out", ["first", "second"])
def test_faiss_settings_while_two_threads_search(first_out: str) -> None:
    """Neither may search with the user's settings, nor take ours for the user's."""
    import faiss

    before = faiss_settings()
    inside, leave = threading.Event(), threading.Event()
    seen = {}

    def other() -> None:
        with faiss_ready():
            inside.set()
            assert leave.wait(timeout=LIMIT)
            seen["other"] = faiss.cvar.distance_compute_blas_threshold

    thread = threading.Thread(target=other)
    if first_out == "first":
        thread.start()
        assert inside.wait(timeout=LIMIT)
        with faiss_ready():
            leave.set()
            thread.join(timeout=LIMIT)
            seen["main"] = faiss.cvar.distance_compute_blas_threshold
    else:
        with faiss_ready():
            thread.start()
            assert inside.wait(timeout=LIMIT)
            seen["main"] = faiss.cvar.distance_compute_blas_threshold
        leave.set()
        thread.join(timeout=LIMIT)
    assert not thread.is_alive()
    assert seen == {"main": 2**31 - 1, "other": 2**31 - 1}
    assert faiss_settings() == before


def test_interrupts_on_the_way_into_faiss() -> None:
    """Wherever Ctrl-C comes, nobody is inside afterwards: a fork would wait for them for ever."""
    with faiss_ready():  # imported
        pass
    before = faiss_settings()

    def enter(line: int) -> bool:
        """Enter, with an interrupt before that many lines; whether there were as many."""
        left = line

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if frame.f_code.co_name not in ("enter", "faiss_ready"):
                return None
            # No signal is heard between the end of a block and the release of its lock.
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if event == "line" and not text.startswith("with "):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        outer = sys.gettrace()
        try:
            with contextlib.ExitStack() as stack:
                sys.settrace(trace)
                stack.enter_context(faiss_ready())
                sys.settrace(outer)
                return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(outer)

    n_lines = 1
    while enter(n_lines):
        assert not faiss_index._inside._depths
        assert faiss_settings() == before
        n_lines += 1
    assert n_lines > 10
    assert not faiss_index._inside._depths


def test_faiss_settings_after_an_error() -> None:
    before = faiss_settings()
    with pytest.raises(KeyError), faiss_ready():
        raise KeyError
    with pytest.raises(ValueError, match="index"):
        retrieve_pairs([[0.0], [1.0]], k=1, index="nonsense")
    assert faiss_settings() == before


def test_users_own_faiss_settings_survive_many_threads() -> None:
    import faiss

    before = faiss_settings()
    faiss.cvar.distance_compute_blas_threshold = 12345
    try:
        together(4, lambda _: [part_of_job("retrieval") for _ in range(5)])
        assert faiss.cvar.distance_compute_blas_threshold == 12345
    finally:
        faiss.cvar.distance_compute_blas_threshold = before[0]
    assert faiss_settings() == before


def test_torch_threads_of_later_threads() -> None:
    """A thread that enters while another one is inside must not keep torch at one thread."""
    import torch

    from bisim_abstract.encoders._nets import one_thread

    def seen_by_a_new_thread() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result(timeout=LIMIT)

    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        inside, leave = threading.Event(), threading.Event()

        def other() -> int:
            with one_thread():
                inside.set()
                assert leave.wait(timeout=LIMIT)
                return torch.get_num_threads()

        with ThreadPoolExecutor(1) as pool:
            with one_thread():
                found = pool.submit(other)
                assert inside.wait(timeout=LIMIT)
            assert torch.get_num_threads() == 3
            leave.set()
            assert found.result(timeout=LIMIT) == 1
        assert seen_by_a_new_thread() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(usual)


@pytest.mark.slow
def test_encoders_in_two_threads() -> None:
    import numpy as np

    from bisim_abstract.encoders import ActionMaxEncoder
    from tests.support.jobs import digest

    mdp, _ = grouped_mdp(40, 4, noise=0.05, seed=0)

    def trained(seed: int) -> str:
        encoder = ActionMaxEncoder(dim=4, gamma=0.9, steps=60, seed=seed)
        return digest(encoder.fit(mdp, n_transitions=500).encode(np.arange(40)))

    assert together(2, trained) == [trained(0), trained(1)]


# -- other processes ---------------------------------------------------------------------------

OTHERS = """
import json, multiprocessing, os, sys
from tests.support.jobs import job

if __name__ == "__main__":
    way, is_used = sys.argv[1], sys.argv[2] == "used"
    before = [job()] if is_used else []
    if way == "os.fork":
        found = []
        for _ in range(2):
            read, write = os.pipe()
            if os.fork() == 0:
                os.write(write, job().encode())
                os._exit(0)
            os.close(write)
            with os.fdopen(read) as file:
                found.append(file.read())
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    else:
        with multiprocessing.get_context(way).Pool(2) as pool:
            found = pool.map(job, [1, 2], chunksize=1)
            pool.close()
            pool.join()
    print(json.dumps(before + found + [job()]))
"""

BUSY = """
import json, os, threading
from tests.support.jobs import job

alone = job()
stop = threading.Event()

def work():
    while not stop.is_set():
        assert job() == alone

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
codes = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        os._exit(0 if job() == alone else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads:
    thread.join()
print(json.dumps(codes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_used", ["used", "fresh"])
@pytest.mark.parametrize("way", ["os.fork", "fork", "spawn", "forkserver"])
def test_other_processes(way: str, is_used: str, expected: str) -> None:
    found = run(OTHERS, way, is_used)
    assert found == [expected] * (4 if is_used == "used" else 3)


def test_no_property_holds_a_lock_while_it_computes() -> None:
    """A fork of another thread would leave it to the child, for ever (Python 3.11)."""
    for folder in ("bisim_abstract", "wrappers", "encoders"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "cached.py":
                text = path.read_text(encoding="utf-8")
                assert not re.search(r"functools( import .*|\.)cached_property", text), path


@pytest.mark.slow
def test_fork_while_other_threads_work() -> None:
    """Locks that other threads hold are held for ever in a child; none of ours may be."""
    assert run(BUSY) == [0] * 6


INDEXING = """
import json, os, sys, threading
import numpy as np
from bisim_abstract._propose import faiss_index
from bisim_abstract.parts import retrieve_pairs

faiss_index.COMPARED = int(sys.argv[1])
points = np.random.default_rng(0).normal(size=(2000, 4))
retrieve_pairs(points[:100], k=5, index="HNSW16", seed=0)  # everything is imported
begun, leave = threading.Event(), threading.Event()

def index():
    while not leave.is_set():
        begun.set()
        retrieve_pairs(points, k=5, index="HNSW16", seed=0)

threads = [threading.Thread(target=index) for _ in range(2)]
for thread in threads:
    thread.start()
begun.wait()
codes = []
for _ in range(60):
    child = os.fork()
    if child == 0:
        retrieve_pairs(points[:100], k=5, index="HNSW16", seed=0)
        os._exit(7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
leave.set()
for thread in threads:
    thread.join()
print(json.dumps(codes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("compared", [2**26, 2**20])
def test_fork_while_other_threads_are_inside_faiss(compared: int) -> None:
    """FAISS's own locks, held by threads that the child does not have, would stop the child.

    Searches in several chunks have threads of their own, for which those that ask wait.
    """
    assert run(INDEXING, compared) == [7] * 60


WAITING = """
import json, os, signal, threading, time
from bisim_abstract._propose.faiss_index import _inside, faiss_ready

with faiss_ready():
    pass
entered, left, told = threading.Event(), [], []

def stay():
    with faiss_ready():
        entered.set()
        time.sleep(1.0)
        left.append(True)

thread = threading.Thread(target=stay)
thread.start()
entered.wait()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    child = os.fork()
    if child == 0:
        os._exit(7 if left and not _inside._depths else 8)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    time.sleep(1.0)
except KeyboardInterrupt:
    told.append("interrupted")
print(json.dumps([code, told]))
"""


@pytest.mark.slow
def test_an_interrupt_while_a_fork_waits_comes_after_it() -> None:
    """Python forks whatever a hook raises: the child would have somebody inside for ever."""
    assert run(WAITING) == [7, ["interrupted"]]


KEPT = """
import json, os, pickle, threading
from bisim_abstract._certificate import certificate as module
from tests.support.jobs import small_certificate

# New objects, of which nothing has been computed.
first, second = (pickle.loads(pickle.dumps(small_certificate())) for _ in range(2))
compute, inside, leave = module.link_forests, threading.Event(), threading.Event()

def waiting(*args):
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        leave.wait()
    return compute(*args)

module.link_forests = waiting
thread = threading.Thread(target=lambda: first.forests)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    os._exit(len(second.forests))
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
leave.set()
thread.join()
print(json.dumps([code, first.forests is first.forests]))
"""


@pytest.mark.slow
def test_fork_while_another_thread_computes_what_is_kept() -> None:
    """`functools.cached_property` of Python 3.11 would leave its lock to the child."""
    assert run(KEPT) == [2, True]


COMPILING = """
import json, os, threading
import numba
from bisim_abstract._base import jit

def compiled(number):
    lines = "".join(f"    x = x * {k + number}.5\\n" for k in range(100))
    names = {}
    exec(f"def long(x):\\n{lines}    return x\\n", names)
    numba.njit(names["long"])(1.0)

def compile_on():
    number = 0
    while not leave.is_set():
        number += 1
        compiled(number)
        begun.set()

begun, leave = threading.Event(), threading.Event()
thread = threading.Thread(target=compile_on)
thread.start()
begun.wait()
codes = []
for number in range(3):
    child = os.fork()
    if child == 0:
        compiled(-number)
        os._exit(7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
leave.set()
thread.join()
print(json.dumps(codes))
"""


@pytest.mark.slow
def test_fork_while_another_thread_compiles() -> None:
    """Numba's lock, held by a thread that the child does not have, would stop the child."""
    assert run(COMPILING) == [7, 7, 7]


VECTORS = """
import functools, json, sys
import gymnasium as gym
import numpy as np
from tests.support.jobs import STEPS, job, small_env

if __name__ == "__main__":
    library, way, path, dynamics = sys.argv[1:]
    job()  # used in the parent
    makers = [functools.partial(small_env, path, dynamics)] * 2
    if library == "gymnasium":
        envs = gym.vector.AsyncVectorEnv(makers, context=way)
        seen = [envs.reset(seed=[3, 3])[0].tolist()]
        seen += [envs.step(np.array([k % 4] * 2))[0].tolist() for k in range(STEPS)]
    else:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        envs = SubprocVecEnv(makers, start_method=way)
        envs._seeds = [3, 3]  # `seed` would give them different ones
        seen = [envs.reset().tolist()]
        seen += [envs.step(np.array([k % 4] * 2))[0].tolist() for k in range(STEPS)]
    envs.close()
    print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", ["aggregated", "ground"])
@pytest.mark.parametrize(
    "way",
    ["fork", *(pytest.param(way, marks=pytest.mark.nightly) for way in ("spawn", "forkserver"))],
)
@pytest.mark.parametrize("library", ["gymnasium", "sb3"])
def test_vector_environments(library: str, way: str, dynamics: str, saved: str) -> None:
    found = run(VECTORS, library, way, saved, dynamics)
    assert found == [[k, k] for k in walk(saved, dynamics)]


RAY = """
import json, os, sys
import ray
from bisim_abstract import certify, verify
from bisim_abstract.parts import grouped_mdp
from tests.support.jobs import digest, job, verified, walk

path, root = sys.argv[1:]
ray.init(
    num_cpus=2,
    include_dashboard=False,
    log_to_driver=False,
    runtime_env={"env_vars": {"PYTHONPATH": root}},
)


@ray.remote
class Actor:
    def job(self):
        return job()

    def verified(self, certificate, mdp):
        return verified(certificate, mdp)

    def certified(self, mdp):
        return digest(certify(mdp, 0.9))

    def walk(self, path):
        return walk(path)


mdp, _ = grouped_mdp(120, 4, noise=0.1, seed=8)
certificate = certify(mdp, 0.9)
held = ray.put(mdp)  # arrays come out of the store read-only
actors = [Actor.remote() for _ in range(2)]
found = ray.get(
    [actor.job.remote() for actor in actors]
    + [actor.verified.remote(certificate, held) for actor in actors]
    + [actor.certified.remote(held) for actor in actors]
    + [actor.walk.remote(path) for actor in actors],
    timeout=100,
)
ray.shutdown()
jobs, verdicts, made, walks = (found[k : k + 2] for k in (0, 2, 4, 6))
assert verdicts == [verified(certificate, mdp)] * 2
assert made == [digest(certificate)] * 2
print(json.dumps([jobs, walks]))
"""


@pytest.mark.nightly
def test_ray_actors(saved: str, expected: str) -> None:
    jobs, walks = run(RAY, saved, ROOT)
    assert jobs == [expected] * 2
    assert walks == [walk(saved)] * 2
