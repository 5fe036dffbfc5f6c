"""Files that a table needs and that are gone: what happened, and what to do."""

from __future__ import annotations

from penstock.errors import DataChangedError
from penstock.model import Snapshot

__all__ = ["lost"]


def lost(snapshot: Snapshot, where: str) -> DataChangedError:
    """Return the error for a file that is gone."""
    if snapshot.version:
        return DataChangedError(
            f"{where}: the file is gone. Version {snapshot.version} of {snapshot.table} needs it; VACUUM removes files that "
            "newer versions do not need. Open a newer version, or restore the file; for runs that last, keep files longer."
        )
    return DataChangedError(f"{where}: the file is gone. It was there when the table was opened. Open the table again.")
