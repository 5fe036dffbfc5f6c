"""A dataset in another process: with the plan that was made, so that it is not made again, and with files opened anew."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import cloudpickle

from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.query import Query
from penstock.dataset import Dataset
from penstock.mix import Mixture

__all__ = ["received", "renewed", "sent"]


def sent(ds: Dataset | Mixture) -> bytes:
    """Return a dataset as it travels; functions of all kinds travel too."""
    plans = [
        {
            name: (made.plan, made.shuffle, made.pruned, made.reader.condition, made.reader.lazy)
            for name, made in list(table._plans.items())  # noqa: SLF001 - plans do not travel with their table
        }
        for table, _ in _tables(ds)
    ]
    packed: bytes = cloudpickle.dumps((ds, plans))
    return packed


def received(packed: bytes) -> Dataset | Mixture:
    """Return a dataset that has travelled."""
    ds, made = cloudpickle.loads(packed)
    for (table, query), plans in zip(_tables(ds), made, strict=True):
        for name, (plan, shuffle, pruned, condition, lazy) in plans.items():
            reader = replace(table.reader(query), condition=condition, lazy=lazy)
            table._plans[name] = Planned(plan=plan, shuffle=shuffle, reader=reader, pruned=pruned)  # noqa: SLF001 - the same
    found: Dataset | Mixture = ds
    return found


def renewed(ds: Dataset | Mixture) -> Dataset | Mixture:
    """Return a dataset that a forked process has inherited, with nothing open that its parent uses too."""
    tables = [_renewed(table, query) for table, query in _tables(ds)]
    if isinstance(ds, Dataset):
        return replace(ds, _table=tables[0])
    mixture = ds._table  # noqa: SLF001 - a dataset has no other parts
    sources = (replace(source, table=table) for source, table in zip(mixture.sources, tables, strict=True))
    return replace(ds, _table=replace(mixture, sources=tuple(sources)))


def _tables(ds: Dataset | Mixture) -> list[tuple[Table, Query]]:
    """Return the tables that are read, and what is asked of each."""
    if isinstance(ds, Dataset):
        return [(ds._table, ds._query)]  # noqa: SLF001 - a dataset has no other parts
    return [(source.table, source.query) for source in ds._table.sources]  # noqa: SLF001 - the same


def _renewed(table: Table, query: Query) -> Table:
    """Return a table whose files are opened anew."""
    filesystem = cloudpickle.loads(cloudpickle.dumps(table.filesystem))
    groups = OrderedDict(table._row_groups)  # noqa: SLF001 - the same
    found = Table(snapshot=table.snapshot, filesystem=filesystem, _row_groups=groups)
    for name, made in list(table._plans.items()):  # noqa: SLF001 - the same
        reader = replace(found.reader(query), condition=made.reader.condition, lazy=made.reader.lazy)
        found._plans[name] = replace(made, reader=reader)  # noqa: SLF001 - the same
    return found
