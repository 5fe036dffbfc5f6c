"""Driver process for tests with several ranks: it loads torch once, and forks every rank of every job.

It reads one job per line of JSON, `{"job", "size", "place", "arguments"}`, and answers each with one line of JSON that
gives the outcome of every rank: `"done"`, `"failed"`, `"killed"` or `"hung"`. A rank writes its result, or the text of
its error, to the directory `place`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import gloo_jobs

PATIENCE = 120.0
ENDED = {0: "done", 1: "failed"}


def serve() -> None:
    """Run jobs until standard input ends."""
    print(json.dumps("ready"), flush=True)  # noqa: T201 - the protocol of this driver
    for line in sys.stdin:
        order = json.loads(line)
        ended = run(order["job"], order["size"], Path(order["place"]), order["arguments"])
        print(json.dumps(ended), flush=True)  # noqa: T201 - the same


def run(job: str, size: int, place: Path, arguments: dict[str, Any]) -> list[str]:
    """Run a job and return the outcome of each rank."""
    ranks = [_forked(job, rank, size, place, arguments) for rank in range(size)]
    until, ended = time.monotonic() + PATIENCE, dict[int, str]()
    while len(ended) < size:
        for rank, process in enumerate(ranks):
            if rank in ended:
                continue
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                ended[rank] = "killed" if code == -signal.SIGKILL else ENDED.get(code, f"ended with {code}")
            elif time.monotonic() > until:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                ended[rank] = "hung"
        time.sleep(0.005)
    return [ended[rank] for rank in range(size)]


def _forked(job: str, rank: int, size: int, place: Path, arguments: dict[str, Any]) -> int:
    """Fork a process that runs one rank of a job, and return its process id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        found = gloo_jobs.work(job, rank, size, place, arguments)
        _leave(place / f"{rank}.json", found)
        code = 0
    except BaseException as error:  # noqa: BLE001 - it is reported, and the process ends
        _leave(place / f"{rank}.json", f"{type(error).__name__}: {error}")
        (place / f"{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(code)  # skips the cleanup handlers inherited from the parent


def _leave(path: Path, found: Any) -> None:
    written = path.with_suffix(".part")
    written.write_text(json.dumps(found))
    written.replace(path)


if __name__ == "__main__":
    serve()
