"""Without a schema, lists, structs and nulls get types inferred from the first rows, or raise an error."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._write import type_inference
from penstock.errors import ArgumentError, DataError

ADVICE = r"Give a schema: penstock\.write\(url, pyarrow\.schema\(\.\.\.\), data\)\.$"


def stored(path: Path) -> list[dict[str, Any]]:
    """Return the stored rows of a table."""
    found: list[dict[str, Any]] = ps.open(path).to_arrow().to_pylist()
    return found


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize(
    ("cells", "type_"),
    [
        ([[1, 2, 3], [4]], pa.list_(pa.int64())),
        ([[], [1], None, [2, None]], pa.list_(pa.int64())),
        ([[1], [2.5]], pa.list_(pa.float64())),
        ([[1, 2.5]], pa.list_(pa.float64())),
        ([[2**53 + 1], [-1]], pa.list_(pa.int64())),
        ([["x"], ["y", "z"]], pa.list_(pa.string())),
        ([[b"x"], []], pa.list_(pa.binary())),
        ([[True], [None, False]], pa.list_(pa.bool_())),
        ([[[1], []], [[2.5]]], pa.list_(pa.list_(pa.float64()))),
        ([[{"k": 1, "n": "x"}], []], pa.list_(pa.struct({"k": pa.int64(), "n": pa.string()}))),
        ([{"k": 1, "n": ["x"]}, None], pa.struct({"k": pa.int64(), "n": pa.list_(pa.string())})),
        ([[dt.date(2020, 1, 1)], None], pa.list_(pa.date32())),
        ([[Decimal("1.50")], [Decimal("22.25")]], pa.list_(pa.decimal128(4, 2))),
        ([[dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]], pa.list_(pa.timestamp("us", "UTC"))),
        ([(1, 2), (3,)], pa.list_(pa.int64())),
    ],
    ids=range(15),
)
def test_lists_and_structs_need_no_schema(tmp_path: Path, cells: list[Any], type_: pa.DataType, kind: str) -> None:
    """Rows, batches and appended rows are stored unchanged, with the type that pyarrow infers from all of them."""
    rows = [{"id": number, "x": cell} for number, cell in enumerate(cells)]
    expected = [{**row, "x": list(row["x"]) if isinstance(row["x"], tuple) else row["x"]} for row in rows]

    ps.write(tmp_path / "rows", data=rows, format=kind)
    ps.write(tmp_path / "rows", data=rows, mode="append", format=kind)
    ps.write(tmp_path / "batch", data={"id": range(len(cells)), "x": cells}, format=kind)
    with ps.write(tmp_path / "append", format=kind) as table:
        for row in rows:
            table.append(row)

    assert sorted(stored(tmp_path / "rows"), key=lambda row: row["id"]) == [row for row in expected for _ in range(2)]
    assert stored(tmp_path / "batch") == stored(tmp_path / "append") == expected
    assert ps.open(tmp_path / "rows").to_arrow().schema.field("x").type == type_


def test_rows_of_lists_alone_are_rows(tmp_path: Path) -> None:
    """Mappings of lists with different lengths are rows and not batches, and so are the mappings after them."""
    rows = [{"a": [1, 2, 3], "b": ["x"]}, {"a": [1], "b": ["y"]}, {"a": [2.5], "b": []}, {"a": [], "b": []}]

    ps.write(tmp_path / "t", data=rows)
    ps.write(tmp_path / "t", data=iter(rows), mode="append")

    assert stored(tmp_path / "t") == rows * 2


def test_lists_of_one_column_are_told_apart_by_their_depth(tmp_path: Path) -> None:
    """In a list column, a list of numbers is a cell, a list of lists is a batch, and an empty list is like the one before.

    In a new table the first list is a cell.
    """
    with ps.write(tmp_path / "t") as table:
        table.append({"tokens": [1, 2, 3]})
        table.append({"tokens": []})
    ps.write(tmp_path / "t", data=[{"tokens": [4]}, {"tokens": []}, {"tokens": [None, 5]}], mode="append")
    ps.write(tmp_path / "t", data=[{"tokens": [[6], [7]]}, {"tokens": []}], mode="append")
    ps.write(tmp_path / "t", data={"tokens": [8, 9]}, mode="append")
    ps.write(tmp_path / "t", data=[{"tokens": []}], mode="append")

    assert [row["tokens"] for row in stored(tmp_path / "t")] == [[1, 2, 3], [], [4], [], [None, 5], [6], [7], [8, 9], []]


def test_a_null_in_the_first_row_waits_for_a_list(tmp_path: Path) -> None:
    """A null gets its type from a list in later rows; a single value in later rows does not give it a type."""
    ps.write(tmp_path / "t", data=[{"id": 1, "x": None}, {"id": 2, "x": []}, {"id": 3, "x": ["three"]}])
    with pytest.raises(ArgumentError, match="Field 'x' has no value in the first row or batch"):
        ps.write(tmp_path / "u", data=[{"id": 1, "x": None, "y": [1]}, {"id": 2, "x": 2, "y": [2]}])

    assert [row["x"] for row in stored(tmp_path / "t")] == [None, [], ["three"]]


def test_data_after_buffered_rows_keeps_its_order(tmp_path: Path) -> None:
    """Batches, Arrow tables, data frames and datasets are stored after the rows that wait for type inference."""
    ps.write(tmp_path / "one", data={"id": [4], "x": [[4]]})

    with ps.write(tmp_path / "t") as table:
        table.append({"id": 0, "x": [0]})
        table.extend({"id": [1], "x": [[1]]})
        table.extend([pa.table({"id": [2], "x": [[2]]})])
        table.extend(pd.DataFrame({"id": [3], "x": [[3]]}))
        table.extend(ps.open(tmp_path / "one"))

    assert stored(tmp_path / "t") == [{"id": number, "x": [number]} for number in range(5)]
    assert table.num_rows == 5


@pytest.mark.parametrize(
    "rows",
    [
        [{"tokens": [1, 2, 3]}, {"tokens": [4]}],
        [{"tokens": [1, 2, 3], "mask": [1, 1, 1]}, {"tokens": [4], "mask": [0]}],
        [{"tokens": [1], "mask": [1]}],
        [{"tokens": [[1], [2]], "mask": None}, {"tokens": [], "mask": [True]}],
    ],
)
def test_rows_of_lists_alone_are_rows_whatever_their_lengths(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """A mapping of lists in an iterable is a row, even if its lists have equal lengths."""
    ps.write(tmp_path / "a", data=rows)
    ps.write(tmp_path / "b", data=iter(rows))
    ps.write(tmp_path / "b", data=rows, mode="append")

    assert stored(tmp_path / "a") == rows
    assert stored(tmp_path / "b") == rows + rows


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": "x"}, {"text": []}],
        [{"a": 1, "b": 2.0}, {"a": [], "b": []}],
        [{"a": 1}, {"a": ()}],
    ],
)
def test_an_empty_list_after_single_values_raises(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """An empty list in a column of single values raises, because a batch without rows would lose what looks like a row."""
    for data in (rows, iter(rows)):
        with pytest.raises((ArgumentError, DataError)):
            ps.write(tmp_path / "t", data=data)

    assert not (tmp_path / "t").exists()


def test_the_same_rows_can_be_appended_again(tmp_path: Path) -> None:
    """A mapping of lists is read the same way, whether or not the table exists already."""
    rows = [{"tokens": list(range(n % 3))} for n in range(6)] + [{"tokens": [None]}]
    for _ in range(2):
        ps.write(tmp_path / "t", data=rows, mode="append")

    assert stored(tmp_path / "t") == rows + rows


def test_cells_may_be_changed_after_append(tmp_path: Path) -> None:
    """Lists, mappings and arrays are copied while their rows wait for type inference."""
    row: dict[str, Any] = {"list": [[1]], "struct": {"k": [1]}, "array": np.zeros(2), "bytes": [bytearray(b"a")]}
    with ps.write(tmp_path / "t") as table:
        for number in range(2):
            row["list"][0][0] = row["struct"]["k"][0] = row["array"][0] = row["bytes"][0][0] = number
            table.append(row)

    found = ps.open(tmp_path / "t").take([0, 1])
    assert [[each[0] for each in cell] for cell in found["list"]] == [[0], [1]]
    assert found["array"][:, 0].tolist() == [0, 1]
    assert [row["bytes"] for row in stored(tmp_path / "t")] == [[b"\0"], [b"\1"]]
    assert [row["struct"] for row in stored(tmp_path / "t")] == [{"k": [0]}, {"k": [1]}]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            [[], []],
            r"write\(\) got \[\] \(list\) in column 'x'; expected values that show its type, and the first rows have .*\. ",
        ),
        ([[None], None], r"the first rows have only list<item: null>\. "),
        ([[[]]], r"the first rows have only list<item: list<item: null>>\. "),
        ([{}], r"the first rows have only struct<>\. "),
        ([{"a": None}], r"the first rows have only struct<a: null>\. "),
        ([["x"], [1]], r"write\(\) got 'x' \(str\) and 1 \(int\) in column 'x'; expected values of one type\. "),
        ([["x", b"y"]], r"got 'x' \(str\) and b'y' \(bytes\) in column 'x'; expected values of one type\. "),
        ([[True, 1]], r"got True \(bool\) and 1 \(int\) in column 'x'; expected values of one type\. "),
        ([[dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)]], r"expected values of one type\. "),  # noqa: DTZ001
        ([[dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]], r"expected values of one type\. "),  # noqa: DTZ001
        ([[Decimal(1), 1.5]], r"expected values of one type\. "),
        ([[1.5], [2**53 + 1]], r"write\(\) got cells of column 'x' without a common type: Integer value .*\. "),
        ([[1], 2], r"got cells of column 'x' without a common type: .*\. "),
        ([[[1], 2]], r"got cells of column 'x' without a common type: .*\. "),
        ([[2**64]], r"got cells of column 'x' without a common type: .*\. "),
        ([[object()]], r"got cells of column 'x' without a common type: .*\. "),
    ],
    ids=range(16),
)
def test_lists_without_a_clear_type_raise(tmp_path: Path, cells: list[Any], message: str) -> None:
    """Cells without a type, or with several types, raise an error that asks for a schema."""
    with pytest.raises(ArgumentError, match=message + ADVICE):
        ps.write(tmp_path / "t", data=[{"id": 1, "x": cell} for cell in cells])
    with pytest.raises(ArgumentError, match=message + ADVICE):
        ps.write(tmp_path / "t", data={"id": [1] * len(cells), "x": cells})

    assert not (tmp_path / "t").exists()


def test_a_later_row_that_contradicts_the_inferred_type_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is rejected with its number and advice to give a schema, and later rows are written."""
    monkeypatch.setattr(type_inference, "MAX_ROWS", 2)

    with ps.write(tmp_path / "t") as table:
        table.extend([{"x": [1], "id": 0}, {"x": [], "id": 1}])
        for cell in ([1.5], ["a"], [2**64]):
            with pytest.raises(
                DataError, match=r"^Row \d, field 'x': got .*The type was inferred from the first rows\. " + ADVICE
            ):
                table.append({"x": cell, "id": 2})
        table.append({"x": [2.0], "id": 5})

    assert stored(tmp_path / "t") == [{"x": [1], "id": 0}, {"x": [], "id": 1}, {"x": [2], "id": 5}]


