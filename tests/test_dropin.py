"""`penstock.dropin`: `import petastorm` imports Penstock, in this process, in its child processes and in unchanged scripts."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

HOME = "PENSTOCK_DROPIN"

MODULES = [
    "",
    "cache",
    "codec",
    "codecs",
    "errors",
    "etl",
    "etl.dataset_metadata",
    "etl.legacy",
    "etl.metadata_util",
    "etl.petastorm_generate_metadata",
    "etl.rowgroup_indexers",
    "etl.rowgroup_indexing",
    "fs_utils",
    "generator",
    "hdfs.namenode",
    "local_disk_cache",
    "ngram",
    "predicates",
    "pyarrow_helpers.batching_table_queue",
    "pytorch",
    "reader",
    "reader_impl.arrow_table_serializer",
    "reader_impl.pickle_serializer",
    "reader_impl.pytorch_shuffling_buffer",
    "reader_impl.shuffling_buffer",
    "selectors",
    "spark",
    "spark.spark_dataset_converter",
    "spark_utils",
    "test_util.reader_mock",
    "test_util.shuffling_analysis",
    "tf_utils",
    "tools.copy_dataset",
    "tools.spark_session_cli",
    "transform",
    "unischema",
    "utils",
    "weighted_sampling_reader",
    "workers_pool",
    "workers_pool.dummy_pool",
    "workers_pool.process_pool",
    "workers_pool.thread_pool",
    "workers_pool.ventilator",
    "workers_pool.worker_base",
]

ALL = "; ".join(f"import {'.'.join(filter(None, ['petastorm', name]))}" for name in MODULES)
SAME = "; ".join(
    f"assert sys.modules[{'.'.join(filter(None, ['petastorm', name]))!r}] is "
    f"sys.modules[{'.'.join(filter(None, ['penstock.petastorm', name]))!r}]"
    for name in MODULES
)


def run(*arguments: str, path: tuple[Path, ...] = (), check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python without the drop-in of this process."""
    source = str(Path(importlib.import_module("penstock").__file__ or "").parent.parent)
    inherited = {name: value for name, value in os.environ.items() if name != HOME}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join([*map(str, path), source])}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=check)


def test_every_module_is_that_of_the_compatibility_package() -> None:
    """Every module is the same object under both names, so that classes are the same too."""
    found = run("-W", "error", "-c", f"import sys, penstock.dropin; {ALL}; {SAME}; print(petastorm.__version__)")

    assert found.stdout == "0.13.1\n"


def test_modules_keep_their_own_names() -> None:
    """A module imported as `petastorm.*` keeps its own name, spec and package."""
    statement = "print(petastorm.codecs.__name__, petastorm.codecs.__spec__.name, petastorm.codecs.__package__)"

    assert run("-c", f"import penstock.dropin, petastorm.codecs; {statement}").stdout == (
        "penstock.petastorm.codecs penstock.petastorm.codecs penstock.petastorm\n"
    )


def test_an_unknown_module_raises_with_its_name() -> None:
    """Importing an unknown module raises ModuleNotFoundError with the name that was imported."""
    found = run("-c", "import penstock.dropin, petastorm.nope", check=False)

    assert "ModuleNotFoundError: No module named 'petastorm.nope'" in found.stderr


def test_without_the_drop_in_nothing_is_replaced() -> None:
    """Penstock installs nothing under the name `petastorm`; only the drop-in provides it."""
    found = run("-c", "import penstock.petastorm, petastorm", check=False)

    assert "No module named 'petastorm'" in found.stderr


def test_a_script_is_run_with_its_arguments(tmp_path: Path) -> None:
    """A script or module runs as `__main__` with its arguments, and can import modules beside it."""
    (tmp_path / "beside.py").write_text("from petastorm import make_reader\nNAME = make_reader.__module__\n")
    script = tmp_path / "train.py"
    script.write_text("import sys, beside\nprint(__name__, beside.NAME, sys.argv[1:], __file__ == sys.argv[0])\n")

    by_path = run("-m", "penstock.dropin", str(script), "--epochs", "3")
    by_name = run("-m", "penstock.dropin", "-m", "train", "--epochs", "3", path=(tmp_path,))

    assert by_path.stdout == by_name.stdout == "__main__ penstock.petastorm.reader ['--epochs', '3'] True\n"


