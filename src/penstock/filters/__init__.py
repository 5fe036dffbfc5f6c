"""The filter language: build a condition, bind it to a table, prune by statistics, run it on rows.

`col("x") > 3` builds a node and reads nothing. `bind` checks names and literals against a schema; `prune` asks the
statistics which files and row groups may hold rows to keep; `mask` asks the rows. Logic is SQL's: a comparison with
null is null, `&`, `|` and `~` follow Kleene, and rows are kept where the whole is true. NaN compares false, except by
`!=`. Columns and literals compare exactly, in the column's type; a float literal is rounded to a float column's width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any

from penstock.errors import ArgumentError, FilterError
from penstock.filters.literals import Value
from penstock.filters.nodes import Column, Expr, Logic, Test, operator
from penstock.filters.prune import OPS, Verdict

__all__ = ["Column", "Expr", "Logic", "Test", "Value", "Verdict", "col", "from_tuples", "in_split", "same"]


COMPARISON = re.compile(r"""\s*[`"]?([A-Za-z_][\w.]*)[`"]?\s*(==|=|!=|<>|>=|<=|>|<)\s*(-?\d+(?:\.\d+)?|'[^']*'|"[^"]*")\s*""")
"""A comparison as SQL and pandas write it."""

SQL_OPS = {"=": "==", "<>": "!="}


def col(name: str) -> Column:
    """Return a column by name, to build a filter on; "a.b" is also field b of a struct a, if no column has that name.

    Example:
        >>> col("x").isin([1, 2])
        col('x').isin([1, 2])
    """
    if not isinstance(name, str):
        raise FilterError(f"col({name!r}) names no column. Give the name as a str: col('x').")
    return Column((name,))


def in_split(column_name: str, low: int, high: int, seed: int) -> Test:
    """Return the condition that a value's stable hash lies in `low <= hash < high`; nulls have a hash too.

    Ranges that meet, from 0 to 2**64, put every row in exactly one split, for ever.

    Raises:
        ArgumentError: Unless 0 <= low <= high <= 2**64.

    Example:
        >>> in_split("id", 0, 2**63, seed=7)
        in_split('id', 0, 9223372036854775808, seed=7)
    """
    if not 0 <= low <= high <= 2**64:
        raise ArgumentError(f"A split from {low} to {high} is no range of hashes. Give 0 <= low <= high <= 2**64.")
    return Test(col(column_name), "in_split", (low, high, seed))


def same(one: Expr, two: Expr) -> bool:
    """Return whether two expressions ask the same; `==` would build a third.

    Example:
        >>> same(col("x").isin([1, 2]), col("x").isin([2, 1, 1]))
        True
    """
    return one.describe() == two.describe()


def from_tuples(dnf: Sequence[Any]) -> Expr:
    """Return the filter that pyarrow, pandas and Petastorm users write as tuples.

    A tuple is a comparison, a list of tuples joins them by and, a list of such lists joins those by or. As everywhere
    here, and unlike in pyarrow, "not in" drops nulls.

    Raises:
        FilterError: If it is neither, or has another operator.

    Example:
        >>> from_tuples([[("a", ">", 3), ("b", "in", ["x"])], [("c", "is null")]])
        ((col('a') > 3) & col('b').isin(['x'])) | col('c').is_null()
    """
    match dnf:
        case [str(), *_]:
            return _from_tuple(dnf)
        case [[str(), *_], *_]:
            return reduce(and_, map(_from_tuple, dnf))
        case [[[str(), *_], *_], *_]:
            return reduce(or_, map(from_tuples, dnf))
    if isinstance(dnf, str):
        raise FilterError(f"{dnf!r} is text; expected an expression of columns. {_suggested(dnf)}")
    if callable(dnf):
        name = getattr(dnf, "__qualname__", None) or repr(dnf)
        raise FilterError(
            f"{name} is a function; expected an expression of columns, by which files and row groups can be skipped. "
            "Write it like penstock.col('x') > 3. A function of batches that returns the rows to keep works too, by "
            '.batch("row_group").map(function).'
        )
    raise FilterError(f"{dnf!r} is no filter. Write (column, op, value), a list of those, or a list of such lists.")


def _suggested(text: str) -> str:
    """Return what to write instead of a filter in SQL."""
    found = COMPARISON.fullmatch(text)
    if found is None:
        return "Write it like penstock.col('x') > 3, joined by & and |."
    name, op, value = found.groups()
    return f"Write it as penstock.col({name!r}) {SQL_OPS.get(op, op)} {value}."


_TUPLE_OPS: dict[str, Callable[[Column, Any], Expr]] = {
    "=": operator("=="),
    **{op: operator(op) for op in OPS},
    "in": Column.isin,
    "not in": lambda column, values: ~column.isin(values),
    "is null": lambda column, _: column.is_null(),
    "is not null": lambda column, _: column.is_not_null(),
}


def _from_tuple(clause: Sequence[Any]) -> Expr:
    match clause:
        case [str(name), str(op), *value] if op in _TUPLE_OPS and len(value) <= 1:
            return _TUPLE_OPS[op](col(name), value[0] if value else None)
    ops = ", ".join(_TUPLE_OPS)
    raise FilterError(f"{clause!r} is no comparison. Write (column, op, value), with op one of: {ops}.")
