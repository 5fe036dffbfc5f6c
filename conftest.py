"""What pytest must know before it collects doctests from `src`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NEEDED = {
    "src/penstock/jax.py": "jax",
    "src/penstock/spark.py": "pyspark",
    "src/penstock/tensorflow.py": "tensorflow",
    "src/penstock/torch": "torch",
}
"""The modules and packages that import an optional library at their top, and that library."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the doctests of an adapter whose framework is not installed, and scripts that tests start."""
    here = collection_path.relative_to(Path(__file__).parent).as_posix()
    absent = here in NEEDED and find_spec(NEEDED[here]) is None
    return True if absent or here.startswith("tests/support/gloo_") else None
