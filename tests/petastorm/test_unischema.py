"""Schemas, codecs and transforms: how they are built, printed and compared, and which errors they raise."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import penstock.petastorm.codec
from penstock.errors import MissingExtraError
from penstock.petastorm import codecs, unischema
from penstock.petastorm._impl.spark_types import StoredSparkType
from penstock.petastorm.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from penstock.petastorm.transform import TransformSpec, edit_field, transform_schema
from penstock.petastorm.unischema import (
    Unischema,
    UnischemaField,
    dict_to_spark_row,
    insert_explicit_nulls,
    match_unischema_fields,
)

pytest.importorskip("cv2", reason="images need OpenCV")

ID = UnischemaField("id", np.int32, (), ScalarCodec(StoredSparkType("IntegerType", {})), nullable=False)
MATRIX = UnischemaField("matrix", np.float32, (None, 3), NdarrayCodec(), nullable=True)
IMAGE = UnischemaField("image", np.uint8, (3, 4), CompressedImageCodec("png"), nullable=True)
NAME = UnischemaField("image_name", np.str_, (), None, nullable=False)
SCHEMA = Unischema("Hello", [ID, MATRIX, IMAGE, NAME])


def test_a_schema_prints_its_fields() -> None:
    """A schema prints one field per line, with its codec."""
    assert str(SCHEMA) == (
        "Unischema(Hello, [\n"
        "  UnischemaField('id', int32, (), ScalarCodec(IntegerType()), False),\n"
        "  UnischemaField('matrix', float32, (None, 3), NdarrayCodec(), True),\n"
        "  UnischemaField('image', uint8, (3, 4), CompressedImageCodec('png', 80), True),\n"
        "  UnischemaField('image_name', str_, (), None, False),\n"
        "])"
    )


def test_fields_are_equal_whatever_their_codecs_are() -> None:
    """Equality depends on name, type, shape and nullability, not on the codec."""
    same = UnischemaField("id", np.int32, (), None, nullable=False)

    assert same == ID
    assert hash(ID) == hash(same)
    assert UnischemaField("id", np.int64, ()) != ID
    assert ID._fields == ("name", "numpy_dtype", "shape", "codec", "nullable")


def test_fields_are_attributes() -> None:
    """Fields are attributes of a schema by their names, and keep their order."""
    assert SCHEMA.matrix is MATRIX
    assert list(SCHEMA.fields) == ["id", "matrix", "image", "image_name"]
    with pytest.raises(AttributeError, match="'Unischema' object has no attribute 'nope'"):
        _ = SCHEMA.nope


def test_a_field_name_that_is_taken_warns() -> None:
    """A field with the name of an attribute warns. The schema has it, but not as an attribute."""
    with pytest.warns(UserWarning, match="Can not create dynamic property fields"):
        schema = Unischema("Taken", [UnischemaField("fields", np.int8, ())])

    assert list(schema.fields) == ["fields"]


def test_views_have_the_fields_of_the_schema() -> None:
    """Fields that are passed as objects come first, then matching fields. Only the name of an object counts."""
    view = SCHEMA.create_schema_view([UnischemaField("image", np.int8, ()), "i.*"])

    assert (view._name, list(view.fields)) == ("Hello_view", ["image", "id", "image_name"])
    assert view.image is IMAGE
    assert list(SCHEMA.create_schema_view(["nope"]).fields) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([3], "must be either a string \\(regular expressions\\) or an instance of UnischemaField"),
        ([UnischemaField("nope", np.int8, ())], "does not belong to the schema"),
    ],
)
def test_views_of_invalid_fields_raise(fields: list[Any], text: str) -> None:
    """Fields of another type and unknown fields raise ValueError."""
    with pytest.raises(ValueError, match=text):
        SCHEMA.create_schema_view(fields)


def test_a_pattern_that_matches_the_start_of_names_warns() -> None:
    """A pattern must match the whole name. If it only matches the start, a warning tells of the change."""
    with pytest.warns(UserWarning, match="schema_fields behavior has changed.*: image_name"):
        found = match_unischema_fields(SCHEMA, ["image"])

    assert found == [IMAGE]
    assert match_unischema_fields(SCHEMA, []) == []


def test_types_of_rows_are_shared() -> None:
    """Schemas of the same name and fields share a row type. Another order has another type."""
    again = Unischema("Hello", [ID, MATRIX, IMAGE, NAME])

    assert SCHEMA._get_namedtuple() is again._get_namedtuple()
    assert SCHEMA._get_namedtuple() is not Unischema("Hello", [MATRIX, ID, IMAGE, NAME])._get_namedtuple()
    assert SCHEMA.make_namedtuple(id=1, matrix=2, image=3, image_name=4) == (1, 2, 3, 4)
    assert SCHEMA.make_namedtuple_tf(1, 2, 3, image_name=4).image_name == 4
    assert type(SCHEMA.make_namedtuple_tf(1, 2, 3, 4)).__name__ == "Hello_view"


def test_a_row_may_have_a_thousand_fields() -> None:
    """A row may have more than 255 fields."""
    wide = Unischema("Wide", [UnischemaField(f"f{n}", np.int8, ()) for n in range(1000)])

    assert len(wide.make_namedtuple(**{f"f{n}": n for n in range(1000)})) == 1000


def test_fields_can_be_in_alphabetical_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting restores the alphabetical order of older releases."""
    monkeypatch.setattr(unischema, "_UNISCHEMA_FIELD_ORDER", "alphabetical")

    assert list(Unischema("Hello", [NAME, ID, IMAGE]).fields) == ["id", "image", "image_name"]


