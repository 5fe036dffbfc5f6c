"""Schema, fingerprint, repr and explanation of a dataset."""

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
from penstock._engine.query.query import ColumnDecoding, Query
from penstock.errors import PenstockError, listed
from penstock.model import Position
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED, Mask, Offsets, Pad, Resize
from penstock.schema import CellCodec, Field, Schema
from penstock.sequences import Sequence
from penstock.shuffles import InOrder, WindowShuffle
from penstock.stats import format_bytes

__all__ = [
    "append_timings",
    "decoded_fields",
    "explain",
    "fingerprint",
    "format_clauses",
    "format_dataset",
    "format_query",
    "output_schema",
]

IDS = ("_file", "_row_group", "_row")

FEW_FOOTERS = 16
"""The limit on footers that are read to print the number of rows of a table."""

ANALYZED_SECONDS = 10.0
"""The limit on the time that `explain(analyze=True)` reads."""


def output_schema(table: Table, query: Query) -> Schema:
    """Return the columns of a batch, as far as they are known before maps run."""
    stored = Schema.from_arrow(table.snapshot.schema, table.snapshot.table)
    stored = Schema(stored.name, [table.snapshot.fields.get(field.name, field) for field in stored])
    fields = {field.name: field for name in columns_of(table, query) for field in decoded_fields(stored[name], query.policies)}
    if query.row_ids:
        ids = (Field("_file", object), Field("_row_group", np.int64), Field("_row", np.int64))
        fields.update({field.name: field for field in ids})
    for stack in query.stacks:
        parts = [fields.pop(name) for name in stack.columns]
        dtype = np.result_type(*(part.dtype for part in parts))
        fields[stack.name] = Field(stack.name, dtype, (len(parts), *parts[0].shape))
    if query.sequence is not None:
        fields = {field.name: field for field in _sequence_fields(stored, [*fields.values()], query, query.sequence)}
    if query.ending == "pad":
        fields["_valid"] = Field("_valid", np.bool_)
    for step in query.maps:
        if step.fields is not None:
            valid = [fields["_valid"]] if "_valid" in fields else []
            fields = {field.name: field for field in (*step.fields, *valid)}
    return Schema(stored.name, list(fields.values()))


def _sequence_fields(stored: Schema, fields: list[Field], query: Query, sequence: Sequence) -> list[Field]:
    """Return the columns of sequences: with one dimension more, or one column for each offset."""
    if sequence.columns is None:
        flat = {one.name for one in query.policies if isinstance(one.ragged, Offsets)}
        flat |= {f"{name}{suffix}" for name in flat for suffix in ("_offsets", "_valid")}
        width = len(sequence.steps)
        return [field if field.name in flat else _without_codec(field, field.name, (width, *field.shape)) for field in fields]
    ids = [field for field in fields if field.name in IDS]
    return [
        _without_codec(field, f"{field.name}/{offset}", field.shape)
        for offset, names in sequence.columns.items()
        for field in (*(output for name in names for output in decoded_fields(stored[name], query.policies)), *ids)
    ]


def _without_codec(field: Field, name: str, shape: tuple[int | None, ...]) -> Field:
    return Field(name, field.dtype, shape, nullable=field.nullable)


def _output_field(field: Field) -> Field:
    """Return a field with the dtype of its decoded values: text and bytes are objects, unless they have a fixed length."""
    if field.dtype.kind not in "US" or field.shape or (field.is_dense and isinstance(field.codec, CellCodec)):
        return field
    output = copy(field)  # not a new Field, whose codec would check the dtype
    object.__setattr__(output, "dtype", np.dtype(object))
    return output


