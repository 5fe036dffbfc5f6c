"""Arrow arrays that are too large for their type: dictionaries of many values, and more bytes than 32 bits count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._engine.decode import concat
from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.columns import deferred_cells
from penstock._engine.decode.concat import concat_wide, take_wide
from penstock._engine.query.query import ColumnDecoding
from penstock.errors import DataError

NARROW_DICTIONARY = pa.dictionary(pa.int8(), pa.string())
"""A dictionary type that holds at most 128 values."""

WRAPPERS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "flat": lambda words: words,
    "struct": lambda words: pa.StructArray.from_arrays([words], ["a"]),
    "list": lambda words: pa.ListArray.from_arrays(list(range(len(words) + 1)), words),
    "map": lambda words: pa.MapArray.from_arrays(list(range(len(words) + 1)), pa.array(["k"] * len(words)), words),
}


def words(part: int) -> pa.Array:
    """Return a hundred words that no other part has, as a narrow dictionary."""
    return pa.array([f"{number}" for number in range(100 * part, 100 * part + 100)]).dictionary_encode().cast(NARROW_DICTIONARY)


def tables(wrap: Callable[[pa.Array], pa.Array]) -> list[pa.Table]:
    """Return three parts of a table. The dictionary type can hold the values of one part only."""
    return [pa.table({"i": np.arange(100 * part, 100 * part + 100), "x": wrap(words(part))}) for part in range(3)]


def texts(rows: Any) -> list[str]:
    """Return the cells of column x as texts, in the order of column i."""
    cells = [
        row["x"].tolist() if isinstance(row["x"], np.ndarray) else row["x"] for row in sorted(rows, key=lambda row: row["i"])
    ]
    return list(map(str, cells))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the concatenation of more than a hundred bytes fail, as beyond 32-bit offsets."""
    concat = pa.concat_arrays

    def concat_few(arrays: Sequence[pa.Array]) -> pa.Array:
        if arrays[0].type in (pa.binary(), pa.string()) and sum(array.nbytes for array in arrays) > 100:
            msg = "offset overflow while concatenating arrays"
            raise pa.ArrowInvalid(msg)
        return concat(arrays)

    monkeypatch.setattr(pa, "concat_arrays", concat_few)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("files", [True, False], ids=["files", "row groups"])
def test_dictionaries_that_are_too_large_together_are_read(tmp_path: Path, wrap: Any, files: bool) -> None:  # noqa: FBT001
    """Dictionaries that exceed their index type together are read in any order, from files and row groups."""
    parts = tables(wrap)
    table = tmp_path / "table"
    table.mkdir()
    if files:
        for number, part in enumerate(parts):
            pq.write_table(part, table / f"{number}.parquet")
    else:
        with pq.ParquetWriter(table / "0.parquet", parts[0].schema) as writer:
            for part in parts:
                writer.write_table(part)
    expected = texts(pa.concat_tables(parts).to_pylist())
    ds = ps.open(table)

    assert texts(ds) == expected
    assert [texts(ds.shuffle(seed=1)) for _ in range(2)] == [expected, expected]
    assert texts(ds.shuffle(ps.ExactShuffle(), seed=1)) == expected
    assert sum(len(batch["x"]) for batch in ds.shuffle(seed=1).batch(75)) == 300
    assert texts({"i": i, "x": x} for i, x in zip(*ds.take(list(range(300))[::-1]).values(), strict=True)) == expected
    assert ds.take([299, 150, 0])["i"].tolist() == [299, 150, 0]
    for name, data in {"copy": ds, "shuffled": ds.shuffle(seed=1)}.items():
        ps.write(tmp_path / name, data=data)
        assert texts(ps.open(tmp_path / name)) == expected


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_dictionaries_that_are_too_large_together_are_written(tmp_path: Path, wrap: Any) -> None:
    """Written dictionaries may exceed the index type of the first part. pyarrow reads the files too."""
    parts = tables(wrap)
    whole = pa.concat_tables(parts)
    ps.write(tmp_path / "parts", data=iter(parts))
    ps.write(tmp_path / "whole", data=whole)
    ps.write(tmp_path / "stated", parts[0].schema, iter(parts))
    ps.write(tmp_path / "more", data=parts[0])
    ps.write(tmp_path / "more", data=iter(parts[1:]), mode="append")

    for name in ("parts", "whole", "stated", "more"):
        assert texts(ps.open(tmp_path / name)) == texts(whole.to_pylist())
        assert texts(pq.read_table(tmp_path / name).to_pylist()) == texts(whole.to_pylist())


