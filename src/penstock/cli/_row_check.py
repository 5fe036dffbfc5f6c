"""Whether each row of an epoch was read exactly once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["RowCheck", "compare_ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCheck:
    """The rows that were read in an epoch, compared with the expected ones.

    Attributes:
        due: The number of expected rows.
        came: The number of rows that were read, repeated rows included.
        lost: The expected ids that were not read.
        repeated: The ids that were read more than once.
        strange: The ids that were read and not expected.
    """

    due: int
    came: int
    lost: tuple[int, ...]
    repeated: tuple[int, ...]
    strange: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether each expected row was read once, and no other row."""
        return not (self.lost or self.repeated or self.strange)


def compare_ids(due: npt.NDArray[np.int64], came: npt.NDArray[np.int64]) -> RowCheck:
    """Return the differences between the expected ids, which are unique, and those that were read.

    Example:
        >>> compare_ids(np.array([1, 2, 3]), np.array([3, 1, 1]))
        RowCheck(due=3, came=3, lost=(2,), repeated=(1,), strange=())
    """
    ids, counts = np.unique(came, return_counts=True)
    return RowCheck(
        due=len(due),
        came=len(came),
        lost=tuple(np.setdiff1d(due, ids).tolist()),
        repeated=tuple(ids[counts > 1].tolist()),
        strange=tuple(np.setdiff1d(ids, due).tolist()),
    )
