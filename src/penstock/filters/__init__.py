"""Filter expressions: build a condition, bind it to a table, prune by statistics, run it on rows.

`col("x") > 3` builds a node and reads nothing. `bind` checks names and literals against a schema. `prune` finds the files
and row groups that can have matching rows by their statistics. `mask` evaluates rows. The logic is that of SQL: a
comparison with null is null, `&`, `|` and `~` follow Kleene, and a row matches if the whole is true. NaN compares false,
except with `!=`. Columns and literals compare exactly, in the column's type; a float literal is rounded to the precision
of a float column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any

from penstock.errors import ArgumentError, FilterError
from penstock.filters.literals import Value
from penstock.filters.nodes import Column, Expr, Logic, Test, operator
from penstock.filters.prune import OPS, Verdict

__all__ = ["Column", "Expr", "Logic", "Test", "Value", "Verdict", "col", "from_tuples", "in_split", "same"]


COMPARISON = r"""\s*[`"]?([A-Za-z_][\w.]*)[`"]?\s*(==|=|!=|<>|>=|<=|>|<)\s*(-?\d+(?:\.\d+)?|'[^']*'|"[^"]*")\s*"""
"""A comparison as SQL and pandas write it."""

SQL_OPS = {"=": "==", "<>": "!="}


def col(name: str) -> Column:
    """Return a column by name, for filter expressions; "a.b" is also field b of a struct a, if no column has that name.

    Example:
        >>> col("x").isin([1, 2])
        col('x').isin([1, 2])
    """
    if not isinstance(name, str):
        raise FilterError(f"col() got {name!r}; expected the name of a column, for example col('x').")
    return Column((name,))


def in_split(column_name: str, low: int, high: int, seed: int) -> Test:
    """Return the condition that a value's stable hash is in `low <= hash < high`; nulls have a hash too.

    Adjacent ranges from 0 to 2**64 put every row in exactly one split, in all versions.

    Raises:
        ArgumentError: Unless 0 <= low <= high <= 2**64.

    Example:
        >>> in_split("id", 0, 2**63, seed=7)
        in_split('id', 0, 9223372036854775808, seed=7)
    """
    if not 0 <= low <= high <= 2**64:
        raise ArgumentError(f"in_split() got low={low}, high={high}; expected 0 <= low <= high <= 2**64.")
    return Test(col(column_name), "in_split", (low, high, seed))


def same(one: Expr, two: Expr) -> bool:
    """Return whether two expressions are the same condition; `==` would build a new expression.

    Example:
        >>> same(col("x").isin([1, 2]), col("x").isin([2, 1, 1]))
        True
    """
    return one.describe() == two.describe()


def from_tuples(dnf: Sequence[Any]) -> Expr:
    """Return a filter that is written as tuples, as in pyarrow, pandas and Petastorm.

    A tuple is a comparison, a list of tuples is their conjunction, a list of such lists is their disjunction. Unlike in
    pyarrow, "not in" does not match nulls.

    Raises:
        FilterError: If the form or an operator is not valid.

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
        raise FilterError(f"{dnf!r} is text; expected an expression of columns. {_suggestion(dnf)}")
    if callable(dnf):
        name = getattr(dnf, "__qualname__", None) or repr(dnf)
        raise FilterError(
            f"{name} is a function; expected an expression of columns, with which files and row groups can be skipped, "
            "for example penstock.col('x') > 3. To filter with a function of batches use "
            '.batch("row_group").map(function).'
        )
    raise FilterError(f"{dnf!r} is not a filter; expected (column, op, value), a list of those, or a list of such lists.")


def _suggestion(text: str) -> str:
    """Return what to write instead of a filter in SQL."""
    import re

    match = re.fullmatch(COMPARISON, text)
    if match is None:
        return "Write it like penstock.col('x') > 3, joined by & and |."
    name, op, value = match.groups()
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
    raise FilterError(f"{clause!r} is not a comparison; expected (column, op, value), with op one of: {ops}.")
