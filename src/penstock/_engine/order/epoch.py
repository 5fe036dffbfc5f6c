"""The order of rows in an epoch, computed from counts, a shuffle, a seed and an epoch, without reading.

The shuffle permutes the units, cuts windows and permutes the rows of each (`penstock.shuffles`). An `Epoch` cuts the stream of
rows into lanes of equal length. The lanes one after the other are the epoch's *sequence*; a *place* is a row's number in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from penstock.model import IntArray, Ranges, Window, even_edges
from penstock.protocols import Arrangement, Shuffle


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSlice:
    """Rows `start..stop` of one window, in its order.

    Attributes:
        place: The place of the first row in the sequence.
        last: Whether these are the last rows of the window.
    """

    lane: int
    window: int
    start: int
    stop: int
    place: int
    last: bool


class Epoch:
    """The row order of one epoch.

    Example:
        >>> from penstock.shuffles import InOrder
        >>> epoch = Epoch(InOrder(), np.array([3, 0, 2]), seed=0, epoch=0, lanes=1)
        >>> [(piece.window, piece.start, piece.stop) for piece in epoch.pieces(((1, 5),))]
        [(0, 1, 3), (1, 0, 2)]
    """

    __slots__ = ("_arrangement", "_edges", "_lane_edges", "num_rows")

    def __init__(self, shuffle: Shuffle, counts: IntArray, *, seed: int, epoch: int, lanes: int | IntArray) -> None:
        """Arrange the stream of one epoch; `lanes` is the number of the first assignment's lanes, or their edges."""
        self.num_rows = int(counts.sum())
        self._arrangement: Arrangement = shuffle.arrange(counts, seed=seed, epoch=epoch)
        self._lane_edges = even_edges(0, self.num_rows, lanes) if isinstance(lanes, int) else lanes
        self._edges: dict[int, IntArray] = {}

    def pieces(self, ranges: Iterable[tuple[int, int]]) -> Iterator[WindowSlice]:
        """Yield the slices of windows that make up a part of the sequence."""
        for start, stop in ranges:
            place = start
            while place < stop:
                lane = int(np.searchsorted(self._lane_edges, place, side="right")) - 1
                edges = self._window_edges(lane)
                window = int(np.searchsorted(edges, place, side="right")) - 1
                begin, end = edges[window : window + 2].tolist()
                until = min(stop, end)
                rows = {"start": place - begin, "stop": until - begin}
                yield WindowSlice(lane=lane, window=window, place=place, last=until == end, **rows)
                place = until

    def edges(self, ranges: Ranges) -> IntArray:
        """Return the rows of a part of the sequence at which windows begin, and its length."""
        found, passed = [np.zeros(0, dtype=np.int64)], 0
        for start, stop in ranges:
            low, high = np.searchsorted(self._lane_edges, [start, stop - 1], side="right") - 1
            for lane in range(int(low), int(high) + 1):
                edges = self._window_edges(lane)[:-1]
                inside = edges[(edges >= start) & (edges < stop)]
                found.append(np.union1d(inside, [max(start, int(self._lane_edges[lane]))]) - start + passed)
            passed += stop - start
        return np.unique(np.concatenate([*found, [passed]]))  # where there are more lanes than rows, some are empty

    def window(self, lane: int, index: int) -> Window:
        """Return one window of a lane: what to read, and the order of its rows."""
        edges = self._window_edges(lane)
        return self._arrangement.window(int(edges[index]), int(edges[index + 1]), lane=lane, index=index)

    def _window_edges(self, lane: int) -> IntArray:
        """Return the edges of a lane's windows in the sequence; computed once."""
        edges = self._edges.get(lane)
        if edges is None:
            start, stop = self._lane_edges[lane : lane + 2].tolist()
            edges = self._edges[lane] = self._arrangement.edges(start, stop)
        return edges
