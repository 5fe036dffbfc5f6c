"""The order of rows in an epoch."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import shuffles

from penstock._engine.order.epoch import Epoch
from penstock.model import Ranges, slice_ranges
from penstock.protocols import Shuffle

counts = st.lists(st.integers(0, 9), max_size=12).map(lambda numbers: np.array(numbers, dtype=np.int64))


@given(shuffles, counts, st.integers(1, 5), st.data())
def test_pieces_cover_the_requested_ranges(shuffle: Shuffle, unit_counts: np.ndarray, lanes: int, data: st.DataObject) -> None:
    """Pieces follow one another without gaps. Each lies in one window, and the last of a window is marked."""
    epoch = Epoch(shuffle, unit_counts, seed=0, epoch=0, lanes=lanes)
    start = data.draw(st.integers(0, epoch.num_rows))
    ranges: Ranges = slice_ranges(((start, epoch.num_rows), (0, start)), 0, epoch.num_rows)
    pieces = list(epoch.pieces(ranges))

    found = [place for piece in pieces for place in range(piece.place, piece.place + piece.stop - piece.start)]
    assert found == [place for low, high in ranges for place in range(low, high)]
    for piece in pieces:
        window = epoch.window(piece.lane, piece.window)
        rows = sum(len(range(10)[read.rows]) if isinstance(read.rows, slice) else len(read.rows) for read in window.reads)
        assert piece.last == (piece.stop == rows)
    edges = epoch.edges(ranges)
    assert np.diff(edges).tolist() == [piece.stop - piece.start for piece in pieces]


def test_each_row_group_costs_few_bytes() -> None:
    """Plan and order hold arrays and not objects: together at most 100 bytes per row group."""
    from benchmarks.order_scale import run, table

    groups = 200_000
    run(*table(1000))  # imports and caches of the first run are not counted
    tracemalloc.start()
    run(*table(groups))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak / groups <= 100
