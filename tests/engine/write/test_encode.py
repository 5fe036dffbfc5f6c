"""Rows, batches and Arrow columns are checked against the schema, and stored without loss."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.write.encode import TableEncoder
from penstock._engine.write.schema import encoder_from_arrow, encoder_from_schema
from penstock._write.input import as_columns, infer_schema, is_batch, read_tabular
from penstock.codecs import Npy, Npz, Raw, Scalar, Tensor
from penstock.errors import ArgumentError, DataError
from penstock.schema import CellCodec, Field, Schema

UTC = dt.UTC


@dataclass(frozen=True)
class Doubled(CellCodec):
    """A codec of a user that stores the bytes of an array twice."""

    name = "doubled"

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes twice. An array that holds 13 raises."""
        if (np.asarray(cell) == 13).any():
            msg = "13 is not lucky"
            raise RuntimeError(msg)
        return 2 * np.asarray(cell, field.dtype).tobytes()

    def decode(self, field: Field, cell: memoryview) -> Any:
        """Return the array."""
        if cell[: len(cell) // 2] != cell[len(cell) // 2 :]:
            msg = "the halves differ"
            raise ValueError(msg)
        return np.frombuffer(cell[: len(cell) // 2], field.dtype).reshape(
            [-1 if size is None else size for size in field.shape]
        )


def columns(*fields: Field) -> TableEncoder:
    """Return the encoder of a schema with these fields."""
    return encoder_from_schema(Schema("Test", fields))


def stored(field: Field, *cells: Any) -> pa.Array:
    """Return cells as they are stored when they are written row by row."""
    encoder = columns(field)
    rows = [encoder.check_row({field.name: cell}, number) for number, cell in enumerate(cells)]
    return encoder.named(field.name).encode([row[0] for row in rows])


def error_of(field: Field, cell: Any) -> str:
    """Return the error message for a cell that does not fit its field."""
    with pytest.raises(DataError) as caught:
        columns(field).check_row({field.name: cell}, 7)
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "cell", "message"),
    [
        (
            Field("x", np.int8),
            200,
            "Row 7, field 'x': got 200 (int); expected a whole number of int8, from -128 to 127. "
            "Change it, or the field's dtype.",
        ),
        (
            Field("x", np.int8),
            float("nan"),
            "Row 7, field 'x': got nan, which pandas has where a value is missing; expected a value of int8. Fill it: "
            "frame['x'].fillna(value); or allow nulls, Field('x', ..., nullable=True), and give None for it.",
        ),
        (Field("x", np.int8), 1.5, "got 1.5 (float); expected a whole number of int8, from -128 to 127."),
        (Field("x", np.int8), True, "got True (bool); expected a whole number of int8"),
        (Field("x", np.int8), np.int64(1), "Convert it: numpy.int8(cell); or change the field's dtype."),
        (Field("x", np.uint8), -1, "from 0 to 255"),
        (Field("x", np.float32), 1e300, "got 1e+300 (float); expected a number that float32 holds."),
        (Field("x", np.float32), 2**24 + 1, "got 16777217 (int); expected a number that float32 holds."),
        (Field("x", np.float64), 10**400, "expected a number that float64 holds."),
        (Field("x", np.float32), np.float64(0.5), "Convert it: numpy.float32(cell)"),
        (Field("x", np.float32), True, "got True (bool); expected a number that float32 holds."),
        (Field("x", np.bool_), 1, "got 1 (int); expected True or False. Make it one: bool(cell)."),
        (Field("x", str), b"a", "got b'a' (bytes); expected a str. Decode it: cell.decode()."),
        (Field("x", str), 5, "got 5 (int); expected a str. Make it text: str(cell)."),
        (Field("x", str), "\ud800", "got text that is not Unicode"),
        (Field("x", "U2"), "abc", "got 'abc' (str) of 3 characters; expected a str of 2 at most."),
        (Field("x", bytes), "a", "got 'a' (str); expected bytes. Encode it: cell.encode()."),
        (Field("x", "S2"), b"abc", "got 3 bytes; expected 2 at most."),
        (
            Field("x", Decimal),
            "1",
            "expected a decimal.Decimal, as a field of objects without a codec holds. Say what its cells are: Field('x', str);",
        ),
        (Field("x", Decimal), 1.5, "expected a decimal.Decimal. Make it one: Decimal(str(cell))."),
        (
            Field("x", Decimal, (), Scalar("decimal128(5, 2)")),
            Decimal("1.234"),
            "got Decimal('1.234') (decimal.Decimal), which Arrow refuses: Rescaling Decimal value would cause data loss;",
        ),
        (Field("x", Decimal, (), Scalar("decimal128(5, 2)")), Decimal(12345), "expected a value of decimal128(5, 2)."),
        (
            Field("x", dt.date),
            dt.datetime(2020, 1, 1, tzinfo=UTC),
            "expected a date or numpy.datetime64 that datetime64[D] holds",
        ),
        (Field("x", dt.datetime), dt.date(2020, 1, 1), "expected a datetime or numpy.datetime64 that datetime64[us] holds"),
        (
            Field("x", dt.datetime),
            dt.datetime(2020, 1, 1, tzinfo=UTC),
            "with a time zone; expected one without. Give the field a zone: codec=Scalar('timestamp[us, tz=UTC]'); or make "
            "it naive: cell.astimezone(datetime.UTC).replace(tzinfo=None).",
        ),
        (
            Field("x", "datetime64[s]"),
            np.datetime64("2020-01-01T00:00:00.5"),
            "which is finer or further than datetime64[s] holds;",
        ),
        (Field("x", "datetime64[ns]"), dt.datetime(9999, 1, 1), "which is finer or further than datetime64[ns] holds;"),  # noqa: DTZ001
        (
            Field("x", "datetime64[us]", (), Scalar("timestamp[s]")),
            np.datetime64(1, "us"),
            "finer or further than datetime64[ms] holds; expected a datetime",
        ),
        (Field("x", dt.timedelta), 5, "expected a timedelta or numpy.timedelta64 that timedelta64[us] holds."),
        (
            Field("x", np.int32),
            None,
            "got a null; expected a value. Give a value, or allow nulls: Field('x', ..., nullable=True).",
        ),
        (Field("x", dt.datetime), np.datetime64("NaT"), "a null; expected a value."),
        (
            Field("x", np.float32, (2, 3)),
            np.zeros((3, 2), np.float32),
            "Row 7, field 'x': got a float32 array of shape (3, 2); expected a float32 array of shape (2, 3). Bring it to "
            "that shape, or change the field's: None stands for any size.",
        ),
        (
            Field("x", np.float32, (2, 3)),
            np.zeros((2, 3)),
            "got a float64 array of shape (2, 3); expected a float32 array of shape (2, 3). Convert it: cell.astype('float32')"
            "; or change the field's dtype.",
        ),
        (Field("x", np.float32, (2,)), [1.0, 2.0], "Make it one: numpy.asarray(cell, 'float32')."),
        (Field("x", np.float32, (None, 3)), np.zeros((5, 2), np.float32), "expected a float32 array of shape (None, 3)."),
        (Field("x", np.float32, (2,)), np.ma.zeros(2, np.float32), "got a masked array;"),
        (Field("x", np.complex64, (), Npy()), "1", "expected a number of complex64."),
        (Field("x", "U2", (1,)), np.array(["abc"]), "Convert it: cell.astype('U2'); or change the field's dtype."),
        (Field("x", "S2", (1,), Raw()), 7, "Make it one: numpy.asarray(cell, 'S2')."),
        (
            Field("x", bytes, (), Npy()),
            b"a\0",
            "got b'a\\x00' (bytes); expected one that does not end in b'\\x00', which NumPy would cut off. Use "
            "penstock.codecs.Scalar(), which keeps it.",
        ),
        (Field("x", str, (), Npz()), "a\0", "expected one that does not end in '\\x00', which NumPy would cut off."),
        (Field("x", "S4", (), Raw()), b"a\0\0\0", "expected one that does not end in b'\\x00', which NumPy would cut off."),
    ],
)
def test_a_cell_that_does_not_fit_raises(field: Field, cell: Any, message: str) -> None:
    """The error has the row, the field, the problem, what was expected, and what to do."""
    error_text = error_of(field, cell)

    assert error_text.startswith("Row 7, field 'x': ")
    assert message in error_text


