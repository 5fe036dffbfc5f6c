"""The columns that a schema makes of a table: ours with its codecs, or Arrow's as it says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import codecs
from penstock._engine.decode.concat import storable
from penstock._engine.write.encode import ColumnEncoder, TableEncoder
from penstock._engine.write.validate import check_of
from penstock._engine.write.validate_nested import arrow_check, in_c_order
from penstock.codecs.scalar import Scalar, arrow_type
from penstock.codecs.tensor import Tensor
from penstock.dtypes import FIXED, TENSOR, extension_name, is_encoded, numpy_type
from penstock.errors import ArgumentError, listed
from penstock.schema import Field, Schema
from penstock.schema.compat import incompatible
from penstock.schema.json import KEY, dump, load

__all__ = ["check_lists", "of_arrow", "of_schema"]


def of_schema(schema: Schema) -> TableEncoder:
    """Return the columns of a schema; fields without a codec get their default, and those that may be null may be missing.

    Raises:
        ArgumentError: If nothing stores a field, or there is none.
    """
    if not len(schema):
        msg = f"Schema {schema.name!r} has no field. At least one was expected. Give one: penstock.Field('id', numpy.int32)."
        raise ArgumentError(msg)
    full = Schema(schema.name, [each if each.codec is not None else each.with_codec(codecs.default(each)) for each in schema])
    columns = tuple(_column(each) for each in full)
    return TableEncoder(columns, full, {KEY: dump(full).encode()}).nullable()


def _column(given: Field, arrow: pa.Field | None = None, *, stated: bool = True) -> ColumnEncoder:
    """Return the column of a field with a codec."""
    codec = given.codec or Scalar()
    arrow = arrow or pa.field(given.name, codec.storage(given), nullable=given.nullable)
    kind = arrow.type if isinstance(codec, Scalar) else None
    return ColumnEncoder(field=given, arrow=arrow, codec=codec, stated=stated, check=check_of(given, kind))


def of_arrow(schema: pa.Schema) -> TableEncoder:
    """Return the columns of an Arrow schema, stored as it says.

    Where it comes from a table that Penstock wrote, its metadata has the schema of that, and columns that are still
    stored so keep their codec. No column may be missing in rows: that Arrow's fields are nullable is but their default.
    """
    if len(set(schema.names)) != len(schema.names) or not schema.names:
        msg = f"The Arrow schema has the columns {listed(schema.names)}. Some, of different names, were expected. Rename them."
        raise ArgumentError(msg)
    check_lists(schema)
    metadata = dict(schema.metadata or {})
    told_before = load(metadata.pop(KEY)) if KEY in metadata else Schema("", [])
    columns = tuple(_kept(each, told_before) or _plain(each) for each in schema)
    stated = Schema(told_before.name, [column.field for column in columns if column.stated])
    if len(stated):
        metadata[KEY] = dump(stated).encode()
    return TableEncoder(columns, stated, metadata)


def check_lists(schema: pa.Schema) -> None:
    """Refuse lists of the fixed length zero, wherever they stand: pyarrow writes each as a list of one null.

    Raises:
        ArgumentError: If a column has such.

    Example:
        >>> check_lists(pa.schema({"x": pa.list_(pa.int8(), 2)}))
    """
    for column in schema:
        if (found := _nothing(column.type)) is not None:
            where = f"{found}" if found == column.type else f"{column.type}, with {found} inside"
            msg = (
                f"Column {column.name!r} is {where}: of the fixed length 0, which pyarrow writes wrongly. Lists that hold "
                "something, or of any length, were expected. Cast it, column.cast(pyarrow.list_(...)), or leave it out."
            )
            raise ArgumentError(msg)


def _nothing(kind: pa.DataType) -> pa.DataType | None:
    """Return the type inside of one that is a list of the fixed length zero, or None."""
    if isinstance(kind, pa.BaseExtensionType):
        return None if _nothing(kind.storage_type) is None else kind
    if is_encoded(kind):
        return _nothing(kind.value_type)
    if pa.types.is_fixed_size_list(kind) and not kind.list_size:
        return kind
    found = (_nothing(kind.field(at).type) for at in range(kind.num_fields))
    return next((each for each in found if each is not None), None)


def _kept(arrow: pa.Field, before: Schema) -> ColumnEncoder | None:
    """Return a column by what a stored schema says of it, if it is still stored so, or as the codec reads it too."""
    if arrow.name not in before:
        return None
    given = before[arrow.name]
    if given.codec is None:
        return None
    if given.codec.storage(given) != arrow.type and (is_encoded(arrow.type) or incompatible(given, arrow.type) is not None):
        return None
    return _column(given, arrow.with_nullable(given.nullable))


def _plain(arrow: pa.Field) -> ColumnEncoder:
    """Return a column that is stored as Arrow says."""
    arrow = arrow.with_metadata(None) if arrow.metadata and b"PARQUET:field_id" in arrow.metadata else arrow
    arrow = arrow.with_type(storable(arrow.type))
    kind, nullable = arrow.type, arrow.nullable
    if extension_name(kind) == TENSOR and in_c_order(kind):
        dtype, shape = numpy_type(kind)
        return _column(Field(arrow.name, dtype, shape, Tensor(), nullable=nullable), arrow, stated=False)
    if not isinstance(kind, pa.BaseExtensionType):
        dtype = np.dtype("U") if _is(kind, "string") else np.dtype("S") if _is(kind, "binary") else numpy_type(kind)[0]
        codec = Scalar() if kind in FIXED and kind != pa.date64() else Scalar(kind) if _named(kind) else None
        if codec is not None:
            return _column(Field(arrow.name, dtype, (), codec, nullable=nullable), arrow, stated=False)
    nothing = Field(arrow.name, object, nullable=nullable)
    return ColumnEncoder(field=nothing, arrow=arrow, codec=None, stated=False, check=arrow_check(kind))


def _is(kind: pa.DataType, word: str) -> bool:
    return str(kind) in (word, f"large_{word}")


def _named(kind: pa.DataType) -> bool:
    """Return whether a type is one that `Scalar` can name."""
    try:
        return bool(arrow_type(str(kind)) == kind)
    except ArgumentError:
        return False
