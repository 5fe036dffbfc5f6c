"""What the clauses of a dataset accept: each is checked where it is said, and becomes part of the question."""

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
from penstock._dataset.names import before_maps, matching
from penstock._dataset.sequence import check_sequence
from penstock._dataset.stack import check_stack
from penstock._engine.order.shard import first_assignment
from penstock._engine.query.query import Query, SkipBadRows
from penstock._engine.query.values import Column, Last
from penstock.dtypes import numpy_type
from penstock.errors import ArgumentError, ColumnNotFoundError, FilterError, listed
from penstock.filters import Expr, from_tuples, in_split
from penstock.model import Plan, Snapshot
from penstock.policies import Mask, Nulls, Offsets, Pad, Ragged, Resize
from penstock.protocols import Shuffle
from penstock.schema import CellCodec, Field

__all__ = [
    "batching",
    "bound",
    "check_map",
    "check_policy",
    "checked",
    "epochs",
    "exact",
    "limit",
    "means",
    "order",
    "parts",
    "policies",
    "seed",
    "selected",
    "sharding",
    "skipping",
]

HASHES = 1 << 64


def bound(conditions: Sequence[Expr | Sequence[Any]], query: Query, snapshot: Snapshot) -> Expr | None:
    """Return all conditions as one, bound to the table, together with those asked before."""
    made = {column.name for step in query.maps for column in step.fields or ()}
    made.update(stack.name for stack in query.stacks)
    found = query.condition
    for given in conditions:
        condition = given if isinstance(given, Expr) else from_tuples(given)
        late = sorted((condition.columns & made) - set(snapshot.schema.names))
        if late:
            msg = (
                f"Column {late[0]!r} is made by map or stack, and where acts before both. Columns of {snapshot.table}: "
                f'{", ".join(snapshot.schema.names)}. Filter on those, or drop rows in a map with .batch("row_group").'
            )
            raise FilterError(msg)
        with before_maps(query.maps):
            condition = condition.bind(snapshot.schema, table=snapshot.table)
        found = condition if found is None else found & condition
    return found


