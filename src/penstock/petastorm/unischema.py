"""`petastorm.unischema`: schemas of fields with a NumPy type, a shape and a codec, and the types of rows."""

from __future__ import annotations

import keyword
import re
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.petastorm._impl.spark_types import pyspark_types

__all__ = ["Unischema", "UnischemaField", "dict_to_spark_row", "insert_explicit_nulls", "match_unischema_fields"]

_UNISCHEMA_FIELD_ORDER = "preserve_input_order"
"""`alphabetical` sorts the fields, as old releases of Petastorm did."""

INFERRED = "inferred_schema"
"""The name of the schema of plain Parquet."""

_ROW_TYPES: dict[tuple[str, tuple[str, ...]], Any] = {}
"""Readers of one schema share a row type, because TensorFlow compares types."""

_fullmatch = re.fullmatch
_new_gt_255_compatible_namedtuple = namedtuple  # noqa: PYI024 - the fields are those of a file
"""Names that scripts import from Petastorm."""

SPARK_SCALARS = {
    np.int8: "ByteType",
    np.uint8: "ShortType",
    np.int16: "ShortType",
    np.uint16: "IntegerType",
    np.int32: "IntegerType",
    np.int64: "LongType",
    np.float32: "FloatType",
    np.float64: "DoubleType",
    np.bytes_: "StringType",
    np.str_: "StringType",
    np.bool_: "BooleanType",
}
"""The Spark types of fields without a codec."""

ARROW_SCALARS: dict[pa.DataType, Any] = {
    pa.int8(): np.int8,
    pa.uint8(): np.uint8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.bool_(): np.bool_,
    pa.string(): np.str_,
    pa.binary(): np.bytes_,
    pa.date32(): np.datetime64,
    pa.date64(): np.datetime64,
}
"""The NumPy types of columns of plain Parquet."""


class UnischemaField(NamedTuple):
    """A field: name, NumPy type, shape, codec, and whether it is nullable.

    The codec does not count in comparisons.
    """

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    codec: Any = None
    nullable: bool = False

    def __eq__(self, other: object) -> bool:
        """Return whether another field holds the same values."""
        if not isinstance(other, UnischemaField):
            return NotImplemented
        return _identity(self) == _identity(other)

    def __ne__(self, other: object) -> bool:
        """Return whether another field holds other values."""
        return not self == other

    def __hash__(self) -> int:
        """Return a hash that equal fields share."""
        return hash(_identity(self))


def _identity(field: UnischemaField) -> tuple[Any, ...]:
    return field.name, field.numpy_dtype, field.shape, field.nullable


