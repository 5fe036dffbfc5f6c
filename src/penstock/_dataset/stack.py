"""Argument checks of the clause `stack`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock._dataset.names import maps_run_last, matching_names
from penstock._engine.query.query import Query, Stack
from penstock.dtypes import numpy_type
from penstock.errors import ArgumentError
from penstock.model import Snapshot
from penstock.policies import DEFAULT_RAGGED

__all__ = ["check_stack", "new_stack"]


def new_stack(name: str, columns: Sequence[str], query: Query, snapshot: Snapshot) -> Stack:
    """Return a stack of columns, with resolved column names."""
    names = list(query.columns if query.columns is not None else snapshot.schema.names)
    if isinstance(columns, str) or not columns or not isinstance(name, str):
        msg = (
            f"stack() got {name!r} and {columns!r}; expected a name and a list of columns, for example stack('x', ['a', 'b'])."
        )
        raise ArgumentError(msg)
    with maps_run_last(query.maps):
        stacked = dict.fromkeys(column for pattern in columns for column in matching_names(pattern, names, snapshot.table))
    if name in names and name not in stacked:
        msg = (
            f"stack() got the name {name!r}, which is a column that it does not stack. Columns: {', '.join(names)}. Choose "
            "another name."
        )
        raise ArgumentError(msg)
    return Stack(name=name, columns=tuple(stacked))


def check_stack(stack: Stack, query: Query, snapshot: Snapshot) -> None:
    """Check that the columns of a stack hold numbers of one shape, or times only."""
    policies = {column.name: column.ragged for column in query.policies}
    shapes: dict[tuple[int | None, ...], str] = {}
    kinds: dict[str, str] = {}
    for name in stack.columns:
        field, (dtype, shape) = snapshot.fields.get(name), numpy_type(snapshot.schema.field(name).type)
        dtype, shape = (dtype, shape) if field is None else (field.dtype, field.shape)
        column = f"stack({stack.name!r}) got column {name!r}, which holds "
        if dtype.kind in "OUS":
            raise ArgumentError(f"{column}text or objects; expected columns of numbers. Remove it.")
        as_stored = isinstance(policies.get(name, DEFAULT_RAGGED), type(DEFAULT_RAGGED))
        if None in shape and as_stored:
            msg = f"{column}lists or arrays of different sizes; expected columns of one shape. Remove it, or give it one shape "
            raise ArgumentError(msg + f"with .ragged(..., {name!r}).")
        if as_stored:
            shapes.setdefault(shape, name)
        kinds.setdefault(dtype.kind if dtype.kind in "mM" else "number", name)
    for what, groups in (("shapes", shapes), ("kinds", kinds)):
        if len(groups) > 1:
            each = ", ".join(f"{name!r} {one}" for one, name in groups.items())
            msg = (
                f"stack({stack.name!r}) got columns of different {what}: {each}. Stack columns of one kind and shape, or join "
            )
            raise ArgumentError(msg + "them in a map.")
