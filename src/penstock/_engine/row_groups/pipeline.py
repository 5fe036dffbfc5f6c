"""Lots become what a consumer gets, in their order: worked on here and now, on threads, or in other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from penstock._blobs import MAX_CELL_BYTES
from penstock._engine.processes.pool import ProcessPool, Reply, Task
from penstock._engine.processes.task import Recipe, WorkerInput, pack_input
from penstock._engine.query.query import Query
from penstock._engine.query.values import MEMORY_LIMIT, Map
from penstock._engine.row_groups.order import Step
from penstock._engine.runtime.threads import InterruptibleFuture, Priority, ThreadPool, result_of, succeeded

__all__ = ["Assembly", "Here", "InProcesses", "Job", "OnThreads"]

Made = TypeVar("Made")
Made_co = TypeVar("Made_co", covariant=True)
Read = TypeVar("Read")

TIMEOUT = 600.0
"""Seconds that a process may take for one lot."""

SHARE = 3
"""The part of the memory that what was read may take, and what is made of it; what reading itself takes has the last third."""


class Job(Protocol[Read, Made_co]):
    """What is done with every lot."""

    def load(self, step: Step) -> Read:
        """Return what is read of a lot."""
        ...

    def pieces(self, read: Read) -> Sequence[slice]:
        """Return the rows that are worked on at a time; none where none is left."""
        ...

    def make(self, read: Read, piece: slice) -> Made_co:
        """Return what the consumer gets of some rows."""
        ...

    def weigh(self, read: Read) -> tuple[int, int]:
        """Return what was read takes in memory, and what is made of one piece of it, about."""
        ...

    def sent(self, step: Step) -> Mapping[str, Any]:
        """Return what is made of a lot in another process: arrays, lists and plain values by name."""
        ...

    def received(self, crossed: Mapping[str, Any]) -> Made_co:
        """Return what the consumer gets of what came from another process."""
        ...


class Assembly(Protocol[Made_co]):
    """Hands out what is made of lots."""

    def next(self) -> tuple[Step, Made_co]:
        """Return what comes next, and which lot it is made of.

        Raises:
            StopIteration: If there is nothing more.
        """
        ...

    @property
    def waiting(self) -> int:
        """How much is made and not handed out yet."""
        ...

    def begin(self) -> None:
        """Begin to work, where others can do that meanwhile."""
        ...


class Here(Generic[Read, Made]):
    """Works when it is asked, in the thread that asks."""

    waiting = 0

    def __init__(self, steps: Iterator[Step], job: Job[Read, Made]) -> None:
        """Store what is done; nothing is yet."""
        self._made = self._all(steps, job)

    def _all(self, steps: Iterator[Step], job: Job[Read, Made]) -> Iterator[tuple[Step, Made]]:
        for step in steps:
            read = job.load(step)
            for piece in job.pieces(read):
                yield step, job.make(read, piece)

    def next(self) -> tuple[Step, Made]:
        """Return what comes next."""
        return next(self._made)

    def begin(self) -> None:
        """Do nothing."""


@dataclass(slots=True, kw_only=True)
class _Cutting(Generic[Read]):
    """A lot that was read, and how far it has been given out to be worked on."""

    step: Step
    read: Read
    pieces: deque[slice]


class OnThreads(Generic[Read, Made]):
    """Works on threads, some lots ahead: as many as there are threads, if they fit in memory.

    Args:
        steps: The lots.
        job: What is done with each.
        pool: The threads.
        expected: Bytes that a lot takes in memory, as long as none has been read.
        limit: Bytes that may be held.
    """

    def __init__(
        self, steps: Iterator[Step], job: Job[Read, Made], pool: ThreadPool, *, expected: int = 0, limit: int = MEMORY_LIMIT
    ) -> None:
        """Store what is done; nothing is before somebody asks for it, or for it to begin."""
        self._steps, self._job, self._pool, self._limit = steps, job, pool, limit
        self._reads: deque[tuple[Step, Future[tuple[Read, tuple[int, int]]]]] = deque()
        self._cutting: _Cutting[Read] | None = None
        self._made: deque[tuple[Step, Future[Made]]] = deque()
        self._expected, self._largest, self._piece = expected, 0, 0

    @property
    def waiting(self) -> int:
        """How many pieces are made and not handed out yet."""
        return sum(future.done() for _, future in self._made)

    def begin(self) -> None:
        """Begin to read."""
        self._read_ahead()

    def next(self) -> tuple[Step, Made]:
        """Return what comes next, waiting for it."""
        while True:
            self._read_ahead()
            self._give_out()
            if self._made:
                step, future = self._made.popleft()
                made = result_of(future)
                self._give_out()
                return step, made
            if not self._reads:
                raise StopIteration
            self._next_lot()

    def _read_ahead(self) -> None:
        """Begin to read lots; the first always, and others if what they may take fits in memory."""
        most = self._affordable(self._largest or self._expected)
        while len(self._reads) < most:
            step = next(self._steps, None)
            if step is None:
                return
            self._reads.append((step, self._pool.submit(Priority.READ, partial(_load, self._job, step))))

    def _affordable(self, nbytes: int) -> int:
        """Return how many things of so many bytes may be held: enough for all threads, if they fit in their share."""
        return min(self._pool.threads + 1, max(1, self._limit // SHARE // max(1, nbytes)))

    def _next_lot(self) -> None:
        """Go on to the next lot that was read, waiting for it."""
        step, future = self._reads.popleft()
        read, (nbytes, piece) = result_of(future)
        self._largest, self._piece = max(self._largest, nbytes), max(self._piece, piece)
        self._cutting = _Cutting(step=step, read=read, pieces=deque(self._job.pieces(read)))

    def _give_out(self) -> None:
        """Have pieces worked on, of the lot that is being cut and of the next ones that have been read."""
        while len(self._made) < self._affordable(self._piece):
            if self._cutting is None or not self._cutting.pieces:
                self._cutting = None
                if not self._reads or not succeeded(self._reads[0][1]):
                    return
                self._next_lot()
                continue
            cutting = self._cutting
            task = partial(self._job.make, cutting.read, cutting.pieces.popleft())
            self._made.append((cutting.step, self._pool.submit(Priority.FINISH, _quiet(task))))


def _load(job: Job[Read, Made], step: Step) -> tuple[Read, tuple[int, int]]:
    """Return what is read of a lot, and its sizes."""
    read = _quiet(partial(job.load, step))()
    return read, job.weigh(read)


class _quiet:  # noqa: N801 - it stands for a function
    """A task that cannot end an iteration in silence, as a function that raises StopIteration would."""

    def __init__(self, task: partial[Any]) -> None:
        self._task = task

    def __call__(self) -> Any:
        try:
            return self._task()
        except StopIteration as error:
            msg = "A function raised StopIteration, which would end the reading in silence. Catch it, or raise another error."
            raise RuntimeError(msg) from error


class InProcesses(Generic[Read, Made]):
    """Works in other processes, each of which reads its lots by itself; what crosses is what they have made.

    Args:
        steps: The lots.
        job: What is done with each; it is sent to the processes.
        pool: Threads that end with them.
        processes: How many there are.
        name: What the job is called in messages.
        limit: Bytes that may be held.

    Attributes:
        handed: How many lots have been handed out.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        job: Job[Read, Made],
        pool: ThreadPool,
        processes: int,
        name: str,
        limit: int = MEMORY_LIMIT,
    ) -> None:
        """Store what is done; no process is started yet."""
        self._steps, self._job, self._limit = steps, job, limit
        self._most, self._largest = 2 * processes, 0
        asked = Query(size="row_group", maps=(Map(function=_Sent(job, name)),))
        recipe = Recipe(query=asked, columns=(), deferred=(), max_cell_bytes=MAX_CELL_BYTES)
        self._crew = ProcessPool(recipe, pool, processes, TIMEOUT)
        self._made: deque[tuple[Step, Future[Made]]] = deque()
        self.handed = 0

    @property
    def waiting(self) -> int:
        """How many lots are made and not handed out yet."""
        return sum(future.done() for _, future in self._made)

    @property
    def under_way(self) -> int:
        """How many lots are given out and not handed out yet."""
        return len(self._made)

    def begin(self) -> None:
        """Begin to work."""
        most = min(self._most, max(1, self._limit // self._largest)) if self._largest else self._most
        while len(self._made) < most:
            step = next(self._steps, None)
            if step is None:
                return
            self._made.append((step, self._begun(step)))

    def next(self) -> tuple[Step, Made]:
        """Return what comes next, waiting for it."""
        self.begin()
        if not self._made:
            raise StopIteration
        step, future = self._made.popleft()
        made = result_of(future)
        self.handed += 1
        self.begin()
        return step, made

    def _begun(self, step: Step) -> Future[Made]:
        """Return the promise of what a process makes of a lot."""
        future: Future[Made] = InterruptibleFuture()

        def receive(reply: Reply) -> None:
            if reply.error is not None:
                raise reply.error
            self._largest = max(self._largest, reply.nbytes)
            if future.set_running_or_notify_cancel():
                future.set_result(self._job.received(reply.output.columns["made"][0]))

        def fail(error: BaseException | None) -> None:
            if error is None:
                future.cancel()
            elif not future.done():
                future.set_exception(error)

        where = f"lot {step.place} of epoch {step.epoch}"
        self._crew.submit(Task(blocks=_packed(step), files={}, where=where, receive=receive, fail=fail))
        return future


def _packed(step: Step) -> list[memoryview]:
    """Return what a process gets for one lot."""
    columns = {"step": np.array([step.epoch, step.place, step.lot])}
    batch = WorkerInput(
        columns=columns, places=np.array([step.place]), rows=1, size=1, valid=1, epoch=step.epoch, run_maps=True
    )
    return pack_input(batch, Query(), lambda _: 0)


class _Sent:
    """A job as another process does it."""

    finding = ""  # what is advised for maps of a dataset does not help those who have none

    def __init__(self, job: Job[Any, Any], name: str) -> None:
        self._job, self._name = job, name

    def __repr__(self) -> str:
        return self._name

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        epoch, place, lot = batch["step"].tolist()
        made = self._job.sent(Step(epoch=epoch, place=place, lot=lot))
        return {"made": np.fromiter([dict(made)], object, 1)}
