"""Anonymous memory stays near `memory_limit` for all kinds of tables and consumers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT = 256 << 20

pytestmark = pytest.mark.slow

if not (ROOT / "benchmarks" / "memory.py").exists() or not Path("/proc/self/status").exists():
    pytest.skip("benchmarks/memory.py and /proc are needed to measure memory.", allow_module_level=True)


def measure(case: str, consumer: str, folder: Path) -> dict[str, str | int]:
    """Return the report of one case, run in its own process over a table 1.5 times as large as the limit."""
    script = f"from benchmarks.memory import *; CASES[{case!r}](Path({str(folder)!r}), {LIMIT * 3 // 2})"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=300)
    command = [sys.executable, "-m", "benchmarks.memory", "--one", case, consumer, str(LIMIT), str(folder)]
    found = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, timeout=300)
    report: dict[str, str | int] = json.loads(found.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize("consumer", ["fast", "keeps"])
@pytest.mark.parametrize("case", ["numbers", "strings", "lists", "images"])
def test_memory_stays_near_its_limit(case: str, consumer: str, tmp_path: Path) -> None:
    """Reading grows anonymous memory to at most 1.2 times the limit.

    This includes strings that a dictionary makes small on storage, lists of uneven length, and a consumer that keeps batches.
    The batches that it keeps, every third one and up to a quarter of the limit, count too.
    """
    if case == "images":
        pytest.importorskip("simplejpeg")
    found = measure(case, consumer, tmp_path / "table")

    assert found["told"] == ""
    assert int(found["growth"]) <= 1.2 * LIMIT


def test_a_row_group_larger_than_the_limit_raises_with_both_sizes(tmp_path: Path) -> None:
    """A row group larger than the limit raises an error with both sizes before it is read."""
    found = measure("one row group", "fast", tmp_path / "table")

    assert "whose numbers alone take 384.0 MiB in memory, and memory_limit is 256.0 MiB" in str(found["told"])
    assert int(found["growth"]) <= LIMIT // 4
