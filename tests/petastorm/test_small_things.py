"""Other modules of Petastorm: random rows, mock readers, tables cut to one size, and a command."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.petastorm import make_batch_reader
from penstock.petastorm.etl import legacy, metadata_util
from penstock.petastorm.etl.dataset_metadata import get_schema_from_dataset_url
from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from penstock.petastorm.generator import generate_datapoint
from penstock.petastorm.ngram import NGram
from penstock.petastorm.pyarrow_helpers.batching_table_queue import BatchingTableQueue
from penstock.petastorm.reader_impl.arrow_table_serializer import ArrowTableSerializer
from penstock.petastorm.reader_impl.pickle_serializer import PickleSerializer
from penstock.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example
from penstock.petastorm.test_util.shuffling_analysis import compute_correlation_distribution
from penstock.petastorm.tools.spark_session_cli import add_configure_spark_arguments, configure_spark
from penstock.petastorm.unischema import Unischema, UnischemaField
from penstock.petastorm.utils import run_in_subprocess
from penstock.petastorm.workers_pool import EmptyResultError, TimeoutWaitingForResultError
from penstock.petastorm.workers_pool.worker_base import WorkerBase

SCHEMA = Unischema(
    "Some",
    [
        UnischemaField("id", np.int8, ()),
        UnischemaField("big", np.uint64, (2, None)),
        UnischemaField("part", np.float32, (3,)),
        UnischemaField("price", Decimal, ()),
    ],
)


def test_random_rows_fit_their_schema() -> None:
    """In random rows, variable sizes are 13, integers have any value of their dtype, and floats are between 0 and 1."""
    rows = [generate_datapoint(SCHEMA) for _ in range(50)]

    assert {row["big"].shape for row in rows} == {(2, 13)}
    assert {(row["id"].dtype.name, row["part"].dtype.name) for row in rows} == {("int8", "float32")}
    assert min(int(row["id"]) for row in rows) < 0 < max(int(row["big"].max()) >> 62 for row in rows)
    assert all(0 <= row["part"].min() <= row["part"].max() <= 1 for row in rows)


def test_a_mock_reader_returns_rows() -> None:
    """A mock reader returns zeros, and 10 for variable sizes. An `NGram` raises ValueError."""
    with ReaderMock(SCHEMA, schema_data_generator_example) as reader:
        row = next(reader)
        reader.stop()
        reader.join()

    assert (row.id, row.big.shape, row.price) == (0, (2, 10), Decimal("0.0"))
    assert type(row).__name__ == "Some_view"
    assert next(iter(reader)).id == reader.next().id == 0
    assert (reader.batched_output, reader.ngram) == (False, None)
    with pytest.raises(ValueError, match="not supported for ReaderMock"):
        ReaderMock(SCHEMA, schema_data_generator_example, NGram({0: ["id"]}, 1, "id"))


@given(sizes=st.lists(st.integers(0, 7), max_size=8), size=st.integers(1, 5))
def test_tables_are_cut_to_one_size_in_order(sizes: list[int], size: int) -> None:
    """All tables from a `BatchingTableQueue` have the same number of rows. The remaining rows wait for more."""
    queue, found, ends = BatchingTableQueue(size), [], np.cumsum([0, *sizes]).tolist()
    for begin, end in pairwise(ends):
        queue.put(pa.table({"n": list(range(begin, end))}))
        while not queue.empty():
            found.append(queue.get().column("n").to_pylist())

    assert all(len(table) == size for table in found)
    assert [n for table in found for n in table] == list(range(ends[-1] // size * size))
    with pytest.raises(AssertionError, match="put more tables before"):
        queue.get()


def test_serialized_objects_come_back() -> None:
    """One serializer restores Arrow tables, and the other restores Python objects."""
    table, rows = pa.table({"n": [1, None]}), [{"id": np.int64(3)}]

    assert ArrowTableSerializer().deserialize(ArrowTableSerializer().serialize(table)).equals(table)
    assert PickleSerializer().deserialize(PickleSerializer().serialize(rows)) == rows


def test_workers_have_an_id_and_a_publish_function() -> None:
    """A worker publishes through its function. Errors of pools are RuntimeErrors, which scripts catch."""
    recorded: list[Any] = []
    worker = WorkerBase(3, recorded.append, "anything")
    worker.publish_func(worker.args)
    worker.process()
    worker.shutdown()

    assert (worker.worker_id, recorded) == (3, ["anything"])
    assert issubclass(EmptyResultError, RuntimeError)
    assert issubclass(TimeoutWaitingForResultError, RuntimeError)


def test_the_shuffle_quality_is_a_correlation(tmp_path: Path) -> None:
    """Shuffled parts of one row have little correlation with the stored order."""
    url = tables.small(tmp_path / "t")

    mean, deviation = compute_correlation_distribution(url, "id", 10, num_corr_samples=5)

    assert 0 <= mean < 0.9
    assert 0 <= deviation < 1


def test_a_command_prints_the_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`metadata_util` prints the schema and the indexes, or one of them."""
    url = tables.small(tmp_path / "t")
    build_rowgroup_index(url, None, [SingleFieldIndexer("by name", "name"), SingleFieldIndexer("by id", "id")])

    metadata_util.main(["--dataset-url", f"{url}/", "--print-values", "--skip-index", "by id"])
    both = capsys.readouterr().out
    metadata_util.main(["--dataset-url", url, "--index"])

    assert both.startswith("*** Schema from dataset metadata ***\nUnischema(Small, [\n  UnischemaField('id'")
    assert "*** Row group indexes from dataset metadata ***\nIndex: by name\n  -- row 0(1)\n{0}\n" in both
    assert both.endswith("Index: by id\n  (skipped)\n")
    assert "Schema" not in capsys.readouterr().out


