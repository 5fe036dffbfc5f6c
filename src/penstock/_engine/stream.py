"""Batches and rows as the consumer gets them, made on threads and handed out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._engine.batch import Draw
from penstock._engine.execute import Pool, Urgency, outcome
from penstock._engine.feed import Feed
from penstock._engine.gather import PASSED, Gather, Held, Rows
from penstock._engine.hand_over import HandOver
from penstock._engine.leg import Leg
from penstock._engine.question import Question
from penstock._engine.transform import Batch, apply_map, apply_stack, apply_to_row
from penstock.errors import EmptyDatasetError
from penstock.model import IntArray, Position
from penstock.policies import Offsets

__all__ = ["Stream", "arranged"]

ROWS_AT_ONCE = 256
"""Rows put together at a time where the consumer takes them one by one."""

WINDOWS_AHEAD = 2
"""Windows of several units keep all threads busy by themselves; single units do not, and more of them are read ahead."""

MEMORY_LIMIT = 1 << 30

NOWHERE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """Rows put together: what the steps `start..stop` of a leg give.

    Attributes:
        leg: The leg.
        start: The first step.
        stop: The step after the last.
        columns: The rows.
        count: How many there are; there may be no column to tell.
        places: Where each row stands in the epoch's sequence; none where nobody asks.
        used: Under a lazy filter, the rows that the rank has consumed with each.
        every: How many steps lie between one row and the next, where the rows between them are others' to hand out.
    """

    leg: Leg
    start: int
    stop: int
    columns: Batch
    count: int
    places: IntArray
    used: IntArray | None = None
    every: int = 1

    def picked(self, rows: slice | IntArray) -> Chunk:
        """Return some of the rows, all under a lazy filter."""
        assert self.used is not None  # noqa: S101 - under a lazy filter
        columns, used = {name: values[rows] for name, values in self.columns.items()}, self.used[rows]
        places = self.places[rows] if len(self.places) else self.places
        return replace(self, columns=columns, count=len(used), places=places, used=used)

    def followed(self, more: Chunk) -> Chunk:
        """Return these rows and then others, all under a lazy filter."""
        columns = {name: np.concatenate([values, more.columns[name]]) for name, values in self.columns.items()}
        places, used = np.concatenate([self.places, more.places]), np.concatenate([self.used, more.used])
        return replace(more, columns=columns, count=len(used), places=places, used=used)


class Stream:
    """Makes a question's batches from a position on, and knows how far they have been handed out."""

    def __init__(
        self, gather: Gather, pool: Pool, question: Question, legs: Iterator[Leg], hand_over: HandOver | None = None
    ) -> None:
        """Store the question; nothing is read before the first `next`."""
        self._gather, self._pool, self._question, self._legs = gather, pool, question, legs
        self._hand_over = hand_over
        self._queue: deque[Future[Chunk] | Chunk] = deque()
        self._leg: Leg | None = None
        self._feed: Feed | None = None
        self._step = self._at = 0
        self._chunk: Chunk | None = None
        self.handed: tuple[Leg, int] | Position | None = None
        self._told_any = False
        # What only cuts views of a window is not worth a task.
        self._inline = not (gather.loose or question.maps)
        self._plain = self._inline and isinstance(question.size, int) and question.ending != "pad"
        self._size = question.size if isinstance(question.size, int) else 1
        self._full = 0
        self._worker, self._workers, self._number = 0, 1, 0
        self.next = self._chosen()

    def only(self, worker: int, workers: int) -> None:
        """Hand out no more than batches `worker`, `worker + workers` and so on; called before the first."""
        if self._question.lazy:  # whose rows are anybody's until the filter has run
            self.next = islice(self._filtered(), worker, None, workers).__next__
        else:
            self._worker, self._workers = worker, workers

    def close(self) -> None:
        """Let go of what was read; nothing may be asked for after that."""
        self._queue.clear()
        self._feed = self._chunk = None
        self.next = _nothing  # a method of its own would keep it alive

    def _chosen(self) -> Callable[[], dict[str, Any]]:
        """Return the function that makes what comes next: a batch, or a row."""
        if self._question.lazy:
            return self._filtered().__next__
        return self._next_row if self._question.size is None else self._next_batch

    def _next_batch(self) -> dict[str, Any]:
        leg, feed = self._leg, self._feed
        while self._plain and leg is not None and feed is not None and self._step < self._full:
            views = feed.views(self._size)
            if views is None:
                break
            self._step += 1
            if self._is_mine():
                self.handed = (leg, self._step)
                return views
        chunk = self._next_chunk()
        self.handed = (chunk.leg, chunk.stop)
        return chunk.columns

    def _next_row(self) -> dict[str, Any]:
        if self._chunk is None or self._at >= self._chunk.count:
            self._chunk, self._at = self._next_chunk(), 0
        chunk = self._chunk
        row = self._handed_over(_row_of(self._question, chunk, self._at))
        self.handed = (chunk.leg, chunk.start + self._at * chunk.every + 1)
        self._at += 1
        return row

    def _is_mine(self) -> bool:
        """Return whether the next batch is one of those to hand out."""
        self._number += 1
        return (self._number - 1) % self._workers == self._worker

    def _handed_over(self, made: dict[str, Any]) -> dict[str, Any]:
        return made if self._hand_over is None else self._hand_over.batch(made)

    def _next_chunk(self) -> Chunk:
        """Return the next rows that were put together, and begin to put together the ones after them."""
        most = 1 if self._inline else self._pool.threads + 1
        while len(self._queue) < most and self._begin(wait=not self._queue):
            pass
        if not self._queue:
            raise StopIteration
        found = self._queue.popleft()
        return outcome(found) if isinstance(found, Future) else found

    def _begin(self, *, wait: bool) -> bool:
        """Begin to put together more rows; False where there are none, or none in memory and they are not to be waited for."""
        if not self._on_a_leg():
            return False
        leg, feed, start = self._leg, self._feed, self._step
        assert leg is not None  # noqa: S101 - that was asked
        assert feed is not None  # noqa: S101 - made with the leg
        single = self._question.size is None
        stop = min(start + ROWS_AT_ONCE * self._workers, len(leg.schedule)) if single else start + 1
        first, last = leg.schedule.consumed(start), leg.schedule.consumed(stop)
        if not wait and not feed.ready(first, last):
            return False
        draw = leg.schedule.draw(start) if stop == start + 1 else None
        rows = feed.rows(first, last, draw.fill if draw else ())
        self._step = stop
        mine = self._share(stop - start) if single else 0 if self._is_mine() else None
        if mine is not None:
            task = self._finishing(leg, draw, rows, range(start + mine, stop, self._workers if single else 1))
            self._queue.append(task() if self._inline else self._pool.submit(Urgency.FINISH, task))
        feed.prefetch()
        return True

    def _share(self, rows: int) -> int | None:
        """Return which of the next single rows is the first to hand out; None where they are all those of others."""
        first = (self._worker - self._number) % self._workers
        self._number += rows
        return first if first < rows else None

    def _finishing(self, leg: Leg, draw: Draw | None, rows: Rows, steps: range) -> Callable[[], Chunk]:
        """Return what puts some rows together; it does not keep the stream alive."""
        question, gather, hand_over = self._question, self._gather, self._hand_over
        first = steps.start - steps.stop + len(rows)

        def finish() -> Chunk:
            some = rows if steps.step == 1 else thinned(rows, first, steps.step)
            count = draw.size if draw else len(some)
            made, places = put_together(question, gather, some, count)
            if steps.step > 1 and question.maps:
                places = rows.sequence[first :: steps.step]
            chunk = Chunk(
                leg=leg, start=steps.start, stop=steps.stop, columns=made, count=count, places=places, every=steps.step
            )
            plain = question.lazy or question.size is None or (not question.maps and question.ending != "pad")
            chunk = chunk if plain else _mapped(question, chunk, draw.valid if draw else count)
            if hand_over is None or question.lazy or question.size is None:
                return chunk
            return replace(chunk, columns=hand_over.batch(chunk.columns))

        return finish

    def _on_a_leg(self) -> bool:
        """Go on to a leg that has steps left; False where there is none."""
        while self._leg is None or self._step >= len(self._leg.schedule):
            self._leg = next(self._legs, None)
            if self._leg is None:
                return False
            windowed = self._question.shuffle.describe()["name"] not in ("in_order", "row_groups")
            ahead = WINDOWS_AHEAD if windowed else self._pool.threads + 1
            limit = self._question.memory_limit or MEMORY_LIMIT
            self._step = 0
            self._feed = Feed(self._gather, self._leg, ahead=ahead, memory_limit=limit, hand_over=self._hand_over)
            self._full = (self._leg.hand.num_rows - self._leg.schedule.start) // self._size
            self._full = min(self._full, len(self._leg.schedule))
        return True

    def _filtered(self) -> Iterator[dict[str, Any]]:
        """Yield batches, or rows, of those rows that pass a filter which nobody has run before."""
        size, held = self._question.size, None
        for chunk in self._passing():
            if held is not None and held.leg is not chunk.leg:
                yield from self._ended(held)
                held = None
                self._check_progress()
            held = chunk if held is None else held.followed(chunk)
            while held.count >= (size if isinstance(size, int) else 1):
                count = size if isinstance(size, int) else 1 if size is None else held.count
                yield self._told(held.picked(slice(0, count)))
                held = held.picked(slice(count, None))
        if held is not None:
            yield from self._ended(held)

    def _check_progress(self) -> None:
        """Refuse to go on for ever over epochs of which nothing passes."""
        if self._question.epochs is None and not self._told_any:
            msg = (
                "A whole epoch went by without a batch: nothing, or too little, passes the filter "
                f"{self._question.condition!r}. Repeating it without end would never hand out anything. Check the filter."
            )
            raise EmptyDatasetError(msg)

    def _passing(self) -> Iterator[Chunk]:
        """Yield chunks less the rows that do not pass."""
        while True:
            try:
                chunk = self._next_chunk()
            except StopIteration:
                return
            used = chunk.leg.schedule.consumed(chunk.start) + 1 + np.arange(chunk.count)
            passed = np.flatnonzero(chunk.columns.pop(PASSED))
            yield replace(chunk, used=used).picked(passed)

    def _ended(self, held: Chunk) -> Iterator[dict[str, Any]]:
        """Yield what is left at the end of an epoch, too little for a batch."""
        handed = held if held.count and self._question.ending == "uneven" else None
        made = None if handed is None else self._told(handed)
        self.handed = Position(epoch=held.leg.position.epoch + 1)
        if made is not None:
            yield made

    def _told(self, chunk: Chunk) -> dict[str, Any]:
        """Return a filtered batch, or row, having noted how many rows were consumed for it."""
        self._told_any = True
        if self._question.size is None:
            made = self._handed_over(_row_of(self._question, chunk, 0))
        else:
            made = self._handed_over(_mapped(self._question, chunk, chunk.count).columns)
        assert chunk.used is not None  # noqa: S101 - a filtered chunk
        deals = chunk.leg.position.deals
        self.handed = Position(
            epoch=chunk.leg.position.epoch, deals=(*deals[:-1], replace(deals[-1], rows=int(chunk.used[-1])))
        )
        return made


