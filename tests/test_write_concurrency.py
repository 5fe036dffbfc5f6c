"""Two concurrent writers of one table: the later close raises an error if the other writer changed the table incompatibly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.codecs import Npy, Raw
from penstock.errors import ArgumentError, PenstockError
from penstock.schema import Field, Schema

ONE = Schema("T", [Field("i", np.int64), Field("p", np.int64)])
OTHER = Schema("T", [Field("i", str), Field("p", np.int64), Field("z", np.int64)])
ROW: dict[str, Any] = {"i": 1, "p": 1}
OTHER_ROW: dict[str, Any] = {"i": "x", "p": 1, "z": 1}


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a table: on a local disk, which can exchange directories, and in a memory store, which has none."""
    if request.param == "local":
        yield str(tmp_path / "t")
        return
    yield "memory://together/t"
    memory = fsspec.filesystem("memory")
    if memory.exists("/together"):
        memory.rm("/together", recursive=True)


def rows_of(url: str) -> list[dict[str, Any]]:
    """Return all rows as Python values."""
    found = ps.open(url).to_arrow().to_pylist()
    return sorted(found, key=str)


def test_an_append_raises_if_the_schema_changed_meanwhile(url: str) -> None:
    """The table stays as the other writer left it, and the message says what differs."""
    ps.write(url, ONE, [ROW])
    late = ps.write(url, ONE, mode="append")
    late.append(ROW)
    ps.write(url, OTHER, [OTHER_ROW], mode="overwrite")

    with pytest.raises(ArgumentError) as caught:
        late.close()

    assert str(caught.value) == (
        f"The schema is not that of {url}, which another writer has changed meanwhile: 'i' has dtype 'int64' and not 'str'; "
        "'z' is missing; expected the same columns: i, p, z. Change the schema, leave it out, or replace the table with "
        'mode="overwrite".'
    )
    assert rows_of(url) == [OTHER_ROW]


def test_the_later_of_two_first_appends_raises_if_it_differs(url: str) -> None:
    """The append that closes first creates the table, no matter which append began first."""
    late = ps.write(url, ONE, mode="append")
    late.append(ROW)
    ps.write(url, OTHER, [OTHER_ROW], mode="append")

    with pytest.raises(ArgumentError, match="'i' has dtype 'int64' and not 'str'"):
        late.close()

    assert rows_of(url) == [OTHER_ROW]


@pytest.mark.parametrize(("first", "second"), [("p", ()), ((), "p")])
@pytest.mark.parametrize("was_there", [False, True])
def test_an_append_raises_if_the_partitions_changed_meanwhile(url: str, first: Any, second: Any, *, was_there: bool) -> None:
    """A table cannot mix directories of two partition layouts."""
    if was_there:
        ps.write(url, ONE, [ROW], partition_by=first)
    late = ps.write(url, ONE, mode="append", partition_by=first)
    late.append(ROW)
    ps.write(url, ONE, [{"i": 7, "p": 7}], partition_by=second, mode="overwrite")

    with pytest.raises(ArgumentError, match=r"which another writer has changed meanwhile\. Write partition_by="):
        late.close()

    assert rows_of(url) == [{"i": 7, "p": 7}]


@pytest.mark.parametrize("partition_by", [(), "p"])
@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.parametrize("schema", [None, ONE])
def test_rows_of_concurrent_appends_are_all_stored(
    url: str, partition_by: Any, schema: Schema | None, *, was_there: bool
) -> None:
    """The rows of all concurrent appends are stored, also where the first of them creates the table."""
    if was_there:
        ps.write(url, schema, pd.DataFrame({"i": [0], "p": [0]}), partition_by=partition_by)
    writers = [ps.write(url, schema, mode="append", partition_by=partition_by) for _ in range(3)]
    for number, writer in enumerate(writers):
        writer.extend(pd.DataFrame({"i": [number + 1], "p": [number]}))
    for writer in writers:
        writer.close()

    assert [row["i"] for row in rows_of(url)] == list(range(not was_there, 4))


def test_appending_bytes_to_a_codec_column_made_meanwhile_raises(url: str) -> None:
    """The Arrow types are equal, but plain bytes are not cells of the codec."""
    late = ps.write(url, pa.schema({"x": pa.binary()}), mode="append")
    late.append({"x": b"no array"})
    ps.write(url, Schema("T", [Field("x", np.int64, (2,), Npy(), nullable=True)]), [{"x": np.arange(2)}], mode="append")

    with pytest.raises(ArgumentError, match=r"'x' was stored as binary by Scalar.* and is binary by Npy\(\) there"):
        late.close()

    assert ps.open(url).num_rows == 1


def test_appending_a_nullable_column_to_a_column_required_meanwhile_raises(url: str) -> None:
    """A nullable column is enough for the error; the values in the file are not checked again."""
    late = ps.write(url, pa.schema({"x": pa.int64()}), mode="append")
    late.append({"x": None})
    ps.write(url, pa.schema([pa.field("x", pa.int64(), nullable=False)]), [{"x": 1}], mode="append")

    with pytest.raises(ArgumentError, match="'x' may be null, and may not be there"):
        late.close()

    assert rows_of(url) == [{"x": 1}]


def test_an_append_is_compared_with_plain_parquet_files_too(tmp_path: Path) -> None:
    """A plain Parquet file that was added meanwhile is compared by its Arrow types."""
    schema = Schema("T", [Field("i", np.int64, nullable=True), Field("b", np.uint8, (None,), Raw())])
    late = ps.write(tmp_path / "t", schema, mode="append")
    late.append({"i": 2, "b": np.zeros(1, np.uint8)})
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"i": [1], "b": [b"1"]}), tmp_path / "t" / "one.parquet")

    with pytest.raises(ArgumentError, match="'b' would be stored as binary by Raw"):
        late.close()

    assert pq.read_table(tmp_path / "t").num_rows == 1


def test_petastorm_writes_and_appends_raise_if_a_table_appeared_meanwhile(url: str) -> None:
    """A Petastorm table counts row groups in its metadata, so it is never combined with other files."""
    late = ps.write(url, ONE, mode="append", format="petastorm")
    late.append(ROW)
    other = ps.write(url, ONE, mode="append")
    other.append(ROW)
    ps.write(url, ONE, [ROW], mode="append")
    with pytest.raises(ArgumentError, match="expected a new table, because the format's metadata would lack"):
        late.close()
    ps.write(url, ONE, [ROW], mode="overwrite", format="petastorm")
    with pytest.raises(PenstockError, match="is a Petastorm table"):
        other.close()
