"""Argument checks of the clause `sequence`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock import sequences
from penstock._dataset.names import maps_run_last, matching_names
from penstock._engine.plan.sequence_times import sequence_rule
from penstock._engine.query.query import Query
from penstock.errors import ArgumentError, ColumnNotFoundError
from penstock.model import Snapshot
from penstock.policies import Offsets

__all__ = ["check_sequence", "sequence_changes"]


def sequence_changes(sequence: object, query: Query, snapshot: Snapshot) -> dict[str, Any]:
    """Return what the clause changes in a query: the sequence, with resolved column names, and the columns read for it."""
    if not isinstance(sequence, sequences.Sequence):
        msg = f"sequence() got {sequence!r}; expected a Sequence object, for example penstock.Sequence(length=3, by='time')."
        raise ArgumentError(msg)
    names, table = snapshot.schema.names, snapshot.table
    with maps_run_last(query.maps):
        for name in (sequence.by, *sequence.groups):
            if name not in names:
                raise ColumnNotFoundError.of(name, names, table=table)
    before, columns = query.sequence, query.columns
    if before is not None and before.columns is not None:
        columns = None
    if sequence.columns is not None:
        with maps_run_last(query.maps):
            offsets = {
                offset: tuple(dict.fromkeys(name for pattern in patterns for name in matching_names(pattern, names, table)))
                for offset, patterns in sequence.columns.items()
            }
        sequence = replace(sequence, offsets=offsets)
        if columns is not None:
            raise ArgumentError(_selected_twice(sequence))
        columns = tuple(dict.fromkeys(name for selected in offsets.values() for name in selected))
    sequence_rule(sequence, snapshot.schema)  # raises for columns that cannot hold times or groups
    return {"sequence": sequence, "columns": columns}


def _selected_twice(sequence: sequences.Sequence) -> str:
    return (
        f"select() does not combine with {sequence!r}, which selects the columns of each offset itself. "
        "Remove select(), or give offsets without columns."
    )


def check_sequence(query: Query, sequence: sequences.Sequence) -> None:
    """Check a sequence against the other clauses of its query."""
    if query.lazy:
        msg = "sequence() does not combine with a lazy filter: sequences are made of the rows that pass it. Remove lazy=True."
        raise ArgumentError(msg)
    if sequence.columns is None:
        return
    if set(query.columns or ()) != {name for names in sequence.columns.values() for name in names}:
        raise ArgumentError(_selected_twice(sequence))
    flat = [column.name for column in query.policies if isinstance(column.ragged, Offsets)]
    if query.stacks or flat:
        clause = f"stack({query.stacks[0].name!r})" if query.stacks else f"Offsets() for column {flat[0]!r}"
        msg = (
            f"{clause} does not combine with {sequence!r}, whose offsets have columns of their own. Remove it, or give "
            "offsets without columns."
        )
        raise ArgumentError(msg)
