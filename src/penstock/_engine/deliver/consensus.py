"""Share one table and plan among ranks: rank 0 opens and plans, and each rank counts its share of the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock._engine.lookup.access import columns_of
from penstock._engine.plan.count import Group
from penstock._engine.plan.table import Table, order_of
from penstock._engine.query.query import ColumnDecoding, Query
from penstock.errors import ArgumentError
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED


def shared_table(table: Table, query: Query, group: Group) -> Table:
    """Return the table as rank 0 sees it, with its plan.

    All ranks read the same rows, even if the table changes between the starts of two ranks.
    """
    check_same_on_ranks(group, lambda: _describe_query(table, query))
    snapshot, laid = group.share(lambda: (table.snapshot, table.uncounted(query)))
    # A new table without this rank's caches: rank 0 may have other files under the same numbers.
    shared = Table(snapshot=snapshot, filesystem=table.filesystem)
    check_same_on_ranks(group, lambda: _describe_columns(shared, query))  # the columns of rank 0, if all are selected
    shared.count(query, laid, group)
    return shared


def check_same_on_ranks(group: Group, describe: Callable[[], Mapping[str, Any]]) -> None:
    """Compare the descriptions of all ranks."""
    descriptions = group.gather(describe)
    for rank, description in enumerate(descriptions):
        for key in {**descriptions[0], **description}:
            value, first = description.get(key), descriptions[0].get(key)
            if value != first:
                msg = (
                    f"Rank {rank} asks for {key} {value}, and rank 0 for {first}. All ranks need the same query. "
                    "Build the dataset alike on all of them."
                )
                raise ArgumentError(msg)


def _describe_query(table: Table, query: Query) -> Mapping[str, Any]:
    """Return what must be the same on all ranks."""
    return {
        "the table": table.snapshot.table,
        **{f"the {name}": json.dumps(value) for name, value in order_of(query).items()},
        "batches of": query.size,
        "last=": query.ending,
        "lanes": query.lanes,
        ".repeat()": query.epochs,
        "ranks": query.world_size,
    }


def _describe_columns(table: Table, query: Query) -> Mapping[str, Any]:
    """Return what decides the columns of batches and their types, which must be the same for ranks that compute together."""
    columns = columns_of(table, query)
    return {
        "the columns": ", ".join(sorted(columns)),
        "the policies": describe_policies(column for column in query.policies if column.name in columns),
        ".stack()": [[stack.name, *stack.columns] for stack in query.stacks],
        ".with_row_ids()": query.row_ids,
        **describe_maps(query),
    }


def describe_policies(policies: Iterable[ColumnDecoding]) -> str | None:
    """Return the policies other than the defaults, sorted; None if there are none."""
    return ", ".join(sorted(filter(None, map(_describe_policy, policies)))) or None


def _describe_policy(column: ColumnDecoding) -> str:
    policies = ((column.nulls, DEFAULT_NULLS), (column.ragged, DEFAULT_RAGGED))
    changed = [repr(policy) for policy, default in policies if policy != default]
    return f"{' and '.join(changed)} of {column.name!r}" if changed else ""


def describe_maps(query: Query) -> Mapping[str, Any]:
    """Return the fields that the last map with declared fields returns; undeclared maps cannot be compared."""
    declared = [step.fields for step in query.maps if step.fields is not None]
    if not declared:
        return {}
    return {"a map that returns": sorted(f"{field.name}: {field.dtype} {field.shape}" for field in declared[-1])}
