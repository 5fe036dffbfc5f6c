"""What becomes of rows: cells are decoded and transformed one by one, as DeltaTorch does, and collated as torch does."""

from __future__ import annotations

import dataclasses
import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from penstock.errors import ArgumentError, DataError, MissingExtraError

__all__ = ["PACKED", "FieldSpec", "Samples", "sample"]

PACKED = "sample"
"""The column that carries what was made of rows, whatever it is, through the engine."""

VALID = "_valid"

LONG, SURE = 200e-6, 3
"""Seconds that a row takes if it takes long, and how many batches in a row must say so."""
PATIENCE = 5.0
"""Seconds that a thread waits for its turn."""

Made = TypeVar("Made")


@dataclass
class FieldSpec:
    """A column, and what becomes of each of its values: decoded, then opened as an image, then transformed.

    A null stays None through decoding, and is given to the transform.

    Args:
        name: The column.
        decode_numpy_and_apply_shape: The shape of an array whose bytes the column holds.
        load_image_using_pil: Whether the bytes are an image, to be opened by Pillow.
        transform: What is called with each value.
        target_name: What the result is called; by default as the column is.
        dtype: The type of the array, where it is not of `uint8`.

    Example:
        >>> FieldSpec("label", target_name="y").target_name
        'y'
    """

    name: str
    decode_numpy_and_apply_shape: Sequence[int] | int | None = None
    load_image_using_pil: bool = False
    transform: Callable[[Any], Any] | None = None
    target_name: str | None = None
    dtype: npt.DTypeLike = np.uint8

    def check(self) -> None:
        """Refuse what could not take effect.

        Raises:
            ArgumentError: If the transform cannot be called, or the dtype is none, or there is nothing that it is the dtype of.
        """
        if self.transform is not None and not callable(self.transform):
            msg = f"FieldSpec({self.name!r}) got transform={self.transform!r}. A function of one value was expected. Give one."
            raise ArgumentError(msg)
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            msg = (
                f"FieldSpec({self.name!r}) got dtype={self.dtype!r}. A type of NumPy was expected. Give one, as numpy.float32."
            )
            raise ArgumentError(msg) from error
        if dtype != np.uint8 and self.decode_numpy_and_apply_shape is None:
            msg = (
                f"FieldSpec({self.name!r}) got dtype={self.dtype!r}, which is that of arrays whose bytes are decoded. A shape "
                "was expected. Give decode_numpy_and_apply_shape too, or leave dtype out."
            )
            raise ArgumentError(msg)

    @property
    def target(self) -> str:
        """What the result is called."""
        return self.target_name or self.name

    @property
    def plain(self) -> bool:
        """Whether values are taken as they are."""
        return self.decode_numpy_and_apply_shape is None and not self.load_image_using_pil and self.transform is None

    @property
    def only_transforms(self) -> bool:
        """Whether values are given to the transform as they are."""
        return self.transform is not None and self.decode_numpy_and_apply_shape is None and not self.load_image_using_pil

    def value(self, cell: Any) -> Any:
        """Return what becomes of one value."""
        if cell is not None and self.decode_numpy_and_apply_shape is not None:
            cell = self._array(cell)
        if cell is not None and self.load_image_using_pil:
            cell = _image(cell, self.name)
        return cell if self.transform is None else self.transform(cell)

    def _array(self, cell: Any) -> npt.NDArray[Any]:
        """Return bytes as an array, which nobody else has."""
        shape, dtype = self.decode_numpy_and_apply_shape, np.dtype(self.dtype)
        try:
            found = np.frombuffer(cell, dtype=dtype).reshape(shape)
        except (TypeError, ValueError) as error:
            held = f"{len(cell)} bytes" if isinstance(cell, bytes | bytearray | memoryview) else repr(cell)
            msg = (
                f"Column {self.name!r} holds {held}, of which no array of {dtype} and shape {shape} can be made: {error}. "
                "Bytes of that many values were expected. Give its FieldSpec the shape and dtype that were stored."
            )
            raise DataError(msg) from error
        return found.astype(dtype.newbyteorder("="))


