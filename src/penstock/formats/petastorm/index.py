"""The stored numbers of row groups of Petastorm, and its indexes of row groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from penstock._engine.parquet.thrift import CHUNKS, GROUPS, ROWS, Only, ThriftError, Wanted, parse
from penstock.errors import DataError
from penstock.formats.petastorm.pickle.io import Global, Instance, PickleProblem, interpret, kind_of

__all__ = ["NotNullIndex", "RowGroupIndex", "ValueIndex", "load_indexes", "load_row_groups", "summary_rows"]

VALUES, NOT_NULL = (Global("petastorm.etl.rowgroup_indexers", name) for name in ("SingleFieldIndexer", "FieldNotNullIndexer"))
MAX_JSON_BYTES = 64 << 20
MAX_OPCODES = 2_000_000
"""An index has ten to twenty opcodes for each value."""

FILE_PATH = 1
"""The Thrift field of a column chunk with the path of its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueIndex:
    """The row groups that contain each value of a column, or of the arrays in it.

    Attributes:
        name: The name of the index.
        column: The column.
        row_groups: The numbers of the row groups of each value, counted over the files in the order of their paths.
    """

    name: str
    column: str
    row_groups: Mapping[Any, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNullIndex:
    """The row groups in which a column is not always null.

    Attributes:
        name: The name of the index.
        column: The column.
        row_groups: The numbers of the row groups, counted over the files in the order of their paths.
    """

    name: str
    column: str
    row_groups: frozenset[int]


RowGroupIndex: TypeAlias = ValueIndex | NotNullIndex


def load_indexes(data: bytes) -> dict[str, RowGroupIndex]:
    """Return the indexes of a pickle by name, without executing it.

    Raises:
        PickleProblem: If it holds no indexes, or one of a class that is not of Petastorm.
    """
    value = interpret(data, MAX_OPCODES)
    if not isinstance(value, dict) or not all(type(name) is str for name in value):
        raise PickleProblem(f"it holds {kind_of(value)}, and indexes by name were expected")
    return {name: _index(name, instance) for name, instance in value.items()}


def _index(name: str, instance: Any) -> RowGroupIndex:
    state = instance.state if isinstance(instance, Instance) and instance.kind in (VALUES, NOT_NULL) else None
    if not isinstance(state, dict):
        raise PickleProblem(f"its index {name[:100]!r} is {kind_of(instance)}, and a {VALUES} or a {NOT_NULL} was expected")
    index_name, column, stored = state.get("_index_name"), state.get("_column_name"), state.get("_index_data")
    if type(index_name) is not str or type(column) is not str:
        raise PickleProblem(f"its index {name[:100]!r} has no name of its column")
    if instance.kind == NOT_NULL:
        return NotNullIndex(name=index_name, column=column, row_groups=_row_group_numbers(name, stored))
    if not isinstance(stored, dict):
        raise PickleProblem(f"its index {name[:100]!r} holds {kind_of(stored)}, and values were expected")
    converted: dict[int, frozenset[int]] = {}  # values may share a set, which is converted once
    groups = {}
    for value, numbers in stored.items():
        if id(numbers) not in converted:
            converted[id(numbers)] = _row_group_numbers(name, numbers)
        groups[value] = converted[id(numbers)]
    return ValueIndex(name=index_name, column=column, row_groups=groups)


def _row_group_numbers(name: str, stored: Any) -> frozenset[int]:
    if not isinstance(stored, (set, frozenset)):
        raise PickleProblem(f"its index {name[:100]!r} has {kind_of(stored)} for a value, and a set of row groups was expected")
    if not all(isinstance(number, (int, np.integer)) and 0 <= number < 2**31 for number in stored):
        raise PickleProblem(f"its index {name[:100]!r} refers to row groups whose numbers are none")
    return frozenset(int(number) for number in stored)


def load_row_groups(data: bytes) -> dict[str, int]:
    """Return the number of row groups of each file, by its path in the dataset.

    Raises:
        DataError: If the JSON is invalid.

    Example:
        >>> load_row_groups(b'{"split=train/part-0.parquet": 2}')
        {'split=train/part-0.parquet': 2}
    """
    try:
        counts = json.loads(data[: MAX_JSON_BYTES + 1])
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is no JSON: {error}") from error
    if not isinstance(counts, dict) or not all(type(count) is int and 0 <= count < 2**31 for count in counts.values()):
        raise DataError("it is no JSON object of paths and the numbers of their row groups")
    return counts


def summary_rows(footer: bytes) -> dict[str, list[int]]:
    """Return the rows of each row group of each file, from the footer of a summary file (`_metadata`).

    Raises:
        DataError: If it is invalid.
    """
    wanted: Wanted = {ROWS: int, CHUNKS: Only(places={0: {FILE_PATH: bytes}})}
    try:
        groups = parse(footer, {GROUPS: [wanted]}).get(GROUPS, [])
    except ThriftError as error:
        raise DataError(f"it cannot be read: {error}") from error
    rows: dict[str, list[int]] = {}
    for group in groups:
        chunks = group.get(CHUNKS) or [{}]
        if FILE_PATH not in chunks[0] or group.get(ROWS, -1) < 0:
            raise DataError("it does not say in which file a row group lies, or how many rows it has")
        rows.setdefault(chunks[0][FILE_PATH].decode("utf-8", "surrogateescape"), []).append(group[ROWS])
    return rows
