"""The rows of a leg, in the order a rank takes them, with windows read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeAlias

from penstock._engine.order.epoch import WindowSlice
from penstock._engine.order.rank_epoch import RankEpoch
from penstock._engine.query.adapter import BatchAdapter
from penstock._engine.query.query import Query
from penstock._engine.query.values import Batch
from penstock._engine.runtime.threads import ThreadPool, succeeded
from penstock._engine.window.reader import PendingWindow, WindowBuffer, WindowReader, WindowRows
from penstock._ranges import Ranges
from penstock.model import Window

__all__ = ["EpochPrefetcher", "LanePrefetcher", "Prefetcher", "windows_ahead"]

LARGE = 8
"""A window is large if so many are more than fit in memory; it should not be kept for a single batch."""

LOOK = 3
"""The batch of a window by which whoever does not keep batches has let go of the last one of the window before."""


WINDOWS_AHEAD = 2
"""Windows of several units keep all threads busy by themselves; single units do not, and more of them are read ahead."""


class Ordered(Protocol):
    """A sequence of rows that is asked for piece by piece."""

    def pieces(self, ranges: Iterable[tuple[int, int]]) -> Iterator[WindowSlice]:
        """Yield the pieces of windows that make up a part of it."""
        ...

    def window(self, lane: int, index: int) -> Window:
        """Return the window of a piece."""
        ...


class Prefetcher:
    """Hands out a leg's rows from its beginning on, lane after lane in turn."""

    def __init__(
        self,
        window_reader: WindowReader,
        rank_epoch: RankEpoch,
        *,
        ahead: int,
        memory_limit: int,
        adapter: BatchAdapter | None = None,
    ) -> None:
        """Store where the leg begins.

        Args:
            window_reader: What reads windows.
            rank_epoch: The leg.
            ahead: How many windows of each lane are read before they are needed, at most.
            memory_limit: Bytes that all windows in memory may have, where one of each lane does not have more.
            adapter: What turns views into the types of a framework, if anything does.
        """
        self._window_reader, self._rank_epoch = window_reader, rank_epoch
        lanes = rank_epoch.shard.ahead(rank_epoch.schedule.start)
        self._lanes = [
            LanePrefetcher(window_reader, rank_epoch.epoch, lane, ahead, memory_limit // len(lanes)) for lane in lanes
        ]
        self._adapter = adapter

    def rows(self, start: int, stop: int, fill: Ranges = ()) -> WindowRows:
        """Return rows `start..stop` of the rank's hand, which must go on where the last ones ended.

        `fill` is read out of turn and comes after them.
        """
        pieces: list[tuple[WindowBuffer, int, int]] = []
        places: list[int] = []
        for slot, count in self._rank_epoch.shard.turns(start, stop):
            self._lanes[slot].take(count, pieces, places)
        for piece in self._rank_epoch.epoch.pieces(fill) if fill else ():
            pieces.append(
                (self._window_reader.fetch(self._rank_epoch.epoch.window(piece.lane, piece.window)), piece.start, piece.stop)
            )
            places.append(piece.place)
        return self._window_reader.rows_type(pieces=tuple(pieces), places=tuple(places))

    def run(self, size: int, most: int) -> tuple[WindowBuffer, int, int, int] | None:
        """Return the window that is held, the next row in it, its place, and how many batches from there on are taken now.

        There are no more than `most`; None where not even one is whole.
        """
        return self._lanes[0].run(size, most) if len(self._lanes) == 1 else None

    def views(self, count: int) -> dict[str, Any] | None:
        """Return the next rows as views of the window that is held, or None where it takes more than that."""
        if len(self._lanes) > 1:
            return None
        return self._lanes[0].views(count) if self._adapter is None else self._lanes[0].cuts(count, self._adapter)

    def prefetch(self) -> bool:
        """Have the windows read that come next, and return whether those are the last.

        Who waits for rows asks for them first, so that no thread is taken from them.
        """
        last = [lane.prefetch() for lane in self._lanes]  # of all lanes, also after one that has more
        return all(last)

    @property
    def rows_held(self) -> int:
        """How many rows windows have that are held or coming."""
        return sum(lane.rows_held for lane in self._lanes)

    def begin_early(self, beside: int) -> None:
        """Have the first window of each lane read before this leg's turn, if it fits beside so many rows of another one."""
        for lane in self._lanes:
            lane.begin_early(-(-beside // len(self._lanes)))

    def begin_turn(self) -> None:
        """Take what was read early for this leg's own from now on."""
        self._window_reader.budget.early = 0

    def coming(self) -> list[Future[WindowBuffer]]:
        """Return the windows that are being read."""
        return [one for lane in self._lanes for one in lane.coming()]

    def ready(self, start: int, stop: int) -> bool:
        """Return whether `rows` would not have to wait."""
        return all(self._lanes[slot].ready(count) for slot, count in self._rank_epoch.shard.turns(start, stop))


class LanePrefetcher:
    """What is left of one lane, window after window."""

    def __init__(
        self, window_reader: WindowReader, epoch: Ordered, ranges: Iterable[tuple[int, int]], ahead: int, memory_limit: int
    ) -> None:
        """Store which rows come, of what, and how many windows of them may be in memory."""
        self._window_reader, self._epoch, self._ahead, self._limit = window_reader, epoch, ahead, memory_limit
        self._pieces = epoch.pieces(ranges)
        self._coming = next(self._pieces, None)
        self._queue: deque[tuple[WindowSlice, PendingWindow]] = deque()
        self._newest: PendingWindow | None = None
        self._drawn: Future[Window] | None = None
        self._buffer: WindowBuffer | None = None
        self._at = self._stop = self._place = 0
        self._copying, self._large, self._looks = False, False, 0
        self._cuts: Iterator[dict[str, Any]] = iter(())

    def take(self, count: int, pieces: list[tuple[WindowBuffer, int, int]], places: list[int]) -> None:
        """Add the next `count` rows to what a batch is made of."""
        while count:
            if self._buffer is None:
                self._next()
            rows = min(count, self._stop - self._at)
            assert self._buffer is not None  # noqa: S101 - a lane is never asked for more than it has
            self._look()
            at = self._at, self._at + rows
            pieces.append((self._buffer.cut(*at), 0, rows) if self._copying else (self._buffer, *at))
            places.append(self._place)
            self._at += rows
            self._place += rows
            count -= rows
            self._cuts = iter(())  # they went on from elsewhere
            if self._at == self._stop:
                self._buffer = None
                if count and not self._copying and not self._queue and not self._affordable():
                    pieces[-1] = (pieces[-1][0].cut(*pieces[-1][1:]), 0, rows)

    def run(self, size: int, most: int) -> tuple[WindowBuffer, int, int, int] | None:
        """Return where the next batches of the window that is held lie; None where it is one that must be copied."""
        count = min(most, (self._stop - self._at) // size)
        if self._buffer is None or count < 1:
            return None
        self._looks = max(1, self._looks - count + 1) if self._looks else 0
        self._look()
        if self._copying:
            return None
        found = self._buffer, self._at, self._place, count
        self._at, self._place = self._at + count * size, self._place + count * size
        self._cuts = iter(())
        if self._at == self._stop:
            self._buffer = None
        return found

    def views(self, count: int) -> Batch | None:
        """Return the next rows as views of the window that is held; None where they lie in two, or are its last.

        The last of a large window are a copy: whoever still has them while the next one is read would keep it.
        """
        stop = self._at + count
        if self._buffer is None or stop >= self._stop:
            return None
        self._look()
        found = {name: values[self._at : stop] for name, values in self._buffer.fixed.items()}
        if found and (self._copying or (self._large and stop + count >= self._stop)):
            found = {name: values.copy() for name, values in found.items()}
            self._window_reader.budget.keep(next(iter(found.values())), sum(values.nbytes for values in found.values()))
        self._at, self._place = stop, self._place + count
        return found

    def cuts(self, count: int, adapter: BatchAdapter) -> dict[str, Any] | None:
        """Return the next rows as views, as a framework has them, which cuts many batches at a time."""
        self._look()
        if self._copying or (self._large and self._at + 2 * count >= self._stop):
            views = self.views(count)
            return views if views is None else adapter.batch(views)
        if self._buffer is None or self._at + count >= self._stop:
            return None
        found = next(self._cuts, None)
        if found is None:
            whole = (self._stop - self._at - 1) // count - self._large
            columns = {name: values[self._at : self._at + whole * count] for name, values in self._buffer.fixed.items()}
            self._cuts = adapter.cuts(columns, count) if columns else iter([{} for _ in range(whole)])
            found = next(self._cuts)
        self._at, self._place = self._at + count, self._place + count
        return found

    def coming(self) -> list[Future[WindowBuffer]]:
        """Return the windows that are being read."""
        return [pending.buffer for _, pending in self._queue if not pending.buffer.done()]

    def ready(self, count: int) -> bool:
        """Return whether the next `count` rows are in memory."""
        if self._buffer is not None:
            count -= self._stop - self._at
        for piece, pending in self._queue:
            if count <= 0 or not succeeded(pending.buffer):
                break
            count -= piece.stop - piece.start
        return count <= 0

    def _next(self) -> None:
        """Go on to the next window."""
        if not self._queue:
            self._request()
        piece, pending = self._queue.popleft()
        with self._window_reader.meter.blocked:
            self._buffer, self._cuts = pending.handed(), iter(())
        self._at, self._stop, self._place = piece.start, piece.stop, piece.place
        self._large = self._stop * self._window_reader.row_bytes * LARGE > self._limit
        self._copying, self._looks = self._large, LOOK

    def _look(self) -> None:
        """See once in a window, when its first batches have been taken, whether the consumer keeps windows before it."""
        if self._looks:
            self._looks -= 1
            if not self._looks:
                self._copying = self._window_reader.budget.is_pinned(self.rows_held)

    def begin(self) -> None:
        """Begin to read the next window, where it is needed next and nothing is coming."""
        if self._buffer is None and not self._queue:
            self._request()

    def prefetch(self) -> bool:
        """Begin to read the windows after the one that is held, as far as they fit in memory; return whether none is left."""
        while len(self._queue) < self._ahead and self._affordable() and self._request():
            pass
        return self._coming is None

    @property
    def rows_held(self) -> int:
        """How many rows windows have that are held or coming."""
        return self._stop + sum(piece.stop for piece, _ in self._queue)

    def begin_early(self, beside: int) -> None:
        """Begin to read the first window, if it fits in memory beside so many rows of another leg."""
        coming = self._coming
        if coming is not None and not self._queue and self._affordable(beside) and self._request():
            self._window_reader.budget.early += coming.stop

    def _affordable(self, beside: int = 0) -> bool:
        """Return whether one more window fits in memory beside those that are held or coming, by what rows took so far."""
        if self._coming is None:
            return False
        rows = beside + self.rows_held + self._coming.stop
        return rows * self._window_reader.row_bytes <= self._limit and self._window_reader.budget.has_room(self._coming.stop)

    def _request(self) -> bool:
        """Begin to read one more window; False where there is none."""
        piece = self._coming
        if piece is None:
            return False
        window = self._drawn or self._draw(piece)
        self._coming = next(self._pieces, None)
        self._newest = self._window_reader.request(window, self._newest)
        # While this one is read; later, all threads might wait for it.
        self._drawn = None if self._coming is None else self._draw(self._coming)
        self._window_reader.budget.expect(piece.stop, self._newest.buffer)
        self._queue.append((piece, self._newest))
        return True

    def _draw(self, piece: WindowSlice) -> Future[Window]:
        """Begin to find out what a piece's window is made of."""
        return self._window_reader.draw(partial(self._epoch.window, piece.lane, piece.window))


def windows_ahead(query: Query, pool: ThreadPool) -> int:
    """Return how many windows are read before they are needed, where memory allows."""
    return WINDOWS_AHEAD if query.permuted else pool.threads + 1


Feeding: TypeAlias = Callable[[RankEpoch], Prefetcher]


class EpochPrefetcher:
    """The legs of an iteration, each with what reads its rows."""

    def __init__(self, rank_epochs: Iterator[RankEpoch]) -> None:
        """Store which legs come; nothing is read yet."""
        self._rank_epochs = rank_epochs
        self._begun: tuple[RankEpoch, Prefetcher] | Exception | None = None

    def next(self, feeding: Feeding) -> tuple[RankEpoch, Prefetcher] | None:
        """Return the next leg, and what reads it; None where there is none."""
        begun, self._begun = self._begun, None
        if isinstance(begun, Exception):
            raise begun
        if begun is None:
            return self._begin(feeding)
        begun[1].begin_turn()
        return begun

    def read_ahead(self, prefetcher: Prefetcher, feeding: Feeding) -> None:
        """Have the windows read that come next in a leg; where all of them are being read, the first of the leg after it.

        What goes wrong with the next leg is raised when its turn comes.
        """
        if not prefetcher.prefetch():
            return
        try:
            self._begun = self._begun or self._begin(feeding)
        except Exception as error:  # noqa: BLE001 - raised in its turn
            self._begun = error
        if isinstance(self._begun, tuple):
            self._begun[1].begin_early(prefetcher.rows_held)

    def _begin(self, feeding: Feeding) -> tuple[RankEpoch, Prefetcher] | None:
        rank_epoch = next(self._rank_epochs, None)
        return None if rank_epoch is None else (rank_epoch, feeding(rank_epoch))
