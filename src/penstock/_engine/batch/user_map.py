"""User functions on batches or rows, held to what they promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import randomness
from penstock._engine.query.values import NOTE, Batch, Map, Places, Stack
from penstock.errors import MapError
from penstock.schema import Field

__all__ = ["apply_map", "apply_stack", "apply_to_row", "by_row"]


FINDING = ' A dataset with .on_bad_row("skip") finds the rows that it fails on, and lists them in loader.skipped.'
"""How it ends where the rows may be to blame."""


def apply_stack(stack: Stack, batch: Batch) -> Batch:
    """Return a batch with some of its columns stacked into one, at the end."""
    whole = np.stack([batch[name] for name in stack.columns], axis=1)
    return {**{name: values for name, values in batch.items() if name not in stack.columns}, stack.name: whole}


def apply_map(
    step: Map,
    batch: Batch,
    places: Places,
    key: tuple[int, int, int],
    *,
    resize: bool,
    free: frozenset[str] = frozenset(),
) -> Batch:
    """Return what a user's function makes of a batch.

    Args:
        step: The function and its promises.
        batch: The rows.
        places: Where each row stands in the epoch's sequence; randomness depends on nothing else.
        key: Seed, epoch, and which of several maps this is.
        resize: Whether the function may change the number of rows.
        free: Columns that do not have one entry per row.

    Raises:
        MapError: If it returns something other than promised.
    """
    if step.per_row:
        return _by_rows(step, batch, places, key)
    made = _called(step, batch, int(places[0]) if len(places) else 0, key)
    found = {name: _column(step, name, values) for name, values in made.items()}
    sizes = {len(values) for name, values in found.items() if name not in free}
    if len(sizes) > 1 or (sizes and not resize and sizes != {len(places)}):
        told = ", ".join(f"{name}: {len(values)}" for name, values in found.items())
        msg = (
            f"map {step.name} was given {len(places)} rows and returned columns of other lengths ({told}). It must return as "
            f"many rows as it gets. {step.advice}"
        )
        raise MapError(msg)
    return _promised(step, found)


def by_row(step: Map) -> Map:
    """Return the function as it is run on single rows."""
    return replace(step, per_row=True)


def apply_to_row(step: Map, row: Mapping[str, Any], place: int, key: tuple[int, int, int]) -> dict[str, Any]:
    """Return what a user's function makes of one row."""
    return dict(_promised(step, dict(_called(step, row, place, key))))


def _called(step: Map, data: Mapping[str, Any], place: int, key: tuple[int, int, int]) -> Mapping[str, Any]:
    """Return what the function returns, which must be a mapping."""
    try:
        made = _made(step, data, place, key)
    except StopIteration as error:
        msg = f"map {step.name} raised StopIteration, which would end the dataset in silence. Catch it, or raise another error."
        raise MapError(msg) from error
    except BaseException as error:  # one that ends processes too, which nobody else would know the map of
        finding: str = getattr(step.function, "finding", FINDING)
        hint = finding if isinstance(error, Exception) and not isinstance(error, MemoryError) else ""
        error.add_note(f"{NOTE}{step.name}, on what begins at place {place} of epoch {key[1]}.{hint}")
        raise
    if not isinstance(made, Mapping):
        msg = (
            f"map {step.name} returned {type(made).__name__}. A mapping of column names to values was expected. "
            "Return the batch, changed or not."
        )
        raise MapError(msg)
    return made


def _made(step: Map, data: Mapping[str, Any], place: int, key: tuple[int, int, int]) -> Mapping[str, Any]:
    """Return what the function returns, given a generator where it takes one."""
    if not step.wants_rng:
        return step.function(data)
    rng = np.random.Generator(np.random.Philox(key=randomness.key("map", *key, place)))
    return step.function(data, rng=rng) if step.rng_by_name else step.function(data, rng)


