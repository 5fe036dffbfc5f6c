"""What the clause `stack` accepts, and which columns go together."""

from __future__ import annotations

from collections.abc import Sequence

from penstock._dataset.names import before_maps, matching
from penstock._engine.query.query import Query
from penstock._engine.query.values import Stack
from penstock.dtypes import numpy_type
from penstock.errors import ArgumentError
from penstock.model import Snapshot
from penstock.policies import DEFAULT_RAGGED

__all__ = ["check_stack", "stacked"]


def stacked(name: str, columns: Sequence[str], query: Query, snapshot: Snapshot) -> Stack:
    """Return which columns are stacked under a new name."""
    names = list(query.columns if query.columns is not None else snapshot.schema.names)
    if isinstance(columns, str) or not columns or not isinstance(name, str):
        msg = f"stack got {name!r} and {columns!r}. A name and a list of columns were expected: stack('x', ['a', 'b'])."
        raise ArgumentError(msg)
    with before_maps(query.maps):
        found = dict.fromkeys(column for pattern in columns for column in matching(pattern, names, snapshot.table))
    if name in names and name not in found:
        msg = f"stack would hide column {name!r}, which it does not stack. Columns: {', '.join(names)}. Choose another name."
        raise ArgumentError(msg)
    return Stack(name=name, columns=tuple(found))


def check_stack(stack: Stack, query: Query, snapshot: Snapshot) -> None:
    """Refuse to stack what are no numbers, arrays of different shapes, and times with what are none."""
    policies = {column.name: column.ragged for column in query.policies}
    shapes: dict[tuple[int | None, ...], str] = {}
    kinds: dict[str, str] = {}
    for name in stack.columns:
        field, (dtype, shape) = snapshot.fields.get(name), numpy_type(snapshot.schema.field(name).type)
        dtype, shape = (dtype, shape) if field is None else (field.dtype, field.shape)
        told = f"stack {stack.name!r} got column {name!r}, which holds "
        if dtype.kind in "OUS":
            raise ArgumentError(f"{told}text or objects. Columns of numbers were expected. Leave it out.")
        as_stored = isinstance(policies.get(name, DEFAULT_RAGGED), type(DEFAULT_RAGGED))
        if None in shape and as_stored:
            msg = f"{told}lists or arrays of different sizes. Columns of one shape were expected. Leave it out, or make it one "
            raise ArgumentError(msg + f"with .ragged(..., {name!r}).")
        if as_stored:
            shapes.setdefault(shape, name)
        kinds.setdefault(dtype.kind if dtype.kind in "mM" else "number", name)
    for what, found in (("shapes", shapes), ("kinds", kinds)):
        if len(found) > 1:
            each = ", ".join(f"{name!r} {one}" for one, name in found.items())
            msg = f"stack {stack.name!r} got columns of different {what}: {each}. Columns that are alike were expected. "
            raise ArgumentError(msg + "Stack those by themselves, or join the columns in a map.")
