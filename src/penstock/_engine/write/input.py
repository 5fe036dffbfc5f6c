"""What was given to be written: Arrow, pandas, a batch or a row, told apart; and the schema that follows from it."""

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
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.write.encode import ColumnEncoder, TableEncoder
from penstock._engine.write.validate import told
from penstock.codecs.scalar import Scalar
from penstock.dtypes import is_compound, is_ragged
from penstock.errors import ArgumentError, DataError
from penstock.schema import PYTHON_TYPES, Field, Schema

__all__ = ["Tabular", "infer", "is_batch", "is_tabular", "tabular", "without_unnamed_index"]

PLAIN_TYPES = (bool, int, float, complex, str, bytes, Decimal, dt.date, dt.timedelta)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tabular:
    """Something that is columns already.

    Attributes:
        schema: Its columns in Arrow; None where they are Python's and NumPy's.
        batches: Its rows, some at a time, by column.
        lent: Whether its arrays are views of memory that the caller may change.
    """

    schema: pa.Schema | None
    batches: Iterable[Mapping[str, Any]]
    lent: bool = False


def tabular(data: Any, columns: TableEncoder | None, *, index: bool | None = None) -> Tabular | None:
    """Return Arrow or pandas data as columns, without an unnamed index of pandas; None for anything else.

    Args:
        data: What may be tabular.
        columns: The columns of the table, where they are known.
        index: Whether the named index of a data frame is stored; None where the user did not say.

    Raises:
        ArgumentError: If it is a single column, or a data frame whose index needs a decision.
        DataError: If Arrow cannot make anything of a data frame.
    """
    if _is_frame(data):
        return _frame(data, columns, index=index)
    if isinstance(data, pa.RecordBatch | pa.Table):
        data = data.to_reader() if isinstance(data, pa.Table) else pa.RecordBatchReader.from_batches(data.schema, [data])
    if not isinstance(data, pa.RecordBatchReader) and hasattr(data, "__arrow_c_stream__"):
        try:
            data = pa.RecordBatchReader.from_stream(data)
        except pa.ArrowInvalid as error:
            if "non-struct" not in str(error):
                msg = f"Arrow takes nothing from the {type(data).__name__}: {error}. Types of Arrow were expected. Convert the "
                raise DataError(f"{msg}column, or leave it out.") from error
            msg = (
                f"write got {type(data).__name__}, which is a single column without a table around it. Columns with names were "
                "expected. Give a mapping of names to columns; a pandas Series as series.to_frame('name')."
            )
            raise ArgumentError(msg) from error
    if isinstance(data, pa.RecordBatchReader):
        schema = without_unnamed_index(data.schema)
        return Tabular(schema=schema, batches=(_columns_of(batch, schema.names) for batch in data))
    return None


def is_tabular(data: Any) -> bool:
    """Return whether something is columns already, or a single one.

    Example:
        >>> is_tabular(pa.table({"a": [1]})), is_tabular({"a": [1]})
        (True, False)
    """
    return _is_frame(data) or isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_stream__")


