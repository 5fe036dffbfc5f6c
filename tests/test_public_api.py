"""The public names of the package: `__all__` is sorted and complete, and each class and function has an example."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType, NoneType
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import MissingExtraError, UnknownArgumentError
from penstock.loading import Batches, Loader
from penstock.testing import example
from penstock.write import Writer

# Names in the package that are not part of its interface.
NOT_PUBLIC = {"TYPE_CHECKING", "annotations"}


def value_of(module: ModuleType, name: str) -> object:
    """Return the value of a name in a module; None for an adapter whose framework is not installed."""
    try:
        return getattr(module, name)
    except ImportError:
        return None


def public_names(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the classes and functions of a module's `__all__`, and those of the modules in it."""
    for name in getattr(module, "__all__", ()):
        value = value_of(module, name)
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{inner}", found) for inner, found in public_names(value))
        elif isinstance(value, type | FunctionType):
            yield name, value


PUBLIC = dict(public_names(penstock))


def test_all_is_sorted_and_names_nothing_twice() -> None:
    """`__all__` is sorted and has no duplicates."""
    assert list(penstock.__all__) == sorted(set(penstock.__all__))


def test_all_names_what_the_package_has() -> None:
    """Every public name of the package is in `__all__`, and every name in `__all__` exists."""
    present = {name for name, value in vars(penstock).items() if not isinstance(value, ModuleType)} - NOT_PUBLIC
    modules = {name for name in penstock.__all__ if isinstance(value_of(penstock, name), ModuleType | NoneType)}

    assert {name for name in present if not name.startswith("_")} == {
        name for name in penstock.__all__ if not name.startswith("_") and name not in modules
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name: str) -> None:
    """Every public docstring has an `Example:` section with code that runs."""
    text = PUBLIC[name].__doc__ or ""

    assert "Example:\n" in text, f"penstock.{name} has no `Example:` in its docstring."
    assert ">>> " in text, f"The example of penstock.{name} is not one that runs."


@pytest.mark.parametrize("name", [name for name in PUBLIC if "." not in name])
def test_every_public_name_has_penstock_as_its_module(name: str) -> None:
    """A repr or a traceback shows the name that users import, not that of an internal module."""
    assert f"{PUBLIC[name].__module__}.{name}" == f"penstock.{name}"


def test_returned_objects_have_public_types() -> None:
    """Iteration, `loader` and `write` are annotated with public types, so that type checkers know their methods."""
    batches = iter(example().batch(4))  # `Batches` for mypy, which checks the next lines too
    batches.close()

    assert batches.skipped == ()
    assert get_type_hints(penstock.Dataset.__iter__)["return"] is get_type_hints(penstock.Mixture.__iter__)["return"] is Batches
    assert get_type_hints(penstock.loader)["return"] is Loader
    assert isinstance(penstock.loader(example()), Loader)
    assert get_type_hints(penstock.write)["return"] is Writer


def test_dir_shows_what_is_public() -> None:
    """`dir(penstock)` lists the public names and the installed adapters, and no internal modules."""
    adapters = {name for name in ("torch",) if find_spec(name) is not None}

    assert dir(penstock) == sorted({*penstock.__all__, *adapters})
    assert all(value_of(penstock, name) is not None for name in dir(penstock))


@pytest.mark.parametrize("name", ["jax", "spark", "tensorflow"])
def test_a_missing_adapter_names_its_extra(name: str) -> None:
    """An adapter that is missing raises MissingExtraError with the extra to install."""
    with pytest.raises(MissingExtraError, match=rf"penstock\.{name}.*penstock\[{name}\]"):
        getattr(penstock, name)


def test_an_unknown_name_raises_attribute_error() -> None:
    """`hasattr` is False for an unknown name."""
    assert not hasattr(penstock, "jaxx")


