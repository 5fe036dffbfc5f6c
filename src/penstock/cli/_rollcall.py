"""A roll call: whether each row that was due in an epoch came exactly once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Rollcall", "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollcall:
    """What came in an epoch, beside what was due.

    Attributes:
        due: How many rows were due.
        came: How many rows came, those that came again included.
        lost: The ids that did not come.
        repeated: The ids that came more than once.
        strange: The ids that came and were not due.
    """

    due: int
    came: int
    lost: tuple[int, ...]
    repeated: tuple[int, ...]
    strange: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether each row came once, and no other."""
        return not (self.lost or self.repeated or self.strange)


def call(due: npt.NDArray[np.int64], came: npt.NDArray[np.int64]) -> Rollcall:
    """Return what a roll call finds: the ids that were due, each of them once, and those that came.

    Example:
        >>> call(np.array([1, 2, 3]), np.array([3, 1, 1]))
        Rollcall(due=3, came=3, lost=(2,), repeated=(1,), strange=())
    """
    found, times = np.unique(came, return_counts=True)
    return Rollcall(
        due=len(due),
        came=len(came),
        lost=tuple(np.setdiff1d(due, found).tolist()),
        repeated=tuple(found[times > 1].tolist()),
        strange=tuple(np.setdiff1d(found, due).tolist()),
    )
