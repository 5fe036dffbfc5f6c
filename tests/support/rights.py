"""Scripts that have no more rights than those of an ordinary user, also where tests are run by root."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable

PR_CAPBSET_DROP = 24
CAPABILITIES = (1, 2)
"""To read and write whatever its mode says, and to read and search."""


def run_without_rights(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a script to its end that cannot pass by the modes of files."""
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, preexec_fn=_dropped())


def _dropped() -> Callable[[], None] | None:
    """Return what root does before it becomes the script; it stays the owner of its files, so that modules can be imported."""
    if os.getuid() != 0:
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def drop() -> None:
        for capability in CAPABILITIES:
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "cannot let go of root's rights")

    return drop