class Builder:
    """A session builder that records its calls."""

    def __init__(self) -> None:
        """Start without records."""
        self.recorded: list[tuple[str, ...]] = []

    def config(self, key: str, value: str) -> None:
        """Record a setting."""
        self.recorded.append((key, value))

    def master(self, where: str) -> None:
        """Record the master."""
        self.recorded.append((where,))


def test_options_of_a_command_set_up_spark() -> None:
    """`configure_spark` applies the options of a command. Settings must be pairs, and the parser must have the options."""
    parser, builder = argparse.ArgumentParser(), Builder()
    add_configure_spark_arguments(parser)

    made = configure_spark(builder, parser.parse_args(["--master", "local[2]", "--spark-session-config", "a.b=1", "c=2"]))

    assert made is builder
    assert builder.recorded == [("a.b", "1"), ("c", "2"), ("local[2]",)]
    assert configure_spark(Builder(), parser.parse_args([])).recorded == []
    with pytest.raises(ValueError, match=r"key=value format\. Got: nope"):
        configure_spark(builder, parser.parse_args(["--spark-session-config", "nope"]))
    with pytest.raises(RuntimeError, match="add_configure_spark_arguments"):
        configure_spark(builder, argparse.Namespace())


@pytest.mark.slow
def test_a_function_runs_in_another_process() -> None:
    """The caller gets the result of the function, or the error that it raises."""
    assert run_in_subprocess(sorted, [1, 3, 2], reverse=True) == [3, 2, 1]
    assert run_in_subprocess(os.getpid) != os.getpid()
    with pytest.raises(ValueError, match="invalid literal for int"):
        run_in_subprocess(int, "abc")


def test_a_process_that_ends_without_a_result_raises() -> None:
    """A process that ends without a result raises RuntimeError."""
    with pytest.raises(RuntimeError, match="ended with code 3 and no answer"):
        run_in_subprocess(os._exit, 3)


@pytest.mark.slow
def test_a_function_of_a_script_runs_without_the_rest_of_the_script(tmp_path: Path) -> None:
    """The new process does not run the script again, so scripts need no `__main__` guard."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from penstock.petastorm.utils import run_in_subprocess

            print("begun")

            def twice(number):
                return 2 * number

            print(run_in_subprocess(twice, 21))
            """
        )
    )

    done = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=120)

    assert done.stdout == "begun\n42\n"


def test_a_list_of_one_url_is_read_as_that_url(tmp_path: Path) -> None:
    """A list of one URL is read with the stored schema, and partition columns are fields."""
    url = tables.partitioned(tmp_path / "t")

    assert get_schema_from_dataset_url([url])._name == "Parted"
    with pytest.warns(UserWarning, match="Please use make_reader"), make_batch_reader([url]) as reader:
        assert set(reader.schema.fields) == {"id", "part"}


def test_safe_modules_can_be_changed() -> None:
    """Scripts add modules of their codecs to `safe_modules`. Here `codecs=[...]` has that purpose."""
    assert {"petastorm", "numpy", "pyspark"} <= legacy.safe_modules
    legacy.safe_modules.add("our_project")
    assert "our_project" in legacy.safe_modules
    legacy.safe_modules.remove("our_project")
    assert "our_project" not in legacy.safe_modules