def test_rows_are_appended_to_files_with_narrow_indices(tmp_path: Path) -> None:
    """Rows can be appended to files of other writers whose dictionary indices are too narrow."""
    first, *others = tables(WRAPPERS["flat"])
    pq.write_table(first, tmp_path / "0.parquet")

    ps.write(tmp_path, data=iter(others), mode="append")

    assert texts(ps.open(tmp_path)) == [str(number) for number in range(300)]


def test_later_parts_may_have_more_categories(tmp_path: Path) -> None:
    """Later parts may have more categories than the index type of the first part can hold."""
    parts = [pa.table({"x": pa.array([str(at) for at in range(count)]).dictionary_encode()}) for count in (3, 200)]
    parts[0] = parts[0].cast(pa.schema({"x": NARROW_DICTIONARY}))

    ps.write(tmp_path / "table", data=iter(parts))

    assert ps.open(tmp_path / "table").to_arrow()["x"].to_pylist() == [cell for part in parts for cell in part["x"].to_pylist()]


@pytest.mark.parametrize(
    ("arrays", "kind"),
    [
        ([pa.array(["a"]), pa.array(["b"], pa.large_string())], pa.large_string()),
        ([pa.array([[b"a"]]), pa.array([[b"b"]], pa.large_list(pa.large_binary()))], pa.large_list(pa.large_binary())),
        ([pa.array([[b"a"]], pa.list_(pa.binary(), 1)), pa.array([[b"b"]], pa.list_(pa.large_binary(), 1))], None),
        ([pa.array([["a"]], pa.large_list(pa.string())), pa.array([["b"]], pa.large_list(pa.large_string()))], None),
        ([pa.array(["{}"], pa.json_()), pa.array(["[]"], pa.large_string())], pa.large_string()),
        ([words(0), words(1)], pa.dictionary(pa.int64(), pa.large_string())),
    ],
)
def test_arrays_join_in_a_wider_type(arrays: list[pa.Array], kind: pa.DataType | None) -> None:
    """Arrays are joined in a wider type if one of them has it, or if their dictionaries need it."""
    found = concat_wide(arrays)

    assert found.to_pylist() == [cell for array in arrays for cell in array.to_pylist()]
    assert found.type == (kind or arrays[1].type)


