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
    "test_stats.py",
)

# The same examples on every run, so that what fails is to blame on what was changed; "long" looks for others.
settings.register_profile("fast", max_examples=30, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("long", settings.get_profile("fast"), max_examples=1000, derandomize=False)
# `--hypothesis-profile` is read later than this file, so it wins.
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "fast"))

# A shell that starts this in the background has it ignore interrupts, and all that tests start with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests start hundreds of interpreters, each of which would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

INSTALLED = {"peer": "petastorm", "sail": "sail", "spark": "spark", "azurite": "azurite"}
"""What is installed for the tests with a marker."""

MEASURED = ("test_memory.py", "test_rounds.py", "test_interrupts.py", "engine/runtime/test_timers.py")
"""Files that measure memory or time, or interrupt: they run one after the other, never beside each other."""
RANKS = ("torch/test_ranks.py", "torch/test_mix.py", "deltatorch/test_ranks.py")
"""Files that run jobs on real ranks: one process runs them, and starts one driver for all."""
TOGETHER = {**dict.fromkeys(MEASURED, "measured"), **dict.fromkeys(RANKS, "ranks")}

# Files that take long come first, and those that wait for an installation come after others. Short files fill the end.
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
    """Share out whole files in the order of the tests, and some files together as if they were one."""
    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False
    scheduler = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    file_of = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: TOGETHER.get(file_of(nodeid).removeprefix("tests/"), file_of(nodeid))
    return scheduler


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring long files to the front, mark what waits for an installation as slow, and choose what coverage is measured of."""
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if any(item.get_closest_marker(mark) for mark in INSTALLED):
            item.add_marker("slow")
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


@pytest.fixture(scope="session", autouse=True)
def _begin_installs(request: pytest.FixtureRequest, shared: Path) -> Iterator[None]:
    """Begin to install what the selected tests need; the tests that need nothing run meanwhile."""
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
    """Return a program that is on this machine or can be installed, or skip the test."""
    try:
        return installs.provided(name) or installs.installed(name, shared)
    except installs.InstallError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def petastorm_python(shared: Path) -> Path:
    """Return an interpreter that has Petastorm 0.13.1, which cannot live beside today's pyarrow."""
    return installed("petastorm", shared)


@pytest.fixture(scope="session")
def sail_python(shared: Path) -> Path:
    """Return an interpreter that has Sail, whose `pyspark-client` stands in the place of `pyspark`."""
    return installed("sail", shared)


@pytest.fixture(scope="session")
def spark_python(shared: Path) -> Path:
    """Return an interpreter that has Spark, and everything that this one has."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, which is not installed.")
    return installed("spark", shared)


@pytest.fixture(scope="session")
def azurite(shared: Path) -> Path:
    """Return the program that speaks to clients of Azure's blob storage."""
    return installed("azurite", shared)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Return the driver that runs jobs on real ranks."""
    pytest.importorskip("torch")
    with driver() as ranks:
        yield ranks


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
