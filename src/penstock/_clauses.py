"""What the clauses of a dataset accept: each is checked where it is said, and becomes part of the question."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from penstock._engine.batch import Last
from penstock._engine.question import Question
from penstock._engine.transform import Stack
from penstock.errors import ArgumentError, ColumnNotFoundError, FilterError
from penstock.filters import Expr, from_tuples, in_split
from penstock.model import Plan, Snapshot
from penstock.protocols import Shuffle
from penstock.schema import Field

__all__ = [
    "batching",
    "bound",
    "checked",
    "epochs",
    "exact",
    "limit",
    "order",
    "parts",
    "seed",
    "selected",
    "sharding",
    "stacked",
]

HASHES = 1 << 64


def bound(conditions: Sequence[Expr | Sequence[Any]], question: Question, snapshot: Snapshot) -> Expr | None:
    """Return all conditions as one, bound to the table, together with those asked before."""
    made = {column.name for step in question.maps for column in step.fields or ()}
    made.update(stack.name for stack in question.stacks)
    found = question.condition
    for given in conditions:
        condition = given if isinstance(given, Expr) else from_tuples(given)
        late = sorted((condition.columns & made) - set(snapshot.schema.names))
        if late:
            msg = (
                f"Column {late[0]!r} is made by map or stack, and where acts before both. Columns of {snapshot.table}: "
                f'{", ".join(snapshot.schema.names)}. Filter on those, or drop rows in a map with .batch("row_group").'
            )
            raise FilterError(msg)
        condition = condition.bind(snapshot.schema, table=snapshot.table)
        found = condition if found is None else found & condition
    return found


def selected(columns: Sequence[str | Field], snapshot: Snapshot) -> tuple[str, ...]:
    """Return the columns that names, regular expressions and fields pick, in the order given."""
    names = snapshot.schema.names
    found: dict[str, None] = {}
    for column in columns:
        found.update(dict.fromkeys(_matching(column.name if isinstance(column, Field) else column, names, snapshot.table)))
    return tuple(found)


def _matching(pattern: str, names: Sequence[str], table: str) -> list[str]:
    """Return the names that a name or a regular expression means; a name means itself before it is a pattern."""
    if pattern in names:
        return [pattern]
    try:
        found = [name for name in names if re.fullmatch(pattern, name)]
    except re.error:
        found = []
    if not found:
        raise ColumnNotFoundError.of(pattern, names, table=table)
    return found


def stacked(name: str, columns: Sequence[str], question: Question, snapshot: Snapshot) -> Stack:
    """Return which columns are stacked under a new name."""
    names = list(question.columns if question.columns is not None else snapshot.schema.names)
    found = dict.fromkeys(column for pattern in columns for column in _matching(pattern, names, snapshot.table))
    if name in names and name not in found:
        msg = f"stack would hide column {name!r}, which it does not stack. Columns: {', '.join(names)}. Choose another name."
        raise ArgumentError(msg)
    return Stack(name=name, columns=tuple(found))


def order(shuffle: object) -> Shuffle:
    """Return a shuffle, which must be an object of that kind."""
    if not isinstance(shuffle, Shuffle):
        msg = f"shuffle got {shuffle!r}. A Shuffle object was expected. Pass one like penstock.WindowShuffle(rows=100_000)."
        raise ArgumentError(msg)
    return shuffle


def seed(number: Any) -> int:
    """Return a seed that fits 63 bits."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 63:
        msg = f"seed got {number!r}. An integer from 0 to 2**63 - 1 was expected; 0 is a seed like others. Give such a number."
        raise ArgumentError(msg)
    return int(number)


def batching(size: int | Literal["row_group"], last: Last | None) -> tuple[int | Literal["row_group"], Last | None]:
    """Return the size of batches and how an epoch ends."""
    if size != "row_group":
        size = _positive("batch", size, 'rows, or "row_group"')
    if last is not None and last not in get_args(Last):
        msg = (
            f"batch got last={last!r}. One of {', '.join(map(repr, get_args(Last)))} was expected. Choose one, or leave it out."
        )
        raise ArgumentError(msg)
    return size, last


def sharding(rank: Any, world_size: Any, lanes: Any) -> dict[str, int | None]:
    """Return which part of the readers this is."""
    ranks = _positive("shard", world_size, "ranks")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < ranks:
        msg = f"shard got rank {rank!r} of {ranks}. Ranks go from 0 to {ranks - 1}. Give the number of this reader."
        raise ArgumentError(msg)
    if lanes is not None and _positive("shard", lanes, "lanes") % ranks:
        msg = (
            f"{lanes} lanes cannot be shared out among {ranks} ranks. The number of lanes must be a multiple of the number of "
            f"ranks. Use lanes={max(1, lanes // ranks) * ranks}, or leave it out."
        )
        raise ArgumentError(msg)
    return {"rank": rank, "world_size": ranks, "lanes": lanes}


def limit(rows: Any, before: int | None) -> int:
    """Return the smaller of two limits."""
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
        msg = f"limit got {rows!r}. A number of rows from 0 on was expected. Give such a number."
        raise ArgumentError(msg)
    return int(rows) if before is None else min(int(rows), before)


def epochs(count: int | None) -> int | None:
    """Return how many epochs one iteration has."""
    return None if count is None else _positive("repeat", count, "epochs, or none to repeat without end")


def parts(shares: Mapping[str, float], by: str, number: int) -> dict[str, Expr]:
    """Return the condition of each part of a split: a stretch of the hashes of a column."""
    for name, share in shares.items():
        if not 0 < share <= 1:
            msg = f"split got {share!r} for part {name!r}. Shares lie between 0 and 1. Give each part a share of the rows."
            raise ArgumentError(msg)
    total = sum(shares.values())
    if total > 1 + 1e-9:
        msg = f"split got shares that make {total:g} together. They may make 1 at most. Make them smaller."
        raise ArgumentError(msg)
    found: dict[str, Expr] = {}
    low, passed = 0, 0.0
    for name, share in shares.items():
        passed += share
        high = HASHES if passed > 1 - 1e-9 else int(passed * HASHES)
        found[name] = in_split(by, low, high, seed(number))
        low = high
    return found


def exact(question: Question, plan: Plan) -> Plan:
    """Return a plan whose number of rows is exact."""
    if question.lazy:
        msg = "A dataset with a lazy filter does not know its rows before it is read. Leave lazy=True out to count them first."
        raise ArgumentError(msg)
    return plan


def checked(question: Question) -> Question:
    """Return a question whose clauses go together."""
    if question.size == "row_group" and question.shuffle.describe()["name"] not in ("in_order", "row_groups"):
        msg = (
            'batch("row_group") hands out row groups whole, and this shuffle takes them apart. '
            "Use .shuffle(penstock.RowGroupShuffle()), or a number of rows."
        )
        raise ArgumentError(msg)
    if question.last not in (None, "uneven") and question.size == "row_group":
        msg = f'batch("row_group") has batches of unequal sizes, so last={question.last!r} means nothing. Use last="uneven".'
        raise ArgumentError(msg)
    if question.lazy and question.last in ("pad", "wrap"):
        msg = (
            f"A lazy filter cannot promise equal steps, which last={question.last!r} asks for. "
            'Use last="uneven" or "drop", or leave lazy=True out.'
        )
        raise ArgumentError(msg)
    return question


def _positive(clause: str, number: Any, what: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        msg = f"{clause} got {number!r}. A positive number of {what} was expected. Give one."
        raise ArgumentError(msg)
    return int(number)