def _nothing() -> dict[str, Any]:
    raise StopIteration


def thinned(rows: Rows, first: int, every: int) -> Rows:
    """Return every so many-th row, from one on; windows are left as they are, and nothing is copied or decoded yet."""
    pieces: list[tuple[Held, int, int]] = []
    for held, start, stop in rows.pieces:
        numbers = held.numbers(start, stop)[first::every]
        fixed = {name: values[start + first : stop : every] for name, values in held.fixed.items()}
        if len(numbers):
            pieces.append((replace(held, fixed=fixed, take=numbers), 0, len(numbers)))
        first = (first - (stop - start)) % every
    return Rows(pieces=tuple(pieces), places=(0,) * len(pieces))


def put_together(question: Question, gather: Gather, rows: Rows, size: int) -> tuple[Batch, IntArray]:
    """Return rows as columns, filled up to `size` with the last one, and their places in the sequence."""
    found = rows.put_together(gather)
    places = rows.sequence if question.maps else NOWHERE
    if size > len(rows):
        index = np.minimum(np.arange(size), len(rows) - 1)
        found = {name: values[index] for name, values in found.items()}
        places = places[index] if question.maps else NOWHERE
    return (arranged(question, gather, found) if gather.loose else found), places


def arranged(question: Question, gather: Gather, found: Batch) -> Batch:
    """Return columns in the order asked for, with those stacked that could not be before."""
    for stack in question.stacks:
        if stack.name not in found:
            found = apply_stack(stack, found)
    return gather.arranged(found)


