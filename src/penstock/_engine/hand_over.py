"""The last step: what the engine makes becomes what a framework takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt

__all__ = ["HandOver"]


class HandOver(Protocol):
    """Turns arrays into the types of a framework; it is called on the engine's threads.

    The arrays it gets may be written to unless NumPy says otherwise, and their memory is not used again while they live.
    """

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of arrays, or a row of values, as the framework has them."""
        ...

    def cuts(self, column: npt.NDArray[Any], size: int) -> Sequence[Any]:
        """Return a column of many batches, cut into views of `size` rows each."""
        ...
