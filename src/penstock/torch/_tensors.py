"""Arrays become tensors: never of memory that is used again, never a dtype that was not there before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import ArgumentError

__all__ = ["Tensors", "owned"]

OFFSETS = "_offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Turns batches of arrays into batches of tensors.

    Dates, times and durations become whole numbers in their unit, since torch has no such types; text and other objects
    become lists.

    Attributes:
        jagged: Columns whose values and offsets become one nested tensor of jagged layout.
    """

    jagged: tuple[str, ...] = ()

    @classmethod
    def of(cls, jagged: Iterable[str]) -> Tensors:
        """Return what makes nested tensors of the columns named.

        Raises:
            ArgumentError: If they are no list of names.
        """
        if isinstance(jagged, str):
            msg = f"jagged={jagged!r} was given. A list of columns was expected. Give one: jagged=[{jagged!r}]."
            raise ArgumentError(msg)
        return cls(jagged=tuple(dict.fromkeys(jagged)))

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch as tensors, or a row."""
        found = {name: _value(name, value) for name, value in batch.items()}
        for name in self.jagged:
            values, offsets = found.get(name), found.pop(f"{name}{OFFSETS}", None)
            if values is None or offsets is None:
                msg = (
                    f"Column {name!r} is to be a jagged tensor, and has no offsets. Columns: {', '.join(batch)}. Ask for "
                    f"them: .ragged(penstock.Offsets(), {name!r})."
                )
                raise ArgumentError(msg)
            found[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
        return found

    def cuts(self, column: npt.NDArray[Any], size: int) -> Sequence[Any]:
        """Return a column of many batches as views of one tensor."""
        if column.dtype.kind == "O":
            return [column[start : start + size].tolist() for start in range(0, len(column), size)]
        # Not `split`: to autograd its outputs are one memory, and writing to one batch would spoil what another has saved.
        return torch.unsafe_split(_tensor(column), size)


def owned(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch whose tensors are no views of larger ones, of which all would travel to another process."""
    return {name: value.clone() if _is_view(value) else value for name, value in batch.items()}


def _is_view(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_nested and value.untyped_storage().nbytes() > value.nbytes


def _value(name: str, value: Any) -> Any:
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
    if any(isinstance(cell, np.ndarray) for cell in value.flat):
        msg = (
            f"Column {name!r} holds arrays that may differ in shape, which no tensor does. Say what becomes of them: "
            f".ragged(penstock.Pad(), {name!r}), or .ragged(penstock.Offsets(), {name!r}) and jagged=[{name!r}] for a nested "
            f"tensor, or .ragged(penstock.Resize(height, width), {name!r}) for images."
        )
        raise ArgumentError(msg)
    return value.tolist()


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