def sample(row: Mapping[str, Any], fields: Sequence[FieldSpec]) -> dict[str, Any]:
    """Return what becomes of one row."""
    return {field.target: field.value(row[field.name]) for field in fields}


class Pace:
    """Lets threads make samples one after the other, until it is seen that each of them takes long.

    What takes microseconds is Python, and threads that do it at once take the interpreter from each other after every call:
    two are slower than one. What takes long is most likely outside of Python, as the decoding of images is.
    """

    def __init__(self) -> None:
        """Begin with turns."""
        self._turn, self._slow = threading.Lock(), 0

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        """Begin anew in another process."""
        return Pace, ()

    def run(self, work: Callable[[], Made], rows: int) -> Made:
        """Return what some work on so many rows gives."""
        # Nothing depends on whose turn it is: a lock that a fork has left behind is waited for once, and not for ever.
        if self._slow >= SURE or not self._turn.acquire(timeout=PATIENCE):
            return work()
        try:
            begun = time.perf_counter()
            made = work()
            self._slow = self._slow + 1 if time.perf_counter() - begun > LONG * max(1, rows) else 0
            return made
        finally:
            self._turn.release()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Samples:
    """A map of batches: rows become samples, and samples a batch.

    Attributes:
        fields: The columns, and what becomes of them.
        masked: The columns whose nulls are told by another column.
        zoned: The columns of moments, which Python has with their zone.
        collate: What makes a batch of samples; None for torch's way.
        rows: Whether samples stay apart.
        pace: Whose turn it is.
    """

    fields: tuple[FieldSpec, ...]
    masked: frozenset[str] = frozenset()
    zoned: frozenset[str] = frozenset()
    collate: Callable[[list[dict[str, Any]]], Any] | None = None
    rows: bool = False
    pace: Pace = dataclasses.field(default_factory=Pace)

    finding: ClassVar[str] = ""  # the door has no way to leave rows out

    def __call__(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return samples as objects, one for each row; or a batch as the first object, and nothing else."""
        count = len(next(iter(batch.values())))
        return self.pace.run(lambda: self._made(batch, count), count)

    def _made(self, batch: Mapping[str, npt.NDArray[Any]], count: int) -> dict[str, npt.NDArray[Any]]:
        made = np.empty(count, dtype=object)
        if self.rows:
            made[:] = self._samples(batch, count)
        elif count:
            made[0] = self._batch(batch) if self.collate is None else self.collate(self._samples(batch, count))
        return {PACKED: made}

    def __repr__(self) -> str:
        """Return what messages call it."""
        return f"FieldSpec({', '.join(repr(field.name) for field in self.fields)})"

    def _samples(self, batch: Mapping[str, npt.NDArray[Any]], count: int) -> list[dict[str, Any]]:
        columns = {field.target: self._values(field, batch) for field in self.fields}
        return [{name: values[row] for name, values in columns.items()} for row in range(count)]

    def _batch(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        found = {}
        for field in self.fields:
            cells = batch[field.name]
            if field.plain and cells.dtype.kind != "O" and self._whole(field.name, batch):
                found[field.target] = _tensor(cells)
            else:
                found[field.target] = _collated(field, self._values(field, batch))
        return found

    def _values(self, field: FieldSpec, batch: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
        """Return what becomes of a column's values."""
        cells = batch[field.name]
        values = cells.tolist() if cells.ndim == 1 else list(cells)
        if np.ndarray in set(map(type, values)):  # which the engine may share with other batches
            values = [_own(value) for value in values]
        if field.name in self.zoned:
            values = [value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for value in values]
        if not self._whole(field.name, batch):
            valid = batch[f"{field.name}{VALID}"].tolist()
            values = [_with_nulls(value, known) for value, known in zip(values, valid, strict=True)]
        if field.only_transforms:
            return [field.transform(value) for value in values]  # type: ignore[misc] # it has one
        return values if field.plain else [field.value(value) for value in values]

    def _whole(self, name: str, batch: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Return whether a column of a batch has no null that another column tells."""
        if name not in self.masked:
            return True
        valid = batch[f"{name}{VALID}"]
        return bool(valid.all()) if valid.dtype.kind == "b" else all(_all_there(one) for one in valid)


def _all_there(valid: Any) -> bool:
    """Return whether none of the items of a list is null; a null list is told by itself."""
    return valid is None or bool(valid.all() if valid.dtype.kind == "b" else all(map(_all_there, valid)))


def _with_nulls(value: Any, valid: Any) -> Any:
    """Return a value, or the items of a list, None where they are null; a list that has no null is an array."""
    if value is None or valid is None or isinstance(valid, bool):
        return value if valid else None
    if _all_there(valid):
        return value
    items = value if isinstance(value, list) else value.tolist()
    return [_with_nulls(one, known) for one, known in zip(items, valid.tolist(), strict=True)]


def _own(value: Any) -> Any:
    """Return a value that nobody else has: arrays of numbers as they are, those of text and of lists as Python's lists."""
    if not isinstance(value, np.ndarray):
        return value
    return _as_lists(value) if value.dtype.kind == "O" else np.array(value)


def _as_lists(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return [_as_lists(item) for item in value] if value.dtype.kind == "O" else value.tolist()


def _tensor(cells: npt.NDArray[Any]) -> torch.Tensor:
    """Return numbers as torch makes them of Python's: whole ones of 64 bits, others doubles. Arrays keep their type."""
    if cells.dtype.kind in "mM":
        cells = cells.view(np.int64)
    wide = {"i": np.int64, "u": np.int64, "f": np.float64}.get(cells.dtype.kind) if cells.ndim == 1 else None
    return torch.from_numpy(cells.astype(wide or cells.dtype.newbyteorder("="), order="C"))


def _collated(field: FieldSpec, values: list[Any]) -> Any:
    """Return values as torch collates them; arrays of several shapes stay apart."""
    if set(map(type, values)) == {torch.Tensor} and values[0].layout is torch.strided and not values[0].is_nested:
        return torch.stack(values)  # as torch does too, after looking at them for longer
    if any(value is None or (isinstance(value, list) and None in value) for value in values):
        msg = (
            f"Column {field.name!r} has a null, of which no batch can be made. Values were expected. Give its FieldSpec a "
            "transform that turns None into a value, filter the rows, or give a collate_fn."
        )
        raise DataError(msg)
    if isinstance(values[0], np.ndarray) and len({value.shape for value in values}) > 1:
        return [torch.from_numpy(np.array(value)) for value in values]
    if isinstance(values[0], list) and len({str(_lengths(value)) for value in values}) > 1:
        return values
    try:
        return default_collate(values)
    except TypeError as error:
        msg = (
            f"Column {field.name!r} has {type(values[0]).__name__}, of which torch makes no batch. Numbers, text, arrays and "
            "tensors were expected. Give its FieldSpec a transform that returns one of them, or give a collate_fn."
        )
        raise DataError(msg) from error


def _lengths(value: Any) -> Any:
    """Return how many items a list has, and the lists in it."""
    return [_lengths(item) for item in value] if isinstance(value, list) else 1


def _image(data: Any, name: str) -> Any:
    """Return an image of a column that Pillow has opened."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        msg = "load_image_using_pil=True needs Pillow, which is not installed. Install it: pip install pillow."
        raise MissingExtraError(msg) from error
    try:
        return Image.open(io.BytesIO(data))
    except (OSError, TypeError) as error:
        msg = (
            f"Column {name!r} holds {repr(data)[:40]}, of which Pillow opens no image: {error}. An image of a kind that it "
            "knows was expected. Leave load_image_using_pil out of the FieldSpec if the column holds none."
        )
        raise DataError(msg) from error
