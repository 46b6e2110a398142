"""Sweeps on a Ray cluster, with the bits of a local run.

Data that stay the same are put into the object store once per job, data of a sweep once per
sweep, and every node that works gets a copy. Where that would not fit in the store of a node, a
job that can be divided is: each chunk is then sent with what it reads, and no more of them at a
time than fit. Chunks are those of a local run, gathered into shards. A shard whose worker or node
is lost is computed again elsewhere, by Ray or, where Ray gives up, handed out anew from here;
being a function of its inputs alone, it gives the same.
"""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from bisim_abstract._base.checks import check_callback, check_int, require
from bisim_abstract._base.deadline import look
from bisim_abstract._base.memory import human_bytes
from bisim_abstract._base.parallel import Array, ChunkWork, Data, Job, Sweep, spans, thread_count
from bisim_abstract._base.progress import tell
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._version import __version__
from bisim_abstract.errors import MemoryLimitError

__all__ = ["RayBackend"]

logger = logging.getLogger(__name__)

SHARDS_PER_CPU = 3  # so that a slow worker does not keep all others waiting
AHEAD_PER_CPU = 2  # handed out at once: what is left to run out after an interruption
SHARD_BYTES = 64 * 2**20  # of results and data of a shard, at most
RETRIES = 20  # by Ray, of a shard whose worker, node or result was lost
HAND_OUTS = 3  # of a shard from here: what Ray gave up may be a node's fault, or the shard's
STORE_SHARE = 0.8  # of the object store that one job may take
PATIENCE = 10.0  # seconds for a cluster to answer
JOINING = 40.0  # seconds for a cluster to let us in, once it has answered
WAIT = 1.0  # seconds between looks at what is done
KNOCKS = 5  # in vain, one after each such time, after which the head is taken for gone
QUIET = 60.0  # seconds without a result after which the reason is looked for
LOST = (  # what Ray says when it gave up on something that can be computed anew
    "ObjectLostError",
    "WorkerCrashedError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "OutOfMemoryError",
)
# An HTTP/2 client's first words, and the frame that every gRPC server answers with.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS = 4
# Joining, in a process of its own: nothing ends Ray's own waiting, and it may abort the process.
TRIAL = "import json, sys, ray; ray.init(**json.loads(sys.argv[1])); ray.shutdown()"
# A process that outlives this one: Ray ends programs, without a word, whose own node is gone.
# A head that is going may still answer when Ray has already ended us: it is asked for a while.
WATCH = """
import signal, socket, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.stdin.read() != "bye":
    for _ in range(20):
        try:
            socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
        except OSError:
            sys.exit(sys.argv[3])
        time.sleep(0.25)
"""
NO_TOKEN = "it asks for a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Unless this is 0, as it is by default where clusters of several machines are not supported, Ray
# listens to the whole network, and takes loopback addresses for those of the network.
NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class RayBackend:
    """A Ray cluster as the place where sweeps are done.

    Pass it as `Resources(backend=...)` to use one cluster for several runs. If Ray is
    initialised already, that cluster is used; else the one at `address` is joined, or at the
    variable RAY_ADDRESS, or a local one is started, which listens to this machine alone and ends
    with `close` or the end of a `with` block. A cluster that does not let us in is given up after
    at most 50 seconds. Lost workers and nodes change nothing; while no node has a processor, sweeps
    wait for one, with a warning in the log.

    Args:
        address: Of a running cluster, for instance "auto" or "ray://host:10001".
        num_cpus: Processors of a local cluster; all cores by default.
        shard_bytes: How much data and results of one task may take.
        node_bytes: How much data may take of the object store of a node; 80% of the smallest by
            default. Tables that are larger are sent in parts, as they are needed.
        callback: Told what is tried, and how long at most.

    Raises:
        ConnectionError: If there is no such cluster, or it does not let us in.

    Example:
        ```
        with RayBackend(num_cpus=2) as backend:
            certificate = certify(mdp, 0.9, resources=Resources(backend=backend))
        ```
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        num_cpus: int | None = None,
        shard_bytes: int = SHARD_BYTES,
        node_bytes: int | None = None,
        callback: ProgressCallback | None = None,
    ) -> None:
        check_callback(callback)
        self._ray: Any = require("ray", extra="ray")
        self._shard_bytes = check_int("shard_bytes", shard_bytes, low=1)
        if node_bytes is not None:
            node_bytes = check_int("node_bytes", node_bytes, low=1)
        self.node_bytes = node_bytes
        self.listener: Callable[[int, int], None] | None = None
        self._is_ours = not self._ray.is_initialized()
        self._address: str | None = None
        if self._is_ours:
            self._address = self._start(address, thread_count(num_cpus), callback)
        self._head = _Head(self._ray, self._address)
        self._seen: _Seen | None = None
        remote = self._ray.remote(max_retries=RETRIES, num_cpus=1)
        self._task, self._piece = remote(_shard), remote(_piece)

    def _start(
        self, address: str | None, num_cpus: int, callback: ProgressCallback | None
    ) -> str | None:
        """Start or join a cluster; the address that was joined, if any."""
        # Workers must find this very package, and stay on one thread each.
        home = str(Path(__file__).resolve().parents[2])
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        variables = {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "NUMBA_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address in (None, "auto"):  # as Ray does: jobs submitted to a cluster find it there
            address = os.environ.get("RAY_ADDRESS") or address
        found = None if address is None else _host(address)
        is_loopback = address is None or (found is not None and found[0] in LOOPBACK)
        where = "a local Ray cluster" if address is None else f"the Ray cluster at {address}"
        if address is None:
            # Without the word "local", Ray would join whatever cluster runs on this machine.
            options |= {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
            _say(callback, f"starting {where}")
        else:
            options["address"] = address
            _say(callback, f"joining {where}, for at most {PATIENCE + JOINING:.0f} s")
        with _on_loopback(is_loopback):
            if address is not None:
                if found is not None:  # else "auto" and the like, which Ray looks up itself
                    _knock(address, *found)
                _try(where, options)
            try:
                self._ray.init(runtime_env={"env_vars": variables}, **options)
            except (
                ConnectionError,
                ImportError,
                ValueError,
                RuntimeError,
                TimeoutError,
                self._ray.exceptions.RayError,
            ) as error:
                reason = _reason(error, self._ray.exceptions)
                raise ConnectionError(f"{where} could not be reached: {reason}") from error
        return address

    # -- work ------------------------------------------------------------------------------

    @property
    def cpus(self) -> int:
        """Processors of the cluster."""
        return self._look().cpus

    @property
    def node_room(self) -> int:
        """Bytes of its object store that data may take on any node that works."""
        room = self._look().room
        return room if self.node_bytes is None else min(room, self.node_bytes)

    def _look(self) -> _Seen:
        """The cluster as it was a moment ago.

        Whatever Ray is asked for waits for the head, for a minute, and then aborts this process.
        So the head is asked seldom, and only if it is there.
        """
        if self._seen is None or time.monotonic() - self._seen.time >= WAIT:
            self._head.knock()
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
            have = [node["Resources"] for node in nodes]
            stores = [x.get("object_store_memory", 0.0) for x in have if x.get("CPU", 0.0) >= 1]
            self._seen = _Seen(
                time=time.monotonic(),
                cpus=max(1, int(sum(x.get("CPU", 0.0) for x in have))),
                room=int(min(stores, default=2**63) * STORE_SHARE),
                store=int(sum(x.get("object_store_memory", 0.0) for x in have) * STORE_SHARE),
                has_cpu=bool(stores),
            )
        return self._seen

    def prepare(self, job: Job) -> Sweep:
        """Make a job ready: its data go to the object store when they are first needed.

        Raises:
            MemoryLimitError: If they would not fit there.
        """
        common, shards, largest = self._whole(job)
        rest = _Stored(
            self._ray, lambda: {k: v for k, v in job.common.items() if k not in job.tables}
        )

        def sweep(fresh: Data, out: Array) -> list[Any]:
            results = out.nbytes // max(1, len(shards))
            whole, room = _size([job.common, fresh]) + largest + results, self.node_room
            if whole > room:
                if job.narrow is None:
                    raise _no_room(whole, room)
                return self._sweep_pieces(job, rest, fresh, out, room)
            data = _Stored(self._ray, partial(dict, fresh))
            shape = (out.shape, out.dtype.str)

            def hand_out(k: int, lost: str) -> Any:
                ranges, part = shards[k]
                found = [stored.get(lost) for stored in (common, part, data)]
                return self._task.remote(__version__, job.work, *found, ranges, shape)

            return self._gather(hand_out, [ranges for ranges, _ in shards], out)

        return sweep

    def _whole(self, job: Job) -> tuple[_Stored, list[tuple[list[tuple[int, int]], _Stored]], int]:
        """What all shards of a job read, the shards with their parts, the size of the largest."""
        ray, room, store = self._ray, self.node_room, self._look().store
        is_divided = _size(job.common) > room
        if is_divided and job.narrow is None:
            raise _no_room(_size(job.common), room)
        used, largest = _size(job.common), 0
        shards: list[tuple[list[tuple[int, int]], _Stored]] = []
        ranges: list[tuple[int, int]] = []
        held = 0
        chunks = [] if is_divided else spans(job.total, job.chunk)
        most = max(1, len(chunks) // (self.cpus * SHARDS_PER_CPU))
        for begin, end in chunks:
            ranges.append((begin, end))
            held += _size(job.part(begin, end)) + job.result_bytes * (end - begin)
            if len(ranges) >= most or held >= self._shard_bytes or end == job.total:
                used += held
                largest = max(largest, held)
                if used > store:
                    raise _no_room(used, store)
                shards.append((ranges, _Stored(ray, partial(_parts, job, ranges))))
                ranges, held = [], 0
        return _Stored(ray, partial(dict, job.common)), shards, largest

    def _sweep_pieces(
        self, job: Job, rest: _Stored, fresh: Data, out: Array, room: int
    ) -> list[Any]:
        """A sweep of which each chunk is sent with what it reads, as many at a time as fit."""
        narrow = job.narrow
        assert narrow is not None
        chunks = spans(job.total, job.chunk)
        fixed = sum(_size(v) for k, v in job.common.items() if k not in job.tables)
        largest = 0
        pieces: dict[int, _Stored] = {}

        def hand_out(k: int, lost: str) -> Any:
            nonlocal largest
            begin, end = chunks[k]
            if k not in pieces:
                made = narrow(fresh, begin, end)
                results = out[begin:end].nbytes + job.result_bytes * (end - begin)
                largest = max(largest, _size(made) + results)
                if fixed + largest > room:
                    raise _no_room(fixed + largest, room)
                pieces[k] = _Stored(self._ray, partial(narrow, fresh, begin, end), made)
            shape = ((end - begin, *out.shape[1:]), out.dtype.str)
            found = rest.get(lost), pieces[k].get(lost)
            return self._piece.remote(__version__, job.work, *found, end - begin, shape)

        def ahead() -> int:
            return int((room - fixed) // max(1, largest))

        return self._gather(
            hand_out, [[span] for span in chunks], out, ahead=ahead, drop=pieces.pop
        )

    def _gather(
        self,
        hand_out: Callable[[int, str], Any],
        ranges: list[list[tuple[int, int]]],
        out: Array,
        *,
        ahead: Callable[[], int] = lambda: 2**31,
        drop: Callable[[int], Any] = lambda k: None,
    ) -> list[Any]:
        """Results into their places, as they come; what chunks returned, in order.

        No more are handed out at once than `ahead` says; `drop` is told what came back.
        """
        ray, total = self._ray, len(ranges)
        returned: list[list[Any]] = [[] for _ in ranges]
        times = [1] * total
        silence = _Silence(lambda: self._look().has_cpu)
        running: dict[Any, int] = {}
        first = gathered = 0
        # Nothing is cancelled, whatever ends this loop: `ray.cancel` races with results that
        # arrive and then aborts the whole process ("task that was not pending", Ray 2.60). Few
        # are handed out at once instead; they run out, or end with their cluster.
        while gathered < total:
            look()
            most = AHEAD_PER_CPU * self.cpus
            while first < total and len(running) < (min(most, ahead()) if running else 1):
                running[hand_out(first, "")] = first
                first += 1
            done, _ = ray.wait(list(running), num_returns=1, timeout=WAIT)
            silence.look(len(done), gathered, total)
            for task in done:
                k = running.pop(task)
                try:
                    values, returned[k] = ray.get(task)
                except ray.exceptions.RayError as error:
                    lost = self._lost(error, times[k])
                    times[k] += 1
                    running[hand_out(k, lost)] = k
                    continue
                out[ranges[k][0][0] : ranges[k][-1][1]] = values
                gathered += 1
                drop(k)
                if self.listener is not None:
                    self.listener(gathered, total)
        return [entry for entries in returned for entry in entries]

    def _lost(self, error: Any, times: int) -> str:
        """The id of the object that was lost, if any; raises what is not to be tried again."""
        kinds = self._ray.exceptions
        cause = getattr(error, "cause", None) or error
        reason = _reason(cause, kinds)
        if "No module named" in str(cause):
            raise ConnectionError(
                f"a worker of the Ray cluster cannot load what it is to do: {reason}; install "
                "the same packages on every node"
            ) from error
        if not isinstance(cause, kinds.RayError):
            raise cause from error  # of the work itself
        if not isinstance(cause, tuple(getattr(kinds, name) for name in LOST)):
            raise ConnectionError(f"the Ray cluster could not do a shard: {reason}") from error
        if times >= HAND_OUTS:
            raise ConnectionError(
                f"a shard was lost by the Ray cluster {times} times, after up to {RETRIES} retries "
                f"each: {reason}; see why its workers or nodes end (memory is the usual reason: "
                "try a smaller shard_bytes), or run with backend 'local'"
            ) from error
        logger.info("a shard was lost and is handed out again: %s", reason)
        return str(getattr(cause, "object_ref_hex", ""))

    # -- ending ----------------------------------------------------------------------------

    def close(self) -> None:
        """End a cluster that was started here, or leave one that was joined."""
        if self._is_ours:
            self._ray.shutdown()
            self._is_ours = False
        self._head.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Seen(NamedTuple):
    """What a cluster has: when that was seen, processors, room on a node, in all stores."""

    time: float
    cpus: int
    room: int
    store: int
    has_cpu: bool


class _Stored:
    """Data in the object store, put there when first asked for, and again if they were lost."""

    def __init__(self, ray: Any, make: Callable[[], Any], made: Any = None) -> None:
        self._ray, self._make = ray, make
        self._ref = None if made is None else ray.put(made)

    def get(self, lost: str) -> Any:
        """Where the data are, given the id of an object that was lost."""
        if self._ref is None or self._ref.hex() == lost:
            self._ref = self._ray.put(self._make())
        return self._ref


class _Head:
    """Sees whether the head still answers: Ray waits for a minute, and then aborts the process."""

    def __init__(self, ray: Any, address: str | None) -> None:
        found = None if address is None or not address.startswith("ray://") else _host(address)
        if found is None:
            found = _host(ray.get_runtime_context().gcs_address)
        self._place = found
        self._watch: subprocess.Popen[str] | None = None
        if found is not None and address is not None:  # one of our own ends with us
            words = self._gone("this program was ended with it")
            self._watch = subprocess.Popen(
                [sys.executable, "-S", "-c", WATCH, *map(str, found), f"bisim-abstract: {words}"],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            atexit.register(self.leave)

    def leave(self) -> None:
        """Nobody needs to be told if this process ends from now on."""
        if self._watch is not None:
            self._watch.communicate("bye")
            self._watch = None
            atexit.unregister(self.leave)

    def _gone(self, reason: object) -> str:
        host, port = self._place or ("", 0)
        return (
            f"the head of the Ray cluster at {host}:{port} does not answer any more: {reason}; "
            "what was computed up to the last checkpoint is kept: go on from it on another "
            "cluster, or with backend 'local'"
        )

    def knock(self) -> None:
        """Knock; while nobody answers, wait and knock again.

        Raises:
            ConnectionError: If nobody answered for a while.
        """
        if self._place is None:
            return
        for _ in range(KNOCKS):
            try:
                with socket.create_connection(self._place, timeout=PATIENCE):
                    return
            except OSError as error:
                reason = error
            time.sleep(WAIT)
        raise ConnectionError(self._gone(reason))


class _Silence:
    """Says why nothing comes, once per silence: Ray waits for processors for ever."""

    def __init__(self, has_cpu: Callable[[], bool]) -> None:
        self._has_cpu = has_cpu
        self._since = self._looked = time.monotonic()
        self._is_told = False

    def look(self, news: int, done: int, total: int) -> None:
        """Called again and again, with the number of shards that have just come back."""
        now = time.monotonic()
        if news:
            self._since, self._looked, self._is_told = now, now, False
        if self._is_told or now - self._looked < QUIET:
            return
        self._looked = now
        if self._has_cpu():
            return  # shards may take long
        self._is_told = True
        logger.warning(
            "no shard came back for %.0f s, and the Ray cluster has no processor left: "
            "waiting for a node to join it, %d of %d shards are done, Ctrl-C ends the wait",
            now - self._since,
            done,
            total,
        )


def _say(callback: ProgressCallback | None, what: str) -> None:
    """Tell what is tried."""
    logger.info(what)
    tell(callback, "cluster", 0, None, what)


def _host(address: str) -> tuple[str, int] | None:
    """Host and port of an address, if it has them."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d{1,5})", address)
    return None if found is None else (found[1], int(found[2]))


