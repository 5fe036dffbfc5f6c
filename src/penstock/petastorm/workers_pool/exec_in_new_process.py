"""Functions in processes of their own: `petastorm.workers_pool.exec_in_new_process`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from penstock.petastorm._impl.pickling import packed

__all__ = ["exec_in_new_process"]


def exec_in_new_process(func: Callable[..., Any], *args: Any, **kargs: Any) -> subprocess.Popen[bytes]:
    """Return a new process that runs a function; it is started afresh, and not forked."""
    entry = f"{__name__}_entrypoint"
    process = subprocess.Popen([sys.executable, "-m", entry], stdin=subprocess.PIPE)  # noqa: S603 - this very interpreter
    assert process.stdin is not None  # noqa: S101 - asked for
    with process.stdin as sink:
        sink.write(packed((func, args, kargs)))
    return process
