"""Which epochs of a loader are those of Lightning, which counts its own and goes on from checkpoints of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from penstock._engine.deliver.loader import Iteration
from penstock._engine.deliver.loader import Loader as Engine
from penstock._engine.order.state import State
from penstock._engine.query.query import Query
from penstock.errors import StateError
from penstock.model import Position
from penstock.torch._frameworks import is_lightning

__all__ = ["LightningEpochs"]

TRAINER = "trainer"
"""What states that Lightning saves have besides: its epoch, and the one of the loader that it began with."""


class Given(Enum):
    """Who said where the next iteration begins."""

    NOBODY = 0
    USER = 1
    LIGHTNING = 2


class LightningEpochs:
    """Puts a loader where an iteration of Lightning's begins.

    Lightning says a number when an epoch of its own begins. It may take several iterations for that, or a part of one, so the
    number tells no more than how many epochs have gone by since the last one that is known. A position that was loaded, or an
    epoch that was set, counts more, as long as nobody has begun it.
    """

    def __init__(self, engine: Engine, query: Query) -> None:
        """Begin with Lightning's epoch 0 as the loader's."""
        self._engine, self._query = engine, query
        self._said: int | None = None
        self._number = self._first = 0
        self._given, self._asked = Given.NOBODY, False

    def ask(self) -> None:
        """Note that Lightning has asked for an iteration, which begins when it asks for the first batch."""
        self._asked = True

    def length(self) -> int:
        """Return the number of batches of the iteration after the one that was asked for, or of the next.

        Raises:
            TypeError: If it has no length.
        """
        coming = self._engine.coming
        if self._asked and coming.end is not None:
            coming = Iteration(coming.planned, self._query, Position(epoch=coming.end))
        return len(coming)

    def say(self, epoch: int) -> None:
        """Note which epoch Lightning begins."""
        self._said = epoch

    def set_by_user(self) -> None:
        """Note that somebody else has said where the next iteration begins."""
        self._given = Given.USER

    def loaded(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Note that a state was loaded, and in which of Lightning's epochs it was saved, if Lightning is what loads it.

        Raises:
            StateError: If that cannot be what was saved.
        """
        one = state if isinstance(state, Mapping) else state[0]
        self._given = Given.USER
        if is_lightning() and TRAINER in one:
            number, first = _epochs(one[TRAINER])
            self._given, self._number, self._first = Given.LIGHTNING, number, first

    def told(self, state: State) -> State:
        """Return a state as it is saved, by Lightning or others."""
        if self._given is Given.USER or not is_lightning():
            return state
        return {**state, TRAINER: [self._number, self._first]}

    def begun(self) -> None:
        """Note that an iteration begins."""
        self._given, self._asked = Given.NOBODY, False

    def begin(self) -> bool:
        """Put the loader where the next iteration of Lightning's begins; False where that had ended before it was saved."""
        said, given, repeats = self._said, self._given, self._query.epochs
        self._said = None
        self.begun()
        if said is None or repeats is None:
            return True
        start = self._engine.coming.start
        if given is Given.USER:
            self._number, self._first = said, start.epoch // repeats * repeats
            return True
        if given is Given.LIGHTNING and said <= self._number:
            return start.epoch == self._first or start.epoch % repeats > 0 or _is_inside(start)
        self._number, self._first = said, max(0, self._first + (said - self._number) * repeats)
        self._engine.load_state_dict({**self._engine.state_dict(), "epoch": self._first, "deals": []})
        return True


def _epochs(saved: Any) -> tuple[int, int]:
    """Return the two epochs that a state was saved with."""
    if isinstance(saved, list | tuple) and len(saved) == 2 and all(type(one) is int and one >= 0 for one in saved):  # noqa: PLR2004
        return saved[0], saved[1]
    msg = f"The state has {saved!r} as {TRAINER!r}. Two epochs were expected, Lightning's and the loader's. Load one as saved."
    raise StateError(msg)


def _is_inside(position: Position) -> bool:
    """Return whether something of an epoch has been handed out."""
    return any(
        assignment.rows if isinstance(assignment.rows, int) else any(assignment.rows) for assignment in position.assignments
    )