class Unischema:
    """A schema: an ordered collection of fields, each of which is an attribute too.

    Args:
        name: The name of the schema and of its row type.
        fields: The fields.
    """

    def __init__(self, name: str, fields: Iterable[Any]) -> None:
        """Store the fields."""
        self._name = name
        ordered = list(fields)
        if _UNISCHEMA_FIELD_ORDER == "alphabetical":
            ordered.sort(key=lambda field: field.name)
        self._fields: OrderedDict[str, Any] = OrderedDict((field.name, field) for field in ordered)
        for field in ordered:
            if hasattr(self, field.name):
                warnings.warn(
                    f"Can not create dynamic property {field.name} because it conflicts with an existing property of "
                    f"Unischema. Find the field with schema.fields[{field.name!r}].",
                    UserWarning,
                    stacklevel=2,
                )
            else:
                setattr(self, field.name, field)

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; for type checkers, which do not know the fields."""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def fields(self) -> OrderedDict[str, Any]:
        """The fields by name, in their order."""
        return self._fields

    def create_schema_view(self, fields: Iterable[Any]) -> Unischema:
        """Return a schema of the given fields, followed by those that match the given regular expressions.

        Raises:
            ValueError: If a field is not in this schema, or an item has a wrong type.
        """
        given = list(fields)
        patterns = [field for field in given if isinstance(field, str)]
        selected = []
        for field in given:
            if isinstance(field, str):
                continue
            if not isinstance(field, tuple):
                msg = (
                    "Elements of fields must be either a string (regular expressions) or an instance of UnischemaField. "
                    f"Got {field!r}."
                )
                raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
            name = str(getattr(field, "name", field[0] if field else ""))
            if name not in self._fields:
                raise ValueError(f"field {field} does not belong to the schema {self}")
            selected.append(self._fields[name])
        selected += match_unischema_fields(self, patterns)
        return Unischema(f"{self._name}_view", OrderedDict((field.name, field) for field in selected).values())

    def as_spark_schema(self) -> Any:
        """Return the schema as a Spark type.

        Raises:
            ValueError: If a field has neither a codec nor a Spark type.
        """
        types = pyspark_types("Unischema.as_spark_schema")
        return types.StructType(
            [types.StructField(field.name, _spark_type(field, types), field.nullable) for field in self._fields.values()]
        )

    def make_namedtuple(self, **values: Any) -> Any:
        """Return a row."""
        return self._get_namedtuple()(**values)

    def make_namedtuple_tf(self, *args: Any, **values: Any) -> Any:
        """Return a row of tensors."""
        return self._get_namedtuple()(*args, **values)

    def _get_namedtuple(self) -> Any:
        """Return the type of rows."""
        return row_type(self._name, tuple(self._fields))

    @classmethod
    def from_arrow_schema(cls, parquet_dataset: Any, omit_unsupported_fields: bool = True) -> Unischema:
        """Return the schema of plain Parquet: partition columns first, then the columns of the first file.

        Raises:
            ValueError: If the type of a column is not supported, unless such columns are omitted.
        """
        if hasattr(parquet_dataset, "pieces"):
            arrow = parquet_dataset.pieces[0].get_metadata().schema.to_arrow_schema()
            partitions = [(part.name, part.dictionary.type) for part in (parquet_dataset.partitions or ())]
        else:  # a dataset of pyarrow
            arrow = parquet_dataset.fragments[0].physical_schema
            partitions = _partition_types(parquet_dataset.schema, set(arrow.names))
        return inferred(partitions, arrow, omit_unsupported_fields=omit_unsupported_fields)

    def __str__(self) -> str:
        """Return the fields, one per line."""
        lines = [
            f"  {type(field).__name__}('{field.name}', {getattr(field.numpy_dtype, '__name__', field.numpy_dtype)}, "
            f"{field.shape}, {field.codec}, {field.nullable}),\n"
            for field in self._fields.values()
        ]
        return f"Unischema({self._name}, [\n{''.join(lines)}])"

    def __repr__(self) -> str:
        """Return the fields."""
        return str(self)


def _partition_types(schema: pa.Schema, inside: set[str]) -> list[tuple[str, pa.DataType]]:
    """Return the names and types of partition columns: text or 64-bit integers."""
    types = []
    for column in schema:
        if column.name not in inside:
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            types.append((column.name, pa.int64() if pa.types.is_integer(kind) else kind))
    return types


def row_type(name: str, fields: tuple[str, ...]) -> Any:
    """Return the named tuple of a name and fields; the same object for the same arguments."""
    cached = _ROW_TYPES.get((name, fields))
    if cached is None:
        invalid = [field for field in fields if not field.isidentifier() or keyword.iskeyword(field) or field.startswith("_")]
        if invalid:
            msg = f"Rows are named tuples, which cannot have a field called {invalid[0]!r}; expected a name of letters, digits "
            raise ValueError(
                f"{msg}and _ that begins with a letter and is no word of Python. Leave it out: schema_fields=[...]."
            )
        new_type = namedtuple(f"{name}_view", fields)  # type: ignore[misc] # noqa: PYI024 - the fields are those of a file
        cached = _ROW_TYPES.setdefault((name, fields), new_type)
    return cached


def inferred(partitions: Sequence[tuple[str, pa.DataType]], arrow: pa.Schema, *, omit_unsupported_fields: bool) -> Unischema:
    """Return the schema of partition columns and of the columns of files."""
    result = []
    for name, kind in partitions:
        if kind not in (pa.string(), pa.int64()):
            raise RuntimeError(f"Partition column {name!r} is {kind}. Text or whole numbers were expected.")
        result.append(UnischemaField(name, np.str_ if kind == pa.string() else np.int64, (), None, nullable=False))
    names = {field.name for field in result}
    for column in arrow:
        if column.name in names:
            continue
        dtype, shape = _inferred_type(column, omit_unsupported_fields=omit_unsupported_fields)
        if dtype is not None:
            result.append(UnischemaField(column.name, dtype, shape, None, column.nullable))
    return Unischema(INFERRED, result)


_SCALAR: tuple[int | None, ...] = ()


def _inferred_type(column: pa.Field, *, omit_unsupported_fields: bool) -> tuple[Any, tuple[int | None, ...]]:
    """Return the NumPy type and the shape of a column; the type is None if the column is omitted."""
    kind, shape = column.type, _SCALAR
    if pa.types.is_list(kind):
        if pa.types.is_nested(kind.value_type):
            warnings.warn(
                f"[ARROW-1644] Ignoring unsupported structure {kind} for field {column.name!r}", UserWarning, stacklevel=5
            )
            return None, ()
        kind, shape = kind.value_type, (None,)
    dtype = ARROW_SCALARS.get(kind)
    if dtype is None and (pa.types.is_timestamp(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)):
        dtype = np.datetime64 if pa.types.is_timestamp(kind) else Decimal if pa.types.is_decimal(kind) else np.bytes_
    if dtype is None:
        msg = f"Cannot auto-create unischema due to unsupported column type {kind}, of field {column.name!r}."
        if not omit_unsupported_fields:
            raise ValueError(msg)
        warnings.warn(f"Column {column.name!r} has an unsupported type {kind}, and is left out.", UserWarning, stacklevel=5)
    return dtype, shape


def _spark_type(field: Any, types: Any) -> Any:
    """Return the Spark type of a field."""
    if field.codec is not None:
        return field.codec.spark_dtype()
    if field.shape:
        msg = f"Field {field.name} has codec set to None, and the shape {field.shape}. Only single values need no codec."
        raise ValueError(msg)
    kind = np.dtype(field.numpy_dtype).type if not isinstance(field.numpy_dtype, type) else field.numpy_dtype
    if kind not in SPARK_SCALARS:
        raise ValueError(
            f"Was not able to map type {field.numpy_dtype} of field {field.name} to a type of Spark. Give a codec."
        )
    return getattr(types, SPARK_SCALARS[kind])()


def dict_to_spark_row(unischema: Unischema, row_dict: Mapping[str, Any]) -> Any:
    """Return a row for Spark: checked against a schema, and encoded by its codecs.

    Raises:
        ValueError: If a field is missing or unknown, or None though it is not nullable.
    """
    assert isinstance(unischema, Unischema), "dict_to_spark_row takes a Unischema first, and then a row"  # noqa: S101
    pyspark_types("dict_to_spark_row")
    from pyspark import Row

    row = dict(row_dict)
    insert_explicit_nulls(unischema, row)
    if set(row) != set(unischema.fields):
        msg = (
            f"Dictionary fields {', '.join(sorted(row))} do not match schema fields {', '.join(sorted(unischema.fields))}. "
            "Give a value for each."
        )
        raise ValueError(msg)
    encoded = [_encode(field, row[name]) for name, field in unischema.fields.items()]
    return Row(*unischema.fields)(*encoded)


def _encode(field: Any, value: Any) -> Any:
    if value is None:
        if not field.nullable:
            raise ValueError(f"Field {field.name} is not nullable, and its value is None.")
        return None
    if field.codec is not None:
        return field.codec.encode(field, value)
    return value.item() if isinstance(value, np.generic) else value


def insert_explicit_nulls(unischema: Unischema, row_dict: dict[str, Any]) -> None:
    """Add None for each missing field of a row.

    Raises:
        ValueError: If a missing field is not nullable.
    """
    for name, field in unischema.fields.items():
        if name in row_dict:
            continue
        if not field.nullable:
            raise ValueError(f"Field {name} is not found in the row, and is not nullable. Give a value.")
        row_dict[name] = None


def match_unischema_fields(schema: Unischema, field_regex: Sequence[str]) -> list[Any]:
    """Return the fields whose whole names match a regular expression, in the order of the schema."""
    if not field_regex:
        return []
    fields = list(schema.fields.values())
    matched = [field for field in fields if any(re.fullmatch(pattern, field.name) for pattern in field_regex)]
    matched_before = [field for field in fields if any(re.match(pattern, field.name) for pattern in field_regex)]
    if len(matched_before) != len(matched):
        differing = sorted({field.name for field in matched_before} - {field.name for field in matched})
        warnings.warn(
            "schema_fields behavior has changed. Now, regular expressions must match whole names. Fields that are no longer "
            f"matched: {', '.join(differing)}",
            UserWarning,
            stacklevel=2,
        )
    return matched