@contextmanager
def _on_loopback(is_loopback: bool) -> Iterator[None]:
    """What Ray starts listens to this machine alone, and it dials loopback addresses as given.

    Else it takes them for the address that this machine has in the network, where a head that
    listens to loopback never answers, and waits for minutes.
    """
    if not is_loopback:
        yield
        return
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before, is_network = os.environ.get(NETWORK), constants.ENABLE_RAY_CLUSTER
    os.environ[NETWORK] = "0"  # of processes that are started
    constants.ENABLE_RAY_CLUSTER = False  # of this one
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = is_network
        if before is None:
            del os.environ[NETWORK]
        else:
            os.environ[NETWORK] = before


def _knock(address: str, host: str, port: int) -> None:
    """See whether a Ray answers there: Ray itself waits for minutes."""
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as line:
            if os.environ.get("RAY_USE_TLS", "0") in ("1", "true"):
                return  # answers to encrypted words only
            line.sendall(PREFACE)
            answer = b""
            while len(answer) < 4 and (more := line.recv(4 - len(answer))):
                answer += more
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from error
    if len(answer) < 4 or answer[3] != SETTINGS:
        raise ConnectionError(
            f"what answers at {address} is not a Ray cluster; give the port of its head, "
            "6379 by default, or ray:// and that of its client server, 10001 by default"
        )