def _is_frame(data: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def without_unnamed_index(schema: pa.Schema) -> pa.Schema:
    """Return an Arrow schema without the columns that pyarrow made of an index of pandas which has no name.

    Example:
        >>> without_unnamed_index(pa.schema({"__index_level_0__": pa.int64()})).names  # without metadata it is a column
        ['__index_level_0__']
    """
    try:
        told_by_pandas = json.loads((schema.metadata or {})[b"pandas"])
        levels = {name for name in told_by_pandas["index_columns"] if isinstance(name, str)}
        named = {each["field_name"] for each in told_by_pandas["columns"] if each["name"] is not None}
    except (KeyError, TypeError, ValueError):  # which pandas did not write, or which says nothing of an index
        return schema
    unnamed = levels - named
    if not unnamed & set(schema.names):
        return schema
    told_by_pandas["index_columns"] = [name for name in told_by_pandas["index_columns"] if name not in unnamed]
    told_by_pandas["columns"] = [each for each in told_by_pandas["columns"] if each["field_name"] not in unnamed]
    metadata = {**schema.metadata, b"pandas": json.dumps(told_by_pandas).encode()}
    return pa.schema([field for field in schema if field.name not in unnamed], metadata=metadata)


def _columns_of(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, Any]:
    """Return some columns of a batch by name."""
    twice = sorted(name for name, count in Counter(batch.schema.names).items() if count > 1)
    if twice:
        msg = f"The Arrow table has more than one column called {', '.join(twice)}. Names must differ. Rename all but one."
        raise DataError(msg)
    return {name: batch.column(name) for name in names}


def _frame(frame: Any, columns: TableEncoder | None, *, index: bool | None) -> Tabular:
    """Return a data frame, with its index where that has a name and is to be stored."""
    names = [_arrow_name(name) for name in frame.columns]
    known = {} if columns is None else {column.field.name: column for column in columns.columns}
    levels = _levels(frame.index, {name for name in known if name not in names}, names, asked=index)
    every = [*levels, *names]
    if twice := ", ".join(sorted({name for name in every if every.count(name) > 1})):
        raise DataError(f"The data frame has more than one column called {twice}. Names must differ. Rename all but one.")
    if columns is None:
        if any(name is not None and not isinstance(name, str) for name in frame.index.names):  # which pyarrow warns about
            frame = frame.rename_axis([name if name is None else _arrow_name(name) for name in frame.index.names])
        try:
            found = _nan_kept(pa.Table.from_pandas(frame, preserve_index=bool(levels)), frame)
        except (pa.ArrowException, ValueError, TypeError) as error:
            why = str(error).rstrip(".")
            msg = f"Arrow makes nothing of the data frame: {why}. Give a schema: penstock.write(url, schema, frame)."
            raise DataError(msg) from error
        return Tabular(
            schema=found.schema, batches=(_columns_of(one, one.schema.names) for one in found.to_batches()), lent=True
        )
    given = {name: frame.index.get_level_values(at) for name, at in levels.items()}
    given |= {name: frame.iloc[:, at] for at, name in enumerate(names)}
    return Tabular(schema=None, batches=[{name: _series(series, known.get(name)) for name, series in given.items()}], lent=True)


def _nan_kept(found: pa.Table, frame: Any) -> pa.Table:
    """Return what Arrow made of a data frame with NaN inside of lists and structs as it was; Arrow makes nulls of it."""
    for at in range(frame.shape[1]):
        kind, series = found.schema.field(at).type, frame.iloc[:, at]
        if pa.types.is_nested(kind) and series.dtype == object:
            cells = [None if missing else cell for cell, missing in zip(series, map(_is_null, series), strict=True)]
            found = found.set_column(at, found.schema.field(at), pa.array(cells, kind, from_pandas=False))
    return found


def _is_null(cell: Any) -> bool:
    """Return whether pandas takes a cell for a null."""
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)  # noqa: PLR0124 - NaN


def _levels(index: Any, wanted: set[str], columns: Sequence[str], *, asked: bool | None) -> dict[str, int]:
    """Return the levels of an index that are stored, by name: those that were asked for, or that the table has a column for.

    Raises:
        ArgumentError: If index=True and a level has no name, or if a level has a name and index is not given.
    """
    named = {_arrow_name(name): at for at, name in enumerate(index.names) if name is not None}
    if asked is False:
        return {}
    if asked is None:
        if unsaid := [name for name in named if name not in wanted]:
            found = ", ".join(map(repr, unsaid))
            msg = f"write() got a data frame with the index {found}; expected to be told whether to store it. "
            advice = "Write index=True to store it as a column, or index=False to drop it"
            if taken := [name for name in unsaid if name in columns]:
                advice = f"A column is called {taken[0]!r} too: write index=False to drop the index, or rename one of the two"
            raise ArgumentError(f"{msg}{advice}{', or choose levels with frame.reset_index()' * (len(index.names) > 1)}.")
        return named
    if len(named) < len(index.names):
        example = '"id"' if len(index.names) == 1 else str([f"level_{at}" for at in range(len(index.names))])
        msg = f"write() got index=True; expected an index whose levels have names, and its names are {list(index.names)!r}. "
        raise ArgumentError(
            f"{msg}Name it, frame.rename_axis({example}), or leave index out: an index without a name is not stored."
        )
    return named


def _arrow_name(name: Any) -> str:
    """Return what Arrow calls a column of a data frame, whose names may be numbers, or several of them."""
    return str(tuple(map(_arrow_name, name))) if isinstance(name, tuple) else str(name)


