"""The rows of a rank's epoch in its order, with the next windows read ahead as far as memory allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeAlias

from penstock._engine.order.epoch import WindowSlice
from penstock._engine.order.shard import RankEpoch
from penstock._engine.query.query import Query
from penstock._engine.runtime.threads import ThreadPool, succeeded
from penstock._engine.window.buffer import WindowBuffer
from penstock._engine.window.reader import PendingWindow, WindowReader, WindowRows
from penstock.model import Ranges, Window

LARGE = 8
"""A window is large if fewer than this many fit in memory; a single batch should not keep it alive."""

RETENTION_CHECK_BATCH = 3
"""The batch of a window at which old windows are looked for; by then a consumer has dropped the last batch of the old one."""

ROWS_TOGETHER = 1 << 13
"""Rows of several lanes, or sources, that are made together at most: more would not stay in the processor's cache."""

WINDOWS_AHEAD = 2
"""Windows of several units keep all threads busy; of single units more are read ahead."""


class WindowOrder(Protocol):
    """The order of an epoch: where windows are, and what each reads."""

    def pieces(self, ranges: Iterable[tuple[int, int]]) -> Iterator[WindowSlice]:
        """Yield the parts of windows that make up a part of the sequence."""
        ...

    def window(self, lane: int, index: int) -> Window:
        """Return one window of a lane."""
        ...


