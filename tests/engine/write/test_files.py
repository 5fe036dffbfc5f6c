"""Rows of many directories are written to row groups and files, with few files open at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from penstock._engine.commit.change import begin
from penstock._engine.write import files as output_files
from penstock._engine.write.files import OutputFiles
from penstock._engine.write.hive import Partition, directory, split_partitions
from penstock._engine.write.parquet_options import Layout
from penstock._engine.write.schema import encoder_from_schema
from penstock.model import Place
from penstock.schema import Field, Schema

COLUMNS = encoder_from_schema(Schema("Ids", [Field("id", np.int64), Field("part", np.int64)]))


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most `MAX_OPEN` files are open. The directory of a closed file continues in a new file."""
    monkeypatch.setattr(output_files, "MAX_OPEN", 3)
    files = pafs.LocalFileSystem()
    change = begin(files, str(tmp_path / "t"), "error", url="t")
    output = OutputFiles(
        Place(url="t", filesystem=files, path=str(tmp_path / "t")),
        change,
        COLUMNS,
        Layout(row_group_rows=1, partition_by=("part",)),
    )
    most = 0

    for number in range(20):
        rows = pa.table({"id": [number]}, schema=pa.schema(list(COLUMNS.arrow)[:1]))
        output.write([Partition(f"part={number % 5}", rows, rows.nbytes)])
        most = max(most, len(output._open))
    output.finish()
    change.finish({})

    assert most == 3
    assert len(output.names) == 20
    assert sorted(pq.read_table(tmp_path / "t")["id"].to_pylist()) == list(range(20))


def test_rows_are_split_by_directory_in_their_order() -> None:
    """Each row goes to one directory, in the order of the rows, without the partition columns."""
    batch = pa.table({"a": ["x", "y", "x", None], "id": [0, 1, 2, 3], "b": [1, 1, 1, 1]})

    found = {part.directory: part.table.to_pydict() for part in split_partitions(batch, ["a", "b"])}

    assert found == {
        "a=x/b=1": {"id": [0, 2]},
        "a=y/b=1": {"id": [1]},
        "a=__HIVE_DEFAULT_PARTITION__/b=1": {"id": [3]},
    }
    assert split_partitions(batch.slice(0, 0), ["a"]) == []


def test_names_that_would_be_hidden_are_escaped() -> None:
    """A leading dot is escaped, because readers skip directories that begin with a dot."""
    assert directory([(".a", ".b"), ("_c", "_d")]) == "%2Ea=.b/_c=_d"