def test_arrays_too_large_for_any_type_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error suggests reading fewer rows at a time."""
    column = pa.chunked_array([pa.array([{"a": 1}]), pa.array([{"a": 2}])])

    def full(_: object) -> pa.Array:
        msg = "offset overflow"
        raise pa.ArrowInvalid(msg)

    monkeypatch.setattr(pa, "concat_arrays", full)

    expected = "do not fit one Arrow array: offset overflow. Read fewer rows at a time."
    with pytest.raises(DataError, match=expected):
        concat_wide(column.chunks)
    with pytest.raises(CellError, match=f"Column 'x': .*{expected}"):
        deferred_cells(column, ColumnDecoding(name="x"))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("kind", "python_type"), [(pa.binary(), bytes), (pa.string(), str)])
def test_more_bytes_than_an_array_holds_are_read(tmp_path: Path, kind: pa.DataType, python_type: type) -> None:
    """More bytes than 32-bit offsets count are read by `take`, as rows, and in batches."""
    cells = [python_type(b"x" * number, "ascii") if python_type is str else python_type(b"x" * number) for number in range(40)]
    schema = pa.schema({"i": pa.int64(), "x": kind})
    for number in range(4):
        some = range(10 * number, 10 * number + 10)
        pq.write_table(pa.table({"i": some, "x": [cells[at] for at in some]}, schema), tmp_path / f"{number}.parquet")
    ds = ps.open(tmp_path)

    assert ds.take(list(range(40)))["x"].tolist() == cells
    assert [row["x"] for row in ds] == cells
    assert [cell for batch in ds.batch(40) for cell in batch["x"]] == cells
    assert sorted(cell for batch in ds.shuffle(seed=1).batch(40) for cell in batch["x"]) == cells
    column = pa.chunked_array([cells[:20], cells[20:]], kind)
    whole: Any = deferred_cells(column, ColumnDecoding(name="x"))
    assert whole.to_pylist() == cells


def test_taking_cells_many_times_can_need_a_wider_type() -> None:
    """If repeated cells overflow the type, `take_wide` takes them in a wider type."""

    class Full:
        """An array of bytes whose `take` overflows."""

        type = pa.binary()

        def take(self, _: pa.Array) -> pa.Array:
            msg = "Take operation overflowed binary array capacity"
            raise pa.ArrowInvalid(msg)

        def cast(self, kind: pa.DataType) -> pa.Array:
            return pa.array([b"a", b"b"], kind)

    found = take_wide(Full(), np.array([1, 1, 0]))

    assert (found.type, found.to_pylist()) == (pa.large_binary(), [b"b", b"b", b"a"])


ITEMS: dict[str, tuple[pa.DataType, Any]] = {
    "int8": (pa.int8(), st.integers(-9, 9)),
    "float64": (pa.float64(), st.integers(-9, 9).map(float)),
    "decimal": (pa.decimal128(9, 2), st.decimals(-9, 9, places=2)),
    "moments": (pa.timestamp("us"), st.datetimes()),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=3)),
    "lists": (pa.list_(pa.int8()), st.lists(st.integers(-9, 9), max_size=3)),
}


@pytest.mark.parametrize("name", ITEMS)
@given(data=st.data())
def test_take_of_lists_equals_the_one_of_arrow(name: str, data: st.DataObject) -> None:
    """`take_wide` equals `take` of Arrow, also for null lists, null items and slices."""
    kind, items = ITEMS[name]
    nullable = data.draw(st.booleans())
    inside = st.lists(st.none() | items if nullable else items, max_size=4)
    cells = data.draw(st.lists(st.none() | inside if data.draw(st.booleans()) else inside, max_size=9))
    wrap = data.draw(st.sampled_from([pa.list_, pa.large_list]))
    array = pa.array(cells, wrap(pa.field("element", kind, nullable=nullable)))
    array = array.slice(data.draw(st.integers(0, len(array))))
    rows = np.array(data.draw(st.lists(st.integers(0, len(array) - 1), max_size=20)) if len(array) else [], np.int64)

    found = take_wide(array, rows)

    found.validate(full=True)
    assert found.equals(array.take(pa.array(rows)))
    assert found.null_count == array.take(pa.array(rows)).null_count


def test_lists_with_more_items_than_32_bits_count_become_large_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The large lists have the same items, and offsets of 64 bits."""
    monkeypatch.setattr(concat, "MAX_OFFSET", 4)
    array = pa.array([[1, 2], [3]], pa.list_(pa.int16()))

    found = take_wide(array, np.array([1, 0, 0, 1]))

    assert found.type == pa.large_list(pa.int16())
    assert found.to_pylist() == [[3], [1, 2], [1, 2], [3]]


@pytest.mark.parametrize("cells", [[[], [], []], [None, None, None], [None, [], None]], ids=["empty", "null", "both"])
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.float64())], ids=["list", "large"])
def test_lists_without_items_need_no_buffer(tmp_path: Path, kind: pa.DataType, cells: list[Any]) -> None:
    """Lists without items are read, also from an Arrow stream, which gives them an empty buffer."""
    sink = pa.BufferOutputStream()
    table = pa.table({"x": pa.array(cells, kind)})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    streamed = pa.ipc.open_stream(sink.getvalue()).read_all()["x"].chunk(0)
    pq.write_table(table, tmp_path / "x.parquet")
    loader = ps.loader(ps.open(tmp_path / "x.parquet").shuffle(seed=1).batch(2, last="uneven"))

    found = take_wide(streamed, np.array([2, 0, 1]))

    found.validate(full=True)
    assert found.to_pylist() == [cells[2], cells[0], cells[1]]
    for _ in range(2):
        lists = [cell for batch in loader for cell in batch["x"]]
        assert sorted(cell is None for cell in lists) == sorted(cell is None for cell in cells)
        assert all(cell is None or cell.shape == (0,) for cell in lists)
