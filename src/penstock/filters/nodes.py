"""The nodes of a filter: columns, questions about them, and logic."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ColumnNotFoundError, FilterError
from penstock.filters import prune as _prune
from penstock.filters.literals import Value, halved, is_half, kind, literal, plain, shared_type, shown, tagged
from penstock.filters.prune import Verdict
from penstock.model import BoolArray, ColumnRange, IntArray

Ranges: TypeAlias = Mapping[str, ColumnRange]
Question: TypeAlias = _prune.Comparison | _prune.Membership | _prune.Prefix | _prune.Nullness | _prune.Hashed


class Expr(ABC):
    """A condition on rows, or a column that makes one; combine conditions with & | and ~.

    Example:
        >>> from penstock.filters import col
        >>> expr = (col("x") > 3) & ~col("s").isin(["a", "b"])
        >>> expr
        (col('x') > 3) & ~col('s').isin(['a', 'b'])
        >>> expr.mask(pa.table({"x": [1, 5, 5, 5], "s": ["c", "c", "a", None]})).tolist()
        [False, True, False, False]
    """

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # so that numpy.int64(3) < col("x") asks the column

    @property
    def columns(self) -> frozenset[str]:
        """The columns it reads: as written before binding, the schema's own names afterwards."""
        return frozenset(column.path[0] for column in self._reads())

    @property
    def paths(self) -> frozenset[str]:
        """The columns and fields it reads, by the dotted paths under which statistics are looked up."""
        return frozenset(column.name for column in self._reads())

    @abstractmethod
    def bind(self, schema: pa.Schema, *, table: str) -> Expr:
        """Return the expression checked against the schema of a table, which messages call `table`.

        Raises:
            ColumnNotFoundError: If the schema lacks a column or a field.
            FilterError: If a literal or an operation does not fit its column's type.
        """

    @abstractmethod
    def prune(self, ranges: Ranges, rows: IntArray) -> Verdict:
        """Return what the bound expression may give in each file or row group, by statistics alone.

        Args:
            ranges: Statistics by column name, or dotted path of a field; a column without any may hold anything.
            rows: The number of rows of each file or row group; -1 where it is not known.
        """

    @abstractmethod
    def describe(self) -> list[object]:
        """Return the expression as JSON lists that never change, for fingerprints; describe it bound."""

    @abstractmethod
    def _reads(self) -> tuple[Column, ...]: ...

    @abstractmethod
    def _rows(self, rows: pa.Table) -> pa.ChunkedArray: ...

    def mask(self, table: pa.Table | pa.RecordBatch) -> BoolArray:
        """Return which rows are kept; what is not bound yet is bound to the schema of the rows.

        Raises:
            ColumnNotFoundError: If the rows lack a column.
            FilterError: If values cannot be brought to the types that were bound.
        """
        rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        bound = all(column.type is not None for column in self._reads())
        ready = self if bound else self.bind(rows.schema, table="the rows read")
        for name in ready.columns.difference(rows.schema.names):
            raise ColumnNotFoundError.of(name, rows.schema.names, table="the rows read")
        try:
            return np.array(pc.fill_null(ready._rows(rows), fill_value=False), np.bool_)  # noqa: SLF001 - a node too
        except pa.ArrowException as error:
            raise FilterError(f"{self!r} cannot be run on the rows read: {error}. Cast the columns to one type.") from error

    def __and__(self, other: object) -> Expr:
        return Logic("&", _operands("&", self, other))

    def __or__(self, other: object) -> Expr:
        return Logic("|", _operands("|", self, other))

    __rand__, __ror__ = __and__, __or__  # col("x") > 3 & col("y") begins with 3 & col("y"), to be refused

    def __invert__(self) -> Expr:
        return Logic("~", (self,))

    def __eq__(self, other: object) -> Any:
        raise FilterError(f"{self!r} is a condition; only columns compare. Use & | ~, or filters.same(one, two).")

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise FilterError(
            f"{self!r} is a filter, neither true nor false. Use & | ~ instead of and, or, not, with parentheses around "
            "each comparison; isin([...]) instead of in; between(low, high) instead of low <= col <= high."
        )