def _try(where: str, options: dict[str, Any]) -> None:
    """Join a cluster in a process that can be ended, to see whether it lets us in."""
    words = [sys.executable, "-c", TRIAL, json.dumps(options)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=JOINING,
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(
            f"{where} answers, but did not let us in within {JOINING:.0f} s; give the address of "
            "its head as its nodes know it, from a machine that is one of them, or ray:// and the "
            "port of its client server from elsewhere"
        ) from error
    if done.returncode != 0:
        raise ConnectionError(f"{where} could not be reached: {_last_words(done.stderr)}")


def _last_words(text: str) -> str:
    """What a process that ended with an error of Ray said last."""
    if "AuthenticationError" in text:
        return NO_TOKEN
    # A traceback ends with "module.Kind: message", of which further lines may follow.
    heads = re.findall(r"^[\w.]*(?:Error|Exception|Exit): *(.+)$", text, flags=re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (heads or lines or ["it ended without a word"])[-1].rstrip(".")


def _reason(error: BaseException, kinds: Any) -> str:
    """The first sentence of an error of Ray, or of what is behind it if that says more."""
    behind: BaseException | None = error
    refused = getattr(kinds, "AuthenticationError", ())  # of newer versions of Ray
    while behind is not None:
        if isinstance(behind, refused) or "AuthenticationError" in str(behind):
            return NO_TOKEN
        behind = behind.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _no_room(needed: int, room: int) -> MemoryLimitError:
    return MemoryLimitError(
        f"the data of a sweep need {human_bytes(needed)} of the object store, but "
        f"{human_bytes(room)} may be used on a node; start Ray with more object_store_memory, "
        "cover fewer pairs (max_pairs), or run with backend 'local'"
    )


def _parts(job: Job, ranges: list[tuple[int, int]]) -> list[Any]:
    """The data of consecutive chunks."""
    return [job.part(begin, end) for begin, end in ranges]


def _shard(
    version: str,
    work: ChunkWork,
    common: Data,
    parts: list[Any],
    fresh: Data,
    ranges: list[tuple[int, int]],
    shape: tuple[tuple[int, ...], str],
) -> tuple[Array, list[Any]]:
    """Consecutive chunks on a worker: what they wrote, and what they returned."""
    _check_version(version)
    # Chunks write to their own places of the whole; pages that nobody touches cost nothing.
    out = np.empty(shape[0], dtype=np.dtype(shape[1]))
    pairs = zip(ranges, parts, strict=True)
    returned = [work(common, part, fresh, begin, end, out) for (begin, end), part in pairs]
    return out[ranges[0][0] : ranges[-1][1]].copy(), returned


def _piece(
    version: str,
    work: ChunkWork,
    rest: Data,
    piece: tuple[Data, Any, Data],
    count: int,
    shape: tuple[tuple[int, ...], str],
) -> tuple[Array, list[Any]]:
    """One chunk on a worker, from what it reads."""
    _check_version(version)
    tables, part, fresh = piece
    out = np.empty(shape[0], dtype=np.dtype(shape[1]))
    return out, [work({**rest, **tables}, part, fresh, 0, count, out)]


def _check_version(version: str) -> None:
    if version != __version__:
        raise ConnectionError(
            f"a worker has bisim_abstract {__version__}, but {version} asks it; "
            "install the same version on every node"
        )


def _size(data: Any) -> int:
    """Bytes of the arrays in some data, each counted once."""
    found, left, total = set(), [data], 0
    while left:
        item = left.pop()
        if id(item) in found:
            continue
        found.add(id(item))
        if hasattr(item, "nbytes"):  # an array, or what knows what is sent of it
            total += int(item.nbytes)
        elif isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list | tuple):
            left.extend(item)
        elif hasattr(item, "__dict__"):
            left.extend(vars(item).values())
        else:
            total += 8
    return total
