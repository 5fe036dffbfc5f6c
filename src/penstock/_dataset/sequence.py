"""What the clause `sequence` accepts, and what goes together with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock import sequences
from penstock._dataset.names import before_maps, matching
from penstock._engine.plan.sequence_times import sequence_rule
from penstock._engine.query.query import Query
from penstock.errors import ArgumentError, ColumnNotFoundError
from penstock.model import Snapshot
from penstock.policies import Offsets

__all__ = ["check_sequence", "sequence"]


def sequence(given: object, query: Query, snapshot: Snapshot) -> dict[str, Any]:
    """Return what makes up a sequence, with names of the table, and the columns that are read where it says so itself."""
    if not isinstance(given, sequences.Sequence):
        msg = f"sequence got {given!r}. What makes up a sequence was expected. Give it: penstock.Sequence(length=3, by='time')."
        raise ArgumentError(msg)
    names, table = snapshot.schema.names, snapshot.table
    with before_maps(query.maps):
        for name in (given.by, *given.groups):
            if name not in names:
                raise ColumnNotFoundError.of(name, names, table=table)
    before, columns = query.sequence, query.columns
    if before is not None and before.columns is not None:
        columns = None
    if given.columns is not None:
        with before_maps(query.maps):
            found = {
                offset: tuple(dict.fromkeys(name for pattern in patterns for name in matching(pattern, names, table)))
                for offset, patterns in given.columns.items()
            }
        given = replace(given, offsets=found)
        if columns is not None:
            raise ArgumentError(_selected_twice(given))
        columns = tuple(dict.fromkeys(name for every in found.values() for name in every))
    sequence_rule(given, snapshot.schema)  # which refuses columns that cannot tell times or groups
    return {"sequence": given, "columns": columns}


def _selected_twice(given: sequences.Sequence) -> str:
    return (
        f"select was asked for together with {given!r}, which names the columns of each offset itself. "
        "Leave select out, or give offsets without columns."
    )


def check_sequence(query: Query, given: sequences.Sequence) -> None:
    """Refuse what does not go together with sequences."""
    if query.lazy:
        msg = "Sequences are made of rows that pass the filter, and a lazy filter has not run on them yet. Leave lazy=True out."
        raise ArgumentError(msg)
    if given.columns is None:
        return
    if set(query.columns or ()) != {name for names in given.columns.values() for name in names}:
        raise ArgumentError(_selected_twice(given))
    flat = [column.name for column in query.policies if isinstance(column.ragged, Offsets)]
    if query.stacks or flat:
        what = f"stack {query.stacks[0].name!r}" if query.stacks else f"Offsets() for column {flat[0]!r}"
        msg = (
            f"{what} was asked for together with {given!r}, whose offsets have columns of their own. Leave it out, or give "
            "offsets without columns."
        )
        raise ArgumentError(msg)
