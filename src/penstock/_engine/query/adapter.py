"""The last step: what the engine makes becomes what a framework takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy.typing as npt

__all__ = ["BatchAdapter"]


class BatchAdapter(Protocol):
    """Turns arrays into the types of a framework; it is called on the engine's threads.

    The arrays it gets may be written to unless NumPy says otherwise, and their memory is not used again while they live.
    """

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of arrays, or a row of values, as the framework has them."""
        ...

    def cuts(self, columns: Mapping[str, npt.NDArray[Any]], size: int) -> Iterator[dict[str, Any]]:
        """Yield batches of `size` rows, as the framework has them; views of columns that hold many, of which there is one."""
        ...