def _by_rows(step: Map, batch: Batch, places: Places, key: tuple[int, int, int]) -> Batch:
    if any(len(values) != len(places) for values in batch.values()):
        told = ", ".join(f"{name}: {len(values)}" for name, values in batch.items())
        msg = (
            f"map {step.name} is called with one row at a time, and its {len(places)} rows have columns of other lengths "
            f"({told}). One entry per row was expected. Leave out what is flat in a map before it, or use a map of batches."
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
    loose = {name: values.shape[1:] for name, values in batch.items() if values.dtype.kind == "O"}
    try:
        return {name: _joined([row[name] for row in rows], loose.get(name)) for name in names}
    except (TypeError, ValueError, RuntimeError):
        for name in names:  # which of them it is, is found out where it matters
            for row in rows:
                _array(step, name, row[name])
        raise


def _joined(cells: list[Any], loose: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """Return cells as one column: stacked where their shapes agree, else objects.

    What was objects before stays so: one for each row, or as many as before, `loose`, as columns of sequences have them.
    """
    if loose:
        found = [np.fromiter(cell, object, len(cell)) if isinstance(cell, list | tuple) else cell for cell in cells]
        if all(isinstance(cell, np.ndarray) and cell.shape == loose and cell.dtype.kind in "OUS" for cell in found):
            return np.stack(found).astype(object, copy=False)
    shapes = {np.shape(cell) for cell in cells}
    if loose is None and len(shapes) == 1 and not isinstance(cells[0], (str, bytes)):
        stacked = np.stack([np.asarray(cell) for cell in cells])
        if stacked.dtype.kind not in "US":
            return stacked
    column = np.empty(len(cells), dtype=object)
    for at, cell in enumerate(cells):
        column[at] = cell
    return column


def _column(step: Map, name: str, values: Any) -> npt.NDArray[Any]:
    """Return a returned column as an array, strings as objects."""
    array = _array(step, name, values)
    if array.ndim == 0:
        msg = (
            f"map {step.name} returned a single value for column {name!r}. An array with one entry per row was expected. "
            "Return an array, or use per_row=True."
        )
        raise MapError(msg)
    return array.astype(object) if array.dtype.kind in "US" else array


def _array(step: Map, name: str, values: Any) -> npt.NDArray[Any]:
    """Return what NumPy makes of what was returned for a column.

    Raises:
        MapError: If that is nothing: of lists that differ in length, or of tensors that have no counterpart in NumPy.
    """
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = (
            f"map {step.name} returned {type(values).__name__} for column {name!r}, of which NumPy makes no array: {error} "
            "Return an array of numbers, or one of objects where rows differ in shape."
        )
        raise MapError(msg) from error


def _promised(step: Map, made: dict[str, Any]) -> dict[str, Any]:
    """Return what was made, after comparing its columns with what the user declared."""
    if step.fields is not None:
        declared = {column.name for column in step.fields}
        if declared != made.keys() - {"_valid"}:
            msg = (
                f"map {step.name} returned columns {', '.join(sorted(made))}, but its fields say "
                f"{', '.join(sorted(declared))}. Declare what it returns, or leave `fields` out."
            )
            raise MapError(msg)
        for column in step.fields:
            _check_promise(step, column, made[column.name])
    return made


def _check_promise(step: Map, column: Field, made: Any) -> None:
    """Refuse an array of another type or shape than was declared; rows, and what has no type, are taken as they are."""
    if not isinstance(made, np.ndarray) or made.ndim < len(column.shape):
        return
    cell = made.shape[made.ndim - len(column.shape) :]
    shaped = all(want in (None, have) for want, have in zip(column.shape, cell, strict=True))
    if made.dtype != column.dtype or not shaped:
        msg = (
            f"map {step.name} returned {made.dtype} of shape {made.shape} for column {column.name!r}, but its fields say "
            f"{column.dtype} with cells of shape {column.shape}. Declare what it returns, or leave `fields` out."
        )
        raise MapError(msg)
