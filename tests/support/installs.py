"""Install programs that tests need but that cannot be installed beside the package: other interpreters, and a server.

    python installs.py NAME FOLDER

Each program is installed once per test run, in a folder that all processes of the run share.
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
"""Ids of the processes that install in the background; tests that count processes ignore them."""


class InstallError(Exception):
    """A program cannot be installed."""


def provided(name: str) -> Path | None:
    """Return the program if an environment variable or the PATH provides it."""
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
    """Install a program into a folder and return its path; only the first of several processes installs it.

    Raises:
        InstallError: If the installation failed, in this process or in an earlier one.
    """
    target, done, failed = (folder / f"{name}{suffix}" for suffix in ("", ".path", ".failed"))
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists():
            raise InstallError(failed.read_text())
        if not done.exists():
            shutil.rmtree(target, ignore_errors=True)  # left by a process that was killed
            try:
                done.write_text(str(INSTALLS[name](target)))
            except InstallError as error:
                failed.write_text(str(error))
                raise
    return Path(done.read_text())


def _azurite(target: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        message = "azurite-blob is neither on the PATH nor named by PENSTOCK_AZURITE, and there is no npm to install it"
        raise InstallError(message)
    _run([npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", target, AZURITE], AZURITE)
    return target / "node_modules" / ".bin" / "azurite-blob"


def _spark(target: Path) -> Path:
    """Install only pyspark; all other packages are imported from the environment of this interpreter."""
    python = _interpreter(target, SPARK)
    (packages,) = (target / "lib").glob("*/site-packages")
    penstock = find_spec("penstock")
    assert penstock is not None
    source = Path(penstock.origin or "").parent.parent
    (packages / "beside.pth").write_text("\n".join([*site.getsitepackages(), str(source)]))
    return python


def _interpreter(target: Path, packages: Sequence[str]) -> Path:
    """Create an environment with some packages. Bytecode is not precompiled, because few modules are imported."""
    python = target / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--without-pip", target], "an environment")
    _run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *packages], packages[0])
    return python


def _run(command: Sequence[str | Path], what: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"{what} cannot be installed: {done.stderr.strip().splitlines()[-1:]}"
        raise InstallError(message)


INSTALLS: dict[str, Callable[[Path], Path]] = {
    "petastorm": lambda target: _interpreter(target, PETASTORM),
    "sail": lambda target: _interpreter(target, SAIL),
    "spark": _spark,
    "azurite": _azurite,
}


if __name__ == "__main__":
    installed(sys.argv[1], Path(sys.argv[2]))
