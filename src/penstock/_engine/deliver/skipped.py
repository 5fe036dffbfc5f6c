"""Rows that were skipped: counted, listed, written to a file, and limited."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.batch.assemble import AssembledRows
from penstock._engine.decode.bad_cells import BadRow, bad_row_of, file_and_row
from penstock._engine.query.query import Query
from penstock.errors import ArgumentError, DataError
from penstock.model import WHOLE_FILE, Plan

__all__ = ["SkippedBatches", "SkippedRow", "SkippedRows", "report_of"]

LISTED = 100_000
"""Rows that are listed in memory; of more, only the number is kept, and what is written to a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A row that was left out of its batch.

    Attributes:
        epoch: When it would have come.
        file: The file that it lies in.
        row_group: The number of its row group there.
        row: Its number in the file, which `Dataset.with_row_ids` calls `_row`.
        column: The column whose cell cannot be decoded; None where a map raised.
        problem: What is wrong with it.
    """

    epoch: int
    file: str
    row_group: int
    row: int
    column: str | None
    problem: str

    def __str__(self) -> str:
        """Return where it lies, and what is wrong."""
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.file}, row group {self.row_group}, row {self.row}{column}: {self.problem}"


class SkippedRows:
    """The rows that a loader has skipped so far, on one rank.

    Attributes:
        count: How many.
        plan: What is read, set when that is known.
    """

    def __init__(self, query: Query) -> None:
        """Begin without any; no file is opened yet."""
        self._query = query
        self.plan: Plan | None = None
        self._filesystem: pafs.FileSystem = None
        self._path = report_of(query)
        self._lock = threading.Lock()
        self._seen: dict[int, set[int]] = {}
        self._listed: list[SkippedRow] = []
        self._begun = False
        self.count = 0

    @property
    def rows(self) -> tuple[SkippedRow, ...]:
        """The rows, in the order in which they would have come; the first hundred thousand of them."""
        return tuple(self._listed)

    def begin(self) -> None:
        """Make the file that rows are written to, so that it is known to be writable before any row is skipped.

        Raises:
            ArgumentError: If it cannot be written.
        """
        if not self._begun and self._path is not None:
            self._append(b"")
        self._begun = True

    def of(self, plan: Plan, filesystem: pafs.FileSystem) -> SkippedRows:
        """Return these, of rows of a plan, whose files lie in a filesystem."""
        self.plan, self._filesystem = plan, filesystem
        return self

    def add(self, epoch: int, bad: Iterable[tuple[int, BadRow]]) -> None:
        """Note rows that were skipped in an epoch, by where they lie; of a row that is met again, nothing.

        Raises:
            DataError: If they are more than the question allows.
        """
        with self._lock:
            seen = self._seen.setdefault(epoch, set())
            while len(self._seen) > 2:  # noqa: PLR2004 - this epoch and the one before it, which another thread may end
                del self._seen[min(self._seen)]
            found = []
            for code, trouble in bad:
                place = file_and_row(code)
                key = place[0] << 40 | place[1]
                if key not in seen:
                    seen.add(key)
                    found.append(self._told(epoch, place, trouble))
            self.count += len(found)
            self._listed += found[: max(0, LISTED - len(self._listed))]
            if found and self._path is not None:
                self._append(b"".join(self._line(row) for row in found))
            if found:
                self._check(epoch, len(seen), found[-1])

    def _line(self, row: SkippedRow) -> bytes:
        return json.dumps({"rank": self._query.rank, **asdict(row)}).encode() + b"\n"

    def _append(self, lines: bytes) -> None:
        """Add lines to the file in one go, so that those of several processes do not mix."""
        assert self._path is not None  # noqa: S101 - asked before
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(file, lines)
            finally:
                os.close(file)
        except OSError as error:
            msg = f"on_bad_row got report={str(self._path)!r}, which cannot be written: {error.strerror}. Give a path in a "
            raise ArgumentError(f"{msg}directory that is there and may be written to.") from error

    def _check(self, epoch: int, count: int, last: SkippedRow) -> None:
        """Refuse to skip more rows than are allowed."""
        skip, ranks = self._query.skip, self._query.world_size
        assert skip is not None  # noqa: S101 - or nothing would be skipped
        assert self.plan is not None  # noqa: S101 - whose rows these are
        rows = -(-self.plan.num_rows // ranks)
        allowed = ceil(skip.most * rows) if isinstance(skip.most, float) else skip.most
        if count > allowed:
            listed = f"loader.skipped{'' if self._path is None else f' and {self._path}'}"
            msg = (
                f"{count} of {rows} rows were skipped in epoch {epoch}, and most={skip.most} allows {allowed}. The last: "
                f"{last} Look at what they have in common ({listed}), or allow more: .on_bad_row('skip', most=...)."
            )
            raise DataError(msg)

    def _told(self, epoch: int, place: tuple[int, int], trouble: BadRow) -> SkippedRow:
        """Return a row with the names of where it lies."""
        assert self.plan is not None  # noqa: S101 - whose row it is
        file, row = place
        path = self.plan.snapshot.files.path[file].as_py()
        group = self._row_group(file, row, path)
        return SkippedRow(epoch=epoch, file=path, row_group=group, row=row, column=trouble.column, problem=trouble.problem)

    def _row_group(self, file: int, row: int, path: str) -> int:
        """Return the row group of a row: that of the unit that has it, or what the footer says of a file that is read whole."""
        assert self.plan is not None  # noqa: S101 - asked before
        units = self.plan.units
        there = np.flatnonzero((units.file == file) & (units.first <= row) & (row < units.first + units.rows))
        if len(there) and units.row_group[there[0]] != WHOLE_FILE:
            return int(units.row_group[there[0]])
        with self._filesystem.open_input_file(path) as source:
            footer = pq.read_metadata(source)
        ends = np.cumsum([footer.row_group(at).num_rows for at in range(footer.num_row_groups)])
        return int(np.searchsorted(ends, row, side="right"))


def report_of(query: Query) -> Path | None:
    """Return the file that a rank writes skipped rows to: its own, where there are several ranks.

    Example:
        >>> from penstock._engine.query.query import Skip
        >>> report_of(Query(skip=Skip(report="bad.jsonl"), rank=3, world_size=8))
        PosixPath('bad-rank3.jsonl')
    """
    skip = query.skip
    if skip is None or skip.report is None:
        return None
    path = Path(skip.report)
    return path.with_name(f"{path.stem}-rank{query.rank}{path.suffix}") if query.world_size > 1 else path


class SkippedBatches:
    """Notes what is left out of one iteration, and counts the steps that are.

    Attributes:
        skips: Where rows are noted; None where none are skipped.
        steps: Steps left out since the last that was handed out: whole batches, or single rows.
    """

    def __init__(self, query: Query, skips: SkippedRows | None = None) -> None:
        """Store what is asked, and where rows are noted."""
        self._query, self.skips = query, skips
        self.steps = self._epoch = self._since = 0
        self._coming: deque[tuple[int, tuple[int, BadRow]]] = deque()

    def note(self, chunk: AssembledRows) -> None:
        """Note the rows that a chunk was put together without.

        Raises:
            DataError: If they are more than the question allows.
        """
        if self.skips is not None:
            self.skips.begin()
            # Single rows have their turn each.
            if chunk.bad and (self._query.size is not None or self._query.lazy):
                self._add(chunk.rank_epoch.position.epoch, chunk.bad)

    def is_batch(self, chunk: AssembledRows, *, note: bool = False) -> bool:
        """Return whether a batch is left out, of which all rows are bad; `note` to note what maps have left out of it now.

        Raises:
            DataError: If ranks have to have equal numbers of batches.
        """
        if note:
            self.note(chunk)
        if chunk.count or not chunk.bad:
            return False
        query = self._query
        if query.world_size > 1 and query.ending != "uneven":
            trouble = chunk.bad[-1][1]
            msg = (
                f"All {len(chunk.bad)} rows of a batch are bad, the last because {trouble.problem} Each of the "
                f"{query.world_size} ranks has to have as many batches as the others, so this one cannot be left out. Use "
                'larger batches, or last="uneven".'
            )
            raise DataError(msg)
        self._leave(chunk.rank_epoch.position.epoch, 1, chunk.bad[-1][1])
        return True

    def begin_rows(self, chunk: AssembledRows) -> None:
        """Begin to hand out the rows of a chunk one by one; those that it was put together without are noted in their turn."""
        if chunk.bad:
            assert chunk.kept is not None  # noqa: S101 - told with what was left out
            steps = np.arange(len(range(chunk.start, chunk.stop, chunk.every)))
            missing = np.setdiff1d(steps, chunk.kept).tolist()
            self._epoch, self._coming = chunk.rank_epoch.position.epoch, deque(zip(missing, chunk.bad, strict=True))

    def step(self, chunk: AssembledRows, at: int) -> int:
        """Return which of a chunk's steps a row is, having noted those before it that were left out.

        Raises:
            DataError: If there are more of them than the question allows.
        """
        found = at if chunk.kept is None else int(chunk.kept[at])
        self._pass_over(found)
        return found

    def is_row(self, chunk: AssembledRows, at: int, error: BaseException) -> bool:
        """Return whether a single row is left out because of what a map has raised on it.

        Raises:
            DataError: If there are more of them than the question allows.
        """
        trouble = None if self.skips is None else bad_row_of(error)
        if trouble is None or chunk.ids is None:
            return False
        self._pass_over(at if chunk.kept is None else int(chunk.kept[at]))
        self._leave(chunk.rank_epoch.position.epoch, 1, trouble)
        self._add(chunk.rank_epoch.position.epoch, [(int(chunk.ids[at]), trouble)])
        return True

    def end_rows(self) -> None:
        """Note the rows that were left out at the end of a chunk."""
        self._pass_over(None)

    def _pass_over(self, step: int | None) -> None:
        """Note the rows that were left out before a step of the chunk that is handed out, or all that are left of it."""
        found = []
        while self._coming and (step is None or self._coming[0][0] < step):
            found.append(self._coming.popleft()[1])
        if found:
            self._leave(self._epoch, len(found), found[-1][1])
            self._add(self._epoch, found)

    def _add(self, epoch: int, bad: Iterable[tuple[int, BadRow]]) -> None:
        assert self.skips is not None  # noqa: S101 - asked before
        self.skips.add(epoch, bad)

    def _leave(self, epoch: int, steps: int, trouble: BadRow) -> None:
        """Count steps that are left out, and refuse to go on for ever over epochs of which all are."""
        if not self.steps:
            self._since = epoch
        elif self._query.epochs is None and epoch > self._since + 1:
            msg = (
                f"All rows of a whole epoch are bad, the last because {trouble.problem} Repeating it without end would never "
                "hand out anything. Mend them, or say how often to repeat: .repeat(times)."
            )
            raise DataError(msg)
        self.steps += steps