def decoded_fields(field: Field, policies: Iterable[ColumnDecoding]) -> list[Field]:
    """Return the columns that one stored column becomes with its policies."""
    policy = next((column for column in policies if column.name == field.name), None)
    if policy is None:
        return [_output_field(field)]
    name, dtype, shape = field.name, field.dtype, field.shape
    added: list[Field] = []
    if isinstance(policy.ragged, Resize):
        shape = (policy.ragged.height, policy.ragged.width, *shape[2:])
    elif None in shape and isinstance(policy.ragged, Pad):
        first = shape.index(None)
        deferred = () if field.codec is None or shape.count(None) == 1 else (shape.count(None),)
        shape = (*shape[:first], policy.ragged.length, *shape[first + 1 :])
        added = [Field(f"{name}_length", np.int64, deferred)]
    elif None in shape and isinstance(policy.ragged, Offsets):
        shape = shape[1:]
        added = [Field(f"{name}_offsets", np.int64)]
    cells = isinstance(field.codec, CellCodec)
    if isinstance(policy.nulls, Mask):
        added.append(Field(f"{name}_valid", np.bool_, () if cells else shape))
    nullable = field.nullable and policy.nulls == DEFAULT_NULLS
    output = _output_field(Field(name, dtype, shape, field.codec if shape == field.shape else None, nullable=nullable))
    return [output, *added]