def test_a_schema_prints_a_line_for_each_column() -> None:
    """The text of a schema shows names, types, codecs and nullable columns."""
    fields = [
        penstock.Field("id", np.int32),
        penstock.Field("image", np.uint8, (8, 8), penstock.codecs.Png()),
        penstock.Field("word", str, nullable=True),
        penstock.Field("tokens", np.int64, (None,)),
    ]

    assert str(penstock.Schema("Hello", fields)).splitlines() == [
        "Schema Hello, 4 columns",
        "  id      int32",
        f"  image   uint8 (8, 8)  {penstock.codecs.Png()!r}",
        "  word    text  nullable",
        "  tokens  int64 (None,)",
    ]
    assert str(penstock.Schema("", fields[:1])).splitlines()[0] == "Schema, 1 column"


def test_an_opened_table_prints_its_rows_and_columns(tmp_path: Path) -> None:
    """The repr of an opened table shows its rows and columns; with clauses, it shows the query."""
    penstock.write(tmp_path / "t", data={"id": np.arange(7), "x": np.zeros(7)})
    ds = penstock.open(tmp_path / "t")

    assert repr(ds) == f"penstock.open({str(tmp_path / 't')!r})  # 7 rows, 2 columns: id, x"
    assert repr(ds.select("id")) == f"penstock.open({str(tmp_path / 't')!r}).select('id')"


def test_an_opened_table_of_many_files_is_printed_without_reading_all_of_them(tmp_path: Path) -> None:
    """The repr reads few footers and does not raise if a file cannot be read; counting the rows raises."""
    for number in range(17):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    assert repr(penstock.open(tmp_path)).endswith("  # rows of 17 files, 1 column: id")

    (tmp_path / "9.parquet").unlink()
    ds = penstock.open(tmp_path)
    (tmp_path / "8.parquet").unlink()

    assert repr(ds).endswith("  # unreadable rows, 1 column: id")
    with pytest.raises(penstock.PenstockError):
        _ = ds.num_rows


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("batch_size", 32, "penstock.loader(ds.batch(32))."),
        ("shuffle", True, "penstock.loader(ds.shuffle(seed=0).batch(size))."),
        ("num_workers", 4, 'ds.using(workers="processes").'),
        ("drop_last", True, 'ds.batch(size, last="drop")'),
        ("collate_fn", len, "ds.batch(size).map(function)."),
        ("frobnicate", 1, "Remove it."),
    ],
)
def test_options_of_other_loaders_raise_with_advice(option: str, value: Any, advice: str) -> None:
    """Options of torch's DataLoader raise UnknownArgumentError, which says what to write instead."""
    with pytest.raises(UnknownArgumentError) as refused:
        penstock.loader(example(), **{option: value})

    assert str(refused.value).startswith(f"penstock.loader() got {option}={value!r}; expected options: none. ")
    assert advice in str(refused.value)
    assert isinstance(refused.value, TypeError)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("abfs://x/y", "adlfs", "azure"),
        ("abfss://x@y.dfs.core.windows.net/z", "adlfs", "azure"),
        ("az://x/y", "adlfs", "azure"),
        ("s3://x/y", "s3fs", "s3"),
        ("s3a://x/y", "s3fs", "s3"),
        ("gs://x/y", "gcsfs", "gcs"),
    ],
)
def test_a_store_whose_package_is_missing_names_its_extra(url: str, package: str, extra: str) -> None:
    """A URL whose package is not installed raises MissingExtraError with the extra to install."""
    script = f"""
import sys
sys.modules[{package!r}] = None
import penstock
for call in (penstock.open, penstock.write):
    try:
        call({url!r}, storage_options={{"anon": True}})
    except penstock.errors.MissingExtraError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    message = f"{url!r} needs the extra {extra!r}, which is not installed. Install it: pip install 'penstock[{extra}]'."
    assert done.stdout.splitlines() == [message, message]


def test_a_scheme_that_fsspec_does_not_know_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheme that fsspec does not know raises MissingExtraError if an extra has it, else TableNotFoundError."""
    registry = pytest.importorskip("fsspec.registry")
    for known in (registry.known_implementations, registry._registry):
        monkeypatch.delitem(known, "abfss", raising=False)

    for call in (penstock.open, penstock.write):
        with pytest.raises(MissingExtraError, match=r"needs the extra 'azure', .* pip install 'penstock\[azure\]'"):
            call("abfss://x@y.dfs.core.windows.net/z")
    with pytest.raises(penstock.errors.TableNotFoundError, match="Protocol not known: nope"):
        penstock.open("nope://x/y")


