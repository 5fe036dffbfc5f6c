"""What Petastorm stores of row groups: how many each file has, and which of them hold a value."""

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
MOST_JSON_BYTES = 64 << 20
MOST_OPCODES = 2_000_000
"""An index takes ten to twenty of them for each value."""
FILE = 1
"""The number of the field of a column chunk that says in which file it lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueIndex:
    """Which row groups hold each value of a column, or of the arrays in it.

    Attributes:
        name: What the index is called.
        column: The column.
        row_groups: For each value the row groups that hold it, counted from the first of the dataset, files by path.
    """

    name: str
    column: str
    row_groups: Mapping[Any, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNullIndex:
    """Which row groups hold a value of a column at all.

    Attributes:
        name: What the index is called.
        column: The column.
        row_groups: The row groups, counted from the first of the dataset, files by path.
    """

    name: str
    column: str
    row_groups: frozenset[int]


RowGroupIndex: TypeAlias = ValueIndex | NotNullIndex


def load_indexes(data: bytes) -> dict[str, RowGroupIndex]:
    """Return the indexes in a pickle, by name; nothing of it is run.

    Raises:
        PickleProblem: If there are none, or one was made by a class that is not Petastorm's.
    """
    found = interpret(data, MOST_OPCODES)
    if not isinstance(found, dict) or not all(type(name) is str for name in found):
        raise PickleProblem(f"it holds {kind_of(found)}, and indexes by name were expected")
    return {name: _index(name, made) for name, made in found.items()}


def _index(name: str, made: Any) -> RowGroupIndex:
    state = made.state if isinstance(made, Instance) and made.kind in (VALUES, NOT_NULL) else None
    if not isinstance(state, dict):
        raise PickleProblem(f"its index {name[:100]!r} is {kind_of(made)}, and a {VALUES} or a {NOT_NULL} was expected")
    called, column, stored = state.get("_index_name"), state.get("_column_name"), state.get("_index_data")
    if type(called) is not str or type(column) is not str:
        raise PickleProblem(f"its index {name[:100]!r} does not tell its column")
    if made.kind == NOT_NULL:
        return NotNullIndex(name=called, column=column, row_groups=_numbers(name, stored))
    if not isinstance(stored, dict):
        raise PickleProblem(f"its index {name[:100]!r} holds {kind_of(stored)}, and values were expected")
    kept: dict[int, frozenset[int]] = {}  # one set may stand for many values, and is looked at once
    groups = {}
    for value, numbers in stored.items():
        if id(numbers) not in kept:
            kept[id(numbers)] = _numbers(name, numbers)
        groups[value] = kept[id(numbers)]
    return ValueIndex(name=called, column=column, row_groups=groups)


def _numbers(name: str, stored: Any) -> frozenset[int]:
    if not isinstance(stored, (set, frozenset)):
        raise PickleProblem(f"its index {name[:100]!r} has {kind_of(stored)} for a value, and a set of row groups was expected")
    if not all(isinstance(number, (int, np.integer)) and 0 <= number < 2**31 for number in stored):
        raise PickleProblem(f"its index {name[:100]!r} refers to row groups whose numbers are none")
    return frozenset(int(number) for number in stored)


def load_row_groups(data: bytes) -> dict[str, int]:
    """Return the number of row groups of each file, by its path relative to the dataset.

    Raises:
        DataError: If there are none.

    Example:
        >>> load_row_groups(b'{"split=train/part-0.parquet": 2}')
        {'split=train/part-0.parquet': 2}
    """
    try:
        found = json.loads(data[: MOST_JSON_BYTES + 1])
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is no JSON: {error}") from error
    if not isinstance(found, dict) or not all(type(count) is int and 0 <= count < 2**31 for count in found.values()):
        raise DataError("it is no JSON object of paths and the numbers of their row groups")
    return found


def summary_rows(footer: bytes) -> dict[str, list[int]]:
    """Return the rows of each row group of each file that the footer of a summary file, `_metadata`, tells of.

    Raises:
        DataError: If it makes no sense.
    """
    wanted: Wanted = {ROWS: int, CHUNKS: Only(places={0: {FILE: bytes}})}
    try:
        groups = parse(footer, {GROUPS: [wanted]}).get(GROUPS, [])
    except ThriftError as error:
        raise DataError(f"it cannot be read: {error}") from error
    found: dict[str, list[int]] = {}
    for group in groups:
        chunks = group.get(CHUNKS) or [{}]
        if FILE not in chunks[0] or group.get(ROWS, -1) < 0:
            raise DataError("it does not say in which file a row group lies, or how many rows it has")
        found.setdefault(chunks[0][FILE].decode("utf-8", "surrogateescape"), []).append(group[ROWS])
    return found
