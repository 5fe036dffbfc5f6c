"""Loaders of `petastorm.pytorch`: batches of tensors of what a reader hands out."""

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

__all__ = [
    "BatchedDataLoader",
    "DataLoader",
    "InMemBatchedDataLoader",
    "LoaderBase",
    "decimal_friendly_collate",
]

logger = logging.getLogger(__name__)

_PARALLEL_ITER_ERROR = (
    "You must finish a full pass of Petastorm DataLoader before making another pass from the beginning. If you do need to "
    "terminate early and restart from beginning, please re-create the reader and the data loader."
)

WIDER: dict[np.dtype[Any], Any] = {
    np.dtype(np.uint16): np.int32,
    np.dtype(np.uint32): np.int64,
    np.dtype(np.bool_): np.uint8,
}
"""What arrays become that torch once had no type for."""


def _sanitize_pytorch_types(row_as_dict: dict[str, Any]) -> None:
    """Change values in place to what torch takes.

    Raises:
        TypeError: If that cannot be done.
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
            if value.dtype in WIDER:
                row_as_dict[name] = value.astype(WIDER[value.dtype])
        elif isinstance(value, np.bool_):
            row_as_dict[name] = np.uint8(value)
        elif value is None:
            raise TypeError(f"Pytorch does not support nullable fields. Found None in {name}")


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """Return a batch of rows: tensors where torch has such, and decimals, text and bytes as they are."""
    from torch.utils.data.dataloader import default_collate

    first = batch[0]
    if isinstance(first, (decimal.Decimal, str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {name: decimal_friendly_collate([row[name] for row in batch]) for name in first}
    if isinstance(first, Sequence):
        return [decimal_friendly_collate(column) for column in zip(*batch, strict=True)]
    return default_collate(batch)  # type: ignore[arg-type] # of any kind


def _checked(batch_size: Any) -> int:
    """Return how many rows a batch has; a batch of none would never be full."""
    if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive integer, and is {batch_size!r}. Give one: batch_size=32.")
    return int(batch_size)


class LoaderBase(ABC):
    """What loaders have in common: one pass at a time, each over all that its reader gives."""

    reader: Any

    def __init__(self) -> None:
        """Begin before the first pass."""
        self._in_iter: bool | None = None
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of a pass; a second one reads the reader again.

        Raises:
            RuntimeError: If another pass is not finished, or one has failed.
        """
        if self._error is not None:
            msg = f"Cannot start a new iteration because last time iteration failed with error {self._error!r}."
            raise RuntimeError(msg)
        if self._in_iter:
            raise RuntimeError(_PARALLEL_ITER_ERROR)
        if self._in_iter is not None:
            self._read_again()
        self._in_iter = True
        try:
            yield from self._iter_impl()
        except Exception as error:
            self._error = error
            logger.exception("Iteration on Petastorm DataLoader raise error: %r", error)  # noqa: TRY401 - Petastorm's text
            raise
        finally:
            self._in_iter = False

    def _read_again(self) -> None:
        """Have the reader begin anew, also where the pass before was left early."""
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
        """Stop the reader, and wait for it."""
        self.reader.stop()
        self.reader.join()


