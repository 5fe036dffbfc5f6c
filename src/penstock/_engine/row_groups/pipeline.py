"""Row-group tasks become the objects that a reader hands out, in order: on threads, or in worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from penstock._blobs import MAX_CELL_BYTES
from penstock._engine.processes.pool import ProcessPool, Reply, Task
from penstock._engine.processes.task import Recipe, WorkerInput, pack_input
from penstock._engine.query.query import MEMORY_LIMIT, Map, Query
from penstock._engine.row_groups.tasks import ScheduledTask
from penstock._engine.runtime.ordered_map import OrderedMap
from penstock._engine.runtime.threads import InterruptibleFuture, Priority, ThreadPool, succeeded

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
Loaded = TypeVar("Loaded")

TIMEOUT = 600.0
"""Seconds that a process may take for one task."""

SHARE = 3
"""Loaded row groups and results may each take this part of the memory limit; the rest is for reading itself."""


class RowGroupJob(Protocol[Loaded, Result_co]):
    """What is done with each task."""

    def load(self, scheduled: ScheduledTask) -> Loaded:
        """Return the rows of a task as they are stored."""

    def slices(self, loaded: Loaded) -> Sequence[slice]:
        """Return the rows that one call of `make` takes; nothing where no row is left."""

    def make(self, loaded: Loaded, rows: slice) -> Result_co:
        """Return what the reader hands out for some rows."""

    def sizes(self, loaded: Loaded) -> tuple[int, int]:
        """Return the approximate bytes of the loaded rows, and of what `make` returns for one slice."""

    def make_columns(self, scheduled: ScheduledTask) -> Mapping[str, Any]:
        """Return the result of a task as arrays, lists and plain values by name; runs in a worker process."""

    def from_columns(self, columns: Mapping[str, Any]) -> Result_co:
        """Return what the reader hands out for the columns that a worker process returned."""


class ThreadPipeline(Generic[Loaded, Result]):
    """Works on threads, as many tasks ahead as there are threads, if they fit in memory.

    Args:
        tasks: The tasks.
        job: What is done with each.
        pool: The threads; without them all work is done inside of `next`.
        expected_bytes: What a row group takes in memory, as long as none was read.
        memory_limit: Bytes that may be used.
    """

    def __init__(
        self,
        tasks: Iterator[ScheduledTask],
        job: RowGroupJob[Loaded, Result],
        pool: ThreadPool | None,
        *,
        expected_bytes: int = 0,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        """Store what is done; nothing is read before `start` or `next`."""
        self._tasks, self._job = tasks, job
        ahead, max_bytes = 1 if pool is None else pool.threads + 1, memory_limit // SHARE
        self._loads = OrderedMap[tuple[ScheduledTask, Loaded]](pool, max_pending=ahead, max_bytes=max_bytes)
        self._results = OrderedMap[tuple[ScheduledTask, Result]](pool, max_pending=ahead, max_bytes=max_bytes)
        self._slices: deque[Callable[[], tuple[ScheduledTask, Result]]] = deque()
        self._expected_bytes, self._load_bytes, self._result_bytes = expected_bytes, 0, 0

    @property
    def ready(self) -> int:
        """The number of results that wait to be taken."""
        return self._results.ready

    def start(self) -> None:
        """Begin to read."""
        nbytes = self._load_bytes or self._expected_bytes
        while self._loads.has_capacity(nbytes):
            scheduled = next(self._tasks, None)
            if scheduled is None:
                return
            self._loads.submit(Priority.READ, partial(_load, self._job, scheduled), nbytes)

    def next(self) -> tuple[ScheduledTask, Result]:
        """Return the next result and its task, waiting for it."""
        while True:
            self.start()
            self._make_ahead()
            if self._results.pending:
                result = self._results.next()
                self._make_ahead()
                return result
            self._take_loaded()

    def _take_loaded(self) -> None:
        """Go on to the slices of the next row group that was read, waiting for it."""
        scheduled, loaded = self._loads.next()
        load_bytes, result_bytes = self._job.sizes(loaded)
        self._load_bytes, self._result_bytes = max(self._load_bytes, load_bytes), max(self._result_bytes, result_bytes)
        self._slices.extend(partial(_make, self._job, scheduled, loaded, rows) for rows in self._job.slices(loaded))

    def _make_ahead(self) -> None:
        """Submit slices of the row groups that were read."""
        while self._results.has_capacity(self._result_bytes):
            if self._slices:
                self._results.submit(Priority.BATCH, self._slices.popleft(), self._result_bytes)
            elif self._loads.first is not None and succeeded(self._loads.first):
                self._take_loaded()
            else:
                return


# Tasks refer to the job alone: a pool can be collected, and so ended, while tasks wait in it.
def _load(job: RowGroupJob[Loaded, Any], scheduled: ScheduledTask) -> tuple[ScheduledTask, Loaded]:
    return scheduled, job.load(scheduled)


def _make(
    job: RowGroupJob[Loaded, Result], scheduled: ScheduledTask, loaded: Loaded, rows: slice
) -> tuple[ScheduledTask, Result]:
    return scheduled, job.make(loaded, rows)


class ProcessPipeline(Generic[Loaded, Result]):
    """Works in other processes, which read the files themselves and return columns in shared memory.

    Args:
        tasks: The tasks.
        job: What is done with each; it is sent to the processes.
        pool: The processes end with these threads.
        processes: The number of processes.
        name: What messages call the job.
        memory_limit: Bytes that may be used.

    Attributes:
        taken: The number of results that were taken.
    """

    def __init__(
        self,
        tasks: Iterator[ScheduledTask],
        job: RowGroupJob[Loaded, Result],
        pool: ThreadPool,
        processes: int,
        name: str,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        """Store what is done; processes start with the first task."""
        self._tasks, self._job, self._result_bytes, self.taken = tasks, job, 0, 0
        query = Query(size="row_group", maps=(Map(function=_WorkerFunction(job, name)),))
        recipe = Recipe(query=query, columns=(), deferred=(), max_cell_bytes=MAX_CELL_BYTES)
        self._processes = ProcessPool(recipe, pool, processes, TIMEOUT)
        self._results = OrderedMap[tuple[ScheduledTask, Result]](max_pending=2 * processes, max_bytes=memory_limit)

    @property
    def ready(self) -> int:
        """The number of results that wait to be taken."""
        return self._results.ready

    @property
    def pending(self) -> int:
        """The number of tasks whose results were not taken."""
        return self._results.pending

    def start(self) -> None:
        """Begin to work."""
        while self._results.has_capacity(self._result_bytes):
            scheduled = next(self._tasks, None)
            if scheduled is None:
                return
            self._results.add(self._submit(scheduled), self._result_bytes)

    def next(self) -> tuple[ScheduledTask, Result]:
        """Return the next result and its task, waiting for it."""
        self.start()
        result = self._results.next()
        self.taken += 1
        self.start()
        return result

    def _submit(self, scheduled: ScheduledTask) -> Future[tuple[ScheduledTask, Result]]:
        future: Future[tuple[ScheduledTask, Result]] = InterruptibleFuture()

        def receive(reply: Reply) -> None:
            if reply.error is not None:
                raise reply.error
            self._result_bytes = max(self._result_bytes, reply.nbytes)
            if future.set_running_or_notify_cancel():
                future.set_result((scheduled, self._job.from_columns(reply.output.columns["result"][0])))

        def fail(error: BaseException | None) -> None:
            if error is None:
                future.cancel()
            elif not future.done():
                future.set_exception(error)

        where = f"row-group task {scheduled.place} of epoch {scheduled.epoch}"
        self._processes.submit(Task(blocks=_input_of(scheduled), files={}, where=where, receive=receive, fail=fail))
        return future


def _input_of(scheduled: ScheduledTask) -> list[memoryview]:
    """Return the input of a process for one task: a batch of one row, which holds the numbers of the task."""
    numbers, places = np.array([scheduled.epoch, scheduled.place, scheduled.task]), np.array([scheduled.place])
    batch = WorkerInput(
        columns={"scheduled": numbers}, places=places, rows=1, size=1, valid=1, epoch=scheduled.epoch, run_maps=True
    )
    return pack_input(batch, Query(), lambda _: 0)


class _WorkerFunction:
    """A job as the map function that a worker process runs on the batch of `_input_of`."""

    finding = ""  # the advice for maps of a dataset does not apply

    def __init__(self, job: RowGroupJob[Any, Any], name: str) -> None:
        self._job, self._name = job, name

    def __repr__(self) -> str:
        return self._name

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        epoch, place, task = batch["scheduled"].tolist()
        columns = self._job.make_columns(ScheduledTask(epoch=epoch, place=place, task=task))
        return {"result": np.fromiter([dict(columns)], object, 1)}
