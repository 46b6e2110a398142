"""Sweeps on a Ray cluster, with the bits of a local run.

Data that stay the same are put into the object store once per job, data of a sweep once per
sweep. Chunks are those of a local run, gathered into shards. A shard whose worker or node is
lost is computed again elsewhere; being a function of its inputs alone, it gives the same.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from bisim_abstract._memory import human_bytes
from bisim_abstract._parallel import Array, Data, Job, Sweep, Work, spans, thread_count
from bisim_abstract._validation import check_int, require
from bisim_abstract.errors import MemoryLimitError

__all__ = ["RayBackend"]

SHARDS_PER_CPU = 3  # so that a slow worker does not keep all others waiting
SHARD_BYTES = 64 * 2**20  # of results and data of a shard, at most
RETRIES = 20  # of a shard whose worker was lost
STORE_SHARE = 0.8  # of the object store that one job may take
PATIENCE = 10.0  # seconds for a cluster to answer
WAIT = 1.0  # seconds between looks at what is done


class RayBackend:
    """A Ray cluster as the place where sweeps are done.

    Pass it to `certify(..., backend=...)` to use one cluster for several runs. If Ray is
    initialised already, that cluster is used; else the one at `address` is joined, or a local
    one is started, which ends with `close` or the end of a `with` block.

    Args:
        address: Of a running cluster, for instance "auto" or "ray://host:10001".
        num_cpus: Processors of a local cluster; all cores by default.
        shard_bytes: How much data and results of one task may take.

    Example:
        ```
        with RayBackend(num_cpus=2) as backend:
            certificate = certify(mdp, 0.9, backend=backend)
        ```
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        num_cpus: int | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self._ray: Any = require("ray", extra="ray")
        self._shard_bytes = check_int("shard_bytes", shard_bytes, low=1)
        self.listener: Callable[[int, int], None] | None = None
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._start(address, thread_count(num_cpus))
        self._task = self._ray.remote(max_retries=RETRIES, num_cpus=1)(_shard)

    def _start(self, address: str | None, num_cpus: int) -> None:
        # Workers must find this very package, and stay on one thread each.
        home = str(Path(__file__).resolve().parents[1])
        paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        variables = {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "NUMBA_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        options: dict[str, Any] = {
            "runtime_env": {"env_vars": variables},
            "log_to_driver": False,
            "logging_level": "error",
        }
        if address is None:
            options |= {"num_cpus": num_cpus, "include_dashboard": False}
        else:
            _reach(address)
            options["address"] = address
        try:
            self._ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            where = "a local Ray cluster" if address is None else f"the Ray cluster at {address}"
            raise ConnectionError(f"{where} could not be reached: {error}") from error

    # -- work ------------------------------------------------------------------------------

    @property
    def cpus(self) -> int:
        """Processors of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def prepare(self, job: Job) -> Sweep:
        """Put the data of a job into the object store, chunk by chunk where they belong to one.

        Raises:
            MemoryLimitError: If they would not fit there.
        """
        ray = self._ray
        room = ray.cluster_resources().get("object_store_memory", float("inf")) * STORE_SHARE
        used = _size(job.common)
        self._check(used, room)
        common = ray.put(dict(job.common))
        shards: list[tuple[list[tuple[int, int]], Any]] = []
        ranges: list[tuple[int, int]] = []
        parts: list[Any] = []
        held = 0
        chunks = spans(job.total, job.chunk)
        most = max(1, len(chunks) // (self.cpus * SHARDS_PER_CPU))
        for begin, end in chunks:
            part = job.part(begin, end)
            ranges.append((begin, end))
            parts.append(part)
            held += _size(part) + 8 * (end - begin)
            if len(ranges) >= most or held >= self._shard_bytes or end == job.total:
                used += held
                self._check(used, room)
                shards.append((ranges, ray.put(parts)))
                ranges, parts, held = [], [], 0

        def sweep(fresh: Data, out: Array) -> list[Any]:
            data = ray.put(dict(fresh))
            shape = (out.shape, out.dtype.str)
            tasks = [
                self._task.remote(job.work, common, part, data, ranges, shape)
                for ranges, part in shards
            ]
            try:
                return self._gather(tasks, [ranges for ranges, _ in shards], out)
            except BaseException:
                for task in tasks:
                    ray.cancel(task, force=False)
                raise

        return sweep

    def _check(self, used: int, room: float) -> None:
        if used > room:
            raise MemoryLimitError(
                f"the data of a sweep need {human_bytes(used)} of the object store, but "
                f"{human_bytes(int(room))} may be used; add nodes, start Ray with more "
                "object_store_memory, or cover fewer pairs (max_pairs)"
            )

    def _gather(
        self, tasks: list[Any], ranges: list[list[tuple[int, int]]], out: Array
    ) -> list[Any]:
        """Results into their places, as they come; what chunks returned, in order."""
        place = {task: k for k, task in enumerate(tasks)}
        returned: list[list[Any]] = [[] for _ in tasks]
        waiting = list(tasks)
        while waiting:
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=WAIT)
            for task in done:
                k = place[task]
                values, returned[k] = self._ray.get(task)
                out[ranges[k][0][0] : ranges[k][-1][1]] = values
            if done and self.listener is not None:
                self.listener(len(tasks) - len(waiting), len(tasks))
        return [entry for entries in returned for entry in entries]

    # -- ending ----------------------------------------------------------------------------

    def close(self) -> None:
        """End a cluster that was started here, or leave one that was joined."""
        if self._is_ours:
            self._ray.shutdown()
            self._is_ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _reach(address: str) -> None:
    """Knock at an address: Ray ends the whole process if nobody answers."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d{1,5})", address)
    if found is None:
        return  # "auto" and the like, which Ray looks up itself
    try:
        socket.create_connection((found[1], int(found[2])), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from error


def _shard(
    work: Work,
    common: Data,
    parts: list[Any],
    fresh: Data,
    ranges: list[tuple[int, int]],
    shape: tuple[tuple[int, ...], str],
) -> tuple[Array, list[Any]]:
    """Consecutive chunks on a worker: what they wrote, and what they returned."""
    # Chunks write to their own places of the whole; pages that nobody touches cost nothing.
    out = np.empty(shape[0], dtype=np.dtype(shape[1]))
    pairs = zip(ranges, parts, strict=True)
    returned = [work(common, part, fresh, begin, end, out) for (begin, end), part in pairs]
    return out[ranges[0][0] : ranges[-1][1]].copy(), returned


def _size(data: Any) -> int:
    """Bytes of the arrays in some data."""
    if isinstance(data, np.ndarray):
        return int(data.nbytes)
    if isinstance(data, dict):
        return sum(_size(value) for value in data.values())
    if isinstance(data, list | tuple):
        return sum(_size(value) for value in data)
    return 8