def _series(series: Any, column: ColumnEncoder | None) -> Any:
    """Return a column of a data frame: as Arrow, or as cells where those are arrays."""
    if column is None:
        return series
    if column.field.shape or column.is_blob:
        cells = series.to_numpy(dtype=object)
        first = next((cell for cell in cells if cell is not None), None)
        if not isinstance(first, (bytes, list)):
            return _without_nan(cells)
    if column.field.dtype.kind == "f" and not column.field.nullable and np.dtype("f8") == series.dtype:
        return pa.array(series.to_numpy())  # where there are no nulls, NaN is a number
    # Inside of lists, structs and maps Arrow drops and rounds in silence, unless there is nothing to convert.
    nested = column.codec is None and is_compound(column.arrow.type)
    try:
        found = pa.Array.from_pandas(series, type=column.arrow.type if column.codec is None and not nested else None)
    except (pa.ArrowException, ValueError, TypeError):
        found = None
    if nested and np.dtype(object) == series.dtype and (found is None or found.type != column.arrow.type):
        return _without_nan(series.to_numpy(dtype=object))
    if found is None or (found.null_count and not column.field.nullable):
        return series.to_numpy(dtype=object)  # checked cell by cell, so that the row and what it holds is told
    return found


def _without_nan(cells: npt.NDArray[Any]) -> list[Any]:
    """Return cells of a data frame that are no numbers, of which pandas has NaN where one is missing."""
    return [None if isinstance(cell, float) and np.isnan(cell) else cell for cell in cells]


def is_batch(
    item: Mapping[str, Any],
    columns: TableEncoder | None,
    number: int,
    *,
    alone: bool = False,
    before: bool | None = None,
    stated: bool = True,
) -> bool:
    """Return whether a mapping is a batch, and not a row.

    It is a batch if every value is a list, or an array of one dimension more than a cell of its field has. It is a row if
    one is a single value, which is no column, or all are null. Without a schema a batch is one of lists and arrays, if it
    is all that is written; among others lists are cells, and arrays could be, until the columns are known.

    Args:
        item: The mapping.
        columns: The columns of the table, where they are known.
        number: The number of its first row, for messages.
        alone: Whether it is all that is written.
        before: Whether the mapping before it was a batch, which decides where nothing else does; None for the first.
        stated: Whether the user gave a schema.

    Raises:
        DataError: If it could be both, or is neither.
    """
    present = [value for value in item.values() if value is not None]
    if item and not (present and all(map(is_column, present))):
        return False
    kinds = {name: _kind(value, columns, name) for name, value in item.items()}
    found = set(kinds.values()) - {"either"}
    if not stated and not alone and item:
        lists = [value for value in present if isinstance(value, list | tuple | range)]
        only = len(lists) == len(present)
        if columns is None and (only or len({len(value) for value in present}) > 1):
            return False
        if columns is not None and only and not any(map(len, lists)):  # a batch without rows would lose what could be a row
            return before is True
    if found == {"batch"} or (alone and not found):
        return True
    if found == {"row"} or (columns is not None and not item):
        return False
    if columns is not None and not found and (before is not None or not stated):
        return before is True
    rows = ", ".join(repr(name) for name, kind in kinds.items() if kind != "batch")
    batches = ", ".join(repr(name) for name, kind in kinds.items() if kind != "row")
    why = f"{rows} could be cells, {batches} could be columns" if kinds else "it is empty"
    msg = f"Row {number}: a mapping could be a row or a batch: {why}. Only cells, or only columns of them, were expected. "
    advice = "Say what it is with table.append(row) or table.extend(batch)"
    raise DataError(f"{msg}{advice}{', or give a schema' if columns is None else ''}.")


def _kind(value: Any, columns: TableEncoder | None, name: str) -> str:
    """Return what a null, a list or an array in a mapping can be."""
    if value is None:
        return "either"
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return "batch"
    column = None if columns is None else next((each for each in columns.columns if each.field.name == name), None)
    if hasattr(value, "__array__") and hasattr(value, "shape"):  # of NumPy, or of others who have such
        deep = len(value.shape)
        if column is None or (column.codec is None and deep == 1):
            return "either"
        ragged = getattr(value.dtype, "kind", "") == "O" and column.field.dtype.kind != "O"
        return "batch" if ragged or deep > len(column.field.shape) else "row"
    if column is None or column.field.dtype.kind != "O" or _decimal(column):
        return "batch"
    return _kind_of_list(value, column.arrow.type) if column.codec is None else "either"


def _kind_of_list(value: Any, kind: pa.DataType) -> str:
    """Return what a list can be, for a column of lists or structs: the deeper it is nested, the more are its cells."""
    deep = 0
    while isinstance(kind, pa.DataType) and (is_ragged(kind) or pa.types.is_fixed_size_list(kind)):
        kind, deep = kind.value_type, deep + 1
    if pa.types.is_map(kind) or isinstance(kind, pa.BaseExtensionType):
        return "either"
    found, ends = _depth(value)
    if found > deep:
        return "batch" if found == deep + 1 else "either"
    return "row" if ends and found == deep else "either"