def fingerprint(table: Table, query: Query) -> str:
    """Return a name of the query; functions are compared by identity."""
    parts = [
        table.snapshot.table,
        table.snapshot.version,
        None if query.condition is None else query.condition.describe(),
        [id(step.function) for step in query.maps],
        format_query(table, query),
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def format_query(table: Table, query: Query) -> str:
    """Return a query as Python."""
    version = f", version={table.snapshot.version!r}" if table.snapshot.version else ""
    return f"penstock.open({table.snapshot.table!r}{version})" + "".join(format_clauses(query))


def format_dataset(table: Table, query: Query) -> str:
    """Return a query as Python, with a comment about rows and columns if it has no clauses."""
    text = format_query(table, query)
    if format_clauses(query):
        return text
    names = table.snapshot.schema.names
    return f"{text}  # {_format_row_count(table, query)}, {len(names)} column{'s' * (len(names) != 1)}: {listed(names)}"


def _format_row_count(table: Table, query: Query) -> str:
    """Return the number of rows as text, if it takes only a few footers."""
    files = table.snapshot.files
    unstated = int((files.rows < 0).sum())
    if not unstated:
        count = int(files.rows.sum()) - sum(len(deleted) for deleted in files.deletes.values())
    elif unstated > FEW_FOOTERS:
        return f"rows of {len(files)} files"
    else:
        try:
            count = table.plan(query).plan.num_rows
        except (PenstockError, OSError):  # reading the table raises it
            return "unreadable rows"
    return f"{count} row{'s' * (count != 1)}"


def format_clauses(query: Query) -> list[str]:
    """Return the clauses of a query as Python, in the order in which they act."""
    calls = _format_row_clauses(query)
    if query.columns is not None and (query.sequence is None or query.sequence.columns is None):
        calls.append(_call("select", [repr(name) for name in query.columns]))
    if query.row_ids:
        calls.append(_call("with_row_ids", []))
    if query.shuffle != InOrder() or query.seed:
        shuffle = [] if query.shuffle == WindowShuffle() else [repr(query.shuffle)]
        calls.append(_call("shuffle", shuffle, seed=(query.seed, None)))
    if query.world_size > 1 or query.lanes is not None:
        calls.append(_call("shard", [str(query.rank), str(query.world_size)], lanes=(query.lanes, None)))
    if query.size is not None:
        calls.append(_call("batch", [repr(query.size)], last=(query.last, None)))
    for column in query.policies:
        calls += [
            _call(clause, [repr(policy), repr(column.name)])
            for clause, policy in (("nulls", column.nulls), ("ragged", column.ragged))
            if policy not in (DEFAULT_NULLS, DEFAULT_RAGGED)
        ]
    if query.epochs != 1:
        calls.append(_call("repeat", [] if query.epochs is None else [str(query.epochs)]))
    calls += [_call("stack", [repr(stack.name), repr(list(stack.columns))]) for stack in query.stacks]
    calls += [_call("map", [step.name], per_row=(step.per_row, False)) for step in query.maps]
    if query.skip is not None:
        calls.append(_call("on_bad_row", ["'skip'"], most=(query.skip.most, 0.01), report=(query.skip.report, None)))
    return calls


def _format_row_clauses(query: Query) -> list[str]:
    """Return the clauses that decide which rows there are."""
    calls = []
    if query.condition is not None:
        calls.append(_call("where", [repr(query.condition)], lazy=(query.lazy, False)))
    if query.sequence is not None:
        calls.append(_call("sequence", [repr(query.sequence)]))
    if query.limit is not None:
        calls.append(_call("limit", [str(query.limit)]))
    return calls


def _call(name: str, arguments: list[str], **options: tuple[Any, Any]) -> str:
    """Return a call as text, with the options that differ from their defaults."""
    changed = [f"{option}={value!r}" for option, (value, default) in options.items() if value != default]
    return f".{name}({', '.join(arguments + changed)})"


def explain(table: Table, query: Query, *, analyze: bool = False) -> str:
    """Return a page about what is read and returned, and with `analyze` about where the time goes."""
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
        lines["steps"] = f"{len(rank_epoch.schedule)} per epoch on this rank, {_dropped(rank_epoch, plan.num_rows, query)}"
    lines["fingerprint"] = plan.fingerprint
    page = "\n".join([format_query(table, query), *(f"  {name:<11} {text}" for name, text in lines.items())])
    return append_timings(table, query, page) if analyze else page


def append_timings(table: Table | MixtureTable, query: Query, page: str) -> str:
    """Return a page with the statistics of an epoch, which is read now for at most ten seconds.

    Raises:
        EmptyDatasetError: If there are no rows, or too few.
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
    line = f"  {'analyzed':<11} {read}, read now for a consumer that does nothing"
    return "\n".join([page, line, str(stats)])


def _rows(planned: Planned, query: Query) -> str:
    """Return the number of rows, or sequences, and of stored rows."""
    selected, stored = planned.plan.num_rows, planned.pruned.rows
    if query.sequence is not None:
        return f"{selected} sequences of {query.sequence.span} rows each, out of {stored} rows"
    return f"{selected} of {stored}" + (", before the lazy filter" if query.lazy else "")


def _balance(rows: int, ranks: int) -> str:
    """Return the rows of a rank; ranks differ by at most one row."""
    least, odd = divmod(rows, ranks)
    return f"{least} to {least + 1} rows per rank" if odd else f"{least} rows per rank"


def _pruned(count: int) -> str:
    return f", {count} pruned by partition or statistics" if count else ""


def _bytes(table: Table, planned: Planned, columns: tuple[str, ...]) -> str:
    """Return the size on storage of the selected columns and rows, from footers."""
    partitions = set(table.snapshot.files.partitions.column_names)
    stored = [name for name in columns if name not in partitions]
    files = np.unique(planned.plan.units.file).tolist()
    size = sum(column_bytes(table.snapshot, files, stored, table.filesystem).values())
    share = int(planned.plan.units.rows.sum()) / max(1, planned.pruned.rows)
    requests = len(planned.plan.units) * len(stored)
    return f"about {format_bytes(size * share)} of {len(stored)} columns in about {requests} requests"


def _memory(planned: Planned, query: Query) -> str:
    """Return the size of a window, estimated by the size of the files."""
    files, plan = planned.plan.snapshot.files, planned.plan
    each = int(files.size[np.unique(plan.units.file)].sum()) / max(1, int(plan.units.rows.sum()))
    window = getattr(planned.shuffle, "rows", None) or int(plan.units.rows.max(initial=0))
    rows, limit = min(window, plan.num_rows), format_bytes(query.memory_bytes)
    return f"windows of {rows} rows, {format_bytes(rows * each)} on storage; {limit} read ahead at most"


def _dropped(rank_epoch: RankEpoch, num_rows: int, query: Query) -> str:
    if query.ending != "drop" or query.batch_rows is None:
        return f"last={query.ending}"
    return f"last=drop, which leaves out {num_rows - len(rank_epoch.schedule) * query.batch_rows * query.world_size} rows"