def selected(columns: Sequence[str | Field], query: Query, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the columns that names, regular expressions and fields pick, in the order given."""
    names = snapshot.schema.names
    found: dict[str, None] = {}
    for column in columns:
        if not isinstance(column, str | Field):
            msg = f"select got {column!r}. Names, regular expressions or fields were expected. Give each: select('a', 'b')."
            raise ArgumentError(msg)
        with before_maps(query.maps):
            found.update(dict.fromkeys(matching(column.name if isinstance(column, Field) else column, names, snapshot.table)))
    return tuple(found)


def order(shuffle: object) -> Shuffle:
    """Return a shuffle, which must be an object of that kind."""
    if isinstance(shuffle, type) or not isinstance(shuffle, Shuffle):
        msg = f"shuffle got {shuffle!r}. A Shuffle object was expected. Pass one like penstock.WindowShuffle(rows=100_000)."
        seed = f" A seed is given by its name: ds.shuffle(seed={shuffle!r})." if type(shuffle) is int and shuffle >= 0 else ""
        raise ArgumentError(msg + seed)
    return shuffle


def seed(number: Any) -> int:
    """Return a seed that fits 63 bits."""
    if not _whole(number) or not 0 <= number < 1 << 63:
        msg = f"seed got {number!r}. An integer from 0 to 2**63 - 1 was expected; 0 is a seed like others. Give such a number."
        raise ArgumentError(msg)
    return index(number)


def batching(size: int | Literal["row_group"], last: Last | None) -> tuple[int | Literal["row_group"], Last | None]:
    """Return the size of batches and how an epoch ends."""
    if size != "row_group":
        size = _positive("batch", size, 'rows, or "row_group"')
    if last is not None and last not in get_args(Last):
        msg = (
            f"batch got last={last!r}. One of {', '.join(map(repr, get_args(Last)))} was expected. Choose one, or leave it out."
        )
        raise ArgumentError(msg)
    return size, last


def sharding(rank: Any, world_size: Any, lanes: Any) -> dict[str, int | None]:
    """Return which part of the readers this is."""
    ranks = _positive("shard", world_size, "ranks")
    if not _whole(rank) or not 0 <= rank < ranks:
        msg = f"shard got rank {rank!r} of {ranks}. Ranks go from 0 to {ranks - 1}. Give the number of this reader."
        raise ArgumentError(msg)
    lanes = None if lanes is None else _positive("shard", lanes, "lanes")
    first_assignment(ranks=ranks, lanes=lanes, size=1)  # which refuses lanes that cannot be shared out
    return {"rank": index(rank), "world_size": ranks, "lanes": lanes}


def limit(rows: Any, before: int | None, clause: str = "limit") -> int:
    """Return the smaller of two limits."""
    if not _whole(rows) or rows < 0:
        msg = f"{clause} got {rows!r}. A number of rows from 0 on was expected. Give such a number."
        raise ArgumentError(msg)
    return index(rows) if before is None else min(index(rows), before)


def epochs(count: int | None) -> int | None:
    """Return how many epochs one iteration has."""
    return None if count is None else _positive("repeat", count, "epochs, or none to repeat without end")


def means(
    threads: int | None,
    memory_limit: int | None,
    max_cell_bytes: int | None,
    workers: object = None,
    processes: int | None = None,
    timeout: float | None = None,
    checksums: object = None,
) -> dict[str, Any]:
    """Return with what a dataset is read, of what was given; whoever says how many processes there are means processes."""
    if workers not in (None, "threads", "processes"):
        msg = f"using got workers={workers!r}. One of 'threads', 'processes' was expected. Choose one, or leave it out."
        raise ArgumentError(msg)
    if workers == "threads" and processes is not None:
        msg = f"using got processes={processes!r} and workers='threads'. With threads there are no processes. Leave one out."
        raise ArgumentError(msg)
    if timeout is not None and (not _is_number(timeout) or not timeout > 0):
        msg = f"using got timeout={timeout!r}. Seconds were expected, more than 0. Give such a number, or leave it out."
        raise ArgumentError(msg)
    found = {
        "workers": workers or (None if processes is None else "processes"),
        "threads": None if threads is None else _positive("using", threads, "threads"),
        "processes": None if processes is None else _positive("using", processes, "processes"),
        "memory_limit": None if memory_limit is None else _positive("using", memory_limit, "bytes"),
        "max_cell_bytes": None if max_cell_bytes is None else _positive("using", max_cell_bytes, "bytes"),
        "timeout": None if timeout is None else float(timeout),
        "checksums": None if checksums is None else _claim("using", "checksums", checksums),
    }
    given = {name: value for name, value in found.items() if value is not None}
    return {**given, "processes": None} if workers == "threads" else given


def skipping(action: object, most: Any, report: object) -> SkipBadRows | None:
    """Return what becomes of bad rows; None to raise."""
    if action not in ("raise", "skip"):
        raise ArgumentError(f"on_bad_row got {action!r}. One of 'raise', 'skip' was expected. Choose one.")
    share = isinstance(most, float) and 0 < most <= 1
    if not share and not (_whole(most) and most > 0):
        msg = f"on_bad_row got most={most!r}. A share of the rows above 0 and up to 1.0, or a whole number of them from 1 on, "
        raise ArgumentError(msg + "was expected. Give one: most=0.01.")
    if report is not None and (not isinstance(report, str | os.PathLike) or "://" in str(report) or not str(report)):
        raise ArgumentError(f"on_bad_row got report={report!r}. The path of a file on this machine was expected. Give one.")
    if action == "raise":
        return None
    return SkipBadRows(most=most if share else index(most), report=None if report is None else os.fspath(report))


def policies(
    columns: Sequence[str], query: Query, snapshot: Snapshot, *, nulls: Nulls | None = None, ragged: Ragged | None = None
) -> tuple[Column, ...]:
    """Return how nulls and lists are treated, with another policy for some columns."""
    check_policy("ragged" if nulls is None else "nulls", ragged if nulls is None else nulls, columns)
    found = {column.name: column for column in query.policies}
    for pattern in columns:
        with before_maps(query.maps):
            names = matching(pattern, snapshot.schema.names, snapshot.table)
        for name in names:
            _check_images(name, ragged, snapshot)
            if ragged is not None and name == pattern:
                _check_lists(name, ragged, snapshot)
            before = found.get(name) or Column(name=name)
            found[name] = replace(before, nulls=nulls or before.nulls, ragged=ragged or before.ragged)
    return tuple(found.values())


def check_policy(clause: Literal["nulls", "ragged"], policy: object, columns: Sequence[object]) -> None:
    """Refuse what is no policy, and names of columns that are none."""
    kind = Nulls if clause == "nulls" else Ragged
    if not isinstance(policy, kind):
        known = listed(one.__name__ for one in get_args(kind))
        msg = f"{clause} got {policy!r}. One of {known} was expected. Give such an object."
        raise ArgumentError(msg)
    if not columns:
        msg = f"No column was named for {policy}. Name columns, or regular expressions: '.*' for all."
        raise ArgumentError(msg)
    for pattern in columns:
        if not isinstance(pattern, str):
            raise ArgumentError(f"{clause} got {pattern!r}. Names, or regular expressions, were expected. Give them: 'a', 'b'.")


def _check_images(name: str, ragged: Ragged | None, snapshot: Snapshot) -> None:
    """Refuse to resize what is no image."""
    field = snapshot.fields.get(name)
    codec = None if field is None else field.codec
    images = isinstance(codec, CellCodec) and type(codec).decode_resized is not CellCodec.decode_resized
    if isinstance(ragged, Resize) and not images:
        msg = (
            f"{ragged} was asked for column {name!r}, which does not hold images: its codec is {codec!r}. Name columns of "
            "images, or tell penstock which they are: penstock.adopt(url, schema)."
        )
        raise ArgumentError(msg)


def _check_lists(name: str, ragged: Ragged, snapshot: Snapshot) -> None:
    """Refuse to say how lists come of a column that was named and has none; a pattern may match such."""
    kind, field = snapshot.schema.field(name).type, snapshot.fields.get(name)
    opaque = isinstance(kind, pa.BaseExtensionType) or (
        field is not None and (field.shape or isinstance(field.codec, CellCodec))
    )
    if not isinstance(ragged, Resize) and not numpy_type(kind)[1] and not opaque:
        msg = (
            f"ragged got column {name!r} for {ragged}, and its cells are no lists: they are stored as {kind}. Columns of lists "
        )
        raise ArgumentError(msg + "or of arrays were expected. Name those.")


def parts(shares: Any, by: str, number: int, query: Query) -> dict[str, Expr]:
    """Return the condition of each part of a split: a stretch of the hashes of a column.

    A part of a split is split by other hashes than the whole was, or all of it would fall into one part.
    """
    if not isinstance(shares, Mapping) or not shares:
        msg = f"split got {shares!r}. Names of parts and their shares were expected. Give them: {{'train': 0.9, 'val': 0.1}}."
        raise ArgumentError(msg)
    depth = 0 if query.condition is None else json.dumps(query.condition.describe()).count('"in_split"')
    salt = seed(number) if not depth else int(randomness.key("split", seed(number), depth)[0] >> 1)
    for name, share in shares.items():
        if not 0 < share <= 1:
            msg = f"split got {share!r} for part {name!r}. Shares lie between 0 and 1. Give each part a share of the rows."
            raise ArgumentError(msg)
    total = sum(shares.values())
    if total > 1 + 1e-9:
        msg = f"split got shares that make {total:g} together. They may make 1 at most. Make them smaller."
        raise ArgumentError(msg)
    found: dict[str, Expr] = {}
    low, passed = 0, 0.0
    for name, share in shares.items():
        passed += share
        high = HASHES if passed > 1 - 1e-9 else int(passed * HASHES)
        found[name] = in_split(by, low, high, salt)
        low = high
    return found


def exact(query: Query, plan: Plan) -> Plan:
    """Return a plan whose number of rows is exact."""
    if query.lazy:
        msg = "A dataset with a lazy filter does not know its rows before it is read. Leave lazy=True out to count them first."
        raise ArgumentError(msg)
    return plan


def check_map(function: object, fields: object) -> None:
    """Refuse what cannot be called, and fields that are none."""
    if not callable(function):
        msg = f"map got {function!r}. A function of a batch or a row was expected. Give one."
        raise ArgumentError(msg)
    if fields is not None and not all(isinstance(column, Field) for column in cast("Sequence[object]", fields)):
        msg = f"map got fields={fields!r}. Field objects were expected. Give them: fields=[penstock.Field('y', numpy.float32)]."
        raise ArgumentError(msg)


def _check_names(query: Query, snapshot: Snapshot) -> None:
    """Refuse columns of ours that would hide the table's, and stacks of what is not there."""
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
                f"This dataset adds a column {name!r}, and the table has one of that name. Leave the table's out with "
                ".select(...), or the clause that adds it."
            )
            raise ArgumentError(msg)
        names.append(name)


