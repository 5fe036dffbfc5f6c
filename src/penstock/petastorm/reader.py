"""Readers of `petastorm.reader`: rows or batches of a dataset, one after the other."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import length_hint
from typing import TYPE_CHECKING, Any, Self

from penstock.petastorm._impl.argument_docs import NOT_PETASTORM, PETASTORM, PYARROW_SERIALIZE, SHARD_SEED, described
from penstock.petastorm._impl.arguments import LOCAL_DISK_CACHE, NULL_CACHE, Arguments, cache_of, pool_of
from penstock.petastorm._impl.dataset import StoredDataset, normalized, opened
from penstock.petastorm._impl.named_workers import NamedResults
from penstock.petastorm._impl.reading import Run, planned
from penstock.petastorm._impl.reexports import passed_on
from penstock.petastorm._impl.state import Progress
from penstock.petastorm.cache import NullCache
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.predicates import PredicateBase
from penstock.petastorm.selectors import RowGroupSelectorBase
from penstock.petastorm.transform import TransformSpec
from penstock.petastorm.workers_pool.thread_pool import ThreadPool

__all__ = [
    "LOCAL_DISK_CACHE",
    "NULL_CACHE",
    "NoDataAvailableError",
    "Reader",
    "make_batch_reader",
    "make_reader",
    "normalize_dataset_url_or_urls",
]

logger = logging.getLogger(__name__)

NOTHING = object()
CLEANED = "Cache cleanup complete."
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


@described(schema_fields="Fields, regular expressions that match whole names, or an `NGram`; by default all fields.")
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
    hdfs_driver: str = "libhdfs3",
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

    Raises:
        ValueError: If an argument makes no sense.
        OSError: If nothing lies at the URL.
    """
    dataset = opened(normalize_dataset_url_or_urls(dataset_url), storage_options, filesystem)
    cache = cache_of(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    if not dataset.is_described:
        warnings.warn(NOT_PETASTORM, UserWarning, stacklevel=2)
    if pyarrow_serialize and reader_pool_type == "process":
        warnings.warn(PYARROW_SERIALIZE, UserWarning, stacklevel=2)
    pool = pool_of(reader_pool_type, workers_count, results_queue_size, zmq_copy_buffers=zmq_copy_buffers)
    return Reader(None, reader_pool=pool, cache=cache, dataset=dataset, **Arguments.of(locals()).by_name())


@described(
    predicate="Which rows are read; it is given a data frame, and returns a boolean for each row.",
    transform_spec="A function that is run on the data frame of each row group; it may return other rows.",
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
    hdfs_driver: str = "libhdfs3",
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

    Raises:
        ValueError: If an argument makes no sense.
        OSError: If nothing lies at the URL.
    """
    dataset = opened(normalize_dataset_url_or_urls(dataset_url_or_urls), storage_options, filesystem)
    cache = cache_of(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    if dataset.is_petastorm and not decode:
        warnings.warn(PETASTORM, UserWarning, stacklevel=2)
    pool = pool_of(reader_pool_type, workers_count, results_queue_size, zmq_copy_buffers=zmq_copy_buffers)
    asked = replace(Arguments.of(locals()), is_batched_reader=True)
    return Reader(None, reader_pool=pool, cache=cache, dataset=dataset, **asked.by_name())


class Reader:
    """Hands out rows or batches of a dataset. It is an iterator, and a context that stops it.

    `make_reader` and `make_batch_reader` make one. Any thread may ask for the next row.

    Args:
        pyarrow_filesystem: A filesystem of pyarrow or fsspec; or a URL, as in the first releases of Petastorm.
        dataset_path: The path of the dataset, or of several files, in that filesystem.
        schema_fields: As in `make_reader`; so are the others.
        reader_pool: What works on row groups: a `ThreadPool`, a `ProcessPool` or a `DummyPool`.
        cache: What keeps row groups.
        worker_class: Another way to say whether batches are handed out: `ArrowReaderWorker` for those.
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
        worker_class: Any = None,
        transform_spec: TransformSpec | None = None,
        is_batched_reader: bool = False,
        filters: Any = None,
        shard_seed: int | None = None,
        convert_early_to_numpy: bool = False,
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
        is_batched_reader = is_batched_reader or bool(getattr(worker_class, "results", NamedResults).batched_output)
        asked = Arguments.of(locals())
        self._process, self._lock = os.getpid(), threading.Lock()
        self.stopped = self.last_row_consumed = False
        self.is_batched_reader, self.num_epochs = bool(is_batched_reader), num_epochs
        self.cache = NullCache() if cache is None else cache
        self.dataset = dataset if dataset is not None else _opened(pyarrow_filesystem, dataset_path)
        asked.check()
        start = Progress(seed=asked.drawn_seed)
        if shard_seed:
            warnings.warn(SHARD_SEED, UserWarning, stacklevel=3)
        self._reading = planned(self.dataset, asked, self.cache)
        self.schema, self.ngram = self._reading.schema, self._reading.ngram
        self._workers_pool = ThreadPool(10) if reader_pool is None else reader_pool
        self._failed: BaseException | None = self._reading.fault()
        self._begin(start)

    def _begin(self, start: Progress) -> None:
        """Begin to read at a place."""
        self._start = start
        self._rows: Iterator[Any] = iter(())
        self._left: Iterator[Any] = iter(())
        self._run: Run = self._reading.begun(start, self._workers_pool, self.num_epochs)
        if self._failed is None:
            self._run.assembly.begin()

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
                rows, left = self._run.course.refill().begun()
            except StopIteration:
                if self.stopped:
                    raise RuntimeError(STOPPED) from None
                self.last_row_consumed = True
                raise
            except BaseException as error:
                self._failed = error
                self._run.pool.close(0.0)
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
        return self._reading.length(self.num_epochs)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the reading has come, as JSON can hold it."""
        with self._lock:
            return self._run.course.position(length_hint(self._left)).dump(self._reading.name)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state of a reader of the same data, made with the same arguments, says.

        Raises:
            StateError: If it was saved over other data, or with other arguments.
        """
        start = Progress.load(state, self._reading.name)
        with self._lock:
            self._check_running()
            self._run.pool.close(0.0)
            self.last_row_consumed = False
            self._begin(start)

    @property
    def batched_output(self) -> bool:
        """Whether batches are handed out, and not rows."""
        return self.is_batched_reader

    @property
    def ventilator(self) -> Any:
        """What gives row groups to the workers."""
        return self._run.assembly

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What is going on, for those who look for what is slow."""
        return self._run.diagnostics

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
            first = self._run.course.position(0).epoch + 1
            self._run.pool.close(0.0)
            self.last_row_consumed = False
            self._begin(Progress(seed=self._start.seed, first=first, epoch=first))

    def stop(self) -> None:
        """Stop reading; nothing is waited for, and nothing can be read afterwards."""
        self.stopped = True
        self._rows = iter(())
        self._run.pool.close(0.0)

    def join(self) -> None:
        """Wait until the workers have ended."""
        self._run.pool.join()

    def cleanup_cache(self) -> None:
        """Delete what the cache keeps, where that was asked for, and print that it is done, as Petastorm does."""
        self._clean_cache()
        print(CLEANED)  # noqa: T201 - as Petastorm does

    def _clean_cache(self) -> None:
        clean = getattr(self.cache, "cleanup", None)
        if clean is None:
            return
        try:
            clean()
        except (OSError, AttributeError) as error:
            print(f"Error cleaning cache: {error}")  # noqa: T201 - as Petastorm does

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, wait for the workers, and clean up the cache."""
        self.stop()
        self.join()
        self._clean_cache()
        logger.debug(CLEANED)


def _opened(filesystem: Any, path: Any) -> StoredDataset:
    """Return the dataset that a reader was made with: a filesystem and a path, or a URL, as it once was."""
    if isinstance(filesystem, (str, list)) and path is None:
        return opened(normalize_dataset_url_or_urls(filesystem))
    return opened(path, filesystem=filesystem)


if not TYPE_CHECKING:
    __getattr__ = passed_on(__name__)
