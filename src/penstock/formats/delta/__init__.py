"""Delta Lake tables, whose log lists the files of every version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from pyarrow import fs as pafs

from penstock.errors import ArgumentError
from penstock.model import Changed, Place, Snapshot
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.formats.delta.write import DeltaChange, Mode

__all__ = ["FORMAT", "PRECEDENCE", "DeltaFormat"]

PRECEDENCE = 10
"""Tried before Parquet: the files beside a log are a Delta table."""

LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class DeltaFormat:
    """Delta Lake tables, by their log.

    Args:
        timezone: The time zone of the systems that wrote the table. Partition values that are timestamps may be stored
            without a zone; then they are in that of their writer, which the table does not record.

    Example:
        >>> DeltaFormat().name
        'delta'
    """

    timezone: str = "UTC"

    @property
    def name(self) -> str:
        """The name of the format."""
        return "delta"

    def recognises(self, place: Place) -> bool:
        """Return whether a place has a log."""
        log = f"{place.path.rstrip('/')}/{LOG}"
        return not place.paths and place.filesystem.get_file_info(log).type == pafs.FileType.Directory

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the snapshot of a version, by default of the newest.

        Raises:
            ArgumentError: If the version does not exist.
            DataError: If the log cannot be read, or the table needs unknown features.
        """
        from penstock.formats.delta.snapshot import read_snapshot

        return read_snapshot(place, version, self._zone())

    def version_at(self, place: Place, moment: datetime) -> int:
        """Return the version that was the newest at a moment.

        Raises:
            ArgumentError: If the table did not exist yet.
            DataError: If the log cannot be read.
        """
        from penstock.formats.delta.snapshot import version_at

        return version_at(place, moment)

    def changes(self, place: Place, first: int, last: int | None) -> Changed:
        """Return the rows that were added after one version and up to another, by default the newest.

        Raises:
            ArgumentError: If a version does not exist, or a commit between them is gone.
            DataError: If a commit does not record its added rows.
        """
        from penstock.formats.delta.snapshot import read_changes

        return read_changes(place, first, last, self._zone())

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get one that Delta has a type for."""
        from penstock.formats.delta.encode_actions import suited

        return suited(schema)

    def begin(self, place: Place, mode: Mode) -> DeltaChange:
        """Return a new change of the table at a place, which need not exist yet.

        Raises:
            ArgumentError: If the mode, the storage or the table's rules do not allow it.
        """
        from penstock.formats.delta.write import begin

        return begin(place, mode)

    def _zone(self) -> tzinfo:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)  # some machines have no time zone data
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            msg = f"DeltaFormat() got timezone={self.timezone!r}; expected the name of a time zone, such as 'America/New_York'."
            raise ArgumentError(msg) from error


FORMAT = DeltaFormat()
