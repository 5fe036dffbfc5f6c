"""`petastorm.pytorch`: loaders of batches of tensors."""

from __future__ import annotations

import decimal
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from penstock.petastorm.reader_impl.pytorch_shuffling_buffer import (
    BatchedNoopShufflingBuffer,
    BatchedRandomShufflingBuffer,
    BatchedShufflingBufferBase,
)
from penstock.petastorm.reader_impl.shuffling_buffer import NoopShufflingBuffer, RandomShufflingBuffer, ShufflingBufferBase

__all__ = ["BatchedDataLoader", "DataLoader", "InMemBatchedDataLoader", "LoaderBase", "decimal_friendly_collate"]

logger = logging.getLogger(__name__)

_PARALLEL_ITER_ERROR = (
    "You must finish a full pass of Petastorm DataLoader before making another pass from the beginning. If you do need to "
    "terminate early and restart from beginning, please re-create the reader and the data loader."
)

SUPPORTED_DTYPES: dict[np.dtype[Any], Any] = {
    np.dtype(np.uint16): np.int32,
    np.dtype(np.uint32): np.int64,
    np.dtype(np.bool_): np.uint8,
}
"""The dtypes in place of those that old versions of torch did not support."""


def _sanitize_pytorch_types(row_as_dict: dict[str, Any]) -> None:
    """Convert values in place to dtypes of torch.

    Raises:
        TypeError: If torch has no such dtype.
    """
    for name, value in row_as_dict.items():
        if isinstance(value, np.ndarray):
            if value.dtype.kind in "SUO":
                nulls = value.dtype.kind == "O" and any(cell is None for cell in value.flat)
                hint = (
                    " There are nulls: fill them in the function of a TransformSpec, or leave the field out." if nulls else ""
                )
                msg = f"Pytorch does not support arrays of string or object classes. Found in field {name}.{hint}"
                raise TypeError(msg)
            if value.dtype in SUPPORTED_DTYPES:
                row_as_dict[name] = value.astype(SUPPORTED_DTYPES[value.dtype])
        elif isinstance(value, np.bool_):
            row_as_dict[name] = np.uint8(value)
        elif value is None:
            raise TypeError(f"Pytorch does not support nullable fields. Found None in {name}")


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """Return a batch of rows as tensors; decimals, text and bytes unchanged."""
    from torch.utils.data.dataloader import default_collate

    first = batch[0]
    if isinstance(first, (decimal.Decimal, str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {name: decimal_friendly_collate([row[name] for row in batch]) for name in first}
    if isinstance(first, Sequence):
        return [decimal_friendly_collate(column) for column in zip(*batch, strict=True)]
    return default_collate(batch)  # type: ignore[arg-type] # of any kind


def _check_batch_size(batch_size: Any) -> int:
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive integer, and is {batch_size!r}. Give one: batch_size=32.")
    return int(batch_size)


class LoaderBase(ABC):
    """The base class of loaders, which make one pass over the reader at a time."""

    reader: Any

    def __init__(self) -> None:
        """Prepare the first pass."""
        self._in_iter: bool | None = None
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of a pass; a second pass resets the reader.

        Raises:
            RuntimeError: If another pass has not ended, or has failed.
        """
        if self._error is not None:
            msg = f"Cannot start a new iteration because last time iteration failed with error {self._error!r}."
            raise RuntimeError(msg)
        if self._in_iter:
            raise RuntimeError(_PARALLEL_ITER_ERROR)
        if self._in_iter is not None:
            self._reset_reader()
        self._in_iter = True
        try:
            yield from self._iter_impl()
        except Exception as error:
            self._error = error
            logger.exception("Iteration on Petastorm DataLoader raise error: %r", error)  # noqa: TRY401 - Petastorm's text
            raise
        finally:
            self._in_iter = False

    def _reset_reader(self) -> None:
        """Reset the reader, even in the middle of an epoch."""
        logger.warning(
            "Start a new pass of Petastorm DataLoader, reset underlying Petastorm reader to position 0. Give the reader "
            "num_epochs instead where you can: it reads ahead from one epoch to the next."
        )
        if getattr(self.reader, "last_row_consumed", True):
            self.reader.reset()
        else:
            self.reader.reset(anytime=True)

    @abstractmethod
    def _iter_impl(self) -> Iterator[Any]:
        """Yield the batches of a pass."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the reader, and wait for its workers."""
        self.reader.stop()
        self.reader.join()


class DataLoader(LoaderBase):
    """Makes batches of the rows of a reader.

    Args:
        reader: A reader of rows, or of batches, which are split into rows.
        batch_size: Rows of a batch; the last may have fewer.
        collate_fn: A function that makes a batch of a list of rows.
        shuffling_queue_capacity: The size of the shuffling buffer; 0 for the order of the reader.
        transform: A function that is called with each row, as in the first releases of Petastorm.
        seed: Decides the order of the shuffling buffer; by default the global generator of NumPy does.
        drop_last: Whether a last batch with fewer rows is dropped.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] = decimal_friendly_collate,
        shuffling_queue_capacity: int = 0,
        *,
        transform: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        drop_last: bool = False,
    ) -> None:
        """Store the reader."""
        super().__init__()
        self.reader, self.batch_size, self.collate_fn = reader, _check_batch_size(batch_size), collate_fn
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self._transform, self._seed, self._drop_last, self._passes = transform, seed, drop_last, 0

    def __len__(self) -> int:
        """Return the number of batches of a pass.

        Raises:
            TypeError: If the number of rows is unknown.
        """
        rows = len(self.reader)
        if self.reader.batched_output:
            raise TypeError("A loader of a reader of batches has no length: its rows are not known. Count what it hands out.")
        return rows // self.batch_size if self._drop_last else -(-rows // self.batch_size)

    def _iter_impl(self) -> Iterator[Any]:
        buffer = self._buffer()
        batch: list[Any] = []
        for item in self.reader:
            buffer.add_many(self._rows(item))
            while not buffer.can_add() or (self.shuffling_queue_capacity <= 0 and buffer.can_retrieve()):
                batch.append(buffer.retrieve())
                if len(batch) == self.batch_size:
                    yield self.collate_fn(batch)
                    batch = []
        buffer.finish()
        while buffer.can_retrieve():
            batch.append(buffer.retrieve())
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch and not self._drop_last:
            yield self.collate_fn(batch)

    def _buffer(self) -> ShufflingBufferBase:
        """Return the buffer of a pass."""
        capacity = self.shuffling_queue_capacity
        if capacity <= 0:
            return NoopShufflingBuffer()
        rng = None if self._seed is None else np.random.default_rng([self._seed, self._passes])
        self._passes += 1
        return RandomShufflingBuffer(capacity, capacity - 1, extra_capacity=100_000_000, rng=rng)

    def _rows(self, item: Any) -> list[Any]:
        """Return an item of the reader as rows that torch supports."""
        if not hasattr(item, "_asdict"):
            return [item if self._transform is None else self._transform(item)]
        values = dict(item._asdict())
        if not self.reader.batched_output:
            rows = [values] if self._transform is None else [self._transform(values)]
            for row in rows:
                if isinstance(row, dict):
                    _sanitize_pytorch_types(row)
            return rows
        columns = {name: cells if isinstance(cells, np.ndarray) else _categories(cells) for name, cells in values.items()}
        _sanitize_pytorch_types(columns)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return rows if self._transform is None else [self._transform(row) for row in rows]


def _categories(values: Any) -> Any:
    """Return the values of a partition column, which is a Categorical: text as a list, other values as an array."""
    array = np.asarray(values)
    is_text = array.dtype.kind in "OU" and all(isinstance(value, str) for value in array)
    return array.tolist() if is_text else array


class BatchedDataLoader(LoaderBase):
    """Makes batches of tensors without splitting them into rows.

    Args:
        reader: A reader of batches, or of rows.
        batch_size: Rows of a batch; the last may have fewer.
        transform_fn: A function that converts an array to a tensor; `torch.as_tensor` by default.
        shuffling_queue_capacity: The size of the shuffling buffer; 0 for the order of the reader.
        seed: Decides the order of the shuffling buffer; by default the global generator of torch does.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        shuffling_queue_capacity: int = 0,
        *,
        seed: int | None = None,
    ) -> None:
        """Store the reader."""
        super().__init__()
        self.reader, self.batch_size, self._seed, self._passes = reader, _check_batch_size(batch_size), seed, 0
        self.transform_fn = transform_fn or _as_tensor
        self.shuffling_queue_capacity = shuffling_queue_capacity

    def _iter_impl(self) -> Iterator[Any]:
        buffer = self._buffer()
        names: list[str] = []
        for item in self.reader:
            names, columns = _columns(item, self.reader, self.transform_fn)
            buffer.add_many(columns)
            while not buffer.can_add() or (self.shuffling_queue_capacity <= 0 and buffer.can_retrieve()):
                yield dict(zip(names, buffer.retrieve(), strict=True))
        buffer.finish()
        while buffer.can_retrieve():
            yield dict(zip(names, buffer.retrieve(), strict=True))

    def _buffer(self) -> BatchedShufflingBufferBase:
        """Return the buffer of a pass."""
        import torch

        capacity = self.shuffling_queue_capacity
        if capacity <= 0:
            return BatchedNoopShufflingBuffer(batch_size=self.batch_size)
        generator = None if self._seed is None else torch.Generator().manual_seed(self._seed + self._passes)
        self._passes += 1
        return BatchedRandomShufflingBuffer(
            capacity - 1 + self.batch_size,
            capacity - 1,
            extra_capacity=100_000_000,
            batch_size=self.batch_size,
            generator=generator,
        )


def _as_tensor(values: Any) -> Any:
    """Return an array as a tensor; a list of one array as a tensor of one row."""
    import torch

    return torch.as_tensor(np.stack(values) if isinstance(values, list) and isinstance(values[0], np.ndarray) else values)


def _columns(item: Any, reader: Any, transform_fn: Callable[[Any], Any]) -> tuple[list[str], list[Any]]:
    """Return the names and the tensors of the columns of a row or a batch."""
    columns = dict(item._asdict())
    if reader.batched_output:
        columns = {name: cells if isinstance(cells, np.ndarray) else np.asarray(cells) for name, cells in columns.items()}
    _sanitize_pytorch_types(columns)
    return list(columns), [transform_fn(cells if reader.batched_output else [cells]) for cells in columns.values()]


def _load_rows_into_mem(reader: Any, transform_fn: Callable[[Any], Any], rows_capacity: int) -> tuple[list[str], list[Any]]:
    """Return the names and the tensors of up to `rows_capacity` rows of a reader, and stop the reader."""
    import torch

    names: list[str] = []
    parts: list[list[Any]] = []
    rows = 0
    try:
        for item in reader:
            names, columns = _columns(item, reader, transform_fn)
            parts.append([column[: rows_capacity - rows] for column in columns])
            rows += len(parts[-1][0])
            if rows >= rows_capacity:
                break
    finally:
        reader.stop()
        reader.join()
    return names, [torch.cat(columns) for columns in zip(*parts, strict=True)]


class InMemBatchedDataLoader:
    """Loads rows of a reader into memory, and yields batches of them in several passes.

    Args:
        reader: A reader of batches, or of rows; the constructor reads and stops it.
        batch_size: Rows of a batch; the last of a pass may have fewer.
        transform_fn: A function that converts an array to a tensor; `torch.as_tensor` by default.
        num_epochs: The number of passes; None for endless.
        seed: Decides the order of each pass, with the number of the pass.
        rows_capacity: The maximum number of rows in memory.
        shuffle: Whether the rows are shuffled, anew in each pass.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        num_epochs: int | None = 1,
        seed: int = 0,
        rows_capacity: int = 1024,
        shuffle: bool = False,
    ) -> None:
        """Read the rows."""
        self.reader, self.batch_size, self.num_epochs, self.seed = reader, _check_batch_size(batch_size), num_epochs, seed
        self.rows_capacity, self.shuffle, self._used = rows_capacity, shuffle, False
        self._names, self._items = _load_rows_into_mem(reader, transform_fn or _as_tensor, rows_capacity)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of all passes.

        Raises:
            RuntimeError: If it is called a second time.
        """
        import torch

        if self._used:
            raise RuntimeError("InMemBatchedDataLoader couldn't be used multiple times. Give it num_epochs, or make another.")
        self._used = True
        rows = len(self._items[0]) if self._items else 0
        epoch = 0
        while rows and (self.num_epochs is None or epoch < self.num_epochs):
            order = torch.arange(rows)
            if self.shuffle:
                order = torch.randperm(rows, generator=torch.Generator().manual_seed(self.seed + epoch))
            for start in range(0, rows, self.batch_size):
                indices = order[start : start + self.batch_size]
                yield {name: column[indices] for name, column in zip(self._names, self._items, strict=True)}
            epoch += 1

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the reader was stopped before."""
