"""The nodes of filter expressions: columns, tests of columns, and logic."""

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
from penstock.filters.literals import Value, format_literal, halved, is_half, kind, literal, plain, shared_type, tagged
from penstock.filters.prune import Verdict
from penstock.model import BoolArray, ColumnRange, IntArray

Ranges: TypeAlias = Mapping[str, ColumnRange]
Predicate: TypeAlias = _prune.Comparison | _prune.Membership | _prune.Prefix | _prune.Nullness | _prune.Hashed


class Expr(ABC):
    """A condition on rows, or a column of conditions. Combine conditions with &, | and ~.

    Example:
        >>> from penstock.filters import col
        >>> expr = (col("x") > 3) & ~col("s").isin(["a", "b"])
        >>> expr
        (col('x') > 3) & ~col('s').isin(['a', 'b'])
        >>> expr.mask(pa.table({"x": [1, 5, 5, 5], "s": ["c", "c", "a", None]})).tolist()
        [False, True, False, False]
    """

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # so that numpy.int64(3) < col("x") calls the column's operator

    @property
    def columns(self) -> frozenset[str]:
        """The columns it reads: by the given names before binding, and by the names of the schema after it."""
        return frozenset(column.path[0] for column in self._reads())

    @property
    def paths(self) -> frozenset[str]:
        """The columns and fields it reads, by the dotted paths of their statistics."""
        return frozenset(column.name for column in self._reads())

    @abstractmethod
    def bind(self, schema: pa.Schema, *, table: str) -> Expr:
        """Return the expression bound to the schema of a table, whose name in messages is `table`.

        Raises:
            ColumnNotFoundError: If the schema does not have a column or a field.
            FilterError: If a literal or an operation does not fit its column's type.
        """

    @abstractmethod
    def prune(self, ranges: Ranges, rows: IntArray) -> Verdict:
        """Return the possible results of the bound expression in each file or row group, by statistics alone.

        Args:
            ranges: Statistics by column name, or by the dotted path of a field; other columns can hold any value.
            rows: The number of rows of each file or row group; -1 if it is not known.
        """

    @abstractmethod
    def describe(self) -> list[object]:
        """Return the bound expression as JSON lists, for fingerprints; the form never changes."""

    @abstractmethod
    def _reads(self) -> tuple[Column, ...]: ...

    @abstractmethod
    def _rows(self, rows: pa.Table) -> pa.ChunkedArray: ...

    def mask(self, table: pa.Table | pa.RecordBatch) -> BoolArray:
        """Return which rows match; an unbound expression is bound to the schema of the rows.

        Raises:
            ColumnNotFoundError: If the rows do not have a column.
            FilterError: If values cannot be cast to the bound types.
        """
        rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        bound = all(column.type is not None for column in self._reads())
        ready = self if bound else self.bind(rows.schema, table="the rows read")
        for name in ready.columns.difference(rows.schema.names):
            raise ColumnNotFoundError.of(name, rows.schema.names, table="the rows read")
        try:
            return np.array(pc.fill_null(ready._rows(rows), fill_value=False), np.bool_)  # noqa: SLF001 - a node too
        except pa.ArrowException as error:
            raise FilterError(f"{self!r} cannot be evaluated on the rows: {error}. Cast the columns to one type.") from error

    def __and__(self, other: object) -> Expr:
        return Logic("&", _operands("&", self, other))

    def __or__(self, other: object) -> Expr:
        return Logic("|", _operands("|", self, other))

    __rand__, __ror__ = __and__, __or__  # col("x") > 3 & col("y") starts with 3 & col("y"), an error

    def __invert__(self) -> Expr:
        return Logic("~", (self,))

    def __eq__(self, other: object) -> Any:
        raise FilterError(f"{self!r} is a condition, and only columns compare. Use & | ~, or filters.same(one, two).")

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise FilterError(
            f"{self!r} is a filter and has no truth value. Use & | ~ instead of and, or, not, with parentheses around "
            "each comparison; isin([...]) instead of in; between(low, high) instead of low <= col <= high."
        )


