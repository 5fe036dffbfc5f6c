"""Argument checks of the clauses of a dataset, and of combinations of clauses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, Literal, SupportsIndex, cast, get_args

import numpy as np
import pyarrow as pa

from penstock import randomness
from penstock._dataset.names import maps_run_last, matching_names
from penstock._dataset.sequence import check_sequence
from penstock._dataset.stack import check_stack
from penstock._engine.order.shard import first_assignment
from penstock._engine.query.query import ColumnDecoding, Last, Map, Query, SkipBadRows
from penstock.dtypes import numpy_type
from penstock.errors import ArgumentError, ColumnNotFoundError, FilterError, listed
from penstock.filters import Expr, from_tuples, in_split
from penstock.model import Plan, Snapshot
from penstock.policies import Mask, Nulls, Offsets, Pad, Ragged, Resize
from penstock.protocols import Shuffle
from penstock.schema import CellCodec, Field

__all__ = [
    "batch_changes",
    "bound_condition",
    "check_policy",
    "check_query",
    "exact_plan",
    "new_map",
    "selected_columns",
    "shard_changes",
    "skip_bad_rows",
    "smaller_limit",
    "split_conditions",
    "using_changes",
    "valid_epochs",
    "valid_seed",
    "valid_shuffle",
    "with_policy",
]

HASHES = 1 << 64


def bound_condition(conditions: Sequence[Expr | Sequence[Any]], query: Query, snapshot: Snapshot) -> Expr | None:
    """Return the conjunction of the query's condition and new ones, which are bound to the table."""
    added = {column.name for step in query.maps for column in step.fields or ()}
    added.update(stack.name for stack in query.stacks)
    result = query.condition
    for given in conditions:
        condition = given if isinstance(given, Expr) else from_tuples(given)
        late = sorted((condition.columns & added) - set(snapshot.schema.names))
        if late:
            msg = (
                f"where() got column {late[0]!r}, which map or stack adds later. Columns of {snapshot.table}: "
                f'{", ".join(snapshot.schema.names)}. Filter on those, or drop rows in a map with .batch("row_group").'
            )
            raise FilterError(msg)
        with maps_run_last(query.maps):
            condition = condition.bind(snapshot.schema, table=snapshot.table)
        result = condition if result is None else result & condition
    return result


