"""Encoded cells in the engine: they are selected by index, decoded by their codec, and joined by policies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import penstock as ps
from penstock._blobs import Blobs
from penstock._engine.decode.codecs import decode_cells
from penstock._engine.query.query import ColumnDecoding
from penstock._engine.runtime.memory import BufferPool
from penstock.codecs import Npy, Npz, Png, Raw, Tensor
from penstock.errors import ArgumentError, DataError
from penstock.schema import CellCodec, Field, Schema
from penstock.schema import json as _schema_json


@dataclass(frozen=True)
class Lines(CellCodec):
    """A codec of a user that stores the shape and the numbers as text."""

    name = "lines"

    def encode(self, field: Field, cell: Any) -> bytes:  # noqa: ARG002 - the same for all fields
        """Return the text."""
        return (" ".join(map(str, cell.shape)) + "\n" + " ".join(map(str, cell.ravel().tolist()))).encode()

    def decode(self, field: Field, cell: memoryview) -> Any:
        """Return the array."""
        shape, values = bytes(cell).decode().split("\n")
        return np.array([int(value) for value in values.split()], field.dtype).reshape([int(size) for size in shape.split()])


FIELD = Field("x", np.int32, (2, 2), Lines(), nullable=True)
ANY_SHAPE = Field("x", np.int32, (None, None), Lines(), nullable=True)


def write(place: Path, schema: Schema, columns: dict[str, pa.Array], *, row_group_rows: int = 3) -> Path:
    """Write a table whose footer holds a schema."""
    metadata = {_schema_json.KEY: _schema_json.dump(schema).encode()}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), place / "a.parquet", row_group_size=row_group_rows)
    return place


def cells(field: Field, values: list[Any]) -> Blobs:
    """Return encoded cells."""
    assert isinstance(field.codec, CellCodec)
    return Blobs.of(field.codec.encode_column(field, values))


def decoded(field: Field, values: list[Any], **policy: Any) -> dict[str, Any]:
    """Return cells after encoding and decoding them."""
    return decode_cells(cells(field, values), ColumnDecoding(name="x", field=field, **policy), BufferPool(0))


ARRAYS = hnp.arrays(np.int32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=3))


@given(st.lists(st.none() | ARRAYS, max_size=6))
def test_cells_of_any_shape_follow_the_policy(values: list[Any]) -> None:
    """`AsObjects` returns the cells unchanged. `Pad` returns them with padding, and their sizes."""
    objects = decoded(ANY_SHAPE, values)["x"]
    padded = decoded(ANY_SHAPE, values, ragged=ps.Pad(-1), nulls=ps.Mask())

    assert len(objects) == len(values)
    for row, value in enumerate(values):
        assert (objects[row] is None) == (value is None)
        sizes = (0, 0) if value is None else value.shape
        assert padded["x_length"][row].tolist() == list(sizes)
        assert padded["x_valid"][row] == (value is not None)
        corner = padded["x"][row][: sizes[0], : sizes[1]]
        if value is not None:
            np.testing.assert_array_equal(objects[row], value)
            np.testing.assert_array_equal(corner, value)
        assert (padded["x"][row] == -1).sum() >= padded["x"][row].size - corner.size


@given(st.lists(st.none() | hnp.arrays(np.int32, (2, 2)), max_size=6))
def test_cells_of_one_shape_are_one_array(values: list[Any]) -> None:
    """Cells of one shape form one array, in which nulls are filled or masked."""
    filled = decoded(FIELD, values, nulls=ps.Fill(7))["x"]
    masked = decoded(FIELD, values, nulls=ps.Mask())

    assert filled.shape == (len(values), 2, 2)
    assert masked["x_valid"].tolist() == [value is not None for value in values]
    for row, value in enumerate(values):
        np.testing.assert_array_equal(filled[row], np.full((2, 2), 7) if value is None else value)
        np.testing.assert_array_equal(masked["x"][row], np.zeros((2, 2)) if value is None else value)


def test_offsets_join_cells_that_differ_in_their_first_size() -> None:
    """`Offsets` joins cells that differ only in their first size. Other cells raise."""
    field = Field("x", np.int32, (None, 2), Lines(), nullable=True)
    found = decoded(field, [np.ones((1, 2), "i4"), None, np.zeros((2, 2), "i4")], ragged=ps.Offsets(), nulls=ps.Mask())
    empty = decoded(field, [], ragged=ps.Offsets())

    assert found["x"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert found["x_offsets"].tolist() == [0, 1, 1, 3]
    assert empty["x"].shape == (0, 2)
    with pytest.raises(DataError, match="differ in more than their first size"):
        decoded(ANY_SHAPE, [np.ones((1, 2), "i4"), np.ones((1, 3), "i4")], ragged=ps.Offsets())


@pytest.mark.parametrize(
    ("field", "values", "policy", "message"),
    [
        (FIELD, [np.ones((2, 2)), None], {}, "Column 'x', row 1: the value is null, and an array of int32 cannot hold a null"),
        (ANY_SHAPE, [None], {"nulls": ps.RaiseOnNull()}, "RaiseOnNull() refuses nulls"),
        (ANY_SHAPE, [np.ones((1, 2)), np.ones((2, 2))], {"ragged": ps.RaiseIfRagged()}, "row 1: the cell has the shape (2, 2)"),
        (ANY_SHAPE, [np.ones((3, 2))], {"ragged": ps.Pad(length=2)}, "the cell has 3 values, and Pad(value=0, length=2"),
        (FIELD, [np.ones((2, 3))], {}, "row 0: it holds int32 (2, 3), and the schema says int32 (2, 2)"),
    ],
)
def test_nulls_and_shapes_without_a_policy_raise(field: Field, values: list[Any], policy: dict[str, Any], message: str) -> None:
    """Nulls and shapes that no policy allows raise an error."""
    whole = [None if value is None else value.astype("i4") for value in values]
    with pytest.raises(DataError) as caught:
        decoded(field, whole, **policy)

    assert message in str(caught.value)


def test_pad_with_truncate_keeps_the_beginning() -> None:
    """With `truncate=True` longer cells lose their end along their first free size."""
    found = decoded(ANY_SHAPE, [np.arange(6, dtype="i4").reshape(3, 2)], ragged=ps.Pad(length=2, truncate=True))

    assert found["x"].tolist() == [[[0, 1], [2, 3]]]
    assert found["x_length"].tolist() == [[3, 2]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of ten rows whose cells hold the number of their row."""
    schema = Schema("T", [Field("id", np.int64), FIELD])
    values = Lines().encode_column(FIELD, [np.full((2, 2), number, np.int32) for number in range(10)])
    return write(tmp_path, schema, {"id": pa.array(range(10)), "x": values})


