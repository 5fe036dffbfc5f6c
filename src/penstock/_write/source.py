"""Datasets and loaders as input of a write: whether they yield rows or batches, and with which columns."""

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
from penstock._engine.write.schema import encoder_from_arrow
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.mix import Mixture
from penstock.model import Snapshot
from penstock.schema import Field, Schema
from penstock.schema.compat import storage_of
from penstock.schema.json import KEY, dump

__all__ = ["WriteInput", "read_dataset", "with_format_codecs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteInput:
    """The rows of a dataset.

    Attributes:
        items: Its rows or batches.
        batched: Whether they are batches.
        encoder: Their columns; None if these follow from the first item.
        stored: The same rows as Arrow tables of stored cells; None if the dataset changes cells or their order.
    """

    items: Iterable[Mapping[str, Any]]
    batched: bool
    encoder: TableEncoder | None
    stored: Iterable[pa.Table] | None = None


def read_dataset(data: Any) -> WriteInput | None:
    """Return the rows of a dataset, a mixture, a loader or an iteration; None for other data.

    Raises:
        ArgumentError: If it repeats without end.
    """
    if isinstance(data, Batches):
        query = data.iteration._query  # noqa: SLF001 - there is no public access
        snapshot, batched = None, query.size is not None
        if isinstance(data.planned, Planned):
            snapshot = data.planned.plan.snapshot
        elif not batched:  # a mixture, whose sources may have batches
            return None
    elif isinstance(data, (Dataset, Mixture, Loader)):
        query, table = data._query, data._table  # noqa: SLF001 - there is no public access
        snapshot = table.snapshot if isinstance(table, Table) else None
        batched = query.size is not None or (not isinstance(table, Table) and table.batched)
    else:
        return None
    if query.epochs is None:
        raise ArgumentError(
            f"write() got {data!r} as data, which repeats without end; expected data with an end. Leave .repeat() out, or give "
            "it a number."
        )
    encoder = None if snapshot is None else _stored_encoder(query, snapshot)
    stored = _stored_tables(data, encoder) if isinstance(data, Dataset) else None
    if stored is None and encoder is not None:
        encoder = encoder.with_wide_indices()
    return WriteInput(items=data, batched=batched, encoder=encoder, stored=stored)


def _stored_tables(ds: Dataset, encoder: TableEncoder | None) -> Iterable[pa.Table] | None:
    """Return a dataset's rows as they are stored; None if its order, rows or types differ from those of the files."""
    query, table = ds._query, ds._table  # noqa: SLF001 - there is no public access
    is_reordered = query.shuffled or query.world_size > 1 or query.lazy or query.epochs != 1
    if encoder is None or is_reordered or query.skip is not None or query.ending not in ("drop", "uneven"):
        return None
    if query.size == "row_group":
        return None
    snapshot, types = table.snapshot, {column.name: column.type for column in encoder.arrow}
    fields = [snapshot.fields[name] for name in types if name in snapshot.fields]
    if any(field.codec is not None and _readable_codec(field) is not field.codec for field in fields):
        return None
    tensors = {column.field.name for column in encoder.columns if isinstance(column.codec, codecs.Tensor)}
    if any(kind != snapshot.schema.field(name).type for name, kind in types.items() if name not in tensors):
        return None
    whole = replace(query, size=None, last=None)
    rows = table.plan(whole).plan.num_rows
    rows -= rows % query.size if query.size is not None and query.ending == "drop" else 0
    return _head(stored_tables(table, whole), rows)


def _head(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the first rows of a sequence of tables."""
    for table in tables:
        yield table.slice(0, rows)
        rows -= min(rows, table.num_rows)


def _stored_encoder(query: Query, snapshot: Snapshot) -> TableEncoder | None:
    """Return the columns of a query that keeps cells as they are stored; None if its clauses change them."""
    if query.maps or query.stacks or query.policies or query.row_ids or query.sequence is not None:
        return None
    names = snapshot.schema.names if query.columns is None else query.columns
    if query.ending == "pad" or not names:
        return None
    fields = {
        name: field.with_codec(_readable_codec(field)) for name in names if (field := snapshot.fields.get(name)) is not None
    }
    arrows = [_arrow_field(fields[name]) if name in fields else snapshot.schema.field(name) for name in names]
    metadata = {KEY: dump(Schema(snapshot.table, list(fields.values()))).encode()} if fields else None
    return encoder_from_arrow(pa.schema(arrows, metadata=metadata))


def with_format_codecs(encoder: TableEncoder, add_codecs: Callable[[Schema], Schema]) -> TableEncoder:
    """Return an encoder with the codecs of a format in place of default codecs."""
    plain = [_without_default_codec(column.field, column.codec) for column in encoder.columns if column.codec is not None]
    fields = {field.name: field.with_codec(field.codec or codecs.default(field)) for field in add_codecs(Schema("", plain))}
    arrows = [
        column.arrow if (field := fields.get(column.field.name)) is None else _arrow_field(field) for column in encoder.columns
    ]
    metadata = {KEY: dump(Schema("", list(fields.values()))).encode()} if fields else None
    return encoder_from_arrow(pa.schema(arrows, metadata=metadata))


def _arrow_field(field: Field) -> pa.Field:
    return pa.field(field.name, storage_of(field), nullable=field.nullable)


def _without_default_codec(field: Field, codec: codecs.Codec) -> Field:
    """Return a field with its codec, or without it if it is the default one."""
    bare = Field(field.name, field.dtype, field.shape, nullable=field.nullable)
    return bare if codecs.default(bare) == codec else field.with_codec(codec)


def _readable_codec(field: Field) -> codecs.Codec:
    """Return the codec of a field if readers of the new table can find it by its name, or the default."""
    codec = field.codec
    if codec is None or isinstance(codecs.named(codec.name, codec.options()), codecs.Unknown):
        return codecs.default(field)
    return codec
