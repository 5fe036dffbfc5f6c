"""`import penstock` is fast: it loads no large library until a name is used."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "PIL",
    "cv2",
    "deltalake",
    "imagecodecs",
    "jax",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "simplejpeg",
    "tensorflow",
    "torch",
}


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after a statement."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_import_penstock_loads_nothing_heavy() -> None:
    """`import penstock` loads none of the libraries in `HEAVY`."""
    assert loaded_by("import penstock") & HEAVY == set()


def test_a_loaded_module_is_found() -> None:
    """`loaded_by` finds a module that a statement loads."""
    assert "wave" in loaded_by("import wave")