@pytest.mark.parametrize("kind", [ps.InOrder(), ps.RowGroupShuffle(), ps.WindowShuffle(rows=5), ps.ExactShuffle(rows=4)])
@pytest.mark.parametrize("threads", [1, 3])
def test_cells_stay_with_their_rows_in_every_order(table: Path, kind: Any, threads: int) -> None:
    """Each cell comes with its own row, for any shuffle and any number of threads."""
    ds = ps.open(table, codecs=[Lines]).shuffle(kind, seed=3).batch(4, last="uneven").using(threads=threads)
    batches = list(ds)

    assert sorted(int(number) for batch in batches for number in batch["id"]) == list(range(10))
    assert all((batch["x"] == batch["id"][:, None, None]).all() for batch in batches)
    assert all(batch["x"].shape[1:] == (2, 2) and batch["x"].dtype == np.int32 for batch in batches)


def test_single_rows_and_rows_by_number_are_decoded(table: Path) -> None:
    """Iteration, indexing, `take` and the schema use the codec."""
    ds = ps.open(table, codecs=[Lines])

    assert [int(row["x"][1, 1]) for row in ds] == list(range(10))
    assert ds[7]["x"].tolist() == [[7, 7], [7, 7]]
    assert ds.take([3, 9])["x"][:, 0, 0].tolist() == [3, 9]
    assert ds.schema["x"] == FIELD
    assert ds.select("id").schema.names == ("id",)


def test_an_unknown_codec_raises_when_its_column_is_read(table: Path) -> None:
    """Other columns can be read, and the error says how to give the codec."""
    ds = ps.open(table)

    assert len(list(ds.select("id"))) == 10
    with pytest.raises(DataError, match=r"the unknown codec 'lines'\..*open the table with codecs=\[MyCodec\]"):
        next(iter(ds))


def test_a_broken_cell_names_file_row_group_row_and_column(tmp_path: Path) -> None:
    """The error of a cell that cannot be decoded says where the cell is."""
    values = [np.ones((2, 2), np.int32)] * 5
    stored = Lines().encode_column(FIELD, values).to_pylist()
    stored[4] = b"2 2\nno numbers"
    write(tmp_path, Schema("T", [FIELD]), {"x": pa.array(stored, pa.binary())})
    with pytest.raises(DataError) as caught:
        list(ps.open(tmp_path, codecs=[Lines]).batch(5))

    assert str(caught.value).startswith(f"{tmp_path}/a.parquet, row group 1, row 4, column 'x': lines cannot decode 14 bytes")


