"""Every Parquet file of the corpus: its values equal those of pyarrow, or it is refused with a clear error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import PenstockError

Corpus = Callable[[str], Path]


@pytest.fixture(scope="session")
def files(corpus: Corpus) -> dict[Path, dict[str, Any]]:
    """Return every file of the corpus, with what the inventory says about it and how pyarrow reads it."""
    inventory = json.loads(corpus("parquet/inventory.json").read_text())["files"]
    root = corpus("parquet").parent
    return {root / name: facts for name, facts in inventory.items()}


def read(path: Path) -> pa.Table:
    """Return the rows of a file as pyarrow reads them, with INT96 timestamps of Spark in microseconds."""
    by_spark = any(key.startswith(b"org.apache.spark.") for key in pq.read_metadata(path).metadata or {})
    file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us" if by_spark else None)
    groups = [file.read_row_group(at) for at in range(file.num_row_groups)]
    return pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()


def test_readable_files_have_the_values_of_pyarrow(files: dict[Path, dict[str, Any]]) -> None:
    """Every readable file has the same rows, columns and values as in pyarrow."""
    compared = 0
    for path, facts in files.items():
        if facts.get("read") != "ok":
            continue
        found = ps.open(path).to_arrow()
        expected = read(path)
        assert found.num_rows == pq.read_metadata(path).num_rows, path
        assert found.schema.names == expected.schema.names, path
        for name in set(expected.schema.names):
            if expected.schema.names.count(name) == 1:
                equal = found.column(name).equals(expected.column(name))
                # NaN is not equal to itself, so text stands in for values where a plain comparison fails.
                assert equal or str(found.column(name).to_pylist()) == str(expected.column(name).to_pylist()), (path, name)
        compared += 1

    assert compared >= 100


def test_readable_files_are_iterated(files: dict[Path, dict[str, Any]]) -> None:
    """Every readable file yields all its rows and columns in shuffled batches."""
    for path, facts in files.items():
        if facts.get("read") != "ok" or len(set(facts["schema"])) != len(facts["schema"]):
            continue
        ds = ps.open(path)
        masked = ds.nulls(ps.Mask(), ".*") if ds.schema.names else ds
        seen = 0
        for batch in masked.shuffle(ps.WindowShuffle(rows=500), seed=1).batch(64, last="uneven") if ds.num_rows else ():
            assert set(ds.schema.names) <= set(batch), path
            seen += len(next(iter(batch.values()))) if batch else 0
        assert seen == (facts["rows"] if ds.schema.names else 0), path


def test_unreadable_files_raise_with_their_name(files: dict[Path, dict[str, Any]]) -> None:
    """Broken, encrypted and hostile files raise a PenstockError with the name of the file, and do not crash."""
    refused = 0
    for path, facts in files.items():
        if facts.get("read") == "ok" or "large_string_map" in path.name:  # two rows of 1 GB, slow to refuse
            continue
        with pytest.raises(PenstockError) as caught:
            list(ps.open(path).batch(100))
        assert path.name in str(caught.value), (path, caught.value)
        refused += 1

    assert refused >= 15


def test_hostile_statistics_do_not_crash_the_process(files: dict[Path, dict[str, Any]]) -> None:
    """A filter on a file whose statistics abort pyarrow does not crash the process."""
    hostile = [str(path) for path, facts in files.items() if facts.get("column_metadata") == "ABORTS THE PROCESS"]
    script = """
import sys
import penstock as ps
for path in sys.argv[1:]:
    try:
        ds = ps.open(path)
        print(ds.where(ps.col(ds.schema.names[0]).is_not_null()).batch(10).num_rows)
    except ps.PenstockError as error:
        print("refused")
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", script, *hostile], capture_output=True, text=True, check=False)

    assert len(hostile) >= 2
    assert done.stdout.endswith("alive\n"), done.stderr


def test_tables_of_other_writers_can_be_read(corpus: Corpus) -> None:
    """Tables of other writers can be read: Hive partitions, `_metadata`, empty row groups and several row groups."""
    split = ps.open(corpus("parquet/fastparquet/split"))
    assert split.schema.names == ("num", "cat", "catnum")
    assert split.num_rows == 2000
    assert split.where(ps.col("cat") == "fred", ps.col("catnum") == 1).num_rows == sum(
        pq.read_metadata(path).num_rows for path in corpus("parquet/fastparquet/split/cat=fred/catnum=1").glob("*.parquet")
    )
    assert ps.open(corpus("parquet/fastparquet/spark-date-empty-rg.parq")).num_rows > 0
    assert ps.open(corpus("parquet/fastparquet/multi_rgs_pyarrow")).where(ps.col("b") == "hi").num_rows == 4
