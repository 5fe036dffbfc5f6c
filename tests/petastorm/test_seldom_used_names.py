"""Names of Petastorm that scripts import but seldom call: workers, processes, named tuples, and times for TensorFlow."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pytest

from penstock.errors import MissingExtraError
from penstock.petastorm import Reader, make_batch_reader, make_reader
from penstock.petastorm._impl.arguments import ReaderArguments
from penstock.petastorm._impl.dataset import open_dataset
from penstock.petastorm.arrow_reader_worker import ArrowReaderWorker, convert_arrow_table_to_numpy_dict
from penstock.petastorm.hdfs.namenode import failover_all_class_methods
from penstock.petastorm.namedtuple_gt_255_fields import namedtuple_gt_255_fields
from penstock.petastorm.ngram import NGram
from penstock.petastorm.py_dict_reader_worker import PyDictReaderWorker
from penstock.petastorm.spark import spark_dataset_converter as converter
from penstock.petastorm.tf_utils import date_to_nsec_from_epoch, make_namedtuple_tf_ngram
from penstock.petastorm.unischema import Unischema, UnischemaField
from penstock.petastorm.workers_pool.exec_in_new_process import exec_in_new_process


@pytest.mark.parametrize("make", [make_reader, make_batch_reader])
def test_every_argument_is_described(make: Any) -> None:
    """The docstring describes each argument once, in the order of the signature."""
    described = re.findall(r"^        (\w+): \S", inspect.getdoc(make) or "", re.MULTILINE) or re.findall(
        r"^    (\w+): \S", inspect.getdoc(make) or "", re.MULTILINE
    )

    assert described[:-2] == list(inspect.signature(make).parameters)
    assert described[-2:] == ["ValueError", "OSError"]


@pytest.mark.parametrize("call", [make_reader, make_batch_reader, Reader])
def test_reader_arguments_match_the_functions(call: Any) -> None:
    """`ReaderArguments` has the defaults of the functions that it is filled from, and misses none of their arguments."""
    defaults = {field.name: field.default for field in dataclasses.fields(ReaderArguments)}
    accepted = {name: given.default for name, given in inspect.signature(call).parameters.items()}
    batched = {"is_batched_reader", "decode", "batch_size", "drop_last"}

    assert {name: accepted[name] for name in defaults if name in accepted} == {
        n: defaults[n] for n in defaults if n in accepted
    }
    assert set(defaults) - set(accepted) <= (set() if call is Reader else batched)
    assert set(inspect.signature(Reader).parameters) - set(defaults) == {
        "pyarrow_filesystem",
        "dataset_path",
        "reader_pool",
        "cache",
        "worker_class",
        "convert_early_to_numpy",
        "dataset",
    }


def test_warnings_point_at_the_file_of_the_user(tmp_path: Path) -> None:
    """Warnings have the file of the user's call, at any call depth inside the compatibility package."""
    url = tables.small(tmp_path / "t")

    with pytest.warns(UserWarning, match="shard_seed was deprecated") as deprecated, make_reader(url, shard_seed=3):
        pass
    with pytest.warns(UserWarning, match="No matching data") as empty, make_reader(url, cur_shard=9, shard_count=2):
        pass
    with pytest.warns(UserWarning, match="Please use make_reader") as raw, make_batch_reader(url):
        pass

    assert [str(record.filename) for found in (deprecated, empty, raw) for record in found] == [__file__] * 3


