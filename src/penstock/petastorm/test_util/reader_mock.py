"""`petastorm.test_util.reader_mock`: a reader of generated rows."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Self

import numpy as np

from penstock.petastorm.unischema import Unischema

__all__ = ["ReaderMock", "schema_data_generator_example"]

SIZE = 10
"""The size of a dimension without a declared size."""


class ReaderMock:
    """Returns rows of a function, endlessly.

    Args:
        schema: The fields of the rows.
        schema_data_generator: The function; it takes the schema and returns a dict.
        ngram: Must be None.

    Raises:
        ValueError: If an NGram is given.
    """

    def __init__(
        self, schema: Unischema, schema_data_generator: Callable[[Unischema], dict[str, Any]], ngram: Any = None
    ) -> None:
        """Store the function."""
        if ngram is not None:
            raise ValueError("Sequence argument not supported for ReaderMock. Leave ngram out.")
        self.schema, self.schema_data_generator, self.ngram = schema, schema_data_generator, None
        self.batched_output = False

    def fetch(self) -> Any:
        """Return a row."""
        return self.schema.make_namedtuple(**self.schema_data_generator(self.schema))

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return a row."""
        return self.fetch()

    def next(self) -> Any:
        """Return a row."""
        return self.fetch()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def join(self) -> None:
        """Do nothing."""


def schema_data_generator_example(schema: Unischema) -> dict[str, Any]:
    """Return a row of zeros."""
    return {name: _zeros(field) for name, field in schema.fields.items()}


def _zeros(field: Any) -> Any:
    if field.numpy_dtype is Decimal:
        return Decimal("0.0")
    return np.zeros(tuple(SIZE if size is None else size for size in field.shape), dtype=field.numpy_dtype)
