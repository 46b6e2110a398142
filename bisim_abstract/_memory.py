"""How much memory there is, and a clear refusal where a result would not fit."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from bisim_abstract.errors import MemoryLimitError


def available_bytes() -> int:
    """Memory that can be allocated now without swapping: the least of what is known."""
    known = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                known.append(int(line.split()[1]) * 1024)
    if not known:
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists():
        text = limit.read_text().strip()
        if text.isdigit():
            known.append(max(int(text) - int(used.read_text()), 0))
    known.append(_left_by_limits())
    return min(known)


def _left_by_limits() -> int:
    """What `ulimit -v` leaves of the address space of this process."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    statm = Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    used = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
    return max(limit - used, 0)


def check_memory(needed: int, *, what: str, instead: str, memory_limit: int | None) -> None:
    """Raise MemoryLimitError unless `needed` bytes are within the limit (or available)."""
    limit = available_bytes() if memory_limit is None else memory_limit
    if needed > limit:
        source = "available" if memory_limit is None else "allowed by memory_limit"
        raise MemoryLimitError(
            f"{what} needs {human_bytes(needed)}, but {human_bytes(limit)} are {source}; {instead}"
        )


def human_bytes(size: int) -> str:
    """Write a size as a person would."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < (1000.0 if unit == "bytes" else 999.95) or unit == "TB":
            break
        value /= 1000.0
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