def parquet_dataset(partitions: list[Any], schema: pa.Schema) -> Any:
    """Return a stand-in for a dataset of an old pyarrow."""
    piece = mock.Mock()
    piece.get_metadata().schema.to_arrow_schema.return_value = schema
    return mock.Mock(pieces=[piece], partitions=partitions)


def partition(name: str, kind: pa.DataType) -> Any:
    """Return a partition column."""
    found = mock.Mock(dictionary=mock.Mock(type=kind))
    found.name = name
    return found


def test_the_schema_of_plain_parquet_is_inferred_from_its_columns() -> None:
    """In an inferred schema, partition columns come first, and lists have one dimension of variable size."""
    arrow = pa.schema({"n": pa.int16(), "at": pa.timestamp("ns"), "price": pa.decimal128(3, 1), "words": pa.list_(pa.string())})
    parts = [partition("day", pa.string()), partition("year", pa.int64())]

    found = Unischema.from_arrow_schema(parquet_dataset(parts, arrow))

    assert found._name == "inferred_schema"
    assert [(one.name, one.numpy_dtype, one.shape, one.codec) for one in found.fields.values()] == [
        ("day", np.str_, (), None),
        ("year", np.int64, (), None),
        ("n", np.int16, (), None),
        ("at", np.datetime64, (), None),
        ("price", Decimal, (), None),
        ("words", np.str_, (None,), None),
    ]


def test_columns_of_unsupported_types_raise_or_are_skipped() -> None:
    """By default, a column of an unsupported type is skipped with a warning."""
    dataset = parquet_dataset([], pa.schema({"half": pa.float16(), "id": pa.int64()}))

    with pytest.raises(ValueError, match="Cannot auto-create unischema due to unsupported column type"):
        Unischema.from_arrow_schema(dataset, omit_unsupported_fields=False)
    with pytest.warns(UserWarning, match="Column 'half' has an unsupported type halffloat"):
        assert list(Unischema.from_arrow_schema(dataset).fields) == ["id"]


def test_a_schema_is_inferred_from_a_dataset_of_pyarrow(tmp_path: Path) -> None:
    """A schema is inferred from a pyarrow dataset of a directory, with partition columns, or of one file."""
    table = pa.table({"id": [1, 2], "year": [2024, 2025], "part": ["a", "b"]})
    pq.write_to_dataset(table, tmp_path, partition_cols=["year", "part"])

    found = Unischema.from_arrow_schema(pq.ParquetDataset(tmp_path)).fields

    assert [(field.name, field.numpy_dtype) for field in found.values()] == [
        ("year", np.int64),
        ("part", np.str_),
        ("id", np.int64),
    ]
    pq.write_table(table, tmp_path / "alone.parquet")
    assert list(Unischema.from_arrow_schema(pq.ParquetDataset(tmp_path / "alone.parquet")).fields) == ["id", "year", "part"]


