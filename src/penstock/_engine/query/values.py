"""Values that a query is made of and that every later step uses: columns, stacks, maps, batches and defaults."""

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
    """How one column is decoded.

    Attributes:
        name: Its name.
        nulls: What becomes of its nulls.
        ragged: What becomes of lists and arrays that differ in size.
        field: What the table's schema says of it, where it has one.
        as_numbers: Whether times become whole numbers in the end, which have no value for a null.
    """

    name: str
    nulls: Nulls = DEFAULT_NULLS
    ragged: Ragged = DEFAULT_RAGGED
    field: Field | None = None
    as_numbers: bool = False

    @property
    def codec(self) -> CellCodec | None:
        """What decodes the column's cells, where they are stored as bytes."""
        codec = None if self.field is None else self.field.codec
        return codec if isinstance(codec, CellCodec) else None


Batch: TypeAlias = dict[str, npt.NDArray[Any]]


Places: TypeAlias = IntArray | range
"""Where rows stand in the epoch's sequence."""


NOTE = "Raised by map "
"""How the note begins that an error of a user's function gets."""


RESIZE_ADVICE = 'To change the number of rows use .batch("row_group").'
"""What to do where a function of a dataset changes the number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Map:
    """A user's function and what it promises.

    Attributes:
        function: Called with a batch, or a row; with a generator as well where it takes a second argument.
        per_row: Whether it is called with one row at a time.
        fields: The columns it returns, where the user says; None where they are not known.
        advice: What to do where it returns another number of rows than it got.
        wants_rng: Whether it takes a generator besides its data.
        rng_by_name: Whether it takes it by the name `rng`.
    """

    function: Callable[..., Mapping[str, Any]]
    per_row: bool = False
    fields: tuple[Field, ...] | None = None
    advice: str = RESIZE_ADVICE
    wants_rng: bool = field(init=False, default=False)
    rng_by_name: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """See what the function takes, once: to look takes longer than many a function."""
        found = self._parameters()
        named = found.get("rng")
        by_name = named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p for p in found.values() if p.kind in plain and p.default is inspect.Parameter.empty]
        object.__setattr__(self, "rng_by_name", by_name)
        object.__setattr__(self, "wants_rng", by_name or len(required) > 1)

    @property
    def name(self) -> str:
        """What the function is called in messages."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Columns of numbers that become one column of vectors."""

    name: str
    columns: tuple[str, ...]


def raised_by_map(error: BaseException) -> str | None:
    """Return the name of the map whose function raised an error; None where none did."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, str) and note.startswith(NOTE):
            return note.removeprefix(NOTE).rpartition(", on the rows from position ")[0]
    return None


Last: TypeAlias = Literal["drop", "pad", "wrap", "level", "uneven"]


MEMORY_LIMIT = 1 << 30
"""What an iteration may take where nobody says."""


ORDER = 1
"""The number of the algorithm; a changed one gets a new number and this one stays readable."""
