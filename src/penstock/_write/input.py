"""Data that is given to be written: recognises Arrow, pandas, batches and rows, and infers their schema."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from penstock._engine.write.encode import ColumnEncoder, TableEncoder
from penstock._engine.write.validate import describe
from penstock.codecs.scalar import Scalar
from penstock.dtypes import is_compound, is_ragged
from penstock.errors import ArgumentError, DataError
from penstock.schema import PYTHON_TYPES, Field, Schema

__all__ = ["TabularInput", "infer_schema", "is_batch", "is_tabular", "read_tabular", "without_unnamed_index"]

PLAIN_TYPES = (bool, int, float, complex, str, bytes, Decimal, dt.date, dt.timedelta)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TabularInput:
    """Data that consists of columns.

    Attributes:
        schema: Its Arrow schema; None if the columns are of Python or NumPy.
        batches: Its batches, as columns by name.
        shared: Whether its arrays share memory that the caller may change.
    """

    schema: pa.Schema | None
    batches: Iterable[Mapping[str, Any]]
    shared: bool = False


def read_tabular(data: Any, encoder: TableEncoder | None, *, index: bool | None = None) -> TabularInput | None:
    """Return Arrow or pandas data as columns, without an unnamed pandas index; None for other data."""
    if _is_data_frame(data):
        return _read_data_frame(data, encoder, index=index)
    if isinstance(data, pa.RecordBatch | pa.Table):
        data = data.to_reader() if isinstance(data, pa.Table) else pa.RecordBatchReader.from_batches(data.schema, [data])
    if not isinstance(data, pa.RecordBatchReader) and hasattr(data, "__arrow_c_stream__"):
        name = type(data).__name__
        try:
            data = pa.RecordBatchReader.from_stream(data)
        except pa.ArrowInvalid as error:
            if "non-struct" not in str(error):
                msg = f"Arrow cannot read the {name}: {error}; expected Arrow types. Convert the column, or leave it out."
                raise DataError(msg) from error
            raise ArgumentError(
                f"write() got {name}, a single column without a table around it; expected columns with names. Give a "
                "mapping of names to columns; a pandas Series as series.to_frame('name')."
            ) from error
    if isinstance(data, pa.RecordBatchReader):
        schema = without_unnamed_index(data.schema)
        return TabularInput(schema=schema, batches=(_columns_by_name(batch, schema.names) for batch in data))
    return None


def is_tabular(data: Any) -> bool:
    """Return whether data consists of columns, or is a single one."""
    return _is_data_frame(data) or isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_stream__")


def _is_data_frame(data: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def without_unnamed_index(schema: pa.Schema) -> pa.Schema:
    """Return an Arrow schema without the columns that pyarrow made of a pandas index without a name.

    Example:
        >>> without_unnamed_index(pa.schema({"__index_level_0__": pa.int64()})).names  # without metadata it is a column
        ['__index_level_0__']
    """
    try:
        metadata = json.loads((schema.metadata or {})[b"pandas"])
        levels = {name for name in metadata["index_columns"] if isinstance(name, str)}
        named = {column["field_name"] for column in metadata["columns"] if column["name"] is not None}
    except (KeyError, TypeError, ValueError):  # no metadata of pandas, or none of an index
        return schema
    unnamed = levels - named
    if not unnamed & set(schema.names):
        return schema
    metadata["index_columns"] = [name for name in metadata["index_columns"] if name not in unnamed]
    metadata["columns"] = [column for column in metadata["columns"] if column["field_name"] not in unnamed]
    fields = [field for field in schema if field.name not in unnamed]
    return pa.schema(fields, metadata={**schema.metadata, b"pandas": json.dumps(metadata).encode()})


def _check_names(names: Iterable[str], what: str) -> None:
    if twice := ", ".join(sorted(name for name, count in Counter(names).items() if count > 1)):
        raise DataError(f"The {what} has more than one column called {twice}; expected different names. Rename all but one.")


def _columns_by_name(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, Any]:
    _check_names(batch.schema.names, "Arrow table")
    return {name: batch.column(name) for name in names}


def _read_data_frame(frame: Any, encoder: TableEncoder | None, *, index: bool | None) -> TabularInput:
    """Return a data frame, with the named levels of its index if they are to be stored."""
    names = [_arrow_name(name) for name in frame.columns]
    columns = {} if encoder is None else {column.field.name: column for column in encoder.columns}
    levels = _stored_levels(frame.index, {name for name in columns if name not in names}, names, index_option=index)
    _check_names([*levels, *names], "data frame")
    if encoder is None:
        if any(name is not None and not isinstance(name, str) for name in frame.index.names):  # pyarrow warns about them
            frame = frame.rename_axis([name if name is None else _arrow_name(name) for name in frame.index.names])
        try:
            table = _with_nested_nan(pa.Table.from_pandas(frame, preserve_index=bool(levels)), frame)
        except (pa.ArrowException, ValueError, TypeError) as error:
            why = str(error).rstrip(".")
            msg = f"Arrow cannot convert the data frame: {why}. Give a schema: penstock.write(url, schema, frame)."
            raise DataError(msg) from error
        batches = (_columns_by_name(batch, batch.schema.names) for batch in table.to_batches())
        return TabularInput(schema=table.schema, batches=batches, shared=True)
    series = {name: frame.index.get_level_values(at) for name, at in levels.items()}
    series |= {name: frame.iloc[:, at] for at, name in enumerate(names)}
    batch = {name: _convert_series(each, columns.get(name)) for name, each in series.items()}
    return TabularInput(schema=None, batches=[batch], shared=True)


def _with_nested_nan(table: pa.Table, frame: Any) -> pa.Table:
    """Return the Arrow table of a data frame with NaN inside lists and structs, which pyarrow makes null."""
    for at in range(frame.shape[1]):
        field, series = table.schema.field(at), frame.iloc[:, at]
        if pa.types.is_nested(field.type) and series.dtype == object:
            cells = _nan_to_none(series)
            cells = [None if type(cell).__name__ in ("NAType", "NaTType") else cell for cell in cells]
            table = table.set_column(at, field, pa.array(cells, field.type, from_pandas=False))
    return table


def _stored_levels(index: Any, wanted: set[str], columns: Sequence[str], *, index_option: bool | None) -> dict[str, int]:
    """Return the positions of the index levels to store by name; by default those that the table wants."""
    named = {_arrow_name(name): at for at, name in enumerate(index.names) if name is not None}
    if index_option is False:
        return {}
    if index_option is None:
        if undecided := [name for name in named if name not in wanted]:
            advice = "Write index=True to store it as a column, or index=False to drop it"
            if taken := [name for name in undecided if name in columns]:
                advice = f"A column is called {taken[0]!r} too: write index=False to drop the index, or rename one of the two"
            more = ", or choose levels with frame.reset_index()" if len(index.names) > 1 else ""
            raise ArgumentError(
                f"write() got a data frame with the index {', '.join(map(repr, undecided))}; expected the argument index, "
                f"which says whether to store it. {advice}{more}."
            )
    elif len(named) < len(index.names):
        example = '"id"' if len(index.names) == 1 else str([f"level_{at}" for at in range(len(index.names))])
        raise ArgumentError(
            f"write() got index=True; expected an index whose levels have names, and its names are {list(index.names)!r}. "
            f"Name it, frame.rename_axis({example}), or leave index out: an index without a name is not stored."
        )
    return named


def _arrow_name(name: Any) -> str:
    """Return the Arrow name of a data frame's column, whose own name may be a number or a tuple."""
    return str(tuple(map(_arrow_name, name))) if isinstance(name, tuple) else str(name)