@pytest.mark.parametrize(
    ("field", "cell", "expected"),
    [
        (Field("x", np.int8), 5, 5),
        (Field("x", np.int8), 5.0, 5),
        (Field("x", np.int16), np.int8(5), 5),
        (Field("x", np.int64), np.array(5), 5),
        (Field("x", np.float32), 0.1, float(np.float32(0.1))),
        (Field("x", np.float64), np.float32(0.5), 0.5),
        (Field("x", np.float64), float("inf"), float("inf")),
        (Field("x", np.float16), 1.5, 1.5),
        (Field("x", np.float32), 3, 3.0),
        (Field("x", np.bool_), np.True_, True),
        (Field("x", str), np.str_("é"), "é"),
        (Field("x", bytes), bytearray(b"a"), b"a"),
        (Field("x", Decimal, (), Scalar("decimal128(5, 2)")), Decimal("1.5"), Decimal("1.50")),
        (Field("x", Decimal, (), Scalar("decimal128(5, 2)")), 7, Decimal("7.00")),
        (Field("x", dt.date), dt.date(2020, 1, 2), dt.date(2020, 1, 2)),
        (Field("x", dt.date), np.datetime64("2020-01-02"), dt.date(2020, 1, 2)),
        (Field("x", "datetime64[ms]", (), Scalar("date64")), dt.date(2020, 1, 2), dt.date(2020, 1, 2)),
        (Field("x", dt.datetime), dt.datetime(2020, 1, 2, 3), dt.datetime(2020, 1, 2, 3)),  # noqa: DTZ001
        (
            Field("x", dt.datetime, (), Scalar("timestamp[us, tz=UTC]")),
            dt.datetime(2020, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2020, 1, 2, 1, tzinfo=UTC),
        ),
        (Field("x", "datetime64[ns]"), pd.Timestamp(5), pd.Timestamp(5)),
        (Field("x", dt.timedelta), dt.timedelta(seconds=5), dt.timedelta(seconds=5)),
        (Field("x", dt.timedelta), pd.Timedelta("5s"), dt.timedelta(seconds=5)),
        (Field("x", np.int64, (), Scalar("int8")), 5, 5),
        (Field("x", dt.datetime, nullable=True), pd.NaT, None),
        (Field("x", np.int32, nullable=True), None, None),
    ],
)
def test_a_cell_that_fits_is_stored_as_it_is(field: Field, cell: Any, expected: Any) -> None:
    """Cells that fit their field are stored as equal values."""
    assert stored(field, cell, cell).to_pylist() == [expected, expected]


