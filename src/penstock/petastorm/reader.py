"""Readers of `petastorm.reader`: rows or batches of a dataset, one after the other."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from operator import index, length_hint
from typing import Any, Self

import numpy as np

from penstock._engine.assembly import Here, InProcesses, OnThreads
from penstock._engine.budget import MEMORY_LIMIT
from penstock._engine.count import counts_of
from penstock._engine.decode import Column
from penstock._engine.execute import Pool
from penstock._engine.lot_reader import LotReader
from penstock._engine.lots import Turns
from penstock._engine.read import Reader as UnitReader
from penstock.petastorm._course import Course
from penstock.petastorm._custom_codecs import engine_codecs
from penstock.petastorm._dataset import StoredDataset, normalized, opened
from penstock.petastorm._jobs import BatchJob, BatchPredicate, RowJob, RowPredicate
from penstock.petastorm._rebatch import Rebatch
from penstock.petastorm._selection import Asked, Selection, selected
from penstock.petastorm._state import Progress, fingerprint
from penstock.petastorm.cache import NullCache
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.petastorm.ngram import NGram, Windows
from penstock.petastorm.predicates import PredicateBase
from penstock.petastorm.selectors import RowGroupSelectorBase
from penstock.petastorm.transform import TransformSpec, transform_schema
from penstock.petastorm.unischema import Unischema
from penstock.petastorm.workers_pool.dummy_pool import DummyPool
from penstock.petastorm.workers_pool.process_pool import ProcessPool
from penstock.petastorm.workers_pool.thread_pool import ThreadPool

__all__ = [
    "LOCAL_DISK_CACHE",
    "NULL_CACHE",
    "Reader",
    "make_batch_reader",
    "make_reader",
    "normalize_dataset_url_or_urls",
]

NULL_CACHE = "null"
LOCAL_DISK_CACHE = "local-disk"

NOTHING = object()
STOPPED = (
    "Trying to read a sample after a reader created by make_reader/make_batch_reader has stopped. This may happen if the "
    "make_reader/make_batch_reader context manager has exited but you try to fetch a sample from it anyway."
)


def normalize_dataset_url_or_urls(dataset_url_or_urls: Any) -> Any:
    """Return a URL, or a list of URLs, without the slashes that they end with.

    Raises:
        ValueError: If there is none, or one is no text.
    """
    if isinstance(dataset_url_or_urls, list):
        if not dataset_url_or_urls:
            raise ValueError("dataset url list must be non-empty.")
        return [normalized(url) for url in dataset_url_or_urls]
    return normalized(dataset_url_or_urls)


def make_reader(
    dataset_url: str,
    schema_fields: Any = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    pyarrow_serialize: bool = False,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = "null",
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - one driver is left, and pyarrow finds it
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
    *,
    shard_by: str = "row_groups",
    codecs: Sequence[Any] = (),
    memory_limit: int | None = None,
) -> Reader:
    """Return a reader of rows, each a named tuple of decoded values.

    Args:
        dataset_url: Where a dataset of Petastorm lies; other Parquet is read too, with a warning.
        schema_fields: Fields, regular expressions that match whole names, or an `NGram`; by default all fields.
        reader_pool_type: What works on row groups: "thread", "process" or "dummy".
        workers_count: How many of them.
        pyarrow_serialize: Accepted as ever, and without effect.
        results_queue_size: Accepted as ever; how much is read ahead is bounded by its bytes.
        seed: Decides the order; 0 is a seed. By default it is another each time.
        shuffle_rows: Whether the rows of each row group come in another order.
        shuffle_row_groups: Whether row groups do, another one in each epoch.
        shuffle_row_drop_partitions: Parts that each row group is cut into, which then come in any order.
        predicate: Which rows are read.
        rowgroup_selector: Which row groups are read, by stored indexes.
        num_epochs: How often the dataset is read; None for without end.
        cur_shard: Which of `shard_count` shards this is.
        shard_count: How many there are; row group `n` belongs to shard `n % shard_count`.
        shard_seed: Deprecated; use `seed`.
        cache_type: "local-disk" to keep row groups on disk, or "null".
        cache_location: In which directory.
        cache_size_limit: How many bytes.
        cache_row_size_estimate: What a row takes.
        cache_extra_settings: More options of `LocalDiskCache`.
        hdfs_driver: Accepted as ever, and without effect.
        transform_spec: A function that is run on each row.
        filters: Conditions as tuples, of any columns.
        storage_options: What fsspec is told to open the URL with.
        zmq_copy_buffers: Accepted as ever, and without effect.
        filesystem: A filesystem of pyarrow or fsspec.
        convert_early_to_numpy: Accepted as ever, and without effect.
        shard_by: "rows" for shards whose numbers of rows differ by one at most, whatever row groups there are.
        codecs: Classes of codecs of your own that the dataset was written with.
        memory_limit: Bytes that may be read ahead.

    Raises:
        ValueError: If an argument makes no sense.
        OSError: If nothing lies at the URL.
    """
    dataset = opened(normalize_dataset_url_or_urls(dataset_url), storage_options, filesystem)
    cache = _cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    if not dataset.is_petastorm:
        warnings.warn(
            "Currently make_reader supports reading only Petastorm datasets. To read from a non-Petastorm Parquet store use "
            "make_batch_reader instead.",
            UserWarning,
            stacklevel=2,
        )
    if pyarrow_serialize and reader_pool_type == "process":
        warnings.warn("pyarrow_serialize was deprecated and has no effect. Leave it out.", UserWarning, stacklevel=2)
    return Reader(
        None,
        None,
        schema_fields=schema_fields,
        seed=seed,
        shuffle_rows=shuffle_rows,
        shuffle_row_groups=shuffle_row_groups,
        shuffle_row_drop_partitions=shuffle_row_drop_partitions,
        predicate=predicate,
        rowgroup_selector=rowgroup_selector,
        reader_pool=_pool(reader_pool_type, workers_count, results_queue_size, zmq_copy_buffers=zmq_copy_buffers),
        num_epochs=num_epochs,
        cur_shard=cur_shard,
        shard_count=shard_count,
        cache=cache,
        transform_spec=transform_spec,
        filters=filters,
        shard_seed=shard_seed,
        convert_early_to_numpy=convert_early_to_numpy,
        shard_by=shard_by,
        codecs=codecs,
        memory_limit=memory_limit,
        dataset=dataset,
    )


def make_batch_reader(
    dataset_url_or_urls: Any,
    schema_fields: Any = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: PredicateBase | None = None,
    rowgroup_selector: RowGroupSelectorBase | None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = "null",
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - one driver is left, and pyarrow finds it
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,
    *,
    shard_by: str = "row_groups",
    codecs: Sequence[Any] = (),
    memory_limit: int | None = None,
    decode: bool = False,
    batch_size: int | None = None,
    drop_last: bool = False,
) -> Reader:
    """Return a reader of batches, each a named tuple of arrays; by default one for each row group.

    The arguments are those of `make_reader`, and these:

    Args:
        dataset_url_or_urls: Where Parquet lies: a directory, a file, or a list of files.
        schema_fields: Fields, or regular expressions that match whole names; by default all columns.
        reader_pool_type: What works on row groups: "thread", "process" or "dummy".
        workers_count: How many of them.
        results_queue_size: Accepted as ever; how much is read ahead is bounded by its bytes.
        seed: Decides the order; 0 is a seed. By default it is another each time.
        shuffle_rows: Whether the rows of each row group come in another order.
        shuffle_row_groups: Whether row groups do, another one in each epoch.
        shuffle_row_drop_partitions: Parts that each row group is cut into, which then come in any order.
        predicate: Which rows are read; it is given a data frame, and returns a boolean for each row.
        rowgroup_selector: Which row groups are read, by stored indexes.
        num_epochs: How often all is read; None for without end.
        cur_shard: Which of `shard_count` shards this is.
        shard_count: How many there are; row group `n` belongs to shard `n % shard_count`.
        shard_seed: Deprecated; use `seed`.
        cache_type: "local-disk" to keep row groups on disk, or "null".
        cache_location: In which directory.
        cache_size_limit: How many bytes.
        cache_row_size_estimate: What a row takes.
        cache_extra_settings: More options of `LocalDiskCache`.
        hdfs_driver: Accepted as ever, and without effect.
        transform_spec: A function that is run on the data frame of each row group; it may return other rows.
        filters: Conditions as tuples, of any columns.
        storage_options: What fsspec is told to open the URL with.
        zmq_copy_buffers: Accepted as ever, and without effect.
        filesystem: A filesystem of pyarrow or fsspec.
        convert_early_to_numpy: Accepted as ever, and without effect: workers always do.
        shard_by: "rows" for shards whose numbers of rows differ by one at most, whatever row groups there are.
        codecs: Classes of codecs of your own that the dataset was written with.
        memory_limit: Bytes that may be read ahead.
        decode: Whether images and arrays of a dataset of Petastorm are decoded, as `make_reader` does.
        batch_size: Rows of each batch but the last, whatever row groups have.
        drop_last: Whether a last batch of fewer rows is left out.

    Raises:
        ValueError: If an argument makes no sense.
        OSError: If nothing lies at the URL.
    """
    dataset = opened(normalize_dataset_url_or_urls(dataset_url_or_urls), storage_options, filesystem)
    cache = _cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    if dataset.is_petastorm and not decode:
        warnings.warn(
            "Please use make_reader (instead of make_batch_reader) to read this dataset, which was written by Petastorm, or "
            "make_batch_reader(..., decode=True): without it images and arrays come as the bytes that are stored.",
            UserWarning,
            stacklevel=2,
        )
    return Reader(
        None,
        None,
        schema_fields=schema_fields,
        seed=seed,
        shuffle_rows=shuffle_rows,
        shuffle_row_groups=shuffle_row_groups,
        shuffle_row_drop_partitions=shuffle_row_drop_partitions,
        predicate=predicate,
        rowgroup_selector=rowgroup_selector,
        reader_pool=_pool(reader_pool_type, workers_count, results_queue_size, zmq_copy_buffers=zmq_copy_buffers),
        num_epochs=num_epochs,
        cur_shard=cur_shard,
        shard_count=shard_count,
        cache=cache,
        transform_spec=transform_spec,
        is_batched_reader=True,
        filters=filters,
        shard_seed=shard_seed,
        convert_early_to_numpy=convert_early_to_numpy,
        shard_by=shard_by,
        codecs=codecs,
        memory_limit=memory_limit,
        decode=decode,
        batch_size=batch_size,
        drop_last=drop_last,
        dataset=dataset,
    )


def _pool(kind: str, workers_count: int, results_queue_size: int, *, zmq_copy_buffers: bool) -> Any:
    """Return what works on row groups."""
    if kind == "thread":
        return ThreadPool(workers_count, results_queue_size)
    if kind == "process":
        return ProcessPool(workers_count, None, zmq_copy_buffers=zmq_copy_buffers)
    if kind == "dummy":
        return DummyPool()
    raise ValueError(f"Unknown reader_pool_type: {kind}. It is one of 'thread', 'process' and 'dummy'.")


def _cache(
    kind: str | None,
    location: str | None,
    size_limit: int | None,
    row_size: int | None,
    settings: Mapping[str, Any] | None,
) -> Any:
    """Return what keeps row groups."""
    if kind in (None, NULL_CACHE):
        return NullCache()
    if kind == LOCAL_DISK_CACHE:
        return LocalDiskCache(location, size_limit, row_size, **(settings or {}))  # type: ignore[arg-type] # it says what is wrong
    raise ValueError(f"Unknown cache_type: {kind}. It is one of 'null' and 'local-disk'.")


class Reader:
    """Hands out rows or batches of a dataset. It is an iterator, and a context that stops it.

    `make_reader` and `make_batch_reader` make one. Any thread may ask for the next row.

    Args:
        pyarrow_filesystem: A filesystem of pyarrow or fsspec; or a URL, as in the first releases of Petastorm.
        dataset_path: The path of the dataset, or of several files, in that filesystem.
        schema_fields: As in `make_reader`; so are the others.
        reader_pool: What works on row groups: a `ThreadPool`, a `ProcessPool` or a `DummyPool`.
        cache: What keeps row groups.
        worker_class: Accepted as ever, and without effect.
        is_batched_reader: Whether batches are handed out.
        dataset: A dataset that is open, instead of a path.
    """

    def __init__(
        self,
        pyarrow_filesystem: Any,
        dataset_path: Any = None,
        schema_fields: Any = None,
        seed: int | None = None,
        shuffle_rows: bool = False,
        shuffle_row_groups: bool = True,
        shuffle_row_drop_partitions: int = 1,
        predicate: PredicateBase | None = None,
        rowgroup_selector: RowGroupSelectorBase | None = None,
        reader_pool: Any = None,
        num_epochs: int | None = 1,
        cur_shard: int | None = None,
        shard_count: int | None = None,
        cache: Any = None,
        worker_class: Any = None,  # noqa: ARG002 - one class is left
        transform_spec: TransformSpec | None = None,
        is_batched_reader: bool = False,
        filters: Any = None,
        shard_seed: int | None = None,
        convert_early_to_numpy: bool = False,  # noqa: ARG002 - workers always do
        *,
        shard_by: str = "row_groups",
        codecs: Sequence[Any] = (),
        memory_limit: int | None = None,
        decode: bool = False,
        batch_size: int | None = None,
        drop_last: bool = False,
        dataset: StoredDataset | None = None,
    ) -> None:
        """Open the dataset, choose what is read, and begin to read."""
        self._failed: BaseException | None = None
        self._process = os.getpid()
        self.stopped = self.last_row_consumed = False
        self.is_batched_reader, self.num_epochs = bool(is_batched_reader), num_epochs
        self.cache = NullCache() if cache is None else cache
        self._batch_size, self._drop_last = batch_size, drop_last
        self.dataset = dataset if dataset is not None else _opened(pyarrow_filesystem, dataset_path)
        _check_arguments(num_epochs, predicate, rowgroup_selector, batch_size, shard_by)
        _check_parts(shuffle_row_drop_partitions)
        _check_transform(transform_spec)
        drawn = _seed(shard_seed if shard_seed and seed is None else seed)
        if shard_seed:
            warnings.warn(
                "shard_seed was deprecated and has no effect on which row groups a shard has. Use seed for their order.",
                UserWarning,
                stacklevel=3,
            )
        stored = self.dataset.schema
        self.ngram = schema_fields if isinstance(schema_fields, NGram) else None
        view = self._viewed(stored, schema_fields)
        if self.ngram is not None:
            self._check_ngram(shuffle_rows=shuffle_rows, parts=shuffle_row_drop_partitions)
        self.schema = view if transform_spec is None else transform_schema(view, transform_spec)
        asked = Asked(
            predicate=predicate,
            selector=rowgroup_selector,
            filters=filters,
            shard=_shard(cur_shard, shard_count),
            by_rows=shard_by == "rows",
            parts=shuffle_row_drop_partitions,
            more=0 if self.ngram is None else self.ngram.length - 1,
        )
        decoding = not is_batched_reader or decode
        snapshot = self.dataset.decoding(engine_codecs(codecs)) if decoding else self.dataset.raw
        selection = selected(self.dataset, snapshot, stored, asked)
        self._selection, self._asked = selection, asked
        self._shuffle_rows, self._shuffle_row_groups = bool(shuffle_rows), bool(shuffle_row_groups)
        self._view, self._transform, self._limit = view, transform_spec, memory_limit or MEMORY_LIMIT
        self._workers = ThreadPool(10) if reader_pool is None else reader_pool
        self._check_later(selection, view, predicate, shuffle_row_drop_partitions)
        self._lock = threading.Lock()
        self._start = Progress(seed=drawn)
        self._name = fingerprint(
            selection.snapshot,
            selection.lots,
            {
                "shuffle": [self._shuffle_rows, self._shuffle_row_groups],
                "filter": None if selection.condition is None else selection.condition.describe(),
                "batched": self.is_batched_reader,
            },
        )
        self._begin(self._start)

    # What is read.

    def _viewed(self, stored: Unischema, schema_fields: Any) -> Unischema:
        """Return the fields that are read."""
        if isinstance(schema_fields, NGram):
            schema_fields.resolve_regex_field_names(stored)
            names = {field.name for field in schema_fields.get_field_names_at_all_timesteps()}
            return stored.create_schema_view([field for name, field in stored.fields.items() if name in names])
        if isinstance(schema_fields, str):
            schema_fields = [schema_fields]
        if schema_fields is not None and not isinstance(schema_fields, Iterable):
            raise ValueError("Fields must be either None, an iterable collection of Unischema fields or an NGram object.")
        fields = [] if schema_fields is None else list(schema_fields)
        view = stored.create_schema_view(fields) if fields else stored
        if not view.fields:
            told = None if schema_fields is None else [field if isinstance(field, str) else field.name for field in fields]
            raise RuntimeError(f"No fields matching the criteria '{told}' were found in the dataset {self.dataset.place.path}.")
        return view

    def _check_ngram(self, *, shuffle_rows: bool, parts: int) -> None:
        """Refuse what does not go together with windows."""
        assert self.ngram is not None  # noqa: S101 - asked before
        if self.is_batched_reader:
            raise NotImplementedError("ngrams are not supported by ArrowReaderWorker: use make_reader for them.")
        if not self.ngram.timestamp_overlap and parts > 1:
            msg = "Using timestamp_overlap=False is not implemented with shuffle_options.shuffle_row_drop_partitions > 1"
            raise NotImplementedError(msg)
        if shuffle_rows and self.ngram.length > 1:
            self._failed = NotImplementedError(f"{self.ngram._unsorted()}: shuffle_rows=True mixes it. Leave that out.")  # noqa: SLF001

    def _check_later(self, selection: Selection, view: Unischema, predicate: Any, parts: int) -> None:
        """Keep what is wrong for whoever asks for the first row, as Petastorm does."""
        if selection.predicate is not None:
            names = set(selection.predicate.get_fields())
            if not names or not names <= set(view.fields):
                self._failed = ValueError(
                    f"At least some column names requested by the predicate ({', '.join(sorted(map(str, names)))}) are not "
                    f"valid schema names: ({', '.join(view.fields)})"
                )
        if not isinstance(self.cache, NullCache) and predicate is not None and selection.predicate is not None:
            self._failed = RuntimeError(
                "Local cache is not supported together with predicates, unless the dataset is partitioned."
            )
        if not isinstance(self.cache, NullCache) and parts > 1:
            self._failed = RuntimeError("Local cache is not supported together with shuffle_row_drop_partitions > 1")

    def _job(self, seed: int) -> Any:
        """Return what is done with each row group."""
        selection, view, transform = self._selection, self._view, self._transform
        keep = None
        if selection.predicate is not None:
            names = [name for name in view.fields if name in set(selection.predicate.get_fields())]
            row = RowPredicate(selection.predicate, view, names)
            keep = BatchPredicate(selection.predicate, names) if self.is_batched_reader else row
        fields = selection.snapshot.fields
        columns = [Column(name=name, field=fields.get(name)) for name in view.fields]
        cache = None if isinstance(self.cache, NullCache) else self.cache
        reader = LotReader(
            selection.snapshot,
            self.dataset.fs,
            columns,
            condition=selection.condition,
            keep=keep,
            cache=cache,
            memory_limit=self._limit,
        )
        rows = seed if self._shuffle_rows else None
        if not self.is_batched_reader:
            windows = None if self.ngram is None else Windows(self.ngram, self.schema)
            return RowJob(selection.lots, reader, rows, schema=view, made=self.schema, transform=transform, windows=windows)
        partitions = selection.snapshot.files.partitions
        values = {name: partitions.column(name).unique().to_pylist() for name in partitions.column_names}
        known = {name: sorted(value for value in found if value is not None) for name, found in values.items()}
        return BatchJob(selection.lots, reader, rows, schema=view, made=self.schema, transform=transform, partitions=known)

    # How it is read.

    def _begin(self, start: Progress) -> None:
        """Begin to read at a place."""
        kind, lots = self._workers, self._selection.lots
        self._start, self._rows, self._left = start, iter(()), iter(())
        turns = Turns(count=len(lots), seed=start.seed, shuffled=self._shuffle_row_groups)
        left = None if self.num_epochs is None else start.first + self.num_epochs - start.epoch
        steps, job = turns.steps(epochs=left, epoch=start.epoch, place=start.place), self._job(start.seed)
        self._assembly: Here[Any, Any] | InProcesses[Any, Any] | OnThreads[Any, Any]
        if isinstance(kind, DummyPool):
            self._pool = Pool(1)
            self._assembly = Here(steps, job)
        elif isinstance(kind, ProcessPool):
            self._pool = Pool(1)
            name = "make_batch_reader" if self.is_batched_reader else "make_reader"
            self._assembly = InProcesses(steps, job, self._pool, max(1, kind.workers_count), name, self._limit)
        else:
            self._pool = Pool(max(1, kind.workers_count))
            self._assembly = OnThreads(steps, job, self._pool, expected=self._selection.lot_bytes, limit=self._limit)
        rebatch = None if self._batch_size is None else Rebatch(self._batch_size)
        endless = len(lots) if self.num_epochs is None else None
        self._course = Course(self._assembly, start, endless, rebatch, drop_last=self._drop_last)
        if self._failed is None:
            self._assembly.begin()

    # What the consumer gets.

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next row, or batch.

        Raises:
            StopIteration: If there is none.
            RuntimeError: If the reader has stopped.
        """
        # An iterator of built-in parts gives each of its items to one thread alone, so most rows need no lock.
        try:
            return next(self._rows)
        except StopIteration:
            return self._refilled()

    def next(self) -> Any:
        """Return the next row, or batch."""
        return self.__next__()

    def _refilled(self) -> Any:
        """Return the next row when those that lay ready are used up."""
        if os.getpid() != self._process:
            msg = (
                f"This reader was made in process {self._process}, and its threads are there. Make another in process "
                f"{os.getpid()}, after the fork."
            )
            raise RuntimeError(msg)
        with self._lock:
            found = next(self._rows, NOTHING)
            if found is not NOTHING:  # another thread was faster
                return found
            self._check_running()
            try:
                rows, left = self._course.refill().begun()
            except StopIteration:
                if self.stopped:
                    raise RuntimeError(STOPPED) from None
                self.last_row_consumed = True
                raise
            except BaseException as error:
                self._failed = error
                self._pool.close(0.0)
                raise
            found = next(rows)
            self._rows, self._left = rows, left
            self._check_running()
            return found

    def _check_running(self) -> None:
        """Refuse to go on where it was stopped, or something went wrong before."""
        if self.stopped:
            self._rows = iter(())
            raise RuntimeError(STOPPED)
        if self._failed is not None:
            raise self._failed

    def __len__(self) -> int:
        """Return how many rows, or batches, there are in all epochs.

        Raises:
            TypeError: If nobody can know before they are read.
        """
        if self.num_epochs is None:
            raise TypeError("A reader that reads without end has no length. Give num_epochs.")
        batch_function = self.is_batched_reader and self._transform is not None and self._transform.func is not None
        unknown = {
            "a predicate": self._selection.predicate is not None,
            "an NGram": self.ngram is not None,
            "a function that may return other rows": batch_function,
        }
        for what, is_so in unknown.items():
            if is_so:
                raise TypeError(f"A reader with {what} has no length before it has read. Count what it hands out.")
        rows = self._row_counts()
        if not self.is_batched_reader:
            return self.num_epochs * int(rows.sum())
        if self._batch_size is None:
            return self.num_epochs * int(np.count_nonzero(rows))
        whole, rest = divmod(self.num_epochs * int(rows.sum()), self._batch_size)
        return whole + bool(rest and not self._drop_last)

    def _row_counts(self) -> Any:
        """Return how many rows are read of each row group, reading the columns of filters where there are any."""
        lots, condition = self._selection.lots, self._selection.condition
        counts = lots.units.rows.copy()
        unsure = np.flatnonzero(lots.units.residual)
        if condition is not None and len(unsure):
            reader = UnitReader(snapshot=self._selection.snapshot, filesystem=self.dataset.fs, condition=condition)
            counts[unsure] = counts_of(lots.units, unsure, reader)
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Return how far the reading has come, as JSON can hold it."""
        with self._lock:
            return self._course.position(length_hint(self._left)).dump(self._name)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state of a reader of the same data, made with the same arguments, says.

        Raises:
            StateError: If it was saved over other data, or with other arguments.
        """
        start = Progress.load(state, self._name)
        with self._lock:
            self._check_running()
            self._pool.close(0.0)
            self.last_row_consumed = False
            self._begin(start)

    @property
    def batched_output(self) -> bool:
        """Whether batches are handed out, and not rows."""
        return self.is_batched_reader

    @property
    def ventilator(self) -> Any:
        """What gives row groups to the workers."""
        return self._assembly

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What is going on, for those who look for what is slow."""
        if isinstance(self._assembly, InProcesses):
            waiting, under_way = self._assembly.waiting, self._assembly.under_way
            return {
                "items_consumed": self._assembly.handed,
                "items_produced": self._assembly.handed + waiting,
                "items_inprocess": under_way - waiting,
                "zmq_copy_buffers": True,
            }
        return {} if isinstance(self._assembly, Here) else {"output_queue_size": self._assembly.waiting}

    def reset(self, *, anytime: bool = False) -> None:
        """Begin anew, with the epochs after those that were read.

        Args:
            anytime: Whether that may be before all was read.

        Raises:
            NotImplementedError: If not all was read yet.
        """
        if not self.last_row_consumed and not anytime:
            msg = (
                "Currently do not support resetting a reader while in the middle of iteration. You can call reset only after "
                "all samples were consumed, or reset(anytime=True)."
            )
            raise NotImplementedError(msg)
        with self._lock:
            self._check_running()
            first = self._course.position(0).epoch + 1
            self._pool.close(0.0)
            self.last_row_consumed = False
            self._begin(Progress(seed=self._start.seed, first=first, epoch=first))

    # Its end.

    def stop(self) -> None:
        """Stop reading; nothing is waited for, and nothing can be read afterwards."""
        self.stopped = True
        self._rows = iter(())
        self._pool.close(0.0)

    def join(self) -> None:
        """Wait until the workers have ended."""
        self._pool.join()

    def cleanup_cache(self) -> None:
        """Delete what the cache keeps, where that was asked for."""
        clean = getattr(self.cache, "cleanup", None)
        if clean is not None:
            clean()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, wait for the workers, and clean up the cache."""
        self.stop()
        self.join()
        self.cleanup_cache()
        print("Cache cleanup complete.")  # noqa: T201 - as Petastorm does


