"""Data files of a Delta table that would be read without its log, which says what of them counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyarrow import fs as pafs

from penstock.errors import ArgumentError
from penstock.formats.delta.log import LOG
from penstock.model import Place

__all__ = ["refuse_strays"]

LONGEST = 300
"""Characters of what was opened in a message: a list may have thousands of names."""


def refuse_strays(place: Place, every: Sequence[pafs.FileInfo], chosen: Sequence[pafs.FileInfo]) -> None:
    """Refuse files that lie in a Delta table: without its log, deleted rows come back and others come twice.

    What lies below the place was listed. What lies above is asked for, once for each directory that the user has named a
    file or a directory in, and once for each that this lies in.

    Args:
        place: What was opened.
        every: All files that were listed there.
        chosen: Those of them that would be read.

    Raises:
        ArgumentError: If one of the latter does.
    """
    table = _below(every, chosen)
    table = _above(place) if table is None else table
    if table is None:
        return
    called = _called(place, table)
    told = place.url if len(place.url) <= LONGEST else f"{place.url[:LONGEST]}…"
    msg = (
        f"{told} would be read as plain Parquet, and holds files of the Delta table {called}, whose log says which of "
        f"their rows count. The table itself was expected. Open it, penstock.open({called!r}), and choose a partition with "
        "where; or say format='parquet' to read files as they lie, with rows that were deleted or replaced."
    )
    raise ArgumentError(msg)


def _below(every: Sequence[pafs.FileInfo], chosen: Sequence[pafs.FileInfo]) -> str | None:
    """Return a table whose log was listed, and of whose files one would be read."""
    logs = {info.path.rpartition("/")[0] for info in every}
    tables: set[str] = {folder.removesuffix(f"/{LOG}") for folder in logs if folder.endswith(f"/{LOG}")}
    if not tables:
        return None
    folders: dict[str, None] = dict.fromkeys(info.path.rpartition("/")[0] for info in chosen)
    for folder in folders:
        found = next((each for each in (folder, *_parents(folder)) if each in tables), None)
        if found is not None:
            return found
    return None


def _above(place: Place) -> str | None:
    """Return a table that lies above what the user has named."""
    asked: set[str] = set()
    for path in place.paths or (place.path,):
        for parent in _parents(path):
            if parent in asked:  # and so was all that lies above it
                break
            asked.add(parent)
            if _has_log(place.filesystem, parent):
                return parent
    return None


def _parents(path: str) -> Iterator[str]:
    """Yield the directories that a path lies in, the nearest first; the last is the root, "/" or nothing.

    Paths of stores are no paths of this machine: those of some begin with a scheme, before which there is nothing.
    """
    while path and not path.endswith((":", ":/")):
        before, slash, _ = path.rpartition("/")
        path = before
        if not before.endswith((":", ":/")):
            yield before or slash


def _has_log(filesystem: pafs.FileSystem, folder: str) -> bool:
    path = f"{folder.rstrip('/')}/{LOG}" if folder else LOG
    try:
        return bool(filesystem.get_file_info(path).type == pafs.FileType.Directory)
    except Exception:  # noqa: BLE001 - each store has errors of its own for who may not look, or for what is no bucket
        return False


def _called(place: Place, table: str) -> str:
    """Return a table's name as the user would write it: with what stands before the path in the place's own."""
    before, found, _ = place.url.partition(place.path) if place.path.strip("/.") else ("", "", "")
    return f"{before}{table}" if found else table
