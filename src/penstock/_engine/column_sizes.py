"""How much columns take on storage."""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import fs as pafs

from penstock._engine import thrift
from penstock._engine.footers import by_schema, of_each, stored_size
from penstock._engine.thrift import Only, Wanted, parse
from penstock.model import Snapshot

__all__ = ["column_bytes"]

_SIZE: Wanted = {thrift.META: {thrift.SIZE: int}}


def column_bytes(
    snapshot: Snapshot, files: Sequence[int], columns: Sequence[str], filesystem: pafs.FileSystem, *, threads: int = 16
) -> dict[str, int]:
    """Return the bytes that top-level columns take on storage, over some data files.

    Raises:
        DataError: If a file is not there, or has no footer that can be read; the first such file is named.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=10)
        >>> column_bytes(table.snapshot(table.place), [0], ["day"], table.filesystem)
        {'day': 0}
    """
    roots = [snapshot.names.get(column, column).encode() for column in columns]
    layout = by_schema(lambda every, _: [[leaf.place for leaf in every if leaf.path[0] == root] for root in roots])

    def tell(footer: bytes) -> list[int]:
        places = layout(footer)
        wanted = {thrift.CHUNKS: Only(places={place: _SIZE for of_root in places for place in of_root})}
        found = [one.get(thrift.CHUNKS, []) for one in parse(footer, {thrift.GROUPS: [wanted]}).get(thrift.GROUPS, [])]
        return [sum(stored_size(chunks[at]) for chunks in found for at in of_root if at < len(chunks)) for of_root in places]

    told = of_each(snapshot, files, filesystem, tell, threads)
    return {column: sum(one[at] for one in told) for at, column in enumerate(columns)}