class DataLoader(LoaderBase):
    """Makes batches of the rows of a reader.

    Args:
        reader: A reader of rows, or of batches, whose rows are taken apart.
        batch_size: Rows of a batch; the last may have fewer.
        collate_fn: What makes a batch of a list of rows.
        shuffling_queue_capacity: Rows that are held and come in any order; 0 for the order of the reader.
        transform: A function that is run on each row, as in the first releases of Petastorm.
        seed: Decides the order of rows that are held; by default `numpy.random` does.
        drop_last: Whether a last batch of fewer rows is left out.
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
        self.reader, self.batch_size, self.collate_fn = reader, _checked(batch_size), collate_fn
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self._transform, self._seed, self._drop_last, self._passes = transform, seed, drop_last, 0

    def __len__(self) -> int:
        """Return how many batches a pass has.

        Raises:
            TypeError: If the reader does not know how many rows it has.
        """
        rows = len(self.reader)
        if self.reader.batched_output:
            raise TypeError("A loader of a reader of batches has no length: its rows are not known. Count what it hands out.")
        return rows // self.batch_size if self._drop_last else -(-rows // self.batch_size)

    def _iter_impl(self) -> Iterator[Any]:
        buffer = self._buffer()
        held: list[Any] = []
        for item in self.reader:
            buffer.add_many(self._rows(item))
            while not buffer.can_add() or (self.shuffling_queue_capacity <= 0 and buffer.can_retrieve()):
                held.append(buffer.retrieve())
                if len(held) == self.batch_size:
                    yield self.collate_fn(held)
                    held = []
        buffer.finish()
        while buffer.can_retrieve():
            held.append(buffer.retrieve())
            if len(held) == self.batch_size:
                yield self.collate_fn(held)
                held = []
        if held and not self._drop_last:
            yield self.collate_fn(held)

    def _buffer(self) -> ShufflingBufferBase:
        """Return what holds rows for one pass."""
        capacity = self.shuffling_queue_capacity
        if capacity <= 0:
            return NoopShufflingBuffer()
        rng = None if self._seed is None else np.random.default_rng([self._seed, self._passes])
        self._passes += 1
        return RandomShufflingBuffer(capacity, capacity - 1, extra_capacity=100_000_000, rng=rng)

    def _rows(self, item: Any) -> list[Any]:
        """Return what a reader handed out as rows that torch takes."""
        if not hasattr(item, "_asdict"):
            return [item if self._transform is None else self._transform(item)]
        found = dict(item._asdict())
        if not self.reader.batched_output:
            rows = [found] if self._transform is None else [self._transform(found)]
            for row in rows:
                if isinstance(row, dict):
                    _sanitize_pytorch_types(row)
            return rows
        columns = {name: values if isinstance(values, np.ndarray) else _categories(values) for name, values in found.items()}
        _sanitize_pytorch_types(columns)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return rows if self._transform is None else [self._transform(row) for row in rows]


def _categories(values: Any) -> Any:
    """Return what directories say of each row, which a batch has as a Categorical: text as it is, anything else as an array."""
    found = np.asarray(values)
    texts = found.dtype.kind in "OU" and all(isinstance(value, str) for value in found)
    return found.tolist() if texts else found


class BatchedDataLoader(LoaderBase):
    """Makes batches of the tensors of a reader, without taking rows apart.

    Args:
        reader: A reader of batches, or of rows.
        batch_size: Rows of a batch; the last may have fewer.
        transform_fn: What makes a tensor of an array; `torch.as_tensor` by default.
        shuffling_queue_capacity: Rows that are held and come in any order; 0 for the order of the reader.
        seed: Decides the order of rows that are held; by default torch does.
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
        self.reader, self.batch_size, self._seed, self._passes = reader, _checked(batch_size), seed, 0
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
        """Return what holds rows for one pass."""
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
    """Return an array as a tensor; a list of one array as a tensor with one row."""
    import torch

    return torch.as_tensor(np.stack(values) if isinstance(values, list) and isinstance(values[0], np.ndarray) else values)


def _columns(item: Any, reader: Any, transform_fn: Callable[[Any], Any]) -> tuple[list[str], list[Any]]:
    """Return the names of columns, and their tensors, of a row or a batch."""
    found = dict(item._asdict())
    if reader.batched_output:
        found = {name: values if isinstance(values, np.ndarray) else np.asarray(values) for name, values in found.items()}
    _sanitize_pytorch_types(found)
    return list(found), [transform_fn(value if reader.batched_output else [value]) for value in found.values()]


def _load_rows_into_mem(reader: Any, transform_fn: Callable[[Any], Any], rows_capacity: int) -> tuple[list[str], list[Any]]:
    """Return the names and the tensors of the first rows of a reader, as many as a capacity, and stop the reader."""
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
    """Holds rows of a reader in memory, and hands them out again and again.

    Args:
        reader: A reader of batches, or of rows; it is read and stopped at once.
        batch_size: Rows of a batch; the last of a pass may have fewer.
        transform_fn: What makes a tensor of an array; `torch.as_tensor` by default.
        num_epochs: How many passes there are; None for without end.
        seed: Decides the order of each pass, together with its number.
        rows_capacity: How many rows are held at most.
        shuffle: Whether rows come in another order in each pass.
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
        self.reader, self.batch_size, self.num_epochs, self.seed = reader, _checked(batch_size), num_epochs, seed
        self.rows_capacity, self.shuffle, self._used = rows_capacity, shuffle, False
        self._names, self._items = _load_rows_into_mem(reader, transform_fn or _as_tensor, rows_capacity)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of all passes.

        Raises:
            RuntimeError: If they were asked for before.
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
                chosen = order[start : start + self.batch_size]
                yield {name: column[chosen] for name, column in zip(self._names, self._items, strict=True)}
            epoch += 1

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the reader has stopped."""