def test_tensors_that_others_wrote_as_lists_are_tensors(tmp_path: Path) -> None:
    """Lists of the right length take the shape of the schema. Other lists raise."""
    field = Field("x", np.float32, (2, 3), Tensor())
    lists = pa.array([[float(n)] * 6 for n in range(4)], pa.list_(pa.float32()))
    write(tmp_path, Schema("T", [field]), {"x": lists})
    batch = next(iter(ps.open(tmp_path).batch(4)))

    assert batch["x"].shape == (4, 2, 3)
    assert batch["x"][:, 1, 2].tolist() == [0, 1, 2, 3]
    write(tmp_path, Schema("T", [field]), {"x": pa.array([[1.0] * 5], pa.list_(pa.float32()))})
    with pytest.raises(DataError, match=r"row 0.*the list has 5 values, and a tensor"):
        list(ps.open(tmp_path).batch(4))


def test_two_files_that_disagree_raise(tmp_path: Path) -> None:
    """A column with two schemas raises with both files, unless `_common_metadata` has the schema."""
    for name, shape in (("a", (2, 2)), ("b", (None, 2))):
        field = Field("x", np.int32, shape, Npy())
        (tmp_path / name).mkdir()
        write(tmp_path / name, Schema("T", [field]), {"x": Npy().encode_column(field, [np.ones((2, 2), np.int32)])})
    with pytest.raises(DataError, match=r"a/a\.parquet and .*b/a\.parquet were written with different schemas: column 'x'"):
        ps.open(tmp_path)
    decided = Schema("T", [Field("x", np.int32, (None, None), Npy())])
    pq.write_metadata(
        pa.schema({"x": pa.binary()}, metadata={_schema_json.KEY: _schema_json.dump(decided).encode()}),
        tmp_path / "_common_metadata",
    )

    assert ps.open(tmp_path).schema["x"].shape == (None, None)


def test_only_images_are_resized(table: Path) -> None:
    """`Resize` raises for a column without images as soon as it is given, and so does an invalid size."""
    with pytest.raises(
        ArgumentError, match=r"ragged\(\) got Resize\(height=8, width=8\) for column 'x', which does not hold images"
    ):
        ps.open(table, codecs=[Lines]).ragged(ps.Resize(8, 8), "x")
    with pytest.raises(ArgumentError, match=r"Resize\(\) got height=0"):
        ps.Resize(0, 8)


def test_blobs_return_the_same_bytes_in_any_order() -> None:
    """Cells of sliced, encoded and joined arrays keep their bytes in any order. Other types raise."""
    array = pa.array([b"a", None, b"ccc", b"", b"ee"])
    parts = [Blobs.of(array.slice(1)), Blobs.of(array.dictionary_encode()), Blobs.of(array.cast(pa.large_binary()).slice(0, 3))]
    joined = Blobs.joined([*parts, Blobs.of(pa.array([b"xy", None], pa.binary(2)))])
    expected = [
        None if joined.valid is not None and not joined.valid[row] else bytes(joined[row]) for row in range(len(joined))
    ]
    back = joined.take(np.arange(len(joined))[::-1])

    assert expected == [None, b"ccc", b"", b"ee", b"a", None, b"ccc", b"", b"ee", b"a", None, b"ccc", b"xy", None]
    assert [bytes(cell) for _, cell in back.present()] == [cell for cell in expected[::-1] if cell is not None]
    with pytest.raises(DataError, match="the column is int64, and its codec stores bytes"):
        Blobs.of(pa.array([1]))


@pytest.mark.parametrize("codec", [Npy(), Npz()], ids=repr)
@pytest.mark.parametrize(("dtype", "word"), [("U4", "ab"), ("S4", b"ab"), (str, "ab"), (bytes, b"ab")])
def test_single_texts_are_python_values(tmp_path: Path, codec: CellCodec, dtype: Any, word: Any) -> None:
    """Single texts are Python's `str` and `bytes`, as with `Scalar`, also where they fill nulls."""
    schema = Schema("Words", [Field("x", dtype, (), codec, nullable=True)])
    ps.write(tmp_path / "t", schema, [{"x": word}, {"x": None}])
    ds = ps.open(tmp_path / "t")

    assert [(type(row["x"]), row["x"]) for row in ds] == [(type(word), word), (type(None), None)]
    assert [(type(row["x"]), row["x"]) for row in ds.nulls(ps.Fill(word), "x")] == [(type(word), word)] * 2
    assert ds[0] == {"x": word}
    ps.write(tmp_path / "copy", data=ds.shuffle(seed=1))
    assert {row["x"] for row in ps.open(tmp_path / "copy")} == {word, None}