def test_a_value_that_its_storage_cannot_hold_raises() -> None:
    """A value must fit the dtype of its field and the storage type of its codec."""
    assert "which Arrow refuses: Value 300 too large" in error_of(Field("x", np.int64, (), Scalar("int8")), 300)


def test_unknown_and_missing_fields_are_named() -> None:
    """The error names unknown and missing fields, suggests the nearest name, and says what to do."""
    encoder = columns(Field("label", np.int32), Field("image", np.uint8, (2,)), Field("note", str, nullable=True))

    with pytest.raises(DataError) as caught:
        encoder.check_row({"lable": 1, "image": np.zeros(2, np.uint8)}, 3)

    assert str(caught.value) == (
        "Row 3: 'lable' is not in the schema (did you mean 'label'?); 'label' is missing. Fields: label, image, note. "
        "Leave it out, or write the table again with a schema that has it. Give every field, or write the "
        "table again with a schema in which it is nullable."
    )


def test_a_nullable_field_may_be_left_out() -> None:
    """A nullable field that is left out is null, in rows and in batches."""
    encoder = columns(Field("id", np.int32), Field("note", str, nullable=True))

    row = encoder.check_row({"id": 1}, 0)
    batch = encoder.encode(encoder.check_batch({"id": [1, 2]}, 0))

    assert row == [1, None]
    assert batch.to_pydict() == {"id": [1, 2], "note": [None, None]}


def test_columns_of_a_batch_have_one_length() -> None:
    """A batch with columns of different lengths raises an error with the lengths."""
    encoder = columns(Field("a", np.int32), Field("b", np.int32))

    with pytest.raises(DataError) as caught:
        encoder.check_batch({"a": [1, 2], "b": [1]}, 4)

    assert str(caught.value) == (
        "The batch that begins with row 4 has columns of different lengths: a: 2, b: 1; expected one length. Give columns of "
        "the same number of rows, or append rows one by one."
    )