def test_the_exit_code_of_a_script_is_passed_on(tmp_path: Path) -> None:
    """The exit code of a script is passed on; without a script it is 2, and `--help` prints the usage."""
    script = tmp_path / "train.py"
    script.write_text("import sys, petastorm\nsys.exit(7)\n")

    assert run("-m", "penstock.dropin", str(script), check=False).returncode == 7
    assert run("-m", "penstock.dropin", check=False).returncode == 2
    assert "usage: python -m penstock.dropin" in run("-m", "penstock.dropin", "--help").stderr


@pytest.mark.slow
def test_a_missing_script_or_module_is_reported_in_one_line() -> None:
    """A missing script or module prints one line without a traceback, and exits with 2."""
    for arguments, missing in (
        (("nope.py",), "file 'nope.py'"),
        (("-m", "nope"), "module 'nope'"),
        (("-m", "os.no"), "module 'os.no'"),
    ):
        found = run("-m", "penstock.dropin", *arguments, check=False)

        assert found.returncode == 2
        assert found.stderr == f"python -m penstock.dropin: there is no {missing}. Check its name.\n"


def test_a_missing_import_of_a_package_raises(tmp_path: Path) -> None:
    """An existing package that imports a missing module raises the error of Python."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "__init__.py").write_text("import missing_part")
    found = run("-m", "penstock.dropin", "-m", "whole.part", path=(tmp_path,), check=False)

    assert "ModuleNotFoundError: No module named 'missing_part'" in found.stderr


@pytest.mark.slow
def test_child_processes_use_the_drop_in(tmp_path: Path) -> None:
    """Child processes of `subprocess` and of `multiprocessing` with spawn use the drop-in too."""
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, subprocess, sys\n"
        "import petastorm.predicates\n"
        "def name():\n    return petastorm.predicates.in_set.__module__\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(name))\n"
        "    code = 'import petastorm.reader; print(petastorm.reader.Reader.__module__)'\n"
        "    print(subprocess.run([sys.executable, '-W', 'error', '-c', code], capture_output=True, text=True).stdout)\n"
    )

    found = run("-m", "penstock.dropin", str(script))

    assert found.stdout.split() == ["penstock.petastorm.predicates", "penstock.petastorm.reader"]


@pytest.mark.slow
def test_worker_processes_use_the_drop_in(tmp_path: Path) -> None:
    """A transform function in the worker process of a reader uses the drop-in too."""
    (tmp_path / "beside.py").write_text(
        "import petastorm.unischema\ndef name(row):\n    return {**row, 'word': petastorm.unischema.Unischema.__module__}\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, warnings, pyarrow as pa, pyarrow.parquet as pq, numpy as np, beside\n"
        "from petastorm import make_reader, TransformSpec\n"
        "warnings.simplefilter('ignore')\n"
        "pq.write_table(pa.table({'id': [1]}), sys.argv[1] + '/t.parquet')\n"
        "spec = TransformSpec(beside.name, edit_fields=[('word', np.str_, (), False)])\n"
        "with make_reader('file://' + sys.argv[1] + '/t.parquet', reader_pool_type='process', workers_count=1,\n"
        "                 transform_spec=spec) as reader:\n"
        "    print(next(reader).word)\n"
    )

    assert run("-m", "penstock.dropin", str(script), str(tmp_path)).stdout.split()[0] == "penstock.petastorm.unischema"


@pytest.mark.slow
def test_an_installed_petastorm_warns(tmp_path: Path) -> None:
    """If Petastorm is installed or was imported before, a warning says so, and Penstock is used."""
    package = tmp_path / "petastorm"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n")

    beside = run("-c", "import penstock.dropin, petastorm; print(petastorm.__name__)", path=(tmp_path,))
    before = run("-c", "import petastorm, penstock.dropin; import petastorm; print(petastorm.__name__)", path=(tmp_path,))

    assert beside.stdout == before.stdout == "penstock.petastorm\n"
    assert f"UserWarning: petastorm is installed as well, at {package / '__init__.py'}" in beside.stderr
    assert "UserWarning: petastorm was imported before penstock.dropin" in before.stderr


def test_a_data_directory_of_the_same_name_is_not_a_package(tmp_path: Path) -> None:
    """A directory of data named `petastorm` is not taken for the package, and gives no warning."""
    (tmp_path / "petastorm").mkdir()
    (tmp_path / "petastorm" / "data.txt").touch()

    found = run("-c", "import penstock.dropin, petastorm; print(petastorm.__name__)", path=(tmp_path,))

    assert (found.stdout, found.stderr) == ("penstock.petastorm\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("installed", [False, True])
def test_another_environment_uses_its_own_packages(tmp_path: Path, *, installed: bool) -> None:
    """A child process in an environment without Penstock imports its own Petastorm, or raises ModuleNotFoundError."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("*/site-packages")
    if installed:
        (packages / "petastorm").mkdir()
        (packages / "petastorm" / "__init__.py").write_text("REAL = True\n")
        (packages / "petastorm" / "reader.py").write_text("from petastorm import REAL\n")
    python = str(tmp_path / "venv" / "bin" / "python")
    child = f"subprocess.run([{python!r}, '-c', 'import petastorm.reader; print(petastorm.reader.REAL)'])"

    found = run("-c", f"import subprocess, penstock.dropin; {child}")

    assert found.stdout == ("True\n" if installed else "")
    assert ("ModuleNotFoundError: No module named 'petastorm'" in found.stderr) is not installed


