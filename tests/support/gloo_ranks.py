"""Real ranks for tests: processes that communicate through gloo, started by one driver for all tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a job: for each rank how it ended, its result or error text, and what it saved."""

    ended: list[str]
    found: list[Any]
    saved: list[Any]


class Ranks:
    """Client of a driver process that runs jobs on any number of ranks."""

    def __init__(self, driver: subprocess.Popen[str], place: Path) -> None:
        """Store the driver process and the directory for results."""
        self._driver, self._place, self._jobs = driver, place, 0

    def run(self, job: str, ranks: int, **arguments: Any) -> Outcome:
        """Run a job on the given number of ranks and return its outcome."""
        self._jobs += 1
        place = self._place / str(self._jobs)
        place.mkdir()
        order = {"job": job, "size": ranks, "place": str(place), "arguments": arguments}
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps(order) + "\n")
        self._driver.stdin.flush()
        ended = json.loads(self._driver.stdout.readline())
        found, saved = ([_read(place / f"{name}{rank}.json") for rank in range(ranks)] for name in ("", "saved-"))
        return Outcome(ended=ended, found=found, saved=saved)

    def done(self, job: str, ranks: int, **arguments: Any) -> list[Any]:
        """Run a job that must succeed on every rank, and return the results."""
        outcome = self.run(job, ranks, **arguments)
        assert outcome.ended == ["done"] * ranks, outcome.found
        return outcome.found

    def failed(self, job: str, ranks: int, **arguments: Any) -> list[str]:
        """Run a job that must fail on every rank without hanging, and return the error texts."""
        outcome = self.run(job, ranks, **arguments)
        assert outcome.ended == ["failed"] * ranks, outcome.found
        return outcome.found


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


@contextmanager
def driver() -> Iterator[Ranks]:
    """Start a driver process, and stop it at the end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    command = [sys.executable, str(Path(__file__).parent / "gloo_driver.py")]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, bufsize=1
        )
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == "ready"
            yield Ranks(process, Path(folder))
        finally:
            process.kill()
            process.communicate()
