"""Arrays become tensors: never of memory that is used again, never a dtype that was not there before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import ArgumentError, DataError

__all__ = ["Tensors", "owned"]

OFFSETS = "_offsets"
SIBLINGS = ("_valid", "_length")
"""What follows the name of a column that tells which values of another are none."""
OBJECTS = np.dtype(object)
AT_ONCE = 512
"""Tensors that are made at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Turns batches of arrays into batches of tensors.

    Dates, times and durations become whole numbers in their unit, since torch has no such types; text and other objects
    become lists.

    Attributes:
        jagged: Columns whose values and offsets become one nested tensor of jagged layout.
        mapped: Whether maps have made the batches; a clause cannot change what they make.
    """

    jagged: tuple[str, ...] = ()
    mapped: bool = False

    @classmethod
    def of(cls, jagged: Iterable[str], *, mapped: bool = False) -> Tensors:
        """Return what makes nested tensors of the columns named.

        Raises:
            ArgumentError: If they are no list of names.
        """
        if isinstance(jagged, str):
            msg = f"jagged={jagged!r} was given; expected a list of columns. Give one: jagged=[{jagged!r}]."
            raise ArgumentError(msg)
        return cls(jagged=tuple(dict.fromkeys(jagged)), mapped=mapped)

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch as tensors, or a row."""
        _check_times(batch)
        for name in self.jagged:
            if f"{name}{OFFSETS}" in batch and getattr(batch.get(name), "dtype", None) == OBJECTS:
                msg = (
                    f"Column {name!r} is to be a jagged tensor, and its lists hold no numbers, but other lists or objects. "
                    "Lists of numbers were expected. Leave it out of jagged=, or make one list of each row in a .map()."
                )
                raise ArgumentError(msg)
            if name not in batch or f"{name}{OFFSETS}" not in batch:
                msg = (
                    f"Column {name!r} is to be a jagged tensor, and has no offsets. Columns: {', '.join(batch)}. Ask for "
                    f"them: .ragged(penstock.Offsets(), {name!r})."
                )
                raise ArgumentError(msg)
        found = {
            name: _value(name, value, flat=f"{name}{OFFSETS}" in batch, mapped=self.mapped) for name, value in batch.items()
        }
        for name in self.jagged:
            values, offsets = found[name], found.pop(f"{name}{OFFSETS}")
            found[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
        return found

    def cuts(self, columns: Mapping[str, npt.NDArray[Any]], size: int) -> Iterator[dict[str, Any]]:
        """Yield batches that are views of the memory of columns, which are equally long.

        A few are cut at a time: a call for many costs little more than one for a single tensor, but each takes memory, and
        Python's collector, which looks after tensors but not after arrays, goes to work when some hundreds more than before
        are alive.
        """
        _check_times(columns)
        names, together = tuple(columns), size * max(1, AT_ONCE // len(columns))
        # A tensor of an array's part costs less than a part of a tensor, and to autograd it is a stranger to others.
        whole = [column if column.dtype.kind in "OUS" else _tensor(column).numpy() for column in columns.values()]
        for start in range(0, len(whole[0]), together):
            parts = [column[start : start + together] for column in whole]
            for batch in zip(*(self._cut(name, part, size) for name, part in zip(names, parts, strict=True)), strict=True):
                yield dict(zip(names, batch, strict=True))

    def _cut(self, name: str, column: npt.NDArray[Any], size: int) -> Sequence[Any]:
        """Return a column as batches of `size` rows have it; the last may be shorter."""
        if column.dtype.kind in "OUS":
            starts = range(0, len(column), size)
            return [_value(name, column[start : start + size], flat=False, mapped=self.mapped) for start in starts]
        if len(column) == size:
            return [torch.from_numpy(column)]
        count, rest = divmod(len(column), size)
        # Not `split`: to autograd its outputs are one memory, and writing to one batch would spoil what another has saved.
        return torch.unsafe_split_with_sizes(torch.from_numpy(column), [size] * count + [rest] * bool(rest))


def owned(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch whose tensors are no views of larger ones, of which all would travel to another process."""
    return {name: value.clone() if _is_view(value) else value for name, value in batch.items()}


def _is_view(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_nested and value.untyped_storage().nbytes() > value.nbytes


def _value(name: str, value: Any, *, flat: bool, mapped: bool) -> Any:
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
                f"Column {name!r} is {value.dtype}, of which torch has no tensors. Numbers, booleans, dates and times become "
                "tensors. Leave it out with .select(...), or turn it into such in a .map()."
            )
            raise ArgumentError(msg) from error
    arrays = [cell for cell in value.flat if isinstance(cell, np.ndarray)]
    if arrays:
        nested = (
            f", or .ragged(penstock.Offsets(), {name!r}) and jagged=[{name!r}] for a nested tensor, or "
            f".ragged(penstock.Resize(height, width), {name!r}) for images"
        )
        numbers = not flat and all(cell.dtype != OBJECTS for cell in arrays)
        made = " These act before maps: where a map makes the column, have it return arrays of one shape." if mapped else ""
        msg = (
            f"Column {name!r} holds arrays that may differ in shape, which no tensor does. Say what becomes of them: "
            f".ragged(penstock.Pad(), {name!r}){nested if numbers else ''}.{made}"
        )
        raise ArgumentError(msg)
    return value.tolist()


def _check_times(columns: Mapping[str, Any]) -> None:
    """Refuse times that are none, unless another column tells which they are.

    Raises:
        DataError: If there is one; where no map had a say, the engine has refused it before, and said where it lies.
    """
    for name, values in columns.items():
        if getattr(values, "dtype", OBJECTS).kind not in "mM" or any(f"{name}{suffix}" in columns for suffix in SIBLINGS):
            continue
        if np.isnat(values).any():
            msg = (
                f"Column {name!r} has a null, and times become whole numbers, which have no value for one. Say what a null "
                f"becomes: .nulls(penstock.Fill(value), {name!r}), or penstock.Mask(), or keep the rows that have a value: "
                f".where(penstock.col({name!r}).is_not_null())."
            )
            raise DataError(msg)


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor of the same memory, or of a copy where others share that."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind in "mM":
        array = array.view(np.int64)
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except ValueError:  # strides that torch does not have
        return torch.from_numpy(np.ascontiguousarray(array))
