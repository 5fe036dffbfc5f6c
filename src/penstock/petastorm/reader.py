"""`petastorm.reader`: readers of the rows or batches of a dataset."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import length_hint
from typing import TYPE_CHECKING, Any, Self

from penstock.petastorm._impl.argument_docs import NOT_PETASTORM, PETASTORM, PYARROW_SERIALIZE, SHARD_SEED, document_arguments
from penstock.petastorm._impl.arguments import LOCAL_DISK_CACHE, NULL_CACHE, ReaderArguments, make_cache, make_pool
from penstock.petastorm._impl.dataset import StoredDataset, normalize_url, open_dataset
from penstock.petastorm._impl.named_workers import NamedResults
from penstock.petastorm._impl.read_plan import ReaderRun, plan_read
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm._impl.state import ReaderPosition
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

NO_ROW = object()
CLEANED = "Cache cleanup complete."
STOPPED = (
    "Trying to read a sample after a reader created by make_reader/make_batch_reader has stopped. This may happen if the "
    "make_reader/make_batch_reader context manager has exited but you try to fetch a sample from it anyway."
)


def normalize_dataset_url_or_urls(dataset_url_or_urls: Any) -> Any:
    """Return a URL, or a list of URLs, without trailing slashes.

    Raises:
        ValueError: If the list is empty, or a URL is not text.
    """
    if isinstance(dataset_url_or_urls, list):
        if not dataset_url_or_urls:
            raise ValueError("dataset url list must be non-empty.")
        return [normalize_url(url) for url in dataset_url_or_urls]
    return normalize_url(dataset_url_or_urls)


@document_arguments(schema_fields="Fields, regular expressions that match whole names, or an `NGram`; by default all fields.")
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
    """Return a reader of rows, which are named tuples of decoded values.

    Raises:
        ValueError: If an argument is invalid.
        OSError: If the dataset does not exist.
    """
    dataset = open_dataset(normalize_dataset_url_or_urls(dataset_url), storage_options, filesystem)
    cache = make_cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    if not dataset.is_described:
        warnings.warn(NOT_PETASTORM, UserWarning, stacklevel=2)
    if pyarrow_serialize and reader_pool_type == "process":
        warnings.warn(PYARROW_SERIALIZE, UserWarning, stacklevel=2)
    pool = make_pool(reader_pool_type, workers_count, results_queue_size, zmq_copy_buffers=zmq_copy_buffers)
    return Reader(None, reader_pool=pool, cache=cache, dataset=dataset, **ReaderArguments.from_locals(locals()).as_dict())


@document_arguments(
    predicate="Selects rows; it gets a data frame, and returns a boolean for each row.",
    transform_spec="A function that is called with the data frame of each row group; it may return other rows.",
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
    """Return a reader of batches, which are named tuples of arrays; by default one batch for each row group.

    Raises:
        ValueError: If an argument is invalid.
        OSError: If the dataset does not exist.
    """
    dataset = open_dataset(normalize_dataset_url_or_urls(dataset_url_or_urls), storage_options, filesystem)
    cache = make_cache(cache_type, cache_location, cache_size_limit, cache_row_size_estimate, cache_extra_settings)
    if dataset.is_petastorm and not decode:
        warnings.warn(PETASTORM, UserWarning, stacklevel=2)
    pool = make_pool(reader_pool_type, workers_count, results_queue_size, zmq_copy_buffers=zmq_copy_buffers)
    arguments = replace(ReaderArguments.from_locals(locals()), is_batched_reader=True)
    return Reader(None, reader_pool=pool, cache=cache, dataset=dataset, **arguments.as_dict())


class Reader:
    """An iterator over the rows or batches of a dataset, and a context manager that stops it.

    `make_reader` and `make_batch_reader` return one. Several threads may call `next`.

    Args:
        pyarrow_filesystem: A filesystem of pyarrow or fsspec; or a URL, as in the first releases of Petastorm.
        dataset_path: The path of the dataset, or of several files, in that filesystem.
        schema_fields: As in `make_reader`, like the arguments that are not listed here.
        reader_pool: Where row groups are decoded: a `ThreadPool`, a `ProcessPool` or a `DummyPool`.
        cache: A cache of row groups.
        worker_class: `ArrowReaderWorker` for batches, instead of `is_batched_reader=True`.
        is_batched_reader: Whether batches are returned.
        dataset: An open dataset, instead of a path.
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
        """Open the dataset, select row groups, and begin to read."""
        is_batched_reader = is_batched_reader or bool(getattr(worker_class, "results", NamedResults).batched_output)
        arguments = ReaderArguments.from_locals(locals())
        self._process, self._lock = os.getpid(), threading.Lock()
        self.stopped = self.last_row_consumed = False
        self.is_batched_reader, self.num_epochs = bool(is_batched_reader), num_epochs
        self.cache = NullCache() if cache is None else cache
        self.dataset = dataset if dataset is not None else _open(pyarrow_filesystem, dataset_path)
        arguments.check()
        start = ReaderPosition(seed=arguments.seed_or_random)
        if shard_seed:
            warnings.warn(SHARD_SEED, UserWarning, stacklevel=3)
        self._plan = plan_read(self.dataset, arguments, self.cache)
        self.schema, self.ngram = self._plan.schema, self._plan.ngram
        self._workers_pool = ThreadPool(10) if reader_pool is None else reader_pool
        self._failed: BaseException | None = self._plan.deferred_error()
        self._begin(start)

    def _begin(self, start: ReaderPosition) -> None:
        self._start = start
        self._rows: Iterator[Any] = iter(())
        self._left: Iterator[Any] = iter(())
        self._run: ReaderRun = self._plan.run(start, self._workers_pool, self.num_epochs)
        if self._failed is None:
            self._run.pipeline.start()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next row, or batch.

        Raises:
            StopIteration: If there is none.
            RuntimeError: If the reader was stopped.
        """
        # `map`, `zip` and list iterators return each item to one thread only, so most rows need no lock.
        try:
            return next(self._rows)
        except StopIteration:
            return self._next_result()

    def next(self) -> Any:
        """Return the next row, or batch."""
        return self.__next__()

    def _next_result(self) -> Any:
        """Return the first row of the next result."""
        if os.getpid() != self._process:
            msg = (
                f"This reader was made in process {self._process}, and its threads are there. Make another in process "
                f"{os.getpid()}, after the fork."
            )
            raise RuntimeError(msg)
        with self._lock:
            row = next(self._rows, NO_ROW)
            if row is not NO_ROW:  # another thread was faster
                return row
            self._check_running()
            try:
                rows, left = self._run.iteration.next().iterators()
            except StopIteration:
                if self.stopped:
                    raise RuntimeError(STOPPED) from None
                self.last_row_consumed = True
                raise
            except BaseException as error:
                self._failed = error
                self._run.threads.close(0.0)
                raise
            row = next(rows)
            self._rows, self._left = rows, left
            self._check_running()
            return row

    def _check_running(self) -> None:
        """Raise the error of a reader that was stopped or has failed."""
        if self.stopped:
            self._rows = iter(())
            raise RuntimeError(STOPPED)
        if self._failed is not None:
            raise self._failed

    def __len__(self) -> int:
        """Return how many rows, or batches, there are in all epochs.

        Raises:
            TypeError: If the number is unknown before they are read.
        """
        return self._plan.num_results(self.num_epochs)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next row as a state, which JSON can hold."""
        with self._lock:
            return self._run.iteration.position(length_hint(self._left)).dump(self._plan.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a state, which a reader of the same data with the same arguments has saved.

        Raises:
            StateError: If the data or the arguments were others.
        """
        start = ReaderPosition.load(state, self._plan.fingerprint)
        with self._lock:
            self._check_running()
            self._run.threads.close(0.0)
            self.last_row_consumed = False
            self._begin(start)

    @property
    def batched_output(self) -> bool:
        """Whether batches are returned, and not rows."""
        return self.is_batched_reader

    @property
    def ventilator(self) -> Any:
        """The pipeline that submits row groups to the workers."""
        return self._run.pipeline

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Numbers of waiting results, under the names of Petastorm."""
        return self._run.diagnostics

    def reset(self, *, anytime: bool = False) -> None:
        """Begin again, with the epochs after those that were read.

        Args:
            anytime: Whether the reader may be in the middle of an epoch.

        Raises:
            NotImplementedError: If it is, without `anytime`.
        """
        if not self.last_row_consumed and not anytime:
            msg = (
                "Currently do not support resetting a reader while in the middle of iteration. You can call reset only after "
                "all samples were consumed, or reset(anytime=True)."
            )
            raise NotImplementedError(msg)
        with self._lock:
            self._check_running()
            first = self._run.iteration.position(0).epoch + 1
            self._run.threads.close(0.0)
            self.last_row_consumed = False
            self._begin(ReaderPosition(seed=self._start.seed, first=first, epoch=first))

    def stop(self) -> None:
        """Stop reading, without waiting for the workers; no row can be read afterwards."""
        self.stopped = True
        self._rows = iter(())
        self._run.threads.close(0.0)

    def join(self) -> None:
        """Wait until the workers have ended."""
        self._run.threads.join()

    def cleanup_cache(self) -> None:
        """Delete the files of the cache if its `cleanup` option is set, and print a message, as Petastorm does."""
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


def _open(filesystem: Any, path: Any) -> StoredDataset:
    """Return the dataset of a filesystem and a path, or of a URL as in the first releases of Petastorm."""
    if isinstance(filesystem, (str, list)) and path is None:
        return open_dataset(normalize_dataset_url_or_urls(filesystem))
    return open_dataset(path, filesystem=filesystem)


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