def operator(op: str) -> Callable[[Column, object], Test]:
    """Return the method of `Column` that builds a comparison with one operator."""

    def build(self: Column, other: object) -> Test:
        return Test(self, op, other if isinstance(other, Column) else literal(other, f"{self!r} {op}"))

    return build


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column(Expr):
    """A column, or a field inside a struct column: compare it, or use it as a condition where it is boolean.

    Attributes:
        path: The column's name, then the names of fields inside it.
        type: The Arrow type that it is compared in; None before binding.
        stats: The name of its statistics; None before binding, and where another column has that name.
        half: Whether it stores floats of 16 bits, to which literals are rounded; they are compared in more.

    Example:
        >>> from penstock.filters import col
        >>> (col("a")["b"] >= 3) | col("s").starts_with("x") | col("t").between(1, 2) | col("u").is_not_null()
        (col('a')['b'] >= 3) | col('s').starts_with('x') | ((col('t') >= 1) & (col('t') <= 2)) | ~col('u').is_null()
    """

    path: tuple[str, ...]
    type: pa.DataType | None = None
    stats: str | None = None
    half: bool = False

    __eq__ = operator("==")
    __ne__ = operator("!=")
    __lt__ = operator("<")
    __le__ = operator("<=")
    __gt__ = operator(">")
    __ge__ = operator(">=")
    __hash__ = None

    def __getitem__(self, field: str) -> Column:
        if not isinstance(field, str):
            raise FilterError(f"{self!r} has fields by name, not {field!r}. Write {self!r}['a'], or isin([...]) for in.")
        return Column((*self.path, field))

    def between(self, low: object, high: object) -> Expr:
        """Return the condition that it lies between two values, both included."""
        return (self >= low) & (self <= high)

    def isin(self, values: Iterable[object]) -> Test:
        """Return the condition that it equals one of some values; null and NaN equal nothing and are refused."""
        if isinstance(values, str | bytes | Expr) or not isinstance(values, Iterable):
            raise FilterError(f"{self!r}.isin({values!r}) needs several values. Write {self!r}.isin([{values!r}]).")
        every = tuple(literal(value, f"{self!r} ==") for value in values)
        if any(isinstance(value, float) and np.isnan(value) for value in every):
            raise FilterError(f"{self!r} == nan holds for no row. Leave NaN out of isin; {self!r} != {self!r} keeps it.")
        return Test(self, "isin", every)

    def is_null(self) -> Test:
        """Return the condition that it is null, which NaN is not."""
        return Test(self, "is_null", ())

    def is_not_null(self) -> Expr:
        """Return the condition that it is not null."""
        return ~self.is_null()

    def starts_with(self, prefix: str | bytes) -> Test:
        """Return the condition that its text or bytes begin with a prefix."""
        return Test(self, "starts_with", literal(prefix, f"the prefix of {self!r} =="))

    def bind(self, schema: pa.Schema, *, table: str) -> Column:
        """Return the column found in a schema and checked to be a condition; see `Expr.bind`."""
        found = self.found(schema, table)
        if kind(found.type) not in {"bool", "null"}:
            raise FilterError(f"Column {found.name!r} is {found.type}, which is no condition. Write {found!r} == ...")
        return replace(found, type=pa.bool_())

    def prune(self, ranges: Ranges, rows: IntArray) -> Verdict:
        """Return where the boolean column may be true, false or null; see `Expr.prune`."""
        return _TRUE.verdict(self.bounds(ranges, rows))

    def describe(self) -> list[object]:
        """Return the path, tagged."""
        return ["col", *self.path]

    def __repr__(self) -> str:
        return f"col({self.path[0]!r})" + "".join(f"[{field!r}]" for field in self.path[1:])

    def _reads(self) -> tuple[Column, ...]:
        return (self,)

    def _rows(self, rows: pa.Table) -> pa.ChunkedArray:
        column = rows.column(rows.schema.names.index(self.path[0]))
        column = pc.struct_field(column, list(self.path[1:])) if self.path[1:] else column
        return column if column.type == self.type else column.cast(self.type)

    def found(self, schema: pa.Schema, table: str) -> Column:
        """Return the column with its type; dots part fields where no column has the name as written."""
        first, *rest = self.path
        path = self.path if first in schema.names else (*first.split("."), *rest)
        fields, type_ = list(schema), None
        for depth, name in enumerate(path):
            types = {field.name: field.type for field in fields}
            if name not in types:
                wanted = ".".join(path[: depth + 1]) if depth else first
                existing = [".".join((*path[:depth], each)) for each in types] or schema.names
                raise ColumnNotFoundError.of(wanted, existing, table=table)
            type_ = types[name]
            fields = list(type_) if pa.types.is_struct(type_) else []
        dotted = ".".join(path)
        alone = len(path) == 1 or (dotted not in schema.names and not any("." in name for name in path))
        return Column(path, plain(type_), dotted if alone else None, half=is_half(type_))

    @property
    def name(self) -> str:
        """The dotted path, for messages."""
        return ".".join(self.path)

    def bounds(self, ranges: Ranges, rows: IntArray) -> _prune.Bounds:
        """Return what statistics say of the bound column."""
        if self.type is None:
            raise FilterError(f"{self!r} is not bound to a table. Call bind(schema, table=...) before prune(...).")
        return _prune.column_bounds(ranges, self.stats, self.type, rows)


