"""Files that a table needs and that are gone, or are others than they were: what happened, and what to do."""

from __future__ import annotations

from pyarrow import fs as pafs

from penstock._engine.storage import stamp
from penstock.errors import DataChangedError
from penstock.model import Snapshot

__all__ = ["altered", "check_same", "known_size", "lost"]


def lost(snapshot: Snapshot, file: int, where: str) -> DataChangedError:
    """Return the error for a file that is gone."""
    keep = "for runs that last, keep files longer: delta.deletedFileRetentionDuration"
    origin = snapshot.origins.get(snapshot.files.path[file].as_py())
    if origin is not None:
        first, _, last = snapshot.version.partition("..")
        return DataChangedError(
            f"{where}: the file is gone. Version {origin} of {snapshot.table} added its rows, and penstock.changes from "
            f"version {first} to {last} needs them; VACUUM removes files that the newest version does not need. Give "
            f"from_version={origin} or a later one, open the table whole, or restore the file; {keep}."
        )
    if snapshot.version:
        return DataChangedError(
            f"{where}: the file is gone. Version {snapshot.version} of {snapshot.table} needs it; VACUUM removes files that "
            f"newer versions do not need. Open a newer version, or restore the file; {keep}."
        )
    return DataChangedError(f"{where}: the file is gone. It was there when the table was opened. Open the table again.")


def altered(where: str) -> DataChangedError:
    """Return the error for a file that is not the one the table was opened with."""
    return DataChangedError(
        f"{where}: the file was changed after the table was opened: its size or the time of its last write differ. "
        "Open the table again; a state saved before cannot be resumed."
    )


def check_same(snapshot: Snapshot, file: int, filesystem: pafs.FileSystem, where: str) -> None:
    """Refuse a file that is not the one the table was opened with, where that was looked at, or that its log tells of.

    Far away the size that a log tells is not compared: that would be one more request for each file.

    Raises:
        DataChangedError: If it is another.
    """
    told, size = snapshot.files.stamp[file].as_py(), int(snapshot.files.size[file])
    seen = told.startswith("@")
    if not seen and not (snapshot.version and size > 0 and isinstance(filesystem, pafs.LocalFileSystem)):
        return
    info = filesystem.get_file_info(snapshot.files.path[file].as_py())
    if info.type != pafs.FileType.File:
        return
    if seen and stamp(info) != told:
        raise altered(where)
    if not seen and info.size != size:
        msg = (
            f"{where}: it has {info.size} bytes, and the log of {snapshot.table} says {size}. A file as it was committed was "
            "expected; this one was replaced or cut. Restore it."
        )
        raise DataChangedError(msg)


def known_size(snapshot: Snapshot, file: int) -> int | None:
    """Return the bytes that a file had when the table was opened; None where it was not looked at."""
    return int(snapshot.files.size[file]) if snapshot.files.stamp[file].as_py().startswith("@") else None