def checked(query: Query, snapshot: Snapshot) -> Query:
    """Return a question whose clauses go together."""
    _check_names(query, snapshot)
    if query.sequence is not None:
        check_sequence(query, query.sequence)
    if query.size == "row_group" and query.permuted:
        msg = (
            'batch("row_group") hands out row groups whole, and this shuffle takes them apart. '
            "Use .shuffle(penstock.RowGroupShuffle()), or a number of rows."
        )
        raise ArgumentError(msg)
    if query.last not in (None, "uneven") and query.size == "row_group":
        msg = f'batch("row_group") has batches of unequal sizes, so last={query.last!r} means nothing. Use last="uneven".'
        raise ArgumentError(msg)
    _check_policies(query, snapshot)
    if query.lazy and query.limit is not None:
        msg = "limit counts rows that pass the filter, and a lazy filter has not counted them. Leave lazy=True or limit out."
        raise ArgumentError(msg)
    if query.lazy and query.last in ("pad", "wrap", "level"):
        msg = (
            f"A lazy filter cannot promise equal steps, which last={query.last!r} asks for. "
            'Use last="uneven" or "drop", or leave lazy=True out.'
        )
        raise ArgumentError(msg)
    return query


def _check_policies(query: Query, snapshot: Snapshot) -> None:
    """Refuse what gives rows together with what needs batches."""
    for column in query.policies:
        flat = isinstance(column.ragged, Offsets)
        if flat and (query.lazy or query.last == "pad"):
            msg = (
                f"Column {column.name!r} is to come as values and offsets, which cannot be padded or filtered on the fly. "
                'Use Pad() for it, with a length if the filter is lazy, or leave lazy=True and last="pad" out.'
            )
            raise ArgumentError(msg)
        longest = isinstance(column.ragged, Pad) and column.ragged.length is None
        read = query.columns is None or column.name in query.columns
        if longest and query.lazy and read and None in _shape(column.name, snapshot):
            msg = (
                f"Column {column.name!r} is to be padded to the longest list of a batch, and a lazy filter makes batches of "
                "rows that were padded before it knew which of them pass. Give Pad a length, or leave lazy=True out."
            )
            raise ArgumentError(msg)


def _shape(name: str, snapshot: Snapshot) -> tuple[int | None, ...]:
    """Return the shape of the cells of a column, with None for what differs."""
    field = snapshot.fields.get(name)
    return numpy_type(snapshot.schema.field(name).type)[1] if field is None else field.shape


def _positive(clause: str, number: Any, what: str) -> int:
    if not _whole(number) or number < 1:
        msg = f"{clause} got {number!r}. A positive number of {what} was expected. Give one."
        raise ArgumentError(msg)
    return index(number)


def _is_number(given: object) -> bool:
    """Return whether something is a number of any kind."""
    return isinstance(given, int | float | np.number) and not isinstance(given, bool)


def _claim(clause: str, name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ArgumentError(f"{clause} got {name}={value!r}. True or False was expected. Give one of them.")


def _whole(number: object) -> bool:
    """Return whether something is a whole number, of Python or of NumPy."""
    return isinstance(number, SupportsIndex) and not isinstance(number, bool | np.ndarray)