def _opened(filesystem: Any, path: Any) -> StoredDataset:
    """Return the dataset that a reader was made with: a filesystem and a path, or a URL, as it once was."""
    if isinstance(filesystem, (str, list)) and path is None:
        return opened(normalize_dataset_url_or_urls(filesystem))
    return opened(path, filesystem=filesystem)


def _seed(given: Any) -> int:
    """Return a seed: the one given, or another each time."""
    if given is None:
        return int.from_bytes(os.urandom(7), "little")
    try:
        return index(given) % (1 << 63)
    except TypeError:
        msg = f"seed must be a whole number or None, and is {given!r}. Give one; 0 is a seed like others."
        raise ValueError(msg) from None


def _check_transform(given: Any) -> None:
    """Refuse what is no description of a function; another object that has all of one will do."""
    if given is not None and not all(hasattr(given, name) for name in ("func", "removed_fields", "edit_fields")):
        msg = f"transform_spec must be a TransformSpec or None, and is {given!r}. Give one: TransformSpec(the_function)."
        raise ValueError(msg)


def _shard(cur_shard: Any, shard_count: Any) -> tuple[int, int] | None:
    """Return which shard is read, of how many."""
    if cur_shard is None and shard_count is None:
        return None
    whole = all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in (cur_shard, shard_count))
    if not whole or shard_count < 1:
        msg = (
            "partition and num_partitions must be ints and both specified to use partitioning: cur_shard is "
            f"{cur_shard!r} and shard_count {shard_count!r}."
        )
        raise ValueError(msg)
    return int(cur_shard), int(shard_count)