@pytest.mark.parametrize(
    ("field", "cells", "message"),
    [
        (Field("x", np.int8), [1, 2, 300], "Row 12, field 'x': got 300 (int);"),
        (
            Field("x", np.int8),
            np.arange(3),
            "row 10, field 'x': got an array of int64; expected one of int8. Convert it: column.astype('int8'), if",
        ),
        (Field("x", dt.datetime), np.array(["2020", "NaT"], "M8[us]"), "Row 11, field 'x': got np.datetime64('NaT'"),
        (Field("x", np.float32, (2,)), np.zeros((4, 3), np.float32), "Row 10, field 'x': got a float32 array of shape (3,);"),
        (
            Field("x", np.float32, (2,)),
            np.zeros((4, 2)),
            "row 10, field 'x': got an array of float64; expected one of float32. Convert it",
        ),
        (Field("x", np.int8), np.ma.zeros(3, np.int8), "Row 10, field 'x': got a masked array;"),
        (Field("x", np.int8), None, "Row 10, field 'x': got a null;"),
        (Field("x", np.int8), pa.array([1, None], pa.int8()), "Row 11, field 'x': got a null; expected a value."),
        (Field("x", np.int8), pa.array([1, 2, 300]), "Row 12, field 'x': got 300 of int64, and Arrow says: Integer value 300"),
        (
            Field("x", np.float32),
            pa.array([1.0, 0.1]),
            "Row 11, field 'x': got 0.1 of float64, which would be rounded to 0.10000000149011612; expected values that",
        ),
        (Field("x", np.int8), pa.array(["1"]), "got a column of string; expected int8."),
        (Field("x", str), pa.array([1]), "got a column of int64; expected string."),
        (
            Field("x", dt.datetime),
            pa.array([dt.datetime(2020, 1, 1, tzinfo=UTC)]),
            "got a column of timestamp[us, tz=UTC]; expected timestamp[us].",
        ),
        (Field("x", np.int8, (2,)), pa.array([[1, 2], [3]], pa.list_(pa.int8())), "Row 11, field 'x': got a list of 1;"),
        (
            Field("x", np.int8, (2,)),
            pa.array([[1, 2], [3, 4], [5, None]], pa.list_(pa.int8())),
            "Row 12, field 'x': got lists with nulls in them; expected arrays of int8 (2,). Fill the nulls.",
        ),
        (
            Field("x", np.int8, (2, 2), nullable=True),
            pa.array([None, [[1, 2], [3, 4]], [[1, 2], None]], pa.list_(pa.list_(pa.int8(), 2), 2)),
            "Row 12, field 'x': got lists with nulls in them;",
        ),
        (
            Field("x", np.int8, (2, 2), nullable=True),
            pa.array([None, [1, 2, 3, 4], [1, 2, 3, None]], pa.list_(pa.int8(), 4)),
            "Row 12, field 'x': got lists with nulls in them;",
        ),
        (Field("x", np.int8, (2,)), pa.array([[1, 2]]), "got values of int64; expected int8."),
        (Field("x", np.int8, (2,)), pa.array([1, 2], pa.int8()), "expected tensors or lists of int8 (2,)."),
        (Field("x", np.int8, (2,), Doubled()), pa.array([b"abcd"]), "expected a cell that Doubled() has encoded."),
        (Field("x", np.int8, (2,), Doubled()), pa.array([b"ababab"]), "Bytes count as encoded cells"),
        (Field("x", np.int8, (), Doubled()), pa.array([1]), "that Doubled() has encoded."),
    ],
)
def test_a_batch_that_does_not_fit_raises(field: Field, cells: Any, message: str) -> None:
    """The error of a batch has the row's number in the whole write."""
    with pytest.raises(DataError) as caught:
        columns(field).check_batch({"x": cells}, 10)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("field", "cells", "expected"),
    [
        (Field("x", np.int8), pa.array([1, 2]), [1, 2]),
        (Field("x", np.int8), pa.array([1.0, 2.0]), [1, 2]),
        (Field("x", np.float32), pa.array([1.5, float("inf")]), [1.5, float("inf")]),
        (Field("x", np.float64), pa.array([1, 2]), [1.0, 2.0]),
        (Field("x", str), pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (Field("x", str), pa.array(["a"], pa.large_string()), ["a"]),
        (Field("x", np.int8, nullable=True), pa.nulls(2), [None, None]),
        (Field("x", dt.datetime), pa.array([5_000], pa.timestamp("ns")), [dt.datetime(1970, 1, 1, 0, 0, 0, 5)]),  # noqa: DTZ001
        (Field("x", np.int64), range(3), [0, 1, 2]),
        (Field("x", np.int64), np.arange(6)[::2], [0, 2, 4]),
        (Field("x", np.int64), np.arange(3, dtype=np.int8), [0, 1, 2]),
        (Field("x", str), np.array(["a", "bc"]), ["a", "bc"]),
        (Field("x", str, nullable=True), np.array(["a", None], object), ["a", None]),
        (Field("x", dt.datetime, nullable=True), np.array(["1970", "NaT"], "M8[s]"), [dt.datetime(1970, 1, 1), None]),  # noqa: DTZ001
    ],
)
def test_a_column_that_fits_is_stored(field: Field, cells: Any, expected: list[Any]) -> None:
    """Columns of NumPy, Python and Arrow are stored in the type of the schema."""
    encoder = columns(field)

    found = encoder.encode(encoder.check_batch({"x": cells}, 0))

    assert found.column(0).to_pylist() == expected
    assert found.schema.field(0).type == encoder.arrow.field(0).type


TENSORS = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


@pytest.mark.parametrize("codec", [Tensor(), Npy(), Doubled(), Raw()])
@pytest.mark.parametrize(
    "cells",
    [
        TENSORS,
        list(TENSORS),
        np.asfortranarray(TENSORS),
        pa.FixedShapeTensorArray.from_numpy_ndarray(TENSORS),
        pa.FixedSizeListArray.from_arrays(pa.array(TENSORS.ravel()), 6),
        pa.array([cell.ravel().tolist() for cell in TENSORS], pa.list_(pa.float32())),
        pa.array(TENSORS.tolist(), pa.list_(pa.list_(pa.float32(), 3), 2)),
        pa.array(TENSORS.tolist(), pa.list_(pa.list_(pa.float32()))),
        pa.array([None, *TENSORS.tolist()], pa.list_(pa.list_(pa.float32()))).slice(1),
    ],
    ids=range(9),
)
def test_arrays_of_all_libraries_are_stored_alike(cells: Any, codec: Any) -> None:
    """NumPy arrays, Arrow tensors and Arrow lists of the right sizes give the same stored column."""
    field = Field("x", np.float32, (2, 3), codec)
    encoder = columns(field)

    found = encoder.encode(encoder.check_batch({"x": cells}, 0)).column(0)
    expected = encoder.encode(encoder.check_batch({"x": list(TENSORS)}, 0)).column(0)

    assert found.equals(expected)


