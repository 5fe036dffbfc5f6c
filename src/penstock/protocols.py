"""The doorways that others implement: table formats and shuffles."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, runtime_checkable

from penstock.model import Changed, IntArray, Place, Snapshot, Window

__all__ = ["Arrangement", "Changing", "Shuffle", "TableFormat", "TimeTravel"]


@runtime_checkable
class Arrangement(Protocol):
    """One epoch's stream of rows, as arithmetic.

    The stream has as many places as there are rows kept. The engine cuts it into lanes of equal length, asks
    where the windows of a lane lie, and then for one window at a time.
    """

    def edges(self, start: int, stop: int) -> IntArray:
        """Return where the windows of the lane `start..stop` begin, and `stop` itself at the end."""
        ...

    def window(self, start: int, stop: int, *, lane: int, index: int) -> Window:
        """Return the window `start..stop`, which is number `index` of its lane."""
        ...


@runtime_checkable
class Shuffle(Protocol):
    """An order of rows: a frozen value that turns counts, seed and epoch into an `Arrangement`.

    A shuffle never reads. Two equal shuffles give equal orders, for ever: a changed algorithm gets a new name.
    """

    @property
    def whole_file_rows(self) -> int:
        """The most rows of a file that is taken as one unit; 0 to keep row groups apart."""
        ...

    @property
    def unit_rows(self) -> int | None:
        """The most rows of a unit; larger row groups are cut into ranges. None to leave them whole."""
        ...

    def settle(self, num_rows: int, num_bytes: int) -> Shuffle:
        """Return this shuffle with every number fixed that depends on the table's size."""
        ...

    def describe(self) -> Mapping[str, str | int | None]:
        """Return what names this order: it goes into fingerprints, and is printed."""
        ...

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> Arrangement:
        """Return the stream of one epoch over units with these counts."""
        ...


@runtime_checkable
class TableFormat(Protocol):
    """A kind of table: it states facts about the table at a place, and reads no data file."""

    @property
    def name(self) -> str:
        """What the format is called."""
        ...

    def recognises(self, place: Place) -> bool:
        """Return whether a table of this format lies at a place."""
        ...

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the table's facts at a version; at the newest where none is given."""
        ...


@runtime_checkable
class TimeTravel(Protocol):
    """What a table format has besides, if its tables tell when their versions came to be."""

    def version_at(self, place: Place, moment: datetime) -> str | int:
        """Return the version that was the newest at a moment."""
        ...


@runtime_checkable
class Changing(Protocol):
    """What a table format has besides, if its tables tell what was added to them."""

    def changes(self, place: Place, first: int, last: int | None) -> Changed:
        """Return what was added after one version and up to another; up to the newest where none is given."""
        ...