def test_a_hadoop_url_without_hadoop_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An HDFS URL raises MissingExtraError with what to install if Hadoop is missing."""

    class WithoutHadoop:
        @staticmethod
        def from_uri(_: str) -> None:
            msg = "Unable to load libjvm"
            raise OSError(msg)

    monkeypatch.setattr("pyarrow.fs.FileSystem", WithoutHadoop)

    with pytest.raises(MissingExtraError, match=r"'hdfs://host/t' needs Java and Hadoop's libhdfs, .*JAVA_HOME"):
        penstock.open("hdfs://host/t")


@pytest.mark.parametrize("module", ["penstock.torch", "penstock.deltatorch"])
def test_an_adapter_that_is_imported_by_name_names_its_extra_too(module: str) -> None:
    """`from penstock.torch import loader` raises the same error as `penstock.torch`."""
    script = f"""
import sys
sys.modules["torch"] = None
import penstock
try:
    import {module}
except penstock.errors.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout == "penstock.torch needs torch, which is not installed. Install it: pip install 'penstock[torch]'.\n"


def test_data_in_place_of_something_else_raises_with_advice(tmp_path: Path) -> None:
    """A table as the schema of `write` or the source of `open` raises ArgumentError with advice to use data=."""
    table = pa.table({"id": [1]})

    with pytest.raises(penstock.errors.ArgumentError, match=r"got schema of type Table; .*penstock\.write\(url, data=\.\.\.\)"):
        penstock.write(tmp_path / "t", table)
    with pytest.raises(penstock.errors.ArgumentError, match=r"open\(\) got Table, which is data; .*penstock\.write\("):
        penstock.open(table)


def test_a_column_name_as_index_raises_with_advice() -> None:
    """A column name as index raises ArgumentError with the call that returns the column."""
    with pytest.raises(penstock.errors.ArgumentError, match=r"got 'id'; expected .*ds\.select\('id'\)\.to_arrow\(\)"):
        example()["id"]  # type: ignore[index]

    assert example().select("id").to_arrow()["id"].to_pylist() == list(range(10))


def test_a_seed_in_place_of_a_shuffle_raises_with_advice() -> None:
    """`shuffle(42)` raises ArgumentError with advice to write `shuffle(seed=42)`; other libraries take the seed first."""
    with pytest.raises(penstock.errors.ArgumentError, match=r"shuffle\(\) got 42; .*write shuffle\(seed=42\)\."):
        example().shuffle(42)  # type: ignore[arg-type]


def test_a_scheme_of_fsspec_without_an_extra_says_what_to_install() -> None:
    """If no extra has the package of a scheme, the error names the package as fsspec does."""
    script = """
import sys
sys.modules["paramiko"] = None
import penstock
try:
    penstock.open("sftp://host/table")
except penstock.errors.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.startswith("'sftp://host/table' needs a package that is not installed: ")
    assert "paramiko" in done.stdout


def test_a_file_url_with_a_relative_path_raises_with_advice() -> None:
    """A file URL with a host raises ArgumentError with the URL of the absolute path."""
    with pytest.raises(
        penstock.errors.ArgumentError, match=r"'file://lake/t' names 'lake' as a host.*Write file:///.*/lake/t, or"
    ):
        penstock.open("file://lake/t")