def test_null_tensors_are_null() -> None:
    """Null lists are stored as null tensors, in the same rows."""
    encoder = columns(Field("x", np.float32, (2, 3), nullable=True))
    lists = pa.array([TENSORS[0].tolist(), None, TENSORS[1].tolist()], pa.list_(pa.list_(pa.float32())))

    found = encoder.encode(encoder.check_batch({"x": lists}, 0)).column(0)

    assert [None if cell is None else cell.tolist() for cell in found.to_numpy(zero_copy_only=False)] == [
        TENSORS[0].ravel().tolist(),
        None,
        TENSORS[1].ravel().tolist(),
    ]


def test_a_permuted_tensor_raises() -> None:
    """A permuted tensor raises, because its numbers are not in C order."""
    kind = pa.fixed_shape_tensor(pa.float32(), [3, 2], permutation=[1, 0])
    permuted = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(TENSORS.ravel()), 6))

    with pytest.raises(DataError, match="expected tensors in C order"):
        columns(Field("x", np.float32, (2, 3))).check_batch({"x": permuted}, 0)


def test_bytes_in_arrow_count_as_encoded_cells() -> None:
    """Bytes in Arrow columns are stored unchanged, in the codec's storage type."""
    field = Field("x", np.int8, (2,), Doubled(), nullable=True)
    cells = pa.array([None, b"\1\2\1\2", b"\3\4\3\4"], pa.large_binary())

    found = columns(field).encode(columns(field).check_batch({"x": cells}, 0)).column(0)

    assert found.to_pylist() == [None, b"\1\2\1\2", b"\3\4\3\4"]
    assert found.type == pa.binary()


def test_a_cell_that_cannot_be_encoded_is_named() -> None:
    """The error names the row, even though a whole column is encoded at once."""
    encoder = columns(Field("x", np.int8, (1,), Doubled()))
    chunk = encoder.check_batch({"x": np.array([[1], [13], [2]], np.int8)}, 100)

    with pytest.raises(DataError) as caught:
        encoder.encode(chunk)

    assert str(caught.value) == (
        "Row 101, field 'x': Doubled() cannot encode it: 13 is not lucky. Nothing was written. Check the cell, or use "
        "another codec."
    )


@pytest.mark.parametrize(("returned", "message"), [(5, "a bytes-like object is required, not 'int'"), ("x", "not 'str'")])
def test_a_codec_that_returns_no_bytes_raises(returned: Any, message: str) -> None:
    """A codec that returns an int or a str raises. An int does not become that many zero bytes."""

    class Wrong(Doubled):
        """A codec whose `encode` returns no bytes."""

        def encode(self, field: Field, cell: Any) -> bytes:  # noqa: ARG002 - that is the mistake
            """Return a value that is not bytes."""
            return returned  # type: ignore[no-any-return] # that is what is tested

    encoder = columns(Field("x", np.int8, (1,), Wrong()))

    with pytest.raises(DataError, match=f"One of rows 0 to 1, field 'x': .* cannot encode it: .*{message}"):
        encoder.encode(encoder.check_batch({"x": np.zeros((2, 1), np.int8)}, 0))


def test_a_codec_may_return_any_buffer() -> None:
    """A codec may return any bytes-like object, such as a view of a bytearray."""

    class Views(Doubled):
        """A codec whose `encode` returns a view and not bytes."""

        def encode(self, field: Field, cell: Any) -> bytes:
            """Return a view."""
            return memoryview(bytearray(super().encode(field, cell)))  # type: ignore[return-value] # that is what is tested

    encoder = columns(Field("x", np.int8, (1,), Views()))

    assert encoder.encode(encoder.check_batch({"x": [np.ones(1, np.int8)]}, 0)).column(0).to_pylist() == [b"\1\1"]


def test_a_field_of_any_codec_may_be_left_out() -> None:
    """Nullable fields that are left out are stored as nulls, for each storage type."""
    codecs: list[Any] = [Scalar(), Tensor(), Npy(), Raw()]
    fields = [Field(f"x{at}", np.int8, () if at == 0 else (2,), codec, nullable=True) for at, codec in enumerate(codecs)]
    encoder = columns(Field("id", np.int64), *fields)

    found = encoder.encode(encoder.check_batch({"id": [1, 2]}, 0))

    assert [column.null_count for column in found.columns] == [0, 2, 2, 2, 2]


