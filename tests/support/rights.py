"""Run scripts with the file permissions of an ordinary user, even if tests run as root."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable

PR_CAPBSET_DROP = 24
CAPABILITIES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, which bypass file permissions."""


def run_without_rights(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a script to completion as a process that cannot bypass file permissions."""
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, preexec_fn=_dropped())


def _dropped() -> Callable[[], None] | None:
    """Return a function that drops root's capabilities before the script starts, or None if not root.

    The process keeps root's user id, so that it can import modules from root's files.
    """
    if os.getuid() != 0:
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def drop() -> None:
        for capability in CAPABILITIES:
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "cannot let go of root's rights")

    return drop