def operator(op: str) -> Callable[[Column, object], Test]:
    """Return the method of `Column` for a comparison operator."""

    def build(self: Column, other: object) -> Test:
        return Test(self, op, other if isinstance(other, Column) else literal(other, f"{self!r} {op}"))

    return build


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column(Expr):
    """A column, or a field of a struct column. Compare it; a boolean column is also a condition itself.

    Attributes:
        path: The column's name, then the names of fields inside it.
        type: The Arrow type in which it is compared; None before binding.
        stats: The name of its statistics; None before binding, and if another column has that name.
        half: Whether it stores float16, to which literals are rounded before a comparison in float32.

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
            raise FilterError(
                f"{self!r}[...] got {field!r}; expected the name of a field, for example {self!r}['a']; for in use isin([...])."
            )
        return Column((*self.path, field))

    def between(self, low: object, high: object) -> Expr:
        """Return the condition that it is between two values, both included."""
        return (self >= low) & (self <= high)

    def isin(self, values: Iterable[object]) -> Test:
        """Return the condition that it equals one of several values; null and NaN, which equal nothing, are errors."""
        if isinstance(values, str | bytes | Expr) or not isinstance(values, Iterable):
            raise FilterError(f"{self!r}.isin() got {values!r}; expected a list, for example {self!r}.isin([{values!r}]).")
        literals = tuple(literal(value, f"{self!r} ==") for value in values)
        if any(isinstance(value, float) and np.isnan(value) for value in literals):
            raise FilterError(f"{self!r} == nan matches no row. Remove NaN from isin; {self!r} != {self!r} matches it.")
        return Test(self, "isin", literals)

    def is_null(self) -> Test:
        """Return the condition that it is null; NaN is not null."""
        return Test(self, "is_null", ())

    def is_not_null(self) -> Expr:
        """Return the condition that it is not null."""
        return ~self.is_null()

    def starts_with(self, prefix: str | bytes) -> Test:
        """Return the condition that its text or bytes start with a prefix."""
        return Test(self, "starts_with", literal(prefix, f"the prefix of {self!r} =="))

    def bind(self, schema: pa.Schema, *, table: str) -> Column:
        """Return the boolean column bound to a schema; see `Expr.bind`."""
        bound = self.resolve(schema, table)
        if kind(bound.type) not in {"bool", "null"}:
            raise FilterError(f"Column {bound.name!r} has type {bound.type}, which is not a condition. Write {bound!r} == ...")
        return replace(bound, type=pa.bool_())

    def prune(self, ranges: Ranges, rows: IntArray) -> Verdict:
        """Return where the boolean column can be true, false or null; see `Expr.prune`."""
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

    def resolve(self, schema: pa.Schema, table: str) -> Column:
        """Return the column with its type; if no column has the name, dots separate the fields of a struct."""
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
        """Return the statistics of the bound column."""
        if self.type is None:
            raise FilterError(f"{self!r} is not bound to a table. Call bind(schema, table=...) before prune(...).")
        return _prune.column_bounds(ranges, self.stats, self.type, rows)


# Built from its bits, since pa.array([True]) loads pandas.
_TRUE = _prune.Comparison("==", pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\x01")]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Test(Expr):
    """A test of one column, or a comparison of two.

    Attributes:
        column: The column.
        ask: An operator, or one of isin, is_null, starts_with, in_split.
        given: The operand: a column, a literal, or several literals.
        query: The test in the column's type, once bound.

    Example:
        >>> from penstock.filters import col
        >>> Test(col("x"), ">", 3)
        col('x') > 3
    """

    __test__: ClassVar[bool] = False  # pytest would collect it
    column: Column
    ask: str
    given: Column | Value | tuple[Value, ...]
    query: Predicate = _TRUE

    def bind(self, schema: pa.Schema, *, table: str) -> Test:
        """Return the test in the column's type; see `Expr.bind`."""
        column = self.column.resolve(schema, table)
        if not isinstance(self.given, Column):
            type_, query = self._fitted(column)
            return Test(replace(column, type=type_), self.ask, self.given, query)
        other = self.given.resolve(schema, table)
        shared = shared_type(column.type, other.type)
        if shared is None:
            raise FilterError(
                f"Columns {column.name!r} ({column.type}) and {other.name!r} ({other.type}) do not compare. "
                "Compare columns of one type, or a column with a literal."
            )
        query = _prune.Comparison(self.ask)
        return Test(replace(column, type=shared), self.ask, replace(other, type=shared), query)

    def _fitted(self, column: Column) -> tuple[pa.DataType, Predicate]:
        """Return the type in which a column is read, and the test in that type."""
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
        """Return the possible results by the statistics of its columns; see `Expr.prune`."""
        return self.query.verdict(*(column.bounds(ranges, rows) for column in self._reads()))

    def describe(self) -> list[object]:
        """Return the test, the column and the operands; values of isin are sorted and unique."""
        given = self.given if isinstance(self.given, tuple) else (self.given,)
        parts = [value.describe() if isinstance(value, Column) else tagged(value) for value in given]
        if self.ask == "isin":
            parts = [json.loads(text) for text in sorted({json.dumps(part) for part in parts})]
        return [self.ask, self.column.describe(), *parts]

    def __repr__(self) -> str:
        if self.ask in _prune.OPS:
            return f"{self.column!r} {self.ask} {format_literal(self.given)}"
        if self.ask == "in_split" and isinstance(self.given, tuple):
            low, high, seed = self.given
            return f"in_split({self.column.name!r}, {low!r}, {high!r}, seed={seed!r})"
        return f"{self.column!r}.{self.ask}({'' if self.ask == 'is_null' else format_literal(self.given)})"

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
        """Return the expression with every operand bound; see `Expr.bind`."""
        return Logic(self.op, tuple(operand.bind(schema, table=table) for operand in self.operands))

    def prune(self, ranges: Ranges, rows: IntArray) -> Verdict:
        """Return the possible results by those of the operands; see `Expr.prune`."""
        verdicts = (operand.prune(ranges, rows) for operand in self.operands)
        return ~next(verdicts) if self.op == "~" else reduce(and_ if self.op == "&" else or_, verdicts)

    def describe(self) -> list[object]:
        """Return `and`, `or` or `not` and the operands, in order."""
        tag = {"&": "and", "|": "or", "~": "not"}[self.op]
        return [tag, *(operand.describe() for operand in self.operands)]

    def __repr__(self) -> str:
        operands = [
            f"({operand!r})" if getattr(operand, "ask", getattr(operand, "op", "~")) in _NEED_PARENTHESES else repr(operand)
            for operand in self.operands
        ]
        return f"~{operands[0]}" if self.op == "~" else f" {self.op} ".join(operands)

    def _reads(self) -> tuple[Column, ...]:
        return tuple(column for operand in self.operands for column in operand._reads())  # noqa: SLF001 - a node too

    def _rows(self, rows: pa.Table) -> pa.ChunkedArray:
        values = (operand._rows(rows) for operand in self.operands)  # noqa: SLF001 - a node too
        return pc.invert(next(values)) if self.op == "~" else reduce(_KLEENE[self.op], values)


_KLEENE = {"&": pc.and_kleene, "|": pc.or_kleene}
_NEED_PARENTHESES = {*_prune.OPS, *_KLEENE}


def _operands(op: str, one: Expr, two: object) -> tuple[Expr, ...]:
    """Return the operands of a new node; nodes with the same operator are flattened."""
    if not isinstance(two, Expr):
        raise FilterError(
            f"{op} got {two!r}; expected a condition. "
            f"Put parentheses around each comparison: (col('x') > 3) {op} (col('y') < 2)."
        )
    sides = (side.operands if isinstance(side, Logic) and side.op == op else (side,) for side in (one, two))
    return tuple(operand for side in sides for operand in side)
