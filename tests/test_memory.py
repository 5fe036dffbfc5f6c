"""Anonymous memory stays near `memory_limit`, whatever is read and whoever reads it."""

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


def measured(case: str, consumer: str, place: Path) -> dict[str, str | int]:
    """Return what one case says of itself, in a process of its own, over a table half as large again as the limit."""
    script = f"from benchmarks.memory import *; CASES[{case!r}](Path({str(place)!r}), {LIMIT * 3 // 2})"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=300)
    command = [sys.executable, "-m", "benchmarks.memory", "--one", case, consumer, str(LIMIT), str(place)]
    found = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, timeout=300)
    told: dict[str, str | int] = json.loads(found.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("consumer", ["fast", "keeps"])
@pytest.mark.parametrize("case", ["numbers", "strings", "lists", "images"])
def test_memory_stays_near_its_limit(case: str, consumer: str, tmp_path: Path) -> None:
    """Also where a dictionary makes texts short on storage, lists differ in length, and a consumer keeps every third batch.

    What the consumer keeps, up to a quarter of the limit, counts too.
    """
    if case == "images":
        pytest.importorskip("simplejpeg")
    found = measured(case, consumer, tmp_path / "table")

    assert found["told"] == ""
    assert int(found["growth"]) <= 1.2 * LIMIT


def test_a_row_group_that_is_larger_than_the_limit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """Before it is read."""
    found = measured("one row group", "fast", tmp_path / "table")

    assert "whose numbers alone take 384.0 MiB in memory, and memory_limit is 256.0 MiB" in str(found["told"])
    assert int(found["growth"]) <= LIMIT // 4
