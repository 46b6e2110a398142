"""`Resources`: how much of the machine, or of a cluster, a computation may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bisim_abstract._base.checks import check_choice, check_int
from bisim_abstract._base.memory import available_bytes, check_memory
from bisim_abstract._base.parallel import Backend, LocalBackend, thread_count
from bisim_abstract._base.progress import tell
from bisim_abstract._base.text import short
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["Resources"]

BACKENDS = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Threads, workers and memory. No result depends on them.

    Attributes:
        threads: Number of threads; all cores by default.
        backend: Who does the sweeps of pairs, blocks and features, the transport of exact metrics,
            long searches for neighbours and the backups of `verify`: "local" for the threads of
            this process, "ray" for a Ray cluster, or a `RayBackend`.
        address: Of a running Ray cluster; a local one is started by default.
        memory_limit: Bytes that tables may take, with what is copied of a large model; what is
            available by default. What would not fit ends in a `MemoryLimitError` before it is
            allocated.
    """

    threads: int | None = None
    backend: str | Backend = "local"
    address: str | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            object.__setattr__(self, "threads", check_int("threads", self.threads, low=1))
        if self.memory_limit is not None:
            limit = check_int("memory_limit", self.memory_limit, low=1)
            object.__setattr__(self, "memory_limit", limit)
        if isinstance(self.backend, str):
            check_choice("backend", self.backend, BACKENDS)
        elif not hasattr(self.backend, "prepare"):
            raise InvalidArgumentError(
                f"backend must be 'local', 'ray' or a RayBackend, got {self.backend!r}"
            )
        if self.address is not None and self.backend != "ray":
            raise InvalidArgumentError("address goes with backend 'ray'")

    @property
    def here(self) -> Resources:
        """The same on this machine alone."""
        return replace(self, backend="local", address=None)

    @property
    def n_threads(self) -> int:
        """Number of threads of this process."""
        return thread_count(self.threads)

    @property
    def workers(self) -> Backend:
        """Who does sweeps, once `started`."""
        if not isinstance(self.backend, str):
            return self.backend
        if self.backend != "local":
            raise InvalidArgumentError(
                "a cluster of this call alone is started by `certify`, `bisimulation_metric` and "
                "`verify` only; make a RayBackend, and give it as backend"
            )
        return LocalBackend(self.n_threads)

    @property
    def room(self) -> int:
        """Bytes that may be used."""
        return available_bytes() if self.memory_limit is None else self.memory_limit

    def check_memory(self, needed: int, *, what: str, instead: str) -> None:
        """Raise MemoryLimitError unless so many bytes may be used."""
        check_memory(needed, what=what, instead=instead, memory_limit=self.memory_limit)

    @contextmanager
    def started(self, report: ProgressCallback | None) -> Iterator[Resources]:
        """The same with its workers at hand; a cluster that is started here ends here."""
        if self.backend != "ray":
            yield self
            return
        from bisim_abstract._base.ray import RayBackend

        with RayBackend(address=self.address, num_cpus=self.threads, callback=report) as cluster:
            if report is not None:
                cluster.listener = lambda done, total: tell(report, "shards", done, total, "on Ray")
            yield replace(self, backend=cluster, address=None)


def check_resources(resources: object) -> None:
    """Refuse what are no resources: a number of threads, say."""
    if not isinstance(resources, Resources):
        raise InvalidArgumentError(
            f"resources must be Resources(...), such as Resources(threads=4), got "
            f"{short(resources)}; leave it out for all cores and what memory there is"
        )


HERE = Resources()  # all cores of this machine, and what memory is available
