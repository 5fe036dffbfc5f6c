"""What a reader reads and what is done with it, decided before anything is read; and each way through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from penstock._engine.plan.count import counts_of
from penstock._engine.plan.prune import undeleted_rows
from penstock._engine.query.values import Column
from penstock._engine.read.reader import Reader as UnitReader
from penstock._engine.row_groups.order import Turns
from penstock._engine.row_groups.pipeline import Here, InProcesses, OnThreads
from penstock._engine.row_groups.reader import RowGroupReader
from penstock._engine.runtime.threads import ThreadPool
from penstock.codecs import CellCodec
from penstock.errors import DataError
from penstock.petastorm._impl.arguments import Arguments
from penstock.petastorm._impl.batch_job import BatchJob, BatchPredicate
from penstock.petastorm._impl.custom_codecs import engine_codecs
from penstock.petastorm._impl.dataset import StoredDataset
from penstock.petastorm._impl.iteration import Course
from penstock.petastorm._impl.rebatch import Rebatch
from penstock.petastorm._impl.row_group_selection import Asked, Selection, selected
from penstock.petastorm._impl.row_job import RowJob, RowPredicate
from penstock.petastorm._impl.state import Progress, fingerprint
from penstock.petastorm.cache import NullCache
from penstock.petastorm.ngram import NGram, Windows
from penstock.petastorm.transform import transform_schema
from penstock.petastorm.unischema import Unischema
from penstock.petastorm.workers_pool.dummy_pool import DummyPool
from penstock.petastorm.workers_pool.process_pool import ProcessPool

__all__ = ["Reading", "Run", "planned"]

AnyAssembly: TypeAlias = Here[Any, Any] | InProcesses[Any, Any] | OnThreads[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One way through the data.

    Attributes:
        pool: The threads that work for it.
        assembly: What makes rows, or batches, of row groups.
        course: What comes next of them.
        zmq_copy_buffers: What a pool of processes was made with.
    """

    pool: ThreadPool
    assembly: AnyAssembly
    course: Course
    zmq_copy_buffers: bool = True

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What is going on, for those who look for what is slow."""
        if isinstance(self.assembly, InProcesses):
            waiting, under_way = self.assembly.waiting, self.assembly.under_way
            return {
                "items_consumed": self.assembly.handed,
                "items_produced": self.assembly.handed + waiting,
                "items_inprocess": under_way - waiting,
                "zmq_copy_buffers": self.zmq_copy_buffers,
            }
        return {} if isinstance(self.assembly, Here) else {"output_queue_size": self.assembly.waiting}


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """What is read, and what is done with it.

    Attributes:
        dataset: Where it lies.
        asked: The arguments of the user.
        view: The fields that are read.
        schema: The fields that are handed out.
        selection: The row groups.
        cache: What keeps them, where something does.
    """

    dataset: StoredDataset
    asked: Arguments
    view: Unischema
    schema: Unischema
    selection: Selection
    cache: Any

    @property
    def ngram(self) -> NGram | None:
        """What windows of rows are made of, where they are."""
        return self.asked.schema_fields if isinstance(self.asked.schema_fields, NGram) else None

    @cached_property
    def name(self) -> str:
        """A name of what is read in which order, by which a state is known to fit."""
        condition = self.selection.condition
        shuffles = [bool(self.asked.shuffle_rows), bool(self.asked.shuffle_row_groups)]
        filtered = None if condition is None else condition.describe()
        told = {"shuffle": shuffles, "filter": filtered, "batched": bool(self.asked.is_batched_reader)}
        return fingerprint(self.selection.snapshot, self.selection.lots, told)

    def fault(self) -> Exception | None:
        """Return what is wrong, and is told whoever asks for the first row, as Petastorm does."""
        found = list(self._faults())
        return found[-1] if found else None

    def _faults(self) -> Iterator[Exception]:
        asked, predicate = self.asked, self.selection.predicate
        missing = [name for name in self.view.fields if name not in self.selection.snapshot.schema.names]
        if missing:
            yield DataError(
                f"{self.selection.snapshot.table}: its schema has the field {missing[0]!r}, and no file has such a column. "
                "Every field was expected in some file. Name those to read: schema_fields=[...], or write the dataset anew."
            )
        if self.ngram is not None and asked.shuffle_rows and self.ngram.length > 1:
            yield NotImplementedError(f"{self.ngram._unsorted()}: shuffle_rows=True mixes it. Leave that out.")  # noqa: SLF001 - of the same door
        if predicate is not None:
            names = set(predicate.get_fields())
            if not names or not names <= set(self.view.fields):
                yield ValueError(
                    f"At least some column names requested by the predicate ({', '.join(sorted(map(str, names)))}) are not "
                    f"valid schema names: ({', '.join(self.view.fields)})"
                )
        if self.cache is not None and predicate is not None:
            yield RuntimeError("Local cache is not supported together with predicates, unless the dataset is partitioned.")
        if self.cache is not None and asked.shuffle_row_drop_partitions > 1:
            yield RuntimeError("Local cache is not supported together with shuffle_row_drop_partitions > 1")

    def begun(self, start: Progress, workers: Any, num_epochs: int | None) -> Run:
        """Return a way through the data from some place on; nothing is read until it is told to begin.

        Args:
            start: Where it begins.
            workers: What works on row groups: a pool of Petastorm's.
            num_epochs: How many epochs there are, since that which `start` counts from; None for without end.
        """
        asked, lots = self.asked, self.selection.lots
        turns = Turns(count=len(lots), seed=start.seed, shuffled=bool(asked.shuffle_row_groups))
        left = None if num_epochs is None else start.first + num_epochs - start.epoch
        steps, job = turns.steps(epochs=left, epoch=start.epoch, place=start.place), self._job(start.seed)
        assembly: AnyAssembly
        if isinstance(workers, DummyPool):
            pool = ThreadPool(1)
            assembly = Here(steps, job)
        elif isinstance(workers, ProcessPool):
            pool = ThreadPool(1)
            name = "make_batch_reader" if asked.is_batched_reader else "make_reader"
            assembly = InProcesses(steps, job, pool, max(1, workers.workers_count), name, asked.memory)
        else:
            pool = ThreadPool(max(1, workers.workers_count))
            assembly = OnThreads(steps, job, pool, expected=self.selection.lot_bytes, limit=asked.memory)
        uneven = {name for name, field in self.selection.snapshot.fields.items() if isinstance(field.codec, CellCodec)}
        rebatch = None if asked.batch_size is None else Rebatch(asked.batch_size, uneven)
        endless = len(lots) if num_epochs is None else None
        course = Course(assembly, start, endless, rebatch, drop_last=asked.drop_last)
        copying = workers.zmq_copy_buffers if isinstance(workers, ProcessPool) else True
        return Run(pool=pool, assembly=assembly, course=course, zmq_copy_buffers=copying)

    def _job(self, seed: int) -> RowJob | BatchJob:
        """Return what is done with each row group."""
        selection, view, transform = self.selection, self.view, self.asked.transform_spec
        keep: RowPredicate | BatchPredicate | None = None
        if selection.predicate is not None:
            names = [name for name in view.fields if name in set(selection.predicate.get_fields())]
            row = RowPredicate(selection.predicate, view, names)
            keep = BatchPredicate(selection.predicate, names) if self.asked.is_batched_reader else row
        fields = selection.snapshot.fields
        reader = RowGroupReader(
            selection.snapshot,
            self.dataset.fs,
            [Column(name=name, field=fields.get(name)) for name in view.fields],
            condition=selection.condition,
            keep=keep,
            cache=self.cache,
            memory_limit=self.asked.memory,
        )
        rows = seed if self.asked.shuffle_rows else None
        if not self.asked.is_batched_reader:
            windows = None if self.ngram is None else Windows(self.ngram, self.schema)
            return RowJob(selection.lots, reader, rows, schema=view, made=self.schema, transform=transform, windows=windows)
        partitions = selection.partitions
        values = {name: partitions.column(name).unique().to_pylist() for name in partitions.column_names}
        known = {name: sorted(value for value in found if value is not None) for name, found in values.items()}
        return BatchJob(selection.lots, reader, rows, schema=view, made=self.schema, transform=transform, partitions=known)

    def length(self, num_epochs: int | None) -> int:
        """Return how many rows, or batches, there are in some epochs.

        Raises:
            TypeError: If nobody can know before they are read.
        """
        asked = self.asked
        if num_epochs is None:
            raise TypeError("A reader that reads without end has no length. Give num_epochs.")
        spec = asked.transform_spec
        unknown = {
            "a predicate": self.selection.predicate is not None,
            "an NGram": self.ngram is not None,
            "a function that may return other rows": asked.is_batched_reader and spec is not None and spec.func is not None,
        }
        for what, is_so in unknown.items():
            if is_so:
                raise TypeError(f"A reader with {what} has no length before it has read. Count what it hands out.")
        rows = self._row_counts()
        if not asked.is_batched_reader:
            return num_epochs * int(rows.sum())
        if asked.batch_size is None:
            return num_epochs * int(np.count_nonzero(rows))
        whole, rest = divmod(num_epochs * int(rows.sum()), asked.batch_size)
        return int(whole) + bool(rest and not asked.drop_last)

    def _row_counts(self) -> Any:
        """Return how many rows are read of each row group, reading the columns of filters where there are any."""
        lots, condition = self.selection.lots, self.selection.condition
        lots = lots.picked(np.argsort(lots.units.file, kind="stable"))  # the order of a shard may be another
        counts = undeleted_rows(self.selection.snapshot.files, lots.units).copy()
        unsure = np.flatnonzero(lots.units.residual)
        if condition is not None and len(unsure):
            reader = UnitReader(snapshot=self.selection.snapshot, filesystem=self.dataset.fs, condition=condition)
            counts[unsure] = counts_of(lots.units, unsure, reader)
        return counts


def planned(dataset: StoredDataset, asked: Arguments, cache: Any) -> Reading:
    """Return what is read of a dataset.

    Raises:
        ValueError: If an argument makes no sense.
        RuntimeError: If no field matches.
        NotImplementedError: If windows are asked for beside what does not go together with them.
    """
    stored = dataset.schema
    view = _viewed(dataset, asked.schema_fields)
    ngram = asked.schema_fields if isinstance(asked.schema_fields, NGram) else None
    _check_ngram(ngram, asked)
    which = Asked(
        predicate=asked.predicate,
        selector=asked.rowgroup_selector,
        filters=asked.filters,
        shard=asked.shard,
        by_rows=asked.shard_by == "rows",
        shard_seed=asked.seed_of_shard,
        parts=asked.shuffle_row_drop_partitions,
        more=0 if ngram is None else ngram.length - 1,
    )
    schema = view if asked.transform_spec is None else transform_schema(view, asked.transform_spec)
    # Batches of a dataset of Petastorm hold the bytes that are stored, as they do there; whoever wants arrays asks for them.
    decoding = not asked.is_batched_reader or asked.decode or not dataset.is_petastorm
    snapshot = dataset.decoding(engine_codecs(asked.codecs)) if decoding else dataset.raw
    return Reading(
        dataset=dataset,
        asked=asked,
        view=view,
        schema=schema,
        selection=selected(dataset, snapshot, stored, which),
        cache=None if isinstance(cache, NullCache) else cache,
    )


def _viewed(dataset: StoredDataset, schema_fields: Any) -> Unischema:
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
        told = None if schema_fields is None else [field if isinstance(field, str) else field.name for field in fields]
        raise RuntimeError(f"No fields matching the criteria '{told}' were found in the dataset {dataset.place.path}.")
    return view


def _check_ngram(ngram: NGram | None, asked: Arguments) -> None:
    """Refuse what does not go together with windows."""
    if ngram is None:
        return
    if asked.is_batched_reader:
        raise NotImplementedError("ngrams are not supported by ArrowReaderWorker: use make_reader for them.")
    if not ngram.timestamp_overlap and asked.shuffle_row_drop_partitions > 1:
        msg = "Using timestamp_overlap=False is not implemented with shuffle_options.shuffle_row_drop_partitions > 1"
        raise NotImplementedError(msg)
