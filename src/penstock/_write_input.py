"""Datasets and loaders that are given to be written: they know whether rows or batches come, and mostly of which columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock import codecs
from penstock._engine.deliver.loader import Batches, Loader
from penstock._engine.lookup.access import stored_tables
from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.query import Query
from penstock._engine.write.encode import TableEncoder
from penstock._engine.write.schema import of_arrow
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.mix import Mixture
from penstock.model import Snapshot
from penstock.schema import Field, Schema
from penstock.schema.compat import storage_of
from penstock.schema.json import KEY, dump

__all__ = ["WriteInput", "given", "suited"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteInput:
    """What a dataset hands out.

    Attributes:
        items: Its rows or batches.
        batched: Whether they are batches.
        columns: What they are stored in; None where that follows from the first of them.
        stored: The same rows as tables of Arrow, cells as they are stored in such columns; None where there are no such.
    """

    items: Iterable[Mapping[str, Any]]
    batched: bool
    columns: TableEncoder | None
    stored: Iterable[pa.Table] | None = None


def given(data: Any) -> WriteInput | None:
    """Return what a dataset, a mixture, a loader or an iteration hands out; None for anything else.

    Raises:
        ArgumentError: If it has no end.
    """
    if isinstance(data, Batches):
        query = data.iteration._query  # noqa: SLF001 - it has no other way to tell
        snapshot, batched = None, query.size is not None
        if isinstance(data.planned, Planned):
            snapshot = data.planned.plan.snapshot
        elif not batched:  # a mixture, and its sources may have batches
            return None
    elif isinstance(data, (Dataset, Mixture, Loader)):
        query, table = data._query, data._table  # noqa: SLF001 - the same
        snapshot = table.snapshot if isinstance(table, Table) else None
        batched = query.size is not None or (not isinstance(table, Table) and table.batched)
    else:
        return None
    if query.epochs is None:
        msg = f"write got {data!r} to write, which repeats without end. One with an end was expected. Leave .repeat() out, or "
        raise ArgumentError(msg + "say how often.")
    columns = None if snapshot is None else _stored(query, snapshot)
    stored = _tables(data, columns) if isinstance(data, Dataset) else None
    if stored is None and columns is not None:
        columns = columns.roomy()
    return WriteInput(items=data, batched=batched, columns=columns, stored=stored)


def _tables(ds: Dataset, columns: TableEncoder | None) -> Iterable[pa.Table] | None:
    """Return a dataset's rows as they are stored; None where they come in another order, or other rows, or in other types."""
    query, table = ds._query, ds._table  # noqa: SLF001 - a dataset has no other parts
    other_order = query.shuffled or query.world_size > 1 or query.lazy or query.epochs != 1
    if columns is None or other_order or query.skip is not None or query.ending not in ("drop", "uneven"):
        return None
    if query.size is not None and not isinstance(query.size, int):
        return None
    snapshot, kinds = table.snapshot, {column.name: column.type for column in columns.arrow}
    known = [snapshot.fields[name] for name in kinds if name in snapshot.fields]
    if any(field.codec is not None and _known(field) is not field.codec for field in known):
        return None
    tensors = {column.field.name for column in columns.columns if isinstance(column.codec, codecs.Tensor)}
    if any(kind != snapshot.schema.field(name).type for name, kind in kinds.items() if name not in tensors):
        return None
    whole = replace(query, size=None, last=None)
    rows = table.plan(whole).plan.num_rows
    left = rows - (rows % query.size if query.size is not None and query.ending == "drop" else 0)
    return _first(stored_tables(table, whole), left)


def _first(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield so many rows of tables that follow one another."""
    for table in tables:
        yield table.slice(0, rows)
        rows -= min(rows, table.num_rows)


def _stored(query: Query, snapshot: Snapshot) -> TableEncoder | None:
    """Return the columns of rows that come as they are stored; None where clauses make others of them."""
    if query.maps or query.stacks or query.policies or query.row_ids or query.sequence is not None:
        return None
    if query.ending == "pad":
        return None
    names = snapshot.schema.names if query.columns is None else query.columns
    arrows, stated = [], []
    for name in names:
        field = snapshot.fields.get(name)
        if field is None:
            arrows.append(snapshot.schema.field(name))
            continue
        field = field.with_codec(_known(field))
        arrows.append(_arrow_of(field))
        stated.append(field)
    metadata = {KEY: dump(Schema(snapshot.table, stated)).encode()} if stated else None
    return of_arrow(pa.schema(arrows, metadata=metadata)) if names else None


def suited(columns: TableEncoder, suit: Callable[[Schema], Schema]) -> TableEncoder:
    """Return columns with the codecs that a format has for them, where they had but the default; others stay."""
    plain = [_by_default(column.field, column.codec) for column in columns.columns if column.codec is not None]
    fields = {field.name: field for field in suit(Schema("", plain))}
    full = {name: field.with_codec(field.codec or codecs.default(field)) for name, field in fields.items()}
    arrows = [
        column.arrow if (field := full.get(column.field.name)) is None else _arrow_of(field) for column in columns.columns
    ]
    stated = Schema("", list(full.values()))
    return of_arrow(pa.schema(arrows, metadata={KEY: dump(stated).encode()} if full else None))


def _arrow_of(field: Field) -> pa.Field:
    return pa.field(field.name, storage_of(field), nullable=field.nullable)


def _by_default(field: Field, codec: codecs.Codec) -> Field:
    """Return a field with its codec, or without it if that is the one it would get anyway."""
    bare = Field(field.name, field.dtype, field.shape, nullable=field.nullable)
    return bare if codecs.default(bare) == codec else field.with_codec(codec)


def _known(field: Field) -> codecs.Codec:
    """Return the codec of a field, where whoever reads the new table knows it by its name; else the default."""
    codec = field.codec
    if codec is None or isinstance(codecs.named(codec.name, codec.options()), codecs.Unknown):
        return codecs.default(field)
    return codec
