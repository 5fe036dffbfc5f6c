"""Kill a job in mid-epoch, resume it with another number of processes, and count the uses of every row.

    python examples/resume/demo.py

Three processes train. One of them is killed, and torchrun stops the others. Two processes resume from the last checkpoint.
In the steps before the checkpoint and after the resume, no row is used twice, and no row is lost except the few that do not
fill a batch on every process. It needs penstock[torch].
"""
# ruff: noqa: INP001, S603, T201 - a script, which prints what it does and starts others

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from train import BATCH, EVERY, ROWS

KILLED_IN = 33


def run(processes: int, work: Path, *options: str) -> int:
    """Return the exit code of torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*torchrun, str(Path(__file__).with_name("train.py")), "--work", str(work), *options]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode


def rows(work: Path, processes: int, last: int | None = None) -> Counter[int]:
    """Return how often each row was used in a run, up to a step."""
    lines = [line for rank in range(processes) for line in (work / f"rows-{processes}-{rank}.jsonl").read_text().splitlines()]
    steps = [json.loads(line) for line in lines]
    return Counter(row for step in steps if last is None or step["step"] <= last for row in step["rows"])


def main() -> None:
    """Kill, resume, and count."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        ended = run(3, work, "--kill", str(KILLED_IN))
        print(f"one of 3 processes was killed in step {KILLED_IN}; torchrun ended with {ended}")
        saved = (KILLED_IN - 1) // EVERY * EVERY
        ended = run(2, work)
        used = rows(work, 3, saved) + rows(work, 2)
        lost = ROWS - len(used)
        print(f"2 processes resumed and ended with {ended}")
        print(f"{len(used)} rows were used once, {sum(count > 1 for count in used.values())} twice, {lost} not at all")
        assert ended == 0  # noqa: S101 - the guarantee that this example shows
        assert set(used.values()) == {1}  # noqa: S101 - the same
        assert lost < 2 * BATCH  # noqa: S101 - the same


if __name__ == "__main__":
    main()