@pytest.mark.parametrize(("worker", "batched"), [(ArrowReaderWorker, True), (PyDictReaderWorker, False), (None, False)])
def test_the_worker_class_selects_rows_or_batches(tmp_path: Path, worker: Any, *, batched: bool) -> None:
    """`worker_class` of `Reader` only selects rows or batches. The engine does the work."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2, 3]})
    dataset = open_dataset(url)

    with Reader(dataset.fs, dataset.place.path, worker_class=worker) as reader:
        found = list(reader)

    assert reader.batched_output is batched
    assert len(found) == (1 if batched else 3)
    assert tables.ids(found) == [1, 2, 3]


def test_workers_cannot_be_used_alone() -> None:
    """Using a worker alone raises NotImplementedError that names what to use."""
    worker = ArrowReaderWorker(0, print, None)

    with pytest.raises(NotImplementedError, match=r"ArrowReaderWorker works on nothing here\. Use make_reader"):
        worker.process(1)
    with pytest.raises(NotImplementedError, match="QueueReader reads nothing here"):
        worker.new_results_queue_reader().read_next(None, None, None)


def test_tables_become_the_columns_of_batches() -> None:
    """Lists of one length become a matrix, and text becomes an array of text."""
    schema = Unischema("T", [UnischemaField(name, np.int64, shape) for name, shape in (("x", ()), ("m", (2, 2)), ("t", ()))])
    table = pa.table({"x": pa.chunked_array([[1], [2]]), "m": [[1, 2, 3, 4], [5, 6, 7, 8]], "t": ["a", "bc"]})

    found = convert_arrow_table_to_numpy_dict(table, schema)

    assert found["x"].tolist() == [1, 2]
    assert found["m"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert found["t"].dtype.kind == "U"
    with pytest.raises(RuntimeError, match="Length of all values in column 'm' are expected to be the same length"):
        convert_arrow_table_to_numpy_dict(pa.table({"m": [[1], [2, 3]]}), schema)


def test_functions_run_in_new_processes(tmp_path: Path) -> None:
    """`exec_in_new_process` runs a function in a new process and returns that process."""
    process = exec_in_new_process(Path.write_text, tmp_path / "found", data="here")
    failed = exec_in_new_process(sys.exit, 3)

    assert process.wait(60) == 0
    assert failed.wait(60) == 3
    assert (tmp_path / "found").read_text() == "here"


def test_named_tuples_have_many_fields() -> None:
    """`namedtuple_gt_255_fields` makes named tuples of any number of fields."""
    names = [f"field_{number}" for number in range(1000)]

    found = namedtuple_gt_255_fields("Many", names)(*range(1000))

    assert found.field_999 == 999
    assert namedtuple_gt_255_fields("Few", "a, def", rename=True)._fields == ("a", "_1")


def test_every_public_method_is_decorated() -> None:
    """`failover_all_class_methods` decorates public methods, also inherited ones."""

    class Base:
        def read(self) -> str:
            return "read"

    class Client(Base):
        def _hidden(self) -> str:
            return "hidden"

    def louder(method: Any) -> Any:
        return lambda *given: method(*given).upper()

    found: Any = failover_all_class_methods(louder)(Client)()

    assert (found.read(), found._hidden()) == ("READ", "hidden")


def test_dates_are_nanoseconds_for_tensorflow() -> None:
    """Dates become nanoseconds since 1970, in whole seconds."""
    assert date_to_nsec_from_epoch(date(1970, 1, 2)) == 86_400_000_000_000
    assert date_to_nsec_from_epoch(datetime(2020, 1, 1, 0, 0, 1, 999, tzinfo=UTC)) == 1_577_836_801_000_000_000


def test_windows_are_made_of_flat_values() -> None:
    """`make_namedtuple_tf_ngram` makes a window from flat values, by position or by name."""
    schema = Unischema("W", [UnischemaField("id", np.int64, ()), UnischemaField("x", np.int64, ())])
    window = NGram({-1: [schema.id], 1: [schema.id, schema.x]}, 10, schema.id)

    by_place = make_namedtuple_tf_ngram(schema, window, 1, 3, 4)
    by_name = make_namedtuple_tf_ngram(schema, window, **{"-1": {"id": 1}, "1": {"id": 3, "x": 4}})

    assert list(by_place) == [-1, 0, 1]
    assert by_place == by_name
    assert (by_place[-1].id, by_place[0]._fields, by_place[1].x) == (1, (), 4)


@pytest.mark.parametrize(
    "name", ["CachedDataFrameMeta", "TFDatasetContextManager", "TorchDatasetContextManager", "register_delete_dir_handler"]
)
def test_names_of_the_converter_raise_when_called(name: str) -> None:
    """Names of the Spark converter can be imported. Calling them raises MissingExtraError."""
    with pytest.raises(MissingExtraError, match=rf"{name} works with Spark, .* pip install 'penstock\[spark\]'"):
        getattr(converter, name)(None)
