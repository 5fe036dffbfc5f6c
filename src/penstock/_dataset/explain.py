"""A dataset told: its schema, its name, its text and its explanation."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from penstock._engine.deliver.loader import Batches
from penstock._engine.deliver.mixture import MixtureTable
from penstock._engine.lookup.access import columns_of
from penstock._engine.order.shard import RankEpoch
from penstock._engine.parquet.footer import column_bytes
from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.query import Query
from penstock._engine.query.values import MEMORY_LIMIT, Column
from penstock._engine.runtime.stats import format_bytes
from penstock.errors import PenstockError, listed
from penstock.model import Position
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED, Mask, Offsets, Pad, Resize
from penstock.schema import CellCodec, Field, Schema
from penstock.sequences import Sequence
from penstock.shuffles import InOrder, WindowShuffle

__all__ = ["analyzed", "decoded", "explain", "fingerprint", "schema", "shown", "told", "told_clauses"]

IDS = ("_file", "_row_group", "_row")

FEW_FOOTERS = 16
"""How many footers are read, at most, to print the rows of an opened table."""

ANALYZED_SECONDS = 10.0
"""How long an epoch is read, at most, to see where its time goes."""


def schema(table: Table, query: Query) -> Schema:
    """Return the columns that the consumer gets, as far as they are known before any map runs."""
    every = Schema.from_arrow(table.snapshot.schema, table.snapshot.table)
    every = Schema(every.name, [table.snapshot.fields.get(field.name, field) for field in every])
    fields = {field.name: field for name in columns_of(table, query) for field in decoded(every[name], query.policies)}
    if query.row_ids:
        ids = (Field("_file", object), Field("_row_group", np.int64), Field("_row", np.int64))
        fields.update({field.name: field for field in ids})
    for stack in query.stacks:
        parts = [fields.pop(name) for name in stack.columns]
        dtype = np.result_type(*(part.dtype for part in parts))
        fields[stack.name] = Field(stack.name, dtype, (len(parts), *parts[0].shape))
    if query.sequence is not None:
        fields = {field.name: field for field in _in_sequence(every, [*fields.values()], query, query.sequence)}
    if query.ending == "pad":
        fields["_valid"] = Field("_valid", np.bool_)
    for step in query.maps:
        if step.fields is not None:
            marks = [fields["_valid"]] if "_valid" in fields else []
            fields = {field.name: field for field in (*step.fields, *marks)}
    return Schema(every.name, list(fields.values()))


def _in_sequence(every: Schema, fields: list[Field], query: Query, sequence: Sequence) -> list[Field]:
    """Return columns as they are in sequences: with one dimension more, or once for each offset that has them."""
    if sequence.columns is None:
        flat = {one.name for one in query.policies if isinstance(one.ragged, Offsets)}
        flat |= {f"{name}{suffix}" for name in flat for suffix in ("_offsets", "_valid")}
        width = len(sequence.steps)
        return [field if field.name in flat else _bare(field, field.name, (width, *field.shape)) for field in fields]
    ids = [field for field in fields if field.name in IDS]
    return [
        _bare(field, f"{field.name}/{offset}", field.shape)
        for offset, names in sequence.columns.items()
        for field in (*(made for name in names for made in decoded(every[name], query.policies)), *ids)
    ]


def _bare(field: Field, name: str, shape: tuple[int | None, ...]) -> Field:
    return Field(name, field.dtype, shape, nullable=field.nullable)


def _told(field: Field) -> Field:
    """Return a field as its values come: text and bytes are objects, unless a codec stores values of one length."""
    if field.dtype.kind not in "US" or field.shape or (field.is_dense and isinstance(field.codec, CellCodec)):
        return field
    told = copy(field)  # by which the codec is not asked: it stores text, and what comes of it are objects
    object.__setattr__(told, "dtype", np.dtype(object))
    return told


def decoded(field: Field, policies: Iterable[Column]) -> list[Field]:
    """Return the columns that one column becomes under its policies."""
    policy = next((column for column in policies if column.name == field.name), None)
    if policy is None:
        return [_told(field)]
    name, dtype, shape = field.name, field.dtype, field.shape
    found: list[Field] = []
    if isinstance(policy.ragged, Resize):
        shape = (policy.ragged.height, policy.ragged.width, *shape[2:])
    elif None in shape and isinstance(policy.ragged, Pad):
        first = shape.index(None)
        deferred = () if field.codec is None or shape.count(None) == 1 else (shape.count(None),)
        shape = (*shape[:first], policy.ragged.length, *shape[first + 1 :])
        found = [Field(f"{name}_length", np.int64, deferred)]
    elif None in shape and isinstance(policy.ragged, Offsets):
        shape = shape[1:]
        found = [Field(f"{name}_offsets", np.int64)]
    cells = isinstance(field.codec, CellCodec)
    if isinstance(policy.nulls, Mask):
        found.append(Field(f"{name}_valid", np.bool_, () if cells else shape))
    nullable = field.nullable and policy.nulls == DEFAULT_NULLS
    return [_told(Field(name, dtype, shape, field.codec if shape == field.shape else None, nullable=nullable)), *found]


def fingerprint(table: Table, query: Query) -> str:
    """Return a name for the question; functions are told apart by identity."""
    asked = [
        table.snapshot.table,
        table.snapshot.version,
        None if query.condition is None else query.condition.describe(),
        [id(step.function) for step in query.maps],
        told(table, query),
    ]
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


def told(table: Table, query: Query) -> str:
    """Return the question as Python that asks it."""
    return f"penstock.open({table.snapshot.table!r}{_version(table)})" + "".join(told_clauses(query))


def shown(table: Table, query: Query) -> str:
    """Return the question as Python that asks it, and of an opened table its rows and columns, as a comment."""
    text = told(table, query)
    if told_clauses(query):
        return text
    names = table.snapshot.schema.names
    return f"{text}  # {_told_rows_of(table, query)}, {len(names)} column{'s' * (len(names) != 1)}: {listed(names)}"


def _told_rows_of(table: Table, query: Query) -> str:
    """Return how many rows a table has, if that is known or a few footers tell."""
    files = table.snapshot.files
    unstated = int((files.rows < 0).sum())
    if not unstated:
        count = int(files.rows.sum()) - sum(len(deleted) for deleted in files.deletes.values())
    elif unstated > FEW_FOOTERS:
        return f"rows of {len(files)} files"
    else:
        try:
            count = table.plan(query).plan.num_rows
        except (PenstockError, OSError):  # which reading the table tells
            return "unreadable rows"
    return f"{count} row{'s' * (count != 1)}"


def _version(table: Table) -> str:
    return f", version={table.snapshot.version!r}" if table.snapshot.version else ""


def told_clauses(query: Query) -> list[str]:
    """Return the clauses that differ from a plain question, in the order they act."""
    found = _told_rows(query)
    if query.columns is not None and (query.sequence is None or query.sequence.columns is None):
        found.append(_call("select", [repr(name) for name in query.columns]))
    if query.row_ids:
        found.append(_call("with_row_ids", []))
    if query.shuffle != InOrder() or query.seed:
        shown = [] if query.shuffle == WindowShuffle() else [repr(query.shuffle)]
        found.append(_call("shuffle", shown, seed=(query.seed, None)))
    if query.world_size > 1 or query.lanes is not None:
        found.append(_call("shard", [str(query.rank), str(query.world_size)], lanes=(query.lanes, None)))
    if query.size is not None:
        found.append(_call("batch", [repr(query.size)], last=(query.last, None)))
    for column in query.policies:
        found += [
            _call(clause, [repr(policy), repr(column.name)])
            for clause, policy in (("nulls", column.nulls), ("ragged", column.ragged))
            if policy not in (DEFAULT_NULLS, DEFAULT_RAGGED)
        ]
    if query.epochs != 1:
        found.append(_call("repeat", [] if query.epochs is None else [str(query.epochs)]))
    found += [_call("stack", [repr(stack.name), repr(list(stack.columns))]) for stack in query.stacks]
    found += [_call("map", [step.name], per_row=(step.per_row, False)) for step in query.maps]
    if query.skip is not None:
        found.append(_call("on_bad_row", ["'skip'"], most=(query.skip.most, 0.01), report=(query.skip.report, None)))
    return found


def _told_rows(query: Query) -> list[str]:
    """Return the clauses that say which rows there are."""
    found = []
    if query.condition is not None:
        found.append(_call("where", [repr(query.condition)], lazy=(query.lazy, False)))
    if query.sequence is not None:
        found.append(_call("sequence", [repr(query.sequence)]))
    if query.limit is not None:
        found.append(_call("limit", [str(query.limit)]))
    return found


def _call(name: str, arguments: list[str], **options: tuple[Any, Any]) -> str:
    """Return a call as text, with those options that differ from their defaults."""
    said = [f"{option}={value!r}" for option, (value, default) in options.items() if value != default]
    return f".{name}({', '.join(arguments + said)})"


def explain(table: Table, query: Query, *, analyze: bool = False) -> str:
    """Return a page that says what will be read and handed out, and with `analyze` where the time goes."""
    planned = table.plan(query)
    pruned, plan = planned.pruned, planned.plan
    rank_epoch = RankEpoch(plan, planned.shuffle, query, Position())
    shuffle = ", ".join(f"{key}={value}" for key, value in planned.shuffle.describe().items() if value is not None)
    filtered = int(plan.units.residual.sum())
    lines = {
        "files": f"{pruned.files_kept} of {pruned.files}{_pruned(pruned.files - pruned.files_kept)}",
        "row groups": f"{pruned.groups_kept} of {pruned.groups}{_pruned(pruned.groups - pruned.groups_kept)}",
        "units": f"{len(plan.units)} to read, {filtered} of them with rows to filter",
        "rows": _rows(planned, query),
        "bytes": _bytes(table, planned, columns_of(table, query)),
        "memory": _memory(planned, query),
        "order": f"{shuffle}, seed={query.seed}",
        "ranks": f"{query.world_size}, {rank_epoch.position.assignments[0].lanes} lanes; "
        f"this is rank {query.rank}, with {rank_epoch.shard.num_rows} of {_balance(plan.num_rows, query.world_size)}",
    }
    if not query.lazy:
        lines["steps"] = f"{len(rank_epoch.schedule)} per epoch on this rank, {_left_out(rank_epoch, plan.num_rows, query)}"
    lines["fingerprint"] = plan.fingerprint
    page = "\n".join([told(table, query), *(f"  {name:<11} {text}" for name, text in lines.items())])
    return analyzed(table, query, page) if analyze else page


def analyzed(table: Table | MixtureTable, query: Query, page: str) -> str:
    """Return a page, and where the time goes: found out by reading an epoch, or as much of it as ten seconds allow.

    Raises:
        EmptyDatasetError: If there is nothing, or too little, to hand out.
    """
    once = replace(query, epochs=1)
    batches = Batches(table, once, Position())
    until = time.monotonic() + ANALYZED_SECONDS
    read = "a whole epoch"
    for _ in batches:
        if time.monotonic() >= until:
            steps = "" if query.lazy else f" of {len(batches)}"
            read = f"the first {batches.iteration.handed}{steps} steps of an epoch"
            break
    stats = batches.stats()
    batches.close()
    done = f"  {'analyzed':<11} {read}, read now for a consumer that does nothing"
    return "\n".join([page, done, str(stats)])


def _rows(planned: Planned, query: Query) -> str:
    """Return how many rows, or sequences, are handed out of how many rows."""
    found, stored = planned.plan.num_rows, planned.pruned.rows
    if query.sequence is not None:
        return f"{found} sequences of {query.sequence.span} rows each, out of {stored} rows"
    return f"{found} of {stored}" + (", before the lazy filter" if query.lazy else "")


def _balance(rows: int, ranks: int) -> str:
    """Return how many rows ranks have; they differ by at most one."""
    least, odd = divmod(rows, ranks)
    return f"{least} to {least + 1} rows per rank" if odd else f"{least} rows per rank"


def _pruned(count: int) -> str:
    return f", {count} pruned by partition or statistics" if count else ""


def _bytes(table: Table, planned: Planned, columns: tuple[str, ...]) -> str:
    """Return what the columns asked for take on storage, of the rows that are read; footers tell."""
    partitions = set(table.snapshot.files.partitions.column_names)
    stored = [name for name in columns if name not in partitions]
    files = np.unique(planned.plan.units.file).tolist()
    size = sum(column_bytes(table.snapshot, files, stored, table.filesystem).values())
    share = int(planned.plan.units.rows.sum()) / max(1, planned.pruned.rows)
    requests = len(planned.plan.units) * len(stored)
    return f"about {format_bytes(size * share)} of {len(stored)} columns in about {requests} requests"


def _memory(planned: Planned, query: Query) -> str:
    """Return what is held at a time, by the size of files."""
    files, plan = planned.plan.snapshot.files, planned.plan
    each = int(files.size[np.unique(plan.units.file)].sum()) / max(1, int(plan.units.rows.sum()))
    window = getattr(planned.shuffle, "rows", None) or int(plan.units.rows.max(initial=0))
    limit = query.memory_limit or MEMORY_LIMIT
    rows = min(window, plan.num_rows)
    return f"windows of {rows} rows, {format_bytes(rows * each)} on storage; {format_bytes(limit)} read ahead at most"


def _left_out(rank_epoch: RankEpoch, num_rows: int, query: Query) -> str:
    if query.ending != "drop" or not isinstance(query.size, int):
        return f"last={query.ending}"
    return f"last=drop, which leaves out {num_rows - len(rank_epoch.schedule) * query.size * query.world_size} rows"