def test_uninstall_ends_the_drop_in(tmp_path: Path) -> None:
    """After `uninstall`, `import petastorm` imports the installed package, and the environment is restored."""
    package = tmp_path / "petastorm"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n")
    code = (
        "import os, warnings; warnings.simplefilter('ignore'); import penstock.dropin, petastorm; penstock.dropin.uninstall()"
    )

    found = run(
        "-c",
        f"{code}; import petastorm; print(petastorm.REAL, '_aliases' in os.environ['PYTHONPATH'], {HOME!r} in os.environ)",
        path=(tmp_path,),
    )

    assert found.stdout == "True False False\n"


@pytest.mark.slow
@pytest.mark.parametrize("installed", [False, True])
def test_a_name_without_a_compatibility_package_is_not_replaced(tmp_path: Path, *, installed: bool) -> None:
    """If Penstock has no compatibility package for a name, the installed package is imported."""
    if installed:
        (tmp_path / "elsewhere.py").write_text("REAL = True\n")
    setup = "import penstock.dropin as dropin; dropin.REPLACED['elsewhere'] = 'penstock.elsewhere'"

    imported = run("-c", f"{setup}; import elsewhere; print(elsewhere.REAL)", path=(tmp_path,), check=False)
    returned = run("-c", f"{setup}; print(dropin.compatibility_module('elsewhere').REAL)", path=(tmp_path,), check=False)

    for found in (imported, returned):
        assert found.stdout == ("True\n" if installed else "")
        assert ("No module named 'elsewhere'" in found.stderr) is not installed


@pytest.mark.slow
def test_deltatorch_is_replaced_too() -> None:
    """`import deltatorch` imports Penstock too, in this process and in a child process."""
    pytest.importorskip("torch")
    statement = "import deltatorch; print(deltatorch.__name__)"

    found = run(
        "-c", f"import subprocess, sys, penstock.dropin; {statement}; subprocess.run([sys.executable, '-c', {statement!r}])"
    )

    assert sorted(found.stdout.split()) == ["penstock.deltatorch"] * 2
