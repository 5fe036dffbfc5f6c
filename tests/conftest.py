"""Fixtures and settings that all tests share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import installs
import pytest
from gloo_ranks import Ranks, driver
from hypothesis import settings

ROOT = Path(__file__).parent.parent
# Petastorm's reader has a race: it ends early if its last row group is dispatched between two checks whether one is left.
# Waiting until all row groups are dispatched before the first is read avoids it.
PETASTORM_READS = """
import sys, warnings
warnings.simplefilter("ignore")
from petastorm import make_reader

def every(url, **options):
    with make_reader(url, workers_count=16, **options) as reader:
        reader.ventilator._ventilation_thread.join()
        yield from reader
"""

# The tests that cover every line of the core modules. Other tests run without coverage, because coverage is slow.
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
    "test_stats.py",
)

# "fast" uses the same examples on every run, so that a new failure is caused by a change. "long" searches for new examples.
settings.register_profile("fast", max_examples=30, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("long", settings.get_profile("fast"), max_examples=1000, derandomize=False)
# `--hypothesis-profile` is read after this file, so it takes precedence.
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "fast"))

# A shell that starts pytest in the background makes it and its child processes ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests start hundreds of interpreters, each of which would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

INSTALLED = {"peer": "petastorm", "sail": "sail", "spark": "spark", "azurite": "azurite"}
"""The program to install for the tests with each marker."""

MEASURED = ("test_memory.py", "test_leaks.py", "test_interrupts.py", "engine/runtime/test_timers.py")
"""Files that measure memory or time, or send interrupts; they run one after the other, never in parallel."""
RANKS = ("torch/test_ranks.py", "torch/test_mix.py", "deltatorch/test_ranks.py")
"""Files that run jobs on real ranks; one process runs them all, with one shared driver."""
TOGETHER = {**dict.fromkeys(MEASURED, "measured"), **dict.fromkeys(RANKS, "ranks")}

# Slow files come first, so that short files fill the end. Files that need an installation come after other slow files.
LONG = (
    "torch/test_frameworks.py",
    "torch/test_examples.py",
    *MEASURED,
    *RANKS,
    "petastorm/test_spark_executors.py",
    "engine/processes/test_pool.py",
    "petastorm/test_our_tables.py",
    "formats/delta/test_sail.py",
    "formats/delta/test_stores.py",
    "engine/processes/test_serialize.py",
    "test_dropin.py",
    "formats/delta/test_corpus.py",
    "test_write_faults.py",
    "torch/test_loader.py",
    "formats/delta/test_damage.py",
    "deltatorch/test_mnist_article.py",
    "cli/test_demo.py",
    "petastorm/test_pools.py",
    "test_properties.py",
    "petastorm/test_seeds.py",
    "torch/test_workers.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute whole files in test order, and treat the files of one group in TOGETHER as one file."""
    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False
    scheduler = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: TOGETHER.get(file_of(nodeid).removeprefix("tests/"), file_of(nodeid))
    return scheduler


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort long files first, mark tests that need an installation as slow, and mark tests that coverage leaves out."""
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if any(item.get_closest_marker(mark) for mark in INSTALLED):
            item.add_marker("slow")
    if not config.pluginmanager.hasplugin("_cov"):
        return
    covering = [Path(__file__).parent / name for name in COVERING]
    for item in items:
        if not any(directory == item.path or directory in item.path.parents for directory in covering):
            item.add_marker("no_cover")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a separate cache directory, so that tests do not touch the user's cache."""
    os.environ["PENSTOCK_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def corpus() -> Callable[[str], Path]:
    """Return a function that maps a name to a table or file of the corpus.

    The corpus holds real tables written by other software, and is too large for this repository. It is searched at
    `PENSTOCK_CORPUS`, then in `shared/corpus` beside the repository. Without it the test is skipped.
    """
    configured = os.environ.get("PENSTOCK_CORPUS")
    directory = Path(configured) if configured else ROOT.parent / "shared" / "corpus"
    if not directory.is_dir():
        pytest.skip(f"There is no corpus at {directory}. Set PENSTOCK_CORPUS to the folder that holds it.")

    def find(name: str) -> Path:
        found = directory / name
        if not found.exists():
            existing = ", ".join(sorted(entry.name for entry in directory.iterdir()))
            pytest.fail(f"The corpus at {directory} has no {name!r}. It has: {existing}.")
        return found

    return find


@pytest.fixture(scope="session", autouse=True)
def _begin_installs(request: pytest.FixtureRequest, shared: Path) -> Iterator[None]:
    """Start the installations that the selected tests need; other tests run meanwhile."""
    selected = request.session.items if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" else []
    needed = [name for mark, name in INSTALLED.items() if any(item.get_closest_marker(mark) for item in selected)]
    processes = [
        subprocess.Popen([sys.executable, installs.__file__, name, shared], start_new_session=True, stderr=subprocess.DEVNULL)
        for name in needed
        if installs.provided(name) is None
    ]
    installs.STARTED.update(process.pid for process in processes)
    yield
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


def installed(name: str, shared: Path) -> Path:
    """Return a program that is present or can be installed, or skip the test."""
    try:
        return installs.provided(name) or installs.installed(name, shared)
    except installs.InstallError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def petastorm_python(shared: Path) -> Path:
    """Return an interpreter with Petastorm 0.13.1, which is incompatible with current pyarrow."""
    return installed("petastorm", shared)


@pytest.fixture(scope="session")
def sail_python(shared: Path) -> Path:
    """Return an interpreter with Sail, whose `pyspark-client` replaces `pyspark`."""
    return installed("sail", shared)


@pytest.fixture(scope="session")
def spark_python(shared: Path) -> Path:
    """Return an interpreter with Spark and all packages of this interpreter."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, which is not installed.")
    return installed("spark", shared)


@pytest.fixture(scope="session")
def azurite(shared: Path) -> Path:
    """Return the Azurite program, an emulator of Azure's blob storage."""
    return installed("azurite", shared)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Return the driver that runs jobs on real rank processes."""
    pytest.importorskip("torch")
    with driver() as ranks:
        yield ranks


@pytest.fixture(scope="session")
def ask_petastorm(petastorm_python: Path) -> Callable[..., list[str]]:
    """Return a function that runs a script in Petastorm's interpreter and returns the printed lines.

    Scripts can call `every(url, **options)`, which yields all rows that `make_reader` reads.
    """

    def ask(script: str, *arguments: str | Path) -> list[str]:
        command = [petastorm_python, "-c", PETASTORM_READS + script, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return ask