def selected_columns(columns: Sequence[str | Field], query: Query, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the columns that names, regular expressions and fields select, in the order given."""
    names = snapshot.schema.names
    selected: dict[str, None] = {}
    for column in columns:
        if not isinstance(column, str | Field):
            msg = f"select() got {column!r}; expected names, regular expressions or fields, for example select('a', 'b')."
            raise ArgumentError(msg)
        with maps_run_last(query.maps):
            pattern = column.name if isinstance(column, Field) else column
            selected.update(dict.fromkeys(matching_names(pattern, names, snapshot.table)))
    return tuple(selected)


def valid_shuffle(shuffle: object) -> Shuffle:
    """Return a shuffle, after a check of its type."""
    if isinstance(shuffle, type) or not isinstance(shuffle, Shuffle):
        msg = (
            f"shuffle() got {shuffle!r}; expected a Shuffle object, for example shuffle(penstock.WindowShuffle(rows=100_000))."
        )
        seed = f" For a seed, write shuffle(seed={shuffle!r})." if type(shuffle) is int and shuffle >= 0 else ""
        raise ArgumentError(msg + seed)
    return shuffle


def valid_seed(clause: str, seed: Any) -> int:
    """Return a seed, which has to fit 63 bits."""
    if not _is_integer(seed) or not 0 <= seed < 1 << 63:
        raise ArgumentError(f"{clause}() got seed={seed!r}; expected an integer from 0 to 2**63 - 1, for example seed=0.")
    return index(seed)


def batch_changes(size: int | Literal["row_group"], last: Last | None) -> dict[str, Any]:
    """Return what the clause `batch` changes in a query."""
    if size != "row_group" and (not _is_integer(size) or size < 1):
        msg = f'batch() got size={size!r}; expected a positive integer or "row_group", for example batch(32).'
        raise ArgumentError(msg)
    if last is not None and last not in get_args(Last):
        raise ArgumentError(f"batch() got last={last!r}; expected one of {', '.join(map(repr, get_args(Last)))}, or None.")
    return {"size": size if size == "row_group" else index(size), "last": last}


def shard_changes(rank: Any, world_size: Any, lanes: Any) -> dict[str, int | None]:
    """Return what the clause `shard` changes in a query."""
    ranks = _positive("shard", "world_size", world_size, "shard(0, 4)")
    if not _is_integer(rank) or not 0 <= rank < ranks:
        msg = f"shard() got rank={rank!r} with world_size={ranks}; expected an integer from 0 to {ranks - 1}."
        raise ArgumentError(msg)
    lanes = None if lanes is None else _positive("shard", "lanes", lanes, f"shard({index(rank)}, {ranks}, lanes={4 * ranks})")
    first_assignment(ranks=ranks, lanes=lanes, size=1)  # raises for lanes that the ranks do not divide
    return {"rank": index(rank), "world_size": ranks, "lanes": lanes}


def smaller_limit(rows: Any, limit: int | None, clause: str = "limit") -> int:
    """Return the smaller of a new limit and the one before it."""
    if not _is_integer(rows) or rows < 0:
        raise ArgumentError(f"{clause}() got rows={rows!r}; expected a non-negative integer, for example {clause}(100).")
    return index(rows) if limit is None else min(index(rows), limit)


def valid_epochs(epochs: int | None) -> int | None:
    """Return the number of epochs of one iteration; None for no end."""
    return None if epochs is None else _positive("repeat", "epochs", epochs, "repeat(3), or repeat() for no end")


def using_changes(
    *,
    workers: object = None,
    threads: int | None = None,
    processes: int | None = None,
    memory_limit: int | None = None,
    max_cell_bytes: int | None = None,
    timeout: float | None = None,
    checksums: object = None,
) -> dict[str, Any]:
    """Return what the clause `using` changes in a query; a number of processes implies workers="processes"."""
    if workers not in (None, "threads", "processes"):
        raise ArgumentError(f"using() got workers={workers!r}; expected 'threads', 'processes' or None.")
    if workers == "threads" and processes is not None:
        msg = f"using() got processes={processes!r} with workers='threads', which has no processes. Remove one of them."
        raise ArgumentError(msg)
    if timeout is not None and (not _is_number(timeout) or not timeout > 0):
        raise ArgumentError(f"using() got timeout={timeout!r}; expected a positive number of seconds, for example timeout=600.")
    if checksums is not None and not isinstance(checksums, bool):
        raise ArgumentError(f"using() got checksums={checksums!r}; expected a bool, for example checksums=True.")
    integers = {
        "threads": (threads, 4),
        "processes": (processes, 4),
        "memory_limit": (memory_limit, 1 << 30),
        "max_cell_bytes": (max_cell_bytes, 1 << 28),
    }
    options = {
        "workers": workers or (None if processes is None else "processes"),
        "timeout": None if timeout is None else float(timeout),
        "checksums": checksums,
        **{
            name: None if number is None else _positive("using", name, number, f"using({name}={example})")
            for name, (number, example) in integers.items()
        },
    }
    changes = {name: value for name, value in options.items() if value is not None}
    return {**changes, "processes": None} if workers == "threads" else changes


def skip_bad_rows(action: object, most: Any, report: object) -> SkipBadRows | None:
    """Return how bad rows are skipped; None to raise."""
    if action not in ("raise", "skip"):
        raise ArgumentError(f"on_bad_row() got action={action!r}; expected 'raise' or 'skip'.")
    share = isinstance(most, float) and 0 < most <= 1
    if not share and not (_is_integer(most) and most > 0):
        msg = f"on_bad_row() got most={most!r}; expected a share of the rows above 0 and up to 1.0, or a positive integer, "
        raise ArgumentError(msg + "for example most=0.01.")
    if report is not None and (not isinstance(report, str | os.PathLike) or "://" in str(report) or not str(report)):
        raise ArgumentError(f"on_bad_row() got report={report!r}; expected the path of a local file.")
    if action == "raise":
        return None
    return SkipBadRows(most=most if share else index(most), report=None if report is None else os.fspath(report))


def with_policy(
    columns: Sequence[str], query: Query, snapshot: Snapshot, *, nulls: Nulls | None = None, ragged: Ragged | None = None
) -> tuple[ColumnDecoding, ...]:
    """Return the column policies of a query with a new one for some columns."""
    check_policy("ragged" if nulls is None else "nulls", ragged if nulls is None else nulls, columns)
    policies = {column.name: column for column in query.policies}
    for pattern in columns:
        with maps_run_last(query.maps):
            names = matching_names(pattern, snapshot.schema.names, snapshot.table)
        for name in names:
            _check_resize(name, ragged, snapshot)
            if ragged is not None and name == pattern:
                _check_lists(name, ragged, snapshot)
            before = policies.get(name) or ColumnDecoding(name=name)
            policies[name] = replace(before, nulls=nulls or before.nulls, ragged=ragged or before.ragged)
    return tuple(policies.values())


def check_policy(clause: Literal["nulls", "ragged"], policy: object, columns: Sequence[object]) -> None:
    """Check the types of a policy and of the column names given with it."""
    kind = Nulls if clause == "nulls" else Ragged
    if not isinstance(policy, kind):
        known = listed(f"{one.__name__}()" for one in get_args(kind))
        raise ArgumentError(f"{clause}() got {policy!r}; expected one of {known}.")
    if not columns:
        msg = (
            f"{clause}() got {policy} without columns; expected names or regular expressions, for example '.*' for all columns."
        )
        raise ArgumentError(msg)
    for pattern in columns:
        if not isinstance(pattern, str):
            msg = f"{clause}() got {pattern!r} as a column; expected names or regular expressions, for example 'a', 'b'."
            raise ArgumentError(msg)


def _check_resize(name: str, ragged: Ragged | None, snapshot: Snapshot) -> None:
    """Check that a column to resize holds images."""
    field = snapshot.fields.get(name)
    codec = None if field is None else field.codec
    images = isinstance(codec, CellCodec) and type(codec).decode_resized is not CellCodec.decode_resized
    if isinstance(ragged, Resize) and not images:
        msg = (
            f"ragged() got {ragged} for column {name!r}, which does not hold images: its codec is {codec!r}. Name columns of "
            "images, or declare which these are: penstock.adopt(url, schema)."
        )
        raise ArgumentError(msg)


def _check_lists(name: str, ragged: Ragged, snapshot: Snapshot) -> None:
    """Check that a named column holds lists or arrays; a pattern may match other columns too."""
    kind, field = snapshot.schema.field(name).type, snapshot.fields.get(name)
    opaque = isinstance(kind, pa.BaseExtensionType) or (
        field is not None and (field.shape or isinstance(field.codec, CellCodec))
    )
    if not isinstance(ragged, Resize) and not numpy_type(kind)[1] and not opaque:
        msg = f"ragged() got {ragged} for column {name!r}, which has type {kind}; expected columns of lists or arrays."
        raise ArgumentError(msg)


def split_conditions(shares: Any, by: str, seed: int, query: Query) -> dict[str, Expr]:
    """Return the condition of each part of a split: a range of the hashes of a column.

    A split of a part uses other hashes than the split before it; with the same hashes all rows would be in one part.
    """
    if not isinstance(shares, Mapping) or not shares:
        msg = f"split() got {shares!r}; expected shares by name, for example {{'train': 0.9, 'val': 0.1}}."
        raise ArgumentError(msg)
    depth = 0 if query.condition is None else json.dumps(query.condition.describe()).count('"in_split"')
    salt = valid_seed("split", seed)
    salt = int(randomness.key("split", salt, depth)[0] >> 1) if depth else salt
    for name, share in shares.items():
        if not 0 < share <= 1:
            msg = f"split() got {share!r} for part {name!r}; expected a share above 0 and up to 1."
            raise ArgumentError(msg)
    total = sum(shares.values())
    if total > 1 + 1e-9:
        raise ArgumentError(f"split() got shares with the sum {total:g}; expected a sum of at most 1.")
    conditions: dict[str, Expr] = {}
    low, passed = 0, 0.0
    for name, share in shares.items():
        passed += share
        high = HASHES if passed > 1 - 1e-9 else int(passed * HASHES)
        conditions[name] = in_split(by, low, high, salt)
        low = high
    return conditions


def exact_plan(query: Query, plan: Plan) -> Plan:
    """Return a plan, after a check that its number of rows is exact."""
    if query.lazy:
        msg = "A dataset with a lazy filter has no number of rows before it is read. Remove lazy=True to count them first."
        raise ArgumentError(msg)
    return plan


def new_map(function: Any, fields: object, *, per_row: bool, **options: Any) -> Map:
    """Return a map, after a check of its function and fields."""
    if not callable(function):
        msg = f"map() got {function!r}; expected a function of a batch or a row, for example map(lambda batch: batch)."
        raise ArgumentError(msg)
    if fields is not None and not all(isinstance(column, Field) for column in cast("Sequence[object]", fields)):
        msg = f"map() got fields={fields!r}; expected Field objects, for example fields=[penstock.Field('y', numpy.float32)]."
        raise ArgumentError(msg)
    declared = None if fields is None else tuple(cast("Sequence[Field]", fields))
    return Map(function=function, per_row=per_row, fields=declared, **options)


def _check_names(query: Query, snapshot: Snapshot) -> None:
    """Check that stacked columns exist, and that added columns do not have the name of another column."""
    names = list(query.columns if query.columns is not None else snapshot.schema.names)
    for stack in query.stacks:
        for name in stack.columns:
            if name not in names:
                raise ColumnNotFoundError.of(name, names, table=f"the columns that are left for stack {stack.name!r}")
            names.remove(name)
        check_stack(stack, query, snapshot)
    added = [stack.name for stack in query.stacks] + (["_file", "_row_group", "_row"] if query.row_ids else [])
    added += ["_valid"] if query.ending == "pad" else []
    for column in query.policies:
        suffixes = {"_valid": isinstance(column.nulls, Mask)}
        suffixes |= {"_length": isinstance(column.ragged, Pad), "_offsets": isinstance(column.ragged, Offsets)}
        added += [column.name + suffix for suffix, used in suffixes.items() if used and column.name in names]
    for name in added:
        if name in names:
            msg = (
                f"This dataset adds a column {name!r}, and the table has a column of that name. Leave the table's column out "
                "with .select(...), or remove the clause that adds the other."
            )
            raise ArgumentError(msg)
        names.append(name)


def check_query(query: Query, snapshot: Snapshot) -> Query:
    """Return a query, after a check that its clauses can be combined."""
    _check_names(query, snapshot)
    if query.sequence is not None:
        check_sequence(query, query.sequence)
    if query.size == "row_group" and query.permuted:
        msg = (
            'batch("row_group") returns whole row groups, and this shuffle mixes the rows of several. '
            "Use .shuffle(penstock.RowGroupShuffle()), or a number of rows."
        )
        raise ArgumentError(msg)
    if query.last not in (None, "uneven") and query.size == "row_group":
        msg = f'batch("row_group") got last={query.last!r}; expected last="uneven", since its batches differ in size.'
        raise ArgumentError(msg)
    _check_policies(query, snapshot)
    if query.lazy and query.limit is not None:
        msg = "limit() does not combine with a lazy filter: it counts the rows that pass. Remove lazy=True or limit()."
        raise ArgumentError(msg)
    if query.lazy and query.last in ("pad", "wrap", "level"):
        msg = (
            f"batch() got last={query.last!r} with a lazy filter, which cannot give all ranks the same number of steps. "
            'Use last="uneven" or "drop", or remove lazy=True.'
        )
        raise ArgumentError(msg)
    return query


def _check_policies(query: Query, snapshot: Snapshot) -> None:
    """Check the policies of lists against a lazy filter and the end of an epoch."""
    for column in query.policies:
        flat = isinstance(column.ragged, Offsets)
        if flat and (query.lazy or query.last == "pad"):
            msg = (
                f'Column {column.name!r} has the policy Offsets(), which does not combine with last="pad" or a lazy filter. '
                'Use Pad() for it, with a length if the filter is lazy, or remove lazy=True and last="pad".'
            )
            raise ArgumentError(msg)
        longest = isinstance(column.ragged, Pad) and column.ragged.length is None
        read = query.columns is None or column.name in query.columns
        if longest and query.lazy and read and None in _shape(column.name, snapshot):
            msg = (
                f"Column {column.name!r} has the policy Pad() without a length, which does not combine with a lazy filter: "
                "rows are padded before it runs. Give Pad a length, or remove lazy=True."
            )
            raise ArgumentError(msg)


def _shape(name: str, snapshot: Snapshot) -> tuple[int | None, ...]:
    field = snapshot.fields.get(name)
    return numpy_type(snapshot.schema.field(name).type)[1] if field is None else field.shape


def _positive(clause: str, name: str, number: Any, example: str) -> int:
    if not _is_integer(number) or number < 1:
        raise ArgumentError(f"{clause}() got {name}={number!r}; expected a positive integer, for example {example}.")
    return index(number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    """Return whether a value is an integer of Python or NumPy."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool | np.ndarray)
