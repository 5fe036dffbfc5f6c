"""Conversion of batches of arrays to batches of tensors.

Tensors share the memory of arrays where it is writable and is not reused. Dtypes stay, but for dates and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import ArgumentError, DataError

__all__ = ["Tensors", "clone_views"]

OFFSETS = "_offsets"
SIBLINGS = ("_valid", "_length")
"""Suffixes of columns that mark the missing values of another column."""
OBJECTS = np.dtype(object)
PLAIN = frozenset(np.dtype(kind) for kind in "?bhilqBefdFD")
"""Dtypes that torch has, too."""
AT_ONCE = 512
"""Tensors that are made at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Converts batches of arrays to batches of tensors; it is a `BatchAdapter` of the engine.

    Dates, times and durations become integers in their unit, because torch has no such types. Text and other objects become
    lists.

    Attributes:
        jagged: Columns whose values and offsets become one nested tensor of jagged layout.
        mapped: Whether maps made the batches; policies act before maps, so messages advise differently.
    """

    jagged: tuple[str, ...] = ()
    mapped: bool = False

    @classmethod
    def of(cls, jagged: Iterable[str], *, mapped: bool = False) -> Tensors:
        """Return a converter that makes nested tensors of the named columns.

        Raises:
            ArgumentError: If `jagged` is one string instead of a list.
        """
        if isinstance(jagged, str):
            msg = f"Got jagged={jagged!r}; expected a list of columns. Write jagged=[{jagged!r}]."
            raise ArgumentError(msg)
        return cls(jagged=tuple(dict.fromkeys(jagged)), mapped=mapped)

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch, or a row, as tensors."""
        _check_times(batch)
        for name in self.jagged:
            if f"{name}{OFFSETS}" in batch and getattr(batch.get(name), "dtype", None) == OBJECTS:
                msg = (
                    f"Column {name!r} is in jagged=, and its lists hold other lists or objects; expected lists of numbers. "
                    "Leave it out of jagged=, or make one list of numbers for each row in a .map()."
                )
                raise ArgumentError(msg)
            if name not in batch or f"{name}{OFFSETS}" not in batch:
                msg = (
                    f"Column {name!r} is in jagged=, and has no offsets; expected a column with Offsets(). Write "
                    f".ragged(penstock.Offsets(), {name!r}). Columns: {', '.join(batch)}."
                )
                raise ArgumentError(msg)
        found = {
            name: _value(name, value, flat=f"{name}{OFFSETS}" in batch, mapped=self.mapped) for name, value in batch.items()
        }
        for name in self.jagged:
            values, offsets = found[name], found.pop(f"{name}{OFFSETS}")
            found[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
        return found

    def split(self, columns: Mapping[str, npt.NDArray[Any]], size: int) -> Iterator[dict[str, Any]]:
        """Yield batches of `size` rows that are views of the columns, which have equal lengths.

        Up to `AT_ONCE` tensors are made in one call: a call for many costs little more than a call for one. More of them
        would start Python's garbage collector, which tracks tensors but not arrays.
        """
        _check_times(columns)
        names, together = tuple(columns), size * max(1, AT_ONCE // len(columns))
        # A tensor from a part of an array costs less than a part of a tensor, and autograd sees separate memory.
        whole = [column if column.dtype.kind in "OUS" else _tensor(column).numpy() for column in columns.values()]
        for start in range(0, len(whole[0]), together):
            parts = [column[start : start + together] for column in whole]
            for batch in zip(*(self._cut(name, part, size) for name, part in zip(names, parts, strict=True)), strict=True):
                yield dict(zip(names, batch, strict=True))

    def _cut(self, name: str, column: npt.NDArray[Any], size: int) -> Sequence[Any]:
        """Return the parts of a column, `size` rows each; the last may be shorter."""
        if column.dtype.kind in "OUS":
            starts = range(0, len(column), size)
            return [_value(name, column[start : start + size], flat=False, mapped=self.mapped) for start in starts]
        if len(column) == size:
            return [torch.from_numpy(column)]
        count, rest = divmod(len(column), size)
        # Not `split`: autograd takes its outputs for one memory, and a write to one batch would invalidate the others.
        return torch.unsafe_split_with_sizes(torch.from_numpy(column), [size] * count + [rest] * bool(rest))


def clone_views(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with copies of tensors that are views: torch would send the whole memory to another process."""
    return {name: value.clone() if _is_view(value) else value for name, value in batch.items()}


def _is_view(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_nested and value.untyped_storage().nbytes() > value.nbytes


def _value(name: str, value: Any, *, flat: bool, mapped: bool) -> Any:
    if type(value) is np.ndarray and value.dtype in PLAIN:
        return _tensor(value)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind in "US":
        return value.tolist()
    if value.dtype.kind != "O":
        try:
            return _tensor(value)
        except TypeError as error:
            msg = (
                f"Column {name!r} is {value.dtype}, and torch has no such tensors; expected numbers, booleans, dates or times. "
                "Leave it out with .select(...), or convert it in a .map()."
            )
            raise ArgumentError(msg) from error
    arrays = [cell for cell in value.flat if isinstance(cell, np.ndarray)]
    if arrays:
        nested = (
            f", or .ragged(penstock.Offsets(), {name!r}) and jagged=[{name!r}] for a nested tensor, or "
            f".ragged(penstock.Resize(height, width), {name!r}) for images"
        )
        numbers = not flat and all(cell.dtype != OBJECTS for cell in arrays)
        made = " Policies act before maps: if a map makes the column, let it return arrays of one shape." if mapped else ""
        msg = (
            f"Column {name!r} holds arrays that may differ in shape; expected arrays of one shape, as a tensor needs. Write "
            f".ragged(penstock.Pad(), {name!r}){nested if numbers else ''}.{made}"
        )
        raise ArgumentError(msg)
    return value.tolist()


def _check_times(columns: Mapping[str, Any]) -> None:
    """Raise for missing dates and times, unless another column marks them.

    Raises:
        DataError: If a map made one; for stored nulls the engine raised before, with the place.
    """
    for name, values in columns.items():
        if getattr(values, "dtype", OBJECTS).kind not in "mM" or any(f"{name}{suffix}" in columns for suffix in SIBLINGS):
            continue
        if np.isnat(values).any():
            msg = (
                f"Column {name!r} has a null, and times become integers, which have no null; expected no nulls. Write "
                f".nulls(penstock.Fill(value), {name!r}) or .nulls(penstock.Mask(), {name!r}), or select rows with a value: "
                f".where(penstock.col({name!r}).is_not_null())."
            )
            raise DataError(msg)


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor of the same memory, or of a copy if it is read-only or its layout is foreign to torch."""
    if array.dtype not in PLAIN:
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype.kind in "mM":
            array = array.view(np.int64)
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except ValueError:  # strides that torch does not support
        return torch.from_numpy(np.ascontiguousarray(array))
