"""Conversions between fields of Petastorm and fields of Penstock."""

from __future__ import annotations

import json
import keyword
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import codecs
from penstock.codecs import Jpeg, Npy, Npz, Png, Scalar, Tensor, Unknown, Webp
from penstock.codecs.scalar import NUMPY
from penstock.dtypes import is_ragged, numpy_type
from penstock.errors import ArgumentError
from penstock.formats.petastorm.schema import (
    ARRAY,
    IMAGE,
    PACKED_ARRAY,
    SCALAR,
    SparkType,
    StoredCodec,
    StoredField,
    StoredSchema,
)
from penstock.formats.petastorm.times import Times
from penstock.schema import Codec, Field, Schema

__all__ = ["field_of", "schema_of", "suited"]

IMAGE_CODECS: dict[str, type[Png | Jpeg | Webp]] = {"png": Png, "jpg": Jpeg, "jpeg": Jpeg, "jpe": Jpeg, "webp": Webp}
PYTHON_TYPES: dict[Any, Any] = {int: np.int64, float: np.float64, bool: np.bool_, Decimal: np.object_}
SPARK_TYPES = {
    pa.bool_(): "BooleanType",
    pa.int8(): "ByteType",
    pa.uint8(): "ShortType",
    pa.int16(): "ShortType",
    pa.uint16(): "IntegerType",
    pa.int32(): "IntegerType",
    pa.uint32(): "LongType",
    pa.int64(): "LongType",
    pa.float32(): "FloatType",
    pa.float64(): "DoubleType",
    pa.string(): "StringType",
    pa.large_string(): "StringType",
    pa.binary(): "BinaryType",
    pa.large_binary(): "BinaryType",
    pa.date32(): "DateType",
    pa.date64(): "DateType",
}
"""The Spark types of Arrow types."""

RGB = 3
PETASTORM_QUALITY = 80
MAX_DIGITS = 38


def field_of(stored: StoredField, kind: pa.DataType | None) -> Field | None:
    """Return the field of Penstock for a field of Petastorm; None for a column that is read as it is stored.

    Args:
        stored: The field of Petastorm.
        kind: The Arrow type of the column in the files; None if no file has it.
    """
    codec = stored.codec
    if codec is None or codec.name == SCALAR:
        return _lists(stored, kind) if stored.shape else _scalar(stored, kind)
    dtype = _dtype(stored)
    timeless = dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic"
    shape = tuple(size or None for size in stored.shape)  # 0 means None in Petastorm
    known: Codec | None = None
    if codec.name in (ARRAY, PACKED_ARRAY):
        packed = codec.name == PACKED_ARRAY
        known = Times(packed=packed) if timeless else Npz() if packed else Npy()
    elif codec.name == IMAGE:
        known = _image_codec(codec)
    name = f"{codec.name}({str(codec.options.get('image_codec')).removeprefix('.')!r})" if codec.name == IMAGE else codec.name
    unknown = Unknown(called=name, stored=json.dumps(dict(codec.options), default=str))
    for choice in (known, unknown):
        try:
            return Field(stored.name, object if timeless else dtype, shape, choice or unknown, nullable=stored.nullable)
        except ArgumentError:
            continue
    raise AssertionError  # pragma: no cover - Unknown fits any field


def _dtype(stored: StoredField) -> np.dtype[Any]:
    """Return the dtype of a field; object for decimals."""
    dtype: np.dtype[Any] = np.dtype(PYTHON_TYPES.get(stored.numpy_dtype, stored.numpy_dtype))
    return dtype


def _image_codec(codec: StoredCodec) -> Codec | None:
    """Return the codec of an image format; None for an unknown format."""
    ending, quality = codec.options.get("image_codec"), codec.options.get("quality")
    kind = IMAGE_CODECS.get(str(ending).removeprefix(".").lower())
    if kind is None:
        return None
    try:
        return kind.of({} if quality is None or kind is Png else {"quality": quality})
    except ArgumentError:
        return kind()  # the quality is not needed for reading


def _scalar(stored: StoredField, kind: pa.DataType | None) -> Field | None:
    """Return the field of single values."""
    dtype = _dtype(stored)
    codec: Scalar | None = None
    if dtype.kind in "biuf":
        codec = Scalar()
    elif dtype.kind in "US":
        codec = Scalar(kind) if kind is not None and str(kind) == f"large_{Scalar().storage(Field('x', dtype))}" else Scalar()
    elif dtype.kind == "O" and stored.numpy_dtype is Decimal:
        codec = _decimal(stored, kind)
    elif dtype.kind == "M":
        dtype, codec = _timestamp(stored, dtype, kind)
    elif dtype.kind == "m" and np.datetime_data(dtype)[0] != "generic":
        codec = Scalar()
    if codec is None:
        return None
    try:
        return Field(stored.name, dtype, (), codec, nullable=stored.nullable)
    except ArgumentError:
        return None


def _spark_type(stored: StoredField) -> SparkType:
    return (stored.codec.spark_type if stored.codec is not None else None) or SparkType("")


def _decimal(stored: StoredField, kind: pa.DataType | None) -> Scalar | None:
    if kind is not None:
        return Scalar(kind) if pa.types.is_decimal(kind) else None
    precision, scale = (_spark_type(stored).options.get(option) for option in ("precision", "scale"))
    whole = type(precision) is int and type(scale) is int and 0 <= scale <= precision <= MAX_DIGITS and precision > 0
    return Scalar(pa.decimal128(precision, scale)) if whole else Scalar()