@pytest.mark.parametrize("cell", [[0] * 20, ["a" * 200], {"k": "a" * 200}, np.zeros(20), "a" * 200])
def test_large_cells_end_type_inference_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: Any) -> None:
    """Type inference ends as soon as the buffered cells hold MAX_VALUES values."""
    monkeypatch.setattr(type_inference, "MAX_VALUES", 20)

    with ps.write(tmp_path / "t") as table:
        table.append({"x": cell, "y": [1]})
        with pytest.raises(DataError, match=r"Row 1, field 'y': got .* inferred"):
            table.append({"x": cell, "y": [1.5]})

    assert table.num_rows == 1


def test_buffered_rows_have_the_columns_of_the_first(tmp_path: Path) -> None:
    """Rows with other columns raise at once; with missing="null" missing columns are null."""
    with ps.write(tmp_path / "a") as table:
        table.append({"id": 1, "x": [1]})
        with pytest.raises(DataError, match="Row 1: 'x' is missing"):
            table.append({"id": 2})
        with pytest.raises(DataError, match="Row 2: 'y' is not in the schema"):
            table.append({"id": 2, "x": [2], "y": 3})
        table.append({"id": 4, "x": [4]})
    ps.write(tmp_path / "b", data=[{"id": 1, "x": [1]}, {"id": 2}], missing="null")

    assert [row["id"] for row in stored(tmp_path / "a")] == [1, 4]
    assert stored(tmp_path / "b") == [{"id": 1, "x": [1]}, {"id": 2, "x": None}]


