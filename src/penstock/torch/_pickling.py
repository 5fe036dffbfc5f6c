"""Pickling of datasets for other processes: the plan is sent along, and files are opened anew."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import cloudpickle

from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.query import Query
from penstock.dataset import Dataset
from penstock.mix import Mixture

__all__ = ["pickled", "reopened", "unpickled"]


def pickled(ds: Dataset | Mixture) -> bytes:
    """Return a pickled dataset with its plans; cloudpickle also pickles lambdas and local functions."""
    plans = [
        {
            name: (made.plan, made.shuffle, made.pruned, made.reader.condition, made.reader.lazy)
            for name, made in list(table._plans.items())  # noqa: SLF001 - a pickled table has no plans
        }
        for table, _ in _tables(ds)
    ]
    packed: bytes = cloudpickle.dumps((ds, plans))
    return packed


def unpickled(packed: bytes) -> Dataset | Mixture:
    """Return an unpickled dataset."""
    ds, made = cloudpickle.loads(packed)
    for (table, query), plans in zip(_tables(ds), made, strict=True):
        for name, (plan, shuffle, pruned, condition, lazy) in plans.items():
            reader = replace(table.reader(query), condition=condition, lazy=lazy)
            table._plans[name] = Planned(plan=plan, shuffle=shuffle, reader=reader, pruned=pruned)  # noqa: SLF001 - as above
    found: Dataset | Mixture = ds
    return found


def reopened(ds: Dataset | Mixture) -> Dataset | Mixture:
    """Return a copy of a dataset for a forked process, which shares no open file with its parent."""
    tables = [_reopened(table, query) for table, query in _tables(ds)]
    if isinstance(ds, Dataset):
        return replace(ds, _table=tables[0])
    mixture = ds._table  # noqa: SLF001 - engine values of a dataset
    sources = (replace(source, table=table) for source, table in zip(mixture.sources, tables, strict=True))
    return replace(ds, _table=replace(mixture, sources=tuple(sources)))


def _tables(ds: Dataset | Mixture) -> list[tuple[Table, Query]]:
    """Return the tables of a dataset, each with its query."""
    if isinstance(ds, Dataset):
        return [(ds._table, ds._query)]  # noqa: SLF001 - engine values of a dataset
    return [(source.table, source.query) for source in ds._table.sources]  # noqa: SLF001 - as above


def _reopened(table: Table, query: Query) -> Table:
    """Return a copy of a table that opens its files anew."""
    filesystem = cloudpickle.loads(cloudpickle.dumps(table.filesystem))
    groups = OrderedDict(table._row_groups)  # noqa: SLF001 - as above
    found = Table(snapshot=table.snapshot, filesystem=filesystem, _row_groups=groups)
    for name, made in list(table._plans.items()):  # noqa: SLF001 - as above
        reader = replace(found.reader(query), condition=made.reader.condition, lazy=made.reader.lazy)
        found._plans[name] = replace(made, reader=reader)  # noqa: SLF001 - as above
    return found
