"""A process with another interpreter that runs benchmark work on request: another project, or Penstock beside it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["contender"]

ROOT = Path(__file__).parent.parent


def contender(python: str, *options: str, serve: str, workers: int) -> Callable[[str, str], Any]:
    """Return a function that sends a request (kind of work, "examine" or "time") to a process and returns its answer.

    Args:
        python: The interpreter.
        options: Its arguments: a script or a module.
        serve: The data that the script works on, as text.
        workers: The number of workers.
    """
    command: Sequence[str] = [python, "-W", "ignore", *options, "--serve", serve, "--workers", str(workers)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )

    def ask(name: str, what: str) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([name, what]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    return ask