def _depth(value: Any) -> tuple[int, bool]:
    """Return how deep lists are nested, and whether there is a value inside, so that they cannot be deeper."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return value.ndim, bool(value.size)
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, (str, bytes, bytearray)):
        return 0, value is not None
    inner = [_depth(each) for each in value]
    return 1 + max((deep for deep, _ in inner), default=0), any(ends for _, ends in inner)


def _decimal(column: ColumnEncoder) -> bool:
    return bool(pa.types.is_decimal(column.arrow.type))


def is_column(value: Any) -> bool:
    """Return whether a value holds several cells: a list, an array, a series."""
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping, np.generic)):
        return False
    if isinstance(value, (Sequence, pa.Array, pa.ChunkedArray)):
        return True
    return hasattr(value, "__array__") and hasattr(value, "__len__") and len(getattr(value, "shape", (1,))) > 0


def as_columns(batch: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the columns of a batch, whatever they came in.

    Raises:
        DataError: If one is none.
    """
    found = {}
    for name, cells in batch.items():
        if cells is not None and not is_column(cells):
            msg = f"The batch that begins with row {number} has {told(cells)} as column {name!r}. A list or an array of cells "
            raise DataError(msg + "was expected. Give one; a single row goes to table.append(row).")
        known = cells is None or isinstance(cells, (np.ndarray, Sequence, pa.Array, pa.ChunkedArray))
        found[name] = cells if known else np.asarray(cells)
    return found


def infer(item: Mapping[str, Any], *, batch: bool, nullable: bool = False) -> Schema:
    """Return the schema that follows from a row or a batch.

    Args:
        item: The row or batch.
        batch: Whether it is a batch.
        nullable: Whether all fields may be null, and not only those that have a null.

    Raises:
        ArgumentError: If none does.

    Example:
        >>> infer({"id": 1, "x": np.zeros(3, np.float32)}, batch=False).names
        ('id', 'x')
    """
    fields = [_inferred(name, cells if batch else [cells]) for name, cells in item.items()]
    return Schema(
        "", [Field(each.name, each.dtype, each.shape, each.codec, nullable=nullable or each.nullable) for each in fields]
    )


def _inferred(name: str, cells: Any) -> Field:
    """Return the field of a column's cells."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind != "O":
        missing = cells.dtype.kind in "mM" and cells.ndim == 1 and bool(np.isnat(cells).any())
        return Field(name, _open_ended(cells.dtype), cells.shape[1:], nullable=missing)
    present = [] if cells is None else [cell for cell in cells if cell is not None]
    if not present:
        msg = f"Field {name!r} has no value in the first row or batch, so that its type does not follow. Give a schema: "
        raise ArgumentError(msg + "penstock.write(url, schema).")
    nullable = len(present) < len(cells)
    shapes = [cell.shape for cell in present if isinstance(cell, np.ndarray)]
    if shapes:
        deep = {len(shape) for shape in shapes}
        if len(deep) == 1:
            shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]
            return Field(name, _open_ended(present[0].dtype), shape, nullable=nullable)
    return _plain(name, present[0], nullable=nullable)


def _plain(name: str, cell: Any, *, nullable: bool) -> Field:
    """Return the field of a single value."""
    if isinstance(cell, np.generic):
        return Field(name, _open_ended(cell.dtype), nullable=nullable)
    for kind in PLAIN_TYPES:
        if isinstance(cell, kind):
            if isinstance(cell, dt.datetime):
                codec = Scalar("timestamp[us, tz=UTC]") if cell.tzinfo is not None else None
                return Field(name, dt.datetime, (), codec, nullable=nullable)
            return Field(name, kind if kind in PYTHON_TYPES else np.dtype(kind), nullable=nullable)
    msg = f"Field {name!r} is {told(cell)} in the first row or batch, for which no type follows. Give a schema: "
    if isinstance(cell, (list, tuple, set, Mapping, dt.time, UUID)):
        raise ArgumentError(f"{msg}Arrow's has lists, structs and others, penstock.write(url, pyarrow.schema(...), data).")
    raise ArgumentError(msg + "penstock.write(url, schema).")


def _open_ended(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype; text and bytes of any length, for later rows may be longer, and times in single units."""
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)[0]
        return dtype if unit == "generic" else np.dtype(f"{dtype.kind}8[{unit}]")
    return np.dtype(dtype.kind) if dtype.kind in "US" else dtype
