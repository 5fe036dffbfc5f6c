"""What this process takes of the machine, as the kernel of Linux tells it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

__all__ = ["Memory", "memory_taken"]

PROCESS = Path("/proc/self")
KILOBYTE = 1024


class Memory(NamedTuple):
    """Bytes that a process takes, under the names that psutil has for them.

    Attributes:
        rss: In memory.
        vms: Of its addresses.
        shared: Of `rss`, what files back and others may share.
        uss: Of `rss`, what no other process has; 0 where that is not told.
        pss: The same, with its part of what is shared.
        swap: What lies on disk.
    """

    rss: int
    vms: int = 0
    shared: int = 0
    uss: int = 0
    pss: int = 0
    swap: int = 0


def memory_taken() -> Memory:
    """Return what this process takes; where the kernel does not tell, what it took at most."""
    try:
        pages = [int(number) for number in (PROCESS / "statm").read_text().split()]
    except OSError:
        return Memory(rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE)
    told = _rollup()
    own = told.get("Private_Clean", 0) + told.get("Private_Dirty", 0)
    size = resource.getpagesize()
    rest = Memory(rss=pages[1] * size, vms=pages[0] * size, shared=pages[2] * size)
    return rest._replace(uss=own, pss=told.get("Pss", 0), swap=told.get("Swap", 0))


def _rollup() -> dict[str, int]:
    """Return the sums over all pieces of memory, in bytes; nothing where the kernel does not tell."""
    try:
        lines = (PROCESS / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    parts = (line.split() for line in lines)
    return {part[0].rstrip(":"): int(part[1]) * KILOBYTE for part in parts}
