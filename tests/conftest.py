"""Fixtures and settings that all tests share."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
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
AZURITE = "azurite@3.35.0"
# A reader of Petastorm ends early where its last row group is handed out between its two looks at whether one is left. So
# all are handed out before the first is read.
PETASTORM_READS = """
import sys, warnings
warnings.simplefilter("ignore")
from petastorm import make_reader

def every(url, **options):
    with make_reader(url, workers_count=16, **options) as reader:
        reader.ventilator._ventilation_thread.join()
        yield from reader
"""

# The tests that reach every line of the modules that decide. Others go without: coverage takes time.
COVERING = (
    "engine",
    "shuffles",
    "test_dataset.py",
    "test_filters.py",
    "test_mix.py",
    "test_randomness.py",
    "test_sequences.py",
    "test_stable_hash.py",
    "test_ranges.py",
)

# The same examples on every run, so that what fails is to blame on what was changed; "long" looks for others.
settings.register_profile("fast", max_examples=30, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("long", settings.get_profile("fast"), max_examples=1000, derandomize=False)
# `--hypothesis-profile` is read later than this file, so it wins.
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "fast"))

# A shell that starts this in the background has it ignore interrupts, and all that tests start with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where coverage is measured, measure that of the tests which are there to cover."""
    if not config.pluginmanager.hasplugin("_cov"):
        return
    covering = [Path(__file__).parent / name for name in COVERING]
    for item in items:
        if not any(place == item.path or place in item.path.parents for place in covering):
            item.add_marker("no_cover")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what Penstock caches apart from the user's own cache."""
    os.environ["PENSTOCK_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def corpus() -> Callable[[str], Path]:
    """Return a function from a name to that real table or file of the corpus.

    The corpus holds tables that other software wrote. It is too large for this repository: it is looked for at
    `PENSTOCK_CORPUS`, then in `shared/corpus` beside the repository, and without it the test is skipped.
    """
    given = os.environ.get("PENSTOCK_CORPUS")
    place = Path(given) if given else ROOT.parent / "shared" / "corpus"
    if not place.is_dir():
        pytest.skip(f"There is no corpus at {place}. Set PENSTOCK_CORPUS to the folder that holds it.")

    def find(name: str) -> Path:
        found = place / name
        if not found.exists():
            existing = ", ".join(sorted(entry.name for entry in place.iterdir()))
            pytest.fail(f"The corpus at {place} has no {name!r}. It has: {existing}.")
        return found

    return find


@pytest.fixture(scope="session")
def petastorm_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has Petastorm 0.13.1, which cannot live beside today's pyarrow.

    It is that of the folder which `benchmarks/peers/install.sh` made, where PENSTOCK_PEERS names one; else it is installed.
    """
    peers = os.environ.get("PENSTOCK_PEERS")
    if peers is not None:
        return Path(peers) / "petastorm" / "bin" / "python"
    return _installed(tmp_path_factory, "petastorm", lambda place: _interpreter(place, PETASTORM))


@pytest.fixture(scope="session")
def sail_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has Sail, whose `pyspark-client` stands in the place of `pyspark`.

    It is the one that PENSTOCK_PYSAIL names; else it is installed.
    """
    given = os.environ.get("PENSTOCK_PYSAIL")
    if given is not None:
        return Path(given)
    return _installed(tmp_path_factory, "sail", lambda place: _interpreter(place, SAIL))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program that speaks to clients of Azure's blob storage.

    It is the one that PENSTOCK_AZURITE names, or that is on the PATH; else npm installs it.
    """
    given = os.environ.get("PENSTOCK_AZURITE") or shutil.which("azurite-blob")
    if given is not None:
        return Path(given)
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("azurite-blob is neither on the PATH nor named by PENSTOCK_AZURITE, and there is no npm to install it")

    def install(place: Path) -> Path:
        _install([npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", place, AZURITE], AZURITE)
        return place / "node_modules" / ".bin" / "azurite-blob"

    return _installed(tmp_path_factory, "azurite", install)


def _installed(tmp_path_factory: pytest.TempPathFactory, name: str, install: Callable[[Path], Path]) -> Path:
    """Return what was installed in a folder that all processes of this test run share; the first process installs it.

    A failed installation skips the test in each of them.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    place, done = shared / f"{name}-installed", shared / f"{name}-installed.path"
    with (shared / f"{name}-installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_text(str(install(place)))
        return Path(done.read_text())


def _interpreter(place: Path, packages: Sequence[str]) -> Path:
    """Return an interpreter of its own that has some packages, or skip the test where they cannot be had."""
    python = place / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    _install([python, "-m", "pip", "install", "--quiet", *packages], packages[0])
    return python


def _install(command: Sequence[str | Path], what: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{what} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="session")
def ask_petastorm(petastorm_python: Path) -> Callable[..., list[str]]:
    """Return a function that runs a script in Petastorm's interpreter and returns the lines that it printed.

    `every(url, **options)` gives the script all rows that `make_reader` reads.
    """

    def ask(script: str, *arguments: str | Path) -> list[str]:
        command = [petastorm_python, "-c", PETASTORM_READS + script, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return ask
