"""The query as a value: every clause of a `Dataset`, with nothing read yet; and what the engine derives from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt

from penstock import sequences
from penstock._blobs import MAX_CELL_BYTES
from penstock.filters import Expr
from penstock.model import IntArray, Snapshot
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED, Nulls, Ragged
from penstock.protocols import Shuffle
from penstock.schema import CellCodec, Field
from penstock.shuffles import ExactShuffle, InOrder, RowGroupShuffle, WindowShuffle


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDecoding:
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
"""The places of rows: their numbers in the order of the epoch."""

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

STORED_ORDER = InOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipBadRows:
    """Bad rows are dropped, counted and listed.

    Attributes:
        most: The most rows of an epoch that may be bad, on each rank: a share if it is a float, else a number.
        report: The file that they are written to, if any.
    """

    most: float | int = 0.01
    report: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """The clauses of a dataset.

    Attributes:
        condition: The filter, bound to the table.
        lazy: Whether the filter runs while reading, without counting first.
        columns: The columns read, in order; None for all.
        shuffle: The order of rows.
        seed: The seed of the order and of maps.
        size: Rows of a batch; "row_group" for a batch per unit; None for single rows.
        last: How an epoch ends; None for the default.
        maps: Functions applied to batches or rows, in order.
        stacks: Columns stacked before the maps.
        rank: The number of this reader.
        world_size: The number of readers that share an epoch.
        lanes: The number of lanes; None for one per rank.
        limit: The number of rows, or sequences, in stored order that are read; None for all.
        epochs: Epochs of one iteration; None for endless.
        row_ids: Whether the columns `_file`, `_row_group` and `_row` are added.
        policies: The policies of columns that have others than the defaults.
        workers: What decodes cells and runs maps.
        threads: Threads that read; None for one per processor.
        processes: Worker processes; None for one per processor.
        timeout: Seconds that a worker process may take for one batch; None for the default.
        memory_limit: Bytes that may be read ahead; None for the default.
        max_cell_bytes: The most that one decoded cell may take; None for the default.
        checksums: Whether page checksums are verified.
        sequence: What makes a sequence of rows, where sequences are read instead of rows.
        skip: How bad rows are dropped; None to raise.
    """

    condition: Expr | None = None
    lazy: bool = False
    columns: tuple[str, ...] | None = None
    shuffle: Shuffle = STORED_ORDER
    seed: int = 0
    size: int | Literal["row_group"] | None = None
    last: Last | None = None
    maps: tuple[Map, ...] = ()
    stacks: tuple[Stack, ...] = ()
    rank: int = 0
    world_size: int = 1
    lanes: int | None = None
    limit: int | None = None
    epochs: int | None = 1
    row_ids: bool = False
    policies: tuple[ColumnDecoding, ...] = ()
    workers: Literal["threads", "processes"] = "threads"
    threads: int | None = None
    processes: int | None = None
    timeout: float | None = None
    memory_limit: int | None = None
    max_cell_bytes: int | None = None
    checksums: bool = False
    sequence: sequences.Sequence | None = None
    skip: SkipBadRows | None = None

    @cached_property
    def batch_rows(self) -> int | None:
        """The rows of a batch, where all batches have as many; None for single rows and for row groups."""
        return self.size if isinstance(self.size, int) else None

    @cached_property
    def step_rows(self) -> int:
        """The rows that one step counts: those of a batch; 1 for single rows and for row groups."""
        return self.size if isinstance(self.size, int) else 1

    @cached_property
    def memory_bytes(self) -> int:
        """Bytes that may be read ahead."""
        return self.memory_limit or MEMORY_LIMIT

    @cached_property
    def shuffled(self) -> bool:
        """Whether rows come in another order than stored."""
        return not isinstance(self.shuffle, InOrder)

    @cached_property
    def permuted(self) -> bool:
        """Whether the rows of a window are put in another order."""
        return not isinstance(self.shuffle, InOrder | RowGroupShuffle)

    @cached_property
    def ending(self) -> Last:
        """How an epoch ends: as asked, or `drop` where training needs equal steps, or `uneven` where no row may be lost."""
        if self.last is not None:
            return self.last
        if self.batch_rows is None or self.lazy:
            return "uneven"
        return "drop" if self.shuffled or self.world_size > 1 else "uneven"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What is read of each row.

    Attributes:
        columns: The table's columns with their policies.
        stacks: Columns stacked into one.
        row_ids: Whether the columns that say where a row is stored are added.
        max_cell_bytes: The most that one decoded cell may take.
        writable: Whether arrays must be writable, so that shared memory is copied.
        memory_limit: Bytes that may be in memory.
        sequence: What makes a sequence, where sequences are read.
        skip: Whether bad rows are marked instead of raised.
        copies_rows: Whether rows are certainly copied to another order before a batch has them.
    """

    columns: tuple[ColumnDecoding, ...]
    stacks: tuple[Stack, ...] = ()
    row_ids: bool = False
    max_cell_bytes: int = MAX_CELL_BYTES
    writable: bool = False
    memory_limit: int = MEMORY_LIMIT
    sequence: sequences.Sequence | None = None
    skip: bool = False
    copies_rows: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot, query: Query, *, framework: bool = False, memory_limit: int | None = None) -> ReadSpec:
        """Return what a query reads of a table.

        Args:
            snapshot: The table's facts.
            query: The query.
            framework: Whether batches become those of a framework: its arrays are writable, and its times are numbers,
                unless a map changes them first.
            memory_limit: Bytes that may be in memory; None for the query's own.
        """
        policies = {column.name: column for column in query.policies}
        as_numbers = framework and not query.maps
        return cls(
            columns=tuple(
                replace(policies.get(name) or ColumnDecoding(name=name), field=snapshot.fields.get(name), as_numbers=as_numbers)
                for name in (snapshot.schema.names if query.columns is None else query.columns)
            ),
            stacks=query.stacks,
            row_ids=query.row_ids,
            max_cell_bytes=query.max_cell_bytes or MAX_CELL_BYTES,
            writable=framework,
            memory_limit=query.memory_bytes if memory_limit is None else memory_limit,
            sequence=query.sequence,
            skip=query.skip is not None,
            copies_rows=isinstance(query.shuffle, WindowShuffle | ExactShuffle) and query.sequence is None,
        )


class BatchAdapter(Protocol):
    """Turns arrays into the types of a framework; the engine calls it on its threads.

    Arrays are writable unless NumPy says otherwise, and their memory is not reused while they are alive.
    """

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of arrays, or a row of values, in the framework's types."""
        ...

    def split(self, columns: Mapping[str, npt.NDArray[Any]], size: int) -> Iterator[dict[str, Any]]:
        """Yield batches of `size` rows, which are views of larger columns; there is at least one column."""
        ...
