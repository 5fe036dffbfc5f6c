"""The memory of this process, as the Linux kernel reports it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

__all__ = ["Memory", "memory_usage"]

PROCESS = Path("/proc/self")
KILOBYTE = 1024


class Memory(NamedTuple):
    """Bytes of memory, under the names of psutil; 0 for what the kernel does not report.

    Attributes:
        rss: Resident memory.
        vms: Virtual memory.
        shared: The part of `rss` that other processes may share.
        uss: The part of `rss` that no other process shares.
        pss: `uss` and a proportional part of the shared memory.
        swap: Memory on disk.
    """

    rss: int
    vms: int = 0
    shared: int = 0
    uss: int = 0
    pss: int = 0
    swap: int = 0


def memory_usage() -> Memory:
    """Return the memory of this process; its peak if the kernel does not report more."""
    try:
        pages = [int(number) for number in (PROCESS / "statm").read_text().split()]
    except OSError:
        return Memory(rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE)
    rollup = _smaps_rollup()
    own = rollup.get("Private_Clean", 0) + rollup.get("Private_Dirty", 0)
    size = resource.getpagesize()
    rest = Memory(rss=pages[1] * size, vms=pages[0] * size, shared=pages[2] * size)
    return rest._replace(uss=own, pss=rollup.get("Pss", 0), swap=rollup.get("Swap", 0))


def _smaps_rollup() -> dict[str, int]:
    """Return the numbers of smaps_rollup in bytes."""
    try:
        lines = (PROCESS / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    parts = (line.split() for line in lines)
    return {part[0].rstrip(":"): int(part[1]) * KILOBYTE for part in parts}
