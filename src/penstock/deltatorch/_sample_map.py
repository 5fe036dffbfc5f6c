"""The map from rows to samples: values are decoded and transformed one by one, as in DeltaTorch, and collated by torch."""

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

__all__ = ["SAMPLE", "FieldSpec", "SampleMap", "sample_of"]

SAMPLE = "sample"
"""The column in which samples pass through the engine."""

VALID = "_valid"

SLOW_ROW_SECONDS, SLOW_BATCHES = 200e-6, 3
"""The time of a slow row, and the number of consecutive slow batches after which threads run in parallel."""
LOCK_TIMEOUT_SECONDS = 5.0

Result = TypeVar("Result")


@dataclass
class FieldSpec:
    """A column, and how its values are converted: decoded, then opened as an image, then transformed.

    A null is not decoded; the transform gets None.

    Args:
        name: The column.
        decode_numpy_and_apply_shape: The shape of an array whose bytes the column holds.
        load_image_using_pil: Whether Pillow opens the bytes as an image.
        transform: A function that is called with each value.
        target_name: The name of the result; by default that of the column.
        dtype: The dtype of the array.

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
        """Check the arguments.

        Raises:
            ArgumentError: If the transform is not callable, the dtype is invalid, or there is no array that has it.
        """
        if self.transform is not None and not callable(self.transform):
            msg = f"FieldSpec({self.name!r}) got transform={self.transform!r}; expected a function of one value. Give one."
            raise ArgumentError(msg)
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            msg = f"FieldSpec({self.name!r}) got dtype={self.dtype!r}; expected a type of NumPy. Give one, as numpy.float32."
            raise ArgumentError(msg) from error
        if dtype != np.uint8 and self.decode_numpy_and_apply_shape is None:
            msg = (
                f"FieldSpec({self.name!r}) got dtype={self.dtype!r}, which is that of arrays whose bytes are decoded. A shape "
                "was expected. Give decode_numpy_and_apply_shape too, or leave dtype out."
            )
            raise ArgumentError(msg)

    @property
    def target(self) -> str:
        """The name of the result."""
        return self.target_name or self.name

    @property
    def plain(self) -> bool:
        """Whether values are not converted."""
        return self.decode_numpy_and_apply_shape is None and not self.load_image_using_pil and self.transform is None

    @property
    def only_transforms(self) -> bool:
        """Whether the transform gets the stored values."""
        return self.transform is not None and self.decode_numpy_and_apply_shape is None and not self.load_image_using_pil

    def value(self, cell: Any) -> Any:
        """Return a converted value."""
        if cell is not None and self.decode_numpy_and_apply_shape is not None:
            cell = self._decode_array(cell)
        if cell is not None and self.load_image_using_pil:
            cell = _open_image(cell, self.name)
        return cell if self.transform is None else self.transform(cell)

    def _decode_array(self, cell: Any) -> npt.NDArray[Any]:
        """Return an array of the bytes, in memory of its own."""
        shape, dtype = self.decode_numpy_and_apply_shape, np.dtype(self.dtype)
        try:
            array = np.frombuffer(cell, dtype=dtype).reshape(shape)
        except (TypeError, ValueError) as error:
            stored = f"{len(cell)} bytes" if isinstance(cell, bytes | bytearray | memoryview) else repr(cell)
            msg = (
                f"Column {self.name!r} holds {stored}; expected the bytes of an array of {dtype} with shape {shape}: {error}. "
                "Give its FieldSpec the shape and dtype that were stored."
            )
            raise DataError(msg) from error
        return array.astype(dtype.newbyteorder("="))


def sample_of(row: Mapping[str, Any], fields: Sequence[FieldSpec]) -> dict[str, Any]:
    """Return the sample of a row."""
    return {field.target: field.value(row[field.name]) for field in fields}


class AdaptiveLock:
    """Runs functions of several threads one at a time, until they are found to be slow; then in parallel.

    A function that takes microseconds per row is Python code. Threads that run it in parallel compete for the interpreter
    after every call: two are slower than one. A slow function most likely runs outside of Python, as image decoders do.
    """

    def __init__(self) -> None:
        """Begin with one thread at a time."""
        self._lock, self._slow_batches = threading.Lock(), 0

    def __reduce__(self) -> tuple[type[AdaptiveLock], tuple[()]]:
        """Begin again in another process."""
        return AdaptiveLock, ()

    def run(self, function: Callable[[], Result], rows: int) -> Result:
        """Return the result of a function, which works on `rows` rows."""
        # The lock is not needed for correctness. The timeout covers a lock that a fork has copied in locked state.
        if self._slow_batches >= SLOW_BATCHES or not self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            return function()
        try:
            start = time.perf_counter()
            result = function()
            is_slow = time.perf_counter() - start > SLOW_ROW_SECONDS * max(1, rows)
            self._slow_batches = self._slow_batches + 1 if is_slow else 0
            return result
        finally:
            self._lock.release()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SampleMap:
    """A map function of the engine that converts rows to samples, and samples to a batch.

    Attributes:
        fields: The columns, and how their values are converted.
        masked: The columns whose nulls are in another column.
        zoned: The columns of timestamps with a time zone.
        collate: Converts samples to a batch; None for torch's `default_collate`.
        rows: Whether the samples are returned, instead of a batch.
        lock: Shared by the threads that call the map.
    """

    fields: tuple[FieldSpec, ...]
    masked: frozenset[str] = frozenset()
    zoned: frozenset[str] = frozenset()
    collate: Callable[[list[dict[str, Any]]], Any] | None = None
    rows: bool = False
    lock: AdaptiveLock = dataclasses.field(default_factory=AdaptiveLock)

    finding: ClassVar[str] = ""  # DeltaTorch has no way to skip bad rows

    def __call__(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return a column of one sample for each row; or with the batch as its first object."""
        count = len(next(iter(batch.values())))
        return self.lock.run(lambda: self._apply(batch, count), count)

    def _apply(self, batch: Mapping[str, npt.NDArray[Any]], count: int) -> dict[str, npt.NDArray[Any]]:
        objects = np.empty(count, dtype=object)
        if self.rows:
            objects[:] = self._samples(batch, count)
        elif count:
            objects[0] = self._batch(batch) if self.collate is None else self.collate(self._samples(batch, count))
        return {SAMPLE: objects}

    def __repr__(self) -> str:
        """Return the name of the map in messages."""
        return f"FieldSpec({', '.join(repr(field.name) for field in self.fields)})"

    def _samples(self, batch: Mapping[str, npt.NDArray[Any]], count: int) -> list[dict[str, Any]]:
        columns = {field.target: self._values(field, batch) for field in self.fields}
        return [{name: values[row] for name, values in columns.items()} for row in range(count)]

    def _batch(self, batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for field in self.fields:
            cells = batch[field.name]
            if field.plain and cells.dtype.kind != "O" and self._has_no_null(field.name, batch):
                columns[field.target] = _tensor(cells)
            else:
                columns[field.target] = _collate(field, self._values(field, batch))
        return columns

    def _values(self, field: FieldSpec, batch: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
        """Return the converted values of a column."""
        cells = batch[field.name]
        values = cells.tolist() if cells.ndim == 1 else list(cells)
        if np.ndarray in set(map(type, values)):  # other batches may share their memory
            values = [_copy(value) for value in values]
        if field.name in self.zoned:
            values = [value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for value in values]
        if not self._has_no_null(field.name, batch):
            valid = batch[f"{field.name}{VALID}"].tolist()
            values = [_with_nulls(value, is_valid) for value, is_valid in zip(values, valid, strict=True)]
        if field.only_transforms:
            return [field.transform(value) for value in values]  # type: ignore[misc] # it has one
        return values if field.plain else [field.value(value) for value in values]

    def _has_no_null(self, name: str, batch: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Return whether no value of a masked column is null."""
        if name not in self.masked:
            return True
        valid = batch[f"{name}{VALID}"]
        return bool(valid.all()) if valid.dtype.kind == "b" else all(map(_all_valid, valid))


def _all_valid(valid: Any) -> bool:
    """Return whether no item of a list is null; the list itself may be."""
    return valid is None or bool(valid.all() if valid.dtype.kind == "b" else all(map(_all_valid, valid)))


def _with_nulls(value: Any, valid: Any) -> Any:
    """Return a value or a list with None for null; an array if no item is null."""
    if value is None or valid is None or isinstance(valid, bool):
        return value if valid else None
    if _all_valid(valid):
        return value
    items = value if isinstance(value, list) else value.tolist()
    return [_with_nulls(item, is_valid) for item, is_valid in zip(items, valid.tolist(), strict=True)]


def _copy(value: Any) -> Any:
    """Return a copy of an array; arrays of text and of lists as lists."""
    if not isinstance(value, np.ndarray):
        return value
    return _as_lists(value) if value.dtype.kind == "O" else np.array(value)


def _as_lists(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return [_as_lists(item) for item in value] if value.dtype.kind == "O" else value.tolist()


def _tensor(cells: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor of numbers, with 64 bits as of Python numbers; arrays keep their dtype."""
    if cells.dtype.kind in "mM":
        cells = cells.view(np.int64)
    wide = {"i": np.int64, "u": np.int64, "f": np.float64}.get(cells.dtype.kind) if cells.ndim == 1 else None
    return torch.from_numpy(cells.astype(wide or cells.dtype.newbyteorder("="), order="C"))


def _collate(field: FieldSpec, values: list[Any]) -> Any:
    """Return values collated by torch; a list of tensors if shapes differ."""
    if set(map(type, values)) == {torch.Tensor} and values[0].layout is torch.strided and not values[0].is_nested:
        return torch.stack(values)  # as default_collate, but faster
    if any(value is None or (isinstance(value, list) and None in value) for value in values):
        msg = (
            f"Column {field.name!r} has a null; expected values only, because torch cannot batch None. Give its FieldSpec a "
            "transform that turns None into a value, filter the rows, or give a collate_fn."
        )
        raise DataError(msg)
    if isinstance(values[0], np.ndarray) and len({value.shape for value in values}) > 1:
        return [torch.from_numpy(np.array(value)) for value in values]
    if isinstance(values[0], list) and len({str(_nested_lengths(value)) for value in values}) > 1:
        return values
    try:
        return default_collate(values)
    except TypeError as error:
        msg = (
            f"Column {field.name!r} has {type(values[0]).__name__}; expected numbers, text, arrays or tensors, which torch can "
            "batch. Give its FieldSpec a transform that returns one of them, or give a collate_fn."
        )
        raise DataError(msg) from error


def _nested_lengths(value: Any) -> Any:
    return [_nested_lengths(item) for item in value] if isinstance(value, list) else 1


def _open_image(data: Any, name: str) -> Any:
    """Return an image of Pillow."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        msg = "load_image_using_pil=True needs Pillow, which is not installed. Install it: pip install pillow."
        raise MissingExtraError(msg) from error
    try:
        return Image.open(io.BytesIO(data))
    except (OSError, TypeError) as error:
        msg = (
            f"Column {name!r} holds {repr(data)[:40]}; expected an image file that Pillow can open: {error}. "
            "Leave load_image_using_pil out of the FieldSpec if the column has no images."
        )
        raise DataError(msg) from error