def _convert_series(series: Any, column: ColumnEncoder | None) -> Any:
    """Return a column of a data frame as an Arrow array, or as a list or array of cells."""
    if column is None:
        return series
    if column.field.shape or column.is_blob:
        cells = series.to_numpy(dtype=object)
        first = next((cell for cell in cells if cell is not None), None)
        if not isinstance(first, (bytes, list)):
            return _nan_to_none(cells)
    if column.field.dtype.kind == "f" and not column.field.nullable and np.dtype("f8") == series.dtype:
        return pa.array(series.to_numpy())  # NaN is a number in a column without nulls
    # Arrow drops and rounds values inside lists, structs and maps, unless there is nothing to convert.
    nested = column.codec is None and is_compound(column.arrow.type)
    try:
        array = pa.Array.from_pandas(series, type=column.arrow.type if column.codec is None and not nested else None)
    except (pa.ArrowException, ValueError, TypeError):
        array = None
    if nested and np.dtype(object) == series.dtype and (array is None or array.type != column.arrow.type):
        return _nan_to_none(series.to_numpy(dtype=object))
    if array is None or (array.null_count and not column.field.nullable):
        return series.to_numpy(dtype=object)  # checked cell by cell, so that the error names the row and the value
    return array


def _nan_to_none(cells: Iterable[Any]) -> list[Any]:
    """Return cells that are not numbers with None for NaN, which pandas has for missing values."""
    return [None if isinstance(cell, float) and np.isnan(cell) else cell for cell in cells]


