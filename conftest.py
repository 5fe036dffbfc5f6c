"""What pytest must know before it collects doctests from `src`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NEEDED = {
    "src/penstock/jax.py": "jax",
    "src/penstock/spark.py": "pyspark",
    "src/penstock/tensorflow.py": "tensorflow",
    "src/penstock/torch": "torch",
    "tests/support/gloo_accelerate.py": "accelerate",
    "tests/support/gloo_driver.py": "torch",
    "tests/support/gloo_jobs.py": "torch",
    "tests/support/gloo_lightning.py": "lightning",
    "tests/support/gloo_transformers.py": "transformers",
}
"""The modules and packages that import an optional library at their top, and that library."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the doctests of an adapter whose framework is not installed."""
    here = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if here in NEEDED and find_spec(NEEDED[here]) is None else None
