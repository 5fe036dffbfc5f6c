"""Petastorm's commands: by their own names through the drop-in, as modules, and as commands that are installed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import petastorm_tables as tables
import pytest

from penstock import dropin

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

SCHEMA = """
import numpy as np
from petastorm.codecs import NdarrayCodec
from petastorm.unischema import Unischema, UnischemaField

Numbers = Unischema("Numbers", [UnischemaField("id", np.int64, ())])
"""


def run(*arguments: str, place: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with no drop-in but what the arguments ask for."""
    source = str(Path(importlib.import_module("penstock").__file__ or "").parent.parent)
    apart = {name: value for name, value in os.environ.items() if name != dropin.HOME}
    environment = {**apart, "PYTHONPATH": source}
    return subprocess.run([sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True, check=check)


def installed(name: str) -> str:
    """Return the code that an installed command runs."""
    module, _, function = SCRIPTS[name].partition(":")
    return f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"


@pytest.mark.parametrize("how", ["name", "module", "command"])
def test_datasets_are_copied_by_a_command(tmp_path: Path, how: str) -> None:
    """Whichever way it is called."""
    begin = {
        "name": ("-m", "penstock.dropin", "petastorm-copy-dataset.py"),
        "module": ("-m", "penstock.dropin", "-m", "petastorm.tools.copy_dataset"),
        "command": ("-c", installed("penstock-petastorm-copy-dataset")),
    }
    source, target = tables.small(tmp_path / "t"), tmp_path / "copy"

    done = run(*begin[how], source, target.as_uri(), "--partition-count", "2", place=tmp_path)

    assert len(list(target.glob("*.parquet"))) == 2
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["name", "module", "command"])
def test_a_schema_is_found_in_the_folder_of_the_user(tmp_path: Path, how: str) -> None:
    """Its module imports Petastorm, which means Penstock there."""
    begin = {
        "name": ("-m", "penstock.dropin", "petastorm-generate-metadata.py"),
        "module": ("-m", "penstock.dropin", "-m", "petastorm.etl.petastorm_generate_metadata"),
        "command": ("-c", installed("penstock-petastorm-generate-metadata")),
    }
    (tmp_path / "our_schemas.py").write_text(SCHEMA)
    url = tables.plain(tmp_path / "t", {"id": [1, 2, 3]})

    run(*begin[how], "--dataset_url", url, "--unischema_class", "our_schemas.Numbers", place=tmp_path)
    shown = run("-m", "penstock.dropin", "-m", "petastorm.etl.metadata_util", "--dataset-url", url, "--schema", place=tmp_path)

    assert shown.stdout.splitlines()[1:3] == ["Unischema(Numbers, [", "  UnischemaField('id', int64, (), None, False),"]


@pytest.mark.parametrize("how", ["name", "command"])
def test_readers_are_measured_by_a_command(tmp_path: Path, how: str) -> None:
    """In a process of its own, which the command starts."""
    begin = {
        "name": ("-m", "penstock.dropin", "petastorm-throughput.py"),
        "command": ("-c", installed("penstock-petastorm-throughput")),
    }
    url = tables.small(tmp_path / "t")

    done = run(*begin[how], url, "-m", "10", "-n", "50", "-w", "1", place=tmp_path)

    assert done.stdout.splitlines()[-1].startswith("Average sample read rate: ")


def test_a_script_of_the_user_comes_before_a_command(tmp_path: Path) -> None:
    """A file that is called like one is what is meant."""
    (tmp_path / "petastorm-throughput.py").write_text("print('mine')\n")

    assert run("-m", "penstock.dropin", "petastorm-throughput.py", place=tmp_path).stdout == "mine\n"


def test_commands_have_names_of_our_own() -> None:
    """Petastorm installs its own under theirs, and one package must not overwrite files of another."""
    assert not set(SCRIPTS) & set(dropin.SCRIPTS)
    assert all(name.startswith("penstock") for name in SCRIPTS)


@pytest.mark.slow
def test_modules_that_were_shipped_are_no_other_petastorm(tmp_path: Path) -> None:
    """Spark brings them to a folder of its own, whose name nobody knows; a process in another environment may have both."""
    for module in Path(dropin.ALIASES).glob("*.py"):
        (tmp_path / module.name).write_bytes(module.read_bytes())
    begin = f"import sys; sys.path.insert(1, {str(tmp_path)!r})"
    elsewhere = f"import os; os.environ[{dropin.HOME!r}] = '/elsewhere'; sys.path.insert(1, {dropin.ALIASES!r})"

    there = run("-W", "error", "-c", f"{begin}; import petastorm.reader; print(petastorm.__name__)", place=tmp_path)
    both = run("-W", "error", "-c", f"{begin}; {elsewhere}; import petastorm; print(petastorm.__name__)", place=tmp_path)

    assert there.stdout == both.stdout == "penstock.petastorm\n"


@pytest.mark.slow
def test_a_session_that_is_there_is_told(tmp_path: Path) -> None:
    """As in a notebook of a cluster, where a session is made before anything is imported."""
    (tmp_path / "pyspark.py").write_text(
        "class SparkContext:\n    _active_spark_context = None\n    def addPyFile(self, path):\n        print(path)\n"
    )
    active = "pyspark.SparkContext._active_spark_context = pyspark.SparkContext()"

    without = run("-c", "import pyspark, penstock.dropin", place=tmp_path)
    told = run("-c", f"import pyspark; {active}; import penstock.dropin", place=tmp_path)

    assert without.stdout == ""
    assert [Path(line).name for line in told.stdout.splitlines()] == ["deltatorch.py", "penstock_alias.py", "petastorm.py"]


@pytest.mark.slow
def test_functions_travel_under_our_own_names(tmp_path: Path) -> None:
    """What a function takes from Petastorm is pickled as Penstock's, and needs no drop-in where it arrives."""
    (tmp_path / "driver.py").write_text(
        "import cloudpickle, sys\n"
        "import penstock.dropin\n"
        "import petastorm.predicates\n"
        "from petastorm import make_reader\n"
        "def told():\n    return petastorm.predicates.in_set.__module__, make_reader.__module__\n"
        "with open('function', 'wb') as target:\n    cloudpickle.dump(told, target)\n"
    )
    run("driver.py", place=tmp_path)

    found = run("-c", "import cloudpickle; print(cloudpickle.load(open('function', 'rb'))())", place=tmp_path)

    assert found.stdout == "('penstock.petastorm.predicates', 'penstock.petastorm.reader')\n"