def test_parts_of_a_batch_share_no_memory_with_it() -> None:
    """Parts of a batch are copies, so that the caller may reuse the arrays."""
    cells = np.arange(4)
    lists = [np.zeros(1, np.int8) for _ in range(4)]
    encoder = columns(Field("a", np.int64), Field("b", np.int8, (1,), Npy()))
    parts = list(encoder.check_batch({"a": cells, "b": lists}, 0).split(16))

    cells[:] = -1
    for each in lists:
        each[:] = -1
    found = pa.concat_tables([encoder.encode(part) for part in parts])

    assert len(parts) > 1
    assert found.column("a").to_pylist() == [0, 1, 2, 3]
    assert [np.asarray(Npy().decode(encoder.named("b").field, memoryview(cell.as_py()))).tolist() for cell in found["b"]] == [
        [0]
    ] * 4


def test_an_arrow_schema_is_stored_as_it_says() -> None:
    """A table with an Arrow schema stores exactly this schema, and the cells that were given."""
    schema = pa.schema(
        {
            "a": pa.int8(),
            "b": pa.list_(pa.int8()),
            "c": pa.struct({"x": pa.string()}),
            "d": pa.map_(pa.string(), pa.int8()),
            "e": pa.date32(),
            "f": pa.dictionary(pa.int8(), pa.string()),
            "g": pa.float16(),
            "h": pa.fixed_shape_tensor(pa.int8(), [2]),
            "i": pa.fixed_shape_tensor(pa.int8(), [2, 2], permutation=[0, 1]),
        }
    )
    row = {"a": 1, "b": [1, 2], "c": {"x": "y"}, "d": [("k", 1)], "e": dt.date(2020, 1, 1), "f": "z", "g": 0.5}
    tensors = {"h": np.zeros(2, np.int8), "i": np.ones((2, 2), np.int8)}
    encoder = encoder_from_arrow(schema)

    batch = encoder.encode(encoder.check_batch({name: [cell] for name, cell in {**row, **tensors}.items()}, 0))

    assert encoder.metadata == {}
    assert batch.schema == schema
    assert batch.drop_columns(["h", "i"]).to_pylist() == [row]


@pytest.mark.parametrize(
    ("kind", "cell", "message"),
    [
        (pa.list_(pa.int8()), [1.5], "It would be stored as [1]. Change it, or the schema."),
        (pa.list_(pa.int8()), [300], "which Arrow refuses: Value 300 too large"),
        (pa.struct({"x": pa.int8()}), {"x": 1, "y": 2}, "It would be stored as {'x': 1}."),
        (
            pa.list_(pa.string()),
            "no",
            "got 'no' (str); expected a value of list<item: string>. It would be stored as ['n', 'o'].",
        ),
        (pa.list_(pa.string(), 2), "no", "It would be stored as ['n', 'o']."),
        (pa.list_(pa.large_list(pa.string())), [["a"], "no"], "It would be stored as [['a'], ['n', 'o']]."),
        (pa.struct({"x": pa.list_(pa.string())}), {"x": "no"}, "It would be stored as {'x': ['n', 'o']}."),
        (pa.map_(pa.string(), pa.list_(pa.string())), {"x": "no"}, "It would be stored as [('x', ['n', 'o'])]."),
        (pa.map_(pa.string(), pa.int8()), [("a", 1.5)], "It would be stored as [('a', 1)]."),
    ],
)
def test_arrow_loses_nothing_of_a_cell(kind: pa.DataType, cell: Any, message: str) -> None:
    """Cells of which Arrow would lose a part raise an error that shows what it would store."""
    with pytest.raises(DataError) as caught:
        encoder_from_arrow(pa.schema({"x": kind})).check_row({"x": cell}, 0)

    assert message in str(caught.value)


def test_an_arrow_schema_of_ours_keeps_its_codecs() -> None:
    """An Arrow schema of our table keeps the codecs of the columns that are still there."""
    ours = columns(Field("id", np.int32), Field("x", np.int8, (2,), Npy()), Field("y", np.int8, (2,), Npy()))
    changed = ours.arrow.remove(2).append(pa.field("z", pa.string()))

    found = encoder_from_arrow(changed)

    assert [(column.field.name, column.codec, column.in_schema) for column in found.columns] == [
        ("id", Scalar(), True),
        ("x", Npy(), True),
        ("z", Scalar("string"), False),
    ]
    assert found.schema.names == ("id", "x")


def test_a_schema_needs_columns() -> None:
    """A schema without fields raises, and so does one with two columns of one name."""
    with pytest.raises(ArgumentError, match="Schema 'Test' has no field"):
        columns()
    with pytest.raises(ArgumentError, match="The Arrow schema has the columns a, a"):
        encoder_from_arrow(pa.schema([pa.field("a", pa.int8()), pa.field("a", pa.int8())]))


