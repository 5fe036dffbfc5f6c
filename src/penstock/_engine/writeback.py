"""Asking the system to begin writing a file to disk, so that little is left to wait for when the table is committed."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

__all__ = ["begin_writeback"]

BEGIN = 2  # as Linux numbers it


def begin_writeback(path: str, start: int, stop: int) -> None:
    """Let what was written to a part of a local file go to disk, without waiting; where that cannot be asked, do nothing."""
    ask = _system_call()
    if ask is not None:
        file = os.open(path, os.O_RDONLY)
        try:
            ask(file, ctypes.c_int64(start), ctypes.c_int64(stop - start), BEGIN)
        finally:
            os.close(file)


@cache
def _system_call() -> Any:
    """Return what asks Linux for it; None on other systems."""
    return getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