def _mapped(question: Question, chunk: Chunk, valid: int) -> Chunk:
    """Return a batch as the consumer gets it: padding marked, maps run."""
    marks = {"_valid": np.arange(chunk.count) < valid} if question.ending == "pad" else {}
    batch = {name: _own(values) for name, values in chunk.columns.items()} if question.maps else chunk.columns
    batch = {**batch, **marks}
    flat = [column.name for column in question.policies if isinstance(column.ragged, Offsets)]
    free = frozenset(flat) | {f"{name}{suffix}" for name in flat for suffix in ("_offsets", "_valid")}
    for number, step in enumerate(question.maps):
        key = (question.seed, chunk.leg.position.epoch, number)
        made = apply_map(step, batch, chunk.places, key, resize=question.size == "row_group", free=free)
        batch = {**made, **{name: mark for name, mark in marks.items() if name not in made}}
    return replace(chunk, columns=batch)


def _row_of(question: Question, chunk: Chunk, at: int) -> dict[str, Any]:
    """Return one row as the consumer gets it."""
    row = {name: values[at] for name, values in chunk.columns.items()}
    for number, step in enumerate(question.maps):
        row = apply_to_row(step, row, int(chunk.places[at]), (question.seed, chunk.leg.position.epoch, number))
    return row


def _own(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array that a map may write to."""
    return values if values.flags.writeable else values.copy()
