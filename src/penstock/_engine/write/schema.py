"""Encoders of the columns of a schema: a `Schema` with its codecs, or an Arrow schema as it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import codecs
from penstock._engine.decode.concat import writable_type
from penstock._engine.write.encode import ColumnEncoder, TableEncoder
from penstock._engine.write.validate import cell_check, is_in_c_order, nested_check
from penstock.codecs.scalar import Scalar, arrow_type
from penstock.codecs.tensor import Tensor
from penstock.dtypes import FIXED, TENSOR, extension_name, is_encoded, numpy_type
from penstock.errors import ArgumentError, listed
from penstock.schema import Field, Schema
from penstock.schema.compat import incompatible
from penstock.schema.json import KEY, dump, load


def encoder_from_schema(schema: Schema) -> TableEncoder:
    """Return the encoder of a `Schema`: fields without a codec get their default, nullable ones may be missing in rows."""
    if not len(schema):
        msg = f"Schema {schema.name!r} has no field; expected at least one. Add one: penstock.Field('id', numpy.int32)."
        raise ArgumentError(msg)
    full = Schema(schema.name, [each if each.codec is not None else each.with_codec(codecs.default(each)) for each in schema])
    columns = tuple(_encoder(each) for each in full)
    return TableEncoder(columns, full, {KEY: dump(full).encode()}).with_optional_nulls()


def _encoder(field: Field, arrow: pa.Field | None = None, *, in_schema: bool = True) -> ColumnEncoder:
    codec = field.codec or Scalar()
    arrow = arrow or pa.field(field.name, codec.storage(field), nullable=field.nullable)
    check = cell_check(field, arrow.type if isinstance(codec, Scalar) else None)
    return ColumnEncoder(field=field, arrow=arrow, codec=codec, in_schema=in_schema, check=check)


def encoder_from_arrow(schema: pa.Schema) -> TableEncoder:
    """Return the encoder of an Arrow schema.

    Metadata of a table that Penstock wrote holds its schema; columns that are still stored so keep their codec. Rows must
    have all columns: Arrow fields are nullable by default, so this says nothing.
    """
    if len(set(schema.names)) != len(schema.names) or not schema.names:
        msg = (
            f"The Arrow schema has the columns {listed(schema.names)}; expected at least one, and different names. Rename them."
        )
        raise ArgumentError(msg)
    for column in schema:
        _check_list_sizes(column)
    metadata = dict(schema.metadata or {})
    stored = load(metadata.pop(KEY)) if KEY in metadata else Schema("", [])
    columns = tuple(_stored_encoder(each, stored) or _arrow_encoder(each) for each in schema)
    fields = Schema(stored.name, [column.field for column in columns if column.in_schema])
    if len(fields):
        metadata[KEY] = dump(fields).encode()
    return TableEncoder(columns, fields, metadata)


def _check_list_sizes(column: pa.Field) -> None:
    """Refuse lists of the fixed length zero at any depth: pyarrow writes each as a list of one null."""
    if (empty := _zero_size_list(column.type)) is not None:
        where = f"{empty}" if empty == column.type else f"{column.type}, with {empty} inside"
        raise ArgumentError(
            f"Column {column.name!r} is {where}: of the fixed length 0, which pyarrow writes wrongly; expected lists of "
            "another length, or of any. Cast it, column.cast(pyarrow.list_(...)), or leave it out."
        )


def _zero_size_list(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a fixed-size list of length zero inside a type, or None."""
    if isinstance(kind, pa.BaseExtensionType):
        return None if _zero_size_list(kind.storage_type) is None else kind
    if is_encoded(kind):
        return _zero_size_list(kind.value_type)
    if pa.types.is_fixed_size_list(kind) and not kind.list_size:
        return kind
    inner = (_zero_size_list(kind.field(at).type) for at in range(kind.num_fields))
    return next((each for each in inner if each is not None), None)


def _stored_encoder(arrow: pa.Field, stored: Schema) -> ColumnEncoder | None:
    """Return the encoder of a column in a stored schema; None if its codec no longer reads the column."""
    if arrow.name not in stored:
        return None
    field = stored[arrow.name]
    if field.codec is None:
        return None
    if field.codec.storage(field) != arrow.type and (is_encoded(arrow.type) or incompatible(field, arrow.type) is not None):
        return None
    return _encoder(field, arrow.with_nullable(field.nullable))


def _arrow_encoder(arrow: pa.Field) -> ColumnEncoder:
    """Return the encoder of a column that is stored in its Arrow type."""
    arrow = arrow.with_metadata(None) if arrow.metadata and b"PARQUET:field_id" in arrow.metadata else arrow
    arrow = arrow.with_type(writable_type(arrow.type))
    kind, nullable = arrow.type, arrow.nullable
    if extension_name(kind) == TENSOR and is_in_c_order(kind):
        dtype, shape = numpy_type(kind)
        return _encoder(Field(arrow.name, dtype, shape, Tensor(), nullable=nullable), arrow, in_schema=False)
    if not isinstance(kind, pa.BaseExtensionType):
        name = str(kind).removeprefix("large_")
        dtype = np.dtype({"string": "U", "binary": "S"}[name]) if name in ("string", "binary") else numpy_type(kind)[0]
        codec = Scalar() if kind in FIXED and kind != pa.date64() else Scalar(kind) if _is_scalar_type(kind) else None
        if codec is not None:
            return _encoder(Field(arrow.name, dtype, (), codec, nullable=nullable), arrow, in_schema=False)
    field = Field(arrow.name, object, nullable=nullable)
    return ColumnEncoder(field=field, arrow=arrow, codec=None, in_schema=False, check=nested_check(kind))


def _is_scalar_type(kind: pa.DataType) -> bool:
    """Return whether `Scalar` accepts the name of a type."""
    try:
        return bool(arrow_type(str(kind)) == kind)
    except ArgumentError:
        return False
