"""What a stream leaves out because of bad rows: noted in the order in which it would have come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from penstock._engine.finish import Chunk
from penstock._engine.question import Question
from penstock._engine.sift import Trouble, trouble_of
from penstock._engine.skips import Skips
from penstock.errors import DataError

__all__ = ["LeftOut"]


class LeftOut:
    """Notes what is left out of one iteration, and counts the steps that are.

    Attributes:
        skips: Where rows are noted; None where none are skipped.
        steps: Steps left out since the last that was handed out: whole batches, or single rows.
    """

    def __init__(self, question: Question, skips: Skips | None = None) -> None:
        """Store what is asked, and where rows are noted."""
        self._question, self.skips = question, skips
        self.steps = self._epoch = self._since = 0
        self._coming: deque[tuple[int, tuple[int, Trouble]]] = deque()

    def note(self, chunk: Chunk) -> None:
        """Note the rows that a chunk was put together without.

        Raises:
            DataError: If they are more than the question allows.
        """
        if self.skips is not None:
            self.skips.begin()
            # Single rows have their turn each.
            if chunk.bad and (self._question.size is not None or self._question.lazy):
                self._add(chunk.leg.position.epoch, chunk.bad)

    def is_batch(self, chunk: Chunk, *, note: bool = False) -> bool:
        """Return whether a batch is left out, of which all rows are bad; `note` to note what maps have left out of it now.

        Raises:
            DataError: If ranks have to have equal numbers of batches.
        """
        if note:
            self.note(chunk)
        if chunk.count or not chunk.bad:
            return False
        question = self._question
        if question.world_size > 1 and question.ending != "uneven":
            trouble = chunk.bad[-1][1]
            msg = (
                f"All {len(chunk.bad)} rows of a batch are bad, the last because {trouble.problem} Each of the "
                f"{question.world_size} ranks has to have as many batches as the others, so this one cannot be left out. Use "
                'larger batches, or last="uneven".'
            )
            raise DataError(msg)
        self._leave(chunk.leg.position.epoch, 1, chunk.bad[-1][1])
        return True

    def begin_rows(self, chunk: Chunk) -> None:
        """Begin to hand out the rows of a chunk one by one; those that it was put together without are noted in their turn."""
        if chunk.bad:
            assert chunk.kept is not None  # noqa: S101 - told with what was left out
            steps = np.arange(len(range(chunk.start, chunk.stop, chunk.every)))
            missing = np.setdiff1d(steps, chunk.kept).tolist()
            self._epoch, self._coming = chunk.leg.position.epoch, deque(zip(missing, chunk.bad, strict=True))

    def step(self, chunk: Chunk, at: int) -> int:
        """Return which of a chunk's steps a row is, having noted those before it that were left out.

        Raises:
            DataError: If there are more of them than the question allows.
        """
        found = at if chunk.kept is None else int(chunk.kept[at])
        self._pass_over(found)
        return found

    def is_row(self, chunk: Chunk, at: int, error: BaseException) -> bool:
        """Return whether a single row is left out because of what a map has raised on it.

        Raises:
            DataError: If there are more of them than the question allows.
        """
        trouble = None if self.skips is None else trouble_of(error)
        if trouble is None or chunk.ids is None:
            return False
        self._pass_over(at if chunk.kept is None else int(chunk.kept[at]))
        self._leave(chunk.leg.position.epoch, 1, trouble)
        self._add(chunk.leg.position.epoch, [(int(chunk.ids[at]), trouble)])
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

    def _add(self, epoch: int, bad: Iterable[tuple[int, Trouble]]) -> None:
        assert self.skips is not None  # noqa: S101 - asked before
        self.skips.add(epoch, bad)

    def _leave(self, epoch: int, steps: int, trouble: Trouble) -> None:
        """Count steps that are left out, and refuse to go on for ever over epochs of which all are."""
        if not self.steps:
            self._since = epoch
        elif self._question.epochs is None and epoch > self._since + 1:
            msg = (
                f"All rows of a whole epoch are bad, the last because {trouble.problem} Repeating it without end would never "
                "hand out anything. Mend them, or say how often to repeat: .repeat(times)."
            )
            raise DataError(msg)
        self.steps += steps
