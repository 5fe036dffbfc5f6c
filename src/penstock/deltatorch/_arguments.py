"""The arguments of DeltaTorch as a dataset of Penstock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any

import pyarrow as pa
from torch import distributed

from penstock._engine.plan.table import Table
from penstock._engine.runtime.threads import default_threads
from penstock._open import open as open_table
from penstock.dataset import Dataset
from penstock.deltatorch._sample_map import FieldSpec, SampleMap
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError, FilterError
from penstock.filters import from_tuples
from penstock.formats.delta import DeltaFormat
from penstock.formats.delta.partition_values import partition_column
from penstock.policies import Mask
from penstock.schema import CellCodec
from penstock.torch import Loader, loader
from penstock.torch._distributed import ranks as detected_ranks

__all__ = ["DeltaRead", "RankArguments", "check_id", "open_for_ranks"]

NULLS = {"=": "is null", "==": "is null", "!=": "is not null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankArguments:
    """The rank arguments of DeltaTorch.

    Attributes:
        fixed: Whether `rank` and `size` are used, instead of those of torch.distributed.
        rank: The number of this reader.
        size: The number of readers.
    """

    fixed: bool
    rank: int | None
    size: int | None

    def check(self) -> None:
        """Check the arguments.

        Raises:
            ArgumentError: If a number is missing, or would have no effect.
        """
        if self.fixed and (self.rank is None or self.size is None):
            msg = f"use_fixed_rank=True was given with rank={self.rank!r} and num_ranks={self.size!r}; expected numbers. "
            raise ArgumentError(msg + "Give both, or leave use_fixed_rank out.")
        given = self.rank is not None or self.size is not None
        if given and not self.fixed and not (distributed.is_available() and distributed.is_initialized()):
            msg = (
                f"rank={self.rank!r} and num_ranks={self.size!r} were given without use_fixed_rank=True, so that all rows "
                "would be read; expected both, or neither,. Give use_fixed_rank=True, or leave them out."
            )
            raise ArgumentError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRead:
    """The rows and columns that are read, without batches.

    Attributes:
        ds: The rows and columns.
        fields: The columns, and how their values are converted.
        masked: The columns whose nulls are in another column.
        zoned: The columns of timestamps with a time zone.
        ranks: The rank arguments.
        threads: The number of threads: that of workers, but at most one per processor.
    """

    ds: Dataset
    fields: tuple[FieldSpec, ...]
    masked: frozenset[str]
    zoned: frozenset[str]
    ranks: RankArguments
    threads: int

    @classmethod
    def of(
        cls,
        table: Dataset,
        fields: Sequence[FieldSpec] | None,
        partition_filter: Sequence[Any] | None,
        ranks: RankArguments,
        num_workers: int,
    ) -> DeltaRead:
        """Return what the arguments read of an open table.

        Raises:
            ArgumentError: If an argument is invalid.
            ColumnNotFoundError: If the table has no such column.
        """
        if type(num_workers) is not int or num_workers < 0:
            msg = f"num_workers={num_workers!r} was given; expected a whole number from 0 on. Give one: num_workers=4."
            raise ArgumentError(msg)
        specs = _field_specs(fields, table)
        schema = table._table.snapshot.schema  # noqa: SLF001 - a dataset has the types of NumPy, and a filter needs those of the table
        ds = table.where(from_tuples(_convert_filter(partition_filter, schema))) if partition_filter else table
        ds = ds.select(*(table.schema[name] for name in dict.fromkeys(field.name for field in specs)))
        # A list that is not nullable may have null items.
        masked = [field.name for field in ds.schema if (field.nullable or field.shape) and field.dtype.kind in "biufmM"]
        for name in masked:
            ds = ds.nulls(Mask(), name)
        return cls(
            ds=ds,
            fields=specs,
            masked=frozenset(masked),
            zoned=frozenset(
                name for name in schema.names if pa.types.is_timestamp(schema.field(name).type) and schema.field(name).type.tz
            ),
            ranks=ranks,
            threads=max(1, min(num_workers, default_threads())),
        )

    def sample_map(self, *, collate: Any = None, rows: bool = False) -> SampleMap:
        """Return the map that converts rows to samples, or batches of them."""
        return SampleMap(fields=self.fields, masked=self.masked, zoned=self.zoned, collate=collate, rows=rows)

    def shard(self, ds: Dataset) -> Dataset:
        """Return this rank's shard of a dataset; with a process group, all ranks must call it."""
        ranked = loader(ds, rank=self.ranks.rank, world_size=self.ranks.size) if self.ranks.fixed else loader(ds)
        shard: Dataset = ranked.dataset.ds
        return shard

    def loader(self, ds: Dataset) -> Loader:
        """Return the loader of this rank's shard of a dataset. It raises an error if torch.distributed has other ranks then."""
        result = Loader(ds)
        result._rank_is_assumed = not self.ranks.fixed  # noqa: SLF001 - the ranks were detected here
        return result


