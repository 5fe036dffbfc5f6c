"""Petastorm's commands: under their own names through the drop-in, as modules, and as installed commands."""

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
    """Run Python in a folder, without the drop-in unless the arguments start it."""
    source = str(Path(importlib.import_module("penstock").__file__ or "").parent.parent)
    inherited = {name: value for name, value in os.environ.items() if name != dropin.HOME}
    environment = {**inherited, "PYTHONPATH": source}
    return subprocess.run([sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True, check=check)


def installed(name: str) -> str:
    """Return the code that an installed command runs."""
    module, _, function = SCRIPTS[name].partition(":")
    return f"import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"


@pytest.mark.parametrize("how", ["name", "module", "command"])
def test_datasets_are_copied_by_a_command(tmp_path: Path, how: str) -> None:
    """The copy command works by name, as a module and as an installed command."""
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
def test_a_schema_is_found_in_the_working_folder(tmp_path: Path, how: str) -> None:
    """The schema is imported from a module in the working folder, where `import petastorm` means Penstock."""
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
    """The throughput command prints the rate of a reader."""
    begin = {
        "name": ("-m", "penstock.dropin", "petastorm-throughput.py"),
        "command": ("-c", installed("penstock-petastorm-throughput")),
    }
    url = tables.small(tmp_path / "t")

    done = run(*begin[how], url, "-m", "10", "-n", "50", "-w", "1", place=tmp_path)

    assert done.stdout.splitlines()[-1].startswith("Average sample read rate: ")


def test_a_script_takes_precedence_over_a_command(tmp_path: Path) -> None:
    """A script in the working folder takes precedence over a command of the same name."""
    (tmp_path / "petastorm-throughput.py").write_text("print('mine')\n")

    assert run("-m", "penstock.dropin", "petastorm-throughput.py", place=tmp_path).stdout == "mine\n"


def test_installed_commands_have_other_names_than_those_of_petastorm() -> None:
    """Installed commands do not have Petastorm's names, since one package must not overwrite files of another."""
    assert not set(SCRIPTS) & set(dropin.SCRIPTS)
    assert all(name.startswith("penstock") for name in SCRIPTS)


@pytest.mark.slow
def test_shipped_modules_import_penstock_without_a_warning(tmp_path: Path) -> None:
    """Modules that Spark copied to another folder import Penstock, and are not reported as another Petastorm."""
    for module in Path(dropin.ALIASES).glob("*.py"):
        (tmp_path / module.name).write_bytes(module.read_bytes())
    begin = f"import sys; sys.path.insert(1, {str(tmp_path)!r})"
    other_home = f"import os; os.environ[{dropin.HOME!r}] = '/elsewhere'; sys.path.insert(1, {dropin.ALIASES!r})"

    copied = run("-W", "error", "-c", f"{begin}; import petastorm.reader; print(petastorm.__name__)", place=tmp_path)
    both = run("-W", "error", "-c", f"{begin}; {other_home}; import petastorm; print(petastorm.__name__)", place=tmp_path)

    assert copied.stdout == both.stdout == "penstock.petastorm\n"


@pytest.mark.slow
def test_an_active_session_gets_the_modules(tmp_path: Path) -> None:
    """The drop-in adds its modules to a Spark session that exists before the import, as in a cluster notebook."""
    (tmp_path / "pyspark.py").write_text(
        "class SparkContext:\n    _active_spark_context = None\n    def addPyFile(self, path):\n        print(path)\n"
    )
    active = "pyspark.SparkContext._active_spark_context = pyspark.SparkContext()"

    without = run("-c", "import pyspark, penstock.dropin", place=tmp_path)
    shipped = run("-c", f"import pyspark; {active}; import penstock.dropin", place=tmp_path)

    assert without.stdout == ""
    assert [Path(line).name for line in shipped.stdout.splitlines()] == ["deltatorch.py", "penstock_alias.py", "petastorm.py"]


@pytest.mark.slow
def test_pickled_functions_refer_to_penstock(tmp_path: Path) -> None:
    """A pickled function refers to Penstock's modules, so the process that loads it needs no drop-in."""
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
