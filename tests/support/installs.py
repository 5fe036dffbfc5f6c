"""What tests need and what cannot be installed beside the package: interpreters with other libraries, and a server.

    python installs.py NAME FOLDER

Each is installed once for a test run, in a folder that all processes of the run share.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

PETASTORM = (
    "petastorm==0.13.1",
    "pyarrow==14.0.2",
    "numpy<2",
    "pandas<3",
    "pyspark==3.5.9",
    "opencv-python-headless==4.11.0.86",
    "setuptools<70",
)
SAIL = ("pysail==0.7.2", "pyspark-client==4.1.3")
SPARK = ("pyspark==4.3.0",)
AZURITE = "azurite@3.35.0"

STARTED: set[int] = set()
"""The processes that install in the background of this test run; tests that count processes leave them out."""


class InstallError(Exception):
    """Says what could not be installed."""


def provided(name: str) -> Path | None:
    """Return the program that is on this machine already: an environment variable or the PATH names it."""
    peers = os.environ.get("PENSTOCK_PEERS")
    spark = sys.executable if find_spec("pyspark") else None
    path = {
        "petastorm": peers and f"{peers}/petastorm/bin/python",
        "sail": os.environ.get("PENSTOCK_PYSAIL"),
        "spark": os.environ.get("PENSTOCK_SPARK") or spark,
        "azurite": os.environ.get("PENSTOCK_AZURITE") or shutil.which("azurite-blob"),
    }[name]
    return Path(path) if path else None


def installed(name: str, folder: Path) -> Path:
    """Return a program, installed in a folder; only the first of several processes installs it.

    Raises:
        InstallError: If it cannot be installed, in this process or in the one that tried.
    """
    place, done, failed = (folder / f"{name}{suffix}" for suffix in ("", ".path", ".failed"))
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists():
            raise InstallError(failed.read_text())
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
            try:
                done.write_text(str(INSTALLS[name](place)))
            except InstallError as error:
                failed.write_text(str(error))
                raise
    return Path(done.read_text())


def _azurite(place: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        message = "azurite-blob is neither on the PATH nor named by PENSTOCK_AZURITE, and there is no npm to install it"
        raise InstallError(message)
    _run([npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", place, AZURITE], AZURITE)
    return place / "node_modules" / ".bin" / "azurite-blob"


def _spark(place: Path) -> Path:
    """Install pyspark alone; everything else is imported from where this interpreter imports it."""
    python = _interpreter(place, SPARK)
    (packages,) = (place / "lib").glob("*/site-packages")
    penstock = find_spec("penstock")
    assert penstock is not None
    source = Path(penstock.origin or "").parent.parent
    (packages / "beside.pth").write_text("\n".join([*site.getsitepackages(), str(source)]))
    return python


def _interpreter(place: Path, packages: Sequence[str]) -> Path:
    """Make an environment with some packages. Bytecode is compiled when a module is imported, which few are."""
    python = place / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--without-pip", place], "an environment")
    _run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *packages], packages[0])
    return python


def _run(command: Sequence[str | Path], what: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"{what} cannot be installed: {done.stderr.strip().splitlines()[-1:]}"
        raise InstallError(message)


INSTALLS: dict[str, Callable[[Path], Path]] = {
    "petastorm": lambda place: _interpreter(place, PETASTORM),
    "sail": lambda place: _interpreter(place, SAIL),
    "spark": _spark,
    "azurite": _azurite,
}


if __name__ == "__main__":
    installed(sys.argv[1], Path(sys.argv[2]))