def _timestamp(stored: StoredField, dtype: np.dtype[Any], kind: pa.DataType | None) -> tuple[np.dtype[Any], Scalar | None]:
    """Return the dtype and the codec of timestamps, in the unit of the files if the field has none."""
    if np.datetime_data(dtype)[0] != "generic":
        return dtype, Scalar()
    if kind is None:
        kind = pa.date32() if _spark_type(stored).name == "DateType" else pa.timestamp("us")
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return dtype, None
    return numpy_type(kind)[0], Scalar(kind)


def _lists(stored: StoredField, kind: pa.DataType | None) -> Field | None:
    """Return the field of lists of Parquet; None if they do not have the declared shape and dtype."""
    if kind is None or not is_ragged(kind) or NUMPY.get(_dtype(stored)) != kind.value_type:
        return None
    try:
        return Field(stored.name, _dtype(stored), stored.shape, Tensor(), nullable=stored.nullable)
    except ArgumentError:
        return None


def suited(schema: Schema) -> Schema:
    """Return a schema whose fields without a codec get one that Petastorm has; arrays are stored as `.npy`.

    Example:
        >>> suited(Schema("Hello", [Field("x", np.float32, (3,))]))["x"].codec
        Npy()
    """
    return Schema(
        schema.name, [field if field.codec is not None else field.with_codec(_default_codec(field)) for field in schema]
    )


def _default_codec(field: Field) -> Codec:
    return Npy() if field.shape and not field.dtype.hasobject else codecs.default(field)


def schema_of(schema: Schema, *, check_names: bool = True) -> StoredSchema:
    """Return the schema of Petastorm for a schema of Penstock.

    Args:
        schema: The schema.
        check_names: Whether names are checked.

    Raises:
        ArgumentError: If Petastorm has no counterpart for a field, or cannot have its name.

    Example:
        >>> schema_of(Schema("Hello", [Field("x", np.float32, (3,))])).fields[0].codec.name
        'petastorm.codecs.NdarrayCodec'
    """
    if check_names:
        _check_names(schema)
    return StoredSchema(schema.name, tuple(_stored_field(field) for field in suited(schema)))


def _check_names(schema: Schema) -> None:
    """Check that Petastorm can have the names."""
    if not f"{schema.name}_view".isidentifier():
        msg = f"Schema {schema.name!r} cannot be one of Petastorm, which names a class after it. Give it a name of letters, "
        raise ArgumentError(msg + "digits and _ that begins with a letter.")
    for field in schema:
        if not field.name.isidentifier() or keyword.iskeyword(field.name) or field.name.startswith("_"):
            msg = f"Field {field.name!r} cannot be one of Petastorm, which makes a named tuple of rows. Give it a name of "
            raise ArgumentError(msg + "letters, digits and _ that begins with a letter and is no word of Python.")


def _stored_field(field: Field) -> StoredField:
    codec = field.codec
    if isinstance(codec, Scalar):
        kind = codec.storage(field)
        numpy_dtype = _scalar_type(field, kind)
        stored = StoredCodec(SCALAR, {"spark_type": _spark_scalar(field, kind)})
    else:
        numpy_dtype = field.dtype.type
        stored = _cell_codec(field, codec)
    return StoredField(field.name, numpy_dtype, field.shape, stored, field.nullable)


def _scalar_type(field: Field, kind: pa.DataType) -> Any:
    """Return the type of single values; that of objects follows from the storage type."""
    if field.dtype.kind != "O":
        return field.dtype.type
    return Decimal if pa.types.is_decimal(kind) else np.str_ if SPARK_TYPES[kind] == "StringType" else np.bytes_


def _spark_scalar(field: Field, kind: pa.DataType) -> SparkType:
    """Return the Spark type of a column."""
    if kind in SPARK_TYPES:
        return SparkType(SPARK_TYPES[kind])
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns":  # Petastorm truncates nanoseconds
        return SparkType("TimestampType")
    if pa.types.is_decimal(kind) and kind.precision <= MAX_DIGITS and 0 <= kind.scale <= kind.precision:
        return SparkType("DecimalType", {"precision": kind.precision, "scale": kind.scale, "hasPrecisionInfo": True})
    if kind == pa.uint64():
        return SparkType("DecimalType", {"precision": 20, "scale": 0, "hasPrecisionInfo": True})
    raise _no_counterpart(field, f"stored as {kind}", "Give it another dtype, or a shape and penstock.codecs.Npy()")


def _cell_codec(field: Field, codec: Codec | None) -> StoredCodec:
    """Return the codec of Petastorm that reads the cells of a codec of Penstock."""
    if isinstance(codec, Npy):
        return StoredCodec(ARRAY)
    if isinstance(codec, Npz):
        return StoredCodec(PACKED_ARRAY)
    endings: dict[type[Any], str] = {Png: ".png", Jpeg: ".jpeg", Webp: ".webp"}
    if type(codec) in endings:
        plain = len(field.shape) == 2 and not isinstance(codec, Webp)  # noqa: PLR2004 - gray; WebP stores it as RGB
        if plain or field.shape[2:] == (RGB,):
            quality = getattr(codec, "quality", PETASTORM_QUALITY)
            return StoredCodec(IMAGE, {"image_codec": endings[type(codec)], "quality": quality})
        shapes = "(height, width, 3)" if isinstance(codec, Webp) else "(height, width) and (height, width, 3)"
        raise _no_counterpart(
            field, f"an image of the shape {field.shape}", f"It reads {shapes} so: give such a shape, or use Npy()"
        )
    raise _no_counterpart(field, f"stored by {codec!r}", "Use Npy(), Npz(), Png() or Jpeg()")


def _no_counterpart(field: Field, what: str, advice: str) -> ArgumentError:
    return ArgumentError(f"Field {field.name!r} is {what}, for which Petastorm has no counterpart. {advice}.")
