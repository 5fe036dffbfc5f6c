"""`petastorm.workers_pool.exec_in_new_process`: a function in a new process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from penstock.petastorm._impl.pickling import dumps

__all__ = ["exec_in_new_process"]


def exec_in_new_process(func: Callable[..., Any], *args: Any, **kargs: Any) -> subprocess.Popen[bytes]:
    """Return a new process that runs a function. It is started, not forked."""
    entry = f"{__name__}_entrypoint"
    process = subprocess.Popen([sys.executable, "-m", entry], stdin=subprocess.PIPE)  # noqa: S603 - this interpreter
    assert process.stdin is not None  # noqa: S101 - because of stdin=PIPE
    with process.stdin as sink:
        sink.write(dumps((func, args, kargs)))
    return process
