"""Planning and ordering of growing tables: time and bytes per row group, for one rank of many.

Row groups of 1,000 rows are planned from footers, ordered, divided among 1,024 ranks, stopped in mid-epoch and resumed on 768
ranks; one rank asks for its first and last window. No data is read.

    python -m benchmarks.order_scale
"""

from __future__ import annotations

import argparse
import time
import tracemalloc

import numpy as np
import pyarrow as pa

from penstock._engine.order.shard import RankEpoch
from penstock._engine.parquet.footer import RowGroups
from penstock._engine.plan import prune as planning
from penstock._engine.query.query import Query
from penstock.model import DataFiles, Plan, Position, Snapshot
from penstock.shuffles import WindowShuffle

ROWS = 1_000
GROUPS_PER_FILE = 1_000
RANKS = 1_024
RANKS_AFTER = 768
BATCH = 256
WINDOW = 200_000


def table(groups: int) -> tuple[Snapshot, RowGroups]:
    """Return the snapshot and the footers of a table with this many row groups."""
    count = -(-groups // GROUPS_PER_FILE)
    files = DataFiles(
        path=pa.array([f"part-{at:06}.parquet" for at in range(count)]),
        size=np.full(count, 64 << 20),
        rows=np.full(count, -1),
        stamp=pa.array([""] * count),
        partitions=pa.table({}),
    )
    at = np.arange(groups, dtype=np.int32)
    footers = RowGroups(file=at // GROUPS_PER_FILE, number=at % GROUPS_PER_FILE, rows=np.full(groups, ROWS))
    return Snapshot(table="benchmark", version="", schema=pa.schema({"x": pa.int64()}), files=files), footers


def run(snapshot: Snapshot, footers: RowGroups) -> None:
    """Plan, order, shard, resume in mid-epoch, and compute two windows of one rank."""
    shuffle = WindowShuffle(rows=WINDOW)
    units = planning.make_units(snapshot, np.arange(len(snapshot.files)), footers, None, shuffle)
    name = planning.fingerprint(snapshot, units, {}, dict(shuffle.describe()))
    plan = Plan(snapshot=snapshot, units=units, counts=units.counts, fingerprint=name)
    before = RankEpoch(plan, shuffle, Query(size=BATCH, last="drop", world_size=RANKS, shuffle=shuffle), Position())
    stopped = before.after(len(before.schedule) // 2)
    query = Query(size=BATCH, last="drop", world_size=RANKS_AFTER, rank=511, shuffle=shuffle)
    after = RankEpoch(plan, shuffle, query, stopped)
    for step in (0, len(after.schedule) - 1):
        draw = after.schedule.batch(step)
        pieces = list(after.epoch.pieces(after.shard.ranges(draw.start, draw.stop)))
        window = after.epoch.window(pieces[0].lane, pieces[0].window)
        assert sum(piece.stop - piece.start for piece in pieces) == BATCH
        assert window.take is not None
        assert len(window.take) <= WINDOW


def measure(groups: int) -> tuple[float, float]:
    """Return the seconds of the fastest of three runs, and the peak bytes, including footers."""
    snapshot, footers = table(groups)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run(snapshot, footers)
        seconds.append(time.perf_counter() - start)
    del snapshot, footers
    tracemalloc.start()
    run(*table(groups))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return min(seconds), peak


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="*", default=[10**4, 10**5, 10**6])
    print(f"{'row groups':>12} {'rows':>14} {'seconds':>9} {'us/group':>9} {'peak MB':>9} {'bytes/group':>12}")
    for groups in parser.parse_args().groups:
        seconds, peak = measure(groups)
        each = f"{seconds / groups * 1e6:>9.2f} {peak / 1e6:>9.1f} {peak / groups:>12.1f}"
        print(f"{groups:>12,} {groups * ROWS:>14,} {seconds:>9.3f} {each}")


if __name__ == "__main__":
    main()
