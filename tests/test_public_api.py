"""What the front door shows: a sorted list, nothing more and nothing less, each name explained by an example."""

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

# Names that a module holds without meaning to show them.
UNMEANT = {"TYPE_CHECKING", "annotations"}


def held(module: ModuleType, name: str) -> object:
    """Return what a module holds under a name; nothing for an adapter whose framework is not installed."""
    try:
        return getattr(module, name)
    except ImportError:
        return None


def shown(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the classes and functions of a module's `__all__`, those of the modules in it included."""
    for name in getattr(module, "__all__", ()):
        value = held(module, name)
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{inner}", found) for inner, found in shown(value))
        elif isinstance(value, type | FunctionType):
            yield name, value


SHOWN = dict(shown(penstock))


def test_all_is_sorted_and_names_nothing_twice() -> None:
    """A list in order has one place for each name."""
    assert list(penstock.__all__) == sorted(set(penstock.__all__))


def test_all_names_what_the_front_door_holds() -> None:
    """Whoever imports a name into the front door shows it; whatever is shown is there."""
    present = {name for name, value in vars(penstock).items() if not isinstance(value, ModuleType)} - UNMEANT
    modules = {name for name in penstock.__all__ if isinstance(held(penstock, name), ModuleType | NoneType)}

    assert {name for name in present if not name.startswith("_")} == {
        name for name in penstock.__all__ if not name.startswith("_") and name not in modules
    }


@pytest.mark.parametrize("name", SHOWN)
def test_every_public_name_has_an_example(name: str) -> None:
    """A docstring says what you get, and shows it."""
    text = SHOWN[name].__doc__ or ""

    assert "Example:\n" in text, f"penstock.{name} has no `Example:` in its docstring."
    assert ">>> " in text, f"The example of penstock.{name} is not one that runs."


@pytest.mark.parametrize("name", [name for name in SHOWN if "." not in name])
def test_every_public_name_says_that_it_is_of_penstock(name: str) -> None:
    """A repr or a traceback shows the name that users import, not the room behind it."""
    assert f"{SHOWN[name].__module__}.{name}" == f"penstock.{name}"


def test_what_is_handed_out_has_a_type_that_can_be_named() -> None:
    """Signatures tell it, so that a type checker knows what an iteration or a loader can do besides."""
    batches = iter(example().batch(4))  # as a `Batches`, for the next lines are checked too
    batches.close()

    assert batches.skipped == ()
    assert get_type_hints(penstock.Dataset.__iter__)["return"] is get_type_hints(penstock.Mixture.__iter__)["return"] is Batches
    assert get_type_hints(penstock.loader)["return"] is Loader
    assert isinstance(penstock.loader(example()), Loader)
    assert get_type_hints(penstock.write)["return"] is Writer


def test_dir_shows_what_is_public() -> None:
    """Whoever completes a name sees what can be used: no modules behind it, and no adapter that would fail."""
    adapters = {name for name in ("torch",) if find_spec(name) is not None}

    assert dir(penstock) == sorted({*penstock.__all__, *adapters})
    assert all(held(penstock, name) is not None for name in dir(penstock))


@pytest.mark.parametrize("name", ["jax", "spark", "tensorflow"])
def test_an_adapter_that_is_not_there_names_its_extra(name: str) -> None:
    """It is an optional part that is missing, not a misspelt name."""
    with pytest.raises(MissingExtraError, match=rf"penstock\.{name}.*penstock\[{name}\]"):
        getattr(penstock, name)


def test_a_name_that_nobody_has_is_an_attribute_error() -> None:
    """So that hasattr says no."""
    assert not hasattr(penstock, "jaxx")


def test_a_schema_prints_a_line_for_each_column() -> None:
    """Names, types, codecs and nulls are seen at a glance."""
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
    """What a table is, is seen where it is opened; with clauses, the question is."""
    penstock.write(tmp_path / "t", data={"id": np.arange(7), "x": np.zeros(7)})
    ds = penstock.open(tmp_path / "t")

    assert repr(ds) == f"penstock.open({str(tmp_path / 't')!r})  # 7 rows, 2 columns: id, x"
    assert repr(ds.select("id")) == f"penstock.open({str(tmp_path / 't')!r}).select('id')"


def test_an_opened_table_of_many_files_is_printed_without_reading_all_of_them(tmp_path: Path) -> None:
    """To print is to read a few footers at most; a file that cannot be read is told by whoever reads it."""
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
def test_options_of_other_loaders_are_told_where_they_belong(option: str, value: Any, advice: str) -> None:
    """Whoever knows torch's loader reads what to write here."""
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
    """A URL that nothing installed opens is no missing table."""
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

    said = f"{url!r} needs the extra {extra!r}, which is not installed. Install it: pip install 'penstock[{extra}]'."
    assert done.stdout.splitlines() == [said, said]


def test_a_scheme_that_only_its_package_makes_known_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where adlfs was never installed, fsspec has no word of `abfss`."""
    registry = pytest.importorskip("fsspec.registry")
    for known in (registry.known_implementations, registry._registry):
        monkeypatch.delitem(known, "abfss", raising=False)

    for call in (penstock.open, penstock.write):
        with pytest.raises(MissingExtraError, match=r"needs the extra 'azure', .* pip install 'penstock\[azure\]'"):
            call("abfss://x@y.dfs.core.windows.net/z")
    with pytest.raises(penstock.errors.TableNotFoundError, match="Protocol not known: nope"):
        penstock.open("nope://x/y")


def test_a_hadoop_url_without_hadoop_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL and its options are not at fault."""

    class Lacking:
        @staticmethod
        def from_uri(_: str) -> None:
            msg = "Unable to load libjvm"
            raise OSError(msg)

    monkeypatch.setattr("pyarrow.fs.FileSystem", Lacking)

    with pytest.raises(MissingExtraError, match=r"'hdfs://host/t' needs Java and Hadoop's libhdfs, .*JAVA_HOME"):
        penstock.open("hdfs://host/t")


@pytest.mark.parametrize("module", ["penstock.torch", "penstock.deltatorch"])
def test_an_adapter_that_is_imported_by_name_names_its_extra_too(module: str) -> None:
    """`from penstock.torch import loader` says the same as `penstock.torch`."""
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


def test_data_in_place_of_something_else_is_told_where_it_belongs(tmp_path: Path) -> None:
    """Data frames and tables are given by name to write, and open takes places alone."""
    table = pa.table({"id": [1]})

    with pytest.raises(penstock.errors.ArgumentError, match=r"got schema of type Table; .*penstock\.write\(url, data=\.\.\.\)"):
        penstock.write(tmp_path / "t", table)
    with pytest.raises(penstock.errors.ArgumentError, match=r"open\(\) got Table, which is data; .*penstock\.write\("):
        penstock.open(table)


def test_a_column_is_not_asked_for_by_index() -> None:
    """Rows are; the message says how to get a column, and that works."""
    with pytest.raises(penstock.errors.ArgumentError, match=r"got 'id'; expected .*ds\.select\('id'\)\.to_arrow\(\)"):
        example()["id"]  # type: ignore[index]

    assert example().select("id").to_arrow()["id"].to_pylist() == list(range(10))


def test_a_seed_in_place_of_a_shuffle_is_told_its_name() -> None:
    """`datasets` and others take the seed first."""
    with pytest.raises(penstock.errors.ArgumentError, match=r"shuffle\(\) got 42; .*write shuffle\(seed=42\)\."):
        example().shuffle(42)  # type: ignore[arg-type]


def test_a_scheme_of_fsspec_without_an_extra_says_what_to_install() -> None:
    """Where we have no extra, fsspec knows the package."""
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


def test_a_file_url_with_a_relative_path_is_told_what_to_write() -> None:
    """What follows two slashes is a host, and nobody means one."""
    with pytest.raises(
        penstock.errors.ArgumentError, match=r"'file://lake/t' names 'lake' as a host.*Write file:///.*/lake/t, or"
    ):
        penstock.open("file://lake/t")