def test_partition_columns_of_other_types_raise() -> None:
    """A partition column that is neither text nor integer raises RuntimeError."""
    with pytest.raises(RuntimeError, match="Partition column 'x' is double"):
        Unischema.from_arrow_schema(parquet_dataset([partition("x", pa.float64())], pa.schema({"id": pa.int64()})))


def test_missing_nullable_fields_become_none() -> None:
    """Missing nullable fields become None. A missing field that is not nullable raises ValueError."""
    row = {"id": 1, "image_name": "x"}
    insert_explicit_nulls(SCHEMA, row)

    assert row == {"id": 1, "image_name": "x", "matrix": None, "image": None}
    with pytest.raises(ValueError, match="Field image_name is not found in the row"):
        insert_explicit_nulls(SCHEMA, {"id": 1})


def test_rows_for_spark_need_a_schema_and_spark() -> None:
    """Exchanged arguments raise AssertionError, and a missing pyspark raises MissingExtraError."""
    with pytest.raises(AssertionError):
        dict_to_spark_row({"id": 1}, SCHEMA)  # type: ignore[arg-type] # exchanged
    with (
        mock.patch.dict("sys.modules", {"pyspark": None, "pyspark.sql": None}),
        pytest.raises(MissingExtraError, match="dict_to_spark_row needs pyspark"),
    ):
        dict_to_spark_row(SCHEMA, {"id": 1, "image_name": "x"})


@given(hnp.arrays(st.sampled_from([np.float32, np.int16, np.complex64]), hnp.array_shapes(max_dims=3)))
@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedNdarrayCodec()])
def test_encoded_arrays_are_decoded_unchanged(codec: DataframeColumnCodec, array: Any) -> None:
    """An array is unchanged after encoding and decoding."""
    field = UnischemaField("a", array.dtype.type, array.shape, codec, nullable=False)

    stored = codec.encode(field, array)
    found = codec.decode(field, stored)

    assert isinstance(stored, bytearray)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_encoded_images_are_decoded_unchanged(dtype: Any, shape: tuple[int, ...]) -> None:
    """A PNG image is unchanged after encoding and decoding, in grey and in colours."""
    image = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    field = UnischemaField("a", dtype, shape)

    np.testing.assert_array_equal(
        CompressedImageCodec("png").decode(field, CompressedImageCodec("png").encode(field, image)), image
    )


def test_colours_are_red_green_blue() -> None:
    """Stored images are ordinary files with colours in RGB order."""
    import io

    from PIL import Image

    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 255
    stored = CompressedImageCodec("png").encode(UnischemaField("a", np.uint8, (2, 2, 3)), red)

    assert Image.open(io.BytesIO(stored)).getpixel((0, 0)) == (255, 0, 0)
    assert CompressedImageCodec("jpeg", 70).image_codec == "jpeg"
    assert str(CompressedImageCodec("jpeg", 70)) == "CompressedImageCodec('jpeg', 70)"


