"""Call the user's functions on batches or rows, and check what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import randomness
from penstock._engine.query.query import NOTE, Batch, Map, Places, Stack
from penstock.errors import MapError
from penstock.schema import Field

ADVICE = ' A dataset with .on_bad_row("skip") finds the rows that it fails on, and lists them in loader.skipped.'
"""The end of the note for errors that a bad row can cause."""


def apply_stack(stack: Stack, batch: Batch) -> Batch:
    """Return a batch with some of its columns stacked into one, which comes last."""
    whole = np.stack([batch[name] for name in stack.columns], axis=1)
    return {**{name: values for name, values in batch.items() if name not in stack.columns}, stack.name: whole}


def apply_map(
    step: Map, batch: Batch, places: Places, key: tuple[int, int, int], *, resize: bool, free: frozenset[str] = frozenset()
) -> Batch:
    """Return the batch that a user's function returns."""
    if step.per_row:
        return _apply_by_rows(step, batch, places, key)
    returned = _call(step, batch, int(places[0]) if len(places) else 0, key)
    columns = {
        name: values
        if type(values) is np.ndarray and values.ndim and values.dtype.kind not in "US"
        else _column(step, name, values)
        for name, values in returned.items()
    }
    sizes = {len(values) for name, values in columns.items() if name not in free}
    if len(sizes) > 1 or (sizes and not resize and sizes != {len(places)}):
        msg = (
            f"map {step.name} got {len(places)} rows and returned columns of other lengths ({_lengths(columns)}). It must "
            f"return as many rows as it gets. {step.advice}"
        )
        raise MapError(msg)
    return _check_fields(step, columns)


def by_row(step: Map) -> Map:
    """Return a map that calls the function with one row at a time."""
    return replace(step, per_row=True)


def apply_to_row(step: Map, row: Mapping[str, Any], place: int, key: tuple[int, int, int]) -> dict[str, Any]:
    """Return the row that a user's function returns."""
    return dict(_check_fields(step, dict(_call(step, row, place, key))))


def _call(step: Map, data: Mapping[str, Any], place: int, key: tuple[int, int, int]) -> Mapping[str, Any]:
    """Call the function, with a generator if it takes one, and return its mapping."""
    try:
        if not step.wants_rng:
            returned = step.function(data)
        else:
            rng = np.random.Generator(np.random.Philox(key=randomness.key("map", *key, place)))
            returned = step.function(data, rng=rng) if step.rng_by_name else step.function(data, rng)
    except StopIteration as error:
        msg = f"map {step.name} raised StopIteration, which would end the dataset silently. Catch it, or raise another error."
        raise MapError(msg) from error
    except BaseException as error:  # also those that end the process: only this note names the map
        hint: str = getattr(step.function, "finding", ADVICE)
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            hint = ""
        error.add_note(f"{NOTE}{step.name}, on the rows from position {place} of epoch {key[1]}.{hint}")
        raise
    if not isinstance(returned, Mapping):
        msg = (
            f"map {step.name} returned {type(returned).__name__}; expected a mapping of column names to values. "
            "Return the batch, changed or not."
        )
        raise MapError(msg)
    return returned


def _lengths(columns: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {len(values)}" for name, values in columns.items())


def _apply_by_rows(step: Map, batch: Batch, places: Places, key: tuple[int, int, int]) -> Batch:
    if any(len(values) != len(places) for values in batch.values()):
        msg = (
            f"map {step.name} is called with one row at a time, and its {len(places)} rows have columns of other lengths "
            f"({_lengths(batch)}); expected one entry per row. Remove flat columns in a map before it, or use a map of batches."
        )
        raise MapError(msg)
    rows = [
        apply_to_row(step, {name: values[at] for name, values in batch.items()}, int(place), key)
        for at, place in enumerate(places)
    ]
    if not rows:
        return batch
    names = rows[0].keys()
    for at, row in enumerate(rows):
        if row.keys() != names:
            msg = (
                f"map {step.name} returned columns {sorted(row)} for row {at} of a batch and {sorted(names)} for row 0. "
                "Every row must have the same columns."
            )
            raise MapError(msg)
    objects = {name: values.shape[1:] for name, values in batch.items() if values.dtype.kind == "O"}
    try:
        return {name: _stack_cells([row[name] for row in rows], objects.get(name)) for name in names}
    except (TypeError, ValueError, RuntimeError):
        for name in names:  # find the cell at fault, for its error
            for row in rows:
                _array(step, name, row[name])
        raise


def _stack_cells(cells: list[Any], objects: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """Return cells as one column: stacked if their shapes agree, else as objects.

    A column of objects stays one. `objects` is the shape of its cells, which is not empty in columns of sequences; None for
    other columns.
    """
    if objects:
        arrays = [np.fromiter(cell, object, len(cell)) if isinstance(cell, list | tuple) else cell for cell in cells]
        if all(isinstance(cell, np.ndarray) and cell.shape == objects and cell.dtype.kind in "OUS" for cell in arrays):
            return np.stack(arrays).astype(object, copy=False)
    shapes = {np.shape(cell) for cell in cells}
    if objects is None and len(shapes) == 1 and not isinstance(cells[0], (str, bytes)):
        stacked = np.stack([np.asarray(cell) for cell in cells])
        if stacked.dtype.kind not in "US":
            return stacked
    column = np.empty(len(cells), dtype=object)
    for at, cell in enumerate(cells):
        column[at] = cell
    return column


def _column(step: Map, name: str, values: Any) -> npt.NDArray[Any]:
    """Return a returned column as an array, with text as objects."""
    array = _array(step, name, values)
    if array.ndim == 0:
        msg = (
            f"map {step.name} returned a single value for column {name!r}; expected an array with one entry per row. "
            "Return an array, or use per_row=True."
        )
        raise MapError(msg)
    return array.astype(object) if array.dtype.kind in "US" else array


def _array(step: Map, name: str, values: Any) -> npt.NDArray[Any]:
    """Return the values of a returned column as an array."""
    try:
        return np.asarray(values)  # raises for lists that differ in length, and tensors without a NumPy counterpart
    except (TypeError, ValueError, RuntimeError) as error:
        msg = (
            f"map {step.name} returned {type(values).__name__} for column {name!r}, which NumPy cannot convert: {error} "
            "Return an array of numbers, or one of objects where rows differ in shape."
        )
        raise MapError(msg) from error


def _check_fields(step: Map, columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns, after a check against the declared fields."""
    if step.fields is not None:
        declared = {field.name for field in step.fields}
        if declared != columns.keys() - {"_valid"}:
            msg = (
                f"map {step.name} returned columns {', '.join(sorted(columns))}, but its fields say "
                f"{', '.join(sorted(declared))}. Declare what it returns, or leave `fields` out."
            )
            raise MapError(msg)
        for field in step.fields:
            _check_field(step, field, columns[field.name])
    return columns


def _check_field(step: Map, field: Field, values: Any) -> None:
    """Raise an error for an array of another dtype or shape than declared; single rows and other types are not checked."""
    if not isinstance(values, np.ndarray) or values.ndim < len(field.shape):
        return
    cell = values.shape[values.ndim - len(field.shape) :]
    same_shape = all(want in (None, have) for want, have in zip(field.shape, cell, strict=True))
    if values.dtype != field.dtype or not same_shape:
        msg = (
            f"map {step.name} returned {values.dtype} of shape {values.shape} for column {field.name!r}, but its fields say "
            f"{field.dtype} with cells of shape {field.shape}. Declare what it returns, or leave `fields` out."
        )
        raise MapError(msg)