def is_batch(
    item: Mapping[str, Any],
    encoder: TableEncoder | None,
    number: int,
    *,
    alone: bool = False,
    before: bool | None = None,
    has_schema: bool = True,
) -> bool:
    """Return whether a mapping is a batch, and not a row.

    It is a batch if every value is a list, or an array with one dimension more than a cell of its field. It is a row if one
    value is a single one, or all are null. Without a schema, lists and arrays are a batch if the mapping is all that is
    written; in an iterable lists are cells, and arrays could be, until the columns are known.

    `alone` says that it is all that is written, `before` whether the previous mapping was a batch, which decides if nothing
    else does, and `has_schema` that the user gave a schema. Raises `DataError` if it could be both, or is neither.
    """
    present = [value for value in item.values() if value is not None]
    if item and not (present and all(map(is_column, present))):
        return False
    kinds = {name: _classify(value, encoder, name) for name, value in item.items()}
    decided = set(kinds.values()) - {"either"}
    if not has_schema and not alone and item:
        lists = [value for value in present if isinstance(value, list | tuple | range)]
        lists_only = len(lists) == len(present)
        if encoder is None and (lists_only or len({len(value) for value in present}) > 1):
            return False
        if encoder is not None and lists_only and not any(map(len, lists)):  # as a batch, it could lose a row of empty lists
            return before is True
    if decided == {"batch"} or (alone and not decided):
        return True
    if decided == {"row"} or (encoder is not None and not item):
        return False
    if encoder is not None and not decided and (before is not None or not has_schema):
        return before is True
    rows = ", ".join(repr(name) for name, kind in kinds.items() if kind != "batch")
    batches = ", ".join(repr(name) for name, kind in kinds.items() if kind != "row")
    why = f"{rows} could be cells, {batches} could be columns" if kinds else "it is empty"
    more = ", or give a schema" if encoder is None else ""
    raise DataError(
        f"Row {number}: a mapping could be a row or a batch: {why}; expected only cells, or only columns. "
        f"Write it with table.append(row) or table.extend(batch){more}."
    )


def _classify(value: Any, encoder: TableEncoder | None, name: str) -> str:
    """Return whether a null, a list or an array in a mapping belongs to a "row", a "batch" or "either"."""
    if value is None:
        return "either"
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return "batch"
    column = None if encoder is None else next((each for each in encoder.columns if each.field.name == name), None)
    if hasattr(value, "__array__") and hasattr(value, "shape"):  # NumPy, or a library with arrays like its
        dimensions = len(value.shape)
        if column is None or (column.codec is None and dimensions == 1):
            return "either"
        ragged = getattr(value.dtype, "kind", "") == "O" and column.field.dtype.kind != "O"
        return "batch" if ragged or dimensions > len(column.field.shape) else "row"
    if column is None or column.field.dtype.kind != "O" or pa.types.is_decimal(column.arrow.type):
        return "batch"
    return _classify_list(value, column.arrow.type) if column.codec is None else "either"


