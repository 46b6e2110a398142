"""How much memory there is, and a clear refusal where a result would not fit."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path, PurePosixPath

from bisim_abstract.errors import MemoryLimitError

# Address space that the libraries take, of which they use a part. With two threads, 621 MB were
# measured while compiling, and 1.48 GB with torch; a thread counts as its stack (8 MB) and arena
# (64 MB), as the C library has them. Short of it, LLVM and OpenBLAS crash or wait for ever.
LIBRARIES, PER_THREAD, TORCH = 520 * 10**6, 72 * 10**6, 900 * 10**6
SMALL = 2**20  # bytes that are not worth asking what is available
# Of a control group, in versions 2 and 1: its limit, its use, and what could be dropped of that.
GROUP_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def available_bytes() -> int:
    """Memory that can be allocated now without swapping: the least of what is known."""
    known = [
        int(line.split()[1]) * 1024
        for line in _text(Path("/proc/meminfo")).splitlines()
        if line.startswith("MemAvailable:")
    ]
    if not known:
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    known += _left_by_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return min(*known, _left_by_limits())


def _left_by_groups(groups: Path, mounted: Path) -> list[int]:
    """What the control groups of this process and their ancestors leave, as far as is known.

    Args:
        groups: The groups, one per line: number, controllers and path with colons between.
        mounted: Where version 2 is mounted; the memory controller of version 1 lies in "memory".
    """
    left = []
    for line in (_text(groups) or "0::/").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            version, folder = 2, mounted
        elif "memory" in controllers.split(","):
            version, folder = 1, mounted / "memory"
        else:
            continue
        parts = PurePosixPath(path.lstrip("/")).parts
        if ".." in parts:  # outside of what is mounted here, of which only the top is ours
            parts = ()
        for depth in range(len(parts) + 1):
            left += _left_in(folder.joinpath(*parts[:depth]), version)
    return left


def _left_in(group: Path, version: int) -> list[int]:
    """What one control group leaves; nothing if it has no limit, or is not mounted here."""
    limit, used, dropped = GROUP_FILES[version]
    most = _text(group / limit).strip()
    if not most.isdecimal():  # "max", or no such file
        return []
    taken = _text(group / used).strip()
    # File pages that nobody looked at for a while count as used, yet are dropped when needed.
    spare = [
        int(value)
        for name, _, value in (
            line.partition(" ") for line in _text(group / "memory.stat").splitlines()
        )
        if name == dropped and value.isdecimal()
    ]
    held = (int(taken) if taken.isdecimal() else 0) - sum(spare)
    return [max(int(most) - max(held, 0), 0)]


def _text(path: Path) -> str:
    """What a file of the system says; nothing if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):  # a name may hold what no path can, a file what no text can
        return ""


def _left_by_limits() -> int:
    """What `ulimit -v` leaves of the address space of this process."""
    limit = address_limit()
    if limit is None:
        return sys.maxsize
    pages = _text(Path("/proc/self/statm")).split()
    used = int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0
    return max(limit - used, 0)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def address_limit() -> int | None:
    """The limit of `ulimit -v` in bytes, or None if there is none."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(*, has_torch: bool = False) -> None:
    """Refuse to begin where the libraries could not be loaded: they would not say so.

    Args:
        has_torch: Whether torch is needed as well.

    Raises:
        MemoryLimitError: If `ulimit -v` is too low.
    """
    limit = address_limit()
    needed = LIBRARIES + PER_THREAD * cores() + TORCH * has_torch
    if limit is not None and limit < needed:
        raise MemoryLimitError(
            f"the address space of this process is limited to {human_bytes(limit)}, and the "
            f"libraries need {human_bytes(needed)}; allow more with ulimit -v "
            f"{-(-needed // 1024)}, or ulimit -v unlimited"
        )


def check_memory(needed: int, *, what: str, instead: str, memory_limit: int | None = None) -> None:
    """Raise MemoryLimitError unless `needed` bytes are within the limit (or available)."""
    if memory_limit is None and needed <= SMALL:
        return
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