def test_a_cell_of_an_unsupported_type_raises_at_once(tmp_path: Path) -> None:
    """The error is raised by append, even if another cell of the row waits for type inference."""
    table = ps.write(tmp_path / "t")

    with pytest.raises(ArgumentError, match="for which no type follows"):
        table.append({"x": [1], "y": object()})
    table.abort()


def test_a_buffered_row_that_does_not_fit_aborts_the_write(tmp_path: Path) -> None:
    """The error names the row, and no table is written."""
    table = ps.write(tmp_path / "t")
    table.append({"x": [1], "id": 1})
    table.append({"x": [1], "id": "two"})

    with pytest.raises(DataError, match=r"Row 1, field 'id': got 'two' \(str\)"):
        table.close()

    assert not (tmp_path / "t").exists()


def test_buffered_rows_of_an_unclosed_writer_are_reported(tmp_path: Path) -> None:
    """The warning about an unclosed writer also counts rows that wait for type inference."""
    tables = [ps.write(tmp_path / "t")]
    tables[0].append({"x": [1]})

    with pytest.warns(ResourceWarning, match="rows lost: 1"):
        tables.clear()

    assert not (tmp_path / "t").exists()


def test_petastorm_tables_have_no_lists(tmp_path: Path) -> None:
    """The Petastorm format needs a codec for every field, so lists without a schema raise an error with advice."""
    with pytest.raises(ArgumentError, match=r"Field 'x' is stored as list<item: int64>.*Give a penstock\.Schema"):
        ps.write(tmp_path / "t", data=[{"id": 1, "x": [1]}], format="petastorm")