def _classify_list(value: Any, kind: pa.DataType) -> str:
    """Classify a list for a column of lists or structs: a batch is nested one level deeper than a cell."""
    depth = 0
    while isinstance(kind, pa.DataType) and (is_ragged(kind) or pa.types.is_fixed_size_list(kind)):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_map(kind) or isinstance(kind, pa.BaseExtensionType):
        return "either"
    value_depth, has_leaf = _depth(value)
    if value_depth > depth:
        return "batch" if value_depth == depth + 1 else "either"
    return "row" if has_leaf and value_depth == depth else "either"


def _depth(value: Any) -> tuple[int, bool]:
    """Return the depth of nested lists, and whether there is a value inside, so that the depth is certain."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return value.ndim, bool(value.size)
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, (str, bytes, bytearray)):
        return 0, value is not None
    inner = [_depth(each) for each in value]
    return 1 + max((depth for depth, _ in inner), default=0), any(has_leaf for _, has_leaf in inner)


def is_column(value: Any) -> bool:
    """Return whether a value holds several cells: a list, an array, a series."""
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping, np.generic)):
        return False
    if isinstance(value, (Sequence, pa.Array, pa.ChunkedArray)):
        return True
    return hasattr(value, "__array__") and hasattr(value, "__len__") and len(getattr(value, "shape", (1,))) > 0


def as_columns(batch: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the columns of a batch as lists or arrays, or raise `DataError` if a value is not a column."""
    columns = {}
    for name, cells in batch.items():
        if cells is not None and not is_column(cells):
            raise DataError(
                f"The batch that begins with row {number} has {describe(cells)} as column {name!r}; expected a list or an "
                "array of cells. Give one; a single row goes to table.append(row)."
            )
        is_known = cells is None or isinstance(cells, (np.ndarray, Sequence, pa.Array, pa.ChunkedArray))
        columns[name] = cells if is_known else np.asarray(cells)
    return columns


def infer_schema(item: Mapping[str, Any], *, batch: bool, nullable: bool = False) -> Schema:
    """Return the schema of a row or a batch; fields with a null are nullable, or all of them."""
    return Schema("", [_infer_field(name, cells if batch else [cells], nullable) for name, cells in item.items()])


def _infer_field(name: str, cells: Any, nullable: bool) -> Field:  # noqa: FBT001 - a value that is passed on
    if isinstance(cells, np.ndarray) and cells.dtype.kind != "O":
        has_null = cells.dtype.kind in "mM" and cells.ndim == 1 and bool(np.isnat(cells).any())
        return Field(name, _open_dtype(cells.dtype), cells.shape[1:], nullable=nullable or has_null)
    present = [] if cells is None else [cell for cell in cells if cell is not None]
    if not present:
        msg = f"Field {name!r} has no value in the first row or batch, which would tell its type. Give a schema: "
        raise ArgumentError(msg + "penstock.write(url, schema).")
    nullable = nullable or len(present) < len(cells)
    shapes = [cell.shape for cell in present if isinstance(cell, np.ndarray)]
    if len({len(shape) for shape in shapes}) == 1:
        shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]
        return Field(name, _open_dtype(present[0].dtype), shape, nullable=nullable)
    cell = present[0]
    if isinstance(cell, np.generic):
        return Field(name, _open_dtype(cell.dtype), nullable=nullable)
    if isinstance(cell, dt.datetime):
        codec = Scalar("timestamp[us, tz=UTC]") if cell.tzinfo is not None else None
        return Field(name, dt.datetime, (), codec, nullable=nullable)
    kind = next((kind for kind in PLAIN_TYPES if isinstance(cell, kind)), None)
    if kind is not None:
        return Field(name, kind if kind in PYTHON_TYPES else np.dtype(kind), nullable=nullable)
    msg = f"Field {name!r} is {describe(cell)} in the first row or batch, for which no type follows. Give a schema: "
    if isinstance(cell, (list, tuple, set, Mapping, dt.time, UUID)):
        raise ArgumentError(f"{msg}Arrow's has lists, structs and others, penstock.write(url, pyarrow.schema(...), data).")
    raise ArgumentError(msg + "penstock.write(url, schema).")


def _open_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype for later rows too: text and bytes of any length, and times in single units."""
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)[0]
        return dtype if unit == "generic" else np.dtype(f"{dtype.kind}8[{unit}]")
    return np.dtype(dtype.kind) if dtype.kind in "US" else dtype
