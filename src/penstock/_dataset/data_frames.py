"""Arrow tables as pandas data frames with exactly the same values and nulls."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock._engine.lookup import access
from penstock._engine.plan.table import Table
from penstock._engine.query.query import Query
from penstock.errors import MissingExtraError

__all__ = ["frame_of", "to_pandas"]

Parent: TypeAlias = Literal["column", "list", "struct"]
"""The parent of some values: a column, its lists, or its structs and maps."""

UNCONVERTIBLE = (ValueError, OverflowError, NotImplementedError)
"""Raised by pyarrow if Python has no such value: a date in the year 20,000, a list of UUIDs, a repeated category."""

NOT_A_TIME = -(2**63)
"""The number that means a missing time to NumPy, and a valid time to Arrow."""


def to_pandas(table: Table, query: Query) -> Any:
    """Return all rows in stored order as a pandas data frame with the same values.

    Raises:
        ArgumentError: If the dataset has clauses that a data frame cannot represent.
        MissingExtraError: If pandas is not installed.
    """
    rows = access.to_arrow(table, query, call="to_pandas")
    try:
        return frame_of(rows)
    except ModuleNotFoundError as error:
        msg = "to_pandas needs pandas, which is not installed. Install it: pip install pandas."
        raise MissingExtraError(msg) from error


def frame_of(table: pa.Table) -> Any:
    """Return a data frame with the values of a table.

    A column has the dtype that pyarrow chooses, unless a value would change or a null would become another value. Then
    integers and booleans get pandas' nullable dtypes, and other columns `pandas.ArrowDtype`.

    Raises:
        ModuleNotFoundError: If pandas is not installed.
    """
    import pandas as pd

    exact = {name: dtype for name in table.column_names if (dtype := _exact(table[name])) is not None}
    plain = [name for name in table.column_names if name not in exact]
    try:
        frame = table.select(plain).to_pandas()
    except UNCONVERTIBLE:
        exact |= {name: pd.ArrowDtype(table[name].type) for name in plain if not _is_convertible(table[name])}
        frame = table.select([name for name in plain if name not in exact]).to_pandas()
    if not exact:
        return frame
    others = {name: table.select([name]).to_pandas(types_mapper=lambda _, it=dtype: it)[name] for name, dtype in exact.items()}
    return pd.DataFrame({name: others[name] if name in exact else frame[name] for name in table.column_names}, copy=False)


def _is_convertible(column: pa.ChunkedArray) -> bool:
    """Return whether pyarrow can convert a column."""
    try:
        column.to_pandas()
    except UNCONVERTIBLE:
        return False
    return True


def _exact(column: pa.ChunkedArray) -> Any:
    """Return the dtype for a column whose values the choice of pyarrow would change; None for other columns."""
    import pandas as pd

    kind = column.type
    if pa.types.is_boolean(kind) and column.null_count:
        return pd.BooleanDtype()
    if not any(_changes(chunk, "column") for chunk in column.chunks) and not _mixes_nan(column):
        return None
    if pa.types.is_integer(kind):
        return pd.api.types.pandas_dtype(str(kind).title().replace("Uint", "UInt"))
    return pd.ArrowDtype(kind)


def _mixes_nan(column: pa.ChunkedArray) -> bool:
    """Return whether a column of floats has both nulls and NaN, which are the same in pandas."""
    if not pa.types.is_floating(column.type) or not column.null_count:
        return False
    return bool(pc.any(pc.is_nan(column.cast(pa.float64()))).as_py())


def _changes(array: pa.Array, parent: Parent) -> bool:
    """Return whether pyarrow changes values or nulls of an array when it converts it to pandas."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _changes(array.storage, parent)
    if pa.types.is_dictionary(kind):
        numbers = pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
        return (parent != "column" and numbers and bool(array.null_count)) or _changes(array.dictionary, parent)
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return any(_changes(child, "list" if _is_list(kind) else "struct") for child in _children(array))
    return _leaf_changes(array, kind, parent)


def _is_list(kind: pa.DataType) -> bool:
    return not pa.types.is_struct(kind) and not pa.types.is_map(kind)


def _children(array: pa.Array) -> list[pa.Array]:
    """Return the arrays inside lists, structs, maps or runs; the fields of a null struct are nulls."""
    kind = array.type
    if pa.types.is_struct(kind):
        return list(array.flatten())
    if pa.types.is_map(kind):
        return [array.keys, array.items]
    if pa.types.is_run_end_encoded(kind):
        return [array.values]  # noqa: PD011 - of Arrow
    if pa.types.is_fixed_size_list(kind):  # null cells have values too
        return [array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)]  # noqa: PD011 - of Arrow
    return [array.flatten()]


def _leaf_changes(array: pa.Array, kind: pa.DataType, parent: Parent) -> bool:
    """Return the same for an array without nested values."""
    if pa.types.is_integer(kind):  # they become floats
        return bool(array.null_count)
    if pa.types.is_floating(kind):  # their nulls become NaN, which is the null of a column in pandas
        return parent == "list" and bool(array.null_count)
    if pa.types.is_time64(kind):  # Python's times have no nanoseconds
        return bool(kind.unit == "ns")
    if pa.types.is_date64(kind):  # Python's dates have no time of day
        return not array.equals(array.cast(pa.date32()).cast(pa.date64()))
    if pa.types.is_duration(kind) or pa.types.is_timestamp(kind):
        # In structs they become Python objects or integers; arrays in lists have no time zone.
        numbers = parent == "struct" and (pa.types.is_duration(kind) or kind.unit == "ns")
        zoneless = parent == "list" and pa.types.is_timestamp(kind) and kind.tz is not None
        return numbers or zoneless or bool(pc.any(pc.equal(array.view(pa.int64()), NOT_A_TIME)).as_py())
    return False