class Prefetcher:
    """Returns the rows of a rank's epoch from its position on, lane after lane in turn."""

    def __init__(self, window_reader: WindowReader, rank_epoch: RankEpoch, *, ahead: int, memory_limit: int) -> None:
        """Store where the epoch begins.

        Args:
            window_reader: What reads windows.
            rank_epoch: The rank's epoch.
            ahead: The most windows of each lane that are read ahead.
            memory_limit: Memory of all windows together; one window of each lane is always read.
        """
        self._window_reader, self._rank_epoch = window_reader, rank_epoch
        lanes, epoch = rank_epoch.lanes_ahead(), rank_epoch.epoch
        self._lanes = [LanePrefetcher(window_reader, epoch, lane, ahead, memory_limit // len(lanes)) for lane in lanes]

    def rows(self, start: int, stop: int, fill: Ranges = ()) -> WindowRows:
        """Return rows `start..stop` of the rank's shard, which continue the last ones.

        The rows of `fill` come after them; they are read out of turn.
        """
        pieces: list[tuple[WindowBuffer, int, int]] = []
        places: list[int] = []
        if len(self._lanes) == 1:
            self._lanes[0].take(stop - start, pieces, places)
        else:
            for lane, count in self._rank_epoch.turns(start, stop):
                self._lanes[lane].take(count, pieces, places)
        for piece in self._rank_epoch.epoch.pieces(fill) if fill else ():
            window = self._rank_epoch.epoch.window(piece.lane, piece.window)
            pieces.append((self._window_reader.fetch(window), piece.start, piece.stop))
            places.append(piece.place)
        return self._window_reader.rows_type(pieces=tuple(pieces), places=tuple(places))

    def prefetch(self) -> bool:
        """Begin to read the next windows, and return whether these are the last of the epoch."""
        last = [lane.prefetch() for lane in self._lanes]  # of all lanes
        return all(last)

    @property
    def rows_in_memory(self) -> int:
        """The rows of all windows that are in memory or being read."""
        return sum(lane.rows_in_memory for lane in self._lanes)

    def prefetch_first_windows(self, beside: int) -> None:
        """Begin to read the first window of each lane while an epoch with `beside` rows in memory is read."""
        for lane in self._lanes:
            lane.prefetch_first_windows(-(-beside // len(self._lanes)))

    def become_current(self) -> None:
        """Note that this is the running epoch now: its early windows are no longer extra memory."""
        self._window_reader.budget.early_rows = 0

    def pending_windows(self) -> list[Future[WindowBuffer]]:
        """Return the windows that are being read."""
        return [window for lane in self._lanes for window in lane.pending_windows()]

    def rows_together(self, start: int, stop: int) -> int:
        """Return how many of the rows `start..stop` one task may take: those left in the window, or some of several lanes."""
        if len(self._lanes) == 1:
            return self._lanes[0].rows_together
        return self.rows_ready(start, min(stop, start + ROWS_TOGETHER))

    def rows_ready(self, start: int, stop: int) -> int:
        """Return how many of the rows `start..stop` are in memory, from the first on; of several lanes all or none."""
        if len(self._lanes) == 1:
            return self._lanes[0].rows_ready(stop - start)
        turns = self._rank_epoch.turns(start, stop)
        return stop - start if all(self._lanes[lane].rows_ready(count) == count for lane, count in turns) else 0


class LanePrefetcher:
    """The rest of one lane, window after window."""

    def __init__(
        self, window_reader: WindowReader, order: WindowOrder, ranges: Iterable[tuple[int, int]], ahead: int, memory_limit: int
    ) -> None:
        """Store which rows come, and how many windows of them may be in memory."""
        self._window_reader, self._order, self._ahead, self._limit = window_reader, order, ahead, memory_limit
        self._slices = order.pieces(ranges)
        self._next_slice = next(self._slices, None)
        self._queue: deque[tuple[WindowSlice, PendingWindow]] = deque()
        self._newest: PendingWindow | None = None
        self._window: WindowBuffer | None = None
        self._at = self._stop = self._place = 0
        self._copies, self._is_large, self._batches_to_check = False, False, 0

    def take(self, count: int, pieces: list[tuple[WindowBuffer, int, int]], places: list[int]) -> None:
        """Append the next `count` rows to the pieces of a batch."""
        while count:
            if self._window is None:
                self._next_window()
            assert self._window is not None  # noqa: S101 - a lane is never asked for more rows than it has
            self._check_copies()
            rows = min(count, self._stop - self._at)
            start, stop = self._at, self._at + rows
            # The last batch of a large window is a copy, so that it does not keep it alive while the next one is read.
            copies = self._copies or (self._is_large and stop + rows > self._stop)
            pieces.append((self._copied(start, stop), 0, rows) if copies else (self._window, start, stop))
            places.append(self._place)
            self._at, self._place = self._at + rows, self._place + rows
            count -= rows
            if self._at == self._stop:
                self._window = None
                if count and not self._copies and not self._queue and not self._affordable():
                    pieces[-1] = (pieces[-1][0].cut(*pieces[-1][1:]), 0, rows)

    def _copied(self, start: int, stop: int) -> WindowBuffer:
        """Return a copy of some rows, which counts as memory as long as the consumer keeps it."""
        assert self._window is not None  # noqa: S101 - there are rows
        rows = self._window.cut(start, stop)
        for values in rows.fixed.values():
            self._window_reader.budget.count_while_alive(values, sum([column.nbytes for column in rows.fixed.values()]))
            break
        return rows

    def pending_windows(self) -> list[Future[WindowBuffer]]:
        """Return the windows that are being read."""
        return [pending.buffer for _, pending in self._queue if not pending.buffer.done()]

    @property
    def rows_together(self) -> int:
        """The rows of the current window that may be in several batches that are made together."""
        if self._window is None or self._copies or self._batches_to_check:
            return 0
        return (self._stop - self._at) // (2 if self._is_large else 1)

    def rows_ready(self, limit: int) -> int:
        """Return how many of the next `limit` rows are in memory."""
        ready = 0 if self._window is None else self._stop - self._at
        for piece, pending in self._queue:
            if ready >= limit or not succeeded(pending.buffer):
                break
            ready += piece.stop - piece.start
        return min(ready, limit)

    def _next_window(self) -> None:
        """Wait for the next window and make it the current one."""
        self.begin()
        piece, pending = self._queue.popleft()
        with self._window_reader.meter.blocked:
            self._window = pending.take()
        self._at, self._stop, self._place = piece.start, piece.stop, piece.place
        self._is_large = self._stop * self._window_reader.row_bytes * LARGE > self._limit
        self._copies, self._batches_to_check = self._is_large, RETENTION_CHECK_BATCH

    def _check_copies(self) -> None:
        """Decide once per window, after its first batches, whether the consumer keeps old windows alive."""
        if self._batches_to_check:
            self._batches_to_check -= 1
            if not self._batches_to_check:
                self._copies = self._window_reader.budget.retains_windows(self.rows_in_memory)

    def begin(self) -> None:
        """Begin to read the next window, if none is in memory or being read."""
        if self._window is None and not self._queue:
            self._request()

    def prefetch(self) -> bool:
        """Begin to read the next windows, as far as they fit in memory; return whether these are the last."""
        while len(self._queue) < self._ahead and self._affordable() and self._request():
            pass
        return self._next_slice is None

    @property
    def rows_in_memory(self) -> int:
        """The rows of windows that are in memory or being read."""
        return self._stop + sum(piece.stop for piece, _ in self._queue)

    def prefetch_first_windows(self, beside: int) -> None:
        """Begin to read the first window, if it fits in memory beside `beside` rows of another epoch."""
        first = self._next_slice
        if first is not None and not self._queue and self._affordable(beside) and self._request():
            self._window_reader.budget.early_rows += first.stop

    def _affordable(self, beside: int = 0) -> bool:
        """Return whether one more window fits in memory, by what rows took so far."""
        if self._next_slice is None:
            return False
        rows = beside + self.rows_in_memory + self._next_slice.stop
        return rows * self._window_reader.row_bytes <= self._limit and self._window_reader.budget.has_room(
            self._next_slice.stop
        )

    def _request(self) -> bool:
        """Begin to read one more window; return False if there is none."""
        piece = self._next_slice
        if piece is None:
            return False
        self._next_slice = next(self._slices, None)
        self._newest = self._window_reader.request(partial(self._order.window, piece.lane, piece.window), self._newest)
        self._window_reader.budget.expect(piece.stop, self._newest.buffer)
        self._queue.append((piece, self._newest))
        return True


def windows_ahead(query: Query, pool: ThreadPool) -> int:
    """Return the most windows that are read ahead."""
    return WINDOWS_AHEAD if query.permuted else pool.threads + 1


MakePrefetcher: TypeAlias = Callable[[RankEpoch], Prefetcher]


class EpochPrefetcher:
    """The rank epochs of an iteration, each with its prefetcher; the next epoch is begun while the last windows are read."""

    def __init__(self, rank_epochs: Iterator[RankEpoch], make_prefetcher: MakePrefetcher) -> None:
        """Store which epochs come; nothing is read."""
        self._rank_epochs, self._make = rank_epochs, make_prefetcher
        self._begun: tuple[RankEpoch, Prefetcher] | Exception | None = None

    def next(self) -> tuple[RankEpoch, Prefetcher] | None:
        """Return the next epoch and its prefetcher; None at the end."""
        begun, self._begun = self._begun, None
        if isinstance(begun, Exception):
            raise begun
        if begun is None:
            return self._begin()
        begun[1].become_current()
        return begun

    def read_ahead(self, prefetcher: Prefetcher) -> None:
        """Begin to read the next windows of an epoch; after its last, the first of the next epoch.

        An error of the next epoch is raised when its turn comes.
        """
        if not prefetcher.prefetch():
            return
        try:
            self._begun = self._begun or self._begin()
        except Exception as error:  # noqa: BLE001 - raised by `next`
            self._begun = error
        if isinstance(self._begun, tuple):
            self._begun[1].prefetch_first_windows(prefetcher.rows_in_memory)

    def _begin(self) -> tuple[RankEpoch, Prefetcher] | None:
        rank_epoch = next(self._rank_epochs, None)
        return None if rank_epoch is None else (rank_epoch, self._make(rank_epoch))