class Foreign:
    """An array of another library, such as a tensor of torch."""

    def __init__(self, array: Any) -> None:
        """Store the NumPy array."""
        self._array = array
        self.shape = array.shape
        self.dtype = "an object of that library"

    def __len__(self) -> int:
        """Return its length."""
        return len(self._array)

    def __array__(self) -> Any:
        """Return the NumPy array."""
        return self._array


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"id": 1, "x": np.zeros(2)}, False),
        ({"id": [1], "x": np.zeros((1, 2))}, True),
        ({"id": np.zeros(1, np.int64), "x": [np.zeros(2)]}, True),
        ({"id": np.zeros(1, np.int64), "x": np.array([np.zeros(2), None], object)}, True),
        ({"id": np.array(1), "x": np.zeros(2)}, False),
        ({"id": pa.array([1]), "x": None}, True),
        ({"id": 1, "x": None}, False),
        ({"id": 1, "x": [0.0, 0.0]}, False),
        ({"id": 1, "x": np.zeros((1, 2))}, False),
        ({"id": 1, "x": pa.array([[0.0, 0.0]])}, False),
        ({"x": Foreign(np.zeros(2))}, False),
        ({"x": Foreign(np.zeros((1, 2)))}, True),
        ({"x": None}, False),
        ({}, False),
    ],
)
def test_rows_and_batches_are_distinguished(item: dict[str, Any], expected: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """A batch has one more dimension than a cell in every column. A single value in any column makes a row."""
    encoder = columns(Field("id", np.int64), Field("x", np.float64, (2,), nullable=True))

    assert is_batch(item, encoder, 0) is expected


def test_a_mapping_that_could_be_a_row_or_a_batch_raises() -> None:
    """The error names both ways to write the mapping, and suggests a schema only if there is none."""
    encoder = columns(Field("id", np.int64), Field("x", np.float64, (2,), nullable=True))
    advice = r"a mapping could be a row or a batch: .* Write it with table.append\(row\) or table.extend\(batch\)"

    with pytest.raises(DataError, match=rf"{advice}\.$"):
        is_batch({"id": [1], "x": np.zeros(2)}, encoder, 0)
    with pytest.raises(DataError, match=rf"{advice}, or give a schema\.$"):
        is_batch({"x": np.zeros(2)}, None, 0)
    with pytest.raises(DataError, match=r"it is empty; .*, or give a schema\.$"):
        is_batch({}, None, 0)


@pytest.mark.parametrize("alone", [True, False])
def test_nulls_alone_are_a_row(alone: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """A mapping of nulls only is a row, because columns of nulls would have no length."""
    encoder = columns(Field("x", np.float64, nullable=True))

    assert not is_batch({"x": None}, encoder, 0, alone=alone)
    assert not is_batch({"x": None}, None, 0, alone=alone)


def test_without_a_schema_one_of_many_mappings_of_arrays_raises() -> None:
    """Arrays only could be cells or columns, if other mappings follow. A single mapping of arrays is a batch."""
    item = {"image": np.zeros((4, 4, 3)), "mask": np.zeros((4, 4))}

    with pytest.raises(DataError, match="Row 5: a mapping could be a row or a batch: 'image', 'mask' could be cells"):
        is_batch(item, None, 5)

    assert is_batch(item, None, 5, alone=True)
    assert not is_batch({**item, "id": 1}, None, 5)
    assert is_batch({**item, "id": [1, 2, 3, 4]}, None, 5)


def test_a_schema_is_inferred_from_a_row() -> None:
    """Each value gives its type, and each array its dtype and shape."""
    row = {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": "x",
        "e": b"x",
        "f": Decimal(1),
        "g": dt.date(2020, 1, 1),
        "h": dt.datetime(2020, 1, 1),  # noqa: DTZ001
        "i": dt.datetime(2020, 1, 1, tzinfo=UTC),
        "j": dt.timedelta(1),
        "k": np.float16(1),
        "l": np.zeros((2, 3), np.uint8),
        "m": np.str_("x"),
        "n": 1 + 2j,
    }

    found = infer_schema(row, batch=False)

    assert [str(field.dtype) for field in found] == [
        *("int64", "float64", "bool", "<U0", "|S0", "object", "datetime64[D]", "datetime64[us]", "datetime64[us]"),
        *("timedelta64[us]", "float16", "uint8", "<U0", "complex128"),
    ]
    assert (found["l"].shape, found["i"].codec) == ((2, 3), Scalar("timestamp[us, tz=UTC]"))


def test_a_schema_is_inferred_from_a_batch() -> None:
    """Sizes that differ become None, and a null makes a field nullable."""
    batch = {
        "x": [np.zeros((2, 3)), np.zeros((4, 3))],
        "y": np.zeros((2, 5), np.int8),
        "z": [None, "a"],
        "w": np.array(["ab", "c"]),
    }

    found = infer_schema(batch, batch=True)

    assert [(field.dtype.kind, field.shape, field.nullable) for field in found] == [
        ("f", (None, 3), False),
        ("i", (5,), False),
        ("U", (), True),
        ("U", (), False),
    ]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (None, r"has no value in the first row.*Give a schema: penstock.write\(url, schema\)."),
        (object(), r"for which no type follows\. Give a schema: penstock.write\(url, schema\)."),
        ([1, 2], r"for which no type follows\. Give a schema: Arrow's has lists, .*pyarrow.schema"),
        ({"a": 1}, r"for which no type follows\. Give a schema: Arrow's has lists, .*pyarrow.schema"),
    ],
)
def test_a_schema_that_cannot_be_inferred_raises(cell: Any, message: str) -> None:
    """The error names the field and asks for a schema."""
    with pytest.raises(ArgumentError, match=rf"Field 'x' .*{message}"):
        infer_schema({"x": cell}, batch=False)


