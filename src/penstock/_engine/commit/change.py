"""Changes of a table without a log, each made at once or not at all.

A table is a directory of Parquet files, and whoever reads it lists the directory. On a local disk a change is made in a
directory beside the table, and both are exchanged in one step: every reader sees all of it or nothing, whatever wrote the
reader (`commit.swap`). Elsewhere, and where a disk cannot do so, files are written where they stay, and markers tell readers
of ours which of them belong to the table (`commit.in_place`, `commit.log`).

Two things no writer can do for a reader that only lists. Files that an overwrite replaced are gone: a reader that has listed
them and opens them later has to list again, and one that looks each name up first, as pyarrow does, may find the table empty.
And a reader that walks into one partition's directory after another may do so while the table is exchanged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pyarrow import fs as pafs

from penstock._engine.commit import in_place as inplace
from penstock._engine.commit import log as markers
from penstock._engine.commit import swap
from penstock._engine.commit.target import Mode, check_mode, check_target
from penstock.errors import ArgumentError
from penstock.model import Place

__all__ = ["Change", "Mode", "begin", "small_file", "visible"]


class Change(Protocol):
    """A change of a table that was begun: files are written to where `path` says, then it is made or given up.

    Attributes:
        id: Its name, unique, of hexadecimal digits. The name of every data file holds it.
    """

    id: str

    def path(self, name: str) -> str:
        """Return where on the table's filesystem to write the data file of a relative name; its directory is there.

        Raises:
            ArgumentError: If the name leads out of the table, is one that readers pass over, or does not hold the id.
        """
        ...

    def finish(self, small: Mapping[str, bytes], check: Callable[[], None] | None = None) -> None:
        """Make the change: all files written so far, and these small hidden ones, belong to the table from now on.

        When it returns, the change is made; a warning says if something that it replaced could not be removed.

        Args:
            small: Contents by name, such as `_common_metadata`. They replace older files of that name.
            check: Looks once more whether the change goes with what lies there, as late as can be, and raises if it does not.
                On a local disk no other change of the table is made between the look and this one.

        Raises:
            ArgumentError: If what lies there meanwhile does not allow the change.
            DataChangedError: If another writer has removed its files.
        """
        ...

    def abort(self) -> None:
        """Remove every trace of a change that was not made. It may be called twice, and after `finish`, failed or not."""
        ...


def begin(filesystem: pafs.FileSystem, path: str, mode: Mode, *, url: str) -> Change:
    """Return a change of the table at a path, which need not be there yet.

    What writers that died left is tidied up: changes that were made are completed. On a local disk those that were not are
    removed; elsewhere the dead cannot be told from the slow, and they are removed a day after they were last heard of.

    Args:
        filesystem: Where the table lies.
        path: The table's directory there.
        mode: What becomes of a table that lies there. Files that readers pass over and that tell nothing of a table, such as
            `.git`, stay in any mode.
        url: What the table is called in messages.

    Raises:
        ArgumentError: If there is no such mode, a file lies there, there is a table and the mode is "error", there are files
            other than Parquet's and it is "overwrite", or a log says what belongs to the table, as Delta's does.
        DataError: If a marker of an earlier change cannot be read.

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
        raise ArgumentError(f"{url} is the top of its filesystem. A table needs a name. Give the path of a directory below.")
    markers.settle(place)
    check_target(place, mode)
    name = secrets.token_hex(8)
    if isinstance(filesystem, pafs.LocalFileSystem):
        try:
            return swap.begin(place, mode, name)
        except OSError as error:
            if error.errno not in swap.NOT_HERE:
                raise
    return inplace.begin(place, mode, name)


def visible(filesystem: pafs.FileSystem, path: str, infos: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return those of the files listed below a path that belong to the table as committed.

    Files of changes that were not made are left out, as are those that a change removed and that are not deleted yet.
    Where no change is under way, nothing is asked of the filesystem.

    Args:
        filesystem: Where they lie.
        path: What was listed: a table, or several.
        infos: All files, those with hidden names too.

    Raises:
        DataError: If a marker of a change cannot be read.
        DataChangedError: If the table changes faster than it can be listed.

    Example:
        >>> visible(pafs.LocalFileSystem(), "/t", [pafs.FileInfo("/t/a.parquet")])
        [<FileInfo for '/t/a.parquet': type=FileType.Unknown>]
    """
    return markers.visible(filesystem, path, infos)


def small_file(filesystem: pafs.FileSystem, path: str, name: str, infos: Iterable[pafs.FileInfo]) -> bytes | None:
    """Return a small hidden file of a table as committed, or None if there is none.

    Args:
        filesystem: Where it lies.
        path: The table.
        name: The file's name, such as `_common_metadata`.
        infos: All files below the path, those with hidden names too.

    Raises:
        DataError: If a marker of a change cannot be read.

    Example:
        >>> small_file(pafs.LocalFileSystem(), "/t", "_common_metadata", []) is None
        True
    """
    return markers.small_file(filesystem, path, name, infos)
