"""One table for all ranks: rank 0 opens and plans, each counts its share of the rows, and all read what rank 0 saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock._engine.lookup.access import columns_of
from penstock._engine.plan.group import Group
from penstock._engine.plan.table import Table, order_of
from penstock._engine.query.query import Query
from penstock._engine.query.values import Column
from penstock.errors import ArgumentError
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED

__all__ = ["agreed", "check_told", "told_maps", "told_policies"]


def agreed(table: Table, query: Query, group: Group) -> Table:
    """Return the table as rank 0 sees it, with its plan made.

    Whatever is written to the table between the starts of two ranks, all read the same rows.

    Raises:
        ArgumentError: If ranks ask different questions.
        DataError: If rank 0 cannot read what it needs, or a rank cannot count its share.
    """
    check_told(group, lambda: _told(table, query))
    snapshot, laid = group.share(lambda: (table.snapshot, table.uncounted(query)))
    # Nothing that this rank has made of files that it saw itself, for those of rank 0 may be others by the same numbers.
    found = Table(snapshot=snapshot, filesystem=table.filesystem)
    check_told(group, lambda: _kind(found, query))  # of the columns that rank 0 sees, where all were asked for
    found.count(query, laid, group)
    return found


def check_told(group: Group, told: Callable[[], Mapping[str, Any]]) -> None:
    """Refuse ranks that say different things of what they ask.

    Raises:
        ArgumentError: If they do, on all ranks.
    """
    queries = group.gather(told)
    for rank, found in enumerate(queries):
        for key in {**queries[0], **found}:
            value, first = found.get(key), queries[0].get(key)
            if value != first:
                msg = (
                    f"Rank {rank} asks for {key} {value}, and rank 0 for {first}. All ranks must ask the same. "
                    "Build the dataset alike on all of them."
                )
                raise ArgumentError(msg)


def _told(table: Table, query: Query) -> Mapping[str, Any]:
    """Return what must be the same on all ranks."""
    question_told = {name: json.dumps(value) for name, value in order_of(query).items()}
    return {
        "the table": table.snapshot.table,
        **{f"the {name}": value for name, value in question_told.items()},
        "batches of": query.size,
        "last=": query.ending,
        "lanes": query.lanes,
        ".repeat()": query.epochs,
        "ranks": query.world_size,
    }


def _kind(table: Table, query: Query) -> Mapping[str, Any]:
    """Return what decides which columns a batch has and of which kind they are; ranks that compute together need the same."""
    columns = columns_of(table, query)
    return {
        "the columns": ", ".join(sorted(columns)),
        "the policies": told_policies(column for column in query.policies if column.name in columns),
        ".stack()": [[stack.name, *stack.columns] for stack in query.stacks],
        ".with_row_ids()": query.row_ids,
        **told_maps(query),
    }


def told_policies(policies: Iterable[Column]) -> str | None:
    """Return what was said of nulls and lists, in an order that does not depend on who said it first."""
    return ", ".join(sorted(filter(None, map(_policy, policies)))) or None


def _policy(column: Column) -> str:
    """Return what was said of a column; nothing, where that is the default."""
    said = [repr(column.nulls)] * (column.nulls != DEFAULT_NULLS) + [repr(column.ragged)] * (column.ragged != DEFAULT_RAGGED)
    return f"{' and '.join(said)} of {column.name!r}" if said else ""


def told_maps(query: Query) -> Mapping[str, Any]:
    """Return the columns that maps say they return, which must be the same on all ranks; of others nothing is known."""
    said = [step.fields for step in query.maps if step.fields is not None]
    return {"a map that returns": sorted(f"{field.name}: {field.dtype} {field.shape}" for field in said[-1])} if said else {}
