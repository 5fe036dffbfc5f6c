"""What DeltaTorch's arguments ask of a table, in the words of a dataset."""

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
from penstock.deltatorch._samples import FieldSpec, Samples
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError, FilterError
from penstock.filters import from_tuples
from penstock.formats.delta import DeltaFormat
from penstock.formats.delta.partition_values import partition_column
from penstock.policies import Mask
from penstock.schema import CellCodec
from penstock.torch import Loader, loader
from penstock.torch._distributed import ranks as found_ranks

__all__ = ["Asked", "Ranks", "check_id", "table_of"]

NULLS = {"=": "is null", "==": "is null", "!=": "is not null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who reads.

    Attributes:
        fixed: Whether the numbers count; else those of torch.distributed do, where it is initialised.
        rank: Which of the readers this is.
        size: How many there are.
    """

    fixed: bool
    rank: int | None
    size: int | None

    def check(self) -> None:
        """Refuse numbers that would count for nothing, or that are missing.

        Raises:
            ArgumentError: If so.
        """
        if self.fixed and (self.rank is None or self.size is None):
            msg = f"use_fixed_rank=True was given with rank={self.rank!r} and num_ranks={self.size!r}. Numbers were expected. "
            raise ArgumentError(msg + "Give both, or leave use_fixed_rank out.")
        given = self.rank is not None or self.size is not None
        if given and not self.fixed and not (distributed.is_available() and distributed.is_initialized()):
            msg = (
                f"rank={self.rank!r} and num_ranks={self.size!r} were given without use_fixed_rank=True, so that all rows "
                "would be read. Both, or neither, were expected. Give use_fixed_rank=True, or leave them out."
            )
            raise ArgumentError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a table, without how its rows are put together.

    Attributes:
        ds: The rows and columns.
        fields: The columns, and what becomes of them.
        masked: The columns whose nulls are told by another column.
        zoned: The columns of moments, which Python has with their zone.
        ranks: Who reads.
        threads: How many threads read: as many as workers were asked for, and no more than there are processors.
    """

    ds: Dataset
    fields: tuple[FieldSpec, ...]
    masked: frozenset[str]
    zoned: frozenset[str]
    ranks: Ranks
    threads: int

    @classmethod
    def of(
        cls,
        table: Dataset,
        fields: Sequence[FieldSpec] | None,
        partition_filter: Sequence[Any] | None,
        ranks: Ranks,
        num_workers: int,
    ) -> Asked:
        """Return what is asked of a table that was opened.

        Raises:
            ArgumentError: If a value cannot be meant.
            ColumnNotFoundError: If the table has no such column.
        """
        if type(num_workers) is not int or num_workers < 0:
            msg = f"num_workers={num_workers!r} was given. A whole number from 0 on was expected. Give one: num_workers=4."
            raise ArgumentError(msg)
        chosen = _fields(fields, table)
        kinds = table._table.snapshot.schema  # noqa: SLF001 - a dataset tells NumPy's types, and a filter asks in the table's
        ds = table.where(from_tuples(_typed(partition_filter, kinds))) if partition_filter else table
        ds = ds.select(*(table.schema[name] for name in dict.fromkeys(field.name for field in chosen)))
        # Lists may have nulls among their items, whatever is said of the lists.
        masked = [field.name for field in ds.schema if (field.nullable or field.shape) and field.dtype.kind in "biufmM"]
        for name in masked:
            ds = ds.nulls(Mask(), name)
        return cls(
            ds=ds,
            fields=chosen,
            masked=frozenset(masked),
            zoned=frozenset(
                name for name in kinds.names if pa.types.is_timestamp(kinds.field(name).type) and kinds.field(name).type.tz
            ),
            ranks=ranks,
            threads=max(1, min(num_workers, default_threads())),
        )

    def samples(self, *, collate: Any = None, rows: bool = False) -> Samples:
        """Return what makes samples of rows, or batches of them."""
        return Samples(fields=self.fields, masked=self.masked, zoned=self.zoned, collate=collate, rows=rows)

    def shared(self, ds: Dataset) -> Dataset:
        """Return this rank's share of a dataset; with a process group, all ranks must call it."""
        found = loader(ds, rank=self.ranks.rank, world_size=self.ranks.size) if self.ranks.fixed else loader(ds)
        share: Dataset = found.dataset.ds
        return share

    def loader(self, ds: Dataset) -> Loader:
        """Return what hands out a dataset that is this rank's share; it sees to it that ranks are still those."""
        found = Loader(ds)
        found._assumed = not self.ranks.fixed  # noqa: SLF001 - they were found out, here and not by it
        return found


def table_of(path: Any, version: int | None, storage_options: Mapping[str, Any] | None, ranks: Ranks) -> Dataset:
    """Return a table at a version, pinned; with a process group, all ranks must call it, and get what rank 0 sees."""

    def opened(at: int | str | None) -> Dataset:
        return _as_stored(open_table(path, version=at, storage_options=storage_options, format=DeltaFormat()))

    ranks.check()
    group = None if ranks.fixed else found_ranks(None, None, None).group
    if group is None:
        return opened(version)
    # What is asked is checked against the table's columns, which a newer version may not have.
    here: list[Dataset] = []
    pinned = group.share(lambda: _version(here, opened(version)))
    return here[0] if here else opened(pinned)


def _as_stored(table: Dataset) -> Dataset:
    """Return a table whose cells of bytes come as bytes, whatever the table says of them: that is up to a `FieldSpec`."""
    snapshot = table._table.snapshot  # noqa: SLF001 - a dataset has no other parts
    fields = {name: field for name, field in snapshot.fields.items() if not isinstance(field.codec, CellCodec)}
    return Dataset(Table(snapshot=replace(snapshot, fields=fields), filesystem=table._table.filesystem))  # noqa: SLF001 - the same


def _version(kept: list[Dataset], table: Dataset) -> str:
    """Return the version of a table, which is kept."""
    kept.append(table)
    return table._table.snapshot.version  # noqa: SLF001 - a dataset has no other parts


def check_id(id_field: str | None, table: Dataset) -> None:
    """Refuse an id that the table does not have; it is needed for nothing else.

    Raises:
        ColumnNotFoundError: If there is no such column.
    """
    if id_field is not None and id_field not in table.schema.names:
        raise ColumnNotFoundError.of(str(id_field), list(table.schema.names), table="the table")


def _fields(given: Sequence[FieldSpec] | None, table: Dataset) -> tuple[FieldSpec, ...]:
    """Return the columns that are wanted; all of them where none is named."""
    if given is None:
        return tuple(FieldSpec(name) for name in table.schema.names)
    if not given or any(not isinstance(field, FieldSpec) for field in given):
        msg = f"fields={given!r} was given. A list of FieldSpec was expected. Give one: fields=[FieldSpec('image')]."
        raise ArgumentError(msg)
    for field in given:
        if field.name not in table.schema.names:
            raise ColumnNotFoundError.of(field.name, table.schema.names, table="the table")
        field.check()
    names = [field.target for field in given]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        msg = f"Two fields are called {twice!r}. Different names were expected. Give one of them another target_name."
        raise ArgumentError(msg)
    return tuple(given)


def _typed(condition: Sequence[Any], kinds: pa.Schema) -> Any:
    """Return a filter whose values have the types of their columns: partition values may be given as text, as in a log."""
    match condition:
        case [str(name), str(op), *value]:
            return _clause(name, op, value, kinds)
        case [[*_], *_]:
            return [_typed(clause, kinds) for clause in condition]
    msg = (
        f"partition_filter={condition!r} was given. A list of (column, operator, value) was expected. "
        "Give one: [('split', '=', 'train')]."
    )
    raise FilterError(msg)


def _clause(name: str, op: str, value: Sequence[Any], kinds: pa.Schema) -> tuple[Any, ...]:
    if name not in kinds.names:
        raise ColumnNotFoundError.of(name, kinds.names, table="the table")
    if value == [""] and op in NULLS:  # how a null is written among partition values
        return (name, NULLS[op])
    kind = kinds.field(name).type
    return (name, op, *(_value(one, kind, name) for one in value))


def _value(value: Any, kind: pa.DataType, name: str) -> Any:
    if isinstance(value, list | tuple | set):
        return [_value(one, kind, name) for one in value]
    if not isinstance(value, str) or pa.types.is_string(kind):
        return value
    try:
        return partition_column(pa.array([value]), kind, UTC, repr(name))[0].as_py()
    except DataError as error:
        msg = f"partition_filter compares column {name!r} with {value!r}, and the column is {kind}. Give a value of that type."
        raise FilterError(msg) from error