def _check_parts(parts: Any) -> None:
    """Refuse a number of parts that row groups cannot be cut into."""
    if not isinstance(parts, (int, np.integer)) or parts < 1:
        raise ValueError(
            f"shuffle_row_drop_partitions must be a positive integer, and is {parts!r}. 1 leaves row groups whole."
        )


def _check_arguments(num_epochs: Any, predicate: Any, selector: Any, batch_size: Any, shard_by: Any) -> None:
    """Refuse arguments of other kinds."""
    whole = isinstance(num_epochs, (int, np.integer)) and not isinstance(num_epochs, bool)
    if num_epochs is not None and not (whole and num_epochs > 0):
        raise ValueError(f"iterations must be positive integer or None, and num_epochs is {num_epochs!r}.")
    if predicate is not None and not isinstance(predicate, PredicateBase):
        raise ValueError("predicate parameter is expected to be derived from PredicateBase")
    if selector is not None and not isinstance(selector, RowGroupSelectorBase):
        raise ValueError("rowgroup_selector parameter is expected to be derived from RowGroupSelectorBase")
    if batch_size is not None and (not isinstance(batch_size, (int, np.integer)) or batch_size < 1):
        raise ValueError(f"batch_size must be a positive integer or None, and is {batch_size!r}.")
    if shard_by not in ("row_groups", "rows"):
        raise ValueError(f'shard_by must be "row_groups" or "rows", and is {shard_by!r}.')
