"""Options of the tests, and what tests do where an optional library is not installed."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
ADAPTERS = {
    "src/penstock/deltatorch": "torch",
    "src/penstock/jax.py": "jax",
    "src/penstock/spark.py": "pyspark",
    "src/penstock/tensorflow.py": "tensorflow",
    "src/penstock/torch": "torch",
}
"""The modules and packages that import an optional library at their top, and that library."""

OPTIONAL = {
    "PIL",
    "accelerate",
    "adlfs",
    "cv2",
    "deltalake",
    "duckdb",
    "flask",
    "imagecodecs",
    "jax",
    "lightning",
    "ml_dtypes",
    "moto",
    "pandas",
    "prometheus_client",
    "pyspark",
    "rich",
    "s3fs",
    "simplejpeg",
    "sklearn",
    "tensorflow",
    "torch",
    "tqdm",
    "transformers",
}
"""Libraries that tests may need and that Penstock does not depend on."""
ABSENT = {name for name in OPTIONAL if find_spec(name) is None}
MISSING = re.compile(r"No module named '(\w+)")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full`."""
    parser.addoption("--full", action="store_true", help="also run full products, of which the other tests run a part")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect full products, unless `--full` is given."""
    if config.getoption("--full"):
        return
    deselected = [item for item in items if item.get_closest_marker("full")]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out adapters whose library is not installed, and modules that tests import or start."""
    path = collection_path.relative_to(ROOT).as_posix()
    return True if path == "tests/support" or ADAPTERS.get(path) in ABSENT else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that imports a library which is not installed."""
    report = yield
    missing = ABSENT.intersection(MISSING.findall(str(report.longrepr)))
    if report.failed and missing:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {min(missing)} is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """Skip a test of which a fixture needs a library that is not installed."""
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Skip a test that needs a library which is not installed."""
    return (yield from _skipping())


def _skipping() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        for cause in _causes(error):
            texts = [str(cause), *getattr(cause, "__notes__", ())]  # notes tell what was raised in another process
            missing = ABSENT.intersection(MISSING.findall("\n".join(texts)))
            if missing:
                pytest.skip(f"{min(missing)} is not installed")
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from; a failed doctest has its error in `exc_info`."""
    while error is not None:
        yield error
        doctest_error = getattr(error, "exc_info", None)
        error = doctest_error[1] if doctest_error else error.__cause__ or error.__context__