def test_a_null_column_without_a_schema_raises() -> None:
    """A null column raises, even beside columns with values."""
    with pytest.raises(ArgumentError, match="Field 'x' has no value in the first row or batch"):
        infer_schema({"x": None, "y": [1, 2]}, batch=True)


def test_a_batch_of_single_values_raises() -> None:
    """The error says that a row goes to `table.append`."""
    with pytest.raises(
        DataError, match=r"The batch that begins with row 3 has 1 \(int\) as column 'x'.*goes to table.append\(row\)"
    ):
        as_columns({"x": 1}, 3)


def test_data_frames_are_columns() -> None:
    """A DataFrame with a schema may have arrays in cells, missing values and a named index."""
    encoder = columns(
        Field("key", str),
        Field("x", np.int64, nullable=True),
        Field("y", np.float32, (2,)),
        Field("z", np.int8, (1,), Doubled()),
    )
    frame = pd.DataFrame(
        {"x": [1, None], "y": [np.zeros(2, np.float32), np.ones(2, np.float32)], "z": [b"aa", b"bb"]},
        index=pd.Index(["a", "b"], name="key"),
    )

    found = read_tabular(frame, encoder)

    assert found is not None
    (batch,) = found.batches
    table = encoder.encode(encoder.check_batch(batch, 0))
    assert table.column("key").to_pylist() == ["a", "b"]
    assert table.column("x").to_pylist() == [1, None]
    assert table.column("y").to_pylist() == [[0, 0], [1, 1]]
    assert table.column("z").to_pylist() == [b"aa", b"bb"]


NUMBERS = st.sampled_from([np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])


@given(NUMBERS, st.lists(st.integers(-(2**65), 2**65), max_size=5))
def test_an_integer_is_stored_or_raises(dtype: Any, cells: list[int]) -> None:
    """An integer within the bounds of the dtype is stored exactly. Any other raises."""
    field = Field("x", dtype)
    bounds = np.iinfo(dtype)

    for cell in cells:
        if bounds.min <= cell <= bounds.max:
            assert stored(field, cell).to_pylist() == [cell]
        else:
            assert f"got {cell} (int);" in error_of(field, cell)


@given(st.datetimes(), st.sampled_from(["s", "ms", "us", "ns"]))
def test_a_datetime_is_stored_or_raises(moment: dt.datetime, unit: str) -> None:
    """A datetime that the unit can represent is stored exactly. Any other raises."""
    field = Field("x", f"datetime64[{unit}]")
    exact = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001
    per_unit = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[unit]
    fits = exact % per_unit == 0 and (unit != "ns" or abs(exact * 1000) < 2**63)

    if fits:
        ticks = {"s": exact // 10**3, "ms": exact // 10**3, "us": exact, "ns": exact * 1000}[unit]  # files have no seconds
        assert stored(field, moment).cast(pa.int64()).to_pylist() == [ticks]
    else:
        assert "which is finer or further than datetime64" in error_of(field, moment)


@given(st.data())
def test_any_array_of_a_field_is_stored(data: st.DataObject) -> None:
    """Arrays of any dtype and shape are decoded as they were encoded, and null stays null."""
    dtype = np.dtype(data.draw(st.sampled_from(["uint8", "int64", "float32", "bool", "complex64", "<M8[us]"])))
    shape = data.draw(st.lists(st.integers(1, 3) | st.none(), min_size=1, max_size=3))
    field = Field("x", dtype, shape, Npy(), nullable=True)
    sizes = [[data.draw(st.integers(0, 3)) if size is None else size for size in shape] for _ in range(3)]
    cells = [np.arange(int(np.prod(size))).astype(dtype).reshape(size) for size in sizes]

    found = stored(field, *cells, None)

    assert found[3].as_py() is None
    for cell, back in zip(cells, found, strict=False):
        np.testing.assert_array_equal(Npy().decode(field, memoryview(back.as_py())), cell)