# Made of its bits: pa.array([True]) would load pandas.
_TRUE = _prune.Comparison("==", pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\x01")]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Test(Expr):
    """A question about one column, or about how it compares with another.

    Attributes:
        column: The column.
        ask: An operator, or one of isin, is_null, starts_with, in_split.
        given: What it is compared with: a column, a literal, or several.
        query: The same in the column's type, once bound.

    Example:
        >>> from penstock.filters import col
        >>> Test(col("x"), ">", 3)
        col('x') > 3
    """

    __test__: ClassVar[bool] = False  # pytest would collect it
    column: Column
    ask: str
    given: Column | Value | tuple[Value, ...]
    query: Question = _TRUE

    def bind(self, schema: pa.Schema, *, table: str) -> Test:
        """Return the question in the column's type; see `Expr.bind`."""
        column = self.column.found(schema, table)
        if not isinstance(self.given, Column):
            type_, query = self._fitted(column)
            return Test(replace(column, type=type_), self.ask, self.given, query)
        other = self.given.found(schema, table)
        shared = shared_type(column.type, other.type)
        if shared is None:
            raise FilterError(
                f"Columns {column.name!r} ({column.type}) and {other.name!r} ({other.type}) do not compare. "
                "Compare columns of one type, or a column with a literal."
            )
        query = _prune.Comparison(self.ask)
        return Test(replace(column, type=shared), self.ask, replace(other, type=shared), query)

    def _fitted(self, column: Column) -> tuple[pa.DataType, Question]:
        """Return the type that a column is read in, and the question in that type."""
        given: Any = halved(self.given) if column.half else self.given
        match self.ask:
            case "is_null":
                return column.type, _prune.Nullness()
            case "isin":
                return column.type, _prune.Membership.fit(given, column.type, column.name)
            case "starts_with":
                return pa.large_binary(), _prune.Prefix.fit(given, column.type, column.name)
            case "in_split":
                return column.type, _prune.Hashed.fit(given, column.type, column.name)
        return column.type, _prune.Comparison.fit(self.ask, given, column.type, column.name)

    def prune(self, ranges: Ranges, rows: IntArray) -> Verdict:
        """Return what the statistics of its columns prove; see `Expr.prune`."""
        return self.query.verdict(*(column.bounds(ranges, rows) for column in self._reads()))

    def describe(self) -> list[object]:
        """Return the question, the column and what was given; values of isin sorted, each once."""
        given = self.given if isinstance(self.given, tuple) else (self.given,)
        parts = [value.describe() if isinstance(value, Column) else tagged(value) for value in given]
        if self.ask == "isin":
            parts = [json.loads(text) for text in sorted({json.dumps(part) for part in parts})]
        return [self.ask, self.column.describe(), *parts]

    def __repr__(self) -> str:
        if self.ask in _prune.OPS:
            return f"{self.column!r} {self.ask} {shown(self.given)}"
        if self.ask == "in_split" and isinstance(self.given, tuple):
            low, high, seed = self.given
            return f"in_split({self.column.name!r}, {low!r}, {high!r}, seed={seed!r})"
        return f"{self.column!r}.{self.ask}({'' if self.ask == 'is_null' else shown(self.given)})"

    def _reads(self) -> tuple[Column, ...]:
        return (self.column, self.given) if isinstance(self.given, Column) else (self.column,)

    def _rows(self, rows: pa.Table) -> pa.ChunkedArray:
        return self.query.rows(*(column._rows(rows) for column in self._reads()))  # noqa: SLF001 - a node too


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Logic(Expr):
    """Conditions joined by & or |, or one condition under ~.

    Example:
        >>> from penstock.filters import col
        >>> Logic("|", (col("a"), ~col("b"), col("c") > 3))
        col('a') | ~col('b') | (col('c') > 3)
    """

    op: str
    operands: tuple[Expr, ...]

    def bind(self, schema: pa.Schema, *, table: str) -> Logic:
        """Return the same with every operand bound; see `Expr.bind`."""
        return Logic(self.op, tuple(operand.bind(schema, table=table) for operand in self.operands))

    def prune(self, ranges: Ranges, rows: IntArray) -> Verdict:
        """Return what the verdicts of the operands prove; see `Expr.prune`."""
        verdicts = (operand.prune(ranges, rows) for operand in self.operands)
        return ~next(verdicts) if self.op == "~" else reduce(and_ if self.op == "&" else or_, verdicts)

    def describe(self) -> list[object]:
        """Return and, or, not with the operands, in their order."""
        tag = {"&": "and", "|": "or", "~": "not"}[self.op]
        return [tag, *(operand.describe() for operand in self.operands)]

    def __repr__(self) -> str:
        shown = [
            f"({operand!r})" if getattr(operand, "ask", getattr(operand, "op", "~")) in _LOOSE else repr(operand)
            for operand in self.operands
        ]
        return f"~{shown[0]}" if self.op == "~" else f" {self.op} ".join(shown)

    def _reads(self) -> tuple[Column, ...]:
        return tuple(column for operand in self.operands for column in operand._reads())  # noqa: SLF001 - a node too

    def _rows(self, rows: pa.Table) -> pa.ChunkedArray:
        values = (operand._rows(rows) for operand in self.operands)  # noqa: SLF001 - a node too
        return pc.invert(next(values)) if self.op == "~" else reduce(_KLEENE[self.op], values)


_KLEENE = {"&": pc.and_kleene, "|": pc.or_kleene}
_LOOSE = {*_prune.OPS, *_KLEENE}


def _operands(op: str, one: Expr, two: object) -> tuple[Expr, ...]:
    """Return what a new node joins: the operands of a node of the same kind, else the node itself."""
    if not isinstance(two, Expr):
        raise FilterError(
            f"{op} joins two conditions, and {two!r} is none. "
            f"Put parentheses around each comparison: (col('x') > 3) {op} (col('y') < 2)."
        )
    sides = (side.operands if isinstance(side, Logic) and side.op == op else (side,) for side in (one, two))
    return tuple(operand for side in sides for operand in side)