def open_for_ranks(path: Any, version: int | None, storage_options: Mapping[str, Any] | None, ranks: RankArguments) -> Dataset:
    """Return a table pinned to a version; with a process group, all ranks must call it, and get the version of rank 0."""

    def open_at(at: int | str | None) -> Dataset:
        return _with_stored_bytes(open_table(path, version=at, storage_options=storage_options, format=DeltaFormat()))

    ranks.check()
    group = None if ranks.fixed else detected_ranks(None, None, None).group
    if group is None:
        return open_at(version)
    # A newer version may not have the columns that rank 0 has checked.
    tables: list[Dataset] = []

    def open_on_rank_0() -> str:
        tables.append(open_at(version))
        return tables[0]._table.snapshot.version  # noqa: SLF001 - a Dataset has no public snapshot

    pinned = group.share(open_on_rank_0)
    return tables[0] if tables else open_at(pinned)


def _with_stored_bytes(table: Dataset) -> Dataset:
    """Return a table without cell codecs: a `FieldSpec` says how bytes are decoded."""
    snapshot = table._table.snapshot  # noqa: SLF001 - a Dataset has no public snapshot
    fields = {name: field for name, field in snapshot.fields.items() if not isinstance(field.codec, CellCodec)}
    return Dataset(Table(snapshot=replace(snapshot, fields=fields), filesystem=table._table.filesystem))  # noqa: SLF001 - the same


def check_id(id_field: str | None, table: Dataset) -> None:
    """Check that the table has the id column, which is not used.

    Raises:
        ColumnNotFoundError: If there is no such column.
    """
    if id_field is not None and id_field not in table.schema.names:
        raise ColumnNotFoundError.of(str(id_field), list(table.schema.names), table="the table")


def _field_specs(given: Sequence[FieldSpec] | None, table: Dataset) -> tuple[FieldSpec, ...]:
    """Return the columns that are read; by default all columns."""
    if given is None:
        return tuple(FieldSpec(name) for name in table.schema.names)
    if not given or any(not isinstance(field, FieldSpec) for field in given):
        msg = f"fields={given!r} was given; expected a list of FieldSpec. Give one: fields=[FieldSpec('image')]."
        raise ArgumentError(msg)
    for field in given:
        if field.name not in table.schema.names:
            raise ColumnNotFoundError.of(field.name, table.schema.names, table="the table")
        field.check()
    names = [field.target for field in given]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        msg = f"Two fields are called {duplicate!r}; expected different names. Give one of them another target_name."
        raise ArgumentError(msg)
    return tuple(given)


def _convert_filter(condition: Sequence[Any], schema: pa.Schema) -> Any:
    """Return a filter whose values have the types of their columns; partition values may be text, as in a Delta log."""
    match condition:
        case [str(name), str(op), *value]:
            return _convert_clause(name, op, value, schema)
        case [[*_], *_]:
            return [_convert_filter(clause, schema) for clause in condition]
    msg = (
        f"partition_filter={condition!r} was given; expected a list of (column, operator, value). "
        "Give one: [('split', '=', 'train')]."
    )
    raise FilterError(msg)


def _convert_clause(name: str, op: str, value: Sequence[Any], schema: pa.Schema) -> tuple[Any, ...]:
    if name not in schema.names:
        raise ColumnNotFoundError.of(name, schema.names, table="the table")
    if value == [""] and op in NULLS:  # null in the directory name of a partition
        return (name, NULLS[op])
    kind = schema.field(name).type
    return (name, op, *(_convert_value(item, kind, name) for item in value))


def _convert_value(value: Any, kind: pa.DataType, name: str) -> Any:
    if isinstance(value, list | tuple | set):
        return [_convert_value(item, kind, name) for item in value]
    if not isinstance(value, str) or pa.types.is_string(kind):
        return value
    try:
        return partition_column(pa.array([value]), kind, UTC, repr(name))[0].as_py()
    except DataError as error:
        msg = f"partition_filter compares column {name!r} with {value!r}, and the column is {kind}. Give a value of that type."
        raise FilterError(msg) from error