WORDS = st.lists(st.text("ab", max_size=5), max_size=3)


@given(st.lists(st.none() | WORDS, min_size=1, max_size=6), st.sampled_from([str, bytes]), st.text("xy", max_size=7))
def test_arrays_of_text_are_padded_and_not_cut(values: list[Any], dtype: Any, padding: str) -> None:
    """Padded arrays of text are wide enough for all cells and the padding. A padding of 0 is empty text."""
    kind = np.dtype(dtype).kind
    given_words = [None if value is None else np.array(value or [], kind) for value in values]
    longest = max(len(value or []) for value in values)
    field = Field("x", dtype, (None,), Npy(), nullable=True)

    for value, letters in ((np.array(padding, kind).item(), padding), (0, "")):
        found = decoded(field, given_words, ragged=ps.Pad(value), nulls=ps.Mask())["x"]
        expected = [[*(words or []), *[letters] * (longest - len(words or []))] for words in values]
        assert found.astype("U").tolist() == expected


def test_fill_replaces_null_arrays_of_text() -> None:
    """A null becomes an array of the fill text, in the shape of the field, and the text is not cut."""
    field = Field("x", str, (2,), Npy(), nullable=True)

    found = decoded(field, [np.array(["a", "bbb"]), None], nulls=ps.Fill("longer"))["x"]

    assert [cell.tolist() for cell in found] == [["a", "bbb"], ["longer", "longer"]]


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (str, 5, "does not fit text; expected a str."),
        (bytes, "a", "does not fit bytes; expected bytes."),
        ("U3", "long", "does not fit text; expected a str of length 3 at most."),
        ("c8", "a", "does not fit complex64; expected a number that complex64 holds."),
        ("c8", 2**24 + 1, "does not fit complex64;"),
        ("c8", 2**2000, "does not fit complex64;"),
        ("c8", 1e300, "does not fit complex64;"),
        ("M8[s]", np.datetime64("2020-01-01T00:00:00.5"), "does not fit datetime64[s];"),
    ],
)
def test_a_padding_value_of_another_type_raises(dtype: Any, value: Any, message: str) -> None:
    """A padding value that does not fit the field raises. It is neither converted nor cut."""
    field = Field("x", dtype, (None,), Npy(), nullable=True)
    cell = np.zeros(1, np.dtype(dtype) if np.dtype(dtype).itemsize else f"{np.dtype(dtype).kind}1")

    with pytest.raises(ArgumentError, match=re.escape(message)):
        decoded(field, [cell, None], ragged=ps.Pad(value), nulls=ps.Mask())


@pytest.mark.parametrize("value", [2, 0.1, 1j, np.complex64(3), float("inf"), complex("nan")])
def test_arrays_of_complex_numbers_are_padded(value: Any) -> None:
    """The padding of complex arrays is any number that their dtype holds."""
    field = Field("x", "c8", (None,), Npy())

    found = decoded(field, [np.ones(1, "c8"), np.ones(2, "c8")], ragged=ps.Pad(value))["x"]

    np.testing.assert_array_equal(found, np.array([[1, value], [1, 1]], "c8"))


@pytest.mark.parametrize("codec", [Npy(), Npz(), Raw(), Png()], ids=repr)
def test_cells_that_the_schema_declares_too_large_raise(tmp_path: Path, codec: Any) -> None:
    """Cells above `max_cell_bytes` by the schema raise. A user who trusts the file can raise the limit."""
    described = _schema_json.dump(Schema("S", [Field("x", np.uint8, (2**18, 2**18), codec)]))
    table = pa.table({"x": [b"abc"] * 100}).replace_schema_metadata({_schema_json.KEY: described.encode()})
    pq.write_table(table, tmp_path / "t.parquet")
    ds = ps.open(tmp_path / "t.parquet").batch(100)

    with pytest.raises(DataError, match=r"column 'x': the schema says uint8 \(262144, 262144\), which takes 68719476736 bytes"):
        next(iter(ds))
    ps.write(tmp_path / "u", Schema("S", [Field("x", np.uint8, (8, 8), codec)]), [{"x": np.ones((8, 8), np.uint8)}])
    with pytest.raises(DataError, match=r"and a cell may take 63\. .* allow more: \.using\(max_cell_bytes=64\)"):
        _ = ps.open(tmp_path / "u").using(max_cell_bytes=63)[0]
    assert ps.open(tmp_path / "u").using(max_cell_bytes=2**20)[0]["x"].sum() == 64
