"""Atomic changes of a table without a log.

A table is a directory of Parquet files, and its readers list the directory. On a local disk a change is prepared in a
directory beside the table, and one step exchanges both: every reader sees all of it or nothing (`commit.swap`). Elsewhere,
and on disks that cannot exchange directories, files are written under their final names, and markers tell our readers which
of them belong to the table (`commit.in_place`, `commit.log`).

Two races remain for readers that only list. Files that an overwrite replaced are deleted: a reader that listed them and opens
them later must list again, and a reader that looks up each name first, as pyarrow does, may find an empty table. A reader
that lists one partition directory after another may do so while the table is exchanged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from pyarrow import fs as pafs

from penstock._engine.commit import in_place, log, swap
from penstock._engine.commit.target import Mode, check_mode, check_target
from penstock.errors import ArgumentError
from penstock.model import Place


class Change(Protocol):
    """A change of a table that was begun: write files to the paths that `path` returns, then call `finish` or `abort`."""

    id: str
    """Unique hexadecimal digits. The name of every data file contains them."""

    def path(self, name: str) -> str:
        """Return where to write the data file of a relative name; its directory exists. Raises `ArgumentError` for others."""
        ...

    def finish(self, small: Mapping[str, bytes], check: Callable[[], None] | None = None) -> None:
        """Commit: all files written so far belong to the table from now on.

        Args:
            small: Contents of small hidden files such as `_common_metadata`, which replace those of the same name.
            check: Called as late as possible; it raises if the table no longer fits the change. On a local disk no other
                change of the table is committed between the check and this one.

        Raises:
            ArgumentError: If the table as it is now does not allow the change.
            DataChangedError: If another writer has removed the files of this change.
        """
        ...

    def abort(self) -> None:
        """Remove everything that an uncommitted change wrote. It may be called twice, and after `finish`."""
        ...


def begin(filesystem: pafs.FileSystem, path: str, mode: Mode, *, url: str) -> Change:
    """Return a new change of the table at a path, which need not exist yet.

    Changes of writers that died are cleaned up: committed ones are completed, others are removed. On a local disk a lock
    shows which writers are alive; elsewhere a change counts as abandoned after a day.

    `url` is the name of the table in messages. Hidden files that do not describe a table, such as `.git`, stay in any mode.

    Raises:
        ArgumentError: If the mode is unknown, the path is a file, a table exists and the mode is "error", other files than
            Parquet exist and it is "overwrite", or the table has a log, as Delta tables do.
        DataError: If a commit marker cannot be read.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile
        >>> place = tempfile.mkdtemp()
        >>> change = begin(pafs.LocalFileSystem(), place + "/t", "error", url="t")
        >>> pq.write_table(pa.table({"x": [1, 2]}), change.path(f"part-00000-{change.id}.parquet"))
        >>> change.finish({})
        >>> pq.read_table(place + "/t").to_pydict()
        {'x': [1, 2]}
    """
    check_mode(mode)
    place = Place(url=url, filesystem=filesystem, path=path.rstrip("/"))
    if not place.path:
        raise ArgumentError(f"{url} is the root of its filesystem; expected a directory below it. Give a path with a name.")
    log.recover(place)
    check_target(place, mode)
    change_id = secrets.token_hex(8)
    if isinstance(filesystem, pafs.LocalFileSystem):
        try:
            return swap.begin(place, mode, change_id)
        except OSError as error:
            if error.errno not in swap.NOT_BESIDE:
                raise
    return in_place.begin(place, mode, change_id)