def test_batches_of_arrow_arrays_have_their_types(tmp_path: Path) -> None:
    """Arrow arrays in a mapping keep their own types."""
    ps.write(
        tmp_path / "t", data={"id": [1, 2], "x": pa.array([[1], None], pa.list_(pa.int8())), "y": pa.chunked_array([[1, 2]])}
    )

    assert stored(tmp_path / "t") == [{"id": 1, "x": [1], "y": 1}, {"id": 2, "x": None, "y": 2}]
    assert ps.open(tmp_path / "t").to_arrow().schema.field("x").type == pa.list_(pa.int8())


@given(
    st.lists(
        st.lists(st.none() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False), max_size=4), min_size=1, max_size=5
    )
)
def test_a_list_of_numbers_is_stored_exactly_or_raises(
    tmp_path_factory: pytest.TempPathFactory, cells: list[list[Any]]
) -> None:
    """Lists of mixed integers and floats are read back unchanged, or raise an error."""
    path, rows = tmp_path_factory.mktemp("lists") / "t", [{"id": 1, "x": cell} for cell in cells]
    values = [value for cell in cells for value in cell if value is not None]
    mixed = {type(value) for value in values} == {int, float}

    if not values or (mixed and any(isinstance(value, int) and int(float(value)) != value for value in values)):
        with pytest.raises(ArgumentError, match="Give a schema"):
            ps.write(path, data=rows)
    elif not mixed or all(abs(value) <= 2**53 for value in values if isinstance(value, int)):
        ps.write(path, data=rows)
        assert [row["x"] for row in stored(path)] == cells
