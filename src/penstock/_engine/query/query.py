"""The question as a value: every clause a user can state, with nothing read yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock._engine.query.values import Column, Last, Map, Stack
from penstock.filters import Expr
from penstock.protocols import Shuffle
from penstock.sequences import Sequence
from penstock.shuffles import InOrder

__all__ = ["Query", "SkipBadRows"]

STORED = InOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipBadRows:
    """What becomes of bad rows: they are left out, counted and listed.

    Attributes:
        most: How many of an epoch's rows may be, on each rank: a share where it is a float, else a number.
        report: The file that they are written to, if any.
    """

    most: float | int = 0.01
    report: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Query:
    """What is asked of a table.

    Attributes:
        condition: The filter, bound to the table.
        lazy: Whether the filter is run on the fly, without counting first.
        columns: The columns read, in order; None for all.
        shuffle: The order of rows.
        seed: The seed of the order and of maps.
        size: Rows of a batch; "row_group" for what is read at once; None for single rows.
        last: How an epoch ends; None for the default of the situation.
        maps: Functions run on what is handed out, in order.
        stacks: Columns stacked before the maps.
        rank: Which of `world_size` readers this is.
        world_size: How many readers share an epoch.
        lanes: Parts the order is cut into; None for as many as ranks.
        limit: Only the first so many rows, or sequences, in stored order.
        epochs: Epochs of one iteration; None for endless.
        row_ids: Whether the columns `_file`, `_row_group` and `_row` are added.
        policies: How nulls and lists of some columns are treated, where it is not the default.
        workers: What decodes cells and runs maps.
        threads: How many threads read; None for one per processor.
        processes: How many processes decode cells and run maps, where processes do; None for one per processor.
        timeout: Seconds that a process may take for one batch; None for the default.
        memory_limit: Bytes that may be read ahead; None for the default.
        max_cell_bytes: What one cell may take when it is decoded; None for the default.
        checksums: Whether pages are compared with the checksums that they were written with.
        sequence: What rows make up a sequence, where those are handed out instead of rows; its names are the table's.
        skip: What becomes of rows that are bad; None to raise.
    """

    condition: Expr | None = None
    lazy: bool = False
    columns: tuple[str, ...] | None = None
    shuffle: Shuffle = STORED
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
    policies: tuple[Column, ...] = ()
    workers: Literal["threads", "processes"] = "threads"
    threads: int | None = None
    processes: int | None = None
    timeout: float | None = None
    memory_limit: int | None = None
    max_cell_bytes: int | None = None
    checksums: bool = False
    sequence: Sequence | None = None
    skip: SkipBadRows | None = None

    @property
    def shuffled(self) -> bool:
        """Whether rows come in another order than stored."""
        return not isinstance(self.shuffle, InOrder)

    @property
    def permuted(self) -> bool:
        """Whether the rows of a window are put in another order, and so to other memory."""
        return self.shuffle.describe()["name"] not in ("in_order", "row_groups")

    @property
    def ending(self) -> Last:
        """How an epoch ends: as asked, or `drop` where training needs equal steps, or `uneven` where nothing may be lost."""
        if self.last is not None:
            return self.last
        if not isinstance(self.size, int) or self.lazy:
            return "uneven"
        return "drop" if self.shuffled or self.world_size > 1 else "uneven"
