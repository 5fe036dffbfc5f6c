"""The plan of a reader: what is read and handed out, decided before anything is read; and each iteration over it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from penstock._engine.plan.count import counts_of
from penstock._engine.plan.prune import undeleted_rows
from penstock._engine.query.query import ColumnDecoding
from penstock._engine.read.reader import Reader as UnitReader
from penstock._engine.row_groups.pipeline import ProcessPipeline, ThreadPipeline
from penstock._engine.row_groups.reader import RowGroupReader
from penstock._engine.row_groups.tasks import TaskOrder
from penstock._engine.runtime.threads import ThreadPool
from penstock.codecs import CellCodec
from penstock.errors import DataError
from penstock.petastorm._impl.arguments import ReaderArguments
from penstock.petastorm._impl.custom_codecs import engine_codecs
from penstock.petastorm._impl.dataset import StoredDataset
from penstock.petastorm._impl.fixed_size_batches import FixedSizeBatches
from penstock.petastorm._impl.iteration import ReaderIteration
from penstock.petastorm._impl.jobs import BatchJob, FramePredicate, RowJob, RowwisePredicate
from penstock.petastorm._impl.row_group_selection import Selection, SelectionArguments, select_row_groups
from penstock.petastorm._impl.state import ReaderPosition, read_fingerprint
from penstock.petastorm.cache import NullCache
from penstock.petastorm.ngram import NGram, Windows
from penstock.petastorm.transform import transform_schema
from penstock.petastorm.unischema import Unischema
from penstock.petastorm.workers_pool.dummy_pool import DummyPool
from penstock.petastorm.workers_pool.process_pool import ProcessPool

__all__ = ["ReadPlan", "ReaderRun", "plan_read"]

Pipeline: TypeAlias = ProcessPipeline[Any, Any] | ThreadPipeline[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReaderRun:
    """One iteration over the data, and what works for it.

    Attributes:
        threads: Closing them ends all work.
        pipeline: Makes results of tasks.
        iteration: Takes the results.
        workers: The pool of Petastorm that the user gave.
    """

    threads: ThreadPool
    pipeline: Pipeline
    iteration: ReaderIteration
    workers: Any

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Numbers of waiting results, under the names of Petastorm."""
        pipeline = self.pipeline
        if isinstance(pipeline, ProcessPipeline):
            ready = pipeline.ready
            return {
                "items_consumed": pipeline.taken,
                "items_produced": pipeline.taken + ready,
                "items_inprocess": pipeline.pending - ready,
                "zmq_copy_buffers": self.workers.zmq_copy_buffers,
            }
        return {} if isinstance(self.workers, DummyPool) else {"output_queue_size": pipeline.ready}


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadPlan:
    """What a reader reads and hands out.

    Attributes:
        dataset: The dataset.
        arguments: The arguments of the user.
        view: The fields that are read.
        schema: The fields that are handed out.
        selection: The row groups.
        cache: The cache of row groups; None for none.
    """

    dataset: StoredDataset
    arguments: ReaderArguments
    view: Unischema
    schema: Unischema
    selection: Selection
    cache: Any

    @property
    def ngram(self) -> NGram | None:
        """The definition of windows; None if rows are handed out."""
        fields = self.arguments.schema_fields
        return fields if isinstance(fields, NGram) else None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what is read in which order; a state is valid for one fingerprint."""
        condition, arguments = self.selection.condition, self.arguments
        described = {
            "shuffle": [bool(arguments.shuffle_rows), bool(arguments.shuffle_row_groups)],
            "filter": None if condition is None else condition.describe(),
            "batched": bool(arguments.is_batched_reader),
        }
        return read_fingerprint(self.selection.snapshot, self.selection.tasks, described)

    def deferred_error(self) -> Exception | None:
        """Return the error that the first `next` raises, as in Petastorm; None if there is none."""
        arguments, predicate = self.arguments, self.selection.predicate
        if self.cache is not None and arguments.shuffle_row_drop_partitions > 1:
            return RuntimeError("Local cache is not supported together with shuffle_row_drop_partitions > 1")
        if self.cache is not None and predicate is not None:
            return RuntimeError("Local cache is not supported together with predicates, unless the dataset is partitioned.")
        if predicate is not None:
            names = set(predicate.get_fields())
            if not names or not names <= set(self.view.fields):
                return ValueError(
                    f"At least some column names requested by the predicate ({', '.join(sorted(map(str, names)))}) are not "
                    f"valid schema names: ({', '.join(self.view.fields)})"
                )
        if self.ngram is not None and arguments.shuffle_rows and self.ngram.length > 1:
            return NotImplementedError(f"{self.ngram._unsorted()}: shuffle_rows=True mixes it. Leave that out.")  # noqa: SLF001 - of the same package
        missing = [name for name in self.view.fields if name not in self.selection.snapshot.schema.names]
        if missing:
            return DataError(
                f"{self.selection.snapshot.table}: its schema has the field {missing[0]!r}, and no file has such a column. "
                "Every field was expected in some file. Name those to read: schema_fields=[...], or write the dataset anew."
            )
        return None

    def run(self, start: ReaderPosition, workers: Any, num_epochs: int | None) -> ReaderRun:
        """Return an iteration from a position on; nothing is read before its pipeline starts.

        Args:
            start: The first position.
            workers: A pool of Petastorm, which decides where the work is done.
            num_epochs: The number of epochs since `start.first`; None for endless.
        """
        arguments, tasks = self.arguments, self.selection.tasks
        order = TaskOrder(count=len(tasks), seed=start.seed, shuffled=bool(arguments.shuffle_row_groups))
        epochs = None if num_epochs is None else start.first + num_epochs - start.epoch
        schedule, job = order.schedule(epochs=epochs, epoch=start.epoch, place=start.place), self._job(start.seed)
        pipeline: Pipeline
        if isinstance(workers, ProcessPool):
            threads = ThreadPool(1)
            name = "make_batch_reader" if arguments.is_batched_reader else "make_reader"
            pipeline = ProcessPipeline(schedule, job, threads, max(1, workers.workers_count), name, arguments.memory)
        else:
            threads = ThreadPool(max(1, workers.workers_count))
            pool = None if isinstance(workers, DummyPool) else threads
            expected_bytes = self.selection.expected_bytes
            pipeline = ThreadPipeline(schedule, job, pool, expected_bytes=expected_bytes, memory_limit=arguments.memory)
        ragged = {name for name, field in self.selection.snapshot.fields.items() if isinstance(field.codec, CellCodec)}
        batches = None if arguments.batch_size is None else FixedSizeBatches(arguments.batch_size, ragged)
        tasks_per_epoch = len(tasks) if num_epochs is None else None
        iteration = ReaderIteration(pipeline.next, start, tasks_per_epoch, batches, drop_last=arguments.drop_last)
        return ReaderRun(threads=threads, pipeline=pipeline, iteration=iteration, workers=workers)

    def _job(self, seed: int) -> RowJob | BatchJob:
        """Return the job that makes rows or batches of each task."""
        selection, view, is_batched = self.selection, self.view, self.arguments.is_batched_reader
        predicate: RowwisePredicate | FramePredicate | None = None
        if selection.predicate is not None:
            names = [name for name in view.fields if name in set(selection.predicate.get_fields())]
            rowwise = RowwisePredicate(selection.predicate, view, names)
            predicate = FramePredicate(selection.predicate, names) if is_batched else rowwise
        fields = selection.snapshot.fields
        reader = RowGroupReader(
            selection.snapshot,
            self.dataset.fs,
            [ColumnDecoding(name=name, field=fields.get(name)) for name in view.fields],
            condition=selection.condition,
            predicate=predicate,
            cache=self.cache,
            memory_limit=self.arguments.memory,
        )
        arguments = (selection.tasks, reader, seed if self.arguments.shuffle_rows else None)
        options = {"schema": view, "result_schema": self.schema, "transform": self.arguments.transform_spec}
        if not is_batched:
            return RowJob(*arguments, **options, windows=None if self.ngram is None else Windows(self.ngram, self.schema))
        partitions = {}
        for name in selection.partitions.column_names:
            values = selection.partitions.column(name).unique().to_pylist()
            partitions[name] = sorted(value for value in values if value is not None)
        return BatchJob(*arguments, **options, partitions=partitions)

    def num_results(self, num_epochs: int | None) -> int:
        """Return the number of rows, or batches, of some epochs.

        Raises:
            TypeError: If the number is unknown before the rows are read.
        """
        arguments = self.arguments
        if num_epochs is None:
            raise TypeError("A reader that reads without end has no length. Give num_epochs.")
        spec = arguments.transform_spec
        reasons = {
            "a predicate": self.selection.predicate is not None,
            "an NGram": self.ngram is not None,
            "a function that may return other rows": arguments.is_batched_reader and spec is not None and spec.func is not None,
        }
        for reason, applies in reasons.items():
            if applies:
                raise TypeError(f"A reader with {reason} has no length before it has read. Count what it hands out.")
        rows = self._row_counts()
        if not arguments.is_batched_reader:
            return num_epochs * int(rows.sum())
        if arguments.batch_size is None:
            return num_epochs * int(np.count_nonzero(rows))
        whole, rest = divmod(num_epochs * int(rows.sum()), arguments.batch_size)
        return int(whole) + bool(rest and not arguments.drop_last)

    def _row_counts(self) -> Any:
        """Return the number of selected rows of each task; reads the columns of filters."""
        tasks, condition = self.selection.tasks, self.selection.condition
        tasks = tasks.take(np.argsort(tasks.units.file, kind="stable"))  # a shard may have another order
        counts = undeleted_rows(self.selection.snapshot.files, tasks.units).copy()
        unsure = np.flatnonzero(tasks.units.residual)
        if condition is not None and len(unsure):
            reader = UnitReader(snapshot=self.selection.snapshot, filesystem=self.dataset.fs, condition=condition)
            counts[unsure] = counts_of(tasks.units, unsure, reader)
        return counts


def plan_read(dataset: StoredDataset, arguments: ReaderArguments, cache: Any) -> ReadPlan:
    """Return the plan of a reader.

    Raises:
        ValueError: If an argument makes no sense.
        RuntimeError: If no field matches.
        NotImplementedError: If an NGram does not go with another argument.
    """
    stored = dataset.schema
    view = _select_fields(dataset, arguments.schema_fields)
    ngram = arguments.schema_fields if isinstance(arguments.schema_fields, NGram) else None
    _check_ngram(ngram, arguments)
    selection_arguments = SelectionArguments(
        predicate=arguments.predicate,
        selector=arguments.rowgroup_selector,
        filters=arguments.filters,
        shard=arguments.shard,
        by_rows=arguments.shard_by == "rows",
        shard_seed=arguments.seed_of_shard,
        parts=arguments.shuffle_row_drop_partitions,
        overlap=0 if ngram is None else ngram.length - 1,
    )
    schema = view if arguments.transform_spec is None else transform_schema(view, arguments.transform_spec)
    # Batches of a dataset of Petastorm hold the stored bytes, as they do there, unless decode=True.
    decodes = not arguments.is_batched_reader or arguments.decode or not dataset.is_petastorm
    snapshot = dataset.decoding(engine_codecs(arguments.codecs)) if decodes else dataset.raw
    return ReadPlan(
        dataset=dataset,
        arguments=arguments,
        view=view,
        schema=schema,
        selection=select_row_groups(dataset, snapshot, stored, selection_arguments),
        cache=None if isinstance(cache, NullCache) else cache,
    )


def _select_fields(dataset: StoredDataset, schema_fields: Any) -> Unischema:
    """Return the fields that are read."""
    stored = dataset.schema
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
        criteria = None if schema_fields is None else [field if isinstance(field, str) else field.name for field in fields]
        raise RuntimeError(f"No fields matching the criteria '{criteria}' were found in the dataset {dataset.place.path}.")
    return view


def _check_ngram(ngram: NGram | None, arguments: ReaderArguments) -> None:
    if ngram is None:
        return
    if arguments.is_batched_reader:
        raise NotImplementedError("ngrams are not supported by ArrowReaderWorker: use make_reader for them.")
    if not ngram.timestamp_overlap and arguments.shuffle_row_drop_partitions > 1:
        msg = "Using timestamp_overlap=False is not implemented with shuffle_options.shuffle_row_drop_partitions > 1"
        raise NotImplementedError(msg)