@pytest.mark.parametrize(
    ("codec", "field", "value", "error", "text"),
    [
        (ScalarCodec(StoredSparkType("IntegerType", {})), ID, [1], TypeError, "Expected a scalar as a value for field 'id'"),
        (ScalarCodec(StoredSparkType("IntegerType", {})), ID, b"x", TypeError, "Expected a scalar"),
        (ScalarCodec(StoredSparkType("IntegerType", {})), ID, np.zeros(2), TypeError, "Expected a scalar"),
        (ScalarCodec(StoredSparkType("IntegerType", {})), MATRIX, 1, ValueError, "must be an empty tuple"),
        (ScalarCodec(StoredSparkType("StringType", {})), ID, 5, ValueError, "Expected text as a value for field 'id'"),
        (NdarrayCodec(), MATRIX, 5, ValueError, "Unexpected type of matrix feature"),
        (NdarrayCodec(), MATRIX, np.zeros((2, 3)), ValueError, "Unexpected type of matrix feature"),
        (NdarrayCodec(), MATRIX, np.zeros((2, 4), np.float32), ValueError, "Unexpected dimensions of matrix feature"),
        (CompressedImageCodec(), IMAGE, np.zeros((3, 4), np.float32), ValueError, "Unexpected type of image feature"),
        (CompressedImageCodec(), IMAGE, np.zeros((3, 4, 4), np.uint8), ValueError, "Unexpected dimensions of image"),
        (
            CompressedImageCodec(),
            UnischemaField("rgba", np.uint8, (None, None, None)),
            np.zeros((3, 4, 4), np.uint8),
            ValueError,
            "Unexpected image dimensions",
        ),
    ],
)
def test_values_that_do_not_fit_raise(codec: Any, field: Any, value: Any, error: type[Exception], text: str) -> None:
    """A value that does not fit its field raises an error that names the field or what is expected."""
    with pytest.raises(error, match=text):
        codec.encode(field, value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("LongType", np.int8(5), 5),
        ("DoubleType", np.float32(0.5), 0.5),
        ("BooleanType", np.bool_(True), True),  # noqa: FBT003 - the value
        ("StringType", np.str_("x"), "x"),
        ("DecimalType", Decimal("1.5"), Decimal("1.5")),
        ("IntegerType", np.array(7), 7),
    ],
)
def test_scalars_become_plain_values_of_python(kind: str, value: Any, expected: Any) -> None:
    """`ScalarCodec` encodes NumPy scalars as plain Python values, which Spark needs."""
    found = ScalarCodec(StoredSparkType(kind, {})).encode(UnischemaField("a", type(value), ()), value)

    assert found == expected
    assert type(found) is type(expected)


def test_sizes_of_none_and_zero_accept_any_size() -> None:
    """A dimension of None or 0 accepts any size."""
    field = UnischemaField("a", np.uint8, (0, None))

    assert NdarrayCodec().decode(field, NdarrayCodec().encode(field, np.ones((2, 3), np.uint8))).shape == (2, 3)


def test_codecs_have_the_module_name_that_articles_use() -> None:
    """`petastorm.codec` has the codecs of `petastorm.codecs`, since articles use that name."""
    assert penstock.petastorm.codec.NdarrayCodec is codecs.NdarrayCodec
    assert codecs.OPENCV_AVAILABLE


def test_a_spec_transforms_a_schema() -> None:
    """In a transformed schema, edited fields come last, and selected fields come in the order of the selection."""
    spec = TransformSpec(edit_fields=[edit_field("new", np.int8, ()), ("id", np.int64, (), True)], removed_fields=["image"])

    found = transform_schema(SCHEMA, spec)

    assert found._name == "Hello_transformed"
    assert list(found.fields) == ["matrix", "image_name", "new", "id"]
    assert found.id == UnischemaField("id", np.int64, (), None, nullable=True)
    assert list(transform_schema(SCHEMA, TransformSpec(selected_fields=["image", "id"])).fields) == ["image", "id"]
    assert edit_field("new", np.int8, ()) == ("new", np.int8, (), False)
    assert spec.edit_fields[1] == ("id", np.int64, (), True)


def test_edit_fields_accept_a_field() -> None:
    """`edit_fields` accepts a field object, takes its nullability and ignores its codec."""
    field = UnischemaField("new", np.int8, (), CompressedNdarrayCodec(), nullable=True)

    found = transform_schema(SCHEMA, TransformSpec(edit_fields=[field])).new

    assert found == UnischemaField("new", np.int8, (), None, nullable=True)
    assert found.codec is None


def test_a_spec_removes_or_selects() -> None:
    """Removing and selecting together raises ValueError. Unknown field names warn."""
    with pytest.raises(ValueError, match="only specify one of removed_fields and selected_fields"):
        TransformSpec(removed_fields=["id"], selected_fields=["image"])
    with pytest.warns(UserWarning, match="not part of the schema.*nope"):
        transform_schema(SCHEMA, TransformSpec(removed_fields=["nope"]))
    with pytest.warns(UserWarning, match="not part of the schema.*nope"):
        transform_schema(SCHEMA, TransformSpec(selected_fields=["nope", "id"]))
