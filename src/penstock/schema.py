"""What a dataset's columns are: `Field` and `Schema`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.dtypes import numpy_type
from penstock.errors import ArgumentError, ColumnNotFoundError

__all__ = ["Field", "Schema"]


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its name, the dtype of its values and the shape of one cell.

    Args:
        name: The column's name.
        dtype: What `numpy.dtype` takes; an object dtype for strings, bytes and what else NumPy has no type for.
        shape: The shape of one cell; None stands for a dimension that differs from row to row.
        nullable: Whether cells may be null.

    Example:
        >>> import numpy as np
        >>> Field("image", np.uint8, (128, 256, 3))
        Field(name='image', dtype=dtype('uint8'), shape=(128, 256, 3), nullable=False)
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    nullable: bool = field(default=False, kw_only=True)

    def __init__(self, name: str, dtype: Any, shape: Sequence[int | None] = (), *, nullable: bool = False) -> None:
        """Store what a column is; whatever `numpy.dtype` takes will do for `dtype`."""
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "dtype", np.dtype(dtype))
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "nullable", nullable)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a dataset, in order.

    Args:
        name: What the schema is called.
        fields: Its columns.

    Raises:
        ArgumentError: If two columns have one name.

    Example:
        >>> import numpy as np
        >>> schema = Schema("Hello", [Field("id", np.int32), Field("image", np.uint8, (8, 8))])
        >>> schema.names
        ('id', 'image')
        >>> schema["image"].shape
        (8, 8)
    """

    name: str
    fields: tuple[Field, ...]

    def __init__(self, name: str, fields: Sequence[Field]) -> None:
        """Store the columns."""
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "fields", tuple(fields))
        twice = sorted({column for column in self.names if self.names.count(column) > 1})
        if twice:
            msg = f"Schema {name!r} has more than one field called {', '.join(twice)}. Names must differ. Rename all but one."
            raise ArgumentError(msg)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.fields)

    def __getitem__(self, name: str) -> Field:
        """Return one column by name."""
        for column in self.fields:
            if column.name == name:
                return column
        raise ColumnNotFoundError.of(name, self.names, table=f"schema {self.name!r}")

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column of a name."""
        return name in self.names

    def __iter__(self) -> Iterator[Field]:
        """Return an iterator over the columns."""
        return iter(self.fields)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.fields)

    @classmethod
    def from_arrow(cls, schema: pa.Schema, name: str = "") -> Schema:
        """Return what the columns of an Arrow schema are in NumPy.

        Example:
            >>> Schema.from_arrow(pa.schema({"x": pa.int64()}))["x"].dtype
            dtype('int64')
        """
        fields = []
        for column in schema:
            dtype, shape = numpy_type(column.type)
            fields.append(Field(column.name, dtype, shape, nullable=column.nullable))
        return cls(name, fields)
