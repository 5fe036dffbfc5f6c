"""The values of a query that all later steps use: columns, stacks, maps, batches and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from penstock.model import IntArray
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED, Nulls, Ragged
from penstock.schema import CellCodec, Field

__all__ = ["MEMORY_LIMIT", "NOTE", "ORDER", "Batch", "Column", "Last", "Map", "Places", "Stack", "raised_by_map"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The decoding of one column.

    Attributes:
        name: Its name.
        nulls: The policy for nulls.
        ragged: The policy for lists and arrays that differ in size.
        field: The column's field in the table's schema, if there is one.
        as_numbers: Whether times are converted to whole numbers later, which have no value for a null.
    """

    name: str
    nulls: Nulls = DEFAULT_NULLS
    ragged: Ragged = DEFAULT_RAGGED
    field: Field | None = None
    as_numbers: bool = False

    @property
    def codec(self) -> CellCodec | None:
        """The codec of the column's cells, if they are stored as bytes."""
        codec = None if self.field is None else self.field.codec
        return codec if isinstance(codec, CellCodec) else None


Batch: TypeAlias = dict[str, npt.NDArray[Any]]


Places: TypeAlias = IntArray | range
"""The positions of rows in the epoch."""


NOTE = "Raised by map "
"""The beginning of the note on an error of a user's function."""


RESIZE_ADVICE = 'To change the number of rows use .batch("row_group").'
"""The remedy if a function of a dataset changes the number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Map:
    """A user's function and its declaration.

    Attributes:
        function: Called with a batch or a row, and with a generator if it takes a second argument.
        per_row: Whether it is called with one row at a time.
        fields: The declared columns of its result; None if they are not declared.
        advice: The remedy if it returns another number of rows than it got.
        wants_rng: Whether it takes a generator.
        rng_by_name: Whether it takes the generator as the keyword `rng`.
    """

    function: Callable[..., Mapping[str, Any]]
    per_row: bool = False
    fields: tuple[Field, ...] | None = None
    advice: str = RESIZE_ADVICE
    wants_rng: bool = field(init=False, default=False)
    rng_by_name: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Inspect the function's parameters once, because that can take longer than the function."""
        try:
            parameters: Mapping[str, inspect.Parameter] = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            parameters = {}
        named = parameters.get("rng")
        by_name = named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p for p in parameters.values() if p.kind in plain and p.default is inspect.Parameter.empty]
        object.__setattr__(self, "rng_by_name", by_name)
        object.__setattr__(self, "wants_rng", by_name or len(required) > 1)

    @property
    def name(self) -> str:
        """The name of the function in messages."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Columns of numbers that are stacked to one column of vectors."""

    name: str
    columns: tuple[str, ...]


def raised_by_map(error: BaseException) -> str | None:
    """Return the name of the map that raised an error; None if no map did."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, str) and note.startswith(NOTE):
            return note.removeprefix(NOTE).rpartition(", on the rows from position ")[0]
    return None


Last: TypeAlias = Literal["drop", "pad", "wrap", "level", "uneven"]


MEMORY_LIMIT = 1 << 30
"""The default memory limit of an iteration, in bytes."""


ORDER = 1
"""The number of the order algorithm; another algorithm gets another number, and states name theirs."""
