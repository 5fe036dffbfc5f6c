"""Protocols for implementations of table formats and shuffles."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, runtime_checkable

from penstock.model import Changed, IntArray, Place, Snapshot, Window

__all__ = ["Arrangement", "Changing", "Shuffle", "TableFormat", "TimeTravel"]


@runtime_checkable
class Arrangement(Protocol):
    """The stream of rows of one epoch, as arithmetic.

    The stream has one place for each selected row. The engine cuts it into lanes of equal length, and gets the edges of the
    windows of a lane, and then one window at a time.
    """

    def edges(self, start: int, stop: int) -> IntArray:
        """Return the starts of the windows of the lane `start..stop`, and `stop` at the end."""
        ...

    def window(self, start: int, stop: int, *, lane: int, index: int) -> Window:
        """Return the window `start..stop`, which has the number `index` in its lane."""
        ...


@runtime_checkable
class Shuffle(Protocol):
    """An order of rows: a frozen value that turns counts, seed and epoch into an `Arrangement`.

    A shuffle never reads. Two equal shuffles give equal orders in all versions: a changed algorithm gets a new name.
    """

    @property
    def whole_file_rows(self) -> int:
        """The largest number of rows of a file that is read as one unit; 0 to keep row groups separate."""
        ...

    @property
    def unit_rows(self) -> int | None:
        """The largest number of rows of a unit; larger row groups are cut into ranges. None to keep them whole."""
        ...

    def settle(self, num_rows: int, num_bytes: int) -> Shuffle:
        """Return this shuffle with all numbers fixed that depend on the table's size."""
        ...

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the options that identify this order, for fingerprints and `explain`."""
        ...

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> Arrangement:
        """Return the stream of one epoch over units with these counts."""
        ...


@runtime_checkable
class TableFormat(Protocol):
    """A kind of table. It states the facts about the table at a place, and reads no data files."""

    @property
    def name(self) -> str:
        """The name of the format."""
        ...

    def recognises(self, place: Place) -> bool:
        """Return whether there is a table of this format at a place."""
        ...

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the facts about the table at a version; the newest if None."""
        ...


@runtime_checkable
class TimeTravel(Protocol):
    """A table format whose versions have times."""

    def version_at(self, place: Place, moment: datetime) -> str | int:
        """Return the version that was the newest at a moment."""
        ...


@runtime_checkable
class Changing(Protocol):
    """A table format whose tables record the rows that versions add."""

    def changes(self, place: Place, first: int, last: int | None) -> Changed:
        """Return the rows that were added after one version and up to another; up to the newest if None."""
        ...
